//! What a store must offer to be measured.

use crate::{BenchError, Step};

/// A store under measurement, shared by the threads of the driver.
pub trait Store: Sync {
    /// The connection of one thread.
    type Worker<'a>: Worker + Send
    where
        Self: 'a;

    /// The name that reports carry.
    fn name(&self) -> &'static str;

    /// The name of the durability that commits have, for the report.
    fn durability(&self) -> String;

    /// A connection for one thread of the measured run.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    fn worker(&self) -> Result<Self::Worker<'_>, BenchError>;

    /// A connection for one thread of the load, which need not be durable until [`Store::settle`].
    ///
    /// # Errors
    /// [`BenchError::Store`].
    fn loader(&self) -> Result<Self::Worker<'_>, BenchError>;

    /// How many records of this size the store already holds from an earlier load, if it remembers.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    fn loaded(&self) -> Result<Option<(u64, usize)>, BenchError>;

    /// Makes everything written so far durable, and remembers that so many records of that size are loaded.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    fn settle(&self, records: u64, value_bytes: usize) -> Result<(), BenchError>;

    /// What the store says of its own work.
    fn figures(&self) -> StoreFigures;
}

/// What a store says of its own work. Zero where it does not apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreFigures {
    /// Bytes on disk now.
    pub disk_bytes: u64,
    /// Bytes written to the log since the store was opened.
    pub bytes_written_log: u64,
    /// Bytes written to the data store since it was opened.
    pub bytes_written_store: u64,
    /// Images of the page table written since it was opened, by checkpoints and by the store itself.
    pub checkpoints: u64,
}

/// The outcome of handing a transaction to a store.
#[derive(Debug)]
pub enum Submitted<P> {
    /// Committed, and acknowledged as the durability demands.
    Acknowledged,
    /// Committed in memory; the acknowledgement is to come.
    Pending(P),
    /// Aborted because of another transaction, for this cause; running it again helps.
    Aborted(&'static str),
}

/// One thread's connection to a store.
pub trait Worker {
    /// A commit whose acknowledgement is to come.
    type Pending: Send;

    /// How many transactions ahead the worker wants to hear of, through [`Worker::announce`]; by default none.
    fn lookahead(&self) -> usize {
        0
    }

    /// A transaction that will be submitted after those announced before.
    fn announce(&mut self, steps: &[Step]) {
        let _ = steps;
    }

    /// Runs one transaction and commits it. `value` is the value to write; its first bytes are the worker's to
    /// change.
    ///
    /// # Errors
    /// [`BenchError::Store`] for anything that a retry does not help.
    fn submit(&mut self, steps: &[Step], value: &mut [u8]) -> Result<Submitted<Self::Pending>, BenchError>;

    /// Whether the acknowledgement is there. Cheap.
    fn is_acknowledged(&self, pending: &Self::Pending) -> bool;

    /// Waits for the acknowledgement.
    ///
    /// # Errors
    /// [`BenchError::Store`] if the commit will never be durable.
    fn wait(&mut self, pending: Self::Pending) -> Result<(), BenchError>;
}

/// Makes the value of one write its own: the key and a count go to its front, and the rest is changed so that values have nothing in common that an
/// engine could compress, if it was random at first.
///
/// ```
/// let (mut value, mut writes) = ([0; 100], 0);
/// deuteron_bench::stamp(&mut value, 7, &mut writes);
/// assert_eq!((value[7], writes), (7, 1));
/// ```
#[inline]
pub fn stamp(value: &mut [u8], key: u64, count: &mut u64) {
    *count += 1;
    let mut stamp = [0u8; 16];
    stamp[..8].copy_from_slice(&key.to_be_bytes());
    stamp[8..].copy_from_slice(&count.to_le_bytes());
    let length = value.len().min(stamp.len());
    value[..length].copy_from_slice(&stamp[..length]);
    // The rest goes on as Knuth's sequence of 64 bits does, a word at a time.
    let (words, _) = value[length..].as_chunks_mut::<8>();
    for word in words {
        let number = u64::from_le_bytes(*word);
        *word = number
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407)
            .to_le_bytes();
    }
}

/// Uses a value that was read, so that the read cannot be optimized away and reaches both ends of it.
///
/// ```
/// assert_eq!(deuteron_bench::consume(b"ab"), 97 + 98 + 2);
/// ```
#[inline]
pub fn consume(value: &[u8]) -> u64 {
    let first = value.first().copied().unwrap_or_default();
    let last = value.last().copied().unwrap_or_default();
    std::hint::black_box(u64::from(first) + u64::from(last) + value.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;
    use std::collections::BTreeSet;

    #[test]
    fn values_have_no_four_bytes_in_common_behind_their_stamps() {
        let (mut value, mut writes, mut seen) = ([0; 100], 0, BTreeSet::new());
        Random::new(7).fill(&mut value);
        for key in 0..100 {
            stamp(&mut value, key, &mut writes);
            // Of a last word that is not whole there is less.
            assert!(value[16..96].windows(4).all(|bytes| seen.insert(<[u8; 4]>::try_from(bytes).unwrap())));
        }
        let mut short = [9; 5];
        stamp(&mut short, u64::MAX, &mut writes);
        assert_eq!((short, writes), ([255; 5], 101));
    }
}
