//! [`Lookahead`]: the keys of transactions to come, brought from memory while earlier transactions run.
//!
//! What a read waits for is a chain of cache misses: the bucket, the record, its newest version, and perhaps the value in the log. The
//! chains of one transaction's keys overlap if all its keys are known when it begins
//! ([`Transaction::prefetch`](crate::Transaction::prefetch)), but the transaction still waits once for each link. If transactions are known
//! before they begin, as requests in a queue are, each link can be asked for while another transaction runs: with every announcement all
//! announced before go one link further. That is the interleaving of transactions by which main-memory engines hide their misses, without
//! coroutines.
//!
//! Nothing is held between two announcements but the keys: no guard, no pointer. What has been evicted meanwhile is not found, and that is
//! all.

use crate::core::Core;
use crate::record::{KeyHash, KeyRef};
use deuteron_contract::TableId;
use std::collections::VecDeque;
use std::sync::Arc;

/// Links of the chain: bucket, record, version, value.
const LINKS: usize = 4;

/// The keys of transactions to come, brought from memory while earlier transactions run: with every announcement all announced
/// before go one cache miss further. For one thread.
pub struct Lookahead {
    core: Arc<Core>,
    /// The newest last. One at index *i* from the end is at link *i*.
    announced: VecDeque<Announced>,
}

/// The keys of one transaction.
#[derive(Default)]
struct Announced {
    table: TableId,
    keys: Vec<u8>,
    /// The hash of a key, and where it ends in `keys`.
    places: Vec<(KeyHash, usize)>,
}

impl Announced {
    fn keys(&self) -> impl Iterator<Item = KeyRef<'_>> {
        let mut start = 0;
        self.places.iter().map(move |&(hash, end)| {
            let key = &self.keys[start..end];
            start = end;
            KeyRef { hash, table: self.table, key }
        })
    }
}

impl Lookahead {
    /// So many announcements after its own everything that a transaction needs has been asked for.
    pub const DEPTH: usize = LINKS - 1;

    pub(crate) fn new(core: &Arc<Core>) -> Lookahead {
        Lookahead { core: Arc::clone(core), announced: VecDeque::with_capacity(LINKS) }
    }

    /// Says that a transaction will use `keys` soon, best after [`Lookahead::DEPTH`] more announcements. A hint: it counts as no read,
    /// and keys that this component does not have stay where they are.
    pub fn announce<K: AsRef<[u8]>>(&mut self, table: TableId, keys: &[K]) {
        let core = &*self.core;
        let mut new = match self.announced.len() {
            LINKS => self.announced.pop_front().unwrap_or_default(),
            _ => Announced::default(),
        };
        new.table = table;
        new.keys.clear();
        new.places.clear();
        for key in keys {
            let key = core.table.key(table, key.as_ref());
            core.table.prefetch_bucket(key);
            new.keys.extend_from_slice(key.key);
            new.places.push((key.hash, new.keys.len()));
        }
        self.announced.push_back(new);
        let guard = core.epochs.pin();
        for (link, announced) in self.announced.iter().rev().enumerate().skip(1) {
            for key in announced.keys() {
                if link == 1 {
                    core.table.prefetch_record(key);
                    continue;
                }
                let Some(version) =
                    core.table.find(key, &guard).and_then(|record| record.prefetch_version(&guard))
                else {
                    continue;
                };
                if link == LINKS - 1 {
                    core.prefetch_value(version);
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn keys_come_out_as_they_went_in() {
        let announced =
            Announced { table: TableId(3), keys: b"abcde".to_vec(), places: vec![(7, 2), (8, 2), (9, 5)] };
        let keys: Vec<_> = announced.keys().map(|key| (key.hash, key.table, key.key)).collect();
        assert_eq!(keys, [(7, TableId(3), &b"ab"[..]), (8, TableId(3), b""), (9, TableId(3), b"cde")]);
    }
}
