//! All interleavings of two deltas for the slack of one base.

use super::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const PIECE: usize = NODE_ALIGN;

/// A slack of `N` pieces, the word that the newest node is read from, and what lies in each piece: a value, and the piece
/// below it.
struct Page<const N: usize> {
    taken: AtomicU32,
    newest: AtomicU64,
    pieces: [UnsafeCell<(u64, u64)>; N],
}

/// As [`take`], but in two steps.
fn take_apart(taken: &AtomicU32, bytes: usize, all: usize) -> Option<usize> {
    let distance = taken.load(Ordering::Relaxed) as usize + bytes;
    taken.store(distance as u32, Ordering::Relaxed);
    (distance <= all).then_some(distance)
}

impl<const N: usize> Page<N> {
    fn new() -> Arc<Page<N>> {
        let pieces = std::array::from_fn(|_| UnsafeCell::new((0, 0)));
        Arc::new(Page { taken: AtomicU32::new(0), newest: AtomicU64::new(0), pieces })
    }

    /// Puts `value` on top, in a piece of the slack; whether there was room, and no other change.
    fn put(&self, value: u64, take: impl Fn(&AtomicU32, usize, usize) -> Option<usize>) -> bool {
        let below = self.newest.load(Ordering::Acquire);
        let Some(distance) = take(&self.taken, PIECE, N * PIECE) else { return false };
        // SAFETY: the piece is ours alone (N5); loom sees to it.
        self.pieces[distance / PIECE - 1].with_mut(|piece| unsafe { *piece = (value, below) });
        let installed = (distance / PIECE) as u64;
        self.newest.compare_exchange(below, installed, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// The values, newest first.
    fn values(&self) -> Vec<u64> {
        let mut at = self.newest.load(Ordering::Acquire);
        let mut values = Vec::new();
        while at != 0 {
            // SAFETY: a published node does not change (N1); loom sees to it.
            let (value, below) = self.pieces[at as usize - 1].with(|piece| unsafe { *piece });
            values.push(value);
            at = below;
        }
        values
    }
}

fn two_writers_and_a_reader<const N: usize>(take: fn(&AtomicU32, usize, usize) -> Option<usize>) {
    loom::model(move || {
        let page = Page::<N>::new();
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
    });
}

/// N5: no piece is written by two, and what is published is what was written.
#[test]
fn a_piece_of_the_slack_is_one_writers_alone() {
    two_writers_and_a_reader::<2>(take);
}

#[test]
fn the_last_piece_of_the_slack_is_given_out_once() {
    two_writers_and_a_reader::<1>(take);
}

/// The harness's own test: a counter that is read and then written.
#[test]
#[should_panic]
fn the_planted_counter_in_two_steps_is_caught() {
    two_writers_and_a_reader::<2>(take_apart);
}
