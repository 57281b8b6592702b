//! Changes in the middle of changes: at any step of an operation another one is done, whole or interrupted in its turn, as by a thread that
//! runs while the first does not. One thread, so that a seed says all; what is read is exact, but for the keys of those who are in the middle.

use crate::interruption::{Moment, checked, interrupted_by};
use crate::{Cursor, Options, Tree, Upsert};
use deuteron_device::MemoryDirectory;
use deuteron_epoch::Epochs;
use deuteron_llama::{AccessMethod, FlushProgress, Llama};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::rc::Rc;
use std::sync::Arc;

/// How deep interruptions are interrupted.
const DEPTH_MAX: usize = 3;
/// And how often an operation is in all, its interruptions included.
const INTERRUPTIONS_MAX: usize = 12;
const KEYS: u64 = 300;

struct Interrupted {
    tree: Arc<Tree>,
    /// Stamps of the records that there are.
    model: RefCell<BTreeMap<u64, u64>>,
    /// Keys of those who are in the middle of writing, with their stamps.
    writing: RefCell<BTreeMap<u64, u64>>,
    /// Stamps with which keys were written or deleted last.
    touched: RefCell<BTreeMap<u64, u64>>,
    stamp: Cell<u64>,
    random: Cell<u64>,
    depth: Cell<usize>,
    interruptions: Cell<usize>,
    /// Keys are taken from this part.
    part: Cell<(u64, u64)>,
    _method: Arc<dyn AccessMethod>,
}

impl Interrupted {
    fn new(seed: u64) -> Interrupted {
        let options = deuteron_llama::Options::default();
        let (llama, _) = Llama::open(Arc::new(MemoryDirectory::new()), options, Epochs::new()).unwrap();
        let tree = Arc::new(Tree::create(Arc::new(llama), 1, Options::tiny_for_tests()));
        Interrupted {
            _method: checked(&tree),
            tree,
            model: RefCell::default(),
            writing: RefCell::default(),
            touched: RefCell::default(),
            stamp: Cell::new(0),
            random: Cell::new(seed),
            depth: Cell::new(0),
            interruptions: Cell::new(0),
            part: Cell::new((0, KEYS)),
        }
    }

    fn below(&self, end: u64) -> u64 {
        // SplitMix64.
        self.random.set(self.random.get().wrapping_add(0x9e37_79b9_7f4a_7c15));
        let z = self.random.get();
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }

    fn key(&self) -> u64 {
        let (from, count) = self.part.get();
        from + self.below(count)
    }

    fn is_being_written(&self, key: u64) -> bool {
        self.writing.borrow().contains_key(&key)
    }

    /// Writes, or deletes, some keys as one batch.
    fn write(&self, keys: impl Iterator<Item = u64>, deletes: bool) {
        let stamp = self.stamp.get() + 1;
        self.stamp.set(stamp);
        let mut keys: Vec<u64> = keys.filter(|&key| !self.is_being_written(key)).collect();
        keys.sort_unstable();
        keys.dedup();
        self.writing.borrow_mut().extend(keys.iter().map(|&key| (key, stamp)));
        self.touched.borrow_mut().extend(keys.iter().map(|&key| (key, stamp)));
        let bytes: Vec<_> = keys.iter().map(|key| key.to_be_bytes()).collect();
        let value = [7; 12];
        let value = (!deletes).then_some(&value[..]);
        let batch: Vec<_> = bytes.iter().map(|key| Upsert { key, value, stamp, lsn: stamp }).collect();
        self.tree.upsert(&batch).unwrap();
        for key in keys {
            self.writing.borrow_mut().remove(&key);
            if deletes {
                self.model.borrow_mut().remove(&key);
            } else {
                self.model.borrow_mut().insert(key, stamp);
            }
        }
    }

    /// Keys of which a read that began then and ends now may see one state or another: those of whoever is in the middle of writing, or has
    /// written meanwhile.
    fn unsure_since(&self, writing: &BTreeMap<u64, u64>, stamp: u64, key: u64) -> bool {
        writing.contains_key(&key) || self.touched.borrow().get(&key) > Some(&stamp)
    }

    fn read(&self, key: u64) {
        let (begun, writing) = (self.stamp.get(), self.writing.borrow().clone());
        let expected = self.model.borrow().get(&key).copied();
        let found = self.tree.get(&key.to_be_bytes(), |record| {
            record.filter(|record| record.value.is_some()).map(|record| record.stamp)
        });
        assert!(
            found.unwrap() == expected || self.unsure_since(&writing, begun, key),
            "key {key}: {expected:?}"
        );
    }

    fn scan(&self, reverse: bool) {
        let (begun, writing) = (self.stamp.get(), self.writing.borrow().clone());
        let expected = self.model.borrow().clone();
        let mut found = Vec::new();
        let mut everything = Cursor::new(Bound::Unbounded, Bound::Unbounded, reverse, usize::MAX);
        let read = |record: &crate::RecordRef<'_>| {
            let mut key = Vec::new();
            record.append_key_to(&mut key);
            found.push((u64::from_be_bytes(key.try_into().unwrap()), record.value.is_some()));
        };
        self.tree.scan(&mut everything, read).unwrap();
        assert!(found.is_sorted_by(|one, next| if reverse { one.0 > next.0 } else { one.0 < next.0 }));
        let sure = |key: &u64| !self.unsure_since(&writing, begun, *key);
        let found: Vec<u64> =
            found.into_iter().filter_map(|(key, is)| is.then_some(key)).filter(sure).collect();
        let mut wanted: Vec<u64> = expected.keys().copied().filter(sure).collect();
        if reverse {
            wanted.reverse();
        }
        assert_eq!(found, wanted);
    }

    /// Whoever writes has taken his stamp.
    fn forget_tombstones(&self) {
        let first = self.writing.borrow().values().min().copied();
        self.tree.forget_tombstones_below(first.unwrap_or(self.stamp.get() + 1));
    }

    fn flush(&self) {
        while let FlushProgress::Wrote { .. } = self.tree.llama().flush_step().unwrap() {}
    }

    fn operation(&self) {
        match self.below(16) {
            0..=4 => self.write([self.key()].into_iter(), false),
            5 => {
                // A page's worth of neighbours.
                let (from, count) = (self.key(), 1 + self.below(24));
                self.write((from..from + count).filter(|&key| key < KEYS), false);
            }
            6 => self.write([self.key()].into_iter(), true),
            7 => {
                let (from, count) = (self.key(), 1 + self.below(40));
                self.write((from..from + count).filter(|&key| key < KEYS), true);
            }
            8 => self.read(self.key()),
            9 => self.scan(self.below(2) == 0),
            10 => self.flush(),
            11 => drop(self.tree.llama().evict_step(u64::MAX)),
            12 => {
                self.flush();
                self.tree.llama().evict_step(u64::MAX);
            }
            13 => {
                self.forget_tombstones();
                self.tree.retry_merges();
                while self.tree.maintain_step().unwrap() {}
            }
            14 => drop(self.tree.maintain_step().unwrap()),
            _ => drop(self.tree.consolidate(&self.key().to_be_bytes(), &self.tree.llama().pin())),
        }
    }

    fn interrupt(&self, moment: Moment) {
        let is_likely = if moment == Moment::Step { self.below(24) == 0 } else { self.below(2) == 0 };
        if !is_likely || self.depth.get() == DEPTH_MAX || self.interruptions.get() == INTERRUPTIONS_MAX {
            return;
        }
        self.depth.set(self.depth.get() + 1);
        self.interruptions.set(self.interruptions.get() + 1);
        for _ in 0..1 + self.below(12) {
            self.operation();
        }
        self.depth.set(self.depth.get() - 1);
    }
}

fn run(seed: u64) -> Rc<Interrupted> {
    let bed = Rc::new(Interrupted::new(seed));
    for round in 0..120 {
        if round % 10 == 0 {
            // Here and there, so that pages fill and empty.
            let from = bed.below(KEYS - 40);
            bed.part.set((from, 40));
        }
        bed.interruptions.set(0);
        let striking = Rc::clone(&bed);
        interrupted_by(Rc::new(move |moment| striking.interrupt(moment)), || bed.operation());
        bed.tree.llama().epochs().collect();
    }
    (0..KEYS).for_each(|key| bed.read(key));
    bed.scan(false);
    bed.scan(true);
    bed.tree.check().unwrap();
    bed
}

#[test]
fn changes_in_the_middle_of_changes_lose_nothing() {
    let effort: u64 =
        std::env::var("DEUTERON_EFFORT").ok().and_then(|effort| effort.parse().ok()).unwrap_or(1);
    let mut counts = [0; 4];
    for seed in 0..100 * effort {
        let found = std::panic::catch_unwind(|| {
            let statistics = run(seed).tree.statistics();
            [statistics.leaf_splits, statistics.leaf_merges, statistics.blind_deltas, statistics.inner_merges]
        });
        let found = found.unwrap_or_else(|_| panic!("seed {seed}"));
        counts.iter_mut().zip(found).for_each(|(count, found)| *count += found);
    }
    println!("splits, merges, blind deltas and inner merges: {counts:?}");
    assert!(counts.iter().all(|&count| count > 100), "{counts:?}");
}

/// The left neighbour of a page that is merged is split, at the `nth` moment of that; whether there was one.
fn split_in_a_merge(nth: usize) -> bool {
    let bed = Rc::new(Interrupted::new(1));
    let some = |keys: Range<u64>, of: fn(u64) -> bool| keys.filter(move |key| of(key % 4));
    bed.write(some(0..KEYS, |rest| rest == 0), false);
    let mut lows = Vec::new();
    bed.tree.some_leaves(&[], |low, _| lows.push(low.to_vec()));
    let low = |leaf: usize| u64::from_be_bytes(lows[leaf][..].try_into().unwrap());
    let [left, right, end] = [0, low(1), low(2)];
    // Half of the left page, and all of the right one but one record.
    bed.write(some(left + 1..(left + right) / 2, |rest| rest == 0), true);
    bed.write(some(right + 1..end, |rest| rest == 0), true);
    bed.forget_tombstones();
    bed.flush();
    bed.tree.mark_some(&lows[1]);
    let (interrupting, moments) = (Rc::clone(&bed), Cell::new(0));
    let interrupt = move |_| {
        if moments.replace(moments.get() + 1) == nth {
            let splits = || interrupting.tree.statistics().leaf_splits;
            let before = splits();
            for key in some(left + 1..right, |rest| rest != 0) {
                interrupting.write([key].into_iter(), false);
            }
            assert!(splits() > before);
            interrupting.interruptions.set(1);
        }
    };
    interrupted_by(Rc::new(interrupt), || {
        for _ in 0..3 {
            while bed.tree.maintain_step().unwrap() {}
            bed.flush();
            bed.tree.retry_merges();
        }
    });
    (0..KEYS).for_each(|key| bed.read(key));
    bed.tree.check().unwrap();
    let is_split = bed.interruptions.get() > 0;
    assert!(is_split || bed.tree.statistics().leaf_merges > 0);
    is_split
}

#[test]
fn a_page_is_merged_or_not_whenever_its_neighbour_is_split() {
    let moments = (0..).find(|&nth| !split_in_a_merge(nth)).unwrap();
    assert!(moments > 10, "{moments}");
}
