//! The replay: notes in the order of timestamps, against a map.

use super::HistoryReport;
use super::client::{Note, Scanned};
use super::values::{Number, key_of, number_of};
use deuteron::{Db, Error, Table};
use std::collections::BTreeMap;

/// Problems are reported up to this many.
const PROBLEMS_MAX: usize = 8;

type Model = BTreeMap<u32, Number>;

/// See the [module](self).
#[derive(Default)]
pub struct Replay {
    model: Model,
}

impl Replay {
    /// Replays the notes of a round; everything in it comes after everything before it.
    pub fn round(&mut self, mut notes: Vec<Note>, report: &mut HistoryReport) {
        // Readers that share a timestamp see the same, and go in the order of their begins.
        notes.sort_by_key(|note| (note.at, note.place, note.began));
        let mut latest_begin = 0;
        for note in &notes {
            if note.ended < latest_begin {
                problem(report, || format!("the place of {} contradicts real time", note.at));
            }
            latest_begin = latest_begin.max(note.began);
            self.check(note, report);
            for (key, effect) in &note.writes {
                match effect.on(self.model.get(key).copied()) {
                    Some(number) => self.model.insert(*key, number),
                    None => self.model.remove(key),
                };
            }
        }
    }

    fn check(&self, note: &Note, report: &mut HistoryReport) {
        let at = note.at;
        report.reads += note.reads.len() as u64;
        for seen in &note.reads {
            let there = self.model.get(&seen.key).copied();
            let wanted = seen.own.as_ref().map_or(there, |own| own.on(there));
            if seen.found != wanted {
                problem(report, || format!("{at} read {seen:?}, serially {wanted:?}"));
            }
        }
        for scanned in &note.scans {
            report.scans += 1;
            report.records_scanned += scanned.found.len() as u64;
            let wanted = self.scan(scanned);
            if scanned.found != wanted {
                problem(report, || format!("{at} found {scanned:?}, serially {wanted:?}"));
            }
        }
    }

    /// What a scan should find: what is there, with the transaction's own writes over it.
    fn scan(&self, scanned: &Scanned) -> Vec<(u32, Number)> {
        if scanned.lower >= scanned.upper {
            return Vec::new();
        }
        let range = scanned.lower..scanned.upper;
        // Enough for the limit even if all own writes are deletes.
        let count = scanned.limit.saturating_add(scanned.own.len());
        let there = self.model.range(range.clone());
        let there: Vec<(u32, Number)> = if scanned.reverse {
            there.rev().take(count).map(|(key, number)| (*key, *number)).collect()
        } else {
            there.take(count).map(|(key, number)| (*key, *number)).collect()
        };
        let mut found: Model = there.into_iter().collect();
        for (key, effect) in scanned.own.range(range) {
            match effect.on(self.model.get(key).copied()) {
                Some(number) => found.insert(*key, number),
                None => found.remove(key),
            };
        }
        if scanned.reverse {
            found.into_iter().rev().take(scanned.limit).collect()
        } else {
            found.into_iter().take(scanned.limit).collect()
        }
    }

    /// Compares the whole table with the map.
    pub fn compare(&self, db: &Db, table: &Table, report: &mut HistoryReport) -> Result<(), Error> {
        let found: Vec<Option<(u32, Number)>> = db.transact(|tx| {
            tx.scan(table, ..)?
                .map(|entry| {
                    entry.map(|(key, value)| {
                        let key = key_of(&key)?;
                        Some((key, number_of(key, &value)?))
                    })
                })
                .collect()
        })?;
        let wanted = self.model.iter().map(|(key, number)| Some((*key, *number)));
        if !found.iter().copied().eq(wanted) {
            problem(report, || "in the end the table is not what the transactions made of it".into());
        }
        Ok(())
    }
}

fn problem(report: &mut HistoryReport, what: impl FnOnce() -> String) {
    if report.problems.len() < PROBLEMS_MAX {
        report.problems.push(what());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histories::client::{Place, Seen, Writes};
    use crate::histories::values::Effect;
    use deuteron::Timestamp;

    fn note(at: u64, began: u64, ended: u64) -> Note {
        Note {
            at: Timestamp(at),
            place: Place::At,
            began,
            ended,
            reads: Vec::new(),
            scans: Vec::new(),
            writes: Writes::new(),
        }
    }

    fn set(number: Number) -> Effect {
        Effect::Set(Some(number))
    }

    fn seen(key: u32, found: Option<Number>) -> Seen {
        Seen { key, own: None, found }
    }

    fn scanned(reverse: bool, limit: usize, found: &[(u32, Number)]) -> Scanned {
        let own = Writes::from([(2, Effect::Set(None)), (3, Effect::Add(27))]);
        Scanned { lower: 1, upper: 9, reverse, limit, own, found: found.to_vec() }
    }

    fn problems(notes: Vec<Note>) -> usize {
        let (mut replay, mut report) = (Replay::default(), HistoryReport::default());
        replay.round(
            vec![Note { writes: (1..6).map(|key| (key, set(key.into()))).collect(), ..note(1, 1, 2) }],
            &mut report,
        );
        replay.round(notes, &mut report);
        report.problems.len()
    }

    #[test]
    fn what_the_serial_order_returns_is_no_problem() {
        let reader = Note { reads: vec![seen(1, Some(1)), seen(7, None)], ..note(2, 3, 4) };
        let scans = vec![
            scanned(false, 2, &[(1, 1), (3, 30)]),
            scanned(true, 3, &[(5, 5), (4, 4), (3, 30)]),
            scanned(false, usize::MAX, &[(1, 1), (3, 30), (4, 4), (5, 5)]),
        ];
        assert_eq!(problems(vec![reader, Note { scans, ..note(3, 5, 6) }]), 0);
    }

    #[test]
    fn every_kind_of_wrong_answer_is_a_problem() {
        assert_eq!(problems(vec![Note { reads: vec![seen(1, None)], ..note(2, 3, 4) }]), 1, "a lost record");
        assert_eq!(problems(vec![Note { reads: vec![seen(7, Some(1))], ..note(2, 3, 4) }]), 1, "a phantom");
        let late = Note { writes: Writes::from([(1, set(9))]), ..note(2, 3, 4) };
        let stale = Note { reads: vec![seen(1, Some(1))], ..note(3, 5, 6) };
        assert_eq!(problems(vec![late, stale]), 1, "a stale read");
        let added = Note { writes: Writes::from([(4, Effect::Add(3))]), ..note(2, 3, 4) };
        let lost = Note { reads: vec![seen(4, Some(4))], ..note(3, 5, 6) };
        assert_eq!(problems(vec![added.clone(), lost]), 1, "a lost change");
        let own = Seen { own: Some(Effect::Add(1)), ..seen(4, Some(8)) };
        assert_eq!(problems(vec![added, Note { reads: vec![own], ..note(3, 5, 6) }]), 0, "with its own");
        let missing =
            Note { scans: vec![scanned(false, usize::MAX, &[(1, 1), (3, 30), (5, 5)])], ..note(2, 3, 4) };
        assert_eq!(problems(vec![missing]), 1, "a scan with a hole");
        assert_eq!(
            problems(vec![note(2, 7, 8), note(3, 3, 4)]),
            1,
            "later in order, over before the other began"
        );
        assert_eq!(problems(vec![note(2, 0, u64::MAX), note(3, 3, 4)]), 0, "the past is in no real time");
    }
}
