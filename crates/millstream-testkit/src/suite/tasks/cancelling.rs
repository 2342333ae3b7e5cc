//! Cancelling tasks: those that wait, and those that workers have.

use std::time::Duration;

use millstream_core::ErrorKind;
use millstream_core::cancels::{CancelMark, CancelRequest, WorkPlace};
use millstream_core::log::ProgressRight;
use millstream_core::results::{RESULT_HEADER, ResultRequest};
use millstream_core::schedule::Due;
use millstream_core::tasks::{ClaimRequest, ClaimedTask, Verdict as Says};

use super::super::cancels::{cancelled, removes, role};
use super::super::log::results::{expect, number, stored};
use super::super::schedule::{outcomes, scheduling};
use super::{HOUR, QueueUnderTest, ask, retry, snooze, suite};
use crate::case::{Verdict, equal, refused};
use crate::harness::{BRIEF, Harness, LONG};

suite!("tasks":
    a_task_that_waits_is_cancelled_in_one_step needs [Cancels, Results],
    a_task_is_cancelled_by_the_worker_that_has_it needs [Cancels, Results],
    the_mark_of_one_claim_is_not_that_of_the_next needs [Cancels],
    a_number_names_one_task_of_those_with_an_id needs [Cancels],
    what_a_lost_worker_had_is_withdrawn needs [Cancels],
    a_retry_that_was_not_seen_to_wait_has_no_mark_of_before needs [Cancels],
);

fn right(queue: &QueueUnderTest, task: &ClaimedTask) -> ProgressRight {
    ProgressRight::Worker { shard: queue.shard.clone(), task: task.id.clone(), token: task.token.clone() }
}

async fn a_task_that_waits_is_cancelled_in_one_step(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    let (role, place, number) = (role(&queue.h)?, WorkPlace::Shard(queue.shard.clone()), number());
    queue.place([("waits", Due::In(HOUR)), ("due", Due::NOW)]).await?;
    for id in ["waits", "due"] {
        let result = stored(number, LONG, cancelled());
        let mark = role.cancel(&place, id, &CancelRequest::default()).await?;
        equal!(mark, Some(CancelMark::Asked), "{id}, not seen to wait");
        let mark = role.cancel(&place, id, &removes(Some(*result))).await?;
        equal!(mark, Some(CancelMark::Cancelled), "{id}");
        expect(&queue.h, &queue.place, number, Some(&cancelled()), "of a cancelled task").await?;
    }
    queue.nothing("all are cancelled").await?;
    equal!(queue.counts().await?, Default::default(), "what is left");
    equal!(role.cancel(&place, "waits", &removes(None)).await?, None, "cancelled again");
    equal!(
        role.cancel(&place, "never there", &CancelRequest::default()).await?,
        None,
        "a task that never was there"
    );
    Ok(())
}

async fn a_task_is_cancelled_by_the_worker_that_has_it(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    let (role, place, number) = (role(&queue.h)?, WorkPlace::Shard(queue.shard.clone()), number());
    queue.place_due(["a", "b"]).await?;
    let tasks = queue.take(&ask("w", 2), 2).await?;
    let [task, other] = &tasks[..] else { return Ok(()) };
    let result = stored(number, LONG, cancelled());
    let answer =
        async |task, mark| role.answer(&right(&queue, task), task.id.as_str(), mark, Some(&result)).await;
    equal!(answer(task, CancelMark::Stopped).await?, None, "of what nobody has cancelled");
    let id = task.id.as_str();
    equal!(
        role.cancel(&place, id, &removes(Some(*result.clone()))).await?,
        Some(CancelMark::Asked),
        "claimed"
    );
    expect(&queue.h, &queue.place, number, None, "of a task that may run").await?;
    let marked = role.marks(&place, 0, Duration::ZERO).await?.unwrap_or_default().marks;
    let seen: Vec<_> = marked.iter().map(|it| (&*it.id, it.mark, &*it.claim)).collect();
    equal!(seen, [(id, CancelMark::Asked, &*task.token)], "what the worker reads");
    let foreign = ClaimedTask { token: "made up".into(), ..task.clone() };
    refused(
        answer(&foreign, CancelMark::Stopped).await,
        ErrorKind::Fenced,
        "the answer under another token",
    )?;
    equal!(queue.counts().await?.claimed, 2, "claimed behind that");
    equal!(answer(task, CancelMark::Stopped).await?, Some(CancelMark::Stopped), "the answer of who has it");
    expect(&queue.h, &queue.place, number, Some(&cancelled()), "behind the answer").await?;
    equal!(role.mark(&place, id, LONG).await?, Some(CancelMark::Stopped), "the mark");
    equal!(queue.counts().await?.claimed, 1, "claimed behind the answer");
    refused(answer(task, CancelMark::Stopped).await, ErrorKind::Fenced, "a second answer")?;
    queue.settles(other, Says::Complete).await
}

async fn the_mark_of_one_claim_is_not_that_of_the_next(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    let (role, place) = (role(&queue.h)?, WorkPlace::Shard(queue.shard.clone()));
    queue.place_due(["a"]).await?;
    let first = queue.take_one(&ask("w", 1)).await?;
    role.cancel(&place, "a", &CancelRequest::default()).await?;
    queue.settles(&first, retry(&first, Due::NOW)).await?;
    let second = queue.take_one(&ask("w", 1)).await?;
    let answered = role.answer(&right(&queue, &second), "a", CancelMark::Stopped, None).await?;
    equal!(answered, None, "under a claim that was not asked for");
    equal!(
        role.cancel(&place, "a", &CancelRequest::default()).await?,
        Some(CancelMark::Asked),
        "the next claim"
    );
    let answered = role.answer(&right(&queue, &second), "a", CancelMark::Stopped, None).await?;
    equal!(answered, Some(CancelMark::Stopped), "under the claim that is asked for");
    // Another task with this id.
    queue.place_due(["a"]).await?;
    let third = queue.take_one(&ask("w", 1)).await?;
    equal!(
        role.cancel(&place, "a", &CancelRequest::default()).await?,
        Some(CancelMark::Asked),
        "another task with this id"
    );
    queue.settles(&third, Says::Complete).await
}

async fn a_number_names_one_task_of_those_with_an_id(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    let (role, place) = (role(&queue.h)?, WorkPlace::Shard(queue.shard.clone()));
    let numbers = [number(), number()];
    let asks = ResultRequest::new(numbers[0], LONG).to_string();
    let mut task = scheduling(&queue.place, "a", Due::In(HOUR))?;
    task.fields.push((format!("h:{RESULT_HEADER}").into(), asks.into()));
    outcomes(queue.h.backend.schedule().schedule(&[task]).await);
    for (number, expected) in [(numbers[1], None), (numbers[0], Some(CancelMark::Cancelled))] {
        let request = CancelRequest { number: Some(number), ..removes(None) };
        equal!(role.cancel(&place, "a", &request).await?, expected, "the task of number {number}");
    }
    queue.nothing("it is cancelled").await
}

async fn what_a_lost_worker_had_is_withdrawn(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    let (role, place) = (role(&queue.h)?, WorkPlace::Shard(queue.shard.clone()));
    queue.place_due(["a"]).await?;
    queue.take_one(&ClaimRequest { hold: BRIEF, ..ask("lost", 1) }).await?;
    let again = queue.take_one(&ask("w", 1)).await?;
    equal!(again.crashes, 1, "crashes of a task whose claim ran out");
    queue.settles(&again, snooze(&again)).await?;
    let mark = role.cancel(&place, "a", &removes(None)).await?;
    equal!(mark, Some(CancelMark::Withdrawn), "of a task that its worker may still have");
    Ok(())
}

async fn a_retry_that_was_not_seen_to_wait_has_no_mark_of_before(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    let (role, place) = (role(&queue.h)?, WorkPlace::Shard(queue.shard.clone()));
    queue.place_due(["a"]).await?;
    let first = queue.take_one(&ask("w", 1)).await?;
    role.cancel(&place, "a", &CancelRequest::default()).await?;
    role.answer(&right(&queue, &first), "a", CancelMark::Stopped, None).await?;
    // Another task with this id, which waits when the cancel comes, as after a retry.
    queue.place([("a", Due::In(HOUR))]).await?;
    let mark = role.cancel(&place, "a", &CancelRequest::default()).await?;
    equal!(mark, Some(CancelMark::Asked), "of a task that was not seen to wait");
    let mark = role.mark(&place, "a", Duration::ZERO).await?;
    equal!(mark, None, "the mark of another task with this id");
    Ok(())
}
