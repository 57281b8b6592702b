//! Keys, values, and what is done to a value.

use crate::configuration::Shape;
use std::rc::Rc;

/// A value, shared by all the states that have it.
pub type Value = Rc<[u8]>;

/// What a transaction did to a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// It has this value now, or none.
    Set(Option<Value>),
    /// Added to whatever is there.
    Add(i64),
    /// Appended to whatever is there.
    Append(Vec<u8>),
    /// Several changes, the first first, since a key was given values of both kinds.
    Both(Box<(Effect, Effect)>),
}

impl Effect {
    /// What is there then; an error if that cannot be.
    pub fn on(&self, before: Option<&Value>) -> Result<Option<Value>, String> {
        Ok(match self {
            Effect::Set(value) => value.clone(),
            Effect::Add(delta) => {
                let sum = match before {
                    None => Some(*delta),
                    Some(value) => integer(value).and_then(|integer| integer.checked_add(*delta)),
                };
                let sum = sum.ok_or_else(|| format!("{delta} was added to {}", shown(before)))?;
                Some(sum.to_le_bytes().as_slice().into())
            }
            Effect::Append(bytes) => Some([before.map_or(&[][..], |value| value), bytes].concat().into()),
            Effect::Both(both) => both.1.on(both.0.on(before)?.as_ref())?,
        })
    }

    /// This, and then another.
    pub fn then(self, after: Effect) -> Effect {
        match (self, after) {
            (_, Effect::Set(value)) => Effect::Set(value),
            (Effect::Append(mut bytes), Effect::Append(more)) => {
                bytes.extend(more);
                Effect::Append(bytes)
            }
            (before, after) => Effect::Both(Box::new((before, after))),
        }
    }
}

/// The integer that a value is.
pub fn integer(value: &[u8]) -> Option<i64> {
    Some(i64::from_le_bytes(value.try_into().ok()?))
}

/// A value in a message: its length and beginning.
pub fn shown(value: Option<&Value>) -> String {
    match value {
        None => "nothing".into(),
        Some(value) => {
            let beginning = &value[..value.len().min(12)];
            format!("{} bytes \"{}\"", value.len(), beginning.escape_ascii())
        }
    }
}

/// The bytes of a key.
pub fn key_bytes(shape: Shape, key: u32) -> Vec<u8> {
    let number = key.to_be_bytes();
    match shape {
        Shape::Short => number.to_vec(),
        Shape::Ragged => {
            let mut bytes = number[2..].to_vec();
            bytes.resize(2 + key as usize % 7 * 9, b'x');
            bytes
        }
        Shape::Common => [&[b'c'; 90][..], &number].concat(),
    }
}

/// The bytes of a new value, which nobody else writes: at least eight, unless it is to be empty.
pub fn value_bytes(number: u64, length: usize) -> Value {
    if length == 0 {
        return Rc::new([]);
    }
    let mut bytes = number.to_be_bytes().to_vec();
    // Half of it compresses well.
    let noise = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bytes.extend((8..length.max(8)).map(|at| if at % 2 == 0 { (noise >> (at % 56)) as u8 } else { b'v' }));
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn effects_follow_one_another() {
        let five: Value = 5i64.to_le_bytes().as_slice().into();
        let sum = Effect::Add(3).then(Effect::Add(4));
        assert_eq!(integer(&sum.on(Some(&five)).unwrap().unwrap()), Some(12));
        assert_eq!(Effect::Add(1).then(Effect::Set(None)), Effect::Set(None));
        let list = Effect::Append(b"a".to_vec()).then(Effect::Append(b"b".to_vec()));
        assert_eq!(&*list.on(None).unwrap().unwrap(), b"ab");
        assert!(Effect::Add(1).on(Some(&b"no integer"[..].into())).is_err());
        assert!(Effect::Add(1).on(Some(&i64::MAX.to_le_bytes()[..].into())).is_err());
    }

    #[test]
    fn keys_differ() {
        for shape in [Shape::Short, Shape::Ragged, Shape::Common] {
            let keys: std::collections::BTreeSet<_> = (0..1000).map(|key| key_bytes(shape, key)).collect();
            assert_eq!(keys.len(), 1000);
        }
    }
}
