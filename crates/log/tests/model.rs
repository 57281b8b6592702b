//! Random operations against a list: what is read, lent and recovered is what was appended, and a crash loses only a
//! suffix that nobody was told to be durable.
#![cfg(not(loom))]

mod harness;

use deuteron_contract::Lsn;
use deuteron_device::{CrashPolicy, SimulatedDisk};
use deuteron_log::{AppendError, LogOptions};
use harness::{Owned, Pair, upsert};
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Upsert(usize),
    Delete,
    Commit,
    CancelCommit,
    /// With updates of so many bytes, eights of bytes that are reserved for nothing, and whether the commit is cancelled.
    CommitBehind(Vec<usize>, usize, bool),
    Abort,
    Ceiling,
    Flush,
    FlushAll,
    Proxy {
        release: bool,
    },
    Read(prop::sample::Index),
    ReadStable(prop::sample::Index),
    Truncate,
    /// The process dies and is started again.
    Reopen,
    Crash(CrashPolicy),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..300usize).prop_map(Step::Upsert),
        2 => (0..=16_292usize).prop_map(Step::Upsert),
        2 => Just(Step::Delete),
        4 => Just(Step::Commit),
        1 => Just(Step::CancelCommit),
        4 => (prop::collection::vec(0..300usize, 0..4), 0..3usize, any::<bool>())
            .prop_map(|(updates, spare, cancelled)| Step::CommitBehind(updates, spare, cancelled)),
        1 => Just(Step::Abort),
        1 => Just(Step::Ceiling),
        3 => Just(Step::Flush),
        2 => Just(Step::FlushAll),
        6 => any::<bool>().prop_map(|release| Step::Proxy { release }),
        4 => any::<prop::sample::Index>().prop_map(Step::Read),
        1 => any::<prop::sample::Index>().prop_map(Step::ReadStable),
        1 => Just(Step::Truncate),
        1 => Just(Step::Reopen),
        1 => prop_oneof![Just(CrashPolicy::LoseAll), Just(CrashPolicy::KeepAll), Just(CrashPolicy::Random)]
            .prop_map(Step::Crash),
    ]
}

/// Appends with patience: what is in the way is written and released. With nothing left in the way there must be room.
fn insist(pair: &mut Pair, append: &dyn Fn(&mut Pair) -> Result<Lsn, AppendError>) {
    for _ in 0..200 {
        match append(pair) {
            Ok(_) => return,
            Err(AppendError::Full) => {
                pair.flush_step().unwrap();
                pair.proxy_step(true);
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("no progress: {:?}", pair.log.statistics());
}

fn run(seed: u64, steps: Vec<Step>) {
    let disk = SimulatedDisk::new(seed);
    let options = LogOptions::tiny_for_tests();
    let mut pair = Pair::create(Arc::new(disk.directory()), options).unwrap();
    let mut truncated = Lsn(0);
    for (number, step) in steps.into_iter().enumerate() {
        let number = number as u64;
        let pick = |pair: &Pair, index: prop::sample::Index| {
            let lsns: Vec<u64> = pair.model.keys().copied().collect();
            if lsns.is_empty() { None } else { Some(*index.get(&lsns)) }
        };
        match step {
            Step::Upsert(bytes) => insist(&mut pair, &|pair| pair.append(upsert(number, bytes))),
            Step::Delete => insist(&mut pair, &|pair| pair.append(Owned::Delete(number, vec![7; 9]))),
            Step::Commit => insist(&mut pair, &|pair| pair.commit(number)),
            Step::CancelCommit => {
                let _ = pair.log.reserve_commit();
            }
            Step::CommitBehind(updates, spare, cancelled) => insist(&mut pair, &|pair| {
                let updates = updates.iter().map(|bytes| upsert(number, *bytes)).collect();
                pair.commit_behind(updates, spare * 8, (!cancelled).then_some(number))
            }),
            Step::Abort => insist(&mut pair, &|pair| pair.append(Owned::Abort(number))),
            Step::Ceiling => insist(&mut pair, &|pair| pair.append(Owned::Ceiling(number))),
            Step::Flush => {
                pair.log.request_flush(pair.log.tail_lsn());
                pair.flush_step().unwrap();
            }
            Step::FlushAll => {
                pair.flush_all().unwrap();
                assert_eq!(pair.model.range(pair.log.stable_lsn().0..).count(), 0);
            }
            Step::Proxy { release } => {
                pair.proxy_step(release);
            }
            Step::Read(index) => {
                if let Some(lsn) = pick(&pair, index).filter(|&lsn| lsn >= pair.opened_at.0) {
                    pair.check_read(lsn);
                }
            }
            Step::ReadStable(index) => {
                if let Some(lsn) = pick(&pair, index) {
                    pair.check_read_stable(lsn);
                }
            }
            Step::Truncate => {
                truncated = pair.released;
                pair.log.truncate(truncated).unwrap();
            }
            Step::Reopen | Step::Crash(_) => {
                let Pair { log, options, model, acknowledged, .. } = pair;
                drop(log);
                let directory = match step {
                    Step::Crash(policy) => disk.crash(policy),
                    _ => disk.directory(),
                };
                pair = Pair::open(Arc::new(directory), options, model, acknowledged, truncated).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn log_is_what_was_appended(seed: u64, steps in prop::collection::vec(step(), 1..400)) {
        run(seed, steps);
    }
}
