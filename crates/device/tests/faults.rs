//! What a plan of faults makes of operations on the simulated disk.

use deuteron_device::{
    CrashPolicy, DeviceError, Directory, FaultKind, FaultPlan, File, OpenMode, Operation, SimulatedDirectory,
    SimulatedDisk,
};
use std::sync::Arc;

fn file_on(disk: &SimulatedDisk) -> Arc<dyn File> {
    let file = disk.directory().open("a", OpenMode::CreateNew, false).unwrap();
    disk.directory().sync().unwrap();
    file
}

fn content(directory: &SimulatedDirectory, name: &str) -> Vec<u8> {
    let file = directory.open(name, OpenMode::Read, false).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Uses every operation of the traits.
fn workload(directory: &SimulatedDirectory) -> Result<(), DeviceError> {
    let _lock = directory.lock()?;
    let file = directory.open("a", OpenMode::CreateNew, false)?;
    file.allocate(8192)?;
    file.write_at(&[1; 4096], 0)?;
    file.sync()?;
    file.write_durable_at(&[2; 4096], 4096)?;
    directory.sync()?;
    file.read_at(&mut [0; 100], 0)?;
    file.length()?;
    file.shorten(4096)?;
    directory.rename("a", "b")?;
    directory.list()?;
    directory.remove("b")?;
    directory.sync()
}

#[test]
fn each_operation_of_each_kind_can_be_made_to_fail() {
    let disk = SimulatedDisk::new(1);
    workload(&disk.directory()).unwrap();
    for operation in Operation::ALL {
        assert!(disk.count(operation) > 0, "{operation:?}");
        for nth in 0..disk.count(operation) {
            for kind in [FaultKind::Refuse, FaultKind::Full, FaultKind::Partial, FaultKind::Lose] {
                let disk = SimulatedDisk::new(1);
                disk.set_faults(FaultPlan::new().fail(operation, nth, kind));
                let error = workload(&disk.directory()).unwrap_err();
                assert_eq!((error.operation, error.is_full()), (operation, kind == FaultKind::Full));
                assert_eq!(disk.faults_fired(), 1);
            }
        }
    }
}

#[test]
fn the_machine_stops_at_each_change_and_stays_stopped() {
    let disk = SimulatedDisk::new(1);
    workload(&disk.directory()).unwrap();
    assert_eq!(disk.operations(), 10);
    for count in 0..disk.operations() {
        let disk = SimulatedDisk::new(1);
        let directory = disk.directory();
        disk.set_faults(FaultPlan::new().crash_after(count));
        assert!(workload(&directory).unwrap_err().is_stopped());
        assert!(directory.list().unwrap_err().is_stopped());
        assert!(disk.is_stopped());
        assert_eq!(disk.operations(), count);
        let survivor = disk.crash(CrashPolicy::Random);
        survivor.list().unwrap();
        assert_eq!(disk.operations(), 0);
    }
}

/// The machine stops in the middle of a durable write: it may have reached the disk or not.
#[test]
fn the_operation_at_which_the_machine_stops_is_in_doubt() {
    let disk = SimulatedDisk::new(1);
    let file = file_on(&disk);
    disk.set_faults(FaultPlan::new().crash_after(disk.operations()));
    assert!(file.write_durable_at(b"in doubt", 0).unwrap_err().is_stopped());
    assert_eq!(content(&disk.fork(0).crash(CrashPolicy::LoseAll), "a"), b"");
    assert_eq!(content(&disk.fork(0).crash(CrashPolicy::KeepAll), "a"), b"in doubt");
}

/// The story of the failed sync that PostgreSQL met: the error is reported once, later syncs succeed, reads go on
/// showing the data, and a crash shows that it never was durable.
#[test]
fn a_failed_sync_may_lose_data_that_reads_still_show() {
    let disk = SimulatedDisk::new(1);
    let file = file_on(&disk);
    file.write_at(b"first", 0).unwrap();
    disk.set_faults(FaultPlan::new().fail(Operation::Sync, 0, FaultKind::Lose));
    file.sync().unwrap_err();
    file.write_at(b"second", 5).unwrap();
    file.sync().unwrap();
    assert_eq!(content(&disk.directory(), "a"), b"firstsecond");
    assert_eq!(content(&disk.crash(CrashPolicy::KeepAll), "a"), b"\0\0\0\0\0second");
}

#[test]
fn a_failed_directory_sync_may_lose_entries_that_listings_still_show() {
    let disk = SimulatedDisk::new(1);
    let directory = disk.directory();
    directory.open("a", OpenMode::CreateNew, false).unwrap();
    disk.set_faults(FaultPlan::new().fail(Operation::SyncDirectory, 0, FaultKind::Lose));
    directory.sync().unwrap_err();
    directory.sync().unwrap();
    assert_eq!(directory.list().unwrap(), ["a"]);
    assert!(disk.crash(CrashPolicy::KeepAll).list().unwrap().is_empty());
}

#[test]
fn a_partial_write_leaves_its_first_half() {
    let disk = SimulatedDisk::new(1);
    let file = file_on(&disk);
    disk.set_faults(FaultPlan::new().fail_in("a", Operation::Write, 1, FaultKind::Partial));
    file.write_at(&[1; 8], 0).unwrap();
    file.write_at(&[2; 8], 0).unwrap_err();
    assert_eq!(content(&disk.directory(), "a"), [2, 2, 2, 2, 1, 1, 1, 1]);
}

#[test]
fn a_partial_sync_makes_something_durable() {
    let mut lengths = std::collections::BTreeSet::new();
    for seed in 0..50 {
        let disk = SimulatedDisk::new(seed);
        let file = file_on(&disk);
        file.write_at(&[1; 512], 0).unwrap();
        file.write_at(&[2; 512], 512).unwrap();
        disk.set_faults(FaultPlan::new().fail(Operation::Sync, 0, FaultKind::Partial));
        file.sync().unwrap_err();
        lengths.insert(content(&disk.crash(CrashPolicy::LoseAll), "a").len());
    }
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [0, 512, 1024]);
}

#[test]
fn faults_can_be_bound_to_a_file_and_last_for_ever() {
    let disk = SimulatedDisk::new(1);
    let directory = disk.directory();
    let (a, b) = (file_on(&disk), directory.open("b", OpenMode::CreateNew, false).unwrap());
    disk.set_faults(FaultPlan::new().fail_in("b", Operation::Write, 1, FaultKind::Refuse).fail_from(
        Operation::Sync,
        1,
        FaultKind::Refuse,
    ));
    for _ in 0..5 {
        a.write_at(b"x", 0).unwrap();
    }
    b.write_at(b"x", 0).unwrap();
    b.write_at(b"x", 0).unwrap_err();
    b.write_at(b"x", 0).unwrap();
    a.sync().unwrap();
    for _ in 0..3 {
        a.sync().unwrap_err();
    }
    assert_eq!(disk.faults_fired(), 4);
}

#[test]
fn a_full_disk_refuses_growth_only_and_heals_when_room_is_made() {
    let disk = SimulatedDisk::new(1);
    let directory = disk.directory();
    let file = file_on(&disk);
    disk.set_capacity(Some(8192));
    file.allocate(4096).unwrap();
    let other = directory.open("b", OpenMode::CreateNew, false).unwrap();
    other.write_at(&[1; 4096], 0).unwrap();
    assert_eq!(disk.used_bytes(), 8192);
    assert!(file.write_at(&[1], 4096).unwrap_err().is_full());
    assert!(file.write_durable_at(&[1; 2], 4095).unwrap_err().is_full());
    assert!(file.allocate(5000).unwrap_err().is_full());
    file.write_at(&[1; 4096], 0).unwrap();
    directory.remove("b").unwrap();
    file.allocate(5000).unwrap();
}

#[test]
fn flipped_bits_stay_flipped() {
    let disk = SimulatedDisk::new(1);
    let file = file_on(&disk);
    file.write_durable_at(&[0; 100], 0).unwrap();
    file.write_at(&[0; 100], 100).unwrap();
    disk.flip_bits("a", 50, 0b100).unwrap();
    disk.flip_bits("a", 150, 0b1).unwrap();
    assert!(disk.flip_bits("a", 200, 1).is_err());
    assert!(disk.flip_bits("none", 0, 1).unwrap_err().is_not_found());
    let seen = content(&disk.directory(), "a");
    assert_eq!((seen[50], seen[150]), (4, 1));
    file.sync().unwrap();
    assert_eq!(content(&disk.crash(CrashPolicy::LoseAll), "a"), seen);
}

#[test]
fn what_cannot_be_cut_is_removed_all_the_same() {
    for (operation, nth) in [
        (Operation::Length, 0),
        (Operation::Shorten, 0),
        (Operation::Shorten, 2),
        (Operation::Sync, 0),
        (Operation::Sync, 1),
    ] {
        for kind in [FaultKind::Refuse, FaultKind::Full, FaultKind::Partial, FaultKind::Lose] {
            let disk = SimulatedDisk::new(nth);
            let directory = disk.directory();
            let file = directory.open("a", OpenMode::CreateNew, false).unwrap();
            file.allocate(5 * 4096).unwrap();
            disk.set_faults(FaultPlan::new().fail(operation, nth, kind));
            directory.remove_in_pieces("a", file, 4096).unwrap();
            assert_eq!((disk.faults_fired(), disk.count(Operation::Remove), disk.used_bytes()), (1, 1, 0));
            let cuts = if operation == Operation::Length { 0 } else { nth + 1 };
            assert_eq!(disk.count(Operation::Shorten), cuts, "none after the one that failed");
        }
    }
    // What is told is that the removal failed.
    let disk = SimulatedDisk::new(1);
    let file = disk.directory().open("a", OpenMode::CreateNew, false).unwrap();
    file.allocate(5 * 4096).unwrap();
    disk.set_faults(FaultPlan::new().fail(Operation::Remove, 0, FaultKind::Refuse));
    let error = disk.directory().remove_in_pieces("a", file, 4096).unwrap_err();
    assert_eq!((error.operation, error.file.as_str()), (Operation::Remove, "a"));
    assert_eq!(disk.directory().list().unwrap(), ["a"]);
}
