//! How the requests of one reader reach the server: over a connection of its own, or over one that others use too.

use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::Key;
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::conn::reader_connections::{Own, Sharing};
use crate::conn::request::Request;
use crate::conn::socket::Socket;

/// Longest single wait on the server. A longer wait is split into several.
const MAX_WAIT: Duration = Duration::from_secs(3_600);

pub(crate) struct ReaderLine {
    inner: Arc<Inner>,
    way: Way,
    /// Request for a connection of its own; the buffer is used again.
    pub(crate) request: Request,
    /// Whether pages are large: few of them are under way at once on a connection that others use.
    pub(crate) large: bool,
}

enum Way {
    /// Not at all: it has to be opened first. Also while a request is under way, so that a dropped future drops the
    /// connection too.
    Closed,
    /// Over a connection of its own, on which it can wait.
    Own(Box<Own>),
    /// Over a connection that others use too.
    Sharing(Sharing),
}

impl ReaderLine {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        Self { inner, way: Way::Closed, request: Request::default(), large: false }
    }

    pub(crate) fn is_open(&self) -> bool {
        !matches!(self.way, Way::Closed)
    }

    /// Whether others use the connection too, so that pages should be small.
    pub(crate) fn is_sharing(&self) -> bool {
        matches!(self.way, Way::Sharing(_))
    }

    /// Returns how long a wait may last at once.
    pub(crate) fn max_wait(&self) -> Duration {
        match &self.way {
            Way::Own(own) => own.short_wait().unwrap_or(MAX_WAIT),
            _ => MAX_WAIT,
        }
    }

    pub(crate) fn close(&mut self) {
        self.way = Way::Closed;
    }

    /// Connects to the server of a key, or takes a place among those that share a connection.
    pub(crate) async fn open(&mut self, key: &Key) -> Result<()> {
        let node = self.inner.readers.of(key).await?;
        self.way = match node.own().await? {
            Some(own) => Way::Own(Box::new(own)),
            None => Way::Sharing(node.share()),
        };
        Ok(())
    }

    /// Gives back a connection that another reader needs more, or takes one that is free if there is more to read. Returns
    /// whether it did, and the reader has to begin.
    pub(crate) async fn choose(&mut self, busy: bool) -> bool {
        match replace(&mut self.way, Way::Closed) {
            Way::Own(own) if own.is_due(busy) => self.way = Way::Sharing(own.give_back()),
            Way::Sharing(sharing) if busy => match sharing.own().await {
                Ok(Some(own)) => self.way = Way::Own(Box::new(own)),
                other => {
                    if let Err(error) = other {
                        tracing::debug!(%error, "no connection for a reader: it goes on without");
                    }
                    self.way = Way::Sharing(sharing);
                    return false;
                }
            },
            same => {
                self.way = same;
                return false;
            }
        }
        true
    }

    /// Begins on the connection of now, if it is one that others use too.
    pub(crate) async fn begin(&mut self) -> Result<()> {
        match &mut self.way {
            Way::Sharing(sharing) => sharing.begin().await,
            Way::Own(_) | Way::Closed => Ok(()),
        }
    }

    /// The connection of its own.
    pub(crate) fn socket(&self) -> Result<&Socket> {
        match &self.way {
            Way::Own(own) => Ok(&own.socket),
            Way::Closed | Way::Sharing(_) => Err(not_connected()),
        }
    }

    /// Sends a request that is rare, or has no connection of its own, and returns its replies as values of the client.
    pub(crate) async fn send(&mut self, pipe: &Pipeline) -> Result<Vec<Value>> {
        if let Way::Sharing(sharing) = &self.way {
            return sharing.send(pipe, self.large).await;
        }
        self.request.clear();
        self.request.add_pipeline(pipe);
        self.exchange(Duration::ZERO).await?;
        let mut replies = self.socket()?.replies();
        (0..pipe.len()).map(|_| replies.next()?.value()).collect()
    }

    /// Sends [`request`](Self::request) over the connection of its own.
    pub(crate) async fn exchange(&mut self, block: Duration) -> Result<()> {
        // Taken out during the exchange: after an error or a dropped future, unread replies may follow on it.
        let Way::Own(mut own) = replace(&mut self.way, Way::Closed) else { return Err(not_connected()) };
        own.socket.ask(&self.request, block, self.inner.servers.response_timeout()).await?;
        self.way = Way::Own(own);
        Ok(())
    }
}

fn not_connected() -> Error {
    Error::new(ErrorKind::Unavailable, "the reader has no connection")
}
