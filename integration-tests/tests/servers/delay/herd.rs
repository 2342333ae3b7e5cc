//! How much those who wait ask: next to nothing while nothing is due, and per task no more the more of them there are.

use std::time::Duration;

use integration_tests::delays::{Engine, spread, traffic};
use integration_tests::history::figure;

const LISTEN: Duration = Duration::from_secs(12);
/// Commands per second for each partition or shard that has nothing due.
const IDLE: f64 = 0.6;

async fn idle(engine: Engine, places: u32) {
    let idle = traffic::idle(engine, places, 1, LISTEN).await;
    figure(
        "idle",
        &format!(
            "{engine:?}, {places} places: {:.2} commands/s each of the delay engine, {:.2} of all, {:?}",
            idle.engine, idle.place, idle.commands.0
        ),
    );
    assert!(
        idle.commands.count(|kind| kind.starts_with("EVALSHA")) == 0,
        "scripts without names: {:?}",
        idle.commands.0
    );
    assert!(idle.engine <= IDLE, "{:.2} commands/s: {:?}", idle.engine, idle.commands.0);
}

#[tokio::test]
async fn an_idle_shard_costs_next_to_nothing() {
    idle(Engine::Queue, 4).await;
}

#[tokio::test]
async fn an_idle_partition_costs_next_to_nothing() {
    idle(Engine::Topic, 4).await;
}

/// Workers with room for one task each; one comes for what is due, the others sleep on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_workers_ask_no_more_per_task_than_a_few() {
    let mut per_task = Vec::new();
    for workers in [1, 64] {
        let herd = traffic::herd(workers, 1_000, 200).await;
        let text =
            format!("{workers} workers: {:.2} commands per task, {}", herd.per_task, spread(&herd.late_us));
        figure("herd", &text);
        per_task.push(herd.per_task);
        assert!(herd.per_task <= 16.0, "{:?}", herd.commands.0);
    }
    assert!(per_task[1] <= 2.0 * per_task[0] + 2.0, "64 workers: {per_task:?}");
}
