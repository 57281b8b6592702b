//! Several reads at once, and writes that nobody waits for, by threads: where the kernel has no io_uring, or does not let us, as in many containers.
//!
//! The threads live as long as the reads that they were begun for, or the write: some ten microseconds each, where a read of a disk takes a hundred. Where there are no more threads
//! to be had, whoever asks does all of it himself.

use crate::durable_write::Ended;
use crate::{AlignedBuffer, DeviceError, DurableWrite, ReadRequest, WriteInFlight};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::{self, Builder, JoinHandle};

/// Reads that are in flight at once.
pub(super) const READS: usize = 16;
const NAME: &str = "deuteron-device";

/// Does the reads, the calling thread one of those who do, and tells `done` of each as soon as it is, with its place among them.
pub(super) fn read_each<'r>(
    reads: &mut [ReadRequest<'r>],
    done: &mut dyn FnMut(usize, &mut ReadRequest<'r>),
) {
    let threads = reads.len().min(READS);
    let left = Mutex::new(reads.iter_mut().enumerate());
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread::scope(|scope| {
        // Dropped if `done` panics: the others end then.
        let (sender, ended) = mpsc::channel();
        for _ in 1..threads {
            let sender = sender.clone();
            let read_on = move || {
                while let Some((index, read)) = next() {
                    read.read();
                    if sender.send((index, read)).is_err() {
                        break;
                    }
                }
            };
            if Builder::new().name(NAME.to_owned()).spawn_scoped(scope, read_on).is_err() {
                break;
            }
        }
        drop(sender);
        while let Some((index, read)) = next() {
            read.read();
            done(index, read);
            ended.try_iter().for_each(|(index, read)| done(index, read));
        }
        ended.iter().for_each(|(index, read)| done(index, read));
    });
}

/// Begins a write.
pub(super) fn begin_write(write: DurableWrite) -> Box<dyn WriteInFlight> {
    // A thread that cannot be had takes what it was to do with it.
    let shared = Arc::new(Mutex::new(Some(write)));
    let take = |shared: &Mutex<Option<DurableWrite>>| {
        let write = shared.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ended::of(write.expect("one does it"))
    };
    let theirs = Arc::clone(&shared);
    match Builder::new().name(NAME.to_owned()).spawn(move || take(&theirs)) {
        Ok(thread) => Box::new(ThreadWrite(Some(thread))),
        Err(_) => Box::new(take(&shared)),
    }
}

/// A write that a thread does.
struct ThreadWrite(Option<JoinHandle<Ended>>);

impl WriteInFlight for ThreadWrite {
    fn is_done(&mut self) -> bool {
        self.0.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn wait(mut self: Box<Self>) -> (AlignedBuffer, Result<(), DeviceError>) {
        let thread = self.0.take().expect("it is waited for once");
        let ended = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Box::new(ended).wait()
    }
}

impl Drop for ThreadWrite {
    fn drop(&mut self) {
        // Nobody wants to know of its failure.
        let _ = self.0.take().map(JoinHandle::join);
    }
}
