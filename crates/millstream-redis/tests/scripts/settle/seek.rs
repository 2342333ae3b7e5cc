//! seek, and a server that lost its tail: readers start over, and report a loss that was not requested.

use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::catalog::{Catalog, Start};
use millstream_core::error::ErrorKind;
use millstream_core::id::MessageId;
use millstream_core::leases::Leases;
use millstream_core::log::{Log, Note, Reader, Receipt, Settlement, Source};
use millstream_core::schedule::Schedule;

use crate::server::{Bench, dead, fetch, grant, ids, message, retry};

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(60);

fn log(id: MessageId) -> Receipt {
    Receipt::new(Source::Log, id)
}

fn hold() -> Settlement {
    Settlement::Hold(Note { attempt: 2, by: "w".into(), ..Note::default() })
}

impl Bench {
    /// Goes on under a new lease.
    async fn seek(&mut self, start: Start) -> Box<dyn Reader> {
        self.backend.seek(&self.lease, start).await.expect("moved");
        let nonce = format!("{:x}", fastrand::u64(..));
        self.lease = grant(&self.backend, &self.tp, &self.group, &nonce).await;
        self.reader().await
    }
}

#[tokio::test]
async fn back_and_forward_and_what_was_pending_is_forgotten() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(6).await;
    let mut reader = bench.reader().await;
    assert_eq!(ids(&fetch(&mut reader, 10).await), appended);
    bench.settle(&[(log(appended[0]), Settlement::Ack), (log(appended[1]), hold())]).await;

    let cases: [(Start, &[MessageId]); 5] = [
        (Start::Earliest, &appended),
        (Start::After(appended[3]), &appended[4..]),
        (Start::Latest, &[]),
        (Start::At(Timestamp::from_millis(0)), &appended),
        (Start::At(Timestamp::from_millis(appended[5].ms + 1)), &[]),
    ];
    for (start, expected) in cases {
        reader = bench.seek(start).await;
        let fetched = fetch(&mut reader, 10).await;
        assert_eq!(ids(&fetched), expected, "{start:?}");
        assert!(!fetched.pending && fetched.rewound.is_none(), "{start:?}: {fetched:?}");
        let mut other = bench.reader().await;
        assert_eq!(ids(&fetch(&mut other, 10).await), expected, "{start:?}: now they are pending");
    }
    reader = bench.seek(Start::At(appended[0].timestamp())).await;
    assert_eq!(ids(&fetch(&mut reader, 10).await), appended);
    assert_eq!(bench.settle(&[(log(appended[2]), Settlement::Ack)]).await, (1, 0));
}

#[tokio::test]
async fn notes_of_the_log_go_and_everything_else_of_the_group_stays() {
    let mut bench = Bench::new().await;
    let (held, retry_log, dlq) = (bench.held(), bench.retry_log(), bench.dlq());
    let appended = bench.append_many(4).await;
    bench.cmd(&format!("XADD {retry_log} 5-1 attempt 2 origin 1-1 error e history h payload r")).await;
    let mut reader = bench.reader().await;
    assert_eq!(fetch(&mut reader, 10).await.entries.len(), 5);
    let again = Receipt::new(Source::Retry, MessageId::new(5, 1));
    let batch = [
        (log(appended[0]), hold()),
        (again, hold()),
        (log(appended[1]), retry(LONG, 2, appended[1])),
        (log(appended[2]), dead(appended[2])),
    ];
    assert_eq!(bench.settle(&batch).await, (4, 0));
    reader = bench.seek(Start::Earliest).await;
    assert_eq!(format!("{:?}", bench.cmd(&format!("HKEYS {held}")).await).matches(':').count(), 1);
    assert_eq!(bench.int(&format!("HEXISTS {held} retry:5-1")).await, 1);
    assert_eq!(bench.int(&format!("XLEN {dlq}")).await, 1);
    assert!(bench.backend.promote(&bench.lease, 10).await.expect("promoted").next.is_some());
    let fetched = fetch(&mut reader, 10).await;
    assert_eq!(
        (ids(&fetched), fetched.pending),
        (vec![again.id], true),
        "of the retry log it is still pending"
    );
    assert!(fetched.entries[0].note.is_some());
    assert_eq!(ids(&fetch(&mut reader, 10).await), appended);
}

#[tokio::test]
async fn a_reader_that_waits_is_fenced_and_reads_nothing() {
    let mut bench = Bench::new().await;
    let appended = bench.append_many(3).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    let (fetched, newest) = tokio::join!(reader.fetch(10, LONG), async {
        tokio::time::sleep(Duration::from_millis(60)).await;
        let reader = bench.seek(Start::After(appended[0])).await;
        (bench.append(message("x")).await, reader)
    });
    assert_eq!(fetched.expect_err("its lease is gone").kind(), ErrorKind::Fenced);
    let (newest, mut reader) = newest;
    let fetched = fetch(&mut reader, 10).await;
    assert_eq!(ids(&fetched), [appended[1], appended[2], newest]);
    assert_eq!((fetched.pending, fetched.rewound), (false, None));
}

/// A settlement that was sent before, and comes when the ids are pending again.
#[tokio::test]
async fn nothing_from_before_takes_anything_off_the_list() {
    let mut bench = Bench::new().await;
    let (retries, dlq) = (bench.keys.retry_due(&bench.tp, &bench.group), bench.dlq());
    let (lease, key) = (bench.keys.lease(&bench.tp, &bench.group), bench.log());
    let appended = bench.append_many(4).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    let before = bench.lease.clone();
    bench.backend.seek(&before, Start::Earliest).await.expect("moved");
    assert_eq!(bench.int(&format!("EXISTS {lease}")).await, 0, "free at once");
    bench.lease = grant(&bench.backend, &bench.tp, &bench.group, "next").await;
    assert!(bench.lease.epoch > before.epoch && bench.lease.ends.is_empty());
    let mut reader = bench.reader().await;
    assert_eq!(ids(&fetch(&mut reader, 10).await), appended);
    let late = [
        (log(appended[0]), Settlement::Ack),
        (log(appended[1]), retry(NOW, 2, appended[1])),
        (log(appended[2]), dead(appended[2])),
        (log(appended[3]), hold()),
    ];
    for one in late {
        let error = bench.backend.settle(&before, std::slice::from_ref(&one)).await.expect_err("late");
        assert_eq!(error.kind(), ErrorKind::Fenced, "{one:?}");
    }
    let waiting = bench.int(&format!("ZCARD {retries}")).await + bench.int(&format!("XLEN {dlq}")).await;
    assert_eq!(waiting, 0);
    let pending = format!("{:?}", bench.cmd(&format!("XPENDING {key} billing")).await);
    assert!(pending.starts_with("array([int(4)"), "{pending}");
}

#[tokio::test]
async fn it_needs_the_lease_the_group_and_its_types() {
    let mut bench = Bench::new().await;
    let (key, held) = (bench.log(), bench.held());
    let appended = bench.append_many(2).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    bench.cmd(&format!("SET {held} x")).await;
    let error = bench.backend.seek(&bench.lease, Start::Latest).await.expect_err("a foreign type");
    assert_eq!(error.kind(), ErrorKind::WrongType);
    bench.cmd(&format!("DEL {held}")).await;
    let mut reader = bench.reader().await;
    assert_eq!(ids(&fetch(&mut reader, 10).await), appended, "nothing was changed");

    let next = bench.take_over().await;
    let error = bench.backend.seek(&bench.lease, Start::Latest).await.expect_err("fenced");
    assert_eq!(error.kind(), ErrorKind::Fenced);
    bench.lease = next;
    bench.cmd(&format!("XGROUP DESTROY {key} billing")).await;
    for _ in 0..2 {
        let error = bench.backend.seek(&bench.lease, Start::Earliest).await.expect_err("no group");
        assert_eq!(error.kind(), ErrorKind::GroupMissing, "{error}");
        bench.cmd(&format!("DEL {key}")).await;
    }
    bench.cmd(&format!("SET {key} x")).await;
    let error = bench.backend.seek(&bench.lease, Start::Earliest).await.expect_err("a foreign type");
    assert_eq!(error.kind(), ErrorKind::WrongType);
}

#[tokio::test]
async fn out_of_memory_a_group_can_be_moved() {
    let mut bench = Bench::private(&[]).await;
    let appended = bench.append_many(3).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    bench.cmd("CONFIG SET maxmemory 1").await;
    bench.backend.seek(&bench.lease, Start::After(appended[1])).await.expect("moved");
    bench.cmd("CONFIG SET maxmemory 0").await;
    bench.lease = grant(&bench.backend, &bench.tp, &bench.group, "next").await;
    bench.cmd("CONFIG SET maxmemory 1").await;
    let mut reader = bench.reader().await;
    assert_eq!(ids(&fetch(&mut reader, 10).await), appended[2..]);
}

#[tokio::test]
async fn a_server_that_lost_its_end_is_told_once() {
    let mut bench = Bench::private(&[]).await;
    let key = bench.log();
    let appended = bench.append_many(5).await;
    let mut reader = bench.reader().await;
    assert_eq!(fetch(&mut reader, 10).await.rewound, None);
    // What a fail-over leaves: the position is an older one, and connections are cut.
    bench.cmd(&format!("XGROUP SETID {key} billing {}", appended[1])).await;
    bench.cmd("CLIENT KILL TYPE normal SKIPME yes").await;
    let mut rewound = Vec::new();
    let mut seen = 0;
    while seen < 5 {
        if let Ok(fetched) = reader.fetch(2, NOW).await {
            seen += fetched.entries.len();
            rewound.extend(fetched.rewound);
            assert!(!fetched.tail_lost, "the entries are all there");
        }
    }
    assert_eq!(rewound, [(appended[4], appended[1])]);

    // Also if there is nothing else to return, and without a wait.
    let batch: Vec<_> = appended.iter().map(|id| (log(*id), Settlement::Ack)).collect();
    bench.settle(&batch).await;
    fetch(&mut reader, 10).await;
    bench.cmd(&format!("XTRIM {key} MAXLEN 0")).await;
    bench.cmd(&format!("XGROUP SETID {key} billing {}", appended[3])).await;
    bench.cmd("CLIENT KILL TYPE normal SKIPME yes").await;
    reader.fetch(10, NOW).await.expect_err("cut");
    let fetched =
        tokio::time::timeout(LONG / 2, reader.fetch(10, LONG)).await.expect("at once").expect("fetched");
    assert_eq!((fetched.rewound, fetched.entries.len()), (Some((appended[4], appended[3])), 0));
    assert!(fetched.tail_lost, "the newest entry is gone");
    assert_eq!(fetch(&mut reader, 10).await.rewound, None);
}

#[tokio::test]
async fn a_group_that_was_created_again_has_not_lost_its_end() {
    let mut bench = Bench::new().await;
    let key = bench.log();
    let appended = bench.append_many(3).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    bench.cmd(&format!("XGROUP DESTROY {key} billing")).await;
    assert_eq!(reader.fetch(10, NOW).await.expect_err("gone").kind(), ErrorKind::GroupMissing);
    bench.backend.restore_group(&bench.tp, &bench.group, appended[0]).await.expect("restored");
    let fetched = fetch(&mut reader, 10).await;
    assert_eq!((ids(&fetched), fetched.rewound), (appended[1..].to_vec(), None));
}

/// The clock of the new primary is behind: other entries have the ids of those that were lost. Of the log, and of the retry
/// log.
#[tokio::test]
async fn an_id_that_was_given_again_is_found_out_before_anything_is_read() {
    // A reader starts over after its connection was cut, and on request.
    for (of_retries, told) in [(false, false), (true, false), (false, true), (true, true)] {
        let mut bench = Bench::private(&[]).await;
        let key = if of_retries { bench.retry_log() } else { bench.log() };
        for n in 1..=2 {
            bench.cmd(&format!("XADD {key} {n}-1 attempt 2 origin 1-1 error e history h payload old")).await;
        }
        let mut reader = bench.reader().await;
        while fetch(&mut reader, 10).await.pending {}
        // The replica has it as it is now. `XSETID` would set it back on Redis 7 alone.
        bench.cmd(&format!("COPY {key} {key}:replica")).await;
        bench.cmd(&format!("XADD {key} 3-1 attempt 2 origin 1-1 error e history h payload old")).await;
        assert_eq!(ids(&fetch(&mut reader, 10).await), [MessageId::new(3, 1)]);
        bench.cmd(&format!("COPY {key}:replica {key} REPLACE")).await;
        bench.cmd(&format!("XADD {key} 3-1 attempt 2 origin 1-1 error e history h payload new")).await;
        if told {
            reader.start_over();
        } else {
            bench.cmd("CLIENT KILL TYPE normal SKIPME yes").await;
            reader.fetch(10, NOW).await.expect_err("cut");
        }
        let fetched = reader.fetch(10, NOW).await.expect("fetched");
        assert!(fetched.tail_lost && fetched.entries.is_empty(), "{of_retries}: {fetched:?}");
        let delivered = format!("{:?}", bench.cmd(&format!("XINFO GROUPS {key}")).await);
        assert!(delivered.contains("2-1") && !delivered.contains("3-1"), "nothing was read: {delivered}");
        // Under a new lease it is a message like any other.
        if bench.backend.release(&bench.lease).await.is_err() {
            // That connection was cut as well.
            bench.backend.release(&bench.lease).await.expect("given back");
        }
        let before = bench.lease.clone();
        bench.lease = grant(&bench.backend, &bench.tp, &bench.group, "next").await;
        let mut reader = bench.reader().await;
        let mut came = Vec::new();
        while came.len() < 3 {
            came.extend(ids(&fetch(&mut reader, 10).await));
        }
        assert!(came.contains(&MessageId::new(3, 1)), "{came:?}");
        let source = if of_retries { Source::Retry } else { Source::Log };
        let late = [(Receipt::new(source, MessageId::new(3, 1)), Settlement::Ack)];
        let error = bench.backend.settle(&before, &late).await.expect_err("late");
        assert_eq!(error.kind(), ErrorKind::Fenced);
    }
}
