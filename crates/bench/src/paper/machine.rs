//! Table 1: the machine, beside the paper's.

use crate::DeviceReport;
use std::fs;

/// What is told of a machine: what, of the paper's, of this one.
pub(super) fn table_1(device: &DeviceReport) -> [(&'static str, &'static str, String); 6] {
    let first = |path: &str| fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let memory = first("/proc/meminfo");
    let kibibytes =
        value_of(&memory, "MemTotal").and_then(|size| size.strip_suffix(" kB")?.parse::<f64>().ok());
    let gibibytes = kibibytes.unwrap_or(0.0) / f64::from(1 << 20);
    let reads = device.reads.iter().map(|read| read.together_per_second.max(read.threads_per_second));
    let around = if device.direct { "around" } else { "through" };
    [
        (
            "OS",
            "Windows Server 2012",
            format!("{} {}", first("/proc/sys/kernel/ostype"), first("/proc/sys/kernel/osrelease")),
        ),
        ("CPUs", "4 Intel Xeon E5-4650L", model()),
        ("hardware threads", "64 (32 cores)", processors().to_string()),
        ("memory", "192 GB DDR3-1600", format!("{gibibytes:.0} GiB")),
        (
            "storage, sequential writes",
            "320 GB flash SSD: 440 MB/s (reads: 430 MB/s)",
            format!(
                "{:.0} MB/s, {around} the page cache (reads: not measured)",
                device.write_bytes_per_second / 1e6
            ),
        ),
        (
            "random reads a second",
            "91,000 (writes: 41,000)",
            format!("{:.0} of 4 KiB (writes: not measured)", reads.fold(0.0, f64::max)),
        ),
    ]
}

/// Hardware threads of this machine.
pub(super) fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, |number| number.get())
}

/// The processor's name.
pub(super) fn model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    value_of(&text, "model name").unwrap_or("an unknown processor").to_owned()
}

/// Cycles of the processor in a microsecond, as the system states them; 0 if it does not.
pub(super) fn megahertz() -> f64 {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    value_of(&text, "cpu MHz").and_then(|number| number.parse().ok()).unwrap_or(0.0)
}

/// What stands behind a name and a colon.
fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.into_iter().find(|(known, _)| known.trim() == name).map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReadFigure;

    #[test]
    fn the_machine_is_told_beside_the_papers() {
        let read = ReadFigure { depth: 1, together_per_second: 7.0, threads_per_second: 9.0 };
        let device =
            DeviceReport { write_bytes_per_second: 5e6, reads: vec![read], ..DeviceReport::default() };
        let table = table_1(&device);
        assert!(
            table[4].2.starts_with("5 MB/s, through") && table[5].2.starts_with("9 of 4 KiB"),
            "{table:?}"
        );
        assert_eq!(value_of("cpu MHz\t\t: 2100.000\n", "cpu MHz"), Some("2100.000"));
        assert_eq!(value_of("cpu MHz: 1", "MHz"), None);
    }
}
