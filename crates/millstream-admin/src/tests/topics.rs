//! Topics and groups as a whole, over a queue in memory.

use std::time::Duration;

use millstream_core::leases::{Acquired, Lease};
use millstream_core::log::{Append, Settlement};
use millstream_core::members::Member;
use millstream_core::{
    Backend, DeadLetterRetention, Envelope, ErrorKind, GroupName, MemberId, Resource, Retention, Start,
    TopicChange, TopicName, TopicPartition, TopicSpec, wire,
};
use millstream_memory::MemoryBackend;

use crate::{Admin, InUse};

const MINUTE: Duration = Duration::from_secs(60);

struct Stage {
    backend: Backend,
    admin: Admin,
    topic: TopicName,
}

fn group(name: &str) -> GroupName {
    name.parse().expect("a name")
}

impl Stage {
    async fn new() -> Self {
        let backend = Backend::from(MemoryBackend::new());
        let admin = Admin::new(backend.clone());
        let topic: TopicName = "orders".parse().expect("a name");
        admin.create_topic(&TopicSpec::new(topic.clone(), 2).expect("a topic")).await.expect("created");
        for name in ["fast", "never", "slow"] {
            admin.create_group(&topic, &group(name), Start::Earliest).await.expect("created");
        }
        Self { backend, admin, topic }
    }

    async fn append(&self, count: usize) {
        self.append_to(0, count).await;
    }

    async fn append_to(&self, partition: u32, count: usize) {
        let topic_partition = TopicPartition::new(self.topic.clone(), partition);
        let entry = Append::new(topic_partition, wire::encode(&Envelope::new("hello")));
        for result in self.backend.log().append(&vec![entry; count]).await {
            result.expect("appended");
        }
    }

    async fn lease(&self, name: &str) -> Lease {
        self.lease_of(0, name).await
    }

    async fn lease_of(&self, partition: u32, name: &str) -> Lease {
        let resource = Resource::partition(TopicPartition::new(self.topic.clone(), partition), group(name));
        match self
            .backend
            .leases()
            .acquire(&resource, "somebody", name, MINUTE, &millstream_core::Continuity::assured())
            .await
            .expect("an answer")
        {
            Acquired::Granted(lease) => lease,
            Acquired::Held(holder) => panic!("{holder:?}"),
        }
    }

    /// A group settles so many, and stops.
    async fn work(&self, name: &str, count: usize) {
        self.work_on(0, name, count).await;
    }

    async fn work_on(&self, partition: u32, name: &str, count: usize) {
        let lease = self.lease_of(partition, name).await;
        let mut reader = self.backend.log().reader(&lease).await.expect("a reader");
        let entries = reader.fetch(count, Duration::ZERO).await.expect("fetched").entries;
        let batch: Vec<_> = entries.iter().map(|entry| (entry.receipt, Settlement::Ack)).collect();
        self.backend.log().settle(&lease, &batch).await.expect("settled");
        self.backend.leases().release(&lease).await.expect("released");
    }
}

#[tokio::test(start_paused = true)]
async fn who_is_in_use_is_not_deleted_unless_forced() {
    let stage = Stage::new().await;
    let (admin, topic) = (&stage.admin, &stage.topic);
    let lease = stage.lease("slow").await;
    let member = Member::new(MemberId::new("a").expect("an id"), "a-1", MINUTE);
    stage.backend.members().heartbeat(topic, &group("fast"), &member, true).await.expect("a pulse");
    for (name, who) in [("slow", "somebody"), ("fast", "a")] {
        let error = admin.delete_group(topic, &group(name), InUse::Refuse).await.expect_err("in use");
        assert_eq!(error.kind(), ErrorKind::Exists);
        assert!(error.to_string().contains(&format!("in use by {who}:")), "{error}");
        let error = admin.delete_topic(topic, InUse::Refuse).await.expect_err("in use");
        assert_eq!(error.kind(), ErrorKind::Exists);
    }
    assert_eq!(admin.groups(topic).await.expect("groups").len(), 3, "nothing was done");
    stage.backend.members().leave(topic, &group("fast"), &member).await.expect("left");
    admin.delete_group(topic, &group("fast"), InUse::Refuse).await.expect("nobody is there");
    admin.delete_group(topic, &group("slow"), InUse::Force).await.expect("forced");
    let settled = stage.backend.log().settle(&lease, &[]).await;
    assert_eq!(settled.expect_err("its lease is gone").kind(), ErrorKind::Fenced);
    assert_eq!(admin.groups(topic).await.expect("groups"), [group("never")]);
    let error = admin.delete_group(topic, &group("fast"), InUse::Force).await.expect_err("gone");
    assert_eq!(error.kind(), ErrorKind::NotFound);

    stage.lease("never").await;
    admin.delete_topic(topic, InUse::Force).await.expect("forced");
    assert_eq!(admin.topics().await.expect("topics"), []);
    for in_use in [InUse::Force, InUse::Refuse] {
        let error = admin.delete_topic(topic, in_use).await.expect_err("gone");
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }
    assert_eq!(admin.groups(topic).await.expect_err("gone").kind(), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn a_topic_is_changed_and_grows() {
    let stage = Stage::new().await;
    let dead = DeadLetterRetention::length(7);
    let change = TopicChange::new().retention(Retention::Length(5)).max_length(9).dead_letter_retention(dead);
    let altered = stage.admin.alter_topic(&stage.topic, &change).await.expect("altered");
    assert_eq!((altered.retention, altered.max_length), (Retention::Length(5), Some(9)));
    let grown = stage.admin.expand_topic(&stage.topic, 4).await.expect("grown");
    assert_eq!(grown, stage.admin.topic(&stage.topic).await.expect("there"));
    assert_eq!((grown.partitions, grown.max_length, grown.dead_letter_retention), (4, Some(9), dead));
    let error = stage.admin.expand_topic(&stage.topic, 3).await.expect_err("fewer");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

#[tokio::test(start_paused = true)]
async fn groups_that_nobody_uses_are_expired_when_asked() {
    let stage = Stage::new().await;
    let (admin, topic) = (&stage.admin, &stage.topic);
    admin.delete_group(topic, &group("never"), InUse::Refuse).await.expect("deleted");
    stage.append(10).await;
    stage.work("slow", 3).await;
    tokio::time::advance(10 * MINUTE).await;
    stage.work("fast", 9).await;
    let pins = admin.pins(topic).await.expect("pins");
    assert_eq!((pins.len(), pins[0].group.as_str(), pins[0].messages), (1, "slow", 6));

    let expire = async |idle: Duration, dry_run: bool| {
        let expired = admin.expire_groups(topic, idle, dry_run).await.expect("an answer");
        expired.into_iter().map(|it| (it.group.to_string(), it.messages)).collect::<Vec<_>>()
    };
    assert_eq!(expire(11 * MINUTE, false).await, [], "it has read since");
    let lease = stage.lease("slow").await;
    assert_eq!(expire(5 * MINUTE, false).await, [], "somebody has a partition of it");
    stage.backend.leases().release(&lease).await.expect("released");
    assert_eq!(expire(5 * MINUTE, true).await, [("slow".to_owned(), 6)]);
    assert_eq!(admin.groups(topic).await.expect("groups").len(), 2, "it was a dry run");
    assert_eq!(expire(5 * MINUTE, false).await, [("slow".to_owned(), 6)]);
    assert_eq!(admin.groups(topic).await.expect("groups"), [group("fast")]);

    // One that has never read is named, and not expired.
    admin.create_group(topic, &group("new"), Start::Earliest).await.expect("created");
    tokio::time::advance(100 * MINUTE).await;
    assert_eq!(admin.pins(topic).await.expect("pins")[0].group, group("new"));
    assert_eq!(expire(MINUTE, false).await, [("fast".to_owned(), 0)], "it keeps one, if not alone");
    assert_eq!(admin.groups(topic).await.expect("groups"), [group("new")]);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_works_elsewhere_is_not_expired() {
    let stage = Stage::new().await;
    let (admin, topic) = (&stage.admin, &stage.topic);
    admin.delete_group(topic, &group("never"), InUse::Refuse).await.expect("deleted");
    for partition in [0, 1] {
        stage.append_to(partition, 10).await;
        stage.work_on(partition, "slow", 3).await;
    }
    tokio::time::advance(100 * MINUTE).await;
    // In the first partition nobody has read for long, and there it keeps the most; in the second it does not.
    stage.work_on(1, "slow", 7).await;
    stage.work_on(0, "fast", 10).await;
    let pins = admin.pins(topic).await.expect("pins");
    assert!(pins.iter().any(|pin| pin.group == group("slow") && pin.idle >= Some(100 * MINUTE)), "{pins:?}");
    let expired = admin.expire_groups(topic, 50 * MINUTE, false).await.expect("an answer");
    assert_eq!(expired, [], "it works");
    tokio::time::advance(60 * MINUTE).await;
    let expired = admin.expire_groups(topic, 50 * MINUTE, false).await.expect("an answer");
    let names: Vec<_> = expired.iter().map(|it| (it.group.as_str(), it.idle)).collect();
    assert_eq!(
        names,
        [("fast", 60 * MINUTE), ("slow", 60 * MINUTE)],
        "both are idle everywhere, and keep something"
    );
}

#[tokio::test(start_paused = true)]
async fn a_group_is_paused_and_shows_it() {
    let stage = Stage::new().await;
    let (admin, topic, slow) = (&stage.admin, &stage.topic, group("slow"));
    assert!(admin.pause_group(topic, &slow).await.expect("paused"));
    assert!(!admin.pause_group(topic, &slow).await.expect("paused"), "it was already");
    let stats = admin.stats(topic).await.expect("stats").groups;
    let paused: Vec<_> = stats.iter().map(|it| (it.group.as_str(), it.paused.is_some())).collect();
    assert_eq!(paused, [("fast", false), ("never", false), ("slow", true)]);
    assert!(admin.group_state(topic, &slow).await.expect("a state").paused.is_some());
    assert!(admin.resume_group(topic, &slow).await.expect("resumed"));
    assert!(!admin.resume_group(topic, &slow).await.expect("resumed"));
    let unknown = admin.pause_group(topic, &group("nobody")).await.expect_err("not there");
    assert_eq!(unknown.kind(), ErrorKind::NotFound);
}
