//! A commit record whose place is taken before its transaction's status says so, and what is logged right before it.

use crate::buffers::Reservation;
use crate::log::Log;
use crate::record::{COMMIT_BYTES, Record};
use deuteron_contract::{Lsn, Timestamp, TransactionId};
use std::ops::Range;

/// The place of a commit record that is not written yet, with room for records before it. Dropping it cancels it.
///
/// As long as it lives the buffer cannot be written: fill it at once. (One that is leaked stops the log, though nothing
/// worse.)
#[must_use = "a commit record that is not filled is cancelled"]
pub struct CommitReservation<'a> {
    log: &'a Log,
    reservation: Option<Reservation<'a>>,
    /// The room that is left before the commit record, which begins where it ends.
    room: Range<u64>,
}

impl<'a> CommitReservation<'a> {
    /// The last of the reserved bytes, behind `room`, are the commit record's.
    pub(crate) fn new(log: &'a Log, reservation: Reservation<'a>, room: usize) -> CommitReservation<'a> {
        let room = reservation.lsn..reservation.lsn + room as u64;
        CommitReservation { log, reservation: Some(reservation), room }
    }

    /// Where the commit record will be.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.room.end)
    }

    /// Writes a record before the commit record, behind those before; where it is.
    ///
    /// # Panics
    /// If there is no room for it.
    #[inline]
    pub fn append(&mut self, record: &Record<'_>) -> Lsn {
        let (lsn, bytes) = (self.room.start, record.encoded_bytes());
        assert!(bytes as u64 <= self.room.end - lsn, "room was reserved for less");
        // SAFETY: B5: the range is ours alone until we leave.
        record.encode(0, unsafe { self.log.ring.slice_mut(lsn, bytes) });
        self.room.start += bytes as u64;
        Lsn(lsn)
    }

    /// Writes the commit record.
    pub fn fill(mut self, transaction: TransactionId, timestamp: Timestamp, token: u64) -> Lsn {
        let lsn = self.lsn();
        if let Some(reservation) = self.reservation.take() {
            let link = reservation.link(lsn.0);
            self.write(reservation, &Record::Commit { transaction, timestamp, token }, link);
        }
        lsn
    }

    /// Leaves padding in the place of the commit record. What was written before it stays.
    pub fn cancel(self) {}

    fn write(&self, reservation: Reservation<'_>, record: &Record<'_>, link: u32) {
        let pad = |bytes: u64| Record::Padding { bytes: bytes as u32 };
        if !self.room.is_empty() {
            let left = self.room.end - self.room.start;
            // SAFETY: B5: the range is ours alone until we leave.
            pad(left).encode(0, unsafe { self.log.ring.slice_mut(self.room.start, left as usize) });
        }
        // SAFETY: as above.
        record.encode(link, unsafe { self.log.ring.slice_mut(self.room.end, COMMIT_BYTES) });
        reservation.leave();
    }
}

impl Drop for CommitReservation<'_> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.write(reservation, &Record::Padding { bytes: COMMIT_BYTES as u32 }, 0);
        }
    }
}
