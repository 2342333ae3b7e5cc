//! Idle workers: one watches for the next due task, and each call wakes one of them.

use std::time::Duration;

use millstream_core::Timestamp;
use millstream_core::recurring::Recurrence;
use millstream_core::schedule::{Due, OnConflict};
use millstream_core::tasks::{ClaimRequest, Claimed, Verdict as Says};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::{HOUR, QueueUnderTest, ask, body, dead, id, names, retry, suite};
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, LONG};

suite!("tasks":
    a_wait_ends_when_its_time_is_up,
    a_call_wakes_one_of_those_who_wait,
    whatever_is_due_first_calls_somebody needs [Recurring, Reschedule],
    what_is_due_later_calls_nobody needs [Recurring, Reschedule],
    a_call_that_nobody_waits_for_is_kept_once,
    a_worker_that_is_busy_lets_another_one_look_out,
    one_worker_is_told_of_the_head_and_others_of_later_times,
    who_comes_after_an_earlier_head_is_told_of_it,
    a_worker_that_does_not_come_back_is_replaced,
    nobody_is_told_to_wait_longer_than_it_likes,
    a_worker_is_told_when_a_claim_runs_out,
    a_worker_is_told_of_what_recurs needs [Recurring],
    while_claims_are_open_two_workers_come_three_times_per_hold,
    whoever_claims_calls_another_one_to_stay_near,
    a_worker_passes_on_its_own_call_once,
);

/// Time without a call after which a case concludes that none will come.
const QUIET: Duration = Duration::from_millis(60);
/// Tolerance, as a server may round milliseconds differently.
const EDGE: Duration = Duration::from_millis(5);
const SECOND: Duration = Duration::from_secs(1);

impl QueueUnderTest {
    /// Starts a wait for a call that lasts longer than any case.
    fn waiter(&self) -> JoinHandle<Result<bool, Violation>> {
        let (h, shard) = (self.h.clone(), self.shard.clone());
        tokio::spawn(async move { h.soon("a call", h.backend.tasks()?.wait(&shard, LONG)).await })
    }

    /// Expects a call.
    pub(super) async fn is_called(&self, why: &str) -> Verdict {
        let called = self.h.soon(why, self.h.backend.tasks()?.wait(&self.shard, LONG)).await?;
        ensure!(called, "nobody was called: {why}");
        Ok(())
    }

    /// Expects that no worker is called.
    async fn is_quiet(&self, why: &str) -> Verdict {
        let wait = self.h.backend.tasks()?.wait(&self.shard, QUIET);
        ensure!(!self.h.soon("a wait to end", wait).await?, "somebody was called ({why})");
        Ok(())
    }

    /// Claims nothing, and returns the time when the worker is to come back, in microseconds since 1970.
    async fn told(&self, ask: &ClaimRequest) -> Result<u64, Violation> {
        let Claimed { tasks, next, now, .. } = self.claim(ask).await?;
        ensure!(tasks.is_empty(), "claimed: {tasks:?}");
        Ok(now.as_millis() * 1_000 + next.as_micros() as u64)
    }

    async fn recurs(&self, name: &str, next: Timestamp) -> Verdict {
        let recurrence = Recurrence {
            id: id(name)?,
            rule: "a rule".into(),
            fields: body(name),
            next: Some(next),
            paused: false,
        };
        self.h.backend.recurring()?.put(&self.place, &recurrence, OnConflict::Keep).await?;
        Ok(())
    }
}

async fn called(waiter: JoinHandle<Result<bool, Violation>>) -> Verdict {
    let called = waiter.await.map_err(|error| Violation::new(error.to_string()))??;
    ensure!(called, "a wait ended, and nobody was called");
    Ok(())
}

async fn a_wait_ends_when_its_time_is_up(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    for wait in [Duration::ZERO, Duration::from_millis(20), QUIET] {
        let started = Instant::now();
        let called = queue_under_test
            .h
            .soon("a wait to end", queue_under_test.h.backend.tasks()?.wait(&queue_under_test.shard, wait))
            .await?;
        let took = started.elapsed();
        ensure!(!called && took + EDGE >= wait, "a wait of {wait:?} took {took:?}, called: {called}");
    }
    Ok(())
}

async fn a_call_wakes_one_of_those_who_wait(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let mut waiters = vec![queue_under_test.waiter(), queue_under_test.waiter(), queue_under_test.waiter()];
    for (name, delay) in [("a", HOUR * 3), ("b", HOUR * 2)] {
        // The waits may have started by then or not; the result is the same.
        tokio::time::sleep(Duration::from_millis(10)).await;
        queue_under_test.place([(name, Due::In(delay))]).await?;
        let mut deadline = queue_under_test.h.wait_for("a call");
        let first = loop {
            if let Some(first) = waiters.iter().position(JoinHandle::is_finished) {
                break first;
            }
            deadline.pause().await?;
        };
        called(waiters.remove(first)).await?;
        tokio::time::sleep(QUIET / 2).await;
        let more = waiters.iter().filter(|waiter| waiter.is_finished()).count();
        equal!(more, 0, "others who were called");
    }
    waiters.iter().for_each(JoinHandle::abort);
    Ok(())
}

async fn whatever_is_due_first_calls_somebody(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["dead", "fails"]).await?;
    queue_under_test.is_called("something was scheduled").await?;
    let tasks = queue_under_test.take(&ClaimRequest { hold: HOUR * 10, ..ask("w", 2) }, 2).await?;
    queue_under_test.settles(&tasks[0], dead(&tasks[0])).await?;
    queue_under_test.place([("a", Due::In(HOUR * 5)), ("z", Due::In(HOUR * 9))]).await?;
    queue_under_test.is_called("something was scheduled").await?;

    let now = queue_under_test.h.now().await?;
    queue_under_test.recurs("r", now.saturating_add(Duration::from_millis(4 * 3_600_000))).await?;
    queue_under_test.is_called("something recurs earlier than all that waits").await?;

    queue_under_test
        .h
        .backend
        .schedule()
        .reschedule(&queue_under_test.place, &[id("z")?], Due::In(HOUR * 3))
        .await?;
    queue_under_test.is_called("something was rescheduled to the head").await?;

    queue_under_test.settles(&tasks[1], retry(&tasks[1], Due::In(HOUR))).await?;
    queue_under_test.is_called("a retry is due before all others").await?;

    let dead = queue_under_test
        .h
        .backend
        .tasks()?
        .dead_tasks(&queue_under_test.shard, Default::default(), 1)
        .await?;
    let ids: Vec<_> = dead.iter().map(|dead| dead.id).collect();
    let replayed = queue_under_test.h.backend.tasks()?.replay_tasks(&queue_under_test.shard, &ids).await?;
    equal!(replayed, 1, "tasks that were replayed");
    queue_under_test.is_called("a dead task was replayed").await?;
    queue_under_test.is_quiet("nothing came since").await
}

async fn what_is_due_later_calls_nobody(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place([("head", Due::In(HOUR))]).await?;
    queue_under_test.is_called("something was scheduled").await?;
    queue_under_test.place([("a", Due::In(HOUR * 2)), ("b", Due::In(HOUR * 3))]).await?;
    queue_under_test
        .h
        .backend
        .schedule()
        .reschedule(&queue_under_test.place, &[id("b")?], Due::In(HOUR * 2))
        .await?;
    let now = queue_under_test.h.now().await?;
    queue_under_test.recurs("r", now.saturating_add(Duration::from_millis(2 * 3_600_000))).await?;
    queue_under_test.is_quiet("nothing came that is due earlier").await?;
    queue_under_test.place([("head 2", Due::In(HOUR / 2))]).await?;
    queue_under_test.is_called("something was scheduled before all others").await
}

async fn a_call_that_nobody_waits_for_is_kept_once(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    for (name, hours) in [("a", 5), ("b", 4), ("c", 3), ("d", 2)] {
        queue_under_test.place([(name, Due::In(HOUR * hours))]).await?;
    }
    queue_under_test.is_called("something was scheduled before the wait").await?;
    queue_under_test.is_quiet("one call is kept").await
}

async fn a_worker_that_is_busy_lets_another_one_look_out(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place([("a", Due::In(HOUR))]).await?;
    queue_under_test.is_called("something was scheduled").await?;
    // The worker watches the head, and then reports that it stops (limit 0).
    queue_under_test.told(&ask("w", 1)).await?;
    let waiter = queue_under_test.waiter();
    let claimed = queue_under_test.claim(&ask("w", 0)).await?;
    ensure!(claimed.tasks.is_empty(), "claimed with a limit of 0: {:?}", claimed.tasks);
    called(waiter).await?;
    let now = queue_under_test.h.now().await?;
    let head = queue_under_test.told(&ClaimRequest { longest_sleep: HOUR * 2, ..ask("v", 1) }).await?;
    ensure!(head < now.as_millis() * 1_000 + 3_600_500_000, "the called worker was given {head} at {now}");
    // The worker takes as many tasks as it can.
    queue_under_test.place_due(["b"]).await?;
    queue_under_test.is_called("something was scheduled").await?;
    equal!(names(&queue_under_test.claim(&ask("v", 1)).await?.tasks), ["b"], "claimed");
    queue_under_test.is_called("a worker took as much as it can").await
}

async fn one_worker_is_told_of_the_head_and_others_of_later_times(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let head = queue_under_test.h.now().await?.saturating_add(Duration::from_millis(60_000));
    queue_under_test.place([("a", Due::At(head))]).await?;
    let head = head.as_millis() * 1_000;
    for round in 0..2 {
        let first = queue_under_test.told(&ask("w", 1)).await?;
        ensure!(first.abs_diff(head) < 2_000, "round {round}: told {first}, the head is due at {head}");
        let mut others = Vec::new();
        for worker in ["t", "u", "v"] {
            let other = queue_under_test.told(&ask(worker, 1)).await?;
            ensure!(
                other > head + 5_000,
                "round {round}: {worker} is told {other} too, with the head at {head}"
            );
            others.push(other);
        }
        // In case the first worker does not come back.
        let soon = others.iter().any(|other| *other <= head + 1_000_000);
        ensure!(soon, "round {round}: nobody is told to come soon after the head at {head}: {others:?}");
    }
    Ok(())
}

async fn who_comes_after_an_earlier_head_is_told_of_it(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let now = queue_under_test.h.now().await?;
    for (name, worker, delay) in [("a", "u", 90_000), ("b", "v", 60_000), ("c", "w", 30_000)] {
        queue_under_test.place([(name, Due::At(now.saturating_add(Duration::from_millis(delay))))]).await?;
        let (told, head) = (queue_under_test.told(&ask(worker, 1)).await?, (now.as_millis() + delay) * 1_000);
        ensure!(told.abs_diff(head) < 2_000, "{worker} is told {told}, the head is due at {head}");
    }
    Ok(())
}

async fn a_worker_that_does_not_come_back_is_replaced(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place([("a", Due::In(Duration::from_millis(30)))]).await?;
    let mut claimed = queue_under_test.claim(&ask("dies", 1)).await?;
    // The worker now watches, or has the task, and never comes back.
    if claimed.tasks.is_empty() {
        let mut deadline = queue_under_test.h.wait_for("the next worker to have the task");
        loop {
            claimed = queue_under_test.claim(&ask("w", 1)).await?;
            if !claimed.tasks.is_empty() {
                break;
            }
            ensure!(
                claimed.next <= SECOND,
                "the task is due in 30 ms, and the next worker in {:?}",
                claimed.next
            );
            tokio::time::sleep(claimed.next).await;
            deadline.pause().await?;
        }
        equal!(names(&claimed.tasks), ["a"], "claimed by the next worker");
    }
    Ok(())
}

async fn nobody_is_told_to_wait_longer_than_it_likes(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let longest_sleep = Duration::from_millis(70);
    for head in [None, Some("a")] {
        if let Some(name) = head {
            queue_under_test.place([(name, Due::In(HOUR))]).await?;
        }
        for worker in ["u", "v", "u"] {
            let next = queue_under_test.claim(&ClaimRequest { longest_sleep, ..ask(worker, 1) }).await?.next;
            ensure!(
                next <= longest_sleep && !next.is_zero(),
                "{worker} is to come in {next:?}, with {longest_sleep:?}"
            );
        }
    }
    Ok(())
}

async fn a_worker_is_told_when_a_claim_runs_out(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let claimed = queue_under_test.claim(&ClaimRequest { hold: SECOND, ..ask("w", 1) }).await?;
    equal!(names(&claimed.tasks), ["a"], "claimed");
    let (told, end) = (queue_under_test.told(&ask("v", 1)).await?, (claimed.now.as_millis() + 1_000) * 1_000);
    ensure!(told.abs_diff(end) < 5_000, "told {told}, a claim runs out at {end}");
    Ok(())
}

async fn a_worker_is_told_of_what_recurs(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let now = queue_under_test.h.now().await?;
    queue_under_test.place([("later", Due::In(HOUR))]).await?;
    queue_under_test.recurs("soon", now.saturating_add(Duration::from_millis(60_000))).await?;
    ensure!(
        !queue_under_test.claim(&ask("u", 0)).await?.recurring,
        "something that recurs is said to be due"
    );
    let (told, head) = (queue_under_test.told(&ask("w", 1)).await?, (now.as_millis() + 60_000) * 1_000);
    ensure!(told.abs_diff(head) < 2_000, "told {told}, something that recurs is due at {head}");
    queue_under_test.recurs("due", now).await?;
    for limit in [1, 0] {
        let claimed = queue_under_test.claim(&ask("w", limit)).await?;
        ensure!(claimed.recurring, "it is not told that something recurs, with a limit of {limit}");
        ensure!(limit == 0 || claimed.next <= SECOND, "next in {:?}, and something is due", claimed.next);
    }
    Ok(())
}

async fn while_claims_are_open_two_workers_come_three_times_per_hold(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let hold = Duration::from_millis(300);
    let idle = |worker| ClaimRequest { hold, ..ask(worker, 5) };
    equal!(
        queue_under_test.claim(&idle("u")).await?.next,
        HOUR,
        "when a worker is to come, with nothing to do"
    );
    queue_under_test.place_due(["a"]).await?;
    let claimed = queue_under_test.claim(&ClaimRequest { hold: LONG, limit: 1, ..idle("w") }).await?;
    equal!(names(&claimed.tasks), ["a"], "claimed");
    for worker in ["u", "v", "u", "v"] {
        let next = queue_under_test.claim(&idle(worker)).await?.next;
        ensure!(next <= hold / 3, "{worker} is to come in {next:?}, with a claim of another and {hold:?}");
    }
    equal!(queue_under_test.claim(&idle("t")).await?.next, HOUR, "when a third one is to come");
    queue_under_test.settles(&claimed.tasks[0], Says::Complete).await?;
    tokio::time::sleep(hold / 3).await;
    let mut deadline = queue_under_test.h.wait_for("all to sleep again");
    while queue_under_test.claim(&idle("u")).await?.next < HOUR {
        deadline.pause().await?;
    }
    Ok(())
}

async fn whoever_claims_calls_another_one_to_stay_near(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.claim(&ask("v", 5)).await?;
    queue_under_test.place_due(["a"]).await?;
    queue_under_test.is_called("something was scheduled").await?;
    equal!(names(&queue_under_test.claim(&ask("w", 5)).await?.tasks), ["a"], "claimed");
    queue_under_test.is_called("a worker has claimed, and no other one stays near").await?;
    let next = queue_under_test.claim(&ask("v", 5)).await?.next;
    ensure!(next <= LONG / 3, "it is to come in {next:?}, with a claim of another");
    queue_under_test.place_due(["b"]).await?;
    queue_under_test.is_called("something was scheduled").await?;
    equal!(names(&queue_under_test.claim(&ask("w", 5)).await?.tasks), ["b"], "claimed");
    queue_under_test.is_quiet("another one stays near").await
}

async fn a_worker_passes_on_its_own_call_once(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    queue_under_test.is_called("something was scheduled").await?;
    equal!(names(&queue_under_test.claim(&ask("w", 5)).await?.tasks), ["a"], "claimed");
    queue_under_test.is_called("a worker has claimed, and no other one stays near").await?;
    queue_under_test.claim(&ask("w", 5)).await?;
    queue_under_test.is_called("who called has received it, and passes it on").await?;
    queue_under_test.claim(&ask("w", 5)).await?;
    queue_under_test.is_quiet("it is alone").await
}
