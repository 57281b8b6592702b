//! Salvage: every readable record of a database that cannot be opened, or can; nothing is written into it.
//!
//! The records come from the store's fragments ([`StoreSalvage`]) and from the committed transactions in the log
//! ([`LogSalvage`]); of each record the newest version counts. Neither needs the superblock, the images or
//! the segments' headers. What a transaction has logged whose outcome is not in the log is told apart: it may be one that the
//! crash cut off, which never happened, or one whose commit record is damaged.
//!
//! Memory: for each fragment of the store and each operation of a committed transaction in the log some 150 bytes and its keys, and
//! the names of the transactions; one value at a time.

use crate::superblock::{self, Superblock};
use crate::{Error, Lsn, Timestamp};
use deuteron_contract::catalogue::{DROPPED_PREFIX, NAME_PREFIX, decode_id, is_name};
use deuteron_contract::{TableId, TransactionId};
use deuteron_dc::{FoundValue, LoggedVersion, StoreSalvage, TableFound};
use deuteron_device::{Directory, Loss, OsDirectory, with_causes};
use deuteron_log::{LogSalvage, Record};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Something that a [`salvage`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Salvaged<'s> {
    /// A table begins; the records that follow are its own.
    Table {
        /// Its number within the database.
        number: u32,
        /// Its name, if it was found.
        name: Option<&'s str>,
    },
    /// A record, as of its newest version that was found. Keys ascend within a table.
    Record {
        /// Its key.
        key: &'s [u8],
        /// Its value.
        value: &'s [u8],
    },
    /// What a transaction has written of which the log does not say whether it has committed. Comes behind all tables.
    Undecided {
        /// The table's number.
        table: u32,
        /// The transaction.
        transaction: u64,
        /// The key.
        key: &'s [u8],
        /// The value; `None` for a delete.
        value: Option<&'s [u8]>,
    },
}

/// What was found of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvagedTable {
    /// Its number within the database.
    pub number: u32,
    /// Its name, if it was found.
    pub name: Option<String>,
    /// Records found.
    pub records: u64,
    /// Records whose value could not be put together.
    pub incomplete: u64,
}

/// What a [`salvage`] has found, and what not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SalvageReport {
    /// The tables, by number.
    pub tables: Vec<SalvagedTable>,
    /// Segment files of the store.
    pub segments: u64,
    /// Sound fragments of pages in them.
    pub fragments: u64,
    /// Sound buffers of the log.
    pub log_buffers: u64,
    /// Where the last of them ends.
    pub log_end: Lsn,
    /// Transactions in the log that have committed.
    pub transactions_committed: u64,
    /// Their operations.
    pub operations_committed: u64,
    /// Operations of transactions that have aborted.
    pub operations_aborted: u64,
    /// Transactions whose outcome is not in the log.
    pub transactions_undecided: u64,
    /// Their operations.
    pub operations_undecided: u64,
    /// What was written and could not be read, or not be understood: where and why.
    pub losses: Vec<Loss>,
}

impl SalvageReport {
    /// Records found, of all tables.
    ///
    /// ```
    /// assert_eq!(deuteron::SalvageReport::default().records(), 0);
    /// ```
    pub fn records(&self) -> u64 {
        self.tables.iter().map(|table| table.records).sum()
    }
}

/// Finds every readable record of the database, or the stand-alone store, in `path`, however damaged it is, and gives it to
/// `take`. Nothing is written there.
///
/// Of a sound database that is exactly what it would hold if it were opened. Where fragments of pages are lost, records are
/// missing, and those that older fragments still hold come as they were then, deleted ones among them.
///
/// # Errors
/// [`Error::NotFound`] also if no file of a database's or store's is there, [`Error::InUse`], [`Error::Device`] if the directory cannot be
/// listed, or `take` fails. Damage is none; it is in the report.
///
/// ```
/// # let scratch = tempfile::tempdir()?;
/// # let path = scratch.path().join("a.db");
/// use deuteron::{Db, Salvaged, salvage};
/// let db = Db::open(&path)?;
/// let table = db.table("words")?;
/// db.transact(|tx| tx.put(&table, b"key", b"value"))?;
/// db.close()?;
/// std::fs::remove_file(path.join("superblock"))?;
///
/// let mut found = Vec::new();
/// let report = salvage(&path, &mut |salvaged| {
///     if let Salvaged::Record { key, value } = salvaged {
///         found.push((key.to_vec(), value.to_vec()));
///     }
///     Ok(())
/// })?;
/// assert_eq!(found, [(b"key".to_vec(), b"value".to_vec())]);
/// assert_eq!(report.tables[0].name.as_deref(), Some("words"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn salvage(
    path: impl AsRef<Path>,
    take: &mut dyn FnMut(Salvaged<'_>) -> io::Result<()>,
) -> Result<SalvageReport, Error> {
    let path = path.as_ref();
    if !path.is_dir() {
        return Err(Error::NotFound { path: path.display().to_string() });
    }
    let directory = OsDirectory::open_existing(path).map_err(Error::device("open the directory"))?;
    let _lock = lock(&directory)?;
    find(&(Arc::new(directory) as Arc<dyn Directory>), take)
}

/// [`salvage`] of a directory of the caller's making.
///
/// # Errors
/// As [`salvage`].
///
/// ```
/// use deuteron::{Options, device::MemoryDirectory, salvage_in};
/// use std::sync::Arc;
/// let directory = Arc::new(MemoryDirectory::new());
/// let db = Options::tiny_for_tests().open_in(directory.clone())?;
/// db.table("words")?;
/// db.close()?;
/// let report = salvage_in(directory, &mut |_| Ok(()))?;
/// assert_eq!((report.tables.len(), report.records()), (1, 0));
/// # Ok::<(), deuteron::Error>(())
/// ```
pub fn salvage_in(
    directory: Arc<dyn Directory>,
    take: &mut dyn FnMut(Salvaged<'_>) -> io::Result<()>,
) -> Result<SalvageReport, Error> {
    let _lock = lock(&*directory)?;
    find(&directory, take)
}

/// The lock, unless it cannot be had for another reason than that somebody has it.
fn lock(directory: &dyn Directory) -> Result<Option<Box<dyn Send + Sync>>, Error> {
    match directory.lock_to_read() {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.is_locked() => Err(Error::InUse { path: directory.name() }),
        Err(_) => Ok(None),
    }
}

/// What the log says of its transactions.
#[derive(Default)]
struct Outcomes {
    committed: HashMap<TransactionId, Timestamp>,
    aborted: HashSet<TransactionId>,
}

/// By table, and key, the newest version that the log has.
type Logged = BTreeMap<TableId, BTreeMap<Vec<u8>, LoggedVersion>>;

fn find(
    directory: &Arc<dyn Directory>,
    take: &mut dyn FnMut(Salvaged<'_>) -> io::Result<()>,
) -> Result<SalvageReport, Error> {
    let names = directory.list().map_err(Error::device("list the directory"))?;
    let is_ours =
        |name: &String| name == superblock::FILE || name.starts_with("store-") || name.starts_with("log-");
    if !names.iter().any(is_ours) {
        return Err(Error::NotFound { path: directory.name() });
    }
    let mut report = SalvageReport::default();
    let mut store = StoreSalvage::scan(Arc::clone(directory))?;
    let mut log = LogSalvage::scan(Arc::clone(directory))?;
    if let Err(error) = Superblock::read(directory.as_ref())
        && log.buffers() > 0
    {
        let reason = with_causes(&error);
        report.losses.push(Loss { file: superblock::FILE.to_owned(), offset: 0, bytes: 0, reason });
    }
    (report.segments, report.fragments) = store.counts();
    (report.log_buffers, report.log_end) = (log.buffers(), log.end());
    report.losses.extend_from_slice(log.losses());
    let outcomes = read_outcomes(&log);
    report.transactions_committed = outcomes.committed.len() as u64;
    let redo_start = store.redo_scan_start_point().unwrap_or(Lsn(0));
    let mut logged = read_operations(&log, &outcomes, redo_start, &mut report);

    let (names, dropped) = read_catalogue(&mut store, &mut log, logged.remove(&TableId::CATALOGUE))?;
    let mut tables: BTreeSet<TableId> = store.tables().into_iter().collect();
    tables.extend(logged.keys());
    tables.extend(names.keys());
    tables.remove(&TableId::CATALOGUE);
    for table in tables.into_iter().filter(|table| !dropped.contains(table)) {
        let name = names.get(&table).map(String::as_str);
        if store.is_dropped(table) && name.is_none() {
            continue;
        }
        take(Salvaged::Table { number: table.0, name }).map_err(refused)?;
        let versions = logged.remove(&table).unwrap_or_default().into_values().collect();
        let mut incomplete = Vec::new();
        let TableFound { records, incomplete: torn, .. } =
            store.records(table, versions, &mut |key, value| {
                let value = match value {
                    FoundValue::Stored(value) => value,
                    FoundValue::Logged(lsn) => match log.value(lsn) {
                        Ok(value) => value,
                        Err(reason) => {
                            let reason = format!("key \"{}\": {reason}", key.escape_ascii());
                            let file = format!("log, LSN {lsn}");
                            incomplete.push(Loss { file, offset: lsn.0, bytes: 0, reason });
                            return Ok(());
                        }
                    },
                };
                take(Salvaged::Record { key, value: &value }).map_err(refused)
            })?;
        report.tables.push(SalvagedTable {
            number: table.0,
            name: name.map(str::to_owned),
            records: records - incomplete.len() as u64,
            incomplete: torn + incomplete.len() as u64,
        });
        report.losses.extend(incomplete);
    }
    report.losses.extend_from_slice(store.losses());
    tell_undecided(&mut log, &outcomes, &mut report, take)?;
    Ok(report)
}

fn refused(error: io::Error) -> Error {
    Error::Device { context: "write what was found".into(), source: Box::new(error) }
}

fn read_outcomes(log: &LogSalvage) -> Outcomes {
    let mut outcomes = Outcomes::default();
    log.visit(&mut |_, record| match record {
        Record::Commit { transaction, timestamp, .. } => {
            outcomes.committed.insert(transaction, timestamp);
        }
        Record::Abort { transaction } => {
            outcomes.aborted.insert(transaction);
        }
        _ => {}
    });
    outcomes
}

/// Table and key of an operation, and whether it is a delete.
fn operation<'r>(record: &Record<'r>) -> Option<(TransactionId, TableId, &'r [u8], bool)> {
    match *record {
        Record::Upsert { transaction, table, key, .. }
        | Record::LargeUpsert { transaction, table, key, .. } => Some((transaction, table, key, false)),
        Record::Delete { transaction, table, key } => Some((transaction, table, key, true)),
        _ => None,
    }
}

/// The newest version of each record that a committed transaction has logged.
fn read_operations(
    log: &LogSalvage,
    outcomes: &Outcomes,
    redo_start: Lsn,
    report: &mut SalvageReport,
) -> Logged {
    let mut logged = Logged::new();
    let mut undecided = HashSet::new();
    log.visit(&mut |lsn, record| {
        let Some((transaction, table, key, is_delete)) = operation(&record) else { return };
        let Some(&timestamp) = outcomes.committed.get(&transaction) else {
            if outcomes.aborted.contains(&transaction) {
                report.operations_aborted += 1;
            } else {
                report.operations_undecided += 1;
                undecided.insert(transaction);
            }
            return;
        };
        report.operations_committed += 1;
        let table = logged.entry(table).or_default();
        let known = table.get(key).map(|known| (known.timestamp, known.lsn));
        if known.is_none_or(|known| known < (timestamp, lsn)) {
            let (key, is_stable) = (key.to_vec(), lsn < redo_start);
            table.insert(key.clone(), LoggedVersion { key, timestamp, lsn, is_delete, is_stable });
        }
    });
    report.transactions_undecided = undecided.len() as u64;
    logged
}

/// The names of the tables, and those that are dropped.
fn read_catalogue(
    store: &mut StoreSalvage,
    log: &mut LogSalvage,
    logged: Option<BTreeMap<Vec<u8>, LoggedVersion>>,
) -> Result<(BTreeMap<TableId, String>, HashSet<TableId>), Error> {
    let (mut names, mut dropped) = (BTreeMap::new(), HashSet::new());
    let versions = logged.unwrap_or_default().into_values().collect();
    store.records(TableId::CATALOGUE, versions, &mut |key, value| {
        let value = match value {
            FoundValue::Stored(value) => value,
            FoundValue::Logged(lsn) => log.value(lsn).unwrap_or_default(),
        };
        match key.split_first() {
            Some((&NAME_PREFIX, name)) => {
                let name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
                if let Some((id, name)) = decode_id(&value).zip(name) {
                    names.insert(id, name.to_owned());
                }
            }
            Some((&DROPPED_PREFIX, id)) => dropped.extend(decode_id(id)),
            _ => {}
        }
        Ok::<(), Error>(())
    })?;
    // A table that has a name is being loaded, or has come back.
    dropped.retain(|table| !names.contains_key(table));
    Ok((names, dropped))
}

fn tell_undecided(
    log: &mut LogSalvage,
    outcomes: &Outcomes,
    report: &mut SalvageReport,
    take: &mut dyn FnMut(Salvaged<'_>) -> io::Result<()>,
) -> Result<(), Error> {
    if report.operations_undecided == 0 {
        return Ok(());
    }
    let is_decided = |transaction: &TransactionId| {
        outcomes.committed.contains_key(transaction) || outcomes.aborted.contains(transaction)
    };
    let mut places = Vec::new();
    log.visit(&mut |lsn, record| {
        if let Some((transaction, table, key, is_delete)) = operation(&record)
            && !is_decided(&transaction)
        {
            places.push((lsn, transaction, table, key.to_vec(), is_delete));
        }
    });
    for (lsn, transaction, table, key, is_delete) in places {
        let value = match is_delete {
            true => None,
            false => match log.value(lsn) {
                Ok(value) => Some(value),
                Err(reason) => {
                    let file = format!("log, LSN {lsn}");
                    report.losses.push(Loss { file, offset: lsn.0, bytes: 0, reason });
                    continue;
                }
            },
        };
        let (table, transaction) = (table.0, transaction.0);
        take(Salvaged::Undecided { table, transaction, key: &key, value: value.as_deref() })
            .map_err(refused)?;
    }
    Ok(())
}
