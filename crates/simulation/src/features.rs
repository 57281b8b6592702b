//! Features: what a run may do and may meet. Each seed has some and not others, since what is rare beside everything else
//! is common where the rest is missing (swarm testing: Groce et al., ISSTA 2012).

use deuteron::device::simulated::Random;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Scans both ways, with and without limits.
    Scan,
    /// Several reads at once.
    GetMany,
    /// Reads with the intent to write.
    ForUpdate,
    /// Deletes.
    Delete,
    /// Deletes of ranges.
    DeleteRange,
    /// Adds, and adds that look at the sum.
    Add,
    /// Appends.
    Append,
    /// Compare-and-set.
    CompareAndSet,
    /// Savepoints and rollbacks.
    Savepoints,
    /// Transactions that are declared to read only.
    ReadOnly,
    /// Reads of the past.
    Past,
    /// Snapshot isolation.
    Snapshot,
    /// Read committed.
    ReadCommitted,
    /// Deadlines.
    Deadlines,
    /// Cancelled commits.
    Cancellation,
    /// Whole transactions by [`deuteron::Db::transact_with`] and [`deuteron::Transaction::commit`].
    Whole,
    /// Values in chunks.
    LongValues,
    /// Adds and appends to what is no integer, or too long.
    WrongValues,
    /// Hints of what will be read.
    Prefetch,
    /// Pages are compressed.
    Compression,
    /// Pure timestamp order instead of pushes.
    TimestampOrder,
    /// Commits that are durable later.
    Delayed,
    /// Commits that are durable some time.
    NoDurability,
    /// A small limit on the log that a writer pins.
    WriterLimit,
    /// Sizes of buffers, pages and tables drawn from the seed.
    Sizes,
    /// Duties in an order of the seed's, not in rounds.
    Duties,
    /// Tables loaded in one piece.
    LoadTable,
    /// Tables dropped.
    DropTable,
    /// Backups, restored and compared.
    Backup,
    /// Compaction.
    Compact,
    /// Checkpoints on demand.
    Checkpoint,
    /// Verification while others work.
    Check,
    /// Closed and opened again, with other options.
    Reopen,
    /// Power cuts, at any I/O.
    Crashes,
    /// Power cuts while recovering, up to three deep.
    RecoveryCrashes,
    /// Device errors: refused, half done, done and lost.
    Errors,
    /// The disk fills up.
    FullDisk,
    /// The device does something else than it says: lost, short and misdirected writes, stale reads, flipped bits, syncs that lie.
    Lies,
    /// The device takes seconds.
    Slow,
}

use Feature as F;

/// All of them, with the names of the command line, and how many of four seeds have them.
const ALL: &[(Feature, &str, u64)] = &[
    (F::Scan, "scan", 3),
    (F::GetMany, "get-many", 2),
    (F::ForUpdate, "for-update", 2),
    (F::Delete, "delete", 3),
    (F::DeleteRange, "delete-range", 1),
    (F::Add, "add", 2),
    (F::Append, "append", 2),
    (F::CompareAndSet, "compare-and-set", 2),
    (F::Savepoints, "savepoints", 2),
    (F::ReadOnly, "read-only", 2),
    (F::Past, "past", 1),
    (F::Snapshot, "snapshot", 2),
    (F::ReadCommitted, "read-committed", 1),
    (F::Deadlines, "deadlines", 1),
    (F::Cancellation, "cancellation", 1),
    (F::Whole, "whole", 2),
    (F::LongValues, "long-values", 1),
    (F::WrongValues, "wrong-values", 1),
    (F::Prefetch, "prefetch", 1),
    (F::Compression, "compression", 2),
    (F::TimestampOrder, "timestamp-order", 1),
    (F::Delayed, "delayed", 2),
    (F::NoDurability, "no-durability", 2),
    (F::WriterLimit, "writer-limit", 1),
    (F::Sizes, "sizes", 3),
    (F::Duties, "duties", 3),
    (F::LoadTable, "load-table", 1),
    (F::DropTable, "drop-table", 1),
    (F::Backup, "backup", 1),
    (F::Compact, "compact", 1),
    (F::Checkpoint, "checkpoint", 2),
    (F::Check, "check", 1),
    (F::Reopen, "reopen", 2),
    (F::Crashes, "crashes", 3),
    (F::RecoveryCrashes, "recovery-crashes", 2),
    (F::Errors, "errors", 1),
    (F::FullDisk, "full-disk", 1),
    (F::Lies, "lies", 1),
    (F::Slow, "slow", 1),
];

/// A set of features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features(u64);

impl Features {
    /// The features of a seed.
    pub fn draw(random: &mut Random) -> Features {
        let drawn = ALL.iter().filter(|(.., quarters)| random.below(4) < *quarters);
        Features(drawn.fold(0, |set, (feature, ..)| set | Features::bit(*feature)))
    }

    fn bit(feature: Feature) -> u64 {
        1 << feature as u32
    }

    /// Whether it has this one.
    pub fn has(self, feature: Feature) -> bool {
        self.0 & Features::bit(feature) != 0
    }

    /// The set with this one.
    #[must_use]
    pub fn with(self, feature: Feature) -> Features {
        Features(self.0 | Features::bit(feature))
    }

    /// The set without this one.
    #[must_use]
    pub fn without(self, feature: Feature) -> Features {
        Features(self.0 & !Features::bit(feature))
    }

    /// Those that are in the set.
    pub fn iter(self) -> impl Iterator<Item = Feature> {
        ALL.iter().map(|(feature, ..)| *feature).filter(move |feature| self.has(*feature))
    }

    /// All that there are.
    pub fn all() -> Vec<Feature> {
        ALL.iter().map(|(feature, ..)| *feature).collect()
    }

    /// The name of a feature.
    pub fn name(feature: Feature) -> &'static str {
        ALL[feature as usize].1
    }

    /// The feature of a name.
    pub fn named(name: &str) -> Option<Feature> {
        ALL.iter().find(|(_, known, _)| *known == name).map(|(feature, ..)| *feature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_stands_at_its_place() {
        for (index, (feature, name, _)) in ALL.iter().enumerate() {
            assert_eq!((*feature as usize, Features::named(name)), (index, Some(*feature)));
        }
    }

    #[test]
    fn seeds_differ_in_their_features() {
        let one = Features::draw(&mut Random::new(1));
        assert_ne!(one, Features::draw(&mut Random::new(2)));
        let feature = one.iter().next().unwrap();
        assert!(!one.without(feature).has(feature) && one.without(feature).with(feature) == one);
    }
}
