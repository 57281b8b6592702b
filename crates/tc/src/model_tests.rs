//! One client at a time against an ordered map, with everything so small that values are evicted, recycled and read back
//! all the time.

use crate::test_bed::{TABLE, tiny};
use crate::{ScanCursor, TcError, Transaction};
use deuteron_contract::Direction;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Bound;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Action {
    Get(u8),
    Put(u8, u8, usize),
    Delete(u8),
    Scan(u8, u8, bool, usize),
    /// Takes the first so many from that end.
    Take(bool, usize),
    /// A scan that writes between its batches.
    ScanAndPut(u8, u8),
    Commit,
    Abort,
    Settle,
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        4 => any::<u8>().prop_map(Action::Get),
        6 => (any::<u8>(), any::<u8>(), 0usize..300).prop_map(|(key, byte, len)| Action::Put(key, byte, len)),
        2 => any::<u8>().prop_map(Action::Delete),
        2 => (any::<u8>(), any::<u8>(), any::<bool>(), 0usize..20)
            .prop_map(|(from, to, reverse, limit)| Action::Scan(from, to, reverse, limit)),
        3 => (any::<bool>(), 0usize..20).prop_map(|(reverse, count)| Action::Take(reverse, count)),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(from, to)| Action::ScanAndPut(from, to)),
        3 => Just(Action::Commit),
        1 => Just(Action::Abort),
        1 => Just(Action::Settle),
    ]
}

fn key(number: u8) -> Vec<u8> {
    // Of several lengths, and beyond the eight bytes that the ordered index keeps.
    let mut key = format!("key of {:03}", number / 4).into_bytes();
    key.extend(std::iter::repeat_n(b'x', usize::from(number % 4)));
    key
}

fn scan(tx: &mut Transaction, from: u8, to: u8, reverse: bool, limit: usize) -> Result<Map, TcError> {
    let (lower, upper) = (key(from), key(to));
    let direction = if reverse { Direction::Reverse } else { Direction::Forward };
    tx.scan(TABLE, Bound::Excluded(&lower), Bound::Included(&upper), direction).take(limit).collect()
}

fn expected(map: &Map, from: u8, to: u8, reverse: bool, limit: usize) -> Map {
    let (lower, upper) = (key(from), key(to));
    if lower >= upper {
        return Map::new();
    }
    let range = map.range((Bound::Excluded(lower), Bound::Included(upper)));
    let owned = |(key, value): (&Vec<u8>, &Vec<u8>)| (key.clone(), value.clone());
    if reverse {
        range.rev().take(limit).map(owned).collect()
    } else {
        range.take(limit).map(owned).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_single_client_sees_an_ordered_map(actions in prop::collection::vec(action(), 1..400)) {
        let bed = tiny();
        let mut committed = Map::new();
        let mut tx = bed.begin();
        let mut current = committed.clone();
        for action in actions {
            match action {
                Action::Get(number) => {
                    let found = tx.get(TABLE, &key(number)).unwrap();
                    prop_assert_eq!(found.as_ref(), current.get(&key(number)));
                }
                Action::Put(number, byte, len) => {
                    let value = vec![byte; len];
                    tx.put(TABLE, &key(number), &value).unwrap();
                    current.insert(key(number), value);
                }
                Action::Delete(number) => {
                    tx.delete(TABLE, &key(number)).unwrap();
                    current.remove(&key(number));
                }
                Action::Scan(from, to, reverse, limit) => {
                    let found = scan(&mut tx, from, to, reverse, limit).unwrap();
                    prop_assert_eq!(found, expected(&current, from, to, reverse, limit));
                }
                Action::Take(reverse, count) => {
                    let found = scan(&mut tx, 0, u8::MAX, reverse, count).unwrap();
                    prop_assert_eq!(&found, &expected(&current, 0, u8::MAX, reverse, count));
                    for key in found.keys() {
                        tx.delete(TABLE, key).unwrap();
                        current.remove(key);
                    }
                }
                Action::ScanAndPut(from, to) => {
                    let mut cursor = ScanCursor::new(
                        TABLE,
                        Bound::Included(key(from)),
                        Bound::Excluded(key(to)),
                        Direction::Forward,
                    );
                    let mut last = None;
                    while let Some(batch) = tx.scan_batch(&mut cursor).unwrap() {
                        for (key, value) in batch {
                            prop_assert_eq!(current.get(&key), Some(&value));
                            prop_assert!(last < Some(key.clone()));
                            tx.put(TABLE, &key, b"seen").unwrap();
                            current.insert(key.clone(), b"seen".to_vec());
                            last = Some(key);
                        }
                    }
                }
                Action::Commit => {
                    tx.commit().unwrap();
                    committed = current.clone();
                    tx = bed.begin();
                }
                Action::Abort => {
                    tx = bed.begin();
                    current = committed.clone();
                }
                Action::Settle => {
                    bed.step();
                }
            }
        }
        drop(tx);
        bed.settle();
        let mut tx = bed.begin();
        let all: Map =
            tx.scan(TABLE, Bound::Unbounded, Bound::Unbounded, Direction::Reverse).collect::<Result<_, _>>().unwrap();
        prop_assert_eq!(all, committed);
    }
}
