//! The account of this component's memory, in bytes, against its budget.
//!
//! ```text
//!   0 ..... filling ....... target ...... soft ...... hard (the budget) ...... limit
//!           writers prune   the collector   reads no    operations help the     writers
//!           after them-     evicts, one in  longer      collector               stall
//!           selves          8 reads caches  cache
//! ```
//!
//! Counters are sharded: a thread adds to its own and carries over to the total when [`CARRY_BYTES`] have gathered, so
//! the total is right to within that much for each shard.

use crate::sync::{AtomicU64, Ordering, Padded};
use deuteron_pool::{IdleExcess, Part};

#[cfg(not(any(loom, shuttle)))]
const SHARDS: usize = 16;
#[cfg(any(loom, shuttle))]
const SHARDS: usize = 1;
const CARRY_BYTES: i64 = 32 << 10;

/// From so large a budget on it matters what lies idle in the pool, and where: some chunks. With a smaller one that depends on the other databases
/// of the process.
const POOL_BUDGET_MIN: u64 = 16 << 20;
/// Of what is beyond it no margin is kept free.
const MARGIN_OF_BYTES_MAX: u64 = 512 << 20;

/// See the [module](self).
pub(crate) struct Account {
    shards: [Padded<AtomicU64>; SHARDS],
    total: Padded<AtomicU64>,
    carry_bytes: i64,
    budget: AtomicU64,
    /// What was set, of which the budget is what does not lie idle.
    given: AtomicU64,
    /// What lies idle besides.
    untidy: AtomicU64,
    /// What recyclers may keep beyond their shares.
    granted: Padded<AtomicU64>,
    /// Makes reads take the path of full memory.
    #[cfg(test)]
    pub(crate) pretend_over_soft: std::sync::atomic::AtomicBool,
}

impl Account {
    pub(crate) fn new(budget: u64) -> Account {
        Account {
            shards: std::array::from_fn(|_| Padded(AtomicU64::new(0))),
            total: Padded(AtomicU64::new(0)),
            // A small budget wants to be known exactly.
            carry_bytes: CARRY_BYTES.min(budget as i64 / 1024),
            budget: AtomicU64::new(budget),
            given: AtomicU64::new(budget),
            untidy: AtomicU64::new(0),
            granted: Padded(AtomicU64::new(0)),
            #[cfg(test)]
            pretend_over_soft: std::sync::atomic::AtomicBool::new(false),
        }
    }

    /// Adds an allocation.
    #[inline]
    pub(crate) fn add(&self, bytes: usize) {
        self.change(bytes as i64);
    }

    /// Takes off what has been unlinked.
    #[inline]
    pub(crate) fn subtract(&self, bytes: usize) {
        self.change(-(bytes as i64));
    }

    #[inline]
    fn change(&self, by: i64) {
        let shard = &self.shards[shard_of_thread() % SHARDS].0;
        let sum = (shard.fetch_add(by as u64, Ordering::Relaxed) as i64).wrapping_add(by);
        if sum.abs() > self.carry_bytes {
            // Two threads of one shard may both carry: each takes exactly what it moves.
            let moved = shard.swap(0, Ordering::Relaxed);
            self.total.0.fetch_add(moved, Ordering::Relaxed);
        }
    }

    /// Bytes in use, to within the carry.
    pub(crate) fn used(&self) -> u64 {
        (self.total.0.load(Ordering::Relaxed) as i64).max(0) as u64
    }

    pub(crate) fn budget(&self) -> u64 {
        self.budget.load(Ordering::Relaxed)
    }

    /// Sets the budget, but for what lies idle and [counts](IdleExcess::counted).
    pub(crate) fn set_budget(&self, bytes: u64) {
        let IdleExcess { counted, untidy } = if bytes >= POOL_BUDGET_MIN {
            deuteron_pool::idle_excess(Part::Records, self.used(), bytes)
        } else {
            IdleExcess::default()
        };
        let new = bytes - counted;
        // All look at their line, so it is not written for a little.
        let (before, untidy_before) = (self.budget(), self.untidy.load(Ordering::Relaxed));
        if new.abs_diff(before).max(untidy.abs_diff(untidy_before)) > before / 64 {
            self.given.store(bytes, Ordering::Relaxed);
            self.untidy.store(untidy, Ordering::Relaxed);
            self.budget.store(new, Ordering::Relaxed);
        }
    }

    /// So much more may be kept for versions to come (M3), if there is as much left of a sixteenth of the budget.
    pub(crate) fn grant_to_recycler(&self, bytes: usize) -> bool {
        // Relaxed, as below: a number and nothing else.
        let before = self.granted.0.fetch_add(bytes as u64, Ordering::Relaxed);
        let has_room = before + bytes as u64 <= self.budget() / 16;
        if !has_room {
            self.take_back_granted(bytes);
        }
        has_room
    }

    /// So much of what was granted is not kept any more.
    pub(crate) fn take_back_granted(&self, bytes: usize) {
        if bytes > 0 {
            self.granted.0.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
    }

    /// A share of the budget that is kept free, or beyond it. Of a large budget less: the collector's pace is what it must cover.
    fn margin(&self, parts: u64) -> u64 {
        self.budget().min(MARGIN_OF_BYTES_MAX) / parts
    }

    /// The collector evicts above this. So it leaves free what it needs to keep ahead, and no more: what it evicts is read from the data component again, several times as a rule.
    pub(crate) fn is_over_target(&self) -> bool {
        self.used() > self.target()
    }

    /// With all that lies idle it is above this: what is in the way of others is to leave, and nothing else. Down to half of what was set: what waits to be posted
    /// may keep each span from becoming free, and then it is of no use.
    pub(crate) fn is_untidy(&self) -> bool {
        let (untidy, used) = (self.untidy.load(Ordering::Relaxed), self.used());
        untidy > 0 && used > self.given.load(Ordering::Relaxed) / 2 && used + untidy > self.target()
    }

    /// What writers have superseded goes as soon as everybody sees what is above it, instead of when the record is written again or the collector
    /// comes by. That is a little more work, which only keeps what is of use from being evicted.
    #[inline]
    pub(crate) fn is_filling(&self) -> bool {
        self.used() > self.budget() - self.margin(8)
    }

    pub(crate) fn target(&self) -> u64 {
        self.budget() - self.margin(16)
    }

    /// Whether so much for what one transaction has written counts as much: it has better uses for memory than copies, and may have to give way.
    #[inline]
    pub(crate) fn is_much(&self, bytes: usize) -> bool {
        bytes >= self.budget() as usize / 16
    }

    /// What of the budget that was set lies idle.
    fn idle(&self) -> u64 {
        self.given.load(Ordering::Relaxed).saturating_sub(self.budget())
    }

    /// The least budget with which it would not evict.
    pub(crate) fn budget_taken(&self) -> u64 {
        let used = self.used();
        used + (used / 15).min(MARGIN_OF_BYTES_MAX / 16) + self.idle()
    }

    /// Reads no longer put what they have read into the table above this.
    pub(crate) fn is_over_soft(&self) -> bool {
        #[cfg(test)]
        if self.pretend_over_soft.load(std::sync::atomic::Ordering::Relaxed) {
            return true;
        }
        self.used() > self.budget() - self.margin(32)
    }

    /// Whether a read of a key without a record should make one. Always, while there is room; now and then while the collector is
    /// evicting, so that keys read often get in and those read once do not drive the others out; never when memory is
    /// short. `salt` is anything that differs from read to read.
    #[inline]
    pub(crate) fn admits(&self, salt: u64) -> bool {
        const ONE_IN: u32 = 8;
        if self.is_over_soft() {
            return false;
        }
        !self.is_over_target() || salt.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (64 - ONE_IN.ilog2()) == 0
    }

    /// Every operation that allocates helps the collector above this.
    pub(crate) fn is_over_hard(&self) -> bool {
        self.used() > self.budget()
    }

    /// Writers stall above this.
    pub(crate) fn is_over_limit(&self) -> bool {
        self.used() > self.budget() + self.margin(4)
    }
}

/// A number for the calling thread, by which it picks its shard of anything.
#[inline]
pub(crate) fn shard_of_thread() -> usize {
    #[cfg(not(any(loom, shuttle)))]
    {
        use std::sync::atomic::AtomicUsize;
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        std::thread_local! {
            static SHARD: usize = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
        SHARD.with(|shard| *shard)
    }
    #[cfg(any(loom, shuttle))]
    0
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_threads_add_and_subtract_comes_out_even() {
        let account = Account::new(1 << 20);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| account.add(100)));
            }
        });
        let used = account.used();
        assert!((3_900_000..=4_000_000).contains(&used), "{used}");
        assert!(account.is_over_limit());
        (0..40_000).for_each(|_| account.subtract(100));
        assert!(account.used() < 100_000 && !account.is_over_target());
    }

    #[test]
    fn the_budget_may_change() {
        let account = Account::new(4 << 30);
        account.add(3 << 30);
        assert!(!account.is_over_target());
        account.set_budget(2 << 30);
        assert!(account.is_over_limit());
        account.set_budget((3 << 30) + (20 << 20));
        assert!(account.is_over_target() && !account.is_over_soft());
    }

    #[test]
    fn it_is_untidy_with_what_lies_idle_besides_down_to_half() {
        let account = Account::new(1 << 29);
        let part = 1 << 23;
        account.add(60 * part);
        assert!(!account.is_over_target() && !account.is_untidy(), "exactly at the target");
        account.untidy.store(part as u64, Ordering::Relaxed);
        assert!(account.is_untidy() && !account.is_over_target());
        account.subtract(part);
        assert!(!account.is_untidy(), "there is room for as much");
        account.untidy.store(40 * part as u64, Ordering::Relaxed);
        assert!(account.is_untidy());
        account.subtract(26 * part);
        assert!(account.is_untidy());
        account.subtract(part);
        assert!(!account.is_untidy(), "half is left");
    }

    #[test]
    fn the_budget_taken_is_the_least_with_which_nothing_is_evicted() {
        for used in [5 << 20, 3 << 30] {
            let account = Account::new(0);
            account.add(used);
            // Past the pool, which other tests use as well.
            let set = |bytes| [&account.given, &account.budget].map(|of| of.store(bytes, Ordering::Relaxed));
            set(account.budget_taken());
            assert!(!account.is_over_target());
            set(account.budget() - 2);
            assert!(account.is_over_target());
        }
    }

    #[test]
    fn what_lies_idle_is_taken_from_a_large_budget_and_a_little_changes_nothing() {
        let account = Account::new(POOL_BUDGET_MIN - 1);
        account.set_budget(32 << 20);
        // Of the process, which has other tests: up to a half.
        let idle = (32 << 20) - account.budget();
        assert!(account.budget_taken() == idle && idle <= 16 << 20);
        // The budget is no smaller for it.
        account.set_budget(POOL_BUDGET_MIN);
        assert!(account.given.load(Ordering::Relaxed) >= POOL_BUDGET_MIN);
        let small = Account::new(6400);
        for (set, now) in [(6301, 6400), (6299, 6299), (6397, 6299), (6398, 6398)] {
            small.set_budget(set);
            assert_eq!(small.budget(), now, "{set}");
        }
    }

    #[test]
    fn each_watermark_is_passed_above_it() {
        // Counted to the byte: it fills from 700 on, the target is 750, reads no longer cache above 775, writers stall above 1000.
        let account = Account::new(800);
        account.add(599);
        for used in 600..=1001 {
            account.add(1);
            assert_eq!(account.used(), used);
            assert_eq!(account.is_filling(), used > 700, "{used}");
            assert_eq!(account.is_over_target(), used > 750, "{used}");
            assert_eq!(account.is_over_soft(), used > 775, "{used}");
            assert_eq!(account.is_over_hard(), used > 800, "{used}");
            assert_eq!(account.is_over_limit(), used > 1000, "{used}");
        }
    }

    #[test]
    fn of_reads_that_bring_records_one_in_eight_is_admitted_while_the_collector_evicts() {
        let account = Account::new(800);
        let admitted = || (0..8000).filter(|salt| account.admits(*salt)).count();
        assert_eq!(admitted(), 8000);
        account.add(750);
        assert_eq!(admitted(), 8000);
        account.add(1);
        assert!((900..1100).contains(&admitted()), "{}", admitted());
        account.add(25);
        assert_eq!(admitted(), 0);
    }

    #[test]
    fn reads_whose_salts_have_much_in_common_are_admitted_as_seldom() {
        let account = Account::new(800);
        account.add(751);
        for step in [8, 64, 1 << 20] {
            let admitted = (0..8000).filter(|salt| account.admits(salt * step)).count();
            assert!((700..1300).contains(&admitted), "{admitted} of steps of {step}");
        }
    }

    #[test]
    fn a_thread_carries_over_what_is_more_than_the_carry() {
        let account = Account::new(1 << 30);
        account.add(CARRY_BYTES as usize);
        assert_eq!(account.used(), 0);
        account.add(1);
        assert_eq!(account.used(), CARRY_BYTES as u64 + 1);
    }

    #[test]
    fn every_thread_has_a_number_of_its_own_and_any_number_will_do() {
        let account = Account::new(800);
        let numbers: std::collections::BTreeSet<usize> = (0..300)
            .map(|_| {
                std::thread::scope(|scope| {
                    let number = scope.spawn(|| {
                        account.add(1);
                        shard_of_thread()
                    });
                    number.join().unwrap()
                })
            })
            .collect();
        assert_eq!((numbers.len(), account.used()), (300, 300));
        assert_eq!(shard_of_thread(), shard_of_thread());
    }
}
