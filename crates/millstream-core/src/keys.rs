//! Keys: the only place where one is made.
//!
//! Everything that must change together shares the hash tag of its partition, `{topic:p:partition}`, and so a
//! slot: a topic spreads over a cluster, and a script never leaves its node. `docs/protocol.md#keys` lists
//! them all.

use std::fmt;
use std::sync::Arc;

use crate::name::{GroupName, Namespace, TopicName};
use crate::topic::TopicPartition;

/// A key of the store. Only [`Keys`] makes one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Arc<str>);

impl Key {
    /// The key as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// Makes all keys of one namespace.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// Keys without a namespace.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Keys that start with `namespace:`.
    #[must_use]
    pub fn within(namespace: &Namespace) -> Self {
        Self { prefix: format!("{namespace}:") }
    }

    fn key(&self, rest: fmt::Arguments<'_>) -> Key {
        Key(format!("{}{rest}", self.prefix).into())
    }

    /// Stream: the log of a partition.
    #[must_use]
    pub fn log(&self, tp: &TopicPartition) -> Key {
        self.key(format_args!("stream:topic:{}", Tag(tp)))
    }

    /// Stream: a group's retry log.
    #[must_use]
    pub fn retry_log(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("stream:topic:{}:retry:{group}", Tag(tp)))
    }

    /// Stream: a group's dead letters.
    #[must_use]
    pub fn dead_letters(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("stream:topic:{}:dlq:{group}", Tag(tp)))
    }

    /// String with a ttl: the token while the lease lives.
    #[must_use]
    pub fn lease(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:lease:{}:{group}", Tag(tp)))
    }

    /// Hash without a ttl: owner, token, epoch and ttl of the last grant.
    #[must_use]
    pub fn fence(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:fence:{}:{group}", Tag(tp)))
    }

    /// Sorted set: parked retries of a group, id by due time in milliseconds.
    #[must_use]
    pub fn retry_due(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:retry:{}:{group}", Tag(tp)))
    }

    /// Hash: the bodies of parked retries by id.
    #[must_use]
    pub fn retry_items(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:retry:item:{}:{group}", Tag(tp)))
    }

    /// Hash: what is noted of a group's pending entries, by source and id.
    #[must_use]
    pub fn held(&self, tp: &TopicPartition, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:held:{}:{group}", Tag(tp)))
    }

    /// Sorted set: the members of a group, by when their heartbeat runs out, in milliseconds.
    #[must_use]
    pub fn members(&self, topic: &TopicName, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:members:{{{topic}}}:{group}"))
    }

    /// Hash: what each member said of itself, and the version of the membership.
    #[must_use]
    pub fn member(&self, topic: &TopicName, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:member:{{{topic}}}:{group}"))
    }

    /// Hash: the partitions of each member, and the version of the membership that they were computed for.
    #[must_use]
    pub fn assignment(&self, topic: &TopicName, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:assignment:{{{topic}}}:{group}"))
    }

    /// Stream of one entry: the newest change of a group's members or assignment; wakes who waits for one.
    #[must_use]
    pub fn changes(&self, topic: &TopicName, group: &GroupName) -> Key {
        self.key(format_args!("streaming:mq:changes:{{{topic}}}:{group}"))
    }

    /// Set: the names of all topics.
    #[must_use]
    pub fn topics(&self) -> Key {
        self.key(format_args!("streaming:mq:topics:registry"))
    }

    /// Hash: a topic's settings.
    #[must_use]
    pub fn topic_meta(&self, topic: &TopicName) -> Key {
        self.key(format_args!("streaming:mq:topic:{{{topic}}}:meta"))
    }

    /// Set: the log keys of a topic's partitions.
    #[must_use]
    pub fn topic_partitions(&self, topic: &TopicName) -> Key {
        self.key(format_args!("streaming:mq:topic:{{{topic}}}:partitions"))
    }

    /// Set: the names of a topic's groups.
    #[must_use]
    pub fn topic_groups(&self, topic: &TopicName) -> Key {
        self.key(format_args!("streaming:mq:topic:{{{topic}}}:groups"))
    }
}

struct Tag<'a>(&'a TopicPartition);

impl fmt::Display for Tag<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{}:p:{}}}", self.0.topic, self.0.partition)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(keys: &Keys) -> Vec<Key> {
        let tp = TopicPartition::new("orders".parse().expect("name"), 3);
        let group = "billing".parse().expect("name");
        vec![
            keys.log(&tp),
            keys.retry_log(&tp, &group),
            keys.dead_letters(&tp, &group),
            keys.lease(&tp, &group),
            keys.fence(&tp, &group),
            keys.retry_due(&tp, &group),
            keys.retry_items(&tp, &group),
            keys.held(&tp, &group),
            keys.members(&tp.topic, &group),
            keys.member(&tp.topic, &group),
            keys.assignment(&tp.topic, &group),
            keys.changes(&tp.topic, &group),
            keys.topics(),
            keys.topic_meta(&tp.topic),
            keys.topic_partitions(&tp.topic),
            keys.topic_groups(&tp.topic),
        ]
    }

    /// Golden: a change here is a change of the format, and a page in `docs/protocol.md`.
    #[test]
    fn keys_are_what_the_protocol_says() {
        let golden = [
            "stream:topic:{orders:p:3}",
            "stream:topic:{orders:p:3}:retry:billing",
            "stream:topic:{orders:p:3}:dlq:billing",
            "streaming:mq:lease:{orders:p:3}:billing",
            "streaming:mq:fence:{orders:p:3}:billing",
            "streaming:mq:retry:{orders:p:3}:billing",
            "streaming:mq:retry:item:{orders:p:3}:billing",
            "streaming:mq:held:{orders:p:3}:billing",
            "streaming:mq:members:{orders}:billing",
            "streaming:mq:member:{orders}:billing",
            "streaming:mq:assignment:{orders}:billing",
            "streaming:mq:changes:{orders}:billing",
            "streaming:mq:topics:registry",
            "streaming:mq:topic:{orders}:meta",
            "streaming:mq:topic:{orders}:partitions",
            "streaming:mq:topic:{orders}:groups",
        ];
        let plain: Vec<_> = all(&Keys::new()).iter().map(Key::to_string).collect();
        assert_eq!(plain, golden);
        let shop = Keys::within(&"shop".parse().expect("name"));
        let prefixed: Vec<_> = all(&shop).iter().map(Key::to_string).collect();
        assert_eq!(prefixed, golden.map(|key| format!("shop:{key}")));
    }

    #[test]
    fn the_keys_of_a_partition_share_one_tag() {
        let tag = |key: &Key| -> Option<String> {
            let text = key.as_str();
            let open = text.find('{')?;
            let close = text[open..].find('}')? + open;
            Some(text[open + 1..close].to_owned())
        };
        for key in &all(&Keys::new())[..8] {
            assert_eq!(tag(key).as_deref(), Some("orders:p:3"), "{key}");
        }
    }
}
