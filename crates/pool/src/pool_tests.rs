//! The pool against what it is used for: every slot is one's own, and what was freed is used again or given back.

use super::span::{CHUNK_BYTES, SPAN_BYTES};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::mpsc;

/// Whose slots are looked at.
const PART: Part = Part::Records;

/// A pool of the test's own, and one thread's stacks.
struct Bed {
    pool: Pool,
    own: ThreadSlots,
    /// Address and size of each slot in use.
    used: BTreeMap<usize, (NonNull<u8>, usize)>,
}

impl Bed {
    fn new() -> Bed {
        Bed { pool: Pool::new(), own: ThreadSlots::new(), used: BTreeMap::new() }
    }

    fn allocate(&mut self, bytes: usize) {
        let class = SizeClass::of(PART, bytes).expect("at most half a span");
        let slot = self.own.allocate(&self.pool, class).expect("there is memory");
        let (start, end) = (slot.addr().get(), slot.addr().get() + bytes);
        assert!(start.is_multiple_of(16));
        let before = self.used.range(..end).next_back();
        assert!(before.is_none_or(|(at, (_, bytes))| at + bytes <= start), "{start:x} lies in another");
        // SAFETY: the slot is ours, and at least that large.
        unsafe { slot.write_bytes(bytes as u8, bytes) };
        self.used.insert(start, (slot, bytes));
    }

    fn free(&mut self, address: usize) {
        let (slot, bytes) = self.used.remove(&address).expect("in use");
        // SAFETY: as above; written when it was allocated.
        let written = unsafe { std::slice::from_raw_parts(slot.as_ptr(), bytes) };
        assert!(written.iter().all(|&byte| byte == bytes as u8));
        let class = SizeClass::of(PART, bytes).expect("at most half a span");
        // SAFETY: in use until now, and of this class.
        unsafe { self.own.free(&self.pool, class, slot) };
    }

    fn held(&self) -> usize {
        self.pool.held.load(Ordering::Relaxed)
    }
}

#[test]
#[cfg_attr(miri, ignore = "much memory")]
fn a_chunk_is_fetched_before_it_is_needed_and_no_more_than_one() {
    let mut bed = Bed::new();
    let (mut taken, mut ahead) = (0, 0);
    while taken < 48 * CHUNK_BYTES {
        bed.allocate(SPAN_BYTES / 4);
        taken += SPAN_BYTES / 4;
        // A chunk that is in use, one that was fetched, and what lies in a thread's stack.
        assert!(bed.held() <= taken + 3 * CHUNK_BYTES, "{} for {taken}", bed.held());
        ahead += usize::from(bed.held() > taken + CHUNK_BYTES);
    }
    assert!(ahead > 0, "it was fetched ahead");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 64 }))]
    #[test]
    fn slots_in_use_never_overlap_and_everything_is_given_back(
        steps in prop::collection::vec((0usize..3, 1usize..SPAN_BYTES / 2, any::<prop::sample::Index>()), 1..if cfg!(miri) { 30 } else { 300 }),
    ) {
        let mut bed = Bed::new();
        for (kind, bytes, which) in steps {
            // Most are small.
            match kind {
                0 => bed.allocate(bytes),
                1 => bed.allocate(bytes / 64 + 1),
                _ if bed.used.is_empty() => {}
                _ => {
                    let address = *bed.used.keys().nth(which.index(bed.used.len())).expect("one of them");
                    bed.free(address);
                }
            }
            let in_use: usize = bed.used.values().map(|&(_, bytes)| bytes).sum();
            prop_assert!(bed.held() >= in_use);
        }
        while let Some((&address, _)) = bed.used.first_key_value() {
            bed.free(address);
        }
        bed.own.empty(&bed.pool);
        prop_assert_eq!(bed.pool.out[PART as usize].load(Ordering::Relaxed), 0);
        prop_assert!(bed.held() <= CHUNK_BYTES, "one chunk is kept");
        for class in &bed.pool.classes {
            let class = lock(class);
            prop_assert!(class.spans.is_empty() && class.ready.is_empty() && class.used == 0);
        }
    }
}

#[test]
fn what_was_freed_in_one_size_is_used_in_another() {
    let mut bed = Bed::new();
    let count = if cfg!(miri) { 40 } else { 4000 };
    (0..count).for_each(|_| bed.allocate(4000));
    let held = bed.held();
    for size in [100, 2000, 6000] {
        let addresses: Vec<usize> = bed.used.keys().copied().collect();
        addresses.into_iter().for_each(|address| bed.free(address));
        (0..count * 4000 / size / 2).for_each(|_| bed.allocate(size));
        assert!(bed.held() <= held, "{} bytes held at size {size}, {held} before", bed.held());
    }
    while let Some((&address, _)) = bed.used.first_key_value() {
        bed.free(address);
    }
    bed.own.empty(&bed.pool);
}

#[test]
fn slots_freed_by_another_thread_come_back() {
    let rounds: u8 = if cfg!(miri) { 2 } else { 50 };
    let pool = Pool::new();
    let class = SizeClass::of(PART, 500).expect("a class");
    let (sender, receiver) = mpsc::channel::<(usize, u8)>();
    std::thread::scope(|scope| {
        let pool = &pool;
        scope.spawn(move || {
            let own = ThreadSlots::new();
            for (address, number) in receiver {
                let slot =
                    NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(address)).expect("not null");
                // SAFETY: handed over by the other thread, which has written it.
                unsafe {
                    assert_eq!(slot.add(499).read(), number);
                    own.free(pool, class, slot);
                }
            }
            own.empty(pool);
        });
        let own = ThreadSlots::new();
        for number in 0..rounds {
            for _ in 0..100 {
                let slot = own.allocate(pool, class).expect("there is memory");
                // SAFETY: ours, and of 500 bytes.
                unsafe { slot.write_bytes(number, 500) };
                sender.send((slot.as_ptr().expose_provenance(), number)).expect("the other thread listens");
            }
        }
        own.empty(pool);
        drop(sender);
    });
    assert_eq!(pool.out[PART as usize].load(Ordering::Relaxed), 0);
    assert!(pool.held.load(Ordering::Relaxed) <= CHUNK_BYTES);
}

/// The least memory that many free spans in chunks that are in use may keep: a sixteenth of all, a chunk's worth at least, and the spare chunk.
fn kept(chunks: usize) -> usize {
    (chunks / 16).max(1) * CHUNK_BYTES + CHUNK_BYTES
}

#[test]
#[cfg_attr(miri, ignore = "much memory")]
fn free_spans_of_chunks_that_are_in_use_go_back_to_the_system_and_are_used_again() {
    const CHUNKS: usize = 40;
    const SLOTS: usize = CHUNK_BYTES / (SPAN_BYTES / 2);
    let mut bed = Bed::new();
    for round in 0..3 {
        // The first span of a chunk has room for one of these, not two.
        while bed.used.len() < CHUNKS * (SLOTS - 1) {
            bed.allocate(SPAN_BYTES / 2);
        }
        assert!((CHUNKS * CHUNK_BYTES..=(CHUNKS + 3) * CHUNK_BYTES).contains(&bed.held()), "{}", bed.held());
        // One of each chunk stays.
        let addresses: Vec<_> = bed.used.keys().copied().collect();
        let (mut chunk, mut left) = (0, 0);
        for address in addresses {
            if address / CHUNK_BYTES != std::mem::replace(&mut chunk, address / CHUNK_BYTES) {
                left += SPAN_BYTES;
            } else {
                bed.free(address);
            }
        }
        // And what lies in the thread's stack.
        let most = left + kept(CHUNKS) + 4 * SPAN_BYTES;
        assert!(bed.held() <= most, "{} after round {round}, {most} at most", bed.held());
    }
    while let Some((&address, _)) = bed.used.first_key_value() {
        bed.free(address);
    }
    bed.own.empty(&bed.pool);
    assert_eq!(bed.pool.out[PART as usize].load(Ordering::Relaxed), 0);
    assert!(bed.held() <= CHUNK_BYTES, "one chunk is kept");
}

#[test]
fn a_store_answers_for_its_part_of_what_is_idle() {
    assert_eq!([share(40, 60, 60), share(40, 60, 15), share(40, 60, 0), share(40, 0, 0)], [40, 10, 0, 40]);
    assert_eq!(charge(Layout::from_size_align(33, 16).expect("a layout")), 48);
    assert_eq!(charge(Layout::from_size_align(1 << 20, 16).expect("a layout")), (1 << 20) + 2048);
}

#[test]
fn nobody_makes_room_for_an_eighth_of_what_it_has() {
    let made =
        [(800, 0), (800, 100), (800, 101), (800, 250), (0, 7)].map(|(own, idle)| beyond_reserve(own, idle));
    assert_eq!(made, [0, 0, 1, 150, 7]);
}

#[test]
fn who_has_nothing_of_what_is_out_has_no_part_of_what_is_idle() {
    let layout = Layout::from_size_align(500, 16).expect("a layout");
    let slot = allocate(PART, layout);
    assert_eq!(idle_bytes(PART, 0), 0);
    // SAFETY: allocated above, and not used.
    unsafe { free(PART, slot, layout) };
}

/// As many slots of `class` as so many spans have, by their addresses.
fn full_spans(pool: &Pool, own: &ThreadSlots, class: SizeClass, spans: usize) -> Vec<NonNull<u8>> {
    let count = spans * (SPAN_BYTES / class.slot_bytes());
    let mut slots: Vec<_> = (0..count).map(|_| own.allocate(pool, class).expect("there is memory")).collect();
    slots.sort_unstable();
    slots
}

#[test]
#[cfg_attr(miri, ignore = "much memory")]
fn each_part_has_its_own_idle_slots_and_its_share_of_free_spans() {
    let pool = Pool::new();
    let own = ThreadSlots::new();
    let [pages, records] =
        [Part::Pages, Part::Records].map(|part| (part, SizeClass::of(part, 512).expect("a class")));
    let fill = |class| full_spans(&pool, &own, class, 4 * CHUNK_BYTES / SPAN_BYTES);
    let free = |class, slots: Vec<NonNull<u8>>| {
        // SAFETY: allocated above, of this class, and not used.
        slots.into_iter().for_each(|slot| unsafe { own.free(&pool, class, slot) })
    };
    let (in_pages, mut in_records) = (fill(pages.1), fill(records.1));
    let span = |slot: &NonNull<u8>| slot.addr().get() / SPAN_BYTES;
    let spans: BTreeSet<_> = in_pages.iter().map(span).collect();
    assert!(in_records.iter().all(|slot| !spans.contains(&span(slot))));
    let idle = |(part, _)| pool.idle_bytes(part, u64::MAX);
    // Hardly more than the rest of a chunk.
    assert!(idle(pages) + idle(records) <= 2 * CHUNK_BYTES as u64, "{} {}", idle(pages), idle(records));
    // Every second record goes: that is theirs.
    let half: Vec<_> = in_records.iter().copied().step_by(2).collect();
    in_records = in_records.into_iter().skip(1).step_by(2).collect();
    free(records.1, half);
    let [of_pages, of_records] = [pages, records].map(idle);
    assert!(
        of_records > 3 * CHUNK_BYTES as u64 / 2 && of_pages < CHUNK_BYTES as u64,
        "{of_pages} {of_records}"
    );
    // The rest as well: their spans are for all, and the system has most of them back.
    free(records.1, in_records);
    own.empty(&pool);
    let idle_of_all =
        pool.held.load(Ordering::Relaxed) - pool.out[Part::Pages as usize].load(Ordering::Relaxed);
    assert!(idle_of_all <= 3 * CHUNK_BYTES, "{idle_of_all}");
    assert_eq!([pages, records].map(idle), [idle_of_all as u64, 0], "who has nothing has no share");
    free(pages.1, in_pages);
    own.empty(&pool);
}

#[test]
#[cfg_attr(miri, ignore = "much memory")]
fn what_lies_in_the_highest_spans_of_a_sparse_size_is_stranded_until_they_are_free() {
    let pool = Pool::new();
    let own = ThreadSlots::new();
    let class = SizeClass::of(PART, 512).expect("of a size that is pooled");
    let in_use = full_spans(&pool, &own, class, 400);
    let stranded =
        |slots: &[NonNull<u8>]| slots.iter().filter(|slot| pool.is_stranded(class, **slot)).count();
    assert_eq!(stranded(&in_use), 0);
    // SAFETY: allocated above, of this class, and not used.
    let free =
        |slots: Vec<NonNull<u8>>| slots.into_iter().for_each(|slot| unsafe { own.free(&pool, class, slot) });
    // One of four leaves, all over the spans.
    free(in_use.iter().copied().step_by(4).collect());
    let rest: Vec<_> =
        in_use.into_iter().enumerate().filter(|(at, _)| at % 4 != 0).map(|(_, slot)| slot).collect();
    let count = stranded(&rest);
    // A quarter is free, a sixteenth may be: about a fifth of the spans.
    assert!((rest.len() / 8..rest.len() / 4).contains(&count), "{count} of {}", rest.len());
    let (low, high): (Vec<_>, Vec<_>) = rest.into_iter().partition(|slot| !pool.is_stranded(class, *slot));
    assert!(low.iter().max() < high.iter().min(), "the highest");
    let spans = || pool.spans[PART as usize].load(Ordering::Relaxed);
    let before = spans();
    // Others take their place, further down.
    let mut others = Vec::new();
    for slots in high.chunks(500) {
        free(slots.to_vec());
        others.extend((0..slots.len()).map(|_| own.allocate(&pool, class).expect("there is memory")));
    }
    let (after, left) = (spans(), stranded(&low) + stranded(&others));
    assert!(after < before / 16 * 14 && left < count / 4, "{before} {after}, {left} of {count}");
    free(others);
    free(low);
    own.empty(&pool);
}

#[test]
fn a_thread_keeps_two_batches_and_gives_one_back_beyond_that() {
    let mut bed = Bed::new();
    let out = |bed: &Bed| bed.pool.out[PART as usize].load(Ordering::Relaxed);
    // 64 of 512 bytes are a batch.
    for number in 1..=3 * 64_usize {
        bed.allocate(500);
        assert_eq!(out(&bed), number.div_ceil(64) * 64 * 512);
    }
    for number in 1..=3 * 64 {
        let (&address, _) = bed.used.first_key_value().expect("in use");
        bed.free(address);
        assert_eq!(out(&bed), if number > 128 { 128 } else { 192 } * 512, "{number}");
    }
    // What was kept is given out again.
    (0..128).for_each(|_| bed.allocate(500));
    assert_eq!(out(&bed), 128 * 512);
    bed.allocate(500);
    assert_eq!(out(&bed), 192 * 512);
    let batches =
        [16, 512, 513, 4096, SPAN_BYTES / 2].map(|bytes| SizeClass::of(PART, bytes).map(SizeClass::batch));
    assert_eq!(batches, [64, 64, 56, 8, 1].map(Some));
}

#[test]
#[cfg_attr(miri, ignore = "much memory")]
fn a_few_whole_batches_wait_for_the_next_thread_while_many_are_in_use() {
    let pool = Pool::new();
    let class = SizeClass::of(PART, 512).expect("of a size that is pooled");
    let batch = class.batch();
    let ready = || lock(&pool.classes[class.index()]).ready.len();
    let addresses = |slots: &mut Slots| -> BTreeSet<usize> {
        std::iter::from_fn(|| slots.pop()).map(|slot| slot.addr().get()).collect()
    };
    let batches_in_use = READY_MAX * USED_FOR_EACH_READY;
    let mut in_use: Vec<_> = (0..batches_in_use).map(|_| pool.take(class, batch)).collect();
    let more: Vec<_> = (0..READY_MAX + 1).map(|_| pool.take(class, batch)).collect();
    for (number, slots) in (1..).zip(more) {
        pool.put(class, slots);
        assert_eq!(ready(), number.min(READY_MAX));
    }
    // The last that waits is taken whole, and no part of one is.
    let mut part = pool.take(class, batch - 1);
    assert_eq!((part.count(), ready()), (batch - 1, READY_MAX));
    let mut whole = pool.take(class, batch);
    assert_eq!((whole.count(), ready()), (batch, READY_MAX - 1));
    assert!(addresses(&mut part).is_disjoint(&addresses(&mut whole)), "P1");
    // With less in use fewer may wait, and with little none.
    while let Some(slots) = in_use.pop() {
        pool.put(class, slots);
        // What the two have taken counts as in use, too.
        assert!(ready() <= (in_use.len() + 2) / USED_FOR_EACH_READY);
    }
    assert_eq!(ready(), 0);
}

#[test]
#[cfg_attr(miri, ignore = "much memory")]
fn where_many_are_free_in_spans_none_are_kept_and_the_lowest_are_taken() {
    let pool = Pool::new();
    let own = ThreadSlots::new();
    let class = SizeClass::of(PART, 512).expect("of a size that is pooled");
    let of_span = SPAN_BYTES / class.slot_bytes();
    let in_use = full_spans(&pool, &own, class, 40);
    let free_in_spans = || lock(&pool.classes[class.index()]).free;
    assert!(free_in_spans() < of_span, "as many spans as are needed");
    // One of seven all over the spans: not sparse, so that batches and the thread keep some.
    let (some, in_use): (Vec<_>, Vec<_>) = in_use.into_iter().enumerate().partition(|(at, _)| at % 7 == 0);
    let free = |slots: Vec<(usize, NonNull<u8>)>| {
        // SAFETY: allocated above or below, of this class, and not used.
        slots.into_iter().for_each(|(_, slot)| unsafe { own.free(&pool, class, slot) })
    };
    free(some);
    let kept = || own.with(class, |slots| slots.count()) as usize;
    assert!(kept() > class.batch() as usize && !lock(&pool.classes[class.index()]).ready.is_empty());
    // Every second: as soon as they are many, what is freed goes to its span, and what was kept as well.
    let (half, rest): (Vec<_>, Vec<_>) = in_use.into_iter().partition(|(at, _)| at % 2 == 0);
    free(half);
    assert!(kept() <= 2 * class.batch() as usize && lock(&pool.classes[class.index()]).ready.is_empty());
    own.empty(&pool);
    assert!(free_in_spans() > 20 * of_span);
    // The next lie below all that is left in the upper half.
    let middle = rest[rest.len() / 2].1;
    let next: Vec<_> = (0..of_span).map(|_| own.allocate(&pool, class).expect("there is memory")).collect();
    assert!(next.iter().all(|&slot| slot < middle));
    free(rest);
    free(next.into_iter().enumerate().collect());
    own.empty(&pool);
    assert_eq!((free_in_spans(), pool.out[PART as usize].load(Ordering::Relaxed)), (0, 0));
}

#[test]
fn a_thread_that_gives_its_slots_back_keeps_none() {
    let pool = Pool::new();
    let own = ThreadSlots::new();
    let class = SizeClass::of(PART, 4096).expect("of a size that is pooled");
    let slot = own.allocate(&pool, class).expect("there is memory");
    assert_eq!(pool.out[PART as usize].load(Ordering::Relaxed), class.batch() as usize * class.slot_bytes());
    // SAFETY: allocated above, of this class, and not used.
    unsafe { own.free(&pool, class, slot) };
    own.empty(&pool);
    assert_eq!(pool.out[PART as usize].load(Ordering::Relaxed), 0);
    assert!(lock(&pool.classes[class.index()]).spans.is_empty());
}

#[test]
#[cfg_attr(miri, ignore = "much memory")]
fn a_chunk_is_wanted_ahead_if_there_are_many_with_a_quarter_of_one_left() {
    const SPANS: usize = CHUNK_BYTES / SPAN_BYTES;
    let class = SizeClass::of(PART, SPAN_BYTES / 2).expect("at most half a span");
    let mut chunks = Chunks::new();
    let mut spans = Vec::new();
    for number in 1..=33 * SPANS {
        spans.push(chunks.take_span(class).expect("there is memory"));
        let count = number.div_ceil(SPANS);
        let wants = count >= 32 && count * SPANS - number <= SPANS / 4;
        assert_eq!((chunks.bytes(), chunks.wants_chunk()), (count * CHUNK_BYTES, wants), "{number}");
    }
    for span in spans {
        // SAFETY: none of its slots was taken.
        unsafe { chunks.put_span(span) };
    }
    assert_eq!((chunks.bytes(), chunks.wants_chunk()), (CHUNK_BYTES, false));
}
