//! The batcher: single sends of many tasks share requests.
//!
//! One task takes messages from a channel and sends them in batches, one request at a time. While a request is
//! under way the next batch fills, so batches grow with the load by themselves. One at a time also keeps order:
//! a request that is tried again cannot be overtaken.

use std::sync::Arc;
use std::time::Duration;

use millstream_core::TopicName;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Observer};
use millstream_core::policy::Exponential;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::time::{Instant, timeout};

use super::ProducerConfig;
use super::cargo::{Cargo, Sink};

/// The sending half: shared by all clones of a producer.
pub(super) struct Batcher<C: Cargo> {
    commands: mpsc::UnboundedSender<Command<C>>,
    /// Bytes that may be under way. It bounds the channel.
    room: Arc<Semaphore>,
    buffer_memory: usize,
    delivery_timeout: Duration,
}

enum Command<C: Cargo> {
    One(C, Answer<Result<C::Done>>, OwnedSemaphorePermit),
    Many(Vec<C>, Answer<Vec<Result<C::Done>>>, OwnedSemaphorePermit),
    Flush(oneshot::Sender<()>),
    Close(oneshot::Sender<()>),
}

type Answer<T> = oneshot::Sender<T>;

/// The results of a chunk, now or later.
pub(super) enum Pending<C: Cargo> {
    Later(usize, oneshot::Receiver<Vec<Result<C::Done>>>),
    Failed(usize, Error),
}

impl<C: Cargo> Pending<C> {
    pub(super) async fn wait(self) -> Vec<Result<C::Done>> {
        let (count, error) = match self {
            Self::Failed(count, error) => (count, error),
            Self::Later(count, results) => match results.await {
                Ok(results) => return results,
                Err(_) => (count, interrupted()),
            },
        };
        (0..count).map(|_| Err(error.duplicate())).collect()
    }
}

fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the producer is closed")
}

/// The task is gone without an answer: the runtime was shut down in the middle of a request.
fn interrupted() -> Error {
    Error::new(ErrorKind::Unconfirmed, "the producer was shut down while the message was under way")
}

impl<C: Cargo> Batcher<C> {
    pub(super) fn start(
        sink: impl Sink<C> + 'static,
        topic: TopicName,
        config: &ProducerConfig,
        observer: Arc<dyn Observer>,
    ) -> Self {
        let (commands, inbox) = mpsc::unbounded_channel();
        let sender = Sender {
            sink: Box::new(sink),
            topic,
            observer,
            inbox,
            max_batch: config.max_batch,
            linger: config.linger,
            delivery_timeout: config.delivery_timeout,
            next: Batch::new(),
            closing: Vec::new(),
        };
        tokio::spawn(sender.run());
        Self {
            commands,
            room: Arc::new(Semaphore::new(config.buffer_memory)),
            buffer_memory: config.buffer_memory,
            delivery_timeout: config.delivery_timeout,
        }
    }

    pub(super) async fn send(&self, message: C) -> Result<C::Done> {
        let permit = self.reserve(message.charge()).await?;
        let (reply, result) = oneshot::channel();
        self.commands.send(Command::One(message, reply, permit)).map_err(|_| closed())?;
        result.await.map_err(|_| interrupted())?
    }

    /// Queues a chunk and gives back where its results will be.
    pub(super) async fn send_chunk(&self, messages: Vec<C>) -> Pending<C> {
        let count = messages.len();
        let permit = match self.reserve(messages.iter().map(Cargo::charge).sum()).await {
            Ok(permit) => permit,
            Err(error) => return Pending::Failed(count, error),
        };
        let (reply, results) = oneshot::channel();
        match self.commands.send(Command::Many(messages, reply, permit)) {
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
        if self.commands.send(command(reply)).is_ok() {
            // An error means that the task has ended: nothing is under way any more.
            let _ = done.await;
        }
    }

    /// Waits for room. What is larger than the whole buffer takes all of it, rather than waiting for ever.
    async fn reserve(&self, bytes: usize) -> Result<OwnedSemaphorePermit> {
        let bytes = u32::try_from(bytes.min(self.buffer_memory)).unwrap_or(u32::MAX);
        if let Ok(permit) = self.room.clone().try_acquire_many_owned(bytes) {
            return Ok(permit);
        }
        match timeout(self.delivery_timeout, self.room.clone().acquire_many_owned(bytes)).await {
            Ok(permit) => permit.map_err(|_| closed()),
            Err(_) => Err(Error::new(
                ErrorKind::Backpressure,
                format!(
                    "the buffer of {} bytes stayed full for {:?}",
                    self.buffer_memory, self.delivery_timeout
                ),
            )),
        }
    }
}

/// The receiving half: the one task.
struct Sender<C: Cargo> {
    sink: Box<dyn Sink<C>>,
    topic: TopicName,
    observer: Arc<dyn Observer>,
    inbox: mpsc::UnboundedReceiver<Command<C>>,
    max_batch: usize,
    linger: Duration,
    delivery_timeout: Duration,
    next: Batch<C>,
    closing: Vec<oneshot::Sender<()>>,
}

/// Messages of one request, and who waits for them.
struct Batch<C: Cargo> {
    messages: Vec<C>,
    replies: Vec<Reply<C>>,
    permits: Vec<OwnedSemaphorePermit>,
}

enum Reply<C: Cargo> {
    One(Answer<Result<C::Done>>),
    Many(usize, Answer<Vec<Result<C::Done>>>),
    Flush(oneshot::Sender<()>),
}

impl<C: Cargo> Batch<C> {
    fn new() -> Self {
        Self { messages: Vec::new(), replies: Vec::new(), permits: Vec::new() }
    }

    fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    fn answer(self, results: Vec<Result<C::Done>>) {
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

impl<C: Cargo> Sender<C> {
    async fn run(mut self) {
        while self.run_once().await {}
        for reply in self.closing {
            let _ = reply.send(());
        }
    }

    /// Sends one batch. False when closed and nothing is left.
    async fn run_once(&mut self) -> bool {
        self.fill().await;
        if self.next.is_empty() {
            return false;
        }
        let batch = std::mem::replace(&mut self.next, Batch::new());
        let results = {
            let put = put(&*self.sink, &batch.messages, self.delivery_timeout, &self.topic, &*self.observer);
            tokio::pin!(put);
            loop {
                tokio::select! {
                    biased;
                    results = &mut put => break results,
                    Some(command) = self.inbox.recv(), if self.next.messages.len() < self.max_batch => {
                        take(command, &mut self.next, &mut self.closing, &mut self.inbox);
                    }
                }
            }
        };
        batch.answer(results);
        true
    }

    /// Waits for a message, then takes what is there, then what comes within the linger.
    async fn fill(&mut self) {
        if self.next.is_empty() {
            match self.inbox.recv().await {
                Some(command) => self.take(command),
                None => return,
            }
        }
        let deadline = Instant::now() + self.linger;
        while self.next.messages.len() < self.max_batch {
            if let Ok(command) = self.inbox.try_recv() {
                self.take(command);
            } else if self.linger.is_zero() || self.inbox.is_closed() {
                return;
            } else {
                match tokio::time::timeout_at(deadline, self.inbox.recv()).await {
                    Ok(Some(command)) => self.take(command),
                    Ok(None) | Err(_) => return,
                }
            }
        }
    }

    fn take(&mut self, command: Command<C>) {
        take(command, &mut self.next, &mut self.closing, &mut self.inbox);
    }
}

/// Takes one command; apart from [`Sender`], so that it can run while a request borrows the rest of it.
fn take<C: Cargo>(
    command: Command<C>,
    next: &mut Batch<C>,
    closing: &mut Vec<oneshot::Sender<()>>,
    inbox: &mut mpsc::UnboundedReceiver<Command<C>>,
) {
    match command {
        Command::One(message, reply, permit) => {
            next.messages.push(message);
            next.replies.push(Reply::One(reply));
            next.permits.push(permit);
        }
        Command::Many(messages, reply, permit) => {
            next.replies.push(Reply::Many(messages.len(), reply));
            next.messages.extend(messages);
            next.permits.push(permit);
        }
        Command::Flush(reply) => next.replies.push(Reply::Flush(reply)),
        Command::Close(reply) => {
            // What is in the channel already is still sent; the next send fails.
            inbox.close();
            closing.push(reply);
        }
    }
}

/// Stores a batch. Tries again while the server is away, as long as nothing of it was stored: sending the rest
/// after a part would change the order.
async fn put<C: Cargo>(
    sink: &dyn Sink<C>,
    messages: &[C],
    delivery_timeout: Duration,
    topic: &TopicName,
    observer: &dyn Observer,
) -> Vec<Result<C::Done>> {
    if messages.is_empty() {
        return Vec::new();
    }
    let pauses = Exponential::from(Duration::from_millis(20)).up_to(Duration::from_secs(1)).equal_jitter();
    let deadline = Instant::now() + delivery_timeout;
    let mut failures = 0;
    let results = loop {
        let results = sink.put(messages).await;
        let away = |result: &Result<C::Done>| {
            result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Unavailable)
        };
        failures += 1;
        let pause = pauses.delay(failures, fastrand::u64(..));
        if !results.iter().all(away) || Instant::now() + pause >= deadline {
            break results;
        }
        tokio::time::sleep(pause).await;
    };
    let stored = results.iter().filter(|result| result.is_ok()).count();
    if stored > 0 {
        sink.stored(topic, stored, observer);
    }
    if let Some(error) = results.iter().find_map(|result| result.as_ref().err()) {
        observer.observe(&Event::ProduceFailed { topic, messages: results.len() - stored, error });
    }
    results
}
