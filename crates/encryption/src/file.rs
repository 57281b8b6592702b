//! [`EncryptedFile`]: a file whose blocks lie in units behind a header.

use crate::error::fill_random;
use crate::unit::{NONCE_BYTES, Sealer, UNIT_BYTES};
use deuteron_device::{BLOCK_BYTES, DeviceError, File, MisalignedAccess, Operation};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const BLOCK: u64 = BLOCK_BYTES as u64;
const UNIT: u64 = UNIT_BYTES as u64;

/// Where the unit of a block lies. The header takes the place of one.
pub(crate) fn unit_at(block: u64) -> u64 {
    UNIT * (block + 1)
}

/// Whether the units of a file so long end where file systems can count.
fn fits(length: u64) -> bool {
    (length / BLOCK + 2).checked_mul(UNIT).is_some_and(|end| end <= i64::MAX as u64)
}

pub(crate) struct EncryptedFile {
    pub(crate) inner: Arc<dyn File>,
    pub(crate) name: String,
    pub(crate) writable: bool,
    pub(crate) direct: bool,
    pub(crate) sealer: Sealer,
    /// E3: nothing has been written through this handle.
    pub(crate) is_fresh: AtomicBool,
    /// Held over every change: one of a part of a block reads the block before.
    pub(crate) changes: Mutex<()>,
    /// Of the directory: blocks that were not authentic.
    pub(crate) damaged: Arc<AtomicU64>,
}

/// The units that hold a range of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    offset: u64,
    length: usize,
    first: u64,
    pub(crate) units: usize,
}

impl Span {
    /// Of `length` bytes, one at least.
    fn of(offset: u64, length: usize) -> Span {
        let (first, last) = (offset / BLOCK, (offset + length as u64 - 1) / BLOCK);
        Span { offset, length, first, units: (last - first + 1) as usize }
    }

    pub(crate) fn start(&self) -> u64 {
        unit_at(self.first)
    }

    /// For each unit: its block, what of the block is meant, and where that lies in the range.
    fn parts(self) -> impl Iterator<Item = (u64, std::ops::Range<usize>, usize)> {
        let end = self.offset + self.length as u64;
        (self.first..self.first + self.units as u64).map(move |block| {
            let from = self.offset.max(block * BLOCK);
            let to = end.min((block + 1) * BLOCK);
            let within = (from - block * BLOCK) as usize..(to - block * BLOCK) as usize;
            (block, within, (from - self.offset) as usize)
        })
    }
}

impl EncryptedFile {
    pub(crate) fn error(
        &self,
        operation: Operation,
        offset: u64,
        source: impl Into<io::Error>,
    ) -> DeviceError {
        DeviceError { operation, file: self.name.clone(), offset, source: source.into() }
    }

    /// What is checked before anything is read or written, as by other devices.
    pub(crate) fn admit(&self, operation: Operation, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        let (address, length) = (buffer.as_ptr().addr(), buffer.len());
        if operation == Operation::Write {
            self.changeable(operation)?;
        }
        if self.direct && !(address | length | offset as usize).is_multiple_of(BLOCK_BYTES) {
            return Err(self.error(operation, offset, MisalignedAccess { offset, length, address }));
        }
        match offset.checked_add(length as u64) {
            Some(end) if fits(end) => Ok(()),
            _ if operation == Operation::Read => {
                Err(self.error(operation, offset, io::ErrorKind::UnexpectedEof))
            }
            _ => Err(self.error(operation, offset, io::ErrorKind::FileTooLarge)),
        }
    }

    fn changeable(&self, operation: Operation) -> Result<(), DeviceError> {
        if self.writable { Ok(()) } else { Err(self.error(operation, 0, io::ErrorKind::PermissionDenied)) }
    }

    /// What a read needs of the file below; `None` if it needs nothing.
    pub(crate) fn span(&self, buffer: &[u8], offset: u64) -> Result<Option<Span>, DeviceError> {
        self.admit(Operation::Read, buffer, offset)?;
        if buffer.is_empty() {
            let is_within = offset <= self.length()?;
            return match is_within {
                true => Ok(None),
                false => Err(self.error(Operation::Read, offset, io::ErrorKind::UnexpectedEof)),
            };
        }
        Ok(Some(Span::of(offset, buffer.len())))
    }

    /// Takes what was read of the file below into the buffer.
    pub(crate) fn take(&self, span: &Span, units: &mut [u8], buffer: &mut [u8]) -> Result<(), DeviceError> {
        for ((block, within, at), unit) in span.parts().zip(units.chunks_exact_mut(UNIT_BYTES)) {
            let (count, is_authentic) = self.sealer.open(unit, block);
            if !is_authentic {
                self.damaged.fetch_add(1, Ordering::Relaxed);
            }
            if within.end > count {
                return Err(self.error(Operation::Read, span.offset, io::ErrorKind::UnexpectedEof));
            }
            buffer[at..at + within.len()].copy_from_slice(&unit[within]);
        }
        Ok(())
    }

    pub(crate) fn of_inner(&self, error: DeviceError, offset: u64) -> DeviceError {
        DeviceError { file: self.name.clone(), offset, ..error }
    }

    /// How many whole units there are.
    fn units(&self) -> Result<u64, DeviceError> {
        let length = self.inner.length().map_err(|error| self.of_inner(error, 0))?;
        Ok((length / UNIT).saturating_sub(1))
    }

    /// The block of a unit that is there, in a unit's room, and how much of it belongs to the file.
    fn existing(&self, block: u64) -> Result<(Vec<u8>, usize), DeviceError> {
        let mut unit = vec![0; UNIT_BYTES];
        self.inner.read_at(&mut unit, unit_at(block)).map_err(|error| self.of_inner(error, block * BLOCK))?;
        let (count, _) = self.sealer.open(&mut unit, block);
        Ok((unit, count))
    }

    /// Fills the last unit up with zeros if the file goes on behind it.
    fn fill_up(&self, units: u64, next: u64) -> Result<(), DeviceError> {
        let Some(last) = units.checked_sub(1).filter(|&last| last < next) else { return Ok(()) };
        let (mut unit, count) = self.existing(last)?;
        if count == BLOCK_BYTES {
            return Ok(());
        }
        unit[count..].fill(0);
        self.seal(&mut unit, last, &[BLOCK_BYTES])?;
        self.inner.write_at(&unit, unit_at(last)).map_err(|error| self.of_inner(error, last * BLOCK))
    }

    /// Makes units of the blocks in their rooms, from `first` on.
    fn seal(&self, units: &mut [u8], first: u64, counts: &[usize]) -> Result<(), DeviceError> {
        // E1.
        let mut nonces = vec![0; NONCE_BYTES * counts.len()];
        fill_random(&mut nonces).map_err(|error| self.error(Operation::Write, first * BLOCK, error))?;
        let nonces = nonces.as_chunks::<NONCE_BYTES>().0;
        let units = units.chunks_exact_mut(UNIT_BYTES);
        for (((unit, block), count), nonce) in units.zip(first..).zip(counts).zip(nonces) {
            self.sealer.seal(unit, block, *count, nonce);
        }
        Ok(())
    }

    /// E3: puts units that are there, whole and of the same blocks, in the place of those in `units`.
    fn keep_same(&self, buffer: &[u8], span: Span, units: &mut [u8], there: u64) -> Result<(), DeviceError> {
        let known = there.saturating_sub(span.first).min(span.units as u64) as usize;
        if known == 0 {
            return Ok(());
        }
        let mut old = vec![0; known * UNIT_BYTES];
        self.inner.read_at(&mut old, span.start()).map_err(|error| self.of_inner(error, span.offset))?;
        for (((block, within, at), unit), old) in
            span.parts().zip(units.chunks_exact_mut(UNIT_BYTES)).zip(old.chunks_exact(UNIT_BYTES))
        {
            let mut opened = old.to_vec();
            let is_whole =
                within.len() == BLOCK_BYTES && self.sealer.open(&mut opened, block) == (BLOCK_BYTES, true);
            if is_whole && opened[..BLOCK_BYTES] == buffer[at..at + BLOCK_BYTES] {
                unit.copy_from_slice(old);
            }
        }
        Ok(())
    }

    fn write(&self, buffer: &[u8], offset: u64, is_durable: bool) -> Result<(), DeviceError> {
        self.admit(Operation::Write, buffer, offset)?;
        if buffer.is_empty() {
            return Ok(());
        }
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let span = Span::of(offset, buffer.len());
        let there = self.units()?;
        self.fill_up(there, span.first)?;
        let mut units = vec![0; span.units * UNIT_BYTES];
        let mut counts = Vec::with_capacity(span.units);
        for ((block, within, at), unit) in span.parts().zip(units.chunks_exact_mut(UNIT_BYTES)) {
            let mut count = within.end;
            if within.len() < BLOCK_BYTES && block < there {
                let (old, old_count) = self.existing(block)?;
                unit[..old_count].copy_from_slice(&old[..old_count]);
                count = count.max(old_count);
            }
            let part = within.len();
            unit[within].copy_from_slice(&buffer[at..at + part]);
            counts.push(count);
        }
        self.seal(&mut units, span.first, &counts)?;
        if self.is_fresh.swap(false, Ordering::Relaxed) {
            self.keep_same(buffer, span, &mut units, there)?;
        }
        let written = match is_durable {
            true => self.inner.write_durable_at(&units, span.start()),
            false => self.inner.write_at(&units, span.start()),
        };
        written.map_err(|error| self.of_inner(error, offset))
    }
}

impl File for EncryptedFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), DeviceError> {
        let Some(span) = self.span(buffer, offset)? else { return Ok(()) };
        let mut units = vec![0; span.units * UNIT_BYTES];
        self.inner.read_at(&mut units, span.start()).map_err(|error| self.of_inner(error, offset))?;
        self.take(&span, &mut units, buffer)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.write(buffer, offset, false)
    }

    fn write_durable_at(&self, buffer: &[u8], offset: u64) -> Result<(), DeviceError> {
        self.write(buffer, offset, true)
    }

    fn sync(&self) -> Result<(), DeviceError> {
        self.inner.sync().map_err(|error| self.of_inner(error, 0))
    }

    fn allocate(&self, length: u64) -> Result<(), DeviceError> {
        self.changeable(Operation::Allocate)?;
        if length <= self.length()? {
            return Ok(());
        }
        if !fits(length) {
            return Err(self.error(Operation::Allocate, length, io::ErrorKind::FileTooLarge));
        }
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let units = length.div_ceil(BLOCK);
        self.fill_up(self.units()?, length / BLOCK)?;
        self.inner.allocate(unit_at(units)).map_err(|error| self.of_inner(error, length))?;
        let count = (length % BLOCK) as usize;
        if count > 0 {
            // A unit of zeros would be a whole block.
            let (mut unit, _) = self.existing(units - 1)?;
            self.seal(&mut unit, units - 1, &[count])?;
            self.inner.write_at(&unit, unit_at(units - 1)).map_err(|error| self.of_inner(error, length))?;
        }
        Ok(())
    }

    fn shorten(&self, length: u64) -> Result<(), DeviceError> {
        self.changeable(Operation::Shorten)?;
        let _changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if length >= self.length()? {
            return Ok(());
        }
        let units = length.div_ceil(BLOCK);
        self.inner.shorten(unit_at(units)).map_err(|error| self.of_inner(error, length))?;
        let count = (length % BLOCK) as usize;
        if count > 0 {
            let (mut unit, _) = self.existing(units - 1)?;
            unit[count..].fill(0);
            self.seal(&mut unit, units - 1, &[count])?;
            self.inner.write_at(&unit, unit_at(units - 1)).map_err(|error| self.of_inner(error, length))?;
        }
        Ok(())
    }

    fn length(&self) -> Result<u64, DeviceError> {
        match self.units()?.checked_sub(1) {
            None => Ok(0),
            Some(last) => Ok(last * BLOCK + self.existing(last)?.1 as u64),
        }
    }
}
