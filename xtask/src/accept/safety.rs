//! Seeds of the simulation; sweeps of the whole engine.

use super::sweeps::{figure, sweep_of};
use super::{Figure, Quick};
use crate::workspace::{cargo, displayed, output};

/// Seeds that nobody has used before; the first hundred are run twice.
pub fn seeds(quick: Quick) -> Result<Figure, String> {
    let mut simulation = cargo();
    simulation.args(["run", "--quiet", "--release", "--locked", "--package", "deuteron-simulation", "--"]);
    simulation.args(["--seeds", quick.pick("400", "100000"), "--twice", "100"]);
    eprintln!("+ {}", displayed(&simulation));
    figure(&output(&mut simulation)?)
}

/// The size of the sweeps at which the workload has over a thousand transactions.
const FULL: u64 = 17;

/// The power goes, or the process dies, before and in the middle of every I/O of the whole engine.
pub fn crash_points(quick: Quick) -> Result<Figure, String> {
    sweep_of("crashes::", quick.pick(2, FULL), &["deuteron"], &["crash_sweep"])
}

/// Every I/O of the whole engine fails once, in every way.
pub fn faults(quick: Quick) -> Result<Figure, String> {
    sweep_of("faults::", quick.pick(1, FULL), &["deuteron"], &["crash_sweep"])
}
