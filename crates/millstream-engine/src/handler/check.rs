//! The check before a redelivery: asks the user's function whether the message was handled already.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use millstream_core::panics::{decode, text_of};
use millstream_core::{BoxError, Check, Codec, Outcome};
use tokio::time::Instant;

use crate::delivery::{Delivery, DeliveryMetadata};
use crate::handler::{BatchCall, Call, ErasedHandler, Handle, Input, Said, Verdict, guarded};

/// Maximum number of checks of one batch that run at once. A batch uses one permit for a handler, so it must not ask an
/// application's database for all of its messages at the same moment.
const CHECKS_AT_ONCE: usize = 16;

/// Type-erased check function.
pub type CheckCall<T> = dyn Fn(Delivery<T>) -> BoxFuture<'static, Result<Check, BoxError>> + Send + Sync;

/// Wraps a handler, so that the check is called before a message is handled again.
pub fn wrap<T: Send + 'static>(
    handler: ErasedHandler,
    codec: &'static dyn Codec<T>,
    check: Arc<CheckCall<T>>,
) -> ErasedHandler {
    let checker = Checker { codec, check };
    match handler {
        ErasedHandler::Each(call) => ErasedHandler::Each(Box::new(Arc::new(Checked { checker, call }))),
        ErasedHandler::Batch(config, call) => ErasedHandler::Batch(config, batch(checker, call)),
    }
}

/// The user's function with the codec of its payload.
struct Checker<T: 'static> {
    codec: &'static dyn Codec<T>,
    check: Arc<CheckCall<T>>,
}

/// A handler of single messages with its check.
struct Checked<T: 'static> {
    checker: Checker<T>,
    call: Box<dyn Call>,
}

/// What becomes of a message after its check.
enum CheckTurn {
    Handle(Input),
    /// The handler does not run.
    Done(Verdict),
    /// The message is no longer ours: another owner may have it already.
    NotOurs,
}

impl<T: Send + 'static> Handle for Checked<T> {
    fn declines(&self) -> bool {
        true
    }

    fn replies(&self) -> bool {
        self.call.replies()
    }

    async fn handle(&self, input: Input, timeout: Option<Duration>) -> Option<Verdict> {
        if !input.about.may_have_been_handled() {
            return self.call.one(input, timeout).await.0;
        }
        let began = Instant::now();
        match self.checker.ask(input, timeout).await {
            CheckTurn::Handle(input) => self.call.one(input, left(timeout, began)).await.0,
            CheckTurn::Done(verdict) => Some(verdict),
            CheckTurn::NotOurs => None,
        }
    }
}

/// Wraps a handler of batches: messages that are done already are left out of the batch.
fn batch<T: Send + 'static>(checker: Checker<T>, call: Box<BatchCall>) -> Box<BatchCall> {
    let shared = Arc::new((checker, call));
    let call = move |inputs: Vec<Input>, timeout| {
        let shared = shared.clone();
        Box::pin(async move {
            let (checker, call) = &*shared;
            let began = Instant::now();
            let turns = inputs.into_iter().map(|input| async {
                match input.about.may_have_been_handled() {
                    true => checker.ask(input, left(timeout, began)).await,
                    false => CheckTurn::Handle(input),
                }
            });
            let mut turns = stream::iter(turns).buffered(CHECKS_AT_ONCE);
            let (mut handled, mut said) = (Vec::new(), Vec::new());
            while let Some(turn) = turns.next().await {
                said.push(match turn {
                    CheckTurn::Handle(input) => {
                        handled.push(input);
                        None
                    }
                    CheckTurn::Done(verdict) => Some(Said::Own(verdict)),
                    // The settlement comes too late, as the message is no longer ours.
                    CheckTurn::NotOurs => Some(Said::Own(Verdict::Said(Outcome::Snooze(Duration::ZERO)))),
                });
            }
            drop(turns);
            let verdicts = match handled.is_empty() {
                true => Vec::new(),
                false => call(handled, left(timeout, began)).await,
            };
            let mut verdicts = verdicts.into_iter();
            said.into_iter().filter_map(|own| own.or_else(|| verdicts.next())).collect()
        }) as BoxFuture<'static, Vec<Said>>
    };
    Box::new(call)
}

impl<T: Send + 'static> Checker<T> {
    /// Calls the check, within the time limit of the handler.
    async fn ask(&self, input: Input, timeout: Option<Duration>) -> CheckTurn {
        let Input { about, payload } = input;
        let asked = match self.begin(&about, &payload) {
            Ok(asked) => guarded(asked, timeout).await,
            Err(verdict) => Err(verdict),
        };
        let verdict = match asked {
            // Another owner may have begun while the check ran: a handler that begins now would be the second one.
            Ok(Ok(Check::Run)) if about.scope.is_cancelled() => return CheckTurn::NotOurs,
            Ok(Ok(Check::Run)) => return CheckTurn::Handle(Input { about, payload }),
            Ok(Ok(Check::Complete)) => Verdict::Checked,
            Ok(Ok(Check::Snooze(after))) => Verdict::Said(Outcome::Snooze(after)),
            Ok(Ok(Check::DeadLetter(reason))) => Verdict::Said(Outcome::dead_letter(reason)),
            Ok(Ok(other)) => Verdict::Said(Outcome::retry(format!("unknown result of a check {other:?}"))),
            Ok(Err(error)) => Verdict::Said(Outcome::Retry(error)),
            Err(verdict) => verdict,
        };
        CheckTurn::Done(verdict)
    }

    /// Decodes the message for the check, and calls it.
    fn begin(
        &self,
        about: &DeliveryMetadata,
        payload: &Bytes,
    ) -> Result<BoxFuture<'static, Result<Check, BoxError>>, Verdict> {
        let begun = catch_unwind(AssertUnwindSafe(|| {
            let payload = decode(self.codec, payload).map_err(Verdict::Undecodable)?;
            Ok((self.check)(Delivery { payload, about: about.clone() }))
        }));
        begun.unwrap_or_else(|panic| Err(Verdict::Panicked(text_of(panic))))
    }
}

/// Returns the rest of a time limit that began at `began`.
fn left(timeout: Option<Duration>, began: Instant) -> Option<Duration> {
    timeout.map(|timeout| timeout.saturating_sub(began.elapsed()))
}
