//! [`Level`]: isolation levels, and what each forbids.

use std::fmt;
use std::str::FromStr;

/// An isolation level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Adya's PL-2: no dirty writes, no dirty, intermediate or circular reads.
    ReadCommitted,
    /// Each transaction reads one state, and of two that change the same key at the same time one gives way.
    Snapshot,
    /// There is an order in which the transactions could have run one after the other (PL-3).
    Serializable,
    /// There is such an order, and who began after another had ended comes after it.
    StrictSerializable,
}

impl Level {
    /// All of them, weakest first.
    pub const ALL: [Level; 4] =
        [Level::ReadCommitted, Level::Snapshot, Level::Serializable, Level::StrictSerializable];

    /// As it is written on a command line.
    ///
    /// ```
    /// assert_eq!(deuteron_history::Level::StrictSerializable.name(), "strict-serializable");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Level::ReadCommitted => "read-committed",
            Level::Snapshot => "snapshot",
            Level::Serializable => "serializable",
            Level::StrictSerializable => "strict-serializable",
        }
    }

    /// Whether the level forbids anomalies of this kind. All that are found by real time are forbidden by
    /// [`Level::StrictSerializable`] only.
    ///
    /// ```
    /// use deuteron_history::{Kind, Level};
    /// assert!(Level::Snapshot.forbids(Kind::LostUpdate) && !Level::Snapshot.forbids(Kind::G2Item));
    /// ```
    pub fn forbids(self, kind: Kind) -> bool {
        match kind {
            Kind::GSingle | Kind::GNonadjacent | Kind::LostUpdate => self >= Level::Snapshot,
            Kind::G2Item | Kind::G2 => self >= Level::Serializable,
            _ => true,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Level::ALL.into_iter().find(|level| level.name() == name).ok_or_else(|| {
            let known: Vec<_> = Level::ALL.iter().rev().map(|level| level.name()).collect();
            format!("there is no level {name}; the levels are {}", known.join(", "))
        })
    }
}

/// The kinds of anomalies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// A read returned what nobody wrote.
    Garbage,
    /// A list holds an element twice.
    Duplicate,
    /// Two reads of a list, neither of which is the beginning of the other.
    IncompatibleOrder,
    /// A transaction did not see what it had written itself.
    Internal,
    /// Aborted read, dirty read: a write was seen whose transaction aborted.
    G1a,
    /// Intermediate read: a write was seen which its transaction then wrote over.
    G1b,
    /// Write cycle, dirty write: transactions overwrote each other.
    G0,
    /// Circular information flow: each saw or overwrote what another wrote, in a circle.
    G1c,
    /// Lost update: two transactions changed the same version of a key, and both committed.
    LostUpdate,
    /// Read skew: one read saw the state before another transaction, another the state after it.
    GSingle,
    /// Long fork: reads saw states that no single order of snapshots has.
    GNonadjacent,
    /// Write skew: each overwrote, on another key, what the other had read.
    G2Item,
    /// Phantom: as write skew, by records that a range read did not find.
    G2,
}

impl Kind {
    /// The field's name.
    ///
    /// ```
    /// assert_eq!(deuteron_history::Kind::GSingle.name(), "G-single");
    /// ```
    pub fn name(self) -> &'static str {
        match self {
            Kind::Garbage => "garbage-read",
            Kind::Duplicate => "duplicate-element",
            Kind::IncompatibleOrder => "incompatible-order",
            Kind::Internal => "internal",
            Kind::G1a => "G1a",
            Kind::G1b => "G1b",
            Kind::G0 => "G0",
            Kind::G1c => "G1c",
            Kind::LostUpdate => "lost-update",
            Kind::GSingle => "G-single",
            Kind::GNonadjacent => "G-nonadjacent",
            Kind::G2Item => "G2-item",
            Kind::G2 => "G2",
        }
    }

    /// What it means, in a sentence.
    ///
    /// ```
    /// assert!(deuteron_history::Kind::G2.meaning().contains("phantom"));
    /// ```
    pub fn meaning(self) -> &'static str {
        match self {
            Kind::Garbage => {
                "a read returned what nobody wrote: damage, or a writer is missing in the history"
            }
            Kind::Duplicate => {
                "an element that was appended once is in a list twice: an append happened again"
            }
            Kind::IncompatibleOrder => {
                "two reads disagree on the order of a list's elements: an append was lost or reordered"
            }
            Kind::Internal => "a transaction did not see its own writes",
            Kind::G1a => "aborted read (dirty read): a write was seen whose transaction never committed",
            Kind::G1b => {
                "intermediate read: a write was seen which its own transaction wrote over before it committed"
            }
            Kind::G0 => "dirty write: transactions overwrote each other in a circle",
            Kind::G1c => "circular information flow: each transaction depends on what another wrote",
            Kind::LostUpdate => {
                "lost update: two transactions read the same version of a key and both replaced it"
            }
            Kind::GSingle => {
                "read skew: a transaction saw the state before another one in one place, and after it in another"
            }
            Kind::GNonadjacent => {
                "long fork: transactions saw others' writes in orders that contradict each other"
            }
            Kind::G2Item => "write skew: each transaction wrote over what another had read",
            Kind::G2 => "phantom: as write skew, where a range was read and a record came into it, or went",
        }
    }
}
