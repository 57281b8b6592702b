//! What the log says of itself.

use deuteron_contract::Lsn;

/// Figures since the log was opened, unless said otherwise. Taken one after the other, so not quite of one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogStatistics {
    /// The lowest LSN on disk.
    pub start: Lsn,
    /// Everything below is durable.
    pub stable: Lsn,
    /// Everything appended is below.
    pub tail: Lsn,
    /// Bytes of LSN space handed out.
    pub appended_bytes: u64,
    /// Bytes of records written to disk.
    pub record_bytes_written: u64,
    /// Bytes written to disk, headers and filling included.
    pub bytes_written: u64,
    /// Zeros written to new segments, before small buffers came there.
    pub bytes_filled: u64,
    /// Buffers written: so many synchronous writes were there.
    pub flushes: u64,
    /// Buffers sealed because they were full.
    pub sealed_full: u64,
    /// Buffers sealed because somebody waited for them.
    pub sealed_on_request: u64,
    /// Appends refused for want of ring memory.
    pub append_full: u64,
    /// How often a thread found that another had just opened the buffer that it was opening.
    pub opening_lost: u64,
    /// Reservations that had to be made again: the buffer had been sealed in between, or, of records over 64 KiB, a
    /// compare-and-swap was lost.
    pub reservations_lost: u64,
    /// Bytes of ring memory that hold log.
    pub ring_used_bytes: u64,
    /// Those of them that are there only for version readers.
    pub version_cache_bytes: u64,
    /// Bytes of the log's files.
    pub disk_bytes: u64,
    /// Segment files created.
    pub segments_created: u64,
    /// Segment files used again.
    pub segments_recycled: u64,
    /// Whether the next segment could not be prepared for want of disk space.
    pub is_space_low: bool,
}
