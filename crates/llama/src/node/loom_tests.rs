//! All interleavings of two deltas for the slack of one base.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// The base and the pieces of its slack, of which as many are there as there are writers: what lies in each, that is a value, and
/// whether the one before it is given out. The word that the newest node is read from says how many pieces are taken.
struct Page {
    newest: AtomicU64,
    pieces: [(UnsafeCell<u64>, AtomicU32); 3],
}

/// As [`take`], but in two steps.
fn take_apart(delta_bytes: &AtomicU32) -> bool {
    let is_free = delta_bytes.load(Ordering::Relaxed) & GIVEN_OUT == 0;
    delta_bytes.store(GIVEN_OUT, Ordering::Relaxed);
    is_free
}

impl Page {
    fn new() -> Arc<Page> {
        let pieces = std::array::from_fn(|_| (UnsafeCell::new(0), AtomicU32::new(0)));
        Arc::new(Page { newest: AtomicU64::new(0), pieces })
    }

    /// Puts `value` on top, in a piece of the slack; whether that was to be had, and there was no other change.
    fn put(&self, value: u64, take: fn(&AtomicU32) -> bool) -> bool {
        let below = self.newest.load(Ordering::Acquire);
        if !take(&self.pieces[below as usize].1) {
            return false;
        }
        // SAFETY: the piece is ours alone (N5); loom sees to it.
        self.pieces[below as usize + 1].0.with_mut(|piece| unsafe { *piece = value });
        self.newest.compare_exchange(below, below + 1, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The values, oldest first.
    fn values(&self) -> Vec<u64> {
        let newest = self.newest.load(Ordering::Acquire) as usize;
        // SAFETY: a published node does not change (N1); loom sees to it.
        self.pieces[1..=newest].iter().map(|(piece, _)| piece.with(|piece| unsafe { *piece })).collect()
    }
}

fn two_writers_and_a_reader(take: fn(&AtomicU32) -> bool) {
    loom::model(move || {
        let page = Page::new();
        let writers = [7, 8].map(|value| {
            let page = page.clone();
            thread::spawn(move || page.put(value, take))
        });
        for value in page.values() {
            assert!(value == 7 || value == 8);
        }
        let put = writers.map(|writer| writer.join().unwrap());
        let mut values = page.values();
        values.sort_unstable();
        let expected: Vec<u64> =
            [7, 8].into_iter().zip(put).filter(|&(_, put)| put).map(|(value, _)| value).collect();
        assert_eq!(values, expected);
        assert!(!values.is_empty(), "one of them gets the first piece");
    });
}

/// N5: no piece is written by two, and what is published is what was written.
#[test]
fn a_piece_of_the_slack_is_one_writers_alone() {
    two_writers_and_a_reader(take);
}

/// The harness's own test: a bit that is read and then written.
#[test]
#[should_panic]
fn the_planted_bit_in_two_steps_is_caught() {
    two_writers_and_a_reader(take_apart);
}
