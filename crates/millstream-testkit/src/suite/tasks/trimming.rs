//! Trimming of dead tasks: those that the retention of the queue does not keep are dropped, and none that was replayed.

use std::time::Duration;

use millstream_core::schedule::{Due, Place, Scheduling};
use millstream_core::tasks::{DeadTask, QueueChange, QueueSpec, TrimTasksBy, TrimmedTasks};
use millstream_core::{DeadLetterRetention, ErrorKind, MessageId, QueueName, Shard};

use super::super::schedule::{all, schedule, scheduling};
use super::{HOUR, QueueUnderTest, ask, dead, suite};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{Harness, large};

suite!("tasks":
    a_queue_keeps_its_retention_until_it_is_altered needs [TrimDeadTasks],
    a_retention_of_dead_tasks_that_keeps_nothing_is_refused needs [TrimDeadTasks],
    dead_tasks_that_are_kept_are_not_dropped needs [TrimDeadTasks],
    dead_tasks_that_are_too_old_are_dropped needs [TrimDeadTasks],
    dead_tasks_that_are_too_many_are_dropped needs [TrimDeadTasks],
    a_dead_task_is_dropped_for_its_age_first needs [TrimDeadTasks],
    only_the_dead_tasks_of_the_shard_are_dropped needs [TrimDeadTasks],
    a_dry_run_of_a_trim_of_tasks_drops_nothing needs [TrimDeadTasks],
    a_worker_that_comes_too_late_drops_nothing needs [TrimDeadTasks],
    a_dropped_task_is_gone_and_its_id_is_free needs [TrimDeadTasks, ListScheduled],
    of_replays_and_trims_at_once_one_has_each_task needs [TrimDeadTasks],
    many_dead_tasks_are_dropped needs [TrimDeadTasks],
    large_dead_tasks_are_dropped needs [TrimDeadTasks],
);

/// An age that passes while a case waits.
const YOUNG: Duration = Duration::from_millis(20);

impl QueueUnderTest {
    async fn trim(&self, retention: DeadLetterRetention) -> Result<TrimmedTasks, Violation> {
        self.trim_by(retention, TrimTasksBy::Operator).await
    }

    async fn trim_by(
        &self,
        retention: DeadLetterRetention,
        by: TrimTasksBy,
    ) -> Result<TrimmedTasks, Violation> {
        Ok(self.h.backend.tasks()?.trim_dead(&self.shard, retention, by).await?)
    }

    /// Trims as a worker until nothing is left to drop. Returns the number of dropped tasks.
    async fn trim_as_worker(&self, retention: DeadLetterRetention) -> Result<u64, Violation> {
        let mut dropped = 0;
        loop {
            let until = self.h.now().await?.saturating_add(HOUR);
            let trimmed = self.trim_by(retention, TrimTasksBy::Worker { until }).await?;
            dropped += trimmed.dropped();
            if !trimmed.more {
                return Ok(dropped);
            }
        }
    }

    /// Makes tasks dead, in this order.
    async fn bury(&self, tasks: Vec<Scheduling>) -> Verdict {
        let count = tasks.len();
        for some in tasks.chunks(10) {
            schedule(&self.h, some).await?;
        }
        for task in self.take(&ask("w", count), count).await? {
            self.settles(&task, dead(&task)).await?;
        }
        Ok(())
    }

    /// Makes tasks with these numbers dead, in this order.
    async fn bury_numbers(&self, numbers: std::ops::Range<usize>) -> Verdict {
        let numbered = |n: usize| scheduling(&self.place, format!("t{n:04}"), Due::NOW);
        self.bury(numbers.map(numbered).collect::<Result<_, _>>()?).await
    }

    /// Returns the dead tasks, of which there must be this many.
    async fn dead(&self, count: usize) -> Result<Vec<DeadTask>, Violation> {
        let (mut dead, mut after) = (Vec::new(), MessageId::ZERO);
        loop {
            let page = self.h.backend.tasks()?.dead_tasks(&self.shard, after, 1_000).await?;
            let Some(last) = page.last() else { break };
            after = last.id;
            dead.extend(page);
            // A backend that ignores the position would return the first page for ever.
            ensure!(dead.len() <= count, "{} dead tasks, expected {count}", dead.len());
        }
        equal!(dead.len(), count, "dead tasks");
        Ok(dead)
    }

    async fn ids(&self, count: usize) -> Result<Vec<MessageId>, Violation> {
        Ok(self.dead(count).await?.iter().map(|dead| dead.id).collect())
    }

    /// Waits until all present dead tasks are older than [`YOUNG`].
    async fn grow_old(&self, count: usize) -> Verdict {
        let last = self.ids(count).await?[count - 1];
        self.h.reaches(last.timestamp().saturating_add(YOUNG + YOUNG / 2)).await
    }
}

async fn a_queue_keeps_its_retention_until_it_is_altered(h: Harness) -> Verdict {
    let role = h.backend.tasks()?;
    let kept = DeadLetterRetention::age(HOUR).and_length(7);
    let spec = QueueSpec::new(QueueName::new(h.unique("queue"))?, 2);
    let change = QueueChange::new().dead_letter_retention(kept);
    refused(role.alter_queue(&spec.name, &change).await, ErrorKind::NotFound, "an unknown queue")?;
    refused(role.queue(&spec.name).await, ErrorKind::NotFound, "a queue that was altered only")?;
    let spec = spec.with_dead_letter_retention(kept);
    equal!(role.create_queue(&spec).await?, spec, "a new queue");
    let other = spec.clone().with_dead_letter_retention(DeadLetterRetention::KEEP);
    equal!(role.create_queue(&other).await?, spec, "created again with another retention");
    equal!(role.queue(&spec.name).await?, spec, "the queue as it is stored");
    equal!(role.alter_queue(&spec.name, &QueueChange::new()).await?, spec, "changed in nothing");
    for retention in [DeadLetterRetention::length(3), DeadLetterRetention::KEEP, kept] {
        let change = QueueChange::new().dead_letter_retention(retention);
        let altered = spec.clone().with_dead_letter_retention(retention);
        equal!(role.alter_queue(&spec.name, &change).await?, altered, "altered to {retention}");
        equal!(role.queue(&spec.name).await?, altered, "the queue after it was altered to {retention}");
    }
    // One that keeps all does not get the retention of a later call either.
    let keeps = QueueSpec::new(QueueName::new(h.unique("keeps"))?, 1);
    equal!(role.create_queue(&keeps).await?, keeps, "a new queue that keeps all");
    let other = keeps.clone().with_dead_letter_retention(kept);
    equal!(role.create_queue(&other).await?, keeps, "created again with a retention");
    Ok(())
}

async fn a_retention_of_dead_tasks_that_keeps_nothing_is_refused(h: Harness) -> Verdict {
    let role = h.backend.tasks()?;
    let spec = h.queue(1).await?;
    for nothing in [DeadLetterRetention::length(0), DeadLetterRetention::age(Duration::ZERO)] {
        let new = QueueSpec::new(QueueName::new(h.unique("none"))?, 1).with_dead_letter_retention(nothing);
        refused(role.create_queue(&new).await, ErrorKind::InvalidConfig, &format!("a queue with {nothing}"))?;
        let change = QueueChange::new().dead_letter_retention(nothing);
        let altered = role.alter_queue(&spec.name, &change).await;
        refused(altered, ErrorKind::InvalidConfig, &format!("a change to {nothing}"))?;
    }
    equal!(role.queue(&spec.name).await?, spec, "the queue as it is stored");
    Ok(())
}

async fn dead_tasks_that_are_kept_are_not_dropped(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    equal!(queue.trim(DeadLetterRetention::length(1)).await?, TrimmedTasks::default(), "dropped of none");
    queue.bury_numbers(0..5).await?;
    let ids = queue.ids(5).await?;
    queue.grow_old(5).await?;
    for retention in [
        DeadLetterRetention::KEEP,
        DeadLetterRetention::age(HOUR),
        DeadLetterRetention::length(5),
        DeadLetterRetention::age(Duration::MAX).and_length(u64::MAX),
    ] {
        equal!(queue.trim(retention).await?, TrimmedTasks::default(), "dropped under {retention}");
    }
    equal!(queue.ids(5).await?, ids, "what is dead, as ever");
    Ok(())
}

async fn dead_tasks_that_are_too_old_are_dropped(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.bury_numbers(0..3).await?;
    queue.grow_old(3).await?;
    equal!(queue.trim_as_worker(DeadLetterRetention::age(HOUR)).await?, 0, "dropped of what is young");
    queue.dead(3).await?;
    equal!(queue.trim_as_worker(DeadLetterRetention::age(YOUNG)).await?, 3, "dropped of what is old");
    queue.dead(0).await?;
    equal!(queue.trim_as_worker(DeadLetterRetention::age(YOUNG)).await?, 0, "dropped again");
    equal!(queue.counts().await?, Default::default(), "what is left");
    queue.nothing("what was dropped does not come back").await
}

async fn dead_tasks_that_are_too_many_are_dropped(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.bury_numbers(0..10).await?;
    let ids = queue.ids(10).await?;
    let four = DeadLetterRetention::length(4);
    equal!(queue.trim(four).await?, TrimmedTasks::new(0, 6), "beyond the newest four");
    equal!(queue.ids(4).await?, ids[6..], "the newest four");
    equal!(queue.trim(four).await?, TrimmedTasks::default(), "dropped again");
    queue.bury_numbers(10..11).await?;
    equal!(queue.trim_as_worker(four).await?, 1, "dropped for one that is new");
    equal!(queue.ids(4).await?[..3], ids[7..], "the newest four");
    Ok(())
}

async fn a_dead_task_is_dropped_for_its_age_first(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.bury_numbers(0..5).await?;
    let young = DeadLetterRetention::age(HOUR).and_length(3);
    equal!(queue.trim(young).await?, TrimmedTasks::new(0, 2), "dropped of what is young");
    queue.grow_old(3).await?;
    let old = DeadLetterRetention::age(YOUNG).and_length(2);
    equal!(queue.trim(old).await?, TrimmedTasks::new(3, 0), "dropped of what is old");
    Ok(())
}

async fn only_the_dead_tasks_of_the_shard_are_dropped(h: Harness) -> Verdict {
    let spec = h.queue(2).await?;
    let shards = spec.iter().map(|shard: Shard| QueueUnderTest {
        h: h.clone(),
        place: Place::from(shard.clone()),
        shard,
    });
    let shards: Vec<_> = shards.collect();
    for queue in &shards {
        queue.bury_numbers(0..3).await?;
    }
    equal!(shards[0].trim(DeadLetterRetention::length(1)).await?, TrimmedTasks::new(0, 2), "dropped");
    shards[0].dead(1).await?;
    shards[1].dead(3).await?;
    Ok(())
}

async fn a_dry_run_of_a_trim_of_tasks_drops_nothing(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.bury_numbers(0..8).await?;
    let ids = queue.ids(8).await?;
    queue.grow_old(8).await?;
    for (retention, expected) in [
        (DeadLetterRetention::length(3), TrimmedTasks::new(0, 5)),
        (DeadLetterRetention::age(HOUR).and_length(6), TrimmedTasks::new(0, 2)),
        (DeadLetterRetention::age(YOUNG).and_length(6), TrimmedTasks::new(8, 0)),
    ] {
        let would = queue.trim_by(retention, TrimTasksBy::DryRun).await?;
        equal!(would, expected, "what a dry run counts under {retention}");
        equal!(queue.ids(8).await?, ids, "what is dead, as ever");
    }
    equal!(queue.trim(DeadLetterRetention::length(3)).await?, TrimmedTasks::new(0, 5), "dropped");
    Ok(())
}

/// It may have read its retention before somebody changed it.
async fn a_worker_that_comes_too_late_drops_nothing(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.bury_numbers(0..3).await?;
    let until = queue.h.now().await?;
    queue.h.reaches(until.saturating_add(Duration::from_millis(2))).await?;
    let one = DeadLetterRetention::length(1);
    let role = queue.h.backend.tasks()?;
    let late = role.trim_dead(&queue.shard, one, TrimTasksBy::Worker { until }).await;
    refused(late, ErrorKind::Fenced, "a trim after its time")?;
    queue.dead(3).await?;
    equal!(queue.trim_as_worker(one).await?, 2, "dropped in time");
    Ok(())
}

async fn a_dropped_task_is_gone_and_its_id_is_free(h: Harness) -> Verdict {
    let queue = QueueUnderTest::new(h).await?;
    queue.bury_numbers(0..3).await?;
    let ids = queue.ids(3).await?;
    equal!(queue.trim(DeadLetterRetention::length(1)).await?.excess, 2, "dropped");
    let role = queue.h.backend.tasks()?;
    equal!(role.replay_tasks(&queue.shard, &ids).await?, 1, "replayed of what was listed before");
    equal!(all(&queue.h, &queue.place).await?, ["t0002"], "what waits");
    equal!(queue.trim(DeadLetterRetention::length(1)).await?, TrimmedTasks::default(), "dropped of a replay");
    queue.place([("t0000", Due::NOW)]).await?;
    equal!(queue.take(&ask("w", 2), 2).await?.len(), 2, "tasks to work on");
    Ok(())
}

/// Both are one step: what was replayed is not dropped, and what was dropped is not replayed.
async fn of_replays_and_trims_at_once_one_has_each_task(h: Harness) -> Verdict {
    const COUNT: usize = 60;
    let queue = QueueUnderTest::new(h).await?;
    queue.bury_numbers(0..COUNT).await?;
    let ids = queue.ids(COUNT).await?;
    let (h, shard) = (queue.h.clone(), queue.shard.clone());
    let replays = tokio::spawn(async move {
        let mut replayed = 0;
        for some in ids.chunks(3) {
            replayed += h.backend.tasks()?.replay_tasks(&shard, some).await?;
            tokio::task::yield_now().await;
        }
        Ok::<_, Violation>(replayed)
    });
    let mut dropped = 0;
    for most in (1..=COUNT as u64).rev().step_by(4) {
        dropped += queue.trim_as_worker(DeadLetterRetention::length(most)).await?;
    }
    let replayed = replays.await.map_err(|error| Violation::new(error.to_string()))??;
    let left = usize::try_from(queue.counts().await?.dead).unwrap_or(usize::MAX);
    let sum = replayed + left + usize::try_from(dropped).unwrap_or(usize::MAX);
    equal!(sum, COUNT, "{replayed} replayed, {dropped} dropped, {left} left: together");
    equal!(queue.counts().await?.waiting.total, replayed as u64, "tasks that wait");
    Ok(())
}

/// More than a node of a stream, or one call of a script, has.
async fn many_dead_tasks_are_dropped(h: Harness) -> Verdict {
    const COUNT: usize = 270;
    let queue = QueueUnderTest::new(h).await?;
    for from in (0..COUNT).step_by(90) {
        queue.bury_numbers(from..from + 90).await?;
    }
    let ids = queue.ids(COUNT).await?;
    queue.grow_old(COUNT).await?;
    queue.bury_numbers(COUNT..COUNT + 5).await?;
    let all = queue.ids(COUNT + 5).await?;
    // Between two ages a node is dropped in part.
    let half = ids[COUNT / 2].timestamp();
    let now = queue.h.now().await?;
    let old = DeadLetterRetention::age(now.saturating_duration_since(half)).and_length(140);
    let would = queue.trim_by(old, TrimTasksBy::DryRun).await?;
    let trimmed = queue.trim(old).await?;
    ensure!(trimmed.dropped() >= 135, "{trimmed:?} dropped of {COUNT} and 5, at most 140 stay");
    ensure!(would.dropped() <= trimmed.dropped(), "{would:?} before, {trimmed:?} later");
    let dropped = usize::try_from(trimmed.dropped()).unwrap_or(usize::MAX).min(all.len());
    let stay = queue.ids(all.len() - dropped).await?;
    equal!(stay, all[dropped..], "what stays");
    let excess = stay.len().saturating_sub(3);
    let three = DeadLetterRetention::length(3);
    equal!(queue.trim_as_worker(three).await?, excess as u64, "dropped by number");
    equal!(queue.ids(stay.len() - excess).await?, stay[excess..], "what is left");
    Ok(())
}

async fn large_dead_tasks_are_dropped(h: Harness) -> Verdict {
    const COUNT: usize = 14;
    let queue = QueueUnderTest::new(h).await?;
    for n in 0..COUNT {
        let task = scheduling(&queue.place, format!("large {n}"), Due::NOW)?;
        queue.bury(vec![Scheduling { fields: large(n), ..task }]).await?;
    }
    let ids = queue.ids(COUNT).await?;
    queue.grow_old(COUNT).await?;
    let old = DeadLetterRetention::age(YOUNG).and_length(12);
    equal!(queue.trim_by(old, TrimTasksBy::DryRun).await?, TrimmedTasks::new(COUNT as u64, 0), "too old");
    equal!(queue.trim_as_worker(DeadLetterRetention::length(12)).await?, 2, "dropped by number");
    equal!(queue.ids(12).await?, ids[2..], "what is left");
    equal!(queue.trim_as_worker(DeadLetterRetention::age(YOUNG)).await?, 12, "dropped by age");
    queue.dead(0).await?;
    Ok(())
}
