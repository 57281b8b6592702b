//! Reading the log back from disk: at opening, for replay, and for single records.

use crate::LogError;
use crate::block::{BLOCK, BufferHeader, Mismatch};
use crate::buffer_view::BufferView;
use crate::segment::Segments;
use deuteron_canary::{Canary, is_planted};
use deuteron_contract::Lsn;
use deuteron_device::AlignedBuffer;
use std::sync::Arc;

/// Bytes read ahead at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// Reads buffers by their LSNs through a chunk of memory, so that a run of small ones does not take an I/O each.
pub(crate) struct BufferReader {
    segments: Arc<Segments>,
    chunk: AlignedBuffer,
    /// What of the log the chunk holds.
    chunk_base: u64,
    chunk_bytes: u64,
}

impl BufferReader {
    pub(crate) fn new(segments: Arc<Segments>) -> BufferReader {
        BufferReader { segments, chunk: AlignedBuffer::zeroed(0), chunk_base: 0, chunk_bytes: 0 }
    }

    /// The buffer at `base`: its header, and all its bytes. The inner error says why there is none.
    pub(crate) fn read(&mut self, base: u64) -> Result<Result<(BufferHeader, &[u8]), Mismatch>, LogError> {
        let shape = self.segments.shape();
        let room = shape.segment_bytes - base % shape.segment_bytes;
        if !self.fetch(base, BLOCK)? {
            return Ok(Err(Mismatch::new("a segment", "no file")));
        }
        let header = match BufferHeader::read(self.at(base, BLOCK), base, room, shape.identity) {
            Ok(header) => header,
            Err(mismatch) => return Ok(Err(mismatch)),
        };
        let bytes = header.written_bytes();
        if !self.fetch(base, bytes)? {
            return Ok(Err(Mismatch::new("a segment", "no file")));
        }
        let buffer = self.at(base, bytes);
        match header.verify(buffer) {
            Err(mismatch) if !is_planted(Canary::IgnoreTornTail) => Ok(Err(mismatch)),
            _ => Ok(Ok((header, buffer))),
        }
    }

    /// The lowest LSN from `lsn` on where a valid buffer starts. Looks at every block of every segment.
    pub(crate) fn find_valid(&mut self, mut lsn: u64) -> Result<Option<u64>, LogError> {
        let segment_bytes = self.segments.shape().segment_bytes;
        let end = self.segments.newest().map_or(0, |base| base + segment_bytes);
        while lsn < end {
            if !self.fetch(lsn, BLOCK)? {
                lsn = self.segments.base_of(lsn) + segment_bytes;
                continue;
            }
            let is_candidate = BufferHeader::is_magic(self.at(lsn, BLOCK));
            if is_candidate && self.read(lsn)?.is_ok() {
                return Ok(Some(lsn));
            }
            lsn += BLOCK;
        }
        Ok(None)
    }

    /// Gets `bytes` at `lsn`, which do not cross the segment's end, into the chunk; false if there is no such segment.
    fn fetch(&mut self, lsn: u64, bytes: u64) -> Result<bool, LogError> {
        if lsn >= self.chunk_base && lsn + bytes <= self.chunk_base + self.chunk_bytes {
            return Ok(true);
        }
        let base = self.segments.base_of(lsn);
        let Some(file) = self.segments.get(base) else { return Ok(false) };
        let room = base + self.segments.shape().segment_bytes - lsn;
        let length = bytes.max(CHUNK_BYTES).min(room);
        debug_assert!(bytes <= room);
        self.chunk_bytes = 0;
        if (self.chunk.len() as u64) < length {
            self.chunk = AlignedBuffer::zeroed(length as usize);
        }
        file.read_at(&mut self.chunk[..length as usize], BLOCK + (lsn - base))
            .map_err(LogError::device("read a segment"))?;
        self.chunk_base = lsn;
        self.chunk_bytes = length;
        Ok(true)
    }

    fn at(&self, lsn: u64, bytes: u64) -> &[u8] {
        let start = (lsn - self.chunk_base) as usize;
        &self.chunk[start..start + bytes as usize]
    }
}

/// Buffers from disk in order, for replay. Ends with the log, or after the first error.
///
/// Made by [`Recovery::buffers`](crate::Recovery::buffers).
pub struct LogReader {
    reader: BufferReader,
    at: u64,
    until: u64,
}

impl LogReader {
    /// The buffers from that at `start` up to `until`, all of which are known to be there.
    pub(crate) fn new(segments: Arc<Segments>, start: u64, until: u64) -> LogReader {
        LogReader { reader: BufferReader::new(segments), at: start, until }
    }
}

impl Iterator for LogReader {
    type Item = Result<LogBuffer, LogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.until {
            return None;
        }
        let read = match self.reader.read(self.at) {
            Ok(Ok((header, bytes))) => {
                self.at += u64::from(header.distance);
                return Some(Ok(LogBuffer { header, bytes: bytes.into() }));
            }
            Ok(Err(mismatch)) => Err(self.reader.segments.corrupt(self.at, mismatch)),
            Err(error) => Err(error),
        };
        self.at = self.until;
        Some(read)
    }
}

/// A buffer with memory of its own.
#[derive(Debug)]
pub struct LogBuffer {
    header: BufferHeader,
    bytes: Box<[u8]>,
}

impl LogBuffer {
    pub(crate) fn copy(header: &BufferHeader, bytes: &[u8]) -> LogBuffer {
        LogBuffer { header: *header, bytes: bytes.into() }
    }

    /// Its records.
    pub fn view(&self) -> BufferView<'_> {
        BufferView::new(&self.header, &self.bytes)
    }

    /// The LSN at which it starts.
    pub fn base(&self) -> Lsn {
        Lsn(self.header.base)
    }

    /// The LSN at which the next one starts.
    pub fn end(&self) -> Lsn {
        self.view().end()
    }
}
