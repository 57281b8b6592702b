//! [`PageId`]: the name of a logical page.

use std::fmt;

/// The name of a logical page. It never changes while the page lives; an identifier is used again only after
/// every operation that might have held the old page has ended.
///
/// 0 is never a page ([`PageId::NONE`]), so that a "no right sibling" costs no extra bit.
///
/// ```
/// use deuteron_llama::PageId;
/// assert!(PageId::NONE.is_none());
/// assert_eq!(PageId(7).to_string(), "page 7");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct PageId(pub u64);

impl PageId {
    /// No page.
    pub const NONE: PageId = PageId(0);

    /// Identifiers are below: the mapping table of as many would take 128 GiB.
    pub(crate) const END: PageId = PageId(1 << 32);

    /// Whether a page can have this identifier, which was read.
    pub(crate) fn can_be(self) -> bool {
        !self.is_none() && self < PageId::END
    }

    /// Whether this is [`PageId::NONE`].
    pub fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for PageId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "page {}", self.0)
    }
}
