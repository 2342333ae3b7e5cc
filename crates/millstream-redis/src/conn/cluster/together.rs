//! Requests to several servers at once.

use std::future::poll_fn;
use std::task::Poll;

use futures_util::future::BoxFuture;

/// Awaits all futures, and returns their results in the same order. For a few, one for each server: each wake-up polls all that have
/// not ended. `join_all` is 3000 lines of code for each type, most of them for many futures.
pub(crate) async fn together<T>(mut futures: Vec<BoxFuture<'_, T>>) -> Vec<T> {
    let mut results: Vec<Option<T>> = futures.iter().map(|_| None).collect();
    poll_fn(|context| {
        let mut poll = Poll::Ready(());
        for (future, result) in futures.iter_mut().zip(&mut results) {
            if result.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(ended) => *result = Some(ended),
                    Poll::Pending => poll = Poll::Pending,
                }
            }
        }
        poll
    })
    .await;
    results.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::time::{Instant, sleep};

    use super::together;

    #[tokio::test(start_paused = true)]
    async fn all_run_at_once_and_results_keep_their_order() {
        let started = Instant::now();
        let wait = |ms| sleep(Duration::from_millis(ms)).map(move |()| ms).boxed();
        assert_eq!(together(vec![wait(3), wait(1), wait(2), wait(0)]).await, [3, 1, 2, 0]);
        assert_eq!(started.elapsed(), Duration::from_millis(3));
    }
}
