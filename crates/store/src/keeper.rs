//! [`Keeper`]: the thread that flushes, evicts, cleans, and makes durable in time.

use crate::Error;
use crate::engine::Engine;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long the keeper sleeps when it has found nothing to do. Those who write do its work when it is late.
const IDLE: Duration = Duration::from_millis(5);
/// How long it waits before it tries again on a disk that was full.
const FULL: Duration = Duration::from_secs(1);

/// What the keeper sleeps by: rung when the store closes.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    condition: Condvar,
}

impl Bell {
    /// Wakes the keeper, for good.
    pub(crate) fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condition.notify_all();
    }

    fn sleep(&self, time: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        if !*rung {
            drop(self.condition.wait_timeout(rung, time));
        }
    }
}

/// The thread of an open store, if it has one.
#[derive(Default)]
pub(crate) struct Keeper(Option<JoinHandle<()>>);

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::Device`] if the system gives none.
    pub(crate) fn start(engine: &Arc<Engine>) -> Result<Keeper, Error> {
        let engine = Arc::downgrade(engine);
        let spawned = thread::Builder::new().name("deuteron-store".into()).spawn(move || keep(&engine));
        match spawned {
            Ok(thread) => Ok(Keeper(Some(thread))),
            Err(source) => {
                Err(Error::Device { context: "start the thread".into(), source: Box::new(source) })
            }
        }
    }

    /// Waits for its end; the store has been told to stop.
    pub(crate) fn join(&mut self) {
        // The last handle may be dropped by the keeper itself, which cannot wait for its own end.
        if let Some(thread) = self.0.take().filter(|thread| thread.thread().id() != thread::current().id()) {
            drop(thread.join());
        }
    }
}

/// Works until the store closes, is gone, or takes no more writes.
fn keep(engine: &Weak<Engine>) {
    let mut persisted = Instant::now();
    while let Some(engine) = engine.upgrade() {
        if engine.is_stopping() {
            return;
        }
        // A panic is a bug, which the hook has reported: without the keeper nothing would become durable in time, and nobody would be told.
        let done = catch_unwind(AssertUnwindSafe(|| keep_once(&engine, &mut persisted)));
        match done.unwrap_or_else(|_| Err(engine.stop("the keeper panicked"))) {
            Ok(true) => {}
            Ok(false) => engine.bell().sleep(IDLE),
            Err(Error::DiskFull { .. }) => engine.bell().sleep(FULL),
            // A page that cannot be read is not written anew; the rest of the store may be sound.
            Err(_) if engine.writable().is_ok() => engine.bell().sleep(FULL),
            Err(_) => return,
        }
    }
}

/// One round of the work; whether there was any.
fn keep_once(engine: &Engine, persisted: &mut Instant) -> Result<bool, Error> {
    if persisted.elapsed() < engine.options().persist_every || !engine.is_changed() {
        return engine.step();
    }
    match engine.try_persist() {
        // Somebody else is at it; there is other work meanwhile.
        Ok(false) => engine.step(),
        done => {
            *persisted = Instant::now();
            done
        }
    }
}
