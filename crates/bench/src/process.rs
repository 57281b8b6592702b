//! What the operating system says of this process and of a directory.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Of a second: what Linux tells all programs, whatever it uses itself (time(7), USER_HZ).
const TICKS: f64 = 100.0;

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

/// The processor time that threads of this name, of this process, have taken so far, in seconds; those that have ended do not
/// count. The system cuts names after 15 bytes, and so does this. 0 where it does not say.
///
/// ```
/// let spent = std::thread::Builder::new().name("spender".into()).spawn(|| {
///     let begin = std::time::Instant::now();
///     while begin.elapsed().as_millis() < 50 {}
///     deuteron_bench::thread_seconds("spender")
/// });
/// assert!(!cfg!(target_os = "linux") || spent?.join().unwrap() > 0.0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn thread_seconds(name: &str) -> f64 {
    let name = &name.as_bytes()[..name.len().min(15)];
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    let nanoseconds = |thread: &Path| -> Option<u64> {
        let called = std::fs::read(thread.join("comm")).ok()?;
        let spent = std::fs::read_to_string(thread.join("schedstat")).ok()?;
        if called.trim_ascii_end() == name { spent.split(' ').next()?.parse().ok() } else { None }
    };
    threads.flatten().filter_map(|thread| nanoseconds(&thread.path())).sum::<u64>() as f64 / 1e9
}

/// The processor time that the calling thread has taken so far, in seconds; 0 where the system does not say.
///
/// ```
/// let before = deuteron_bench::own_seconds();
/// assert!(deuteron_bench::own_seconds() >= before);
/// ```
pub fn own_seconds() -> f64 {
    let spent = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    spent.split(' ').next().and_then(|nanoseconds| nanoseconds.parse::<u64>().ok()).unwrap_or(0) as f64 / 1e9
}

/// The processor time that this process has taken so far, by all of its threads, in seconds, to a hundredth; 0 where the system
/// does not say.
///
/// ```
/// assert!(deuteron_bench::processor_seconds() >= 0.0);
/// ```
pub fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The second field is the program's name in parentheses, and may hold anything.
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields).split(' ');
    fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / TICKS
}

/// The time that all processors together have had nothing to do since the system began, in seconds, to a hundredth: neither for this
/// process nor for another, nor for the kernel on behalf of one. 0 where the system does not say.
///
/// ```
/// let before = deuteron_bench::idle_seconds();
/// assert!(deuteron_bench::idle_seconds() >= before);
/// ```
pub fn idle_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    idle_ticks(&stat) as f64 / TICKS
}

/// Idle, and waiting for the disk: the fourth and fifth field of the line of all processors (proc(5)).
fn idle_ticks(stat: &str) -> u64 {
    let fields =
        stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default().split_whitespace();
    fields.skip(3).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_is_what_no_processor_does_and_what_waits_for_the_disk() {
        let stat = "cpu  917 1 162 400 40 0 7 3 0 0\ncpu0 9 9 9 9 9 9 9 9 9 9\nintr 5\n";
        assert_eq!(idle_ticks(stat), 440);
        assert_eq!(idle_ticks(""), 0);
    }
}
