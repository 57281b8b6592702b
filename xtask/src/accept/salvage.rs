//! Salvage: what is left of a database of which blocks are damaged.

use super::{Figure, Quick};
use crate::workspace::{displayed, last_line, output, release_binary, scratch};
use serde_json::Value;
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

const BLOCK_BYTES: u64 = 4096;

/// A numbered record's value.
fn value(number: u64, version: u64) -> String {
    format!("{number:020}-{version:010}-{:060}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

/// A sequence that repeats.
struct Sequence(u64);

impl Sequence {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}

/// Writes `records` as CSV, imports them, and a fifth of them again with other values.
fn fill(database: &Path, directory: &Path, records: u64) -> Result<HashMap<String, String>, String> {
    let mut expected = HashMap::new();
    let mut sequence = Sequence(1);
    for (version, count) in [(1, records), (2, records / 5)] {
        let file = directory.join(format!("version-{version}.csv"));
        let failed = |error| format!("cannot write {}: {error}", file.display());
        let mut text = std::io::BufWriter::new(File::create(&file).map_err(failed)?);
        writeln!(text, "key,value").map_err(failed)?;
        for at in 0..count {
            let number = if version == 1 { at } else { sequence.below(records) };
            let (key, value) = (format!("key-{number:012}"), value(number, version));
            writeln!(text, "{key},{value}").map_err(failed)?;
            expected.insert(key, value);
        }
        text.flush().map_err(failed)?;
        drop(text);
        let mut import = Command::new(release_binary()?);
        import.args(["import", "--memory", "64M"]).arg(database).arg("records").arg(&file);
        eprintln!("+ {}", displayed(&import));
        output(&mut import)?;
        std::fs::remove_file(&file).map_err(failed)?;
    }
    Ok(expected)
}

/// Overwrites blocks, chosen among those of the store and the log that hold anything. How many there were to choose from.
fn damage(database: &Path, count: u64, sequence: &mut Sequence) -> Result<u64, String> {
    let failed = |error: std::io::Error| format!("cannot damage the database: {error}");
    let mut written = Vec::new();
    for entry in std::fs::read_dir(database).map_err(failed)?.flatten() {
        if !entry.file_name().to_string_lossy().contains('-') {
            continue;
        }
        let file = File::open(entry.path()).map_err(failed)?;
        let mut block = vec![0; BLOCK_BYTES as usize];
        for at in 0..file.metadata().map_err(failed)?.len() / BLOCK_BYTES {
            file.read_exact_at(&mut block, at * BLOCK_BYTES).map_err(failed)?;
            if block.iter().any(|&byte| byte != 0) {
                written.push((entry.path(), at * BLOCK_BYTES));
            }
        }
    }
    for _ in 0..count {
        let (path, at) = &written[sequence.below(written.len() as u64) as usize];
        let noise: Vec<u8> = (0..BLOCK_BYTES).map(|_| sequence.below(256) as u8).collect();
        let file = OpenOptions::new().write(true).open(path).map_err(failed)?;
        file.write_all_at(&noise, *at).map_err(failed)?;
    }
    Ok(written.len() as u64)
}

/// Reads the lines of a salvaged table: how many records are right, and how many are as they never were, or as they were before.
fn compare(target: &Path, expected: &HashMap<String, String>) -> Result<(u64, u64), String> {
    let failed = |error: std::io::Error| format!("cannot read what was salvaged: {error}");
    let (mut right, mut other) = (0, 0);
    for entry in std::fs::read_dir(target).map_err(failed)?.flatten() {
        if entry.file_name() == "undecided.jsonl" {
            continue;
        }
        for line in BufReader::new(File::open(entry.path()).map_err(failed)?).lines() {
            let record: Value = serde_json::from_str(&line.map_err(failed)?)
                .map_err(|error| format!("a line is not JSON: {error}"))?;
            let text = |field| record.get(field).and_then(Value::as_str).unwrap_or_default();
            match expected.get(text("key")) {
                Some(value) if value == text("value") => right += 1,
                _ => other += 1,
            }
        }
    }
    Ok((right, other))
}

/// The share of records that come back from databases with damaged blocks.
pub fn salvage(quick: Quick) -> Result<Figure, String> {
    let records: u64 = quick.pick(100_000, 1_000_000);
    let directory = scratch()?;
    let sound = directory.path().join("sound.db");
    let expected = fill(&sound, directory.path(), records)?;
    let mut sequence = Sequence(7);
    let (mut parts, mut ok) = (Vec::new(), true);
    for count in [0, 1, 10, 100] {
        let damaged = directory.path().join(format!("damaged-{count}.db"));
        let target = directory.path().join(format!("salvaged-{count}"));
        let failed = |error: std::io::Error| format!("cannot copy the database: {error}");
        std::fs::create_dir(&damaged).map_err(failed)?;
        for entry in std::fs::read_dir(&sound).map_err(failed)?.flatten() {
            std::fs::copy(entry.path(), damaged.join(entry.file_name())).map_err(failed)?;
        }
        let blocks = damage(&damaged, count, &mut sequence)?;
        let mut salvage = Command::new(release_binary()?);
        salvage.args(["salvage", "--encoding", "utf8", "--json"]).arg(&damaged).arg(&target);
        eprintln!("+ {}", displayed(&salvage));
        let said =
            salvage.output().map_err(|error| format!("cannot run {}: {error}", displayed(&salvage)))?;
        if said.stdout.is_empty() {
            return Err(last_line(&String::from_utf8_lossy(&said.stderr)).to_owned());
        }
        let (right, other) = compare(&target, &expected)?;
        let share = right as f64 / expected.len() as f64;
        parts.push(format!(
            "{count} of {blocks} blocks damaged: {:.3} % as they should be, {other} as they were before",
            100.0 * share
        ));
        ok &= if count == 0 { share == 1.0 && other == 0 } else { share > 0.0 };
        for path in [damaged, target] {
            std::fs::remove_dir_all(path).map_err(failed)?;
        }
    }
    Ok(Figure { figure: format!("{} records; {}", expected.len(), parts.join("; ")), ok })
}
