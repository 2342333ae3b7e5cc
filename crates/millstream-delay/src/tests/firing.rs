//! What recurs and cannot be fired keeps nothing else from going on, and asks for little.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millstream_core::schedule::{Due, OnConflict, Scheduling};
use millstream_core::{Envelope, Place, Timestamp, TopicSpec, wire};

use crate::tests::support::link::Link;
use crate::tests::support::places::Places;
use crate::tests::support::{MS, SECS, eventually, memory, open};
use crate::{DelayQueue, DelayedPromoter, PromoterConfig, Rule, Task, TaskRecord, recur};

async fn recurring(queue: &DelayQueue<u64>) {
    queue.recurring("r").every(MS(300)).payload(&7).await.expect("put");
    tokio::time::sleep(MS(400)).await;
}

#[tokio::test(start_paused = true)]
async fn tasks_are_worked_on_while_nothing_can_be_fired() {
    let (backend, places) = (memory(), Arc::new(Places::default()));
    let queue = open(&places.over(&backend), 1).await;
    recurring(&queue).await;
    places.full.store(true, Ordering::Relaxed);
    queue.schedule_all((0..1_000).map(|_| TaskRecord::new(&1))).await;
    let worker = queue.worker().start(async |_: Task<u64>| ()).await.expect("starts");
    let start = tokio::time::Instant::now();
    eventually(|| worker.report().done == 1_000, "all that was due").await;
    assert!(start.elapsed() < SECS(1), "{:?}", start.elapsed());
    queue.schedule(&2).delay(MS(100)).await.expect("scheduled");
    let start = tokio::time::Instant::now();
    eventually(|| worker.report().done == 1_001, "and what is due later").await;
    assert!(start.elapsed() < MS(400), "{:?}", start.elapsed());
    tokio::time::sleep(SECS(60)).await;
    let failing = worker.progress().failing;
    assert!(failing.len() == 1 && failing[0].operation == "fire", "{failing:?}");
    let fires = places.fires.load(Ordering::Relaxed);
    assert!((30..100).contains(&fires), "pauses of up to 2 s: {fires}");
    places.full.store(false, Ordering::Relaxed);
    eventually(|| worker.report().done > 1_001, "it fires again").await;
    assert!(worker.progress().failing.is_empty());
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn firing_that_moves_nothing_comes_less_often_and_a_drain_ends() {
    let (backend, places, link) = (memory(), Arc::new(Places::default()), Arc::new(Link::default()));
    let queue = open(&link.over(&places.over(&backend)), 1).await;
    recurring(&queue).await;
    places.idle.store(true, Ordering::Relaxed);
    let worker = queue.worker().start(async |_: Task<u64>| ()).await.expect("starts");
    tokio::time::sleep(SECS(60)).await;
    let (fires, commands) = (places.fires.load(Ordering::Relaxed), link.commands());
    assert!(fires < 80 && commands < 400, "{fires} calls to fire, {commands} commands in a minute");
    queue.schedule(&1).await.expect("scheduled");
    let drained = tokio::time::timeout(SECS(10), worker.drain()).await;
    assert_eq!(drained.expect("it ends").done, 1);
}

#[tokio::test(start_paused = true)]
async fn messages_are_moved_while_nothing_can_be_fired() {
    let (backend, places) = (memory(), Arc::new(Places::default()));
    let spec = TopicSpec::new("t".parse().expect("a name"), 1).expect("a spec");
    backend.catalog().create_topic(&spec).await.expect("created");
    let place = Place::from(spec.iter().next().expect("one"));
    let (fields, id) = (wire::encode(&Envelope::new("x")), "r".parse().expect("an id"));
    let rule = Rule::every(MS(100), Timestamp::from_millis(0)).expect("a rule");
    recur(&**backend.recurring().expect("recurring schedules"), &place, &id, &rule, fields.clone())
        .await
        .expect("put");
    let message = |nth: u64| Scheduling {
        place: place.clone(),
        id: nth.to_string().parse().expect("an id"),
        due: Due::In(MS(200 + nth)),
        fields: fields.clone(),
        on_conflict: OnConflict::Keep,
    };
    backend.schedule().schedule(&(0..1_000).map(message).collect::<Vec<_>>()).await;
    places.full.store(true, Ordering::Relaxed);
    let config = PromoterConfig::default();
    let promoter = DelayedPromoter::new(&places.over(&backend), spec, config).expect("valid");
    let promoter = tokio::spawn(promoter.run());
    tokio::time::sleep(MS(1_500)).await;
    assert_eq!(backend.schedule().waiting(&place).await.expect("counts").total, 0);
    tokio::time::sleep(SECS(60)).await;
    let fires = places.fires.load(Ordering::Relaxed);
    assert!((30..100).contains(&fires), "{fires}");
    promoter.abort();
}

#[tokio::test(start_paused = true)]
async fn a_promoter_of_a_topic_keeps_its_wait() {
    let (backend, places) = (memory(), Arc::new(Places::default()));
    let spec = TopicSpec::new("t".parse().expect("a name"), 1).expect("a spec");
    backend.catalog().create_topic(&spec).await.expect("created");
    let place = Place::from(spec.iter().next().expect("one"));
    let message = |nth: u64| Scheduling {
        place: place.clone(),
        id: nth.to_string().parse().expect("an id"),
        due: Due::In(MS(200 + 100 * nth)),
        fields: wire::encode(&Envelope::new("x")),
        on_conflict: OnConflict::Keep,
    };
    backend.schedule().schedule(&(0..30).map(message).collect::<Vec<_>>()).await;
    let config = PromoterConfig::default();
    let promoter = DelayedPromoter::new(&places.over(&backend), spec, config).expect("valid");
    let promoter = tokio::spawn(promoter.run());
    tokio::time::sleep(MS(3_600)).await;
    assert_eq!(backend.schedule().waiting(&place).await.expect("counts").total, 0);
    let (waits, dropped) = (places.waits.load(Ordering::Relaxed), places.dropped.load(Ordering::Relaxed));
    assert_eq!((waits, dropped), (1, 0), "one wait for thirty sleeps");
    // It is notified of a message that is due before all others.
    let early = Scheduling { due: Due::In(MS(100)), ..message(99) };
    backend.schedule().schedule(&[early]).await;
    tokio::time::sleep(MS(110)).await;
    assert_eq!(backend.schedule().waiting(&place).await.expect("counts").total, 0);
    promoter.abort();
}

#[tokio::test(start_paused = true)]
async fn a_pause_that_comes_while_a_recurrence_is_changed_stays() {
    let (backend, places) = (memory(), Arc::new(Places::default()));
    let queue = open(&places.over(&backend), 1).await;
    queue.recurring("r").every(SECS(60)).payload(&1).await.expect("put");
    places.pause.store(true, Ordering::Relaxed);
    queue.recurring("r").every(SECS(90)).payload(&1).await.expect("put");
    let list = queue.recurring_list().await.expect("list");
    assert!(list[0].paused && list[0].rule.contains("90000"), "{list:?}");
}

#[tokio::test(start_paused = true)]
async fn a_drain_has_a_bound_and_a_shutdown_keeps_its_timeout() {
    let (backend, link) = (memory(), Arc::new(Link::default()));
    let queue = open(&link.over(&backend), 1).await;
    queue.schedule(&1).await.expect("scheduled");
    link.away.store(true, Ordering::Relaxed);
    let worker = queue.worker().start(async |_: Task<u64>| ()).await.expect("starts");
    let start = tokio::time::Instant::now();
    assert_eq!(worker.drain_within(SECS(20)).await.done, 0);
    assert!(start.elapsed() <= SECS(20 + 25), "{:?}", start.elapsed());
    link.away.store(false, Ordering::Relaxed);
    // From now on the server does not answer, and the worker holds a task.
    let worker = queue.worker().start(|_: Task<u64>| std::future::pending::<()>()).await.expect("starts");
    eventually(|| worker.progress().running == 1, "it runs").await;
    link.cut();
    let start = tokio::time::Instant::now();
    worker.shutdown_within(SECS(3)).await;
    assert!(start.elapsed() <= SECS(3), "{:?}", start.elapsed());
    let config = crate::WorkerConfig::default();
    assert!(config.shutdown_timeout <= SECS(25), "Kubernetes gives 30 s");
}
