//! The world of a run: the machine, the database on it, the clients, and what should be there.

use crate::client::Open;
use crate::configuration::Configuration;
use crate::features::Feature;
use crate::history::{Entry, Generation, History};
use crate::report::Report;
use deuteron::device::simulated::Random;
use deuteron::device::{SimulatedDisk, with_causes};
use deuteron::{Db, Error, Options, Table, Ticket, Timestamp};
use std::time::{Duration, Instant};

/// Why a step did not go on.
#[derive(Debug)]
pub enum Halt {
    /// The database says so.
    Error(Error),
    /// Something is wrong.
    Problem(String),
    /// The damage that was done has been named; nothing more can be expected.
    Detected,
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Error(error)
    }
}

/// A problem, as the reason of a halt.
pub fn problem<T>(text: impl Into<String>) -> Result<T, Halt> {
    Err(Halt::Problem(text.into()))
}

/// A table under a name.
pub struct Slot {
    pub name: String,
    /// Which table it is, and its handle.
    pub table: Option<(Generation, Table)>,
}

/// A commit whose durability is still to come.
pub struct Due {
    pub entry: usize,
    pub ticket: Ticket,
    /// By when, for delayed ones.
    pub by: Option<Instant>,
}

/// See the [module](self).
pub struct World<'c> {
    pub configuration: &'c Configuration,
    pub random: Random,
    pub disk: SimulatedDisk,
    pub options: Options,
    /// `None` only while it is opened.
    pub db: Option<Db>,
    pub slots: Vec<Slot>,
    /// A handle of a table that was dropped.
    pub dropped: Option<Table>,
    pub clients: Vec<Option<Open>>,
    pub due: Vec<Due>,
    pub history: History,
    /// Stretches of timestamps of which nobody knows whether a commit comes before them.
    pub uncertain: Vec<(Timestamp, Timestamp)>,
    /// The latest timestamp at which a transaction has committed that had done something.
    pub newest: Timestamp,
    pub events: u64,
    pub generations: Generation,
    /// The next value.
    pub number: u64,
    pub hash: u64,
    /// The device has lied, so that what is on it may be damaged.
    pub lied: bool,
    /// Faults that say so are planned, or the disk is small.
    pub fails: bool,
    /// The depth of steps within a scan.
    pub depth: u32,
    pub report: Report,
}

impl<'c> World<'c> {
    /// A machine with an empty disk.
    pub fn new(configuration: &'c Configuration) -> World<'c> {
        let mut random = Random::new(configuration.seed ^ 0x51_0000_0000);
        let slots =
            (0..configuration.tables).map(|index| Slot { name: format!("table {index}"), table: None });
        World {
            configuration,
            disk: SimulatedDisk::new(random.next()),
            options: configuration.options(&mut random),
            random,
            db: None,
            slots: slots.collect(),
            dropped: None,
            clients: (0..configuration.clients).map(|_| None).collect(),
            due: Vec::new(),
            history: History::default(),
            uncertain: Vec::new(),
            newest: Timestamp(0),
            events: 0,
            generations: 0,
            number: 0,
            hash: 0,
            lied: false,
            fails: false,
            depth: 0,
            report: Report::default(),
        }
    }

    pub fn db(&self) -> &Db {
        self.db.as_ref().expect("the database is open between steps")
    }

    pub fn has(&self, feature: Feature) -> bool {
        self.configuration.has(feature)
    }

    /// True once in `times`, on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.random.below(times) == 0
    }

    /// Something that can be seen from outside goes into the trace.
    pub fn saw(&mut self, number: u64) {
        self.hash = (self.hash.rotate_left(23) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Bytes that can be seen.
    pub fn saw_bytes(&mut self, bytes: &[u8]) {
        self.saw(bytes.len() as u64);
        bytes.chunks(8).for_each(|chunk| {
            let word = chunk.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
            self.saw(word);
        });
    }

    /// The hash of all that was seen and of all I/O.
    pub fn trace(&self) -> u64 {
        self.hash ^ self.disk.trace().rotate_left(32)
    }

    /// The next event in real time.
    pub fn event(&mut self) -> u64 {
        self.events += 1;
        self.events
    }

    /// A commit is in.
    pub fn committed(&mut self, entry: Entry) -> Result<usize, Halt> {
        self.report.commits += 1;
        self.history.committed(entry).map_err(Halt::Problem)
    }

    /// Time passes.
    pub fn advance(&mut self) {
        let micros = [1, 100, 5_000, 20_000, 1_000_000][self.random.below(5) as usize];
        self.disk.advance(Duration::from_micros(micros));
    }

    /// What an error means that no client expected: the machine must be started again (`Ok`), or the run ends.
    pub fn judge(&mut self, error: &Error) -> Result<(), Halt> {
        self.notice_lies();
        let text = with_causes(error);
        self.saw_bytes(text.as_bytes());
        let error = match error {
            Error::DurabilityUnknown { cause: Some(cause), .. } => cause,
            error => error,
        };
        if self.disk.is_stopped() {
            return Ok(());
        }
        if self.lied {
            return match error {
                // Names the file and the place, or repeats the words of who has named it.
                Error::Corrupt { .. } => Err(Halt::Detected),
                Error::Poisoned { reason } if reason.contains("expected") => Err(Halt::Detected),
                // A file that is shorter than it was written.
                _ if text.contains("unexpected end of file") => Err(Halt::Detected),
                _ if self.fails => Ok(()),
                _ => problem(format!("damage is not named: {text}")),
            };
        }
        match error {
            Error::Poisoned { .. } | Error::Device { .. } | Error::DiskFull { .. } | Error::Closed
                if self.fails =>
            {
                Ok(())
            }
            _ => problem(format!("nothing is wrong with the device, but: {text}")),
        }
    }
}
