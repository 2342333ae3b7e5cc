//! What delayed messages and tasks cost a server: CPU and memory for each, and how long others wait while many are overdue
//! (fault 50: a step that is too large blocks everybody). CPU is compared with bare commands on the same server in between, as
//! it depends on the machine; the binary `delays` measures.

use std::time::Duration;

use integration_tests::delays::load::{catch_up, cost};
use integration_tests::delays::{Engine, quantile, spread};
use integration_tests::history::figure;

/// How many times as much CPU as the bare commands that keep a message and append it.
const MOST: f64 = 4.0;

async fn each(engine: Engine) {
    let cost = cost(engine, 50_000).await;
    figure("cost", &format!("{engine:?}: {cost:.2?} (µs of server CPU, bytes)"));
    assert!(cost.schedule_us + cost.go_us <= MOST * cost.bare_us, "{cost:?}");
    assert!(cost.bytes <= 400.0, "{cost:?}");
}

#[tokio::test]
async fn a_delayed_message_is_cheap() {
    each(Engine::Topic).await;
}

#[tokio::test]
async fn a_task_is_cheap() {
    each(Engine::Queue).await;
}

async fn overdue(engine: Engine) {
    const MESSAGES: u64 = 50_000;
    let up = catch_up(engine, MESSAGES).await;
    let mut pings = up.pings.clone();
    pings.sort_unstable();
    figure(
        "catch-up",
        &format!(
            "{engine:?}: {MESSAGES} in {:.1?}, PING {}; scripts {}",
            up.took,
            spread(&pings),
            up.scripts
        ),
    );
    // One step for all of them would hold up a request for about as long as the whole takes. On a busy machine both take longer.
    let longest = Duration::from_micros(quantile(&pings, 0.99).unsigned_abs());
    assert!(longest <= up.took / 10, "{longest:?} of {:?}: {}", up.took, spread(&pings));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overdue_messages_do_not_keep_others_waiting() {
    overdue(Engine::Topic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overdue_tasks_do_not_keep_others_waiting() {
    overdue(Engine::Queue).await;
}
