//! [`Key`]: parts of fixed length behind each other, in bytes that sort as the parts do.

use crate::BenchError;
use std::fmt;
use std::ops::{Deref, Range};

/// The longest key of any application here, in bytes.
pub(super) const KEY_BYTES_MAX: usize = 48;

/// A key, built part by part without an allocation.
///
/// Numbers are big-endian. Texts are of bounded length, filled up with zeros, so that what follows them begins at a fixed place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    bytes: [u8; KEY_BYTES_MAX],
    length: usize,
}

impl Key {
    /// The empty key.
    pub fn new() -> Self {
        Self { bytes: [0; KEY_BYTES_MAX], length: 0 }
    }

    /// One byte more.
    pub fn u8(self, part: u8) -> Self {
        self.text(&[part], 1)
    }

    /// Two bytes more.
    pub fn u16(self, part: u16) -> Self {
        self.text(&part.to_be_bytes(), 2)
    }

    /// Four bytes more.
    pub fn u32(self, part: u32) -> Self {
        self.text(&part.to_be_bytes(), 4)
    }

    /// Eight bytes more.
    pub fn u64(self, part: u64) -> Self {
        self.text(&part.to_be_bytes(), 8)
    }

    /// A text, cut or filled up to `length` bytes.
    pub fn text(mut self, part: &[u8], length: usize) -> Self {
        let used = part.len().min(length);
        self.bytes[self.length..self.length + used].copy_from_slice(&part[..used]);
        self.length += length;
        assert!(self.length <= KEY_BYTES_MAX, "a key of an application is short");
        self
    }

    /// The first key behind all that begin with this one, which must not consist of 0xff.
    pub fn behind(mut self) -> Self {
        while self.length > 0 {
            let last = &mut self.bytes[self.length - 1];
            if *last < u8::MAX {
                *last += 1;
                return self;
            }
            *last = 0;
            self.length -= 1;
        }
        unreachable!("the parts of keys are far from the end of their range")
    }
}

/// A span of keys: what bounds a scan.
pub(super) struct Span {
    first: Key,
    behind: Key,
}

impl Span {
    /// The keys that begin with `key`.
    pub fn of_prefix(key: Key) -> Self {
        Self { first: key, behind: key.behind() }
    }

    /// The keys from `first` to the last before `behind`.
    pub fn new(first: Key, behind: Key) -> Self {
        Self { first, behind }
    }

    /// The bounds.
    pub fn range(&self) -> Range<&[u8]> {
        &self.first..&self.behind
    }
}

impl Deref for Key {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:02x?}", &**self)
    }
}

/// Takes a key apart, from its front.
pub(super) struct KeyParts<'k>(pub &'k [u8]);

impl KeyParts<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], BenchError> {
        let Some((part, rest)) = self.0.split_first_chunk() else {
            return Err(BenchError::store("check what was written")("a key is too short"));
        };
        self.0 = rest;
        Ok(*part)
    }

    /// The next byte.
    pub fn u8(&mut self) -> Result<u8, BenchError> {
        Ok(self.take::<1>()?[0])
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> Result<u16, BenchError> {
        Ok(u16::from_be_bytes(self.take()?))
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> Result<u32, BenchError> {
        Ok(u32::from_be_bytes(self.take()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_sort_as_their_parts_and_come_apart_again() {
        let key =
            |first: u16, name: &str, last: u32| Key::new().u16(first).text(name.as_bytes(), 8).u32(last);
        let sorted = [key(1, "BAR", 9), key(1, "BARBAR", 1), key(1, "BARBAR", 256), key(256, "", 0)];
        assert!(sorted.is_sorted_by(|one, other| **one < **other), "{sorted:?}");
        let mut parts = KeyParts(&sorted[2]);
        assert_eq!(parts.u16().unwrap(), 1);
        assert_eq!(parts.take::<8>().unwrap(), *b"BARBAR\0\0");
        assert_eq!(parts.u32().unwrap(), 256);
        assert!(parts.u8().is_err());
    }

    #[test]
    fn a_prefix_holds_what_begins_with_it() {
        let prefix = Span::of_prefix(Key::new().u8(3).u8(u8::MAX));
        let holds = |key: Key| prefix.range().contains(&&*key);
        assert!(holds(Key::new().u8(3).u8(u8::MAX)) && holds(Key::new().u8(3).u8(u8::MAX).u64(u64::MAX)));
        assert!(!holds(Key::new().u8(3).u8(254)) && !holds(Key::new().u8(4)));
    }
}
