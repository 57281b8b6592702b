//! A toy access method over the store, and what every page of it must contain.
//!
//! Keys are numbers; a page holds those of its range. A value is the number of the operation that wrote it, so of
//! two values of a key the higher is the younger, and whatever a crash leaves can be judged: each key has a value
//! that was written to it, none older than what was known to be durable. Each entry carries filler bytes made from
//! key and value, so that mixed-up bytes are noticed.

#![allow(dead_code, reason = "each test uses a part")]

pub mod steps;
pub mod watched;

pub use deuteron_device::simulated::Random;
use deuteron_device::{CrashPolicy, Directory, SimulatedDisk};
use deuteron_epoch::Epochs;
use deuteron_llama::{
    Checkpoint, CheckpointProgress, FlushProgress, Llama, LlamaError, NodeKind, Options, OwnedNode,
    PageDescriptor, PageId, PageState, Recovered, Snapshot,
};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub const TREE: u32 = 7;
/// No key is this high.
pub const KEYS_END: u32 = 1 << 16;
/// A page is split when it has more entries.
const ENTRIES_MAX: usize = 12;
/// A page is consolidated when it has more deltas in memory.
const DELTAS_MAX: usize = 4;

pub type Entries = BTreeMap<u32, u64>;

fn filler(key: u32, value: u64) -> impl Iterator<Item = u8> {
    let mut random = Random::new(u64::from(key) << 32 ^ value);
    let count = random.below(120);
    (0..count).map(move |_| random.next() as u8)
}

pub fn encode_entries(entries: impl IntoIterator<Item = (u32, u64)>, out: &mut Vec<u8>) {
    for (key, value) in entries {
        out.extend_from_slice(&key.to_le_bytes());
        out.extend_from_slice(&value.to_le_bytes());
        let filler: Vec<u8> = filler(key, value).collect();
        out.push(filler.len() as u8);
        out.extend_from_slice(&filler);
    }
}

pub fn decode_entries(mut bytes: &[u8], into: &mut Entries) {
    while !bytes.is_empty() {
        let key = u32::from_le_bytes(bytes[..4].try_into().unwrap());
        let value = u64::from_le_bytes(bytes[4..12].try_into().unwrap());
        let count = bytes[12] as usize;
        assert!(bytes[13..13 + count].iter().copied().eq(filler(key, value)), "filler of {key}={value}");
        let known = into.entry(key).or_insert(value);
        *known = (*known).max(value);
        bytes = &bytes[13 + count..];
    }
}

/// What a whole page says.
pub struct PageContent {
    pub low: u32,
    pub high: u32,
    pub entries: Entries,
}

fn base_payload(low: u32, high: u32, entries: &Entries) -> Vec<u8> {
    let mut payload = Vec::new();
    payload.extend_from_slice(&low.to_le_bytes());
    payload.extend_from_slice(&high.to_le_bytes());
    encode_entries(entries.iter().map(|(&key, &value)| (key, value)), &mut payload);
    payload
}

pub fn low_key(low: u32) -> Vec<u8> {
    if low == 0 { Vec::new() } else { low.to_be_bytes().to_vec() }
}

fn base(low: u32, high: u32, entries: &Entries, adopts: &[PageId]) -> OwnedNode {
    let low_key = low_key(low);
    let descriptor = PageDescriptor { tree: TREE, low_key: &low_key, root: low == 0 };
    OwnedNode::base(&base_payload(low, high, entries), descriptor, adopts)
}

/// The content of a resident page; `None` if it is not whole in memory.
pub fn content(snapshot: Snapshot<'_>) -> Option<PageContent> {
    let PageState::Resident(head) = snapshot.state() else { return None };
    if head.is_partial() {
        return None;
    }
    let mut entries = Entries::new();
    let mut node = Some(head);
    while let Some(current) = node {
        if current.kind() == NodeKind::Base {
            let payload = current.payload();
            let low = u32::from_le_bytes(payload[..4].try_into().unwrap());
            let high = u32::from_le_bytes(payload[4..8].try_into().unwrap());
            decode_entries(&payload[8..], &mut entries);
            return Some(PageContent { low, high, entries });
        }
        if current.kind() != NodeKind::Seal {
            decode_entries(current.payload(), &mut entries);
        }
        node = current.next();
    }
    panic!("a whole chain ends in a base");
}

/// What outlives a crash: the judge's memory.
#[derive(Clone)]
pub struct Ledger {
    history: BTreeMap<u32, BTreeSet<u64>>,
    durable: Entries,
    operations: u64,
    random: Random,
}

impl Default for Ledger {
    fn default() -> Ledger {
        let (history, durable) = (BTreeMap::new(), Entries::new());
        Ledger { history, durable, operations: 0, random: Random::new(1) }
    }
}

pub struct Harness {
    pub llama: Llama,
    pub epochs: Arc<Epochs>,
    /// Where to find which keys.
    pub index: BTreeMap<u32, PageId>,
    /// Right halves whose separators are not posted: they are not in the index that a checkpoint writes, and their
    /// left halves are held.
    pub unposted: Vec<(PageId, u32)>,
    /// Pages that are merged, and held, as their separator is not removed yet.
    pub unremoved: Vec<[PageId; 2]>,
    pub merges: u64,
    pub now: Entries,
    /// Every value ever written to a key.
    pub history: BTreeMap<u32, BTreeSet<u64>>,
    /// What is known to be durable.
    pub durable: Entries,
    pub operations: u64,
    /// A checkpoint that has begun, and what it will make durable.
    pub checkpoint: Option<(Checkpoint, Entries)>,
    random: Random,
}

impl Harness {
    /// A new store with one empty tree.
    pub fn create(directory: Arc<dyn Directory>, options: &Options) -> Result<Harness, LlamaError> {
        let epochs = Epochs::with_threshold(4096);
        let (llama, recovered) = Llama::open(directory, options.clone(), Arc::clone(&epochs))?;
        assert_eq!(recovered, Recovered::default());
        Ok(Harness::new(llama, epochs, &Ledger::default()).with_root())
    }

    /// A harness without pages.
    fn new(llama: Llama, epochs: Arc<Epochs>, ledger: &Ledger) -> Harness {
        let Ledger { history, durable, operations, random } = ledger.clone();
        Harness {
            llama,
            epochs,
            index: BTreeMap::new(),
            unposted: Vec::new(),
            unremoved: Vec::new(),
            merges: 0,
            now: Entries::new(),
            history,
            durable,
            operations,
            checkpoint: None,
            random,
        }
    }

    fn with_root(mut self) -> Harness {
        let page = self.llama.allocate();
        let guard = self.llama.pin();
        let free = self.llama.snapshot(page, &guard);
        self.llama.install(page, free, base(0, KEYS_END, &Entries::new(), &[]), &guard).unwrap();
        drop(guard);
        self.index.insert(0, page);
        self
    }

    /// Ends it, as a crash would.
    pub fn into_ledger(self) -> Ledger {
        self.ledger()
    }

    /// What is to be found if a crash ends it now.
    pub fn ledger(&self) -> Ledger {
        Ledger {
            history: self.history.clone(),
            durable: self.durable.clone(),
            operations: self.operations,
            random: self.random.clone(),
        }
    }

    /// Opens the store that a crash has left, and judges what is there.
    pub fn reopen(
        ledger: &Ledger,
        directory: Arc<dyn Directory>,
        options: &Options,
    ) -> Result<Harness, LlamaError> {
        let epochs = Epochs::with_threshold(4096);
        let (llama, recovered) = Llama::open(directory, options.clone(), Arc::clone(&epochs))?;
        let mut harness = Harness::new(llama, epochs, ledger);
        assert!(recovered.pages.is_sorted());
        for page in &recovered.pages {
            assert_eq!(page.tree, TREE);
            let low = if page.low_key.is_empty() {
                0
            } else {
                u32::from_be_bytes(page.low_key.as_slice().try_into().unwrap())
            };
            assert_eq!(harness.index.insert(low, page.page), None, "two pages at {low}");
        }
        if harness.index.is_empty() {
            assert!(harness.durable.is_empty());
            return Ok(harness.with_root());
        }
        let lows: Vec<u32> = harness.index.keys().copied().chain([KEYS_END]).collect();
        assert_eq!(lows[0], 0, "the leftmost page");
        for ends in lows.windows(2) {
            let read = harness.read(harness.index[&ends[0]])?;
            assert_eq!((read.low, read.high), (ends[0], ends[1]), "a split is whole or has not been");
            assert!(read.entries.keys().all(|key| (read.low..read.high).contains(key)));
            harness.now.extend(read.entries);
        }
        for (key, value) in &harness.now {
            assert!(harness.history.get(key).is_some_and(|written| written.contains(value)), "{key}={value}");
        }
        for (key, value) in &harness.durable {
            let found = harness.now.get(key);
            assert!(found.is_some_and(|found| found >= value), "{key}={value} was durable, found {found:?}");
        }
        Ok(harness)
    }

    fn page_of(&self, key: u32) -> PageId {
        *self.index.range(..=key).next_back().expect("the leftmost page").1
    }

    pub fn upsert(&mut self, key: u32) {
        self.operations += 1;
        let value = self.operations;
        let page = self.page_of(key);
        let mut payload = Vec::new();
        encode_entries([(key, value)], &mut payload);
        let guard = self.llama.pin();
        let snapshot = self.llama.snapshot(page, &guard);
        let deltas = snapshot.head().map_or(0, |head| head.chain_length());
        self.llama.install(page, snapshot, OwnedNode::delta(&payload), &guard).expect("nobody else is here");
        drop(guard);
        self.random = Random::new(self.random.next() ^ value);
        self.now.insert(key, value);
        self.history.entry(key).or_default().insert(value);
        if deltas >= 4 * DELTAS_MAX {
            // It has left memory in part. If it cannot be read, its chain grows.
            let _ = self.llama.load(page);
        }
        if deltas >= DELTAS_MAX {
            self.consolidate(page);
        }
    }

    /// Replaces the page by a base, or two, if it is whole in memory.
    pub fn consolidate(&mut self, page: PageId) {
        let guard = self.llama.pin();
        let snapshot = self.llama.snapshot(page, &guard);
        let Some(PageContent { low, high, entries }) = content(snapshot) else { return };
        if entries.len() <= ENTRIES_MAX {
            self.llama.install(page, snapshot, base(low, high, &entries, &[]), &guard).unwrap();
            return;
        }
        let middle = *entries.keys().nth(entries.len() / 2).unwrap();
        let (mut left, mut right) = (entries.clone(), entries);
        left.retain(|&key, _| key < middle);
        right.retain(|&key, _| key >= middle);
        let right_page = self.llama.allocate();
        let free = self.llama.snapshot(right_page, &guard);
        self.llama.hold(page);
        self.llama.install(right_page, free, base(middle, high, &right, &[]), &guard).unwrap();
        drop(guard);
        // Others go on between the right half's coming into being and the left half's.
        if self.random.below(4) == 0 {
            let _ = self.llama.flush_step();
        }
        if self.random.below(8) == 0 && self.checkpoint.is_none() {
            let begun = self.llama.checkpoint_begin(&self.operations.to_le_bytes());
            self.checkpoint = begun.ok().map(|checkpoint| (checkpoint, self.now.clone()));
        }
        let guard = self.llama.pin();
        let again = self.llama.snapshot(page, &guard);
        // A lost race: at random, or because the page was evicted meanwhile.
        if again.head().is_none_or(|head| head.is_partial()) || self.random.below(7) == 0 {
            self.llama.release(page);
            let mut expected = self.llama.snapshot(right_page, &guard);
            while let Err(changed) = self.llama.free_page(right_page, expected, &guard) {
                expected = changed;
            }
            return;
        }
        self.llama.install(page, again, base(low, middle, &left, &[right_page]), &guard).unwrap();
        drop(guard);
        self.index.insert(middle, right_page);
        self.unposted.push((page, middle));
        if self.random.below(3) > 0 {
            self.post(0);
        }
    }

    /// Merges the page of `key` into its left neighbour, if both are known to be durable and nothing else goes on there.
    pub fn merge(&mut self, key: u32) -> Result<(), LlamaError> {
        let Some((&low, &right)) = self.index.range(1..=key.max(1)).next_back() else { return Ok(()) };
        let left = self.page_of(low - 1);
        let busy = |page| self.unposted.iter().any(|&(other, _)| other == page);
        if busy(left) || busy(right) || !self.llama.is_settled(left) || !self.llama.is_settled(right) {
            return Ok(());
        }
        self.llama.hold(left);
        self.llama.hold(right);
        // A new base under the hold keeps the left page in memory.
        let taken = self.read(left)?;
        let _ = self.read(right)?;
        let guard = self.llama.pin();
        let renewed = base(taken.low, taken.high, &taken.entries, &[]);
        let ready = content(self.llama.snapshot(left, &guard)).is_some()
            && content(self.llama.snapshot(right, &guard)).is_some();
        if !ready {
            // Evicted by the other's load.
            self.llama.release(left);
            self.llama.release(right);
            return Ok(());
        }
        self.llama.install(left, self.llama.snapshot(left, &guard), renewed, &guard).unwrap();
        let Ok(sealed) = self.llama.seal(right, self.llama.snapshot(right, &guard), &guard) else {
            // It adopts pages, and has not been flushed since.
            self.llama.release(left);
            self.llama.release(right);
            return Ok(());
        };
        assert!(self.llama.install(right, sealed, OwnedNode::delta(b""), &guard).is_err());
        drop(guard);
        self.disturb();
        let guard = self.llama.pin();
        let sealed = content(self.llama.snapshot(right, &guard)).expect("sealed pages stay");
        let mut both = content(self.llama.snapshot(left, &guard)).expect("not flushed, as it is held");
        both.entries.extend(sealed.entries);
        let low_key = low_key(both.low);
        let descriptor = PageDescriptor { tree: TREE, low_key: &low_key, root: both.low == 0 };
        let payload = base_payload(both.low, sealed.high, &both.entries);
        let heir = OwnedNode::heir(&payload, descriptor, &[], &[right]);
        self.llama.install(left, self.llama.snapshot(left, &guard), heir, &guard).unwrap();
        drop(guard);
        self.disturb();
        self.index.remove(&low);
        self.unremoved.push([left, right]);
        self.merges += 1;
        if self.random.below(3) > 0 {
            self.post(0);
        }
        Ok(())
    }

    /// What others may do between two steps.
    fn disturb(&mut self) {
        match self.random.below(8) {
            0 => drop(self.llama.flush_step()),
            1 => drop(self.llama.evict_step(10_000)),
            2 if self.checkpoint.is_none() => {
                let begun = self.llama.checkpoint_begin(&self.operations.to_le_bytes());
                self.checkpoint = begun.ok().map(|checkpoint| (checkpoint, self.now.clone()));
            }
            _ => {}
        }
    }

    /// Posts separators, in any order, until at most `left` are not posted.
    pub fn post(&mut self, left: usize) {
        while self.unposted.len() > left {
            let index = self.random.below(self.unposted.len() as u64) as usize;
            let (page, _) = self.unposted.swap_remove(index);
            self.llama.release(page);
        }
        while self.unremoved.len() > left {
            let index = self.random.below(self.unremoved.len() as u64) as usize;
            self.unremoved.swap_remove(index).into_iter().for_each(|page| self.llama.release(page));
        }
    }

    /// The whole page, loaded if need be.
    pub fn read(&self, page: PageId) -> Result<PageContent, LlamaError> {
        loop {
            let guard = self.llama.pin();
            let snapshot = self.llama.snapshot(page, &guard);
            if let Some(head) = snapshot.head() {
                head.touch();
            }
            match content(snapshot) {
                Some(content) => return Ok(content),
                None => {
                    drop(guard);
                    self.llama.load(page)?;
                }
            }
        }
    }

    /// Reads the page of `key` and checks it.
    pub fn check(&self, key: u32) -> Result<(), LlamaError> {
        let read = self.read(self.page_of(key))?;
        let expected: Entries =
            self.now.range(read.low..read.high).map(|(&key, &value)| (key, value)).collect();
        assert_eq!(read.entries, expected);
        Ok(())
    }

    pub fn check_all(&self) -> Result<(), LlamaError> {
        self.index.keys().try_for_each(|&low| self.check(low))
    }

    /// Flushes until nothing is dirty, and notes what is durable then.
    pub fn flush_all(&mut self) -> Result<(), LlamaError> {
        self.post(0);
        while self.llama.flush_step()? != FlushProgress::Nothing {}
        assert_eq!(self.llama.statistics().dirty_pages, 0);
        self.durable = self.now.clone();
        Ok(())
    }

    /// A checkpoint, with `between` called between its steps.
    pub fn checkpoint(&mut self, mut between: impl FnMut(&mut Harness)) -> Result<(), LlamaError> {
        let (mut checkpoint, goal) = match self.checkpoint.take() {
            Some(begun) => begun,
            None => (self.llama.checkpoint_begin(&self.operations.to_le_bytes())?, self.now.clone()),
        };
        loop {
            match self.llama.checkpoint_flush_step(&mut checkpoint)? {
                CheckpointProgress::Done => break,
                CheckpointProgress::Blocked { .. } => self.post(0),
                CheckpointProgress::Wrote { .. } => between(self),
            }
        }
        // The index as a checkpoint sees it: without what is not posted, and walked while others go on.
        let mut next = 0;
        while let Some((&low, &page)) = self.index.range(next..).next() {
            if !self.unposted.iter().any(|&(_, unposted)| unposted == low) {
                self.llama.checkpoint_add(&mut checkpoint, TREE, &low_key(low), page)?;
            }
            next = low + 1;
            if low % 5 == 0 {
                between(self);
            }
        }
        self.llama.checkpoint_finish(checkpoint)?;
        for (key, value) in goal {
            let known = self.durable.entry(key).or_insert(value);
            *known = (*known).max(value);
        }
        Ok(())
    }

    /// One random action.
    pub fn act(&mut self, random: &mut Random) -> Result<(), LlamaError> {
        match random.below(100) {
            0..5 => self.merge(random.below(400) as u32)?,
            5..55 => {
                // Mostly a small part of the keys, so that pages are split, and written again and again.
                let range = if random.below(4) == 0 { u64::from(KEYS_END) } else { 200 };
                self.upsert(random.below(range) as u32);
            }
            55..70 => self.check(random.below(400) as u32)?,
            70..78 => {
                self.llama.flush_step()?;
            }
            78..86 => {
                self.llama.evict_step(random.below(20_000));
            }
            86..90 => {
                let page = self.page_of(random.below(300) as u32);
                self.read(page)?;
                self.consolidate(page);
            }
            90..93 => self.post(random.below(3) as usize),
            93..96 => {
                // To a lower bound at times, so that there is something to move.
                let percent = [200, 120][random.below(2) as usize];
                for _ in 0..random.below(12) {
                    self.llama.clean_step_to(percent)?;
                }
            }
            96 => self.flush_all()?,
            97 => {
                self.epochs.collect();
            }
            _ => {
                let mut inner = Random::new(random.next());
                self.checkpoint(|harness| {
                    let key = inner.below(200) as u32;
                    harness.upsert(key);
                    match inner.below(10) {
                        8.. => drop(harness.merge(key)),
                        0..2 => {
                            harness.llama.evict_step(2000);
                        }
                        2..4 => {
                            let _ = harness.llama.flush_step();
                        }
                        4 => harness.post(0),
                        _ => {}
                    }
                })?;
            }
        }
        Ok(())
    }
}

/// Runs `count` actions, crashing now and then. How many pages were merged, and moved by the cleaner.
pub fn run(seed: u64, count: usize, options: &Options) -> (u64, u64) {
    let disk = SimulatedDisk::new(seed);
    let mut random = Random::new(seed);
    let mut harness = Harness::create(Arc::new(disk.directory()), options).unwrap();
    harness.random = Random::new(seed);
    let (mut merges, mut moved) = (0, 0);
    for _ in 0..count {
        if random.below(120) == 0 {
            let directory = disk.crash(CrashPolicy::of(random.below(3)));
            merges += harness.merges;
            moved += harness.llama.statistics().pages_relocated;
            harness = Harness::reopen(&harness.into_ledger(), Arc::new(directory), options).unwrap();
            harness.check_all().unwrap();
        } else {
            harness.act(&mut random).unwrap();
        }
    }
    harness.check_all().unwrap();
    // What recovery counts as live must be what was counted while it died piece by piece.
    harness.flush_all().unwrap();
    while harness.epochs.collect() > 0 {}
    harness.llama.flush_step().unwrap();
    let counted = harness.llama.statistics().live_bytes;
    let left = Arc::new(disk.crash(CrashPolicy::LoseAll));
    let harness = Harness::reopen(&harness.into_ledger(), left, options).unwrap();
    assert_eq!(harness.llama.statistics().live_bytes, counted);
    (merges, moved)
}
