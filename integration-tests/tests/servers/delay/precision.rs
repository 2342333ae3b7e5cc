//! What is due comes in time and never early: a short run of what the binary `delays` measures, compared with a timer and a
//! round trip at the same times.

use integration_tests::delays::Engine;
use integration_tests::delays::precision::{Lateness, Load, asleep, run};
use integration_tests::history::figure;

/// How many times as late as the baseline half of them may be. A claim is several round trips and two processes.
const P50: i64 = 5;
/// The same for the latest, which is an accident of the scheduler on each side: at least a second, which only a worker that was
/// not woken takes.
const MAX: i64 = 20;
const SECOND: i64 = 1_000_000;

fn check(name: &str, late: &Lateness, tasks: usize) {
    figure("lateness", &format!("{name}: {}", late.text()));
    assert_eq!((late.handler_us.len(), late.server_ms.len()), (tasks, tasks), "each came once");
    assert_eq!(late.early(), 0, "none is early");
    let (half, all) = (P50 * late.of_baseline(0.5), (MAX * late.of_baseline(1.0)).max(SECOND));
    assert!(late.at_handler(0.5) <= half, "half of them within {half} µs: {}", late.text());
    assert!(late.at_handler(1.0) <= all, "all of them within {all} µs: {}", late.text());
}

async fn at_500_a_second(engine: Engine, parked: u64) {
    let course = Load { engine, tasks: 2_000, per_second: 500, parked };
    check(&format!("{engine:?}, 500/s, {parked} parked"), &run(&course).await, 2_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_on_time() {
    at_500_a_second(Engine::Queue, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_messages_are_on_time() {
    at_500_a_second(Engine::Topic, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_are_on_time_beside_many_that_wait() {
    at_500_a_second(Engine::Queue, 100_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delayed_messages_are_on_time_beside_many_that_wait() {
    at_500_a_second(Engine::Topic, 100_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_earlier_one_wakes_those_who_sleep() {
    for engine in [Engine::Queue, Engine::Topic] {
        check(&format!("{engine:?}, asleep"), &asleep(engine, 30).await, 30);
    }
}
