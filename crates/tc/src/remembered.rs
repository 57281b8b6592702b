//! What a transaction remembers of its reads, to look at them again (rule R7): keys, ranges, and what was there, in bounded memory.
//!
//! What it remembers may take half of the budget. Where it would be more, each key is kept once; if that does not help the reads are
//! forgotten, which matters only if the transaction is pushed.

use crate::entries::up_to;
use crate::error::TcError;
use crate::range_timestamps::OwnedRange;
use crate::record::KeyRef;
use crate::segment::{Digest, SegmentRequest};
use crate::workspace::{Observed, ReadEntry, ScanEntry, Workspace};
use deuteron_contract::Direction;
use std::mem::{size_of, take};

impl Workspace {
    /// Adds a key to the read set (R7); whether [room is to be made](Workspace::make_room_for_held) for what the transaction holds.
    // A call would cost as much as the rest.
    #[inline(always)]
    pub(crate) fn remember(&mut self, key: KeyRef<'_>, observed: Observed) -> bool {
        let is_full = self.is_full_of_reads(key.key.len());
        if self.reads_forgotten || is_full && !self.make_place(key.key.len()) {
            return false;
        }
        let key_start = self.keys.len() as u32;
        self.keys.extend_from_slice(key.key);
        self.reads.push(ReadEntry {
            hash: key.hash,
            table: key.table,
            key_start,
            key_length: key.key.len() as u32,
            observed,
        });
        self.held.add(size_of::<ReadEntry>() + key.key.len(), &self.core.account)
    }

    /// Adds a batch to the scan set (R7): to the entry of the batches before it, if the transaction has not written since. Never
    /// under a guard.
    ///
    /// # Errors
    /// As [`Workspace::hold`].
    pub(crate) fn remember_scan(
        &mut self,
        entry: Option<usize>,
        request: &SegmentRequest<'_>,
        last: Option<&[u8]>,
        digest: Digest,
        own: u64,
    ) -> Result<Option<usize>, TcError> {
        if self.reads_forgotten || entry.is_none() && self.is_full_of_reads(0) && !self.make_place(0) {
            return Ok(None);
        }
        let covered = up_to(request.range, request.direction, last);
        let OwnedRange { table, lower, upper } = covered.into();
        let (index, bytes) = match entry {
            Some(index) => {
                let ScanEntry { range, digest: known, .. } = &mut self.scans[index];
                let bytes_before = range.key_bytes();
                *known = digest;
                match request.direction {
                    Direction::Forward => range.upper = upper,
                    Direction::Reverse => range.lower = lower,
                }
                (index, range.key_bytes().saturating_sub(bytes_before))
            }
            None => {
                let range = OwnedRange { table, lower, upper };
                let bytes = size_of::<ScanEntry>() + range.key_bytes();
                self.scans.push(ScanEntry { range, direction: request.direction, digest, own });
                (self.scans.len() - 1, bytes)
            }
        };
        self.scan_bytes += bytes;
        self.hold(bytes)?;
        Ok((!self.reads_forgotten).then_some(index))
    }

    /// Bytes of what is remembered.
    fn read_bytes(&self) -> usize {
        self.reads.len() * size_of::<ReadEntry>() + self.keys.len() + self.scan_bytes
    }

    #[inline]
    fn is_full_of_reads(&self, key_bytes: usize) -> bool {
        self.reads.len() + self.scans.len() >= self.core.options.reads_max
            || self.keys.len() + key_bytes > u32::MAX as usize
    }

    /// Makes place for one more; false if there is none, and all is forgotten.
    #[cold]
    fn make_place(&mut self, key_bytes: usize) -> bool {
        let has_place = self.keep_each_once() && !self.is_full_of_reads(key_bytes);
        if !has_place {
            self.forget_reads();
        }
        has_place
    }

    /// The transaction keeps so many bytes more until it ends. Now and then that is counted, and room is made for it: never under a
    /// guard.
    ///
    /// # Errors
    /// As [`Core::make_room`](crate::core::Core::make_room).
    #[inline]
    pub(crate) fn hold(&mut self, bytes: usize) -> Result<(), TcError> {
        if self.held.add(bytes, &self.core.account) { self.make_room_for_held() } else { Ok(()) }
    }

    /// Makes room for what the transaction holds, of which the account has just been told. Never under a guard.
    ///
    /// # Errors
    /// As [`Core::make_room`](crate::core::Core::make_room).
    #[cold]
    pub(crate) fn make_room_for_held(&mut self) -> Result<(), TcError> {
        let limit = self.core.account.budget() as usize / 2;
        if self.read_bytes() > limit && !(self.keep_each_once() && self.read_bytes() <= limit) {
            // Memory stays bounded; only if the transaction is pushed will it matter.
            self.forget_reads();
        }
        self.make_room()
    }

    /// Drops what is remembered of a key more than once; whether that was a quarter of all or more. With less it would be tried again too
    /// soon.
    fn keep_each_once(&mut self) -> bool {
        let (count, bytes) = (self.reads.len(), self.read_bytes());
        let (mut reads, keys) = (take(&mut self.reads), take(&mut self.keys));
        let key_of = |read: &ReadEntry| &keys[read.key_start as usize..][..read.key_length as usize];
        reads.sort_unstable_by(|one, other| {
            (one.hash, one.table, key_of(one)).cmp(&(other.hash, other.table, key_of(other)))
        });
        reads.dedup_by(|one, other| {
            (one.hash, one.table, one.observed) == (other.hash, other.table, other.observed)
                && key_of(one) == key_of(other)
        });
        for read in &mut reads {
            let key_start = self.keys.len() as u32;
            self.keys.extend_from_slice(key_of(read));
            read.key_start = key_start;
        }
        self.reads = reads;
        self.held.subtract(bytes - self.read_bytes(), &self.core.account);
        let dropped = count - self.reads.len();
        dropped > 0 && dropped >= count / 4
    }

    fn forget_reads(&mut self) {
        self.held.subtract(self.read_bytes(), &self.core.account);
        self.reads_forgotten = true;
        self.reads = Vec::new();
        self.keys = Vec::new();
        self.scans = Vec::new();
        self.scan_bytes = 0;
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::counted::stored;
    use crate::test_bed::{Bed, TABLE, bed, roomy};
    use crate::{ConflictCause, TcError, TcOptions, Transaction};
    use deuteron_log::LogOptions;
    use std::sync::Arc;

    fn with(options: TcOptions) -> Arc<Bed> {
        let log = LogOptions { ring_bytes: 8 << 20, ..LogOptions::default() };
        bed(options, &log, deuteron_proxy::Options::default())
    }

    fn read(tx: &mut Transaction, number: u32) {
        tx.get(TABLE, &number.to_be_bytes()).expect("nobody is in the way");
    }

    /// As if the transaction had read a version of that time.
    fn remember(tx: &mut Transaction, number: u64) {
        let key = tx.workspace.core.table.key(TABLE, &[0; 4]);
        if tx.workspace.remember(key, Observed::Version(deuteron_contract::Timestamp(number))) {
            tx.workspace.make_room_for_held().expect("there is room");
        }
    }

    /// Somebody reads what the transaction has written: it must commit later.
    fn push(bed: &Bed, tx: &mut Transaction) {
        tx.put(TABLE, b"pushed", b"1").expect("nobody is in the way");
        bed.get(b"pushed");
    }

    #[test]
    fn of_reads_beyond_the_bound_each_key_is_kept_once_before_all_are_forgotten() {
        let bed = with(TcOptions { reads_max: 16, ..TcOptions::default() });
        let mut tx = bed.begin();
        for number in 0..1000 {
            read(&mut tx, number % 12);
        }
        assert!(!tx.workspace.reads_forgotten && tx.workspace.reads.len() <= 16);
        let seen: std::collections::BTreeSet<&[u8]> =
            tx.workspace.reads.iter().map(|read| tx.workspace.key_of(read)).collect();
        assert_eq!(seen.len(), 12);
        push(&bed, &mut tx);
        tx.commit().expect("it remembers, and nothing has changed");
        // What it remembers is looked at.
        let mut tx = bed.begin();
        (0..1000).for_each(|number| read(&mut tx, number % 12));
        push(&bed, &mut tx);
        bed.put(&7u32.to_be_bytes(), b"changed");
        match tx.commit() {
            Err(TcError::Conflict(conflict)) => assert_eq!(conflict.cause, ConflictCause::ReadChanged),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn reads_may_take_half_of_the_budget_and_are_counted() {
        let bed = with(TcOptions { memory_bytes: 2 << 20, ..TcOptions::default() });
        let account = &bed.tc().core.account;
        let before = account.used();
        let mut tx = bed.begin();
        let mut most = 0;
        let mut number = 0u64;
        while !tx.workspace.reads_forgotten {
            // No two are the same.
            remember(&mut tx, number);
            most = most.max(account.used() - before);
            number += 1;
        }
        let bytes = number * (size_of::<ReadEntry>() as u64 + 4);
        assert!(bytes.abs_diff(1 << 20) < 128 << 10, "{bytes}");
        assert!(most.abs_diff(1 << 20) < 192 << 10, "{most}");
        assert!(account.used().abs_diff(before) < 64 << 10, "given back when they are forgotten");
        drop(tx);
        // At the end, too.
        let mut tx = bed.begin();
        for number in 0..10_000 {
            remember(&mut tx, number);
        }
        assert!(account.used() > before + (256 << 10));
        drop(tx);
        assert!(account.used().abs_diff(before) < 64 << 10);
    }

    #[test]
    fn a_read_that_is_remembered_writes_no_line_of_others_but_for_one_in_many() {
        let bed = roomy();
        let mut tx = bed.begin();
        let key = tx.workspace.core.table.key(TABLE, b"k");
        let remembered = |tx: &mut Transaction| stored(|| tx.workspace.remember(key, Observed::Absent)).1;
        let stores: usize = (0..1000).map(|_| remembered(&mut tx).len()).sum();
        assert_eq!(stores, 0);
    }
}
