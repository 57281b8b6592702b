//! What a process that was killed had in flight is over when another one has the lock.

use deuteron_device::{AlignedBuffer, Directory, DurableWrite, File, OpenMode, OsDirectory, WriteInFlight};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

const NAME: &str = "segment";
const PIECE_BYTES: usize = 4 << 20;
const PIECES: usize = 8;
/// Where the child finds its directory.
const DIRECTORY: &str = "DEUTERON_KILLED_WRITER";

/// The process that is killed: it has writes in flight until then.
#[test]
fn writer() {
    let Some(path) = std::env::var_os(DIRECTORY) else { return };
    let directory = OsDirectory::open_existing(path).unwrap();
    let _lock = directory.lock().unwrap();
    let file: Arc<dyn File> = directory.open(NAME, OpenMode::ReadWrite, true).unwrap();
    let begin = |round: u8, piece: usize| {
        let mut buffer = AlignedBuffer::zeroed(PIECE_BYTES);
        buffer.fill(round);
        let offset = (piece * PIECE_BYTES) as u64;
        directory.begin_write(DurableWrite { file: Arc::clone(&file), buffer, length: PIECE_BYTES, offset })
    };
    println!("writes");
    for round in 1..u8::MAX {
        let in_flight: Vec<Box<dyn WriteInFlight>> = (0..PIECES).map(|piece| begin(round, piece)).collect();
        in_flight.into_iter().for_each(|write| write.wait().1.unwrap());
    }
}

/// A group of processes whose writes the kernel holds back, so that what a killed one leaves is there for seconds. Where we may not make one (that takes a superuser, and control
/// groups of the first version), the device is as fast as it is.
struct HeldBack(Option<PathBuf>);

impl HeldBack {
    const BYTES_PER_SECOND: u64 = 30 << 20;

    fn new(scratch: &Path) -> HeldBack {
        let make = || -> std::io::Result<PathBuf> {
            let device = scratch.metadata()?.dev();
            let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
            let group = PathBuf::from(format!("/sys/fs/cgroup/blkio/deuteron-{}", std::process::id()));
            std::fs::create_dir(&group)?;
            let limit = format!("{major}:{minor} {}", Self::BYTES_PER_SECOND);
            let limited = std::fs::write(group.join("blkio.throttle.write_bps_device"), limit);
            limited.inspect_err(|_| drop(std::fs::remove_dir(&group)))?;
            Ok(group)
        };
        HeldBack(make().ok())
    }

    fn add(&self, process: u32) {
        if let Some(group) = &self.0 {
            std::fs::write(group.join("cgroup.procs"), process.to_string()).unwrap();
        }
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        self.0.as_ref().map(std::fs::remove_dir);
    }
}

fn contents(path: &Path) -> Vec<u8> {
    let directory = OsDirectory::open_existing(path).unwrap();
    let file = directory.open(NAME, OpenMode::Read, true).unwrap();
    let mut bytes = AlignedBuffer::zeroed(PIECES * PIECE_BYTES);
    file.read_at(&mut bytes, 0).unwrap();
    bytes.chunks(4096).map(|block| block[0]).collect()
}

#[test]
fn who_has_the_lock_of_a_killed_process_finds_nothing_of_it_in_flight() {
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let directory = OsDirectory::open_or_create(scratch.path()).unwrap();
    let file = directory.open(NAME, OpenMode::CreateNew, true).unwrap();
    file.allocate((PIECES * PIECE_BYTES) as u64).unwrap();
    let held_back = HeldBack::new(scratch.path());
    for round in 0..4u64 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writer", "--nocapture"])
            .env(DIRECTORY, scratch.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        held_back.add(child.id());
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map_while(Result::ok).any(|line| line.contains("writes")));
        std::thread::sleep(Duration::from_micros(200_000 + 37_000 * round));
        child.kill().unwrap();
        child.wait().unwrap();
        let _lock = directory.lock().expect("nobody else has it");
        let before = contents(scratch.path());
        std::thread::sleep(Duration::from_secs(1));
        assert!(contents(scratch.path()) == before, "what is there has changed behind the lock");
    }
}
