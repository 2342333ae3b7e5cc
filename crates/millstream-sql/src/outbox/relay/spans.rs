//! Spans of a relay's requests: one for each topic.

use std::collections::BTreeMap;

use millstream_core::TopicName;
use millstream_core::error::Error;
use millstream_core::event::Observer;
use millstream_core::span::{Failed, MessagingOperation, OperationKind, SpanMessage};
use tokio::time::Instant;

use super::batch::Planned;

/// Messages of one request, by topic.
pub(super) struct Spans<'a> {
    began: Instant,
    topics: BTreeMap<&'a TopicName, Sent<'a>>,
}

struct Sent<'a> {
    messages: Vec<SpanMessage<'a>>,
    /// Partition of all of them; `None` if they went to several.
    partition: Option<u32>,
    failed: Option<Failed>,
}

impl<'a> Spans<'a> {
    /// Creates the spans of a request that began at a time, without messages.
    pub(super) fn since(began: Instant) -> Self {
        Self { began, topics: BTreeMap::new() }
    }

    /// Adds a message, and its error if it was not stored.
    pub(super) fn add(&mut self, message: &'a Planned, error: Option<&Error>) {
        let place = message.topic_partition();
        let partition = Some(place.partition.0);
        let first = || Sent { messages: Vec::new(), partition, failed: None };
        let sent = self.topics.entry(&place.topic).or_insert_with(first);
        sent.messages.push(SpanMessage::new(&message.headers));
        sent.partition = sent.partition.filter(|it| Some(*it) == partition);
        if let Some(error) = error {
            sent.failed.get_or_insert(Failed { error: error.kind().as_str(), messages: 0 }).messages += 1;
        }
    }

    /// Makes the spans of the request, which has ended.
    pub(super) fn end(self, observer: &dyn Observer) {
        for (topic, sent) in self.topics {
            let Sent { messages, partition, failed } = sent;
            let mut span = MessagingOperation::passing_on(OperationKind::Send, topic.as_str(), &messages);
            (span.partition, span.since) = (partition, self.began.elapsed());
            span.record(failed, observer);
        }
    }
}
