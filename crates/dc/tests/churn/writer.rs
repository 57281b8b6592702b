//! A writer: the only one at its keys, so that it knows what they hold.

use super::{Bed, TABLES, WRITERS, key, number_of, support};
use deuteron_contract::conformance::SplitMix;
use deuteron_contract::{DataComponent, Direction, TableId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use support::row;

/// The value that write `number` gave to a key: any other bytes there are a mistake.
fn value(table: u64, key: u64, number: u64) -> Vec<u8> {
    let mut random = SplitMix::new(number ^ key << 32 ^ table << 63);
    let mut value = number.to_le_bytes().to_vec();
    // Now and then one that takes a page, or several.
    let length = if random.below(500) == 0 { random.index(3000) } else { 40 + random.index(120) };
    value.extend((0..length.div_ceil(8)).flat_map(|_| random.next().to_le_bytes()));
    value
}

/// Checks a value that was found.
pub fn decode(table: u64, key: u64, timestamp: u64, found: &[u8]) {
    assert!(
        found == value(table, key, timestamp),
        "key {key} of table {table} holds no value of {timestamp}"
    );
}

/// A writer and its model: for each of its keys that is there, the number of the last write.
pub struct Writer {
    id: u64,
    keys: u64,
    random: SplitMix,
    model: [BTreeMap<u64, u64>; TABLES as usize],
    /// How many of its keys it wants to be there, in a table: many for a while, then few.
    wanted: usize,
    pub operations: u64,
    pub checked: u64,
}

impl Writer {
    pub fn new(id: u64, keys: u64) -> Writer {
        let wanted = (keys / WRITERS) as usize;
        let model = Default::default();
        Writer { id, keys, random: SplitMix::new(id), model, wanted, operations: 0, checked: 0 }
    }

    /// What should be in a table of its keys.
    pub fn records(&self, table: u64) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        let model = &self.model[table as usize];
        model.iter().map(move |(&number, &write)| (key(table, number), value(table, number, write)))
    }

    /// One of its keys.
    fn any(&mut self) -> u64 {
        self.random.below(self.keys / WRITERS) * WRITERS + self.id
    }

    /// Works as long as `goes_on`, asked with the number of batches so far.
    pub fn work(&mut self, bed: &Bed, goes_on: impl Fn(u64) -> bool) {
        for batches in 0.. {
            if !goes_on(batches) {
                break;
            }
            let table = self.random.below(TABLES);
            self.write(bed, table);
            self.read(bed, table);
            if self.random.below(20) == 0 {
                self.scan(bed, table);
            }
            if self.random.below(3000) == 0 {
                let all = self.keys / WRITERS;
                self.wanted = (if self.random.sometimes(30) { all / 12 } else { all * 9 / 10 }) as usize;
            }
        }
    }

    /// A batch: single keys anywhere, or a stretch of neighbours written or deleted.
    fn write(&mut self, bed: &Bed, table: u64) {
        let held = self.model[table as usize].len();
        let deletes = self.random.sometimes(if held > self.wanted { 85 } else { 20 });
        let first = self.any();
        let count = 1 + self.random.below(if self.random.clone().sometimes(30) { 60 } else { 12 });
        let stretch = self.random.sometimes(60);
        let mut numbers: BTreeSet<u64> =
            (0..count).map(|at| if stretch { first + at * WRITERS } else { self.any() }).collect();
        numbers.retain(|&number| number < self.keys);
        let lsn = bed.clock.take(self.id, numbers.len() as u64);
        let rows: Vec<_> = (lsn..)
            .zip(&numbers)
            .map(|(write, &number)| {
                let value = (!deletes).then(|| value(table, number, write));
                (write, number, key(table, number), value)
            })
            .collect();
        let mut operations: Vec<_> = rows
            .iter()
            .map(|(write, _, key, value)| row(TableId(table as u32), key, value.as_deref(), *write))
            .collect();
        self.random.shuffle(&mut operations);
        bed.dc.apply(&operations).expect("applies");
        if self.random.below(10) == 0 {
            // Again: it changes nothing.
            bed.dc.apply(&operations).expect("applies");
        }
        bed.clock.done(self.id);
        self.operations += rows.len() as u64;
        for (write, number, _, value) in rows {
            match value {
                Some(_) => self.model[table as usize].insert(number, write),
                None => self.model[table as usize].remove(&number),
            };
        }
    }

    fn read(&mut self, bed: &Bed, table: u64) {
        for _ in 0..3 {
            let number = self.any();
            let found = bed.dc.get(TableId(table as u32), &key(table, number)).expect("reads");
            let found = found.and_then(|record| Some((record.timestamp.0, record.value?)));
            let held = self.model[table as usize].get(&number).copied();
            assert_eq!(found.as_ref().map(|(write, _)| *write), held, "key {number} of table {table}");
            if let Some((write, value)) = found {
                decode(table, number, write, &value);
            }
            self.checked += 1;
        }
    }

    /// A range, in which it judges its own keys.
    fn scan(&mut self, bed: &Bed, table: u64) {
        let from = self.random.below(self.keys);
        let to = from + 1 + self.random.below(600);
        let direction = if self.random.sometimes(50) { Direction::Forward } else { Direction::Reverse };
        let (low, high) = (key(table, from), key(table, to));
        let bounds = (Bound::Included(&low[..]), Bound::Excluded(&high[..]));
        let found =
            support::scan(&bed.dc, TableId(table as u32), bounds, direction, 500 + self.random.index(9000));
        let found: BTreeMap<u64, u64> = found
            .expect("scans")
            .iter()
            .filter(|record| record.value.is_some())
            .map(|record| (number_of(table, &record.key), record.timestamp.0))
            .filter(|(number, _)| number % WRITERS == self.id)
            .collect();
        let held = self.model[table as usize].range(from..to).map(|(&number, &write)| (number, write));
        assert!(
            found.iter().map(|(&number, &write)| (number, write)).eq(held),
            "keys {from}..{to} of table {table}"
        );
        self.checked += found.len() as u64;
    }
}
