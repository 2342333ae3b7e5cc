//! Workers and members are killed with -9 at random while tasks and delayed messages come due, 200 times over 50,000 of
//! them, of which a tenth fails: nothing is lost, nothing is early, and only claimed or in-flight work is done twice.

use std::time::Duration;

use integration_tests::delays::kills::{Plan, of_queue, of_topic};
use integration_tests::history::figure;

const PLAN: Plan = Plan { instances: 3, kills: 200, tasks: 50_000, over: Duration::from_secs(45) };

#[tokio::test]
async fn kills_of_workers_lose_no_task_and_double_only_what_was_claimed() {
    figure("kills", &of_queue(env!("CARGO_BIN_EXE_worker"), &PLAN).await);
}

#[tokio::test]
async fn kills_of_promoters_lose_no_delayed_message_and_move_each_once() {
    figure("kills", &of_topic(env!("CARGO_BIN_EXE_member"), &PLAN).await);
}
