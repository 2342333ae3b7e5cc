//! Messages of one request, and who waits for them.

use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::batcher::{Answer, Ticket};
use super::sink::{Outgoing, Sink};

/// A batch that grows.
pub(super) struct Batch<C: Outgoing> {
    pub(super) messages: Vec<C>,
    pub(super) replies: Vec<Reply<C>>,
    /// What its messages take of the buffer.
    pub(super) bytes: usize,
    rooms: Vec<OwnedSemaphorePermit>,
    /// When the first message came.
    pub(super) begun: Option<Instant>,
    /// Until when it may be tried: as long as its first message.
    deadline: Option<Instant>,
}

pub(super) enum Reply<C: Outgoing> {
    One(Answer<Result<C::Done>>),
    Many(usize, Answer<Vec<Result<C::Done>>>),
    Flush(oneshot::Sender<()>),
}

impl<C: Outgoing> Default for Batch<C> {
    fn default() -> Self {
        Self {
            messages: Vec::new(),
            replies: Vec::new(),
            bytes: 0,
            rooms: Vec::new(),
            begun: None,
            deadline: None,
        }
    }
}

impl<C: Outgoing> Batch<C> {
    pub(super) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    /// Whether somebody waits for all of it, and should not wait for more to come.
    pub(super) fn is_flushed(&self) -> bool {
        self.replies.iter().any(|reply| matches!(reply, Reply::Flush(_)))
    }

    /// Somebody who waits for what is added to the messages.
    pub(super) fn add(&mut self, ticket: Ticket, reply: Reply<C>) {
        if self.begun.is_none() {
            (self.begun, self.deadline) = (Some(Instant::now()), Some(ticket.deadline));
        }
        self.rooms.push(ticket.room);
        self.replies.push(reply);
    }

    /// The batch as it is sent.
    pub(super) fn close(self) -> UnderWay<C> {
        UnderWay {
            messages: Arc::new(self.messages),
            replies: self.replies,
            _rooms: self.rooms,
            deadline: self.deadline.unwrap_or_else(Instant::now),
        }
    }
}

/// A batch that was begun.
pub(super) struct UnderWay<C: Outgoing> {
    pub(super) messages: Arc<Vec<C>>,
    replies: Vec<Reply<C>>,
    /// Given back when all is answered.
    _rooms: Vec<OwnedSemaphorePermit>,
    pub(super) deadline: Instant,
}

impl<C: Outgoing> UnderWay<C> {
    /// Has the sink begin it, unless it is empty: then there is nothing to wait for.
    pub(super) fn send(&self, sink: &mut dyn Sink<C>) {
        if !self.messages.is_empty() {
            sink.begin(self.messages.clone(), self.deadline);
        }
    }

    pub(super) fn answer(self, results: Vec<Result<C::Done>>) {
        let missing = || Err(Error::new(ErrorKind::Protocol, "the backend gave too few results"));
        let mut results = results.into_iter();
        // Whoever stopped waiting does not want to know: a failed reply is no error.
        for reply in self.replies {
            match reply {
                Reply::One(reply) => {
                    let _ = reply.send(results.next().unwrap_or_else(missing));
                }
                Reply::Many(count, reply) => {
                    let _ = reply.send((0..count).map(|_| results.next().unwrap_or_else(missing)).collect());
                }
                Reply::Flush(reply) => {
                    let _ = reply.send(());
                }
            }
        }
    }
}
