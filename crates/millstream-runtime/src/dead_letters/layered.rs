//! Layers around a handler of dead letters: those of the messages, which decrypt payloads, for example.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::FutureExt;
use millstream_core::event::Observer;
use millstream_core::panics::{Panicked, decode, error_text};
use millstream_core::{BoxError, Codec, DeadLetter, Envelope, Outcome};

use super::{DeadLetterOutcome, IntoDeadLetterOutcome, Letter};
use millstream_engine::delivery::DeliveryScope;
use millstream_engine::delivery::{AttemptHistory, Delivery, DeliveryMetadata};
use millstream_engine::handler::{Answer, Layer, LetterAnswer, around};

/// Calls the handler of letters.
pub(super) async fn call<T, Fut>(
    letter: Letter<T>,
    handler: &impl Fn(Letter<T>) -> Fut,
    observer: &dyn Observer,
) -> Result<DeadLetterOutcome, BoxError>
where
    Fut: Future<Output: IntoDeadLetterOutcome>,
{
    if let Err(error) = &letter.payload
        && let Some(panicked) = Panicked::within(&**error)
    {
        observer.observe(&panicked.event());
    }
    handler(letter).await.into_outcome()
}

/// Calls the layers with the message of a letter, and inside of them the handler with the letter.
pub(super) async fn call_within<T, F, Fut>(
    layers: &[Arc<dyn Layer>],
    (dead, envelope): (DeadLetter, Envelope),
    codec: &'static dyn Codec<T>,
    handler: &Arc<F>,
    observer: &Arc<dyn Observer>,
) -> Result<DeadLetterOutcome, BoxError>
where
    T: Send + 'static,
    F: Fn(Letter<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoDeadLetterOutcome> + Send + 'static,
{
    let said = Arc::new(Mutex::new(None));
    let innermost = {
        let (said, dead, handler, observer) = (said.clone(), dead.clone(), handler.clone(), observer.clone());
        move |delivery: Delivery<Bytes>| {
            let (said, dead, handler, observer) =
                (said.clone(), dead.clone(), handler.clone(), observer.clone());
            async move {
                let letter = Letter { payload: decode(codec, &delivery.payload), dead };
                let outcome = call(letter, &*handler, &*observer).await;
                let answer = match &outcome {
                    Ok(_) => Outcome::Ack,
                    // The error itself goes to the consumer of letters: layers see its text.
                    Err(error) => Outcome::retry(error_text(&**error).0),
                };
                *said.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
                Answer::from(answer)
            }
            .boxed()
        }
    };
    let answer = around(layers, delivery(&dead, envelope), innermost).await.for_letter();
    let said = said.lock().unwrap_or_else(PoisonError::into_inner).take();
    match (said, answer) {
        (Some(Ok(outcome)), LetterAnswer::Done) => Ok(outcome),
        // The handler decides about what a layer cannot read, as about what the codec cannot.
        (None, LetterAnswer::Unreadable(error)) => {
            call(Letter { payload: Err(error), dead }, &**handler, &**observer).await
        }
        (Some(Err(error)), _) | (_, LetterAnswer::Unreadable(error) | LetterAnswer::Failed(error)) => {
            Err(error)
        }
        (_, LetterAnswer::Later(time)) => Ok(DeadLetterOutcome::LeaveFor(time)),
        // A layer says that the message is done: whether the letter may go is not for it to say.
        (None, LetterAnswer::Done) | (_, LetterAnswer::Unhandled) => Ok(DeadLetterOutcome::Leave),
    }
}

/// Returns the message of a letter as layers see it: its last attempt.
fn delivery(dead: &DeadLetter, envelope: Envelope) -> Delivery<Bytes> {
    let scope = DeliveryScope::without_right(dead.topic_partition.clone(), dead.group.clone(), 0);
    let about = DeliveryMetadata {
        scope: Arc::new(scope),
        id: dead.id,
        origin: dead.origin,
        attempt: dead.attempts.max(1),
        deliveries: 1,
        past: AttemptHistory::of(Some(dead.error.clone()), dead.history.clone()),
        key: envelope.key,
        headers: envelope.headers,
    };
    Delivery { payload: envelope.payload, about }
}
