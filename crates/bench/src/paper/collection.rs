//! Figure 9: what collecting versions costs, over time.

use super::figure::{Axis, Curve, Figure};
use crate::{Timeline, TimelineSample};

/// The figures of section 6.5: those of the picture, and with a limit as low as its text has another.
pub(super) fn figure_9(timeline: &Timeline, low: &Timeline, threads: usize) -> [Figure; 4] {
    let end = timeline.samples.last().map_or(0.0, |sample| sample.seconds);
    let (first, last) = (mean_rate(timeline, 0.0, 0.1), mean_rate(timeline, 0.5, 1.0));
    let figure = |name, title: &str, note: String, label, curves| Figure {
        name,
        title: title.into(),
        note,
        x: Axis::linear("seconds"),
        y: Axis::linear(label),
        curves,
    };
    let curve = |name: &str, of: &dyn Fn(&TimelineSample) -> f64| Curve::measured(name, points(timeline, of));
    let flat = |name: &str, value: f64| Curve::paper(name, &[(0.0, value), (end, value)]);
    // By the clock of this machine, whose table is smaller.
    let of_threads = |sample: &TimelineSample| 100.0 * sample.collection_share / threads as f64;
    [
        figure(
            "figure-9-throughput",
            "Figure 9, top: throughput while versions are collected",
            format!(
                "From an empty table of versions, without checkpoints; {} records were evicted and {} versions dropped. {first:.3} M \
                 transactions/s in the first tenth of the time, {last:.3} M in its second half. The paper, in five minutes: from 1.6 M \
                 to 1.3 M once its table is full, after 160 s with 16 threads.",
                timeline.evictions, timeline.versions_dropped
            ),
            "million transactions a second",
            vec![
                curve("this machine", &|sample| sample.commits_per_second / 1e6),
                flat("the paper's machine, at first", 1.6),
                flat("the paper's machine, full", 1.3),
            ],
        ),
        figure(
            "figure-9-memory",
            "Figure 9, middle: memory of versions",
            "Against both watermarks: above the soft one versions and cold records are evicted, above the hard one operations help. \
             Superseded versions go at once, whatever the memory, so that the table grows by records only. What lies idle in the pool \
             counts for the watermarks, which so move. The paper's sizes are in its picture only; its table passes the soft watermark \
             after 100 s, the hard one after 160 s."
                .into(),
            "MB",
            vec![
                curve("versions and records", &|sample| sample.version_bytes as f64 / 1e6),
                curve("soft watermark", &|sample| sample.soft_watermark_bytes as f64 / 1e6),
                curve("hard watermark", &|sample| sample.hard_watermark_bytes as f64 / 1e6),
            ],
        ),
        figure(
            "figure-9-collection",
            "Figure 9, bottom: what the collection takes",
            format!(
                "Processor time of collection, by whichever thread (here mostly one of its own), as a share of the {threads} threads \
                 that run transactions. The paper: 4 % of its 16."
            ),
            "per cent of the threads that run transactions",
            vec![curve("this machine", &of_threads), flat("the paper's machine, full", 4.0)],
        ),
        figure(
            "section-6-5-low-limit",
            "Section 6.5: throughput with a low limit",
            format!(
                "With a hard limit of 20 bytes a record, as 1 GB is for the paper's 50 million (but at least 2 MiB): collection takes \
                 {:.1} % of the threads that run transactions. The paper: 1.0 M transactions/s, and 50 % of the socket.",
                100.0 * mean(low, |sample| sample.collection_share) / threads as f64
            ),
            "million transactions a second",
            vec![
                Curve::measured("this machine", points(low, &|sample| sample.commits_per_second / 1e6)),
                Curve::paper(
                    "the paper's machine",
                    &[(0.0, 1.0), (low.samples.last().map_or(0.0, |sample| sample.seconds), 1.0)],
                ),
            ],
        ),
    ]
}

fn points(timeline: &Timeline, of: &dyn Fn(&TimelineSample) -> f64) -> Vec<(f64, f64)> {
    timeline.samples.iter().map(|sample| (sample.seconds, of(sample))).collect()
}

fn mean(timeline: &Timeline, of: fn(&TimelineSample) -> f64) -> f64 {
    timeline.samples.iter().map(of).sum::<f64>() / timeline.samples.len().max(1) as f64
}

/// Million transactions a second in a part of the time.
fn mean_rate(timeline: &Timeline, from: f64, to: f64) -> f64 {
    let end = timeline.samples.last().map_or(0.0, |sample| sample.seconds);
    let among = |sample: &&TimelineSample| (from * end..=to * end).contains(&sample.seconds);
    let samples = timeline.samples.iter().filter(among).copied().collect();
    mean(&Timeline { samples, ..Timeline::default() }, |sample| sample.commits_per_second / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_told_by_its_parts_and_collection_as_a_share_of_the_threads() {
        let sample = |second: u32| TimelineSample {
            seconds: f64::from(second),
            commits_per_second: if second <= 50 { 2e6 } else { 1e6 },
            collection_share: 0.5,
            ..TimelineSample::default()
        };
        let timeline = Timeline { samples: (1..=100).map(sample).collect(), ..Timeline::default() };
        let [throughput, memory, collection, low] = figure_9(&timeline, &timeline, 10);
        assert!(throughput.note.contains("2.000 M transactions/s in the first"), "{}", throughput.note);
        assert!(throughput.note.contains("1.020 M in its second half"), "{}", throughput.note);
        assert_eq!(memory.curves.len(), 3);
        assert!(collection.curves[0].points.iter().all(|point| (point.1 - 5.0).abs() < 1e-9));
        assert!(low.note.contains("5.0 %"), "{}", low.note);
        figure_9(&Timeline::default(), &Timeline::default(), 1);
    }
}
