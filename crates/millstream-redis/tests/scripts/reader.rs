//! The reader: fenced also while it waits, and nothing is lost with an answer or a connection.

pub(crate) mod sharing;

use std::time::{Duration, Instant};

use millstream_core::catalog::Catalog;
use millstream_core::error::ErrorKind;
use millstream_core::id::MessageId;
use millstream_core::log::{Log, Source};
use millstream_redis::{RedisBackend, RedisConfig};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::server::{Bench, Server, fetch, ids, message};

const LONG: Duration = Duration::from_secs(60);

#[tokio::test]
async fn new_entries_come_at_once_and_an_empty_answer_after_the_wait() {
    let bench = Bench::new().await;
    let mut reader = bench.reader().await;
    let started = Instant::now();
    assert!(reader.fetch(10, Duration::from_millis(120)).await.expect("fetched").entries.is_empty());
    assert!((Duration::from_millis(119)..LONG / 2).contains(&started.elapsed()));

    for max in [10, 1] {
        let started = Instant::now();
        let waiting = reader.fetch(max, LONG);
        let later = async {
            sleep(Duration::from_millis(50)).await;
            bench.append(message("x")).await
        };
        let (fetched, id) = tokio::join!(waiting, later);
        let fetched = fetched.expect("fetched");
        assert_eq!(ids(&fetched), [id]);
        assert_eq!((fetched.pending, fetched.entries[0].deliveries), (false, 1));
        assert!(started.elapsed() < LONG / 2, "woken: {:?}", started.elapsed());
    }
}

#[tokio::test]
async fn both_streams_are_read_within_max_whatever_it_is() {
    for max in [1, 2, 3, 8] {
        let mut bench = Bench::new().await;
        let retry_log = bench.retry_log();
        bench.append_many(9).await;
        for _ in 0..5 {
            bench.cmd(&format!("XADD {retry_log} * attempt 2 origin 1-1 error e history h payload r")).await;
        }
        let mut reader = bench.reader().await;
        let mut seen = Vec::new();
        for _ in 0..40 {
            let fetched = fetch(&mut reader, max).await;
            assert!(fetched.entries.len() <= max, "max {max}");
            seen.extend(fetched.entries.into_iter().map(|entry| entry.receipt));
            if seen.len() == 14 {
                break;
            }
        }
        let count = |source: Source| seen.iter().filter(|receipt| receipt.source == source).count();
        assert_eq!((count(Source::Log), count(Source::Retry)), (9, 5), "max {max}");
        let first: Vec<_> = seen.iter().take(8).map(|receipt| receipt.source).collect();
        assert!(first.contains(&Source::Log) && first.contains(&Source::Retry), "max {max}: none starves");

        // A redelivery wakes a waiting reader, too.
        let (fetched, _) = tokio::join!(reader.fetch(max, LONG), async {
            sleep(Duration::from_millis(30)).await;
            bench.cmd(&format!("XADD {retry_log} * payload r")).await
        });
        assert_eq!(fetched.expect("fetched").entries[0].receipt.source, Source::Retry);
    }
}

#[tokio::test]
async fn what_one_stream_does_not_need_the_other_one_has() {
    let mut bench = Bench::new().await;
    let retry_log = bench.retry_log();
    bench.append_many(200).await;
    let mut reader = bench.reader().await;
    for _ in 0..2 {
        assert!(
            fetch(&mut reader, 40).await.entries.len() >= 39,
            "no room is kept for retries that are not there"
        );
    }
    for _ in 0..100 {
        bench.cmd(&format!("XADD {retry_log} * attempt 2 origin 1-1 error e history h payload r")).await;
    }
    let count = |fetched: &millstream_core::log::Fetched, source: Source| {
        fetched.entries.iter().filter(|entry| entry.receipt.source == source).count()
    };
    let first = fetch(&mut reader, 40).await;
    assert!(count(&first, Source::Retry) >= 1, "they are seen at once: {}", first.entries.len());
    let second = fetch(&mut reader, 40).await;
    assert_eq!((count(&second, Source::Log), count(&second, Source::Retry)), (30, 10));
    let mut left = 200 - 2 * 39;
    while left > 0 {
        let fetched = fetch(&mut reader, 40).await;
        assert!(!fetched.entries.is_empty() && fetched.entries.len() <= 40);
        left -= fetched.entries.len().min(left);
    }
}

#[tokio::test]
async fn what_is_pending_comes_first_in_pages_with_its_deliveries() {
    let mut bench = Bench::new().await;
    let (log, retry_log) = (bench.log(), bench.retry_log());
    let appended = bench.append_many(7).await;
    bench.cmd(&format!("XADD {retry_log} 5-1 payload r")).await;
    // An answer that never arrived: handed out, as far as the server knows.
    bench.cmd(&format!("XREADGROUP GROUP billing owner COUNT 5 STREAMS {log} >")).await;
    bench.cmd(&format!("XREADGROUP GROUP billing owner COUNT 5 STREAMS {retry_log} >")).await;
    bench.cmd(&format!("XDEL {log} {}", appended[1])).await;

    let mut reader = bench.reader().await;
    let (mut seen, mut ghosts) = (Vec::new(), Vec::new());
    loop {
        let fetched = fetch(&mut reader, 2).await;
        if !fetched.pending {
            assert_eq!(ids(&fetched)[0], appended[5], "then what is new");
            break;
        }
        assert!(fetched.entries.len() + fetched.ghosts.len() <= 2);
        assert!(fetched.entries.iter().all(|entry| entry.deliveries == 2), "{fetched:?}");
        seen.extend(ids(&fetched));
        ghosts.extend(fetched.ghosts);
    }
    assert_eq!(seen, [appended[0], appended[2], appended[3], appended[4], MessageId::new(5, 1)]);
    assert_eq!(ghosts.iter().map(|ghost| ghost.id).collect::<Vec<_>>(), [appended[1]]);

    let mut second = bench.reader().await;
    assert_eq!(fetch(&mut second, 1).await.entries[0].deliveries, 3);
}

/// Nobody removes the gate of a reader whose fence is lost. What it takes then would stay pending until the next owner.
#[tokio::test]
async fn what_is_taken_through_a_gate_that_outlived_its_fence_is_found() {
    let mut bench = Bench::new().await;
    let mut first = bench.reader().await;
    fetch(&mut first, 10).await;
    let word: String =
        redis::from_redis_value(bench.cmd(&format!("HGET {} reader", bench.fence())).await).expect("a word");
    bench.cmd(&format!("DEL {}", bench.fence())).await;
    let next = bench.take_over().await;
    let mut reader = bench.backend.reader(&next).await.expect("a reader");
    assert!(fetch(&mut reader, 10).await.entries.is_empty());
    let gate = bench.keys.gate(&bench.tp, &bench.group, &word);
    let (log, group) = (bench.log(), bench.group.clone());
    let taking = async {
        sleep(Duration::from_millis(50)).await;
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("XADD").arg(&[log.as_str(), "*", "payload", "x"]).ignore();
        let read = pipe.cmd("XREADGROUP").arg(&["GROUP", group.as_str(), "owner", "STREAMS"]);
        read.arg(&[log.as_str(), gate.as_str(), ">", ">"]).ignore();
        pipe.exec_async(&mut bench.raw).await.expect("taken");
    };
    let (fetched, ()) = tokio::join!(timeout(LONG, reader.fetch(10, LONG)), taking);
    let fetched = fetched.expect("in time").expect("fetched");
    assert_eq!((fetched.pending, fetched.entries.len()), (true, 1));
}

/// Somebody removes the gate, or puts something else there: the reader begins anew, and nothing is lost.
#[tokio::test]
async fn a_gate_that_somebody_removed_is_made_anew() {
    let mut bench = Bench::private(&[]).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    for spoil in ["DEL", "SET"] {
        let word: String =
            redis::from_redis_value(bench.cmd(&format!("HGET {} reader", bench.fence())).await)
                .expect("a word");
        let gate = bench.keys.gate(&bench.tp, &bench.group, &word);
        bench.cmd(&format!("DEL {gate}")).await;
        if spoil == "SET" {
            bench.cmd(&format!("SET {gate} x")).await;
        }
        let id = bench.append(message("x")).await;
        let mut found = Vec::new();
        for _ in 0..3 {
            match reader.fetch(10, Duration::ZERO).await {
                Ok(fetched) => found.extend(ids(&fetched)),
                Err(error) => assert_eq!((spoil, error.kind()), ("SET", ErrorKind::WrongType)),
            }
        }
        assert!(found.contains(&id), "{spoil}: {found:?}");
        let gates: Vec<String> = redis::from_redis_value(bench.cmd("KEYS *:gate:*").await).expect("keys");
        let word: String =
            redis::from_redis_value(bench.cmd(&format!("HGET {} reader", bench.fence())).await)
                .expect("a word");
        let new = bench.keys.gate(&bench.tp, &bench.group, &word);
        assert_eq!(gates, [new.to_string()], "{spoil}: one gate, that of the reader of now");
    }
}

#[tokio::test]
async fn a_stale_owner_reads_nothing_also_while_it_waits() {
    let mut bench = Bench::new().await;
    let mut stale = bench.reader().await;
    fetch(&mut stale, 10).await;
    let blocked = tokio::spawn(async move { (stale.fetch(10, LONG).await, stale) });
    sleep(Duration::from_millis(60)).await;
    let next = bench.take_over().await;
    let id = bench.append(message("for the next owner")).await;
    let (fetched, mut stale) = blocked.await.expect("no panic");
    assert_eq!(fetched.expect_err("fenced").kind(), ErrorKind::Fenced);
    assert_eq!(stale.fetch(10, Duration::ZERO).await.expect_err("for good").kind(), ErrorKind::Fenced);
    let mut reader = bench.backend.reader(&next).await.expect("a reader");
    let fetched = fetch(&mut reader, 10).await;
    assert_eq!((ids(&fetched), fetched.pending), (vec![id], false), "the stale owner had not read it");
}

#[tokio::test]
async fn a_renewal_and_a_second_reader_do_not_stop_a_waiting_one() {
    use millstream_core::leases::Leases;
    let bench = Bench::new().await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    let (fetched, id) = tokio::join!(reader.fetch(10, LONG), async {
        sleep(Duration::from_millis(30)).await;
        bench.backend.renew(std::slice::from_ref(&bench.lease)).await.remove(0).expect("renewed");
        let mut other = bench.reader().await;
        fetch(&mut other, 10).await;
        drop(other);
        bench.append(message("x")).await
    });
    assert_eq!(ids(&fetched.expect("fetched")), [id]);
}

#[tokio::test]
async fn a_dropped_fetch_loses_nothing() {
    let bench = Bench::new().await;
    let mut reader = bench.reader().await;
    for round in 0..10 {
        let _ = timeout(Duration::from_millis(round), reader.fetch(10, LONG)).await;
        let id = bench.append(message("x")).await;
        let fetched = reader.fetch(10, LONG).await.expect("fetched");
        assert!(ids(&fetched).contains(&id), "round {round}: {fetched:?}");
        let batch: Vec<_> = fetched
            .entries
            .iter()
            .map(|entry| (entry.receipt, millstream_core::log::Settlement::Ack))
            .collect();
        bench.settle(&batch).await;
    }
}

#[tokio::test]
async fn a_killed_connection_and_flushed_scripts_heal() {
    let mut bench = Bench::private(&[]).await;
    let mut reader = bench.reader().await;
    let first = bench.append(message("1")).await;
    assert_eq!(ids(&fetch(&mut reader, 10).await), [first]);
    let (fetched, _) = tokio::join!(reader.fetch(10, LONG), async {
        sleep(Duration::from_millis(50)).await;
        bench.cmd("SCRIPT FLUSH").await;
        bench.cmd("CLIENT KILL TYPE normal SKIPME yes").await
    });
    assert_eq!(fetched.expect_err("cut").kind(), ErrorKind::Unconfirmed);
    let fetched = fetch(&mut reader, 10).await;
    assert_eq!((ids(&fetched), fetched.pending), (vec![first], true), "it starts over with what is pending");
    let second = bench.append(message("2")).await;
    let fetched = fetch(&mut reader, 10).await;
    assert_eq!(ids(&fetched), [second]);
    let receipts = [first, second].map(|id| millstream_core::log::Receipt::new(Source::Log, id));
    let batch =
        [(receipts[0], millstream_core::log::Settlement::Ack), (receipts[1], crate::server::dead(second))];
    assert_eq!(bench.settle(&batch).await, (2, 0), "both scripts were gone, in one pipeline");
}

#[tokio::test]
async fn a_group_or_key_that_vanished_is_told_and_can_be_restored() {
    let mut bench = Bench::new().await;
    let (log, retry_log) = (bench.log(), bench.retry_log());
    let appended = bench.append_many(3).await;
    let mut reader = bench.reader().await;
    fetch(&mut reader, 2).await;
    bench.cmd(&format!("XGROUP DESTROY {log} billing")).await;
    assert_eq!(reader.fetch(10, LONG).await.expect_err("gone").kind(), ErrorKind::GroupMissing);
    bench.backend.restore_group(&bench.tp, &bench.group, appended[0]).await.expect("restored");
    assert_eq!(ids(&fetch(&mut reader, 4).await), appended[1..], "above the id, pending or not");

    // The log itself is deleted and begins anew, by a clock that is behind: nothing of it was ever read.
    let groups = bench.keys.topic_groups(&bench.tp.topic);
    bench.cmd(&format!("DEL {log} {groups}")).await;
    bench.cmd(&format!("XADD {log} 7-1 payload x")).await;
    assert_eq!(reader.fetch(10, Duration::ZERO).await.expect_err("gone").kind(), ErrorKind::GroupMissing);
    bench.backend.restore_group(&bench.tp, &bench.group, appended[2]).await.expect("restored");
    assert_eq!(ids(&fetch(&mut reader, 4).await), [MessageId::new(7, 1)]);
    let groups = bench.backend.groups(&bench.tp.topic).await.expect("groups");
    assert_eq!(groups, std::slice::from_ref(&bench.group), "it is registered again");

    bench.cmd(&format!("SET {retry_log} x")).await;
    for wait in [Duration::ZERO, LONG] {
        let error = reader.fetch(10, wait).await.expect_err("a foreign type");
        assert_eq!(error.kind(), ErrorKind::WrongType);
        assert!(error.to_string().contains(retry_log.as_str()), "{error}");
    }
}

#[tokio::test]
async fn a_group_moved_by_hand_does_not_make_a_busy_loop() {
    let mut bench = Bench::private(&[]).await;
    let log = bench.log();
    let mut reader = bench.reader().await;
    fetch(&mut reader, 10).await;
    bench.append_many(500).await;
    bench.cmd(&format!("XGROUP SETID {log} billing $")).await;
    bench.cmd("CONFIG RESETSTAT").await;
    assert!(reader.fetch(10, Duration::from_millis(200)).await.expect("fetched").entries.is_empty());
    let stats = format!("{:?}", bench.cmd("INFO commandstats").await);
    let calls =
        stats.split("cmdstat_xread:calls=").nth(1).and_then(|s| s.split(',').next()?.parse::<u32>().ok());
    assert!(calls.is_some_and(|calls| calls <= 3), "{calls:?} waits");
}

/// Forwards connections; those that were open when it is frozen stay open and carry nothing any more.
async fn proxy(server: u16) -> (u16, watch::Sender<u32>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let (freeze, frozen) = watch::channel(0u32);
    tokio::spawn(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            let mut frozen = frozen.clone();
            frozen.mark_unchanged();
            tokio::spawn(async move {
                let mut upstream = TcpStream::connect(("127.0.0.1", server)).await.expect("the server");
                tokio::select! {
                    _ = copy_bidirectional(&mut client, &mut upstream) => {}
                    _ = frozen.changed() => std::future::pending::<()>().await,
                }
            });
        }
    });
    (port, freeze)
}

/// The server does not know that the first connection is dead: its XREAD is still blocked there, in front of the
/// new one's, with a read behind it whose answer no client would receive.
#[tokio::test]
async fn what_a_dead_connection_left_on_the_server_reads_nothing() {
    let server = Server::start(&[]);
    let (port, freeze) = proxy(server.port).await;
    let mut bench = Bench::at(RedisConfig::new(server.url()), None).await;
    let config = RedisConfig::new(format!("redis://127.0.0.1:{port}"))
        .with_namespace(bench.namespace.clone())
        .with_response_timeout(Duration::from_millis(300));
    let behind = RedisBackend::connect(config).await.expect("connected");
    let mut reader = behind.reader(&bench.lease).await.expect("a reader");
    assert!(fetch(&mut reader, 10).await.entries.is_empty());
    let waiting = timeout(Duration::from_millis(100), reader.fetch(10, LONG)).await;
    assert!(waiting.is_err(), "dropped while it waits");
    freeze.send_modify(|n| *n += 1);

    let (fetched, id) = tokio::join!(reader.fetch(10, LONG), async {
        sleep(Duration::from_millis(200)).await;
        let blocked = format!("{:?}", bench.cmd("INFO clients").await);
        assert!(blocked.contains("blocked_clients:2"), "{blocked}");
        bench.append(message("x")).await
    });
    assert_eq!(ids(&fetched.expect("fetched")), [id]);

    // And a request whose answer is lost ends in time, with that error.
    freeze.send_modify(|n| *n += 1);
    let started = Instant::now();
    let error = reader.fetch(10, Duration::from_millis(100)).await.expect_err("no answer");
    assert_eq!(error.kind(), ErrorKind::Unconfirmed);
    assert!(started.elapsed() < LONG / 2);
    let fetched = fetch(&mut reader, 10).await;
    assert_eq!((ids(&fetched), fetched.pending), (vec![id], true));
}
