//! Settling: under the token of the worker's own claim, and once.

use std::time::Duration;

use millstream_core::log::ProgressRight;
use millstream_core::log::Settled;
use millstream_core::results::MessageResult;
use millstream_core::schedule::{Due, OnConflict, Placed, ScheduleId, Scheduling};
use millstream_core::tasks::{ClaimedTask, FoundTask, TaskPlace, Verdict as Says};
use millstream_core::{ErrorKind, Reason, Timestamp};

use super::super::log::results::progress::{read, report};
use super::super::log::results::{expect, number, replied, stored};
use super::super::schedule::{outcomes, scheduling, shown};
use super::{
    HOUR, QueueUnderTest, STALE, ask, body, claim, dead, failure, names, retry, snooze, suite, told,
};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{Harness, LONG};

suite!("tasks":
    a_completed_task_is_gone_and_its_id_is_free,
    the_id_of_a_completed_task_is_in_use_for_its_window needs [ListScheduled],
    a_token_settles_its_own_claim_only,
    a_settlement_counts_once,
    a_batch_is_settled_one_by_one,
    a_task_has_the_result_of_whoever_holds_it needs [Results],
    a_task_has_the_progress_of_whoever_holds_it needs [Results],
    a_task_is_found_wherever_it_is needs [FindTasks],
    a_failed_task_comes_back_later_with_its_story needs [Reschedule, ListScheduled],
    a_retry_is_never_early,
    a_snooze_leaves_no_trace,
    a_long_history_keeps_the_first_failure,
);

async fn a_completed_task_is_gone_and_its_id_is_free(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    for _ in 0..2 {
        queue_under_test.place_due(["a"]).await?;
        let task = queue_under_test.take_one(&ask("w", 1)).await?;
        equal!((task.attempt, task.crashes), (1, 0), "attempt and crashes of a new task");
        queue_under_test.settles(&task, Says::Complete).await?;
        queue_under_test.nothing("it is done").await?;
        equal!(queue_under_test.counts().await?, Default::default(), "what is left");
    }
    Ok(())
}

async fn the_id_of_a_completed_task_is_in_use_for_its_window(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let (h, place) = (&queue_under_test.h, &queue_under_test.place);
    let again = async |name: &str, on_conflict| {
        let task = Scheduling { on_conflict, ..scheduling(place, name, Due::In(HOUR))? };
        Ok::<_, Violation>(outcomes(h.backend.schedule().schedule(&[task]).await).remove(0))
    };
    queue_under_test.place_due(["long", "short", "dead", "plain"]).await?;
    let tasks = queue_under_test.take(&ask("w", 4), 4).await?;
    let window = Duration::from_millis(100);
    queue_under_test.settles(&tasks[0], Says::CompleteFor(HOUR)).await?;
    queue_under_test.settles(&tasks[1], Says::CompleteFor(window)).await?;
    let ends = h.now().await?.saturating_add(window);
    queue_under_test.settles(&tasks[2], dead(&tasks[2])).await?;
    queue_under_test.settles(&tasks[3], Says::Complete).await?;
    equal!(queue_under_test.settle(&tasks[0], Says::CompleteFor(HOUR)).await?, STALE, "settled again");
    for (on_conflict, expected) in [
        (OnConflict::Keep, Ok(Placed::Done)),
        (OnConflict::Replace, Ok(Placed::Done)),
        (OnConflict::Debounce, Ok(Placed::Done)),
        (OnConflict::KeepLast, Ok(Placed::Done)),
        (OnConflict::Reject, Err(ErrorKind::Exists)),
    ] {
        equal!(again("long", on_conflict).await?, expected, "scheduled again with {on_conflict:?}");
    }
    equal!(h.backend.schedule().waiting(place).await?.total, 0, "tasks that wait");
    for name in ["dead", "plain", "new"] {
        equal!(again(name, OnConflict::Reject).await?, Ok(Placed::New), "{name}, whose id is free");
    }
    h.reaches(ends.saturating_add(Duration::from_millis(1))).await?;
    equal!(again("short", OnConflict::Keep).await?, Ok(Placed::New), "scheduled after the window");
    equal!(again("short", OnConflict::Keep).await?, Ok(Placed::Kept), "scheduled while it waits");
    equal!(again("long", OnConflict::Keep).await?, Ok(Placed::Done), "the other one");
    Ok(())
}

async fn a_token_settles_its_own_claim_only(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a", "b"]).await?;
    let tasks = queue_under_test.take(&ask("w", 2), 2).await?;
    for says in [Says::Complete, retry(&tasks[0], Due::NOW), dead(&tasks[0])] {
        for token in [tasks[1].token.as_str(), "", "-", "made up"] {
            let settled = queue_under_test.settle_as(&tasks[0].id, token, says.clone()).await?;
            equal!(settled, STALE, "{says:?} with the token {token:?}");
        }
    }
    let mut wrong = tasks[0].clone();
    wrong.token.clone_from(&tasks[1].token);
    ensure!(!queue_under_test.extend(&wrong, HOUR).await?, "a claim was extended with another's token");
    queue_under_test.nothing("both are worked on").await?;
    for task in &tasks {
        queue_under_test.settles(task, Says::Complete).await?;
    }
    Ok(())
}

async fn a_settlement_counts_once(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a", "b", "c"]).await?;
    let tasks = queue_under_test.take(&ask("w", 3), 3).await?;
    let all = [Says::Complete, retry(&tasks[1], Due::In(HOUR)), dead(&tasks[2])];
    for (task, says) in tasks.iter().zip(&all) {
        queue_under_test.settles(task, says.clone()).await?;
        equal!(queue_under_test.settle(task, says.clone()).await?, STALE, "{says:?}, sent again");
        ensure!(!queue_under_test.extend(task, HOUR).await?, "a claim is extended after {says:?}");
    }
    let counts = queue_under_test.counts().await?;
    equal!((counts.waiting.total, counts.claimed, counts.dead), (1, 0, 1), "waiting, claimed and dead");
    Ok(())
}

async fn a_batch_is_settled_one_by_one(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a", "b", "c", "d"]).await?;
    let tasks = queue_under_test.take(&ask("w", 4), 4).await?;
    queue_under_test.settles(&tasks[1], Says::Complete).await?;
    let says = [Says::Complete, Says::Complete, retry(&tasks[2], Due::NOW), dead(&tasks[3])];
    let batch: Vec<_> =
        tasks.iter().map(claim).zip(says).map(|((id, token), says)| (id, token, says)).collect();
    let settled = queue_under_test.h.backend.tasks()?.settle_tasks(&queue_under_test.shard, &batch).await?;
    equal!(settled, Settled { applied: 3, stale: 1 }, "a batch of four, one of them done before");
    let again = queue_under_test.take(&ask("w", 1), 1).await?;
    equal!(names(&again), ["c"], "claimed after it");
    equal!(queue_under_test.counts().await?.dead, 1, "dead tasks");
    let settled = queue_under_test.h.backend.tasks()?.settle_tasks(&queue_under_test.shard, &[]).await?;
    equal!(settled, Settled::default(), "an empty batch");
    Ok(())
}

async fn a_task_has_the_result_of_whoever_holds_it(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let (h, place) = (&queue_under_test.h, &queue_under_test.place);
    queue_under_test.place_due(["done", "in use", "dead", "again", "none"]).await?;
    let tasks = queue_under_test.take(&ask("w", 5), 5).await?;
    let numbers: Vec<_> = (0..5).map(|_| number()).collect();
    let done = |at: usize, window, text| {
        let result = stored(numbers[at], LONG, replied(text));
        Says::CompleteWith { window, result }
    };
    let failed = MessageResult::dead(&Reason::Exhausted, 1, "gave up");
    let mut given_up = dead(&tasks[2]);
    if let Says::Dead { result, .. } = &mut given_up {
        *result = Some(stored(numbers[2], LONG, failed.clone()));
    }
    for says in [done(0, None, "of another"), given_up.clone()] {
        equal!(queue_under_test.settle_as(&tasks[0].id, "made up", says).await?, STALE, "a foreign token");
        expect(h, place, numbers[0], None, "of a settlement under a foreign token").await?;
        expect(h, place, numbers[2], None, "of a settlement under a foreign token").await?;
    }
    // One batch: with results and without, and one that comes back.
    let says = [
        done(0, None, "reply"),
        done(1, Some(HOUR), ""),
        given_up,
        retry(&tasks[3], Due::NOW),
        Says::Complete,
    ];
    let batch: Vec<_> =
        tasks.iter().map(claim).zip(says).map(|((id, token), says)| (id, token, says)).collect();
    let settled = h.backend.tasks()?.settle_tasks(&queue_under_test.shard, &batch).await?;
    equal!(settled, Settled { applied: 5, stale: 0 }, "a batch of five");
    let all = [Some(replied("reply")), Some(replied("")), Some(failed), None, None];
    for (number, expected) in numbers.iter().zip(&all) {
        expect(h, place, *number, expected.as_ref(), "of a batch").await?;
    }
    let again = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!(again.id.as_str(), "again", "claimed after it");
    queue_under_test.settles(&again, done(3, None, "at last")).await?;
    expect(h, place, numbers[3], Some(&replied("at last")), "of a retry").await?;
    equal!(queue_under_test.settle(&tasks[0], done(0, None, "late")).await?, STALE, "settled again");
    expect(h, place, numbers[0], Some(&replied("reply")), "behind a stale settlement").await?;
    let counts = queue_under_test.counts().await?;
    equal!((counts.waiting.total, counts.claimed, counts.dead), (0, 0, 1), "waiting, claimed and dead");
    for (name, expected) in [("in use", Placed::Done), ("done", Placed::New)] {
        let task = scheduling(place, name, Due::In(HOUR))?;
        equal!(outcomes(h.backend.schedule().schedule(&[task]).await), [Ok(expected)], "{name} again");
    }
    Ok(())
}

async fn a_task_has_the_progress_of_whoever_holds_it(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let (h, place) = (&queue_under_test.h, &queue_under_test.place);
    queue_under_test.place_due(["a"]).await?;
    let (task, number) = (queue_under_test.take_one(&ask("w", 1)).await?, number());
    let right = |task: &ClaimedTask| ProgressRight::Worker {
        shard: queue_under_test.shard.clone(),
        task: task.id.clone(),
        token: task.token.clone(),
    };
    let log = h.backend.log();
    log.report_progress(&right(&task), &report(number, 1, [(Some(0.5), "half")])).await?;
    let foreign = ClaimedTask { token: "made up".to_owned(), ..task.clone() };
    let reported = log.report_progress(&right(&foreign), &report(number, 1, [(None, "foreign")])).await;
    refused(reported, ErrorKind::Fenced, "progress under a foreign token")?;
    queue_under_test.settles(&task, retry(&task, Due::NOW)).await?;
    let reported = log.report_progress(&right(&task), &report(number, 1, [(None, "late")])).await;
    refused(reported, ErrorKind::Fenced, "progress of what is settled")?;
    let again = queue_under_test.take_one(&ask("w", 1)).await?;
    log.report_progress(&right(&again), &report(number, again.attempt, [(None, "again")])).await?;
    let lines = [(1, Some(0.5), "half".to_owned()), (2, None, "again".to_owned())];
    equal!(read(h, place, number, 0).await?.0, lines, "what was said");
    Ok(())
}

async fn a_task_is_found_wherever_it_is(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let (h, shard) = (&queue_under_test.h, &queue_under_test.shard);
    let find =
        async |name: &str| Ok::<_, Violation>(h.backend.tasks()?.find(shard, &ScheduleId::new(name)?).await?);
    let story = |found: &Option<FoundTask>| {
        let told = |it: &FoundTask| (it.attempt, it.error.clone(), it.fields.clone());
        found.as_ref().map(told)
    };
    equal!(find("a").await?, None, "what was never there");
    queue_under_test.place_due(["a"]).await?;
    let waiting = find("a").await?;
    let first = TaskPlace::Waiting(Timestamp::from_millis(1));
    equal!(waiting.as_ref().map(|it| it.state), Some(first), "where it waits");
    equal!(story(&waiting), Some((1, String::new(), body("a"))), "what waits");
    let before = h.now().await?;
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    let claimed = find("a").await?;
    let until = match claimed.as_ref().map(|it| it.state) {
        Some(TaskPlace::Claimed(until)) => until,
        other => return Err(Violation::new(format!("a claimed task is {other:?}"))),
    };
    ensure!(until >= before.saturating_add(LONG), "claimed until {until}, for {LONG:?} from {before} on");
    equal!(story(&claimed), Some((1, String::new(), body("a"))), "what is claimed");
    queue_under_test.settles(&task, retry(&task, Due::In(HOUR))).await?;
    let again = find("a").await?;
    let is_later = matches!(again.as_ref().map(|it| it.state), Some(TaskPlace::Waiting(at)) if at > before);
    ensure!(is_later, "a retry is {again:?}");
    equal!(story(&again), Some((2, failure(1), body("a"))), "what comes back");
    queue_under_test.place_due(["done", "dead", "gone"]).await?;
    let tasks = queue_under_test.take(&ask("w", 3), 3).await?;
    queue_under_test.settles(&tasks[0], Says::CompleteFor(HOUR)).await?;
    queue_under_test.settles(&tasks[1], dead(&tasks[1])).await?;
    queue_under_test.settles(&tasks[2], Says::Complete).await?;
    let done = find("done").await?;
    let free = matches!(done.as_ref().map(|it| it.state), Some(TaskPlace::Finished(at)) if at > before);
    ensure!(free, "a task whose id is in use is {done:?}");
    equal!((find("dead").await?, find("gone").await?), (None, None), "what is dead, and what is done");
    Ok(())
}

async fn a_failed_task_comes_back_later_with_its_story(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let first = queue_under_test.take_one(&ask("w", 1)).await?;
    let before = queue_under_test.h.now().await?;
    queue_under_test.settles(&first, retry(&first, Due::In(HOUR))).await?;
    queue_under_test.nothing("the retry is due in an hour").await?;
    let waits = shown(&queue_under_test.h, &queue_under_test.place, "a").await?;
    ensure!(
        waits.due >= before.saturating_add(Duration::from_millis(3_600_000)),
        "due at {}, an hour after {before} or later",
        waits.due
    );
    equal!(waits.fields, body("a"), "the fields of a task that waits for its second attempt");
    queue_under_test
        .h
        .backend
        .schedule()
        .reschedule(&queue_under_test.place, std::slice::from_ref(&first.id), Due::NOW)
        .await?;
    let second = queue_under_test.take_one(&ask("v", 1)).await?;
    equal!((second.attempt, second.crashes), (2, 0), "attempt and crashes");
    equal!(second.error, failure(1), "the error");
    equal!(told(&second.history), [(1, failure(1))], "the history of a second attempt");
    equal!(second.fields, body("a"), "the fields of a second attempt");
    ensure!(second.token != first.token, "two claims have one token");
    equal!(
        queue_under_test.settle(&first, Says::Complete).await?,
        STALE,
        "settled with the token of the first claim"
    );
    queue_under_test.settles(&second, retry(&second, Due::NOW)).await?;
    let third = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!((third.attempt, &third.error), (3, &failure(2)), "the third attempt");
    equal!(told(&third.history), [(1, failure(1)), (2, failure(2))], "the history of a third attempt");
    let now = queue_under_test.h.now().await?;
    for failed in third.history.failures() {
        ensure!(
            (before..=now).contains(&failed.at),
            "failed at {}, which is not in {before}..{now}",
            failed.at
        );
    }
    queue_under_test.settles(&third, Says::Complete).await?;
    queue_under_test.place_due(["a"]).await?;
    let anew = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!((anew.attempt, anew.error.as_str(), told(&anew.history)), (1, "", Vec::new()), "a new task");
    Ok(())
}

async fn a_retry_is_never_early(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["0", "1", "15", "40", "130"]).await?;
    let tasks = queue_under_test.take(&ask("w", 5), 5).await?;
    let before = queue_under_test.h.now().await?;
    let mut batch = Vec::new();
    for task in &tasks {
        let delay = std::time::Duration::from_millis(task.id.as_str().parse().unwrap_or(0));
        batch.push((task.id.clone(), task.token.clone(), retry(task, Due::In(delay))));
    }
    let settled = queue_under_test.h.backend.tasks()?.settle_tasks(&queue_under_test.shard, &batch).await?;
    equal!(settled.applied, 5, "retries that took effect");
    let mut deadline = queue_under_test.h.wait_for("all retries to be due");
    let mut came = 0;
    while came < tasks.len() {
        let claimed = queue_under_test.claim(&ask("w", 10)).await?;
        for task in &claimed.tasks {
            let delay: u64 = task.id.as_str().parse().unwrap_or(0);
            ensure!(
                claimed.now >= before.saturating_add(Duration::from_millis(delay)),
                "due {delay} ms after {before}, claimed at {}",
                claimed.now
            );
        }
        came += claimed.tasks.len();
        deadline.pause().await?;
    }
    Ok(())
}

async fn a_snooze_leaves_no_trace(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let mut task = queue_under_test.take_one(&ask("w", 1)).await?;
    for round in 1..4 {
        queue_under_test.settles(&task, snooze(&task)).await?;
        let again = queue_under_test.take_one(&ask("w", 1)).await?;
        equal!(again.attempt, round, "the attempt after a snooze");
        equal!(told(&again.history), told(&task.history), "the history after a snooze");
        queue_under_test.settles(&again, retry(&again, Due::NOW)).await?;
        task = queue_under_test.take_one(&ask("w", 1)).await?;
    }
    equal!(told(&task.history), [1, 2, 3].map(|n| (n, failure(n))), "the history after all");
    Ok(())
}

async fn a_long_history_keeps_the_first_failure(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let error = format!("two\nlines, and {}", "x".repeat(2_000));
    for attempt in 1..=14 {
        let task = queue_under_test.take_one(&ask("w", 1)).await?;
        equal!(task.attempt, attempt, "the attempt");
        let says = Says::Retry {
            due: Due::NOW,
            attempt: attempt + 1,
            error: if attempt == 7 { error.clone() } else { failure(attempt) },
            history: task.history,
            wait: None,
        };
        queue_under_test.settle_as(&task.id, &task.token, says).await?;
    }
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    let failures = task.history.failures();
    let attempts: Vec<_> = failures.iter().map(|failed| failed.attempt).collect();
    equal!(attempts, [1, 6, 7, 8, 9, 10, 11, 12, 13, 14], "the attempts that are remembered");
    ensure!(failures[2].error.starts_with("two lines, and xxx"), "remembered: {:?}", failures[2].error);
    equal!(task.error, failure(14), "the last error");
    Ok(())
}
