//! The one word of a buffer: how many are writing into it, and how far it is given away (paper 5.1).
//!
//! # Model
//!
//! ```text
//!  63            32 31  30                    0
//! +----------------+---+-----------------------+
//! |     USERS      | S |        OFFSET         |
//! +----------------+---+-----------------------+
//! ```
//!
//! | state | S | OFFSET | left by |
//! |---|---|---|---|
//! | free | 1 | generation: the low 30 bits of the number of the buffer to come | [`BufferWord::open`] |
//! | open | 0 | at most the limit | a straddling [`BufferWord::reserve`], or [`BufferWord::seal`] |
//! | sealed | 1, or OFFSET above the limit | anything | [`BufferWord::free`], when USERS is 0 |
//!
//! Reserving adds `1 << 32 | size` and so takes the space and announces the writer in one instruction that has no
//! losers. What came before the addition tells the three cases apart: *in* the buffer; *straddling* the limit,
//! which happens to one thread and makes it the sealer; *behind* it, on a buffer sealed already.
//!
//! # Invariants
//!
//! - **W1** Exactly one thread seals an open buffer: the straddler (the OFFSET before its addition was at most the
//!   limit and S was 0, and OFFSET never shrinks below the limit again because the straddler does not take its size
//!   back), or the caller whose `seal` found S = 0 and OFFSET at most the limit. It alone learns how many bytes are
//!   used.
//! - **W2** The ranges given out are disjoint and below the limit.
//! - **W3** While USERS counts a thread, the word is neither freed nor opened, so the buffer that the thread has
//!   its space in stays what it is.
//! - **W4** OFFSET never carries into USERS: a thread that comes too late takes its size back; who sees the seal does
//!   not add at all; sizes above [`ADD_BYTES_MAX`] are added by compare-and-swap, which cannot hit a sealed word. So
//!   the overshoot is at most one large record plus [`ADD_BYTES_MAX`] for each thread between its look and its
//!   addition, with 2³⁰ of room for it: some sixteen thousand threads.
//! - **W5** A late comer on a free word adds to S | generation and takes it back: it cannot make the word look open,
//!   and `open` waits until it is gone.
//!
//! # Concurrency
//!
//! Anybody reserves, leaves and opens. One flusher at a time seals and frees. `leave` is a release and all changes
//! are read-modify-writes, so that whoever sees USERS = 0 with acquire sees what all writers wrote.
//!
//! # Source
//!
//! Paper 5.1, which leaves out the give-back of late comers, the seal of a partly filled buffer and the reuse of the
//! word.

use crate::sync::{AtomicU64, Lost, Ordering};

const ONE_USER: u64 = 1 << 32;
const SEALED: u64 = 1 << 31;
const OFFSET: u64 = SEALED - 1;
const GENERATION: u64 = (1 << 30) - 1;

/// The largest size that is reserved by a blind addition; see W4.
#[cfg(not(loom))]
const ADD_BYTES_MAX: u32 = 1 << 16;
#[cfg(loom)]
const ADD_BYTES_MAX: u32 = 16;

/// The largest limit that a buffer may have; see W4.
pub(crate) const LIMIT_MAX: u32 = 1 << 24;

/// What [`BufferWord::reserve`] came to. In the first two cases the caller is a user and must [`BufferWord::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reserved {
    /// The space starts at this offset.
    At(u32),
    /// The caller has sealed the buffer and must publish its end. No space.
    Straddled {
        /// The bytes in use, all of them before the caller's.
        used: u32,
    },
    /// Sealed already. No space.
    Sealed,
}

/// See the module document.
#[derive(Debug)]
pub(crate) struct BufferWord(AtomicU64);

impl BufferWord {
    /// A free word for the buffer with this number.
    pub(crate) fn new_free(number: u64) -> BufferWord {
        BufferWord(AtomicU64::new(SEALED | number & GENERATION))
    }

    /// Reserves `size` bytes. `limit` is called twice: before, for a hint, and after the reservation, when W3 holds the
    /// limit still. `lost` counts additions that came too late, and swaps of large sizes that another addition forestalled.
    #[inline]
    pub(crate) fn reserve(&self, size: u32, limit: impl Fn() -> u32, lost: &Lost) -> Reserved {
        let seen = self.0.load(Ordering::Acquire);
        if is_sealed(seen, limit()) {
            return Reserved::Sealed;
        }
        let added = ONE_USER + u64::from(size);
        let before = if size <= ADD_BYTES_MAX {
            // Acquire pairs with the release of `open`: the buffer's base and limit are visible.
            self.0.fetch_add(added, Ordering::Acquire)
        } else {
            match self.add_large(seen, added, &limit, lost) {
                Some(before) => before,
                None => return Reserved::Sealed,
            }
        };
        let limit = limit();
        if is_sealed(before, limit) {
            self.0.fetch_sub(added, Ordering::Release);
            lost.note();
            return Reserved::Sealed;
        }
        let start = (before & OFFSET) as u32;
        if start + size > limit { Reserved::Straddled { used: start } } else { Reserved::At(start) }
    }

    #[cold]
    fn add_large(&self, mut seen: u64, added: u64, limit: &impl Fn() -> u32, lost: &Lost) -> Option<u64> {
        loop {
            match self.0.compare_exchange_weak(seen, seen + added, Ordering::Acquire, Ordering::Acquire) {
                Ok(before) => return Some(before),
                Err(now) => seen = now,
            }
            lost.note();
            if is_sealed(seen, limit()) {
                return None;
            }
        }
    }

    /// Ends the use that a reservation began. What the caller wrote is visible to whoever then finds no users.
    #[inline]
    pub(crate) fn leave(&self) {
        let before = self.0.fetch_sub(ONE_USER, Ordering::Release);
        debug_assert!(before >= ONE_USER, "left a buffer more often than entered");
    }

    /// Seals an open buffer; the bytes in use, if it was this call that did it. Only for the flusher.
    pub(crate) fn seal(&self, limit: u32) -> Option<u32> {
        let before = self.0.fetch_or(SEALED, Ordering::AcqRel);
        if is_sealed(before, limit) { None } else { Some((before & OFFSET) as u32) }
    }

    /// Whether the buffer is sealed or free, and if not, how far it is given away.
    pub(crate) fn open_offset(&self, limit: u32) -> Option<u32> {
        let seen = self.0.load(Ordering::Acquire);
        if is_sealed(seen, limit) { None } else { Some((seen & OFFSET) as u32) }
    }

    /// Whether nobody is writing. If the buffer is sealed, all that was written is then visible.
    pub(crate) fn is_unused(&self) -> bool {
        self.0.load(Ordering::Acquire) < ONE_USER
    }

    /// From sealed to free, for the buffer with this number; false if a late comer is still there. Only for the flusher.
    pub(crate) fn free(&self, number: u64) -> bool {
        let seen = self.0.load(Ordering::Acquire);
        let free = SEALED | number & GENERATION;
        seen < ONE_USER && self.0.compare_exchange(seen, free, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// From free to open for the buffer with this number; its base and limit must be in place. False if a late comer is
    /// there, or another thread has opened it.
    pub(crate) fn open(&self, number: u64, offset: u32) -> bool {
        let free = SEALED | number & GENERATION;
        self.0.compare_exchange(free, u64::from(offset), Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Whether the word is neither free nor sealed by the flusher.
    pub(crate) fn is_marked(&self) -> bool {
        self.0.load(Ordering::Acquire) & SEALED != 0
    }
}

#[inline]
fn is_sealed(word: u64, limit: u32) -> bool {
    word & SEALED != 0 || word & OFFSET > u64::from(limit)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static LOST: Lost = Lost::new();

    #[test]
    fn fills_straddles_and_reopens() {
        let word = BufferWord::new_free(3);
        assert_eq!(word.reserve(8, || 100, &LOST), Reserved::Sealed);
        assert!(!word.open(2, 64), "another generation");
        assert!(word.open(3, 64));
        assert_eq!(word.reserve(36, || 100, &LOST), Reserved::At(64));
        assert_eq!(word.open_offset(100), Some(100));
        assert_eq!(word.reserve(8, || 100, &LOST), Reserved::Straddled { used: 100 });
        assert_eq!(word.reserve(8, || 100, &LOST), Reserved::Sealed);
        assert_eq!(word.seal(100), None, "sealed by the straddler");
        assert!(!word.is_unused() && !word.free(7));
        word.leave();
        word.leave();
        assert!(word.is_unused());
        assert!(word.free(7));
        assert!(word.open(7, 64));
    }

    /// The limit is asked for between the look at the word and the addition.
    #[test]
    fn an_addition_to_a_buffer_that_was_sealed_meanwhile_is_taken_back_and_counted() {
        let word = BufferWord::new_free(0);
        let lost = Lost::new();
        assert!(word.open(0, 64));
        let seal = || {
            word.seal(100);
            100
        };
        assert_eq!(word.reserve(8, seal, &lost), Reserved::Sealed);
        assert!(word.is_unused());
        assert_eq!(lost.count(), 1);
        assert_eq!(word.reserve(8, seal, &lost), Reserved::Sealed);
        assert_eq!(lost.count(), 1, "who sees the seal adds nothing");
    }

    #[test]
    fn partial_seal_tells_what_is_used() {
        let word = BufferWord::new_free(0);
        assert!(word.open(0, 64));
        assert_eq!(word.reserve(8, || 4096, &LOST), Reserved::At(64));
        assert_eq!(word.seal(4096), Some(72));
        assert_eq!(word.seal(4096), None);
        assert_eq!(word.reserve(8, || 4096, &LOST), Reserved::Sealed);
        assert!(word.is_marked());
    }

    #[test]
    fn large_sizes_never_add_to_a_sealed_word() {
        let word = BufferWord::new_free(0);
        assert!(word.open(0, 64));
        let large = ADD_BYTES_MAX + 8;
        assert_eq!(word.reserve(large, || LIMIT_MAX, &LOST), Reserved::At(64));
        assert_eq!(word.reserve(LIMIT_MAX, || LIMIT_MAX, &LOST), Reserved::Straddled { used: 64 + large });
        for _ in 0..1000 {
            assert_eq!(word.reserve(LIMIT_MAX, || LIMIT_MAX, &LOST), Reserved::Sealed);
        }
        word.leave();
        word.leave();
        assert!(word.is_unused());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;

    const LIMIT: u32 = 100;
    static LOST: Lost = Lost::new();

    /// W1, W2: two writers and the flusher; whoever seals is one, and what was given out is what is used.
    #[test]
    fn one_sealer_and_disjoint_ranges() {
        for sizes in [[30, 30], [80, 40], [8, 8]] {
            loom::model(move || {
                let word = Arc::new(BufferWord::new_free(0));
                assert!(word.open(0, 64));
                let writers = sizes.map(|size| {
                    let word = word.clone();
                    loom::thread::spawn(move || {
                        let reserved = word.reserve(size, || LIMIT, &LOST);
                        if reserved != Reserved::Sealed {
                            word.leave();
                        }
                        (size, reserved)
                    })
                });
                let mut sealed: Vec<u32> = word.seal(LIMIT).into_iter().collect();
                let mut given = 64;
                let mut starts = Vec::new();
                for (size, reserved) in writers.map(|writer| writer.join().unwrap()) {
                    match reserved {
                        Reserved::At(start) => {
                            given += size;
                            starts.push((start, size));
                        }
                        Reserved::Straddled { used } => sealed.push(used),
                        Reserved::Sealed => {}
                    }
                }
                assert_eq!(sealed, [given]);
                starts.sort_unstable();
                assert!(starts.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
                assert!(starts.iter().all(|&(start, size)| start >= 64 && start + size <= given));
                assert!(word.is_unused() && word.free(1));
            });
        }
    }

    /// W3, W5: the flusher frees the word and opens it for another buffer with another limit while a writer comes late.
    /// The writer gets space in one of the two buffers, under that buffer's limit, and its bytes are seen by who finds
    /// the buffer unused.
    #[test]
    fn late_comer_meets_a_reopened_word() {
        loom::model(|| {
            let word = Arc::new(BufferWord::new_free(0));
            let limit = Arc::new(AtomicU32::new(LIMIT));
            let bytes = Arc::new(AtomicU32::new(0));
            assert!(word.open(0, 64));
            let writer = {
                let (word, limit, bytes) = (word.clone(), limit.clone(), bytes.clone());
                loom::thread::spawn(move || {
                    match word.reserve(20, || limit.load(Ordering::Relaxed), &LOST) {
                        Reserved::At(start) => {
                            bytes.store(start, Ordering::Relaxed);
                            word.leave();
                        }
                        Reserved::Straddled { used } => {
                            // Only the second buffer is so short.
                            assert_eq!(used, 72);
                            word.leave();
                        }
                        Reserved::Sealed => {}
                    }
                })
            };
            let used = word.seal(LIMIT).expect("nobody else seals");
            while !word.is_unused() {
                loom::thread::yield_now();
            }
            assert_eq!(bytes.load(Ordering::Relaxed), if used == 64 { 0 } else { 64 });
            while !word.free(1) {
                loom::thread::yield_now();
            }
            // Another limit, under which the writer straddles.
            limit.store(80, Ordering::Relaxed);
            while !word.open(1, 72) {
                loom::thread::yield_now();
            }
            writer.join().unwrap();
            assert!(word.is_unused());
        });
    }
}
