//! A log beside a plain list of what was appended to it.
#![allow(dead_code, reason = "each scenario uses a part")]

pub mod closed;

use deuteron_contract::{Lsn, TableId, Timestamp, TransactionId};
use deuteron_device::Directory;
use deuteron_epoch::Epochs;
use deuteron_log::{AppendError, Log, LogBuffer, LogError, LogOpening, LogOptions, Record, Recovery};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A record with bytes of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owned {
    Upsert(u64, Vec<u8>, Vec<u8>),
    Delete(u64, Vec<u8>),
    Commit(u64),
    Abort(u64),
    Ceiling(u64),
}

impl Owned {
    pub fn record(&self) -> Record<'_> {
        let table = TableId(3);
        match self {
            Owned::Upsert(id, key, value) => {
                Record::Upsert { transaction: TransactionId(*id), table, key, value }
            }
            Owned::Delete(id, key) => Record::Delete { transaction: TransactionId(*id), table, key },
            Owned::Commit(id) => Record::Commit {
                transaction: TransactionId(*id),
                timestamp: Timestamp(id + 1),
                token: id + 2,
            },
            Owned::Abort(id) => Record::Abort { transaction: TransactionId(*id) },
            Owned::Ceiling(timestamp) => Record::ClockCeiling { timestamp: Timestamp(*timestamp) },
        }
    }
}

/// An upsert whose bytes follow from its number.
pub fn upsert(number: u64, value_bytes: usize) -> Owned {
    let value = (0..value_bytes).map(|at| (number as usize + at) as u8).collect();
    Owned::Upsert(number, number.to_be_bytes().to_vec(), value)
}

/// A log, and what should be in it.
pub struct Pair {
    pub log: Log,
    pub epochs: Arc<Epochs>,
    pub options: LogOptions,
    /// What was appended and has not been lost, by LSN.
    pub model: BTreeMap<u64, Owned>,
    /// Everything below was said to be durable, ever.
    pub acknowledged: Lsn,
    /// Where the log was opened last.
    pub opened_at: Lsn,
    /// The proxy's place.
    pub lent_upto: Lsn,
    pub released: Lsn,
}

impl Pair {
    pub fn create(directory: Arc<dyn Directory>, options: LogOptions) -> Result<Pair, LogError> {
        Pair::open(directory, options, BTreeMap::new(), Lsn(0), Lsn(0))
    }

    /// Opens the log and checks that it recovers a prefix of `model` with everything that was acknowledged.
    pub fn open(
        directory: Arc<dyn Directory>,
        options: LogOptions,
        mut model: BTreeMap<u64, Owned>,
        acknowledged: Lsn,
        from: Lsn,
    ) -> Result<Pair, LogError> {
        let epochs = Epochs::new();
        let (log, recovered) = open(directory, &options, epochs.clone(), from..acknowledged)?;
        let tail = recovered.recovery.tail();
        assert!(tail >= acknowledged, "acknowledged {acknowledged}, recovered {tail}");
        assert_eq!((log.stable_lsn(), log.tail_lsn()), (tail, tail));
        check_recovery(&recovered, &model, from);
        model.split_off(&tail.0);
        Ok(Pair {
            log,
            epochs,
            options,
            model,
            // What was recovered is as durable as what was acknowledged: it is told to be stable.
            acknowledged: tail,
            opened_at: tail,
            lent_upto: tail,
            released: tail,
        })
    }

    pub fn append(&mut self, record: Owned) -> Result<Lsn, AppendError> {
        let lsn = self.log.append(&record.record())?;
        self.insert(lsn, record);
        Ok(lsn)
    }

    pub fn commit(&mut self, id: u64) -> Result<Lsn, AppendError> {
        let reservation = self.log.reserve_commit()?;
        let lsn = reservation.lsn();
        assert_eq!(reservation.fill(TransactionId(id), Timestamp(id + 1), id + 2), lsn);
        self.insert(lsn, Owned::Commit(id));
        Ok(lsn)
    }

    /// Logs `updates` in the room before a commit record, with as many bytes more as `spare` says, and the commit if `id` is given.
    pub fn commit_behind(
        &mut self,
        updates: Vec<Owned>,
        spare: usize,
        id: Option<u64>,
    ) -> Result<Lsn, AppendError> {
        let bytes: usize = updates.iter().map(|update| update.record().encoded_bytes()).sum();
        let mut reservation = self.log.reserve_commit_behind(bytes + spare)?;
        let lsns: Vec<Lsn> = updates.iter().map(|update| reservation.append(&update.record())).collect();
        let commit = reservation.lsn();
        match id {
            Some(id) => assert_eq!(reservation.fill(TransactionId(id), Timestamp(id + 1), id + 2), commit),
            None => reservation.cancel(),
        }
        lsns.into_iter().zip(updates).for_each(|(lsn, update)| self.insert(lsn, update));
        id.into_iter().for_each(|id| self.insert(commit, Owned::Commit(id)));
        Ok(commit)
    }

    fn insert(&mut self, lsn: Lsn, record: Owned) {
        let last = self.model.last_key_value().map_or(0, |(&last, _)| last);
        assert!(lsn.0 > last || self.model.is_empty(), "LSNs ascend");
        assert!(lsn.0.is_multiple_of(8) && lsn < self.log.tail_lsn());
        self.model.insert(lsn.0, record);
    }

    pub fn flush_step(&mut self) -> Result<bool, LogError> {
        let worked = self.log.flush_step();
        // Also if the step failed: what is called stable then is promised all the same.
        self.acknowledged = self.acknowledged.max(self.log.stable_lsn());
        worked
    }

    pub fn flush_all(&mut self) -> Result<(), LogError> {
        self.log.request_flush(self.log.tail_lsn());
        while self.flush_step()? {}
        Ok(())
    }

    /// Lends the next stable buffer, compares it, and perhaps releases everything lent so far.
    pub fn proxy_step(&mut self, release: bool) -> bool {
        let mut is_lent = false;
        if let Some(buffer) = self.log.next_stable(self.lent_upto) {
            assert_eq!(buffer.base(), self.lent_upto);
            check_buffer(&buffer.view(), &self.model);
            self.lent_upto = buffer.end();
            is_lent = true;
        }
        if release {
            self.released = self.lent_upto;
            self.log.release(self.released);
        }
        is_lent
    }

    /// A version read; whether the version was in memory.
    pub fn check_read(&self, lsn: u64) -> bool {
        let guard = self.epochs.pin();
        // SAFETY: the model has only LSNs that `append` or `fill` returned.
        match unsafe { self.log.read(Lsn(lsn), &guard) } {
            Some(record) => {
                assert_eq!(record, self.model[&lsn].record());
                true
            }
            None => {
                assert!(lsn < self.released.0, "LSN {lsn} is not released and not in memory");
                false
            }
        }
    }

    pub fn check_read_stable(&self, lsn: u64) {
        if lsn < self.log.start_lsn().0 || lsn >= self.log.stable_lsn().0 {
            let error = self.log.read_stable(Lsn(lsn)).unwrap_err();
            assert!(matches!(error, LogError::Missing { .. }), "{error}");
        } else {
            assert_eq!(self.log.read_stable(Lsn(lsn)).unwrap().view(), self.model[&lsn].record());
            let buffer = self.log.read_stable_buffer(Lsn(lsn)).unwrap();
            assert!(buffer.base().0 < lsn && lsn < buffer.end().0);
            check_buffer(&buffer.view(), &self.model);
        }
    }
}

pub fn check_buffer(view: &deuteron_log::BufferView<'_>, model: &BTreeMap<u64, Owned>) {
    let expected: Vec<_> =
        model.range(view.base().0..view.end().0).map(|(&lsn, owned)| (Lsn(lsn), owned.record())).collect();
    assert_eq!(view.records().collect::<Vec<_>>(), expected);
    let mut linked: Vec<_> = view
        .commits()
        .map(|commit| {
            let (transaction, timestamp, token) = (commit.transaction, commit.timestamp, commit.token);
            (commit.lsn, Record::Commit { transaction, timestamp, token })
        })
        .collect();
    linked.sort_by_key(|&(lsn, _)| lsn);
    let is_commit = |(_, record): &(Lsn, Record<'_>)| matches!(record, Record::Commit { .. });
    assert_eq!(linked, expected.into_iter().filter(is_commit).collect::<Vec<_>>());
}

/// What an opening has found, and what it has offered for replay.
pub struct Recovered {
    pub recovery: Recovery,
    pub buffers: Vec<LogBuffer>,
}

/// Opens a log as whoever replays it does.
pub fn open(
    directory: Arc<dyn Directory>,
    options: &LogOptions,
    epochs: Arc<Epochs>,
    needed: Range<Lsn>,
) -> Result<(Log, Recovered), LogError> {
    let mut opening = LogOpening::new(directory, options, needed)?;
    let mut buffers = Vec::new();
    while let Some(buffer) = opening.next_buffer()? {
        buffers.push(buffer);
    }
    assert!(opening.next_buffer()?.is_none());
    let (log, recovery) = opening.finish(epochs)?;
    Ok((log, Recovered { recovery, buffers }))
}

/// What was recovered from `from` on is the model up to the tail.
pub fn check_recovery(recovered: &Recovered, model: &BTreeMap<u64, Owned>, from: Lsn) {
    let Recovered { recovery, buffers } = recovered;
    let mut at = recovery.start();
    assert!(at <= from);
    let (mut records, mut commits) = (0, 0);
    for buffer in buffers {
        assert_eq!(buffer.base(), at);
        assert!(buffer.end() > from);
        check_buffer(&buffer.view(), model);
        records += buffer.view().records().count();
        commits += buffer.view().commits().count();
        at = buffer.end();
    }
    assert!(at == recovery.tail());
    assert_eq!(recovery.buffers(), buffers.len() as u64);
    assert_eq!((recovery.records(), recovery.commits()), (records as u64, commits as u64));
}
