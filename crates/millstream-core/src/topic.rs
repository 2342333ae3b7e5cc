//! Topics: name, payload type, codec, partitions and retention in one constant.

pub(crate) mod dead_letter_retention;
pub mod packing;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Serialize, de::DeserializeOwned};

use crate::codec::{Codec, Json, Raw};
use crate::error::{Error, ErrorKind, Problems, Result};
use crate::name::TopicName;
use crate::packing::{DictionaryName, MAX_DICTIONARY, PackCompression, Packing};
use crate::topic::dead_letter_retention::{DeadLetterRetention, shown, whole_ms};

pub use crate::partition::{Partition, TopicPartition};

/// The largest number of partitions of a topic: the number of slots of a Redis Cluster. More could not be spread further.
pub const MAX_PARTITIONS: u32 = 16_384;

/// Rule by which entries leave the log.
///
/// It does not apply to messages that a group has parked for a retry, nor to its retry log and dead letters: those have
/// left the log already, or are stored apart from it. Dead letters have a [retention](DeadLetterRetention) of their own.
///
/// Whoever drops or shows entries has to know all rules: a new one is found by the compiler, and is a breaking change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Retention {
    /// As soon as *every* group has settled them. Nothing unread or pending is ever dropped. The default.
    ///
    /// A group that is created later reads the entries that are left, not those that were consumed before. A group that is
    /// stopped keeps its unread entries in the log, as long as the group exists: see
    /// [`Catalog::pins`](crate::Catalog::pins).
    #[default]
    Consumed,
    /// When every group has settled them *and* they are strictly older than this, by the server's clock: so groups can seek back
    /// that far. Nothing unread or pending is ever dropped.
    ConsumedAfter(Duration),
    /// When they are strictly older than this, by the server's clock, **whether they were read or not**. The loss is counted per
    /// group.
    Age(Duration),
    /// When the partition has this many newer ones, **whether they were read or not**. The loss is counted per group.
    Length(u64),
    /// Never: the log keeps everything, in the server's memory.
    Keep,
}

impl Retention {
    /// Whether it may drop entries that a group has not settled.
    #[must_use]
    pub const fn is_lossy(self) -> bool {
        matches!(self, Self::Age(_) | Self::Length(_))
    }

    /// Whether a log with `bound` entries gets room again, once all are settled and time passes.
    const fn makes_room_below(self, bound: u64) -> bool {
        match self {
            Self::Keep => false,
            Self::Length(entries) => entries < bound,
            Self::Consumed | Self::ConsumedAfter(_) | Self::Age(_) => true,
        }
    }

    /// Parses the form that [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a setting that this version does not know; [`ErrorKind::Protocol`] for an invalid
    /// one.
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
                let why = format!("the retention {:?} is invalid", shown(text));
                return Err(Error::new(ErrorKind::Protocol, why));
            }
            _ => {
                let why = format!("unknown retention {:?}", shown(text));
                return Err(Error::new(ErrorKind::Unsupported, why));
            }
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

/// Writes the setting as a topic's meta hash stores it; times in milliseconds, rounded up.
impl fmt::Display for Retention {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Consumed => f.write_str("consumed"),
            Self::Keep => f.write_str("keep"),
            Self::ConsumedAfter(time) => write!(f, "consumed-after:{}", whole_ms(time)),
            Self::Age(time) => write!(f, "age:{}", whole_ms(time)),
            Self::Length(entries) => write!(f, "length:{entries}"),
        }
    }
}

/// Stored part of a [`Topic`]: checked, and without the payload type.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopicSpec {
    /// The name.
    pub name: TopicName,
    /// Number of partitions, 1 to [`MAX_PARTITIONS`].
    pub partitions: u32,
    /// Rule by which entries leave the log.
    pub retention: Retention,
    /// Largest number of entries in the log of a partition: producers hold back beyond that. `None` for no bound.
    pub max_length: Option<u64>,
    /// Rule by which the dead letters of its groups are dropped.
    pub dead_letter_retention: DeadLetterRetention,
    /// Rule by which the backend may store several messages in one entry; `None` for one message in each. A backend that packs nothing stores
    /// this setting and returns it.
    pub packing: Option<Packing>,
    /// Name of the newest [dictionary](crate::Catalog::dictionary) of its packs; `None` if it has none. The backend sets it, as
    /// the generation.
    pub dictionary: Option<DictionaryName>,
    /// Generation of this topic name: the time at which the topic was created in the place of one that had been deleted
    /// on purpose, in milliseconds since 1970 by the server's clock. It only grows. 0 for the first topic of the name, as
    /// far as deletions are [remembered](crate::catalog::REMEMBERED), and for a topic that was lost with the data and
    /// restored. The backend sets it; the value that a caller passes when it creates a topic is ignored.
    pub generation: u64,
    /// Numbers of partitions that the topic had before it grew, oldest first: by these, messages with a
    /// [unique id](crate::log::Identity::Unique) that are not settled may be in other partitions. The backend sets it, as the generation.
    pub earlier: Vec<u32>,
}

impl TopicSpec {
    /// Creates a topic of `partitions` partitions that keeps entries until they are consumed.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] unless there are 1 to [`MAX_PARTITIONS`] partitions.
    pub fn new(name: TopicName, partitions: u32) -> Result<Self> {
        let mut problems = Problems::new("topic");
        problems.require((1..=MAX_PARTITIONS).contains(&partitions), || {
            format!("topic {name} has {partitions} partitions, 1 to {MAX_PARTITIONS} are allowed")
        });
        problems.finish()?;
        Ok(Self {
            name,
            partitions,
            retention: Retention::default(),
            max_length: None,
            dead_letter_retention: DeadLetterRetention::KEEP,
            packing: None,
            dictionary: None,
            generation: 0,
            earlier: Vec::new(),
        })
    }

    /// Returns the same topic with another retention.
    #[must_use]
    pub fn with_retention(self, retention: Retention) -> Self {
        Self { retention, ..self }
    }

    /// Returns the same topic with another bound, or with none.
    #[must_use]
    pub fn with_max_length(self, max_length: impl Into<Option<u64>>) -> Self {
        Self { max_length: max_length.into(), ..self }
    }

    /// Returns the same topic with another retention of dead letters.
    #[must_use]
    pub fn with_dead_letter_retention(self, dead_letter_retention: DeadLetterRetention) -> Self {
        Self { dead_letter_retention, ..self }
    }

    /// Returns the same topic with another packing, or without one.
    #[must_use]
    pub fn with_packing(self, packing: impl Into<Option<Packing>>) -> Self {
        Self { packing: packing.into(), ..self }
    }

    /// Returns the same topic with the name of its newest dictionary that a backend read.
    #[must_use]
    pub fn with_dictionary(self, dictionary: Option<DictionaryName>) -> Self {
        Self { dictionary, ..self }
    }

    /// Returns the same topic with the generation that a backend read.
    #[must_use]
    pub fn with_generation(self, generation: u64) -> Self {
        Self { generation, ..self }
    }

    /// Returns the same topic with the earlier numbers of partitions that a backend read.
    #[must_use]
    pub fn with_earlier(self, earlier: Vec<u32>) -> Self {
        Self { earlier, ..self }
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that lists the invalid ones.
    pub fn check(&self) -> Result<()> {
        let mut problems = Problems::new("topic");
        self.find(&mut problems);
        problems.finish()
    }

    fn find(&self, problems: &mut Problems) {
        self.retention.check(problems);
        self.dead_letter_retention.check(problems);
        self.packing.iter().for_each(|packing| packing.check(problems));
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

    /// Checks a dictionary that is to be stored for the topic.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for one that is larger than [`MAX_DICTIONARY`], or does not begin as one with an
    /// [id](DictionaryName::id) does; and if the topic's packs are not [compressed with one](PackCompression::ZstdDictionary).
    pub fn check_dictionary(&self, dictionary: &[u8]) -> Result<()> {
        let mut problems = Problems::new("dictionary");
        problems.require(dictionary.len() <= MAX_DICTIONARY, || {
            format!("a dictionary of {} bytes: at most {MAX_DICTIONARY} are allowed", dictionary.len())
        });
        problems.require(DictionaryName::of(1, dictionary).is_some(), || {
            "the bytes are no dictionary of zstd: they have no header with an id".to_owned()
        });
        let with = PackCompression::ZstdDictionary;
        problems.require(self.packing.is_some_and(|packing| packing.compressed() == with), || {
            format!("topic {} does not pack messages with {}", self.name, with.as_str())
        });
        problems.finish()
    }

    /// Returns all its partitions in order.
    pub fn iter(&self) -> impl Iterator<Item = TopicPartition> + '_ {
        (0..self.partitions).map(|partition| TopicPartition::new(self.name.clone(), partition))
    }
}

/// Change of a topic's settings; a setting that is not set stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use = "a change does nothing until it is given to Catalog::alter_topic"]
#[non_exhaustive]
pub struct TopicChange {
    /// The new retention.
    pub retention: Option<Retention>,
    /// The new bound; `Some(None)` for none.
    pub max_length: Option<Option<u64>>,
    /// The new retention of dead letters.
    pub dead_letter_retention: Option<DeadLetterRetention>,
    /// The new packing, of a topic that has one.
    pub packing: Option<Packing>,
}

impl TopicChange {
    /// Creates a change that changes nothing.
    pub const fn new() -> Self {
        Self { retention: None, max_length: None, dead_letter_retention: None, packing: None }
    }

    /// Changes the retention. Running consumers and producers apply it within a minute.
    pub const fn retention(mut self, retention: Retention) -> Self {
        self.retention = Some(retention);
        self
    }

    /// Changes the number of entries in the log of a partition at which producers hold back; `None` for no bound. Running
    /// producers apply it when they [refresh](crate::Catalog::topic) their copy of the topic.
    pub fn max_length(mut self, entries: impl Into<Option<u64>>) -> Self {
        self.max_length = Some(entries.into());
        self
    }

    /// Changes the retention of dead letters. Running consumers apply it within two minutes.
    pub const fn dead_letter_retention(mut self, retention: DeadLetterRetention) -> Self {
        self.dead_letter_retention = Some(retention);
        self
    }

    /// Changes how the messages of a [packed](Topic::packed) topic are packed. Running producers apply it when they
    /// [refresh](crate::Catalog::topic) their copy of the topic; consumers read what was packed before and after, if they were built
    /// with the compression: others wait at the first pack that they cannot read. A topic that is not packed cannot become so, nor the other way round: its clients count, settle and
    /// trim otherwise.
    pub const fn packing(mut self, packing: Packing) -> Self {
        self.packing = Some(packing);
        self
    }

    /// Returns `topic` after the change.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that lists the settings that are invalid after it.
    pub fn of(&self, topic: TopicSpec) -> Result<TopicSpec> {
        if self.packing.is_some() && topic.packing.is_none() {
            let why = format!(
                "topic {} is not packed, and cannot become so: create another one and let its groups finish this one",
                topic.name
            );
            return Err(Error::new(ErrorKind::InvalidConfig, why).at(&topic.name));
        }
        let changed = TopicSpec {
            retention: self.retention.unwrap_or(topic.retention),
            max_length: self.max_length.unwrap_or(topic.max_length),
            dead_letter_retention: self.dead_letter_retention.unwrap_or(topic.dead_letter_retention),
            packing: self.packing.or(topic.packing),
            ..topic
        };
        changed.check().map(|()| changed)
    }
}

/// Topic as a program declares it: name, payload type, codec and partitions in one place.
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
/// A constant cannot fail: the name and the number of partitions are checked when a producer or consumer is built on it,
/// together with its other settings.
pub struct Topic<T: 'static> {
    name: Cow<'static, str>,
    partitions: u32,
    retention: Retention,
    max_length: Option<u64>,
    dead_letter_retention: Option<DeadLetterRetention>,
    packing: Option<Packing>,
    codec: &'static dyn Codec<T>,
}

impl<T: Serialize + DeserializeOwned + 'static> Topic<T> {
    /// Creates a topic of JSON payloads with 1 partition.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self::with_codec(name, &Json)
    }
}

impl Topic<Bytes> {
    /// Creates a topic of opaque bytes with 1 partition.
    #[must_use]
    pub const fn raw(name: &'static str) -> Self {
        Self::with_codec(name, &Raw)
    }
}

impl<T: 'static> Topic<T> {
    /// Creates a topic with a custom codec and 1 partition.
    #[must_use]
    pub const fn with_codec(name: &'static str, codec: &'static dyn Codec<T>) -> Self {
        Self {
            name: Cow::Borrowed(name),
            partitions: 1,
            retention: Retention::Consumed,
            max_length: None,
            dead_letter_retention: None,
            packing: None,
            codec,
        }
    }

    /// Returns the same topic under a name that is known at run time only.
    #[must_use]
    pub fn named(&self, name: impl Into<String>) -> Self {
        Self { name: Cow::Owned(name.into()), ..self.clone() }
    }

    /// Sets the number of partitions that the topic is created with. Default: 1.
    ///
    /// It is the number of consumers of a group that can work at once. The number that was stored when the topic was
    /// first created takes precedence over this one.
    #[must_use]
    pub const fn partitions(mut self, partitions: u32) -> Self {
        self.partitions = partitions;
        self
    }

    /// Sets the rule by which entries leave the log. Default: [`Retention::Consumed`].
    #[must_use]
    pub const fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Sets the largest number of entries in the log of a partition: beyond it producers wait or refuse, as configured.
    /// Default: no bound.
    ///
    /// A retention that never makes room is refused together with a bound: [`Retention::Keep`], and [`Retention::Length`]
    /// of at least the bound. With [`Retention::Age`] and [`Retention::ConsumedAfter`] entries count until they are old
    /// enough: a full log stays full for that long, however fast they are consumed.
    ///
    /// Each producer checks the length with its own requests, so a log may exceed the bound by one request of each
    /// producer. Messages that were scheduled for later are appended when they are due, whatever the length.
    #[must_use]
    pub const fn max_length(mut self, entries: u64) -> Self {
        self.max_length = Some(entries);
        self
    }

    /// Sets the rule by which the dead letters of the topic's groups are dropped. Default: [`DeadLetterRetention::KEEP`]; of a
    /// [packed](Self::packed) topic [`DeadLetterRetention::PACKED`], the newest 100,000 of a partition.
    #[must_use]
    pub const fn dead_letter_retention(mut self, retention: DeadLetterRetention) -> Self {
        self.dead_letter_retention = Some(retention);
        self
    }

    /// Stores several messages in one entry where producers send them together. Default: one message in each entry.
    ///
    /// It is a setting of the stored topic, like its number of partitions: that with which the topic was created counts.
    #[must_use]
    pub const fn packed(mut self, packing: Packing) -> Self {
        self.packing = Some(packing);
        self
    }

    /// Returns the codec that turns payloads into bytes and back.
    #[must_use]
    pub const fn codec(&self) -> &'static dyn Codec<T> {
        self.codec
    }

    /// Returns the stored part of the topic, checked.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] that lists a bad name and a bad number of partitions.
    pub fn spec(&self) -> Result<TopicSpec> {
        let mut problems = Problems::new("topic");
        let name = problems.take(TopicName::new(&self.name));
        // A valid name replaces a bad one, so that the other settings are checked all the same.
        let stand_in = TopicName::new("topic");
        let spec = name.map_or(stand_in, Ok).and_then(|name| TopicSpec::new(name, self.partitions));
        let spec = problems.take(spec);
        let of_dead = self.dead_letter_retention;
        let of_dead = of_dead.unwrap_or(DeadLetterRetention::by_default(self.packing.is_some()));
        let spec = spec.map(|spec| {
            spec.with_retention(self.retention)
                .with_max_length(self.max_length)
                .with_dead_letter_retention(of_dead)
                .with_packing(self.packing)
        });
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
            .field("dead_letter_retention", &self.dead_letter_retention)
            .field("packing", &self.packing)
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
    fn an_error_shows_the_beginning_of_a_text() {
        for text in ["x".repeat(10_000), format!("age:{}", "9".repeat(10_000))] {
            let error = Retention::parse(&text).expect_err("no retention").to_string();
            assert!(error.len() < 200 && error.contains(&text[..64]), "{} bytes", error.len());
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
        // A change is checked together with the settings that it keeps.
        let spec = ORDERS.spec().expect("valid");
        let change = TopicChange::new().max_length(7);
        assert_eq!(change.of(spec.clone()).expect_err("keeps").kind(), ErrorKind::InvalidConfig);
        let bounded = spec.with_retention(Retention::Consumed).with_max_length(7);
        let change = TopicChange::new().retention(Retention::Keep);
        assert_eq!(change.of(bounded).expect_err("bounded").kind(), ErrorKind::InvalidConfig);
    }

    #[test]
    fn a_dictionary_is_for_a_topic_that_uses_one_and_not_too_large() {
        let with = Packing::new().compression(PackCompression::ZstdDictionary);
        let with = Topic::<u64>::new("numbers").packed(with).spec().expect("valid");
        let other = Topic::<u64>::new("numbers").packed(Packing::new()).spec().expect("valid");
        let dictionary = |size: usize| {
            let mut bytes = vec![0x37, 0xA4, 0x30, 0xEC, 1, 0, 0, 0];
            bytes.resize(size, 0);
            bytes
        };
        with.check_dictionary(&dictionary(MAX_DICTIONARY)).expect("as large as may be");
        for (topic, size, problems) in
            [(&with, 0, 1), (&with, 7, 1), (&with, MAX_DICTIONARY + 1, 1), (&other, 8, 1), (&other, 0, 2)]
        {
            let error = topic.check_dictionary(&dictionary(size)).expect_err("refused");
            assert_eq!(
                (error.kind(), error.problems().len()),
                (ErrorKind::InvalidConfig, problems),
                "{error}"
            );
        }
    }

    #[test]
    fn dead_letters_of_packed_topics_are_bounded_unless_something_else_is_set() {
        let packed = Topic::<u64>::new("numbers").packed(Packing::new());
        let of = |topic: &Topic<u64>| topic.spec().expect("valid").dead_letter_retention;
        assert_eq!((of(&packed), of(&ORDERS)), (DeadLetterRetention::PACKED, DeadLetterRetention::KEEP));
        let keep = packed.clone().dead_letter_retention(DeadLetterRetention::KEEP);
        assert!(of(&keep).is_keep() && of(&keep.packed(Packing::new())).is_keep(), "in either order");
    }

    #[test]
    fn what_keeps_or_takes_nothing_is_refused() {
        let nothing = Topic::<u64>::new("numbers")
            .retention(Retention::Length(0))
            .max_length(0)
            .dead_letter_retention(DeadLetterRetention::length(0));
        assert_eq!(nothing.spec().expect_err("three problems").problems().len(), 3);
        let spec = ORDERS.spec().expect("valid");
        let change = TopicChange::new().retention(Retention::Age(Duration::ZERO));
        assert_eq!(change.of(spec.clone()).expect_err("nothing").kind(), ErrorKind::InvalidConfig);
        let consumed = spec.clone().with_retention(Retention::Consumed);
        let change = TopicChange::new().max_length(7);
        assert_eq!(change.of(consumed.clone()).expect("valid"), consumed.with_max_length(7));
        assert_eq!(TopicChange::new().of(spec.clone()).expect("valid"), spec);
        let month = DeadLetterRetention::age(Duration::from_secs(30 * 86_400));
        let change = TopicChange::new().dead_letter_retention(month);
        let changed = change.of(spec.clone()).expect("valid");
        assert_eq!(changed, spec.with_dead_letter_retention(month));
        assert_eq!(
            TopicChange::new().of(changed.clone()).expect("valid"),
            changed,
            "what is not named stays"
        );
    }
}
