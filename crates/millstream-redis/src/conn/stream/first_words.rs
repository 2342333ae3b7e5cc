//! The first words of a server: one that takes no connection says why, and closes it.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

use millstream_core::error::Error;
use redis::{RedisError, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::conn::stream::Stream;
use crate::error::{Phase, translate};

/// Maximum number of bytes that are kept: the longest refusal, that of the protected mode, has about 1,000.
const KEPT: usize = 2 << 10;

/// Hint for a server that closes a connection without an error.
const SILENT: &str = "it took the connection and ended it without an answer; if it speaks TLS at this port, the URL is one with rediss://";

/// Returns the error for which a server refuses a connection, from its first bytes; `None` if they are no error.
pub(crate) fn refusal(bytes: &[u8]) -> Option<Error> {
    let line = bytes.strip_prefix(b"-")?;
    let end = line.iter().position(|byte| *byte == b'\r').unwrap_or(line.len());
    match redis::parse_redis_value(&[b"-", &line[..end], b"\r\n"].concat()) {
        Ok(Value::ServerError(error)) => Some(translate(&RedisError::from(error), Phase::Connecting)),
        _ => None,
    }
}

/// The first words that come over a stream.
#[derive(Clone, Default)]
pub(crate) struct FirstWords(Arc<Words>);

#[derive(Default)]
struct Words {
    bytes: OnceLock<Box<[u8]>>,
    /// Why there is no session over TLS.
    refused: OnceLock<Error>,
}

impl FirstWords {
    /// Returns what the server says instead of serving, if that is why a connection failed. `plain` is whether it has no TLS.
    pub(crate) fn explain(&self, error: Error, plain: bool) -> Error {
        if !error.is_transient() {
            return error;
        }
        if let Some(refused) = self.0.refused.get() {
            return refused.clone();
        }
        match self.0.bytes.get() {
            Some(bytes) => refusal(bytes).unwrap_or(error),
            // It was reached, and did not understand what it was asked.
            None if plain => Error::new(error.kind(), format!("{error}: {SILENT}")),
            None => error,
        }
    }

    /// Keeps why there is no session: a user that fails at the same moment may not pass it on.
    fn failed(&self, error: &io::Error) {
        #[cfg(feature = "tls")]
        if let Some(error) = super::tls::reason(error) {
            let error = translate(&RedisError::from(error), Phase::Connecting);
            let _ = self.0.refused.set(error);
        }
        #[cfg(not(feature = "tls"))]
        let _ = error;
    }

    fn keep(&self, bytes: &[u8]) {
        if !bytes.is_empty() && self.0.bytes.get().is_none() {
            // The only writer.
            let _ = self.0.bytes.set(bytes[..bytes.len().min(KEPT)].into());
        }
    }
}

/// A stream that keeps its first words, for a user that may fail before it reads them.
pub(crate) struct Listening {
    stream: Stream,
    pub(crate) first: FirstWords,
}

impl Listening {
    pub(crate) fn new(stream: Stream) -> Self {
        Self { stream, first: FirstWords::default() }
    }

    fn written<T>(&self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &written {
            self.first.failed(error);
            self.first.keep(&self.stream.unread());
        }
        written
    }
}

impl AsyncRead for Listening {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (this, before) = (self.get_mut(), buf.filled().len());
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        this.first.keep(&buf.filled()[before..]);
        if let Poll::Ready(Err(error)) = &read {
            this.first.failed(error);
        }
        read
    }
}

impl AsyncWrite for Listening {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write(cx, buf);
        this.written(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.stream).poll_write_vectored(cx, bufs);
        this.written(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = Pin::new(&mut this.stream).poll_flush(cx);
        this.written(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
