//! [`Stamps`]: the numbers of the writes.
//!
//! Each write gets a higher number than those that have returned before it, so that the later of two writes to a key
//! wins. Numbers must not be given out twice, across crashes either, although no page is read at opening:
//! - **S1** a durable *ceiling* is above every number given out. It lies in the checkpoint, where a data component with a log
//!   has its redo scan start point;
//! - **S2** an opening begins at the ceiling that it finds;
//! - **S3** who would pass the ceiling takes a checkpoint with a higher one first. So the first write after an opening does.
//!
//! - **S4** a single write takes its number when it knows its page, and a higher one than any that this has been written with: one from the [stock](Stock) of its thread if that is above the bound that the page
//!   tells, else one from the counter, which is above all that have been given out, those in stocks too. Whoever has changed the page before has got his number before; if somebody changes it
//!   meanwhile, another number is taken.
//!
//! The ceiling is passed on as the point below which nothing is ever replayed, which is true of every write: so a delete may be
//! forgotten at the first consolidation after the second checkpoint. A write with a lower number that is still on its way runs
//! at the same time as the delete and may count as the later one. Within one call there is no such freedom, hence at most one
//! write to a key ([`Engine::apply`](crate::engine::Engine::apply)).

use crate::sync::{AtomicU64, Ordering};
use crate::under_way::PLACES;

/// By how much a checkpoint raises the ceiling: an hour of writes, and an opening that writes costs as many of 2^62.
const HEADROOM: u64 = 1 << 32;

/// Numbers that are put into a stock at a time.
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
    next: AtomicU64,
    /// Exclusive; if it is `next` there are none.
    end: AtomicU64,
}

/// The line that every write of every thread changes: apart from what they only read.
#[repr(align(128))]
struct Next(AtomicU64);

impl Stamps {
    /// Goes on at `ceiling`, the one that recovery found.
    pub(crate) fn new(ceiling: u64) -> Stamps {
        // 0 would be before every write.
        let first = ceiling.max(1);
        Stamps {
            next: Next(AtomicU64::new(first)),
            ceiling: AtomicU64::new(first),
            stocks: std::array::from_fn(|_| Stock::default()),
        }
    }

    /// The first of `count` numbers of the caller's own, or `None` if the ceiling must be raised first.
    pub(crate) fn take(&self, count: u64) -> Option<u64> {
        // Relaxed: a number orders writes to one key, and whoever has seen a write has synchronized with its page.
        let first = self.next.0.fetch_add(count, Ordering::Relaxed);
        // Acquire pairs with the release in `raised`. Numbers that were taken in vain are lost, which does not matter.
        (first + count <= self.ceiling.load(Ordering::Acquire)).then_some(first)
    }

    /// A number for a write that has `place` to itself, above `above`: the bound of the numbers that its page has been written with, or `None` if that is not known. `None` if the ceiling must be
    /// raised first, by at least [`STOCK`] numbers.
    #[inline]
    pub(crate) fn take_above(&self, place: Option<usize>, above: Option<u64>) -> Option<u64> {
        // S4. Relaxed: W3.
        let (Some(place), Some(above)) = (place, above) else { return self.take(1) };
        let Stock { next, end } = &self.stocks[place];
        let (own, own_end) = (next.load(Ordering::Relaxed), end.load(Ordering::Relaxed));
        if own > above && own < own_end {
            next.store(own + 1, Ordering::Relaxed);
            return Some(own);
        }
        let count = if own < own_end { 1 } else { STOCK };
        let first = self.take(count)?;
        if count == STOCK {
            next.store(first + 1, Ordering::Relaxed);
            end.store(first + STOCK, Ordering::Relaxed);
        } else if first - own > BEHIND_MAX {
            next.store(own_end, Ordering::Relaxed);
        }
        Some(first)
    }

    /// Whether there are `count` numbers below the ceiling.
    pub(crate) fn has_room(&self, count: u64) -> bool {
        self.next.0.load(Ordering::Relaxed) + count <= self.ceiling.load(Ordering::Acquire)
    }

    /// Whether there are as many as a checkpoint need not hurry for.
    pub(crate) fn has_headroom(&self) -> bool {
        self.has_room(HEADROOM / 2)
    }

    /// The ceiling for the next checkpoint.
    pub(crate) fn higher_ceiling(&self) -> u64 {
        self.next.0.load(Ordering::Relaxed) + HEADROOM
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

    #[test]
    fn a_stock_is_used_where_the_page_lets_it_and_given_up_when_it_is_far_behind() {
        let stamps = Stamps::new(0);
        stamps.raised(stamps.higher_ceiling());
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
        assert_eq!((take(0, 0), take(0, 0)), (far + 1, far + 2));
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
