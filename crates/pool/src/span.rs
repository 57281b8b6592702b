//! Chunks and spans: a chunk of 2 MiB is cut into spans of 64 KiB, and a span into slots of one size.
//!
//! What is known of a chunk and its spans lies at the chunk's begin, where the first span has fewer slots for it.

use super::size_class::{SLOT_BYTES_MAX, SLOT_BYTES_MIN, SizeClass};
use super::system::{self, Pages};
use std::collections::BTreeSet;
use std::ops::Range;
use std::ptr::{self, NonNull};

/// Bytes of a chunk, and what its address is a multiple of: what the processor translates by one entry.
pub(super) const CHUNK_BYTES: usize = 2 << 20;
/// Bytes of a span.
pub(super) const SPAN_BYTES: usize = 64 << 10;
const SPANS: usize = CHUNK_BYTES / SPAN_BYTES;
/// Chunks without a slot in use that are kept for the next spans.
const SPARE_CHUNKS: usize = 1;
/// Free spans of chunks that are in use and whose memory is kept, at most: a sixteenth of all spans that have it, and so many.
const SPARE_SPANS: usize = SPANS;
/// With so many chunks one more is no matter, and is fetched before it is needed.
const AHEAD_FROM_CHUNKS: usize = 32;

/// What lies in a free slot.
struct FreeSlot {
    next: *mut u8,
}

/// A stack of free slots of one size, each with the address of the next. Whoever has it owns them (P1).
pub(super) struct Slots {
    first: *mut u8,
    count: u32,
}

// SAFETY: whoever has the stack owns its slots (P1), on whatever thread.
unsafe impl Send for Slots {}

impl Slots {
    pub(super) const fn new() -> Slots {
        Slots { first: ptr::null_mut(), count: 0 }
    }

    pub(super) fn count(&self) -> u32 {
        self.count
    }

    /// # Safety
    /// The slot is the caller's, of this stack's size, and not used any more (P1).
    #[inline]
    pub(super) unsafe fn push(&mut self, slot: NonNull<u8>) {
        // SAFETY: a slot is large enough, and aligned to 16 (P2).
        unsafe { slot.cast::<FreeSlot>().write(FreeSlot { next: self.first }) };
        self.first = slot.as_ptr();
        self.count += 1;
    }

    #[inline]
    pub(super) fn pop(&mut self) -> Option<NonNull<u8>> {
        let slot = NonNull::new(self.first)?;
        // SAFETY: a slot of the stack is ours, and `push` has written what lies in it (P2).
        self.first = unsafe { slot.cast::<FreeSlot>().read() }.next;
        self.count -= 1;
        Some(slot)
    }
}

/// Slots of a span at most, and the words that have a bit for each.
const SPAN_SLOTS_MAX: usize = SPAN_BYTES / SLOT_BYTES_MIN;
const WORDS: usize = SPAN_SLOTS_MAX / 64;

/// What is known of a span (P3).
struct Span {
    /// Slots that are free, and those that are not.
    free: u32,
    used: u32,
    /// A bit for each slot that is free. It says so beside the slot, which is cold memory as a rule: to take sixty slots is to write to
    /// sixty lines, none of which has to be waited for.
    bits: [u64; WORDS],
}

impl Span {
    /// All of `slots` are free.
    fn new(slots: Range<u32>) -> Span {
        let mut span = Span { free: slots.len() as u32, used: 0, bits: [0; WORDS] };
        for slot in slots {
            span.bits[slot as usize / 64] |= 1 << (slot % 64);
        }
        span
    }

    /// Takes the lowest free slots out, `count_max` at most, and tells of each by its number.
    fn take(&mut self, count_max: u32, mut taken: impl FnMut(usize)) {
        let mut left = count_max.min(self.free);
        (self.free, self.used) = (self.free - left, self.used + left);
        for (number, word) in self.bits.iter_mut().enumerate() {
            while *word != 0 {
                if left == 0 {
                    return;
                }
                left -= 1;
                taken(number * 64 + word.trailing_zeros() as usize);
                *word &= *word - 1;
            }
        }
    }
}

/// What is known of a chunk.
struct Head {
    /// A bit for each span that has no class; under the lock of the chunks (P3).
    free: u32,
    /// A bit for each of these whose memory has gone back to the system (P6); under the same lock.
    bare: u32,
    spans: [Span; SPANS],
}

const HEAD_BYTES: usize = size_of::<Head>();
const _: () = assert!(SPANS == 32 && HEAD_BYTES <= SPAN_BYTES - SLOT_BYTES_MAX);

/// A chunk, ordered by its address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Chunk(NonNull<Head>);

/// A span, ordered by its address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SpanRef {
    chunk: Chunk,
    index: usize,
}

// SAFETY: a name of memory that any thread may use who has the right to (P3).
unsafe impl Send for Chunk {}

impl Chunk {
    /// The chunk that a slot lies in. The slot's pointer was made from the chunk's, and may reach all of it (P4).
    fn of(slot: NonNull<u8>) -> Chunk {
        let head = slot.as_ptr().map_addr(|address| address & !(CHUNK_BYTES - 1));
        Chunk(NonNull::new(head.cast()).expect("no chunk is at address 0"))
    }
}

impl SpanRef {
    /// The span that a slot lies in.
    pub(super) fn of(slot: NonNull<u8>) -> SpanRef {
        SpanRef { chunk: Chunk::of(slot), index: slot.addr().get() % CHUNK_BYTES / SPAN_BYTES }
    }

    /// # Safety
    /// The caller has the lock of the span's class, and no other reference to what is known of the span (P3).
    unsafe fn span(&mut self) -> &mut Span {
        // SAFETY: within the chunk's head, which lives as long as a span of it has a class (P4). No reference is made to the other
        // spans, which are others' at the same time; this one is ours alone by the contract.
        unsafe {
            let spans = &raw mut (*self.chunk.0.as_ptr()).spans;
            &mut *spans.cast::<Span>().add(self.index)
        }
    }

    /// Where it begins.
    pub(super) fn address(self) -> usize {
        self.chunk.0.addr().get() + self.index * SPAN_BYTES
    }

    /// Gives its memory back to the system, which gives it zeroed again when it is touched (P6).
    ///
    /// # Safety
    /// Nobody uses the span, nor any slot of it, and it is not the first of its chunk.
    pub(super) unsafe fn strip(self) {
        debug_assert!(self.index > 0);
        // SAFETY: within the chunk, which is mapped as long as the span is somebody's (P4), and no part of its head.
        unsafe {
            // Else the system would make a huge page of it again, bare spans and all.
            system::advise(self.chunk.0.cast(), Pages::Small);
            system::strip(self.chunk.0.cast::<u8>().add(self.index * SPAN_BYTES), SPAN_BYTES);
        }
    }

    /// The slots of a class that it has room for, by their numbers: the first are none if they are the head's.
    pub(super) fn slots(self, class: SizeClass) -> Range<u32> {
        let slot = class.slot_bytes();
        let first = if self.index == 0 { HEAD_BYTES.div_ceil(slot) } else { 0 };
        first as u32..(SPAN_BYTES / slot) as u32
    }

    /// Takes the lowest free slots onto `slots`, `count_max` at most; whether the span has none left.
    ///
    /// # Safety
    /// The caller has the lock of `class`, which is the span's and the stack's (P3).
    pub(super) unsafe fn take(mut self, class: SizeClass, count_max: u32, slots: &mut Slots) -> bool {
        let (chunk, start) = (self.chunk.0.cast::<u8>(), self.index * SPAN_BYTES);
        // SAFETY: our own contract.
        let span = unsafe { self.span() };
        span.take(count_max, |number| {
            // SAFETY: within the chunk, as the slot ends within its span (P4); free until now, and the stack's from now on (P1).
            unsafe { slots.push(chunk.add(start + number * class.slot_bytes())) };
        });
        span.free == 0
    }

    /// Takes a slot back; what the span was and is then.
    ///
    /// # Safety
    /// As [`SpanRef::take`]; the slot lies in this span and is the caller's (P1).
    pub(super) unsafe fn put(mut self, class: SizeClass, slot: NonNull<u8>) -> Put {
        let number = (slot.addr().get() % SPAN_BYTES) as u32 / class.slot_bytes() as u32;
        // SAFETY: our own contract.
        let span = unsafe { self.span() };
        let was_full = span.free == 0;
        span.bits[number as usize / 64] |= 1 << (number % 64);
        (span.free, span.used) = (span.free + 1, span.used - 1);
        Put { was_full, is_empty: span.used == 0 }
    }
}

/// What a slot's return has changed.
pub(super) struct Put {
    pub(super) was_full: bool,
    pub(super) is_empty: bool,
}

/// A chunk that is not among the others yet.
pub(super) struct Fresh(Chunk);

impl Fresh {
    /// Fetches one from the system; `None` if there is no memory.
    pub(super) fn map() -> Option<Fresh> {
        let chunk = Chunk(system::map()?.cast());
        // SAFETY: a new chunk is ours alone, large and aligned enough for its head; what is known of a span is written when it
        // gets a class.
        unsafe {
            (&raw mut (*chunk.0.as_ptr()).free).write(u32::MAX);
            (&raw mut (*chunk.0.as_ptr()).bare).write(0);
        }
        Some(Fresh(chunk))
    }
}

/// All chunks.
pub(super) struct Chunks {
    /// Those with a span that has no class. The lowest is used first, so that the highest become empty.
    open: BTreeSet<Chunk>,
    /// How many there are.
    count: usize,
    /// How many of them have no span with a class.
    spare: usize,
    /// Spans without a class whose memory is there, and those whose memory is not (P6).
    free: usize,
    bare: usize,
}

impl Chunks {
    pub(super) const fn new() -> Chunks {
        Chunks { open: BTreeSet::new(), count: 0, spare: 0, free: 0, bare: 0 }
    }

    /// Bytes of all chunks, but for spans whose memory has gone back.
    pub(super) fn bytes(&self) -> usize {
        self.count * CHUNK_BYTES - self.bare * SPAN_BYTES
    }

    /// A span for `class`; `None` if there is no memory. Its slots are all free, and from now on it is under the lock of the class.
    pub(super) fn take_span(&mut self, class: SizeClass) -> Option<SpanRef> {
        let chunk = match self.open.first() {
            Some(&chunk) => chunk,
            None => self.grow()?,
        };
        // SAFETY: spans without a class, and which these are, are the holder's of the chunks (P3), who is borrowed mutably.
        let (free, bare, spans) = unsafe {
            let head = chunk.0.as_ptr();
            (&mut (*head).free, &mut (*head).bare, &raw mut (*head).spans)
        };
        if *free == u32::MAX {
            self.spare -= 1;
        }
        // What must be fetched and zeroed again comes last.
        let there = *free & !*bare;
        let index = if there != 0 { there } else { *free }.trailing_zeros() as usize;
        *free &= !(1 << index);
        if *bare & 1 << index == 0 {
            self.free -= 1;
        } else {
            *bare &= !(1 << index);
            self.bare -= 1;
            if *bare == 0 {
                // SAFETY: the chunk is mapped.
                unsafe { system::advise(chunk.0.cast(), Pages::Huge) };
            }
        }
        if *free == 0 {
            self.open.remove(&chunk);
        }
        let span = SpanRef { chunk, index };
        // SAFETY: the span is within the head, and the caller's alone.
        unsafe { spans.cast::<Span>().add(index).write(Span::new(span.slots(class))) };
        Some(span)
    }

    fn grow(&mut self) -> Option<Chunk> {
        let fresh = Fresh::map()?;
        let chunk = fresh.0;
        self.add(fresh);
        Some(chunk)
    }

    /// Adds a chunk.
    pub(super) fn add(&mut self, fresh: Fresh) {
        self.open.insert(fresh.0);
        (self.count, self.spare, self.free) = (self.count + 1, self.spare + 1, self.free + SPANS);
    }

    /// Whether a chunk should be fetched before it is needed: there are many, and hardly a span is left in them.
    pub(super) fn wants_chunk(&self) -> bool {
        // SAFETY: which spans are free is the holder's of the chunks (P3), who is borrowed.
        let free = |chunk: &Chunk| unsafe { (*chunk.0.as_ptr()).free }.count_ones() as usize;
        self.count >= AHEAD_FROM_CHUNKS
            && self.open.len() <= 1
            && self.open.iter().map(free).sum::<usize>() <= SPANS / 4
    }

    /// Takes a span back, none of whose slots is in use.
    ///
    /// # Safety
    /// Nobody knows the span or a slot of it any more.
    pub(super) unsafe fn put_span(&mut self, span: SpanRef) {
        self.free += 1;
        // SAFETY: our own contract.
        unsafe { self.put_free(span) };
    }

    /// # Safety
    /// As [`Chunks::put_span`]; the span has been counted.
    unsafe fn put_free(&mut self, span: SpanRef) {
        // SAFETY: as in `take_span`; the chunk lives, as a span of it had a class until now (P4) or was being stripped.
        let (free, bare) = unsafe {
            let head = span.chunk.0.as_ptr();
            (&mut (*head).free, (*head).bare)
        };
        if *free == 0 {
            self.open.insert(span.chunk);
        }
        *free |= 1 << span.index;
        if *free == u32::MAX {
            // The spare chunk is for those who need spans at once.
            if self.spare < SPARE_CHUNKS && bare == 0 {
                self.spare += 1;
                return;
            }
            self.open.remove(&span.chunk);
            self.count -= 1;
            self.bare -= bare.count_ones() as usize;
            self.free -= SPANS - bare.count_ones() as usize;
            // SAFETY: no span of the chunk is in use, and nobody can find it any more.
            unsafe { system::unmap(span.chunk.0.cast()) };
        }
    }

    /// How many free spans may keep their memory: those of the spare chunk besides.
    fn free_max(&self) -> usize {
        ((self.count * SPANS - self.bare) / 16).max(SPARE_SPANS) + self.spare * SPANS
    }

    /// Free spans that the system shall have back, if there are too many: the highest, and enough that this is not asked for soon again. They are nobody's
    /// until they are [put back](Chunks::put_bare).
    pub(super) fn take_excess(&mut self) -> Vec<SpanRef> {
        let most = self.free_max();
        if self.free <= most {
            return Vec::new();
        }
        let (mut excess, wanted) = (Vec::new(), self.free - most + SPARE_SPANS / 2);
        for &chunk in self.open.iter().rev() {
            // SAFETY: as in `take_span`.
            let (free, bare) = unsafe { (&mut (*chunk.0.as_ptr()).free, (*chunk.0.as_ptr()).bare) };
            if *free == u32::MAX {
                continue;
            }
            // The first has what is known of them all.
            let mut there = *free & !bare & !1;
            while there != 0 && excess.len() < wanted {
                let index = 31 - there.leading_zeros() as usize;
                there &= !(1 << index);
                *free &= !(1 << index);
                excess.push(SpanRef { chunk, index });
            }
        }
        self.open.retain(|chunk| {
            // SAFETY: as in `take_span`.
            unsafe { (*chunk.0.as_ptr()).free != 0 }
        });
        self.free -= excess.len();
        excess
    }

    /// Takes back spans that [`Chunks::take_excess`] has given, whose memory has gone back to the system.
    ///
    /// # Safety
    /// They are those, each once, and [stripped](SpanRef::strip).
    pub(super) unsafe fn put_bare(&mut self, spans: Vec<SpanRef>) {
        for span in spans {
            // SAFETY: as in `take_span`.
            unsafe { (*span.chunk.0.as_ptr()).bare |= 1 << span.index };
            self.bare += 1;
            // SAFETY: our own contract; it is counted.
            unsafe { self.put_free(span) };
        }
    }
}

impl Drop for Chunks {
    fn drop(&mut self) {
        // Those with slots in use stay.
        for chunk in &self.open {
            // SAFETY: as in `put_span`.
            unsafe {
                if (*chunk.0.as_ptr()).free == u32::MAX {
                    system::unmap(chunk.0.cast());
                }
            }
        }
    }
}
