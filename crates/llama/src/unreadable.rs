//! Pages that cannot be read: a rotten block, a device that refuses. What is known of them is flushed all the same, and nobody else is hindered
//! ([decision](../../../docs/adr/2026-11-26-a-page-that-cannot-be-read-hinders-no-other.md)).
//!
//! Such a page cannot be consolidated, so what was written to it lies on flash as further fragments. Once these are as many as there may be, those above the one
//! that cannot be read are brought into memory, and written as one. If the newest of them cannot be read, there are none above: then the next fragment lies on that one, as long as there is room for
//! another; and then the page stays in memory, dirty, and a round of flushing says at its end that it has not been flushed.

use crate::error::LlamaError;
use crate::flash_address::FlashAddress;
use crate::flush::Marshalled;
use crate::fragment::{Defect, SHORT_HEADER_BYTES};
use crate::fragments::{FRAGMENTS_MAX, UNREADABLE_FRAGMENTS_MAX};
use crate::llama::{Llama, chain};
use crate::load::{OwnedChain, missing_in};
use crate::loading::LoadTicket;
use crate::node::{NodeRef, OwnedNode};
use crate::page_id::PageId;
use crate::sync::MutexGuard;
use std::collections::{HashMap, HashSet};
use std::sync::PoisonError;

impl Llama {
    /// Whether `page` could not be read when somebody tried last: it takes deltas all the same, however many, and is flushed as what is known of it.
    ///
    /// # Panics
    /// If `page` was never allocated.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// assert!(!llama.is_unreadable(llama.allocate()));
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn is_unreadable(&self, page: PageId) -> bool {
        self.table.is_unreadable(page)
    }

    /// The pages that could not be read when somebody tried last, and are there still.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// assert!(llama.unreadable_pages().is_empty());
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn unreadable_pages(&self) -> Vec<PageId> {
        let pages = (1..self.pages.end().0).map(PageId);
        pages.filter(|&page| self.table.is_unreadable(page) && self.is_missing(page)).collect()
    }

    /// `page` has been read, or written in full.
    pub(crate) fn note_readable(&self, page: PageId) {
        if self.table.is_unreadable(page) {
            self.table.clear_unreadable(page);
            let mut unread = self.unread();
            unread.newest.remove(&page);
            unread.unflushed.remove(&page);
        }
    }

    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What could not be read is tried again when it is in the way.
    pub(crate) fn forget_unread(&self) {
        *self.unread() = Unread::default();
    }

    /// If none of `pages` can be flushed, why: the error of reading one.
    pub(crate) fn why_unflushed(&self, pages: &[PageId]) -> Option<LlamaError> {
        let are_all = {
            let unread = self.unread();
            pages.iter().all(|page| unread.unflushed.contains(page))
        };
        // No longer, if one of them can be read.
        if are_all { pages.iter().try_for_each(|&page| self.load(page)).err() } else { None }
    }

    /// As [`Llama::load`] of a page that is to be flushed. One that cannot be read is flushed as what is known of it.
    pub(crate) fn load_for_flush(&self, page: PageId) {
        if self.load(page).is_err() {
            // The cleaner shall not come back to it at once.
            self.table.clear_rewrite(page);
            if self.table.fragment_count(page) > FRAGMENTS_MAX && self.table.is_dirty(page) {
                self.load_deltas(page);
            }
        }
    }

    /// Brings into memory what can be read of a page that cannot as a whole: the fragments above the one that cannot. If there are none, that is noted.
    fn load_deltas(&self, page: PageId) {
        // Against a flush that gives the nodes in memory other addresses, too.
        let Some(_ticket) = self.loading.begin(page) else {
            return self.loading.wait(page);
        };
        let Some(newest) = self.missing(page) else { return };
        let (mut deltas, mut below) = (Vec::new(), newest);
        while let Ok(Some((payloads, previous))) = self.read_delta(page, below)
            && deltas.len() < UNREADABLE_FRAGMENTS_MAX
        {
            deltas.push((below, payloads));
            below = previous;
        }
        // A guess, to be made again if it is wrong.
        let are_some_here = self.table.guessed_fragments(page).newest() != Some(newest);
        if deltas.is_empty() && !are_some_here {
            self.unread().newest.insert(page, newest);
        } else if !deltas.is_empty() && !are_some_here {
            self.install_deltas(page, newest, &deltas, below);
        }
    }

    /// The payloads of one fragment of `page`, newest first, and the address of that below; `None` of a full one.
    #[expect(clippy::type_complexity, reason = "what is read of one fragment, for the function above")]
    fn read_delta(
        &self,
        page: PageId,
        address: FlashAddress,
    ) -> Result<Option<(Vec<Vec<u8>>, FlashAddress)>, LlamaError> {
        self.store.segments.read_one(address, |read| match read.check()? {
            fragment if fragment.page() != page => Err(Defect::new(16, page, fragment.page())),
            fragment => {
                let Some(previous) = fragment.previous() else { return Ok(None) };
                let method = self.access_method();
                for payload in read.payloads() {
                    let checked = method.as_ref().map_or(Ok(()), |method| method.check_delta(payload, None));
                    checked.map_err(|found| Defect::new(0, "a node of a tree", found))?;
                }
                Ok(Some((read.payloads().map(<[u8]>::to_vec).collect(), previous)))
            }
        })
    }

    /// Puts `deltas`, newest first, on the address `below` them, and below what is in memory, if all from `newest` on is still missing.
    fn install_deltas(
        &self,
        page: PageId,
        newest: FlashAddress,
        deltas: &[(FlashAddress, Vec<Vec<u8>>)],
        below: FlashAddress,
    ) {
        let guard = self.epochs.pin();
        loop {
            let snapshot = self.snapshot(page, &guard);
            if missing_in(snapshot) != Some(newest) {
                // Another has read it, or written it anew.
                return;
            }
            let mut loaded = OwnedChain::on_flash(below);
            for (address, payloads) in deltas.iter().rev() {
                for payload in payloads.iter().rev() {
                    let node = OwnedNode::delta(payload);
                    node.as_ref().set_flash(*address);
                    loaded.push(node);
                }
            }
            loaded.push_copies(snapshot.head().into_iter().flat_map(chain));
            let is_flushed = loaded.is_flushed();
            if self.publish_chain(page, snapshot, loaded, &guard) {
                if !is_flushed {
                    self.table.mark_dirty(page);
                }
                return;
            }
        }
    }

    /// What is written of a page that should be written in full and cannot be read, in one fragment: of `deltas`, which were never flushed, newest first, as many
    /// of the oldest as there is room for, on what lies below them. If the page has no room for another of its `fragments`, with what can be united with them.
    ///
    /// # Errors
    /// What becomes of the page instead.
    pub(crate) fn known_of<'g>(
        &'g self,
        page: PageId,
        word: u64,
        head: NodeRef<'g>,
        mut deltas: Vec<NodeRef<'g>>,
        previous: Option<FlashAddress>,
        fragments: usize,
    ) -> Result<Known<'g>, Marshalled> {
        let bytes_max = self.store.segments.fragment_bytes_max();
        let is_part = leave_newest(&mut deltas, bytes_max);
        if fragments < FRAGMENTS_MAX {
            return Ok(Known { nodes: deltas, previous, one: None, is_part, ticket: None });
        }
        // Who loads the page copies nodes with their addresses, some of which are about to be dead.
        let ticket = Some(self.loading.begin(page).ok_or(Marshalled::Later)?);
        if self.table.word(page) != word {
            // Perhaps that has happened since: the nodes of another chain would be given the new address.
            return Err(Marshalled::Again);
        }
        match self.unite(head, &deltas, bytes_max) {
            Some(((nodes, below), one)) => Ok(Known { nodes, previous: Some(below), one, is_part, ticket }),
            None => {
                let is_here = chain(head).any(|node| node.flash().is_some());
                let mut unread = self.unread();
                // What there is room for in an emergency is not for what could be united, were it read.
                let is_tried = is_here || previous.is_some() && unread.newest.get(&page).copied() == previous;
                match is_tried {
                    _ if fragments == FRAGMENTS_MAX || is_tried && fragments < UNREADABLE_FRAGMENTS_MAX => {
                        Ok(Known { nodes: deltas, previous, one: None, is_part, ticket })
                    }
                    true => {
                        unread.unflushed.insert(page);
                        Err(Marshalled::Later)
                    }
                    false => Err(Marshalled::Load),
                }
            }
        }
    }

    /// What is written with `deltas`, the oldest that were never flushed, as one fragment of `bytes_max` bytes at most. All that is in memory of the page, as one
    /// delta, if the access method can unite that to so little; else the newest fragment, and each below that is no longer than what lies above: so each is
    /// written again as often as what lies above has become twice as much.
    fn unite<'g>(
        &self,
        head: NodeRef<'g>,
        deltas: &[NodeRef<'g>],
        bytes_max: u64,
    ) -> Option<(Above<'g>, Option<OwnedNode>)> {
        let all = down_to(head, deltas, |_, _, _| true)?;
        let payloads: Vec<&[u8]> = all.0.iter().map(|node| node.payload()).collect();
        let method = self.access_method();
        let united =
            method.and_then(|method| method.unite(&payloads)).map(|payload| OwnedNode::delta(&payload));
        if let Some(one) = united.filter(|one| fits(bytes_of([one.as_ref()].into_iter()), bytes_max)) {
            return Some((all, Some(one)));
        }
        let some = down_to(head, deltas, |length, above, is_newest| {
            FlashAddress::padded_length(above + length) <= bytes_max && (is_newest || length <= above)
        });
        some.map(|some| (some, None))
    }
}

/// What is in the way of flushing pages that cannot be read, until somebody begins a round of flushing.
#[derive(Default)]
pub(crate) struct Unread {
    /// Of those with more fragments than others may have, the newest, where it could not be read.
    newest: HashMap<PageId, FlashAddress>,
    /// Those that have room for no other fragment.
    unflushed: HashSet<PageId>,
}

/// What goes into one fragment of a page that cannot be read.
pub(crate) struct Known<'g> {
    /// The nodes whose content that is, newest first.
    pub(crate) nodes: Vec<NodeRef<'g>>,
    /// The fragment that lies below.
    pub(crate) previous: Option<FlashAddress>,
    /// That content as one delta, if it is written so.
    pub(crate) one: Option<OwnedNode>,
    /// Newer deltas are left for a fragment of their own.
    pub(crate) is_part: bool,
    /// Until the nodes have their address nobody loads the page.
    pub(crate) ticket: Option<LoadTicket<'g>>,
}

/// Nodes above a fragment, newest first, and that fragment.
type Above<'g> = (Vec<NodeRef<'g>>, FlashAddress);

/// What these deltas take in a fragment.
fn bytes_of<'n>(deltas: impl Iterator<Item = NodeRef<'n>>) -> u64 {
    deltas.map(|delta| delta.payload().len() as u64 + 4).sum()
}

/// Whether a fragment of deltas that take so much is one of `bytes_max` bytes at most.
fn fits(deltas_bytes: u64, bytes_max: u64) -> bool {
    FlashAddress::padded_length(SHORT_HEADER_BYTES as u64 + deltas_bytes) <= bytes_max
}

/// Leaves of the deltas of a page, newest first, so many of the newest that the others are a fragment of `bytes_max` bytes; whether there are such.
/// A page that can be read is consolidated before it has as many.
pub(crate) fn leave_newest(deltas: &mut Vec<NodeRef<'_>>, bytes_max: u64) -> bool {
    let (mut bytes, mut left) = (bytes_of(deltas.iter().copied()), 0);
    while !fits(bytes, bytes_max) && left + 1 < deltas.len() {
        bytes -= bytes_of(deltas[left..=left].iter().copied());
        left += 1;
    }
    deltas.drain(..left);
    left > 0
}

/// With `deltas`, the oldest that were never flushed, go those of the newest fragment, and of each below as long as `takes` says so of its length, that of what lies
/// above, and whether it is the newest. `None` if not even the newest goes, or it is not in memory.
fn down_to<'g>(
    head: NodeRef<'g>,
    deltas: &[NodeRef<'g>],
    takes: impl Fn(u64, u64, bool) -> bool,
) -> Option<Above<'g>> {
    let mut nodes = deltas.to_vec();
    let mut bytes = SHORT_HEADER_BYTES as u64 + bytes_of(deltas.iter().copied());
    let mut taken: Option<FlashAddress> = None;
    let mut lowest = head;
    for node in chain(head).skip_while(|node| node.flash().is_none()) {
        let address = node.flash()?;
        if taken != Some(address) {
            if !takes(address.length(), bytes, taken.is_none()) {
                return taken.map(|_| (nodes, address));
            }
            bytes += address.length();
            taken = Some(address);
        }
        nodes.push(node);
        lowest = node;
    }
    taken.and(lowest.next_on_flash()).map(|below| (nodes, below))
}
