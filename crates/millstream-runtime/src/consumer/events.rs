//! Events of a consumer, as a stream of owned values.

use std::fmt;
use std::sync::Arc;

use futures_util::stream::{self, Stream, StreamExt};
use millstream_core::event::{Event, Observer};
use millstream_core::span::Tracer;
use millstream_core::{ErrorKind, MemberId, MessageId, TopicName, TopicPartition};
use tokio::sync::broadcast::error::{RecvError, TryRecvError};
use tokio::sync::broadcast::{Receiver, Sender};
use tokio_util::sync::CancellationToken;

/// Number of events that are buffered for slow receivers.
const KEPT: usize = 1_024;

/// Event in the life of a consumer. Events of single messages go to the [`Observer`] only.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConsumerEvent {
    /// This instance owns the partition.
    Assigned {
        /// The partition.
        topic_partition: TopicPartition,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// A partition was released in an orderly way.
    Revoked {
        /// The partition.
        topic_partition: TopicPartition,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// A lease expired or was taken: the messages in flight will be handled again by the next owner.
    LeaseLost {
        /// The partition.
        topic_partition: TopicPartition,
        /// The epoch of the lease.
        epoch: u64,
    },
    /// The partitions that this instance should own are known.
    Rebalanced {
        /// The topic.
        topic: TopicName,
        /// Number of members of the group.
        members: u32,
        /// Number of partitions that this instance should own.
        partitions: usize,
    },
    /// Another process has taken this member id: this consumer stops.
    MemberFenced {
        /// The topic.
        topic: TopicName,
        /// The member id.
        member: MemberId,
    },
    /// The topic or its group was deleted: this consumer stops.
    Deleted {
        /// The topic.
        topic: TopicName,
        /// Error message of the backend.
        error: String,
    },
    /// The whole group of a topic was paused.
    GroupPaused {
        /// The topic.
        topic: TopicName,
    },
    /// The pause of the whole group is over.
    GroupResumed {
        /// The topic.
        topic: TopicName,
    },
    /// The group was missing on a partition and has been created again.
    GroupRestored {
        /// The partition.
        topic_partition: TopicPartition,
        /// Reading goes on above this id.
        after: MessageId,
    },
    /// The server lost the newest entries that it had already delivered.
    TailLost {
        /// The partition.
        topic_partition: TopicPartition,
        /// Our position before.
        from: MessageId,
        /// The position of the server.
        to: MessageId,
    },
    /// A partition was taken over from an owner that ended without releasing it.
    TakenOver {
        /// The partition.
        topic_partition: TopicPartition,
        /// Number of owners that have ended in a row.
        ends: usize,
        /// Number of pending messages.
        messages: usize,
        /// Number of poison candidates among them.
        candidates: usize,
    },
    /// A loop met an error, and tries again after a pause. Emitted for every failed attempt.
    Failing {
        /// The operation: "fetch", "settle", …
        operation: &'static str,
        /// The partition, if the operation is for one.
        topic_partition: Option<TopicPartition>,
        /// Kind of the error.
        kind: ErrorKind,
        /// Message of the error.
        error: String,
    },
    /// A loop that had been failing works again.
    Recovered {
        /// The operation.
        operation: &'static str,
        /// The partition, if the operation is for one.
        topic_partition: Option<TopicPartition>,
    },
    /// The consumer or one partition was paused.
    Paused {
        /// The partition; `None` for the whole consumer.
        topic_partition: Option<TopicPartition>,
    },
    /// The pause is over.
    Resumed {
        /// The partition; `None` for the whole consumer. Partitions that were paused individually stay paused.
        topic_partition: Option<TopicPartition>,
    },
    /// A message was given up because processes died while handling it.
    Crashed {
        /// The partition.
        topic_partition: TopicPartition,
        /// Its id in the log.
        origin: MessageId,
        /// Number of processes that died.
        crashes: u32,
    },
    /// The consumer has ended. This is the last event.
    Ended,
    /// Number of events that were missed because the receiver was too slow.
    Lagged(u64),
}

impl ConsumerEvent {
    /// Converts an event. `None` for events of single messages.
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

/// Sends every event to the user's observer, and the consumer's own events to all subscribers.
pub(in crate::consumer) struct EventSink {
    observer: Arc<dyn Observer>,
    events: Sender<ConsumerEvent>,
}

impl EventSink {
    pub(in crate::consumer) fn new(observer: Arc<dyn Observer>) -> Self {
        Self { observer, events: Sender::new(KEPT) }
    }

    /// Sends the last event.
    pub(in crate::consumer) fn end(&self) {
        // An error means only that there are no subscribers.
        let _ = self.events.send(ConsumerEvent::Ended);
    }

    pub(in crate::consumer) fn listen(&self, ended: CancellationToken) -> Events {
        Events { events: self.events.subscribe(), ended, over: false }
    }
}

impl Observer for EventSink {
    fn observe(&self, event: &Event<'_>) {
        self.observer.observe(event);
        // Most events are of single messages. They must not pay for the count, which takes a lock that all partitions
        // share.
        if let Some(event) = ConsumerEvent::of(event)
            && self.events.receiver_count() > 0
        {
            let _ = self.events.send(event);
        }
    }

    fn tracer(&self) -> Option<Arc<dyn Tracer>> {
        self.observer.tracer()
    }
}

/// Stream of a consumer's events, from the moment of subscription. Returned by
/// [`Consumer::events`](crate::consumer::Consumer::events).
///
/// The newest 1,024 events are kept for a slow receiver. A receiver that falls further behind gets the number of events
/// that it missed ([`ConsumerEvent::Lagged`]), and goes on with the oldest one that is kept.
#[must_use = "events that nobody takes are lost"]
pub struct Events {
    events: Receiver<ConsumerEvent>,
    ended: CancellationToken,
    over: bool,
}

impl Events {
    /// Waits for the next event. `None` after [`ConsumerEvent::Ended`]. Cancel safe: dropping this future loses nothing.
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
            // Either the subscription came after the end, or the consumer ended abnormally, without an `Ended` event.
            () = self.ended.cancelled() => match self.events.try_recv() {
                Ok(event) => Some(event),
                Err(TryRecvError::Lagged(missed)) => Some(ConsumerEvent::Lagged(missed)),
                Err(TryRecvError::Empty | TryRecvError::Closed) => None,
            },
        };
        self.over = matches!(event, None | Some(ConsumerEvent::Ended));
        event
    }

    /// Returns the events as a [`Stream`], which ends behind [`ConsumerEvent::Ended`].
    ///
    /// ```
    /// # use millstream_runtime::{Consumer, ConsumerEvent};
    /// use futures_util::StreamExt;
    /// # async fn example(consumer: &Consumer) {
    /// let lost = consumer.events().into_stream().filter_map(async |event| match event {
    ///     ConsumerEvent::LeaseLost { topic_partition, .. } => Some(topic_partition),
    ///     _ => None,
    /// });
    /// let first = std::pin::pin!(lost).next().await;
    /// # drop(first); }
    /// ```
    pub fn into_stream(self) -> impl Stream<Item = ConsumerEvent> + Send + Unpin + 'static {
        stream::unfold(self, async |mut events| Some((events.next().await?, events))).fuse().boxed()
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("waiting", &self.events.len()).finish_non_exhaustive()
    }
}
