//! Salvage: the records of a store that cannot be opened, or only in part, from what is left of its pages.
//!
//! # Model
//!
//! No page is put together. Each fragment that can be read is a sorted list of versions of records, and the version with the
//! highest (stamp, LSN) counts, as everywhere. [`StoreSalvage::records`] merges the fragments of a tree by key, each open
//! while its keys are passed.
//!
//! That alone would bring back what was deleted: a tombstone is forgotten when nothing can come before it any more, while
//! the value may still lie in an old fragment that nobody refers to. But a *full* fragment is all of its page when it was
//! written. So a value counts only if no full fragment that is certainly newer than all its copies spans its key and does not hold it.
//!
//! What is lost is lost in one of two ways: a record whose only fragment is damaged is missing; one that lies in an older
//! fragment, too, is found as it was before. So old values, and records that were deleted, may come back *where fragments are lost*,
//! and nowhere else.
//!
//! Nothing is written. Memory: some 150 bytes and two keys for each fragment; of the fragments themselves those that span one key.

use crate::options::VALUE_BYTES_MAX;
use crate::stored_value::{self, StoredValue, TABLES_END, chunk_tree, is_table};
use crate::{error, user_data};
use deuteron_bwtree::PageRun;
use deuteron_contract::{DcError, Lsn, TableId, Timestamp};
use deuteron_device::{Directory, Loss};
use deuteron_llama::{FragmentPlace, FragmentReader, LlamaError, Order, Salvage, SalvagedFragment, salvage};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// So far deltas are followed down to the fragment that says their tree: more than there ever are.
const DEPTH_MAX: usize = 16;

/// A version of a record that lies elsewhere, in a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoggedVersion {
    /// The record.
    pub key: Vec<u8>,
    /// When it was committed.
    pub timestamp: Timestamp,
    /// Where it lies.
    pub lsn: Lsn,
    /// Whether it is a delete.
    pub is_delete: bool,
    /// Whether the pages had it at the last checkpoint, so that they may have forgotten it since.
    pub is_stable: bool,
}

/// The value of a record that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FoundValue {
    /// In the store.
    Stored(Vec<u8>),
    /// In the log, at this place.
    Logged(Lsn),
}

/// What takes the records of a table: key and value.
pub type TakeRecord<'t, E> = dyn FnMut(&[u8], FoundValue) -> Result<(), E> + 't;

/// What merging the fragments of a table came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableFound {
    /// Records handed out.
    pub records: u64,
    /// Keys whose newest version is a delete.
    pub deleted: u64,
    /// Keys that only old fragments hold, as their deletes have been forgotten.
    pub forgotten: u64,
    /// Records whose value could not be put together.
    pub incomplete: u64,
}

/// Where a piece's keys end.
#[derive(Clone, Debug)]
enum End {
    Never,
    Before(Vec<u8>),
    Through(Vec<u8>),
}

impl End {
    fn is_past(&self, key: &[u8]) -> bool {
        match self {
            End::Never => false,
            End::Before(end) => key >= end.as_slice(),
            End::Through(last) => key > last.as_slice(),
        }
    }
}

/// A fragment of a tree: what is known of it without its records.
#[derive(Clone, Debug)]
struct Piece {
    place: FragmentPlace,
    order: usize,
    low: Vec<u8>,
    end: End,
    /// All of its page.
    is_full: bool,
}

/// The pieces of a tree, by their low keys.
#[derive(Default)]
struct Pieces {
    pieces: Vec<Piece>,
}

/// What is left of a store.
pub struct StoreSalvage {
    directory: Arc<dyn Directory>,
    found: Salvage,
    trees: BTreeMap<u32, Pieces>,
    redo_scan_start_point: Option<Lsn>,
    dropped: Vec<u32>,
}

/// What the scan notes of a fragment before its tree is known.
struct Met {
    piece: Piece,
    page: u64,
    previous: Option<u64>,
}

/// What the scan gathers.
#[derive(Default)]
struct Gathering {
    met: Vec<Met>,
    /// By offset, what a fragment says of its tree, or which one is below.
    below: HashMap<u64, Result<u32, u64>>,
    /// The trees that full fragments say of a page.
    by_page: HashMap<u64, BTreeSet<u32>>,
    losses: Vec<Loss>,
}

impl Gathering {
    fn take(&mut self, fragment: &SalvagedFragment<'_>) {
        let tree = fragment.descriptor.map(|descriptor| descriptor.tree);
        self.below.insert(fragment.offset, tree.ok_or(fragment.previous.unwrap_or(0)));
        if let Some(tree) = tree {
            self.by_page.entry(fragment.page.0).or_default().insert(tree);
        }
        match piece_of(fragment) {
            Ok(Some(piece)) => {
                self.met.push(Met { piece, page: fragment.page.0, previous: fragment.previous });
            }
            Ok(None) => {}
            Err(reason) => self.losses.push(loss(fragment.place, reason)),
        }
    }

    /// The tree of what lies over `previous`, or of `page` if that is not known.
    fn tree_of(&self, page: u64, mut previous: u64) -> Option<u32> {
        for _ in 0..DEPTH_MAX {
            match self.below.get(&previous) {
                Some(Ok(tree)) => return Some(*tree),
                Some(Err(below)) => previous = *below,
                None => break,
            }
        }
        // Identifiers live several times, so only if there is no doubt.
        let trees = self.by_page.get(&page)?;
        (trees.len() == 1).then(|| trees.first().copied()).flatten()
    }
}

fn loss(place: FragmentPlace, reason: String) -> Loss {
    let (file, offset) = place.file();
    Loss { file, offset, bytes: 0, reason }
}

/// The keys that a fragment spans; `None` if it holds none.
fn piece_of(fragment: &SalvagedFragment<'_>) -> Result<Option<Piece>, String> {
    let (mut bounds, mut first, mut last): (_, Option<Vec<u8>>, Option<Vec<u8>>) = (None, None, None);
    for payload in fragment.payloads() {
        let run = PageRun::new(payload)?;
        bounds = run.bounds().or(bounds);
        for (record, is_first) in [(run.records().next(), true), (run.records().next_back(), false)] {
            let Some(record) = record else { continue };
            let mut key = Vec::new();
            record.append_key_to(&mut key);
            let bound = if is_first { &mut first } else { &mut last };
            let is_wider =
                bound.as_ref().is_none_or(|known| if is_first { key < *known } else { key > *known });
            if is_wider {
                *bound = Some(key);
            }
        }
    }
    let (place, order) = (fragment.place, fragment.order);
    if let Some((low, high)) = bounds {
        let end = high.map_or(End::Never, |high| End::Before(high.to_vec()));
        return Ok(Some(Piece { place, order, low: low.to_vec(), end, is_full: true }));
    }
    Ok(first.zip(last).map(|(low, last)| Piece {
        place,
        order,
        low,
        end: End::Through(last),
        is_full: false,
    }))
}

impl StoreSalvage {
    /// Looks through the files of the store in `directory`.
    ///
    /// # Errors
    /// [`DcError::Device`] if the directory cannot be listed. All else that cannot be read is among the [losses](Self::losses).
    ///
    /// ```
    /// use deuteron_contract::{DataComponent, Lsn, Operation, TableId, Timestamp};
    /// use deuteron_dc::{BwTreeDc, DcOptions, FoundValue, StoreSalvage};
    /// use deuteron_device::{Directory, MemoryDirectory};
    /// use std::sync::Arc;
    ///
    /// let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    /// let dc = BwTreeDc::open(Arc::clone(&directory), deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// let (table, timestamp, lsn) = (TableId(1), Timestamp(1), Lsn(1));
    /// dc.apply(&[Operation { table, key: b"key", value: Some(b"value"), timestamp, lsn }])?;
    /// dc.redo_scan_start_point(Lsn(2))?;
    /// drop(dc);
    /// for image in directory.list()?.iter().filter(|name| name.contains("image")) {
    ///     directory.remove(image)?;
    /// }
    /// let mut salvage = StoreSalvage::scan(Arc::clone(&directory))?;
    /// let mut found = Vec::new();
    /// salvage.records(table, Vec::new(), &mut |key, value| Ok::<_, ()>(found.push((key.to_vec(), value)))).unwrap();
    /// assert_eq!(found, [(b"key".to_vec(), FoundValue::Stored(b"value".to_vec()))]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn scan(directory: Arc<dyn Directory>) -> Result<StoreSalvage, DcError> {
        let mut gathering = Gathering::default();
        let mut found = salvage(&directory, &mut |fragment| gathering.take(fragment))
            .map_err(|failed| error::store("look for fragments", LlamaError::Device(failed)))?;
        let stated = found.user_data.as_deref().and_then(|bytes| user_data::decode(bytes).ok());
        let (redo_scan_start_point, dropped) = match stated {
            Some((lsn, dropped)) => (Some(Lsn(lsn)), dropped),
            None => (None, Vec::new()),
        };
        for page in &found.pages {
            gathering.by_page.entry(page.page.0).or_default().insert(page.tree);
        }
        let mut trees: BTreeMap<u32, Pieces> = BTreeMap::new();
        let mut losses = std::mem::take(&mut gathering.losses);
        losses.extend(missing(&found, &gathering));
        for Met { piece, page, previous } in std::mem::take(&mut gathering.met) {
            let tree = match previous {
                None => gathering.below.get(&piece.place.offset()).copied().and_then(Result::ok),
                Some(previous) => gathering.tree_of(page, previous),
            };
            match tree {
                Some(tree) => trees.entry(tree).or_default().pieces.push(piece),
                None => losses
                    .push(loss(piece.place, format!("changes of page {page}, whose table nothing says"))),
            }
        }
        trees.values_mut().for_each(|pieces| pieces.pieces.sort_by(|left, right| left.low.cmp(&right.low)));
        found.losses.extend(losses);
        Ok(StoreSalvage { directory, found, trees, redo_scan_start_point, dropped })
    }

    /// The tables of which something was found, but for those that the last readable checkpoint says were dropped.
    ///
    /// ```
    /// # fn example(salvage: &deuteron_dc::StoreSalvage) -> usize {
    /// salvage.tables().len()
    /// # }
    /// ```
    pub fn tables(&self) -> Vec<TableId> {
        let live = self.trees.keys().filter(|&&tree| is_table(tree) && !self.dropped.contains(&tree));
        live.map(|&tree| TableId(tree)).collect()
    }

    /// Whether the last readable checkpoint says that a table was dropped.
    ///
    /// ```
    /// # fn example(salvage: &deuteron_dc::StoreSalvage) -> bool {
    /// salvage.is_dropped(deuteron_contract::TableId(7))
    /// # }
    /// ```
    pub fn is_dropped(&self, table: TableId) -> bool {
        self.dropped.contains(&table.0)
    }

    /// Below which the pages had everything at the last readable checkpoint.
    ///
    /// ```
    /// # fn example(salvage: &deuteron_dc::StoreSalvage) -> Option<deuteron_contract::Lsn> {
    /// salvage.redo_scan_start_point()
    /// # }
    /// ```
    pub fn redo_scan_start_point(&self) -> Option<Lsn> {
        self.redo_scan_start_point
    }

    /// Segment files and fragments found.
    ///
    /// ```
    /// # fn example(salvage: &deuteron_dc::StoreSalvage) -> (u64, u64) {
    /// salvage.counts()
    /// # }
    /// ```
    pub fn counts(&self) -> (u64, u64) {
        (self.found.segments, self.found.fragments)
    }

    /// What was written and could not be read, or not be understood.
    ///
    /// ```
    /// # fn example(salvage: &deuteron_dc::StoreSalvage) -> bool {
    /// salvage.losses().is_empty()
    /// # }
    /// ```
    pub fn losses(&self) -> &[Loss] {
        &self.found.losses
    }

    /// Hands out the records of a table in the order of their keys, with the newest version that was found of each. `logged`, whose
    /// keys ascend and are all different, has what a log knows.
    ///
    /// # Errors
    /// What `take` returns, which ends it.
    ///
    /// ```
    /// # use deuteron_contract::TableId;
    /// # fn example(salvage: &mut deuteron_dc::StoreSalvage) -> Result<(), std::io::Error> {
    /// use std::io::{Error, Write};
    /// let mut output = std::io::stdout();
    /// let take = &mut |key: &[u8], _| writeln!(output, "{}", key.escape_ascii());
    /// let found = salvage.records::<Error>(TableId(1), Vec::new(), take)?;
    /// println!("{} records", found.records);
    /// # Ok(())
    /// # }
    /// ```
    pub fn records<E>(
        &mut self,
        table: TableId,
        logged: Vec<LoggedVersion>,
        take: &mut TakeRecord<'_, E>,
    ) -> Result<TableFound, E> {
        let none = Pieces::default();
        let StoreSalvage { directory, found, trees, .. } = self;
        let mut reader = FragmentReader::new(Arc::clone(directory));
        let mut chunks =
            ChunkReader::new(Arc::clone(directory), trees.get(&chunk_tree(table).0).unwrap_or(&none));
        let mut sweep = Sweep {
            pieces: trees.get(&table.0).unwrap_or(&none).pieces.iter().peekable(),
            orders: &found.orders,
            active: HashMap::new(),
            next: 0,
            fresh: VecDeque::new(),
            heap: BinaryHeap::new(),
            lost: Vec::new(),
        };
        let mut logged = logged.into_iter().peekable();
        let mut total = TableFound::default();
        while let Some(key) = sweep.next_key(logged.peek().map(|logged| &logged.key[..]), &mut reader) {
            let best = sweep.take(&key, logged.next_if(|logged| logged.key == key));
            let value = match best {
                Best::Deleted => {
                    total.deleted += 1;
                    continue;
                }
                Best::Forgotten => {
                    total.forgotten += 1;
                    continue;
                }
                Best::Logged(lsn) => FoundValue::Logged(lsn),
                Best::Stored(kept) => match whole(&kept, &mut chunks) {
                    Ok(value) => FoundValue::Stored(value),
                    Err(reason) => {
                        total.incomplete += 1;
                        let reason = format!("key \"{}\": {reason}", key.escape_ascii());
                        sweep.lost.push(Loss { file: format!("table {table}"), offset: 0, bytes: 0, reason });
                        continue;
                    }
                },
            };
            total.records += 1;
            take(&key, value)?;
        }
        let lost = std::mem::take(&mut sweep.lost);
        found.losses.extend(lost);
        Ok(total)
    }
}

/// The pages of which the newest image knows fragments that were not found, and nothing newer is there; and changes over what is
/// missing from a segment that is there.
fn missing(found: &Salvage, gathering: &Gathering) -> Vec<Loss> {
    let mut losses = Vec::new();
    for page in found.pages.iter().filter(|_| found.is_newest_image) {
        let lost = page.fragments.iter().filter(|offset| !gathering.below.contains_key(offset));
        for offset in lost {
            let key = page.low_key.escape_ascii();
            losses.push(Loss {
                file: format!("table {}", page.tree % TABLES_END),
                offset: *offset,
                bytes: 0,
                reason: format!(
                    "{} lacks a fragment: records from key \"{key}\" on are missing, or are as they were before",
                    page.page
                ),
            });
        }
    }
    let imaged: BTreeSet<u64> = found.pages.iter().flat_map(|page| page.fragments.iter().copied()).collect();
    for met in &gathering.met {
        let Some(previous) = met.previous else { continue };
        if !gathering.below.contains_key(&previous)
            && found.is_present(previous)
            && !imaged.contains(&previous)
        {
            losses.push(loss(
                met.piece.place,
                format!("changes of page {} over a fragment that is lost", met.page),
            ));
        }
    }
    losses
}

/// The value of a record from what its tree keeps.
fn whole(kept: &[u8], chunks: &mut ChunkReader<'_>) -> Result<Vec<u8>, String> {
    match stored_value::decode(kept) {
        Some(StoredValue::Plain(value)) => Ok(value.to_vec()),
        Some(StoredValue::Large(large)) if large.length <= VALUE_BYTES_MAX as u64 => {
            let mut value = Vec::new();
            for chunk in 0..large.chunks() {
                let bytes = chunks.get(&large.number.chunk_key(chunk));
                let Some(bytes) = bytes else {
                    return Err(format!("chunk {chunk} of {} is lost", large.chunks()));
                };
                value.extend_from_slice(&bytes);
            }
            match value.len() as u64 == large.length {
                true => Ok(value),
                false => Err(format!("{} bytes of {}", value.len(), large.length)),
            }
        }
        _ => Err("neither a value nor a reference to one".to_owned()),
    }
}

/// A record in an open fragment.
struct Entry {
    key: Vec<u8>,
    version: (u64, u64),
    /// Where in the payloads; `None` for a tombstone.
    value: Option<Range<usize>>,
}

/// The records of a fragment in the order of their keys, the newest version of each.
struct Opened {
    payloads: Vec<u8>,
    entries: Vec<Entry>,
    at: usize,
    order: Order,
    is_full: bool,
    low: Vec<u8>,
    end: End,
}

impl Opened {
    fn read(piece: &Piece, order: Order, reader: &mut FragmentReader) -> Option<Opened> {
        let opened = reader.read(piece.place, |fragment| {
            let (mut payloads, mut entries) = (Vec::new(), Vec::new());
            for payload in fragment.payloads() {
                let begin = payloads.len();
                payloads.extend_from_slice(payload);
                for record in PageRun::new(payload).ok()?.records() {
                    let mut key = Vec::new();
                    record.append_key_to(&mut key);
                    let value = record.value.map(|value| {
                        let from = begin + (value.as_ptr().addr() - payload.as_ptr().addr());
                        from..from + value.len()
                    });
                    entries.push(Entry { key, version: (record.stamp, record.lsn), value });
                }
            }
            entries.sort_by(|left, right| {
                left.key.cmp(&right.key).then_with(|| right.version.cmp(&left.version))
            });
            entries.dedup_by(|later, earlier| later.key == earlier.key);
            Some((payloads, entries))
        });
        let (payloads, entries) = opened??;
        let (low, end) = (piece.low.clone(), piece.end.clone());
        Some(Opened { payloads, entries, at: 0, order, is_full: piece.is_full, low, end })
    }

    /// Whether it is newer than all of `older`, which has no key left, and goes as far.
    fn outdoes(&self, older: &Opened) -> bool {
        let reaches = match (&self.end, &older.end) {
            (End::Never, _) => true,
            (End::Before(own), End::Before(end)) => own >= end,
            _ => false,
        };
        let is_over = older.is_full && older.at == older.entries.len();
        self.is_full && reaches && is_over && self.order.lowest > older.order.highest
    }

    fn spans(&self, key: &[u8]) -> bool {
        self.is_full && *self.low <= *key && !self.end.is_past(key)
    }
}

/// What counts of a key.
enum Best {
    Stored(Vec<u8>),
    Logged(Lsn),
    Deleted,
    Forgotten,
}

/// The fragments of a tree on the way through its keys.
struct Sweep<'s> {
    pieces: std::iter::Peekable<std::slice::Iter<'s, Piece>>,
    orders: &'s [Order],
    active: HashMap<usize, Opened>,
    next: usize,
    /// Those that begin behind the last key, in the order of their low keys.
    fresh: VecDeque<usize>,
    /// The next key of each open fragment.
    heap: BinaryHeap<Reverse<(Vec<u8>, usize)>>,
    lost: Vec<Loss>,
}

impl Sweep<'_> {
    fn open(&mut self, reader: &mut FragmentReader) {
        let Some(piece) = self.pieces.next() else { return };
        match Opened::read(piece, self.orders[piece.order], reader) {
            Some(opened) => {
                if let Some(first) = opened.entries.first() {
                    self.heap.push(Reverse((first.key.clone(), self.next)));
                }
                self.active.insert(self.next, opened);
                self.fresh.push_back(self.next);
                self.next += 1;
            }
            None => self.lost.push(loss(piece.place, "could be read once, and then not any more".to_owned())),
        }
    }

    /// The lowest key that comes next, in a fragment or in the log, whose next one is `logged`; all that may hold it is open then, and what lies before it is not.
    fn next_key(&mut self, logged: Option<&[u8]>, reader: &mut FragmentReader) -> Option<Vec<u8>> {
        loop {
            let Reverse((first, _)) = match self.heap.peek() {
                Some(first) => first.clone(),
                // Some are empty.
                None if logged.is_none() && self.pieces.peek().is_some() => {
                    self.open(reader);
                    continue;
                }
                None => Reverse((logged?.to_vec(), 0)),
            };
            let until = logged.map_or(&first[..], |logged| logged.min(&first[..]));
            if self.pieces.peek().is_none_or(|piece| *piece.low > *until) {
                let key = until.to_vec();
                self.pass_to(&key);
                return Some(key);
            }
            // It may begin with a lower key.
            self.open(reader);
        }
    }

    /// Lets go of what says nothing of `key` and of what comes behind it.
    fn pass_to(&mut self, key: &[u8]) {
        while let Some(number) = self.fresh.front().copied() {
            if let Some(opened) = self.active.remove(&number) {
                if *opened.low > *key {
                    self.active.insert(number, opened);
                    break;
                }
                // From here on it says all that they do of what is forgotten.
                self.active.retain(|_, older| !opened.outdoes(older));
                self.active.insert(number, opened);
            }
            self.fresh.pop_front();
        }
        self.active.retain(|_, opened| {
            opened.at < opened.entries.len() || (opened.is_full && !opened.end.is_past(key))
        });
    }

    /// The version of `key` that counts. Everything open is behind the key then.
    fn take(&mut self, key: &[u8], logged: Option<LoggedVersion>) -> Best {
        let mut best: Option<((u64, u64), Option<Best>)> = None;
        // The latest that a copy of it may have been written.
        let mut newest = 0;
        let mut holders = Vec::new();
        while self.heap.peek().is_some_and(|Reverse((next, _))| next == key) {
            let Some(Reverse((_, number))) = self.heap.pop() else { break };
            let opened = self.active.get_mut(&number).expect("open while it has keys");
            let entry = &opened.entries[opened.at];
            let highest = opened.order.highest;
            match &best {
                Some((version, _)) if *version > entry.version => {}
                Some((version, _)) if *version == entry.version => newest = newest.max(highest),
                _ => {
                    let value =
                        entry.value.clone().map(|value| Best::Stored(opened.payloads[value].to_vec()));
                    best = Some((entry.version, value));
                    newest = highest;
                }
            }
            holders.push(number);
            opened.at += 1;
            if let Some(next) = opened.entries.get(opened.at) {
                self.heap.push(Reverse((next.key.clone(), number)));
            }
        }
        if let Some(logged) = logged {
            let version = (logged.timestamp.0, logged.lsn.0);
            let written = if logged.is_stable { 0 } else { u64::MAX };
            if best.as_ref().is_none_or(|(known, _)| *known < version) {
                best = Some((version, (!logged.is_delete).then_some(Best::Logged(logged.lsn))));
                newest = written;
            } else if best.as_ref().is_some_and(|(known, _)| *known == version) {
                newest = newest.max(written);
            }
        }
        let Some((_, Some(value))) = best else { return Best::Deleted };
        let is_forgotten = self.active.iter().any(|(number, opened)| {
            opened.order.lowest > newest && opened.spans(key) && !holders.contains(number)
        });
        if is_forgotten { Best::Forgotten } else { value }
    }
}

/// Looks up chunks of large values.
struct ChunkReader<'c> {
    reader: FragmentReader,
    pieces: &'c [Piece],
    /// For each piece the highest key of those up to it: how far back a key may lie.
    reach: Vec<Option<&'c [u8]>>,
}

impl<'c> ChunkReader<'c> {
    fn new(directory: Arc<dyn Directory>, pieces: &'c Pieces) -> ChunkReader<'c> {
        let pieces = &pieces.pieces[..];
        let mut reach: Vec<Option<&[u8]>> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let own = match &piece.end {
                End::Never => None,
                End::Before(key) | End::Through(key) => Some(key.as_slice()),
            };
            let before = reach.last().copied().unwrap_or(Some(&[]));
            reach.push(before.zip(own).map(|(before, own)| before.max(own)));
        }
        ChunkReader { reader: FragmentReader::new(directory), pieces, reach }
    }

    /// A chunk. Its key says of which operation's value it is, so that all versions of it are the same.
    fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        let mut at = self.pieces.partition_point(|piece| *piece.low <= *key);
        while at > 0 && self.reach[at - 1].is_none_or(|reach| reach >= key) {
            at -= 1;
            let piece = &self.pieces[at];
            if piece.end.is_past(key) {
                continue;
            }
            let found = self.reader.read(piece.place, |fragment| {
                let mut scratch = Vec::new();
                fragment.payloads().filter_map(|payload| PageRun::new(payload).ok()).find_map(|run| {
                    run.records().find_map(|record| {
                        scratch.clear();
                        record.append_key_to(&mut scratch);
                        record.value.filter(|_| scratch == key).map(<[u8]>::to_vec)
                    })
                })
            });
            if let Some(chunk) = found.flatten() {
                return Some(chunk);
            }
        }
        None
    }
}
