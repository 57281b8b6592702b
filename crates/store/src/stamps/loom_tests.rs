//! Loom models of the numbers of writes: S4 and S5, and W3 that they rest on. Run with
//! `RUSTFLAGS="--cfg loom" cargo test -p deuteron-store --release --lib loom`.

use super::Stamps;
use crate::under_way::UnderWay;
use loom::sync::atomic::{AtomicU64, Ordering};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

/// What is left out.
#[derive(Clone, Copy, PartialEq)]
enum Planted {
    Nothing,
    /// The bound that a page tells.
    Bound,
    /// Whether a place is the call's own.
    Place,
    /// The floor.
    Floor,
}

/// What a page holds: a bound of the numbers that it has been written with, and, which it does not tell, the highest of them.
fn page_of(bound: u64, highest: u64) -> u64 {
    highest << 32 | bound
}

struct Shared {
    under_way: UnderWay,
    stamps: Stamps,
    /// See [`page_of`].
    pages: [AtomicU64; 2],
    /// All that were given out.
    taken: Mutex<Vec<u64>>,
}

impl Shared {
    /// As `Tree::try_write` does it, of a page whose numbers are known or not.
    fn write(&self, place: usize, page: usize, is_known: bool, planted: Planted) {
        let call = self.under_way.begin_at(place).expect("it is open");
        let page = &self.pages[page];
        loop {
            let found = page.load(Ordering::Acquire);
            let above = is_known.then_some(if planted == Planted::Bound { 0 } else { found as u32 as u64 });
            let own = if planted == Planted::Place { Some(place) } else { call.place() };
            let number = self.stamps.take_above(own, above).expect("there is room");
            self.taken.lock().expect("no panic").push(number);
            if replace(page, found, page_of(number, number)) {
                assert!(number > found >> 32, "{number} after {}", found >> 32);
                return;
            }
        }
    }

    /// And then forgets that there was something.
    fn delete(&self, page: usize, planted: Planted) {
        let page = &self.pages[page];
        loop {
            let found = page.load(Ordering::Acquire);
            let number = match planted {
                Planted::Floor => self.stamps.take(1),
                _ => self.stamps.take_for_deletes(1),
            };
            let number = number.expect("there is room");
            if replace(page, found, page_of(number, number)) {
                assert!(number > found >> 32, "{number} after {}", found >> 32);
                replace(page, page_of(number, number), page_of(0, number));
                return;
            }
        }
    }
}

fn replace(page: &AtomicU64, found: u64, new: u64) -> bool {
    page.compare_exchange(found, new, Ordering::AcqRel, Ordering::Acquire).is_ok()
}

fn shared() -> Arc<Shared> {
    let stamps = Stamps::new(0);
    stamps.raised(stamps.higher_ceiling());
    let (under_way, pages) = (UnderWay::default(), [AtomicU64::new(0), AtomicU64::new(0)]);
    Arc::new(Shared { under_way, stamps, pages, taken: Mutex::default() })
}

/// Two threads at these places write to two pages, the second one to a page that it does not know as well.
fn two_write(places: [usize; 2], planted: Planted) {
    loom::model(move || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let thread = loom::thread::spawn(move || {
            other.write(places[1], 1, true, planted);
            other.write(places[1], 0, planted != Planted::Nothing, planted);
        });
        shared.write(places[0], 0, true, planted);
        shared.write(places[0], 1, true, planted);
        thread.join().expect("no panic");
        let mut taken = shared.taken.lock().expect("no panic").clone();
        taken.sort_unstable();
        assert!(taken.is_sorted_by(|left, right| left < right), "{taken:?}");
    });
}

/// One thread deletes, and the other writes to another page and to this one.
fn one_deletes(planted: Planted) {
    loom::model(move || {
        let shared = shared();
        let other = Arc::clone(&shared);
        let thread = loom::thread::spawn(move || other.delete(0, planted));
        shared.write(0, 1, true, planted);
        shared.write(0, 0, true, planted);
        thread.join().expect("no panic");
    });
}

fn is_caught(model: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(model)).is_err()
}

#[test]
fn the_later_of_two_writes_has_the_higher_number() {
    two_write([0, 1], Planted::Nothing);
}

#[test]
fn a_stock_is_used_by_one_of_those_who_share_its_place() {
    two_write([0, 0], Planted::Nothing);
}

#[test]
fn numbers_of_a_stock_taken_whatever_the_page_has_are_caught() {
    assert!(is_caught(|| two_write([0, 1], Planted::Bound)));
}

#[test]
fn a_stock_used_by_two_at_once_is_caught() {
    assert!(is_caught(|| two_write([0, 0], Planted::Place)));
}

#[test]
fn what_was_deleted_and_forgotten_is_written_with_a_higher_number() {
    one_deletes(Planted::Nothing);
}

#[test]
fn numbers_of_a_stock_from_before_a_delete_are_caught() {
    assert!(is_caught(|| one_deletes(Planted::Floor)));
}
