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
use deuteron_log::{BufferView, Log, LogBuffer, LogError, LogOpening, Recovery, SegmentReader};
use deuteron_proxy::{Proxy, ProxyHost};
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

/// What an operation takes in a batch, beside its bytes in the log buffer.
const OPERATION_BYTES: usize = 72;

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
    // The more at once, the more operations share a page or are superseded. Of the memory of transactions, which is free, half is for two
    // rounds, that which is posted and that which is read, and a sixth for what is noted of the operations.
    let round_bytes_max = (memory_bytes / 4).max(2 * proxy_options.lag_bytes);
    // A short one first, so that there is soon something to post.
    let round_bytes = (round_bytes_max / 8).max(proxy_options.lag_bytes);
    let operations_max = memory_bytes as usize / 6 / OPERATION_BYTES;
    let proxy_options = deuteron_proxy::Options {
        batch_operations_max: proxy_options.batch_operations_max.max(operations_max),
        ..proxy_options
    };
    let threads = match options.background {
        Background::Threads => thread::available_parallelism().map_or(1, usize::from),
        Background::Inline => 1,
    };
    let replay = Replay {
        reader: opening.reader(),
        proxy: Proxy::new(Arc::clone(dc), Arc::new(NoTransactions { threads }), proxy_options, redo_start),
    };
    let mut rounds = Rounds { opening, round_bytes, round_bytes_max };
    let opening = match options.background {
        Background::Inline => {
            while let Some(round) = rounds.next()? {
                replay.post(&round)?;
            }
            rounds.opening
        }
        Background::Threads => thread::scope(|scope| {
            let (sender, receiver) = sync_channel(0);
            let reading = scope.spawn(move || {
                // Ends when there is no more, or nobody wants it.
                while let Some(round) = rounds.next()?
                    && sender.send(round).is_ok()
                {}
                Ok::<_, LogError>(rounds.opening)
            });
            receiver.into_iter().try_for_each(|round| replay.post(&round))?;
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
}

impl Rounds {
    /// One buffer at least, however small a round is to be; none at the end.
    fn next(&mut self) -> Result<Option<Vec<LogBuffer>>, LogError> {
        let (mut round, mut bytes) = (Vec::new(), 0);
        while round.is_empty() || bytes < self.round_bytes {
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
    fn post(&self, round: &[LogBuffer]) -> Result<(), Error> {
        let views: Vec<BufferView<'_>> = round.iter().map(LogBuffer::view).collect();
        Ok(self.proxy.replay(&views, &self.reader)?)
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
            (1..self.threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
    }
}
