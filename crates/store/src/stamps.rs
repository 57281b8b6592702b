//! [`Stamps`]: the numbers of the writes.
//!
//! Each write gets a higher number than those that have returned before it, so that the later of two writes to a key
//! wins. Numbers must not be given out twice, across crashes either, although no page is read at opening:
//! - **S1** a durable *ceiling* is above every number given out. It lies in the checkpoint, where a data component with a log
//!   has its redo scan start point;
//! - **S2** an opening begins at the ceiling that it finds;
//! - **S3** who would pass the ceiling takes a checkpoint with a higher one first. So the first write after an opening does.
//!
//! The ceiling is passed on as the point below which nothing is ever replayed, which is true of every write: so a delete may be
//! forgotten at the first consolidation after the second checkpoint. A write with a lower number that is still on its way runs
//! at the same time as the delete and may count as the later one. Within one call there is no such freedom, hence at most one
//! write to a key ([`Engine::apply`](crate::engine::Engine::apply)).

use std::sync::atomic::{AtomicU64, Ordering};

/// By how much a checkpoint raises the ceiling: an hour of writes, and an opening that writes costs as many of 2^62.
const HEADROOM: u64 = 1 << 32;

pub(crate) struct Stamps {
    next: Next,
    ceiling: AtomicU64,
}

/// The line that every write of every thread changes: apart from what they only read.
#[repr(align(128))]
struct Next(AtomicU64);

impl Stamps {
    /// Goes on at `ceiling`, the one that recovery found.
    pub(crate) fn new(ceiling: u64) -> Stamps {
        // 0 would be before every write.
        Stamps { next: Next(AtomicU64::new(ceiling.max(1))), ceiling: AtomicU64::new(ceiling.max(1)) }
    }

    /// The first of `count` numbers of the caller's own, or `None` if the ceiling must be raised first.
    pub(crate) fn take(&self, count: u64) -> Option<u64> {
        // Relaxed: a number orders writes to one key, and whoever has seen a write has synchronized with its page.
        let first = self.next.0.fetch_add(count, Ordering::Relaxed);
        // Acquire pairs with the release in `raised`. Numbers that were taken in vain are lost, which does not matter.
        (first + count <= self.ceiling.load(Ordering::Acquire)).then_some(first)
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

#[cfg(test)]
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
}
