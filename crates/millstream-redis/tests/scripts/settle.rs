//! ack, retry, `dead_letter`, promote, replay, trim: gates, order of writes, bytes.

pub(crate) mod dead_letters;
pub(crate) mod dead_trimming;
pub(crate) mod dedup;
pub(crate) mod deleted_packs;
pub(crate) mod notes;
pub(crate) mod packed;
pub(crate) mod packed_alone;
pub(crate) mod retention;
pub(crate) mod seek;
pub(crate) mod sweeping;
pub(crate) mod trimming;
pub(crate) mod unique;

use std::time::Duration;

use bytes::Bytes;
use millstream_core::Timestamp;
use millstream_core::dead_letters::{DeadLetters, Reason};
use millstream_core::envelope::Limits;
use millstream_core::error::ErrorKind;
use millstream_core::history::History;
use millstream_core::id::MessageId;
use millstream_core::inspect::Range;
use millstream_core::log::{Entry, Log, Receipt, Settlement, Source};
use millstream_core::schedule::{Due, Schedule};
use millstream_core::wire::{self, Fields, MAX_BODY_FIELDS};

use crate::server::{Bench, dead, fetch, fields, ids, message, retry};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

const NOW: Duration = Duration::ZERO;

fn log(id: MessageId) -> Receipt {
    Receipt::new(Source::Log, id)
}

/// Duplicate names, an order, and bytes that are no text.
fn odd() -> Fields {
    fields(&[(b"payload", b"\xff\x00\r\n"), (b"f", b"1"), (b"\xfe", b""), (b"f", b"2"), (b"", b"x")])
}

/// The history that a redelivery brings.
fn told(entry: &Entry) -> History {
    wire::decode(entry.receipt, &entry.fields, &Limits::default()).history
}

/// The same settlement of a message with a history.
fn kept(mut settlement: Settlement, earlier: History) -> Settlement {
    if let Settlement::Retry { history, .. } | Settlement::DeadLetter { history, .. } = &mut settlement {
        *history = earlier;
    }
    settlement
}

async fn promote(bench: &Bench) -> (usize, usize) {
    // Never early: a retry after nothing is due in the next millisecond at the latest.
    tokio::time::sleep(Duration::from_millis(3)).await;
    let promoted = bench.backend.promote(&bench.lease, 200).await.expect("promoted");
    (promoted.moved, promoted.orphans)
}

#[tokio::test]
async fn an_ack_counts_once_and_deletes_from_the_retry_log_only() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(3).await;
    let mut reader = bench.reader().await;
    assert_eq!(ids(&fetch(&mut reader, 10).await), appended);
    let batch: Vec<_> = appended.iter().map(|id| (log(*id), Settlement::Ack)).collect();
    assert_eq!(bench.settle(&batch).await, (3, 0));
    assert_eq!(bench.settle(&batch).await, (0, 3), "sent again it is stale");
    let key = bench.log();
    assert_eq!(bench.int(&format!("XLEN {key}")).await, 3, "other groups still read the log");
}

#[tokio::test]
async fn bytes_in_are_bytes_out_over_retry_death_and_replay() {
    let mut bench = Bench::new().await;
    let origin = bench.append(odd()).await;
    let mut reader = bench.reader().await;
    assert_eq!(fetch(&mut reader, 10).await.entries[0].fields, odd());

    assert_eq!(bench.settle(&[(log(origin), retry(NOW, 2, origin))]).await, (1, 0));
    assert_eq!(bench.settle(&[(log(origin), retry(NOW, 2, origin))]).await, (0, 1), "at most once");
    assert_eq!(promote(&bench).await, (1, 0));
    for attempt in 2..4 {
        let fetched = fetch(&mut reader, 10).await;
        let [entry] = &fetched.entries[..] else { panic!("{fetched:?}") };
        assert_eq!(entry.receipt.source, Source::Retry);
        let history = told(entry);
        let attempts: Vec<_> = history.failures().iter().map(|failed| failed.attempt).collect();
        assert_eq!(attempts, (1..attempt).collect::<Vec<_>>());
        let expected = wire::redelivery(attempt, origin, "boom", &history, &odd());
        assert_eq!(entry.fields, expected, "attempt {attempt}");
        let again = kept(retry(NOW, attempt + 1, origin), history);
        assert_eq!(bench.settle(&[(entry.receipt, again)]).await, (1, 0));
        assert_eq!(promote(&bench).await, (1, 0));
    }
    let entry = fetch(&mut reader, 10).await.entries.remove(0);
    let dies = kept(dead(origin), History::parse("5 1 first\n7 2 second"));
    assert_eq!(bench.settle(&[(entry.receipt, dies.clone())]).await, (1, 0));
    assert_eq!(bench.settle(&[(entry.receipt, dies)]).await, (0, 1), "at most once");
    let key = bench.retry_log();
    assert_eq!(bench.int(&format!("XLEN {key}")).await, 0, "what was settled left the retry log");

    let list =
        async || bench.backend.list(&bench.tp, &bench.group, Range::ALL, 10).await.expect("listed").items;
    let letters = list().await;
    let [letter] = &letters[..] else { panic!("{letters:?}") };
    assert_eq!((&letter.reason, letter.attempts, letter.origin), (&Reason::Rejected, 3, origin));
    assert_eq!((letter.error.as_str(), &letter.body), ("boom", &odd()));
    let expected = format!("5 1 first\n7 2 second\n{} 3 boom", letter.history.failures()[2].at.as_millis());
    assert_eq!(letter.history.to_string(), expected);
    assert!(
        letter.id.ms.abs_diff(letter.history.failures()[2].at.as_millis()) < 1_000,
        "by the server's clock"
    );
    let ids = [letter.id, letter.id, MessageId::new(1, 1)];
    assert_eq!(bench.backend.replay(&bench.tp, &bench.group, &ids).await.expect("replayed"), 1);
    assert_eq!(bench.backend.replay(&bench.tp, &bench.group, &ids).await.expect("replayed"), 0);
    assert!(list().await.is_empty());
    let entry = fetch(&mut reader, 10).await.entries.remove(0);
    assert_eq!(entry.fields, wire::redelivery(1, origin, "", &History::default(), &odd()));
}

/// As all times: by the server's clock, capped where numbers are not exact any more.
#[tokio::test]
async fn a_time_a_snooze_and_a_far_away_future() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(4).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    let history = History::parse("5 1 boom");
    let retry = |due, attempt, at: usize| {
        let (error, history) = ("boom".to_owned(), history.clone());
        (
            log(appended[at]),
            Settlement::Retry { due, attempt, origin: appended[at], error, history, wait: None },
        )
    };
    let time = appended[3].ms + 60_000;
    let batch = [
        retry(Due::At(AT(time)), 3, 0),
        retry(Due::At(AT(u64::MAX)), 3, 1),
        retry(Due::In(Duration::MAX), 2, 2),
        retry(Due::At(AT(1)), 2, 3),
    ];
    assert_eq!(bench.settle(&batch).await, (4, 0));
    let due = bench.keys.retry_due(&bench.tp, &bench.group);
    let mut scores = Vec::new();
    for id in &appended {
        let score = bench.cmd(&format!("ZSCORE {due} {id}")).await;
        let score: u64 = redis::from_redis_value(score).expect("a number");
        scores.push(score);
    }
    let far = appended[3].ms + u64::try_from(Due::FAR.as_millis()).expect("fits");
    assert_eq!((scores[0], scores[3]), (time, 1));
    assert!(scores[1..3].iter().all(|score| (far..far + 60_000).contains(score)), "{scores:?}");
    assert_eq!(promote(&bench).await, (1, 0), "what was due long ago");
    let entry = fetch(&mut reader, 10).await.entries.remove(0);
    assert_eq!(entry.receipt.source, Source::Retry);
    assert_eq!(told(&entry), history, "attempt 2 again: nothing failed");
    let items = bench.keys.retry_items(&bench.tp, &bench.group);
    let item = bench.cmd(&format!("HGET {items} {}", appended[0])).await;
    let item: Vec<u8> = redis::from_redis_value(item).expect("bytes");
    let item = String::from_utf8_lossy(&item);
    assert!(item.contains("5 1 boom\n") && item.contains(" 2 boom"), "{item}");
}

#[tokio::test]
async fn a_dead_letter_from_the_log_and_a_foreign_one() {
    let mut bench = Bench::new().await;
    let origin = bench.append(odd()).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    assert_eq!(bench.settle(&[(log(origin), dead(origin))]).await, (1, 0));
    let key = bench.dlq();
    bench.cmd(&format!("XADD {key} * hello world")).await;
    let letters = bench.backend.list(&bench.tp, &bench.group, Range::ALL, 10).await.expect("listed").items;
    assert_eq!(letters.len(), 2);
    assert_eq!(letters[0].body, odd());
    let behind = Range::ALL.behind(letters[0].id);
    let after = bench.backend.list(&bench.tp, &bench.group, behind, 10).await.expect("listed").items;
    assert_eq!(after[0].body, fields(&[(b"hello", b"world")]));
    let foreign = after[0].id;
    assert_eq!(bench.backend.replay(&bench.tp, &bench.group, &[foreign]).await.expect("replayed"), 1);
    let entry = fetch(&mut reader, 10).await.entries.remove(0);
    let body = fields(&[(b"hello", b"world")]);
    assert_eq!(entry.fields, wire::redelivery(1, foreign, "", &History::default(), &body));
    let purged = bench.backend.purge(&bench.tp, &bench.group, &[letters[0].id, foreign]).await;
    assert_eq!(purged.expect("purged"), 1);
}

#[tokio::test]
async fn an_entry_of_too_many_fields_is_packed_and_does_not_stop_the_promoter() {
    let bench = Bench::new().await;
    let huge: Fields =
        (0..=MAX_BODY_FIELDS).map(|i| (Bytes::from(format!("f{i}")), Bytes::from_static(b"\xff"))).collect();
    let (first, second) = (bench.append(huge.clone()).await, bench.append(huge.clone()).await);
    let most = bench.append(huge[1..].to_vec()).await;
    let mut reader = bench.reader().await;
    assert_eq!(fetch(&mut reader, 10).await.entries.len(), 3);
    let batch = [(log(first), dead(first)), (log(second), retry(NOW, 2, second)), (log(most), dead(most))];
    assert_eq!(bench.settle(&batch).await, (3, 0));
    let letters = bench.backend.list(&bench.tp, &bench.group, Range::ALL, 10).await.expect("listed").items;
    let packed = |body: &Fields| body.len() == 1 && body[0].0 == wire::PACKED && body[0].1.len() > 12_000;
    assert!(packed(&letters[0].body));
    // array 16, two values per field
    assert_eq!(letters[0].body[0].1[..3], [0xdc, 0x17, 0x72]);
    assert_eq!(letters[1].body, huge[1..], "the most that is allowed stays as it is");
    assert_eq!(promote(&bench).await, (1, 0));
    let entry = fetch(&mut reader, 10).await.entries.remove(0);
    assert!(packed(&wire::body_of(Source::Retry, &entry.fields).to_vec()));
}

#[tokio::test]
async fn who_lost_the_lease_settles_nothing() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(3).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    let next = bench.take_over().await;
    let settlements = [Settlement::Ack, retry(NOW, 2, appended[1]), dead(appended[2])];
    for (id, settlement) in appended.iter().zip(settlements.clone()) {
        let error =
            Log::settle(&bench.backend, &bench.lease, &[(log(*id), settlement)]).await.expect_err("fenced");
        assert_eq!(error.kind(), ErrorKind::Fenced);
    }
    for error in [bench.backend.promote(&bench.lease, 10).await.err(), bench.trim().await.err()] {
        assert_eq!(error.expect("fenced").kind(), ErrorKind::Fenced);
    }
    let batch: Vec<_> = appended.iter().map(|id| log(*id)).zip(settlements).collect();
    let settled = Log::settle(&bench.backend, &next, &batch).await.expect("settled");
    assert_eq!(settled.applied, 3, "nothing had been done before");
}

#[tokio::test]
async fn put_before_remove_a_failure_half_way_leaves_no_hole() {
    for broken in ["retry_due", "retry_items", "dlq"] {
        let mut bench = Bench::new().await;
        let id = bench.append(message("x")).await;
        let mut reader = bench.reader().await;
        fetch(&mut reader, 10).await;
        let (key, settlement) = match broken {
            "retry_due" => (bench.keys.retry_due(&bench.tp, &bench.group), retry(NOW, 2, id)),
            "retry_items" => (bench.keys.retry_items(&bench.tp, &bench.group), retry(NOW, 2, id)),
            _ => (bench.dlq(), dead(id)),
        };
        bench.cmd(&format!("SET {key} x")).await;
        let error = Log::settle(&bench.backend, &bench.lease, &[(log(id), settlement.clone())]).await;
        let error = error.expect_err("a foreign type");
        assert_eq!(error.kind(), ErrorKind::WrongType);
        assert!(error.to_string().contains(key.as_str()), "{error}");
        let log_key = bench.log();
        let pending = bench.cmd(&format!("XPENDING {log_key} billing - + 10")).await;
        assert_eq!(pending.into_sequence().expect("rows").len(), 1, "{broken}: still pending");
        bench.cmd(&format!("DEL {key}")).await;
        assert_eq!(bench.settle(&[(log(id), settlement)]).await, (1, 0), "{broken}: sent again");
    }
}

#[tokio::test]
async fn ghosts_are_stale_and_without_the_group_nothing_but_an_ack_is_settled() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(4).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    let key = bench.log();
    bench.cmd(&format!("XDEL {key} {} {}", appended[0], appended[1])).await;
    let batch = [(log(appended[0]), retry(NOW, 2, appended[0])), (log(appended[1]), dead(appended[1]))];
    assert_eq!(bench.settle(&batch).await, (0, 2));
    bench.cmd(&format!("XGROUP DESTROY {key} billing")).await;
    for settlement in [retry(NOW, 2, appended[2]), dead(appended[3])] {
        let batch = [(log(appended[2]), settlement), (log(appended[3]), Settlement::Ack)];
        let error = Log::settle(&bench.backend, &bench.lease, &batch).await.expect_err("no group");
        assert_eq!(error.kind(), ErrorKind::GroupMissing);
    }
    assert_eq!(bench.settle(&[(log(appended[3]), Settlement::Ack)]).await, (0, 1));
    let (items, letters) =
        (bench.keys.retry_items(&bench.tp, &bench.group), bench.keys.dead_letters(&bench.tp, &bench.group));
    assert_eq!(bench.int(&format!("EXISTS {items} {letters}")).await, 0, "nothing was done");
}

#[tokio::test]
async fn nothing_is_promoted_early_and_what_lost_its_body_is_told() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(4).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    let after = Duration::from_secs(1);
    let batch: Vec<_> = appended.iter().map(|id| (log(*id), retry(after, 2, *id))).collect();
    assert_eq!(bench.settle(&batch).await, (4, 0));
    let promoted = bench.backend.promote(&bench.lease, 200).await.expect("promoted");
    assert_eq!((promoted.moved, promoted.orphans), (0, 0));
    let next = promoted.next.expect("something is parked");
    assert!(next <= after + Duration::from_millis(1) && next > NOW, "{next:?}");
    let items = bench.keys.retry_items(&bench.tp, &bench.group);
    bench.cmd(&format!("HDEL {items} {} {}", appended[0], appended[3])).await;
    let stream = bench.keys.log(&bench.tp);
    bench.cmd(&format!("XDEL {stream} {}", appended[0])).await;
    bench.cmd(&format!("HSET {items} {} garbage", appended[1])).await;
    tokio::time::sleep(next).await;
    let first = bench.backend.promote(&bench.lease, 1).await.expect("promoted");
    assert_eq!((first.moved + first.orphans, first.next), (1, Some(NOW)), "the limit holds");
    let rest = bench.backend.promote(&bench.lease, 200).await.expect("promoted");
    assert_eq!((first.moved + rest.moved, first.orphans + rest.orphans, rest.next), (2, 2, None));
    let letters = bench.backend.list(&bench.tp, &bench.group, Range::ALL, 10).await.expect("listed").items;
    let orphans: Vec<_> = letters.iter().map(|letter| (&letter.reason, letter.origin)).collect();
    assert_eq!(orphans, [(&Reason::Orphan, appended[0]), (&Reason::Orphan, appended[1])]);
    assert_eq!(letters[0].body, Fields::new());
    assert_eq!(letters[1].body, fields(&[(b"packed", b"garbage")]));
    assert_eq!(bench.int(&format!("HLEN {items}")).await, 0);
}

#[tokio::test]
async fn trim_keeps_what_any_group_has_not_settled() {
    use millstream_core::catalog::{Catalog, Start};
    let mut bench = Bench::new().await;
    let other = "audit".parse().expect("name");
    let appended = bench.append_many(350).await;
    let mut reader = bench.reader().await;
    assert_eq!(fetch(&mut reader, 1_000).await.entries.len(), 350);
    let all: Vec<_> = appended.iter().map(|id| (log(*id), Settlement::Ack)).collect();
    let trim = async |bench: &Bench| bench.trim().await.expect("trimmed");
    bench.settle(&all[..120]).await;
    assert_eq!(trim(&bench).await, 120, "up to the oldest that is pending");
    bench.backend.create_group(&bench.spec, &other, Start::Earliest).await.expect("created");
    bench.settle(&all[120..]).await;
    assert_eq!(trim(&bench).await, 0, "the other group has read nothing");
    let key = bench.log();
    bench.cmd(&format!("XREADGROUP GROUP audit owner COUNT 10 NOACK STREAMS {key} >")).await;
    assert_eq!(trim(&bench).await, 10);
    bench.cmd(&format!("XGROUP SETID {key} audit $")).await;
    assert_eq!(trim(&bench).await, 220);
    assert_eq!(bench.int(&format!("XLEN {key}")).await, 0);
    let next = bench.append(message("after")).await;
    assert_eq!(trim(&bench).await, 0);
    assert_eq!(ids(&fetch(&mut reader, 10).await), [next]);
    bench.cmd(&format!("XGROUP DESTROY {key} audit")).await;
    bench.cmd(&format!("XGROUP DESTROY {key} billing")).await;
    assert_eq!(trim(&bench).await, 0, "without a group nothing is dropped");
    bench.cmd(&format!("DEL {key}")).await;
    assert_eq!(trim(&bench).await, 0, "without a log neither");
}

#[tokio::test]
async fn a_long_log_is_trimmed_in_portions() {
    let bench = Bench::new().await;
    let appended = bench.append_many(25_050).await;
    let mut reader = bench.reader().await;
    let mut read = 0;
    while read < appended.len() {
        read += fetch(&mut reader, 10_000).await.entries.len();
    }
    let all: Vec<_> = appended.iter().map(|id| (log(*id), Settlement::Ack)).collect();
    assert_eq!(bench.settle(&all).await, (25_050, 0));
    assert_eq!(bench.trim().await.expect("trimmed"), 25_050);
}

#[tokio::test]
async fn a_server_out_of_memory_refuses_appends_and_nothing_else() {
    use millstream_core::leases::Leases;
    let mut bench = Bench::private(&[]).await;
    let appended = bench.append_many(4).await;
    let mut reader = bench.reader().await;
    assert_eq!(fetch(&mut reader, 2).await.entries.len(), 2);
    bench.cmd("CONFIG SET maxmemory 1").await;

    let append = millstream_core::log::Append::new(bench.tp.clone(), message("x"));
    let error = bench.backend.append(&[append]).await.remove(0).expect_err("out of memory");
    assert_eq!(error.kind(), ErrorKind::Backpressure);
    assert!(error.to_string().contains("orders/0"), "{error}");

    let mut again = bench.reader().await;
    assert_eq!(ids(&fetch(&mut again, 10).await), appended[..2], "a new reader can begin");
    assert_eq!(ids(&fetch(&mut again, 10).await), appended[2..]);
    let batch = [
        (log(appended[0]), Settlement::Ack),
        (log(appended[1]), retry(NOW, 2, appended[1])),
        (log(appended[2]), dead(appended[2])),
    ];
    assert_eq!(bench.settle(&batch).await, (3, 0));
    assert_eq!(promote(&bench).await, (1, 0));
    let lease = bench.keys.lease(&bench.tp, &bench.group);
    bench.cmd(&format!("DEL {lease}")).await;
    bench.backend.renew(std::slice::from_ref(&bench.lease)).await.remove(0).expect("revived");
    bench.trim().await.expect("trimmed");
    bench.backend.release(&bench.lease).await.expect("released");
    bench.take_over().await;
}
