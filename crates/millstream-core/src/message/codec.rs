//! Codecs: conversion of payloads between values and bytes.

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::error::BoxError;

/// Converts values of `T` into payload bytes and back.
///
/// A codec is a unit struct or a `static`: a [`Topic`](crate::Topic) holds it by `&'static` reference. It
/// must be pure: the same value gives bytes that decode to the same value, in every process.
pub trait Codec<T>: Send + Sync {
    /// Returns the name of the format, for logs and docs: `json`.
    fn name(&self) -> &'static str;

    /// Returns the bytes of a value.
    ///
    /// # Errors
    /// Any error that keeps the value from being written; the send fails with
    /// [`ErrorKind::Encode`](crate::ErrorKind::Encode).
    fn encode(&self, value: &T) -> Result<Bytes, BoxError>;

    /// Returns the value of a payload.
    ///
    /// # Errors
    /// Any error in the bytes; the message becomes a dead letter with
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

/// Bytes as they are. Nothing is copied.
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
