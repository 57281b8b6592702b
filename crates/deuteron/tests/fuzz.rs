//! Whole databases and backups with damaged files: opened, read, checked. An error or the records, never a panic, never memory
//! beyond what the options allow.

use deuteron::device::{Directory, MemoryDirectory, OpenMode};
use deuteron::{Error, Options, restore_in};
use deuteron_fuzz::{Fuzz, Meter};
use std::sync::Arc;

#[global_allocator]
static METER: Meter = Meter;

/// What one file of a directory holds, and the others as they are.
struct Files(Vec<(String, Vec<u8>)>);

impl Files {
    fn of(directory: &MemoryDirectory) -> Files {
        let mut names = directory.list().expect("lists");
        names.sort();
        let read = |name: String| {
            let file = directory.open(&name, OpenMode::Read, false).expect("opens");
            let mut bytes = vec![0; file.length().expect("has a length") as usize];
            file.read_at(&mut bytes, 0).expect("reads");
            (name, bytes)
        };
        Files(names.into_iter().map(read).collect())
    }

    /// The directory with other bytes in one file.
    fn with(&self, changed: &str, bytes: &[u8]) -> Arc<MemoryDirectory> {
        let directory = MemoryDirectory::new();
        for (name, there) in &self.0 {
            let bytes = if name == changed { bytes } else { there };
            let file = directory.open(name, OpenMode::CreateNew, false).expect("creates");
            file.write_at(bytes, 0).expect("writes");
        }
        Arc::new(directory)
    }
}

fn options() -> Options {
    Options::tiny_for_tests().compression(true)
}

/// A database with every kind of thing in its files; stopped, not closed, so that the log has something to say.
fn database() -> (Arc<MemoryDirectory>, MemoryDirectory) {
    let (directory, shelf) = (Arc::new(MemoryDirectory::new()), MemoryDirectory::new());
    let db = options().open_in(Arc::<MemoryDirectory>::clone(&directory)).expect("opens");
    let (one, two) = (db.table("one").expect("creates"), db.table("two").expect("creates"));
    db.table("gone").and_then(|_| db.drop_table("gone")).expect("drops");
    for round in 0..20u32 {
        db.transact(|tx| {
            for key in 0..20u32 {
                tx.put(&one, &(key * 37 % 100 + round).to_be_bytes(), &[key as u8; 40])?;
            }
            tx.delete(&one, &round.to_be_bytes())?;
            tx.append(&two, b"list", &round.to_le_bytes())
        })
        .expect("commits");
        if round == 12 {
            db.transact(|tx| tx.put(&two, b"long", &vec![7; 60 << 10])).expect("commits");
            db.checkpoint().expect("takes one");
            db.backup_in(&shelf, "backup").expect("backs up");
        }
    }
    db.flush().expect("flushes");
    let files = Files::of(&directory);
    db.close().expect("closes");
    (files.with("", b""), shelf)
}

/// Opens and reads everything; whether nothing was wrong.
fn read_all(directory: Arc<MemoryDirectory>) -> bool {
    let run = || -> Result<bool, Error> {
        let db = options().open_in(directory)?;
        let mut whole = true;
        for name in db.tables()? {
            let table = db.table(&name)?;
            let mut tx = db.begin();
            for entry in tx.scan(&table, ..)? {
                whole &= entry.is_ok();
            }
            whole &= db.transact(|tx| tx.put(&table, b"new", b"record")).is_ok();
        }
        whole &= db.table("another").is_ok();
        whole &= db.check()?.problems.is_empty();
        db.close()?;
        Ok(whole)
    };
    run().unwrap_or(false)
}

#[test]
fn fuzz_databases() {
    let (directory, _) = database();
    let files = Files::of(&directory);
    let mut kinds = 0;
    for (name, bytes) in files.0.iter().filter(|(_, bytes)| !bytes.is_empty()) {
        kinds += 1;
        // Beside the files themselves, which are in memory here, a database holds what its options say.
        let allowed_bytes = (96 << 20) + 4 * files.0.iter().map(|(_, bytes)| bytes.len()).sum::<usize>();
        let corpus = [bytes.clone()];
        let label = format!("database-{}", name.split(['-', '.']).next().unwrap_or_default());
        let fuzz = Fuzz { allowed_bytes, ..Fuzz::new(&label, &corpus, 40) };
        fuzz.run(|_| {}, |bytes| read_all(files.with(name, bytes)));
    }
    assert!(kinds >= 4, "superblock, log, segment, image");
}

#[test]
fn fuzz_backups() {
    let (_, shelf) = database();
    let files = Files::of(&shelf);
    let corpus: Vec<Vec<u8>> = files.0.iter().map(|(_, bytes)| bytes.clone()).collect();
    let mend = |bytes: &mut Vec<u8>| {
        // The checksum of each block's header.
        for block in bytes.chunks_exact_mut(4096).filter(|block| block[4..8] == *b"DARC") {
            let crc = crc32c::crc32c(&block[4..]);
            block[..4].copy_from_slice(&crc.to_le_bytes());
        }
    };
    let allowed_bytes = (16 << 20) + 8 * corpus[0].len();
    let fuzz = Fuzz { allowed_bytes, ..Fuzz::new("backup", &corpus, 300) };
    fuzz.run(mend, |bytes| {
        let target = MemoryDirectory::new();
        restore_in(files.with("backup", bytes).as_ref(), "backup", &target).is_ok()
    });
}
