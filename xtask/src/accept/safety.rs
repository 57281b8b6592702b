//! Seeds of the simulation.

use super::sweeps::figure;
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
