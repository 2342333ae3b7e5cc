//! A topic: its name, payload type, codec, partitions and retention in one constant.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::codec::{Codec, Json, Raw};
use crate::error::{Error, ErrorKind, Problems, Result};
use crate::name::TopicName;

/// The most partitions a topic can have: the slots of a Redis Cluster. More could not be spread further.
pub const MAX_PARTITIONS: u32 = 16_384;

/// The number of one partition of a topic, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Partition(pub u32);

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One partition of one topic: the unit of order, storage, ownership and cluster slot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TopicPartition {
    /// The topic.
    pub topic: TopicName,
    /// Which of its partitions.
    pub partition: Partition,
}

impl TopicPartition {
    /// Partition `partition` of `topic`.
    #[must_use]
    pub fn new(topic: TopicName, partition: u32) -> Self {
        Self { topic, partition: Partition(partition) }
    }
}

impl fmt::Display for TopicPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.topic, self.partition)
    }
}

/// When entries leave the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Retention {
    /// As soon as *every* group has settled them. Nothing unread or pending is ever dropped. The default.
    ///
    /// A group that is created later sees what is left, not what was consumed before it came.
    #[default]
    Consumed,
    /// Never: the log keeps everything, and so does the server's memory.
    Keep,
}

impl Retention {
    /// The setting as it stands in a topic's meta hash.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Consumed => "consumed",
            Self::Keep => "keep",
        }
    }

    /// Reads the setting back.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] for a word that this version does not know.
    pub fn parse(text: &str) -> Result<Self> {
        match text {
            "consumed" => Ok(Self::Consumed),
            "keep" => Ok(Self::Keep),
            other => Err(Error::new(ErrorKind::Protocol, format!("unknown retention {other:?}"))),
        }
    }
}

/// What a backend keeps of a topic: the checked, untyped part of a [`Topic`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicSpec {
    /// The name.
    pub name: TopicName,
    /// How many partitions, 1 to [`MAX_PARTITIONS`].
    pub partitions: u32,
    /// When entries leave the log.
    pub retention: Retention,
}

impl TopicSpec {
    /// A topic of `partitions` partitions that keeps entries until they are consumed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] unless there are 1 to [`MAX_PARTITIONS`] partitions.
    pub fn new(name: TopicName, partitions: u32) -> Result<Self> {
        let mut problems = Problems::new("topic");
        problems.require((1..=MAX_PARTITIONS).contains(&partitions), || {
            format!("topic {name} has {partitions} partitions, 1 to {MAX_PARTITIONS} are allowed")
        });
        problems.finish()?;
        Ok(Self { name, partitions, retention: Retention::default() })
    }

    /// The same topic with another retention.
    #[must_use]
    pub fn with_retention(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// All its partitions in order.
    pub fn iter(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        (0..self.partitions).map(|partition| TopicPartition::new(self.name.clone(), partition))
    }
}

/// A topic as your program knows it: name, payload type, codec and partitions have one home.
///
/// ```
/// use millstream_core::Topic;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct Order { customer: String, cents: u64 }
///
/// const ORDERS: Topic<Order> = Topic::new("orders").partitions(8);
/// ```
///
/// A constant cannot fail: the name and the number of partitions are checked when a producer or consumer is
/// built on it, together with everything else that can be wrong there.
pub struct Topic<T: 'static> {
    name: Cow<'static, str>,
    partitions: u32,
    retention: Retention,
    codec: &'static dyn Codec<T>,
}

impl<T: Serialize + DeserializeOwned + 'static> Topic<T> {
    /// A topic of JSON payloads with 1 partition.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self::with_codec(name, &Json)
    }
}

impl Topic<Bytes> {
    /// A topic whose payloads are bytes that nobody looks into, with 1 partition.
    #[must_use]
    pub const fn raw(name: &'static str) -> Self {
        Self::with_codec(name, &Raw)
    }
}

impl<T: 'static> Topic<T> {
    /// A topic with a codec of your own and 1 partition.
    #[must_use]
    pub const fn with_codec(name: &'static str, codec: &'static dyn Codec<T>) -> Self {
        Self { name: Cow::Borrowed(name), partitions: 1, retention: Retention::Consumed, codec }
    }

    /// The same topic under a name that is known at run time only.
    #[must_use]
    pub fn named(&self, name: impl Into<String>) -> Self {
        Self { name: Cow::Owned(name.into()), ..self.clone() }
    }

    /// How many partitions the topic is created with. Default: 1.
    ///
    /// It is the number of consumers of a group that can work at once. The number that was stored when the
    /// topic was first created wins over this one.
    #[must_use]
    pub const fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// When entries leave the log. Default: [`Retention::Consumed`].
    #[must_use]
    pub const fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// The codec that turns payloads into bytes and back.
    #[must_use]
    pub const fn codec(&self) -> &'static dyn Codec<T> {
        self.codec
    }

    /// The checked, untyped part.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that lists a bad name and a bad number of partitions.
    pub fn spec(&self) -> Result<TopicSpec> {
        let mut problems = Problems::new("topic");
        let name = problems.take(TopicName::new(&self.name));
        let stand_in = TopicName::new("topic");
        let spec = name.map_or(stand_in, Ok).and_then(|name| TopicSpec::new(name, self.partitions));
        let spec = problems.take(spec);
        problems.finish()?;
        spec.map(|spec| spec.with_retention(self.retention))
            .ok_or_else(|| Error::new(ErrorKind::InvalidConfig, "invalid topic"))
    }
}

impl<T: 'static> Clone for Topic<T> {
    fn clone(&self) -> Self {
        Self { name: self.name.clone(), ..*self }
    }
}

impl<T: 'static> fmt::Debug for Topic<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topic")
            .field("name", &self.name)
            .field("partitions", &self.partitions)
            .field("retention", &self.retention)
            .field("codec", &self.codec.name())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDERS: Topic<u64> = Topic::new("orders").partitions(8).retention(Retention::Keep);

    #[test]
    fn a_constant_carries_everything() {
        let spec = ORDERS.spec().expect("valid");
        assert_eq!((spec.name.as_str(), spec.partitions, spec.retention), ("orders", 8, Retention::Keep));
        assert_eq!(spec.iter().last().expect("eight").to_string(), "orders/7");
        assert_eq!(ORDERS.named("orders-eu").spec().expect("valid").name.as_str(), "orders-eu");
    }

    #[test]
    fn all_that_is_wrong_is_said_at_once() {
        let error = Topic::<u64>::new("bad name").partitions(0).spec().expect_err("two problems");
        assert_eq!(error.problems().len(), 2, "{error}");
    }

    #[test]
    fn retention_reads_back() {
        for retention in [Retention::Consumed, Retention::Keep] {
            assert_eq!(Retention::parse(retention.as_str()).expect("known"), retention);
        }
        assert!(Retention::parse("forever").is_err());
    }
}
