//! Sealing: how a page that counts is given up, with what it holds going over to another page, its *heir*.
//!
//! | step | what | if the machine stops right after it |
//! |---|---|---|
//! | 1 | the page is held, and sealed: it takes no change any more | nothing has happened |
//! | 2 | the heir's new base, with the content of both, *disowns* the page | as before: recovery finds the old heir, and the page |
//! | 3 | the access method forgets the page, and releases it | as before |
//! | 4 | the heir's base is durable: the page does not count any more | recovery finds the heir alone |
//! | 5 | the page is freed, its identifier goes through the epochs | the same |
//!
//! Until step 4 a sealed page is what a crash may have to fall back to. So it is flushed like others (a checkpoint that has
//! begun before step 1 promises what it holds), an image names it even if the index does not, and neither its fragments nor
//! its identifier are given up. As it stays in memory whole, it is never taken for a page on flash that takes blind deltas.
//!
//! Both pages must count when step 1 begins ([`Llama::is_settled`]): then the order of adoption and disowning in the
//! store is that of what happened, and a page that disowns counts at every recovery that finds it doing so. For the same
//! reason a page with adoptions that were not flushed is not sealed: nobody else may tell of them.

use crate::flush::Flusher;
use crate::fragments::Fragments;
use crate::llama::{Llama, chain, untold_kin};
use crate::mapping_table::Word;
use crate::node::OwnedNode;
use crate::page_id::PageId;
use crate::snapshot::Snapshot;
use crate::sync::MutexGuard;
use deuteron_canary::{Canary, is_planted};
use deuteron_epoch::Guard;
use std::sync::{Arc, PoisonError};

impl Llama {
    fn sealed(&self) -> MutexGuard<'_, std::collections::BTreeSet<PageId>> {
        // Every critical section is one operation on the set.
        self.sealed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether recovery would find the page: it is durable, and so is its being part of its tree.
    ///
    /// # Panics
    /// If `page` was never allocated.
    pub fn is_settled(&self, page: PageId) -> bool {
        self.table.is_adopted(page)
    }

    /// Closes a page for good, if it is still `expected`: from now on every [`Llama::install`] on it fails, and it stays in
    /// memory. The caller goes on to install a base that [disowns](OwnedNode::heir) it. One thread at a time seals a page.
    ///
    /// # Errors
    /// The page as it is now, if it has changed; as expected, if it is sealed, or its base adopts or disowns pages and was
    /// not flushed yet.
    ///
    /// # Panics
    /// If the page is not [settled](Llama::is_settled), is not in memory whole, or `guard` is of other epochs.
    ///
    /// ```
    /// # use deuteron_llama::{FlushProgress, Llama, Options, OwnedNode, PageDescriptor};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let (llama, _) = Llama::open(directory, Options::default(), deuteron_epoch::Epochs::new())?;
    /// let (left, right) = (llama.allocate(), llama.allocate());
    /// let (low, high) = (PageDescriptor { tree: 1, low_key: b"", root: true }, PageDescriptor { tree: 1, low_key: b"m", root: false });
    /// let put = |page, base| {
    ///     let guard = llama.pin();
    ///     llama.install(page, llama.snapshot(page, &guard), base, &guard).unwrap();
    /// };
    /// put(right, OwnedNode::base(b"right", high, &[]));
    /// put(left, OwnedNode::base(b"left", low, &[right]));
    /// while llama.flush_step()? != FlushProgress::Nothing {}
    ///
    /// assert!(llama.is_settled(right));
    /// {
    ///     let guard = llama.pin();
    ///     let sealed = llama.seal(right, llama.snapshot(right, &guard), &guard).unwrap();
    ///     assert!(llama.install(right, sealed, OwnedNode::delta(b"too late"), &guard).is_err());
    /// }
    /// put(left, OwnedNode::heir(b"left and right", low, &[], &[right]));
    /// while llama.flush_step()? != FlushProgress::Nothing {}
    /// assert_eq!(llama.statistics().pages_freed, 1);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn seal<'g>(
        &self,
        page: PageId,
        expected: Snapshot<'g>,
        guard: &'g Guard<'_>,
    ) -> Result<Snapshot<'g>, Snapshot<'g>> {
        assert!(self.is_settled(page), "{page} is not settled and cannot be sealed");
        let head = expected.head().filter(|head| !head.is_partial());
        let head = head.unwrap_or_else(|| panic!("{page} is not in memory whole and cannot be sealed"));
        if head.is_sealed() || untold_kin(expected.state()).is_some() {
            return Err(expected);
        }
        // Before the seal can be seen, so that no checkpoint misses the page.
        self.sealed().insert(page);
        self.prepend(page, expected, OwnedNode::seal(), |seal| seal.link(head)).map_err(|_| {
            self.sealed().remove(&page);
            self.snapshot(page, guard)
        })
    }

    /// The sealed pages, as an image names pages. Some may not count any more.
    pub(crate) fn sealed_pages(&self) -> Vec<(u32, Vec<u8>, PageId)> {
        let pages: Vec<PageId> = self.sealed().iter().copied().collect();
        let guard = self.pin();
        let describe = |page| {
            let head = self.snapshot(page, &guard).head()?;
            let descriptor = chain(head).last()?.descriptor()?;
            Some((descriptor.tree, descriptor.low_key.to_vec(), page))
        };
        pages.into_iter().filter_map(describe).collect()
    }

    /// A durable fragment disowns `page`: nothing of it is live any more.
    pub(crate) fn forget_disowned(&self, flusher: &mut Flusher, page: PageId) {
        if !self.table.is_adopted(page) {
            return;
        }
        // Eviction leaves sealed pages alone, so no address of them is in a mapping word (M3).
        for dead in self.table.fragments(page).iter() {
            flusher.accounts.remove(dead, true);
        }
        self.table.set_fragments(page, Fragments::default());
        self.table.clear_adopted(page);
        flusher.images.note(&self.table, page);
        self.sealed().remove(&page);
        flusher.disowned.push(page);
    }

    /// Frees the disowned pages that nobody holds.
    pub(crate) fn free_disowned(&self, flusher: &mut Flusher) {
        if is_planted(Canary::ReuseIdentifier) {
            let sealed: Vec<_> = self.sealed().iter().copied().collect();
            for page in sealed.into_iter().filter(|page| !self.table.is_held(*page)) {
                self.forget_disowned(flusher, page);
            }
        }
        if flusher.disowned.is_empty() {
            return;
        }
        let guard = self.pin();
        flusher.disowned.retain(|&page| {
            if self.table.is_held(page) {
                return true;
            }
            let snapshot = self.snapshot(page, &guard);
            let head = snapshot.head().expect("a sealed page stays in memory");
            assert!(head.is_sealed(), "{page} is to be freed, and lives");
            let freed = self.table.replace(page, snapshot.word(), Word::Free.encode());
            assert!(freed, "{page} is sealed, and has changed");
            self.retire(head, &guard);
            let pages = Arc::clone(&self.pages);
            guard.defer(0, Box::new(move || pages.give_back(page)));
            self.counters.pages_freed.add(1);
            false
        });
    }
}
