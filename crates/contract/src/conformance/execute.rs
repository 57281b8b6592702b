//! Runs a history against a component and compares with the model.

use super::history::{Change, History, Key, Step};
use super::{Broken, Harness, Instance, SplitMix};
use crate::{DataComponent, Direction, Lsn, Operation, Record, RecordView, ScanBatch, ScanRequest, TableId};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The contract over what has been applied.
#[derive(Default)]
struct Model {
    /// Every operation applied, by LSN.
    applied: BTreeMap<Lsn, Change>,
    newest: BTreeMap<(TableId, Vec<u8>), Change>,
    end_of_stable_log: Lsn,
    redo_scan_start_point: Lsn,
}

impl Model {
    fn apply(&mut self, change: &Change) {
        self.applied.insert(change.lsn, change.clone());
        let newest = self.newest.entry((change.table, change.key.clone())).or_insert_with(|| change.clone());
        if (newest.timestamp, newest.lsn) < (change.timestamp, change.lsn) {
            *newest = change.clone();
        }
    }

    /// C3: whether the component may have forgotten this tombstone. That it does not do so too early shows when
    /// an older version arrives.
    fn may_be_gone(&self, change: &Change) -> bool {
        change.value.is_none() && change.lsn < self.redo_scan_start_point
    }
}

/// A panic of the component counts as a broken rule, so that it gets a small history too.
pub(super) fn execute_caught(harness: &dyn Harness, history: &History) -> Result<(), Broken> {
    catch_unwind(AssertUnwindSafe(|| execute(harness, history))).unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<String>().map(String::as_str);
        let text = text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("(no message)");
        Err(Broken::new("panic", text))
    })
}

fn execute(harness: &dyn Harness, history: &History) -> Result<(), Broken> {
    let mut model = Model::default();
    let mut instance = harness.open();
    for step in &history.steps {
        let component = instance.component();
        match step {
            Step::EndOfStableLog(lsn) => {
                model.end_of_stable_log = *lsn;
                component.end_of_stable_log(*lsn);
            }
            Step::Apply(changes) => {
                // The filter keeps a shrunk history within the contract.
                let changes: Vec<&Change> =
                    changes.iter().filter(|change| change.lsn >= model.redo_scan_start_point).collect();
                apply(component, &changes)?;
                changes.iter().for_each(|change| model.apply(change));
            }
            Step::Maintain(seed) => instance.maintain(*seed),
            Step::Together(seed) => {
                let random = &mut SplitMix::new(*seed);
                let table = TableId(random.below(u64::from(history.tables) + 1) as u32);
                compare_together(component, &model, history, table, random)?;
            }
            Step::RedoScanStartPoint(lsn) => {
                if *lsn <= model.redo_scan_start_point {
                    continue;
                }
                let done = component.redo_scan_start_point(*lsn);
                done.map_err(|error| Broken::error("redo_scan_start_point", &error))?;
                model.redo_scan_start_point = *lsn;
                check_redo_scan_start_point(&model, component)?;
            }
            Step::Crash(seed) => instance = crash_and_replay(instance, &model, &mut SplitMix::new(*seed))?,
            Step::Check(seed) => compare(component, &model, history, &mut SplitMix::new(*seed))?,
        }
    }
    Ok(())
}

fn apply(component: &dyn DataComponent, changes: &[&Change]) -> Result<(), Broken> {
    let operations: Vec<Operation<'_>> = changes.iter().map(|change| change.operation()).collect();
    component.apply(&operations).map_err(|error| Broken::error("apply", &error))
}

fn get(component: &dyn DataComponent, table: TableId, key: &[u8]) -> Result<Option<Record>, Broken> {
    component.get(table, key).map_err(|error| Broken::error("get", &error))
}

fn check_redo_scan_start_point(model: &Model, component: &dyn DataComponent) -> Result<(), Broken> {
    let (expected, found) = (model.redo_scan_start_point, component.recovered_redo_scan_start_point());
    if expected == found {
        return Ok(());
    }
    Err(Broken::new("C4", format!("the redo scan start point is {found}, expected {expected}")))
}

/// Crashes, looks at what survived, and replays, perhaps crashing again on the way.
fn crash_and_replay(
    mut instance: Box<dyn Instance>,
    model: &Model,
    random: &mut SplitMix,
) -> Result<Box<dyn Instance>, Broken> {
    loop {
        instance = instance.crash(random.next());
        let component = instance.component();
        check_redo_scan_start_point(model, component)?;
        check_survivors(component, model)?;
        component.end_of_stable_log(model.end_of_stable_log);
        let mut replay: Vec<&Change> =
            model.applied.range(model.redo_scan_start_point..).map(|(_, change)| change).collect();
        if random.sometimes(30) {
            random.shuffle(&mut replay);
        }
        let interrupted = random.sometimes(30);
        if interrupted {
            replay.truncate(random.index(replay.len() + 1));
        }
        let batch_max = 1 + random.index(replay.len() + 1);
        replay.chunks(batch_max).try_for_each(|batch| apply(component, batch))?;
        if !interrupted {
            return Ok(instance);
        }
    }
}

/// C5, C6, and C4: of each key there is a version at least as new as the newest below the redo scan start point, and it is
/// one that was applied.
fn check_survivors(component: &dyn DataComponent, model: &Model) -> Result<(), Broken> {
    let (announced, stated) = (model.end_of_stable_log, component.recovered_end_of_stable_log());
    if stated > announced {
        let what = format!("the end of stable log is {stated}, though {announced} was announced last");
        return Err(Broken::new("C5", what));
    }
    let mut versions: BTreeMap<(TableId, &[u8]), Vec<&Change>> = BTreeMap::new();
    for change in model.applied.values() {
        versions.entry((change.table, &change.key)).or_default().push(change);
    }
    for ((table, key), versions) in versions {
        let safe = versions.iter().filter(|version| version.lsn < model.redo_scan_start_point);
        let floor = safe.max_by_key(|version| (version.timestamp, version.lsn));
        let found = get(component, table, key)?;
        let is_found = |version: &&&Change| {
            found.as_ref().is_some_and(|record| {
                (version.timestamp, &version.value) == (record.timestamp, &record.value)
            })
        };
        let newest = component.recovered_newest_timestamp();
        if let Some(found) = found.as_ref().filter(|found| found.timestamp > newest) {
            let what = format!("t{table}/{} of {} has survived, above {newest}", Key(key), found.timestamp);
            return Err(Broken::new("C6", what));
        }
        // Above the announced end it was not applied as the contract asks.
        let lowest = versions.iter().filter(is_found).map(|version| version.lsn).min();
        if let Some(lsn) = lowest.filter(|lsn| (stated..announced).contains(lsn)) {
            let what = format!(
                "t{table}/{} of {lsn} has survived, and a log that ends at {stated} is enough",
                Key(key)
            );
            return Err(Broken::new("C5", what));
        }
        let holds = match (&found, floor) {
            (None, None) => true,
            (None, Some(floor)) => floor.value.is_none(),
            (Some(_), floor) => versions.iter().filter(is_found).any(|version| {
                floor.is_none_or(|floor| (floor.timestamp, floor.lsn) <= (version.timestamp, version.lsn))
            }),
        };
        if !holds {
            let floor = floor.map_or("any version or none".to_owned(), |floor| format!("at least {floor}"));
            let what =
                format!("after a crash t{table}/{} is {}, expected {floor}", Key(key), shown(found.as_ref()));
            return Err(Broken::new("C4", what));
        }
    }
    Ok(())
}

/// Everything the component says must be what the model says.
fn compare(
    component: &dyn DataComponent,
    model: &Model,
    history: &History,
    random: &mut SplitMix,
) -> Result<(), Broken> {
    // One table more than is ever written.
    for table in (0..=history.tables).map(TableId) {
        compare_together(component, model, history, table, random)?;
        for key in &history.keys {
            let found = get(component, table, key)?;
            if found.as_ref().is_some_and(|record| !record.key.is_empty()) {
                return Err(Broken::new("get", format!("the answer for {} repeats the key", Key(key))));
            }
            compare_record(model, model.newest.get(&(table, key.clone())), found.as_ref(), table, key)?;
        }
        // One record at a time where there are few; where there are many, a few dozen batches a scan.
        let many = history.keys.len() > 100;
        let (bytes_least, records_least) =
            if many { (4 * history.keys.len(), history.keys.len() / 24) } else { (1, 1) };
        for direction in [Direction::Forward, Direction::Reverse] {
            for scan in 0..7 {
                let bounds = match scan {
                    0 => (Bound::Unbounded, Bound::Unbounded),
                    _ => (bound(history, random), bound(history, random)),
                };
                let bytes_max = [1, 50, 700, usize::MAX][random.index(4)].max(bytes_least);
                let records_max = [1, 3, 20, usize::MAX][random.index(4)].max(records_least);
                let (lower, upper) = bounds;
                let request = ScanRequest { table, lower, upper, direction, bytes_max, records_max };
                compare_scan(component, model, request)?;
            }
        }
    }
    Ok(())
}

/// Several keys read together, in any order, some of them twice, some that no component would take.
fn compare_together(
    component: &dyn DataComponent,
    model: &Model,
    history: &History,
    table: TableId,
    random: &mut SplitMix,
) -> Result<(), Broken> {
    let mut keys = any_keys(history, random);
    if random.sometimes(20) {
        keys.insert(random.index(keys.len() + 1), &[0xff; 10_000]);
        keys.insert(random.index(keys.len() + 1), &[]);
    }
    let bytes_max = [0, 50, 700, usize::MAX][random.index(4)];
    let found =
        component.get_many(table, &keys, bytes_max).map_err(|error| Broken::error("get_many", &error))?;
    let expected = |key: &&[u8]| model.newest.get(&(table, key.to_vec()));
    let bytes = |key: &&[u8]| expected(key).and_then(|change| change.value.as_ref()).map_or(0, Vec::len);
    let mut sum = 0usize;
    let fit = keys.iter().map(bytes).take_while(|bytes| {
        sum = sum.saturating_add(*bytes);
        sum <= bytes_max
    });
    let count = fit.count().max(keys.len().min(1));
    if found.len() != count {
        let what = format!(
            "{} answers for {} keys, {count} of which have {bytes_max} bytes",
            found.len(),
            keys.len()
        );
        return Err(Broken::new("get", what));
    }
    for (key, found) in keys.iter().zip(found) {
        compare_record(model, expected(key), found.as_ref(), table, key)?;
    }
    Ok(())
}

fn any_keys<'h>(history: &'h History, random: &mut SplitMix) -> Vec<&'h [u8]> {
    let count = random.below(2 * history.keys.len() as u64 + 2);
    (0..count).map(|_| history.keys[random.index(history.keys.len())].as_slice()).collect()
}

fn bound<'a>(history: &'a History, random: &mut SplitMix) -> Bound<&'a [u8]> {
    let key = &history.keys[random.index(history.keys.len())];
    match random.below(5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key),
        _ => Bound::Excluded(key),
    }
}

fn compare_record(
    model: &Model,
    expected: Option<&Change>,
    found: Option<&Record>,
    table: TableId,
    key: &[u8],
) -> Result<(), Broken> {
    let same = match (expected, found) {
        (None, None) => true,
        (Some(expected), None) => model.may_be_gone(expected),
        (None, Some(_)) => false,
        (Some(expected), Some(found)) => {
            (expected.timestamp, &expected.value) == (found.timestamp, &found.value)
        }
    };
    if same {
        return Ok(());
    }
    let rule = match (expected, found) {
        (Some(change), None) if change.value.is_none() => "C3",
        (Some(_), Some(_)) => "C2",
        _ => "get",
    };
    let expected = expected.map_or("nothing".to_owned(), Change::to_string);
    Err(Broken::new(rule, format!("t{table}/{} is {}, expected {expected}", Key(key), shown(found))))
}

fn shown(record: Option<&Record>) -> String {
    match record {
        None => "absent".to_owned(),
        Some(Record { value: None, timestamp, .. }) => format!("a tombstone ts {timestamp}"),
        Some(Record { value: Some(value), timestamp, .. }) => format!("{} bytes ts {timestamp}", value.len()),
    }
}

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

fn compare_scan(
    component: &dyn DataComponent,
    model: &Model,
    request: ScanRequest<'_>,
) -> Result<(), Broken> {
    let ScanRequest { table, lower, upper, direction, bytes_max, records_max } = request;
    let bounds = (lower, upper);
    let about = || {
        let bounds = shown_bounds(bounds);
        format!(
            "scan {direction:?} of t{table} {bounds} in batches of {bytes_max} bytes, {records_max} records"
        )
    };
    let found = scan_in_batches(component, request)
        .map_err(|broken| Broken { what: format!("{}: {}", about(), broken.what), ..broken })?;
    let mut expected: Vec<&Change> = Vec::new();
    if !request.is_crossed() {
        // The model's keys are few; a filter is plainer than a range over pairs.
        let within = |change: &&Change| change.table == table && contains(bounds, &change.key);
        expected.extend(model.newest.values().filter(within));
    }
    if direction == Direction::Reverse {
        expected.reverse();
    }
    let mut found = found.iter().peekable();
    for change in expected {
        let record = found.next_if(|record| record.key == change.key);
        compare_record(model, Some(change), record, table, &change.key)
            .map_err(|broken| Broken::new("scan", format!("{}: {}", about(), broken.what)))?;
    }
    match found.next() {
        Some(record) => {
            let what = format!("{}: {} is not in the range, or out of order", about(), Key(&record.key));
            Err(Broken::new("scan", what))
        }
        None => Ok(()),
    }
}

fn contains((lower, upper): Bounds<'_>, key: &[u8]) -> bool {
    let above = match lower {
        Bound::Unbounded => true,
        Bound::Included(lower) => key >= lower,
        Bound::Excluded(lower) => key > lower,
    };
    let below = match upper {
        Bound::Unbounded => true,
        Bound::Included(upper) => key <= upper,
        Bound::Excluded(upper) => key < upper,
    };
    above && below
}

fn shown_bounds((lower, upper): Bounds<'_>) -> String {
    let lower = match lower {
        Bound::Unbounded => "(..".to_owned(),
        Bound::Included(key) => format!("[{}", Key(key)),
        Bound::Excluded(key) => format!("({}", Key(key)),
    };
    let upper = match upper {
        Bound::Unbounded => "..)".to_owned(),
        Bound::Included(key) => format!("{}]", Key(key)),
        Bound::Excluded(key) => format!("{})", Key(key)),
    };
    format!("{lower}, {upper}")
}

/// A whole range, batch after batch, as a client resumes it.
pub(super) fn scan_in_batches(
    component: &dyn DataComponent,
    request: ScanRequest<'_>,
) -> Result<Vec<Record>, Broken> {
    let mut found: Vec<Record> = Vec::new();
    // What is in it from the time before is nobody's business.
    let mut batch = ScanBatch::new();
    loop {
        let last = found.last().map(|record| record.key.clone());
        let mut next = request;
        match (&last, request.direction) {
            (None, _) => {}
            (Some(last), Direction::Forward) => next.lower = Bound::Excluded(last),
            (Some(last), Direction::Reverse) => next.upper = Bound::Excluded(last),
        }
        component.scan_into(&next, &mut batch).map_err(|error| Broken::error("scan", &error))?;
        if batch.is_empty() && !batch.is_complete() {
            return Err(Broken::new("scan", "an empty batch that is not complete"));
        }
        let there = batch.iter().filter(|record| record.value.is_some()).count();
        if there > request.records_max.max(1) {
            return Err(Broken::new(
                "scan",
                format!("{there} records in a batch of {}", request.records_max),
            ));
        }
        for record in batch.iter().map(RecordView::to_record) {
            let in_order = found.last().is_none_or(|last| match request.direction {
                Direction::Forward => last.key < record.key,
                Direction::Reverse => last.key > record.key,
            });
            if !in_order {
                return Err(Broken::new("scan", format!("{} comes out of order", Key(&record.key))));
            }
            found.push(record);
        }
        if batch.is_complete() {
            return Ok(found);
        }
    }
}
