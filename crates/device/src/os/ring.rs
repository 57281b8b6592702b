//! Several reads at once through io_uring.
//!
//! Each thread that reads this way has a ring of its own, made when it first does: no lock, and no thread waits for
//! another's reads. A batch goes to the kernel with one system call, which also waits for its completions; the kernel
//! hands the batch to the device as a whole.
//!
//! A ring does only what goes well. Whatever it does not read in full (an end of file, an error, a file system that
//! wants no direct I/O, a kernel without the operation) is left to [`File::read_at`](crate::File::read_at), which knows
//! the fallbacks and words the errors. So a read through the ring differs from that in nothing but time.
//!
//! - **U1** A buffer whose address was given to the kernel is not touched, and the borrow of it not given up, before the
//!   completion has been taken from the ring, or the ring has been closed with the entry still in its queue.

use super::file::OsFile;
use crate::ReadRequest;
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::any::Any;
use std::cell::RefCell;
use std::io;

/// Reads that are in flight at once.
pub(super) const ENTRIES: usize = 64;

thread_local! {
    static RING: RefCell<ThreadRing> = const { RefCell::new(ThreadRing::Untried) };
}

enum ThreadRing {
    Untried,
    Ready(Box<IoUring>),
    /// The kernel has none, or does not let us.
    Refused,
}

impl ThreadRing {
    fn get(&mut self) -> Option<&mut IoUring> {
        if let ThreadRing::Untried = self {
            *self = make().map_or(ThreadRing::Refused, |ring| ThreadRing::Ready(Box::new(ring)));
        }
        match self {
            ThreadRing::Ready(ring) => Some(ring),
            ThreadRing::Untried | ThreadRing::Refused => None,
        }
    }
}

fn make() -> io::Result<IoUring> {
    let entries = ENTRIES as u32;
    // Completions are looked at only when a whole batch is waited for: the thread is woken once, not for each. Kernels
    // before 6.1 do not know these flags.
    IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(entries).or_else(|error| match error
        .raw_os_error()
        == Some(Errno::INVAL.raw_os_error())
    {
        true => IoUring::new(entries),
        false => Err(error),
    })
}

/// Whether this thread can have a ring.
pub(super) fn is_available() -> bool {
    RING.try_with(|ring| ring.try_borrow_mut().is_ok_and(|mut ring| ring.get().is_some())).unwrap_or(false)
}

/// Does those of `reads` that go well, and tells which: one bit each, from the first. At most [`ENTRIES`].
pub(super) fn read(reads: &mut [ReadRequest<'_>]) -> u64 {
    let read = RING.try_with(|thread| {
        let mut thread = thread.try_borrow_mut().ok()?;
        let ring = thread.get()?;
        let (done, usable) = read_through(ring, reads);
        if !usable {
            *thread = ThreadRing::Refused;
        }
        Some(done)
    });
    // A thread that is ending has no ring any more.
    read.ok().flatten().unwrap_or(0)
}

/// As [`read`], and whether the ring can be used again.
fn read_through(ring: &mut IoUring, reads: &mut [ReadRequest<'_>]) -> (u64, bool) {
    debug_assert!(reads.len() <= ENTRIES);
    let mut left = 0;
    for (index, read) in reads.iter_mut().enumerate() {
        let file: &dyn Any = read.file;
        let Some(descriptor) =
            file.downcast_ref().and_then(|file: &OsFile| file.admit(read.buffer, read.offset))
        else {
            continue;
        };
        let Ok(length) = u32::try_from(read.buffer.len()) else { continue };
        let entry = opcode::Read::new(types::Fd(descriptor), read.buffer.as_mut_ptr(), length)
            .offset(read.offset)
            .build()
            .user_data(index as u64);
        // SAFETY: the buffer is borrowed by `reads`, and the file too, until this function returns, which by U1 is
        // not before the kernel is done with them.
        match unsafe { ring.submission().push(&entry) } {
            Ok(()) => left += 1,
            // There are as many entries as reads, so it is not met.
            Err(_) => break,
        }
    }
    let mut done = 0;
    loop {
        for completion in ring.completion() {
            left -= 1;
            let index = completion.user_data() as usize;
            if usize::try_from(completion.result()) == Ok(reads[index].buffer.len()) {
                done |= 1 << index;
            }
        }
        if left == 0 {
            return (done, true);
        }
        if let Err(error) = ring.submit_and_wait(left)
            && error.kind() != io::ErrorKind::Interrupted
        {
            // Nothing was taken by this call. If all that is left is still ours, the ring is given up with it.
            if ring.submission().len() == left && !is_passing(&error) {
                return (done, false);
            }
            std::thread::yield_now();
        }
    }
}

/// Whether the kernel was only short of something.
fn is_passing(error: &io::Error) -> bool {
    [Errno::AGAIN, Errno::BUSY, Errno::NOMEM]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
