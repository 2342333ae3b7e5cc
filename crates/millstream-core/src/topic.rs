//! A topic: its name, payload type, codec, partitions and retention in one constant.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

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
///
/// What a group has parked for a retry and what is in its retry log or among its dead letters is not concerned: that
/// has left the log already, or is kept apart from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Retention {
    /// As soon as *every* group has settled them. Nothing unread or pending is ever dropped. The default.
    ///
    /// A group that is created later sees what is left, not what was consumed before it came. A group that is stopped
    /// keeps what it has not read, for as long as it is there: see [`Catalog::pins`](crate::Catalog::pins).
    #[default]
    Consumed,
    /// When every group has settled them *and* they are older than this, by the server's clock: so groups can go back
    /// that far. Nothing unread or pending is ever dropped.
    ConsumedAfter(Duration),
    /// When they are older than this, by the server's clock, **whether they were read or not**: what is lost is counted
    /// per group.
    Age(Duration),
    /// When the partition has so many newer ones, **whether they were read or not**: what is lost is counted per group.
    Length(u64),
    /// Never: the log keeps everything, and so does the server's memory.
    Keep,
}

impl Retention {
    /// Whether it may drop what a group has not settled.
    #[must_use]
    pub const fn is_lossy(self) -> bool {
        matches!(self, Self::Age(_) | Self::Length(_))
    }

    /// Whether a log that has `bound` entries gets room again, when all are settled and time passes.
    const fn makes_room_below(self, bound: u64) -> bool {
        match self {
            Self::Keep => false,
            Self::Length(entries) => entries < bound,
            Self::Consumed | Self::ConsumedAfter(_) | Self::Age(_) => true,
        }
    }

    /// Reads the setting back from what [`Display`](fmt::Display) made of it.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a setting that this version does not know; [`ErrorKind::Protocol`] for one that
    /// makes no sense.
    pub fn parse(text: &str) -> Result<Self> {
        let (word, figure) = text.split_once(':').map_or((text, None), |(word, figure)| (word, Some(figure)));
        let figure = figure.map(|figure| figure.parse::<u64>().ok().filter(|figure| *figure > 0));
        Ok(match (word, figure) {
            ("consumed", None) => Self::Consumed,
            ("keep", None) => Self::Keep,
            ("consumed-after", Some(Some(ms))) => Self::ConsumedAfter(Duration::from_millis(ms)),
            ("age", Some(Some(ms))) => Self::Age(Duration::from_millis(ms)),
            ("length", Some(Some(entries))) => Self::Length(entries),
            ("consumed" | "keep" | "consumed-after" | "age" | "length", _) => {
                return Err(Error::new(
                    ErrorKind::Protocol,
                    format!("the retention {text:?} makes no sense"),
                ));
            }
            _ => return Err(Error::new(ErrorKind::Unsupported, format!("unknown retention {text:?}"))),
        })
    }

    fn check(self, problems: &mut Problems) {
        let nothing = match self {
            Self::ConsumedAfter(time) | Self::Age(time) => time.is_zero(),
            Self::Length(entries) => entries == 0,
            Self::Consumed | Self::Keep => false,
        };
        problems.require(!nothing, || format!("the retention {self:?} would keep nothing at all"));
    }
}

/// The setting as it stands in a topic's meta hash; times in milliseconds, rounded up.
impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| {
            u64::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(MAX_MS)
        };
        match *self {
            Self::Consumed => f.write_str("consumed"),
            Self::Keep => f.write_str("keep"),
            Self::ConsumedAfter(time) => write!(f, "consumed-after:{}", ms(time)),
            Self::Age(time) => write!(f, "age:{}", ms(time)),
            Self::Length(entries) => write!(f, "length:{entries}"),
        }
    }
}

/// The longest time that a retention can say: what Lua counts exactly. It is 285,000 years.
const MAX_MS: u64 = 1 << 53;

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
    /// How many entries the log of a partition should have at most: producers hold back beyond that. `None` for no
    /// bound.
    pub max_length: Option<u64>,
    /// Which of the topics it is that had this name one after the other: when it was created in the place of one that had
    /// been deleted on purpose, in milliseconds since 1970 by the server's clock. It only grows. 0 for the first one, as
    /// far as is [remembered](crate::catalog::REMEMBERED), and for one that was lost with the data and restored. The
    /// backend says; who creates a topic is not asked.
    pub generation: u64,
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
        Ok(Self { name, partitions, retention: Retention::default(), max_length: None, generation: 0 })
    }

    /// The same topic with another retention.
    #[must_use]
    pub fn with_retention(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// The same topic with another bound, or with none.
    #[must_use]
    pub fn with_max_length(self, max_length: impl Into<Option<u64>>) -> Self {
        Self { max_length: max_length.into(), ..self }
    }

    /// The same topic as another one of that name, as a backend reads it.
    #[must_use]
    pub fn with_generation(self, generation: u64) -> Self {
        Self { generation, ..self }
    }

    /// Whether the settings make sense.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that lists what does not.
    pub fn check(&self) -> Result<()> {
        let mut problems = Problems::new("topic");
        self.find(&mut problems);
        problems.finish()
    }

    fn find(&self, problems: &mut Problems) {
        self.retention.check(problems);
        problems.require(self.max_length != Some(0), || {
            format!("topic {} has a max_length of 0: nothing could be sent", self.name)
        });
        let Some(bound) = self.max_length.filter(|bound| *bound > 0) else { return };
        problems.require(self.retention.makes_room_below(bound), || {
            format!(
                "topic {} keeps {} and has a max_length of {bound}: once a log is full nothing ever leaves it, and \
                 producers would wait for ever",
                self.name, self.retention
            )
        });
    }

    /// All its partitions in order.
    pub fn iter(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        (0..self.partitions).map(|partition| TopicPartition::new(self.name.clone(), partition))
    }
}

/// What is to be changed of a topic; whatever is not named stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a change does nothing until it is given to Catalog::alter_topic"]
#[non_exhaustive]
pub struct TopicChange {
    /// Another retention.
    pub retention: Option<Retention>,
    /// Another bound; `Some(None)` for none.
    pub max_length: Option<Option<u64>>,
}

impl TopicChange {
    /// Nothing changes.
    pub const fn new() -> Self {
        Self { retention: None, max_length: None }
    }

    /// Entries leave the log at other times. Consumers that run go by it within a minute.
    pub const fn retention(mut self, retention: Retention) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Producers hold back when the log of a partition has so many entries; `None` for no bound. Producers that run go by
    /// it when they [refresh](crate::Catalog::topic) what they know of the topic.
    pub fn max_length(mut self, entries: impl Into<Option<u64>>) -> Self {
        self.max_length = Some(entries.into());
        self
    }

    /// A topic after the change.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that lists what makes no sense.
    pub fn of(&self, topic: TopicSpec) -> Result<TopicSpec> {
        let changed = TopicSpec {
            retention: self.retention.unwrap_or(topic.retention),
            max_length: self.max_length.unwrap_or(topic.max_length),
            ..topic
        };
        changed.check().map(|()| changed)
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
    max_length: Option<u64>,
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
        Self {
            name: Cow::Borrowed(name),
            partitions: 1,
            retention: Retention::Consumed,
            max_length: None,
            codec,
        }
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

    /// How many entries the log of a partition should have at most: beyond that producers wait or refuse, as they are
    /// set up. Default: no bound.
    ///
    /// A retention that never makes room is refused together with a bound: [`Retention::Keep`], and
    /// [`Retention::Length`] of so many or more. With [`Retention::Age`] and [`Retention::ConsumedAfter`] entries count
    /// until they are old enough: a full log stays full for that long, however fast they are consumed.
    ///
    /// Every producer looks for itself, with its requests: so a log may grow beyond the bound by one request of each
    /// producer. Messages that were scheduled for later come in whenever they are due.
    #[must_use]
    pub const fn max_length(mut self, entries: u64) -> Self {
        self.max_length = Some(entries);
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
        let spec = spec.map(|spec| spec.with_retention(self.retention).with_max_length(self.max_length));
        spec.iter().for_each(|spec| spec.find(&mut problems));
        problems.finish()?;
        spec.ok_or_else(|| Error::new(ErrorKind::InvalidConfig, "invalid topic"))
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
            .field("max_length", &self.max_length)
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
        let day = Duration::from_secs(86_400);
        let golden = [
            (Retention::Consumed, "consumed"),
            (Retention::Keep, "keep"),
            (Retention::ConsumedAfter(day), "consumed-after:86400000"),
            (Retention::Age(day), "age:86400000"),
            (Retention::Length(1_000), "length:1000"),
        ];
        for (retention, text) in golden {
            assert_eq!(retention.to_string(), text);
            assert_eq!(Retention::parse(text).expect("known"), retention);
        }
        assert_eq!(
            Retention::Age(Duration::from_nanos(1)).to_string(),
            "age:1",
            "rounded up, never to nothing"
        );
        let forever = Retention::Age(Duration::MAX).to_string();
        Retention::parse(&forever).expect("what was written can be read");
        for (text, kind) in [
            ("forever", ErrorKind::Unsupported),
            ("bytes:7", ErrorKind::Unsupported),
            ("age", ErrorKind::Protocol),
            ("age:0", ErrorKind::Protocol),
            ("age:-1", ErrorKind::Protocol),
            ("length:many", ErrorKind::Protocol),
            ("keep:1", ErrorKind::Protocol),
        ] {
            assert_eq!(Retention::parse(text).expect_err(text).kind(), kind, "{text}");
        }
    }

    #[test]
    fn a_bound_that_is_never_undercut_again_is_refused() {
        let bounded = |retention| Topic::<u64>::new("numbers").retention(retention).max_length(10).spec();
        for retention in [Retention::Keep, Retention::Length(10), Retention::Length(11)] {
            let error = bounded(retention).expect_err("full for ever");
            assert!(error.to_string().contains("max_length of 10"), "{error}");
        }
        let (second, short) = (Duration::from_secs(1), Retention::Length(9));
        for retention in
            [Retention::Consumed, Retention::ConsumedAfter(second), Retention::Age(second), short]
        {
            bounded(retention).expect("makes room");
        }
        // A change is judged with what it leaves as it is.
        let spec = ORDERS.spec().expect("valid");
        let change = TopicChange::new().max_length(7);
        assert_eq!(change.of(spec.clone()).expect_err("keeps").kind(), ErrorKind::InvalidConfig);
        let bounded = spec.with_retention(Retention::Consumed).with_max_length(7);
        let change = TopicChange::new().retention(Retention::Keep);
        assert_eq!(change.of(bounded).expect_err("bounded").kind(), ErrorKind::InvalidConfig);
    }

    #[test]
    fn what_keeps_or_takes_nothing_is_refused() {
        let nothing = Topic::<u64>::new("numbers").retention(Retention::Length(0)).max_length(0);
        assert_eq!(nothing.spec().expect_err("two problems").problems().len(), 2);
        let spec = ORDERS.spec().expect("valid");
        let change = TopicChange::new().retention(Retention::Age(Duration::ZERO));
        assert_eq!(change.of(spec.clone()).expect_err("nothing").kind(), ErrorKind::InvalidConfig);
        let consumed = spec.clone().with_retention(Retention::Consumed);
        let change = TopicChange::new().max_length(7);
        assert_eq!(change.of(consumed.clone()).expect("valid"), consumed.with_max_length(7));
        assert_eq!(TopicChange::new().of(spec.clone()).expect("valid"), spec);
    }
}
