//! Timers of the messages of a partition that wait in place for their next attempt.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::time::Duration;

use millstream_core::Due;
use millstream_core::log::Receipt;
use tokio::time::Instant;

use crate::consumer::partition::dispatch::key_queues::KeyQueue;

/// Messages that wait in place.
///
/// A wait begins when its note is written. From then on the server counts it as well: an attempt is never forgotten, and
/// never made early by the server's clock.
#[derive(Debug, Default)]
pub(in crate::consumer) struct RetryTimers {
    waiting: HashMap<Receipt, RetryTimer>,
    timers: BinaryHeap<Reverse<(Instant, Receipt)>>,
}

#[derive(Debug)]
struct RetryTimer {
    after: Duration,
    /// `None` until the note is written.
    due: Option<Instant>,
    /// The queue that waits for it.
    queue: Option<KeyQueue>,
}

impl RetryTimers {
    /// Adds a wait of `after`, counted from the moment that the note is written; at most [`Due::FAR`], as on the server.
    pub(in crate::consumer) fn after_note(&mut self, receipt: Receipt, after: Duration) {
        let after = after.min(Due::FAR);
        self.waiting.insert(receipt, RetryTimer { after, due: None, queue: None });
    }

    /// Adds a wait of `left` for a message whose note was read.
    pub(in crate::consumer) fn for_rest(&mut self, receipt: Receipt, left: Duration, now: Instant) {
        self.after_note(receipt, left);
        self.written(receipt, now);
    }

    /// Starts the timer: the note is written.
    pub(in crate::consumer) fn written(&mut self, receipt: Receipt, now: Instant) {
        if let Some(wait) = self.waiting.get_mut(&receipt)
            && wait.due.is_none()
        {
            let due = now + wait.after;
            wait.due = Some(due);
            self.timers.push(Reverse((due, receipt)));
        }
    }

    /// Whether the message need not wait (any more). If it must wait, the caller blocks its queue: see
    /// [`blocks`](Self::blocks).
    pub(in crate::consumer) fn is_over(&mut self, receipt: Receipt, now: impl FnOnce() -> Instant) -> bool {
        let over = match self.waiting.get(&receipt) {
            None => return true,
            Some(wait) => wait.due.is_some_and(|due| due <= now()),
        };
        if over {
            self.waiting.remove(&receipt);
        }
        over
    }

    /// Records that this queue is blocked by the message.
    pub(in crate::consumer) fn blocks(&mut self, receipt: Receipt, queue: KeyQueue) {
        if let Some(wait) = self.waiting.get_mut(&receipt) {
            wait.queue = Some(queue);
        }
    }

    /// Ends the wait of a message now. Returns the queue that waits for it.
    pub(in crate::consumer) fn end(&mut self, receipt: Receipt) -> Option<KeyQueue> {
        self.waiting.remove(&receipt)?.queue
    }

    /// Returns the end of the next wait.
    pub(in crate::consumer) fn next(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((due, _))| *due)
    }

    /// Returns a queue whose wait has ended, each once.
    pub(in crate::consumer) fn ended(&mut self, now: Instant) -> Option<KeyQueue> {
        while self.next()? <= now {
            let Reverse((_, receipt)) = self.timers.pop()?;
            if let Some(queue) = self.waiting.get_mut(&receipt).and_then(|wait| wait.queue.take()) {
                return Some(queue);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::consumer::partition::dispatch::key_queues::{Grouping, KeyQueues, Owner};
    use crate::consumer::partition::dispatch::ready::Ready;
    use millstream_core::MessageId;
    use millstream_core::log::Source;

    const S: fn(u64) -> Duration = Duration::from_secs;

    fn receipt(ms: u64) -> Receipt {
        Receipt::new(Source::Log, MessageId::new(ms, 0))
    }

    #[test]
    fn the_longest_wait_is_that_of_the_server() {
        let mut timers = RetryTimers::default();
        let start = Instant::now();
        timers.for_rest(receipt(1), Duration::MAX, start);
        assert!(!timers.is_over(receipt(1), || start + S(60)));
        assert!(timers.is_over(receipt(1), || start + Due::FAR));
    }

    #[test]
    fn a_wait_counts_from_the_note() {
        let mut queues = KeyQueues::new(Grouping::Key, 1, Ready::default());
        queues.push(None, Owner::default(), 0, ());
        let (ticket, ()) = queues.next().expect("one");
        let queue = queues.block(ticket, ()).expect("a queue");
        let mut timers = RetryTimers::default();
        let start = Instant::now();
        timers.after_note(receipt(1), S(5));
        timers.blocks(receipt(1), queue);
        assert!(timers.next().is_none() && !timers.is_over(receipt(1), || start + S(60)));
        timers.written(receipt(1), start + S(2));
        timers.written(receipt(1), start + S(4));
        assert_eq!(timers.next(), Some(start + S(7)));
        assert!(!timers.is_over(receipt(1), || start + S(6)));
        assert_eq!(timers.ended(start + S(6)), None);
        assert_eq!(timers.ended(start + S(7)), Some(queue));
        assert_eq!(timers.ended(start + S(7)), None, "once");
        assert!(timers.is_over(receipt(1), || start + S(7)));
        assert!(timers.waiting.is_empty());
    }
}
