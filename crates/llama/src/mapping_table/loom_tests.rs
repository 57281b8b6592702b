//! All interleavings of the transitions that must not go wrong together.

use super::*;
use crate::flash_address::FlashAddress;
use crate::fragments::ANYTHING;
use crate::sync::AtomicBool;
use loom::sync::Arc;
use loom::thread;

const PAGE: PageId = PageId(1);

fn table() -> Arc<MappingTable> {
    let table = MappingTable::new();
    table.reserve(PAGE);
    Arc::new(table)
}

fn pointer(number: usize) -> u64 {
    (number * NODE_ALIGN) as u64
}

/// M1: of an install and an eviction that expect the same word one wins, and the replaced word has one owner.
#[test]
fn install_and_evict_replace_a_word_once() {
    loom::model(|| {
        let table = table();
        assert!(table.replace(PAGE, 0, pointer(1)));
        let stored = FlashAddress::new(4096, 64).to_raw();
        let installer = {
            let table = table.clone();
            thread::spawn(move || table.replace(PAGE, pointer(1), pointer(2)))
        };
        let evictor = {
            let table = table.clone();
            thread::spawn(move || {
                let claim = table.try_claim(PAGE).expect("nobody else claims");
                let won = table.replace(PAGE, pointer(1), stored);
                drop(claim);
                won
            })
        };
        let (installed, evicted) = (installer.join().unwrap(), evictor.join().unwrap());
        assert!(installed ^ evicted);
        assert_eq!(table.word(PAGE), if installed { pointer(2) } else { stored });
    });
}

/// M2: an installed change is seen by the flusher, or leaves the page dirty.
#[test]
fn no_change_is_forgotten_by_the_flusher() {
    loom::model(|| {
        let table = table();
        assert!(table.replace(PAGE, 0, pointer(1)));
        table.mark_dirty(PAGE);
        let installer = {
            let table = table.clone();
            thread::spawn(move || {
                assert!(table.replace(PAGE, pointer(1), pointer(2)));
                table.mark_dirty(PAGE);
            })
        };
        assert!(table.take_dirty(PAGE));
        let seen = table.word_after_take_dirty(PAGE);
        installer.join().unwrap();
        assert!(seen == pointer(2) || table.is_dirty(PAGE));
    });
}

/// M3: the evictor never stores an address that the flusher's full rewrite has superseded.
#[test]
fn eviction_and_rewrite_agree_on_the_address() {
    loom::model(|| {
        let old = FlashAddress::new(4096, 64);
        let new = FlashAddress::new(8192, 64);
        let table = table();
        let mut fragments = Fragments::default();
        assert!(fragments.push(old));
        table.set_fragments(PAGE, fragments);
        // Stands for the head node's `flash`.
        let flash = Arc::new(AtomicU64::new(old.to_raw()));
        assert!(table.replace(PAGE, 0, pointer(1)));
        let flusher = {
            let (table, flash) = (table.clone(), flash.clone());
            thread::spawn(move || {
                if let Some(_claim) = table.try_claim(PAGE)
                    && table.word(PAGE) == pointer(1)
                {
                    flash.store(new.to_raw(), Ordering::Relaxed);
                    let mut fragments = Fragments::default();
                    assert!(fragments.push(new));
                    table.set_fragments(PAGE, fragments);
                }
            })
        };
        if let Some(_claim) = table.try_claim(PAGE) {
            table.replace(PAGE, pointer(1), flash.load(Ordering::Relaxed));
        }
        flusher.join().unwrap();
        if let Word::Stored(address) = Word::decode(table.word(PAGE)) {
            assert_eq!(table.fragments(PAGE).newest(), Some(address));
        }
    });
}

/// M3: what is packed, or loaded again, has the address that the flusher has noted, if it has.
#[test]
fn a_copy_has_the_address_that_the_flusher_has_noted() {
    loom::model(|| {
        let address = FlashAddress::new(4096, 64).to_raw();
        let table = table();
        // Each stands for the `flash` of a head node: what there is, and its copy.
        let heads = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        assert!(table.replace(PAGE, 0, pointer(1)));
        let flusher = {
            let (table, heads) = (table.clone(), heads.clone());
            thread::spawn(move || {
                let claim = table.try_claim(PAGE);
                let head = usize::from(table.word(PAGE) == pointer(2));
                claim.is_some_and(|_claim| {
                    heads[head].store(address, Ordering::Relaxed);
                    true
                })
            })
        };
        if let Some(_claim) = table.try_claim(PAGE)
            && table.word(PAGE) == pointer(1)
        {
            heads[1].store(heads[0].load(Ordering::Relaxed), Ordering::Relaxed);
            table.replace(PAGE, pointer(1), pointer(2));
        }
        let is_flushed = flusher.join().unwrap();
        let head = usize::from(table.word(PAGE) == pointer(2));
        assert_eq!(heads[head].load(Ordering::Relaxed) == address, is_flushed);
    });
}

/// M5: the flusher never takes a base that was installed under a hold which is still there.
#[test]
fn a_held_base_is_not_flushed() {
    loom::model(|| {
        let table = table();
        assert!(table.replace(PAGE, 0, pointer(1)));
        let posted = Arc::new(AtomicBool::new(false));
        let splitter = {
            let (table, posted) = (table.clone(), posted.clone());
            thread::spawn(move || {
                table.hold(PAGE);
                assert!(table.replace(PAGE, pointer(1), pointer(2)));
                posted.store(true, Ordering::Release);
                table.release(PAGE);
            })
        };
        let word = table.word_after_take_dirty(PAGE);
        if !table.is_held(PAGE) && word == pointer(2) {
            assert!(posted.load(Ordering::Acquire), "flushed before the separator was posted");
        }
        splitter.join().unwrap();
    });
}

/// What a base adopts or disowns is told of by one fragment: either the flusher takes it from the old base, or it goes
/// over to the new one, under the claim.
fn kin_are_told(claims: bool) {
    loom::model(move || {
        let table = table();
        assert!(table.replace(PAGE, 0, pointer(1)));
        // Stands for the old base's `flash`.
        let flash = Arc::new(AtomicU64::new(0));
        let flusher = {
            let (table, flash) = (table.clone(), flash.clone());
            thread::spawn(move || {
                let Some(_claim) = table.try_claim(PAGE) else { return false };
                let takes = table.word_after_take_dirty(PAGE) == pointer(1);
                if takes {
                    flash.store(1, Ordering::Relaxed);
                }
                takes
            })
        };
        let claim = claims.then(|| table.try_claim(PAGE)).flatten();
        let inherits = if !claims || claim.is_some() {
            let untold = flash.load(Ordering::Relaxed) == 0;
            table.replace(PAGE, pointer(1), pointer(2)) && untold
        } else {
            false
        };
        drop(claim);
        let told = flusher.join().unwrap();
        assert!(!(told && inherits), "told of twice");
        assert!(told || inherits || table.word(PAGE) == pointer(1), "not told of");
    });
}

#[test]
fn the_kin_of_a_base_are_told_of_once() {
    kin_are_told(true);
}

#[test]
#[should_panic(expected = "told of twice")]
fn without_the_claim_they_may_be_told_of_twice() {
    kin_are_told(false);
}

/// L2: who reads a list while its block goes to another finds the block, and addresses of one page or the other.
#[test]
fn a_list_read_beside_a_change_is_a_guess() {
    loom::model(|| {
        let of = |numbers: std::ops::RangeInclusive<u64>| {
            let mut fragments = Fragments::default();
            numbers.for_each(|number| assert!(fragments.push(FlashAddress::new(64 * number, 64))));
            fragments
        };
        let lists = Arc::new((Lists::new(), <[[AtomicU64; INLINE]; 2]>::default()));
        let (before, alone) = (of(1..=3), of(1..=1));
        let writer = {
            let lists = lists.clone();
            thread::spawn(move || {
                let (lists, [one, other]) = &*lists;
                lists.write(one, &before);
                lists.write(one, &alone);
                lists.write(other, &of(11..=13));
            })
        };
        let read = lists.0.guess(&lists.1[0]);
        assert!(read.iter().all(|address| matches!(address.offset() / 64, 1..=3 | 11..=13)));
        writer.join().unwrap();
        let (lists, [one, other]) = &*lists;
        assert_eq!((lists.guess(one), lists.guess(other)), (alone, of(11..=13)));
    });
}

/// L4: who finds as many as are said afterwards has missed none, although a third fragment comes and the second moves behind a link for it.
fn none_is_missed_while_one_is_appended(is_asked: bool) {
    loom::model(move || {
        let table = table();
        table.set_fragments(PAGE, numbered(&[1, 2]));
        let writer = {
            let table = table.clone();
            thread::spawn(move || table.set_fragments(PAGE, numbered(&[1, 2, 3])))
        };
        let mut seen = None;
        match is_asked {
            true => table.look_through(PAGE..PageId(PAGE.0 + 1), |_, found| seen = found),
            false => seen = Some(table.guessed_fragments(PAGE)),
        }
        if let Some(seen) = seen {
            let seen: Vec<_> = seen.iter().map(|address| address.offset() / 64).collect();
            assert!(seen.starts_with(&[1, 2]), "one is missed: {seen:?}");
        }
        writer.join().unwrap();
    });
}

#[test]
fn who_looks_through_the_table_misses_no_fragment() {
    none_is_missed_while_one_is_appended(true);
}

#[test]
#[should_panic(expected = "one is missed")]
fn who_does_not_count_them_may_miss_one() {
    none_is_missed_while_one_is_appended(false);
}

/// L3: who finds the same list twice finds filters that let pass what its fragments hold, whatever the change.
fn filters_are_right_beside(change: fn(&Lists, &[[AtomicU64; INLINE]; 2])) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let lists = Arc::new((Lists::new(), <[[AtomicU64; INLINE]; 2]>::default()));
        lists.0.write(&lists.1[0], &numbered(&[1, 2, 3]));
        let writer = {
            let lists = lists.clone();
            thread::spawn(move || change(&lists.0, &lists.1))
        };
        let read = || lists.0.read(&lists.1[0], || ANYTHING);
        let (read, again) = (read(), read());
        if read == again {
            for (address, filter) in read.with_filters() {
                let number = address.offset() / 64;
                assert!(number < 10, "of another list");
                assert!(filter & 1 << number != 0);
            }
        }
        writer.join().unwrap();
    });
}

/// Fragments of these numbers, whose filters are that, shifted; the first may hold anything.
fn numbered(numbers: &[u64]) -> Fragments {
    let mut fragments = Fragments::default();
    for (index, &number) in numbers.iter().enumerate() {
        let filter = if index == 0 { ANYTHING } else { 1 << number };
        assert!(fragments.push_filtered(FlashAddress::new(64 * number, 64), filter));
    }
    fragments
}

#[test]
fn filters_are_right_beside_one_whose_block_goes_to_another_list() {
    filters_are_right_beside(|lists, [one, other]| {
        lists.write(one, &numbered(&[1]));
        lists.write(other, &numbered(&[11, 12, 14]));
    });
}

#[test]
fn filters_are_right_beside_one_whose_newest_is_replaced() {
    filters_are_right_beside(|lists, [one, _]| drop(lists.write(one, &numbered(&[1, 2, 4]))));
}

/// L3 of the filter in the state word: who finds the same list before and after finds a filter that lets pass what its second fragment holds.
#[test]
fn the_filter_of_the_second_fragment_is_its_own_or_lets_anything_pass() {
    loom::model(|| {
        let table = table();
        table.set_fragments(PAGE, numbered(&[1, 2]));
        let writer = {
            let table = table.clone();
            thread::spawn(move || table.set_fragments(PAGE, numbered(&[1, 3])))
        };
        for number in [2, 3] {
            if let Some(found) = table.fragments_up_to(PAGE, FlashAddress::new(64 * number, 64)) {
                let filter = found.with_filters().nth(1).map(|(_, filter)| filter);
                assert!(filter.is_some_and(|filter| filter & 1 << number != 0), "{found:?}");
            }
        }
        writer.join().unwrap();
        assert_eq!(table.fragments(PAGE), numbered(&[1, 3]));
    });
}
