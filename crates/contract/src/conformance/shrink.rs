//! Makes a failing history smaller: drops steps and operations for as long as it keeps failing.

use super::execute::execute_caught;
use super::history::{History, Step};
use super::{Broken, Harness};

/// A smaller history that breaks a rule (perhaps another one: that is a finding as well), and how it does.
pub(super) fn shrink(
    harness: &dyn Harness,
    mut history: History,
    mut broken: Broken,
    runs_max: usize,
) -> (History, Broken) {
    let mut runs = 0;
    let mut attempt = |candidate: History, history: &mut History, broken: &mut Broken| {
        runs += 1;
        if runs > runs_max {
            return None;
        }
        let failed = execute_caught(harness, &candidate).err();
        Some(failed.map(|smaller| (*history, *broken) = (candidate, smaller)).is_some())
    };
    // Whole spans first, then ever smaller ones, down to single operations.
    let mut span = size(&history) / 2;
    loop {
        let mut start = 0;
        while start < size(&history) {
            let candidate = without(&history, start, span.max(1));
            match attempt(candidate, &mut history, &mut broken) {
                None => return (history, broken),
                Some(true) => {}
                Some(false) => start += span.max(1),
            }
        }
        if span <= 1 {
            return (history, broken);
        }
        span /= 2;
    }
}

/// How many atoms can be dropped: operations, and every other step but announcements of the stable log, which
/// keep the rest within the contract.
fn size(history: &History) -> usize {
    let atoms = history.steps.iter().map(|step| match step {
        Step::Apply(changes) => changes.len(),
        Step::EndOfStableLog(_) => 0,
        _ => 1,
    });
    atoms.sum()
}

fn without(history: &History, start: usize, count: usize) -> History {
    let mut atom = 0;
    let mut dropped = || {
        atom += 1;
        (start..start + count).contains(&(atom - 1))
    };
    let mut steps = Vec::new();
    for step in &history.steps {
        match step {
            Step::EndOfStableLog(_) => steps.push(step.clone()),
            Step::Apply(changes) => {
                let kept: Vec<_> = changes.iter().filter(|_| !dropped()).cloned().collect();
                if !kept.is_empty() {
                    steps.push(Step::Apply(kept));
                }
            }
            _ if dropped() => {}
            _ => steps.push(step.clone()),
        }
    }
    History { steps, ..history.clone() }
}
