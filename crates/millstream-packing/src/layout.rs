//! The messages of a pack as bytes, before they are compressed.
//!
//! A message is its length and its fields, a field a name and a value, each with its length in front. Lengths are varints: seven bits
//! a byte, the lowest first, the highest bit set in all bytes but the last. The two names that nearly every message has are numbers:
//! 0 is `payload`, 1 is `key`, and a larger one `n` stands before a name of `n - 2` bytes.

use bytes::Bytes;
use millstream_core::wire::{Field, Fields, KEY, MAX_BODY_FIELDS, PAYLOAD};

/// Numbers of the names `payload` and `key`; larger ones are lengths of other names, plus this many.
const NAMES: [&str; 2] = [PAYLOAD, KEY];

/// Appends a message.
pub(crate) fn write(into: &mut Vec<u8>, fields: &[Field]) {
    put(into, fields.iter().map(field_len).sum());
    for (name, value) in fields {
        match number_of(name) {
            Some(number) => put(into, number),
            None => {
                put(into, name.len() + NAMES.len());
                into.extend_from_slice(name);
            }
        }
        put(into, value.len());
        into.extend_from_slice(value);
    }
}

/// Returns the number of bytes that [`write`] appends.
pub(crate) fn written(fields: &[Field]) -> usize {
    let len = fields.iter().map(field_len).sum();
    varint_len(len) + len
}

/// Takes the first message off. `None` if there is no whole one, or it has more fields than an entry may have.
pub(crate) fn read(rest: &mut Bytes) -> Option<Fields> {
    let mut message = take(rest)?;
    // Most messages have a payload, a key and a header or two.
    let mut fields = Fields::with_capacity(4);
    while !message.is_empty() {
        if fields.len() == MAX_BODY_FIELDS {
            return None;
        }
        let number = number(&mut message)?;
        let name = match NAMES.get(number) {
            Some(name) => Bytes::from_static(name.as_bytes()),
            None => split(&mut message, number - NAMES.len())?,
        };
        let value = take(&mut message)?;
        fields.push((name, value));
    }
    // An entry has a field at least, and so has a message.
    (!fields.is_empty()).then_some(fields)
}

fn number_of(name: &[u8]) -> Option<usize> {
    NAMES.iter().position(|known| known.as_bytes() == name)
}

fn field_len((name, value): &Field) -> usize {
    let name = match number_of(name) {
        Some(number) => varint_len(number),
        None => varint_len(name.len() + NAMES.len()) + name.len(),
    };
    name + varint_len(value.len()) + value.len()
}

fn varint_len(number: usize) -> usize {
    // A number takes a byte for each seven bits it has.
    (usize::BITS - (number | 1).leading_zeros()).div_ceil(7) as usize
}

fn put(into: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        into.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn number(from: &mut Bytes) -> Option<usize> {
    let mut number = 0usize;
    // Lengths are below 2^35: five bytes.
    for shift in (0..35).step_by(7) {
        let byte = *from.first()?;
        let _ = from.split_to(1);
        number |= usize::from(byte & 0x7f).checked_shl(shift)?;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn split(from: &mut Bytes, len: usize) -> Option<Bytes> {
    (len <= from.len()).then(|| from.split_to(len))
}

fn take(from: &mut Bytes) -> Option<Bytes> {
    let len = number(from)?;
    split(from, len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn fields() -> impl Strategy<Value = Fields> {
        let name = prop_oneof![
            Just(b"payload".to_vec()),
            Just(b"key".to_vec()),
            proptest::collection::vec(any::<u8>(), 0..200)
        ];
        let value = proptest::collection::vec(any::<u8>(), 0..300);
        proptest::collection::vec((name.prop_map(Bytes::from), value.prop_map(Bytes::from)), 1..6)
    }

    proptest! {
        #[test]
        fn a_message_reads_back(messages in proptest::collection::vec(fields(), 0..5)) {
            let mut bytes = Vec::new();
            for message in &messages {
                let before = bytes.len();
                write(&mut bytes, message);
                prop_assert_eq!(bytes.len() - before, written(message));
            }
            let mut rest = Bytes::from(bytes);
            for message in &messages {
                let back = read(&mut rest);
                prop_assert_eq!(back.as_ref(), Some(message));
            }
            prop_assert!(rest.is_empty());
        }

        #[test]
        fn whatever_the_bytes_it_ends(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut rest = Bytes::from(bytes);
            while !rest.is_empty() && read(&mut rest).is_some() {}
        }
    }

    #[test]
    fn a_message_of_too_many_fields_is_none() {
        let field = (Bytes::new(), Bytes::new());
        for (count, expected) in [(MAX_BODY_FIELDS, true), (MAX_BODY_FIELDS + 1, false)] {
            let mut bytes = Vec::new();
            write(&mut bytes, &vec![field.clone(); count]);
            assert_eq!(read(&mut Bytes::from(bytes)).is_some(), expected, "{count} fields");
        }
    }
}
