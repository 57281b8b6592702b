//! What each command does, a module each, and what they share: opening a database and finding a table in it.

mod applications;
pub mod backup;
pub mod bench;
pub mod check;
pub mod check_history;
pub mod compact;
pub mod demo;
pub mod export;
pub mod histories;
pub mod import;
pub mod kill_rounds;
pub mod records;
pub mod recover;
pub mod rotate_key;
pub mod salvage;
pub mod scaling;
pub mod shell;
pub mod stat;

use crate::allocator;
use crate::arguments::{DatabaseArguments, FileArguments, Format, KeyFileArguments};
use crate::failure::{Failure, Kind, Outcome};
use deuteron::device::{DeviceError, OsDirectory};
use deuteron::{Db, Options, Table};
use deuteron_encryption::{EncryptedDirectory, Keys};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Opens the database, which recovers it if need be.
fn open(arguments: &DatabaseArguments, create: bool) -> Outcome<Db> {
    allocator::suit(arguments.memory);
    let options = Options::new().memory(arguments.memory).create_if_missing(create);
    let path = &arguments.database;
    let opened = match encrypted(path, &arguments.key, create)? {
        None => options.open(path),
        Some(directory) => options.open_in(directory),
    };
    opened.map_err(|error| Failure::from(error).at(&path.display().to_string()))
}

/// The files, decrypted, if a file of keys is given.
fn encrypted(path: &Path, key: &KeyFileArguments, create: bool) -> Outcome<Option<Arc<EncryptedDirectory>>> {
    let Some(file) = &key.key_file else { return Ok(None) };
    let keys = Keys::from_file(file).map_err(|error| {
        Failure::because("cannot take the keys", &error).hint("docs/operations.md says what a key file is")
    })?;
    let failed = |error: DeviceError| Failure::because(format!("cannot open {}", path.display()), &error);
    if !create && !path.is_dir() {
        return Err(Failure::from(deuteron::Error::NotFound { path: path.display().to_string() }));
    }
    let files = if create { OsDirectory::open_or_create(path) } else { OsDirectory::open_existing(path) };
    let directory = EncryptedDirectory::new(Arc::new(files.map_err(failed)?), keys)
        .map_err(|error| Failure::because(format!("cannot decrypt {}", path.display()), &error))?;
    Ok(Some(Arc::new(directory)))
}

/// Runs `body` on the database and closes it. The first error counts: a failed close after a failed command is
/// its consequence.
fn with_database<T>(
    arguments: &DatabaseArguments,
    create: bool,
    body: impl FnOnce(&Db) -> Outcome<T>,
) -> Outcome<T> {
    let db = open(arguments, create)?;
    let outcome = body(&db);
    let closed = db.close();
    let value = outcome?;
    closed?;
    Ok(value)
}

/// A table that must exist. Opening a table creates it, which a command that reads should not.
fn existing_table(db: &Db, name: &str) -> Outcome<Table> {
    let tables = db.tables()?;
    if tables.iter().any(|table| table == name) {
        return Ok(db.table(name)?);
    }
    let known = if tables.is_empty() { "there are none".into() } else { tables.join(", ") };
    Err(Failure::new(Kind::NotFound, format!("there is no table {name}"))
        .hint(format!("the tables: {known}")))
}

/// The format of a file: as told, or by its name.
fn format_of(file: &FileArguments) -> Outcome<Format> {
    if let Some(format) = file.format {
        return Ok(format);
    }
    match file.file.extension().and_then(|extension| extension.to_str()) {
        Some("csv") => Ok(Format::Csv),
        Some("jsonl" | "ndjson") => Ok(Format::Jsonl),
        _ => Err(Failure::new(Kind::Usage, "the format is not known from a file's name")
            .hint("give --format csv or --format jsonl")),
    }
}

/// Whether the file stands for standard input or output.
fn is_standard(file: &Path) -> bool {
    file == Path::new("-")
}

/// A directory to work in: the one given, which stays, or a temporary one, which goes.
enum WorkDirectory {
    Given(PathBuf),
    Temporary(tempfile::TempDir),
}

impl WorkDirectory {
    fn new(given: Option<&Path>) -> Outcome<Self> {
        match given {
            Some(path) => Ok(Self::Given(path.into())),
            None => match tempfile::Builder::new().prefix("deuteron-").tempdir() {
                Ok(directory) => Ok(Self::Temporary(directory)),
                Err(error) => Err(Failure::because("cannot create a temporary directory", &error)
                    .hint("give a directory with --dir")),
            },
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Given(path) => path,
            Self::Temporary(directory) => directory.path(),
        }
    }
}
