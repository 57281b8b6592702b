//! An inner node: separators and children in one immutable allocation of words.
//!
//! | word | field |
//! |---|---|
//! | 0 | words of the node in all |
//! | 1 | level (1 just above the leaves) in the high half, its highest bit: frozen; number of separators in the low half |
//! | 2 | right sibling: a child word of the same level, or 0 |
//! | 3 | high key bytes + 1 (0: no upper bound) in the high half, low key bytes in the low half |
//! | 4 | bytes of the prefix that all separators share |
//! | 5 | the first 8 of them as a number, zero-padded |
//! | then | tops: the last head of each whole group of 16 |
//! | then | heads: one word a separator, the 8 bytes behind the shared prefix as a number |
//! | then | children: one word each, one more than separators |
//! | then | ends of the separators in the key bytes, one word each |
//! | then | key bytes: the low key, the high key; if the prefix is long, the prefix, and the separators without it; else the separators whole |
//!
//! A search goes through the tops, which are fetched along with the header, and then through one group: three waits for memory,
//! where a binary search through 256 heads has six. Neither ends nor key bytes are looked at where heads and word 5 tell.
//!
//! A separator in one piece is lent; one without its prefix has to be put together, which is worth it if that saves most of a node: nodes
//! are copied with every leaf that is split.
//!
//! Child `i` holds the keys from separator `i - 1` (inclusive) to separator `i` (exclusive). A child word is a
//! page identifier at level 1, and the address of a cell above. Zero is never a child.
//!
//! Nodes are made with [`InnerNode::build`], published by a compare-and-swap on a cell, and never changed after that.

use crate::page::key::{
    behind_head, common_prefix_bytes, compare_behind_head, compare_with_prefix, head_number,
};
use crate::search::{compare, lower_bound};
use deuteron_epoch::prefetch;
use std::borrow::Cow;
use std::cmp::Ordering;

const HEADER_WORDS: usize = 6;
/// In the word of the level.
const FROZEN: u64 = 1 << 63;
/// A longer prefix is kept once.
const PREFIX_BYTES_REPEATED: usize = 64;
/// Heads of a group: two cache lines.
const GROUP: usize = 16;

/// Where a child begins: lent, or put together if the node keeps it without its prefix.
pub(crate) type Separator<'g> = Cow<'g, [u8]>;

/// Where the heads begin in a node of so many separators.
#[inline]
fn heads_at(count: usize) -> usize {
    HEADER_WORDS + count / GROUP
}

fn push_tops(words: &mut Vec<u64>, heads: impl Iterator<Item = u64>) {
    words.extend(heads.skip(GROUP - 1).step_by(GROUP));
}

/// A node as a list of its parts, for building and changing it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InnerParts<'a> {
    /// 1 just above the leaves.
    pub(crate) level: u32,
    /// Where the node begins; empty for the leftmost of the level.
    pub(crate) low: &'a [u8],
    /// Where the next node of the level begins.
    pub(crate) high: Option<&'a [u8]>,
    /// The next node of the level, 0 if there is none.
    pub(crate) right: u64,
    /// Ascending.
    pub(crate) separators: Vec<Separator<'a>>,
    /// One more than separators.
    pub(crate) children: Vec<u64>,
}

/// An immutable inner node that lives at least as long as `'g`.
#[derive(Clone, Copy)]
pub(crate) struct InnerNode<'g> {
    words: &'g [u64],
}

/// Where a key leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route<'g> {
    /// The child that holds the key.
    pub(crate) child: u64,
    /// Up to where that holds (exclusive), as far as this node knows.
    pub(crate) until: Option<Separator<'g>>,
}

/// How much of a prefix of so many bytes separators are kept without.
#[inline]
fn cut_bytes(prefix_bytes: usize) -> usize {
    if prefix_bytes > PREFIX_BYTES_REPEATED { prefix_bytes } else { 0 }
}

/// Asks the processor for the lines of a group of heads, or of their children.
#[inline]
fn prefetch_group(first: *const u64) {
    prefetch(first);
    prefetch(first.wrapping_add(GROUP / 2));
    prefetch(first.wrapping_add(GROUP));
}

impl<'g> InnerNode<'g> {
    /// Lays a node out.
    pub(crate) fn build(parts: &InnerParts<'_>) -> Box<[u64]> {
        let count = parts.separators.len();
        debug_assert_eq!(parts.children.len(), count + 1);
        let prefix: &[u8] = match &parts.separators[..] {
            [] => &[],
            [first, .., last] => &first[..common_prefix_bytes(first, last)],
            [only] => only,
        };
        let (prefix_bytes, cut_bytes) = (prefix.len(), cut_bytes(prefix.len()));
        let kept = || parts.separators.iter().map(|key| &key[cut_bytes..]);
        let high = parts.high.unwrap_or(&[]);
        let kept_at = parts.low.len() + high.len() + cut_bytes;
        let key_bytes = kept_at + kept().map(<[u8]>::len).sum::<usize>();
        let total = heads_at(count) + 3 * count + 1 + key_bytes.div_ceil(8);

        let mut words = Vec::with_capacity(total);
        words.push(total as u64);
        words.push(u64::from(parts.level) << 32 | count as u64);
        words.push(parts.right);
        words.push(parts.high.map_or(0, |high| high.len() as u64 + 1) << 32 | parts.low.len() as u64);
        words.push(prefix_bytes as u64);
        words.push(head_number(prefix));
        let heads = || parts.separators.iter().map(|key| head_number(&key[prefix_bytes..]));
        push_tops(&mut words, heads());
        words.extend(heads());
        words.extend(&parts.children);
        let mut end = kept_at as u64;
        words.extend(kept().map(|key| {
            end += key.len() as u64;
            end
        }));
        let mut bytes = Vec::with_capacity(8 * key_bytes.div_ceil(8));
        bytes.extend_from_slice(parts.low);
        bytes.extend_from_slice(high);
        bytes.extend_from_slice(&prefix[..cut_bytes]);
        kept().for_each(|key| bytes.extend_from_slice(key));
        push_bytes(&mut words, bytes);
        debug_assert_eq!(words.len(), total);
        words.into_boxed_slice()
    }

    /// A copy of this node with one more separator, which becomes number `rank`, and the child that begins there. In
    /// bulk; `None` if the separator does not share the prefix of the others, which takes a new layout.
    pub(crate) fn with_separator(&self, rank: usize, separator: &[u8], child: u64) -> Option<Box<[u64]>> {
        let (count, prefix_bytes) = (self.count(), self.prefix_bytes());
        if count == 0 || !separator.starts_with(self.prefix()) {
            return None;
        }
        let kept = &separator[cut_bytes(prefix_bytes)..];
        let start = self.start(rank);
        let (before, behind) = self.key_bytes()[..self.start(count)].split_at(start);
        let key_bytes = before.len() + kept.len() + behind.len();
        let total = heads_at(count + 1) + 3 * (count + 1) + 1 + key_bytes.div_ceil(8);
        let added = kept.len() as u64;

        let mut words = Vec::with_capacity(total);
        words.push(total as u64);
        words.push(self.words[1] + 1);
        words.extend_from_slice(&self.words[2..HEADER_WORDS]);
        let (heads_before, heads_behind) = self.heads().split_at(rank);
        let head = [head_number(&separator[prefix_bytes..])];
        push_tops(&mut words, heads_before.iter().chain(&head).chain(heads_behind).copied());
        words.extend_from_slice(heads_before);
        words.extend_from_slice(&head);
        words.extend_from_slice(heads_behind);
        words.extend_from_slice(&self.children()[..=rank]);
        words.push(child);
        words.extend_from_slice(&self.children()[rank + 1..]);
        words.extend_from_slice(&self.ends()[..rank]);
        words.push(start as u64 + added);
        words.extend(self.ends()[rank..].iter().map(|end| end + added));
        let mut bytes = Vec::with_capacity(8 * key_bytes.div_ceil(8));
        bytes.extend_from_slice(before);
        bytes.extend_from_slice(kept);
        bytes.extend_from_slice(behind);
        push_bytes(&mut words, bytes);
        debug_assert_eq!(words.len(), total);
        Some(words.into_boxed_slice())
    }

    /// A copy of a node that says that it does not change any more (see `merge`).
    pub(crate) fn frozen(node: InnerNode<'_>) -> Box<[u64]> {
        let mut words: Box<[u64]> = node.words.into();
        words[1] |= FROZEN;
        words
    }

    /// Whether the node does not change any more.
    pub(crate) fn is_frozen(&self) -> bool {
        self.words[1] & FROZEN != 0
    }

    /// How many words it has.
    pub(crate) fn words(&self) -> usize {
        self.words.len()
    }

    /// A copy.
    pub(crate) fn copy(&self) -> Box<[u64]> {
        self.words.into()
    }

    /// Reads a node.
    #[inline]
    pub(crate) fn new(words: &'g [u64]) -> InnerNode<'g> {
        InnerNode { words }
    }

    /// 1 just above the leaves.
    #[inline]
    pub(crate) fn level(&self) -> u32 {
        ((self.words[1] & !FROZEN) >> 32) as u32
    }

    /// The number of separators.
    #[inline]
    pub(crate) fn count(&self) -> usize {
        (self.words[1] & 0xffff_ffff) as usize
    }

    /// The right sibling, 0 if there is none.
    #[inline]
    pub(crate) fn right(&self) -> u64 {
        self.words[2]
    }

    #[inline]
    fn heads(&self) -> &'g [u64] {
        let count = self.count();
        &self.words[heads_at(count)..heads_at(count) + count]
    }

    /// The children.
    #[inline]
    pub(crate) fn children(&self) -> &'g [u64] {
        let count = self.count();
        &self.words[heads_at(count) + count..heads_at(count) + 2 * count + 1]
    }

    /// Bytes of the low and of the high key, the latter 0 if there is none.
    #[inline]
    fn fence_bytes(&self) -> (usize, usize) {
        ((self.words[3] & 0xffff_ffff) as usize, (self.words[3] >> 32).saturating_sub(1) as usize)
    }

    #[inline]
    fn key_bytes(&self) -> &'g [u8] {
        let count = self.count();
        let words = &self.words[heads_at(count) + 3 * count + 1..];
        // SAFETY: every byte of initialised words is an initialised byte, and bytes need no alignment.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
    }

    /// Where the node begins; empty for the leftmost of the level.
    pub(crate) fn low(&self) -> &'g [u8] {
        &self.key_bytes()[..self.fence_bytes().0]
    }

    /// Where the right sibling begins, `None` in the rightmost node.
    #[inline]
    pub(crate) fn high(&self) -> Option<&'g [u8]> {
        let (low, high) = self.fence_bytes();
        (self.words[3] >> 32 != 0).then(|| &self.key_bytes()[low..low + high])
    }

    #[inline]
    fn ends(&self) -> &'g [u64] {
        let count = self.count();
        &self.words[heads_at(count) + 2 * count + 1..heads_at(count) + 3 * count + 1]
    }

    /// Where what is kept of separator `index` begins in the key bytes, or that of the last one ends.
    #[inline]
    fn start(&self, index: usize) -> usize {
        match index.checked_sub(1) {
            Some(before) => self.ends()[before] as usize,
            None => {
                let (low, high) = self.fence_bytes();
                low + high + cut_bytes(self.prefix_bytes())
            }
        }
    }

    /// What is kept of separator `index`.
    #[inline]
    fn kept(&self, index: usize) -> &'g [u8] {
        &self.key_bytes()[self.start(index)..self.start(index + 1)]
    }

    /// Separator `index`.
    #[inline]
    pub(crate) fn separator(&self, index: usize) -> Separator<'g> {
        let kept = self.kept(index);
        match cut_bytes(self.prefix_bytes()) {
            0 => Cow::Borrowed(kept),
            _ => Cow::Owned([self.prefix(), kept].concat()),
        }
    }

    /// Separator `index` behind the prefix.
    #[inline]
    fn suffix(&self, index: usize) -> &'g [u8] {
        let prefix_bytes = self.prefix_bytes();
        &self.kept(index)[prefix_bytes - cut_bytes(prefix_bytes)..]
    }

    /// The prefix that all separators share. There is a separator.
    #[inline]
    fn prefix(&self) -> &'g [u8] {
        let prefix_bytes = self.prefix_bytes();
        let at = self.start(0) - cut_bytes(prefix_bytes);
        &self.key_bytes()[at..at + prefix_bytes]
    }

    /// How many leading bytes all separators share.
    #[inline]
    fn prefix_bytes(&self) -> usize {
        self.words[4] as usize
    }

    /// Whether `key` comes before all keys with the shared prefix, is one of them, or comes behind. There is a separator.
    #[inline]
    fn compare_with_prefix(&self, key: &[u8]) -> Ordering {
        let bytes = self.prefix_bytes();
        if bytes == 0 {
            return Ordering::Equal;
        }
        // The header has been fetched, the key bytes have not.
        if let Some(first) = key.first_chunk::<8>() {
            // What lies behind the prefix is shifted away; the header has zeros there.
            let behind = 64 - 8 * bytes.min(8) as u32;
            let order = (u64::from_be_bytes(*first) >> behind).cmp(&(self.words[5] >> behind));
            if order.is_ne() || bytes <= 8 {
                return order;
            }
        }
        compare_with_prefix(key, self.prefix())
    }

    /// Where the group of heads begins in which the place of a head is.
    #[inline]
    fn group_of(&self, head: u64) -> usize {
        let tops = &self.words[HEADER_WORDS..heads_at(self.count())];
        GROUP * lower_bound(tops, head, |head| head)
    }

    /// Asks the processor for what [`InnerNode::child`] will look at behind the header, without waiting for it. A hint.
    pub(crate) fn prefetch_place(&self, key: &[u8]) {
        if let Some(suffix) = key.get(self.prefix_bytes()..) {
            let group = self.heads().as_ptr().wrapping_add(self.group_of(head_number(suffix)));
            prefetch_group(group);
            prefetch_group(group.wrapping_add(self.count()));
        }
    }

    /// The number of separators that are less than `key`, or with `or_equal` not greater.
    #[inline]
    fn rank(&self, key: &[u8], or_equal: bool) -> usize {
        let count = self.count();
        if count == 0 {
            return 0;
        }
        let prefix_bytes = self.prefix_bytes();
        match self.compare_with_prefix(key) {
            Ordering::Less => return 0,
            Ordering::Greater => return count,
            Ordering::Equal => {}
        }
        let suffix = &key[prefix_bytes..];
        let wanted = head_number(suffix);
        let heads = self.heads();
        let group_at = self.group_of(wanted);
        // The child is one of these; their lines come together with those of the group.
        prefetch_group(heads.as_ptr().wrapping_add(count + group_at));
        let group = &heads[group_at..count.min(group_at + GROUP)];
        let first = group_at + lower_bound(group, wanted, |head| head);
        if first == count || heads[first] != wanted {
            return first;
        }
        // Equal heads are rare, and runs of them rarer.
        let behind = first + heads[first..].partition_point(|&head| head <= wanted);
        let rank_of = |index: usize| {
            let separator = self.suffix(index);
            match compare_behind_head(
                separator.len(),
                behind_head(separator),
                suffix.len(),
                behind_head(suffix),
            ) {
                Ordering::Less => true,
                Ordering::Equal => or_equal,
                Ordering::Greater => false,
            }
        };
        let (mut low, mut high) = (first, behind);
        while low < high {
            let middle = low.midpoint(high);
            if rank_of(middle) { low = middle + 1 } else { high = middle }
        }
        low
    }

    /// The child that holds `key`; `None` if that lies behind the node's high key, so that the right sibling knows.
    #[inline]
    pub(crate) fn child(&self, key: &[u8]) -> Option<u64> {
        Some(self.children()[self.child_rank(key)?])
    }

    /// The number of that child.
    #[inline]
    pub(crate) fn child_rank(&self, key: &[u8]) -> Option<usize> {
        let rank = self.rank(key, true);
        // The high key is looked at only where it decides: behind all separators.
        if rank == self.count() && self.high().is_some_and(|high| compare(key, high).is_ge()) {
            return None;
        }
        Some(rank)
    }

    /// Whether `key`, which is not less than one that child number `rank` holds, is the same child's. Only the first bytes of the
    /// separator are looked at: where these do not tell, `false`.
    #[inline]
    pub(crate) fn surely_holds(&self, rank: usize, key: &[u8]) -> bool {
        if rank == self.count() {
            return self.high().is_none_or(|high| compare(key, high).is_lt());
        }
        match self.compare_with_prefix(key) {
            Ordering::Less => true,
            Ordering::Equal => head_number(&key[self.prefix_bytes()..]) < self.heads()[rank],
            Ordering::Greater => false,
        }
    }

    /// As [`InnerNode::child`], and up to which key the same child is right.
    pub(crate) fn route(&self, key: &[u8]) -> Option<Route<'g>> {
        let rank = self.rank(key, true);
        let until = match rank < self.count() {
            true => Some(self.separator(rank)),
            false if self.high().is_some_and(|high| key >= high) => return None,
            false => self.high().map(Cow::Borrowed),
        };
        Some(Route { child: self.children()[rank], until })
    }

    /// The child that holds the keys just below `key`; `None` if they lie behind the node's high key.
    pub(crate) fn child_before(&self, key: &[u8]) -> Option<u64> {
        let rank = self.rank(key, false);
        if rank == self.count() && self.high().is_some_and(|high| key > high) {
            return None;
        }
        Some(self.children()[rank])
    }

    /// The place of a new separator `key`.
    pub(crate) fn rank_of_new(&self, key: &[u8]) -> usize {
        self.rank(key, true)
    }

    /// The child that begins exactly at `key`, if there is one.
    pub(crate) fn child_at(&self, key: &[u8]) -> Option<u64> {
        let rank = self.rank(key, true);
        let begins = match rank.checked_sub(1) {
            Some(before) => self.rank(key, false) == before,
            None => self.low() == key,
        };
        begins.then(|| self.children()[rank])
    }

    /// Where the child that holds `key` begins.
    pub(crate) fn child_low(&self, key: &[u8]) -> Separator<'g> {
        match self.rank(key, true).checked_sub(1) {
            Some(before) => self.separator(before),
            None => Cow::Borrowed(self.low()),
        }
    }

    /// The parts, to make a changed copy.
    pub(crate) fn parts(&self) -> InnerParts<'g> {
        InnerParts {
            level: self.level(),
            low: self.low(),
            high: self.high(),
            right: self.right(),
            separators: (0..self.count()).map(|index| self.separator(index)).collect(),
            children: self.children().to_vec(),
        }
    }
}

/// Appends `bytes`, padded to whole words.
fn push_bytes(words: &mut Vec<u64>, mut bytes: Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    words.extend(bytes.as_chunks().0.iter().map(|word| u64::from_ne_bytes(*word)));
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn key() -> impl Strategy<Value = Vec<u8>> {
        // The last is longer than what is repeated.
        let stem =
            prop::sample::select(vec![&b""[..], b"longer than a head/", &[b'n'; PREFIX_BYTES_REPEATED + 9]]);
        (stem, prop::collection::vec(prop::sample::select(vec![0u8, 1, 255]), 0..10))
            .prop_map(|(stem, tail)| [stem, &tail].concat())
    }

    proptest! {
        #[test]
        fn a_node_routes_like_a_sorted_list(
            separators in prop::collection::btree_set(key(), 0..70),
            alike in any::<bool>(),
            high in prop::option::of(key()),
            probes in prop::collection::vec(key(), 1..10),
        ) {
            // Of one stem, and so of a long prefix, every second time.
            let separators: BTreeSet<_> = separators
                .into_iter()
                .filter(|key| !key.is_empty() && (!alike || key.starts_with(b"nn")))
                .collect();
            let high = high.map(|high| [b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", &high[..]].concat());
            let list: Vec<&[u8]> = separators.iter().map(Vec::as_slice).collect();
            let parts = InnerParts {
                level: 3,
                low: b"",
                high: high.as_deref(),
                right: 77,
                separators: list.iter().copied().map(Cow::Borrowed).collect(),
                children: (0..=list.len() as u64).map(|child| child + 1000).collect(),
            };
            let words = InnerNode::build(&parts);
            let node = InnerNode::new(&words);
            prop_assert_eq!(node.parts(), parts.clone());
            for (rank, separator) in list.iter().enumerate() {
                let mut without = parts.clone();
                without.separators.remove(rank);
                without.children.remove(rank + 1);
                let words = InnerNode::build(&without);
                let without = InnerNode::new(&words);
                prop_assert_eq!(without.rank_of_new(separator), rank);
                if let Some(with) = without.with_separator(rank, separator, 1001 + rank as u64) {
                    prop_assert_eq!(InnerNode::new(&with).parts(), parts.clone());
                }
            }
            if let Some(high) = &high {
                prop_assert_eq!(node.child(high), None);
                prop_assert_eq!(node.child_before(high), Some(1000 + list.len() as u64));
                prop_assert_eq!(node.child_before(&[&high[..], b"x"].concat()), None);
            }
            for probe in probes.iter().map(Vec::as_slice).chain(list.iter().copied()) {
                let rank = list.iter().filter(|separator| **separator <= probe).count();
                let within = high.as_deref().is_none_or(|high| probe < high);
                let route = within.then(|| Route {
                    child: 1000 + rank as u64,
                    until: list.get(rank).copied().or(high.as_deref()).map(Cow::Borrowed),
                });
                prop_assert_eq!(node.route(probe), route.clone());
                prop_assert_eq!(node.child(probe), route.map(|route| route.child));
                let low = rank.checked_sub(1).map_or(&b""[..], |before| list[before]);
                prop_assert_eq!(node.child_low(probe), low);
                prop_assert_eq!(node.child_rank(probe), within.then_some(rank));
                for before in probes.iter().filter(|before| before.as_slice() <= probe) {
                    if let Some(held) = node.child_rank(before) {
                        prop_assert!(!node.surely_holds(held, probe) || node.child_rank(probe) == Some(held));
                        // Where the heads, padded as they are, differ they tell.
                        let next = list.get(held).filter(|next| next.len() >= 8 && list[0].len() >= 8);
                        if let Some(next) = next.filter(|next| head_number(probe) < head_number(next)) {
                            prop_assert!(node.surely_holds(held, probe), "{:?} before {:?}", probe, next);
                        }
                    }
                }
                let before = list.iter().filter(|separator| **separator < probe).count();
                prop_assert_eq!(node.child_before(probe), Some(1000 + before as u64));
                let at = (probe.is_empty() || list.contains(&probe)).then_some(1000 + rank as u64);
                prop_assert_eq!(node.child_at(probe), at);
            }
        }
    }
}
