//! Figure 8: the distributions of the times of single operations, and their tails.

use super::figure::{Axis, Curve, Figure};
use crate::times::{DataComponentHistograms, OperationTimes};
use hdrhistogram::Histogram;

/// Where the left graph ends, in microseconds.
const LEFT_END_US: f64 = 30.0;
/// Points of the tail to each power of ten.
const TAIL_POINTS: i32 = 20;
/// What is beyond it counts as delayed: the paper's shelf is nearly so long, in microseconds.
const DELAY_US: f64 = 100.0;

/// Left and right graph.
pub(super) fn figure_8(transactions: &OperationTimes, component: &DataComponentHistograms) -> [Figure; 2] {
    let reads = transactions.reads();
    let here = 100.0 * transactions.reads_here.len() as f64 / reads.len().max(1) as f64;
    let kinds = [
        ("reads", &reads),
        ("updates", &transactions.updates),
        ("gets of the data component", &component.gets),
        ("upserts of the data component, alone", &component.upserts),
        ("the same in batches, an equal share each", &component.upserts_in_batches),
    ];
    let means: Vec<String> =
        kinds.iter().map(|(name, times)| format!("{name} {:.2} us", microseconds(times.mean()))).collect();
    let delayed = |times: &Histogram<u64>| 100.0 - percentile(times, DELAY_US);
    let curves = |points: fn(&Histogram<u64>) -> Vec<(f64, f64)>, mean: fn(f64) -> f64| -> Vec<Curve> {
        let curve = |(name, times): &(&str, &Histogram<u64>)| {
            let at = microseconds(times.mean());
            let mean = (!times.is_empty()).then(|| (at, mean(percentile(times, at))));
            Curve::measured(*name, points(times)).with_mean(mean)
        };
        kinds.iter().map(curve).collect()
    };
    let mut left = curves(distribution, |below| below);
    left.extend([
        Curve::paper("mean of reads, the paper", &[(2.4, 0.0), (2.4, 100.0)]),
        Curve::paper("mean of gets, the paper", &[(11.0, 0.0), (11.0, 100.0)]),
    ]);
    let mut right = curves(tail, |below| 100.0 - below);
    right.push(Curve::paper(
        "the paper: fewer are delayed by collection",
        &[(DELAY_US / 10.0, 0.1), (DELAY_US, 0.1)],
    ));
    [
        Figure {
            name: "figure-8-left",
            title: "Figure 8, left: times of single operations".into(),
            note: format!(
                "Each operation by itself within a transaction of the mix, the clock included, nothing told ahead; gets and upserts as \
                 the transaction component and the proxy see them. Means, which are the large points: {}. {here:.1} % of the reads are \
                 answered by the transaction component (the paper: 92 %, after its knee). The paper states 2.4 us for reads and 11 us \
                 for gets. Upserts come in sorted batches here; one in 64 is also applied alone. How much memory versions have is \
                 ours to choose, the paper does not tell.",
                means.join(", "),
            ),
            x: Axis::linear("microseconds"),
            y: Axis::linear("operations that took at most that, per cent"),
            curves: left,
        },
        Figure {
            name: "figure-8-right",
            title: "Figure 8, right: the tails of the same".into(),
            note: format!(
                "{:.4} % of the reads and {:.4} % of the updates took longer than {DELAY_US} us, for whatever reason: a thread of this \
                 machine may also have lost its processor. The paper: less than 0.1 % are delayed by collection, by up to nearly \
                 {DELAY_US} us.",
                delayed(&reads),
                delayed(&transactions.updates),
            ),
            x: Axis::logarithmic("microseconds"),
            y: Axis::logarithmic("operations that took longer, per cent"),
            curves: right,
        },
    ]
}

fn microseconds(nanoseconds: f64) -> f64 {
    nanoseconds / 1000.0
}

/// The per cents of the operations that took at most so long.
fn percentile(times: &Histogram<u64>, microseconds: f64) -> f64 {
    times.percentile_below((microseconds * 1000.0) as u64)
}

/// Per cents by microseconds, as far as the left graph goes.
fn distribution(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    if times.is_empty() {
        return Vec::new();
    }
    let end = LEFT_END_US.min(microseconds(times.max() as f64));
    (0..=300).map(|step| f64::from(step) / 300.0 * end).map(|at| (at, percentile(times, at))).collect()
}

/// Per cents that took longer, by microseconds, as far as there are operations for it.
fn tail(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    let parts = (0..).map(|step| 10f64.powf(-f64::from(step) / f64::from(TAIL_POINTS)));
    parts
        .take_while(|part| part * times.len() as f64 >= 1.0)
        .map(|part| (microseconds(times.value_at_quantile(1.0 - part) as f64), 100.0 * part))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::times::DataComponentTimes;
    use deuteron::DataComponentObserver;
    use std::time::Duration;

    #[test]
    fn both_graphs_show_reads_updates_gets_and_upserts_with_their_means() {
        let mut transactions = OperationTimes::new();
        let component = DataComponentTimes::new();
        for number in 0..10_000u64 {
            let time = Duration::from_nanos(if number == 0 { 1_000_000 } else { 1_000 + number % 1_000 });
            transactions.note_read(number % 10 == 0, time);
            transactions.note_update(2 * time);
            component.got(time);
            component.upserted(3 * time);
            component.posted(2, time);
        }
        let [left, right] = figure_8(&transactions, &component.take());
        assert!(left.note.contains("90.0 %") && right.note.starts_with("0.0100 % of the reads"), "{right:?}");
        for figure in [&left, &right] {
            let ours = &figure.curves[..5];
            assert!(ours.iter().all(|curve| curve.points.len() > 50 && curve.mean.is_some()));
            assert!(ours.iter().any(|curve| curve.name.starts_with("upserts")));
        }
        let reads = &left.curves[0].points;
        assert!(
            reads.is_sorted_by(|one, other| one.1 <= other.1) && reads[300].0 == LEFT_END_US,
            "{reads:?}"
        );
        let last = right.curves[0].points.last().unwrap();
        assert!((last.1 - 0.01).abs() < 1e-3 && last.0 < 1_001.0, "{last:?}");
        let [empty, _] = figure_8(&OperationTimes::new(), &DataComponentTimes::new().take());
        assert!(empty.curves[..5].iter().all(|curve| curve.points.is_empty() && curve.mean.is_none()));
    }
}
