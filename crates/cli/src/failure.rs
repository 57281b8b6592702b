//! How a command fails: what happened, why, what to do about it, and the exit status.

use crate::output;
use deuteron::Error;
use deuteron_bench::BenchError;
use std::process::ExitCode;

/// The kinds of failure, each an exit status. 2 is also what the argument parser ends with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The operation could not be done.
    Failed = 1,
    /// The arguments make no sense.
    Usage = 2,
    /// The database, the table or the key is not there.
    NotFound = 3,
    /// A conflict, or the database is in use: the same command can succeed a little later.
    TryAgain = 4,
    /// Stored bytes are not what was written, or a commit is lost.
    Damage = 5,
    /// A history has anomalies that the level forbids, or a benchmark's data does not fulfil its conditions.
    Anomaly = 6,
}

/// What the help says of the exit status.
pub const EXIT_STATUS_HELP: &str = "Exit status:
  0  done
  1  the operation failed
  2  the arguments make no sense
  3  the database, the table or the key is not there
  4  a conflict, or the database is in use: try again
  5  damage: stored bytes are not what was written, or a commit is lost
  6  a history has anomalies that the isolation level forbids, or a benchmark's conditions do not hold";

/// A failed command.
#[derive(Debug)]
pub struct Failure {
    kind: Kind,
    message: String,
    causes: Vec<String>,
    hint: Option<String>,
    /// The reader of our output went away; that is no failure to speak of. A command that judges says so first, whether or not its report could be
    /// printed: `verdict.and(print(…))`.
    silent: bool,
}

/// What commands return.
pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    /// A failure of this kind.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), causes: Vec::new(), hint: None, silent: false }
    }

    /// The operation could not be done, because of this.
    pub fn because(message: impl Into<String>, cause: &(dyn std::error::Error + 'static)) -> Self {
        let mut failure = Self::new(Kind::Failed, message);
        failure.causes =
            std::iter::successors(Some(cause), |cause| cause.source()).map(ToString::to_string).collect();
        failure
    }

    /// The same with advice.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// The same with where it happened in front.
    pub fn at(mut self, place: &str) -> Self {
        self.message = format!("{place}: {}", self.message);
        self
    }

    /// Standard output could not be written.
    pub fn output(error: &std::io::Error) -> Self {
        let mut failure = Self::because("cannot write the output", error);
        failure.silent = error.kind() == std::io::ErrorKind::BrokenPipe;
        failure
    }

    /// The exit status.
    pub fn exit_code(&self) -> ExitCode {
        if self.silent { ExitCode::SUCCESS } else { ExitCode::from(self.kind as u8) }
    }

    /// Prints it on standard error, as text or as one JSON object.
    pub fn print(&self, json: bool) {
        if self.silent {
            return;
        }
        if json {
            let object = serde_json::json!({
                "error": self.message,
                "causes": self.causes,
                "hint": self.hint,
                "exit_status": self.kind as u8,
            });
            output::note(&object.to_string());
            return;
        }
        output::note(&format!("error: {}", self.message));
        for cause in &self.causes {
            output::note(&format!("  because: {cause}"));
        }
        if let Some(hint) = &self.hint {
            output::note(&format!("  hint: {hint}"));
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (kind, hint) = match &error {
            Error::Conflict(_) => {
                (Kind::TryAgain, Some("run the command again: the other transaction is done"))
            }
            Error::InUse { .. } => {
                (Kind::TryAgain, Some("close the other process, or wait until it is done"))
            }
            Error::TableExists { .. } => (Kind::Failed, Some("load into a table of another name")),
            Error::OutOfOrder { .. } => (
                Kind::Failed,
                Some("nothing was loaded; sort the input by key, or import it without --sorted"),
            ),
            Error::Exists { .. } => (Kind::Failed, Some("give another name, or remove what is there")),
            Error::NotFound { .. } => {
                (Kind::NotFound, Some("mind the path; put, import and shell create a database"))
            }
            Error::NothingAt { .. } => (Kind::NotFound, Some("mind the path")),
            Error::DurabilityUnknown { .. } => (
                Kind::Failed,
                Some(
                    "it has happened, unless a crash undoes it: look whether it is there before it is done again",
                ),
            ),
            Error::Encrypted { .. } => (Kind::Failed, Some("give the file of its keys with --key-file")),
            Error::NotADatabase { .. } => (Kind::Failed, Some("give a directory of its own to the database")),
            Error::UnknownFormat { .. } => (
                Kind::Failed,
                Some("use the version of this program that wrote the database, or a newer one"),
            ),
            Error::Corrupt { .. } => (
                Kind::Damage,
                Some(
                    "restore a backup; `deuteron salvage` says what is damaged and writes what is not to files",
                ),
            ),
            Error::DiskFull { .. } => {
                (Kind::Failed, Some("make room on the disk and run it again; nothing acknowledged is lost"))
            }
            Error::Poisoned { .. } => {
                (Kind::Failed, Some("look after the device, then open the database again: it recovers"))
            }
            Error::InvalidOption { .. } => (Kind::Usage, None),
            _ => (Kind::Failed, None),
        };
        let mut failure = match std::error::Error::source(&error) {
            Some(source) => Self::because(error.to_string(), source),
            None => Self::new(Kind::Failed, error.to_string()),
        };
        failure.kind = kind;
        failure.hint = hint.map(Into::into);
        failure
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Settings(reason) => Self::new(Kind::Usage, reason),
            BenchError::Store { context, source } => match source.downcast::<Error>() {
                Ok(store) => Self::from(*store).at(&format!("cannot {context}")),
                Err(source) => Self::because(format!("cannot {context}"), source.as_ref()),
            },
            other => Self::because("the measurement failed", &other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_of_error_has_its_status_and_advice() {
        let in_use = Failure::from(Error::InUse { path: "a.db".into() });
        assert_eq!((in_use.kind, in_use.hint.is_some()), (Kind::TryAgain, true));
        let missing = Failure::from(Error::NotFound { path: "a.db".into() });
        assert_eq!(missing.kind, Kind::NotFound);
        let corrupt = Error::Corrupt { file: "f".into(), offset: 1, expected: "a".into(), found: "b".into() };
        assert_eq!(Failure::from(corrupt).kind, Kind::Damage);
        let bench = BenchError::store("commit")(Error::DiskFull { context: "write".into() });
        let bench = Failure::from(bench);
        assert!(bench.message.starts_with("cannot commit: the disk is full"), "{bench:?}");
        assert!(bench.hint.is_some());
    }

    #[test]
    fn causes_are_listed_without_repeating_the_message() {
        let source = Box::new(std::io::Error::other("the cable is out"));
        let failure = Failure::from(Error::Device { context: "sync the log".into(), source });
        assert_eq!(failure.message, "cannot sync the log");
        assert_eq!(failure.causes, ["the cable is out"]);
    }

    #[test]
    fn a_reader_that_went_away_is_no_failure() {
        let gone = std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        assert_eq!(Failure::output(&gone).exit_code(), ExitCode::SUCCESS);
        let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
        assert_eq!(Failure::output(&full).exit_code(), ExitCode::from(1));
    }
}
