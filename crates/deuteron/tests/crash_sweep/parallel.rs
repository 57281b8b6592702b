//! Work that one thread finds, and all processors do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does `work` on everything that `find` gives to its argument, on as many threads as there are processors. `find` waits
/// while a few of them lie about; it must have dropped its argument when it returns.
pub fn in_parallel<T: Send + 'static>(
    find: impl FnOnce(Box<dyn Fn(T) + Send + Sync>),
    work: impl Fn(T) + Sync,
) {
    let threads = available_parallelism().map_or(1, usize::from);
    let (sender, receiver) = sync_channel::<T>(2 * threads);
    let receiver = Mutex::new(receiver);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let found = lock(&receiver).recv();
                    let Ok(found) = found else { return };
                    work(found);
                }
            });
        }
        // Nobody listens any more once a worker has panicked, which the scope tells.
        find(Box::new(move |found| drop(sender.send(found))));
    });
}

/// What `work` returns, or that it panicked.
pub fn without_panic<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        let message = panic.downcast_ref::<String>().map(String::as_str);
        let message = message.or(panic.downcast_ref::<&str>().copied()).unwrap_or("something");
        format!("panicked: {message}")
    })
}
