//! The mapping table: from page identifiers to pages (Bw-tree article, 2.2).
//!
//! Called by everything in this crate; calls nothing. It grows by adding a chunk twice as large as the last one
//! and is never copied, so a reference to an entry stays good.
//!
//! ## The mapping word
//!
//! | word | meaning |
//! |---|---|
//! | 0 | free: no page has this identifier, or its first node is not installed yet |
//! | bit 0 clear | pointer to the newest [`Node`](crate::NodeRef) of a resident chain (possibly over a stub) |
//! | bit 0 set | [`FlashAddress`] of the newest fragment of a page that is on flash only |
//!
//! ```text
//!             install base              evict (head durable)
//!      free ───────────────▶ resident ───────────────────────▶ stored
//!        ▲                    │  ▲  ▲                            │ │
//!        └──── free_page ─────┘  │  └──── load ──────────────────┘ │
//!                      install,  │                                 │
//!                      partial   └──── install delta over a stub ──┘
//!                      swap-out
//! ```
//!
//! ## The rest of an entry
//!
//! The word is all that a reader or writer of a resident page touches. What flush, eviction and cleaning need lies
//! apart, so that the words of a hundred thousand pages fit in a cache:
//!
//! - one *dirty bit* per page, in words of 64: set after an install, cleared by the flusher before it looks;
//! - the *state word*: bit 0 claimed, bit 1 adopted, bit 2 rewrite, bit 3 disowned, bit 4 changed since its last
//!   image, bits 32.. count of holds;
//! - the *fragments* of the page, oldest first, at most [`FRAGMENTS_MAX`].
//!
//! ## Invariants
//!
//! - **M1** The word changes by compare-and-swap only, and whoever's succeeds owns (retires) what was replaced.
//! - **M2** An installed change is followed by a set dirty bit; the flusher clears the bit *before* it reads the
//!   word. So either the flusher sees the change, or the bit is set again: no change is forgotten. (Word and bit
//!   are two locations, written and read crosswise: both sides need sequential consistency.)
//! - **M3** `flash` of a node and the fragments of a page change only under the page's claim, and eviction puts an
//!   address into the word only under the claim. So an address in a word or stub is always one of the page's
//!   fragments, never one that a full rewrite has superseded.
//! - **M4** A claim is never waited for and never held over I/O: who does not get it leaves the page for later.
//! - **M5** A split first holds the page, then installs the new base; the flusher first reads the word, then asks for
//!   holds. So it never flushes a held base.

use crate::flash_address::FlashAddress;
use crate::node::NODE_ALIGN;
use crate::page_id::PageId;
use crate::sync::{AtomicPtr, AtomicU64, Ordering, store_load_fence};
use std::ptr;

/// The most fragments that a page may consist of on flash; then it is written in full.
pub const FRAGMENTS_MAX: usize = 8;

/// Entries of the first chunk; each further one has twice as many.
#[cfg(not(any(loom, shuttle)))]
const FIRST_CHUNK: u64 = 1024;
#[cfg(any(loom, shuttle))]
const FIRST_CHUNK: u64 = 64;
/// Enough for 2^42 pages.
#[cfg(not(loom))]
const CHUNKS: usize = 32;
#[cfg(loom)]
const CHUNKS: usize = 1;

const CLAIMED: u64 = 1;
const ADOPTED: u64 = 2;
const REWRITE: u64 = 4;
const DISOWNED: u64 = 8;
const CHANGED: u64 = 16;
const HOLD: u64 = 1 << 32;

/// What a mapping word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Free,
    /// The address of the head node; aligned to [`NODE_ALIGN`].
    Resident(*mut u8),
    Stored(FlashAddress),
}

impl Word {
    #[inline]
    pub(crate) fn decode(raw: u64) -> Word {
        if raw == 0 {
            Word::Free
        } else if raw & 1 == 0 {
            Word::Resident(ptr::with_exposed_provenance_mut(raw as usize))
        } else {
            Word::Stored(FlashAddress::from_raw(raw).expect("an address in the mapping table is well formed"))
        }
    }

    #[inline]
    pub(crate) fn encode(self) -> u64 {
        match self {
            Word::Free => 0,
            Word::Resident(pointer) => {
                let raw = pointer.expose_provenance() as u64;
                debug_assert!(raw != 0 && raw.is_multiple_of(NODE_ALIGN as u64));
                raw
            }
            Word::Stored(address) => address.to_raw(),
        }
    }
}

/// The fragments of a page, oldest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fragments {
    addresses: [Option<FlashAddress>; FRAGMENTS_MAX],
}

impl Fragments {
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = FlashAddress> + '_ {
        self.addresses.iter().flatten().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(crate) fn newest(&self) -> Option<FlashAddress> {
        self.iter().next_back()
    }

    /// Those that lie below `newest` in the page; none if that is not of the page.
    pub(crate) fn older_than(self, newest: FlashAddress) -> impl Iterator<Item = FlashAddress> {
        let count = self.addresses.iter().position(|&address| address == Some(newest)).unwrap_or(0);
        self.addresses.into_iter().take(count).flatten()
    }

    /// Whether they are enough, so that the next fragment is a full one: there are `max`, or those above the full one take more than it does.
    /// The latter bounds what is written by what has changed, and what a page takes by twice its content.
    pub(crate) fn are_enough(&self, max: usize) -> bool {
        let mut lengths = self.iter().map(FlashAddress::length);
        let full = lengths.next().unwrap_or(0);
        self.len() >= max || lengths.sum::<u64>() > full
    }

    /// `newest`, if it is one of these, and those below it.
    pub(crate) fn up_to(mut self, newest: FlashAddress) -> Option<Fragments> {
        let at = self.addresses.iter().position(|&address| address == Some(newest))?;
        self.addresses[at + 1..].fill(None);
        Some(self)
    }

    /// Appends; `false` if there is no room.
    #[must_use]
    pub(crate) fn push(&mut self, address: FlashAddress) -> bool {
        match self.addresses.iter_mut().find(|slot| slot.is_none()) {
            Some(slot) => {
                *slot = Some(address);
                true
            }
            None => false,
        }
    }

    /// Takes the newest away.
    pub(crate) fn pop(&mut self) -> Option<FlashAddress> {
        self.addresses.iter_mut().rev().find_map(Option::take)
    }
}

#[derive(Default)]
struct Cold {
    state: AtomicU64,
    fragments: [AtomicU64; FRAGMENTS_MAX],
}

/// Bytes of an entry, about.
pub(crate) const ENTRY_BYTES: u64 = (size_of::<u64>() + size_of::<[u64; 1 + FRAGMENTS_MAX]>()) as u64;

struct Chunk {
    words: Box<[AtomicU64]>,
    dirty: Box<[AtomicU64]>,
    cold: Box<[Cold]>,
}

impl Chunk {
    #[cfg(not(any(loom, shuttle)))]
    fn new(entries: u64) -> Chunk {
        let entries = entries as usize;
        // SAFETY: zero is a valid AtomicU64 and Cold. Zeroed memory comes from the operating system page by page
        // as it is touched, so that a large chunk costs nothing until it is used.
        unsafe {
            Chunk {
                words: Box::new_zeroed_slice(entries).assume_init(),
                dirty: Box::new_zeroed_slice(entries / 64).assume_init(),
                cold: Box::new_zeroed_slice(entries).assume_init(),
            }
        }
    }

    #[cfg(any(loom, shuttle))]
    fn new(entries: u64) -> Chunk {
        // Loom counts every atomic; its models use page 0 and 1 only. Shuttle's have a past, so that zeros are none.
        let entries = if cfg!(loom) { entries.min(2) } else { entries };
        Chunk {
            words: (0..entries).map(|_| AtomicU64::new(0)).collect(),
            dirty: (0..entries.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            cold: (0..entries).map(|_| Cold::default()).collect(),
        }
    }
}

/// The mapping table. See the module documentation.
pub(crate) struct MappingTable {
    chunks: [AtomicPtr<Chunk>; CHUNKS],
}

/// Where an entry is: chunk, and index within it.
#[inline]
fn place(page: PageId) -> (usize, usize) {
    let biased = page.0 + FIRST_CHUNK;
    let chunk = (biased.ilog2() - FIRST_CHUNK.ilog2()) as usize;
    (chunk, (biased - (FIRST_CHUNK << chunk)) as usize)
}

impl MappingTable {
    pub(crate) fn new() -> MappingTable {
        MappingTable { chunks: std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())) }
    }

    /// Makes room for `page`. Called before an identifier is given out.
    pub(crate) fn reserve(&self, page: PageId) {
        let (index, _) = place(page);
        assert!(index < CHUNKS, "{page} is beyond the mapping table");
        if !self.chunks[index].load(Ordering::Acquire).is_null() {
            return;
        }
        let chunk = Box::into_raw(Box::new(Chunk::new(FIRST_CHUNK << index)));
        let won =
            self.chunks[index].compare_exchange(ptr::null_mut(), chunk, Ordering::AcqRel, Ordering::Acquire);
        if won.is_err() {
            // SAFETY: made above and not published, as the compare-and-swap failed.
            drop(unsafe { Box::from_raw(chunk) });
        }
    }

    /// The chunk and the index within it of `page`, whose identifier has been given out.
    #[inline]
    fn entry(&self, page: PageId) -> (&Chunk, usize) {
        let (index, slot) = place(page);
        // Acquire pairs with the publication in `reserve`.
        let chunk = self.chunks[index].load(Ordering::Acquire);
        assert!(!chunk.is_null(), "{page} was never allocated");
        // SAFETY: a published chunk lives as long as the table.
        (unsafe { &*chunk }, slot)
    }

    /// The word of `page`.
    #[inline]
    pub(crate) fn word(&self, page: PageId) -> u64 {
        let (chunk, slot) = self.entry(page);
        // Acquire pairs with the release of the compare-and-swap in `replace`: the node's contents.
        chunk.words[slot].load(Ordering::Acquire)
    }

    /// Asks the processor for all of the entry of `page`.
    #[inline]
    pub(crate) fn prefetch(&self, page: PageId) {
        #[cfg(all(target_arch = "x86_64", not(any(miri, loom, shuttle))))]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let (chunk, slot) = self.entry(page);
            let (word, cold) = (&raw const chunk.words[slot], &raw const chunk.cold[slot]);
            // SAFETY: a prefetch accesses nothing in the sense of the language, and faults on no address.
            unsafe {
                _mm_prefetch(word.cast(), _MM_HINT_T0);
                _mm_prefetch(cold.cast(), _MM_HINT_T0);
                _mm_prefetch(cold.cast::<i8>().add(size_of::<Cold>() - 1), _MM_HINT_T0);
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(any(miri, loom, shuttle)))))]
        let _ = page;
    }

    /// Replaces the word of `page` if it is still `expected` (M1).
    #[inline]
    pub(crate) fn replace(&self, page: PageId, expected: u64, new: u64) -> bool {
        let (chunk, slot) = self.entry(page);
        // SeqCst for M2: it comes before the dirty bit's load in `mark_dirty`.
        chunk.words[slot].compare_exchange(expected, new, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The word with the dirty bit of `page`, and the bit.
    #[inline]
    fn dirty_bit(&self, page: PageId) -> (&AtomicU64, u64) {
        let (chunk, slot) = self.entry(page);
        (&chunk.dirty[slot / 64], 1 << (slot % 64))
    }

    /// Sets the dirty bit; whether it was clear. After the change that makes the page dirty (M2).
    #[inline]
    pub(crate) fn mark_dirty(&self, page: PageId) -> bool {
        let (word, bit) = self.dirty_bit(page);
        store_load_fence();
        // Looked at first: the line is shared by 512 pages, and most of what is written is dirty already.
        word.load(Ordering::SeqCst) & bit == 0 && word.fetch_or(bit, Ordering::SeqCst) & bit == 0
    }

    /// Clears the dirty bit; whether it was set. The word must be read afterwards, by
    /// [`MappingTable::word_after_take_dirty`] (M2).
    pub(crate) fn take_dirty(&self, page: PageId) -> bool {
        let (word, bit) = self.dirty_bit(page);
        let taken = word.fetch_and(!bit, Ordering::SeqCst) & bit != 0;
        store_load_fence();
        taken
    }

    /// The word of `page`, read so that M2 holds.
    pub(crate) fn word_after_take_dirty(&self, page: PageId) -> u64 {
        let (chunk, slot) = self.entry(page);
        chunk.words[slot].load(Ordering::SeqCst)
    }

    /// Whether the dirty bit is set.
    pub(crate) fn is_dirty(&self, page: PageId) -> bool {
        let (word, bit) = self.dirty_bit(page);
        word.load(Ordering::SeqCst) & bit != 0
    }

    /// The first dirty page in `from..end`, if there is one.
    pub(crate) fn next_dirty(&self, from: PageId, end: PageId) -> Option<PageId> {
        let mut page = from;
        while page < end {
            let (chunk, slot) = self.entry(page);
            let bits = chunk.dirty[slot / 64].load(Ordering::Relaxed) >> (slot % 64);
            if bits != 0 {
                let found = PageId(page.0 + u64::from(bits.trailing_zeros()));
                return (found < end).then_some(found);
            }
            page.0 += 64 - (slot % 64) as u64;
        }
        None
    }

    /// All dirty pages below `end`.
    pub(crate) fn dirty_pages(&self, end: PageId) -> impl Iterator<Item = PageId> + '_ {
        let after = |page: PageId| PageId(page.0 + 1);
        std::iter::successors(self.next_dirty(PageId(1), end), move |&page| self.next_dirty(after(page), end))
    }

    /// Claims `page` for maintenance (M3), unless somebody else has (M4).
    pub(crate) fn try_claim(&self, page: PageId) -> Option<Claim<'_>> {
        let (chunk, slot) = self.entry(page);
        let state = &chunk.cold[slot].state;
        // Acquire pairs with the release in `Claim::drop`: what the last holder wrote.
        if state.fetch_or(CLAIMED, Ordering::Acquire) & CLAIMED == 0 { Some(Claim { state }) } else { None }
    }

    /// Adds a hold: the page is not flushed until as many releases have come (M5).
    pub(crate) fn hold(&self, page: PageId) {
        let (chunk, slot) = self.entry(page);
        chunk.cold[slot].state.fetch_add(HOLD, Ordering::SeqCst);
    }

    /// Takes a hold away.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn release(&self, page: PageId) {
        let (chunk, slot) = self.entry(page);
        let before = chunk.cold[slot].state.fetch_sub(HOLD, Ordering::SeqCst);
        assert!(before >= HOLD, "{page} is released more often than held");
    }

    /// Whether `page` is held. Asked after the word has been read (M5).
    pub(crate) fn is_held(&self, page: PageId) -> bool {
        let (chunk, slot) = self.entry(page);
        chunk.cold[slot].state.load(Ordering::SeqCst) >= HOLD
    }

    pub(crate) fn is_adopted(&self, page: PageId) -> bool {
        self.state(page) & ADOPTED != 0
    }

    pub(crate) fn set_adopted(&self, page: PageId) {
        self.set_state(page, ADOPTED);
    }

    /// The page does not count any more: a durable fragment disowns it.
    pub(crate) fn clear_adopted(&self, page: PageId) {
        self.clear_state(page, ADOPTED);
    }

    /// Whether a fragment that disowns the page is in the flush buffer, or durable.
    pub(crate) fn is_disowned(&self, page: PageId) -> bool {
        self.state(page) & DISOWNED != 0
    }

    pub(crate) fn set_disowned(&self, page: PageId) {
        self.set_state(page, DISOWNED);
    }

    /// Whether the cleaner wants the page written in full.
    pub(crate) fn wants_rewrite(&self, page: PageId) -> bool {
        self.state(page) & REWRITE != 0
    }

    pub(crate) fn set_rewrite(&self, page: PageId) {
        self.set_state(page, REWRITE);
    }

    pub(crate) fn clear_rewrite(&self, page: PageId) {
        self.clear_state(page, REWRITE);
    }

    /// Notes that the newest image is out of date for the page; whether that was not noted.
    pub(crate) fn set_changed(&self, page: PageId) -> bool {
        let (chunk, slot) = self.entry(page);
        chunk.cold[slot].state.fetch_or(CHANGED, Ordering::AcqRel) & CHANGED == 0
    }

    /// Whether that is noted.
    pub(crate) fn is_changed(&self, page: PageId) -> bool {
        let (chunk, slot) = self.entry(page);
        chunk.cold[slot].state.load(Ordering::Acquire) & CHANGED != 0
    }

    /// Takes that back; whether it was noted.
    pub(crate) fn take_changed(&self, page: PageId) -> bool {
        let (chunk, slot) = self.entry(page);
        chunk.cold[slot].state.fetch_and(!CHANGED, Ordering::AcqRel) & CHANGED != 0
    }

    /// The fragments of `page`. Exact for the holder of the store's flush lock, who alone changes them.
    pub(crate) fn fragments(&self, page: PageId) -> Fragments {
        let (chunk, slot) = self.entry(page);
        let addresses = std::array::from_fn(|index| {
            FlashAddress::from_raw(chunk.cold[slot].fragments[index].load(Ordering::Relaxed))
        });
        Fragments { addresses }
    }

    /// Notes the fragments of `page`: under its claim, and under the store's flush lock (M3).
    pub(crate) fn set_fragments(&self, page: PageId, fragments: Fragments) {
        let (chunk, slot) = self.entry(page);
        for (slot, address) in chunk.cold[slot].fragments.iter().zip(fragments.addresses) {
            slot.store(address.map_or(0, FlashAddress::to_raw), Ordering::Relaxed);
        }
    }

    /// Forgets everything about a page whose word is free, before its identifier is given out again.
    pub(crate) fn reset(&self, page: PageId) {
        debug_assert!(self.word(page) == 0 && !self.is_held(page));
        self.take_dirty(page);
        self.set_fragments(page, Fragments::default());
        // Not `CHANGED`: the images do not know yet that the page is gone.
        self.clear_state(page, ADOPTED | REWRITE | DISOWNED);
    }

    fn state(&self, page: PageId) -> u64 {
        let (chunk, slot) = self.entry(page);
        chunk.cold[slot].state.load(Ordering::Acquire)
    }

    fn set_state(&self, page: PageId, bits: u64) {
        let (chunk, slot) = self.entry(page);
        chunk.cold[slot].state.fetch_or(bits, Ordering::AcqRel);
    }

    fn clear_state(&self, page: PageId, bits: u64) {
        let (chunk, slot) = self.entry(page);
        chunk.cold[slot].state.fetch_and(!bits, Ordering::AcqRel);
    }
}

impl Drop for MappingTable {
    fn drop(&mut self) {
        for chunk in &self.chunks {
            let chunk = chunk.load(Ordering::Acquire);
            if !chunk.is_null() {
                // SAFETY: published once by `reserve`, and nobody borrows the table any more.
                drop(unsafe { Box::from_raw(chunk) });
            }
        }
    }
}

/// The exclusive right to evict or flush a page. Given back when dropped.
#[must_use]
pub(crate) struct Claim<'t> {
    state: &'t AtomicU64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.state.fetch_and(!CLAIMED, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn places_are_dense_and_in_order() {
        let mut expected = (0, 0);
        for page in 0..10 * FIRST_CHUNK {
            assert_eq!(place(PageId(page)), expected);
            expected.1 += 1;
            if expected.1 == (FIRST_CHUNK as usize) << expected.0 {
                expected = (expected.0 + 1, 0);
            }
        }
    }

    #[test]
    fn next_dirty_finds_every_dirty_page_once() {
        let table = MappingTable::new();
        let end = PageId(5 * FIRST_CHUNK);
        for page in (0..end.0).step_by(FIRST_CHUNK as usize) {
            table.reserve(PageId(page));
        }
        table.reserve(PageId(end.0 - 1));
        let dirty = [0, 1, 63, 64, 1023, 1024, 1025, 3071, 3072, 5000].map(PageId);
        for page in dirty {
            assert!(table.mark_dirty(page));
            assert!(!table.mark_dirty(page));
        }
        let mut found = Vec::new();
        let mut from = PageId(0);
        while let Some(page) = table.next_dirty(from, end) {
            found.push(page);
            from = PageId(page.0 + 1);
        }
        assert_eq!(found, dirty);
        assert_eq!(table.next_dirty(PageId(1026), PageId(3071)), None);
        assert!(table.take_dirty(PageId(63)) && !table.take_dirty(PageId(63)));
        assert_eq!(table.next_dirty(PageId(2), end), Some(PageId(64)));
    }

    #[test]
    fn claims_exclude_each_other_and_leave_holds_alone() {
        let table = MappingTable::new();
        table.reserve(PageId(1));
        table.hold(PageId(1));
        let claim = table.try_claim(PageId(1));
        assert!(claim.is_some());
        assert!(table.try_claim(PageId(1)).is_none());
        assert!(table.try_claim(PageId(1)).is_none(), "a refused claim takes nothing away");
        drop(claim);
        assert!(table.is_held(PageId(1)));
        table.release(PageId(1));
        assert!(!table.is_held(PageId(1)));
        assert!(table.try_claim(PageId(1)).is_some());
    }

    /// What a page's entry says.
    #[derive(Clone, Copy, Debug, Default, PartialEq)]
    struct Entry {
        word: u64,
        is_dirty: bool,
        holds: u64,
        is_adopted: bool,
        wants_rewrite: bool,
        is_disowned: bool,
        is_changed: bool,
        is_claimed: bool,
        fragments: Fragments,
    }

    /// At the edges of words of dirty bits, and of chunks.
    const EDGES: [u64; 12] = [1, 2, 63, 64, 65, 127, 1023, 1024, 1087, 1088, 3071, 3072];

    fn look(table: &MappingTable, page: PageId) -> Entry {
        let claim = table.try_claim(page);
        Entry {
            word: table.word(page),
            is_dirty: table.is_dirty(page),
            holds: u64::from(table.is_held(page)),
            is_adopted: table.is_adopted(page),
            wants_rewrite: table.wants_rewrite(page),
            is_disowned: table.is_disowned(page),
            is_changed: table.is_changed(page),
            is_claimed: claim.is_none(),
            fragments: table.fragments(page),
        }
    }

    proptest::proptest! {
        #[test]
        fn each_entry_is_one_of_its_own(
            steps in proptest::collection::vec((0..EDGES.len(), 0..15u8), 0..200),
        ) {
            let table = MappingTable::new();
            EDGES.iter().for_each(|&page| table.reserve(PageId(page)));
            let mut model = [Entry::default(); EDGES.len()];
            let mut claims: [Option<Claim<'_>>; EDGES.len()] = [const { None }; EDGES.len()];
            for (number, (index, step)) in (1..).zip(steps) {
                let (page, entry) = (PageId(EDGES[index]), &mut model[index]);
                match step {
                    0 | 1 => assert_eq!(table.mark_dirty(page), !std::mem::replace(&mut entry.is_dirty, true)),
                    2 => assert_eq!(table.take_dirty(page), std::mem::take(&mut entry.is_dirty)),
                    3 => {
                        table.hold(page);
                        entry.holds += 1;
                    }
                    4 if entry.holds > 0 => {
                        table.release(page);
                        entry.holds -= 1;
                    }
                    5 => (table.set_adopted(page), entry.is_adopted = true).0,
                    6 => (table.clear_adopted(page), entry.is_adopted = false).0,
                    7 => (table.set_rewrite(page), entry.wants_rewrite = true).0,
                    8 => (table.clear_rewrite(page), entry.wants_rewrite = false).0,
                    9 => (table.set_disowned(page), entry.is_disowned = true).0,
                    10 => assert_eq!(table.set_changed(page), !std::mem::replace(&mut entry.is_changed, true)),
                    11 => assert_eq!(table.take_changed(page), std::mem::take(&mut entry.is_changed)),
                    12 => {
                        let word = FlashAddress::new(64 * number, 64).to_raw();
                        assert!(!table.replace(page, entry.word ^ 2, word));
                        assert!(table.replace(page, entry.word, word));
                        (entry.word, entry.fragments) = (word, Fragments::default());
                        assert!(entry.fragments.push(FlashAddress::new(64 * number, 64)));
                        table.set_fragments(page, entry.fragments);
                        assert_eq!(table.word_after_take_dirty(page), word);
                    }
                    13 => {
                        claims[index] = if entry.is_claimed { None } else { table.try_claim(page) };
                        entry.is_claimed = claims[index].is_some();
                    }
                    14 if entry.holds == 0 => {
                        assert!(table.replace(page, entry.word, 0));
                        table.reset(page);
                        // The images do not know yet that it is gone.
                        let &mut Entry { is_changed, is_claimed, .. } = entry;
                        *entry = Entry { is_changed, is_claimed, ..Entry::default() };
                    }
                    _ => {}
                }
                for (&page, entry) in EDGES.iter().zip(&model) {
                    assert_eq!(look(&table, PageId(page)), Entry { holds: entry.holds.min(1), ..*entry });
                }
            }
            let dirty: Vec<_> = EDGES.iter().zip(&model).filter(|(_, entry)| entry.is_dirty).collect();
            let dirty: Vec<_> = dirty.into_iter().map(|(&page, _)| PageId(page)).collect();
            assert_eq!(table.dirty_pages(PageId(3073)).collect::<Vec<_>>(), dirty);
        }
    }

    #[test]
    #[should_panic(expected = "released more often than held")]
    fn a_release_without_its_hold_is_refused() {
        let table = MappingTable::new();
        table.reserve(PageId(1));
        table.release(PageId(1));
    }

    #[test]
    fn a_table_gives_its_chunks_back() {
        deuteron_fuzz::Meter::begin();
        for _ in 0..30 {
            let table = MappingTable::new();
            table.reserve(PageId(1));
            table.reserve(PageId(1));
        }
        // Eighty bytes and a bit an entry.
        assert!(deuteron_fuzz::Meter::peak() < 3 * FIRST_CHUNK as usize * 81);
    }

    #[test]
    fn fragments_are_a_stack_of_bounded_height() {
        let mut fragments = Fragments::default();
        let address = |index: usize| FlashAddress::new(4096 * (index as u64 + 1), 64);
        for index in 0..FRAGMENTS_MAX {
            assert!(fragments.push(address(index)));
        }
        assert!(!fragments.push(address(9)));
        assert_eq!(fragments.newest(), Some(address(FRAGMENTS_MAX - 1)));
        assert_eq!(fragments.pop(), Some(address(FRAGMENTS_MAX - 1)));
        assert_eq!(fragments.len(), FRAGMENTS_MAX - 1);
    }

    #[test]
    fn fragments_are_enough_by_their_number_or_by_what_the_deltas_take() {
        let mut fragments = Fragments::default();
        let mut push = |offset: u64, length| {
            assert!(fragments.push(FlashAddress::new(offset, length)));
            fragments
        };
        assert!(!push(4096, 640).are_enough(3));
        assert!(!push(8192, 320).are_enough(3));
        let three = push(12_288, 320);
        assert!(three.are_enough(3) && !three.are_enough(4));
        let four = push(16_384, 64);
        assert!(four.are_enough(5), "384 bytes and 320 are more than 640");
        assert_eq!(four.up_to(FlashAddress::new(12_288, 320)), Some(three));
        assert_eq!(four.up_to(FlashAddress::new(20_480, 64)), None);
        let older: Vec<_> =
            four.older_than(FlashAddress::new(12_288, 320)).map(FlashAddress::offset).collect();
        assert_eq!(older, [4096, 8192]);
        assert_eq!(four.older_than(FlashAddress::new(20_480, 64)).count(), 0);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
