//! As of when active transactions read (rule R1): each workspace has one place in which it announces that of its transaction, on lines of its own.
//!
//! It is beside the slot (see [`transaction_table`](crate::transaction_table)) and not in it, as a workspace goes through some hundred slots, of which at most one is
//! active at a time, and whoever looks for the oldest active transaction would have to look at all of them.
//!
//! # Invariants
//!
//! - **H1** An announcement belongs to one workspace (see `workspace`), which writes it, and has one transaction at a time.
//! - **H2** That of an active transaction is never later than the timestamp at which it reads: from its begin to its end, or, if it reads what
//!   is committed (R16), during each of its operations. See [`Announcement::begin`]; when it is *fixed* says A1 (`active_timestamps`).

use crate::chunks::Chunks;
use crate::clock::Clock;
use crate::sync::{AtomicU64, Ordering, publication_fence};
use deuteron_contract::Timestamp;

/// Those of the first workspaces lie side by side.
#[cfg(not(any(loom, shuttle)))]
const FIRST: u32 = 8;
#[cfg(any(loom, shuttle))]
const FIRST: u32 = 2;
/// What there is while no transaction is active.
const IDLE: u64 = u64::MAX;
/// Of the timestamp, which is shifted by it: it is fixed (A1).
const FIXED: u64 = 1;

/// As of when an active transaction reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begin {
    /// At this timestamp, and at no other (A1).
    Fixed(Timestamp),
    /// At this one or later.
    NotBefore(Timestamp),
}

impl Begin {
    /// No later than the earliest timestamp at which it reads.
    pub(crate) fn earliest(self) -> Timestamp {
        match self {
            Begin::Fixed(at) | Begin::NotBefore(at) => at,
        }
    }

    fn encode(self) -> u64 {
        match self {
            Begin::Fixed(at) => at.0 << 1 | FIXED,
            Begin::NotBefore(at) => at.0 << 1,
        }
    }
}

/// The number of an announcement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnnouncementIndex(u32);

/// See the [module](self).
/// Two lines, since the prefetcher of x86 fetches pairs.
#[repr(align(128))]
pub(crate) struct Announcement {
    /// The [`Begin`] of the active transaction (H2), or [`IDLE`].
    begin: AtomicU64,
}

impl Default for Announcement {
    fn default() -> Announcement {
        Announcement { begin: AtomicU64::new(IDLE) }
    }
}

impl Announcement {
    /// R1: the owner begins a transaction, at the timestamp that this returns.
    ///
    /// The lower bound is announced *before* the clock ticks. A scan for the oldest active transaction reads the
    /// clock first. If it misses the bound, then its reading of the clock came before the tick, so the answer,
    /// which is at most one more than that reading, is not above the timestamp.
    #[inline]
    pub(crate) fn begin(&self, clock: &Clock) -> Timestamp {
        self.begin.store(Begin::NotBefore(clock.last()).encode(), Ordering::SeqCst);
        let timestamp = clock.tick();
        // Says more than what it replaces: whoever does not see it yet errs to the safe side.
        self.begin.store(Begin::Fixed(timestamp).encode(), Ordering::Relaxed);
        timestamp
    }

    /// R15: the owner begins a declared read-only transaction at the clock's present, or later if that is before `at_least`. It
    /// shares its timestamp with the writer that has it, behind which it comes. The bound is announced before the
    /// clock is read, so a scan that misses it answers at most one more than the timestamp: what is posted then is
    /// visible to the transaction.
    #[inline]
    pub(crate) fn begin_reader(&self, clock: &Clock, at_least: Timestamp) -> Timestamp {
        self.begin.store(Begin::NotBefore(clock.last()).encode(), Ordering::SeqCst);
        publication_fence();
        let present = clock.last();
        let timestamp = if present >= at_least { present } else { clock.tick() };
        self.begin.store(Begin::Fixed(timestamp).encode(), Ordering::Relaxed);
        timestamp
    }

    /// R17: the owner is going to read at `at`, which is in the past.
    pub(crate) fn begin_as_of(&self, at: Timestamp) {
        self.begin.store(Begin::Fixed(at).encode(), Ordering::SeqCst);
    }

    /// As of when the active transaction reads, if there is one.
    pub(crate) fn get(&self) -> Option<Begin> {
        let begin = self.begin.load(Ordering::SeqCst);
        let at = Timestamp(begin >> 1);
        let decoded = if begin & FIXED != 0 { Begin::Fixed(at) } else { Begin::NotBefore(at) };
        (begin != IDLE).then_some(decoded)
    }

    /// R26: the owner, who is active, is going to read at timestamps that it takes from the clock after this, too (A2).
    #[inline]
    pub(crate) fn unfix(&self) {
        // Nobody else writes it (H1).
        let begin = self.begin.load(Ordering::Relaxed);
        self.begin.store(begin & !FIXED, Ordering::SeqCst);
    }

    /// R20: the owner, who is active and not fixed, reads at `at` and at no other timestamp from here on (A1).
    pub(crate) fn fix(&self, at: Timestamp) {
        // Release: what it has read as of earlier ones comes before.
        self.begin.store(Begin::Fixed(at).encode(), Ordering::Release);
    }

    /// R16: the owner, who is active and not fixed, is going to read at the clock's present, which was `at` or is later. The bound is there before
    /// the clock is read for that, as in [`Announcement::begin_reader`].
    #[inline]
    pub(crate) fn read_from(&self, at: Timestamp) {
        self.begin.store(Begin::NotBefore(at).encode(), Ordering::SeqCst);
        publication_fence();
    }

    /// R16: the owner, who is active still, reads nothing before it says [`Announcement::read_from`] again.
    #[inline]
    pub(crate) fn read_nothing(&self) {
        // Release: what it has read comes before.
        self.begin.store(Begin::NotBefore(Timestamp::MAX).encode(), Ordering::Release);
    }

    /// The owner is done: the oldest active transaction may be a later one now.
    #[inline]
    pub(crate) fn end(&self) {
        self.begin.store(IDLE, Ordering::Release);
    }
}

/// Those of all workspaces.
pub(crate) struct Announcements(Chunks<Announcement, FIRST>);

impl Announcements {
    pub(crate) fn new() -> Announcements {
        Announcements(Chunks::new())
    }

    /// One that nobody has used before.
    pub(crate) fn allocate(&self) -> AnnouncementIndex {
        AnnouncementIndex(self.0.allocate())
    }

    #[inline]
    pub(crate) fn announcement(&self, index: AnnouncementIndex) -> &Announcement {
        self.0.get(index.0)
    }

    /// What is announced.
    pub(crate) fn all(&self) -> impl Iterator<Item = Begin> {
        self.0.iter().filter_map(Announcement::get)
    }

    /// OAT: no transaction that is active now or begins later has a timestamp below it (R1).
    pub(crate) fn oldest_active(&self, clock: &Clock) -> Timestamp {
        let bound = Timestamp(clock.last().0 + 1);
        self.all().map(Begin::earliest).fold(bound, Timestamp::min)
    }

    /// Bytes that they take.
    pub(crate) fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_active_transaction_is_the_bound() {
        let (all, clock) = (Announcements::new(), Clock::new(Timestamp(100)));
        let [old, young] = [all.allocate(), all.allocate()].map(|index| all.announcement(index));
        assert_eq!((old.begin(&clock), young.begin(&clock)), (Timestamp(101), Timestamp(102)));
        assert_eq!(all.oldest_active(&clock), Timestamp(101));
        old.end();
        assert_eq!(all.oldest_active(&clock), Timestamp(102));
        young.end();
        assert_eq!(all.oldest_active(&clock), Timestamp(103));
    }

    #[test]
    fn it_says_of_its_transaction_what_the_owner_has_said() {
        let (all, clock) = (Announcements::new(), Clock::new(Timestamp(100)));
        let announcement = all.announcement(all.allocate());
        assert_eq!(announcement.get(), None);
        announcement.begin(&clock);
        assert_eq!(announcement.get(), Some(Begin::Fixed(Timestamp(101))));
        announcement.unfix();
        assert_eq!(announcement.get(), Some(Begin::NotBefore(Timestamp(101))));
        announcement.fix(Timestamp(105));
        assert_eq!(announcement.get(), Some(Begin::Fixed(Timestamp(105))));
        announcement.end();
        assert_eq!((announcement.get(), all.all().count()), (None, 0));
    }

    #[test]
    fn whoever_reads_the_past_holds_the_horizon_there() {
        let (all, clock) = (Announcements::new(), Clock::new(Timestamp(100)));
        let announcement = all.announcement(all.allocate());
        announcement.begin_as_of(Timestamp(50));
        assert_eq!(all.oldest_active(&clock), Timestamp(50));
        announcement.read_from(Timestamp(60));
        assert_eq!(all.oldest_active(&clock), Timestamp(60));
        // It holds nothing, and is active.
        announcement.read_nothing();
        assert_eq!(all.oldest_active(&clock), Timestamp(101));
        assert_eq!(announcement.get(), Some(Begin::NotBefore(Timestamp::MAX)));
    }

    #[test]
    fn a_declared_reader_takes_the_present_if_that_is_late_enough() {
        let clock = Clock::new(Timestamp(100));
        let announcement = Announcement::default();
        assert_eq!(announcement.begin_reader(&clock, Timestamp(100)), Timestamp(100));
        assert_eq!((announcement.get(), clock.last()), (Some(Begin::Fixed(Timestamp(100))), Timestamp(100)));
        assert_eq!(announcement.begin_reader(&clock, Timestamp(101)), Timestamp(101));
        assert_eq!(clock.last(), Timestamp(101));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    /// R1. Loom has no order among sequentially consistent accesses, only among fences; the read-modify-writes of
    /// the clock stand in: whoever computes the bound ticks it too.
    fn begins_not_below_the_oldest_active(allocates: bool) {
        loom::model(move || {
            let shared = Arc::new((Announcements::new(), Clock::new(Timestamp(10))));
            let there = (!allocates).then(|| shared.0.allocate());
            let other = Arc::clone(&shared);
            let begun = thread::spawn(move || {
                let index = there.unwrap_or_else(|| other.0.allocate());
                other.0.announcement(index).begin(&other.1)
            });
            let bound = Timestamp(shared.1.tick().0);
            let oldest = shared.0.all().map(Begin::earliest).fold(bound, Timestamp::min);
            assert!(oldest <= begun.join().unwrap());
        });
    }

    #[test]
    fn loom_no_transaction_begins_below_the_oldest_active() {
        begins_not_below_the_oldest_active(false);
    }

    /// D2: nor the first of a new workspace.
    #[test]
    fn loom_no_transaction_of_a_new_workspace_begins_below_the_oldest_active() {
        begins_not_below_the_oldest_active(true);
    }
}
