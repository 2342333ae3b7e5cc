//! What recurs: put, fired once by many, missed, paused, run now; and rules that cannot be read.

use millstream_core::recurring::Recurrence;
use millstream_core::schedule::Placed;
use millstream_core::{
    Backend, Envelope, ErrorKind, OnConflict, Place, ScheduleId, Timestamp, TopicSpec, wire,
};

use crate::tests::support::{EPOCH, MS, SECS, Seen, Warnings, events, eventually, memory, open, queue};
use crate::{DelayQueue, DelayedPromoter, Missed, PromoterConfig, Rule, Task, Worker, fire_due, recur};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

async fn worker(queue: &DelayQueue<u64>, seen: &Seen<String>) -> Worker {
    let tell = seen.clone();
    let worker = queue.worker().start(move |task: Task<u64>| {
        tell.push(task.id().to_string());
        async {}
    });
    worker.await.expect("starts")
}

async fn place(backend: &Backend, id: &str) -> (Place, ScheduleId) {
    let id = ScheduleId::new(id).expect("an id");
    let spec =
        backend.tasks().expect("delay queues").queue(&"q".parse().expect("a name")).await.expect("a queue");
    (spec.shard_of(&id).into(), id)
}

#[tokio::test(start_paused = true)]
async fn it_fires_at_its_rate_once_however_many_work() {
    let backend = memory();
    let queue = open(&backend, 3).await;
    let seen = Seen::default();
    let mut workers = Vec::new();
    for _ in 0..5 {
        workers.push(worker(&queue, &seen).await);
    }
    let placed = queue.recurring("beat").every(SECS(10)).payload(&7).await.expect("put");
    assert_eq!(placed, Placed::New);
    tokio::time::sleep(SECS(605)).await;
    let expected: Vec<_> = (1..=60).map(|nth| format!("beat@{}", EPOCH + nth * 10_000)).collect();
    assert_eq!(seen.all(), expected);
    drop(workers);
}

#[tokio::test(start_paused = true)]
async fn cron_fires_by_its_zone_without_lateness() {
    let queue = queue().await;
    let seen = Seen::default();
    let tell = seen.clone();
    let worker = queue.worker().start(move |task: Task<u64>| {
        tell.push((task.due(), task.late()));
        async {}
    });
    let worker = worker.await.expect("starts");
    queue.recurring("daily").cron("0 9 * * *", "Europe/Zurich").payload(&1).await.expect("put");
    seen.reach(0).await;
    tokio::time::sleep(SECS(3 * 24 * 3_600)).await;
    // The clock begins at 22:13:20 UTC on 14 November 2023.
    let first = AT(EPOCH).saturating_add(SECS(9 * 3_600 + 46 * 60 + 40));
    let due: Vec<_> = seen.all().iter().map(|(due, _)| *due).collect();
    assert_eq!(due, [0, 24, 48].map(|hours| first.saturating_add(SECS(hours * 3_600))));
    assert!(seen.all().iter().all(|(_, late)| *late <= MS(2)), "{:?}", seen.all());
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn times_that_were_missed_follow_the_policy_and_are_told() {
    let queue = queue().await;
    let put = async |id: &str, missed| {
        queue.recurring(id).every(SECS(60)).missed(missed).payload(&1).await.expect("put");
    };
    put("skip", Missed::Skip).await;
    put("once", Missed::Once).await;
    put("three", Missed::All(3)).await;
    tokio::time::sleep(SECS(10 * 60 + 30)).await;
    let (observer, told) = events();
    let seen: Seen<String> = Seen::default();
    let tell = seen.clone();
    let worker = queue.worker().observer(observer).start(move |task: Task<u64>| {
        tell.push(task.id().as_str().split('@').next().unwrap_or_default().to_owned());
        async {}
    });
    let worker = worker.await.expect("starts");
    tokio::time::sleep(SECS(1)).await;
    let fired = |id: &str| seen.all().iter().filter(|seen| *seen == id).count();
    assert_eq!((fired("skip"), fired("once"), fired("three")), (1, 2, 4), "and what was not missed");
    assert!(told.all().iter().any(|event| event.starts_with("Fired") && event.contains("missed: 9")));
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn put_again_unchanged_it_keeps_its_times_and_changed_it_is_replaced() {
    let queue = queue().await;
    let put = async |period, payload: u64| {
        queue.recurring("r").every(SECS(period)).payload(&payload).await.expect("put")
    };
    let next = async || queue.recurring_list().await.expect("list")[0].next;
    assert_eq!(put(60, 1).await, Placed::New);
    let first = next().await;
    tokio::time::sleep(SECS(90)).await;
    assert_eq!(put(60, 1).await, Placed::Kept);
    assert_eq!(next().await, first, "what is due stays due over a restart");
    assert!(queue.recurring("r").pause().await.expect("paused"));
    assert_eq!(put(60, 2).await, Placed::Replaced, "another task");
    assert_eq!(put(30, 2).await, Placed::Replaced, "another rule");
    assert!(queue.recurring_list().await.expect("list")[0].paused, "a pause stays");
}

#[tokio::test(start_paused = true)]
async fn a_pause_misses_nothing_and_run_now_goes_beside_it() {
    let queue = open(&memory(), 4).await;
    let seen = Seen::default();
    let worker = worker(&queue, &seen).await;
    queue.recurring("r").every(SECS(60)).payload(&1).await.expect("put");
    assert!(queue.recurring("r").pause().await.expect("paused"));
    tokio::time::sleep(SECS(600)).await;
    assert_eq!(seen.len(), 0);
    assert!(queue.recurring("r").run_now().await.expect("runs"));
    seen.reach(1).await;
    assert!(queue.recurring("r").resume().await.expect("resumed"));
    assert!(queue.recurring("r").resume().await.expect("it goes on already"));
    tokio::time::sleep(SECS(65)).await;
    assert_eq!(seen.len(), 2, "one now, one by its time");
    assert!(queue.recurring("r").remove().await.expect("removed"));
    assert!(!queue.recurring("r").remove().await.expect("no more"));
    for gone in [
        queue.recurring("r").pause().await,
        queue.recurring("r").resume().await,
        queue.recurring("r").run_now().await,
    ] {
        assert!(!gone.expect("not there"));
    }
    tokio::time::sleep(SECS(600)).await;
    assert_eq!(seen.len(), 2);
    drop(worker);
}

#[tokio::test(start_paused = true)]
async fn what_it_schedules_is_found_wherever_it_waits() {
    let backend = memory();
    let queue = open(&backend, 16).await;
    for nth in 0..20 {
        queue.recurring(format!("r{nth}")).every(SECS(60)).payload(&1).await.expect("put");
    }
    tokio::time::sleep(SECS(61)).await;
    for shard in 0..16 {
        let place = Place::Shard(millstream_core::Shard::new(queue.name().clone(), shard));
        fire_due(
            &**backend.recurring().expect("recurring schedules"),
            &place,
            &millstream_core::event::Ignore,
        )
        .await
        .expect("fires");
    }
    let waiting = queue.list(None, 100).await.expect("list");
    assert_eq!(waiting.len(), 20);
    for task in &waiting {
        assert!(queue.get(&task.id).await.expect("read").is_some(), "{}", task.id);
        assert!(queue.cancel(&task.id).await.expect("cancelled"), "{}", task.id);
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_wrong_with_a_rule_is_said() {
    let queue = queue().await;
    let kind = |result: millstream_core::Result<Placed>| result.expect_err("invalid").kind();
    assert_eq!(kind(queue.recurring("r").payload(&1).await), ErrorKind::InvalidConfig);
    assert_eq!(kind(queue.recurring("r").every(SECS(1)).await), ErrorKind::InvalidConfig);
    assert_eq!(kind(queue.recurring("r").every(MS(1)).payload(&1).await), ErrorKind::InvalidConfig);
    let both = queue.recurring("r").every(SECS(1)).cron("* * * * *", "UTC").payload(&1).await;
    assert_eq!(kind(both), ErrorKind::InvalidConfig, "which one is meant?");
    assert_eq!(kind(queue.recurring("r").cron("x", "UTC").payload(&1).await), ErrorKind::InvalidConfig);
    let never = queue.recurring("r").cron("0 0 30 2 *", "UTC").payload(&1).await;
    assert_eq!(kind(never), ErrorKind::InvalidConfig, "there is no 30th of February");
    assert_eq!(kind(queue.recurring("").every(SECS(1)).payload(&1).await), ErrorKind::InvalidName);
}

/// Puts a rule of a later version that is due in a second.
async fn put_unreadable(backend: &Backend, place: &Place, id: ScheduleId) {
    let rule = "solar-eclipse Europe/Zurich once".to_owned();
    let fields = wire::encode(&Envelope::new("1"));
    let recurrence = Recurrence { id, rule, fields, next: Some(AT(EPOCH + 1_000)), paused: false };
    let recurring = backend.recurring().expect("recurring schedules");
    recurring.put(place, &recurrence, OnConflict::Keep).await.expect("put");
}

/// The module that warns of a rule that cannot be read.
const FIRE: &str = "millstream_delay::fire";

#[tokio::test(start_paused = true)]
async fn a_worker_warns_once_of_a_rule_that_it_cannot_read() {
    let (warnings, _guard) = Warnings::collect();
    let backend = memory();
    let queue = open(&backend, 1).await;
    let (place, id) = place(&backend, "eclipse").await;
    put_unreadable(&backend, &place, id).await;
    queue.recurring("beat").every(SECS(60)).payload(&1).await.expect("put");
    let seen = Seen::default();
    let worker = worker(&queue, &seen).await;
    // It looks at least once a second at what is due.
    seen.reach(5).await;
    assert_eq!(warnings.of(FIRE), 1);
    drop(worker);
}

/// A promoter keeps a state only of partitions where firing does not succeed, and other rules fire there.
#[tokio::test(start_paused = true)]
async fn a_promoter_warns_once_of_a_rule_that_it_cannot_read() {
    let (warnings, _guard) = Warnings::collect();
    let backend = memory();
    let spec = TopicSpec::new("t".parse().expect("a name"), 1).expect("a spec");
    backend.catalog().create_topic(&spec).await.expect("created");
    let place = Place::from(spec.iter().next().expect("one"));
    put_unreadable(&backend, &place, "eclipse".parse().expect("an id")).await;
    let (rule, id) = (Rule::every(SECS(60), AT(0)).expect("a rule"), "beat".parse().expect("an id"));
    let recurring = backend.recurring().expect("recurring schedules");
    recur(&**recurring, &place, &id, &rule, wire::encode(&Envelope::new("x"))).await.expect("put");
    let (observer, told) = events();
    let promoter = DelayedPromoter::new(&backend, spec, PromoterConfig::default()).expect("valid");
    let promoter = tokio::spawn(promoter.observer(observer).run());
    let fired = || told.all().iter().filter(|event| event.starts_with("Fired")).count();
    eventually(|| fired() >= 5, "the other rule fires").await;
    assert_eq!(warnings.of(FIRE), 1);
    promoter.abort();
}

#[tokio::test(start_paused = true)]
async fn a_rule_of_a_later_version_is_passed_over_and_makes_no_busy_loop() {
    let backend = memory();
    let queue = open(&backend, 1).await;
    let (place, id) = place(&backend, "eclipse").await;
    put_unreadable(&backend, &place, id).await;
    queue.recurring("beat").every(SECS(60)).payload(&1).await.expect("put");
    let seen = Seen::default();
    let worker = worker(&queue, &seen).await;
    eventually(|| seen.len() >= 9, "the others go on").await;
    assert!(seen.all().iter().all(|id| id.starts_with("beat@")));
    let listed = queue.recurring_list().await.expect("list");
    let next = listed.iter().find(|found| found.id.as_str() == "eclipse").and_then(|found| found.next);
    let next = next.expect("it is there");
    assert_eq!(next, AT(EPOCH).saturating_add(SECS(1)), "it stays due, for whoever can read it");
    let before = tokio::time::Instant::now();
    eventually(|| seen.len() >= 12, "and they still go on").await;
    assert!(before.elapsed() >= SECS(120), "without being busy with it");
    drop(worker);
}
