//! The Hermitage anomalies (Kleppmann's test suite after Adya's phenomena), all ten, at every isolation level.
//!
//! Each scenario plays an anomaly's schedule step by step on one thread and says whether it *occurred*: whether what was
//! read and what was committed is what the anomaly needs. The table of what is expected is at the end; the test prints
//! the table of what was found.
//!
//! A database that waits would block at some steps; here whoever comes too late conflicts at once, and the schedule goes
//! on with the others.

use deuteron::device::MemoryDirectory;
use deuteron::{Db, Error, Isolation, Options, Table, Transaction, TransactionOptions};
use std::sync::Arc;

const LEVELS: [Isolation; 3] = [Isolation::ReadCommitted, Isolation::Snapshot, Isolation::Serializable];

/// A database with the records `1` = 10 and `2` = 20.
struct World {
    db: Db,
    table: Table,
    isolation: Isolation,
}

/// A transaction that goes on without complaint after a conflict, doing nothing.
struct Actor<'w> {
    world: &'w World,
    transaction: Option<Transaction>,
}

impl World {
    fn new(isolation: Isolation) -> World {
        let db = Options::tiny_for_tests().open_in(Arc::new(MemoryDirectory::new())).expect("opens");
        let table = db.table("test").expect("creates a table");
        db.transact(|tx| {
            tx.put(&table, b"1", b"10")?;
            tx.put(&table, b"2", b"20")
        })
        .expect("commits");
        World { db, table, isolation }
    }

    fn begin(&self) -> Actor<'_> {
        let options = TransactionOptions::new().isolation(self.isolation);
        Actor { world: self, transaction: Some(self.db.begin_with(options).expect("is open")) }
    }

    /// What is there in the end.
    fn all(&self) -> Vec<(String, u32)> {
        self.begin().all().expect("nothing is in its way")
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn number(bytes: &[u8]) -> u32 {
    text(bytes).parse().expect("a number")
}

impl Actor<'_> {
    /// Runs a step; `None` if the transaction is over, or ends here in a conflict.
    fn step<T>(&mut self, step: impl FnOnce(&mut Transaction, &Table) -> Result<T, Error>) -> Option<T> {
        match step(self.transaction.as_mut()?, &self.world.table) {
            Ok(value) => Some(value),
            Err(error) => {
                assert!(error.is_retryable(), "{error}");
                self.transaction = None;
                None
            }
        }
    }

    fn get(&mut self, key: &str) -> Option<u32> {
        self.step(|tx, table| tx.get(table, key.as_bytes())).map(|value| number(&value.expect("it exists")))
    }

    fn put(&mut self, key: &str, value: u32) -> bool {
        self.step(|tx, table| tx.put(table, key.as_bytes(), value.to_string().as_bytes())).is_some()
    }

    fn delete(&mut self, key: &str) -> bool {
        self.step(|tx, table| tx.delete(table, key.as_bytes())).is_some()
    }

    fn all(&mut self) -> Option<Vec<(String, u32)>> {
        self.step(|tx, table| {
            tx.scan(table, ..)?
                .map(|entry| entry.map(|(key, value)| (text(&key), number(&value))))
                .collect::<Result<Vec<_>, _>>()
        })
    }

    /// The keys of the records whose values are divisible by `divisor`.
    fn divisible_by(&mut self, divisor: u32) -> Option<Vec<String>> {
        let all = self.all()?;
        Some(all.into_iter().filter(|(_, value)| value % divisor == 0).map(|(key, _)| key).collect())
    }

    fn commit(mut self) -> bool {
        match self.transaction.take().map(Transaction::commit) {
            None => false,
            Some(Ok(())) => true,
            Some(Err(error)) => {
                assert!(error.is_retryable(), "{error}");
                false
            }
        }
    }

    fn abort(self) {}
}

// ---- the ten --------------------------------------------------------------------------------------------------

/// Write cycles: two transactions write both records, and each has the last word on one of them.
fn g0(world: &World) -> bool {
    let (mut one, mut two) = (world.begin(), world.begin());
    one.put("1", 11);
    two.put("1", 12);
    one.put("2", 21);
    let first = one.commit();
    two.put("2", 22);
    let second = two.commit();
    assert!(first || second, "somebody gets through");
    let found: Vec<u32> = world.all().into_iter().map(|(_, value)| value).collect();
    found != [11, 21] && found != [12, 22]
}

/// Aborted reads.
fn g1a(world: &World) -> bool {
    let (mut one, mut two) = (world.begin(), world.begin());
    one.put("1", 101);
    let early = two.get("1");
    one.abort();
    let late = two.get("1");
    two.commit();
    early == Some(101) || late == Some(101)
}

/// Intermediate reads.
fn g1b(world: &World) -> bool {
    let (mut one, mut two) = (world.begin(), world.begin());
    one.put("1", 101);
    let early = two.get("1");
    one.put("1", 11);
    one.commit();
    let late = two.get("1");
    two.commit();
    early == Some(101) || late == Some(101)
}

/// Circular information flow: each reads what the other writes.
fn g1c(world: &World) -> bool {
    let (mut one, mut two) = (world.begin(), world.begin());
    one.put("1", 11);
    two.put("2", 22);
    let first = one.get("2");
    let second = two.get("1");
    let both = one.commit() & two.commit();
    both && first == Some(22) && second == Some(11)
}

/// Observed transaction vanishes: its writes are seen, then older ones are.
fn otv(world: &World) -> bool {
    let (mut one, mut two, mut three) = (world.begin(), world.begin(), world.begin());
    one.put("1", 11);
    one.put("2", 19);
    two.put("1", 12);
    assert!(one.commit());
    let mut seen = vec![three.get("1")];
    two.put("2", 18);
    seen.push(three.get("2"));
    two.commit();
    seen.push(three.get("2"));
    seen.push(three.get("1"));
    three.commit();
    // Having seen the first, it must not see what was before it; having seen the second, not the first.
    let rank = |value: Option<u32>| match value {
        Some(10 | 20) => 0,
        Some(11 | 19) => 1,
        _ => 2,
    };
    seen.windows(2).any(|pair| rank(pair[1]) < rank(pair[0]))
}

/// Predicate-many-preceders: a predicate that is read twice matches what was committed in between. `writes`: the second
/// time it decides on a write.
fn pmp(world: &World, writes: bool) -> bool {
    let (mut one, mut two) = (world.begin(), world.begin());
    if writes {
        // Whoever deletes what is 20 finds what has just become it.
        let before = one.divisible_by(20);
        two.put("1", 20);
        two.delete("2");
        assert!(two.commit());
        let now = one.divisible_by(20).unwrap_or_default();
        for key in &now {
            one.delete(key);
        }
        return one.commit() && before.is_some_and(|before| before != now);
    }
    let before = one.divisible_by(30);
    two.put("3", 30);
    assert!(two.commit());
    let now = one.divisible_by(3);
    one.commit();
    assert_eq!(before, Some(vec![]));
    now.is_some_and(|now| !now.is_empty())
}

/// Lost update.
fn p4(world: &World) -> bool {
    let (mut one, mut two) = (world.begin(), world.begin());
    let read = [one.get("1"), two.get("1")];
    one.put("1", 11);
    let first = one.commit();
    // A deposit of one on top of what was read.
    two.put("1", 11);
    let second = two.commit();
    assert!(first || second, "somebody gets through");
    read == [Some(10), Some(10)] && first && second
}

/// Single anti-dependency cycle, read skew: by keys, by predicates, and of a transaction that writes.
fn g_single(world: &World, kind: u32) -> bool {
    let (mut one, mut two) = (world.begin(), world.begin());
    match kind {
        0 => {
            let before = one.get("1");
            two.get("1");
            two.get("2");
            two.put("1", 12);
            two.put("2", 18);
            assert!(two.commit());
            let now = one.get("2");
            one.commit() && before == Some(10) && now == Some(18)
        }
        1 => {
            let before = one.divisible_by(5).map(|keys| keys.len());
            two.put("1", 12);
            assert!(two.commit());
            let now = one.divisible_by(3).map(|keys| keys.len());
            one.commit() && before == Some(2) && now == Some(1)
        }
        _ => {
            let before = one.get("1");
            two.get("1");
            two.get("2");
            two.put("1", 12);
            two.put("2", 18);
            assert!(two.commit());
            // Deletes what is 20, of which nothing is left.
            let deleted = one.get("2") == Some(20) && one.delete("2");
            let committed = one.commit();
            committed && before == Some(10) && !deleted
        }
    }
}

/// Anti-dependency cycle on items, write skew.
fn g2_item(world: &World) -> bool {
    let (mut one, mut two) = (world.begin(), world.begin());
    for actor in [&mut one, &mut two] {
        actor.get("1");
        actor.get("2");
    }
    one.put("1", 11);
    two.put("2", 21);
    one.commit() & two.commit()
}

/// Anti-dependency cycle on predicates; `readers`: Fekete's, in which one of three only reads.
fn g2(world: &World, fekete: bool) -> bool {
    let (mut one, mut two) = (world.begin(), world.begin());
    if fekete {
        one.all();
        two.get("2");
        two.put("2", 25);
        let second = two.commit();
        let mut three = world.begin();
        let seen = three.all();
        let third = three.commit();
        one.put("1", 0);
        let first = one.commit();
        let saw_only_the_second = seen.is_some_and(|all| all[0].1 == 10 && all[1].1 == 25);
        return first && second && third && saw_only_the_second;
    }
    assert_eq!(one.divisible_by(3), Some(vec![]));
    assert_eq!(two.divisible_by(3), Some(vec![]));
    one.put("3", 30);
    two.put("4", 42);
    one.commit() & two.commit()
}

// ---- the table ------------------------------------------------------------------------------------------------

struct Anomaly {
    name: &'static str,
    /// Its schedules; it occurs if it does in one of them.
    schedules: &'static [fn(&World) -> bool],
    /// At which of [`LEVELS`] it occurs.
    occurs: [bool; 3],
}

const NEVER: [bool; 3] = [false, false, false];
const READ_COMMITTED: [bool; 3] = [true, false, false];
const BELOW_SERIALIZABLE: [bool; 3] = [true, true, false];

const ANOMALIES: [Anomaly; 10] = [
    Anomaly { name: "G0", schedules: &[g0], occurs: NEVER },
    Anomaly { name: "G1a", schedules: &[g1a], occurs: NEVER },
    Anomaly { name: "G1b", schedules: &[g1b], occurs: NEVER },
    Anomaly { name: "G1c", schedules: &[g1c], occurs: NEVER },
    Anomaly { name: "OTV", schedules: &[otv], occurs: NEVER },
    Anomaly {
        name: "PMP",
        schedules: &[|world| pmp(world, false), |world| pmp(world, true)],
        occurs: READ_COMMITTED,
    },
    Anomaly { name: "P4", schedules: &[p4], occurs: READ_COMMITTED },
    Anomaly {
        name: "G-single",
        schedules: &[|world| g_single(world, 0), |world| g_single(world, 1), |world| g_single(world, 2)],
        occurs: READ_COMMITTED,
    },
    Anomaly { name: "G2-item", schedules: &[g2_item], occurs: BELOW_SERIALIZABLE },
    Anomaly {
        name: "G2",
        schedules: &[|world| g2(world, false), |world| g2(world, true)],
        occurs: BELOW_SERIALIZABLE,
    },
];

fn name(isolation: Isolation) -> &'static str {
    match isolation {
        Isolation::ReadCommitted => "read-committed",
        Isolation::Snapshot => "snapshot",
        Isolation::Serializable => "strict-serializable",
    }
}

#[test]
fn each_level_prevents_what_it_should_and_no_more() {
    let mut surprises = Vec::new();
    for anomaly in &ANOMALIES {
        for (level, expected) in LEVELS.into_iter().zip(anomaly.occurs) {
            let found = anomaly.schedules.iter().map(|schedule| schedule(&World::new(level)));
            // All schedules, though one would do: each is a test of its own.
            let found: Vec<bool> = found.collect();
            let word = |occurs| if occurs { "occurs" } else { "prevented" };
            let occurs = found.contains(&true);
            println!("hermitage: {} {} {}", anomaly.name, name(level), word(occurs));
            if occurs != expected {
                let expected = word(expected);
                surprises.push(format!(
                    "{} at {}: {found:?}, expected {expected}",
                    anomaly.name,
                    name(level)
                ));
            }
        }
    }
    assert!(surprises.is_empty(), "{surprises:#?}");
}
