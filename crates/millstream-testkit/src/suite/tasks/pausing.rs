//! A paused shard: nothing is claimed in it, and what was claimed goes on.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_core::schedule::Due;
use millstream_core::tasks::{ClaimRequest, QueueSpec};

use super::{QueueUnderTest, ask, names, snooze, suite};
use crate::case::{Verdict, ensure, equal};
use crate::harness::{BRIEF, Harness, LONG};

suite!("tasks":
    a_paused_shard_hands_out_nothing_until_it_is_resumed needs [PauseQueue],
    a_pause_is_of_one_shard needs [PauseQueue],
    a_deleted_queue_is_not_paused_any_more needs [PauseQueue, DeleteQueue],
);

async fn a_paused_shard_hands_out_nothing_until_it_is_resumed(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let role = queue_under_test.h.backend.tasks()?;
    queue_under_test.place_due(["runs out", "held", "waits"]).await?;
    queue_under_test.take_one(&ClaimRequest { hold: BRIEF, ..ask("dead", 1) }).await?;
    let held = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!(queue_under_test.counts().await?.paused, None, "since when a new shard is paused");

    let before = queue_under_test.h.now().await?;
    for (nth, changes) in [("first", true), ("second", false)] {
        let changed = role.set_paused(&queue_under_test.shard, true).await?;
        equal!(changed, changes, "whether the {nth} pause changes anything");
    }
    let since = queue_under_test.counts().await?.paused;
    ensure!(since.is_some_and(|since| since >= before), "paused since {since:?}, at {before} or later");
    queue_under_test.runs_out(BRIEF).await?;
    queue_under_test.nothing("paused, and one has run out").await?;
    queue_under_test.place([("new", Due::NOW)]).await?;
    queue_under_test.nothing("paused, and one is new").await?;
    ensure!(queue_under_test.extend(&held, LONG).await?, "a claim is lost in a pause");
    queue_under_test.settles(&held, snooze(&held)).await?;
    queue_under_test.nothing("paused, and one was handed back").await?;

    // A call that nobody has received is not the one that is expected.
    role.wait(&queue_under_test.shard, Duration::ZERO).await?;
    for (nth, changes) in [("first", true), ("second", false)] {
        let changed = role.set_paused(&queue_under_test.shard, false).await?;
        equal!(changed, changes, "whether the {nth} end of the pause changes anything");
    }
    queue_under_test.is_called("the shard is resumed").await?;
    let tasks = queue_under_test.take(&ask("v", 10), 4).await?;
    let all = BTreeSet::from(["runs out", "held", "waits", "new"]);
    equal!(names(&tasks).into_iter().collect::<BTreeSet<_>>(), all, "claimed after the pause");
    equal!(queue_under_test.counts().await?.paused, None, "since when a resumed shard is paused");
    Ok(())
}

async fn a_pause_is_of_one_shard(h: Harness) -> Verdict {
    let queue = h.queue(2).await?;
    let shards: Vec<_> = queue.iter().collect();
    let of = |at: usize| QueueUnderTest {
        h: h.clone(),
        place: shards[at].clone().into(),
        shard: shards[at].clone(),
    };
    let [paused, other] = [of(0), of(1)];
    ensure!(h.backend.tasks()?.set_paused(&paused.shard, true).await?, "the pause changes nothing");
    for queue_under_test in [&paused, &other] {
        queue_under_test.place_due(["a"]).await?;
    }
    paused.nothing("paused").await?;
    equal!(names(&[other.take_one(&ask("w", 1)).await?]), ["a"], "claimed in the other shard");
    equal!(other.counts().await?.paused, None, "since when the other shard is paused");
    Ok(())
}

async fn a_deleted_queue_is_not_paused_any_more(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let (role, shard) = (queue_under_test.h.backend.tasks()?, &queue_under_test.shard);
    role.set_paused(shard, true).await?;
    role.delete_queue(&shard.queue).await?;
    role.create_queue(&QueueSpec::new(shard.queue.clone(), 1)).await?;
    equal!(queue_under_test.counts().await?.paused, None, "since when a new queue of that name is paused");
    queue_under_test.place_due(["a"]).await?;
    queue_under_test.take_one(&ask("w", 1)).await?;
    Ok(())
}
