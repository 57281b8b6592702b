//! [`WaitingList`]: operations of committed transactions that are not below the horizon yet.

use crate::held::Held;
use deuteron_contract::{Lsn, TableId, Timestamp};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Committed operations by final timestamp, which belongs to one transaction each.
#[derive(Default)]
pub(crate) struct WaitingList {
    /// A transaction may have two parts: one that came from the side buffer when it committed, and one that the
    /// delayed pass met afterwards (with higher LSNs).
    transactions: BTreeMap<Timestamp, Vec<Held>>,
    /// The first LSN of each part. Entries of what has been taken go when they come to the top.
    firsts: BinaryHeap<Reverse<(Lsn, Timestamp)>>,
    bytes: usize,
}

impl WaitingList {
    /// Adds an operation that the delayed pass has met.
    pub fn push(&mut self, timestamp: Timestamp, lsn: Lsn, table: TableId, key: &[u8], value: Option<&[u8]>) {
        let parts = self.transactions.entry(timestamp).or_default();
        let appendable = parts.last().is_some_and(|part| !part.is_left_in_log());
        if !appendable {
            parts.push(Held::default());
        }
        if let Some(part) = parts.last_mut() {
            let before = part.cost();
            part.push(lsn, table, key, value);
            if !appendable {
                self.firsts.push(Reverse((lsn, timestamp)));
            }
            self.bytes += part.cost() - before;
        }
    }

    /// Adds what the side buffer held of a transaction that has committed.
    pub fn insert(&mut self, timestamp: Timestamp, held: Held) {
        self.bytes += held.cost();
        self.firsts.extend(held.first_lsn().map(|lsn| Reverse((lsn, timestamp))));
        self.transactions.entry(timestamp).or_default().push(held);
    }

    /// Takes the transaction with the lowest final timestamp, if that is below the horizon.
    pub fn pop_below(&mut self, horizon: Timestamp) -> Option<(Timestamp, Vec<Held>)> {
        let entry = self.transactions.first_entry().filter(|entry| *entry.key() < horizon)?;
        let (timestamp, parts) = entry.remove_entry();
        self.bytes -= parts.iter().map(Held::cost).sum::<usize>();
        while let Some(Reverse((_, first))) = self.firsts.peek()
            && !self.transactions.contains_key(first)
        {
            self.firsts.pop();
        }
        Some((timestamp, parts))
    }

    /// The lowest horizon that would leave at most `bytes_max` bytes waiting.
    pub fn horizon_for(&self, bytes_max: usize) -> Timestamp {
        let mut left = self.bytes;
        for (timestamp, parts) in &self.transactions {
            if left <= bytes_max {
                return *timestamp;
            }
            left -= parts.iter().map(Held::cost).sum::<usize>();
        }
        self.transactions.last_key_value().map_or(Timestamp(0), |(timestamp, _)| Timestamp(timestamp.0 + 1))
    }

    /// The lowest horizon that would leave nothing waiting of what begins below `lsn`.
    pub fn horizon_before(&self, lsn: Lsn) -> Timestamp {
        let before = self.firsts.iter().filter(|Reverse((first, _))| *first < lsn);
        // Of some the transaction has been taken already.
        let waiting = before.filter(|Reverse((_, timestamp))| self.transactions.contains_key(timestamp));
        let newest = waiting.map(|Reverse((_, timestamp))| timestamp.0).max();
        newest.map_or(Timestamp(0), |newest| Timestamp(newest + 1))
    }

    /// The lowest LSN of a waiting operation. In constant time: with an old reader there are many.
    pub fn first_lsn(&self) -> Option<Lsn> {
        self.firsts.peek().map(|Reverse((lsn, _))| *lsn)
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(timestamps: &[u64]) -> WaitingList {
        let mut list = WaitingList::default();
        for (index, timestamp) in timestamps.iter().enumerate() {
            list.push(Timestamp(*timestamp), Lsn(index as u64 * 8), TableId(1), b"key", Some(&[0; 61]));
        }
        list
    }

    #[test]
    fn only_versions_below_the_horizon_leave_lowest_first() {
        let mut list = list(&[30, 10, 20]);
        assert_eq!(list.first_lsn(), Some(Lsn(0)));
        assert_eq!(list.pop_below(Timestamp(30)).map(|(timestamp, _)| timestamp), Some(Timestamp(10)));
        assert_eq!(list.pop_below(Timestamp(30)).map(|(timestamp, _)| timestamp), Some(Timestamp(20)));
        assert!(list.pop_below(Timestamp(30)).is_none());
        assert!(list.pop_below(Timestamp(31)).is_some());
        assert_eq!((list.bytes(), list.first_lsn()), (0, None));
    }

    #[test]
    fn the_horizon_asked_for_is_no_higher_than_needed() {
        let list = list(&[10, 20, 30, 40]);
        let one = list.bytes() / 4;
        assert_eq!(list.horizon_for(4 * one), Timestamp(10));
        assert_eq!(list.horizon_for(2 * one), Timestamp(30));
        assert_eq!(list.horizon_for(0), Timestamp(41));
    }

    #[test]
    fn the_horizon_before_a_position_lets_go_what_begins_below() {
        let mut list = list(&[10, 40, 20, 30]);
        let before = |list: &WaitingList| [0, 8, 16, 24, 32].map(|lsn| list.horizon_before(Lsn(lsn)).0);
        assert_eq!(before(&list), [0, 11, 41, 41, 41]);
        while list.pop_below(Timestamp(31)).is_some() {}
        assert_eq!(before(&list), [0, 0, 41, 41, 41]);
    }

    #[test]
    fn a_part_left_in_the_log_is_followed_by_one_in_memory() {
        let mut held = Held::default();
        held.push(Lsn(8), TableId(1), b"k", None);
        held.leave_in_log();
        let mut list = WaitingList::default();
        list.insert(Timestamp(5), held);
        list.push(Timestamp(5), Lsn(16), TableId(1), b"k", None);
        let (_, parts) = list.pop_below(Timestamp(6)).unwrap();
        assert_eq!(parts.iter().map(Held::is_left_in_log).collect::<Vec<_>>(), [true, false]);
        assert_eq!(list.bytes(), 0);
    }
}
