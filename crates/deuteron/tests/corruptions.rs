//! Injected corruptions: whatever becomes of the bytes of a database's files, opening, reading all of it and checking it gives the
//! right state or a typed error.
//!
//! One exception, which no log can tell from a crash: damage that reaches from some place to the *end* of the log of a database that was not
//! closed looks like a tail that was never written, or was torn. Then the state is that before the first commit that was damaged.
//! The store has no such exception, as what its tail holds is in the log.
//!
//! `DEUTERON_CORRUPTIONS` says how many, `DEUTERON_SEED` the first seed.

use deuteron::device::simulated::Random;
use deuteron::device::{BLOCK_BYTES, Directory, MemoryDirectory, OpenMode, OverlayDirectory};
use deuteron::{Error, Options, Table};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

type State = BTreeMap<(u8, Vec<u8>), Vec<u8>>;

const SECTOR_BYTES: u64 = 512;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Commits of a subject.
const TRANSACTIONS: u64 = 60;
/// Corruptions of a subject, before the next is made.
const CORRUPTIONS_EACH: u64 = 2_000;

/// A database in memory.
struct Subject {
    directory: Arc<MemoryDirectory>,
    /// What its files were at some earlier moments.
    earlier: Vec<Arc<MemoryDirectory>>,
    /// The state after so many commits.
    states: Vec<State>,
    closed: bool,
    /// File and offset of the log's end.
    tail: (String, u64),
}

fn copy(from: &dyn Directory) -> Arc<MemoryDirectory> {
    let to = MemoryDirectory::new();
    for name in from.list().expect("lists") {
        let bytes = read(from, &name);
        let file = to.open(&name, OpenMode::CreateNew, false).expect("creates");
        file.write_at(&bytes, 0).expect("writes");
    }
    Arc::new(to)
}

fn read(directory: &dyn Directory, name: &str) -> Vec<u8> {
    let file = directory.open(name, OpenMode::Read, false).expect("opens");
    let mut bytes = vec![0; file.length().expect("has a length") as usize];
    file.read_at(&mut bytes, 0).expect("reads");
    bytes
}

fn open(directory: Arc<dyn Directory>) -> Result<(deuteron::Db, [Table; 2]), Error> {
    let db = Options::tiny_for_tests().create_if_missing(false).open_in(directory)?;
    let tables = [db.table("zero")?, db.table("one")?];
    Ok((db, tables))
}

impl Subject {
    fn new(seed: u64) -> Subject {
        let mut random = Random::new(seed);
        let directory = Arc::new(MemoryDirectory::new());
        let db =
            Options::tiny_for_tests().open_in(Arc::clone(&directory) as Arc<dyn Directory>).expect("opens");
        let tables = [db.table("zero").expect("creates"), db.table("one").expect("creates")];
        let (mut states, mut earlier) = (vec![State::new()], Vec::new());
        for number in 0..TRANSACTIONS {
            let mut state = states.last().expect("never empty").clone();
            let mut tx = db.begin();
            for _ in 0..1 + random.below(5) {
                let table = random.below(2) as u8;
                let key = format!("key/{:02}", random.below(60)).into_bytes();
                if random.below(5) == 0 {
                    tx.delete(&tables[usize::from(table)], &key).expect("deletes");
                    state.remove(&(table, key));
                    continue;
                }
                let length = if random.below(12) == 0 { 1_500 } else { random.below(120) as usize };
                let mut value = number.to_be_bytes().to_vec();
                value.resize(8 + length, number as u8);
                tx.put(&tables[usize::from(table)], &key, &value).expect("writes");
                state.insert((table, key), value);
            }
            tx.commit().expect("commits");
            states.push(state);
            if random.below(15) == 0 {
                db.checkpoint().expect("takes a checkpoint");
            }
            for _ in 0..random.below(3) {
                db.step().expect("works");
            }
            if number % 13 == 12 {
                earlier.push(copy(&*directory));
            }
        }
        let closed = seed.is_multiple_of(2);
        let directory = if closed {
            db.close().expect("closes");
            copy(&*directory)
        } else {
            let stopped = copy(&*directory);
            drop((db, tables));
            stopped
        };
        let end = {
            let overlay: Arc<dyn Directory> =
                Arc::new(OverlayDirectory::new(Arc::clone(&directory) as Arc<dyn Directory>));
            let (db, _) = open(overlay).expect("opens");
            db.recovery().log_end.0
        };
        let names = directory.list().expect("lists");
        let bases = names.iter().filter_map(|name| {
            let digits = name.strip_prefix("log-")?.strip_suffix(".seg")?;
            Some((u64::from_str_radix(digits, 16).ok()?, name))
        });
        // The end may be that of a full segment, whose next one is not there.
        let (base, name) = bases.filter(|(base, _)| *base < end || end == 0).max().expect("there is a log");
        let tail = (name.clone(), BLOCK + (end - base));
        Subject { directory, earlier, states, closed, tail }
    }

    /// Where to damage something: a file, weighted as files are, and an offset in it; more often where something is.
    fn place(&self, random: &mut Random) -> (String, u64) {
        let names = self.directory.list().expect("lists");
        for _ in 0..20 {
            let name = &names[random.below(names.len() as u64) as usize];
            let bytes = read(&*self.directory, name);
            if bytes.is_empty() {
                continue;
            }
            let mut at = random.below(bytes.len() as u64);
            if name == &self.tail.0 && random.below(3) > 0 {
                at = random.below(self.tail.1.min(bytes.len() as u64).max(1));
            }
            let sector = (at / SECTOR_BYTES * SECTOR_BYTES) as usize;
            let end = (sector + SECTOR_BYTES as usize).min(bytes.len());
            if bytes[sector..end].iter().any(|&byte| byte != 0) || random.below(30) == 0 {
                return (name.clone(), at);
            }
        }
        (self.tail.0.clone(), 0)
    }
}

/// Bytes that were changed.
struct Damage {
    what: &'static str,
    /// File, first byte, end.
    parts: Vec<(String, u64, u64)>,
}

fn write(directory: &dyn Directory, name: &str, offset: u64, bytes: &[u8]) {
    let file = directory.open(name, OpenMode::ReadWrite, false).expect("opens");
    let end = file.length().expect("has a length");
    let room = end.saturating_sub(offset).min(bytes.len() as u64) as usize;
    file.write_at(&bytes[..room], offset).expect("writes");
}

fn block(directory: &dyn Directory, name: &str, offset: u64) -> Option<Vec<u8>> {
    let file = directory.open(name, OpenMode::Read, false).ok()?;
    let mut bytes = vec![0; BLOCK_BYTES];
    file.read_at(&mut bytes, offset).ok()?;
    Some(bytes)
}

fn corrupt(subject: &Subject, directory: &dyn Directory, random: &mut Random) -> Damage {
    let (name, at) = subject.place(random);
    let own = at / BLOCK * BLOCK;
    let one = |what, from, to| Damage { what, parts: vec![(name.clone(), from, to)] };
    match random.below(7) {
        0 | 1 => {
            let mut damage = Damage { what: "flipped bits", parts: Vec::new() };
            for _ in 0..1 + random.below(3) {
                // The headers of blocks are a small part of the bytes, and most of what is looked at.
                let at = if random.coin() { own + at % 64 } else { at };
                let mut byte = [0];
                let file = directory.open(&name, OpenMode::ReadWrite, false).expect("opens");
                if file.read_at(&mut byte, at).is_ok() {
                    file.write_at(&[byte[0] ^ 1 << random.below(8)], at).expect("writes");
                    damage.parts.push((name.clone(), at, at + 1));
                }
            }
            damage
        }
        2 => {
            let from = at / SECTOR_BYTES * SECTOR_BYTES;
            let bytes = SECTOR_BYTES * (1 + random.below(16));
            write(directory, &name, from, &vec![0; bytes as usize]);
            one("zeroed sectors", from, from + bytes)
        }
        3 => {
            let (other, there) = subject.place(random);
            let there = there / BLOCK * BLOCK;
            let (Some(left), Some(right)) = (block(directory, &name, own), block(directory, &other, there))
            else {
                return one("nothing", own, own);
            };
            write(directory, &name, own, &right);
            write(directory, &other, there, &left);
            let parts = vec![(name.clone(), own, own + BLOCK), (other, there, there + BLOCK)];
            Damage { what: "swapped blocks", parts }
        }
        4 => {
            let earlier = &subject.earlier[random.below(subject.earlier.len() as u64) as usize];
            match block(&**earlier, &name, own) {
                Some(stale) => {
                    write(directory, &name, own, &stale);
                    one("a stale block", own, own + BLOCK)
                }
                None => one("nothing", own, own),
            }
        }
        5 => {
            let bytes = read(directory, &name);
            directory.remove(&name).expect("removes");
            // A file may also be gone altogether.
            let kept = if random.below(8) > 0 { at } else { 0 };
            if kept > 0 {
                let file = directory.open(&name, OpenMode::CreateNew, false).expect("creates");
                file.write_at(&bytes[..kept as usize], 0).expect("writes");
            }
            one("a truncated file", kept, bytes.len() as u64)
        }
        _ => {
            let (other, there) = subject.place(random);
            let there = there / BLOCK * BLOCK;
            if let Some(twice) = block(directory, &name, own) {
                write(directory, &other, there, &twice);
            }
            Damage { what: "a duplicated block", parts: vec![(other, there, there + BLOCK)] }
        }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    detected: u64,
    harmless: u64,
    torn: u64,
}

enum Outcome {
    Detected,
    State(State),
}

fn look(directory: Arc<dyn Directory>) -> Outcome {
    let looked = open(directory).and_then(|(db, tables)| {
        let mut state = State::new();
        for (number, table) in tables.iter().enumerate() {
            let entries: Vec<_> = db.transact(|tx| tx.scan(table, ..)?.collect())?;
            state.extend(entries.into_iter().map(|(key, value)| ((number as u8, key), value)));
        }
        let _ = db.check()?;
        Ok(state)
    });
    match looked {
        Ok(state) => Outcome::State(state),
        Err(_) => Outcome::Detected,
    }
}

/// Whether the commits behind the first `kept` may have been in what was damaged: the damage is in the log of a database that was
/// not closed, reaches its end, and has a block for each of them at least.
fn is_torn_tail(subject: &Subject, damage: &Damage, kept: usize) -> bool {
    let (file, end) = &subject.tail;
    let lost = subject.states.len() - 1 - kept;
    let reach =
        damage.parts.iter().filter(|(name, from, to)| name == file && from < end && to + BLOCK > *end);
    let most = reach.map(|(_, from, _)| (end - from / BLOCK * BLOCK) / BLOCK).max();
    // The last buffer may be longer than a block; its transactions are one.
    let in_last = damage.parts.iter().any(|(name, from, _)| name == file && from < end) && lost <= 1;
    !subject.closed && (in_last || most.is_some_and(|most| lost as u64 <= most))
}

fn inject(seed: u64, count: u64) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let mut random = Random::new(seed);
    let subject = Subject::new(seed);
    let expected = subject.states.last().expect("never empty");
    for number in 0..count {
        let directory: Arc<dyn Directory> =
            Arc::new(OverlayDirectory::new(Arc::clone(&subject.directory) as Arc<dyn Directory>));
        let damage = corrupt(&subject, &*directory, &mut random);
        let told = || {
            let Damage { what, parts } = &damage;
            let closed = if subject.closed { "closed" } else { "stopped" };
            format!(
                "seed {seed}, corruption {number}: {what} in a {closed} database at {parts:?}, log end {:?}",
                subject.tail
            )
        };
        match catch_unwind(AssertUnwindSafe(|| look(directory))) {
            Err(_) => return Err(format!("{}: a panic", told())),
            Ok(Outcome::Detected) => tally.detected += 1,
            Ok(Outcome::State(state)) if state == *expected => tally.harmless += 1,
            Ok(Outcome::State(state)) => match subject.states.iter().rposition(|earlier| *earlier == state) {
                Some(kept) if is_torn_tail(&subject, &damage, kept) => tally.torn += 1,
                Some(kept) => return Err(format!("{}: silently the state after {kept} commits", told())),
                None => return Err(format!("{}: silently a state that never was", told())),
            },
        }
    }
    Ok(tally)
}

#[test]
fn no_corruption_is_silent() {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let (count, first) =
        (number("DEUTERON_CORRUPTIONS").unwrap_or(6_000), number("DEUTERON_SEED").unwrap_or(1));
    let subjects = count.div_ceil(CORRUPTIONS_EACH);
    let next = std::sync::atomic::AtomicU64::new(0);
    let results = std::sync::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if number >= subjects {
                        break;
                    }
                    let each = CORRUPTIONS_EACH.min(count - number * CORRUPTIONS_EACH);
                    let result = inject(first.wrapping_add(number), each);
                    results.lock().expect("no panic holds it").push(result);
                }
            });
        }
    });
    let results = results.into_inner().expect("no panic holds it");
    let silent: Vec<_> = results.iter().filter_map(|result| result.as_ref().err()).collect();
    let sum = |part: fn(&Tally) -> u64| results.iter().flatten().map(part).sum::<u64>();
    let (detected, harmless, torn) =
        (sum(|tally| tally.detected), sum(|tally| tally.harmless), sum(|tally| tally.torn));
    println!(
        "corruptions: {} injected, {detected} told, {harmless} without effect, {torn} torn tails, {} silent",
        detected + harmless + torn + silent.len() as u64,
        silent.len()
    );
    assert!(silent.is_empty(), "{silent:#?}");
    assert!(detected > 0 && harmless > 0 && torn > 0, "all three are met");
}
