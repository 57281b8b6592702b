//! Operations of a [`Transaction`] that are made of others.

use crate::{Error, Isolation, KeyRange, Table, Transaction};
use deuteron_contract::Direction;
use deuteron_tc::{Savepoint, ScanCursor};

impl Transaction {
    /// How often the work of this transaction has been tried, this time included: 1, unless [`crate::Db::transact`] runs
    /// it again.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// assert_eq!(db.transact(|tx| Ok(tx.attempt()))?, 1);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// The value of `key`, with the intent to change it: from here on others that would write the key wait a moment and give way,
    /// and not only when this transaction writes it. The record counts as written, with the value that it has.
    ///
    /// This is how to read what will be written: if another transaction is writing the key, this one waits a moment for it,
    /// and if others have committed newer values since this one began, it sees the newest, as if it had begun later, provided
    /// that what it has read before is still so.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// db.transact(|tx| tx.put(&stock, b"apples", b"12"))?;
    /// let mut tx = db.begin();
    /// assert_eq!(tx.get_for_update(&stock, b"apples")?.as_deref(), Some(&b"12"[..]));
    /// assert!(db.begin().put(&stock, b"apples", b"13").is_err());
    /// tx.put(&stock, b"apples", b"11")?;
    /// tx.commit()?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn get_for_update(&mut self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        self.usable(table)?;
        let value = self.run(|tx| tx.get_for_update(table.id, key))?;
        self.record(|recording| recording.read(table, key, value.as_deref()));
        Ok(value)
    }

    /// A place in the transaction to which [`Transaction::rollback_to`] returns. It takes some forty bytes until the transaction ends, or
    /// returns to one before it.
    ///
    /// # Errors
    /// [`Error::Aborted`], [`Error::Closed`], [`Error::Poisoned`]; [`Error::TransactionTooLarge`], if they and what was written
    /// take more than half of the memory of transactions; as [`Transaction::put`], if memory is short.
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// db.transact(|tx| {
    ///     tx.put(&stock, b"apples", b"12")?;
    ///     let before = tx.savepoint()?;
    ///     tx.put(&stock, b"apples", b"11")?;
    ///     tx.put(&stock, b"pears", b"7")?;
    ///     tx.rollback_to(&before)?;
    ///     assert_eq!(tx.get(&stock, b"apples")?.as_deref(), Some(&b"12"[..]));
    ///     assert_eq!(tx.get(&stock, b"pears")?, None);
    ///     Ok(())
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn savepoint(&mut self) -> Result<Savepoint, Error> {
        self.usable_engine()?;
        let savepoint = self.run(deuteron_tc::Transaction::savepoint)?;
        self.record(|recording| recording.savepoint(savepoint));
        Ok(savepoint)
    }

    /// Gives up everything that was written since the savepoint; what had not been written before it can be written by others
    /// again. What was read since counts as read. The savepoint can be returned to again, those made after it cannot. A
    /// transaction that has rolled back writes to the log at its commit what is left of its writes, once more.
    ///
    /// # Errors
    /// [`Error::NoSavepoint`] if the savepoint is another transaction's, or gone: nothing has happened then. As
    /// [`Transaction::get`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// # let stock = db.table("stock")?;
    /// let mut tx = db.begin();
    /// let outer = tx.savepoint()?;
    /// let inner = tx.savepoint()?;
    /// tx.put(&stock, b"apples", b"12")?;
    /// tx.rollback_to(&outer)?;
    /// assert!(matches!(tx.rollback_to(&inner), Err(deuteron::Error::NoSavepoint)));
    /// tx.commit()?;
    /// assert_eq!(db.begin().get(&stock, b"apples")?, None);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn rollback_to(&mut self, savepoint: &Savepoint) -> Result<(), Error> {
        self.usable_engine()?;
        self.run(|tx| tx.rollback_to(savepoint))?;
        self.record(|recording| recording.rollback_to(savepoint));
        Ok(())
    }

    /// Gives `key` the value `new` if it has the value `expected`; `None` stands for "does not exist", on either side. Whether
    /// it had. Nobody else's write comes between the look and the change, at any level of isolation: under
    /// [`Isolation::ReadCommitted`](crate::Isolation::ReadCommitted) the look is a [`Transaction::get_for_update`], so that others that write the key are in
    /// the way from then on.
    ///
    /// # Errors
    /// As [`Transaction::put`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// db.transact(|tx| {
    ///     assert!(tx.compare_and_set(&stock, b"apples", None, Some(b"12"))?);
    ///     assert!(!tx.compare_and_set(&stock, b"apples", Some(b"13"), None)?);
    ///     assert!(tx.compare_and_set(&stock, b"apples", Some(b"12"), None)?);
    ///     Ok(())
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn compare_and_set(
        &mut self,
        table: &Table,
        key: &[u8],
        expected: Option<&[u8]>,
        new: Option<&[u8]>,
    ) -> Result<bool, Error> {
        self.usable_to_write(table)?;
        let matches = if self.inner.isolation() == Isolation::ReadCommitted {
            // What such a transaction has read may change until it commits, and nothing looks.
            self.get_for_update(table, key)?.as_deref() == expected
        } else {
            let found = self.get_with(table, key, |value| Some(value) == expected)?;
            found.unwrap_or(expected.is_none())
        };
        if matches {
            self.set(table, key, new)?;
        }
        Ok(matches)
    }

    /// Adds `delta` to the integer under `key`, without reading it: 8 bytes, the lowest first, as of [`i64::to_le_bytes`]. If the
    /// key does not exist, it counts as 0.
    ///
    /// Of transactions that change the same key so, all commit, in any order: none of them has looked at the value. The sum is
    /// made in the commit. A transaction that reads a key which it has changed, by itself or in a scan, sees its change; from then
    /// on it has read the value, and others are in its way as with [`Transaction::get_for_update`].
    ///
    /// # Errors
    /// As [`Transaction::put`]. That the value is no integer, or that the sum does not fit, shows in the commit:
    /// [`Error::Change`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let visits = db.table("visits")?;
    /// let (mut first, mut second) = (db.begin(), db.begin());
    /// first.add(&visits, b"/", 1)?;
    /// second.add(&visits, b"/", 1)?;
    /// second.commit()?;
    /// first.commit()?;
    /// let count = db.begin().get(&visits, b"/")?.expect("was made").try_into().expect("8 bytes");
    /// assert_eq!(i64::from_le_bytes(count), 2);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn add(&mut self, table: &Table, key: &[u8], delta: i64) -> Result<(), Error> {
        self.usable(table)?;
        self.run(|tx| tx.add(table.id, key, delta))?;
        self.record(|recording| recording.change(table, key));
        Ok(())
    }

    /// Puts `bytes` behind the value of `key`, without reading it. If the key does not exist, they become its value. Goes with
    /// others' changes as [`Transaction::add`] does; which comes first is the order of the commits.
    ///
    /// The log takes the whole value at each commit: this is for values that stay short.
    ///
    /// # Errors
    /// As [`Transaction::put`]. That the value would become too long shows in the commit: [`Error::Change`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let notes = db.table("notes")?;
    /// for line in [&b"bread\n"[..], b"milk\n"] {
    ///     db.transact(|tx| tx.append(&notes, b"to buy", line))?;
    /// }
    /// assert_eq!(db.begin().get(&notes, b"to buy")?.as_deref(), Some(&b"bread\nmilk\n"[..]));
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn append(&mut self, table: &Table, key: &[u8], bytes: &[u8]) -> Result<(), Error> {
        self.usable(table)?;
        self.run(|tx| tx.append(table.id, key, bytes))?;
        self.record(|recording| recording.append(table, key, bytes));
        Ok(())
    }

    /// Adds `delta` to the integer under `key` and returns the sum. Since the value is looked at, others that write the key are in
    /// the way, as with [`Transaction::get_for_update`]; [`Transaction::add`] does without.
    ///
    /// # Errors
    /// As [`Transaction::put`]; [`Error::Change`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let numbers = db.table("numbers")?;
    /// assert_eq!(db.transact(|tx| tx.add_and_get(&numbers, b"next order", 1))?, 1);
    /// assert_eq!(db.transact(|tx| tx.add_and_get(&numbers, b"next order", 1))?, 2);
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn add_and_get(&mut self, table: &Table, key: &[u8], delta: i64) -> Result<i64, Error> {
        self.usable(table)?;
        let sum = self.run(|tx| tx.add_and_get(table.id, key, delta))?;
        self.record(|recording| recording.change(table, key));
        Ok(sum)
    }

    /// Deletes every record of `range`; how many there were. The range is protected as a scan's is: what others insert into
    /// it comes before, and is deleted, or after. Under [`Isolation::Snapshot`](crate::Isolation::Snapshot) and
    /// [`Isolation::ReadCommitted`](crate::Isolation::ReadCommitted) it is not: what was there at the begin of the transaction, or when its turn came, is deleted, and
    /// what others insert meanwhile stays, though they commit before. Takes memory for each record until the transaction ends.
    ///
    /// # Errors
    /// As [`Transaction::put`] and [`Transaction::scan`]; [`Error::TransactionTooLarge`].
    ///
    /// ```
    /// # let db = deuteron::Options::tiny_for_tests().open_in(std::sync::Arc::new(deuteron::device::MemoryDirectory::new()))?;
    /// let stock = db.table("stock")?;
    /// db.transact(|tx| {
    ///     tx.put(&stock, b"apples", b"12")?;
    ///     tx.put(&stock, b"pears", b"7")?;
    ///     assert_eq!(tx.delete_range(&stock, &b"a"[..]..&b"b"[..])?, 1);
    ///     assert_eq!(tx.get(&stock, b"apples")?, None);
    ///     Ok(())
    /// })?;
    /// # db.close()?;
    /// # Ok::<(), deuteron::Error>(())
    /// ```
    pub fn delete_range(&mut self, table: &Table, range: impl KeyRange) -> Result<u64, Error> {
        let id = self.usable_to_write(table)?;
        let (lower, upper) = range.key_bounds();
        let recorded = self.recording.as_mut().map(|recording| recording.range(table, &lower, &upper));
        let mut cursor = ScanCursor::new(id, lower, upper, Direction::Forward);
        let (mut deleted, mut key) = (0, Vec::new());
        while self.scan_next(&mut cursor, usize::MAX)? {
            for index in 0..self.inner.scanned(Direction::Forward).len() {
                let entry = self.inner.scanned(Direction::Forward).get(index);
                if let (Some(recording), Some(range)) = (&mut self.recording, &recorded) {
                    recording.found(range, false, entry);
                }
                key.clear();
                key.extend_from_slice(entry.0);
                self.delete(table, &key)?;
                deleted += 1;
            }
        }
        if let (Some(recording), Some(range)) = (&mut self.recording, &recorded) {
            recording.scanned(range, false, None);
        }
        Ok(deleted)
    }

    /// Puts a value, or deletes.
    fn set(&mut self, table: &Table, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        match value {
            Some(value) => self.put(table, key, value),
            None => self.delete(table, key),
        }
    }
}
