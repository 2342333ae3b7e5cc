//! Results of messages: what became of a message, kept for whoever sent it.
//!
//! A message asks for its result by a header with a number that its sender chose. The group that handles it stores the
//! result under that number, in the step that settles the message, so a former owner stores none.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use serde::Serialize;

use crate::codec::{Codec, Json};
use crate::dead_letters::Reason;
use crate::envelope::Headers;
use crate::error::{BoxError, Error, ErrorKind, Result};
use crate::id::{MessageId, ScheduleId};
use crate::message::batches::Demand;
use crate::partition::{Place, Shard};
use crate::topic::TopicPartition;
use crate::wire;

/// Header by which a message asks for its result: a [`ResultRequest`] as text.
pub const RESULT_HEADER: &str = "millstream-result";

/// How long a result is kept: at least 100 ms, at most 30 days. Requests for less or more count as that.
pub const KEPT: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(30 * 24 * 3_600));

/// How long a result is kept unless the sender says otherwise: an hour.
pub const KEPT_BY_DEFAULT: Duration = Duration::from_secs(3_600);

/// Largest reply in bytes that is kept with the marker of an operation, 4 KiB: markers stay for days.
pub const MAX_KEPT: usize = 4 << 10;

/// Beginning of what is kept of a reply, which distinguishes it from a result that an application stored itself.
const MARK: &[u8] = b"\0millstream-reply\0";

/// Beginning of the ids of results of tasks. A topic of this name has one part less in its ids.
const QUEUE: &str = "queue";

/// Number of digits of a number in an id.
const DIGITS: usize = 32;

/// Id of the result of one message or task. Its text has the place and the number that the sender chose, and the id of the message or task if
/// it is known that it is stored: `orders/3/0af7651916cd43dd8448eb211c80319c/1700000000000-0` for a message in partition 3 of `orders`,
/// and `queue/mails/1/0af7651916cd43dd8448eb211c80319c/welcome-42` for a task in shard 1 of the delay queue `mails`.
///
/// ```
/// use millstream_core::Place;
/// use millstream_core::results::ResultId;
///
/// let id: ResultId = "orders/3/0af7651916cd43dd8448eb211c80319c/1700000000000-0".parse()?;
/// assert!(matches!(&id.place, Place::Partition(it) if it.topic.as_str() == "orders" && it.partition.0 == 3));
/// let id: ResultId = "queue/mails/1/0af7651916cd43dd8448eb211c80319c".parse()?;
/// assert!(matches!(&id.place, Place::Shard(it) if it.queue.as_str() == "mails" && it.shard == 1));
/// # Ok::<(), millstream_core::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResultId {
    /// Partition of the message, or shard of the task.
    pub place: Place,
    /// Number that the sender chose, at random: whoever knows it can read the result.
    pub number: u128,
    /// Message or task that asks; `None` if it is not known whether it was stored. The result is the same with it and without, and the ids are
    /// not equal.
    pub asker: Option<Box<Asker>>,
}

/// Message or task that asks for its result.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Asker {
    /// The message with this id in its partition.
    Message(MessageId),
    /// The task with this id in its shard.
    Task(ScheduleId),
}

impl ResultId {
    /// Creates the id of a result.
    #[must_use]
    pub fn new(place: impl Into<Place>, number: u128) -> Self {
        Self { place: place.into(), number, asker: None }
    }

    /// Returns the same id with the message or task that asks.
    #[must_use]
    pub fn of(self, asker: Asker) -> Self {
        Self { asker: Some(Box::new(asker)), ..self }
    }
}

impl fmt::Display for ResultId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Place::Shard(_) = self.place {
            write!(f, "{QUEUE}/")?;
        }
        write!(f, "{}/{:032x}", self.place, self.number)?;
        match self.asker.as_deref() {
            None => Ok(()),
            Some(Asker::Message(id)) => write!(f, "/{id}"),
            Some(Asker::Task(id)) => write!(f, "/{id}"),
        }
    }
}

impl FromStr for ResultId {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::InvalidName`] for a text that is no id of a result.
    fn from_str(text: &str) -> Result<Self> {
        let of_message = || {
            let mut parts = text.splitn(4, '/');
            let (name, digits, number) = (parts.next()?, parts.next()?, parts.next()?);
            let place = TopicPartition::new(name.parse().ok()?, part_of(digits)?);
            let asker = match parts.next() {
                None => None,
                Some(text) => Some(text.parse::<MessageId>().ok().filter(|id| id.to_string() == text)?),
            };
            let asker = asker.map(|id| Box::new(Asker::Message(id)));
            Some(Self { place: place.into(), number: number_of(number)?, asker })
        };
        let of_task = || {
            let mut parts = text.strip_prefix(QUEUE)?.strip_prefix('/')?.splitn(4, '/');
            let (name, digits, number) = (parts.next()?, parts.next()?, parts.next()?);
            let place = Shard::new(name.parse().ok()?, part_of(digits)?);
            let asker = parts.next().map(|id| id.parse().map(Asker::Task)).transpose().ok()?.map(Box::new);
            Some(Self { place: place.into(), number: number_of(number)?, asker })
        };
        of_task().or_else(of_message).ok_or_else(|| {
            let shown: String = text.chars().take(200).collect();
            let why = format!("{shown:?} is no id of a result: it has a topic, a partition and {DIGITS} digits, as orders/3/0af7…");
            Error::new(ErrorKind::InvalidName, why)
        })
    }
}

/// Reads the number of a partition, shard or member, in the one form in which it is written.
pub(crate) fn part_of(digits: &str) -> Option<u32> {
    let canonical = digits == "0" || !digits.starts_with(['0', '+']);
    digits.parse().ok().filter(|_| canonical)
}

pub(crate) fn number_of(digits: &str) -> Option<u128> {
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_number = digits.len() == DIGITS && digits.bytes().all(hex);
    is_number.then(|| u128::from_str_radix(digits, 16).ok())?
}

/// Request of a message for its result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResultRequest {
    /// Number of the result in the message's partition.
    pub number: u128,
    /// How long the result is kept, from the settlement on.
    pub keep: Duration,
}

impl ResultRequest {
    /// Creates a request.
    #[must_use]
    pub fn new(number: u128, keep: Duration) -> Self {
        Self { number, keep: keep.clamp(KEPT.0, KEPT.1) }
    }

    /// Returns the request in the headers of a message. `None` if there is no such header, or one that is no request.
    #[must_use]
    pub fn of(headers: &Headers) -> Option<Self> {
        let (number, keep) = headers.get_str(RESULT_HEADER)?.split_once(' ')?;
        Some(Self::new(number_of(number)?, Duration::from_millis(keep.parse().ok()?)))
    }
}

/// Writes the value of the header: the number in hexadecimal, and the time in milliseconds.
impl fmt::Display for ResultRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x} {}", self.number, self.keep.as_millis())
    }
}

/// Value that a handler returns to whoever sent the message.
///
/// ```
/// use millstream_core::results::Reply;
/// use serde::Serialize;
///
/// #[derive(Serialize)]
/// struct Receipt { number: u64 }
///
/// let reply = Reply::json(&Receipt { number: 7 });
/// assert_eq!(reply.payload().unwrap(), &br#"{"number":7}"#[..]);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Reply(Result<Bytes, String>);

impl Reply {
    /// Creates a reply of these bytes.
    #[must_use]
    pub fn bytes(payload: impl Into<Bytes>) -> Self {
        Self(Ok(payload.into()))
    }

    /// Creates a reply of a value, as JSON. If it cannot be written, the message is done all the same, and its result is
    /// [`Failed`](MessageResult::Failed) with the reason [`UNWRITABLE`].
    #[must_use]
    pub fn json(value: &impl Serialize) -> Self {
        Self(serde_json::to_vec(value).map(Bytes::from).map_err(|error| error.to_string()))
    }

    /// Creates a reply of a value by its codec, as [`json`](Self::json).
    #[must_use]
    pub fn encoded<T>(codec: &dyn Codec<T>, value: &T) -> Self {
        Self(codec.encode(value).map_err(|error| error.to_string()))
    }

    /// Returns what a store of operations that are done keeps of it, for a message that is handled and comes again: `None` for a reply
    /// that is [too large](MAX_KEPT) for that.
    #[must_use]
    pub fn to_kept(&self) -> Option<Bytes> {
        let payload = self.payload().ok().filter(|payload| payload.len() <= MAX_KEPT)?;
        Some([MARK, payload].concat().into())
    }

    /// Reads what [`to_kept`](Self::to_kept) returned. `None` for anything else, which is not for whoever sent a message.
    #[must_use]
    pub fn from_kept(kept: &Bytes) -> Option<Self> {
        kept.starts_with(MARK).then(|| Self::bytes(kept.slice(MARK.len()..)))
    }

    /// Returns the bytes.
    ///
    /// # Errors
    /// Why the value could not be written.
    pub fn payload(&self) -> Result<&Bytes, &str> {
        self.0.as_ref().map_err(String::as_str)
    }
}

/// Without the bytes: they may be a secret.
impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Ok(payload) => write!(f, "Reply({} bytes)", payload.len()),
            Err(error) => write!(f, "Reply({error})"),
        }
    }
}

/// Reason of a failure: the message was given up, and its group keeps no dead letter of it.
pub const DISCARDED: &str = "discarded";

/// Reason of a failure: the message was [cancelled](crate::Cancels) from outside.
pub const CANCELLED: &str = "cancelled";

/// Error of a message that was cancelled.
#[doc(hidden)]
pub const CANCELLED_ERROR: &str = "cancelled from outside";

/// Reason of a failure: the message was handled, and its reply was larger than [`Limits::payload`](crate::Limits::payload) of the consumer.
pub const TOO_LARGE: &str = "reply_too_large";

/// Reason of a failure: the message was handled, and its reply could not be written.
pub const UNWRITABLE: &str = "reply_unwritable";

/// What became of a message.
#[derive(Clone, PartialEq, Eq)]
pub enum MessageResult {
    /// It was handled, and this is the reply.
    Replied(Bytes),
    /// It was handled, without a reply.
    Done,
    /// It was given up, or handled with a reply that could not be kept.
    Failed {
        /// The [reason](Reason) of the dead letter, or [`DISCARDED`], [`CANCELLED`], [`TOO_LARGE`] or [`UNWRITABLE`].
        reason: String,
        /// Number of attempts that were made.
        attempts: u32,
        /// The last error, at most [`MAX_ERROR_LEN`](wire::MAX_ERROR_LEN) bytes.
        error: String,
    },
}

impl MessageResult {
    /// Returns the result of a message that became a dead letter.
    #[must_use]
    pub fn dead(reason: &Reason, attempts: u32, error: &str) -> Self {
        Self::failed(reason.as_str(), attempts, error)
    }

    /// Returns the result of a message that was cancelled after so many attempts.
    #[must_use]
    pub fn cancelled(attempts: u32) -> Self {
        Self::failed(CANCELLED, attempts, CANCELLED_ERROR)
    }

    /// Returns the result of a message that failed.
    #[must_use]
    pub fn failed(reason: &str, attempts: u32, error: &str) -> Self {
        Self::Failed { reason: reason.to_owned(), attempts, error: wire::cut(error).to_owned() }
    }

    /// Returns the result of a message that was handled with this reply in this attempt. One of more than `limit` bytes is not kept.
    #[must_use]
    pub fn replied(reply: &Reply, attempt: u32, limit: usize) -> Self {
        match reply.payload() {
            Ok(payload) if payload.len() <= limit => Self::Replied(payload.clone()),
            Ok(payload) => {
                let why = format!("the reply has {} bytes, at most {limit} are kept", payload.len());
                Self::failed(TOO_LARGE, attempt, &why)
            }
            Err(error) => Self::failed(UNWRITABLE, attempt, error),
        }
    }

    /// Whether it replaces an earlier one. A reply stays; a failure is replaced, since a dead letter may be replayed; and that there is no
    /// reply is replaced by a reply, since another group may have one.
    #[must_use]
    pub const fn replaces(&self, earlier: &Self) -> bool {
        match earlier {
            Self::Replied(_) => false,
            Self::Done => matches!(self, Self::Replied(_)),
            Self::Failed { .. } => true,
        }
    }

    /// Returns the value of the reply, from JSON.
    ///
    /// # Errors
    /// Those of [`decode_with`](Self::decode_with).
    pub fn decode<R>(&self) -> Result<R, BoxError>
    where
        Json: Codec<R>,
    {
        self.decode_with(&Json)
    }

    /// Returns the value of the reply.
    ///
    /// # Errors
    /// There is no reply, since the message failed or its handler returned none; or the error of the codec.
    pub fn decode_with<R>(&self, codec: &dyn Codec<R>) -> Result<R, BoxError> {
        match self {
            Self::Replied(payload) => codec.decode(payload),
            Self::Done => Err("the message was handled without a reply".into()),
            Self::Failed { reason, attempts, error } => {
                Err(format!("the message failed ({reason}, attempts: {attempts}): {error}").into())
            }
        }
    }

    /// Returns the form in which a store keeps it: `+` and the reply; `=`; or `-`, and reason, attempts and error with spaces between.
    #[must_use]
    pub fn to_wire(&self) -> Vec<u8> {
        match self {
            Self::Replied(payload) => [b"+", &payload[..]].concat(),
            Self::Done => b"=".to_vec(),
            Self::Failed { reason, attempts, error } => format!("-{reason} {attempts} {error}").into_bytes(),
        }
    }

    /// Reads that form.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] for other bytes.
    pub fn from_wire(stored: &Bytes) -> Result<Self> {
        let failed = |text: &[u8]| {
            let text = String::from_utf8_lossy(text);
            let mut words = text.splitn(3, ' ');
            let reason = words.next().filter(|reason| !reason.is_empty())?;
            let attempts = words.next()?.parse().ok()?;
            Some(Self::failed(reason, attempts, words.next()?))
        };
        let read = match stored.first() {
            Some(b'+') => Some(Self::Replied(stored.slice(1..))),
            Some(b'=') if stored.len() == 1 => Some(Self::Done),
            Some(b'-') => failed(&stored[1..]),
            _ => None,
        };
        read.ok_or_else(|| Error::new(ErrorKind::Protocol, "what is stored there is no result of a message"))
    }

    /// Returns the number of bytes of its reply.
    #[must_use]
    pub fn size(&self) -> usize {
        match self {
            Self::Replied(payload) => payload.len(),
            _ => 0,
        }
    }
}

/// Without the bytes of a reply: they may be a secret.
impl fmt::Debug for MessageResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replied(payload) => write!(f, "Replied({} bytes)", payload.len()),
            Self::Done => f.write_str("Done"),
            Self::Failed { reason, attempts, error } => {
                write!(f, "Failed({reason}, attempts: {attempts}, {error})")
            }
        }
    }
}

/// What is stored with a settlement, since the message demands it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResult {
    /// What the message demands: the result itself, or a note for its batch.
    pub demand: Demand,
    /// The result.
    pub result: MessageResult,
}

impl StoredResult {
    /// Creates it.
    #[must_use]
    pub fn new(demand: impl Into<Demand>, result: MessageResult) -> Self {
        Self { demand: demand.into(), result }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written_and_nothing_else_is() {
        for place in ["orders/3", "queue/3", "queue/mails/1", "queue/queue/0"] {
            let is_task = place.split('/').count() > 2;
            for asker in if is_task { ["", "/a/b c"] } else { ["", "/17-3"] } {
                let text = format!("{place}/0af7651916cd43dd8448eb211c80319c{asker}");
                let id: ResultId = text.parse().expect("an id");
                assert_eq!((id.to_string(), id.number >> 120), (text, 0x0a));
                assert_eq!(
                    (id.asker.is_some(), matches!(id.place, Place::Shard(_))),
                    (!asker.is_empty(), is_task)
                );
            }
        }
        for bad in [
            "",
            "orders",
            "orders/3",
            "orders/3/0af7",
            "orders/03/0af7651916cd43dd8448eb211c80319c",
            "orders/+3/0af7651916cd43dd8448eb211c80319c",
            "orders/-1/0af7651916cd43dd8448eb211c80319c",
            "orders/3/0AF7651916CD43DD8448EB211C80319C",
            "orders/3/+af7651916cd43dd8448eb211c80319c",
            "or{ders/3/0af7651916cd43dd8448eb211c80319c",
            "orders/4294967296/0af7651916cd43dd8448eb211c80319c",
            "other/mails/1/0af7651916cd43dd8448eb211c80319c",
            "orders/3/0af7651916cd43dd8448eb211c80319c/",
            "orders/3/0af7651916cd43dd8448eb211c80319c/17",
            "orders/3/0af7651916cd43dd8448eb211c80319c/017-3",
            "orders/3/0af7651916cd43dd8448eb211c80319c/17-3/1",
            "queue/mails/1/0af7651916cd43dd8448eb211c80319c/",
            "queue/queue/mails/1/0af7651916cd43dd8448eb211c80319c",
        ] {
            let error = bad.parse::<ResultId>().expect_err(bad);
            assert_eq!(error.kind(), ErrorKind::InvalidName, "{bad}");
        }
    }

    #[test]
    fn a_header_that_is_no_request_is_none() {
        let of = |value: &str| {
            let mut headers = Headers::new();
            headers.append(RESULT_HEADER, value.to_owned());
            ResultRequest::of(&headers)
        };
        let request = ResultRequest::new(31, Duration::from_secs(60));
        assert_eq!(request.to_string(), "0000000000000000000000000000001f 60000");
        assert_eq!(of(&request.to_string()), Some(request));
        let kept = |keep: &str| of(&format!("{:032x} {keep}", 7)).map(|it| it.keep);
        assert_eq!((kept("0"), kept("99999999999999")), (Some(KEPT.0), Some(KEPT.1)));
        for bad in ["", "7 60000", "0000000000000000000000000000001f", "0000000000000000000000000000001f -1"]
        {
            assert_eq!(of(bad), None, "{bad}");
        }
        assert_eq!(ResultRequest::of(&Headers::new()), None);
    }

    #[test]
    fn what_is_stored_is_read() {
        let reply = |bytes: &'static [u8]| MessageResult::Replied(Bytes::from_static(bytes));
        let failed = MessageResult::dead(&Reason::Exhausted, 3, "no\nway  at all");
        for result in
            [reply(b""), reply(b"+\0\xff"), MessageResult::Done, failed, MessageResult::failed("x", 0, "")]
        {
            assert_eq!(MessageResult::from_wire(&result.to_wire().into()).expect("a result"), result);
        }
        for bad in [&b""[..], b"{}", b"-", b"- 3 x", b"-x", b"-x y z", b"=="] {
            assert!(MessageResult::from_wire(&Bytes::copy_from_slice(bad)).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_reply_over_the_limit_is_a_failure_that_says_so() {
        let of = |reply: &Reply| MessageResult::replied(reply, 2, 4);
        assert_eq!(of(&Reply::json(&vec![1])).decode::<Vec<u8>>().expect("a value"), [1]);
        let large = of(&Reply::bytes(vec![b'x'; 5]));
        assert_eq!(large, MessageResult::failed(TOO_LARGE, 2, "the reply has 5 bytes, at most 4 are kept"));
        let unwritable = of(&Reply::json(&std::collections::BTreeMap::from([((1, 2), 3)])));
        assert!(matches!(unwritable, MessageResult::Failed { reason, .. } if reason == UNWRITABLE));
        assert!(MessageResult::Done.decode::<()>().is_err());
    }

    #[test]
    fn a_kept_reply_is_read_and_nothing_else_is() {
        for payload in [&b""[..], b"\0\xff", &[7; MAX_KEPT]] {
            let reply = Reply::bytes(payload.to_vec());
            let kept = reply.to_kept().expect("kept");
            assert_eq!(Reply::from_kept(&kept), Some(reply));
        }
        assert_eq!(Reply::bytes(vec![7; MAX_KEPT + 1]).to_kept(), None);
        for other in [&b""[..], b"+1", b"\0millstream-reply"] {
            assert_eq!(Reply::from_kept(&Bytes::copy_from_slice(other)), None);
        }
    }

    #[test]
    fn a_reply_stays_and_replaces_all_others() {
        let results =
            [MessageResult::failed("x", 1, ""), MessageResult::Done, MessageResult::Replied(Bytes::new())];
        let replaced = |earlier: usize| results.each_ref().map(|later| later.replaces(&results[earlier]));
        assert_eq!([replaced(0), replaced(1), replaced(2)], [[true; 3], [false, false, true], [false; 3]]);
    }
}
