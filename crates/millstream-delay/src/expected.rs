//! Expected due times, as the server last returned them, to compute how late messages are moved.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millstream_core::TopicPartition;
use millstream_core::sorted::SortedMap;
use tokio::time::Instant;

/// Next due time, by partition.
#[derive(Debug, Default)]
pub(crate) struct Expected(Mutex<SortedMap<TopicPartition, Instant>>);

impl Expected {
    /// Records a call that moved `moved` messages and returned the time until the next due one. Returns how late the
    /// first moved message was, if its due time was known. A message that was added meanwhile and was due before all
    /// others is not known here.
    pub(crate) fn answered(
        &self,
        topic_partition: &TopicPartition,
        moved: usize,
        next: Option<Duration>,
    ) -> Option<Duration> {
        let now = Instant::now();
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let due = match next {
            // A message that is due already has been due for an unknown time.
            Some(next) if !next.is_zero() => match all.get_mut(topic_partition) {
                Some(due) => Some(std::mem::replace(due, now + next)),
                None => {
                    all.insert(topic_partition.clone(), now + next);
                    None
                }
            },
            _ => all.remove(topic_partition),
        };
        due.filter(|_| moved > 0).and_then(|due| now.checked_duration_since(due))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[tokio::test(start_paused = true)]
    async fn what_was_announced_is_as_late_as_it_comes_after_that() {
        let (expected, tp) = (Expected::default(), TopicPartition::new("t".parse().expect("name"), 0));
        let other = TopicPartition::new("t".parse().expect("name"), 1);
        assert_eq!(expected.answered(&tp, 3, Some(MS(100))), None, "nobody knew of them");
        assert_eq!(expected.answered(&other, 0, None), None);
        tokio::time::advance(MS(104)).await;
        assert_eq!(expected.answered(&tp, 1, Some(Duration::ZERO)), Some(MS(4)));
        assert_eq!(expected.answered(&tp, 1, Some(MS(50))), None, "due before, and nobody said since when");
        tokio::time::advance(MS(20)).await;
        assert_eq!(expected.answered(&tp, 1, Some(MS(30))), None, "one came in between");
        tokio::time::advance(MS(30)).await;
        assert_eq!(expected.answered(&tp, 0, None), None, "somebody else has moved it");
        assert_eq!(expected.answered(&tp, 1, None), None);
    }
}
