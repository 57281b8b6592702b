//! Order entry: long and short transactions on few hot records, in the proportions and with the accesses of TPC-C.
//!
//! Not TPC-C: a record is a number and some bytes, an order's lines lie in one record, and nothing is computed. What is kept
//! is who meets whom. Payments write the warehouse that every new order reads; new orders and payments write the
//! same ten districts of it; a delivery writes in all ten districts; and the check of the stock, which TPC-C leaves read-only,
//! here writes some of the records that it has read, a few hundred reads after its begin.
//!
//! | transaction | share | reads | writes |
//! |---|---|---|---|
//! | new order | 45 % | warehouse, customer | district, 5 to 15 of the stock, an order |
//! | payment | 43 % | | warehouse, district, customer |
//! | order status | 4 % | customer, scan of 10 | |
//! | delivery | 4 % | | 10 customers, 10 of the stock |
//! | restock | 4 % | district, 200 of the stock | 10 of those |
//!
//! Every write is of a record that was read before, the order apart.

use crate::{Random, Step};
use std::sync::atomic::{AtomicU64, Ordering};

const DISTRICTS: u64 = 10;
const CUSTOMERS: u64 = 3_000;
const STOCK: u64 = 10_000;

/// Records of one warehouse: itself, its districts, customers and stock.
pub(crate) const WAREHOUSE_RECORDS: u64 = 1 + DISTRICTS + CUSTOMERS + STOCK;

/// Stock records that a restock looks at, and writes.
const RESTOCK_READS: u64 = 200;
const RESTOCK_WRITES: u64 = 10;

/// Replaces `steps` by those of the next transaction. Orders get numbers from `present` on.
pub(crate) fn transaction(warehouses: u64, present: &AtomicU64, random: &mut Random, steps: &mut Vec<Step>) {
    let warehouse = random.below(warehouses) * WAREHOUSE_RECORDS;
    let district = warehouse + 1 + random.below(DISTRICTS);
    let customers = warehouse + 1 + DISTRICTS;
    let stock = customers + CUSTOMERS;
    let customer = customers + random.below(CUSTOMERS);
    match random.below(100) {
        0..45 => {
            steps.extend([Step::Read(warehouse), Step::ReadModifyWrite(district), Step::Read(customer)]);
            for _ in 0..5 + random.below(11) {
                steps.push(Step::ReadModifyWrite(stock + random.below(STOCK)));
            }
            steps.push(Step::Insert(present.fetch_add(1, Ordering::Relaxed)));
        }
        45..88 => steps.extend([warehouse, district, customer].map(Step::ReadModifyWrite)),
        88..92 => steps.extend([Step::Read(customer), Step::Scan { key: customer, count: 10 }]),
        92..96 => {
            for _ in 0..10 {
                steps.push(Step::ReadModifyWrite(customers + random.below(CUSTOMERS)));
                steps.push(Step::ReadModifyWrite(stock + random.below(STOCK)));
            }
        }
        _ => {
            let first = random.below(STOCK - RESTOCK_READS);
            steps.push(Step::Read(district));
            steps.extend((first..first + RESTOCK_READS).map(|item| Step::Read(stock + item)));
            let every = RESTOCK_READS / RESTOCK_WRITES;
            let low = (first..).step_by(every as usize).take(RESTOCK_WRITES as usize);
            steps.extend(low.map(|item| Step::ReadModifyWrite(stock + item)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mix_has_its_shares_and_stays_among_its_records() {
        let records = 2 * WAREHOUSE_RECORDS;
        let (present, mut random, mut steps) = (AtomicU64::new(records), Random::new(5), Vec::new());
        let (mut payments, mut orders, mut restocks) = (0, 0, 0);
        for _ in 0..20_000 {
            steps.clear();
            transaction(2, &present, &mut random, &mut steps);
            assert!(
                steps.iter().all(
                    |step| matches!(step, Step::Insert(_)) || step.key().is_some_and(|key| key < records)
                )
            );
            payments += usize::from(steps.len() == 3);
            restocks += usize::from(steps.len() as u64 == 1 + RESTOCK_READS + RESTOCK_WRITES);
            if let Some(Step::Insert(order)) = steps.last() {
                assert_eq!(*order, records + orders);
                orders += 1;
            }
        }
        assert!((8_300..8_900).contains(&payments), "{payments}");
        assert!((8_700..9_300).contains(&orders), "{orders}");
        assert!((650..950).contains(&restocks), "{restocks}");
    }
}
