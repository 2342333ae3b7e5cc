//! What an operator sees and does, over a queue in memory.
//! One program with the unit tests: each costs its own linking.

mod dead_letters;
mod replaying;
mod retries;
mod steps;
mod tasks;
mod topics;
#[cfg(feature = "packing")]
mod training;
mod trimming;
mod walks;

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::audit::Fault;
use millstream_core::inspect::{Range, Structure};
use millstream_core::leases::Acquired;
use millstream_core::log::{Append, Settlement};
use millstream_core::{
    Backend, Envelope, ErrorKind, GroupName, Lease, Limits, MessageId, Partition, Resource, Start, TopicName,
    TopicPartition, TopicSpec, wire,
};
use millstream_memory::MemoryBackend;

use crate::{Admin, Browse, Cursor, Filter, PendingOrder, PendingQuery, Repaired, Standing, VerifyOptions};

const PARTITIONS: u32 = 3;

struct Stage {
    memory: MemoryBackend,
    backend: Backend,
    admin: Admin,
    topic: TopicSpec,
    group: GroupName,
}

impl Stage {
    async fn new() -> Self {
        let memory = MemoryBackend::new();
        let backend = Backend::from(memory.clone());
        let topic = TopicSpec::new("orders".parse().expect("a name"), PARTITIONS).expect("a topic");
        let topic = backend.catalog().create_topic(&topic).await.expect("created");
        let group: GroupName = "billing".parse().expect("a name");
        backend.catalog().create_group(&topic, &group, Start::Earliest).await.expect("created");
        Self { admin: Admin::new(backend.clone()), memory, backend, topic, group }
    }

    fn partition(&self, number: u32) -> TopicPartition {
        TopicPartition::new(self.topic.name.clone(), number)
    }

    /// Appends messages in turn to all partitions, one per millisecond.
    async fn append(&self, count: u32) -> Vec<(TopicPartition, MessageId)> {
        let mut appended = Vec::new();
        for number in 0..count {
            let topic_partition = self.partition(number % PARTITIONS);
            let mut envelope = Envelope::new(format!("message {number}"));
            envelope.key = Some(Bytes::from(format!("key-{}", number % 10)));
            envelope.headers.append("trace", Bytes::from(number.to_string()));
            let entry = Append::new(topic_partition.clone(), wire::encode(&envelope));
            let id = self.backend.log().append(&[entry]).await.remove(0).expect("appended").id;
            appended.push((topic_partition, id));
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        appended
    }

    async fn lease(&self, partition: u32) -> Lease {
        let resource = Resource::partition(self.partition(partition), self.group.clone());
        let ttl = Duration::from_secs(3_600);
        match self
            .backend
            .leases()
            .acquire(&resource, "me", "nonce", ttl, &millstream_core::Continuity::assured())
            .await
            .expect("asked")
        {
            Acquired::Granted(lease) => lease,
            Acquired::Held(holder) => panic!("held by {holder:?}"),
        }
    }

    /// Reads so many messages of each partition and settles none.
    async fn read(&self, each: usize) {
        for partition in 0..PARTITIONS {
            let mut reader = self.backend.log().reader(&self.lease(partition).await).await.expect("a reader");
            assert_eq!(reader.fetch(each, Duration::ZERO).await.expect("read").entries.len(), each);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn messages_of_all_partitions_come_by_id_in_both_directions() {
    let stage = Stage::new().await;
    let mut appended: Vec<_> = stage.append(50).await.into_iter().map(|(_, id)| id).collect();
    for newest_first in [false, true] {
        let range = Range { newest_first, ..Range::ALL };
        let mut browse = Browse { range, limit: 7, ..Browse::default() };
        let mut seen = Vec::new();
        loop {
            let page = stage.admin.messages(&stage.topic.name, &browse).await.expect("a page");
            assert!(page.messages.len() <= 7);
            seen.extend(page.messages.iter().map(|message| message.stored.id));
            // As it would come back from a user: by its text.
            browse.after = page.next.map(|next| next.to_string().parse::<Cursor>().expect("a cursor"));
            if browse.after.is_none() {
                break;
            }
        }
        assert_eq!(seen, appended, "newest first: {newest_first}");
        appended.reverse();
    }
}

#[tokio::test(start_paused = true)]
async fn a_message_is_found_by_id_key_header_and_payload() {
    let stage = Stage::new().await;
    let appended = stage.append(60).await;
    let find = async |filter: Filter, limit, looks| {
        let browse = Browse { limit, ..Browse::default() };
        stage.admin.find(&stage.topic.name, &browse, &filter, looks).await.expect("looked")
    };
    let by_id = find(Filter { id: Some(appended[31].1), ..Filter::default() }, 10, 1_000).await;
    assert_eq!((by_id.messages.len(), by_id.looked_at), (1, 1), "an id needs no search");
    let key = Filter { key: Some("key-3".into()), ..Filter::default() };
    assert_eq!(find(key.clone(), 100, 1_000).await.messages.len(), 6);
    let header = ("trace".to_owned(), Some(Bytes::from("42")));
    let found = find(Filter { header: Some(header), ..Filter::default() }, 100, 1_000).await;
    let payload = found.messages[0].decode(&Limits::default()).envelope.expect("a message").payload;
    assert_eq!((found.messages.len(), &payload[..]), (1, &b"message 42"[..]));
    let payload = Filter { payload: Some("age 5".into()), ..Filter::default() };
    assert_eq!(find(payload, 100, 1_000).await.messages.len(), 11, "5 and 50 to 59");

    // Stopped by either bound, it goes on where it was.
    let mut browse = Browse { limit: 2, ..Browse::default() };
    let mut ids = Vec::new();
    loop {
        let found = stage.admin.find(&stage.topic.name, &browse, &key, 13).await.expect("looked");
        assert!(found.messages.len() <= 2 && found.looked_at <= 13);
        ids.extend(found.messages.iter().map(|message| message.stored.id));
        browse.after = found.next;
        if browse.after.is_none() {
            break;
        }
    }
    let expected: Vec<_> = appended.iter().skip(3).step_by(10).map(|(_, id)| *id).collect();
    assert_eq!(ids, expected);
}

#[tokio::test(start_paused = true)]
async fn a_tail_gives_what_comes_and_nothing_twice() {
    let stage = Stage::new().await;
    stage.append(10).await;
    let mut tail = stage.admin.tail(&stage.topic.name, None).await.expect("a tail");
    assert_eq!(tail.run_once(100).await.expect("looked"), []);
    let appended = stage.append(10).await;
    let mut came = Vec::new();
    for _ in 0..4 {
        came.extend(tail.run_once(3).await.expect("looked").into_iter().map(|it| it.stored.id));
    }
    came.sort();
    assert_eq!(came, appended.into_iter().map(|(_, id)| id).collect::<Vec<_>>());
    let mut all = stage.admin.tail(&stage.topic.name, Some(MessageId::ZERO)).await.expect("a tail");
    assert_eq!(all.run_once(100).await.expect("looked").len(), 20);
}

#[tokio::test(start_paused = true)]
async fn what_is_pending_is_paged_by_id_and_ranked_by_idle_time_and_deliveries() {
    let stage = Stage::new().await;
    let appended = stage.append(60).await;
    stage.read(15).await;
    tokio::time::advance(Duration::from_secs(60)).await;
    // Those of partition 1 once more, just now.
    let mut again = stage.backend.log().reader(&stage.lease(1).await).await.expect("a reader");
    assert_eq!(again.fetch(100, Duration::ZERO).await.expect("read").entries.len(), 15);
    let mut query = PendingQuery { limit: 7, ..PendingQuery::default() };
    let mut seen = Vec::new();
    loop {
        let page = stage.admin.pending(&stage.topic.name, &stage.group, &query).await.expect("a page");
        seen.extend(page.entries.iter().map(|entry| (entry.topic_partition.clone(), entry.pending.id)));
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    assert_eq!(seen, appended[..45], "the first 15 of each partition, by id");

    // In pages of any size it is the same list.
    let list = async |query: PendingQuery| {
        let whole = PendingQuery { limit: 100, ..query.clone() };
        let whole = stage.admin.pending(&stage.topic.name, &stage.group, &whole).await.expect("a page");
        assert_eq!(whole.next, None);
        let (mut query, mut paged) = (PendingQuery { limit: 7, ..query }, Vec::new());
        loop {
            let page = stage.admin.pending(&stage.topic.name, &stage.group, &query).await.expect("a page");
            assert!(page.entries.len() == 7 || page.next.is_none(), "a full page, or the last one");
            paged.extend(page.entries);
            query.after = page.next.map(|next| next.to_string().parse().expect("a cursor"));
            if query.after.is_none() {
                break;
            }
        }
        assert_eq!(paged, whole.entries);
        whole.entries
    };
    let ranked = async |order, idle| list(PendingQuery { order, idle, ..PendingQuery::default() }).await;
    let most = ranked(PendingOrder::Deliveries, Duration::ZERO).await;
    let counts: Vec<_> = most.iter().map(|entry| entry.pending.deliveries).collect();
    assert_eq!((counts[..15].to_vec(), counts[15..].to_vec()), (vec![2; 15], vec![1; 30]));
    let oldest = ranked(PendingOrder::Idle, Duration::ZERO).await;
    assert!(oldest.is_sorted_by_key(|entry| std::cmp::Reverse(entry.pending.idle)));
    assert!(oldest[..30].iter().all(|entry| entry.topic_partition.partition.0 != 1), "{oldest:?}");
    for order in [PendingOrder::Id, PendingOrder::Idle, PendingOrder::Deliveries] {
        assert_eq!(ranked(order, Duration::from_secs(61)).await, []);
        let idle = ranked(order, Duration::from_secs(60)).await;
        assert!(idle.len() == 30 && idle.iter().all(|it| it.topic_partition.partition.0 != 1), "{idle:?}");
        let again = list(PendingQuery { order, deliveries: 2, ..PendingQuery::default() }).await;
        assert!(again.len() == 15 && again.iter().all(|it| it.topic_partition.partition.0 == 1), "{again:?}");
        assert_eq!(list(PendingQuery { order, deliveries: 3, ..PendingQuery::default() }).await, []);
    }
    for (order, after) in [(PendingOrder::Idle, "7-0.0"), (PendingOrder::Id, "7-0.0.1")] {
        let after = Some(after.parse().expect("a cursor"));
        let other = PendingQuery { order, after, ..PendingQuery::default() };
        let refused =
            stage.admin.pending(&stage.topic.name, &stage.group, &other).await.expect_err("refused");
        assert_eq!(refused.kind(), ErrorKind::InvalidConfig);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_handed_out_again_between_two_pages_takes_no_other_out_of_them() {
    let stage = Stage::new().await;
    let appended = stage.append(60).await;
    stage.read(15).await;
    let mut query = PendingQuery { order: PendingOrder::Idle, limit: 7, ..PendingQuery::default() };
    let mut seen = Vec::new();
    loop {
        tokio::time::advance(Duration::from_millis(1)).await;
        let page = stage.admin.pending(&stage.topic.name, &stage.group, &query).await.expect("a page");
        seen.extend(page.entries.iter().map(|entry| (entry.topic_partition.clone(), entry.pending.id)));
        if query.after.is_none() {
            let mut again = stage.backend.log().reader(&stage.lease(1).await).await.expect("a reader");
            assert_eq!(again.fetch(100, Duration::ZERO).await.expect("read").entries.len(), 15);
        }
        query.after = page.next;
        if query.after.is_none() {
            break;
        }
    }
    assert!(seen[seen.len() - 15..].iter().all(|(tp, _)| tp.partition.0 == 1), "they are last: {seen:?}");
    let again = seen[..7].iter().filter(|(tp, _)| tp.partition.0 == 1).count();
    assert_eq!(seen.len(), 45 + again, "no other is twice");
    assert!(appended[..45].iter().all(|it| seen.contains(it)), "none is left out: {seen:?}");
}

#[tokio::test(start_paused = true)]
async fn positions_are_before_what_is_not_settled_and_bring_a_group_back() {
    let stage = Stage::new().await;
    let appended: Vec<_> = stage.append(12).await.into_iter().map(|(_, id)| id).collect();
    // Partition 0 settles the second of three, 1 all of three, 2 has read nothing.
    for (partition, settled) in [(0, 1..2), (1, 0..3)] {
        let lease = stage.lease(partition).await;
        let mut reader = stage.backend.log().reader(&lease).await.expect("a reader");
        let read = reader.fetch(3, Duration::ZERO).await.expect("read").entries;
        let acks: Vec<_> = read[settled].iter().map(|it| (it.receipt, Settlement::Ack)).collect();
        stage.backend.log().settle(&lease, &acks).await.expect("settled");
        stage.backend.leases().release(&lease).await.expect("released");
    }
    let (topic, group) = (&stage.topic.name, &stage.group);
    let saved = stage.admin.group_positions(topic, group).await.expect("positions");
    let expected = [appended[0].previous(), appended[7], MessageId::ZERO];
    assert_eq!(saved.values().copied().collect::<Vec<_>>(), expected);

    let starts: BTreeMap<_, _> = saved.iter().map(|(at, id)| (*at, Start::After(*id))).collect();
    stage.admin.reset_group(topic, group, Start::Latest).await.expect("moved");
    let one = stage.lease(1).await;
    let refused = stage.admin.reset_partitions(topic, group, &starts).await.expect_err("1 has an owner");
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    let others = starts.iter().filter(|(at, _)| at.0 != 1).map(|(at, start)| (*at, *start)).collect();
    stage.admin.reset_partitions(topic, group, &others).await.expect("they have none");
    stage.backend.leases().release(&one).await.expect("released");
    let lags = async || {
        let stats = stage.backend.catalog().stats(&stage.topic, group).await.expect("stats");
        stats.iter().map(|it| it.lag.expect("a lag")).collect::<Vec<_>>()
    };
    assert_eq!(lags().await, [4, 0, 4]);
    let preview = stage.admin.reset_partitions_preview(topic, group, &starts).await.expect("a preview");
    assert_eq!(preview.iter().map(|it| it.reread).collect::<Vec<_>>(), [0, 1, 0]);
    stage.admin.reset_partitions(topic, group, &starts).await.expect("moved");
    assert_eq!(
        (lags().await, stage.admin.group_positions(topic, group).await.expect("positions")),
        (vec![4, 1, 4], saved)
    );

    for (partition, id, kind) in [
        (PARTITIONS, MessageId::ZERO, ErrorKind::NotFound),
        (2, MessageId::new(appended[11].ms + 1, 0), ErrorKind::InvalidConfig),
    ] {
        let wrong = BTreeMap::from([(Partition(partition), Start::After(id))]);
        let preview = stage.admin.reset_partitions_preview(topic, group, &wrong).await.map(drop);
        let reset = stage.admin.reset_partitions(topic, group, &wrong).await;
        assert_eq!([preview, reset].map(|it| it.expect_err("refused").kind()), [kind; 2]);
    }
    assert_eq!(lags().await, [4, 1, 4]);
}

#[tokio::test(start_paused = true)]
async fn owners_are_shown_beside_who_should_own() {
    let stage = Stage::new().await;
    stage.lease(2).await;
    let owners = stage.admin.owners(&stage.topic.name, &stage.group).await.expect("looked");
    let standings: Vec<_> = owners.partitions.iter().map(|partition| partition.standing).collect();
    assert_eq!(standings, [Standing::Idle, Standing::Idle, Standing::Unassigned]);
    let by: Vec<_> = owners.by_owner().into_iter().collect();
    assert_eq!(by, [("me".to_owned(), vec![stage.partition(2).partition])]);
}

#[tokio::test(start_paused = true)]
async fn verify_finds_tells_and_repairs() {
    let stage = Stage::new().await;
    let appended = stage.append(30).await;
    stage.read(10).await;
    let topic = &stage.topic.name;
    let sound = stage.admin.verify(topic, VerifyOptions::default()).await.expect("verified");
    assert!(sound.is_sound() && sound.verdicts.is_empty() && sound.looked_at >= 30, "{sound:?}");

    let operator = stage.memory.operator();
    assert!(operator.delete_entry(&appended[4].0, appended[4].1));
    assert!(operator.destroy_group(&stage.partition(2), &stage.group));
    let looked = stage.admin.verify(topic, VerifyOptions::default()).await.expect("verified");
    let faults: Vec<_> = looked.verdicts.iter().map(|verdict| verdict.finding.fault).collect();
    assert_eq!((faults, looked.is_sound()), (vec![Fault::Ghost, Fault::GroupMissing], false));
    assert!(looked.verdicts.iter().all(|verdict| verdict.repaired == Repaired::NotAsked));
    let cut = stage
        .admin
        .verify(topic, VerifyOptions { limit: 1, ..VerifyOptions::default() })
        .await
        .expect("verified");
    assert_eq!((cut.verdicts.len(), cut.cut, cut.is_sound()), (1, true, false));

    let repair = VerifyOptions { repair: true, ..VerifyOptions::default() };
    let repaired = stage.admin.verify(topic, repair.clone()).await.expect("verified");
    assert!(repaired.is_repaired() && repaired.verdicts.len() == 3, "{repaired:?}");
    for _ in 0..2 {
        let again = stage.admin.verify(topic, repair.clone()).await.expect("verified");
        let faults: Vec<_> = again.verdicts.iter().map(|it| (it.finding.fault, it.repaired)).collect();
        assert_eq!(faults, [(Fault::EntriesLost, Repaired::Record)], "what was lost is never called sound");
        assert!(!again.is_sound() && again.is_repaired() && again.lost().pending == 1, "{again:?}");
    }
    let nowhere: TopicName = "nowhere".parse().expect("a name");
    let missing = stage.admin.verify(&nowhere, repair).await.expect_err("not there");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

#[tokio::test(start_paused = true)]
async fn memory_is_told_by_structure_partition_and_group() {
    let stage = Stage::new().await;
    stage.append(30).await;
    let memory = stage.admin.memory(&stage.topic.name).await.expect("looked");
    assert_eq!(memory.structures[&Structure::Log].items, 30);
    assert_eq!(memory.partitions.len(), 3);
    assert_eq!(memory.bytes(), memory.partitions.values().map(|size| size.bytes).sum::<u64>());
}

#[tokio::test(start_paused = true)]
async fn the_doctor_says_that_a_queue_in_memory_is_one() {
    let reports = Stage::new().await.admin.doctor().await.expect("looked");
    assert_eq!(reports.len(), 1);
    assert_eq!(reports[0].subject, "server");
}
