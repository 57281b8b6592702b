//! Tiny histories, each held against all orders in which its transactions could have run.
//!
//! Transactions run one after the other on a map, begin before they run and end after, and then the history is damaged in one
//! place. An order that explains a history is found by trying them all, with and without each transaction of unknown outcome. The
//! checker may never see an anomaly where there is such an order; where versions are known (lists that are read, and registers
//! that are changed by whoever has read them) it must see one where there is none.

mod support;

use deuteron_history::{Level, Operation, Outcome, Range, Seen, Transaction, Value};
use proptest::prelude::*;
use std::collections::BTreeMap;
use support::{T, report};

/// A key's value: a register's as a list of one.
type Map = BTreeMap<String, Seen>;

fn run(map: &mut Map, operation: &Operation) -> bool {
    let get = |map: &Map, key: &str| map.get(key).cloned().unwrap_or(Seen::Nothing);
    let same = |one: &Seen, other: &Seen| {
        let list = |seen: &Seen| match seen {
            Seen::Nothing => Seen::List(Vec::new()),
            other => other.clone(),
        };
        list(one) == list(other)
    };
    match operation {
        Operation::Append(key, value) => {
            let mut list = match get(map, key) {
                Seen::List(list) => list,
                _ => Vec::new(),
            };
            list.push(value.clone());
            map.insert(key.clone(), Seen::List(list));
            true
        }
        Operation::Write(key, value) => {
            match value {
                Some(value) => map.insert(key.clone(), Seen::Value(value.clone())),
                None => map.remove(key),
            };
            true
        }
        Operation::Read(key, seen) => same(&get(map, key), seen),
        Operation::Range(Range { from, to, found }) => {
            let there: BTreeMap<_, _> =
                map.range(from.clone()..to.clone()).map(|(k, v)| (k.clone(), v.clone())).collect();
            there == found.iter().cloned().collect()
        }
        Operation::Change(_) => true,
    }
}

/// Whether the transactions, those of unknown outcome left out as one likes, could have run in some order.
fn is_explained(history: &[Transaction], strict: bool) -> bool {
    let happened: Vec<&Transaction> = history.iter().filter(|t| t.outcome != Outcome::Aborted).collect();
    search(&happened, &mut vec![false; happened.len()], &Map::new(), strict)
}

fn search(history: &[&Transaction], done: &mut [bool], map: &Map, strict: bool) -> bool {
    let open = |index: usize, done: &[bool]| !done[index] && history[index].outcome == Outcome::Committed;
    if (0..history.len()).all(|index| !open(index, done)) {
        return true;
    }
    for next in 0..history.len() {
        // Nobody who had ended before it began may be left behind.
        let too_early = (0..history.len()).any(|other| {
            strict && open(other, done) && other != next && history[other].end < history[next].begin
        });
        if done[next] || too_early {
            continue;
        }
        let mut after = map.clone();
        if history[next].operations.iter().all(|operation| run(&mut after, operation)) {
            done[next] = true;
            if search(history, done, &after, strict) {
                return true;
            }
            done[next] = false;
        }
    }
    false
}

/// An operation without what it sees: kind, key.
type Plan = (u8, u8);

const KEYS: [&str; 3] = ["a", "b", "c"];

/// Runs the plans one after the other; each transaction begins and ends around its place. `blind`: registers are written by those,
/// too, who have not read them, and ranges are read.
fn serial(plans: &[(Vec<Plan>, u64, u64, u8)], blind: bool) -> Vec<Transaction> {
    let mut map = Map::new();
    let mut value = 0;
    let mut transactions = Vec::new();
    for (place, (plan, early, late, outcome)) in (1u64..).zip(plans) {
        let mut operations = Vec::new();
        let mut after = map.clone();
        let aborted = *outcome == 0;
        for &(kind, key) in plan {
            let key = &KEYS[key as usize % KEYS.len()];
            let (register, list) = (format!("r{key}"), format!("l{key}"));
            value += 1;
            let mut steps = Vec::new();
            let read = |map: &Map, key: &String| {
                Operation::Read(key.clone(), map.get(key).cloned().unwrap_or(Seen::Nothing))
            };
            match kind % 6 {
                0 => steps.push(Operation::Append(list, Value::Integer(value))),
                1 => steps.push(read(&after, &list)),
                2 => steps.push(read(&after, &register)),
                3 if blind => steps.push(Operation::Write(register, Some(Value::Integer(value)))),
                3 | 4 => {
                    let wrote = operations
                        .iter()
                        .any(|operation| matches!(operation, Operation::Write(key, _) if *key == register));
                    if !wrote {
                        steps.push(read(&after, &register));
                    }
                    steps.push(Operation::Write(register, Some(Value::Integer(value))));
                }
                _ => {
                    let found = after
                        .range("ra".to_owned().."rc".to_owned())
                        .map(|(k, v)| (k.clone(), v.clone()))
                        .collect();
                    steps.push(Operation::Range(Range { from: "ra".into(), to: "rc".into(), found }));
                }
            }
            for step in steps {
                assert!(run(&mut after, &step), "what was read is there");
                operations.push(step);
            }
        }
        if !aborted {
            map = after;
        }
        let outcome = match outcome {
            0 => Outcome::Aborted,
            1 => Outcome::Unknown,
            _ => Outcome::Committed,
        };
        let (begin, end) = ((10 * place).saturating_sub(*early), 10 * place + late);
        transactions.push(Transaction { process: place, begin, end, outcome, operations });
    }
    if !blind {
        // Somebody who reads all lists at last: their whole order is known.
        let operations = KEYS
            .iter()
            .map(|key| format!("l{key}"))
            .map(|key| Operation::Read(key.clone(), map.get(&key).cloned().unwrap_or(Seen::Nothing)))
            .collect();
        transactions.push(Transaction {
            process: 0,
            begin: 1000,
            end: 1001,
            outcome: Outcome::Committed,
            operations,
        });
    }
    transactions
}

/// Damages a history in one place; what is chosen may not be there to be damaged.
fn damage(history: &mut [Transaction], kind: u8, first: usize, second: usize) {
    let reads: Vec<(usize, usize)> = (0..history.len())
        .flat_map(|t| (0..history[t].operations.len()).map(move |o| (t, o)))
        .filter(|&(t, o)| matches!(history[t].operations[o], Operation::Read(..)))
        .collect();
    match kind % 5 {
        // Two reads are swapped.
        0 if !reads.is_empty() => {
            let (one, other) = (reads[first % reads.len()], reads[second % reads.len()]);
            let seen = |history: &[Transaction], (t, o): (usize, usize)| match &history[t].operations[o] {
                Operation::Read(key, seen) => (key.clone(), seen.clone()),
                _ => unreachable!("only reads were chosen"),
            };
            let ((key, seen_one), (other_key, seen_other)) = (seen(history, one), seen(history, other));
            if key.as_bytes()[0] == other_key.as_bytes()[0] {
                history[one.0].operations[one.1] = Operation::Read(key, seen_other);
                history[other.0].operations[other.1] = Operation::Read(other_key, seen_one);
            }
        }
        // A read finds less.
        1 if !reads.is_empty() => {
            let (t, o) = reads[first % reads.len()];
            if let Operation::Read(_, seen) = &mut history[t].operations[o] {
                match seen {
                    Seen::List(list) if list.len() > 1 => drop(list.remove(second % list.len())),
                    seen => *seen = Seen::Nothing,
                }
            }
        }
        // An operation is gone.
        2 => {
            let t = first % history.len();
            let operations = &mut history[t].operations;
            if !operations.is_empty() {
                operations.remove(second % operations.len());
            }
        }
        // A transaction is held to have run at another time.
        3 => {
            let (one, other) = (first % history.len(), second % history.len());
            let (begin, end) = (history[one].begin, history[one].end);
            (history[one].begin, history[one].end) = (history[other].begin, history[other].end);
            (history[other].begin, history[other].end) = (begin, end);
        }
        // Nobody knows, or it aborted.
        _ => {
            let outcomes = [Outcome::Unknown, Outcome::Aborted];
            history[first % history.len()].outcome = outcomes[second % 2];
        }
    }
}

fn found(history: &[Transaction], level: Level) -> Vec<String> {
    let history: Vec<T> = history.iter().cloned().map(T).collect();
    report(level, &history).anomalies.iter().map(ToString::to_string).collect()
}

fn plans() -> impl Strategy<Value = Vec<(Vec<Plan>, u64, u64, u8)>> {
    let plan = prop::collection::vec((0..6u8, 0..3u8), 1..4);
    prop::collection::vec((plan, 0..25u64, 0..25u64, 0..12u8), 2..6)
}

/// So many histories as `DEUTERON_EFFORT` says times 2000.
fn config() -> ProptestConfig {
    let effort = std::env::var("DEUTERON_EFFORT").ok().and_then(|effort| effort.parse().ok()).unwrap_or(1u32);
    ProptestConfig {
        cases: 2000 * effort,
        max_shrink_iters: 20_000,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn a_serial_history_has_no_anomaly(plans in plans(), blind in any::<bool>()) {
        let history = serial(&plans, blind);
        prop_assert!(is_explained(&history, true));
        for level in Level::ALL {
            prop_assert_eq!(found(&history, level), Vec::<String>::new(), "{}", level);
        }
    }

    #[test]
    fn what_an_order_explains_is_no_anomaly(
        plans in plans(), blind in any::<bool>(), kind in 0..5u8, first in 0..100usize, second in 0..100usize,
    ) {
        let mut history = serial(&plans, blind);
        damage(&mut history, kind, first, second);
        for (level, strict) in [(Level::StrictSerializable, true), (Level::Serializable, false)] {
            if is_explained(&history, strict) {
                prop_assert_eq!(found(&history, level), Vec::<String>::new(), "{}", level);
            }
        }
    }

    #[test]
    fn what_no_order_explains_is_an_anomaly_where_versions_are_known(
        plans in plans(), kind in 0..5u8, first in 0..100usize, second in 0..100usize,
    ) {
        let mut history = serial(&plans, false);
        damage(&mut history, kind, first, second);
        for (level, strict) in [(Level::StrictSerializable, true), (Level::Serializable, false)] {
            if !is_explained(&history, strict) {
                prop_assert!(!found(&history, level).is_empty(), "{}: nothing found", level);
            }
        }
    }
}
