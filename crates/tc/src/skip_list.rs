//! A skip list of records in order of table and key: one writer at a time, readers without a lock.
//!
//! # Invariants
//!
//! - **L1** Links are changed by one thread at a time (the holder of the mutex in `ordered_index`).
//! - **L2** A node is complete before it is linked, at the lowest level first; it is unlinked at the highest level first.
//!   So a reader that finds a node at some level finds everything behind it at the levels below.
//! - **L3** The links of an unlinked node do not change: a reader that stands on it goes on, under its guard. It may miss
//!   what has been inserted since, nothing else.
//! - **L4** A node's record outlives the node in the list (O4), and then every guard of that time.
//! - **L5** The links lie behind the node and are changed through shared references to it. The compiler may take what a reference
//!   to a type without cells reaches for unchanging, so that the type of a node has one (of no size).

use crate::memory::Account;
use crate::range_timestamps::KeyRange;
use crate::record::{Record, prefetch};
use crate::sync::{AtomicPtr, AtomicU64, Ordering};
use deuteron_contract::{Direction, TableId};
use deuteron_epoch::Guard;
use deuteron_pool::Part;
use std::alloc::Layout;
use std::cmp;
use std::ops::Bound;
use std::ptr::{self, NonNull};
use std::sync::Arc;

#[cfg(not(any(loom, shuttle)))]
const HEIGHT_MAX: usize = 12;
#[cfg(any(loom, shuttle))]
const HEIGHT_MAX: usize = 2;

/// So many nodes a walk visits before it looks what lies ahead.
const VISITED_ALONE: usize = 3;

/// Table, and the first eight bytes of the key: decides most comparisons without a look at the record.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Prefix(TableId, u64);

fn prefix(table: TableId, key: &[u8]) -> Prefix {
    let mut bytes = [0; 8];
    let len = key.len().min(8);
    bytes[..len].copy_from_slice(&key[..len]);
    Prefix(table, u64::from_be_bytes(bytes))
}

#[repr(C)]
struct Node {
    prefix: Prefix,
    record: *const Record,
    height: usize,
    /// `height` links follow. L5.
    links: [AtomicPtr<Node>; 0],
}

impl Node {
    fn layout(height: usize) -> Layout {
        let bytes = size_of::<Node>() + height * size_of::<AtomicPtr<Node>>();
        Layout::from_size_align(bytes, align_of::<Node>().max(align_of::<AtomicPtr<Node>>()))
            .expect("a handful of pointers")
    }

    fn allocate(record: *const Record, prefix: Prefix, height: usize) -> *mut Node {
        let node = deuteron_pool::allocate(Part::Records, Self::layout(height)).as_ptr().cast::<Node>();
        // SAFETY: fresh memory with room for the node and its links.
        unsafe {
            node.write(Node { prefix, record, height, links: [] });
            for level in 0..height {
                node.add(1).cast::<AtomicPtr<Node>>().add(level).write(AtomicPtr::new(ptr::null_mut()));
            }
        }
        node
    }

    /// # Safety
    /// `pointer` came from [`Node::allocate`] with the height for which `bytes` is the size; nobody uses it any more.
    unsafe fn free(pointer: *mut u8, bytes: usize) {
        let height = (bytes - size_of::<Node>()) / size_of::<AtomicPtr<Node>>();
        #[cfg(any(loom, shuttle))]
        for level in 0..height {
            // SAFETY: the caller's contract; loom's and shuttle's atomics own memory.
            unsafe {
                ptr::drop_in_place(pointer.cast::<Node>().add(1).cast::<AtomicPtr<Node>>().add(level));
            }
        }
        // SAFETY: the caller's contract; what was allocated is not null.
        unsafe { deuteron_pool::free(Part::Records, NonNull::new_unchecked(pointer), Self::layout(height)) };
    }

    #[inline]
    fn link(&self, level: usize) -> &AtomicPtr<Node> {
        debug_assert!(level < self.height);
        let links = ptr::from_ref(self).wrapping_add(1).cast::<AtomicPtr<Node>>();
        // SAFETY: `allocate` wrote `height` links behind the node (L5).
        unsafe { &*links.add(level) }
    }

    fn next(&self, level: usize) -> *mut Node {
        // Pairs with the releasing stores of `insert_all`.
        self.link(level).load(Ordering::Acquire)
    }

    fn record(&self) -> &Record {
        // SAFETY: L4.
        unsafe { &*self.record }
    }

    fn compare(&self, prefix: Prefix, key: &[u8]) -> cmp::Ordering {
        self.prefix.cmp(&prefix).then_with(|| self.record().key().cmp(key))
    }
}

/// See the [module](self).
pub(crate) struct SkipList {
    /// A node without a record, with all levels.
    head: *mut Node,
    account: Arc<Account>,
    random: AtomicU64,
}

// SAFETY: nodes are shared under guards (L3), changed by one thread at a time (L1).
unsafe impl Send for SkipList {}
// SAFETY: as above.
unsafe impl Sync for SkipList {}

impl SkipList {
    pub(crate) fn new(account: Arc<Account>) -> SkipList {
        SkipList {
            head: Node::allocate(ptr::null(), Prefix(TableId(0), 0), HEIGHT_MAX),
            account,
            random: AtomicU64::new(0x9E37_79B9_7F4A_7C15),
        }
    }

    fn head(&self) -> &Node {
        // SAFETY: allocated by `new`, freed by `drop`.
        unsafe { &*self.head }
    }

    /// One more level with a probability of a quarter each.
    fn random_height(&self) -> usize {
        // Xorshift; only the writer comes here (L1).
        let mut word = self.random.load(Ordering::Relaxed);
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        self.random.store(word, Ordering::Relaxed);
        (1 + word.trailing_zeros() as usize / 2).min(HEIGHT_MAX)
    }

    /// Inserts records, those already there excepted. The caller is the only one who changes the list (L1), and
    /// keeps the records alive (L4).
    pub(crate) fn insert_all<'r>(&self, records: impl Iterator<Item = &'r Record>) {
        // In order, each search goes on where the one before ended.
        let mut sorted: Vec<(Prefix, &Record)> =
            records.map(|record| (prefix(record.table(), record.key()), record)).collect();
        sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| a.1.key().cmp(b.1.key())));
        let mut before = [self.head(); HEIGHT_MAX];
        for (prefix, record) in sorted {
            let after = self.search_from(&mut before, prefix, record.key());
            if Self::run(after, prefix, record.key()).any(|node| ptr::eq(node.record, record)) {
                continue;
            }
            let height = self.random_height();
            let new = Node::allocate(record, prefix, height);
            self.account.add(Node::layout(height).size());
            // SAFETY: just allocated.
            let node = unsafe { &*new };
            for (level, before) in before.iter().enumerate().take(height) {
                node.link(level).store(before.next(level), Ordering::Relaxed);
            }
            for (level, before) in before.iter().enumerate().take(height) {
                before.link(level).store(new, Ordering::Release);
            }
        }
    }

    /// The nodes of one key from `first` on. More than one only if all but the first are of records that are gone:
    /// a later record of a key goes before an earlier one.
    fn run<'l>(first: Option<&'l Node>, prefix: Prefix, key: &'l [u8]) -> impl Iterator<Item = &'l Node> {
        // SAFETY: the caller may follow links: it is the writer (L1) or has a guard (L3).
        let next = |node: &&'l Node| unsafe { node.next(0).as_ref() };
        std::iter::successors(first, next).take_while(move |node| node.compare(prefix, key).is_eq())
    }

    /// Moves `before`, at each level, forward to the last node that is less than the key; returns the node after it.
    fn search_from<'l>(
        &'l self,
        before: &mut [&'l Node; HEIGHT_MAX],
        prefix: Prefix,
        key: &[u8],
    ) -> Option<&'l Node> {
        let mut behind: &Node = self.head();
        let mut after = ptr::null_mut();
        for level in (0..HEIGHT_MAX).rev() {
            // The level above may have come further than the last search has at this level.
            let start = before[level];
            if ptr::eq(behind, self.head())
                || (!ptr::eq(start, self.head())
                    && start.compare(behind.prefix, behind.record().key()).is_gt())
            {
                behind = start;
            }
            loop {
                after = behind.next(level);
                // SAFETY: linked, and only this thread unlinks (L1).
                match unsafe { after.as_ref() } {
                    Some(node) if node.compare(prefix, key).is_lt() => behind = node,
                    _ => break,
                }
            }
            before[level] = behind;
        }
        // SAFETY: as above.
        unsafe { after.as_ref() }
    }

    /// Takes `record` out, if it is there. The caller is the only one who changes the list (L1).
    pub(crate) fn remove(&self, record: &Record, guard: &Guard<'_>) {
        let prefix = prefix(record.table(), record.key());
        let mut before = [self.head(); HEIGHT_MAX];
        let mut found = None;
        for node in Self::run(self.search_from(&mut before, prefix, record.key()), prefix, record.key()) {
            if ptr::eq(node.record, record) {
                found = Some(node);
                break;
            }
            before[..node.height].fill(node);
        }
        let Some(node) = found else { return };
        let pointer = before[0].next(0);
        for level in (0..node.height).rev() {
            before[level].link(level).store(node.next(level), Ordering::Release);
        }
        let bytes = Node::layout(node.height).size();
        self.account.subtract(bytes);
        // SAFETY: unlinked at every level, once; `free` may run anywhere.
        unsafe { guard.retire(pointer.cast(), bytes, Node::free) };
    }

    /// Calls `visit` with the records within `bounds`, in their order, until it returns false. Records that are gone may
    /// be among them.
    pub(crate) fn walk<'g>(
        &self,
        range: KeyRange<'_>,
        direction: Direction,
        guard: &'g Guard<'_>,
        mut visit: impl FnMut(&'g Record) -> bool,
    ) {
        // SAFETY: found under the guard (L3); the records live as long as it (L4).
        let record_of = |node: &Node| unsafe { &*node.record };
        let table = range.table;
        let [lower, upper] =
            [range.lower, range.upper].map(|bound| bound.map(|key| (prefix(table, key), key)));
        match direction {
            Direction::Forward => {
                let mut current = Path::new(self.head()).seek(|node| match lower {
                    Bound::Included((prefix, key)) => node.compare(prefix, key).is_lt(),
                    Bound::Excluded((prefix, key)) => node.compare(prefix, key).is_le(),
                    Bound::Unbounded => node.prefix.0 < table,
                });
                // The search has seen to the lower end.
                let is_within = |node: &Node| match upper {
                    Bound::Included((prefix, key)) => node.compare(prefix, key).is_le(),
                    Bound::Excluded((prefix, key)) => node.compare(prefix, key).is_lt(),
                    Bound::Unbounded => node.prefix.0 == table,
                };
                let mut ahead = Ahead::default();
                while let Some(node) = current {
                    if !is_within(node) {
                        return;
                    }
                    ahead.advance(node, guard);
                    if !visit(record_of(node)) {
                        return;
                    }
                    // SAFETY: as above.
                    current = unsafe { node.next(0).as_ref() };
                }
            }
            Direction::Reverse => {
                let mut path = Path::new(self.head());
                path.seek(|node| match upper {
                    Bound::Included((prefix, key)) => node.compare(prefix, key).is_le(),
                    Bound::Excluded((prefix, key)) => node.compare(prefix, key).is_lt(),
                    Bound::Unbounded => node.prefix.0 <= table,
                });
                // The search has seen to the upper end.
                let is_within = |node: &Node| match lower {
                    Bound::Included((prefix, key)) => node.compare(prefix, key).is_ge(),
                    Bound::Excluded((prefix, key)) => node.compare(prefix, key).is_gt(),
                    Bound::Unbounded => node.prefix.0 == table,
                };
                while let Some(node) = path.last().filter(|node| is_within(node)) {
                    let key = record_of(node).key();
                    let is_before =
                        |other: &Node| !ptr::eq(other, node) && other.compare(node.prefix, key).is_lt();
                    let first = path.seek(is_before);
                    if let Some(before) = path.last() {
                        prefetch(before.record.cast());
                    }
                    // As a rule there is one node of a key, which need not be compared with itself.
                    let is_alone = first.is_some_and(|first| ptr::eq(first, node));
                    let mut others = Self::run(first, node.prefix, key);
                    let goes_on = match is_alone {
                        true => visit(record_of(node)),
                        false => others.all(|node| visit(record_of(node))),
                    };
                    if !goes_on {
                        return;
                    }
                }
            }
        }
    }
}

/// Where a walk in reverse has come to: at each level the last node before a key that only ever falls.
///
/// So a search for the node before that begins where this one was found, a level or two above, and not at the head of the list. It may stand on a node that has been unlinked meanwhile (L3), as a walk
/// forward does.
struct Path<'l> {
    head: &'l Node,
    nodes: [&'l Node; HEIGHT_MAX],
}

impl<'l> Path<'l> {
    /// Nowhere yet. The caller has a guard for as long as the path lives.
    fn new(head: &'l Node) -> Path<'l> {
        Path { head, nodes: [head; HEIGHT_MAX] }
    }

    /// The last node before the key; none, if that is the first of the list.
    fn last(&self) -> Option<&'l Node> {
        Some(self.nodes[0]).filter(|node| !ptr::eq(*node, self.head))
    }

    /// Goes back, or at first forward, to the last node for which `is_before`, which is true of a prefix of the list; returns the node behind it.
    fn seek(&mut self, is_before: impl Fn(&Node) -> bool) -> Option<&'l Node> {
        let stands = |node: &&Node| ptr::eq(*node, self.head) || is_before(node);
        // At first all of them are the head, and the search begins at the top. Where none is before the key it begins with the head.
        let found = self.last().and_then(|_| self.nodes.iter().position(stands));
        let (top, mut behind) = found.map_or((HEIGHT_MAX - 1, self.head), |level| (level, self.nodes[level]));
        let mut after = None;
        for level in (0..=top).rev() {
            loop {
                // SAFETY: whoever made the path has a guard (L3).
                after = unsafe { behind.next(level).as_ref() };
                match after {
                    Some(node) if is_before(node) => behind = node,
                    _ => break,
                }
            }
            self.nodes[level] = behind;
        }
        after
    }
}

/// Runs ahead of a walk, so that it need not wait for each node, record and version in turn, wherever they lie in memory: asks for the third node
/// behind the one that is visited, for the record of the second, and for the version of the first. Not of the first few nodes of a walk, which has none
/// behind them as a rule.
#[derive(Default)]
struct Ahead {
    visited: usize,
    /// Those behind the last that was visited, nearest first.
    nodes: [Option<*const Node>; 3],
}

impl Ahead {
    /// `node`, of a list under `guard`, is about to be visited.
    #[inline]
    fn advance(&mut self, node: &Node, guard: &Guard<'_>) {
        self.visited += 1;
        // Loads that the models need not know of.
        if self.visited <= VISITED_ALONE || cfg!(any(loom, shuttle)) {
            return;
        }
        // SAFETY: linked when it was found, under the guard (L3).
        let behind = |node: *const Node| unsafe { node.as_ref() }.map(|node| node.next(0).cast_const());
        let [_, first, second] = self.nodes;
        let first = first.or_else(|| behind(node));
        let second = second.or_else(|| first.and_then(behind));
        let third = second.and_then(behind);
        self.nodes = [first, second, third];
        if let Some(third) = third {
            prefetch(third.cast());
        }
        // SAFETY: as above.
        if let Some(second) = second.and_then(|node| unsafe { node.as_ref() }) {
            prefetch(second.record.cast());
        }
        // SAFETY: as above.
        if let Some(first) = first.and_then(|node| unsafe { node.as_ref() }) {
            first.record().prefetch_head(guard);
        }
    }
}

impl Drop for SkipList {
    fn drop(&mut self) {
        let mut node = self.head;
        while !node.is_null() {
            // SAFETY: `&mut self`; linked nodes are alive, and each is freed once.
            unsafe {
                let next = (*node).next(0);
                Node::free(node.cast(), Node::layout((*node).height).size());
                node = next;
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::record::KeyRef;
    use deuteron_contract::Timestamp;
    use deuteron_contract::conformance::SplitMix;

    #[test]
    fn a_walk_stays_in_its_table_and_passes_all_records_of_a_key() {
        let list = SkipList::new(Arc::new(Account::new(1 << 20)));
        let new = |table, name: &[u8]| {
            Record::allocate(KeyRef { hash: 0, table: TableId(table), key: name }, Timestamp(0), 0)
        };
        let names: [&[u8]; 3] = [b"a", b"b", b"c"];
        let mut records: Vec<*mut Record> =
            (1..4).flat_map(|table| names.map(|name| new(table, name))).collect();
        // Two whose predecessors are gone.
        records.extend([new(2, b"b"), new(2, b"b")]);
        for record in &records {
            // SAFETY: freed at the end.
            list.insert_all(std::iter::once(unsafe { &**record }));
        }
        let epochs = deuteron_epoch::Epochs::new();
        let walked = |lower: Bound<&[u8]>, upper: Bound<&[u8]>, direction, count| {
            let (mut found, range) = (Vec::new(), KeyRange { table: TableId(2), lower, upper });
            list.walk(range, direction, &epochs.pin(), |record| {
                assert_eq!(record.table(), TableId(2));
                found.extend_from_slice(record.key());
                found.len() < count
            });
            String::from_utf8(found).unwrap()
        };
        use Bound::{Excluded, Included, Unbounded};
        let (a, b) = (&b"a"[..], &b"b"[..]);
        for (lower, upper, count, expected) in [
            (Unbounded, Unbounded, 9, ["abbbc", "cbbba"]),
            (Included(b), Unbounded, 9, ["bbbc", "cbbb"]),
            (Excluded(b), Unbounded, 9, ["c", "c"]),
            (Unbounded, Included(b), 9, ["abbb", "bbba"]),
            (Unbounded, Excluded(b), 9, ["a", "a"]),
            (Excluded(a), Included(b), 9, ["bbb", "bbb"]),
            (Unbounded, Unbounded, 3, ["abb", "cbb"]),
        ] {
            let found = [Direction::Forward, Direction::Reverse].map(|to| walked(lower, upper, to, count));
            assert_eq!(found, expected);
        }
        drop(list);
        for record in records {
            // SAFETY: the list is gone.
            unsafe { Record::free(record.cast(), (*record).bytes()) };
        }
    }

    /// Records are taken out under the walk, those before it, behind it and the one that it stands on; it misses none of the others.
    #[test]
    fn a_walk_finds_everything_in_order_though_records_leave_under_it() {
        let list = SkipList::new(Arc::new(Account::new(1 << 20)));
        let epochs = deuteron_epoch::Epochs::new();
        let mut random = SplitMix::new(7);
        let name = |number: u64| (number << 20).to_be_bytes();
        let range = KeyRange {
            table: TableId(1),
            lower: Bound::Excluded(&name(9)),
            upper: Bound::Included(&name(900)),
        };
        for round in 0..40 {
            let records: Vec<*mut Record> = (0..1000)
                .map(|number| {
                    let key = KeyRef { hash: 0, table: TableId(1), key: &name(number) };
                    Record::allocate(key, Timestamp(0), 0)
                })
                .collect();
            // SAFETY: freed at the end of the round.
            let record = |number: u64| unsafe { &*records[number as usize] };
            list.insert_all((0..1000).map(record));
            let direction = [Direction::Forward, Direction::Reverse][round % 2];
            let mut is_there = vec![true; 1000];
            let mut found = Vec::new();
            let guard = epochs.pin();
            list.walk(range, direction, &guard, |visited| {
                found.push(u64::from_be_bytes(visited.key().try_into().unwrap()) >> 20);
                let here = found[found.len() - 1];
                // Of some rounds none, of others most.
                for _ in 0..random.index(round) {
                    let near = here.saturating_sub(20) + random.below(40);
                    if near < 1000 && std::mem::take(&mut is_there[near as usize]) {
                        list.remove(record(near), &epochs.pin());
                    }
                }
                true
            });
            if direction == Direction::Reverse {
                found.reverse();
            }
            assert!(found.is_sorted_by(|one, next| one < next), "{found:?}");
            assert!(found.iter().all(|number| (10..=900).contains(number)));
            let missed = (10..=900).find(|&number| is_there[number as usize] && !found.contains(&number));
            assert_eq!(missed, None, "round {round}");
            (0..1000).filter(|&number| is_there[number as usize]).for_each(|number| {
                list.remove(record(number), &epochs.pin());
            });
            drop(guard);
            for record in records {
                // SAFETY: none is in the list.
                unsafe { Record::free(record.cast(), (*record).bytes()) };
            }
        }
    }

    #[test]
    fn one_node_in_four_is_higher_than_another_and_all_are_accounted_for() {
        let account = Arc::new(Account::new(1 << 20));
        let list = SkipList::new(Arc::clone(&account));
        let count = 4096usize;
        let records: Vec<*mut Record> = (0..count as u32)
            .map(|number| {
                let name = number.to_be_bytes();
                Record::allocate(KeyRef { hash: 0, table: TableId(1), key: &name }, Timestamp(0), 0)
            })
            .collect();
        // SAFETY: freed at the end.
        list.insert_all(records.iter().map(|record| unsafe { &**record }));
        let (mut links, mut expected) = (0, count);
        for level in 0..5 {
            // SAFETY: nobody changes the list.
            let node = |pointer: *mut Node| unsafe { pointer.as_ref() };
            let first = node(list.head().next(level));
            let length = std::iter::successors(first, |last| node(last.next(level))).count();
            assert!((expected / 2..=expected * 2).contains(&length), "{length} at level {level}");
            links += length;
            expected /= 4;
        }
        let bytes = count * size_of::<Node>() + links * 8;
        assert!((account.used() as usize).abs_diff(bytes) < 4096, "{} for {bytes}", account.used());
        drop(list);
        for record in records {
            // SAFETY: the list is gone.
            unsafe { Record::free(record.cast(), (*record).bytes()) };
        }
    }
}
