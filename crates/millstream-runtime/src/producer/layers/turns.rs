//! Order of the messages of a partition, some of which wait for a layer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::join_all;
use millstream_core::Partition;
use millstream_core::error::Result;
use tokio::sync::oneshot;

use crate::producer::batcher::closed;

/// The last turn of each partition.
#[derive(Default)]
pub(super) struct Turns {
    last: Mutex<Last>,
    open: Arc<AtomicUsize>,
}

#[derive(Default)]
struct Last {
    closed: bool,
    of: HashMap<Partition, Before>,
}

/// End of a turn. If that one ended before its own predecessor, it passes that on.
struct Before(oneshot::Receiver<Option<Before>>);

/// Turn of one message in its partition. It ends when it is dropped, and the next one may go on when all earlier ones have ended.
pub(super) struct Turn {
    before: Option<Before>,
    done: Option<oneshot::Sender<Option<Before>>>,
    open: Arc<AtomicUsize>,
}

impl Turns {
    /// Whether no turn is open: the next message has nothing to wait for.
    pub(super) fn is_free(&self) -> bool {
        self.open.load(Ordering::Acquire) == 0
    }

    /// Takes the next turn of a partition.
    ///
    /// # Errors
    /// `Closed`.
    pub(super) fn take(&self, partition: Partition) -> Result<Turn> {
        let mut last = self.last();
        if last.closed {
            return Err(closed());
        }
        Ok(self.next(&mut last, partition))
    }

    pub(super) fn close(&self) {
        self.last().closed = true;
    }

    /// Waits for the end of all turns that were taken.
    pub(super) async fn flush(&self) {
        let turns: Vec<_> = {
            let mut last = self.last();
            let partitions: Vec<_> = last.of.keys().copied().collect();
            partitions.into_iter().map(|partition| self.next(&mut last, partition)).collect()
        };
        // Each ends with its own predecessors, so that no partition waits for another one.
        join_all(turns.into_iter().map(|mut turn| async move { turn.wait().await }.boxed())).await;
    }

    fn next(&self, last: &mut Last, partition: Partition) -> Turn {
        let (done, end) = oneshot::channel();
        self.open.fetch_add(1, Ordering::AcqRel);
        let before = last.of.insert(partition, Before(end));
        Turn { before, done: Some(done), open: self.open.clone() }
    }

    fn last(&self) -> MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Waits for the end of all earlier turns. Dropping the future loses nothing.
    pub(super) async fn wait(&mut self) {
        while let Some(Before(end)) = &mut self.before {
            self.before = end.await.ok().flatten();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Ended predecessors are not passed on: a row of turns that fail one after the other would grow without an end.
        while let Some(Before(end)) = &mut self.before {
            match end.try_recv() {
                Ok(earlier) => self.before = earlier,
                Err(oneshot::error::TryRecvError::Closed) => self.before = None,
                Err(oneshot::error::TryRecvError::Empty) => break,
            }
        }
        if let Some(done) = self.done.take() {
            // Nobody waits for the last turn.
            let _ = done.send(self.before.take());
        }
        self.open.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    const P: Partition = Partition(0);

    #[test]
    fn turns_of_a_partition_go_on_in_their_order_whatever_ends_first() {
        let turns = Turns::default();
        let mut taken: Vec<_> = (0..4).map(|_| turns.take(P).expect("a turn")).collect();
        let mut other = turns.take(Partition(1)).expect("a turn");
        assert!(other.wait().now_or_never().is_some(), "another partition");
        let (mut last, first) = (taken.pop().expect("a turn"), taken.remove(0));
        // Those between fail before the first one ends.
        drop(taken);
        assert!(last.wait().now_or_never().is_none(), "the first one has not ended");
        drop(first);
        assert!(last.wait().now_or_never().is_some());
        drop((last, other));
        assert!(turns.is_free());
    }

    #[test]
    fn a_flush_waits_for_what_was_taken_and_holds_nothing_back() {
        let turns = Turns::default();
        let (first, mut second) = (turns.take(P).expect("a turn"), turns.take(P).expect("a turn"));
        let mut flush = Box::pin(turns.flush());
        assert!(flush.as_mut().now_or_never().is_none());
        let mut later = turns.take(P).expect("a turn");
        drop(first);
        assert!(second.wait().now_or_never().is_some());
        assert!(flush.as_mut().now_or_never().is_none());
        drop(second);
        assert!(flush.now_or_never().is_some());
        assert!(later.wait().now_or_never().is_some());
        turns.close();
        assert!(turns.take(P).is_err());
    }

    #[test]
    fn turns_that_fail_in_a_row_make_no_chain() {
        let turns = Turns::default();
        let first = turns.take(P).expect("a turn");
        for _ in 0..1_000_000 {
            drop(turns.take(P).expect("a turn"));
        }
        // A chain would be dropped by recursion, and overflow the stack.
        let mut last = turns.take(P).expect("a turn");
        assert!(last.wait().now_or_never().is_none());
        drop(first);
        assert!(last.wait().now_or_never().is_some());
    }
}
