//! Loom models. Run with `RUSTFLAGS="--cfg loom" cargo test -p deuteron-bwtree --release --lib loom`.
//!
//! The first two run the index itself; the others the protocol between a split, its separator and a blind upsert, reduced
//! to the words that matter, with and without what makes it right.

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
