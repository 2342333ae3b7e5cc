//! hold: what is noted of pending entries stays with them over takeovers, and goes when they are settled.

use std::time::Duration;

use millstream_core::error::ErrorKind;
use millstream_core::history::History;
use millstream_core::id::MessageId;
use millstream_core::log::{Fetched, Log, Note, Receipt, Settlement, Source};
use millstream_core::schedule::Due;

use crate::server::{Bench, dead, fetch, ids, retry};

const NOW: Duration = Duration::ZERO;

fn log(id: MessageId) -> Receipt {
    Receipt::new(Source::Log, id)
}

fn note(attempt: u32, after: Duration) -> Note {
    let (due, history) = (Due::In(after), History::parse("5 1 no\n70 8 no again"));
    let (by, error) = ("worker-1".into(), "boom: \n two  spaces ".into());
    Note { attempt, due, suspicions: 1, by, error, history }
}

fn hold(attempt: u32) -> Settlement {
    Settlement::Hold(note(attempt, NOW))
}

fn attempts(fetched: &Fetched) -> Vec<Option<u32>> {
    fetched.entries.iter().map(|entry| entry.note.as_ref().map(|note| note.attempt)).collect()
}

#[tokio::test]
async fn a_note_is_read_by_the_next_owner_with_what_is_left_to_wait() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(3).await;
    let mut reader = bench.reader().await;
    let fetched = fetch(&mut reader, 10).await;
    assert!(fetched.entries.iter().all(|entry| entry.note.is_none()));
    let long = Duration::from_secs(30);
    let batch = [
        (log(appended[0]), Settlement::Hold(note(2, long))),
        (log(appended[1]), hold(3)),
        (log(MessageId::new(1, 1)), hold(9)),
    ];
    assert_eq!(bench.settle(&batch).await, (2, 1), "what is not pending is stale");
    tokio::time::sleep(Duration::from_millis(20)).await;

    bench.lease = bench.take_over().await;
    let mut reader = bench.reader().await;
    let fetched = fetch(&mut reader, 10).await;
    assert_eq!((ids(&fetched), fetched.pending), (appended.clone(), true));
    let first = fetched.entries[0].note.clone().expect("a note");
    let left = long - Duration::from_millis(15);
    assert!(first.left() <= left && first.left() > Duration::from_secs(20), "{first:?}");
    assert_eq!(Note { due: Due::In(long), ..first }, note(2, long));
    assert_eq!(fetched.entries[1].note, Some(note(3, NOW)));
    assert_eq!(fetched.entries[2].note, None);

    let held = bench.held();
    let stored = format!("{:?}", bench.cmd(&format!("HGET {held} log:{}", appended[1])).await);
    assert!(stored.contains("0 3 1 worker-1 20 boom: "), "{stored}");
    assert_eq!(bench.settle(&[(log(appended[1]), hold(4))]).await, (1, 0), "in place of the one before");
    let mut reader = bench.reader().await;
    assert_eq!(attempts(&fetch(&mut reader, 10).await), [Some(2), Some(4), None]);
}

#[tokio::test]
async fn whatever_settles_an_entry_takes_its_note_along() {
    for source in [Source::Log, Source::Retry] {
        let mut bench = Bench::new().await;
        let (held, retry_log) = (bench.held(), bench.retry_log());
        let mut reader = bench.reader().await;
        let appended = match source {
            Source::Log => bench.append_many(4).await,
            Source::Retry => {
                for n in 1..5 {
                    bench
                        .cmd(&format!(
                            "XADD {retry_log} 5-{n} attempt 2 origin 1-1 error e history 5 payload r"
                        ))
                        .await;
                }
                (1..5).map(|n| MessageId::new(5, n)).collect()
            }
        };
        assert_eq!(fetch(&mut reader, 10).await.entries.len(), 4);
        let receipt = |at: usize| Receipt::new(source, appended[at]);
        let batch: Vec<_> = (0..4).map(|at| (receipt(at), hold(2))).collect();
        assert_eq!(bench.settle(&batch).await, (4, 0));
        assert_eq!(bench.int(&format!("HLEN {held}")).await, 4);
        let mut again = bench.reader().await;
        assert_eq!(attempts(&fetch(&mut again, 10).await), [Some(2); 4], "{source:?}");
        let batch = [
            (receipt(0), Settlement::Ack),
            (receipt(1), retry(NOW, 3, appended[1])),
            (receipt(2), dead(appended[2])),
        ];
        assert_eq!(bench.settle(&batch).await, (3, 0));
        assert_eq!(bench.int(&format!("HLEN {held}")).await, 1, "{source:?}");
        assert_eq!(bench.settle(&[(receipt(0), hold(9))]).await, (0, 1), "settled is settled");
        assert_eq!(bench.settle(&[(receipt(3), Settlement::Ack)]).await, (1, 0));
        assert_eq!(bench.int(&format!("EXISTS {held}")).await, 0);
    }
}

#[tokio::test]
async fn thousands_of_notes_come_with_their_pages() {
    let bench = Bench::new().await;
    let appended = bench.append_many(2_500).await;
    let mut reader = bench.reader().await;
    let mut read = 0;
    while read < appended.len() {
        read += fetch(&mut reader, 4_000).await.entries.len();
    }
    let batch: Vec<_> = (0u32..).zip(&appended).map(|(n, id)| (log(*id), hold(n))).collect();
    assert_eq!(bench.settle(&batch).await, (2_500, 0));
    for page in [4_000, 999] {
        let mut reader = bench.reader().await;
        let mut seen = Vec::new();
        while seen.len() < appended.len() {
            seen.extend(attempts(&fetch(&mut reader, page).await));
        }
        assert_eq!(seen, (0..2_500).map(Some).collect::<Vec<_>>());
    }
    let batch: Vec<_> = appended.iter().map(|id| (log(*id), Settlement::Ack)).collect();
    assert_eq!(bench.settle(&batch).await, (2_500, 0));
    let mut bench = bench;
    let held = bench.held();
    assert_eq!(bench.int(&format!("EXISTS {held}")).await, 0);
}

#[tokio::test]
async fn somebody_elses_field_is_no_note_and_no_error() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(2).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    let held = bench.held();
    bench.cmd(&format!("HSET {held} log:{} hello foreign world", appended[0])).await;
    assert_eq!(bench.settle(&[(log(appended[1]), hold(2))]).await, (1, 0));
    let mut reader = bench.reader().await;
    assert_eq!(attempts(&fetch(&mut reader, 10).await), [None, Some(2)]);
    let named = Settlement::Hold(Note { by: "two words".into(), ..note(2, NOW) });
    let error = bench.backend.settle(&bench.lease, &[(log(appended[0]), named)]).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
}

#[tokio::test]
async fn a_note_needs_the_lease_and_a_hash() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(4).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    let held = bench.held();
    bench.cmd(&format!("SET {held} x")).await;
    let settlements = [hold(2), Settlement::Ack, retry(NOW, 2, appended[2]), dead(appended[3])];
    for (id, settlement) in appended.iter().zip(settlements) {
        let error = bench.backend.settle(&bench.lease, &[(log(*id), settlement)]).await;
        let error = error.expect_err("a foreign type");
        assert_eq!(error.kind(), ErrorKind::WrongType);
        assert!(error.to_string().contains(held.as_str()), "{error}");
    }
    let error = bench.reader().await.fetch(10, NOW).await.expect_err("a foreign type");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert!(error.to_string().contains(held.as_str()), "{error}");
    bench.cmd(&format!("DEL {held}")).await;
    let mut reader = bench.reader().await;
    assert_eq!(ids(&fetch(&mut reader, 10).await), appended, "nothing was settled");

    let next = bench.take_over().await;
    let batch = [(log(appended[0]), hold(2))];
    let error = bench.backend.settle(&bench.lease, &batch).await.expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    assert_eq!(bench.int(&format!("EXISTS {held}")).await, 0);
    let key = bench.log();
    bench.cmd(&format!("XGROUP DESTROY {key} billing")).await;
    let error = bench.backend.settle(&next, &batch).await.expect_err("no group");
    assert_eq!(error.kind(), ErrorKind::GroupMissing);
    assert_eq!(bench.int(&format!("EXISTS {held}")).await, 0);
}

#[tokio::test]
async fn out_of_memory_notes_are_written_and_read() {
    let mut bench = Bench::private(&[]).await;
    let appended = bench.append_many(2).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    bench.cmd("CONFIG SET maxmemory 1").await;
    assert_eq!(bench.settle(&[(log(appended[1]), hold(5))]).await, (1, 0));
    let mut reader = bench.reader().await;
    assert_eq!(attempts(&fetch(&mut reader, 10).await), [None, Some(5)]);
    let batch = [(log(appended[0]), retry(NOW, 2, appended[0])), (log(appended[1]), dead(appended[1]))];
    assert_eq!(bench.settle(&batch).await, (2, 0));
}
