//! Blind upserts.
//!
//! All operations of a batch that fall to one page go into one delta, put on top by one compare-and-swap. The
//! page's content is not looked at, and need not be in memory; only its bounds must be known:
//!
//! - **U1** If the base is in memory, the newest node says the bounds. A chain keeps its base's bounds, since a split
//!   replaces the chain; so if the compare-and-swap succeeds, the bounds were right.
//! - **U2** If the base is not in memory, the snapshot is taken *first*, and then the index is asked for the key
//!   again. A page leaves memory only when it is no longer held, that is after all its separators were posted; and a
//!   page that is not in memory is not split. So the index, asked later, knows of every split that happened before the
//!   snapshot, and if it still names the page, its bounds hold for the snapshot. If the compare-and-swap succeeds,
//!   nothing has changed since.
//!
//!   A merge widens the range of the left page and takes the right page's separator away, in that order, and keeps both in
//!   memory until both is done. So a page that is not in memory and that the index names for a key of the right page's range
//!   has been merged; and if it has not been in the snapshot, the word has changed since.
//!
//! Who comes by way of a sealed page needs the page it leads to in memory (G1 in `merging`).

use crate::chain;
use crate::consolidate::Consolidation;
use crate::error::Miss;
use crate::merging::Heir;
use crate::page::batch::{Batch, Upsert};
use crate::tree::KEY_BYTES_MAX;
use crate::{BwTreeError, Tree};
use deuteron_epoch::Guard;
use deuteron_llama::{NodeRef, PageId, PageState, Snapshot};

/// For how many operations pages are fetched ahead: about as many lines as a processor waits for at once.
const AHEAD: usize = 16;

/// How many deltas in the slack of their base count like one elsewhere.
const NEAR_DELTAS: usize = 3;

/// Lines of a chain that are asked for just before it is consolidated; by then the processor has seen where this leads.
const CONSOLIDATED_LINES: usize = 24;

/// A page that may take a delta.
pub(crate) struct Target<'g> {
    pub(crate) page: PageId,
    pub(crate) snapshot: Snapshot<'g>,
    /// `None` if the page is not in memory at all.
    head: Option<NodeRef<'g>>,
    /// Up to where the page's range goes, exclusive.
    until: Option<&'g [u8]>,
    /// Whether the base is in memory.
    whole: bool,
}

impl Tree {
    /// Applies as many operations from the front of `operations`, which are sorted by key, as one delta can take;
    /// returns how many. Never waits.
    ///
    /// # Errors
    /// [`Miss`] if the page has taken as many unread deltas as it may, and must be loaded before it takes more.
    pub fn try_upsert(&self, operations: &[Upsert<'_>], guard: &Guard<'_>) -> Result<usize, Miss> {
        let Some(first) = operations.first() else { return Ok(0) };
        debug_assert!(operations.is_sorted_by_key(|operation| operation.key));
        loop {
            let target = self.target(first.key, guard)?;
            if target.head.is_some_and(|head| self.is_at_limit(head)) {
                self.counters.back_pressure.add(1);
                if !target.whole {
                    return Err(Miss(target.page));
                }
                // Whether done or lost to another thread: the chain is not what it was.
                self.consolidate_page(target.page, target.snapshot, guard);
                continue;
            }
            if target.whole
                && let Some(head) = target.head.filter(|head| self.is_due_soon(*head))
            {
                // The consolidation reads all of it.
                head.prefetch(2..CONSOLIDATED_LINES);
            }
            let batch = Batch::new(self.fitting(operations, target.until), target.until);
            let stamp_below = target.head.map_or(u64::MAX, chain::newest_stamp);
            let write = |bytes: &mut [u8]| batch.write(bytes, stamp_below);
            let Some(installed) =
                self.llama.install_delta(target.page, target.snapshot, batch.bytes(), write, guard)
            else {
                self.counters.upserts_lost.add(1);
                continue;
            };
            if !target.whole {
                self.counters.blind_deltas.add(1);
            } else if installed.head().is_some_and(|head| self.is_due(head)) {
                self.consolidate_page(target.page, installed, guard);
            }
            return Ok(batch.operations());
        }
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
        let mut ahead = 0;
        while !rest.is_empty() {
            // A guard for each page, so that a long batch does not hold up reclamation.
            self.fetch_ahead(rest, &mut ahead);
            let applied = self.try_upsert(rest, &self.llama.pin());
            match applied {
                Ok(count) => {
                    rest = &rest[count..];
                    ahead = ahead.saturating_sub(count);
                }
                Err(Miss(page)) => self.load(page)?,
            }
        }
        Ok(())
    }

    /// Asks the processor for the pages of the next few operations, unless `ahead` says that there are some on their
    /// way. A random upsert spends most of its time waiting for memory, and the waits of several pages overlap.
    /// Subtract from `ahead` what has been applied.
    pub fn fetch_ahead(&self, operations: &[Upsert<'_>], ahead: &mut usize) {
        if *ahead > 0 || operations.len() == 1 {
            return;
        }
        let guard = self.llama.pin();
        let window = &operations[..operations.len().min(AHEAD)];
        *ahead = window.len();
        let mut nodes = [None; AHEAD];
        for (operation, node) in window.iter().zip(&mut nodes) {
            *node = self.llama.snapshot(self.index.find(operation.key, &guard), &guard).head();
            if let Some(head) = node {
                head.prefetch(0..2);
            }
        }
        // Those about to be consolidated are needed down to the base. A round for each node of the longest chain.
        for node in &mut nodes {
            *node = node.filter(|head| head.chain_length() + 1 >= self.options.consolidate_at);
            if let Some(near) = node.take_if(|head| head.is_near()) {
                near.prefetch(2..16);
            }
        }
        for _ in 0..self.options.consolidate_at {
            for node in &mut nodes {
                *node = node.and_then(NodeRef::next);
                if let Some(next) = node {
                    next.prefetch(0..4);
                }
            }
        }
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
        let mut page = self.index.find(key, guard);
        let mut past_seal = false;
        loop {
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
                    Ok(until) => return Ok(Target { page, snapshot, head: Some(head), until, whole: true }),
                    Err((high, right)) => page = self.go_right(page, high, right, guard)?,
                }
            } else {
                // U2. If another page is named, the way here was outdated, or led past a seal.
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
        let mut bytes = 0;
        let count = operations
            .iter()
            .take_while(|operation| {
                let first = bytes == 0;
                bytes += operation.bytes();
                let fits = first || bytes <= self.options.delta_bytes_max;
                fits && until.is_none_or(|until| operation.key < until)
            })
            .count();
        &operations[..count]
    }

    /// Whether the chain may not get longer.
    fn is_at_limit(&self, head: NodeRef<'_>) -> bool {
        head.chain_length() >= self.options.chain_length_max
            || head.delta_bytes() >= self.options.chain_bytes_max()
    }

    /// Whether one more delta makes the chain long enough to be consolidated.
    fn is_due_soon(&self, head: NodeRef<'_>) -> bool {
        head.is_near() && head.chain_length() + 1 >= NEAR_DELTAS * self.options.consolidate_at
    }

    /// Whether the chain has got long enough to be consolidated.
    fn is_due(&self, head: NodeRef<'_>) -> bool {
        // A delta in the slack costs a reader no wait. When the slack is used up the next one does.
        let near = if head.is_near() { NEAR_DELTAS } else { 1 };
        head.chain_length() >= near * self.options.consolidate_at
            || head.delta_bytes() >= self.options.page_bytes_max / 2
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
                self.counters.add_chain(snapshot.head().map_or(0, NodeRef::chain_length));
            }
            Consolidation::Lost => self.counters.consolidations_lost.add(1),
            Consolidation::NotWhole => {}
        }
        outcome
    }
}
