//! Rows: numbers at fixed places, then texts, each behind its length.
//!
//! A row that is changed is decoded and encoded as a whole; its texts stay as they lie, so that this costs two copies.

use crate::BenchError;

/// A value of a table.
pub(super) trait Row: Sized {
    /// The bytes.
    fn encode(&self) -> Vec<u8>;

    /// From the bytes.
    fn decode(bytes: &[u8]) -> Result<Self, BenchError>;
}

/// A number of a row, little-endian.
pub(super) trait Number: Sized {
    /// Appends it.
    fn write(&self, bytes: &mut Vec<u8>);
    /// Takes it from the front.
    fn read(bytes: &mut &[u8]) -> Option<Self>;
}

macro_rules! numbers {
    ($($number:ty),*) => {
        $(impl Number for $number {
            fn write(&self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }

            fn read(bytes: &mut &[u8]) -> Option<Self> {
                let (number, rest) = bytes.split_first_chunk()?;
                *bytes = rest;
                Some(<$number>::from_le_bytes(*number))
            }
        })*
    };
}

numbers!(u8, u16, u32, u64, i32, i64);

/// The texts of a row, encoded: each behind its length in two bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Texts(Vec<u8>);

impl Texts {
    /// One text more.
    pub fn with(mut self, text: &[u8]) -> Self {
        self.0.extend_from_slice(&(text.len() as u16).to_le_bytes());
        self.0.extend_from_slice(text);
        self
    }

    /// The text at a place, from 0.
    pub fn at(&self, index: usize) -> &[u8] {
        let begin = self.place(index);
        self.text_at(begin).unwrap_or_default()
    }

    /// Sets the text at a place and drops those behind it.
    pub fn set_last(&mut self, index: usize, text: &[u8]) {
        let begin = self.place(index);
        self.0.truncate(begin);
        let shorter = std::mem::take(self);
        *self = shorter.with(text);
    }

    /// Where the text of that index begins, its length included.
    fn place(&self, index: usize) -> usize {
        (0..index).fold(0, |place, _| place + 2 + self.text_at(place).map_or(0, <[u8]>::len))
    }

    fn text_at(&self, place: usize) -> Option<&[u8]> {
        let (length, rest) = self.0.get(place..)?.split_first_chunk()?;
        rest.get(..usize::from(u16::from_le_bytes(*length)))
    }

    /// All of them, as they lie in the row.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// As they lie in a row, if they end where the row does.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let length = u16::read(&mut rest)?;
            rest = rest.get(usize::from(length)..)?;
        }
        Some(Self(bytes.to_vec()))
    }
}

/// What decoding says of other bytes.
pub(super) fn not_a_row(row: &'static str) -> BenchError {
    BenchError::store("decode a row")(format!("these bytes are no {row}"))
}

/// Declares a row: a struct of numbers, each documented by its name, and its [`Texts`].
macro_rules! row {
    ($(#[$about:meta])* $name:ident { $($field:ident: $number:ty),* $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub(super) struct $name {
            $(pub $field: $number,)*
            pub texts: $crate::applications::row::Texts,
        }

        impl $crate::applications::row::Row for $name {
            fn encode(&self) -> Vec<u8> {
                let numbers = 0 $(+ size_of::<$number>())*;
                let mut bytes = Vec::with_capacity(numbers + self.texts.bytes().len());
                $($crate::applications::row::Number::write(&self.$field, &mut bytes);)*
                bytes.extend_from_slice(self.texts.bytes());
                bytes
            }

            fn decode(mut bytes: &[u8]) -> Result<Self, $crate::BenchError> {
                let rest = &mut bytes;
                let row = (|| {
                    Some(Self {
                        $($field: $crate::applications::row::Number::read(rest)?,)*
                        texts: $crate::applications::row::Texts::from_bytes(rest)?,
                    })
                })();
                row.ok_or_else(|| $crate::applications::row::not_a_row(stringify!($name)))
            }
        }
    };
}

pub(super) use row;

#[cfg(test)]
mod tests {
    use super::*;

    row! {
        /// A row for these tests.
        Parcel { weight: u16, balance: i64 }
    }

    #[test]
    fn rows_come_back_and_other_bytes_are_refused() {
        let texts = Texts::default().with(b"green").with(b"").with(b"fragile");
        let parcel = Parcel { weight: 7, balance: -100, texts };
        let bytes = parcel.encode();
        assert_eq!(bytes.len(), 2 + 8 + 3 * 2 + 12);
        assert_eq!(Parcel::decode(&bytes).unwrap(), parcel);
        let texts = [0, 1, 2, 3].map(|index| parcel.texts.at(index));
        assert_eq!(texts, [&b"green"[..], b"", b"fragile", b""]);
        for length in (0..bytes.len()).filter(|length| ![10, 17, 19].contains(length)) {
            let error = Parcel::decode(&bytes[..length]).unwrap_err();
            assert!(std::error::Error::source(&error).unwrap().to_string().contains("Parcel"), "{length}");
        }
    }

    #[test]
    fn the_last_text_can_be_replaced() {
        let mut texts = Texts::default().with(b"name").with(b"short");
        texts.set_last(1, b"something longer");
        assert_eq!(texts, Texts::default().with(b"name").with(b"something longer"));
    }
}
