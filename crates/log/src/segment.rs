//! The log's files: preallocated segments of LSN space, one file each.
//!
//! Segment *k* holds the LSNs from *k* × segment bytes on, in a file `log-<base, 16 hex digits>.seg` of one header block
//! (see [`block`](crate::block)) and the segment. A file that is being prepared or has been truncated is called
//! `log-<some base>.spare`; what is in it does not matter.
//!
//! # Steps, and what a crash after each leaves
//!
//! | [`Segments::prepare`] | after a crash |
//! |---|---|
//! | take a spare, or create one | a spare, or nothing |
//! | allocate its space | a spare |
//! | write the header, sync the file | a spare |
//! | rename it to `.seg` | a spare, or a whole segment whose buffers, if any, have other bases |
//! | sync the directory | a segment |
//! | only now: write buffers | |
//!
//! | [`Segments::renew`], where the log ends with a segment and the disk is full | after a crash |
//! |---|---|
//! | remove the file of the segment behind it | that file, or none: the buffers before lead to where it is missing |
//! | prepare it | as above |
//!
//! | [`Segments::truncate`] | after a crash |
//! |---|---|
//! | rename each segment wholly below to `.spare` | any of them may be back; nobody looks below the redo scan start point |
//! | sync the directory | none is back; spares, which the next opening removes |
//! | only now: reuse some of them, and remove the others piece by piece | spares, of any length |

use crate::block::{BLOCK, Mismatch, SegmentHeader};
use crate::sync::{AtomicU64, Ordering};
use crate::{LogError, LogOptions};
use deuteron_contract::Lsn;
use deuteron_device::{AlignedBuffer, BLOCK_BYTES, DeviceError, Directory, File, OpenMode, Operation};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// A segment that is no longer needed is removed in so many pieces at least, none of them longer than this: what the device is told at
/// once that it has become free is what others wait behind.
const PIECES: u64 = 16;
const PIECE_BYTES_MAX: u64 = 4 << 20;

/// So large a part of a segment, one of so many, is kept for those who open the log on a full disk: each opening writes a block.
const LAST_PARTS: u64 = 16;

/// What all segments of a log have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub segment_bytes: u64,
    pub identity: u64,
}

/// See the module document.
pub(crate) struct Segments {
    directory: Arc<dyn Directory>,
    shape: Shape,
    incarnation: u64,
    direct_io: bool,
    buffer_bytes_max: u64,
    spares_max: usize,
    /// The segments by their bases. Locked for look-ups only, never over I/O.
    files: Mutex<BTreeMap<u64, Arc<dyn File>>>,
    /// The names of the spares. Locked over the I/O of preparing and truncating, which exclude each other.
    spares: Mutex<Vec<String>>,
    created: AtomicU64,
    recycled: AtomicU64,
}

/// The segments and spares that a directory holds.
pub(crate) struct Found {
    /// Bases in ascending order, and their files.
    pub files: BTreeMap<u64, Arc<dyn File>>,
    pub spares: Vec<String>,
}

impl Found {
    /// Lists the directory and opens the segments.
    pub(crate) fn list(directory: &dyn Directory, direct_io: bool) -> Result<Found, LogError> {
        let mut found = Found { files: BTreeMap::new(), spares: Vec::new() };
        for name in directory.list().map_err(LogError::device("list its files"))? {
            if let Some(base) = parse_name(&name, ".seg") {
                let file = directory
                    .open(&name, OpenMode::ReadWrite, direct_io)
                    .map_err(LogError::device("open a segment"))?;
                found.files.insert(base, file);
            } else if parse_name(&name, ".spare").is_some() {
                found.spares.push(name);
            }
        }
        Ok(found)
    }

    /// Reads the header of the segment at `base` and checks that it is there in full.
    pub(crate) fn header(&self, base: u64) -> Result<SegmentHeader, LogError> {
        let file = &self.files[&base];
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        let length = file.length().map_err(LogError::device("ask the length of a segment"))?;
        let corrupt = |mismatch: Mismatch| corrupt_at(segment_name(base), 0, mismatch);
        if length < BLOCK {
            return Err(corrupt(Mismatch::new("a header block", format!("a file of {length} bytes"))));
        }
        file.read_at(&mut block, 0).map_err(LogError::device("read a segment's header"))?;
        let header = SegmentHeader::decode(&block).map_err(corrupt)?;
        if header.base != base {
            return Err(corrupt(Mismatch::new(format!("segment base {base}"), header.base.to_string())));
        }
        if length < BLOCK + header.segment_bytes {
            let expected = format!("a file of {} bytes", BLOCK + header.segment_bytes);
            return Err(corrupt(Mismatch::new(expected, format!("{length} bytes"))));
        }
        Ok(header)
    }
}

impl Segments {
    /// Takes over what was found. `incarnation` goes into the headers of new segments.
    pub(crate) fn new(
        directory: Arc<dyn Directory>,
        found: Found,
        shape: Shape,
        incarnation: u64,
        options: &LogOptions,
    ) -> Segments {
        Segments {
            directory,
            shape,
            incarnation,
            direct_io: options.direct_io,
            buffer_bytes_max: options.buffer_bytes_max as u64,
            spares_max: options.spare_segments_max,
            files: Mutex::new(found.files),
            spares: Mutex::new(found.spares),
            created: AtomicU64::new(0),
            recycled: AtomicU64::new(0),
        }
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    /// The longest buffer that is written from now on. Those that are there may be longer.
    pub(crate) fn buffer_bytes_max(&self) -> u64 {
        self.buffer_bytes_max
    }

    /// A long read of a segment, as fast as the device can.
    pub(crate) fn read_long(
        &self,
        file: &(dyn File + 'static),
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<(), DeviceError> {
        self.directory.read_long(file, buffer, offset)
    }

    /// The time on the machine that has the segments.
    pub(crate) fn now(&self) -> Instant {
        self.directory.now()
    }

    /// Makes the directory's entries durable.
    pub(crate) fn sync_directory(&self) -> Result<(), LogError> {
        self.directory.sync().map_err(LogError::device("sync its directory"))
    }

    /// The base of the segment that `lsn` is in.
    pub(crate) fn base_of(&self, lsn: u64) -> u64 {
        lsn - lsn % self.shape.segment_bytes
    }

    /// The file of the segment that starts at `base`.
    pub(crate) fn get(&self, base: u64) -> Option<Arc<dyn File>> {
        self.files().get(&base).cloned()
    }

    /// The lowest LSN that is on disk, if there is any segment.
    pub(crate) fn start(&self) -> Option<u64> {
        self.files().keys().next().copied()
    }

    /// Which segment is to be there when the log has come to `position`: the one after this, once more than half of this one is used, so
    /// that a full disk is noticed while there is still room for the transactions that are under way; this one, where it begins. `None` if it is there.
    pub(crate) fn due_at(&self, position: u64) -> Option<u64> {
        let base = self.base_of(position);
        let due = match position - base {
            0 => base,
            used if used > self.shape.segment_bytes / 2 => base + self.shape.segment_bytes,
            _ => return None,
        };
        self.newest().is_none_or(|newest| newest < due).then_some(due)
    }

    /// Where the last part of a segment begins, which is written to only if the next one is there, or by a log that has been opened in it.
    pub(crate) fn last_part(&self, segment: u64) -> u64 {
        let reserve = (self.shape.segment_bytes / LAST_PARTS).next_multiple_of(BLOCK);
        segment + self.shape.segment_bytes - reserve
    }

    /// The base of the newest segment.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.files().keys().next_back().copied()
    }

    /// The files that hold the log from `from` up to `stable`: name, bytes that count, length. The first is there even if
    /// it holds nothing of it, since it says what log this is.
    pub(crate) fn files_between(&self, from: u64, stable: u64) -> Vec<(String, u64, u64)> {
        let files = self.files();
        let first = files.range(..=from).next_back().map_or(0, |(&base, _)| base);
        let length = self.shape.segment_bytes;
        let beginning =
            |&base: &u64| (segment_name(base), BLOCK + (stable - base).min(length), BLOCK + length);
        files.range(first..=stable.max(first)).map(|(base, _)| base).map(beginning).collect()
    }

    /// Bytes on disk, created files, recycled files.
    pub(crate) fn figures(&self) -> (u64, u64, u64) {
        let count =
            self.files().len() as u64 + self.spares.try_lock().map_or(0, |spares| spares.len() as u64);
        (
            count * (BLOCK + self.shape.segment_bytes),
            self.created.load(Ordering::Relaxed),
            self.recycled.load(Ordering::Relaxed),
        )
    }

    /// The segment that starts at `base`, made ready for writing if it is not there.
    ///
    /// # Errors
    /// The device's. If the disk is full there is only a spare more or less than before, and this may be tried again.
    pub(crate) fn prepare(&self, base: u64) -> Result<Arc<dyn File>, LogError> {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        match self.get(base) {
            Some(file) => Ok(file),
            None => self.make(base, &mut spares),
        }
    }

    /// Whether a segment has been written to its end, as one is that was another one before: what is new is zeros.
    pub(crate) fn is_written(&self, file: &Arc<dyn File>) -> Result<bool, LogError> {
        let mut last = AlignedBuffer::zeroed(BLOCK_BYTES);
        file.read_at(&mut last, self.shape.segment_bytes).map_err(LogError::device("look at a segment"))?;
        Ok(last.iter().any(|&byte| byte != 0))
    }

    /// Discards what was left over when the log was last open: spares, and the segments from `tail` on, which hold no
    /// buffer; if one starts right there it is made anew. The one that is due at `tail` is made of the room of those that have gone, if
    /// there is so much. `is_followed`: buffers have led to the tail, so that there is no need of a segment there to find it.
    ///
    /// None of them is trusted, because an earlier process may have seen a sync of them fail, and then neither
    /// their length nor their name need be what they seem.
    pub(crate) fn renew(&self, tail: u64, is_followed: bool) -> Result<(), LogError> {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        let beyond: Vec<u64> = self.files().range(tail + 1..).map(|(&base, _)| base).collect();
        for name in beyond.iter().map(|&base| segment_name(base)).chain(spares.drain(..)) {
            self.directory.remove(&name).map_err(LogError::device("remove an unused segment"))?;
        }
        self.files().retain(|&base, _| base <= tail);
        if self.base_of(tail) != tail {
            self.sync_directory()?;
            return match self.due_at(tail).map(|due| self.make(due, &mut spares)) {
                Some(Err(error)) if !error.is_full() => Err(error),
                _ => Ok(()),
            };
        }
        // Renamed over the old file, so that at no time there is none: it may be the only one that says how far
        // the log has come.
        let made = self.make(tail, &mut spares);
        let is_full = made.as_ref().is_err_and(LogError::is_full);
        if !is_full || !is_followed || self.files().remove(&tail).is_none() {
            return made.map(drop);
        }
        // There is no room but that of the old file, and the segment before says how far the log has come, too.
        self.directory.remove(&segment_name(tail)).map_err(LogError::device("remove an unused segment"))?;
        self.make(tail, &mut spares).map(drop)
    }

    fn make(&self, base: u64, spares: &mut Vec<String>) -> Result<Arc<dyn File>, LogError> {
        debug_assert_eq!(self.base_of(base), base);
        let (spare, is_new) = match spares.pop() {
            Some(spare) => (spare, false),
            None => (format!("log-{base:016x}.spare"), true),
        };
        let mode = if is_new { OpenMode::CreateNew } else { OpenMode::ReadWrite };
        let file = match self.fill_in(&spare, mode, base) {
            Ok(file) => file,
            Err(error) => {
                // What it occupies may be what is missing elsewhere. If it cannot be removed it stays a spare.
                if self.directory.remove(&spare).is_err() {
                    spares.push(spare);
                }
                return Err(error);
            }
        };
        if let Err(error) = self.directory.rename(&spare, &segment_name(base)) {
            spares.push(spare);
            return Err(LogError::device("name a segment")(error));
        }
        self.sync_directory()?;
        self.files().insert(base, file.clone());
        let counter = if is_new { &self.created } else { &self.recycled };
        counter.fetch_add(1, Ordering::Relaxed);
        Ok(file)
    }

    fn fill_in(&self, spare: &str, mode: OpenMode, base: u64) -> Result<Arc<dyn File>, LogError> {
        let file =
            self.directory.open(spare, mode, self.direct_io).map_err(LogError::device("create a segment"))?;
        file.allocate(BLOCK + self.shape.segment_bytes).map_err(LogError::device("allocate a segment"))?;
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        let Shape { segment_bytes, identity } = self.shape;
        SegmentHeader { base, segment_bytes, identity, incarnation: self.incarnation }.encode(&mut block);
        file.write_at(&block, 0).map_err(LogError::device("write a segment's header"))?;
        file.sync().map_err(LogError::device("sync a new segment"))?;
        Ok(file)
    }

    /// Gives up the segments that end at or below `upto`; how many.
    ///
    /// # Errors
    /// The device's. After [`Operation::SyncDirectory`] the log must stop; after a failed renaming the segment
    /// that failed and those above it are still there; after a failed removal there are more spares than there should be.
    pub(crate) fn truncate(&self, upto: u64) -> Result<usize, LogError> {
        let mut spares = self.spares.lock().unwrap_or_else(PoisonError::into_inner);
        let mut surplus = Vec::new();
        let is_below = |base: &u64| base + self.shape.segment_bytes <= upto;
        let mut set_aside = || {
            let mut truncated = 0;
            while let Some(base) = self.start().filter(is_below) {
                let spare = format!("log-{base:016x}.spare");
                self.directory
                    .rename(&segment_name(base), &spare)
                    .map_err(LogError::device("set a segment aside"))?;
                let file = self.files().remove(&base);
                surplus.push((spare, file.expect("it was the lowest")));
                truncated += 1;
            }
            if truncated > 0 {
                self.sync_directory()?;
            }
            Ok(truncated)
        };
        let truncated = set_aside();
        let kept = match &truncated {
            Ok(_) => self.spares_max.saturating_sub(spares.len()).min(surplus.len()),
            // The log stops. Until it has, nobody is to write over what may have its old name again.
            Err(LogError::Device { source, .. }) if source.operation == Operation::SyncDirectory => {
                return truncated;
            }
            Err(_) => surplus.len(),
        };
        spares.extend(surplus.drain(..kept).map(|(spare, _)| spare));
        // Whoever needs a segment meanwhile does not wait for the removals.
        drop(spares);
        self.remove_surplus(surplus)?;
        truncated
    }

    /// Removes spares that are too many. Those that cannot be removed stay spares.
    fn remove_surplus(&self, surplus: Vec<(String, Arc<dyn File>)>) -> Result<(), LogError> {
        let piece_bytes = (self.shape.segment_bytes / PIECES).clamp(BLOCK, PIECE_BYTES_MAX);
        let mut failed = Ok(());
        for (spare, file) in surplus {
            if failed.is_ok() {
                failed = self.directory.remove_in_pieces(&spare, file, piece_bytes);
            }
            if failed.is_err() {
                self.spares.lock().unwrap_or_else(PoisonError::into_inner).push(spare);
            }
        }
        failed.map_err(LogError::device("remove a segment"))
    }

    /// Where `lsn` is stored.
    pub(crate) fn locate(&self, lsn: u64) -> (String, u64) {
        let base = self.base_of(lsn);
        (segment_name(base), BLOCK + (lsn - base))
    }

    /// The error for stored bytes at `lsn` that are not what was written.
    pub(crate) fn corrupt(&self, lsn: u64, mismatch: Mismatch) -> LogError {
        let (file, offset) = self.locate(lsn);
        corrupt_at(file, offset, mismatch)
    }

    /// The error for an LSN that is not on disk.
    pub(crate) fn missing(&self, wanted: u64, end: u64) -> LogError {
        let start = self.start().unwrap_or(end);
        LogError::Missing { wanted: Lsn(wanted), start: Lsn(start), end: Lsn(end) }
    }

    fn files(&self) -> MutexGuard<'_, BTreeMap<u64, Arc<dyn File>>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) fn corrupt_at(file: String, offset: u64, mismatch: Mismatch) -> LogError {
    LogError::Corrupt { file, offset, expected: mismatch.expected, found: mismatch.found }
}

/// The name of the segment that starts at `base`.
pub(crate) fn segment_name(base: u64) -> String {
    format!("log-{base:016x}.seg")
}

pub(crate) fn parse_name(name: &str, suffix: &str) -> Option<u64> {
    let digits = name.strip_prefix("log-")?.strip_suffix(suffix)?;
    let lower = digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
    if digits.len() == 16 && lower { u64::from_str_radix(digits, 16).ok() } else { None }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use deuteron_device::simulated::Moment;
    use deuteron_device::{CrashPolicy, FaultKind, FaultPlan, MemoryDirectory, SimulatedDisk};

    fn segments(directory: &MemoryDirectory) -> Segments {
        let found = Found::list(directory, true).unwrap();
        let shape = Shape { segment_bytes: 8192, identity: 9 };
        Segments::new(Arc::new(directory.clone()), found, shape, 1, &LogOptions::tiny_for_tests())
    }

    #[test]
    fn names_are_strict() {
        assert_eq!(parse_name("log-00000000000a0000.seg", ".seg"), Some(0xa0000));
        for other in ["log-0.seg", "log-00000000000A0000.seg", "log-00000000000a0000.spare", "x", "log-.seg"]
        {
            assert_eq!(parse_name(other, ".seg"), None);
        }
    }

    #[test]
    fn truncated_files_are_reused_up_to_a_number() {
        let directory = MemoryDirectory::new();
        let all = segments(&directory);
        for base in [0, 8192, 16384, 24576] {
            all.prepare(base).unwrap();
        }
        assert_eq!(all.truncate(24576 + 100).unwrap(), 3);
        assert_eq!(all.start(), Some(24576));
        assert_eq!(directory.list().unwrap().len(), 3, "one segment, two spares");
        all.prepare(32768).unwrap();
        assert_eq!(all.figures(), (3 * (8192 + BLOCK), 4, 1));

        let found = Found::list(&directory, true).unwrap();
        assert_eq!(found.files.keys().copied().collect::<Vec<_>>(), [24576, 32768]);
        assert_eq!(found.spares.len(), 1);
        assert_eq!(found.header(32768).unwrap().identity, 9);
    }

    /// Nine segments of 16 blocks, five of which are to go, and two of them to be kept as spares.
    fn nine(disk: &SimulatedDisk) -> Arc<Segments> {
        let directory = disk.directory();
        let shape = Shape { segment_bytes: 16 * BLOCK, identity: 9 };
        let found = Found::list(&directory, true).unwrap();
        let all = Segments::new(Arc::new(directory), found, shape, 1, &LogOptions::tiny_for_tests());
        for number in 0..9 {
            all.prepare(number * shape.segment_bytes).unwrap();
        }
        Arc::new(all)
    }

    #[test]
    fn what_is_not_needed_is_set_aside_durably_before_it_is_removed_piece_by_piece() {
        let disk = SimulatedDisk::new(1);
        let all = nine(&disk);
        let reader = all.get(3 * 16 * BLOCK).unwrap();
        let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
        let (noted, watched) = (Arc::clone(&moments), Arc::clone(&all));
        disk.watch(move |moment| {
            if [Operation::Shorten, Operation::Remove].contains(&moment.operation) {
                assert!(watched.spares.try_lock().is_ok(), "others can prepare segments");
            }
            noted.lock().unwrap().push(moment);
        });
        assert_eq!(all.truncate(5 * 16 * BLOCK).unwrap(), 5);
        disk.watch(|_| {});
        assert_eq!(disk.directory().list().unwrap().len(), 4 + 2);
        reader.read_at(&mut AlignedBuffer::zeroed(BLOCK_BYTES), 16 * BLOCK).unwrap();
        let (mut shortest, mut points) = (u64::MAX, 0);
        for moment in moments.lock().unwrap().iter() {
            for (disk, policy) in
                [&moment.before, &moment.during].into_iter().zip([CrashPolicy::LoseAll, CrashPolicy::KeepAll])
            {
                let directory = disk.crash(policy);
                let found = Found::list(&directory, true).unwrap();
                assert!(found.files.keys().all(|&base| found.header(base).is_ok()), "segments are whole");
                assert!(found.files.len() >= 4);
                for spare in &found.spares {
                    let file = directory.open(spare, OpenMode::Read, true).unwrap();
                    shortest = shortest.min(file.length().unwrap());
                }
                points += 1;
            }
        }
        // Of the three that are removed one is being read.
        assert_eq!((disk.count(Operation::Shorten), disk.count(Operation::Remove)), (2 * 16, 3));
        assert!(shortest == BLOCK && points > 100, "{shortest} and {points}");
    }

    #[test]
    fn a_spare_that_cannot_be_removed_is_used_again() {
        let disk = SimulatedDisk::new(1);
        let all = nine(&disk);
        disk.set_faults(FaultPlan::new().fail(Operation::Remove, 1, FaultKind::Refuse));
        let error = all.truncate(5 * 16 * BLOCK).unwrap_err();
        let LogError::Device { source, .. } = &error else { panic!("{error}") };
        assert_eq!(source.operation, Operation::Remove);
        let listed = disk.directory().list().unwrap();
        assert_eq!((listed.len(), all.figures().0), (4 + 4, (4 + 4) * 17 * BLOCK));
        for number in 9..13 {
            all.prepare(number * 16 * BLOCK).unwrap();
        }
        assert_eq!(all.figures(), (8 * 17 * BLOCK, 9, 4));
        let found = Found::list(&disk.directory(), true).unwrap();
        assert!(found.spares.is_empty() && found.files.keys().all(|&base| found.header(base).is_ok()));
    }

    #[test]
    fn damaged_header_is_told_with_its_place() {
        let directory = MemoryDirectory::new();
        let file = segments(&directory).prepare(8192).unwrap();
        file.write_at(&AlignedBuffer::zeroed(BLOCK_BYTES), 0).unwrap();
        let error = Found::list(&directory, true).unwrap().header(8192).unwrap_err();
        assert!(matches!(error, LogError::Corrupt { ref file, .. } if file == "log-0000000000002000.seg"));
    }
}
