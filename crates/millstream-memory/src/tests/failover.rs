//! What becomes of everybody when the backend goes back to an earlier state; and of a member that is forgotten.

use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::leases::Acquired;
use millstream_core::log::{Append, Fetched};
use millstream_core::members::{Assignment, Member};
use millstream_core::{
    Backend, Envelope, ErrorKind, GroupName, Lease, MemberId, MessageId, Reader, Resource, Settlement,
    TopicPartition, TopicSpec, wire,
};
use tokio::time::{Instant, sleep};

use crate::MemoryBackend;
use crate::operator::Operator;

const TICK: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3_600);

struct Bench {
    backend: Backend,
    operator: Operator,
    topic: TopicSpec,
    tp: TopicPartition,
    group: GroupName,
}

impl Bench {
    async fn new() -> Self {
        let memory = MemoryBackend::new();
        let (backend, operator) = (Backend::from(memory.clone()), memory.operator());
        let topic = TopicSpec::new("orders".parse().unwrap(), 2).unwrap();
        backend.catalog().create_topic(&topic).await.unwrap();
        let (tp, group) = (TopicPartition::new(topic.name.clone(), 0), GroupName::new("billing").unwrap());
        backend.catalog().create_group(&topic, &group, Start::Earliest).await.unwrap();
        Self { backend, operator, topic, tp, group }
    }

    async fn append(&self, tp: &TopicPartition, count: usize) -> Vec<MessageId> {
        let fields = |n: usize| wire::encode(&Envelope::new(n.to_string()));
        let batch: Vec<_> = (0..count).map(|n| Append::new(tp.clone(), fields(n))).collect();
        self.backend.log().append(&batch).await.into_iter().map(|result| result.unwrap().id).collect()
    }

    async fn lease(&self, tp: &TopicPartition, nonce: &str) -> Lease {
        let resource = Resource::partition(tp.clone(), self.group.clone());
        match self
            .backend
            .leases()
            .acquire(&resource, "test", nonce, HOUR, &millstream_core::Continuity::assured())
            .await
            .unwrap()
        {
            Acquired::Granted(lease) => lease,
            Acquired::Held(holder) => panic!("{holder:?}"),
        }
    }

    fn member(&self, id: &str) -> Member {
        Member::new(MemberId::new(id).unwrap(), "1", HOUR)
    }
}

#[tokio::test(start_paused = true)]
async fn what_came_since_is_lost_and_a_reader_starts_over() {
    let bench = Bench::new().await;
    let early = bench.append(&bench.tp, 3).await;
    let lease = bench.lease(&bench.tp, "1").await;
    let mut reader = bench.backend.log().reader(&lease).await.unwrap();
    let fetched = reader.fetch(2, Duration::ZERO).await.unwrap();
    let snapshot = bench.operator.snapshot();

    let acks: Vec<_> = fetched.entries.iter().map(|entry| (entry.receipt, Settlement::Ack)).collect();
    bench.backend.log().settle(&lease, &acks).await.unwrap();
    let lost = bench.append(&bench.tp, 1).await;
    sleep(TICK).await;
    bench.operator.restore(&snapshot);

    let mut read = Vec::new();
    for (count, pending) in [(2, true), (1, false), (0, false)] {
        let again = reader.fetch(10, Duration::ZERO).await.unwrap();
        assert_eq!((again.entries.len(), again.pending), (count, pending));
        read.extend(again.entries.into_iter().map(|entry| entry.receipt.id));
    }
    assert_eq!(read, early, "the acks are lost, and what was appended since");
    assert!(bench.append(&bench.tp, 1).await > lost, "no id comes twice");

    // As often as one likes.
    bench.operator.restore(&snapshot);
    let fetched = reader.fetch(10, Duration::ZERO).await.unwrap();
    assert_eq!(fetched.entries.iter().map(|entry| entry.deliveries).collect::<Vec<_>>(), [2, 2]);
}

#[tokio::test(start_paused = true)]
async fn neither_epochs_nor_versions_come_back() {
    let bench = Bench::new().await;
    let members = bench.backend.members();
    let (topic, group) = (&bench.topic.name, &bench.group);
    members.heartbeat(topic, group, &bench.member("ann"), true).await.unwrap();
    let snapshot = bench.operator.snapshot();
    sleep(TICK).await;
    let lost = bench.lease(&bench.tp, "lost").await;
    let version = members.heartbeat(topic, group, &bench.member("bob"), true).await.unwrap().version;
    sleep(TICK).await;
    bench.operator.restore(&snapshot);

    let next = bench.lease(&bench.tp, "next").await;
    assert!(next.epoch > lost.epoch && next.ends.is_empty());
    let renewed = bench.backend.leases().renew(&[lost]).await.remove(0);
    assert_eq!(renewed.unwrap_err().kind(), ErrorKind::Fenced);
    let pulse = members.heartbeat(topic, group, &bench.member("cid"), true).await.unwrap();
    assert_eq!(pulse.members, 2, "one that joined since is lost");
    assert!(pulse.version > version);
    assert!(!members.publish(topic, group, version, &Assignment::new()).await.unwrap());
}

/// Of a partition and of members that the earlier state knows nothing of.
#[tokio::test(start_paused = true)]
async fn who_waits_is_told_of_what_comes_after_the_failover() {
    let bench = Bench::new().await;
    let snapshot = bench.operator.snapshot();
    let tp = TopicPartition::new("later".parse().unwrap(), 0);
    let topic = TopicSpec::new(tp.topic.clone(), 1).unwrap();
    bench.backend.catalog().create_topic(&topic).await.unwrap();
    bench.backend.catalog().create_group(&topic, &bench.group, Start::Earliest).await.unwrap();
    let lease = bench.lease(&tp, "1").await;
    let mut reader = bench.backend.log().reader(&lease).await.unwrap();
    let mut watch = bench.backend.members().watch(&topic.name, &bench.group).await.unwrap();
    let started = Instant::now();
    let reading = tokio::spawn(async move { reader.fetch(1, HOUR).await });
    let watching = tokio::spawn(async move { watch.changed(Default::default(), HOUR).await });
    tokio::task::yield_now().await;

    bench.operator.restore(&snapshot);
    let error = reading.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "its grant is lost");
    bench.backend.catalog().create_topic(&topic).await.unwrap();
    bench.backend.members().heartbeat(&topic.name, &bench.group, &bench.member("ann"), true).await.unwrap();
    watching.await.unwrap().unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_member_that_is_forgotten_joins_again() {
    let bench = Bench::new().await;
    let members = bench.backend.members();
    let (topic, group) = (&bench.topic.name, &bench.group);
    let [ann, bob] = ["ann", "bob"].map(|id| bench.member(id));
    members.heartbeat(topic, group, &ann, true).await.unwrap();
    let before = members.heartbeat(topic, group, &bob, true).await.unwrap();
    assert!(bench.operator.forget_member(topic, group, &bob.id));
    assert!(!bench.operator.forget_member(topic, group, &bob.id));
    let after = members.heartbeat(topic, group, &ann, false).await.unwrap();
    assert_eq!((after.members, after.version), (1, before.version), "nobody is told");
    let refused = members.heartbeat(topic, group, &bob, false).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotMember);
    let again = members.heartbeat(topic, group, &bob, true).await.unwrap();
    assert!(again.members == 2 && again.version > before.version);
}

/// The size and cost of a heartbeat's reply must not grow with the group.
#[tokio::test(start_paused = true)]
async fn a_thousand_members_share_ten_thousand_partitions() {
    let bench = Bench::new().await;
    let members = bench.backend.members();
    let (topic, group) = (&bench.topic.name, &bench.group);
    bench.backend.catalog().expand(topic, 10_000).await.unwrap();
    let all: Vec<_> = (0..1_000).map(|n| bench.member(&format!("m-{n:04}"))).collect();
    for member in &all {
        members.heartbeat(topic, group, member, true).await.unwrap();
    }
    let roster = members.roster(topic, group).await.unwrap();
    assert_eq!((roster.members.len(), roster.partitions), (1_000, 10_000));
    let assignment = millstream_core::Assignor::assign(
        &millstream_core::assignment::Balanced,
        roster.partitions,
        &roster.members,
        &roster.assignment,
    );
    assert!(members.publish(topic, group, roster.version, &assignment).await.unwrap());
    for _ in 0..100 {
        for member in &all {
            let pulse = members.heartbeat(topic, group, member, false).await.unwrap();
            assert_eq!(pulse.assigned.map(|mine| mine.len()), Some(10));
        }
    }
}

/// Reads whatever is there.
async fn read(reader: &mut dyn Reader) -> Fetched {
    reader.fetch(10, Duration::ZERO).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_reader_tells_once_that_the_group_stands_before_what_it_handed_out() {
    let bench = Bench::new().await;
    let lease = bench.lease(&bench.tp, "a").await;
    let mut reader = bench.backend.log().reader(&lease).await.unwrap();
    let first = bench.append(&bench.tp, 2).await;
    read(&mut *reader).await;
    let before = bench.operator.snapshot();
    let lost = bench.append(&bench.tp, 2).await;
    assert_eq!(read(&mut *reader).await.rewound, None);
    bench.operator.restore(&before);
    reader.start_over();
    let fetched = read(&mut *reader).await;
    assert_eq!(fetched.rewound, Some((lost[1], first[1])));
    assert!(fetched.tail_lost && fetched.entries.is_empty(), "its ids may come again: nothing is read");
    // The lease is given back, and what is pending comes again under the next one.
    bench.backend.leases().release(&lease).await.unwrap();
    let lease = bench.lease(&bench.tp, "b").await;
    let mut reader = bench.backend.log().reader(&lease).await.unwrap();
    let fetched = read(&mut *reader).await;
    assert!(fetched.pending && fetched.entries.len() == 2 && fetched.rewound.is_none());
    let before = bench.operator.snapshot();
    let mut waiting = bench.backend.log().reader(&lease).await.unwrap();
    bench.append(&bench.tp, 1).await;
    read(&mut *waiting).await;
    read(&mut *waiting).await;
    let (rewound, ()) = tokio::join!(waiting.fetch(10, HOUR), async {
        sleep(TICK).await;
        bench.operator.restore(&before);
    });
    assert!(rewound.unwrap().rewound.is_some(), "also to one that waits");
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_moved_or_created_again_has_not_lost_its_way() {
    let bench = Bench::new().await;
    let lease = bench.lease(&bench.tp, "a").await;
    let mut reader = bench.backend.log().reader(&lease).await.unwrap();
    bench.append(&bench.tp, 2).await;
    read(&mut *reader).await;
    bench.backend.log().seek(&lease, Start::Earliest).await.unwrap();
    assert_eq!(reader.fetch(10, TICK).await.unwrap_err().kind(), ErrorKind::Fenced, "its lease went with it");
    let lease = bench.lease(&bench.tp, "b").await;
    let mut reader = bench.backend.log().reader(&lease).await.unwrap();
    assert_eq!(read(&mut *reader).await.rewound, None);
    assert!(bench.operator.destroy_group(&bench.tp, &bench.group));
    assert_eq!(reader.fetch(10, TICK).await.unwrap_err().kind(), ErrorKind::GroupMissing);
    bench.backend.catalog().restore_group(&bench.tp, &bench.group, MessageId::ZERO).await.unwrap();
    assert_eq!(read(&mut *reader).await.rewound, None);
}

/// The server that takes over has a clock that is behind.
#[tokio::test(start_paused = true)]
async fn ids_of_what_was_lost_are_given_again() {
    let bench = Bench::new().await;
    let kept = bench.append(&bench.tp, 2).await;
    let before = bench.operator.snapshot();
    sleep(TICK).await;
    let lost = bench.append(&bench.tp, 3).await;
    sleep(HOUR).await;
    bench.operator.restore_behind(&before);
    assert_eq!(bench.append(&bench.tp, 2).await, lost[..2]);
    bench.operator.restore_behind(&before);
    assert_eq!(bench.append(&bench.tp, 3).await, lost, "as often as one likes");
    let next = bench.append(&bench.tp, 1).await;
    assert!(next[0] > lost[2] && lost[0] > kept[1], "and then new ones");
    bench.operator.restore_behind(&before);
    bench.operator.restore(&before);
    assert!(bench.append(&bench.tp, 1).await > lost, "a clock that is right gives none again");
}
