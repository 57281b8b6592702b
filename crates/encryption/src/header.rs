//! The header of an encrypted file: which file it is, and a tag that only the right key makes.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic `DEUENC01` |
//! | 8 | 4 | format version, 1 |
//! | 12 | 4 | CRC-32C of the first 72 bytes, this field taken as 0 |
//! | 16 | 16 | name of the file, drawn when it was created |
//! | 32 | 24 | nonce |
//! | 56 | 16 | tag over bytes 0 to 12 and 16 to 32 |
//! | 72 | | 0, up to 4608 |
//!
//! What counts lies in one sector, so it is there or it is not.

use crate::error::random;
use crate::unit::{NONCE_BYTES, Sealer};
use crate::{EncryptionError, Keys};
use chacha20poly1305::aead::AeadInPlace;
use chacha20poly1305::{Tag, XNonce};

/// What encrypted files begin with.
pub const MAGIC: [u8; 8] = *b"DEUENC01";
/// Bytes of the header that count.
pub(crate) const HEADER_BYTES: usize = 72;
const VERSION: u32 = 1;

/// What the tag is over.
fn named(header: &[u8; HEADER_BYTES]) -> [u8; 28] {
    let mut named = [0; 28];
    named[..12].copy_from_slice(&header[..12]);
    named[12..].copy_from_slice(&header[16..32]);
    named
}

fn checksum(header: &[u8; HEADER_BYTES]) -> u32 {
    let mut unsigned = *header;
    unsigned[12..16].fill(0);
    crc32c::crc32c(&unsigned)
}

/// A header for a new file, under the first of the keys.
pub(crate) fn create(keys: &Keys) -> Result<([u8; HEADER_BYTES], Sealer), EncryptionError> {
    let (file, nonce) = (random::<16>()?, random::<NONCE_BYTES>()?);
    let cipher = keys.ciphers().swap_remove(0);
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..32].copy_from_slice(&file);
    let tag = cipher
        .encrypt_in_place_detached(XNonce::from_slice(&nonce), &named(&header), &mut [])
        .expect("nothing is not too long for the cipher");
    header[32..56].copy_from_slice(&nonce);
    header[56..].copy_from_slice(&tag);
    let crc = checksum(&header);
    header[12..16].copy_from_slice(&crc.to_le_bytes());
    Ok((header, Sealer { cipher, file }))
}

/// What the header of the file `name` says, and which of the keys is its own.
pub(crate) fn open(
    header: &[u8; HEADER_BYTES],
    keys: &Keys,
    name: &str,
) -> Result<(Sealer, usize), EncryptionError> {
    let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
    if header[..8] != MAGIC || word(8) != VERSION || word(12) != checksum(header) {
        return Err(EncryptionError::NotEncrypted { file: name.to_owned() });
    }
    let (nonce, tag) = (XNonce::from_slice(&header[32..56]), Tag::from_slice(&header[56..]));
    for (number, cipher) in keys.ciphers().into_iter().enumerate() {
        if cipher.decrypt_in_place_detached(nonce, &named(header), &mut [], tag).is_ok() {
            let mut file = [0; 16];
            file.copy_from_slice(&header[16..32]);
            return Ok((Sealer { cipher, file }, number));
        }
    }
    Err(EncryptionError::WrongKey { file: name.to_owned() })
}
