//! `append_unique`: foreign hands, large bodies, a thousand groups, records that go by themselves, and a server that refuses.

pub(crate) mod refused;

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind};
use millstream_core::id::MessageId;
use millstream_core::log::{Append, Appended, DedupId, Log, Settlement, UniqueIdentity};
use millstream_core::name::GroupName;
use millstream_core::schedule::Schedule;
use millstream_core::topic::TopicPartition;
use millstream_core::wire::{Fields, MAX_BODY_FIELDS};
use redis::Value;

use crate::server::{Bench, fetch, message, retry};

pub(crate) fn item(tp: &TopicPartition, id: &str, fields: Fields) -> Append {
    let append = Append::new(tp.clone(), fields);
    let id = DedupId::new(id.to_owned()).expect("an id");
    append.with(UniqueIdentity { id, send: fastrand::u64(..), earlier: Vec::new() })
}

async fn send(bench: &Bench, id: &str) -> Appended {
    let batch = [item(&bench.tp, id, message("x"))];
    bench.backend.append(&batch).await.remove(0).expect("an answer")
}

/// Sends with an id that is free.
pub(crate) async fn stored(bench: &Bench, id: &str) -> MessageId {
    let sent = send(bench, id).await;
    assert!(!sent.is_duplicate, "{id} is in use: {sent:?}");
    sent.id
}

async fn is_in_use(bench: &Bench, id: &str, by: MessageId) {
    let sent = send(bench, id).await;
    assert_eq!((sent.id, sent.is_duplicate), (by, true), "{id}");
}

/// Settles everything that the group has pending or has not read.
pub(crate) async fn settle_all(bench: &Bench) {
    let mut reader = bench.reader().await;
    loop {
        let some = fetch(&mut reader, 1_000).await;
        if !some.pending && some.entries.is_empty() && some.ghosts.is_empty() {
            return;
        }
        let receipts = some.entries.iter().map(|entry| entry.receipt).chain(some.ghosts);
        let acks: Vec<_> = receipts.map(|receipt| (receipt, Settlement::Ack)).collect();
        bench.settle(&acks).await;
    }
}

/// Runs all that the script does.
pub(crate) async fn life(bench: &mut Bench) {
    let first = stored(bench, "life").await;
    is_in_use(bench, "life", first).await;
    settle_all(bench).await;
    let second = stored(bench, "life").await;
    let mut reader = bench.reader().await;
    let mut entries = fetch(&mut reader, 8).await.entries;
    entries.extend(fetch(&mut reader, 8).await.entries);
    let entry = entries.iter().find(|entry| entry.receipt.id == second).expect("it is read");
    assert_eq!(bench.settle(&[(entry.receipt, retry(Duration::ZERO, 2, second))]).await, (1, 0));
    is_in_use(bench, "life", second).await;
    tokio::time::sleep(Duration::from_millis(3)).await;
    bench.backend.promote(&bench.lease, 200).await.expect("promoted");
    is_in_use(bench, "life", second).await;
    settle_all(bench).await;
    stored(bench, "life").await;
    settle_all(bench).await;
    bench.trim().await.expect("trimmed");
    let (retry_log, log) = (bench.retry_log(), bench.log());
    bench.cmd(&format!("XTRIM {retry_log} MAXLEN 0")).await;
    bench.cmd(&format!("XTRIM {log} MAXLEN 0")).await;
}

#[tokio::test]
async fn foreign_commands_leave_no_id_in_use() {
    let mut bench = Bench::new().await;
    let (log, retry_log, group) = (bench.log(), bench.retry_log(), bench.group.clone());
    let mut reader = bench.reader().await;
    let read = async |reader: &mut _| {
        let mut entries = Vec::new();
        while entries.is_empty() {
            entries = fetch(reader, 8).await.entries;
        }
        entries
    };

    let id = stored(&bench, "a").await;
    bench.cmd(&format!("XDEL {log} {id}")).await;
    let id = stored(&bench, "a").await;
    read(&mut reader).await;
    is_in_use(&bench, "a", id).await;
    bench.cmd(&format!("XACK {log} {group} {id}")).await;
    let id = stored(&bench, "a").await;
    read(&mut reader).await;
    bench.cmd(&format!("XDEL {log} {id}")).await;

    // A redelivery that is deleted unread, one that is acknowledged and left, and one that is deleted pending.
    for command in ["XDEL unread", "XACK", "XDEL"] {
        let id = stored(&bench, "a").await;
        let entry =
            read(&mut reader).await.into_iter().find(|entry| entry.receipt.id == id).expect("it is read");
        assert_eq!(bench.settle(&[(entry.receipt, retry(Duration::ZERO, 2, id))]).await, (1, 0));
        tokio::time::sleep(Duration::from_millis(3)).await;
        assert_eq!(bench.backend.promote(&bench.lease, 9).await.expect("promoted").moved, 1);
        is_in_use(&bench, "a", id).await;
        let Value::Array(entries) = bench.cmd(&format!("XREVRANGE {retry_log} + - COUNT 1")).await else {
            panic!("no retry log");
        };
        let Value::Array(entry) = &entries[0] else { panic!("no entry") };
        let Value::BulkString(redelivery) = &entry[0] else { panic!("no id") };
        let redelivery = String::from_utf8_lossy(redelivery).into_owned();
        if command != "XDEL unread" {
            read(&mut reader).await;
            is_in_use(&bench, "a", id).await;
        }
        match command {
            "XACK" => bench.cmd(&format!("XACK {retry_log} {group} {redelivery}")).await,
            _ => bench.cmd(&format!("XDEL {retry_log} {redelivery}")).await,
        };
        let next = stored(&bench, "a").await;
        bench.cmd(&format!("XDEL {log} {next}")).await;
        let notes = bench.keys.unique_retry(&bench.tp, &bench.group);
        assert_eq!(bench.int(&format!("EXISTS {notes}")).await, 0, "a note goes with its record");
    }

    // A group of another program counts as any other, and so does one whose name none of ours can have.
    bench.cmd(&format!("XGROUP CREATE {log} other:program $")).await;
    let id = stored(&bench, "b").await;
    settle_all(&bench).await;
    is_in_use(&bench, "b", id).await;
    bench.cmd(&format!("XREADGROUP GROUP other:program me STREAMS {log} >")).await;
    is_in_use(&bench, "b", id).await;
    bench.cmd(&format!("XACK {log} other:program {id}")).await;
    let id = stored(&bench, "b").await;
    settle_all(&bench).await;
    bench.cmd(&format!("XGROUP DESTROY {log} other:program")).await;
    assert!(stored(&bench, "b").await > id);

    // Values that are no records, and an entry that has the id of another one.
    let unique = bench.keys.unique(&bench.tp);
    bench.cmd(&format!("HSET {unique} c 7 d 99999999999999-1 e {id}")).await;
    for foreign in ["c", "d", "e"] {
        stored(&bench, foreign).await;
    }
    let plain = bench.append(message("plain")).await;
    redis::cmd("HSET")
        .arg(unique.as_str())
        .arg("f")
        .arg(format!("{plain} 7"))
        .exec_async(&mut bench.raw)
        .await
        .expect("set");
    assert!(stored(&bench, "f").await > plain, "an entry without this id is not in the way");
}

#[tokio::test]
async fn bodies_of_a_mebibyte_are_stored_whole_and_looked_at_in_parts() {
    let bench = Bench::new().await;
    let body = |n: u8| vec![(Bytes::from_static(b"payload"), Bytes::from(vec![n; 1 << 20]))];
    let batch: Vec<_> = (0..12).map(|n| item(&bench.tp, &format!("large {n}"), body(n))).collect();
    let sent: Vec<_> = bench.backend.append(&batch).await.into_iter().map(|it| it.expect("sent")).collect();
    assert!(sent.iter().all(|it| !it.is_duplicate) && sent.windows(2).all(|two| two[0].id < two[1].id));
    // Other sends with the same ids, large and small ones.
    let again: Vec<_> = (0..12).map(|n| item(&bench.tp, &format!("large {n}"), body(n))).collect();
    let small: Vec<_> = (0..12).map(|n| item(&bench.tp, &format!("large {n}"), message("x"))).collect();
    for batch in [again, small] {
        let again = bench.backend.append(&batch).await;
        for (again, first) in again.into_iter().zip(&sent) {
            let again = again.expect("an answer");
            assert_eq!((again.id, again.is_duplicate), (first.id, true));
        }
    }
    let mut reader = bench.reader().await;
    let mut entries = Vec::new();
    while entries.len() < 12 {
        entries.extend(fetch(&mut reader, 12).await.entries);
    }
    for (entry, item) in entries.iter().zip(&batch) {
        assert_eq!(entry.fields, item.stored_fields());
    }
    // They are retried, and found there.
    let settlements: Vec<_> =
        entries.iter().map(|it| (it.receipt, retry(Duration::ZERO, 2, it.receipt.id))).collect();
    assert_eq!(bench.settle(&settlements).await, (12, 0));
    for _ in 0..2 {
        let small: Vec<_> = (0..12).map(|n| item(&bench.tp, &format!("large {n}"), message("x"))).collect();
        let again = bench.backend.append(&small).await;
        assert!(again.iter().all(|it| it.as_ref().is_ok_and(|it| it.is_duplicate)), "{again:?}");
        tokio::time::sleep(Duration::from_millis(3)).await;
        while bench.backend.promote(&bench.lease, 100).await.expect("promoted").moved > 0 {}
    }
    settle_all(&bench).await;
    settle_all(&bench).await;
    stored(&bench, "large 0").await;
}

/// More values than a script can copy one by one are packed when they are retried. Only another program appends so many.
#[tokio::test]
async fn a_packed_redelivery_keeps_its_id_in_use() {
    let mut bench = Bench::new().await;
    let mut fields: Fields =
        (0..3_500).map(|n| (Bytes::from(format!("h:{n}")), Bytes::from_static(b"x"))).collect();
    fields.insert(0, ("mq:unique".into(), "many".into()));
    let (first, unique) = (bench.append(fields).await, bench.keys.unique(&bench.tp));
    let mut record = redis::cmd("HSET");
    record.arg(unique.as_str()).arg("many").arg(format!("{first} 7"));
    record.exec_async(&mut bench.raw).await.expect("noted");
    is_in_use(&bench, "many", first).await;
    let mut reader = bench.reader().await;
    let mut entries = fetch(&mut reader, 1).await.entries;
    entries.extend(fetch(&mut reader, 1).await.entries);
    assert_eq!(bench.settle(&[(entries[0].receipt, retry(Duration::ZERO, 2, first))]).await, (1, 0));
    is_in_use(&bench, "many", first).await;
    tokio::time::sleep(Duration::from_millis(3)).await;
    assert_eq!(bench.backend.promote(&bench.lease, 9).await.expect("promoted").moved, 1);
    is_in_use(&bench, "many", first).await;
    settle_all(&bench).await;
    stored(&bench, "many").await;
}

/// Commands that the server has run since `CONFIG RESETSTAT`, by name.
async fn calls(bench: &mut Bench, command: &str) -> u64 {
    let stats = match bench.cmd("INFO commandstats").await {
        Value::BulkString(text) => String::from_utf8_lossy(&text).into_owned(),
        Value::VerbatimString { text, .. } => text,
        other => panic!("{other:?}"),
    };
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
    line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
}

#[tokio::test]
async fn with_a_thousand_groups_only_a_send_that_finds_a_record_looks_at_them() {
    let mut bench = Bench::private(&[]).await;
    let log = bench.log();
    let mut pipe = redis::pipe();
    let names: Vec<String> = (0..1_000).map(|n| format!("group-{n}")).collect();
    for name in &names {
        pipe.cmd("XGROUP").arg(&["CREATE", log.as_str(), name, "0"]).ignore();
    }
    pipe.exec_async(&mut bench.raw).await.expect("groups");
    bench.cmd("CONFIG RESETSTAT").await;
    let first = stored(&bench, "a").await;
    assert_eq!(calls(&mut bench, "xinfo|groups").await, 0, "an id that was never used");
    is_in_use(&bench, "a", first).await;
    assert_eq!((calls(&mut bench, "xinfo|groups").await, calls(&mut bench, "xpending").await), (1, 0));

    // Every group but one has settled it, and that one has a retry of it.
    settle_all(&bench).await;
    let mut pipe = redis::pipe();
    for name in &names {
        pipe.cmd("XREADGROUP")
            .arg(&["GROUP", name, "owner", "COUNT", "9", "STREAMS", log.as_str(), ">"])
            .ignore();
        pipe.cmd("XACK").arg(&[log.as_str(), name, &first.to_string()]).ignore();
    }
    pipe.exec_async(&mut bench.raw).await.expect("settled");
    let due = bench.keys.retry_due(&bench.tp, &GroupName::new("group-617").expect("a name"));
    bench.cmd(&format!("ZADD {due} 1 {first}")).await;
    bench.cmd("CONFIG RESETSTAT").await;
    is_in_use(&bench, "a", first).await;
    bench.cmd(&format!("DEL {due}")).await;
    stored(&bench, "a").await;
    let (groups, exists) = (calls(&mut bench, "xinfo|groups").await, calls(&mut bench, "exists").await);
    assert_eq!(groups, 4, "two calls for each of two sends");
    assert!(exists <= 2 * 1_001 + 8, "{exists} looks at 1,001 groups for two sends");
    assert_eq!(calls(&mut bench, "zmscore").await, 1, "in the one group that has a retry");
    assert_eq!(calls(&mut bench, "xpending").await, 0, "no group has anything pending");

    // Many ids at once: the groups are read with each call, not with each id.
    settle_all(&bench).await;
    bench.cmd("CONFIG RESETSTAT").await;
    let batch: Vec<_> = (0..200).map(|n| item(&bench.tp, &format!("id {n}"), message("x"))).collect();
    let sent = bench.backend.append(&batch).await;
    assert!(sent.iter().all(|it| it.as_ref().is_ok_and(|it| !it.is_duplicate)));
    let again: Vec<_> = (0..200).map(|n| item(&bench.tp, &format!("id {n}"), message("x"))).collect();
    let again = bench.backend.append(&again).await;
    assert!(again.iter().all(|it| it.as_ref().is_ok_and(|it| it.is_duplicate)));
    let scripts = calls(&mut bench, "evalsha").await;
    assert!(scripts <= 1 + 200 / 19 + 1, "{scripts} calls of the script for 400 sends");
}

/// Fills a log with settled entries that are five minutes old, and the records of their ids.
async fn old_records(bench: &mut Bench, count: u64) -> u64 {
    let (log, unique) = (bench.log(), bench.keys.unique(&bench.tp));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a time").as_millis() as u64;
    let mut pipe = redis::pipe();
    for n in 0..count {
        let (id, name) = (format!("{}-{n}", now - 300_000), format!("id {n}"));
        pipe.cmd("XADD").arg(&[log.as_str(), &id, "mq:unique", &name, "payload", "x"]).ignore();
        pipe.cmd("HSET").arg(&[unique.as_str(), &name, &format!("{id} 1")]).ignore();
    }
    pipe.exec_async(&mut bench.raw).await.expect("filled");
    now - 300_000
}

#[tokio::test]
async fn records_of_settled_entries_go_by_themselves() {
    let mut bench = Bench::new().await;
    let (unique, notes) = (bench.keys.unique(&bench.tp), bench.keys.unique_retry(&bench.tp, &bench.group));
    let due = bench.keys.retry_due(&bench.tp, &bench.group);
    let ms = old_records(&mut bench, 3_000).await;
    bench.trim().await.expect("trimmed");
    assert_eq!(bench.int(&format!("HLEN {unique}")).await, 3_001, "all of them are unread");
    let mut reader = bench.reader().await;
    let mut settled = 0;
    while settled < 3_000 {
        let acks: Vec<_> =
            fetch(&mut reader, 1_000).await.entries.iter().map(|it| (it.receipt, Settlement::Ack)).collect();
        settled += acks.len();
        bench.settle(&acks).await;
    }
    // One has a retry, and one a note of a redelivery that is settled.
    bench.cmd(&format!("ZADD {due} 99999999999999 {ms}-7")).await;
    bench.cmd(&format!("HSET {notes} {ms}-8 {ms}-1")).await;
    let (retry_log, group) = (bench.retry_log(), bench.group.clone());
    bench.cmd(&format!("XGROUP SETID {retry_log} {group} {ms}-2")).await;
    bench.trim().await.expect("trimmed");
    assert_eq!(bench.int(&format!("HLEN {unique}")).await, 3_001, "the last cleaning was a moment ago");
    redis::cmd("HDEL").arg(unique.as_str()).arg("").exec_async(&mut bench.raw).await.expect("forgotten");
    for _ in 0..64 {
        bench.trim().await.expect("trimmed");
        redis::cmd("HDEL").arg(unique.as_str()).arg("").exec_async(&mut bench.raw).await.expect("forgotten");
    }
    assert_eq!(bench.int(&format!("HLEN {unique}")).await, 1, "all but the one with a retry");
    assert_eq!(bench.int(&format!("EXISTS {notes}")).await, 0);
    let held = MessageId::new(ms, 7);
    is_in_use(&bench, "id 7", held).await;
    stored(&bench, "id 8").await;
    bench.cmd(&format!("DEL {due}")).await;
    settle_all(&bench).await;
    // The younger one stays for a while: its send may be repeated.
    bench.trim().await.expect("trimmed");
    redis::cmd("HDEL").arg(unique.as_str()).arg("").exec_async(&mut bench.raw).await.expect("forgotten");
    assert_eq!(bench.int(&format!("HLEN {unique}")).await, 1);
}

/// Senders clean too, so that records do not grow without consumers that trim.
#[tokio::test]
async fn senders_clean_when_there_are_many_more_records_than_before() {
    let mut bench = Bench::new().await;
    let unique = bench.keys.unique(&bench.tp);
    old_records(&mut bench, 3_000).await;
    let log = bench.log();
    bench.cmd(&format!("XTRIM {log} MAXLEN 0")).await;
    stored(&bench, "new").await;
    let left = bench.int(&format!("HLEN {unique}")).await;
    assert!(left < 500, "{left} of 3,000 records of entries that are gone");
}

/// The script passes all names and values to one command: one entry too many would end it behind the first ones, which then
/// have no records.
#[tokio::test]
async fn an_entry_with_too_many_fields_is_refused_and_the_others_are_stored() {
    let mut bench = Bench::new().await;
    let many = |count| -> Fields {
        (0..count).map(|n| (Bytes::from(format!("f{n}")), Bytes::from_static(b"x"))).collect()
    };
    // With the field of the id there is one more.
    let fields = [1, MAX_BODY_FIELDS - 1, MAX_BODY_FIELDS, 5_000, 1];
    let batch: Vec<_> =
        fields.iter().enumerate().map(|(n, count)| item(&bench.tp, &format!("u{n}"), many(*count))).collect();
    let results = bench.backend.append(&batch).await;
    let refused: Vec<_> = results.iter().map(|result| result.as_ref().err().map(Error::kind)).collect();
    let too_large = Some(ErrorKind::TooLarge);
    assert_eq!(refused, [None, None, too_large, too_large, None]);
    let log = bench.log();
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 3);
    // Sent again, those that are stored are recognised.
    let again = bench.backend.append(&batch).await;
    for at in [0, 1, 4] {
        let (first, second) = (results[at].as_ref().expect("stored"), again[at].as_ref().expect("known"));
        assert_eq!((first.id, second.is_duplicate), (second.id, false));
    }
    assert_eq!(bench.int(&format!("XLEN {log}")).await, 3);
}
