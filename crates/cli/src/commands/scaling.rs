//! `bench scaling`: the same transactions by more and more threads, and what they lose to each other.

use super::WorkDirectory;
use super::bench::options;
use crate::arguments::{MixName, ScalingArguments};
use crate::failure::Outcome;
use crate::output;
use crate::progress::Progress;
use crate::quantity::count;
use deuteron_bench::{Driver, EmbeddedStore, ScalingFigure, ScalingMix, SharedWrites, load, run_scaling};
use std::collections::BTreeMap;

/// `deuteron bench scaling`.
pub fn run(arguments: &ScalingArguments, json: bool) -> Outcome {
    let points = arguments.mix.len() * arguments.threads.len();
    let bar = Progress::counting(points as u64, "measure", "points");
    let mut figures = Vec::new();
    for mix in &arguments.mix {
        let mix = match mix {
            MixName::Paper => ScalingMix::Paper,
            MixName::Reads => ScalingMix::Reads,
            MixName::Writes => ScalingMix::Writes,
        };
        let directory = WorkDirectory::new(None)?;
        crate::allocator::suit(arguments.memory);
        let options = options(arguments.memory, &arguments.pin);
        let store = EmbeddedStore::open(options, directory.path(), arguments.durability, 1)?;
        let driver = |threads| Driver {
            threads,
            warmup: arguments.warmup_seconds,
            seconds: arguments.seconds,
            seed: arguments.seed,
            pin: arguments.pin.pin.clone(),
            ..Driver::default()
        };
        load(&store, &mix.workload(arguments.records), &driver(2), &mut |_| {})?;
        for &threads in &arguments.threads {
            figures.push(run_scaling(&store, mix, arguments.records, &driver(threads as usize))?);
            bar.set(figures.len() as u64);
        }
        store.close()?;
    }
    drop(bar);
    if json { output::json(&figures) } else { output::table(&rows(&figures)) }
}

fn rows(figures: &[ScalingFigure]) -> Vec<(String, String)> {
    let listed = |numbers: &BTreeMap<String, f64>, digits: usize, unit: &str| {
        let each = numbers.iter().map(|(name, number)| format!("{name} {number:.digits$}{unit}"));
        each.collect::<Vec<_>>().join(", ")
    };
    let rows = figures.iter().flat_map(|figure| {
        let (all, each) = (figure.operations_per_second, figure.operations_per_second_per_thread);
        let mut lost = format!("{:.1} for a million operations", figure.lost_per_million_sum);
        if !figure.lost_per_million.is_empty() {
            lost = format!("{lost}: {}", listed(&figure.lost_per_million, 1, ""));
        }
        let SharedWrites { clock, log } = figure.shared_writes_per_transaction;
        [
            (
                format!("{}, {} threads", figure.mix, figure.threads),
                format!("{} operations/s, {} a thread", count(all as u64), count(each as u64)),
            ),
            ("  aborted".into(), format!("{:.2} %", 100.0 * figure.abort_rate)),
            ("  swaps lost".into(), lost),
            (
                "  writes to shared lines".into(),
                format!("{clock:.2} to the clock, {log:.2} to the log, a transaction"),
            ),
            (
                "  own threads".into(),
                format!(
                    "{} for a million operations",
                    listed(&figure.background_seconds_per_million, 3, " s")
                ),
            ),
        ]
    });
    rows.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_where_swaps_are_lost_are_named() {
        let figure = ScalingFigure {
            mix: "paper".into(),
            threads: 16,
            operations_per_second: 1.6e6,
            operations_per_second_per_thread: 1e5,
            abort_rate: 0.001,
            lost_per_million: [("versions".to_owned(), 3.25), ("status words".to_owned(), 1.0)].into(),
            lost_per_million_sum: 4.25,
            shared_writes_per_transaction: SharedWrites { clock: 1.0, log: 2.786 },
            background_seconds_per_million: [("proxy".to_owned(), 0.0625)].into(),
        };
        let none =
            ScalingFigure { lost_per_million: BTreeMap::new(), lost_per_million_sum: 0.0, ..figure.clone() };
        let rows = rows(&[figure, none]);
        let values: Vec<&str> = rows.iter().map(|(_, value)| value.as_str()).collect();
        assert_eq!(rows[0].0, "paper, 16 threads");
        assert_eq!(
            values[..5],
            [
                "1 600 000 operations/s, 100 000 a thread",
                "0.10 %",
                "4.2 for a million operations: status words 1.0, versions 3.2",
                "1.00 to the clock, 2.79 to the log, a transaction",
                "proxy 0.062 s for a million operations",
            ]
        );
        assert_eq!(values[7], "0.0 for a million operations");
    }
}
