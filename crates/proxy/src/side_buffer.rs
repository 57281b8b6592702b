//! [`SideBuffer`]: operations of transactions that have not ended (paper 4.3.1).

use crate::held::Held;
use crate::outcomes::ByTransaction;
use deuteron_contract::{Lsn, TableId, TransactionId};

/// The copied operations of undecided transactions, bounded in bytes.
pub(crate) struct SideBuffer {
    transactions: ByTransaction<Held>,
    bytes: usize,
    bytes_max: usize,
}

/// What became of an operation given to the side buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kept {
    /// Copied.
    Copied,
    /// Known by its LSN, bytes left in the log.
    LeftInLog,
}

impl SideBuffer {
    pub fn new(bytes_max: usize) -> Self {
        SideBuffer { transactions: ByTransaction::default(), bytes: 0, bytes_max }
    }

    /// Keeps an operation until its transaction ends.
    pub fn push(
        &mut self,
        transaction: TransactionId,
        lsn: Lsn,
        table: TableId,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Kept {
        let held = self.transactions.entry(transaction).or_default();
        let before = held.cost();
        held.push(lsn, table, key, value);
        self.bytes = self.bytes - before + held.cost();
        if self.bytes > self.bytes_max && !held.is_left_in_log() {
            // The one that is growing gives way: a transaction with many operations is likelier to be met here than
            // one with few.
            self.bytes -= held.cost();
            held.leave_in_log();
            self.bytes += held.cost();
        }
        if held.is_left_in_log() { Kept::LeftInLog } else { Kept::Copied }
    }

    /// Keeps a large operation, its pieces and itself, until its transaction ends.
    pub fn push_large(&mut self, transaction: TransactionId, lsns: Vec<Lsn>) {
        let held = self.transactions.entry(transaction).or_default();
        let before = held.cost();
        held.push_large(lsns);
        self.bytes = self.bytes - before + held.cost();
    }

    /// The transaction has ended; its operations, if it has any here.
    pub fn take(&mut self, transaction: TransactionId) -> Option<Held> {
        // It is empty for most of those that commit.
        if self.transactions.is_empty() {
            return None;
        }
        let held = self.transactions.remove(&transaction)?;
        self.bytes -= held.cost();
        Some(held)
    }

    /// Drops everything: the log has ended, so no transaction of it can commit any more. Returns how many
    /// operations that were.
    pub fn clear(&mut self) -> usize {
        self.bytes = 0;
        self.transactions.drain().map(|(_, held)| held.len()).sum()
    }

    /// The lowest LSN of an undecided operation. Undecided transactions are few, so a look at each is cheap.
    pub fn first_lsn(&self) -> Option<Lsn> {
        self.transactions.values().filter_map(Held::first_lsn).min()
    }

    pub fn transactions(&self) -> usize {
        self.transactions.len()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_transaction_is_left_in_the_log_and_small_ones_stay() {
        let mut side = SideBuffer::new(1000);
        let (large, small) = (TransactionId(1), TransactionId(2));
        assert_eq!(side.push(small, Lsn(8), TableId(1), b"k", Some(b"v")), Kept::Copied);
        let kept: Vec<Kept> =
            (2..50).map(|n| side.push(large, Lsn(n * 8), TableId(1), b"k", Some(&[0; 100]))).collect();
        assert_eq!((kept[0], kept[47]), (Kept::Copied, Kept::LeftInLog));
        // What is kept of each besides, and the LSNs.
        assert!(side.bytes() <= 1000 + 1000, "{}", side.bytes());
        assert_eq!(side.first_lsn(), Some(Lsn(8)));
        assert!(!side.take(small).unwrap().is_left_in_log());
        assert_eq!(side.take(large).unwrap().left_in_log().len(), 48);
        assert_eq!((side.bytes(), side.transactions(), side.first_lsn()), (0, 0, None));
    }
}
