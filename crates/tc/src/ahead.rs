//! [`Ahead`]: what the data component has answered before it was asked: records of keys that a transaction has named.
//!
//! A record fetched for a read is good as long as nothing has been evicted from the key's stripe since the generation was read, which was
//! before the data component was (R14). Nothing in that says how soon it must be used. So the records of several keys are fetched with one
//! call, and each waits here for the read that misses it; if its stripe has evicted something meanwhile, the read asks again. What waits counts
//! in the memory of the component, as all that a transaction [holds](crate::held).

use crate::held::Held;
use crate::memory::Account;
use crate::record::{KeyHash, KeyRef};
use deuteron_contract::{Record, TableId};

/// Bytes of keys and values that wait at most, but for one value that is longer; unless that is much for the memory.
pub(crate) const AHEAD_BYTES_MAX: usize = 1 << 20;

/// Keys whose answers wait at most: each read that misses looks through them.
pub(crate) const AHEAD_KEYS_MAX: usize = 256;

/// Of one transaction.
#[derive(Default)]
pub(crate) struct Ahead {
    answers: Vec<Answer>,
    keys: Vec<u8>,
    bytes: usize,
    /// The same, as the account knows it.
    held: Held,
}

/// What the data component knows of a key.
struct Answer {
    hash: KeyHash,
    table: TableId,
    /// In `keys`.
    key: std::ops::Range<usize>,
    generation: u64,
    record: Option<Record>,
}

impl Ahead {
    /// How many more bytes may wait, where there is memory for `limit`. All that waits makes room if that is less than a half, or for so many keys more there is none.
    pub(crate) fn make_room(&mut self, limit: usize, keys: usize, account: &Account) -> usize {
        let bytes_max = limit.min(AHEAD_BYTES_MAX);
        if self.bytes > bytes_max / 2 || self.answers.len() + keys > AHEAD_KEYS_MAX {
            self.clear(account);
        }
        bytes_max - self.bytes
    }

    /// Takes what the data component knows of `key`, which was asked for when the stripe was of this generation.
    pub(crate) fn put(
        &mut self,
        key: KeyRef<'_>,
        generation: u64,
        record: Option<Record>,
        account: &Account,
    ) {
        let start = self.keys.len();
        self.keys.extend_from_slice(key.key);
        let bytes = key.key.len() + record.as_ref().map_or(0, Record::value_bytes);
        self.bytes += bytes;
        self.held.add(bytes, account);
        let (hash, table, key) = (key.hash, key.table, start..self.keys.len());
        self.answers.push(Answer { hash, table, key, generation, record });
    }

    /// What is known of `key`, if it was asked for in this generation.
    #[inline]
    pub(crate) fn take(
        &mut self,
        key: KeyRef<'_>,
        generation: u64,
        account: &Account,
    ) -> Option<Option<Record>> {
        if self.answers.is_empty() { None } else { self.find(key, generation, account) }
    }

    fn find(&mut self, key: KeyRef<'_>, generation: u64, account: &Account) -> Option<Option<Record>> {
        let is_it = |answer: &Answer| {
            answer.hash == key.hash && answer.table == key.table && self.keys[answer.key.clone()] == *key.key
        };
        let found = self.answers.iter().position(is_it)?;
        let answer = self.answers.swap_remove(found);
        let bytes = answer.record.as_ref().map_or(0, Record::value_bytes);
        self.bytes -= bytes;
        self.held.subtract(bytes, account);
        if self.answers.is_empty() {
            self.clear(account);
        }
        (answer.generation == generation).then_some(answer.record)
    }

    /// How many answers wait.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn len(&self) -> usize {
        self.answers.len()
    }

    /// For the next transaction.
    pub(crate) fn clear(&mut self, account: &Account) {
        self.answers.clear();
        self.keys.clear();
        self.bytes = 0;
        self.held.clear(account);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use deuteron_contract::Timestamp;

    const TABLE: TableId = TableId(1);

    fn key(key: &[u8]) -> KeyRef<'_> {
        // All of one hash.
        KeyRef { hash: 7, table: TABLE, key }
    }

    fn record(value: Vec<u8>) -> Option<Record> {
        Some(Record { key: Vec::new(), value: Some(value), timestamp: Timestamp(5) })
    }

    #[test]
    fn each_answer_is_given_once_for_its_key_and_generation() {
        let (mut ahead, account) = (Ahead::default(), Account::new(1 << 30));
        ahead.put(key(b"a"), 3, record(vec![1]), &account);
        ahead.put(key(b"ab"), 3, None, &account);
        ahead.put(key(b"b"), 3, record(vec![2]), &account);
        assert!(ahead.take(key(b"c"), 3, &account).is_none());
        assert!(ahead.take(KeyRef { table: TableId(2), ..key(b"a") }, 3, &account).is_none());
        assert!(ahead.take(KeyRef { hash: 8, ..key(b"a") }, 3, &account).is_none());
        assert_eq!(ahead.take(key(b"a"), 3, &account), Some(record(vec![1])));
        assert!(ahead.take(key(b"a"), 3, &account).is_none());
        assert_eq!(ahead.take(key(b"ab"), 3, &account), Some(None));
        // Of another generation: nobody knows whether it is still right.
        assert!(ahead.take(key(b"b"), 4, &account).is_none() && ahead.take(key(b"b"), 3, &account).is_none());
        assert_eq!((ahead.bytes, ahead.keys.len()), (0, 0));
    }

    #[test]
    fn what_waits_makes_room_for_more_than_half_of_what_may_wait() {
        let (mut ahead, account) = (Ahead::default(), Account::new(1 << 30));
        assert_eq!(ahead.make_room(usize::MAX, 1, &account), AHEAD_BYTES_MAX);
        ahead.put(key(b"a"), 3, record(vec![0; AHEAD_BYTES_MAX / 2 - 1]), &account);
        assert_eq!(ahead.make_room(usize::MAX, 1, &account), AHEAD_BYTES_MAX / 2);
        ahead.put(key(b"b"), 3, record(vec![0; AHEAD_BYTES_MAX * 3]), &account);
        assert_eq!(ahead.make_room(usize::MAX, 1, &account), AHEAD_BYTES_MAX);
        assert!(ahead.take(key(b"a"), 3, &account).is_none());
        // With less memory less of them.
        assert_eq!(ahead.make_room(1000, 1, &account), 1000);
        ahead.put(key(b"a"), 3, record(vec![0; 500]), &account);
        assert_eq!(ahead.make_room(1000, 1, &account), 1000);
    }

    #[test]
    fn what_waits_counts_in_the_memory_until_it_is_taken() {
        // Told in steps of a kilobyte.
        let (mut ahead, account) = (Ahead::default(), Account::new(1 << 10));
        for number in 0..8 {
            ahead.put(key(&[number]), 3, record(vec![0; 1 << 10]), &account);
            assert!(account.used() as usize > ahead.bytes - 1024);
        }
        for number in 0..4 {
            ahead.take(key(&[number]), 3, &account);
            assert!(account.used() as usize <= ahead.bytes);
        }
        assert!(account.used() > 0);
        ahead.clear(&account);
        assert_eq!(account.used(), 0);
    }
}
