//! What a store says of itself.

use deuteron_histogram::Distribution;

/// Sizes in bytes, the counters of every mechanism, and how long it took, since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Memory of pages, indexes, and garbage not yet freed.
    pub memory_bytes: u64,
    /// The budget that it was opened with.
    pub memory_budget_bytes: u64,
    /// Bytes of its files.
    pub disk_bytes: u64,
    /// Bytes written to them.
    pub bytes_written: u64,
    /// The counters of every mechanism, in a fixed order.
    pub counters: Vec<(&'static str, u64)>,
    /// How long, or how much, with the unit last in the name, in a fixed order: the times of what does I/O or waits for room, and a few lengths and shares.
    pub distributions: Vec<(&'static str, Distribution)>,
}

impl Stats {
    /// The counter called `name`, or `None` if there is none.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// assert_eq!(store.stats().counter("loads"), Some(0));
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|(known, _)| *known == name).map(|&(_, value)| value)
    }

    /// The distribution called `name`, or `None` if there is none.
    ///
    /// ```
    /// # let store = deuteron_store::Options::tiny_for_tests()
    /// #     .open_in(std::sync::Arc::new(deuteron_store::device::MemoryDirectory::new()))?;
    /// store.persist()?;
    /// let stats = store.stats();
    /// let writes = stats.distribution("buffer_write_nanoseconds").expect("there is one");
    /// println!("{} writes, of which a half took {} ns at most", writes.count(), writes.quantile(0.5));
    /// # assert_eq!(Some(writes.count()), stats.counter("buffers_written"));
    /// # store.close()?;
    /// # Ok::<(), deuteron_store::Error>(())
    /// ```
    pub fn distribution(&self, name: &str) -> Option<&Distribution> {
        self.distributions.iter().find(|(known, _)| *known == name).map(|(_, distribution)| distribution)
    }
}

/// What a [check](crate::Store::check) has looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Tables, the one of the tables' names included.
    pub tables: u64,
    /// Pages.
    pub pages: u64,
    /// Records in them.
    pub records: u64,
}
