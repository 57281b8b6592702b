//! Durable writes through io_uring, of which nobody waits for the end until he wants to know of it.
//!
//! One ring for a directory, under a lock: writes are few and long. Any thread begins one, and any takes notice of its end.
//!
//! As the [ring](super::ring) for reads it does only what goes well: what it could not begin, or what the kernel has not done for a reason that is not the device's,
//! is left to [`File::write_durable_at`](crate::File::write_durable_at). A device that fails is told of, and the write not repeated.
//!
//! What is in flight is told to whoever opens the directory next: see [`in_flight`](super::in_flight).
//!
//! - **U2** The buffer of a write whose address was given to the kernel belongs to the [`RingWrite`], which neither touches it nor gives it up before the completion has been taken
//!   from the ring, or the ring has been closed with the entry still in its queue. One that is forgotten keeps its buffer for ever.

use super::file::OsFile;
use super::in_flight::InFlight;
use super::ring::submit_and_wait;
use crate::{AlignedBuffer, DeviceError, DurableWrite, WriteInFlight};
use io_uring::{IoUring, opcode, types};
use rustix::fd::OwnedFd;
use rustix::io::{Errno, ReadWriteFlags};
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Writes that are in flight at once.
const ENTRIES: u32 = 8;

/// The ring of a directory.
pub(super) struct WriteRing(Mutex<Option<Ring>>);

struct Ring {
    ring: IoUring,
    /// The number of the next write.
    next: u64,
    in_flight: InFlight,
    /// The results of those that have ended and were not asked for yet.
    ended: HashMap<u64, i32>,
}

impl Ring {
    /// Takes notice of those that have ended.
    fn look(&mut self) {
        for completion in self.ring.completion() {
            self.in_flight.leave();
            self.ended.insert(completion.user_data(), completion.result());
        }
    }
}

impl fmt::Debug for WriteRing {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("WriteRing")
    }
}

impl WriteRing {
    /// For files of the directory. `None` if the kernel has no ring for us.
    pub(super) fn new(directory: &OwnedFd) -> Option<Arc<WriteRing>> {
        let ring = IoUring::new(ENTRIES).ok()?;
        let in_flight = InFlight::new(directory).ok()?;
        ring.submitter().register_files(&[in_flight.descriptor()]).ok()?;
        let ring = Ring { ring, next: 0, in_flight, ended: HashMap::new() };
        Some(Arc::new(WriteRing(Mutex::new(Some(ring)))))
    }

    fn ring(&self) -> MutexGuard<'_, Option<Ring>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a write, or gives it back if it is none for the ring.
    pub(super) fn begin(self: &Arc<Self>, write: DurableWrite) -> Result<RingWrite, DurableWrite> {
        let file: &dyn Any = &*write.file;
        let bytes = &write.buffer[..write.length];
        let admitted =
            file.downcast_ref().and_then(|file: &OsFile| file.admit_durable_write(bytes, write.offset));
        let Some((descriptor, length)) = admitted.zip(u32::try_from(write.length).ok()) else {
            return Err(write);
        };
        let mut ring = self.ring();
        let Some(Ring { ring, next, in_flight, .. }) = &mut *ring else { return Err(write) };
        let flags = ReadWriteFlags::DSYNC.bits() as i32;
        let entry = opcode::Write::new(types::Fd(descriptor), write.buffer.address().as_ptr(), length)
            .offset(write.offset)
            .rw_flags(flags)
            .build()
            .user_data(*next);
        if !in_flight.enter() {
            return Err(write);
        }
        // SAFETY: the buffer and the file belong to the write, which is given to the `RingWrite` that is made at once, and outlives what the kernel does by U2.
        if unsafe { ring.submission().push(&entry) }.is_err() {
            in_flight.leave();
            return Err(write);
        }
        let number = *next;
        *next += 1;
        // If the kernel does not take it now, it is asked again by who waits.
        let _ = ring.submit();
        Ok(RingWrite { ring: Arc::clone(self), number, write: Some(write), result: None })
    }
}

/// A write in a ring.
pub(super) struct RingWrite {
    ring: Arc<WriteRing>,
    number: u64,
    /// `None` once it has been given up.
    write: Option<DurableWrite>,
    /// What the kernel has said, once that has been taken from the ring; `None` within if it never began.
    result: Option<Option<i32>>,
}

impl RingWrite {
    /// Waits for the completion.
    fn complete(&mut self) -> Option<i32> {
        while self.result.is_none() && !self.look() {
            let mut ring = self.ring.ring();
            let is_usable = ring.as_mut().is_some_and(|ring| {
                ring.ended.contains_key(&self.number)
                    || submit_and_wait(&mut ring.ring, 1, ring.in_flight.count())
            });
            if !is_usable {
                // Closed with all that were in it, none of which had begun.
                *ring = None;
            }
        }
        self.result.flatten()
    }

    /// Whether it has ended.
    fn look(&mut self) -> bool {
        let mut ring = self.ring.ring();
        match &mut *ring {
            Some(ring) => {
                ring.look();
                if let Some(result) = ring.ended.remove(&self.number) {
                    self.result = Some(Some(result));
                }
            }
            None => self.result = self.result.or(Some(None)),
        }
        self.result.is_some()
    }
}

impl WriteInFlight for RingWrite {
    fn is_done(&mut self) -> bool {
        self.result.is_some() || self.look()
    }

    fn wait(mut self: Box<Self>) -> (AlignedBuffer, Result<(), DeviceError>) {
        let result = self.complete();
        let write = self.write.take().expect("it is given up once");
        let outcome = match result {
            Some(written) if usize::try_from(written) == Ok(write.length) => Ok(()),
            Some(error) if error < 0 && !is_declined(Errno::from_raw_os_error(-error)) => {
                let file: &dyn Any = &*write.file;
                let file: &OsFile = file.downcast_ref().expect("only such files are admitted");
                Err(file.write_error(write.offset, Errno::from_raw_os_error(-error)))
            }
            // Not begun, or not as a whole.
            _ => write.write(),
        };
        (write.buffer, outcome)
    }
}

impl Drop for RingWrite {
    /// As U2 wants it.
    fn drop(&mut self) {
        self.complete();
    }
}

/// Whether the kernel has not done it for a reason that is not the device's: because the thread that began it has ended, or it wants it done otherwise.
fn is_declined(error: Errno) -> bool {
    [Errno::CANCELED, Errno::AGAIN, Errno::INTR, Errno::INVAL, Errno::OPNOTSUPP, Errno::NOMEM, Errno::BUSY]
        .contains(&error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Opened;
    use crate::{BLOCK_BYTES, Directory, OpenMode, OsDirectory};
    use rustix::fs::OFlags;
    use std::io::{Read, Write};
    use std::sync::mpsc;
    use std::time::Duration;

    /// A write of a block to a pipe that is full: in flight until somebody reads.
    #[test]
    fn whoever_takes_the_lock_waits_for_what_is_in_flight() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = OsDirectory::open_or_create(scratch.path()).unwrap();
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        let capacity: usize = std::iter::from_fn(|| writer.write(&[1; BLOCK_BYTES]).ok()).sum();
        rustix::fs::fcntl_setfl(&writer, OFlags::empty()).unwrap();
        let opened = Opened::new("pipe", OpenMode::ReadWrite, false);
        let file = Arc::new(OsFile::new(opened, writer.into(), false, Arc::default()));
        let write =
            DurableWrite { file, buffer: AlignedBuffer::zeroed(BLOCK_BYTES), length: BLOCK_BYTES, offset: 0 };
        let descriptor = std::fs::File::open(scratch.path()).unwrap().into();
        // A kernel without a ring has nothing in flight.
        let Some(ring) = WriteRing::new(&descriptor) else { return };
        let mut in_flight = ring.begin(write).unwrap();
        assert!(!in_flight.is_done());
        let (tell, told) = mpsc::channel();
        let locks = std::thread::spawn(move || {
            let lock = directory.lock().unwrap();
            tell.send(()).unwrap();
            drop(lock);
        });
        let was_free = told.recv_timeout(Duration::from_millis(100)).is_ok();
        // In any case, or whoever drops the write waits for ever.
        reader.read_exact(&mut vec![0; capacity]).unwrap();
        Box::new(in_flight).wait().1.unwrap();
        assert!(!was_free, "the lock was to be had");
        locks.join().unwrap();
        told.recv().unwrap();
        // Nothing is left of it.
        drop(OsDirectory::open_existing(scratch.path()).unwrap().lock().unwrap());
    }
}
