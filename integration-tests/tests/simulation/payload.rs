//! Payloads: the number of a message, and white space that makes it large.

use bytes::Bytes;
use millstream_core::Codec;
use millstream_core::error::BoxError;

/// What is sent for a message whose payload has at least so many bytes.
pub(crate) fn padded(message: u64, bytes: u32) -> u64 {
    message | u64::from(bytes) << 32
}

/// Writes the number as text, padded with spaces to the size that stands in its upper half; reads the number alone.
#[derive(Debug)]
pub(crate) struct Padded;

impl Codec<u64> for Padded {
    fn name(&self) -> &'static str {
        "padded"
    }

    fn encode(&self, value: &u64) -> Result<Bytes, BoxError> {
        let (message, bytes) = (value & u64::from(u32::MAX), (value >> 32) as usize);
        let mut payload = message.to_string().into_bytes();
        payload.resize(bytes.max(payload.len()), b' ');
        Ok(payload.into())
    }

    fn decode(&self, payload: &Bytes) -> Result<u64, BoxError> {
        let digits = payload.iter().take_while(|byte| byte.is_ascii_digit()).count();
        Ok(std::str::from_utf8(&payload[..digits])?.parse()?)
    }
}
