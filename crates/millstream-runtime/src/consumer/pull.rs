//! Pull API: the caller asks for messages, instead of passing a handler.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, Stream, StreamExt};
use millstream_core::error::Result;
use millstream_core::panics::decode;
use millstream_core::span::OperationKind;
use millstream_core::{BoxError, Codec, Outcome, Reply, Timestamp, TopicPartition};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::consumer::pauses::Changes;
use crate::consumer::{Consumer, ConsumerBuilder};
use crate::report::Report;
use millstream_engine::delivery::DeliveryScope;
use millstream_engine::delivery::{Delivery, DeliveryMetadata};
use millstream_engine::handler::{ErasedHandler, Handle, Input, Verdict, guarded, of_delivery};

/// Error of a message that was pulled and dropped.
const DROPPED: &str = "dropped without an outcome";

/// A consumer that returns messages on request.
///
/// Every message that may be handled now, by the configured order and limits, is offered. So there is one message of each
/// partition at a time, unless [`concurrency`](ConsumerBuilder::concurrency) allows more. Several tasks may share a
/// puller in an [`Arc`] and ask at the same time.
///
/// ```
/// # use millstream_runtime::ConsumerBuilder;
/// # async fn import(_: &u64) -> Result<(), std::io::Error> { Ok(()) }
/// # async fn example(consumer: ConsumerBuilder<u64>) -> millstream_core::Result<()> {
/// let puller = consumer.pull().await?;
/// while let Some(number) = puller.next().await {
///     match import(&number.payload).await {
///         Ok(()) => number.ack(),
///         Err(error) => number.retry(error),
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Puller<T> {
    consumer: Consumer,
    offers: tokio::sync::Mutex<Offers<T>>,
    stopped: CancellationToken,
}

/// Messages that wait to be pulled.
struct Offers<T> {
    new: mpsc::UnboundedReceiver<Offer<T>>,
    waiting: VecDeque<Offer<T>>,
    paused: Changes,
}

/// A message that waits to be pulled.
struct Offer<T> {
    topic_partition: TopicPartition,
    /// Bytes of its payload.
    body: usize,
    /// Taken either by the puller, or by the offering side when the consumer ends.
    delivery: Arc<Mutex<Option<Delivery<T>>>>,
    taken: oneshot::Sender<()>,
    say: oneshot::Sender<Outcome>,
}

impl<T> Puller<T> {
    /// Waits for the next message. `None` when the consumer has been stopped, or has ended by itself (see
    /// [`Consumer::ended`]).
    pub async fn next(&self) -> Option<Pulled<T>> {
        let tracing = self.consumer.context.tracing.as_ref();
        let began = tracing.map(|_| Instant::now());
        let next = async { self.offers.lock().await.next().await };
        let (pulled, body) = tokio::select! {
            biased;
            () = self.stopped.cancelled() => None,
            next = next => next,
        }?;
        if let (Some(tracing), Some(began)) = (tracing, began) {
            let (kind, about) = (OperationKind::Receive, &pulled.delivery.about);
            of_delivery(tracing, kind, about, body, began.elapsed()).end(None);
        }
        Some(pulled)
    }

    /// Returns the messages as a [`Stream`], which ends when [`next`](Self::next) returns `None`. Dropping the stream loses nothing. Several
    /// streams, and calls of `next`, may be used at the same time: each message goes to one of them.
    ///
    /// ```
    /// # use millstream_runtime::Puller;
    /// use futures_util::StreamExt;
    /// # async fn import(_: &u64) -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn example(puller: Puller<u64>) {
    /// let handle = async |number: millstream_runtime::Pulled<u64>| match import(&number.payload).await {
    ///     Ok(()) => number.ack(),
    ///     Err(error) => number.retry(error),
    /// };
    /// puller.stream().for_each_concurrent(8, handle).await;
    /// # }
    /// ```
    pub fn stream(&self) -> impl Stream<Item = Pulled<T>> + Send + Unpin + '_
    where
        T: Send,
    {
        // No call is dropped between two polls, and no message with it.
        stream::unfold(self, async |puller| Some((puller.next().await?, puller))).fuse().boxed()
    }

    /// Begins the shutdown. All pending calls of [`next`](Self::next) return `None`. Messages that were pulled can still
    /// be settled, up to the shutdown timeout.
    pub fn stop(&self) {
        self.stopped.cancel();
    }

    /// Stops, waits until all pulled messages are settled (up to the shutdown timeout), and releases the partitions.
    pub async fn shutdown(self) -> Report {
        self.stop();
        self.consumer.shutdown().await
    }

    /// Does the same as [`shutdown`](Self::shutdown), with another timeout than the configured one.
    pub async fn shutdown_within(self, timeout: Duration) -> Report {
        self.consumer.shutdown_within(timeout).await
    }

    /// Returns the underlying consumer: to pause it, to seek, to read its health.
    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// Returns the counts so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.consumer.report()
    }
}

impl<T> Offers<T> {
    /// Waits for the next offer of a partition that is not paused. Returns its message with the bytes of the payload.
    async fn next(&mut self) -> Option<(Pulled<T>, usize)> {
        loop {
            let free = |offer: &Offer<T>| !self.paused.is_on(&offer.topic_partition);
            if let Some(at) = self.waiting.iter().position(free)
                && let Some(Offer { delivery, taken, say, body, .. }) = self.waiting.remove(at)
            {
                if let Some(delivery) = take(&delivery) {
                    // If the offering side is gone, the message has been given up: the outcome is then discarded when it
                    // is sent.
                    let _ = taken.send(());
                    return Some((Pulled { delivery, say: Some(say) }, body));
                }
                continue;
            }
            tokio::select! {
                biased;
                () = self.paused.changed() => {}
                offer = self.new.recv() => {
                    self.waiting.retain(|offer| !offer.taken.is_closed());
                    self.waiting.push_back(offer?);
                }
            }
        }
    }
}

impl<T> fmt::Debug for Puller<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Puller").field("consumer", &self.consumer).finish_non_exhaustive()
    }
}

/// A pulled message. Derefs to its [`Delivery`].
///
/// The holder settles it with one of the methods. A message that is dropped without an outcome has failed, with the error
/// `dropped without an outcome`.
#[must_use = "a message that is dropped has failed"]
pub struct Pulled<T> {
    delivery: Delivery<T>,
    /// `None` once an outcome was sent. Dropping the sender marks the message as dropped.
    say: Option<oneshot::Sender<Outcome>>,
}

impl<T> Pulled<T> {
    /// Marks the message as done.
    pub fn ack(self) {
        self.settle(Outcome::Ack);
    }

    /// Marks the message as done with this reply, which is kept if the message asks for its [result](millstream_core::results).
    pub fn reply(self, reply: Reply) {
        self.settle(Outcome::Reply(reply));
    }

    /// Marks the message as failed with `error`: the retry policy decides when it comes back, or that it is given up.
    pub fn retry(self, error: impl Into<BoxError>) {
        self.settle(Outcome::retry(error));
    }

    /// Marks the message as failed with `error`: it comes back after `delay`.
    pub fn retry_after(self, delay: Duration, error: impl Into<BoxError>) {
        self.settle(Outcome::retry_after(delay, error));
    }

    /// Marks the message as failed with `error`: it comes back at `time`, by the server's clock.
    pub fn retry_at(self, time: impl Into<Timestamp>, error: impl Into<BoxError>) {
        self.settle(Outcome::retry_at(time, error));
    }

    /// Marks the message as failed with `error`: it comes back at once, behind the messages that already wait.
    pub fn requeue(self, error: impl Into<BoxError>) {
        self.settle(Outcome::requeue(error));
    }

    /// Postpones the message: it comes back after `delay` as the same attempt.
    pub fn snooze(self, delay: Duration) {
        self.settle(Outcome::snooze(delay));
    }

    /// Makes the message a dead letter without further attempts, because of `error`.
    pub fn dead_letter(self, error: impl Into<BoxError>) {
        self.settle(Outcome::dead_letter(error));
    }

    /// Settles the message with `outcome`.
    pub fn settle(mut self, outcome: Outcome) {
        if let Some(say) = self.say.take() {
            // The receiver is gone after the shutdown timeout or the handler timeout: the outcome is then too late.
            let _ = say.send(outcome);
        }
    }

    /// Asks the server at once whether this consumer still holds the message, and renews the lease of its partition.
    /// Leases are renewed automatically; call this before an action that cannot be undone.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](millstream_core::ErrorKind::Fenced) if another instance has the partition by now; transient
    /// errors.
    pub async fn extend(&self) -> Result<()> {
        self.delivery.about.scope.extend().await
    }
}

impl<T> Deref for Pulled<T> {
    type Target = Delivery<T>;

    fn deref(&self) -> &Delivery<T> {
        &self.delivery
    }
}

impl<T> fmt::Debug for Pulled<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Pulled").field(&self.delivery).finish()
    }
}

impl<T: Send + 'static> ConsumerBuilder<T> {
    /// Starts the consumer in the background and returns a [`Puller`] for its messages.
    ///
    /// A [handler timeout](Self::handler_timeout) counts from the moment that a message is pulled. A message that is
    /// offered and not yet pulled counts as a [running handler](Self::max_handlers).
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub async fn pull(self) -> Result<Puller<T>> {
        let (offer, offers) = mpsc::unbounded_channel();
        let handler = erase(self.codec(), offer);
        let consumer = self.launch_as(handler, true).await?;
        let stopped = consumer.context.stop.clone();
        let paused = consumer.context.pauses.changes();
        let offers = Offers { new: offers, waiting: VecDeque::new(), paused };
        Ok(Puller { consumer, offers: tokio::sync::Mutex::new(offers), stopped })
    }
}

/// Erases the payload type: decodes a message, offers it, and waits for its outcome.
fn erase<T: Send + 'static>(
    codec: &'static dyn Codec<T>,
    offers: mpsc::UnboundedSender<Offer<T>>,
) -> ErasedHandler {
    ErasedHandler::Each(Box::new(Arc::new(Offering { codec, offers })))
}

struct Offering<T: 'static> {
    codec: &'static dyn Codec<T>,
    offers: mpsc::UnboundedSender<Offer<T>>,
}

impl<T: Send + 'static> Handle for Offering<T> {
    async fn handle(&self, Input { about, payload }: Input, timeout: Option<Duration>) -> Option<Verdict> {
        // If nobody pulls the message, its payload is dropped inside this block: that may panic, too.
        let offered = async move {
            match decode(self.codec, &payload) {
                Ok(value) => offer(&self.offers, (value, payload.len()), about, timeout).await,
                Err(error) => Some(Verdict::Undecodable(error)),
            }
        };
        guarded(offered, None).await.unwrap_or_else(Some)
    }
}

/// Offers one message, and waits until it is settled. `None` if the consumer ended before it was pulled.
async fn offer<T: Send>(
    offers: &mpsc::UnboundedSender<Offer<T>>,
    (value, body): (T, usize),
    about: DeliveryMetadata,
    timeout: Option<Duration>,
) -> Option<Verdict> {
    let handle: Arc<DeliveryScope> = about.scope.clone();
    let delivery = Arc::new(Mutex::new(Some(Delivery { payload: value, about })));
    let (taken, mut is_taken) = oneshot::channel();
    let (say, said) = oneshot::channel();
    // Sending fails if the puller was dropped: then the consumer is about to end.
    let topic_partition = handle.topic_partition.clone();
    let _ = offers.send(Offer { topic_partition, body, delivery: delivery.clone(), taken, say });
    tokio::select! {
        biased;
        Ok(()) = &mut is_taken => {}
        () = handle.ending() => {
            if take(&delivery).is_some() {
                return None;
            }
        }
    }
    drop((delivery, handle));
    let said = async { said.await.unwrap_or_else(|_| Outcome::retry(DROPPED)) };
    Some(guarded(said, timeout).await.map_or_else(|failed| failed, Verdict::Said))
}

fn take<T>(delivery: &Mutex<Option<Delivery<T>>>) -> Option<Delivery<T>> {
    delivery.lock().unwrap_or_else(PoisonError::into_inner).take()
}
