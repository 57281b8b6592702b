//! Checking a tree: read-only, a leaf at a time, while others work on it; and each page by itself, when it is read.

use crate::chain::{WholeChain, base_of};
use crate::error::Miss;
use crate::page::merge::Merge;
use crate::page::run::Run;
use crate::{BwTreeError, Tree};
use deuteron_epoch::Guard;
use deuteron_llama::{NodeKind, NodeRef, PageId, PageState};
use std::ops::Bound;

/// What a check has found, of one tree or of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TreeReport {
    /// Leaves.
    pub leaves: u64,
    /// Records that are no tombstones.
    pub records: u64,
    /// Tombstones.
    pub tombstones: u64,
    /// Bytes of keys and values of the records.
    pub record_bytes: u64,
    /// Bytes of the leaves' base pages and deltas.
    pub page_bytes: u64,
    /// The longest chain of deltas.
    pub chain_length_max: usize,
}

impl TreeReport {
    /// Adds another tree's figures.
    pub fn add(&mut self, other: &TreeReport) {
        self.leaves += other.leaves;
        self.records += other.records;
        self.tombstones += other.tombstones;
        self.record_bytes += other.record_bytes;
        self.page_bytes += other.page_bytes;
        self.chain_length_max = self.chain_length_max.max(other.chain_length_max);
    }
}

/// How far a check has come. Made by [`Check::default`]; driven by [`Tree::check_step`].
#[derive(Debug, Default)]
pub struct Check {
    /// The low key of the next leaf.
    low: Vec<u8>,
    /// That leaf, as its left neighbour names it.
    named: Option<PageId>,
    report: TreeReport,
    complete: bool,
    /// Merges up to its beginning: if there are more, a leaf may reach into what has been checked.
    merges: Option<u64>,
}

impl Check {
    /// The figures, once the check is complete.
    pub fn report(&self) -> Option<&TreeReport> {
        self.complete.then_some(&self.report)
    }
}

impl Tree {
    /// Checks the next leaf: that it is where the index and its left neighbour say, that all its runs are well
    /// formed, within its bounds and in order. Loads the leaf if need be, whose checksums the store verifies.
    ///
    /// # Errors
    /// [`BwTreeError::Structure`] with what is wrong; [`BwTreeError::Load`].
    pub fn check_step(&self, check: &mut Check) -> Result<(), BwTreeError> {
        while !check.complete {
            let Err(Miss(page)) = self.try_check_leaf(check, &self.llama.pin())? else { break };
            self.load(page)?;
        }
        Ok(())
    }

    /// Checks the whole tree.
    ///
    /// # Errors
    /// As [`Tree::check_step`].
    pub fn check(&self) -> Result<TreeReport, BwTreeError> {
        let mut check = Check::default();
        while !check.complete {
            self.check_step(&mut check)?;
        }
        Ok(check.report)
    }

    /// Checks that a base of `page` that was read and [checked](check_base) by itself lies where the index knows it, and its right neighbour; for a page that is not in memory as a whole.
    /// So nobody goes astray by what it says of its bounds, nor round in a circle.
    ///
    /// # Errors
    /// What is wrong, in words.
    ///
    /// # Panics
    /// If the payload has not passed the other check.
    ///
    /// ```
    /// # use deuteron_bwtree::{Options, Tree};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let tree = Tree::create(std::sync::Arc::new(llama), 1, Options::default());
    /// let guard = tree.llama().pin();
    /// tree.some_leaves(&[], |_, page| {
    ///     let base = tree.llama().snapshot(page, &guard).head().expect("in memory").payload();
    ///     assert!(tree.check_place(page, base).is_ok());
    ///     assert!(tree.check_place(deuteron_llama::PageId(page.0 + 1), base).is_err());
    /// });
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn check_place(&self, page: PageId, payload: &[u8]) -> Result<(), String> {
        let base = Run::new(payload);
        self.note_records(&base);
        let guard = self.llama.pin();
        // As for who writes to it unread: U2 in `upsert`.
        let until = loop {
            let (named, until) = self.index.route(base.low(), &guard);
            if named == page || self.ends_before(named, base.low(), &guard) {
                break until;
            }
            if named == self.index.route(base.low(), &guard).0 {
                return Err(format!("the index leads to {named} where the page begins"));
            }
        };
        if base.high() != until.as_deref() {
            return Err("the index knows another end of the page".to_owned());
        }
        match until.map_or(PageId::NONE, |high| self.index.route(&high, &guard).0) {
            right if right == base.right() => Ok(()),
            right => Err(format!("{} as the right sibling, which is {right}", base.right())),
        }
    }

    /// Whether `page` ends at `low` or before: it has been split, and the index has not been told yet. Until then it is held, and so in memory.
    fn ends_before(&self, page: PageId, low: &[u8], guard: &Guard<'_>) -> bool {
        let base = match self.llama.snapshot(page, guard).state() {
            PageState::Resident(head) if !head.is_sealed() => base_of(head),
            _ => None,
        };
        base.and_then(|base| base.high()).is_some_and(|high| high <= low)
    }

    fn try_check_leaf(&self, check: &mut Check, guard: &Guard<'_>) -> Result<Result<(), Miss>, BwTreeError> {
        let merges = self.counters.read().leaf_merges;
        let quiet = *check.merges.get_or_insert(merges) == merges;
        let page = match check.named {
            // The left neighbour knows best: the index may not have been told yet.
            Some(page) if quiet => page,
            _ => match self.target(&check.low, guard) {
                Ok(target) => target.page,
                Err(miss) => return Ok(Err(miss)),
            },
        };
        let refuse = |found| Err(BwTreeError::Structure { tree: self.id, page, found });
        let head = match self.resident(page, guard) {
            Ok(Some(head)) if head.is_sealed() => {
                // Merged now, or about to be. The next attempt finds the page that has taken it over.
                check.merges = Some(u64::MAX);
                return Ok(Ok(()));
            }
            Ok(Some(head)) if !head.is_partial() => head,
            Ok(None) => {
                // Merged and freed; or it never was, as the way from the left will show.
                check.merges = Some(u64::MAX);
                return Ok(Ok(()));
            }
            Ok(Some(_)) | Err(_) => return Ok(Err(Miss(page))),
        };
        if let Err(found) = verify_chain(head, &check.low, quiet) {
            return refuse(found);
        }
        let chain = WholeChain::new(head).expect("not partial");
        let base = &chain.base;
        if !quiet && base.high().is_some_and(|high| high <= &check.low[..]) {
            // Split since the way here was asked for: another page has what comes next.
            return Ok(Ok(()));
        }
        if base.high().is_some() == base.right().is_none() {
            return refuse("high key and right sibling do not go together".to_owned());
        }
        let mut merge = Merge::new(chain.base, chain.deltas(), 0);
        if !quiet {
            merge.restrict(Bound::Included(&check.low), Bound::Unbounded);
        }
        for record in merge.records() {
            match record.value {
                Some(value) => {
                    check.report.records += 1;
                    check.report.record_bytes += (record.key_bytes() + value.len()) as u64;
                }
                None => check.report.tombstones += 1,
            }
        }
        check.report.leaves += 1;
        check.report.page_bytes += (base.bytes() + head.delta_bytes()) as u64;
        check.report.chain_length_max = check.report.chain_length_max.max(head.chain_length());
        // Going right where a split is still under way.
        let found = match self.target(base.low(), guard) {
            Ok(target) => target.page,
            Err(miss) => return Ok(Err(miss)),
        };
        if found != page && self.is_alive(page, guard) {
            return refuse(format!("the index leads to {found} instead"));
        }
        match base.high() {
            Some(high) => {
                check.low = high.to_vec();
                check.named = Some(base.right());
            }
            None => check.complete = true,
        }
        Ok(Ok(()))
    }
}

/// Checks the payload of a base that was read, whose page begins at `low_key`: all that the format promises.
///
/// # Errors
/// What is wrong, in words.
///
/// ```
/// assert!(deuteron_bwtree::check_base(b"no run", b"").is_err());
/// ```
pub fn check_base(payload: &[u8], low_key: &[u8]) -> Result<(), String> {
    match Run::verify(payload)? {
        run if !run.is_base() => Err("a delta where a base belongs".to_owned()),
        run if run.low() != low_key => Err("the page begins elsewhere".to_owned()),
        _ => Ok(()),
    }
}

/// Checks the payload of a delta that was read, which lies on the base of this payload, if that is there and has passed its check: all that the format promises.
///
/// # Errors
/// What is wrong, in words.
///
/// ```
/// assert!(deuteron_bwtree::check_delta(b"no run", None).is_err());
/// ```
pub fn check_delta(payload: &[u8], base: Option<&[u8]>) -> Result<(), String> {
    let delta = Run::verify(payload)?;
    if delta.is_base() {
        return Err("a base where a delta belongs".to_owned());
    }
    base.map_or(Ok(()), |base| delta.verify_within(&Run::new(base)))
}

/// Checks the runs of a chain whose page should begin at `low`, or before it if pages are being merged.
fn verify_chain(head: NodeRef<'_>, low: &[u8], quiet: bool) -> Result<(), String> {
    let mut deltas = Vec::new();
    let mut node = Some(head);
    while let Some(current) = node {
        let run = Run::verify(current.payload())?;
        if run.is_base() != (current.kind() == NodeKind::Base) {
            return Err(format!("a {:?} node holds a run of another kind", current.kind()));
        }
        if run.is_base() {
            if run.low() > low || (quiet && run.low() != low) {
                return Err(format!("the page begins at {:?}, expected {low:?}", run.low()));
            }
            return deltas.iter().try_for_each(|delta: &Run<'_>| delta.verify_within(&run));
        }
        deltas.push(run);
        node = current.next();
    }
    Err("the chain has no base".to_owned())
}
