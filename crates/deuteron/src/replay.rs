//! [`replay`]: what is in the log and not in the store is posted to the data component, when a database is opened.
//!
//! The log is read in rounds, ahead of what is posted, on a thread of its own; and each batch is posted by all processors, as
//! nobody else is at work. With inline background everything is done on the caller's thread.

use crate::recovery::RecoveryPlan;
use crate::{Background, Error, Options};
use deuteron_contract::{DataComponent, Timestamp};
use deuteron_log::{BufferView, Log, LogBuffer, LogReader, Record, Recovery};
use deuteron_proxy::{Proxy, ProxyHost};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread;

/// What an operation takes in a batch, beside its bytes in the log buffer.
const OPERATION_BYTES: usize = 72;

/// Step 5 of opening: everything committed in the log from the redo start on is posted, all else is dropped, with about so much
/// memory. Returns what was done and where the clock goes on.
pub fn replay(
    recovery: &Recovery,
    log: &Log,
    dc: &Arc<dyn DataComponent>,
    options: &Options,
    proxy_options: deuteron_proxy::Options,
    memory_bytes: u64,
) -> Result<(RecoveryPlan, Timestamp), Error> {
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
    let mut replay = Replay {
        log,
        proxy: Proxy::new(Arc::clone(dc), Arc::new(NoTransactions { threads }), proxy_options, redo_start),
        report: RecoveryPlan { redo_start, log_end: recovery.tail(), ..RecoveryPlan::default() },
        clock_start: Timestamp(0),
    };
    let mut rounds = Rounds { buffers: recovery.buffers(), round_bytes, round_bytes_max };
    match options.background {
        Background::Inline => rounds.try_for_each(|round| replay.post(round?))?,
        Background::Threads => thread::scope(|scope| {
            let (sender, receiver) = sync_channel(0);
            // Ends when there is no more, or nobody wants it.
            scope.spawn(move || rounds.try_for_each(|round| sender.send(round)));
            receiver.into_iter().try_for_each(|round| replay.post(round?))
        })?,
    }
    replay.proxy.finish_replay(recovery.tail())?;
    let statistics = replay.proxy.statistics();
    replay.report.operations_posted = statistics.operations_posted;
    replay.report.operations_dropped = statistics.operations_aborted;
    Ok((replay.report, replay.clock_start))
}

/// The log from the redo start on, about so many bytes at a time, and each time twice as many, up to a limit.
struct Rounds {
    buffers: LogReader,
    round_bytes: u64,
    round_bytes_max: u64,
}

impl Iterator for Rounds {
    type Item = Result<Round, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut round, mut bytes) = (Round::default(), 0);
        // One at least, however small a round is to be.
        while round.buffers.is_empty() || bytes < self.round_bytes {
            match self.buffers.next() {
                None if round.buffers.is_empty() => return None,
                None => break,
                Some(Err(error)) => return Some(Err(error.into())),
                Some(Ok(buffer)) => {
                    bytes += buffer.end().0 - buffer.base().0;
                    round.take(buffer);
                }
            }
        }
        self.round_bytes = (2 * self.round_bytes).min(self.round_bytes_max);
        Some(Ok(round))
    }
}

/// Buffers of the log, one after the other.
#[derive(Default)]
struct Round {
    buffers: Vec<LogBuffer>,
    records: u64,
    commits: u64,
    /// That they speak of.
    latest: Timestamp,
}

impl Round {
    fn take(&mut self, buffer: LogBuffer) {
        for (_, record) in buffer.view().records() {
            self.records += 1;
            match record {
                Record::Commit { timestamp, .. } => {
                    self.commits += 1;
                    self.latest = self.latest.max(timestamp);
                }
                Record::ClockCeiling { timestamp } => self.latest = self.latest.max(timestamp),
                _ => {}
            }
        }
        self.buffers.push(buffer);
    }
}

struct Replay<'l> {
    log: &'l Log,
    proxy: Proxy,
    report: RecoveryPlan,
    clock_start: Timestamp,
}

impl Replay<'_> {
    fn post(&mut self, round: Round) -> Result<(), Error> {
        self.report.buffers += round.buffers.len() as u64;
        self.report.records += round.records;
        self.report.transactions_committed += round.commits;
        self.clock_start = self.clock_start.max(round.latest);
        let views: Vec<BufferView<'_>> = round.buffers.iter().map(LogBuffer::view).collect();
        Ok(self.proxy.replay(&views, self.log)?)
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
