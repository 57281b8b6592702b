//! What the comparison takes for granted of every engine: that it keeps what was written, and that its transactions are as isolated as it says.

use crate::bulk::{self, Records};
use crate::engines::{self, Database, Promises, Task, Use};
use crate::load::Check;
use crate::peer::{Peer, PeerTransaction, SEEN, Settings, Trouble};
use crate::{Engine, fjall, lmdb, redb, rocksdb, sqlite, surrealkv};
use clap::ValueEnum;
use deuteron_bench::{Ahead, Driver, Step, Submitted, Worker, Workload, load, run};
use std::error::Error;
use std::path::Path;
use std::time::Duration;

const HOW: Use = Use { threads: 2, in_flight: 1, ahead: Ahead::Keys };

const RECORDS: u64 = 500;

fn settings(directory: &Path, sync: bool) -> Settings {
    Settings { directory: directory.to_owned(), sync, memory: 64 << 20, beyond_memory: true }
}

fn durable_engines() -> impl Iterator<Item = Engine> {
    Engine::value_variants().iter().copied().filter(|engine| *engine != Engine::Map)
}

/// Fills the database, runs workloads on it, then writes some records of which it is known what they hold.
struct Write;

/// Sees those records.
struct Read;

impl Task for Write {
    type Outcome = ();

    fn run<S: Database>(self, store: &S) -> Result<(), Box<dyn Error>> {
        let driver = Driver { seconds: Duration::from_millis(10), ..Driver::default() };
        let mut workloads = vec![Workload::paper(RECORDS)];
        workloads.extend("abcdef".chars().filter_map(|letter| Workload::ycsb(letter, RECORDS)));
        let loaded = load(store, &workloads[0], &driver, &mut |_| {})?;
        assert_eq!(loaded.records, RECORDS);
        for workload in &workloads {
            // A busy machine may leave the threads without a turn for a while.
            while run(store, workload, &driver, loaded, &mut |_| {})?.commits == 0 {}
        }
        let steps = [Step::ReadModifyWrite(7), Step::Update(8), Step::Read(8), Step::Insert(1 << 40)];
        let mut worker = store.worker()?;
        match worker.submit(&steps, &mut [3; 20])? {
            Submitted::Acknowledged => {}
            Submitted::Pending(pending) => worker.wait(pending)?,
            Submitted::Aborted(cause) => return Err(format!("aborted alone: {cause}").into()),
        }
        drop(worker);
        Read.run(store)
    }
}

impl Task for Read {
    type Outcome = ();

    fn run<S: Database>(self, store: &S) -> Result<(), Box<dyn Error>> {
        for key in [7, 8, 1 << 40] {
            let value = store.value(key)?.ok_or_else(|| format!("{key} is not there"))?;
            // Key and count are stamped into the first 16 bytes.
            assert_eq!((value.len(), &value[..8], &value[16..]), (20, &key.to_be_bytes()[..], &[3; 4][..]));
        }
        assert_eq!(store.value(9)?.map(|value| value.len()), Some(100));
        assert_eq!(store.value(1 << 41)?, None);
        Ok(())
    }
}

#[test]
fn every_engine_runs_every_workload_and_keeps_what_was_written() {
    for engine in durable_engines() {
        for sync in [false, true] {
            let scratch = tempfile::tempdir().unwrap();
            let settings = || settings(scratch.path(), sync);
            engines::with(engine, settings(), &HOW, Write)
                .unwrap_or_else(|error| panic!("{engine:?}, sync {sync}: {error}"));
            engines::with(engine, settings(), &HOW, Read)
                .unwrap_or_else(|error| panic!("{engine:?}, sync {sync}, opened again: {error}"));
        }
    }
}

#[test]
fn every_engine_has_what_was_loaded_in_bulk() {
    for engine in durable_engines() {
        let scratch = tempfile::tempdir().unwrap();
        let settings = settings(scratch.path(), false);
        let check = Check { records: 3_333, value_bytes: 50 };
        bulk::load(engine, &settings, Records::new(check.records, check.value_bytes))
            .and_then(|_| engines::with(engine, settings, &HOW, check))
            .unwrap_or_else(|error| panic!("{engine:?}: {error}"));
    }
}

#[test]
fn a_load_that_is_not_there_is_found_out() {
    let scratch = tempfile::tempdir().unwrap();
    let settings = || settings(scratch.path(), false);
    bulk::load(Engine::Sqlite, &settings(), Records::new(100, 50)).unwrap();
    for records in [99, 101] {
        let check = Check { records, value_bytes: 50 };
        engines::with(Engine::Sqlite, settings(), &HOW, check).unwrap_err();
    }
}

#[test]
fn every_engine_says_what_it_promises() {
    for &engine in Engine::value_variants() {
        let (delayed, sync) = (Promises::of(engine, false), Promises::of(engine, true));
        assert_eq!(delayed.isolation, sync.isolation);
        assert_eq!(delayed.isolation == "none", engine == Engine::Map);
        assert_eq!(sync.durability == "synced at commit", engine != Engine::Map);
        assert!(!delayed.durability.is_empty() && delayed.durability != "synced at commit");
    }
}

/// Two records of which no more than one may be set, by transactions that look at both and set one. A transaction that does not see to it that what it has
/// read still stands lets both be set.
fn write_skew<P: Peer>(peer: &P) {
    const SET: &[u8] = b"set";
    const ROUNDS: u64 = 100;
    let committed = |transaction: &dyn Fn(&mut P::Transaction<'_>) -> Result<(), Trouble>| {
        loop {
            let run = || {
                let mut begun = peer.begin(true, false)?;
                transaction(&mut begun)?;
                begun.commit()
            };
            match run() {
                Ok(()) => return,
                Err(Trouble::Conflict) => std::thread::yield_now(),
                Err(Trouble::Failed(error)) => panic!("{}: {error}", P::NAME),
            }
        }
    };
    let keys = |round: u64| [2 * round, 2 * round + 1].map(u64::to_be_bytes);
    let start = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        for mine in 0..2 {
            let (committed, keys, start) = (&committed, &keys, &start);
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let keys = keys(round);
                    start.wait();
                    committed(&|transaction| {
                        let set = [transaction.value(keys[0])?, transaction.value(keys[1])?];
                        // The other one is to have read, too, if it can.
                        std::thread::yield_now();
                        if set == [None, None] { transaction.put(keys[mine], SET) } else { Ok(()) }
                    });
                }
            });
        }
    });
    for round in 0..ROUNDS {
        let mut reader = peer.begin(false, false).unwrap_or_else(|_| panic!("{} does not read", P::NAME));
        let set = keys(round).map(|key| reader.value(key).is_ok_and(|value| value.as_deref() == Some(SET)));
        assert_ne!(set[0], set[1], "{}, round {round}", P::NAME);
    }
}

/// Reads and scans, of what is committed and of what the transaction itself has written.
fn reads_and_scans<P: Peer>(peer: &P) {
    let failed = |_: Trouble| -> ! { panic!("{} fails", P::NAME) };
    let value = |number: u64| vec![number as u8; 10];
    let mut writer = peer.begin(true, false).unwrap_or_else(|trouble| failed(trouble));
    for number in 0..20u64 {
        writer.put(number.to_be_bytes(), &value(number)).unwrap_or_else(|trouble| failed(trouble));
    }
    writer.commit().unwrap_or_else(|trouble| failed(trouble));
    let seen = |transaction: &mut P::Transaction<'_>, key: u64, count: usize| {
        SEEN.take();
        match count {
            0 => transaction.get(key.to_be_bytes()),
            _ => transaction.scan(key.to_be_bytes(), count),
        }
        .unwrap_or_else(|trouble| failed(trouble));
        SEEN.take()
    };
    let mut reader = peer.begin(false, false).unwrap_or_else(|trouble| failed(trouble));
    for (key, count, expected) in [(5, 4, 5..9), (18, 10, 18..20), (20, 3, 0..0), (3, 0, 3..4), (99, 0, 0..0)]
    {
        let expected: Vec<_> = expected.map(value).collect();
        assert_eq!(seen(&mut reader, key, count), expected, "{}, {count} from {key}", P::NAME);
    }
    reader.commit().unwrap_or_else(|trouble| failed(trouble));
    let mut writer = peer.begin(true, false).unwrap_or_else(|trouble| failed(trouble));
    writer.put(30u64.to_be_bytes(), &value(30)).unwrap_or_else(|trouble| failed(trouble));
    assert_eq!(seen(&mut writer, 19, 5), [value(19), value(30)], "{}", P::NAME);
    // It ends without a commit.
    drop(writer);
    let mut reader = peer.begin(false, false).unwrap_or_else(|trouble| failed(trouble));
    assert_eq!(seen(&mut reader, 19, 5), [value(19)], "{}", P::NAME);
}

/// Two records that every writer sets to the same: whoever only reads never sees them differ.
fn torn_reads<P: Peer>(peer: &P) {
    const WRITES: u64 = 200;
    let failed = |_: Trouble| -> ! { panic!("{} fails", P::NAME) };
    let write = |number: u64| -> Result<(), Trouble> {
        let mut writer = peer.begin(true, false)?;
        for key in [1u64, 2] {
            writer.put(key.to_be_bytes(), &number.to_be_bytes())?;
        }
        writer.commit()
    };
    let read = || -> Result<[Option<Vec<u8>>; 2], Trouble> {
        let mut reader = peer.begin(false, false)?;
        let first = reader.value(1u64.to_be_bytes())?;
        std::thread::yield_now();
        let second = reader.value(2u64.to_be_bytes())?;
        reader.commit()?;
        Ok([first, second])
    };
    write(0).unwrap_or_else(|trouble| failed(trouble));
    std::thread::scope(|scope| {
        let write_all =
            || (1..=WRITES).for_each(|number| write(number).unwrap_or_else(|trouble| failed(trouble)));
        let writer = scope.spawn(write_all);
        while !writer.is_finished() {
            let [first, second] = read().unwrap_or_else(|trouble| failed(trouble));
            assert_eq!(first, second, "{}", P::NAME);
        }
    });
}

/// Calls a function with each peer, new.
macro_rules! with_each_peer {
    ($function: ident) => {{
        fn at(run: impl FnOnce(&Settings)) {
            let scratch = tempfile::tempdir().unwrap();
            run(&settings(scratch.path(), false));
        }
        at(|settings| $function(&rocksdb::Optimistic::open(settings).unwrap()));
        at(|settings| $function(&rocksdb::Pessimistic::open(settings).unwrap()));
        at(|settings| $function(&lmdb::Lmdb::open(settings).unwrap()));
        at(|settings| $function(&redb::Redb::open(settings).unwrap()));
        at(|settings| $function(&fjall::Fjall::open(settings).unwrap()));
        at(|settings| $function(&sqlite::Sqlite::open(settings, 2).unwrap()));
        at(|settings| $function(&surrealkv::Surrealkv::open(settings).unwrap()));
    }};
}

#[test]
fn the_isolation_that_is_told_is_what_writers_of_points_have() {
    with_each_peer!(write_skew);
}

#[test]
fn whoever_only_reads_sees_whole_transactions() {
    with_each_peer!(torn_reads);
}

#[test]
fn every_peer_reads_and_scans_what_is_there() {
    with_each_peer!(reads_and_scans);
}
