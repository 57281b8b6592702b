//! A version of a record: who wrote it or when it was committed, and where its value lies.
//!
//! ```text
//!   next        the version below (older), NULL, or PRUNED
//!   word        bits 63..2 slot index or timestamp, bits 1..0: 0 pending, 1 committed, 2 aborted
//!   payload     bit 63 ABSENT (a delete, or a key that does not exist)
//!               bit 62 INLINE: low bits are the length and the room, the value follows the header
//!               otherwise the low bits are the LSN of the log record that holds the value
//!               bit 61 EMBEDDED: the version lies inside its record's allocation
//!               bit 59 SPILLED: there is room behind the header, of so many bytes as its first 8 say
//!               bit 58 LARGE: the value lies in pieces before the log record; with INLINE, UNLOGGED: it was not logged when it was written
//!               bit 57 CACHED: in the read cache
//!   commit_lsn  where the writer's commit record lies; while pending: see V4; of what the data component had 0
//! ```
//!
//! A written version keeps its value in the log (the version cache of paper 3.2), and if that is short, a copy inline: a
//! reader then needs one cache miss less, and does not lose it when the log's memory is used again. A *base* version
//! was read from the data component and keeps its value inline. Such versions, and copies of written ones whose bytes had to be read
//! from disk, are the *read cache* (paper 3.3): the entry and the value in one allocation.
//!
//! The end of a chain means one of two things: NULL, "what the data component holds is the version below" (an
//! unresolved base), or [`PRUNED`], "the versions below have been dropped, nobody who may still read needs them".
//!
//! # Invariants
//!
//! - **V1** A version is reached through a record's head under a guard, or through the write set of the transaction
//!   that has not stamped it yet. It is retired by whoever unlinked it, holding the record's maintenance lock.
//! - **V2** `word` goes from pending to committed or aborted once, by its writer (*stamping*). A version that is not
//!   stamped is not unlinked.
//! - **V3** Chains are in descending order of final timestamps among the versions that commit (R5).
//! - **V4** While a version is pending, `commit_lsn` holds its ordinal in the writer's write set, for the writer.
//! - **V5** What lies behind the header is written before the version is linked; while it is pending, its writer, who alone
//!   looks at it then, may write it anew; after that nobody writes it. Others look at it once they know that the writer
//!   has committed, or when nobody can reach the version any more.

use crate::record::prefetch;
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use crate::transaction_table::SlotIndex;
use deuteron_contract::{Lsn, Timestamp};
use deuteron_epoch::Guard;
use deuteron_pool::Part;
use std::alloc::Layout;
use std::ptr::{self, NonNull};

/// `next` of a version below which versions have been dropped.
pub(crate) const PRUNED: *mut Version = ptr::without_provenance_mut(2);

const ABSENT: u64 = 1 << 63;
const INLINE: u64 = 1 << 62;
const EMBEDDED: u64 = 1 << 61;
/// Set when it is retired, in builds with debug assertions: once.
const RETIRED: u64 = 1 << 60;
const SPILLED: u64 = 1 << 59;
const LARGE: u64 = 1 << 58;
/// Holds what a read has brought: the read cache.
const CACHED: u64 = 1 << 57;
const LOW: u64 = CACHED - 1;
/// Of an inline payload.
const UNLOGGED: u64 = LARGE;

/// Of an inline payload: the length in the lower half of these bits, the room in the upper.
const LENGTH_BITS: u32 = 28;
const LENGTH: u64 = (1 << LENGTH_BITS) - 1;

/// The least room behind the header, if there is any: enough to say how much it is (SPILLED).
const ROOM_MIN: usize = 8;

/// A written value up to this many bytes may be kept inline.
pub(crate) const WRITTEN_INLINE_MAX: usize = 512;

/// Written versions are a multiple of this long, so that one takes the memory of another.
pub(crate) const SIZE_STEP: usize = 16;
/// The longest written version.
pub(crate) const WRITTEN_BYTES_MAX: usize = size_of::<Version>() + WRITTEN_INLINE_MAX;

const PENDING: u64 = 0;
const COMMITTED: u64 = 1;
const ABORTED: u64 = 2;

/// What a version's word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VersionState {
    /// Not stamped: the slot knows.
    Pending(SlotIndex),
    /// Committed at this final timestamp.
    Committed(Timestamp),
    /// Garbage.
    Aborted,
}

/// What a transaction writes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Written<'v> {
    /// The key ceases to exist.
    Absent,
    /// The value stays in the log alone.
    Logged,
    /// So it does, in pieces.
    Large,
    /// The value is kept inline as well.
    Inline(&'v [u8]),
    /// The value is kept inline, and the log has it not yet.
    Unlogged(&'v [u8]),
}

/// Where a version's value is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Payload<'v> {
    /// There is none: the key does not exist in this version.
    Absent,
    /// Here.
    Inline(&'v [u8]),
    /// In the log.
    Logged(Lsn),
    /// In the log, in pieces.
    Large(Lsn),
}

/// See the [module](self).
#[repr(C)]
pub(crate) struct Version {
    pub(crate) next: AtomicPtr<Version>,
    word: AtomicU64,
    payload: AtomicU64,
    commit_lsn: AtomicU64,
    // An inline value follows.
}

impl Version {
    /// Of what stays in the log, and of what is not there.
    fn encode_logged(lsn: Lsn, written: Written<'_>) -> u64 {
        debug_assert!(lsn.0 <= LOW);
        let kind = match written {
            Written::Absent => ABSENT,
            Written::Large => LARGE,
            _ => 0,
        };
        lsn.0 | kind
    }

    fn encode_inline(length: usize, room: usize) -> u64 {
        debug_assert!(length <= room && room as u64 <= LENGTH);
        INLINE | (room as u64) << LENGTH_BITS | length as u64
    }

    /// How many bytes a written version takes.
    #[inline]
    pub(crate) fn written_bytes(written: Written<'_>) -> usize {
        match written {
            Written::Absent | Written::Logged | Written::Large => size_of::<Version>(),
            Written::Inline(value) | Written::Unlogged(value) => {
                (size_of::<Version>() + value.len().max(ROOM_MIN)).next_multiple_of(SIZE_STEP)
            }
        }
    }

    /// A version that the transaction in `slot` writes, not yet linked. `ordinal` is its place in the write set.
    ///
    /// # Safety
    /// `version` came from [`Version::allocate`] with as many bytes as [`Version::written_bytes`] says, and nobody else knows it.
    #[inline]
    pub(crate) unsafe fn write_written(
        version: *mut Version,
        slot: SlotIndex,
        lsn: Lsn,
        written: Written<'_>,
        ordinal: u64,
    ) {
        let room = Self::written_bytes(written) - size_of::<Version>();
        let payload = match written {
            Written::Absent | Written::Logged | Written::Large => Self::encode_logged(lsn, written),
            Written::Inline(value) => Self::encode_inline(value.len(), room),
            Written::Unlogged(value) => Self::encode_inline(value.len(), room) | UNLOGGED,
        };
        let content = Version {
            next: AtomicPtr::new(ptr::null_mut()),
            word: AtomicU64::new(u64::from(slot.0) << 2 | PENDING),
            payload: AtomicU64::new(payload),
            commit_lsn: AtomicU64::new(ordinal),
        };
        // SAFETY: the caller's contract.
        unsafe {
            version.write(content);
            if let Written::Inline(value) | Written::Unlogged(value) = written {
                version.add(1).cast::<u8>().copy_from_nonoverlapping(value.as_ptr(), value.len());
            }
        }
    }

    /// [`Version::write_written`] to new memory.
    #[cfg(test)]
    pub(crate) fn allocate_written(
        slot: SlotIndex,
        lsn: Lsn,
        written: Written<'_>,
        ordinal: u64,
    ) -> *mut Version {
        let version = Self::allocate(Self::written_bytes(written));
        // SAFETY: just allocated in that size.
        unsafe { Self::write_written(version, slot, lsn, written, ordinal) };
        version
    }

    /// A base version with its value inline, not yet linked.
    pub(crate) fn allocate_base(
        timestamp: Timestamp,
        value: Option<&[u8]>,
        next: *mut Version,
    ) -> *mut Version {
        let version = Self::allocate(Self::base_bytes(value));
        // SAFETY: fresh memory with room for the header and the value.
        unsafe { Self::write_base(version, timestamp, value, next, false) };
        version
    }

    /// Header and value of a base version.
    pub(crate) fn base_bytes(value: Option<&[u8]>) -> usize {
        size_of::<Version>() + value.map_or(0, <[u8]>::len)
    }

    /// # Safety
    /// `version` points to [`Version::base_bytes`] bytes that nobody else uses, 8-byte aligned.
    pub(crate) unsafe fn write_base(
        version: *mut Version,
        timestamp: Timestamp,
        value: Option<&[u8]>,
        next: *mut Version,
        embedded: bool,
    ) {
        let length = value.map_or(0, <[u8]>::len);
        let mut payload = Self::encode_inline(length, length) | CACHED | if embedded { EMBEDDED } else { 0 };
        if value.is_none() {
            payload |= ABSENT;
        }
        let content = Version {
            next: AtomicPtr::new(next),
            word: AtomicU64::new(timestamp.0 << 2 | COMMITTED),
            payload: AtomicU64::new(payload),
            commit_lsn: AtomicU64::new(0),
        };
        // SAFETY: the caller's contract.
        unsafe {
            version.write(content);
            if let Some(value) = value {
                version.add(1).cast::<u8>().copy_from_nonoverlapping(value.as_ptr(), value.len());
            }
        }
    }

    fn layout(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, align_of::<Version>()).expect("values are far below isize::MAX")
    }

    /// Memory for a version, to be given back with [`Version::free`].
    pub(crate) fn allocate(bytes: usize) -> *mut Version {
        deuteron_pool::allocate(Part::Records, Self::layout(bytes)).as_ptr().cast()
    }

    /// # Safety
    /// `pointer` came from `allocate(bytes)`, is not embedded, and nobody uses it any more.
    pub(crate) unsafe fn free(pointer: *mut u8, bytes: usize) {
        #[cfg(any(loom, shuttle))]
        // SAFETY: the caller's contract; loom's and shuttle's atomics own memory.
        unsafe {
            ptr::drop_in_place(pointer.cast::<Version>());
        }
        // SAFETY: the caller's contract; what was allocated is not null.
        unsafe { deuteron_pool::free(Part::Records, NonNull::new_unchecked(pointer), Self::layout(bytes)) };
    }

    /// The size of the allocation; 0 for a version that is part of its record's.
    pub(crate) fn bytes(&self) -> usize {
        let payload = self.payload.load(Ordering::Relaxed);
        if payload & EMBEDDED != 0 {
            0
        } else if payload & INLINE != 0 {
            size_of::<Version>() + (payload >> LENGTH_BITS & LENGTH) as usize
        } else if payload & SPILLED != 0 {
            // SAFETY: SPILLED says that there is room for it, which `rewrite` has written it to. The caller is the writer,
            // or knows that it has ended (V5).
            size_of::<Version>() + unsafe { self.room().cast::<u64>().read_unaligned() } as usize
        } else {
            size_of::<Version>()
        }
    }

    /// Whether it is in the way of others ([`deuteron_pool::is_stranded`]). Of one that is not stamped it is not known: its writer may still
    /// change how large it is said to be (V5).
    pub(crate) fn is_stranded(&self) -> bool {
        let bytes = if self.is_stamped() { self.bytes() } else { 0 };
        bytes > 0 && deuteron_pool::is_stranded(Part::Records, NonNull::from(self).cast(), bytes)
    }

    /// Of a version in the read cache, how many bytes of it that are; else `None`.
    #[inline]
    pub(crate) fn cached_bytes(&self) -> Option<usize> {
        let payload = self.payload.load(Ordering::Relaxed);
        (payload & CACHED != 0).then_some(size_of::<Version>() + (payload & LENGTH) as usize)
    }

    /// Checks V1, in builds with debug assertions: a version is retired once.
    #[inline]
    #[track_caller]
    pub(crate) fn note_retired(&self) {
        if cfg!(debug_assertions) {
            let before = self.payload.fetch_or(RETIRED, Ordering::Relaxed);
            assert!(before & RETIRED == 0, "retired twice: {:?} {before:x}", self.state());
        }
    }

    /// What the word says.
    #[inline]
    pub(crate) fn state(&self) -> VersionState {
        let word = self.word.load(Ordering::SeqCst);
        match word & 3 {
            PENDING => VersionState::Pending(SlotIndex((word >> 2) as u32)),
            COMMITTED => VersionState::Committed(Timestamp(word >> 2)),
            _ => VersionState::Aborted,
        }
    }

    /// Whether the writer has stamped it (V2).
    pub(crate) fn is_stamped(&self) -> bool {
        self.word.load(Ordering::SeqCst) & 3 != PENDING
    }

    /// Whether the writer has stamped it as aborted.
    #[inline]
    pub(crate) fn is_aborted(&self) -> bool {
        self.word.load(Ordering::SeqCst) & 3 == ABORTED
    }

    /// The writer stamps it (V2).
    pub(crate) fn stamp_committed(&self, at: Timestamp, commit_lsn: Lsn) {
        // Ordered before the word that says what it means.
        self.commit_lsn.store(commit_lsn.0, Ordering::Relaxed);
        self.word.store(at.0 << 2 | COMMITTED, Ordering::Release);
    }

    /// The writer stamps it (V2).
    pub(crate) fn stamp_aborted(&self) {
        self.word.store(ABORTED, Ordering::Release);
    }

    /// Where the commit record lies, of a version seen stamped as committed. 0 for a base.
    pub(crate) fn commit_lsn(&self) -> Lsn {
        Lsn(self.commit_lsn.load(Ordering::Relaxed))
    }

    /// The place in the write set, for the writer before it stamps (V4).
    pub(crate) fn ordinal(&self) -> u64 {
        self.commit_lsn.load(Ordering::Relaxed)
    }

    /// What lies behind the header.
    fn room(&self) -> *mut u8 {
        ptr::from_ref(self).wrapping_add(1).cast::<u8>().cast_mut()
    }

    /// Whether [`Version::rewrite`] can keep the value inline.
    pub(crate) fn has_room_for(&self, value: &[u8]) -> bool {
        let room = self.bytes() - size_of::<Version>();
        room > 0 && value.len() <= room
    }

    /// The writer writes the key again: a new log record takes the place of the old. One of which the log has nothing yet must have
    /// [room](Version::has_room_for).
    ///
    /// # Safety
    /// The caller is the writer, has installed the version, and has not ended (V5).
    pub(crate) unsafe fn rewrite(&self, lsn: Lsn, written: Written<'_>) {
        let before = self.payload.load(Ordering::Relaxed);
        let room = self.bytes() - size_of::<Version>();
        let payload = match written {
            Written::Inline(value) | Written::Unlogged(value) if self.has_room_for(value) => {
                // SAFETY: there is room, and until the writer has ended nobody else looks at it (V5).
                unsafe { self.room().copy_from_nonoverlapping(value.as_ptr(), value.len()) };
                let is_unlogged = matches!(written, Written::Unlogged(_));
                Self::encode_inline(value.len(), room) | if is_unlogged { UNLOGGED } else { 0 }
            }
            _ => {
                debug_assert!(!matches!(written, Written::Unlogged(_)));
                let logged = Self::encode_logged(lsn, written);
                if before & INLINE != 0 {
                    // SAFETY: as above; the room is never less than this takes.
                    unsafe { self.room().cast::<u64>().write_unaligned(room as u64) };
                }
                logged | if room > 0 { SPILLED } else { 0 }
            }
        };
        self.payload.store(payload, Ordering::Release);
    }

    /// Asks for the version below.
    #[inline]
    pub(crate) fn prefetch_below(&self) {
        prefetch(self.next.load(Ordering::Relaxed).cast());
    }

    /// Bytes of the version below; none, if there is none any more.
    pub(crate) fn bytes_below(&self, _: &Guard<'_>) -> usize {
        let below = self.next.load(Ordering::Acquire);
        if below.is_null() || below == PRUNED {
            return 0;
        }
        // SAFETY: found in a chain under the guard (V2).
        unsafe { (*below).bytes() }
    }

    /// Whether the key exists in this version.
    pub(crate) fn is_absent(&self) -> bool {
        self.payload.load(Ordering::Acquire) & ABSENT != 0
    }

    /// Whether the log had no record of it when it was written last.
    pub(crate) fn is_unlogged(&self) -> bool {
        self.payload.load(Ordering::Relaxed) & (INLINE | UNLOGGED) == INLINE | UNLOGGED
    }

    /// Where the redo record lies; `None` if the value is inline.
    pub(crate) fn lsn(&self) -> Option<Lsn> {
        let payload = self.payload.load(Ordering::Acquire);
        (payload & INLINE == 0).then_some(Lsn(payload & LOW))
    }

    /// Where the value lies.
    #[inline]
    pub(crate) fn payload(&self) -> Payload<'_> {
        let payload = self.payload.load(Ordering::Acquire);
        if payload & ABSENT != 0 {
            Payload::Absent
        } else if payload & INLINE != 0 {
            // SAFETY: so many bytes behind the header have been written, and nobody writes them while they can be looked
            // at (V5); they live as long as the version (V1).
            Payload::Inline(unsafe { std::slice::from_raw_parts(self.room(), (payload & LENGTH) as usize) })
        } else if payload & LARGE != 0 {
            Payload::Large(Lsn(payload & LOW))
        } else {
            Payload::Logged(Lsn(payload & LOW))
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_base_holds_its_value_behind_its_header() {
        let version = Version::allocate_base(Timestamp(7), Some(b"value"), ptr::null_mut());
        // SAFETY: just allocated.
        let base = unsafe { &*version };
        assert!(matches!(base.payload(), Payload::Inline(b"value")));
        assert_eq!(base.state(), VersionState::Committed(Timestamp(7)));
        assert_eq!((base.bytes(), base.lsn(), base.is_absent()), (37, None, false));
        // SAFETY: not shared.
        unsafe { Version::free(version.cast(), base.bytes()) };
    }

    #[test]
    fn a_written_version_is_stamped_once_its_fate_is_known() {
        let version = Version::allocate_written(SlotIndex(3), Lsn(64), Written::Absent, 9);
        // SAFETY: just allocated.
        let written = unsafe { &*version };
        assert_eq!(written.state(), VersionState::Pending(SlotIndex(3)));
        assert!(!written.is_stamped());
        assert_eq!((written.ordinal(), written.lsn()), (9, Some(Lsn(64))));
        assert!(matches!(written.payload(), Payload::Absent));
        // SAFETY: nobody else knows it.
        unsafe { written.rewrite(Lsn(128), Written::Logged) };
        assert!(matches!(written.payload(), Payload::Logged(Lsn(128))));
        written.stamp_committed(Timestamp(5), Lsn(256));
        assert_eq!(written.state(), VersionState::Committed(Timestamp(5)));
        assert_eq!((written.commit_lsn(), written.bytes()), (Lsn(256), 32));
        // SAFETY: not shared.
        unsafe { Version::free(version.cast(), written.bytes()) };
    }

    #[test]
    fn a_short_value_is_inline_until_it_is_rewritten_by_one_that_does_not_fit() {
        let version = Version::allocate_written(SlotIndex(3), Lsn(64), Written::Inline(b"ten bytes."), 0);
        // SAFETY: just allocated.
        let written = unsafe { &*version };
        let rewrite = |lsn, value| {
            // SAFETY: nobody else knows it.
            unsafe { written.rewrite(Lsn(lsn), value) };
        };
        assert!(matches!(written.payload(), Payload::Inline(b"ten bytes.")));
        assert_eq!((written.bytes(), written.lsn()), (48, None));
        rewrite(72, Written::Inline(b"less"));
        assert!(matches!(written.payload(), Payload::Inline(b"less")));
        rewrite(80, Written::Inline(b"more than there is room"));
        assert!(matches!(written.payload(), Payload::Logged(Lsn(80))));
        assert_eq!((written.bytes(), written.lsn()), (48, Some(Lsn(80))));
        rewrite(88, Written::Absent);
        assert!(matches!(written.payload(), Payload::Absent) && written.is_absent());
        rewrite(96, Written::Inline(b"less"));
        assert!(matches!(written.payload(), Payload::Inline(b"less")), "the room is there still");
        assert_eq!(written.bytes(), 48);
        // SAFETY: not shared.
        unsafe { Version::free(version.cast(), written.bytes()) };
        let version = Version::allocate_written(SlotIndex(3), Lsn(64), Written::Inline(b""), 0);
        // SAFETY: just allocated.
        let written = unsafe { &*version };
        assert!(matches!(written.payload(), Payload::Inline(b"")));
        assert_eq!(written.bytes(), 48);
        // SAFETY: nobody else knows it.
        unsafe {
            written.rewrite(Lsn(72), Written::Absent);
            assert_eq!(written.bytes(), 48);
            Version::free(version.cast(), written.bytes());
        }
    }

    #[test]
    fn the_read_cache_counts_the_bytes_of_what_a_read_has_brought() {
        for (value, bytes) in [(Some(&b"value"[..]), 37), (Some(b""), 32), (None, 32)] {
            let version = Version::allocate_base(Timestamp(7), value, ptr::null_mut());
            // SAFETY: just allocated.
            let base = unsafe { &*version };
            assert_eq!(
                (base.cached_bytes(), base.bytes(), base.is_absent()),
                (Some(bytes), bytes, value.is_none())
            );
            assert!(!base.is_unlogged() && base.commit_lsn() == Lsn(0));
            // SAFETY: not shared.
            unsafe { Version::free(version.cast(), base.bytes()) };
        }
        for written in
            [Written::Absent, Written::Logged, Written::Large, Written::Inline(b"1"), Written::Unlogged(b"1")]
        {
            let version = Version::allocate_written(SlotIndex(3), Lsn(64), written, 9);
            // SAFETY: just allocated.
            let new = unsafe { &*version };
            assert_eq!(new.cached_bytes(), None, "what is written is no cache: {written:?}");
            assert_eq!(new.is_unlogged(), matches!(written, Written::Unlogged(_)), "{written:?}");
            assert_eq!(new.lsn().is_none(), matches!(written, Written::Inline(_) | Written::Unlogged(_)));
            assert_eq!(new.bytes(), Version::written_bytes(written));
            // SAFETY: not shared.
            unsafe { Version::free(version.cast(), new.bytes()) };
        }
    }

    #[test]
    fn a_version_that_is_retired_twice_is_noticed() {
        let version = Version::allocate_base(Timestamp(7), None, ptr::null_mut());
        // SAFETY: just allocated.
        let base = unsafe { &*version };
        base.note_retired();
        let again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| base.note_retired()));
        assert!(
            again.unwrap_err().downcast_ref::<String>().is_some_and(|said| said.contains("retired twice"))
        );
        // SAFETY: from here on nobody uses it.
        unsafe { Version::free(version.cast(), base.bytes()) };
    }

    #[test]
    fn a_value_in_pieces_is_known_for_one_until_it_is_written_anew() {
        let version = Version::allocate_written(SlotIndex(3), Lsn(64), Written::Large, 0);
        // SAFETY: just allocated.
        let written = unsafe { &*version };
        assert!(matches!(written.payload(), Payload::Large(Lsn(64))));
        // SAFETY: nobody else knows it.
        unsafe { written.rewrite(Lsn(72), Written::Logged) };
        assert!(matches!(written.payload(), Payload::Logged(Lsn(72))));
        // SAFETY: not shared.
        unsafe { Version::free(version.cast(), written.bytes()) };
    }
}
