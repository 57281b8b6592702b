//! A leaf is merged into its left neighbour, which is then split again at the very key at which the merged one began, beside an
//! upsert to the merged one: reduced to the words of the three pages. Run as the models in `index/loom_tests.rs`.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;

/// In the word of the left page: its neighbour, if it ends where the right one begins.
const NEIGHBOUR: u64 = 3;
const NOBODY: u64 = 0;
const RIGHT: u64 = 1;
const NEW: u64 = 2;
/// In the word of the right page.
const SEALED: u64 = 4;
/// In any word: it holds an update of a key of the right page's range.
const FIRST: u64 = 8;
const SECOND: u64 = 16;
const UPDATES: u64 = FIRST | SECOND;

struct Pages {
    left: AtomicU64,
    right: AtomicU64,
    /// What the left page is split into after the merge.
    new: AtomicU64,
    /// G4: what tells whether the merge has happened is the neighbour's identifier, and not where the left page ends.
    by_identifier: bool,
}

fn swap(word: &AtomicU64, from: u64, to: u64) -> bool {
    word.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

impl Pages {
    fn is_unmerged(&self, left: u64) -> bool {
        let neighbour = left & NEIGHBOUR;
        if self.by_identifier { neighbour == RIGHT } else { neighbour != NOBODY }
    }

    /// Step 3, by anybody: left reaches over the right page's range, with what that holds.
    fn finish(&self, left: u64) -> bool {
        swap(&self.left, left, NOBODY | (self.right.load(Ordering::SeqCst) & UPDATES))
    }

    fn merge(&self) {
        loop {
            let right = self.right.load(Ordering::SeqCst);
            if swap(&self.right, right, right | SEALED) {
                break;
            }
        }
        while self.left.load(Ordering::SeqCst) & NEIGHBOUR == RIGHT && !self.finish(RIGHT) {}
    }

    /// Left ends again where the right page began; what lies behind is in a new page.
    fn split_again(&self) {
        loop {
            let left = self.left.load(Ordering::SeqCst);
            // Nobody knows it yet.
            self.new.store(left & UPDATES, Ordering::SeqCst);
            if swap(&self.left, left, NEW) {
                return;
            }
        }
    }

    /// An upsert that the index has led to the right page.
    fn put(&self, update: u64) {
        loop {
            let right = self.right.load(Ordering::SeqCst);
            if right & SEALED == 0 {
                if swap(&self.right, right, right | update) {
                    return;
                }
                continue;
            }
            let left = self.left.load(Ordering::SeqCst);
            if self.is_unmerged(left) {
                self.finish(left);
                continue;
            }
            let page = if left & NEIGHBOUR == NEW { &self.new } else { &self.left };
            let word = if left & NEIGHBOUR == NEW { page.load(Ordering::SeqCst) } else { left };
            if swap(page, word, word | update) {
                return;
            }
        }
    }

    /// The updates that a search for their keys finds.
    fn found(&self) -> u64 {
        let left = self.left.load(Ordering::SeqCst);
        let page = if left & NEIGHBOUR == NOBODY { left } else { self.new.load(Ordering::SeqCst) };
        page & UPDATES
    }
}

fn merge_split_upsert(by_identifier: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let pages = Arc::new(Pages {
            left: AtomicU64::new(RIGHT),
            right: AtomicU64::new(0),
            new: AtomicU64::new(0),
            by_identifier,
        });
        let merger = {
            let pages = pages.clone();
            thread::spawn(move || {
                pages.merge();
                pages.split_again();
                pages.put(SECOND);
            })
        };
        pages.put(FIRST);
        merger.join().unwrap();
        assert_eq!(pages.found(), UPDATES, "an update is lost");
    });
}

/// G4.
#[test]
fn an_update_survives_a_merge_and_a_split_at_the_same_key() {
    merge_split_upsert(true);
}

#[test]
#[should_panic(expected = "an update is lost")]
fn it_does_not_if_the_key_at_which_left_ends_decides() {
    merge_split_upsert(false);
}
