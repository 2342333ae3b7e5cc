//! Notes of tasks that are members of batches.

use std::time::Duration;

use millstream_core::batches::{BATCH_HEADER, BatchMember, MemberEnd};
use millstream_core::cancels::{CancelMark, CancelRequest, WorkPlace};
use millstream_core::log::ProgressRight;
use millstream_core::results::{MessageResult, StoredResult};
use millstream_core::schedule::Due;
use millstream_core::tasks::{ClaimRequest, ClaimedTask, Verdict as Says};

use super::super::batches::{expect_notes, member, noted};
use super::super::cancels::{cancelled, removes, role};
use super::super::schedule::{schedule, scheduling};
use super::{HOUR, QueueUnderTest, STALE, ask, dead, retry, suite};
use crate::case::{Verdict, Violation, equal};
use crate::harness::{Harness, LONG};

suite!("tasks":
    a_task_that_is_settled_leaves_its_note needs [Batches],
    what_crashes_too_often_leaves_its_note needs [Batches],
    a_task_that_is_cancelled_leaves_its_note needs [Batches, Cancels],
);

/// Returns places in a batch that need not exist.
async fn members<const N: usize>(h: &Harness) -> Result<[BatchMember; N], Violation> {
    let tp = h.partition().await?;
    Ok(std::array::from_fn(|at| member(&tp, u32::try_from(at).unwrap_or(u32::MAX))))
}

/// Returns what is stored with a task that was done.
fn done(member: &BatchMember) -> Box<StoredResult> {
    noted(member, MessageResult::Done)
}

fn given_up(task: &ClaimedTask, member: &BatchMember) -> Says {
    let mut says = dead(task);
    if let Says::Dead { result, .. } = &mut says {
        *result = Some(noted(member, MessageResult::failed("exhausted", 1, "")));
    }
    says
}

async fn a_task_that_is_settled_leaves_its_note(h: Harness) -> Verdict {
    let members = members::<4>(&h).await?;
    let queue = QueueUnderTest::new(h).await?;
    queue.place_due(["a", "b", "c", "d"]).await?;
    let tasks = queue.take(&ask("w", 4), 4).await?;
    let foreign = queue.settle_as(&tasks[0].id, "made up", given_up(&tasks[0], &members[0])).await?;
    equal!(foreign, STALE, "a verdict under another token");
    queue.settles(&tasks[3], retry(&tasks[3], Due::In(HOUR))).await?;
    expect_notes(&queue.h, &queue.place, &[], "of a stale verdict and a retry").await?;
    queue.settles(&tasks[0], Says::CompleteWith { window: None, result: done(&members[0]) }).await?;
    let stale = queue.settle(&tasks[0], given_up(&tasks[0], &members[3])).await?;
    equal!(stale, STALE, "a second verdict");
    queue.settles(&tasks[1], given_up(&tasks[1], &members[1])).await?;
    queue.settles(&tasks[2], Says::CompleteWith { window: Some(LONG), result: done(&members[2]) }).await?;
    let [first, second, third] = [MemberEnd::Done, MemberEnd::Dead, MemberEnd::Done];
    let expected = [(&members[0], first), (&members[1], second), (&members[2], third)];
    expect_notes(&queue.h, &queue.place, &expected, "of tasks that were settled").await
}

async fn what_crashes_too_often_leaves_its_note(h: Harness) -> Verdict {
    let [member] = members::<1>(&h).await?;
    let queue = QueueUnderTest::new(h).await?;
    let mut tasks = Vec::new();
    for id in ["a", "b"] {
        let mut task = scheduling(&queue.place, id, Due::NOW)?;
        if id == "a" {
            task.fields.push((format!("h:{BATCH_HEADER}").into(), member.to_string().into()));
        }
        tasks.push(task);
    }
    schedule(&queue.h, &tasks).await?;
    let hold = Duration::from_millis(20);
    let limited = ClaimRequest { hold, crash_limit: 1, ..ask("w", 2) };
    let taken = queue.take(&ClaimRequest { hold: LONG, ..limited.clone() }, 2).await?;
    for task in &taken {
        queue.begins(task, hold).await?;
    }
    expect_notes(&queue.h, &queue.place, &[], "of what may still be handled").await?;
    let mut deadline = queue.h.wait_for("what crashes to be given up");
    let mut crashed = 0;
    while crashed < 2 {
        crashed += queue.claim(&limited).await?.crashed;
        deadline.pause().await?;
    }
    let expected = [(&member, MemberEnd::Dead)];
    expect_notes(&queue.h, &queue.place, &expected, "of what crashed, one of it no member").await
}

async fn a_task_that_is_cancelled_leaves_its_note(h: Harness) -> Verdict {
    let members = members::<2>(&h).await?;
    let queue = QueueUnderTest::new(h).await?;
    let (role, place) = (role(&queue.h)?, WorkPlace::Shard(queue.shard.clone()));
    queue.place([("waits", Due::In(HOUR)), ("claimed", Due::NOW)]).await?;
    let request = |at: usize| removes(Some(*noted(&members[at], cancelled())));
    let mark = role.cancel(&place, "waits", &request(0)).await?;
    equal!(mark, Some(CancelMark::Cancelled), "a task that waits");
    let waits = (&members[0], MemberEnd::Dead);
    expect_notes(&queue.h, &queue.place, &[waits], "of a task that waited").await?;
    let task = queue.take_one(&ask("w", 1)).await?;
    role.cancel(&place, "claimed", &CancelRequest::default()).await?;
    expect_notes(&queue.h, &queue.place, &[waits], "of a task that may run").await?;
    let right = |token: &str| ProgressRight::Worker {
        shard: queue.shard.clone(),
        task: task.id.clone(),
        token: token.to_owned(),
    };
    let result = noted(&members[1], cancelled());
    let refused = role.answer(&right("made up"), "claimed", CancelMark::Stopped, Some(&result)).await;
    equal!(refused.is_err(), true, "whether an answer under another token is refused");
    expect_notes(&queue.h, &queue.place, &[waits], "of an answer under another token").await?;
    role.answer(&right(&task.token), "claimed", CancelMark::Stopped, Some(&result)).await?;
    let claimed = (&members[1], MemberEnd::Dead);
    expect_notes(&queue.h, &queue.place, &[waits, claimed], "of who had it").await
}
