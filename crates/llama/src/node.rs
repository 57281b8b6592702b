//! Nodes: the pieces of a page in memory.
//!
//! A resident page is a singly linked chain of nodes, newest first: deltas over a base, or deltas over a *stub*
//! that says where on flash the rest is. A *seal* on top closes a whole chain for good. Each node is one allocation, payload included, aligned to 16 bytes:
//!
//! | offset | bytes | field | who writes it, when |
//! |---|---|---|---|
//! | 0 | 8 | `next`: the older node, null in a base and a stub | owner, before publication |
//! | 8 | 8 | `flash`: address of the fragment that, with its older fragments, holds this node and all below; 0 if none | flusher, under the page's claim |
//! | 16 | 4 | `payload_bytes` | creation |
//! | 20 | 4 | `delta_bytes`: payload bytes of the deltas from here down | owner, before publication |
//! | 24 | 4 | `chain_memory`: memory of the nodes from here down | owner, before publication |
//! | 28 | 2 | `chain_length`: number of deltas from here down | owner, before publication |
//! | 30 | 1 | kind and flags | owner, before publication |
//! | 31 | 1 | `referenced`: second chance of the eviction clock: new, read, or gone | anybody, any time |
//! | 32 | | payload: opaque bytes of the access method | creation |
//! | | | *base only*, at the next multiple of 8: tree (4), low key length (4), adoption count (4), disowned count (4), root flag (4), 0 (4), adopted and disowned page identifiers (8 each), low key | creation |
//!
//! ## Invariants
//!
//! - **N1** All but `flash` and `referenced` is immutable once the node is published by the compare-and-swap on
//!   the mapping table; those two are atomic. So any number of threads may read a published node.
//! - **N2** A node belongs to one chain only: a chain is unlinked, retired and freed as a whole. Whoever needs
//!   older nodes in a new chain copies them.
//! - **N3** A published chain is retired through the epochs, by the one thread whose compare-and-swap replaced
//!   it. So a pointer read from the mapping table under a guard stays good as long as the guard.
//! - **N4** A `NonNull<Header>` in [`OwnedNode`] or [`NodeRef`] comes from [`allocate`] and carries the
//!   provenance of the whole allocation, whose extent [`layout_of`] computes from the header and trailer.

use crate::flash_address::FlashAddress;
use crate::page_id::PageId;
use crate::sync::{AtomicU8, AtomicU64, Ordering};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::fmt;
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

/// The alignment of nodes; the low bits of a node pointer are free for tags.
pub(crate) const NODE_ALIGN: usize = 16;
/// What an allocator is assumed to add to each allocation.
const ALLOCATION_OVERHEAD: usize = 16;
/// Bytes of a base's trailer before its adoptions.
const TRAILER_BYTES: usize = 24;

const KIND_MASK: u8 = 3;
/// The chain from here down ends in a stub.
const PARTIAL: u8 = 4;
/// The chain's base lists adoptions or disowned pages.
const KIN: u8 = 8;

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum NodeKind {
    /// The whole page as of its creation; the last node of a chain.
    Base = 0,
    /// A change on top of what is below.
    Delta = 1,
    /// Stands for the part of the page that is on flash only; the last node of a chain.
    Stub = 2,
    /// The page takes no more changes, and stays in memory whole until it is freed ([`Llama::seal`](crate::Llama::seal)).
    Seal = 3,
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
    delta_bytes: u32,
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
const _: () = assert!(size_of::<Trailer>() == TRAILER_BYTES);

fn trailer_offset(payload_bytes: usize) -> usize {
    (PAYLOAD + payload_bytes).next_multiple_of(8)
}

fn layout(payload_bytes: usize, trailer: Option<Trailer>) -> Layout {
    let size = match trailer {
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

/// What an allocation of `layout` is charged to the budget.
fn charge(layout: Layout) -> usize {
    layout.size().next_multiple_of(NODE_ALIGN) + ALLOCATION_OVERHEAD
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

fn allocate(kind: NodeKind, contents: Contents<'_>, trailer: Option<Trailer>) -> NonNull<Header> {
    let payload_bytes = contents.bytes();
    let layout = layout(payload_bytes, trailer);
    let memory = u32::try_from(charge(layout)).expect("a node is smaller than 4 GiB");
    // SAFETY: the layout is not empty, as it includes the header (N4).
    let Some(node) = NonNull::new(unsafe { alloc(layout) }.cast::<Header>()) else {
        handle_alloc_error(layout)
    };
    let delta = kind == NodeKind::Delta;
    let header = Header {
        next: ptr::null(),
        flash: AtomicU64::new(0),
        payload_bytes: payload_bytes as u32,
        delta_bytes: if delta { payload_bytes as u32 } else { 0 },
        chain_memory: memory,
        chain_length: u16::from(delta),
        flags: kind as u8
            | if kind == NodeKind::Stub { PARTIAL } else { 0 }
            | if trailer.is_some_and(|trailer| trailer.kin_bytes() > 0) { KIN } else { 0 },
        // A node is created because somebody works on the page.
        referenced: AtomicU8::new(NEW),
    };
    // SAFETY: the allocation is as large and as aligned as the layout says, and nobody else knows it (N4).
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

/// Frees one node.
///
/// # Safety
/// `node` comes from [`allocate`], is not linked from anywhere, and is freed once.
unsafe fn free(node: NonNull<Header>) {
    // SAFETY: the caller owns the node, which is alive until the call below (N4).
    unsafe {
        let layout = NodeRef::new(node).layout();
        dealloc(node.as_ptr().cast(), layout);
    }
}

/// Frees a chain of nodes from its head; the shape that [`deuteron_epoch::Guard::retire`] asks for.
///
/// # Safety
/// `head` is the head of an unlinked chain that nobody reads any more, freed once (N2, N3).
pub(crate) unsafe fn free_chain(head: *mut u8, _bytes: usize) {
    let mut next = head.cast::<Header>().cast_const();
    while let Some(node) = NonNull::new(next.cast_mut()) {
        // SAFETY: by N2 all nodes from the head down belong to this chain alone, and are freed once, here.
        unsafe {
            next = node.as_ref().next;
            free(node);
        }
    }
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
            2 => NodeKind::Stub,
            _ => NodeKind::Seal,
        }
    }

    /// The next older node. `None` behind a base and a stub.
    #[inline]
    pub fn next(self) -> Option<NodeRef<'g>> {
        // SAFETY: what is below lives as long as this node (contract of `new`).
        NonNull::new(self.header().next.cast_mut()).map(|next| unsafe { NodeRef::new(next) })
    }

    /// The bytes given at creation, aligned to 16. Empty in a stub.
    #[inline]
    pub fn payload(self) -> &'g [u8] {
        let bytes = self.header().payload_bytes as usize;
        // SAFETY: the payload follows the header within the allocation (N4), initialised since creation and
        // immutable (N1).
        unsafe { std::slice::from_raw_parts(self.node.cast::<u8>().add(PAYLOAD).as_ptr(), bytes) }
    }

    /// Asks the processor for `lines` cache lines of the node's allocation, the header's first, without waiting for
    /// them. A hint: lines behind the node's end are fetched in vain, no more.
    #[inline]
    pub fn prefetch(self, lines: std::ops::Range<usize>) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        for line in lines {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let address = self.node.as_ptr().cast::<i8>().wrapping_add(64 * line);
            // SAFETY: a prefetch accesses nothing in the sense of the language, and faults on no address.
            unsafe { _mm_prefetch(address, _MM_HINT_T0) };
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = lines;
    }

    /// How many deltas lie from here down, this node included, in memory.
    #[inline]
    pub fn chain_length(self) -> usize {
        self.header().chain_length.into()
    }

    /// The payload bytes of those deltas.
    #[inline]
    pub fn delta_bytes(self) -> usize {
        self.header().delta_bytes as usize
    }

    /// Whether the chain ends in a stub, so that the page must be loaded before it can be read.
    #[inline]
    pub fn is_partial(self) -> bool {
        self.header().flags & PARTIAL != 0
    }

    /// Whether this is the seal of a page that takes no more changes.
    #[inline]
    pub fn is_sealed(self) -> bool {
        self.header().flags & KIND_MASK == NodeKind::Seal as u8
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
    fn kin(self) -> (&'g [PageId], &'g [PageId]) {
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
        layout(self.header().payload_bytes as usize, self.trailer())
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
        OwnedNode { node: allocate(NodeKind::Delta, Contents::Copy(payload), None) }
    }

    /// A delta with a payload of zeros, to be filled in place through [`OwnedNode::payload_mut`].
    ///
    /// # Panics
    /// As [`OwnedNode::delta`].
    pub fn delta_zeroed(payload_bytes: usize) -> OwnedNode {
        OwnedNode { node: allocate(NodeKind::Delta, Contents::Zeros(payload_bytes), None) }
    }

    /// A base with this payload. `adopts` lists the pages that have been split off from the page by this very
    /// change; adoptions of the replaced base that are not yet durable are added when it is installed.
    ///
    /// # Panics
    /// As [`OwnedNode::delta`].
    pub fn base(payload: &[u8], descriptor: PageDescriptor<'_>, adopts: &[PageId]) -> OwnedNode {
        OwnedNode::new_base(Contents::Copy(payload), descriptor, adopts, &[])
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
        OwnedNode::new_base(Contents::Copy(payload), descriptor, adopts, disowns)
    }

    /// A base with a payload of zeros, to be filled in place through [`OwnedNode::payload_mut`].
    ///
    /// # Panics
    /// As [`OwnedNode::delta`].
    pub fn base_zeroed(payload_bytes: usize, descriptor: PageDescriptor<'_>, adopts: &[PageId]) -> OwnedNode {
        OwnedNode::new_base(Contents::Zeros(payload_bytes), descriptor, adopts, &[])
    }

    fn new_base(
        contents: Contents<'_>,
        descriptor: PageDescriptor<'_>,
        adopts: &[PageId],
        disowns: &[PageId],
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
        let node = allocate(NodeKind::Base, contents, Some(trailer));
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

    /// A stub for what lies at `address`.
    pub(crate) fn stub(address: FlashAddress) -> OwnedNode {
        let node = OwnedNode { node: allocate(NodeKind::Stub, Contents::Zeros(0), None) };
        node.as_ref().set_flash(address);
        node
    }

    /// A seal.
    pub(crate) fn seal() -> OwnedNode {
        OwnedNode { node: allocate(NodeKind::Seal, Contents::Zeros(0), None) }
    }

    /// The node, to look at.
    pub fn as_ref(&self) -> NodeRef<'_> {
        // SAFETY: owned, hence alive and unchanged while borrowed; what is below is null or lives longer.
        unsafe { NodeRef::new(self.node) }
    }

    /// The payload, to be filled in.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        let bytes = self.as_ref().header().payload_bytes as usize;
        // SAFETY: owned and mutably borrowed; the payload follows the header (N4), initialised at creation.
        unsafe { std::slice::from_raw_parts_mut(self.node.cast::<u8>().add(PAYLOAD).as_ptr(), bytes) }
    }

    /// Puts this delta or seal on top of `below`, whose figures it takes over. The link is not followed before the node
    /// is published, and [`OwnedNode::unlink`] takes it back.
    pub(crate) fn link(&mut self, below: NodeRef<'_>) {
        let own = charge(self.as_ref().layout()) as u32;
        let own_payload = self.as_ref().header().payload_bytes;
        let kind = self.as_ref().kind();
        debug_assert!(matches!(kind, NodeKind::Delta | NodeKind::Seal));
        // SAFETY: owned and mutably borrowed, so nobody reads the header meanwhile (N4).
        let header = unsafe { self.node.as_mut() };
        header.next = below.as_ptr();
        header.delta_bytes = own_payload.saturating_add(below.header().delta_bytes);
        header.chain_memory = own.saturating_add(below.header().chain_memory);
        header.chain_length = below.header().chain_length.saturating_add(u16::from(kind == NodeKind::Delta));
        header.flags = kind as u8 | (below.header().flags & !KIND_MASK);
    }

    /// Undoes [`OwnedNode::link`] after a lost race, so that dropping this node frees it alone.
    pub(crate) fn unlink(&mut self) {
        // SAFETY: as in `link`.
        unsafe { self.node.as_mut() }.next = ptr::null();
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_base_keeps_payload_descriptor_and_adoptions() {
        for payload in [0, 1, 7, 8, 9, 4000] {
            for key in [0, 1, 13] {
                let bytes: Vec<u8> = (0..payload).map(|byte| byte as u8).collect();
                let low_key = vec![b'k'; key];
                let descriptor = PageDescriptor { tree: 9, low_key: &low_key, root: key == 0 };
                let adopts = [PageId(3), PageId(u64::MAX)];
                let disowns = [PageId(5), PageId(6), PageId(7)];
                let node =
                    OwnedNode::heir(&bytes, descriptor, &adopts[..key.min(2)], &disowns[..payload % 4]);
                assert_eq!(node.as_ref().disowns(), &disowns[..payload % 4]);
                assert_eq!(node.as_ref().payload(), bytes);
                assert_eq!(node.as_ref().payload().as_ptr() as usize % NODE_ALIGN, 0);
                assert_eq!(node.as_ref().descriptor(), Some(descriptor));
                assert_eq!(node.as_ref().adopts(), &adopts[..key.min(2)]);
                assert_eq!(node.as_ref().chain_has_kin(), key > 0 || payload % 4 > 0);
            }
        }
    }

    #[test]
    fn the_head_counts_what_is_below() {
        let stub = OwnedNode::stub(FlashAddress::new(4096, 64));
        let mut first = OwnedNode::delta(b"one");
        first.link(stub.as_ref());
        let mut second = OwnedNode::delta(b"three");
        second.link(first.as_ref());
        let head = second.as_ref();
        assert_eq!((head.chain_length(), head.delta_bytes(), head.is_partial()), (2, 8, true));
        let own: usize =
            [second.as_ref(), first.as_ref(), stub.as_ref()].map(|node| charge(node.layout())).iter().sum();
        assert_eq!(head.chain_memory(), own);
        second.unlink();
        first.unlink();
    }
}
