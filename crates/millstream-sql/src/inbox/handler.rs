//! Handlers of consumers whose effects are in the database.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind};
use millstream_core::idempotency::Operation;
use millstream_core::{BatchOutcome, Delivered, IntoOutcome, Outcome};

use super::{Inbox, Once, OnceError, fence_of};
use crate::database::Tx;

/// Shortest time after which a message comes back that could not be begun. The longest is twice as long.
const LATER: Duration = Duration::from_secs(1);

type ByFunction = dyn Fn(&dyn Delivered) -> Bytes + Send + Sync;

/// Source of the id of a message's operation.
#[derive(Clone)]
pub(super) enum IdSource {
    Message,
    Header(Arc<str>),
    Function(Arc<ByFunction>),
}

impl fmt::Debug for IdSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message => f.write_str("message id"),
            Self::Header(name) => write!(f, "header {name:?}"),
            Self::Function(_) => f.write_str("function"),
        }
    }
}

impl IdSource {
    fn operation(&self, delivery: &impl Delivered) -> Result<Operation, Outcome> {
        let id = match self {
            Self::Message => {
                Bytes::from(format!("{}-{}", delivery.topic_partition().partition, delivery.origin()))
            }
            Self::Header(name) => match delivery.headers().get(name) {
                Some(value) => value.clone(),
                None => {
                    let why = format!("no header {name:?}, which names the operation");
                    return Err(Outcome::dead_letter(why));
                }
            },
            Self::Function(id) => id(delivery),
        };
        delivery.operation(id).map_err(Outcome::dead_letter)
    }
}

/// Work that was not acknowledged: what it returned instead.
struct NotDone(Outcome);

impl Inbox {
    /// Wraps a handler, whose effect is then there once for each message: it gets the delivery and a transaction, and when it
    /// succeeds, its statements and the marker of the message are committed together, before the message is acknowledged.
    ///
    /// ```no_run
    /// # use millstream_core::Delivered;
    /// # use millstream_sql::{Inbox, Tx, sqlx};
    /// # struct Delivery<T> { payload: T }
    /// # impl<T> Delivered for Delivery<T> {
    /// #     fn topic_partition(&self) -> &millstream_core::TopicPartition { unimplemented!() }
    /// #     fn group(&self) -> &millstream_core::GroupName { unimplemented!() }
    /// #     fn origin(&self) -> millstream_core::MessageId { unimplemented!() }
    /// #     fn epoch(&self) -> u64 { unimplemented!() }
    /// #     fn key(&self) -> Option<&bytes::Bytes> { unimplemented!() }
    /// #     fn headers(&self) -> &millstream_core::Headers { unimplemented!() }
    /// # }
    /// # fn example(inbox: Inbox) {
    /// let handler = inbox.handler(async |order: Delivery<i64>, mut tx: Tx| {
    ///     let insert = sqlx::query("INSERT INTO bills (number) VALUES ($1)");
    ///     insert.bind(order.payload).execute(tx.postgres()?).await?;
    ///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
    /// });
    /// // mq.consumer(ORDERS, "billing").start(handler)
    /// # let _ = handler; }
    /// ```
    ///
    /// - A message that was handled before is acknowledged; the handler is not called.
    /// - A handler that fails, snoozes or rejects is rolled back, and its outcome stays as it is.
    /// - If the database cannot be reached before the handler is called, the message comes back after one to two seconds, as the
    ///   same attempt, for as long as that lasts. If the commit fails, the attempt has failed.
    /// - The epoch of the delivery is the fence: a former owner that was paused cannot commit once the new one has. In shared mode
    ///   there is none, and the marker alone decides.
    ///
    /// The transaction is open while the handler runs. Handlers that wait for other systems do that before the first statement, or
    /// outside of an inbox: the connection is in use, on SQLite the whole database, and
    /// [`max_idle`](super::InboxBuilder::max_idle) ends it.
    pub fn handler<D, F, Fut>(
        &self,
        handler: F,
    ) -> impl Fn(D) -> BoxFuture<'static, Outcome> + Send + Sync + use<D, F, Fut>
    where
        D: Delivered + Send + 'static,
        F: Fn(D, Tx) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        let shared = Arc::new((self.clone(), handler));
        move |delivery| {
            let shared = shared.clone();
            Box::pin(async move {
                let (inbox, handler) = &*shared;
                let operation = match inbox.id.operation(&delivery) {
                    Ok(operation) => operation,
                    Err(outcome) => return outcome,
                };
                let fence = match fence_of(&delivery) {
                    Ok(fence) => fence,
                    Err(error) => return Outcome::retry(error),
                };
                let mut called = false;
                let work = |tx| {
                    called = true;
                    let running = handler(delivery, tx);
                    async { acknowledged(running.await) }
                };
                let done = inbox.once(&operation, fence.as_ref(), work).await;
                outcome_of(done, called)
            })
        }
    }

    /// Wraps a handler of batches: it gets the messages that were not handled before, and one transaction for all of them. It is
    /// not called if there is none. Its outcome is for all of them and for those that were handled before; otherwise as
    /// [`handler`](Self::handler). A message that names no operation, for instance because it lacks the header, becomes a dead
    /// letter by itself, and the others are handled.
    pub fn batch_handler<B, D, F, Fut>(
        &self,
        handler: F,
    ) -> impl Fn(B) -> BoxFuture<'static, BatchOutcome> + Send + Sync + use<B, D, F, Fut>
    where
        B: IntoIterator<Item = D> + Send + 'static,
        D: Delivered + Send + 'static,
        F: Fn(Vec<D>, Tx) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoOutcome,
    {
        let shared = Arc::new((self.clone(), handler));
        move |batch: B| {
            let shared = shared.clone();
            let deliveries: Vec<D> = batch.into_iter().collect();
            Box::pin(async move {
                let (inbox, handler) = &*shared;
                let Named { deliveries, operations, unnamed } = named(&inbox.id, deliveries);
                let others = inbox.batch(handler, deliveries, &operations).await;
                match unnamed.iter().any(Option::is_some) {
                    true => BatchOutcome::Except { own: unnamed, others },
                    false => BatchOutcome::All(others),
                }
            })
        }
    }

    /// Handles those messages of a batch that have an operation.
    async fn batch<D, F, Fut>(&self, handler: &F, deliveries: Vec<D>, operations: &[Operation]) -> Outcome
    where
        D: Delivered,
        F: Fn(Vec<D>, Tx) -> Fut,
        Fut: Future,
        Fut::Output: IntoOutcome,
    {
        // A batch is of one partition, and of one owner.
        let fence = match deliveries.first().map(|it| fence_of(it)).transpose() {
            Ok(Some(fence)) => fence,
            Ok(None) => return Outcome::Ack,
            Err(error) => return Outcome::retry(error),
        };
        let mut called = false;
        let work = |tx, fresh: Vec<usize>| {
            called = true;
            let mut fresh = fresh.into_iter().peekable();
            let new = deliveries.into_iter().enumerate();
            let new = new.filter(|(at, _)| fresh.next_if_eq(at).is_some()).map(|(_, it)| it).collect();
            let running = handler(new, tx);
            async { acknowledged(running.await) }
        };
        let done = self.once_all(operations, fence.as_ref(), work).await;
        outcome_of(done, called)
    }
}

/// Messages of a batch by whether they name an operation.
struct Named<D> {
    /// Messages that name one.
    deliveries: Vec<D>,
    /// Their operations, in the same order.
    operations: Vec<Operation>,
    /// For each message of the batch: its outcome if it names none.
    unnamed: Vec<Option<Outcome>>,
}

fn named<D: Delivered>(id: &IdSource, batch: Vec<D>) -> Named<D> {
    let (mut deliveries, mut operations) = (Vec::with_capacity(batch.len()), Vec::with_capacity(batch.len()));
    let mut unnamed = Vec::with_capacity(batch.len());
    for delivery in batch {
        unnamed.push(match id.operation(&delivery) {
            Ok(operation) => {
                deliveries.push(delivery);
                operations.push(operation);
                None
            }
            Err(outcome) => Some(outcome),
        });
    }
    Named { deliveries, operations, unnamed }
}

fn acknowledged(said: impl IntoOutcome) -> Result<(), NotDone> {
    match said.into_outcome() {
        Outcome::Ack => Ok(()),
        other => Err(NotDone(other)),
    }
}

fn outcome_of<R>(done: Result<Once<R>, OnceError<NotDone>>, called: bool) -> Outcome {
    match done {
        Ok(Once::First(_) | Once::Duplicate(_)) => Outcome::Ack,
        Err(OnceError::Work(NotDone(outcome))) => outcome,
        Err(OnceError::Store(error)) if !called && waits(&error) => {
            tracing::warn!(%error, "the inbox is not available: the message comes back as the same attempt");
            // Spread, so that a database that comes back is not met by all at once.
            Outcome::snooze(LATER + LATER.mul_f64(fastrand::f64()))
        }
        Err(OnceError::Store(error)) => Outcome::retry(error),
    }
}

/// Whether an error concerns all messages, and not this one alone: the database is away, or somebody has to repair it.
fn waits(error: &Error) -> bool {
    error.is_transient()
        || matches!(error.kind(), ErrorKind::Denied | ErrorKind::NotFound | ErrorKind::Unsupported)
}
