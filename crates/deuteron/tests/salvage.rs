//! Salvage of databases that were damaged on purpose: of what is sound nothing is missing, nothing is invented, nothing deleted
//! comes back, and the database is not written to.

use deuteron::device::simulated::{Random, effort};
use deuteron::device::{BLOCK_BYTES, Directory, MemoryDirectory, OpenMode, OverlayDirectory};
use deuteron::{Db, Options, SalvageReport, Salvaged, salvage_in};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// By table and key.
type State = BTreeMap<(String, Vec<u8>), Vec<u8>>;

/// A database in memory, and what should be in it.
struct Subject {
    directory: Arc<MemoryDirectory>,
    state: State,
    /// Every value that a key has ever had.
    ever: BTreeSet<(String, Vec<u8>, Vec<u8>)>,
}

const TABLES: [&str; 2] = ["accounts", "ledger/2026"];

/// Random transactions, checkpoints and, if `closed`, a clean end.
fn subject(seed: u64, transactions: u64, closed: bool) -> Subject {
    let mut random = Random::new(seed);
    let directory = Arc::new(MemoryDirectory::new());
    let db = Options::tiny_for_tests().open_in(Arc::clone(&directory) as Arc<dyn Directory>).expect("opens");
    let tables = TABLES.map(|name| db.table(name).expect("creates"));
    let (mut state, mut ever) = (State::new(), BTreeSet::new());
    for number in 0..transactions {
        let mut tx = db.begin();
        let mut next = state.clone();
        for _ in 0..1 + random.below(6) {
            let which = random.below(2) as usize;
            let name = TABLES[which].to_owned();
            let key = format!("key/{:03}", random.below(150)).into_bytes();
            if random.below(3) == 0 {
                tx.delete(&tables[which], &key).expect("deletes");
                next.remove(&(name, key));
                continue;
            }
            let length = match random.below(40) {
                0 => 3_000,
                1..5 => 500,
                _ => random.below(60) as usize,
            };
            let mut value = number.to_be_bytes().to_vec();
            value.resize(8 + length, number as u8);
            tx.put(&tables[which], &key, &value).expect("writes");
            ever.insert((name.clone(), key.clone(), value.clone()));
            next.insert((name, key), value);
        }
        if random.below(10) == 0 {
            drop(tx);
            continue;
        }
        tx.commit().expect("commits");
        state = next;
        if random.below(40) == 0 {
            db.checkpoint().expect("takes a checkpoint");
        }
        for _ in 0..random.below(3) {
            db.step().expect("works");
        }
    }
    if closed {
        db.close().expect("closes");
        return Subject { directory, state, ever };
    }
    // The machine stops: what is on its disk now.
    let copy = Arc::new(MemoryDirectory::new());
    copy_files(&*directory, &*copy);
    drop((tables, db));
    Subject { directory: copy, state, ever }
}

fn copy_files(from: &dyn Directory, to: &dyn Directory) {
    for name in from.list().expect("lists") {
        let file = to.open(&name, OpenMode::CreateNew, false).expect("creates");
        file.write_at(&read(from, &name), 0).expect("writes");
    }
}

fn read(directory: &dyn Directory, name: &str) -> Vec<u8> {
    let file = directory.open(name, OpenMode::Read, false).expect("opens");
    let mut bytes = vec![0; file.length().expect("has a length") as usize];
    file.read_at(&mut bytes, 0).expect("reads");
    bytes
}

fn files(directory: &dyn Directory, part: &str) -> Vec<String> {
    directory.list().expect("lists").into_iter().filter(|name| name.contains(part)).collect()
}

fn zero(directory: &dyn Directory, name: &str, offset: u64, bytes: usize) {
    let file = directory.open(name, OpenMode::ReadWrite, false).expect("opens");
    file.write_at(&vec![0; bytes], offset).expect("writes");
}

struct Result {
    state: State,
    undecided: u64,
    report: SalvageReport,
}

/// Salvages over an overlay, so that the subject can be damaged again; checks that nothing was written.
fn salvaged(directory: Arc<dyn Directory>) -> Result {
    let before: Vec<_> = contents(&*directory);
    let (mut state, mut table, mut undecided) = (State::new(), String::new(), 0);
    let report = salvage_in(Arc::clone(&directory), &mut |salvaged| {
        match salvaged {
            Salvaged::Table { number, name } => table = name.map_or(format!("#{number}"), str::to_owned),
            Salvaged::Record { key, value } => {
                let old = state.insert((table.clone(), key.to_vec()), value.to_vec());
                assert_eq!(old, None, "a record came twice");
            }
            Salvaged::Undecided { .. } => undecided += 1,
        }
        Ok(())
    });
    assert_eq!(contents(&*directory), before, "the database was written to");
    Result { state, undecided, report: report.expect("salvages") }
}

fn contents(directory: &dyn Directory) -> Vec<(String, Vec<u8>)> {
    let names = directory.list().expect("lists");
    names.into_iter().map(|name| (name.clone(), read(directory, &name))).collect()
}

fn overlay(subject: &Subject) -> Arc<dyn Directory> {
    Arc::new(OverlayDirectory::new(Arc::clone(&subject.directory) as Arc<dyn Directory>))
}

fn assert_same(found: &State, expected: &State, place: &str) {
    for (key, value) in expected {
        assert_eq!(found.get(key), Some(value), "{place}: {key:?} is missing or wrong");
    }
    for key in found.keys() {
        assert!(expected.contains_key(key), "{place}: {key:?} came back from the dead");
    }
}

#[test]
fn of_a_sound_database_a_salvage_is_exactly_its_state() {
    for seed in 0..30 * effort() {
        let subject = subject(seed, 40 + seed * 7 % 900, seed % 2 == 0);
        let found = salvaged(overlay(&subject));
        assert_same(&found.state, &subject.state, &format!("seed {seed}"));
        assert_eq!(found.report.losses, [], "seed {seed}");
        assert_eq!(found.report.operations_undecided, found.undecided);
    }
}

#[test]
fn without_superblock_images_and_headers_nothing_is_missing() {
    for seed in 100..100 + 20 * effort() {
        let subject = subject(seed, 60 + seed * 7 % 700, seed % 2 == 0);
        let gone = overlay(&subject);
        gone.remove("superblock").expect("removes");
        for image in files(&*gone, "store-image") {
            gone.remove(&image).expect("removes");
        }
        for segment in files(&*gone, ".seg") {
            zero(&*gone, &segment, 0, BLOCK_BYTES);
        }
        let found = salvaged(gone);
        assert_same(&found.state, &subject.state, &format!("seed {seed}"));
        let headers =
            found.report.losses.iter().filter(|loss| loss.reason.contains("header") || loss.offset == 0);
        assert!(headers.count() > 0, "seed {seed}: {:?}", found.report.losses);
    }
}

#[test]
fn damaged_blocks_cost_what_was_in_them_and_nothing_is_invented() {
    for seed in 200..200 + 20 * effort() {
        let subject = subject(seed, 600, seed % 2 == 0);
        let mut random = Random::new(seed);
        for count in [1, 10, 100] {
            let damaged = overlay(&subject);
            let segments = files(&*damaged, ".seg");
            let mut hit = 0;
            while hit < count {
                let name = &segments[random.below(segments.len() as u64) as usize];
                let bytes = read(&*damaged, name);
                let block = random.below((bytes.len() / BLOCK_BYTES) as u64) as usize * BLOCK_BYTES;
                let mut noise = vec![0; BLOCK_BYTES];
                noise.iter_mut().for_each(|byte| *byte = random.below(256) as u8);
                let file = damaged.open(name, OpenMode::ReadWrite, false).expect("opens");
                file.write_at(&noise, block as u64).expect("writes");
                hit += 1;
            }
            let found = salvaged(damaged);
            for ((table, key), value) in &found.state {
                let written = subject.ever.contains(&(table.clone(), key.clone(), value.clone()));
                assert!(written || table.starts_with('#'), "seed {seed}: {key:?} never had this value");
            }
            let differs =
                subject.state.iter().filter(|(key, value)| found.state.get(*key) != Some(value)).count();
            assert!(differs == 0 || !found.report.losses.is_empty(), "seed {seed}: a loss that is not told");
        }
    }
}

#[test]
fn a_missing_segment_costs_its_own_records_only() {
    let subject = subject(7, 800, true);
    for segment in files(&*subject.directory, "store-") {
        let damaged = overlay(&subject);
        damaged.remove(&segment).expect("removes");
        let found = salvaged(damaged);
        for ((table, key), value) in &found.state {
            let written = subject.ever.contains(&(table.clone(), key.clone(), value.clone()));
            assert!(written || table.starts_with('#'), "{segment}: {key:?} never had this value");
        }
    }
}

#[test]
fn a_lost_commit_record_leaves_its_operations_undecided() {
    let directory = Arc::new(MemoryDirectory::new());
    let db = Options::tiny_for_tests().open_in(Arc::clone(&directory) as Arc<dyn Directory>).expect("opens");
    let table = db.table("t").expect("creates");
    db.transact(|tx| tx.put(&table, b"early", b"1")).expect("commits");
    let mut open = db.begin();
    // Too long to wait for the commit to be logged.
    open.put(&table, b"late", &[2; 600]).expect("writes");
    db.transact(|tx| tx.put(&table, b"between", b"3")).expect("commits");
    let copy = Arc::new(MemoryDirectory::new());
    copy_files(&*directory, &*copy);
    let found = salvaged(copy);
    let keys: Vec<_> = found.state.keys().map(|(_, key)| key.as_slice()).collect();
    assert_eq!(keys, [&b"between"[..], b"early"]);
    assert_eq!((found.undecided, found.report.transactions_undecided), (1, 1));
    drop(open);
}

#[test]
fn dropped_tables_stay_away_and_empty_ones_are_told() {
    let directory = Arc::new(MemoryDirectory::new());
    let db: Db =
        Options::tiny_for_tests().open_in(Arc::clone(&directory) as Arc<dyn Directory>).expect("opens");
    let gone = db.table("gone").expect("creates");
    db.transact(|tx| tx.put(&gone, b"key", b"value")).expect("commits");
    db.table("empty").expect("creates");
    db.checkpoint().expect("takes a checkpoint");
    db.drop_table("gone").expect("drops");
    db.close().expect("closes");
    let found = salvaged(directory);
    let names: Vec<_> = found.report.tables.iter().map(|table| table.name.as_deref()).collect();
    assert_eq!((names, found.state.len()), (vec![Some("empty")], 0));
}
