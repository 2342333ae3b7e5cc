//! Requests: messages whose senders wait for what the handler returns.

use std::fmt;
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use millstream_core::codec::Json;
use millstream_core::log::{Append, Log};
use millstream_core::results::{KEPT_BY_DEFAULT, MessageResult, RESULT_HEADER, ResultId, ResultRequest};
use millstream_core::span::OperationKind;
use millstream_core::{BoxError, Capability, Codec, Durability, Error, ErrorKind, Result, TopicPartition};
use tokio::time::Instant;
use uuid::Uuid;

use super::Inner;
use super::layers::Encoded;
use super::record::{SendFuture, Sent, noted};
use super::results::{LONGEST, Waited, find, result_until};
use super::sink::Way;
use crate::spans;

/// How long a request waits unless it says otherwise, as a send by default.
const WITHIN: Duration = Duration::from_secs(30);

/// Error of a request.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The message was not stored, so nobody handles it.
    #[error("the request was not sent: {0}")]
    NotSent(#[source] Error),
    /// The message may be stored: the answer to its send was lost. Only [`Request::begin`] returns this; others wait for the result.
    #[error("it is not known whether request {id} was sent: {error}")]
    Unconfirmed {
        /// Id of the result.
        id: ResultId,
        /// Error of the send.
        #[source]
        error: Error,
    },
    /// There was no result in time. The message may still be handled, and its result can be [read](ResultFuture) later.
    #[error("request {id} had no result within {within:?}")]
    Timeout {
        /// Id of the result.
        id: ResultId,
        /// How long the request waited.
        within: Duration,
        /// The last error of the send or of the wait, if there was one.
        #[source]
        error: Option<Error>,
    },
    /// The message was given up, or handled with a reply that could not be kept.
    #[error("request {id} failed ({reason}, attempts: {attempts}): {error}")]
    Failed {
        /// Id of the result.
        id: ResultId,
        /// The [reason](millstream_core::Reason) of the dead letter, or one of those in [`results`](millstream_core::results).
        reason: String,
        /// Number of attempts that were made.
        attempts: u32,
        /// The last error.
        error: String,
    },
    /// The message was handled without a reply: the handler returned none, or did not run, since its operation was done before.
    #[error("request {id} was handled without a reply")]
    NoReply {
        /// Id of the result.
        id: ResultId,
    },
    /// The codec cannot read the reply.
    #[error("the reply to request {id} cannot be read: {error}")]
    Undecodable {
        /// Id of the result.
        id: ResultId,
        /// Error of the codec.
        #[source]
        error: BoxError,
    },
    /// The result cannot be read, and waiting does not help: a right is missing, or the key holds something else.
    #[error("the result of request {id} cannot be read: {error}")]
    NotRead {
        /// Id of the result.
        id: ResultId,
        /// The error.
        #[source]
        error: Error,
    },
}

impl RequestError {
    /// Returns the id of the result. `None` if the message was not sent.
    #[must_use]
    pub const fn id(&self) -> Option<&ResultId> {
        match self {
            Self::NotSent(_) => None,
            Self::Unconfirmed { id, .. }
            | Self::Timeout { id, .. }
            | Self::Failed { id, .. }
            | Self::NoReply { id }
            | Self::Undecodable { id, .. }
            | Self::NotRead { id, .. } => Some(id),
        }
    }
}

/// Send of a message that asks for its reply; it starts when it is awaited, and ends with the reply.
///
/// ```
/// # use std::time::Duration;
/// # use millstream_runtime::{Producer, RequestError};
/// # async fn example(prices: Producer<String>) -> Result<(), RequestError> {
/// let cents: u64 = prices.send(&"chair".to_owned()).reply::<u64>().within(Duration::from_secs(2)).await?;
/// # Ok(()) }
/// ```
#[must_use = "a request does nothing until it is awaited"]
pub struct Request<'a, T: 'static, R: 'static> {
    send: SendFuture<'a, T>,
    codec: &'static dyn Codec<R>,
    within: Duration,
    keep: Duration,
}

impl<T, R> fmt::Debug for Request<'_, T, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("record", &self.send.record)
            .field("within", &self.within)
            .finish_non_exhaustive()
    }
}

impl<'a, T> SendFuture<'a, T> {
    /// Asks for the reply of the handler, which is JSON: awaited, the send waits for it. A group whose handler returns a
    /// [`Reply`](millstream_core::Reply) [answers](millstream_core::results), also if it gives the message up. Of several
    /// groups one should answer: the request ends with the first result, whichever it is.
    ///
    /// The reply and the error of a failure are stored as they are: [layers](crate::ProducerLayer) that encrypt or compress payloads do not see them. A
    /// codec of [`reply_with`](Self::reply_with) and [`Reply::encoded`](millstream_core::Reply::encoded) can do that.
    ///
    /// The result is stored in the step that settles the message, and [kept](Request::keep) for an hour, so a reply is not lost if nobody waits for
    /// it any more. All requests of a process wait on one connection to each server, and nothing is polled.
    ///
    /// # Errors
    /// Of the awaited future: a [`RequestError`].
    pub fn reply<R>(self) -> Request<'a, T, R>
    where
        Json: Codec<R>,
    {
        self.reply_with(&Json)
    }

    /// Asks for the reply of the handler, which has this codec: see [`reply`](Self::reply).
    pub fn reply_with<R>(self, codec: &'static dyn Codec<R>) -> Request<'a, T, R> {
        Request { send: self, codec, within: WITHIN, keep: KEPT_BY_DEFAULT }
    }
}

impl<T, R> Request<'_, T, R> {
    /// Sets how long the request waits, its send included. Default: 30 s. The end of the wait ends neither the send nor the
    /// work: the result can be [read](ResultFuture) later, by the id in the [error](RequestError::id).
    pub fn within(mut self, wait: Duration) -> Self {
        self.within = wait;
        self
    }

    /// Sets how long the result is kept, from the settlement on. Default: an hour; 100 ms to 30 days, others count as those.
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }
}

impl<'a, T: Sync, R: Send> Request<'a, T, R> {
    /// Sends the message, and returns when it is stored: the reply can be waited for later, also by its id in another process.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use millstream_core::MessageResult;
    /// # use millstream_runtime::{Producer, RequestError};
    /// # async fn example(prices: Producer<String>) -> Result<(), RequestError> {
    /// let requested = prices.send(&"chair".to_owned()).reply::<u64>().begin().await?;
    /// println!("ask for {} later", requested.id);
    /// let cents = requested.within(Duration::from_secs(60)).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// The time of [`within`](Self::within) does not count here: the wait has one of its own.
    ///
    /// # Errors
    /// [`RequestError::NotSent`] and [`RequestError::Unconfirmed`].
    pub async fn begin(self) -> Result<Requested<R>, RequestError> {
        let Self { send, codec, keep, .. } = self;
        let started = started(send, None, keep);
        let (sent, id, log) = started?.sent().await?;
        Ok(Requested { id, sent, log, codec })
    }
}

fn started<T: Sync>(
    send: SendFuture<'_, T>,
    within: Option<Duration>,
    keep: Duration,
) -> Result<Started, RequestError> {
    let SendFuture { producer, mut record, limit } = send;
    let (inner, durability) = (&producer.inner, producer.durability_of(&record));
    let request = inner.requests(keep)?;
    record.envelope.headers.remove(RESULT_HEADER);
    record.envelope.headers.append(RESULT_HEADER, request.to_string());
    let mut span = inner.sends(OperationKind::Send, &mut record.envelope);
    let way = producer.way_of(&record);
    let encoded = noted(&mut span, producer.encode(record));
    let limit = limit.into_iter().chain(within).min();
    inner.begin_request(encoded, (way, durability), (limit, within), request.number, span)
}

/// Request that is encoded.
struct Started {
    sending: BoxFuture<'static, Result<Sent>>,
    id: ResultId,
    log: Arc<dyn Log>,
    within: Duration,
}

impl Inner {
    fn requests(&self, keep: Duration) -> Result<ResultRequest, RequestError> {
        let Some(results) = &self.results else {
            return Err(RequestError::NotSent(Capability::Results.missing().at(&self.topic)));
        };
        let number = if results.in_process { fastrand::u128(..) } else { Uuid::new_v4().as_u128() };
        Ok(ResultRequest::new(number, keep))
    }

    fn begin_request(
        &self,
        encoded: Result<Encoded<Append>>,
        to: (Way, Durability),
        (limit, within): (Option<Duration>, Option<Duration>),
        number: u128,
        span: Option<millstream_core::span::ActiveSpan>,
    ) -> Result<Started, RequestError> {
        let partition = encoded.as_ref().map(|encoded| encoded.partition).map_err(Clone::clone);
        let sending = self.send(encoded, to, limit);
        let sending = match span {
            Some(span) => spans::send(span, sending, |sent| &sent.id),
            None => sending,
        };
        let log = self.results.as_ref().map(|results| results.log.clone());
        let (Ok(partition), Some(log)) = (&partition, log) else {
            let missing = || Capability::Results.missing();
            return Err(RequestError::NotSent(partition.err().unwrap_or_else(missing)));
        };
        let topic_partition = TopicPartition { topic: self.topic.clone(), partition: *partition };
        let id = ResultId::new(topic_partition, number);
        Ok(Started { sending, id, log, within: within.unwrap_or_default().min(LONGEST) })
    }
}

impl Started {
    async fn sent(self) -> Result<(Sent, ResultId, Arc<dyn Log>), RequestError> {
        match self.sending.await {
            Ok(sent) => Ok((sent, self.id, self.log)),
            Err(error) if error.kind() == ErrorKind::Unconfirmed => {
                Err(RequestError::Unconfirmed { id: self.id, error })
            }
            Err(error) => Err(RequestError::NotSent(error)),
        }
    }

    /// Sends it, and waits for the result.
    async fn answered(self) -> Result<(ResultId, MessageResult), RequestError> {
        let Self { mut sending, id, log, within } = self;
        let until = Instant::now() + within;
        let mut unconfirmed = None;
        let waited = {
            let mut waiting = std::pin::pin!(result_until(&*log, &id, until));
            let mut is_sent = false;
            loop {
                tokio::select! {
                    // The wait begins before the send.
                    biased;
                    waited = &mut waiting => break waited,
                    sent = &mut sending, if !is_sent => match sent {
                        Ok(_) => is_sent = true,
                        // It may be stored: then there will be a result.
                        Err(error) if error.kind() == ErrorKind::Unconfirmed => {
                            (is_sent, unconfirmed) = (true, Some(error));
                        }
                        Err(error) => return Err(RequestError::NotSent(error)),
                    },
                }
            }
        };
        found(waited, id, within, unconfirmed)
    }
}

fn found(
    waited: Waited,
    id: ResultId,
    within: Duration,
    unconfirmed: Option<Error>,
) -> Result<(ResultId, MessageResult), RequestError> {
    match waited {
        Ok(Some(result)) => Ok((id, result)),
        Ok(None) => Err(RequestError::Timeout { id, within, error: unconfirmed }),
        Err(error) if error.is_transient() => {
            Err(RequestError::Timeout { id, within, error: unconfirmed.or(Some(error)) })
        }
        Err(error) => Err(RequestError::NotRead { id, error }),
    }
}

impl<'a, T: Sync, R: Send> IntoFuture for Request<'a, T, R> {
    type Output = Result<R, RequestError>;
    type IntoFuture = BoxFuture<'a, Result<R, RequestError>>;

    fn into_future(self) -> Self::IntoFuture {
        // As for a send: the future holds neither value nor the producer's codec, and what waits is compiled once for all payloads.
        let codec = self.codec;
        let Self { send, within, keep, .. } = self;
        let answered = answered(started(send, Some(within), keep));
        Box::pin(async move { decoded(answered.await?, codec) })
    }
}

fn answered(
    started: Result<Started, RequestError>,
) -> BoxFuture<'static, Result<(ResultId, MessageResult), RequestError>> {
    Box::pin(async move { started?.answered().await })
}

fn decoded<R>((id, result): (ResultId, MessageResult), codec: &dyn Codec<R>) -> Result<R, RequestError> {
    match result {
        MessageResult::Replied(payload) => millstream_core::panics::decode(codec, &payload)
            .map_err(|error| RequestError::Undecodable { id, error }),
        MessageResult::Done => Err(RequestError::NoReply { id }),
        MessageResult::Failed { reason, attempts, error } => {
            Err(RequestError::Failed { id, reason, attempts, error })
        }
    }
}

/// Request that is stored, and whose reply can be waited for.
#[must_use = "nobody waits for the reply until `within` is awaited"]
pub struct Requested<R: 'static> {
    /// Id of the result.
    pub id: ResultId,
    /// Place of the message.
    pub sent: Sent,
    log: Arc<dyn Log>,
    codec: &'static dyn Codec<R>,
}

impl<R> fmt::Debug for Requested<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, sent, .. } = self;
        f.debug_struct("Requested").field("id", id).field("sent", sent).finish_non_exhaustive()
    }
}

impl<R: Send> Requested<R> {
    /// Waits for the reply, which can be waited for again.
    ///
    /// # Errors
    /// A [`RequestError`].
    pub async fn within(&self, wait: Duration) -> Result<R, RequestError> {
        let waited = find(&*self.log, &self.id, wait).await;
        decoded(found(waited, self.id.clone(), wait, None)?, self.codec)
    }
}
