//! Application benchmarks: transactions that decide by what they read, over tables and keys, and whose outcome can be checked.
//!
//! The [`crate::Step`]s of a [`crate::Workload`] are fixed before the transaction begins. What an application does depends on what it finds:
//! it looks a name up, takes the next number, refuses for want of funds. So an [`Application`] runs bodies of code against
//! an [`ApplicationStore`], an engine with ordered tables of bytes; [`run_application`] loads it, drives it, and has it
//! verify its own conditions afterwards, which hold after transactions that were isolated and complete, and after no others.
//!
//! | application | what it is | what is checked |
//! |---|---|---|
//! | [`Tatp`] | a register of mobile subscribers: short, mostly reads | references, and the number of call forwardings |
//! | [`SmallBank`] | accounts in two tables, transfers between them | the sum of all money |
//! | [`Tpcc`] | orders, payments and deliveries of a wholesaler | conditions 1 to 12 of clause 3.3.2, and the stock |
//! | [`Voter`] | votes by telephone, counted at once | votes counted are votes accepted; the limit of each caller |
//!
//! The driver is a closed loop: a thread runs a transaction to its acknowledgement, then the next. A conflict is repeated, with the same
//! input, after the pauses of [`deuteron::RetryPolicy`]; a transaction that the application's own rules roll back has come
//! to its end, and is counted apart. None of this is an audited result of the benchmarks' owners: there are no terminals, no think times, and
//! no rules of pricing.
//!
//! ```
//! use deuteron::Durability;
//! use deuteron_bench::{Driver, EmbeddedApplicationStore, SmallBank, run_application};
//! use std::time::Duration;
//! # let scratch = tempfile::tempdir()?;
//! let bank = SmallBank::new(1_000);
//! let options = deuteron::Options::new().memory(64 << 20);
//! let store = EmbeddedApplicationStore::open(options, scratch.path(), Durability::None, &bank)?;
//! let driver = Driver { seconds: Duration::from_millis(50), ..Driver::default() };
//! let report = run_application(&bank, &store, &driver, &mut |_| {})?;
//! assert!(report.holds(), "{:?}", report.conditions);
//! # store.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod driver;
mod embedded;
mod key;
mod mix;
mod report;
mod row;
mod small_bank;
mod tatp;
#[cfg(test)]
mod testing;
mod tpcc;
mod voter;

pub use driver::{ApplicationProgress, run_application};
pub use embedded::EmbeddedApplicationStore;
pub use report::{ApplicationReport, Condition, TransactionFigure};
pub use small_bank::SmallBank;
pub use tatp::Tatp;
pub use tpcc::Tpcc;
pub use voter::Voter;

use crate::{BenchError, StoreFigures};
use key::Key;
use row::Row;
use std::ops::Range;

/// Why a transaction did not commit.
#[derive(Debug)]
pub enum Interruption {
    /// Another transaction was in the way, for this cause: running it again helps.
    Conflict(&'static str),
    /// The application's own rules roll it back, for this cause. It has come to its end.
    RolledBack(&'static str),
    /// Nothing helps.
    Failed(BenchError),
}

impl From<BenchError> for Interruption {
    fn from(error: BenchError) -> Self {
        Interruption::Failed(error)
    }
}

/// What a transaction is going to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only read, serializably.
    Read,
    /// Read and write, serializably, as durable as the store was opened for.
    Write,
    /// Write what nobody else looks at yet, durable by [`ApplicationStore::settle`].
    Load,
}

/// From which end a scan begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// From the least key.
    Ascending,
    /// From the greatest key.
    Descending,
}

/// A transaction under way. Tables are numbered as in [`Application::tables`].
pub trait ApplicationTransaction {
    /// Calls `reader` on the value of `key`, if there is one.
    ///
    /// # Errors
    /// [`Interruption::Conflict`], [`Interruption::Failed`].
    fn get(&mut self, table: usize, key: &[u8], reader: &mut dyn FnMut(&[u8])) -> Result<(), Interruption>;

    /// [`ApplicationTransaction::get`] of a record that will be written. The same, where the engine cannot be told so.
    ///
    /// # Errors
    /// [`Interruption::Conflict`], [`Interruption::Failed`].
    fn get_for_update(
        &mut self,
        table: usize,
        key: &[u8],
        reader: &mut dyn FnMut(&[u8]),
    ) -> Result<(), Interruption> {
        self.get(table, key, reader)
    }

    /// Sets the value of `key`.
    ///
    /// # Errors
    /// [`Interruption::Conflict`], [`Interruption::Failed`].
    fn put(&mut self, table: usize, key: &[u8], value: &[u8]) -> Result<(), Interruption>;

    /// Deletes `key`, whether or not it is there.
    ///
    /// # Errors
    /// [`Interruption::Conflict`], [`Interruption::Failed`].
    fn delete(&mut self, table: usize, key: &[u8]) -> Result<(), Interruption>;

    /// Calls `each` on the records of `keys`, in order, until it says no.
    ///
    /// # Errors
    /// [`Interruption::Conflict`], [`Interruption::Failed`].
    fn scan(
        &mut self,
        table: usize,
        keys: Range<&[u8]>,
        order: Order,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), Interruption>;

    /// Calls `reader` on the first record of `keys` in this order, if there is one. An engine that can be told so reads no more.
    ///
    /// # Errors
    /// [`Interruption::Conflict`], [`Interruption::Failed`].
    fn first(
        &mut self,
        table: usize,
        keys: Range<&[u8]>,
        order: Order,
        reader: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<(), Interruption> {
        self.scan(table, keys, order, &mut |key, value| {
            reader(key, value);
            false
        })
    }
}

/// The body of a transaction. It may be run several times.
pub type Body<'b> = &'b mut dyn FnMut(&mut dyn ApplicationTransaction) -> Result<(), Interruption>;

/// An engine with transactions over ordered tables.
pub trait ApplicationStore: Sync {
    /// The name that reports carry.
    fn name(&self) -> &'static str;

    /// The isolation of its transactions, in words.
    fn isolation(&self) -> &'static str;

    /// The durability of its commits: `sync`, `delayed` or `none`.
    fn durability(&self) -> &'static str;

    /// Runs `body` in a transaction once, and commits it if it returns without an interruption; else nothing has been done.
    ///
    /// # Errors
    /// What `body` returned; [`Interruption::Conflict`] if it cannot commit because of another transaction;
    /// [`Interruption::Failed`].
    fn transact(&self, access: Access, body: Body<'_>) -> Result<(), Interruption>;

    /// Makes everything so far durable.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    fn settle(&self) -> Result<(), BenchError>;

    /// What the store says of its own work.
    fn figures(&self) -> StoreFigures;
}

/// What the loader is given: a table's number, a key, a value.
pub type Emit<'e> = &'e mut dyn FnMut(usize, &[u8], &[u8]) -> Result<(), BenchError>;

/// A benchmark: its data, its transactions, its conditions.
///
/// What its clients have done by commits it remembers, for [`Application::check`]; so an application belongs to one store.
pub trait Application: Sync {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// How large it is, in words: `4 warehouses`.
    fn scale(&self) -> String;

    /// Its tables. A store has one of each, by that name.
    fn tables(&self) -> &'static [&'static str];

    /// Its kinds of transactions, each with its share of the mix in per cent.
    fn transactions(&self) -> &'static [(&'static str, u32)];

    /// Gives the rows of all tables to the loader.
    ///
    /// # Errors
    /// What `emit` returned.
    fn rows(&self, emit: Emit<'_>) -> Result<(), BenchError>;

    /// Whatever stands for one thread's users.
    fn client(&self, seed: u64) -> Box<dyn Client + '_>;

    /// Its conditions, and whether they hold. Nobody writes meanwhile, and all clients are gone.
    ///
    /// # Errors
    /// [`BenchError::Store`].
    fn check(&self, store: &dyn ApplicationStore) -> Result<Vec<Condition>, BenchError>;
}

/// The users of one thread. When it is dropped, it tells its application what it has done.
pub trait Client: Send {
    /// Draws the next transaction, and returns its number in [`Application::transactions`].
    fn draw(&mut self) -> usize;

    /// Runs the transaction that was drawn last, once.
    ///
    /// # Errors
    /// As [`ApplicationStore::transact`].
    fn attempt(&mut self, store: &dyn ApplicationStore) -> Result<(), Interruption>;
}

/// The row of a key, decoded.
fn find<R: Row>(
    tx: &mut dyn ApplicationTransaction,
    table: usize,
    key: &Key,
) -> Result<Option<R>, Interruption> {
    let mut found = None;
    tx.get(table, key, &mut |bytes| found = Some(R::decode(bytes)))?;
    found.transpose().map_err(Interruption::Failed)
}

/// [`find`] of a row that will be written.
fn find_for_update<R: Row>(
    tx: &mut dyn ApplicationTransaction,
    table: usize,
    key: &Key,
) -> Result<Option<R>, Interruption> {
    let mut found = None;
    tx.get_for_update(table, key, &mut |bytes| found = Some(R::decode(bytes)))?;
    found.transpose().map_err(Interruption::Failed)
}

/// [`find`] of a row that is always there.
fn read<R: Row>(tx: &mut dyn ApplicationTransaction, table: usize, key: &Key) -> Result<R, Interruption> {
    find(tx, table, key)?.ok_or_else(missing)
}

/// [`find_for_update`] of a row that is always there.
fn read_for_update<R: Row>(
    tx: &mut dyn ApplicationTransaction,
    table: usize,
    key: &Key,
) -> Result<R, Interruption> {
    find_for_update(tx, table, key)?.ok_or_else(missing)
}

/// Writes a row.
fn write(
    tx: &mut dyn ApplicationTransaction,
    table: usize,
    key: &Key,
    row: &impl Row,
) -> Result<(), Interruption> {
    tx.put(table, key, &row.encode())
}

fn missing() -> Interruption {
    Interruption::Failed(BenchError::store("run a transaction")("a row is not there that nobody deletes"))
}

/// Takes a record, key and value.
type Each<'e> = &'e mut dyn FnMut(&[u8], &[u8]) -> Result<(), BenchError>;

/// Calls `each` on every record of a table, in one transaction.
fn each_record(store: &dyn ApplicationStore, table: usize, each: Each<'_>) -> Result<(), BenchError> {
    let mut failure = Ok(());
    // No key is empty, which some engines do not take. Nobody else is there, and so there is no conflict; an engine that
    // says otherwise is in error.
    let scanned = store.transact(Access::Read, &mut |tx| {
        tx.scan(table, &[0][..]..&[u8::MAX; key::KEY_BYTES_MAX][..], Order::Ascending, &mut |key, value| {
            failure = each(key, value);
            failure.is_ok()
        })
    });
    failure?;
    scanned.map_err(|interruption| match interruption {
        Interruption::Failed(error) => error,
        Interruption::Conflict(cause) | Interruption::RolledBack(cause) => {
            BenchError::store("check what was written")(cause)
        }
    })
}
