//! What happens to a consumer, as a stream of owned values.

use std::fmt;
use std::sync::Arc;

use millstream_core::event::{Event, Observer};
use millstream_core::{ErrorKind, MemberId, MessageId, TopicName, TopicPartition};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::broadcast::{Receiver, Sender};
use tokio_util::sync::CancellationToken;

/// How many events are kept for those who are slow to take them.
const KEPT: usize = 1_024;

/// Something that happened to a consumer. What happens to messages an [`Observer`] is told.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsumerEvent {
    /// A partition is ours.
    Assigned {
        /// Which partition.
        topic_partition: TopicPartition,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// A partition was given back in an orderly way.
    Revoked {
        /// Which partition.
        topic_partition: TopicPartition,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// A lease ran out or was taken: what is in flight will be handled again by the next owner.
    LeaseLost {
        /// Which partition.
        topic_partition: TopicPartition,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// It is known what this instance should own now.
    Rebalanced {
        /// Of which topic.
        topic: TopicName,
        /// How many members the group has.
        members: u32,
        /// How many partitions this one should own.
        partitions: usize,
    },
    /// Another process has taken our member id: this one stops.
    MemberFenced {
        /// Of which topic.
        topic: TopicName,
        /// The id.
        member: MemberId,
    },
    /// The topic or its group was deleted: this consumer stops.
    Deleted {
        /// Which topic.
        topic: TopicName,
        /// What the backend said.
        error: String,
    },
    /// Somebody paused the whole group of a topic.
    GroupPaused {
        /// Which topic.
        topic: TopicName,
    },
    /// The pause of the whole group is over.
    GroupResumed {
        /// Of which topic.
        topic: TopicName,
    },
    /// The group was gone from a partition and has been created again.
    GroupRestored {
        /// In which partition.
        topic_partition: TopicPartition,
        /// Reading goes on above this id.
        after: MessageId,
    },
    /// The server lost the end of what it had told us.
    TailLost {
        /// In which partition.
        topic_partition: TopicPartition,
        /// Where we stood.
        from: MessageId,
        /// Where the server stands.
        to: MessageId,
    },
    /// A partition was taken over from an owner that ended without giving it back.
    TakenOver {
        /// Which partition.
        topic_partition: TopicPartition,
        /// How many owners have ended in a row.
        ends: usize,
        /// How many messages were pending.
        messages: usize,
        /// How many of them are poison candidates.
        candidates: usize,
    },
    /// A loop met an error, and tries again after a pause. Told for every try.
    Failing {
        /// What was tried: "fetch", "settle", …
        operation: &'static str,
        /// For which partition, if it is for one.
        topic_partition: Option<TopicPartition>,
        /// What kind of error it was.
        kind: ErrorKind,
        /// What it said.
        error: String,
    },
    /// A loop that had been failing works again.
    Recovered {
        /// What works again.
        operation: &'static str,
        /// For which partition, if it is for one.
        topic_partition: Option<TopicPartition>,
    },
    /// Somebody paused the consumer, or one partition.
    Paused {
        /// Which partition; `None` for everything.
        topic_partition: Option<TopicPartition>,
    },
    /// The pause is over.
    Resumed {
        /// Which partition; `None` for everything but what is paused by itself.
        topic_partition: Option<TopicPartition>,
    },
    /// A message over which processes died is given up.
    Crashed {
        /// From which partition.
        topic_partition: TopicPartition,
        /// Its id in the log.
        origin: MessageId,
        /// How many processes died.
        crashes: u32,
    },
    /// The consumer has ended. Nothing comes after this.
    Ended,
    /// So many events were missed: they came faster than they were taken.
    Lagged(u64),
}

impl ConsumerEvent {
    /// `None` for what happens to messages.
    fn of(event: &Event<'_>) -> Option<Self> {
        Some(match *event {
            Event::Assigned { topic_partition, epoch, .. } => {
                Self::Assigned { topic_partition: topic_partition.clone(), epoch }
            }
            Event::Revoked { topic_partition, epoch, .. } => {
                Self::Revoked { topic_partition: topic_partition.clone(), epoch }
            }
            Event::LeaseLost { topic_partition, epoch, .. } => {
                Self::LeaseLost { topic_partition: topic_partition.clone(), epoch }
            }
            Event::Rebalanced { topic, members, partitions, .. } => {
                Self::Rebalanced { topic: topic.clone(), members, partitions }
            }
            Event::MemberFenced { topic, member, .. } => {
                Self::MemberFenced { topic: topic.clone(), member: member.clone() }
            }
            Event::Deleted { topic, error, .. } => {
                Self::Deleted { topic: topic.clone(), error: error.to_string() }
            }
            Event::GroupPaused { topic, .. } => Self::GroupPaused { topic: topic.clone() },
            Event::GroupResumed { topic, .. } => Self::GroupResumed { topic: topic.clone() },
            Event::GroupRestored { topic_partition, after, .. } => {
                Self::GroupRestored { topic_partition: topic_partition.clone(), after }
            }
            Event::TailLost { topic_partition, from, to, .. } => {
                Self::TailLost { topic_partition: topic_partition.clone(), from, to }
            }
            Event::Failing { operation, topic_partition, error } => Self::Failing {
                operation,
                topic_partition: topic_partition.cloned(),
                kind: error.kind(),
                error: error.to_string(),
            },
            Event::Recovered { operation, topic_partition } => {
                Self::Recovered { operation, topic_partition: topic_partition.cloned() }
            }
            Event::Paused { topic_partition, .. } => {
                Self::Paused { topic_partition: topic_partition.cloned() }
            }
            Event::Resumed { topic_partition, .. } => {
                Self::Resumed { topic_partition: topic_partition.cloned() }
            }
            Event::TakenOver { topic_partition, ends, messages, candidates, .. } => {
                Self::TakenOver { topic_partition: topic_partition.clone(), ends, messages, candidates }
            }
            Event::Crashed { topic_partition, origin, crashes, .. } => {
                Self::Crashed { topic_partition: topic_partition.clone(), origin, crashes }
            }
            _ => return None,
        })
    }
}

/// Tells the user's observer of everything, and whoever listens of what happens to the consumer.
pub(in crate::consumer) struct EventSink {
    observer: Arc<dyn Observer>,
    events: Sender<ConsumerEvent>,
}

impl EventSink {
    pub(in crate::consumer) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { observer, events: Sender::new(KEPT) }
    }

    /// The last event of all.
    pub(in crate::consumer) fn end(&self) {
        // Nobody has to listen.
        let _ = self.events.send(ConsumerEvent::Ended);
    }

    pub(in crate::consumer) fn listen(&self, ended: CancellationToken) -> Events {
        Events { events: self.events.subscribe(), ended, over: false }
    }
}

impl Observer for EventSink {
    fn observe(&self, event: &Event<'_>) {
        self.observer.observe(event);
        // The count takes a lock that all partitions share, and most events are of messages.
        if let Some(event) = ConsumerEvent::of(event)
            && self.events.receiver_count() > 0
        {
            let _ = self.events.send(event);
        }
    }
}

/// The events of one consumer, from the moment that this was asked for. From
/// [`Consumer::events`](crate::consumer::Consumer::events).
///
/// The newest 1,024 are kept for who is slow. Whoever is slower is told how many it missed, and goes on with the
/// oldest that is there.
#[must_use = "events that nobody takes are lost"]
pub struct Events {
    events: Receiver<ConsumerEvent>,
    ended: CancellationToken,
    over: bool,
}

impl Events {
    /// The next event, when there is one. `None` after [`ConsumerEvent::Ended`]. Dropping this future loses nothing.
    pub async fn next(&mut self) -> Option<ConsumerEvent> {
        if self.over {
            return None;
        }
        let event = tokio::select! {
            biased;
            event = self.events.recv() => match event {
                Ok(event) => Some(event),
                Err(RecvError::Lagged(missed)) => Some(ConsumerEvent::Lagged(missed)),
                Err(RecvError::Closed) => None,
            },
            // Asked for when it had ended already, or it ended abnormally.
            () = self.ended.cancelled() => match self.events.try_recv() {
                Ok(event) => Some(event),
                Err(TryRecvError::Lagged(missed)) => Some(ConsumerEvent::Lagged(missed)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => None,
            },
        };
        self.over = matches!(event, None | Some(ConsumerEvent::Ended));
        event
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("waiting", &self.events.len()).finish_non_exhaustive()
    }
}
