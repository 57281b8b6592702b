//! What the workload does: an action for every number, each of them one commit, and the state that it leaves.

use deuteron::device::simulated::Random;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

pub type Rows = BTreeMap<Vec<u8>, Arc<[u8]>>;
/// The tables by their names. Copies share what they have in common.
pub type State = BTreeMap<String, Arc<Rows>>;

/// A table that always is.
pub const LASTING: [&str; 2] = ["zero", "one"];
/// One that is loaded from outside, and dropped again.
const LOADED: &str = "loaded";
const KEYS: u64 = 200;
/// How often the tables beside the lasting ones come and go.
const PERIOD: u64 = 64;

/// One change within a transaction.
#[derive(Clone, Debug)]
pub enum Change {
    Put {
        table: String,
        key: Vec<u8>,
        value: Arc<[u8]>,
    },
    Delete {
        table: String,
        key: Vec<u8>,
    },
    DeleteRange {
        table: String,
        keys: Range<Vec<u8>>,
    },
    /// What is done twice, or not at all, shows in the sum.
    Add {
        table: String,
        key: Vec<u8>,
        delta: i64,
    },
    Append {
        table: String,
        key: Vec<u8>,
        bytes: Vec<u8>,
    },
    /// Done, and taken back by a savepoint.
    Undone(Vec<Change>),
}

/// What is done under a number.
#[derive(Clone, Debug)]
pub enum Action {
    Transaction(Vec<Change>),
    Create(String),
    Drop(String),
    /// A table with its records, past the log.
    Load(String, Vec<(Vec<u8>, Arc<[u8]>)>),
}

fn key(number: u64) -> Vec<u8> {
    format!("key/{number:03}").into_bytes()
}

fn value(random: &mut Random, number: u64) -> Arc<[u8]> {
    let length = match random.below(24) {
        // On pages of its own, in pieces in the log.
        0 => 3000 + random.below(9000),
        1..4 => 1500,
        _ => random.below(120),
    };
    let mut value = number.to_be_bytes().to_vec();
    value.resize(8 + length as usize, number as u8);
    value.into()
}

/// The table that comes and goes in the period of a number, while it is there.
fn passing(number: u64) -> Option<String> {
    (11..50).contains(&(number % PERIOD)).then(|| format!("passing {}", number / PERIOD))
}

fn change(random: &mut Random, number: u64, depth: u32) -> Change {
    let table = match passing(number) {
        Some(passing) if random.below(3) == 0 => passing,
        _ => LASTING[random.below(2) as usize].to_owned(),
    };
    let key_number = random.below(KEYS);
    let key = key(key_number);
    match random.below(24) {
        0..5 => Change::Delete { table, key },
        5 => {
            let end = (key_number + random.below(KEYS / 8)).min(KEYS - 1);
            Change::DeleteRange { table, keys: key..self::key(end) }
        }
        6 | 7 if depth == 0 => {
            Change::Undone((0..1 + random.below(4)).map(|_| change(random, number, depth + 1)).collect())
        }
        _ => Change::Put { table, key, value: value(random, number) },
    }
}

/// What is done under `number`.
pub fn action(number: u64) -> Action {
    let mut random = Random::new(number);
    match (number % PERIOD, number / PERIOD % 2) {
        (10, _) => return Action::Create(format!("passing {}", number / PERIOD)),
        (50, _) => return Action::Drop(format!("passing {}", number / PERIOD)),
        (20, 0) => {
            let rows = (0..150).map(|row| (key(row), value(&mut random, number))).collect();
            return Action::Load(LOADED.to_owned(), rows);
        }
        (40, 0) => return Action::Drop(LOADED.to_owned()),
        _ => {}
    }
    let mut changes: Vec<Change> = (0..1 + random.below(6)).map(|_| change(&mut random, number, 0)).collect();
    changes.push(Change::Add { table: LASTING[0].into(), key: b"sum".into(), delta: number as i64 });
    if number.is_multiple_of(4) {
        let (table, key) = (LASTING[1].to_owned(), b"list".to_vec());
        changes.push(match number.is_multiple_of(256) {
            true => Change::Put { table, key, value: [].into() },
            false => Change::Append { table, key, bytes: vec![number as u8] },
        });
    }
    Action::Transaction(changes)
}

fn rows<'s>(state: &'s mut State, table: &str) -> &'s mut Rows {
    Arc::make_mut(state.get_mut(table).expect("the script writes to tables that are there"))
}

fn apply_change(change: &Change, state: &mut State) {
    match change {
        Change::Put { table, key, value } => drop(rows(state, table).insert(key.clone(), Arc::clone(value))),
        Change::Delete { table, key } => drop(rows(state, table).remove(key)),
        Change::DeleteRange { table, keys } => rows(state, table).retain(|key, _| !keys.contains(key)),
        Change::Add { table, key, delta } => {
            let old = rows(state, table).get(key).map_or(0, |old| {
                i64::from_le_bytes(old[..].try_into().expect("what is added to is an integer"))
            });
            rows(state, table).insert(key.clone(), (old + delta).to_le_bytes().to_vec().into());
        }
        Change::Append { table, key, bytes } => {
            let old = rows(state, table).get(key).map_or(&[][..], |old| old);
            let new = [old, bytes].concat().into();
            rows(state, table).insert(key.clone(), new);
        }
        Change::Undone(_) => {}
    }
}

/// The state after an action.
pub fn apply(action: &Action, state: &mut State) {
    match action {
        Action::Transaction(changes) => changes.iter().for_each(|change| apply_change(change, state)),
        Action::Create(table) => drop(state.insert(table.clone(), Arc::default())),
        Action::Drop(table) => drop(state.remove(table)),
        Action::Load(table, rows) => {
            drop(state.insert(table.clone(), Arc::new(rows.iter().cloned().collect())))
        }
    }
}

/// The state after the first `k` actions, for every `k` up to `count`. The lasting tables are there from the beginning.
pub fn states(count: u64) -> Vec<State> {
    let mut state: State = LASTING.map(|table| (table.to_owned(), Arc::default())).into();
    let mut states = vec![state.clone()];
    for number in 0..count {
        apply(&action(number), &mut state);
        states.push(state.clone());
    }
    states
}

/// What differs between two states, in words; only the first difference.
pub fn difference(expected: &State, found: &State) -> Option<String> {
    for name in expected.keys().chain(found.keys()) {
        let (Some(expected), Some(found)) = (expected.get(name), found.get(name)) else {
            return Some(format!("the table {name} is in one only"));
        };
        for key in expected.keys().chain(found.keys()) {
            let (expected, found) = (expected.get(key), found.get(key));
            if expected != found {
                let shown = |value: Option<&Arc<[u8]>>| match value {
                    Some(value) => format!("{} bytes, {:?}", value.len(), &value[..value.len().min(9)]),
                    None => "nothing".to_owned(),
                };
                let key = key.escape_ascii();
                return Some(format!("{key} in {name}: {} instead of {}", shown(found), shown(expected)));
            }
        }
    }
    None
}
