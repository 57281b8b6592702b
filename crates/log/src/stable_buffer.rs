//! A stable buffer in the ring, on loan.

use crate::block::{BufferHeader, HEADER_BYTES};
use crate::buffer_view::BufferView;
use crate::log::Log;
use deuteron_contract::Lsn;

/// A stable buffer in the ring, lent to the proxy without copying (paper 3.2). Its memory is not reused before it is
/// dropped, whatever is released.
pub struct StableBuffer<'a> {
    log: &'a Log,
    base: u64,
}

impl<'a> StableBuffer<'a> {
    /// `base` is below the stable LSN and has been lent by the memory window, which gets it back when this is dropped.
    pub(crate) fn new(log: &'a Log, base: u64) -> StableBuffer<'a> {
        let stable = StableBuffer { log, base };
        assert!(stable.header().base == base, "no log buffer starts at {base}");
        stable
    }

    /// Its records.
    pub fn view(&self) -> BufferView<'_> {
        let header = self.header();
        // SAFETY: stable, so nobody writes to it (F2), and lent, so it is not recycled (M2).
        let bytes = unsafe { self.log.ring.slice(self.base, HEADER_BYTES + header.record_bytes as usize) };
        BufferView::new(&header, bytes)
    }

    /// The LSN at which it starts.
    pub fn base(&self) -> Lsn {
        Lsn(self.base)
    }

    /// The LSN at which the next one starts: the argument of the next [`Log::next_stable`].
    pub fn end(&self) -> Lsn {
        self.view().end()
    }

    fn header(&self) -> BufferHeader {
        // SAFETY: as in `view`.
        let block = unsafe { self.log.ring.slice(self.base, HEADER_BYTES) };
        match BufferHeader::fields(block) {
            Ok(header) => header,
            Err(mismatch) => panic!("no log buffer at {}: found {}", self.base, mismatch.found),
        }
    }
}

impl Drop for StableBuffer<'_> {
    fn drop(&mut self) {
        self.log.window.take_back(self.base);
    }
}
