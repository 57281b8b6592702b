//! Random inserts and lookups of 8-byte keys and values in memory: the stand-alone store, and what a Rust program would otherwise take.
//!
//! | name | what it is | what it does not do |
//! |---|---|---|
//! | `deuteron-store` | a Bw-tree over pages; variable keys, durable, larger than memory | |
//! | `bf-tree` | a B-tree with variable pages, of Microsoft Research; here in memory | nothing that counts here |
//! | `skiplist` | crossbeam's `SkipMap` of two numbers | memory only, values in place |
//! | `congee` | an adaptive radix tree of two numbers | memory only, keys of 8 bytes only |
//!
//! ```sh
//! cargo run --release --manifest-path peers/in-memory/Cargo.toml -- 4000000 2   # records, threads
//! ```

#[path = "../../../crates/store/examples/acceptance/numbers.rs"]
mod numbers;

use bf_tree::{BfTree, LeafInsertResult, LeafReadResult};
use deuteron_store::Options;
use deuteron_store::device::MemoryDirectory;
use numbers::{handover_nanos, rate, spread};
use std::cell::RefCell;
use std::error::Error;
use std::sync::Arc;

/// What each thread has read last.
fn with_buffer<R>(work: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    thread_local!(static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) });
    BUFFER.with_borrow_mut(work)
}

fn measure(
    name: &str,
    (records, threads): (u64, u64),
    insert: impl Fn(u64) + Sync,
    lookup: impl Fn(u64) + Sync,
) {
    let inserts = rate(threads, records, insert);
    let lookups = rate(threads, records, lookup);
    println!("{name:15} inserts {:.2} M/s, lookups {:.2} M/s", inserts / 1e6, lookups / 1e6);
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let records: u64 = arguments.next().ok_or("how many records?")?.parse()?;
    let threads: u64 = arguments.next().ok_or("how many threads?")?.parse()?;
    let work = (records, threads);

    let store = Options::new().memory(8 << 30).open_in(Arc::new(MemoryDirectory::new()))?;
    let table = store.table("t")?;
    measure(
        "deuteron-store",
        work,
        |number| table.upsert(&spread(number).to_be_bytes(), &number.to_le_bytes()).expect("writes"),
        |number| {
            with_buffer(|value| {
                assert!(table.get_into(&spread(number).to_be_bytes(), value).expect("reads"));
                assert_eq!(value[..], number.to_le_bytes());
            });
        },
    );
    store.close()?;

    // All in memory, its other settings as they come. The buffer is reserved, not touched.
    let mut config = bf_tree::Config::new(":memory:", 4 << 30);
    config.cb_min_record_size(16);
    let tree = BfTree::with_config(config, None).map_err(|error| format!("{error:?}"))?;
    measure(
        "bf-tree",
        work,
        |number| {
            let inserted = tree.insert(&spread(number).to_be_bytes(), &number.to_le_bytes());
            assert!(matches!(inserted, LeafInsertResult::Success));
        },
        |number| {
            let mut value = [0; 64];
            let found = tree.read(&spread(number).to_be_bytes(), &mut value);
            assert!(matches!(found, LeafReadResult::Found(8)) && value[..8] == number.to_le_bytes());
        },
    );
    drop(tree);

    let map = crossbeam_skiplist::SkipMap::new();
    measure(
        "skiplist",
        work,
        |number| drop(map.insert(spread(number), number)),
        |number| assert_eq!(map.get(&spread(number)).map(|entry| *entry.value()), Some(number)),
    );
    drop(map);

    let tree = congee::Congee::<usize, usize>::default();
    measure(
        "congee",
        work,
        |number| {
            tree.insert(spread(number) as usize, number as usize, &tree.pin()).expect("memory");
        },
        |number| assert_eq!(tree.get(&(spread(number) as usize), &tree.pin()), Some(number as usize)),
    );
    println!("a line goes from one processor to the other in {:.0} ns", handover_nanos());
    Ok(())
}
