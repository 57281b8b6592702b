//! [`StretchReader`]: flush buffers in the order in which they were written, many with one read.

use crate::error::LlamaError;
use crate::flush_buffer::{BufferHeader, STREAMS};
use crate::segments::Segments;
use deuteron_device::{AlignedBuffer, BLOCK_BYTES};

/// Bytes of a stream that are read at once, if its segment goes on for so long.
const STRETCH_BYTES: u64 = 4 << 20;

/// Reads flush buffers. What lies behind one in its segment comes along, and is not read again.
pub(crate) struct StretchReader<'s> {
    segments: &'s Segments,
    /// One for each stream.
    stretches: [Stretch; STREAMS],
}

/// A part of a segment.
struct Stretch {
    offset: u64,
    length: u64,
    bytes: AlignedBuffer,
}

impl Stretch {
    fn get(&self, offset: u64, length: u64) -> Option<&[u8]> {
        let within = offset.checked_sub(self.offset).filter(|within| within + length <= self.length)?;
        Some(&self.bytes[within as usize..][..length as usize])
    }
}

impl<'s> StretchReader<'s> {
    pub(crate) fn new(segments: &'s Segments) -> StretchReader<'s> {
        let empty = |_| Stretch { offset: 0, length: 0, bytes: AlignedBuffer::zeroed(0) };
        StretchReader { segments, stretches: std::array::from_fn(empty) }
    }

    /// The header at `offset`, with its checksum, if there is one. Nothing else is read for it: mostly there is none.
    pub(crate) fn header(&self, offset: u64) -> Result<Option<(BufferHeader, u32)>, LlamaError> {
        let segments = self.segments;
        let (within, end) = (offset % segments.segment_bytes, segments.end(offset));
        let Some(file) = segments.file(segments.index(offset)) else { return Ok(None) };
        let length = file.length().map_err(LlamaError::Device)?;
        let limit = end.min(offset - within + length);
        let decode = |block: &[u8]| BufferHeader::decode(block, segments.store, offset, limit);
        if let Some(block) = self.stretches[segments.stream(offset)].get(offset, BLOCK_BYTES as u64) {
            return Ok(decode(block));
        }
        if length < within + BLOCK_BYTES as u64 {
            return Ok(None);
        }
        let mut block = AlignedBuffer::zeroed(BLOCK_BYTES);
        file.read_at(&mut block, within).map_err(LlamaError::Device)?;
        Ok(decode(&block))
    }

    /// The bytes of a buffer whose header was found.
    pub(crate) fn buffer(&mut self, header: &BufferHeader) -> Result<&[u8], LlamaError> {
        let segments = self.segments;
        let stretch = &mut self.stretches[segments.stream(header.offset)];
        if stretch.get(header.offset, header.length).is_none() {
            let within = header.offset % segments.segment_bytes;
            let file = segments.file(segments.index(header.offset)).expect("its header was read");
            let written = file.length().map_err(LlamaError::Device)?.min(segments.segment_bytes) - within;
            let length =
                header.length.max(written.min(STRETCH_BYTES) / BLOCK_BYTES as u64 * BLOCK_BYTES as u64);
            if (stretch.bytes.len() as u64) < length {
                stretch.bytes = AlignedBuffer::zeroed(length as usize);
            }
            // Nothing counts as read if it fails.
            (stretch.offset, stretch.length) = (header.offset, 0);
            let bytes = &mut stretch.bytes[..length as usize];
            segments.directory.read_long(&*file, bytes, within).map_err(LlamaError::Device)?;
            stretch.length = length;
        }
        Ok(stretch.get(header.offset, header.length).expect("it is there now"))
    }
}
