//! `import`: CSV and JSON lines into a table, many records in a transaction.

use super::{format_of, is_standard, with_database};
use crate::arguments::{FileArguments, Format, ImportArguments};
use crate::encoding::Encoding;
use crate::failure::{Failure, Kind, Outcome};
use crate::progress::Progress;
use crate::quantity::count;
use crate::{csv, output};
use deuteron::{Db, Durability, Error, RetryPolicy, Table, TransactionOptions};
use serde::Deserialize;
use serde_json::json;
use std::borrow::Cow;
use std::cell::Cell;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of keys and values after which a batch is written even if it has few records.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// A record, and the line it began at.
struct Row {
    line: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

/// A line that is no record.
struct BadRow {
    line: u64,
    reason: String,
    /// Nothing can be read after it.
    fatal: bool,
}

/// `deuteron import`.
pub fn run(arguments: &ImportArguments, json: bool) -> Outcome {
    let format = format_of(&arguments.file)?;
    let source = Source::open(&arguments.file)?;
    let begin = Instant::now();
    if arguments.sorted {
        return with_database(&arguments.database, true, |db| {
            let records = match format {
                Format::Csv => load(db, csv_rows(source.reader, &arguments.file), arguments, &source.name),
                Format::Jsonl => load(db, json_rows(source.reader, &arguments.file), arguments, &source.name),
            }?;
            let seconds = begin.elapsed().as_secs_f64();
            if json {
                return output::json(&json!({ "records": records, "bad_lines": 0, "seconds": seconds }));
            }
            output::note(&format!("loaded {} records in {seconds:.1} s", count(records)));
            Ok(())
        });
    }
    with_database(&arguments.database, true, |db| {
        let table = db.table(&arguments.file.table)?;
        let progress = match source.length {
            Some(length) => Progress::of_bytes(length, "import"),
            None => Progress::open_ended("import", "bytes"),
        };
        let read = Rc::clone(&source.read);
        let mut importer = Importer::new(db, table, arguments, &source.name, &progress);
        let imported = match format {
            Format::Csv => importer.take_all(csv_rows(source.reader, &arguments.file), &read),
            Format::Jsonl => importer.take_all(json_rows(source.reader, &arguments.file), &read),
        };
        let (records, bad) = (importer.imported, importer.bad);
        drop(progress);
        // What was written before a failure stays, and is durable before it is spoken of.
        db.flush()?;
        let seconds = begin.elapsed().as_secs_f64();
        let verdict = imported.and(match bad {
            0 => Ok(()),
            _ => Err(Failure::new(Kind::Failed, format!("{} lines were not imported", count(bad)))),
        });
        verdict.and(if json {
            output::json(&json!({ "records": records, "bad_lines": bad, "seconds": seconds }))
        } else {
            output::note(&format!("imported {} records in {seconds:.1} s", count(records)));
            Ok(())
        })
    })
}

/// Loads rows in key order into a new table: all of them or none.
fn load(
    db: &Db,
    rows: impl Iterator<Item = Result<Row, BadRow>>,
    arguments: &ImportArguments,
    source: &str,
) -> Outcome<u64> {
    let mut load = db.load_table(&arguments.file.table)?;
    let mut records = 0;
    for row in rows {
        let row = row.map_err(|bad| {
            Failure::new(Kind::Failed, format!("{source}:{}: {}", bad.line, bad.reason))
                .hint("nothing was loaded")
        })?;
        load.push(&row.key, &row.value)
            .map_err(|error| Failure::from(error).at(&format!("{source}:{}", row.line)))?;
        records += 1;
    }
    load.finish()?;
    Ok(records)
}

/// Gathers rows into transactions.
struct Importer<'a> {
    db: &'a Db,
    table: Table,
    source: &'a str,
    progress: &'a Progress,
    batch_records: usize,
    keep_going: bool,
    batch: Vec<Row>,
    batch_bytes: usize,
    imported: u64,
    bad: u64,
}

impl<'a> Importer<'a> {
    fn new(
        db: &'a Db,
        table: Table,
        arguments: &ImportArguments,
        source: &'a str,
        progress: &'a Progress,
    ) -> Self {
        let batch_records = arguments.batch as usize;
        Self {
            db,
            table,
            source,
            progress,
            batch_records,
            keep_going: arguments.keep_going,
            batch: Vec::with_capacity(batch_records),
            batch_bytes: 0,
            imported: 0,
            bad: 0,
        }
    }

    /// Takes every row. After an error the rows before it have been written.
    fn take_all(&mut self, rows: impl Iterator<Item = Result<Row, BadRow>>, read: &Cell<u64>) -> Outcome {
        for row in rows {
            match row {
                Ok(row) => {
                    self.batch_bytes += row.key.len() + row.value.len();
                    self.batch.push(row);
                    if self.batch.len() >= self.batch_records || self.batch_bytes >= BATCH_BYTES_MAX {
                        self.write()?;
                        self.progress.set(read.get());
                    }
                }
                Err(bad) => {
                    self.write()?;
                    self.refuse(bad)?;
                }
            }
        }
        self.write()
    }

    /// Writes the batch as one transaction, or up to the first row that the store refuses.
    fn write(&mut self) -> Outcome {
        let mut batch = std::mem::take(&mut self.batch);
        self.batch_bytes = 0;
        while !batch.is_empty() {
            match self.transact(&batch) {
                Ok(()) => {
                    self.imported += batch.len() as u64;
                    batch.clear();
                }
                Err((at, error)) if is_about_the_record(&error) => {
                    let rest = batch.split_off(at + 1);
                    let refused = batch.pop();
                    if let Err((_, error)) = self.transact(&batch) {
                        return Err(self.failure(&batch, 0, error));
                    }
                    self.imported += batch.len() as u64;
                    if let Some(Row { line, .. }) = refused {
                        self.refuse(BadRow { line, reason: error.to_string(), fatal: false })?;
                    }
                    batch = rest;
                }
                Err((at, error)) => return Err(self.failure(&batch, at, error)),
            }
        }
        self.batch = batch;
        Ok(())
    }

    /// One transaction; the error comes with the place of the row at which it arose.
    fn transact(&self, rows: &[Row]) -> Result<(), (usize, Error)> {
        // The whole import is made durable at its end; until then a batch need not wait.
        let options = TransactionOptions::new().durability(Durability::Delayed(Duration::from_millis(100)));
        let mut at = 0;
        self.db
            .transact_with(options, RetryPolicy::default(), |tx| {
                for (index, row) in rows.iter().enumerate() {
                    at = index;
                    tx.put(&self.table, &row.key, &row.value)?;
                }
                Ok(())
            })
            .map_err(|error| (at, error))
    }

    fn failure(&self, batch: &[Row], at: usize, error: Error) -> Failure {
        let line = batch.get(at).map_or(0, |row| row.line);
        Failure::from(error).at(&format!("{}:{line}", self.source))
    }

    /// Reports a line that is no record, and stops unless told to go on.
    fn refuse(&mut self, bad: BadRow) -> Outcome {
        let message = format!("{}:{}: {}", self.source, bad.line, bad.reason);
        if self.keep_going && !bad.fatal {
            self.bad += 1;
            self.progress.note(&format!("error: {message}"));
            return Ok(());
        }
        Err(Failure::new(Kind::Failed, message).hint(format!(
            "the {} records before it are imported; correct the line and import the rest, or use --keep-going",
            count(self.imported)
        )))
    }
}

/// Whether another record would have been taken.
fn is_about_the_record(error: &Error) -> bool {
    matches!(error, Error::KeySize { .. } | Error::ValueSize { .. })
}

/// What is read, and how far.
struct Source {
    name: String,
    reader: BufReader<Counting>,
    length: Option<u64>,
    read: Rc<Cell<u64>>,
}

impl Source {
    fn open(file: &FileArguments) -> Outcome<Self> {
        let read = Rc::new(Cell::new(0));
        let (name, inner, length): (String, Box<dyn Read>, Option<u64>) = if is_standard(&file.file) {
            ("standard input".into(), Box::new(std::io::stdin().lock()), None)
        } else {
            let name = file.file.display().to_string();
            let opened = File::open(&file.file)
                .and_then(|opened| Ok((opened.metadata()?, opened)))
                .map_err(|error| Failure::because(format!("cannot read {name}"), &error))?;
            let length = opened.0.is_file().then_some(opened.0.len());
            (name, Box::new(opened.1), length)
        };
        let reader = BufReader::with_capacity(1 << 18, Counting { inner, read: Rc::clone(&read) });
        Ok(Self { name, reader, length, read })
    }
}

/// Counts the bytes that pass.
struct Counting {
    inner: Box<dyn Read>,
    read: Rc<Cell<u64>>,
}

impl Read for Counting {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let bytes = self.inner.read(buffer)?;
        self.read.set(self.read.get() + bytes as u64);
        Ok(bytes)
    }
}

/// The rows of CSV.
fn csv_rows(reader: impl BufRead, file: &FileArguments) -> impl Iterator<Item = Result<Row, BadRow>> {
    let encoding = file.encoding;
    let mut header_expected = !file.no_header;
    let mut records = csv::Reader::new(reader);
    std::iter::from_fn(move || {
        loop {
            let csv::Record { line, fields } = match records.next()? {
                Ok(record) => record,
                Err(csv::Mistake { line, reason, fatal }) => {
                    return Some(Err(BadRow { line, reason, fatal }));
                }
            };
            let bad = |reason: String| Some(Err(BadRow { line, reason, fatal: false }));
            if std::mem::take(&mut header_expected) {
                if fields
                    .iter()
                    .map(|name| name.to_ascii_lowercase())
                    .eq([b"key".to_vec(), b"value".to_vec()])
                {
                    continue;
                }
                let reason = "the header is not key,value; use --no-header if there is none".to_owned();
                return Some(Err(BadRow { line, reason, fatal: true }));
            }
            let [key, value] = &fields[..] else {
                return bad(format!("{} fields; a record has two, key and value", fields.len()));
            };
            return row(encoding, line, key, value);
        }
    })
}

/// A row from the text of its key and value.
fn row(encoding: Encoding, line: u64, key: &[u8], value: &[u8]) -> Option<Result<Row, BadRow>> {
    let bad = |reason: String| Some(Err(BadRow { line, reason, fatal: false }));
    match (encoding.decode(key), encoding.decode(value)) {
        (Ok(key), Ok(value)) => Some(Ok(Row { line, key, value })),
        (Err(reason), _) => bad(format!("key: {reason}")),
        (_, Err(reason)) => bad(format!("value: {reason}")),
    }
}

/// One line of JSON.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRow<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    value: Cow<'a, str>,
}

/// The rows of JSON lines. Blank lines are passed over.
fn json_rows(mut reader: impl BufRead, file: &FileArguments) -> impl Iterator<Item = Result<Row, BadRow>> {
    let encoding = file.encoding;
    let mut text = Vec::new();
    let mut line = 0;
    std::iter::from_fn(move || {
        loop {
            text.clear();
            line += 1;
            let fatal = |reason: String| Some(Err(BadRow { line, reason, fatal: true }));
            match reader.by_ref().take(csv::LINE_BYTES_MAX).read_until(b'\n', &mut text) {
                Ok(0) => return None,
                Ok(bytes) if bytes as u64 == csv::LINE_BYTES_MAX => {
                    return fatal(format!("the line is longer than {} bytes", csv::LINE_BYTES_MAX));
                }
                Ok(_) => {}
                Err(error) => return fatal(format!("cannot read on: {error}")),
            }
            if text.trim_ascii().is_empty() {
                continue;
            }
            let bad = |reason: String| Some(Err(BadRow { line, reason, fatal: false }));
            let json: JsonRow<'_> = match serde_json::from_slice(text.trim_ascii_end()) {
                Ok(json) => json,
                Err(error) => return bad(json_reason(&error)),
            };
            return row(encoding, line, json.key.as_bytes(), json.value.as_bytes());
        }
    })
}

/// What the parser says, with its place in the line. It counts lines from our one line, which would mislead.
fn json_reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or_default();
    format!("column {}: {reason}", error.column())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(no_header: bool) -> FileArguments {
        FileArguments {
            table: "t".into(),
            file: "-".into(),
            format: None,
            encoding: Encoding::Utf8,
            no_header,
        }
    }

    fn shown(rows: impl Iterator<Item = Result<Row, BadRow>>) -> Vec<String> {
        rows.map(|row| match row {
            Ok(row) => format!("{}: {}={}", row.line, row.key.escape_ascii(), row.value.escape_ascii()),
            Err(bad) => format!("{}! {}", bad.line, bad.reason),
        })
        .collect()
    }

    #[test]
    fn csv_rows_know_their_lines() {
        let text = "key,value\na,1\n\n\"b\nb\",\"2,\"\"2\"\"\"\nc\nd,4,5\ne,\n";
        assert_eq!(
            shown(csv_rows(text.as_bytes(), &file(false))),
            [
                "2: a=1",
                "4: b\\nb=2,\\\"2\\\"",
                "6! 1 fields; a record has two, key and value",
                "7! 3 fields; a record has two, key and value",
                "8: e=",
            ]
        );
    }

    #[test]
    fn a_csv_without_its_header_is_refused_unless_told() {
        let rows = shown(csv_rows(&b"a,1\n"[..], &file(false)));
        assert!(rows[0].starts_with("1! the header is not key,value"), "{rows:?}");
        assert_eq!(shown(csv_rows(&b"a,1\n"[..], &file(true))), ["1: a=1"]);
    }

    #[test]
    fn csv_that_is_not_utf8_is_refused_by_line() {
        let rows = shown(csv_rows(&b"a,1\nb,\xff\nc,3"[..], &file(true)));
        assert_eq!(rows, ["1: a=1", "2! value: byte 0 is not UTF-8", "3: c=3"]);
    }

    #[test]
    fn json_rows_know_their_lines_and_columns() {
        let text = "{\"key\":\"a\",\"value\":\"1\"}\n\n{\"key\":\"b\"}\n{\"key\":\"c\",\"value\":3}\nnot json\n\
                    {\"key\":\"d\\n\",\"value\":\"\",\"x\":1}\r\n{\"value\":\"5\",\"key\":\"\\u0000\"}";
        let rows = shown(json_rows(text.as_bytes(), &file(false)));
        assert_eq!(rows[0], "1: a=1");
        assert_eq!(rows[1], "3! column 11: missing field `value`");
        assert!(rows[2].starts_with("4! column") && rows[2].contains("expected a string"), "{rows:?}");
        assert!(rows[3].starts_with("5! column 2: expected ident"), "{rows:?}");
        assert!(rows[4].starts_with("6! column") && rows[4].contains("unknown field `x`"), "{rows:?}");
        assert_eq!(rows[5], "7: \\x00=5");
        assert_eq!(rows.len(), 6);
    }
}
