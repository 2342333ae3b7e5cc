//! Batch: the messages of one request, and the callers that wait for the results.

use std::sync::Arc;
use std::time::Duration;

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

    /// Closes the batch, so that it can be sent. `missed` is the time that the runtime's clock has not counted so far.
    pub(super) fn close(self, missed: Duration) -> UnderWay<C> {
        let messages = Arc::new(self.messages);
        UnderWay {
            whole: messages.clone(),
            messages,
            partly: None,
            replies: self.replies,
            _rooms: self.rooms,
            deadline: self.deadline.unwrap_or_else(Instant::now),
            missed,
        }
    }
}

/// Closed batch without results, or with those of a part.
pub(super) struct UnderWay<C: Outgoing> {
    /// All its messages.
    pub(super) whole: Arc<Vec<C>>,
    /// The messages without a result.
    pub(super) messages: Arc<Vec<C>>,
    /// What is known of the others, once an attempt has failed for a part of the batch.
    partly: Option<Partly<C>>,
    replies: Vec<Reply<C>>,
    /// Released after all results are delivered.
    _rooms: Vec<OwnedSemaphorePermit>,
    pub(super) deadline: Instant,
    /// Time that the runtime's clock had not counted when it was closed, since the machine was suspended.
    missed: Duration,
}

impl<C: Outgoing> UnderWay<C> {
    /// Whether its time is over at `now`, or was while the machine was suspended: the clock has not counted `missed` so far.
    pub(super) fn is_over(&self, now: Instant, missed: Duration) -> bool {
        now + missed.saturating_sub(self.missed) >= self.deadline
    }

    /// Whether an attempt has failed for some of its messages.
    pub(super) fn is_tried(&self) -> bool {
        self.partly.is_some()
    }

    /// Begins the request at the sink, unless the batch is empty: then there is nothing to wait for.
    pub(super) fn send(&self, sink: &mut dyn Sink<C>) {
        if !self.messages.is_empty() {
            sink.begin(self.messages.clone(), self.deadline);
        }
    }

    /// Whether a caller waits for a flush, which ends after all earlier batches.
    pub(super) fn is_flush(&self) -> bool {
        self.replies.iter().any(|reply| matches!(reply, Reply::Flush(_)))
    }

    /// Keeps the results of an attempt, except for the messages that are to be sent `again`.
    pub(super) fn keep(&mut self, results: Vec<Result<C::Done>>, again: &[bool]) {
        let messages = self.messages.iter().zip(again).filter(|(_, again)| **again);
        let messages = Arc::new(messages.map(|(message, _)| message.clone()).collect());
        let partly = self.partly.get_or_insert_with(|| Partly::new(self.messages.len()));
        let open = std::mem::take(&mut partly.open);
        for ((at, result), again) in open.into_iter().zip(results).zip(again) {
            if *again {
                partly.open.push(at);
                partly.unsure[at] |= result.is_err_and(|error| error.kind() == ErrorKind::Unconfirmed);
            } else {
                partly.put(at, result);
            }
        }
        self.messages = messages;
    }

    /// Returns the results of all messages: those that are kept, and these of the others.
    pub(super) fn all(&mut self, results: Vec<Result<C::Done>>) -> Vec<Result<C::Done>> {
        let Some(mut partly) = self.partly.take() else { return results };
        for (at, result) in std::mem::take(&mut partly.open).into_iter().zip(results) {
            partly.put(at, result);
        }
        let missing = || Err(Error::new(ErrorKind::Protocol, "the backend returned too few results"));
        partly.results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
    }

    /// Delivers the results of all messages.
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

/// Results of a part of a batch.
struct Partly<C: Outgoing> {
    results: Vec<Option<Result<C::Done>>>,
    /// Positions of the messages without one.
    open: Vec<usize>,
    /// Whether an attempt may have stored the message, whatever becomes of later ones.
    unsure: Vec<bool>,
}

impl<C: Outgoing> Partly<C> {
    fn new(messages: usize) -> Self {
        let unsure = vec![false; messages];
        Self { results: (0..messages).map(|_| None).collect(), open: (0..messages).collect(), unsure }
    }

    fn put(&mut self, at: usize, result: Result<C::Done>) {
        let unsure = |error: Error| match error.kind() {
            ErrorKind::Unconfirmed => error,
            _ => {
                let why = format!("an earlier attempt may have stored it, and the last one failed: {error}");
                Error::new(ErrorKind::Unconfirmed, why)
            }
        };
        self.results[at] = Some(if self.unsure[at] { result.map_err(unsure) } else { result });
    }
}
