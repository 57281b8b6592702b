//! At which timestamps active transactions read: a version that lies between two of them is seen by nobody (rule R26).
//!
//! - **A1** An announcement whose timestamp is *fixed* is of a transaction that reads at that timestamp and at no other. One that is not says no more than that
//!   its transaction reads there or later.
//! - **A2** Whoever is going to read at another timestamp takes the mark from its announcement before it looks at the clock for that one. Whoever gathers reads the retention
//!   bound, then the clock, then the announcements. So of what one did not say yet, the timestamp is not earlier than the clock was. (It may be the same: a declared reader takes the
//!   clock's present.)
//! - **A3** What has been gathered stays true: transactions that begin later, and timestamps that others move on to, are not before the clock as it was then,
//!   and those in the past not before the retention bound.

use crate::announcements::{Announcements, Begin};
use crate::clock::Clock;
use crate::retention::Retention;
use crate::sync::{AtomicPtr, Ordering, publication_fence};
use deuteron_contract::Timestamp;
use deuteron_epoch::Guard;
use std::ptr;

/// How many are kept; what lies beyond as many is taken to be seen.
const COUNT_MAX: usize = 62;

/// The timestamps of the transactions that were active at one time. See the [module](self).
#[derive(PartialEq, Eq)]
pub(crate) struct ActiveTimestamps {
    /// R1: no transaction that was active or has begun since has an earlier one.
    oldest: Timestamp,
    /// From here on somebody may read at any timestamp.
    bound: Timestamp,
    count: usize,
    /// Below the bound: at these, in ascending order, and at no others.
    fixed: [Timestamp; COUNT_MAX],
}

impl ActiveTimestamps {
    /// The active transactions of now (A2).
    pub(crate) fn gather(
        announcements: &Announcements,
        clock: &Clock,
        retention: &Retention,
    ) -> ActiveTimestamps {
        let retained = retention.from();
        let now = clock.last();
        publication_fence();
        let mut oldest = retained.min(Timestamp(now.0 + 1));
        let begins = announcements.all().inspect(|begin| oldest = oldest.min(begin.earliest()));
        let gathered = Self::of(retained.min(now), begins);
        ActiveTimestamps { oldest, ..gathered }
    }

    /// The oldest active transaction, or what may still begin in the past (P1).
    pub(crate) fn oldest(&self) -> Timestamp {
        self.oldest
    }

    /// Of what is announced, as far as `bound`.
    fn of(mut bound: Timestamp, begins: impl Iterator<Item = Begin>) -> ActiveTimestamps {
        let mut found = Vec::new();
        for begin in begins {
            match begin {
                Begin::Fixed(at) => found.push(at),
                Begin::NotBefore(at) => bound = bound.min(at),
            }
        }
        found.retain(|at| *at < bound);
        found.sort_unstable();
        found.dedup();
        if let Some(first_left_out) = found.get(COUNT_MAX) {
            bound = *first_left_out;
            found.truncate(COUNT_MAX);
        }
        let mut fixed = [Timestamp(0); COUNT_MAX];
        fixed[..found.len()].copy_from_slice(&found);
        ActiveTimestamps { oldest: bound, bound, count: found.len(), fixed }
    }

    /// Whether it says anything of versions beneath one that was committed at `to`.
    #[inline]
    pub(crate) fn reaches(&self, to: Timestamp) -> bool {
        to <= self.bound
    }

    /// Whether nobody sees, or ever will, a version that was committed at `from` and below which there is a newer one, committed at `to`.
    pub(crate) fn sees_nothing_in(&self, from: Timestamp, to: Timestamp) -> bool {
        let fixed = &self.fixed[..self.count];
        self.reaches(to) && fixed.get(fixed.partition_point(|at| *at < from)).is_none_or(|at| *at >= to)
    }
}

/// What was gathered last.
pub(crate) struct LastGathered(AtomicPtr<ActiveTimestamps>);

impl LastGathered {
    pub(crate) fn new() -> LastGathered {
        LastGathered(AtomicPtr::new(ptr::null_mut()))
    }

    /// Nothing, if nothing has been.
    #[inline]
    pub(crate) fn get<'g>(&self, _guard: &'g Guard<'_>) -> Option<&'g ActiveTimestamps> {
        // SAFETY: published by `put`, which retires what it replaces, so that it is there for as long as the guard.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// Others see what has been gathered, unless it is what they have, or what they have reaches further (A3).
    pub(crate) fn put(&self, gathered: ActiveTimestamps, guard: &Guard<'_>) {
        if self.get(guard).is_some_and(|last| last.bound > gathered.bound || *last == gathered) {
            return;
        }
        let new = Box::into_raw(Box::new(gathered));
        let last = self.0.swap(new, Ordering::AcqRel);
        if !last.is_null() {
            // SAFETY: it came from a box, and the swap has made it unreachable for who comes after, once.
            unsafe { guard.retire_box(last) };
        }
    }
}

impl Drop for LastGathered {
    fn drop(&mut self) {
        let last = self.0.load(Ordering::Relaxed);
        if !last.is_null() {
            // SAFETY: it came from a box; `&mut self` excludes users, and what was replaced is with the epochs.
            drop(unsafe { Box::from_raw(last) });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deuteron_epoch::Epochs;
    use proptest::prelude::*;

    fn gathered(bound: u64, begins: &[Begin]) -> ActiveTimestamps {
        ActiveTimestamps::of(Timestamp(bound), begins.iter().copied())
    }

    fn is_unseen(active: &ActiveTimestamps, from: u64, to: u64) -> bool {
        active.sees_nothing_in(Timestamp(from), Timestamp(to))
    }

    #[test]
    fn a_version_is_seen_from_its_own_timestamp_to_before_that_of_the_newer_one() {
        let active = gathered(100, &[Begin::Fixed(Timestamp(50)), Begin::Fixed(Timestamp(20))]);
        assert!(is_unseen(&active, 21, 50) && is_unseen(&active, 5, 20) && is_unseen(&active, 51, 100));
        assert!(!is_unseen(&active, 20, 21) && !is_unseen(&active, 50, 51) && !is_unseen(&active, 10, 60));
        assert!(!is_unseen(&active, 51, 101), "whoever begins next");
    }

    #[test]
    fn who_is_not_fixed_may_read_anywhere_from_there_on() {
        let active = gathered(100, &[Begin::Fixed(Timestamp(20)), Begin::NotBefore(Timestamp(60))]);
        assert!(is_unseen(&active, 30, 60) && !is_unseen(&active, 30, 61) && !is_unseen(&active, 70, 80));
    }

    #[test]
    fn what_are_too_many_count_as_seen() {
        let begins: Vec<Begin> = (0..100).map(|at| Begin::Fixed(Timestamp(10 * at))).collect();
        let active = gathered(10_000, &begins);
        assert!(is_unseen(&active, 601, 610) && !is_unseen(&active, 600, 601));
        assert!(is_unseen(&active, 611, 620) && !is_unseen(&active, 621, 630));
    }

    #[test]
    fn nothing_is_done_if_nothing_has_changed() {
        let (epochs, last) = (Epochs::new(), LastGathered::new());
        let put = |begins: &[Begin]| last.put(gathered(10, begins), &epochs.pin());
        put(&[Begin::Fixed(Timestamp(5))]);
        put(&[Begin::Fixed(Timestamp(5))]);
        assert_eq!(epochs.garbage_bytes(), 0);
        put(&[]);
        assert!(epochs.garbage_bytes() > 0 && last.get(&epochs.pin()).unwrap().count == 0);
    }

    #[test]
    fn what_reaches_less_far_does_not_replace_what_is_known() {
        let (epochs, last) = (Epochs::new(), LastGathered::new());
        let guard = epochs.pin();
        assert!(last.get(&guard).is_none());
        for (bound, known) in [(10, 10), (5, 10), (10, 10), (12, 12)] {
            last.put(gathered(bound, &[]), &guard);
            assert_eq!(last.get(&guard).unwrap().bound, Timestamp(known));
        }
    }

    proptest! {
        #[test]
        fn it_says_what_each_timestamp_by_itself_does(
            fixed in prop::collection::vec(0_u64..200, 0..80),
            loose in prop::collection::vec(0_u64..400, 0..2),
            bound in 0_u64..200,
            from in 0_u64..200,
            length in 1_u64..100,
        ) {
            let begins = fixed.iter().map(|at| Begin::Fixed(Timestamp(*at)))
                .chain(loose.iter().map(|at| Begin::NotBefore(Timestamp(*at))));
            let active = ActiveTimestamps::of(Timestamp(bound), begins);
            let may_read = |at: u64| at >= bound || fixed.contains(&at) || loose.iter().any(|loose| at >= *loose);
            let unseen = !(from..from + length).any(may_read);
            prop_assert!(!is_unseen(&active, from, from + length) || unseen);
            // What it does not keep it takes to be seen.
            prop_assert!(active.count == COUNT_MAX || is_unseen(&active, from, from + length) == unseen);
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::announcements::Announcement;
    use crate::version::{PRUNED, Version, VersionState};
    use deuteron_epoch::Epochs;
    use loom::thread;
    use std::sync::Arc;

    struct World {
        epochs: Arc<Epochs>,
        clock: Clock,
        retention: Retention,
        announcements: Announcements,
        head: AtomicPtr<Version>,
    }

    impl World {
        fn commit(&self, at: Timestamp) {
            let new = Version::allocate_base(at, None, self.head.load(Ordering::Acquire));
            self.head.store(new, Ordering::Release);
        }

        /// When the version was committed that is visible at `at`.
        fn read(&self, at: Timestamp) -> Timestamp {
            let _guard = self.epochs.pin();
            let mut current = self.head.load(Ordering::Acquire);
            loop {
                // SAFETY: reached through the head under the guard.
                let Some(version) = (unsafe { current.as_ref() }) else { return Timestamp(0) };
                match version.state() {
                    VersionState::Committed(committed) if committed <= at => return committed,
                    _ => current = version.next.load(Ordering::Acquire),
                }
            }
        }

        /// What `Core::maintain` does of R26.
        fn take_out_unseen(&self, active: &ActiveTimestamps) {
            let guard = self.epochs.pin();
            let (mut link, mut newer) = (&self.head, None);
            loop {
                let current = link.load(Ordering::Acquire);
                // SAFETY: reached through the head under the guard.
                let Some(version) = (unsafe { current.as_ref() }) else { return };
                let VersionState::Committed(at) = version.state() else { unreachable!("all are committed") };
                if newer.is_some_and(|newer| active.sees_nothing_in(at, newer)) {
                    link.store(version.next.load(Ordering::Acquire), Ordering::Release);
                    // SAFETY: unlinked by the only thread that does.
                    unsafe { guard.retire(current.cast(), version.bytes(), Version::free) };
                } else {
                    (link, newer) = (&version.next, Some(at));
                }
            }
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            let mut current = self.head.load(Ordering::Relaxed);
            while !current.is_null() && current != PRUNED {
                // SAFETY: nobody uses the chain any more.
                unsafe {
                    let next = (*current).next.load(Ordering::Relaxed);
                    Version::free(current.cast(), (*current).bytes());
                    current = next;
                }
            }
        }
    }

    /// A transaction begins with `begin` and reads twice, while others commit and the collector takes out what nobody sees.
    fn reads_twice(begin: fn(&World, &Announcement) -> Timestamp) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(4);
        builder.check(move || {
            let world = Arc::new(World {
                epochs: Epochs::new(),
                clock: Clock::new(Timestamp(10)),
                retention: Retention::new(false, Timestamp(0)),
                announcements: Announcements::new(),
                head: AtomicPtr::new(ptr::null_mut()),
            });
            world.commit(Timestamp(10));
            let index = world.announcements.allocate();
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || {
                let at = begin(&other, other.announcements.announcement(index));
                let first = other.read(at);
                assert!(first >= Timestamp(10) && other.read(at) >= first, "what was read is gone");
            });
            (0..2).for_each(|_| world.commit(world.clock.tick()));
            let active = ActiveTimestamps::gather(&world.announcements, &world.clock, &world.retention);
            world.commit(world.clock.tick());
            world.take_out_unseen(&active);
            world.epochs.collect();
            reader.join().unwrap();
        });
    }

    /// A2: of a transaction that begins meanwhile, and walks down a chain from which versions are taken out.
    #[test]
    fn loom_what_a_transaction_has_read_stays_until_it_ends() {
        reads_twice(|world, announcement| announcement.begin(&world.clock));
    }

    /// A2: of one that goes on from a later timestamp than that of its begin.
    #[test]
    fn loom_who_moves_on_finds_what_is_visible_there() {
        reads_twice(|world, announcement| {
            announcement.begin(&world.clock);
            announcement.unfix();
            let at = world.clock.tick();
            announcement.fix(at);
            at
        });
    }

    /// A2: of one that reads what is committed, when it has done nothing for a while.
    #[test]
    fn loom_who_reads_what_is_committed_finds_what_is_visible_then() {
        reads_twice(|world, announcement| {
            announcement.begin(&world.clock);
            announcement.read_nothing();
            announcement.read_from(world.clock.last());
            world.clock.last()
        });
    }

    #[test]
    #[should_panic(expected = "what was read is gone")]
    fn loom_planted_who_reads_what_is_committed_without_a_word_does_not() {
        reads_twice(|world, announcement| {
            announcement.begin(&world.clock);
            announcement.read_nothing();
            world.clock.last()
        });
    }

    /// A2: of one that shares its timestamp.
    #[test]
    fn loom_what_a_declared_reader_has_read_stays_until_it_ends() {
        reads_twice(|world, announcement| announcement.begin_reader(&world.clock, Timestamp(0)));
    }

    #[test]
    #[should_panic(expected = "what was read is gone")]
    fn loom_planted_who_moves_on_without_a_word_does_not() {
        reads_twice(|world, announcement| {
            announcement.begin(&world.clock);
            world.clock.tick()
        });
    }
}
