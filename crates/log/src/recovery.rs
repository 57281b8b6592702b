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
use crate::buffer_view::BufferView;
use crate::reader::{BufferReader, LogReader};
use crate::segment::{Found, Segments, Shape, corrupt_at, segment_name};
use crate::stable_index::StableIndex;
use crate::{LogError, LogOptions};
use deuteron_canary::{Canary, is_planted};
use deuteron_contract::Lsn;
use deuteron_device::{AlignedBuffer, Directory};
use std::ops::Range;
use std::sync::Arc;

/// What was found when the log was opened.
pub struct Recovery {
    segments: Arc<Segments>,
    start: u64,
    tail: u64,
    incarnation: u64,
}

impl Recovery {
    /// The buffers that hold what is at or above the redo scan start point, in order. The first one may begin below it.
    pub fn buffers(&self) -> LogReader {
        LogReader::new(self.segments.clone(), self.start, self.tail)
    }

    /// The base of the first of the [`buffers`](Recovery::buffers).
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
}

/// Everything that the log needs to know to go on.
pub(crate) struct Opening {
    pub segments: Arc<Segments>,
    pub recovery: Recovery,
    pub previous_crc: u32,
    pub incarnation: u64,
    pub index: StableIndex,
}

struct Scan {
    /// The base of the first buffer that ends above the redo scan start point.
    start: u64,
    tail: u64,
    /// The last valid buffer.
    last: Option<BufferHeader>,
}

impl Opening {
    pub(crate) fn run(
        directory: Arc<dyn Directory>,
        options: &LogOptions,
        needed: Range<u64>,
    ) -> Result<Opening, LogError> {
        let found = Found::list(&*directory, options.direct_io)?;
        // The segment that the start is in; or that which ends where it is, if the next has not been prepared.
        let Some(first) = found.files.range(..=needed.start).next_back().map(|(&base, _)| base) else {
            return Self::create(directory, options, found, needed.start.max(needed.end));
        };
        let head = found.header(first)?;
        let shape = Shape { segment_bytes: head.segment_bytes, identity: head.identity };
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
        let segments = Segments::new(directory, found, shape, newest.incarnation + 1, options);
        let segments = Arc::new(segments);
        let index = StableIndex::default();
        let scan = scan(&segments, first, needed, &index)?;
        let mut incarnation = newest.incarnation + 1;
        let mut previous_crc = 0;
        if let Some(last) = &scan.last {
            incarnation = incarnation.max(last.incarnation + 1);
            previous_crc = last.crc;
            rewrite(&segments, last)?;
        }
        segments.renew(scan.tail)?;
        let recovery =
            Recovery { segments: segments.clone(), start: scan.start, tail: scan.tail, incarnation };
        Ok(Opening { segments, recovery, previous_crc, incarnation, index })
    }

    fn create(
        directory: Arc<dyn Directory>,
        options: &LogOptions,
        found: Found,
        needed: u64,
    ) -> Result<Opening, LogError> {
        if needed != 0 || !found.files.is_empty() {
            let start = found.files.keys().next().map_or(0, |&base| base);
            return Err(LogError::Missing { wanted: Lsn(needed), start: Lsn(start), end: Lsn(start) });
        }
        let shape = Shape { segment_bytes: options.segment_bytes, identity: directory.identifier() };
        let incarnation = 1;
        let segments = Arc::new(Segments::new(directory, found, shape, incarnation, options));
        segments.prepare(0)?;
        let recovery = Recovery { segments: segments.clone(), start: 0, tail: 0, incarnation };
        Ok(Opening { segments, recovery, previous_crc: 0, incarnation, index: StableIndex::default() })
    }
}

/// Follows the buffers from `first` to the tail, which must not lie before the end of what is needed.
fn scan(
    segments: &Arc<Segments>,
    first: u64,
    needed: Range<u64>,
    index: &StableIndex,
) -> Result<Scan, LogError> {
    let from = needed.start;
    let until = if is_planted(Canary::IgnoreLostEnd) { from } else { needed.end.max(from) };
    let mut reader = BufferReader::of_all(segments.clone());
    let mut scan = Scan { start: first, tail: first, last: None };
    let mut is_chained = false;
    loop {
        let base = scan.tail;
        let mismatch = match reader.read(base)? {
            Ok(header) => {
                if let Some(last) = scan.last.as_ref().filter(|_| is_chained) {
                    let is_next = header.previous_crc == last.crc && header.incarnation >= last.incarnation;
                    if !is_next {
                        let expected = format!("a successor of {:08x} in {}", last.crc, last.incarnation);
                        let found = format!("one of {:08x} in {}", header.previous_crc, header.incarnation);
                        return Err(segments.corrupt(base, Mismatch::new(expected, found)));
                    }
                }
                let view = BufferView::new(&header, reader.bytes(&header));
                view.validate().map_err(|mismatch| segments.corrupt(base, mismatch))?;
                index.note(base);
                let end = view.end().0;
                if end <= from {
                    scan.start = end;
                }
                scan.last = Some(header);
                is_chained = true;
                scan.tail = end;
                continue;
            }
            Err(mismatch) => mismatch,
        };
        match reader.find_valid(base + BLOCK)? {
            None if base < until => {
                let expected = format!("{} (the log was stable up to LSN {until})", mismatch.expected);
                return Err(segments.corrupt(base, Mismatch { expected, ..mismatch }));
            }
            None if reader.is_anothers(base)? => return Err(segments.corrupt(base, mismatch)),
            None => return Ok(scan),
            // Damaged, but nobody needs it.
            Some(later) if later <= from => {
                (scan.start, scan.tail, is_chained) = (later, later, false);
            }
            Some(later) => {
                let expected = format!("{} (a valid buffer follows at LSN {later})", mismatch.expected);
                return Err(segments.corrupt(base, Mismatch { expected, ..mismatch }));
            }
        }
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
