//! For the tests of handlers: deliveries that nobody sent.

use std::sync::Arc;

use bytes::Bytes;
use millstream_core::{GroupName, Headers, History, MessageId, Partition, TopicName, TopicPartition};

use crate::delivery::{AttemptHistory, Delivery, DeliveryMetadata, DeliveryScope};

/// Builds a [`Delivery`] for the test of a handler. It is a first attempt in partition 0 of topic `test`, for group `test`, without a key
/// and headers, unless something else is set. It is never cancelled, and to extend its lease succeeds.
///
/// ```
/// use millstream_engine::{Delivery, test};
///
/// async fn handle(order: Delivery<u64>) -> Result<(), String> {
///     if order.attempt() < 3 { Err("busy".to_owned()) } else { Ok(()) }
/// }
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let third = test::delivery(7).key("ada").attempt(3).last_error("busy").build();
/// assert_eq!(handle(third).await, Ok(()));
/// # });
/// ```
#[must_use = "`build` returns the delivery"]
pub fn delivery<T>(payload: T) -> TestDelivery<T> {
    TestDelivery {
        payload,
        topic: "test".parse().expect("a name"),
        partition: Partition(0),
        group: "test".parse().expect("a name"),
        epoch: 1,
        origin: MessageId::new(1, 0),
        attempt: 1,
        deliveries: 1,
        last_error: None,
        key: None,
        headers: Headers::new(),
    }
}

/// Builder of a [`Delivery`]; see [`delivery`].
#[derive(Clone, Debug)]
#[must_use = "`build` returns the delivery"]
pub struct TestDelivery<T> {
    payload: T,
    topic: TopicName,
    partition: Partition,
    group: GroupName,
    epoch: u64,
    origin: MessageId,
    attempt: u32,
    deliveries: u32,
    last_error: Option<String>,
    key: Option<Bytes>,
    headers: Headers,
}

impl<T> TestDelivery<T> {
    /// Sets the topic.
    ///
    /// # Panics
    /// If it is not a valid name.
    pub fn topic(mut self, topic: &str) -> Self {
        self.topic = topic.parse().expect("the name of a topic");
        self
    }

    /// Sets the partition.
    pub fn partition(mut self, partition: u32) -> Self {
        self.partition = Partition(partition);
        self
    }

    /// Sets the group.
    ///
    /// # Panics
    /// If it is not a valid name.
    pub fn group(mut self, group: &str) -> Self {
        self.group = group.parse().expect("the name of a group");
        self
    }

    /// Sets the epoch of the owner's lease. Default: 1.
    pub fn epoch(mut self, epoch: u64) -> Self {
        self.epoch = epoch;
        self
    }

    /// Sets the id of the message in its partition's log. Default: `1-0`.
    pub fn origin(mut self, origin: MessageId) -> Self {
        self.origin = origin;
        self
    }

    /// Sets the number of the attempt, from 1.
    pub fn attempt(mut self, attempt: u32) -> Self {
        self.attempt = attempt;
        self
    }

    /// Sets how often its entry was read, from 1.
    pub fn deliveries(mut self, deliveries: u32) -> Self {
        self.deliveries = deliveries;
        self
    }

    /// Sets the error of the attempt before.
    pub fn last_error(mut self, error: impl Into<String>) -> Self {
        self.last_error = Some(error.into());
        self
    }

    /// Sets the key.
    pub fn key(mut self, key: impl Into<Bytes>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Adds a header.
    pub fn header(mut self, name: impl Into<String>, value: impl Into<Bytes>) -> Self {
        self.headers.append(name, value);
        self
    }

    /// Returns the delivery.
    pub fn build(self) -> Delivery<T> {
        let topic_partition = TopicPartition { topic: self.topic, partition: self.partition };
        let about = DeliveryMetadata {
            reports: None,
            scope: Arc::new(DeliveryScope::without_right(topic_partition, self.group, self.epoch)),
            id: self.origin,
            origin: self.origin,
            attempt: self.attempt,
            deliveries: self.deliveries,
            past: AttemptHistory::of(self.last_error, History::default()),
            key: self.key,
            headers: self.headers,
        };
        Delivery { payload: self.payload, about }
    }
}

impl<T> Delivery<T> {
    /// Creates a delivery for the test of a handler: a first attempt in partition 0 of topic `test`, for group `test`.
    /// [`test::delivery`](delivery) creates others.
    ///
    /// ```
    /// # use millstream_engine::Delivery;
    /// async fn handle(order: Delivery<u64>) -> Result<(), String> {
    ///     if order.payload > 0 { Ok(()) } else { Err("nothing ordered".to_owned()) }
    /// }
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// assert_eq!(handle(Delivery::for_test(0)).await, Err("nothing ordered".to_owned()));
    /// # });
    /// ```
    pub fn for_test(payload: T) -> Self {
        delivery(payload).build()
    }
}
