//! Compression with zstd.

use std::io::Read;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::{BoxError, Envelope, Outcome};
use millstream_runtime::{Answer, Delivery, Layer, Next, ProducerLayer};

/// Header that names how a payload is compressed, as in HTTP.
const HEADER: &str = "content-encoding";
const ZSTD: &str = "zstd";

/// Level at which zstd compresses by default: its own default.
const LEVEL: i32 = 3;
/// Payloads below this stay as they are: a frame of zstd has 10 to 20 bytes of its own, and small payloads have little to repeat.
const SMALLEST: usize = 256;
/// Most that a payload may become, by default. The largest payload that a producer sends by default is 1 MiB.
const LARGEST: usize = 16 << 20;

/// Window that any frame may have, as a power of two: 2 MiB, that of zstd's default level where the size is not known before.
const LEAST_WINDOW: u32 = 21;
/// Largest window that zstd accepts by default: 128 MiB.
const MOST_WINDOW: u32 = 27;

/// Compresses payloads with zstd, and decompresses them: a layer of producers and of consumers.
///
/// A payload that is compressed has the header `content-encoding: zstd`. One that would not become smaller, or is below 256 bytes, is
/// sent as it is, so a consumer with this layer handles both, and consumers get it before producers do. The limits of a message
/// count for the compressed payload. A send with another value of this header fails with `Encode`.
///
/// A payload that is damaged, or becomes larger than [`largest`](Self::largest), makes its message a dead letter with the reason `rejected`;
/// while it is read, no more than twice that is held in memory, and a window of as much, at least 2 MiB.
#[derive(Clone, Debug)]
pub struct Compression {
    level: i32,
    smallest: usize,
    largest: usize,
}

impl Default for Compression {
    fn default() -> Self {
        Self::zstd()
    }
}

impl Compression {
    /// Compresses with zstd at level 3.
    #[must_use]
    pub const fn zstd() -> Self {
        Self { level: LEVEL, smallest: SMALLEST, largest: LARGEST }
    }

    /// Sets the level, from 1 (fast) to 22 (small). Others count as the nearest of these.
    #[must_use]
    pub const fn level(mut self, level: i32) -> Self {
        self.level = if level < 1 {
            1
        } else if level > 22 {
            22
        } else {
            level
        };
        self
    }

    /// Sets the size in bytes from which on payloads are compressed. Default: 256.
    #[must_use]
    pub const fn at_least(mut self, bytes: usize) -> Self {
        self.smallest = bytes;
        self
    }

    /// Sets the largest size in bytes that a payload may become. Default: 16 MiB.
    #[must_use]
    pub const fn largest(mut self, bytes: usize) -> Self {
        self.largest = bytes;
        self
    }

    /// Decompresses, and reads no more than is allowed, whatever the frame declares.
    fn decompress(&self, payload: &[u8]) -> Result<Bytes, String> {
        let failed = |error: std::io::Error| format!("the payload is no frame of zstd: {error}");
        let mut decoder = zstd::stream::read::Decoder::with_buffer(payload).map_err(failed)?;
        // The window is allocated before anything is read, as large as the frame says. No frame needs one that is larger than what comes
        // out of it, rounded up to a power of two.
        let window = self.largest.checked_next_power_of_two().unwrap_or(usize::MAX).max(1).ilog2();
        decoder.window_log_max(window.clamp(LEAST_WINDOW, MOST_WINDOW)).map_err(failed)?;
        let mut plain = Vec::new();
        let one_more = u64::try_from(self.largest).unwrap_or(u64::MAX).saturating_add(1);
        decoder.take(one_more).read_to_end(&mut plain).map_err(failed)?;
        if plain.len() > self.largest {
            return Err(format!("the payload becomes larger than {} bytes", self.largest));
        }
        Ok(plain.into())
    }
}

impl ProducerLayer for Compression {
    fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
        if message.headers.get(HEADER).is_some_and(|value| **value != *ZSTD.as_bytes()) {
            return Err(format!("the header {HEADER} is that of this layer").into());
        }
        // A message that was made from another one, with its headers.
        message.headers.remove(HEADER);
        if message.payload.len() < self.smallest {
            return Ok(());
        }
        let compressed = zstd::bulk::compress(&message.payload, self.level)?;
        if compressed.len() < message.payload.len() {
            message.payload = compressed.into();
            message.headers.append(HEADER, ZSTD);
        }
        Ok(())
    }
}

#[async_trait]
impl Layer for Compression {
    async fn handle(&self, mut delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        match delivery.headers().get_str(HEADER) {
            None => {}
            Some(ZSTD) => match self.decompress(&delivery.payload) {
                Ok(plain) => delivery.payload = plain,
                Err(why) => return Outcome::dead_letter(why).into(),
            },
            // A later version of the producer may know more: the policy decides how long that is waited for.
            Some(_) => {
                return Outcome::retry("the payload is compressed in a way that is not known here").into();
            }
        }
        next.run(delivery).await
    }
}
