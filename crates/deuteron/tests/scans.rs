//! What [`deuteron::Scan`] returns, from one end or both, with a limit or without, lent or not; and what it keeps others from doing.

use deuteron::device::MemoryDirectory;
use deuteron::{Background, Db, Error, Options, Table, Transaction};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

fn key(number: u32) -> Vec<u8> {
    format!("key {number:05}").into_bytes()
}

/// Records of three kinds side by side: at the data component, written since, deleted since.
fn mixed(options: Options) -> (Db, Table, Records) {
    let db = options.background(Background::Inline).open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("a table");
    let mut records = Records::new();
    let mut write = |number: u32, value: Option<&[u8]>| {
        db.transact(|tx| match value {
            Some(value) => tx.put(&table, &key(number), value),
            None => tx.delete(&table, &key(number)),
        })
        .expect("writes");
        match value {
            Some(value) => drop(records.insert(key(number), value.to_vec())),
            None => drop(records.remove(&key(number))),
        }
    };
    (0..300).for_each(|number| write(number, Some(b"old")));
    db.checkpoint().expect("a checkpoint");
    while db.step().expect("steps") {}
    (0..300).step_by(3).for_each(|number| write(number, Some(b"new and longer")));
    (0..300).step_by(7).for_each(|number| write(number, None));
    (100..160).for_each(|number| write(number, None));
    (301..310).for_each(|number| write(number, Some(b"")));
    (db, table, records)
}

fn all_options() -> [Options; 2] {
    [Options::tiny_for_tests(), Options::new().memory(32 << 20)]
}

fn lent(
    tx: &mut Transaction,
    table: &Table,
    from: &[u8],
    limit: usize,
    reverse: bool,
) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut scan = tx.scan(table, from..).expect("a scan").limit(limit);
    let mut found = Vec::new();
    while let Some((key, value)) =
        if reverse { scan.next_back_ref() } else { scan.next_ref() }.expect("nobody is in the way")
    {
        found.push((key.to_vec(), value.to_vec()));
    }
    assert!(scan.next_ref().expect("over").is_none());
    found
}

#[test]
fn a_scan_returns_what_is_there_up_to_its_limit_from_either_end() {
    for options in all_options() {
        let (db, table, records) = mixed(options);
        let mut tx = db.begin();
        // Its own writes, too.
        tx.put(&table, &key(5), b"own").unwrap();
        tx.delete(&table, &key(6)).unwrap();
        let mut records = records.clone();
        records.insert(key(5), b"own".to_vec());
        records.remove(&key(6));
        for from in [0, 4, 95, 130, 299, 400] {
            let there: Vec<_> = records.range(key(from)..).map(|(k, v)| (k.clone(), v.clone())).collect();
            for limit in [0, 1, 2, 3, 16, 17, 50, 100, 1000, usize::MAX] {
                let count = limit.min(there.len());
                assert_eq!(lent(&mut tx, &table, &key(from), limit, false), there[..count]);
                let mut last: Vec<_> = there[there.len() - count..].to_vec();
                last.reverse();
                assert_eq!(lent(&mut tx, &table, &key(from), limit, true), last);
            }
            let owned = tx.scan(&table, &key(from)[..]..).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
            assert_eq!(owned, there);
        }
        tx.commit().unwrap();
    }
}

#[test]
fn two_ends_meet_and_share_their_limit() {
    for options in all_options() {
        let (db, table, records) = mixed(options);
        let mut tx = db.begin();
        for limit in [1, 5, 40, usize::MAX] {
            let mut scan = tx.scan(&table, ..).unwrap().limit(limit);
            let (mut front, mut back) = (Vec::new(), Vec::new());
            loop {
                let from_above = front.len() > 2 * back.len();
                let entry = if from_above { scan.next_back_ref() } else { scan.next_ref() }.unwrap();
                let Some((key, _)) = entry else { break };
                if from_above { back.push(key.to_vec()) } else { front.push(key.to_vec()) }
            }
            assert_eq!(front.len() + back.len(), limit.min(records.len()));
            assert!(front.iter().eq(records.keys().take(front.len())));
            assert!(back.iter().eq(records.keys().rev().take(back.len())));
            assert!(scan.next().is_none() && scan.next_back().is_none());
        }
    }
}

#[test]
fn only_what_a_limited_scan_has_returned_is_protected() {
    for options in all_options() {
        let (db, table, _) = mixed(options);
        // A transaction that is pushed beyond its begin after it has scanned, and so looks at its range again.
        let run = |between: &dyn Fn(&mut Transaction) -> Result<(), Error>| {
            let mut tx = db.begin();
            let first = tx.scan(&table, ..).unwrap().limit(1).next().expect("some").unwrap().0;
            db.transact(|other| between(other)).expect("is in nobody's way");
            tx.delete(&table, &first).unwrap();
            db.begin().get(&table, &first).unwrap();
            tx.commit()
        };
        run(&|other| other.put(&table, b"last", b"1")).expect("far behind what was returned");
        run(&|other| other.put(&table, &key(300), b"1")).expect("the same");
        let error = run(&|other| other.put(&table, b"a", b"1")).expect_err("before what was returned");
        assert!(matches!(error, Error::Conflict(_)), "{error}");
    }
}

#[test]
fn without_a_limit_batches_grow_and_with_one_there_is_one() {
    let options = Options::new().memory(32 << 20).background(Background::Inline);
    let db = options.open_in(Arc::new(MemoryDirectory::new())).expect("opens");
    let table = db.table("t").expect("a table");
    db.transact(|tx| (0..1000).try_for_each(|number| tx.put(&table, &key(number), &[7; 100]))).unwrap();
    db.checkpoint().unwrap();
    while db.step().unwrap() {}
    let batches = |limit: Option<usize>| {
        let count = || {
            let counters = db.stats().counters;
            counters.iter().find(|(name, _)| name == "tc.scan_batches").expect("is counted").1
        };
        let before = count();
        let mut tx = db.begin();
        let found = tx.scan(&table, ..).unwrap().limit(limit.unwrap_or(usize::MAX)).count();
        assert_eq!(found, limit.unwrap_or(1000));
        tx.commit().unwrap();
        count() - before
    };
    assert_eq!((batches(Some(1)), batches(Some(50)), batches(Some(999))), (1, 1, 1));
    // 4, 8, 16, 32 KiB, and the rest of 107.
    assert_eq!(batches(None), 5);
}

#[test]
fn who_takes_the_first_of_a_queue_or_the_last_of_a_stack_does_not_walk_over_all_that_was_taken_before() {
    for (options, is_stack) in
        [false, true].into_iter().flat_map(|is_stack| all_options().map(|options| (options, is_stack)))
    {
        let options = options.background(Background::Inline);
        let db = options.open_in(Arc::new(MemoryDirectory::new())).expect("opens");
        let table = db.table("queue").expect("a table");
        let mut queue: BTreeSet<Vec<u8>> = (1000..1500).map(key).collect();
        let jobs: Vec<_> = queue.iter().cloned().collect();
        jobs.chunks(50).for_each(|jobs| {
            db.transact(|tx| jobs.iter().try_for_each(|job| tx.put(&table, job, b"job"))).unwrap()
        });
        let shortened = || {
            let counters = db.stats().counters;
            counters.iter().find(|(name, _)| name == "tc.scans_shortened").expect("is counted").1
        };
        for round in 0..400 {
            if round % 40 == 39 {
                // Before all others, among what was taken.
                let urgent = key(if is_stack { 1499 - round / 2 } else { 1000 + round / 2 });
                db.transact(|tx| tx.put(&table, &urgent, b"urgent")).unwrap();
                queue.insert(urgent);
            }
            let taken = db.transact(|tx| {
                let mut scan = tx.scan(&table, ..)?.limit(1);
                let first = if is_stack { scan.next_back() } else { scan.next() };
                let (first, _) = first.expect("there are more")?;
                tx.delete(&table, &first)?;
                Ok(first)
            });
            assert_eq!(taken.ok(), if is_stack { queue.pop_last() } else { queue.pop_first() });
            let _ = db.step().unwrap();
        }
        assert!(shortened() > 200, "{}", shortened());
        let left: Vec<_> = db.begin().scan(&table, ..).unwrap().map(|entry| entry.unwrap().0).collect();
        assert!(left.iter().eq(&queue));
        db.close().unwrap();
    }
}

#[test]
fn a_limit_counts_what_was_returned_before_it_was_set() {
    for options in all_options() {
        let (db, table, records) = mixed(options);
        let keys: Vec<_> = records.keys().cloned().collect();
        for (before, limit) in [(1, 3), (5, 2), (3, 3), (0, 4), (40, 100)] {
            let mut tx = db.begin();
            let mut scan = tx.scan(&table, ..).expect("scans");
            let mut found: Vec<_> = scan.by_ref().take(before).map(|entry| entry.expect("reads").0).collect();
            found.extend(scan.limit(limit).map(|entry| entry.expect("reads").0));
            assert_eq!(found, keys[..limit.max(before)], "{before}, {limit}");
            let mut scan = tx.scan(&table, ..).expect("scans");
            let mut found: Vec<_> =
                (0..before).map(|_| scan.next_back().expect("more").expect("reads").0).collect();
            found.extend(scan.limit(limit).rev().map(|entry| entry.expect("reads").0));
            found.reverse();
            assert_eq!(found, keys[keys.len() - limit.max(before)..], "{before}, {limit}, in reverse");
        }
    }
}
