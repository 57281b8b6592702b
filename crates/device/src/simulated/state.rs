//! The whole state of a simulated disk and of the machine before it, behind one mutex.
//!
//! Every operation of a handle passes [`State::begin`], which is where handles from before a crash, the stop of the
//! machine and planned faults are decided. What is then done differs by operation and stands beside it here.

use super::CrashPolicy;
use super::entries::{Entries, InodeNumber};
use super::fault::{FaultKind, FaultPlan, InjectedFault};
use super::inode::Inode;
use super::inode::SECTOR_BYTES;
use super::random::Random;
use super::trace::Trace;
use super::watch::Watcher;
use crate::{MachineStopped, OpenMode, Operation};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(super) type Shared = Arc<Mutex<State>>;

/// No code here panics between two changes that belong together.
pub(super) fn lock(shared: &Shared) -> MutexGuard<'_, State> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How an operation goes.
enum Course {
    Succeed,
    /// The machine stops in the middle of it.
    Stop,
    Fail(FaultKind),
}

/// How long an operation takes, and how long a slow one.
const OPERATION_TIME: Duration = Duration::from_micros(10);
const SLOW_TIME: Duration = Duration::from_secs(1);

/// Whether an operation can go wrong in this way without anybody's being told.
fn can_be_silent(operation: Operation, kind: FaultKind) -> bool {
    match operation {
        Operation::Write => kind != FaultKind::Stale,
        Operation::Read => matches!(kind, FaultKind::Stale | FaultKind::Rot),
        Operation::Sync | Operation::SyncDirectory => kind == FaultKind::Forget,
        _ => false,
    }
}

/// Cloned to fork a disk.
#[derive(Clone)]
pub(super) struct State {
    entries: Entries,
    inodes: BTreeMap<InodeNumber, Inode>,
    next_inode: InodeNumber,
    random: Random,
    capacity: Option<u64>,
    /// Of the running machine; counted up by each crash. Handles know theirs.
    incarnation: u64,
    stopped: bool,
    locked: bool,
    plan: FaultPlan,
    fired: u64,
    /// Of these, silent ones that have changed something.
    lies: u64,
    operations: u64,
    counts: HashMap<Operation, u64>,
    start: Instant,
    now: Instant,
    /// Of the identifiers, so that they follow from the seed and not from what was done before.
    names: Random,
    trace: Trace,
    /// Not of copies.
    pub(super) watcher: Option<Watcher>,
}

impl State {
    pub(super) fn new(seed: u64) -> State {
        let start = Instant::now();
        State {
            entries: Entries::default(),
            inodes: BTreeMap::new(),
            next_inode: 0,
            random: Random::new(seed),
            capacity: None,
            incarnation: 0,
            stopped: false,
            locked: false,
            plan: FaultPlan::new(),
            fired: 0,
            lies: 0,
            operations: 0,
            counts: HashMap::new(),
            start,
            now: start,
            names: Random::new(!seed),
            trace: Trace::default(),
            watcher: None,
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.now
    }

    pub(super) fn uptime(&self) -> Duration {
        self.now - self.start
    }

    pub(super) fn advance(&mut self, time: Duration) {
        self.now += time;
    }

    pub(super) fn identifier(&mut self) -> u64 {
        self.names.next()
    }

    pub(super) fn trace(&self) -> u64 {
        self.trace.hash()
    }

    pub(super) fn files(&self) -> Vec<(String, u64)> {
        let names = self.entries.visible().iter();
        names.map(|(name, inode)| (name.clone(), self.inodes[inode].visible().length())).collect()
    }

    pub(super) fn contents(&self) -> u64 {
        let mut contents = Trace::default();
        for (name, inode) in self.entries.visible() {
            contents.bytes(self.inodes[inode].visible().hash(), name.as_bytes());
        }
        contents.hash()
    }

    pub(super) fn incarnation(&self) -> u64 {
        self.incarnation
    }

    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    pub(super) fn count(&self, operation: Operation) -> u64 {
        self.counts.get(&operation).copied().unwrap_or(0)
    }

    pub(super) fn fired(&self) -> u64 {
        self.fired
    }

    pub(super) fn lies(&self) -> u64 {
        self.lies
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped
    }

    pub(super) fn set_plan(&mut self, plan: FaultPlan) {
        self.plan = plan;
        self.fired = 0;
        self.lies = 0;
    }

    pub(super) fn set_capacity(&mut self, capacity: Option<u64>) {
        self.capacity = capacity;
    }

    pub(super) fn set_seed(&mut self, seed: u64) {
        self.random = Random::new(seed);
    }

    /// Length of all files that have a name.
    pub(super) fn used(&self) -> u64 {
        self.entries.visible().values().map(|inode| self.inodes[inode].visible().length()).sum()
    }

    pub(super) fn flip(&mut self, name: &str, offset: u64, mask: u8) -> io::Result<()> {
        let inode = self.named(name)?;
        match self.inode(inode).flip(offset, mask) {
            true => Ok(()),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    pub(super) fn crash(&mut self, policy: CrashPolicy) {
        self.entries.crash(policy, &mut self.random);
        let survivors = self.entries.inodes();
        self.inodes.retain(|number, _| survivors.contains(number));
        for inode in self.inodes.values_mut() {
            inode.crash(policy, &mut self.random);
        }
        self.restart();
    }

    /// A machine that knows of no handle, lock or fault.
    pub(super) fn restart(&mut self) {
        self.inodes.values_mut().for_each(|inode| inode.handles = 0);
        self.drop_unreachable();
        self.incarnation += 1;
        self.stopped = false;
        self.locked = false;
        self.plan = FaultPlan::new();
        self.fired = 0;
        self.lies = 0;
        self.operations = 0;
        self.counts.clear();
    }

    fn begin(
        &mut self,
        incarnation: u64,
        operation: Operation,
        mutates: bool,
        name: &str,
    ) -> io::Result<Course> {
        if self.stopped || incarnation != self.incarnation {
            return Err(MachineStopped.into());
        }
        if mutates {
            if self.plan.crashes_at(self.operations) {
                self.stopped = true;
                return Ok(Course::Stop);
            }
            self.operations += 1;
        }
        *self.counts.entry(operation).or_insert(0) += 1;
        self.now += OPERATION_TIME;
        self.trace.operation(operation, name);
        let Some(kind) = self.plan.strike(operation, name) else { return Ok(Course::Succeed) };
        self.fired += 1;
        self.trace.number(kind as u64 + 1);
        Ok(match kind {
            FaultKind::Slow => {
                self.now += SLOW_TIME;
                Course::Succeed
            }
            // Operations to which a silent fault cannot happen go well.
            kind if kind.is_silent() && !can_be_silent(operation, kind) => Course::Succeed,
            kind => {
                self.lies += u64::from(kind.is_silent());
                Course::Fail(kind)
            }
        })
    }

    /// For operations that change nothing, and fail as a whole.
    pub(super) fn look(&mut self, incarnation: u64, operation: Operation, name: &str) -> io::Result<()> {
        match self.begin(incarnation, operation, false, name)? {
            Course::Succeed => Ok(()),
            Course::Stop => Err(MachineStopped.into()),
            Course::Fail(kind) => Err(InjectedFault(kind).into()),
        }
    }

    /// For changes of the directory: `change` is made pending, unless a fault refuses it. If the machine stops in
    /// the middle, it is pending and the caller learns of the stop.
    fn change_entries(
        &mut self,
        incarnation: u64,
        operation: Operation,
        name: &str,
        change: impl FnOnce(&mut State) -> io::Result<InodeNumber>,
    ) -> io::Result<InodeNumber> {
        match self.begin(incarnation, operation, true, name)? {
            Course::Succeed => change(self),
            Course::Stop => {
                // Whether it could have worked no longer matters to anybody.
                let _ = change(self);
                Err(MachineStopped.into())
            }
            Course::Fail(kind) => Err(InjectedFault(kind).into()),
        }
    }

    fn named(&self, name: &str) -> io::Result<InodeNumber> {
        self.entries.get(name).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn inode(&mut self, number: InodeNumber) -> &mut Inode {
        self.inodes.get_mut(&number).expect("an inode lives as long as a name or a handle")
    }

    pub(super) fn open(&mut self, incarnation: u64, name: &str, mode: OpenMode) -> io::Result<InodeNumber> {
        let number = match mode {
            OpenMode::Read | OpenMode::ReadWrite => {
                self.look(incarnation, Operation::Open, name)?;
                self.named(name)?
            }
            OpenMode::CreateNew => {
                self.change_entries(incarnation, Operation::Open, name, |state| state.create(name))?
            }
        };
        self.inode(number).handles += 1;
        Ok(number)
    }

    fn create(&mut self, name: &str) -> io::Result<InodeNumber> {
        if self.entries.get(name).is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let number = self.next_inode;
        self.next_inode += 1;
        self.inodes.insert(number, Inode::default());
        self.entries.create(name, number);
        Ok(number)
    }

    pub(super) fn close(&mut self, incarnation: u64, number: InodeNumber) {
        if incarnation == self.incarnation {
            self.inode(number).handles -= 1;
            self.drop_unreachable();
        }
    }

    fn drop_unreachable(&mut self) {
        let named = self.entries.inodes();
        self.inodes.retain(|number, inode| inode.handles > 0 || named.contains(number));
    }

    pub(super) fn list(&mut self, incarnation: u64) -> io::Result<Vec<String>> {
        self.look(incarnation, Operation::List, "")?;
        Ok(self.entries.visible().keys().cloned().collect())
    }

    pub(super) fn remove(&mut self, incarnation: u64, name: &str) -> io::Result<()> {
        self.change_entries(incarnation, Operation::Remove, name, |state| {
            let number = state.named(name)?;
            state.entries.remove(name);
            Ok(number)
        })?;
        self.drop_unreachable();
        Ok(())
    }

    pub(super) fn rename(&mut self, incarnation: u64, from: &str, to: &str) -> io::Result<()> {
        self.change_entries(incarnation, Operation::Rename, from, |state| {
            let number = state.named(from)?;
            state.entries.rename(from, to);
            Ok(number)
        })?;
        self.drop_unreachable();
        Ok(())
    }

    pub(super) fn sync_entries(&mut self, incarnation: u64) -> io::Result<()> {
        match self.begin(incarnation, Operation::SyncDirectory, true, "")? {
            Course::Succeed => {
                self.entries.sync();
                self.drop_unreachable();
                Ok(())
            }
            Course::Stop => Err(MachineStopped.into()),
            Course::Fail(kind) => {
                match kind {
                    FaultKind::Forget => return Ok(()),
                    FaultKind::Partial => self.entries.sync_partly(&mut self.random),
                    FaultKind::Lose => self.entries.lose_pending(),
                    _ => {}
                }
                Err(InjectedFault(kind).into())
            }
        }
    }

    pub(super) fn read(
        &mut self,
        incarnation: u64,
        (number, name): (InodeNumber, &str),
        buffer: &mut [u8],
        offset: u64,
    ) -> io::Result<()> {
        let course = self.begin(incarnation, Operation::Read, false, name)?;
        if let Course::Fail(kind) = course
            && !kind.is_silent()
        {
            return Err(InjectedFault(kind).into());
        }
        if let Course::Fail(FaultKind::Rot) = course
            && !buffer.is_empty()
        {
            let at = offset + self.random.below(buffer.len() as u64);
            let mask = 1 << self.random.below(8);
            self.inode(number).flip(at, mask);
        }
        if !self.inode(number).visible().read(buffer, offset) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if let Course::Fail(FaultKind::Stale) = course {
            self.inode(number).make_stale(buffer, offset);
        }
        self.trace.bytes(offset, buffer);
        Ok(())
    }

    pub(super) fn length(
        &mut self,
        incarnation: u64,
        (number, name): (InodeNumber, &str),
    ) -> io::Result<u64> {
        self.look(incarnation, Operation::Length, name)?;
        Ok(self.inode(number).visible().length())
    }

    pub(super) fn write(
        &mut self,
        incarnation: u64,
        (number, name): (InodeNumber, &str),
        bytes: &[u8],
        offset: u64,
        durable: bool,
    ) -> io::Result<()> {
        let course = self.begin(incarnation, Operation::Write, true, name)?;
        self.trace.bytes(offset, bytes);
        let room = self.room(number, if bytes.is_empty() { 0 } else { offset + bytes.len() as u64 });
        if let Course::Fail(kind) = course
            && kind.is_silent()
        {
            room?;
            self.write_wrongly(number, kind, bytes, offset, durable);
            return Ok(());
        }
        let inode = self.inode(number);
        match course {
            Course::Succeed => {
                room?;
                match durable {
                    true => inode.write_durable(bytes, offset),
                    false => inode.write(bytes, offset),
                }
                Ok(())
            }
            Course::Stop => {
                if room.is_ok() {
                    inode.write(bytes, offset);
                }
                Err(MachineStopped.into())
            }
            Course::Fail(kind) => {
                match kind {
                    FaultKind::Partial if room.is_ok() => inode.write(&bytes[..bytes.len() / 2], offset),
                    FaultKind::Lose if room.is_ok() => inode.write_doomed(bytes, offset),
                    _ => {}
                }
                Err(InjectedFault(kind).into())
            }
        }
    }

    /// A write that is reported as done, and was not done as asked.
    fn write_wrongly(
        &mut self,
        number: InodeNumber,
        kind: FaultKind,
        bytes: &[u8],
        offset: u64,
        durable: bool,
    ) {
        let (mut bytes, mut offset) = (bytes.to_vec(), offset);
        match kind {
            FaultKind::Short => {
                bytes.truncate(bytes.len() / 2 / SECTOR_BYTES as usize * SECTOR_BYTES as usize)
            }
            FaultKind::Rot if !bytes.is_empty() => {
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
            }
            FaultKind::Misdirect => {
                let blocks = self.inode(number).visible().length().saturating_sub(bytes.len() as u64) / 4096;
                let other = self.random.below(blocks + 1) * 4096;
                // If there is no other place, it is lost.
                if other == offset {
                    return;
                }
                offset = other;
            }
            _ => return,
        }
        match durable {
            true => self.inode(number).write_durable(&bytes, offset),
            false => self.inode(number).write(&bytes, offset),
        }
    }

    pub(super) fn allocate(
        &mut self,
        incarnation: u64,
        (number, name): (InodeNumber, &str),
        length: u64,
    ) -> io::Result<()> {
        let course = self.begin(incarnation, Operation::Allocate, true, name)?;
        let room = self.room(number, length);
        match course {
            Course::Succeed => {
                room?;
                self.inode(number).extend(length);
                Ok(())
            }
            Course::Stop => {
                if room.is_ok() {
                    self.inode(number).extend(length);
                }
                Err(MachineStopped.into())
            }
            Course::Fail(kind) => Err(InjectedFault(kind).into()),
        }
    }

    pub(super) fn shorten(
        &mut self,
        incarnation: u64,
        (number, name): (InodeNumber, &str),
        length: u64,
    ) -> io::Result<()> {
        match self.begin(incarnation, Operation::Shorten, true, name)? {
            Course::Succeed => {
                self.inode(number).shorten(length);
                Ok(())
            }
            Course::Stop => {
                self.inode(number).shorten(length);
                Err(MachineStopped.into())
            }
            Course::Fail(kind) => Err(InjectedFault(kind).into()),
        }
    }

    pub(super) fn sync(&mut self, incarnation: u64, (number, name): (InodeNumber, &str)) -> io::Result<()> {
        let course = self.begin(incarnation, Operation::Sync, true, name)?;
        let random = &mut self.random;
        let inode = self.inodes.get_mut(&number).expect("an inode lives as long as its handles");
        match course {
            Course::Succeed => {
                inode.sync();
                Ok(())
            }
            Course::Stop => Err(MachineStopped.into()),
            Course::Fail(kind) => {
                match kind {
                    FaultKind::Forget => return Ok(()),
                    FaultKind::Partial => inode.sync_partly(random),
                    FaultKind::Lose => inode.lose_pending(),
                    _ => {}
                }
                Err(InjectedFault(kind).into())
            }
        }
    }

    /// Whether the file may be as long as `length`.
    fn room(&self, number: InodeNumber, length: u64) -> io::Result<()> {
        let growth = length.saturating_sub(self.inodes[&number].visible().length());
        match self.capacity {
            Some(capacity) if growth > 0 && self.used() + growth > capacity => {
                Err(io::ErrorKind::StorageFull.into())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn take_lock(&mut self, incarnation: u64, name: &str) -> io::Result<()> {
        self.look(incarnation, Operation::Lock, name)?;
        match std::mem::replace(&mut self.locked, true) {
            true => Err(io::ErrorKind::WouldBlock.into()),
            false => Ok(()),
        }
    }

    pub(super) fn give_back_lock(&mut self, incarnation: u64) {
        if incarnation == self.incarnation {
            self.locked = false;
        }
    }
}
