//! Pages against `BTreeMap`.

use super::batch::{Batch, Upsert};
use super::key::{HEAD_BYTES, KeyParts};
use super::layout::{Layout, Span};
use super::merge::{Merge, Piece};
use super::ranges::Ranges;
use super::run::{Entry, RecordRef, Run};
use super::split::Split;
use super::stretch::{Collector, Stretch};
use super::writer::{Bounds, Plan, RunWriter, delta_bytes};
use super::{Merged, empty_base};
use deuteron_llama::PageId;
use proptest::prelude::*;
use std::collections::BTreeMap;

type Versions = BTreeMap<Vec<u8>, (u64, u64, Option<Vec<u8>>)>;

#[derive(Clone, Debug)]
struct Owned {
    key: Vec<u8>,
    value: Option<Vec<u8>>,
    stamp: u64,
    lsn: u64,
}

/// Keys that share prefixes of several lengths, some longer than a head, with zeros.
fn key() -> impl Strategy<Value = Vec<u8>> {
    let stem = prop::sample::select(vec![&b""[..], b"a", b"customer/0000", b"customer/0001/\0\0"]);
    (stem, prop::collection::vec(prop::sample::select(vec![0u8, 1, b'x', 255]), 1..11))
        .prop_map(|(stem, tail)| [stem, &tail].concat())
}

/// Near each other as a rule, so that a page is narrow, and now and then far; some have their LSN as their stamp.
fn operation() -> impl Strategy<Value = Owned> {
    let value = prop::option::weighted(0.8, prop::collection::vec(any::<u8>(), 0..40));
    let far =
        |by: u64| prop_oneof![30 => Just(0), 1 => Just(by << 31), 1 => Just(by << 36), 1 => Just(by << 50)];
    (key(), value, 1u64..20, 1u64..100, far(1), far(1000), any::<bool>()).prop_map(
        |(key, value, stamp, lsn, far_stamp, far_lsn, is_one)| {
            // Equal (stamp, LSN) means the same operation, so the value must not differ.
            let lsn = far_lsn + lsn * 1000 + value.as_ref().map_or(999, |v| v.len() as u64);
            let stamp = if is_one { lsn } else { far_stamp + stamp };
            let value = value.map(|v| vec![(stamp ^ lsn) as u8; v.len()]);
            Owned { key, value, stamp, lsn }
        },
    )
}

fn delta_of(operations: &mut [Owned]) -> Vec<u8> {
    operations.sort_by(|left, right| left.key.cmp(&right.key));
    let upserts: Vec<_> = operations
        .iter()
        .map(|o| Upsert { key: &o.key, value: o.value.as_deref(), stamp: o.stamp, lsn: o.lsn })
        .collect();
    let batch = Batch::new(&upserts, None);
    let mut bytes = vec![0; batch.bytes()];
    batch.write(&mut bytes, 7);
    bytes
}

fn apply(model: &mut Versions, operations: &[Owned]) {
    for o in operations {
        let slot = model.entry(o.key.clone()).or_insert((0, 0, None));
        if (o.stamp, o.lsn) >= (slot.0, slot.1) {
            *slot = (o.stamp, o.lsn, o.value.clone());
        }
    }
}

fn content(run: &Run<'_>) -> Versions {
    for reverse in [false, true] {
        let count = run.count();
        assert_eq!(taken_over(&Stretch::of_run(run, 0..count, reverse)), count);
        assert_eq!(taken_over(&Stretch::of_run(run, count / 3..count / 2, reverse)), count / 2 - count / 3);
    }
    (0..run.count())
        .map(|index| run.record(index))
        .map(|r| (r.key.to_vec(), (r.stamp, r.lsn, r.value.map(<[u8]>::to_vec))))
        .collect()
}

fn consolidated(base: &[u8], deltas: &[Vec<u8>], forget_below: u64) -> Vec<u8> {
    let runs: Vec<_> = deltas.iter().map(|delta| Run::verify(delta).unwrap()).collect();
    let merge = Merge::new(Run::new(base), runs, forget_below);
    let merged = Merged::new(&merge, usize::MAX);
    let mut bytes = vec![0; merged.bytes()];
    merged.write(&mut bytes);
    bytes
}

proptest! {
    #[test]
    fn a_delta_finds_what_was_put_in(mut operations in prop::collection::vec(operation(), 1..20), probe in key()) {
        let mut model = Versions::new();
        apply(&mut model, &operations);
        let delta = delta_of(&mut operations);
        let run = Run::verify(&delta).unwrap();
        prop_assert_eq!(&content(&run), &model);
        prop_assert_eq!(run.stamp_below(), 7);
        for (index, key) in model.keys().enumerate() {
            prop_assert_eq!(run.search(key), Ok(index));
        }
        let expected = model.keys().position(|k| k >= &probe).unwrap_or(model.len());
        let found = if model.contains_key(&probe) { Ok(expected) } else { Err(expected) };
        prop_assert_eq!(run.search(&probe), found);
    }

    #[test]
    fn consolidation_keeps_the_newest_versions(
        rounds in prop::collection::vec(prop::collection::vec(prop::collection::vec(operation(), 1..6), 0..4), 1..4),
        forget_below in prop::sample::select(vec![0u64, 50_000, u64::MAX]),
    ) {
        let mut model = Versions::new();
        let mut base = empty_base();
        for mut deltas in rounds {
            for operations in &deltas {
                apply(&mut model, operations);
            }
            let deltas: Vec<_> = deltas.iter_mut().map(|operations| delta_of(operations)).collect();
            base = consolidated(&base, &deltas, forget_below);
            let run = Run::verify(&base).unwrap();
            model.retain(|_, (_, lsn, value)| value.is_some() || *lsn >= forget_below);
            prop_assert_eq!(&content(&run), &model);
            for (index, key) in model.keys().enumerate() {
                prop_assert_eq!(run.search(key), Ok(index));
            }
        }
    }

    #[test]
    fn a_split_keeps_every_record_within_its_bounds(
        mut first in prop::collection::vec(operation(), 1..40),
        mut second in prop::collection::vec(operation(), 1..10),
        page_bytes_max in 100usize..700,
    ) {
        let mut model = Versions::new();
        apply(&mut model, &first);
        apply(&mut model, &second);
        let base = consolidated(&empty_base(), &[delta_of(&mut first)], 0);
        let delta = delta_of(&mut second);
        let merge = Merge::new(Run::new(&base), [Run::new(&delta)], 0);
        let Some(split) = Split::new(&Merged::new(&merge, page_bytes_max)) else { return Ok(()) };
        let mut found = Versions::new();
        let last = split.parts().len() - 1;
        for (index, part) in split.parts().iter().enumerate() {
            let right = if index < last { PageId(index as u64 + 100) } else { PageId::NONE };
            let mut bytes = vec![0; split.bytes(index)];
            split.write(index, right, &mut bytes);
            let run = Run::verify(&bytes).unwrap();
            prop_assert_eq!(run.low(), part.low.as_slice());
            prop_assert_eq!(run.right(), right);
            prop_assert_eq!(run.high(), split.parts().get(index + 1).map(|next| next.low.as_slice()));
            prop_assert!(run.count() == 1 || run.bytes() <= page_bytes_max + 200);
            // Of keys within the bounds and without.
            for key in model.keys() {
                prop_assert!(run.expected_at(key).is_none_or(|at| at >= run.slots().end && at <= run.bytes()));
            }
            // A second consolidation, now with a shared prefix, keeps the content too.
            prop_assert_eq!(content(&Run::new(&consolidated(&bytes, &[], 0))), content(&run));
            found.extend(content(&run));
        }
        prop_assert_eq!(found, model);
    }

    /// Pages whose bounds share a prefix, changed by deltas of one key each and of several, in any order, and split again.
    #[test]
    fn pages_with_a_prefix_are_changed_and_split_like_others(
        mut first in prop::collection::vec(operation(), 20..60),
        second in prop::collection::vec(operation(), 0..12),
        singles in prop::bool::ANY,
    ) {
        let base = consolidated(&empty_base(), &[delta_of(&mut first)], 0);
        let merge = Merge::new(Run::new(&base), [], 0);
        let Some(split) = Split::new(&Merged::new(&merge, 400)) else { return Ok(()) };
        for index in 0..split.parts().len() {
            let mut page = vec![0; split.bytes(index)];
            split.write(index, PageId(7), &mut page);
            let run = Run::verify(&page).unwrap();
            let mut model = content(&run);
            let within = |o: &&Owned| o.key.as_slice() >= run.low() && run.high().is_none_or(|high| o.key.as_slice() < high);
            let mut operations: Vec<Owned> = second.iter().filter(within).cloned().collect();
            // Some that are there already, too.
            operations.extend(first.iter().filter(within).step_by(3).map(|o| Owned { stamp: 30, value: Some(b"new".to_vec()), ..o.clone() }));
            apply(&mut model, &operations);
            let size = if singles { 1 } else { 5 };
            let deltas: Vec<_> = operations.chunks_mut(size).map(delta_of).collect();
            let changed = consolidated(&page, &deltas, 0);
            prop_assert_eq!(&content(&Run::verify(&changed).unwrap()), &model);
            let runs: Vec<_> = deltas.iter().map(|delta| Run::new(delta)).collect();
            let merge = Merge::new(run, runs, 0);
            let Some(again) = Split::new(&Merged::new(&merge, 150)) else { continue };
            let mut found = Versions::new();
            for index in 0..again.parts().len() {
                let mut bytes = vec![0; again.bytes(index)];
                again.write(index, PageId(8), &mut bytes);
                let part = Run::verify(&bytes).unwrap();
                prop_assert_eq!(part.low(), again.parts()[index].low.as_slice());
                let high = again.parts().get(index + 1).map_or(run.high(), |next| Some(&next.low));
                prop_assert_eq!(part.high(), high);
                found.extend(content(&part));
            }
            prop_assert_eq!(found, model);
        }
    }

    /// Of a page in the middle, at an edge, and of the only one.
    #[test]
    fn parts_that_are_judged_by_their_own_prefixes_take_what_was_expected(
        mut first in prop::collection::vec(operation(), 2..60),
        mut second in prop::collection::vec(operation(), 1..20),
        page_bytes_max in 100usize..700,
        cuts in prop::collection::vec(0usize..8, 2),
    ) {
        let mut page = empty_base();
        for (operations, part) in [&mut first, &mut second].into_iter().zip(&cuts) {
            let run = Run::new(&page);
            operations.retain(|o| o.key.as_slice() >= run.low() && run.high().is_none_or(|high| o.key.as_slice() < high));
            if operations.is_empty() {
                break;
            }
            let mut model = content(&run);
            apply(&mut model, operations);
            let delta = delta_of(operations);
            let merge = Merge::new(run, [Run::new(&delta)], 0);
            let ranges = Ranges::new(&merge, &Bounds::of(&run), merge.layout().shape, page_bytes_max);
            let split = Split::of_parts(&merge, merge.layout(), ranges.parts());
            let (mut found, mut from, mut pages) = (Versions::new(), 0, Vec::new());
            for index in 0..split.parts().len() {
                let mut bytes = vec![0; split.bytes(index)];
                split.write(index, PageId(7), &mut bytes);
                let run = Run::verify(&bytes).unwrap();
                let counted = super::counted(&run, page_bytes_max);
                prop_assert_eq!(counted, ranges.bytes_of(from..from + run.count()));
                prop_assert!(run.count() == 1 || counted <= page_bytes_max);
                from += run.count();
                found.extend(content(&run));
                pages.push(bytes);
            }
            prop_assert!(pages.len() > 1 || model.len() < 2);
            prop_assert_eq!(found, model);
            page = pages.swap_remove(part % pages.len());
        }
    }

    #[test]
    fn damage_is_found_or_harmless(mut operations in prop::collection::vec(operation(), 1..8), at in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut base = consolidated(&empty_base(), &[delta_of(&mut operations)], 0);
        let at = at.index(base.len());
        base[at] ^= flip;
        // Either refused, or every record can be read without a panic.
        if let Ok(run) = Run::verify(&base) {
            content(&run);
        }
    }
}

/// Keys at random, and ascending ones, whose bounds are much shorter than they.
#[test]
fn records_lie_about_where_they_are_expected() {
    for stem in [&b""[..], b"customer/0000/"] {
        for factor in [1, 0x9e37_79b9_7f4a_7c15u64] {
            let key = |number: u64| [stem, &number.wrapping_mul(factor).to_be_bytes()].concat();
            let of = |number| Owned { key: key(number), value: Some(vec![7; 8]), stamp: 1, lsn: 1 };
            let delta = delta_of(&mut (0..2000).map(of).collect::<Vec<_>>());
            let base = empty_base();
            let merge = Merge::new(Run::new(&base), [Run::new(&delta)], 0);
            let split = Split::new(&Merged::new(&merge, 4096)).unwrap();
            let (mut near, mut all) = (0, 0);
            // But the two at the ends.
            for part in 1..split.parts().len() - 1 {
                let mut bytes = vec![0; split.bytes(part)];
                split.write(part, PageId(7), &mut bytes);
                let run = Run::verify(&bytes).unwrap();
                for index in 0..run.count() {
                    let expected = run.expected_at(&run.record(index).key.to_vec());
                    all += 1;
                    near +=
                        usize::from(expected.is_some_and(|at| at.abs_diff(run.record_start(index)) <= 128));
                }
            }
            assert!(all > 1000 && 10 * near > 9 * all, "{near} of {all}, {factor:x} behind {stem:?}");
        }
    }
}

#[test]
fn an_ascending_load_fills_its_pages() {
    let mut base = empty_base();
    let mut pages = 0;
    for number in 0u64..2000 {
        let key = number.to_be_bytes().to_vec();
        let value = Some(vec![7; 20]);
        let delta = delta_of(&mut [Owned { key, value, stamp: number, lsn: 100 * number }]);
        let merge = Merge::new(Run::new(&base), [Run::new(&delta)], 0);
        if Merged::new(&merge, 4096).bytes() <= 4096 {
            base = consolidated(&base, &[delta], 0);
            continue;
        }
        let split = Split::new(&Merged::new(&merge, 4096)).unwrap();
        assert_eq!(split.parts().len(), 2);
        assert!(split.bytes(0) > 3600, "left page of {} bytes", split.bytes(0));
        let mut bytes = vec![0; split.bytes(1)];
        split.write(1, PageId::NONE, &mut bytes);
        base = bytes;
        pages += 1;
    }
    assert!(pages > 10);
}

#[test]
fn a_record_larger_than_a_page_gets_a_part_of_its_own() {
    let mut operations: Vec<_> = (0u8..9)
        .map(|key| Owned {
            key: vec![key],
            value: Some(vec![key; if key == 4 { 1 << 20 } else { 30 }]),
            stamp: 1,
            lsn: 1,
        })
        .collect();
    let delta = delta_of(&mut operations);
    let base = empty_base();
    let merge = Merge::new(Run::new(&base), [Run::new(&delta)], 0);
    let split = Split::new(&Merged::new(&merge, 4096)).unwrap();
    let counts: Vec<_> = (0..split.parts().len())
        .map(|index| {
            let mut bytes = vec![0; split.bytes(index)];
            split.write(index, PageId::NONE, &mut bytes);
            Run::verify(&bytes).unwrap().count()
        })
        .collect();
    assert_eq!(counts, [4, 1, 4]);
}

#[test]
fn long_shared_prefixes_are_stored_once() {
    let stem = "a/rather/long/path/that/every/key/of/the/page/begins/with/".repeat(10);
    let mut operations: Vec<_> = (0u32..200)
        .map(|key| Owned {
            key: format!("{stem}{key:08}").into_bytes(),
            value: Some(vec![1; 8]),
            stamp: 1,
            lsn: 1,
        })
        .collect();
    let delta = delta_of(&mut operations);
    assert!(delta.len() < 200 * 60 + stem.len() * 2, "{} bytes", delta.len());
    let base = empty_base();
    let merge = Merge::new(Run::new(&base), [Run::new(&delta)], 0);
    let split = Split::new(&Merged::new(&merge, 4096)).unwrap();
    // A page in the middle, whose two bounds share the prefix.
    assert!(split.bytes(1) < 4096 + 2 * stem.len(), "{} bytes", split.bytes(1));
}

/// The page of this merge as one base, and cut into small ones.
fn write_all(merge: &Merge<'_>) {
    let merged = Merged::new(merge, 256);
    let mut bytes = vec![0; merged.bytes()];
    merged.write(&mut bytes);
    let whole = content(&Run::verify(&bytes).unwrap());
    let Some(split) = Split::new(&merged) else { return };
    let mut found = Versions::new();
    for index in 0..split.parts().len() {
        let mut bytes = vec![0; split.bytes(index)];
        split.write(index, PageId(9), &mut bytes);
        found.extend(content(&Run::verify(&bytes).unwrap()));
    }
    assert_eq!(found, whole);
}

/// Does with a base what is done with pages: it is changed, written, cut, and read to and fro.
fn work_with_base(base: Run<'_>) {
    let keys: Vec<Vec<u8>> =
        (0..base.count()).step_by(3).map(|index| base.record(index).key.to_vec()).collect();
    let stamp = base.newest_stamp().saturating_add(1);
    let upserts: Vec<_> = (keys.iter().filter(|key| !key.is_empty()))
        .map(|key| Upsert { key, value: (key.len() % 3 > 0).then_some(b"new"), stamp, lsn: stamp })
        .collect();
    let mut delta = Vec::new();
    if !upserts.is_empty() {
        let batch = Batch::new(&upserts, base.high());
        delta.resize(batch.bytes(), 0);
        batch.write(&mut delta, base.newest_stamp());
    }
    let deltas = (!delta.is_empty()).then(|| Run::verify(&delta).unwrap());
    assert!(deltas.iter().all(|delta| delta.verify_within(&base).is_ok()));
    for forget_below in [0, u64::MAX] {
        let merge = Merge::new(base, deltas, forget_below);
        write_all(&merge);
        let mut records = 0;
        let mut count = |reverse, by: isize| {
            merge.visit(reverse, |piece| {
                let of_base = |range| Stretch::of_run(&base, range, reverse);
                let stretch = match piece {
                    Piece::Base(range) => of_base(range),
                    Piece::Record(record) => Stretch::of_one(record),
                };
                records += by * taken_over(&stretch) as isize;
                true
            })
        };
        assert!(count(false, 1) && count(true, -1));
        assert_eq!(records, 0);
    }
}

/// Has a stretch taken over as a scan does, and compares that with what its records are one by one. How many there are.
fn taken_over(stretch: &Stretch<'_>) -> usize {
    type Known = (usize, u64, Option<Vec<u8>>);
    struct Check<'s>(&'s [u8], &'s mut Vec<Known>);
    impl Collector for Check<'_> {
        fn collect<'a>(self, entries: impl ExactSizeIterator<Item = Entry<'a>>) {
            self.1.extend(entries.map(|entry| {
                let there = |value: &[u8]| self.0[entry.value_at..].starts_with(value);
                assert!(entry.value.is_none_or(there), "{entry:?}");
                (entry.key_bytes, entry.stamp, entry.value.map(<[u8]>::to_vec))
            }));
        }
    }
    let (mut expected, mut keys) = (Vec::new(), Vec::new());
    stretch.visit(|record| {
        expected.push((record.key_bytes(), record.stamp, record.value.map(<[u8]>::to_vec)));
        record.append_key_to(&mut keys);
    });
    let mut known = Vec::new();
    stretch.collect(Check(stretch.bytes(), &mut known));
    assert_eq!(known, expected);
    assert!(stretch.keys_bytes_max() >= keys.len());
    let mut room = vec![0xAA; keys.len() + HEAD_BYTES];
    stretch.write_keys(known.iter().map(|(key_bytes, ..)| *key_bytes), &mut room);
    assert!(room.starts_with(&keys));
    known.len()
}

/// The same with a delta, which may lie on any page that ends where it says.
fn work_with_delta(delta: &[u8]) {
    let run = Run::verify(delta).unwrap();
    let _ = super::run::filter_of_delta(delta);
    let united = super::batch::unite_deltas(&[delta, delta]);
    assert_eq!(
        united.map(|united| content(&Run::verify(&united).unwrap())),
        (run.count() > 0).then(|| content(&run))
    );
    let bounds = Bounds { low: b"", high: run.high(), right: PageId(3) };
    let base = super::empty_base_within(&bounds);
    let base = Run::verify(&base).unwrap();
    if run.verify_within(&base).is_ok() {
        write_all(&Merge::new(base, [run], 0));
    }
}

/// Pages as they are read: whatever they say of themselves, they are found damaged, or can be worked with.
#[test]
fn fuzz_pages() {
    let operations = |from: u64| -> Vec<Owned> {
        (from..from + 20)
            .map(|n| Owned {
                key: format!("customer/{n:04}").into_bytes(),
                value: (n % 5 > 0).then(|| vec![n as u8; n as usize % 64]),
                stamp: n,
                lsn: 100 + n,
            })
            .collect()
    };
    let deltas = [delta_of(&mut operations(1)), delta_of(&mut operations(15))];
    let base = consolidated(&empty_base(), &deltas, 0);
    let mut far = operations(5);
    far.iter_mut().for_each(|operation| operation.stamp <<= 45);
    let far = delta_of(&mut far);
    let mid = consolidated(&base, &[delta_of(&mut operations(1 << 35))], 0);
    let wide = consolidated(&base, std::slice::from_ref(&far), 0);
    let merge = Merge::new(Run::new(&base), [], 0);
    let split = Split::new(&Merged::new(&merge, 1024)).unwrap();
    let mut leftmost = vec![0; split.bytes(0)];
    split.write(0, PageId(3), &mut leftmost);
    assert_eq!(leftmost[0], 3);
    let corpus = [&deltas[..], &[base, mid, far, wide, leftmost, empty_base()]].concat();
    deuteron_fuzz::Fuzz::new("bwtree-page", &corpus, 100_000).run(
        |_| {},
        |bytes| {
            let Ok(run) = Run::verify(bytes) else { return false };
            // What passes is as good as what was written.
            let keys: Vec<Vec<u8>> = (0..run.count()).map(|index| run.record(index).key.to_vec()).collect();
            for (index, key) in keys.iter().enumerate() {
                assert_eq!(run.search(key), Ok(index));
            }
            match run.is_base() {
                true => work_with_base(run),
                false => work_with_delta(bytes),
            }
            true
        },
    );
}

/// A page of some records, one of them with this value, and how large it is.
fn page_with(base: &[u8], value: &[u8]) -> Vec<u8> {
    let mut operations: Vec<_> = (0u64..20)
        .map(|number| Owned {
            key: number.to_be_bytes().to_vec(),
            value: Some(if number == 7 { value.to_vec() } else { vec![1; 8] }),
            stamp: 100 + number + value.len() as u64,
            lsn: 100 + number + value.len() as u64,
        })
        .collect();
    let mut model = Versions::new();
    apply(&mut model, &operations);
    let page = consolidated(base, &[delta_of(&mut operations)], 0);
    assert_eq!(content(&Run::verify(&page).unwrap()), model);
    page
}

#[test]
fn a_record_of_a_narrow_page_takes_nine_bytes_besides_key_and_value() {
    let page = page_with(&empty_base(), &[2; 8]);
    // The key as its head, offset, lengths, stamp, value; the LSN is the stamp.
    assert_eq!(page.len(), 32 + 8 + 20 * (8 + 2 + 3 + 4 + 8));
}

#[test]
fn a_page_is_wide_while_it_has_a_long_record() {
    let narrow = page_with(&empty_base(), &[2; 8]);
    let wide = page_with(&narrow, &[3; 70_000]);
    assert_eq!((narrow[0], wide[0]), (2, 1));
    assert_eq!(wide.len(), 32 + 20 * (8 + 4 + 22 + 8) - 8 + 70_000);
    assert_eq!(page_with(&wide, &[4; 70_001]).len(), wide.len() + 1);
    // The same keys, newer, and short again.
    let mut operations =
        vec![Owned { key: 7u64.to_be_bytes().to_vec(), value: Some(vec![5; 8]), stamp: 99_999, lsn: 99_999 }];
    assert_eq!(consolidated(&wide, &[delta_of(&mut operations)], 0).len(), narrow.len());
}

#[test]
fn a_page_that_is_too_long_is_wide() {
    let mut operations: Vec<_> = (0u64..900)
        .map(|number| Owned {
            key: number.to_be_bytes().to_vec(),
            value: Some(vec![1; 64]),
            stamp: 5,
            lsn: 5,
        })
        .collect();
    let (few, many) = operations.split_at_mut(700);
    let few = consolidated(&empty_base(), &[delta_of(few)], 0);
    assert_eq!((few[0], few.len()), (2, 32 + 700 * (8 + 2 + 3 + 64)));
    let many = consolidated(&few, &[delta_of(many)], 0);
    assert_eq!((many[0], many.len()), (1, 32 + 900 * (8 + 4 + 22 + 64)));
    assert_eq!(Run::verify(&many).unwrap().count(), 900);
    // Its parts are narrow.
    let merge = Merge::new(Run::new(&many), [], 0);
    let split = Split::new(&Merged::new(&merge, 4096)).unwrap();
    for index in 0..split.parts().len() {
        let mut bytes = vec![0; split.bytes(index)];
        split.write(index, PageId::NONE, &mut bytes);
        assert_eq!(Run::verify(&bytes).unwrap().bytes() / 4096, 0);
        assert_eq!(bytes[0], 2);
    }
}

/// What is on disks must stay readable: two runs of each format, byte for byte.
#[test]
fn formats_stay_as_they_are() {
    let delta_of = |layout: Option<Layout>, far: u64| {
        let record = |key, value, stamp, lsn| RecordRef { key: KeyParts::whole(key), stamp, lsn, value };
        let records = [record(b"ka", Some(&b"v"[..]), 257, 770 + far), record(b"kbb", None, 259, 772)];
        let layout = layout.unwrap_or(Span::of(records.into_iter()).layout());
        let bytes = records.iter().map(|record| layout.shape.bytes_of(record, 1)).sum();
        let mut bytes = vec![0; delta_bytes(layout.shape, 1, Some(b"kz"), bytes)];
        let mut writer = RunWriter::delta(&mut bytes, layout, 2, b"k", Some(b"kz"), 11);
        records.iter().for_each(|record| writer.push(record));
        writer.finish();
        bytes
    };
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let base_of = |layout: Layout, low: &[u8]| {
        let bounds = Bounds { low, high: Some(b"kz"), right: PageId(9) };
        let record = RecordRef { key: KeyParts::whole(b"kc"), stamp: 258, lsn: 258, value: Some(b"w") };
        let plan = Plan::with_prefix(&bounds, layout, 1, |shape, prefix| shape.bytes_of(&record, prefix));
        let mut bytes = vec![0; plan.bytes];
        let mut writer = RunWriter::base(&mut bytes, plan, 1, &bounds);
        writer.push(&record);
        writer.finish();
        bytes
    };
    let runs = [
        delta_of(Some(Layout::WIDE), 0),
        delta_of(None, 0),
        delta_of(None, 1 << 40),
        base_of(Layout::WIDE, b"k"),
        base_of(
            Span::NONE
                .with(&RecordRef { key: KeyParts::whole(b"kc"), stamp: 258, lsn: 258, value: None })
                .layout(),
            b"k",
        ),
        base_of(Layout::WIDE, b""),
    ];
    let expected: [&str; 6] = [
        "010101000200000003010000000000000b0000000000000002006b6b7a61000000000000006262000000000000350000004c000000010100000000000002030000000000000100000001007603010000000000000403000000000000ffffffff0200",
        "02e101000200000003010000000000000b0000000000000002006b6b7a010100000000000002030000000000006100000000000000626200000000000041004d00010001000000000000000076ffff020200000002000000",
        "02f101000200000003010000000000000b0000000000000002006b6b7a010100000000000004030000000000006100000000000000626200000000000041005100010001000000000000feffffffff0076ffff02020000000000000000000000",
        "01020100010000000201000000000000090000000000000002000100000000006b6b7a63000000000000002f0000000201000000000000020100000000000001000000010077",
        "02820100010000000201000000000000090000000000000002000100000000006b6b7a63000000000000002d0001000177",
        "03020100010000000201000000000000090000000000000002000000000000006b7a63000000000000002e0000000201000000000000020100000000000001000000010077",
    ];
    for (run, expected) in runs.iter().zip(expected) {
        assert_eq!(hex(run), expected);
        let run = Run::verify(run).unwrap();
        let stamps: Vec<_> =
            (0..run.count()).map(|index| (run.record(index).key.to_vec(), run.record(index).stamp)).collect();
        match run.is_base() {
            true => assert_eq!(stamps, [(b"kc".to_vec(), 258)]),
            false => assert_eq!(stamps, [(b"ka".to_vec(), 257), (b"kbb".to_vec(), 259)]),
        }
    }
}
