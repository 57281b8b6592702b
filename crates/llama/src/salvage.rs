//! Salvage: the fragments of a store whose mapping table cannot be trusted, found by their own checksums.
//!
//! Segments are read from front to back. Where a flush buffer's header is sound, its fragments are walked one by one; where one
//! is damaged, and where no header is, every 16 bytes are tried. A fragment says by itself what page it is of and
//! where it lies, so none is taken for another, and what is lost with a block is what lay in it.
//!
//! What a fragment does not say is when it was written: the buffer around it does, by its sequence number. Of fragments
//! whose buffer's header is lost only the neighbours in the stream are known: an [`Order`] is a range.
//!
//! (Where no header is, a user's value that holds an image of a fragment for that very place would be taken for one. A checksum
//! is no signature.)
//!
//! Nothing is written. Memory: a window of [`DamagedFile`], the longest fragment, and what the images say of each page.

use crate::flash_address::{ADDRESS_UNIT, OFFSETS_END};
use crate::flush_buffer::{BufferHeader, HEADER_BYTES, STREAMS};
use crate::fragment::{self, Fragment, read_u32, read_u64};
use crate::node::PageDescriptor;
use crate::page_id::PageId;
use crate::recovery::readable_image;
use crate::segments::{SEGMENT_HEADER_BYTES, SegmentHeader, segment_index, segment_name};
use deuteron_device::{BLOCK_BYTES, DamagedFile, DeviceError, Directory, Loss, with_causes};
use std::collections::HashMap;
use std::sync::Arc;

/// Fragments begin at multiples of this.
const STEP: u64 = ADDRESS_UNIT;
/// Longer than any fragment that was ever written: pages are split long before.
const FRAGMENT_BYTES_MAX: usize = 64 << 20;
/// A buffer ends with less than this after its last fragment.
const ZEROS_BYTES_MAX: usize = BLOCK_BYTES;
/// So many files are kept open.
const FILES_MAX: usize = 64;

/// When a fragment was written, as far as that is known: its buffer's sequence number lies between these, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Not before this.
    pub lowest: u64,
    /// Not after this.
    pub highest: u64,
}

/// Where a fragment lies, for [`FragmentReader::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentPlace {
    segment: u64,
    within: u64,
    length: u32,
    own: u64,
}

impl FragmentPlace {
    /// The file, and where in it.
    ///
    /// ```
    /// // Places come from a scan; see `salvage`.
    /// # let place = |place: deuteron_llama::FragmentPlace| place.file();
    /// # let _ = place;
    /// ```
    pub fn file(&self) -> (String, u64) {
        (segment_name(self.segment), self.within)
    }

    /// Its offset in the logical store.
    ///
    /// ```
    /// # let offset = |place: deuteron_llama::FragmentPlace| place.offset();
    /// # let _ = offset;
    /// ```
    pub fn offset(&self) -> u64 {
        self.own
    }
}

/// A fragment that a [`salvage`] has found.
pub struct SalvagedFragment<'f> {
    /// Where it lies.
    pub place: FragmentPlace,
    /// Its page.
    pub page: PageId,
    /// Its offset in the logical store, by which others refer to it.
    pub offset: u64,
    /// That of the fragment below; `None` of a full one.
    pub previous: Option<u64>,
    /// What a full fragment says of its page.
    pub descriptor: Option<PageDescriptor<'f>>,
    /// Which of [`Salvage::orders`] is its own.
    pub order: usize,
    fragment: Fragment<'f>,
    unpacked: Option<Vec<u8>>,
}

impl SalvagedFragment<'_> {
    /// What its nodes hold, newest first.
    pub fn payloads(&self) -> impl Iterator<Item = &[u8]> {
        self.fragment.payloads(self.unpacked.as_deref())
    }
}

/// A page as the newest readable image has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImagedPage {
    /// The page.
    pub page: PageId,
    /// Its tree.
    pub tree: u32,
    /// Its low key.
    pub low_key: Vec<u8>,
    /// The offsets of its fragments.
    pub fragments: Vec<u64>,
}

/// What a [`salvage`] has found besides fragments.
#[derive(Clone, Debug, Default)]
pub struct Salvage {
    /// When what was written.
    pub orders: Vec<Order>,
    /// Segment files.
    pub segments: u64,
    /// Fragments.
    pub fragments: u64,
    /// What was written and is not there any more.
    pub losses: Vec<Loss>,
    /// What the last readable checkpoint was given to remember; `None` if there is none.
    pub user_data: Option<Vec<u8>>,
    /// Whether that was the newest. If so, what it says of pages holds.
    pub is_newest_image: bool,
    /// The pages of that image.
    pub pages: Vec<ImagedPage>,
    /// The offsets that lie in segments whose files are there: (first, end).
    present: Vec<(u64, u64)>,
}

impl Salvage {
    /// Whether the segment that holds `offset` is there: if so, and nothing was found there, that is damage.
    ///
    /// ```
    /// assert!(!deuteron_llama::Salvage::default().is_present(4096));
    /// ```
    pub fn is_present(&self, offset: u64) -> bool {
        self.present.iter().any(|&(first, end)| (first..end).contains(&offset))
    }
}

/// Finds every readable fragment of the store in `directory`, in the order of the segments.
///
/// # Errors
/// [`DeviceError`] if the directory cannot be listed. A file, or a block, that cannot be read is a loss.
///
/// ```
/// use deuteron_device::{Directory, MemoryDirectory};
/// use deuteron_epoch::Epochs;
/// use deuteron_llama::{Llama, Options, OwnedNode, PageDescriptor, salvage};
/// use std::sync::Arc;
///
/// let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
/// let (llama, _) = Llama::open(Arc::clone(&directory), Options::default(), Epochs::new())?;
/// let page = llama.allocate();
/// {
///     let guard = llama.pin();
///     let root = OwnedNode::base(b"hello", PageDescriptor { tree: 1, low_key: b"", root: true }, &[]);
///     llama.install(page, llama.snapshot(page, &guard), root, &guard).expect("nobody else knows the page");
/// }
/// llama.flush_step()?;
/// drop(llama);
/// let mut found = Vec::new();
/// let salvage = salvage(&directory, &mut |fragment| found.extend(fragment.payloads().map(<[u8]>::to_vec)))?;
/// assert_eq!((salvage.fragments, found), (1, vec![b"hello".to_vec()]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn salvage(
    directory: &Arc<dyn Directory>,
    visit: &mut dyn FnMut(&SalvagedFragment<'_>),
) -> Result<Salvage, DeviceError> {
    let names = directory.list()?;
    let mut indexes: Vec<u64> = names.iter().filter_map(|name| segment_index(name)).collect();
    indexes.sort_unstable();
    let mut scan = Scan {
        shape: Shape::default(),
        found: Salvage { segments: indexes.len() as u64, ..Salvage::default() },
        open: [None; STREAMS],
        last: [0; STREAMS],
        visit,
    };
    scan.shape = Shape::of(&**directory, &indexes);
    for index in indexes {
        match DamagedFile::open(&**directory, &segment_name(index)) {
            Ok(mut file) => scan.segment(index, &mut file),
            Err(error) => scan.lose(&segment_name(index), 0, 0, with_causes(&error)),
        }
    }
    let mut found = scan.found;
    if let Some(image) = readable_image(directory, &mut found.losses) {
        found.user_data = Some(image.user_data);
        found.is_newest_image = image.is_newest;
        found.pages = image.pages;
    }
    Ok(found)
}

/// What all segments of the store have in common, as most of what is left says.
#[derive(Clone, Copy, Default)]
struct Shape {
    store: Option<u64>,
    segment_bytes: Option<u64>,
}

impl Shape {
    fn of(directory: &dyn Directory, indexes: &[u64]) -> Shape {
        let open = |&index: &u64| Some((index, DamagedFile::open(directory, &segment_name(index)).ok()?));
        let mut votes: HashMap<(u64, u64), usize> = HashMap::new();
        for (index, file) in indexes.iter().filter_map(open) {
            let mut file = file.at_random();
            if let Ok(header) = SegmentHeader::decode(file.bytes(0, BLOCK_BYTES), index) {
                *votes.entry((header.store, header.segment_bytes)).or_default() += 1;
            }
        }
        if let Some((&(store, bytes), _)) = votes.iter().max_by_key(|&(_, votes)| *votes) {
            return Shape { store: Some(store), segment_bytes: Some(bytes) };
        }
        // No header is left: what a fragment says of its own place tells where its segment begins.
        let numbered = indexes.iter().filter(|index| **index > 0);
        let told = numbered.filter_map(open).find_map(|(index, mut file)| {
            (SEGMENT_HEADER_BYTES..file.length()).step_by(STEP as usize).find_map(|at| {
                let own = read_own(file.bytes(at, fragment::SHORT_HEADER_BYTES))?;
                fragment_at(&mut file, at, own)?;
                let begin = own.checked_sub(at).filter(|begin| begin.is_multiple_of(index))?;
                Some(begin / index).filter(|&bytes| SegmentHeader::may_have(bytes))
            })
        });
        Shape { store: None, segment_bytes: told }
    }
}

/// Where the fragment in `bytes`, if it is one, says that it lies.
fn read_own(bytes: &[u8]) -> Option<u64> {
    (bytes.len() >= fragment::SHORT_HEADER_BYTES && bytes[4..8] == *b"DFRG").then(|| read_u64(bytes, 24))
}

/// The fragment at `at` of a file, which lies at `own` in the store.
fn fragment_at(file: &mut DamagedFile, at: u64, own: u64) -> Option<Fragment<'_>> {
    let head = file.bytes(at, fragment::SHORT_HEADER_BYTES);
    if read_own(head) != Some(own) {
        return None;
    }
    let length = read_u32(head, 8) as usize;
    if length > FRAGMENT_BYTES_MAX {
        return None;
    }
    Fragment::decode(file.bytes(at, length), own).ok()
}

/// Where a fragment ends that lies at `at` of a file and says that it lies elsewhere than at `own`: the file was another segment's when it was written.
fn behind_former(file: &mut DamagedFile, at: u64, own: u64) -> Option<u64> {
    let former = read_own(file.bytes(at, fragment::SHORT_HEADER_BYTES)).filter(|&former| former != own)?;
    Some(at + fragment_at(file, at, former)?.address().length())
}

struct Scan<'v> {
    shape: Shape,
    found: Salvage,
    /// For each stream the order, in the list, of what lies behind the last sound buffer.
    open: [Option<usize>; STREAMS],
    /// For each stream the sequence number of the last sound buffer.
    last: [u64; STREAMS],
    visit: &'v mut dyn FnMut(&SalvagedFragment<'_>),
}

impl Scan<'_> {
    fn lose(&mut self, file: &str, offset: u64, bytes: u64, reason: String) {
        self.found.losses.push(Loss { file: file.to_owned(), offset, bytes, reason });
    }

    fn segment(&mut self, index: u64, file: &mut DamagedFile) {
        let name = segment_name(index);
        match SegmentHeader::decode(file.bytes(0, BLOCK_BYTES), index) {
            Ok(header) if self.shape.store.is_none_or(|store| header.store == store) => {}
            Ok(header) => {
                let reason = format!("a segment of store {:016x}, not of this one", header.store);
                return self.lose(&name, 0, file.length(), reason);
            }
            Err(reason) => self.lose(&name, 0, SEGMENT_HEADER_BYTES, reason),
        }
        let length = file.length().min(self.shape.segment_bytes.unwrap_or(u64::MAX));
        // Of the first segment everybody knows where it begins.
        let begin = index.checked_mul(self.shape.segment_bytes.unwrap_or(0));
        let Some(begin) = begin.filter(|&begin| begin < OFFSETS_END) else {
            return self.lose(&name, 0, length, "a number that no segment has".to_owned());
        };
        if index > 0 && self.shape.segment_bytes.is_none() {
            return self.lose(&name, 0, length, "nothing says where the segment begins".to_owned());
        }
        self.found.present.push((begin, begin + length));
        let stream = (index % STREAMS as u64) as usize;
        let mut at = SEGMENT_HEADER_BYTES;
        while at < length {
            let header = self.buffer_at(file, begin, at, length);
            at = match header {
                Some(header) => self.buffer(file, begin, at, &header, stream),
                None => self.without_header(file, begin, at, length, stream),
            };
        }
        self.found.losses.extend(file.losses());
    }

    fn buffer_at(&mut self, file: &mut DamagedFile, begin: u64, at: u64, end: u64) -> Option<BufferHeader> {
        if !at.is_multiple_of(BLOCK_BYTES as u64) {
            return None;
        }
        let bytes = file.bytes(at, HEADER_BYTES);
        if bytes.len() < HEADER_BYTES {
            return None;
        }
        let store = self.shape.store.unwrap_or_else(|| read_u64(bytes, 16));
        let (header, _) = BufferHeader::decode(bytes, store, begin + at, begin + end)?;
        self.shape.store = Some(store);
        Some(header)
    }

    /// The fragments of a buffer whose header is sound; where it ends.
    fn buffer(
        &mut self,
        file: &mut DamagedFile,
        begin: u64,
        at: u64,
        header: &BufferHeader,
        stream: usize,
    ) -> u64 {
        if let Some(open) = self.open[stream].take() {
            self.found.orders[open].highest = header.sequence.saturating_sub(1);
        }
        self.last[stream] = header.sequence;
        let order = self.found.orders.len();
        self.found.orders.push(Order { lowest: header.sequence, highest: header.sequence });
        let end = at + header.length;
        let mut next = at + HEADER_BYTES as u64;
        let (mut found, mut holes) = (0, 0);
        while next < end && found + holes < header.fragments {
            if let Some(behind) = self.take(file, begin, next, order) {
                (next, found) = (behind, found + 1);
                continue;
            }
            // Behind the last fragment there are zeros; one hole may have been several fragments.
            let rest = (end - next) as usize;
            if holes > 0 && rest <= ZEROS_BYTES_MAX && file.bytes(next, rest).iter().all(|&byte| byte == 0) {
                break;
            }
            let hole = next;
            next = (hole + STEP..end)
                .step_by(STEP as usize)
                .find(|&at| fragment_at(file, at, begin + at).is_some())
                .unwrap_or(end);
            holes += 1;
            let reason = format!("no sound fragment in flush buffer {}", header.sequence);
            self.lose(file.name(), hole, next - hole, reason);
        }
        end
    }

    /// What lies at `at`, where no sound buffer begins, up to one; how far it has come.
    fn without_header(
        &mut self,
        file: &mut DamagedFile,
        begin: u64,
        mut at: u64,
        end: u64,
        stream: usize,
    ) -> u64 {
        let from = at;
        let mut is_written = false;
        // Where the last fragment ends that is of here, and whether there is one behind that was of an earlier segment.
        let (mut behind_last, mut is_former) = (at, false);
        loop {
            let order = self.open[stream].unwrap_or(self.found.orders.len());
            match self.take(file, begin, at, order) {
                Some(behind) => {
                    if order == self.found.orders.len() {
                        self.found.orders.push(Order { lowest: self.last[stream] + 1, highest: u64::MAX });
                        self.open[stream] = Some(order);
                    }
                    (at, is_written) = (behind, true);
                    (behind_last, is_former) = (behind, false);
                }
                None if let Some(behind) = behind_former(file, at, begin + at) => {
                    (at, is_former) = (behind, true);
                }
                None => {
                    is_written |= file.bytes(at, STEP as usize).iter().any(|&byte| byte != 0);
                    at += STEP;
                }
            }
            if at >= end || self.buffer_at(file, begin, at, end).is_some() {
                break;
            }
        }
        // What the file held before it became this segment is not lost, nor what is left of it where it begins.
        let lost_until = if is_former && at >= end { behind_last } else { at };
        if is_written && lost_until > from {
            let reason = "no sound flush buffer, or one that did not become durable".to_owned();
            self.lose(file.name(), from, lost_until - from, reason);
        }
        at
    }

    /// Hands out the fragment at `at`; where it ends.
    fn take(&mut self, file: &mut DamagedFile, begin: u64, at: u64, order: usize) -> Option<u64> {
        let segment = segment_index(file.name())?;
        let own = begin + at;
        let fragment = fragment_at(file, at, own)?;
        let length = fragment.address().length();
        let place = FragmentPlace { segment, within: at, length: length as u32, own };
        let unpacked = fragment.unpack().ok()?;
        self.found.fragments += 1;
        (self.visit)(&salvaged(place, order, fragment, unpacked));
        Some(at + length)
    }
}

fn salvaged<'f>(
    place: FragmentPlace,
    order: usize,
    fragment: Fragment<'f>,
    unpacked: Option<Vec<u8>>,
) -> SalvagedFragment<'f> {
    SalvagedFragment {
        place,
        page: fragment.page(),
        offset: place.own,
        previous: fragment.previous().map(|address| address.offset()),
        descriptor: fragment.descriptor(),
        order,
        fragment,
        unpacked,
    }
}

/// Reads fragments again that a [`salvage`] has found.
pub struct FragmentReader {
    directory: Arc<dyn Directory>,
    files: HashMap<u64, DamagedFile>,
}

impl FragmentReader {
    /// A reader of the store in `directory`.
    ///
    /// ```
    /// use deuteron_device::MemoryDirectory;
    /// let reader = deuteron_llama::FragmentReader::new(std::sync::Arc::new(MemoryDirectory::new()));
    /// # let _ = reader;
    /// ```
    pub fn new(directory: Arc<dyn Directory>) -> FragmentReader {
        FragmentReader { directory, files: HashMap::new() }
    }

    /// Gives `take` the fragment at `place`; `None` if it cannot be read any more.
    ///
    /// ```
    /// # use deuteron_llama::{FragmentPlace, FragmentReader};
    /// # fn example(reader: &mut FragmentReader, place: FragmentPlace) -> Option<usize> {
    /// reader.read(place, |fragment| fragment.payloads().count())
    /// # }
    /// ```
    pub fn read<T>(
        &mut self,
        place: FragmentPlace,
        take: impl FnOnce(&SalvagedFragment<'_>) -> T,
    ) -> Option<T> {
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&place.segment) {
            self.files.clear();
        }
        let file = match self.files.entry(place.segment) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let name = segment_name(place.segment);
                entry.insert(DamagedFile::open(&*self.directory, &name).ok()?.at_random())
            }
        };
        let fragment = Fragment::decode(file.bytes(place.within, place.length as usize), place.own).ok()?;
        let unpacked = fragment.unpack().ok()?;
        Some(take(&salvaged(place, 0, fragment, unpacked)))
    }
}
