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
        loop {
            let missing = match self.try_clear(from, &self.llama.pin()) {
                Ok(next) => return Ok(next),
                Err(Miss(page)) => page,
            };
            self.load(missing)?;
        }
    }

    fn try_clear(&self, from: &[u8], guard: &Guard<'_>) -> Result<Option<Vec<u8>>, Miss> {
        loop {
            let target = self.target(from, guard)?;
            let (node, next) = match target.snapshot.head().filter(|head| !head.is_partial()) {
                Some(head) => {
                    let base = base_of(head).expect("the chain is whole");
                    (self.empty_node(&Bounds::of(&base)), base.high().map(<[u8]>::to_vec))
                }
                None => {
                    // U2: asked after the snapshot, the index knows where the page begins and ends.
                    let (low, named, high) = self.index.bounds(from, guard);
                    let right = high.map_or(PageId::NONE, |high| self.index.find(high, guard));
                    // A neighbour that was merged and is kept by the index does not end the page.
                    if named != target.page || (high.is_some() && !self.is_alive(right, guard)) {
                        return Err(Miss(target.page));
                    }
                    (self.empty_node(&Bounds { low, high, right }), high.map(<[u8]>::to_vec))
                }
            };
            if self.llama.install(target.page, target.snapshot, node, guard).is_ok() {
                return Ok(next);
            }
        }
    }

    fn empty_node(&self, bounds: &Bounds<'_>) -> OwnedNode {
        let bytes = empty_base_within(bounds);
        self.mark_if_sparse(&bytes);
        OwnedNode::base(&bytes, self.descriptor(bounds.low), &[])
    }
}
