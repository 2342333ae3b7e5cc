//! The promoter without a lease: all partitions, early wake-ups, several at once, a topic that grows.

use std::sync::Arc;

use millstream_core::schedule::{Due, Scheduling};
use millstream_core::{Backend, Envelope, Event, OnConflict, TopicSpec, wire};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::tests::support::{MS, SECS, Seen, memory};
use crate::{DelayedPromoter, PromoterConfig, Rule, recur};

async fn topic(backend: &Backend, partitions: u32) -> TopicSpec {
    let spec = TopicSpec::new("t".parse().expect("a name"), partitions).expect("a topic");
    backend.catalog().create_topic(&spec).await.expect("created")
}

async fn schedule(backend: &Backend, topic: &TopicSpec, partition: u32, delay: u64) {
    let place = topic.iter().nth(partition as usize).expect("a partition").into();
    let id = format!("{partition}-{delay}-{}", fastrand::u64(..)).parse().expect("an id");
    let fields = wire::encode(&Envelope::new("x"));
    let (due, on_conflict) = (Due::In(MS(delay)), OnConflict::Reject);
    let batch = [Scheduling { place, id, due, fields, on_conflict }];
    assert!(backend.schedule().schedule(&batch).await.iter().all(Result::is_ok));
}

/// Runs one; what it moves is seen with partition, number and time.
fn start(backend: &Backend, topic: &TopicSpec, seen: &Seen<(u32, usize, Instant)>) -> JoinHandle<()> {
    let tell = seen.clone();
    let observer = move |event: &Event<'_>| {
        if let Event::DelayedPromoted { topic_partition, messages, .. } = event {
            tell.push((topic_partition.partition.0, *messages, Instant::now()));
        }
    };
    let promoter = DelayedPromoter::new(backend, topic.clone(), PromoterConfig::default()).expect("valid");
    tokio::spawn(promoter.observer(observer).run())
}

fn moved(seen: &Seen<(u32, usize, Instant)>) -> usize {
    seen.all().iter().map(|(_, messages, _)| messages).sum()
}

#[tokio::test(start_paused = true)]
async fn messages_of_all_partitions_are_moved_in_time() {
    let backend = memory();
    let topic = topic(&backend, 3).await;
    let (began, seen) = (Instant::now(), Seen::default());
    for partition in 0..3 {
        schedule(&backend, &topic, partition, 1_000 * (u64::from(partition) + 1)).await;
    }
    let promoter = start(&backend, &topic, &seen);
    tokio::time::sleep(SECS(5)).await;
    let told = seen.all();
    assert_eq!(told.iter().map(|(partition, ..)| *partition).collect::<Vec<_>>(), [0, 1, 2]);
    for (nth, (_, _, at)) in told.iter().enumerate() {
        let due = began + SECS(nth as u64 + 1);
        assert!(*at >= due && *at <= due + MS(2), "{:?} late", at.duration_since(due));
    }
    promoter.abort();
}

#[tokio::test(start_paused = true)]
async fn an_earlier_one_wakes_it() {
    let backend = memory();
    let topic = topic(&backend, 1).await;
    let seen = Seen::default();
    let promoter = start(&backend, &topic, &seen);
    schedule(&backend, &topic, 0, 500_000).await;
    tokio::time::sleep(MS(300)).await;
    let began = Instant::now();
    schedule(&backend, &topic, 0, 20).await;
    tokio::time::sleep(MS(100)).await;
    let (_, messages, at) = seen.all()[0];
    assert!(messages == 1 && at <= began + MS(22), "{:?}", at.duration_since(began));
    promoter.abort();
}

#[tokio::test(start_paused = true)]
async fn several_at_once_move_and_fire_each_once() {
    let backend = memory();
    let topic = topic(&backend, 2).await;
    let seen = Seen::default();
    let promoters: Vec<_> = (0..4).map(|_| start(&backend, &topic, &seen)).collect();
    for nth in 0..1_000 {
        schedule(&backend, &topic, (nth % 2) as u32, nth % 300).await;
    }
    let place = topic.iter().next().expect("one").into();
    let now = backend.recurring().expect("recurring schedules").due(&place).await.expect("read").now;
    let rule = Rule::every(SECS(1), now).expect("a rule");
    let id = "beat".parse().expect("an id");
    recur(
        &**backend.recurring().expect("recurring schedules"),
        &place,
        &id,
        &rule,
        wire::encode(&Envelope::new("x")),
    )
    .await
    .expect("put");
    tokio::time::sleep(SECS(10) + MS(500)).await;
    assert_eq!(moved(&seen), 1_010);
    promoters.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn partitions_that_come_later_are_taken_in() {
    let backend = memory();
    let topic = topic(&backend, 1).await;
    let seen = Seen::default();
    let promoter = start(&backend, &topic, &seen);
    tokio::time::sleep(SECS(1)).await;
    let topic = backend.catalog().expand(&topic.name, 3).await.expect("grows");
    schedule(&backend, &topic, 2, 10).await;
    tokio::time::sleep(SECS(61)).await;
    assert_eq!(moved(&seen), 1);
    promoter.abort();
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_it_is_told() {
    let backend = memory();
    let topic = topic(&backend, 1).await;
    let promoter = DelayedPromoter::new(&backend, topic, PromoterConfig::default()).expect("valid");
    let weak = Arc::downgrade(backend.schedule());
    drop(backend);
    promoter.run_until(tokio::time::sleep(SECS(1))).await;
    tokio::time::sleep(SECS(1)).await;
    assert!(weak.upgrade().is_none(), "no loop goes on");
}
