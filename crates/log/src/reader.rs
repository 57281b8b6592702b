//! Reading the log back from disk: at opening, and for single records.

use crate::LogError;
use crate::block::{BLOCK, BufferHeader, Mismatch};
use crate::buffer_view::BufferView;
use crate::read_memory::{ReadMemory, read_bytes};
use crate::segment::Segments;
use crate::stable_index::StableIndex;
use deuteron_canary::{Canary, is_planted};
use deuteron_contract::{Lsn, Timestamp, TransactionId};
use deuteron_device::AlignedBuffer;
use std::sync::Arc;

/// Bytes read at once for one buffer's sake.
const CHUNK_BYTES: u64 = 1 << 20;

/// Reads buffers by their LSNs through chunks of memory, so that a run of small ones does not take an I/O each.
///
/// A chunk whose buffers have been lent is left to them, and filled again when all have been given back: memory that is new to
/// the process costs more than what is read into it.
pub(crate) struct BufferReader {
    segments: Arc<Segments>,
    /// Bytes read at once.
    ahead: u64,
    chunk: Arc<AlignedBuffer>,
    /// What of the log the chunk holds.
    chunk_base: u64,
    chunk_bytes: u64,
    /// Earlier chunks; some are not lent any more, one at least.
    lent: Vec<Arc<AlignedBuffer>>,
}

impl BufferReader {
    /// For some buffers.
    pub(crate) fn new(segments: Arc<Segments>) -> BufferReader {
        let chunk = Arc::new(AlignedBuffer::zeroed(0));
        BufferReader { segments, ahead: CHUNK_BYTES, chunk, chunk_base: 0, chunk_bytes: 0, lent: Vec::new() }
    }

    /// For all buffers from some place on: reads two of the longest at once.
    pub(crate) fn of_all(segments: Arc<Segments>) -> BufferReader {
        let ahead = read_bytes(segments.buffer_bytes_max());
        BufferReader { ahead, ..Self::new(segments) }
    }

    /// Reads into this memory first.
    pub(crate) fn read_into(&mut self, memory: ReadMemory) {
        self.lent.extend(memory.into_chunks().into_iter().map(Arc::new));
    }

    /// The header of the buffer at `base`, whose [bytes](BufferReader::bytes) are there until the next call. The inner error
    /// says why there is none.
    pub(crate) fn read(&mut self, base: u64) -> Result<Result<BufferHeader, Mismatch>, LogError> {
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
        match header.verify(self.at(base, bytes)) {
            Err(mismatch) if !is_planted(Canary::IgnoreTornTail) => Ok(Err(mismatch)),
            _ => Ok(Ok(header)),
        }
    }

    /// The bytes of the buffer that was read last, beginning with its header.
    pub(crate) fn bytes(&self, header: &BufferHeader) -> &[u8] {
        self.at(header.base, header.written_bytes())
    }

    /// The buffer that was read last, to keep.
    pub(crate) fn lend(&self, header: &BufferHeader) -> LogBuffer {
        LogBuffer {
            header: *header,
            chunk: self.chunk.clone(),
            start: (header.base - self.chunk_base) as usize,
            commits: None,
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

    /// Whether the block at `lsn` begins a buffer of another place in this segment. (Old buffers of a recycled file are of another
    /// segment.)
    pub(crate) fn is_anothers(&mut self, lsn: u64) -> Result<bool, LogError> {
        if !self.fetch(lsn, BLOCK)? {
            return Ok(false);
        }
        let (identity, segment) = (self.segments.shape().identity, self.segments.base_of(lsn));
        Ok(BufferHeader::fields(self.at(lsn, BLOCK)).is_ok_and(|header| {
            header.identity == identity && header.base != lsn && self.segments.base_of(header.base) == segment
        }))
    }

    /// Gets `bytes` at `lsn`, which do not cross the segment's end, into the chunk; false if there is no such segment.
    fn fetch(&mut self, lsn: u64, bytes: u64) -> Result<bool, LogError> {
        if lsn >= self.chunk_base && lsn + bytes <= self.chunk_base + self.chunk_bytes {
            return Ok(true);
        }
        let base = self.segments.base_of(lsn);
        let Some(file) = self.segments.get(base) else { return Ok(false) };
        let room = base + self.segments.shape().segment_bytes - lsn;
        let length = bytes.max(self.ahead).min(room);
        debug_assert!(bytes <= room);
        // What is there already is not read again. A chunk does not cross a segment's end.
        let end = self.chunk_base + self.chunk_bytes;
        let held = if (self.chunk_base..end).contains(&lsn) { (end - lsn) as usize } else { 0 };
        let start = (lsn.wrapping_sub(self.chunk_base)) as usize;
        self.chunk_bytes = 0;
        let mut next = self.vacant(length as usize);
        let chunk = Arc::get_mut(&mut next).expect("it is vacant");
        if held > 0 {
            chunk[..held].copy_from_slice(&self.chunk[start..start + held]);
        }
        let (missing, offset) = (&mut chunk[held..length as usize], BLOCK + (lsn - base) + held as u64);
        self.segments.read_long(&*file, missing, offset).map_err(LogError::device("read a segment"))?;
        self.lent.push(std::mem::replace(&mut self.chunk, next));
        self.chunk_base = lsn;
        self.chunk_bytes = length;
        Ok(true)
    }

    /// A chunk of at least so many bytes that nobody else has.
    fn vacant(&mut self, bytes: usize) -> Arc<AlignedBuffer> {
        // Shorter ones are of no use any more.
        self.lent.retain(|chunk| Arc::strong_count(chunk) > 1 || chunk.len() >= bytes);
        match self.lent.iter_mut().position(|chunk| Arc::get_mut(chunk).is_some()) {
            Some(vacant) => self.lent.swap_remove(vacant),
            None => Arc::new(AlignedBuffer::zeroed(bytes)),
        }
    }

    fn at(&self, lsn: u64, bytes: u64) -> &[u8] {
        let start = (lsn - self.chunk_base) as usize;
        &self.chunk[start..start + bytes as usize]
    }
}

/// Finds buffers of the log on disk by LSNs within them, while the log is opened or in use.
#[derive(Clone)]
pub struct SegmentReader {
    segments: Arc<Segments>,
    index: Arc<StableIndex>,
}

impl SegmentReader {
    pub(crate) fn new(segments: Arc<Segments>, index: Arc<StableIndex>) -> SegmentReader {
        SegmentReader { segments, index }
    }

    /// The buffer that holds `lsn`, which an opening has [found](crate::LogOpening::next_buffer) or is stable. Reads at most the 256 KiB
    /// before it along.
    ///
    /// ```
    /// # use deuteron_contract::Lsn;
    /// # use deuteron_log::{LogError, LogOpening};
    /// # fn example(opening: &mut LogOpening) -> Result<(), LogError> {
    /// if let Some(buffer) = opening.next_buffer()? {
    ///     assert_eq!(opening.reader().read_buffer(buffer.base())?.end(), buffer.end());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`LogError::Missing`] if it has been truncated, [`LogError::Corrupt`], those of the device.
    pub fn read_buffer(&self, lsn: Lsn) -> Result<LogBuffer, LogError> {
        let lsn = lsn.0;
        let mut base = self.buffer_below(lsn);
        let mut reader = BufferReader::new(self.segments.clone());
        loop {
            let mismatch = match reader.read(base)? {
                Ok(header) => {
                    let buffer = reader.lend(&header);
                    if buffer.end().0 <= lsn {
                        base = buffer.end().0;
                        continue;
                    }
                    return Ok(buffer);
                }
                Err(mismatch) => mismatch,
            };
            // It may have been truncated, and its file reused, while we read.
            return Err(if self.segments.get(self.segments.base_of(lsn)).is_none() {
                self.segments.missing(lsn, lsn)
            } else {
                self.segments.corrupt(base, mismatch)
            });
        }
    }

    /// Where a buffer starts at or below `lsn`, in its segment.
    pub(crate) fn buffer_below(&self, lsn: u64) -> u64 {
        let segment = self.segments.base_of(lsn);
        self.index.floor(lsn).filter(|&base| base >= segment).unwrap_or(segment)
    }
}

/// A buffer that was read from disk, in memory that it shares with those read along with it.
#[derive(Debug)]
pub struct LogBuffer {
    header: BufferHeader,
    chunk: Arc<AlignedBuffer>,
    /// Where in the chunk it begins.
    start: usize,
    /// If they were noted when it was checked, when all of it was in the processor's cache.
    commits: Option<Commits>,
}

/// Transactions that commit in a buffer, and when.
pub(crate) type Commits = Vec<(TransactionId, Timestamp)>;

impl LogBuffer {
    pub(crate) fn with_commits(self, commits: Commits) -> LogBuffer {
        LogBuffer { commits: Some(commits), ..self }
    }

    /// Its records.
    pub fn view(&self) -> BufferView<'_> {
        BufferView::new(&self.header, &self.chunk[self.start..]).with_outcomes(self.commits.as_deref())
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{AppendError, Log, LogOpening, LogOptions, Record};
    use deuteron_contract::TableId;
    use deuteron_device::MemoryDirectory;
    use deuteron_epoch::Epochs;

    #[test]
    fn buffers_that_are_kept_stay_and_the_memory_of_others_is_used_again() {
        // So small that the longest buffer is a quarter of what is read at once, so that some lie across its end.
        let options = LogOptions {
            ring_bytes: 4 << 20,
            buffer_bytes_max: 1 << 20,
            segment_bytes: 8 << 20,
            ..LogOptions::default()
        };
        let directory = Arc::new(MemoryDirectory::new());
        let (log, _) = Log::open(directory.clone(), &options, Epochs::new(), Lsn(0)..Lsn(0)).unwrap();
        let transaction = TransactionId(1);
        let value_of = |number: u64| vec![number as u8; 1000 + (number * 7919 % 300_000) as usize];
        for number in 0..200u64 {
            let (key, value) = (number.to_be_bytes(), value_of(number));
            let record = Record::Upsert { transaction, table: TableId(1), key: &key, value: &value };
            let lsn = loop {
                match log.append(&record) {
                    Err(AppendError::Full) => assert!(log.flush_step().is_ok()),
                    appended => break appended.unwrap(),
                }
            };
            log.request_flush(Lsn(lsn.0 + 1));
            while log.flush_step().unwrap() {}
            log.release(log.stable_lsn());
        }
        drop(log);
        let mut opening = LogOpening::new(directory, &options, Lsn(0)..Lsn(0)).unwrap();
        let mut kept = Vec::new();
        while let Some(buffer) = opening.next_buffer().unwrap() {
            if kept.len() < 60 {
                kept.push(buffer);
            }
            let lent = opening.buffer_reader().lent.len();
            assert!(lent <= kept.len() + 2, "{lent} chunks for {} buffers", kept.len());
        }
        let chunks = opening.buffer_reader().lent.len();
        assert!(chunks < 60, "{chunks} chunks");
        let records = kept.iter().flat_map(|buffer| buffer.view().records());
        let mut found = 0;
        for (number, (_, record)) in (0u64..).zip(records) {
            let Record::Upsert { key, value, .. } = record else { panic!("{record:?}") };
            assert_eq!((key, value), (&number.to_be_bytes()[..], &value_of(number)[..]));
            found += 1;
        }
        assert!(found >= 30, "{found} records in 60 buffers");
        // Given back, their memory is taken for what comes.
        drop(kept);
        let reader = opening.buffer_reader();
        let vacant = reader.lent.len();
        reader.read(0).unwrap().unwrap();
        assert!(reader.lent.len() <= vacant);
    }
}
