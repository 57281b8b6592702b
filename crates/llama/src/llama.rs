//! [`Llama`]: pages behind identifiers, changed by compare-and-swap.

use crate::clean::Cleaning;
use crate::excerpt::Lately;
use crate::files::SegmentHolds;
use crate::filling::Filling;
use crate::flash_address::FlashAddress;
use crate::flush::{AccessMethod, Flusher};
use crate::flush_buffer::{MARKS, STREAMS};
use crate::free_list::FreeList;
use crate::loading::Loading;
use crate::mapping_table::{Claim, MappingTable, Word};
use crate::memory::ByteCounter;
use crate::node::{NodeKind, NodeRef, OwnedNode, PageDescriptor, free_chain};
use crate::options::Options;
use crate::page_id::PageId;
use crate::reading::InFlight;
use crate::rows::Rows;
use crate::snapshot::{PageState, Snapshot};
use crate::statistics::{Counters, Histograms, Statistics};
use crate::store::Store;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, RwLock, yield_now};
use crate::unreadable::Unread;
use crate::writing::Writing;
use deuteron_epoch::{Epochs, Guard};
use deuteron_histogram::Distribution;
use deuteron_pool as pool;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

/// A page that adopts so many has the next page that is split off adopt them in its place.
const ADOPTS_MAX: usize = 8;

/// The store of pages. All methods may be called from any thread.
pub struct Llama {
    pub(crate) options: Options,
    pub(crate) epochs: Arc<Epochs>,
    pub(crate) table: MappingTable,
    /// Pages that are sealed and still count; see `seal`.
    pub(crate) sealed: Mutex<BTreeSet<PageId>>,
    /// Shared with the deferred actions that give identifiers back.
    pub(crate) pages: Arc<FreeList>,
    pub(crate) memory: ByteCounter,
    /// See [`Llama::set_memory_budget`].
    pub(crate) budget: AtomicU64,
    /// See [`Llama::pages_bytes_max`].
    pub(crate) pages_bytes_max: AtomicU64,
    /// Bytes of the places that the images do not say yet, when somebody looked last.
    pub(crate) places_bytes: AtomicU64,
    /// What lies idle in the pool beyond an eighth, when somebody looked last.
    pub(crate) idle_bytes: AtomicU64,
    /// Bytes of live fragments.
    pub(crate) live_bytes: Arc<AtomicU64>,
    pub(crate) counters: Counters,
    pub(crate) histograms: Histograms,
    pub(crate) store: Store,
    pub(crate) flusher: Mutex<Flusher>,
    /// The buffer that is being filled. Locked for itself alone under the flush lock only.
    pub(crate) filling: RwLock<Filling>,
    /// See [`Llama::begun`].
    pub(crate) begun: [Mutex<Vec<PageId>>; STREAMS],
    /// The segments that are being emptied, if any are. Locked before the flush lock, never after.
    pub(crate) cleaning: Mutex<Option<Cleaning>>,
    /// How many wait for the flush lock and cannot do something else meanwhile: nobody else begins to fill a buffer.
    pub(crate) flusher_awaited: AtomicU64,
    /// The buffer that is being written.
    pub(crate) writing: Mutex<Writing>,
    /// See [`Llama::evict_durable`].
    pub(crate) flushed: Mutex<Vec<PageId>>,
    /// How many wait for memory: see [`Llama::hurry`].
    pub(crate) hurried: AtomicU64,
    /// Pages that have been read ahead of the flush.
    pub(crate) rows: Mutex<Rows>,
    pub(crate) unread: Mutex<Unread>,
    /// Where the flush goes on to search for dirty pages.
    pub(crate) flush_hand: AtomicU64,
    /// Weak, as the access method holds on to the store.
    pub(crate) access_method: OnceLock<Weak<dyn AccessMethod>>,
    /// The pages that are being loaded.
    pub(crate) loading: Loading,
    pub(crate) lately: Lately,
    /// The hand of the eviction clock.
    pub(crate) evict_hand: AtomicU64,
    /// Whether a checkpoint is going on; shared with it, so that dropping it ends it.
    pub(crate) checkpointing: Arc<AtomicBool>,
    pub(crate) segment_holds: SegmentHolds,
    /// See [`Llama::raise_mark`].
    pub(crate) marks: [AtomicU64; MARKS],
}

/// Somebody waits for memory: see [`Llama::hurry`].
#[must_use]
pub struct Hurry<'l>(&'l AtomicU64);

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Llama {
    /// The epochs whose guards protect snapshots.
    pub fn epochs(&self) -> &Arc<Epochs> {
        &self.epochs
    }

    /// Raises one of the [`MARKS`]: a number that only grows, and means something to the user of the store alone. All that is written
    /// from now on has this mark or a higher one, so what is [installed](Llama::install) after the call is never found by a recovery
    /// without [`Recovered::marks`](crate::Recovered::marks) being as high. Durable only with what is written. A load, and an atomic
    /// operation if that is lower.
    ///
    /// # Panics
    /// If `which` is not below [`MARKS`].
    ///
    /// ```
    /// # use deuteron_llama::{Llama, Options, OwnedNode, PageDescriptor};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let open = || Llama::open(directory.clone(), Options::default(), deuteron_epoch::Epochs::new());
    /// let (llama, _) = open()?;
    /// llama.raise_mark(0, 7);
    /// # let (page, guard) = (llama.allocate(), llama.pin());
    /// # let root = OwnedNode::base(b"hello", PageDescriptor { tree: 1, low_key: b"", root: true }, &[]);
    /// llama.install(page, llama.snapshot(page, &guard), root, &guard).expect("nobody else knows the page");
    /// # drop(guard);
    /// llama.flush_step()?;
    /// drop(llama);
    /// assert_eq!(open()?.1.marks, [7, 0]);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn raise_mark(&self, which: usize, mark: u64) {
        // Released with what is installed after it, and read by whoever has read that.
        if self.marks[which].load(Ordering::Acquire) < mark {
            self.marks[which].fetch_max(mark, Ordering::AcqRel);
        }
    }

    /// The marks: of each the highest that it was [raised](Llama::raise_mark) to, or that was
    /// [recovered](crate::Recovered::marks).
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// llama.raise_mark(1, 7);
    /// llama.raise_mark(1, 5);
    /// assert_eq!(llama.marks(), [0, 7]);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn marks(&self) -> [u64; MARKS] {
        std::array::from_fn(|which| self.marks[which].load(Ordering::Acquire))
    }

    /// A guard for [`Llama::snapshot`] and [`Llama::install`].
    #[inline]
    pub fn pin(&self) -> Guard<'_> {
        self.epochs.pin()
    }

    /// A guard of other epochs would protect nothing; the comparison is what makes `snapshot` safe to call.
    #[inline]
    fn check(&self, guard: &Guard<'_>) {
        assert!(std::ptr::eq(guard.epochs(), &*self.epochs), "the guard is of other epochs than the store's");
    }

    /// A new page identifier. Nothing is installed yet: its snapshot is [`PageState::Free`].
    pub fn allocate(&self) -> PageId {
        self.pages.allocate(|page| self.table.reserve(page))
    }

    /// The page as it is now.
    ///
    /// # Panics
    /// If `page` was never allocated, or `guard` is of other epochs.
    #[inline]
    pub fn snapshot<'g>(&self, page: PageId, guard: &'g Guard<'_>) -> Snapshot<'g> {
        self.check(guard);
        // SAFETY: read under the guard, which is of our epochs.
        unsafe { Snapshot::new(self.table.word(page)) }
    }

    /// Asks the processor for what the mapping table says of `page`, without waiting for it. A hint.
    ///
    /// # Panics
    /// If `page` was never allocated.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let page = llama.allocate();
    /// llama.prefetch(page);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    #[inline]
    pub fn prefetch(&self, page: PageId) {
        self.table.prefetch(page);
    }

    /// As [`Llama::prefetch`] of the word in the mapping table only, which the caller will look at and then replace.
    ///
    /// # Panics
    /// If `page` was never allocated.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let epochs = deuteron_epoch::Epochs::new();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, deuteron_llama::Options::default(), epochs)?;
    /// let page = llama.allocate();
    /// llama.prefetch_for_change(page);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    #[inline]
    pub fn prefetch_for_change(&self, page: PageId) {
        self.table.prefetch_for_change(page);
    }

    /// Replaces the page's state, if it is still `expected`, by `new`: a delta goes on top of what is there, be it
    /// on flash only, a base replaces it. One compare-and-swap.
    ///
    /// What a replaced base adopts or disowns, and no flush has taken yet, goes over to the new base.
    ///
    /// # Errors
    /// Gives `new` back if the page has changed, or is sealed, or is about to be flushed with what its base adopts.
    ///
    /// # Panics
    /// If a delta is put on a page that has no base, or `guard` is of other epochs.
    pub fn install<'g>(
        &self,
        page: PageId,
        expected: Snapshot<'g>,
        new: OwnedNode,
        guard: &'g Guard<'_>,
    ) -> Result<Snapshot<'g>, OwnedNode> {
        self.check(guard);
        match (new.as_ref().kind(), expected.state()) {
            (_, PageState::Resident(head)) if head.is_sealed() => Err(new),
            (NodeKind::Delta, PageState::Resident(head)) => {
                self.prepend(page, expected, new, |new| new.link(head))
            }
            (NodeKind::Delta, PageState::Stored(address)) => {
                self.prepend(page, expected, new, |new| new.link_to_flash(address))
            }
            (NodeKind::Delta, PageState::Free) => panic!("{page} has no base to put a delta on"),
            (NodeKind::Base, state) => self.replace(page, expected, state, new, guard),
            (NodeKind::Seal, _) => unreachable!("seals are made by this crate alone"),
        }
    }

    /// As [`Llama::install`] of a delta of `payload_bytes` bytes, which `write` fills; they are zeros before. It lies in the slack
    /// of the page's base if there is room. `None` if the page has changed.
    ///
    /// # Panics
    /// As [`Llama::install`].
    #[inline]
    pub fn install_delta<'g>(
        &self,
        page: PageId,
        expected: Snapshot<'g>,
        payload_bytes: usize,
        write: impl FnOnce(&mut [u8]),
        guard: &'g Guard<'_>,
    ) -> Option<Snapshot<'g>> {
        // SAFETY: `expected` holds on to the chain for 'g (N3). The node is dropped below, or published on top of it.
        let near = expected.head().and_then(|head| unsafe { OwnedNode::delta_in_slack(payload_bytes, head) });
        let mut delta = match near {
            Some(near) => near,
            // Whoever has got the place before has published its delta meanwhile, as a rule.
            None if self.table.word(page) != expected.word() => return None,
            None => OwnedNode::delta_zeroed(payload_bytes),
        };
        write(delta.payload_mut());
        self.install(page, expected, delta, guard).ok()
    }

    pub(crate) fn prepend<'g>(
        &self,
        page: PageId,
        expected: Snapshot<'g>,
        mut new: OwnedNode,
        link: impl FnOnce(&mut OwnedNode),
    ) -> Result<Snapshot<'g>, OwnedNode> {
        // What is below is charged already.
        let charged = expected.head().map_or(0, NodeRef::chain_memory);
        link(&mut new);
        let memory = new.as_ref().chain_memory();
        match self.publish(page, expected.word(), new) {
            Ok(word) => {
                self.memory.change(memory, charged);
                self.table.mark_dirty(page);
                // SAFETY: installed under the guard that `expected` holds on to.
                Ok(unsafe { Snapshot::new(word) })
            }
            Err(mut new) => {
                new.unlink();
                Err(new)
            }
        }
    }

    fn replace<'g>(
        &self,
        page: PageId,
        expected: Snapshot<'g>,
        state: PageState<'g>,
        new: OwnedNode,
        guard: &'g Guard<'_>,
    ) -> Result<Snapshot<'g>, OwnedNode> {
        let Some((kin, claim)) = self.claim_kin(page, state) else { return Err(new) };
        let new = match kin {
            Some(base) => new.with_kin(base.adopts(), base.disowns()),
            None => new,
        };
        self.publish_base(page, expected, new, claim, guard)
    }

    /// As [`Llama::install`] of a [base with slack](OwnedNode::base_with_slack), whose payload is copied once only, also if the replaced
    /// base adopts or disowns pages. `None` in the cases in which `install` gives the node back.
    ///
    /// The pages in `adopts` are new: nobody can reach them before this, and if it is `None` the caller frees them. The first of them may be given what the page would
    /// go on adopting.
    ///
    /// # Panics
    /// As [`Llama::install`].
    ///
    /// ```
    /// # use deuteron_llama::{Llama, Options, OwnedNode, PageDescriptor};
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let (llama, _) = Llama::open(directory, Options::default(), deuteron_epoch::Epochs::new())?;
    /// let (page, guard) = (llama.allocate(), llama.pin());
    /// let root = PageDescriptor { tree: 1, low_key: b"", root: true };
    /// let first = llama.install_base(page, llama.snapshot(page, &guard), b"first", root, &[], 256, &guard).expect("a new page");
    /// let second = llama.install_base(page, first, b"second", root, &[], 256, &guard).expect("nobody has changed it");
    /// assert_eq!(second.head().expect("in memory").payload(), b"second");
    /// assert!(llama.install_base(page, first, b"third", root, &[], 256, &guard).is_none());
    /// # drop(guard);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    #[expect(
        clippy::too_many_arguments,
        reason = "of the page, of the base, and the guard: there is nothing to group"
    )]
    pub fn install_base<'g>(
        &self,
        page: PageId,
        expected: Snapshot<'g>,
        payload: &[u8],
        descriptor: PageDescriptor<'_>,
        adopts: &[PageId],
        slack_bytes: usize,
        guard: &'g Guard<'_>,
    ) -> Option<Snapshot<'g>> {
        self.check(guard);
        let state = expected.state();
        if expected.head().is_some_and(NodeRef::is_sealed) {
            return None;
        }
        let (kin, claim) = self.claim_kin(page, state)?;
        let (told, disowns) = kin.map_or((&[][..], &[][..]), NodeRef::kin);
        let leader = adopts.first().and_then(|&leader| self.hand_over(told, leader, guard));
        let told = if leader.is_some() { &[] } else { told };
        let new = OwnedNode::successor(payload, descriptor, adopts, slack_bytes, (told, disowns));
        self.publish_base(page, expected, new, claim, guard).ok()
    }

    /// Has `leader`, a new page that nobody can reach and that the caller is about to adopt, adopt what the caller would go on adopting, if that is a long list: else the first page
    /// of a tree, which keys that descend split again and again, would have a list of all that was split off since it was flushed, and copy it each time.
    /// The claim of the leader, if it does: no flush shall take it before the caller has told of it instead.
    ///
    /// The caller holds the claim of the page that has told of them. If it does not install its base it frees the leader, with which the list goes.
    fn hand_over(&self, told: &[PageId], leader: PageId, guard: &Guard<'_>) -> Option<Claim<'_>> {
        if told.len() < ADOPTS_MAX {
            return None;
        }
        let claim = self.table.try_claim(leader)?;
        let snapshot = self.snapshot(leader, guard);
        let head = snapshot.head()?;
        // What a flush has taken has told of what it adopts.
        if head.kind() != NodeKind::Base || self.table.fragment_count(leader) > 0 {
            return None;
        }
        let (adopts, disowns) = head.kin();
        let new = OwnedNode::successor(
            head.payload(),
            head.descriptor()?,
            adopts,
            head.slack_bytes(),
            (told, disowns),
        );
        self.publish_base(leader, snapshot, new, None, guard).ok()?;
        Some(claim)
    }

    /// The base whose kin go over to the one that replaces it, if there is one, and then the page's claim. `None` if that is not to be had.
    ///
    /// Those go over that no flush has taken. Under the claim, so that no flush takes them meanwhile: they
    /// must be told of once. The kin of a base that a flush has taken are in that buffer; if its write fails the store
    /// is poisoned, and no later buffer is written that could miss them.
    fn claim_kin<'g>(
        &self,
        page: PageId,
        state: PageState<'g>,
    ) -> Option<(Option<NodeRef<'g>>, Option<Claim<'_>>)> {
        if untold_kin(state).is_none() {
            return Some((None, None));
        }
        let Some(claim) = self.table.try_claim(page) else {
            // A flush is at the page, for as long as it takes to copy it. Callers try again, and shall not keep it from going on.
            yield_now();
            return None;
        };
        // It may have taken them before the claim.
        Some((untold_kin(state), Some(claim)))
    }

    /// Puts the base `new` in the place of `expected`, and ends the claim.
    fn publish_base<'g>(
        &self,
        page: PageId,
        expected: Snapshot<'g>,
        new: OwnedNode,
        claim: Option<Claim<'_>>,
        guard: &'g Guard<'_>,
    ) -> Result<Snapshot<'g>, OwnedNode> {
        let memory = new.as_ref().chain_memory();
        let word = self.publish(page, expected.word(), new)?;
        drop(claim);
        self.memory.change(memory, 0);
        if let PageState::Resident(head) = expected.state() {
            self.retire(head, guard);
        }
        self.table.mark_dirty(page);
        // SAFETY: installed under `guard`.
        Ok(unsafe { Snapshot::new(word) })
    }

    /// Puts `new` into the mapping table in place of `expected`. The caller marks the page dirty if it is.
    pub(crate) fn publish(&self, page: PageId, expected: u64, new: OwnedNode) -> Result<u64, OwnedNode> {
        let node = new.into_raw();
        let word = Word::Resident(node.as_ptr().cast()).encode();
        if self.table.replace(page, expected, word) {
            Ok(word)
        } else {
            self.counters.mapping_lost.add(1);
            // SAFETY: not published, as the compare-and-swap failed.
            Err(unsafe { OwnedNode::from_raw(node) })
        }
    }

    /// Retires a chain that the caller's compare-and-swap has unlinked.
    pub(crate) fn retire(&self, head: NodeRef<'_>, guard: &Guard<'_>) {
        let memory = head.chain_memory();
        self.memory.change(0, memory);
        // SAFETY: unlinked by the caller alone (M1, N3); `free_chain` frees it as a whole (N2).
        unsafe { guard.retire(head.as_ptr().cast(), memory, free_chain) };
    }

    /// Frees, once, a page that no durable page has adopted, such as the right half of a split whose compare-and-swap
    /// was lost, or an identifier with nothing installed. The identifier is given out again once nobody can hold
    /// it any more.
    ///
    /// # Errors
    /// `expected` as it is now, if the page has changed.
    ///
    /// # Panics
    /// If the page is adopted: recovery would find it again.
    pub fn free_page<'g>(
        &self,
        page: PageId,
        expected: Snapshot<'g>,
        guard: &'g Guard<'_>,
    ) -> Result<(), Snapshot<'g>> {
        self.check(guard);
        assert!(!self.table.is_adopted(page), "{page} is adopted and cannot be freed");
        let unchanged = match expected.is_free() {
            // Nothing to replace, and nobody but the caller to install anything.
            true => self.table.word(page) == expected.word(),
            false => self.table.replace(page, expected.word(), Word::Free.encode()),
        };
        if !unchanged {
            self.counters.mapping_lost.add(1);
            return Err(self.snapshot(page, guard));
        }
        if let PageState::Resident(head) = expected.state() {
            self.retire(head, guard);
        }
        let pages = Arc::clone(&self.pages);
        guard.defer(0, Box::new(move || pages.give_back(page)));
        Ok(())
    }

    /// Holds the page back from being flushed (and hence evicted) until as many [`Llama::release`]s have come.
    ///
    /// A split holds the left page *before* it installs the left half, and releases it once the parent's index
    /// knows the right half.
    pub fn hold(&self, page: PageId) {
        self.table.hold(page);
    }

    /// Ends one [`Llama::hold`].
    ///
    /// # Panics
    /// If the page is not held.
    pub fn release(&self, page: PageId) {
        self.table.release(page);
    }

    /// Says that somebody waits for memory until the answer is dropped. Flushes and cleaning then read and write with as much in flight as the device takes;
    /// otherwise with little, so that those who only read do not wait behind them.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// let hurry = llama.hurry();
    /// llama.flush_step()?;
    /// drop(hurry);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn hurry(&self) -> Hurry<'_> {
        self.hurried.fetch_add(1, Ordering::Relaxed);
        Hurry(&self.hurried)
    }

    /// How much of what flushes and cleaning read and write is in flight at once.
    pub(crate) fn in_flight(&self) -> InFlight {
        // Relaxed: it is a matter of time only.
        match self.hurried.load(Ordering::Relaxed) {
            0 => InFlight::Few,
            _ => InFlight::Many,
        }
    }

    /// The largest page, in bytes of its payloads and low key, that the store can write.
    pub fn page_bytes_max(&self) -> usize {
        // A sixteenth and a block are left for headers, lengths, adoptions and padding.
        let fragment = self.store.segments.fragment_bytes_max() as usize;
        fragment - fragment / 16 - 4096
    }

    /// About how many bytes the fragments of `page` take on flash.
    ///
    /// # Panics
    /// If `page` was never allocated.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// assert_eq!(llama.stored_bytes(llama.allocate()), 0);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn stored_bytes(&self, page: PageId) -> u64 {
        self.table.guessed_fragments(page).iter().map(FlashAddress::length).sum()
    }

    /// Why the store accepts no more work: the first write or sync that failed.
    pub fn poisoned(&self) -> Option<Arc<str>> {
        self.store.poisoned()
    }

    /// Pages with changes that no flush has taken; looks at a bit of each page.
    pub fn dirty_pages(&self) -> u64 {
        self.dirty_pages_up_to(u64::MAX)
    }

    /// As [`Llama::dirty_pages`], but it does not count further than `most`.
    pub fn dirty_pages_up_to(&self, most: u64) -> u64 {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        self.table.dirty_pages(self.pages.end()).take(most).count() as u64
    }

    /// Figures of the store. Waits for a flush that is going on.
    pub fn statistics(&self) -> Statistics {
        let totals = self.lock_flusher().accounts.totals();
        let (end, spare_bytes) = (self.pages.end(), self.store.segments.spares.bytes());
        let mut statistics = Statistics {
            memory_bytes: self.memory_bytes(),
            page_ids: end.0 - 1,
            dirty_pages: self.dirty_pages(),
            segments: totals.segments,
            dead_segments: totals.dead_segments,
            disk_bytes: totals.allocated_bytes + spare_bytes,
            spare_bytes,
            live_bytes: totals.live_bytes,
            reads_at_once: self.store.segments.directory.reads_at_once() as u64,
            reads: self.store.segments.reads.get(),
            bytes_of_reads: self.store.segments.bytes_of_reads.get(),
            segments_recycled: self.store.segments.spares.recycled.get(),
            ..Statistics::default()
        };
        self.counters.fill(&mut statistics);
        statistics
    }

    /// How long what does I/O has taken since the store was opened, and how much of cleaned segments was live. Named, with the unit last, in a fixed order.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// let (name, loads) = &llama.distributions()[0];
    /// assert_eq!((*name, loads.count()), ("load_nanoseconds", llama.statistics().loads));
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn distributions(&self) -> Vec<(&'static str, Distribution)> {
        self.histograms.read()
    }

    /// The time on the machine that has the store, for what is measured and never for what is decided.
    ///
    /// ```
    /// # let directory = std::sync::Arc::new(deuteron_device::MemoryDirectory::new());
    /// # let options = deuteron_llama::Options::default();
    /// # let (llama, _) = deuteron_llama::Llama::open(directory, options, deuteron_epoch::Epochs::new())?;
    /// let begun = llama.now();
    /// llama.flush_step()?;
    /// println!("{:?}", llama.now() - begun);
    /// # Ok::<(), deuteron_llama::LlamaError>(())
    /// ```
    pub fn now(&self) -> Instant {
        self.store.segments.directory.now()
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.options
    }
}

/// The base of a page in memory, if it adopts or disowns pages and no flush has taken that.
pub(crate) fn untold_kin(state: PageState<'_>) -> Option<NodeRef<'_>> {
    match state {
        PageState::Resident(head) if head.chain_has_kin() => {
            head.base().filter(|base| base.flash().is_none())
        }
        _ => None,
    }
}

/// The nodes of a chain, newest first.
pub(crate) fn chain(head: NodeRef<'_>) -> impl Iterator<Item = NodeRef<'_>> {
    std::iter::successors(Some(head), |node| node.next())
}

impl Drop for Llama {
    fn drop(&mut self) {
        for page in 1..self.pages.end().0 {
            if let Word::Resident(head) = Word::decode(self.table.word(PageId(page))) {
                // SAFETY: nobody borrows the store any more, and a linked chain was not retired (N3).
                unsafe { free_chain(head, 0) };
            }
        }
        pool::give_back();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::test_bed::{flush, open, put};
    use deuteron_device::MemoryDirectory;
    use deuteron_fuzz::Meter;

    #[test]
    fn an_identifier_is_freed_only_as_it_was_seen() {
        let llama = open(Options::tiny_for_tests());
        let (page, guard) = (llama.allocate(), llama.pin());
        let free = llama.snapshot(page, &guard);
        put(&llama, page, b"page");
        let now = llama.snapshot(page, &guard);
        assert_eq!(llama.free_page(page, free, &guard), Err(now));
        llama.free_page(page, now, &guard).unwrap();
        // Nothing is installed on this one.
        let other = llama.allocate();
        llama.free_page(other, llama.snapshot(other, &guard), &guard).unwrap();
        drop(guard);
        while llama.epochs.collect() > 0 {}
        let mut returned = llama.pages.take_returned();
        returned.sort_unstable();
        assert_eq!(returned, [page, other]);
    }

    #[test]
    fn marks_are_raised_each_by_itself_and_never_lowered() {
        let llama = open(Options::tiny_for_tests());
        for (which, mark, expected) in [(0, 7, [7, 0]), (1, 5, [7, 5]), (0, 6, [7, 5]), (1, 9, [7, 9])] {
            llama.raise_mark(which, mark);
            assert_eq!(llama.marks(), expected);
        }
    }

    #[test]
    fn a_page_leaves_a_sixteenth_and_a_block_of_the_longest_fragment() {
        let llama = open(Options::tiny_for_tests());
        assert_eq!(llama.page_bytes_max(), 14 * 4096 / 16 * 15 - 4096);
    }

    #[test]
    fn as_many_dirty_pages_are_counted_as_are_asked_for() {
        let llama = open(Options::tiny_for_tests());
        (0..5).for_each(|_| put(&llama, llama.allocate(), b"dirty"));
        assert_eq!((llama.dirty_pages(), llama.dirty_pages_up_to(3), llama.dirty_pages_up_to(9)), (5, 3, 5));
    }

    #[test]
    #[should_panic(expected = "of other epochs")]
    fn a_guard_of_other_epochs_is_refused() {
        let (llama, other) = (open(Options::tiny_for_tests()), Epochs::new());
        let guard = other.pin();
        llama.snapshot(llama.allocate(), &guard);
    }

    #[test]
    fn a_load_that_another_thread_does_is_awaited() {
        let llama = open(Options::tiny_for_tests());
        let page = llama.allocate();
        put(&llama, page, b"page");
        flush(&llama);
        while llama.evict_step(u64::MAX).pages == 0 {}
        let ticket = llama.loading.begin(page).unwrap();
        std::thread::scope(|scope| {
            let loading = scope.spawn(|| llama.load(page).unwrap());
            while llama.counters.loads_awaited.get() == 0 {
                std::thread::yield_now();
            }
            assert!(!loading.is_finished() && llama.is_missing(page));
            drop(ticket);
        });
        assert!(!llama.is_missing(page));
        let Statistics { loads, loads_awaited, .. } = llama.statistics();
        assert_eq!((loads, loads_awaited), (1, 1));
    }

    #[test]
    fn a_base_made_in_place_takes_over_the_kin_that_no_flush_has_taken() {
        let llama = open(Options { memory_bytes: 1 << 20, ..Options::tiny_for_tests() });
        let guard = llama.pin();
        let [page, first, second, third] = std::array::from_fn(|_| llama.allocate());
        let root = PageDescriptor { tree: 1, low_key: b"", root: true };
        for right in [first, second, third] {
            let descriptor = PageDescriptor { tree: 1, low_key: b"right", root: false };
            let base = OwnedNode::base(b"right", descriptor, &[]);
            llama.install(right, llama.snapshot(right, &guard), base, &guard).unwrap();
        }
        let install = |payload: &[u8], adopts: &[PageId]| {
            let now = llama.snapshot(page, &guard);
            llama.install_base(page, now, payload, root, adopts, 200, &guard)
        };
        let base = |snapshot: Option<Snapshot<'_>>| {
            let head = snapshot.unwrap().head().unwrap();
            (head.payload().to_vec(), head.adopts().to_vec(), head.base().is_some())
        };
        assert_eq!(base(install(b"one", &[first])), (b"one".to_vec(), vec![first], true));
        assert_eq!(base(install(b"two", &[])), (b"two".to_vec(), vec![first], true));
        assert_eq!(base(install(b"three", &[third, first])), (b"three".to_vec(), vec![third, first], true));
        let four = install(b"four", &[second]).unwrap();
        assert_eq!(base(Some(four)), (b"four".to_vec(), vec![third, first, second], true));
        // There is slack in front of it, for a delta whose place is given out once.
        let mut now = four;
        for is_near in [true, false] {
            let head = now.head().unwrap();
            now = llama.install_delta(page, now, 10, |bytes| bytes.fill(7), &guard).unwrap();
            assert_eq!(now.head().unwrap().is_near(), is_near);
            assert!(now.head().unwrap().next().is_some_and(|next| next.as_ptr() == head.as_ptr()));
            // SAFETY: the chain lives as long as the guard, and the delta is dropped here.
            drop(unsafe { OwnedNode::delta_in_slack(10, now.head().unwrap()) });
        }
        // A flush is at the page, or it has changed.
        let claim = llama.table.try_claim(page).unwrap();
        assert!(install(b"five", &[]).is_none());
        drop(claim);
        assert!(llama.install_base(page, four, b"five", root, &[], 0, &guard).is_none());
        drop(guard);
        flush(&llama);
        let guard = llama.pin();
        let told = llama.install_base(page, llama.snapshot(page, &guard), b"six", root, &[], 0, &guard);
        assert_eq!(base(told), (b"six".to_vec(), vec![], true));
    }

    /// Payloads that are no slots of the pool, so that the meter sees them.
    #[test]
    fn what_is_replaced_freed_and_left_when_a_store_is_dropped_is_given_back() {
        const LARGE: usize = 50_000;
        Meter::begin();
        for round in 0..40 {
            let options = Options { segment_bytes: 1 << 20, ..Options::tiny_for_tests() };
            let epochs = Epochs::with_threshold(0);
            let llama = Llama::open(Arc::new(MemoryDirectory::new()), options, epochs).unwrap().0;
            let (kept, freed) = (llama.allocate(), llama.allocate());
            for _ in 0..3 {
                // With deltas in its slack, and one beside it.
                let guard = llama.pin();
                let descriptor = PageDescriptor { tree: 1, low_key: b"", root: true };
                let free = llama.snapshot(kept, &guard);
                let mut now =
                    llama.install_base(kept, free, &[round; LARGE], descriptor, &[], 200, &guard).unwrap();
                for bytes in [20, 20, LARGE] {
                    now = llama.install_delta(kept, now, bytes, |_| {}, &guard).unwrap();
                }
                assert_eq!(now.head().unwrap().chain_length(), 3);
                drop(guard);
                put(&llama, freed, &[round; LARGE]);
                while llama.epochs.collect() > 0 {}
            }
            let guard = llama.pin();
            llama.free_page(freed, llama.snapshot(freed, &guard), &guard).unwrap();
            let delta = OwnedNode::delta(&[round; LARGE]);
            llama.install(kept, llama.snapshot(kept, &guard), delta, &guard).unwrap();
        }
        assert!(Meter::peak() < 24 * LARGE, "{} bytes were held", Meter::peak());
    }

    #[test]
    fn deltas_are_written_in_place_into_the_slack_or_beside_it_unless_the_page_has_changed() {
        let llama = open(Options { memory_bytes: 1 << 20, ..Options::tiny_for_tests() });
        let (page, guard) = (llama.allocate(), llama.pin());
        let descriptor = PageDescriptor { tree: 1, low_key: b"", root: true };
        let base = OwnedNode::base_with_slack(b"base", descriptor, &[], 128);
        let free = llama.snapshot(page, &guard);
        let first = llama.install(page, free, base, &guard).unwrap();
        let mut now = first;
        let memory = llama.memory_bytes();
        // Two of 48 bytes fit the slack, and are paid for; the third lies elsewhere.
        for (number, is_near) in [(1u8, true), (2, true), (3, false)] {
            let write = |payload: &mut [u8]| {
                assert_eq!(payload, [0; 10]);
                payload.fill(number);
            };
            now = llama.install_delta(page, now, 10, write, &guard).unwrap();
            let head = now.head().unwrap();
            assert_eq!((head.payload(), head.is_near()), (&[number; 10][..], is_near));
            assert_eq!(llama.memory_bytes() > memory, !is_near);
        }
        assert_eq!(chain(now.head().unwrap()).count(), 4);
        assert!(llama.install_delta(page, first, 10, |_| {}, &guard).is_none());
        assert_eq!(llama.snapshot(page, &guard), now);
        assert!(format!("{now:?}").contains("Delta") && format!("{free:?}").contains("Free"));
    }
}
