//! Dead tasks: listed, replayed, purged.

use std::time::Duration;

use millstream_core::schedule::{Due, Scheduling};
use millstream_core::tasks::{DeadTask, Verdict as Says};
use millstream_core::{MessageId, Reason, Timestamp};

use super::super::schedule::{all, schedule, scheduling, shown};
use super::{HOUR, QueueUnderTest, ask, body, dead, failure, names, retry, suite, told};
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, foreign};

suite!("tasks":
    a_task_that_is_given_up_is_kept_with_its_story,
    dead_tasks_are_listed_oldest_first_page_by_page,
    a_replayed_task_is_due_at_once_and_as_new needs [ListScheduled],
    each_dead_task_is_replayed_once,
    a_dead_task_whose_id_is_in_use_stays_dead needs [ListScheduled],
    a_purged_task_is_gone,
    all_are_purged_at_once,
);

async fn listed(queue_under_test: &QueueUnderTest) -> Result<Vec<DeadTask>, Violation> {
    Ok(queue_under_test
        .h
        .backend
        .tasks()?
        .dead_tasks(&queue_under_test.shard, MessageId::ZERO, 1_000)
        .await?)
}

fn tasks(dead: &[DeadTask]) -> Vec<&str> {
    dead.iter().map(|dead| dead.task.as_str()).collect()
}

fn ids(dead: &[DeadTask]) -> Vec<MessageId> {
    dead.iter().map(|dead| dead.id).collect()
}

/// Makes tasks dead, one after the other.
async fn die<const N: usize>(
    queue_under_test: &QueueUnderTest,
    names: [&str; N],
) -> Result<Vec<DeadTask>, Violation> {
    queue_under_test.place_due(names).await?;
    for task in queue_under_test.take(&ask("w", N), N).await? {
        queue_under_test.settles(&task, dead(&task)).await?;
    }
    let dead = listed(queue_under_test).await?;
    equal!(dead.len(), N, "dead tasks");
    Ok(dead)
}

async fn a_task_that_is_given_up_is_kept_with_its_story(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let task = Scheduling {
        fields: foreign(),
        ..scheduling(&queue_under_test.place, "a", Due::At(Timestamp::from_millis(1)))?
    };
    schedule(&queue_under_test.h, &[task]).await?;
    let first = queue_under_test.take_one(&ask("w", 1)).await?;
    queue_under_test.settles(&first, retry(&first, Due::NOW)).await?;
    let second = queue_under_test.take_one(&ask("w", 1)).await?;
    let before = queue_under_test.h.now().await?;
    let says = Says::Dead {
        reason: Reason::Rejected,
        attempts: 2,
        error: failure(2),
        history: second.history.clone(),
        result: None,
    };
    queue_under_test.settles(&second, says).await?;
    let after = queue_under_test.h.now().await?;
    let dead = listed(&queue_under_test).await?;
    equal!(tasks(&dead), ["a"], "dead tasks");
    let dead = &dead[0];
    ensure!(
        (before..=after).contains(&dead.id.timestamp()),
        "died at {}, not in {before}..{after}",
        dead.id.timestamp()
    );
    equal!(dead.shard, queue_under_test.shard, "its shard");
    equal!((&dead.reason, dead.attempts), (&Reason::Rejected, 2), "reason and attempts");
    equal!(dead.error, failure(2), "the last error");
    equal!(told(&dead.history), [(1, failure(1)), (2, failure(2))], "what all attempts failed with");
    equal!(dead.body, foreign(), "the body");
    queue_under_test.nothing("it is dead").await?;
    // Its id is free.
    queue_under_test.place_due(["a"]).await
}

async fn dead_tasks_are_listed_oldest_first_page_by_page(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let order = ["e", "b", "d", "a", "c"];
    equal!(tasks(&die(&queue_under_test, order).await?), order, "dead tasks in one page");
    for limit in [1, 2, 5, 1_000_000] {
        let (mut seen, mut after) = (Vec::new(), MessageId::ZERO);
        loop {
            let page =
                queue_under_test.h.backend.tasks()?.dead_tasks(&queue_under_test.shard, after, limit).await?;
            ensure!(page.len() <= limit, "a page of {}, {limit} were asked for", page.len());
            let Some(last) = page.last() else { break };
            after = last.id;
            seen.extend(page.iter().map(|dead| dead.task.to_string()));
            ensure!(seen.len() <= order.len(), "{limit} a page, there is no end: {seen:?}");
        }
        equal!(seen, order, "all, {limit} a page");
    }
    Ok(())
}

async fn a_replayed_task_is_due_at_once_and_as_new(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let dead = die(&queue_under_test, ["a", "b"]).await?;
    let replayed =
        queue_under_test.h.backend.tasks()?.replay_tasks(&queue_under_test.shard, &ids(&dead)[..1]).await?;
    equal!(replayed, 1, "tasks that were replayed");
    equal!(tasks(&listed(&queue_under_test).await?), ["b"], "what is dead still");
    let due = shown(&queue_under_test.h, &queue_under_test.place, "a").await?.due;
    let now = queue_under_test.h.now().await?;
    ensure!(due <= now.saturating_add(Duration::from_millis(1)), "due at {due}, replayed before {now}");
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!((task.id.as_str(), task.attempt, task.crashes), ("a", 1, 0), "id, attempt and crashes");
    equal!((task.error.as_str(), told(&task.history)), ("", Vec::new()), "errors of a first attempt");
    equal!(task.fields, body("a"), "the fields");
    queue_under_test.settles(&task, Says::Complete).await?;
    let replayed =
        queue_under_test.h.backend.tasks()?.replay_tasks(&queue_under_test.shard, &ids(&dead)[..1]).await?;
    equal!(replayed, 0, "replayed twice");
    queue_under_test.nothing("it is done").await
}

async fn each_dead_task_is_replayed_once(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let dead = die(&queue_under_test, ["a", "b", "c", "d", "e", "f", "g", "h"]).await?;
    let replayers = [(); 3].map(|()| {
        let (h, shard, ids) = (queue_under_test.h.clone(), queue_under_test.shard.clone(), ids(&dead));
        tokio::spawn(async move {
            let mut replayed = 0;
            for pair in ids.chunks(2) {
                replayed += h.backend.tasks()?.replay_tasks(&shard, pair).await?;
                tokio::task::yield_now().await;
            }
            Ok::<_, Violation>(replayed)
        })
    });
    let mut replayed = 0;
    for replayer in replayers {
        replayed += replayer.await.map_err(|error| Violation::new(error.to_string()))??;
    }
    equal!(replayed, 8, "tasks that somebody replayed");
    queue_under_test.take(&ask("w", 8), 8).await?;
    queue_under_test.nothing("each came once").await?;
    equal!(listed(&queue_under_test).await?.len(), 0, "dead tasks");
    Ok(())
}

async fn a_dead_task_whose_id_is_in_use_stays_dead(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let dead = die(&queue_under_test, ["waits", "claimed", "free"]).await?;
    queue_under_test.place_due(["claimed"]).await?;
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    let other =
        Scheduling { fields: body("other"), ..scheduling(&queue_under_test.place, "waits", Due::In(HOUR))? };
    schedule(&queue_under_test.h, &[other]).await?;
    let replayed =
        queue_under_test.h.backend.tasks()?.replay_tasks(&queue_under_test.shard, &ids(&dead)).await?;
    equal!(replayed, 1, "replayed of three, two of whose ids are in use");
    equal!(tasks(&listed(&queue_under_test).await?), ["waits", "claimed"], "what is dead still");
    equal!(
        shown(&queue_under_test.h, &queue_under_test.place, "waits").await?.fields,
        body("other"),
        "what waited before"
    );
    equal!(all(&queue_under_test.h, &queue_under_test.place).await?, ["free", "waits"], "what waits");
    queue_under_test.settles(&task, Says::Complete).await?;
    let replayed =
        queue_under_test.h.backend.tasks()?.replay_tasks(&queue_under_test.shard, &ids(&dead)).await?;
    equal!(replayed, 1, "replayed when one id is free again");
    let mut came = queue_under_test.take(&ask("w", 2), 2).await?;
    came.sort_by(|a, b| a.id.cmp(&b.id));
    equal!(names(&came), ["claimed", "free"], "claimed");
    Ok(())
}

async fn a_purged_task_is_gone(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let dead = die(&queue_under_test, ["a", "b", "c"]).await?;
    let some = [dead[0].id, dead[2].id];
    equal!(
        queue_under_test.h.backend.tasks()?.purge_tasks(&queue_under_test.shard, &some).await?,
        2,
        "tasks that were purged"
    );
    equal!(tasks(&listed(&queue_under_test).await?), ["b"], "what is dead still");
    equal!(
        queue_under_test.h.backend.tasks()?.purge_tasks(&queue_under_test.shard, &some).await?,
        0,
        "purged twice"
    );
    equal!(
        queue_under_test.h.backend.tasks()?.replay_tasks(&queue_under_test.shard, &some).await?,
        0,
        "replayed after they were purged"
    );
    equal!(queue_under_test.counts().await?.dead, 1, "dead tasks, counted");
    queue_under_test.nothing("nothing was replayed").await
}

async fn all_are_purged_at_once(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    equal!(
        queue_under_test.h.backend.tasks()?.purge_all(&queue_under_test.shard).await?,
        0,
        "purged where nothing is dead"
    );
    die(&queue_under_test, ["a", "b", "c"]).await?;
    equal!(
        queue_under_test.h.backend.tasks()?.purge_all(&queue_under_test.shard).await?,
        3,
        "tasks that were purged"
    );
    equal!(tasks(&listed(&queue_under_test).await?), Vec::<&str>::new(), "what is dead still");
    equal!(queue_under_test.counts().await?, Default::default(), "what is left");
    equal!(queue_under_test.h.backend.tasks()?.purge_all(&queue_under_test.shard).await?, 0, "purged twice");
    Ok(())
}
