//! Writer: messages as rows in the user's transaction.

use std::borrow::Borrow;
use std::future::IntoFuture;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::dedup::DedupId;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::panics::encode;
use millstream_core::schedule::Due;
use millstream_core::{Envelope, Limits, Timestamp, Topic};

use super::headers;
use crate::database::{Arg, Conn};

const INSERT_POSTGRES: &str = "INSERT INTO millstream_outbox (message_id, topic, key, headers, payload, due_at) \
    VALUES ($1, $2, $3, NULLIF($4, '')::json, $5, \
    COALESCE(clock_timestamp() + $6::bigint * interval '1 millisecond', to_timestamp($7::bigint / 1000.0))) RETURNING id";
const INSERT_SQLITE: &str = "INSERT INTO millstream_outbox (message_id, topic, key, headers, payload, due_at) \
    VALUES ($1, $2, $3, NULLIF($4, ''), $5, \
    COALESCE(CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) + $6, $7)) RETURNING id";

/// Writer of an outbox: messages that exist if, and only if, the caller's transaction commits.
///
/// A row is sent by a [relay](super::OutboxRelay), in this process or another one. The table `millstream_outbox` is the
/// interface: any program may insert rows in plain SQL.
///
/// ```no_run
/// use millstream_core::Topic;
/// use millstream_sql::{Database, Outbox};
///
/// const ORDERS: Topic<u64> = Topic::new("orders").partitions(8);
///
/// # async fn example(database: &Database) -> millstream_core::Result<()> {
/// let outbox = Outbox::new();
/// let mut tx = database.begin().await?;
/// // … the statements of the order itself, in the same transaction …
/// outbox.send(&mut tx, &ORDERS, &7).key("customer-1").await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Outbox {
    limits: Limits,
}

/// Row that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct OutboxRow {
    /// Its id in the table.
    pub id: i64,
    /// Dedup id of the message.
    pub message_id: String,
}

impl Outbox {
    /// Creates a writer with the default [`Limits`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the limits on messages. Default: those of [`Limits`]. The relay has limits of its own.
    #[must_use]
    pub const fn limits(self, limits: Limits) -> Self {
        Self { limits }
    }

    /// Writes a message for `topic` in the transaction of `conn`: a [`Tx`](crate::Tx), or a transaction or connection of the
    /// client. Without a transaction the row is committed at once.
    ///
    /// Messages of one key are sent in the order in which they were written, if their writers are serialised: if each one writes
    /// after the one before has committed, for instance because all of them hold the lock of the same row.
    ///
    /// # Errors
    /// Returned by the awaited future. [`ErrorKind::Encode`], also for a codec that panics, [`ErrorKind::TooLarge`],
    /// [`ErrorKind::InvalidName`], [`ErrorKind::InvalidConfig`] for a bad topic: then nothing was sent to the database. Those of
    /// the database: PostgreSQL then refuses everything else in the transaction.
    pub fn send<'c, T: 'static>(
        &self,
        conn: impl Into<Conn<'c>>,
        topic: impl Borrow<Topic<T>>,
        value: &T,
    ) -> OutboxSend<'c> {
        let topic = topic.borrow();
        let payload = encode(topic.codec(), value);
        let prepared = topic.spec().and_then(|spec| {
            spec.name.check_target()?;
            Ok((spec.name.as_str().to_owned(), payload?))
        });
        let (topic, payload, error) = match prepared {
            Ok((topic, payload)) => (topic, payload, None),
            Err(error) => (String::new(), Bytes::new(), Some(error)),
        };
        let id = uuid::Uuid::new_v4().to_string();
        let envelope = Envelope::new(payload);
        OutboxSend { conn: conn.into(), topic, id, envelope, due: Due::NOW, limits: self.limits, error }
    }
}

/// Message that is written when it is awaited.
#[must_use = "a message is not written until this is awaited"]
#[derive(Debug)]
pub struct OutboxSend<'c> {
    conn: Conn<'c>,
    topic: String,
    id: String,
    envelope: Envelope,
    due: Due,
    limits: Limits,
    error: Option<Error>,
}

impl OutboxSend<'_> {
    /// Sets the key: messages with the same key go to the same partition and keep their order.
    pub fn key(mut self, key: impl AsRef<[u8]>) -> Self {
        self.envelope.key = Some(Bytes::copy_from_slice(key.as_ref()));
        self
    }

    /// Appends a header. For a trace: `traceparent`, of [`TraceContext`](millstream_core::trace::TraceContext).
    pub fn header(mut self, name: impl Into<String>, value: impl AsRef<[u8]>) -> Self {
        self.envelope.headers.append(name, Bytes::copy_from_slice(value.as_ref()));
        self
    }

    /// Sets the id of the message, 1 to 128 bytes of text. Default: a random one. It is the dedup id with which the message is
    /// appended: of two rows with one id and key, within the window of the relay, the second is not stored.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = id.into();
        self
    }

    /// Sends the message after this time, by the clock of the database. Default: at once.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.due = Due::In(delay);
        self
    }

    /// Sends the message at this time or later, by the clock of the database.
    pub fn at(mut self, at: Timestamp) -> Self {
        self.due = Due::At(at);
        self
    }

    async fn write(self) -> Result<OutboxRow> {
        let Self { mut conn, topic, id, envelope, due, limits, error } = self;
        if let Some(error) = error {
            return Err(error);
        }
        envelope.check(&limits)?;
        DedupId::new(id.clone().into_bytes())?;
        if id.contains('\0') {
            return Err(Error::new(ErrorKind::InvalidName, "the message id contains a NUL character"));
        }
        let headers = headers::write(&envelope.headers).unwrap_or_default();
        let ms = |ms: u64| i64::try_from(ms).unwrap_or(i64::MAX);
        let (delay, at) = match due {
            Due::NOW => (None, None),
            Due::In(delay) => {
                let nanos = delay.min(Due::FAR).as_nanos();
                (Some(ms(u64::try_from(nanos.div_ceil(1_000_000)).unwrap_or(u64::MAX))), None)
            }
            // The year 9999: the databases know no times that are much later.
            Due::At(at) => (None, Some(ms(at.as_millis()).min(253_402_300_799_000))),
        };
        let sql = conn.sql(INSERT_POSTGRES, INSERT_SQLITE).to_owned();
        let args = [
            Arg::Text(&id),
            Arg::Text(&topic),
            Arg::MaybeBytes(envelope.key.as_deref()),
            Arg::Text(&headers),
            Arg::Bytes(&envelope.payload),
            Arg::MaybeInt(delay),
            Arg::MaybeInt(at),
        ];
        let rows = conn.rows(&sql, &args, "write to the outbox").await?;
        let row = rows.first().ok_or_else(|| Error::new(ErrorKind::Protocol, "an insert returned no row"))?;
        Ok(OutboxRow { id: row.int(0)?, message_id: id })
    }
}

impl<'c> IntoFuture for OutboxSend<'c> {
    type Output = Result<OutboxRow>;
    type IntoFuture = BoxFuture<'c, Result<OutboxRow>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.write())
    }
}
