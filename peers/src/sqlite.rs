//! SQLite: a B-tree with a write-ahead log. One writer at a time; transactions that only read run on snapshots.
//!
//! Set as <https://www.sqlite.org/wal.html> and <https://www.sqlite.org/pragma.html> recommend for threads of one program that read and write:
//!
//! - `journal_mode=WAL`, so that readers and the writer do not wait for each other; checkpoints by themselves every 1000 pages, the default.
//! - `synchronous=FULL` if every commit is to be on stable storage, `NORMAL` if not: the log is written to the operating system at commit, and
//!   synced when a checkpoint is made ("a good choice for most applications running in WAL mode").
//! - One connection a thread for reading, without a mutex of its own. One connection for writing, which threads take in turns: there is but one
//!   writer at a time in any case, who would wait for the others by sleeping (`busy_timeout`), and whose page cache is dropped when another
//!   connection has written. Writers begin with `BEGIN IMMEDIATE`, as a reader that becomes a writer can fail.
//! - Half of the memory as page cache of the writer, the other half shared among the readers. The operating system's page cache, which nothing
//!   bounds, is there besides.
//! - A table `WITHOUT ROWID`, whose key is a blob: one tree, in the order of keys (<https://www.sqlite.org/withoutrowid.html>).
//!   `REPLACE` of such a record overwrites it without looking for it first.
//! - Statements are prepared once a connection.
//!
//! Tried, and left as it is by default: a memory map of the file (`mmap_size`), with which reads alone were 1.3 times as fast and the paper's mix a third;
//! checkpoints every 10,000 pages, with which the mix was not faster.

use crate::peer::{Peer, PeerTransaction, Settings, Trouble, seen};
use rusqlite::{Connection, Error, ErrorCode};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The table, wherever it is made.
pub const CREATE: &str =
    "CREATE TABLE IF NOT EXISTS usertable (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID";

/// The database's file in its directory.
pub const FILE: &str = "records.sqlite";

pub struct Sqlite {
    path: PathBuf,
    /// Connections of readers that no thread uses at the moment: as many as ever read at once.
    readers: Mutex<Vec<Connection>>,
    reader_cache_bytes: usize,
    writer: Mutex<Writer>,
}

struct Writer {
    connection: Connection,
    /// What `synchronous` is set to: `FULL`, or `NORMAL`.
    sync: bool,
}

impl Sqlite {
    /// For so many threads.
    pub fn open(settings: &Settings, threads: usize) -> Result<Self, Error> {
        let path = settings.directory.join(FILE);
        let connection = connect(&path, settings.memory / 2)?;
        connection.execute(CREATE, ())?;
        Ok(Self {
            path,
            readers: Mutex::new(Vec::new()),
            reader_cache_bytes: settings.memory / 2 / threads.max(1),
            writer: Mutex::new(Writer { connection, sync: false }),
        })
    }

    fn readers(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection in WAL mode, `synchronous=NORMAL`, with a page cache of so many bytes.
fn connect(path: &Path, cache_bytes: usize) -> Result<Connection, Error> {
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // Negative: in KiB instead of pages.
    connection.pragma_update(None, "cache_size", -(cache_bytes as i64 / 1024))?;
    Ok(connection)
}

fn trouble(error: Error) -> Trouble {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) => Trouble::Conflict,
        _ => error.into(),
    }
}

enum Held<'a> {
    /// There until the transaction is gone.
    Reader(Option<Connection>),
    Writer(MutexGuard<'a, Writer>),
}

pub struct SqliteTransaction<'a> {
    sqlite: &'a Sqlite,
    held: Held<'a>,
    is_over: bool,
}

impl SqliteTransaction<'_> {
    fn connection(&self) -> &Connection {
        match &self.held {
            Held::Reader(connection) => connection.as_ref().expect("it is there until the end"),
            Held::Writer(writer) => &writer.connection,
        }
    }

    fn execute(&self, statement: &str) -> Result<(), Trouble> {
        let mut statement = self.connection().prepare_cached(statement).map_err(trouble)?;
        statement.execute(()).map(drop).map_err(trouble)
    }

    /// Gives the value of a record to `use_value`.
    fn with_value<T>(
        &self,
        key: [u8; 8],
        use_value: impl FnOnce(Option<&[u8]>) -> T,
    ) -> Result<T, rusqlite::Error> {
        let mut select = self.connection().prepare_cached("SELECT value FROM usertable WHERE key = ?1")?;
        let mut rows = select.query([&key[..]])?;
        match rows.next()? {
            Some(row) => Ok(use_value(Some(row.get_ref(0)?.as_blob()?))),
            None => Ok(use_value(None)),
        }
    }
}

impl Drop for SqliteTransaction<'_> {
    fn drop(&mut self) {
        let is_clean = self.is_over || self.execute("ROLLBACK").is_ok();
        if let Held::Reader(connection) = &mut self.held
            && let Some(connection) = connection.take()
            && is_clean
        {
            self.sqlite.readers().push(connection);
        }
    }
}

impl PeerTransaction for SqliteTransaction<'_> {
    fn get(&mut self, key: [u8; 8]) -> Result<(), Trouble> {
        self.with_value(key, seen).map_err(trouble)
    }

    fn value(&mut self, key: [u8; 8]) -> Result<Option<Vec<u8>>, Trouble> {
        self.with_value(key, |value| value.map(<[u8]>::to_vec)).map_err(trouble)
    }

    fn put(&mut self, key: [u8; 8], value: &[u8]) -> Result<(), Trouble> {
        let mut replace =
            self.connection().prepare_cached("REPLACE INTO usertable VALUES (?1, ?2)").map_err(trouble)?;
        replace.execute([&key[..], value]).map(drop).map_err(trouble)
    }

    fn scan(&mut self, key: [u8; 8], count: usize) -> Result<(), Trouble> {
        let scan = || -> Result<(), Error> {
            let mut select = self
                .connection()
                .prepare_cached("SELECT value FROM usertable WHERE key >= ?1 ORDER BY key LIMIT ?2")?;
            let mut rows = select.query((&key[..], count as i64))?;
            while let Some(row) = rows.next()? {
                seen(Some(row.get_ref(0)?.as_blob()?));
            }
            Ok(())
        };
        scan().map_err(trouble)
    }

    fn commit(mut self) -> Result<(), Trouble> {
        self.execute("COMMIT")?;
        self.is_over = true;
        Ok(())
    }
}

impl Peer for Sqlite {
    type Transaction<'a> = SqliteTransaction<'a>;
    const NAME: &'static str = "sqlite";
    const ISOLATION: &'static str = "serializable, one writer";
    const DELAYED: &'static str = "written at commit, synced at checkpoints";

    fn begin(&self, writes: bool, sync: bool) -> Result<SqliteTransaction<'_>, Trouble> {
        let held = if writes {
            let mut writer = self.writer();
            if writer.sync != sync {
                let mode = if sync { "FULL" } else { "NORMAL" };
                writer.connection.pragma_update(None, "synchronous", mode)?;
                writer.sync = sync;
            }
            Held::Writer(writer)
        } else {
            let idle = self.readers().pop();
            let connection = match idle {
                Some(connection) => connection,
                None => connect(&self.path, self.reader_cache_bytes)?,
            };
            Held::Reader(Some(connection))
        };
        let mut transaction = SqliteTransaction { sqlite: self, held, is_over: true };
        transaction.execute(if writes { "BEGIN IMMEDIATE" } else { "BEGIN" })?;
        transaction.is_over = false;
        Ok(transaction)
    }

    fn settle(&self) -> Result<(), Trouble> {
        let writer = self.writer();
        let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
        let is_busy: bool = writer.connection.query_row(checkpoint, (), |row| row.get(0))?;
        if is_busy {
            Err(Trouble::Failed("a reader kept the log from being checkpointed".into()))
        } else {
            Ok(())
        }
    }
}
