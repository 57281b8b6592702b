//! The identifiers that both sides speak of.

use std::fmt;

/// A log sequence number: the byte offset of a record in the recovery log, counted from the log's creation.
///
/// LSNs order the *log*; they do not order versions (that is what [`Timestamp`] does). They serve write-ahead
/// logging and progress reports, and they are the address of a version in the version cache.
///
/// ```
/// use deuteron_contract::Lsn;
/// assert!(Lsn(4096) < Lsn(8192));
/// assert_eq!(Lsn(4096).to_string(), "4096");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Lsn(pub u64);

/// A transaction timestamp: the logical time as of which a transaction reads and at which its writes commit.
///
/// Unique per transaction and increasing with the clock. `Timestamp(0)` is before every transaction. Only the
/// low 62 bits are used ([`Timestamp::MAX`]), so that a state fits beside it in one atomic word.
///
/// ```
/// use deuteron_contract::Timestamp;
/// assert!(Timestamp(1) < Timestamp::MAX);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// The largest timestamp, later than any that the clock hands out.
    pub const MAX: Timestamp = Timestamp((1 << 62) - 1);
}

/// The identifier of a table: a separate key space in the same store. `TableId(0)` is the catalogue.
///
/// ```
/// use deuteron_contract::TableId;
/// assert_eq!(TableId::CATALOGUE, TableId(0));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TableId(pub u32);

impl TableId {
    /// The table of tables: name to identifier. An ordinary table to the DC.
    pub const CATALOGUE: TableId = TableId(0);
    /// Of no table: those that are given out lie between the catalogue's and this one.
    pub const NOWHERE: TableId = TableId((1 << 31) - 1);
}

/// The identity of a transaction in the log: its begin timestamp, which is unique across the life of the
/// database.
///
/// ```
/// use deuteron_contract::TransactionId;
/// assert_ne!(TransactionId(1), TransactionId(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct TransactionId(pub u64);

macro_rules! display_as_number {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    )*};
}

display_as_number!(Lsn, Timestamp, TableId, TransactionId);
