//! Who races for what waits: cancels, claims, promotions and new times for the same ids, from many sides at once, on a real
//! server. Of each, exactly one wins.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::future::join_all;
use integration_tests::eventually;
use integration_tests::history::figure;
use integration_tests::server::shared_url;
use millstream::{Delivery, ErrorKind, Millstream, Record, Topic};
use millstream_core::schedule::Placed;
use millstream_delay::{DelayQueue, Task, TaskRecord};

const IDS: u64 = 600;
/// How many rounds there are at least; more until both sides have won often enough for a race, on a busy machine.
const ROUNDS: usize = 4;
const MOST_ROUNDS: usize = 24;
const WINS: usize = 20;
/// Each round has a queue and a topic of its own.
const DUE: Duration = Duration::from_millis(150);

type Times = Arc<Mutex<BTreeMap<u64, u32>>>;

fn add(to: &Times, number: u64) {
    *to.lock().expect("lock").entry(number).or_default() += 1;
}

fn id(number: u64) -> String {
    format!("id-{number}")
}

fn shuffled() -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..IDS).collect();
    fastrand::shuffle(&mut numbers);
    numbers
}

/// What is done with a message by its id.
#[derive(Clone, Copy, Debug)]
enum DeadLetterAction {
    Cancel,
    Later,
    Now,
}

const DEEDS: [DeadLetterAction; 6] = [
    DeadLetterAction::Cancel,
    DeadLetterAction::Cancel,
    DeadLetterAction::Later,
    DeadLetterAction::Later,
    DeadLetterAction::Now,
    DeadLetterAction::Now,
];

/// All that happened to each id adds up to one.
async fn one_won(name: &str, cancelled: &Times, handled: &Times) -> [usize; 2] {
    let total = |of: &Times| of.lock().expect("lock").values().sum::<u32>();
    eventually(async || u64::from(total(cancelled) + total(handled)) >= IDS, "each has come to an end").await;
    // Whatever else might happen has had its time.
    tokio::time::sleep(Duration::from_millis(300)).await;
    let (cancelled, handled) =
        (cancelled.lock().expect("lock").clone(), handled.lock().expect("lock").clone());
    let times = |of: &BTreeMap<u64, u32>, number| of.get(&number).copied().unwrap_or(0);
    for number in 0..IDS {
        let (gone, came) = (times(&cancelled, number), times(&handled, number));
        assert_eq!(gone + came, 1, "{number}: cancelled {gone} times, handled {came} times");
    }
    figure("races", &format!("{name}: {} cancelled, {} handled of {IDS}", cancelled.len(), handled.len()));
    [cancelled.len(), handled.len()]
}

/// Counts the winners of the rounds so far, and returns whether that was a race.
#[derive(Default)]
struct Tally {
    rounds: usize,
    wins: [usize; 2],
}

impl Tally {
    fn go_on(&self) -> bool {
        assert!(self.rounds < MOST_ROUNDS, "a race has two who can win: {:?}", self.wins);
        self.rounds < ROUNDS || self.wins.iter().any(|wins| *wins < WINS)
    }

    fn add(&mut self, wins: [usize; 2]) {
        self.rounds += 1;
        self.wins.iter_mut().zip(wins).for_each(|(sum, wins)| *sum += wins);
    }
}

/// Those who race begin when the first are due.
async fn near_due() {
    tokio::time::sleep(DUE - Duration::from_millis(20)).await;
}

fn delay_of(number: u64) -> Duration {
    DUE + Duration::from_micros(number * 100)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_those_who_race_for_a_task_one_wins() {
    let mut tally = Tally::default();
    while tally.go_on() {
        let round = tally.rounds;
        let namespace = format!("race-{}", fastrand::u64(..));
        let mq = Millstream::at(shared_url()).namespace(namespace).await.expect("connected");
        let queue = DelayQueue::<u64>::new("race").shards(2).open(mq.backend()).await.expect("opened");
        let (cancelled, handled) = (Times::default(), Times::default());
        let mut workers = Vec::new();
        for _ in 0..4 {
            let handled = handled.clone();
            let worker = queue.worker().concurrency(8).start(move |task: Task<u64>| {
                add(&handled, task.payload);
                async {}
            });
            workers.push(worker.await.expect("started"));
        }
        let numbers: Vec<u64> = (0..IDS).collect();
        let records = numbers.iter().map(|it| TaskRecord::new(it).delay(delay_of(*it)).id(id(*it)));
        queue.schedule_all(records).await.into_iter().for_each(|one| drop(one.expect("scheduled")));
        near_due().await;
        let racers = DEEDS.map(|deed| {
            let (queue, cancelled) = (queue.clone(), cancelled.clone());
            tokio::spawn(async move {
                for number in shuffled() {
                    let id = id(number);
                    match deed {
                        DeadLetterAction::Cancel => {
                            if queue.cancel(&id).await.expect("asked") {
                                add(&cancelled, number);
                            }
                        }
                        DeadLetterAction::Later => {
                            _ = queue.reschedule(&id, Duration::from_millis(30)).await.expect("asked");
                        }
                        DeadLetterAction::Now => _ = queue.run_now(&id).await.expect("asked"),
                    }
                }
            })
        });
        join_all(racers).await.into_iter().for_each(|ended| ended.expect("no panic"));
        tally.add(one_won(&format!("tasks, round {round}"), &cancelled, &handled).await);
        for worker in workers {
            worker.shutdown().await;
        }
        let counts = queue.count().await.expect("counts");
        assert_eq!(counts, Default::default(), "nothing is left");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_those_who_race_for_a_delayed_message_one_wins() {
    const RACE: Topic<u64> = Topic::new("race").partitions(2);
    let mut tally = Tally::default();
    while tally.go_on() {
        let round = tally.rounds;
        let namespace = format!("race-{}", fastrand::u64(..));
        let mq = Millstream::at(shared_url()).namespace(namespace).await.expect("connected");
        let (cancelled, handled) = (Times::default(), Times::default());
        let consumer = {
            let handled = handled.clone();
            mq.consumer(RACE, "g").start(move |delivery: Delivery<u64>| {
                add(&handled, delivery.payload);
                async {}
            })
        };
        let consumer = consumer.await.expect("started");
        let producer = mq.producer(RACE).await.expect("a producer");
        let delayed = mq.delayed(&RACE).await.expect("the delayed ones");
        let numbers: Vec<u64> = (0..IDS).collect();
        let records = numbers.iter().map(|it| Record::new(it).delay(delay_of(*it)).id(id(*it)));
        producer.send_all_delayed(records).await.into_iter().for_each(|sent| drop(sent.expect("sent")));
        near_due().await;
        let racers = DEEDS.map(|deed| {
            let (delayed, cancelled) = (delayed.clone(), cancelled.clone());
            tokio::spawn(async move {
                for number in shuffled() {
                    let id = id(number);
                    match deed {
                        DeadLetterAction::Cancel => {
                            if delayed.cancel(&id).await.expect("asked") {
                                add(&cancelled, number);
                            }
                        }
                        DeadLetterAction::Later => {
                            _ = delayed.reschedule(&id, Duration::from_millis(30)).await.expect("asked");
                        }
                        DeadLetterAction::Now => _ = delayed.run_now(&id).await.expect("asked"),
                    }
                }
            })
        });
        join_all(racers).await.into_iter().for_each(|ended| ended.expect("no panic"));
        tally.add(one_won(&format!("messages, round {round}"), &cancelled, &handled).await);
        consumer.shutdown().await;
        assert_eq!(delayed.count().await.expect("counted"), Default::default(), "nothing is left");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_those_who_schedule_one_id_one_is_new() {
    let namespace = format!("race-{}", fastrand::u64(..));
    let mq = Millstream::at(shared_url()).namespace(namespace).await.expect("connected");
    let queue = DelayQueue::<u64>::new("race").open(mq.backend()).await.expect("opened");
    for number in 0..200 {
        let far = Duration::from_secs(60);
        let rejecting = (0..4).map(|it| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.schedule(&it).delay(far).id(id(number)).reject().await })
        });
        let outcomes: Vec<_> =
            join_all(rejecting).await.into_iter().map(|one| one.expect("no panic")).collect();
        let new = outcomes.iter().filter(|one| one.as_ref().is_ok_and(|it| it.placed == Placed::New)).count();
        let refused = outcomes
            .iter()
            .filter(|one| one.as_ref().is_err_and(|error| error.kind() == ErrorKind::Exists))
            .count();
        assert_eq!((new, refused), (1, 3), "{outcomes:?}");
    }
    assert_eq!(queue.count().await.expect("counts").waiting.total, 200);
}
