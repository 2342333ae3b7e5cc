//! Packed topics: many messages in one entry, each settled by itself.

use std::time::Duration;

use millstream_core::audit::{Audit, Check, Fault, Scope};
use millstream_core::catalog::{Catalog, Start};
use millstream_core::dead_letters::DeadLetters;
use millstream_core::id::MessageId;
use millstream_core::inspect::{Inspect, Range};
use millstream_core::log::{Append, Entry, Log, Receipt, Settlement, Source};
use millstream_core::packing::{PackCompression, Packing};
use millstream_core::schedule::{RetryAction, Schedule};
use millstream_core::topic::{TopicPartition, TopicSpec};
use millstream_core::{Limits, wire};
use redis::Value;

use crate::server::{Bench, dead, fetch, grant, ids, message, retry};

const NOW: Duration = Duration::ZERO;

/// A bench whose topic is packed, from two messages on.
pub(crate) async fn packed() -> Bench {
    let mut bench = Bench::new().await;
    let packing = Packing::new().min_messages(2).compression(PackCompression::None);
    bench.spec = TopicSpec::new("packed".parse().expect("name"), 1).expect("a topic").with_packing(packing);
    bench.backend.create_topic(&bench.spec).await.expect("created");
    bench.backend.create_group(&bench.spec, &bench.group, Start::Earliest).await.expect("created");
    bench.tp = TopicPartition::new(bench.spec.name.clone(), 0);
    bench.lease = grant(&bench.backend, &bench.tp, &bench.group, "packed").await;
    bench
}

pub(super) fn receipts(entries: &[Entry]) -> Vec<Receipt> {
    entries.iter().map(|entry| entry.receipt).collect()
}

pub(super) async fn pending(bench: &mut Bench) -> i64 {
    let (log, group) = (bench.log(), bench.group.clone());
    match bench.cmd(&format!("XPENDING {log} {group}")).await {
        Value::Array(summary) => match summary[0] {
            Value::Int(n) => n,
            _ => panic!("{summary:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn messages_of_one_entry_have_their_own_ids_and_leave_together() {
    let mut bench = packed().await;
    let appended = bench.append_many(10).await;
    assert!(appended.is_sorted() && appended.windows(2).all(|two| two[0].next() == two[1]), "{appended:?}");
    let later = bench.append_many(3).await;
    assert!(later[0] > appended[9], "{later:?}");
    let alone = bench.append_many(1).await;
    assert!(alone[0] > later[2]);
    let log = bench.log();
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 3);

    let mut reader = bench.reader().await;
    let first = fetch(&mut reader, 4).await;
    assert_eq!(ids(&first), appended[..4], "no more than was asked for");
    let mut entries = first.entries;
    while entries.len() < 14 {
        entries.extend(fetch(&mut reader, 100).await.entries);
    }
    let read: Vec<MessageId> = entries.iter().map(|entry| entry.receipt.id).collect();
    assert_eq!(read, [&appended[..], &later, &alone].concat());
    for (n, entry) in entries[..10].iter().enumerate() {
        assert_eq!(entry.fields, message(&n.to_string()));
    }

    let receipts = receipts(&entries);
    let acks = |some: &[Receipt]| some.iter().map(|one| (*one, Settlement::Ack)).collect::<Vec<_>>();
    assert_eq!(bench.settle(&acks(&receipts[..9])).await, (9, 0));
    assert_eq!(bench.settle(&acks(&receipts[..9])).await, (0, 9), "sent again they are stale");
    assert_eq!(pending(&mut bench).await, 3, "one of its messages is not settled");
    assert_eq!(bench.settle(&acks(&receipts[8..])).await, (5, 1));
    assert_eq!(pending(&mut bench).await, 0);
    let settled = bench.keys.settled(&bench.tp, &bench.group);
    assert_eq!(bench.int(&format!("EXISTS {settled}")).await, 0);
}

#[tokio::test]
async fn a_takeover_repeats_what_was_in_hand_and_no_more() {
    let mut bench = packed().await;
    let appended = bench.append_many(20).await;
    let mut reader = bench.reader().await;
    let entries = fetch(&mut reader, 100).await.entries;
    let all = receipts(&entries);
    let odd: Vec<_> = all.iter().skip(1).step_by(2).map(|one| (*one, Settlement::Ack)).collect();
    assert_eq!(bench.settle(&odd).await, (10, 0));
    let old = bench.lease.clone();
    bench.lease = bench.take_over().await;
    Log::settle(&bench.backend, &old, &[(all[0], Settlement::Ack)]).await.expect_err("the fence holds");

    let again = fetch(&mut bench.reader().await, 100).await;
    assert!(again.pending);
    assert_eq!(ids(&again), appended.iter().copied().step_by(2).collect::<Vec<_>>());
    assert!(again.entries.iter().all(|entry| entry.deliveries == 2));
    let rest: Vec<_> = again.entries.iter().map(|entry| (entry.receipt, Settlement::Ack)).collect();
    assert_eq!(bench.settle(&rest).await, (10, 0));
    assert_eq!(pending(&mut bench).await, 0);
}

/// A reader that starts over returns what is in flight again, and its owner skips that. What is settled by the time of the next call
/// must not come any more.
#[tokio::test]
async fn what_was_in_flight_when_the_reader_started_over_comes_once() {
    let bench = packed().await;
    bench.append_many(20).await;
    let mut reader = bench.reader().await;
    let all = receipts(&fetch(&mut reader, 100).await.entries);
    reader.start_over();
    let again = fetch(&mut reader, 4).await;
    assert!(again.pending);
    let rest: Vec<_> = all.iter().map(|one| (*one, Settlement::Ack)).collect();
    assert_eq!(bench.settle(&rest).await, (20, 0));
    let more = fetch(&mut reader, 100).await;
    assert!(more.entries.is_empty(), "settled: {:?}", receipts(&more.entries));
}

/// The bits of a pack go with its last message: they must not be read after a list that still has the pack.
#[tokio::test]
async fn what_was_settled_before_a_reader_starts_over_does_not_come_while_the_rest_is_settled() {
    let bench = packed().await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut reader = bench.reader().await;
    for _ in 0..200 {
        bench.append_many(10).await;
        let mut all = Vec::new();
        while all.len() < 10 {
            all.extend(receipts(&fetch(&mut reader, 100).await.entries));
        }
        let acks = |some: &[Receipt]| some.iter().map(|one| (*one, Settlement::Ack)).collect::<Vec<_>>();
        assert_eq!(bench.settle(&acks(&all[..5])).await, (5, 0));
        reader.start_over();
        let moment = Duration::from_micros(random.u64(..1_500));
        let rest = async {
            tokio::time::sleep(moment).await;
            bench.settle(&acks(&all[5..])).await
        };
        let (again, rest) = tokio::join!(fetch(&mut reader, 100), rest);
        assert_eq!(rest, (5, 0));
        let again = receipts(&again.entries);
        assert!(all[..5].iter().all(|settled| !again.contains(settled)), "{again:?}");
    }
}

#[tokio::test]
async fn a_message_of_a_pack_is_parked_or_dead_by_itself() {
    let mut bench = packed().await;
    let appended = bench.append_many(5).await;
    let mut reader = bench.reader().await;
    let all = receipts(&fetch(&mut reader, 100).await.entries);
    let batch = [
        (all[1], retry(NOW, 2, appended[1])),
        (all[3], dead(appended[3])),
        (all[1], retry(NOW, 2, appended[1])),
    ];
    assert_eq!(bench.settle(&batch).await, (2, 1), "the same again is stale");
    assert_eq!(bench.settle(&batch[..2]).await, (0, 2));
    let rest: Vec<_> = [0, 2, 4].map(|n| (all[n], Settlement::Ack)).into();
    assert_eq!(bench.settle(&rest).await, (3, 0));
    assert_eq!(pending(&mut bench).await, 0);

    tokio::time::sleep(Duration::from_millis(3)).await;
    assert_eq!(bench.backend.promote(&bench.lease, 200).await.expect("promoted").moved, 1);
    let again = fetch(&mut reader, 100).await.entries;
    assert_eq!(again.len(), 1);
    assert_eq!(again[0].receipt.source, Source::Retry);
    assert_eq!(again[0].receipt.pack, None);
    assert_eq!(&again[0].fields[4..], message("1"));
    let letters = bench.backend.list(&bench.tp, &bench.group, Range::ALL, 10).await.expect("read").items;
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!((letter.origin, &letter.body[..]), (appended[3], &message("3")[..]));
}

#[tokio::test]
async fn entries_of_others_stand_between_packs() {
    let mut bench = packed().await;
    let log = bench.log();
    let mut expected = Vec::new();
    for round in 0..50 {
        expected.extend(bench.append_many(2 + round % 5).await);
        for _ in 0..round % 3 {
            let Value::BulkString(id) = bench.cmd(&format!("XADD {log} * payload foreign")).await else {
                panic!()
            };
            expected.push(MessageId::from_bytes(&id).expect("an id"));
        }
    }
    assert!(expected.windows(2).all(|two| two[0] < two[1]), "each id is above all before");
    let mut reader = bench.reader().await;
    let mut read = Vec::new();
    while read.len() < expected.len() {
        read.extend(ids(&fetch(&mut reader, 37).await));
    }
    assert_eq!(read, expected);
}

/// The clock of the server may be behind the newest entry, after a fail-over.
#[tokio::test]
async fn packs_come_behind_an_entry_of_the_future() {
    let mut bench = packed().await;
    let log = bench.log();
    bench.cmd(&format!("XADD {log} 9000000000000-7 payload x")).await;
    let batch = |n| vec![Append::new(bench.tp.clone(), message("m")); n];
    let ids = |results: Vec<millstream_core::Result<millstream_core::log::Appended>>| -> Vec<String> {
        results.into_iter().map(|it| it.expect("appended").id.to_string()).collect()
    };
    assert_eq!(ids(bench.backend.append(&batch(2)).await), ["9000000000000-8", "9000000000000-9"]);
    assert_eq!(ids(bench.backend.append(&batch(1)).await), ["9000000000000-10"]);
    assert_eq!(ids(bench.backend.append(&batch(2)).await), ["9000000000000-11", "9000000000000-12"]);
}

/// Everything is settled and trimmed: the newest pack is still known, and counts no more.
#[tokio::test]
async fn a_pack_that_has_left_the_log_counts_no_more() {
    let bench = packed().await;
    let appended = bench.append_many(50).await;
    let entries = fetch(&mut bench.reader().await, 100).await.entries;
    let count = async |start| bench.backend.count(&bench.tp, start, None, 1_000).await.expect("counted");
    assert_eq!(count(Start::Earliest).await, 50);
    assert_eq!(count(Start::After(appended[9])).await, 40, "inside of the pack");
    let all: Vec<_> = receipts(&entries).into_iter().map(|one| (one, Settlement::Ack)).collect();
    assert_eq!(bench.settle(&all).await, (50, 0));
    assert_eq!(bench.trim().await.expect("trimmed"), 50);
    for start in [Start::Earliest, Start::After(appended[9]), Start::After(appended[49])] {
        assert_eq!(count(start).await, 0, "{start:?}");
    }
    assert_eq!(bench.backend.lengths(std::slice::from_ref(&bench.tp)).await.expect("read"), [0]);
    let later = bench.append_many(3).await;
    let count = async |start| bench.backend.count(&bench.tp, start, None, 1_000).await.expect("counted");
    for start in [Start::Earliest, Start::After(appended[9]), Start::After(appended[49])] {
        assert_eq!(count(start).await, 3, "{start:?}");
    }
    assert_eq!(count(Start::After(later[0])).await, 2);
}

/// Somebody deletes a pack that is half settled: nothing of it stays.
#[tokio::test]
async fn what_was_settled_of_a_deleted_pack_is_forgotten() {
    let mut bench = packed().await;
    let appended = bench.append_many(10).await;
    let mut reader = bench.reader().await;
    let all = receipts(&fetch(&mut reader, 100).await.entries);
    let some: Vec<_> = all[..4].iter().map(|one| (*one, Settlement::Ack)).collect();
    assert_eq!(bench.settle(&some).await, (4, 0));
    let (log, settled) = (bench.log(), bench.keys.settled(&bench.tp, &bench.group));
    assert_eq!(bench.int(&format!("HLEN {settled}")).await, 1);
    assert_eq!(bench.int(&format!("XDEL {log} {}", appended[9])).await, 1);
    let batch = [(all[5], retry(NOW, 2, appended[5])), (all[6], dead(appended[6]))];
    assert_eq!(bench.settle(&batch).await, (0, 2), "there is nothing left to keep");
    reader.start_over();
    let ghosts = fetch(&mut reader, 100).await.ghosts;
    assert_eq!(ghosts.iter().map(|ghost| ghost.id).collect::<Vec<_>>(), [appended[9]]);
    bench.settle(&[(ghosts[0], Settlement::Ack)]).await;
    assert_eq!((pending(&mut bench).await, bench.int(&format!("EXISTS {settled}")).await), (0, 0));
}

/// A retry that is due does not wait for the rest of a pack, however few messages are asked for at a time.
#[tokio::test]
async fn retries_come_beside_the_rest_of_a_pack() {
    let bench = packed().await;
    let appended = bench.append_many(40).await;
    let mut reader = bench.reader().await;
    let first = fetch(&mut reader, 2).await.entries;
    let failed = first[0].receipt;
    assert_eq!(bench.settle(&[(failed, retry(NOW, 2, appended[0]))]).await, (1, 0));
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert_eq!(bench.backend.promote(&bench.lease, 200).await.expect("promoted").moved, 1);
    let mut before = 0;
    loop {
        let entries = fetch(&mut reader, 2).await.entries;
        assert!(!entries.is_empty(), "the retry did not come");
        if entries.iter().any(|entry| entry.receipt.source == Source::Retry) {
            break;
        }
        before += entries.len();
    }
    assert!(before <= 4, "{before} messages came before the retry");
}

/// A parked message of a pack lost its body: a repair takes it from the pack, as long as that is in the log.
#[tokio::test]
async fn a_repair_takes_the_body_of_a_lost_retry_from_its_pack() {
    let mut bench = packed().await;
    let appended = bench.append_many(5).await;
    let all = receipts(&fetch(&mut bench.reader().await, 100).await.entries);
    let later = Duration::from_secs(60);
    let items = bench.keys.retry_items(&bench.tp, &bench.group);
    let scope = Scope::Group(bench.tp.clone(), bench.group.clone());
    for n in [0, 2, 4] {
        assert_eq!(bench.settle(&[(all[n], retry(later, 2, appended[n]))]).await, (1, 0));
        bench.cmd(&format!("DEL {items}")).await;
        let page = bench.backend.audit(&scope, Check::Parked, None).await.expect("audited");
        let [finding] = &page.findings[..] else { panic!("{page:?}") };
        assert_eq!(finding.fault, Fault::RetryLost);
        assert!(bench.backend.repair(finding).await.expect("repaired"));
        let parked = bench.backend.parked(&bench.tp, &bench.group, None, 10).await.expect("read").items;
        let [parked] = &parked[..] else { panic!("{parked:?}") };
        assert_eq!((parked.origin, &parked.body), (appended[n], &message(&n.to_string())));
        let origins = [appended[n]];
        bench
            .backend
            .settle_retries(&bench.tp, &bench.group, &origins, RetryAction::Kill)
            .await
            .expect("killed");
    }
    let losses = bench.backend.audit(&scope, Check::Losses, None).await.expect("audited");
    assert_eq!(losses.findings, [], "nothing was lost");

    // Without the pack, a letter without a body is all that is left.
    assert_eq!(bench.settle(&[(all[1], retry(later, 2, appended[1]))]).await, (1, 0));
    let log = bench.log();
    bench.cmd(&format!("DEL {items}")).await;
    bench.cmd(&format!("XDEL {log} {}", appended[4])).await;
    let page = bench.backend.audit(&scope, Check::Parked, None).await.expect("audited");
    assert!(bench.backend.repair(&page.findings[0]).await.expect("repaired"));
    let letters = bench.backend.list(&bench.tp, &bench.group, Range::ALL, 10).await.expect("read").items;
    let last = letters.last().expect("a letter");
    assert_eq!((last.reason.as_str(), last.origin, last.body.len()), ("orphan", appended[1], 0));
    let losses = bench.backend.audit(&scope, Check::Losses, None).await.expect("audited");
    assert_eq!(losses.findings[0].loss.map(|it| (it.unread, it.pending)), Some((0, 1)));
}

/// The same when it is due before anybody repairs it.
#[tokio::test]
async fn a_retry_that_is_due_takes_its_lost_body_from_its_pack() {
    let mut bench = packed().await;
    let appended = bench.append_many(5).await;
    let mut reader = bench.reader().await;
    let all = receipts(&fetch(&mut reader, 100).await.entries);
    assert_eq!(bench.settle(&[(all[3], retry(Duration::ZERO, 2, appended[3]))]).await, (1, 0));
    bench.cmd(&format!("DEL {}", bench.keys.retry_items(&bench.tp, &bench.group))).await;
    let (mut moved, mut calls) = (0, 0);
    while moved == 0 && calls < 100 {
        let promoted = bench.backend.promote(&bench.lease, 200).await.expect("promoted");
        assert_eq!(promoted.orphans, 0, "call {calls}");
        (moved, calls) = (moved + promoted.moved, calls + 1);
    }
    assert_eq!(moved, 1);
    let retried = fetch(&mut reader, 100).await.entries;
    let read = wire::decode(retried[0].receipt, &retried[0].fields, &Limits::default());
    assert_eq!((read.origin, read.attempt), (appended[3], 2));
    assert_eq!(read.envelope.expect("a message").payload, "3".as_bytes());
}

/// A group begins inside of a pack: it and what is noted for it come in one step, so an attempt that fails can be repeated.
#[tokio::test]
async fn a_group_that_begins_inside_of_a_pack_is_created_with_its_bits_or_not_at_all() {
    let mut bench = packed().await;
    let appended = bench.append_many(10).await;
    bench.group = "inside".parse().expect("a name");
    let start = Start::After(appended[3]);
    let (log, settled) = (bench.log(), bench.keys.settled(&bench.tp, &bench.group));
    bench.cmd(&format!("SET {settled} broken")).await;
    bench.backend.create_group(&bench.spec, &bench.group, start).await.expect_err("a key of another type");
    let groups = bench.cmd(&format!("XINFO GROUPS {log}")).await.into_sequence().expect("a list");
    assert_eq!(groups.len(), 1, "the other one");
    bench.cmd(&format!("DEL {settled}")).await;
    bench.backend.create_group(&bench.spec, &bench.group, start).await.expect("created");
    bench.lease = grant(&bench.backend, &bench.tp, &bench.group, "inside").await;
    assert_eq!(ids(&fetch(&mut bench.reader().await, 100).await), appended[4..]);
    // Once more, while the pack is pending: it is only noted for a group that is new.
    bench.backend.create_group(&bench.spec, &bench.group, Start::After(appended[8])).await.expect("there");
    assert_eq!(ids(&fetch(&mut bench.reader().await, 100).await), appended[4..]);
}
