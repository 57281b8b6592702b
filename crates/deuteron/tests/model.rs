//! The whole store against a `BTreeMap`: random transactions, scans, savepoints, aborts, checkpoints, background rounds, and
//! reopening, on tiny buffers and pages.

use deuteron::device::MemoryDirectory;
use deuteron::{Db, Error, Options, Table};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Action {
    Put(u8, Vec<u8>),
    Delete(u8),
    Get(u8),
    Scan { from: u8, to: u8, reverse: bool },
    Savepoint,
    Rollback(prop::sample::Index),
}

#[derive(Clone, Debug)]
enum Round {
    Transaction { actions: Vec<Action>, commit: bool },
    Step,
    Checkpoint,
    Reopen { cleanly: bool },
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => (any::<u8>(), prop::collection::vec(any::<u8>(), 0..200)).prop_map(|(key, value)| Action::Put(key, value)),
        2 => any::<u8>().prop_map(Action::Delete),
        2 => any::<u8>().prop_map(Action::Get),
        1 => (any::<u8>(), any::<u8>(), any::<bool>()).prop_map(|(from, to, reverse)| Action::Scan { from, to, reverse }),
        1 => Just(Action::Savepoint),
        1 => any::<prop::sample::Index>().prop_map(Action::Rollback),
    ]
}

fn round() -> impl Strategy<Value = Round> {
    prop_oneof![
        12 => (prop::collection::vec(action(), 1..12), prop::bool::weighted(0.85))
            .prop_map(|(actions, commit)| Round::Transaction { actions, commit }),
        2 => Just(Round::Step),
        1 => Just(Round::Checkpoint),
        1 => any::<bool>().prop_map(|cleanly| Round::Reopen { cleanly }),
    ]
}

/// Keys share a prefix, so that pages do as well.
fn key(number: u8) -> Vec<u8> {
    format!("key/{number:03}").into_bytes()
}

fn apply(db: &Db, table: &Table, actions: &[Action], commit: bool, model: &Model) -> Result<Model, Error> {
    let mut expected = model.clone();
    let mut tx = db.begin();
    let mut savepoints = Vec::new();
    for action in actions {
        match action {
            Action::Put(number, value) => {
                tx.put(table, &key(*number), value)?;
                expected.insert(key(*number), value.clone());
            }
            Action::Delete(number) => {
                tx.delete(table, &key(*number))?;
                expected.remove(&key(*number));
            }
            Action::Savepoint => savepoints.push((tx.savepoint()?, expected.clone())),
            Action::Rollback(_) if savepoints.is_empty() => {}
            Action::Rollback(index) => {
                savepoints.truncate(index.index(savepoints.len()) + 1);
                if let Some((savepoint, then)) = savepoints.last() {
                    tx.rollback_to(savepoint)?;
                    expected = then.clone();
                }
            }
            Action::Get(number) => {
                assert_eq!(tx.get(table, &key(*number))?.as_ref(), expected.get(&key(*number)));
            }
            Action::Scan { from, to, reverse } => {
                let bounds = (Bound::Included(key(*from)), Bound::Excluded(key(*to)));
                let scan = tx.scan(table, bounds.clone())?;
                let found: Vec<_> = if *reverse {
                    scan.rev().collect::<Result<_, _>>()?
                } else {
                    scan.collect::<Result<_, _>>()?
                };
                // Crossing bounds panic in a BTreeMap and are empty in the store.
                let mut wanted: Vec<_> = if from < to {
                    expected
                        .range::<Vec<u8>, _>(bounds)
                        .map(|(key, value)| (key.clone(), value.clone()))
                        .collect()
                } else {
                    Vec::new()
                };
                if *reverse {
                    wanted.reverse();
                }
                assert_eq!(found, wanted);
            }
        }
    }
    if commit {
        tx.commit()?;
        Ok(expected)
    } else {
        tx.abort();
        Ok(model.clone())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn the_store_behaves_as_a_map(rounds in prop::collection::vec(round(), 1..60)) {
        let directory = Arc::new(MemoryDirectory::new());
        let open = || Options::tiny_for_tests().open_in(Arc::<MemoryDirectory>::clone(&directory)).expect("opens");
        let mut db = open();
        let mut table = db.table("t").expect("creates");
        let mut model = Model::new();
        for round in rounds {
            match round {
                Round::Transaction { actions, commit } => {
                    model = apply(&db, &table, &actions, commit, &model).expect("one transaction at a time");
                }
                Round::Step => drop(db.step().expect("steps")),
                Round::Checkpoint => db.checkpoint().expect("takes a checkpoint"),
                Round::Reopen { cleanly } => {
                    if cleanly {
                        db.close().expect("closes");
                    } else {
                        drop(db);
                    }
                    db = open();
                    table = db.table("t").expect("is there");
                }
            }
        }
        let all: Model = db.transact(|tx| tx.scan(&table, ..)?.collect()).expect("scans");
        prop_assert_eq!(all, model);
    }
}
