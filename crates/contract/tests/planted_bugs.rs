//! The suite is tested too: a component that breaks one rule must be caught, and for that rule.
//!
//! [`Broken`] is a component as simple as [`deuteron_contract::MemoryDc`] with one [`Bug`] planted.

use Bug::*;
use deuteron_contract::conformance::{self, Effort, Harness, Instance, Limits};
use deuteron_contract::{
    DataComponent, DcError, DcStatistics, Direction, Lsn, Operation, Record, ScanBatch, ScanRequest, TableId,
    Timestamp,
};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Mutex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    Sound,
    /// The version that arrives last wins.
    LastArrivalWins,
    /// The classic idempotence test of one version per LSN order.
    HighestLsnWins,
    /// Of two writes of one transaction the one that arrives first stays.
    TieKeepsTheFirst,
    TieTakesTheLast,
    TieTakesTheLowerLsn,
    /// Operations below the highest LSN seen count as repeated.
    SkipsOperationsBelowTheHighestLsn,
    DeleteForgetsTheKey,
    /// The trap that C3 describes.
    TombstoneDroppedAtItsLsn,
    /// One redo scan start point later than that, wherever the log was stable up to when the tombstone came.
    TombstoneDroppedAtTheNextStart,
    TombstoneMissingFromScan,
    TombstoneMissingFromGet,
    TablesShareTheirKeys,
    GetRepeatsTheKey,
    ExcludedLowerIsIncluded,
    ExcludedUpperIsIncluded,
    IncludedUpperIsExcluded,
    CrossedBoundsPanic,
    CrossedBoundsReturnTheRest,
    ReverseIsForward,
    ReverseBatchFromTheWrongEnd,
    CompleteTooEarly,
    EmptyBatchWhenTheRecordIsLarge,
    MoreRecordsThanAskedFor,
    BatchKeepsWhatWasInIt,
    CheckpointMissesTheLastOperation,
    CheckpointDurableOnlyInPart,
    RedoScanStartPointForgotten,
    RedoScanStartPointTooHigh,
    EndOfStableLogForgotten,
    EndOfStableLogTooHigh,
    NewestTimestampForgotten,
    ReplayIsIgnored,
    CrashTearsAValue,
    SizeErrorForgetsTheTable,
    LongKeysAreCutOff,
    LongValuesAreAccepted,
    EmptyKeysAreAccepted,
    EmptyValueIsADelete,
    ValueAndTimestampAreTornApart,
    ApplyReturnsBeforeItIsVisible,
    /// What was read together comes from the last checkpoint from then on.
    SeveralKeysForgetWhatIsNotDurable,
    /// As if the places of absent keys were kept, and taken for records.
    SeveralKeysInventRecords,
    /// As if the pages were sorted, and nobody put the answers back.
    SeveralKeysAreAnsweredInTheirOwnOrder,
    OfSeveralEqualKeysOneIsAnswered,
    SeveralKeysAreAnsweredBeyondTheirBytes,
    OfSeveralKeysThatFitTheFirstIsAnswered,
}

const BUGS: &[Bug] = &[
    LastArrivalWins,
    HighestLsnWins,
    TieKeepsTheFirst,
    TieTakesTheLast,
    TieTakesTheLowerLsn,
    SkipsOperationsBelowTheHighestLsn,
    DeleteForgetsTheKey,
    TombstoneDroppedAtItsLsn,
    TombstoneDroppedAtTheNextStart,
    TombstoneMissingFromScan,
    TombstoneMissingFromGet,
    TablesShareTheirKeys,
    GetRepeatsTheKey,
    ExcludedLowerIsIncluded,
    ExcludedUpperIsIncluded,
    IncludedUpperIsExcluded,
    CrossedBoundsPanic,
    CrossedBoundsReturnTheRest,
    ReverseIsForward,
    ReverseBatchFromTheWrongEnd,
    CompleteTooEarly,
    EmptyBatchWhenTheRecordIsLarge,
    MoreRecordsThanAskedFor,
    BatchKeepsWhatWasInIt,
    CheckpointMissesTheLastOperation,
    CheckpointDurableOnlyInPart,
    RedoScanStartPointForgotten,
    RedoScanStartPointTooHigh,
    EndOfStableLogForgotten,
    EndOfStableLogTooHigh,
    NewestTimestampForgotten,
    ReplayIsIgnored,
    CrashTearsAValue,
    SizeErrorForgetsTheTable,
    LongKeysAreCutOff,
    LongValuesAreAccepted,
    EmptyKeysAreAccepted,
    EmptyValueIsADelete,
    ValueAndTimestampAreTornApart,
    ApplyReturnsBeforeItIsVisible,
    SeveralKeysForgetWhatIsNotDurable,
    SeveralKeysInventRecords,
    SeveralKeysAreAnsweredInTheirOwnOrder,
    OfSeveralEqualKeysOneIsAnswered,
    SeveralKeysAreAnsweredBeyondTheirBytes,
    OfSeveralKeysThatFitTheFirstIsAnswered,
];

const KEY_BYTES_MAX: usize = 64;
const VALUE_BYTES_MAX: usize = 256;

type Place = (TableId, Vec<u8>);
type Map = BTreeMap<Place, (Record, Lsn)>;

#[derive(Clone, Default)]
struct State {
    map: Map,
    durable: Map,
    redo_scan_start_point: Lsn,
    end_of_stable_log: Lsn,
    highest_lsn: Lsn,
    recovered: bool,
    held_back: Vec<(Place, (Record, Lsn))>,
}

struct Broken {
    bug: Bug,
    state: Mutex<State>,
}

impl Broken {
    fn apply_one(&self, state: &mut State, operation: &Operation<'_>) {
        let &Operation { mut table, key, value, timestamp, lsn } = operation;
        if self.bug == TablesShareTheirKeys {
            table = TableId(0);
        }
        let key = if self.bug == LongKeysAreCutOff { &key[..key.len().min(KEY_BYTES_MAX)] } else { key };
        let place = (table, key.to_vec());
        let older = state.map.get(&place).map(|(record, lsn)| (record.timestamp, *lsn));
        let wins = older.is_none_or(|(old_timestamp, old_lsn)| match self.bug {
            LastArrivalWins => true,
            HighestLsnWins => lsn > old_lsn,
            TieKeepsTheFirst => timestamp > old_timestamp,
            TieTakesTheLast => timestamp >= old_timestamp,
            TieTakesTheLowerLsn => timestamp > old_timestamp || timestamp == old_timestamp && lsn < old_lsn,
            SkipsOperationsBelowTheHighestLsn => {
                lsn >= state.highest_lsn && (timestamp, lsn) > (old_timestamp, old_lsn)
            }
            ReplayIsIgnored if state.recovered => false,
            _ => (timestamp, lsn) > (old_timestamp, old_lsn),
        });
        state.highest_lsn = state.highest_lsn.max(lsn);
        if !wins {
            return;
        }
        if self.bug == DeleteForgetsTheKey && value.is_none() {
            state.map.remove(&place);
            return;
        }
        let value = value.filter(|value| self.bug != EmptyValueIsADelete || !value.is_empty());
        let record = Record { key: key.to_vec(), value: value.map(<[u8]>::to_vec), timestamp };
        if self.bug == ApplyReturnsBeforeItIsVisible {
            state.held_back.push((place, (record, lsn)));
        } else {
            state.map.insert(place, (record, lsn));
        }
    }

    fn check_sizes(&self, state: &mut State, operation: &Operation<'_>) -> Result<(), DcError> {
        let key_bytes = operation.key.len();
        let refused = match self.bug {
            EmptyKeysAreAccepted => key_bytes > KEY_BYTES_MAX,
            LongKeysAreCutOff => key_bytes == 0,
            _ => key_bytes == 0 || key_bytes > KEY_BYTES_MAX,
        };
        let value_bytes = operation.value.map_or(0, <[u8]>::len);
        let value_refused = value_bytes > VALUE_BYTES_MAX && self.bug != LongValuesAreAccepted;
        if (refused || value_refused) && self.bug == SizeErrorForgetsTheTable {
            state.map.retain(|(table, _), _| *table != operation.table);
        }
        if refused {
            return Err(DcError::KeySize { found: key_bytes, limit: KEY_BYTES_MAX });
        }
        if value_refused {
            return Err(DcError::ValueSize { found: value_bytes, limit: VALUE_BYTES_MAX });
        }
        Ok(())
    }
}

impl Broken {
    /// What reading several keys does to those that are read next.
    fn spoil(&self, table: TableId, keys: &[&[u8]]) {
        let mut state = self.state.lock().unwrap();
        for key in keys {
            let place = (table, key.to_vec());
            match (self.bug, state.durable.get(&place).cloned()) {
                (SeveralKeysForgetWhatIsNotDurable, Some(durable)) => {
                    state.map.insert(place, durable);
                }
                (SeveralKeysForgetWhatIsNotDurable, None) => {
                    state.map.remove(&place);
                }
                (SeveralKeysInventRecords, _) => {
                    let key = key.to_vec();
                    state.map.entry(place).or_insert((Record { key, ..Record::default() }, Lsn(0)));
                }
                _ => {}
            }
        }
    }
}

impl DataComponent for Broken {
    fn get(&self, table: TableId, key: &[u8]) -> Result<Option<Record>, DcError> {
        let table = if self.bug == TablesShareTheirKeys { TableId(0) } else { table };
        let found =
            self.state.lock().unwrap().map.get(&(table, key.to_vec())).map(|(record, _)| record.clone());
        let found = found.filter(|record| self.bug != TombstoneMissingFromGet || record.value.is_some());
        let key = if self.bug == GetRepeatsTheKey { key.to_vec() } else { Vec::new() };
        Ok(found.map(|record| Record { key, ..record }))
    }

    fn get_many(
        &self,
        table: TableId,
        keys: &[&[u8]],
        bytes_max: usize,
    ) -> Result<Vec<Option<Record>>, DcError> {
        let mut keys = keys.to_vec();
        if self.bug == SeveralKeysAreAnsweredInTheirOwnOrder {
            keys.sort_unstable();
        }
        let mut records = keys.iter().map(|key| self.get(table, key)).collect::<Result<Vec<_>, _>>()?;
        if self.bug == OfSeveralEqualKeysOneIsAnswered {
            for at in 1..keys.len() {
                if keys[..at].contains(&keys[at]) {
                    records[at] = None;
                }
            }
        }
        let mut sum = 0usize;
        let fit = records.iter().take_while(|record| {
            sum = sum.saturating_add(record.as_ref().map_or(0, Record::value_bytes));
            sum <= bytes_max
        });
        let count = match self.bug {
            SeveralKeysAreAnsweredBeyondTheirBytes => records.len(),
            OfSeveralKeysThatFitTheFirstIsAnswered => 1,
            _ => fit.count().max(1),
        };
        records.truncate(count);
        self.spoil(table, &keys);
        Ok(records)
    }

    fn scan_into(&self, request: &ScanRequest<'_>, batch: &mut ScanBatch) -> Result<(), DcError> {
        let state = self.state.lock().unwrap();
        let ScanRequest { table, mut lower, mut upper, direction, bytes_max, records_max } = *request;
        let table = if self.bug == TablesShareTheirKeys { TableId(0) } else { table };
        match (self.bug, lower, upper) {
            (CrossedBoundsPanic, _, _) => {
                assert!(!request.is_crossed(), "range start is greater than range end")
            }
            (CrossedBoundsReturnTheRest, _, _) if request.is_crossed() => upper = Bound::Unbounded,
            (ExcludedLowerIsIncluded, Bound::Excluded(key), _) => lower = Bound::Included(key),
            (ExcludedUpperIsIncluded, _, Bound::Excluded(key)) => upper = Bound::Included(key),
            (IncludedUpperIsExcluded, _, Bound::Included(key)) => upper = Bound::Excluded(key),
            _ => {}
        }
        let mut records: Vec<&Record> = state
            .map
            .iter()
            .filter(|((of, key), _)| {
                let within: (Bound<&[u8]>, Bound<&[u8]>) = (lower, upper);
                *of == table && std::ops::RangeBounds::<[u8]>::contains(&within, key.as_slice())
            })
            .map(|(_, (record, _))| record)
            .filter(|record| self.bug != TombstoneMissingFromScan || record.value.is_some())
            .collect();
        let reverse = direction == Direction::Reverse && self.bug != ReverseIsForward;
        if reverse && self.bug != ReverseBatchFromTheWrongEnd {
            records.reverse();
        }
        let (mut bytes, mut there) = (0, 0);
        let fits = |record: &Record| {
            let room = bytes < bytes_max
                && (there < records_max || self.bug == MoreRecordsThanAskedFor)
                && (self.bug != EmptyBatchWhenTheRecordIsLarge || record.key.len() <= bytes_max);
            bytes += record.key.len() + record.value.as_ref().map_or(0, Vec::len);
            there += usize::from(record.value.is_some());
            room
        };
        let returned = records.iter().take_while({
            let mut fits = fits;
            move |record| fits(record)
        });
        let returned = returned.count();
        let complete = returned == records.len() || (self.bug == CompleteTooEarly && returned > 1);
        records.truncate(returned);
        if reverse && self.bug == ReverseBatchFromTheWrongEnd {
            records.reverse();
        }
        if self.bug != BatchKeepsWhatWasInIt {
            batch.clear();
        }
        for record in records {
            batch.push(&record.key, record.value.as_deref(), record.timestamp);
        }
        batch.set_complete(complete);
        Ok(())
    }

    fn apply(&self, operations: &[Operation<'_>]) -> Result<(), DcError> {
        for operation in operations {
            let mut state = self.state.lock().unwrap();
            self.check_sizes(&mut state, operation)?;
            let held_back = std::mem::take(&mut state.held_back);
            state.map.extend(held_back);
            let place = (operation.table, operation.key.to_vec());
            let before = state.map.get(&place).map(|(record, _)| record.value.clone());
            self.apply_one(&mut state, operation);
            if self.bug == ValueAndTimestampAreTornApart
                && let Some(before) = before
            {
                let whole = state.map[&place].clone();
                state.map.get_mut(&place).unwrap().0.value = before;
                drop(state);
                std::thread::yield_now();
                let mut state = self.state.lock().unwrap();
                state.map.insert(place, whole);
            }
        }
        Ok(())
    }

    fn end_of_stable_log(&self, lsn: Lsn) {
        self.state.lock().unwrap().end_of_stable_log = lsn;
    }

    fn redo_scan_start_point(&self, lsn: Lsn) -> Result<(), DcError> {
        let mut state = self.state.lock().unwrap();
        let before = std::mem::replace(&mut state.redo_scan_start_point, lsn);
        let forgotten_below = match self.bug {
            TombstoneDroppedAtItsLsn => lsn,
            TombstoneDroppedAtTheNextStart if before < lsn => before,
            _ => Lsn(0),
        };
        state.map.retain(|_, (record, at)| record.value.is_some() || *at >= forgotten_below);
        let mut durable = state.map.clone();
        match self.bug {
            CheckpointMissesTheLastOperation => {
                let last = durable.iter().max_by_key(|(_, (_, lsn))| *lsn).map(|(place, _)| place.clone());
                last.and_then(|place| durable.remove(&place));
            }
            CheckpointDurableOnlyInPart => {
                // Records of the newest pages stay as they were at the checkpoint before.
                let half = durable.len() / 2;
                let stale: Vec<_> = durable.keys().skip(half).cloned().collect();
                for place in stale {
                    match state.durable.get(&place) {
                        Some(record) => durable.insert(place, record.clone()),
                        None => durable.remove(&place),
                    };
                }
            }
            _ => {}
        }
        state.durable = durable;
        Ok(())
    }

    fn recovered_redo_scan_start_point(&self) -> Lsn {
        let state = self.state.lock().unwrap();
        match self.bug {
            RedoScanStartPointForgotten if state.recovered => Lsn(0),
            RedoScanStartPointTooHigh if state.recovered => Lsn(state.redo_scan_start_point.0 + 8),
            _ => state.redo_scan_start_point,
        }
    }

    fn recovered_end_of_stable_log(&self) -> Lsn {
        let state = self.state.lock().unwrap();
        match self.bug {
            EndOfStableLogForgotten if state.recovered => state.redo_scan_start_point,
            EndOfStableLogTooHigh if state.recovered => Lsn(state.end_of_stable_log.0 + 8),
            _ => state.end_of_stable_log,
        }
    }

    fn recovered_newest_timestamp(&self) -> Timestamp {
        let state = self.state.lock().unwrap();
        let newest = state.durable.values().map(|(record, _)| record.timestamp).max().unwrap_or(Timestamp(0));
        match self.bug {
            NewestTimestampForgotten if state.recovered => Timestamp(0),
            _ => newest,
        }
    }

    fn statistics(&self) -> DcStatistics {
        DcStatistics::default()
    }
}

struct Opened(Broken);

impl Instance for Opened {
    fn component(&self) -> &dyn DataComponent {
        &self.0
    }

    fn crash(self: Box<Self>, _: u64) -> Box<dyn Instance> {
        let bug = self.0.bug;
        let mut state = self.0.state.into_inner().unwrap();
        state.map = state.durable.clone();
        state.recovered = true;
        if bug == CrashTearsAValue
            && let Some((record, _)) = state.map.values_mut().next()
            && let Some(value) = &mut record.value
        {
            value.truncate(value.len() / 2);
        }
        Box::new(Opened(Broken { bug, state: Mutex::new(state) }))
    }
}

impl Harness for Bug {
    fn open(&self) -> Box<dyn Instance> {
        Box::new(Opened(Broken { bug: *self, state: Mutex::default() }))
    }

    fn limits(&self) -> Limits {
        Limits { key_bytes_max: KEY_BYTES_MAX, value_bytes_max: VALUE_BYTES_MAX }
    }
}

fn effort() -> Effort {
    Effort { histories: 40, shrink_runs_max: 100, ..Effort::default() }
}

#[test]
fn without_a_bug_the_suite_passes() {
    conformance::check(&Sound, &effort()).unwrap();
}

#[test]
fn every_planted_bug_is_caught() {
    let effort = Effort { shrink_runs_max: 0, ..effort() };
    let missed: Vec<Bug> =
        BUGS.iter().copied().filter(|bug| conformance::check(bug, &effort).is_ok()).collect();
    assert!(missed.is_empty(), "not caught: {missed:?}");
}

#[test]
fn a_bug_is_reported_under_its_rule_with_a_small_history() {
    let cases = [
        (LastArrivalWins, "C2"),
        (DeleteForgetsTheKey, "C3"),
        (CheckpointMissesTheLastOperation, "C4"),
        (ReverseIsForward, "scan"),
        (LongValuesAreAccepted, "size"),
        (ValueAndTimestampAreTornApart, "concurrency"),
    ];
    for (bug, rule) in cases {
        let violation = conformance::check(&bug, &effort()).unwrap_err();
        println!("{bug:?}: {violation}\n");
        assert_eq!(violation.rule, rule, "{bug:?}: {violation}");
        assert!(violation.history.lines().count() < 40, "{bug:?}: {violation}");
    }
}
