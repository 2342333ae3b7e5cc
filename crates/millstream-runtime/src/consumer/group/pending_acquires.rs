//! Pending acquires: partitions that we should own and others still hold, and the time of the next request for each.

use std::time::Duration;

use millstream_core::Partition;
use millstream_core::sorted::{SortedMap, SortedSet};
use tokio::time::Instant;
use uuid::Uuid;

/// How long an owner is expected to release a partition at any moment.
const HAND_OVER: Duration = Duration::from_secs(5);
/// Pause between two requests during that time.
const OFTEN: Duration = Duration::from_millis(50);
/// Pause between two requests afterwards: the owner has slow handlers, or is dead.
const SELDOM: Duration = Duration::from_millis(250);
/// Minimum pause, so that a lease that is about to end is not requested in a busy loop.
const SHORTEST: Duration = Duration::from_millis(10);

/// All partitions that are missing.
#[derive(Debug, Default)]
pub(in crate::consumer) struct PendingAcquires {
    pending_acquires: SortedMap<Partition, PendingAcquire>,
    /// Partitions by the time of their next request.
    due: SortedSet<(Instant, Partition)>,
}

#[derive(Debug)]
struct PendingAcquire {
    since: Instant,
    /// Time of the next request; `None` while a reply is awaited.
    next: Option<Instant>,
    /// Kept until there is a reply: a grant whose reply was lost is granted again under the same nonce.
    nonce: String,
}

impl PendingAcquires {
    /// Starts to acquire `partition` at `next`, unless it is pending already.
    pub(in crate::consumer) fn start(&mut self, partition: Partition, now: Instant, next: Instant) {
        self.pending_acquires.get_or_insert_with(partition, || {
            self.due.insert((next, partition));
            PendingAcquire { since: now, next: Some(next), nonce: nonce() }
        });
    }

    pub(in crate::consumer) fn end(&mut self, partition: Partition) {
        if let Some(PendingAcquire { next: Some(next), .. }) = self.pending_acquires.remove(&partition) {
            self.due.remove(&(next, partition));
        }
    }

    /// Ends all acquires for which `keep` is false.
    pub(in crate::consumer) fn retain(&mut self, keep: impl Fn(Partition) -> bool) {
        let over: Vec<Partition> =
            self.pending_acquires.keys().copied().filter(|partition| !keep(*partition)).collect();
        over.into_iter().for_each(|partition| self.end(partition));
    }

    /// Returns the time of the next request.
    pub(in crate::consumer) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(next, _)| *next)
    }

    /// Takes a partition that is due now, with the nonce for the request.
    pub(in crate::consumer) fn take(&mut self, now: Instant) -> Option<(Partition, String)> {
        let (next, partition) = *self.due.first()?;
        if next > now {
            return None;
        }
        self.due.pop_first();
        let chase = self.pending_acquires.get_mut(&partition)?;
        chase.next = None;
        Some((partition, chase.nonce.clone()))
    }

    /// Records that somebody else has the partition, for another `expires_in` unless the lease is renewed.
    pub(in crate::consumer) fn held(&mut self, partition: Partition, now: Instant, expires_in: Duration) {
        self.again(partition, |chase| {
            chase.nonce = nonce();
            now + pause(now - chase.since, expires_in)
        });
    }

    /// Records that there was no reply.
    pub(in crate::consumer) fn failed(&mut self, partition: Partition, next: Instant) {
        self.again(partition, |_| next);
    }

    fn again(&mut self, partition: Partition, next: impl FnOnce(&mut PendingAcquire) -> Instant) {
        if let Some(chase) = self.pending_acquires.get_mut(&partition)
            && chase.next.is_none()
        {
            let next = next(chase);
            chase.next = Some(next);
            self.due.insert((next, partition));
        }
    }
}

fn nonce() -> String {
    Uuid::new_v4().simple().to_string()
}

/// Returns the pause before the next request for a partition that has been pending for `waited`.
fn pause(waited: Duration, expires_in: Duration) -> Duration {
    let pause = if waited < HAND_OVER { OFTEN } else { SELDOM };
    pause.min(expires_in.max(SHORTEST))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_frequent_at_first_and_exact_at_the_end_of_a_lease() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        for (waited, expires_in, want) in [
            (s(0), s(10), ms(50)),
            (s(4), s(10), ms(50)),
            (s(5), s(10), ms(250)),
            (s(60), s(10), ms(250)),
            (s(60), ms(120), ms(120)),
            (s(0), ms(30), ms(30)),
            (s(0), ms(0), ms(10)),
            (s(9), Duration::MAX, ms(250)),
        ] {
            assert_eq!(pause(waited, expires_in), want, "{waited:?}, {expires_in:?}");
        }
    }

    #[test]
    fn one_question_at_a_time_and_the_same_until_there_is_an_answer() {
        let now = Instant::now();
        let (mut pending_acquires, partition) = (PendingAcquires::default(), Partition(3));
        pending_acquires.start(partition, now, now);
        pending_acquires.start(partition, now, now + OFTEN);
        let (_, nonce) = pending_acquires.take(now).expect("due");
        assert!(
            pending_acquires.take(now + SELDOM).is_none() && pending_acquires.next().is_none(),
            "an answer is awaited"
        );
        pending_acquires.failed(partition, now + OFTEN);
        assert!(pending_acquires.take(now).is_none(), "not before its time");
        assert_eq!(pending_acquires.take(now + OFTEN), Some((partition, nonce.clone())));
        pending_acquires.held(partition, now, Duration::from_secs(9));
        assert_ne!(pending_acquires.take(now + OFTEN).expect("due").1, nonce);
        pending_acquires.retain(|_| false);
        pending_acquires.held(partition, now, Duration::from_secs(9));
        assert_eq!(pending_acquires.next(), None, "it is over");
    }
}
