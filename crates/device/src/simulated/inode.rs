//! A simulated file's contents: visible, durable, and what is pending between the two.

use super::CrashPolicy;
use super::random::Random;
use crate::image::Image;
use std::collections::VecDeque;
use std::sync::Arc;

/// What a disk writes atomically. Nothing smaller is ever torn.
pub const SECTOR_BYTES: u64 = 512;
/// The page of a cache, the block of a file system: the other unit in which writes tear.
const PAGE_BYTES: u64 = 4096;
/// So many writes are remembered with what was there before them, for stale reads.
const REMEMBERED: usize = 16;

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, bytes: Arc<[u8]> },
    Extend { length: u64 },
    Shorten { length: u64 },
}

impl Change {
    fn apply(&self, image: &mut Image) {
        match self {
            Change::Write { offset, bytes } => image.write(bytes, *offset),
            Change::Extend { length } => image.extend(*length),
            Change::Shorten { length } => image.shorten(*length),
        }
    }
}

/// One file, whatever its names.
#[derive(Clone, Debug, Default)]
pub(super) struct Inode {
    visible: Image,
    durable: Image,
    pending: Vec<Change>,
    /// What the latest writes have replaced, newest last.
    replaced: VecDeque<(u64, Arc<[u8]>)>,
    /// Open handles of the running machine.
    pub(super) handles: u32,
}

impl Inode {
    pub(super) fn visible(&self) -> &Image {
        &self.visible
    }

    fn remember(&mut self, bytes: &[u8], offset: u64) {
        let mut before = vec![0; bytes.len()];
        if self.visible.read(&mut before, offset) {
            self.replaced.push_back((offset, before.into()));
            if self.replaced.len() > REMEMBERED {
                self.replaced.pop_front();
            }
        }
    }

    /// Puts what was there before the last write to some of it into bytes that were read at `offset`.
    pub(super) fn make_stale(&self, read: &mut [u8], offset: u64) {
        let end = offset + read.len() as u64;
        let overlaps =
            |(start, bytes): &&(u64, Arc<[u8]>)| *start < end && start + bytes.len() as u64 > offset;
        if let Some((start, bytes)) = self.replaced.iter().rev().find(overlaps) {
            let (from, to) = (offset.max(*start), end.min(start + bytes.len() as u64));
            read[(from - offset) as usize..(to - offset) as usize]
                .copy_from_slice(&bytes[(from - start) as usize..(to - start) as usize]);
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8], offset: u64) {
        self.remember(bytes, offset);
        self.visible.write(bytes, offset);
        self.pending.push(Change::Write { offset, bytes: bytes.into() });
    }

    pub(super) fn write_durable(&mut self, bytes: &[u8], offset: u64) {
        // A pending cut must not take away what is durable from now on. A file system's journal keeps the order of such changes;
        // and what was pending before it may become durable at any time.
        if let Some(cut) = self.pending.iter().rposition(|change| matches!(change, Change::Shorten { .. })) {
            self.pending.drain(..=cut).for_each(|change| change.apply(&mut self.durable));
        }
        self.remember(bytes, offset);
        self.visible.write(bytes, offset);
        self.durable.write(bytes, offset);
        // Older pending bytes of the same place must not come back over these. They are replaced, not cut out: a write
        // in two parts would tear within a sector.
        for change in &mut self.pending {
            if let Change::Write { offset: older, bytes: pending } = change {
                overwrite(pending, *older, bytes, offset);
            }
        }
    }

    /// A write that reads will show and no crash will leave.
    pub(super) fn write_doomed(&mut self, bytes: &[u8], offset: u64) {
        self.visible.write(bytes, offset);
    }

    pub(super) fn extend(&mut self, length: u64) {
        if length > self.visible.length() {
            self.visible.extend(length);
            self.pending.push(Change::Extend { length });
        }
    }

    pub(super) fn shorten(&mut self, length: u64) {
        if length < self.visible.length() {
            self.visible.shorten(length);
            self.pending.push(Change::Shorten { length });
        }
    }

    pub(super) fn sync(&mut self) {
        for change in self.pending.drain(..) {
            change.apply(&mut self.durable);
        }
    }

    /// A sync that failed half-way: some of what is pending has become durable, and nobody knows which.
    pub(super) fn sync_partly(&mut self, random: &mut Random) {
        self.durable = self.survivor(CrashPolicy::Random, random);
    }

    /// A sync that failed and dropped the dirty pages: reads go on showing what no crash will leave.
    pub(super) fn lose_pending(&mut self) {
        self.pending.clear();
    }

    /// Flips bits of the byte at `offset` wherever it is kept; false if there is no such byte.
    pub(super) fn flip(&mut self, offset: u64, mask: u8) -> bool {
        let flip = |image: &mut Image| {
            let mut byte = [0];
            let inside = image.read(&mut byte, offset);
            if inside {
                image.write(&[byte[0] ^ mask], offset);
            }
            inside
        };
        flip(&mut self.durable);
        for change in &mut self.pending {
            if let Change::Write { offset: start, bytes } = change
                && let Some(index) = offset.checked_sub(*start)
                && index < bytes.len() as u64
            {
                let mut copy = bytes.to_vec();
                copy[index as usize] ^= mask;
                *bytes = copy.into();
            }
        }
        flip(&mut self.visible)
    }

    /// The state after a crash, and a restart.
    pub(super) fn crash(&mut self, policy: CrashPolicy, random: &mut Random) {
        let survivor = self.survivor(policy, random);
        *self = Inode { visible: survivor.clone(), durable: survivor, ..Inode::default() };
    }

    fn survivor(&self, policy: CrashPolicy, random: &mut Random) -> Image {
        let mut survivor = self.durable.clone();
        match policy {
            CrashPolicy::LoseAll => {}
            CrashPolicy::KeepAll => self.pending.iter().for_each(|change| change.apply(&mut survivor)),
            CrashPolicy::Random => self.survive_at_random(&mut survivor, random),
        }
        survivor
    }

    /// Each sector ends as it was after some prefix of the pending writes, as a cache that writes back pages whenever
    /// it likes would leave it. Prefixes of different sectors are independent: that is the reordering.
    fn survive_at_random(&self, survivor: &mut Image, random: &mut Random) {
        let mut running = self.durable.clone();
        for change in &self.pending {
            change.apply(&mut running);
            match change {
                Change::Extend { length } => {
                    if random.coin() {
                        survivor.extend(*length);
                    }
                }
                Change::Shorten { length } => {
                    if random.coin() {
                        survivor.shorten(*length);
                    }
                }
                Change::Write { bytes, .. } if bytes.is_empty() => {}
                Change::Write { offset, bytes } => {
                    let end = offset + bytes.len() as u64;
                    match random.below(4) {
                        0 => {}
                        1 => copy_units(survivor, &running, *offset, end, SECTOR_BYTES, || true),
                        2 => copy_units(survivor, &running, *offset, end, SECTOR_BYTES, || random.coin()),
                        _ => copy_units(survivor, &running, *offset, end, PAGE_BYTES, || random.coin()),
                    }
                    // The length is metadata and may be written before the data: the rest reads as zeros.
                    if random.coin() {
                        survivor.extend(end);
                    }
                }
            }
        }
    }
}

/// Copies, of the units that `start..end` touches, those that `keep` says.
fn copy_units(to: &mut Image, from: &Image, start: u64, end: u64, unit: u64, mut keep: impl FnMut() -> bool) {
    for index in start / unit..end.div_ceil(unit) {
        if keep() {
            to.copy_range(from, index * unit, (index + 1) * unit);
        }
    }
}

/// Replaces what the write of `pending` at `older` has in common with one of `bytes` at `offset`.
fn overwrite(pending: &mut Arc<[u8]>, older: u64, bytes: &[u8], offset: u64) {
    let start = offset.max(older);
    let end = (offset + bytes.len() as u64).min(older + pending.len() as u64);
    if start < end {
        let mut copy = pending.to_vec();
        copy[(start - older) as usize..(end - older) as usize]
            .copy_from_slice(&bytes[(start - offset) as usize..(end - offset) as usize]);
        *pending = copy.into();
    }
}
