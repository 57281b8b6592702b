//! Giving up a tree: its pages lose what they hold, a leaf at a time, and are then merged like other empty pages.
//!
//! Nothing else is needed: each step leaves a right tree, smaller than before, so a crash on the way loses no more than
//! the way; and whoever is still at work in the tree finds what he wrote, or nothing.

use crate::chain::base_of;
use crate::error::Miss;
use crate::page::{empty_base_within, writer::Bounds};
use crate::sync::Ordering;
use crate::{BwTreeError, Tree};
use deuteron_epoch::Guard;
use deuteron_llama::{OwnedNode, PageId};

/// What [`Tree::clear_within`] has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cleared {
    /// Whether the leaf was emptied.
    pub done: bool,
    /// Where the next leaf begins, if there is one.
    pub next: Option<Vec<u8>>,
}

impl Tree {
    /// Says that the tree's records are not wanted any more. [`Tree::clear_step`] then removes them.
    pub fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
    }

    /// Whether [`Tree::give_up`] was called.
    #[inline]
    pub fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Empties the leaf that holds `from`; where the next one begins, or `None` at the end. A page that is not in memory is
    /// not read, as the index knows its bounds. The emptied pages are merged by [`Tree::maintain_step`].
    ///
    /// # Errors
    /// [`BwTreeError::Load`] if a page had to be read all the same. Call it again.
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree, Upsert};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// tree.upsert(&[Upsert { key: b"one", value: Some(b"1"), stamp: 1, lsn: 1 }])?;
    /// let mut from = Some(Vec::new());
    /// while let Some(low) = from {
    ///     from = tree.clear_step(&low)?;
    /// }
    /// assert_eq!(tree.check()?.records, 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear_step(&self, from: &[u8]) -> Result<Option<Vec<u8>>, BwTreeError> {
        Ok(self.clear(from, |_| true)?.next)
    }

    /// Empties the leaf that holds `from`, if all of its range lies from `low` on and below `high`. A page that is not in memory is
    /// not read.
    ///
    /// # Errors
    /// As [`Tree::clear_step`].
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree, Upsert};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// tree.upsert(&[Upsert { key: b"one", value: Some(b"1"), stamp: 1, lsn: 1 }])?;
    /// let cleared = tree.clear_within(b"one", b"one", b"two")?;
    /// assert!(!cleared.done, "the only leaf has no bounds");
    /// assert_eq!(tree.check()?.records, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn clear_within(&self, from: &[u8], low: &[u8], high: &[u8]) -> Result<Cleared, BwTreeError> {
        self.clear(from, |leaf| leaf.low >= low && leaf.high.is_some_and(|end| end <= high))
    }

    fn clear(&self, from: &[u8], wanted: impl Fn(&Bounds<'_>) -> bool) -> Result<Cleared, BwTreeError> {
        loop {
            let missing = match self.try_clear(from, &wanted, &self.llama.pin()) {
                Ok(cleared) => return Ok(cleared),
                Err(Miss(page)) => page,
            };
            self.load(missing)?;
        }
    }

    fn try_clear(
        &self,
        from: &[u8],
        wanted: &impl Fn(&Bounds<'_>) -> bool,
        guard: &Guard<'_>,
    ) -> Result<Cleared, Miss> {
        loop {
            let target = self.target(from, guard)?;
            let named;
            let bounds = match target.snapshot.head().filter(|head| !head.is_partial()) {
                Some(head) => {
                    let base = base_of(head).expect("the chain is whole");
                    Bounds::of(&base)
                }
                None => {
                    // U2: asked after the snapshot, the index knows where the page begins and ends.
                    named = self.index.bounds(from, guard);
                    let (low, page, high) = (&named.0, named.1, named.2.as_deref());
                    let right = high.map_or(PageId::NONE, |high| self.index.route(high, guard).0);
                    if page != target.page {
                        return Err(Miss(target.page));
                    }
                    Bounds { low, high, right }
                }
            };
            let next = bounds.high.map(<[u8]>::to_vec);
            if !wanted(&bounds) {
                return Ok(Cleared { done: false, next });
            }
            let node = self.empty_node(&bounds);
            if self.llama.install(target.page, target.snapshot, node, guard).is_ok() {
                return Ok(Cleared { done: true, next });
            }
        }
    }

    fn empty_node(&self, bounds: &Bounds<'_>) -> OwnedNode {
        let bytes = empty_base_within(bounds);
        self.mark_if_sparse(&bytes);
        OwnedNode::base(&bytes, self.descriptor(bounds.low), &[])
    }
}
