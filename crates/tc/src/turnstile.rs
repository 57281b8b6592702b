//! The turnstile: how many of those transactions are under way at once that keep meeting others (rule R23).
//!
//! Where many threads change few records, a transaction that waits for a writer, or gives way to one, costs more than the
//! transaction itself: the processor changes hands. So those that have met others lately, the *contenders*, pass a turnstile
//! before they begin, when they hold nothing that others could want. It has a number of *places*; who finds none free waits in
//! a queue. How many places are open follows from what happens behind it: each meeting closes some, and each transaction that
//! ends without one opens a part of one, unless it has waited for a processor.
//!
//! If several have, one after the other, processors are *scarce* for some time, and no more places are open than there are processors. More inside than can
//! run cost twice. Each who has another have its turn changes threads for it; and the system puts two on one processor and leaves the
//! other idle, each time that one comes in. While processors are not scarce, no fewer places are open than that: a meeting of two that both
//! run costs less than a processor that nobody works on.
//!
//! A place is free again when its transaction ends, and whoever comes first takes it, which as a rule is the very thread that
//! left it, with its next transaction: nobody is woken for that. Only the *front* of the queue looks now and then, and if it has looked
//! often enough, it takes a place that is taken. The transaction that had it goes on, it only has no place to give back. So the set
//! of active threads changes slowly, as in Dice's Malthusian locks. If it had had the place for all that time, it waits for something
//! else than a processor, as for its client, and another place is opened.
//!
//! Who may not wait any longer, by what the host says, leaves the queue without a place. If it is not at the front yet it leaves its number behind,
//! and whoever makes the next one the front passes over the numbers of those that have gone.
//!
//! # Invariants
//!
//! - **Q1** The turnstile decides when a transaction begins and nothing else: without it, or with any number inside, all rules hold.
//! - **Q2** At most as many transactions have a place that nobody has taken from them as there are places.
//! - **Q3** Whoever stays in the queue enters: the front after a bounded number of looks, whatever those inside do; then the next that is
//!   still there is the front, and is told. An owner that never ends is robbed once, and costs the others no more than that.

use crate::host::{Host, Stall};
use crate::schedule::point;
use crate::sync::{AtomicU32, AtomicU64, Lost, Mutex, Ordering, Padded, lock};
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::time::Duration;

#[cfg(not(loom))]
const PLACES: usize = 64;
#[cfg(loom)]
const PLACES: usize = 1;

/// An open place, in the units of the limit.
const ONE: u32 = 64;
const LIMIT_MAX: u32 = PLACES as u32 * ONE;

/// How often the front of the queue waits before it takes a place that is taken: the fewer times the more wait behind it, within these bounds.
#[cfg(not(loom))]
const LOOKS: RangeInclusive<u32> = 4..=8;
#[cfg(loom)]
const LOOKS: RangeInclusive<u32> = 1..=1;
/// So often all in the queue together, as long as that is within the bounds.
const LOOKS_OF_ALL: u32 = 32;

/// So much work of transactions inside that meet nobody, in 64ths of a place, ends the scarcity of processors: 64 ms of it.
const SCARCITY: u32 = 64_000;
/// So many of those that are timed must have waited for a processor, one after the other, for processors to be scarce: the database's own threads take
/// one now and then.
const WAITED: u32 = 3;

/// So much work of transactions that meet nobody opens a 64th of a place, in nanoseconds.
const WORK_NANOSECONDS: u64 = 1_000;

/// So many transactions after the last meeting a thread's transactions count as contenders still.
pub(crate) const CONTENDS: u32 = 512;

/// A free place.
const FREE: u64 = 0;

/// The right to be inside, to be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    place: usize,
    token: u64,
}

/// See the [module](self).
pub(crate) struct Turnstile {
    /// Who is inside: tokens, each given out once.
    places: [Padded<AtomicU64>; PLACES],
    limits: Padded<Limits>,
    /// How many threads can run at a time, if that is known.
    processors: Option<usize>,
    /// How many have come to the queue, and the number of the one at its front, which changes under the lock of those that have gone.
    arrived: AtomicU64,
    front: AtomicU64,
    /// The numbers of those behind the front that have left the queue.
    gone: Mutex<BTreeSet<u64>>,
    /// Of the places, by those who go in.
    pub(crate) lost: Lost,
}

/// Of the places that are open. Guesses, in which a change may be lost.
struct Limits {
    /// How many, times [`ONE`], by meetings and work.
    met: AtomicU32,
    /// While this is not 0, no more than there are processors, and else no fewer. How much more work there is to be, in the same units.
    scarce: AtomicU32,
    /// How many have waited for a processor, one after the other, while these are not scarce.
    waited: AtomicU32,
}

impl Turnstile {
    /// If nobody knows how many `processors` there are, any number of places may be open at any time.
    pub(crate) fn new(processors: Option<usize>) -> Turnstile {
        Turnstile {
            places: std::array::from_fn(|_| Padded(AtomicU64::new(FREE))),
            limits: Padded(Limits {
                met: AtomicU32::new(LIMIT_MAX),
                scarce: AtomicU32::new(0),
                waited: AtomicU32::new(0),
            }),
            processors: processors.map(|processors| processors.clamp(1, PLACES)),
            arrived: AtomicU64::new(0),
            front: AtomicU64::new(0),
            gone: Mutex::new(BTreeSet::new()),
            lost: Lost::new(),
        }
    }

    pub(crate) fn open(&self) -> usize {
        let (least, most) = match self.processors {
            None => (1, PLACES),
            Some(processors) if self.are_processors_scarce() => (1, processors),
            Some(processors) => (processors, PLACES),
        };
        ((self.limits.0.met.load(Ordering::Relaxed) / ONE) as usize).clamp(least, most)
    }

    fn are_processors_scarce(&self) -> bool {
        self.limits.0.scarce.load(Ordering::Relaxed) > 0
    }

    /// Goes in, and waits for that if it has to; `None` if the host says that it is not to wait any longer. Those who begin their search
    /// at different places get on best.
    #[inline]
    pub(crate) fn enter(&self, start: usize, token: u64, host: &dyn Host) -> Option<Pass> {
        self.try_enter(start, token).or_else(|| self.queue(start, token, host))
    }

    fn try_enter(&self, start: usize, token: u64) -> Option<Pass> {
        let open = self.open();
        (0..open).map(|offset| (start + offset) % open).find_map(|place| {
            let at = &self.places[place].0;
            // Relaxed here and below: nothing is handed over with a place.
            let is_free = at.load(Ordering::Relaxed) == FREE;
            let take = || at.compare_exchange(FREE, token, Ordering::Relaxed, Ordering::Relaxed);
            let takes = is_free && self.lost.is_won(take());
            takes.then_some(Pass { place, token })
        })
    }

    #[cold]
    fn queue(&self, start: usize, token: u64, host: &dyn Host) -> Option<Pass> {
        let turn = self.arrived.fetch_add(1, Ordering::SeqCst);
        let number = turn as u32;
        loop {
            // First the count, then the look, then the wait: a change in between ends the wait.
            let since = host.ends(number);
            point();
            if self.front.load(Ordering::SeqCst) == turn {
                break;
            }
            if host.stalled(Stall::Turn { number, since }).is_err() {
                self.give_up(turn, host);
                return None;
            }
            std::hint::spin_loop();
        }
        let pass = self.enter_from_front(start, token, number, host);
        self.pass_on(turn, host);
        pass
    }

    /// At the front of the queue, with this number.
    fn enter_from_front(&self, start: usize, token: u64, number: u32, host: &dyn Host) -> Option<Pass> {
        let mut looks = 0;
        // The place that will be taken if none becomes free, unless places open or close meanwhile; and whose it is.
        let mut first = None;
        loop {
            if let Some(pass) = self.try_enter(start, token) {
                return Some(pass);
            }
            let place = number as usize % self.open();
            if looks >= self.looks(number) {
                let robbed = self.places[place].0.swap(token, Ordering::Relaxed);
                if first == Some((place, robbed)) {
                    // It waits for something else, or is long: there is room for one more.
                    self.open_parts(ONE);
                }
                return Some(Pass { place, token });
            }
            first.get_or_insert_with(|| (place, self.places[place].0.load(Ordering::Relaxed)));
            looks += 1;
            point();
            host.stalled(Stall::Front).ok()?;
        }
    }

    /// How often the front, who has this number, looks.
    fn looks(&self, number: u32) -> u32 {
        let waiting = (self.arrived.load(Ordering::Relaxed) as u32).wrapping_sub(number).max(1);
        (LOOKS_OF_ALL / waiting).clamp(*LOOKS.start(), *LOOKS.end())
    }

    /// The front, who came as number `turn`, leaves the queue: the next that is still there is the front, and is told.
    fn pass_on(&self, turn: u64, host: &dyn Host) {
        let mut next = turn + 1;
        let mut gone = lock(&self.gone);
        while gone.remove(&next) {
            next += 1;
        }
        self.front.store(next, Ordering::SeqCst);
        drop(gone);
        host.ended(next as u32);
    }

    /// Who came as number `turn` leaves the queue, wherever it is.
    fn give_up(&self, turn: u64, host: &dyn Host) {
        let mut gone = lock(&self.gone);
        // Nobody else takes it from the front, and all behind it wait for that.
        if self.front.load(Ordering::SeqCst) != turn {
            gone.insert(turn);
            return;
        }
        drop(gone);
        self.pass_on(turn, host);
    }

    /// Gives the place back, if nobody has taken it.
    #[inline]
    pub(crate) fn leave(&self, pass: Pass) {
        let Pass { place, token } = pass;
        let _ = self.places[place].0.compare_exchange(token, FREE, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// A transaction has met another, and had to let go of the processor or to give way: a quarter of the places is closed, or half of
    /// one, if that is more.
    #[cold]
    pub(crate) fn narrow(&self) {
        let limit = self.limits.0.met.load(Ordering::Relaxed);
        self.limits.0.met.store(limit.saturating_sub((ONE / 2).max(limit / 4)).max(ONE), Ordering::Relaxed);
    }

    /// Contenders have worked so long without meeting anybody: a part of a place is opened, one at most. What one more transaction at
    /// a time is worth grows with their length; what a meeting costs, two changes of the processor, does not.
    fn widen(&self, work: Duration) {
        let parts = (work.as_nanos() as u64 / WORK_NANOSECONDS).min(u64::from(ONE)) as u32;
        let scarce = self.limits.0.scarce.load(Ordering::Relaxed);
        if scarce > 0 {
            self.limits.0.scarce.store(scarce.saturating_sub(parts), Ordering::Relaxed);
        }
        self.open_parts(parts);
    }

    fn open_parts(&self, parts: u32) {
        let limit = self.limits.0.met.load(Ordering::Relaxed);
        if limit < LIMIT_MAX {
            self.limits.0.met.store((limit + parts).min(LIMIT_MAX), Ordering::Relaxed);
        }
    }

    /// One of `of` transactions inside has met nobody, took `elapsed`, and had a processor for `ran` of it, if that is known. If for more than
    /// three quarters, their work opens some places. If for less, it has waited for one; so do those that have let another have its turn. If several have, one after the other, processors
    /// are scarce; if they are, or nobody knows how many there are, there are places too many, as after a meeting.
    pub(crate) fn has_met_nobody(&self, elapsed: Duration, ran: Option<Duration>, of: u32) {
        let Limits { scarce, waited, .. } = &self.limits.0;
        if ran.is_none_or(|ran| ran >= elapsed * 3 / 4) {
            waited.store(0, Ordering::Relaxed);
            return self.widen(elapsed * of);
        }
        if self.processors.is_none() || self.are_processors_scarce() {
            return self.narrow();
        }
        let row = waited.load(Ordering::Relaxed) + 1;
        waited.store(row % WAITED, Ordering::Relaxed);
        if row == WAITED {
            scarce.store(SCARCITY, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32 as Count, Ordering as Order};

    /// Counts the looks of the front, and lets others have a turn.
    #[derive(Default)]
    struct Looks(Count);

    impl Host for Looks {
        fn stalled(&self, reason: Stall) -> Result<(), String> {
            self.0.fetch_add(u32::from(reason == Stall::Front), Order::Relaxed);
            std::thread::yield_now();
            Ok(())
        }
    }

    fn narrow() -> Turnstile {
        let turnstile = Turnstile::new(None);
        (0..100).for_each(|_| turnstile.narrow());
        assert_eq!(turnstile.open(), 1);
        turnstile
    }

    #[test]
    fn the_front_of_the_queue_takes_the_place_of_one_that_never_leaves() {
        let (turnstile, looks) = (narrow(), Looks::default());
        let idle = turnstile.enter(3, 1, &looks).expect("a free place");
        assert_eq!(looks.0.load(Order::Relaxed), 0);
        let robber = turnstile.enter(4, 2, &looks).expect("it takes one");
        assert_eq!(looks.0.load(Order::Relaxed), *LOOKS.end(), "nobody waits behind it");
        assert_eq!(robber, Pass { place: idle.place, token: 2 });
        turnstile.leave(idle);
        assert_eq!(turnstile.open(), 2, "one that stays so long leaves room for another");
        let other = turnstile.try_enter(0, 3).expect("the place that has been opened");
        assert_eq!(turnstile.try_enter(0, 4), None, "who has been robbed gives nothing back");
        turnstile.leave(robber);
        assert!(turnstile.try_enter(0, 4).is_some());
        turnstile.leave(other);
    }

    /// Has the place change hands at each look.
    struct Busy<'t>(&'t Turnstile, AtomicU32);

    impl Host for Busy<'_> {
        fn stalled(&self, _: Stall) -> Result<(), String> {
            let next = u64::from(self.1.fetch_add(1, Order::Relaxed)) + 100;
            self.0.places[0].0.store(next, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn a_place_that_changes_hands_is_taken_and_no_other_opened() {
        let turnstile = narrow();
        turnstile.places[0].0.store(1, Ordering::Relaxed);
        let pass = turnstile.enter(0, 2, &Busy(&turnstile, AtomicU32::new(0)));
        assert_eq!((pass, turnstile.open()), (Some(Pass { place: 0, token: 2 }), 1));
    }

    /// Closes all places but one at the first look.
    struct Closing<'t>(&'t Turnstile);

    impl Host for Closing<'_> {
        fn stalled(&self, _: Stall) -> Result<(), String> {
            (0..100).for_each(|_| self.0.narrow());
            Ok(())
        }
    }

    #[test]
    fn a_place_that_has_been_closed_is_not_taken() {
        let turnstile = narrow();
        turnstile.open_parts(ONE);
        let _inside = [1, 2].map(|token| turnstile.try_enter(0, token).expect("a free place"));
        // The first of the queue would take place 0, the second place 1.
        turnstile.arrived.store(1, Ordering::SeqCst);
        turnstile.front.store(1, Ordering::SeqCst);
        let pass = turnstile.enter(0, 3, &Closing(&turnstile));
        assert_eq!((pass, turnstile.open()), (Some(Pass { place: 0, token: 3 }), 1));
    }

    #[test]
    fn those_that_wait_for_a_processor_close_places() {
        let of = |ran: Option<u64>| {
            let turnstile = Turnstile::new(None);
            turnstile.limits.0.met.store(4 * ONE, Ordering::Relaxed);
            turnstile.has_met_nobody(Duration::from_micros(4), ran.map(Duration::from_micros), 16);
            turnstile.limits.0.met.load(Ordering::Relaxed)
        };
        assert_eq!([None, Some(4), Some(3), Some(2), Some(0)].map(of), [320, 320, 320, 192, 192]);
    }

    #[test]
    fn no_more_places_than_processors_are_open_while_these_are_scarce_and_else_no_fewer() {
        let turnstile = Turnstile::new(Some(2));
        let short = || turnstile.has_met_nobody(Duration::from_micros(9), Some(Duration::from_micros(6)), 16);
        let work = |milliseconds| {
            (0..milliseconds * 20).for_each(|_| turnstile.has_met_nobody(Duration::from_micros(50), None, 1));
        };
        let met = || turnstile.limits.0.met.load(Ordering::Relaxed);
        assert_eq!(turnstile.open(), PLACES);
        (0..5).for_each(|_| {
            (1..WAITED).for_each(|_| short());
            work(1);
        });
        assert_eq!(turnstile.open(), PLACES, "not one after the other");
        (0..WAITED).for_each(|_| short());
        assert_eq!((turnstile.open(), met()), (2, LIMIT_MAX), "at once");
        short();
        assert_eq!(met(), LIMIT_MAX / 4 * 3, "others have the processors");
        (0..100).for_each(|_| short());
        assert_eq!(turnstile.open(), 1, "both of them");
        work(63);
        assert_eq!(turnstile.open(), 2);
        (0..100).for_each(|_| turnstile.narrow());
        assert_eq!((turnstile.open(), met()), (1, ONE));
        work(1);
        (0..100).for_each(|_| turnstile.narrow());
        assert_eq!((turnstile.open(), met()), (2, ONE), "both run, though they meet");
        work(1);
        assert_eq!(turnstile.open(), 2 + 14, "by their work");
    }

    #[test]
    fn the_more_wait_behind_it_the_fewer_looks_the_front_takes() {
        let turnstile = Turnstile::new(None);
        let of = |waiting: u64| {
            turnstile.arrived.store(7 + waiting, Ordering::Relaxed);
            turnstile.looks(7)
        };
        assert_eq!([1, 4, 5, 6, 8, 9, 1000].map(of), [8, 8, 6, 5, 4, 4, 4]);
    }

    #[test]
    fn who_comes_back_at_once_gets_in_without_a_look_at_the_queue() {
        let (turnstile, looks) = (narrow(), Looks::default());
        for token in 1..100 {
            turnstile.leave(turnstile.enter(token as usize, token, &looks).expect("a free place"));
        }
        assert_eq!((looks.0.load(Order::Relaxed), turnstile.arrived.load(Ordering::SeqCst)), (0, 0));
    }

    #[test]
    fn meetings_close_places_and_work_opens_them() {
        let turnstile = Turnstile::new(None);
        assert_eq!(turnstile.open(), PLACES);
        turnstile.narrow();
        assert_eq!(turnstile.open(), PLACES * 3 / 4);
        (0..1000).for_each(|_| turnstile.narrow());
        assert_eq!(turnstile.open(), 1, "never none");
        turnstile.widen(Duration::from_nanos(WORK_NANOSECONDS * u64::from(ONE) - 1));
        assert_eq!(turnstile.open(), 1);
        turnstile.widen(Duration::from_nanos(WORK_NANOSECONDS));
        assert_eq!(turnstile.open(), 2);
        turnstile.widen(Duration::from_secs(1000));
        assert_eq!(turnstile.open(), 3, "one at a time");
        (0..1000).for_each(|_| turnstile.widen(Duration::from_secs(1)));
        assert_eq!(turnstile.open(), PLACES, "and no more than there are");
    }

    /// Eight threads come two hundred times each, while somebody inside stays; every `nth` gives up as soon as it has to wait.
    fn crowd(nth: u64) {
        let (turnstile, looks) = (narrow(), Looks::default());
        let idle = turnstile.enter(0, u64::MAX, &looks).expect("a free place");
        std::thread::scope(|scope| {
            for thread in 1..=8u64 {
                let (turnstile, looks) = (&turnstile, &looks);
                scope.spawn(move || {
                    let (hurried, may_give_up) = (Hurried::default(), thread % nth == 0);
                    let host: &dyn Host = if may_give_up { &hurried } else { looks };
                    for round in 0..200 {
                        let pass = turnstile.enter(thread as usize, thread << 32 | round, host);
                        assert!(pass.is_some() || may_give_up, "in its turn");
                        std::thread::yield_now();
                        pass.into_iter().for_each(|pass| turnstile.leave(pass));
                    }
                });
            }
        });
        turnstile.leave(idle);
        assert_eq!(turnstile.front.load(Ordering::SeqCst), turnstile.arrived.load(Ordering::SeqCst));
        assert!(lock(&turnstile.gone).is_empty());
        assert!(turnstile.try_enter(0, 1).is_some());
    }

    #[test]
    fn everybody_enters_in_the_end_whoever_stays() {
        crowd(u64::MAX);
    }

    #[test]
    fn those_that_wait_enter_however_many_give_up() {
        crowd(2);
    }

    #[test]
    fn whoever_comes_takes_the_next_free_place_behind_its_own() {
        let turnstile = Turnstile::new(None);
        let places: Vec<usize> = (1..=5)
            .map(|token| turnstile.try_enter(PLACES - 2, token).expect("a free place").place)
            .collect();
        assert_eq!(places, [PLACES - 2, PLACES - 1, 0, 1, 2]);
        for token in 6..=PLACES as u64 {
            assert!(turnstile.try_enter(7, token).is_some());
        }
        assert!(turnstile.try_enter(7, 99).is_none(), "as many as there are");
        let pass = Pass { place: 3, token: 99 };
        turnstile.leave(pass);
        assert!(turnstile.try_enter(7, 99).is_none(), "who is not there gives nothing back");
    }

    #[test]
    fn a_meeting_closes_a_quarter_or_half_a_place() {
        let turnstile = Turnstile::new(None);
        let limit = || turnstile.limits.0.met.load(Ordering::Relaxed);
        let narrowed = |from: u32| {
            turnstile.limits.0.met.store(from, Ordering::Relaxed);
            turnstile.narrow();
            limit()
        };
        assert_eq!(
            [LIMIT_MAX, 400, 128, 127, 100, 96, 64].map(narrowed),
            [LIMIT_MAX / 4 * 3, 300, 96, 95, 68, 64, 64]
        );
    }

    /// Notes what the host hears.
    #[derive(Default)]
    struct Heard(std::sync::Mutex<Vec<(u32, bool)>>);

    impl Host for Heard {
        fn stalled(&self, reason: Stall) -> Result<(), String> {
            if let Stall::Turn { number, .. } = reason {
                self.0.lock().unwrap().push((number, false));
            }
            Ok(())
        }

        fn ended(&self, number: u32) {
            self.0.lock().unwrap().push((number, true));
        }
    }

    #[test]
    fn the_next_in_the_queue_is_told_that_it_is_the_front() {
        let (turnstile, heard) = (narrow(), Heard::default());
        for token in 1..5 {
            turnstile.enter(0, token, &heard).expect("in its turn");
        }
        // The first found a free place, and the third the one that the second had opened; these two were at the front at once.
        assert_eq!(*heard.0.lock().unwrap(), [(1, true), (2, true)]);
        assert_eq!(turnstile.front.load(Ordering::SeqCst), 2);
    }

    /// Does not wait.
    #[derive(Default)]
    struct Hurried(Heard);

    impl Host for Hurried {
        fn stalled(&self, _: Stall) -> Result<(), String> {
            Err("it is late".into())
        }

        fn ended(&self, number: u32) {
            self.0.ended(number);
        }
    }

    #[test]
    fn those_that_give_up_are_passed_over_and_whoever_is_behind_them_is_told() {
        let (turnstile, hurried) = (narrow(), Hurried::default());
        let inside = turnstile.try_enter(0, 1).expect("a free place");
        let told = || std::mem::take(&mut *hurried.0.0.lock().unwrap());
        let gives_up = || turnstile.enter(0, 2, &hurried).is_none() && told().is_empty();
        let waits = || turnstile.arrived.fetch_add(1, Ordering::SeqCst);
        assert_eq!(waits(), 0, "the front");
        assert!(gives_up() && gives_up());
        assert_eq!(waits(), 3);
        assert!(gives_up());
        turnstile.pass_on(0, &hurried);
        assert_eq!((told(), turnstile.front.load(Ordering::SeqCst)), (vec![(3, true)], 3));
        assert!(gives_up());
        turnstile.pass_on(3, &hurried);
        assert_eq!((told(), turnstile.front.load(Ordering::SeqCst)), (vec![(6, true)], 6), "nobody is left");
        assert!(lock(&turnstile.gone).is_empty());
        // Who comes is the front at once, and may give up there, too, or just before it knows.
        assert_eq!(turnstile.enter(0, 2, &hurried), None);
        assert_eq!(told(), [(7, true)]);
        assert_eq!(waits(), 7);
        turnstile.give_up(7, &hurried);
        assert_eq!((told(), turnstile.front.load(Ordering::SeqCst)), (vec![(8, true)], 8));
        turnstile.leave(inside);
        assert!(turnstile.enter(0, 3, &hurried).is_some(), "who finds a free place does not have to wait");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::thread;
    use std::sync::Arc;

    struct Others;

    impl Host for Others {
        fn stalled(&self, _: Stall) -> Result<(), String> {
            thread::yield_now();
            Ok(())
        }
    }

    /// Q3, Q2: both enter, though one never leaves before the other has; whoever has left has left nothing behind.
    #[test]
    fn loom_everybody_enters_and_leaves_the_place_free() {
        loom::model(|| {
            let turnstile = Arc::new(Turnstile::new(None));
            let idle = turnstile.try_enter(0, 1).expect("a free place");
            let others = [2, 3].map(|token| {
                let turnstile = Arc::clone(&turnstile);
                thread::spawn(move || {
                    turnstile.leave(turnstile.enter(0, token, &Others).expect("in its turn"))
                })
            });
            others.map(|other| other.join().unwrap());
            assert_eq!(turnstile.front.load(Ordering::SeqCst), turnstile.arrived.load(Ordering::SeqCst));
            turnstile.leave(idle);
            assert!(turnstile.try_enter(0, 4).is_some());
        });
    }

    struct Hurried;

    impl Host for Hurried {
        fn stalled(&self, _: Stall) -> Result<(), String> {
            Err("it is late".into())
        }
    }

    /// Q3: who gives up, before, between or behind two that wait, or at the front, keeps neither of them in the queue.
    #[test]
    fn loom_who_gives_up_leaves_no_hole_in_the_queue() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        // Those that wait look again and again.
        builder.max_branches = 10_000;
        builder.check(|| {
            let turnstile = Arc::new(Turnstile::new(None));
            let idle = turnstile.try_enter(0, 1).expect("a free place");
            let (gives_up, waits) = (Arc::clone(&turnstile), Arc::clone(&turnstile));
            let gives_up = thread::spawn(move || {
                let pass = gives_up.enter(0, 2, &Hurried);
                pass.into_iter().for_each(|pass| gives_up.leave(pass));
            });
            let waits = thread::spawn(move || waits.leave(waits.enter(0, 3, &Others).expect("in its turn")));
            turnstile.leave(turnstile.enter(0, 4, &Others).expect("in its turn"));
            gives_up.join().unwrap();
            waits.join().unwrap();
            assert_eq!(turnstile.front.load(Ordering::SeqCst), turnstile.arrived.load(Ordering::SeqCst));
            assert!(lock(&turnstile.gone).is_empty());
            turnstile.leave(idle);
            assert!(turnstile.try_enter(0, 5).is_some());
        });
    }
}
