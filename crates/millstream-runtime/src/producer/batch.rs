//! Batch: the messages of one request, and the callers that wait for the results.

use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use tokio::time::Instant;

use super::batcher::{Answer, Ticket};
use super::sink::{Outgoing, Sink};

/// Batch that is being filled.
pub(super) struct Batch<C: Outgoing> {
    pub(super) messages: Vec<C>,
    pub(super) replies: Vec<Reply<C>>,
    /// Bytes that its messages occupy in the buffer.
    pub(super) bytes: usize,
    rooms: Vec<OwnedSemaphorePermit>,
    /// Time at which the first message was added.
    pub(super) begun: Option<Instant>,
    /// Time until which it may be sent: the deadline of its first message.
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

    /// Whether a caller waits for a flush, so that the batch does not wait for more messages.
    pub(super) fn is_flushed(&self) -> bool {
        self.replies.iter().any(|reply| matches!(reply, Reply::Flush(_)))
    }

    /// Adds the caller of the messages that are added, with the room that it reserved.
    pub(super) fn add(&mut self, ticket: Ticket, reply: Reply<C>) {
        if self.begun.is_none() {
            (self.begun, self.deadline) = (Some(Instant::now()), Some(ticket.deadline));
        }
        self.rooms.push(ticket.room);
        self.replies.push(reply);
    }

    /// Closes the batch, so that it can be sent.
    pub(super) fn close(self) -> UnderWay<C> {
        UnderWay {
            messages: Arc::new(self.messages),
            replies: self.replies,
            _rooms: self.rooms,
            deadline: self.deadline.unwrap_or_else(Instant::now),
        }
    }
}

/// Closed batch without results.
pub(super) struct UnderWay<C: Outgoing> {
    pub(super) messages: Arc<Vec<C>>,
    replies: Vec<Reply<C>>,
    /// Released after all results are delivered.
    _rooms: Vec<OwnedSemaphorePermit>,
    pub(super) deadline: Instant,
}

impl<C: Outgoing> UnderWay<C> {
    /// Begins the request at the sink, unless the batch is empty: then there is nothing to wait for.
    pub(super) fn send(&self, sink: &mut dyn Sink<C>) {
        if !self.messages.is_empty() {
            sink.begin(self.messages.clone(), self.deadline);
        }
    }

    pub(super) fn answer(self, results: Vec<Result<C::Done>>) {
        let missing = || Err(Error::new(ErrorKind::Protocol, "the backend returned too few results"));
        let mut results = results.into_iter();
        // A caller may have stopped waiting, so a reply that cannot be delivered is not an error.
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
