//! Recovery: from the newest image and the buffers after its scan start to the mapping table.
//!
//! 1. The newest image is read, and those before it that it builds on. Unfinished images are removed.
//! 2. Buffers are read from the scan start, each behind the last one of its stream or at the start of the next segment, as
//!    long as sequence number, chain and all checksums are right. Every fragment becomes the newest of its page,
//!    unless the image knew a newer one, which the scan has still to meet. Where the row ends is the *tail*. If a later buffer of the store lies
//!    behind it, bytes in between are corrupt; else the tail is where the machine stopped.
//! 3. Pages count that are in the image, or are the first of a tree, or are adopted by a page that counts, until a
//!    page disowns them. Adopted and disowned is followed in the order of the store, since an identifier may live several
//!    times. Others (right halves whose split did not become durable) are forgotten. Their identifiers are not given out again
//!    before a later opening finds no trace of them, lest an old adoption bring back a page it did not mean.
//! 4. Segments behind the tail are removed. The last buffer is written again, and the directory synced: they may have been found in a
//!    cache and not on the medium (the process died, not the machine, while it wrote; or its write failed), and nothing may
//!    become durable behind what is not. Writing goes on at the tail in a new incarnation.
//!
//! Recovery itself changes nothing but by those removals, and a crash during it leaves what it found.

mod newest_image;

pub(crate) use newest_image::readable_image;

use crate::accounts::Accounts;
use crate::by_page::ByPage;
use crate::error::LlamaError;
use crate::excerpt::Lately;
use crate::filling::Filling;
use crate::flash_address::{FlashAddress, OFFSETS_END};
use crate::flush::Flusher;
use crate::flush_buffer::{BufferHeader, HEADER_BYTES, MARKS, Position, STREAMS};
use crate::fragment::{Defect, Fragment};
use crate::fragments::PackedFragments;
use crate::free_list::FreeList;
use crate::image::image_name;
use crate::llama::Llama;
use crate::loading::Loading;
use crate::mapping_table::{MappingTable, Word};
use crate::memory::ByteCounter;
use crate::options::Options;
use crate::page_id::PageId;
use crate::segments::{Segments, segment_index, segment_name};
use crate::statistics::{Counters, Histograms};
use crate::store::Store;
use crate::stretch::StretchReader;
use crate::sync::{AtomicBool, AtomicU64, Mutex, RwLock};
use crate::writing::Writing;
use deuteron_device::{AlignedBuffer, BLOCK_BYTES, Directory, OpenMode};
use deuteron_epoch::Epochs;
use newest_image::{FRAGMENT_BYTES_MIN, UNFLUSHED_PAGES_MAX, newest_image};
use std::collections::BTreeMap;
use std::mem::take;
use std::sync::{Arc, OnceLock};

/// What [`Llama::open`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// What the last completed checkpoint was given to remember; empty in a new store.
    pub user_data: Vec<u8>,
    /// The highest [marks](Llama::raise_mark) with which anything of what was found was written.
    pub marks: [u64; MARKS],
    /// Every page that counts, sorted by tree and low key.
    pub pages: Vec<RecoveredPage>,
}

/// A page that [`Llama::open`] found. It is on flash only until it is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct RecoveredPage {
    /// The tree of its descriptor.
    pub tree: u32,
    /// The low key of its descriptor.
    pub low_key: Vec<u8>,
    /// The page.
    pub page: PageId,
}

/// Bytes read at once in the search for buffers behind the tail.
const BEHIND_BYTES: usize = 1 << 20;

/// What is known of a page.
struct Known {
    tree: u32,
    low_key: Vec<u8>,
    fragments: PackedFragments,
    counts: bool,
    /// The scan has met it: the images are out of date.
    is_scanned: bool,
    /// The newest fragment is the image's, and lies behind the scan start: what the scan meets before is older.
    ahead: bool,
    /// Adopted by this page, and by which fragment, as long as it does not count itself.
    waiting: Vec<(PageId, Moment)>,
}

impl Known {
    /// Of a page of which nothing more has been found yet.
    fn new(tree: u32, low_key: Vec<u8>) -> Known {
        let fragments = PackedFragments::default();
        Known {
            tree,
            low_key,
            fragments,
            counts: false,
            is_scanned: false,
            ahead: false,
            waiting: Vec::new(),
        }
    }
}

/// When a fragment was written, and where: by the order of the buffers, and that in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    sequence: u64,
    offset: u64,
}

/// What has been found so far.
struct Scan<'a> {
    segments: &'a Segments,
    position: Position,
    incarnation: u64,
    marks: [u64; MARKS],
    known: ByPage<Known>,
    /// Pages of which too little was found. Well if they are disowned in the end: then the image could leave them out.
    dangling: BTreeMap<PageId, LlamaError>,
    /// The last fragment that disowns a page: what adopts it earlier does not count any more.
    disowned: BTreeMap<PageId, Moment>,
    next_page: PageId,
    /// No identifier was given out from here on, by what has been written.
    pages_end: u64,
    /// The last buffer of the row.
    last: Option<BufferHeader>,
}

impl Llama {
    /// Opens the store in `directory`, or creates it. Files of other names are left alone.
    ///
    /// # Errors
    /// [`LlamaError`] if an option cannot be, the device fails, or the files are corrupt or of another version.
    ///
    /// ```
    /// use deuteron_device::MemoryDirectory;
    /// use deuteron_epoch::Epochs;
    /// use deuteron_llama::{Llama, Options, OwnedNode, PageDescriptor};
    /// use std::sync::Arc;
    ///
    /// let directory = Arc::new(MemoryDirectory::new());
    /// let (llama, found) = Llama::open(directory, Options::default(), Epochs::new())?;
    /// assert!(found.pages.is_empty());
    ///
    /// let page = llama.allocate();
    /// let guard = llama.pin();
    /// let root = OwnedNode::base(b"hello", PageDescriptor { tree: 1, low_key: b"", root: true }, &[]);
    /// let free = llama.snapshot(page, &guard);
    /// let installed = llama.install(page, free, root, &guard).expect("nobody else knows the page");
    /// assert_eq!(installed.head().unwrap().payload(), b"hello");
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn open(
        directory: Arc<dyn Directory>,
        options: Options,
        epochs: Arc<Epochs>,
    ) -> Result<(Llama, Recovered), LlamaError> {
        options.validate()?;
        let image = newest_image(&directory, &options)?;
        let options = Options { segment_bytes: image.start.segment_bytes, ..options };
        options.validate()?;
        let segments =
            Segments::new(Arc::clone(&directory), image.start.store, options.segment_bytes, options.direct);
        let existing = open_segments(&segments)?;

        let mut scan = Scan {
            segments: &segments,
            position: image.start.start,
            incarnation: image.start.incarnation,
            marks: image.start.marks,
            known: image.pages,
            dangling: BTreeMap::new(),
            disowned: BTreeMap::new(),
            // What lies behind the last one that is met is as if it had never been given out.
            next_page: PageId(1),
            pages_end: image.next_page.0 + UNFLUSHED_PAGES_MAX,
            last: None,
        };
        for (page, known) in scan.known.iter_mut() {
            scan.next_page = scan.next_page.max(PageId(page.0 + 1));
            let newest = known.fragments.newest().expect("checked when it was read");
            known.ahead = !segments.is_before(newest.offset(), image.start.start);
        }
        scan.run()?;
        if let Some((_, defect)) = scan.dangling.pop_first() {
            return Err(defect);
        }
        let Scan { position, incarnation, marks, mut known, next_page, disowned, last, .. } = scan;

        let buffers = (options.segment_bytes / options.flush_buffer_bytes as u64).max(1);
        let mut accounts =
            Accounts::new(options.segment_bytes, buffers * (HEADER_BYTES + BLOCK_BYTES) as u64);
        let ahead = known.iter().filter(|(_, known)| known.ahead);
        let beyond = ahead.filter_map(|(_, known)| known.fragments.newest());
        if let Some(beyond) = beyond.min_by_key(|address| address.offset()) {
            let defect = Defect::new(0, "a flush buffer", "nothing, though the image refers to it");
            return Err(segments.corrupt(beyond.offset(), defect));
        }
        remove_behind(&segments, &existing, position)?;
        segments.remove_left_spares().map_err(LlamaError::Device)?;
        make_durable(&segments, last)?;
        for &index in existing.iter().filter(|&&index| segments.file(index).is_some()) {
            let length = segments.check_header(index)?;
            // How much of it was written is not known: at most all that lies before the tail.
            let end = position.offsets.into_iter().find(|&end| segments.index(end) == index);
            let length = length.min(segments.segment_bytes);
            accounts.open(index, length, end.map_or(length, |end| end % segments.segment_bytes));
        }

        let Some(table) = MappingTable::of(next_page) else {
            return Err(LlamaError::Corrupt {
                file: image_name(image.start.number),
                offset: 0,
                expected: "as many identifiers of pages as there is memory for".to_owned(),
                found: format!("{} of them", next_page.0),
            });
        };
        let mut images = image.images;
        disowned.keys().filter(|&&page| page < next_page).for_each(|&page| images.note(&table, page));
        let mut pages = Vec::new();
        for (page, known) in known.iter_mut().filter(|(_, known)| known.counts) {
            // Given up, as the table grows by as much.
            let fragments = take(&mut known.fragments).unpack();
            for address in fragments.iter() {
                let segment = segments.index(address.offset());
                let end = address.offset() % segments.segment_bytes + address.length();
                let allocated = accounts.allocated(segment);
                if end > allocated {
                    let expected = format!("a fragment of {page}");
                    let defect = Defect::new(0, expected, format_args!("a segment of {allocated} bytes"));
                    return Err(segments.corrupt(address.offset(), defect));
                }
                accounts.add(address, None);
            }
            let newest = fragments.newest().expect("a page that counts has a fragment");
            table.set_fragments(page, fragments);
            table.set_adopted(page);
            table.replace(page, 0, Word::Stored(newest).encode());
            if known.is_scanned {
                images.note_place(&table, page, known.tree, &known.low_key);
                images.note(&table, page);
            }
            pages.push(RecoveredPage { tree: known.tree, low_key: take(&mut known.low_key), page });
        }
        let pages = sorted(pages);
        let free = FreeList::new(next_page, known.iter().map(|(page, _)| page));

        let live_bytes = accounts.live_bytes();
        let mut flusher = Flusher::new(position, incarnation + 1, accounts, images);
        flusher.image_start = image.start.start;
        let (filling, writing) =
            (Filling::new(options.flush_buffer_bytes), Writing::new(options.flush_buffer_bytes));
        let lately = Lately::new(options.memory_bytes);
        let llama = Llama {
            writing: Mutex::new(writing),
            flushed: Mutex::default(),
            memory: ByteCounter::new(options.memory_bytes),
            budget: AtomicU64::new(options.memory_bytes),
            pages_bytes_max: AtomicU64::new(options.memory_bytes),
            places_bytes: AtomicU64::new(0),
            idle_bytes: AtomicU64::new(0),
            live_bytes,
            options,
            epochs,
            table,
            pages: Arc::new(free),
            counters: Counters::default(),
            histograms: Histograms::default(),
            store: Store::new(segments, position),
            flusher: Mutex::new(flusher),
            filling: RwLock::new(filling),
            begun: Default::default(),
            cleaning: Mutex::default(),
            flusher_awaited: AtomicU64::new(0),
            hurried: AtomicU64::new(0),
            rows: Mutex::default(),
            unread: Mutex::default(),
            flush_hand: AtomicU64::new(1),
            sealed: Mutex::default(),
            access_method: OnceLock::new(),
            loading: Loading::new(),
            lately,
            evict_hand: AtomicU64::new(0),
            checkpointing: Arc::new(AtomicBool::new(false)),
            segment_holds: Default::default(),
            marks: marks.map(AtomicU64::new),
        };
        Ok((llama, Recovered { user_data: image.start.user_data, marks, pages }))
    }
}

/// By tree and low key. Most keys differ in their first bytes, which lie beside each other here.
fn sorted(mut pages: Vec<RecoveredPage>) -> Vec<RecoveredPage> {
    let head = |key: &[u8]| {
        let mut head = [0; 8];
        let bytes = key.len().min(8);
        head[..bytes].copy_from_slice(&key[..bytes]);
        u64::from_be_bytes(head)
    };
    let heads = pages.iter().enumerate().map(|(at, page)| (page.tree, head(&page.low_key), at));
    let mut order: Vec<(u32, u64, usize)> = heads.collect();
    order.sort_unstable_by(|left, right| {
        let heads = (left.0, left.1).cmp(&(right.0, right.1));
        heads.then_with(|| pages[left.2].cmp(&pages[right.2]))
    });
    order.into_iter().map(|(_, _, at)| take(&mut pages[at])).collect()
}

/// Opens all segment files; their numbers, sorted.
fn open_segments(segments: &Segments) -> Result<Vec<u64>, LlamaError> {
    let names = segments.directory.list().map_err(LlamaError::Device)?;
    let mut existing: Vec<u64> = names.iter().filter_map(|name| segment_index(name)).collect();
    existing.sort_unstable();
    for &index in &existing {
        if index >= OFFSETS_END / segments.segment_bytes {
            return Err(LlamaError::Corrupt {
                file: segment_name(index),
                offset: 0,
                expected: "a number that a segment can have".to_owned(),
                found: format!("{index}"),
            });
        }
        segments.open(index, OpenMode::ReadWrite).map_err(LlamaError::Device)?;
    }
    Ok(existing)
}

/// Removes the segments that were begun when the machine stopped, in which no buffer has become durable.
fn remove_behind(segments: &Segments, existing: &[u64], tail: Position) -> Result<(), LlamaError> {
    // The tail's own segment, too, if nothing has been written to it.
    let is_empty = |offset| offset <= segments.start(segments.index(offset));
    for offset in tail.offsets {
        if !is_empty(offset) && segments.file(segments.index(offset)).is_none() {
            let defect = Defect::new(0, "the segment with the tail of the store", "no such file");
            return Err(segments.corrupt(offset, defect));
        }
    }
    let is_behind = |segment: u64| {
        let offset = tail.offsets[segment as usize % STREAMS];
        segment > segments.index(offset) || segment == segments.index(offset) && is_empty(offset)
    };
    let mut removed = false;
    for &behind in existing.iter().filter(|&&segment| is_behind(segment)) {
        // Its header may be torn. But if it is whole it must be ours: nothing of another store is removed.
        if segments.is_foreign(behind)? {
            segments.check_header(behind)?;
        }
        segments.remove(behind).map_err(LlamaError::Device)?;
        removed = true;
    }
    if removed { segments.directory.sync().map_err(LlamaError::Device) } else { Ok(()) }
}

/// What was found is to outlast the machine before anything is written behind it.
fn make_durable(segments: &Segments, last: Option<BufferHeader>) -> Result<(), LlamaError> {
    if let Some(header) = last {
        let (offset, within) = (header.offset, header.offset % segments.segment_bytes);
        let file = segments.file(segments.index(offset)).expect("the buffer was read from it");
        let mut bytes = AlignedBuffer::zeroed(header.length as usize);
        file.read_at(&mut bytes, within).map_err(LlamaError::Device)?;
        // It was read once more: what has rotted since must not become what was written.
        header.fragments(&bytes).map_err(|defect| segments.corrupt(offset, defect))?;
        header.encode(&mut bytes);
        file.write_durable_at(&bytes, within).map_err(LlamaError::Device)?;
    }
    segments.directory.sync().map_err(LlamaError::Device)
}

impl Scan<'_> {
    /// Reads buffers up to the tail.
    fn run(&mut self) -> Result<(), LlamaError> {
        let mut reader = StretchReader::new(self.segments);
        while let Some((header, crc)) = self.next_buffer(&mut reader)? {
            let fragments = header.fragments(reader.buffer(&header)?).expect("checked by next_buffer");
            self.pages_end += header.length / FRAGMENT_BYTES_MIN;
            for fragment in &fragments {
                if fragment.page().0 >= self.pages_end {
                    let defect =
                        Defect::new(16, format_args!("a page below {}", self.pages_end), fragment.page());
                    return Err(self.segments.corrupt(fragment.address().offset(), defect));
                }
                self.apply(fragment, header.sequence);
            }
            self.incarnation = self.incarnation.max(header.incarnation);
            for (mark, found) in self.marks.iter_mut().zip(header.marks) {
                *mark = found.max(*mark);
            }
            self.last = Some(header);
            let (stream, end) = (self.segments.stream(header.offset), header.offset + header.length);
            self.position = self.position.next(stream, self.segments.behind(header.offset, end), crc);
        }
        self.check_behind_tail(&reader)
    }

    /// Where the next buffer may be.
    fn candidates(&self) -> impl Iterator<Item = u64> {
        let segments = self.segments;
        let next = |offset| segments.start(Segments::following(segments.index(offset)));
        self.position.offsets.into_iter().flat_map(move |offset| [offset, next(offset)])
    }

    /// The next buffer in the row, checked.
    fn next_buffer(&self, reader: &mut StretchReader<'_>) -> Result<Option<(BufferHeader, u32)>, LlamaError> {
        for offset in self.candidates() {
            let Some((header, crc)) = reader.header(offset)? else { continue };
            if header.sequence != self.position.sequence || header.chain != self.position.chain {
                continue;
            }
            let bytes = reader.buffer(&header)?;
            match header.fragments(bytes) {
                Ok(_) => return Ok(Some((header, crc))),
                Err(defect) if header.is_whole(bytes) => return Err(self.segments.corrupt(offset, defect)),
                // A torn buffer is the tail; what lies behind it decides whether that is well.
                Err(_) => {}
            }
        }
        Ok(None)
    }

    /// Buffers are written one after the other, each durable before the next is begun. So a later one behind the
    /// tail means that the one at the tail was durable, and is damaged.
    fn check_behind_tail(&self, reader: &StretchReader<'_>) -> Result<(), LlamaError> {
        for tail in self.position.offsets {
            if let Some(later) = self.later_behind(tail, reader)? {
                let expected = format!("flush buffer {}", self.position.sequence);
                let found = format!("damage, and behind it flush buffer {}", later.sequence);
                return Err(self.segments.corrupt(tail, Defect::new(0, expected, found)));
            }
        }
        Ok(())
    }

    /// A buffer of the stream behind `tail` that is not the one expected next.
    fn later_behind(
        &self,
        tail: u64,
        reader: &StretchReader<'_>,
    ) -> Result<Option<BufferHeader>, LlamaError> {
        let segments = self.segments;
        let (index, end) = (segments.index(tail), segments.end(tail));
        let is_later = |header: &BufferHeader| header.sequence > self.position.sequence;
        if let Some(file) = segments.file(index) {
            let length = file.length().map_err(LlamaError::Device)?.min(segments.segment_bytes);
            let mut chunk = AlignedBuffer::zeroed(BEHIND_BYTES);
            let mut within = tail % segments.segment_bytes;
            while within + BLOCK_BYTES as u64 <= length {
                let bytes = (length - within).min(chunk.len() as u64) as usize / BLOCK_BYTES * BLOCK_BYTES;
                file.read_at(&mut chunk[..bytes], within).map_err(LlamaError::Device)?;
                let later =
                    chunk[..bytes].chunks_exact(BLOCK_BYTES).enumerate().find_map(|(block, bytes)| {
                        let offset = end - segments.segment_bytes + within + (block * BLOCK_BYTES) as u64;
                        let header = BufferHeader::decode(bytes, segments.store, offset, end)?.0;
                        is_later(&header).then_some(header)
                    });
                if later.is_some() {
                    return Ok(later);
                }
                within += bytes as u64;
            }
        }
        let stream = segments.stream(tail) as u64;
        let is_behind = |later: &u64| *later > index && *later % STREAMS as u64 == stream;
        for later in segments.indexes().into_iter().filter(is_behind) {
            let header = reader.header(segments.start(later))?.map(|(header, _)| header);
            if let Some(later) = header.filter(is_later) {
                return Ok(Some(later));
            }
        }
        Ok(None)
    }

    /// Takes a fragment of buffer `sequence` into account.
    fn apply(&mut self, fragment: &Fragment<'_>, sequence: u64) {
        let (page, address) = (fragment.page(), fragment.address());
        let moment = Moment { sequence, offset: address.offset() };
        // From here on the page's fragments are what the scan says.
        let is_met = |known: &&mut Known| known.ahead && known.fragments.newest() == Some(address);
        let met = self.known.get_mut(page).filter(is_met).map(|known| known.ahead = false).is_some();
        if let Some(known) = self.known.get_mut(page) {
            known.is_scanned = true;
        }
        self.next_page = self.next_page.max(PageId(page.0 + 1));
        let Some(descriptor) = fragment.descriptor() else {
            let known = self.known.get_mut(page);
            let previous = fragment.previous();
            let put = known
                .is_some_and(|known| met || known.ahead || put_on(&mut known.fragments, previous, address));
            if !put {
                let defect = Defect::new(32, format_args!("the fragment of {page} below"), "another");
                let defect = self.segments.corrupt(address.offset(), defect);
                self.dangling.entry(page).or_insert(defect);
            }
            return;
        };
        let place = || (descriptor.tree, descriptor.low_key.to_vec());
        let known = self.known.get_or_insert_with(page, || {
            let (tree, low_key) = place();
            Known { is_scanned: true, ..Known::new(tree, low_key) }
        });
        if !met && !known.ahead {
            if !known.counts {
                // The identifier may have had an earlier life that nobody adopted.
                (known.tree, known.low_key) = place();
            }
            known.fragments = PackedFragments::default();
            let _ = known.fragments.push(address);
        }
        if descriptor.root {
            self.adopt(page, moment);
        }
        for disowned in fragment.disowns() {
            self.disown(disowned, moment);
        }
        match self.known.get_mut(page).filter(|known| !known.counts) {
            Some(known) => known.waiting.extend(fragment.adopts().map(|adoptee| (adoptee, moment))),
            None => fragment.adopts().for_each(|adoptee| self.adopt(adoptee, moment)),
        }
    }

    /// `page` counts from `moment` on, and what it adopts.
    fn adopt(&mut self, page: PageId, moment: Moment) {
        let mut pages = vec![(page, moment)];
        while let Some((page, moment)) = pages.pop() {
            if self.disowned.get(&page).is_some_and(|&disowned| disowned > moment) {
                continue;
            }
            match self.known.get_mut(page) {
                Some(known) => {
                    known.counts = true;
                    pages.append(&mut known.waiting);
                }
                None => {
                    let defect =
                        Defect::new(0, format_args!("{page}, which is adopted, before"), "nothing of it");
                    let defect = self.segments.corrupt(moment.offset, defect);
                    self.dangling.entry(page).or_insert(defect);
                }
            }
        }
    }

    /// `page` does not count from `moment` on: another page, which counts, has taken over what it holds.
    fn disown(&mut self, page: PageId, moment: Moment) {
        self.dangling.remove(&page);
        self.disowned.insert(page, moment);
        // If it has younger fragments, then the image knows another life of the identifier, a later one.
        if self.known.get(page).is_some_and(|known| !known.ahead)
            && let Some(known) = self.known.remove(page)
        {
            // It counted, though the scan has not seen why, so what it adopts does.
            known.waiting.into_iter().for_each(|(adoptee, moment)| self.adopt(adoptee, moment));
        }
    }
}

/// Puts a delta fragment on top; false if what it lies on is not there.
fn put_on(fragments: &mut PackedFragments, previous: Option<FlashAddress>, address: FlashAddress) -> bool {
    while fragments.newest().is_some() && fragments.newest() != previous {
        fragments.pop();
    }
    fragments.newest().is_some() && fragments.push(address)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::checkpoint::CheckpointProgress;
    use crate::flush::Turn;
    use crate::flush_buffer::Stream;
    use crate::fragments::UNREADABLE_FRAGMENTS_MAX;
    use crate::node::OwnedNode;
    use crate::test_bed::{put, put_in_buffer};
    use deuteron_device::{FaultKind, FaultPlan, MemoryDirectory, Operation, SimulatedDisk};

    const SEGMENT: u64 = 64 << 10;
    const BLOCK: u64 = BLOCK_BYTES as u64;

    fn tiny() -> Options {
        Options { flush_buffer_bytes: 16 << 10, direct: false, ..Options::tiny_for_tests() }
    }

    fn open(directory: &MemoryDirectory, options: &Options) -> Result<(Llama, Vec<u64>), LlamaError> {
        let (llama, found) = Llama::open(Arc::new(directory.clone()), options.clone(), Epochs::new())?;
        Ok((llama, found.pages.iter().map(|page| page.page.0).collect()))
    }

    /// A new page of so many bytes, alone in a flush buffer.
    fn buffer(llama: &Llama, bytes: usize) {
        put_in_buffer(llama, |page| vec![page.0 as u8; bytes]);
    }

    /// Pages 1, 2 and so on of so many bytes, each in its buffer.
    fn buffers(options: &Options, bytes: &[usize]) -> MemoryDirectory {
        let directory = MemoryDirectory::new();
        let (llama, _) = open(&directory, options).unwrap();
        bytes.iter().for_each(|&bytes| buffer(&llama, bytes));
        directory
    }

    fn checkpoint(llama: &Llama) {
        checkpoint_naming(llama, &[]);
    }

    /// A checkpoint, of which these pages are all if it is whole.
    fn checkpoint_naming(llama: &Llama, pages: &[PageId]) {
        let mut checkpoint = llama.checkpoint_begin(b"").unwrap();
        while llama.checkpoint_flush_step(&mut checkpoint).unwrap() != CheckpointProgress::Done {}
        for &page in pages {
            llama.checkpoint_add(&mut checkpoint, 1, &page.0.to_be_bytes(), page).unwrap();
        }
        llama.checkpoint_finish(checkpoint).unwrap();
    }

    fn read(directory: &MemoryDirectory, index: u64) -> Vec<u8> {
        let file = directory.open(&segment_name(index), OpenMode::Read, false).unwrap();
        let mut bytes = vec![0; file.length().unwrap() as usize];
        file.read_at(&mut bytes, 0).unwrap();
        bytes
    }

    fn write(directory: &MemoryDirectory, index: u64, at: u64, bytes: &[u8]) {
        let file = directory.open(&segment_name(index), OpenMode::ReadWrite, false).unwrap();
        file.write_at(bytes, at).unwrap();
    }

    fn cut(directory: &MemoryDirectory, index: u64, length: usize) {
        let bytes = read(directory, index);
        directory.remove(&segment_name(index)).unwrap();
        directory.open(&segment_name(index), OpenMode::CreateNew, false).unwrap();
        write(directory, index, 0, &bytes[..length]);
    }

    /// Where an error is: the segment, the offset in its file, and what was found.
    fn place(opened: Result<(Llama, Vec<u64>), LlamaError>) -> (u64, u64, String) {
        match opened.map(|(_, pages)| pages) {
            Err(LlamaError::Corrupt { file, offset, found, .. }) => {
                (segment_index(&file).unwrap(), offset, found)
            }
            other => panic!("{other:?}"),
        }
    }

    /// Pages of two fragments, all named by two images.
    #[test]
    #[cfg_attr(miri, ignore = "too many pages")]
    fn opening_takes_little_memory_for_each_page() {
        const PAGES: u64 = 20_000;
        let directory = MemoryDirectory::new();
        let options = Options {
            flush_buffer_bytes: 64 << 10,
            segment_bytes: 1 << 20,
            memory_bytes: 64 << 20,
            ..tiny()
        };
        let (llama, _) = open(&directory, &options).unwrap();
        let pages: Vec<PageId> = (0..PAGES).map(|_| llama.allocate()).collect();
        pages.iter().for_each(|&page| put(&llama, page, &[7; 100]));
        checkpoint_naming(&llama, &pages);
        for &page in &pages {
            let guard = llama.pin();
            llama.install(page, llama.snapshot(page, &guard), OwnedNode::delta(&[8; 10]), &guard).unwrap();
        }
        checkpoint_naming(&llama, &pages);
        drop(llama);
        deuteron_fuzz::Meter::begin();
        let (_llama, found) = open(&directory, &options).unwrap();
        assert_eq!(found.len() as u64, PAGES);
        let each = deuteron_fuzz::Meter::peak() as u64 / PAGES;
        assert!(each < 400, "{each} bytes");
    }

    #[test]
    fn a_damaged_buffer_is_the_tail_if_no_later_one_lies_behind_it() {
        // Four blocks that fill what is allocated, and four buffers of three blocks that fill the segment and begin the next.
        let cases = [(vec![3000; 4], vec![1, 2, 3, 4]), (vec![11_000; 6], vec![1, 4, 7, 10, 13, 32 + 1])];
        for (bytes, blocks) in cases {
            let last = blocks.len() as u64;
            let (_, pages) = open(&buffers(&tiny(), &bytes), &tiny()).unwrap();
            assert_eq!(pages, (1..=last).collect::<Vec<_>>());
            // In the buffer's header, and in its fragment.
            for within in [24, 500] {
                for (number, block) in (1..).zip(&blocks) {
                    let directory = buffers(&tiny(), &bytes);
                    let (segment, at) = (block / 16, block % 16 * BLOCK);
                    write(&directory, segment, at + within, &[0xee]);
                    let opened = open(&directory, &tiny());
                    if number == last {
                        assert_eq!(opened.unwrap().1, (1..last).collect::<Vec<_>>());
                    } else {
                        let found = format!("damage, and behind it flush buffer {}", number + 1);
                        assert_eq!(place(opened), (segment, at, found));
                    }
                }
            }
        }
    }

    #[test]
    fn a_damaged_buffer_is_told_of_in_the_stream_in_which_a_later_one_follows() {
        let directory = buffers(&tiny(), &[3000]);
        let (llama, _) = open(&directory, &tiny()).unwrap();
        // Two segments of the second stream.
        for _ in 0..2 {
            let page = llama.allocate();
            put(&llama, page, &[7; 40_000]);
            let mut next = Some(page);
            llama.flush_in_turn(Turn::Awaited, Stream::Moved, || next.take()).unwrap();
        }
        drop(llama);
        write(&directory, 1, BLOCK + 500, &[0xee]);
        let found = "damage, and behind it flush buffer 3".to_owned();
        assert_eq!(place(open(&directory, &tiny())), (1, BLOCK, found));
    }

    #[test]
    fn a_later_buffer_is_found_however_far_behind_the_tail_it_lies() {
        let large = Options { segment_bytes: 4 << 20, ..tiny() };
        let directory = buffers(&large, &[3000, 1_500_000, 3000]);
        write(&directory, 0, 2 * BLOCK + 500, &[0xee]);
        let found = "damage, and behind it flush buffer 3".to_owned();
        assert_eq!(place(open(&directory, &large)), (0, 2 * BLOCK, found));
    }

    #[test]
    fn a_buffer_of_another_history_of_the_store_is_not_taken_for_the_next() {
        let directory = buffers(&tiny(), &[3000]);
        let (llama, _) = open(&directory, &tiny()).unwrap();
        (0..2).for_each(|_| buffer(&llama, 2900));
        drop(llama);
        let third = read(&directory, 0)[3 * 4096..4 * 4096].to_vec();
        // The second is written once more, with something else in it.
        write(&directory, 0, 2 * BLOCK, &[0; 2 * 4096]);
        let (llama, pages) = open(&directory, &tiny()).unwrap();
        assert_eq!(pages, [1]);
        buffer(&llama, 2800);
        drop(llama);
        write(&directory, 0, 3 * BLOCK, &third);
        assert_eq!(open(&directory, &tiny()).unwrap().1, [1, 2]);
    }

    #[test]
    fn segments_without_a_durable_buffer_are_removed_but_none_of_another_store() {
        let directory = buffers(&tiny(), &[3000]);
        let (llama, _) = open(&directory, &tiny()).unwrap();
        for index in [1, 2, 3, 4] {
            llama.store.segments.create(index, 4096).unwrap();
        }
        drop(llama);
        write(&directory, 3, 0, &[0xee; 4096]);
        assert_eq!(open(&directory, &tiny()).unwrap().1, [1]);
        let segments = |directory: &MemoryDirectory| -> Vec<u64> {
            directory.list().unwrap().iter().filter_map(|name| segment_index(name)).collect()
        };
        assert_eq!(segments(&directory), [0]);

        let other = Segments::new(Arc::new(directory.clone()), 8, SEGMENT, false);
        other.create(2, 4096).unwrap();
        assert_eq!(place(open(&directory, &tiny())).0, 2);
        assert_eq!(segments(&directory), [0, 2]);
    }

    #[test]
    fn a_segment_that_is_missed_or_too_short_is_reported() {
        let sound = || {
            let directory = buffers(&tiny(), &[11_000; 6]);
            let (llama, _) = open(&directory, &tiny()).unwrap();
            checkpoint(&llama);
            directory
        };
        assert_eq!(open(&sound(), &tiny()).unwrap().1, [1, 2, 3, 4, 5, 6]);
        // That of the tail.
        let directory = sound();
        directory.remove(&segment_name(2)).unwrap();
        assert_eq!(place(open(&directory, &tiny())), (2, 4 * BLOCK, "no such file".to_owned()));
        // One before the scan start: 64 + 4 + 8 + 11,000 bytes from the last buffer's 13th block on.
        let fragment = 13 * BLOCK + 128;
        let end = fragment + 11_076_u64.next_multiple_of(16);
        let directory = sound();
        cut(&directory, 0, end as usize);
        assert_eq!(open(&directory, &tiny()).unwrap().1.len(), 6);
        cut(&directory, 0, end as usize - 1);
        assert_eq!(
            place(open(&directory, &tiny())),
            (0, fragment, format!("a segment of {} bytes", end - 1))
        );
    }

    #[test]
    fn what_was_written_of_a_segment_is_what_lies_before_the_tail() {
        let directory = buffers(&tiny(), &[11_000; 6]);
        let length = |index| read(&directory, index).len() as u64;
        let (llama, _) = open(&directory, &tiny()).unwrap();
        let flusher = llama.lock_flusher();
        let totals = flusher.accounts.totals();
        assert_eq!(totals.written_bytes, length(0) + 4 * BLOCK);
        assert_eq!((totals.allocated_bytes, totals.segments), (length(0) + length(2), 2));
        assert_eq!(totals.live_bytes, 6 * 11_076_u64.next_multiple_of(16));
        let tail =
            Position { sequence: 7, offsets: [2 * SEGMENT + 4 * BLOCK, SEGMENT + BLOCK], ..flusher.position };
        assert_eq!(flusher.position, tail);
    }

    #[test]
    fn each_opening_that_writes_is_an_incarnation_of_its_own() {
        let directory = buffers(&tiny(), &[]);
        for incarnation in [1, 2, 3] {
            let (llama, _) = open(&directory, &tiny()).unwrap();
            assert_eq!(llama.lock_flusher().incarnation, incarnation);
            buffer(&llama, 100);
        }
    }

    #[test]
    fn what_was_found_is_made_durable_before_anything_is_written_behind_it() {
        let disk = SimulatedDisk::new(1);
        let opened = || Llama::open(Arc::new(disk.directory()), tiny(), Epochs::new());
        let llama = opened().unwrap().0;
        buffer(&llama, 3000);
        drop(llama);
        let counts = || (disk.count(Operation::Write), disk.count(Operation::SyncDirectory));
        let (writes, syncs) = counts();
        drop(opened().unwrap());
        assert_eq!(counts(), (writes + 1, syncs + 1));
        for operation in [Operation::Write, Operation::SyncDirectory] {
            disk.set_faults(FaultPlan::new().fail(operation, 0, FaultKind::Refuse));
            assert!(opened().is_err());
        }
        disk.set_faults(FaultPlan::new());
        assert_eq!(opened().unwrap().1.pages.len(), 1);
    }

    #[test]
    fn images_that_were_not_finished_are_removed() {
        let left = "store-image-0000000000000000.tmp";
        // An attempt to make the store has left it, and the next one has finished it.
        let directory = MemoryDirectory::new();
        directory.open(left, OpenMode::CreateNew, false).unwrap();
        open(&directory, &tiny()).unwrap();
        assert_eq!(directory.list().unwrap(), ["store-image-0000000000000000"]);
        let disk = SimulatedDisk::new(1);
        let opened = || Llama::open(Arc::new(disk.directory()), tiny(), Epochs::new());
        drop(opened().unwrap());
        disk.directory().open(left, OpenMode::CreateNew, false).unwrap();
        disk.set_faults(FaultPlan::new().fail(Operation::Remove, 0, FaultKind::Refuse));
        assert!(opened().is_err());
        disk.set_faults(FaultPlan::new());
        opened().unwrap();
        assert_eq!(disk.directory().list().unwrap(), ["store-image-0000000000000000"]);
    }

    #[test]
    fn a_delta_is_put_on_what_it_lies_on_and_on_nothing_else() {
        let address = |number: u64| FlashAddress::new(number * 4096, 64);
        let of = |numbers: &[u64]| {
            let mut fragments = PackedFragments::default();
            numbers.iter().for_each(|&number| assert!(fragments.push(address(number))));
            fragments
        };
        let put = |numbers: &[u64], previous: u64| {
            let mut fragments = of(numbers);
            let is_put = put_on(&mut fragments, Some(address(previous)), address(99));
            (is_put, fragments)
        };
        assert_eq!(put(&[1, 2, 3], 3), (true, of(&[1, 2, 3, 99])));
        assert_eq!(put(&[1, 2, 3], 1), (true, of(&[1, 99])));
        assert!(!put(&[1, 2, 3], 4).0 && !put(&[], 1).0);
        let most: Vec<u64> = (1..=UNREADABLE_FRAGMENTS_MAX as u64).collect();
        assert!(!put(&most, UNREADABLE_FRAGMENTS_MAX as u64).0, "there is no room");
    }

    /// All checksums are right, so it is not torn; and no memory is asked for all identifiers below.
    #[test]
    fn a_last_buffer_with_an_identifier_that_cannot_be_is_damage_and_no_tail() {
        for (page, is_sound) in
            [(2, true), (3, true), (1000, true), (0, false), (u64::from(u32::MAX), false), (1 << 32, false)]
        {
            let directory = buffers(&tiny(), &[100, 100]);
            let mut bytes = read(&directory, 0);
            let store = open(&directory, &tiny()).unwrap().0.store.segments.store;
            let last = (0..bytes.len() as u64 / BLOCK)
                .filter_map(|block| {
                    let at = block * BLOCK;
                    BufferHeader::decode(&bytes[at as usize..], store, at, SEGMENT)
                })
                .max_by_key(|(header, _)| header.sequence);
            let mut header = last.expect("two were written").0;
            let buffer = &mut bytes[header.offset as usize..][..header.length as usize];
            let fragment = &mut buffer[crate::flush_buffer::HEADER_BYTES..];
            let length = u32::from_le_bytes(fragment[8..12].try_into().unwrap()) as usize;
            fragment[16..24].copy_from_slice(&page.to_le_bytes());
            let crc = crc32c::crc32c(&fragment[4..length]).to_le_bytes();
            fragment[..4].copy_from_slice(&crc);
            header.body_crc = crc32c::crc32c(&crc);
            header.encode(buffer);
            write(&directory, 0, 0, &bytes);
            match open(&directory, &tiny()) {
                Ok((llama, pages)) => {
                    assert!(is_sound && pages == [1, page], "{pages:?}");
                    assert_eq!(llama.statistics().page_ids, page);
                }
                Err(LlamaError::Corrupt { .. }) => assert!(!is_sound, "{page}"),
                Err(other) => panic!("{other}"),
            }
        }
    }

    #[test]
    fn pages_are_sorted_by_tree_low_key_and_identifier() {
        let mut pages = Vec::new();
        for (number, low_key) in (1..).zip(["", "b", "a", "aaaaaaaab", "aaaaaaaaa", "aaaaaaaa", "a\0", "a"]) {
            for tree in [2, 1] {
                let low_key = low_key.as_bytes().to_vec();
                pages.push(RecoveredPage { tree, low_key, page: PageId(number * 2 + u64::from(tree)) });
            }
        }
        let mut expected = pages.clone();
        expected.sort();
        assert_eq!(sorted(pages), expected);
    }

    #[test]
    fn an_image_that_cannot_be_read_is_no_image_that_is_missed() {
        let disk = SimulatedDisk::new(1);
        let opened = || Llama::open(Arc::new(disk.directory()), tiny(), Epochs::new());
        checkpoint(&opened().unwrap().0);
        for number in [0, 1] {
            let plan = FaultPlan::new().fail_in(&image_name(number), Operation::Read, 0, FaultKind::Refuse);
            disk.set_faults(plan);
            assert!(matches!(opened(), Err(LlamaError::Device(error)) if !error.is_not_found()));
        }
        disk.set_faults(FaultPlan::new());
        disk.directory().remove(&image_name(0)).unwrap();
        let missed = opened().err();
        assert!(matches!(missed, Some(LlamaError::Corrupt { file, .. }) if file == image_name(0)));
    }
}
