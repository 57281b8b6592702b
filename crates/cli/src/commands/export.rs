//! `export`: a table, as of one moment, as CSV or JSON lines; or what of it can be read, if the database is damaged.

use super::records::for_each_record;
use super::{format_of, is_standard, with_database};
use crate::arguments::{ExportArguments, Format};
use crate::encoding::Encoding;
use crate::failure::{Failure, Kind, Outcome};
use crate::progress::Progress;
use crate::quantity::count;
use crate::{csv, output};
use deuteron::{Salvaged, SalvagedTable};
use serde_json::json;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{BufWriter, Write};
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// `deuteron export`.
pub fn run(arguments: &ExportArguments, json: bool) -> Outcome {
    if arguments.salvage {
        return salvage(arguments, json);
    }
    let format = format_of(&arguments.file)?;
    let file = &arguments.file;
    let begin = Instant::now();
    let records = with_database(&arguments.database, false, |db| {
        let progress = Progress::open_ended("export", "records");
        let mut records = 0;
        let mut rows = Rows::new(format, file.encoding, Target::open(&file.file)?);
        if format == Format::Csv && !file.no_header {
            rows.header()?;
        }
        for_each_record(db, &file.table, (Bound::Unbounded, Bound::Unbounded), false, None, |key, value| {
            records += 1;
            progress.set(records);
            rows.row(key, value)
        })?;
        rows.finish()?;
        Ok(records)
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    // Standard output may hold the records.
    if json {
        output::note(&json!({ "records": records, "seconds": seconds }).to_string());
    } else {
        output::note(&format!("exported {} records in {seconds:.1} s", count(records)));
    }
    Ok(())
}

/// Every record of the table that can be read. A table whose name is lost is called by its number, as a salvage calls it.
fn salvage(arguments: &ExportArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    let (file, path) = (&arguments.file, arguments.database.database.display().to_string());
    let format = format_of(file)?;
    let mut rows = Rows::new(format, file.encoding, Target::open(&file.file)?);
    if format == Format::Csv && !file.no_header {
        rows.header()?;
    }
    let progress = Progress::open_ended("export", "records");
    let (mut records, mut number, mut is_ours, mut failure) = (0, None, false, None);
    let take = &mut |salvaged: Salvaged<'_>| {
        match salvaged {
            Salvaged::Table { number: found, name } => {
                is_ours = match name {
                    Some(name) => name == file.table,
                    None => found.to_string() == file.table,
                };
                number = if is_ours { Some(found) } else { number };
            }
            Salvaged::Record { key, value } if is_ours => {
                records += 1;
                progress.set(records);
                return rows.row(key, value).map_err(|reason| {
                    failure = Some(reason);
                    std::io::Error::other("see the failure that was set aside")
                });
            }
            _ => {}
        }
        Ok(())
    };
    let found = match super::encrypted(&arguments.database.database, &arguments.database.key, false)? {
        None => deuteron::salvage(&arguments.database.database, take),
        Some(directory) => deuteron::salvage_in(directory, take),
    };
    drop(progress);
    if let Some(failure) = failure {
        return Err(failure);
    }
    let report = found.map_err(|error| Failure::from(error).at(&path))?;
    let Some(number) = number else {
        let name = |table: &SalvagedTable| table.name.clone().unwrap_or_else(|| table.number.to_string());
        let known: Vec<String> = report.tables.iter().map(name).collect();
        return Err(Failure::new(Kind::NotFound, format!("no table {} was found", file.table))
            .hint(format!("those that were found: {}", known.join(", "))));
    };
    rows.finish()?;
    let incomplete =
        report.tables.iter().find(|table| table.number == number).map_or(0, |table| table.incomplete);
    let (losses, seconds) = (report.losses.len() as u64, begin.elapsed().as_secs_f64());
    if json {
        let places: Vec<String> = report.losses.iter().map(ToString::to_string).collect();
        let report =
            json!({ "records": records, "incomplete": incomplete, "losses": places, "seconds": seconds });
        output::note(&report.to_string());
    } else {
        report.losses.iter().take(LOSSES_PRINTED).for_each(|loss| output::note(&format!("lost: {loss}")));
        output::note(&format!(
            "exported {} records in {seconds:.1} s, {} incomplete ones left out",
            count(records),
            count(incomplete)
        ));
    }
    if losses + incomplete == 0 {
        return Ok(());
    }
    Err(Failure::new(Kind::Damage, format!("{path}: {} places could not be read", count(losses)))
        .hint("records may be missing, or be as they were earlier; docs/operations.md says which"))
}

/// So many losses are printed; as JSON all are.
const LOSSES_PRINTED: usize = 20;

/// Writes records in a format.
pub(super) struct Rows {
    format: Format,
    encoding: Encoding,
    lines: BufWriter<Target>,
}

impl Rows {
    pub(super) fn new(format: Format, encoding: Encoding, target: Target) -> Self {
        Self { format, encoding, lines: BufWriter::with_capacity(1 << 16, target) }
    }

    fn header(&mut self) -> Outcome {
        self.write(&csv::line(["key", "value"]))
    }

    pub(super) fn row(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        let text = |bytes| self.encoding.encode(bytes).map_err(|reason| Failure::new(Kind::Failed, reason));
        let (key, value) = (text(key)?, text(value)?);
        self.write(&match self.format {
            Format::Csv => csv::line([&key, &value]),
            Format::Jsonl => format!("{}\n", json!({ "key": key, "value": value })),
        })
    }

    pub(super) fn write(&mut self, line: &str) -> Outcome {
        self.lines.write_all(line.as_bytes()).map_err(|error| self.lines.get_ref().failure(&error))
    }

    pub(super) fn finish(mut self) -> Outcome {
        self.lines.flush().map_err(|error| self.lines.get_ref().failure(&error))?;
        let (target, _) = self.lines.into_parts();
        target.finish()
    }
}

/// Where the records go. A file appears under its name only when it is complete; what is there and is none, as a pipe or a device, is written to as it is.
pub(super) enum Target {
    Standard(std::io::StdoutLock<'static>),
    Special { file: File, path: PathBuf },
    File { file: File, partial: PathBuf, path: PathBuf, complete: bool },
}

impl Target {
    pub(super) fn open(path: &Path) -> Outcome<Self> {
        if is_standard(path) {
            return Ok(Self::Standard(std::io::stdout().lock()));
        }
        let found = std::fs::metadata(path).ok();
        if found.as_ref().is_some_and(Metadata::is_dir) {
            return Err(Failure::new(Kind::Failed, format!("{} is a directory", path.display()))
                .hint("give the name of a file"));
        }
        if found.is_some_and(|found| !found.is_file()) {
            return match File::options().write(true).open(path) {
                Ok(file) => Ok(Self::Special { file, path: path.into() }),
                Err(error) => Err(Failure::because(format!("cannot open {}", path.display()), &error)),
            };
        }
        let mut partial = OsString::from(path);
        partial.push(".partial");
        let partial = PathBuf::from(partial);
        match File::create_new(&partial) {
            Ok(file) => Ok(Self::File { file, partial, path: path.into(), complete: false }),
            Err(error) => {
                let failure = Failure::because(format!("cannot create {}", partial.display()), &error);
                Err(match error.kind() {
                    std::io::ErrorKind::AlreadyExists => {
                        failure.hint("another export writes it; remove it if one has been killed")
                    }
                    _ => failure,
                })
            }
        }
    }

    /// It could not be written. Who reads standard output may have seen enough; whoever has named a file wants all of it.
    fn failure(&self, error: &std::io::Error) -> Failure {
        match self {
            Self::Standard(_) => Failure::output(error),
            Self::Special { path, .. } | Self::File { path, .. } => {
                Failure::because(format!("cannot write {}", path.display()), error)
            }
        }
    }

    /// All has been written.
    fn finish(mut self) -> Outcome {
        match &mut self {
            Self::Standard(_) | Self::Special { .. } => Ok(()),
            Self::File { file, partial, path, complete } => {
                file.sync_all().and_then(|()| std::fs::rename(&*partial, &*path)).map_err(|error| {
                    Failure::because(format!("cannot complete {}", path.display()), &error)
                })?;
                *complete = true;
                Ok(())
            }
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            Self::Standard(output) => output.write(bytes),
            Self::Special { file, .. } | Self::File { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        match self {
            Self::Standard(output) => output.flush(),
            Self::Special { file, .. } | Self::File { file, .. } => file.flush(),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Self::File { partial, complete: false, .. } = self {
            // The export has failed and says so; the rest of it is of no use.
            let _ = std::fs::remove_file(partial);
        }
    }
}
