//! A fail-over to a server whose clock is behind: it issues ids of lost messages again while the lost ones are in flight.

use std::time::Duration;

use crate::support::*;
use millstream_core::MessageId;
use millstream_runtime::{Delivery, Record};
use tokio::time::sleep;

async fn send(bench: &Bench, values: std::ops::Range<u64>) -> Vec<MessageId> {
    let producer = bench.producer(NUMBERS).await;
    let mut ids = Vec::new();
    for value in values {
        ids.push(producer.send_all([Record::new(&value)]).await.remove(0).expect("sent").id);
    }
    ids
}

#[tokio::test(start_paused = true)]
async fn a_new_message_under_a_lost_id_is_handled_and_no_old_ack_takes_it() {
    let bench = bench();
    let seen = Seen::default();
    let consumer = bench.consumer(NUMBERS, "g").start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async move {
                if delivery.payload == 2 {
                    sleep(Duration::from_secs(10)).await;
                }
            }
        }
    });
    let consumer = consumer.await.expect("started");
    send(&bench, 0..2).await;
    eventually(|| consumer.report().acked == 2, || "two".into()).await;
    let before = bench.memory.operator().snapshot();
    let lost = send(&bench, 2..6).await;
    until(&seen, 3).await;
    sleep(MS(50)).await;
    assert_eq!(consumer.health().in_flight, 4, "one is handled, three wait");
    bench.memory.operator().restore_behind(&before);
    assert_eq!(send(&bench, 12..16).await, lost, "the same ids");
    // The one that had begun is counted when its handler ends, and settles nothing.
    eventually(|| consumer.report().acked == 7, || format!("{:?}", consumer.report())).await;
    sleep(Duration::from_secs(60)).await;
    let order: Vec<u64> = seen.lock().expect("lock").iter().map(|(value, _)| *value).collect();
    assert_eq!(
        order,
        [0, 1, 2, 12, 13, 14, 15],
        "each new one once, and nothing that is lost but what had begun"
    );
    assert_eq!(consumer.report().acked, 7);
    assert_eq!((bench.told.lines("TailLost"), bench.told.lines("LeaseLost")), (1, 0));
    assert_eq!((bench.told.lines("Assigned"), bench.told.lines("Revoked")), (2, 1));
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_the_former_primary_ends_nothing_that_the_new_one_shows() {
    let bench = bench();
    let seen = Seen::default();
    *bench.log.late_settle_reply.lock().expect("lock") = Duration::from_secs(2);
    let consumer = bench.consumer(NUMBERS, "g").start({
        let seen = seen.clone();
        move |delivery: Delivery<u64>| {
            note(&seen, &delivery);
            async { sleep(MS(100)).await }
        }
    });
    let consumer = consumer.await.expect("started");
    send(&bench, 0..1).await;
    until(&seen, 1).await;
    let pending = bench.memory.operator().snapshot();
    // The acknowledgement is executed, and its answer is on its way when the server loses it.
    sleep(MS(500)).await;
    bench.memory.operator().restore(&pending);
    // Long before anything that would have the list read anyway.
    until(&seen, 2).await;
    eventually(|| consumer.health().in_flight == 0, || format!("{:?}", consumer.health())).await;
    let report = consumer.shutdown().await;
    assert_eq!(report.handed_back, 0, "nothing is left pending: {report:?}");
}
