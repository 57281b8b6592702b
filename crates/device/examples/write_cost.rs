//! What durable writes cost on a directory: `cargo run --release -p deuteron-device --example write_cost -- PATH`.

use deuteron_device::{AlignedBuffer, DeviceError, Directory, OpenMode, OsDirectory};
use std::time::Instant;

const TOTAL_BYTES: u64 = 64 << 20;

fn main() -> Result<(), DeviceError> {
    let path = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    let directory = OsDirectory::open_or_create(&path)?;
    for direct in [true, false] {
        for (size, writes) in [(4 << 10, 200), (64 << 10, 200), (1 << 20, 64), (4 << 20, 16)] {
            let name = format!("write-cost-{}", std::process::id());
            let file = directory.open(&name, OpenMode::CreateNew, direct)?;
            file.allocate(TOTAL_BYTES)?;
            let buffer = AlignedBuffer::zeroed(size);
            let start = Instant::now();
            for index in 0..writes {
                file.write_durable_at(&buffer, index * size as u64)?;
            }
            let seconds = start.elapsed().as_secs_f64();
            println!(
                "direct {direct}, {:>4} KiB: {:>8.3} ms a write, {:>7.1} MB/s",
                size >> 10,
                seconds * 1e3 / writes as f64,
                (writes * size as u64) as f64 / 1e6 / seconds,
            );
            directory.remove(&name)?;
        }
    }
    println!("direct I/O refused: {}", directory.direct_refused());
    Ok(())
}
