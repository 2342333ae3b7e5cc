//! The batcher: combines the sends of many tasks into shared requests.
//!
//! A task takes messages from a channel and sends them in batches, with as many requests under way as the sink
//! allows. The next batch fills while these are under way, so batches grow with the load.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::TopicName;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::Observer;
use millstream_engine::LeaseClock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use super::ProducerConfig;
use super::sender::Sender;
use super::sink::{Outgoing, Sink};

/// Sending half of a batcher, shared by all clones of a producer.
pub(super) struct Batcher<C: Outgoing> {
    commands: mpsc::UnboundedSender<Command<C>>,
    /// Permits for the bytes that may be queued or under way. They bound the channel.
    room: Arc<Semaphore>,
    buffer_memory: usize,
    delivery_timeout: Duration,
    /// Closed when the task has ended.
    ended: watch::Receiver<()>,
}

pub(super) enum Command<C: Outgoing> {
    One(C, Answer<Result<C::Done>>, Ticket),
    Many(Vec<C>, Answer<Vec<Result<C::Done>>>, Ticket),
    Flush(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

pub(super) type Answer<T> = oneshot::Sender<T>;

/// Permission to send: the reserved room and the deadline.
pub(super) struct Ticket {
    /// Permits for the bytes that it occupies in the buffer.
    pub(super) room: OwnedSemaphorePermit,
    /// Time until which it may be sent.
    pub(super) deadline: Instant,
}

/// Results of a chunk: still to come, or an error from before the chunk was queued.
pub(super) enum Pending<C: Outgoing> {
    Later(usize, oneshot::Receiver<Vec<Result<C::Done>>>),
    Failed(usize, Error),
}

impl<C: Outgoing> Pending<C> {
    pub(super) async fn wait(self) -> Vec<Result<C::Done>> {
        let (count, error) = match self {
            Self::Failed(count, error) => (count, error),
            Self::Later(count, results) => match results.await {
                Ok(results) => return results,
                Err(_) => (count, interrupted()),
            },
        };
        (0..count).map(|_| Err(error.clone())).collect()
    }
}

pub(super) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the producer is closed")
}

/// Error of a send whose own time limit ended before the answer came.
pub(super) fn unanswered(limit: Duration) -> Error {
    let why =
        format!("no answer within {limit:?}: the message is queued or under way, and may still be stored");
    Error::new(ErrorKind::Unconfirmed, why)
}

/// Error of a send whose task ended without a reply, because the runtime was shut down during a request.
pub(super) fn interrupted() -> Error {
    Error::new(ErrorKind::Unconfirmed, "the producer was shut down while the message was under way")
}

impl<C: Outgoing> Batcher<C> {
    /// Starts the task. Messages are sent again when their answer is lost if there is a clock for that, which counts the time for
    /// which the machine is suspended.
    pub(super) fn start(
        sink: impl Sink<C> + 'static,
        topic: TopicName,
        config: &ProducerConfig,
        observer: Arc<dyn Observer>,
        repeats: Option<Arc<LeaseClock>>,
    ) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        let sender = Sender::new(Box::new(sink), topic, observer, inbox, config, repeats);
        let (running, ended) = watch::channel(());
        let task = async move {
            sender.run().await;
            drop(running);
        };
        tokio::spawn(task.boxed());
        Self {
            commands,
            room: Arc::new(Semaphore::new(config.buffer_memory)),
            buffer_memory: config.buffer_memory,
            delivery_timeout: config.delivery_timeout,
            ended,
        }
    }

    /// Queues a message and waits for its result, up to `limit`.
    pub(super) async fn send(&self, message: C, limit: Option<Duration>) -> Result<C::Done> {
        // A time that the clock cannot reach is no limit.
        let limit = limit.and_then(|limit| Some((limit, Instant::now().checked_add(limit)?)));
        let ticket = self.reserve(message.charge(), self.deadline(), limit).await?;
        let result = self.queue(message, ticket)?;
        let result = match limit {
            None => result.await,
            // It is queued or under way: nobody can say whether it will be stored.
            Some((limit, until)) => timeout_at(until, result).await.map_err(|_| unanswered(limit))?,
        };
        result.map_err(|_| interrupted())?
    }

    /// Queues a message whose time has begun before, drops `turn` then, and waits for its result.
    pub(super) async fn send_by<G>(&self, message: C, deadline: Instant, turn: G) -> Result<C::Done> {
        let ticket = self.reserve(message.charge(), deadline, None).await?;
        let result = self.queue(message, ticket)?;
        drop(turn);
        result.await.map_err(|_| interrupted())?
    }

    /// Returns the time until which a message may be sent that is sent now.
    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.delivery_timeout
    }

    fn queue(&self, message: C, ticket: Ticket) -> Result<oneshot::Receiver<Result<C::Done>>> {
        let (reply, result) = oneshot::channel();
        self.commands.send(Command::One(message, reply, ticket)).map_err(|_| closed())?;
        Ok(result)
    }

    /// Queues a chunk and returns a handle to its results.
    pub(super) async fn send_chunk(&self, messages: Vec<C>) -> Pending<C> {
        let count = messages.len();
        let bytes = messages.iter().map(Outgoing::charge).sum();
        let ticket = match self.reserve(bytes, self.deadline(), None).await {
            Ok(ticket) => ticket,
            Err(error) => return Pending::Failed(count, error),
        };
        let (reply, results) = oneshot::channel();
        match self.commands.send(Command::Many(messages, reply, ticket)) {
            Ok(()) => Pending::Later(count, results),
            Err(_) => Pending::Failed(count, closed()),
        }
    }

    pub(super) async fn flush(&self) {
        self.mark(Command::Flush).await;
    }

    pub(super) async fn close(&self) {
        self.mark(Command::Close).await;
    }

    async fn mark(&self, command: impl FnOnce(oneshot::Sender<()>) -> Command<C>) {
        let (reply, done) = oneshot::channel();
        let is_taken = self.commands.send(command(reply)).is_ok();
        // An error means that the task has ended.
        if !is_taken || done.await.is_err() {
            // Somebody has closed it before; but messages may still be queued or under way.
            let mut ended = self.ended.clone();
            while ended.changed().await.is_ok() {}
        }
    }

    /// Waits for room, up to the limit of the send or the delivery timeout. A request for more than the whole buffer takes
    /// all of it: it would otherwise wait forever.
    ///
    /// The deadline of the ticket is not that of the send: messages of one request share it, and those of others have more time.
    async fn reserve(
        &self,
        bytes: usize,
        deadline: Instant,
        limit: Option<(Duration, Instant)>,
    ) -> Result<Ticket> {
        let (waits, until) =
            limit.filter(|(_, until)| *until < deadline).unwrap_or((self.delivery_timeout, deadline));
        let bytes = u32::try_from(bytes.min(self.buffer_memory)).unwrap_or(u32::MAX);
        if let Ok(room) = self.room.clone().try_acquire_many_owned(bytes) {
            return Ok(Ticket { room, deadline });
        }
        match timeout_at(until, self.room.clone().acquire_many_owned(bytes)).await {
            Ok(room) => Ok(Ticket { room: room.map_err(|_| closed())?, deadline }),
            Err(_) => Err(Error::new(
                ErrorKind::Backpressure,
                format!("the buffer of {} bytes stayed full for {waits:?}", self.buffer_memory),
            )),
        }
    }
}
