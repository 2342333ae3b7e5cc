//! Many consumers on one stream: reading under names of their own, settling, extending, claiming; and `mode`.

mod packed;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use millstream_core::error::ErrorKind;
use millstream_core::id::MessageId;
use millstream_core::leases::Leases;
use millstream_core::log::{Fetched, Receipt, Settled, Settlement, Source};
use millstream_core::schedule::Schedule;
use millstream_core::shared::{Shared, SharedMember, SharedReader};
use millstream_core::topic::Partition;
use millstream_lua::{ACK, CLAIM, DEAD_LETTER, HOLD, RETRY, Script};
use millstream_redis::RedisConfig;
use redis::Value;

use crate::server::{Bench, Server, dead, fetch, retry};

const NOW: Duration = Duration::ZERO;
const P: Partition = Partition(0);

fn member(bench: &Bench, name: &str) -> SharedMember {
    let consumer = name.parse().expect("a name");
    SharedMember::new(bench.spec.name.clone(), bench.group.clone(), consumer)
}

async fn open(bench: &Bench, name: &str) -> Box<dyn SharedReader> {
    bench.backend.shared_reader(&member(bench, name), &[P]).await.expect("a reader")
}

/// Reads until `count` entries came, or nothing more comes.
async fn take(reader: &mut Box<dyn SharedReader>, count: usize) -> Fetched {
    let mut taken = Fetched::default();
    while taken.entries.len() < count {
        let read = reader.fetch(count - taken.entries.len(), NOW).await.expect("fetched");
        if read.is_empty() {
            break;
        }
        taken.entries.extend(read.into_iter().flat_map(|(_, fetched)| fetched.entries));
    }
    taken
}

fn receipts(fetched: &Fetched) -> Vec<Receipt> {
    fetched.entries.iter().map(|entry| entry.receipt).collect()
}

/// The consumers of the group on the log, with how much each has.
async fn consumers(bench: &mut Bench) -> BTreeSet<(String, i64)> {
    let (log, group) = (bench.log(), bench.group.clone());
    let rows = bench.cmd(&format!("XINFO CONSUMERS {log} {group}")).await.into_sequence().expect("rows");
    let consumer = |row: Value| {
        let fields = row.into_sequence().expect("fields");
        let text = |at: usize| redis::from_redis_value::<String>(fields[at].clone()).expect("text");
        assert_eq!((text(0).as_str(), text(2).as_str()), ("name", "pending"));
        (text(1), redis::from_redis_value(fields[3].clone()).expect("a number"))
    };
    rows.into_iter().map(consumer).collect()
}

/// Runs every script of this mode.
pub(crate) async fn life(bench: &Bench) {
    let mut reader = open(bench, "one").await;
    bench.append_many(5).await;
    let read = take(&mut reader, 5).await;
    let (one, two) = (member(bench, "one"), member(bench, "two"));
    let of = receipts(&read);
    let batch = [
        (of[0], Settlement::Ack),
        (of[1], retry(Duration::from_secs(60), 2, of[1].id)),
        (of[2], dead(of[2].id)),
        (of[3], Settlement::Hold(millstream_core::log::Note::default())),
    ];
    let settled = bench.backend.settle_shared(&one, P, &batch).await.expect("settled");
    assert_eq!(settled, Settled { applied: 4, stale: 0 });
    assert_eq!(bench.backend.extend(&one, P, &of).await.expect("extended"), of[..3]);
    bench.backend.give_back(&one, P, &of[3..4]).await.expect("given back");
    let claimed = bench
        .backend
        .claim(&two, P, &[], NOW, 10, &millstream_core::Continuity::assured())
        .await
        .expect("claimed");
    assert_eq!((claimed.given_back.entries.len(), claimed.abandoned.entries.len()), (1, 1));
    assert_eq!(
        bench
            .backend
            .adopt(&bench.lease, NOW, 10, &millstream_core::Continuity::assured())
            .await
            .expect("adopted"),
        2
    );
    let acks = [(of[3], Settlement::Ack), (of[4], Settlement::Ack)];
    assert_eq!(bench.settle(&acks).await, (2, 0));
}

#[tokio::test]
async fn nothing_but_the_one_word_passes_the_fence_by() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(1).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    let id = appended[0].to_string();
    let keys = [
        bench.fence(),
        bench.log(),
        bench.keys.retry_due(&bench.tp, &bench.group),
        bench.keys.retry_items(&bench.tp, &bench.group),
        bench.dlq(),
        bench.held(),
        bench.keys.retry_log(&bench.tp, &bench.group),
    ];
    let [fence, log, due, items, dlq, held, retries] = &keys;
    let settles: [(&Script, Vec<_>, Vec<&str>); 5] = [
        (&ACK, vec![fence, log, held], vec!["log", &id]),
        (&HOLD, vec![fence, log, held], vec!["log", &id, "0", "2 0 me no"]),
        (&RETRY, vec![fence, log, due, items, held], vec!["log", &id, "0", "2", &id, "no"]),
        (
            &DEAD_LETTER,
            vec![fence, log, dlq, held],
            vec!["log", "orders", "0", &id, "rejected", "1", &id, "no"],
        ),
        (&CLAIM, vec![fence, log, retries, held], vec!["0", "10", "thief"]),
    ];
    bench.backend.release(&bench.lease).await.expect("released");
    let token = bench.lease.token.to_string();
    for (mode, who) in
        [("lease", ""), ("lease", &token), ("", ""), ("", "owner"), ("Consumer", "owner"), ("x", "x")]
    {
        for (script, keys, args) in &settles {
            let mut cmd = redis::cmd("EVAL");
            cmd.arg(&*script.text()).arg(keys.len());
            for key in keys {
                cmd.arg(key.as_str());
            }
            cmd.arg(mode).arg(who).arg("billing").arg(args);
            let error = cmd.exec_async(&mut bench.raw).await.expect_err("fenced");
            assert_eq!(error.code(), Some("FENCED"), "{} with {mode:?} {who:?}", script.name);
        }
    }
    assert_eq!(consumers(&mut bench).await, [("owner".to_owned(), 1)].into(), "nothing was done");
}

#[tokio::test]
async fn an_entry_wakes_one_of_those_who_wait() {
    const WAIT: Duration = Duration::from_secs(2);
    let bench = Bench::new().await;
    let wait = |name: &'static str| {
        let reader = open(&bench, name);
        async move {
            let mut reader = reader.await;
            let started = Instant::now();
            let read = reader.fetch(10, WAIT).await.expect("fetched");
            (read.into_iter().flat_map(|(_, it)| it.entries).count(), started.elapsed())
        }
    };
    let append = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        bench.append_many(1).await
    };
    let (a, b, c, _) = tokio::join!(wait("a"), wait("b"), wait("c"), append);
    let mut counts = [a, b, c];
    counts.sort_unstable();
    assert_eq!(counts.map(|(count, _)| count), [0, 0, 1]);
    assert!(counts[2].1 < WAIT, "before its wait was over: {counts:?}");
    assert!(counts[0].1 + Duration::from_millis(10) >= WAIT, "the others wait on: {counts:?}");
}

#[tokio::test]
async fn what_a_dropped_or_cut_read_took_is_found() {
    let mut bench = Bench::private(&[]).await;
    let mut reader = open(&bench, "a").await;
    let mut seen = BTreeSet::new();
    let mut sent = BTreeSet::new();
    for round in 0..30_u64 {
        // The answer comes about when nobody waits for it any more.
        let wait = Duration::from_millis(round % 5);
        let append = async {
            tokio::time::sleep(Duration::from_millis(2)).await;
            bench.append_many(1).await
        };
        let (read, ids) =
            tokio::join!(tokio::time::timeout(wait, reader.fetch(10, Duration::from_secs(5))), append);
        sent.extend(ids);
        // Cut, it fails once.
        if let Ok(Ok(read)) = read {
            seen.extend(read.iter().flat_map(|(_, it)| receipts(it)).map(|receipt| receipt.id));
        }
        if round % 10 == 9 {
            bench.cmd("CLIENT KILL TYPE normal SKIPME yes").await;
        }
    }
    let deadline = Instant::now() + Duration::from_secs(60);
    while seen != sent {
        assert!(Instant::now() < deadline, "{} of {} were seen", seen.len(), sent.len());
        let Ok(read) = reader.fetch(10, Duration::from_millis(50)).await else { continue };
        seen.extend(read.iter().flat_map(|(_, it)| receipts(it)).map(|receipt| receipt.id));
    }
}

/// Behind a connection that died without the server's knowledge, a blocked request still takes the next entry.
#[tokio::test]
async fn what_a_lost_request_takes_later_is_found_too() {
    let server = Server::start(&[]);
    let config = RedisConfig::new(server.url()).with_response_timeout(Duration::from_millis(300));
    let mut bench = Bench::at(config, Some(server)).await;
    let mut reader = open(&bench, "a").await;
    let block = Duration::from_millis(500);
    let dropped = tokio::time::timeout(Duration::from_millis(50), reader.fetch(10, block)).await;
    assert!(dropped.is_err(), "nothing came so far");
    assert!(
        reader.fetch(10, NOW).await.expect("fetched").is_empty(),
        "it has started over, and found nothing"
    );
    let appended = bench.append_many(1).await;
    let (log, group) = (bench.log(), bench.group.clone());
    bench.cmd(&format!("XREADGROUP GROUP {group} a STREAMS {log} >")).await;
    let read = reader.fetch(10, Duration::from_secs(5)).await.expect("fetched");
    let [(_, fetched)] = &read[..] else { panic!("{read:?}") };
    assert_eq!((fetched.pending, fetched.entries[0].receipt.id), (true, appended[0]));
}

/// A request that does not block, to a server that stands still, takes entries when the server goes on.
#[tokio::test]
async fn what_a_lost_look_takes_later_is_found_too() {
    let server = Server::start(&[]);
    let config = RedisConfig::new(server.url()).with_response_timeout(Duration::from_millis(600));
    let mut bench = Bench::at(config, Some(server)).await;
    let mut reader = open(&bench, "a").await;
    assert!(reader.fetch(10, NOW).await.expect("fetched").is_empty());
    bench.cmd("CLIENT PAUSE 200 ALL").await;
    let dropped = tokio::time::timeout(Duration::from_millis(50), reader.fetch(10, NOW)).await;
    assert!(dropped.is_err(), "the server stands still");
    assert!(reader.fetch(10, NOW).await.expect("fetched").is_empty(), "it has started over");
    let appended = bench.append_many(1).await;
    let (log, group) = (bench.log(), bench.group.clone());
    bench.cmd(&format!("XREADGROUP GROUP {group} a STREAMS {log} >")).await;
    let read = reader.fetch(10, Duration::from_secs(5)).await.expect("fetched");
    let [(_, fetched)] = &read[..] else { panic!("{read:?}") };
    assert_eq!((fetched.pending, fetched.entries[0].receipt.id), (true, appended[0]));
}

#[tokio::test]
async fn many_partitions_are_read_as_one() {
    let bench = Bench::new().await;
    let spec = millstream_core::topic::TopicSpec::new("flights".parse().expect("name"), 40).expect("a topic");
    use millstream_core::catalog::{Catalog, Start};
    use millstream_core::log::{Append, Log};
    bench.backend.create_group(&spec, &bench.group, Start::Earliest).await.expect("created");
    let member = SharedMember::new(spec.name.clone(), bench.group.clone(), member(&bench, "a").consumer);
    let partitions: Vec<_> = (0..40).map(Partition).collect();
    let mut reader = bench.backend.shared_reader(&member, &partitions).await.expect("a reader");
    assert!(reader.fetch(10, Duration::from_millis(20)).await.expect("fetched").is_empty());
    let mut batch = Vec::new();
    for tp in spec.iter() {
        let count = if tp.partition.0 == 7 { 500 } else { tp.partition.0 as usize % 3 };
        let append = Append::new(tp, crate::server::message("x"));
        batch.extend(std::iter::repeat_n(append, count));
    }
    let sent: BTreeSet<_> = bench
        .backend
        .append(&batch)
        .await
        .into_iter()
        .zip(&batch)
        .map(|(it, append)| (append.topic_partition.partition, it.expect("appended").id))
        .collect();
    let (mut seen, mut reads) = (BTreeSet::new(), 0);
    while seen.len() < sent.len() {
        let read = reader.fetch(50, Duration::from_secs(5)).await.expect("fetched");
        let count: usize = read.iter().map(|(_, it)| it.entries.len()).sum();
        assert!((1..=80).contains(&count), "{count} entries were read");
        for (partition, fetched) in read {
            assert!(!fetched.pending);
            seen.extend(receipts(&fetched).into_iter().map(|receipt| (partition, receipt.id)));
        }
        reads += 1;
    }
    assert_eq!(seen, sent);
    assert!(reads <= 30, "{reads} reads for {} entries", sent.len());
}

#[tokio::test]
async fn what_somebody_read_by_hand_is_taken_over_and_the_name_forgotten() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(4).await;
    let (log, group) = (bench.log(), bench.group.clone());
    bench.cmd(&format!("XREADGROUP GROUP {group} bob COUNT 2 STREAMS {log} >")).await;
    assert_eq!(
        bench
            .backend
            .adopt(&bench.lease, Duration::from_secs(60), 10, &millstream_core::Continuity::assured())
            .await
            .expect("asked"),
        0
    );
    assert_eq!(
        bench
            .backend
            .adopt(&bench.lease, NOW, 10, &millstream_core::Continuity::assured())
            .await
            .expect("adopted"),
        2
    );
    let mut reader = bench.reader().await;
    let pending = fetch(&mut reader, 10).await;
    assert_eq!(pending.entries.iter().map(|entry| entry.receipt.id).collect::<Vec<_>>(), appended[..2]);
    assert_eq!(consumers(&mut bench).await, [("owner".to_owned(), 2)].into());

    bench.cmd(&format!("XREADGROUP GROUP {group} bob COUNT 2 STREAMS {log} >")).await;
    bench.cmd(&format!("XGROUP CREATECONSUMER {log} {group} eve")).await;
    let claimed = bench
        .backend
        .claim(&member(&bench, "a"), P, &[], NOW, 3, &millstream_core::Continuity::assured())
        .await
        .expect("claimed");
    assert_eq!(claimed.abandoned.entries.len(), 3);
    let names = |all: BTreeSet<(String, i64)>| all.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let left = names(consumers(&mut bench).await);
    assert!(left.contains(&"a".to_owned()) && !left.contains(&"eve".to_owned()), "{left:?}");
    let claimed = bench
        .backend
        .claim(&member(&bench, "a"), P, &[], NOW, 3, &millstream_core::Continuity::assured())
        .await
        .expect("claimed");
    assert_eq!(claimed.abandoned.entries.len(), 1);
    assert_eq!(consumers(&mut bench).await, [("a".to_owned(), 4)].into());
}

#[tokio::test]
async fn out_of_memory_consumers_get_on() {
    let mut bench = Bench::private(&[]).await;
    let appended = bench.append_many(5).await;
    let mut reader = open(&bench, "a").await;
    bench.cmd("CONFIG SET maxmemory 1").await;
    let read = take(&mut reader, 5).await;
    assert_eq!(read.entries.len(), 5);
    let (a, b, of) = (member(&bench, "a"), member(&bench, "b"), receipts(&read));
    assert!(bench.backend.extend(&a, P, &of).await.expect("extended").is_empty());
    let batch = [(of[0], Settlement::Ack), (of[1], retry(NOW, 2, appended[1])), (of[2], dead(appended[2]))];
    assert_eq!(bench.backend.settle_shared(&a, P, &batch).await.expect("settled").applied, 3);
    bench.backend.give_back(&a, P, &of[3..4]).await.expect("given back");
    let claimed = bench
        .backend
        .claim(&b, P, &[], NOW, 10, &millstream_core::Continuity::assured())
        .await
        .expect("claimed");
    assert_eq!((claimed.given_back.entries.len(), claimed.abandoned.entries.len()), (1, 1));
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert_eq!(bench.backend.promote(&bench.lease, 10).await.expect("promoted").moved, 1);
    assert_eq!(take(&mut reader, 5).await.entries[0].receipt.source, Source::Retry);
}

#[tokio::test]
async fn a_foreign_type_is_named() {
    let mut bench = Bench::new().await;
    let (log, held) = (bench.log(), bench.held());
    bench.append_many(2).await;
    let mut reader = open(&bench, "a").await;
    let of = receipts(&take(&mut reader, 2).await);
    let (a, b) = (member(&bench, "a"), member(&bench, "b"));
    bench.cmd(&format!("SET {held} x")).await;
    let error = bench
        .backend
        .claim(&b, P, &[], NOW, 10, &millstream_core::Continuity::assured())
        .await
        .expect_err("a string");
    assert!(error.kind() == ErrorKind::WrongType && error.to_string().contains(held.as_str()), "{error}");
    assert_eq!(consumers(&mut bench).await, [("a".to_owned(), 2)].into(), "nothing was done");
    bench.cmd(&format!("DEL {held} {log}")).await;
    assert_eq!(bench.backend.extend(&a, P, &of).await.expect("gone"), of, "with its group");
    for missing in [true, false] {
        let kind = if missing { ErrorKind::GroupMissing } else { ErrorKind::WrongType };
        assert_eq!(reader.fetch(10, NOW).await.expect_err("gone").kind(), kind);
        assert_eq!(
            bench
                .backend
                .claim(&b, P, &[], NOW, 10, &millstream_core::Continuity::assured())
                .await
                .expect_err("gone")
                .kind(),
            kind
        );
        bench.cmd(&format!("SET {log} x")).await;
    }
    let unknown = Receipt::new(Source::Log, MessageId::new(1, 1));
    let error = bench.backend.extend(&a, P, &[unknown]).await.expect_err("a string");
    assert!(error.kind() == ErrorKind::WrongType && error.to_string().contains(log.as_str()), "{error}");
}
