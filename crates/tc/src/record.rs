//! A record entry of the MVCC hash table: the key, its read timestamp, its versions. One allocation.
//!
//! ```text
//!   next            the next record of the bucket; bit 0 set: this record is removed from the chain
//!   head            the newest version, NULL (nothing but the unresolved base), or REMOVED
//!   read_timestamp  bit 63 UNFOLDED, else the latest timestamp at which the newest version was read
//!   queue_next      the next record of a queue of the ordered index, see `ordered_index`
//!   hash, table, bytes, key length, flags
//!   key, then perhaps an embedded base version
//! ```
//!
//! 48 bytes and the key: with a key of up to 16 bytes a search touches one cache line of a record.
//!
//! # Life
//!
//! ```text
//!   in the chain ── evict: head := REMOVED ──► frozen ── floor raised ── next marked ──► unlinked ──► retired
//! ```
//!
//! # Invariants
//!
//! - **E1** The chain of versions is prepended to by anybody with a compare-and-swap of `head`. Everything else (cutting
//!   it, unlinking aborted versions, replacing one, resolving a base below others, freezing) is done by the
//!   holder of [`MAINTENANCE`], which nobody waits for: who does not get it lets it be.
//! - **E2** A frozen record stays frozen; whoever meets one helps to remove it and starts over (rule R12).
//! - **E3** A record with [`QUEUED`] set is referred to by the ordered index. It is retired by whoever comes second: the
//!   one who unlinks it from the bucket, or the one who drops that reference. Whoever sets QUEUED sets [`PLACED`] once the index has
//!   the record, and QUEUED is not cleared before: so PLACED always tells of the reference that is there.
//! - **E4** [`UNFOLDED`] is set in a fresh record, and is cleared by taking the floor of its stripe into account.
//!   Until then the read timestamp alone does not protect what was read before the record came (rule R13).

use crate::mvcc_table::Stripe;
use crate::sync::{AtomicPtr, AtomicU16, AtomicU64, Lost, Ordering};
use crate::version::{PRUNED, Version};
use deuteron_contract::{TableId, Timestamp};
use deuteron_epoch::Guard;
use deuteron_pool::Part;
use std::alloc::Layout;
use std::ptr::{self, NonNull};

/// `head` of a record that is being removed.
pub(crate) const REMOVED: *mut Version = ptr::without_provenance_mut(4);

const UNFOLDED: u64 = 1 << 63;

/// Used since the collector last came by.
const REFERENCED: u16 = 1;
/// E3: in a queue or in the ordered index.
const QUEUED: u16 = 2;
/// E1: somebody changes the chain of versions.
const MAINTENANCE: u16 = 4;
/// E3: unlinked from the bucket.
const UNLINKED: u16 = 8;
/// E3: the ordered index has what QUEUED says that it has, or is going to have.
const PLACED: u16 = 16;

/// A base version up to this many bytes is embedded in the record that is allocated for it.
pub(crate) const EMBEDDED_BYTES_MAX: usize = 512;

/// See the [module](self).
#[repr(C)]
pub(crate) struct Record {
    pub(crate) next: AtomicPtr<Record>,
    pub(crate) head: AtomicPtr<Version>,
    read_timestamp: AtomicU64,
    pub(crate) queue_next: AtomicPtr<Record>,
    hash: KeyHash,
    table: u32,
    bytes: u32,
    key_length: u16,
    flags: AtomicU16,
    // The key follows, then perhaps an embedded version, 8-byte aligned.
}

#[cfg(not(any(loom, shuttle)))]
const _: () = assert!(size_of::<Record>() == 48);

/// The hash of a table and a key.
pub(crate) type KeyHash = u32;

/// A table and a key with their hash: what identifies a record.
#[derive(Clone, Copy)]
pub(crate) struct KeyRef<'k> {
    pub(crate) hash: KeyHash,
    pub(crate) table: TableId,
    pub(crate) key: &'k [u8],
}

impl Record {
    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, align_of::<Record>())
            .expect("keys and values are far below isize::MAX")
    }

    fn embedded_offset(key_length: usize) -> usize {
        (size_of::<Record>() + key_length).next_multiple_of(align_of::<Version>())
    }

    /// A record without versions, not yet linked, with room for an embedded version of `embedded_bytes`.
    pub(crate) fn allocate(key: KeyRef<'_>, read_timestamp: Timestamp, embedded_bytes: usize) -> *mut Record {
        let mut bytes = size_of::<Record>() + key.key.len();
        if embedded_bytes > 0 {
            bytes = Self::embedded_offset(key.key.len()) + embedded_bytes;
        }
        let record = deuteron_pool::allocate(Part::Records, Self::layout(bytes)).as_ptr().cast::<Record>();
        let content = Record {
            next: AtomicPtr::new(ptr::null_mut()),
            head: AtomicPtr::new(ptr::null_mut()),
            read_timestamp: AtomicU64::new(read_timestamp.0 | UNFOLDED),
            queue_next: AtomicPtr::new(ptr::null_mut()),
            hash: key.hash,
            table: key.table.0,
            bytes: bytes as u32,
            key_length: key.key.len() as u16,
            flags: AtomicU16::new(0),
        };
        // SAFETY: fresh memory with room for the header and the key.
        unsafe {
            record.write(content);
            record.add(1).cast::<u8>().copy_from_nonoverlapping(key.key.as_ptr(), key.key.len());
        }
        record
    }

    /// Where the embedded version of a record goes that was allocated with room for one.
    ///
    /// # Safety
    /// `record` was allocated so, and is alive.
    pub(crate) unsafe fn embedded(record: *mut Record) -> *mut Version {
        // SAFETY: the caller's contract.
        let key_length = unsafe { (*record).key_length } as usize;
        record.cast::<u8>().wrapping_add(Self::embedded_offset(key_length)).cast()
    }

    /// # Safety
    /// `pointer` came from [`Record::allocate`], `bytes` is [`Record::bytes`], and nobody uses it any more.
    pub(crate) unsafe fn free(pointer: *mut u8, bytes: usize) {
        #[cfg(any(loom, shuttle))]
        // SAFETY: the caller's contract; loom's and shuttle's atomics own memory.
        unsafe {
            ptr::drop_in_place(pointer.cast::<Record>());
        }
        // SAFETY: the caller's contract; what was allocated is not null.
        unsafe { deuteron_pool::free(Part::Records, NonNull::new_unchecked(pointer), Self::layout(bytes)) };
    }

    /// The size of the allocation.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Whether it or its newest version is in the way of others ([`deuteron_pool::is_stranded`]).
    pub(crate) fn is_stranded(&self, _guard: &Guard<'_>) -> bool {
        let head = self.head.load(Ordering::Acquire);
        if head == REMOVED {
            return false;
        }
        // SAFETY: reached through the head under the guard (V1).
        let newest = if head == PRUNED { None } else { unsafe { head.as_ref() } };
        deuteron_pool::is_stranded(Part::Records, NonNull::from(self).cast(), self.bytes())
            || newest.is_some_and(Version::is_stranded)
    }

    pub(crate) fn hash(&self) -> KeyHash {
        self.hash
    }

    pub(crate) fn table(&self) -> TableId {
        TableId(self.table)
    }

    #[inline]
    pub(crate) fn key(&self) -> &[u8] {
        let key = ptr::from_ref(self).wrapping_add(1).cast::<u8>();
        // SAFETY: `allocate` wrote this many bytes behind the header, and nobody changes them.
        unsafe { std::slice::from_raw_parts(key, self.key_length as usize) }
    }

    #[inline]
    pub(crate) fn is(&self, key: KeyRef<'_>) -> bool {
        self.hash == key.hash && self.table == key.table.0 && are_equal(self.key(), key.key)
    }

    /// Asks for the two lines behind the first, where an embedded version lies, while the first is on its way.
    #[inline(always)]
    pub(crate) fn prefetch(record: *const Record) {
        prefetch(record.cast::<u8>().wrapping_add(64));
        prefetch(record.cast::<u8>().wrapping_add(128));
    }

    /// Asks for the newest version and the value that may follow it, and returns it; `None` if there is none.
    #[inline]
    pub(crate) fn prefetch_version<'g>(&self, guard: &'g Guard<'_>) -> Option<&'g Version> {
        let version = self.prefetch_head(guard)?;
        let bytes = std::ptr::from_ref(version).cast::<u8>();
        prefetch(bytes.wrapping_add(64));
        prefetch(bytes.wrapping_add(128));
        Some(version)
    }

    /// Asks for the head of the newest version, and returns it; `None` if there is none.
    #[inline]
    pub(crate) fn prefetch_head<'g>(&self, _guard: &'g Guard<'_>) -> Option<&'g Version> {
        let head = self.head.load(Ordering::Acquire);
        if head.is_null() || head == REMOVED || head == PRUNED {
            return None;
        }
        prefetch(head.cast());
        // SAFETY: reached through a record's head under a guard (V1).
        Some(unsafe { &*head })
    }

    /// Asks for the version beneath the newest, if there is one.
    #[inline]
    pub(crate) fn prefetch_second(&self, _guard: &Guard<'_>) {
        let head = self.head.load(Ordering::Acquire);
        if head.is_null() || head == REMOVED || head == PRUNED {
            return;
        }
        // SAFETY: reached through a record's head under a guard (V1).
        let second = unsafe { &*head }.next.load(Ordering::Relaxed);
        if !second.is_null() && second != PRUNED {
            prefetch(second.cast());
        }
    }

    // ---- the read timestamp ---------------------------------------------------------------------------------

    /// R3: raises the read timestamp to at least `to`. It may only err upward.
    #[inline]
    pub(crate) fn raise_read_timestamp(&self, to: Timestamp, lost: &Lost) {
        let mut seen = self.read_timestamp.load(Ordering::SeqCst);
        while seen & !UNFOLDED < to.0 {
            let new = seen & UNFOLDED | to.0;
            match self.read_timestamp.compare_exchange_weak(seen, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(now) => {
                    lost.note();
                    seen = now;
                }
            }
        }
    }

    /// What a writer compares itself with (R5), the floor of the stripe taken into account (E4).
    #[inline]
    pub(crate) fn read_timestamp(&self, stripe: &Stripe, lost: &Lost) -> Timestamp {
        let mut seen = self.read_timestamp.load(Ordering::SeqCst);
        while seen & UNFOLDED != 0 {
            let new = (seen & !UNFOLDED).max(stripe.floor().0);
            match self.read_timestamp.compare_exchange_weak(seen, new, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => seen = new,
                Err(now) => {
                    lost.note();
                    seen = now;
                }
            }
        }
        Timestamp(seen)
    }

    /// What is folded into the floor when the record goes (R12). The floor itself need not be.
    pub(crate) fn own_read_timestamp(&self) -> Timestamp {
        Timestamp(self.read_timestamp.load(Ordering::SeqCst) & !UNFOLDED)
    }

    // ---- the flags ------------------------------------------------------------------------------------------

    /// Gives the record a second chance.
    #[inline]
    pub(crate) fn set_referenced(&self) {
        if self.flags.load(Ordering::Relaxed) & REFERENCED == 0 {
            self.flags.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Takes the second chance away; whether there was one.
    pub(crate) fn take_referenced(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & REFERENCED != 0
            && self.flags.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }

    /// E1: the right to change the chain, given back on drop; `None` if somebody else has it.
    pub(crate) fn try_maintain(&self) -> Option<Maintenance<'_>> {
        let before = self.flags.fetch_or(MAINTENANCE, Ordering::Acquire);
        // Lazily: a value made and dropped would give back what somebody else has.
        (before & MAINTENANCE == 0).then(|| Maintenance { record: self, _not_send: std::marker::PhantomData })
    }

    #[inline]
    pub(crate) fn is_queued(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & QUEUED != 0
    }

    /// E3: the ordered index has the record.
    #[inline]
    pub(crate) fn is_placed(&self) -> bool {
        // SeqCst: it is the look after the installation of a version, see `ordered_index`.
        self.flags.load(Ordering::SeqCst) & PLACED != 0
    }

    /// E3: the ordered index is going to have the record; somebody else sees to that.
    pub(crate) fn is_being_placed(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & (QUEUED | PLACED | UNLINKED) == QUEUED
    }

    /// E3: the ordered index will refer to the record; false if it does already or somebody else is about to see to it, or if the
    /// record is gone.
    #[inline]
    pub(crate) fn set_queued(&self) -> bool {
        self.flags.fetch_or(QUEUED, Ordering::SeqCst) & (QUEUED | UNLINKED) == 0
    }

    /// E3: whoever has set QUEUED has put the record where the index has it.
    #[inline]
    pub(crate) fn set_placed(&self) {
        self.flags.fetch_or(PLACED, Ordering::SeqCst);
    }

    /// E3: the ordered index gives up its reference; true if the caller has to retire the record.
    pub(crate) fn clear_queued(&self) -> bool {
        self.flags.fetch_and(!(QUEUED | PLACED), Ordering::SeqCst) & UNLINKED != 0
    }

    /// E3: the record has been unlinked from its bucket; true if the caller has to retire it.
    pub(crate) fn set_unlinked(&self) -> bool {
        self.flags.fetch_or(UNLINKED, Ordering::SeqCst) & QUEUED == 0
    }
}

/// Where all records are visited, so many are asked for ahead.
pub(crate) const VISITED_AHEAD: usize = 32;

/// Asks for the cache line of an address, which may be any.
#[inline(always)]
pub(crate) fn prefetch(address: *const u8) {
    #[cfg(all(test, not(any(loom, shuttle))))]
    crate::counted::note_prefetch(address.addr());
    deuteron_epoch::prefetch(address);
}

/// Compares keys, mostly short ones, without a call.
#[inline]
fn are_equal(a: &[u8], b: &[u8]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let (a_words, a_rest) = a.as_chunks::<8>();
    let (b_words, b_rest) = b.as_chunks::<8>();
    a_words.iter().zip(b_words).all(|(a, b)| u64::from_ne_bytes(*a) == u64::from_ne_bytes(*b))
        && a_rest.iter().zip(b_rest).all(|(a, b)| a == b)
}

/// The right to change a record's chain of versions (E1).
pub(crate) struct Maintenance<'r> {
    record: &'r Record,
    _not_send: std::marker::PhantomData<*mut ()>,
}

impl Maintenance<'_> {
    /// Keeps the right for ever: the record is frozen and its chain is gone.
    pub(crate) fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for Maintenance<'_> {
    fn drop(&mut self) {
        self.record.flags.fetch_and(!MAINTENANCE, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static LOST: Lost = Lost::new();

    fn with_record(test: impl FnOnce(&Record)) {
        let key = KeyRef { hash: 7, table: TableId(1), key: b"some key" };
        let record = Record::allocate(key, Timestamp(5), 0);
        // SAFETY: just allocated, freed below.
        unsafe {
            assert!((*record).is(key));
            test(&*record);
            Record::free(record.cast(), (*record).bytes());
        }
    }

    /// A failed attempt once gave back what the first had: two threads changed the chain, and a version was freed twice.
    #[test]
    fn a_failed_attempt_to_maintain_leaves_the_right_where_it_is() {
        with_record(|record| {
            let first = record.try_maintain();
            assert!(first.is_some());
            assert!(record.try_maintain().is_none());
            assert!(record.try_maintain().is_none());
            drop(first);
            assert!(record.try_maintain().is_some());
        });
    }

    #[test]
    fn the_second_of_index_and_bucket_retires_the_record() {
        with_record(|record| {
            assert!(record.set_queued() && !record.set_queued());
            assert!(!record.set_unlinked());
            assert!(record.clear_queued());
        });
        with_record(|record| {
            assert!(record.set_queued() && !record.clear_queued());
            assert!(record.set_unlinked());
            assert!(!record.set_queued(), "a record that is gone is not queued");
        });
    }

    #[test]
    fn a_record_without_versions_has_none_to_ask_for() {
        let epochs = deuteron_epoch::Epochs::new();
        for end in [ptr::null_mut(), REMOVED, PRUNED] {
            with_record(|record| {
                record.head.store(end, Ordering::SeqCst);
                assert!(record.prefetch_head(&epochs.pin()).is_none());
            });
        }
    }

    #[test]
    #[cfg(not(shuttle))]
    fn what_a_record_says_already_is_not_stored_again() {
        with_record(|record| {
            let before = crate::counted::stores();
            record.raise_read_timestamp(Timestamp(5), &LOST);
            record.raise_read_timestamp(Timestamp(4), &LOST);
            assert!(!record.take_referenced());
            assert_eq!(crate::counted::stores(), before);
            assert_eq!(record.own_read_timestamp(), Timestamp(5));
            record.set_referenced();
            let before = crate::counted::stores();
            record.set_referenced();
            assert_eq!(crate::counted::stores(), before);
            assert!(record.take_referenced());
        });
    }

    #[test]
    fn read_timestamps_only_rise() {
        with_record(|record| {
            record.raise_read_timestamp(Timestamp(9), &LOST);
            record.raise_read_timestamp(Timestamp(8), &LOST);
            assert_eq!(record.own_read_timestamp(), Timestamp(9));
        });
    }

    #[test]
    fn keys_of_all_lengths_compare() {
        for len in 0..40 {
            let key: Vec<u8> = (0..len).collect();
            assert!(are_equal(&key, &key.clone()));
            for at in 0..key.len() {
                let mut other = key.clone();
                other[at] ^= 1;
                assert!(!are_equal(&key, &other));
            }
            assert!(!are_equal(&key, &[&key[..], b"x"].concat()));
        }
    }

    #[test]
    fn a_record_has_a_second_chance_until_it_is_taken() {
        with_record(|record| {
            assert!(!record.take_referenced());
            // Other flags are other flags.
            assert!(record.set_queued());
            let _maintenance = record.try_maintain();
            assert!(!record.take_referenced());
            record.set_referenced();
            record.set_referenced();
            assert!(record.is_queued());
            assert!(record.take_referenced() && !record.take_referenced());
            assert!(record.try_maintain().is_none() && record.is_queued());
            assert!(!record.clear_queued());
        });
    }

    #[test]
    fn the_right_that_is_kept_is_never_given_again() {
        with_record(|record| {
            record.try_maintain().expect("nobody has it").keep();
            assert!(record.try_maintain().is_none());
        });
    }

    #[test]
    fn a_record_is_as_long_as_its_key_and_an_aligned_version_need() {
        for (key, embedded, bytes) in [(1, 0, 49), (16, 0, 64), (1, 32, 56 + 32), (8, 40, 56 + 40)] {
            let name = vec![7; key];
            let key = KeyRef { hash: 7, table: TableId(1), key: &name };
            let record = Record::allocate(key, Timestamp(5), embedded);
            // SAFETY: just allocated.
            unsafe {
                assert_eq!((*record).bytes(), bytes);
                assert_eq!(
                    ((*record).key(), (*record).hash(), (*record).table()),
                    (&name[..], 7, TableId(1))
                );
                let offset = Record::embedded(record).addr() - record.addr();
                assert_eq!(offset, (48 + name.len()).next_multiple_of(8));
                Record::free(record.cast(), (*record).bytes());
            }
        }
    }

    #[test]
    fn a_record_is_that_of_its_hash_its_table_and_its_key() {
        with_record(|record| {
            let key = KeyRef { hash: 7, table: TableId(1), key: &b"some key"[..] };
            assert!(record.is(key));
            assert!(!record.is(KeyRef { hash: 8, ..key }));
            assert!(!record.is(KeyRef { table: TableId(2), ..key }));
            assert!(!record.is(KeyRef { key: b"some kex", ..key }));
        });
    }

    #[test]
    fn a_fresh_record_counts_as_read_when_its_stripe_was() {
        let account = std::sync::Arc::new(crate::memory::Account::new(1 << 20));
        let table = crate::mvcc_table::MvccTable::new(1, 0, account);
        let stripe = table.stripe(0);
        stripe.raise_floor(Timestamp(7));
        with_record(|record| {
            assert_eq!(record.own_read_timestamp(), Timestamp(5), "its own only");
            record.raise_read_timestamp(Timestamp(6), &LOST);
            assert_eq!(record.own_read_timestamp(), Timestamp(6));
            assert_eq!(record.read_timestamp(stripe, &LOST), Timestamp(7));
            assert_eq!(record.own_read_timestamp(), Timestamp(7), "from now on");
            stripe.raise_floor(Timestamp(9));
            assert_eq!(
                record.read_timestamp(stripe, &LOST),
                Timestamp(7),
                "what comes to the floor later is of others"
            );
            record.raise_read_timestamp(Timestamp(8), &LOST);
            assert_eq!(record.read_timestamp(stripe, &LOST), Timestamp(8));
        });
        with_record(|record| {
            record.raise_read_timestamp(Timestamp(12), &LOST);
            assert_eq!(record.read_timestamp(stripe, &LOST), Timestamp(12), "later than the floor");
        });
    }
}
