//! Several reads at once, and writes that nobody waits for, by threads: where the kernel has no io_uring, or does not let us, as in many containers.
//!
//! The threads are the process's, begun with the first that needs one, and sleep when there is nothing to do. To begin some for each call would cost more than what they read.
//! Like a [ring](super::ring) they do only what goes well: what a thread does not read in full is left to [`File::read_at`](crate::File::read_at).

use super::file::OsFile;
use super::transfer;
use crate::durable_write::Ended;
use crate::read_request::ask;
use crate::{AlignedBuffer, DeviceError, DurableWrite, ReadRequest, Reads, WriteInFlight};
use std::any::Any;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Builder;

/// Reads that are in flight at once, and threads.
pub(super) const READS: usize = 16;

type Job = Box<dyn FnOnce() + Send>;

/// Has a thread do `job`; gives it back if there are none.
fn give(job: Job) -> Result<(), Job> {
    static JOBS: OnceLock<Option<Sender<Job>>> = OnceLock::new();
    match JOBS.get_or_init(begin_threads) {
        Some(jobs) => jobs.send(job).map_err(|unsent| unsent.0),
        None => Err(job),
    }
}

/// Begins as many threads as are wanted, or as there are to be had. `None` if there are none.
fn begin_threads() -> Option<Sender<Job>> {
    let (sender, jobs) = mpsc::channel::<Job>();
    let jobs = Arc::new(Mutex::new(jobs));
    let begin = |_| {
        let jobs = Arc::clone(&jobs);
        let next = move || jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let work = move || {
            while let Ok(job) = next() {
                job();
            }
        };
        Builder::new().name("deuteron-device".to_owned()).spawn(work).is_ok()
    };
    let count = (0..READS).map(begin).take_while(|&is_begun| is_begun).count();
    (count > 0).then_some(sender)
}

/// Does the reads, of which those in `requests` have been asked for, and there may be `more`.
pub(super) fn read_each<'r>(reads: &mut dyn Reads<'r>, mut requests: Vec<ReadRequest<'r>>, mut more: bool) {
    let (sender, ended) = mpsc::channel();
    let mut own = Vec::new();
    let mut next = 0;
    loop {
        for (index, read) in requests.iter().enumerate().skip(next) {
            // One of them the caller does himself.
            let job = if index == 0 { None } else { read_by_thread(index, read, sender.clone()) };
            if job.is_none_or(|job| give(job).is_err()) {
                own.push(index);
            }
        }
        if !more {
            break;
        }
        next = requests.len();
        more = ask(reads, &mut requests);
    }
    drop(sender);
    for index in own {
        requests[index].read();
        reads.done(index, &mut requests[index]);
    }
    for (index, buffer) in ended {
        let read = &mut requests[index];
        match buffer {
            Some(buffer) => read.buffer.copy_from_slice(&buffer),
            None => read.read(),
        }
        reads.done(index, read);
    }
}

/// What a thread does for a read: it reads into memory of its own, and sends that with its place among the reads, or nothing if it could not. `None` if it is none for a thread.
fn read_by_thread(
    index: usize,
    read: &ReadRequest<'_>,
    sender: Sender<(usize, Option<AlignedBuffer>)>,
) -> Option<Job> {
    let file: &dyn Any = read.file;
    let file: &OsFile = file.downcast_ref()?;
    file.admit(read.buffer, read.offset)?;
    let (descriptor, offset, length) = (file.descriptor(), read.offset, read.buffer.len());
    Some(Box::new(move || {
        let mut buffer = AlignedBuffer::zeroed(length);
        let outcome = transfer::read_all(
            &mut buffer,
            offset,
            |piece, at| rustix::io::pread(&descriptor, piece, at),
            || Ok(rustix::fs::fstat(&descriptor)?.st_size as u64),
        );
        // If the receiver is gone, `done` has panicked.
        let _ = sender.send((index, outcome.is_ok().then_some(buffer)));
    }))
}

/// Begins a write.
pub(super) fn begin_write(write: DurableWrite) -> Box<dyn WriteInFlight> {
    let (sender, ended) = mpsc::channel();
    let job = Box::new(move || {
        // If the receiver is gone, nobody wants to know of it.
        let _ = sender.send(Ended::of(write));
    });
    if let Err(job) = give(job) {
        job();
    }
    Box::new(ThreadWrite { writes: ended, ended: None })
}

/// A write that a thread does.
struct ThreadWrite {
    writes: Receiver<Ended>,
    ended: Option<Ended>,
}

impl ThreadWrite {
    fn complete(&mut self) -> Ended {
        self.ended.take().unwrap_or_else(|| self.writes.recv().expect("a thread that does a write ends it"))
    }
}

impl WriteInFlight for ThreadWrite {
    fn is_done(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.writes.try_recv().ok();
        }
        self.ended.is_some()
    }

    fn wait(mut self: Box<Self>) -> (AlignedBuffer, Result<(), DeviceError>) {
        Box::new(self.complete()).wait()
    }
}

impl Drop for ThreadWrite {
    fn drop(&mut self) {
        // Until it has ended, or was waited for.
        let _ = self.writes.recv();
    }
}
