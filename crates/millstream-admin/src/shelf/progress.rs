//! Reports operations on dead letters to observers.

use std::fmt;
use std::sync::Arc;

use millstream_core::event::{Event, LetterWork, Observer};
use millstream_core::{GroupName, TopicPartition};

/// Emits events about one group's dead letters.
#[derive(Clone)]
pub(crate) struct ProgressSink {
    observer: Arc<dyn Observer>,
    group: GroupName,
}

/// Result of an operation in one partition.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Came {
    pub(crate) done: usize,
    pub(crate) passed_over: usize,
    pub(crate) refused: usize,
}

impl ProgressSink {
    pub(crate) fn new(observer: &Arc<dyn Observer>, group: &GroupName) -> Self {
        Self { observer: observer.clone(), group: group.clone() }
    }

    /// Emits an event, unless all counts are zero.
    pub(crate) fn tell(&self, topic_partition: &TopicPartition, work: LetterWork, came: Came) {
        let Came { done, passed_over, refused } = came;
        if done + passed_over + refused > 0 {
            let group = &self.group;
            self.observer.observe(&Event::DeadLetters {
                topic_partition,
                group,
                work,
                done,
                passed_over,
                refused,
            });
        }
    }

    /// Emits an event for letters that were dropped, if there are any.
    pub(crate) fn dropped(&self, topic_partition: &TopicPartition, aged: u64, excess: u64) {
        if aged + excess > 0 {
            let group = &self.group;
            self.observer.observe(&Event::DeadLettersDropped { topic_partition, group, aged, excess });
        }
    }

    /// Emits an event for an operation that handled `done` of `asked` letters.
    pub(crate) fn of(&self, topic_partition: &TopicPartition, work: LetterWork, done: usize, asked: usize) {
        let passed_over = asked.saturating_sub(done);
        self.tell(topic_partition, work, Came { done, passed_over, refused: 0 });
    }
}

impl fmt::Debug for ProgressSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProgressSink").field("group", &self.group).finish_non_exhaustive()
    }
}
