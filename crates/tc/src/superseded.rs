//! What a workspace's last transactions have written above older versions, to let go of those as soon as everybody sees the newer ones.
//!
//! The next write of a record prunes what it leaves behind, and so does the collector's hand when it comes by. But most records
//! are not written again soon: so half of all memory of versions is superseded ones. While there is enough of it that is the least work. Once it
//! fills ([`Account::is_filling`](crate::memory::Account::is_filling)), what is noted here is let go of a moment after the commit, when that is below the horizon,
//! and the record and both versions are in the processor's caches still.
//!
//! What is noted here is a hint. The record may be gone by then, and another may lie there: so it is looked up in its bucket, and whichever is
//! there is maintained by the rules (R11, R26). What there is no place for is left to the next write and to the hand.

use crate::record::{KeyHash, Record, prefetch};
use crate::version::Version;
use deuteron_contract::Timestamp;
use deuteron_epoch::prefetch_for_write;
use std::collections::VecDeque;

/// So many are looked at together, once as many have come after them: few enough that all is in the second-level cache still.
#[cfg(not(any(test, loom, shuttle)))]
const BATCH: usize = 128;
/// What is rare becomes common.
#[cfg(any(test, loom, shuttle))]
const BATCH: usize = 4;
/// So many wait while somebody reads as of before. It is enough for one who has lost the processor for some milliseconds.
const WAITING_MAX: usize = 16 * BATCH;
/// So many are asked for before they are looked at.
const AHEAD: usize = 8;
/// No more are let go of at once, as a transaction is waiting.
const AT_ONCE: usize = 4 * BATCH;

/// See the [module](self).
pub(crate) struct Note {
    /// Not to be read through: see the [module](self).
    pub(crate) record: *const Record,
    /// The version that was written and the one beneath. Likewise.
    versions: [*const Version; 2],
    pub(crate) hash: KeyHash,
    /// When the writer read: its commit is later.
    pub(crate) at: Timestamp,
}

impl Note {
    /// Asks for the record and its versions.
    pub(crate) fn prefetch(&self) {
        prefetch_for_write(self.record);
        self.versions.into_iter().for_each(|version| prefetch(version.cast()));
    }
}

/// See the [module](self).
#[derive(Default)]
pub(crate) struct Superseded {
    noted: Vec<Note>,
    /// Those before, oldest first.
    due: VecDeque<Note>,
}

impl Superseded {
    /// A transaction that reads at `at` has written the first of `versions` above the second in `record`. Whether there are so many that those that
    /// [are due](Superseded::take_due) should be looked at, and then [others](Superseded::turn).
    #[inline]
    pub(crate) fn note(&mut self, record: &Record, versions: [*const Version; 2], at: Timestamp) -> bool {
        self.noted.push(Note { record, versions, hash: record.hash(), at });
        self.noted.len() >= BATCH
    }

    /// When the newest of those that are due was written.
    pub(crate) fn due_at(&self) -> Option<Timestamp> {
        self.due.back().map(|note| note.at)
    }

    /// Takes those that were written before `horizon`, oldest first, and has `visit` look at each; not all at once, if there are many. What it will look at
    /// is asked for by `prefetch`.
    pub(crate) fn take_due(
        &mut self,
        horizon: Timestamp,
        prefetch: impl Fn(&Note),
        mut visit: impl FnMut(&Note),
    ) {
        let count = self.due.iter().take(AT_ONCE).take_while(|note| note.at < horizon).count();
        self.due.iter().take(count.min(AHEAD)).for_each(&prefetch);
        for index in 0..count {
            if index + AHEAD < count {
                prefetch(&self.due[index + AHEAD]);
            }
            visit(&self.due[index]);
        }
        self.due.drain(..count);
    }

    /// The last batch is due from now on. Of those before it the oldest are forgotten, if there are too many.
    pub(crate) fn turn(&mut self) {
        self.due.extend(self.noted.drain(..));
        let forgotten = self.due.len().saturating_sub(WAITING_MAX);
        self.due.drain(..forgotten);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::TcOptions;
    use crate::test_bed::{Bed, TABLE, bed, roomy};
    use deuteron_log::LogOptions;
    use std::sync::Arc;

    fn written(bed: &Bed, keys: std::ops::Range<u32>) {
        for key in keys {
            bed.put(&key.to_be_bytes(), b"a value");
        }
    }

    /// One whose memory fills, but nothing needs to be evicted.
    fn filling() -> Arc<Bed> {
        let options = TcOptions { memory_bytes: 64 << 20, ..TcOptions::default() };
        let log = LogOptions { ring_bytes: 8 << 20, ..LogOptions::default() };
        let bed = bed(options, &log, deuteron_proxy::Options::default());
        let account = &bed.tc().core.account;
        account.add((account.budget() / 8 * 7 + 1 - account.used()) as usize);
        bed
    }

    #[test]
    fn what_was_superseded_stays_while_there_is_room() {
        let bed = roomy();
        (0..2).for_each(|_| written(&bed, 0..2_000));
        assert_eq!(bed.tc().statistics().versions_dropped, 0);
        // The next write does it.
        written(&bed, 0..2_000);
        bed.tc().core.horizon();
        written(&bed, 0..2_000);
        assert!(bed.tc().statistics().versions_dropped >= 2_000);
    }

    #[test]
    fn what_was_superseded_goes_without_a_collector_and_a_second_write() {
        let bed = filling();
        written(&bed, 0..10_000);
        let (used, dropped) = (bed.tc().core.account.used(), bed.tc().statistics().versions_dropped);
        // The collector does nothing meanwhile.
        written(&bed, 0..10_000);
        let dropped = bed.tc().statistics().versions_dropped - dropped;
        assert!((10_000 - 2 * BATCH as u64..=10_000).contains(&dropped), "{dropped} of 10000");
        let more = bed.tc().core.account.used() - used;
        assert!(more < used / 10, "{more} bytes more than {used}");
    }

    #[test]
    fn what_somebody_may_read_stays_and_what_there_is_no_place_for_is_forgotten() {
        let bed = filling();
        written(&bed, 0..5_000);
        let mut reader = bed.begin();
        assert!(reader.get(TABLE, &7_u32.to_be_bytes()).unwrap().is_some());
        let dropped = bed.tc().statistics().versions_dropped;
        for key in 0..5_000_u32 {
            bed.put(&key.to_be_bytes(), b"a newer one");
        }
        assert_eq!(bed.tc().statistics().versions_dropped, dropped);
        let seen = reader.get(TABLE, &4_999_u32.to_be_bytes()).unwrap();
        assert_eq!(seen.as_deref(), Some(&b"a value"[..]));
        drop(reader);
        // Nothing is beneath these; but with what is written above them the others are looked at, the last of which are known still.
        written(&bed, 10_000..10_000 + 5 * BATCH as u32);
        assert_eq!(bed.tc().statistics().versions_dropped, dropped);
        written(&bed, 10_000..10_000 + 5 * BATCH as u32);
        let dropped = bed.tc().statistics().versions_dropped - dropped;
        let known = WAITING_MAX as u64;
        assert!((known..=known + 5 * BATCH as u64).contains(&dropped), "{dropped}");
    }

    /// A note outlives its record, and what comes to lie where that was is maintained like any other.
    #[test]
    fn what_has_been_evicted_meanwhile_is_not_read_through() {
        let bed = filling();
        let core = &bed.tc().core;
        // Twice, so that there are notes; and nobody looks for the horizon.
        (0..2).for_each(|_| written(&bed, 0..1_000));
        let dropped = bed.tc().statistics().versions_dropped;
        bed.settle();
        for key in 0..1_000_u32 {
            let guard = core.epochs.pin();
            let key = key.to_be_bytes();
            let record = core.table.find(core.table.key(TABLE, &key), &guard).expect("is there");
            core.maintain(&record, core.horizon(), &guard);
            assert!(core.evict(&record, &guard));
        }
        core.epochs.collect();
        assert!(bed.tc().statistics().versions_dropped > dropped);
        // Where they were, others come to lie.
        (0..2).for_each(|_| written(&bed, 500..2_500));
        for key in 0..2_500_u32 {
            assert_eq!(bed.get(&key.to_be_bytes()).as_deref(), Some(&b"a value"[..]));
        }
    }
}
