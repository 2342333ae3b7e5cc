//! Codecs: how a payload becomes bytes and a value again.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::error::BoxError;

/// Turns values of `T` into payload bytes and back.
///
/// A codec is a unit struct or a `static`: a [`Topic`](crate::Topic) holds it by `&'static` reference. It
/// must be pure: the same value gives bytes that decode to the same value, in every process.
pub trait Codec<T>: Send + Sync {
    /// The name of the format, for logs and docs: `json`.
    fn name(&self) -> &'static str;

    /// The bytes of a value.
    ///
    /// # Errors
    /// Whatever keeps the value from being written; the send fails with
    /// [`ErrorKind::Encode`](crate::ErrorKind::Encode).
    fn encode(&self, value: &T) -> Result<Bytes, BoxError>;

    /// The value of a payload.
    ///
    /// # Errors
    /// Whatever is wrong with the bytes; the message goes to the dead letters with
    /// [`Reason::Undecodable`](crate::Reason::Undecodable), and its bytes are kept.
    fn decode(&self, payload: &Bytes) -> Result<T, BoxError>;
}

/// JSON by `serde_json`: readable with any tool. The default.
///
/// Nesting is limited to 128 levels (`serde_json`'s own guard).
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

impl<T: Serialize + DeserializeOwned> Codec<T> for Json {
    fn name(&self) -> &'static str {
        "json"
    }

    fn encode(&self, value: &T) -> Result<Bytes, BoxError> {
        Ok(serde_json::to_vec(value)?.into())
    }

    fn decode(&self, payload: &Bytes) -> Result<T, BoxError> {
        Ok(serde_json::from_slice(payload)?)
    }
}

/// The bytes as they are. Nothing is copied.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Codec<Bytes> for Raw {
    fn name(&self) -> &'static str {
        "raw"
    }

    fn encode(&self, value: &Bytes) -> Result<Bytes, BoxError> {
        Ok(value.clone())
    }

    fn decode(&self, payload: &Bytes) -> Result<Bytes, BoxError> {
        Ok(payload.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_reads_what_it_wrote_and_refuses_the_rest() {
        let bytes = Codec::<Vec<u64>>::encode(&Json, &vec![1, 2]).expect("encodes");
        assert_eq!(&bytes[..], b"[1,2]");
        assert_eq!(Codec::<Vec<u64>>::decode(&Json, &bytes).expect("decodes"), [1, 2]);
        assert!(Codec::<Vec<u64>>::decode(&Json, &Bytes::from_static(b"\xff\xfe")).is_err());
        let deep = Bytes::from("[".repeat(100_000));
        assert!(Codec::<serde_json::Value>::decode(&Json, &deep).is_err(), "no stack overflow");
    }
}
