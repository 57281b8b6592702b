//! A commit record whose place is taken before its transaction's status says so.

use crate::buffers::Reservation;
use crate::log::Log;
use crate::record::{COMMIT_BYTES, Record};
use deuteron_contract::{Lsn, Timestamp, TransactionId};

/// The place of a commit record that is not written yet. Dropping it cancels it.
///
/// As long as it lives the buffer cannot be written: fill it at once. (One that is leaked stops the log, though nothing
/// worse.)
#[must_use = "a commit record that is not filled is cancelled"]
pub struct CommitReservation<'a> {
    log: &'a Log,
    reservation: Option<Reservation<'a>>,
}

impl<'a> CommitReservation<'a> {
    pub(crate) fn new(log: &'a Log, reservation: Reservation<'a>) -> CommitReservation<'a> {
        CommitReservation { log, reservation: Some(reservation) }
    }

    /// Where the commit record will be.
    pub fn lsn(&self) -> Lsn {
        Lsn(self.reservation.as_ref().map_or(0, |reservation| reservation.lsn))
    }

    /// Writes the commit record.
    pub fn fill(mut self, transaction: TransactionId, timestamp: Timestamp, token: u64) -> Lsn {
        let lsn = self.lsn();
        if let Some(reservation) = self.reservation.take() {
            let link = reservation.link();
            self.write(reservation, &Record::Commit { transaction, timestamp, token }, link);
        }
        lsn
    }

    /// Leaves padding in the place.
    pub fn cancel(self) {}

    fn write(&self, reservation: Reservation<'_>, record: &Record<'_>, link: u32) {
        // SAFETY: B5: the range is ours alone until we leave.
        record.encode(link, unsafe { self.log.ring.slice_mut(reservation.lsn, COMMIT_BYTES) });
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
