//! Reading the chain of a page: deltas over a base, as one snapshot shows them.

use crate::page::run::{RecordRef, Run};
use crate::search::compare;
use deuteron_llama::{NodeKind, NodeRef, PageId};
use std::ops::Range;

/// The answer of a page to a point read.
pub(crate) enum Lookup<'g> {
    /// The newest version, or nothing.
    Found(Option<RecordRef<'g>>),
    /// The key lies behind the page's high key: the page was split.
    Right { separator: &'g [u8], page: PageId },
    /// The base is not in memory, and what is there does not decide.
    Missing,
    /// The page is sealed.
    Sealed,
}

/// Lines of a node that are asked for before its header has said how large it is: the slots of a page of about thirty
/// records, or as many deltas in front of it.
pub(crate) const FIRST_LINES: usize = 20;

/// The lines of a node in which the slots of its run lie, those asked for already left out.
#[inline]
fn slot_lines(run: &Run<'_>) -> Range<usize> {
    // The payload begins within the first line of the node, and nodes are aligned to a quarter of a line.
    FIRST_LINES..(run.slots().end + 128) / 64
}

/// Looks for `key` in the chain from `head` down.
///
/// A key found in a delta is within the page's bounds: a split replaces the whole chain, so a chain holds no
/// keys but those of its base's range. So the bounds are checked at the base only.
#[inline]
pub(crate) fn lookup<'g>(head: NodeRef<'g>, key: &[u8]) -> Lookup<'g> {
    let mut best: Option<RecordRef<'g>> = None;
    let mut node = Some(head);
    // The header is waited for anyway; meanwhile the next lines come, too. Then it says how far the base is behind it.
    head.prefetch(1..FIRST_LINES);
    head.prefetch(FIRST_LINES..FIRST_LINES + head.slack_taken().div_ceil(64));
    while let Some(current) = node {
        match current.kind() {
            NodeKind::Seal => return Lookup::Sealed,
            NodeKind::Delta if current.is_near() && !Run::delta_may_hold(current.payload(), key) => {
                // Most deltas are of one other key.
                node = current.next();
                continue;
            }
            NodeKind::Base | NodeKind::Delta => {}
        }
        let run = Run::new(current.payload());
        if run.is_base() {
            if let Some(high) = run.high()
                && compare(key, high).is_ge()
            {
                return Lookup::Right { separator: high, page: run.right() };
            }
            // A search goes back and forth among the slots: a miss after the other, unless all are on their way.
            current.prefetch(slot_lines(&run));
            run.prefetch_where_expected(key);
        } else if !current.is_near()
            && let Some(next) = current.next()
        {
            next.prefetch(0..FIRST_LINES);
        }
        let is_decided = is_decided_by(&run, key, &mut best);
        if is_decided || run.is_base() {
            return Lookup::Found(best);
        }
        node = current.next();
    }
    Lookup::Missing
}

/// Looks for `key` in one run of a chain; whether nothing older can win against the `best` that was found so far.
#[inline]
fn is_decided_by<'g>(run: &Run<'g>, key: &[u8], best: &mut Option<RecordRef<'g>>) -> bool {
    if best.is_none_or(|best| run.newest_stamp() >= best.stamp)
        && let Ok(index) = run.search(key)
    {
        let record = run.record(index);
        if best.is_none_or(|best| record.version() > best.version()) {
            *best = Some(record);
        }
    }
    // Equal stamps are no decision: the higher LSN may be below.
    best.is_some_and(|best| best.stamp > run.stamp_below())
}

/// As [`lookup`], in the payloads of a chain, the newest first, down to the base's.
pub(crate) fn lookup_in<'g>(payloads: impl Iterator<Item = &'g [u8]>, key: &[u8]) -> Lookup<'g> {
    let mut best = None;
    for payload in payloads {
        let run = Run::new(payload);
        if run.is_base()
            && let Some(high) = run.high()
            && compare(key, high).is_ge()
        {
            return Lookup::Right { separator: high, page: run.right() };
        }
        if is_decided_by(&run, key, &mut best) {
            break;
        }
    }
    Lookup::Found(best)
}

/// A chain that ends in a base.
pub(crate) struct WholeChain<'g> {
    head: NodeRef<'g>,
    /// How many of the newest deltas count: all, unless [`WholeChain::drop_oldest`] says otherwise.
    delta_count: usize,
    pub(crate) base: Run<'g>,
}

impl<'g> WholeChain<'g> {
    /// The chain from `head` down; `None` if its base is not in memory.
    pub(crate) fn new(head: NodeRef<'g>) -> Option<WholeChain<'g>> {
        // As in `lookup`.
        head.prefetch(1..FIRST_LINES);
        let node = head.base()?;
        let base = Run::new(node.payload());
        node.prefetch(slot_lines(&base));
        Some(WholeChain { head, delta_count: head.delta_count(), base })
    }

    /// Whether there is nothing but the base.
    pub(crate) fn is_base(&self) -> bool {
        self.delta_count == 0
    }

    /// The deltas, newest first.
    pub(crate) fn deltas(&self) -> Deltas<'g> {
        Deltas { next: Some(self.head), left: self.delta_count }
    }

    /// A planted bug.
    pub(crate) fn drop_oldest(&mut self) {
        self.delta_count = self.delta_count.saturating_sub(1);
    }
}

/// The deltas of a chain, newest first.
pub(crate) struct Deltas<'g> {
    next: Option<NodeRef<'g>>,
    left: usize,
}

impl<'g> Iterator for Deltas<'g> {
    type Item = Run<'g>;

    fn next(&mut self) -> Option<Run<'g>> {
        while self.left > 0 {
            let node = self.next?;
            self.next = node.next();
            // All but a seal.
            if node.kind() == NodeKind::Delta {
                self.left -= 1;
                return Some(Run::new(node.payload()));
            }
        }
        None
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

/// The deltas of the chain from `head` down, newest first, whatever lies below.
pub(crate) fn deltas(head: NodeRef<'_>) -> Deltas<'_> {
    Deltas { next: Some(head), left: usize::MAX }
}

/// The base of the chain from `head` down; `None` if it is not in memory.
pub(crate) fn base_of(head: NodeRef<'_>) -> Option<Run<'_>> {
    head.base().map(|base| Run::new(base.payload()))
}

/// Whether `key` lies behind the high key of a whole chain: then that key and the right sibling. Otherwise the high key,
/// of which the newest node knows: no need to go down to the base.
#[inline]
pub(crate) fn right_of<'g>(head: NodeRef<'g>, key: &[u8]) -> Result<Option<&'g [u8]>, (&'g [u8], PageId)> {
    match Run::high_and_newest_stamp(head.payload()).0 {
        Some(high) if compare(key, high).is_ge() => {
            let base = base_of(head).expect("the chain is whole");
            Err((high, base.right()))
        }
        until => Ok(until),
    }
}

/// An upper bound of all stamps of the chain from `head` down.
#[inline]
pub(crate) fn newest_stamp(head: NodeRef<'_>) -> u64 {
    Run::high_and_newest_stamp(head.payload()).1
}
