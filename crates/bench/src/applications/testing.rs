//! What the tests of applications have in common: a database in memory, a run of it, data that is broken on purpose.

use super::*;
use crate::Driver;
use deuteron::device::MemoryDirectory;
use deuteron::{Durability, Options};
use std::sync::Arc;
use std::time::Duration;

/// A database in memory with the application's tables, empty.
pub(super) fn empty(application: &dyn Application) -> EmbeddedApplicationStore {
    let options = Options::new().memory(64 << 20);
    let directory = Arc::new(MemoryDirectory::new());
    EmbeddedApplicationStore::open_in(options, directory, Durability::None, application).unwrap()
}

/// The same with its rows in it.
pub(super) fn loaded(application: &dyn Application) -> EmbeddedApplicationStore {
    let store = empty(application);
    driver::load(application, &store, &mut |_| {}).unwrap();
    store
}

/// Runs the application on four threads until each kind of transaction has committed, and checks its conditions.
pub(super) fn run_and_check(
    application: &dyn Application,
    store: &dyn ApplicationStore,
) -> Vec<ApplicationReport> {
    let mut reports = Vec::new();
    let mut missing: Vec<&str> = application.transactions().iter().map(|(name, _)| *name).collect();
    for seed in 1.. {
        let driver = Driver { threads: 4, seconds: Duration::from_millis(150), seed, ..Driver::default() };
        let report = driver::drive(application, store, &driver, &mut |_| {}).unwrap();
        missing
            .retain(|name| !report.transactions.iter().any(|kind| kind.name == **name && kind.commits > 0));
        reports.push(report);
        assert_eq!(violated(application, store), [""; 0]);
        if missing.is_empty() {
            break;
        }
    }
    reports
}

/// The conditions that do not hold, each with what was found.
pub(super) fn violated(application: &dyn Application, store: &dyn ApplicationStore) -> Vec<String> {
    let conditions = application.check(store).unwrap();
    assert!(!conditions.is_empty());
    conditions
        .into_iter()
        .filter(|condition| !condition.holds)
        .map(|condition| format!("{}: {}", condition.name, condition.found))
        .collect()
}

/// Changes one row as no transaction would.
pub(super) fn break_row<R: Row>(
    store: &dyn ApplicationStore,
    table: usize,
    key: Key,
    change: impl Fn(&mut R),
) {
    let broken = store.transact(Access::Write, &mut |tx| {
        let mut row = read_for_update::<R>(tx, table, &key)?;
        change(&mut row);
        write(tx, table, &key, &row)
    });
    broken.unwrap();
}

/// Asserts that the kinds of transactions are drawn as often as their shares say.
pub(super) fn assert_shares(application: &dyn Application) {
    let shares = application.transactions();
    assert_eq!(shares.iter().map(|(_, share)| share).sum::<u32>(), 100);
    let mut client = application.client(7);
    let mut counts = vec![0u32; shares.len()];
    const DRAWS: u32 = 20_000;
    for _ in 0..DRAWS {
        counts[client.draw()] += 1;
    }
    for ((name, share), count) in shares.iter().zip(counts) {
        let expected = DRAWS / 100 * share;
        // Four standard deviations.
        let spread = 4.0 * f64::from(expected).sqrt();
        assert!(f64::from(count.abs_diff(expected)) < spread, "{name}: {count}, not {expected}");
    }
}

/// What a transaction that commits came to.
pub(super) fn committed<T>(
    store: &dyn ApplicationStore,
    access: Access,
    mut body: impl FnMut(&mut dyn ApplicationTransaction) -> Result<T, Interruption>,
) -> T {
    let mut value = None;
    let outcome = store.transact(access, &mut |tx| {
        value = Some(body(tx)?);
        Ok(())
    });
    outcome.unwrap();
    value.unwrap()
}
