//! Loading: what is on flash only becomes resident again.
//!
//! The address is read under a guard, the fragments without one, and the chain is installed under a guard if the page
//! still refers to that address. An address means the same bytes for ever, so that is all that must be checked,
//! and whoever comes second lets go of what it has read. Deltas that were put on the page meanwhile stay on top.

use crate::error::LlamaError;
use crate::flash_address::FlashAddress;
use crate::fragment::Defect;
use crate::llama::{Llama, chain};
use crate::loading::LoadTicket;
use crate::node::{NodeRef, OwnedNode};
use crate::page_id::PageId;
use crate::page_reader::{Extent, Wanted};
use crate::reading::{InFlight, ReadFragment};
use crate::snapshot::{PageState, Snapshot};
use std::time::Instant;

/// Pages are neighbours whose identifiers are the same but for the last digit, in this base, if they lie within so many bytes.
const NEIGHBOURS: u64 = 8;
const NEIGHBOURS_BYTES: u64 = 64 << 10;

/// A chain that is not published: nodes linked to each other, owned as a whole.
pub(crate) struct OwnedChain {
    /// Oldest first. All but the last are linked from the next.
    nodes: Vec<OwnedNode>,
    /// What lies below the first.
    below: Option<FlashAddress>,
}

impl OwnedChain {
    pub(crate) fn new(base: OwnedNode) -> OwnedChain {
        OwnedChain { nodes: vec![base], below: None }
    }

    /// One for deltas on what is on flash only. Not a chain before there is one.
    pub(crate) fn on_flash(below: FlashAddress) -> OwnedChain {
        OwnedChain { nodes: Vec::new(), below: Some(below) }
    }

    pub(crate) fn push(&mut self, mut delta: OwnedNode) {
        match (self.nodes.last(), self.below) {
            (Some(head), _) => delta.link(head.as_ref()),
            (None, Some(below)) => delta.link_to_flash(below),
            (None, None) => unreachable!("a chain begins with a base or an address"),
        }
        self.nodes.push(delta);
    }

    pub(crate) fn head(&self) -> NodeRef<'_> {
        self.nodes.last().expect("a chain has a node").as_ref()
    }

    /// Puts copies of deltas on top, which come newest first.
    pub(crate) fn push_copies<'n>(&mut self, deltas: impl Iterator<Item = NodeRef<'n>>) {
        let deltas: Vec<_> = deltas.collect();
        for node in deltas.into_iter().rev() {
            let copy = self.copy_of_delta(node.payload());
            copy.copy_flash(node);
            self.push(copy);
        }
    }

    /// A delta to be pushed, in the slack if there is room.
    fn copy_of_delta(&self, payload: &[u8]) -> OwnedNode {
        // SAFETY: the chain is dropped from its newest node on, or published as a whole, so that it lives as long as the delta.
        let near = self
            .nodes
            .last()
            .and_then(|head| unsafe { OwnedNode::delta_in_slack(payload.len(), head.as_ref()) });
        match near {
            Some(mut near) => {
                near.payload_mut().copy_from_slice(payload);
                near
            }
            None => OwnedNode::delta(payload),
        }
    }

    /// Whether all of it is on flash.
    pub(crate) fn is_flushed(&self) -> bool {
        self.head().flash().is_some()
    }
}

impl Drop for OwnedChain {
    fn drop(&mut self) {
        // Newest first: deltas in a slack are looked at before it goes with its base.
        while self.nodes.pop().is_some() {}
    }
}

impl Llama {
    /// Makes `page` resident, if it is not: reads its fragments and checks them. Blocks on the device. A page that
    /// another thread is loading is waited for, not read again.
    ///
    /// The page may be gone from memory again, or changed, when the caller looks: it executes its operation again.
    /// Call it without a guard.
    ///
    /// # Errors
    /// [`LlamaError::Corrupt`] if a fragment is not what was written; [`LlamaError::Device`] if it cannot be read.
    /// Neither changes anything.
    ///
    /// # Panics
    /// If `page` was never allocated.
    pub fn load(&self, page: PageId) -> Result<(), LlamaError> {
        while self.missing(page).is_some() {
            let Some(ticket) = self.loading.begin(page) else {
                self.counters.loads_awaited.add(1);
                let begun = self.now();
                self.loading.wait(page);
                self.histograms.load_wait_nanoseconds.record_time(self.now() - begun);
                continue;
            };
            self.load_ticketed(vec![(ticket, page)], InFlight::Many)?;
        }
        Ok(())
    }

    /// Loads `page` and, with the same read, what lies beside it on flash: its neighbours by their identifiers that are whole in one fragment and not in memory; but nothing unless memory
    /// [has room](Llama::has_room) and the page is such a one itself. A read of the device takes hardly longer for it, and most of what is read next from a cold store is found in memory. For who loads the page next, and
    /// hears of what cannot be read.
    ///
    /// # Panics
    /// If `page` was never allocated.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// let page = llama.allocate();
    /// llama.load_neighbours(page);
    /// llama.load(page)?;
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn load_neighbours(&self, page: PageId) {
        if self.has_room()
            && let Some(address) = self.table.stored_whole(page)
        {
            let first = page.0 - page.0 % NEIGHBOURS;
            let neighbours = (first.max(1)..self.pages.end().0.min(first + NEIGHBOURS)).map(PageId);
            let beside = neighbours.filter(|&neighbour| {
                let other = self.table.stored_whole(neighbour);
                other.is_some_and(|other| other.offset().abs_diff(address.offset()) < NEIGHBOURS_BYTES)
            });
            let _ = self.load_once(&beside.collect::<Vec<_>>(), InFlight::Many);
        }
    }

    /// As [`Llama::load`] of each of `pages`, with their reads in flight at the same time as far as the device allows. A
    /// page that cannot be loaded does not hinder the others.
    ///
    /// The caller bounds their number: they are in memory all at once.
    ///
    /// # Errors
    /// As [`Llama::load`], the first met.
    ///
    /// # Panics
    /// If one of `pages` was never allocated.
    pub fn load_many(&self, pages: &[PageId]) -> Result<(), LlamaError> {
        self.load_pages(pages, InFlight::Many)
    }

    /// As [`Llama::load_many`], with so much in flight.
    pub(crate) fn load_pages(&self, pages: &[PageId], in_flight: InFlight) -> Result<(), LlamaError> {
        let loaded = self.load_once(pages, in_flight);
        // Those that others were loading, and those that changed meanwhile. No ticket is held while one is waited for.
        pages.iter().fold(loaded, |result, &page| result.and(self.load(page)))
    }

    /// Loads those of the pages that are missing and nobody else is loading. One that changes meanwhile may be missing still, or again if memory is short.
    pub(crate) fn load_once(&self, pages: &[PageId], in_flight: InFlight) -> Result<(), LlamaError> {
        let ticketed: Vec<_> =
            pages.iter().filter_map(|&page| Some((self.loading.begin(page)?, page))).collect();
        if ticketed.len() > 1 {
            self.counters.loads_together.add(1);
        }
        self.load_ticketed(ticketed, in_flight)
    }

    /// Loads those of the pages that are missing, once.
    fn load_ticketed(
        &self,
        pages: Vec<(LoadTicket<'_>, PageId)>,
        in_flight: InFlight,
    ) -> Result<(), LlamaError> {
        // Looked at with the ticket: whoever had it before may have loaded the page.
        let wanted = (pages.into_iter())
            .filter_map(|(ticket, page)| {
                let address = self.missing(page)?;
                Some(Wanted { page, extent: Extent::Whole(address), purpose: (ticket, address) })
            })
            .collect();
        let begun = self.now();
        let mut result = Ok(());
        // With its ticket given back, whoever waits for a page goes on.
        self.read_pages(wanted, None, in_flight, &mut |page, (_ticket, address), read| {
            let loaded = self.take_loaded(page, address, begun, read);
            if result.is_ok() {
                result = loaded;
            }
        });
        result
    }

    /// Installs a page of which all has been read that was missing, from this address on, which was asked for when it had `begun`.
    pub(crate) fn take_loaded(
        &self,
        page: PageId,
        address: FlashAddress,
        begun: Instant,
        read: Result<&[ReadFragment<'_>], LlamaError>,
    ) -> Result<(), LlamaError> {
        match read.and_then(|fragments| self.install_loaded(page, address, fragments)) {
            Ok(true) => {
                self.counters.loads.add(1);
                self.histograms.load_nanoseconds.record_time(self.now() - begun);
                self.note_readable(page);
            }
            Ok(false) => {}
            // The page has been written anew meanwhile, and what it was removed.
            Err(_) if self.missing(page) != Some(address) => {}
            Err(error) => {
                self.table.set_unreadable(page);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Whether some of `page` is not in memory.
    pub(crate) fn is_missing(&self, page: PageId) -> bool {
        self.missing(page).is_some()
    }

    /// The address of what of `page` is not in memory.
    pub(crate) fn missing(&self, page: PageId) -> Option<FlashAddress> {
        let guard = self.epochs.pin();
        let snapshot = self.snapshot(page, &guard);
        missing_in(snapshot)
    }

    /// Puts what was read at `address` below what is in memory; whether it was still missing.
    fn install_loaded(
        &self,
        page: PageId,
        address: FlashAddress,
        fragments: &[ReadFragment<'_>],
    ) -> Result<bool, LlamaError> {
        let guard = self.epochs.pin();
        loop {
            let snapshot = self.snapshot(page, &guard);
            if missing_in(snapshot) != Some(address) {
                return Ok(false);
            }
            let mut loaded = self.build(fragments)?;
            if let Some(head) = snapshot.head() {
                if self.table.is_unreadable(page) {
                    // They may have been read without what they lie on.
                    self.check_deltas(loaded.head(), head)?;
                }
                loaded.push_copies(chain(head));
            }
            // A node that was copied just before a flush took it is taken for unflushed; flushing it once more is
            // harmless, but the page must be found for it.
            let flushed = loaded.is_flushed();
            if self.publish_chain(page, snapshot, loaded, &guard) {
                if !flushed {
                    self.table.mark_dirty(page);
                }
                return Ok(true);
            }
        }
    }

    /// The chain that the fragments hold, each node of it checked.
    pub(crate) fn build(&self, fragments: &[ReadFragment]) -> Result<OwnedChain, LlamaError> {
        let mut built: Option<(OwnedChain, &[u8])> = None;
        let mut payloads: Vec<&[u8]> = Vec::new();
        let method = self.access_method();
        let method = method.as_deref();
        for read in fragments.iter().rev() {
            let fragment = read.fragment();
            let address = fragment.address();
            payloads.extend(read.payloads());
            for payload in payloads.drain(..).rev() {
                match &mut built {
                    Some((built, base)) => {
                        let checked = method.map_or(Ok(()), |method| method.check_delta(payload, Some(base)));
                        checked.map_err(|found| self.no_node(address, found))?;
                        let node = OwnedNode::delta(payload);
                        node.as_ref().set_flash(address);
                        built.push(node);
                    }
                    None => {
                        let Some(descriptor) = fragment.descriptor() else {
                            unreachable!("the fragment without a previous one is full");
                        };
                        let page = fragment.page();
                        let checked = method.map_or(Ok(()), |method| {
                            method.check_base(descriptor, payload)?;
                            method.check_place(descriptor.tree, page, payload)
                        });
                        checked.map_err(|found| self.no_node(address, found))?;
                        // Its kin were told of when it was flushed.
                        let node = OwnedNode::base(payload, descriptor, &[]);
                        node.as_ref().set_flash(address);
                        built = Some((OwnedChain::new(node), payload));
                    }
                }
            }
        }
        Ok(built.expect("a page has a fragment, and that a node").0)
    }

    /// Checks the deltas from `head` down that have been read, as such that lie on the base of `loaded`.
    fn check_deltas(&self, loaded: NodeRef<'_>, head: NodeRef<'_>) -> Result<(), LlamaError> {
        let (Some(method), base) = (self.access_method(), loaded.base()) else { return Ok(()) };
        for delta in chain(head) {
            if let Some(address) = delta.flash() {
                let checked = method.check_delta(delta.payload(), base.map(|base| base.payload()));
                checked.map_err(|found| self.no_node(address, found))?;
            }
        }
        Ok(())
    }

    /// That the fragment at `address` holds what the access method has found to be none of its nodes.
    fn no_node(&self, address: FlashAddress, found: String) -> LlamaError {
        self.store.segments.corrupt(address.offset(), Defect::new(0, "a node of a tree", found))
    }

    /// Replaces the chain of `expected`, if there is one, by `new`, which says the same.
    pub(crate) fn publish_chain<'g>(
        &self,
        page: PageId,
        expected: Snapshot<'g>,
        mut new: OwnedChain,
        guard: &'g deuteron_epoch::Guard<'_>,
    ) -> bool {
        let memory = new.head().chain_memory();
        let head = new.nodes.pop().expect("a chain has a node");
        match self.publish(page, expected.word(), head) {
            Ok(_) => {
                for node in std::mem::take(&mut new.nodes) {
                    // Owned by the published chain from now on.
                    let _ = node.into_raw();
                }
                self.memory.change(memory, 0);
                if let Some(old) = expected.head() {
                    self.retire(old, guard);
                }
                true
            }
            Err(head) => {
                // Before the rest, in whose slack it may lie.
                drop(head);
                false
            }
        }
    }
}

/// The address of what is not in memory. What is, if there is such a part, is deltas.
pub(crate) fn missing_in(snapshot: Snapshot<'_>) -> Option<FlashAddress> {
    match snapshot.state() {
        PageState::Free => None,
        PageState::Stored(address) => Some(address),
        PageState::Resident(head) if !head.is_partial() => None,
        PageState::Resident(head) => chain(head).last().and_then(NodeRef::next_on_flash),
    }
}
