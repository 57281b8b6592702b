//! The recovery log: record format, latch-free buffers, segments on disk, reader.
