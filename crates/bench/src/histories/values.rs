//! Keys and values of a history. A value is known by a number, and a key says how one follows from the other.

/// What stands for a value in notes and in the model.
pub type Number = u64;

/// What becomes of the values under a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// They are put. 8 to 263 bytes, all of which follow from the number.
    Plain,
    /// Integers, which are put and added to. The number is the integer.
    Integer,
    /// Lists of 8 bytes each, which are put and appended to. The number is a digest.
    List,
}

/// The class of a key.
pub fn class_of(key: u32) -> Class {
    match key % 4 {
        0 => Class::Integer,
        1 => Class::List,
        _ => Class::Plain,
    }
}

/// The key of a number.
pub fn key_bytes(key: u32) -> [u8; 4] {
    key.to_be_bytes()
}

/// The number of a key.
pub fn key_of(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// A value to put under a key, different for each `number`.
pub fn value_bytes(key: u32, number: u64) -> Vec<u8> {
    match class_of(key) {
        Class::Plain => {
            let mut bytes = number.to_be_bytes().to_vec();
            let length = 8 + (number.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as usize;
            bytes.resize(length, number as u8);
            bytes
        }
        Class::Integer | Class::List => number.to_le_bytes().to_vec(),
    }
}

/// The number of a value, if a value under this key can have these bytes.
pub fn number_of(key: u32, bytes: &[u8]) -> Option<Number> {
    match class_of(key) {
        Class::Plain => {
            let number = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
            (value_bytes(key, number) == bytes).then_some(number)
        }
        Class::Integer => Some(u64::from_le_bytes(bytes.try_into().ok()?)),
        Class::List => {
            let (pieces, rest) = bytes.as_chunks::<8>();
            let whole = rest.is_empty() && !pieces.is_empty();
            whole.then(|| pieces.iter().fold(0, |digest, piece| append(digest, u64::from_le_bytes(*piece))))
        }
    }
}

/// The digest of a list with one more at its end.
fn append(digest: Number, piece: u64) -> Number {
    (digest.rotate_left(23) ^ piece).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// What a transaction did to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It has this value now, or none.
    Set(Option<Number>),
    /// Added to whatever is there.
    Add(i64),
    /// Appended to whatever is there.
    Append(Vec<u64>),
}

impl Effect {
    /// What is there then.
    pub fn on(&self, before: Option<Number>) -> Option<Number> {
        match self {
            Effect::Set(number) => *number,
            Effect::Add(delta) => Some(before.unwrap_or(0).wrapping_add_signed(*delta)),
            Effect::Append(pieces) => {
                Some(pieces.iter().fold(before.unwrap_or(0), |digest, piece| append(digest, *piece)))
            }
        }
    }

    /// This, and then another.
    pub fn then(self, after: Effect) -> Effect {
        match (self, after) {
            (Effect::Set(number), after) => Effect::Set(after.on(number)),
            (Effect::Add(one), Effect::Add(other)) => Effect::Add(one + other),
            (Effect::Append(mut pieces), Effect::Append(more)) => {
                pieces.extend(more);
                Effect::Append(pieces)
            }
            // A key has one class, so a change never follows one of another kind.
            (_, after) => after,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_do_to_numbers_what_they_do_to_bytes() {
        let list = [value_bytes(1, 7), value_bytes(1, 8), value_bytes(1, 9)].concat();
        let effect = Effect::Append(vec![7]).then(Effect::Append(vec![8]));
        assert_eq!(effect.clone().then(Effect::Append(vec![9])).on(None), number_of(1, &list));
        assert_eq!(Effect::Append(vec![9]).on(effect.on(None)), number_of(1, &list));
        let sum = Effect::Set(number_of(0, &5i64.to_le_bytes())).then(Effect::Add(-7)).then(Effect::Add(1));
        assert_eq!(sum, Effect::Set(number_of(0, &(-1i64).to_le_bytes())));
        assert_eq!(Effect::Add(3).on(None), Some(3));
        assert_eq!(Effect::Set(None).then(Effect::Add(3)), Effect::Set(Some(3)));
    }

    #[test]
    fn bytes_that_nobody_wrote_have_no_number() {
        let value = value_bytes(2, 77);
        assert_eq!(number_of(2, &value), Some(77));
        assert_eq!(number_of(2, &value[..value.len() - 1]), None);
        assert_eq!(
            (number_of(0, b"short"), number_of(1, b"not pieces"), number_of(1, b"")),
            (None, None, None)
        );
    }
}
