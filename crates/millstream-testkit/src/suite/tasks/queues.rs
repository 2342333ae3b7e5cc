//! Queues and their shards.

use millstream_core::schedule::{Due, Place, Placed, Waiting};
use millstream_core::tasks::{MAX_SHARDS, QueueSpec, TaskCounts, Verdict as Says};
use millstream_core::{ErrorKind, QueueName, Timestamp};

use super::super::schedule::{all, schedule, scheduling};
use super::{HOUR, QueueUnderTest, ask, body, dead, names, place_all, suite};
use crate::case::{Verdict, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG};

suite!("tasks":
    the_first_to_create_a_queue_wins,
    a_queue_has_a_sensible_number_of_shards,
    an_unknown_queue_is_not_found,
    queues_are_listed_in_order,
    shards_do_not_mix,
    a_shard_is_counted needs [ListScheduled],
    a_deleted_queue_is_gone_with_all_its_tasks needs [DeleteQueue, ListScheduled],
);

async fn the_first_to_create_a_queue_wins(h: Harness) -> Verdict {
    let first = QueueSpec::new(QueueName::new(h.unique("queue"))?, 3);
    equal!(h.backend.tasks()?.create_queue(&first).await?, first, "a new queue");
    for shards in [5, 1] {
        let again = QueueSpec { shards, ..first.clone() };
        equal!(h.backend.tasks()?.create_queue(&again).await?, first, "created again with {shards} shards");
    }
    equal!(h.backend.tasks()?.queue(&first.name).await?, first, "the queue as it is stored");
    for step in [".", ".."] {
        let created = h.backend.tasks()?.create_queue(&QueueSpec::new(QueueName::new(step)?, 1)).await;
        refused(created, ErrorKind::InvalidName, &format!("a new queue {step}"))?;
    }
    Ok(())
}

async fn a_queue_has_a_sensible_number_of_shards(h: Harness) -> Verdict {
    for shards in [0, MAX_SHARDS + 1, u32::MAX] {
        let spec = QueueSpec::new(QueueName::new(h.unique("queue"))?, shards);
        let created = h.backend.tasks()?.create_queue(&spec).await;
        refused(created, ErrorKind::InvalidConfig, &format!("a queue of {shards} shards"))?;
        refused(h.backend.tasks()?.queue(&spec.name).await, ErrorKind::NotFound, "what was not created")?;
    }
    equal!(h.queue(MAX_SHARDS).await?.shards, MAX_SHARDS, "the most shards");
    Ok(())
}

async fn an_unknown_queue_is_not_found(h: Harness) -> Verdict {
    let name = QueueName::new(h.unique("queue"))?;
    refused(h.backend.tasks()?.queue(&name).await, ErrorKind::NotFound, "an unknown queue")?;
    let listed = h.backend.tasks()?.queues().await?;
    ensure!(!listed.contains(&name), "an unknown queue is listed");
    Ok(())
}

async fn queues_are_listed_in_order(h: Harness) -> Verdict {
    let common = h.unique("queue");
    let ours = ["b", "c", "a"].map(|name| QueueName::new(format!("{common}-{name}")));
    for name in ours {
        let name = name?;
        for _ in 0..2 {
            h.backend.tasks()?.create_queue(&QueueSpec::new(name.clone(), 1)).await?;
        }
    }
    let listed = h.backend.tasks()?.queues().await?;
    let ours = listed.iter().filter_map(|name| name.as_str().strip_prefix(&common));
    equal!(ours.collect::<Vec<_>>(), ["-a", "-b", "-c"], "our queues in the list");
    ensure!(listed.is_sorted(), "the list is not in order: {listed:?}");
    Ok(())
}

async fn shards_do_not_mix(h: Harness) -> Verdict {
    let queue = h.queue(3).await?;
    let shards: Vec<_> = queue.iter().collect();
    for (n, shard) in shards.iter().enumerate().take(2) {
        let place = Place::from(shard.clone());
        let mine = format!("of shard {n}");
        place_all(
            &h,
            &place,
            [
                ("same", Due::At(Timestamp::from_millis(1))),
                (mine.as_str(), Due::At(Timestamp::from_millis(2))),
            ],
        )
        .await?;
    }
    for (n, shard) in shards.iter().enumerate() {
        let tasks = h.backend.tasks()?.claim(shard, &ask("w", 10)).await?.tasks;
        let mine = format!("of shard {n}");
        let expected = if n < 2 { vec!["same", mine.as_str()] } else { Vec::new() };
        equal!(names(&tasks), expected, "claimed from {shard}");
    }
    Ok(())
}

async fn a_shard_is_counted(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    equal!(queue_under_test.counts().await?, TaskCounts::default(), "an empty shard");
    queue_under_test.place_due(["dead", "brief", "long", "done", "due", "due 2"]).await?;
    queue_under_test.place([("later", Due::In(HOUR))]).await?;
    let given_up = queue_under_test.take_one(&ask("w", 1)).await?;
    queue_under_test.settles(&given_up, dead(&given_up)).await?;
    queue_under_test.take_one(&super::ClaimRequest { hold: BRIEF, ..ask("w", 1) }).await?;
    queue_under_test.runs_out(BRIEF).await?;
    let counts = queue_under_test.counts().await?;
    let waiting = Waiting { first: counts.waiting.first, ..Waiting::new(5, 4) };
    equal!(
        counts,
        TaskCounts { waiting, claimed: 1, expired: 1, dead: 1, paused: None },
        "with a claim that has run out"
    );
    let tasks = queue_under_test.take(&ask("w", 3), 3).await?;
    equal!(names(&tasks), ["brief", "long", "done"], "claimed");
    queue_under_test.settles(&tasks[2], Says::Complete).await?;
    ensure!(queue_under_test.extend(&tasks[0], LONG).await?, "a claim is not ours");
    let counts = queue_under_test.counts().await?;
    let waiting = Waiting { first: counts.waiting.first, ..Waiting::new(3, 2) };
    equal!(
        counts,
        TaskCounts { waiting, claimed: 2, expired: 0, dead: 1, paused: None },
        "with two claims that hold"
    );
    equal!(
        queue_under_test.h.backend.schedule().waiting(&queue_under_test.place).await?,
        waiting,
        "the same, told by the schedule"
    );
    equal!(all(&queue_under_test.h, &queue_under_test.place).await?, ["due", "due 2", "later"], "what waits");
    let again = scheduling(&queue_under_test.place, "long", Due::NOW)?;
    equal!(schedule(&queue_under_test.h, &[again]).await?, [Placed::Kept], "an id that is worked on");
    equal!(tasks[0].fields, body("brief"), "the body of a task");
    Ok(())
}

async fn a_deleted_queue_is_gone_with_all_its_tasks(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["dead", "claimed", "due"]).await?;
    queue_under_test.place([("later", Due::In(HOUR))]).await?;
    let given_up = queue_under_test.take_one(&ask("w", 1)).await?;
    queue_under_test.settles(&given_up, dead(&given_up)).await?;
    let claimed = queue_under_test.take_one(&ask("w", 1)).await?;
    let QueueUnderTest { h, shard, place } = &queue_under_test;
    let (role, name) = (h.backend.tasks()?, &shard.queue);
    equal!(role.delete_queue(name).await?, true, "a queue that was there");
    refused(role.queue(name).await, ErrorKind::NotFound, "a deleted queue")?;
    ensure!(!role.queues().await?.contains(name), "the deleted queue is listed");
    equal!(role.delete_queue(name).await?, false, "a queue that is not there");
    equal!(role.create_queue(&QueueSpec::new(name.clone(), 1)).await?.shards, 1, "a new queue of that name");
    equal!(queue_under_test.counts().await?, TaskCounts::default(), "what is in it");
    equal!(all(h, place).await?, Vec::<String>::new(), "what waits in it");
    let settled =
        role.settle_tasks(shard, &[(claimed.id.clone(), claimed.token.clone(), Says::Complete)]).await?;
    equal!((settled.applied, settled.stale), (0, 1), "a settlement of before");
    place_all(h, place, [("later", Due::In(HOUR))]).await
}
