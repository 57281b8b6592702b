//! Loom models of the numbers of writes: S4, and W3 that it rests on. Run with
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
}

struct Shared {
    under_way: UnderWay,
    stamps: Stamps,
    /// Of each page the number that it was written with last.
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
            let newest = page.load(Ordering::Acquire);
            let above = is_known.then_some(if planted == Planted::Bound { 0 } else { newest });
            let own = if planted == Planted::Place { Some(place) } else { call.place() };
            let number = self.stamps.take_above(own, above).expect("there is room");
            self.taken.lock().expect("no panic").push(number);
            if page.compare_exchange(newest, number, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                assert!(number > newest, "{number} after {newest}");
                return;
            }
        }
    }
}

/// Two threads at these places write to two pages, the second one to a page that it does not know as well.
fn two_write(places: [usize; 2], planted: Planted) {
    loom::model(move || {
        let stamps = Stamps::new(0);
        stamps.raised(stamps.higher_ceiling());
        let (under_way, pages) = (UnderWay::default(), [AtomicU64::new(0), AtomicU64::new(0)]);
        let shared = Arc::new(Shared { under_way, stamps, pages, taken: Mutex::default() });
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

fn is_caught(places: [usize; 2], planted: Planted) -> bool {
    catch_unwind(AssertUnwindSafe(|| two_write(places, planted))).is_err()
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
    assert!(is_caught([0, 1], Planted::Bound));
}

#[test]
fn a_stock_used_by_two_at_once_is_caught() {
    assert!(is_caught([0, 0], Planted::Place));
}
