//! [`Counters`]: how often the mechanisms of a tree were at work. Only rare events are counted, so that no hot
//! path writes a shared line.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        /// What a tree has done since it was opened.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct TreeStatistics { $($(#[$doc])* pub $name: u64,)* }

        impl Counters {
            pub(crate) fn read(&self) -> TreeStatistics {
                TreeStatistics { $($name: self.$name.get(),)* }
            }
        }

        impl TreeStatistics {
            /// Name and value of each counter, in a fixed order.
            pub fn counters(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }

            /// The sum of two trees' counters.
            #[must_use]
            pub fn plus(self, other: TreeStatistics) -> TreeStatistics {
                TreeStatistics { $($name: self.$name + other.$name,)* }
            }
        }
    };
}

counters! {
    /// Pages rewritten as one base.
    consolidations,
    /// Consolidations whose compare-and-swap was lost, and whose work was dropped.
    consolidations_lost,
    /// Leaves that came of splits.
    leaf_splits,
    /// Inner nodes that came of splits.
    inner_splits,
    /// Inner nodes that were merged into their left neighbours, or taken over by the root.
    inner_merges,
    /// Leaves that were merged into their left neighbours.
    leaf_merges,
    /// Upserts that lost a compare-and-swap and tried again.
    upserts_lost,
    /// Deltas put on pages that were not in memory.
    blind_deltas,
    /// Times that a search met a page before the separator of its split was posted, and posted it.
    separators_helped,
    /// Times that an upsert found its chain at the limit.
    back_pressure,
    /// Compare-and-swaps of inner nodes that were lost to another thread.
    index_lost,
    /// Memory of the inner nodes in bytes.
    index_bytes,
}

/// A number that only grows.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
