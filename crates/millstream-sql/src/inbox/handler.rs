//! Handlers of consumers whose effects are in the database.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use millstream_core::error::{Error, ErrorKind};
use millstream_core::idempotency::Operation;
use millstream_core::results::ResultRequest;
use millstream_core::{BatchOutcome, Converted, Delivered, IntoBatchOutcome, IntoOutcome, Outcome, Reply};

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
            Self::Message => Bytes::from(delivery.message_id()),
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
    /// - The reply to a message that asks for its [result](millstream_core::results) is committed too, if it has at most 4 KiB and the handler
    ///   [keeps no result](Tx::keep_result) of its own: it is
    ///   also the reply to the same message when it comes again.
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
    ) -> impl Fn(D) -> BoxFuture<'static, Converted<Fut::Output>> + Send + Sync + use<D, F, Fut>
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
                    Err(outcome) => return outcome.into(),
                };
                let fence = match fence_of(&delivery) {
                    Ok(fence) => fence,
                    Err(error) => return Outcome::retry(error).into(),
                };
                let asks = ResultRequest::of(delivery.headers()).is_some();
                let mut called = false;
                let work = |tx| {
                    called = true;
                    let running = handler(delivery, tx);
                    async { done(running.await) }
                };
                let keeps = |outcome: &Outcome| reply_to_keep(outcome).filter(|_| asks);
                let done = inbox.once_keeping(&operation, fence.as_ref(), work, keeps).await;
                outcome_of(done, called).into()
            })
        }
    }

    /// Wraps a handler of batches: it gets the messages that were not handled before, as the `Batch` that it would get without an
    /// inbox or as a `Vec`, and one transaction for all of them. It is not called if there is none.
    ///
    /// It returns what any handler of batches may. One outcome is for all. With one for each message, the statements are committed
    /// together with the markers of the acknowledged messages, and the others have their own outcomes: the handler must not have
    /// written anything for these. If none is acknowledged, all is rolled back. Messages that were handled before are
    /// acknowledged. A message that names no operation, for instance because it lacks the header, becomes a dead letter by itself,
    /// and the others are handled. Otherwise as [`handler`](Self::handler).
    pub fn batch_handler<B, D, I, F, Fut>(
        &self,
        handler: F,
    ) -> impl Fn(B) -> BoxFuture<'static, BatchOutcome> + Send + Sync + use<B, D, I, F, Fut>
    where
        B: IntoIterator<Item = D> + Send + 'static,
        D: Delivered + Send + 'static,
        I: FromIterator<D>,
        F: Fn(I, Tx) -> Fut + Send + Sync + 'static,
        Fut: Future + Send + 'static,
        Fut::Output: IntoBatchOutcome,
    {
        let shared = Arc::new((self.clone(), handler));
        move |batch: B| {
            let shared = shared.clone();
            let deliveries: Vec<D> = batch.into_iter().collect();
            Box::pin(async move {
                let (inbox, handler) = &*shared;
                let Named { deliveries, operations, unnamed } = named(&inbox.id, deliveries);
                let calls = |fresh: Vec<D>, tx| {
                    let messages = fresh.len();
                    let running = handler(fresh.into_iter().collect(), tx);
                    async move { Answers::of(running.await.into_batch_outcome(), messages) }
                };
                inbox.batch(calls, deliveries, &operations).await.beside(unnamed)
            })
        }
    }

    /// Handles those messages of a batch that have an operation.
    async fn batch<D, F, Fut>(&self, handler: F, deliveries: Vec<D>, operations: &[Operation]) -> Answers
    where
        D: Delivered,
        F: FnOnce(Vec<D>, Tx) -> Fut,
        Fut: Future<Output = Answers>,
    {
        // A batch is of one partition, and of one owner.
        let fence = match deliveries.first().map(|it| fence_of(it)).transpose() {
            Ok(Some(fence)) => fence,
            Ok(None) => return Answers::all(Outcome::Ack),
            Err(error) => return Answers::all(Outcome::retry(error)),
        };
        let mut called = false;
        let work = |tx, fresh: Vec<usize>| {
            called = true;
            let mut next = fresh.iter().copied().peekable();
            let new = deliveries.into_iter().enumerate();
            let new = new.filter(|(at, _)| next.next_if_eq(at).is_some()).map(|(_, it)| it).collect();
            let running = handler(new, tx);
            async move {
                let answers = running.await.of_those(&fresh, operations.len());
                if fresh.iter().any(|at| answers.is_acked(*at)) { Ok(answers) } else { Err(answers) }
            }
        };
        let undone = |answers: &Answers| (0..operations.len()).filter(|at| !answers.is_acked(*at)).collect();
        match self.once_some(operations, fence.as_ref(), work, undone).await {
            Ok(Once::First((_, answers))) | Err(OnceError::Work(answers)) => answers,
            Ok(Once::Duplicate(_)) => Answers::all(Outcome::Ack),
            Err(OnceError::Store(error)) => Answers::all(not_stored(error, called)),
        }
    }
}

/// Outcomes of the messages of a batch: some have their own, and all others one together.
struct Answers {
    own: Vec<Option<Outcome>>,
    others: Outcome,
}

impl Answers {
    fn all(others: Outcome) -> Self {
        Self { own: Vec::new(), others }
    }

    fn of(said: BatchOutcome, messages: usize) -> Self {
        let (outcomes, answers) = match said {
            BatchOutcome::All(others) => return Self::all(others),
            BatchOutcome::Each(each) => {
                (each.len(), Self { own: each.into_iter().map(Some).collect(), others: Outcome::Ack })
            }
            BatchOutcome::Except { own, others } => (own.len(), Self { own, others }),
        };
        if outcomes == messages {
            return answers;
        }
        Self::all(Outcome::retry(format!("the handler gave {outcomes} outcomes for {messages} messages")))
    }

    /// Returns the outcomes of a whole batch, if these are those of the messages at `places`; the rest is acknowledged.
    fn of_those(self, places: &[usize], messages: usize) -> Self {
        if self.own.is_empty() && places.len() == messages {
            return self;
        }
        let Self { own, others } = self;
        let mut all: Vec<Option<Outcome>> = (0..messages).map(|_| Some(Outcome::Ack)).collect();
        for at in places {
            all[*at] = None;
        }
        for (at, outcome) in places.iter().zip(own) {
            all[*at] = outcome;
        }
        Self { own: all, others }
    }

    fn is_acked(&self, at: usize) -> bool {
        let outcome = self.own.get(at).and_then(Option::as_ref).unwrap_or(&self.others);
        outcome.is_done()
    }

    /// Returns the outcomes of a batch, in which messages without an operation have outcomes of their own.
    fn beside(mut self, unnamed: Vec<Option<Outcome>>) -> BatchOutcome {
        let acks = |own: &Option<Outcome>| matches!(own, None | Some(Outcome::Ack));
        if matches!(self.others, Outcome::Ack) && self.own.iter().all(acks) {
            self.own = Vec::new();
        }
        if self.own.is_empty() && unnamed.iter().all(Option::is_none) {
            return BatchOutcome::All(self.others);
        }
        let mut named = self.own.into_iter();
        let own = unnamed.into_iter().map(|own| own.or_else(|| named.next().flatten())).collect();
        BatchOutcome::Except { own, others: self.others }
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

/// Returns the outcome of work that is done.
fn done(said: impl IntoOutcome) -> Result<Outcome, NotDone> {
    let outcome = said.into_outcome();
    if outcome.is_done() { Ok(outcome) } else { Err(NotDone(outcome)) }
}

/// Returns what is committed of a reply with the work.
fn reply_to_keep(outcome: &Outcome) -> Option<Bytes> {
    match outcome {
        Outcome::Reply(reply) => reply.to_kept(),
        _ => None,
    }
}

fn outcome_of(done: Result<Once<Outcome>, OnceError<NotDone>>, called: bool) -> Outcome {
    match done {
        Ok(Once::First(outcome)) | Err(OnceError::Work(NotDone(outcome))) => outcome,
        Ok(Once::Duplicate(kept)) => {
            kept.and_then(|kept| Reply::from_kept(&kept)).map_or(Outcome::Ack, Outcome::Reply)
        }
        Err(OnceError::Store(error)) => not_stored(error, called),
    }
}

fn not_stored(error: Error, called: bool) -> Outcome {
    if called || !waits(&error) {
        return Outcome::retry(error);
    }
    tracing::warn!(%error, "the inbox is not available: the message comes back as the same attempt");
    // Spread, so that a database that comes back is not met by all at once.
    Outcome::snooze(LATER + LATER.mul_f64(fastrand::f64()))
}

/// Whether an error concerns all messages, and not this one alone: the database is away, or somebody has to repair it.
fn waits(error: &Error) -> bool {
    error.is_transient()
        || matches!(error.kind(), ErrorKind::Denied | ErrorKind::NotFound | ErrorKind::Unsupported)
}
