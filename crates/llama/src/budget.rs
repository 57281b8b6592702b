//! What memory pages may have: the budget, what is counted beside them, and when memory is short.

use crate::llama::Llama;
use crate::sync::Ordering;
use deuteron_pool::{IdleExcess, Part};

/// From so large a budget on what the pool keeps free is counted, and what is in the way leaves first: some chunks.
const POOL_BUDGET_MIN: u64 = 32 << 20;

impl Llama {
    /// Bytes that resident pages take, by the slots in which their nodes lie. Retired nodes are in
    /// [`Epochs::garbage_bytes`](deuteron_epoch::Epochs::garbage_bytes) instead.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.sum()
    }

    /// Counts anew what memory there is besides the resident pages, which is taken from what they may have: the entries of the
    /// mapping table, what the access method says that its indexes take, the places of pages that no image names yet, what is retired and not yet freed, and up to an eighth of the budget of what
    /// the pool keeps for nodes to come beyond an eighth of what nodes take. The last two come and go as pages do, and count for half of the budget at most; and a
    /// quarter of it is always left to the pages. Looks at a few dozen words: not for every operation.
    ///
    /// ```
    /// # use deuteron_llama::{Llama, Options};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = Options { memory_bytes: 8 << 20, ..Options::default() };
    /// # let (llama, _) = Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// assert_eq!(llama.pages_bytes_max(), 8 << 20);
    /// llama.recount(4 << 20);
    /// assert!((3 << 20..=4 << 20).contains(&llama.pages_bytes_max()));
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn recount(&self, index_bytes: u64) {
        let budget = self.budget.load(Ordering::Relaxed);
        let idle = if self.looks_at_pool() {
            deuteron_pool::idle_excess(Part::Pages, self.memory_bytes() + index_bytes, budget)
        } else {
            IdleExcess::default()
        };
        if let Some(flusher) = self.try_fill() {
            self.places_bytes.store(flusher.images.places_bytes(), Ordering::Relaxed);
        }
        let passing = self.epochs.garbage_bytes() + idle.counted;
        let lasting = self.tables_bytes() + index_bytes;
        // Relaxed: a figure.
        self.pages_bytes_max.store(budget - beside_pages(budget, lasting, passing), Ordering::Relaxed);
        self.idle_bytes.store(idle.counted + idle.untidy, Ordering::Relaxed);
    }

    /// How much more there is of pages than may be, with all that lies idle beyond an eighth, in bytes: what is in the way of others is to be moved ([`Llama::pack_stranded_step`]).
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// llama.recount(0);
    /// assert_eq!(llama.untidy_bytes(), 0);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn untidy_bytes(&self) -> u64 {
        let idle = self.idle_bytes.load(Ordering::Relaxed);
        (self.memory_bytes() + idle).saturating_sub(self.high_water()).min(idle)
    }

    /// Whether it matters what lies idle in the pool, and where. With a small budget that depends on the other stores of the process, by the chunk.
    pub(crate) fn looks_at_pool(&self) -> bool {
        self.budget.load(Ordering::Relaxed) >= POOL_BUDGET_MIN
    }

    /// Changes what [`Options::memory_bytes`](crate::Options::memory_bytes) has set at first, as of the next [`Llama::recount`]. What rows and images may take of it stays.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options { memory_bytes: 8 << 20, ..deuteron_llama::Options::default() };
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// llama.set_memory_budget(16 << 20);
    /// llama.recount(0);
    /// assert!(llama.pages_bytes_max() > 8 << 20);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn set_memory_budget(&self, bytes: u64) {
        // Relaxed: a figure.
        self.budget.store(bytes, Ordering::Relaxed);
    }

    /// The budget with which memory would just not be [short](Llama::high_water), by what was [counted](Llama::recount) last.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options { memory_bytes: 8 << 20, ..deuteron_llama::Options::default() };
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// llama.recount(1 << 20);
    /// let empty = llama.memory_budget_taken();
    /// assert!((1 << 20..2 << 20).contains(&empty));
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn memory_budget_taken(&self) -> u64 {
        let beside = self.budget.load(Ordering::Relaxed).saturating_sub(self.pages_bytes_max());
        let pages = self.memory_bytes();
        beside + pages + pages.div_ceil(15)
    }

    /// Bytes that the mapping table takes, and the places of pages that no image named yet when it was [counted](Llama::recount) last.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// let before = llama.tables_bytes();
    /// llama.allocate();
    /// assert_eq!(llama.tables_bytes() - before, 32);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn tables_bytes(&self) -> u64 {
        // Relaxed: a figure.
        self.table.bytes(self.pages.end().0) + self.places_bytes.load(Ordering::Relaxed)
    }

    /// About what pages would take if all of them were in memory, in bytes: those that are on flash as they lie there, and a sixteenth for the slots; or what is in memory, if
    /// that is more, as long as not all is on flash or nodes have room for what comes.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// # let (page, guard) = (llama.allocate(), llama.pin());
    /// # let root = deuteron_llama::PageDescriptor { tree: 1, low_key: b"", root: true };
    /// let root = deuteron_llama::OwnedNode::base(&[7; 5000], root, &[]);
    /// llama.install(page, llama.snapshot(page, &guard), root, &guard).expect("nobody else knows the page");
    /// # drop(guard);
    /// llama.flush_step()?;
    /// while llama.evict_step(u64::MAX).pages > 0 {}
    /// assert_eq!(llama.memory_bytes(), 0);
    /// assert!(llama.whole_bytes() > 5000);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn whole_bytes(&self) -> u64 {
        // Relaxed: a figure.
        let live = self.live_bytes.load(Ordering::Relaxed);
        (live + live / 16).max(self.memory_bytes())
    }

    /// How many bytes the resident pages may take: the budget but for what was [counted](Llama::recount) last.
    #[inline]
    pub fn pages_bytes_max(&self) -> u64 {
        self.pages_bytes_max.load(Ordering::Relaxed)
    }

    /// Whether the resident pages exceed what they may have (to within a sixteenth of the budget); two loads.
    #[inline]
    pub fn over_budget(&self) -> bool {
        self.memory.about() > self.pages_bytes_max()
    }

    /// Whether they exceed it by more than so many bytes.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// assert!(!llama.is_over_budget_by(1 << 20));
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    #[inline]
    pub fn is_over_budget_by(&self, bytes: u64) -> bool {
        self.memory.about() > self.pages_bytes_max() + bytes
    }

    /// From so many bytes of resident pages on memory is short: what is flushed leaves it, if it is not in use.
    pub fn high_water(&self) -> u64 {
        self.pages_bytes_max() / 16 * 15
    }

    /// Whether a page that is loaded pushes out no other soon: memory is not [short](Llama::high_water), nor about to be.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// assert!(llama.has_room());
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    #[inline]
    pub fn has_room(&self) -> bool {
        self.memory.about() < self.pages_bytes_max() / 8 * 7
    }

    /// Whether at least half of what pages may have is free (about).
    #[inline]
    pub fn has_spare_memory(&self) -> bool {
        self.memory.about() < self.pages_bytes_max() / 2
    }
}

/// What is taken from the pages' share of a budget: a quarter of it is left to them, and what comes and goes counts for half of it at most.
fn beside_pages(budget: u64, lasting: u64, passing: u64) -> u64 {
    (lasting + passing.min(budget / 2)).min(budget / 4 * 3)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::test_bed::{flush, open, put};

    #[test]
    fn a_quarter_of_the_budget_is_left_to_pages_and_half_at_most_counts_what_passes() {
        for (lasting, passing, taken) in [(100, 50, 150), (100, 400, 500), (100, 401, 500), (0, 9, 9)] {
            assert_eq!(beside_pages(800, lasting, passing), taken);
        }
        assert_eq!(
            (beside_pages(800, 599, 0), beside_pages(800, 601, 0), beside_pages(800, 600, 50)),
            (599, 600, 600)
        );
    }

    #[test]
    fn what_lies_beside_the_pages_is_counted_anew() {
        let llama = open(Options { memory_bytes: 1 << 20, ..Options::tiny_for_tests() });
        let pages: Vec<_> = (0..10).map(|_| llama.allocate()).collect();
        let left = |index_bytes| {
            llama.recount(index_bytes);
            (1 << 20) - llama.pages_bytes_max()
        };
        // Of ten pages, and of identifier 0: 80 bytes each.
        assert_eq!(left(1000), 11 * 32 + 1000);
        pages.iter().for_each(|&page| put(&llama, page, &[7; 500]));
        flush(&llama);
        let places = llama.lock_flusher().images.places_bytes();
        assert!(places >= 10 * 64);
        assert_eq!(left(1000), 11 * 32 + 1000 + places);
        // What is replaced is kept for whoever may read it.
        let guard = llama.pin();
        pages.iter().for_each(|&page| put(&llama, page, &[8; 500]));
        let garbage = llama.epochs.garbage_bytes();
        assert!(garbage >= 5000);
        assert_eq!(left(0), 11 * 32 + places + garbage);
        // While somebody flushes the places are what they were.
        let flusher = llama.lock_flusher();
        assert_eq!(left(0), 11 * 32 + places + garbage);
        drop((flusher, guard));
    }

    #[test]
    #[cfg_attr(miri, ignore = "nodes do not lie in the pool")]
    fn what_the_pool_keeps_free_counts_from_a_budget_of_some_chunks_on() {
        for (budget, is_counted) in [(POOL_BUDGET_MIN - 1, false), (POOL_BUDGET_MIN, true)] {
            let llama = open(Options { memory_bytes: budget, ..Options::tiny_for_tests() });
            let pages: Vec<_> = (0..100).map(|_| llama.allocate()).collect();
            let guard = llama.pin();
            (0..2).for_each(|_| pages.iter().for_each(|&page| put(&llama, page, &[7; 1000])));
            llama.recount(0);
            let without = llama.table.bytes(101) + llama.epochs.garbage_bytes();
            let beside = budget - llama.pages_bytes_max();
            assert_eq!((beside > without, beside >= without), (is_counted, true), "{beside} {without}");
            drop(guard);
        }
    }

    #[test]
    fn memory_is_short_over_what_pages_may_have_and_spare_below_half_of_it() {
        let llama = open(Options { memory_bytes: 1 << 20, ..Options::tiny_for_tests() });
        // Large enough to be told at once.
        put(&llama, llama.allocate(), &[7; 20_000]);
        let about = llama.memory.about();
        assert!(about > 20_000 && about == llama.memory_bytes());
        let is_short = |most: u64| {
            llama.pages_bytes_max.store(most, Ordering::Relaxed);
            assert_eq!(llama.pages_bytes_max(), most);
            (llama.over_budget(), llama.has_spare_memory())
        };
        assert_eq!(is_short(about), (false, false));
        assert_eq!(is_short(about - 1), (true, false));
        assert_eq!(is_short(2 * about), (false, false));
        assert_eq!(is_short(2 * about + 2), (false, true));
        is_short(1600);
        assert_eq!(llama.high_water(), 1500);
    }
}
