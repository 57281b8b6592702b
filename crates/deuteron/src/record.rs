//! Recording what transactions do and see, for a check of their isolation by `deuteron check-history`.
//!
//! While a transaction runs, its [`Recording`] collects its operations in memory; at its end they become a line of the
//! [`Recorder`]'s buffer, which is written to the file when it is full. So a recording holds a buffer, a line, and the open
//! transactions. Without a recorder a transaction has no recording, and an operation asks once whether it has.
//!
//! Keys of bytes become text in the same order: each byte the character of its number. Values become text if they are printable,
//! an integer if they are 8 bytes (lowest first) of one below 2⁶³, else hexadecimal digits; of a long one the beginning, the length and a
//! checksum. A key to which somebody appends is a list, whose elements are as long as what he appends.

use crate::scan::LentEntry;
use crate::{Error, Savepoint, Table};
use deuteron_history::{LINE_BYTES_MAX, Operation, Outcome, Range, Seen, Transaction, Value};
use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::ops::Bound;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;

/// Lines are written together when there are so many bytes of them.
const BUFFER_BYTES: usize = 1 << 20;

/// A value that is longer is told by its beginning and a checksum.
const VALUE_BYTES_MAX: usize = 64;

/// Takes the transactions of a database down. See the [module](self).
pub struct Recorder {
    lines: Mutex<Lines>,
    /// The keys of lists, and the length of their elements in bytes; 0 if they differ.
    lists: RwLock<HashMap<String, usize>>,
}

struct Lines {
    file: File,
    buffer: String,
    /// Why nothing more is recorded.
    failed: Option<std::io::Error>,
}

impl Recorder {
    /// Records to a new file.
    pub fn create(path: &Path) -> Result<Arc<Self>, Error> {
        let file = File::create_new(path).map_err(|error| match error.kind() {
            std::io::ErrorKind::AlreadyExists => Error::Exists { path: path.display().to_string() },
            _ => Error::Device {
                context: format!("create the history {}", path.display()),
                source: Box::new(error),
            },
        })?;
        let lines = Mutex::new(Lines { file, buffer: String::new(), failed: None });
        Ok(Arc::new(Self { lines, lists: RwLock::default() }))
    }

    /// The recording of a transaction that begins now.
    pub fn begin(self: &Arc<Self>) -> Recording {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        thread_local! {
            static PROCESS: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
        }
        Recording {
            recorder: Arc::clone(self),
            process: PROCESS.with(|process| *process),
            begin: now(),
            outcome: Outcome::Aborted,
            operations: Vec::new(),
            savepoints: Vec::new(),
        }
    }

    /// Writes what is in the buffer.
    pub fn flush(&self) -> Result<(), Error> {
        let mut lines = self.lines();
        lines.write();
        match lines.failed.take() {
            None => Ok(()),
            Some(error) => {
                Err(Error::Device { context: "record the history".into(), source: Box::new(error) })
            }
        }
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The length of the elements of a list, 0 if they differ.
    fn element_bytes(&self, key: &str) -> Option<usize> {
        self.lists.read().unwrap_or_else(PoisonError::into_inner).get(key).copied()
    }

    /// Notes that a key is a list. Returns whether all its elements are as long as this one.
    fn appends(&self, key: &str, bytes: usize) -> bool {
        if self.element_bytes(key) == Some(bytes) {
            return bytes > 0;
        }
        let mut lists = self.lists.write().unwrap_or_else(PoisonError::into_inner);
        let known = lists.entry(key.to_owned()).or_insert(bytes);
        if *known != bytes {
            *known = 0;
        }
        *known > 0
    }

    /// What a read found.
    fn seen(&self, key: &str, value: Option<&[u8]>) -> Seen {
        let Some(bytes) = value else { return Seen::Nothing };
        match self.element_bytes(key) {
            Some(length) if length > 0 && bytes.len().is_multiple_of(length) => {
                Seen::List(bytes.chunks(length).map(value_of).collect())
            }
            _ => Seen::Value(value_of(bytes)),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.lines().write();
    }
}

impl Lines {
    fn write(&mut self) {
        if self.failed.is_none()
            && let Err(error) = self.file.write_all(self.buffer.as_bytes())
        {
            self.failed = Some(error);
        }
        self.buffer.clear();
    }
}

/// What one transaction has done so far. Dropped before it is [ended](Recording::end), it aborted.
pub struct Recording {
    recorder: Arc<Recorder>,
    process: u64,
    begin: u64,
    outcome: Outcome,
    operations: Vec<Operation>,
    /// With the number of operations before each.
    savepoints: Vec<(Savepoint, usize)>,
}

impl Recording {
    pub fn read(&mut self, table: &Table, key: &[u8], value: Option<&[u8]>) {
        let key = text(table, key);
        let seen = self.recorder.seen(&key, value);
        self.operations.push(Operation::Read(key, seen));
    }

    /// A value, or a delete.
    pub fn write(&mut self, table: &Table, key: &[u8], value: Option<&[u8]>) {
        self.operations.push(Operation::Write(text(table, key), value.map(value_of)));
    }

    /// An append, before it is committed: whoever sees it knows by then that it is an element.
    pub fn append(&mut self, table: &Table, key: &[u8], bytes: &[u8]) {
        let key = text(table, key);
        self.operations.push(match self.recorder.appends(&key, bytes.len()) {
            true => Operation::Append(key, value_of(bytes)),
            false => Operation::Change(key),
        });
    }

    pub fn change(&mut self, table: &Table, key: &[u8]) {
        self.operations.push(Operation::Change(text(table, key)));
    }

    /// Begins a read of a range, from its lower end or from its upper, of which nothing is read yet. Returns its number.
    pub fn range(&mut self, table: &Table, lower: &Bound<Vec<u8>>, upper: &Bound<Vec<u8>>) -> RangeRecord {
        let from = match lower {
            Bound::Included(key) => text(table, key),
            Bound::Excluded(key) => behind(table, key),
            Bound::Unbounded => text(table, b""),
        };
        let to = match upper {
            Bound::Included(key) => behind(table, key),
            Bound::Excluded(key) => text(table, key),
            Bound::Unbounded => format!("{}0", name(table)),
        };
        let to = to.max(from.clone());
        let place = self.operations.len();
        for end in [&from, &to] {
            let range = Range { from: end.clone(), to: end.clone(), found: Vec::new() };
            self.operations.push(Operation::Range(range));
        }
        RangeRecord { table: table.clone(), place, from, to }
    }

    /// The scan has returned the next record from this end.
    pub fn found(&mut self, record: &RangeRecord, from_above: bool, (key, value): LentEntry<'_>) {
        let name = text(&record.table, key);
        let seen = self.recorder.seen(&name, Some(value));
        let range = self.range_at(record, from_above);
        range.found.push((name, seen));
        match from_above {
            false => range.to = behind(&record.table, key),
            true => range.from = text(&record.table, key),
        }
    }

    /// The scan has come to the other end, or to `met`, which the other end has returned.
    pub fn scanned(&mut self, record: &RangeRecord, from_above: bool, met: Option<&[u8]>) {
        let range = self.range_at(record, from_above);
        match (from_above, met) {
            (false, Some(key)) => range.to = text(&record.table, key).max(range.from.clone()),
            (false, None) => range.to = record.to.clone(),
            (true, Some(key)) => range.from = behind(&record.table, key).min(range.to.clone()),
            (true, None) => range.from = record.from.clone(),
        }
    }

    fn range_at(&mut self, record: &RangeRecord, from_above: bool) -> &mut Range {
        match &mut self.operations[record.place + usize::from(from_above)] {
            Operation::Range(range) => range,
            _ => unreachable!("a range is recorded there"),
        }
    }

    pub fn savepoint(&mut self, savepoint: Savepoint) {
        self.savepoints.push((savepoint, self.operations.len()));
    }

    /// What was written since never was; neither were reads of it. Other reads stay.
    pub fn rollback_to(&mut self, savepoint: &Savepoint) {
        let Some(place) = self.savepoints.iter().position(|(known, _)| known == savepoint) else { return };
        self.savepoints.truncate(place + 1);
        let undone = self.operations.split_off(self.savepoints[place].1);
        let mut written: Vec<String> = Vec::new();
        for operation in undone {
            match operation {
                Operation::Append(key, _) | Operation::Write(key, _) => written.push(key),
                // What has been undone cannot be told apart any more.
                Operation::Change(_) => self.operations.push(operation),
                Operation::Read(ref key, _) if !written.contains(key) => self.operations.push(operation),
                Operation::Range(ref range) => {
                    let holds = |key: &String| (&range.from..&range.to).contains(&key);
                    if !written.iter().any(holds) {
                        self.operations.push(operation);
                    }
                }
                Operation::Read(..) => {}
            }
        }
    }

    /// The transaction has ended, and the client is about to be told.
    pub fn end(mut self, outcome: Outcome) {
        self.outcome = outcome;
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        let operations = std::mem::take(&mut self.operations)
            .into_iter()
            .filter(|operation| !matches!(operation, Operation::Range(range) if range.from == range.to))
            .collect();
        let &mut Self { process, begin, outcome, .. } = self;
        let mut transaction = Transaction { process, begin, end: now(), outcome, operations };
        let mut line = String::new();
        transaction.write_line(&mut line);
        if line.len() > LINE_BYTES_MAX {
            // It would not be read. Less is inferred without its reads, and nothing else.
            let is_read =
                |operation: &Operation| matches!(operation, Operation::Read(..) | Operation::Range(_));
            transaction.operations.retain(|operation| !is_read(operation));
            line.clear();
            transaction.write_line(&mut line);
        }
        let mut lines = self.recorder.lines();
        if line.len() > LINE_BYTES_MAX {
            lines.write();
            let reason = format!("a transaction's writes take more than a line of {LINE_BYTES_MAX} bytes");
            lines.failed.get_or_insert(std::io::Error::other(reason));
            return;
        }
        lines.buffer.push_str(&line);
        if lines.buffer.len() >= BUFFER_BYTES {
            lines.write();
        }
    }
}

/// Where a range is recorded: from below, and behind it from above.
pub struct RangeRecord {
    table: Table,
    place: usize,
    from: String,
    to: String,
}

/// Nanoseconds since the first recorder of the process was asked.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    u64::try_from(START.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
}

/// A table's name with a slash at its end only.
fn name(table: &Table) -> String {
    table.name.replace('%', "%25").replace('/', "%2F")
}

/// A key as text. Those of a table lie between its name with `/` and its name with `0`, which is next.
fn text(table: &Table, key: &[u8]) -> String {
    let mut text = name(table);
    text.push('/');
    text.extend(key.iter().map(|byte| char::from(*byte)));
    text
}

/// The first key behind a key.
fn behind(table: &Table, key: &[u8]) -> String {
    let mut text = text(table, key);
    text.push('\0');
    text
}

/// A value, so that different ones are different.
fn value_of(bytes: &[u8]) -> Value {
    let printable = |bytes: &[u8]| bytes.iter().all(|byte| matches!(byte, b' '..=b'~'));
    let hexadecimal = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    if bytes.len() > VALUE_BYTES_MAX {
        let begin = hexadecimal(&bytes[..16]);
        let (low, high) = (crc32c::crc32c(bytes), crc32c::crc32c_append(0x9E37_79B9, &reversed(bytes)));
        return Value::Text(format!("0x{begin}… ({} bytes, {high:08x}{low:08x})", bytes.len()));
    }
    if printable(bytes) && !bytes.starts_with(b"0x") {
        return Value::Text(bytes.iter().map(|byte| char::from(*byte)).collect());
    }
    match bytes.try_into().map(u64::from_le_bytes) {
        Ok(integer) if integer >> 63 == 0 => Value::Integer(integer),
        _ => Value::Text(format!("0x{}", hexadecimal(bytes))),
    }
}

/// The checksum of the bytes from behind is not that of the bytes.
fn reversed(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().rev().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use deuteron_contract::TableId;

    #[test]
    fn keys_keep_their_order_and_tables_stay_apart() {
        let table = Table::new(TableId(7), "a/b%", 1);
        let keys: [&[u8]; 6] = [b"", b"\0", b"a", b"a\0", b"\x7f", b"\xff\xff"];
        for pair in keys.windows(2) {
            assert!(text(&table, pair[0]) < text(&table, pair[1]));
        }
        assert_eq!(text(&table, b"x"), "a%2Fb%25/x");
        assert!(text(&table, &[0xff; 9]) < format!("{}0", name(&table)));
    }

    #[test]
    fn what_is_recorded_can_be_read_though_a_transaction_reads_or_writes_more_than_a_line_holds() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("history");
        let recorder = Recorder::create(&path).unwrap();
        let table = Table::new(TableId(7), "words", 1);
        let long = |number: u32| [&number.to_be_bytes()[..], &[b'k'; 64 << 10]].concat();
        let many = LINE_BYTES_MAX as u32 / (64 << 10) + 1;
        let mut reader = recorder.begin();
        reader.write(&table, b"key", Some(b"value"));
        (0..many).for_each(|number| reader.read(&table, &long(number), None));
        reader.end(Outcome::Committed);
        recorder.flush().unwrap();
        let mut writer = recorder.begin();
        (0..many).for_each(|number| writer.write(&table, &long(number), None));
        writer.end(Outcome::Committed);
        let told = recorder.flush().unwrap_err();
        assert!(
            std::error::Error::source(&told).unwrap().to_string().contains("more than a line"),
            "{told:?}"
        );

        let mut found = Vec::new();
        let source = std::io::BufReader::new(File::open(path).unwrap());
        deuteron_history::read_lines(source, |_, _, transaction| {
            found.extend(transaction.operations);
            Ok(())
        })
        .unwrap();
        assert_eq!(found, [Operation::Write("words/key".into(), Some(Value::Text("value".into())))]);
    }

    #[test]
    fn different_values_stay_different() {
        let long = |last: u8| [vec![7; 99], vec![last]].concat();
        let values: [&[u8]; 9] = [
            b"",
            b"90",
            b"0x41",
            b"A",
            b"\x01",
            &7u64.to_le_bytes(),
            &u64::MAX.to_le_bytes(),
            &long(1),
            &long(2),
        ];
        let told: Vec<Value> = values.iter().map(|value| value_of(value)).collect();
        for (index, value) in told.iter().enumerate() {
            assert!(!told[..index].contains(value), "{value:?}");
        }
        assert_eq!(told[5], Value::Integer(7));
    }
}
