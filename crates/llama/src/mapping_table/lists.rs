//! [`Lists`]: the addresses of the fragments of each page, in few bytes where they are few.
//!
//! Most pages of a large database consist of one fragment or two; those that are written to blindly of up to [`FRAGMENTS_MAX`](crate::FRAGMENTS_MAX), and of some more if
//! some cannot be read. An entry of the mapping
//! table has [`INLINE`] words. Where they do not suffice the last of them is a *link* to a block of four more, whose last word may be another link:
//!
//! ```text
//!   1..=2 fragments   [a b]
//!   3..=5             [a ─]──▶[b c d e]
//!   6..=8             [a ─]──▶[b c d ─]──▶[e f g h]
//! ```
//!
//! | word | meaning |
//! |---|---|
//! | 0 | nothing more |
//! | bit 0 set | a [`FlashAddress`] |
//! | bit 0 clear | a link: the number of a block, and 1, shifted by one |
//!
//! Behind the four words of a block lie the [filters](Filter) of the fragments that they name, of 16 bits each. That of the second inline word has
//! its place in the page's state word; the first is as a rule the full fragment, which may hold anything.
//!
//! ## Invariants
//!
//! - **L1** One thread at a time changes the list of a page: whoever has its claim, and may fill a flush buffer; or the store's flush lock, while nobody does.
//! - **L2** Blocks live as long as the table, and while they are free they are zeros, but for the place of the filters, which says what is free next. So who reads beside a change, which may lead it astray into the
//!   block of another page, finds addresses of some page, and at most `UNREADABLE_FRAGMENTS_MAX` of them: a guess.
//! - **L3** Before an address in a word changes, the filters beside it become *anything*, and only then what the new ones are. An address that a list has lost it never gets
//!   back. So who reads a list twice and finds the same has found what was the list in between, and filters that let pass what its fragments hold.
//! - **L4** While fragments are appended those before them stay where they are, but that one may move behind the link that takes its place: who reads meanwhile finds it,
//!   or comes to an end there. How many there are is said by the state word, afterwards. So who reads a list, and then that it has as many fragments as were found, has
//!   missed none that the page had before and still has.

use super::INLINE;
use crate::doubling::{Doubling, zeros};
use crate::flash_address::FlashAddress;
use crate::fragments::{ANYTHING, Filter, Fragments, UNREADABLE_FRAGMENTS_MAX};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use deuteron_epoch::prefetch;
use std::sync::PoisonError;

const BLOCK: usize = 4;
/// The words of a block, and the filters.
type Block = [AtomicU64; BLOCK + 1];

/// So many bits has a filter.
const FILTER_BITS: usize = Filter::BITS as usize;
/// Four filters of fragments that may hold anything.
const ALL_ANYTHING: u64 = u64::MAX;

/// A word of a list.
#[derive(Clone, Copy)]
enum Word {
    End,
    Address(FlashAddress),
    Link(u64),
}

/// The blocks. See the module documentation.
pub(super) struct Lists {
    blocks: Doubling<Box<[Block]>>,
    /// The number of a free block, and 1, or 0 if there is none; where its filters would be lies the same of the next one.
    free: Mutex<u64>,
    /// Blocks from here on have never been used.
    fresh: AtomicU64,
}

fn word(slot: &AtomicU64) -> Word {
    // Acquire pairs with the release in `put`: whoever sees a link finds the block. What else is read beside a change is a guess (L2).
    let raw = slot.load(Ordering::Acquire);
    match FlashAddress::from_raw(raw) {
        Some(address) => Word::Address(address),
        None if raw == 0 => Word::End,
        None => Word::Link((raw >> 1) - 1),
    }
}

fn link(block: u64) -> u64 {
    (block + 1) << 1
}

fn put(slot: &AtomicU64, raw: u64) {
    slot.store(raw, Ordering::Release);
}

impl Lists {
    pub(super) fn new() -> Lists {
        Lists { blocks: Doubling::new(), free: Mutex::default(), fresh: AtomicU64::new(0) }
    }

    /// Bytes that the blocks take.
    pub(super) fn bytes(&self) -> u64 {
        // Relaxed: a figure.
        self.fresh.load(Ordering::Relaxed) * size_of::<Block>() as u64
    }

    /// The list that begins in `inline`, `filter` being asked for that of its second word afterwards. For whoever may not change it see L3.
    pub(super) fn read(&self, inline: &[AtomicU64; INLINE], filter: impl Fn() -> Filter) -> Fragments {
        self.walk(inline, |beside| match beside {
            None => u64::from(filter()) << FILTER_BITS | u64::from(ANYTHING),
            // Acquire: whoever sees the filters of other addresses finds those when it looks again (L3).
            Some(filters) => filters.load(Ordering::Acquire),
        })
    }

    /// The list that begins in `inline`, each of which may hold anything; a guess for whoever may not change it.
    pub(super) fn guess(&self, inline: &[AtomicU64; INLINE]) -> Fragments {
        self.walk(inline, |_| ALL_ANYTHING)
    }

    /// Asks the processor for the blocks of all of these lists side by side, where reading them one after the other would wait for each block.
    pub(super) fn prefetch<'l>(&'l self, lists: impl Iterator<Item = &'l [AtomicU64; INLINE]>) {
        let next = |last: &AtomicU64| match word(last) {
            Word::Link(block) => {
                let block = self.block(block);
                prefetch(&raw const block[0]);
                prefetch(&raw const block[BLOCK]);
                Some(block)
            }
            Word::End | Word::Address(_) => None,
        };
        let mut blocks: Vec<&Block> = lists.filter_map(|inline| next(&inline[INLINE - 1])).collect();
        // Not for ever, if links that are being changed lead in a circle (L2).
        for _ in 0..UNREADABLE_FRAGMENTS_MAX.div_ceil(BLOCK - 1) {
            blocks.retain_mut(|block| next(&block[BLOCK - 1]).map(|next| *block = next).is_some());
        }
    }

    /// Follows a list, and asks for the filters beside the inline words and beside those of each block after it has read the words.
    fn walk(&self, inline: &[AtomicU64; INLINE], filters: impl Fn(Option<&AtomicU64>) -> u64) -> Fragments {
        let mut fragments = Fragments::default();
        let words = inline.each_ref().map(word);
        let mut link = append(&mut fragments, &words, filters(None));
        while let Some(block) = link {
            let [words @ .., beside] = self.block(block);
            let words = words.each_ref().map(word);
            link = append(&mut fragments, &words, filters(Some(beside)));
        }
        fragments
    }

    /// Makes `fragments` the list that begins in `inline`, whose second word has *anything* for its filter meanwhile. By who may (L1). The filter
    /// of that word, to be put in its place.
    pub(super) fn write(&self, inline: &[AtomicU64; INLINE], fragments: &Fragments) -> Filter {
        let mut left = fragments.with_filters();
        let (inline_filters, mut link) = self.fill(inline, &mut left);
        while let Some(block) = link {
            let [words @ .., beside] = self.block(block);
            let (filters, next) = self.fill(words, &mut left);
            // Release: whoever sees them sees the addresses.
            beside.store(filters, Ordering::Release);
            link = next;
        }
        (inline_filters >> FILTER_BITS) as Filter
    }

    /// Puts what is left into words, or, if it is too much, a link to a block into the last of them. The filters of what was put there, and that block, whose
    /// own are *anything* now.
    fn fill(
        &self,
        words: &[AtomicU64],
        left: &mut (impl Iterator<Item = (FlashAddress, Filter)> + Clone),
    ) -> (u64, Option<u64>) {
        let (last, others) = words.split_last().expect("a block has words");
        let behind = match word(last) {
            Word::Link(block) => Some(block),
            Word::End | Word::Address(_) => None,
        };
        let mut filters = 0;
        let mut place = |index: usize, slot: &AtomicU64, fragment: Option<(FlashAddress, Filter)>| {
            put(slot, fragment.map_or(0, |(address, _)| address.to_raw()));
            filters |= u64::from(fragment.map_or(0, |(_, filter)| filter)) << (FILTER_BITS * index);
        };
        for (index, slot) in others.iter().enumerate() {
            place(index, slot, left.next());
        }
        if left.clone().nth(1).is_none() {
            place(others.len(), last, left.next());
            self.free_from(behind);
            return (filters, None);
        }
        let block = behind.unwrap_or_else(|| self.take());
        // Before the link leads there.
        self.block(block)[BLOCK].store(ALL_ANYTHING, Ordering::Release);
        put(last, link(block));
        (filters, Some(block))
    }

    fn block(&self, block: u64) -> &Block {
        let (blocks, index) = self.blocks.get(block).expect("a link leads to a block");
        &blocks[index]
    }

    fn free(&self) -> MutexGuard<'_, u64> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of zeros, but for what will be its filters.
    fn take(&self) -> u64 {
        {
            let mut free = self.free();
            if let Some(block) = free.checked_sub(1) {
                // Relaxed: stored under the lock.
                *free = self.block(block)[BLOCK].load(Ordering::Relaxed);
                return block;
            }
        }
        let block = self.fresh.fetch_add(1, Ordering::Relaxed);
        self.blocks.reserve(block, zeros);
        block
    }

    /// Gives `block` back, and all that it leads to.
    fn free_from(&self, mut block: Option<u64>) {
        while let Some(number) = block {
            let [slots @ .., beside] = self.block(number);
            block = match word(&slots[BLOCK - 1]) {
                Word::Link(next) => Some(next),
                Word::End | Word::Address(_) => None,
            };
            slots.iter().for_each(|slot| put(slot, 0));
            let mut free = self.free();
            // Release: whoever takes it for filters sees that their addresses have gone when it looks again (L3).
            beside.store(*free, Ordering::Release);
            *free = number + 1;
        }
    }
}

/// Appends what the words of a block say to `fragments`; the block behind it, if there is one.
fn append(fragments: &mut Fragments, words: &[Word], filters: u64) -> Option<u64> {
    for (index, &word) in words.iter().enumerate() {
        match word {
            Word::Address(address)
                if fragments.push_filtered(address, (filters >> (FILTER_BITS * index)) as Filter) => {}
            Word::Address(_) | Word::End => return None,
            Word::Link(block) => return Some(block),
        }
    }
    None
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn free_blocks(lists: &Lists) -> usize {
        let following = |block: &u64| lists.block(*block)[BLOCK].load(Ordering::Relaxed).checked_sub(1);
        std::iter::successors(lists.free().checked_sub(1), following).count()
    }

    proptest::proptest! {
        #[test]
        fn each_list_is_what_was_written_last_and_blocks_are_used_again(
            steps in proptest::collection::vec((0..4usize, 0..=UNREADABLE_FRAGMENTS_MAX), 0..60),
        ) {
            let lists = Lists::new();
            let inlines: [[AtomicU64; INLINE]; 4] = Default::default();
            let mut model = [Fragments::default(); 4];
            let mut filters = [0; 4];
            for (number, (list, length)) in steps.into_iter().enumerate() {
                let mut fragments = Fragments::default();
                for index in 0..length {
                    let at = 1 + number * UNREADABLE_FRAGMENTS_MAX + index;
                    let filter = if index == 0 { ANYTHING } else { at as Filter };
                    assert!(fragments.push_filtered(FlashAddress::new(4096 * at as u64, 64), filter));
                }
                filters[list] = lists.write(&inlines[list], &fragments);
                model[list] = fragments;
                for ((inline, &filter), expected) in inlines.iter().zip(&filters).zip(&model) {
                    assert_eq!(lists.read(inline, || filter), *expected);
                }
                // As many as are in use, and free ones.
                let blocks = |length: usize| length.saturating_sub(INLINE).div_ceil(BLOCK - 1);
                let used: usize = model.iter().map(|fragments| blocks(fragments.len())).sum();
                assert_eq!(lists.fresh.load(Ordering::Relaxed) as usize, used + free_blocks(&lists));
            }
            assert!(lists.bytes() as usize <= 4 * 40 * UNREADABLE_FRAGMENTS_MAX.div_ceil(BLOCK - 1));
        }
    }

    #[test]
    fn who_is_led_in_a_circle_comes_to_an_end() {
        let lists = Lists::new();
        let inline: [AtomicU64; INLINE] = Default::default();
        let mut fragments = Fragments::default();
        (1..=4).for_each(|number| assert!(fragments.push(FlashAddress::new(64 * number, 64))));
        lists.write(&inline, &fragments);
        // As somebody may see it who reads while the block is given to another list.
        lists.block(0)[BLOCK - 1].store(link(0), Ordering::Relaxed);
        assert_eq!(lists.guess(&inline).len(), UNREADABLE_FRAGMENTS_MAX);
    }
}
