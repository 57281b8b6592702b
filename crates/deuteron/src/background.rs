//! The background duties and who runs them.
//!
//! Below this crate nothing spawns a thread: every duty is a `..._step` that does one piece of work and says
//! whether there was any. Here the steps are given threads, or (inline) are run by whoever has to wait, so that
//! one thread and one seed give one history.
//!
//! | duty | steps | woken by |
//! |---|---|---|
//! | flusher | `Log::flush_step` | a commit that wants durability, the end of a delay window |
//! | waker | `Log::wake_step` | the flusher, when tasks wait for what it has written |
//! | proxy | `Proxy::step` | the flusher, when a round's worth of the log is stable; who waits for room; a slow tick |
//! | keeper | `BwTreeDc::maintain_step`, `TransactionComponent::collect_step`, `Log::recycle_step` | pressure, and a slow tick |
//! | checkpointer | `Engine::checkpoint` | the proxy, when enough log lies behind the last checkpoint |
//!
//! A failure in any duty poisons the engine: no further work is accepted, waiters are told why.

use crate::Error;
use crate::engine::Engine;
use crate::signal::Signal;
use std::cell::Cell;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread::{self, Builder, JoinHandle};
use std::time::Duration;

/// A stable operation waits at most this long for more of its kind before it is posted.
const POST_IDLE: Duration = Duration::from_secs(5);
/// How long a duty with nothing to do sleeps before it looks again by itself.
const IDLE: Duration = Duration::from_millis(100);
/// The same for the keeper, whose work is announced by no single event.
const KEEPER_IDLE: Duration = Duration::from_millis(5);

/// The signals between duties and operations.
#[derive(Default)]
pub struct Signals {
    /// Wakes the flusher.
    pub flush: Signal,
    /// Wakes the waker: tasks wait for what is durable by now.
    pub wake: Signal,
    /// Wakes the proxy: the stable log has grown.
    pub stable: Signal,
    /// Wakes operations that wait for room: something was written, posted, or freed.
    pub room: Signal,
    /// Wakes the keeper.
    pub keep: Signal,
    /// Wakes the checkpointer.
    pub checkpoint: Signal,
}

impl Signals {
    /// Wakes everybody, to look at the state of the engine.
    pub fn raise_all(&self) {
        let Self { flush, wake, stable, room, keep, checkpoint } = self;
        [flush, wake, stable, room, keep, checkpoint].into_iter().for_each(Signal::raise);
    }
}

/// One round of a duty.
type Round = fn(&Engine) -> Outcome;

/// The one that waits for the others comes last.
const DUTIES: [(&str, Round); 5] = [
    ("flusher", flusher),
    ("waker", waker),
    ("proxy", proxy),
    ("keeper", keeper),
    ("checkpointer", checkpointer),
];

/// The threads of an open database.
#[derive(Default)]
pub struct Threads(Vec<JoinHandle<()>>);

impl Threads {
    /// Starts the duties, all or none.
    ///
    /// # Errors
    /// [`Error::Device`] if the system gives no thread.
    pub fn start(engine: &Arc<Engine>) -> Result<Self, Error> {
        Self::start_with(engine, |builder, work| builder.spawn(work))
    }

    fn start_with(
        engine: &Arc<Engine>,
        mut spawn: impl FnMut(Builder, Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>,
    ) -> Result<Self, Error> {
        let mut threads = Self::default();
        for (name, duty) in DUTIES {
            let weak = Arc::downgrade(engine);
            let builder = Builder::new().name(format!("deuteron-{name}"));
            match spawn(builder, Box::new(move || run(&weak, name, duty))) {
                Ok(thread) => threads.0.push(thread),
                Err(source) => {
                    // Those that run keep the engine, and with it the directory's lock.
                    engine.halt();
                    threads.0.drain(..).for_each(join);
                    let context = format!("start the {name} thread");
                    return Err(Error::Device { context, source: Box::new(source) });
                }
            }
        }
        Ok(threads)
    }

    /// Waits for all of them to end; the engine has been told to stop. The checkpointer first: it may be in the middle of a
    /// checkpoint, which waits for what the others do.
    pub fn join(&mut self, engine: &Engine) {
        self.0.pop().into_iter().for_each(join);
        engine.halt();
        self.0.drain(..).for_each(join);
    }
}

fn join(thread: JoinHandle<()>) {
    // A waker may close the database on the thread that has called it, which cannot wait for its own end.
    if thread.thread().id() != thread::current().id() {
        drop(thread.join());
    }
}

thread_local! {
    /// Whether this thread does a duty.
    static IS_DUTY: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one of those that do the duties of a database, this one or another: it calls the wakers of those who wait, which are the program's, and may
/// not wait for a database to close, which waits for it.
pub fn is_duty() -> bool {
    IS_DUTY.get()
}

/// What one round of a duty found.
enum Outcome {
    Worked,
    Idle { observed: u64, wait: Duration },
}

/// Runs a duty until the engine stops (the checkpointer), halts (those that it may wait for) or is gone.
fn run(engine: &Weak<Engine>, name: &str, duty: Round) {
    IS_DUTY.set(true);
    let is_last = DUTIES.last().is_some_and(|(last, _)| *last == name);
    while let Some(engine) = engine.upgrade() {
        if engine.is_halted() || is_last && engine.is_stopping() {
            return;
        }
        match catch_unwind(AssertUnwindSafe(|| duty(&engine))) {
            Ok(Outcome::Worked) => {}
            Ok(Outcome::Idle { observed, wait }) => engine.signal_of(name).wait(observed, wait),
            Err(_) => {
                // A bug, which the hook has reported. The duty goes on, as after a failure, for the sake of those who wait: the log tells them.
                engine.poison(&Error::Poisoned { reason: format!("the {name} panicked") });
                let signal = engine.signal_of(name);
                signal.wait(signal.observe(), IDLE);
            }
        }
    }
}

/// Turns the outcome of a step into what the thread does next; a failure poisons the engine.
fn outcome(engine: &Engine, result: Result<bool, Error>, observed: u64, wait: Duration) -> Outcome {
    match result {
        Ok(true) => Outcome::Worked,
        Ok(false) => Outcome::Idle { observed, wait },
        Err(error) => {
            engine.poison(&error);
            Outcome::Idle { observed, wait: IDLE }
        }
    }
}

fn flusher(engine: &Engine) -> Outcome {
    let observed = engine.signals().flush.observe();
    let wait = engine.end_delay().map_or(IDLE, |remaining| remaining.min(IDLE));
    outcome(engine, engine.flush_step(), observed, wait)
}

/// Apart from the flusher, as it calls the program's code.
fn waker(engine: &Engine) -> Outcome {
    let observed = engine.signals().wake.observe();
    outcome(engine, Ok(engine.wake_step()), observed, IDLE)
}

fn proxy(engine: &Engine) -> Outcome {
    let observed = engine.signals().stable.observe();
    outcome(engine, engine.proxy_step(), observed, POST_IDLE)
}

fn keeper(engine: &Engine) -> Outcome {
    let observed = engine.signals().keep.observe();
    outcome(engine, engine.keeper_step(), observed, KEEPER_IDLE)
}

fn checkpointer(engine: &Engine) -> Outcome {
    let observed = engine.signals().checkpoint.observe();
    outcome(engine, engine.checkpoint_step(), observed, IDLE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;
    use deuteron_device::MemoryDirectory;

    #[test]
    fn an_opening_that_gets_too_few_threads_leaves_none_and_no_lock() {
        for granted in 0..DUTIES.len() {
            let directory = Arc::new(MemoryDirectory::new());
            let open = || Engine::open(directory.clone(), Options::tiny_for_tests()).unwrap();
            let engine = open();
            let mut spawned = 0;
            let started = Threads::start_with(&engine, |builder, work| {
                spawned += 1;
                if spawned > granted { Err(io::Error::other("no more")) } else { builder.spawn(work) }
            });
            assert!(matches!(started, Err(Error::Device { .. })));
            assert_eq!(Arc::strong_count(&engine), 1);
            drop(engine);
            open().close().unwrap();
        }
    }
}
