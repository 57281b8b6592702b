//! [`Statistics`]: what the store says of itself; and how long it takes, [`Histograms`].

use deuteron_histogram::{Distribution, Histogram};
use std::sync::atomic::{AtomicU64, Ordering};

/// One counter; touched on slow paths only.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        // Relaxed: nothing depends on it.
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Default)]
        pub(crate) struct Counters { $(pub(crate) $name: Counter,)* }

        /// Figures of a store since it was opened, and of its state now (the first nine figures).
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Statistics {
            /// Bytes of resident pages.
            pub memory_bytes: u64,
            /// Page identifiers ever given out.
            pub page_ids: u64,
            /// Pages with changes that no flush has taken.
            pub dirty_pages: u64,
            /// Segment files.
            pub segments: u64,
            /// Those of them in which nothing is live; the next checkpoint removes most of them.
            pub dead_segments: u64,
            /// Bytes of segment files, spare ones included.
            pub disk_bytes: u64,
            /// Of these: of dead segments that are kept to become the next ones.
            pub spare_bytes: u64,
            /// Bytes of live fragments.
            pub live_bytes: u64,
            /// Reads that the device does at the same time; 1 if one after the other.
            pub reads_at_once: u64,
            /// Reads of fragments so far, those of neighbours being one.
            pub reads: u64,
            /// Their bytes.
            pub bytes_of_reads: u64,
            /// Segments made of the files of dead ones.
            pub segments_recycled: u64,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counters {
            pub(crate) fn fill(&self, statistics: &mut Statistics) {
                $(statistics.$name = self.$name.get();)*
            }
        }

        impl Statistics {
            /// All figures with their names, in a fixed order.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![
                    ("memory_bytes", self.memory_bytes),
                    ("page_ids", self.page_ids),
                    ("dirty_pages", self.dirty_pages),
                    ("segments", self.segments),
                    ("dead_segments", self.dead_segments),
                    ("disk_bytes", self.disk_bytes),
                    ("spare_bytes", self.spare_bytes),
                    ("live_bytes", self.live_bytes),
                    ("reads_at_once", self.reads_at_once),
                    ("reads", self.reads),
                    ("bytes_of_reads", self.bytes_of_reads),
                    ("segments_recycled", self.segments_recycled),
                    $((stringify!($name), self.$name),)*
                ]
            }
        }
    };
}

counters! {
    /// Bytes of flush buffers and images written: the sum of the next five.
    bytes_written,
    /// Of these: fragments with what had changed of a page.
    bytes_flushed,
    /// Of these: fragments with whole pages that others had been written of before.
    bytes_rewritten,
    /// Of these: fragments with whole pages that the cleaner wanted moved.
    bytes_cleaned,
    /// Of these: headers of flush buffers, and what fills them up.
    bytes_padded,
    /// Of these: images of the mapping table.
    bytes_of_images,
    /// Flush buffers written.
    buffers_written,
    /// Fragments written with deltas only.
    delta_fragments_written,
    /// Fragments written with the whole page.
    full_fragments_written,
    /// Full fragments written with their payloads compressed.
    fragments_compressed,
    /// Bytes of payloads that this has saved.
    bytes_compressed_away,
    /// Pages that a flush left for later because they were held.
    flushes_held,
    /// Pages loaded.
    loads,
    /// Times that several pages were loaded together, or read for [excerpts](crate::Llama::excerpts).
    loads_together,
    /// Times that pages were read together ahead of the flush that needed them.
    rows_prepared,
    /// Their pages.
    rows_pages,
    /// Times that a page was waited for that another thread was loading.
    loads_awaited,
    /// Times that of a page only what may hold one key was read, past the cache.
    excerpts,
    /// Fragments that this has spared.
    fragments_spared,
    /// Fragments read.
    fragments_read,
    /// Bytes of fragments read.
    bytes_read,
    /// Pages that left memory.
    pages_evicted,
    /// Pages whose flushed part left memory under deltas that stay.
    pages_evicted_in_part,
    /// Pages that were copied to where they take no more than they need.
    pages_packed,
    /// Checkpoints completed.
    checkpoints,
    /// Of these: with images of every page, not only of what had changed.
    images_whole,
    /// Segments that the cleaner has worked on.
    segments_cleaned,
    /// Their bytes.
    cleaned_bytes,
    /// Bytes that were live in them: what cleaning had to write to gain the rest.
    cleaned_live_bytes,
    /// Pages written anew for the cleaner.
    pages_relocated,
    /// Of these: to segments of pages that have not changed for long.
    pages_kept_apart,
    /// Dead segments given up.
    segments_removed,
    /// Pages freed since a durable page had taken over what they held.
    pages_freed,
    /// Compare-and-swaps of the mapping table that were lost to another thread: of upserts, consolidations, evictions and loads.
    mapping_lost,
}

macro_rules! histograms {
    ($($(#[$doc:meta])* $name:ident = $new:expr),* $(,)?) => {
        /// Of what does I/O or waits for it.
        pub(crate) struct Histograms { $($(#[$doc])* pub(crate) $name: Histogram,)* }

        impl Default for Histograms {
            fn default() -> Histograms {
                Histograms { $($name: $new,)* }
            }
        }

        impl Histograms {
            /// All of them with their names, in a fixed order.
            pub(crate) fn read(&self) -> Vec<(&'static str, Distribution)> {
                vec![$((stringify!($name), self.$name.read()),)*]
            }
        }
    };
}

histograms! {
    /// Of each of the `loads`, from when its reads are asked for to its installation. Of several that are loaded together those that come later wait for the others, too.
    load_nanoseconds = Histogram::new(),
    /// Of each of the `loads_awaited`.
    load_wait_nanoseconds = Histogram::new(),
    /// Of each of the `excerpts`, as of a load.
    excerpt_nanoseconds = Histogram::new(),
    /// Of each [`Llama::flush_step`](crate::Llama::flush_step) that took pages: it prepares them, which may take reads, and as a rule writes a buffer.
    flush_step_nanoseconds = Histogram::new(),
    /// Of each of the `buffers_written`: until it was durable and somebody took notice.
    buffer_write_nanoseconds = Histogram::new(),
    /// Of each [`Llama::clean_step`](crate::Llama::clean_step) that moved pages.
    clean_step_nanoseconds = Histogram::new(),
    /// What was live in each of the `segments_cleaned`, as a share of its file: the yield of its cleaning is the rest.
    cleaned_live_percent = Histogram::up_to(100),
    /// Of each of the `checkpoints`, from [`Llama::checkpoint_begin`](crate::Llama::checkpoint_begin) or [`Llama::image_begin`](crate::Llama::image_begin) until its image was durable.
    image_nanoseconds = Histogram::new(),
}
