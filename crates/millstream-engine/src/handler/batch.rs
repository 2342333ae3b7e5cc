//! Batch handlers: several messages of one partition at once.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::Problems;
use millstream_core::event::Ignore;
use millstream_core::panics::{decode, discard};
use millstream_core::{BatchOutcome, Codec, IntoBatchOutcome, Outcome};

use crate::delivery::{Deliverable, Delivery};
use crate::handler::{ErasedHandler, Input, Said, Verdict, guarded, not_a_task};

/// Maximum size of a batch, and how long it may take to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchConfig {
    /// Maximum number of messages in one batch. Default: 100. It is bounded by
    /// `prefetch` of a consumer as well, and by the `concurrency` of a delay queue's worker.
    pub size: usize,
    /// How long the first message waits for others. Default: 100 ms. Zero takes only what is available.
    pub wait: Duration,
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self { size: 100, wait: Duration::from_millis(100) }
    }
}

impl From<(usize, Duration)> for BatchConfig {
    fn from((size, wait): (usize, Duration)) -> Self {
        Self { size, wait }
    }
}

impl BatchConfig {
    /// Adds what is wrong with it to the problems.
    pub fn check(&self, problems: &mut Problems) {
        problems.require((1..=10_000).contains(&self.size), || {
            format!("batch size is {}, 1 to 10000 are allowed", self.size)
        });
        problems.require(self.wait <= Duration::from_secs(3600), || {
            format!("batch wait is {:?}, at most an hour is allowed", self.wait)
        });
    }
}

/// Messages of one partition, in partition order. Derefs to a slice, and can be iterated.
pub struct Batch<T>(Vec<Delivery<T>>);

impl<T> Batch<T> {
    /// Returns the messages.
    #[must_use]
    pub fn into_inner(self) -> Vec<Delivery<T>> {
        self.0
    }
}

impl<T> Deref for Batch<T> {
    type Target = [Delivery<T>];

    fn deref(&self) -> &[Delivery<T>] {
        &self.0
    }
}

impl<T> IntoIterator for Batch<T> {
    type Item = Delivery<T>;
    type IntoIter = std::vec::IntoIter<Delivery<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

/// A part of a batch is one, too.
impl<T> FromIterator<Delivery<T>> for Batch<T> {
    fn from_iter<I: IntoIterator<Item = Delivery<T>>>(deliveries: I) -> Self {
        Self(deliveries.into_iter().collect())
    }
}

impl<'a, T> IntoIterator for &'a Batch<T> {
    type Item = &'a Delivery<T>;
    type IntoIter = std::slice::Iter<'a, Delivery<T>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<T> fmt::Debug for Batch<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

/// Erases the payload type: decodes each message, calls the handler with the readable ones, and catches panics of both.
pub fn erase<D, B, F, Fut>(
    codec: &'static dyn Codec<D::Payload>,
    config: BatchConfig,
    handler: F,
) -> ErasedHandler
where
    D: Deliverable,
    B: FromIterator<D> + Send + 'static,
    F: Fn(B) -> Fut + Send + Sync + 'static,
    Fut: Future + Send + 'static,
    Fut::Output: IntoBatchOutcome,
{
    let handler = Arc::new(handler);
    let call = move |inputs: Vec<Input>, timeout| {
        let handler = handler.clone();
        Box::pin(async move {
            let mut batch = Vec::with_capacity(inputs.len());
            let mut said: Vec<Option<Said>> = Vec::with_capacity(inputs.len());
            for Input { about, payload } in inputs {
                let decoded = decode(codec, &payload).map_err(Verdict::Undecodable);
                let delivery =
                    decoded.and_then(|payload| D::of(Delivery { payload, about }).ok_or_else(not_a_task));
                said.push(match delivery {
                    Ok(delivery) => {
                        batch.push(delivery);
                        None
                    }
                    Err(verdict) => Some(Said::Own(verdict)),
                });
            }
            let messages = batch.len();
            if messages == 0 {
                return said.into_iter().flatten().collect();
            }
            let handle = async move { handler(batch.into_iter().collect()).await.into_batch_outcome() };
            let mut handled = spread(guarded(handle, timeout).await, messages).into_iter();
            said.into_iter().filter_map(|own| own.or_else(|| handled.next())).collect()
        }) as futures_util::future::BoxFuture<'static, Vec<Said>>
    };
    ErasedHandler::Batch(config, Box::new(call))
}

/// Converts the outcome of a batch into one outcome per message.
fn spread(handled: std::result::Result<BatchOutcome, Verdict>, messages: usize) -> Vec<Said> {
    let own = |outcome| Said::Own(Verdict::Said(outcome));
    let for_all = match handled {
        Ok(BatchOutcome::Each(each)) if each.len() == messages => return each.into_iter().map(own).collect(),
        Ok(BatchOutcome::Except { own: some, others }) if some.len() == messages => {
            let others = Arc::new(Verdict::Said(others));
            let said = |outcome: Option<_>| outcome.map_or_else(|| Said::Shared(others.clone()), own);
            return some.into_iter().map(said).collect();
        }
        Ok(BatchOutcome::Each(each)) => {
            let outcomes = each.len();
            discard_each(each.into_iter());
            wrong_number(outcomes, messages)
        }
        Ok(BatchOutcome::Except { own: some, others }) => {
            let outcomes = some.len();
            discard_each(some.into_iter().flatten().chain([others]));
            wrong_number(outcomes, messages)
        }
        Ok(BatchOutcome::All(outcome)) => Verdict::Said(outcome),
        Err(verdict) => verdict,
    };
    let shared = Arc::new(for_all);
    std::iter::repeat_with(|| Said::Shared(shared.clone())).take(messages).collect()
}

/// Drops outcomes that nobody reads one by one. The errors in them are values of user code: if two dropped together both
/// panicked, the second panic would abort the process.
fn discard_each(outcomes: impl Iterator<Item = Outcome>) {
    outcomes.for_each(|outcome| discard(outcome, &Ignore));
}

fn wrong_number(outcomes: usize, messages: usize) -> Verdict {
    Verdict::Said(Outcome::retry(format!("the handler gave {outcomes} outcomes for {messages} messages")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_messages_have_an_outcome_of_their_own() {
        let except = |own| BatchOutcome::Except { own, others: Outcome::retry("others") };
        let texts = |said: Vec<Said>| said.iter().map(|it| format!("{:?}", it.verdict())).collect::<Vec<_>>();
        let some = vec![None, Some(Outcome::dead_letter("own")), None];
        let said = texts(spread(Ok(except(some)), 3));
        assert_eq!(said, ["Said(Retry(others))", "Said(DeadLetter(own))", "Said(Retry(others))"]);
        let said = texts(spread(Ok(except(vec![None])), 2));
        assert_eq!(said, ["Said(Retry(the handler gave 1 outcomes for 2 messages))"; 2]);
    }
}
