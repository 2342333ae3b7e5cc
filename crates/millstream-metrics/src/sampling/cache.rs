//! Cache of answers for a short time: many autoscalers ask for the same, and each answer costs requests to the server.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Maximum number of cached answers: the names in the keys come from clients.
const KEPT: usize = 1_000;

/// Last answer to each question. A request that arrives while the answer is being computed waits for it.
pub(crate) struct Cache<K, T> {
    slots: Mutex<BTreeMap<K, Slot<T>>>,
    /// Time for which an answer is reused.
    fresh: Duration,
}

type Slot<T> = Arc<tokio::sync::Mutex<Option<(Instant, T)>>>;

impl<K: Ord, T: Clone> Cache<K, T> {
    pub(crate) fn new(fresh: Duration) -> Self {
        Self { slots: Mutex::default(), fresh }
    }

    /// Returns the cached answer, or computes it with `answer`.
    pub(crate) async fn get(&self, question: K, answer: impl Future<Output = T>) -> T {
        let Some(slot) = self.slot(question) else { return answer.await };
        let mut last = slot.lock().await;
        if let Some((at, said)) = &*last
            && at.elapsed() < self.fresh
        {
            return said.clone();
        }
        let said = answer.await;
        *last = Some((Instant::now(), said.clone()));
        said
    }

    /// Returns the slot of a question; `None` if there are too many.
    fn slot(&self, question: K) -> Option<Slot<T>> {
        let mut slots = self.slots.lock().unwrap_or_else(PoisonError::into_inner);
        if slots.len() >= KEPT && !slots.contains_key(&question) {
            // A locked slot is removed too: its answer is still being computed, and is returned to the requests that
            // wait for it.
            slots.retain(|_, slot| {
                let last = slot.try_lock();
                last.is_ok_and(|last| last.as_ref().is_some_and(|(at, _)| at.elapsed() < self.fresh))
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

    const FRESH: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn what_many_ask_is_worked_out_once_and_again_after_a_second() {
        let (cache, made) = (Cache::new(FRESH), AtomicUsize::new(0));
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
        let cache = Cache::new(FRESH);
        for nth in 0..3 * KEPT {
            assert_eq!(cache.get(nth, async { nth }).await, nth);
        }
        assert_eq!(cache.slots.lock().expect("lock").len(), KEPT);
        tokio::time::advance(FRESH).await;
        assert_eq!(cache.get(usize::MAX, async { 7 }).await, 7);
        assert_eq!(cache.slots.lock().expect("lock").len(), 1);
    }
}
