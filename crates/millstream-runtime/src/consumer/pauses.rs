//! Pauses: of the whole consumer, of the whole group of a topic, or of single partitions.

use millstream_core::sorted::{SortedMap, SortedSet};
use millstream_core::{TopicName, TopicPartition};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// All pauses that are in effect.
#[derive(Clone, Debug, Default)]
struct State {
    all: Option<Until>,
    partitions: SortedSet<TopicPartition>,
    /// Topics that must not be read because of their group.
    groups: SortedMap<TopicName, Group>,
}

/// Reason why nothing of a topic is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Group {
    /// It is not known yet whether the group is paused.
    Unheard,
    Paused,
}

/// Duration of a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::consumer) enum Until {
    Resumed,
    Time(Instant),
}

/// The pauses of one consumer.
pub(in crate::consumer) struct Pauses(watch::Sender<State>);

impl Pauses {
    pub(in crate::consumer) fn new() -> Self {
        Self(watch::Sender::default())
    }

    /// Pauses the whole consumer. True if it was not paused before; otherwise only the duration is replaced.
    pub(in crate::consumer) fn pause(&self, until: Until) -> bool {
        let mut began = false;
        self.0.send_modify(|state| began = state.all.replace(until).is_none());
        began
    }

    /// Ends the pause of the whole consumer. True if it was paused. Partitions that were paused individually stay paused.
    pub(in crate::consumer) fn resume(&self) -> bool {
        self.0.send_if_modified(|state| state.all.take().is_some())
    }

    /// Pauses one partition. True if it was not paused individually before.
    pub(in crate::consumer) fn pause_partition(&self, topic_partition: &TopicPartition) -> bool {
        self.0.send_if_modified(|state| state.partitions.insert(topic_partition.clone()))
    }

    /// Ends the pause of one partition. True if it was paused individually.
    pub(in crate::consumer) fn resume_partition(&self, topic_partition: &TopicPartition) -> bool {
        self.0.send_if_modified(|state| state.partitions.remove(topic_partition))
    }

    /// Stops reading of this topic until [`record_group`](Self::record_group) has recorded whether its group is paused.
    pub(in crate::consumer) fn wait_for(&self, topic: &TopicName) {
        self.0.send_modify(|state| {
            state.groups.insert(topic.clone(), Group::Unheard);
        });
    }

    /// Records whether the whole group of a topic is paused. True if that has changed.
    pub(in crate::consumer) fn record_group(&self, topic: &TopicName, paused: bool) -> bool {
        let mut changed = false;
        self.0.send_if_modified(|state| {
            let before = state.groups.get(topic).copied();
            changed = paused != (before == Some(Group::Paused));
            if paused {
                state.groups.insert(topic.clone(), Group::Paused);
            } else {
                state.groups.remove(topic);
            }
            changed || before == Some(Group::Unheard)
        });
        changed
    }

    /// Whether the whole group of a topic is paused.
    pub(in crate::consumer) fn group(&self, topic: &TopicName) -> bool {
        self.0.borrow().groups.get(topic) == Some(&Group::Paused)
    }

    /// Whether the whole consumer is paused.
    pub(in crate::consumer) fn all(&self) -> bool {
        self.0.borrow().all.is_some()
    }

    /// Returns the partitions that are paused individually.
    pub(in crate::consumer) fn partitions(&self) -> SortedSet<TopicPartition> {
        self.0.borrow().partitions.clone()
    }

    /// Returns the pause state of one partition.
    pub(in crate::consumer) fn of(&self, topic_partition: &TopicPartition) -> Pause {
        let state = self.0.subscribe();
        let paused = state.borrow().of(topic_partition);
        Pause { state, topic_partition: topic_partition.clone(), paused }
    }

    /// Returns the pause state of all partitions, for loops that handle messages of all of them.
    pub(in crate::consumer) fn changes(&self) -> Changes {
        Changes(self.0.subscribe())
    }

    /// Ends pauses when their time is over, and calls `ended` for each.
    pub(in crate::consumer) async fn run(&self, ended: impl Fn()) {
        let mut state = self.0.subscribe();
        loop {
            let until = state.borrow_and_update().all;
            let time = async {
                match until {
                    Some(Until::Time(time)) => sleep_until(time).await,
                    _ => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                // The sender is our own, so waiting for a change never fails.
                _ = state.changed() => {}
                () = time => {
                    // Unless the pause was replaced just now.
                    let over = self.0.send_if_modified(|state| {
                        let over = state.all == until;
                        if over {
                            state.all = None;
                        }
                        over
                    });
                    if over {
                        ended();
                    }
                }
            }
        }
    }
}

impl State {
    fn of(&self, topic_partition: &TopicPartition) -> bool {
        self.all.is_some()
            || self.partitions.contains(topic_partition)
            || self.groups.contains_key(&topic_partition.topic)
    }
}

/// Pause state of one partition.
#[derive(Clone)]
pub(in crate::consumer) struct Pause {
    state: watch::Receiver<State>,
    topic_partition: TopicPartition,
    paused: bool,
}

impl Pause {
    /// Returns whether it is paused now. Costs next to nothing while nothing changes.
    pub(in crate::consumer) fn is_on(&mut self) -> bool {
        if self.state.has_changed().unwrap_or(false) {
            self.paused = self.state.borrow_and_update().of(&self.topic_partition);
        }
        self.paused
    }

    /// Waits until the pause state is `paused`.
    pub(in crate::consumer) async fn until(&mut self, paused: bool) {
        while self.is_on() != paused {
            if self.state.changed().await.is_err() {
                // The consumer is gone, and nothing changes any more.
                return std::future::pending().await;
            }
            self.paused = self.state.borrow_and_update().of(&self.topic_partition);
        }
    }
}

/// Pause state of all partitions, for loops that handle messages of all of them.
pub(in crate::consumer) struct Changes(watch::Receiver<State>);

impl Changes {
    pub(in crate::consumer) fn is_on(&mut self, topic_partition: &TopicPartition) -> bool {
        self.0.borrow_and_update().of(topic_partition)
    }

    /// Waits until the pauses differ from those of the last check.
    pub(in crate::consumer) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    fn partition(n: u32) -> TopicPartition {
        TopicPartition::new("t".parse().expect("name"), n)
    }

    #[tokio::test]
    async fn a_partition_is_paused_with_all_or_by_itself() {
        let pauses = Pauses::new();
        let (mut one, mut two) = (pauses.of(&partition(1)), pauses.of(&partition(2)));
        assert!(pauses.pause_partition(&partition(1)) && !pauses.pause_partition(&partition(1)));
        assert!(one.is_on() && !two.is_on());
        assert!(pauses.pause(Until::Resumed) && !pauses.pause(Until::Resumed));
        two.until(true).await;
        assert!(pauses.resume() && !pauses.resume());
        two.until(false).await;
        assert!(one.is_on(), "paused by itself");
        assert!(pauses.of(&partition(1)).is_on(), "also for who comes later");
        assert!(pauses.resume_partition(&partition(1)) && !pauses.resume_partition(&partition(1)));
        one.until(false).await;
    }

    #[tokio::test]
    async fn a_group_is_paused_whatever_this_consumer_says() {
        let pauses = Pauses::new();
        let (topic, other) = ("t".parse().expect("name"), "other".parse().expect("name"));
        let mut one = pauses.of(&partition(1));
        pauses.wait_for(&topic);
        one.until(true).await;
        assert!(!pauses.group(&topic), "nobody has said so");
        assert!(!pauses.record_group(&topic, false));
        one.until(false).await;
        assert!(
            pauses.record_group(&topic, true) && !pauses.record_group(&topic, true) && pauses.group(&topic)
        );
        assert!(!pauses.resume() && one.is_on(), "that is another pause");
        assert!(!pauses.record_group(&other, false) && one.is_on());
        pauses.pause(Until::Resumed);
        assert!(pauses.record_group(&topic, false) && one.is_on(), "paused here as well");
        assert!(pauses.resume() && !one.is_on());
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_at_its_time_unless_it_is_changed() {
        let pauses = Pauses::new();
        let ended = AtomicUsize::new(0);
        let work = async {
            let now = Instant::now();
            pauses.pause(Until::Time(now + Duration::from_secs(5)));
            tokio::time::sleep(Duration::from_secs(4)).await;
            pauses.pause(Until::Time(now + Duration::from_secs(9)));
            tokio::time::sleep(Duration::from_secs(4)).await;
            assert!(pauses.all());
            pauses.of(&partition(1)).until(false).await;
            assert_eq!(now.elapsed(), Duration::from_secs(9));
            assert_eq!(ended.load(Ordering::Relaxed), 1);
        };
        tokio::select! {
            biased;
            () = pauses.run(|| { ended.fetch_add(1, Ordering::Relaxed); }) => {}
            () = work => {}
        }
    }
}
