//! The acceptance points of safety; seeds of the simulation and sweeps of the whole engine.

use super::sweeps::{figure, sweep_of};
use super::{Figure, Point, Quick};
use crate::workspace::{cargo, displayed, output};

/// Safety: simulation, faults, corruption, isolation, schedules, fuzzing.
pub const POINTS: &[Point] = &[
    Point { name: "seeds", bar: "100 000 seeds green, equal trace hash on 100 run twice", run: seeds },
    Point { name: "crash-points", bar: "100 % of I/O points, 0 failures", run: crash_points },
    Point { name: "faults", bar: "100 % of I/O points, 0 panics", run: faults },
    Point { name: "corruptions", bar: "1 000 000 injected, 0 silent", run: super::corruptions::corruptions },
    Point { name: "kill", bar: "5 000 rounds, 0 acknowledged commits lost", run: super::kill::kill },
    Point {
        name: "isolation",
        bar: "1 M transactions, 0 anomalies, both checkers agree",
        run: super::isolation::isolation,
    },
    Point {
        name: "canaries",
        bar: "every planted bug caught, nothing found without one",
        run: super::canaries::canaries,
    },
    Point {
        name: "schedules",
        bar: "loom exhaustive, 1 M shuttle schedules, 0 ThreadSanitizer reports",
        run: super::schedules::schedules,
    },
    Point { name: "fuzz", bar: "0 crashes", run: super::fuzz::fuzz },
    Point { name: "coverage", bar: "at least 95 % of the engine's lines", run: super::coverage::coverage },
    Point {
        name: "mutants",
        bar: "at least 90 % caught of 200 in log, tc and llama",
        run: super::mutants::sample,
    },
    Point {
        name: "salvage",
        bar: "share of records from 1, 10 and 100 damaged blocks",
        run: super::salvage::salvage,
    },
];

/// Seeds that nobody has used before; the first hundred are run twice.
fn seeds(quick: Quick) -> Result<Figure, String> {
    let mut simulation = cargo();
    simulation.args(["run", "--quiet", "--release", "--locked", "--package", "deuteron-simulation", "--"]);
    simulation.args(["--seeds", quick.pick("400", "100000"), "--twice", "100"]);
    eprintln!("+ {}", displayed(&simulation));
    figure(&output(&mut simulation)?)
}

/// The size of the sweeps at which the workload has over a thousand transactions.
const FULL: u64 = 17;

/// The power goes, or the process dies, before and in the middle of every I/O of the whole engine.
fn crash_points(quick: Quick) -> Result<Figure, String> {
    sweep_of(&["crashes::"], quick.pick(2, FULL), &["deuteron"], &["crash_sweep"])
}

/// Every I/O of the whole engine fails once, in every way; and many of its allocations.
fn faults(quick: Quick) -> Result<Figure, String> {
    sweep_of(&["faults::", "allocations::"], quick.pick(1, FULL), &["deuteron"], &["crash_sweep"])
}
