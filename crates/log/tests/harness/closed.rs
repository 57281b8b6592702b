//! A log of some segments that was closed, to be damaged.

use super::{Owned, Pair, upsert};
use deuteron_device::{BLOCK_BYTES, Directory, MemoryDirectory, OpenMode};
use deuteron_log::LogOptions;
use std::collections::BTreeMap;
use std::sync::Arc;

pub const BLOCK: u64 = BLOCK_BYTES as u64;

/// Its files, its records, and the bases of its buffers.
pub struct Closed {
    pub directory: MemoryDirectory,
    pub model: BTreeMap<u64, Owned>,
    pub bases: Vec<u64>,
    pub tail: u64,
}

pub fn closed(buffers: u64) -> Closed {
    let directory = MemoryDirectory::new();
    let mut pair = Pair::create(Arc::new(directory.clone()), LogOptions::tiny_for_tests()).unwrap();
    for number in 0..buffers {
        pair.append(upsert(number, [100, 6000, 13_000][number as usize % 3])).unwrap();
        pair.commit(number).unwrap();
        pair.flush_all().unwrap();
        while pair.proxy_step(true) {}
    }
    // The first record follows the header; no other lies so.
    let firsts = pair.model.keys().map(|lsn| lsn - 64).filter(|lsn| lsn.is_multiple_of(BLOCK));
    let bases = firsts.collect();
    Closed { directory, tail: pair.log.tail_lsn().0, model: pair.model, bases }
}

/// The file and the offset of a place in the log.
pub fn place(lsn: u64) -> (String, u64) {
    let base = lsn & !0xffff;
    (format!("log-{base:016x}.seg"), lsn - base + BLOCK)
}

impl Closed {
    pub fn flip(&self, lsn: u64, mask: u8) {
        let (name, offset) = place(lsn);
        self.flip_in(&name, offset, mask);
    }

    pub fn flip_in(&self, name: &str, offset: u64, mask: u8) {
        let file = self.directory.open(name, OpenMode::ReadWrite, false).unwrap();
        let mut byte = [0];
        file.read_at(&mut byte, offset).unwrap();
        file.write_at(&[byte[0] ^ mask], offset).unwrap();
    }

    pub fn bytes(&self, lsn: u64, length: usize) -> Vec<u8> {
        let (name, offset) = place(lsn);
        let mut bytes = vec![0; length];
        self.directory.open(&name, OpenMode::Read, false).unwrap().read_at(&mut bytes, offset).unwrap();
        bytes
    }
}
