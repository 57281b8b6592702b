//! [`Stamps`]: the numbers of the writes.
//!
//! Each write gets a higher number than those to its key that have returned before it, so that the later of two wins.
//! Numbers must not be given out twice, across crashes either, although no page is read at opening:
//! - **S1** a durable *ceiling* is above every number given out. It lies in the checkpoint, where a data component with a log
//!   has its redo scan start point;
//! - **S2** an opening begins at the ceiling that it finds;
//! - **S3** who would pass the ceiling takes a checkpoint with a higher one first. So the first write after an opening does;
//! - **S4** a single write takes its number when it knows its page, and a higher one than any that this has been written with: one from the [stock](Stock) of its thread if that is above the bound that the page
//!   tells, else one from the counter, which is above all that have been given out, those in stocks too. Whoever has changed the page before has got his number before; if somebody changes it
//!   meanwhile, another number is taken;
//! - **S5** a delete takes its number from the counter, and puts the *floor* there before it is applied; no number of a stock is used that is not above the floor. So whoever writes what was deleted has a
//!   higher number, also when the delete was forgotten, and with it the page's bound: an older fragment may be there that says it.
//!
//! The ceiling is passed on as the point below which nothing is ever replayed, which is true of every write: so a delete may be
//! forgotten at the first consolidation after the second checkpoint. A write with a lower number that is still on its way runs
//! at the same time as the delete and may count as the later one. Within one call there is no such freedom, hence at most one
//! write to a key ([`Engine::apply`](crate::engine::Engine::apply)).

use crate::sync::{AtomicU64, Ordering};
use crate::under_way::PLACES;

/// By how much a checkpoint raises the ceiling: an hour of writes, and an opening that writes costs as many of 2^62.
const HEADROOM: u64 = 1 << 32;

/// Numbers that are put into a stock at a time, at most.
pub(crate) const STOCK: u64 = if cfg!(loom) { 2 } else { 64 };

/// A stock that is behind by so many numbers is given up: most pages have higher ones, so that each write would ask the counter. With all stocks in use they are apart by a quarter of that.
const BEHIND_MAX: u64 = 4 * STOCK * PLACES as u64;

pub(crate) struct Stamps {
    next: Next,
    ceiling: AtomicU64,
    stocks: [Stock; PLACES],
}

/// Numbers taken ahead, of a [place](crate::under_way::Call::place): a counter of all threads would be a line that each of them takes from the others with every write.
///
/// Changed only by the call that has the place to itself, so after all that earlier ones have done (W3).
#[derive(Default)]
#[repr(align(128))]
struct Stock {
    first: AtomicU64,
    next: AtomicU64,
    /// Exclusive; if it is `next` there are none.
    end: AtomicU64,
}

/// The line that threads change, every one of their writes at worst: apart from what they only read.
#[repr(align(128))]
struct Next {
    number: AtomicU64,
    /// See S5.
    floor: AtomicU64,
}

impl Stamps {
    /// Goes on at `ceiling`, the one that recovery found.
    pub(crate) fn new(ceiling: u64) -> Stamps {
        // 0 would be before every write.
        let first = ceiling.max(1);
        Stamps {
            next: Next { number: AtomicU64::new(first), floor: AtomicU64::new(0) },
            ceiling: AtomicU64::new(first),
            stocks: std::array::from_fn(|_| Stock::default()),
        }
    }

    /// The first of `count` numbers of the caller's own, or `None` if the ceiling must be raised first.
    pub(crate) fn take(&self, count: u64) -> Option<u64> {
        // Relaxed: a number orders writes to one key, and whoever has seen a write has synchronized with its page.
        let first = self.next.number.fetch_add(count, Ordering::Relaxed);
        // Acquire pairs with the release in `raised`. Numbers that were taken in vain are lost, which does not matter.
        (first + count <= self.ceiling.load(Ordering::Acquire)).then_some(first)
    }

    /// As [`Stamps::take`], for writes some of which may be deletes.
    pub(crate) fn take_for_deletes(&self, count: u64) -> Option<u64> {
        let first = self.take(count)?;
        // S5. Released with what is applied; whoever has seen that, or what came of it, sees this.
        self.next.floor.fetch_max(first + count - 1, Ordering::Relaxed);
        Some(first)
    }

    /// A number for a write that has `place` to itself, above `above`: the bound of the numbers that its page has been written with, or `None` if that is not known. `None` if the ceiling must be
    /// raised first, by at least [`STOCK`] numbers.
    #[inline]
    pub(crate) fn take_above(&self, place: Option<usize>, above: Option<u64>) -> Option<u64> {
        // S4, S5. Relaxed: W3, and as in `take`.
        let (Some(place), Some(above)) = (place, above) else { return self.take(1) };
        let Stock { first, next, end } = &self.stocks[place];
        let [own_first, own, own_end] = [first, next, end].map(|number| number.load(Ordering::Relaxed));
        let is_left = own < own_end && own > self.next.floor.load(Ordering::Relaxed);
        if is_left && own > above {
            next.store(own + 1, Ordering::Relaxed);
            return Some(own);
        }
        if is_left {
            let number = self.take(1)?;
            if number - own > BEHIND_MAX {
                end.store(own, Ordering::Relaxed);
            }
            return Some(number);
        }
        // Twice as many as could be used of the last ones: where there are many deletes most would be lost.
        let count = if own_end == 0 { STOCK } else { (2 * (own - own_first)).clamp(1, STOCK) };
        let number = self.take(count)?;
        first.store(number, Ordering::Relaxed);
        next.store(number + 1, Ordering::Relaxed);
        end.store(number + count, Ordering::Relaxed);
        Some(number)
    }

    /// Whether there are `count` numbers below the ceiling.
    pub(crate) fn has_room(&self, count: u64) -> bool {
        self.next.number.load(Ordering::Relaxed) + count <= self.ceiling.load(Ordering::Acquire)
    }

    /// Whether there are as many as a checkpoint need not hurry for.
    pub(crate) fn has_headroom(&self) -> bool {
        self.has_room(HEADROOM / 2)
    }

    /// The ceiling for the next checkpoint.
    pub(crate) fn higher_ceiling(&self) -> u64 {
        self.next.number.load(Ordering::Relaxed) + HEADROOM
    }

    /// Whether the ceiling is nearer than it should be.
    pub(crate) fn is_ceiling_near(&self) -> bool {
        // Before the first write there is no need.
        !self.has_headroom() && self.has_room(1)
    }

    /// `ceiling` is durable.
    pub(crate) fn raised(&self, ceiling: u64) {
        self.ceiling.fetch_max(ceiling, Ordering::AcqRel);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_number_is_given_out_above_the_ceiling_or_twice() {
        let stamps = Stamps::new(0);
        assert_eq!(stamps.take(1), None);
        assert!(!stamps.has_room(1) && !stamps.has_headroom());
        let ceiling = stamps.higher_ceiling();
        stamps.raised(ceiling);
        let first = stamps.take(10).expect("there is room");
        assert_eq!(stamps.take(1), Some(first + 10));
        assert!(!stamps.is_ceiling_near() && stamps.has_room(1) && !stamps.has_room(HEADROOM));
        assert_eq!(stamps.take(ceiling), None);
        // The next life begins above all of this one's.
        let next = Stamps::new(ceiling);
        next.raised(next.higher_ceiling());
        assert!(next.take(1).expect("there is room") >= ceiling);
    }

    #[test]
    fn the_ceiling_comes_near_before_it_is_reached() {
        let stamps = Stamps::new(0);
        stamps.raised(stamps.higher_ceiling());
        assert!(stamps.take(HEADROOM * 3 / 4).is_some());
        assert!(stamps.is_ceiling_near());
    }

    fn stamps() -> Stamps {
        let stamps = Stamps::new(0);
        stamps.raised(stamps.higher_ceiling());
        stamps
    }

    #[test]
    fn a_stock_is_used_where_the_page_lets_it_and_given_up_when_it_is_far_behind() {
        let stamps = stamps();
        let take = |place, above| stamps.take_above(Some(place), Some(above)).expect("there is room");
        let first = take(0, 0);
        assert_eq!((take(0, 0), take(1, 0)), (first + 1, first + STOCK));
        // The page has one of the other stock.
        let next = first + 2 * STOCK;
        assert_eq!(take(0, first + STOCK), next);
        // Any other page lets the rest of the first be used.
        assert_eq!(take(0, 0), first + 2);
        assert_eq!(stamps.take_above(None, Some(0)), Some(next + 1));
        assert_eq!(stamps.take_above(Some(0), None), Some(next + 2));
        let rest: Vec<_> = (3..STOCK).map(|_| take(0, 0)).collect();
        assert_eq!(rest, (first + 3..first + STOCK).collect::<Vec<_>>());
        assert_eq!((take(0, 0), take(0, 0)), (next + 3, next + 4));
        let far = stamps.take(BEHIND_MAX).expect("there is room") + BEHIND_MAX;
        assert_eq!(take(0, next + 5), far);
        // Two have been used.
        assert_eq!((1..5).map(|_| take(0, 0)).collect::<Vec<_>>(), (far + 1..far + 5).collect::<Vec<_>>());
        assert_eq!(take(0, 0), far + 5);
        assert_eq!(stamps.take(1), Some(far + 13));
    }

    #[test]
    fn nothing_of_a_stock_is_used_after_a_delete() {
        let stamps = stamps();
        let take = || stamps.take_above(Some(0), Some(0)).expect("there is room");
        assert_eq!((take(), take()), (1, 2));
        let delete = stamps.take_for_deletes(1).expect("there is room");
        assert_eq!(delete, 1 + STOCK);
        assert_eq!((1..5).map(|_| take()).collect::<Vec<_>>(), (delete + 1..delete + 5).collect::<Vec<_>>());
        // Of which few are taken at a time where there are many.
        for _ in 0..10 {
            let delete = stamps.take_for_deletes(1).expect("there is room");
            assert_eq!(take(), delete + 1);
        }
        assert_eq!(stamps.take_for_deletes(7).map(|first| first + 7), Some(take()));
    }

    #[test]
    fn what_a_stock_takes_is_below_the_ceiling() {
        let stamps = Stamps::new(0);
        assert_eq!(stamps.take_above(Some(0), Some(0)), None);
        let ceiling = stamps.higher_ceiling();
        stamps.raised(ceiling);
        let first = stamps.take_above(Some(0), Some(0)).expect("there is room");
        assert!(stamps.take(ceiling - first - STOCK - 1).is_some());
        assert!((1..STOCK).all(|_| stamps.take_above(Some(0), Some(0)).is_some()));
        assert_eq!(stamps.take_above(Some(0), Some(0)), None);
    }
}
