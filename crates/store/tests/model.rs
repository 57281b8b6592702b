//! Random operations against an ordered map: what a store returns is what the map holds, across closing and opening; in memory, and in real
//! files with io_uring and without.

use deuteron_store::device::{Directory, MemoryDirectory, OsDirectory};
use deuteron_store::{Batch, Options, Store, Table};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Step {
    Upsert(u8, Vec<u8>),
    Delete(u8),
    Batch(Vec<(u8, Option<Vec<u8>>)>),
    /// Reads a range, so many from the front, then the rest from the back.
    Scan(u8, u8, usize),
    GetMany(Vec<u8>),
    Persist,
    Work,
    Reopen,
}

fn key(number: u8) -> Vec<u8> {
    // Several lengths, one the beginning of another.
    match number % 4 {
        0 => format!("k{}", number / 4).into_bytes(),
        _ => format!("k{}/{number}", number / 4).into_bytes(),
    }
}

fn step() -> impl Strategy<Value = Step> {
    // One in ten is a large one, in chunks.
    let value = || {
        prop_oneof![
            9 => prop::collection::vec(any::<u8>(), 0..120),
            1 => (any::<u8>(), 1000usize..5000).prop_map(|(byte, length)| vec![byte; length]),
        ]
    };
    prop_oneof![
        8 => (any::<u8>(), value()).prop_map(|(key, value)| Step::Upsert(key, value)),
        3 => any::<u8>().prop_map(Step::Delete),
        4 => prop::collection::vec((any::<u8>(), prop::option::of(value())), 0..40).prop_map(Step::Batch),
        3 => (any::<u8>(), any::<u8>(), 0usize..30).prop_map(|(from, to, front)| Step::Scan(from, to, front)),
        2 => prop::collection::vec(any::<u8>(), 0..20).prop_map(Step::GetMany),
        1 => Just(Step::Persist),
        2 => Just(Step::Work),
        1 => Just(Step::Reopen),
    ]
}

struct Bed {
    directory: Arc<dyn Directory>,
    store: Store,
    table: Table,
    model: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Bed {
    fn new(directory: Arc<dyn Directory>) -> Bed {
        let store = Options::tiny_for_tests().open_in(Arc::clone(&directory)).expect("opens");
        let table = store.table("t").expect("creates");
        Bed { directory, store, table, model: BTreeMap::new() }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Upsert(number, value) => {
                self.table.upsert(&key(number), &value).expect("writes");
                self.model.insert(key(number), value);
            }
            Step::Delete(number) => {
                self.table.delete(&key(number)).expect("deletes");
                self.model.remove(&key(number));
            }
            Step::Batch(writes) => {
                let mut batch = Batch::new();
                for (number, value) in &writes {
                    match value {
                        Some(value) => batch.upsert(&self.table, &key(*number), value),
                        None => batch.delete(&self.table, &key(*number)),
                    };
                }
                self.store.apply(&batch).expect("applies");
                for (number, value) in writes {
                    match value {
                        Some(value) => self.model.insert(key(number), value),
                        None => self.model.remove(&key(number)),
                    };
                }
            }
            Step::Scan(from, to, front) => self.compare(key(from)..key(to), front),
            Step::GetMany(numbers) => {
                let keys: Vec<_> = numbers.iter().map(|&number| key(number)).collect();
                let expected: Vec<_> = keys.iter().map(|key| self.model.get(key).cloned()).collect();
                assert_eq!(self.table.get_many(&keys).expect("reads"), expected);
            }
            Step::Persist => self.store.persist().expect("persists"),
            Step::Work => drop(self.store.step().expect("works")),
            Step::Reopen => {
                self.store.clone().close().expect("closes");
                self.store =
                    Options::tiny_for_tests().open_in(Arc::clone(&self.directory)).expect("opens again");
                self.table = self.store.table("t").expect("is there");
            }
        }
    }

    fn compare(&self, range: std::ops::Range<Vec<u8>>, front: usize) {
        let expected: Vec<_> = match range.start < range.end {
            true => {
                self.model.range(range.clone()).map(|(key, value)| (key.clone(), value.clone())).collect()
            }
            false => Vec::new(),
        };
        self.compare_limited(range.clone(), front, &expected);
        let mut scan = self.table.scan(range);
        let mut found: Vec<_> = scan.by_ref().take(front).map(|entry| entry.expect("reads")).collect();
        let mut back: Vec<_> = scan.rev().map(|entry| entry.expect("reads")).collect();
        back.reverse();
        found.extend(back);
        assert_eq!(found, expected);
    }

    /// A scan with a limit ends there from either end, or from both, and lends what others give away.
    fn compare_limited(
        &self,
        range: std::ops::Range<Vec<u8>>,
        limit: usize,
        expected: &[(Vec<u8>, Vec<u8>)],
    ) {
        let scan = || self.table.scan(range.clone()).limit(limit);
        let wanted = limit.min(expected.len());
        let first: Vec<_> = scan().map(|entry| entry.expect("reads")).collect();
        assert_eq!(first, expected[..wanted]);
        let last: Vec<_> = scan().rev().map(|entry| entry.expect("reads")).collect();
        assert!(last.iter().eq(expected.iter().rev().take(wanted)));
        let (mut lent, mut count) = (scan(), 0);
        loop {
            let (low, high) = (count / 2, expected.len().wrapping_sub(count / 2 + 1));
            let (entry, at) = match count % 2 {
                0 => (lent.next_ref(), low),
                _ => (lent.next_back_ref(), high),
            };
            let Some((key, value)) = entry.expect("reads") else { break };
            assert_eq!((key, value), (&*expected[at].0, &*expected[at].1));
            count += 1;
        }
        assert_eq!(count, wanted);
    }
}

/// Takes all steps, and compares everything.
fn run(directory: Arc<dyn Directory>, steps: Vec<Step>) {
    let mut bed = Bed::new(directory);
    for step in steps {
        bed.take(step);
    }
    for number in 0..=u8::MAX {
        let found = bed.table.get(&key(number)).expect("reads");
        assert_eq!(found.as_ref(), bed.model.get(&key(number)));
    }
    bed.compare(key(0)..b"z".to_vec(), usize::MAX);
    bed.store.check().expect("sound");
}

proptest! {
    #[test]
    fn a_store_behaves_as_an_ordered_map(steps in prop::collection::vec(step(), 1..120)) {
        run(Arc::new(MemoryDirectory::new()), steps);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn a_store_in_real_files_behaves_as_an_ordered_map(steps in prop::collection::vec(step(), 1..120)) {
        let scratch = tempfile::tempdir().expect("a directory");
        let real = |name| OsDirectory::open_or_create(scratch.path().join(name)).expect("opens");
        run(Arc::new(real("ring")), steps.clone());
        run(Arc::new(real("threads").without_io_uring()), steps);
    }
}
