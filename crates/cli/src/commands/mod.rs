//! What each command does, a module each, and what they share: opening a database and finding a table in it.

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
pub mod salvage;
pub mod shell;
pub mod stat;

use crate::allocator;
use crate::arguments::{DatabaseArguments, FileArguments, Format};
use crate::failure::{Failure, Kind, Outcome};
use deuteron::{Db, Options, Table};
use std::path::{Path, PathBuf};

/// Opens the database, which recovers it if need be.
fn open(arguments: &DatabaseArguments, create: bool) -> Outcome<Db> {
    allocator::suit(arguments.memory);
    let options = Options::new().memory(arguments.memory).create_if_missing(create);
    options
        .open(&arguments.database)
        .map_err(|error| Failure::from(error).at(&arguments.database.display().to_string()))
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
