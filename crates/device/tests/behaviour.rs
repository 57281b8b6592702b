//! What every implementation does alike: the same checks over real files, memory and the simulated disk.

use deuteron_device::{
    AdverseDirectory, Adversity, AlignedBuffer, BLOCK_BYTES, Directory, DurableWrite, File, MemoryDirectory,
    OpenMode, OsDirectory, OverlayDirectory, ReadRequest, Reads, SimulatedDisk,
};
use deuteron_encryption::{EncryptedDirectory, Key, Keys};
use std::io::ErrorKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

fn encrypted(directory: impl Directory + 'static) -> EncryptedDirectory {
    EncryptedDirectory::new(Arc::new(directory), Keys::new(Key::from_bytes([7; 32]))).unwrap()
}

/// Each property becomes a test for each implementation.
macro_rules! behaviour {
    ($($property:ident)*) => {
        mod memory { $(#[test] fn $property() { super::$property(&super::MemoryDirectory::new()); })* }
        mod encrypted_in_memory { $(#[test] fn $property() {
            super::$property(&super::encrypted(super::MemoryDirectory::new()));
        })* }
        mod encrypted_os { $(#[test] fn $property() {
            let scratch = tempfile::tempdir().unwrap();
            super::$property(&super::encrypted(super::OsDirectory::open_or_create(scratch.path()).unwrap()));
        })* }
        mod simulated { $(#[test] fn $property() { super::$property(&super::SimulatedDisk::new(1).directory()); })* }
        mod os { $(#[test] fn $property() {
            let scratch = tempfile::tempdir().unwrap();
            super::$property(&super::OsDirectory::open_or_create(scratch.path().join("new/directory")).unwrap());
        })* }
        mod os_by_threads { $(#[test] fn $property() {
            let scratch = tempfile::tempdir().unwrap();
            super::$property(&super::OsDirectory::open_or_create(scratch.path()).unwrap().without_io_uring());
        })* }
        /// Where io_uring is forbidden, as in many containers.
        mod os_forbidden { $(#[test] fn $property() {
            super::without_io_uring(|| {
                let scratch = tempfile::tempdir().unwrap();
                let directory = super::OsDirectory::open_or_create(scratch.path()).unwrap();
                assert_eq!(super::Directory::reads_at_once(&directory), 16);
                super::$property(&directory);
            });
        })* }
        /// A tmpfs, where there is one: it treats direct I/O, and preallocation, differently from a disk.
        mod os_in_memory { $(#[test] fn $property() {
            let Ok(scratch) = tempfile::tempdir_in("/dev/shm") else { return };
            super::$property(&super::OsDirectory::open_or_create(scratch.path()).unwrap());
        })* }
    };
}

behaviour! {
    what_is_written_is_read
    direct_blocks_are_written_and_read
    misaligned_direct_access_is_refused
    reading_past_the_end_is_an_error
    allocated_space_reads_as_zeros
    a_shortened_file_has_lost_its_end
    a_file_removed_in_pieces_is_whole_for_who_has_it
    a_gap_reads_as_zeros
    files_are_found_by_name
    create_new_refuses_an_existing_file
    an_open_file_outlives_its_name
    a_rename_replaces_and_recycles_old_bytes
    names_that_are_no_names_are_refused
    a_file_opened_for_reading_cannot_be_changed
    the_lock_is_exclusive
    empty_transfers_do_nothing
    large_transfers_are_whole
    many_reads_at_once_are_each_as_one
    more_reads_than_go_at_once_are_all_done
    each_read_is_told_of_once_with_what_it_read
    who_panics_when_asked_for_more_reads_gets_back_what_was_lent
    a_long_read_is_that_of_its_pieces
    writes_that_are_begun_are_each_as_one
    a_write_that_cannot_be_done_is_told_of_when_it_is_waited_for
    a_write_that_nobody_waits_for_is_done_all_the_same
}

/// Runs `test` on a thread to which the kernel refuses io_uring, as seccomp filters of containers do.
fn without_io_uring(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (load, jump, give) =
                (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, libc::BPF_JMP | libc::BPF_JEQ, libc::BPF_RET);
            let step =
                |code: u32, when_not, k| libc::sock_filter { code: code as u16, jt: 0, jf: when_not, k };
            let refused = libc::SECCOMP_RET_ERRNO | libc::EPERM as u32;
            let mut filter = [
                step(load, 0, 0),
                step(jump, 1, libc::SYS_io_uring_setup as u32),
                step(give, 0, refused),
                step(give, 0, libc::SECCOMP_RET_ALLOW),
            ];
            let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            // SAFETY: documented system calls; the program lives until they return. They bind this thread only.
            unsafe {
                assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
                assert_eq!(
                    libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program),
                    0
                );
            }
            test();
        });
    });
}

fn pattern(length: usize, seed: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(length);
    for (index, byte) in buffer.iter_mut().enumerate() {
        *byte = ((index * 31 + seed * 7) % 251) as u8;
    }
    buffer
}

fn what_is_written_is_read(directory: &dyn Directory) {
    let file = directory.open("a", OpenMode::CreateNew, false).unwrap();
    file.write_at(b"hello world", 0).unwrap();
    file.write_at(b"W", 6).unwrap();
    file.write_durable_at(b"!!", 11).unwrap();
    file.sync().unwrap();
    let mut read = [0; 7];
    file.read_at(&mut read, 6).unwrap();
    assert_eq!((&read, file.length().unwrap()), (b"World!!", 13));
}

fn direct_blocks_are_written_and_read(directory: &dyn Directory) {
    let file = directory.open("a", OpenMode::CreateNew, true).unwrap();
    file.allocate(8 * BLOCK_BYTES as u64).unwrap();
    let written = pattern(3 * BLOCK_BYTES, 1);
    file.write_durable_at(&written, 2 * BLOCK_BYTES as u64).unwrap();
    file.write_at(&written[..BLOCK_BYTES], 7 * BLOCK_BYTES as u64).unwrap();
    file.sync().unwrap();
    let mut read = AlignedBuffer::zeroed(3 * BLOCK_BYTES);
    file.read_at(&mut read, 2 * BLOCK_BYTES as u64).unwrap();
    assert!(read[..] == written[..]);

    let reader = directory.open("a", OpenMode::Read, false).unwrap();
    let mut tail = [0; 10];
    reader.read_at(&mut tail, 7 * BLOCK_BYTES as u64 + 5).unwrap();
    assert_eq!(tail, written[5..15]);
}

fn misaligned_direct_access_is_refused(directory: &dyn Directory) {
    let file = directory.open("a", OpenMode::CreateNew, true).unwrap();
    let mut buffer = AlignedBuffer::zeroed(3 * BLOCK_BYTES);
    let block = BLOCK_BYTES as u64;
    file.write_at(&buffer, 0).unwrap();
    let misaligned = [
        file.write_at(&buffer[..100], 0),
        file.write_at(&buffer[..BLOCK_BYTES], 100),
        file.write_at(&buffer[8..BLOCK_BYTES + 8], 0),
        file.write_durable_at(&buffer[..512], block),
        file.read_at(&mut buffer[..100], 0),
        file.read_at(&mut buffer[1..BLOCK_BYTES + 1], 0),
    ];
    for result in misaligned {
        let error = result.unwrap_err();
        assert!(error.misaligned().is_some(), "{error:?}");
        assert_eq!(error.file, "a");
    }
    file.read_at(&mut buffer[..BLOCK_BYTES], 2 * block).unwrap();
}

fn reading_past_the_end_is_an_error(directory: &dyn Directory) {
    for direct in [false, true] {
        let name = format!("direct-{direct}");
        let file = directory.open(&name, OpenMode::CreateNew, direct).unwrap();
        file.write_at(&pattern(BLOCK_BYTES, 1), 0).unwrap();
        let mut read = AlignedBuffer::zeroed(2 * BLOCK_BYTES);
        for offset in [0, BLOCK_BYTES as u64, 100 * BLOCK_BYTES as u64] {
            let error = file.read_at(&mut read, offset).unwrap_err();
            assert_eq!((error.source.kind(), error.offset), (ErrorKind::UnexpectedEof, offset));
        }
        file.read_at(&mut read[..BLOCK_BYTES], 0).unwrap();
    }
}

fn allocated_space_reads_as_zeros(directory: &dyn Directory) {
    let file = directory.open("a", OpenMode::CreateNew, false).unwrap();
    file.write_at(b"data", 0).unwrap();
    file.allocate(10_000).unwrap();
    assert_eq!(file.length().unwrap(), 10_000);
    let mut read = vec![1; 10_000];
    file.read_at(&mut read, 0).unwrap();
    assert_eq!(&read[..4], b"data");
    assert!(read[4..].iter().all(|&byte| byte == 0));
    file.allocate(5).unwrap();
    assert_eq!(file.length().unwrap(), 10_000, "allocating never shortens");
}

fn a_shortened_file_has_lost_its_end(directory: &dyn Directory) {
    let file = directory.open("a", OpenMode::CreateNew, false).unwrap();
    let written = pattern(10_000, 4);
    file.write_at(&written, 0).unwrap();
    for longer in [10_000, 10_001, u64::MAX] {
        file.shorten(longer).unwrap();
        assert_eq!(file.length().unwrap(), 10_000, "shortening never lengthens");
    }
    for length in [9_000, 8_192, 5_000] {
        file.shorten(length).unwrap();
        assert_eq!(file.length().unwrap(), length);
        let mut read = vec![0; length as usize];
        file.read_at(&mut read, 0).unwrap();
        assert_eq!(read, written[..length as usize]);
        let error = file.read_at(&mut [0; 2], length - 1).unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::UnexpectedEof);
    }
    file.allocate(9_500).unwrap();
    let mut read = vec![1; 9_500];
    file.read_at(&mut read, 0).unwrap();
    assert_eq!(read[..5_000], written[..5_000]);
    assert!(read[5_000..].iter().all(|&byte| byte == 0), "what was cut does not come back");
    file.shorten(0).unwrap();
    file.sync().unwrap();
    assert_eq!(directory.open("a", OpenMode::Read, false).unwrap().length().unwrap(), 0);

    let direct = directory.open("b", OpenMode::CreateNew, true).unwrap();
    direct.write_durable_at(&pattern(8 * BLOCK_BYTES, 1), 0).unwrap();
    direct.shorten(3 * BLOCK_BYTES as u64).unwrap();
    let mut read = AlignedBuffer::zeroed(3 * BLOCK_BYTES);
    direct.read_at(&mut read, 0).unwrap();
    assert!(read[..] == pattern(8 * BLOCK_BYTES, 1)[..3 * BLOCK_BYTES]);
    assert!(direct.read_at(&mut read[..BLOCK_BYTES], 3 * BLOCK_BYTES as u64).is_err());
}

/// Whether it has been opened as another file does not matter: that is what the caller must know.
fn a_file_removed_in_pieces_is_whole_for_who_has_it(directory: &dyn Directory) {
    let written = pattern(5 * BLOCK_BYTES + 100, 4);
    let piece_bytes = 2 * BLOCK_BYTES as u64;
    for is_held in [true, false] {
        let file = directory.open("a", OpenMode::CreateNew, false).unwrap();
        file.write_at(&written, 0).unwrap();
        let held = is_held.then(|| Arc::clone(&file));
        directory.remove_in_pieces("a", file, piece_bytes).unwrap();
        assert!(directory.list().unwrap().is_empty());
        if let Some(held) = held {
            let mut read = vec![0; written.len()];
            held.read_at(&mut read, 0).unwrap();
            assert!(read[..] == written[..]);
        }
    }
    for length in [0, 1, piece_bytes] {
        let file = directory.open("b", OpenMode::CreateNew, false).unwrap();
        file.allocate(length).unwrap();
        directory.remove_in_pieces("b", file, piece_bytes).unwrap();
    }
    let file = directory.open("c", OpenMode::CreateNew, false).unwrap();
    directory.remove("c").unwrap();
    assert!(directory.remove_in_pieces("c", file, piece_bytes).unwrap_err().is_not_found());
}

fn a_gap_reads_as_zeros(directory: &dyn Directory) {
    let file = directory.open("a", OpenMode::CreateNew, false).unwrap();
    file.write_at(b"end", 9000).unwrap();
    let mut read = vec![1; 9003];
    file.read_at(&mut read, 0).unwrap();
    assert!(read[..9000].iter().all(|&byte| byte == 0));
    assert_eq!(&read[9000..], b"end");
}

fn files_are_found_by_name(directory: &dyn Directory) {
    for name in ["b", "a", "c"] {
        directory.open(name, OpenMode::CreateNew, false).unwrap();
    }
    directory.sync().unwrap();
    directory.remove("b").unwrap();
    assert_eq!(directory.list().unwrap(), ["a", "c"]);
    assert!(directory.open("b", OpenMode::Read, false).err().unwrap().is_not_found());
    assert!(directory.open("b", OpenMode::ReadWrite, true).err().unwrap().is_not_found());
    assert!(directory.remove("b").unwrap_err().is_not_found());
    assert!(directory.rename("b", "d").unwrap_err().is_not_found());
}

fn create_new_refuses_an_existing_file(directory: &dyn Directory) {
    directory.open("a", OpenMode::CreateNew, true).unwrap();
    for direct in [false, true] {
        let error = directory.open("a", OpenMode::CreateNew, direct).err().unwrap();
        assert_eq!(error.source.kind(), ErrorKind::AlreadyExists);
    }
}

fn an_open_file_outlives_its_name(directory: &dyn Directory) {
    let file = directory.open("a", OpenMode::CreateNew, false).unwrap();
    directory.remove("a").unwrap();
    directory.sync().unwrap();
    file.write_at(b"still here", 0).unwrap();
    file.sync().unwrap();
    assert_eq!(file.length().unwrap(), 10);
    let second = directory.open("a", OpenMode::CreateNew, false).unwrap();
    assert_eq!(second.length().unwrap(), 0);
}

fn a_rename_replaces_and_recycles_old_bytes(directory: &dyn Directory) {
    directory.open("old", OpenMode::CreateNew, false).unwrap().write_at(b"old bytes", 0).unwrap();
    directory.open("new", OpenMode::CreateNew, false).unwrap().write_at(b"replaced", 0).unwrap();
    directory.rename("old", "new").unwrap();
    directory.sync().unwrap();
    assert_eq!(directory.list().unwrap(), ["new"]);
    let file = directory.open("new", OpenMode::ReadWrite, false).unwrap();
    file.write_at(b"NEW", 0).unwrap();
    let mut read = [0; 9];
    file.read_at(&mut read, 0).unwrap();
    assert_eq!(&read, b"NEW bytes");
    directory.rename("new", "new").unwrap();
    assert_eq!(directory.list().unwrap(), ["new"]);
}

fn names_that_are_no_names_are_refused(directory: &dyn Directory) {
    directory.open("a", OpenMode::CreateNew, false).unwrap();
    for name in ["", ".", "..", "a/b", "../a", "lock", "nul\0"] {
        assert!(directory.open(name, OpenMode::CreateNew, false).is_err(), "{name}");
        assert!(directory.remove(name).is_err(), "{name}");
        assert!(directory.rename("a", name).is_err(), "{name}");
    }
    assert_eq!(directory.list().unwrap(), ["a"]);
}

fn a_file_opened_for_reading_cannot_be_changed(directory: &dyn Directory) {
    directory.open("a", OpenMode::CreateNew, false).unwrap().write_at(b"x", 0).unwrap();
    let file = directory.open("a", OpenMode::Read, false).unwrap();
    for result in [file.write_at(b"y", 0), file.write_durable_at(b"y", 0), file.allocate(10), file.shorten(0)]
    {
        assert_eq!(result.unwrap_err().source.kind(), ErrorKind::PermissionDenied);
    }
    assert_eq!(file.length().unwrap(), 1);
}

fn the_lock_is_exclusive(directory: &dyn Directory) {
    let lock = directory.lock().unwrap();
    assert!(directory.lock().err().unwrap().is_locked());
    assert!(directory.list().unwrap().is_empty(), "the lock is no file of the directory");
    drop(lock);
    drop(directory.lock().unwrap());
}

fn empty_transfers_do_nothing(directory: &dyn Directory) {
    let file = directory.open("a", OpenMode::CreateNew, false).unwrap();
    file.write_at(&[], 100).unwrap();
    file.write_durable_at(&[], 100).unwrap();
    file.allocate(0).unwrap();
    file.read_at(&mut [], 0).unwrap();
    assert_eq!(file.length().unwrap(), 0);
}

fn large_transfers_are_whole(directory: &dyn Directory) {
    let file = directory.open("a", OpenMode::CreateNew, true).unwrap();
    let written = pattern(4 << 20, 3);
    file.write_durable_at(&written, 0).unwrap();
    let mut read = AlignedBuffer::zeroed(4 << 20);
    file.read_at(&mut read, 0).unwrap();
    assert!(read[..] == written[..]);
}

/// More writes than a ring has room for, on two files, waited for from another thread and in another order, with other writes meanwhile.
fn writes_that_are_begun_are_each_as_one(directory: &dyn Directory) {
    const BLOCKS: usize = 24;
    let files = [("a", true), ("b", false)]
        .map(|(name, direct)| directory.open(name, OpenMode::CreateNew, direct).unwrap());
    let written = pattern(BLOCKS * BLOCK_BYTES, 5);
    let begun = written.chunks(2 * BLOCK_BYTES).enumerate().map(|(index, bytes)| {
        let file = Arc::clone(&files[index % 2]);
        // The rest of the buffer is not written.
        let mut buffer = AlignedBuffer::zeroed(3 * BLOCK_BYTES);
        buffer[..bytes.len()].copy_from_slice(bytes);
        let offset = (index * 2 * BLOCK_BYTES) as u64;
        directory.begin_write(DurableWrite { file, buffer, length: bytes.len(), offset })
    });
    let mut begun: Vec<_> = begun.collect();
    files[0].write_durable_at(&pattern(BLOCK_BYTES, 9), (BLOCKS * BLOCK_BYTES) as u64).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let ended = begun.iter_mut().filter_map(|write| write.is_done().then_some(())).count();
            assert!(ended <= BLOCKS / 2);
            while let Some(write) = begun.pop() {
                let (buffer, outcome) = write.wait();
                outcome.unwrap();
                assert_eq!(buffer.len(), 3 * BLOCK_BYTES);
            }
        });
    });
    for (index, bytes) in written.chunks(2 * BLOCK_BYTES).enumerate() {
        let mut buffer = AlignedBuffer::zeroed(bytes.len());
        files[index % 2].read_at(&mut buffer, (index * 2 * BLOCK_BYTES) as u64).unwrap();
        assert!(buffer[..] == *bytes, "{index}");
    }
}

fn a_write_that_cannot_be_done_is_told_of_when_it_is_waited_for(directory: &dyn Directory) {
    drop(directory.open("a", OpenMode::CreateNew, true).unwrap());
    let opened = |mode| directory.open("a", mode, true).unwrap();
    let (read_only, file) = (opened(OpenMode::Read), opened(OpenMode::ReadWrite));
    let write = |file: &Arc<dyn File>, length, offset| {
        let buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
        directory.begin_write(DurableWrite { file: Arc::clone(file), buffer, length, offset }).wait().1
    };
    assert_eq!(write(&read_only, BLOCK_BYTES, 0).unwrap_err().source.kind(), ErrorKind::PermissionDenied);
    assert!(write(&file, 100, 0).unwrap_err().misaligned().is_some());
    assert!(write(&file, BLOCK_BYTES, 512).unwrap_err().misaligned().is_some());
    write(&file, 0, 0).unwrap();
    write(&file, BLOCK_BYTES, 0).unwrap();
}

fn a_write_that_nobody_waits_for_is_done_all_the_same(directory: &dyn Directory) {
    let file = directory.open("a", OpenMode::CreateNew, true).unwrap();
    file.allocate(3 * BLOCK_BYTES as u64).unwrap();
    let mut buffer = AlignedBuffer::zeroed(BLOCK_BYTES);
    buffer.fill(7);
    let write =
        DurableWrite { file: Arc::clone(&file), buffer, length: BLOCK_BYTES, offset: BLOCK_BYTES as u64 };
    // By a thread that has ended then.
    std::thread::scope(|scope| scope.spawn(|| directory.begin_write(write)).join().map(drop).unwrap());
    let mut read = AlignedBuffer::zeroed(BLOCK_BYTES);
    file.read_at(&mut read, BLOCK_BYTES as u64).unwrap();
    assert!(read.iter().all(|&byte| byte == 7));
}

/// Two files, direct and not, and every way in which a read can fail: each request ends as it does alone.
fn many_reads_at_once_are_each_as_one(directory: &dyn Directory) {
    let block = BLOCK_BYTES as u64;
    let direct = directory.open("a", OpenMode::CreateNew, true).unwrap();
    direct.write_durable_at(&pattern(8 * BLOCK_BYTES, 1), 0).unwrap();
    let buffered = directory.open("b", OpenMode::CreateNew, false).unwrap();
    buffered.write_durable_at(&pattern(10_000, 2), 0).unwrap();
    let wanted: [(&dyn File, u64, usize, usize); 11] = [
        (&*direct, 0, 0, BLOCK_BYTES),
        (&*direct, 7 * block, 0, BLOCK_BYTES),
        (&*direct, 2 * block, 0, 3 * BLOCK_BYTES),
        (&*buffered, 17, 0, 5),
        (&*direct, 8 * block, 0, BLOCK_BYTES),     // past the end
        (&*direct, 7 * block, 0, 2 * BLOCK_BYTES), // across the end
        (&*buffered, 9_999, 0, 2),                 // across the end
        (&*direct, 512, 0, BLOCK_BYTES),           // a misaligned offset
        (&*direct, 0, 1, BLOCK_BYTES),             // misaligned memory
        (&*direct, 0, 0, 100),                     // a misaligned length
        (&*buffered, 5, 0, 0),
    ];
    let buffers = || wanted.map(|(.., from, length)| AlignedBuffer::zeroed(from + length));
    let (mut alone, mut together) = (buffers(), buffers());
    let mut outcomes = Vec::new();
    for (&(file, offset, from, _), buffer) in wanted.iter().zip(&mut alone) {
        outcomes.push(file.read_at(&mut buffer[from..], offset));
    }
    let mut requests: Vec<_> = wanted
        .iter()
        .zip(&mut together)
        .map(|(&(file, offset, from, _), buffer)| ReadRequest::new(file, offset, &mut buffer[from..]))
        .collect();
    directory.read_many(&mut requests);
    let failed = outcomes.iter().filter(|outcome| outcome.is_err()).count();
    // What memory holds files in may be aligned by chance to the byte.
    assert!(failed >= 5, "{outcomes:?}");
    for (request, outcome) in requests.iter().zip(&outcomes) {
        match (&request.outcome, outcome) {
            (Ok(()), Ok(())) => {}
            (Err(together), Err(alone)) => {
                assert_eq!(together.to_string(), alone.to_string());
                assert_eq!(together.source.kind(), alone.source.kind());
                assert_eq!(together.misaligned().is_some(), alone.misaligned().is_some());
            }
            different => panic!("{different:?}"),
        }
    }
    drop(requests);
    for ((alone, together), outcome) in alone.iter().zip(&together).zip(&outcomes) {
        assert!(outcome.is_err() || alone[..] == together[..]);
    }
    assert!(together[1][..] == pattern(8 * BLOCK_BYTES, 1)[7 * BLOCK_BYTES..]);
    assert!(together[3][..] == pattern(10_000, 2)[17..22]);
    directory.read_many(&mut []);
}

fn more_reads_than_go_at_once_are_all_done(directory: &dyn Directory) {
    const BLOCKS: usize = 300;
    let file = directory.open("a", OpenMode::CreateNew, true).unwrap();
    let written = pattern(BLOCKS * BLOCK_BYTES, 5);
    file.write_durable_at(&written, 0).unwrap();
    // Several threads, and each several times.
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let (file, written) = (&file, &written);
            scope.spawn(move || {
                for round in 0..4 {
                    let mut buffer = AlignedBuffer::zeroed(BLOCKS * BLOCK_BYTES);
                    let place = |index: usize| (index * 7 + thread + round) % BLOCKS;
                    let mut reads: Vec<_> = buffer
                        .chunks_mut(BLOCK_BYTES)
                        .enumerate()
                        .map(|(index, block)| {
                            ReadRequest::new(&**file, (place(index) * BLOCK_BYTES) as u64, block)
                        })
                        .collect();
                    directory.read_many(&mut reads);
                    assert!(reads.iter().all(|read| read.outcome.is_ok()));
                    drop(reads);
                    for (index, block) in buffer.chunks(BLOCK_BYTES).enumerate() {
                        assert!(block == &written[place(index) * BLOCK_BYTES..][..BLOCK_BYTES]);
                    }
                }
            });
        }
    });
}

/// The length of a portion that is not to be had.
const PANIC: usize = usize::MAX;

/// Reads in portions of these lengths, over and over, and who is told of each.
struct Portions<'t, 'r> {
    reads: std::vec::IntoIter<ReadRequest<'r>>,
    lengths: std::iter::Cycle<std::slice::Iter<'static, usize>>,
    told: &'t mut dyn FnMut(usize, &mut ReadRequest<'r>),
}

impl<'r> Reads<'r> for Portions<'_, 'r> {
    fn next(&mut self, reads: &mut Vec<ReadRequest<'r>>) -> bool {
        let length = *self.lengths.next().unwrap();
        reads.extend(self.reads.by_ref().take(length));
        assert_ne!(length, PANIC, "asked once more");
        // That there may be more is said once too often if the last portion is a whole one.
        self.reads.len() > 0 || length == 4
    }

    fn done(&mut self, index: usize, read: &mut ReadRequest<'r>) {
        (self.told)(index, read);
    }
}

fn each_read_is_told_of_once_with_what_it_read(directory: &dyn Directory) {
    const BLOCKS: usize = 300;
    let file = directory.open("a", OpenMode::CreateNew, true).unwrap();
    let written = pattern(BLOCKS * BLOCK_BYTES, 5);
    file.write_durable_at(&written, 0).unwrap();
    let cases: [(usize, usize, &'static [usize]); 12] = [
        (0, 0, &[1]),
        (0, 0, &[0, 4]),
        (1, 1, &[1]),
        (5, 5, &[9]),
        (16, 16, &[4, 12]),
        (16, 16, &[0, 3, 4, 9]),
        (BLOCKS, BLOCKS, &[BLOCKS]),
        (BLOCKS, 3, &[BLOCKS]),
        (BLOCKS, 0, &[BLOCKS]),
        (7, 0, &[2, 5]),
        (BLOCKS, 70, &[4, 1, 30]),
        (BLOCKS, BLOCKS, &[4, 0, 1, 7, 100]),
    ];
    for (count, panic_at, lengths) in cases {
        let mut buffer = AlignedBuffer::zeroed(count * BLOCK_BYTES);
        let (mut told, mut inner) = (vec![0; count], AlignedBuffer::zeroed(2 * BLOCK_BYTES));
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let place = |index: usize| (index * 7 % BLOCKS * BLOCK_BYTES) as u64;
            let blocks = buffer.chunks_mut(BLOCK_BYTES).enumerate();
            // The last two lie behind the end.
            let beyond = |index| if index + 2 >= BLOCKS { (BLOCKS * BLOCK_BYTES) as u64 } else { 0 };
            let reads: Vec<_> = blocks
                .map(|(index, block)| ReadRequest::new(&*file, place(index) + beyond(index), block))
                .collect();
            let mut left = panic_at;
            let mut told = |index: usize, read: &mut ReadRequest<'_>| {
                told[index] += 1;
                let at = place(index) as usize;
                match beyond(index) {
                    0 => assert!(read.outcome.is_ok() && read.buffer[..] == written[at..][..BLOCK_BYTES]),
                    _ => assert!(read.outcome.is_err()),
                }
                // Who is told may read as well.
                if index % 50 == 3 {
                    let (first, second) = inner.split_at_mut(BLOCK_BYTES);
                    let mut more = [
                        ReadRequest::new(&*file, 0, first),
                        ReadRequest::new(&*file, BLOCK_BYTES as u64, second),
                    ];
                    directory.read_many(&mut more);
                    assert!(more.iter().all(|read| read.outcome.is_ok()));
                    assert!(inner[..] == written[..2 * BLOCK_BYTES]);
                }
                match left {
                    0 => std::panic::resume_unwind(Box::new("no more")),
                    _ => left -= 1,
                }
            };
            let (reads, lengths) = (reads.into_iter(), lengths.iter().cycle());
            directory.read_each(&mut Portions { reads, lengths, told: &mut told });
        }));
        assert_eq!(outcome.is_ok(), panic_at == count, "{count} {panic_at}");
        assert_eq!(told.iter().sum::<usize>(), (panic_at + 1).min(count), "{told:?}");
        assert!(told.iter().all(|&times| times <= 1));
        // Nobody writes to it any more.
        buffer.fill(1);
        std::thread::yield_now();
        assert!(buffer.iter().all(|&byte| byte == 1));
    }
}

fn who_panics_when_asked_for_more_reads_gets_back_what_was_lent(directory: &dyn Directory) {
    const BLOCKS: usize = 60;
    let file = directory.open("a", OpenMode::CreateNew, true).unwrap();
    file.write_durable_at(&pattern(BLOCKS * BLOCK_BYTES, 5), 0).unwrap();
    for lengths in [&[40, PANIC][..], &[4, 20, PANIC], &[1, PANIC], &[PANIC]] {
        let mut buffer = AlignedBuffer::zeroed(BLOCKS * BLOCK_BYTES);
        let blocks = (0..).step_by(BLOCK_BYTES).zip(buffer.chunks_mut(BLOCK_BYTES));
        let reads: Vec<_> = blocks.map(|(offset, block)| ReadRequest::new(&*file, offset, block)).collect();
        let (reads, lengths) = (reads.into_iter(), lengths.iter().cycle());
        let mut told = |_: usize, read: &mut ReadRequest<'_>| assert!(read.outcome.is_ok());
        let mut portions = Portions { reads, lengths, told: &mut told };
        assert!(catch_unwind(AssertUnwindSafe(|| directory.read_each(&mut portions))).is_err());
        // Nobody writes to it any more.
        drop(portions);
        buffer.fill(1);
        std::thread::yield_now();
        assert!(buffer.iter().all(|&byte| byte == 1));
    }
}

fn a_long_read_is_that_of_its_pieces(directory: &dyn Directory) {
    const BLOCKS: usize = 900;
    let file = directory.open("a", OpenMode::CreateNew, true).unwrap();
    let written = pattern(BLOCKS * BLOCK_BYTES, 6);
    file.write_durable_at(&written, 0).unwrap();
    for (from, blocks) in [(0, BLOCKS), (3, BLOCKS - 3), (7, 256), (7, 257), (5, 1)] {
        let mut buffer = AlignedBuffer::zeroed(blocks * BLOCK_BYTES);
        directory.read_long(&*file, &mut buffer, (from * BLOCK_BYTES) as u64).unwrap();
        assert!(buffer[..] == written[from * BLOCK_BYTES..][..blocks * BLOCK_BYTES], "{blocks} from {from}");
    }
    // Only the last piece lies beyond the end.
    let mut buffer = AlignedBuffer::zeroed(BLOCKS * BLOCK_BYTES);
    let error = directory.read_long(&*file, &mut buffer, BLOCK_BYTES as u64).unwrap_err();
    assert_eq!(error.source.kind(), std::io::ErrorKind::UnexpectedEof);
}

/// Clones, and a reopened path, lead to the same files.
#[test]
fn a_reopened_directory_has_its_files_and_a_lock_of_its_own() {
    let scratch = tempfile::tempdir().unwrap();
    let memory = MemoryDirectory::new();
    let disk = SimulatedDisk::new(1);
    let pairs: [(Arc<dyn Directory>, Arc<dyn Directory>); 3] = [
        (Arc::new(memory.clone()), Arc::new(memory)),
        (Arc::new(disk.directory()), Arc::new(disk.directory())),
        (
            Arc::new(OsDirectory::open_or_create(scratch.path()).unwrap()),
            Arc::new(OsDirectory::open_existing(scratch.path()).unwrap()),
        ),
    ];
    for (first, second) in pairs {
        let lock = first.lock().unwrap();
        first.open("a", OpenMode::CreateNew, false).unwrap().write_at(b"kept", 0).unwrap();
        assert!(second.lock().err().unwrap().is_locked(), "{}", second.name());
        drop((lock, first));
        assert_eq!(second.list().unwrap(), ["a"]);
        second.lock().unwrap();
    }
}

#[test]
fn real_files_and_directories_are_the_owners_alone() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("database");
    let directory = OsDirectory::open_or_create(&path).unwrap();
    let _lock = directory.lock().unwrap();
    directory.open("a", OpenMode::CreateNew, true).unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    assert_eq!((mode(&path.join("a")), mode(&path.join("lock"))), (0o600, 0o600));
}

#[test]
fn links_are_neither_listed_nor_followed() {
    let scratch = tempfile::tempdir().unwrap();
    let outside = scratch.path().join("outside");
    std::fs::write(&outside, "as it was").unwrap();
    let path = scratch.path().join("database");
    let directory = OsDirectory::open_or_create(&path).unwrap();
    for name in ["link", "lock"] {
        std::os::unix::fs::symlink(&outside, path.join(name)).unwrap();
    }
    assert!(directory.list().unwrap().is_empty());
    for mode in [OpenMode::Read, OpenMode::ReadWrite, OpenMode::CreateNew] {
        for direct in [false, true] {
            assert!(directory.open("link", mode, direct).is_err(), "{mode:?}");
        }
    }
    assert!(directory.lock().is_err());
    assert_eq!(std::fs::read(&outside).unwrap(), b"as it was");
}

#[test]
fn a_missing_or_impossible_directory_is_a_typed_error() {
    let scratch = tempfile::tempdir().unwrap();
    assert!(OsDirectory::open_existing(scratch.path().join("none")).unwrap_err().is_not_found());
    std::fs::write(scratch.path().join("file"), b"").unwrap();
    assert!(OsDirectory::open_or_create(scratch.path().join("file")).is_err());
}

/// A clock that stands still behind a directory over another must stand still for whoever uses that.
#[test]
fn clock_and_identifiers_are_those_of_the_machine_below() {
    let over = |below: Arc<dyn Directory>| -> [Arc<dyn Directory>; 3] {
        let keys = Keys::new(Key::from_bytes([7; 32]));
        [
            Arc::new(EncryptedDirectory::new(Arc::clone(&below), keys).unwrap()),
            Arc::new(AdverseDirectory::new(Arc::clone(&below), Adversity::Fails(u64::MAX))),
            Arc::new(OverlayDirectory::new(below)),
        ]
    };
    for number in 0..3 {
        let disk = SimulatedDisk::new(1);
        let directory = &over(Arc::new(disk.directory()))[number];
        disk.advance(Duration::from_secs(1000));
        assert_eq!(directory.now(), disk.directory().now());
        assert_eq!(directory.system_time(), disk.directory().system_time());
        assert_eq!(directory.identifier(), SimulatedDisk::new(1).directory().identifier());
    }
}
