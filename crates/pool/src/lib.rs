//! The pool: memory in few and large pieces, for the nodes of pages, and for records and their versions.
//!
//! These come and go in any order, on any thread, by the million. An allocator for everybody gives them small pages, so that a
//! read waits for the translation of an address besides the memory itself; keeps what was freed where few others can use it; and
//! makes a thread that frees what another has allocated wait. Here
//!
//! - *chunks* of 2 MiB come from the system, in huge pages where it has them;
//! - a chunk is cut into *spans* of 64 KiB, a span into *slots* of one size, for one [part](Part) of the pool: what comes and goes for reasons of
//!   its own leaves holes of its own;
//! - each thread keeps a few free slots of each size, and exchanges them by the batch with all others, under a lock of the size;
//! - a few batches stay as they came for who wants one next, while much more of the size is in use: what is known of their spans
//!   is not even looked at;
//! - but for sizes that are *sparse*, with many free slots among those in use: there the free ones all go back to their spans, so that
//!   the next are taken from the lowest, and the highest become empty;
//! - other slots are taken from the lowest span that has one, and a span that has none in use becomes one for any size. A chunk with
//!   none goes back to the system, but for one;
//! - and whoever must let go of something, and may choose what, or can move it, is told what lies in the highest of them ([`is_stranded`]);
//! - of free spans in other chunks a sixteenth of all spans that have it keep their memory. It is the spans of higher addresses that lose theirs.
//!
//! What is larger than half a span, and under loom and shuttle everything, goes to the ordinary allocator. One pool serves all databases of a
//! process, as an allocator does; what each holds is charged to it by the slot ([`charge`]), and its part of what the pool keeps
//! free by who asks for it ([`idle_bytes`]).
//!
//! ```
//! use deuteron_pool::Part;
//! use std::alloc::Layout;
//!
//! let layout = Layout::array::<u64>(5)?;
//! let words = deuteron_pool::allocate(Part::Pages, layout).cast::<u64>();
//! // SAFETY: room for five words, which is ours until it is freed, once and with the same layout.
//! unsafe {
//!     words.write(7);
//!     assert_eq!(words.read(), 7);
//!     deuteron_pool::free(Part::Pages, words.cast(), layout);
//! }
//! # Ok::<(), std::alloc::LayoutError>(())
//! ```
//!
//! ## Invariants
//!
//! - **P1** A slot is in one place: in use, in a stack of free slots (of a thread, or of the batches of its class), or free in its
//!   span, which has a bit for it. Who has it there owns it.
//! - **P2** The first word of a slot in a stack is the address of the next. Nobody but the stack's owner reads or writes it.
//! - **P3** What is known of a span is read and written under the lock of its class while it has one, and otherwise under
//!   the lock of the chunks, which is taken after that of a class, never before.
//! - **P4** A chunk is mapped as long as one of its spans has a class, which a span keeps while a slot of it is in use or in a
//!   stack. The pointer of a slot is made from that of the chunk, and may reach all of it.
//! - **P5** A slot is freed with the part and the layout that it was allocated with; they name its class.
//! - **P6** A free span may be *bare*: the system has its memory back, and gives it zeroed again when it is touched. A span is stripped while it is
//!   nobody's: neither free nor of a class. Never the first of a chunk, where what is known of all of them lies.

mod size_class;
mod span;
mod system;

use size_class::{CLASSES, PARTS, SizeClass};
use span::{Chunks, Fresh, Put, SPAN_BYTES, Slots, SpanRef};
use std::alloc::{Layout, handle_alloc_error};
use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What memory is for: slots of different parts do not share a span, and each part has its own idle ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Nodes of pages, and tables.
    Pages,
    /// Records and their versions.
    Records,
}

/// The largest alignment that every slot has.
const ALIGN_MAX: usize = 16;

/// What an allocator is assumed to add to what does not come from a pool: half a page, and its own figures.
const ALLOCATION_OVERHEAD: usize = 2048;

/// What an allocation of `layout` takes of memory, in bytes: its slot, or about what an allocator makes of it.
///
/// ```
/// let layout = std::alloc::Layout::array::<u64>(13)?;
/// assert_eq!(deuteron_pool::charge(layout), 112);
/// # Ok::<(), std::alloc::LayoutError>(())
/// ```
#[inline]
pub fn charge(layout: Layout) -> usize {
    // The sizes of all parts are the same.
    SizeClass::of(Part::Pages, layout.size())
        .map_or(layout.size() + ALLOCATION_OVERHEAD, SizeClass::slot_bytes)
}

/// Whether anything lies in the pool. Models have no memory that outlives them, and Miri checks allocations better one by one.
const POOLED: bool = cfg!(not(any(loom, shuttle, miri)));

/// Memory of `part` for `layout`, which is not empty and aligned to 16 at most. Its contents are arbitrary. If there is none, the process ends
/// ([`handle_alloc_error`]).
///
/// # Panics
/// If `layout` is empty, or aligned to more.
///
/// ```
/// use deuteron_pool::Part;
/// let layout = std::alloc::Layout::new::<[u64; 4]>();
/// let memory = deuteron_pool::allocate(Part::Pages, layout);
/// assert!(memory.addr().get().is_multiple_of(8));
/// // SAFETY: just allocated, and not used any more.
/// unsafe { deuteron_pool::free(Part::Pages, memory, layout) };
/// ```
#[inline]
pub fn allocate(part: Part, layout: Layout) -> NonNull<u8> {
    assert!(layout.size() > 0 && layout.align() <= ALIGN_MAX);
    let memory = match SizeClass::of(part, layout.size()) {
        Some(class) if POOLED => allocate_slot(class),
        // SAFETY: the layout is not empty.
        _ => NonNull::new(unsafe { std::alloc::alloc(layout) }),
    };
    memory.unwrap_or_else(|| handle_alloc_error(layout))
}

/// Frees what [`allocate`] has given.
///
/// # Safety
/// It is not used any more, freed once, and `part` and `layout` are the same (P5).
///
/// ```
/// use deuteron_pool::Part;
/// let layout = std::alloc::Layout::new::<u64>();
/// let memory = deuteron_pool::allocate(Part::Pages, layout);
/// // SAFETY: just allocated, and not used any more.
/// unsafe { deuteron_pool::free(Part::Pages, memory, layout) };
/// ```
#[inline]
pub unsafe fn free(part: Part, memory: NonNull<u8>, layout: Layout) {
    match SizeClass::of(part, layout.size()) {
        // SAFETY: our own contract (P1, P5).
        Some(class) if POOLED => unsafe { free_slot(class, memory) },
        // SAFETY: our own contract.
        _ => unsafe { std::alloc::dealloc(memory.as_ptr(), layout) },
    }
}

/// Gives the free slots of this thread back, so that they keep no span from becoming free: for who has just freed many and will hardly
/// take as many soon.
///
/// ```
/// deuteron_pool::give_back();
/// ```
pub fn give_back() {
    // A thread that is past its thread-locals' destructors has given them back.
    let _ = SLOTS.try_with(|slots| slots.0.empty(&POOL));
}

/// Whether the allocation of `bytes` bytes at `memory`, of `part`, is in the way: many slots of its size are free, and it lies in one of the spans that would be free
/// if those in use were close together. For who must let go of something, and may choose what, or can move it.
///
/// ```
/// use deuteron_pool::Part;
/// use std::alloc::Layout;
/// let layout = Layout::new::<u64>();
/// let memory = deuteron_pool::allocate(Part::Pages, layout);
/// assert!(!deuteron_pool::is_stranded(Part::Pages, memory, layout.size()), "hardly any slot is free");
/// // SAFETY: just allocated, and not used any more.
/// unsafe { deuteron_pool::free(Part::Pages, memory, layout) };
/// ```
#[inline]
pub fn is_stranded(part: Part, memory: NonNull<u8>, bytes: usize) -> bool {
    SizeClass::of(part, bytes).is_some_and(|class| POOL.is_stranded(class, memory))
}

/// Of what lies idle in `part`, and of what the pool keeps free for all parts, the share of one who has `own` bytes of slots of it in use; in bytes.
///
/// ```
/// use deuteron_pool::Part;
/// let layout = std::alloc::Layout::new::<u64>();
/// let memory = deuteron_pool::allocate(Part::Pages, layout);
/// // Of the rest of the chunk, the part of one who has as much as this.
/// assert!(deuteron_pool::idle_bytes(Part::Pages, 16) <= deuteron_pool::idle_bytes(Part::Pages, u64::MAX));
/// // SAFETY: just allocated, and not used any more.
/// unsafe { deuteron_pool::free(Part::Pages, memory, layout) };
/// ```
pub fn idle_bytes(part: Part, own: u64) -> u64 {
    POOL.idle_bytes(part, own)
}

/// What lies idle of a part of the pool beyond what comes and goes leaves there, seen against a budget; in bytes. See [`idle_excess`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IdleExcess {
    /// Counts as if it was in use.
    pub counted: u64,
    /// What lies idle besides, half of the budget at most: it lets only what is in the way of others ([`is_stranded`]) leave, or be moved.
    pub untidy: u64,
}

/// What lies [idle](idle_bytes) in `part` for one who has `own` bytes of slots of it in use and may have `budget`, beyond an eighth of what it has. What comes
/// and goes leaves that much free, into which the next slots go. Of what exceeds it an eighth of the budget counts like what is in use; if room was made for all of it, all that makes
/// room would leave more of it.
///
/// ```
/// use deuteron_pool::{Part, idle_bytes, idle_excess};
/// let excess = idle_excess(Part::Pages, 1 << 40, 1 << 41);
/// assert!(excess.counted <= idle_bytes(Part::Pages, 1 << 40) && excess.untidy == 0);
/// ```
pub fn idle_excess(part: Part, own: u64, budget: u64) -> IdleExcess {
    let beyond = beyond_reserve(own, idle_bytes(part, own));
    let counted = beyond.min(budget / 8);
    IdleExcess { counted, untidy: (beyond - counted).min(budget / 2) }
}

fn beyond_reserve(own: u64, idle: u64) -> u64 {
    idle.saturating_sub(own / 8)
}

/// Of what is `idle`, the share of one who has `own` of what is `out`.
fn share(idle: u64, out: u64, own: u64) -> u64 {
    if own >= out { idle } else { (u128::from(idle) * u128::from(own) / u128::from(out)) as u64 }
}

/// Batches of a class that are kept as they came, at most.
const READY_MAX: usize = 4;
/// How many batches' worth of slots must be in use for each batch that is kept, so that they keep few spans from becoming free.
const USED_FOR_EACH_READY: usize = 16;
/// A class is sparse with more than one slot free in spans for so many in use, beside so many spans' worth.
const USED_FOR_EACH_FREE: usize = 8;
const FREE_SPANS: usize = 2;
/// Of a sparse class half as many may stay free when what is in use has been put close together; which spans are in the way is
/// looked up each time that so many batches have come back.
const PUTS_FOR_EACH_LOOK: u32 = 32;

/// What is known of the slots of a class, under its lock.
struct Class {
    /// Spans with a free slot, and all of them.
    spans: BTreeSet<SpanRef>,
    all: BTreeSet<SpanRef>,
    /// Whole batches of free slots, for who wants one next.
    ready: Vec<Slots>,
    /// Slots in use or in a thread's stack.
    used: usize,
    /// Slots that are free in spans.
    free: usize,
    /// Batches that came back since it was looked up which spans are in the way.
    puts: u32,
}

impl Class {
    const fn new() -> Class {
        Class { spans: BTreeSet::new(), all: BTreeSet::new(), ready: Vec::new(), used: 0, free: 0, puts: 0 }
    }

    /// Whether so many slots are free in spans that who has free ones shall keep none of them.
    fn is_sparse(&self, class: SizeClass) -> bool {
        self.free > self.used / USED_FOR_EACH_FREE + FREE_SPANS * (SPAN_BYTES / class.slot_bytes())
    }

    /// Where the highest spans begin that would not be needed if the slots in use were closer together.
    fn stranded_from(&self, class: SizeClass) -> usize {
        let excess = self.free.saturating_sub(self.used / (2 * USED_FOR_EACH_FREE));
        let spans = excess * class.slot_bytes() / SPAN_BYTES;
        let lowest = spans.checked_sub(1).and_then(|above| self.all.iter().rev().nth(above));
        lowest.map_or(usize::MAX, |span| span.address())
    }

    /// How many batches may be kept.
    fn ready_max(&self, class: SizeClass) -> usize {
        if self.is_sparse(class) {
            return 0;
        }
        (self.used / (class.batch() as usize * USED_FOR_EACH_READY)).min(READY_MAX)
    }
}

/// See the [module](self).
struct Pool {
    classes: [Mutex<Class>; CLASSES],
    chunks: Mutex<Chunks>,
    /// Of each class the address from which on slots are in the way of others. Changed under its lock.
    stranded_from: [AtomicUsize; CLASSES],
    /// Whether somebody should fetch a chunk before it is needed.
    wants_chunk: AtomicBool,
    /// Bytes of chunks, but for what the system has back.
    held: AtomicUsize,
    /// Of each part, bytes of slots in use or in a thread's stack.
    out: [AtomicUsize; PARTS],
    /// Of each part, bytes of the spans that have a class of it.
    spans: [AtomicUsize; PARTS],
}

static POOL: Pool = Pool::new();

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing under these locks panics but for want of memory, which ends the process.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    const fn new() -> Pool {
        Pool {
            classes: [const { Mutex::new(Class::new()) }; CLASSES],
            chunks: Mutex::new(Chunks::new()),
            stranded_from: [const { AtomicUsize::new(usize::MAX) }; CLASSES],
            wants_chunk: AtomicBool::new(false),
            held: AtomicUsize::new(0),
            out: [const { AtomicUsize::new(0) }; PARTS],
            spans: [const { AtomicUsize::new(0) }; PARTS],
        }
    }

    /// See [`idle_bytes`].
    fn idle_bytes(&self, part: Part, own: u64) -> u64 {
        // Relaxed, all: figures.
        let load = |bytes: &AtomicUsize| bytes.load(Ordering::Relaxed) as u64;
        let sum = |bytes: &[AtomicUsize; PARTS]| bytes.iter().map(load).sum::<u64>();
        let out = load(&self.out[part as usize]);
        let idle = load(&self.spans[part as usize]).saturating_sub(out);
        let free = load(&self.held).saturating_sub(sum(&self.spans));
        share(idle + share(free, sum(&self.out), out), out, own)
    }

    /// Up to `count` free slots; fewer only if there is no memory.
    #[cold]
    fn take(&self, class: SizeClass, count: u32) -> Slots {
        let slots = self.take_locked(class, count);
        // Relaxed: a hint.
        if self.wants_chunk.load(Ordering::Relaxed) && self.wants_chunk.swap(false, Ordering::Relaxed) {
            // The system zeroes a chunk when it is touched first, which takes as long as thousands of allocations. Nobody is to
            // wait for that under a lock.
            if let Some(fresh) = Fresh::map() {
                let mut chunks = lock(&self.chunks);
                chunks.add(fresh);
                self.held.store(chunks.bytes(), Ordering::Relaxed);
            }
        }
        slots
    }

    fn take_locked(&self, class: SizeClass, count: u32) -> Slots {
        let mut state = lock(&self.classes[class.index()]);
        let ready = if count == class.batch() { state.ready.pop() } else { None };
        let slots = ready.unwrap_or_else(|| self.take_from_spans(&mut state, class, count));
        state.used += slots.count() as usize;
        // Relaxed: a figure.
        self.out[class.part()].fetch_add(slots.count() as usize * class.slot_bytes(), Ordering::Relaxed);
        slots
    }

    fn take_from_spans(&self, state: &mut Class, class: SizeClass, count: u32) -> Slots {
        let mut slots = Slots::new();
        while slots.count() < count {
            let span = match state.spans.first() {
                Some(&span) => span,
                None => {
                    let mut chunks = lock(&self.chunks);
                    let Some(span) = chunks.take_span(class) else { break };
                    // Relaxed, here and below: figures.
                    self.held.store(chunks.bytes(), Ordering::Relaxed);
                    if chunks.wants_chunk() {
                        self.wants_chunk.store(true, Ordering::Relaxed);
                    }
                    drop(chunks);
                    self.spans[class.part()].fetch_add(SPAN_BYTES, Ordering::Relaxed);
                    state.free += span.slots(class).len();
                    state.spans.insert(span);
                    state.all.insert(span);
                    span
                }
            };
            // SAFETY: the span is of the class, whose lock we have (P3), and so will be the stack.
            if unsafe { span.take(class, count - slots.count(), &mut slots) } {
                state.spans.remove(&span);
            }
        }
        state.free -= slots.count() as usize;
        slots
    }

    /// Takes free slots of `class` back; whether the class is sparse then.
    #[cold]
    fn put(&self, class: SizeClass, slots: Slots) -> bool {
        let (has_freed, is_sparse) = self.put_locked(class, slots);
        if has_freed {
            self.strip_excess();
        }
        is_sparse
    }

    /// Lets the system have the memory of free spans, if there are many of them.
    fn strip_excess(&self) {
        let excess = lock(&self.chunks).take_excess();
        if excess.is_empty() {
            return;
        }
        for &span in &excess {
            // SAFETY: taken out just now, so nobody else's.
            unsafe { span.strip() };
        }
        let mut chunks = lock(&self.chunks);
        // SAFETY: those, stripped.
        unsafe { chunks.put_bare(excess) };
        self.held.store(chunks.bytes(), Ordering::Relaxed);
    }

    /// See [`is_stranded`].
    #[inline]
    fn is_stranded(&self, class: SizeClass, slot: NonNull<u8>) -> bool {
        // Relaxed: a hint.
        slot.addr().get() >= self.stranded_from[class.index()].load(Ordering::Relaxed)
    }

    /// Whether a class is sparse; now and then, which of its spans are in the way, if it is.
    fn look_at_sparse(&self, state: &mut Class, class: SizeClass) -> bool {
        let is_sparse = state.is_sparse(class);
        let from = &self.stranded_from[class.index()];
        if !is_sparse {
            state.puts = 0;
            // Relaxed, here and below: a hint. Whoever asks has its line, so it is not written for nothing.
            if from.load(Ordering::Relaxed) != usize::MAX {
                from.store(usize::MAX, Ordering::Relaxed);
            }
        } else {
            if state.puts.is_multiple_of(PUTS_FOR_EACH_LOOK) {
                from.store(state.stranded_from(class), Ordering::Relaxed);
            }
            state.puts = state.puts.wrapping_add(1);
        }
        is_sparse
    }

    /// Takes free slots of `class` back; whether a span has become free, and whether the class is sparse then.
    fn put_locked(&self, class: SizeClass, slots: Slots) -> (bool, bool) {
        let mut state = lock(&self.classes[class.index()]);
        state.used -= slots.count() as usize;
        self.out[class.part()].fetch_sub(slots.count() as usize * class.slot_bytes(), Ordering::Relaxed);
        let ready_max = state.ready_max(class);
        if state.ready.len() < ready_max && slots.count() == class.batch() {
            state.ready.push(slots);
            return (false, self.look_at_sparse(&mut state, class));
        }
        let mut has_freed = self.put_into_spans(&mut state, class, slots);
        while state.ready.len() > ready_max
            && let Some(slots) = state.ready.pop()
        {
            has_freed |= self.put_into_spans(&mut state, class, slots);
        }
        (has_freed, self.look_at_sparse(&mut state, class))
    }

    fn put_into_spans(&self, state: &mut Class, class: SizeClass, mut slots: Slots) -> bool {
        let mut has_freed = false;
        state.free += slots.count() as usize;
        while let Some(slot) = slots.pop() {
            let span = SpanRef::of(slot);
            // SAFETY: the slot came from there, and is in nobody's stack any more (P1); the span is of the class, whose
            // lock we have (P3).
            let Put { was_full, is_empty } = unsafe { span.put(class, slot) };
            if is_empty {
                has_freed = true;
                state.spans.remove(&span);
                state.all.remove(&span);
                self.spans[class.part()].fetch_sub(SPAN_BYTES, Ordering::Relaxed);
                state.free -= span.slots(class).len();
                let mut chunks = lock(&self.chunks);
                // SAFETY: no slot of the span is in use, and the class does not name it any more.
                unsafe { chunks.put_span(span) };
                self.held.store(chunks.bytes(), Ordering::Relaxed);
            } else if was_full {
                state.spans.insert(span);
            }
        }
        has_freed
    }
}

/// The free slots of a thread.
struct ThreadSlots {
    classes: UnsafeCell<[Slots; CLASSES]>,
}

impl ThreadSlots {
    const fn new() -> ThreadSlots {
        ThreadSlots { classes: UnsafeCell::new([const { Slots::new() }; CLASSES]) }
    }

    /// Runs `work`, which does not come back here, on the stack of a class.
    #[inline]
    fn with<T>(&self, class: SizeClass, work: impl FnOnce(&mut Slots) -> T) -> T {
        // SAFETY: of one thread only, as it is not Sync, and `work` is code of this module, which does not call `with`.
        work(unsafe { &mut (&mut (*self.classes.get()))[class.index()] })
    }

    #[inline]
    fn allocate(&self, pool: &Pool, class: SizeClass) -> Option<NonNull<u8>> {
        self.with(class, |slots| {
            if slots.count() == 0 {
                *slots = pool.take(class, class.batch());
            }
            slots.pop()
        })
    }

    /// # Safety
    /// As [`free_slot`].
    #[inline]
    unsafe fn free(&self, pool: &Pool, class: SizeClass, slot: NonNull<u8>) {
        self.with(class, |slots| {
            // SAFETY: our own contract.
            unsafe { slots.push(slot) };
            if slots.count() > 2 * class.batch() {
                let mut batch = Slots::new();
                for slot in std::iter::from_fn(|| slots.pop()).take(class.batch() as usize) {
                    // SAFETY: from our stack into that of the batch.
                    unsafe { batch.push(slot) };
                }
                if pool.put(class, batch) {
                    pool.put(class, std::mem::replace(slots, Slots::new()));
                }
            }
        });
    }

    /// Gives everything to `pool`, from which it came.
    fn empty(&self, pool: &Pool) {
        for class in (0..CLASSES as u8).map(SizeClass) {
            let slots = self.with(class, |slots| std::mem::replace(slots, Slots::new()));
            if slots.count() > 0 {
                pool.put(class, slots);
            }
        }
    }
}

/// Those of a thread from the one pool there is.
struct OwnSlots(ThreadSlots);

impl Drop for OwnSlots {
    fn drop(&mut self) {
        self.0.empty(&POOL);
    }
}

std::thread_local! {
    static SLOTS: OwnSlots = const { OwnSlots(ThreadSlots::new()) };
}

#[inline]
fn allocate_slot(class: SizeClass) -> Option<NonNull<u8>> {
    // A thread that is already past its thread-locals' destructors has no stack.
    SLOTS.try_with(|slots| slots.0.allocate(&POOL, class)).unwrap_or_else(|_| POOL.take(class, 1).pop())
}

/// # Safety
/// The slot is of the class and the caller's, who does not use it any more (P1, P5).
#[inline]
unsafe fn free_slot(class: SizeClass, slot: NonNull<u8>) {
    // SAFETY: our own contract.
    let freed = SLOTS.try_with(|slots| unsafe { slots.0.free(&POOL, class, slot) });
    if freed.is_err() {
        let mut slots = Slots::new();
        // SAFETY: our own contract.
        unsafe { slots.push(slot) };
        POOL.put(class, slots);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod pool_tests;
