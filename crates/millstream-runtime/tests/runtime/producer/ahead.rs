//! Requests that follow each other without waiting: order, whatever is refused meanwhile.

use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt;
use millstream_core::{ErrorKind, MessageId, TopicChange, TopicPartition};
use millstream_runtime::{Producer, Record};
use tokio::time::{Instant, timeout};

use crate::support::{Bench, MS, NUMBERS, bench, partition};

/// Requests of ten messages, each of which takes 10 ms.
async fn ahead() -> (Bench, Producer<u64>) {
    let bench = bench();
    *bench.log.ahead.lock().expect("lock") = true;
    *bench.log.append_takes.lock().expect("lock") = MS(10);
    let producing = bench.producing(NUMBERS).max_batch(10).delivery_timeout(Duration::from_secs(5));
    let producer = producing.await.expect("a producer");
    (bench, producer)
}

/// What becomes of so many messages: their ids, or why there is none.
async fn send(producer: &Producer<u64>, count: u64) -> Vec<Result<MessageId, ErrorKind>> {
    let values: Vec<u64> = (0..count).collect();
    let sent = producer.send_all(values.iter().map(Record::new)).await;
    sent.into_iter().map(|sent| sent.map(|sent| sent.id).map_err(|error| error.kind())).collect()
}

/// Whether all are stored, in the order in which they were sent.
fn in_order(sent: &[Result<MessageId, ErrorKind>]) -> bool {
    let ids: Vec<_> = sent.iter().flatten().collect();
    ids.len() == sent.len() && ids.is_sorted()
}

fn refuse(bench: &Bench, kinds: &[ErrorKind]) {
    bench.log.append_failures.lock().expect("lock").extend(kinds);
}

#[tokio::test(start_paused = true)]
async fn requests_do_not_wait_for_each_other() {
    let (bench, producer) = ahead().await;
    let started = Instant::now();
    let sent = send(&producer, 40).await;
    assert!(started.elapsed() < MS(15), "{:?} for four requests of 10 ms, all at once", started.elapsed());
    assert!(in_order(&sent), "{sent:?}");
    assert_eq!(*bench.log.appends.lock().expect("lock"), [10; 4]);
}

/// As a shutdown with a time limit does, behind which somebody closes it in any case.
#[tokio::test(start_paused = true)]
async fn who_closes_it_again_waits_as_the_first_does() {
    let (_bench, producer) = ahead().await;
    let mut sending = pin!(send(&producer, 40));
    timeout(MS(1), &mut sending).await.expect_err("requests are under way");
    for _ in 0..2 {
        timeout(MS(1), producer.close()).await.expect_err("requests are under way");
        timeout(MS(1), producer.flush()).await.expect_err("requests are under way");
    }
    producer.close().await;
    assert!(in_order(&sending.now_or_never().expect("everything was answered")));
    producer.close().await;
    producer.flush().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_refused_is_sent_again_with_all_that_stood_behind_it() {
    let (bench, producer) = ahead().await;
    refuse(&bench, &[ErrorKind::Unavailable; 4]);
    let sent = send(&producer, 40).await;
    assert!(in_order(&sent), "{sent:?}");
    assert_eq!(bench.log.appends.lock().expect("lock").len(), 4 + 4);
}

/// Until one of them is stored, the oldest goes alone.
#[tokio::test(start_paused = true)]
async fn while_the_server_is_away_one_request_at_a_time_asks_for_it() {
    let (bench, producer) = ahead().await;
    refuse(&bench, &[ErrorKind::Unavailable; 4 + 3]);
    let sent = send(&producer, 40).await;
    assert!(in_order(&sent), "{sent:?}");
    assert_eq!(bench.log.appends.lock().expect("lock").len(), 4 + 3 + 4);
}

#[tokio::test(start_paused = true)]
async fn what_was_overtaken_has_failed_and_is_not_sent_again() {
    let (bench, producer) = ahead().await;
    refuse(&bench, &[ErrorKind::Unavailable]);
    let sent = send(&producer, 40).await;
    assert!(sent[..10].iter().all(|sent| *sent == Err(ErrorKind::Unavailable)), "{sent:?}");
    assert!(in_order(&sent[10..]), "{sent:?}");
    assert_eq!(*bench.log.appends.lock().expect("lock"), [10; 4]);
}

/// From then on somebody looks for room first, and one request goes at a time.
#[tokio::test(start_paused = true)]
async fn a_bound_that_comes_while_requests_are_under_way_loses_and_turns_round_nothing() {
    // All that is under way at first, or that and more.
    for refusals in [0, 30, 31, 36] {
        let (bench, _) = ahead().await;
        let producer = bench.producing(NUMBERS).max_batch(10).refresh(MS(100)).await.expect("a producer");
        refuse(&bench, &vec![ErrorKind::Unavailable; refusals]);
        let alter = async {
            tokio::time::sleep(MS(30)).await;
            let change = TopicChange::default().max_length(Some(1_000));
            bench.backend.catalog().alter_topic(&partition().topic, &change).await.expect("altered");
        };
        let (sent, ()) = tokio::join!(send(&producer, 300), alter);
        assert!(in_order(&sent), "{refusals} refusals: {sent:?}");
        let stored = bench.backend.log().lengths(&[partition()]).await.expect("a length");
        assert_eq!(stored, [300], "{refusals} refusals");
    }
}

#[tokio::test(start_paused = true)]
async fn what_nobody_took_in_time_fails_and_the_rest_goes_on() {
    let (bench, producer) = ahead().await;
    refuse(&bench, &[ErrorKind::Unavailable; 40]);
    let started = Instant::now();
    let sent = send(&producer, 40).await;
    assert!(sent.iter().all(|sent| *sent == Err(ErrorKind::Unavailable)), "{sent:?}");
    // One time for all, from when they were sent.
    assert!(
        (Duration::from_secs(3)..Duration::from_secs(6)).contains(&started.elapsed()),
        "{:?}",
        started.elapsed()
    );
    bench.log.append_failures.lock().expect("lock").clear();
    assert!(send(&producer, 20).await.iter().all(Result::is_ok));
}

#[tokio::test(start_paused = true)]
async fn closing_and_flushing_wait_for_all_that_is_under_way() {
    let (bench, producer) = ahead().await;
    let sends: Vec<_> = (0..30)
        .map(|n| {
            let producer = producer.clone();
            tokio::spawn(async move { producer.send(&n).await.map(|sent| sent.id) })
        })
        .collect();
    tokio::task::yield_now().await;
    producer.flush().await;
    assert_eq!(bench.log.appends.lock().expect("lock").iter().sum::<usize>(), 30);
    producer.close().await;
    for send in sends {
        send.await.expect("no panic").expect("sent");
    }
    assert_eq!(producer.send(&1).await.expect_err("closed").kind(), ErrorKind::Closed);
}

/// A server that is away for long is asked now and then, not once for each message that waits.
#[tokio::test(start_paused = true)]
async fn what_waited_too_long_has_failed_without_an_attempt_of_its_own() {
    let bench = bench();
    *bench.log.ahead.lock().expect("lock") = true;
    let producing = bench.producing(NUMBERS).max_batch(1).delivery_timeout(Duration::from_secs(2));
    let producer = producing.await.expect("a producer");
    refuse(&bench, &[ErrorKind::Unavailable; 10_000]);
    let started = Instant::now();
    let sent = send(&producer, 1_000).await;
    assert!(sent.iter().all(|sent| *sent == Err(ErrorKind::Unavailable)), "{sent:?}");
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    let attempts = bench.log.appends.lock().expect("lock").len();
    // As many as go at once, and then one at a time.
    assert!((64 + 4..64 + 40).contains(&attempts), "{attempts} attempts in two seconds");
    bench.log.append_failures.lock().expect("lock").clear();
    assert!(in_order(&send(&producer, 10).await), "it is back");
}

/// That was a question: nothing was sent, so nobody needs to fear that it is stored twice.
#[tokio::test(start_paused = true)]
async fn a_question_for_room_that_got_no_answer_leaves_nothing_unconfirmed() {
    let bench = bench();
    *bench.log.ahead.lock().expect("lock") = true;
    let topic = || NUMBERS.max_length(100);
    let producer = bench.producing(topic()).delivery_timeout(MS(500)).await.expect("a producer");
    bench.log.length_failures.lock().expect("lock").extend([ErrorKind::Unconfirmed; 2]);
    assert!(in_order(&send(&producer, 5).await), "asked again");
    let producer = bench.producing(topic()).delivery_timeout(MS(500)).await.expect("a producer");
    bench.log.length_failures.lock().expect("lock").extend([ErrorKind::Unconfirmed; 1_000]);
    assert_eq!(send(&producer, 1).await, [Err(ErrorKind::Unavailable)]);
}

/// Partitions may be on different servers: one of them is away while the other one stores its part of each batch.
#[tokio::test(start_paused = true)]
async fn what_one_server_refuses_is_sent_again_and_what_another_one_has_stored_is_not() {
    // Of forty messages twenty go to each partition, ten in a batch: less than one batch, all of them, and more than once.
    for entries in [3, 20, 50] {
        let bench = bench();
        *bench.log.ahead.lock().expect("lock") = true;
        let producer = bench.producing(NUMBERS.partitions(2)).max_batch(10).await.expect("a producer");
        *bench.log.refused.lock().expect("lock") = (1, entries);
        let values: Vec<u64> = (0..40).collect();
        let records =
            values.iter().map(|value| Record::new(value).partition(u32::try_from(value % 2).expect("small")));
        let sent = producer.send_all(records).await;
        let mut ids = [Vec::new(), Vec::new()];
        for (at, sent) in sent.into_iter().enumerate() {
            match sent {
                Ok(sent) => ids[at % 2].push(sent.id),
                // The rest of its batch was stored, or later ones: it would come behind them.
                Err(error) => {
                    assert!(error.kind() == ErrorKind::Unavailable && at % 2 == 1 && at < 6, "{at}: {error}");
                }
            }
        }
        assert!(ids[0].len() == 20 && ids[0].is_sorted(), "{entries} refusals: {ids:?}");
        let lost = if entries == 3 { 3 } else { 0 };
        assert!(ids[1].len() == 20 - lost && ids[1].is_sorted(), "{entries} refusals: {ids:?}");
        let logs = [0, 1].map(|number| TopicPartition::new(partition().topic, number));
        let stored = bench.backend.log().lengths(&logs).await.expect("lengths");
        assert_eq!(stored, [20, 20 - lost as u64], "{entries} refusals: nothing is stored twice");
    }
}
