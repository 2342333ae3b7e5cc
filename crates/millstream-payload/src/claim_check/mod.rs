//! Claim check: large payloads go to a store, and messages have references to them.

mod directory;
mod reference;
mod store;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::{BoxError, Envelope, Outcome};
use millstream_runtime::{Answer, AsyncProducerLayer, Delivery, Layer, Next};

pub use directory::DirectoryStore;
pub use reference::{InvalidReference, PayloadReference};
pub use store::PayloadStore;

/// Header with the reference to the payload.
const HEADER: &str = "claim-check";

/// Largest payload that stays in its message by default. The servers copy each one between all that read it.
const ABOVE: usize = 256 << 10;
/// Largest payload by default.
const LARGEST: usize = 64 << 20;
/// Time that a consumer waits for the store by default, for one payload.
const FETCH_TIMEOUT: Duration = Duration::from_secs(30);
/// Time after which a message whose payload could not be fetched is tried again by default.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Claim check: a layer of producers and of consumers. Producers put payloads above a limit into a [`PayloadStore`] and send a reference to
/// them; consumers fetch them before the handler runs.
///
/// A message with a reference has no payload and the header `claim-check` ([`PayloadReference`]): the name of the object, its length and
/// its SHA-256, which consumers compare with what they got. Other messages stay as they are, so a consumer with this layer handles both, and
/// consumers get it before producers do. The limits of a message count for the reference, not for the payload.
///
/// On both sides it stands next to the server: behind compression and encryption of a producer, and before them in a consumer. So the
/// store has what is compressed and encrypted.
///
/// | what happens | result |
/// |---|---|
/// | the store fails in a send | the send fails with the store's error kind ([`Unavailable`](ErrorKind::Unavailable) and so on), and nothing is stored on the server |
/// | the store does not answer in a send | [`Unavailable`](ErrorKind::Unavailable) after the `delivery_timeout` |
/// | a payload above [`largest`](Self::largest) in a send | [`TooLarge`](ErrorKind::TooLarge) |
/// | the store is not available to a consumer, or takes longer than [`fetch_timeout`](Self::fetch_timeout) | the message is tried again after [`retry_after`](Self::retry_after), and uses no attempt, however long that lasts |
/// | the store refuses the consumer, for example its rights | the attempt has failed, and the retry policy decides |
/// | the object is missing, is not what was put, or is larger than `largest`; the reference has another form | a dead letter with the reason `undecodable` and the reference in its error |
///
/// Nobody deletes objects when messages are handled: other groups may still have to read them, and dead letters may be replayed. The store
/// deletes them by age, see [`PayloadStore`].
///
/// ```
/// # use std::sync::Arc;
/// # use millstream_core::{Backend, Result, Topic};
/// # use millstream_payload::{ClaimCheck, DirectoryStore};
/// # use millstream_runtime::{Consumer, ConsumerBuilder, Delivery, ProducerBuilder};
/// # async fn handle(_: Delivery<String>) {}
/// # async fn example(producer: ProducerBuilder<String>, consumer: ConsumerBuilder<String>) -> Result<()> {
/// let claims = ClaimCheck::new(DirectoryStore::open("/var/lib/orders/payloads")?).above(100_000);
/// let producer = producer.async_layer(claims.clone()).await?;
/// let consumer = consumer.layer(claims).start(handle).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ClaimCheck {
    store: Arc<dyn PayloadStore>,
    above: usize,
    largest: usize,
    fetch_timeout: Duration,
    retry_after: Duration,
    /// Whether the store was not available at the last fetch: only changes are logged.
    is_away: Arc<AtomicBool>,
}

impl ClaimCheck {
    /// Keeps payloads of more than 256 KiB in this store.
    #[must_use]
    pub fn new(store: impl PayloadStore) -> Self {
        Self {
            store: Arc::new(store),
            above: ABOVE,
            largest: LARGEST,
            fetch_timeout: FETCH_TIMEOUT,
            retry_after: RETRY_AFTER,
            is_away: Arc::default(),
        }
    }

    /// Sets the size in bytes above which a payload goes to the store. Default: 256 KiB. It must be within the
    /// [`Limits`](millstream_core::Limits) of the producer, 1 MiB by default; otherwise payloads between the two are refused.
    #[must_use]
    pub fn above(mut self, bytes: usize) -> Self {
        self.above = bytes;
        self
    }

    /// Sets the largest payload in bytes that is put into the store or fetched. A handler has one in memory. Default: 64 MiB.
    #[must_use]
    pub fn largest(mut self, bytes: usize) -> Self {
        self.largest = bytes;
        self
    }

    /// Sets how long a consumer waits for the store, for one payload. Default: 30 s. A
    /// [`handler_timeout`](millstream_runtime::ConsumerBuilder::handler_timeout) covers this time too, and has to be longer.
    #[must_use]
    pub fn fetch_timeout(mut self, timeout: Duration) -> Self {
        self.fetch_timeout = timeout;
        self
    }

    /// Sets the time after which a message is tried again whose payload could not be fetched since the store was not available. Default: 5 s.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.retry_after = delay;
        self
    }

    async fn fetch(&self, reference: &PayloadReference) -> Result<Bytes, Answer> {
        let too_large = usize::try_from(reference.length()).map_or(true, |length| length > self.largest);
        if too_large {
            let why = format!("the payload is larger than {} bytes: {reference}", self.largest);
            return Err(Answer::undecodable(why));
        }
        let fetched = match tokio::time::timeout(self.fetch_timeout, self.store.get(reference)).await {
            Ok(fetched) => fetched,
            Err(_) => {
                let why = format!("no answer within {:?}", self.fetch_timeout);
                Err(Error::new(ErrorKind::Unavailable, why))
            }
        };
        match fetched {
            Ok(Some(payload)) => {
                self.note(None);
                if verified(payload.clone(), reference.clone()).await? {
                    return Ok(payload);
                }
                Err(Answer::undecodable(format!(
                    "the payload is not the one that was put into the store: {reference}"
                )))
            }
            Ok(None) => {
                self.note(None);
                Err(Answer::undecodable(format!("the payload is missing in the store: {reference}")))
            }
            Err(error) if error.is_transient() => {
                self.note(Some(&error));
                Err(Outcome::snooze(self.retry_after).into())
            }
            Err(error) => Err(Outcome::retry(error.during("fetch of the payload")).into()),
        }
    }

    /// Logs when the store becomes unavailable, and when it is available again.
    fn note(&self, error: Option<&Error>) {
        let was_away = self.is_away.swap(error.is_some(), Ordering::Relaxed);
        match error {
            Some(error) if !was_away => {
                tracing::warn!(store = ?self.store, %error, "the store of payloads is not available: messages wait");
            }
            None if was_away => {
                tracing::info!(store = ?self.store, "the store of payloads is available again");
            }
            _ => {}
        }
    }
}

/// Whether a payload is the one of its reference.
async fn verified(payload: Bytes, reference: PayloadReference) -> Result<bool, Answer> {
    let matches = tokio::task::spawn_blocking(move || reference.is_of(&payload)).await;
    // Only while the runtime is shut down: then it does not matter.
    matches.map_err(|error| Outcome::retry(error).into())
}

#[async_trait]
impl AsyncProducerLayer for ClaimCheck {
    fn applies(&self, message: &Envelope) -> bool {
        message.payload.len() > self.above || message.headers.get(HEADER).is_some()
    }

    async fn send(&self, message: &mut Envelope) -> Result<(), BoxError> {
        // A message that was made from another one, with its headers, would get the payload of that one.
        message.headers.remove(HEADER);
        let payload = message.payload.clone();
        if payload.len() <= self.above {
            return Ok(());
        }
        if payload.len() > self.largest {
            let why = format!("bytes of payload: {}, at most {}", payload.len(), self.largest);
            return Err(Error::new(ErrorKind::TooLarge, why).into());
        }
        let reference = {
            let payload = payload.clone();
            tokio::task::spawn_blocking(move || PayloadReference::of(&payload)).await??
        };
        self.store.put(&reference, payload).await.map_err(|error| error.during("store the payload"))?;
        message.payload = Bytes::new();
        message.headers.append(HEADER, reference.to_string());
        Ok(())
    }
}

#[async_trait]
impl Layer for ClaimCheck {
    async fn handle(&self, mut delivery: Delivery<Bytes>, next: Next<'_>) -> Answer {
        // One that has a payload was made from another message, with its headers.
        let header = delivery.headers().get(HEADER).filter(|_| delivery.payload.is_empty());
        let Some(header) = header else { return next.run(delivery).await };
        let reference: PayloadReference = match PayloadReference::parse(header) {
            Ok(reference) => reference,
            Err(invalid) => return Answer::undecodable(invalid),
        };
        match self.fetch(&reference).await {
            Ok(payload) => delivery.payload = payload,
            Err(answer) => return answer,
        }
        next.run(delivery).await
    }
}
