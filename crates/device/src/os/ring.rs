//! Several reads at once through io_uring. (Writes: [`write_ring`](super::write_ring).)
//!
//! Each thread that reads this way has a ring of its own, made when it first does: no lock, and no thread waits for
//! another's reads. What is to be read goes to the kernel a few at a time, as far as the ring has room: while the device does the first, the next are prepared, by the kernel and by whoever
//! asks. Who asked is told of each that has ended while the others are in flight, and more are begun in its place.
//!
//! A ring does only what goes well. Whatever it does not read in full (an end of file, an error, a file system that
//! wants no direct I/O, a kernel without the operation) is left to [`File::read_at`](crate::File::read_at), which knows
//! the fallbacks and words the errors. So a read through the ring differs from that in nothing but time.
//!
//! - **U1** A buffer whose address was given to the kernel is not touched, and the borrow of it not given up, before the
//!   completion has been taken from the ring, or the ring has been closed with the entry still in its queue: also if who is told of another
//!   read, or asked for more, panics.

use super::file::OsFile;
use crate::read_request::ask;
use crate::{ReadRequest, Reads};
use io_uring::{IoUring, opcode, types};
use rustix::io::Errno;
use std::any::Any;
use std::cell::Cell;
use std::io;

/// Reads that are in flight at once.
pub(super) const ENTRIES: usize = 64;
/// So many are handed over at a time: the kernel gives the device what it is handed only when it has prepared all of it.
const HANDED_OVER: usize = 4;

thread_local! {
    static RING: Cell<ThreadRing> = const { Cell::new(ThreadRing::Untried) };
}

enum ThreadRing {
    Untried,
    Ready(Box<IoUring>),
    /// The kernel has none, or does not let us; or the thread is using it.
    None,
}

impl ThreadRing {
    /// The ring of this thread. A thread that is ending has none.
    fn take() -> Option<Box<IoUring>> {
        match RING.try_with(|ring| ring.replace(ThreadRing::None)).ok()? {
            ThreadRing::Untried => make().ok().map(Box::new),
            ThreadRing::Ready(ring) => Some(ring),
            ThreadRing::None => None,
        }
    }

    fn put(self) {
        let _ = RING.try_with(|ring| ring.set(self));
    }
}

fn make() -> io::Result<IoUring> {
    let entries = ENTRIES as u32;
    // Completions are prepared only when they are waited for: the thread is not interrupted for each. Kernels before 6.1 do not know
    // these flags.
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
    ThreadRing::take().map(|ring| ThreadRing::Ready(ring).put()).is_some()
}

/// Does the reads, of which those in `requests` have been asked for, and there may be `more`. What the ring does not do is done without it.
pub(super) fn read_each<'r>(reads: &mut dyn Reads<'r>, requests: Vec<ReadRequest<'r>>, more: bool) {
    let is_done = vec![false; requests.len()];
    let mut asked = Asked { reads, requests, is_done, more };
    // Taken out while it is used: whoever reads from within `done` does it without a ring. If that panics, there is none any more.
    if let Some(mut ring) = ThreadRing::take()
        && (Window { ring: &mut ring, in_flight: 0 }).read_each(&mut asked)
    {
        ThreadRing::Ready(ring).put();
    }
    asked.finish();
}

/// Reads that have been asked for.
struct Asked<'a, 'r> {
    reads: &'a mut dyn Reads<'r>,
    requests: Vec<ReadRequest<'r>>,
    /// Of each whether it has been done.
    is_done: Vec<bool>,
    /// There may be more to ask for.
    more: bool,
}

impl Asked<'_, '_> {
    fn ask(&mut self) {
        self.more = ask(self.reads, &mut self.requests);
        self.is_done.resize(self.requests.len(), false);
    }

    fn done(&mut self, index: usize) {
        self.is_done[index] = true;
        self.reads.done(index, &mut self.requests[index]);
    }

    /// Does what is left, one after the other.
    fn finish(&mut self) {
        let mut next = 0;
        loop {
            for index in next..self.requests.len() {
                if !self.is_done[index] {
                    self.requests[index].read();
                    self.done(index);
                }
            }
            if !self.more {
                return;
            }
            next = self.requests.len();
            self.ask();
        }
    }
}

/// The reads that a ring has in flight.
struct Window<'w> {
    ring: &'w mut IoUring,
    in_flight: usize,
}

impl Window<'_> {
    /// Does the reads that can be done, as many at a time as the ring takes; whether it can be used again.
    fn read_each(&mut self, asked: &mut Asked<'_, '_>) -> bool {
        let mut next = 0;
        loop {
            while self.in_flight < ENTRIES {
                let prepared = asked.requests.len() - next;
                // If the kernel does not take them now, it is asked again below.
                if self.ring.submission().len() == HANDED_OVER || (prepared == 0 && asked.more) {
                    let _ = self.ring.submit();
                }
                match prepared {
                    0 if asked.more => asked.ask(),
                    0 => break,
                    _ => {
                        self.begin(next, &mut asked.requests[next]);
                        next += 1;
                    }
                }
            }
            if self.in_flight == 0 {
                return true;
            }
            if !self.wait(1) {
                return false;
            }
            while let Some((index, result)) = self.take() {
                let read = &mut asked.requests[index];
                match usize::try_from(result) == Ok(read.buffer.len()) {
                    true => read.outcome = Ok(()),
                    false => read.read(),
                }
                asked.done(index);
            }
        }
    }

    /// Begins a read, if it is one for the ring.
    fn begin(&mut self, index: usize, read: &mut ReadRequest<'_>) {
        let file: &dyn Any = read.file;
        let admitted = file.downcast_ref().and_then(|file: &OsFile| file.admit(read.buffer, read.offset));
        let Some((descriptor, length)) = admitted.zip(u32::try_from(read.buffer.len()).ok()) else { return };
        let entry = opcode::Read::new(types::Fd(descriptor), read.buffer.as_mut_ptr(), length)
            .offset(read.offset)
            .build()
            .user_data(index as u64);
        // SAFETY: the buffer and the file are borrowed by the request, which nobody is given before its completion has been taken, and
        // which outlives this window, whose end, by U1, is not before the kernel is done with all of them.
        if unsafe { self.ring.submission().push(&entry) }.is_ok() {
            self.in_flight += 1;
        }
    }

    /// A read that has ended, and its result.
    fn take(&mut self) -> Option<(usize, i32)> {
        let completion = self.ring.completion().next()?;
        self.in_flight -= 1;
        Some((completion.user_data() as usize, completion.result()))
    }

    /// Hands what was begun to the kernel, and waits until so many have ended. `false` if the kernel has none of those in flight and
    /// takes none.
    fn wait(&mut self, count: usize) -> bool {
        submit_and_wait(self.ring, count, self.in_flight)
    }
}

impl Drop for Window<'_> {
    /// As U1 wants it, also if what a read was told to has panicked.
    fn drop(&mut self) {
        while self.in_flight > 0 && self.wait(self.in_flight) {
            while self.take().is_some() {}
        }
    }
}

/// Hands what was begun to the kernel, and waits until so many of those that are `in_flight` have ended. `false` if the kernel has none of them and
/// takes none.
pub(super) fn submit_and_wait(ring: &mut IoUring, count: usize, in_flight: usize) -> bool {
    if let Err(error) = ring.submit_and_wait(count)
        && error.kind() != io::ErrorKind::Interrupted
    {
        // Nothing was taken by this call. If all that is left is still ours, the ring is given up with it.
        if ring.submission().len() == in_flight && !is_passing(&error) {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Whether the kernel was only short of something.
fn is_passing(error: &io::Error) -> bool {
    [Errno::AGAIN, Errno::BUSY, Errno::NOMEM]
        .iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}
