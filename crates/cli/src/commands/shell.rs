//! `shell`: a conversation with a database, transactions included.
//!
//! On a terminal it edits lines, keeps a history and goes on after errors. From a pipe it is a script: it stops
//! at the first error, names the line, and aborts what is open.

use super::records::{KeyRange, prefix_range};
use super::{existing_table, open, stat};
use crate::arguments::DatabaseArguments;
use crate::failure::{Failure, Kind, Outcome};
use crate::{output, quoting};
use deuteron::{Db, Error, Isolation, Table, Transaction, TransactionOptions};
use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::Validator;
use rustyline::{Context, Editor, Helper};
use std::io::{BufRead, IsTerminal};
use std::ops::Bound;
use std::path::PathBuf;

const HELP: &str = "\
use TABLE              work with a table from now on; it is created with its first record
tables                 list the tables
get KEY                print the value of a key
put KEY VALUE          write a record
delete KEY             delete a record
drop TABLE             drop a table, with all its records, for good
scan [FROM [TO]]       print the records from FROM up to, not including, TO
                       options: reverse, limit=N, prefix=KEY
begin [LEVEL]          begin a transaction; without one, each command is its own
                       levels: serializable (if left out), snapshot, read-committed, read-only
commit                 commit it, durably
abort                  take it back
stat                   sizes, memory, counters, times
help                   this list
exit                   leave, aborting what is open

Words with spaces are quoted: \"two words\", with \\n \\t \\\" \\\\ and \\xNN for any byte, or 'as it is'.";

const COMMANDS: &[&str] = &[
    "abort", "begin", "commit", "delete", "drop", "exit", "get", "help", "put", "quit", "scan", "stat",
    "tables", "use",
];

/// `deuteron shell`.
pub fn run(arguments: &DatabaseArguments) -> Outcome {
    let db = open(arguments, true)?;
    let mut session = Session { db: db.clone(), table: None, transaction: None };
    let outcome = if std::io::stdin().is_terminal() {
        converse(&mut session, arguments)
    } else {
        run_script(&mut session)
    };
    drop(session);
    let closed = db.close();
    outcome?;
    Ok(closed?)
}

/// The conversation on a terminal.
fn converse(session: &mut Session, arguments: &DatabaseArguments) -> Outcome {
    let terminal = |error: ReadlineError| Failure::because("cannot use the terminal", &error);
    let mut editor: Editor<Words, FileHistory> = Editor::new().map_err(terminal)?;
    editor.set_helper(Some(Words));
    let history = history_file();
    if let Some(file) = &history {
        // There is none the first time.
        let _ = editor.load_history(file);
    }
    output::note(&format!("{}; `help` lists the commands", arguments.database.display()));
    loop {
        match editor.readline(&session.prompt()) {
            Ok(line) => {
                if !line.trim().is_empty() {
                    let _ = editor.add_history_entry(&line);
                }
                match session.execute(&line) {
                    Ok(Next::GoOn) => {}
                    Ok(Next::Leave) => break,
                    Err(failure) => failure.print(false),
                }
            }
            // Control-C gives up the line, control-D the conversation.
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(terminal(error)),
        }
    }
    if let Some(file) = &history
        && let Err(error) = editor.save_history(file)
    {
        output::note(&format!("note: the history is not kept: {error}"));
    }
    session.leave();
    Ok(())
}

/// Commands from a pipe or a file.
fn run_script(session: &mut Session) -> Outcome {
    for (number, line) in std::io::stdin().lock().lines().enumerate() {
        let place = format!("line {}", number + 1);
        let line = line.map_err(|error| Failure::because("cannot read standard input", &error).at(&place))?;
        match session.execute(&line) {
            Ok(Next::GoOn) => {}
            Ok(Next::Leave) => break,
            Err(failure) => return Err(failure.at(&place)),
        }
    }
    session.leave();
    Ok(())
}

fn history_file() -> Option<PathBuf> {
    std::env::home_dir().map(|home| home.join(".deuteron_history"))
}

/// Completes commands; neither hints, nor colours, nor holds back a line.
struct Words;

impl Helper for Words {}

impl Highlighter for Words {}

impl Validator for Words {}

impl Hinter for Words {
    type Hint = String;
}

impl Completer for Words {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let begun = &line[..position];
        if begun.contains(' ') {
            return Ok((position, Vec::new()));
        }
        let candidates = COMMANDS.iter().filter(|command| command.starts_with(begun));
        Ok((
            0,
            candidates.map(|&word| Pair { display: word.into(), replacement: format!("{word} ") }).collect(),
        ))
    }
}

/// Whether the conversation goes on.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    GoOn,
    Leave,
}

/// What a conversation remembers.
struct Session {
    db: Db,
    /// The table in use; it need not exist yet.
    table: Option<String>,
    transaction: Option<Transaction>,
}

impl Session {
    fn prompt(&self) -> String {
        let table = self.table.as_deref().unwrap_or("deuteron");
        if self.transaction.is_some() { format!("{table}*> ") } else { format!("{table}> ") }
    }

    fn execute(&mut self, line: &str) -> Outcome<Next> {
        let words = quoting::words(line).map_err(usage)?;
        let Some((command, rest)) = words.split_first() else { return Ok(Next::GoOn) };
        let rest: Vec<&[u8]> = rest.iter().map(Vec::as_slice).collect();
        match (String::from_utf8_lossy(command).as_ref(), &rest[..]) {
            ("help" | "?", []) => output::text_line(HELP)?,
            ("exit" | "quit", []) => return Ok(Next::Leave),
            ("tables", []) => self.tables()?,
            ("use", [name]) => self.use_table(name)?,
            ("begin", []) => self.begin(TransactionOptions::new())?,
            ("begin", [level]) => self.begin(level_options(level)?)?,
            ("commit", []) => self.commit()?,
            ("abort", []) => self.abort()?,
            ("get", [key]) => self.get(key)?,
            ("put", [key, value]) => self.put(key, value)?,
            ("delete", [key]) => self.delete(key)?,
            ("drop", [name]) => self.drop_table(name)?,
            ("scan", words) => self.scan(words)?,
            ("stat", []) => output::table(&stat::as_rows(&self.db.stats(), &[]))?,
            (known, _) if COMMANDS.contains(&known) => {
                return Err(usage(format!("{known} takes other arguments")).hint(usage_of(known)));
            }
            (unknown, _) => {
                return Err(usage(format!("there is no command {unknown}")).hint("`help` lists the commands"));
            }
        }
        Ok(Next::GoOn)
    }

    /// Says so if the end of the conversation takes something back.
    fn leave(&mut self) {
        if self.transaction.take().is_some() {
            output::note("note: the transaction that was open is aborted");
        }
    }

    fn tables(&self) -> Outcome {
        self.db.tables()?.iter().try_for_each(|name| output::text_line(&quoting::word(name.as_bytes())))
    }

    fn use_table(&mut self, name: &[u8]) -> Outcome {
        let name = std::str::from_utf8(name).map_err(|_| usage("a table's name is UTF-8".into()))?.to_owned();
        if !self.db.tables()?.contains(&name) {
            output::note(&format!("note: table {name} is new; it is created with its first record"));
        }
        self.table = Some(name);
        Ok(())
    }

    fn drop_table(&mut self, name: &[u8]) -> Outcome {
        if self.transaction.is_some() {
            return Err(usage("a transaction is open".into())
                .hint("`commit` or `abort` it; a drop cannot be taken back"));
        }
        let name = std::str::from_utf8(name).map_err(|_| usage("a table's name is UTF-8".into()))?;
        existing_table(&self.db, name)?;
        Ok(self.db.drop_table(name)?)
    }

    fn begin(&mut self, options: TransactionOptions) -> Outcome {
        if self.transaction.is_some() {
            return Err(usage("a transaction is open already".into()).hint("`commit` or `abort` it"));
        }
        self.transaction = Some(self.db.begin_with(options)?);
        Ok(())
    }

    fn open_transaction(&mut self) -> Outcome<Transaction> {
        self.transaction.take().ok_or_else(|| usage("no transaction is open".into()).hint("`begin` one"))
    }

    fn commit(&mut self) -> Outcome {
        self.open_transaction()?.commit().map_err(gone)
    }

    fn abort(&mut self) -> Outcome {
        self.open_transaction()?.abort();
        Ok(())
    }

    /// Runs `body` in the open transaction, or in one of its own.
    fn transact<T>(&mut self, mut body: impl FnMut(&mut Transaction) -> Result<T, Error>) -> Outcome<T> {
        match &mut self.transaction {
            None => Ok(self.db.transact(body)?),
            Some(transaction) => body(transaction).map_err(|error| {
                // A conflict has aborted it; other mistakes leave it as it was.
                if error.is_retryable() || matches!(error, Error::Aborted) {
                    self.transaction = None;
                    return gone(error);
                }
                error.into()
            }),
        }
    }

    fn table_name(&self) -> Outcome<&str> {
        match &self.table {
            Some(name) => Ok(name),
            None => Err(usage("no table is in use".into()).hint("`use TABLE`; `tables` lists them")),
        }
    }

    fn readable_table(&self) -> Outcome<Table> {
        existing_table(&self.db, self.table_name()?)
    }

    fn get(&mut self, key: &[u8]) -> Outcome {
        let table = self.readable_table()?;
        match self.transact(|tx| tx.get(&table, key))? {
            Some(value) => output::text_line(&quoting::word(&value)),
            None => Err(Failure::new(Kind::NotFound, format!("there is no key {}", quoting::word(key)))),
        }
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Outcome {
        let table = self.db.table(self.table_name()?)?;
        self.transact(|tx| tx.put(&table, key, value))
    }

    fn delete(&mut self, key: &[u8]) -> Outcome {
        let table = self.readable_table()?;
        self.transact(|tx| tx.delete(&table, key))
    }

    fn scan(&mut self, words: &[&[u8]]) -> Outcome {
        let request = ScanRequest::read(words)?;
        let table = self.readable_table()?;
        let mut lines = Vec::new();
        let mut records = 0;
        self.transact(|tx| {
            // A second attempt begins anew.
            (lines, records) = (Vec::new(), 0);
            let mut scan = tx.scan(&table, request.range.clone())?.limit(request.limit);
            while let Some((key, value)) =
                if request.reverse { scan.next_back_ref() } else { scan.next_ref() }?
            {
                lines.push(format!("{}\t{}", quoting::word(key), quoting::word(value)));
                records += 1;
            }
            Ok(())
        })?;
        lines.iter().try_for_each(|line| output::text_line(line))?;
        if records == request.limit && !request.limit_given {
            output::note(&format!("note: only the first {records}; say limit=N for more"));
        }
        Ok(())
    }
}

/// The options of a transaction that is begun with a word.
fn level_options(level: &[u8]) -> Outcome<TransactionOptions> {
    let options = TransactionOptions::new();
    match level {
        b"serializable" => Ok(options),
        b"snapshot" => Ok(options.isolation(Isolation::Snapshot)),
        b"read-committed" => Ok(options.isolation(Isolation::ReadCommitted)),
        b"read-only" => Ok(options.read_only(true)),
        _ => Err(usage("there is no such level".into()).hint(usage_of("begin"))),
    }
}

/// The most records that a scan prints unless told otherwise.
const SCAN_RECORDS: usize = 1_000;

/// The words after `scan`.
#[derive(Debug, PartialEq)]
struct ScanRequest {
    range: KeyRange,
    reverse: bool,
    limit: usize,
    limit_given: bool,
}

impl ScanRequest {
    fn read(words: &[&[u8]]) -> Outcome<Self> {
        let mut request = Self {
            range: (Bound::Unbounded, Bound::Unbounded),
            reverse: false,
            limit: SCAN_RECORDS,
            limit_given: false,
        };
        let mut keys = Vec::new();
        for &word in words {
            if word == b"reverse" {
                request.reverse = true;
            } else if let Some(digits) = word.strip_prefix(b"limit=") {
                let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
                request.limit = number.ok_or_else(|| usage("limit= takes a number".into()))?;
                request.limit_given = true;
            } else if let Some(prefix) = word.strip_prefix(b"prefix=") {
                request.range = prefix_range(prefix);
            } else {
                keys.push(word.to_vec());
            }
        }
        match keys.len() {
            0 => {}
            1 | 2 if request.range != (Bound::Unbounded, Bound::Unbounded) => {
                return Err(usage("scan takes either bounds or a prefix".into()));
            }
            1 => request.range.0 = Bound::Included(keys.remove(0)),
            2 if keys[0] > keys[1] => return Err(usage("the bounds cross: FROM is after TO".into())),
            2 => request.range = (Bound::Included(keys.remove(0)), Bound::Excluded(keys.remove(0))),
            _ => return Err(usage("scan takes at most two keys".into()).hint(usage_of("scan"))),
        }
        Ok(request)
    }
}

fn usage(message: String) -> Failure {
    Failure::new(Kind::Usage, message)
}

/// The transaction is over, and the user should know.
fn gone(error: Error) -> Failure {
    let retry = error.is_retryable();
    let failure = Failure::from(error);
    if retry { failure.hint("the transaction is aborted; `begin` it again") } else { failure }
}

/// The lines of the help on one command.
fn usage_of(command: &str) -> String {
    let line = HELP.lines().find(|line| line.split(' ').next() == Some(command));
    line.unwrap_or("`help` lists the commands").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_the_help() {
        for command in COMMANDS.iter().filter(|&&command| command != "quit") {
            assert!(usage_of(command).starts_with(command), "{command}");
        }
    }

    #[test]
    fn scans_are_read() {
        let read = |words: &[&str]| {
            let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
            ScanRequest::read(&words)
        };
        let request = read(&["a", "b", "reverse", "limit=5"]).unwrap();
        assert_eq!(request.range, (Bound::Included(b"a".to_vec()), Bound::Excluded(b"b".to_vec())));
        assert!(request.reverse && request.limit == 5);
        assert_eq!(read(&["prefix=a"]).unwrap().range, prefix_range(b"a"));
        for wrong in [&["b", "a"][..], &["limit=x"], &["a", "b", "c"], &["prefix=a", "b"]] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
