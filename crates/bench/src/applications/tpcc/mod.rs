//! TPC-C: a wholesaler with warehouses, each with ten districts of customers, who order, pay, ask, and are delivered to.
//!
//! After the specification, revision 5.11: nine tables with rows of its shape, five transactions, the non-uniform draws, customers by last name
//! (60 % of payments and order statuses), 1 % of order lines from another warehouse, 15 % of payments by customers of another, 1 % of
//! new orders rolled back for an unused item. Customers by name and orders by customer are two tables more, as
//! indexes.
//!
//! | transaction | share | what it does |
//! |---|---|---|
//! | new-order | 45 % | takes the district's next number; 5 to 15 items and their stock; inserts the order and its lines |
//! | payment | 43 % | adds to warehouse, district and customer; inserts into the history |
//! | order-status | 4 % | reads a customer's last order |
//! | delivery | 4 % | in all ten districts, in one transaction: delivers the oldest order |
//! | stock-level | 4 % | reads the items of a district's last 20 orders, and how many are short |
//!
//! Where it differs: a thread stands for all terminals and draws the warehouse of each transaction; there are neither key-in and think
//! times nor the queue of deferred deliveries; a new order's lines are taken in the order of their items, as a program does that does not want
//! deadlocks. A read-only transaction reads serializably, which the specification does not ask of stock-level.

mod check;
mod load;
mod rows;
mod terminal;
mod transactions;

use super::{Application, ApplicationStore, Client, Condition, Emit};
use crate::BenchError;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use terminal::Terminal;

/// Districts of a warehouse.
const DISTRICTS: u8 = 10;

const NEW_ORDER_KIND: usize = 0;
const PAYMENT_KIND: usize = 1;
const ORDER_STATUS_KIND: usize = 2;
const DELIVERY_KIND: usize = 3;

const TRANSACTIONS: &[(&str, u32)] =
    &[("new-order", 45), ("payment", 43), ("order-status", 4), ("delivery", 4), ("stock-level", 4)];

/// The benchmark, with a number of warehouses.
///
/// ```
/// use deuteron_bench::{Application, Tpcc};
/// let tpcc = Tpcc::new(4);
/// assert_eq!(tpcc.scale(), "4 warehouses");
/// assert_eq!(tpcc.transactions()[0], ("new-order", 45));
/// ```
#[derive(Debug)]
pub struct Tpcc {
    sizes: Sizes,
    /// The next terminal's number, which makes its payments different from the others'.
    terminals: AtomicU32,
    counts: Counts,
}

/// How many there are of what.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    warehouses: u16,
    items: u32,
    /// Of each district; as many orders are loaded.
    customers: u32,
}

impl Sizes {
    /// The orders of each district that are loaded as delivered; the rest are new.
    fn delivered(&self) -> u32 {
        self.customers * 7 / 10
    }

    /// The last names that there are, in each district: the first so many by their numbers.
    fn names(&self) -> u32 {
        self.customers.min(1_000)
    }

    fn districts(&self) -> u64 {
        u64::from(self.warehouses) * u64::from(DISTRICTS)
    }
}

/// What was done by commits.
#[derive(Debug, Default)]
struct Counts {
    orders: AtomicU64,
    payments: AtomicU64,
    /// Orders, not transactions.
    deliveries: AtomicU64,
}

impl Tpcc {
    /// With so many warehouses, at least one.
    ///
    /// ```
    /// # use deuteron_bench::Application;
    /// assert_eq!(deuteron_bench::Tpcc::new(1).name(), "tpcc");
    /// ```
    pub fn new(warehouses: u16) -> Self {
        let sizes = Sizes { warehouses: warehouses.max(1), items: 100_000, customers: 3_000 };
        Self { sizes, terminals: AtomicU32::new(1), counts: Counts::default() }
    }

    /// With so many times fewer items, customers and orders; down to 100 items, and 30 customers a district.
    ///
    /// ```
    /// # use deuteron_bench::Application;
    /// assert_eq!(deuteron_bench::Tpcc::new(2).shrunk(10).scale(), "2 warehouses, 10000 items, 300 customers a district");
    /// ```
    pub fn shrunk(mut self, times: u32) -> Self {
        let times = times.max(1);
        self.sizes.items = (self.sizes.items / times).max(100);
        self.sizes.customers = (self.sizes.customers / times).max(30);
        self
    }
}

impl Application for Tpcc {
    fn name(&self) -> &'static str {
        "tpcc"
    }

    fn scale(&self) -> String {
        let Sizes { warehouses, items, customers } = self.sizes;
        match (items, customers) {
            (100_000, 3_000) => format!("{warehouses} warehouses"),
            _ => format!("{warehouses} warehouses, {items} items, {customers} customers a district"),
        }
    }

    fn tables(&self) -> &'static [&'static str] {
        rows::TABLES
    }

    fn transactions(&self) -> &'static [(&'static str, u32)] {
        TRANSACTIONS
    }

    fn rows(&self, emit: Emit<'_>) -> Result<(), BenchError> {
        load::rows(&self.sizes, emit)
    }

    fn client(&self, seed: u64) -> Box<dyn Client + '_> {
        let number = self.terminals.fetch_add(1, Ordering::Relaxed);
        Box::new(Terminal::new(self, number, seed))
    }

    fn check(&self, store: &dyn ApplicationStore) -> Result<Vec<Condition>, BenchError> {
        check::conditions(self, store)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{assert_shares, loaded, run_and_check};
    use super::*;

    #[test]
    fn runs_on_several_threads_and_its_conditions_hold() {
        for warehouses in [1, 3] {
            let tpcc = Tpcc::new(warehouses).shrunk(1_000);
            let store = loaded(&tpcc);
            let reports = run_and_check(&tpcc, &store);
            for report in reports {
                let rolled_back = |kind: usize| report.transactions[kind].rolled_back;
                assert_eq!([1, 2, 3, 4].map(rolled_back), [0; 4], "only new orders roll back");
            }
            store.close().unwrap();
        }
    }

    #[test]
    fn transactions_come_in_their_shares() {
        assert_shares(&Tpcc::new(2));
    }
}
