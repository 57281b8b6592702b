//! What the transaction component's operations do while they cannot go on: give others a turn, sleep, or help.

use crate::background::Signals;
use crate::deadline;
use crate::engine::Engine;
use crate::signal::Signal;
use crate::statistics::Waits;
use deuteron_tc::{Host, Stall};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

/// A transaction that waits for another yields so often before it sleeps: most are about to end.
const YIELDS_MAX: u32 = 4;
/// The longest sleep for another transaction's sake.
const WRITER_WAIT_MAX: Duration = Duration::from_micros(200);

/// The longest sleep of one that is not at the front of the turnstile's queue.
const TURN_WAIT_MAX: Duration = Duration::from_millis(20);
/// The sleep of the one that is.
const FRONT_WAIT: Duration = Duration::from_micros(1000);

/// The transaction component's host: the engine, once there is one.
pub struct StallHost {
    engine: OnceLock<Weak<Engine>>,
    signals: Arc<Signals>,
    /// Raised when a transaction ends for which another waits; several transactions share one.
    writers: [Signal; 64],
    pub(crate) waits: Waits,
}

impl StallHost {
    pub fn new(signals: Arc<Signals>) -> Self {
        Self {
            engine: OnceLock::new(),
            signals,
            writers: std::array::from_fn(|_| Signal::default()),
            waits: Waits::default(),
        }
    }

    fn writers(&self, number: u32) -> &Signal {
        &self.writers[number as usize % self.writers.len()]
    }

    /// From now on stalls are the engine's business.
    pub fn attach(&self, engine: &Arc<Engine>) {
        drop(self.engine.set(Arc::downgrade(engine)));
    }

    /// Waits from `now` on, or does what is waited for.
    fn wait(&self, engine: &Engine, reason: Stall, now: Instant) -> Result<(), String> {
        // Without threads of the database's own, whoever waits may be the only one who works: he would wait for himself.
        let sleeps = engine.has_threads();
        match reason {
            Stall::Writer { number, since, turn } if sleeps && turn >= YIELDS_MAX => {
                self.writers(number).wait(since, WRITER_WAIT_MAX);
            }
            Stall::Turn { number, since } if sleeps => {
                self.writers(number).wait(since, deadline::until(TURN_WAIT_MAX, now));
            }
            Stall::Front if sleeps => thread::sleep(deadline::until(FRONT_WAIT, now)),
            Stall::Writer { .. } | Stall::Turn { .. } | Stall::Front => thread::yield_now(),
            _ => {
                let _work_of_others = deadline::Watch::new(None);
                self.signals.keep.raise();
                engine.stalled().map_err(|error| deuteron_device::with_causes(&error))?;
            }
        }
        Ok(())
    }
}

impl Host for StallHost {
    fn stalled(&self, reason: Stall) -> Result<(), String> {
        let Some(engine) = self.engine.get().and_then(Weak::upgrade) else {
            return Err("the database is not open".into());
        };
        let begun = engine.now();
        if deadline::has_passed(begun) {
            return Err("the deadline of the transaction has passed".into());
        }
        let outcome = self.wait(&engine, reason, begun);
        let times = match reason {
            Stall::Writer { .. } => &self.waits.writer,
            Stall::Turn { .. } | Stall::Front => &self.waits.turn,
            _ => &self.waits.room,
        };
        times.record_time(engine.now() - begun);
        outcome
    }

    fn processor_time(&self) -> Option<Duration> {
        processor_time()
    }

    fn processors(&self) -> Option<usize> {
        thread::available_parallelism().ok().map(usize::from)
    }

    fn ends(&self, number: u32) -> u64 {
        self.writers(number).observe()
    }

    fn ended(&self, number: u32) {
        self.writers(number).raise();
    }
}

/// How long the calling thread has had a processor so far.
pub fn processor_time() -> Option<Duration> {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(time).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_a_thread_is_what_it_had_a_processor_for() {
        let host = StallHost::new(Arc::new(Signals::default()));
        let (begin, before) = (Instant::now(), host.processor_time().unwrap());
        let ran = loop {
            let ran = host.processor_time().unwrap() - before;
            if ran > Duration::from_millis(2) {
                break ran;
            }
        };
        assert!(ran <= begin.elapsed());
        let slept = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            StallHost::new(Arc::new(Signals::default())).processor_time().unwrap()
        });
        assert!(slept.join().unwrap() < Duration::from_millis(20), "of this thread, and asleep");
    }
}
