//! Salvage: the buffers of a log that cannot be opened, found by their own checksums.
//!
//! Every block of every segment file is looked at. A buffer counts if it says that it lies where it lies, and its checksum is
//! right; so what is left of a segment's former life does not, and neither does a torn one. The identity is that
//! of most buffers: those of another log are losses. Whether a buffer follows the one before it is not asked, but what
//! is missing between two is a loss, too.
//!
//! Nothing is written. Memory: a window of [`DamagedFile`], a buffer, and 16 bytes for each buffer.

use crate::LogError;
use crate::block::{BLOCK, BufferHeader, HEADER_BYTES, SegmentHeader};
use crate::buffer_view::BufferView;
use crate::record::{HEAD_BYTES, Record, bytes_from_head};
use crate::segment::{parse_name, segment_name};
use deuteron_contract::Lsn;
use deuteron_device::{BLOCK_BYTES, DamagedFile, Directory, Loss, with_causes};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// No buffer is longer.
const BUFFER_BYTES_MAX: u64 = 64 << 20;
/// So many files are kept open.
const FILES_MAX: usize = 64;

/// What is left of a log. Made by [`LogSalvage::scan`].
pub struct LogSalvage {
    directory: Arc<dyn Directory>,
    identity: u64,
    /// Base and end of every sound buffer, ascending.
    buffers: Vec<(u64, u64)>,
    segments: BTreeMap<u64, String>,
    losses: Vec<Loss>,
    files: HashMap<u64, DamagedFile>,
}

impl LogSalvage {
    /// Looks through the log's files in `directory`.
    ///
    /// # Errors
    /// [`LogError::Device`] if the directory cannot be listed. All else that cannot be read is a loss.
    ///
    /// ```
    /// use deuteron_contract::{Lsn, TableId, TransactionId};
    /// use deuteron_device::{Directory, MemoryDirectory};
    /// use deuteron_log::{Log, LogOptions, LogSalvage, Record};
    /// use std::sync::Arc;
    ///
    /// let directory: Arc<dyn Directory> = Arc::new(MemoryDirectory::new());
    /// let epochs = deuteron_epoch::Epochs::new();
    /// let (log, _) = Log::open(Arc::clone(&directory), &LogOptions::default(), epochs, Lsn(0)..Lsn(0))?;
    /// log.append(&Record::Abort { transaction: TransactionId(7) }).unwrap();
    /// log.request_flush(log.tail_lsn());
    /// while log.flush_step()? {}
    /// let salvage = LogSalvage::scan(directory)?;
    /// let mut records = 0;
    /// salvage.visit(&mut |_, _| records += 1);
    /// assert_eq!((salvage.buffers(), records), (1, 1));
    /// # Ok::<(), deuteron_log::LogError>(())
    /// ```
    pub fn scan(directory: Arc<dyn Directory>) -> Result<LogSalvage, LogError> {
        let mut segments = BTreeMap::new();
        for name in directory.list().map_err(LogError::device("list its files"))? {
            if let Some(base) = parse_name(&name, ".seg") {
                segments.insert(base, name);
            }
        }
        let mut salvage = LogSalvage {
            directory,
            identity: 0,
            buffers: Vec::new(),
            segments,
            losses: Vec::new(),
            files: HashMap::new(),
        };
        let mut found = Vec::new();
        let mut losses = Vec::new();
        let mut votes: HashMap<u64, u64> = HashMap::new();
        for (&base, name) in &salvage.segments {
            let mut file = match DamagedFile::open(&*salvage.directory, name) {
                Ok(file) => file,
                Err(error) => {
                    losses.push(Loss {
                        file: name.clone(),
                        offset: 0,
                        bytes: 0,
                        reason: with_causes(&error),
                    });
                    continue;
                }
            };
            if let Err(mismatch) = SegmentHeader::decode(file.bytes(0, BLOCK_BYTES)) {
                let reason = format!("expected {}, found {}", mismatch.expected, mismatch.found);
                losses.push(Loss { file: name.clone(), offset: 0, bytes: BLOCK, reason });
            }
            let mut at = BLOCK;
            while at < file.length() {
                let lsn = base.saturating_add(at - BLOCK);
                at += match buffer_at(&mut file, at, lsn) {
                    Some((header, _)) => {
                        found.push((lsn, lsn + u64::from(header.distance), header.identity));
                        *votes.entry(header.identity).or_default() += 1;
                        u64::from(header.distance)
                    }
                    None => BLOCK,
                };
            }
            losses.extend(file.losses());
        }
        salvage.identity =
            votes.into_iter().max_by_key(|&(_, votes)| votes).map_or(0, |(identity, _)| identity);
        let mut end = None;
        for (base, next, identity) in found {
            let place = |lsn: u64| salvage.place(lsn);
            if identity != salvage.identity {
                let ((file, offset), bytes) = (place(base), next - base);
                losses.push(Loss { file, offset, bytes, reason: format!("a buffer of log {identity:016x}") });
                continue;
            }
            if let Some(end) = end.filter(|&end| end < base) {
                let (file, offset) = place(end);
                let reason =
                    "log buffers that are damaged or missing, with sound ones behind them".to_owned();
                losses.push(Loss { file, offset, bytes: base - end, reason });
            }
            end = Some(next);
            salvage.buffers.push((base, next));
        }
        salvage.losses = losses;
        Ok(salvage)
    }

    /// The file that holds `lsn`, or should, and where in it.
    fn place(&self, lsn: u64) -> (String, u64) {
        match self.segments.range(..=lsn).next_back() {
            Some((base, name)) => (name.clone(), BLOCK + (lsn - base)),
            None => (segment_name(lsn), 0),
        }
    }

    /// How many sound buffers there are.
    pub fn buffers(&self) -> u64 {
        self.buffers.len() as u64
    }

    /// Where the last of them ends.
    pub fn end(&self) -> Lsn {
        Lsn(self.buffers.last().map_or(0, |&(_, end)| end))
    }

    /// What was written and is not there any more.
    pub fn losses(&self) -> &[Loss] {
        &self.losses
    }

    /// Visits every record of every sound buffer in the order of the log.
    pub fn visit(&self, visit: &mut dyn FnMut(Lsn, Record<'_>)) {
        let mut open: Option<(u64, DamagedFile)> = None;
        for &(base, _) in &self.buffers {
            let Some((&segment, name)) = self.segments.range(..=base).next_back() else { continue };
            if open.as_ref().is_none_or(|(opened, _)| *opened != segment) {
                open = DamagedFile::open(&*self.directory, name).ok().map(|file| (segment, file));
            }
            let Some((_, file)) = &mut open else { continue };
            if let Some((header, bytes)) = buffer_at(file, BLOCK + (base - segment), base) {
                BufferView::new(&header, bytes).records().for_each(|(lsn, record)| visit(lsn, record));
            }
        }
    }

    /// The value of the upsert at `lsn`, which a visit has met; of one in pieces, put together.
    ///
    /// # Errors
    /// What is missing, in words.
    ///
    /// ```
    /// # fn example(salvage: &mut deuteron_log::LogSalvage, lsn: deuteron_contract::Lsn) -> Result<usize, String> {
    /// Ok(salvage.value(lsn)?.len())
    /// # }
    /// ```
    pub fn value(&mut self, lsn: Lsn) -> Result<Vec<u8>, String> {
        let (length, mut last) = match self.record(lsn)? {
            Found::Value(value) => return Ok(value),
            Found::Large { length, last } => (length, last),
            Found::Piece { .. } => return Err(format!("a piece of a value at LSN {lsn}")),
        };
        let mut pieces = Vec::new();
        let mut rest = length;
        while rest > 0 {
            let Found::Piece { before, bytes } = self.record(last)? else {
                return Err(format!("no piece of the value at LSN {last}"));
            };
            // Each piece has bytes and lies before the one that names it: the walk ends.
            if bytes.is_empty() || bytes.len() as u64 > rest || before >= last {
                return Err(format!("a piece at LSN {last} that does not fit"));
            }
            (rest, last) = (rest - bytes.len() as u64, before);
            pieces.push(bytes);
        }
        Ok(pieces.into_iter().rev().flatten().collect())
    }

    fn record(&mut self, lsn: Lsn) -> Result<Found, String> {
        let at = self.buffers.partition_point(|&(base, _)| base <= lsn.0);
        let sound = at.checked_sub(1).map(|at| self.buffers[at]).filter(|&(_, end)| lsn.0 < end);
        let segment = self.segments.range(..=lsn.0).next_back().map(|(&base, name)| (base, name.clone()));
        let ((base, _), (segment, name)) =
            sound.zip(segment).ok_or_else(|| format!("LSN {lsn} lies in no sound buffer"))?;
        if lsn.0 < base + HEADER_BYTES as u64 {
            return Err(format!("LSN {lsn} is in the header of a buffer"));
        }
        if self.files.len() >= FILES_MAX && !self.files.contains_key(&segment) {
            self.files.clear();
        }
        if !self.files.contains_key(&segment) {
            let file = DamagedFile::open(&*self.directory, &name).map_err(|error| with_causes(&error))?;
            self.files.insert(segment, file.at_random());
        }
        let file = self.files.get_mut(&segment).expect("opened");
        let at = BLOCK + (lsn.0 - segment);
        let unreadable = || format!("no record at LSN {lsn}");
        let head = *file.bytes(at, HEAD_BYTES).first_chunk().ok_or_else(unreadable)?;
        let length = bytes_from_head(head).map_err(|error| error.to_string())?;
        let bytes = file.bytes(at, length.min(BUFFER_BYTES_MAX as usize));
        match Record::decode(bytes).map_err(|error| error.to_string())?.record {
            Record::Upsert { value, .. } => Ok(Found::Value(value.to_vec())),
            Record::LargeUpsert { length, last, .. } => Ok(Found::Large { length, last }),
            Record::Piece { before, bytes, .. } => Ok(Found::Piece { before, bytes: bytes.to_vec() }),
            _ => Err(unreadable()),
        }
    }
}

/// What a record says of a value.
enum Found {
    Value(Vec<u8>),
    Large { length: u64, last: Lsn },
    Piece { before: Lsn, bytes: Vec<u8> },
}

/// The sound buffer at `at` of a file, which is `lsn` of the log; of whatever log.
fn buffer_at(file: &mut DamagedFile, at: u64, lsn: u64) -> Option<(BufferHeader, &[u8])> {
    let head = file.bytes(at, HEADER_BYTES);
    if !BufferHeader::is_magic(head) {
        return None;
    }
    let identity = BufferHeader::fields(head).ok()?.identity;
    let header = BufferHeader::read(head, lsn, BUFFER_BYTES_MAX, identity).ok()?;
    let bytes = file.bytes(at, header.written_bytes() as usize);
    let is_whole = bytes.len() as u64 == header.written_bytes();
    let is_sound =
        is_whole && header.verify(bytes).is_ok() && BufferView::new(&header, bytes).validate().is_ok();
    is_sound.then_some((header, bytes))
}
