//! [`Llama::excerpt`]: of a page that is not in memory, what may hold one key, read past the cache.
//!
//! A page that is updated at random between two reads of it consists of many fragments, and to read it all takes as many reads of the device. But each
//! fragment above the full one holds a few keys, of which a [`Filter`] is in memory. Whoever wants one record reads the full fragment and those that may have its
//! key. What comes of that is a page with holes: it is shown to nobody else.
//!
//! Nor need a page of which all has been read be in memory afterwards: it would push out another. Where it will be wanted again soon it is better loaded. So excerpts are
//! a matter of memory that has no room for it, and of pages that were not read lately: as with 2Q's list of those that were seen once, the second time it is loaded.
//!
//! ## Invariants
//!
//! - **X1** An excerpt is the page as it was at one moment, that at which the list of its fragments was read: deltas are copied, and the list read, under one guard in which the
//!   mapping word has not changed, and fragments are never changed.
//! - **X2** What is left out does not hold the key: L3 of `lists`; and each fragment that was read names the one before it in the list.

use crate::error::LlamaError;
use crate::flash_address::FlashAddress;
use crate::fragments::Filter;
use crate::llama::{Llama, chain};
use crate::load::missing_in;
use crate::loading::LoadTicket;
use crate::node::PageDescriptor;
use crate::page_id::PageId;
use crate::page_reader::{Chosen, Extent, Wanted};
use crate::reading::{InFlight, ReadFragment};
use crate::sync::{AtomicU64, Ordering};
use std::cell::{Cell, RefCell};
use std::time::Instant;

/// Memory for one page in so many bytes of the budget is remembered as read lately: about as many as it can hold.
const BYTES_A_PAGE: u64 = 8 << 10;
/// Among so many places of a page to be remembered in.
const WAYS: usize = 4;

/// What a page says of one key, from [`Llama::excerpt`]. It lies where it was read to.
pub struct Excerpt<'r> {
    /// Newest first: those that lay in memory, and those that were read. The last is the base's.
    payloads: Vec<&'r [u8]>,
    descriptor: PageDescriptor<'r>,
    chosen: &'r Chosen,
}

impl Excerpt<'_> {
    /// The payloads of its nodes, the newest first; the last is the base's.
    ///
    /// ```
    /// # fn example(excerpt: &deuteron_llama::Excerpt<'_>) {
    /// assert!(excerpt.payloads().count() > 0);
    /// # }
    /// ```
    pub fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        self.payloads.iter().copied()
    }

    /// Of the base.
    ///
    /// ```
    /// # fn example(excerpt: &deuteron_llama::Excerpt<'_>) {
    /// println!("a page of tree {}", excerpt.descriptor().tree);
    /// # }
    /// ```
    pub fn descriptor(&self) -> PageDescriptor<'_> {
        self.descriptor
    }

    /// Whether it says all that the page does of a key with these [bits](crate::AccessMethod::filter): surely of one that it was read for.
    ///
    /// ```
    /// # fn example(excerpt: &deuteron_llama::Excerpt<'_>) {
    /// if excerpt.covers(1 << 3) {
    ///     // A key with this bit that is not there is not in the page.
    /// }
    /// # }
    /// ```
    pub fn covers(&self, bits: Filter) -> bool {
        self.chosen.has_all(|filter| may_hold(filter, bits))
    }
}

/// Whether a fragment of this filter may hold a key of these bits.
fn may_hold(filter: Filter, bits: Filter) -> bool {
    filter & bits == bits
}

/// Keys whose excerpts are [read](Llama::excerpts): which they are besides the first, and who is told.
pub trait ExcerptReads {
    /// The keys that are wanted besides the first, those of a page following each other. Asked for while the first are being read.
    fn more(&mut self) -> Vec<(PageId, Filter)>;

    /// Is told what a page says of all keys that it was wanted for with each other.
    fn take(&mut self, page: PageId, excerpt: &Excerpt<'_>);
}

/// Pages of which an excerpt was made lately.
pub(crate) struct Lately {
    /// A page has a place in one of these.
    sets: Box<[[AtomicU64; WAYS]]>,
    /// Which of its places the next page takes, whatever it is of: so of pages that are wanted in turns, and are more than there are places for,
    /// some are found all the same.
    turn: AtomicU64,
}

impl Lately {
    pub(crate) fn new(memory_bytes: u64) -> Lately {
        let count = (memory_bytes / BYTES_A_PAGE / WAYS as u64).clamp(1, 1 << 14);
        let sets = (0..count).map(|_| std::array::from_fn(|_| AtomicU64::new(0))).collect();
        Lately { sets, turn: AtomicU64::new(0) }
    }

    /// Notes `page`; whether it was noted.
    fn note(&self, page: PageId) -> bool {
        const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
        let set = page.0.wrapping_mul(SPREAD) >> 32;
        let set = &self.sets[set as usize % self.sets.len()];
        // Relaxed: hints.
        if set.iter().any(|place| place.load(Ordering::Relaxed) == page.0) {
            return true;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed).wrapping_mul(SPREAD);
        set[(turn >> 32) as usize % WAYS].store(page.0, Ordering::Relaxed);
        false
    }
}

/// What is read of a page, and what lies above it in memory.
struct Plan {
    begun: Instant,
    chosen: Chosen,
    /// Payloads, newest first.
    copies: Vec<Box<[u8]>>,
}

/// What for a page is read.
#[expect(
    clippy::large_enum_variant,
    reason = "few live at a time, and an allocation for each would cost more"
)]
enum Purpose<'l> {
    /// With what is read, and the nodes that lie above, newest first.
    Excerpt(Plan),
    /// What is missing from this address on, since when it is read.
    Load(LoadTicket<'l>, FlashAddress, Instant),
}

impl Llama {
    /// Reads what of `page` may hold a key whose [bits](crate::AccessMethod::filter) are these, without making the page resident, and gives it to `read`. `None` if memory has room for the
    /// page, or it was asked for lately, and if anything is in the way: [load](Llama::load) it then. Blocks on the
    /// device; to be called without a guard.
    ///
    /// The excerpt is the page as it was at some moment during the call, but for what cannot concern the key. Whether it still was the right page, its descriptor and its payloads say.
    ///
    /// # Panics
    /// If `page` was never allocated.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// // There is nothing of it on flash.
    /// assert!(llama.excerpt(llama.allocate(), 1, |_| ()).is_none());
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn excerpt<R>(&self, page: PageId, bits: Filter, read: impl FnOnce(&Excerpt<'_>) -> R) -> Option<R> {
        let plan = self.plan(&[(page, bits)], self.now())?;
        let (mut found, mut take) = (None, Some(read));
        let wanted = vec![Wanted { page, extent: Extent::Chosen(plan.chosen.clone()), purpose: plan }];
        self.read_pages(wanted, None, InFlight::Many, &mut |_, plan, read| {
            found = take.take().and_then(|take| self.with_excerpt(&plan, read, take));
        });
        found
    }

    /// As [`Llama::excerpt`] for each of several keys, all reads in flight together: for those that are wanted `first` and for those that `keys` wants besides, which it is asked for when the
    /// first reads are under way. Keys of one page that follow each other have one excerpt, of which `keys` is told. What is better loaded is loaded meanwhile; of that, and of what cannot be
    /// read, it is not told.
    ///
    /// # Panics
    /// If one of the pages was never allocated.
    ///
    /// ```
    /// # use deuteron_llama::{Excerpt, ExcerptReads, Filter, Llama, PageId};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// struct Keys(Vec<(PageId, Filter)>);
    ///
    /// impl ExcerptReads for Keys {
    ///     fn more(&mut self) -> Vec<(PageId, Filter)> {
    ///         std::mem::take(&mut self.0)
    ///     }
    ///
    ///     fn take(&mut self, page: PageId, _: &Excerpt<'_>) {
    ///         panic!("there is nothing of {page} on flash");
    ///     }
    /// }
    ///
    /// let mut keys = Keys(vec![(llama.allocate(), 1), (llama.allocate(), 1)]);
    /// llama.excerpts(&[(llama.allocate(), 1)], &mut keys);
    /// assert!(keys.0.is_empty());
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn excerpts(&self, first: &[(PageId, Filter)], keys: &mut dyn ExcerptReads) {
        let wanted = self.wanted(first);
        let count = Cell::new(wanted.len());
        let keys = RefCell::new(keys);
        let mut more = || {
            let more = self.wanted(&keys.borrow_mut().more());
            count.set(count.get() + more.len());
            more
        };
        self.read_pages(wanted, Some(&mut more), InFlight::Many, &mut |page, purpose, read| match purpose {
            Purpose::Excerpt(plan) => {
                self.with_excerpt(&plan, read, |excerpt| keys.borrow_mut().take(page, excerpt));
            }
            // Why it cannot be read, whoever needs it will hear.
            Purpose::Load(_ticket, address, begun) => drop(self.take_loaded(page, address, begun, read)),
        });
        if count.get() > 1 {
            self.counters.loads_together.add(1);
        }
    }

    /// What is read for each page of these keys.
    fn wanted(&self, keys: &[(PageId, Filter)]) -> Vec<Wanted<Purpose<'_>>> {
        self.table.prefetch_fragments(keys.iter().map(|&(page, _)| page));
        let begun = self.now();
        let groups = keys.chunk_by(|left, right| left.0 == right.0);
        let wanted = groups.filter_map(|group| {
            let page = group[0].0;
            Some(match self.plan(group, begun) {
                Some(plan) => {
                    let extent = Extent::Chosen(plan.chosen.clone());
                    Wanted { page, extent, purpose: Purpose::Excerpt(plan) }
                }
                None => {
                    // Looked at with the ticket: whoever had it before may have loaded the page.
                    let ticket = self.loading.begin(page)?;
                    let address = self.missing(page)?;
                    Wanted {
                        page,
                        extent: Extent::Whole(address),
                        purpose: Purpose::Load(ticket, address, begun),
                    }
                }
            })
        });
        wanted.collect()
    }

    /// What to read of the page of these keys, if it is not to be loaded (X1).
    fn plan(&self, keys: &[(PageId, Filter)], begun: Instant) -> Option<Plan> {
        if self.has_room() {
            return None;
        }
        let page = keys[0].0;
        let guard = self.epochs.pin();
        let snapshot = self.snapshot(page, &guard);
        let newest = missing_in(snapshot)?;
        let fragments = self.table.fragments_up_to(page, newest)?;
        let chosen = Chosen::new(fragments, |filter| keys.iter().any(|&(_, bits)| may_hold(filter, bits)));
        if self.lately.note(page) {
            return None;
        }
        let copies =
            snapshot.head().into_iter().flat_map(chain).map(|delta| delta.payload().into()).collect();
        // Since the word has been the same, the list was that of what lies below the copies.
        (self.snapshot(page, &guard) == snapshot).then_some(Plan { begun, chosen, copies })
    }

    /// Gives the excerpt that consists of the fragments read, and of what lies above them, to `take`; `None` if they cannot be read, or hold what is no page.
    fn with_excerpt<R>(
        &self,
        plan: &Plan,
        read: Result<&[ReadFragment<'_>], LlamaError>,
        take: impl FnOnce(&Excerpt<'_>) -> R,
    ) -> Option<R> {
        let Plan { begun, chosen, copies } = plan;
        let fragments = read.ok()?;
        let mut payloads: Vec<&[u8]> = Vec::with_capacity(copies.len() + fragments.len());
        payloads.extend(copies.iter().map(|copy| &**copy));
        payloads.extend(fragments.iter().flat_map(ReadFragment::payloads));
        let descriptor = fragments.last()?.fragment().descriptor()?;
        // As each node that is read: see `build`.
        if let Some(method) = self.access_method() {
            let (base, deltas) = payloads[copies.len()..].split_last()?;
            method.check_base(descriptor, base).ok()?;
            deltas.iter().try_for_each(|delta| method.check_delta(delta, Some(base))).ok()?;
        }
        self.counters.excerpts.add(1);
        self.histograms.excerpt_nanoseconds.record_time(self.now() - *begun);
        self.counters.fragments_spared.add(chosen.spared() as u64);
        Some(take(&Excerpt { payloads, descriptor, chosen }))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::flush::AccessMethod;
    use crate::node::OwnedNode;
    use crate::options::Options;
    use crate::test_bed::{flush, open, put};
    use deuteron_device::{FaultKind, FaultPlan, Operation, SimulatedDisk};
    use deuteron_epoch::Epochs;
    use std::sync::{Arc, Weak};

    /// The first byte of a delta says which bit it has.
    struct FirstByte;

    impl AccessMethod for FirstByte {
        fn consolidate(&self, _: PageId) {}

        fn filter(&self, delta: &[u8]) -> Filter {
            1 << delta[0]
        }
    }

    const FRAGMENTS: u8 = 6;
    /// Pages of [`FRAGMENTS`] fragments, each delta with a bit of its own.
    const PAGES: u64 = 12;

    /// A store of such pages, of which none is in memory, and memory has room for none.
    fn scattered(disk: &SimulatedDisk) -> (Llama, Vec<PageId>, Arc<FirstByte>) {
        let options = Options {
            fragments_max: 16,
            memory_bytes: 1 << 20,
            segment_bytes: 256 << 10,
            ..Options::tiny_for_tests()
        };
        let llama = Llama::open(Arc::new(disk.directory()), options, Epochs::new()).unwrap().0;
        let method = Arc::new(FirstByte);
        let weak: Weak<FirstByte> = Arc::downgrade(&method);
        llama.set_access_method(weak);
        let pages: Vec<_> = (0..PAGES).map(|_| llama.allocate()).collect();
        pages.iter().for_each(|&page| put(&llama, page, &[0; 4000]));
        for layer in 1..FRAGMENTS {
            flush(&llama);
            evict(&llama);
            pages.iter().for_each(|&page| delta(&llama, page, &[layer; 40]));
        }
        flush(&llama);
        evict(&llama);
        (llama, pages, method)
    }

    fn delta(llama: &Llama, page: PageId, payload: &[u8]) {
        let guard = llama.pin();
        llama.install(page, llama.snapshot(page, &guard), OwnedNode::delta(payload), &guard).unwrap();
    }

    fn evict(llama: &Llama) {
        while llama.memory_bytes() > 0 {
            llama.evict_step(u64::MAX);
        }
    }

    /// Fills memory with what cannot leave it.
    fn fill(llama: &Llama) {
        while llama.has_room() {
            let page = llama.allocate();
            put(llama, page, &[9; 16 << 10]);
        }
    }

    /// The first bytes of an excerpt's nodes, newest first.
    fn of(excerpt: &Excerpt<'_>) -> Vec<u8> {
        excerpt.payloads().map(|payload| payload[0]).collect()
    }

    #[test]
    fn an_excerpt_has_the_base_and_what_may_hold_the_key() {
        let disk = SimulatedDisk::new(1);
        let (llama, pages, _method) = scattered(&disk);
        assert_eq!(llama.excerpt(pages[0], 1 << 3, of), None, "there is room for the page");
        fill(&llama);
        let reads = disk.count(Operation::Read);
        assert_eq!(llama.excerpt(pages[0], 1 << 3, of), Some(vec![3, 0]));
        assert_eq!(disk.count(Operation::Read) - reads, 2);
        assert_eq!(llama.excerpt(pages[1], 1 << 9, of), Some(vec![0]));
        assert_eq!(llama.excerpt(pages[2], 0, of), Some(vec![5, 4, 3, 2, 1, 0]), "any may hold the key");
        // What was put on it meanwhile is there, of whatever key.
        delta(&llama, pages[3], &[11; 40]);
        delta(&llama, pages[3], &[12; 40]);
        assert_eq!(llama.excerpt(pages[3], 1 << 5, of), Some(vec![12, 11, 5, 0]));
        let statistics = llama.statistics();
        assert_eq!((statistics.excerpts, statistics.fragments_spared, statistics.loads), (4, 4 + 5 + 4, 0));
    }

    #[test]
    fn a_page_that_was_read_lately_is_loaded() {
        let (llama, pages, _method) = scattered(&SimulatedDisk::new(2));
        fill(&llama);
        assert!(llama.excerpt(pages[0], 2, |_| ()).is_some());
        assert!(llama.excerpt(pages[0], 4, |_| ()).is_none());
        llama.load(pages[0]).unwrap();
        assert!(llama.excerpt(pages[0], 2, |_| ()).is_none(), "it is in memory");
    }

    #[test]
    fn of_pages_wanted_in_turns_all_are_found_in_the_end_however_few_places_there_are() {
        let lately = Lately::new(BYTES_A_PAGE);
        assert_eq!([1, 1, 2, 1].map(|page| lately.note(PageId(page))), [false, true, false, true]);
        let lately = Lately::new(64 * BYTES_A_PAGE);
        assert_eq!(lately.sets.len() * WAYS, 64);
        let mut wanted: Vec<u64> = (1..=150).collect();
        let mut rounds = 0;
        while !wanted.is_empty() {
            // What is found is loaded, and not asked for again.
            wanted.retain(|&page| !lately.note(PageId(page)));
            rounds += 1;
        }
        assert!(rounds < 20, "{rounds}");
    }

    /// Some keys, and what was told of each of their pages: its nodes, as [`of`] has them, and which of the [`FRAGMENTS`] bits it covers.
    #[derive(Default)]
    struct Keys {
        more: Vec<(PageId, Filter)>,
        told: Vec<(PageId, Vec<u8>, Vec<u8>)>,
    }

    impl ExcerptReads for Keys {
        fn more(&mut self) -> Vec<(PageId, Filter)> {
            std::mem::take(&mut self.more)
        }

        fn take(&mut self, page: PageId, excerpt: &Excerpt<'_>) {
            let nodes = of(excerpt);
            let covered = (0..FRAGMENTS).filter(|layer| excerpt.covers(1 << layer)).collect();
            self.told.push((page, nodes, covered));
        }
    }

    #[test]
    fn several_are_read_together_and_those_of_one_page_as_one() {
        let disk = SimulatedDisk::new(3);
        let (llama, pages, _method) = scattered(&disk);
        fill(&llama);
        assert!(llama.excerpt(pages[4], 2, |_| ()).is_some());
        let bit = |layer: u8| 1 << layer;
        let keys = [
            (pages[0], bit(3)),
            (pages[1], bit(2)),
            (pages[1], bit(5)),
            // Read lately.
            (pages[4], bit(1)),
            (pages[5], bit(1)),
            (pages[6], bit(9)),
        ];
        let before = llama.statistics();
        let (first, more) = keys.split_at(3);
        let mut keys = Keys { more: more.to_vec(), ..Keys::default() };
        llama.excerpts(first, &mut keys);
        keys.told.sort();
        let expected = [
            (pages[0], vec![3, 0], vec![0, 3]),
            (pages[1], vec![5, 2, 0], vec![0, 2, 5]),
            (pages[5], vec![1, 0], vec![0, 1]),
            (pages[6], vec![0], vec![0]),
        ];
        assert_eq!(keys.told, expected);
        let after = llama.statistics();
        assert_eq!((after.excerpts - before.excerpts, after.loads - before.loads), (4, 1));
        assert_eq!(after.fragments_spared - before.fragments_spared, 4 + 3 + 4 + 5);
        assert!(!llama.is_missing(pages[4]) && llama.is_missing(pages[0]));
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_load_which_says_why() {
        let disk = SimulatedDisk::new(4);
        let (llama, pages, _method) = scattered(&disk);
        fill(&llama);
        disk.set_faults(FaultPlan::new().fail(Operation::Read, 1, FaultKind::Refuse));
        assert!(llama.excerpt(pages[0], 1 << 3, |_| ()).is_none());
        assert!(llama.excerpt(pages[1], 1 << 3, |_| ()).is_some());
    }

    #[test]
    fn without_an_access_method_nothing_is_known_of_any_fragment() {
        let llama = open(Options { memory_bytes: 1 << 20, fragments_max: 16, ..Options::tiny_for_tests() });
        let page = llama.allocate();
        put(&llama, page, &[0; 4000]);
        for layer in 1..FRAGMENTS {
            flush(&llama);
            evict(&llama);
            delta(&llama, page, &[layer; 40]);
        }
        flush(&llama);
        evict(&llama);
        fill(&llama);
        assert!(llama.excerpt(page, 1, |_| ()).is_some());
        assert_eq!(llama.statistics().fragments_spared, 0);
    }
}
