//! [`BwTreeDc`]: tables as Bw-trees in one store.

use crate::drop_table::Dropped;
use crate::error;
use crate::large_values::Claims;
use crate::options::DcOptions;
use crate::reclaim::Merged;
use crate::scan::AddToBatch;
use crate::stored_value::{self, is_table};
use crate::sweep::Sweeps;
use crate::sync::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering, RwLock, yield_now};
use crate::table_directory::TableDirectory;
use crate::tombstones::Tombstones;
use crate::user_data;
use deuteron_bwtree::{Check, Cursor, Miss, Tree, TreeReport, TreeStatistics, prefetch_bytes};
use deuteron_contract::{
    DataComponent, DcError, DcStatistics, Direction, Lsn, Operation, Record, ScanBatch, ScanRequest, TableId,
    Timestamp,
};
use deuteron_device::Directory;
use deuteron_epoch::Epochs;
use deuteron_histogram::{Distribution, Histogram};
use deuteron_llama::{ByteCounter, CheckpointProgress, Evicted, FlushProgress, Llama, LlamaError, PageId};
use std::ops::Bound;
use std::sync::{Arc, PoisonError, Weak};

/// What a tree takes besides its index: itself, its histogram, and its place in the directory.
const TREE_BYTES: u64 = size_of::<Tree>() as u64 + 512;

/// Pages that are loaded at the same time: what a device takes at once.
const LOADS_AT_ONCE: usize = 64;
/// So many operations before their turn the bytes of one that is to be applied are asked for.
const OPERATIONS_AHEAD: usize = 12;
/// Leaves that a scan loads at its first miss; twice as many at each further one.
const LEAVES_AHEAD_FIRST: usize = 2;
/// Leaves that a scan loads at a miss at most.
const LEAVES_AHEAD_MAX: usize = 32;
/// A leaf is taken to have so many records, where it matters how many leaves a scan of so many records comes to.
const LEAF_RECORDS_MIN: usize = 16;

/// Flushes that come before the clock hand goes on where nearly everything is unflushed.
const FLUSHES_INSTEAD: u64 = 16;
/// Who has looked for pages that are in the way, and has moved less than this, leaves it for so many steps: it is a look at thousands of pages.
const PACKED_BYTES_MIN: u64 = 64 << 10;
const PACK_RESTS: u32 = 16;
/// Over the budget by such a part of it, whoever brings what must be flushed does one step of that and leaves the rest to whoever comes next: else one of
/// them would flush what all of them bring. By more, all of it.
const LITTLE_EXCESS: u64 = 64;

/// One step of background work in so many is for all that there is to do, also if memory is short: where it stays so, what comes after it would never be done.
const STEPS_A_TURN: u64 = 8;

/// Which mark of the store is the end of stable log.
const END_OF_STABLE_LOG: usize = 0;
/// And which the newest timestamp, or one of the next so many.
const NEWEST_TIMESTAMP: usize = 1;
const TIMESTAMPS_AHEAD: u64 = 1 << 12;

/// An operation at `lsn` is about to be applied, and the log is stable up to `end`, if there is one.
#[inline]
pub(crate) fn assert_stable(lsn: Lsn, end: u64) {
    assert!(
        end == 0 || lsn.0 < end,
        "an operation at {lsn} was applied before the log is stable up to there ({end})"
    );
}

/// A data component. See the [crate documentation](crate).
pub struct BwTreeDc {
    pub(crate) options: DcOptions,
    pub(crate) llama: Arc<Llama>,
    pub(crate) tables: TableDirectory,
    pub(crate) redo_scan_start_point: AtomicU64,
    /// Held during a checkpoint: there is one at a time.
    pub(crate) checkpointing: Mutex<Tombstones>,
    /// How long [`BwTreeDc::relieve`] and [`BwTreeDc::checkpoint`] took each time.
    room_times: Histogram,
    checkpoint_times: Histogram,
    /// Bytes of keys and values applied.
    pub(crate) applied_bytes: ByteCounter,
    /// As many had been applied when space was looked after last, and how many times ago it was different.
    pub(crate) applied_at_reclaim: AtomicU64,
    pub(crate) idle_steps: AtomicU64,
    /// As many had been applied when the last round of flushing began.
    pub(crate) applied_at_round: AtomicU64,
    /// About how many pages the present round has still to write; 0 between rounds.
    pub(crate) round_pages: AtomicU64,
    /// Buffers flushed.
    pub(crate) flushes: AtomicU64,
    /// The last flush has found no room on the device.
    is_device_full: AtomicBool,
    /// The clock hand goes on when so many have been.
    evict_from_flush: AtomicU64,
    /// How many steps come before the next look for pages that are in the way.
    pack_rests: AtomicU32,
    /// From so many flushes on the next step of cleaning is due.
    pub(crate) clean_at: AtomicU64,
    /// Steps of background work.
    pub(crate) steps: AtomicU64,
    /// Images for which there was no room, since something was flushed or cleaned last.
    pub(crate) images_refused: AtomicU64,
    /// The tables that were dropped, ever, and how far each is emptied.
    pub(crate) dropped: RwLock<Dropped>,
    /// Which tree is looked after next.
    pub(crate) tidy_hand: AtomicUsize,
    pub(crate) merged: Merged,
    /// How long the chunks of large values are, and what is no longer is none.
    pub(crate) chunk_bytes: usize,
    pub(crate) claims: Claims,
    pub(crate) sweeps: Sweeps,
}

/// What [`BwTreeDc::check`] has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DcReport {
    /// Tables.
    pub tables: u64,
    /// All their trees together.
    pub trees: TreeReport,
    /// Headers and chunks of large values, also of those that are about to be removed.
    pub chunks: u64,
}

impl BwTreeDc {
    /// Opens the component in `directory`, or creates it. All recovery there is: the newest checkpoint, what was flushed
    /// since, and the indexes rebuilt; no page is read. The caller then replays the log from
    /// [`recovered_redo_scan_start_point`](DataComponent::recovered_redo_scan_start_point).
    ///
    /// The caller holds the directory's [lock](Directory::lock), if it could be opened twice.
    ///
    /// # Errors
    /// [`DcError::Device`] if the device fails or an option cannot be; [`DcError::Corrupt`].
    pub fn open(
        directory: Arc<dyn Directory>,
        epochs: Arc<Epochs>,
        options: DcOptions,
    ) -> Result<Arc<BwTreeDc>, DcError> {
        options.validate()?;
        let (llama, recovered) = Llama::open(directory, options.store(), epochs)
            .map_err(|error| error::store("open the store", error))?;
        let page_bytes_max = options.tree.page_bytes_max;
        let record_bytes_max = options.tree.value_bytes_max(llama.page_bytes_max());
        if record_bytes_max < page_bytes_max {
            let refused = LlamaError::Options {
                setting: "segment_bytes",
                requirement: "large enough for the pages and deltas of the trees",
            };
            return Err(error::store("open the store", refused));
        }
        let (redo_scan_start_point, dropped) = user_data::decode(&recovered.user_data)?;
        let dc = BwTreeDc {
            chunk_bytes: options.chunk_bytes.min(record_bytes_max - stored_value::ESCAPE_BYTES),
            claims: Claims::default(),
            sweeps: Sweeps::default(),
            applied_bytes: ByteCounter::new(options.unflushed_bytes_max()),
            options,
            llama: Arc::new(llama),
            tables: TableDirectory::new(),
            redo_scan_start_point: AtomicU64::new(redo_scan_start_point),
            checkpointing: Mutex::default(),
            room_times: Histogram::new(),
            checkpoint_times: Histogram::new(),
            applied_at_reclaim: AtomicU64::new(0),
            idle_steps: AtomicU64::new(0),
            applied_at_round: AtomicU64::new(0),
            round_pages: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            is_device_full: AtomicBool::new(false),
            evict_from_flush: AtomicU64::new(0),
            pack_rests: AtomicU32::new(0),
            clean_at: AtomicU64::new(0),
            steps: AtomicU64::new(0),
            images_refused: AtomicU64::new(0),
            dropped: RwLock::new(Dropped::remembered(&dropped)),
            tidy_hand: AtomicUsize::new(0),
            merged: Merged::default(),
        };
        let mut pages = recovered.pages.into_iter().peekable();
        while let Some(first) = pages.next() {
            let table = first.tree;
            let others = std::iter::from_fn(|| pages.next_if(|page| page.tree == table));
            let leaves = std::iter::once(first).chain(others).map(|page| (page.low_key, page.page)).collect();
            dc.recover_table(table, leaves)?;
        }
        dropped.iter().filter_map(|&table| dc.tables.get(table)).for_each(Tree::give_up);
        dc.recover_sweeps();
        let dc = Arc::new(dc);
        // Weak, as the component holds on to the store: blind upserts are merged before they are written again.
        let access_method: Weak<BwTreeDc> = Arc::downgrade(&dc);
        dc.llama.set_access_method(access_method);
        Ok(dc)
    }

    /// The tree of a table, if there is one.
    pub(crate) fn tree_of(&self, table: u32) -> Option<&Tree> {
        self.tables.get(table)
    }

    /// The tables.
    pub(crate) fn directory(&self) -> &TableDirectory {
        &self.tables
    }

    /// Held during a checkpoint.
    pub(crate) fn checkpointing(&self) -> &Mutex<Tombstones> {
        &self.checkpointing
    }

    fn recover_table(&self, table: u32, leaves: Vec<(Vec<u8>, PageId)>) -> Result<(), DcError> {
        let tree = Tree::recover(Arc::clone(&self.llama), table, &leaves, self.options.tree.clone())
            .map_err(|error| error::tree("recover the tables", error))?;
        self.tables.get_or_create(table, || tree);
        Ok(())
    }

    /// The settings.
    pub fn options(&self) -> &DcOptions {
        &self.options
    }

    /// The store below.
    pub fn llama(&self) -> &Arc<Llama> {
        &self.llama
    }

    /// The longest key in bytes.
    pub fn key_bytes_max(&self) -> usize {
        deuteron_bwtree::KEY_BYTES_MAX
    }

    /// The longest value in bytes.
    pub fn value_bytes_max(&self) -> usize {
        self.options.value_bytes_max
    }

    /// The identifiers of all tables that were not dropped, ascending.
    pub fn tables(&self) -> Vec<TableId> {
        let trees = self.tables.all().into_iter().filter(|tree| !tree.is_given_up() && is_table(tree.id()));
        trees.map(|tree| TableId(tree.id())).collect()
    }

    /// The tree of a table that was not dropped, if there is one.
    pub(crate) fn live_tree(&self, table: TableId) -> Option<&Tree> {
        self.tables.get(table.0).filter(|tree| !tree.is_given_up())
    }

    /// The tree of a table that is written to, a new one if there is none. `None` if the table was dropped: nobody can ask for it any more, but a replay may
    /// bring what was written to it.
    pub(crate) fn tree_to_write(&self, table: TableId) -> Option<&Tree> {
        let create = || {
            let tree = Tree::create(Arc::clone(&self.llama), table.0, self.options.tree.clone());
            // Dropped since somebody has looked.
            if self.dropped().contains(table.0) {
                tree.give_up();
            }
            tree
        };
        let tree = match self.tables.get(table.0) {
            Some(tree) => tree,
            None if self.is_dropped(table) => return None,
            None => self.tables.get_or_create(table.0, create),
        };
        (!tree.is_given_up()).then_some(tree)
    }

    /// Bytes of memory that pages take, of the budget [`DcOptions::memory_bytes`](crate::DcOptions).
    ///
    /// ```
    /// # use deuteron_dc::{BwTreeDc, DcOptions};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// assert!(dc.memory_bytes() < 1 << 20);
    /// # Ok::<(), deuteron_contract::DcError>(())
    /// ```
    pub fn memory_bytes(&self) -> u64 {
        self.llama.memory_bytes()
    }

    /// Bytes of memory that the mapping table and the indexes take: they are always in memory, and come before the pages in the budget.
    ///
    /// ```
    /// # use deuteron_dc::{BwTreeDc, DcOptions};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// assert!(dc.tables_bytes() < 1 << 20);
    /// # Ok::<(), deuteron_contract::DcError>(())
    /// ```
    pub fn tables_bytes(&self) -> u64 {
        self.llama.tables_bytes() + self.index_bytes()
    }

    /// About the budget with which no page would ever have to leave, in bytes.
    ///
    /// ```
    /// # use deuteron_dc::{BwTreeDc, DcOptions};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// assert!(dc.memory_budget_wanted() >= dc.memory_bytes() + dc.tables_bytes());
    /// # Ok::<(), deuteron_contract::DcError>(())
    /// ```
    pub fn memory_budget_wanted(&self) -> u64 {
        crate::options::budget_of_pages(self.llama.whole_bytes() + self.tables_bytes())
    }

    /// The budget with which just no page would have to leave, in bytes: for the pages, and what is counted beside them.
    ///
    /// ```
    /// # use deuteron_dc::{BwTreeDc, DcOptions};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// assert!(dc.memory_budget_taken() >= dc.memory_bytes());
    /// # Ok::<(), deuteron_contract::DcError>(())
    /// ```
    pub fn memory_budget_taken(&self) -> u64 {
        crate::options::budget_of_pages(self.llama.memory_budget_taken())
    }

    /// Changes the budget that [`DcOptions::memory_bytes`](crate::DcOptions) has set at first, and counts anew what is taken of it. How much may
    /// be unflushed stays.
    ///
    /// ```
    /// # use deuteron_dc::{BwTreeDc, DcOptions};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// dc.set_memory_budget(512 << 20);
    /// # Ok::<(), deuteron_contract::DcError>(())
    /// ```
    pub fn set_memory_budget(&self, bytes: u64) {
        self.llama.set_memory_budget(crate::options::pages_budget(bytes));
        self.recount();
    }

    /// Does one unit of background work, if there is any: evicts when memory is getting short, flushes when too much
    /// is unflushed, takes a checkpoint when a recovery would scan too much, merges underfull pages, empties sparse segments. Whether it did.
    /// One step in eight does one unit for memory, one for what is unflushed and one for space: where memory is always short the last would else never have a turn.
    ///
    /// # Errors
    /// [`DcError`] if the device fails.
    pub fn maintain_step(&self) -> Result<bool, DcError> {
        match self.work_step() {
            // What gives space back comes behind what wants it.
            Err(full @ DcError::DiskFull { .. }) => match self.reclaim_step() {
                Ok(false) | Err(DcError::DiskFull { .. }) => Err(full),
                done => done,
            },
            done => done,
        }
    }

    /// What somebody can do who waits until others have made room: if pages take more memory than they may, reads and consolidates some that a flush would have to read, unless enough
    /// of them wait for it. Whether it did. May block on the device, for some milliseconds; any number of threads at once.
    ///
    /// # Errors
    /// [`DcError::Poisoned`] if no flush will come.
    ///
    /// ```
    /// # use deuteron_dc::{BwTreeDc, DcOptions};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let dc = BwTreeDc::open(directory, deuteron_epoch::Epochs::new(), DcOptions::default())?;
    /// assert!(!dc.help_step()?, "there is memory to spare");
    /// # Ok::<(), deuteron_contract::DcError>(())
    /// ```
    pub fn help_step(&self) -> Result<bool, DcError> {
        if !self.llama.over_budget() {
            return Ok(false);
        }
        let _hurry = self.llama.hurry();
        self.prepare_step()
    }

    /// As [`BwTreeDc::maintain_step`] where there is room.
    fn work_step(&self) -> Result<bool, DcError> {
        if !self.llama.has_spare_memory() {
            self.recount();
        }
        // Relaxed: a matter of turns.
        let is_turn_of_all = self.steps.fetch_add(1, Ordering::Relaxed) % STEPS_A_TURN == STEPS_A_TURN - 1;
        let mut worked = self.image_step()? || self.clean_beside_flushes()?;
        if worked && !is_turn_of_all {
            return Ok(true);
        }
        worked |= self.room_step()?;
        if worked && !is_turn_of_all {
            return Ok(true);
        }
        let applied = self.applied_bytes.about();
        if applied.saturating_sub(self.applied_at_round.load(Ordering::Relaxed))
            > self.options.unflushed_bytes_max()
        {
            // A round writes every page that is dirty now once, and no page because of its last operation.
            self.applied_at_round.fetch_max(applied, Ordering::Relaxed);
            self.begin_round();
        }
        worked |= self.round_pages.load(Ordering::Relaxed) > 0 && self.flush_step()?;
        if worked && !is_turn_of_all {
            return Ok(true);
        }
        if worked {
            // What follows goes further in an idle component.
            self.idle_steps.store(0, Ordering::Relaxed);
        }
        // What cannot be read is told of to those who want to read it, and is not to hinder what goes on beside it.
        let tidied = unless_damaged(self.drop_step())?
            || unless_damaged(self.sweep_step())?
            || unless_damaged(self.tidy_step())?;
        Ok(tidied || self.merged_step() || self.reclaim_step()? || worked)
    }

    /// Makes some room if memory is getting short: a little before the budget is reached, so that those who apply need not do it themselves. Whether there was something to do.
    fn room_step(&self) -> Result<bool, DcError> {
        let (memory, high_water) = (self.llama.memory_bytes(), self.llama.high_water());
        if self.pack(self.llama.untidy_bytes()) {
            return Ok(true);
        }
        if memory <= high_water {
            return Ok(false);
        }
        let evicted = self.evict(memory - high_water);
        // If another thread is flushing, what it will have to read. At least second chances were taken away.
        Ok(evicted.bytes > 0 || self.flush_step()? || self.prepare_step()? || evicted.spared > 0)
    }

    /// Moves pages that are in the way of others, unless that has found little lately; whether it moved any.
    fn pack(&self, untidy_bytes: u64) -> bool {
        // Relaxed: a matter of turns.
        let rests = |left: u32| left.checked_sub(1);
        if untidy_bytes == 0
            || self.pack_rests.fetch_update(Ordering::Relaxed, Ordering::Relaxed, rests).is_ok()
        {
            return false;
        }
        let moved_bytes = self.llama.pack_stranded_step(untidy_bytes);
        if moved_bytes < PACKED_BYTES_MIN.min(untidy_bytes) {
            self.pack_rests.store(PACK_RESTS, Ordering::Relaxed);
        }
        moved_bytes > 0
    }

    /// How far the log is stable: as announced in this life or an earlier one (C5).
    pub(crate) fn end_of_log(&self) -> u64 {
        self.llama.marks()[END_OF_STABLE_LOG]
    }

    /// Operations with this timestamp and lower ones are about to be applied.
    #[inline]
    pub(crate) fn note_newest(&self, newest: Timestamp) {
        let newest = newest.0;
        // Ahead, so that it need not be raised each time (C6).
        let ahead = newest.checked_next_multiple_of(TIMESTAMPS_AHEAD).unwrap_or(newest);
        self.llama.raise_mark(NEWEST_TIMESTAMP, ahead);
    }

    /// Whether `value` is [special](Self::is_special), once it is known that it may be written to `key`.
    #[inline]
    pub(crate) fn check_write(
        &self,
        table: TableId,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<bool, DcError> {
        assert!(is_table(table.0), "tables have identifiers below 2^31");
        let limit = self.key_bytes_max();
        if key.is_empty() || key.len() > limit {
            return Err(DcError::KeySize { found: key.len(), limit });
        }
        let (Some(value), limit) = (value, self.value_bytes_max()) else { return Ok(false) };
        if value.len() > limit {
            return Err(DcError::ValueSize { found: value.len(), limit });
        }
        Ok(self.is_special(value))
    }

    /// Bytes that the trees take, with their indexes.
    fn index_bytes(&self) -> u64 {
        self.tables.all().into_iter().map(|tree| TREE_BYTES + tree.index_bytes()).sum()
    }

    /// Counts anew what is taken from the pages' share of the budget.
    fn recount(&self) {
        let marks: u64 = self.tables.all().into_iter().map(Tree::marks_bytes).sum();
        self.llama.recount(self.index_bytes() + marks);
    }

    /// Flushes one buffer; whether anything was written.
    pub(crate) fn flush_step(&self) -> Result<bool, DcError> {
        let flushed = self.llama.flush_step().map_err(|error| error::store("flush", error));
        // Relaxed: who misses it applies a little more.
        match &flushed {
            Err(DcError::DiskFull { .. }) => self.is_device_full.store(true, Ordering::Relaxed),
            Ok(FlushProgress::Wrote { .. } | FlushProgress::Nothing) => {
                self.is_device_full.store(false, Ordering::Relaxed);
            }
            Ok(FlushProgress::Busy) | Err(_) => {}
        }
        match flushed? {
            FlushProgress::Wrote { pages, .. } => {
                self.flushes.fetch_add(1, Ordering::Relaxed);
                self.images_refused.store(0, Ordering::Relaxed);
                let _ = self.round_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| {
                    Some(left.saturating_sub(pages as u64))
                });
                Ok(true)
            }
            FlushProgress::Nothing => {
                self.evict_from_flush.store(0, Ordering::Relaxed);
                self.round_pages.store(0, Ordering::Relaxed);
                Ok(false)
            }
            FlushProgress::Busy => Ok(false),
        }
    }

    /// Prepares what a flush will have to read; whether there was something.
    fn prepare_step(&self) -> Result<bool, DcError> {
        self.llama.prepare_step().map_err(|error| error::store("read ahead of a flush", error))
    }

    /// Evicts by the clock hand, unless it has found little lately: then a few flushes come first, which evict what they write.
    fn evict(&self, target_bytes: u64) -> Evicted {
        let flushes = self.flushes.load(Ordering::Relaxed);
        if flushes < self.evict_from_flush.load(Ordering::Relaxed) {
            return Evicted { dirty: 1, ..Evicted::default() };
        }
        let evicted = self.llama.evict_step(target_bytes);
        if evicted.bytes < target_bytes && evicted.dirty > evicted.pages + evicted.spared {
            self.evict_from_flush.store(flushes + FLUSHES_INSTEAD, Ordering::Relaxed);
        }
        evicted
    }

    /// Whether there is so much over the budget that who brings more must bring it back himself.
    pub(crate) fn is_far_over_budget(&self) -> bool {
        self.llama.is_over_budget_by(self.options.memory_bytes / LITTLE_EXCESS)
    }

    /// Whether memory is over the budget, and the device had no room when somebody flushed last: what is applied now would only make it more.
    pub(crate) fn is_stuck(&self) -> bool {
        self.is_device_full.load(Ordering::Relaxed) && self.llama.over_budget()
    }

    /// Brings memory back into the budget: the work of [`BwTreeDc::maintain_step`], done by those who need the
    /// memory (paper 5.2). Returns when the budget is kept or nothing more can be done at the moment. Who brings what must be
    /// flushed also waits for a flush that goes on, and does one step only unless it is [far over the budget](BwTreeDc::is_far_over_budget).
    #[cold]
    pub(crate) fn relieve(&self, waits: bool) -> Result<(), DcError> {
        let begun = self.llama.now();
        let relieved = self.make_room(waits);
        self.room_times.record_time(self.llama.now() - begun);
        relieved
    }

    fn make_room(&self, waits: bool) -> Result<(), DcError> {
        // Background work, which counts anew as a rule, may be held up by a checkpoint.
        self.recount();
        let _hurry = waits.then(|| self.llama.hurry());
        // Twice round: once for the second chances, once for what the flush has made evictable.
        let fruitless_max = if waits { 64 } else { 4 };
        let mut fruitless = 0;
        while self.llama.over_budget() && fruitless < fruitless_max {
            let excess = self.llama.memory_bytes().saturating_sub(self.llama.pages_bytes_max());
            // More than the excess, so that not every operation comes here.
            let evicted = self.evict(excess + self.options.memory_bytes / 64);
            if evicted.bytes > 0 {
                fruitless = 0;
            } else if evicted.dirty > 0 {
                // Those who only read leave it to others as long as these are at it. While another thread is writing, what it will have to read.
                let others_write = !waits && self.llama.is_writing();
                if !others_write && self.flush_step()? || waits && self.prepare_step()? {
                    if !self.is_far_over_budget() {
                        return Ok(());
                    }
                } else {
                    fruitless += 1;
                    if waits {
                        self.llama.await_flush();
                    } else {
                        yield_now();
                    }
                }
            } else {
                fruitless += 1;
            }
        }
        Ok(())
    }

    /// Loads a page for `tree`, and makes room for it.
    pub(crate) fn load(&self, tree: &Tree, miss: Miss, context: &str) -> Result<(), DcError> {
        self.make_room_for_reads();
        tree.load(miss.0).map_err(|error| error::tree(context, error))
    }

    /// Makes room for what is loaded next.
    pub(crate) fn make_room_for_reads(&self) {
        if self.llama.over_budget() {
            // What a reader needs is room. That there is something to flush and it cannot be flushed is not its
            // business: whoever applies next will hear of it.
            let _ = self.relieve(false);
        }
    }

    /// Loads several pages for `tree` at once, and makes room for them before. What fails is met by those who need the
    /// page.
    pub(crate) fn load_ahead(&self, tree: &Tree, pages: &[PageId]) {
        self.make_room_for_reads();
        let _ = tree.load_many(pages);
    }

    /// Pages that may be loaded ahead of their use: few enough that the last does not push out the first.
    fn pages_ahead_max(&self) -> usize {
        (self.options.memory_bytes / 8) as usize / self.options.tree.page_bytes_max
    }

    /// Loads the leaf that a scan has missed, and those that it will probably come to next: `leaves` in all, if the scan
    /// is to go so far.
    fn load_leaves(&self, tree: &Tree, cursor: &Cursor, miss: Miss, leaves: usize) -> Result<(), DcError> {
        // Leaves are half full at least, most of them.
        let wanted = cursor.bytes_left() / (self.options.tree.page_bytes_max / 2);
        let wanted = wanted.min(cursor.records_left() / LEAF_RECORDS_MIN);
        let leaves = leaves.min(wanted.saturating_add(1)).min(self.pages_ahead_max());
        if leaves > 1 {
            let mut pages = tree.missing_leaves(cursor, leaves);
            if !pages.contains(&miss.0) {
                pages.push(miss.0);
            }
            if pages.len() > 1 {
                self.load_ahead(tree, &pages);
            }
        }
        self.load(tree, miss, "scan")
    }

    /// Reads everything and verifies it: checksums, formats, bounds, order, links, index. Changes nothing; may be
    /// run while the component is used.
    ///
    /// # Errors
    /// [`DcError::Corrupt`] with the first defect found; [`DcError::Device`].
    pub fn check(&self) -> Result<DcReport, DcError> {
        let mut report = DcReport::default();
        for tree in self.tables.all().into_iter().filter(|tree| !tree.is_given_up()) {
            let mut check = Check::default();
            let found = loop {
                if let Some(found) = check.report() {
                    break *found;
                }
                tree.check_step(&mut check).map_err(|error| error::tree("check a table", error))?;
                if self.llama.over_budget() {
                    let _ = self.relieve(false);
                }
            };
            if is_table(tree.id()) {
                report.tables += 1;
                report.trees.add(&found);
                self.check_values(TableId(tree.id()))?;
            } else {
                report.chunks += found.records;
                // They are no records of anybody's.
                report.trees.add(&TreeReport { records: 0, ..found });
            }
        }
        Ok(report)
    }

    /// Reads everything as a user would, if there may be large values.
    fn check_values(&self, table: TableId) -> Result<(), DcError> {
        if self.live_tree(stored_value::chunk_tree(table)).is_none() {
            return Ok(());
        }
        let (mut lower, mut batch) = (Bound::Unbounded, ScanBatch::new());
        loop {
            let request = ScanRequest {
                table,
                lower: lower.as_ref().map(Vec::as_slice),
                upper: Bound::Unbounded,
                direction: Direction::Forward,
                bytes_max: 64 << 10,
                records_max: usize::MAX,
            };
            self.scan_into(&request, &mut batch)?;
            match batch.last_key() {
                Some(last) if !batch.is_complete() => lower = Bound::Excluded(last.to_vec()),
                _ => return Ok(()),
            }
        }
    }

    /// Makes what was applied before durable. Under [`BwTreeDc::checkpointing`].
    pub(crate) fn checkpoint(&self, lsn: u64) -> Result<(), DcError> {
        let begun = self.llama.now();
        let promise = self.promise(lsn);
        let failed = |error| error::store("take a checkpoint", error);
        let mut round = self.llama.flush_round().map_err(failed)?;
        self.round_is_taken_over();
        loop {
            match self.llama.flush_round_step(&mut round).map_err(failed)? {
                // It may take so long that a recovery would have to scan too much before it is done.
                CheckpointProgress::Wrote { .. } if self.llama.is_image_due() => self.image()?,
                CheckpointProgress::Wrote { .. } => {}
                // Held by splits that other threads are about to finish.
                CheckpointProgress::Blocked { .. } => yield_now(),
                CheckpointProgress::Done => break,
            }
        }
        self.write_image(&promise)?;
        // What had to be flushed before it could be merged has been.
        self.tables.all().iter().for_each(|tree| tree.retry_merges());
        self.checkpoint_times.record_time(self.llama.now() - begun);
        Ok(())
    }

    /// Writes an image of what is durable, at the redo scan start point as it is. Under [`BwTreeDc::checkpointing`].
    pub(crate) fn image(&self) -> Result<(), DcError> {
        self.write_image(&self.promise(self.redo_scan_start_point.load(Ordering::Acquire)))
    }

    /// What an image remembers for the component.
    fn promise(&self, lsn: u64) -> Vec<u8> {
        user_data::encode(lsn, self.dropped().tables())
    }

    fn write_image(&self, promise: &[u8]) -> Result<(), DcError> {
        let failed = |error| error::store("take a checkpoint", error);
        let mut image = loop {
            match self.llama.image_begin(promise) {
                Ok(image) => break image,
                // Somebody uses the store below us.
                Err(LlamaError::CheckpointBusy) => yield_now(),
                Err(error) => return Err(failed(error)),
            }
        };
        // Pages whose flush had begun.
        while self.llama.checkpoint_flush_step(&mut image).map_err(failed)? != CheckpointProgress::Done {
            yield_now();
        }
        let trees = if image.is_whole() { self.tables.all() } else { Vec::new() };
        for tree in trees {
            let mut from = Some(Vec::new());
            while let Some(low) = from {
                // Gathered first: the image is written without a guard.
                let mut leaves = Vec::new();
                from = tree.some_leaves(&low, |low, page| leaves.push((low.to_vec(), page)));
                for (low, page) in leaves {
                    self.llama.checkpoint_add(&mut image, tree.id(), &low, page).map_err(failed)?;
                }
            }
        }
        self.llama.checkpoint_finish(image).map_err(failed)?;
        self.remembered(promise);
        Ok(())
    }
}

/// Whether a step was done; not if it has met damage.
fn unless_damaged(step: Result<bool, DcError>) -> Result<bool, DcError> {
    match step {
        Err(DcError::Corrupt { .. }) => Ok(false),
        step => step,
    }
}

impl DataComponent for BwTreeDc {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Record>, DcError> {
        self.resolved(table, key, self.get_stored(table, key)?)
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
        bytes_max: usize,
    ) -> Result<Vec<Option<Record>>, DcError> {
        let mut records = Vec::with_capacity(keys.len());
        let mut bytes = 0;
        for keys in keys.chunks(LOADS_AT_ONCE) {
            for (key, stored) in keys.iter().zip(self.get_together(table, keys)?) {
                let value = stored.as_ref().and_then(|record| record.value.as_deref());
                // Before a large one is read.
                bytes += value.map_or(0, stored_value::value_bytes);
                if bytes > bytes_max as u64 && !records.is_empty() {
                    return Ok(records);
                }
                records.push(self.resolved(table, key, stored)?);
            }
        }
        Ok(records)
    }

    fn scan_into(&self, request: &ScanRequest<'_>, batch: &mut ScanBatch) -> Result<(), DcError> {
        batch.clear();
        let reverse = request.direction == Direction::Reverse;
        let mut cursor = Cursor::new(request.lower, request.upper, reverse, request.bytes_max)
            .records_max(request.records_max);
        let Some(tree) = self.live_tree(request.table) else {
            batch.set_complete(true);
            return Ok(());
        };
        let mut special = false;
        let mut leaves_ahead = LEAVES_AHEAD_FIRST;
        while !cursor.is_done() {
            // A guard for a few leaves, so that a long scan does not hold up reclamation.
            let scanned = tree.try_scan_leaves(&mut cursor, &self.llama.pin(), |stretch| {
                stretch.collect(AddToBatch { stretch, batch, special: &mut special });
            });
            if let Err(miss) = scanned {
                self.load_leaves(tree, &cursor, miss, leaves_ahead)?;
                leaves_ahead = (2 * leaves_ahead).min(LEAVES_AHEAD_MAX);
            }
        }
        batch.set_complete(cursor.is_complete());
        if special { self.resolve_batch(request, batch) } else { Ok(()) }
    }

    fn apply(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        let end_of_stable_log = self.end_of_log();
        let mut special = false;
        for (index, operation) in operations.iter().enumerate() {
            if let Some(ahead) = operations.get(index + OPERATIONS_AHEAD) {
                prefetch_bytes(ahead.key);
                prefetch_bytes(ahead.value.unwrap_or(&[]));
            }
            special |= self.check_write(operation.table, operation.key, operation.value)?;
            assert_stable(operation.lsn, end_of_stable_log);
        }
        let newest = operations.iter().map(|operation| operation.timestamp).max();
        self.note_newest(newest.unwrap_or(Timestamp(0)));
        if special { self.apply_special(operations) } else { self.apply_stored(operations) }
    }

    fn end_of_stable_log(&self, lsn: Lsn) {
        // A mark of the store: no page is ever found without it (C5).
        self.llama.raise_mark(END_OF_STABLE_LOG, lsn.0);
    }

    fn redo_scan_start_point(&self, lsn: Lsn) -> Result<(), DcError> {
        let mut tombstones = self.checkpointing.lock().unwrap_or_else(PoisonError::into_inner);
        let end_of_stable_log = self.end_of_log();
        // It never goes back: what was promised once holds.
        let lsn = lsn.0.max(self.redo_scan_start_point.load(Ordering::Acquire));
        self.checkpoint(lsn)?;
        self.redo_scan_start_point.store(lsn, Ordering::Release);
        if let Some(below) = tombstones.pass(lsn, end_of_stable_log) {
            self.tables.all().iter().for_each(|tree| tree.forget_tombstones_below(below));
        }
        Ok(())
    }

    fn recovered_redo_scan_start_point(&self) -> Lsn {
        Lsn(self.redo_scan_start_point.load(Ordering::Acquire))
    }

    fn recovered_end_of_stable_log(&self) -> Lsn {
        Lsn(self.end_of_log())
    }

    fn recovered_newest_timestamp(&self) -> Timestamp {
        Timestamp(self.llama.marks()[NEWEST_TIMESTAMP])
    }

    fn statistics(&self) -> DcStatistics {
        let store = self.llama.statistics();
        let trees =
            self.tables.all().iter().fold(TreeStatistics::default(), |sum, tree| sum.plus(tree.statistics()));
        let mut counters = store.named();
        counters.extend(trees.counters());
        let chain_lengths = self
            .tables
            .all()
            .iter()
            .fold(Distribution::default(), |sum, tree| sum.plus(tree.chain_lengths()));
        let mut distributions = self.llama.distributions();
        distributions.extend([
            ("room_nanoseconds", self.room_times.read()),
            ("checkpoint_nanoseconds", self.checkpoint_times.read()),
            ("chain_lengths", chain_lengths),
            ("epoch_lags", self.llama.epochs().lags()),
        ]);
        let applied = self.applied_bytes.sum();
        let percent = |part: u64, whole: u64| part.saturating_mul(100).checked_div(whole).unwrap_or(0);
        counters.extend([
            ("applied_bytes", applied),
            ("write_amplification_percent", percent(store.bytes_written, applied)),
            ("space_amplification_percent", percent(store.disk_bytes, store.live_bytes)),
            ("large_values_written", self.sweeps.written.load(Ordering::Relaxed)),
            ("large_values_removed", self.sweeps.removed.load(Ordering::Relaxed)),
            (
                "clean_yield_percent",
                percent(store.cleaned_bytes.saturating_sub(store.cleaned_live_bytes), store.cleaned_bytes),
            ),
            ("epoch_lag", self.llama.epochs().oldest_pin_lag()),
            ("epoch_garbage_bytes", self.llama.epochs().garbage_bytes()),
        ]);
        DcStatistics {
            memory_bytes: store.memory_bytes + trees.index_bytes,
            disk_bytes: store.disk_bytes,
            bytes_written: store.bytes_written,
            counters,
            distributions,
        }
    }
}
