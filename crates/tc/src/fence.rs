//! The fence: the latest timestamp at which a declared read-only transaction reads (rule R15).
//!
//! One word stands in for the read timestamps of all keys and ranges. A declared reader raises it once, before its first
//! read; a writer looks at it once, after its last installation, and commits beyond it. So the reads themselves store
//! nothing.
//!
//! - **N1** After [`Fence::raise`] to `S` a transaction either finds at least `S` in [`Fence::latest`], or has installed all
//!   its versions before the raise, where the reader meets them.

use crate::sync::{AtomicU64, Ordering, Padded, publication_fence};
use deuteron_contract::Timestamp;

/// See the [module](self).
pub(crate) struct Fence(Padded<AtomicU64>);

impl Fence {
    pub(crate) fn new() -> Fence {
        Fence(Padded(AtomicU64::new(0)))
    }

    /// A reader is going to read at `to`. Where the fence is there already nothing is stored.
    #[inline]
    pub(crate) fn raise(&self, to: Timestamp) {
        if self.0.0.load(Ordering::SeqCst) < to.0 {
            self.0.0.fetch_max(to.0, Ordering::SeqCst);
        }
        publication_fence();
    }

    /// A writer has installed its last version: if this is not below its begin, it commits later.
    #[inline]
    pub(crate) fn latest(&self) -> Timestamp {
        publication_fence();
        Timestamp(self.0.0.load(Ordering::SeqCst))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::counted::stores;

    #[test]
    fn a_fence_that_is_high_enough_is_not_stored_to() {
        let fence = Fence::new();
        fence.raise(Timestamp(5));
        let before = stores();
        fence.raise(Timestamp(5));
        fence.raise(Timestamp(4));
        assert_eq!((stores(), fence.latest()), (before, Timestamp(5)));
        fence.raise(Timestamp(6));
        assert_eq!(fence.latest(), Timestamp(6));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::status::{Status, StatusWord};
    use crate::sync::Lost;
    use loom::thread;
    use std::sync::Arc;

    static LOST: Lost = Lost::new();

    /// N1 together with R2: a reader behind the fence that sees nothing of a writer knows that it will commit later.
    #[test]
    fn loom_a_writer_that_the_reader_did_not_see_commits_beyond_the_fence() {
        loom::model(|| {
            let shared = Arc::new((Fence::new(), StatusWord::new(), AtomicU64::new(0)));
            let other = Arc::clone(&shared);
            let reader = thread::spawn(move || {
                let (fence, status, version) = &*other;
                fence.raise(Timestamp(8));
                if version.load(Ordering::SeqCst) == 0 {
                    return false;
                }
                loop {
                    match status.load() {
                        Status::Committed(at) => break at <= Timestamp(8),
                        Status::Active(bound) if bound > Timestamp(8) => break false,
                        Status::Active(bound) => {
                            if status.push(bound, Timestamp(8), &LOST) {
                                break false;
                            }
                        }
                        Status::Aborted => unreachable!("it does not abort"),
                    }
                }
            });
            let (fence, status, version) = &*shared;
            status.begin(Timestamp(5));
            version.store(1, Ordering::SeqCst);
            let fenced = fence.latest() >= Timestamp(5);
            let mut clock = 10;
            let at = loop {
                let Status::Active(bound) = status.load() else { unreachable!("nobody aborts it") };
                let mut at = Timestamp(5);
                if fenced || bound != Timestamp(5) {
                    at = Timestamp(clock);
                    clock += 1;
                }
                if status.commit(bound, at, &LOST) {
                    break at;
                }
            };
            assert_eq!(reader.join().unwrap(), at <= Timestamp(8));
        });
    }
}
