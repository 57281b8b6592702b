//! How fast one thread upserts and reads a tree in memory.
//!
//! `cargo run --release -p deuteron-bwtree --example tree_rate -- [records] [value bytes] [page bytes] [consolidate at]`

use deuteron_bwtree::{Options, Tree, Upsert};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_llama::Llama;
use std::sync::Arc;
use std::time::Instant;

fn mix(number: u64) -> u64 {
    let z = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

fn main() {
    let argument = |at: usize, default: usize| {
        std::env::args().nth(at).map_or(default, |text| text.parse().expect("a number"))
    };
    let records = argument(1, 4_000_000) as u64;
    let value = vec![7u8; argument(2, 8)];
    let options = Options {
        page_bytes_max: argument(3, Options::default().page_bytes_max),
        consolidate_at: argument(4, Options::default().consolidate_at),
        ..Options::default()
    };
    let epochs = Epochs::new();
    let memory = deuteron_llama::Options { memory_bytes: 8 << 30, ..Default::default() };
    let (llama, _) = Llama::open(Arc::new(MemoryDirectory::new()), memory, epochs).expect("a new store");
    let tree = Tree::create(Arc::new(llama), 1, options);

    let rate = |what: &str, count: u64, work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        let nanoseconds = start.elapsed().as_nanos() as f64 / count as f64;
        println!("{what:40} {nanoseconds:8.0} ns/op");
    };
    // As the proxy does: batches of 1000 random keys, sorted.
    let mut stamp = 0;
    let mut upsert_all = |name: &str, count: u64| {
        rate(name, count, &mut || {
            let mut next = 0;
            while next < count {
                stamp += 1;
                let mut keys: Vec<_> =
                    (next..count.min(next + 1000)).map(|n| mix(n % records).to_be_bytes()).collect();
                keys.sort_unstable();
                let batch: Vec<_> =
                    keys.iter().map(|key| Upsert { key, value: Some(&value), stamp, lsn: stamp }).collect();
                tree.upsert(&batch).expect("no I/O");
                next += 1000;
            }
        });
    };
    upsert_all("insert, sorted batches of 1000", records);
    upsert_all("update, sorted batches of 1000", records.min(1_000_000));
    for round in 0..2 {
        rate("get", records.min(2_000_000), &mut || {
            let mut found = 0;
            for number in 0..records.min(2_000_000) {
                let key = mix((number * 7 + round) % records).to_be_bytes();
                let guard = tree.llama().pin();
                found += tree.try_get(&key, &guard).expect("resident").map_or(0, |r| r.value.unwrap().len());
            }
            assert_eq!(found as u64, records.min(2_000_000) * value.len() as u64);
        });
    }
    println!("{:?}\n{:?}", tree.statistics(), tree.check().expect("a sound tree"));
    println!("pages take {} MiB", tree.llama().memory_bytes() >> 20);
}
