//! Garbage collection (paper 2.4): what no active transaction can see is cut off or taken out, what the data component has is
//! evicted when memory is short (rules R11, R12, R26).

use crate::core::Core;
use crate::error::ConflictCause;
use crate::linked::Linked;
use crate::ordered_index::{Settlement, Standing};
use crate::planted::{Bug, is_planted};
use crate::record::{REMOVED, Record};
use crate::recycler::Recycler;
use crate::schedule::point;
use crate::statistics::Counter;
use crate::status::Status;
use crate::superseded::{Note, Superseded};
use crate::sync::{Ordering, lock};
use crate::version::{PRUNED, Version, VersionState};
use deuteron_contract::{Lsn, Timestamp};
use deuteron_epoch::Guard;
use deuteron_log::{AppendError, Record as LogRecord};

/// Records that are looked at for having settled under one guard.
const SETTLE_MAX: usize = 256;
/// So many times in one step where memory is short, as long as all have.
const SETTLES_MAX: usize = 64;
/// Buckets that one step sweeps.
const SWEEP_BUCKETS: usize = 1024;
/// A guard is held for so many buckets.
const GUARD_BUCKETS: usize = 64;

impl Core {
    /// One unit of background work; whether there was any to do. Its time counts as collection.
    pub(crate) fn collect_step(&self) -> bool {
        let before = self.host.processor_time();
        let worked = self.collect();
        if let (Some(before), Some(after)) = (before, self.host.processor_time()) {
            self.note_collection(after.saturating_sub(before));
        }
        worked
    }

    fn collect(&self) -> bool {
        // An error means a log that has stopped; whoever appends next is told.
        let mut worked = self.renew_ceiling().unwrap_or(false);
        worked |= self.tell_untold_aborts();
        self.gather_active();
        self.index.gather();
        // What has not been let go of cannot be evicted, and a step comes seldom where the same thread does I/O, too. With memory to spare
        // there is no hurry: many records are written again meanwhile, and stay where they are.
        let times = if self.account.is_over_target() { SETTLES_MAX } else { 1 };
        let mut uncommitted = 0;
        for _ in 0..times {
            let settlement = self.settle(SETTLE_MAX);
            worked |= settlement.settled > 0;
            uncommitted += settlement.uncommitted;
            // Once round is enough: one that has written much and does nothing has as much in the index.
            if settlement.settled + settlement.uncommitted < SETTLE_MAX || uncommitted >= settlement.remaining
            {
                break;
            }
        }
        if self.account.is_over_target() || self.account.is_untidy() {
            worked |= self.sweep(SWEEP_BUCKETS.min(self.table.buckets()));
        }
        worked
    }

    /// Lets records leave the index of which the data component has everything: looks at up to `count_max` of those that scans have not met and of
    /// those that they have. Nothing if somebody else is at it.
    pub(crate) fn settle(&self, count_max: usize) -> Settlement {
        let guard = self.epochs.pin();
        let settlement = self.index.settle(count_max, |record| self.standing(record), &guard);
        if settlement.settled > 0 {
            self.counters.add(Counter::Settled, settlement.settled as u64);
        }
        settlement
    }

    fn tell_untold_aborts(&self) -> bool {
        let mut untold = lock(&self.untold_aborts);
        let before = untold.len();
        while let Some(&transaction) = untold.last() {
            if self.versions.append(&LogRecord::Abort { transaction }) == Err(AppendError::Full) {
                break;
            }
            untold.pop();
        }
        untold.len() < before
    }

    /// Moves the clock hand over `buckets` buckets; whether anything was dropped. Records that have been used since the hand
    /// last came by are spared once, unless memory is short indeed, or much lies idle and they are in the way of others. What everybody sees is what was [known](Core::known_horizon) of it: to look at
    /// all transactions takes as long as some buckets.
    pub(crate) fn sweep(&self, buckets: usize) -> bool {
        let horizon = self.known_horizon();
        let mut dropped = false;
        for _ in (0..buckets).step_by(GUARD_BUCKETS) {
            // Relaxed: where exactly the hand is does not matter.
            let start = self.clock_hand.fetch_add(GUARD_BUCKETS, Ordering::Relaxed);
            let guard = self.epochs.pin();
            let swept =
                (start..start + GUARD_BUCKETS.min(buckets)).map(|bucket| bucket % self.table.buckets());
            self.table.prefetch_chains(swept.clone(), &guard);
            for bucket in swept {
                self.table.for_each_in_bucket(bucket, &guard, |record| {
                    // Seldom, and whoever changes a record takes its line from those who use it.
                    if self.has_garbage(record, horizon, &guard) {
                        dropped |= self.maintain(record, horizon, &guard);
                    }
                    // The second chance is left to those that the hand passes while there is room.
                    let is_short = self.account.is_over_target();
                    let is_due = is_short && (!record.take_referenced() || self.account.is_over_hard());
                    let is_tidied = self.account.is_untidy();
                    if is_due || is_tidied && record.is_stranded(&guard) {
                        dropped |= self.evict(record, &guard);
                    }
                });
            }
            // Further than it must go, the hand would take second chances for nothing.
            if !self.account.is_over_target() && !self.account.is_untidy() {
                break;
            }
        }
        dropped
    }

    /// Whether everything in the record is at the data component, and visible to all, and nothing uncommitted is above it.
    pub(crate) fn is_settled(&self, record: &Record) -> bool {
        self.standing(record) == Standing::Settled
    }

    /// Whether it is so, and if not, why.
    pub(crate) fn standing(&self, record: &Record) -> Standing {
        self.standing_from(record.head.load(Ordering::SeqCst))
    }

    fn standing_from(&self, head: *mut Version) -> Standing {
        let mut current = head;
        while current != REMOVED && current != PRUNED {
            // SAFETY: reached through a record's head; the callers have a guard (V1).
            let Some(version) = (unsafe { current.as_ref() }) else { break };
            match version.state() {
                VersionState::Committed(at) if self.is_applied(version, at) => break,
                VersionState::Committed(_) => return Standing::Unposted,
                VersionState::Aborted => current = version.next.load(Ordering::Acquire),
                VersionState::Pending(_) => return Standing::Uncommitted,
            }
        }
        Standing::Settled
    }

    fn is_applied(&self, version: &Version, at: Timestamp) -> bool {
        let commit_lsn = version.commit_lsn();
        match version.lsn() {
            Some(lsn) => self.versions.is_applied(lsn, commit_lsn, at),
            // A base has no commit record. Of another inline version the redo record lies somewhere before.
            None => commit_lsn == Lsn(0) || self.versions.is_applied(commit_lsn, commit_lsn, at),
        }
    }

    /// Whether [`Core::maintain`] would drop something, if nobody comes before it.
    pub(crate) fn has_garbage(&self, record: &Record, horizon: Timestamp, guard: &Guard<'_>) -> bool {
        let mut current = record.head.load(Ordering::Acquire);
        let mut newer = None;
        while current != REMOVED && current != PRUNED {
            // SAFETY: reached through the record's head under the guard (V1).
            let Some(version) = (unsafe { current.as_ref() }) else { break };
            current = version.next.load(Ordering::Acquire);
            match version.state() {
                VersionState::Aborted => return true,
                VersionState::Committed(at) if self.is_unseen(at, newer, guard) => return true,
                VersionState::Committed(at) if at < horizon => {
                    return current != PRUNED && !current.is_null();
                }
                VersionState::Committed(at) => newer = Some(at),
                VersionState::Pending(_) => newer = None,
            }
        }
        false
    }

    /// R26: whether nobody sees a version that was committed at `at`, below one that was at `newer`.
    fn is_unseen(&self, at: Timestamp, newer: Option<Timestamp>, guard: &Guard<'_>) -> bool {
        let sees_nothing =
            |newer| self.active.get(guard).is_some_and(|active| active.sees_nothing_in(at, newer));
        newer.is_some_and(sees_nothing)
    }

    /// Unlinks aborted versions and those that nobody sees, and drops what is below the newest that everybody sees; whether there were any. Does
    /// nothing if somebody else is at it.
    pub(crate) fn maintain(&self, record: &Record, horizon: Timestamp, guard: &Guard<'_>) -> bool {
        // SAFETY: what `maintain_to` promises of each version.
        let retire = |version: Linked<'_, Version>| unsafe { self.retire_version(version, guard) };
        self.count_dropped(self.maintain_to(record, horizon, guard, retire))
    }

    /// Counts versions that have been dropped; whether there were any.
    fn count_dropped(&self, dropped: u64) -> bool {
        if dropped > 0 {
            self.counters.add(Counter::VersionsDropped, dropped);
        }
        dropped > 0
    }

    /// The same; how many there were, which are not counted yet. `retire` gets each version that has been unlinked and is stamped, to retire it.
    #[inline]
    fn maintain_to(
        &self,
        record: &Record,
        horizon: Timestamp,
        guard: &Guard<'_>,
        mut retire: impl FnMut(Linked<'_, Version>),
    ) -> u64 {
        let Some(_maintenance) = record.try_maintain() else { return 0 };
        let mut dropped = 0;
        let mut link = &record.head;
        // When the version was committed whose link this is, if that is known.
        let mut newer = None;
        loop {
            let current = link.load(Ordering::Acquire);
            if current == REMOVED || current == PRUNED {
                break;
            }
            // SAFETY: reached through the head under the guard (V1).
            let Some(version) = (unsafe { Linked::new(current) }) else { break };
            point();
            match version.state() {
                VersionState::Aborted => {
                    let next = version.next.load(Ordering::Acquire);
                    // The head may be prepended to at any time; then the version is found below the new head.
                    let unlinked = link.compare_exchange(current, next, Ordering::SeqCst, Ordering::Relaxed);
                    if self.table.versions_lost.is_won(unlinked) {
                        dropped += 1;
                        // Unlinked under the maintenance lock (E1), stamped (V2).
                        retire(version);
                    }
                    continue;
                }
                VersionState::Committed(at) if self.is_unseen(at, newer, guard) => {
                    // The link of a version is changed under the maintenance lock only.
                    link.store(version.next.load(Ordering::Acquire), Ordering::Release);
                    dropped += 1;
                    // Unlinked under the maintenance lock (E1), stamped (V2).
                    retire(version);
                    continue;
                }
                VersionState::Committed(at) if at < horizon => {
                    dropped += self.cut_below(&version, guard, &mut retire);
                    break;
                }
                VersionState::Committed(at) => newer = Some(at),
                // It may have been committed at any time.
                VersionState::Pending(_) => newer = None,
            }
            link = &version.get().next;
        }
        dropped
    }

    /// Drops everything below a version that everybody sees. The caller has the maintenance lock.
    fn cut_below(
        &self,
        version: &Version,
        guard: &Guard<'_>,
        retire: &mut impl FnMut(Linked<'_, Version>),
    ) -> u64 {
        let below = version.next.load(Ordering::Acquire);
        if below == PRUNED || below.is_null() {
            return 0;
        }
        if !Self::all_stamped(below) {
            return self.cut_around_unstamped(version, guard, retire);
        }
        version.next.store(PRUNED, Ordering::Release);
        // SAFETY: unlinked by the store, all stamped (V2), under the maintenance lock (E1).
        unsafe { Self::retire_chain(below, guard, retire) }
    }

    /// The same if writers hold on to versions there (V2). Those whose transactions were aborted by somebody else stay, and what was dropped is below them: their writers may
    /// do nothing for long. One that was committed is about to be stamped, and nothing goes before: whoever is too old for `version` (R11) would see it, though a
    /// newer one has gone from above it.
    #[cold]
    fn cut_around_unstamped(
        &self,
        version: &Version,
        _guard: &Guard<'_>,
        retire: &mut impl FnMut(Linked<'_, Version>),
    ) -> u64 {
        let below = version.next.load(Ordering::Acquire);
        if !self.has_stamped_among_aborted(below) {
            return 0;
        }
        // Nobody is to step over what goes to something older. So there is nothing first, which is right for all who come so far, and then what stays.
        version.next.store(PRUNED, Ordering::Release);
        let (mut current, mut kept, mut count) = (below, PRUNED, 0);
        while current != PRUNED {
            point();
            // SAFETY: reached under the guard, and retired below if at all (V1).
            let Some(lower) = (unsafe { Linked::new(current) }) else { break };
            current = lower.next.load(Ordering::Acquire);
            if lower.is_stamped() {
                // Unlinked by the first store under the maintenance lock (E1).
                retire(lower);
                count += 1;
            } else {
                // Upside down, which is nothing to aborted ones.
                lower.next.store(kept, Ordering::Release);
                kept = lower.pointer();
            }
        }
        version.next.store(kept, Ordering::Release);
        count
    }

    /// Whether there is a version in the chain that is stamped, and none that is not but those of aborted transactions.
    fn has_stamped_among_aborted(&self, chain: *mut Version) -> bool {
        let (mut current, mut found) = (chain, false);
        while current != PRUNED {
            // SAFETY: the caller has a guard and the maintenance lock (V1).
            let Some(version) = (unsafe { current.as_ref() }) else { break };
            match version.state() {
                VersionState::Pending(slot) => {
                    if self.transactions.slot(slot).status.load() != Status::Aborted {
                        return false;
                    }
                }
                VersionState::Committed(_) | VersionState::Aborted => found = true,
            }
            current = version.next.load(Ordering::Acquire);
        }
        found
    }

    /// Whether no writer holds on to a version of the chain (V2): one whose transaction was aborted by somebody else may lie
    /// below later versions.
    fn all_stamped(chain: *mut Version) -> bool {
        let mut current = chain;
        while current != PRUNED {
            // SAFETY: the callers have a guard and the maintenance lock (V1).
            let Some(version) = (unsafe { current.as_ref() }) else { break };
            if !version.is_stamped() {
                return false;
            }
            current = version.next.load(Ordering::Acquire);
        }
        true
    }

    /// # Safety
    /// The chain is unlinked, all of it is stamped, and the caller, who has the maintenance lock, unlinked it.
    #[track_caller]
    unsafe fn retire_chain(
        chain: *mut Version,
        _guard: &Guard<'_>,
        retire: &mut impl FnMut(Linked<'_, Version>),
    ) -> u64 {
        let (mut current, mut count) = (chain, 0);
        while current != PRUNED {
            // SAFETY: retired below, under the guard: still there.
            let Some(version) = (unsafe { Linked::new(current) }) else { break };
            current = version.next.load(Ordering::Acquire);
            retire(version);
            count += 1;
        }
        count
    }

    /// A writer has put `new` on top: what lies below the version beneath it goes if everybody sees that version, or nobody what lies there. This keeps
    /// the chain of a hot record short without a collector. Whether there was a version beneath.
    #[inline]
    pub(crate) fn prune_below(
        &self,
        record: &Record,
        new: *const Version,
        recycler: &mut Recycler,
        guard: &Guard<'_>,
    ) -> bool {
        // SAFETY: installed by the caller, who has not stamped it.
        let beneath = unsafe { &*new }.next.load(Ordering::Acquire);
        if beneath == PRUNED {
            return false;
        }
        // SAFETY: linked, under the guard (V1).
        let Some(version) = (unsafe { beneath.as_ref() }) else { return false };
        let below = version.next.load(Ordering::Relaxed);
        // Its writer may have let go of what was there.
        let is_last = below.is_null() || below == PRUNED;
        if !is_last || version.is_aborted() {
            self.prune_more(record, version, below, recycler, guard);
        }
        true
    }

    #[inline(never)]
    fn prune_more(
        &self,
        record: &Record,
        version: &Version,
        below: *const Version,
        recycler: &mut Recycler,
        guard: &Guard<'_>,
    ) {
        let is_garbage = match version.state() {
            VersionState::Committed(at) => {
                at < self.known_horizon() || self.is_below_unseen(below, at, guard)
            }
            VersionState::Aborted => true,
            VersionState::Pending(_) => false,
        };
        if is_garbage {
            let dropped = self.maintain_to(record, self.known_horizon(), guard, |version| {
                // SAFETY: what `maintain_to` promises.
                unsafe { self.recycle_version(version, recycler, guard) }
            });
            self.count_dropped(dropped);
        }
    }

    /// Lets go of what lies below versions that were written a moment ago, as far as everybody sees those. The rest is left to who writes next,
    /// and to the hand.
    #[cold]
    #[inline(never)]
    pub(crate) fn prune_superseded(
        &self,
        superseded: &mut Superseded,
        recycler: &mut Recycler,
        guard: &Guard<'_>,
    ) {
        let mut horizon = self.known_horizon();
        if superseded.due_at().is_some_and(|due_at| due_at >= horizon) {
            horizon = self.horizon();
        }
        let mut dropped = 0;
        let prefetch = |note: &Note| {
            self.table.prefetch_place(note.hash);
            note.prefetch();
        };
        superseded.take_due(horizon, prefetch, |note| {
            // Another may lie there by now. That is maintained by the same rules.
            if let Some(record) = self.table.find_at(note.record, note.hash, guard) {
                dropped += self.maintain_to(&record, horizon, guard, |version| {
                    // SAFETY: what `maintain_to` promises.
                    unsafe { self.recycle_version(version, recycler, guard) }
                });
            }
        });
        superseded.turn();
        self.count_dropped(dropped);
    }

    /// R26: whether nobody sees the version `below` one that was committed at `newer`.
    fn is_below_unseen(&self, below: *const Version, newer: Timestamp, guard: &Guard<'_>) -> bool {
        // Looked at first, as what lies there may be in nobody's cache.
        let Some(active) = self.active.get(guard).filter(|active| active.reaches(newer)) else {
            return false;
        };
        // SAFETY: linked, under the guard (V1).
        match unsafe { &*below }.state() {
            VersionState::Committed(at) => active.sees_nothing_in(at, newer),
            VersionState::Aborted => true,
            VersionState::Pending(_) => false,
        }
    }

    /// R12: removes a record if the data component has all of it: freeze, then fold the read timestamp into the floor, then
    /// unlink.
    pub(crate) fn evict(&self, record: &Record, guard: &Guard<'_>) -> bool {
        // Only to spare the trouble: E3 is kept even if it is queued just now, scans that meet it look where it has gone (R10), and that it is settled is asked once more.
        if record.is_queued() || !self.is_settled(record) {
            return false;
        }
        point();
        let Some(maintenance) = record.try_maintain() else { return false };
        let head = record.head.load(Ordering::SeqCst);
        if head == REMOVED || !Self::all_stamped(head) || self.standing_from(head) != Standing::Settled {
            return false;
        }
        let early = record.own_read_timestamp();
        point();
        // That this is the head which was found settled makes the swap safe.
        let frozen = record.head.compare_exchange(head, REMOVED, Ordering::SeqCst, Ordering::Relaxed);
        if !self.table.versions_lost.is_won(frozen) {
            return false;
        }
        point();
        if is_planted(Bug::NoFreeze) {
            self.table.stripe(record.hash()).raise_floor(early);
        }
        self.table.remove_frozen(record, guard);
        // SAFETY: unlinked by the swap, all stamped, under the maintenance lock, which is kept for ever.
        unsafe { Self::retire_chain(head, guard, &mut |version| self.retire_version(version, guard)) };
        maintenance.keep();
        self.counters.add(Counter::Evictions, 1);
        true
    }

    /// Aborts every transaction whose first log record lies before `lsn`, so that the log can be cut there; how many.
    pub(crate) fn abort_writers_before(&self, lsn: Lsn) -> usize {
        // Under a guard no slot of one that has logged is given to another transaction (T2, W2).
        let guard = self.epochs.pin();
        let mut aborted = Vec::new();
        for slot in self.transactions.slots() {
            if slot.first_lsn().is_none_or(|first| first >= lsn) {
                continue;
            }
            point();
            if matches!(slot.status.load(), Status::Active(_))
                && slot.abort_for(ConflictCause::LogPinned, &self.transactions.lost)
            {
                // If it is gone, the transaction has noticed, and has told the log itself.
                aborted.extend(slot.first_lsn().map(|_| slot.log_id()));
            }
        }
        drop(guard);
        for transaction in &aborted {
            self.tell_abort(*transaction);
        }
        aborted.len()
    }

    /// Of the transactions whose writes, or noted changes, take much of the memory, if they are several, aborts the one that began last; whether it did. What they have written cannot be
    /// given back before they end. The earliest is never chosen, so one of them comes to its end, whatever happens to the others.
    pub(crate) fn abort_youngest_large_writer(&self) -> bool {
        // Under a guard no slot of one that has said so is given to another transaction (T2, W2).
        let guard = self.epochs.pin();
        let large = self.transactions.slots().filter(|slot| {
            self.account.is_much(slot.written() as usize) && matches!(slot.status.load(), Status::Active(_))
        });
        let mut large: Vec<_> = large.filter_map(|slot| Some((slot.began()?, slot))).collect();
        large.sort_by_key(|(began, _)| *began);
        let Some((_, slot)) = large.pop().filter(|_| !large.is_empty()) else { return false };
        point();
        let aborted = slot.abort_for(ConflictCause::MemoryShort, &self.transactions.lost);
        // It says when it began until it ends, but how much it has written only as long as that is much.
        let transaction = slot.began().filter(|_| aborted).map(|_| slot.log_id());
        drop(guard);
        if let Some(transaction) = transaction {
            // The log may know nothing of it. If its first record comes behind this one, its writer sees the status after that, and tells again.
            self.tell_abort(transaction);
        }
        aborted
    }
}
