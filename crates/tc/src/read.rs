//! Which version a reader sees, and how it makes sure that it stays the one (rules R2, R3, R12 to R14).

use crate::ahead::Ahead;
use crate::core::Core;
use crate::error::{ConflictCause, TcError};
use crate::linked::Linked;
use crate::mvcc_table::Stripe;
use crate::options::ConcurrencyControl;
use crate::planted::{Bug, is_planted};
use crate::record::{EMBEDDED_BYTES_MAX, KeyRef, REMOVED, Record};
use crate::recycler::Recycler;
use crate::schedule::point;
use crate::statistics::Counter;
use crate::status::Status;
use crate::sync::{Ordering, publication_fence};
use crate::transaction_table::SlotIndex;
use crate::version::{PRUNED, Payload, Version, VersionState};
use deuteron_contract::{Lsn, Record as DcRecord, Timestamp};
use deuteron_epoch::Guard;
use deuteron_log::{LogError, Record as LogRecord};
use std::ptr;

/// Who reads, and as of when.
#[derive(Clone, Copy)]
pub(crate) struct Reader {
    /// As of this timestamp: the begin of the transaction, or the final timestamp in a refresh.
    pub(crate) at: Timestamp,
    pub(crate) slot: SlotIndex,
    /// What to do with the reader's own versions.
    pub(crate) own: Own,
    pub(crate) protection: Protection,
}

/// What keeps writers from changing afterwards what a reader has seen.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Protection {
    /// R3, R4: read timestamps and published ranges.
    Published,
    /// R15: the fence, raised before the first read.
    Fence,
    /// R16: nothing.
    None,
}

/// What a reader does with a version of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Own {
    /// Sees it.
    Visible,
    /// Looks beneath it: the refresh of a key that the transaction has overwritten since.
    Beneath,
    /// Sees those with a lower ordinal, and looks beneath the later ones: the refresh of a scan.
    VisibleBefore(u64),
}

/// What a reader found at the end of its walk down a chain.
#[derive(Clone, Copy)]
pub(crate) enum Visible<'g> {
    /// A version that is committed.
    Committed { version: &'g Version, at: Timestamp, commit_lsn: Lsn },
    /// A version that the reader's own transaction wrote.
    Own(&'g Version),
    /// What the data component holds.
    Unresolved,
    /// Nothing: the versions that it should see have been dropped.
    Pruned,
    /// R18: a version whose writer, at this timestamp, has not ended.
    Undecided(Timestamp),
}

/// One attempt to read a key, under a guard.
pub(crate) enum Attempt<'g> {
    /// This version.
    Found { version: &'g Version, at: Timestamp, commit_lsn: Lsn },
    /// This version, of the reader's own transaction.
    Own(&'g Version),
    /// What has been fetched from the data component.
    Fetched,
    /// The data component must be asked. The generation of the stripe goes into [`Fetched`].
    Miss { generation: u64 },
    /// The versions that the reader should see have been given up.
    TooOld,
    /// R18: the reader gives way to a writer at this timestamp.
    Undecided(Timestamp),
}

/// A record fetched from the data component (R14): good as long as nothing has been evicted from the stripe since the
/// generation was read, which was before the data component was. (What had been evicted by then had been applied.)
pub(crate) struct Fetched {
    generation: u64,
    pub(crate) timestamp: Timestamp,
    pub(crate) value: Option<Vec<u8>>,
}

/// Longer values are not kept here when they have been read: the data component keeps what of them is read often.
const CACHED_BYTES_MAX: usize = 2 << 20;

/// Where a version is is noted when it has lain for so many timestamps: what is written again and again is in the processor's caches, and to
/// note it would take a line from all who use it.
const NOTED_AFTER: u64 = 64;

impl Fetched {
    fn is_cacheable(&self) -> bool {
        self.value.as_ref().is_none_or(|value| value.len() <= CACHED_BYTES_MAX)
    }
}

impl Core {
    /// The version in the chain from `head` that is visible to `reader`, and whether a newer one is committed. Active older
    /// writers on the way are pushed (R2).
    #[inline]
    pub(crate) fn visible<'g>(
        &self,
        head: *mut Version,
        reader: Reader,
        _guard: &'g Guard<'_>,
    ) -> (Visible<'g>, bool) {
        let (mut current, mut newer) = (head, false);
        loop {
            if current == PRUNED {
                return (Visible::Pruned, newer);
            }
            // SAFETY: reached through a record's head under a guard (V1).
            let Some(version) = (unsafe { current.as_ref::<'g>() }) else {
                return (Visible::Unresolved, newer);
            };
            point();
            match version.state() {
                VersionState::Committed(at) if at > reader.at => newer = true,
                VersionState::Committed(at) => {
                    return (Visible::Committed { version, at, commit_lsn: version.commit_lsn() }, newer);
                }
                VersionState::Aborted => {}
                VersionState::Pending(slot) if slot == reader.slot => {
                    let sees = match reader.own {
                        Own::Visible => true,
                        Own::Beneath => false,
                        Own::VisibleBefore(ordinal) => version.ordinal() < ordinal,
                    };
                    if sees {
                        return (Visible::Own(version), newer);
                    }
                }
                VersionState::Pending(slot) => match self.settle_against(slot, reader) {
                    Settled::Invisible => {}
                    Settled::Newer => newer = true,
                    Settled::Visible(at, commit_lsn) => {
                        return (Visible::Committed { version, at, commit_lsn }, newer);
                    }
                    Settled::Undecided(other) => return (Visible::Undecided(other), newer),
                },
            }
            current = version.next.load(Ordering::Acquire);
        }
    }

    /// R18: whether nobody is pushed.
    #[inline]
    pub(crate) fn is_timestamp_order(&self) -> bool {
        self.options.concurrency_control == ConcurrencyControl::TimestampOrder
    }

    /// R2: what a version whose writer has not stamped it is to a reader at `at`. After `Invisible` the writer will not
    /// commit at or below `at`, unless the reader wants no protection.
    fn settle_against(&self, slot: SlotIndex, reader: Reader) -> Settled {
        let (slot, at) = (self.transactions.slot(slot), reader.at);
        loop {
            match slot.status.load() {
                Status::Aborted => return Settled::Invisible,
                Status::Committed(other) if other > at => return Settled::Newer,
                Status::Committed(other) => return Settled::Visible(other, slot.commit_lsn()),
                Status::Active(lower_bound) if lower_bound > at || reader.protection == Protection::None => {
                    return Settled::Invisible;
                }
                Status::Active(lower_bound)
                    if self.is_timestamp_order() && reader.protection == Protection::Published =>
                {
                    return Settled::Undecided(lower_bound);
                }
                Status::Active(lower_bound) => {
                    point();
                    if is_planted(Bug::NoPush) || slot.status.push(lower_bound, at, &self.transactions.lost) {
                        return Settled::Invisible;
                    }
                }
            }
        }
    }

    /// R3, of what is read most: the newest version of `key`, if it is committed and old enough for the reader, when it was committed and with which record.
    /// `None`: something else is the case, or has changed meanwhile, which [`Core::attempt_read`] finds out.
    #[inline]
    pub(crate) fn read_newest<'g>(
        &self,
        key: KeyRef<'_>,
        reader: Reader,
        guard: &'g Guard<'_>,
    ) -> Option<(&'g Version, Timestamp, Lsn)> {
        let record = self.table.find(key, guard)?;
        point();
        let head = record.head.load(Ordering::SeqCst);
        if head == REMOVED || head == PRUNED {
            return None;
        }
        // SAFETY: reached through a record's head under a guard (V1).
        let version = unsafe { head.as_ref::<'g>() }?;
        point();
        let VersionState::Committed(at) = version.state() else { return None };
        if at > reader.at || !self.protect(&record, head, reader, false) {
            return None;
        }
        let has_lain = reader.at.0.saturating_sub(at.0) > NOTED_AFTER;
        if has_lain && reader.protection == Protection::Published {
            self.table.note_newest(&record, head);
        }
        Some((version, at, version.commit_lsn()))
    }

    /// R3: one attempt to read `key`, with what has been fetched for it from the data component, if anything has.
    #[inline]
    pub(crate) fn attempt_read<'g>(
        &self,
        key: KeyRef<'_>,
        reader: Reader,
        fetched: Option<&Fetched>,
        guard: &'g Guard<'_>,
    ) -> Attempt<'g> {
        loop {
            let stripe = self.table.stripe(key.hash);
            let Some(record) = self.table.find(key, guard) else {
                match self.attempt_without_record(key, reader, stripe, fetched, guard) {
                    Some(attempt) => return attempt,
                    None => continue,
                }
            };
            point();
            let head = record.head.load(Ordering::SeqCst);
            if head == REMOVED {
                self.table.remove_frozen(&record, guard);
                continue;
            }
            let (visible, newer) = self.visible(head, reader, guard);
            point();
            match visible {
                Visible::Committed { version, at, commit_lsn } => {
                    if self.protect(&record, head, reader, newer) {
                        let has_lain = reader.at.0.saturating_sub(at.0) > NOTED_AFTER;
                        if has_lain && reader.protection == Protection::Published {
                            self.table.note_newest(&record, head);
                        }
                        return Attempt::Found { version, at, commit_lsn };
                    }
                }
                Visible::Own(version) => return Attempt::Own(version),
                Visible::Pruned => return Attempt::TooOld,
                Visible::Undecided(other) => return Attempt::Undecided(other),
                Visible::Unresolved => {
                    let generation = stripe.generation();
                    if fetched.is_none_or(|fetched| fetched.generation != generation) {
                        return Attempt::Miss { generation };
                    }
                    // An eviction of this very record that has not begun its generation yet shows in the head.
                    if self.protect(&record, head, reader, newer) {
                        if let Some(fetched) = fetched {
                            self.resolve_base(&record, fetched);
                        }
                        return Attempt::Fetched;
                    }
                }
            }
        }
    }

    /// R3: raises the read timestamp, then looks at the head again. False if it has changed: start over. If a newer version
    /// is committed it protects the older one, for writers go above it.
    #[inline]
    fn protect(&self, record: &Record, head: *mut Version, reader: Reader, newer: bool) -> bool {
        let publishes = reader.protection == Protection::Published;
        // The others store nothing, unless somebody is about to choose what to evict.
        if publishes || self.account.is_over_target() {
            record.set_referenced();
        }
        if newer {
            return true;
        }
        if publishes && !is_planted(Bug::NoReadTimestamp) {
            record.raise_read_timestamp(reader.at, &self.table.read_timestamps_lost);
        }
        point();
        publication_fence();
        // Pairs with the writer's installation, which comes before its look at the read timestamp (R5).
        is_planted(Bug::NoRecheck) || record.head.load(Ordering::SeqCst) == head
    }

    /// R13: a read of a key without a record. `None`: start over.
    #[cold]
    fn attempt_without_record<'g>(
        &self,
        key: KeyRef<'_>,
        reader: Reader,
        stripe: &Stripe,
        fetched: Option<&Fetched>,
        guard: &'g Guard<'_>,
    ) -> Option<Attempt<'g>> {
        let generation = stripe.generation();
        let Some(fetched) = fetched.filter(|fetched| fetched.generation == generation) else {
            return Some(Attempt::Miss { generation });
        };
        let publishes = reader.protection == Protection::Published;
        if !fetched.is_cacheable() || !self.account.admits(reader.at.0 ^ u64::from(key.hash)) {
            // The floor of the stripe protects the read, instead of a record.
            if publishes && !is_planted(Bug::NoReadTimestamp) {
                stripe.raise_floor(reader.at);
            }
            point();
            publication_fence();
            // Pairs with the writer's publication of a record, which comes before its look at the floor (E4).
            if self.table.find(key, guard).is_some() || stripe.generation() != generation {
                return None;
            }
            return Some(Attempt::Fetched);
        }
        let base_bytes = Version::base_bytes(fetched.value.as_deref());
        // Without protection the record is a cache and nothing else.
        let embeds = base_bytes <= EMBEDDED_BYTES_MAX;
        let marks = publishes && !is_planted(Bug::NoReadTimestamp);
        let read_timestamp = if marks { reader.at } else { Timestamp(0) };
        let new = Record::allocate(key, read_timestamp, if embeds { base_bytes } else { 0 });
        let Ok(record) = self.table.insert(key, new, guard) else {
            // SAFETY: not linked, so nobody knows it.
            unsafe { Record::free(new.cast(), (*new).bytes()) };
            return None;
        };
        point();
        record.set_referenced();
        // Only now is it known that nothing was evicted until there was a record: what has been fetched is its base.
        if stripe.generation() != generation {
            return None;
        }
        let base = if embeds {
            // SAFETY: allocated with room for it; nobody else writes there, for only this call knows of the room.
            unsafe {
                let base = Record::embedded(new);
                Version::write_base(base, fetched.timestamp, fetched.value.as_deref(), ptr::null_mut(), true);
                base
            }
        } else {
            Version::allocate_base(fetched.timestamp, fetched.value.as_deref(), ptr::null_mut())
        };
        self.link_base(&record, base).then_some(Attempt::Fetched)
    }

    /// Links a base to a record whose chain is empty. Frees it and returns false if the chain is not.
    fn link_base(&self, record: &Record, base: *mut Version) -> bool {
        // SAFETY: just made, by the caller.
        let (bytes, cached) = unsafe { ((*base).bytes(), (*base).cached_bytes()) };
        let linked = record.head.compare_exchange(ptr::null_mut(), base, Ordering::SeqCst, Ordering::Relaxed);
        let linked = self.table.versions_lost.is_won(linked);
        if linked {
            self.account.add(bytes);
            self.note_cached(cached.unwrap_or_default());
        } else if bytes > 0 {
            // SAFETY: not linked, so nobody knows it, and not embedded.
            unsafe { Version::free(base.cast(), bytes) };
        }
        linked
    }

    /// Keeps what has been fetched as the base of a record: the read cache. Does nothing if that cannot be done at once.
    fn resolve_base(&self, record: &Record, fetched: &Fetched) {
        if !fetched.is_cacheable() || self.account.is_over_soft() {
            return;
        }
        let Some(_maintenance) = record.try_maintain() else { return };
        let base = Version::allocate_base(fetched.timestamp, fetched.value.as_deref(), ptr::null_mut());
        let bytes = Version::base_bytes(fetched.value.as_deref());
        let mut link = &record.head;
        loop {
            let next = link.load(Ordering::Acquire);
            if next == PRUNED || next == REMOVED {
                break;
            }
            // SAFETY: reached through the head, under the caller's guard (V1).
            match unsafe { next.as_ref() } {
                Some(version) => link = &version.next,
                None => {
                    // By a swap, for the head may be prepended to at any time; a version's own link is ours (E1).
                    let linked =
                        link.compare_exchange(ptr::null_mut(), base, Ordering::SeqCst, Ordering::Relaxed);
                    if self.table.versions_lost.is_won(linked) {
                        self.account.add(bytes);
                        self.note_cached(bytes);
                        return;
                    }
                }
            }
        }
        // SAFETY: not linked, so nobody knows it.
        unsafe { Version::free(base.cast(), bytes) };
    }

    fn note_cached(&self, bytes: usize) {
        self.counters.add(Counter::ReadCacheFills, 1);
        self.counters.add(Counter::ReadCacheBytes, bytes as u64);
    }

    /// Asks the data component for `key` on behalf of a reader that met a miss. Never under a guard.
    pub(crate) fn fetch(&self, key: KeyRef<'_>, generation: u64, at: Timestamp) -> Result<Fetched, Failure> {
        point();
        let record = self.versions.get(key.table, key.key).map_err(TcError::DataComponent)?;
        self.take_fetched(record, generation, at)
    }

    /// As [`Core::fetch`], unless the answer waits in `ahead`.
    pub(crate) fn fetch_unless_ahead(
        &self,
        ahead: &mut Ahead,
        key: KeyRef<'_>,
        generation: u64,
        at: Timestamp,
    ) -> Result<Fetched, Failure> {
        match ahead.take(key, generation, &self.account) {
            Some(record) => self.take_fetched(record, generation, at),
            None => self.fetch(key, generation, at),
        }
    }

    /// What the data component has answered, as of this generation.
    fn take_fetched(
        &self,
        record: Option<DcRecord>,
        generation: u64,
        at: Timestamp,
    ) -> Result<Fetched, Failure> {
        point();
        // R11: looked at after the data component.
        if at < self.forced_horizon() {
            return Err(Failure::TooOld);
        }
        let (timestamp, value) =
            record.map_or((Timestamp(0), None), |record| (record.timestamp, record.value));
        if timestamp > at {
            return Err(Failure::TooOld);
        }
        Ok(Fetched { generation, timestamp, value })
    }

    /// The value of a committed version whose bytes have been recycled from the log's memory. `None`: read the key again.
    /// Never under a guard.
    #[cold]
    pub(crate) fn load_recycled(
        &self,
        key: KeyRef<'_>,
        lsn: Lsn,
        written: Option<(Timestamp, Lsn)>,
    ) -> Result<Option<Vec<u8>>, TcError> {
        let Some((at, commit)) = written.filter(|(at, commit)| self.versions.is_applied(lsn, *commit, *at))
        else {
            return match self.read_logged(lsn) {
                Ok(value) => {
                    if let Some((at, commit)) = written {
                        self.cache_version(key, lsn, at, commit, &value);
                    }
                    Ok(Some(value))
                }
                // It may have been applied, and the log cut, in between.
                Err(_) if written.is_some_and(|(at, commit)| self.versions.is_applied(lsn, commit, at)) => {
                    Ok(None)
                }
                Err(error) => Err(TcError::Log(error)),
            };
        };
        let record = self.versions.get(key.table, key.key).map_err(TcError::DataComponent)?;
        match record {
            Some(record) if record.timestamp == at => {
                if let Some(value) = &record.value {
                    self.cache_version(key, lsn, at, commit, value);
                }
                Ok(record.value)
            }
            // The data component does not have what it was said to have: the log may still.
            Some(record) if record.timestamp < at => self.read_logged(lsn).map(Some).map_err(TcError::Log),
            // A newer version has been posted since, perhaps a delete that is forgotten already: the reader may be below the
            // forced horizon, or it finds the newer version now.
            _ if !self.is_dropped(key.table) => Ok(None),
            // Nothing newer will ever be found.
            _ => Err(TcError::TableDropped { table: key.table }),
        }
    }

    /// The value of the version at `lsn` from the log, in memory or on disk. Never under a guard.
    fn read_logged(&self, lsn: Lsn) -> Result<Vec<u8>, LogError> {
        let (length, last) = match self.with_record(lsn, |record| match record {
            LogRecord::Upsert { value, .. } => Some(Logged::Whole(value.to_vec())),
            LogRecord::LargeUpsert { length, last, .. } => Some(Logged::Pieces(length, last)),
            _ => None,
        })? {
            Logged::Whole(value) => return Ok(value),
            Logged::Pieces(length, last) => (length, last),
        };
        let mut value = vec![0; length as usize];
        // From the last piece to the first.
        let (mut end, mut at) = (value.len(), last);
        while end > 0 {
            (end, at) = self.with_record(at, |record| match record {
                LogRecord::Piece { before, bytes, .. } if bytes.len() <= end && !bytes.is_empty() => {
                    let start = end - bytes.len();
                    value[start..end].copy_from_slice(bytes);
                    Some((start, before))
                }
                _ => None,
            })?;
        }
        Ok(value)
    }

    /// Gives the record at `lsn` to `take`, which says `None` if it is not what it should be.
    fn with_record<T>(
        &self,
        lsn: Lsn,
        mut take: impl FnMut(LogRecord<'_>) -> Option<T>,
    ) -> Result<T, LogError> {
        let taken = {
            let guard = self.epochs.pin();
            // SAFETY: the writer of a version has its LSN, and those of its pieces, from `append`.
            unsafe { self.versions.record_cached(lsn, &guard) }.map(&mut take)
        };
        // What is not in memory any more is stable.
        let taken = match taken {
            Some(taken) => taken,
            None => take(self.versions.record_stable(lsn)?.view()),
        };
        taken.ok_or(LogError::NotARecord { lsn })
    }

    /// Puts an inline copy in the place of a version whose bytes the log has in memory no longer: the read cache.
    fn cache_version(&self, key: KeyRef<'_>, lsn: Lsn, at: Timestamp, commit: Lsn, value: &[u8]) {
        if self.account.is_over_soft() || value.len() > CACHED_BYTES_MAX {
            return;
        }
        let guard = self.epochs.pin();
        let Some(record) = self.table.find(key, &guard) else { return };
        let Some(_maintenance) = record.try_maintain() else { return };
        let mut link = &record.head;
        loop {
            let current = link.load(Ordering::Acquire);
            if current == PRUNED || current == REMOVED {
                return;
            }
            // SAFETY: reached through the head under the guard (V1).
            let Some(version) = (unsafe { Linked::new(current) }) else { return };
            if version.state() != VersionState::Committed(at) || version.lsn() != Some(lsn) {
                link = &version.get().next;
                continue;
            }
            let copy = Version::allocate_base(at, Some(value), version.next.load(Ordering::Acquire));
            // SAFETY: just made. It may not be at the data component yet: the commit record tells.
            unsafe { (*copy).stamp_committed(at, commit) };
            let replaced = link.compare_exchange(current, copy, Ordering::SeqCst, Ordering::Relaxed);
            if self.table.versions_lost.is_won(replaced) {
                self.account.add(Version::base_bytes(Some(value)));
                self.note_cached(Version::base_bytes(Some(value)));
                // SAFETY: unlinked under the maintenance lock (E1), stamped (V2).
                unsafe { self.retire_version(version, &guard) };
            } else {
                // SAFETY: not linked, so nobody knows it.
                unsafe { Version::free(copy.cast(), Version::base_bytes(Some(value))) };
            }
            return;
        }
    }

    /// Has the memory of a version freed once nobody can look at it any more.
    ///
    /// # Safety
    /// The version is unlinked and stamped, and the caller, who held the maintenance lock, is the one who unlinked it.
    #[track_caller]
    pub(crate) unsafe fn retire_version(&self, version: Linked<'_, Version>, guard: &Guard<'_>) {
        let bytes = self.note_retired(&version);
        if bytes > 0 {
            self.account.subtract(bytes);
            // SAFETY: the caller's contract; `free` may run anywhere.
            unsafe { guard.retire(version.pointer().cast(), bytes, Version::free) };
        }
    }

    /// As [`Core::retire_version`], for a writer, who keeps the memory if he can use it.
    ///
    /// # Safety
    /// As [`Core::retire_version`].
    #[track_caller]
    pub(crate) unsafe fn recycle_version(
        &self,
        version: Linked<'_, Version>,
        recycler: &mut Recycler,
        guard: &Guard<'_>,
    ) {
        let bytes = self.note_retired(&version);
        let pointer = version.pointer();
        // SAFETY: the caller's contract; it has been in the account since it was installed.
        if bytes > 0 && !unsafe { recycler.keep(pointer, bytes, &self.account, &self.epochs) } {
            self.account.subtract(bytes);
            // SAFETY: the caller's contract; `free` may run anywhere.
            unsafe { guard.retire(pointer.cast(), bytes, Version::free) };
        }
    }

    /// Takes a version out of the counts of the read cache; the size of its allocation.
    #[track_caller]
    fn note_retired(&self, version: &Version) -> usize {
        version.note_retired();
        if let Some(cached) = version.cached_bytes() {
            self.counters.add(Counter::ReadCacheEvictions, 1);
            self.counters.subtract(Counter::ReadCacheBytes, cached as u64);
        }
        version.bytes()
    }
}

/// What a record of the log says of a value.
enum Logged {
    Whole(Vec<u8>),
    /// Its length, and where the last piece lies.
    Pieces(u64, Lsn),
}

enum Settled {
    Invisible,
    Newer,
    Visible(Timestamp, Lsn),
    /// R18.
    Undecided(Timestamp),
}

/// Why a read failed: an error, or a conflict to which the caller adds the place.
pub(crate) enum Failure {
    // Out of the way: what a read returns, as a rule that there is a value, is copied from call to call.
    Error(Box<TcError>),
    TooOld,
    /// R18: to a writer at this timestamp.
    GivesWay(Timestamp),
}

impl From<TcError> for Failure {
    fn from(error: TcError) -> Failure {
        Failure::Error(Box::new(error))
    }
}

impl Failure {
    /// The error, with `conflict` making one of a cause.
    pub(crate) fn into_error<E: From<TcError>>(
        self,
        conflict: impl FnOnce(ConflictCause, Option<Timestamp>) -> E,
    ) -> E {
        match self {
            Failure::Error(error) => E::from(*error),
            Failure::TooOld => conflict(ConflictCause::SnapshotTooOld, None),
            Failure::GivesWay(other) => conflict(ConflictCause::TimestampOrder, Some(other)),
        }
    }
}

/// Copies an inline or cached value into `value`. What is left to do if it is in neither place.
pub(crate) enum Copied {
    Absent,
    Present,
    /// Recycled from the log's memory.
    Recycled(Lsn),
    /// In the log, in pieces.
    Large(Lsn),
}

/// An inline or cached value where it lies, or what is left to do if it is in neither place, as in [`Copied`].
pub(crate) enum Lent<'g> {
    Absent,
    Present(&'g [u8]),
    Recycled(Lsn),
    Large(Lsn),
}

impl Core {
    /// Asks for the value of a version, if it lies in the log's memory: elsewhere it lies beside the version.
    #[inline]
    pub(crate) fn prefetch_value(&self, version: &Version) {
        if let Payload::Logged(lsn) = version.payload() {
            self.versions.prefetch(lsn);
        }
    }

    // A call, here or below, would cost every read a fifteenth of its instructions.
    #[inline(always)]
    pub(crate) fn copy_value(&self, version: &Version, value: &mut Vec<u8>, guard: &Guard<'_>) -> Copied {
        match self.lend_value(version, guard) {
            Lent::Present(bytes) => {
                value.clear();
                value.extend_from_slice(bytes);
                Copied::Present
            }
            Lent::Absent => Copied::Absent,
            Lent::Recycled(lsn) => Copied::Recycled(lsn),
            Lent::Large(lsn) => Copied::Large(lsn),
        }
    }

    /// The value of a version where it lies.
    #[inline(always)]
    pub(crate) fn lend_value<'g>(&'g self, version: &'g Version, guard: &'g Guard<'_>) -> Lent<'g> {
        match version.payload() {
            Payload::Absent => Lent::Absent,
            Payload::Inline(bytes) => Lent::Present(bytes),
            // SAFETY: the version was reached under the guard, and the writer has its LSN from `append`.
            Payload::Logged(lsn) => match unsafe { self.versions.read_cached(lsn, guard) } {
                Some(bytes) => Lent::Present(bytes),
                None => Lent::Recycled(lsn),
            },
            Payload::Large(lsn) => Lent::Large(lsn),
        }
    }
}
