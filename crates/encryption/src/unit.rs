//! A unit: a block, encrypted, with a sector for its nonce and its tag.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4096 | the block, encrypted |
//! | 4096 | 24 | nonce |
//! | 4120 | 16 | tag, over the block, the file's name, the number of the block, and the next field |
//! | 4136 | 2 | bytes of the block that belong to the file, 1 to 4096: less in the last one only |
//! | 4138 | | 0 |
//!
//! All zero: never written, a block of zeros.

use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{Tag, XChaCha20Poly1305, XNonce};
use deuteron_device::BLOCK_BYTES;

/// Bytes of a block as it is kept.
pub const UNIT_BYTES: usize = BLOCK_BYTES + 512;
/// What a block that is not authentic reads as: this byte, all along.
pub const DAMAGED: u8 = 0xdb;

/// Bytes of a nonce.
pub(crate) const NONCE_BYTES: usize = 24;
const TAG_AT: usize = BLOCK_BYTES + NONCE_BYTES;
const COUNT_AT: usize = TAG_AT + 16;
const PLACE_BYTES: usize = 26;

/// Where a unit belongs, and how much of it.
fn place(file: &[u8; 16], block: u64, count: u16) -> [u8; PLACE_BYTES] {
    let mut place = [0; PLACE_BYTES];
    place[..16].copy_from_slice(file);
    place[16..24].copy_from_slice(&block.to_le_bytes());
    place[24..].copy_from_slice(&count.to_le_bytes());
    place
}

/// What units of a file are made with.
pub(crate) struct Sealer {
    pub(crate) cipher: XChaCha20Poly1305,
    /// The file, by the name that was drawn for it.
    pub(crate) file: [u8; 16],
}

impl Sealer {
    /// Makes a unit of the block in its first bytes, of which `count` belong to the file.
    pub(crate) fn seal(&self, unit: &mut [u8], block: u64, count: usize, nonce: &[u8; NONCE_BYTES]) {
        let place = place(&self.file, block, count as u16);
        let (plain, rest) = unit.split_at_mut(BLOCK_BYTES);
        let tag = self
            .cipher
            .encrypt_in_place_detached(XNonce::from_slice(nonce), &place, plain)
            .expect("a block is not too long for the cipher");
        rest.fill(0);
        rest[..NONCE_BYTES].copy_from_slice(nonce);
        rest[NONCE_BYTES..COUNT_AT - BLOCK_BYTES].copy_from_slice(&tag);
        rest[COUNT_AT - BLOCK_BYTES..][..2].copy_from_slice(&(count as u16).to_le_bytes());
    }

    /// Puts the block back into the first bytes of its unit; how many of them belong to the file. One that is not authentic is
    /// [`DAMAGED`] all along, and its second half of the answer is false.
    pub(crate) fn open(&self, unit: &mut [u8], block: u64) -> (usize, bool) {
        if unit.iter().all(|&byte| byte == 0) {
            return (BLOCK_BYTES, true);
        }
        let count = u16::from_le_bytes([unit[COUNT_AT], unit[COUNT_AT + 1]]);
        let place = place(&self.file, block, count);
        let (plain, rest) = unit.split_at_mut(BLOCK_BYTES);
        let nonce = XNonce::from_slice(&rest[..NONCE_BYTES]);
        let tag = Tag::from_slice(&rest[NONCE_BYTES..COUNT_AT - BLOCK_BYTES]);
        let opened = self.cipher.decrypt_in_place_detached(nonce, &place, plain, tag);
        match opened {
            Ok(()) if (1..=BLOCK_BYTES).contains(&usize::from(count)) => (usize::from(count), true),
            _ => {
                plain.fill(DAMAGED);
                (BLOCK_BYTES, false)
            }
        }
    }
}
