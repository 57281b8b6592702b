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
use crate::load::{OwnedChain, missing_in};
use crate::loading::LoadTicket;
use crate::node::{NodeKind, NodeRef, OwnedNode};
use crate::page_id::PageId;
use crate::page_reader::{Chosen, Extent};
use crate::segments::{InFlight, ReadFragment};
use crate::sync::{AtomicU64, Ordering};
use std::mem;
use std::ops::Range;

/// Memory for one page in so many bytes of the budget is remembered as read lately: about as many as it can hold.
const BYTES_A_PAGE: u64 = 8 << 10;
/// Among so many places of a page to be remembered in.
const WAYS: usize = 4;

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
    chosen: Chosen,
    /// Newest first.
    copies: Vec<OwnedNode>,
}

/// What for a page is read.
enum Purpose<'l> {
    /// With the nodes that lie above, newest first, and how many fragments are spared.
    Excerpt(Vec<OwnedNode>, usize),
    /// What is missing from this address on.
    Load(LoadTicket<'l>, FlashAddress),
}

impl Llama {
    /// Reads what of `page` may hold a key whose [bits](crate::AccessMethod::filter) are these, without making the page resident. `None` if memory has room for the
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
    /// assert!(llama.excerpt(llama.allocate(), 1).is_none());
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn excerpt(&self, page: PageId, bits: Filter) -> Option<Excerpt> {
        let Plan { chosen, mut copies } = self.plan(&[(page, bits)])?;
        let mut found = None;
        let spared = chosen.spared();
        self.read_pages(&[(page, Extent::Chosen(chosen))], InFlight::Many, &mut |_, read| {
            found = self.excerpt_of(mem::take(&mut copies), spared, read);
        });
        found
    }

    /// As [`Llama::excerpt`] for each of several keys, all reads in flight together. Those of one page, which follow each other, have one excerpt: `each` is told of it,
    /// and of which of `keys` it is. What is better loaded is loaded meanwhile; of that, and of what cannot be read, `each` is not told.
    ///
    /// # Panics
    /// If one of the pages was never allocated.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// llama.excerpts(&[(llama.allocate(), 1), (llama.allocate(), 1)], &mut |_, _| panic!("there is nothing of them on flash"));
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn excerpts(&self, keys: &[(PageId, Filter)], each: &mut dyn FnMut(Range<usize>, &Excerpt)) {
        let mut wanted = Vec::with_capacity(keys.len());
        let mut purposes = Vec::with_capacity(keys.len());
        self.table.prefetch_fragments(keys.iter().map(|&(page, _)| page));
        let mut end = 0;
        for group in keys.chunk_by(|left, right| left.0 == right.0) {
            let (page, places) = (group[0].0, end..end + group.len());
            end = places.end;
            let (extent, purpose) = match self.plan(group) {
                Some(Plan { chosen, copies }) => {
                    let purpose = Purpose::Excerpt(copies, chosen.spared());
                    (Extent::Chosen(chosen), purpose)
                }
                None => {
                    // Looked at with the ticket: whoever had it before may have loaded the page.
                    let Some(ticket) = self.loading.begin(page) else { continue };
                    let Some(address) = self.missing(page) else { continue };
                    (Extent::Whole(address), Purpose::Load(ticket, address))
                }
            };
            wanted.push((page, extent));
            purposes.push((Some(purpose), places));
        }
        if wanted.len() > 1 {
            self.counters.loads_together.add(1);
        }
        self.read_pages(&wanted, InFlight::Many, &mut |index, read| {
            let (purpose, places) = &mut purposes[index];
            match purpose.take().expect("a page is told of once") {
                Purpose::Excerpt(copies, spared) => {
                    if let Some(excerpt) = self.excerpt_of(copies, spared, read) {
                        each(places.clone(), &excerpt);
                    }
                }
                // Why it cannot be read, whoever needs it will hear.
                Purpose::Load(_ticket, address) => drop(self.take_loaded(wanted[index].0, address, read)),
            }
        });
    }

    /// What to read of the page of these keys, if it is not to be loaded (X1).
    fn plan(&self, keys: &[(PageId, Filter)]) -> Option<Plan> {
        if self.has_room() {
            return None;
        }
        let page = keys[0].0;
        let guard = self.epochs.pin();
        let snapshot = self.snapshot(page, &guard);
        let (newest, stub) = missing_in(snapshot)?;
        let fragments = self.table.fragments_up_to(page, newest)?;
        let chosen = Chosen::new(fragments, |filter| keys.iter().any(|&(_, bits)| filter & bits == bits));
        let above = snapshot.head().into_iter().flat_map(chain);
        let above: Vec<NodeRef<'_>> =
            above.take_while(|node| stub.is_none_or(|stub| stub.as_ptr() != node.as_ptr())).collect();
        if above.iter().any(|node| node.kind() != NodeKind::Delta) || self.lately.note(page) {
            return None;
        }
        let copies = above.into_iter().map(|node| OwnedNode::delta(node.payload())).collect();
        // Since the word has been the same, the list was that of what lies below the copies.
        (self.snapshot(page, &guard) == snapshot).then_some(Plan { chosen, copies })
    }

    /// The excerpt that consists of the fragments read and of the nodes above them; `None` if they cannot be read.
    fn excerpt_of(
        &self,
        copies: Vec<OwnedNode>,
        spared: usize,
        read: Result<&[ReadFragment<'_>], LlamaError>,
    ) -> Option<Excerpt> {
        let mut chain = self.build(read.ok()?).ok()?;
        copies.into_iter().rev().for_each(|copy| chain.push(copy));
        self.counters.excerpts.add(1);
        self.counters.fragments_spared.add(spared as u64);
        Some(Excerpt { chain })
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
        assert_eq!(of(llama.excerpt(pages[2], 0)), Some(vec![5, 4, 3, 2, 1, 0]), "any may hold the key");
        // What was put on it meanwhile is there, of whatever key.
        delta(&llama, pages[3], &[11; 40]);
        delta(&llama, pages[3], &[12; 40]);
        assert_eq!(of(llama.excerpt(pages[3], 1 << 5)), Some(vec![12, 11, 5, 0]));
        let statistics = llama.statistics();
        assert_eq!((statistics.excerpts, statistics.fragments_spared, statistics.loads), (4, 4 + 5 + 4, 0));
    }

    #[test]
    fn a_page_that_was_read_lately_is_loaded() {
        let (llama, pages, _method) = scattered(&SimulatedDisk::new(2));
        fill(&llama);
        assert!(llama.excerpt(pages[0], 2).is_some());
        assert!(llama.excerpt(pages[0], 4).is_none());
        llama.load(pages[0]).unwrap();
        assert!(llama.excerpt(pages[0], 2).is_none(), "it is in memory");
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

    #[test]
    fn several_are_read_together_and_those_of_one_page_as_one() {
        let disk = SimulatedDisk::new(3);
        let (llama, pages, _method) = scattered(&disk);
        fill(&llama);
        assert!(llama.excerpt(pages[4], 2).is_some());
        let mut found = Vec::new();
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
        llama.excerpts(&keys, &mut |places, excerpt| {
            let nodes = chain(excerpt.head()).map(|node| node.payload()[0]).collect::<Vec<_>>();
            found.push((places, nodes));
        });
        found.sort_by_key(|(places, _)| places.start);
        let expected = [(0..1, vec![3, 0]), (1..3, vec![5, 2, 0]), (4..5, vec![1, 0]), (5..6, vec![0])];
        assert_eq!(found, expected);
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
        assert!(llama.excerpt(page, 1).is_some());
        assert_eq!(llama.statistics().fragments_spared, 0);
    }
}
