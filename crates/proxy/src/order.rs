//! The order of operations by table and key, and which of one key's is the newest.
//!
//! Operations, and their keys, lie all over the log. So what decides about most of them is kept in a number beside ([`Rank`],
//! [`Place`]), and the bytes of a key are looked at only where those of two operations begin alike and one is longer than that.

use deuteron_contract::{Operation, TableId};
use std::cmp::Ordering;

/// How much of a key is in its rank.
const PREFIX_BYTES: usize = 8;

/// The table and the first bytes of the key. Operations are ordered as their ranks are, where these differ.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Rank(u128);

impl Rank {
    #[inline]
    pub fn of(operation: &Operation<'_>) -> Rank {
        Rank::joined(operation.table, prefix(operation.key))
    }

    #[inline]
    fn joined(table: TableId, prefix: u64) -> Rank {
        Rank(u128::from(table.0) << 64 | u128::from(prefix))
    }
}

/// The first bytes of a key, padded with zeros.
#[inline]
fn prefix(key: &[u8]) -> u64 {
    let mut bytes = [0; PREFIX_BYTES];
    let length = key.len().min(PREFIX_BYTES);
    bytes[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(bytes)
}

/// The rank of an operation and which of a slice it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place(u128);

impl Place {
    #[inline]
    pub fn new(rank: Rank, index: u32) -> Place {
        Place(rank.0 << 32 | u128::from(index))
    }

    #[inline]
    pub fn index(self) -> usize {
        self.0 as u32 as usize
    }

    #[inline]
    fn rank(self) -> Rank {
        Rank(self.0 >> 32)
    }
}

/// The order of two keys whose ranks are equal.
#[inline]
fn order_beyond_rank(one: &[u8], other: &[u8]) -> Ordering {
    // The prefix is padded with zeros: of two that are no longer, the shorter one begins like the other.
    if one.len().max(other.len()) <= PREFIX_BYTES { one.len().cmp(&other.len()) } else { one.cmp(other) }
}

/// Whether `one` is newer than `other`, an operation on the same key.
#[inline]
pub(crate) fn is_newer(one: &Operation<'_>, other: &Operation<'_>) -> bool {
    (one.timestamp, one.lsn) > (other.timestamp, other.lsn)
}

/// Orders `places` by table and key, and leaves of one key only the newest.
pub(crate) fn sort<'o, 'a: 'o>(places: &mut Vec<Place>, at: impl Fn(usize) -> &'o Operation<'a>) {
    places.sort_unstable();
    let of = |place: &Place| at(place.index());
    let (mut kept, mut from) = (0, 0);
    while let Some(&first) = places.get(from) {
        let same = places[from..].iter().take_while(|place| place.rank() == first.rank()).count();
        let group = from..from + same;
        if same == 1 {
            places[kept] = first;
            kept += 1;
        } else {
            // The newest of each key comes first.
            places[group.clone()].sort_unstable_by(|one, other| {
                let (one, other) = (of(one), of(other));
                let by_age = || (other.timestamp, other.lsn).cmp(&(one.timestamp, one.lsn));
                order_beyond_rank(one.key, other.key).then_with(by_age)
            });
            let mut last: Option<&Operation<'_>> = None;
            for index in group {
                let place = places[index];
                let operation = of(&place);
                if last.is_none_or(|last| order_beyond_rank(last.key, operation.key).is_ne()) {
                    places[kept] = place;
                    kept += 1;
                }
                last = Some(operation);
            }
        }
        from += same;
    }
    places.truncate(kept);
}

/// An operation with the part of its rank that lies elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ranked<'a> {
    prefix: u64,
    pub operation: Operation<'a>,
}

impl<'a> Ranked<'a> {
    #[inline]
    pub fn new(operation: Operation<'a>) -> Self {
        Ranked { prefix: prefix(operation.key), operation }
    }

    #[inline]
    pub fn rank(&self) -> Rank {
        Rank::joined(self.operation.table, self.prefix)
    }

    /// By table and key.
    #[inline]
    pub fn order(&self, other: &Ranked<'_>) -> Ordering {
        let beyond = || order_beyond_rank(self.operation.key, other.operation.key);
        self.rank().cmp(&other.rank()).then_with(beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_contract::{Lsn, Timestamp};

    proptest::proptest! {
        #[test]
        fn the_order_is_that_of_the_keys(keys in proptest::collection::vec(
            (0u32..2, proptest::collection::vec(0u8..3, 1..12), 0u64..4), 0..60,
        )) {
            let mut operations: Vec<Operation<'_>> = (0..)
                .zip(&keys)
                .map(|(lsn, (table, key, timestamp))| Operation {
                    table: TableId(*table), key, value: None, timestamp: Timestamp(*timestamp), lsn: Lsn(lsn),
                })
                .collect();
            for pair in operations.windows(2) {
                let by_key = (pair[0].table, pair[0].key).cmp(&(pair[1].table, pair[1].key));
                proptest::prop_assert_eq!(Ranked::new(pair[0]).order(&Ranked::new(pair[1])), by_key);
            }
            let mut places: Vec<Place> = (0..)
                .zip(&operations)
                .map(|(index, operation)| Place::new(Rank::of(operation), index))
                .collect();
            sort(&mut places, |index| &operations[index]);
            let found: Vec<_> = places.iter().map(|place| operations[place.index()]).collect();
            operations.sort_by_key(|operation| {
                (operation.table, operation.key, std::cmp::Reverse((operation.timestamp, operation.lsn)))
            });
            operations.dedup_by_key(|operation| (operation.table, operation.key));
            proptest::prop_assert_eq!(found, operations);
        }
    }
}
