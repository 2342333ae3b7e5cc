//! A dead letter as a handler receives it, and handlers of letters with the payload type erased.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use millstream_core::event::Observer;
use millstream_core::panics::{Panicked, decode, text_of};
use millstream_core::{
    BoxError, Codec, DeadLetter, Delivered, Envelope, GroupName, Headers, Limits, MessageId, Outcome,
    TopicPartition,
};
use tokio_util::sync::CancellationToken;

use super::{Call, Handle, Input, Layer, Verdict, guarded, within};
use crate::delivery::{AttemptHistory, Deliverable, Delivery, DeliveryMetadata, DeliveryScope};
use crate::letter::{DeadLetterOutcome, IntoDeadLetterOutcome, LetterFacts};

/// A dead letter as a handler receives it.
pub struct Letter<T> {
    /// The payload, or the error of decoding it: undecodable messages become dead letters, too.
    pub payload: Result<T, BoxError>,
    /// The letter, with its original entry byte for byte. [`DeadLetter::envelope`] returns key and headers.
    pub dead: DeadLetter,
    pub(crate) about: DeliveryMetadata,
}

/// Without the payload: it may be a secret.
impl<T> fmt::Debug for Letter<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Letter")
            .field("is_decoded", &self.payload.is_ok())
            .field("dead", &self.dead)
            .finish_non_exhaustive()
    }
}

impl<T: Send + 'static> Deliverable for Letter<T> {
    type Payload = Result<T, BoxError>;

    fn of(delivery: Delivery<Self::Payload>) -> Option<Self> {
        let dead = delivery.about.scope.letter()?.dead.clone();
        Some(Self { payload: delivery.payload, dead, about: delivery.about })
    }

    fn into_delivery(self) -> Delivery<Self::Payload> {
        Delivery { payload: self.payload, about: self.about }
    }
}

impl<T> Letter<T> {
    /// Lets no message or letter of any process begin for this time that comes under a rate limit with a key of this one: see
    /// [`Delivery::close_rates`].
    pub fn close_rates(&self, time: Duration) {
        self.about.scope.close_rates(time);
    }

    /// Says how many tokens of this rate limit the letter took in fact: see [`Delivery::correct_cost`].
    pub fn correct_cost(&self, limit: &str, tokens: u32) -> bool {
        self.about.scope.correct_cost(limit, tokens)
    }
}

/// For stores that commit effects and markers together. The operation of a letter is that of its message: what was done for the message
/// is not done for the letter again.
impl<T> Delivered for Letter<T> {
    fn topic_partition(&self) -> &TopicPartition {
        &self.dead.topic_partition
    }

    fn group(&self) -> &GroupName {
        &self.dead.group
    }

    fn origin(&self) -> MessageId {
        self.dead.origin
    }

    fn epoch(&self) -> u64 {
        0
    }

    fn key(&self) -> Option<&Bytes> {
        self.about.key.as_ref()
    }

    fn headers(&self) -> &Headers {
        &self.about.headers
    }
}

/// Returns a letter as its handler gets it. Its handler may not begin once its claim is `cancelled`, or `stop` is.
#[must_use]
pub fn input(
    dead: DeadLetter,
    cancelled: CancellationToken,
    stop: CancellationToken,
) -> (Input, Arc<LetterFacts>) {
    let (envelope, unreadable) = match dead.envelope(&Limits::NONE) {
        Ok(envelope) => (envelope, None),
        Err(error) => (Envelope::default(), Some(error.into())),
    };
    let (topic_partition, group) = (dead.topic_partition.clone(), dead.group.clone());
    let (id, origin, attempt) = (dead.id, dead.origin, dead.attempts.max(1));
    let past = AttemptHistory::of(Some(dead.error.clone()), dead.history.clone());
    let facts = Arc::new(LetterFacts::new(dead, unreadable));
    let place = (topic_partition, group);
    let scope = Arc::new(DeliveryScope::of_letter(place, facts.clone(), cancelled, stop));
    let Envelope { key, headers, payload } = envelope;
    let reports = None;
    let about = DeliveryMetadata { scope, id, origin, attempt, deliveries: 1, past, key, headers, reports };
    (Input { about, payload }, facts)
}

/// Handler of letters of any payload type. Cloned, it is the same.
struct TypedLetter<T: 'static, F> {
    codec: &'static dyn Codec<T>,
    handler: F,
    observer: Arc<dyn Observer>,
}

/// Erases the payload type of a handler of letters, and puts layers around it. Returns it twice, to be called with a guard of operations
/// and without.
pub fn erase_letters<T, F, Fut>(
    codec: &'static dyn Codec<T>,
    observer: Arc<dyn Observer>,
    layers: &[Arc<dyn Layer>],
    handler: F,
) -> (Box<dyn Call>, Box<dyn Call>)
where
    T: Send + 'static,
    F: Fn(Letter<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoDeadLetterOutcome> + Send + 'static,
{
    let typed = Arc::new(TypedLetter { codec, handler, observer });
    let layered = layered(layers, Box::new(typed.clone()), Box::new(typed));
    (Box::new(layered.clone()), Box::new(layered))
}

/// A handler of letters with its layers, and without them.
struct LayeredLetter {
    layered: Box<dyn Call>,
    inner: Box<dyn Call>,
}

/// Not generic: compiled once.
fn layered(layers: &[Arc<dyn Layer>], outer: Box<dyn Call>, inner: Box<dyn Call>) -> Arc<LayeredLetter> {
    let layered = within(outer, layers);
    Arc::new(LayeredLetter { layered, inner })
}

impl Handle for LayeredLetter {
    async fn handle(&self, input: Input, timeout: Option<Duration>) -> Option<Verdict> {
        let facts = input.about.scope.letter()?.clone();
        // An entry that is no message has nothing for layers.
        if facts.unreadable().is_some() {
            return self.inner.one(input, timeout).await.0;
        }
        let about = input.about.clone();
        let verdict = self.layered.one(input, timeout).await.0?;
        let decided = facts.decided.lock().unwrap_or_else(PoisonError::into_inner).take();
        Some(match (decided, verdict) {
            // A layer may have made an answer of its own of the handler's.
            (Some(outcome), Verdict::Said(Outcome::Ack | Outcome::Reply(_))) => {
                Verdict::Letter(Box::new(outcome))
            }
            // The handler decides about what a layer cannot read, as about what the codec cannot.
            (None, Verdict::Undecodable(error) | Verdict::Said(Outcome::DeadLetter(error)))
                if !facts.is_called() =>
            {
                *facts.unreadable() = Some(error);
                return self.inner.one(Input { about, payload: Bytes::new() }, timeout).await.0;
            }
            // A layer says that the message is done: whether the letter may go is not for it to say.
            (None, Verdict::Said(Outcome::Ack | Outcome::Reply(_))) => {
                Verdict::Letter(Box::new(DeadLetterOutcome::Leave))
            }
            (_, verdict) => verdict,
        })
    }
}

impl<T, F, Fut> Handle for TypedLetter<T, F>
where
    T: Send + 'static,
    F: Fn(Letter<T>) -> Fut + Send + Sync + 'static,
    Fut: Future<Output: IntoDeadLetterOutcome> + Send + 'static,
{
    async fn handle(&self, input: Input, timeout: Option<Duration>) -> Option<Verdict> {
        let Input { about, payload } = input;
        let facts = about.scope.letter()?.clone();
        facts.called.store(true, Ordering::Relaxed);
        let refused = facts.unreadable().take();
        let begun = catch_unwind(AssertUnwindSafe(|| {
            let payload = refused.map_or_else(|| decode(self.codec, &payload), Err);
            if let Err(error) = &payload
                && let Some(panicked) = Panicked::within(&**error)
            {
                self.observer.observe(&panicked.event());
            }
            (self.handler)(Letter { payload, dead: facts.dead.clone(), about })
        }));
        let handler = match begun {
            Ok(handler) => handler,
            Err(panic) => return Some(Verdict::Panicked(text_of(panic))),
        };
        Some(match guarded(async { handler.await.into_outcome() }, timeout).await {
            Ok(Ok(outcome)) => {
                *facts.decided.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome.clone());
                Verdict::Letter(Box::new(outcome))
            }
            Ok(Err(error)) => Verdict::Said(Outcome::Retry(error)),
            Err(failed) => failed,
        })
    }
}
