//! What lies on the disk: nothing of what was written, nothing that may be moved, and nothing that a torn write takes along.

use deuteron_device::simulated::Random;
use deuteron_device::{
    BLOCK_BYTES, CrashPolicy, Directory, FaultPlan, MemoryDirectory, OpenMode, SimulatedDisk,
};
use deuteron_encryption::{DAMAGED, EncryptedDirectory, EncryptionError, Key, Keys, Rotation, UNIT_BYTES};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

fn key(number: u8) -> Key {
    Key::from_bytes([number; 32])
}

fn over(disk: &MemoryDirectory, keys: Keys) -> EncryptedDirectory {
    EncryptedDirectory::new(Arc::new(disk.clone()), keys).unwrap()
}

fn raw(disk: &MemoryDirectory, name: &str) -> Vec<u8> {
    let file = disk.open(name, OpenMode::Read, false).unwrap();
    let mut bytes = vec![0; file.length().unwrap() as usize];
    file.read_at(&mut bytes, 0).unwrap();
    bytes
}

fn put(disk: &MemoryDirectory, name: &str, at: usize, bytes: &[u8]) {
    disk.open(name, OpenMode::ReadWrite, false).unwrap().write_at(bytes, at as u64).unwrap();
}

fn block(directory: &EncryptedDirectory, name: &str, number: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK_BYTES];
    let file = directory.open(name, OpenMode::Read, false).unwrap();
    file.read_at(&mut bytes, number * BLOCK_BYTES as u64).unwrap();
    bytes
}

fn write(directory: &EncryptedDirectory, name: &str, number: u64, byte: u8) {
    let mode = if directory.list().unwrap().contains(&name.to_owned()) {
        OpenMode::ReadWrite
    } else {
        OpenMode::CreateNew
    };
    let file = directory.open(name, mode, false).unwrap();
    file.write_at(&[byte; BLOCK_BYTES], number * BLOCK_BYTES as u64).unwrap();
}

#[test]
fn nothing_that_was_written_shows_and_no_nonce_comes_twice() {
    let disk = MemoryDirectory::new();
    let directory = over(&disk, Keys::new(key(1)));
    let file = directory.open("a", OpenMode::CreateNew, false).unwrap();
    let mut nonces = BTreeSet::new();
    for round in 0..50 {
        // The same block again and again, in place.
        file.write_at(&[7; 2 * BLOCK_BYTES], 0).unwrap();
        let bytes = raw(&disk, "a");
        assert!(!bytes.windows(8).any(|window| window == [7; 8]), "round {round}");
        for unit in bytes[UNIT_BYTES..].chunks(UNIT_BYTES) {
            // The first write through a handle keeps what is the same; this is the only handle.
            assert!(nonces.insert(unit[BLOCK_BYTES..BLOCK_BYTES + 24].to_vec()), "round {round}");
        }
    }
    assert_eq!(nonces.len(), 100);
}

#[test]
fn every_changed_byte_of_a_unit_is_noticed_and_its_neighbours_are_whole() {
    let disk = MemoryDirectory::new();
    let directory = over(&disk, Keys::new(key(1)));
    let file = directory.open("a", OpenMode::CreateNew, false).unwrap();
    file.write_at(&[7; 3 * BLOCK_BYTES], 0).unwrap();
    // Behind nonce, tag and count nothing counts.
    for at in (0..BLOCK_BYTES).step_by(97).chain(BLOCK_BYTES..BLOCK_BYTES + 42) {
        let at = 2 * UNIT_BYTES + at;
        let good = raw(&disk, "a")[at];
        put(&disk, "a", at, &[good ^ 0x10]);
        let before = directory.damaged_blocks();
        assert_eq!(block(&directory, "a", 1), [DAMAGED; BLOCK_BYTES], "byte {at}");
        assert!(directory.damaged_blocks() > before);
        assert_eq!(block(&directory, "a", 0), [7; BLOCK_BYTES]);
        assert_eq!(block(&directory, "a", 2), [7; BLOCK_BYTES]);
        put(&disk, "a", at, &[good]);
    }
    assert_eq!(block(&directory, "a", 1), [7; BLOCK_BYTES]);
}

#[test]
fn a_unit_is_good_at_its_place_in_its_file_only() {
    let disk = MemoryDirectory::new();
    let directory = over(&disk, Keys::new(key(1)));
    for name in ["a", "b"] {
        write(&directory, name, 0, 7);
        write(&directory, name, 1, 8);
    }
    let unit = raw(&disk, "a")[UNIT_BYTES..2 * UNIT_BYTES].to_vec();
    put(&disk, "a", 2 * UNIT_BYTES, &unit);
    put(&disk, "b", UNIT_BYTES, &unit);
    assert_eq!(block(&directory, "a", 1), [DAMAGED; BLOCK_BYTES]);
    assert_eq!(block(&directory, "b", 0), [DAMAGED; BLOCK_BYTES]);
    // A renamed file is the same file.
    directory.rename("b", "c").unwrap();
    assert_eq!(block(&directory, "c", 1), [8; BLOCK_BYTES]);
}

#[test]
fn a_wrong_key_is_named_and_changes_nothing_and_so_are_plain_files_without_others() {
    let disk = MemoryDirectory::new();
    write(&over(&disk, Keys::new(key(1))), "a", 0, 7);
    let before = raw(&disk, "a");
    let refused = |keys| EncryptedDirectory::new(Arc::new(disk.clone()), keys).err();
    assert!(matches!(refused(Keys::new(key(2))), Some(EncryptionError::WrongKey { file }) if file == "a"));
    assert!(refused(Keys::new(key(2)).and_former(key(1))).is_none());
    assert_eq!(raw(&disk, "a"), before);
    disk.remove("a").unwrap();
    disk.open("plain", OpenMode::CreateNew, false).unwrap().write_at(&[1; 9000], 0).unwrap();
    assert!(
        matches!(refused(Keys::new(key(1))), Some(EncryptionError::NotEncrypted { file }) if file == "plain")
    );
}

/// One file with a damaged header, or that was no file of the database's, had everything refused, what salvages included.
#[test]
fn a_file_without_a_sound_header_is_told_when_it_is_opened_and_hinders_no_other() {
    let disk = MemoryDirectory::new();
    let directory = over(&disk, Keys::new(key(1)));
    write(&directory, "a", 0, 7);
    write(&directory, "b", 0, 8);
    put(&disk, "a", 0, &[0xff; 72]);
    disk.open("core", OpenMode::CreateNew, false).unwrap().write_at(&[1; 9000], 0).unwrap();
    // Of another key, but nobody needs them.
    let other = MemoryDirectory::new();
    write(&over(&other, Keys::new(key(2))), "x", 0, 9);
    for name in ["x.spare", "x.rekey"] {
        disk.open(name, OpenMode::CreateNew, false).unwrap().write_at(&raw(&other, "x"), 0).unwrap();
    }
    let directory = over(&disk, Keys::new(key(1)));
    assert_eq!(block(&directory, "b", 0), [8; BLOCK_BYTES]);
    for name in ["a", "core"] {
        let error = directory.open(name, OpenMode::ReadWrite, false).err().unwrap();
        assert!(format!("{}", error.source).contains("not encrypted"), "{error:?}");
    }
    put(&disk, "x.spare", 0, &[0xff; 72]);
    over(&disk, Keys::new(key(1)));
}

/// It got a new one, and what was behind it could not be read any more.
#[test]
fn a_header_that_has_become_zeros_is_lost_and_one_that_was_never_written_is_made() {
    let disk = MemoryDirectory::new();
    let directory = over(&disk, Keys::new(key(1)));
    write(&directory, "whole", 0, 1);
    write(&directory, "a", 3, 7);
    let before = raw(&disk, "a");
    put(&disk, "a", 0, &[0; BLOCK_BYTES]);
    for mode in [OpenMode::Read, OpenMode::ReadWrite] {
        let refused = directory.open("a", mode, false).err().expect("no header");
        assert!(refused.source.to_string().contains("not encrypted"), "{refused:?}");
    }
    put(&disk, "a", 0, &before[..BLOCK_BYTES]);
    assert_eq!(block(&directory, "a", 3), [7; BLOCK_BYTES]);
    // Allocated, and no more.
    disk.open("b", OpenMode::CreateNew, false).unwrap();
    put(&disk, "b", 0, &[0; 2 * UNIT_BYTES]);
    write(&directory, "b", 0, 2);
    assert_eq!(block(&over(&disk, Keys::new(key(1))), "b", 0), [2; BLOCK_BYTES]);
}

#[test]
fn after_a_rotation_the_former_key_opens_nothing() {
    let disk = MemoryDirectory::new();
    let mut random = Random::new(1);
    let old = over(&disk, Keys::new(key(1)));
    for name in ["a", "b", "c"] {
        write(&old, name, random.below(400), 7);
    }
    old.open("short", OpenMode::CreateNew, false).unwrap().write_at(b"five!", 0).unwrap();
    let contents = |directory: &EncryptedDirectory| -> Vec<(String, Vec<u8>)> {
        let read = |name: String| {
            let file = directory.open(&name, OpenMode::Read, false).unwrap();
            let mut bytes = vec![0; file.length().unwrap() as usize];
            file.read_at(&mut bytes, 0).unwrap();
            (name, bytes)
        };
        directory.list().unwrap().into_iter().map(read).collect()
    };
    let before = contents(&old);
    let both = over(&disk, Keys::new(key(2)).and_former(key(1)));
    write(&both, "new", 0, 9);
    directory_is_rotated(&disk, &both);
    assert_eq!(contents(&both)[..3], before[..3]);
    assert_eq!(contents(&over(&disk, Keys::new(key(2)))).last().unwrap().1, b"five!");
}

fn directory_is_rotated(disk: &MemoryDirectory, both: &EncryptedDirectory) {
    assert_eq!(both.rotate().unwrap(), Rotation { files: 4, ..Rotation::default() });
    assert_eq!(both.rotate().unwrap(), Rotation::default(), "a second time there is nothing to do");
    assert!(EncryptedDirectory::new(Arc::new(disk.clone()), Keys::new(key(2))).is_ok());
    assert!(EncryptedDirectory::new(Arc::new(disk.clone()), Keys::new(key(1))).is_err());
}

#[test]
fn a_rotation_says_in_which_files_it_has_met_damage() {
    let disk = MemoryDirectory::new();
    let old = over(&disk, Keys::new(key(1)));
    ["a", "b"].into_iter().for_each(|name| (0..400).for_each(|number| write(&old, name, number, 7)));
    put(&disk, "b", 300 * UNIT_BYTES + 5, &[0]);
    let both = over(&disk, Keys::new(key(2)).and_former(key(1)));
    let damaged_blocks = vec![("b".to_owned(), 1)];
    assert_eq!(both.rotate().unwrap(), Rotation { files: 2, damaged_blocks });
    assert_eq!(block(&both, "b", 299), [DAMAGED; BLOCK_BYTES]);
    assert_eq!(block(&both, "b", 300), [7; BLOCK_BYTES]);
}

/// The machine stops at every I/O of a rewrite of the same bytes (E3), and of other bytes beside them.
#[test]
fn a_torn_write_costs_what_was_written_and_nothing_else() {
    let mut torn = 0;
    for seed in 0..200 {
        let disk = SimulatedDisk::new(seed);
        let open = |disk: &SimulatedDisk| {
            EncryptedDirectory::new(Arc::new(disk.directory()), Keys::new(key(1))).unwrap()
        };
        {
            let directory = open(&disk);
            let file = directory.open("a", OpenMode::CreateNew, true).unwrap();
            let mut blocks = deuteron_device::AlignedBuffer::zeroed(3 * BLOCK_BYTES);
            blocks.fill(7);
            file.write_durable_at(&blocks, 0).unwrap();
            directory.sync().unwrap();
        }
        let directory = open(&disk);
        let file = directory.open("a", OpenMode::ReadWrite, true).unwrap();
        disk.set_faults(FaultPlan::new().crash_after(disk.operations() + 1));
        let mut same = deuteron_device::AlignedBuffer::zeroed(BLOCK_BYTES);
        same.fill(7);
        file.write_durable_at(&same, 0).unwrap();
        same.fill(9);
        assert!(file.write_durable_at(&same, BLOCK_BYTES as u64).is_err(), "the machine has stopped");
        drop((file, directory));
        disk.crash(CrashPolicy::Random);
        let directory = open(&disk);
        assert_eq!(block(&directory, "a", 0), [7; BLOCK_BYTES], "seed {seed}: the same bytes again");
        assert_eq!(block(&directory, "a", 2), [7; BLOCK_BYTES], "seed {seed}: a neighbour");
        let middle = block(&directory, "a", 1);
        assert!([7, 9, DAMAGED].iter().any(|&byte| middle == [byte; BLOCK_BYTES]), "seed {seed}");
        torn += u32::from(middle[0] == DAMAGED);
        // While the same bytes are written.
        let file = directory.open("a", OpenMode::ReadWrite, true).unwrap();
        disk.set_faults(FaultPlan::new().crash_after(disk.operations()));
        same.fill(7);
        assert!(file.write_durable_at(&same, 0).is_err());
        drop((file, directory));
        disk.crash(CrashPolicy::Random);
        assert_eq!(block(&open(&disk), "a", 0), [7; BLOCK_BYTES], "seed {seed}: the same bytes, torn");
    }
    assert!(torn > 50, "torn units are met: {torn}");
}

#[test]
fn key_files_are_their_owners_and_hold_keys() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("keys");
    let write = |text: &str, mode| {
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    assert!(matches!(Keys::from_file(&path), Err(EncryptionError::KeyFile { .. })));
    let lines = format!("{}\n\n{}\n", *key(2).to_hexadecimal(), *key(1).to_hexadecimal());
    write(&lines, 0o644);
    assert!(matches!(Keys::from_file(&path), Err(EncryptionError::Exposed { .. })));
    write(&lines, 0o600);
    let disk = MemoryDirectory::new();
    with_a_file(&disk);
    assert!(EncryptedDirectory::new(Arc::new(disk), Keys::from_file(&path).unwrap()).is_ok());
    for (text, line) in [("", 1), ("secret", 1), (&format!("{}\nxyz", *key(1).to_hexadecimal()), 2)] {
        write(text, 0o600);
        assert!(
            matches!(Keys::from_file(&path), Err(EncryptionError::NotAKey { line: found, .. }) if found == line)
        );
    }
}

fn with_a_file(disk: &MemoryDirectory) {
    write(&over(disk, Keys::new(key(1))), "a", 0, 7);
}

#[test]
fn a_file_is_allocated_to_the_last_byte_and_reads_as_zeros_there() {
    let disk = MemoryDirectory::new();
    let directory = over(&disk, Keys::new(key(1)));
    for (number, (written, length)) in
        [(5000, 8192), (5000, 12288), (5000, 7000), (4096, 8192), (1, 4096)].into_iter().enumerate()
    {
        let file = directory.open(&number.to_string(), OpenMode::CreateNew, false).unwrap();
        file.write_at(&vec![1; written], 0).unwrap();
        file.allocate(length as u64).unwrap();
        assert_eq!(file.length().unwrap(), length as u64, "{written}");
        let mut found = vec![9; length];
        file.read_at(&mut found, 0).unwrap();
        assert!(found == [vec![1; written], vec![0; length - written]].concat(), "{written} {length}");
    }
}
