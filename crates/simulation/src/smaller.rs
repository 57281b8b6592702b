//! Makes a failing run smaller: fewer steps, clients, keys and features, as long as it fails.

use crate::configuration::Configuration;
use crate::features::Features;
use crate::run::run;

/// The smallest run that was found to fail as well, with no more than a few hundred attempts. The problem may be another: what is small
/// and fails is worth more than what is large and fails in the same way.
///
/// ```
/// use deuteron_simulation::{Configuration, smaller};
/// let fine = Configuration::of(1);
/// assert_eq!(smaller(&fine).steps, fine.steps, "it does not fail at all");
/// ```
pub fn smaller(configuration: &Configuration) -> Configuration {
    let mut smallest = configuration.clone();
    let Some(steps) = failing_steps(&smallest) else { return smallest };
    smallest.steps = steps;
    loop {
        let before = (smallest.steps, smallest.features, smallest.clients, smallest.keys);
        for feature in Features::all() {
            let features = smallest.features.without(feature);
            keep(&mut smallest, |candidate| candidate.features = features);
        }
        for clients in [1, 2, 3] {
            keep(&mut smallest, |candidate| candidate.clients = candidate.clients.min(clients));
        }
        for keys in [2, 4, 12, 40] {
            keep(&mut smallest, |candidate| candidate.keys = candidate.keys.min(keys));
        }
        let mut less = smallest.steps / 2;
        while less > 0 {
            keep(&mut smallest, |candidate| candidate.steps = candidate.steps.saturating_sub(less));
            less /= 2;
        }
        if before == (smallest.steps, smallest.features, smallest.clients, smallest.keys) {
            return smallest;
        }
    }
}

/// Takes a change if the run with it fails.
fn keep(smallest: &mut Configuration, change: impl FnOnce(&mut Configuration)) {
    let mut candidate = smallest.clone();
    change(&mut candidate);
    let parts = |of: &Configuration| (of.steps, of.features, of.clients, of.keys);
    if parts(&candidate) != parts(smallest)
        && let Some(steps) = failing_steps(&candidate)
    {
        candidate.steps = steps;
        *smallest = candidate;
    }
}

/// After how many steps the run fails, if it does.
fn failing_steps(configuration: &Configuration) -> Option<u32> {
    let outcome = run(configuration);
    outcome.problem.map(|_| outcome.report.steps as u32)
}
