//! Memory of versions that a writer has pruned, kept for those that it writes next.
//!
//! Whoever overwrites records retires as many versions as it allocates. By way of the allocator that memory would lie about
//! until it has left the processor's caches, and much of it would go back by another thread than the one that allocates. So a
//! workspace keeps what its transactions prune, and has it in its hands again as soon as nobody can look at it any more.
//!
//! ```text
//!   prune ──► retired, not stamped ── BATCH of them ──► batch, with its epoch ── no guard of it is left ──► ready ──► a new version
//! ```
//!
//! # Invariants
//!
//! - **M1** What is here is unlinked and stamped (V2), came from [`Version::allocate`] in the size that goes with it, and belongs to
//!   nobody else. It stays in the account.
//! - **M2** The epoch of a batch is read after the last of its versions has been unlinked, and ended then; the batch is ready
//!   once no guard of that epoch or an earlier one is left.
//! - **M3** A workspace keeps no more than its share, so that all idle ones together keep a sixteenth of the budget at most, and what has been granted to it besides, which is
//!   another sixteenth for all; and nothing more while the account is beyond its budget: then what is ready is freed, and the grant goes back.

use crate::memory::Account;
use crate::version::{SIZE_STEP, Version, WRITTEN_BYTES_MAX};
use deuteron_epoch::{Epochs, Guard};
use std::collections::VecDeque;

/// One size each, in steps of [`SIZE_STEP`].
const SIZES: usize = WRITTEN_BYTES_MAX / SIZE_STEP + 1;
/// So many retired versions share an epoch.
const BATCH: usize = 64;
/// A workspace keeps no more than this.
const BYTES_MAX: usize = 4 << 20;
/// Its share: such a part of the budget, as 64 of them may lie idle. It is enough for what is retired while those who have guards run, but not while one has lost the
/// processor.
const BUDGET_SHARE: u64 = 1024;

#[derive(Clone, Copy)]
struct Retired {
    version: *mut Version,
    bytes: u32,
}

/// Retired versions that share an epoch.
struct Batch {
    epoch: u64,
    count: usize,
}

/// See the [module](self).
pub(crate) struct Recycler {
    /// By size.
    ready: [Vec<*mut Version>; SIZES],
    ready_bytes: usize,
    /// In batches, oldest first, and behind them those that are not stamped yet.
    retired: VecDeque<Retired>,
    retired_bytes: usize,
    batches: VecDeque<Batch>,
    unstamped: usize,
    /// What it may keep beyond its share.
    granted_bytes: usize,
    /// A batch has been stamped since the oldest was looked at last.
    is_fresh: bool,
}

// SAFETY: M1: what it points to is nobody else's, and versions may be used and freed by any thread.
unsafe impl Send for Recycler {}

impl Recycler {
    pub(crate) fn new() -> Recycler {
        Recycler {
            ready: std::array::from_fn(|_| Vec::new()),
            ready_bytes: 0,
            retired: VecDeque::new(),
            retired_bytes: 0,
            batches: VecDeque::new(),
            unstamped: 0,
            granted_bytes: 0,
            is_fresh: false,
        }
    }

    /// Memory of `bytes` bytes, as from [`Version::allocate`], that is in the account already; `None` if there is none. To be called
    /// without a guard, which would keep back what is waiting.
    #[inline]
    pub(crate) fn take(&mut self, bytes: usize, epochs: &Epochs) -> Option<*mut Version> {
        if bytes > WRITTEN_BYTES_MAX {
            return None;
        }
        // As soon as it may be: what was in use last is in the caches still.
        if self.is_fresh {
            self.make_ready(epochs);
        }
        let version = self.ready[bytes / SIZE_STEP].pop()?;
        self.ready_bytes -= bytes;
        #[cfg(any(loom, shuttle))]
        // SAFETY: M1; loom's and shuttle's atomics own memory.
        unsafe {
            std::ptr::drop_in_place(version);
        }
        Some(version)
    }

    /// M2.
    fn make_ready(&mut self, epochs: &Epochs) {
        while std::mem::take(&mut self.is_fresh)
            && let Some(batch) = self.batches.front()
            && epochs.is_quiescent(batch.epoch)
        {
            for Retired { version, bytes } in self.retired.drain(..batch.count) {
                self.ready[bytes as usize / SIZE_STEP].push(version);
                self.retired_bytes -= bytes as usize;
                self.ready_bytes += bytes as usize;
            }
            self.batches.pop_front();
            self.is_fresh = true;
        }
    }

    /// Gives back what [`Recycler::take`] gave and nobody has come to know.
    pub(crate) fn put_back(&mut self, version: *mut Version, bytes: usize) {
        self.ready[bytes / SIZE_STEP].push(version);
        self.ready_bytes += bytes;
    }

    /// Keeps a version of `bytes` bytes, if it is of a size that is kept and there is room (M3); whether it does.
    ///
    /// # Safety
    /// The version is unlinked and stamped, the caller is the one who has to retire it, and it is in the account.
    #[inline]
    pub(crate) unsafe fn keep(
        &mut self,
        version: *mut Version,
        bytes: usize,
        account: &Account,
        epochs: &Epochs,
    ) -> bool {
        if bytes > WRITTEN_BYTES_MAX || !bytes.is_multiple_of(SIZE_STEP) || bytes == 0 {
            return false;
        }
        let is_short = account.is_over_hard();
        if is_short || !self.has_room(bytes, account) {
            if self.unstamped > 0 {
                self.stamp(epochs);
            }
            if self.ready_bytes > 0 && (is_short || self.ready[bytes / SIZE_STEP].is_empty()) {
                // Memory is short, or what is ready is of sizes that nobody asks for any more.
                self.free_ready(account);
            }
            if is_short {
                account.take_back_granted(std::mem::take(&mut self.granted_bytes));
            }
            return false;
        }
        self.retired.push_back(Retired { version, bytes: bytes as u32 });
        self.retired_bytes += bytes;
        self.unstamped += 1;
        if self.unstamped >= BATCH {
            self.stamp(epochs);
        }
        true
    }

    /// M3. A grant is as large as the share, so one is asked for seldom.
    #[inline]
    fn has_room(&mut self, bytes: usize, account: &Account) -> bool {
        let kept = self.retired_bytes + self.ready_bytes + bytes;
        let share = share(account);
        while kept > (share + self.granted_bytes).min(BYTES_MAX) {
            if share == 0 || kept > BYTES_MAX || !account.grant_to_recycler(share) {
                return false;
            }
            self.granted_bytes += share;
        }
        true
    }

    /// M2.
    fn stamp(&mut self, epochs: &Epochs) {
        let epoch = epochs.current();
        epochs.advance();
        self.batches.push_back(Batch { epoch, count: std::mem::take(&mut self.unstamped) });
        self.is_fresh = true;
    }

    fn free_ready(&mut self, account: &Account) {
        for (size, ready) in self.ready.iter_mut().enumerate() {
            let bytes = size * SIZE_STEP;
            for version in ready.drain(..) {
                // SAFETY: M1; taken out.
                unsafe { Version::free(version.cast(), bytes) };
                account.subtract(bytes);
            }
        }
        self.ready_bytes = 0;
    }

    /// Has everything freed: at once what is ready, by the epochs what others may look at.
    pub(crate) fn empty(&mut self, account: &Account, guard: &Guard<'_>) {
        self.free_ready(account);
        for Retired { version, bytes } in self.retired.drain(..) {
            account.subtract(bytes as usize);
            // SAFETY: M1; taken out.
            unsafe { guard.retire(version.cast(), bytes as usize, Version::free) };
        }
        self.retired_bytes = 0;
        self.batches.clear();
        self.unstamped = 0;
        account.take_back_granted(std::mem::take(&mut self.granted_bytes));
    }
}

/// What each workspace may keep.
fn share(account: &Account) -> usize {
    (account.budget() / BUDGET_SHARE) as usize
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::sync::Arc;

    const BYTES: usize = 48;

    /// A recycler, its account and its epochs; a budget of which `kept` versions are kept, and nothing besides.
    fn world(kept: u64) -> (Recycler, Account, Arc<Epochs>) {
        let account = Account::new(kept * BYTES as u64 * BUDGET_SHARE);
        while account.grant_to_recycler(BYTES) {}
        (Recycler::new(), account, Epochs::new())
    }

    fn retire(recycler: &mut Recycler, account: &Account, epochs: &Epochs) -> Option<*mut Version> {
        let version = Version::allocate(BYTES);
        account.add(BYTES);
        // SAFETY: nobody has ever known it.
        let kept = unsafe { recycler.keep(version, BYTES, account, epochs) };
        if !kept {
            account.subtract(BYTES);
            // SAFETY: as above.
            unsafe { Version::free(version.cast(), BYTES) };
        }
        kept.then_some(version)
    }

    #[test]
    fn what_is_retired_is_given_out_once_nobody_can_look_at_it() {
        let (mut recycler, account, epochs) = world(200);
        let reader = epochs.pin();
        let mut retired: Vec<_> =
            (0..BATCH).filter_map(|_| retire(&mut recycler, &account, &epochs)).collect();
        assert_eq!(retired.len(), BATCH);
        assert!(recycler.take(BYTES, &epochs).is_none(), "a reader may look at them");
        drop(reader);
        assert!(recycler.take(BYTES, &epochs).is_none(), "not before there are more, which costs nothing");
        // The next batch has the oldest looked at again.
        retired.extend((0..BATCH).filter_map(|_| retire(&mut recycler, &account, &epochs)));
        assert!(recycler.take(BYTES + SIZE_STEP, &epochs).is_none(), "of another size there is none");
        let mut taken: Vec<_> = std::iter::from_fn(|| recycler.take(BYTES, &epochs)).collect();
        assert_eq!(taken.len(), 2 * BATCH);
        taken.iter().for_each(|&version| recycler.put_back(version, BYTES));
        taken.sort_unstable();
        retired.sort_unstable();
        assert_eq!(taken, retired);
        // What is carried over is a little more than a share.
        let more = (200 - 2 * BATCH) * BYTES + 1;
        account.add(more);
        assert_eq!(account.used() as usize, 2 * BATCH * BYTES + more, "it stays in the account");
        account.subtract(more);
        recycler.empty(&account, &epochs.pin());
        assert_eq!((account.used(), epochs.garbage_bytes()), (0, 0));
    }

    #[test]
    fn no_more_is_kept_than_its_share_and_a_part_of_a_batch_comes_back_too() {
        let (mut recycler, account, epochs) = world(8);
        let kept = (0..100).filter_map(|_| retire(&mut recycler, &account, &epochs)).count();
        assert_eq!(kept, 8);
        let taken: Vec<_> = std::iter::from_fn(|| recycler.take(BYTES, &epochs)).collect();
        assert_eq!(taken.len(), 8);
        taken.iter().for_each(|&version| recycler.put_back(version, BYTES));
        recycler.empty(&account, &epochs.pin());
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn what_others_leave_of_a_sixteenth_is_kept_besides_and_given_back() {
        let share = 4;
        let (epochs, account) = (Epochs::new(), Account::new(share * BYTES as u64 * BUDGET_SHARE));
        let mut recyclers = [(); 2].map(|()| Recycler::new());
        let keep = |recycler: &mut Recycler| {
            (0..1000).filter_map(|_| retire(recycler, &account, &epochs)).count() as u64
        };
        let all = share * BUDGET_SHARE / 16;
        assert_eq!(keep(&mut recyclers[0]), share + all);
        assert_eq!(keep(&mut recyclers[1]), share, "its own is its own");
        recyclers[0].empty(&account, &epochs.pin());
        assert_eq!(keep(&mut recyclers[1]), all);
        // It goes back, too, when memory is short, with what is ready.
        epochs.collect();
        let others = account.budget() as usize;
        account.add(others);
        assert!(retire(&mut recyclers[1], &account, &epochs).is_none());
        account.subtract(others);
        assert_eq!(keep(&mut recyclers[0]), share + all);
        recyclers.iter_mut().for_each(|recycler| recycler.empty(&account, &epochs.pin()));
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn a_workspace_keeps_no_more_than_some_megabytes() {
        let (epochs, account) = (Epochs::new(), Account::new(1 << 40));
        let mut recycler = Recycler::new();
        assert!(recycler.has_room(BYTES_MAX, &account) && !recycler.has_room(BYTES_MAX + 1, &account));
        recycler.empty(&account, &epochs.pin());
    }

    #[test]
    fn nothing_is_kept_beyond_the_budget() {
        let (mut recycler, account, epochs) = world(2 * BATCH as u64);
        (0..2 * BATCH).for_each(|_| assert!(retire(&mut recycler, &account, &epochs).is_some()));
        let version = recycler.take(BYTES, &epochs).expect("two batches are ready");
        recycler.put_back(version, BYTES);
        let others = account.budget() as usize + (4 << 20);
        account.add(others);
        assert!(retire(&mut recycler, &account, &epochs).is_none());
        account.subtract(others);
        assert_eq!(recycler.ready_bytes, 0, "what was ready has been freed");
        recycler.empty(&account, &epochs.pin());
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn sizes_that_nobody_asks_for_make_way() {
        let (mut recycler, account, epochs) = world(8);
        (0..9).for_each(|_| _ = retire(&mut recycler, &account, &epochs));
        assert!(recycler.take(2 * BYTES, &epochs).is_none());
        let mut keep = || {
            let version = Version::allocate(2 * BYTES);
            account.add(2 * BYTES);
            // SAFETY: nobody has ever known it.
            let kept = unsafe { recycler.keep(version, 2 * BYTES, &account, &epochs) };
            if !kept {
                account.subtract(2 * BYTES);
                // SAFETY: as above.
                unsafe { Version::free(version.cast(), 2 * BYTES) };
            }
            kept
        };
        assert!(!keep() && keep());
        recycler.empty(&account, &epochs.pin());
        epochs.collect();
        assert_eq!((account.used(), epochs.garbage_bytes()), (0, 0));
    }

    #[test]
    fn what_others_may_look_at_is_left_to_the_epochs() {
        let (mut recycler, account, epochs) = world(1000);
        (0..3).for_each(|_| _ = retire(&mut recycler, &account, &epochs));
        recycler.empty(&account, &epochs.pin());
        assert_eq!((account.used(), epochs.garbage_bytes()), (0, 3 * BYTES as u64));
        epochs.collect();
        assert_eq!(epochs.garbage_bytes(), 0);
    }

    #[test]
    fn what_is_kept_is_counted_to_the_byte() {
        let (mut recycler, account, epochs) = world(1000);
        (0..BATCH).for_each(|_| _ = retire(&mut recycler, &account, &epochs));
        assert_eq!((recycler.retired_bytes, recycler.ready_bytes), (BATCH * BYTES, 0));
        let first = recycler.take(BYTES, &epochs).expect("a batch is ready");
        assert_eq!((recycler.retired_bytes, recycler.ready_bytes), (0, (BATCH - 1) * BYTES));
        let second = recycler.take(BYTES, &epochs).expect("a batch is ready");
        assert_eq!(recycler.ready_bytes, (BATCH - 2) * BYTES);
        recycler.put_back(first, BYTES);
        recycler.put_back(second, BYTES);
        assert_eq!((recycler.retired_bytes, recycler.ready_bytes), (0, BATCH * BYTES));
        // Of what comes later nothing is ready.
        (0..BATCH + 3).for_each(|_| _ = retire(&mut recycler, &account, &epochs));
        assert!(recycler.take(BYTES, &epochs).is_some_and(|version| {
            recycler.put_back(version, BYTES);
            true
        }));
        assert_eq!((recycler.retired_bytes, recycler.ready_bytes), (3 * BYTES, 2 * BATCH * BYTES));
        recycler.empty(&account, &epochs.pin());
        assert_eq!((recycler.retired_bytes, recycler.ready_bytes), (0, 0));
        epochs.collect();
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn versions_of_all_written_sizes_are_kept_and_no_others() {
        let (mut recycler, account, epochs) = world(1 << 20);
        for bytes in [0, SIZE_STEP, SIZE_STEP + 8, WRITTEN_BYTES_MAX, WRITTEN_BYTES_MAX + SIZE_STEP] {
            let version = Version::allocate(bytes.max(SIZE_STEP));
            // SAFETY: nobody has ever known it.
            let kept = unsafe { recycler.keep(version, bytes, &account, &epochs) };
            assert_eq!(kept, bytes == SIZE_STEP || bytes == WRITTEN_BYTES_MAX, "{bytes}");
            if !kept {
                // SAFETY: as above.
                unsafe { Version::free(version.cast(), bytes.max(SIZE_STEP)) };
            }
        }
        recycler.stamp(&epochs);
        assert!(recycler.take(WRITTEN_BYTES_MAX + SIZE_STEP, &epochs).is_none());
        let longest = recycler.take(WRITTEN_BYTES_MAX, &epochs).expect("the longest");
        recycler.put_back(longest, WRITTEN_BYTES_MAX);
        account.add(SIZE_STEP + WRITTEN_BYTES_MAX);
        recycler.empty(&account, &epochs.pin());
    }
}
