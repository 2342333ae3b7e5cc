//! Names and keys: a name is what its rule says, two inputs never share a key, and a log's key names its partition.
//!
//! Input: a partition, then texts with a line break between: twice a topic, a group, a queue, a lock and a namespace.

use std::collections::HashMap;

use millstream_core::error::ErrorKind;
use millstream_core::idempotency::Operation;
use millstream_core::keys::{Key, Keys};
use millstream_core::name::MAX_NAME_LEN;
use millstream_core::schedule::{Place, Shard};
use millstream_core::{GroupName, LockName, MessageId, Namespace, QueueName, TopicName, TopicPartition};

use super::Input;

/// The rule of names, written a second time.
fn is_name(text: &str, also: &[u8]) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte) || also.contains(&byte);
    (1..=MAX_NAME_LEN).contains(&text.len()) && text.bytes().all(allowed)
}

macro_rules! name {
    ($kind:ident, $text:expr, $also:expr) => {{
        let text: &str = $text;
        match $kind::new(text) {
            Ok(name) => {
                assert!(is_name(text, $also), "{text:?} is a name");
                assert_eq!((name.as_str(), name.to_string()), (text, text.to_owned()));
                Some(name)
            }
            Err(error) => {
                assert!(!is_name(text, $also), "{text:?} is no name");
                assert_eq!(error.kind(), ErrorKind::InvalidName);
                None
            }
        }
    }};
}

/// What keys are made of.
struct Parts<'a> {
    topic: &'a str,
    group: &'a str,
    queue: &'a str,
    lock: &'a str,
    namespace: &'a str,
    partition: u32,
    number: u64,
}

pub(crate) fn check(input: &[u8]) {
    let mut input = Input(input);
    let numbers = [(input.byte(), input.byte()), (input.byte(), input.byte())];
    let text = String::from_utf8_lossy(input.0).into_owned();
    let texts: Vec<_> = text.split('\n').collect();
    let id = text.parse::<MessageId>().ok();
    assert_eq!(id.and_then(|id| id.to_string().parse().ok()), id);
    let text = |at: usize| texts.get(at).copied().unwrap_or_default();
    let parts = [0, 5].map(|at| {
        let (partition, number) = numbers[at / 5];
        Parts {
            topic: text(at),
            group: text(at + 1),
            queue: text(at + 2),
            lock: text(at + 3),
            namespace: text(at + 4),
            partition: partition.into(),
            number: number.into(),
        }
    });
    let mut seen: HashMap<Key, String> = HashMap::new();
    for (key, made_of) in parts.iter().flat_map(keys) {
        if let Some(other) = seen.insert(key.clone(), made_of.clone()) {
            assert_eq!(other, made_of, "{key} is made of both");
        }
    }
}

/// All keys of these parts, each with what it is made of.
fn keys(parts: &Parts<'_>) -> Vec<(Key, String)> {
    let topic = name!(TopicName, parts.topic, b"");
    let group = name!(GroupName, parts.group, b"~");
    let queue = name!(QueueName, parts.queue, b"");
    let lock = name!(LockName, parts.lock, b":/@+=,#");
    let namespace = name!(Namespace, parts.namespace, b"");
    let keys = namespace.as_ref().map_or_else(Keys::new, Keys::within);
    let within = namespace.as_ref().map_or("", Namespace::as_str);
    let mut made = Vec::new();
    let mut add =
        |key: Key, family: &str, of: &[&str]| made.push((key, format!("{within} {family} {}", of.join(" "))));
    let (partition, number) = (parts.partition.to_string(), parts.number.to_string());

    if let Some(topic) = &topic {
        let tp = TopicPartition::new(topic.clone(), parts.partition);
        let at = [topic.as_str(), partition.as_str()];
        let log = keys.log(&tp);
        assert_eq!(keys.partition_of(topic, log.as_str()), Some(tp.partition));
        add(log, "log", &at);
        let place = Place::from(tp.clone());
        for (family, key) in of_place(&keys, &place) {
            add(key, family, &at);
        }
        add(keys.dedup(&tp), "dedup", &at);
        add(keys.dedup_old(&tp), "dedup old", &at);
        add(keys.unique(&tp), "unique", &at);
        add(keys.packs(&tp), "packs", &at);
        let numbered = keys.numbered(&tp, u128::from(parts.number), parts.number);
        add(numbered, "numbered", &[at[0], at[1], number.as_str()]);
        add(keys.topic_meta(topic), "meta", &at[..1]);
        add(keys.topic_deleted(topic), "deleted", &at[..1]);
        add(keys.topic_dictionaries(topic), "dictionaries", &at[..1]);
        add(keys.topic_partitions(topic), "partitions", &at[..1]);
        add(keys.topic_groups(topic), "groups", &at[..1]);
    }
    if let (Some(topic), Some(group)) = (&topic, &group) {
        let tp = TopicPartition::new(topic.clone(), parts.partition);
        let of = [topic.as_str(), group.as_str(), partition.as_str()];
        for (family, key) in [
            ("retry log", keys.retry_log(&tp, group)),
            ("dead letters", keys.dead_letters(&tp, group)),
            ("dead claims", keys.dead_claims(&tp, group)),
            ("dead imports", keys.dead_imports(&tp, group)),
            ("lease", keys.lease(&tp, group)),
            ("fence", keys.fence(&tp, group)),
            ("retry due", keys.retry_due(&tp, group)),
            ("retry items", keys.retry_items(&tp, group)),
            ("held", keys.held(&tp, group)),
            ("settled", keys.settled(&tp, group)),
            ("unique retry", keys.unique_retry(&tp, group)),
        ] {
            assert_eq!(tag(&key), format!("{topic}:p:{partition}"));
            add(key, family, &of);
        }
        for (family, key) in [
            ("members", keys.members(topic, group)),
            ("member", keys.member(topic, group)),
            ("assignment", keys.assignment(topic, group)),
            ("changes", keys.changes(topic, group)),
            ("state", keys.group_state(topic, group)),
        ] {
            add(key, family, &of[..2]);
        }
        // Ids of operations are any bytes: here those of a text that is no name.
        if let Ok(operation) = Operation::new(topic.clone(), group.clone(), parts.lock.as_bytes().to_vec()) {
            add(keys.marker(&operation), "marker", &[of[0], of[1], &format!("{:?}", parts.lock)]);
        }
    }
    if let Some(queue) = &queue {
        let shard = Shard::new(queue.clone(), parts.partition);
        let at = [queue.as_str(), partition.as_str()];
        for (family, key) in of_place(&keys, &Place::from(shard.clone())) {
            add(key, &format!("queue {family}"), &at);
        }
        add(keys.claims(&shard), "claims", &at);
        add(keys.task_states(&shard), "task states", &at);
        add(keys.finished(&shard), "finished", &at);
        add(keys.watcher(&shard), "watcher", &at);
        add(keys.dead_tasks(&shard), "dead tasks", &at);
        add(keys.queue_meta(queue), "queue meta", &at[..1]);
    }
    if let Some(lock) = &lock {
        for (family, key) in [
            ("lock", keys.lock(lock)),
            ("lock queue", keys.lock_queue(lock)),
            ("lock places", keys.lock_places(lock)),
            ("lock changes", keys.lock_changes(lock)),
        ] {
            assert!(tag(&key).starts_with("lock:s:"));
            add(key, family, &[lock.as_str()]);
        }
    }
    add(keys.queues(), "queues", &[]);
    add(keys.topics(), "topics", &[]);
    made
}

fn of_place(keys: &Keys, place: &Place) -> [(&'static str, Key); 5] {
    [
        ("delay", keys.delay(place)),
        ("delay items", keys.delay_items(place)),
        ("recur", keys.recur(place)),
        ("recur items", keys.recur_items(place)),
        ("wake", keys.wake(place)),
    ]
}

/// The hash tag of a key: what decides about its slot.
fn tag(key: &Key) -> String {
    let text = key.as_str();
    let from = text.find('{').expect("a tag") + 1;
    let to = text[from..].find('}').expect("its end") + from;
    text[from..to].to_owned()
}
