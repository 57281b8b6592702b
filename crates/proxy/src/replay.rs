//! [`Proxy::replay`]: after a crash the same passes, by all threads of the host and for a round of the log at a time.
//!
//! | step | by | what |
//! |---|---|---|
//! | 1 | one thread | the eager pass over the round |
//! | 2 | all, a buffer each | committed operations are collected, in ranges of keys (`Cuts`); all else is noted |
//! | 3 | one thread | what was noted is kept, in the order of the log: as in any delayed pass |
//! | 4 | all, a range each | the range is sorted, and the round *before* is posted, less what this one has newer versions of |
//!
//! So of a key that is updated in many rounds only every other version or fewer reach the data component: each of them takes memory there and
//! the time to put it into its page. A round is held in memory until the next has been met.

use crate::batch::post;
use crate::order::{Place, Rank, Ranked, is_newer, sort};
use crate::proxy::Passes;
use crate::{Entry, Proxy, ProxyError, ProxyStatistics, ReadBack, RecordSource};
use deuteron_contract::{Lsn, Operation, Timestamp};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// There are so many ranges of keys for each thread: they are not equally long, and who is through takes the next.
const RANGES_PER_THREAD: usize = 8;

/// Ranges are cut by the operations with which so many buffers of a round begin, so many of each.
const SAMPLED_BUFFERS: usize = 16;
const SAMPLED_OPERATIONS: usize = 128;

/// The operations of a round that have been met and not been posted: of each key the newest. See [`Proxy::replay`].
#[derive(Debug, Default)]
pub struct Pending<'r> {
    /// Ascending, as is each of them.
    ranges: Vec<Vec<Ranked<'r>>>,
}

impl<'r> Pending<'r> {
    /// The operations from `from` on up to `until`, exclusive, in order.
    fn between(&self, from: Option<Rank>, until: Option<Rank>) -> impl Iterator<Item = &Ranked<'r>> {
        self.ranges.iter().flat_map(move |range| {
            let begin = from.map_or(0, |from| range.partition_point(|ranked| ranked.rank() < from));
            let rest = &range[begin..];
            let end = until.map_or(rest.len(), |until| rest.partition_point(|ranked| ranked.rank() < until));
            &rest[..end]
        })
    }
}

/// Memory of replays, kept from one round to the next.
#[derive(Default)]
pub(crate) struct Spare(Vec<Vec<Ranked<'static>>>);

impl Spare {
    /// An empty vector, with memory if there is some.
    fn take<'r>(&mut self) -> Vec<Ranked<'r>> {
        self.0.pop().unwrap_or_default()
    }

    /// (The standard library collects in place where the sizes agree; if it should not, this costs an allocation.)
    fn give(&mut self, mut ranked: Vec<Ranked<'_>>) {
        ranked.clear();
        self.0.push(ranked.into_iter().map(|_| unreachable!("it is empty")).collect());
    }
}

/// Where the ranges of keys begin, but for the first; ascending.
struct Cuts(Vec<Rank>);

impl Cuts {
    /// Cuts that give about as many operations to each of `ranges`. By a sample: keys may lie anywhere.
    fn of<S: RecordSource>(round: &[S], ranges: usize) -> Cuts {
        let mut sample = Vec::with_capacity(SAMPLED_BUFFERS * SAMPLED_OPERATIONS);
        for buffer in round.iter().step_by(round.len().div_ceil(SAMPLED_BUFFERS).max(1)) {
            let until = sample.len() + SAMPLED_OPERATIONS;
            let _: ControlFlow<()> = buffer.visit(|lsn, entry| {
                if let Entry::Update { table, key, value, .. } = entry {
                    sample.push(Rank::of(&Operation { table, key, value, timestamp: Timestamp(0), lsn }));
                }
                if sample.len() < until { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
            });
        }
        sample.sort_unstable();
        let cut = |range: usize| sample.get(range * sample.len() / ranges).copied();
        let mut cuts: Vec<_> = (1..ranges).filter_map(cut).collect();
        cuts.dedup();
        Cuts(cuts)
    }

    fn ranges(&self) -> usize {
        self.0.len() + 1
    }

    fn range_of(&self, rank: Rank) -> usize {
        self.0.partition_point(|cut| *cut <= rank)
    }

    /// From where, and up to where.
    fn bounds(&self, range: usize) -> (Option<Rank>, Option<Rank>) {
        let from = range.checked_sub(1).and_then(|before| self.0.get(before));
        (from.copied(), self.0.get(range).copied())
    }
}

/// What a thread has met of a round.
struct Met<'r> {
    /// By range.
    committed: Vec<Vec<Ranked<'r>>>,
    others: Vec<(Lsn, Entry<'r>)>,
}

impl Proxy {
    /// Replays a round of stretches of the log after a crash: the more at once, the more operations share a page and the fewer are posted.
    /// Stretches come in the order of the log and without gaps; `log` is asked for operations of transactions too
    /// large for the side buffer.
    ///
    /// What is returned is what remains to be posted of the round. It goes into the next call as `before`, which posts what the next
    /// round has no newer versions of. After the last round an empty one posts all that is left. By all threads of the
    /// [host](crate::ProxyHost::threads).
    ///
    /// No transaction is active at recovery, so there is no horizon to wait for, and nothing is reported to the host
    /// before [`Proxy::finish_replay`], nor does the redo scan start point move.
    ///
    /// # Errors
    /// [`ProxyError`]; the same round can be given again, with the same `before`, which is empty after a success.
    pub fn replay<'r, S: RecordSource + Sync>(
        &self,
        before: &mut Pending<'_>,
        round: &'r [S],
        log: &dyn ReadBack,
    ) -> Result<Pending<'r>, ProxyError> {
        self.with_passes(|passes| {
            round.iter().for_each(|stretch| passes.eager_pass(stretch, Timestamp::MAX));
            self.dc.end_of_stable_log(passes.eager_at);
            self.apply_ready(passes, log)?;
            let cuts = Cuts::of(round, self.host.threads() * RANGES_PER_THREAD);
            let mut met = self.meet(passes, round, &cuts);
            let mut others: Vec<_> = met.iter_mut().flat_map(|met| met.others.drain(..)).collect();
            others.sort_unstable_by_key(|(lsn, _)| *lsn);
            others.into_iter().for_each(|(lsn, entry)| passes.keep(lsn, entry, Timestamp::MAX));
            passes.met = passes.met.max(passes.eager_at);
            self.apply_ready(passes, log)?;
            let pending = self.post_before(passes, before, met, &cuts)?;
            passes.replayed_to = round.first().map_or(passes.eager_at, RecordSource::start);
            // P5: all that these transactions have logged has been met.
            passes.outcomes.clear();
            passes.statistics.buffers_posted += round.len() as u64;
            before.ranges.drain(..).for_each(|posted| passes.spare.give(posted));
            Ok(pending)
        })
    }

    /// Collects what has committed, and notes all else.
    fn meet<'r, S: RecordSource + Sync>(
        &self,
        passes: &mut Passes,
        round: &'r [S],
        cuts: &Cuts,
    ) -> Vec<Met<'r>> {
        let Passes { spare, outcomes, delayed_at, .. } = passes;
        let spare = Mutex::new(spare);
        let met = Mutex::new(Vec::new());
        let next = AtomicUsize::new(0);
        self.host.on_threads(&|| {
            let committed = {
                let mut spare = lock(&spare);
                (0..cuts.ranges()).map(|_| spare.take()).collect()
            };
            let mut own = Met { committed, others: Vec::new() };
            // Relaxed: what a buffer holds does not depend on who has taken another.
            while let Some(buffer) = round.get(next.fetch_add(1, Ordering::Relaxed)) {
                // What is next is mostly of the same transaction.
                let mut last = None;
                let _: ControlFlow<()> = buffer.visit(|lsn, entry| {
                    match entry {
                        Entry::Update { .. } if lsn < *delayed_at => {}
                        Entry::Update { transaction, table, key, value } => {
                            let outcome = match last {
                                Some((same, outcome)) if same == transaction => outcome,
                                _ => outcomes.committed_at(transaction),
                            };
                            last = Some((transaction, outcome));
                            match outcome {
                                Some(timestamp) => {
                                    let ranked = Ranked::new(Operation { table, key, value, timestamp, lsn });
                                    own.committed[cuts.range_of(ranked.rank())].push(ranked);
                                }
                                None => own.others.push((lsn, entry)),
                            }
                        }
                        Entry::Commit { .. } | Entry::Other => {}
                        _ => own.others.push((lsn, entry)),
                    }
                    ControlFlow::Continue(())
                });
            }
            lock(&met).push(own);
        });
        met.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sorts what has been met, and posts what of `before` it does not supersede.
    fn post_before<'r>(
        &self,
        passes: &mut Passes,
        before: &Pending<'_>,
        met: Vec<Met<'r>>,
        cuts: &Cuts,
    ) -> Result<Pending<'r>, ProxyError> {
        let mut ranges: Vec<Vec<_>> = (0..cuts.ranges()).map(|_| Vec::new()).collect();
        for met in met {
            ranges.iter_mut().zip(met.committed).for_each(|(range, committed)| range.push(committed));
        }
        // What a range has become is in the place of what it was.
        let ranges: Vec<_> = ranges.into_iter().map(|range| Mutex::new((range, None))).collect();
        let spare = Mutex::new(&mut passes.spare);
        let next = AtomicUsize::new(0);
        self.host.on_threads(&|| {
            let mut places = Vec::new();
            loop {
                // Relaxed: what a range holds does not depend on who has taken another.
                let range = next.fetch_add(1, Ordering::Relaxed);
                let Some(job) = ranges.get(range) else { return };
                let mut job = lock(job);
                let mut counted = ProxyStatistics::default();
                let newest = newest_of(std::mem::take(&mut job.0), &mut places, &spare, &mut counted);
                let (from, until) = cuts.bounds(range);
                let older = before.between(from, until);
                let posted = post(not_in(&newest, older), &*self.dc, &mut counted);
                job.1 = Some((newest, counted, posted));
            }
        });
        let mut pending = Pending::default();
        let mut outcome = Ok(());
        let mut posted_or_superseded = 0;
        for range in ranges {
            let (_, done) = range.into_inner().unwrap_or_else(PoisonError::into_inner);
            let (newest, counted, posted) = done.expect("each range is some thread's");
            outcome = outcome.and(posted);
            let statistics = &mut passes.statistics;
            statistics.batches += counted.batches;
            statistics.operations_posted += counted.operations_posted;
            statistics.operations_superseded += counted.operations_superseded;
            posted_or_superseded += counted.operations_posted;
            pending.ranges.push(newest);
        }
        outcome?;
        let older = before.ranges.iter().map(|range| range.len() as u64).sum::<u64>();
        passes.statistics.operations_superseded += older - posted_or_superseded;
        Ok(pending)
    }
}

/// Of each key the newest operation, in order. The memory of `met` is kept.
fn newest_of<'r>(
    met: Vec<Vec<Ranked<'r>>>,
    places: &mut Vec<Place>,
    spare: &Mutex<&mut Spare>,
    counted: &mut ProxyStatistics,
) -> Vec<Ranked<'r>> {
    // As if they were one.
    let all = || met.iter().flatten();
    let at = |mut index: usize| {
        let mut parts = met.iter();
        loop {
            let part = parts.next().expect("an index of one of them");
            match part.get(index) {
                Some(ranked) => return ranked,
                None => index -= part.len(),
            }
        }
    };
    places.clear();
    places.extend((0..).zip(all()).map(|(index, ranked)| Place::new(ranked.rank(), index)));
    counted.operations_superseded += places.len() as u64;
    sort(places, |index| &at(index).operation);
    counted.operations_superseded -= places.len() as u64;
    let mut newest = lock(spare).take();
    newest.extend(places.iter().map(|place| *at(place.index())));
    met.into_iter().for_each(|part| lock(spare).give(part));
    newest
}

/// Of `older` those operations that are not superseded by one in `newer`. Both are in order and have one operation of a key at most.
fn not_in<'a>(
    newer: &[Ranked<'_>],
    older: impl Iterator<Item = &'a Ranked<'a>>,
) -> impl Iterator<Item = Operation<'a>> {
    let mut newer = newer.iter().peekable();
    older.filter_map(move |older| {
        while newer.next_if(|newer| newer.order(older).is_lt()).is_some() {}
        let same = newer.peek().filter(|newer| newer.order(older).is_eq());
        let is_superseded = same.is_some_and(|newer| is_newer(&newer.operation, &older.operation));
        (!is_superseded).then_some(older.operation)
    })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
