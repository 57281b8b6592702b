//! Blind upserts.
//!
//! All operations of a batch that fall to one page go into one delta, put on top by one compare-and-swap. The
//! page's content is not looked at, and need not be in memory; only its bounds must be known:
//!
//! - **U1** If the base is in memory, the newest node says the bounds. A chain keeps its base's bounds, since a split
//!   replaces the chain; so if the compare-and-swap succeeds, the bounds were right.
//! - **U2** If the base is not in memory, the snapshot is taken *first*, and then the index is asked for the key
//!   again. A page leaves memory only when it is no longer held, that is after all its separators were posted; and a
//!   page that is not in memory is not split. The last part of a split is not held: before a page is split the index is told
//!   where it ends, which is where that part ends. So the index, asked later, knows of every split that happened before the
//!   snapshot, and if it still names the page, its bounds hold for the snapshot. If the compare-and-swap succeeds,
//!   nothing has changed since.
//!
//!   A merge widens the range of the left page and takes the right page's separator away, in that order, and keeps both in
//!   memory until both is done. So a page that is not in memory and that the index names for a key of the right page's range
//!   has been merged; and if it has not been in the snapshot, the word has changed since.
//!
//! - **U3** What the index has named for a key stays good as a place to begin for as long as the guard is held under which it was asked:
//!   splits only move keys to the right, a page that is merged away is sealed and leads to its heir, and a page that
//!   was freed is seen to be free, as its identifier is not given out again before the guard is gone.
//!
//! Who comes by way of a sealed page needs the page it leads to in memory (G1 in `merging`).

use crate::chain;
use crate::consolidate::Consolidation;
use crate::error::Miss;
use crate::interruption::{Moment, strike};
use crate::merging::Heir;
use crate::page::batch::{Batch, Upsert};
use crate::search::compare;
use crate::sync::Ordering;
use crate::tree::KEY_BYTES_MAX;
use crate::{BwTreeError, Tree};
use deuteron_epoch::Guard;
use deuteron_llama::{NodeRef, PageId, PageState, Snapshot};
use std::borrow::Cow;

/// How many pages are fetched at once: about as many lines as a processor waits for at a time.
const AHEAD: usize = 16;

/// For at most how many operations.
const OPERATIONS_AHEAD: usize = 16 * AHEAD;

/// How many deltas in the slack of their base count like one elsewhere.
const NEAR_DELTAS: usize = 4;

/// Lines of a chain that are asked for just before it is consolidated; by then the processor has seen where this leads.
const CONSOLIDATED_LINES: usize = 24;

/// Lines of a base that are asked for when its chain is about to be consolidated: where its keys are searched, and some records.
const BASE_LINES: usize = 24;

/// The same of a delta that does not lie in the slack of its base.
const DELTA_LINES: usize = 12;

/// Whether the chain lies in one stretch of memory.
fn is_in_one_piece(head: NodeRef<'_>) -> bool {
    head.is_near() || head.chain_length() == 0
}

/// Operations whose stamps are their own.
const AS_GIVEN: Option<fn(Option<u64>) -> Option<u64>> = None;

/// What one delta has taken.
struct Applied {
    operations: usize,
    /// Of the delta.
    bytes: usize,
}

/// A page that may take a delta.
pub(crate) struct Target<'g> {
    pub(crate) page: PageId,
    pub(crate) snapshot: Snapshot<'g>,
    /// `None` if the page is not in memory at all.
    head: Option<NodeRef<'g>>,
    /// Up to where the page's range goes, exclusive.
    until: Option<Cow<'g, [u8]>>,
    /// Whether the base is in memory.
    whole: bool,
}

impl Tree {
    /// Applies some operations from the front of `operations`, which are sorted by key: those of the first few pages, each
    /// page's as one delta; returns how many. Never waits.
    ///
    /// A random upsert spends most of its time waiting for memory. So all of these pages are looked up and asked for before the
    /// first of them is changed, and the waits overlap.
    ///
    /// # Errors
    /// [`Miss`] if the first page has taken as many unread deltas as it may, and must be loaded before it takes more. If that fails it is known to be
    /// [unreadable](deuteron_llama::Llama::is_unreadable), and takes more all the same: to be asked again.
    pub fn try_upsert(&self, operations: &[Upsert<'_>], guard: &Guard<'_>) -> Result<usize, Miss> {
        debug_assert!(operations.is_sorted_by_key(|operation| operation.key));
        if let [only] = operations {
            let page = self.index.find(only.key, guard);
            return Ok(self.upsert_page(page, operations, AS_GIVEN, guard)?.operations);
        }
        let window = self.fetch(operations, guard);
        let (mut applied, mut bytes) = (0, 0);
        for &(page, end) in window.iter().take_while(|(page, _)| *page != PageId::NONE) {
            // U3. An end also for bytes, so that whoever keeps a budget looks at it in time.
            while applied < end && bytes <= self.options.delta_bytes_max {
                match self.upsert_page(page, &operations[applied..], AS_GIVEN, guard) {
                    Ok(delta) => {
                        applied += delta.operations;
                        bytes += delta.bytes;
                    }
                    Err(miss) if applied == 0 => return Err(miss),
                    Err(_) => return Ok(applied),
                }
            }
        }
        Ok(applied)
    }

    /// Writes `value` to `key`, or deletes it. Its stamp, which is its LSN, too, is asked for as late as can be: `stamp` is told an upper bound of the stamps of all that the page
    /// holds, or `None` if that is not known, and gives a higher one. It is asked again if others have changed the page meanwhile; what it gives last counts. So a thread can draw stamps from
    /// a stock of its own, as long as they are higher than what the page has. Whether it has given one: otherwise nothing is written. Never waits.
    ///
    /// # Errors
    /// As [`Tree::try_upsert`].
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// let next = |above: Option<u64>| above.map(|above| above + 1);
    /// assert_eq!(tree.try_write(b"one", Some(b"1"), next, &tree.llama().pin()), Ok(true));
    /// assert_eq!(tree.try_write(b"two", Some(b"2"), next, &tree.llama().pin()), Ok(true));
    /// assert_eq!(tree.get(b"two", |record| record.map(|found| found.stamp))?, Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn try_write(
        &self,
        key: &[u8],
        value: Option<&[u8]>,
        stamp: impl FnMut(Option<u64>) -> Option<u64>,
        guard: &Guard<'_>,
    ) -> Result<bool, Miss> {
        let page = self.index.find(key, guard);
        let operation = Upsert { key, value, stamp: 0, lsn: 0 };
        Ok(self.upsert_page(page, &[operation], Some(stamp), guard)?.operations > 0)
    }

    /// Applies as many operations from the front as belong to one page and fit into one delta. To that page leads `page`, as by U3. If there is a
    /// `stamp`, it is one operation, to which that is given; none if that gives none.
    #[inline]
    fn upsert_page(
        &self,
        page: PageId,
        operations: &[Upsert<'_>],
        mut stamp: Option<impl FnMut(Option<u64>) -> Option<u64>>,
        guard: &Guard<'_>,
    ) -> Result<Applied, Miss> {
        loop {
            let target = self.target_from(page, operations[0].key, guard)?;
            if target.head.is_some_and(|head| self.is_at_limit(head)) {
                self.counters.back_pressure.add(1);
                if target.whole {
                    // Whether done or lost to another thread: the chain is not what it was.
                    self.consolidate_page(target.page, target.snapshot, guard);
                    continue;
                }
                if !self.llama.is_unreadable(target.page) {
                    return Err(Miss(target.page));
                }
            }
            let stamped;
            let operations = match &mut stamp {
                None => operations,
                Some(stamp) => {
                    // After the snapshot: whoever has changed the page before has got his stamp before, and whoever changes it now has this tried again.
                    let newest = target.head.filter(|_| target.whole).map(chain::newest_stamp);
                    let Some(stamp) = stamp(newest.filter(|newest| *newest < u64::MAX)) else {
                        return Ok(Applied { operations: 0, bytes: 0 });
                    };
                    stamped = Upsert { stamp, lsn: stamp, ..operations[0] };
                    std::slice::from_ref(&stamped)
                }
            };
            let until = target.until.as_deref();
            let batch = Batch::new(self.fitting(operations, until), until);
            if target.whole
                && let Some(head) = target.head.filter(|head| self.is_due_with(*head, batch.bytes()))
            {
                // The consolidation reads all of it.
                head.prefetch(2..CONSOLIDATED_LINES);
            }
            let stamp_below = target.head.map_or(u64::MAX, chain::newest_stamp);
            let write = |bytes: &mut [u8]| batch.write(bytes, stamp_below);
            strike(Moment::Step);
            let Some(installed) =
                self.llama.install_delta(target.page, target.snapshot, batch.bytes(), write, guard)
            else {
                self.counters.upserts_lost.add(1);
                continue;
            };
            strike(Moment::Step);
            if !target.whole {
                self.counters.blind_deltas.add(1);
                self.mark_deletes(&target, &operations[..batch.operations()], guard);
            } else if installed.head().is_some_and(|head| self.is_due(head)) {
                // Which marks the page if there is reason to.
                self.consolidate_page(target.page, installed, guard);
            } else {
                self.mark_deletes(&target, &operations[..batch.operations()], guard);
            }
            return Ok(Applied { operations: batch.operations(), bytes: batch.bytes() });
        }
    }

    /// Marks a page that has got a delta of these operations, and is not consolidated for it, if what they delete may be a quarter of its records: a few tombstones make no page
    /// due, nor a full fragment of it, and what they delete would stay on disk for as long as nobody writes to it again.
    #[inline]
    fn mark_deletes(&self, target: &Target<'_>, operations: &[Upsert<'_>], guard: &Guard<'_>) {
        let tombstones = operations.iter().filter(|operation| operation.value.is_none());
        if let Some(newest) = tombstones.map(|tombstone| tombstone.lsn).max() {
            self.mark_if_emptied(target, operations, newest, guard);
        }
    }

    #[cold]
    fn mark_if_emptied(
        &self,
        target: &Target<'_>,
        operations: &[Upsert<'_>],
        newest: u64,
        guard: &Guard<'_>,
    ) {
        let base = target.head.filter(|_| target.whole).and_then(chain::base_of);
        let records = match &base {
            Some(base) => base.count() as u64,
            // A guess: it is not in memory.
            None => self.llama.stored_bytes(target.page) / self.record_bytes.load(Ordering::Relaxed),
        };
        let mut deltas = target.head.into_iter().flat_map(chain::deltas);
        let mut deleted = operations.len() as u64;
        // A page that cannot be read may have any number of deltas, and this is done for each: no more of them are looked at than it takes.
        while 4 * deleted < records {
            let Some(delta) = deltas.next() else { return };
            deleted += delta.count() as u64;
        }
        let low = match &base {
            Some(base) => Cow::Borrowed(base.low()),
            None => self.index.bounds(operations[0].key, guard).0,
        };
        self.marks.mark(&low, Some(newest));
    }

    /// Applies `operations`, which are sorted by key, loading pages if need be. When it returns, all are visible to
    /// reads. If it fails, some may be; it may be repeated.
    ///
    /// # Errors
    /// [`BwTreeError::KeySize`] and [`BwTreeError::ValueSize`], before anything is applied; [`BwTreeError::Load`].
    pub fn upsert(&self, operations: &[Upsert<'_>]) -> Result<(), BwTreeError> {
        for operation in operations {
            self.check_sizes(operation.key, operation.value)?;
        }
        let mut rest = operations;
        let mut unread = None;
        while !rest.is_empty() {
            // A guard for a few pages, so that a long batch does not hold up reclamation.
            let applied = self.try_upsert(rest, &self.llama.pin());
            match applied {
                Ok(count) => rest = &rest[count..],
                Err(miss) => self.load_or_go_on(miss, &mut unread)?,
            }
        }
        Ok(())
    }

    /// Loads what [`Tree::try_upsert`] has missed. That it cannot be read is no error the first time, as that need not be in the way of upserts; `unread` is
    /// what that was last.
    ///
    /// # Errors
    /// [`BwTreeError::Load`].
    pub fn load_or_go_on(&self, miss: Miss, unread: &mut Option<PageId>) -> Result<(), BwTreeError> {
        let Miss(page) = miss;
        self.load(page).or_else(|error| {
            let is_new = unread.replace(page) != Some(page);
            if is_new && self.llama.is_unreadable(page) { Ok(()) } else { Err(error) }
        })
    }

    /// Where the index leads for the first operations, and up to which of them (exclusive) it leads there; the pages are asked for. Those
    /// that are about to be consolidated are needed down to the base.
    fn fetch(&self, operations: &[Upsert<'_>], guard: &Guard<'_>) -> [(PageId, usize); AHEAD] {
        let mut pages = [(PageId::NONE, 0); AHEAD];
        let mut nodes = [(None, 0); AHEAD];
        let mut end = 0;
        for (page, (node, bytes)) in pages.iter_mut().zip(&mut nodes) {
            let rest = &operations[end..operations.len().min(OPERATIONS_AHEAD)];
            let Some((first, others)) = rest.split_first() else { break };
            let leaf = self.index.find_leaf(first.key, guard);
            let others = others.iter().take_while(|operation| leaf.surely_holds(operation.key)).count();
            *bytes = rest[..=others].iter().map(Upsert::bytes).sum();
            end += 1 + others;
            *page = (leaf.page, end);
            *node = self.llama.snapshot(leaf.page, guard).head();
            if let Some(head) = node {
                head.prefetch(0..2);
            }
        }
        // As if the slack were used up; whether it will be is not known yet.
        let is_due = |head: &NodeRef<'_>, bytes| {
            self.is_long(false, head.chain_length() + 1, head.delta_bytes() + bytes)
        };
        let mut nodes = nodes.map(|(node, bytes)| node.filter(|head| is_due(head, bytes)));
        for node in &mut nodes {
            if let Some(near) = node.take_if(|head| is_in_one_piece(*head)) {
                near.prefetch_down(BASE_LINES);
            }
        }
        // A round for each node of the longest chain.
        for _ in 0..self.options.consolidate_at {
            if nodes.iter().all(Option::is_none) {
                break;
            }
            for node in &mut nodes {
                let Some(above) = *node else { continue };
                *node = above.next();
                let lines = if above.chain_length() == 1 { BASE_LINES } else { DELTA_LINES };
                if let Some(next) = node {
                    next.prefetch(0..lines);
                }
            }
        }
        pages
    }

    /// Checks a key and its value against the limits.
    ///
    /// # Errors
    /// [`BwTreeError::KeySize`], [`BwTreeError::ValueSize`].
    pub fn check_sizes(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), BwTreeError> {
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return Err(BwTreeError::KeySize { found: key.len(), limit: KEY_BYTES_MAX });
        }
        let found = value.map_or(0, <[u8]>::len);
        let limit = self.value_bytes_max();
        if found > limit { Err(BwTreeError::ValueSize { found, limit }) } else { Ok(()) }
    }

    /// Finds the page that holds `key`, and its bounds.
    pub(crate) fn target<'g>(&self, key: &[u8], guard: &'g Guard<'_>) -> Result<Target<'g>, Miss> {
        self.target_from(self.index.find(key, guard), key, guard)
    }

    /// The same from `page` on, which the index has named for `key` under the same guard (U3).
    fn target_from<'g>(
        &self,
        mut page: PageId,
        key: &[u8],
        guard: &'g Guard<'_>,
    ) -> Result<Target<'g>, Miss> {
        let mut past_seal = false;
        loop {
            self.llama.prefetch_for_change(page);
            let snapshot = self.llama.snapshot(page, guard);
            if let Some(head) = snapshot.head() {
                head.prefetch_for_delta();
            }
            let head = match snapshot.state() {
                PageState::Resident(sealed) if sealed.is_sealed() => {
                    match self.heir_of(page, sealed, guard)? {
                        Heir::Merged(heir) => (page, past_seal) = (heir, true),
                        Heir::Unmerged(left, expected) => {
                            self.finish_merge(left, expected, page, sealed, guard);
                        }
                    }
                    continue;
                }
                PageState::Resident(head) => Some(head),
                PageState::Stored(_) => None,
                PageState::Free => {
                    // Merged and freed since the index was asked.
                    page = self.index.find(key, guard);
                    continue;
                }
            };
            if let Some(head) = head.filter(|head| !head.is_partial()) {
                // U1.
                match chain::right_of(head, key) {
                    Ok(until) => {
                        let until = until.map(Cow::Borrowed);
                        return Ok(Target { page, snapshot, head: Some(head), until, whole: true });
                    }
                    Err((high, right)) => page = self.go_right(page, high, right, guard)?,
                }
            } else {
                // U2. If another page is named, the way here was outdated, or led past a seal.
                strike(Moment::Step);
                let (named, until) = self.index.route(key, guard);
                if named == page {
                    return Ok(Target { page, snapshot, head, until, whole: false });
                }
                if past_seal {
                    return Err(Miss(page));
                }
                page = named;
            }
        }
    }

    /// The operations from the front that belong below `until` and fit into one delta.
    fn fitting<'o, 'a>(&self, operations: &'o [Upsert<'a>], until: Option<&[u8]>) -> &'o [Upsert<'a>] {
        if let [_] = operations {
            return operations;
        }
        let mut bytes = 0;
        let count = operations
            .iter()
            .take_while(|operation| {
                let first = bytes == 0;
                bytes += operation.bytes();
                let fits = first || bytes <= self.options.delta_bytes_max;
                fits && until.is_none_or(|until| compare(operation.key, until).is_lt())
            })
            .count();
        &operations[..count]
    }

    /// Whether the chain may not get longer.
    fn is_at_limit(&self, head: NodeRef<'_>) -> bool {
        head.chain_length() >= self.options.chain_length_max
            || head.delta_bytes() >= self.options.chain_bytes_max()
    }

    /// Whether the chain has got long enough to be consolidated.
    fn is_due(&self, head: NodeRef<'_>) -> bool {
        self.is_long(head.is_near(), head.chain_length(), head.delta_bytes())
    }

    /// Whether one more delta, of so many bytes, makes a chain long enough to be consolidated that lies in one piece with its base.
    fn is_due_with(&self, head: NodeRef<'_>, bytes: usize) -> bool {
        is_in_one_piece(head) && self.is_long(true, head.chain_length() + 1, head.delta_bytes() + bytes)
    }

    fn is_long(&self, is_near: bool, chain_length: usize, delta_bytes: usize) -> bool {
        // A delta in the slack costs a reader no wait. When the slack is used up the next one does.
        let most = if is_near { self.near_deltas() } else { self.options.consolidate_at };
        chain_length >= most || delta_bytes >= self.options.page_bytes_max / 2
    }

    /// How many deltas in the slack make a page due.
    pub(crate) fn near_deltas(&self) -> usize {
        NEAR_DELTAS * self.options.consolidate_at
    }

    /// Consolidates the page under `snapshot`, and counts how it went.
    pub(crate) fn consolidate_page(
        &self,
        page: PageId,
        snapshot: Snapshot<'_>,
        guard: &Guard<'_>,
    ) -> Consolidation {
        let outcome = self.try_consolidate(page, snapshot, guard);
        match outcome {
            Consolidation::Done => {
                self.counters.consolidations.add(1);
                self.chain_lengths.record(snapshot.head().map_or(0, NodeRef::chain_length) as u64);
            }
            Consolidation::Lost => self.counters.consolidations_lost.add(1),
            Consolidation::NotWhole => {}
        }
        outcome
    }
}
