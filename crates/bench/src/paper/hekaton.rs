//! Tables 1 and 2 of *Hekaton*: cycles of a transaction, by its size.

use super::figure::{Axis, Curve, Figure};
use crate::Report;

/// Rows of Hekaton's tables.
pub(super) const ROWS: u64 = 1_000_000;
/// Operations in a transaction.
pub(super) const SIZES: [usize; 5] = [1, 10, 100, 1_000, 10_000];

/// One of the tables.
pub(super) struct Table {
    name: &'static str,
    title: &'static str,
    pub(super) reads: f64,
    /// Million cycles of a transaction: the regular engine, the compiled procedures.
    interpreted: [f64; SIZES.len()],
    compiled: [f64; SIZES.len()],
}

pub(super) const TABLES: [Table; 2] = [
    Table {
        name: "hekaton-table-1",
        title: "Hekaton's Table 1: lookups",
        reads: 1.0,
        interpreted: [0.734, 0.937, 2.72, 20.1, 201.0],
        compiled: [0.040, 0.051, 0.150, 1.063, 9.85],
    },
    Table {
        name: "hekaton-table-2",
        title: "Hekaton's Table 2: updates",
        reads: 0.0,
        interpreted: [0.910, 1.38, 8.17, 41.9, 439.0],
        compiled: [0.045, 0.059, 0.260, 1.50, 14.4],
    },
];

/// The table with what one thread did in transactions of each size, on a processor of so many cycles a microsecond.
pub(super) fn figure(table: &Table, reports: &[Report], megahertz: f64) -> Figure {
    let sized: Vec<_> =
        SIZES.iter().zip(reports).filter(|(_, report)| report.commits > 0 && megahertz > 0.0).collect();
    let cycles = |seconds: fn(&Report) -> f64| -> Vec<(f64, f64)> {
        let point = |(size, report): &(&usize, &Report)| {
            (**size as f64, seconds(report) / report.commits as f64 * megahertz)
        };
        sized.iter().map(point).collect()
    };
    let theirs = |cycles: [f64; SIZES.len()]| -> Vec<(f64, f64)> {
        SIZES.iter().map(|&size| size as f64).zip(cycles).collect()
    };
    let thread = cycles(|report| report.transaction_seconds);
    let ratio = thread.last().filter(|point| point.0 == SIZES[SIZES.len() - 1] as f64).map(|point| {
        let most = table.compiled[SIZES.len() - 1] / point.1;
        format!(" In transactions of 10,000 the compiled procedures take {most:.2} times the cycles of our thread.")
    });
    let rate = reports.last().map_or(0.0, |report| report.throughput_ops / 1e6);
    Figure {
        name: table.name,
        title: table.title.into(),
        note: format!(
            "Million cycles of a transaction on random rows of a table of 40 bytes a row. Ours are processor time by its stated \
             {megahertz:.0} MHz (cycles are not counted), of the thread that runs transactions, and of all threads with \
             what is done behind it; keys are told ahead.{} {rate:.2} M operations/s in transactions of 10,000. The paper's column of \
             speedups is interpreted over compiled; we have no interpreted engine.",
            ratio.unwrap_or_default()
        ),
        x: Axis::logarithmic("operations in one transaction"),
        y: Axis::logarithmic("million cycles a transaction"),
        curves: vec![
            Curve::measured("its thread", thread),
            Curve::measured("all threads", cycles(|report| report.processor_seconds)),
            Curve::paper("Hekaton, compiled", &theirs(table.compiled)),
            Curve::paper("SQL Server, interpreted", &theirs(table.interpreted)),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_told_in_cycles_and_what_did_not_commit_is_left_out() {
        let report = |commits: u64| Report {
            commits,
            transaction_seconds: 2.0,
            processor_seconds: 3.0,
            ..Report::default()
        };
        let reports = [1_000_000, 500_000, 50_000, 0, 1_000].map(report);
        let figure = figure(&TABLES[0], &reports, 2_000.0);
        let [thread, all, compiled, interpreted] = [0, 1, 2, 3].map(|curve| &figure.curves[curve].points);
        assert_eq!(thread.iter().map(|point| point.0 as usize).collect::<Vec<_>>(), [1, 10, 100, 10_000]);
        assert!((thread[0].1 - 0.004).abs() < 1e-9 && (all[0].1 - 0.006).abs() < 1e-9);
        assert_eq!((compiled[4], interpreted[0]), ((10_000.0, 9.85), (1.0, 0.734)));
        assert!(figure.note.contains("take 2.46 times the cycles"), "{}", figure.note);
    }
}
