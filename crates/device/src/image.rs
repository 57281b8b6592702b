//! The contents of a file in memory: sparse, and cheap to copy.

use std::collections::BTreeMap;
use std::sync::Arc;

const CHUNK_BYTES: usize = 4096;

/// Bytes of a given length. Chunks never written read as zeros and take no memory; copies share chunks until
/// one of them writes.
#[derive(Clone, Default, Debug)]
pub(crate) struct Image {
    chunks: BTreeMap<u64, Arc<[u8; CHUNK_BYTES]>>,
    length: u64,
}

impl Image {
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Makes it at least `length` long.
    pub(crate) fn extend(&mut self, length: u64) {
        self.length = self.length.max(length);
    }

    /// Makes it at most `length` long. Should it grow again, what was behind is zeros.
    pub(crate) fn shorten(&mut self, length: u64) {
        if length >= self.length {
            return;
        }
        self.length = length;
        drop(self.chunks.split_off(&length.div_ceil(CHUNK_BYTES as u64)));
        if let Some(last) = self.chunks.get_mut(&(length / CHUNK_BYTES as u64)) {
            Arc::make_mut(last)[(length % CHUNK_BYTES as u64) as usize..].fill(0);
        }
    }

    /// Fills `buffer` from `offset`; false, and nothing done, if that passes the end.
    #[must_use]
    pub(crate) fn read(&self, buffer: &mut [u8], offset: u64) -> bool {
        if offset.checked_add(buffer.len() as u64).is_none_or(|end| end > self.length) {
            return false;
        }
        for (chunk, within, piece) in pieces_mut(buffer, offset) {
            match self.chunks.get(&chunk) {
                Some(bytes) => piece.copy_from_slice(&bytes[within..within + piece.len()]),
                None => piece.fill(0),
            }
        }
        true
    }

    /// Writes `bytes` at `offset`, extending the length if needed. Skipped bytes are zeros.
    pub(crate) fn write(&mut self, bytes: &[u8], offset: u64) {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let within = (at % CHUNK_BYTES as u64) as usize;
            let count = (CHUNK_BYTES - within).min(bytes.len() - done);
            let chunk =
                self.chunks.entry(at / CHUNK_BYTES as u64).or_insert_with(|| Arc::new([0; CHUNK_BYTES]));
            Arc::make_mut(chunk)[within..within + count].copy_from_slice(&bytes[done..done + count]);
            done += count;
        }
        if !bytes.is_empty() {
            self.extend(offset + bytes.len() as u64);
        }
    }

    /// A hash of the contents: the same bytes have the same, wherever they came from.
    pub(crate) fn hash(&self) -> u64 {
        let mut lanes = [self.length, 1, 2, 3];
        let mut mix = |lane: usize, word: u64| {
            lanes[lane] = (lanes[lane].rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        };
        for (number, chunk) in self.chunks.iter().filter(|(_, chunk)| chunk.iter().any(|byte| *byte != 0)) {
            mix(0, *number);
            let (words, _) = chunk.as_chunks::<8>();
            for four in words.as_chunks::<4>().0 {
                (0..4).for_each(|lane| mix(lane, u64::from_le_bytes(four[lane])));
            }
        }
        lanes
            .into_iter()
            .fold(0, |hash: u64, lane| (hash.rotate_left(17) ^ lane).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Copies `start..end` from `from`; what lies behind its end is zeros, if this is longer.
    pub(crate) fn copy_range(&mut self, from: &Image, start: u64, end: u64) {
        let known = end.min(from.length).max(start);
        let end = end.min(self.length).max(known);
        if start < end {
            let mut bytes = vec![0; (end - start) as usize];
            let inside = from.read(&mut bytes[..(known - start) as usize], start);
            debug_assert!(inside || start == known);
            self.write(&bytes, start);
        }
    }
}

/// Cuts `buffer` at the chunks: number of the chunk, offset in it, bytes.
fn pieces_mut(mut buffer: &mut [u8], mut offset: u64) -> impl Iterator<Item = (u64, usize, &mut [u8])> {
    std::iter::from_fn(move || {
        if buffer.is_empty() {
            return None;
        }
        let within = (offset % CHUNK_BYTES as u64) as usize;
        let count = (CHUNK_BYTES - within).min(buffer.len());
        let (piece, rest) = std::mem::take(&mut buffer).split_at_mut(count);
        buffer = rest;
        let chunk = offset / CHUNK_BYTES as u64;
        offset += count as u64;
        Some((chunk, within, piece))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn an_image_behaves_as_a_vector(writes in prop::collection::vec((0u64..20_000, prop_oneof![3 => 1usize..9000, 1 => Just(0)], 1u8..), 0..12)) {
            let (mut image, mut vector) = (Image::default(), Vec::new());
            for (offset, length, byte) in writes {
                let copy = image.clone();
                let before = vector.clone();
                image.write(&vec![byte; length], offset);
                if length > 0 {
                    let end = offset as usize + length;
                    vector.resize(vector.len().max(end), 0);
                    vector[offset as usize..end].fill(byte);
                } else {
                    image.shorten(offset);
                    vector.truncate(offset as usize);
                }
                for (image, vector) in [(&image, &vector), (&copy, &before)] {
                    let mut read = vec![0xee; vector.len()];
                    prop_assert!(image.read(&mut read, 0));
                    prop_assert!(&read == vector);
                    prop_assert!(!image.read(&mut [0], vector.len() as u64));
                }
            }
        }
    }
}
