//! Opening: where the log ends, and whether all before is sound.
//!
//! Buffers are followed from the start of the segment that holds the redo scan start point. The log ends at the first
//! base where no valid buffer is. Either that is the *tail*, where at most one write was under way when the machine
//! stopped, or something *corrupt*: since no write is issued before the one before it is durable (F1), a valid buffer
//! at any higher LSN proves that there had been one here. So all blocks behind are searched for one. Nothing else
//! at those places can look like one: its base must be the very LSN of its place, which a recycled file's old
//! buffers, the inside of a torn buffer or the user's values do not have together with the log's identity and a
//! checksum.
//!
//! The header of another place of the same segment where the next buffer would be proves it, too: no crash puts it there, only a device that
//! writes to the wrong place or spoils what it has.
//!
//! Other damage to the last buffer looks like a torn tail. But whoever opens the log may know up to where it had been stable, as the data component
//! does, whose pages depend on it: a log that ends before that is corrupt where it ends.
//!
//! The last valid buffer may have been found in a cache and not on the medium (the process died, not the machine, while
//! it was being written; or its write failed). It is written again before anything is appended behind it, so
//! that F1 holds across openings.

use crate::block::{BLOCK, BufferHeader, HEADER_BYTES, Mismatch};
use crate::buffer_view::{BufferView, Summary};
use crate::read_memory::ReadMemory;
use crate::reader::{BufferReader, Commits, LogBuffer, SegmentReader};
use crate::segment::{Found, Segments, Shape, corrupt_at, segment_name};
use crate::stable_index::StableIndex;
use crate::{Log, LogError, LogOptions};
use deuteron_canary::{Canary, is_planted};
use deuteron_contract::{Lsn, Timestamp};
use deuteron_device::{AlignedBuffer, Directory};
use deuteron_epoch::Epochs;
use std::ops::Range;
use std::sync::Arc;

/// What was found when the log was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    start: u64,
    tail: u64,
    incarnation: u64,
    buffers: u64,
    summary: Summary,
}

impl Recovery {
    /// The base of the first of the buffers that hold what is at or above the redo scan start point.
    pub fn start(&self) -> Lsn {
        Lsn(self.start)
    }

    /// Where the recovered log ends and appending goes on: the first `after` of
    /// [`Log::next_stable`](crate::Log::next_stable).
    pub fn tail(&self) -> Lsn {
        Lsn(self.tail)
    }

    /// The how-manyth opening of the log this is, not counting those after which nothing was written.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// How many buffers there are from the [start](Recovery::start) on.
    pub fn buffers(&self) -> u64 {
        self.buffers
    }

    /// How many records are in them.
    pub fn records(&self) -> u64 {
        self.summary.records
    }

    /// How many of the records are commits.
    pub fn commits(&self) -> u64 {
        self.summary.commits
    }

    /// The highest timestamp that any of the commits or a ceiling of the clock among the records names.
    pub fn latest(&self) -> Timestamp {
        self.summary.latest
    }
}

/// An opening of the log under way: its buffers come one after the other, while its end is looked for.
///
/// ```
/// use deuteron_contract::{Lsn, TransactionId};
/// use deuteron_device::MemoryDirectory;
/// use deuteron_epoch::Epochs;
/// use deuteron_log::{Log, LogOpening, LogOptions, Record};
/// use std::sync::Arc;
///
/// let (directory, options) = (Arc::new(MemoryDirectory::new()), LogOptions::tiny_for_tests());
/// let record = Record::Abort { transaction: TransactionId(7) };
/// {
///     let (log, _) = Log::open(directory.clone(), &options, Epochs::new(), Lsn(0)..Lsn(0))?;
///     log.append(&record)?;
///     log.request_flush(log.tail_lsn());
///     while log.flush_step()? {}
/// }
/// let mut opening = LogOpening::new(directory, &options, Lsn(0)..Lsn(0))?;
/// while let Some(buffer) = opening.next_buffer()? {
///     assert_eq!(buffer.view().records().next().unwrap().1, record);
/// }
/// let (log, recovery) = opening.finish(Epochs::new())?;
/// assert_eq!((log.stable_lsn(), recovery.records()), (recovery.tail(), 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LogOpening {
    pub(crate) options: LogOptions,
    pub(crate) segments: Arc<Segments>,
    pub(crate) index: Arc<StableIndex>,
    reader: BufferReader,
    needed: Range<u64>,
    pub(crate) recovery: Recovery,
    /// The last valid buffer.
    last: Option<BufferHeader>,
    /// Whether what follows it must say so.
    is_chained: bool,
    /// The last that is to be offered. It is known to be durable only when another follows it, or it has been written again.
    held: Option<LogBuffer>,
    /// The end has been found.
    is_whole: bool,
}

impl LogOpening {
    /// Begins to open the log in `directory`, or creates one if there is none and nothing of it is needed.
    ///
    /// `needed` begins at the redo scan start point: the log from there on is checked and offered for replay. It ends where the log is
    /// known to have been stable up to; a log that ends before has lost something. `Lsn(0)..Lsn(0)` needs nothing.
    ///
    /// # Errors
    /// [`LogError::Corrupt`] if the header of a segment is damaged; [`LogError::Missing`] if the log begins behind what is needed, or a
    /// segment is not there; those of the device; bad options.
    pub fn new(
        directory: Arc<dyn Directory>,
        options: &LogOptions,
        needed: Range<Lsn>,
    ) -> Result<LogOpening, LogError> {
        options.validate()?;
        let needed = needed.start.0..needed.end.0;
        let found = Found::list(&*directory, options.direct_io)?;
        // The segment that the start is in; or that which ends where it is, if the next has not been prepared.
        let Some(first) = found.files.range(..=needed.start).next_back().map(|(&base, _)| base) else {
            return Self::create(directory, options, found, needed);
        };
        let head = found.header(first)?;
        let shape = Shape { segment_bytes: head.segment_bytes, identity: head.identity };
        if (shape.segment_bytes as usize) < options.buffer_bytes_max {
            let problem = "longer than the segments of this log, which were fixed when it was created";
            return Err(LogError::Options { option: "buffer_bytes_max", problem });
        }
        let mut newest = head;
        for (&base, _) in found.files.range(first + 1..) {
            let header = found.header(base)?;
            let next = newest.base + shape.segment_bytes;
            if base != next {
                return Err(LogError::Missing { wanted: Lsn(next), start: Lsn(first), end: Lsn(next) });
            }
            let Shape { segment_bytes, identity } = shape;
            if (header.segment_bytes, header.identity) != (segment_bytes, identity) {
                let expected = format!("{segment_bytes} bytes of log {identity:016x}");
                let found = format!("{} bytes of log {:016x}", header.segment_bytes, header.identity);
                return Err(corrupt_at(segment_name(base), 0, Mismatch::new(expected, found)));
            }
            newest = header;
        }
        // Headers name their incarnation in case that no buffer is left to do so.
        let incarnation = newest.incarnation + 1;
        let segments = Segments::new(directory, found, shape, incarnation, options);
        Ok(Self::over(segments, options, needed, first, incarnation))
    }

    fn create(
        directory: Arc<dyn Directory>,
        options: &LogOptions,
        found: Found,
        needed: Range<u64>,
    ) -> Result<LogOpening, LogError> {
        let wanted = needed.start.max(needed.end);
        if wanted != 0 || !found.files.is_empty() {
            let start = found.files.keys().next().map_or(0, |&base| base);
            return Err(LogError::Missing { wanted: Lsn(wanted), start: Lsn(start), end: Lsn(start) });
        }
        let shape = Shape { segment_bytes: options.segment_bytes, identity: directory.identifier() };
        let segments = Segments::new(directory, found, shape, 1, options);
        segments.prepare(0)?;
        Ok(LogOpening { is_whole: true, ..Self::over(segments, options, needed, 0, 1) })
    }

    fn over(
        segments: Segments,
        options: &LogOptions,
        needed: Range<u64>,
        first: u64,
        incarnation: u64,
    ) -> LogOpening {
        let segments = Arc::new(segments);
        LogOpening {
            options: options.clone(),
            reader: BufferReader::of_all(segments.clone()),
            segments,
            index: Arc::default(),
            needed,
            recovery: Recovery {
                start: first,
                tail: first,
                incarnation,
                buffers: 0,
                summary: Summary::default(),
            },
            last: None,
            is_chained: false,
            held: None,
            is_whole: false,
        }
    }

    /// Has it read into `memory` before it takes more.
    ///
    /// ```
    /// # use deuteron_log::{LogError, LogOpening, LogOptions, ReadMemory};
    /// # fn example(opening: &mut LogOpening, memory: ReadMemory) {
    /// opening.read_into(memory);
    /// # }
    /// ```
    pub fn read_into(&mut self, memory: ReadMemory) {
        self.reader.read_into(memory);
    }

    /// The next buffer that holds what is at or above the redo scan start point, in order; the first one may begin below it. Each is
    /// sound and on the medium. `None` at the end of the log, which can be written to then.
    ///
    /// # Errors
    /// [`LogError::Corrupt`] if bytes that had been durable are damaged, which a torn tail never looks like, or the log does not reach
    /// the end of what is needed; those of the device.
    pub fn next_buffer(&mut self) -> Result<Option<LogBuffer>, LogError> {
        while !self.is_whole {
            match self.find_next()? {
                Some(found) => {
                    if let Some(before) = self.held.replace(found) {
                        return Ok(Some(before));
                    }
                }
                None => {
                    if let Some(last) = &self.last {
                        rewrite(&self.segments, last)?;
                    }
                    self.segments.renew(self.recovery.tail, self.last.is_some())?;
                    self.is_whole = true;
                }
            }
        }
        Ok(self.held.take())
    }

    /// How many records there are in the buffers found so far: those returned and perhaps the next.
    ///
    /// ```
    /// # fn example(opening: &mut deuteron_log::LogOpening) -> Result<(), deuteron_log::LogError> {
    /// if let Some(buffer) = opening.next_buffer()? {
    ///     assert!(opening.records_met() as usize >= buffer.view().records().count());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn records_met(&self) -> u64 {
        self.recovery.summary.records
    }

    /// Follows the buffers to the first that is to be offered, or to the tail, which must not lie before the end of what is needed.
    fn find_next(&mut self) -> Result<Option<LogBuffer>, LogError> {
        let from = self.needed.start;
        let until = if is_planted(Canary::IgnoreLostEnd) { from } else { self.needed.end.max(from) };
        loop {
            let base = self.recovery.tail;
            let mismatch = match self.reader.read(base)? {
                Ok(header) => {
                    let (end, commits) = self.follow(header)?;
                    if end > from {
                        return Ok(Some(self.reader.lend(&header).with_commits(commits)));
                    }
                    continue;
                }
                Err(mismatch) => mismatch,
            };
            match self.reader.find_valid(base + BLOCK)? {
                None if base < until => {
                    let expected = format!("{} (the log was stable up to LSN {until})", mismatch.expected);
                    return Err(self.segments.corrupt(base, Mismatch { expected, ..mismatch }));
                }
                None if self.reader.is_anothers(base)? => return Err(self.segments.corrupt(base, mismatch)),
                None => return Ok(None),
                // Damaged, but nobody needs it.
                Some(later) if later <= from => {
                    (self.recovery.start, self.recovery.tail, self.is_chained) = (later, later, false);
                }
                Some(later) => {
                    let expected = format!("{} (a valid buffer follows at LSN {later})", mismatch.expected);
                    return Err(self.segments.corrupt(base, Mismatch { expected, ..mismatch }));
                }
            }
        }
    }

    /// Takes the buffer that was read last for the next; where it ends, and what commits in it.
    fn follow(&mut self, header: BufferHeader) -> Result<(u64, Commits), LogError> {
        if let Some(last) = self.last.as_ref().filter(|_| self.is_chained) {
            let is_next = header.previous_crc == last.crc && header.incarnation >= last.incarnation;
            if !is_next {
                let expected = format!("a successor of {:08x} in {}", last.crc, last.incarnation);
                let found = format!("one of {:08x} in {}", header.previous_crc, header.incarnation);
                return Err(self.segments.corrupt(header.base, Mismatch::new(expected, found)));
            }
        }
        let view = BufferView::new(&header, self.reader.bytes(&header));
        let mut commits = Vec::new();
        let summary = view
            .validate_noting(|commit| commits.push((commit.transaction, commit.timestamp)))
            .map_err(|mismatch| self.segments.corrupt(header.base, mismatch))?;
        let end = view.end().0;
        self.index.note(header.base);
        let recovery = &mut self.recovery;
        if end <= self.needed.start {
            recovery.start = end;
        } else {
            recovery.buffers += 1;
            recovery.summary.records += summary.records;
            recovery.summary.commits += summary.commits;
            recovery.summary.latest = recovery.summary.latest.max(summary.latest);
        }
        recovery.tail = end;
        recovery.incarnation = recovery.incarnation.max(header.incarnation + 1);
        self.last = Some(header);
        self.is_chained = true;
        Ok((end, commits))
    }

    /// Goes on to the end and opens the log: appending starts behind it at once. Version readers pin `epochs`.
    ///
    /// # Errors
    /// Those of [`LogOpening::next_buffer`].
    pub fn finish(mut self, epochs: Arc<Epochs>) -> Result<(Log, Recovery), LogError> {
        while self.next_buffer()?.is_some() {}
        let recovery = self.recovery.clone();
        Ok((Log::behind(self, epochs), recovery))
    }

    /// Finds single buffers among those that have been returned.
    pub fn reader(&self) -> SegmentReader {
        SegmentReader::new(self.segments.clone(), self.index.clone())
    }

    /// The checksum of the last buffer, which the next will name.
    pub(crate) fn previous_crc(&self) -> u32 {
        self.last.as_ref().map_or(0, |last| last.crc)
    }

    #[cfg(all(test, not(loom)))]
    pub(crate) fn buffer_reader(&mut self) -> &mut BufferReader {
        &mut self.reader
    }
}

/// Makes the last valid buffer durable, in case that it is not.
fn rewrite(segments: &Segments, last: &BufferHeader) -> Result<(), LogError> {
    let segment = segments.base_of(last.base);
    let Some(file) = segments.get(segment) else { return Ok(()) };
    let mut bytes = AlignedBuffer::zeroed(last.written_bytes() as usize);
    let offset = BLOCK + (last.base - segment);
    file.read_at(&mut bytes, offset).map_err(LogError::device("read its last buffer"))?;
    // It was read once more: what has rotted since must not become what was written.
    last.verify(&bytes).map_err(|mismatch| segments.corrupt(last.base, mismatch))?;
    bytes[..HEADER_BYTES].copy_from_slice(&last.to_bytes());
    file.write_durable_at(&bytes, offset).map_err(LogError::device("write its last buffer again"))
}
