//! What the operating system says of this process and of a directory.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The most memory that this process has had resident since it began (`VmHWM`), in bytes; 0 where the operating
/// system does not say.
///
/// ```
/// assert!(!cfg!(target_os = "linux") || deuteron_bench::peak_rss_bytes() > 100_000);
/// ```
pub fn peak_rss_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .and_then(|kilobytes| kilobytes.trim().parse::<u64>().ok())
        .map_or(0, |kilobytes| kilobytes * 1024)
}

/// The bytes that the files under `directory` occupy on disk, preallocated space included. Files that vanish
/// meanwhile do not count.
///
/// ```
/// let scratch = tempfile::tempdir()?;
/// std::fs::write(scratch.path().join("a"), vec![1u8; 10_000])?;
/// assert!(deuteron_bench::directory_bytes(scratch.path()) >= 10_000);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn directory_bytes(directory: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(directory) else { return 0 };
    entries
        .flatten()
        .map(|entry| match entry.metadata() {
            Ok(metadata) if metadata.is_dir() => directory_bytes(&entry.path()),
            // Blocks of 512 bytes, whatever the file system's own block is (stat(2)).
            Ok(metadata) => metadata.blocks() * 512,
            Err(_) => 0,
        })
        .sum()
}
