//! Pulling: messages one asks for, instead of a handler that is given them.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use millstream_core::error::Result;
use millstream_core::panics::decode;
use millstream_core::{BoxError, Codec, Outcome, TopicPartition};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::consumer::handler::{Handle, Handler, Input, Verdict, guarded};
use crate::consumer::partition::handle::PartitionHandle;
use crate::consumer::pauses::Changes;
use crate::consumer::{Consumer, ConsumerBuilder};
use crate::delivery::{Delivery, DeliveryMetadata};
use crate::report::Report;

/// What is said of a message that was pulled and dropped.
const DROPPED: &str = "dropped without an outcome";

/// A consumer whose messages one asks for.
///
/// Every message that may be handled now, by the order and the limits that are set, is offered; so of each partition
/// there is one at a time, unless [`concurrency`](ConsumerBuilder::concurrency) says otherwise. Several tasks may ask at
/// the same time, and may share it in an [`Arc`].
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

/// All messages that wait to be pulled.
struct Offers<T> {
    new: mpsc::UnboundedReceiver<Offer<T>>,
    waiting: VecDeque<Offer<T>>,
    paused: Changes,
}

/// A message that waits to be pulled.
struct Offer<T> {
    topic_partition: TopicPartition,
    /// Taken by whoever comes first: the puller, or the end.
    delivery: Arc<Mutex<Option<Delivery<T>>>>,
    taken: oneshot::Sender<()>,
    say: oneshot::Sender<Outcome>,
}

impl<T> Puller<T> {
    /// The next message, when there is one. `None` when the consumer has been stopped, or has ended by itself (see
    /// [`Consumer::ended`]).
    pub async fn next(&self) -> Option<Pulled<T>> {
        let next = async { self.offers.lock().await.next().await };
        tokio::select! {
            biased;
            () = self.stopped.cancelled() => None,
            next = next => next,
        }
    }

    /// Ends the waiting of all who ask for a message, and begins the shutdown: messages that were pulled can still be
    /// settled, up to the shutdown timeout.
    pub fn stop(&self) {
        self.stopped.cancel();
    }

    /// Stops, waits until all messages that were pulled are settled (up to the shutdown timeout), and gives the
    /// partitions back.
    pub async fn shutdown(self) -> Report {
        self.stop();
        self.consumer.shutdown().await
    }

    /// [`shutdown`](Self::shutdown) with another timeout than the one that is set.
    pub async fn shutdown_within(self, timeout: Duration) -> Report {
        self.consumer.shutdown_within(timeout).await
    }

    /// The consumer beneath: to pause it, to move it, to see how it is.
    pub fn consumer(&self) -> &Consumer {
        &self.consumer
    }

    /// What was done so far.
    #[must_use]
    pub fn report(&self) -> Report {
        self.consumer.report()
    }
}

impl<T> Offers<T> {
    /// The next one that is not paused.
    async fn next(&mut self) -> Option<Pulled<T>> {
        loop {
            let free = |offer: &Offer<T>| !self.paused.is_on(&offer.topic_partition);
            if let Some(at) = self.waiting.iter().position(free)
                && let Some(Offer { delivery, taken, say, .. }) = self.waiting.remove(at)
            {
                if let Some(delivery) = take(&delivery) {
                    // A handler that is gone has been given up: that shows when the outcome is said.
                    let _ = taken.send(());
                    return Some(Pulled { delivery, say: Some(say) });
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

/// A message that was pulled. It derefs to its [`Delivery`].
///
/// Its holder says what became of it. Dropped without a word it has failed, with the error
/// `dropped without an outcome`.
#[must_use = "a message that is dropped has failed"]
pub struct Pulled<T> {
    delivery: Delivery<T>,
    /// Gone when something was said. Dropped, it says that nothing will be.
    say: Option<oneshot::Sender<Outcome>>,
}

impl<T> Pulled<T> {
    /// Done.
    pub fn ack(self) {
        self.settle(Outcome::Ack);
    }

    /// Failed with `error`: the retry policy decides when it comes back, or that it is given up.
    pub fn retry(self, error: impl Into<BoxError>) {
        self.settle(Outcome::retry(error));
    }

    /// Failed with `error`: comes back after `delay`.
    pub fn retry_after(self, delay: Duration, error: impl Into<BoxError>) {
        self.settle(Outcome::retry_after(delay, error));
    }

    /// Failed with `error`: comes back at `time`, by the server's clock.
    pub fn retry_at(self, time: SystemTime, error: impl Into<BoxError>) {
        self.settle(Outcome::retry_at(time, error));
    }

    /// Failed with `error`: comes back at once, behind what waits already.
    pub fn requeue(self, error: impl Into<BoxError>) {
        self.settle(Outcome::requeue(error));
    }

    /// Not now: comes back after `delay` as the same attempt.
    pub fn snooze(self, delay: Duration) {
        self.settle(Outcome::snooze(delay));
    }

    /// Never try again, because of `error`.
    pub fn dead_letter(self, error: impl Into<BoxError>) {
        self.settle(Outcome::dead_letter(error));
    }

    /// Says what became of it.
    pub fn settle(mut self, outcome: Outcome) {
        if let Some(say) = self.say.take() {
            // Nobody listens any more after the shutdown timeout or the handler's: then it comes too late.
            let _ = say.send(outcome);
        }
    }

    /// Asks the server at once whether the message is still ours, and renews the lease of its partition. Leases are
    /// renewed anyway: this is for those who want to know before they do what cannot be undone.
    ///
    /// # Errors
    /// [`ErrorKind::Fenced`](millstream_core::ErrorKind::Fenced) if somebody else has the partition by now; transient
    /// ones.
    pub async fn extend(&self) -> Result<()> {
        self.delivery.about.owned.extend().await
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
    /// Starts the consumer in the background, and gives its messages to whoever asks for them.
    ///
    /// A [handler timeout](Self::handler_timeout) counts from the moment that a message is pulled. What is offered and
    /// not pulled counts among the [handlers that run](Self::max_handlers).
    ///
    /// # Errors
    /// Those of [`start`](Self::start).
    pub async fn pull(self) -> Result<Puller<T>> {
        let (offer, offers) = mpsc::unbounded_channel();
        let handler = erase(self.codec(), offer);
        let consumer = self.launch(handler).await?;
        let stopped = consumer.context.stop.clone();
        let paused = consumer.context.pauses.changes();
        let offers = Offers { new: offers, waiting: VecDeque::new(), paused };
        Ok(Puller { consumer, offers: tokio::sync::Mutex::new(offers), stopped })
    }
}

/// Takes the payload type off: decodes, offers, and waits for what is said.
fn erase<T: Send + 'static>(
    codec: &'static dyn Codec<T>,
    offers: mpsc::UnboundedSender<Offer<T>>,
) -> Handler {
    Handler::Each(Box::new(Arc::new(Offering { codec, offers })))
}

struct Offering<T: 'static> {
    codec: &'static dyn Codec<T>,
    offers: mpsc::UnboundedSender<Offer<T>>,
}

impl<T: Send + 'static> Handle for Offering<T> {
    async fn handle(&self, Input { about, payload }: Input, timeout: Option<Duration>) -> Option<Verdict> {
        // The payload is dropped in here if nobody pulls it: that may panic, too.
        let offered = async move {
            match decode(self.codec, &payload) {
                Ok(value) => offer(&self.offers, value, about, timeout).await,
                Err(error) => Some(Verdict::Undecodable(error)),
            }
        };
        guarded(offered, None).await.unwrap_or_else(Some)
    }
}

/// Offers one message, and waits until it is settled. `None` if it was not pulled before the end.
async fn offer<T: Send>(
    offers: &mpsc::UnboundedSender<Offer<T>>,
    value: T,
    about: DeliveryMetadata,
    timeout: Option<Duration>,
) -> Option<Verdict> {
    let owned: Arc<PartitionHandle> = about.owned.clone();
    let delivery = Arc::new(Mutex::new(Some(Delivery { payload: value, about })));
    let (taken, mut is_taken) = oneshot::channel();
    let (say, said) = oneshot::channel();
    // Nobody asks any more when the puller was dropped: the end is near.
    let topic_partition = owned.topic_partition.clone();
    let _ = offers.send(Offer { topic_partition, delivery: delivery.clone(), taken, say });
    tokio::select! {
        biased;
        Ok(()) = &mut is_taken => {}
        () = owned.ending() => {
            if take(&delivery).is_some() {
                return None;
            }
        }
    }
    drop((delivery, owned));
    let said = async { said.await.unwrap_or_else(|_| Outcome::retry(DROPPED)) };
    Some(guarded(said, timeout).await.map_or_else(|failed| failed, Verdict::Said))
}

fn take<T>(delivery: &Mutex<Option<Delivery<T>>>) -> Option<Delivery<T>> {
    delivery.lock().unwrap_or_else(PoisonError::into_inner).take()
}
