//! Large entries: pages follow their weight, and no script keeps the server for longer than about 1 MiB of them.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::catalog::{Catalog, Start};
use millstream_core::error::ErrorKind;
use millstream_core::log::{Append, Log, Receipt, Settlement};
use millstream_core::name::GroupName;
use millstream_core::recurring::{Recurrence, Recurring};
use millstream_core::schedule::{Due, OnConflict, Placed, Schedule, Scheduling};
use millstream_core::shared::{Shared, SharedMember};
use millstream_core::topic::Partition;
use millstream_core::wire::Fields;

use crate::schedule::id;
use crate::server::{Bench, dead, fetch, message, retry};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

pub(crate) const MIB: usize = 1 << 20;
const NOW: Duration = Duration::ZERO;
const P: Partition = Partition(0);

pub(crate) fn large(n: usize) -> Fields {
    vec![("payload".into(), vec![b'x'; MIB].into()), ("n".into(), n.to_string().into())]
}

fn member(bench: &Bench, name: &str) -> SharedMember {
    let consumer = name.parse().expect("a name");
    SharedMember::new(bench.spec.name.clone(), bench.group.clone(), consumer)
}

/// How often a command was called, and for how many microseconds the server worked on it.
pub(crate) async fn cost(bench: &mut Bench, command: &str) -> (u64, u64) {
    let info: String = redis::from_redis_value(bench.cmd("INFO commandstats").await).expect("a text");
    let line = info.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let number = |name: &str| -> Option<u64> {
        line?.split(',').find_map(|part| part.strip_prefix(name))?.parse().ok()
    };
    (number("calls=").unwrap_or(0), number("usec=").unwrap_or(0))
}

impl Bench {
    /// Lets the server close each connection that has an answer of more than these bytes, which then is lost.
    async fn lose_answers_above(&mut self, bytes: usize) {
        let mut cmd = redis::cmd("CONFIG");
        cmd.arg("SET").arg("client-output-buffer-limit").arg(format!("normal {bytes} 0 0"));
        cmd.exec_async(&mut self.raw).await.expect("set");
    }

    pub(crate) async fn fill(&self, count: usize, fields: impl Fn(usize) -> Fields) {
        for n in 0..count {
            let append = Append::new(self.tp.clone(), fields(n));
            self.backend.append(&[append]).await.pop().expect("a result").expect("appended");
        }
    }

    /// Claims everything that a consumer has left which is dead; gives back how long scripts took, in microseconds.
    async fn claim_all(&mut self, count: usize, fields: impl Fn(usize) -> Fields) -> u64 {
        let mut dead = self.backend.shared_reader(&member(self, "dead"), &[P]).await.expect("a reader");
        self.fill(count, &fields).await;
        let mut read = 0;
        while read < count {
            let pages = dead.fetch(count, NOW).await.expect("fetched");
            read += pages.iter().map(|(_, fetched)| fetched.entries.len()).sum::<usize>();
        }
        self.cmd("CONFIG RESETSTAT").await;
        let (next, mut claimed) = (member(self, "next"), Vec::new());
        while claimed.len() < count {
            let more = self
                .backend
                .claim(&next, P, &[], NOW, 100, &millstream_core::Continuity::assured())
                .await
                .expect("claimed");
            assert!(!more.abandoned.entries.is_empty(), "after {}", claimed.len());
            claimed.extend(more.abandoned.entries);
        }
        let (_, took) = cost(self, "evalsha").await;
        for (n, entry) in claimed.iter().enumerate() {
            assert_eq!((entry.deliveries, &entry.fields), (2, &fields(n)), "entry {n}");
        }
        let acks: Vec<_> = claimed.iter().map(|entry| (entry.receipt, Settlement::Ack)).collect();
        let settled = self.backend.settle_shared(&next, P, &acks).await.expect("settled");
        assert_eq!(settled.applied, count);
        took
    }
}

/// XCLAIM without JUSTID copies bodies through Lua: 100 of 1 MiB kept the server for half a second.
#[tokio::test]
async fn a_claim_costs_the_server_the_same_whatever_bodies_weigh() {
    let mut bench = Bench::private(&[]).await;
    let small = bench.claim_all(100, |n| message(&n.to_string())).await;
    let large = bench.claim_all(100, large).await;
    assert!(large <= 25 * small.max(200), "{large} us for 100 MiB, {small} us for nothing");
}

#[tokio::test]
async fn a_claim_counts_one_delivery_more_for_each_whatever_the_count_was() {
    let mut bench = Bench::new().await;
    let (log, ids) = (bench.log(), bench.append_many(4).await);
    bench.cmd(&format!("XREADGROUP GROUP billing dead COUNT 4 STREAMS {log} >")).await;
    for (at, times) in [(1, 5), (2, 2), (3, 5)] {
        bench.cmd(&format!("XCLAIM {log} billing dead 0 {} RETRYCOUNT {times}", ids[at])).await;
    }
    bench.cmd(&format!("XDEL {log} {}", ids[2])).await;
    let claimed = bench
        .backend
        .claim(&member(&bench, "next"), P, &[], NOW, 10, &millstream_core::Continuity::assured())
        .await
        .expect("claimed");
    let told: Vec<_> =
        claimed.abandoned.entries.iter().map(|entry| (entry.receipt.id, entry.deliveries)).collect();
    assert_eq!(told, [(ids[0], 2), (ids[1], 6), (ids[3], 6)], "in the order of ids");
    assert_eq!(claimed.abandoned.ghosts.iter().map(|ghost| ghost.id).collect::<Vec<_>>(), [ids[2]]);
    // The server has the same counts, and the ghost is off its list.
    let mut reader = bench.backend.shared_reader(&member(&bench, "next"), &[P]).await.expect("a reader");
    let read = reader.fetch(10, NOW).await.expect("fetched");
    let counts: Vec<_> = read[0].1.entries.iter().map(|entry| entry.deliveries).collect();
    assert_eq!((counts, read[0].1.ghosts.len()), (vec![3, 7, 7], 0));
    // So it is for an owner.
    assert_eq!(
        bench
            .backend
            .adopt(&bench.lease, NOW, 10, &millstream_core::Continuity::assured())
            .await
            .expect("adopted"),
        3
    );
    let counts: Vec<_> =
        fetch(&mut bench.reader().await, 10).await.entries.iter().map(|e| e.deliveries).collect();
    assert_eq!(counts, [5, 9, 9], "adopted, and read");
}

#[tokio::test]
async fn pages_of_a_reader_follow_the_weight_of_entries() {
    let mut bench = Bench::private(&[]).await;
    bench.append_many(512).await;
    let mut reader = bench.reader().await;
    // What is known of the log before the first page says that entries are small.
    bench.cmd("CONFIG RESETSTAT").await;
    let first = fetch(&mut reader, 512).await;
    assert!(first.entries.len() >= 511, "small ones come at once, not {}", first.entries.len());
    let (reads, _) = cost(&mut bench, "xreadgroup").await;
    // Of each stream what is pending, then what is new, and once more what the other one had no use for.
    assert!(reads <= 6, "{reads} reads for 512 small entries");
    drop((first, reader));

    let bench = Bench::private(&[]).await;
    bench.fill(40, large).await;
    for pending in [false, true] {
        let (mut reader, mut came) = (bench.reader().await, Vec::new());
        while came.len() < 40 {
            let fetched = fetch(&mut reader, 512).await;
            assert_eq!(fetched.pending, pending);
            assert!(
                (1..=11).contains(&fetched.entries.len()),
                "{} of 1 MiB in a page",
                fetched.entries.len()
            );
            came.extend(fetched.entries);
        }
        assert!(came.iter().enumerate().all(|(n, entry)| entry.fields == large(n)), "pending: {pending}");
    }
    let mut reader = bench.backend.shared_reader(&member(&bench, "one"), &[P]).await.expect("a reader");
    bench.fill(40, large).await;
    for pending in [false, true] {
        let mut came = 0;
        while came < 40 {
            let read = reader.fetch(512, NOW).await.expect("fetched");
            let entries: usize = read.iter().map(|(_, fetched)| fetched.entries.len()).sum();
            assert!((1..=11).contains(&entries), "{entries} of 1 MiB in a page, pending: {pending}");
            came += entries;
        }
        reader = bench.backend.shared_reader(&member(&bench, "one"), &[P]).await.expect("a reader");
    }
}

/// Answers above a size never arrive whole: a reader that asks for as much again would ask for ever.
#[tokio::test]
async fn a_lost_answer_halves_the_next_page() {
    let mut bench = Bench::private(&[]).await;
    let small = |_: usize| message(&"x".repeat(1 << 10));
    let one = member(&bench, "one");
    // The owner has 512 entries pending, and so has a consumer that shares.
    bench.fill(512, small).await;
    let (mut reader, mut came) = (bench.reader().await, 0);
    while came < 512 {
        came += fetch(&mut reader, 512).await.entries.len();
    }
    bench.fill(512, small).await;
    let (mut reader, mut came) = (bench.backend.shared_reader(&one, &[P]).await.expect("a reader"), 0);
    while came < 512 {
        let read = reader.fetch(512, NOW).await.expect("fetched");
        came += read.iter().map(|(_, fetched)| fetched.entries.len()).sum::<usize>();
    }

    // Of these answers, one with 128 entries arrives.
    bench.lose_answers_above(200 << 10).await;
    let mut reader = bench.reader().await;
    for entries in [512, 256] {
        let lost = reader.fetch(512, NOW).await.expect_err("an answer that is too large");
        assert_eq!(lost.kind(), ErrorKind::Unconfirmed, "{entries} entries: {lost}");
    }
    let page = reader.fetch(512, NOW).await.expect("a quarter arrives");
    assert_eq!((page.pending, page.entries.len()), (true, 128));

    let mut reader = bench.backend.shared_reader(&one, &[P]).await.expect("a reader");
    for entries in [512, 256] {
        let lost = reader.fetch(512, NOW).await.expect_err("an answer that is too large");
        assert_eq!(lost.kind(), ErrorKind::Unconfirmed, "{entries} entries: {lost}");
    }
    let read = reader.fetch(512, NOW).await.expect("a quarter arrives");
    assert_eq!((read[0].1.pending, read[0].1.entries.len()), (true, 128));
}

#[tokio::test]
async fn a_claim_takes_a_page_and_reads_it_in_steps() {
    let mut bench = Bench::private(&[]).await;
    bench.fill(40, large).await;
    let log = bench.log();
    bench.cmd(&format!("XREADGROUP GROUP billing dead COUNT 40 STREAMS {log} >")).await;
    // All bodies of a page in one answer, or a page of all entries, would be lost.
    bench.lose_answers_above(6 * MIB).await;
    bench.watch_load().await;
    let continuity = millstream_core::Continuity::assured();
    let claimed = bench.backend.claim(&member(&bench, "next"), P, &[], NOW, 100, &continuity).await;
    let entries = claimed.expect("claimed").abandoned.entries;
    assert!((1..=16).contains(&entries.len()), "{} of 1 MiB in a page", entries.len());
    assert!(entries.iter().enumerate().all(|(n, entry)| entry.fields == large(n)));
    // The connection that everybody shares carries no bodies.
    let (mut reads, ran) = (0, bench.cmd("SLOWLOG GET -1").await.into_sequence().expect("a list"));
    for command in ran {
        let parts = command.into_sequence().expect("a command");
        let words: Vec<String> = redis::from_redis_value(parts[3].clone()).expect("words");
        if words[0] == "XRANGE" {
            let connection: String = redis::from_redis_value(parts[5].clone()).expect("a name");
            assert_eq!(connection, "millstream:bulk", "{words:?}");
            reads += 1;
        }
    }
    assert_eq!(reads, entries.len());
}

#[tokio::test]
async fn large_entries_are_settled_a_few_at_a_time() {
    let mut bench = Bench::private(&[]).await;
    bench.fill(24, large).await;
    let mut reader = bench.reader().await;
    let mut receipts: Vec<Receipt> = Vec::new();
    while receipts.len() < 24 {
        receipts.extend(fetch(&mut reader, 24).await.entries.iter().map(|entry| entry.receipt));
    }
    bench.cmd("CONFIG RESETSTAT").await;
    let batch = |settlement: fn(Receipt) -> Settlement, of: &[Receipt]| -> Vec<_> {
        of.iter().map(|receipt| (*receipt, settlement(*receipt))).collect()
    };
    let retries = batch(|of| retry(NOW, 2, of.id), &receipts[..12]);
    // One that is settled already stands among them, and one that does not copy anything.
    let letters = batch(|of| dead(of.id), &receipts[12..23]);
    let all =
        [retries.clone(), letters, vec![(receipts[0], Settlement::Ack), (receipts[23], Settlement::Ack)]];
    // Acks are done first: that makes the first retry stale.
    assert_eq!(bench.settle(&all.concat()).await, (24, 1));
    assert_eq!(bench.settle(&retries).await, (0, 12), "sent again");
    let (calls, _) = cost(&mut bench, "evalsha").await;
    assert!(calls >= 12 + 11, "{calls} calls for 23 MiB");
    let (due, dlq) = (bench.keys.retry_due(&bench.tp, &bench.group), bench.dlq());
    assert_eq!(bench.int(&format!("ZCARD {due}")).await, 11);
    assert_eq!(bench.int(&format!("XLEN {dlq}")).await, 11);

    let mut moved = Vec::new();
    while moved.iter().sum::<usize>() < 11 {
        let promoted = bench.backend.promote(&bench.lease, 200).await.expect("promoted");
        moved.push(promoted.moved);
        assert_eq!(promoted.next, (moved.len() < 11).then_some(NOW), "the rest is due at once");
    }
    assert_eq!(moved, [1; 11]);
}

#[tokio::test]
async fn large_messages_are_scheduled_and_promoted_a_few_at_a_time() {
    let mut bench = Bench::private(&[]).await;
    let place = bench.partition();
    let recurrence = Recurrence {
        id: id("r"),
        rule: "every 5s".into(),
        fields: large(0),
        next: Some(AT(20)),
        paused: false,
    };
    let put = Recurring::put(&bench.backend, &place, &recurrence, OnConflict::Keep).await;
    assert_eq!(put.expect("kept"), Placed::New);
    bench.cmd("CONFIG RESETSTAT").await;
    let fires: Vec<_> = (1..=20).map(Timestamp::from_millis).collect();
    assert_eq!(bench.backend.fire(&place, &id("r"), &fires, AT(20), None).await.expect("fired"), Some(20));
    let (calls, _) = cost(&mut bench, "evalsha").await;
    assert!(calls >= 20, "{calls} calls for 20 MiB");
    let again = bench.backend.fire(&place, &id("r"), &fires, AT(20), None).await;
    assert_eq!(again.expect("answered"), None, "once");
    let delay = bench.keys.delay(&place);
    assert_eq!(bench.int(&format!("ZCARD {delay}")).await, 20);
    assert_eq!(bench.backend.recurrences(&place, None, 9).await.expect("listed")[0].next, None);

    let mut moved = Vec::new();
    while moved.iter().sum::<usize>() < 20 {
        let promoted = bench.backend.promote(&bench.lease, 200).await.expect("promoted");
        moved.push(promoted.moved);
        assert_eq!(promoted.next, (moved.len() < 20).then_some(NOW), "the rest is due at once");
    }
    assert_eq!(moved, [1; 20]);
    // Small ones go together as ever.
    let one = |n: usize| Scheduling {
        place: place.clone(),
        id: id(&n.to_string()),
        due: Due::At(AT(1)),
        fields: message("x"),
        on_conflict: OnConflict::Keep,
    };
    let batch: Vec<_> = (0..60).map(one).collect();
    assert!(bench.backend.schedule(&batch).await.iter().all(Result::is_ok));
    assert_eq!(bench.backend.promote(&bench.lease, 200).await.expect("promoted").moved, 60);
}

/// Ids come with bodies: one per group that is behind, and all of them through Lua.
#[tokio::test]
async fn a_look_at_many_groups_that_are_behind_comes_in_parts() {
    let mut bench = Bench::private(&[]).await;
    let ids = {
        bench.fill(12, large).await;
        let mut reader = bench.reader().await;
        let mut ids = Vec::new();
        while ids.len() < 12 {
            ids.extend(fetch(&mut reader, 12).await.entries.into_iter().map(|entry| entry.receipt));
        }
        let acks: Vec<_> = ids.iter().map(|receipt| (*receipt, Settlement::Ack)).collect();
        bench.settle(&acks).await;
        ids
    };
    let mut lags = BTreeMap::new();
    for (behind, receipt) in ids.iter().rev().enumerate().skip(1) {
        let group: GroupName = format!("g{:02}", 20 - behind).parse().expect("a name");
        bench.backend.create_group(&bench.spec, &group, Start::After(receipt.id)).await.expect("created");
        lags.insert(group, behind as u64);
    }
    bench.cmd("CONFIG RESETSTAT").await;
    for (group, behind) in &lags {
        let stats = bench.backend.stats(&bench.spec, group).await.expect("stats");
        assert_eq!((stats[0].lag, stats[0].pending), (Some(*behind), 0), "{group}");
    }
    let (calls, _) = cost(&mut bench, "evalsha_ro").await;
    assert!(calls >= (lags.len() * lags.len()) as u64, "{calls} calls for {} looks", lags.len());
}

/// The first request reaches sixteen partitions, and the next ones as many as fit: one.
#[tokio::test]
async fn a_look_at_many_partitions_comes_in_parts() {
    let mut bench = Bench::private(&[]).await;
    let topic = bench.backend.expand(&bench.spec.name, 24).await.expect("grown");
    for tp in topic.iter() {
        let append = Append::new(tp, large(0));
        bench.backend.append(&[append]).await.pop().expect("a result").expect("appended");
    }
    let before = reads(&mut bench).await;
    let stats = bench.backend.stats(&topic, &bench.group).await.expect("stats");
    assert!(stats.iter().all(|one| one.lag == Some(1)), "{stats:?}");
    let requests = reads(&mut bench).await - before;
    assert!(requests >= 8, "{requests} requests");
}

/// How often the server has read requests from its connections.
async fn reads(bench: &mut Bench) -> u64 {
    let info: String = redis::from_redis_value(bench.cmd("INFO stats").await).expect("a text");
    let count = info.lines().find_map(|line| line.strip_prefix("total_reads_processed:"));
    count.and_then(|count| count.parse().ok()).expect("a number")
}
