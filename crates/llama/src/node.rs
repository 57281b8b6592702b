//! Nodes: the pieces of a page in memory.
//!
//! A resident page is a singly linked chain of nodes, newest first: deltas over a base, or deltas the last of which
//! says where on flash the rest is. A *seal* on top closes a whole chain for good. Each node is one allocation, payload included, aligned to 16 bytes;
//! but a base may have *slack*, room in front of it in which the deltas that come next lie, the first just before the base,
//! each further one just before that. So a chain is one stretch of memory, read in the order of its addresses: no
//! wait for memory at each of its nodes.
//!
//! | offset | bytes | field | who writes it, when |
//! |---|---|---|---|
//! | 0 | 8 | `next`: the older node; in the last delta of a page that is not whole in memory the address of the fragment that, with its older ones, holds the rest; 1 in a base | owner, before publication |
//! | 8 | 8 | `flash`: address of the fragment that, with its older fragments, holds this node and all below; 0 if none | flusher, under the page's claim |
//! | 16 | 4 | `payload_bytes`; of a delta in the slack: in the low half, in the high one sixteenths of the way to the base | creation |
//! | 20 | 4 | `delta_bytes`: payload bytes of the deltas from here down; in the highest bit whether the slack before it is given out | owner, before publication; the bit anybody |
//! | 24 | 4 | `chain_memory`: memory of the nodes from here down | owner, before publication |
//! | 28 | 2 | `chain_length`: number of deltas from here down; 65,535 also if they are more | owner, before publication |
//! | 30 | 1 | kind and flags; in the high half of a base its slack in pieces of 128 bytes, of a delta in a slack the same | owner, before publication |
//! | 31 | 1 | `referenced`: second chance of the eviction clock: new, read, or gone | anybody, any time |
//! | 32 | | payload: opaque bytes of the access method | creation |
//! | | | *base only*, at the next multiple of 8: tree (4), low key length (4), adoption count (4), disowned count (4), root flag (4), 0 (4), adopted and disowned page identifiers (8 each), low key | creation |
//!
//! ## Invariants
//!
//! - **N1** All but `flash`, `referenced` and the highest bit of `delta_bytes` is immutable once the node is published by the
//!   compare-and-swap on the mapping table; those are atomic. So any number of threads may read a published node.
//! - **N2** A node belongs to one chain only: a chain is unlinked, retired and freed as a whole. Whoever needs
//!   older nodes in a new chain copies them.
//! - **N3** A published chain is retired through the epochs, by the one thread whose compare-and-swap replaced
//!   it. So a pointer read from the mapping table under a guard stays good as long as the guard.
//! - **N4** A `NonNull<Header>` in [`OwnedNode`] or [`NodeRef`] comes from [`allocate`] and carries the
//!   provenance of the whole allocation, whose extent [`NodeRef::layout`] computes from the header and trailer.
//! - **N5** What is left of a slack lies before the chain's newest node, and is given out with that node as the newest: once, to
//!   whoever sets the bit in its header. So whoever has got it is alone with it until a node is published there, before
//!   which the next of it lies. If that fails, another node has become the newest; the rest of the slack stays unused until
//!   the base is freed. Nodes in the slack are of the base's chain (N2), and are freed with the base. That the base need not be
//!   looked at spares a wait for memory.

use crate::flash_address::FlashAddress;
use crate::page_id::PageId;
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use deuteron_epoch::{prefetch, prefetch_for_write};
use deuteron_pool::{self as pool, Part, charge};
use std::alloc::Layout;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// The alignment of nodes; the low bits of a node pointer are free for tags.
pub(crate) const NODE_ALIGN: usize = 16;
/// Bytes of a base's trailer before its adoptions.
const TRAILER_BYTES: usize = 24;

const KIND_MASK: u8 = 3;
/// The chain from here down ends in an address: what lies below is on flash only.
const PARTIAL: u8 = 4;
/// The chain's base lists adoptions or disowned pages.
const KIN: u8 = 8;
/// Bytes of a line of the processor's caches, for hints.
const LINE: usize = 64;
/// A base's slack in pieces, 0 in a delta that does not lie in one.
const SLACK_SHIFT: u32 = 4;
/// Bytes by which the slack is counted.
pub(crate) const SLACK_UNIT: usize = 128;
/// In `delta_bytes`: the slack before the node is given out (N5).
const GIVEN_OUT: u32 = 1 << 31;
/// The most slack that a base has, in bytes.
pub const SLACK_BYTES_MAX: usize = 15 * SLACK_UNIT;

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NodeKind {
    /// The whole page as of its creation; the last node of a chain.
    Base = 0,
    /// A change on top of what is below.
    Delta = 1,
    /// The page takes no more changes, and stays in memory whole until it is freed ([`Llama::seal`](crate::Llama::seal)).
    Seal = 2,
}

/// What a base node says of its page to recovery: which tree it belongs to, and where in it.
///
/// ```
/// use deuteron_llama::{OwnedNode, PageDescriptor};
/// let descriptor = PageDescriptor { tree: 1, low_key: b"m", root: false };
/// let node = OwnedNode::base(b"records", descriptor, &[]);
/// assert_eq!(node.as_ref().descriptor(), Some(descriptor));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageDescriptor<'a> {
    /// The tree (table) that the page belongs to.
    pub tree: u32,
    /// The page's low key, inclusive; it never changes. Empty for the leftmost page.
    pub low_key: &'a [u8],
    /// Whether this is the first page of its tree: it counts at recovery without being adopted.
    pub root: bool,
}

/// Values of `Header::referenced`: not seen by the eviction clock yet; read; its second chance is gone.
const NEW: u8 = 1;
const TOUCHED: u8 = 2;
const GONE: u8 = 0;

#[repr(C, align(16))]
pub(crate) struct Header {
    next: *const Header,
    flash: AtomicU64,
    payload_bytes: u32,
    delta_bytes: AtomicU32,
    chain_memory: u32,
    chain_length: u16,
    flags: u8,
    referenced: AtomicU8,
}

#[derive(Clone, Copy)]
#[repr(C)]
struct Trailer {
    tree: u32,
    low_key_bytes: u32,
    adopt_count: u32,
    disown_count: u32,
    root: u32,
    zero: u32,
}

impl Trailer {
    /// Bytes of the page identifiers behind the trailer.
    fn kin_bytes(self) -> usize {
        (self.adopt_count as usize + self.disown_count as usize) * size_of::<PageId>()
    }
}

const PAYLOAD: usize = size_of::<Header>();
// An address takes the place of a pointer.
const _: () = assert!(size_of::<*const Header>() == size_of::<FlashAddress>());
const _: () = assert!(size_of::<Trailer>() == TRAILER_BYTES);

/// `next` of a node with nothing below: odd as an address, and none.
const NOTHING: *const Header = ptr::without_provenance(1);

fn trailer_offset(payload_bytes: usize) -> usize {
    (PAYLOAD + payload_bytes).next_multiple_of(8)
}

/// What a delta takes in a slack.
fn bytes_in_slack(payload_bytes: usize) -> usize {
    (PAYLOAD + payload_bytes).next_multiple_of(NODE_ALIGN)
}

/// Of a node with its slack.
fn layout(payload_bytes: usize, trailer: Option<Trailer>, slack_bytes: usize) -> Layout {
    let size = slack_bytes
        + match trailer {
            None => PAYLOAD + payload_bytes,
            Some(trailer) => {
                trailer_offset(payload_bytes)
                    + TRAILER_BYTES
                    + trailer.kin_bytes()
                    + trailer.low_key_bytes as usize
            }
        };
    Layout::from_size_align(size, NODE_ALIGN).expect("a node is smaller than the address space")
}

/// What the payload of a new node holds.
#[derive(Clone, Copy)]
enum Contents<'a> {
    Zeros(usize),
    /// Saves writing a page twice.
    Copy(&'a [u8]),
}

impl Contents<'_> {
    fn bytes(self) -> usize {
        match self {
            Contents::Zeros(bytes) => bytes,
            Contents::Copy(payload) => payload.len(),
        }
    }
}

/// `slack_bytes` is a multiple of [`SLACK_UNIT`], and 0 but for a base.
fn allocate(
    kind: NodeKind,
    contents: Contents<'_>,
    trailer: Option<Trailer>,
    slack_bytes: usize,
) -> NonNull<Header> {
    debug_assert!(slack_bytes <= SLACK_BYTES_MAX && slack_bytes.is_multiple_of(SLACK_UNIT));
    let payload_bytes = contents.bytes();
    let layout = layout(payload_bytes, trailer, slack_bytes);
    let memory = u32::try_from(charge(layout)).expect("a node is smaller than 4 GiB");
    let allocation = pool::allocate(Part::Pages, layout);
    let delta = kind == NodeKind::Delta;
    let header = Header {
        next: NOTHING,
        flash: AtomicU64::new(0),
        payload_bytes: payload_bytes as u32,
        delta_bytes: AtomicU32::new(if delta { payload_bytes as u32 } else { 0 }),
        chain_memory: memory,
        chain_length: u16::from(delta),
        flags: kind as u8
            | if trailer.is_some_and(|trailer| trailer.kin_bytes() > 0) { KIN } else { 0 }
            | ((slack_bytes / SLACK_UNIT) as u8) << SLACK_SHIFT,
        // A node is created because somebody works on the page.
        referenced: AtomicU8::new(NEW),
    };
    // SAFETY: the allocation is as large and as aligned as the layout says, and nobody else knows it (N4); the slack is
    // a multiple of the alignment.
    let node = unsafe { allocation.add(slack_bytes).cast::<Header>() };
    // SAFETY: as above.
    unsafe {
        node.write(header);
        let payload = node.cast::<u8>().add(PAYLOAD);
        match contents {
            Contents::Zeros(bytes) => payload.write_bytes(0, bytes),
            Contents::Copy(bytes) => {
                payload.copy_from_nonoverlapping(NonNull::from(bytes).cast(), bytes.len())
            }
        }
        if let Some(trailer) = trailer {
            node.cast::<u8>().add(trailer_offset(payload_bytes)).cast::<Trailer>().write(trailer);
        }
    }
    node
}

/// Frees one node, with its slack and what lies there. One that lies in a slack itself is freed with its base.
///
/// # Safety
/// `node` comes from [`allocate`] or [`OwnedNode::delta_in_slack`], is not linked from anywhere, and is freed once.
unsafe fn free(node: NonNull<Header>) {
    // SAFETY: the caller owns the node, which is alive until the call below (N4, N5).
    unsafe {
        let reference = NodeRef::new(node);
        if !reference.is_near() {
            pool::free(Part::Pages, node.cast::<u8>().sub(reference.slack_bytes()), reference.layout());
        }
    }
}

/// Frees a chain of nodes from its head; the shape that [`deuteron_epoch::Guard::retire`] asks for.
///
/// # Safety
/// `head` is the head of an unlinked chain that nobody reads any more, freed once (N2, N3).
pub(crate) unsafe fn free_chain(head: *mut u8, _bytes: usize) {
    let mut next = NonNull::new(head.cast::<Header>());
    while let Some(node) = next {
        // SAFETY: by N2 all nodes from the head down belong to this chain alone, and are freed once, here. Below a delta in the
        // slack are such deltas only, and the base, with which they go and which lies so far behind (N5).
        unsafe {
            let reference = NodeRef::new(node);
            if reference.is_near() {
                next = reference.base().map(|base| base.node);
                continue;
            }
            next = reference.next().map(|below| below.node);
            free(node);
        }
    }
}

/// Takes what is left of a slack before a node with this `delta_bytes`; whether nobody has done so before (N5).
#[inline]
fn take(delta_bytes: &AtomicU32) -> bool {
    // Relaxed: nothing is read there that another has written.
    delta_bytes.fetch_or(GIVEN_OUT, Ordering::Relaxed) & GIVEN_OUT == 0
}

/// A node (with what is below it) that lives at least as long as `'g`: a guard, or the owner.
#[derive(Clone, Copy)]
pub struct NodeRef<'g> {
    node: NonNull<Header>,
    lives: PhantomData<&'g Header>,
}

// SAFETY: a published node is immutable but for its atomics (N1), so it may be read from any thread.
unsafe impl Send for NodeRef<'_> {}
// SAFETY: as above.
unsafe impl Sync for NodeRef<'_> {}

impl<'g> NodeRef<'g> {
    /// # Safety
    /// The node and all below it live and stay unchanged (N1) for `'g`.
    pub(crate) unsafe fn new(node: NonNull<Header>) -> NodeRef<'g> {
        NodeRef { node, lives: PhantomData }
    }

    fn header(self) -> &'g Header {
        // SAFETY: alive for 'g by the contract of `new`.
        unsafe { self.node.as_ref() }
    }

    pub(crate) fn as_ptr(self) -> *mut Header {
        self.node.as_ptr()
    }

    /// What this node is.
    #[inline]
    pub fn kind(self) -> NodeKind {
        match self.header().flags & KIND_MASK {
            0 => NodeKind::Base,
            1 => NodeKind::Delta,
            _ => NodeKind::Seal,
        }
    }

    /// The next older node; `None` of the last one in memory.
    #[inline]
    pub fn next(self) -> Option<NodeRef<'g>> {
        let next = self.header().next;
        if next.addr() & 1 != 0 {
            return None;
        }
        // SAFETY: what is below lives as long as this node (contract of `new`).
        NonNull::new(next.cast_mut()).map(|next| unsafe { NodeRef::new(next) })
    }

    /// What of the page is on flash only, if this is the last node in memory and there is such a part.
    #[inline]
    pub(crate) fn next_on_flash(self) -> Option<FlashAddress> {
        FlashAddress::from_raw(self.header().next.addr() as u64)
    }

    /// The fragment that holds all that lies below this node; `None` if none does.
    #[inline]
    pub(crate) fn flash_below(self) -> Option<FlashAddress> {
        self.next().map_or_else(|| self.next_on_flash(), NodeRef::flash)
    }

    /// The base of the chain from here down; `None` if that is not in memory.
    #[inline]
    pub fn base(self) -> Option<NodeRef<'g>> {
        let mut node = self;
        if self.is_near() {
            // SAFETY: the base lies so far behind a delta in its slack, in the same allocation (N5), and lives as long.
            node = unsafe { NodeRef::new(self.node.cast::<u8>().add(self.place_in_slack().0).cast()) };
        }
        while let Some(below) = node.next() {
            node = below;
        }
        (node.kind() == NodeKind::Base).then_some(node)
    }

    /// Whether this is a delta in the slack of its base: all from here down is one stretch of memory.
    #[inline]
    pub fn is_near(self) -> bool {
        self.header().flags >> SLACK_SHIFT != 0 && self.kind() == NodeKind::Delta
    }

    /// The bytes of a base's slack, taken or not.
    pub(crate) fn slack_bytes(self) -> usize {
        match self.kind() {
            NodeKind::Base => usize::from(self.header().flags >> SLACK_SHIFT) * SLACK_UNIT,
            _ => 0,
        }
    }

    /// What this node would take in a slack, if it is a delta.
    pub(crate) fn bytes_in_slack(self) -> usize {
        bytes_in_slack(self.payload_bytes())
    }

    /// What is left of the slack before a base or a delta in it, in bytes; 0 of other nodes.
    pub(crate) fn unused_slack_bytes(self) -> usize {
        let is_at_hand = self.kind() == NodeKind::Base || self.is_near();
        let (taken, slack) = self.place_in_slack();
        if is_at_hand { slack - taken } else { 0 }
    }

    /// Of a base or a delta in the slack: how far it is from the base, and the bytes of the slack.
    #[inline]
    fn place_in_slack(self) -> (usize, usize) {
        (self.slack_taken(), usize::from(self.header().flags >> SLACK_SHIFT) * SLACK_UNIT)
    }

    /// The piece of the slack just before this node, for a node of so many bytes that becomes the newest in its place, and how far
    /// that is from the base. `None` if there is no room, or it is given out, or the node is neither a base nor in the slack of one.
    #[inline]
    fn take_slack(self, bytes: usize) -> Option<(NonNull<Header>, usize)> {
        if !matches!(self.kind(), NodeKind::Base | NodeKind::Delta) {
            return None;
        }
        let (from, slack) = self.place_in_slack();
        if from + bytes > slack || !take(&self.header().delta_bytes) {
            return None;
        }
        // SAFETY: the slack lies before the base in the same allocation (N4), and reaches that far.
        Some((unsafe { self.node.cast::<u8>().sub(bytes).cast() }, from + bytes))
    }

    /// The length of the payload.
    #[inline]
    fn payload_bytes(self) -> usize {
        let bytes = self.header().payload_bytes;
        (if self.is_near() { bytes & 0xffff } else { bytes }) as usize
    }

    /// The bytes given at creation, aligned to 16. Empty in a seal.
    #[inline]
    pub fn payload(self) -> &'g [u8] {
        let bytes = self.payload_bytes();
        // SAFETY: the payload follows the header within the allocation (N4), initialised since creation and
        // immutable (N1).
        unsafe { std::slice::from_raw_parts(self.node.cast::<u8>().add(PAYLOAD).as_ptr(), bytes) }
    }

    /// Asks the processor for `lines` cache lines of the node's allocation, the header's first, without waiting for
    /// them. A hint: lines behind the node's end are fetched in vain, no more.
    #[inline]
    pub fn prefetch(self, lines: std::ops::Range<usize>) {
        lines.for_each(|line| prefetch(self.node.as_ptr().cast::<u8>().wrapping_add(LINE * line)));
    }

    /// As [`NodeRef::prefetch`] of a base or of a delta in the slack of one: of all from there down to so many lines of the base.
    #[inline]
    pub fn prefetch_down(self, lines_of_base: usize) {
        self.prefetch(0..self.slack_taken() / 64 + lines_of_base);
    }

    /// What the deltas from here down take of the slack that they lie in; 0 if this is none of these.
    ///
    /// ```
    /// # use deuteron_llama::{OwnedNode, PageDescriptor};
    /// let descriptor = PageDescriptor { tree: 1, low_key: b"", root: true };
    /// let base = OwnedNode::base_with_slack(b"records", descriptor, &[], 1024);
    /// assert_eq!(base.as_ref().slack_taken(), 0);
    /// ```
    #[inline]
    pub fn slack_taken(self) -> usize {
        if self.is_near() { self.base_distance() } else { 0 }
    }

    /// How far a delta in the slack is from its base.
    #[inline]
    fn base_distance(self) -> usize {
        (self.header().payload_bytes >> 16) as usize * NODE_ALIGN
    }

    /// Asks the processor for the header, and for the slack where the next delta may go, both to be written.
    #[inline]
    pub fn prefetch_for_delta(self) {
        (0..4).for_each(|line| prefetch_for_write(self.node.as_ptr().cast::<u8>().wrapping_sub(LINE * line)));
    }

    /// How many deltas lie from here down, this node included, in memory; 65,535 if they are more, as of a page that could not be read for long.
    #[inline]
    pub fn chain_length(self) -> usize {
        self.header().chain_length.into()
    }

    /// The same, however many: those of a chain that is longer than its header can say are counted.
    ///
    /// ```
    /// assert_eq!(deuteron_llama::OwnedNode::delta(b"delta").as_ref().delta_count(), 1);
    /// ```
    #[inline]
    pub fn delta_count(self) -> usize {
        match self.header().chain_length {
            u16::MAX => self.count_deltas(),
            length => length.into(),
        }
    }

    #[cold]
    fn count_deltas(self) -> usize {
        std::iter::successors(Some(self), |node| node.next())
            .filter(|node| node.kind() == NodeKind::Delta)
            .count()
    }

    /// The payload bytes of those deltas.
    #[inline]
    pub fn delta_bytes(self) -> usize {
        match self.kind() {
            NodeKind::Base => 0,
            _ => (self.header().delta_bytes.load(Ordering::Relaxed) & !GIVEN_OUT) as usize,
        }
    }

    /// Whether a part of the page is on flash only, so that it must be loaded before it can be read.
    #[inline]
    pub fn is_partial(self) -> bool {
        self.header().flags & PARTIAL != 0
    }

    /// Whether this is the seal of a page that takes no more changes.
    #[inline]
    pub fn is_sealed(self) -> bool {
        self.kind() == NodeKind::Seal
    }

    /// Gives the page its second chance against eviction. Call it on the head of a page that is used.
    #[inline]
    pub fn touch(self) {
        // Relaxed: a hint. Tested first, so that readers of a hot page do not write a shared line.
        if !self.is_touched() {
            self.header().referenced.store(TOUCHED, Ordering::Relaxed);
        }
    }

    /// Whether the page has been [touched](NodeRef::touch) since this became its head, and has its second chance still.
    pub(crate) fn is_touched(self) -> bool {
        // Relaxed: a hint.
        self.header().referenced.load(Ordering::Relaxed) == TOUCHED
    }

    /// Takes the second chance away; whether it was there.
    pub(crate) fn take_referenced(self) -> bool {
        let referenced = self.header().referenced.load(Ordering::Relaxed) != GONE;
        if referenced {
            self.header().referenced.store(GONE, Ordering::Relaxed);
        }
        referenced
    }

    /// Has the second chance that `other` has, of which this is a copy that nobody knows yet.
    pub(crate) fn copy_referenced(self, other: NodeRef<'_>) {
        let referenced = other.header().referenced.load(Ordering::Relaxed);
        self.header().referenced.store(referenced, Ordering::Relaxed);
    }

    /// Whether the base of the chain from here down is in the way of others ([`deuteron_pool::is_stranded`]).
    pub(crate) fn is_stranded(self) -> bool {
        // A base is charged by its slot. Where the slack begins does not matter: a span lies within or not.
        let is_stranded =
            |base: NodeRef<'_>| pool::is_stranded(Part::Pages, base.node.cast(), base.chain_memory());
        self.base().is_some_and(is_stranded)
    }

    /// The same where the base is at hand, as this is it or lies in its slack: what lies further away would have to be waited for.
    pub(crate) fn is_near_and_stranded(self) -> bool {
        (self.kind() == NodeKind::Base || self.is_near()) && self.is_stranded()
    }

    /// What a base node says of its page. `None` for other kinds.
    pub fn descriptor(self) -> Option<PageDescriptor<'g>> {
        let trailer = self.trailer()?;
        let offset = trailer_offset(self.payload().len()) + TRAILER_BYTES + trailer.kin_bytes();
        // SAFETY: the low key ends the allocation of a base (N4) and is immutable (N1).
        let low_key = unsafe {
            std::slice::from_raw_parts(
                self.node.cast::<u8>().add(offset).as_ptr(),
                trailer.low_key_bytes as usize,
            )
        };
        Some(PageDescriptor { tree: trailer.tree, low_key, root: trailer.root != 0 })
    }

    /// The pages that a base node adopts: the right halves split off since the page was last flushed.
    pub fn adopts(self) -> &'g [PageId] {
        self.kin().0
    }

    /// The pages that a base node disowns: those whose content it has taken over since the page was last flushed.
    pub fn disowns(self) -> &'g [PageId] {
        self.kin().1
    }

    /// Adopted and disowned pages.
    pub(crate) fn kin(self) -> (&'g [PageId], &'g [PageId]) {
        let Some(trailer) = self.trailer() else { return (&[], &[]) };
        let offset = trailer_offset(self.payload().len()) + TRAILER_BYTES;
        // SAFETY: the identifiers follow the trailer of a base, aligned to 8 (N4), and are immutable (N1).
        let kin = unsafe {
            std::slice::from_raw_parts(
                self.node.cast::<u8>().add(offset).cast::<PageId>().as_ptr(),
                trailer.kin_bytes() / size_of::<PageId>(),
            )
        };
        kin.split_at(trailer.adopt_count as usize)
    }

    /// Whether the base of this chain lists adoptions or disowned pages.
    pub(crate) fn chain_has_kin(self) -> bool {
        self.header().flags & KIN != 0
    }

    /// The memory that the chain from here down is charged.
    pub(crate) fn chain_memory(self) -> usize {
        self.header().chain_memory as usize
    }

    /// The fragment that, with its older ones, holds this node and all below; `None` if none does.
    pub(crate) fn flash(self) -> Option<FlashAddress> {
        // Acquire is not needed: the address itself is all that is read. Whether its bytes are durable is
        // another question, asked of the store.
        FlashAddress::from_raw(self.header().flash.load(Ordering::Relaxed))
    }

    /// Notes the fragment. Only under the page's claim, so that evictor and flusher agree (see `mapping_table`).
    pub(crate) fn set_flash(self, address: FlashAddress) {
        self.header().flash.store(address.to_raw(), Ordering::Relaxed);
    }

    fn trailer(self) -> Option<Trailer> {
        if self.kind() != NodeKind::Base {
            return None;
        }
        let offset = trailer_offset(self.payload().len());
        // SAFETY: a base has a trailer behind its payload, aligned to 8 (N4).
        Some(unsafe { self.node.cast::<u8>().add(offset).cast::<Trailer>().read() })
    }

    fn layout(self) -> Layout {
        layout(self.payload_bytes(), self.trailer(), self.slack_bytes())
    }
}

impl fmt::Debug for NodeRef<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Node")
            .field("kind", &self.kind())
            .field("payload_bytes", &self.payload().len())
            .field("chain_length", &self.chain_length())
            .field("flash", &self.flash())
            .finish()
    }
}

/// The older pages, and then the newer ones, each once.
fn joined<'k>(older: &'k [PageId], newer: &'k [PageId]) -> Cow<'k, [PageId]> {
    match (older, newer) {
        ([], only) | (only, []) => Cow::Borrowed(only),
        _ => older.iter().filter(|page| !newer.contains(page)).chain(newer).copied().collect(),
    }
}

/// A node that nobody else knows yet. Freed when dropped; [`Llama::install`](crate::Llama::install) publishes it.
///
/// ```
/// use deuteron_llama::{NodeKind, OwnedNode};
/// let mut delta = OwnedNode::delta_zeroed(3);
/// delta.payload_mut().copy_from_slice(b"abc");
/// assert_eq!(delta.as_ref().kind(), NodeKind::Delta);
/// assert_eq!(delta.as_ref().payload(), b"abc");
/// ```
pub struct OwnedNode {
    node: NonNull<Header>,
}

// SAFETY: an owned node is a heap allocation without ties to its thread.
unsafe impl Send for OwnedNode {}

impl OwnedNode {
    /// A delta with this payload.
    ///
    /// # Panics
    /// If the payload is 4 GiB or longer; pages are limited to [`Llama::page_bytes_max`](crate::Llama::page_bytes_max).
    pub fn delta(payload: &[u8]) -> OwnedNode {
        OwnedNode { node: allocate(NodeKind::Delta, Contents::Copy(payload), None, 0) }
    }

    /// A delta with a payload of zeros, to be filled in place through [`OwnedNode::payload_mut`].
    ///
    /// # Panics
    /// As [`OwnedNode::delta`].
    pub fn delta_zeroed(payload_bytes: usize) -> OwnedNode {
        OwnedNode { node: allocate(NodeKind::Delta, Contents::Zeros(payload_bytes), None, 0) }
    }

    /// As [`OwnedNode::delta_zeroed`], in the slack of the chain that begins at `head`, if there is room.
    ///
    /// # Safety
    /// The chain lives as long as the node: until it is dropped, or published on top of the chain.
    #[inline]
    pub(crate) unsafe fn delta_in_slack(payload_bytes: usize, head: NodeRef<'_>) -> Option<OwnedNode> {
        let (node, distance) = head.take_slack(bytes_in_slack(payload_bytes))?;
        let slack = head.header().flags >> SLACK_SHIFT << SLACK_SHIFT;
        let header = Header {
            next: NOTHING,
            flash: AtomicU64::new(0),
            payload_bytes: ((distance / NODE_ALIGN) << 16 | payload_bytes) as u32,
            delta_bytes: AtomicU32::new(payload_bytes as u32),
            // It is paid for with the base.
            chain_memory: 0,
            chain_length: 1,
            flags: NodeKind::Delta as u8 | slack,
            referenced: AtomicU8::new(NEW),
        };
        // SAFETY: the piece is ours alone (N5), as large as asked for, and aligned as all distances are.
        unsafe {
            node.write(header);
            node.cast::<u8>().add(PAYLOAD).write_bytes(0, payload_bytes);
        }
        Some(OwnedNode { node })
    }

    /// A base with this payload. `adopts` lists the pages that have been split off from the page by this very
    /// change; adoptions of the replaced base that are not yet durable are added when it is installed.
    ///
    /// # Panics
    /// As [`OwnedNode::delta`].
    pub fn base(payload: &[u8], descriptor: PageDescriptor<'_>, adopts: &[PageId]) -> OwnedNode {
        OwnedNode::new_base(Contents::Copy(payload), descriptor, adopts, &[], 0)
    }

    /// As [`OwnedNode::base`], with about `slack_bytes` of room for deltas, at most [`SLACK_BYTES_MAX`]: for a page that is
    /// likely to be changed again soon.
    ///
    /// # Panics
    /// As [`OwnedNode::delta`].
    pub fn base_with_slack(
        payload: &[u8],
        descriptor: PageDescriptor<'_>,
        adopts: &[PageId],
        slack_bytes: usize,
    ) -> OwnedNode {
        OwnedNode::successor(payload, descriptor, adopts, slack_bytes, (&[], &[]))
    }

    /// As [`OwnedNode::base`], for a page that has taken over the content of the pages in `disowns`, all of them
    /// [sealed](crate::Llama::seal): they are freed once this base is durable, and recovery finds either them or this base.
    ///
    /// # Panics
    /// As [`OwnedNode::delta`].
    pub fn heir(
        payload: &[u8],
        descriptor: PageDescriptor<'_>,
        adopts: &[PageId],
        disowns: &[PageId],
    ) -> OwnedNode {
        OwnedNode::new_base(Contents::Copy(payload), descriptor, adopts, disowns, 0)
    }

    /// This base with `adopts` and `disowns` in front of its own kin.
    pub(crate) fn with_kin(self, adopts: &[PageId], disowns: &[PageId]) -> OwnedNode {
        let own = self.as_ref();
        let (adopts, disowns) = (joined(adopts, own.adopts()), joined(disowns, own.disowns()));
        let descriptor = own.descriptor().expect("a base has a descriptor");
        OwnedNode::new_base(Contents::Copy(own.payload()), descriptor, &adopts, &disowns, own.slack_bytes())
    }

    /// As [`OwnedNode::base_with_slack`], with what an older base `adopts` and `disowns` in front of its own kin.
    pub(crate) fn successor(
        payload: &[u8],
        descriptor: PageDescriptor<'_>,
        adopts: &[PageId],
        slack_bytes: usize,
        (older_adopts, disowns): (&[PageId], &[PageId]),
    ) -> OwnedNode {
        let slack_bytes = slack_bytes.min(SLACK_BYTES_MAX) / SLACK_UNIT * SLACK_UNIT;
        let adopts = joined(older_adopts, adopts);
        OwnedNode::new_base(Contents::Copy(payload), descriptor, &adopts, disowns, slack_bytes)
    }

    /// A base with a payload of zeros, to be filled in place through [`OwnedNode::payload_mut`].
    ///
    /// # Panics
    /// As [`OwnedNode::delta`].
    pub fn base_zeroed(payload_bytes: usize, descriptor: PageDescriptor<'_>, adopts: &[PageId]) -> OwnedNode {
        OwnedNode::new_base(Contents::Zeros(payload_bytes), descriptor, adopts, &[], 0)
    }

    fn new_base(
        contents: Contents<'_>,
        descriptor: PageDescriptor<'_>,
        adopts: &[PageId],
        disowns: &[PageId],
        slack_bytes: usize,
    ) -> OwnedNode {
        let payload_bytes = contents.bytes();
        let trailer = Trailer {
            tree: descriptor.tree,
            low_key_bytes: u32::try_from(descriptor.low_key.len()).expect("a key is smaller than 4 GiB"),
            adopt_count: u32::try_from(adopts.len()).expect("fewer than 2^32 adoptions"),
            disown_count: u32::try_from(disowns.len()).expect("fewer than 2^32 disowned pages"),
            root: u32::from(descriptor.root),
            zero: 0,
        };
        let node = allocate(NodeKind::Base, contents, Some(trailer), slack_bytes);
        // SAFETY: the allocation has room for the identifiers and the low key behind the trailer (N4), and is
        // not shared yet.
        unsafe {
            let kin = node.cast::<u8>().add(trailer_offset(payload_bytes) + TRAILER_BYTES);
            let disowned = kin.add(size_of_val(adopts));
            ptr::copy_nonoverlapping(adopts.as_ptr(), kin.cast::<PageId>().as_ptr(), adopts.len());
            ptr::copy_nonoverlapping(disowns.as_ptr(), disowned.cast::<PageId>().as_ptr(), disowns.len());
            ptr::copy_nonoverlapping(
                descriptor.low_key.as_ptr(),
                disowned.add(size_of_val(disowns)).as_ptr(),
                descriptor.low_key.len(),
            );
        }
        OwnedNode { node }
    }

    /// Takes over the address of `node`, of which this is a copy.
    pub(crate) fn copy_flash(&self, node: NodeRef<'_>) {
        if let Some(address) = node.flash() {
            self.as_ref().set_flash(address);
        }
    }

    /// A seal.
    pub(crate) fn seal() -> OwnedNode {
        OwnedNode { node: allocate(NodeKind::Seal, Contents::Zeros(0), None, 0) }
    }

    /// The node, to look at.
    pub fn as_ref(&self) -> NodeRef<'_> {
        // SAFETY: owned, hence alive and unchanged while borrowed; what is in memory below, if anything is, lives longer.
        unsafe { NodeRef::new(self.node) }
    }

    /// The payload, to be filled in.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let bytes = self.as_ref().payload_bytes();
        // SAFETY: owned and mutably borrowed; the payload follows the header (N4), initialised at creation.
        unsafe { std::slice::from_raw_parts_mut(self.node.cast::<u8>().add(PAYLOAD).as_ptr(), bytes) }
    }

    /// Puts this delta or seal on top of `below`, whose figures it takes over. The link is not followed before the node
    /// is published, and [`OwnedNode::unlink`] takes it back.
    pub(crate) fn link(&mut self, below: NodeRef<'_>) {
        let own = if self.as_ref().is_near() { 0 } else { charge(self.as_ref().layout()) as u32 };
        let own_payload = self.as_ref().payload_bytes() as u32;
        let own_length = u16::from(self.as_ref().kind() == NodeKind::Delta);
        debug_assert!(matches!(self.as_ref().kind(), NodeKind::Delta | NodeKind::Seal));
        // SAFETY: owned and mutably borrowed, so nobody reads the header meanwhile (N4).
        let header = unsafe { self.node.as_mut() };
        header.next = below.as_ptr();
        let delta_bytes = own_payload.saturating_add(below.delta_bytes() as u32);
        header.delta_bytes = AtomicU32::new(delta_bytes.min(!GIVEN_OUT));
        header.chain_memory = own.saturating_add(below.header().chain_memory);
        header.chain_length = below.header().chain_length.saturating_add(own_length);
        header.flags = header.flags & !(PARTIAL | KIN) | below.header().flags & (PARTIAL | KIN);
    }

    /// As [`OwnedNode::link`] of a delta that does not lie in a slack, on what of its page is on flash only.
    pub(crate) fn link_to_flash(&mut self, below: FlashAddress) {
        debug_assert!(self.as_ref().kind() == NodeKind::Delta && !self.as_ref().is_near());
        let (own, own_payload) =
            (charge(self.as_ref().layout()) as u32, self.as_ref().payload_bytes() as u32);
        // SAFETY: as in `link`.
        let header = unsafe { self.node.as_mut() };
        header.next = ptr::without_provenance(below.to_raw() as usize);
        header.delta_bytes = AtomicU32::new(own_payload);
        header.chain_memory = own;
        header.chain_length = 1;
        header.flags = header.flags & !KIN | PARTIAL;
    }

    /// Undoes [`OwnedNode::link`] after a lost race, so that dropping this node frees it alone.
    pub(crate) fn unlink(&mut self) {
        // SAFETY: as in `link`.
        unsafe { self.node.as_mut() }.next = NOTHING;
    }

    /// Gives the ownership to whoever publishes the node.
    pub(crate) fn into_raw(self) -> NonNull<Header> {
        let node = self.node;
        std::mem::forget(self);
        node
    }

    /// Takes the ownership back.
    ///
    /// # Safety
    /// `node` comes from [`OwnedNode::into_raw`] and was not published.
    pub(crate) unsafe fn from_raw(node: NonNull<Header>) -> OwnedNode {
        OwnedNode { node }
    }
}

impl Drop for OwnedNode {
    fn drop(&mut self) {
        // SAFETY: owned: never published, freed once.
        unsafe { free(self.node) }
    }
}

impl fmt::Debug for OwnedNode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().fmt(formatter)
    }
}

#[cfg(all(test, loom))]
mod loom_tests;

#[cfg(all(test, not(loom)))]
mod tests;
