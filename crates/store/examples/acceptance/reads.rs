//! Random reads of data beyond memory, and of blocks of the same disk, in turns: what the disk does differs by the minute.

use super::{VALUE, fill, spread};
use deuteron_store::device::{
    AlignedBuffer, BLOCK_BYTES, Directory, File, OpenMode, OsDirectory, ReadRequest,
};
use deuteron_store::{Error, Options, Table};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The blocks that are read lie in this file, beside the store.
const BLOCKS: &str = "blocks";
/// How long one way is measured until it is the next one's turn.
const TURN: Duration = Duration::from_millis(250);
const WRITE_BYTES: usize = 1 << 20;

/// A way of reading, and what it has done.
struct Way<'w> {
    name: &'static str,
    threads: u64,
    /// Reads what the numbers from this one on say, blocks into the buffer, which the thread keeps; how many that is.
    read: &'w (dyn Fn(u64, &mut AlignedBuffer) -> u64 + Sync),
    done: u64,
    time: Duration,
}

impl Way<'_> {
    /// Numbers come from `next`, so that no two reads are of the same.
    fn turn(&mut self, next: &AtomicU64, buffer_bytes: usize) {
        let (begin, done) = (Instant::now(), AtomicU64::new(0));
        let work = || {
            let mut buffer = AlignedBuffer::zeroed(buffer_bytes);
            while begin.elapsed() < TURN {
                let count = (self.read)(next.fetch_add(64, Ordering::Relaxed), &mut buffer);
                done.fetch_add(count, Ordering::Relaxed);
            }
        };
        std::thread::scope(|scope| (0..self.threads).for_each(|_| drop(scope.spawn(work))));
        self.done += done.into_inner();
        self.time += begin.elapsed();
    }

    fn rate(&self) -> f64 {
        self.done as f64 / self.time.as_secs_f64()
    }
}

/// Random reads by `depth` threads and by one that asks for `depth` keys at once, for `seconds` each, and the same of blocks.
pub fn cold_reads(path: &Path, records: u64, budget: usize, depth: u64, seconds: u64) -> Result<(), Error> {
    let directory = OsDirectory::open_or_create(path.join("device")).expect("a directory for the blocks");
    let blocks_bytes = (records * 108).next_multiple_of(WRITE_BYTES as u64);
    let file = blocks(&directory, blocks_bytes);
    let store = Options::new().memory(budget).open(path.join("store"))?;
    let table = fill(&store, records)?;
    store.persist()?;

    let key = |number: u64| (spread(number) % records).to_be_bytes();
    let block = |number: u64| spread(number) % (blocks_bytes / BLOCK_BYTES as u64) * BLOCK_BYTES as u64;
    let get = |first, _: &mut AlignedBuffer| get_one(&table, &key(first));
    let get_many =
        |first, _: &mut AlignedBuffer| get_many(&table, &(first..first + depth).map(key).collect::<Vec<_>>());
    let read = |first, buffer: &mut AlignedBuffer| {
        file.read_at(&mut buffer[..BLOCK_BYTES], block(first)).expect("reads");
        1
    };
    let read_many = |first, buffer: &mut AlignedBuffer| {
        let parts = buffer.chunks_exact_mut(BLOCK_BYTES).zip(first..);
        let mut reads: Vec<_> =
            parts.map(|(part, number)| ReadRequest::new(&*file, block(number), part)).collect();
        directory.read_many(&mut reads);
        reads.into_iter().for_each(|read| read.outcome.expect("reads"));
        depth
    };
    let way = |name, threads, read| Way { name, threads, read, done: 0, time: Duration::ZERO };
    let mut ways = [
        way("threads_per_second", depth, &get as &(dyn Fn(u64, &mut AlignedBuffer) -> u64 + Sync)),
        way("device_threads_per_second", depth, &read),
        way("together_per_second", 1, &get_many),
        way("device_together_per_second", 1, &read_many),
    ];
    let (next, buffer_bytes) = (AtomicU64::new(0), depth as usize * BLOCK_BYTES);
    // What memory holds after that is what was read.
    let turns = (1000 * seconds).div_ceil(TURN.as_millis() as u64);
    (0..turns).for_each(|_| ways[0].turn(&next, buffer_bytes));
    (ways[0].done, ways[0].time) = (0, Duration::ZERO);
    for _ in 0..turns {
        ways.iter_mut().for_each(|way| way.turn(&next, buffer_bytes));
    }
    let figures: Vec<_> = ways.iter().map(|way| format!("\"{}\": {}", way.name, way.rate())).collect();
    println!("{{{}}}", figures.join(", "));
    store.close()
}

fn get_one(table: &Table, key: &[u8]) -> u64 {
    assert_eq!(table.get(key).expect("reads").as_deref(), Some(&VALUE[..]));
    1
}

fn get_many(table: &Table, keys: &[[u8; 8]]) -> u64 {
    for value in table.get_many(keys).expect("reads") {
        assert_eq!(value.as_deref(), Some(&VALUE[..]));
    }
    keys.len() as u64
}

/// A file of so many bytes that nothing below can compress.
fn blocks(directory: &OsDirectory, bytes: u64) -> std::sync::Arc<dyn File> {
    let file = directory.open(BLOCKS, OpenMode::CreateNew, true).expect("a file for the blocks");
    file.allocate(bytes).expect("room for the blocks");
    let mut buffer = AlignedBuffer::zeroed(WRITE_BYTES);
    for (word, number) in buffer.chunks_exact_mut(8).zip(0..) {
        word.copy_from_slice(&spread(number).to_le_bytes());
    }
    (0..bytes).step_by(WRITE_BYTES).for_each(|at| file.write_at(&buffer, at).expect("writes the blocks"));
    file.sync().expect("writes the blocks");
    file
}
