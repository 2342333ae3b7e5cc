//! Messages that leave a small pack that holds much, and packs that wait for their dictionary.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::catalog::{Catalog, Start};
use millstream_core::dead_letters::{DeadLetterAction, DeadLetters};
use millstream_core::error::ErrorKind;
use millstream_core::inspect::{Inspect, Range, Stream};
use millstream_core::log::{Append, Entry, Log, Settlement, Source};
use millstream_core::packing::{PackCompression, Packing};
use millstream_core::schedule::Schedule;
use millstream_core::topic::{TopicPartition, TopicSpec};
use millstream_core::wire::{self, Fields};

use super::packed::receipts;
use crate::server::{Bench, dead, fetch, fields, grant, retry};

const COUNT: usize = 100;

/// A bench whose topic is packed with a compression.
async fn compressed(compression: PackCompression) -> Bench {
    let mut bench = Bench::new().await;
    let packing = Packing::new().min_messages(2).max_bytes(1 << 20).compression(compression);
    bench.spec = TopicSpec::new("small".parse().expect("name"), 1).expect("a topic").with_packing(packing);
    bench.backend.create_topic(&bench.spec).await.expect("created");
    bench.backend.create_group(&bench.spec, &bench.group, Start::Earliest).await.expect("created");
    bench.tp = TopicPartition::new(bench.spec.name.clone(), 0);
    bench.lease = grant(&bench.backend, &bench.tp, &bench.group, "small").await;
    bench
}

/// 2 KiB that are nearly nothing when they are compressed; without a payload if it is hostile.
fn event(n: usize, hostile: bool) -> Fields {
    match hostile {
        true => vec![(Bytes::new(), Bytes::new()); 900 + n],
        false => fields(&[(b"payload", format!("{n:>2000}").as_bytes()), (b"key", b"k")]),
    }
}

async fn bytes_of(bench: &mut Bench, key: impl std::fmt::Display) -> i64 {
    bench.int(&format!("MEMORY USAGE {key} SAMPLES 0")).await
}

fn bodies(source: Source, entries: &[Entry]) -> Vec<Fields> {
    let mut bodies: Vec<_> =
        entries.iter().map(|entry| wire::body_of(source, &entry.fields).to_vec()).collect();
    bodies.sort();
    bodies
}

#[tokio::test]
async fn messages_that_leave_a_small_pack_take_little_and_are_what_they_were() {
    for (compression, hostile) in
        [(PackCompression::Zstd, false), (PackCompression::Lz4, false), (PackCompression::Zstd, true)]
    {
        if !millstream_packing::is_built(compression) {
            continue;
        }
        let mut bench = compressed(compression).await;
        let mut events: Vec<_> = (0..COUNT).map(|n| event(n, hostile)).collect();
        let one = |fields: &Fields| Append::new(bench.tp.clone(), fields.clone());
        let batch: Vec<_> = events.iter().map(one).collect();
        for appended in bench.backend.append(&batch).await {
            appended.expect("appended");
        }
        events.sort();
        let log = bench.log();
        let of_log = bytes_of(&mut bench, &log).await;
        assert!(of_log < 20_000, "{of_log} bytes of the log");

        let mut reader = bench.reader().await;
        let entries = fetch(&mut reader, 1_000).await.entries;
        assert_eq!(bodies(Source::Log, &entries), events);
        let parked: Vec<_> = receipts(&entries)
            .into_iter()
            .map(|one| (one, retry(Duration::from_millis(1), 2, one.id)))
            .collect();
        assert_eq!(bench.settle(&parked).await, (COUNT, 0));
        let items = bench.keys.retry_items(&bench.tp, &bench.group);
        let of_items = bytes_of(&mut bench, &items).await;
        assert!(of_items < 400 * COUNT as i64, "{of_items} bytes of parked retries");
        let listed = bench.backend.parked(&bench.tp, &bench.group, None, 200).await.expect("read").items;
        let mut listed: Vec<_> = listed.into_iter().map(|it| it.body).collect();
        listed.sort();
        assert_eq!(listed, events);

        tokio::time::sleep(Duration::from_millis(5)).await;
        assert_eq!(bench.backend.promote(&bench.lease, 200).await.expect("promoted").moved, COUNT);
        let group = Stream::Retry(bench.group.clone());
        let page = bench.backend.entries(&bench.tp, &group, Range::ALL, 500).await.expect("read");
        let mut shown: Vec<_> =
            page.items.iter().map(|it| wire::body_of(Source::Retry, &it.fields).to_vec()).collect();
        shown.sort();
        assert_eq!(shown, events);
        let mut again = Vec::new();
        while again.len() < COUNT {
            again.extend(fetch(&mut reader, 1_000).await.entries);
        }
        assert_eq!(bodies(Source::Retry, &again), events);

        let given_up: Vec<_> = receipts(&again).into_iter().map(|one| (one, dead(one.id))).collect();
        assert_eq!(bench.settle(&given_up).await, (COUNT, 0));
        let dlq = bench.dlq();
        let of_letters = bytes_of(&mut bench, &dlq).await;
        assert!(of_letters < 500 * COUNT as i64, "{of_letters} bytes of dead letters");
        let letters = bench.backend.list(&bench.tp, &bench.group, Range::ALL, 500).await.expect("read").items;
        let ids: Vec<_> = letters.iter().map(|letter| (letter.id, DeadLetterAction::Replay)).collect();
        let mut listed: Vec<_> = letters.into_iter().map(|letter| letter.body).collect();
        listed.sort();
        assert_eq!(listed, events);

        let done = DeadLetters::settle(&bench.backend, &bench.tp, &bench.group, None, &ids).await;
        assert_eq!(done.expect("replayed").len(), COUNT);
        // Also read again by another owner, from the pending list.
        let mut replayed = Vec::new();
        while replayed.len() < COUNT {
            replayed.extend(fetch(&mut reader, 1_000).await.entries);
        }
        assert_eq!(bodies(Source::Retry, &replayed), events);
        bench.lease = bench.take_over().await;
        let mut taken = Vec::new();
        let mut reader = bench.reader().await;
        while taken.len() < COUNT {
            taken.extend(fetch(&mut reader, 1_000).await.entries);
        }
        assert_eq!(bodies(Source::Retry, &taken), events);
        let acks: Vec<_> = receipts(&taken).into_iter().map(|one| (one, Settlement::Ack)).collect();
        assert_eq!(bench.settle(&acks).await, (COUNT, 0));
    }
}

/// The frame names a dictionary that nobody has.
#[tokio::test]
async fn a_pack_waits_for_its_dictionary() {
    if !millstream_packing::is_built(PackCompression::ZstdDictionary) {
        return;
    }
    let mut bench = compressed(PackCompression::ZstdDictionary).await;
    let before = bench.append_many(5).await;
    let mut reader = bench.reader().await;
    assert_eq!(fetch(&mut reader, 100).await.entries.len(), before.len());
    // Magic number, a head with a single segment and an id of four bytes, the id 77777, and the size.
    let frame: &[u8] = b"\x28\xb5\x2f\xfd\x23\xd1\x2f\x01\x00\x0a\x01\x00\x00";
    let mut cmd = redis::cmd("XADD");
    cmd.arg(bench.log().as_str()).arg("*").arg("mq:form").arg("2").arg("mq:pack").arg("1 zstd:1 10");
    let id: String = cmd.arg("mq:messages").arg(frame).query_async(&mut bench.raw).await.expect("appended");
    for _ in 0..3 {
        let error = reader.fetch(100, Duration::ZERO).await.expect_err("it cannot be read yet");
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().contains("dictionary"), "{error}");
    }
    // It is shown as it is, and hides nothing else.
    let shown = bench.backend.entries(&bench.tp, &Stream::Log, Range::ALL, 100).await.expect("read").items;
    assert_eq!(shown.len(), 6);
    let log = bench.log();
    assert_eq!(bench.int(&format!("XDEL {log} {id}")).await, 1);
    let after = bench.append_many(1).await;
    let mut read = Vec::new();
    while !read.contains(&after[0]) {
        read.extend(fetch(&mut reader, 100).await.entries.iter().map(|entry| entry.receipt.id));
    }
}
