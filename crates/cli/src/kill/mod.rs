//! Killing the workload, and checking what is left: the demonstration, the acceptance point and the test share it.
//!
//! A child process runs transactions and tells the parent through a pipe what has been acknowledged as durable; the
//! parent kills it with SIGKILL, opens the database itself, and checks it. Nothing that the child knew is needed for
//! that: what transaction number `s` of thread `t` in round `r` does follows from those numbers and the seed (the
//! [`script`]), so that the parent replays what must have happened.
//!
//! What is checked, by [`expectation`]:
//!
//! - **K1** No acknowledged commit is lost: every writer writes its number into two tables (the *markers*), and the
//!   markers found are at least the last acknowledged. Threads commit in the order of their numbers, so that the
//!   marker says which transactions must be there in full, and that no later one may be there at all.
//! - **K2** No transaction is half-applied: both markers agree, and no record and no ledger row carries the number
//!   of a transaction after the marker.
//! - **K3** Every record holds, byte for byte, the value of the last write of one of the threads that wrote it, or
//!   the value from before the round if none did: a lost update, or a stale page, shows as an older version.
//! - **K4** The ledger, in which rows are inserted and deleted, holds exactly the rows that the replay leaves.
//! - **K5** Scans and point reads agree.

pub mod child;
pub mod expectation;
pub mod parent;
pub mod room;
pub mod script;

use deuteron_bench::Random;
use serde::{Deserialize, Serialize};

/// The workload's own records: the paper's workload runs on them.
pub const RECORDS_TABLE: &str = "records";
/// The last transaction of each thread, in two tables.
pub const MARKER_TABLES: [&str; 2] = ["marker-left", "marker-right"];
/// Rows that come and go.
pub const LEDGER_TABLE: &str = "ledger";

/// What parent and child agree on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Records in the records table.
    pub records: u64,
    /// Bytes of each value, at least [`Version::BYTES`] and a key.
    pub value_bytes: usize,
    /// Threads of the child.
    pub threads: u32,
    /// Commits of one thread that may await their acknowledgement.
    pub in_flight: usize,
    /// The memory of the database in bytes.
    pub memory: usize,
    /// Sets what the transactions do.
    pub seed: u64,
}

/// Which transaction wrote something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The life of the child, from 1; 0 is the load.
    pub round: u32,
    /// The thread.
    pub thread: u32,
    /// The thread's number of the transaction, which goes on from round to round.
    pub sequence: u64,
}

impl Version {
    /// The version of loaded records.
    pub const LOADED: Version = Version { round: 0, thread: 0, sequence: 0 };

    /// The length of a version in bytes.
    pub const BYTES: usize = 16;

    /// As bytes.
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.round.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.thread.to_be_bytes());
        bytes[8..].copy_from_slice(&self.sequence.to_be_bytes());
        bytes
    }

    /// From the first bytes of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let round = u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?);
        let thread = u32::from_be_bytes(bytes.get(4..8)?.try_into().ok()?);
        let sequence = u64::from_be_bytes(bytes.get(8..16)?.try_into().ok()?);
        Some(Self { round, thread, sequence })
    }

    /// A number that tells versions apart, for seeding.
    fn mixed(self) -> u64 {
        let place = u64::from(self.round) << 32 | u64::from(self.thread);
        // Odd factors: no two versions of one round, and none of one sequence, fall together.
        self.sequence.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ place.wrapping_mul(0xd6e8_feb8_6659_fd93)
    }
}

/// Replaces `value` by what the version writes under the key: the version, the key, and bytes that follow from both.
pub fn write_value(value: &mut [u8], version: Version, key: u64) {
    let (head, rest) = value.split_at_mut(Version::BYTES + 8);
    head[..Version::BYTES].copy_from_slice(&version.to_bytes());
    head[Version::BYTES..].copy_from_slice(&key.to_be_bytes());
    Random::new(version.mixed() ^ key.rotate_left(17)).fill(rest);
}

/// The version of a value that is, byte for byte, what that version writes under the key.
pub fn read_value(value: &[u8], key: u64, value_bytes: usize) -> Option<Version> {
    if value.len() != value_bytes || value.get(Version::BYTES..Version::BYTES + 8)? != key.to_be_bytes() {
        return None;
    }
    let version = Version::from_bytes(value)?;
    let mut expected = vec![0; value_bytes];
    write_value(&mut expected, version, key);
    (value == expected).then_some(version)
}

/// The key of a ledger row.
pub fn ledger_key(thread: u32, sequence: u64) -> [u8; 12] {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&thread.to_be_bytes());
    key[4..].copy_from_slice(&sequence.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_tells_its_version_and_any_flipped_byte_shows() {
        let version = Version { round: 3, thread: 1, sequence: 77 };
        let mut value = [0; 100];
        write_value(&mut value, version, 5);
        assert_eq!(read_value(&value, 5, 100), Some(version));
        assert_eq!(read_value(&value, 6, 100), None);
        assert_eq!(read_value(&value[..99], 5, 100), None);
        assert_eq!(read_value(b"", 5, 100), None);
        for at in 0..100 {
            let mut flipped = value;
            flipped[at] ^= 4;
            assert_eq!(read_value(&flipped, 5, 100), None, "byte {at}");
        }
    }

    #[test]
    fn versions_survive_as_bytes() {
        let version = Version { round: 7, thread: 2, sequence: 1 << 40 };
        assert_eq!(Version::from_bytes(&version.to_bytes()), Some(version));
        assert_eq!(Version::from_bytes(&[0; 15]), None);
    }
}
