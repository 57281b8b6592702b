//! What `cargo xtask accept data-component` measures on the stand-alone store. Each mode prints its figures as one JSON object.
//!
//! ```sh
//! cargo run --release -p deuteron-store --example acceptance -- in-memory RECORDS THREADS
//! … -- fill DIRECTORY RECORDS [stay]       # `stay`: persist, say so, and go on writing until killed
//! … -- first-read DIRECTORY RECORDS
//! … -- cold-upserts DIRECTORY RECORDS UPSERTS
//! … -- peak-memory DIRECTORY RECORDS BUDGET
//! … -- cold-reads DIRECTORY RECORDS BUDGET DEPTH SECONDS
//! … -- amplification DIRECTORY RECORDS BUDGET
//! … -- shrink DIRECTORY RECORDS BUDGET
//! … -- latency DIRECTORY RECORDS BUDGET SECONDS
//! … -- updates DIRECTORY RECORDS BUDGET SECONDS BEFORE   # BEFORE: so many times the records are updated first
//! ```

mod numbers;
mod reads;
mod space;
mod updates;

use crossbeam_skiplist::SkipMap;
use deuteron_store::device::MemoryDirectory;
use deuteron_store::{Batch, Error, Options, Store, Table};
use numbers::{handover_nanos, rate, spread};
use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

const VALUE: [u8; 100] = [7; 100];

thread_local! {
    /// What a thread has read last.
    static VALUE_READ: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Random inserts and lookups of 8-byte keys, by the store and by crossbeam's skip list. Each is made twice, and the second time counts: the host of
/// a virtual machine takes memory that is free back, and gives it again far slower than the system zeroes it; so who comes first would pay for
/// that, and who takes it in large pieces for more of it.
fn in_memory(records: u64, threads: u64) -> Result<(), Error> {
    let store = || -> Result<[f64; 2], Error> {
        let store = Options::new().memory(8 << 30).open_in(Arc::new(MemoryDirectory::new()))?;
        let table = store.table("t")?;
        let insert = |number| {
            table.upsert(&spread(number).to_be_bytes(), &u64::to_le_bytes(number)).expect("writes");
        };
        let lookup = |number| {
            VALUE_READ.with_borrow_mut(|value| {
                assert!(table.get_into(&spread(number).to_be_bytes(), value).expect("reads"));
                assert_eq!(value[..], u64::to_le_bytes(number));
            });
        };
        let rates = [rate(threads, records, insert), rate(threads, records, lookup)];
        store.close()?;
        Ok(rates)
    };
    let skip_list = || -> [f64; 2] {
        let map = SkipMap::new();
        let insert = |number| drop(map.insert(spread(number), number));
        let lookup = |number| assert_eq!(map.get(&spread(number)).map(|entry| *entry.value()), Some(number));
        [rate(threads, records, insert), rate(threads, records, lookup)]
    };
    store()?;
    let own = store()?;
    skip_list();
    let theirs = skip_list();
    println!(
        "{{\"inserts\": {}, \"lookups\": {}, \"skiplist_inserts\": {}, \"skiplist_lookups\": {}, \"handover_nanos\": {}}}",
        own[0],
        own[1],
        theirs[0],
        theirs[1],
        handover_nanos()
    );
    Ok(())
}

/// Writes records in key order.
fn fill(store: &Store, records: u64) -> Result<Table, Error> {
    let table = store.table("t")?;
    let mut batch = Batch::new();
    for number in 0..records {
        batch.upsert(&table, &number.to_be_bytes(), &VALUE);
        if batch.len() == 1000 || number + 1 == records {
            store.apply(&batch)?;
            batch.clear();
        }
    }
    Ok(table)
}

fn fill_and_close(path: &Path, records: u64, stay: bool) -> Result<(), Error> {
    let store = Options::new().open(path)?;
    let table = fill(&store, records)?;
    store.persist()?;
    println!("{{\"records\": {records}}}");
    for number in 0.. {
        if !stay {
            break;
        }
        table.upsert(&(spread(number) % records).to_be_bytes(), &VALUE)?;
    }
    store.close()
}

fn first_read(path: &Path, records: u64) -> Result<(), Error> {
    let begin = Instant::now();
    let store = Options::new().create_if_missing(false).open(path)?;
    let found = store.table("t")?.get(&(records / 2).to_be_bytes())?;
    let seconds = begin.elapsed().as_secs_f64();
    println!("{{\"seconds\": {seconds}, \"found\": {}}}", found.is_some());
    store.close()
}

/// Upserts onto pages that are not in memory; how many pages were loaded and fragments read for it.
fn cold_upserts(path: &Path, records: u64, upserts: u64) -> Result<(), Error> {
    let store = Options::new().open(path)?;
    fill(&store, records)?;
    store.close()?;
    let store = Options::new().memory(1 << 30).open(path)?;
    let table = store.table("t")?;
    let counter = |name| store.stats().counter(name).unwrap_or(u64::MAX);
    let (loads, reads) = (counter("loads"), counter("fragments_read"));
    let begin = Instant::now();
    for number in 0..upserts {
        table.upsert(&(spread(number) % records).to_be_bytes(), &VALUE)?;
    }
    let rate = upserts as f64 / begin.elapsed().as_secs_f64();
    println!(
        "{{\"loads\": {}, \"reads\": {}, \"back_pressure\": {}, \"rate\": {rate}}}",
        counter("loads") - loads,
        counter("fragments_read") - reads,
        counter("back_pressure"),
    );
    store.close()
}

/// Fills, updates and reads (two threads, at random), and scans more than memory holds; the most memory that the process has had.
fn peak_memory(path: &Path, records: u64, budget: usize) -> Result<(), Error> {
    let store = Options::new().memory(budget).open(path)?;
    let table = fill(&store, records)?;
    let rate = rate(2, records / 4, |number| {
        let key = (spread(number) % records).to_be_bytes();
        match number / 2 % 4 {
            0 => drop(table.get(&key).expect("reads")),
            _ => table.upsert(&key, &VALUE).expect("writes"),
        }
    });
    let scanned = table.scan(..).take(records as usize / 10).filter(Result::is_ok).count();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    let peak = peak.unwrap_or(0) * 1024;
    println!("{{\"peak_bytes\": {peak}, \"rate\": {rate}, \"scanned\": {scanned}}}");
    store.close()
}

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| -> u64 { arguments[at].parse().expect("a number") };
    let path = || Path::new(&arguments[1]);
    match arguments[0].as_str() {
        "in-memory" => in_memory(number(1), number(2)),
        "fill" => fill_and_close(path(), number(2), arguments.get(3).is_some_and(|word| word == "stay")),
        "first-read" => first_read(path(), number(2)),
        "cold-upserts" => cold_upserts(path(), number(2), number(3)),
        "peak-memory" => peak_memory(path(), number(2), number(3) as usize),
        "cold-reads" => reads::cold_reads(path(), number(2), number(3) as usize, number(4), number(5)),
        "amplification" => space::amplification(path(), number(2), number(3) as usize),
        "shrink" => space::shrink(path(), number(2), number(3) as usize),
        "latency" => space::latency(path(), number(2), number(3) as usize, number(4)),
        "updates" => {
            let before = arguments[5].parse().expect("a number");
            updates::updates(path(), number(2), number(3) as usize, number(4), before)
        }
        other => panic!("there is no mode {other}"),
    }
}
