//! [`Engine`]: an open store: the data component, the numbers of its writes, and when it is made durable.

use crate::catalogue::Catalogue;
use crate::keeper::{Bell, Keeper};
use crate::stamps::{STOCK, Stamps};
use crate::turns::{Turn, Turns};
use crate::under_way::{Call, UnderWay};
use crate::{BackupReport, Batch, CheckReport, Compaction, Error, Options, Stats};
use deuteron_archive::{ArchiveWriter, Beginning};
use deuteron_contract::{DataComponent, DcError, Lsn, Operation, ScanBatch, ScanRequest, TableId, Timestamp};
use deuteron_dc::{BwTreeDc, StoreFile};
use deuteron_device::{Directory, with_causes};
use deuteron_epoch::Epochs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

pub(crate) struct Engine {
    /// Tells open stores apart.
    number: u64,
    directory: Arc<dyn Directory>,
    component: Arc<BwTreeDc>,
    epochs: Arc<Epochs>,
    options: Options,
    stamps: Stamps,
    catalogue: Catalogue,
    /// Whether there is something that the last checkpoint does not hold.
    changed: AtomicBool,
    /// Whether the last checkpoint held something new: another one lets the deletes in it be forgotten.
    settling: AtomicBool,
    /// One checkpoint at a time, and none during a backup.
    persisting: Turns,
    under_way: UnderWay,
    /// Set once: why no more writes are taken.
    poison: OnceLock<String>,
    bell: Bell,
    keeper: Mutex<Keeper>,
    /// Of the directory; given back at the end of `close`.
    lock: Mutex<Option<Box<dyn Send + Sync>>>,
}

impl Engine {
    /// Takes the lock, recovers, starts the thread.
    pub(crate) fn open(directory: Arc<dyn Directory>, options: Options) -> Result<Arc<Engine>, Error> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        // Before the lock, which would leave its file in a directory that is none of ours.
        check_files(directory.as_ref(), options.create_if_missing)?;
        let lock = directory.lock().map_err(|error| match error.is_locked() {
            true => Error::InUse { path: directory.name() },
            false => Error::device("lock the directory")(error),
        })?;
        let epochs = Epochs::new();
        let component = BwTreeDc::open(Arc::clone(&directory), Arc::clone(&epochs), options.component())?;
        let engine = Arc::new(Engine {
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            stamps: Stamps::new(component.recovered_redo_scan_start_point().0),
            catalogue: Catalogue::read(component.as_ref())?,
            directory,
            component,
            epochs,
            changed: AtomicBool::new(false),
            settling: AtomicBool::new(false),
            persisting: Turns::default(),
            under_way: UnderWay::default(),
            poison: OnceLock::new(),
            bell: Bell::default(),
            keeper: Mutex::default(),
            options,
            lock: Mutex::new(Some(lock)),
        });
        // What cannot be done now, for want of room say, is done at a later opening.
        drop(engine.catalogue.finish_drops(&engine));
        if engine.options.background {
            *engine.keeper() = Keeper::start(&engine)?;
        }
        Ok(engine)
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(crate) fn component(&self) -> &Arc<BwTreeDc> {
        &self.component
    }

    fn keeper(&self) -> MutexGuard<'_, Keeper> {
        self.keeper.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call, for which closing waits as long as what is returned lives; an error if the store is closed.
    #[inline]
    pub(crate) fn usable(&self) -> Result<Call<'_>, Error> {
        self.under_way.begin().ok_or(Error::Closed)
    }

    /// The same; or an error if the store takes no writes.
    #[inline]
    pub(crate) fn writable(&self) -> Result<Call<'_>, Error> {
        let call = self.usable()?;
        self.poisoned()?;
        Ok(call)
    }

    fn poisoned(&self) -> Result<(), Error> {
        match self.poison.get() {
            Some(reason) => Err(Error::Poisoned { reason: reason.clone() }),
            None => Ok(()),
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.under_way.is_closing()
    }

    // ---- operations -----------------------------------------------------------------------------------------

    pub(crate) fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let _call = self.usable()?;
        Ok(self.component.get(table, key)?.and_then(|record| record.value))
    }

    /// As [`Engine::get`], with the value put into `value`; whether there is one.
    #[inline]
    pub(crate) fn get_into(&self, table: TableId, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let _call = self.usable()?;
        Ok(self.component.get_into(table, key, value)?.is_some_and(|(_, is_value)| is_value))
    }

    pub(crate) fn get_many(&self, table: TableId, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, Error> {
        let _call = self.usable()?;
        let records = self.component.get_many(table, keys, usize::MAX)?;
        Ok(records.into_iter().map(|record| record?.value).collect())
    }

    pub(crate) fn scan_into(&self, request: &ScanRequest<'_>, batch: &mut ScanBatch) -> Result<(), Error> {
        let _call = self.usable()?;
        Ok(self.component.scan_into(request, batch)?)
    }

    /// One write, without an allocation.
    pub(crate) fn write(&self, table: TableId, key: &[u8], value: Option<&[u8]>) -> Result<(), Error> {
        let call = self.writable()?;
        let number = |above: Option<Timestamp>| {
            let number = match value {
                Some(_) => self.stamps.take_above(call.place(), above.map(|above| above.0)),
                None => self.stamps.take_for_deletes(1),
            };
            number.map(Timestamp)
        };
        loop {
            match self.component.write(table, key, value, number) {
                Ok(false) => self.make_room_for_stamps(STOCK)?,
                applied => return self.applied(applied.map(drop)),
            }
        }
    }

    pub(crate) fn apply_batch(&self, batch: &Batch) -> Result<(), Error> {
        if let Some(table) = &batch.foreign {
            return Err(Error::ForeignTable { table: table.clone() });
        }
        if batch.store.is_some_and(|store| store != self.number) {
            return Err(Error::ForeignTable { table: "of the batch".into() });
        }
        batch.tables_alive()?;
        self.apply(batch.len(), batch.writes())
    }

    /// Applies `count` writes. Of two to a key only the later: the component takes them in any order, and forgets a
    /// delete as soon as no *later* call can bring an older write.
    pub(crate) fn apply<'a>(
        &self,
        count: usize,
        writes: impl IntoIterator<Item = Write<'a>>,
    ) -> Result<(), Error> {
        let _call = self.writable()?;
        let mut operations = Vec::with_capacity(count);
        operations.extend(writes.into_iter().zip(0..).map(|(write, place)| numbered(write, place)));
        let deletes = operations.iter().any(|operation| operation.value.is_none());
        let first = self.take_stamps(operations.len() as u64, deletes)?;
        for operation in &mut operations {
            operation.lsn.0 += first;
            operation.timestamp.0 += first;
        }
        // The latest of each key first; the component finds them sorted.
        operations.sort_unstable_by_key(|operation| {
            (operation.table, operation.key, std::cmp::Reverse(operation.lsn))
        });
        operations.dedup_by_key(|operation| (operation.table, operation.key));
        self.applied(self.component.apply(&operations))
    }

    /// Something has been written, or not all of it.
    fn applied(&self, applied: Result<(), DcError>) -> Result<(), Error> {
        // A batch that failed half-way has changed something, too. After the change, so that a persist that finds the
        // mark gone has begun before it; and read first, since most writes find it set.
        if !self.changed.load(Ordering::SeqCst) {
            self.changed.store(true, Ordering::SeqCst);
        }
        applied.map_err(|error| self.failed(error.into()))
    }

    /// The first of `count` numbers, for writes of which some are `deletes` or none are.
    pub(crate) fn take_stamps(&self, count: u64, deletes: bool) -> Result<u64, Error> {
        loop {
            let taken = match deletes {
                true => self.stamps.take_for_deletes(count),
                false => self.stamps.take(count),
            };
            if let Some(first) = taken {
                return Ok(first);
            }
            self.make_room_for_stamps(count)?;
        }
    }

    /// Raises the ceiling, unless there is room for `count` by now.
    #[cold]
    fn make_room_for_stamps(&self, count: u64) -> Result<(), Error> {
        // A backup has raised the ceiling long before it is done.
        match self.persisting.wait_unless(|| self.stamps.has_room(count)) {
            Some(turn) => self.persist_here(&turn, true),
            None => Ok(()),
        }
    }

    /// Notes an error after which nothing can be made durable any more.
    pub(crate) fn failed(&self, error: Error) -> Error {
        if let Some(reason) = self.component.llama().poisoned() {
            drop(self.poison.set(reason.to_string()));
        }
        error
    }

    /// Takes no more writes from now on, for this reason.
    pub(crate) fn stop(&self, reason: &str) -> Error {
        let reason = self.poison.get_or_init(|| reason.to_owned()).clone();
        Error::Poisoned { reason }
    }

    // ---- durability -----------------------------------------------------------------------------------------

    /// Makes durable what has been written.
    pub(crate) fn persist(&self) -> Result<(), Error> {
        self.persist_if(false)
    }

    fn persist_if(&self, always: bool) -> Result<(), Error> {
        self.persist_here(&self.persisting.wait(), always)
    }

    /// [`Engine::persist`], unless somebody is at it or a backup goes on; whether it has been done. Persists once more after
    /// the last change.
    pub(crate) fn try_persist(&self) -> Result<bool, Error> {
        let Some(turn) = self.persisting.try_take() else { return Ok(false) };
        self.persist_here(&turn, self.settling.load(Ordering::Relaxed))?;
        Ok(true)
    }

    fn persist_here(&self, turn: &Turn<'_>, always: bool) -> Result<(), Error> {
        self.poisoned()?;
        // Before the checkpoint: what is written during it sets the mark again.
        let changed = self.changed.swap(false, Ordering::SeqCst);
        if !changed && !always {
            return Ok(());
        }
        let unless_done = Unpersisted(&self.changed);
        let ceiling = self.stamps.higher_ceiling();
        self.component.redo_scan_start_point(Lsn(ceiling)).map_err(|error| self.failed(error.into()))?;
        std::mem::forget(unless_done);
        self.stamps.raised(ceiling);
        turn.tell();
        self.settling.store(changed, Ordering::Relaxed);
        Ok(())
    }

    /// Whether a persist would have something to do.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
            || self.settling.load(Ordering::Relaxed)
            || self.stamps.is_ceiling_near()
    }

    /// One piece of background work, if there is any; whether there was.
    pub(crate) fn step(&self) -> Result<bool, Error> {
        let worked = self.component.maintain_step().map_err(|error| self.failed(error.into()))?;
        Ok(worked | (self.epochs.collect() > 0))
    }

    /// Ends the thread, waits for the calls that are under way, makes everything durable, and gives the lock back when nothing is written
    /// any more. Only the first call does anything; those that come later wait for it, and hear if it has failed.
    pub(crate) fn close(&self) -> Result<(), Error> {
        let mut keeper = self.keeper();
        if !self.under_way.close() {
            return self.poisoned();
        }
        self.bell.ring();
        keeper.join();
        self.under_way.wait();
        let persisted = self.persist().inspect_err(|error| {
            // Somebody else may have the directory from now on: what is not durable will not be.
            self.stop(&with_causes(error));
        });
        // What somebody in a hurry has begun to write: whoever opens the store next writes there, too.
        while self.component.llama().is_writing() {
            self.component.llama().await_flush();
        }
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner).take());
        persisted
    }

    // ---- tables, space, copies ------------------------------------------------------------------------------

    /// Has the component forget a table, durably.
    pub(crate) fn drop_in_component(&self, id: TableId) -> Result<(), Error> {
        self.component.drop_table(id).map_err(|error| self.failed(error.into()))
    }

    /// Brings disk use down to what the live records need.
    pub(crate) fn compact(&self) -> Result<Compaction, Error> {
        let _call = self.writable()?;
        let disk_bytes = || self.component.statistics().disk_bytes;
        let before_bytes = disk_bytes();
        // The second one lets the deletes before the first be forgotten.
        self.persist_if(true)?;
        self.persist_if(true)?;
        self.component.compact().map_err(|error| self.failed(error.into()))?;
        Ok(Compaction { before_bytes, after_bytes: disk_bytes() })
    }

    /// Copies the files into an archive, as of a moment at which everything that was written before the call is durable.
    pub(crate) fn backup(&self, shelf: &dyn Directory, name: &str) -> Result<BackupReport, Error> {
        let _call = self.usable()?;
        let mut archive = ArchiveWriter::create(shelf, name)?;
        if archive.is_in(self.directory.as_ref())? {
            // No store would be found there any more, for there would be a file that is none of a store's.
            let reason = format!("{} is the store's own directory", self.directory.name());
            return Err(Error::InvalidOption { option: "backup", reason });
        }
        let turn = self.persisting.wait();
        // Nobody can raise the ceiling before the copy is done, and whoever writes needs room below it.
        self.persist_here(&turn, !self.stamps.has_headroom())?;
        let hold = self.component.hold_files().map_err(|error| self.failed(error.into()))?;
        for StoreFile { name, bytes, length } in hold.files().iter().cloned() {
            archive.copy(self.directory.as_ref(), &Beginning { name, bytes, length })?;
        }
        drop((hold, turn));
        Ok(archive.finish()?)
    }

    // ---- reports --------------------------------------------------------------------------------------------

    pub(crate) fn stats(&self) -> Stats {
        // In a closed store nobody can be in the middle of anything.
        let _call = self.usable();
        let found = self.component.statistics();
        Stats {
            memory_bytes: found.memory_bytes + self.epochs.garbage_bytes(),
            memory_budget_bytes: self.options.memory_bytes as u64,
            disk_bytes: found.disk_bytes,
            bytes_written: found.bytes_written,
            counters: found.counters,
            distributions: found.distributions,
        }
    }

    pub(crate) fn check(&self) -> Result<CheckReport, Error> {
        let _call = self.usable()?;
        let found = self.component.check()?;
        Ok(CheckReport { tables: found.tables, pages: found.trees.leaves, records: found.trees.records })
    }

    pub(crate) fn value_bytes_max(&self) -> usize {
        self.component.value_bytes_max()
    }
}

/// Sets the mark again unless it is forgotten: also if a panic has kept what was changed from becoming durable.
struct Unpersisted<'e>(&'e AtomicBool);

impl Drop for Unpersisted<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Table, key, value or delete.
pub(crate) type Write<'a> = (TableId, &'a [u8], Option<&'a [u8]>);

fn numbered<'a>((table, key, value): Write<'a>, stamp: u64) -> Operation<'a> {
    Operation { table, key, value, timestamp: Timestamp(stamp), lsn: Lsn(stamp) }
}

/// Refuses a directory with files that are not ours.
fn check_files(directory: &dyn Directory, create: bool) -> Result<(), Error> {
    let names = directory.list().map_err(Error::device("list the directory"))?;
    // What ends so a restore has left that was interrupted.
    let is_own = |name: &str| name.starts_with("store-") && !name.ends_with(".new");
    if let Some(file) = names.iter().find(|name| !is_own(name) && *name != "lock") {
        return Err(Error::NotAStore { path: directory.name(), file: file.clone() });
    }
    if !create && !names.iter().any(|name| is_own(name)) {
        return Err(Error::NotFound { path: directory.name() });
    }
    Ok(())
}
