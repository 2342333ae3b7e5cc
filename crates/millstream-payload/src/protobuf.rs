//! Protobuf.

use bytes::Bytes;
use millstream_core::{BoxError, Codec};
use prost::Message;

/// Codec for [protobuf](https://protobuf.dev), for types of [`prost`].
///
/// It has the properties of the format: a field that is not known is skipped, a field that is missing has its default, and an empty
/// payload is a message whose fields are all missing. So a payload of another type may decode without an error: give each topic
/// one type, or name the type of each message ([`Router`](millstream_runtime::Router)). Bytes that form no field are refused, also at the end.
/// Nesting is limited to 100 levels, by prost, unless its feature `no-recursion-limit` is set by another crate.
///
/// Errors have nothing of the payload. The size of a payload is bounded by [`Limits`](millstream_core::Limits).
///
/// ```
/// use millstream_core::Topic;
/// use millstream_payload::Protobuf;
///
/// #[derive(Clone, PartialEq, prost::Message)]
/// struct Order {
///     #[prost(uint64, tag = "1")]
///     number: u64,
/// }
///
/// const ORDERS: Topic<Order> = Topic::with_codec("orders", &Protobuf).partitions(8);
/// # let _ = ORDERS;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Protobuf;

/// A payload that cannot be decoded. Without the text of prost, which may quote numbers of the payload.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the payload of {length} bytes is not a protobuf message of this type")]
struct InvalidProtobuf {
    length: usize,
}

impl<T: Message + Default> Codec<T> for Protobuf {
    fn name(&self) -> &'static str {
        "protobuf"
    }

    fn encode(&self, value: &T) -> Result<Bytes, BoxError> {
        Ok(value.encode_to_vec().into())
    }

    fn decode(&self, payload: &Bytes) -> Result<T, BoxError> {
        // A clone shares the bytes: fields of the type `Bytes` are parts of the payload, and not copies.
        T::decode(payload.clone()).map_err(|_| InvalidProtobuf { length: payload.len() }.into())
    }
}
