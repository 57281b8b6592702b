//! Random transactions, interleaved over buffers, with crashes; the data component must end as the serial execution
//! in the order of final timestamps does.
//!
//! The transactions keep the rules that the proxy relies on: one uncommitted writer per key, final timestamps above the
//! versions overwritten, the horizon never above an active transaction. Like the real ones they append to the log
//! *before* they install, so that LSN order and version order differ.

mod support;

use deuteron_contract::conformance::SplitMix;
use deuteron_contract::{DataComponent, Lsn, MemoryDc, TableId, Timestamp, TransactionId};
use deuteron_proxy::{Options, Pending, Proxy, ProxyError, RecordSource};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use support::*;

type Key = (TableId, Vec<u8>);

#[derive(Debug)]
struct Transaction {
    id: u64,
    /// Appended to the log, waiting for the key's writer to end.
    to_install: Option<Key>,
    installed: Vec<Key>,
    at_least: u64,
}

struct World {
    random: SplitMix,
    clock: u64,
    active: Vec<Transaction>,
    log: MemoryLog,
    host: Arc<Host>,
    dc: Arc<FlakyDc>,
    proxy: Proxy,
    options: Options,
    /// The final timestamp of the newest committed version installed.
    newest: BTreeMap<Key, u64>,
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = SplitMix::new(seed);
        let options = Options {
            lag_bytes: random.below(3) * 400,
            batch_operations_max: 1 + random.index(8),
            side_buffer_bytes_max: random.index(600),
            waiting_list_bytes_max: 200 + random.index(800),
            waiting_log_bytes_max: 500 + random.below(4000),
        };
        let host = Host::new(1, true);
        let dc = FlakyDc::new(MemoryDc::new(), seed, random.below(2) * 15);
        let proxy = Proxy::new(dc.clone(), host.clone(), options.clone(), Lsn(0));
        let (log, newest) = (MemoryLog::default(), BTreeMap::new());
        World { random, clock: 1, active: Vec::new(), log, host, dc, proxy, options, newest }
    }

    fn now(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// A transaction does something. A horizon that was forced makes older transactions abort.
    fn act(&mut self) {
        if self.active.len() < 6 && self.random.sometimes(25) {
            let id = self.now();
            self.active.push(Transaction { id, to_install: None, installed: Vec::new(), at_least: id });
        }
        let forced = self.host.horizon.load(SeqCst);
        if let Some(late) = self.active.iter().position(|transaction| transaction.id < forced) {
            return self.end(late, false);
        }
        if self.active.is_empty() {
            return;
        }
        let at = self.random.index(self.active.len());
        if let Some(key) = self.active[at].to_install.clone() {
            let busy = self
                .active
                .iter()
                .any(|other| other.id != self.active[at].id && other.installed.contains(&key));
            if !busy {
                let below = self.newest.get(&key).copied().unwrap_or(0);
                let transaction = &mut self.active[at];
                transaction.to_install = None;
                if below >= transaction.at_least {
                    transaction.at_least = below + 1;
                }
                transaction.installed.push(key);
            } else if self.random.sometimes(20) {
                self.end(at, false);
            }
            return;
        }
        match self.random.below(10) {
            0 => self.end(at, self.random.clone().sometimes(70)),
            1..=3 => self.end(at, true),
            4..=8 => self.write(at),
            _ => drop(self.log.append(OwnedEntry::Other)),
        }
    }

    fn write(&mut self, at: usize) {
        let table = TableId(1 + self.random.below(2) as u32);
        let key = vec![b'a' + self.random.below(7) as u8; 1 + self.random.index(3)];
        let length = self.random.index(60);
        let value = (!self.random.sometimes(25)).then(|| vec![self.random.next() as u8; length]);
        let transaction = TransactionId(self.active[at].id);
        match value {
            Some(value) if value.len() > 20 => {
                // In pieces, over several buffers perhaps; the proxy may be at work between them.
                for bytes in value.chunks(1 + self.random.index(20)) {
                    self.log.append(OwnedEntry::Piece { transaction, bytes: bytes.to_vec() });
                    let other = self.random.index(self.active.len());
                    if other != at && self.active[other].to_install.is_none() && self.random.sometimes(30) {
                        self.put(other);
                    }
                    if self.random.sometimes(15) {
                        self.log.flush();
                    }
                    if self.random.sometimes(15) {
                        self.step();
                    }
                }
                if self.random.sometimes(10) {
                    // The rest finds no room, say.
                    return self.end(at, false);
                }
                self.log.append(OwnedEntry::Large { transaction, table, key: key.clone(), value });
            }
            value => {
                self.log.append(OwnedEntry::Update { transaction, table, key: key.clone(), value });
            }
        }
        self.active[at].to_install = Some((table, key));
    }

    /// Another transaction writes something short meanwhile.
    fn put(&mut self, at: usize) {
        let (table, key) = (TableId(1), vec![b'a' + self.random.below(7) as u8]);
        let (transaction, value) = (TransactionId(self.active[at].id), Some(vec![self.random.next() as u8]));
        self.log.append(OwnedEntry::Update { transaction, table, key: key.clone(), value });
        self.active[at].to_install = Some((table, key));
    }

    fn end(&mut self, at: usize, commits: bool) {
        let transaction = self.active.remove(at);
        let id = TransactionId(transaction.id);
        if !commits {
            self.log.append(OwnedEntry::Abort { transaction: id });
            return;
        }
        // Pushed past its timestamp, or by chance: a final timestamp from the clock.
        let pushed = transaction.at_least > transaction.id || self.random.sometimes(20);
        let timestamp = if pushed { self.now() } else { transaction.id };
        assert!(timestamp >= transaction.at_least);
        for key in transaction.installed {
            self.newest.insert(key, timestamp);
        }
        self.log.append(OwnedEntry::Commit { transaction: id, timestamp: Timestamp(timestamp) });
    }

    fn move_horizon(&mut self) {
        let oldest = self.active.iter().map(|transaction| transaction.id).min().unwrap_or(self.clock + 1);
        self.host.horizon.fetch_max(oldest, SeqCst);
    }

    fn step(&mut self) {
        // An error is retried by a later step.
        let _ = self.proxy.step(&self.log);
        self.check_progress();
        self.check_bounds();
        let redo = self.proxy.redo_scan_start_point();
        if self.random.sometimes(10) {
            self.dc.redo_scan_start_point(redo).unwrap();
            self.log.truncated = redo;
        }
    }

    /// Every committed write of the stable log: key, (timestamp, LSN, value), commit LSN.
    #[allow(clippy::type_complexity)]
    fn committed(&self) -> Vec<(Key, (u64, Lsn, Option<Vec<u8>>), Lsn)> {
        let entries: Vec<_> =
            self.log.buffers[..self.log.stable].iter().flat_map(|buffer| &buffer.entries).collect();
        let outcomes: BTreeMap<TransactionId, (Lsn, u64)> = entries
            .iter()
            .filter_map(|(lsn, entry)| match entry {
                OwnedEntry::Commit { transaction, timestamp } => Some((*transaction, (*lsn, timestamp.0))),
                _ => None,
            })
            .collect();
        let updates = entries.iter().filter_map(|(lsn, entry)| match entry {
            OwnedEntry::Update { transaction, table, key, value } => {
                let (commit_lsn, timestamp) = outcomes.get(transaction)?;
                Some(((*table, key.clone()), (*timestamp, *lsn, value.clone()), *commit_lsn))
            }
            OwnedEntry::Large { transaction, table, key, value } => {
                let (commit_lsn, timestamp) = outcomes.get(transaction)?;
                Some(((*table, key.clone()), (*timestamp, *lsn, Some(value.clone())), *commit_lsn))
            }
            _ => None,
        });
        updates.collect()
    }

    /// The triple says no more than is true, and the data component holds nothing that it should not.
    fn check_progress(&self) {
        let progress = self.host.last_progress();
        let horizon = self.host.horizon.load(SeqCst);
        let held: BTreeMap<Key, (u64, Option<Vec<u8>>)> = (self.dc.inner.contents().into_iter())
            .map(|(table, record)| ((table, record.key), (record.timestamp.0, record.value)))
            .collect();
        let committed = self.committed();
        let mut newest: BTreeMap<&Key, &(u64, Lsn, Option<Vec<u8>>)> = BTreeMap::new();
        for (key, version, commit_lsn) in &committed {
            if progress.covers(version.1, *commit_lsn, Timestamp(version.0)) {
                let newest = newest.entry(key).or_insert(version);
                *newest = (*newest).max(version);
            }
        }
        for (key, (timestamp, _, value)) in newest {
            match held.get(key) {
                Some((found, _)) => {
                    assert!(found >= timestamp, "{progress:?}: {key:?} is {found}, not {timestamp}")
                }
                None => assert!(value.is_none(), "{progress:?}: {key:?} is missing"),
            }
        }
        for (key, (timestamp, value)) in held {
            assert!(
                timestamp < horizon,
                "{key:?} was posted at {timestamp}, not below the horizon {horizon}"
            );
            let exists = committed
                .iter()
                .any(|(of, version, _)| (of, version.0, &version.2) == (&key, timestamp, &value));
            assert!(exists, "{key:?} at {timestamp} was never committed");
        }
    }

    fn check_bounds(&self) {
        let statistics = self.proxy.statistics();
        let buffer = self.log.buffers.iter().map(|buffer| buffer.end - buffer.start).max().unwrap_or(0) * 4;
        // Of operations left in the log, and of their pieces.
        let lsns = self.log.buffers.iter().map(|buffer| buffer.entries.len() as u64).sum::<u64>() * 16;
        // What each transaction takes besides.
        let parts = 400 * statistics.undecided_transactions;
        let side = self.options.side_buffer_bytes_max as u64 + lsns + parts;
        assert!(statistics.side_buffer_bytes <= side, "{statistics:?}");
        let entries =
            self.log.buffers.iter().map(|buffer| buffer.entries.len() as u64).max().unwrap_or(0) * 4;
        let waiting = self.options.waiting_list_bytes_max as u64 + buffer + 400 * entries + side;
        assert!(statistics.waiting_list_bytes <= waiting, "{statistics:?}");
    }

    /// The machine stops: what was not stable is gone, and so are the active transactions.
    fn crash(mut self) -> World {
        let mut random = self.random.clone();
        let percent = random.below(101);
        let survivor = self.dc.inner.crash(|_| random.sometimes(percent));
        self.random = random;
        let log = std::mem::take(&mut self.log).crash();
        self.active.clear();
        self.dc = FlakyDc::new(survivor, self.clock, self.dc.percent.load(SeqCst));
        let start = self.dc.recovered_redo_scan_start_point();
        assert_eq!(start, log.truncated);
        self.host = Host::new(0, true);
        self.host.threads.store(1 + self.random.index(3), SeqCst);
        self.proxy = Proxy::new(self.dc.clone(), self.host.clone(), self.options.clone(), start);
        self.log = log;
        let mut pending = Pending::default();
        let mut rounds = &self.log.buffers[..];
        while let Some(first) = rounds.first() {
            if first.end() <= start {
                rounds = &rounds[1..];
                continue;
            }
            let (round, rest) = rounds.split_at(self.random.index(rounds.len().min(4)) + 1);
            rounds = rest;
            pending = self.replay_until_done(&mut pending, round);
            let redo = self.proxy.redo_scan_start_point();
            assert_eq!(redo, start);
            if self.random.sometimes(10) {
                // What has been posted is durable.
                self.dc.redo_scan_start_point(redo).unwrap();
                self.log.truncated = redo;
            }
            if self.random.sometimes(5) {
                return self.crash(); // on the way
            }
        }
        self.replay_until_done(&mut pending, &self.log.buffers[..0]);
        self.proxy.finish_replay(self.log.tail()).unwrap();
        self.check_equal();
        let progress = self.proxy.statistics();
        assert_eq!((progress.side_buffer_bytes, progress.waiting_list_bytes, progress.outcomes), (0, 0, 0));
        // The clock starts beyond every timestamp of the log, and nobody is active.
        self.clock += 10;
        self.host.horizon.store(self.clock + 1, SeqCst);
        self.newest.clear();
        for (key, version, _) in self.committed() {
            let newest = self.newest.entry(key).or_default();
            *newest = (*newest).max(version.0);
        }
        self
    }

    /// A round is applied in many parts, each of which may fail: so failures become rarer while it does not succeed.
    fn replay_until_done<'r>(&self, before: &mut Pending<'_>, round: &'r [Buffer]) -> Pending<'r> {
        let percent = self.dc.percent.load(SeqCst);
        loop {
            match self.proxy.replay(before, round, &self.log) {
                Ok(pending) => {
                    self.dc.percent.store(percent, SeqCst);
                    return pending;
                }
                // Nothing but what is planted fails.
                Err(error) => assert!(matches!(error, ProxyError::Apply { .. }), "{error:?}"),
            }
            self.dc.percent.store(self.dc.percent.load(SeqCst) / 2, SeqCst);
        }
    }

    /// The data component equals the serial execution of what has committed in the stable log.
    fn check_equal(&self) {
        let mut serial: BTreeMap<Key, (u64, Lsn, Option<Vec<u8>>)> = BTreeMap::new();
        for (key, version, _) in self.committed() {
            let newest = serial.entry(key).or_insert_with(|| version.clone());
            if (version.0, version.1) > (newest.0, newest.1) {
                *newest = version;
            }
        }
        let expected: BTreeMap<Key, (u64, Vec<u8>)> =
            serial.into_iter().filter_map(|(key, version)| Some((key, (version.0, version.2?)))).collect();
        let found: BTreeMap<Key, (u64, Vec<u8>)> = (self.dc.inner.contents().into_iter())
            .filter_map(|(table, record)| Some(((table, record.key), (record.timestamp.0, record.value?))))
            .collect();
        assert_eq!(found, expected);
    }

    /// Ends all transactions and posts everything.
    fn drain(&mut self) {
        while !self.active.is_empty() {
            self.end(0, false);
        }
        self.log.flush();
        self.move_horizon();
        self.dc.percent.store(0, SeqCst);
        while self.proxy.step(&self.log).unwrap() {}
        self.check_progress();
        self.check_equal();
        let statistics = self.proxy.statistics();
        assert_eq!(statistics.outcomes + statistics.side_buffer_bytes + statistics.waiting_list_bytes, 0);
        let end = self.log.buffers.last().map_or(0, |buffer| buffer.end);
        assert!(self.proxy.redo_scan_start_point() >= Lsn(end));
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..250 {
        match world.random.below(100) {
            0..=69 => world.act(),
            70..=77 => world.log.flush(),
            78..=80 => world.move_horizon(),
            81..=98 => world.step(),
            _ if world.random.sometimes(50) => world = world.crash(),
            _ => {}
        }
    }
    world.drain();
    world.crash().drain();
}

#[test]
fn the_data_component_equals_the_serial_execution_across_crashes() {
    for seed in 0..1200 {
        let result = std::panic::catch_unwind(|| run(seed));
        if let Err(panic) = result {
            eprintln!("seed {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
