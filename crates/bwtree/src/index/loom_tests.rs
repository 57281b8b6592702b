//! Loom models. Run with `RUSTFLAGS="--cfg loom" cargo test -p deuteron-bwtree --release --lib loom`.
//!
//! The first ones run the index itself; the others the protocols between a split or a merge, its separator and a blind
//! upsert, reduced to the words that matter, with and without what makes them right.

use super::*;
use deuteron_epoch::Epochs;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::thread;

fn model(check: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(check);
}

struct Shared {
    index: Index,
    epochs: std::sync::Arc<Epochs>,
}

/// An index whose only node is one separator short of being split.
fn almost_full() -> Arc<Shared> {
    let epochs = Epochs::new();
    let index = Index::new(PageId(1), 2);
    index.post(b"m", PageId(2), &epochs.pin());
    Arc::new(Shared { index, epochs })
}

/// X3, X4: while one thread posts, and so splits the root and puts another one above, nobody loses the way to
/// what was there before; and afterwards what was posted is there.
#[test]
fn a_search_finds_its_leaf_through_a_root_split() {
    model(|| {
        let shared = almost_full();
        let poster = {
            let shared = shared.clone();
            thread::spawn(move || shared.index.post(b"t", PageId(3), &shared.epochs.pin()))
        };
        {
            let guard = shared.epochs.pin();
            assert_eq!(shared.index.find(b"a", &guard), PageId(1));
            // The leaf itself, or the one to the left of it.
            assert!([PageId(2), PageId(3)].contains(&shared.index.find(b"z", &guard)));
        }
        poster.join().unwrap();
        let guard = shared.epochs.pin();
        assert_eq!(shared.index.find(b"n", &guard), PageId(2));
        assert_eq!(shared.index.find(b"z", &guard), PageId(3));
        assert_eq!(shared.index.height(&guard), 2);
    });
}

/// A splitter and a helper post the same separator: it is there once.
#[test]
fn a_separator_posted_twice_is_there_once() {
    model(|| {
        let shared = almost_full();
        let helper = {
            let shared = shared.clone();
            thread::spawn(move || shared.index.post(b"t", PageId(3), &shared.epochs.pin()))
        };
        shared.index.post(b"t", PageId(3), &shared.epochs.pin());
        helper.join().unwrap();
        let guard = shared.epochs.pin();
        let mut leaves = Vec::new();
        let mut from = Some(Vec::new());
        while let Some(low) = from {
            from = shared.index.some_leaves(&low, &guard, |low, page| leaves.push((low.to_vec(), page)));
        }
        let expected = [(&b""[..], 1), (b"m", 2), (b"t", 3)].map(|(low, page)| (low.to_vec(), PageId(page)));
        assert_eq!(leaves, expected);
    });
}

/// X6: beside a split that would make a leaf the first child of a node, it is taken out, or is that already.
#[test]
fn a_leaf_that_is_leaving_can_be_taken_out_whoever_splits_its_node() {
    model(|| {
        let shared = almost_full();
        let poster = {
            let shared = shared.clone();
            thread::spawn(move || shared.index.post(b"f", PageId(3), &shared.epochs.pin()))
        };
        let guard = shared.epochs.pin();
        let leaves = shared.index.begin_removal(b"m", PageId(2), &guard);
        if leaves {
            assert!(shared.index.remove(b"m", PageId(2), &guard));
            shared.index.end_removal();
        }
        poster.join().unwrap();
        let expected = if leaves { PageId(3) } else { PageId(2) };
        assert_eq!(shared.index.route(b"n", &guard).0, expected);
        assert_eq!(shared.index.route(b"g", &guard).0, PageId(3));
    });
}

/// An index of two levels, whose second bottom node has one leaf and can be merged into the first; then the root shrinks.
fn two_nodes() -> Arc<Shared> {
    let lows = [&b""[..], b"b", b"c", b"d"];
    let leaves: Vec<_> = lows.iter().zip(1..).map(|(low, page)| (low.to_vec(), PageId(page))).collect();
    let index = Index::from_leaves(&leaves, 4);
    Arc::new(Shared { index, epochs: Epochs::new() })
}

/// M1 to M3: what is posted to a node that is being merged is routed to at once, and is there afterwards.
#[test]
fn a_separator_posted_during_a_merge_is_there() {
    model(|| {
        let shared = two_nodes();
        let merger = {
            let shared = shared.clone();
            thread::spawn(move || shared.index.tidy(b"d", &shared.epochs.pin()).len())
        };
        {
            let guard = shared.epochs.pin();
            shared.index.post(b"e", PageId(5), &guard);
            assert_eq!(shared.index.route(b"e", &guard).0, PageId(5));
            assert_eq!(shared.index.route(b"d", &guard).0, PageId(4));
        }
        let merged = merger.join().unwrap();
        let guard = shared.epochs.pin();
        for (key, page) in [(&b"a"[..], 1), (b"c", 3), (b"d", 4), (b"f", 5)] {
            assert_eq!(shared.index.route(key, &guard).0, PageId(page));
        }
        assert!(merged == 1 || shared.index.height(&guard) == 2);
    });
}

/// M1 to M3: who searches during a merge and a shrinking of the root finds the leaf, or one to the left of it; who asks for the
/// route finds the leaf itself.
#[test]
fn searches_find_their_way_through_a_merge() {
    model(|| {
        let shared = two_nodes();
        let merger = {
            let shared = shared.clone();
            thread::spawn(move || assert_eq!(shared.index.tidy(b"d", &shared.epochs.pin()).len(), 1))
        };
        {
            let guard = shared.epochs.pin();
            assert_eq!(shared.index.route(b"d", &guard).0, PageId(4));
            assert_eq!(shared.index.find(b"a", &guard), PageId(1));
            assert!(shared.index.find(b"z", &guard).0 > 2);
        }
        merger.join().unwrap();
        let guard = shared.epochs.pin();
        assert_eq!(shared.index.height(&guard), 1);
        assert_eq!(shared.index.find(b"z", &guard), PageId(4));
        assert_eq!(shared.index.find_before(Some(b"d"), &guard), PageId(3));
    });
}

/// A split of the node that the root is about to take over, and so a root that grows while it shrinks.
#[test]
fn a_root_grows_while_it_shrinks() {
    model(|| {
        let epochs = Epochs::new();
        // One bottom node, full, under a root of its own.
        let index = Index::new(PageId(1), 2);
        index.post(b"m", PageId(2), &epochs.pin());
        index.grow(2, &epochs.pin());
        let shared = Arc::new(Shared { index, epochs });
        let poster = {
            let shared = shared.clone();
            thread::spawn(move || shared.index.post(b"t", PageId(3), &shared.epochs.pin()))
        };
        shared.index.tidy(b"a", &shared.epochs.pin());
        poster.join().unwrap();
        let guard = shared.epochs.pin();
        for (key, page) in [(&b"a"[..], 1), (b"n", 2), (b"z", 3)] {
            assert_eq!(shared.index.route(key, &guard).0, PageId(page));
            assert_eq!(shared.index.find(key, &guard), PageId(page));
        }
        assert_eq!(shared.index.height(&guard), 2);
    });
}

/// A page that is split, flushed and evicted while a blind upsert for a key of its right half is under way.
struct Page {
    /// The mapping word.
    word: AtomicU64,
    holds: AtomicU64,
    /// Whether the index knows the right half.
    posted: AtomicBool,
}

const WHOLE: u64 = 0;
const LEFT_HALF: u64 = 1;
const LEFT_HALF_ON_FLASH: u64 = 2;
const BLIND_DELTA: u64 = 3;

impl Page {
    fn split(&self) {
        self.holds.fetch_add(1, Ordering::SeqCst);
        self.word.compare_exchange(WHOLE, LEFT_HALF, Ordering::SeqCst, Ordering::Relaxed).unwrap();
        self.posted.store(true, Ordering::Release);
        self.holds.fetch_sub(1, Ordering::SeqCst);
    }

    fn evict(&self, asks_for_holds: bool) {
        // The word first, then the holds, as the flusher does.
        let word = self.word.load(Ordering::SeqCst);
        if word == LEFT_HALF && (!asks_for_holds || self.holds.load(Ordering::SeqCst) == 0) {
            let _ = self.word.compare_exchange(word, LEFT_HALF_ON_FLASH, Ordering::SeqCst, Ordering::Relaxed);
        }
    }

    /// An upsert of a key of the right half. `true` if it put its delta on a left half that was not in memory.
    fn upsert(&self, snapshot_first: bool) -> bool {
        let routed_before = !self.posted.load(Ordering::Acquire);
        let word = self.word.load(Ordering::Acquire);
        let leads_here = if snapshot_first { !self.posted.load(Ordering::Acquire) } else { routed_before };
        word == LEFT_HALF_ON_FLASH
            && leads_here
            && self.word.compare_exchange(word, BLIND_DELTA, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }
}

fn split_evict_upsert(asks_for_holds: bool, snapshot_first: bool) {
    model(move || {
        let page = Arc::new(Page {
            word: AtomicU64::new(WHOLE),
            holds: AtomicU64::new(0),
            posted: AtomicBool::new(false),
        });
        let splitter = {
            let page = page.clone();
            thread::spawn(move || page.split())
        };
        let evictor = {
            let page = page.clone();
            thread::spawn(move || page.evict(asks_for_holds))
        };
        assert!(!page.upsert(snapshot_first), "the upsert is lost on the wrong page");
        splitter.join().unwrap();
        evictor.join().unwrap();
    });
}

/// U2.
#[test]
fn a_blind_upsert_never_lands_left_of_its_page() {
    split_evict_upsert(true, true);
}

#[test]
#[should_panic(expected = "the upsert is lost on the wrong page")]
fn without_holds_it_does() {
    split_evict_upsert(false, true);
}

#[test]
#[should_panic(expected = "the upsert is lost on the wrong page")]
fn with_the_index_asked_first_it_does() {
    split_evict_upsert(true, false);
}

/// X5: a thread that has met the split of a leaf posts its separator, while the leaf is merged and its separator removed.
/// `looks` says whether the thread looks if the leaf is alive.
fn post_and_remove(looks: bool) {
    model(move || {
        let shared = Arc::new(Shared { index: Index::new(PageId(1), 4), epochs: Epochs::new() });
        let alive = Arc::new(AtomicBool::new(true));
        let helper = {
            let (shared, alive) = (shared.clone(), alive.clone());
            thread::spawn(move || {
                let alive = || !looks || alive.load(Ordering::SeqCst);
                shared.index.post_if(b"t", PageId(3), &alive, &shared.epochs.pin());
            })
        };
        alive.store(false, Ordering::SeqCst);
        assert!(shared.index.remove(b"t", PageId(3), &shared.epochs.pin()));
        helper.join().unwrap();
        let found = shared.index.find(b"z", &shared.epochs.pin());
        assert_eq!(found, PageId(1), "the index leads to a page that is gone");
    });
}

#[test]
fn a_belated_helper_does_not_bring_a_removed_separator_back() {
    post_and_remove(true);
}

#[test]
#[should_panic(expected = "the index leads to a page that is gone")]
fn one_that_does_not_look_does() {
    post_and_remove(false);
}

/// Two pages that are merged, the left one then flushed and evicted, while a blind upsert for a key of the right one is
/// under way. A word is one of the states below; `DELTA` on top says that it holds the upsert.
struct Pair {
    left: AtomicU64,
    right: AtomicU64,
    holds: AtomicU64,
    /// Whether the index still leads to the right page.
    posted: AtomicBool,
}

const ON_FLASH: u64 = 0;
const RENEWED: u64 = 1;
const HEIR: u64 = 2;
const HEIR_ON_FLASH: u64 = 3;
const OPEN: u64 = 0;
const SEALED: u64 = 1;
const DELTA: u64 = 8;

fn swap(word: &AtomicU64, from: u64, to: u64) -> bool {
    word.compare_exchange(from, to, Ordering::SeqCst, Ordering::Relaxed).is_ok()
}

impl Pair {
    /// The base with the content of both, and the upsert if the sealed page has it.
    fn finish(&self, left: u64) -> bool {
        swap(&self.left, left, HEIR | (self.right.load(Ordering::SeqCst) & DELTA))
    }

    fn merge(&self, removes_early: bool) {
        self.holds.fetch_add(1, Ordering::SeqCst);
        // Loaded, and given a new base under the hold.
        assert!(swap(&self.left, ON_FLASH, RENEWED));
        if removes_early {
            self.posted.store(false, Ordering::SeqCst);
        }
        while !swap(&self.right, OPEN, SEALED) && !swap(&self.right, OPEN | DELTA, SEALED | DELTA) {}
        while self.left.load(Ordering::SeqCst) == RENEWED && !self.finish(RENEWED) {}
        self.posted.store(false, Ordering::SeqCst);
        self.holds.fetch_sub(1, Ordering::SeqCst);
    }

    fn evict(&self) {
        let word = self.left.load(Ordering::SeqCst);
        if word & !DELTA == HEIR && self.holds.load(Ordering::SeqCst) == 0 {
            swap(&self.left, word, HEIR_ON_FLASH | (word & DELTA));
        }
    }

    fn upsert(&self) {
        loop {
            if self.posted.load(Ordering::SeqCst) {
                let right = self.right.load(Ordering::SeqCst);
                if right & SEALED == 0 {
                    if swap(&self.right, right, right | DELTA) {
                        return;
                    }
                    continue;
                }
                // G1: the left page must be in memory. If it is not, it would be loaded.
                match self.left.load(Ordering::SeqCst) {
                    RENEWED => drop(self.finish(RENEWED)),
                    HEIR if swap(&self.left, HEIR, HEIR | DELTA) => return,
                    HEIR_ON_FLASH => drop(swap(&self.left, HEIR_ON_FLASH, HEIR)),
                    _ => {}
                }
                thread::yield_now();
                continue;
            }
            // U2: the snapshot, then the index, which leads to the left page; or U1 if that is in memory.
            let left = self.left.load(Ordering::SeqCst);
            let leads_here = !self.posted.load(Ordering::SeqCst);
            if left == RENEWED {
                // It ends where the right one begins: to the right.
                let right = self.right.load(Ordering::SeqCst);
                if right & SEALED == 0 && swap(&self.right, right, right | DELTA) {
                    return;
                }
                thread::yield_now();
                continue;
            }
            if leads_here && swap(&self.left, left, left | DELTA) {
                assert!(left != ON_FLASH, "the upsert is lost on the wrong page");
                return;
            }
        }
    }
}

fn merge_evict_upsert(early: bool) {
    model(move || {
        let pair = Arc::new(Pair {
            left: AtomicU64::new(ON_FLASH),
            right: AtomicU64::new(OPEN),
            holds: AtomicU64::new(0),
            posted: AtomicBool::new(true),
        });
        let merger = {
            let pair = pair.clone();
            thread::spawn(move || {
                if early {
                    // What must not be: the separator goes before the left page is pinned.
                    pair.posted.store(false, Ordering::SeqCst);
                }
                pair.merge(early)
            })
        };
        let evictor = {
            let pair = pair.clone();
            thread::spawn(move || pair.evict())
        };
        pair.upsert();
        merger.join().unwrap();
        evictor.join().unwrap();
        let left = pair.left.load(Ordering::SeqCst);
        assert!(left & !DELTA == HEIR || left & !DELTA == HEIR_ON_FLASH);
        assert_ne!(left & DELTA, 0, "the upsert is lost");
    });
}

/// U2 and G1.
#[test]
fn a_blind_upsert_is_not_lost_in_a_merge() {
    merge_evict_upsert(false);
}

#[test]
#[should_panic]
fn with_the_separator_removed_first_it_is() {
    merge_evict_upsert(true);
}
