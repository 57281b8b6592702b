//! [`ByteCounter`]: bytes that come and go, such as those of the resident pages, counted without a line that all threads write.

use crate::sync::Ordering;
use std::sync::atomic::{AtomicI64, AtomicUsize};

/// One shard per thread as far as they go; more threads share.
const SHARDS: usize = 32;

#[derive(Default)]
#[repr(align(128))]
struct Shard(AtomicI64);

/// A sum kept in shards, each of which tells the total once it has gathered so many bytes. So the total, which may be asked
/// for on every operation, is one rarely written word.
///
/// ```
/// let counter = deuteron_llama::ByteCounter::new(1 << 20);
/// counter.change(100, 40);
/// assert_eq!(counter.sum(), 60);
/// assert!(counter.about() <= 1 << 16);
/// ```
pub struct ByteCounter {
    total: Shard,
    shards: [Shard; SHARDS],
    fold_bytes: i64,
}

fn shard_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    std::thread_local! {
        static INDEX: usize = NEXT.fetch_add(1, Ordering::Relaxed) % SHARDS;
    }
    // A thread that is already past its thread-locals' destructors uses any shard.
    INDEX.try_with(|index| *index).unwrap_or(0)
}

impl ByteCounter {
    /// A counter of about `budget` bytes, whose total is wrong by at most 1/16 of that (and 2 KiB at the least).
    pub fn new(budget: u64) -> ByteCounter {
        let fold_bytes = (budget / (16 * SHARDS as u64)).clamp(64, 64 * 1024) as i64;
        ByteCounter { total: Shard::default(), shards: Default::default(), fold_bytes }
    }

    /// Adds `added` bytes and takes `removed` away.
    #[inline]
    pub fn change(&self, added: usize, removed: usize) {
        let change = added as i64 - removed as i64;
        if change == 0 {
            return;
        }
        let shard = &self.shards[shard_index()].0;
        let gathered = shard.fetch_add(change, Ordering::Relaxed) + change;
        if gathered.abs() >= self.fold_bytes {
            // Whatever another thread of the shard adds in between is folded along with it.
            self.total.0.fetch_add(shard.swap(0, Ordering::Relaxed), Ordering::Relaxed);
        }
    }

    /// About the sum; one load.
    #[inline]
    pub fn about(&self) -> u64 {
        self.total.0.load(Ordering::Relaxed).max(0) as u64
    }

    /// The sum, exact when nobody changes it.
    pub fn sum(&self) -> u64 {
        let shards: i64 = self.shards.iter().map(|shard| shard.0.load(Ordering::Relaxed)).sum();
        (self.total.0.load(Ordering::Relaxed) + shards).max(0) as u64
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_exact_and_the_total_close() {
        let counter = ByteCounter::new(1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        counter.change(300, 100);
                    }
                });
            }
        });
        assert_eq!(counter.sum(), 800_000);
        assert!(counter.sum().abs_diff(counter.about()) <= (1 << 20) / 16);
    }

    #[test]
    fn the_total_is_told_once_enough_has_gathered() {
        // A 512th of the budget, for each of 32 shards.
        let counter = ByteCounter::new(1 << 20);
        counter.change(2047, 0);
        assert_eq!((counter.about(), counter.sum()), (0, 2047));
        counter.change(9, 9);
        counter.change(1, 0);
        assert_eq!((counter.about(), counter.sum()), (2048, 2048));
        counter.change(0, 2047);
        assert_eq!((counter.about(), counter.sum()), (2048, 1));
        counter.change(0, 1);
        assert_eq!((counter.about(), counter.sum()), (0, 0));
        // Less than nothing is none.
        counter.change(0, 5);
        assert_eq!((counter.about(), counter.sum()), (0, 0));
    }

    #[test]
    fn threads_have_shards_of_their_own() {
        let counter = ByteCounter::new(1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..SHARDS {
                scope.spawn(|| counter.change(1, 0));
            }
        });
        let used = counter.shards.iter().filter(|shard| shard.0.load(Ordering::Relaxed) > 0).count();
        assert!(used > SHARDS / 4, "{used} shards");
    }
}
