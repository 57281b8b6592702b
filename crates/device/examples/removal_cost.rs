//! How long reads wait while files are removed, at once and in pieces:
//! `cargo run --release -p deuteron-device --example removal_cost -- PATH`.

use deuteron_device::{AlignedBuffer, DeviceError, Directory, File, OpenMode, OsDirectory};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const FILE_BYTES: u64 = 64 << 20;
const READ_FILE_BYTES: u64 = 1 << 30;
const READ_BYTES: usize = 8 << 10;
const PIECE_BYTES: u64 = 4 << 20;
const FILES: usize = 8;
const ROUNDS: usize = 5;

/// A file of `bytes` that no page of a cache holds.
fn make(directory: &OsDirectory, name: &str, bytes: u64) -> Result<Arc<dyn File>, DeviceError> {
    let file = directory.open(name, OpenMode::CreateNew, true)?;
    file.allocate(bytes)?;
    let mut buffer = AlignedBuffer::zeroed(1 << 20);
    for offset in (0..bytes).step_by(buffer.len()) {
        buffer.fill((offset >> 20) as u8 | 1);
        file.write_at(&buffer, offset)?;
    }
    file.sync()?;
    Ok(file)
}

/// Reads somewhere, again and again, until `stop`; how long each read took.
fn read_on(file: &dyn File, stop: &AtomicBool) -> Vec<Duration> {
    let mut buffer = AlignedBuffer::zeroed(READ_BYTES);
    let (mut times, mut place) = (Vec::new(), 1u64);
    while !stop.load(Ordering::Relaxed) {
        place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let offset = (place >> 33) % (READ_FILE_BYTES / READ_BYTES as u64) * READ_BYTES as u64;
        let begin = Instant::now();
        file.read_at(&mut buffer, offset).expect("reads");
        times.push(begin.elapsed());
    }
    times
}

/// What is removed, and how.
type Remove<'a> = &'a dyn Fn(&str, Arc<dyn File>) -> Result<(), DeviceError>;

fn main() -> Result<(), DeviceError> {
    let path = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let directory = OsDirectory::open_or_create(&path)?;
    let name = |number: usize| format!("removal-cost-{}-{number}", std::process::id());
    let read = make(&directory, &name(FILES), READ_FILE_BYTES)?;
    let at_once = |name: &str, file| {
        drop(file);
        directory.remove(name)?;
        directory.sync()
    };
    let in_pieces = |name: &str, file| {
        directory.remove_in_pieces(name, file, PIECE_BYTES)?;
        directory.sync()
    };
    let nothing = |_: &str, _| {
        std::thread::sleep(Duration::from_millis(30));
        Ok(())
    };
    let ways: [(&str, Remove<'_>); 3] =
        [("nothing", &nothing), ("at once", &at_once), ("in pieces", &in_pieces)];
    for round in 0..ROUNDS {
        for (what, remove) in ways {
            let files: Vec<_> = match what {
                "nothing" => (0..FILES).map(|_| Ok(Arc::clone(&read))).collect::<Result<_, DeviceError>>()?,
                _ => (0..FILES)
                    .map(|number| make(&directory, &name(number), FILE_BYTES))
                    .collect::<Result<_, _>>()?,
            };
            let stop = AtomicBool::new(false);
            let (mut times, each) = std::thread::scope(|scope| {
                let reader = scope.spawn(|| read_on(&*read, &stop));
                let begin = Instant::now();
                for (number, file) in files.into_iter().enumerate() {
                    remove(&name(number), file).expect("removes");
                }
                let each = begin.elapsed() / FILES as u32;
                stop.store(true, Ordering::Relaxed);
                (reader.join().expect("reads"), each)
            });
            times.sort_unstable();
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            let [median, p99, p999, most] = [0.5, 0.99, 0.999, 1.0].map(at);
            println!(
                "round {round}, {what:9}: {each:>9.1?} a file; {:>5} reads: p50 {median:.0?}, p99 {p99:.0?}, p99.9 {p999:.0?}, longest {most:.1?}",
                times.len()
            );
        }
    }
    directory.remove(&name(FILES))?;
    directory.sync()
}
