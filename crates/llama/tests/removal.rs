//! Dead segments and older images are removed piece by piece, or become the next segments. Whatever a crash leaves of them is dead still.

mod harness;

use deuteron_device::simulated::{Moment, Sweep};
use deuteron_device::{CrashPolicy, Directory, FaultKind, FaultPlan, OpenMode, Operation, SimulatedDisk};
use deuteron_llama::Options;
use harness::Harness;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// A store whose next checkpoint has segments and images to remove.
fn superseded(disk: &SimulatedDisk, options: &Options) -> Harness {
    let mut harness = Harness::create(Arc::new(disk.directory()), options).unwrap();
    for _ in 0..3 {
        for key in 0..500 {
            harness.upsert(key);
        }
        harness.flush_all().unwrap();
        harness.checkpoint(|_| {}).unwrap();
    }
    for _ in 0..3 {
        for key in 0..500 {
            harness.upsert(key);
        }
        harness.flush_all().unwrap();
    }
    harness.llama.renew_images();
    harness
}

fn lengths(directory: &dyn Directory) -> BTreeMap<String, u64> {
    let length = |name: &String| directory.open(name, OpenMode::Read, false).unwrap().length().unwrap();
    directory.list().unwrap().into_iter().map(|name| (name.clone(), length(&name))).collect()
}

fn is_segment(name: &str) -> bool {
    name.ends_with(".seg")
}

#[test]
fn what_a_crash_leaves_of_files_that_are_being_removed_hinders_no_opening_and_is_removed_later() {
    let options = Options { spare_percent_max: 0, ..Options::tiny_for_tests() };
    let disk = SimulatedDisk::new(7);
    let mut harness = superseded(&disk, &options);
    let whole = lengths(&disk.directory());
    let ledger = harness.ledger();
    let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
    let noted = Arc::clone(&moments);
    disk.watch(move |moment| noted.lock().unwrap().push(moment));
    harness.checkpoint(|_| {}).unwrap();
    disk.watch(|_| {});
    let moments = std::mem::take(&mut *moments.lock().unwrap());
    let removed =
        |moment: &&Moment| moment.operation == Operation::Remove && whole.contains_key(&moment.file);
    let dead: BTreeSet<&str> = moments.iter().filter(removed).map(|moment| &*moment.file).collect();
    let segments = dead.iter().filter(|name| is_segment(name)).count();
    assert!(segments > 1 && dead.len() - segments > 2, "{dead:?}");

    let (mut sweep, mut cut) = (Sweep::default(), BTreeMap::<bool, BTreeSet<u64>>::new());
    for (number, moment) in moments.iter().enumerate() {
        if !dead.contains(&*moment.file) {
            continue;
        }
        sweep.point();
        let disks = [&moment.before, &moment.during];
        for (disk, policy) in disks.into_iter().flat_map(|disk| CrashPolicy::ALL.map(|policy| (disk, policy)))
        {
            let disk = disk.fork(number as u64);
            let directory = Arc::new(disk.crash(policy));
            for (name, length) in lengths(&*directory) {
                if whole.get(&name).is_some_and(|&whole| length < whole) {
                    assert!(dead.contains(&*name) && length >= 4096, "{name} of {length} bytes");
                    cut.entry(is_segment(&name)).or_default().insert(length);
                }
            }
            let mut harness = Harness::reopen(&ledger, directory, &options).unwrap();
            harness.check_all().unwrap();
            harness.llama.renew_images();
            harness.checkpoint(|_| {}).unwrap();
            let left = lengths(&disk.directory());
            let back: Vec<_> = left.keys().filter(|name| dead.contains(&***name)).collect();
            sweep.recovered(number, if back.is_empty() { Ok(()) } else { Err(format!("{back:?}")) });
        }
    }
    sweep.report("crashes while files are removed");
    let steps = |is_segment: bool| cut.get(&is_segment).map_or(0, BTreeSet::len);
    assert!(steps(true) == 15 && steps(false) > 0, "the lengths that crashes have left: {cut:?}");
}

#[test]
fn space_is_given_back_in_pieces_or_if_that_fails_at_once() {
    let options = Options { spare_percent_max: 0, ..Options::tiny_for_tests() };
    for fault in [None, Some(Operation::Shorten), Some(Operation::Sync)] {
        let disk = SimulatedDisk::new(7);
        let mut harness = superseded(&disk, &options);
        let whole = lengths(&disk.directory());
        // What was last seen of the files that are there, and by how much it was more at most than what was seen next.
        let steps: Arc<Mutex<(u64, u64)>> = Arc::default();
        let (noted, is_failing) = (Arc::clone(&steps), fault.is_some());
        disk.watch(move |moment| {
            if !matches!(moment.operation, Operation::Shorten | Operation::Remove) {
                return;
            }
            let mut steps = noted.lock().unwrap();
            let used = moment.before.used_bytes();
            let is_next = steps.0 > 0;
            if is_next {
                steps.1 = steps.1.max(steps.0.saturating_sub(used));
            }
            steps.0 = used;
        });
        if let Some(fault) = fault {
            // Of the first file that is removed, or in the middle of it: an image has one cut, a segment many.
            let dead = whole.keys().find(|name| is_segment(name)).unwrap();
            disk.set_faults(FaultPlan::new().fail_in(dead, fault, 5, FaultKind::Refuse));
        }
        harness.checkpoint(|_| {}).unwrap();
        assert_eq!((disk.faults_fired(), harness.llama.poisoned()), (u64::from(is_failing), None));
        let (used, step) = *steps.lock().unwrap();
        assert!(used > 0 && if is_failing { step > 4096 } else { step <= 4096 }, "{fault:?}: {step}");
        let left = lengths(&disk.directory());
        let figures = harness.llama.statistics();
        assert_eq!(left.keys().filter(|name| is_segment(name)).count() as u64, figures.segments);
        assert!(left.len() + 3 < whole.len(), "{left:?} of {whole:?}");
        harness.check_all().unwrap();
    }
}

/// It was in no account any more, and so were those behind it.
#[test]
fn a_segment_that_could_not_be_removed_hinders_no_other_and_is_removed_later() {
    let options = Options { spare_percent_max: 0, ..Options::tiny_for_tests() };
    let disk = SimulatedDisk::new(7);
    let mut harness = superseded(&disk, &options);
    let whole = lengths(&disk.directory());
    let segments = || lengths(&disk.directory()).into_keys().filter(|name| is_segment(name)).count() as u64;
    let (before, dead) = (segments(), whole.keys().find(|name| is_segment(name)).unwrap());
    disk.set_faults(FaultPlan::new().fail_in(dead, Operation::Remove, 0, FaultKind::Refuse));
    assert!(harness.checkpoint(|_| {}).is_err());
    assert_eq!((disk.faults_fired(), harness.llama.poisoned()), (1, None));
    assert!(lengths(&disk.directory()).contains_key(dead));
    let figures = harness.llama.statistics();
    assert_eq!(segments(), figures.segments + 1);
    assert!(segments() < before);
    assert!(harness.llama.clean_step().unwrap());
    assert!(!lengths(&disk.directory()).contains_key(dead));
    assert_eq!(segments(), figures.segments);
    harness.check_all().unwrap();
}

#[test]
fn whatever_a_crash_leaves_of_a_file_that_becomes_another_segment_hinders_no_opening() {
    let options = Options::tiny_for_tests();
    let mut sweep = Sweep::default();
    let (mut recycled, mut left, mut number) = (0, BTreeSet::new(), 0);
    for seed in 0..3 {
        let disk = SimulatedDisk::new(seed);
        let mut harness = superseded(&disk, &options);
        for key in 0..600 {
            let moments: Arc<Mutex<Vec<Moment>>> = Arc::default();
            let (noted, is_renamed) = (Arc::clone(&moments), Arc::new(Mutex::new(false)));
            disk.watch(move |moment| {
                // From when a spare is made, or made a segment of, to the sync of the directory; and what becomes durable with it.
                let mut is_renamed = is_renamed.lock().unwrap();
                *is_renamed |= moment.operation == Operation::Rename;
                if *is_renamed
                    || moment.file.ends_with(".spare")
                    || moment.operation == Operation::SyncDirectory
                {
                    noted.lock().unwrap().push(moment);
                }
            });
            harness.upsert(key % 500);
            let ledger = harness.ledger();
            match key % 100 {
                99 => harness.checkpoint(|_| {}).unwrap(),
                _ => harness.flush_all().unwrap(),
            }
            disk.watch(|_| {});
            for moment in moments.lock().unwrap().drain(..) {
                sweep.point();
                number += 1;
                for (disk, policy) in [&moment.before, &moment.during]
                    .into_iter()
                    .flat_map(|disk| CrashPolicy::ALL.map(|policy| (disk, policy)))
                {
                    let disk = disk.fork(number);
                    let directory = Arc::new(disk.crash(policy));
                    left.extend(
                        directory
                            .list()
                            .unwrap()
                            .iter()
                            .filter_map(|name| name.rsplit('.').next().map(str::to_owned)),
                    );
                    let harness = Harness::reopen(&ledger, directory, &options).unwrap();
                    let is_right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                        harness.check_all().unwrap()
                    }));
                    let spares = lengths(&disk.directory())
                        .into_keys()
                        .filter(|name| name.ends_with(".spare"))
                        .count();
                    sweep.recovered(
                        number as usize,
                        if is_right.is_ok() && spares == 0 { Ok(()) } else { Err(format!("{spares}")) },
                    );
                }
            }
        }
        recycled += harness.llama.statistics().segments_recycled;
    }
    sweep.report("crashes while files become other segments");
    assert!(recycled > 10 && left.contains("spare"), "{recycled} of {left:?}");
}
