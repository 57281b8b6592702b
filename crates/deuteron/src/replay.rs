//! [`replay`]: the log is opened, and what is in it and not in the store is posted to the data component.
//!
//! Each byte of the log is read once: buffers are posted while its end is still looked for. That is safe, as each is sound and durable
//! when it is given out, and what is posted is what any later recovery would post; whether the log is whole is known in the end.
//! The log is read in rounds, ahead of what is posted, on a thread of its own; and each batch is posted by all processors, as
//! nobody else is at work. With inline background everything is done on the caller's thread.

use crate::recovery::RecoveryPlan;
use crate::{Background, Error, Options};
use deuteron_contract::{DataComponent, Timestamp};
use deuteron_epoch::Epochs;
use deuteron_log::{Log, LogBuffer, LogError, LogOpening, Recovery, SegmentReader};
use deuteron_proxy::{Pending, Proxy, ProxyHost};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

/// What may be noted of a record: when it is met, when it is the newest of its key, and of the round before.
const RECORD_BYTES: u64 = 3 * 64;

/// The longest round with so much memory for a replay.
pub fn round_bytes_max(memory_bytes: u64) -> u64 {
    memory_bytes / 5
}

/// Steps 4 and 5 of opening: everything committed in the log from the redo start on is posted, all else is dropped, with about so much
/// memory.
pub fn replay(
    opening: LogOpening,
    epochs: Arc<Epochs>,
    dc: &Arc<dyn DataComponent>,
    options: &Options,
    proxy_options: deuteron_proxy::Options,
    memory_bytes: u64,
) -> Result<(Log, Recovery, RecoveryPlan), Error> {
    let redo_start = dc.recovered_redo_scan_start_point();
    // The more at once, the more operations share a page or are superseded. Of the memory of transactions and of the log's ring, which is free, three fifths are for
    // three rounds, that which is posted, the one met before it, and that which is read; and a third for what is noted of the operations,
    // which is more than they take in the log if they are short. A short round first, so that there is soon something to do.
    let round_bytes_max = round_bytes_max(memory_bytes).max(proxy_options.lag_bytes);
    let round_bytes = round_bytes_max / 8;
    let records_max = (memory_bytes / 3 / RECORD_BYTES).max(1);
    let threads = match options.background {
        Background::Threads => thread::available_parallelism().map_or(1, usize::from),
        Background::Inline => 1,
    };
    let replay = Replay {
        reader: opening.reader(),
        proxy: Proxy::new(Arc::clone(dc), Arc::new(NoTransactions { threads }), proxy_options, redo_start),
    };
    let mut rounds = Rounds { opening, round_bytes, round_bytes_max, records_max };
    let opening = match options.background {
        Background::Inline => {
            replay.post(|| rounds.next())?;
            rounds.opening
        }
        Background::Threads => thread::scope(|scope| {
            let (sender, receiver) = sync_channel(0);
            let reading = thread::Builder::new().spawn_scoped(scope, move || {
                // Ends when there is no more, or nobody wants it.
                while let Some(round) = rounds.next()?
                    && sender.send(round).is_ok()
                {}
                Ok::<_, LogError>(rounds.opening)
            });
            let reading = reading.map_err(|source| Error::Device {
                context: "start a thread that reads the log".into(),
                source: Box::new(source),
            })?;
            let receiver = receiver;
            replay.post(|| Ok(receiver.recv().ok()))?;
            Ok::<_, Error>(reading.join().unwrap_or_else(|panic| resume_unwind(panic))?)
        })?,
    };
    let (log, recovery) = opening.finish(epochs)?;
    replay.proxy.finish_replay(recovery.tail())?;
    let statistics = replay.proxy.statistics();
    let plan = RecoveryPlan {
        redo_start,
        log_end: recovery.tail(),
        buffers: recovery.buffers(),
        records: recovery.records(),
        transactions_committed: recovery.commits(),
        operations_posted: statistics.operations_posted,
        operations_dropped: statistics.operations_aborted,
        ..RecoveryPlan::default()
    };
    Ok((log, recovery, plan))
}

/// The log from the redo start on, about so many bytes at a time, and each time twice as many, up to a limit.
struct Rounds {
    opening: LogOpening,
    round_bytes: u64,
    round_bytes_max: u64,
    records_max: u64,
}

impl Rounds {
    /// One buffer at least, however small a round is to be; none at the end.
    fn next(&mut self) -> Result<Option<Vec<LogBuffer>>, LogError> {
        let (mut round, mut bytes) = (Vec::new(), 0);
        let before = self.opening.records_met();
        while round.is_empty()
            || bytes < self.round_bytes && self.opening.records_met() - before < self.records_max
        {
            let Some(buffer) = self.opening.next_buffer()? else { break };
            bytes += buffer.end().0 - buffer.base().0;
            round.push(buffer);
        }
        self.round_bytes = (2 * self.round_bytes).min(self.round_bytes_max);
        Ok(Some(round).filter(|round| !round.is_empty()))
    }
}

struct Replay {
    reader: SegmentReader,
    proxy: Proxy,
}

impl Replay {
    /// Posts all rounds. One is held until the next has been met, so there are two, in turns, and the one that is read.
    fn post(&self, mut next: impl FnMut() -> Result<Option<Vec<LogBuffer>>, LogError>) -> Result<(), Error> {
        let mut held;
        let mut pending = Pending::default();
        loop {
            let round = next()?.unwrap_or_default();
            let mut posted = self.proxy.replay(&mut pending, &round, &self.reader)?;
            if round.is_empty() {
                return Ok(());
            }
            drop(pending);
            held = next()?.unwrap_or_default();
            pending = self.proxy.replay(&mut posted, &held, &self.reader)?;
            if held.is_empty() {
                return Ok(());
            }
        }
    }
}

/// The host of a replay: nobody reads, so nothing has to wait.
struct NoTransactions {
    threads: usize,
}

impl ProxyHost for NoTransactions {
    fn horizon(&self) -> Timestamp {
        Timestamp::MAX
    }

    fn force_horizon(&self, _at_least: Timestamp) {}

    fn progress(&self, _progress: deuteron_proxy::Progress) {}

    fn threads(&self) -> usize {
        self.threads
    }

    fn on_threads(&self, work: &(dyn Fn() + Sync)) {
        thread::scope(|scope| {
            // Where the system gives no thread, there is one less.
            (1..self.threads).for_each(|_| drop(thread::Builder::new().spawn_scoped(scope, work)));
            work();
        });
    }
}
