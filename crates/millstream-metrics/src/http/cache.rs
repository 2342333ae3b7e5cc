//! Answers that are given again for a moment: many autoscalers ask the same, and each answer costs the server requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// How long an answer is given again.
const FRESH: Duration = Duration::from_secs(1);
/// The most answers that are kept: names come from whoever asks.
const KEPT: usize = 1_000;

/// What was answered last to each question. Who asks while it is being worked out waits for that.
pub(crate) struct Cache<K, T>(Mutex<BTreeMap<K, Slot<T>>>);

type Slot<T> = Arc<tokio::sync::Mutex<Option<(Instant, T)>>>;

impl<K, T> Default for Cache<K, T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Ord, T: Clone> Cache<K, T> {
    /// The answer that is there, or the one that this makes.
    pub(crate) async fn get(&self, question: K, answer: impl Future<Output = T>) -> T {
        let Some(slot) = self.slot(question) else { return answer.await };
        let mut last = slot.lock().await;
        if let Some((at, said)) = &*last
            && at.elapsed() < FRESH
        {
            return said.clone();
        }
        let said = answer.await;
        *last = Some((Instant::now(), said.clone()));
        said
    }

    /// `None` if there are too many.
    fn slot(&self, question: K) -> Option<Slot<T>> {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= KEPT && !slots.contains_key(&question) {
            // What is locked is being worked out.
            slots.retain(|_, slot| {
                let last = slot.try_lock();
                last.is_ok_and(|last| last.as_ref().is_some_and(|(at, _)| at.elapsed() < FRESH))
            });
        }
        let room = slots.len() < KEPT || slots.contains_key(&question);
        room.then(|| slots.entry(question).or_default().clone())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_many_ask_is_worked_out_once_and_again_after_a_second() {
        let (cache, made) = (Cache::default(), AtomicUsize::new(0));
        let ask = async |question: &'static str| {
            let answer = async {
                tokio::time::sleep(Duration::from_millis(300)).await;
                made.fetch_add(1, Ordering::SeqCst)
            };
            cache.get(question, answer).await
        };
        let (one, two, other) = tokio::join!(ask("a"), ask("a"), ask("b"));
        assert!(one == two && other != one, "{one} {two} {other}");
        assert_eq!(ask("a").await, one);
        tokio::time::advance(FRESH).await;
        assert_eq!((ask("a").await, made.load(Ordering::SeqCst)), (2, 3));
    }

    #[tokio::test(start_paused = true)]
    async fn names_that_somebody_makes_up_do_not_fill_the_memory() {
        let cache = Cache::default();
        for nth in 0..3 * KEPT {
            assert_eq!(cache.get(nth, async { nth }).await, nth);
        }
        assert_eq!(cache.0.lock().expect("lock").len(), KEPT);
        tokio::time::advance(FRESH).await;
        assert_eq!(cache.get(usize::MAX, async { 7 }).await, 7);
        assert_eq!(cache.0.lock().expect("lock").len(), 1);
    }
}
