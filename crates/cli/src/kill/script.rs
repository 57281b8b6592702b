//! What each transaction does, from its number alone.

use super::{Shape, Version};
use deuteron_bench::{KeyChooser, Random, Skew};

/// Operations on records in one transaction, and the share of reads in thousandths (paper 6.1 and 6.2).
const OPERATIONS: usize = 4;
const READS_OF_1000: u64 = 840;

/// Every so many transactions of a thread one writes the ledger, if it is a writer.
const LEDGER_EVERY: u64 = 8;
/// How far back the ledger row is that it deletes; a multiple of [`LEDGER_EVERY`].
const LEDGER_DELETES_BEHIND: u64 = 512;

/// One operation on the records table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Read the record.
    Read(u64),
    /// Overwrite it with the transaction's version.
    Write(u64),
}

/// What one transaction does to the ledger: insert a row under its own sequence number, delete an old one, which may
/// never have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LedgerEntry {
    /// The row that is deleted, by its sequence number.
    pub deletes: Option<u64>,
}

/// The script of a workload.
#[derive(Clone, Debug)]
pub struct Script {
    chooser: KeyChooser,
    records: u64,
    seed: u64,
}

/// One transaction of the script.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scripted {
    /// Its operations on records, in order.
    pub accesses: Vec<Access>,
    /// Whether it writes; if so it writes the markers too.
    pub writer: bool,
    /// What it does to the ledger.
    pub ledger: Option<LedgerEntry>,
}

impl Script {
    /// The script of a shape.
    pub fn new(shape: &Shape) -> Self {
        let chooser = KeyChooser::new(Skew::EightyTwenty, shape.records);
        Self { chooser, records: shape.records, seed: shape.seed }
    }

    /// How many operations on records a transaction has.
    pub fn operations() -> usize {
        OPERATIONS
    }

    /// Replaces `scripted` by the transaction of this number.
    pub fn transaction(&self, version: Version, scripted: &mut Scripted) {
        let mut random = Random::new(self.seed ^ version.mixed());
        scripted.accesses.clear();
        scripted.writer = false;
        for _ in 0..OPERATIONS {
            let read = random.below(1000) < READS_OF_1000;
            let key = self.chooser.key(&mut random, self.records);
            scripted.accesses.push(if read { Access::Read(key) } else { Access::Write(key) });
            scripted.writer |= !read;
        }
        let sequence = version.sequence;
        scripted.ledger = (scripted.writer && sequence.is_multiple_of(LEDGER_EVERY))
            .then(|| LedgerEntry { deletes: sequence.checked_sub(LEDGER_DELETES_BEHIND) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_repeats_itself_and_differs_by_number() {
        let shape =
            Shape { records: 1_000, value_bytes: 100, threads: 2, in_flight: 1, memory: 1 << 26, seed: 1 };
        let (one, other) = (Script::new(&shape), Script::new(&shape));
        let (mut left, mut right) = (Scripted::default(), Scripted::default());
        let mut writers = 0;
        let mut all = std::collections::HashSet::new();
        for sequence in 1..=2_000 {
            for (round, thread) in [(1, 0), (1, 1), (2, 0)] {
                let version = Version { round, thread, sequence };
                one.transaction(version, &mut left);
                other.transaction(version, &mut right);
                assert_eq!(left, right);
                all.insert(format!("{left:?}"));
                writers += u32::from(left.writer);
            }
        }
        assert!(all.len() > 5_900, "{} different transactions of 6000", all.len());
        assert!((2_800..3_200).contains(&writers), "half of the transactions write: {writers}");
    }
}
