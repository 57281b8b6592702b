//! The log itself: appending, reading versions, durability, lending to the proxy, truncating.

use crate::block::BLOCK;
use crate::buffers::{Buffers, Reservation};
use crate::commit_reservation::CommitReservation;
use crate::condition::Condition;
use crate::flusher::{FlushCounters, Flusher, Step};
use crate::memory_window::MemoryWindow;
use crate::opening::{LogOpening, Recovery};
use crate::reader::{BufferReader, LogBuffer, SegmentReader};
use crate::record::{
    COMMIT_BYTES, HEAD_BYTES, OwnedRecord, PIECE_HEAD_BYTES, Record, RecordView, UPDATE_HEAD_BYTES,
    bytes_from_head,
};
use crate::ring::Ring;
use crate::segment::Segments;
use crate::stable_buffer::StableBuffer;
use crate::stable_index::StableIndex;
use crate::stable_waiters::{StableWaiters, Waiter};
use crate::statistics::LogStatistics;
use crate::sync::{AtomicU64, Mutex, Ordering, Padded};
use crate::{AppendError, LogError, LogOptions, Poison};
use deuteron_contract::Lsn;
use deuteron_device::{Directory, Operation};
use deuteron_epoch::{Epochs, Guard};
use deuteron_histogram::Distribution;
use std::ops::Range;
use std::sync::{Arc, TryLockError};
use std::task::{Poll, Waker};
use std::thread::{self, Thread};

/// The most bytes of a value in one record, if it does not fit whole.
const PIECE_BYTES_MAX: usize = 256 << 10;

/// The recovery log. See the [crate's document](crate).
///
/// All methods may be called from any thread.
pub struct Log {
    pub(crate) ring: Ring,
    pub(crate) buffers: Buffers,
    pub(crate) window: MemoryWindow,
    pub(crate) condition: Condition,
    record_bytes_max: usize,
    pub(crate) incarnation: u64,
    /// Where this opening of the log began to write.
    pub(crate) opened_at: u64,
    /// Somebody waits for everything below to be durable.
    pub(crate) requested: Padded<AtomicU64>,
    threads: StableWaiters<Thread>,
    tasks: StableWaiters<Waker>,
    pub(crate) segments: Arc<Segments>,
    pub(crate) index: Arc<StableIndex>,
    flusher: Mutex<Flusher>,
    /// Off the lines that appenders read.
    pub(crate) flush_counters: Padded<FlushCounters>,
    append_full: Padded<AtomicU64>,
}

impl Log {
    /// Opens the log in `directory` without replaying it: a whole [`LogOpening`], which says what `needed` is, at once. Version readers
    /// pin `epochs`.
    ///
    /// ```
    /// use deuteron_contract::{Lsn, TransactionId};
    /// use deuteron_device::MemoryDirectory;
    /// use deuteron_epoch::Epochs;
    /// use deuteron_log::{Log, LogOptions, Record};
    /// use std::sync::Arc;
    ///
    /// let directory = Arc::new(MemoryDirectory::new());
    /// let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), Epochs::new(), Lsn(0)..Lsn(0))?;
    /// let lsn = log.append(&Record::Abort { transaction: TransactionId(7) })?;
    /// log.request_flush(Lsn(lsn.0 + 1));
    /// while log.flush_step()? {}
    /// assert!(log.stable_lsn() > lsn);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`LogOpening::new`] and [`LogOpening::next_buffer`].
    pub fn open(
        directory: Arc<dyn Directory>,
        options: &LogOptions,
        epochs: Arc<Epochs>,
        needed: Range<Lsn>,
    ) -> Result<(Log, Recovery), LogError> {
        LogOpening::new(directory, options, needed)?.finish(epochs)
    }

    /// What an opening has found, to go on from.
    pub(crate) fn behind(opening: LogOpening, epochs: Arc<Epochs>) -> Log {
        let previous_crc = opening.previous_crc();
        let LogOpening { options, segments, index, recovery, .. } = opening;
        let (tail, incarnation) = (recovery.tail().0, recovery.incarnation());
        let ring_bytes = options.ring_bytes as u64;
        let segment_bytes = segments.shape().segment_bytes;
        let buffer_bytes_max = options.buffer_bytes_max as u64;
        let condition = Condition::default();
        // If it is still due, the opening found no room for it.
        condition.set_space_low(segments.due_at(tail).is_some());
        Log {
            ring: Ring::new(options.ring_bytes),
            buffers: Buffers::new(
                options.buffer_count,
                tail,
                buffer_bytes_max,
                // Both are powers of two, so that the ends of the longer are ends of the shorter.
                ring_bytes.min(segment_bytes),
            ),
            window: MemoryWindow::new(tail, ring_bytes, buffer_bytes_max, epochs),
            condition,
            record_bytes_max: options.record_bytes_max(),
            incarnation,
            opened_at: tail,
            requested: Padded(AtomicU64::new(tail)),
            threads: StableWaiters::default(),
            tasks: StableWaiters::default(),
            segments,
            index,
            flusher: Mutex::new(Flusher::new(tail, previous_crc)),
            flush_counters: Padded(FlushCounters::default()),
            append_full: Padded(AtomicU64::new(0)),
        }
    }

    /// The longest record that fits, its head included.
    pub fn record_bytes_max(&self) -> usize {
        self.record_bytes_max
    }

    /// The longest value under a key of `key_bytes`.
    pub fn value_bytes_max(&self, key_bytes: usize) -> usize {
        self.record_bytes_max.saturating_sub(UPDATE_HEAD_BYTES + key_bytes)
    }

    /// How many bytes of a long value go into a piece: a quarter of a buffer at most, so that little of one stays empty.
    pub fn piece_bytes(&self) -> usize {
        (self.record_bytes_max / 4).min(PIECE_BYTES_MAX) - PIECE_HEAD_BYTES
    }

    /// Copies the record into the log and returns its LSN. Never waits. Not durable until the log is stable beyond it.
    ///
    /// Call it without an epoch guard: a thread that holds one keeps memory from being reused that it may be
    /// asking for.
    ///
    /// # Errors
    /// See [`AppendError`]; nothing was appended.
    #[inline]
    pub fn append(&self, record: &Record<'_>) -> Result<Lsn, AppendError> {
        let is_update = matches!(
            record,
            Record::Upsert { .. } | Record::Delete { .. } | Record::Piece { .. } | Record::LargeUpsert { .. }
        );
        let size = record.encoded_bytes();
        if size > self.record_bytes_max || !record.is_representable() {
            return Err(AppendError::TooLarge { found: size, limit: self.record_bytes_max });
        }
        let reservation = self.reserve(size, !is_update)?;
        let lsn = reservation.lsn;
        self.ring.prefetch_ahead(lsn);
        let link = if let Record::Commit { .. } = record { reservation.link(lsn) } else { 0 };
        // SAFETY: B5: the range is ours alone until we leave.
        record.encode(link, unsafe { self.ring.slice_mut(lsn, size) });
        reservation.leave();
        Ok(Lsn(lsn))
    }

    /// Reserves the place of a commit record, to be filled or cancelled at once.
    ///
    /// For *reserve, then change the transaction's status, then fill*: whoever sees the status sees a transaction whose
    /// commit record has its place already, before that of any transaction that reads from it.
    ///
    /// # Errors
    /// See [`AppendError`].
    #[inline]
    pub fn reserve_commit(&self) -> Result<CommitReservation<'_>, AppendError> {
        self.reserve_commit_behind(0)
    }

    /// The same with room for updates of together `bytes` before the commit record, which the caller [writes](CommitReservation::append): all that
    /// a transaction has changed is logged at the cost of one record, as far as others are concerned.
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
    /// # use deuteron_log::{Log, LogOptions, Record};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs, Lsn(0)..Lsn(0))?;
    /// let transaction = TransactionId(7);
    /// let update = Record::Upsert { transaction, table: TableId(1), key: b"key", value: b"value" };
    /// let mut commit = log.reserve_commit_behind(update.encoded_bytes())?;
    /// let lsn = commit.append(&update);
    /// assert_eq!(commit.lsn(), Lsn(lsn.0 + update.encoded_bytes() as u64));
    /// commit.fill(transaction, Timestamp(8), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// See [`AppendError`]; nothing was reserved.
    #[inline]
    pub fn reserve_commit_behind(&self, bytes: usize) -> Result<CommitReservation<'_>, AppendError> {
        let bytes = bytes.next_multiple_of(8);
        let size = bytes + COMMIT_BYTES;
        if size > self.record_bytes_max {
            return Err(AppendError::TooLarge { found: size, limit: self.record_bytes_max });
        }
        let reservation = self.reserve(size, bytes == 0)?;
        self.ring.prefetch_ahead(reservation.lsn);
        Ok(CommitReservation::new(self, reservation, bytes))
    }

    #[inline]
    fn reserve(&self, size: usize, is_essential: bool) -> Result<Reservation<'_>, AppendError> {
        self.condition.admit(is_essential)?;
        self.buffers.reserve(size as u32, &self.window).map_err(|_no_room| {
            self.append_full.fetch_add(1, Ordering::Relaxed);
            AppendError::Full
        })
    }

    /// Asks the processor for the first cache lines of the record at `lsn`, without waiting for them. A hint: any LSN will do,
    /// whether or not it is still in memory.
    ///
    /// ```
    /// # use deuteron_log::{Log, LogOptions, Record};
    /// # use deuteron_contract::{Lsn, Timestamp};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs, Lsn(0)..Lsn(0))?;
    /// log.prefetch(log.tail_lsn());
    /// # Ok::<(), deuteron_log::LogError>(())
    /// ```
    #[inline]
    pub fn prefetch(&self, lsn: Lsn) {
        self.ring.prefetch(lsn.0);
    }

    /// The record at `lsn` if it is still in memory; `None` if its memory has been, or is about to be, used again.
    ///
    /// # Safety
    /// `lsn` was returned by [`Log::append`] of this `Log`, or is that of a [`CommitReservation`] that has been filled,
    /// and the caller learnt of it from whoever appended or filled (not by guessing): memory that is just being
    /// written may not be looked at.
    ///
    /// # Panics
    /// If `guard` belongs to other epochs than those that the log was opened with.
    #[inline]
    pub unsafe fn read<'g>(&'g self, lsn: Lsn, guard: &'g Guard<'_>) -> Option<RecordView<'g>> {
        if lsn.0 < self.window.memory_start(guard) {
            return None;
        }
        // SAFETY: M1 and M3: as long as the guard lives, nobody writes to a record at or above `memory_start`.
        let head = unsafe { self.ring.slice(lsn.0, HEAD_BYTES) };
        let bytes = bytes_from_head(head.try_into().ok()?).ok()?;
        if bytes > self.ring.contiguous(lsn.0) {
            return None;
        }
        // SAFETY: as above.
        let record = unsafe { self.ring.slice(lsn.0, bytes) };
        Record::decode(record).ok().map(|decoded| decoded.record)
    }

    /// The record at `lsn` from disk. Blocks on the device.
    ///
    /// # Errors
    /// [`LogError::Missing`] if the LSN is truncated, or not stable; [`LogError::NotARecord`]; [`LogError::Corrupt`];
    /// those of the device.
    pub fn read_stable(&self, lsn: Lsn) -> Result<OwnedRecord, LogError> {
        let buffer = self.read_stable_buffer(lsn)?;
        let record = buffer.view().bytes_at(lsn.0).ok_or(LogError::NotARecord { lsn })?;
        OwnedRecord::copy(record).map_err(|_| LogError::NotARecord { lsn })
    }

    /// The buffer that holds `lsn` from disk, for whoever wants many records of it. Blocks on the device.
    ///
    /// # Errors
    /// Those of [`Log::read_stable`], but it does not look at the records.
    pub fn read_stable_buffer(&self, lsn: Lsn) -> Result<LogBuffer, LogError> {
        let lsn = lsn.0;
        let stable = self.window.stable();
        if lsn >= stable || self.segments.start().is_none_or(|start| lsn < start) {
            return Err(self.segments.missing(lsn, stable));
        }
        self.on_disk().read_buffer(Lsn(lsn))
    }

    fn on_disk(&self) -> SegmentReader {
        SegmentReader::new(self.segments.clone(), self.index.clone())
    }

    /// Asks for everything below `upto` to become durable. `Lsn(u64::MAX)` asks for whatever comes.
    pub fn request_flush(&self, upto: Lsn) {
        // Mostly somebody has asked for more already.
        if self.requested.load(Ordering::Relaxed) < upto.0 {
            self.requested.fetch_max(upto.0, Ordering::AcqRel);
        }
    }

    /// Does one unit of the flusher's work: recycles memory ahead of need; seals the open buffer if it holds records
    /// that somebody asked for; writes the oldest sealed buffer, and unparks the threads that waited for it (tasks are woken by
    /// [`Log::wake_step`]); prepares the next segment. True if there was something to do, hence may be more. False also if another thread is at it.
    ///
    /// Blocks on the device. Do not call it between [`Log::reserve_commit`] and filling.
    ///
    /// # Errors
    /// The first failure of the device, and from then on [`LogError::Poisoned`]: the log has stopped for good, and all who
    /// wait have been told. What is below [`Log::stable_lsn`] is safe. The same if a step has panicked: what it left is not to be written.
    pub fn flush_step(&self) -> Result<bool, LogError> {
        let mut flusher = match self.flusher.try_lock() {
            Ok(flusher) => flusher,
            Err(TryLockError::WouldBlock) => return Ok(false),
            Err(TryLockError::Poisoned(_)) => {
                let reason = "a thread panicked while it wrote the log".to_owned();
                let error = LogError::Poisoned(Arc::new(Poison { reason, disk_full: false }));
                self.stop(&error);
                return Err(error);
            }
        };
        self.condition.check()?;
        let recycled = self.window.recycle_step();
        // F4: before anybody else can try.
        let or_stop = |error: &LogError| self.condition.stop(error);
        let stepped = flusher.step(self).inspect_err(or_stop);
        drop(flusher);
        let prepared = match stepped {
            Ok(Step::Idle) => return Ok(recycled),
            Ok(Step::Worked) => return Ok(true),
            Ok(Step::Wrote { stable }) => {
                self.threads.wake(stable);
                match self.flusher.try_lock() {
                    Ok(mut flusher) => {
                        self.condition.check()?;
                        let prepared = flusher.prepare_ahead(self, false);
                        prepared.and_then(|_| flusher.fill_ahead(self)).inspect_err(or_stop)
                    }
                    // Whoever else writes now prepares the next segment, too.
                    Err(_) => Ok(()),
                }
            }
            Err(error) => Err(error),
        };
        if let Err(error) = prepared {
            self.threads.wake(u64::MAX);
            return Err(error);
        }
        Ok(true)
    }

    /// F4.
    fn stop(&self, error: &LogError) {
        self.condition.stop(error);
        self.threads.wake(u64::MAX);
    }

    /// Below that nobody has anything to wait for.
    fn decided(&self) -> u64 {
        if self.condition.poison().is_some() { u64::MAX } else { self.window.stable() }
    }

    /// Wakes the tasks that have [polled](Log::poll_stable) what is durable by now, or never will be; whether there were any. On the calling
    /// thread, for as long as their wakers take, which may do anything. So let it be another one than those that run [`Log::flush_step`].
    pub fn wake_step(&self) -> bool {
        self.tasks.wake(self.decided()) > 0
    }

    /// Whether [`Log::wake_step`] has somebody to wake.
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, TransactionId};
    /// # use deuteron_log::{Log, LogOptions, Record};
    /// # use std::task::Waker;
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs, Lsn(0)..Lsn(0))?;
    /// let lsn = log.append(&Record::Abort { transaction: TransactionId(7) })?;
    /// assert!(log.poll_stable(lsn, Waker::noop()).is_pending() && !log.has_tasks_to_wake());
    /// while log.flush_step()? {}
    /// assert!(log.has_tasks_to_wake());
    /// assert!(log.wake_step() && !log.has_tasks_to_wake());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn has_tasks_to_wake(&self) -> bool {
        self.tasks.is_due(self.decided())
    }

    /// Makes room in the ring ahead of need, as far as [`Log::release`] and the flusher allow; true if something moved.
    /// [`Log::flush_step`] and an append that finds no room do so too.
    pub fn recycle_step(&self) -> bool {
        self.window.recycle_step()
    }

    /// Everything below is durable.
    #[inline]
    pub fn stable_lsn(&self) -> Lsn {
        Lsn(self.window.stable())
    }

    /// An LSN above that of everything appended before the call. As the argument of [`Log::request_flush`]: all of it. Waits for the few
    /// instructions in which a buffer is sealed.
    pub fn tail_lsn(&self) -> Lsn {
        Lsn(self.buffers.tail())
    }

    /// The lowest LSN on disk.
    pub fn start_lsn(&self) -> Lsn {
        Lsn(self.segments.start().unwrap_or(self.opened_at))
    }

    /// Ready when the record that starts at `lsn` is durable, or never will be. Asks for the flush and has `waker` woken,
    /// once, by [`Log::wake_step`], when it is worth polling again.
    pub fn poll_stable(&self, lsn: Lsn, waker: &Waker) -> Poll<Result<(), LogError>> {
        self.poll_stable_of(&self.tasks, lsn, waker)
    }

    /// The same for the calling thread, which is unparked by [`Log::flush_step`].
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, TransactionId};
    /// # use deuteron_log::{Log, LogOptions, Record};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs, Lsn(0)..Lsn(0))?;
    /// let lsn = log.append(&Record::Abort { transaction: TransactionId(7) })?;
    /// assert!(log.poll_stable_parking(lsn).is_pending());
    /// while log.flush_step()? {}
    /// std::thread::park();
    /// assert!(log.poll_stable_parking(lsn).is_ready());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn poll_stable_parking(&self, lsn: Lsn) -> Poll<Result<(), LogError>> {
        self.poll_stable_of(&self.threads, lsn, &thread::current())
    }

    fn poll_stable_of<W: Waiter>(
        &self,
        waiters: &StableWaiters<W>,
        lsn: Lsn,
        waiter: &W,
    ) -> Poll<Result<(), LogError>> {
        let ready = || {
            if self.window.stable() > lsn.0 {
                Some(Ok(()))
            } else {
                self.condition.poison().map(|poison| Err(LogError::Poisoned(poison)))
            }
        };
        if let Some(result) = ready() {
            return Poll::Ready(result);
        }
        self.request_flush(Lsn(lsn.0.saturating_add(1)));
        waiters.poll(lsn.0, waiter, ready)
    }

    /// Parks the thread until the record that starts at `lsn` is durable. Another thread must run [`Log::flush_step`].
    ///
    /// # Errors
    /// [`LogError::Poisoned`] if it never will be.
    pub fn wait_stable(&self, lsn: Lsn) -> Result<(), LogError> {
        loop {
            match self.poll_stable_parking(lsn) {
                Poll::Ready(result) => return result,
                Poll::Pending => thread::park(),
            }
        }
    }

    /// Lends the stable buffer that starts at `after`: the end of the one lent before, or at first the tail of the
    /// [`Recovery`]. `None` if it is not stable yet. Its memory stays as long as it is lent, and further until it is
    /// [released](Log::release).
    ///
    /// # Panics
    /// If `after` is below what was released, or no buffer starts there.
    pub fn next_stable(&self, after: Lsn) -> Option<StableBuffer<'_>> {
        let base = after.0;
        if base >= self.window.stable() {
            return None;
        }
        assert!(self.window.lend(base), "log buffer at {base} has been released");
        Some(StableBuffer::new(self, base))
    }

    /// The proxy needs nothing below `upto` in memory any more. It stays in memory as version cache until there is need.
    pub fn release(&self, upto: Lsn) {
        self.window.release(upto.0);
    }

    /// Gives up the log below `upto`, the redo scan start point, in whole segments; how many. Blocks on the device.
    ///
    /// # Errors
    /// Those of the device. A failed sync stops the log.
    pub fn truncate(&self, upto: Lsn) -> Result<usize, LogError> {
        self.condition.check()?;
        let upto = upto.0.min(self.window.stable());
        let result = self.segments.truncate(upto);
        if let Some(start) = self.segments.start() {
            self.index.truncate(start);
        }
        if let Err(error @ LogError::Device { source, .. }) = &result
            && source.operation == Operation::SyncDirectory
        {
            self.stop(error);
        }
        result
    }

    /// The files of the log from `from` up to what is stable now, for whoever copies them: name, how many bytes from the start
    /// count (behind them is what may still be written), and length. They stay as long as nobody
    /// [truncates](Log::truncate).
    ///
    /// ```
    /// # use deuteron_log::{Log, LogOptions};
    /// # use deuteron_contract::Lsn;
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs, Lsn(0)..Lsn(0))?;
    /// assert_eq!(log.files(Lsn(0)), [("log-0000000000000000.seg".to_owned(), 4096, 4096 + 65536)]);
    /// # Ok::<(), deuteron_log::LogError>(())
    /// ```
    pub fn files(&self, from: Lsn) -> Vec<(String, u64, u64)> {
        self.segments.files_between(from.0, self.window.stable())
    }

    /// Reads everything from the buffer that holds `from` up to what is stable now, and checks it. The caller sees to it that nobody
    /// [truncates](Log::truncate) it. Blocks on the device.
    ///
    /// # Errors
    /// [`LogError::Corrupt`] with the first place that is not as it was written; those of the device.
    ///
    /// ```
    /// # use deuteron_log::{Log, LogOptions};
    /// # use deuteron_contract::Lsn;
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs, Lsn(0)..Lsn(0))?;
    /// log.verify(Lsn(0))?;
    /// # Ok::<(), deuteron_log::LogError>(())
    /// ```
    pub fn verify(&self, from: Lsn) -> Result<(), LogError> {
        let (from, stable) = (from.0, self.window.stable());
        if from >= stable {
            return Ok(());
        }
        let mut base = self.on_disk().buffer_below(from);
        let mut reader = BufferReader::of_all(self.segments.clone());
        while base < stable {
            base = match reader.read(base)? {
                Ok(header) => base + u64::from(header.distance),
                Err(mismatch) => match reader.find_valid(base + BLOCK)? {
                    // Damaged, but below what was asked for.
                    Some(later) if later <= from => later,
                    _ => return Err(self.segments.corrupt(base, mismatch)),
                },
            };
        }
        Ok(())
    }

    /// How long each buffer took to be written durably, in nanoseconds, since the log was opened.
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, TransactionId};
    /// # use deuteron_log::{Log, LogOptions, Record};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs, Lsn(0)..Lsn(0))?;
    /// # log.append(&Record::Abort { transaction: TransactionId(7) })?;
    /// log.request_flush(log.tail_lsn());
    /// while log.flush_step()? {}
    /// assert_eq!((log.write_times().count(), log.statistics().flushes), (1, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_times(&self) -> Distribution {
        self.flush_counters.write_times.read()
    }

    /// Figures.
    pub fn statistics(&self) -> LogStatistics {
        let tail = self.tail_lsn();
        let (ring_used_bytes, version_cache_bytes) = self.window.occupancy();
        let (disk_bytes, segments_created, segments_recycled) = self.segments.figures();
        let counters = &self.flush_counters;
        LogStatistics {
            start: self.start_lsn(),
            stable: self.stable_lsn(),
            tail,
            appended_bytes: tail.0 - self.opened_at,
            record_bytes_written: counters.record_bytes_written.load(Ordering::Relaxed),
            bytes_written: counters.bytes_written.load(Ordering::Relaxed),
            bytes_filled: counters.bytes_filled.load(Ordering::Relaxed),
            flushes: counters.flushes.load(Ordering::Relaxed),
            sealed_full: self.buffers.sealed_full(),
            sealed_on_request: counters.sealed_on_request.load(Ordering::Relaxed),
            append_full: self.append_full.load(Ordering::Relaxed),
            opening_lost: self.buffers.opening_lost(),
            reservations_lost: self.buffers.reservations_lost(),
            ring_used_bytes,
            version_cache_bytes,
            disk_bytes,
            segments_created,
            segments_recycled,
            is_space_low: self.condition.is_space_low(),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use deuteron_device::MemoryDirectory;

    #[test]
    fn a_step_that_panicked_stops_the_log_and_nobody_waits_for_ever() {
        let directory = Arc::new(MemoryDirectory::new());
        let options = LogOptions::tiny_for_tests();
        let (log, _) = Log::open(directory, &options, Epochs::new(), Lsn(0)..Lsn(0)).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| log.wait_stable(Lsn(1 << 20)));
            let step = scope.spawn(|| {
                let _flusher = log.flusher.lock();
                panic!("a step of the test");
            });
            assert!(step.join().is_err());
            assert!(matches!(log.flush_step(), Err(LogError::Poisoned(_))));
            assert!(matches!(waiter.join().unwrap(), Err(LogError::Poisoned(_))));
        });
    }

    /// F4: also by another thread.
    #[test]
    fn what_could_not_be_written_is_not_tried_again_by_anybody() {
        use deuteron_device::{FaultKind, FaultPlan, SimulatedDisk};
        let abort = crate::Record::Abort { transaction: deuteron_contract::TransactionId(7) };
        for round in 0..300 {
            let disk = SimulatedDisk::new(round);
            let options = LogOptions::tiny_for_tests();
            let (log, _) =
                Log::open(Arc::new(disk.directory()), &options, Epochs::new(), Lsn(0)..Lsn(0)).unwrap();
            let lsn = log.append(&abort).unwrap();
            disk.set_faults(FaultPlan::new().fail(Operation::Write, 0, FaultKind::Refuse));
            log.request_flush(log.tail_lsn());
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| while log.flush_step().is_ok() {});
                }
            });
            assert!(log.stable_lsn() <= lsn, "{round}");
        }
    }
}
