//! Commutative updates: `add` and `append`, which do not read what they change (rule R22).
//!
//! A transaction notes them and goes on. At its commit, or when it looks at such a key itself, each becomes a write whose value
//! follows from the version beneath it. At the commit the version is installed first: from then on what lies beneath it stays
//! the newest, whichever that is, so that neither what others have committed meanwhile nor their reads are in the way, and
//! another transaction's change waits for the rest of a commit only.
//!
//! The log has the whole value, and an ordinary redo record: the proxy, recovery and the data component know nothing of changes.
//!
//! A noted change counts only while its key has no version of the transaction's own: it came before that version, whose value
//! has taken it in or has replaced it. If a rollback takes the version away, the change counts again.

use crate::error::{ChangeError, ConflictCause, ConflictPlace, TcError};
use crate::options::Isolation;
use crate::planted::{Bug, is_planted};
use crate::read::{Attempt, Copied, Failure, Own, Protection, Reader};
use crate::record::{KeyRef, REMOVED};
use crate::schedule::point;
use crate::statistics::Counter;
use crate::status::Status;
use crate::sync::Ordering;
use crate::transaction::{STORED_AHEAD, Transaction};
use crate::transaction_table::SlotIndex;
use crate::version::{WRITTEN_INLINE_MAX, Written};
use crate::workspace::Workspace;
use crate::write::{Intent, Manner, Top, WriteFailure};
use deuteron_contract::{Lsn, TableId, Timestamp};
use std::collections::BTreeMap;
use std::ops::Bound;

/// Bytes of an integer, the lowest first.
const INTEGER_BYTES: usize = 8;

/// What is done to a value, whatever it is by then.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The value is an integer: this is added to it. No value counts as 0.
    Add(i64),
    /// This is put behind the value. No value counts as an empty one.
    Append(Box<[u8]>),
}

impl Change {
    fn bytes(&self) -> usize {
        match self {
            Change::Add(_) => 0,
            Change::Append(bytes) => bytes.len(),
        }
    }

    /// Does it to `value`, which is at most `limit` bytes long and stays so.
    fn fold(&self, value: &mut Option<Vec<u8>>, limit: usize) -> Result<(), ChangeError> {
        match self {
            Change::Add(delta) => {
                let before = match value.as_deref() {
                    None => 0,
                    Some(bytes) => integer(bytes)?,
                };
                let after = before
                    .checked_add(*delta)
                    .ok_or(ChangeError::Overflow { value: before, delta: *delta })?;
                *value = Some(after.to_le_bytes().to_vec());
            }
            Change::Append(more) => {
                let before = value.get_or_insert_default();
                let found = before.len() + more.len();
                if found > limit {
                    return Err(ChangeError::TooLong { found, limit });
                }
                before.extend_from_slice(more);
            }
        }
        Ok(())
    }
}

fn integer(bytes: &[u8]) -> Result<i64, ChangeError> {
    let bytes: [u8; INTEGER_BYTES] =
        bytes.try_into().map_err(|_| ChangeError::NotAnInteger { found: bytes.len() })?;
    Ok(i64::from_le_bytes(bytes))
}

/// A change and its place among those of the transaction.
type Noted = (u64, Change);

/// Bytes of a change that is noted.
fn noted_bytes(change: &Change) -> usize {
    size_of::<Noted>() + change.bytes()
}

/// Bytes of a key of which changes are noted.
fn key_bytes(key: &[u8]) -> usize {
    size_of::<Vec<u8>>() + size_of::<Vec<Noted>>() + key.len()
}

/// What a transaction has noted and not written yet.
#[derive(Default)]
pub(crate) struct Changes {
    by_key: BTreeMap<TableId, BTreeMap<Vec<u8>, Vec<Noted>>>,
    next: u64,
}

impl Changes {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.next > 0 {
            *self = Changes::default();
        }
    }

    /// A mark for [`Changes::rollback_to`].
    pub(crate) fn mark(&self) -> u64 {
        self.next
    }

    /// Forgets what has been noted since; how many bytes of memory that gives back.
    pub(crate) fn rollback_to(&mut self, mark: u64) -> usize {
        if self.next == mark {
            return 0;
        }
        self.next = mark;
        let mut bytes = 0;
        for keys in self.by_key.values_mut() {
            keys.retain(|key, noted| {
                noted.retain(|(place, change)| {
                    let stays = *place < mark;
                    bytes += if stays { 0 } else { noted_bytes(change) };
                    stays
                });
                bytes += if noted.is_empty() { key_bytes(key) } else { 0 };
                !noted.is_empty()
            });
        }
        self.by_key.retain(|_, keys| !keys.is_empty());
        bytes
    }

    /// Notes a change; how many bytes of memory that takes.
    fn note(&mut self, table: TableId, key: &[u8], change: Change) -> usize {
        let bytes = noted_bytes(&change);
        let noted = (self.next, change);
        self.next += 1;
        let keys = self.by_key.entry(table).or_default();
        match keys.get_mut(key) {
            Some(there) => {
                there.push(noted);
                bytes
            }
            None => {
                keys.insert(key.to_vec(), vec![noted]);
                bytes + key_bytes(key)
            }
        }
    }

    /// One of the keys that are to be changed.
    pub(crate) fn first(&self) -> Option<(TableId, &[u8])> {
        let (table, keys) = self.by_key.first_key_value()?;
        Some((*table, keys.first_key_value()?.0))
    }

    fn of(&self, table: TableId, key: &[u8]) -> Option<&[Noted]> {
        Some(self.by_key.get(&table)?.get(key)?)
    }

    fn keys_within(&self, table: TableId, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Vec<Vec<u8>> {
        let keys = self.by_key.get(&table).map(|keys| keys.range::<[u8], _>((lower, upper)));
        keys.into_iter().flatten().map(|(key, _)| key.clone()).collect()
    }
}

impl Transaction {
    /// Adds `delta` to the integer that `key` has for a value, without reading it: 8 bytes, the lowest first. If the key does not
    /// exist its value counts as 0. Changes of one key by several transactions are no conflict.
    ///
    /// # Errors
    /// As [`Transaction::put`]. What the value is shows at the commit, which may fail with [`TcError::Change`].
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, MemoryDc, TableId, Timestamp};
    /// # use deuteron_device::MemoryDirectory;
    /// # use deuteron_epoch::Epochs;
    /// # use deuteron_log::{Log, LogOptions};
    /// # use deuteron_tc::{Host, Stall, TcError, TcOptions, TransactionComponent};
    /// # use std::sync::Arc;
    /// # struct Flusher(Arc<Log>);
    /// # impl Host for Flusher {
    /// #     fn stalled(&self, _: Stall) -> Result<(), String> {
    /// #         self.0.flush_step().map(drop).map_err(|error| error.to_string())
    /// #     }
    /// # }
    /// # let (epochs, directory) = (Epochs::new(), Arc::new(MemoryDirectory::new()));
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs.clone(), Lsn(0)..Lsn(0))?;
    /// # let log = Arc::new(log);
    /// # let (host, dc) = (Arc::new(Flusher(log.clone())), Arc::new(MemoryDc::new()));
    /// # let options = TcOptions { retains: true, ..TcOptions::tiny_for_tests() };
    /// # let tc = TransactionComponent::open(options, log, dc, epochs, host)?;
    /// # let table = TableId(1);
    /// let (mut first, mut second) = (tc.begin(), tc.begin());
    /// first.add(table, b"apples", 12)?;
    /// second.add(table, b"apples", -2)?;
    /// second.commit()?;
    /// first.commit()?;
    /// assert_eq!(tc.begin().get(table, b"apples")?, Some(10i64.to_le_bytes().to_vec()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add(&mut self, table: TableId, key: &[u8], delta: i64) -> Result<(), TcError> {
        self.note_change(table, key, Change::Add(delta))
    }

    /// Puts `bytes` behind the value of `key`, without reading it. If the key does not exist they become its value. Changes of one
    /// key by several transactions are no conflict. The log takes the whole value each time.
    ///
    /// # Errors
    /// As [`Transaction::add`].
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, MemoryDc, TableId, Timestamp};
    /// # use deuteron_device::MemoryDirectory;
    /// # use deuteron_epoch::Epochs;
    /// # use deuteron_log::{Log, LogOptions};
    /// # use deuteron_tc::{Host, Stall, TcError, TcOptions, TransactionComponent};
    /// # use std::sync::Arc;
    /// # struct Flusher(Arc<Log>);
    /// # impl Host for Flusher {
    /// #     fn stalled(&self, _: Stall) -> Result<(), String> {
    /// #         self.0.flush_step().map(drop).map_err(|error| error.to_string())
    /// #     }
    /// # }
    /// # let (epochs, directory) = (Epochs::new(), Arc::new(MemoryDirectory::new()));
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs.clone(), Lsn(0)..Lsn(0))?;
    /// # let log = Arc::new(log);
    /// # let (host, dc) = (Arc::new(Flusher(log.clone())), Arc::new(MemoryDc::new()));
    /// # let options = TcOptions { retains: true, ..TcOptions::tiny_for_tests() };
    /// # let tc = TransactionComponent::open(options, log, dc, epochs, host)?;
    /// # let table = TableId(1);
    /// let mut tx = tc.begin();
    /// tx.append(table, b"names", b"ada ")?;
    /// tx.append(table, b"names", b"bob ")?;
    /// assert_eq!(tx.get(table, b"names")?.as_deref(), Some(&b"ada bob "[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn append(&mut self, table: TableId, key: &[u8], bytes: &[u8]) -> Result<(), TcError> {
        self.note_change(table, key, Change::Append(bytes.into()))
    }

    /// Adds `delta` to the integer that `key` has for a value, and returns the sum. That is a read and a write, and conflicts as
    /// those do: where the sum is not wanted, [`Transaction::add`] is better.
    ///
    /// # Errors
    /// As [`Transaction::get_for_update`]; [`TcError::Change`].
    ///
    /// ```
    /// # use deuteron_contract::{Lsn, MemoryDc, TableId, Timestamp};
    /// # use deuteron_device::MemoryDirectory;
    /// # use deuteron_epoch::Epochs;
    /// # use deuteron_log::{Log, LogOptions};
    /// # use deuteron_tc::{Host, Stall, TcError, TcOptions, TransactionComponent};
    /// # use std::sync::Arc;
    /// # struct Flusher(Arc<Log>);
    /// # impl Host for Flusher {
    /// #     fn stalled(&self, _: Stall) -> Result<(), String> {
    /// #         self.0.flush_step().map(drop).map_err(|error| error.to_string())
    /// #     }
    /// # }
    /// # let (epochs, directory) = (Epochs::new(), Arc::new(MemoryDirectory::new()));
    /// # let (log, _) = Log::open(directory, &LogOptions::tiny_for_tests(), epochs.clone(), Lsn(0)..Lsn(0))?;
    /// # let log = Arc::new(log);
    /// # let (host, dc) = (Arc::new(Flusher(log.clone())), Arc::new(MemoryDc::new()));
    /// # let options = TcOptions { retains: true, ..TcOptions::tiny_for_tests() };
    /// # let tc = TransactionComponent::open(options, log, dc, epochs, host)?;
    /// # let table = TableId(1);
    /// let mut tx = tc.begin();
    /// assert_eq!(tx.add_and_get(table, b"apples", 12)?, 12);
    /// assert_eq!(tx.add_and_get(table, b"apples", -2)?, 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn add_and_get(&mut self, table: TableId, key: &[u8], delta: i64) -> Result<i64, TcError> {
        self.note_change(table, key, Change::Add(delta))?;
        self.write_changes(table, key)?;
        match self.get_with(table, key, integer)? {
            Some(Ok(sum)) => Ok(sum),
            _ => unreachable!("the sum has been written"),
        }
    }

    fn note_change(&mut self, table: TableId, key: &[u8], change: Change) -> Result<(), TcError> {
        self.check_active()?;
        self.check_key(key)?;
        if self.options.read_only {
            return Err(TcError::ReadOnly);
        }
        let limit = self.workspace.core.options.value_bytes_max;
        if change.bytes() > limit {
            return Err(TcError::ValueSize { found: change.bytes(), limit });
        }
        if self.workspace.writes_key(table, key) {
            // A version of the transaction's own takes the change in at once.
            let mut value = self.get(table, key)?;
            self.fold(table, key, &[(0, change)], &mut value)?;
            return self.write(table, key, value.as_deref());
        }
        let workspace = &mut **self.workspace;
        let bytes = workspace.changes.note(table, key, change);
        workspace.written_bytes += bytes;
        self.workspace.check_size(0).inspect_err(|_| self.roll_back())?;
        let workspace = &mut **self.workspace;
        workspace.held.add(bytes, &workspace.core.account);
        workspace.make_room().inspect_err(|_| self.roll_back())?;
        self.check_may_note()
    }

    /// If somebody has aborted the transaction for what it has noted, it is to give that back.
    fn check_may_note(&mut self) -> Result<(), TcError> {
        match self.workspace.slot().status.load() {
            Status::Active(_) => Ok(()),
            _ => Err(self.conflict_of_aborted()),
        }
    }

    /// Before the transaction looks at a key: what it has noted for it becomes a read and a write.
    #[cold]
    pub(crate) fn write_changes(&mut self, table: TableId, key: &[u8]) -> Result<(), TcError> {
        self.check_may_note()?;
        if self.workspace.changes.of(table, key).is_none() || self.workspace.writes_key(table, key) {
            return Ok(());
        }
        self.approach(table, key)?;
        let noted = self.workspace.changes.of(table, key).unwrap_or_default().to_vec();
        if self.options.isolation == Isolation::ReadCommitted {
            // R16: nobody would find out that another has come between the reading and the write.
            return self.commit_change(table, key, &noted);
        }
        let mut value = match self.read(table, key) {
            Ok(exists) => exists.then(|| self.workspace.value.clone()),
            Err(failure) => return Err(self.fail_on_key(failure, table, key)),
        };
        self.fold(table, key, &noted, &mut value)?;
        self.write(table, key, value.as_deref())
    }

    /// The same for a range.
    #[cold]
    pub(crate) fn write_changes_within(
        &mut self,
        table: TableId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> Result<(), TcError> {
        self.check_may_note()?;
        let keys = self.workspace.changes.keys_within(table, lower, upper);
        keys.into_iter().try_for_each(|key| self.write_changes(table, &key))
    }

    fn fold(
        &mut self,
        table: TableId,
        key: &[u8],
        noted: &[Noted],
        value: &mut Option<Vec<u8>>,
    ) -> Result<(), TcError> {
        let limit = self.workspace.core.options.value_bytes_max;
        for (_, change) in noted {
            if let Err(cause) = change.fold(value, limit) {
                self.roll_back();
                return Err(TcError::Change { table, key: key.to_vec(), cause });
            }
        }
        Ok(())
    }

    /// R22, in the commit: everything noted is written. In the order of keys, so that transactions which only change wait for each
    /// other in no circle.
    #[cold]
    pub(crate) fn commit_changes(&mut self) -> Result<(), TcError> {
        let changes = std::mem::take(&mut self.workspace.changes);
        for (table, keys) in &changes.by_key {
            let names: Vec<&[u8]> = keys.keys().map(Vec::as_slice).collect();
            for (index, (key, noted)) in keys.iter().enumerate() {
                if index.is_multiple_of(STORED_AHEAD) {
                    // What is not in memory comes many at a time, and before anybody has to wait for it.
                    let next = &names[index..names.len().min(index + STORED_AHEAD)];
                    self.prefetch(*table, next, &[]);
                }
                self.commit_change(*table, key, noted)?;
            }
        }
        Ok(())
    }

    fn commit_change(&mut self, table: TableId, key: &[u8], noted: &[Noted]) -> Result<(), TcError> {
        let early = loop {
            let failure = match self.install_change(table, key, noted) {
                Ok(Placed::Above(early)) => break early,
                Ok(Placed::Own) => return Ok(()),
                Err(failure) => failure,
            };
            let (cause, other) = match failure {
                WriteFailure::Error(error) => return Err(self.end_with(error)),
                WriteFailure::Undecided { other, slot } => {
                    // Even under snapshot isolation: what the other commits is not in the way.
                    if !self.must_be_in_time() && self.wait_for(slot)? {
                        continue;
                    }
                    (ConflictCause::WriteWrite, Some(other))
                }
                // Somebody else was faster.
                WriteFailure::Conflict(ConflictCause::WriteWrite, _) if !self.must_be_in_time() => continue,
                WriteFailure::Conflict(cause, other) => (cause, other),
            };
            return Err(self.conflict(cause, table, ConflictPlace::Key(key.to_vec()), other));
        };
        point();
        // Nobody comes between any more: what lies beneath is what this transaction comes after.
        let found = match is_planted(Bug::FoldEarly) {
            true => Ok(early),
            false => self.read_newest(table, key, Own::Beneath),
        };
        let mut value = found.map_err(|failure| self.fail_on_key(failure, table, key))?;
        self.fold(table, key, noted, &mut value)?;
        self.log_change(table, key, value.as_deref()).inspect_err(|_| self.roll_back())
    }

    /// Installs a version that has no value yet.
    fn install_change(
        &mut self,
        table: TableId,
        key: &[u8],
        noted: &[Noted],
    ) -> Result<Placed, WriteFailure> {
        // The way to the data component, if it must be gone, is gone before others have to wait.
        let newest = match self.read_newest(table, key, Own::Visible) {
            Ok(newest) => newest,
            Err(failure) => {
                return Err(failure.into_error(WriteFailure::Conflict));
            }
        };
        let (at, in_time) = (self.at, self.must_be_in_time());
        let workspace = &mut **self.workspace;
        workspace.make_room()?;
        let core = &*workspace.core;
        if !matches!(workspace.slot().status.load(), Status::Active(_)) {
            return Err(WriteFailure::Conflict(workspace.slot().aborted_for(), None));
        }
        let hashed = core.table.key(table, key);
        match workspace.top_of(hashed) {
            TopOf::Own => return Ok(Placed::Own),
            TopOf::Other { lower_bound: other, slot } => return Err(WriteFailure::Undecided { other, slot }),
            TopOf::Nobody => {}
        }
        let length: usize = match noted.last() {
            Some((_, Change::Add(_))) => INTEGER_BYTES,
            _ => {
                newest.as_ref().map_or(0, Vec::len)
                    + noted.iter().map(|(_, change)| change.bytes()).sum::<usize>()
            }
        };
        let room = [0; WRITTEN_INLINE_MAX];
        let written = match room.get(..length) {
            Some(room) if !core.account.is_over_target() => Written::Inline(room),
            _ => Written::Logged,
        };
        point();
        // Whatever has been committed since the begin is welcome, under snapshot isolation, too.
        let manner = Manner { at, in_time, isolation: Isolation::Serializable, intent: Intent::Hold };
        workspace.install(hashed, Lsn(0), written, manner)?;
        Ok(Placed::Above(newest))
    }

    /// Logs the value of the version that has been installed, and gives it to it.
    fn log_change(&mut self, table: TableId, key: &[u8], value: Option<&[u8]>) -> Result<(), TcError> {
        let workspace = &mut **self.workspace;
        let (slot, id) = (workspace.slot(), workspace.log_id);
        let (lsn, is_large) =
            workspace.core.log_write(slot, id, &mut self.logged_bytes, table, key, value)?;
        workspace.counts.add(Counter::Writes);
        point();
        let written = match value {
            None => Written::Absent,
            Some(_) if is_large => Written::Large,
            Some(value) => Written::Inline(value),
        };
        let Some(last) = workspace.writes.len().checked_sub(1) else { return Ok(()) };
        // SAFETY: the last version of the write set is the one just installed: not stamped, ours, and we have not ended (V5).
        // Without room for the value it refers to the log.
        unsafe { workspace.version_of(last).rewrite(lsn, written) };
        Ok(())
    }

    /// The newest committed value of `key`, whenever it was committed, or with `own` visible the transaction's. It counts as no
    /// read.
    pub(crate) fn read_newest(
        &mut self,
        table: TableId,
        key: &[u8],
        own: Own,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let workspace = &mut **self.workspace;
        let core = &*workspace.core;
        let reader = Reader { at: Timestamp::MAX, slot: workspace.slot, own, protection: Protection::None };
        let (hashed, mut fetched) = (core.table.key(table, key), None);
        loop {
            let guard = core.epochs.pin();
            let (version, written) = match core.attempt_read(hashed, reader, fetched.as_ref(), &guard) {
                Attempt::Found { version, at, commit_lsn } => {
                    workspace.read_lsn = workspace.read_lsn.max(commit_lsn);
                    (version, Some((at, commit_lsn)))
                }
                Attempt::Own(version) => (version, None),
                Attempt::Fetched => {
                    let Some(fetched) = fetched.take() else { continue };
                    return Ok(fetched.value);
                }
                Attempt::Miss { generation } => {
                    drop(guard);
                    workspace.counts.add(Counter::Misses);
                    let ahead = &mut workspace.ahead;
                    fetched = Some(core.fetch_unless_ahead(ahead, hashed, generation, reader.at)?);
                    continue;
                }
                Attempt::TooOld => return Err(Failure::TooOld),
                Attempt::Undecided(other) => return Err(Failure::GivesWay(other)),
            };
            let copied = core.copy_value(version, &mut workspace.value, &guard);
            drop(guard);
            match copied {
                Copied::Absent => return Ok(None),
                Copied::Present => return Ok(Some(workspace.value.clone())),
                Copied::Recycled(lsn) | Copied::Large(lsn) => {
                    match core.load_recycled(hashed, lsn, written) {
                        Ok(None) => {}
                        // What was changed there is lost with it.
                        Err(TcError::TableDropped { .. }) => return Ok(None),
                        loaded => return Ok(loaded?),
                    }
                }
            }
        }
    }
}

/// What became of the installation of a change.
enum Placed {
    /// The transaction has a version of the key already, which makes up for the change.
    Own,
    /// Above this value, or a newer one.
    Above(Option<Vec<u8>>),
}

/// Whose uncommitted version is at the top of a record.
enum TopOf {
    Nobody,
    Own,
    Other { lower_bound: Timestamp, slot: SlotIndex },
}

impl Workspace {
    fn top_of(&self, key: KeyRef<'_>) -> TopOf {
        let guard = self.core.epochs.pin();
        let Some(record) = self.core.table.find(key, &guard) else { return TopOf::Nobody };
        let head = record.head.load(Ordering::SeqCst);
        if head == REMOVED {
            return TopOf::Nobody;
        }
        match self.top(head, &guard) {
            Top::Base | Top::Committed(..) => TopOf::Nobody,
            Top::Own(_) => TopOf::Own,
            Top::Other { lower_bound, slot } => TopOf::Other { lower_bound, slot },
        }
    }

    /// Whether the transaction has a version of the key.
    pub(crate) fn writes_key(&self, table: TableId, key: &[u8]) -> bool {
        !self.writes.is_empty() && matches!(self.top_of(self.core.table.key(table, key)), TopOf::Own)
    }
}
