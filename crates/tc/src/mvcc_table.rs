//! The latch-free MVCC hash table (paper 2.2): buckets of records, and stripes that remember what records forget.
//!
//! A bucket is a singly linked chain. A record is prepended with a compare-and-swap, and removed in two steps: bit 0 of its own
//! `next` is set, then its predecessor is swapped past it by whoever comes by.
//!
//! A *stripe* is a run of neighbouring buckets. It has a *floor*, a timestamp at or above every read of its keys that no
//! record remembers (rules R12 and R13), and a *generation*, which counts evictions, so that who has been away to
//! read the data component can tell that nothing was evicted meanwhile (rule R14).
//!
//! # Invariants
//!
//! - **B1** A chain holds at most one record of a key that is not frozen. (An insertion succeeds only if the bucket's head
//!   is still the one from which the chain was searched, and records enter at the head only.)
//! - **B2** Links are followed under a guard. A record is retired after it has been unlinked (and E3), by the pointer that the
//!   link held ([`Linked`]).
//! - **B3** The link of a removed record never changes again.

use crate::linked::Linked;
use crate::memory::Account;
use crate::newest::Newest;
use crate::record::{KeyHash, KeyRef, Record, VISITED_AHEAD, prefetch};
use crate::sync::{AtomicPtr, AtomicU64, Lost, Ordering};
use crate::version::Version;
use crate::zeroed_array::ZeroedArray;
use deuteron_contract::{TableId, Timestamp};
use deuteron_epoch::Guard;
use foldhash::fast::FixedState;
use std::hash::{BuildHasher, Hasher};
use std::ptr;

const REMOVED_BIT: usize = 1;

fn is_marked(link: *mut Record) -> bool {
    link.addr() & REMOVED_BIT != 0
}

fn marked(link: *mut Record) -> *mut Record {
    link.map_addr(|address| address | REMOVED_BIT)
}

fn unmarked(link: *mut Record) -> *mut Record {
    link.map_addr(|address| address & !REMOVED_BIT)
}

/// What a run of buckets remembers of evicted records and of reads without a record.
pub(crate) struct Stripe {
    floor: AtomicU64,
    generation: AtomicU64,
}

impl Stripe {
    #[inline]
    pub(crate) fn floor(&self) -> Timestamp {
        Timestamp(self.floor.load(Ordering::SeqCst))
    }

    /// R12, R13: every key of the stripe that has no record counts as read at `to`.
    pub(crate) fn raise_floor(&self, to: Timestamp) {
        self.floor.fetch_max(to.0, Ordering::SeqCst);
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// R14: a record of the stripe goes.
    pub(crate) fn begin_generation(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
    }
}

/// See the [module](self).
pub(crate) struct MvccTable {
    buckets: ZeroedArray<AtomicPtr<Record>>,
    newest: Newest,
    stripes: Box<[Stripe]>,
    /// Buckets of a stripe, as a power of two.
    stripe_shift: u32,
    hasher: FixedState,
    account: std::sync::Arc<Account>,
    /// Of the heads of buckets and the links between records.
    pub(crate) buckets_lost: Lost,
    /// Of the heads of records and the links between versions.
    pub(crate) versions_lost: Lost,
    /// Of the read timestamps of records.
    pub(crate) read_timestamps_lost: Lost,
}

impl MvccTable {
    /// A table of `buckets` buckets, a power of two.
    pub(crate) fn new(buckets: usize, seed: u64, account: std::sync::Arc<Account>) -> MvccTable {
        assert!(buckets.is_power_of_two());
        let stripe_shift = if buckets > 1 << 10 { 4 } else { 0 };
        let stripe = || Stripe { floor: AtomicU64::new(0), generation: AtomicU64::new(0) };
        MvccTable {
            buckets: ZeroedArray::<AtomicPtr<Record>>::new(buckets),
            newest: Newest::new(buckets),
            stripes: (0..buckets >> stripe_shift).map(|_| stripe()).collect(),
            stripe_shift,
            hasher: FixedState::with_seed(seed),
            account,
            buckets_lost: Lost::new(),
            versions_lost: Lost::new(),
            read_timestamps_lost: Lost::new(),
        }
    }

    /// Bytes of the arrays.
    pub(crate) fn fixed_bytes(&self) -> usize {
        size_of_val(&*self.buckets) + self.newest.bytes() + size_of_val(&*self.stripes)
    }

    pub(crate) fn buckets(&self) -> usize {
        self.buckets.len()
    }

    /// Table and key with their hash.
    #[inline]
    pub(crate) fn key<'k>(&self, table: TableId, key: &'k [u8]) -> KeyRef<'k> {
        let mut hasher = self.hasher.build_hasher();
        hasher.write_u32(table.0);
        hasher.write(key);
        // The high half is the better mixed.
        KeyRef { hash: (hasher.finish() >> 32) as KeyHash, table, key }
    }

    #[inline]
    fn index(&self, hash: KeyHash) -> usize {
        hash as usize & (self.buckets.len() - 1)
    }

    #[inline]
    pub(crate) fn stripe(&self, hash: KeyHash) -> &Stripe {
        &self.stripes[self.index(hash) >> self.stripe_shift]
    }

    /// The record of `key`, frozen perhaps.
    // Part of every read, and its result is a pointer: it is not left to the size of who reads.
    #[inline(always)]
    pub(crate) fn find<'g>(&self, key: KeyRef<'_>, guard: &'g Guard<'_>) -> Option<Linked<'g, Record>> {
        let bucket = self.index(key.hash);
        self.newest.prefetch_bucket(bucket);
        let head = self.buckets[bucket].load(Ordering::SeqCst);
        Record::prefetch(head);
        self.newest.prefetch(bucket);
        Self::search(head, key, guard)
    }

    /// The record that lies at `place`, if there is one in the bucket of `hash`. Of `place` only the address counts.
    pub(crate) fn find_at<'g>(
        &self,
        place: *const Record,
        hash: KeyHash,
        _guard: &'g Guard<'_>,
    ) -> Option<Linked<'g, Record>> {
        let mut link = self.buckets[self.index(hash)].load(Ordering::Acquire);
        loop {
            // SAFETY: as in `search`.
            let record: Linked<'g, _> = unsafe { Linked::new(unmarked(link)) }?;
            if ptr::eq(record.pointer(), place) {
                return Some(record);
            }
            link = record.next.load(Ordering::Acquire);
        }
    }

    /// Notes that `head` is the newest version of `record`, for who looks for it next.
    #[inline]
    pub(crate) fn note_newest(&self, record: &Record, head: *mut Version) {
        let bucket = self.index(record.hash());
        if ptr::eq(self.buckets[bucket].load(Ordering::Relaxed), record) {
            self.newest.note(bucket, head.addr());
        }
    }

    /// Where the newest versions are noted.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn noted(&self) -> std::ops::Range<usize> {
        self.newest.place()
    }

    /// Asks for the bucket of a record with this hash.
    pub(crate) fn prefetch_place(&self, hash: KeyHash) {
        prefetch(ptr::from_ref(&self.buckets[self.index(hash)]).cast::<u8>());
    }

    /// Asks for the bucket of `key`, and for what is noted of it.
    pub(crate) fn prefetch_bucket(&self, key: KeyRef<'_>) {
        let bucket = self.index(key.hash);
        prefetch(ptr::from_ref(&self.buckets[bucket]).cast());
        self.newest.prefetch_bucket(bucket);
    }

    /// Asks for the first record in the bucket of `key`, which is mostly the one, and for what is noted of its newest version.
    pub(crate) fn prefetch_record(&self, key: KeyRef<'_>) {
        let bucket = self.index(key.hash);
        let head = self.buckets[bucket].load(Ordering::Relaxed);
        prefetch(head.cast());
        Record::prefetch(head);
        self.newest.prefetch(bucket);
    }

    #[inline]
    fn search<'g>(
        mut link: *mut Record,
        key: KeyRef<'_>,
        _guard: &'g Guard<'_>,
    ) -> Option<Linked<'g, Record>> {
        loop {
            // SAFETY: under a guard (B2); what a removed record links to was in the chain when the guard was made,
            // or came later (B3).
            let record: Linked<'g, _> = unsafe { Linked::new(unmarked(link)) }?;
            if record.is(key) {
                return Some(record);
            }
            link = record.next.load(Ordering::Acquire);
        }
    }

    /// Links `new`, a record of `key` that nobody else knows. If there is one already, it is returned and `new` is
    /// the caller's still.
    pub(crate) fn insert<'g>(
        &self,
        key: KeyRef<'_>,
        new: *mut Record,
        guard: &'g Guard<'_>,
    ) -> Result<Linked<'g, Record>, Linked<'g, Record>> {
        let bucket = &self.buckets[self.index(key.hash)];
        loop {
            let head = bucket.load(Ordering::SeqCst);
            if let Some(record) = Self::search(head, key, guard) {
                return Err(record);
            }
            // SAFETY: nobody else knows it; once it is linked it outlives the guard (B2).
            let record = unsafe { Linked::new(new) }.expect("an allocation");
            record.next.store(head, Ordering::Relaxed);
            let linked = bucket.compare_exchange(head, new, Ordering::SeqCst, Ordering::Relaxed);
            if self.buckets_lost.is_won(linked) {
                self.account.add(record.bytes());
                return Ok(record);
            }
        }
    }

    /// R12: finishes the removal of a frozen record: what its readers relied on goes into the floor, then it is
    /// unlinked. Anybody may help; each step may be done twice.
    pub(crate) fn remove_frozen(&self, record: &Record, guard: &Guard<'_>) {
        let stripe = self.stripe(record.hash());
        // Pairs with the reader's second look at the head, which comes after it has raised the timestamp (R3).
        crate::sync::publication_fence();
        if !crate::planted::is_planted(crate::planted::Bug::NoFloor)
            && !crate::planted::is_planted(crate::planted::Bug::NoFreeze)
        {
            stripe.raise_floor(record.own_read_timestamp());
        }
        crate::schedule::point();
        stripe.begin_generation();
        crate::schedule::point();
        let mut link = record.next.load(Ordering::Acquire);
        while !is_marked(link) {
            match record.next.compare_exchange(link, marked(link), Ordering::SeqCst, Ordering::Acquire) {
                Ok(_) => break,
                Err(now) => {
                    self.buckets_lost.note();
                    link = now;
                }
            }
        }
        self.sweep_removed(self.index(record.hash()), guard);
    }

    /// Unlinks every removed record of a bucket.
    fn sweep_removed(&self, bucket: usize, guard: &Guard<'_>) {
        'restart: loop {
            let mut previous = &self.buckets[bucket];
            let mut current = previous.load(Ordering::Acquire);
            // SAFETY: under a guard (B2). `previous` was not removed when `current` was read from it, for a removed
            // record's link is marked, which makes the swap below fail.
            while let Some(record) = unsafe { Linked::new(unmarked(current)) } {
                if is_marked(current) {
                    continue 'restart;
                }
                let next = record.next.load(Ordering::Acquire);
                if !is_marked(next) {
                    previous = &record.get().next;
                    current = next;
                    continue;
                }
                let successor = unmarked(next);
                let unlinked =
                    previous.compare_exchange(current, successor, Ordering::SeqCst, Ordering::Relaxed);
                if !self.buckets_lost.is_won(unlinked) {
                    continue 'restart;
                }
                self.account.subtract(record.bytes());
                if record.set_unlinked() {
                    // SAFETY: unlinked by the swap, which succeeds once, and not referred to by the index (E3).
                    unsafe { Self::retire(record, guard) };
                }
                current = successor;
            }
            return;
        }
    }

    /// # Safety
    /// The record is unlinked, and the caller is the one who has to retire it (E3).
    pub(crate) unsafe fn retire(record: Linked<'_, Record>, guard: &Guard<'_>) {
        // SAFETY: unlinked; retired once by E3; `free` may run anywhere.
        unsafe { guard.retire(record.pointer().cast(), record.bytes(), Record::free) };
    }

    /// Asks for the first record of each of these buckets, then for their newest versions, and then for those beneath these, side by side: a sweep comes to
    /// them in no order of theirs, and would wait for one after the other.
    pub(crate) fn prefetch_chains(&self, buckets: impl Iterator<Item = usize> + Clone, guard: &Guard<'_>) {
        for bucket in buckets.clone() {
            prefetch(self.buckets[bucket].load(Ordering::Relaxed).cast_const().cast());
        }
        // SAFETY: as in `search`; a bucket's own link is never marked.
        let first = |bucket: usize| unsafe { self.buckets[bucket].load(Ordering::Acquire).as_ref() };
        for record in buckets.clone().filter_map(first) {
            record.prefetch_head(guard);
        }
        for record in buckets.filter_map(first) {
            record.prefetch_second(guard);
        }
    }

    /// Calls `visit` on each record of bucket `bucket`, until it returns false.
    pub(crate) fn for_each_in_bucket<'g>(
        &self,
        bucket: usize,
        _guard: &'g Guard<'_>,
        mut visit: impl FnMut(&'g Record),
    ) {
        let mut link = self.buckets[bucket].load(Ordering::Acquire);
        // SAFETY: as in `search`.
        while let Some(record) = unsafe { unmarked(link).as_ref() } {
            link = record.next.load(Ordering::Acquire);
            if !is_marked(link) {
                visit(record);
            }
        }
    }

    /// Every record, for the destructor: nobody else uses the table.
    pub(crate) fn take_all(&mut self) -> Vec<*mut Record> {
        let mut all = Vec::new();
        for (index, bucket) in self.buckets.iter().enumerate() {
            if let Some(ahead) = self.buckets.get(index + VISITED_AHEAD) {
                prefetch(ahead.load(Ordering::Relaxed).cast_const().cast());
            }
            let mut link = bucket.swap(ptr::null_mut(), Ordering::Relaxed);
            // SAFETY: `&mut self`; linked records are alive.
            while let Some(record) = unsafe { unmarked(link).as_ref() } {
                all.push(unmarked(link));
                link = record.next.load(Ordering::Relaxed);
            }
        }
        all
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::record::REMOVED;
    use deuteron_epoch::Epochs;
    use std::sync::Arc;

    #[test]
    fn records_of_one_bucket_are_found_inserted_and_removed() {
        let (epochs, account) = (Epochs::new(), Arc::new(Account::new(1 << 20)));
        // Two buckets: chains are long.
        let mut table = MvccTable::new(2, 1, Arc::clone(&account));
        let keys: Vec<[u8; 1]> = (0..50u8).map(|key| [key]).collect();
        let guard = epochs.pin();
        for key in &keys {
            let key = table.key(TableId(1), key);
            assert!(table.find(key, &guard).is_none());
            let new = Record::allocate(key, Timestamp(0), 0);
            assert!(table.insert(key, new, &guard).is_ok());
            let second = Record::allocate(key, Timestamp(0), 0);
            assert!(table.insert(key, second, &guard).is_err(), "one record for each key");
            // SAFETY: not linked.
            unsafe { Record::free(second.cast(), (*second).bytes()) };
        }
        assert!(table.find(table.key(TableId(2), &[1]), &guard).is_none());
        for key in keys.iter().step_by(2) {
            let key = table.key(TableId(1), key);
            let record = table.find(key, &guard).unwrap();
            record.raise_read_timestamp(Timestamp(u64::from(key.key[0]) + 1), &table.read_timestamps_lost);
            record.head.store(REMOVED, Ordering::SeqCst);
            let generation = table.stripe(key.hash).generation();
            table.remove_frozen(&record, &guard);
            table.remove_frozen(&record, &guard);
            assert!(table.find(key, &guard).is_none());
            assert!(table.stripe(key.hash).floor() > Timestamp(u64::from(key.key[0])));
            assert_ne!(table.stripe(key.hash).generation(), generation);
        }
        drop(guard);
        assert_eq!(epochs.collect(), 25);
        let left = table.take_all();
        assert_eq!(left.len(), 25);
        for record in left {
            // SAFETY: taken out of the table.
            unsafe { Record::free(record.cast(), (*record).bytes()) };
        }
    }

    #[test]
    fn keys_spread_over_buckets_and_stripes() {
        for (buckets, stripes) in [(1 << 10, 1 << 10), (1 << 11, 1 << 7)] {
            let (epochs, account) = (Epochs::new(), Arc::new(Account::new(1 << 20)));
            let mut table = MvccTable::new(buckets, 1, account);
            assert_eq!((table.buckets(), table.fixed_bytes()), (buckets, (8 + 4) * buckets + 16 * stripes));
            let guard = epochs.pin();
            for number in 0..1000u32 {
                let bytes = number.to_be_bytes();
                let key = table.key(TableId(number % 3), &bytes);
                assert!(table.insert(key, Record::allocate(key, Timestamp(0), 0), &guard).is_ok());
            }
            let mut lengths = vec![0; buckets];
            for (bucket, length) in lengths.iter_mut().enumerate() {
                table.for_each_in_bucket(bucket, &guard, |_| *length += 1);
            }
            assert_eq!(lengths.iter().sum::<usize>(), 1000);
            assert!(lengths.iter().all(|length| *length < 12), "{lengths:?}");
            assert!(lengths.iter().filter(|length| **length > 0).count() > buckets / 4);
            // Keys of one table are not those of another.
            assert_ne!(table.key(TableId(1), b"k").hash, table.key(TableId(2), b"k").hash);
            drop(guard);
            for record in table.take_all() {
                // SAFETY: taken out of the table.
                unsafe { Record::free(record.cast(), (*record).bytes()) };
            }
        }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::record::REMOVED;
    use crate::sync::publication_fence;
    use crate::transaction_table::SlotIndex;
    use crate::version::{Version, Written};
    use deuteron_contract::Lsn;
    use deuteron_epoch::Epochs;
    use loom::thread;
    use std::sync::Arc;

    static LOST: Lost = Lost::new();

    struct World {
        epochs: Arc<Epochs>,
        table: MvccTable,
    }

    impl World {
        fn new() -> Arc<World> {
            let account = Arc::new(Account::new(1 << 20));
            Arc::new(World { epochs: Epochs::new(), table: MvccTable::new(1, 1, account) })
        }

        fn key(&self) -> KeyRef<'static> {
            self.table.key(TableId(1), b"k")
        }

        /// Finds or inserts; whether it inserted.
        fn insert(&self, key: KeyRef<'_>) -> bool {
            let guard = self.epochs.pin();
            let new = Record::allocate(key, Timestamp(0), 0);
            let inserted = self.table.insert(key, new, &guard).is_ok();
            if !inserted {
                // SAFETY: not linked.
                unsafe { Record::free(new.cast(), (*new).bytes()) };
            }
            inserted
        }

        fn freeze_and_remove(&self) -> bool {
            let guard = self.epochs.pin();
            let Some(record) = self.table.find(self.key(), &guard) else { return false };
            let frozen = record
                .head
                .compare_exchange(ptr::null_mut(), REMOVED, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok();
            if frozen {
                self.table.remove_frozen(&record, &guard);
            }
            frozen
        }
    }

    impl Drop for World {
        fn drop(&mut self) {
            for record in self.table.take_all() {
                // SAFETY: nobody uses the table any more; written versions are not embedded.
                unsafe {
                    let version = (*record).head.load(Ordering::Relaxed);
                    if !version.is_null() && version != REMOVED {
                        Version::free(version.cast(), (*version).bytes());
                    }
                    Record::free(record.cast(), (*record).bytes());
                }
            }
        }
    }

    fn model(check: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(check);
    }

    /// B1: two insertions of a key, of which one succeeds, beside the removal of a neighbour.
    #[test]
    fn loom_a_chain_holds_a_key_once() {
        // Over all interleavings.
        static LOSSES: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        model(|| {
            let world = World::new();
            assert!(world.insert(world.key()));
            let neighbour = world.table.key(TableId(1), b"n");
            let threads = [0, 1].map(|_| {
                let world = Arc::clone(&world);
                thread::spawn(move || world.insert(world.table.key(TableId(1), b"n")))
            });
            assert!(world.freeze_and_remove());
            let inserted = threads.map(|thread| thread.join().unwrap());
            assert!(inserted[0] != inserted[1]);
            let guard = world.epochs.pin();
            assert!(world.table.find(neighbour, &guard).is_some());
            assert!(world.table.find(world.key(), &guard).is_none());
            LOSSES.fetch_add(world.table.buckets_lost.count(), std::sync::atomic::Ordering::Relaxed);
        });
        assert_ne!(LOSSES.load(std::sync::atomic::Ordering::Relaxed), 0, "who loses a swap counts");
    }

    /// R3 against R5 on one record: the reader finds the version, or the writer finds the read.
    #[test]
    fn loom_the_reader_or_the_writer_sees_the_other() {
        model(|| {
            let world = World::new();
            assert!(world.insert(world.key()));
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || {
                let guard = other.epochs.pin();
                let record = other.table.find(other.key(), &guard).unwrap();
                let head = record.head.load(Ordering::SeqCst);
                record.raise_read_timestamp(Timestamp(10), &LOST);
                publication_fence();
                !head.is_null() || !record.head.load(Ordering::SeqCst).is_null()
            });
            let guard = world.epochs.pin();
            let record = world.table.find(world.key(), &guard).unwrap();
            let new = Version::allocate_written(SlotIndex(0), Lsn(8), Written::Logged, 0);
            record.head.store(new, Ordering::SeqCst);
            publication_fence();
            let pushed = record.read_timestamp(world.table.stripe(world.key().hash), &LOST) >= Timestamp(10);
            drop(guard);
            assert!(reader.join().unwrap() || pushed);
        });
    }

    /// R13: a read without a record against a write that brings one: the reader finds the record, or the writer finds
    /// the floor.
    #[test]
    fn loom_a_read_of_nothing_is_seen_or_sees_the_record() {
        model(|| {
            let world = World::new();
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || {
                let guard = other.epochs.pin();
                other.table.stripe(other.key().hash).raise_floor(Timestamp(10));
                publication_fence();
                other.table.find(other.key(), &guard).is_some()
            });
            assert!(world.insert(world.key()));
            let guard = world.epochs.pin();
            publication_fence();
            let record = world.table.find(world.key(), &guard).unwrap();
            let pushed = record.read_timestamp(world.table.stripe(world.key().hash), &LOST) >= Timestamp(10);
            drop(guard);
            assert!(reader.join().unwrap() || pushed);
        });
    }

    /// The read cache (R14): what a reader has fetched is published whole, as the base of a record, and only if nothing has been
    /// evicted meanwhile; so it never hides a version that was posted and evicted since. What is recycled under a reader
    /// stays as it is until the reader is gone.
    #[test]
    fn loom_the_read_cache_publishes_what_is_newest_and_recycles_what_nobody_reads() {
        use crate::sync::AtomicU64;
        use crate::version::Payload;

        /// The value of a version says its timestamp.
        fn check(version: &Version) -> u64 {
            let at = match version.state() {
                crate::version::VersionState::Committed(at) => at.0,
                other => panic!("{other:?}"),
            };
            match version.payload() {
                Payload::Inline(bytes) => assert_eq!(bytes, [at as u8; 3]),
                other => panic!("{other:?}"),
            }
            at
        }

        fn base(at: u64) -> *mut Version {
            Version::allocate_base(Timestamp(at), Some(&[at as u8; 3]), ptr::null_mut())
        }

        model(|| {
            let world = World::new();
            // What the data component has.
            let stored = Arc::new(AtomicU64::new(1));
            let (other, its) = (Arc::clone(&world), Arc::clone(&stored));
            let reader = thread::spawn(move || {
                let key = other.key();
                let generation = other.table.stripe(key.hash).generation();
                let fetched = its.load(Ordering::SeqCst);
                other.insert(key);
                let guard = other.epochs.pin();
                let Some(record) = other.table.find(key, &guard) else { return };
                if other.table.stripe(key.hash).generation() == generation {
                    let new = base(fetched);
                    let linked = record.head.compare_exchange(
                        ptr::null_mut(),
                        new,
                        Ordering::SeqCst,
                        Ordering::Relaxed,
                    );
                    if linked.is_err() {
                        // SAFETY: not linked.
                        unsafe { Version::free(new.cast(), (*new).bytes()) };
                    }
                }
                let head = record.head.load(Ordering::SeqCst);
                if !head.is_null() && head != REMOVED {
                    // SAFETY: reached through the head, under the guard.
                    check(unsafe { &*head });
                }
            });
            // A writer's version, posted, then evicted with its record.
            world.insert(world.key());
            let guard = world.epochs.pin();
            let record = world.table.find(world.key(), &guard).unwrap();
            let new = base(2);
            let below = record.head.load(Ordering::SeqCst);
            // SAFETY: not linked.
            unsafe { (*new).next.store(below, Ordering::Relaxed) };
            if record.head.compare_exchange(below, new, Ordering::SeqCst, Ordering::Relaxed).is_ok() {
                stored.store(2, Ordering::SeqCst);
                let frozen = record.head.compare_exchange(new, REMOVED, Ordering::SeqCst, Ordering::Relaxed);
                assert!(frozen.is_ok(), "nobody installs above it");
                world.table.remove_frozen(&record, &guard);
                let mut version = new;
                // SAFETY: unlinked by the swap; retired once, freed when no guard is left.
                while let Some(evicted) = unsafe { Linked::new(version) } {
                    version = evicted.next.load(Ordering::Relaxed);
                    // SAFETY: as above.
                    unsafe { guard.retire(evicted.pointer().cast(), evicted.bytes(), Version::free) };
                }
            } else {
                // SAFETY: not linked.
                unsafe { Version::free(new.cast(), (*new).bytes()) };
            }
            drop(guard);
            world.epochs.collect();
            reader.join().unwrap();
            let guard = world.epochs.pin();
            if let Some(record) = world.table.find(world.key(), &guard) {
                let head = record.head.load(Ordering::SeqCst);
                if !head.is_null() {
                    // SAFETY: reached through the head, under the guard.
                    assert_eq!(check(unsafe { &*head }), stored.load(Ordering::SeqCst), "a stale base");
                }
            }
        });
    }

    /// R12: a read before an eviction against a write after it: the reader starts over, or the writer finds the read in
    /// the floor.
    #[test]
    fn loom_an_eviction_loses_no_read() {
        model(|| {
            let world = World::new();
            assert!(world.insert(world.key()));
            let other = Arc::clone(&world);
            let reader = thread::spawn(move || {
                let guard = other.epochs.pin();
                let Some(record) = other.table.find(other.key(), &guard) else { return true };
                if record.head.load(Ordering::SeqCst) == REMOVED {
                    return true;
                }
                record.raise_read_timestamp(Timestamp(10), &LOST);
                publication_fence();
                !record.head.load(Ordering::SeqCst).is_null()
            });
            if world.freeze_and_remove() {
                assert!(world.insert(world.key()));
                let guard = world.epochs.pin();
                let record = world.table.find(world.key(), &guard).unwrap();
                let new = Version::allocate_written(SlotIndex(0), Lsn(8), Written::Logged, 0);
                record.head.store(new, Ordering::SeqCst);
                publication_fence();
                let pushed =
                    record.read_timestamp(world.table.stripe(world.key().hash), &LOST) >= Timestamp(10);
                drop(guard);
                assert!(reader.join().unwrap() || pushed);
            } else {
                reader.join().unwrap();
            }
        });
    }
}
