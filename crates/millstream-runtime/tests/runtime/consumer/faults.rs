//! The consumer when things go wrong: nothing ends it, nothing is lost, and it says so.

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use millstream_core::{ErrorKind, Outcome};
use millstream_runtime::{ConsumerBuilder, Delivery};

#[tokio::test(start_paused = true)]
async fn errors_of_the_server_end_nothing_and_use_no_attempt() {
    let bench = bench();
    let kinds = [ErrorKind::Unavailable, ErrorKind::Unconfirmed, ErrorKind::Denied, ErrorKind::Protocol];
    bench.log.fetch_failures.lock().expect("lock").extend(kinds);
    bench.log.settle_failures.lock().expect("lock").extend(kinds);
    *bench.log.lose_settle_replies.lock().expect("lock") = 2;
    produce(&bench, 50).await;
    let seen = Seen::default();
    let consumer = bench.consumer(NUMBERS, "g").start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    until(&seen, 50).await;
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (50, 0));
    let want: Vec<_> = (0..50).map(|n| (n, 1)).collect();
    assert_eq!(*seen.lock().expect("lock"), want, "each once, as a first attempt, in order");
    for operation in ["fetch", "settle"] {
        assert!(bench.told.lines(&format!("Failing {{ operation: \"{operation}\"")) >= 3, "{operation}");
        assert!(bench.told.lines(&format!("Recovered {{ operation: \"{operation}\"")) >= 1, "{operation}");
    }
}

/// A reader that finds its fence touched reads what is pending, and says so only with what it found. By then some of that
/// is settled, and nothing is to be handled again.
#[tokio::test(start_paused = true)]
async fn what_is_settled_while_the_reader_starts_over_by_itself_is_not_handled_again() {
    let bench = bench();
    *bench.log.starts_over.lock().expect("lock") = 1;
    produce(&bench, 10).await;
    let seen = Seen::default();
    let consumer = bench.consumer(NUMBERS, "g").start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    until(&seen, 10).await;
    while *bench.log.starts_over.lock().expect("lock") > 0 {
        tokio::time::sleep(MS(1)).await;
    }
    // It goes on behind that.
    produce(&bench, 1).await;
    until(&seen, 11).await;
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (11, 0));
    let numbers: Vec<_> = seen.lock().expect("lock").iter().map(|(n, _)| *n).collect();
    assert_eq!(numbers, (0..10).chain([0]).collect::<Vec<_>>(), "each once");
}

#[tokio::test(start_paused = true)]
async fn a_dead_letter_that_cannot_be_stored_is_kept_and_does_not_hold_up_the_others() {
    let bench = bench();
    *bench.log.dead_letters_fail.lock().expect("lock") = Some(ErrorKind::WrongType);
    produce(&bench, 10).await;
    let seen = Seen::default();
    let consumer = bench
        .consumer(NUMBERS, "g")
        .start({
            let seen = seen.clone();
            move |delivery: Delivery<u64>| {
                note(&seen, &delivery);
                let n = delivery.payload;
                async move { if n == 4 { Outcome::dead_letter("bad") } else { Outcome::Ack } }
            }
        })
        .await
        .expect("started");
    until(&seen, 10).await;
    let topic = bench.backend.catalog().topic(&"numbers".parse().expect("name")).await.expect("a topic");
    let group = "g".parse().expect("name");
    loop {
        let stats = bench.backend.catalog().stats(&topic, &group).await.expect("stats");
        if stats[0].pending == 1 {
            break;
        }
        tokio::time::sleep(MS(10)).await;
    }
    *bench.log.dead_letters_fail.lock().expect("lock") = None;
    bench.told.wait_for("Recovered { operation: \"settle\"").await;
    consumer.shutdown().await;
    assert_eq!(dead(&bench, "g").await.count().await.expect("counted"), 1);
    assert_eq!(count(&seen), 10);
}

#[tokio::test(start_paused = true)]
async fn shutdown_lets_a_handler_end_and_hands_back_the_rest() {
    let bench = bench();
    produce(&bench, 10).await;
    let seen = Seen::default();
    let slow = |seen: &Seen| {
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            let seen = seen.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(5)).await;
                note(&seen, &delivery);
            }
        }
    };
    let first = bench.consumer(NUMBERS, "g").start(slow(&seen)).await.expect("started");
    until(&seen, 2).await;
    let started = tokio::time::Instant::now();
    let report = first.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (3, 7), "the one that had started ended");
    assert!(started.elapsed() <= Duration::from_secs(6), "and nothing else was waited for");
    let second = bench.consumer(NUMBERS, "g").start(slow(&seen)).await.expect("started");
    until(&seen, 10).await;
    assert_eq!(second.shutdown().await.acked, 7);
    let want: Vec<_> = (0..10).map(|n| (n, 1)).collect();
    assert_eq!(*seen.lock().expect("lock"), want);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_does_not_end_is_given_up_after_the_timeout() {
    let bench = bench();
    produce(&bench, 1).await;
    let seen = Seen::default();
    let consumer = bench.consumer(NUMBERS, "g").shutdown_timeout(Duration::from_secs(3)).start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            std::future::pending::<()>()
        }
    });
    let consumer = consumer.await.expect("started");
    until(&seen, 1).await;
    let started = tokio::time::Instant::now();
    let report = consumer.shutdown().await;
    assert_eq!((report.acked, report.handed_back), (0, 1));
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert_eq!(bench.told.lines("Revoked"), 1, "the partition is given back all the same");
}

#[tokio::test(start_paused = true)]
async fn a_second_instance_stands_by_and_takes_over_when_the_first_stops_renewing() {
    let bench = bench();
    produce(&bench, 5).await;
    let seen = Seen::default();
    let (first, second) = (Seen::default(), seen.clone());
    let (link, backend) = crate::support::link::link(&bench.backend);
    let stuck = ConsumerBuilder::new(backend, NUMBERS, "g", Arc::new(bench.told.clone())).start({
        let first = first.clone();
        move |delivery: Delivery<u64>| {
            note(&first, &delivery);
            std::future::pending::<()>()
        }
    });
    let stuck = stuck.await.expect("started");
    until(&first, 1).await;
    let standby = bench.consumer(NUMBERS, "g").start(move |delivery: Delivery<u64>| {
        note(&second, &delivery);
        async {}
    });
    let standby = standby.await.expect("started");
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(count(&seen), 0, "a slow handler is not a dead one");
    link.cut();
    let cut = tokio::time::Instant::now();
    until(&seen, 5).await;
    assert!(cut.elapsed() < Duration::from_millis(10_500), "the ttl is 10 s: {:?}", cut.elapsed());
    assert_eq!(standby.shutdown().await.acked, 5);
    drop(stuck);
}

#[tokio::test(start_paused = true)]
async fn a_destroyed_group_is_restored_where_it_was_and_told() {
    let bench = bench();
    produce(&bench, 10).await;
    let seen = Seen::default();
    let consumer = bench.consumer(NUMBERS, "g").start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async {}
        }
    });
    let consumer = consumer.await.expect("started");
    until(&seen, 10).await;
    bench.told.wait_for("Settled").await;
    eventually(|| bench.told.all().iter().filter(|l| l.contains("Settled")).count() > 0, String::new).await;
    tokio::time::sleep(MS(100)).await;
    bench.memory.operator().destroy_group(&partition(), &"g".parse().expect("name"));
    bench.told.wait_for("GroupRestored").await;
    produce(&bench, 10).await;
    until(&seen, 20).await;
    assert_eq!(consumer.shutdown().await.acked, 20, "nothing twice");
    bench.memory.operator().delete_log(&partition());
    let consumer = bench.consumer(NUMBERS, "g").start(|_: Delivery<u64>| async {}).await.expect("started");
    produce(&bench, 3).await;
    eventually(|| consumer.report().acked == 3, || "three more".into()).await;
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn deleted_pending_entries_are_told_and_leave_the_list() {
    let bench = bench();
    let ids = produce(&bench, 3).await;
    let seen = Seen::default();
    let stuck = bench.consumer(NUMBERS, "g").shutdown_timeout(MS(10)).start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            std::future::pending::<()>()
        }
    });
    let stuck = stuck.await.expect("started");
    until(&seen, 1).await;
    assert_eq!(stuck.shutdown().await.handed_back, 3);
    let topic = bench.backend.catalog().topic(&"numbers".parse().expect("name")).await.expect("a topic");
    let group = "g".parse().expect("name");
    for id in &ids[..2] {
        assert!(bench.memory.operator().delete_entry(&partition(), *id));
    }
    let rest = bench.consumer(NUMBERS, "g").start(|_: Delivery<u64>| async {}).await.expect("started");
    bench.told.wait_for("Ghosts").await;
    eventually(|| rest.report().acked == 1, || "one is left".into()).await;
    rest.shutdown().await;
    let stats = bench.backend.catalog().stats(&topic, &group).await.expect("stats");
    assert_eq!(stats[0].pending, 0);
}

/// Of messages that come one by one, a millisecond after each other: the first is acknowledged at once, five share a request after it. Where
/// what waits leaves no room to read, nothing waits.
#[tokio::test(start_paused = true)]
async fn acknowledgements_that_come_one_by_one_share_a_request() {
    for (prefetch, requests) in [(512, 2..=5), (1, 10..=10)] {
        let bench = bench();
        let seen = Seen::default();
        let consumer = bench.consumer(NUMBERS, "g").prefetch(prefetch).start({
            let seen = seen.clone();
            move |delivery: Delivery<u64>| {
                note(&seen, &delivery);
                async {}
            }
        });
        let consumer = consumer.await.expect("started");
        for n in 1..=10 {
            produce(&bench, 1).await;
            until(&seen, n).await;
        }
        assert_eq!(consumer.shutdown().await.acked, 10);
        let sent = bench.told.lines("Settled {");
        assert!(requests.contains(&sent), "prefetch {prefetch}: {sent} requests");
    }
}
