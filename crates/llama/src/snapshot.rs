//! [`Snapshot`]: a page as it was at one moment.

use crate::flash_address::FlashAddress;
use crate::mapping_table::Word;
use crate::node::NodeRef;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

/// A page as it was when [`Llama::snapshot`](crate::Llama::snapshot) looked, good as long as the guard. It is also
/// what [`Llama::install`](crate::Llama::install) expects to find unchanged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Snapshot<'g> {
    word: u64,
    guard: PhantomData<&'g ()>,
}

/// What a [`Snapshot`] shows.
#[derive(Clone, Copy, Debug)]
pub enum PageState<'g> {
    /// No page has this identifier, or nothing has been installed yet.
    Free,
    /// The newest node of a chain in memory. The rest of the page may be on flash only: [`NodeRef::is_partial`].
    Resident(NodeRef<'g>),
    /// The page is on flash only: [`Llama::load`](crate::Llama::load) it, or put a delta on it unread.
    Stored(FlashAddress),
}

impl<'g> Snapshot<'g> {
    /// # Safety
    /// `word` was read from the mapping table, or put there, under a guard of the table's epochs that lives for
    /// `'g`.
    pub(crate) unsafe fn new(word: u64) -> Snapshot<'g> {
        Snapshot { word, guard: PhantomData }
    }

    pub(crate) fn word(self) -> u64 {
        self.word
    }

    /// What is to be seen.
    #[inline]
    pub fn state(self) -> PageState<'g> {
        match Word::decode(self.word) {
            Word::Free => PageState::Free,
            Word::Stored(address) => PageState::Stored(address),
            Word::Resident(head) => {
                let head = NonNull::new(head).expect("a resident word is not null").cast();
                // SAFETY: the word was in the mapping table under the guard, so N1 and N3 keep the chain for 'g.
                PageState::Resident(unsafe { NodeRef::new(head) })
            }
        }
    }

    /// The newest node, if the page is resident.
    #[inline]
    pub fn head(self) -> Option<NodeRef<'g>> {
        match self.state() {
            PageState::Resident(head) => Some(head),
            PageState::Free | PageState::Stored(_) => None,
        }
    }

    /// Whether nothing is installed.
    pub fn is_free(self) -> bool {
        self.word == 0
    }
}

impl fmt::Debug for Snapshot<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.state().fmt(formatter)
    }
}
