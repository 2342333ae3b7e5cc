//! Steps of tasks: stored under the claim, and gone with the task.

use std::time::Duration;

use millstream_core::cancels::{CancelRequest, WorkPlace};
use millstream_core::log::ProgressRight;
use millstream_core::schedule::{Due, OnConflict, Scheduling};
use millstream_core::steps::{Signalled, StepKind, StepRecord, StepWait, WorkId};
use millstream_core::tasks::{ClaimRequest, ClaimedTask, DeadTask, Verdict as Says};
use millstream_core::{ErrorKind, MessageId};

use super::super::cancels::{self, removes};
use super::super::schedule::{id, outcomes, scheduling};
use super::super::steps::{expect, in_header, names, role, signal, step, steps, time_of, without_header};
use super::{HOUR, QueueUnderTest, ask, body, dead, retry, snooze, suite};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{Harness, LONG, QUIET};

suite!("tasks":
    steps_are_stored_under_the_claim needs [Steps],
    a_signal_ends_the_wait_of_a_task needs [Steps],
    a_wait_of_a_task_is_noted_once needs [Steps],
    a_signal_for_a_task_counts_once_and_in_time needs [Steps],
    a_dead_task_has_its_steps_in_a_header needs [Steps],
    what_crashes_too_often_has_its_steps_in_a_header needs [Steps],
    the_steps_of_a_task_leave_with_it needs [Steps],
    a_cancelled_task_leaves_no_steps needs [Steps, Cancels],
    another_task_with_the_id_has_no_steps needs [Steps],
    steps_of_tasks_leave_with_their_queue needs [Steps, DeleteQueue],
);

fn work(queue: &QueueUnderTest, task: &str) -> WorkId {
    WorkId::new(WorkPlace::Shard(queue.shard.clone()), task)
}

fn right(queue: &QueueUnderTest, task: &ClaimedTask) -> ProgressRight {
    ProgressRight::Worker { shard: queue.shard.clone(), task: task.id.clone(), token: task.token.clone() }
}

async fn store(queue: &QueueUnderTest, task: &ClaimedTask, records: &[StepRecord]) -> Verdict {
    Ok(role(&queue.h)?.store(&right(queue, task), task.id.as_str(), records).await?)
}

/// Returns a verdict that hands a task back for a wait.
fn waits(task: &ClaimedTask, after: Duration, wait: StepWait) -> Says {
    let history = task.history.clone();
    let (due, error, wait) = (Due::In(after), String::new(), Some(Box::new(wait)));
    Says::Retry { due, attempt: task.attempt, error, history, wait }
}

async fn listed(queue: &QueueUnderTest) -> Result<Vec<DeadTask>, Violation> {
    Ok(queue.h.backend.tasks()?.dead_tasks(&queue.shard, MessageId::ZERO, 10).await?)
}

async fn steps_are_stored_under_the_claim(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.place_due(["a", "b"]).await?;
    let tasks = queue.take(&ask("w", 2), 2).await?;
    let (a, b) = (work(&queue, "a"), work(&queue, "b"));
    expect(&queue.h, &a, &[], "of what has none").await?;
    store(&queue, &tasks[0], &[step("one", "1")]).await?;
    expect(&queue.h, &a, &[step("one", "1")], "of a task").await?;
    expect(&queue.h, &b, &[], "of another task").await?;
    let foreign = ClaimedTask { token: "made up".into(), ..tasks[0].clone() };
    let refusal = role(&queue.h)?.store(&right(&queue, &foreign), "a", &[step("two", "2")]).await;
    refused(refusal, ErrorKind::Fenced, "steps under another token")?;
    queue.settles(&tasks[0], snooze(&tasks[0])).await?;
    let refusal = role(&queue.h)?.store(&right(&queue, &tasks[0]), "a", &[step("two", "2")]).await;
    refused(refusal, ErrorKind::Fenced, "steps of a claim that has ended")?;
    expect(&queue.h, &a, &[step("one", "1")], "behind that").await?;
    let again = queue.take_one(&ask("w", 1)).await?;
    store(&queue, &again, &[step("one", "3"), step("two", "2")]).await?;
    expect(&queue.h, &a, &[step("one", "1"), step("two", "2")], "of two claims").await
}

async fn a_signal_ends_the_wait_of_a_task(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.place_due(["a"]).await?;
    let task = queue.take_one(&ask("w", 1)).await?;
    queue.settles(&task, waits(&task, HOUR, StepWait::signal("it"))).await?;
    queue.nothing("it waits").await?;
    let (id, role) = (work(&queue, "a"), queue.h.backend.tasks()?);
    equal!(signal(&queue.h, &id, "other", "").await?, Signalled::Stored, "a signal of another name");
    queue.nothing("it waits for another signal").await?;
    // One call may be left of before.
    role.wait(&queue.shard, Duration::ZERO).await?;
    let called = queue.h.soon("a call", role.wait(&queue.shard, LONG));
    let signals = async {
        tokio::time::sleep(QUIET).await;
        signal(&queue.h, &id, "it", "yes").await
    };
    let (called, signalled) = tokio::join!(called, signals);
    equal!((called?, signalled?), (true, Signalled::Woken), "a call, and the signal");
    queue.take_one(&ask("w", 1)).await?;
    let found = steps(&queue.h, &id).await?.pop().map(|it| (it.kind, it.value));
    equal!(found, Some((StepKind::Signal, "yes".into())), "what its handler finds");
    Ok(())
}

async fn a_wait_of_a_task_is_noted_once(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.place_due(["a"]).await?;
    let first = queue.take_one(&ask("w", 1)).await?;
    let id = work(&queue, "a");
    queue.settles(&first, waits(&first, QUIET, StepWait::sleep("nap"))).await?;
    let ends = time_of(&queue.h, &id, StepKind::Wait, "nap").await?;
    let second = queue.take_one(&ask("w", 1)).await?;
    let came = queue.h.now().await?;
    ensure!(came >= ends, "it came at {came}, the wait ends at {ends}");
    queue.settles(&second, waits(&second, HOUR, StepWait::sleep("nap"))).await?;
    let third = queue.take_one(&ask("w", 1)).await?;
    equal!(time_of(&queue.h, &id, StepKind::Wait, "nap").await?, ends, "the end that is noted");
    // A signal that came before ends a wait for it, and no sleep.
    for name in ["sleep", "wait"] {
        equal!(signal(&queue.h, &id, name, "").await?, Signalled::Stored, "a signal before the wait");
    }
    queue.settles(&third, waits(&third, HOUR, StepWait::signal("wait"))).await?;
    let fourth = queue.take_one(&ask("w", 1)).await?;
    queue.settles(&fourth, waits(&fourth, HOUR, StepWait::sleep("sleep"))).await?;
    queue.nothing("it sleeps").await
}

async fn a_signal_for_a_task_counts_once_and_in_time(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    let id = work(&queue, "a");
    equal!(signal(&queue.h, &id, "it", "").await?, Signalled::Gone, "a task that is not there");
    queue.place([("a", Due::In(HOUR))]).await?;
    equal!(signal(&queue.h, &id, "early", "1").await?, Signalled::Stored, "a task that waits to be due");
    equal!(signal(&queue.h, &id, "early", "2").await?, Signalled::Known, "again");
    queue.nothing("its time has not come").await?;
    queue.place_due(["b"]).await?;
    let task = queue.take_one(&ask("w", 1)).await?;
    let b = work(&queue, "b");
    queue.settles(&task, waits(&task, QUIET, StepWait::signal("it"))).await?;
    queue.h.reaches(time_of(&queue.h, &b, StepKind::Wait, "it").await?).await?;
    equal!(signal(&queue.h, &b, "it", "").await?, Signalled::Late, "behind the wait");
    let task = queue.take_one(&ask("w", 1)).await?;
    equal!(signal(&queue.h, &b, "it", "").await?, Signalled::Late, "while it is handled");
    equal!(signal(&queue.h, &b, "other", "").await?, Signalled::Stored, "another one while it is handled");
    let expected = [(StepKind::Wait, "it".to_owned()), (StepKind::Signal, "other".to_owned())];
    equal!(names(&queue.h, &b).await?, expected, "what is stored");
    queue.settles(&task, Says::Complete).await?;
    equal!(signal(&queue.h, &b, "other", "").await?, Signalled::Gone, "a task that is done");
    equal!(names(&queue.h, &b).await?, [], "what is stored of that");
    Ok(())
}

async fn a_dead_task_has_its_steps_in_a_header(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.place_due(["a", "b"]).await?;
    let tasks = queue.take(&ask("w", 2), 2).await?;
    let id = work(&queue, "a");
    store(&queue, &tasks[0], &[step("one", "1")]).await?;
    expect(&queue.h, &id, &[step("one", "1")], "of a task").await?;
    for task in &tasks {
        queue.settles(task, dead(task)).await?;
    }
    let found = listed(&queue).await?;
    equal!(found.len(), 2, "dead tasks");
    equal!(in_header(&found[0].body)?, [step("one", "1")], "the steps of a dead task");
    equal!(without_header(&found[0].body), body("a"), "the rest of its body");
    equal!(found[1].body, body("b"), "the body of one without steps");
    expect(&queue.h, &id, &[], "of what is dead").await?;
    // Replayed, it finds them in the header, and dies with what comes since too.
    queue.h.backend.tasks()?.replay_tasks(&queue.shard, &[found[0].id]).await?;
    let again = queue.take_one(&ask("w", 1)).await?;
    equal!(in_header(&again.fields)?, [step("one", "1")], "what its handler finds in the header");
    expect(&queue.h, &id, &[], "of what was replayed").await?;
    store(&queue, &again, &[step("two", "2")]).await?;
    queue.settles(&again, dead(&again)).await?;
    let found = listed(&queue).await?;
    equal!(in_header(&found[1].body)?, [step("one", "1"), step("two", "2")], "the steps of both");
    Ok(())
}

async fn what_crashes_too_often_has_its_steps_in_a_header(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.place_due(["a"]).await?;
    let hold = Duration::from_millis(20);
    let limited = ClaimRequest { hold, crash_limit: 1, ..ask("w", 1) };
    let task = queue.take_one(&ClaimRequest { hold: LONG, ..limited.clone() }).await?;
    let id = work(&queue, "a");
    store(&queue, &task, &[step("one", "1")]).await?;
    expect(&queue.h, &id, &[step("one", "1")], "of a task").await?;
    queue.begins(&task, hold).await?;
    let mut deadline = queue.h.wait_for("what crashes to be given up");
    while queue.claim(&limited).await?.crashed == 0 {
        deadline.pause().await?;
    }
    let found = listed(&queue).await?;
    equal!(found.len(), 1, "dead tasks");
    equal!(in_header(&found[0].body)?, [step("one", "1")], "the steps of what crashed");
    equal!(without_header(&found[0].body), body("a"), "the rest of its body");
    expect(&queue.h, &id, &[], "of what is dead").await
}

async fn the_steps_of_a_task_leave_with_it(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    let names = ["complete", "window", "waits", "stays"];
    queue.place_due(names).await?;
    let tasks = queue.take(&ask("w", 4), 4).await?;
    for (task, name) in tasks.iter().zip(names) {
        equal!(task.id.as_str(), name, "the task");
        store(&queue, task, &[step("one", "1")]).await?;
        expect(&queue.h, &work(&queue, name), &[step("one", "1")], name).await?;
    }
    queue.settles(&tasks[0], Says::Complete).await?;
    queue.settles(&tasks[1], Says::CompleteFor(LONG)).await?;
    queue.settles(&tasks[2], retry(&tasks[2], Due::In(HOUR))).await?;
    expect(&queue.h, &work(&queue, "waits"), &[step("one", "1")], "of a task that waits").await?;
    let removed = queue.h.backend.schedule().cancel(&queue.place, &[id("waits")?, id("nothing")?]).await?;
    equal!(removed, [true, false], "tasks that were removed");
    for name in ["complete", "window", "waits"] {
        expect(&queue.h, &work(&queue, name), &[], name).await?;
    }
    expect(&queue.h, &work(&queue, "stays"), &[step("one", "1")], "of a task that is handled still").await
}

async fn a_cancelled_task_leaves_no_steps(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    let (role, place) = (cancels::role(&queue.h)?, WorkPlace::Shard(queue.shard.clone()));
    queue.place_due(["waits", "claimed"]).await?;
    let tasks = queue.take(&ask("w", 2), 2).await?;
    for task in &tasks {
        store(&queue, task, &[step("one", "1")]).await?;
        expect(&queue.h, &work(&queue, task.id.as_str()), &[step("one", "1")], "of a task").await?;
    }
    queue.settles(&tasks[0], waits(&tasks[0], HOUR, StepWait::sleep("nap"))).await?;
    role.cancel(&place, "waits", &removes(None)).await?;
    expect(&queue.h, &work(&queue, "waits"), &[], "of a task that waited").await?;
    let claimed = work(&queue, "claimed");
    role.cancel(&place, "claimed", &CancelRequest::default()).await?;
    expect(&queue.h, &claimed, &[step("one", "1")], "of a task that may run").await?;
    let stopped = millstream_core::cancels::CancelMark::Stopped;
    role.answer(&right(&queue, &tasks[1]), "claimed", stopped, None).await?;
    expect(&queue.h, &claimed, &[], "of a task that has stopped").await
}

async fn another_task_with_the_id_has_no_steps(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    let id = work(&queue, "a");
    // Never claimed: it has a signal alone.
    queue.place([("a", Due::In(HOUR))]).await?;
    equal!(signal(&queue.h, &id, "it", "").await?, Signalled::Stored, "a signal");
    equal!(names(&queue.h, &id).await?.len(), 1, "steps of a task that was never claimed");
    let replaces =
        |due, on_conflict| scheduling(&queue.place, "a", due).map(|task| Scheduling { on_conflict, ..task });
    let schedule = queue.h.backend.schedule();
    outcomes(schedule.schedule(&[replaces(Due::NOW, OnConflict::Keep)?]).await);
    equal!(names(&queue.h, &id).await?.len(), 1, "steps of a task that was kept");
    outcomes(schedule.schedule(&[replaces(Due::NOW, OnConflict::Replace)?]).await);
    equal!(names(&queue.h, &id).await?, [], "steps of a task in place of one that was never claimed");
    let task = queue.take_one(&ask("w", 1)).await?;
    store(&queue, &task, &[step("one", "1")]).await?;
    queue.settles(&task, waits(&task, HOUR, StepWait::sleep("nap"))).await?;
    equal!(names(&queue.h, &id).await?.len(), 2, "steps of a task that sleeps");
    outcomes(schedule.schedule(&[replaces(Due::NOW, OnConflict::Replace)?]).await);
    equal!(names(&queue.h, &id).await?, [], "steps of a task in place of one that sleeps");
    let task = queue.take_one(&ask("w", 1)).await?;
    store(&queue, &task, &[step("two", "2")]).await?;
    expect(&queue.h, &id, &[step("two", "2")], "of the task in its place").await?;
    queue.settles(&task, Says::Complete).await?;
    queue.place_due(["a"]).await?;
    expect(&queue.h, &id, &[], "of a new task with an id that was used").await?;
    let task = queue.take_one(&ask("w", 1)).await?;
    queue.settles(&task, waits(&task, Duration::ZERO, StepWait::sleep("nap"))).await?;
    queue.take_one(&ask("w", 1)).await.map(drop)
}

async fn steps_of_tasks_leave_with_their_queue(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.place_due(["a"]).await?;
    let task = queue.take_one(&ask("w", 1)).await?;
    store(&queue, &task, &[step("one", "1")]).await?;
    expect(&queue.h, &work(&queue, "a"), &[step("one", "1")], "of a task").await?;
    queue.h.backend.tasks()?.delete_queue(&queue.shard.queue).await?;
    expect(&queue.h, &work(&queue, "a"), &[], "of a queue that is deleted").await
}
