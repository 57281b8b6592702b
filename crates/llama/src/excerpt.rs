//! [`Llama::excerpt`]: of a page that is not in memory, what may hold one key, read past the cache.
//!
//! A page that is updated at random between two reads of it consists of many fragments, and to read it all takes as many reads of the device. But each
//! fragment above the full one holds a few keys, of which a [`Filter`] is in memory. Whoever wants one record reads the full fragment and those that may have its
//! key. What comes of that is a page with holes: it is shown to nobody else.
//!
//! It is not worth while where the page will be wanted again soon: then it is better loaded. So it is a matter of memory that has no room for it,
//! and of pages that were not read lately: as with 2Q's list of those that were seen once, the second time it is loaded.
//!
//! ## Invariants
//!
//! - **X1** An excerpt is the page as it was at one moment, that at which the list of its fragments was read: deltas are copied, and the list read, under one guard in which the
//!   mapping word has not changed, and fragments are never changed.
//! - **X2** What is left out does not hold the key: L3 of `lists`; and each fragment that was read names the one before it in the list.

use crate::flash_address::FlashAddress;
use crate::fragments::{Filter, Fragments};
use crate::llama::{Llama, chain};
use crate::load::{OwnedChain, missing_in};
use crate::node::{NodeKind, NodeRef, OwnedNode};
use crate::page_id::PageId;
use crate::segments::{InFlight, ReadFragment};
use crate::snapshot::Snapshot;
use crate::sync::{AtomicU64, Ordering};
use deuteron_epoch::Guard;

/// So many fragments must be spared.
const SPARED_MIN: usize = 2;
/// Memory for one page in so many bytes of the budget is remembered as read lately: about as many as it can hold.
const BYTES_A_PAGE: u64 = 8 << 10;

/// What a page says of one key, from [`Llama::excerpt`].
pub struct Excerpt {
    chain: OwnedChain,
}

impl Excerpt {
    /// The newest node.
    ///
    /// ```
    /// # fn example(excerpt: &deuteron_llama::Excerpt) {
    /// assert!(!excerpt.head().is_partial());
    /// # }
    /// ```
    pub fn head(&self) -> NodeRef<'_> {
        self.chain.head()
    }
}

/// Pages of which an excerpt was made lately; where two have the same place, the last.
pub(crate) struct Lately {
    pages: Box<[AtomicU64]>,
}

impl Lately {
    pub(crate) fn new(memory_bytes: u64) -> Lately {
        let count = (memory_bytes / BYTES_A_PAGE).clamp(1, 1 << 16);
        Lately { pages: (0..count).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Notes `page`; whether it was noted.
    fn note(&self, page: PageId) -> bool {
        let place = page.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        // Relaxed: a hint.
        self.pages[place as usize % self.pages.len()].swap(page.0, Ordering::Relaxed) == page.0
    }
}

/// What is read, and what lies above it in memory.
struct Plan {
    /// All that the page consists of.
    fragments: Fragments,
    /// Which of them are read, oldest first.
    chosen: Vec<usize>,
    /// Newest first.
    copies: Vec<OwnedNode>,
}

impl Llama {
    /// Reads what of `page` may hold a key whose [bits](crate::AccessMethod::filter) are these, without making the page resident. `None` if that would not
    /// spare reads worth speaking of, if memory has room for the page, or it was asked for lately, and if anything is in the way: [load](Llama::load) it then. Blocks on the
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
    /// assert!(llama.excerpt(llama.allocate(), 1).is_none());
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn excerpt(&self, page: PageId, bits: Filter) -> Option<Excerpt> {
        // Cheap, and right of most pages where nothing is updated.
        if self.has_room() || self.table.fragment_count(page) <= SPARED_MIN {
            return None;
        }
        let plan = {
            let guard = self.epochs.pin();
            self.plan(page, bits, self.snapshot(page, &guard), &guard)?
        };
        if self.lately.note(page) {
            return None;
        }
        let addresses: Vec<FlashAddress> = plan.fragments.iter().collect();
        let wanted: Vec<FlashAddress> = plan.chosen.iter().map(|&index| addresses[index]).collect();
        let mut reading = self.store.segments.reading(wanted.iter().copied());
        let mut read: Vec<Option<ReadFragment<'_>>> = wanted.iter().map(|_| None).collect();
        reading.read(InFlight::Many, &mut |at, fragment| read[at] = fragment.ok());
        let mut fragments = Vec::with_capacity(read.len());
        for (mut fragment, &index) in read.into_iter().rev().zip(plan.chosen.iter().rev()) {
            let below = index.checked_sub(1).map(|below| addresses[below]);
            let is_right = |fragment: &mut ReadFragment<'_>| match fragment.check() {
                Ok(fragment) => fragment.page() == page && fragment.previous() == below,
                Err(_) => false,
            };
            fragments.push(fragment.take_if(is_right)?);
        }
        let mut chain = self.build(&fragments).ok()?;
        plan.copies.into_iter().rev().for_each(|copy| chain.push(copy));
        self.counters.excerpts.add(1);
        self.counters.fragments_spared.add((addresses.len() - wanted.len()) as u64);
        self.counters.fragments_read.add(wanted.len() as u64);
        self.counters.bytes_read.add(wanted.iter().map(|address| address.length()).sum());
        Some(Excerpt { chain })
    }

    /// What to read of a page, if it is worth while (X1).
    fn plan(&self, page: PageId, bits: Filter, snapshot: Snapshot<'_>, guard: &Guard<'_>) -> Option<Plan> {
        let (newest, stub) = missing_in(snapshot)?;
        let fragments = self.table.fragments_up_to(page, newest)?;
        let chosen: Vec<usize> = (0..)
            .zip(fragments.with_filters())
            .filter(|&(index, (_, filter))| index == 0 || filter & bits == bits)
            .map(|(index, _)| index)
            .collect();
        if chosen.len() + SPARED_MIN > fragments.len() {
            return None;
        }
        let above = snapshot.head().into_iter().flat_map(chain);
        let above: Vec<NodeRef<'_>> =
            above.take_while(|node| stub.is_none_or(|stub| stub.as_ptr() != node.as_ptr())).collect();
        if above.iter().any(|node| node.kind() != NodeKind::Delta) {
            return None;
        }
        let copies = above.into_iter().map(|node| OwnedNode::delta(node.payload())).collect();
        // Since the word has been the same, the list was that of what lies below the copies.
        (self.snapshot(page, guard) == snapshot).then_some(Plan { fragments, chosen, copies })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::flush::AccessMethod;
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
            fragments_max: 8,
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
    fn of(excerpt: Option<Excerpt>) -> Option<Vec<u8>> {
        let excerpt = excerpt?;
        Some(chain(excerpt.head()).map(|node| node.payload()[0]).collect())
    }

    #[test]
    fn an_excerpt_has_the_base_and_what_may_hold_the_key() {
        let disk = SimulatedDisk::new(1);
        let (llama, pages, _method) = scattered(&disk);
        assert_eq!(of(llama.excerpt(pages[0], 1 << 3)), None, "there is room for the page");
        fill(&llama);
        let reads = disk.count(Operation::Read);
        assert_eq!(of(llama.excerpt(pages[0], 1 << 3)), Some(vec![3, 0]));
        assert_eq!(disk.count(Operation::Read) - reads, 2);
        assert_eq!(of(llama.excerpt(pages[1], 1 << 9)), Some(vec![0]));
        assert_eq!(of(llama.excerpt(pages[2], 0)), None, "all of it, so it is better loaded");
        // What was put on it meanwhile is there, of whatever key.
        delta(&llama, pages[3], &[11; 40]);
        delta(&llama, pages[3], &[12; 40]);
        assert_eq!(of(llama.excerpt(pages[3], 1 << 5)), Some(vec![12, 11, 5, 0]));
        let statistics = llama.statistics();
        assert_eq!((statistics.excerpts, statistics.fragments_spared, statistics.loads), (3, 4 + 5 + 4, 0));
    }

    #[test]
    fn a_page_that_was_read_lately_is_loaded() {
        let (llama, pages, _method) = scattered(&SimulatedDisk::new(2));
        fill(&llama);
        assert!(llama.excerpt(pages[0], 2).is_some());
        assert!(llama.excerpt(pages[0], 4).is_none());
        llama.load(pages[0]).unwrap();
        assert!(llama.excerpt(pages[0], 2).is_none(), "it is in memory");
        let lately = Lately::new(BYTES_A_PAGE);
        assert_eq!([1, 1, 2, 1].map(|page| lately.note(PageId(page))), [false, true, false, false]);
    }

    #[test]
    fn of_few_fragments_or_of_such_as_nothing_is_known_of_there_is_none() {
        let disk = SimulatedDisk::new(3);
        let (llama, pages, _method) = scattered(&disk);
        let few = llama.allocate();
        put(&llama, few, &[0; 100]);
        flush(&llama);
        evict(&llama);
        fill(&llama);
        assert!(llama.excerpt(few, 1).is_none());
        drop(llama);
        let options =
            Options { memory_bytes: 1 << 20, segment_bytes: 256 << 10, ..Options::tiny_for_tests() };
        let llama = Llama::open(Arc::new(disk.directory()), options, Epochs::new()).unwrap().0;
        fill(&llama);
        assert!(llama.excerpt(pages[0], 1 << 3).is_none());
    }

    #[test]
    fn what_cannot_be_read_is_left_to_the_load_which_says_why() {
        let disk = SimulatedDisk::new(4);
        let (llama, pages, _method) = scattered(&disk);
        fill(&llama);
        disk.set_faults(FaultPlan::new().fail(Operation::Read, 1, FaultKind::Refuse));
        assert!(llama.excerpt(pages[0], 1 << 3).is_none());
        assert!(llama.excerpt(pages[1], 1 << 3).is_some());
    }

    #[test]
    fn without_an_access_method_nothing_is_known_of_any_fragment() {
        let llama = open(Options { memory_bytes: 1 << 20, fragments_max: 8, ..Options::tiny_for_tests() });
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
        assert!(llama.excerpt(page, 1).is_none());
    }
}
