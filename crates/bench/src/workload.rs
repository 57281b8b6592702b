//! Which operations make up a transaction.

use crate::{KeyChooser, Random, Skew, order_entry};
use std::sync::atomic::{AtomicU64, Ordering};

/// One operation of a transaction. Keys are numbers; a store writes them as eight bytes, highest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Read one record.
    Read(u64),
    /// Overwrite one record without reading it.
    Update(u64),
    /// Add a record.
    Insert(u64),
    /// Read `count` records from a key on.
    Scan {
        /// The first key.
        key: u64,
        /// How many records.
        count: u32,
    },
    /// Read one record, then write it.
    ReadModifyWrite(u64),
    /// Give the processor to other threads once, as if the next operation had to come from a client.
    Yield,
}

impl Step {
    /// Whether the step writes.
    pub fn is_write(self) -> bool {
        !matches!(self, Step::Read(_) | Step::Scan { .. } | Step::Yield)
    }

    /// The key, or the first, of a step that has one.
    pub fn key(self) -> Option<u64> {
        match self {
            Step::Read(key) | Step::Update(key) | Step::Insert(key) | Step::ReadModifyWrite(key) => Some(key),
            Step::Scan { key, .. } => Some(key),
            Step::Yield => None,
        }
    }

    /// The key that a store is better off to know before: not where a scan begins, which is not looked up as a key is.
    pub(crate) fn key_ahead(self) -> Option<u64> {
        match self {
            Step::Scan { .. } => None,
            step => step.key(),
        }
    }
}

/// A mix of operations. The shares are of operations, drawn independently, and add up to 1.
///
/// ```
/// use deuteron_bench::Workload;
/// assert_eq!(Workload::paper(1_000).operations_per_transaction, 4);
/// assert_eq!(Workload::ycsb('b', 1_000).unwrap().read, 0.95);
/// assert!(Workload::ycsb('g', 1_000).is_none());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Workload {
    /// Records loaded before the run.
    pub records: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// Operations in one transaction.
    pub operations_per_transaction: usize,
    /// How keys are chosen.
    pub skew: Skew,
    /// Share of reads.
    pub read: f64,
    /// Share of blind updates.
    pub update: f64,
    /// Share of inserts.
    pub insert: f64,
    /// Share of scans.
    pub scan: f64,
    /// Share of reads followed by a write of the same key.
    pub read_modify_write: f64,
    /// The longest scan in records; lengths are uniform from 1.
    pub scan_records_max: u32,
    /// Transactions of order entry on so many warehouses, instead of all of the above but the size of values.
    pub warehouses: Option<u64>,
    /// Whether a [`Step::Yield`] stands behind each operation, so that more transactions are under way than there are cores.
    pub interleaved: bool,
}

impl Workload {
    /// The paper's workload (6.1 and 6.2): values of 100 bytes, four operations a transaction, 84 % reads, 20 %
    /// of the keys receive 80 % of the accesses.
    pub fn paper(records: u64) -> Self {
        Self {
            records,
            value_bytes: 100,
            operations_per_transaction: 4,
            skew: Skew::EightyTwenty,
            read: 0.84,
            update: 0.16,
            insert: 0.0,
            scan: 0.0,
            read_modify_write: 0.0,
            scan_records_max: 100,
            warehouses: None,
            interleaved: false,
        }
    }

    /// Long and short transactions that meet on few hot records, with the accesses of TPC-C: new orders and payments on
    /// warehouses and their districts, deliveries, order status, and a check of the stock that writes some of what it read.
    ///
    /// ```
    /// assert_eq!(deuteron_bench::Workload::order_entry(2).records, 26_022);
    /// ```
    pub fn order_entry(warehouses: u64) -> Self {
        let warehouses = warehouses.max(1);
        let records = warehouses * order_entry::WAREHOUSE_RECORDS;
        Self { warehouses: Some(warehouses), ..Self::paper(records) }
    }

    /// YCSB's core workload `letter`, `a` to `f`, one operation a transaction; `None` for another letter.
    pub fn ycsb(letter: char, records: u64) -> Option<Self> {
        let base = Self {
            operations_per_transaction: 1,
            skew: Skew::Zipf(0.99),
            read: 0.0,
            update: 0.0,
            ..Self::paper(records)
        };
        Some(match letter.to_ascii_lowercase() {
            'a' => Self { read: 0.5, update: 0.5, ..base },
            'b' => Self { read: 0.95, update: 0.05, ..base },
            'c' => Self { read: 1.0, ..base },
            'd' => Self { read: 0.95, insert: 0.05, skew: Skew::Latest(0.99), ..base },
            'e' => Self { scan: 0.95, insert: 0.05, ..base },
            'f' => Self { read: 0.5, read_modify_write: 0.5, ..base },
            _ => return None,
        })
    }

    /// The same with this share of reads and the rest blind updates.
    pub fn with_read_ratio(self, read: f64) -> Self {
        Self { read, update: 1.0 - read, insert: 0.0, scan: 0.0, read_modify_write: 0.0, ..self }
    }
}

/// Draws the transactions of one thread.
#[derive(Debug)]
pub struct Generator<'a> {
    workload: &'a Workload,
    chooser: KeyChooser,
    random: Random,
    /// The number of records present, shared by the generators of a run, since inserts add some.
    present: &'a AtomicU64,
    // Cumulative shares, so that one draw picks the operation.
    thresholds: [f64; 4],
}

impl<'a> Generator<'a> {
    /// The generator of one thread, its sequence set by `seed`.
    pub fn new(workload: &'a Workload, present: &'a AtomicU64, seed: u64) -> Self {
        let read = workload.read;
        let update = read + workload.update;
        let insert = update + workload.insert;
        let scan = insert + workload.scan;
        Self {
            workload,
            chooser: KeyChooser::new(workload.skew, workload.records),
            random: Random::new(seed),
            present,
            thresholds: [read, update, insert, scan],
        }
    }

    /// Replaces `steps` by those of the next transaction.
    #[inline]
    pub fn transaction(&mut self, steps: &mut Vec<Step>) {
        steps.clear();
        if let Some(warehouses) = self.workload.warehouses {
            order_entry::transaction(warehouses, self.present, &mut self.random, steps);
        } else {
            for _ in 0..self.workload.operations_per_transaction {
                let step = self.step();
                steps.push(step);
            }
        }
        if self.workload.interleaved {
            let operations = std::mem::take(steps);
            steps.extend(operations.into_iter().flat_map(|step| [step, Step::Yield]));
        }
    }

    #[inline]
    fn step(&mut self) -> Step {
        let [read, update, insert, scan] = self.thresholds;
        let draw = self.random.unit();
        // An insert is published by its number before its commit: a reader may miss the newest few, as in YCSB.
        if draw >= update && draw < insert {
            return Step::Insert(self.present.fetch_add(1, Ordering::Relaxed));
        }
        let key = self.chooser.key(&mut self.random, self.present.load(Ordering::Relaxed));
        if draw < read {
            Step::Read(key)
        } else if draw < update {
            Step::Update(key)
        } else if draw < scan {
            let count = 1 + self.random.below(u64::from(self.workload.scan_records_max)) as u32;
            Step::Scan { key, count }
        } else if self.workload.read_modify_write > 0.0 {
            Step::ReadModifyWrite(key)
        } else {
            // Shares that add up to a hair under 1.
            Step::Read(key)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(workload: &Workload) -> [f64; 5] {
        let present = AtomicU64::new(workload.records);
        let mut generator = Generator::new(workload, &present, 1);
        let mut counts = [0.0; 5];
        let mut steps = Vec::new();
        let mut total = 0.0;
        for _ in 0..50_000 {
            generator.transaction(&mut steps);
            assert_eq!(steps.len(), workload.operations_per_transaction);
            for step in &steps {
                total += 1.0;
                counts[match step {
                    Step::Read(_) => 0,
                    Step::Update(_) => 1,
                    Step::Insert(_) => 2,
                    Step::Scan { .. } => 3,
                    Step::ReadModifyWrite(_) => 4,
                    Step::Yield => unreachable!("none was asked for"),
                }] += 1.0;
            }
        }
        counts.map(|count| count / total)
    }

    #[test]
    fn every_workload_has_its_mix() {
        let mut workloads = vec![Workload::paper(1_000)];
        workloads.extend("abcdef".chars().map(|letter| Workload::ycsb(letter, 1_000).unwrap()));
        for workload in workloads {
            let expected =
                [workload.read, workload.update, workload.insert, workload.scan, workload.read_modify_write];
            assert!((expected.iter().sum::<f64>() - 1.0).abs() < 1e-9);
            for (found, expected) in shares(&workload).into_iter().zip(expected) {
                assert!((found - expected).abs() < 0.01, "{workload:?}: {found} not {expected}");
            }
        }
    }

    #[test]
    fn about_half_of_the_papers_transactions_only_read() {
        let workload = Workload::paper(1_000);
        let present = AtomicU64::new(workload.records);
        let mut generator = Generator::new(&workload, &present, 1);
        let mut steps = Vec::new();
        let read_only = (0..10_000)
            .filter(|_| {
                generator.transaction(&mut steps);
                steps.iter().all(|step| !step.is_write())
            })
            .count();
        assert!((4_800..5_200).contains(&read_only), "{read_only}");
    }

    #[test]
    fn others_have_a_turn_after_each_operation_of_an_interleaved_workload() {
        let workload = Workload { interleaved: true, ..Workload::paper(1_000) };
        let present = AtomicU64::new(workload.records);
        let mut generator = Generator::new(&workload, &present, 1);
        let mut steps = Vec::new();
        generator.transaction(&mut steps);
        let yields: Vec<bool> = steps.iter().map(|step| *step == Step::Yield).collect();
        assert_eq!(yields, [false, true].repeat(4));
    }

    #[test]
    fn inserted_keys_are_new_and_consecutive() {
        let workload = Workload::ycsb('d', 100).unwrap();
        let present = AtomicU64::new(100);
        let mut generator = Generator::new(&workload, &present, 1);
        let mut steps = Vec::new();
        let mut next = 100;
        for _ in 0..10_000 {
            generator.transaction(&mut steps);
            if let [Step::Insert(key)] = steps[..] {
                assert_eq!(key, next);
                next += 1;
            }
        }
        assert_eq!(present.into_inner(), next);
    }
}
