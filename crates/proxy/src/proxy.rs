//! [`Proxy`]: the two passes, in steps.
//!
//! Called by the facade's background thread ([`Proxy::step`]) and by recovery ([`Proxy::replay`]); calls the data
//! component, the log and the [`ProxyHost`].
//!
//! # Model
//!
//! | | moves | says |
//! |---|---|---|
//! | `eager_at` (T-LSN) | to the end of the next stable buffer | every commit record below is in `outcomes`, or its transaction is behind |
//! | `delayed_at` (O-LSN) | to the end of the next scanned buffer | every operation below is applied, in `side`, in `waiting` or in `ready` |
//! | `horizon` | with the host's | every version in `waiting` is at or above it, once `ready` is empty |
//!
//! # Invariants
//!
//! - **P1** `delayed_at` ≤ `eager_at`. The data component is given no operation at or above the end of stable log
//!   that it has been told, nor one whose commit record is.
//! - **P2** An operation below `delayed_at` is applied, or its transaction is aborted, or it is held exactly once: in
//!   `side` (no commit record below `eager_at`), in `waiting` (final timestamp at or above `horizon`), or in `ready`.
//!   A value in pieces is held by its pieces' LSNs, in `pieces` until its large operation is met, and with that afterwards.
//! - **P3** Progress is reported with `ready` empty, so it holds as [`Progress`] says. Each part only grows.
//! - **P4** The redo scan start point is at or below `delayed_at` and every held operation, does not lie among the pieces of a large value, and only grows: what is
//!   held below `delayed_at` was met at or above the `delayed_at` of its time. In a replay it stays where it was: an operation of the round
//!   that is held back may be all that is left of one below, or be that of pieces below.
//! - **P5** An entry of `outcomes` lives until the delayed pass is through with the round of buffers that holds its commit record.
//!
//! # Failure
//!
//! A failed apply leaves `delayed_at` where it was and `ready` as it was; the next step goes over the same operations
//! again. Operations of that round that were *kept* the first time are recognised by `met`, so that they are
//! held once (P2); those that were applied are applied again, which changes nothing (C1). A crash loses everything here, and
//! replay from the redo scan start point finds it again in the log.

use crate::batch::{Batch, Buffers, Destination};
use crate::held::Held;
use crate::outcomes::{ByTransaction, Outcomes};
use crate::replay::Spare;
use crate::side_buffer::{Kept, SideBuffer};
use crate::waiting_list::WaitingList;
use crate::{
    Commit, Entry, Options, Progress, ProxyError, ProxyHost, ProxyStatistics, ReadBack, RecordSource,
    StableLog,
};
use deuteron_canary::{Canary, is_planted};
use deuteron_contract::{DataComponent, Lsn, Operation, Timestamp};
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A step scans short buffers until they are so long together, or a sixteenth of the lag.
const SCANNED_BYTES: u64 = 256 << 10;

/// The TC Proxy. See the [crate] and the [module](self).
///
/// All methods take `&self`. Steps exclude each other; the getters never wait for a step.
pub struct Proxy {
    pub(crate) dc: Arc<dyn DataComponent>,
    pub(crate) host: Arc<dyn ProxyHost>,
    options: Options,
    /// What may wait for the horizon now.
    waiting_list_bytes_max: AtomicUsize,
    passes: Mutex<Passes>,
    published: Mutex<Published>,
}

/// What the getters return, copied out after each step.
#[derive(Clone, Copy)]
struct Published {
    progress: Progress,
    redo_scan_start_point: Lsn,
    statistics: ProxyStatistics,
}

/// The state of the passes; the fields are described in the [module](self).
pub(crate) struct Passes {
    pub(crate) eager_at: Lsn,
    pub(crate) delayed_at: Lsn,
    /// Every operation below has been met by the delayed pass, perhaps in an attempt that failed.
    pub(crate) met: Lsn,
    /// Up to where a replay has posted what it has met.
    pub(crate) replayed_to: Lsn,
    horizon: Timestamp,
    /// The horizon below which nothing waits.
    posted: Timestamp,
    pub(crate) outcomes: Outcomes,
    side: SideBuffer,
    waiting: WaitingList,
    /// The pieces met of large values whose operation has not been met yet.
    pieces: ByTransaction<Vec<Lsn>>,
    /// Of large values that have been met the first piece and the operation, of those that may lie about the redo scan start point (P4).
    spans: Vec<(Lsn, Lsn)>,
    /// Committed below the horizon, to be applied before anything is reported.
    ready: VecDeque<(Timestamp, Held)>,
    reported: Progress,
    pub(crate) statistics: ProxyStatistics,
    buffers: Buffers,
    pub(crate) spare: Spare,
}

impl Proxy {
    /// A proxy that takes the log from `start`: what the data component has
    /// [recovered](DataComponent::recovered_redo_scan_start_point). Operations below are durable and are not
    /// posted again, not even if a buffer given to the proxy holds them.
    pub fn new(dc: Arc<dyn DataComponent>, host: Arc<dyn ProxyHost>, options: Options, start: Lsn) -> Self {
        let passes = Passes {
            eager_at: start,
            delayed_at: start,
            met: start,
            replayed_to: start,
            horizon: Timestamp(0),
            posted: Timestamp(0),
            outcomes: Outcomes::default(),
            side: SideBuffer::new(options.side_buffer_bytes_max),
            waiting: WaitingList::default(),
            pieces: ByTransaction::default(),
            spans: Vec::new(),
            ready: VecDeque::new(),
            reported: Progress::default(),
            statistics: ProxyStatistics::default(),
            buffers: Buffers::default(),
            spare: Spare::default(),
        };
        let published = Mutex::new(passes.published());
        let waiting_list_bytes_max = AtomicUsize::new(options.waiting_list_bytes_max);
        Proxy { dc, host, options, waiting_list_bytes_max, passes: Mutex::new(passes), published }
    }

    /// One unit of work: scans the next stable buffer, or some short ones, for commits and, if enough lies behind it or nothing is left to
    /// scan, posts the oldest scanned buffer and releases it. Returns whether there was anything to do.
    ///
    /// # Errors
    /// [`ProxyError`] if the data component or the log fails. Nothing is lost; a later step tries again.
    pub fn step<L: StableLog + ?Sized>(&self, log: &L) -> Result<bool, ProxyError> {
        self.with_passes(|passes| self.step_passes(passes, log))
    }

    /// Ends the replay: the log found at recovery ends at `tail`, where new records will be written. Transactions
    /// without a commit record have aborted.
    ///
    /// # Errors
    /// [`ProxyError::ReplayIncomplete`] if the last call of [`Proxy::replay`] failed, or was not the one with an empty round.
    pub fn finish_replay(&self, tail: Lsn) -> Result<(), ProxyError> {
        self.with_passes(|passes| {
            if passes.replayed_to < passes.eager_at || !passes.ready.is_empty() {
                return Err(ProxyError::ReplayIncomplete { after: passes.replayed_to });
            }
            passes.statistics.operations_aborted += passes.side.clear() as u64;
            passes.pieces.clear();
            passes.outcomes = Outcomes::default();
            passes.eager_at = passes.eager_at.max(tail);
            passes.delayed_at = passes.eager_at;
            passes.met = passes.eager_at;
            passes.replayed_to = passes.eager_at;
            self.dc.end_of_stable_log(passes.eager_at);
            Ok(())
        })
    }

    /// Whether so much log lies between O-LSN and `stable`, the end of the stable log, that a round is worth its while. Less of it
    /// may wait until there is more, or until its memory is wanted: the more comes at once, the more operations share
    /// a page. Costs a lock that is mostly free.
    ///
    /// ```
    /// # use deuteron_proxy::{Options, Proxy};
    /// # fn example(proxy: &Proxy, stable: deuteron_contract::Lsn) {
    /// if proxy.is_round_due(stable) {
    ///     // Wake whoever calls `step`.
    /// }
    /// # }
    /// ```
    pub fn is_round_due(&self, stable: Lsn) -> bool {
        stable.0.saturating_sub(self.progress().o_lsn.0) > self.options.lag_bytes
    }

    /// Where redo would have to start if the machine stopped now: the lowest LSN of an operation that is neither
    /// applied nor known to be void. The data component may be told so
    /// ([`DataComponent::redo_scan_start_point`]). Only grows.
    pub fn redo_scan_start_point(&self) -> Lsn {
        self.published().redo_scan_start_point
    }

    /// The last reported progress.
    pub fn progress(&self) -> Progress {
        self.published().progress
    }

    /// Sets what [`Options::waiting_list_bytes_max`] has set at first.
    ///
    /// ```
    /// # fn example(proxy: &deuteron_proxy::Proxy) {
    /// // There is memory to spare: old readers need not be told to begin again so soon.
    /// proxy.set_waiting_list_bytes_max(256 << 20);
    /// # }
    /// ```
    pub fn set_waiting_list_bytes_max(&self, bytes: usize) {
        self.waiting_list_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Counters, as of the last step.
    pub fn statistics(&self) -> ProxyStatistics {
        self.published().statistics
    }

    pub(crate) fn with_passes<T>(
        &self,
        work: impl FnOnce(&mut Passes) -> Result<T, ProxyError>,
    ) -> Result<T, ProxyError> {
        // A panic in a step leaves the passes as a failed apply does.
        let mut passes = self.passes.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(&mut passes);
        let published = passes.published();
        debug_assert!(published.redo_scan_start_point >= self.redo_scan_start_point(), "P4");
        *self.published_mut() = published;
        result
    }

    fn published(&self) -> Published {
        *self.published_mut()
    }

    fn published_mut(&self) -> MutexGuard<'_, Published> {
        self.published.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn step_passes<L: StableLog + ?Sized>(&self, passes: &mut Passes, log: &L) -> Result<bool, ProxyError> {
        passes.horizon = passes.horizon.max(self.host.horizon());
        let horizon = match is_planted(Canary::PostAboveHorizon) {
            false => passes.horizon,
            true => Timestamp::MAX,
        };
        passes.release_waiting(horizon);
        let mut worked = self.apply_ready(passes, log)?;
        passes.posted = passes.horizon;

        let from = passes.eager_at;
        // The pass stays ahead by the lag, and not by much more.
        let scanned_bytes = SCANNED_BYTES.min(self.options.lag_bytes / 16).max(1);
        while passes.eager_at.0 - from.0 < scanned_bytes
            && let Some(buffer) = log.next_stable(passes.eager_at)
        {
            passes.eager_pass(&buffer, horizon);
        }
        let scanned = passes.eager_at > from;
        if scanned {
            self.dc.end_of_stable_log(passes.eager_at);
            self.apply_ready(passes, log)?;
            worked = true;
        }
        self.report(passes);

        let lag = passes.eager_at.0 - passes.delayed_at.0;
        if lag == 0 || (scanned && lag <= self.options.lag_bytes) || self.is_stalled(passes) {
            return Ok(worked);
        }
        let round = self.next_round(passes, log)?;
        self.delayed_pass(passes, &round, horizon)?;
        drop(round);
        // Large values are read back.
        self.apply_ready(passes, log)?;
        log.release(passes.delayed_at);
        self.report(passes);
        Ok(true)
    }

    /// The buffers of the next round: from O-LSN on, as far as the eager pass has come, `lag_bytes` of them or a little more.
    fn next_round<'l, L: StableLog + ?Sized>(
        &self,
        passes: &Passes,
        log: &'l L,
    ) -> Result<Vec<L::Buffer<'l>>, ProxyError> {
        let (mut round, mut after) = (Vec::new(), passes.delayed_at);
        let enough = after.0 + self.options.lag_bytes;
        while after < passes.eager_at {
            let Some(buffer) = log.next_stable(after).filter(|buffer| buffer.end() <= passes.eager_at) else {
                return Err(ProxyError::BufferLost { after });
            };
            // What little is left is taken along: where a round is all there is, no outcome need be kept.
            if after.0 >= enough && buffer.end().0 > enough + self.options.lag_bytes / 16 && !round.is_empty()
            {
                break;
            }
            after = buffer.end();
            round.push(buffer);
        }
        Ok(round)
    }

    /// Whether too much waits for the horizon; if so, asks the host to do something about it.
    fn is_stalled(&self, passes: &mut Passes) -> bool {
        // Relaxed: a figure.
        let bytes_max = self.waiting_list_bytes_max.load(Ordering::Relaxed);
        let log_bytes_max = self.options.waiting_log_bytes_max;
        let waiting = &passes.waiting;
        let pinned = waiting.first_lsn().map_or(0, |first| passes.delayed_at.0.saturating_sub(first.0));
        let mut forced = Timestamp(0);
        // Half of it, so that this is not repeated at once.
        if waiting.bytes() > bytes_max {
            forced = waiting.horizon_for(bytes_max / 2);
        }
        if pinned > log_bytes_max {
            forced = forced.max(waiting.horizon_before(Lsn(passes.delayed_at.0 - log_bytes_max / 2)));
        }
        if forced == Timestamp(0) {
            return false;
        }
        self.host.force_horizon(forced);
        passes.statistics.stalls += 1;
        true
    }

    fn report(&self, passes: &mut Passes) {
        debug_assert!(passes.ready.is_empty(), "P3");
        let progress = Progress { t_lsn: passes.eager_at, o_lsn: passes.delayed_at, posted: passes.posted };
        if progress != passes.reported {
            passes.reported = progress;
            self.host.progress(progress);
        }
    }

    fn destination(&self) -> Destination<'_> {
        Destination { dc: &*self.dc, host: &*self.host }
    }

    /// Meets every operation of a round of buffers that the eager pass has scanned.
    fn delayed_pass<S: RecordSource>(
        &self,
        passes: &mut Passes,
        round: &[S],
        horizon: Timestamp,
    ) -> Result<(), ProxyError> {
        let to = self.destination();
        let mut batch = Batch::new(self.options.batch_operations_max, std::mem::take(&mut passes.buffers));
        // What is next is mostly of the same transaction.
        let mut last = None;
        let mut meet = |lsn, entry| {
            match entry {
                Entry::Update { .. } if lsn < passes.delayed_at => {}
                Entry::Update { transaction, table, key, value } => {
                    let outcome = match last {
                        Some((same, outcome)) if same == transaction => outcome,
                        _ => {
                            let outcome = passes.outcomes.committed_at(transaction);
                            last = Some((transaction, outcome));
                            outcome
                        }
                    };
                    match outcome {
                        Some(timestamp) if timestamp < horizon => {
                            let operation = Operation { table, key, value, timestamp, lsn };
                            if let Err(error) = batch.push(operation, to, &mut passes.statistics) {
                                return ControlFlow::Break(error);
                            }
                        }
                        _ => passes.keep(lsn, entry, horizon),
                    }
                }
                Entry::Commit { .. } | Entry::Other => {}
                _ => passes.keep(lsn, entry, horizon),
            }
            passes.met = passes.met.max(Lsn(lsn.0 + 1));
            ControlFlow::Continue(())
        };
        if let ControlFlow::Break(error) = round.iter().try_for_each(|buffer| buffer.visit(&mut meet)) {
            return Err(error);
        }
        batch.apply(to, &mut passes.statistics)?;
        passes.buffers = batch.finish();
        for buffer in round {
            passes.delayed_at = passes.delayed_at.max(buffer.end());
        }
        // P5: an earlier removal would make a second attempt take the operations for undecided.
        if passes.delayed_at == passes.eager_at {
            passes.outcomes.clear();
        } else {
            round.iter().for_each(|buffer| {
                buffer.visit_commits(|commit| passes.outcomes.forget(commit.transaction));
            });
        }
        passes.statistics.buffers_posted += round.len() as u64;
        Ok(())
    }

    /// Applies what is ready. Returns whether there was anything.
    pub(crate) fn apply_ready<L: ReadBack + ?Sized>(
        &self,
        passes: &mut Passes,
        log: &L,
    ) -> Result<bool, ProxyError> {
        let Passes { ready, statistics, .. } = passes;
        let worked = !ready.is_empty();
        while let Some((timestamp, first)) = ready.front() {
            if first.is_left_in_log() {
                self.apply_left_in_log(*timestamp, first.left_in_log(), log, statistics)?;
                ready.pop_front();
                continue;
            }
            let in_memory = ready.iter().take_while(|(_, held)| !held.is_left_in_log()).count();
            let mut batch = Batch::new(self.options.batch_operations_max, Buffers::default());
            for (timestamp, held) in ready.iter().take(in_memory) {
                for operation in held.operations(*timestamp) {
                    batch.push(operation, self.destination(), statistics)?;
                }
            }
            batch.apply(self.destination(), statistics)?;
            ready.drain(..in_memory);
        }
        Ok(worked)
    }

    /// Reads operations back from the log, a bounded part at a time, and applies them.
    fn apply_left_in_log<L: ReadBack + ?Sized>(
        &self,
        timestamp: Timestamp,
        lsns: &[Lsn],
        log: &L,
        statistics: &mut ProxyStatistics,
    ) -> Result<(), ProxyError> {
        let mut left = lsns;
        // The pieces of a large value so far.
        let mut long = Vec::new();
        while let Some(&next) = left.first() {
            let (mut part, mut taken, mut large) = (Held::default(), 0, None);
            let read = log.read_back(left, &mut |entry| {
                let Some(&lsn) = left.get(taken) else { return ControlFlow::Break(()) };
                match entry {
                    Entry::Update { table, key, value, .. } => part.push(lsn, table, key, value),
                    Entry::Piece { bytes, .. } => long.extend_from_slice(bytes),
                    Entry::Large { table, key, length, .. } => {
                        large = Some((lsn, table, key.to_vec(), length))
                    }
                    _ => return ControlFlow::Break(()),
                }
                taken += 1;
                let full = large.is_some()
                    || part.len() >= self.options.batch_operations_max
                    || part.cost() >= self.options.side_buffer_bytes_max;
                if full { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            // What was read before the failure is read again by the next step.
            read.map_err(|source| ProxyError::ReadBack { lsn: next, source })?;
            if taken == 0 {
                return Err(ProxyError::NotAnUpdate { lsn: next });
            }
            left = &left[taken..];
            statistics.operations_read_back += (part.len() + usize::from(large.is_some())) as u64;
            let mut batch = Batch::new(self.options.batch_operations_max, Buffers::default());
            for operation in part.operations(timestamp) {
                batch.push(operation, self.destination(), statistics)?;
            }
            if let Some((lsn, table, key, length)) = &large {
                if long.len() as u64 != *length {
                    return Err(ProxyError::NotAnUpdate { lsn: *lsn });
                }
                let (table, lsn) = (*table, *lsn);
                let operation = Operation { table, key, value: Some(&long), timestamp, lsn };
                batch.push(operation, self.destination(), statistics)?;
            }
            batch.apply(self.destination(), statistics)?;
            drop(batch);
            if large.is_some() {
                long = Vec::new();
            }
        }
        Ok(())
    }
}

impl Passes {
    /// Meets what is not to be posted at once: an operation of a transaction that has not committed below the horizon, a piece of a
    /// large value, that value, the end of an aborted transaction. Of an earlier attempt it knows what it has kept.
    pub(crate) fn keep(&mut self, lsn: Lsn, entry: Entry<'_>, horizon: Timestamp) {
        let is_known = lsn < self.met;
        match entry {
            Entry::Abort { transaction } => {
                self.pieces.remove(&transaction);
                let void = self.side.take(transaction).map_or(0, |held| held.len());
                self.statistics.operations_aborted += void as u64;
            }
            _ if is_known => {}
            Entry::Update { transaction, table, key, value } => match self.outcomes.committed_at(transaction)
            {
                Some(timestamp) => {
                    self.waiting.push(timestamp, lsn, table, key, value);
                    self.statistics.operations_waited += 1;
                }
                None => {
                    let kept = self.side.push(transaction, lsn, table, key, value);
                    self.statistics.operations_undecided += 1;
                    self.statistics.operations_left_in_log += u64::from(kept == Kept::LeftInLog);
                }
            },
            Entry::Piece { transaction, .. } => self.pieces.entry(transaction).or_default().push(lsn),
            Entry::Large { transaction, .. } => {
                let start = self.redo_scan_start_point();
                let mut lsns = self.pieces.remove(&transaction).unwrap_or_default();
                lsns.push(lsn);
                self.spans.retain(|&(_, last)| last >= start);
                self.spans.extend(lsns.first().map(|&first| (first, lsn)));
                match self.outcomes.committed_at(transaction) {
                    Some(timestamp) if timestamp < horizon => {
                        self.ready.push_back((timestamp, Held::of_log(lsns)));
                    }
                    Some(timestamp) => {
                        self.waiting.insert(timestamp, Held::of_log(lsns));
                        self.statistics.operations_waited += 1;
                    }
                    None => {
                        self.side.push_large(transaction, lsns);
                        self.statistics.operations_undecided += 1;
                        self.statistics.operations_left_in_log += 1;
                    }
                }
            }
            Entry::Commit { .. } | Entry::Other => {}
        }
    }

    /// Learns the outcomes that a buffer holds. Touches only memory, so it cannot fail half-way.
    pub(crate) fn eager_pass<S: RecordSource>(&mut self, buffer: &S, horizon: Timestamp) {
        buffer.visit_commits(|Commit { transaction, timestamp }| {
            self.outcomes.commit(transaction, timestamp);
            match self.side.take(transaction) {
                Some(held) if timestamp < horizon => self.ready.push_back((timestamp, held)),
                Some(held) => self.waiting.insert(timestamp, held),
                None => {}
            }
        });
        self.eager_at = self.eager_at.max(buffer.end());
        self.statistics.buffers_scanned += 1;
    }

    /// Moves what is below the horizon now from `waiting` to `ready`.
    fn release_waiting(&mut self, horizon: Timestamp) {
        while let Some((timestamp, parts)) = self.waiting.pop_below(horizon) {
            self.ready.extend(parts.into_iter().map(|held| (timestamp, held)));
        }
    }

    /// P4. Linear in the held transactions, once per step.
    fn redo_scan_start_point(&self) -> Lsn {
        let ready = self.ready.iter().filter_map(|(_, held)| held.first_lsn()).min();
        let pieces = self.pieces.values().filter_map(|pieces| pieces.first().copied()).min();
        let undecided = self.side.first_lsn().filter(|_| !is_planted(Canary::ForgetUndecided));
        let held = [undecided, self.waiting.first_lsn(), ready, pieces];
        let mut start = held.into_iter().flatten().fold(self.delayed_at, Lsn::min);
        // Nor among the pieces of one that has been posted: a recovery that begins there would find it, and not all of it.
        while let Some(&(first, _)) = self.spans.iter().find(|&&(first, last)| first < start && start <= last)
        {
            start = first;
        }
        start
    }

    fn published(&self) -> Published {
        let statistics = ProxyStatistics {
            undecided_transactions: self.side.transactions() as u64,
            side_buffer_bytes: self.side.bytes() as u64,
            waiting_list_bytes: self.waiting.bytes() as u64,
            outcomes: self.outcomes.len() as u64,
            ..self.statistics
        };
        Published { progress: self.reported, redo_scan_start_point: self.redo_scan_start_point(), statistics }
    }
}
