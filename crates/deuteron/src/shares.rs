//! How the one number from the user is divided.
//!
//! The log's ring is fixed. The rest is one pool: pages and their tables take what they need of it up to their share, and the transaction
//! component's records and versions have what they do not take, but always at least theirs. Where the tables take more than half of the
//! pages' share there is so much more data than memory that little of what is wanted is found in it; what counts then is how many changes gather on a page before it is
//! written. So the pages' share grows by what the tables take beyond that half, and by as much for what is new, up to the whole of it; and the transaction component gives as much, up to
//! half of its share ([`Shares::dc_budget`], [`Shares::tc_budget`]).
//!
//! What the components count is payload; what is half empty of the memory that it lies in, and what nobody counts, comes on top. That
//! differs, up to two thirds of the payload. So five eighths are divided at first, and what is then seen to be left is granted besides,
//! to pages first ([`Shares::settle`]). Where three quarters of all pages have room beside the transaction component's share, it has no more than they leave, whether they are in memory yet or
//! not: a page that is missing costs fifty times as much as a record that is. While pages grow, as while records are loaded, they are left room to become twice as many: records that have
//! filled it would leave holes in all the spans that pages want.

use crate::Options;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The program itself, its stacks and its buffers for I/O.
const FIXED_BYTES: usize = 8 << 20;
/// From so large a budget on more of it is divided at first.
const MUCH_BYTES: usize = 4 << 30;
const LOG_RING_BYTES_MIN: usize = 4 << 20;
const LOG_RING_BYTES_MAX: usize = 1 << 30;
/// So many bytes and a part of the memory, of so many, are left to what does not lie in the pool and nobody counts; up to so many bytes.
const UNCOUNTED_BYTES: u64 = 24 << 20;
const UNCOUNTED: u64 = 4;
const UNCOUNTED_BYTES_MAX: u64 = 384 << 20;
/// How often it is looked at what is left.
const SETTLE_EVERY: Duration = Duration::from_millis(100);
/// The transaction component may have a part of what is left, of so many, each time: a page that is missing costs more than a record, and a record takes less
/// room in its page.
const TC_OF_LEFT: u64 = 4;
/// While more is taken than there is by a part of the memory, of so many, a part, of so many, goes back each time: slower than
/// what was evicted can leave the memory that it lay in.
const TOO_MUCH: u64 = 64;
const STEP: u64 = 256;
/// Pages grow while they become more by a part of the memory, of so many, within such a time. They are then left room for so many times what they take.
const GROWN: u64 = 512;
const GROWN_WITHIN: Duration = Duration::from_secs(1);
const ROOM_TO_GROW: u64 = 2;

/// See the [module](self). All in bytes.
pub struct Shares {
    log: usize,
    /// The transaction component's least, if it may have as much; while it is not there yet, the replay's.
    tc: u64,
    /// The data component's most, unless its tables are large or there is more.
    dc: u64,
    /// The transaction component's most, by [`Options::version_memory`].
    tc_max: u64,
    memory: u64,
    /// What each may have in view of what is left, if that is more than its share.
    tc_granted: AtomicU64,
    dc_granted: AtomicU64,
    /// What pages leave to the transaction component at most.
    tc_beside_pages: AtomicU64,
    /// When that was looked at last, and how pages grew until then.
    settled: Mutex<Option<(Instant, Growth)>>,
}

/// The most that the data component has wanted, but for what is little, and since when.
struct Growth {
    most_wanted: u64,
    since: Instant,
}

/// What is taken of the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// Everything that was counted, and what lies idle among it.
    pub all: u64,
    /// Of the transaction component's budget.
    pub tc: u64,
    /// Of the data component's budget.
    pub dc: u64,
    /// What it would take of it with every page in memory.
    pub dc_wanted: u64,
}

impl Shares {
    pub fn of(options: &Options) -> Self {
        let divided = if options.memory_bytes < MUCH_BYTES { 10 } else { 11 };
        let memory = (options.memory_bytes - FIXED_BYTES.min(options.memory_bytes / 4)) / 16 * divided;
        // The ring must be a power of two: an eighth of the memory or less.
        let log = (memory / 8).max(1).next_power_of_two();
        let log = if log > memory / 8 { log / 2 } else { log };
        let log = log.clamp(LOG_RING_BYTES_MIN, LOG_RING_BYTES_MAX);
        let tc = memory / 8 * 3 + memory % 8 * 3 / 8;
        let dc = (memory - memory / 16).saturating_sub(log + tc);
        Self {
            log,
            tc: tc as u64,
            dc: dc as u64,
            tc_max: options.version_memory_bytes.unwrap_or(usize::MAX) as u64,
            memory: options.memory_bytes as u64,
            tc_granted: AtomicU64::new(0),
            dc_granted: AtomicU64::new(0),
            tc_beside_pages: AtomicU64::new(u64::MAX),
            settled: Mutex::new(None),
        }
    }

    /// The log's ring.
    pub fn log(&self) -> usize {
        self.log
    }

    /// The data component's budget at first.
    pub fn dc(&self) -> u64 {
        self.dc
    }

    /// What the replay may take while there is no transaction component yet.
    pub fn replay_bytes(&self) -> u64 {
        self.tc + self.log as u64
    }

    /// By how much tables of `tables_bytes` exceed half of the pages' share.
    fn beyond(&self, tables_bytes: u64) -> u64 {
        tables_bytes.saturating_sub(self.dc / 2)
    }

    /// The data component's budget while the mapping table and the indexes take `tables_bytes`, which are there in any case. Beside them pages
    /// have half of the share at least, and all of it beside tables as large as it: with next to no memory for what is new, every operation would have a page read and written.
    pub fn dc_budget(&self, tables_bytes: u64) -> u64 {
        let beyond = self.beyond(tables_bytes);
        // Relaxed, here and below: figures.
        (self.dc + beyond + beyond.min(self.dc / 2)).max(self.dc_granted.load(Ordering::Relaxed))
    }

    /// The transaction component's budget while pages and their tables take `dc_bytes`, and these of it `tables_bytes`: they are left room to grow by an eighth of
    /// their share before they are noticed.
    pub fn tc_budget(&self, dc_bytes: u64, tables_bytes: u64, waiting_bytes: u64) -> u64 {
        let share = self.tc - self.beyond(tables_bytes).min(self.tc / 2);
        let share = share + self.dc.saturating_sub(dc_bytes + self.dc / 8);
        // What is granted has been reckoned with it.
        let share = share - waiting_bytes.min(share / 2);
        let most = self.tc_beside_pages.load(Ordering::Relaxed).min(self.tc_max);
        share.max(self.tc_granted.load(Ordering::Relaxed)).min(most)
    }

    /// How much of the transaction component's budget may be taken by committed operations that are too new to be posted: an
    /// operation that waits for an old reader has a version that is kept for it, too.
    pub fn waiting(tc_budget: u64) -> usize {
        (tc_budget / 2) as usize
    }

    /// Grants each component what it has taken and some of what is left; if too much is taken, by and by less. It may be called as often as
    /// one likes.
    pub fn settle(&self, taken: Taken, now: Instant) {
        let grows = {
            let mut settled = self.settled.lock().unwrap_or_else(PoisonError::into_inner);
            match settled.as_mut() {
                Some((last, _)) if now < *last + SETTLE_EVERY => return,
                Some((last, growth)) => {
                    *last = now;
                    growth.note(taken.dc_wanted, self.memory / GROWN, now)
                }
                None => {
                    *settled = Some((now, Growth { most_wanted: taken.dc_wanted, since: now }));
                    false
                }
            }
        };
        let uncounted = (UNCOUNTED_BYTES + self.memory / UNCOUNTED).min(UNCOUNTED_BYTES_MAX);
        let there_is = self.memory.saturating_sub(uncounted + self.log as u64);
        let left = there_is.saturating_sub(taken.all);
        let step = self.memory / STEP;
        let tc_had = self.tc_granted.load(Ordering::Relaxed).min(taken.tc);
        for (granted, taken_of_it, left) in
            [(&self.tc_granted, taken.tc, left / TC_OF_LEFT), (&self.dc_granted, taken.dc, left)]
        {
            let budget = if taken.all <= there_is {
                taken_of_it + left
            } else {
                let back = if taken.all - there_is > self.memory / TOO_MUCH { step } else { 0 };
                granted.load(Ordering::Relaxed).min(taken_of_it).saturating_sub(back)
            };
            granted.store(budget, Ordering::Relaxed);
        }
        let beside_pages = if grows {
            self.beside_all_pages(there_is, taken.dc_wanted, ROOM_TO_GROW)
        } else {
            self.beside_all_pages(there_is, taken.dc_wanted, 1).max(tc_had.saturating_sub(step))
        };
        self.tc_beside_pages.store(beside_pages, Ordering::Relaxed);
    }

    /// What is left for the transaction component beside all pages so many `times`, its share at least; no limit, if with that share there is no room for three quarters of them.
    fn beside_all_pages(&self, there_is: u64, dc_wanted: u64, times: u64) -> u64 {
        // What comes and goes leaves so much idle.
        let used = there_is - there_is / 9;
        let most_pages = dc_wanted - dc_wanted / 4;
        if most_pages + self.tc > used {
            u64::MAX
        } else {
            self.tc.max(used.saturating_sub(times * dc_wanted))
        }
    }
}

impl Growth {
    /// Notes what is wanted `now`; whether that is more than a while ago, by `little` at least.
    fn note(&mut self, wanted: u64, little: u64, now: Instant) -> bool {
        if wanted > self.most_wanted + little {
            *self = Growth { most_wanted: wanted, since: now };
        }
        now < self.since + GROWN_WITHIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shares_stay_within_the_memory_and_the_pool_is_shared() {
        for memory in [16 << 20, 100 << 20, 1 << 30, 64 << 30] {
            let shares = Shares::of(&Options::new().memory(memory));
            let most = |dc: u64| shares.log as u64 + dc + shares.tc_budget(dc, 0, 0);
            assert!(most(shares.dc) <= memory as u64 && most(0) <= memory as u64, "{memory}");
            assert_eq!(shares.tc_budget(shares.dc, 0, 0), shares.tc);
            assert!(shares.tc_budget(0, 0, 0) > shares.tc);
        }
    }

    #[test]
    fn beside_large_tables_pages_have_half_of_their_share_or_all_of_it_and_versions_give_as_much() {
        let shares = Shares::of(&Options::new().memory(100 << 20));
        let half = shares.dc / 2;
        let budgets = |tables| {
            let dc = shares.dc_budget(tables);
            (dc - tables, shares.tc - shares.tc_budget(dc, tables, 0))
        };
        assert_eq!([0, half].map(budgets), [(shares.dc, 0), (shares.dc - half, 0)]);
        assert_eq!(budgets(half + 1000), (shares.dc - half + 1000, 1000));
        assert_eq!(
            [2 * half, 5 * half].map(budgets),
            [(shares.dc, half.min(shares.tc / 2)), (shares.dc, shares.tc / 2)]
        );
    }

    #[test]
    fn versions_take_no_more_than_they_may() {
        let options = Options::new().memory(1 << 30);
        let (all, few) = (Shares::of(&options), Shares::of(&options.version_memory(32 << 20)));
        assert_eq!((few.tc_budget(few.dc, 0, 0), few.tc_budget(0, 0, 0)), (32 << 20, 32 << 20));
        assert_eq!(
            (few.log, few.dc, few.tc),
            (all.log, all.dc, all.tc),
            "nothing else changes, nor the replay"
        );
    }

    const MEMORY: u64 = 1 << 30;

    /// What there is for pages, records and versions.
    fn there_is(shares: &Shares) -> u64 {
        MEMORY - MEMORY / UNCOUNTED - UNCOUNTED_BYTES - shares.log as u64
    }

    /// What of it may be in use, beside what lies idle.
    fn used(shares: &Shares) -> u64 {
        there_is(shares) - there_is(shares) / 9
    }

    #[test]
    fn both_grow_into_what_is_left_and_no_further() {
        let (shares, start) = (Shares::of(&Options::new().memory(MEMORY as usize)), Instant::now());
        let (mut tc, mut dc, mut most) = (0, 0, 0);
        let mut settle = |steps: u32, idle_of: fn(u64) -> u64| {
            for _ in 0..steps {
                // Each takes all that it may, though not at once.
                dc = shares.dc_budget(0).min(dc + MEMORY / 64);
                tc = shares.tc_budget(dc, 0, 0).min(tc + MEMORY / 64);
                most += 1;
                let taken = Taken { all: tc + dc + idle_of(tc + dc), tc, dc, dc_wanted: MEMORY };
                shares.settle(taken, start + most * SETTLE_EVERY);
                assert!(taken.all <= there_is(&shares) + MEMORY / TOO_MUCH || idle_of(16) > 1, "{taken:?}");
            }
            (tc, dc)
        };
        let (tc, dc) = settle(100, |used| used / 16);
        assert!(tc >= shares.tc && dc > shares.dc + MEMORY / 64, "{tc} {dc}");
        assert!((tc + dc) / 16 * 17 > there_is(&shares) - MEMORY / 256);
        // Half of it becomes idle.
        assert_eq!(settle(1000, |used| used / 2), (shares.tc, shares.dc), "the first shares stay");
    }

    #[test]
    fn where_all_pages_have_room_versions_leave_it_to_them_step_by_step() {
        let (shares, start) = (Shares::of(&Options::new().memory(MEMORY as usize)), Instant::now());
        let (there_is, used) = (there_is(&shares), used(&shares));
        let (mut times, step) = (0, MEMORY / STEP);
        let mut least = |dc_wanted: u64| {
            let mut tc = shares.tc + 10 * step;
            for _ in 0..20 {
                times += 20;
                let taken = Taken { all: there_is, tc, dc: there_is / 4, dc_wanted };
                // What it has been granted before is not taken back at once.
                shares.tc_granted.store(tc, Ordering::Relaxed);
                shares.settle(taken, start + times * SETTLE_EVERY);
                let now = shares.tc_budget(shares.dc, 0, 0);
                assert!(tc - now <= step, "step by step");
                tc = now;
            }
            tc
        };
        let does_not_fit = (used - shares.tc) / 3 * 4 + 8;
        assert_eq!(least(does_not_fit), shares.tc + 10 * step, "there is more data than memory in any case");
        assert_eq!(least(used), shares.tc + 10 * step);
        assert_eq!(least(used - shares.tc - step), shares.tc + step, "what pages leave");
        assert_eq!(least((used - shares.tc) / 3 * 4), shares.tc, "its share is left");
    }

    #[test]
    fn while_pages_grow_versions_leave_them_as_much_again() {
        let (shares, start) = (Shares::of(&Options::new().memory(MEMORY as usize)), Instant::now());
        let used = used(&shares);
        let budget = |dc_wanted: u64, at: Duration| {
            let taken = Taken { all: used, tc: used, dc: 0, dc_wanted };
            shares.settle(taken, start + at);
            shares.tc_budget(0, 0, 0)
        };
        let a_quarter = used / 4;
        assert!(budget(0, Duration::ZERO) >= used - MEMORY / 64, "there are none");
        let (soon, later) = (Duration::from_millis(500), Duration::from_millis(1600));
        assert_eq!(budget(a_quarter, soon), used - 2 * a_quarter);
        // As much as they were seen to be before.
        assert_eq!(
            budget(a_quarter + MEMORY / GROWN, soon + SETTLE_EVERY),
            used - 2 * (a_quarter + MEMORY / GROWN)
        );
        assert!(
            budget(a_quarter, later) >= used - a_quarter - MEMORY / GROWN,
            "they are not growing any more"
        );
    }

    #[test]
    fn what_is_too_much_goes_back_slowly_and_a_little_is_none() {
        let (shares, start) = (Shares::of(&Options::new().memory(MEMORY as usize)), Instant::now());
        let at = |times: u64| start + Duration::from_millis(100 * times);
        let there_is = there_is(&shares);
        let (tc, dc) = (shares.tc + 1000, shares.dc + 1000);
        let budgets = || (shares.tc_budget(shares.dc, 0, 0), shares.dc_budget(0));
        let settle = |all, tc, dc, now| shares.settle(Taken { all, tc, dc, dc_wanted: MEMORY }, now);
        settle(there_is - 2000, tc, dc, at(0));
        assert_eq!(budgets(), (tc + 500, dc + 2000));
        settle(there_is, tc, dc, at(1) - Duration::from_millis(1));
        assert_eq!(budgets(), (tc + 500, dc + 2000), "too soon");
        settle(there_is, tc, dc, at(1));
        assert_eq!(budgets(), (tc, dc));
        let much = MEMORY / 8;
        settle(there_is - 4 * much, tc, dc, at(2));
        let a_little = there_is + MEMORY / TOO_MUCH;
        settle(a_little, tc + much, dc + 8 * much, at(3));
        assert_eq!(budgets(), (tc + much, dc + 4 * much), "what is granted is not more");
        settle(a_little + 1, tc + much, dc, at(4));
        assert_eq!(budgets(), (tc + much - MEMORY / STEP, shares.dc));
    }
}
