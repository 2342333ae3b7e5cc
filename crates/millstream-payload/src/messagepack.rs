//! `MessagePack`.

use std::fmt;
use std::io::Cursor;

use bytes::Bytes;
use millstream_core::{BoxError, Codec};
use rmp_serde::decode::Error as DecodeError;
use rmp_serde::{Deserializer, Serializer};
use serde::{Serialize, de::DeserializeOwned};

/// Level of nesting that is refused: the first one behind those that JSON allows.
const TOO_DEEP: usize = 129;

/// Codec for [`MessagePack`](https://msgpack.org): what JSON can say, in fewer bytes, and binary data as it is.
///
/// Structs are maps with the names of their fields, so fields can be added and reordered as with JSON (`#[serde(default)]`), and
/// other languages can read them. A value that is nested more than 128 levels deep is written and not read, as with JSON.
///
/// A payload with bytes behind its value is refused, as one that ends too early. Errors have the position and the kind of the
/// fault, and nothing of the payload. The size of a payload is bounded by [`Limits`](millstream_core::Limits), and a length that a payload only
/// claims to have reserves no memory.
///
/// ```
/// use millstream_core::Topic;
/// use millstream_payload::MessagePack;
///
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Order { number: u64 }
///
/// const ORDERS: Topic<Order> = Topic::with_codec("orders", &MessagePack).partitions(8);
/// # let _ = ORDERS;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MessagePack;

/// Fault in a payload.
#[derive(Debug, PartialEq, Eq)]
enum Fault {
    Ends,
    Misfit,
    Text,
    Nesting,
    Rest,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ends => "the payload ends too early",
            Self::Misfit => "the value does not fit the type",
            Self::Text => "a string is not UTF-8",
            Self::Nesting => "the value is nested more than 128 levels deep",
            Self::Rest => "there are bytes behind the value",
        })
    }
}

/// A payload that cannot be decoded. Without the text of the library, which may quote the payload.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid MessagePack at byte {at} of {length}: {fault}")]
struct InvalidMessagePack {
    at: u64,
    length: usize,
    fault: Fault,
}

impl From<&DecodeError> for Fault {
    fn from(error: &DecodeError) -> Self {
        match error {
            DecodeError::InvalidMarkerRead(_) | DecodeError::InvalidDataRead(_) => Self::Ends,
            DecodeError::Utf8Error(_) => Self::Text,
            DecodeError::DepthLimitExceeded => Self::Nesting,
            DecodeError::TypeMismatch(_)
            | DecodeError::OutOfRange
            | DecodeError::LengthMismatch(_)
            | DecodeError::Uncategorized(_)
            | DecodeError::Syntax(_) => Self::Misfit,
        }
    }
}

impl<T: Serialize + DeserializeOwned> Codec<T> for MessagePack {
    fn name(&self) -> &'static str {
        "messagepack"
    }

    fn encode(&self, value: &T) -> Result<Bytes, BoxError> {
        let mut bytes = Vec::with_capacity(128);
        let mut serializer = Serializer::new(&mut bytes).with_struct_map();
        value.serialize(&mut serializer)?;
        Ok(bytes.into())
    }

    fn decode(&self, payload: &Bytes) -> Result<T, BoxError> {
        let mut deserializer = Deserializer::new(Cursor::new(&payload[..]));
        deserializer.set_max_depth(TOO_DEEP);
        let value = T::deserialize(&mut deserializer);
        let (at, length) = (deserializer.position(), payload.len());
        let value = value.map_err(|error| InvalidMessagePack { at, length, fault: Fault::from(&error) })?;
        if at < length as u64 {
            return Err(InvalidMessagePack { at, length, fault: Fault::Rest }.into());
        }
        Ok(value)
    }
}
