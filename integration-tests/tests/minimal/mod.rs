//! A backend that implements the required operations alone: it passes the core of the suite, consumers and producers work
//! on it, and what needs more says so.

mod backend;
mod unwritten;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use backend::{Counting, Minimal};
use integration_tests::console::MemoryConsole;
use millstream::delay::{DelayQueue, DelayedPromoter, PromoterConfig};
use millstream::{
    Concurrency, Delivery, Error, ErrorKind, Millstream, Outcome, Record, RetryOrder, Sharing, Start, Topic,
};
use millstream_core::{Backend, Capabilities, Capability};
use millstream_memory::MemoryBackend;
use millstream_testkit::{Case, Harness, Verdict, cases, cases_for};
use tokio::runtime::Builder;
use unwritten::Unwritten;

/// Runs a case on a new backend.
fn verdict(case: &Case, backend: impl Fn(MemoryBackend) -> Backend) -> Verdict {
    let runtime = Builder::new_current_thread().enable_all().start_paused(true).build().expect("a runtime");
    runtime.block_on(async {
        let memory = MemoryBackend::new();
        let console = MemoryConsole(memory.operator());
        (case.run)(Harness::new(backend(memory)).with_operator(console)).await
    })
}

/// Runs cases, each on a new backend. Returns the number of cases of each role.
fn run(cases: Vec<Case>, backend: impl Fn(MemoryBackend) -> Backend) -> BTreeMap<&'static str, usize> {
    let (mut violations, mut passed) = (Vec::new(), BTreeMap::new());
    for case in cases {
        match verdict(&case, &backend) {
            Ok(()) => *passed.entry(case.role).or_default() += 1,
            Err(violation) => violations.push(format!("{case:?}: {violation}")),
        }
    }
    assert!(violations.is_empty(), "{violations:#?}");
    passed
}

/// Required roles in the order of the tutorial.
const ORDER: [&str; 5] = ["catalog", "leases", "log", "schedule", "members"];

/// A backend of which so many roles are written.
fn written(roles: usize, memory: &MemoryBackend) -> Backend {
    let whole = || Arc::new(Minimal(memory.clone()));
    let mut backend = Backend::minimal(Unwritten).in_process();
    for role in &ORDER[..roles] {
        backend = match *role {
            "catalog" => backend.with_catalog(whole()),
            "leases" => backend.with_leases(whole()),
            "log" => backend.with_log(whole()),
            "schedule" => backend.with_schedule(whole()),
            _ => backend.with_members(whole()),
        };
    }
    backend
}

#[test]
fn the_roles_of_the_tutorial_are_written_one_after_the_other() {
    let passing = |roles: usize| {
        let mut passed: BTreeMap<&str, usize> = BTreeMap::new();
        for case in core() {
            let backend = |memory: MemoryBackend| written(roles, &memory);
            *passed.entry(case.role).or_default() += usize::from(verdict(&case, backend).is_ok());
        }
        ORDER.map(|role| passed[role])
    };
    let page = include_str!("../../../docs/guides/extend.md");
    let all = "(of `catalog` 18, `leases` 17, `log` 61, `schedule` 31, `members` 36)";
    assert!(page.contains(all), "the numbers of the guide");
    assert_eq!(passing(0), [0; 5]);
    assert_eq!(passing(1), [6, 0, 0, 1, 0], "catalog");
    assert_eq!(passing(2), [6, 15, 0, 1, 0], "leases");
    assert_eq!(passing(3), [12, 15, 45, 1, 0], "log");
    assert_eq!(passing(4), [12, 16, 61, 31, 0], "schedule");
    assert_eq!(passing(5), [18, 17, 61, 31, 36], "members");
}

fn core() -> Vec<Case> {
    cases().into_iter().filter(|case| case.needs() == Capabilities::NONE).collect()
}

#[test]
fn it_passes_the_core_of_the_suite() {
    let passed = run(core(), |memory| Minimal(memory).into());
    for role in ["log", "leases", "schedule", "catalog", "members", "claims"] {
        assert!(passed.get(role).is_some_and(|cases| *cases >= 10), "hardly anything of {role}: {passed:?}");
    }
}

#[test]
fn defaults_over_other_operations_pass_the_suite_too() {
    let backend = |memory: MemoryBackend| {
        let log = Arc::new(Counting::from(memory.clone()));
        let minimal = Backend::from(Minimal(memory)).with_log(log.clone()).with_schedule(log);
        minimal.claiming([Capability::Lengths, Capability::ListScheduled])
    };
    let more = |case: &Case| {
        let needs = case.needs();
        let listed = [Capability::Lengths, Capability::ListScheduled];
        needs != Capabilities::NONE && needs.iter().all(|need| listed.contains(&need))
    };
    let passed = run(cases().into_iter().filter(more).collect(), backend);
    assert!(passed["log"] >= 2 && passed["schedule"] >= 10, "{passed:?}");
    run(core(), backend);
}

#[tokio::test(start_paused = true)]
async fn its_cases_are_those_that_need_nothing() {
    let backend = Backend::from(Minimal(MemoryBackend::new()));
    assert_eq!(backend.capabilities(), Capabilities::NONE);
    let names = |cases: Vec<Case>| cases.iter().map(|case| format!("{case:?}")).collect::<Vec<_>>();
    assert_eq!(names(cases_for(&backend)), names(core()));
}

const ORDERS: Topic<u32> = Topic::new("orders").partitions(4);

fn queue() -> Millstream {
    Millstream::over(Backend::from(Minimal(MemoryBackend::new())))
}

type Handled = Arc<Mutex<BTreeMap<u32, u32>>>;

/// Consumes with three instances until each of `count` messages was handled to the end.
async fn consume(mq: &Millstream, order: RetryOrder, count: usize) -> BTreeMap<u32, u32> {
    let attempts = Handled::default();
    let done = Arc::new(Mutex::new(BTreeMap::<u32, usize>::new()));
    let mut consumers = Vec::new();
    for _ in 0..3 {
        let (attempts, done) = (attempts.clone(), done.clone());
        let consumer = mq.consumer(ORDERS, "billing").retry_order(order).start(move |it: Delivery<u32>| {
            let number = it.payload;
            *attempts.lock().expect("lock").entry(number).or_default() += 1;
            let outcome = match number % 10 {
                3 if it.attempt() == 1 => Outcome::retry_after(Duration::from_secs(7), "once more"),
                7 => Outcome::dead_letter("never"),
                _ => Outcome::Ack,
            };
            if !matches!(outcome, Outcome::RetryAfter(..)) {
                *done.lock().expect("lock").entry(number).or_default() += 1;
            }
            async { outcome }
        });
        consumers.push(consumer.await.expect("started"));
    }
    let waiting = async {
        while done.lock().expect("lock").len() < count {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(600), waiting).await.expect("all are handled");
    tokio::time::sleep(Duration::from_secs(60)).await;
    let (mut acked, mut dead) = (0, 0);
    for consumer in consumers {
        let report = consumer.shutdown().await;
        (acked, dead) = (acked + report.acked, dead + report.dead);
    }
    assert!(done.lock().expect("lock").values().all(|times| *times == 1), "each ends once");
    assert_eq!((acked + dead, dead), (count as u64, count as u64 / 10), "settled");
    std::mem::take(&mut *attempts.lock().expect("lock"))
}

#[tokio::test(start_paused = true)]
async fn messages_are_produced_consumed_retried_and_given_up() {
    for order in [RetryOrder::Skip, RetryOrder::BlockKey] {
        let mq = queue();
        let producer = mq.producer(ORDERS).await.expect("a producer");
        let numbers: Vec<u32> = (0..100).collect();
        let keys: Vec<String> = numbers.iter().map(|number| format!("customer {}", number % 7)).collect();
        let now = numbers[..80].iter().zip(&keys).map(|(number, key)| Record::new(number).key(key));
        assert!(producer.send_all(now).await.iter().all(Result::is_ok));
        for number in &numbers[80..] {
            let delay = Duration::from_secs(u64::from(*number));
            producer.send(number).key("delayed").delay(delay).await.expect("scheduled");
        }
        let attempts = consume(&mq, order, 100).await;
        let expected = numbers.iter().map(|number| (*number, 1 + u32::from(number % 10 == 3))).collect();
        assert_eq!(attempts, expected, "attempts of each message with {order:?}");
    }
}

#[track_caller]
fn unsupported<T>(result: Result<T, Error>, says: &str) {
    let Err(error) = result else { panic!("it works: {says}") };
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains(says), "{error}, expected {says}");
}

#[tokio::test(start_paused = true)]
async fn what_needs_an_optional_role_is_refused_when_it_is_built() {
    let mq = queue();
    let backend = mq.backend();
    mq.producer(ORDERS).await.expect("a producer");
    let shared = mq
        .consumer(ORDERS, "g")
        .sharing(Sharing::Shared)
        .concurrency(Concurrency::Unordered(4))
        .start(async |_: Delivery<u32>| {})
        .await;
    unsupported(shared.map(drop), "this backend has no shared mode");
    unsupported(mq.dead_letters(&ORDERS, "g").await.map(drop), "this backend has no dead letters");
    let letters = mq.dead_letter_consumer(ORDERS, "g");
    let letters =
        letters.start(async |_: millstream::Letter<u32>| millstream::DeadLetterOutcome::Leave).await;
    unsupported(letters.map(drop), "this backend has no dead letters");
    unsupported(mq.recurring(&ORDERS).await.map(drop), "this backend has no recurring schedules");
    unsupported(DelayQueue::<u32>::new("tasks").open(backend).await, "this backend has no delay queues");
    unsupported(mq.admin().doctor().await, "this backend has no inspection of stored data");
    let verified = mq.admin().verify(&"orders".parse().expect("a name"), Default::default()).await;
    unsupported(verified, "this backend has no audit of stored data");
}

#[tokio::test(start_paused = true)]
async fn what_needs_an_optional_operation_is_refused() {
    let mq = queue();
    let spec = mq.backend().catalog().create_topic(&ORDERS.spec().expect("a topic")).await.expect("created");
    let bounded = Topic::<u32>::new("bounded").max_length(10);
    unsupported(mq.producer(bounded).await.map(drop), "Log::lengths");
    let promoter = DelayedPromoter::new(mq.backend(), spec, PromoterConfig::default());
    unsupported(promoter.map(drop), "Schedule::promote_delayed");
    unsupported(mq.seek(&ORDERS, "g", Start::Latest).await, "Log::seek");
    unsupported(mq.stats(&ORDERS, "g").await, "Catalog::stats");
    unsupported(mq.expand(&ORDERS, 8).await, "Catalog::expand");
    let delayed = mq.delayed(&ORDERS).await.expect("a handle");
    unsupported(delayed.get("id").await.map(drop), "Schedule::scheduled");
    unsupported(delayed.reschedule("id", Duration::ZERO).await, "Schedule::reschedule");
    assert!(!delayed.cancel("id").await.expect("cancelling is supported"));
    let consumer = mq.consumer(ORDERS, "g").start(async |_: Delivery<u32>| {}).await.expect("started");
    let partition = millstream::TopicPartition::new(ORDERS.spec().expect("a topic").name, 0);
    unsupported(consumer.seek(&partition, Start::Latest).await, "Log::seek");
    consumer.shutdown().await;
}
