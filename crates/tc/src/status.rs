//! The status word of a transaction: its state and its timestamp in one atomic word.
//!
//! ```text
//!   bits 63..2 timestamp, bits 1..0 state
//!
//!                 push, self_push (lower bound grows)
//!                    ┌───┐
//!   free ── begin ─► Active(lower bound) ── commit ─► Committed(final)
//!                    │
//!                    └────────────────────── abort ─► Aborted (also the state of a free slot)
//! ```
//!
//! Every version that the transaction wrote refers to this word until it is stamped, so that a single swap moves
//! the timestamp of all of them, commits all of them, or aborts all of them.
//!
//! - **S1** The lower bound only grows, and a transaction commits at a final timestamp that is not below it: both
//!   are compare-and-swaps from the word that was seen.
//! - **S2** Only the owner begins and commits. Anybody may push, and anybody may abort an active transaction.

use crate::sync::{AtomicU64, Lost, Ordering};
use deuteron_contract::Timestamp;

const ACTIVE: u64 = 0;
const COMMITTED: u64 = 1;
const ABORTED: u64 = 2;

/// What a status word says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Must commit at this timestamp or later.
    Active(Timestamp),
    /// Has committed at this timestamp.
    Committed(Timestamp),
    /// Has aborted, or there is no transaction.
    Aborted,
}

impl Status {
    fn encode(self) -> u64 {
        match self {
            Status::Active(lower_bound) => lower_bound.0 << 2 | ACTIVE,
            Status::Committed(at) => at.0 << 2 | COMMITTED,
            Status::Aborted => ABORTED,
        }
    }

    fn decode(word: u64) -> Status {
        match word & 3 {
            ACTIVE => Status::Active(Timestamp(word >> 2)),
            COMMITTED => Status::Committed(Timestamp(word >> 2)),
            _ => Status::Aborted,
        }
    }
}

/// See the [module](self). Its transitions count the swaps that they lose.
pub(crate) struct StatusWord(AtomicU64);

impl StatusWord {
    /// The word of a free slot.
    pub(crate) fn new() -> StatusWord {
        StatusWord(AtomicU64::new(Status::Aborted.encode()))
    }

    #[inline]
    pub(crate) fn load(&self) -> Status {
        Status::decode(self.0.load(Ordering::SeqCst))
    }

    #[inline]
    fn swap(&self, from: Status, to: Status, lost: &Lost) -> bool {
        lost.is_won(self.0.compare_exchange(from.encode(), to.encode(), Ordering::SeqCst, Ordering::Relaxed))
    }

    /// The owner begins. Nobody looks at the word yet: no version refers to it.
    pub(crate) fn begin(&self, at: Timestamp) {
        self.0.store(Status::Active(at).encode(), Ordering::Release);
    }

    /// A reader at `reader` pushes the transaction that it saw active at `lower_bound` beyond itself (R2). False
    /// if the word has changed; look again.
    pub(crate) fn push(&self, lower_bound: Timestamp, reader: Timestamp, lost: &Lost) -> bool {
        debug_assert!(lower_bound <= reader);
        self.swap(Status::Active(lower_bound), Status::Active(Timestamp(reader.0 + 1)), lost)
    }

    /// The owner pushes itself beyond `seen` (R5). False if somebody has aborted it.
    pub(crate) fn self_push(&self, seen: Timestamp, lost: &Lost) -> bool {
        loop {
            match self.load() {
                Status::Active(lower_bound) if lower_bound > seen => return true,
                Status::Active(lower_bound) => {
                    if self.push(lower_bound, seen, lost) {
                        return true;
                    }
                }
                _ => return false,
            }
        }
    }

    /// The owner commits at `at`, unless it has been pushed or aborted since it saw `lower_bound`.
    pub(crate) fn commit(&self, lower_bound: Timestamp, at: Timestamp, lost: &Lost) -> bool {
        debug_assert!(at >= lower_bound);
        self.swap(Status::Active(lower_bound), Status::Committed(at), lost)
    }

    /// Aborts the transaction if it is active; whether this call did it.
    pub(crate) fn abort(&self, lost: &Lost) -> bool {
        while let active @ Status::Active(_) = self.load() {
            if self.swap(active, Status::Aborted, lost) {
                return true;
            }
        }
        false
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    static LOST: Lost = Lost::new();

    #[test]
    fn a_push_defeats_a_commit_that_did_not_see_it() {
        let word = StatusWord::new();
        assert_eq!(word.load(), Status::Aborted);
        word.begin(Timestamp(5));
        let lost = Lost::new();
        assert!(word.push(Timestamp(5), Timestamp(8), &lost));
        assert_eq!(lost.count(), 0);
        assert!(!word.commit(Timestamp(5), Timestamp(5), &lost));
        assert_eq!(lost.count(), 1);
        assert!(word.self_push(Timestamp(3), &LOST), "already beyond");
        assert_eq!(word.load(), Status::Active(Timestamp(9)));
        assert!(word.commit(Timestamp(9), Timestamp(12), &LOST));
        assert_eq!(word.load(), Status::Committed(Timestamp(12)));
        assert!(!word.abort(&LOST) && !word.self_push(Timestamp(20), &LOST));
    }

    #[test]
    fn the_largest_timestamp_fits() {
        let word = StatusWord::new();
        word.begin(Timestamp::MAX);
        assert_eq!(word.load(), Status::Active(Timestamp::MAX));
    }

    #[test]
    fn who_pushes_itself_is_beyond_what_it_has_seen() {
        let word = StatusWord::new();
        word.begin(Timestamp(5));
        assert!(word.self_push(Timestamp(4), &LOST));
        assert_eq!(word.load(), Status::Active(Timestamp(5)), "it is beyond that already");
        assert!(word.self_push(Timestamp(5), &LOST));
        assert_eq!(word.load(), Status::Active(Timestamp(6)));
        assert!(word.abort(&LOST) && !word.abort(&LOST));
        assert!(!word.self_push(Timestamp(9), &LOST));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    static LOST: Lost = Lost::new();
    use loom::thread;
    use std::sync::Arc;

    /// S1: whoever was told that its push succeeded will not see the writer commit at or below its timestamp.
    #[test]
    fn loom_no_commit_at_or_below_a_successful_push() {
        loom::model(|| {
            let word = Arc::new(StatusWord::new());
            word.begin(Timestamp(5));
            let readers = [7, 9].map(|reader| {
                let word = Arc::clone(&word);
                thread::spawn(move || {
                    loop {
                        match word.load() {
                            Status::Active(lower_bound) if lower_bound.0 > reader => break reader,
                            Status::Active(lower_bound) => {
                                if word.push(lower_bound, Timestamp(reader), &LOST) {
                                    break reader;
                                }
                            }
                            Status::Committed(at) => break if at.0 > reader { reader } else { 0 },
                            Status::Aborted => break 0,
                        }
                    }
                })
            });
            let mut clock = 10;
            let at = loop {
                let Status::Active(lower_bound) = word.load() else { unreachable!() };
                let at = if lower_bound == Timestamp(5) { lower_bound } else { Timestamp(clock) };
                clock += 1;
                if word.commit(lower_bound, at, &LOST) {
                    break at;
                }
            };
            for reader in readers {
                let passed = reader.join().unwrap();
                assert!(passed == 0 || at.0 > passed);
            }
        });
    }
}
