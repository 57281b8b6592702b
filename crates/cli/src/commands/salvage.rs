//! `salvage`: every readable record of a damaged database, a file for each table, and what could not be read.

use super::export::{Rows, Target};
use crate::arguments::{Format, SalvageArguments};
use crate::encoding::Encoding;
use crate::failure::{Failure, Kind, Outcome};
use crate::output;
use crate::progress::Progress;
use crate::quantity::count;
use deuteron::{SalvageReport, Salvaged};
use serde_json::{Value, json};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// So many losses are printed; as JSON all are.
const LOSSES_PRINTED: usize = 20;
const UNDECIDED: &str = "undecided.jsonl";

/// `deuteron salvage`.
pub fn run(arguments: &SalvageArguments, json: bool) -> Outcome {
    let begin = Instant::now();
    let path = arguments.database.display().to_string();
    // It is made when there is something to put into it, so that what fails before can be tried again; that it is in the way is told now.
    if let Some(target) = arguments.target.as_deref().filter(|target| target.symlink_metadata().is_ok()) {
        return Err(cannot_create(target, &io::ErrorKind::AlreadyExists.into()));
    }
    let progress = Progress::open_ended("salvage", "records");
    let mut files =
        Files { target: arguments.target.as_deref(), encoding: arguments.encoding, ..Files::default() };
    let mut records = 0;
    let take = &mut |salvaged: Salvaged<'_>| {
        records += u64::from(matches!(salvaged, Salvaged::Record { .. }));
        progress.set(records);
        files.take(salvaged).map_err(|failure| {
            files.failure = Some(failure);
            io::Error::other("see the failure that was set aside")
        })
    };
    let found = match super::encrypted(&arguments.database, &arguments.key, false)? {
        None => deuteron::salvage(&arguments.database, take),
        Some(directory) => deuteron::salvage_in(directory, take),
    };
    drop(progress);
    let report = match (found, files.failure.take()) {
        (_, Some(failure)) => return Err(failure),
        (found, None) => found.map_err(|error| Failure::from(error).at(&path))?,
    };
    files.finish()?;
    verdict(&report, arguments.target.as_deref(), &path).and(print(
        &report,
        &files,
        &path,
        begin.elapsed().as_secs_f64(),
        json,
    ))
}

/// A failure if there is anything that could not be read.
fn verdict(report: &SalvageReport, target: Option<&Path>, path: &str) -> Outcome {
    if report.losses.is_empty() {
        return Ok(());
    }
    let hint = match target {
        Some(target) => format!(
            "what could be read is in {}; docs/operations.md says how it is imported",
            target.display()
        ),
        None => "give a directory behind the database's, and what can be read is written there".into(),
    };
    let message = format!("{path}: {} places could not be read", count(report.losses.len() as u64));
    Err(Failure::new(Kind::Damage, message).hint(hint))
}

fn cannot_create(target: &Path, error: &io::Error) -> Failure {
    Failure::because(format!("cannot create the directory {}", target.display()), error)
        .hint("give the name of a directory that does not exist")
}

/// The files as they come into being.
#[derive(Default)]
struct Files<'a> {
    target: Option<&'a Path>,
    created: bool,
    encoding: Encoding,
    table: Option<Rows>,
    undecided: Option<Rows>,
    /// Names of the files, by table.
    names: Vec<(u32, String)>,
    failure: Option<Failure>,
}

impl Files<'_> {
    /// The directory of the files, for its owner only: they hold whatever users keep in the database.
    fn directory(&mut self) -> Outcome<Option<&Path>> {
        if let Some(target) = self.target.filter(|_| !self.created) {
            let created = std::fs::DirBuilder::new().mode(0o700).create(target);
            created.map_err(|error| cannot_create(target, &error))?;
            self.created = true;
        }
        Ok(self.target)
    }

    fn open(&mut self, name: &str) -> Outcome<Option<Rows>> {
        let Some(target) = self.directory()? else { return Ok(None) };
        let path: PathBuf = target.join(name);
        Ok(Some(Rows::new(Format::Jsonl, self.encoding, Target::open(&path)?)))
    }

    fn take(&mut self, salvaged: Salvaged<'_>) -> Outcome {
        match salvaged {
            Salvaged::Table { number, name } => {
                self.end_table()?;
                let file = file_name(number, name);
                self.table = self.open(&file)?;
                self.names.push((number, file));
            }
            Salvaged::Record { key, value } => {
                if let Some(rows) = &mut self.table {
                    rows.row(key, value)?;
                }
            }
            Salvaged::Undecided { table, transaction, key, value } => {
                if self.undecided.is_none() {
                    self.undecided = self.open(UNDECIDED)?;
                }
                let text =
                    |bytes| self.encoding.encode(bytes).map_err(|reason| Failure::new(Kind::Failed, reason));
                let (key, value) = (text(key)?, value.map(text).transpose()?);
                let line = json!({ "table": table, "transaction": transaction, "key": key, "value": value });
                if let Some(rows) = &mut self.undecided {
                    rows.write(&format!("{line}\n"))?;
                }
            }
        }
        Ok(())
    }

    fn end_table(&mut self) -> Outcome {
        self.table.take().map_or(Ok(()), Rows::finish)
    }

    fn finish(&mut self) -> Outcome {
        self.directory()?;
        self.end_table()?;
        self.undecided.take().map_or(Ok(()), Rows::finish)
    }
}

/// The name of a table's file. What a damaged file says a table is called is no path.
fn file_name(number: u32, name: Option<&str>) -> String {
    let is_plain = |name: &&str| {
        name.len() <= 100 && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    format!("{number}-{}.jsonl", name.filter(is_plain).unwrap_or("table"))
}

fn print(report: &SalvageReport, files: &Files<'_>, path: &str, seconds: f64, json: bool) -> Outcome {
    let file_of =
        |number| files.names.iter().find(|(known, _)| *known == number).map(|(_, file)| file.as_str());
    if json {
        let tables = report.tables.iter().map(|table| {
            let file = file_of(table.number).filter(|_| files.target.is_some());
            let (name, records, incomplete) = (&table.name, table.records, table.incomplete);
            json!({ "number": table.number, "name": name, "records": records, "incomplete": incomplete, "file": file })
        });
        let losses = report.losses.iter().map(|loss| {
            json!({ "file": loss.file, "offset": loss.offset, "bytes": loss.bytes, "reason": loss.reason })
        });
        let (tables, losses): (Vec<Value>, Vec<Value>) = (tables.collect(), losses.collect());
        return output::json(&json!({
            "database": path,
            "records": report.records(),
            "tables": tables,
            "segments": report.segments,
            "fragments": report.fragments,
            "log_buffers": report.log_buffers,
            "log_end_lsn": report.log_end.0,
            "transactions_committed": report.transactions_committed,
            "operations_committed": report.operations_committed,
            "operations_aborted": report.operations_aborted,
            "transactions_undecided": report.transactions_undecided,
            "operations_undecided": report.operations_undecided,
            "losses": losses,
            "seconds": seconds,
        }));
    }
    for loss in report.losses.iter().take(LOSSES_PRINTED) {
        output::text_line(&format!("lost: {loss}"))?;
    }
    if let Some(more @ 1..) = report.losses.len().checked_sub(LOSSES_PRINTED) {
        output::text_line(&format!("lost: {more} more; --json has them all"))?;
    }
    for table in &report.tables {
        let name = table.name.as_deref().unwrap_or("(its name is lost)");
        let file = file_of(table.number).filter(|_| files.target.is_some()).unwrap_or("not written");
        let text = format!(
            "table {name}, number {}: {} records, {} incomplete, {file}",
            table.number,
            count(table.records),
            count(table.incomplete)
        );
        output::text_line(&text)?;
    }
    output::table(&[
        ("records", count(report.records())),
        ("fragments of pages", format!("{} in {} segments", count(report.fragments), count(report.segments))),
        ("log", format!("{} buffers up to LSN {}", count(report.log_buffers), report.log_end)),
        ("committed transactions in it", count(report.transactions_committed)),
        ("undecided transactions in it", count(report.transactions_undecided)),
        ("losses", count(report.losses.len() as u64)),
        ("time", format!("{seconds:.1} s")),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_table_name_is_a_path() {
        assert_eq!(file_name(7, Some("accounts_2026")), "7-accounts_2026.jsonl");
        for name in ["../../etc/passwd", ".hidden", "a/b", "a\0", "", "ä"] {
            let file = file_name(7, Some(name));
            assert!(file == "7-table.jsonl" || file == "7-.jsonl", "{file}");
        }
        assert_eq!(file_name(8, None), "8-table.jsonl");
    }
}
