//! When tombstones may be forgotten (contract, C3).
//!
//! A tombstone must stay until no older version can arrive any more. Log order is not version order: a version older
//! than the tombstone may have a higher LSN. But its transaction has committed below the end of stable log at which the
//! tombstone arrived. So at a redo scan start point `r` the end of stable log `e` is noted; every tombstone with an LSN
//! below `r` has arrived by then. When a later redo scan start point reaches `e`, nothing older than those can come,
//! neither now (all below it has been applied) nor in a replay (which starts there).

/// What must be known between two redo scan start points.
#[derive(Debug, Default)]
pub(crate) struct Tombstones {
    /// A redo scan start point, and the end of stable log when it was set.
    noted: Option<(u64, u64)>,
}

impl Tombstones {
    /// Notes a completed redo scan start point. `end_of_stable_log` was read when it was asked for. Returns the LSN below
    /// which tombstones may be forgotten from now on, if that has changed.
    pub(crate) fn pass(&mut self, redo_scan_start_point: u64, end_of_stable_log: u64) -> Option<u64> {
        let new = (redo_scan_start_point, end_of_stable_log.max(redo_scan_start_point));
        match self.noted {
            // Not reached yet. The older note stays, or a busy log might outrun every note.
            Some((_, reach)) if redo_scan_start_point < reach => None,
            noted => {
                self.noted = Some(new);
                noted.map(|(below, _)| below)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tombstone_goes_when_redo_starts_above_the_end_of_log_of_its_arrival() {
        let mut tombstones = Tombstones::default();
        assert_eq!(tombstones.pass(100, 300), None);
        assert_eq!(tombstones.pass(200, 500), None);
        assert_eq!(tombstones.pass(299, 500), None);
        assert_eq!(tombstones.pass(300, 600), Some(100));
        assert_eq!(tombstones.pass(400, 700), None);
        assert_eq!(tombstones.pass(600, 900), Some(300));
        // Without a log the redo scan start point itself is the end.
        assert_eq!(tombstones.pass(900, 0), Some(600));
        assert_eq!(tombstones.pass(901, 0), Some(900));
    }
}
