//! The guard around a handler: begins the operation of each message, and completes or abandons it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use millstream_core::error::{Error, ErrorKind};
use millstream_core::idempotency::{Begun, Idempotency, MAX_HOLDER_LEN, MAX_OPERATION_ID_LEN, Operation};
use millstream_core::panics::text_of;
use millstream_core::partitioner::by_hash;
use millstream_core::results::ResultRequest;
use millstream_core::{Backend, GroupName, Observer, Outcome, Reply, Result, TopicName};
use tokio::time::sleep;
use uuid::Uuid;

use crate::delivery::{Delivery, DeliveryMetadata};
use crate::handler::{BatchCall, Call, ErasedHandler, Handle, Input, Said, Verdict};
use crate::letter::DeadLetterOutcome;
use crate::markers::idempotent::{IdSource, Idempotent, WhileRunning};
use crate::markers::table::{KeptMarker, MarkerTable};
use crate::monitor::LoopMonitor;

/// Longest time after which a message comes back whose operation runs elsewhere.
const LATER: Duration = Duration::from_secs(5);
/// Pauses between two looks at an operation that runs elsewhere.
const LOOKS: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

/// What a guard needs of the consumer or worker whose handler it guards.
pub struct Guarding {
    /// Its backend.
    pub backend: Backend,
    /// Topic and group of its operations; for a queue its name, and [that of all tasks](GroupName::of_tasks).
    pub scope: (TopicName, GroupName),
    /// For how long a marker holds unless it is extended.
    pub ttl: Duration,
    /// Whether messages are kept in order, so that one whose operation runs elsewhere waits in its place by default.
    pub is_ordered: bool,
    /// The monitor of requests about markers.
    pub monitor: LoopMonitor,
    /// Receives events.
    pub observer: Arc<dyn Observer>,
    /// The markers of handlers that run.
    pub markers: MarkerTable,
}

/// Wraps a handler, so that it is called for operations that are not done.
///
/// # Errors
/// [`ErrorKind::Unsupported`] if the backend has no markers.
pub fn wrap(handler: ErasedHandler, settings: &Idempotent, guarding: Guarding) -> Result<ErasedHandler> {
    let default = if guarding.is_ordered { WhileRunning::Wait } else { WhileRunning::Later };
    let guard = Guard {
        settings: settings.clone(),
        while_running: settings.while_running.unwrap_or(default),
        role: guarding.backend.idempotency()?.clone(),
        guarding,
    };
    Ok(match handler {
        ErasedHandler::Each(call) => ErasedHandler::Each(Box::new(Arc::new(Guarded { guard, call }))),
        ErasedHandler::Batch(config, call) => ErasedHandler::Batch(config, batch(guard, call)),
    })
}

struct Guard {
    settings: Idempotent,
    while_running: WhileRunning,
    role: Arc<dyn Idempotency>,
    guarding: Guarding,
}

/// A handler of single messages with its guard.
struct Guarded {
    guard: Guard,
    call: Box<dyn Call>,
}

/// What becomes of a message before its handler.
enum Turn {
    /// The handler runs, under a marker unless the message has no operation.
    Handle(Input, Option<KeptMarker>),
    /// The handler does not run.
    Done(Verdict),
    /// The consumer is about to end, or the message is no longer ours.
    NotHandled,
}

impl Handle for Guarded {
    fn declines(&self) -> bool {
        true
    }

    fn replies(&self) -> bool {
        self.call.replies()
    }

    async fn handle(&self, input: Input, timeout: Option<Duration>) -> Option<Verdict> {
        match self.guard.begin(input, self.guard.while_running).await {
            Turn::Handle(input, kept) => {
                let asks = kept.is_some() && asks(&input);
                let verdict = self.call.one(input, timeout).await.0;
                if let Some(kept) = kept {
                    self.guard.end(&kept, verdict.as_ref(), asks).await;
                }
                verdict
            }
            Turn::Done(verdict) => Some(verdict),
            Turn::NotHandled => None,
        }
    }
}

/// Wraps a handler of batches. In a batch no message waits for an operation that runs: two batches could wait for each other.
fn batch(guard: Guard, call: Box<BatchCall>) -> Box<BatchCall> {
    let shared = Arc::new((guard, call));
    let call = move |inputs: Vec<Input>, timeout| {
        let shared = shared.clone();
        Box::pin(async move {
            let (guard, call) = &*shared;
            let choice = match guard.while_running {
                WhileRunning::Wait => WhileRunning::Later,
                other => other,
            };
            let turns = join_all(inputs.into_iter().map(|input| guard.begin(input, choice))).await;
            let (mut handled, mut kept) = (Vec::new(), Vec::new());
            let mut said: Vec<Option<Said>> = Vec::with_capacity(turns.len());
            for turn in turns {
                said.push(match turn {
                    Turn::Handle(input, marker) => {
                        kept.push(marker.map(|marker| (marker, asks(&input))));
                        handled.push(input);
                        None
                    }
                    Turn::Done(verdict) => Some(Said::Own(verdict)),
                    // The settlement comes too late if the message is no longer ours.
                    Turn::NotHandled => Some(Said::Own(Verdict::Said(Outcome::Snooze(Duration::ZERO)))),
                });
            }
            let verdicts = if handled.is_empty() { Vec::new() } else { call(handled, timeout).await };
            let ends =
                kept.iter().zip(&verdicts).filter_map(|(kept, said)| Some((kept.as_ref()?, said.verdict())));
            join_all(ends.map(|((kept, asks), verdict)| guard.end(kept, Some(verdict), *asks))).await;
            let mut verdicts = verdicts.into_iter();
            said.into_iter().filter_map(|own| own.or_else(|| verdicts.next())).collect()
        }) as futures_util::future::BoxFuture<'static, Vec<Said>>
    };
    Box::new(call)
}

/// Whether a message asks for its result.
fn asks(input: &Input) -> bool {
    ResultRequest::of(&input.about.headers).is_some()
}

/// Returns what a marker keeps of the reply in a verdict.
fn reply_to_keep(verdict: &Verdict) -> Bytes {
    match verdict {
        Verdict::Said(Outcome::Reply(reply)) => reply.to_kept().unwrap_or_default(),
        _ => Bytes::new(),
    }
}

impl Guard {
    /// Begins the operation of a message. Waits as long as the server is away, and for another one that runs it, if it is to
    /// be waited for.
    async fn begin(&self, input: Input, choice: WhileRunning) -> Turn {
        let (input, operation) = match self.operation(input) {
            Ok((input, Some(operation))) => (input, operation),
            Ok((input, None)) => return Turn::Handle(input, None),
            Err(verdict) => return Turn::Done(verdict),
        };
        let scope = input.about.scope.clone();
        let holder = holder_of(&input.about);
        let token = self.token();
        let mut look = LOOKS.0;
        loop {
            // Never cancelled under way: a marker that was begun unnoticed would keep the next owner waiting.
            let begun = self.role.begin(&operation, &holder, &token, self.guarding.ttl).await;
            let pause = match begun {
                Ok(Begun::Started(marker)) => {
                    self.guarding.monitor.succeeded(&*self.guarding.observer);
                    let kept = self.guarding.markers.keep(marker, &input.about);
                    if scope.cancelled.is_cancelled() {
                        // The lease was lost, or is uncertain, since the message was to start.
                        self.abandon(&kept).await;
                        return Turn::NotHandled;
                    }
                    return Turn::Handle(input, Some(kept));
                }
                Ok(Begun::Done(result)) => {
                    self.guarding.monitor.succeeded(&*self.guarding.observer);
                    return Turn::Done(Verdict::Duplicate(Reply::from_kept(&result)));
                }
                Ok(Begun::Running { holder: other, expires_in }) => {
                    self.guarding.monitor.succeeded(&*self.guarding.observer);
                    match choice {
                        // The marker of an earlier worker that ended over this task. A task that is put off here would lose what is
                        // known of that.
                        _ if other == holder && scope.task().is_some() => {}
                        WhileRunning::Skip if other != holder => return Turn::Done(Verdict::Duplicate(None)),
                        WhileRunning::Skip | WhileRunning::Later => {
                            return Turn::Done(Verdict::Said(Outcome::Snooze(expires_in.min(LATER))));
                        }
                        WhileRunning::Wait => {}
                    }
                    look = (look * 2).min(LOOKS.1);
                    look.min(expires_in + Duration::from_millis(1))
                }
                // The user lacks a right, or the server does: it is the same for each message, and to be repaired.
                Err(error) if error.is_transient() || is_of_all(&error) => {
                    self.guarding.monitor.failed(&error, &*self.guarding.observer)
                }
                Err(error) => return Turn::Done(Verdict::Said(Outcome::retry(error))),
            };
            tokio::select! {
                biased;
                () = scope.ending() => return Turn::NotHandled,
                () = scope.cancelled.cancelled() => return Turn::NotHandled,
                () = sleep(pause) => {}
            }
        }
    }

    /// Completes the operation if the handler succeeded or the check found its effect, and abandons it otherwise. If the message `asks` for
    /// its result, the marker keeps the reply: a message that is handled and not settled when its process ends gets it again.
    async fn end(&self, kept: &KeptMarker, verdict: Option<&Verdict>, asks: bool) {
        let done = match verdict {
            Some(Verdict::Said(Outcome::Ack | Outcome::Reply(_)) | Verdict::Checked) => true,
            Some(Verdict::Letter(outcome)) => **outcome == DeadLetterOutcome::Delete,
            _ => false,
        };
        if !done {
            return self.abandon(kept).await;
        }
        kept.completes();
        let reply = verdict.filter(|_| asks).map_or_else(Bytes::new, reply_to_keep);
        loop {
            let error = match self.role.complete(kept.marker(), &reply, self.settings.kept()).await {
                Ok(()) => return self.guarding.monitor.succeeded(&*self.guarding.observer),
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    return kept.lost(&*self.guarding.observer);
                }
                Err(error) => error,
            };
            // The message is acknowledged only when the marker is done, or both could be lost with this process.
            let pause = self.guarding.monitor.failed(&error, &*self.guarding.observer);
            if !error.is_transient() && !is_of_all(&error) {
                return kept.lost(&*self.guarding.observer);
            }
            sleep(pause).await;
        }
    }

    /// Abandons the operation. Tried once: if it fails, the marker expires by itself.
    async fn abandon(&self, kept: &KeptMarker) {
        kept.abandons().await;
        match self.role.abandon(kept.marker()).await {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::Fenced => kept.lost(&*self.guarding.observer),
            Err(error) => {
                let operation = &kept.marker().operation;
                let (topic, group) = (operation.topic(), operation.group());
                tracing::warn!(%topic, %group, %error, "not abandoned: the next attempt waits until its marker expires");
            }
        }
    }

    /// Returns the operation of a message; `None` if it has none, and a verdict if it cannot have one.
    fn operation(&self, input: Input) -> Result<(Input, Option<Operation>), Verdict> {
        let (input, id) = match &self.settings.id {
            IdSource::Message => {
                let name = input.about.message_id();
                let id = format!("{name}-{:x}", by_hash(&input.payload, u32::MAX));
                // The id of a task may take all of the room by itself.
                let id = if id.len() > MAX_OPERATION_ID_LEN { name } else { id };
                (input, Some(Bytes::from(id)))
            }
            IdSource::Header(name) => match input.about.headers.get(name) {
                Some(value) => {
                    let id = value.clone();
                    (input, Some(id))
                }
                None => return Err(rejected(format!("no header {name:?}, which names the operation"))),
            },
            IdSource::Function(id) => {
                let Input { about, payload } = input;
                let delivery = Delivery { payload, about };
                let id = catch_unwind(AssertUnwindSafe(|| id(&delivery)));
                let id = id.map_err(|panic| Verdict::Panicked(text_of(panic)))?;
                (Input { about: delivery.about, payload: delivery.payload }, id)
            }
        };
        let Some(id) = id else { return Ok((input, None)) };
        match Operation::new(self.guarding.scope.0.clone(), self.guarding.scope.1.clone(), id) {
            Ok(operation) => Ok((input, Some(operation))),
            Err(error) => Err(rejected(error.to_string())),
        }
    }

    /// Returns a token for one begin.
    fn token(&self) -> String {
        // With a backend in this process nobody else makes names, and simulations repeat themselves with the same seed.
        let in_process = self.guarding.backend.is_in_process();
        let unique = if in_process { Uuid::from_u128(fastrand::u128(..)) } else { Uuid::new_v4() };
        unique.simple().to_string()
    }
}

/// Returns the name of the holder: that of the message, as far as there is room.
fn holder_of(about: &DeliveryMetadata) -> String {
    let mut name = about.message_id();
    let cut = (0..=MAX_HOLDER_LEN.min(name.len())).rev().find(|at| name.is_char_boundary(*at));
    name.truncate(cut.unwrap_or_default());
    name
}

fn rejected(why: String) -> Verdict {
    Verdict::Said(Outcome::dead_letter(why))
}

/// Whether an error concerns all messages, and not this one alone: rights or tables are missing, or the store was closed.
fn is_of_all(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Denied
            | ErrorKind::Unsupported
            | ErrorKind::Protocol
            | ErrorKind::NotFound
            | ErrorKind::Closed
    )
}
