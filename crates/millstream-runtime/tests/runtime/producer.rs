//! The producer: batches, order, bounds, honest results.

pub(crate) mod ahead;
pub(crate) mod bounded;
pub(crate) mod dedup;
pub(crate) mod delayed;
pub(crate) mod durability;
pub(crate) mod layers;
pub(crate) mod partitioners;
pub(crate) mod trimming;
pub(crate) mod unique;

use std::time::Duration;

use crate::support::{MS, bench};
use bytes::Bytes;
use millstream_core::{ErrorKind, Topic};
use millstream_runtime::Record;

const NUMBERS: Topic<u64> = Topic::new("numbers").partitions(4);

#[tokio::test(start_paused = true)]
async fn sends_of_many_tasks_share_requests() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    let tasks: Vec<_> = (0..64)
        .map(|task| {
            let producer = producer.clone();
            tokio::spawn(async move {
                for n in 0..10 {
                    producer.send(&(task * 10 + n)).await.expect("sent");
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no panic");
    }
    let requests = bench.log.appends.lock().expect("lock").clone();
    assert_eq!(requests.iter().sum::<usize>(), 640);
    assert!(requests.len() <= 20, "{} requests for 640 messages of 64 tasks", requests.len());
}

#[tokio::test(start_paused = true)]
async fn a_linger_gathers_what_comes_within_it() {
    let bench = bench();
    let producer = bench.producing(NUMBERS).linger(MS(20)).await.expect("a producer");
    let sends = (0..5).map(|n| {
        let producer = producer.clone();
        tokio::spawn(async move {
            tokio::time::sleep(MS(n)).await;
            producer.send(&n).await.expect("sent");
        })
    });
    for send in sends.collect::<Vec<_>>() {
        send.await.expect("no panic");
    }
    assert_eq!(*bench.log.appends.lock().expect("lock"), [5]);
}

#[tokio::test(start_paused = true)]
async fn a_key_keeps_its_partition_and_ids_grow_in_send_order() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    let values: Vec<u64> = (0..2_000).collect();
    let sent = producer.send_all(values.iter().map(|n| Record::new(n).key(format!("k{}", n % 7)))).await;
    let sent: Vec<_> = sent.into_iter().map(|sent| sent.expect("sent")).collect();
    for key in 0..7 {
        let of_key: Vec<_> = sent.iter().skip(key).step_by(7).collect();
        assert!(of_key.windows(2).all(|w| w[0].partition == w[1].partition && w[0].id < w[1].id));
    }
}

#[tokio::test(start_paused = true)]
async fn every_message_has_its_own_result() {
    let bench = bench();
    let producer = bench.producer(Topic::raw("bytes").partitions(2)).await;
    let small = Bytes::from_static(b"x");
    let large = Bytes::from(vec![0; (1 << 20) + 1]);
    let records =
        [Record::new(&small), Record::new(&large), Record::new(&small).partition(9), Record::new(&small)];
    let sent = producer.send_all(records).await;
    let kinds: Vec<_> =
        sent.iter().map(|sent| sent.as_ref().err().map(millstream_core::Error::kind)).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::TooLarge), Some(ErrorKind::InvalidConfig), None]);
}

#[tokio::test(start_paused = true)]
async fn it_waits_for_a_server_that_is_away_and_never_guesses() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    bench.log.append_failures.lock().expect("lock").extend([ErrorKind::Unavailable; 3]);
    producer.send(&1).await.expect("sent at the fourth try");
    assert_eq!(bench.log.appends.lock().expect("lock").len(), 4);
    for kind in [ErrorKind::Unconfirmed, ErrorKind::Backpressure, ErrorKind::WrongType] {
        bench.log.append_failures.lock().expect("lock").push_back(kind);
        assert_eq!(producer.send(&1).await.expect_err("told").kind(), kind);
    }
    assert_eq!(bench.log.appends.lock().expect("lock").len(), 7, "none of these is sent again");
    bench.log.append_failures.lock().expect("lock").extend([ErrorKind::Unavailable; 1_000]);
    let started = tokio::time::Instant::now();
    assert_eq!(producer.send(&1).await.expect_err("given up").kind(), ErrorKind::Unavailable);
    let took = started.elapsed();
    // The pause before the last attempt ends up to a millisecond late: tokio's timers count milliseconds.
    assert!(took > Duration::from_secs(28) && took <= Duration::from_millis(30_001), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_buffer_makes_senders_wait_and_then_says_so() {
    let bench = bench();
    let producer = bench
        .producing(Topic::raw("bytes"))
        .buffer_memory(4096)
        .delivery_timeout(MS(500))
        .await
        .expect("a producer");
    *bench.log.append_takes.lock().expect("lock") = Duration::from_secs(10);
    let filler = {
        let producer = producer.clone();
        tokio::spawn(async move { producer.send(&Bytes::from(vec![0; 4000])).await })
    };
    tokio::task::yield_now().await;
    let small = Bytes::from_static(b"x");
    let waited = producer.send(&small).await.expect_err("no room");
    assert_eq!(waited.kind(), ErrorKind::Backpressure, "{waited}");
    filler.await.expect("no panic").expect("sent in the end");
    producer.send(&small).await.expect("room again");
    producer.send(&Bytes::from(vec![0; 9000])).await.expect("larger than the buffer still goes alone");
}

#[tokio::test(start_paused = true)]
async fn closing_sends_what_was_taken_and_refuses_the_rest() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    let sends: Vec<_> = (0..50)
        .map(|n| {
            let producer = producer.clone();
            tokio::spawn(async move { producer.send(&n).await })
        })
        .collect();
    tokio::task::yield_now().await;
    producer.close().await;
    for send in sends {
        send.await.expect("no panic").expect("sent before the end");
    }
    assert_eq!(producer.send(&1).await.expect_err("closed").kind(), ErrorKind::Closed);
    let sent = producer.send_all([Record::new(&1), Record::new(&2)]).await;
    assert!(sent.iter().all(|sent| sent.as_ref().is_err_and(|error| error.kind() == ErrorKind::Closed)));
    producer.close().await;
    producer.flush().await;
}

#[tokio::test(start_paused = true)]
async fn dropping_the_producer_still_sends_what_was_taken() {
    let bench = bench();
    let producer = bench.producer(NUMBERS).await;
    let send = {
        let producer = producer.clone();
        tokio::spawn(async move { producer.send(&7).await })
    };
    tokio::task::yield_now().await;
    drop(producer);
    send.await.expect("no panic").expect("sent");
}

#[tokio::test(start_paused = true)]
async fn everything_that_is_wrong_is_said_at_once() {
    let bench = bench();
    let error = bench
        .producing(Topic::<u64>::new("bad name").partitions(0))
        .max_batch(0)
        .buffer_memory(1)
        .delivery_timeout(Duration::ZERO)
        .await
        .expect_err("invalid");
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);
    assert_eq!(error.problems().len(), 6, "{error}");
}

#[derive(Debug)]
struct Unwritable;

impl serde::Serialize for Unwritable {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("no"))
    }
}

impl<'de> serde::Deserialize<'de> for Unwritable {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("no"))
    }
}

#[tokio::test(start_paused = true)]
async fn a_value_that_cannot_be_written_is_an_encode_error() {
    let bench = bench();
    let producer = bench.producer(Topic::<Unwritable>::new("t")).await;
    let error = producer.send(&Unwritable).await.expect_err("no");
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::Encode, "cannot encode as json: no"));
}

#[tokio::test(start_paused = true)]
async fn the_stored_number_of_partitions_wins() {
    let bench = bench();
    assert_eq!(bench.producer(NUMBERS).await.partitions(), 4);
    assert_eq!(bench.producer(NUMBERS.partitions(16)).await.partitions(), 4);
}
