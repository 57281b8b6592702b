//! [`deuteron_log::Log`] as the proxy's [`StableLog`], and what a replay needs of it.

use crate::{Commit, Entry, ReadBack, RecordSource, StableLog};
use deuteron_contract::Lsn;
use deuteron_log::{BufferView, Log, LogBuffer, LogError, Record, SegmentReader, StableBuffer};
use std::error::Error;
use std::ops::ControlFlow;

impl<'r> From<Record<'r>> for Entry<'r> {
    #[inline]
    fn from(record: Record<'r>) -> Self {
        match record {
            Record::Upsert { transaction, table, key, value } => {
                Entry::Update { transaction, table, key, value: Some(value) }
            }
            Record::Delete { transaction, table, key } => {
                Entry::Update { transaction, table, key, value: None }
            }
            Record::Piece { transaction, bytes, .. } => Entry::Piece { transaction, bytes },
            Record::LargeUpsert { transaction, table, key, length, .. } => {
                Entry::Large { transaction, table, key, length }
            }
            Record::Commit { transaction, timestamp, .. } => Entry::Commit { transaction, timestamp },
            Record::Abort { transaction } => Entry::Abort { transaction },
            _ => Entry::Other,
        }
    }
}

impl RecordSource for BufferView<'_> {
    fn start(&self) -> Lsn {
        self.base()
    }

    fn end(&self) -> Lsn {
        BufferView::end(self)
    }

    fn visit<'a, B>(&'a self, mut visit: impl FnMut(Lsn, Entry<'a>) -> ControlFlow<B>) -> ControlFlow<B> {
        self.records().try_for_each(|(lsn, record)| visit(lsn, record.into()))
    }

    fn visit_commits(&self, mut visit: impl FnMut(Commit)) {
        self.visit_outcomes(|transaction, timestamp| visit(Commit { transaction, timestamp }));
    }
}

/// What a buffer's owner can do as well as its view.
macro_rules! source_by_view {
    ($buffer:ty) => {
        impl RecordSource for $buffer {
            fn start(&self) -> Lsn {
                self.base()
            }

            fn end(&self) -> Lsn {
                <$buffer>::end(self)
            }

            fn visit<'a, B>(
                &'a self,
                mut visit: impl FnMut(Lsn, Entry<'a>) -> ControlFlow<B>,
            ) -> ControlFlow<B> {
                self.view().records().try_for_each(|(lsn, record)| visit(lsn, record.into()))
            }

            fn visit_commits(&self, visit: impl FnMut(Commit)) {
                self.view().visit_commits(visit);
            }
        }
    };
}

source_by_view!(StableBuffer<'_>);
source_by_view!(LogBuffer);

/// Reads each buffer that holds some of the records once.
fn read_back(
    read_buffer: impl Fn(Lsn) -> Result<LogBuffer, LogError>,
    lsns: &[Lsn],
    take: &mut dyn FnMut(Entry<'_>) -> ControlFlow<()>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut left = lsns;
    while let Some(&next) = left.first() {
        let buffer = read_buffer(next)?;
        for (lsn, record) in buffer.view().records() {
            if left.first() == Some(&lsn) {
                left = &left[1..];
                if take(record.into()).is_break() {
                    return Ok(());
                }
            }
        }
        if left.first().is_some_and(|&lsn| lsn < LogBuffer::end(&buffer)) {
            return Err(LogError::NotARecord { lsn: left[0] }.into());
        }
    }
    Ok(())
}

impl ReadBack for Log {
    fn read_back(
        &self,
        lsns: &[Lsn],
        take: &mut dyn FnMut(Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        read_back(|lsn| self.read_stable_buffer(lsn), lsns, take)
    }
}

/// For a replay.
impl ReadBack for SegmentReader {
    fn read_back(
        &self,
        lsns: &[Lsn],
        take: &mut dyn FnMut(Entry<'_>) -> ControlFlow<()>,
    ) -> Result<(), Box<dyn Error + Send + Sync>> {
        read_back(|lsn| self.read_buffer(lsn), lsns, take)
    }
}

impl StableLog for Log {
    type Buffer<'a> = StableBuffer<'a>;

    fn next_stable(&self, after: Lsn) -> Option<StableBuffer<'_>> {
        Log::next_stable(self, after)
    }

    fn release(&self, upto: Lsn) {
        Log::release(self, upto);
    }
}
