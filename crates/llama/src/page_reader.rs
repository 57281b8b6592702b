//! [`PageReader`]: reads the fragments of pages, many at once.
//!
//! A page is a chain of fragments, each of which names the next. Followed link by link that is a read after the other;
//! but the mapping table knows them all. What it says is taken for a guess, as a flush may be changing it: what counts
//! is the chain of links, and a fragment guessed wrong has been read in vain. So the reads go in rounds: first
//! everything that is guessed, of all pages; then, where a guess has failed, the links that are left. A page is done with as
//! soon as its last fragment is there, while those of others are on their way.
//!
//! Of a page of which not all is wanted ([`Extent::Chosen`]) nothing is guessed: each fragment must name the one that lies below it.

use crate::error::LlamaError;
use crate::flash_address::FlashAddress;
use crate::fragment::Defect;
use crate::fragments::{Filter, Fragments, UNREADABLE_FRAGMENTS_MAX};
use crate::llama::Llama;
use crate::page_id::PageId;
use crate::reading::{FragmentReads, InFlight, ReadFragment};

/// What is to be read of a page.
#[expect(
    clippy::large_enum_variant,
    reason = "few live at a time, and an allocation for each would cost more"
)]
pub(crate) enum Extent {
    /// From this fragment on all that lies below it.
    Whole(FlashAddress),
    Chosen(Chosen),
}

/// Some of the fragments of a page, the full one among them.
#[derive(Clone)]
pub(crate) struct Chosen {
    fragments: Fragments,
    /// A bit for each, the oldest's the lowest.
    bits: u32,
}

impl Chosen {
    /// The full one of `fragments`, and those whose filter is as wanted.
    pub(crate) fn new(fragments: Fragments, is_wanted: impl Fn(Filter) -> bool) -> Chosen {
        let wanted =
            |&(index, (_, filter)): &(usize, (FlashAddress, Filter))| index == 0 || is_wanted(filter);
        let bits =
            (0..).zip(fragments.with_filters()).filter(wanted).fold(0, |bits, (index, _)| bits | 1 << index);
        Chosen { fragments, bits }
    }

    /// Whether none is left out whose filter is as wanted.
    pub(crate) fn has_all(&self, is_wanted: impl Fn(Filter) -> bool) -> bool {
        let mut fragments = self.fragments.with_filters().enumerate();
        fragments.all(|(index, (_, filter))| self.bits >> index & 1 == 1 || !is_wanted(filter))
    }

    /// How many fragments are left out.
    pub(crate) fn spared(&self) -> usize {
        self.fragments.len() - self.bits.count_ones() as usize
    }

    /// Newest first.
    fn addresses(&self) -> impl Iterator<Item = FlashAddress> + '_ {
        let indexed = self.fragments.iter().rev().zip((0..self.fragments.len()).rev());
        indexed.filter(|(_, index)| self.bits >> index & 1 == 1).map(|(address, _)| address)
    }

    /// What lies below the fragment at `address` in the page, and the next one that is read.
    fn below(&self, address: FlashAddress) -> (Option<FlashAddress>, Option<FlashAddress>) {
        let below = self.fragments.iter().rev().skip_while(|other| *other != address).nth(1);
        (below, self.addresses().skip_while(|other| *other != address).nth(1))
    }
}

/// A page that is to be read, how much of it, and what for.
pub(crate) struct Wanted<P> {
    pub(crate) page: PageId,
    pub(crate) extent: Extent,
    /// Given back when it has been read.
    pub(crate) purpose: P,
}

/// Pages that are read besides the first, asked for while these are being read.
type More<'m, P> = dyn FnMut() -> Vec<Wanted<P>> + 'm;

/// What is told of a page that has been read: what for, and its fragments, newest first.
type Done<'d, P> = dyn FnMut(PageId, P, Result<&[ReadFragment<'_>], LlamaError>) + 'd;

/// A page whose fragments are being read.
struct PageReader<'b, P> {
    page: PageId,
    /// Until it has been read.
    purpose: Option<P>,
    /// The fragments read and checked, newest first.
    chain: Vec<ReadFragment<'b>>,
    /// The fragment that the last of the chain names, if any.
    next: Option<FlashAddress>,
    /// Read and not linked to yet.
    spare: Vec<ReadFragment<'b>>,
    /// Which are read, if not all.
    chosen: Option<Chosen>,
    error: Option<LlamaError>,
}

/// Pages whose fragments are being read.
struct PageReads<'b, 't, P> {
    llama: &'b Llama,
    readers: Vec<PageReader<'b, P>>,
    /// Each fragment that was asked for, and by which reader.
    asked: Vec<(usize, FlashAddress)>,
    more: Option<&'t mut More<'t, P>>,
    done: &'t mut Done<'t, P>,
}

impl Llama {
    /// Reads what is wanted of each page, and then of those that `more` wants besides, if it is given; newest first. Tells `done` of each page as soon as it is there: what that does, it does
    /// while others are read. Blocks on the device; to be called without a guard.
    pub(crate) fn read_pages<'t, P>(
        &self,
        pages: Vec<Wanted<P>>,
        more: Option<&'t mut More<'t, P>>,
        in_flight: InFlight,
        done: &'t mut Done<'t, P>,
    ) {
        let (mut readers, mut asked) = (Vec::with_capacity(pages.len()), Vec::with_capacity(2 * pages.len()));
        self.add_readers(pages, &mut readers, &mut asked);
        self.read_round(readers, asked, more, in_flight, done);
    }

    /// Adds a reader of each page, and to what is `asked` for its fragments, which are guessed of one that is read whole.
    fn add_readers<P>(
        &self,
        pages: Vec<Wanted<P>>,
        readers: &mut Vec<PageReader<'_, P>>,
        asked: &mut Vec<(usize, FlashAddress)>,
    ) {
        for Wanted { page, extent, purpose } in pages {
            let (index, before) = (readers.len(), asked.len());
            let chosen = match extent {
                Extent::Whole(newest) => {
                    asked.push((index, newest));
                    let older = self.table.guessed_fragments(page).older_than(newest);
                    asked.extend(older.map(|address| (index, address)));
                    None
                }
                Extent::Chosen(chosen) => {
                    asked.extend(chosen.addresses().map(|address| (index, address)));
                    Some(chosen)
                }
            };
            let next = Some(asked[before].1);
            let [chain, spare] = std::array::from_fn(|_| Vec::with_capacity(asked.len() - before));
            let purpose = Some(purpose);
            readers.push(PageReader { page, purpose, chain, next, spare, chosen, error: None });
        }
    }

    /// Reads what is `asked` for, each by the reader of that index, what `more` wants, and then the links that are left. What was read stays until all is.
    fn read_round<'t, P>(
        &self,
        readers: Vec<PageReader<'_, P>>,
        asked: Vec<(usize, FlashAddress)>,
        more: Option<&'t mut More<'t, P>>,
        in_flight: InFlight,
        done: &'t mut Done<'t, P>,
    ) {
        let addresses: Vec<_> = asked.iter().map(|&(_, address)| address).collect();
        let mut rooms = [None, None];
        let rooms = &mut rooms[..1 + usize::from(more.is_some())];
        let mut reads = PageReads { llama: self, readers, asked, more, done };
        self.store.segments.read(rooms, &addresses, in_flight, &mut reads);
        let PageReads { readers, done, .. } = reads;
        let left: Vec<_> =
            (0..).zip(&readers).filter_map(|(index, reader)| Some((index, reader.next?))).collect();
        if !left.is_empty() {
            self.read_round(readers, left, None, in_flight, done);
        }
    }
}

impl<'b, P> FragmentReads<'b> for PageReads<'b, '_, P> {
    fn more(&mut self) -> Vec<FlashAddress> {
        let Some(more) = self.more.take() else { return Vec::new() };
        let before = self.asked.len();
        self.llama.add_readers(more(), &mut self.readers, &mut self.asked);
        self.asked[before..].iter().map(|&(_, address)| address).collect()
    }

    fn take(&mut self, index: usize, read: Result<ReadFragment<'b>, LlamaError>) {
        let (index, address) = self.asked[index];
        let reader = &mut self.readers[index];
        if reader.is_done() {
            return;
        }
        reader.take(address, read);
        reader.link(self.llama);
        if reader.is_done() {
            let purpose = reader.purpose.take().expect("a page is told of once");
            (self.done)(reader.page, purpose, reader.error.take().map_or(Ok(&reader.chain), Err));
        }
    }
}

impl<'b, P> PageReader<'b, P> {
    fn is_done(&self) -> bool {
        self.next.is_none()
    }

    fn take(&mut self, address: FlashAddress, read: Result<ReadFragment<'b>, LlamaError>) {
        match read {
            Ok(read) => self.spare.push(read),
            Err(error) if self.next == Some(address) => self.fail(error),
            // A guess. If a link leads there, it is read again.
            Err(_) => {}
        }
    }

    fn fail(&mut self, error: LlamaError) {
        (self.next, self.error) = (None, Some(error));
    }

    /// Follows the links as far as they have been read, checking each fragment.
    fn link(&mut self, llama: &Llama) {
        let segments = &llama.store.segments;
        while let Some(next) = self.next
            && let Some(index) = self.spare.iter().position(|read| read.address() == next)
        {
            let mut read = self.spare.swap_remove(index);
            llama.counters.fragments_read.add(1);
            llama.counters.bytes_read.add(next.length());
            let checked = read.check().and_then(|fragment| match fragment.page() {
                page if page == self.page => Ok(fragment.previous()),
                page => Err(Defect::new(16, self.page, page)),
            });
            let checked =
                checked.and_then(|previous| match self.chosen.as_ref().map(|chosen| chosen.below(next)) {
                    None => Ok(previous),
                    Some((below, next)) if previous == below => Ok(next),
                    Some(_) => Err(Defect::new(32, "the fragment that lies below", "another")),
                });
            match checked {
                Ok(Some(_)) if self.chain.len() + 1 == UNREADABLE_FRAGMENTS_MAX => {
                    // Links that were written wrongly might go in a circle.
                    let defect =
                        Defect::new(32, format_args!("at most {UNREADABLE_FRAGMENTS_MAX} fragments"), "more");
                    self.fail(segments.corrupt(next.offset(), defect));
                }
                Ok(previous) => {
                    self.next = previous;
                    self.chain.push(read);
                }
                Err(defect) => self.fail(segments.corrupt(next.offset(), defect)),
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::fragment::Marshal;
    use crate::node::{OwnedNode, PageDescriptor};
    use crate::options::Options;
    use deuteron_device::MemoryDirectory;
    use deuteron_epoch::Epochs;
    use std::mem::take;
    use std::sync::Arc;

    /// A store whose first segment holds, for each of these, a fragment of page 1 at that block, on top of another.
    fn store(fragments: &[(u64, Option<u64>)]) -> Llama {
        let options = Options { direct: false, segment_bytes: 128 << 10, ..Options::tiny_for_tests() };
        let llama = Llama::open(Arc::new(MemoryDirectory::new()), options, Epochs::new()).unwrap().0;
        llama.allocate();
        llama.store.segments.create(0, 128 << 10).unwrap();
        let file = llama.store.segments.file(0).unwrap();
        let base = OwnedNode::base(b"base", PageDescriptor { tree: 1, low_key: b"", root: true }, &[]);
        let delta = OwnedNode::delta(b"delta");
        for &(block, previous) in fragments {
            let node = if previous.is_some() { delta.as_ref() } else { base.as_ref() };
            let previous = previous.map(|block| at(block).1);
            let marshal = Marshal { page: PageId(1), nodes: &[node], previous, packed: None };
            let mut bytes = vec![0; 128];
            marshal.encode(block * 4096, &mut bytes);
            file.write_at(&bytes, block * 4096).unwrap();
        }
        llama
    }

    fn at(block: u64) -> (PageId, FlashAddress) {
        (PageId(1), FlashAddress::new(block * 4096, 128))
    }

    /// What is wanted, for its place.
    fn wanted(extents: Vec<(PageId, Extent)>) -> Vec<Wanted<usize>> {
        let indexed = extents.into_iter().enumerate();
        indexed.map(|(purpose, (page, extent))| Wanted { page, extent, purpose }).collect()
    }

    /// Of each page the addresses of its fragments.
    fn read(
        llama: &Llama,
        pages: &[(PageId, FlashAddress)],
    ) -> Vec<Result<Vec<(PageId, FlashAddress)>, LlamaError>> {
        let whole = |&(page, newest): &(PageId, FlashAddress)| (page, Extent::Whole(newest));
        read_extents(llama, pages.iter().map(whole).collect())
    }

    fn read_extents(
        llama: &Llama,
        pages: Vec<(PageId, Extent)>,
    ) -> Vec<Result<Vec<(PageId, FlashAddress)>, LlamaError>> {
        let mut found: Vec<_> = pages.iter().map(|_| None).collect();
        let mut wanted = wanted(pages);
        // The later ones are asked for when the first are being read.
        let mut more = wanted.split_off(wanted.len() / 3);
        llama.read_pages(wanted, Some(&mut || take(&mut more)), InFlight::Many, &mut |_, index, read| {
            let fragments = |chain: &[ReadFragment<'_>]| {
                chain.iter().map(|read| (read.fragment().page(), read.address())).collect()
            };
            assert!(found[index].replace(read.map(fragments)).is_none(), "twice");
        });
        found.into_iter().map(|read| read.expect("each is told of")).collect()
    }

    #[test]
    fn a_page_of_as_many_fragments_as_there_may_be_is_read_link_by_link() {
        let most = UNREADABLE_FRAGMENTS_MAX as u64;
        let row: Vec<_> = (1..=most + 1).map(|block| (block, (block > 1).then_some(block - 1))).collect();
        let llama = store(&row);
        let chains = read(&llama, &[at(most), at(3)]);
        for (chain, newest) in chains.into_iter().zip([most, 3]) {
            assert_eq!(chain.unwrap(), (1..=newest).rev().map(at).collect::<Vec<_>>());
        }
        let Err(LlamaError::Corrupt { offset, expected, .. }) = &read(&llama, &[at(most + 1)])[0] else {
            panic!()
        };
        assert_eq!((*offset, &expected[..]), (2 * 4096 + 32, &format!("at most {most} fragments")[..]));
    }

    #[test]
    fn links_in_a_circle_and_the_fragments_of_another_page_are_reported() {
        let llama = store(&[(1, Some(2)), (2, Some(1)), (3, None)]);
        assert!(matches!(read(&llama, &[at(1)])[0], Err(LlamaError::Corrupt { .. })));
        let other = [(PageId(2), at(3).1), at(3)];
        llama.allocate();
        let chains = read(&llama, &other);
        let Err(LlamaError::Corrupt { offset, expected, found, .. }) = &chains[0] else { panic!() };
        assert_eq!((*offset, &expected[..], &found[..]), (3 * 4096 + 16, "page 2", "page 1"));
        assert_eq!(chains[1].as_ref().unwrap().len(), 1);
        assert!(read(&llama, &[]).is_empty());
    }
    #[test]
    fn of_what_is_chosen_each_names_what_lies_below_it() {
        let llama = store(&[(1, None), (2, Some(1)), (3, Some(2)), (4, Some(3)), (5, Some(3))]);
        let chosen = |blocks: &[u64], bits: Filter| {
            let mut fragments = Fragments::default();
            for &block in blocks {
                assert!(fragments.push_filtered(at(block).1, 1 << block));
            }
            let chosen = Chosen::new(fragments, |filter| filter & bits != 0);
            assert_eq!(chosen.spared(), blocks.len() - chosen.addresses().count());
            // The oldest has all that is not in those above.
            let has = |block: u64| chosen.addresses().any(|address| address == at(block).1);
            for &block in blocks {
                assert_eq!(chosen.has_all(|filter| filter == 1 << block), has(block));
            }
            (PageId(1), Extent::Chosen(chosen))
        };
        let pages = vec![
            chosen(&[1, 2, 3, 4], 1 << 3),
            chosen(&[1, 2, 3, 4], 0),
            chosen(&[1, 2, 3, 4], Filter::MAX),
            (PageId(1), Extent::Whole(at(2).1)),
            // 5 says that 3 lies below it, not 4.
            chosen(&[1, 2, 3, 4, 5], 1 << 5),
        ];
        let mut read = read_extents(&llama, pages).into_iter();
        for expected in [&[3, 1][..], &[1], &[4, 3, 2, 1], &[2, 1]] {
            let expected: Vec<_> = expected.iter().map(|&block| at(block)).collect();
            assert_eq!(read.next().unwrap().unwrap(), expected);
        }
        let Err(LlamaError::Corrupt { offset, .. }) = read.next().unwrap() else { panic!() };
        assert_eq!(offset, 5 * 4096 + 32);
    }
}
