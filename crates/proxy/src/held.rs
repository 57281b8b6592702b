//! [`Held`]: copied operations of one transaction.

use deuteron_contract::{Lsn, Operation, TableId, Timestamp};

/// One copied operation; its bytes are in [`Held::bytes`].
#[derive(Clone, Copy, Debug)]
struct HeldOperation {
    lsn: Lsn,
    table: TableId,
    start: usize,
    key_bytes: usize,
    /// `None` for a delete.
    value_bytes: Option<usize>,
}

/// What [`Held`] costs beside the bytes of keys and values, per operation.
const OPERATION_BYTES: usize = size_of::<HeldOperation>();
const LSN_BYTES: usize = size_of::<Lsn>();
/// And by itself: three pieces of memory, each with what the allocator needs and rounds up, and its entries in the maps of who keeps it.
const PART_BYTES: usize = size_of::<Held>() + 3 * 32 + 64;

/// Operations of one transaction, copied out of the log because they cannot be posted yet, in the order of the log.
///
/// Either all of them have their bytes here, or (a transaction too large for the side buffer) all of them are only
/// known by their LSNs.
#[derive(Debug, Default)]
pub(crate) struct Held {
    operations: Vec<HeldOperation>,
    bytes: Vec<u8>,
    /// Not empty if the bytes were left in the log.
    left_in_log: Vec<Lsn>,
}

impl Held {
    /// Operations, or a large one with its pieces, whose bytes stay in the log.
    pub fn of_log(lsns: Vec<Lsn>) -> Held {
        Held { left_in_log: lsns, ..Held::default() }
    }

    /// The position of the first operation.
    pub fn first_lsn(&self) -> Option<Lsn> {
        self.left_in_log.first().copied().or(self.operations.first().map(|operation| operation.lsn))
    }

    /// The position of the last operation.
    pub fn last_lsn(&self) -> Option<Lsn> {
        self.left_in_log.last().copied().or(self.operations.last().map(|operation| operation.lsn))
    }

    pub fn len(&self) -> usize {
        self.operations.len() + self.left_in_log.len()
    }

    /// The bytes that count against a bound: about what it takes.
    pub fn cost(&self) -> usize {
        if self.len() == 0 {
            return 0;
        }
        PART_BYTES
            + self.bytes.capacity()
            + self.operations.capacity() * OPERATION_BYTES
            + self.left_in_log.capacity() * LSN_BYTES
    }

    pub fn is_left_in_log(&self) -> bool {
        !self.left_in_log.is_empty()
    }

    /// The LSNs of operations whose bytes were left in the log.
    pub fn left_in_log(&self) -> &[Lsn] {
        &self.left_in_log
    }

    /// Adds an operation behind the others.
    pub fn push(&mut self, lsn: Lsn, table: TableId, key: &[u8], value: Option<&[u8]>) {
        debug_assert!(
            self.last_lsn().is_none_or(|last| last < lsn),
            "operations come in the order of the log"
        );
        if self.is_left_in_log() {
            self.left_in_log.push(lsn);
            return;
        }
        let start = self.bytes.len();
        if start == 0 {
            // Most transactions that wait have one operation or a few: as much as that takes, and not as much as a vector begins with.
            self.bytes.reserve_exact(key.len() + value.map_or(0, <[u8]>::len));
            self.operations.reserve_exact(1);
        }
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value.unwrap_or_default());
        let value_bytes = value.map(<[u8]>::len);
        self.operations.push(HeldOperation { lsn, table, start, key_bytes: key.len(), value_bytes });
    }

    /// Drops the bytes and keeps the LSNs.
    pub fn leave_in_log(&mut self) {
        let operations = std::mem::take(&mut self.operations);
        self.left_in_log.extend(operations.iter().map(|operation| operation.lsn));
        self.bytes = Vec::new();
    }

    /// Adds a large operation, whose bytes stay in the log, with its pieces; and so do all others from now on.
    pub fn push_large(&mut self, lsns: Vec<Lsn>) {
        self.leave_in_log();
        self.left_in_log.extend(lsns);
    }

    /// The operations whose bytes are here.
    pub fn operations(&self, timestamp: Timestamp) -> impl Iterator<Item = Operation<'_>> {
        self.operations.iter().map(move |operation| {
            let (key, rest) = self.bytes[operation.start..].split_at(operation.key_bytes);
            let value = operation.value_bytes.map(|bytes| &rest[..bytes]);
            Operation { table: operation.table, key, value, timestamp, lsn: operation.lsn }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_come_back_as_they_were_pushed() {
        let mut held = Held::default();
        held.push(Lsn(8), TableId(1), b"a", Some(b"one"));
        held.push(Lsn(16), TableId(2), b"bc", None);
        held.push(Lsn(24), TableId(1), b"d", Some(b""));
        let operations: Vec<_> = held.operations(Timestamp(5)).collect();
        let expected = |table, key, value, lsn| Operation {
            table: TableId(table),
            key,
            value,
            timestamp: Timestamp(5),
            lsn: Lsn(lsn),
        };
        assert_eq!(
            operations,
            [
                expected(1, b"a".as_slice(), Some(b"one".as_slice()), 8),
                expected(2, b"bc", None, 16),
                expected(1, b"d", Some(b""), 24)
            ]
        );
        assert_eq!((held.first_lsn(), held.last_lsn()), (Some(Lsn(8)), Some(Lsn(24))));
    }

    #[test]
    fn operations_left_in_the_log_cost_their_lsn() {
        let mut held = Held::default();
        held.push(Lsn(8), TableId(1), b"a", Some(&[7; 1000]));
        held.leave_in_log();
        held.push(Lsn(16), TableId(1), b"b", Some(&[7; 1000]));
        assert_eq!(held.left_in_log(), [Lsn(8), Lsn(16)]);
        assert!(held.cost() < PART_BYTES + 100, "{}", held.cost());
        assert_eq!((held.first_lsn(), held.last_lsn(), held.len()), (Some(Lsn(8)), Some(Lsn(16)), 2));
    }
}
