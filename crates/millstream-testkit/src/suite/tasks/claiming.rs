//! Claiming: never early, in order, each task by one worker.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::ErrorKind;
use millstream_core::Timestamp;
use millstream_core::schedule::{Due, OnConflict, Placed, Scheduling};
use millstream_core::tasks::{MAX_CLAIM, Verdict as Says};

use super::super::schedule::{all, outcomes, schedule, scheduling, shown};
use super::{HOUR, QueueUnderTest, ask, body, failure, id, names, suite, told};
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, foreign};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

suite!("tasks":
    a_task_is_never_claimed_early,
    tasks_are_claimed_by_due_time,
    each_task_is_claimed_by_one_worker,
    a_claim_takes_no_more_than_its_limit,
    a_claim_takes_no_more_than_the_most,
    a_claimed_task_is_as_it_was_scheduled,
    a_claimed_task_does_not_wait needs [ListScheduled],
    a_claimed_task_can_neither_be_replaced_nor_cancelled needs [Reschedule],
    a_cancelled_task_is_never_claimed,
    of_a_cancel_and_a_claim_one_wins,
    large_tasks_come_in_parts;
    with an operator:
    a_task_without_body_is_claimed_without_fields,
);

async fn a_task_is_never_claimed_early(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let delays = ["0", "1", "2", "7", "20", "55", "130"];
    let before = queue_under_test.h.now().await?;
    let due = |delay: &str| Due::In(std::time::Duration::from_millis(delay.parse().unwrap_or(0)));
    queue_under_test.place(delays.map(|delay| (delay, due(delay)))).await?;
    queue_under_test.place([("never", Due::In(HOUR))]).await?;
    let mut deadline = queue_under_test.h.wait_for("all tasks to be due");
    let mut came = 0;
    while came < delays.len() {
        let claimed = queue_under_test.claim(&ask("w", 10)).await?;
        for task in &claimed.tasks {
            let Ok(delay) = task.id.as_str().parse::<u64>() else {
                return Err(Violation::new(format!("{} was claimed an hour early", task.id)));
            };
            ensure!(
                task.due >= before.saturating_add(Duration::from_millis(delay)),
                "{} is due at {}, scheduled at {before}",
                task.id,
                task.due
            );
            ensure!(
                task.due <= claimed.now,
                "{} is due at {}, claimed at {}",
                task.id,
                task.due,
                claimed.now
            );
            queue_under_test.settles(task, Says::Complete).await?;
        }
        came += claimed.tasks.len();
        deadline.pause().await?;
    }
    queue_under_test.nothing("the rest is due in an hour").await
}

async fn tasks_are_claimed_by_due_time(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let tasks = [("e", 5), ("b", 2), ("f", 7), ("c", 1), ("a", 6), ("d", 3)];
    queue_under_test.place(tasks.map(|(id, due)| (id, Due::At(AT(due))))).await?;
    let first = queue_under_test.claim(&ask("w", 4)).await?.tasks;
    equal!(names(&first), ["c", "b", "d", "e"], "the first four");
    equal!(names(&queue_under_test.claim(&ask("v", 4)).await?.tasks), ["a", "f"], "the others");
    Ok(())
}

async fn each_task_is_claimed_by_one_worker(h: Harness) -> Verdict {
    const COUNT: usize = 80;
    let queue_under_test = QueueUnderTest::new(h).await?;
    let tasks: Vec<_> = (0..COUNT).map(|n| n.to_string()).collect();
    queue_under_test.place(tasks.iter().map(|id| (id.as_str(), Due::At(AT(1))))).await?;
    let workers = [0, 1, 2, 3].map(|worker| {
        let (h, shard) = (queue_under_test.h.clone(), queue_under_test.shard.clone());
        tokio::spawn(async move {
            let mut mine = Vec::new();
            loop {
                let tasks = h.backend.tasks()?.claim(&shard, &ask(&format!("w{worker}"), 7)).await?.tasks;
                if tasks.is_empty() {
                    return Ok::<_, Violation>(mine);
                }
                mine.extend(tasks);
                tokio::task::yield_now().await;
            }
        })
    });
    let (mut ids, mut tokens, mut count) = (BTreeSet::new(), BTreeSet::new(), 0);
    for worker in workers {
        for task in worker.await.map_err(|error| Violation::new(error.to_string()))?? {
            count += 1;
            ids.insert(task.id.clone());
            tokens.insert(task.token);
        }
    }
    equal!((count, ids.len()), (COUNT, COUNT), "claims, and different tasks");
    equal!(tokens.len(), COUNT, "different tokens");
    queue_under_test.nothing("each was claimed").await
}

async fn a_claim_takes_no_more_than_its_limit(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a", "b", "c", "d", "e"]).await?;
    for (limit, expected) in [(2, &["a", "b"][..]), (0, &[]), (2, &["c", "d"]), (2, &["e"]), (2, &[])] {
        let claimed = queue_under_test.claim(&ask("w", limit)).await?;
        equal!(names(&claimed.tasks), expected, "claimed with a limit of {limit}");
        ensure!(
            expected.len() < 2 || expected[0] == "c" || claimed.next.is_zero(),
            "three are left, and next is in {:?}",
            claimed.next
        );
    }
    Ok(())
}

async fn a_claim_takes_no_more_than_the_most(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let tasks: Vec<_> = (0..MAX_CLAIM + 20).map(|n| n.to_string()).collect();
    queue_under_test.place(tasks.iter().map(|id| (id.as_str(), Due::At(AT(1))))).await?;
    let claimed = queue_under_test.claim(&ask("w", 10_000)).await?;
    ensure!((1..=MAX_CLAIM).contains(&claimed.tasks.len()), "{} tasks at once", claimed.tasks.len());
    equal!(claimed.next, std::time::Duration::ZERO, "when to ask again, with more that is due");
    queue_under_test.take(&ask("w", 100), MAX_CLAIM + 20 - claimed.tasks.len()).await?;
    queue_under_test.nothing("each was claimed").await
}

async fn a_claimed_task_is_as_it_was_scheduled(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let name = "order 42: refund, ünïcode";
    let task =
        Scheduling { fields: foreign(), ..scheduling(&queue_under_test.place, name, Due::At(AT(77)))? };
    schedule(&queue_under_test.h, &[task]).await?;
    let before = queue_under_test.h.now().await?;
    let claimed = queue_under_test.claim(&ask("w", 5)).await?;
    let after = queue_under_test.h.now().await?;
    ensure!((before..=after).contains(&claimed.now), "the server's time: {before}, {}, {after}", claimed.now);
    equal!(claimed.crashed, 0, "tasks that died");
    let [task] = &claimed.tasks[..] else {
        return Err(Violation::new(format!("{} tasks were claimed of one", claimed.tasks.len())));
    };
    equal!((task.id.as_str(), task.due), (name, AT(77)), "id and due time");
    equal!(task.fields, foreign(), "the fields of a task");
    equal!((task.attempt, task.crashes), (1, 0), "attempt and crashes");
    equal!((task.error.as_str(), told(&task.history)), ("", Vec::new()), "errors of a first attempt");
    ensure!(!task.token.is_empty(), "there is no token");
    Ok(())
}

async fn a_claimed_task_does_not_wait(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a", "b"]).await?;
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!(task.id.as_str(), "a", "the first task");
    equal!(
        queue_under_test.h.backend.schedule().get(&queue_under_test.place, &task.id).await?,
        None,
        "a claimed task, as it waits"
    );
    equal!(all(&queue_under_test.h, &queue_under_test.place).await?, ["b"], "what waits");
    let waiting = queue_under_test.h.backend.schedule().waiting(&queue_under_test.place).await?;
    equal!((waiting.total, waiting.overdue), (1, 1), "how many wait, and are due");
    shown(&queue_under_test.h, &queue_under_test.place, "b").await.map(drop)
}

async fn a_claimed_task_can_neither_be_replaced_nor_cancelled(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    let ids = [task.id.clone()];
    equal!(
        queue_under_test.h.backend.schedule().cancel(&queue_under_test.place, &ids).await?,
        [false],
        "a cancel"
    );
    let rescheduled =
        queue_under_test.h.backend.schedule().reschedule(&queue_under_test.place, &ids, Due::NOW).await?;
    equal!(rescheduled, [false], "a reschedule");
    for (on_conflict, expected) in [
        (OnConflict::Keep, Ok(Placed::Kept)),
        (OnConflict::Replace, Ok(Placed::Kept)),
        (OnConflict::Reject, Err(ErrorKind::Exists)),
        // Kept would mean that the newest body is lost.
        (OnConflict::Debounce, Err(ErrorKind::Exists)),
        (OnConflict::KeepLast, Err(ErrorKind::Exists)),
    ] {
        let other = Scheduling {
            fields: body("b"),
            on_conflict,
            ..scheduling(&queue_under_test.place, "a", Due::NOW)?
        };
        let placed = queue_under_test.h.backend.schedule().schedule(&[other]).await;
        equal!(outcomes(placed), [expected], "scheduled with {on_conflict:?}");
    }
    queue_under_test.nothing("it is worked on").await?;
    queue_under_test.settles(&task, super::retry(&task, Due::NOW)).await?;
    let again = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!(again.fields, body("a"), "the fields of the task");
    equal!((again.attempt, again.error), (2, failure(1)), "the second attempt");
    Ok(())
}

async fn a_cancelled_task_is_never_claimed(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a", "b", "c"]).await?;
    let cancelled =
        queue_under_test.h.backend.schedule().cancel(&queue_under_test.place, &[id("a")?, id("c")?]).await?;
    equal!(cancelled, [true, true], "cancels of tasks that wait");
    equal!(names(&queue_under_test.claim(&ask("w", 10)).await?.tasks), ["b"], "claimed");
    Ok(())
}

async fn of_a_cancel_and_a_claim_one_wins(h: Harness) -> Verdict {
    const COUNT: usize = 40;
    let queue_under_test = QueueUnderTest::new(h).await?;
    let tasks: Vec<_> = (0..COUNT).map(|n| format!("{n:02}")).collect();
    queue_under_test.place(tasks.iter().map(|id| (id.as_str(), Due::At(AT(1))))).await?;
    let canceller = {
        let (h, place, tasks) = (queue_under_test.h.clone(), queue_under_test.place.clone(), tasks.clone());
        tokio::spawn(async move {
            let mut cancelled = Vec::new();
            // In reverse order.
            for task in tasks.into_iter().rev() {
                if h.backend.schedule().cancel(&place, &[id(&task)?]).await? == [true] {
                    cancelled.push(task);
                }
                tokio::task::yield_now().await;
            }
            Ok::<_, Violation>(cancelled)
        })
    };
    let mut seen = Vec::new();
    loop {
        let claimed = queue_under_test.claim(&ask("w", 3)).await?.tasks;
        if claimed.is_empty() {
            break;
        }
        seen.extend(claimed.iter().map(|task| task.id.to_string()));
        tokio::task::yield_now().await;
    }
    seen.extend(canceller.await.map_err(|error| Violation::new(error.to_string()))??);
    seen.sort();
    equal!(seen, tasks, "what was claimed or cancelled");
    Ok(())
}

async fn a_task_without_body_is_claimed_without_fields(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a", "b"]).await?;
    queue_under_test.h.operator()?.delete_scheduled(&queue_under_test.place, &id("a")?).await?;
    let tasks = queue_under_test.take(&ask("w", 2), 2).await?;
    equal!(names(&tasks), ["a", "b"], "claimed");
    equal!((&tasks[0].fields, &tasks[1].fields), (&Vec::new(), &body("b")), "the fields of both");
    for task in &tasks {
        queue_under_test.settles(task, Says::Complete).await?;
    }
    queue_under_test.nothing("both are done").await
}

async fn large_tasks_come_in_parts(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let names = ["a", "b", "c", "d", "e"];
    let large = vec![(Bytes::from_static(b"payload"), Bytes::from(vec![7; 600 << 10]))];
    for (name, due) in names.into_iter().zip(1..) {
        let task = Scheduling {
            fields: large.clone(),
            ..scheduling(&queue_under_test.place, name, Due::At(AT(due)))?
        };
        schedule(&queue_under_test.h, &[task]).await?;
    }
    let mut came = Vec::new();
    while came.len() < names.len() {
        let claimed = queue_under_test.claim(&ask("w", 100)).await?;
        let taken = claimed.tasks.len();
        ensure!((1..=2).contains(&taken), "{taken} tasks of 600 KiB were claimed at once");
        ensure!(claimed.tasks.iter().all(|task| task.fields == large), "a large body came back changed");
        came.extend(claimed.tasks.into_iter().map(|task| task.id.to_string()));
        if came.len() < names.len() {
            equal!(claimed.next, Duration::ZERO, "when to ask again, more are due");
        }
    }
    equal!(came, names, "claimed, one after the other");
    Ok(())
}
