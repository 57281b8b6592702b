//! The mapping table: from page identifiers to pages (Bw-tree article, 2.2).
//!
//! Called by everything in this crate; calls nothing but `doubling` and `lists`.
//!
//! ## The mapping word
//!
//! | word | meaning |
//! |---|---|
//! | 0 | free: no page has this identifier, or its first node is not installed yet |
//! | bit 0 clear | pointer to the newest [`Node`](crate::NodeRef) of a resident chain (possibly over an address) |
//! | bit 0 set | [`FlashAddress`] of the newest fragment of a page that is on flash only |
//!
//! ```text
//!             install base              evict (head durable)
//!      free ───────────────▶ resident ───────────────────────▶ stored
//!        ▲                    │  ▲  ▲                            │ │
//!        └──── free_page ─────┘  │  └──── load ──────────────────┘ │
//!                      install,  │                                 │
//!                      partial   └──── install delta, unread ──────┘
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
//!   image, bit 5 unreadable, bits 8..16 how many fragments, bits 16..32 what the deltas among them take in units of 16 bytes, bits 32..48 the filter of the second
//!   fragment, bits 48.. count of holds;
//! - the *fragments* of the page, oldest first, at most [`FRAGMENTS_MAX`](crate::FRAGMENTS_MAX) and, if some of them cannot be read,
//!   `UNREADABLE_FRAGMENTS_MAX` ([`lists`]).
//!
//! So a page that is not in memory and has not been written to takes 32 bytes and a bit, one of many fragments up to 392.
//!
//! ## Invariants
//!
//! - **M1** The word changes by compare-and-swap only, and whoever's succeeds owns (retires) what was replaced.
//! - **M2** An installed change is followed by a set dirty bit; the flusher clears the bit *before* it reads the
//!   word. So either the flusher sees the change, or the bit is set again: no change is forgotten. (Word and bit
//!   are two locations, written and read crosswise: both sides need sequential consistency.)
//! - **M3** `flash` of a node and the fragments of a page change only under the page's claim, and eviction puts an
//!   address into the word only under the claim. So an address in a word or a chain is always one of the page's
//!   fragments, never one that a full rewrite has superseded.
//! - **M4** A claim is never waited for and never held over I/O: who does not get it leaves the page for later.
//! - **M5** A split first holds the page, then installs the new base; the flusher first reads the word, then asks for
//!   holds. So it never flushes a held base.

mod lists;

use crate::doubling::{Doubling, FIRST, Zero, zeros};
use crate::flash_address::{ADDRESS_UNIT, FlashAddress};
use crate::fragments::{Filter, Fragments, Sizes};
use crate::node::NODE_ALIGN;
use crate::page_id::PageId;
use crate::sync::{AtomicU64, Ordering, store_load_fence};
use deuteron_epoch::{prefetch, prefetch_for_write};
use lists::Lists;
use std::ops::Range;
use std::ptr;

/// Words of an entry for fragments.
const INLINE: usize = 2;
/// Pages whose lists are asked for side by side.
const LISTS_AT_ONCE: u64 = 64;

const CLAIMED: u64 = 1;
const ADOPTED: u64 = 2;
const REWRITE: u64 = 4;
const DISOWNED: u64 = 8;
const CHANGED: u64 = 16;
const UNREADABLE: u64 = 32;
/// How many fragments, and what all but the first take.
const COUNT: u64 = 0xff << 8;
const DELTA_UNITS: u64 = 0xffff << 16;
/// The filter of the second fragment, if the list has no more.
const FILTER: u64 = 0xffff << 32;
const HOLD: u64 = 1 << 48;

/// How many fragments a state word counts.
fn count(state: u64) -> usize {
    ((state & COUNT) >> COUNT.trailing_zeros()) as usize
}

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

    /// Whether `raw` is a pointer.
    #[inline]
    fn is_resident(raw: u64) -> bool {
        raw != 0 && raw & 1 == 0
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

#[derive(Default)]
struct Cold {
    state: AtomicU64,
    fragments: [AtomicU64; INLINE],
}

impl Cold {
    #[inline]
    fn sizes(&self) -> Sizes {
        let state = self.state.load(Ordering::Acquire);
        // Relaxed: a figure.
        let full = FlashAddress::from_raw(self.fragments[0].load(Ordering::Relaxed));
        Sizes {
            count: count(state) as u64,
            full: full.map_or(0, FlashAddress::length),
            deltas: ((state & DELTA_UNITS) >> DELTA_UNITS.trailing_zeros()) * ADDRESS_UNIT,
        }
    }
}

// SAFETY: D2 of `doubling`: all of its fields are atomic integers.
unsafe impl Zero for Cold {}

/// Bytes of an entry, about, but for lists of fragments.
pub(crate) const ENTRY_BYTES: u64 = (size_of::<u64>() + size_of::<[u64; 1 + INLINE]>()) as u64;

struct Chunk {
    words: Box<[AtomicU64]>,
    dirty: Box<[AtomicU64]>,
    cold: Box<[Cold]>,
}

impl Chunk {
    fn new(entries: u64) -> Chunk {
        Chunk { words: zeros(entries), dirty: zeros(entries.div_ceil(64)), cold: zeros(entries) }
    }
}

/// The mapping table. See the module documentation.
pub(crate) struct MappingTable {
    chunks: Doubling<Chunk>,
    lists: Lists,
}

impl MappingTable {
    pub(crate) fn new() -> MappingTable {
        MappingTable { chunks: Doubling::new(), lists: Lists::new() }
    }

    /// A table with room for all pages below `end`, if there is memory for that; none of it is touched.
    pub(crate) fn of(end: PageId) -> Option<MappingTable> {
        let bytes = end.0.checked_mul(2 * ENTRY_BYTES)?;
        // Only asked for. What is made next has no way to refuse.
        Vec::<u8>::new().try_reserve_exact(usize::try_from(bytes).ok()?).ok()?;
        let table = MappingTable::new();
        (1..end.0).step_by(FIRST as usize).chain([end.0 - 1]).for_each(|page| table.reserve(PageId(page)));
        Some(table)
    }

    /// Makes room for `page`. Called before an identifier is given out.
    pub(crate) fn reserve(&self, page: PageId) {
        self.chunks.reserve(page.0, Chunk::new);
    }

    /// Bytes that a table of `pages` pages takes.
    pub(crate) fn bytes(&self, pages: u64) -> u64 {
        pages * ENTRY_BYTES + self.lists.bytes()
    }

    /// The chunk and the index within it of `page`, whose identifier has been given out.
    #[inline]
    fn entry(&self, page: PageId) -> (&Chunk, usize) {
        self.chunks.get(page.0).unwrap_or_else(|| panic!("{page} was never allocated"))
    }

    /// What of the entry of `page` is not its word.
    #[inline]
    fn cold(&self, page: PageId) -> &Cold {
        let (chunk, slot) = self.entry(page);
        &chunk.cold[slot]
    }

    /// The word of `page`.
    #[inline]
    pub(crate) fn word(&self, page: PageId) -> u64 {
        let (chunk, slot) = self.entry(page);
        // Acquire pairs with the release of the compare-and-swap in `replace`: the node's contents.
        chunk.words[slot].load(Ordering::Acquire)
    }

    /// The address of `page`, if it is not in memory and consists of one fragment; what changes meanwhile is a guess.
    pub(crate) fn stored_whole(&self, page: PageId) -> Option<FlashAddress> {
        match Word::decode(self.word(page)) {
            Word::Stored(address) if self.fragment_count(page) == 1 => Some(address),
            _ => None,
        }
    }

    /// Tells of those of `pages` that are in memory, as it looks; faster than a look at each [word](MappingTable::word), as most are not.
    pub(crate) fn resident(&self, pages: Range<PageId>, mut found: impl FnMut(PageId)) {
        let mut page = pages.start;
        while page < pages.end {
            let (chunk, slot) = self.entry(page);
            let words = &chunk.words[slot..];
            let words = &words[..words.len().min((pages.end.0 - page.0) as usize)];
            for (number, word) in (page.0..).zip(words) {
                // Relaxed: what is found is looked at again.
                if Word::is_resident(word.load(Ordering::Relaxed)) {
                    found(PageId(number));
                }
            }
            page.0 += words.len() as u64;
        }
    }

    /// Asks the processor for all of the entry of `page`.
    #[inline]
    pub(crate) fn prefetch(&self, page: PageId) {
        let (chunk, slot) = self.entry(page);
        prefetch(&raw const chunk.words[slot]);
        self.prefetch_cold(page);
    }

    fn prefetch_cold(&self, page: PageId) {
        let cold = &raw const *self.cold(page);
        prefetch(cold);
        prefetch(cold.cast::<u8>().wrapping_add(size_of::<Cold>() - 1));
    }

    /// Asks for the word of `page`, which will be replaced.
    #[inline]
    pub(crate) fn prefetch_for_change(&self, page: PageId) {
        let (chunk, slot) = self.entry(page);
        prefetch_for_write(&raw const chunk.words[slot]);
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
        let state = &self.cold(page).state;
        // Acquire pairs with the release in `Claim::drop`: what the last holder wrote.
        if state.fetch_or(CLAIMED, Ordering::Acquire) & CLAIMED == 0 { Some(Claim { state }) } else { None }
    }

    /// Adds a hold: the page is not flushed until as many releases have come (M5).
    pub(crate) fn hold(&self, page: PageId) {
        self.cold(page).state.fetch_add(HOLD, Ordering::SeqCst);
    }

    /// Takes a hold away.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn release(&self, page: PageId) {
        let before = self.cold(page).state.fetch_sub(HOLD, Ordering::SeqCst);
        assert!(before >= HOLD, "{page} is released more often than held");
    }

    /// Whether `page` is held. Asked after the word has been read (M5).
    pub(crate) fn is_held(&self, page: PageId) -> bool {
        self.cold(page).state.load(Ordering::SeqCst) >= HOLD
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

    /// Whether what of the page is not in memory could not be read when somebody tried last.
    pub(crate) fn is_unreadable(&self, page: PageId) -> bool {
        self.state(page) & UNREADABLE != 0
    }

    pub(crate) fn set_unreadable(&self, page: PageId) {
        self.set_state(page, UNREADABLE);
    }

    pub(crate) fn clear_unreadable(&self, page: PageId) {
        self.clear_state(page, UNREADABLE);
    }

    /// Notes that the newest image is out of date for the page; whether that was not noted.
    pub(crate) fn set_changed(&self, page: PageId) -> bool {
        self.cold(page).state.fetch_or(CHANGED, Ordering::AcqRel) & CHANGED == 0
    }

    /// Whether that is noted.
    pub(crate) fn is_changed(&self, page: PageId) -> bool {
        self.cold(page).state.load(Ordering::Acquire) & CHANGED != 0
    }

    /// Takes that back; whether it was noted.
    pub(crate) fn take_changed(&self, page: PageId) -> bool {
        self.cold(page).state.fetch_and(!CHANGED, Ordering::AcqRel) & CHANGED != 0
    }

    /// The fragments of `page`. Exact for who may change them (L1 of `lists`).
    pub(crate) fn fragments(&self, page: PageId) -> Fragments {
        let Cold { state, fragments } = self.cold(page);
        // Acquire as with the filters of the other fragments (L3 of `lists`).
        self.lists.read(fragments, || {
            ((state.load(Ordering::Acquire) & FILTER) >> FILTER.trailing_zeros()) as Filter
        })
    }

    /// What the fragments of `page` take, but for deltas beyond 1 MiB: without a look at their list. While that changes it is what it will be, or something in between.
    #[inline]
    pub(crate) fn sizes(&self, page: PageId) -> Sizes {
        self.cold(page).sizes()
    }

    /// What the fragments of `pages`, which have been given out, take together, and how many of them have any.
    pub(crate) fn sizes_of(&self, pages: Range<PageId>) -> (Sizes, u64) {
        let (mut sum, mut stored, mut page) = (Sizes::default(), 0, pages.start);
        while page < pages.end {
            let (chunk, slot) = self.entry(page);
            let cold = &chunk.cold[slot..];
            let cold = &cold[..cold.len().min((pages.end.0 - page.0) as usize)];
            for sizes in cold.iter().map(Cold::sizes) {
                sum = sum + sizes;
                stored += u64::from(sizes.count > 0);
            }
            page.0 += cold.len() as u64;
        }
        (sum, stored)
    }

    /// The fragments of `page`, whatever they hold: a guess.
    pub(crate) fn guessed_fragments(&self, page: PageId) -> Fragments {
        self.lists.guess(&self.cold(page).fragments)
    }

    /// Asks the processor for what [`MappingTable::fragments`] reads of these pages, some hundred at most, side by side.
    pub(crate) fn prefetch_fragments(&self, pages: impl Iterator<Item = PageId> + Clone) {
        pages.clone().for_each(|page| self.prefetch_cold(page));
        self.lists.prefetch(pages.map(|page| &self.cold(page).fragments));
    }

    /// Tells of each of `pages` which fragments it has, whatever they hold, or `None` if that is changing. Of those that it had before and still has none is missing (L4 of
    /// `lists`). Faster than one page after the other, which would wait for the memory of each.
    pub(crate) fn look_through(
        &self,
        pages: Range<PageId>,
        mut found: impl FnMut(PageId, Option<Fragments>),
    ) {
        let mut next = pages.start;
        while next < pages.end {
            let group = next.0..pages.end.0.min(next.0 + LISTS_AT_ONCE);
            self.prefetch_fragments(group.clone().map(PageId));
            for page in group.clone().map(PageId) {
                let fragments = self.guessed_fragments(page);
                // After them, which were read with acquire.
                let is_all = fragments.len() == self.fragment_count(page);
                found(page, is_all.then_some(fragments));
            }
            next.0 = group.end;
        }
    }

    /// The fragments of `page` up to `newest`, with filters to be trusted: no guess, but none if they are being changed (L3 of `lists`), or that is
    /// none of them.
    pub(crate) fn fragments_up_to(&self, page: PageId, newest: FlashAddress) -> Option<Fragments> {
        let fragments = self.fragments(page);
        if fragments != self.fragments(page) {
            return None;
        }
        fragments.up_to(newest)
    }

    /// How many they are.
    pub(crate) fn fragment_count(&self, page: PageId) -> usize {
        count(self.state(page))
    }

    /// Notes the fragments of `page`: under its claim (M3; L1 of `lists`).
    pub(crate) fn set_fragments(&self, page: PageId, fragments: Fragments) {
        let Cold { state, fragments: inline } = self.cold(page);
        state.fetch_or(FILTER, Ordering::AcqRel);
        let filter = self.lists.write(inline, &fragments);
        let deltas: u64 = fragments.iter().skip(1).map(FlashAddress::length).sum();
        let deltas = (deltas / ADDRESS_UNIT).min(DELTA_UNITS >> DELTA_UNITS.trailing_zeros());
        let said = (fragments.len() as u64) << COUNT.trailing_zeros()
            | deltas << DELTA_UNITS.trailing_zeros()
            | u64::from(filter) << FILTER.trailing_zeros();
        // Others change other bits meanwhile, and nobody these.
        let before = state.load(Ordering::Relaxed) & (COUNT | DELTA_UNITS | FILTER);
        state.fetch_add(said.wrapping_sub(before), Ordering::AcqRel);
    }

    /// Forgets everything about a page whose word is free, before its identifier is given out again.
    pub(crate) fn reset(&self, page: PageId) {
        debug_assert!(self.word(page) == 0 && !self.is_held(page));
        self.take_dirty(page);
        self.set_fragments(page, Fragments::default());
        // Not `CHANGED`: the images do not know yet that the page is gone.
        self.clear_state(page, ADOPTED | REWRITE | DISOWNED | UNREADABLE);
    }

    fn state(&self, page: PageId) -> u64 {
        self.cold(page).state.load(Ordering::Acquire)
    }

    fn set_state(&self, page: PageId, bits: u64) {
        self.cold(page).state.fetch_or(bits, Ordering::AcqRel);
    }

    fn clear_state(&self, page: PageId, bits: u64) {
        self.cold(page).state.fetch_and(!bits, Ordering::AcqRel);
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
    use crate::fragments::UNREADABLE_FRAGMENTS_MAX;

    #[test]
    fn next_dirty_finds_every_dirty_page_once() {
        let table = MappingTable::new();
        let end = PageId(5 * FIRST);
        for page in (0..end.0).step_by(FIRST as usize) {
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
    fn those_in_memory_are_found_across_chunks() {
        let table = MappingTable::new();
        for page in [1, FIRST, 3 * FIRST] {
            table.reserve(PageId(page));
        }
        let resident = [1, 5, FIRST - 1, FIRST, 3 * FIRST - 1, 3 * FIRST].map(PageId);
        resident.iter().for_each(|&page| assert!(table.replace(page, 0, NODE_ALIGN as u64)));
        let stored = FlashAddress::new(4096, 64).to_raw();
        [2, FIRST + 1].into_iter().for_each(|page| assert!(table.replace(PageId(page), 0, stored)));
        let found = |pages: Range<u64>| {
            let mut found = Vec::new();
            table.resident(PageId(pages.start)..PageId(pages.end), |page| found.push(page));
            found
        };
        assert_eq!(found(1..3 * FIRST + 1), resident);
        assert_eq!(found(5..3 * FIRST), resident[1..5]);
        assert_eq!(found(2..5), []);
        assert_eq!(found(5..5), []);
    }

    #[test]
    fn a_look_through_the_table_tells_of_each_page_what_it_consists_of() {
        let table = MappingTable::new();
        let end = 3 * LISTS_AT_ONCE + 7;
        table.reserve(PageId(end));
        // Of none, inline, and in one block or several.
        let of = |page: u64| {
            let mut fragments = Fragments::default();
            let numbers = 0..page % (UNREADABLE_FRAGMENTS_MAX as u64 + 1);
            numbers.for_each(|number| {
                assert!(fragments.push(FlashAddress::new(64 * (page << 8 | number) + 64, 64)))
            });
            fragments
        };
        (1..end).for_each(|page| table.set_fragments(PageId(page), of(page)));
        for pages in [1..end, 5..end - 9, 7..8, 9..9] {
            let mut found = Vec::new();
            table.look_through(PageId(pages.start)..PageId(pages.end), |page, fragments| {
                found.push((page, fragments))
            });
            let expected: Vec<_> = pages.map(|page| (PageId(page), Some(of(page)))).collect();
            assert_eq!(found, expected);
        }
        // Another has begun to append to its list, and has not said so yet.
        let (page, [first, ..]) = (PageId(1), &table.cold(PageId(1)).fragments);
        first.store(0, Ordering::Relaxed);
        table.look_through(page..PageId(2), |_, fragments| assert_eq!(fragments, None));
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
        is_unreadable: bool,
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
            is_unreadable: table.is_unreadable(page),
            is_disowned: table.is_disowned(page),
            is_changed: table.is_changed(page),
            is_claimed: claim.is_none(),
            fragments: table.fragments(page),
        }
    }

    proptest::proptest! {
        #[test]
        fn each_entry_is_one_of_its_own(
            steps in proptest::collection::vec((0..EDGES.len(), 0..17u8), 0..200),
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
                    15 => (table.set_unreadable(page), entry.is_unreadable = true).0,
                    16 => (table.clear_unreadable(page), entry.is_unreadable = false).0,
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
        // 32 bytes and a bit an entry.
        assert!(deuteron_fuzz::Meter::peak() < 3 * FIRST as usize * 33);
    }
}

#[cfg(all(test, loom))]
mod loom_tests;
