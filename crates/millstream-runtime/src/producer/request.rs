//! Requests: messages whose senders wait for what the handler returns.

use std::fmt;
use std::future::IntoFuture;
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, TryFutureExt};
use millstream_core::codec::Json;
use millstream_core::log::Append;
use millstream_core::results::{Asker, KEPT_BY_DEFAULT, MessageResult, RESULT_HEADER, ResultId};
use millstream_core::span::{ActiveSpan, OperationKind};
use millstream_core::{Capability, Codec, Durability, Result, TopicPartition};
use millstream_engine::requests::{Asked, Follow, RequestError, ResultStore, WITHIN, decoded};

use super::Inner;
use super::layers::Encoded;
use super::record::{SendFuture, Sent, noted};
use super::sink::Way;
use crate::spans;

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
    /// work: the result can be [read](crate::ResultFuture) later, by the id in the [error](RequestError::id).
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
        let Started { sending, asked } = started(send, None, keep)?;
        let sent = asked.sent(sending).await?;
        let asked = asked.of(Asker::Message(sent.id));
        Ok(Requested { id: asked.id.clone(), sent, asked, codec })
    }
}

fn started<T: Sync>(
    send: SendFuture<'_, T>,
    within: Option<Duration>,
    keep: Duration,
) -> Result<Started, RequestError> {
    let SendFuture { producer, mut record, limit } = send;
    let (inner, durability) = (&producer.inner, producer.durability_of(&record));
    let Some(store) = &inner.results else {
        return Err(RequestError::NotSent(Capability::Results.missing().at(&inner.topic)));
    };
    let request = store.request(keep);
    record.envelope.headers.remove(RESULT_HEADER);
    record.envelope.headers.append(RESULT_HEADER, request.to_string());
    let mut span = inner.sends(OperationKind::Send, &mut record.envelope);
    let way = producer.way_of(&record);
    let encoded = noted(&mut span, producer.encode(record));
    let limit = limit.into_iter().chain(within).min();
    inner.begin_request(encoded, (way, durability), limit, (store, request.number), span)
}

/// Request that is encoded.
struct Started {
    sending: BoxFuture<'static, Result<Sent>>,
    asked: Asked,
}

impl Inner {
    fn begin_request(
        &self,
        encoded: Result<Encoded<Append>>,
        to: (Way, Durability),
        limit: Option<Duration>,
        (store, number): (&ResultStore, u128),
        span: Option<ActiveSpan>,
    ) -> Result<Started, RequestError> {
        let partition = encoded.as_ref().map(|encoded| encoded.partition).map_err(Clone::clone);
        let sending = self.send(encoded, to, limit);
        let sending = match span {
            Some(span) => spans::send(span, sending, |sent| &sent.id),
            None => sending,
        };
        let partition = partition.map_err(RequestError::NotSent)?;
        let topic_partition = TopicPartition { topic: self.topic.clone(), partition };
        Ok(Started { sending, asked: store.asked(topic_partition, number) })
    }
}

impl<'a, T: Sync, R: Send> IntoFuture for Request<'a, T, R> {
    type Output = Result<R, RequestError>;
    type IntoFuture = BoxFuture<'a, Result<R, RequestError>>;

    fn into_future(self) -> Self::IntoFuture {
        // As for a send: the future holds neither value nor the producer's codec, and what waits is compiled once for all payloads.
        let codec = self.codec;
        let Self { send, within, keep, .. } = self;
        let answered = answered(started(send, Some(within), keep), within);
        Box::pin(async move { decoded(answered.await?, codec) })
    }
}

fn answered(
    started: Result<Started, RequestError>,
    within: Duration,
) -> BoxFuture<'static, Result<(ResultId, MessageResult), RequestError>> {
    Box::pin(async move {
        let Started { sending, asked } = started?;
        asked.answered(sending.map_ok(|sent| Asker::Message(sent.id)).boxed(), within).await
    })
}

/// Request that is stored, and whose reply can be waited for.
#[must_use = "nobody waits for the reply until `within` is awaited"]
pub struct Requested<R: 'static> {
    /// Id of the result.
    pub id: ResultId,
    /// Place of the message.
    pub sent: Sent,
    asked: Asked,
    codec: &'static dyn Codec<R>,
}

impl<R> fmt::Debug for Requested<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, sent, .. } = self;
        f.debug_struct("Requested").field("id", id).field("sent", sent).finish_non_exhaustive()
    }
}

impl<R: Send> Requested<R> {
    /// Follows the work: what the handler [says](millstream_engine::Delivery::progress) of it, and then the result.
    #[must_use]
    pub fn follow(&self) -> Follow {
        self.asked.follow()
    }

    /// Waits for the reply, which can be waited for again.
    ///
    /// # Errors
    /// A [`RequestError`].
    pub async fn within(&self, wait: Duration) -> Result<R, RequestError> {
        self.asked.reply(self.codec, wait).await
    }
}
