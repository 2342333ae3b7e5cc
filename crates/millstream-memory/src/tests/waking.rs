//! Wake-ups for items that are due earlier than expected: which workers are notified, and how many claim.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millstream_core::catalog::Start;
use millstream_core::leases::Acquired;
use millstream_core::recurring::Recurrence;
use millstream_core::schedule::{Due, OnConflict, Placed, ScheduleId, Scheduling, Seen, Shard};
use millstream_core::tasks::{ClaimRequest, Tasks, Verdict};
use millstream_core::{
    Backend, Envelope, GroupName, History, Lease, Place, Resource, TopicPartition, TopicSpec, wire,
};
use tokio::time::{Instant, sleep};

use crate::MemoryBackend;
use crate::operator::Operator;

const HOUR: Duration = Duration::from_secs(3_600);
const SECOND: Duration = Duration::from_secs(1);
/// How long after it was to come a worker is counted on.
const GRACE: Duration = Duration::from_millis(250);

#[derive(Clone)]
struct Bench {
    backend: Backend,
    operator: Operator,
    tp: TopicPartition,
    shard: Shard,
}

impl Bench {
    fn new() -> Self {
        let memory = MemoryBackend::new();
        let tp = TopicPartition::new("orders".parse().unwrap(), 0);
        let shard = Shard::new("mails".parse().unwrap(), 0);
        Self { operator: memory.operator(), backend: memory.into(), tp, shard }
    }

    fn tasks(&self) -> &Arc<dyn Tasks> {
        self.backend.tasks().expect("delay queues")
    }

    async fn lease(&self) -> Lease {
        let group = GroupName::new("billing").unwrap();
        let topic = TopicSpec::new(self.tp.topic.clone(), 1).unwrap();
        self.backend.catalog().create_group(&topic, &group, Start::Earliest).await.unwrap();
        let resource = Resource::partition(self.tp.clone(), group);
        let assured = millstream_core::Continuity::assured();
        match self.backend.leases().acquire(&resource, "test", "1", HOUR, &assured).await.unwrap() {
            Acquired::Granted(lease) => lease,
            Acquired::Held(holder) => panic!("{holder:?}"),
        }
    }

    async fn schedule(&self, place: impl Into<Place>, name: &str, after: Duration) {
        let id = ScheduleId::new(name).unwrap();
        let fields = wire::encode(&Envelope::new(name.to_owned()));
        let (due, on_conflict) = (Due::In(after), OnConflict::Reject);
        let one = Scheduling { place: place.into(), id, due, fields, on_conflict };
        assert_eq!(self.backend.schedule().schedule(&[one]).await.remove(0).unwrap(), Placed::New);
    }

    async fn recur(&self, place: impl Into<Place>, name: &str, after: Duration) {
        let next = self.operator.clock().saturating_add(after);
        let recurrence = Recurrence {
            id: ScheduleId::new(name).unwrap(),
            rule: "every hour".into(),
            fields: wire::encode(&Envelope::new(name.to_owned())),
            next: Some(next),
            paused: false,
        };
        self.backend
            .recurring()
            .expect("recurring schedules")
            .put(&place.into(), &recurrence, OnConflict::Keep)
            .await
            .unwrap();
    }

    fn ask(worker: &str, limit: usize) -> ClaimRequest {
        ClaimRequest {
            worker: worker.into(),
            limit,
            hold: 30 * SECOND,
            crash_limit: 0,
            longest_sleep: 10 * SECOND,
            continuity: millstream_core::Continuity::assured(),
        }
    }

    /// Asks once; gives back how many tasks it got and when to come again.
    async fn claim(&self, worker: &str, limit: usize) -> (usize, Duration) {
        let claimed = self.tasks().claim(&self.shard, &Self::ask(worker, limit)).await.unwrap();
        (claimed.tasks.len(), claimed.next)
    }

    /// How many of `count` who wait for a second are called.
    async fn called(&self, count: usize) -> usize {
        let one = || {
            let (tasks, shard) = (self.tasks().clone(), self.shard.clone());
            tokio::spawn(async move { tasks.wait(&shard, SECOND).await.unwrap() })
        };
        let waiting: Vec<_> = (0..count).map(|_| one()).collect();
        let mut called = 0;
        for one in waiting {
            called += usize::from(one.await.unwrap());
        }
        called
    }
}

/// Up to the next millisecond: due times are whole ones.
fn about(next: Duration, expected: Duration) -> bool {
    next >= expected && next < expected + Duration::from_millis(1)
}

#[tokio::test(start_paused = true)]
async fn a_reader_tells_of_every_new_head_once_and_of_nothing_else() {
    let bench = Bench::new();
    let lease = bench.lease().await;
    bench.schedule(bench.tp.clone(), "before", HOUR).await;
    let mut reader = bench.backend.log().reader(&lease).await.unwrap();
    assert!(!reader.fetch(1, Duration::ZERO).await.unwrap().woken);

    for (name, after, wakes) in
        [("earlier", HOUR / 2, true), ("later", HOUR, false), ("between", HOUR / 3, true)]
    {
        let fetch = reader.fetch(1, SECOND);
        let started = Instant::now();
        let (fetched, ()) = tokio::join!(fetch, bench.schedule(bench.tp.clone(), name, after));
        let fetched = fetched.unwrap();
        assert_eq!((fetched.woken, fetched.entries.len()), (wakes, 0), "{name}");
        assert_eq!(started.elapsed(), if wakes { Duration::ZERO } else { SECOND }, "{name}");
    }
    // Between two calls, and by something that recurs; a dropped call loses nothing.
    bench.recur(bench.tp.clone(), "report", HOUR / 4).await;
    drop(reader.fetch(1, SECOND));
    assert!(reader.fetch(1, SECOND).await.unwrap().woken);
    assert!(!reader.fetch(1, SECOND).await.unwrap().woken);
    let id = ScheduleId::new("later").unwrap();
    bench.backend.schedule().reschedule(&bench.tp.clone().into(), &[id], Due::NOW).await.unwrap();
    assert!(reader.fetch(1, SECOND).await.unwrap().woken);
}

#[tokio::test(start_paused = true)]
async fn all_who_wait_for_a_partition_are_told_and_what_came_in_between_is_not_missed() {
    let bench = Bench::new();
    let (schedule, tp) = (bench.backend.schedule(), &bench.tp);
    let started = Instant::now();
    let seen = schedule.wait(tp, &Seen::default(), HOUR).await.unwrap();
    assert_eq!(started.elapsed(), Duration::ZERO);
    assert_eq!(schedule.wait(tp, &seen, SECOND).await.unwrap(), seen);
    assert_eq!(started.elapsed(), SECOND);

    let waits = || schedule.wait(tp, &seen, HOUR);
    let (one, another, ()) = tokio::join!(waits(), waits(), bench.schedule(tp.clone(), "a", 2 * SECOND));
    assert_ne!(one.unwrap(), seen);
    let seen = another.unwrap();
    bench.schedule(tp.clone(), "b", SECOND).await;
    let seen_b = schedule.wait(tp, &seen, HOUR).await.unwrap();
    assert_ne!(seen_b, seen);
    assert_eq!(started.elapsed(), SECOND);

    let snapshot = bench.operator.snapshot();
    let fails_over = async { bench.operator.restore(&snapshot) };
    let (after, ()) = tokio::join!(schedule.wait(tp, &seen_b, HOUR), fails_over);
    assert_ne!(after.unwrap(), seen_b, "a fail-over lets all look again");
    assert_eq!(started.elapsed(), SECOND);
}

#[tokio::test(start_paused = true)]
async fn next_is_exact_to_the_microsecond_and_never_early() {
    let bench = Bench::new();
    let tp = bench.tp.clone();
    tokio::time::advance(Duration::from_micros(1_234)).await;
    bench.schedule(tp.clone(), "a", Duration::from_micros(2_500)).await;
    loop {
        let promoted = bench.backend.schedule().promote_delayed(&tp, 10).await.unwrap();
        let Some(next) = promoted.next else { panic!("it was moved {promoted:?}") };
        assert!(next < Duration::from_micros(3_500));
        if next > Duration::from_micros(1) {
            tokio::time::advance(next - Duration::from_micros(1)).await;
            continue;
        }
        tokio::time::advance(next).await;
        let promoted = bench.backend.schedule().promote_delayed(&tp, 10).await.unwrap();
        assert_eq!((promoted.moved, promoted.next), (1, None));
        return;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_wakes_one_and_one_call_is_kept() {
    let bench = Bench::new();
    bench.schedule(bench.shard.clone(), "a", 30 * SECOND).await;
    bench.schedule(bench.shard.clone(), "b", 20 * SECOND).await;
    assert_eq!(bench.called(3).await, 1, "two heads came while nobody waited");
    bench.schedule(bench.shard.clone(), "later", HOUR).await;
    assert_eq!(bench.called(3).await, 0);
    let (called, ()) = tokio::join!(bench.called(3), bench.recur(bench.shard.clone(), "r", SECOND));
    assert_eq!(called, 1);
}

#[tokio::test(start_paused = true)]
async fn one_worker_comes_for_the_head_another_if_it_does_not_and_the_rest_stay_away() {
    let bench = Bench::new();
    let (longest_sleep, ms) = (10 * SECOND, Duration::from_millis(1));
    bench.schedule(bench.shard.clone(), "a", 3 * SECOND).await;
    assert!(about(bench.claim("w1", 5).await.1, 3 * SECOND));
    assert!(about(bench.claim("w2", 5).await.1, 3 * SECOND + GRACE));
    assert_eq!(bench.claim("w3", 5).await, (0, longest_sleep));
    assert!(about(bench.claim("w2", 5).await.1, 3 * SECOND + GRACE), "it is the deputy still");
    assert!(about(bench.claim("w1", 5).await.1, 3 * SECOND), "it is the watcher still");
    // Something earlier: the worker that is called becomes the watcher, and the deputy comes too late.
    bench.schedule(bench.shard.clone(), "b", SECOND).await;
    assert!(about(bench.claim("w4", 5).await.1, SECOND));
    assert!(about(bench.claim("w3", 5).await.1, SECOND + GRACE));
    assert_eq!(bench.claim("w1", 5).await, (0, longest_sleep));
    // The watcher never comes: the deputy does.
    sleep(SECOND + GRACE + ms).await;
    let (got, next) = bench.claim("w3", 5).await;
    assert!(got == 1 && next < 2 * SECOND);
    assert!(bench.claim("w2", 5).await.1 < 2 * SECOND + GRACE, "somebody else is the deputy");
    // Neither comes: any worker that claims gets it.
    sleep(2 * SECOND + GRACE + GRACE).await;
    assert_eq!(bench.claim("w1", 5).await, (1, longest_sleep), "nothing comes as soon as that");
}

#[tokio::test(start_paused = true)]
async fn a_worker_without_room_calls_another_one_unless_one_comes_in_time() {
    let bench = Bench::new();
    assert_eq!(bench.claim("w1", 5).await.1, 10 * SECOND);
    assert_eq!(bench.claim("w1", 0).await, (0, 10 * SECOND));
    assert_eq!(bench.called(2).await, 0, "there is nothing to look out for");

    bench.schedule(bench.shard.clone(), "a", Duration::ZERO).await;
    bench.schedule(bench.shard.clone(), "b", 5 * SECOND).await;
    assert_eq!(bench.called(2).await, 1);
    let (got, next) = bench.claim("w1", 1).await;
    assert!(got == 1 && next > 3 * SECOND && next < 5 * SECOND, "b is next: {next:?}");
    assert_eq!(bench.called(2).await, 1, "w1 is full");
    // w2 looks out for b, and w3 is the deputy, who comes too late to look out for it.
    assert!(bench.claim("w2", 1).await.1 < 5 * SECOND);
    assert!(bench.claim("w3", 1).await.1 < 5 * SECOND);
    assert_eq!(bench.claim("w3", 0).await.0, 0);
    assert_eq!(bench.called(2).await, 0, "w2 comes for b");
    assert_eq!(bench.claim("w2", 0).await.0, 0);
    assert_eq!(bench.called(2).await, 1, "w2 ends");
    assert!(bench.claim("w3", 1).await.1 < 5 * SECOND, "w3 looks out for b");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_nobody_heard_is_taken_by_who_comes_by_itself() {
    let bench = Bench::new();
    bench.schedule(bench.shard.clone(), "a", HOUR).await;
    assert_eq!(bench.claim("w1", 1).await, (0, 10 * SECOND));
    assert_eq!(bench.called(1).await, 0);
}

#[tokio::test(start_paused = true)]
async fn what_recurs_and_is_overdue_does_not_make_workers_spin() {
    let bench = Bench::new();
    bench.recur(bench.shard.clone(), "r", SECOND).await;
    assert!(about(bench.claim("w1", 5).await.1 + Duration::from_millis(1), SECOND));
    sleep(SECOND).await;
    let ask = Bench::ask("w1", 5);
    let claimed = bench.tasks().claim(&bench.shard, &ask).await.unwrap();
    assert!(claimed.recurring && claimed.tasks.is_empty());
    assert_eq!(claimed.next, GRACE);
}

#[tokio::test(start_paused = true)]
async fn a_retry_that_is_due_before_all_others_calls_a_worker() {
    let bench = Bench::new();
    bench.schedule(bench.shard.clone(), "a", Duration::ZERO).await;
    sleep(Duration::from_millis(1)).await;
    let claimed = bench.tasks().claim(&bench.shard, &Bench::ask("w1", 5)).await.unwrap();
    let task = &claimed.tasks[0];
    let (error, history) = ("no".into(), History::default());
    let retry = Verdict::Retry { due: Due::In(SECOND), attempt: 2, error, history, wait: None };
    let batch = [(task.id.clone(), task.token.clone(), retry)];
    let settle = bench.tasks().settle_tasks(&bench.shard, &batch);
    let (called, settled) = tokio::join!(bench.called(2), settle);
    assert_eq!((called, settled.unwrap().applied), (1, 1));
}

/// Workers that take one task at a time and wait to be called between.
async fn commands(workers: usize, tasks: usize) -> usize {
    let bench = Bench::new();
    let (commands, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for n in 0..tasks {
        let after = Duration::from_millis(37) * u32::try_from(n).unwrap();
        bench.schedule(bench.shard.clone(), &n.to_string(), after).await;
    }
    let mut running = Vec::new();
    for n in 0..workers {
        let (bench, commands, done) = (bench.clone(), commands.clone(), done.clone());
        running.push(tokio::spawn(async move {
            while done.load(Ordering::Relaxed) < tasks {
                let ask = Bench::ask(&format!("w{n}"), 1);
                let claimed = bench.tasks().claim(&bench.shard, &ask).await.unwrap();
                commands.fetch_add(1, Ordering::Relaxed);
                for task in &claimed.tasks {
                    let late = claimed.now.saturating_duration_since(task.due);
                    assert!(late <= Duration::from_millis(1), "{} is {late:?} late", task.id);
                    sleep(Duration::from_millis(20)).await;
                    let batch = [(task.id.clone(), task.token.clone(), Verdict::Complete)];
                    bench.tasks().settle_tasks(&bench.shard, &batch).await.unwrap();
                    done.fetch_add(1, Ordering::Relaxed);
                }
                if claimed.tasks.is_empty() && !claimed.next.is_zero() {
                    bench.tasks().wait(&bench.shard, claimed.next).await.unwrap();
                }
            }
        }));
    }
    for worker in running {
        worker.await.unwrap();
    }
    commands.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn commands_per_task_do_not_grow_with_the_number_of_workers() {
    const TASKS: usize = 1_000;
    let few = commands(2, TASKS).await;
    let many = commands(64, TASKS).await;
    // Those who have nothing to do ask when their longest_sleep ends: 64 each 10 s, over 37 s and once at the start.
    let idle = 64 * 5;
    println!("{few} claims with 2 workers, {many} with 64, of {TASKS} tasks");
    assert!(few <= 4 * TASKS, "{few} claims for {TASKS} tasks");
    assert!(many <= few + TASKS / 2 + idle, "{many} claims with 64 workers, {few} with 2");
}

#[tokio::test(start_paused = true)]
async fn a_failover_brings_tasks_and_what_recurs_back_and_no_token_twice() {
    let bench = Bench::new();
    let place = Place::from(bench.shard.clone());
    bench.schedule(place.clone(), "a", Duration::ZERO).await;
    bench.recur(place.clone(), "r", HOUR).await;
    sleep(Duration::from_millis(1)).await;
    let snapshot = bench.operator.snapshot();
    let claim = |worker: &'static str| {
        let bench = bench.clone();
        async move { bench.tasks().claim(&bench.shard, &Bench::ask(worker, 5)).await.unwrap() }
    };
    let before = claim("w").await.tasks.remove(0);
    bench
        .backend
        .recurring()
        .expect("recurring schedules")
        .remove(&place, &ScheduleId::new("r").unwrap())
        .await
        .unwrap();
    let waiting = bench.clone();
    let waiting = tokio::spawn(async move { waiting.tasks().wait(&waiting.shard, HOUR).await.unwrap() });
    tokio::task::yield_now().await;
    let started = Instant::now();
    bench.operator.restore(&snapshot);
    assert!(waiting.await.unwrap() && started.elapsed().is_zero(), "who waits looks again");

    let after = claim("w").await.tasks.remove(0);
    assert_eq!(after.id, before.id);
    assert_ne!(after.token, before.token);
    let settle = async |token: String| {
        let batch = [(after.id.clone(), token, Verdict::Complete)];
        bench.tasks().settle_tasks(&bench.shard, &batch).await.unwrap().applied
    };
    assert_eq!(settle(before.token).await, 0);
    assert_eq!(settle(after.token).await, 1);
    assert_eq!(
        bench
            .backend
            .recurring()
            .expect("recurring schedules")
            .recurrences(&place, None, 10)
            .await
            .unwrap()
            .len(),
        1
    );
}

#[tokio::test(start_paused = true)]
async fn a_message_that_lost_its_body_is_told_of() {
    let bench = Bench::new();
    let ids = [ScheduleId::new("a").unwrap(), ScheduleId::new("gone").unwrap()];
    for place in [Place::from(bench.tp.clone()), bench.shard.clone().into()] {
        bench.schedule(place.clone(), "a", Duration::ZERO).await;
        assert!(bench.operator.delete_scheduled(&place, &ids[0]));
        assert!(!bench.operator.delete_scheduled(&place, &ids[0]));
        assert!(!bench.operator.delete_scheduled(&place, &ids[1]));
        let left = bench.backend.schedule().get(&place, &ids[0]).await.unwrap().unwrap();
        assert!(left.fields.is_empty());
    }
    sleep(Duration::from_millis(1)).await;
    let promoted = bench.backend.schedule().promote_delayed(&bench.tp, 10).await.unwrap();
    assert_eq!((promoted.moved, promoted.orphans), (0, 1));
    let claimed = bench.tasks().claim(&bench.shard, &Bench::ask("w", 5)).await.unwrap();
    assert!(claimed.tasks[0].fields.is_empty());
}

/// On real threads.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_all_who_race_for_a_task_exactly_one_wins() {
    const COUNT: usize = 300;
    let bench = Bench::new();
    for n in 0..COUNT {
        bench.schedule(bench.shard.clone(), &format!("{n:04}"), Duration::ZERO).await;
    }
    let place = Place::from(bench.shard.clone());
    let mut racers = Vec::new();
    for racer in 0..8 {
        let (bench, place) = (bench.clone(), place.clone());
        racers.push(tokio::spawn(async move {
            let mut won = Vec::new();
            for n in 0..COUNT {
                let id = ScheduleId::new(format!("{n:04}")).unwrap();
                if racer % 2 == 0 {
                    if bench.backend.schedule().cancel(&place, std::slice::from_ref(&id)).await.unwrap()[0] {
                        won.push(id);
                    }
                } else {
                    let ask = Bench::ask(&racer.to_string(), 1);
                    let claimed = bench.tasks().claim(&bench.shard, &ask).await.unwrap();
                    won.extend(claimed.tasks.into_iter().map(|task| task.id));
                }
                tokio::task::yield_now().await;
            }
            won
        }));
    }
    let mut won = Vec::new();
    for racer in racers {
        won.extend(racer.await.unwrap());
    }
    won.sort();
    assert_eq!(won.len(), COUNT);
    won.dedup();
    assert_eq!(won.len(), COUNT, "each was won once");
}
