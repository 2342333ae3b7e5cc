//! Claims that expire are taken over, and are counted.

use std::time::Duration;

use millstream_core::schedule::Due;
use millstream_core::tasks::{ClaimRequest, Claimed, ClaimedTask, Verdict as Says};
use millstream_core::{Continuity, MessageId, Reason, Timestamp};

use super::{HOUR, QueueUnderTest, STALE, ask, body, claim, failure, names, retry, snooze, suite, told};
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::continuity::{answered, not_whole};
use crate::harness::{BRIEF, Harness, LONG};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

suite!("tasks":
    a_claim_that_ran_out_comes_back_first,
    a_claim_holds_as_long_as_was_asked,
    a_claim_that_is_extended_holds,
    an_extension_tells_of_each_whether_it_is_ours,
    what_ran_out_and_nobody_has_claimed_is_settled,
    what_ran_out_and_another_has_claimed_is_stale,
    only_a_claim_that_ran_out_has_a_token_before,
    a_further_crash_counts_if_a_handler_had_begun,
    what_is_handed_back_keeps_its_crashes_until_a_handler_begins,
    crashes_are_forgotten_when_an_attempt_is_settled,
    what_crashes_too_often_becomes_a_dead_letter,
    what_ran_out_is_left_to_its_worker_until_the_asker_was_answered_for_a_hold,
    the_longer_hold_counts,
    an_answer_that_was_lost_is_no_crash,
    an_extension_tells_which_server_answered_and_when,
);

fn brief(worker: &str, limit: usize) -> ClaimRequest {
    ClaimRequest { hold: BRIEF, ..ask(worker, limit) }
}

async fn a_claim_that_ran_out_comes_back_first(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a", "b", "c"]).await?;
    let tasks = queue_under_test.take(&brief("w", 2), 2).await?;
    equal!(names(&tasks), ["a", "b"], "claimed first");
    // Due before the others, but new.
    queue_under_test.place([("older", Due::At(AT(0)))]).await?;
    queue_under_test.runs_out(BRIEF).await?;
    let again = queue_under_test.claim(&ask("v", 4)).await?.tasks;
    equal!(names(&again).split_off(again.len().min(2)), ["older", "c"], "claimed after what had run out");
    for (before, again) in tasks.iter().zip(&again) {
        equal!(again.id, before.id, "what came back");
        equal!((again.attempt, again.crashes), (1, 1), "attempt and crashes of what came back");
        equal!((again.due, &again.fields), (before.due, &before.fields), "due time and fields");
        ensure!(again.token != before.token, "two claims have one token");
        equal!(again.before.as_ref(), Some(&before.token), "the token that it had before");
        equal!(queue_under_test.settle(before, Says::Complete).await?, STALE, "settled by who had it before");
        queue_under_test.settles(again, Says::Complete).await?;
    }
    Ok(())
}

async fn a_claim_holds_as_long_as_was_asked(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let before = queue_under_test.h.now().await?;
    queue_under_test.take_one(&brief("w", 1)).await?;
    let mut deadline = queue_under_test.h.wait_for("a claim to run out");
    loop {
        let claimed = queue_under_test.claim(&ask("v", 1)).await?;
        if !claimed.tasks.is_empty() {
            let took = claimed.now.saturating_duration_since(before);
            ensure!(took >= BRIEF, "a claim of {BRIEF:?} was given to another after {took:?}");
            return Ok(());
        }
        deadline.pause().await?;
    }
}

async fn a_claim_that_is_extended_holds(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a", "b"]).await?;
    let tasks = queue_under_test.take(&brief("w", 2), 2).await?;
    ensure!(queue_under_test.extend(&tasks[0], LONG).await?, "a claim is not ours at once");
    queue_under_test.runs_out(BRIEF).await?;
    equal!(names(&queue_under_test.claim(&ask("v", 2)).await?.tasks), ["b"], "claimed, one was extended");
    ensure!(!queue_under_test.extend(&tasks[1], LONG).await?, "a claim that another has by now was extended");
    queue_under_test.settles(&tasks[0], Says::Complete).await?;
    // An extension can also shorten the claim.
    queue_under_test.place_due(["c"]).await?;
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    ensure!(queue_under_test.extend(&task, Duration::from_millis(1)).await?, "a claim is not ours at once");
    equal!(
        names(&queue_under_test.take(&ask("v", 1), 1).await?),
        ["c"],
        "claimed after it was extended by 1 ms"
    );
    Ok(())
}

async fn an_extension_tells_of_each_whether_it_is_ours(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a", "b", "c"]).await?;
    let tasks = queue_under_test.take(&brief("w", 3), 3).await?;
    queue_under_test.settles(&tasks[1], Says::Complete).await?;
    let mut claims: Vec<_> = tasks.iter().map(claim).collect();
    claims.push((super::id("unknown")?, tasks[0].token.clone()));
    let held =
        queue_under_test.h.backend.tasks()?.extend(&queue_under_test.shard, &claims, LONG, false).await?.ours;
    equal!(held, [true, false, true, false], "ours, of four: one is done, one unknown");
    // Expired, but not taken over: the claim is still valid.
    queue_under_test.place_due(["d"]).await?;
    let late = queue_under_test.take_one(&brief("w", 1)).await?;
    queue_under_test.runs_out(BRIEF).await?;
    ensure!(
        queue_under_test.extend(&late, LONG).await?,
        "a claim that ran out, and that nobody has, is not ours"
    );
    queue_under_test.nothing("all are held").await
}

async fn what_ran_out_and_nobody_has_claimed_is_settled(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a", "b", "c"]).await?;
    let tasks = queue_under_test.take(&brief("w", 3), 3).await?;
    queue_under_test.runs_out(BRIEF).await?;
    queue_under_test.settles(&tasks[0], Says::Complete).await?;
    queue_under_test.settles(&tasks[1], retry(&tasks[1], Due::In(HOUR))).await?;
    queue_under_test.settles(&tasks[2], super::dead(&tasks[2])).await?;
    queue_under_test.nothing("all are settled").await?;
    let counts = queue_under_test.counts().await?;
    equal!((counts.waiting.total, counts.claimed, counts.dead), (1, 0, 1), "waiting, claimed and dead");
    Ok(())
}

async fn what_ran_out_and_another_has_claimed_is_stale(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let task = queue_under_test.take_one(&brief("w", 1)).await?;
    queue_under_test.runs_out(BRIEF).await?;
    let other = queue_under_test.take_one(&ask("v", 1)).await?;
    for says in [Says::Complete, retry(&task, Due::NOW), super::dead(&task)] {
        equal!(queue_under_test.settle(&task, says.clone()).await?, STALE, "{says:?} of what another has");
    }
    ensure!(!queue_under_test.extend(&task, Duration::ZERO).await?, "what another has was extended");
    queue_under_test.nothing("the other holds it").await?;
    queue_under_test.settles(&other, Says::Complete).await
}

async fn only_a_claim_that_ran_out_has_a_token_before(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let first = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!(first.before, None, "the token before that of a new task");
    queue_under_test.settles(&first, snooze(&first)).await?;
    let second = queue_under_test.take_one(&brief("w", 1)).await?;
    equal!(second.before, None, "the token before that of one that was snoozed");
    let third = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!(third.before.as_ref(), Some(&second.token), "the token before that of what ran out");
    // The same id, for another task.
    queue_under_test.settles(&third, Says::Complete).await?;
    queue_under_test.place_due(["a"]).await?;
    equal!(
        queue_under_test.take_one(&ask("w", 1)).await?.before,
        None,
        "the token before that of one with an old id"
    );
    Ok(())
}

async fn a_further_crash_counts_if_a_handler_had_begun(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    // So short that each claim expires before the next one, and only the claim that begins is extended.
    let hold = Duration::from_millis(20);
    let limited = |worker| ClaimRequest { hold, crash_limit: 3, ..ask(worker, 1) };
    for (worker, crashes) in [("a", 0), ("b", 1), ("c", 1), ("d", 1)] {
        equal!(
            queue_under_test.take_one(&limited(worker)).await?.crashes,
            crashes,
            "crashes of what no handler began"
        );
    }
    let task = queue_under_test.take_one(&ClaimRequest { hold: LONG, ..limited("e") }).await?;
    queue_under_test.begins(&task, LONG).await?;
    // The beginning stays recorded, whichever worker extends.
    ensure!(queue_under_test.extend(&task, hold).await?, "a claim is not ours at once");
    for worker in ["f", "g", "h"] {
        equal!(
            queue_under_test.take_one(&limited(worker)).await?.crashes,
            2,
            "crashes after a handler had begun once"
        );
    }
    Ok(())
}

async fn what_is_handed_back_keeps_its_crashes_until_a_handler_begins(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    queue_under_test.take_one(&brief("w", 1)).await?;
    for _ in 0..2 {
        let task = queue_under_test.take_one(&ask("v", 1)).await?;
        equal!((task.attempt, task.crashes), (1, 1), "attempt and crashes of what is handed back");
        queue_under_test.settles(&task, snooze(&task)).await?;
    }
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    queue_under_test.begins(&task, LONG).await?;
    queue_under_test.settles(&task, snooze(&task)).await?;
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!((task.attempt, task.crashes), (1, 0), "attempt and crashes of what a handler snoozed");
    Ok(())
}

async fn crashes_are_forgotten_when_an_attempt_is_settled(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let hold = Duration::from_millis(20);
    for crashes in 0..3 {
        let task = queue_under_test.take_one(&ask("w", 1)).await?;
        equal!((task.attempt, task.crashes), (1, crashes), "attempt and crashes");
        queue_under_test.begins(&task, hold).await?;
    }
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!((task.attempt, task.crashes), (1, 3), "attempt and crashes");
    queue_under_test.settles(&task, retry(&task, Due::NOW)).await?;
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    equal!((task.attempt, task.crashes), (2, 0), "attempt and crashes after an attempt that was settled");
    equal!(told(&task.history), [(1, failure(1))], "the history");
    Ok(())
}

async fn what_crashes_too_often_becomes_a_dead_letter(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let hold = Duration::from_millis(20);
    let limited = ClaimRequest { hold, crash_limit: 2, ..ask("w", 1) };
    for crashes in 0..2 {
        let task = queue_under_test.take_one(&ClaimRequest { hold: LONG, ..limited.clone() }).await?;
        equal!(task.crashes, crashes, "crashes before the limit");
        queue_under_test.begins(&task, hold).await?;
    }
    let mut deadline = queue_under_test.h.wait_for("what crashes too often to be given up");
    loop {
        let claimed = queue_under_test.claim(&limited).await?;
        ensure!(claimed.tasks.is_empty(), "claimed beyond the limit: {:?}", claimed.tasks);
        if claimed.crashed > 0 {
            equal!(claimed.crashed, 1, "tasks that were given up");
            break;
        }
        deadline.pause().await?;
    }
    let dead =
        queue_under_test.h.backend.tasks()?.dead_tasks(&queue_under_test.shard, MessageId::ZERO, 10).await?;
    equal!(dead.len(), 1, "dead tasks");
    equal!((dead[0].task.as_str(), &dead[0].reason), ("a", &Reason::Crashed), "what died, and why");
    equal!(dead[0].body, body("a"), "the body of what died");
    let counts = queue_under_test.counts().await?;
    equal!((counts.waiting.total, counts.claimed, counts.dead), (0, 0, 1), "waiting, claimed and dead");
    queue_under_test.place_due(["a"]).await
}

impl QueueUnderTest {
    /// Returns the server's name for itself.
    async fn server(&self) -> Result<String, Violation> {
        let claimed =
            self.claim(&ClaimRequest { continuity: Continuity::new(BRIEF), ..ask("nobody", 0) }).await?;
        ensure!(!claimed.server.is_empty(), "a worker without a record is not told which server answers");
        Ok(claimed.server)
    }

    /// Takes over one task, with a record of `ttl` that goes back this long.
    async fn takes_over(
        &self,
        server: &str,
        ttl: Duration,
        long: Duration,
    ) -> Result<ClaimedTask, Violation> {
        let mut deadline = self.h.wait_for("a claim that ran out to be taken over");
        loop {
            let now = self.h.now().await?;
            let continuity = answered(server, now, ttl, long);
            if let Some(task) = self.claim(&ClaimRequest { continuity, ..ask("v", 1) }).await?.tasks.pop() {
                return Ok(task);
            }
            deadline.pause().await?;
        }
    }

    /// Expects that this record allows no takeover.
    async fn leaves(&self, continuity: Continuity, why: &str) -> Result<Claimed, Violation> {
        let claimed = self.claim(&ClaimRequest { continuity, crash_limit: 1, ..ask("v", 5) }).await?;
        ensure!(claimed.tasks.is_empty(), "taken over {why}: {:?}", claimed.tasks);
        equal!(claimed.crashed, 0, "given up {why}");
        Ok(claimed)
    }
}

async fn what_ran_out_is_left_to_its_worker_until_the_asker_was_answered_for_a_hold(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let server = queue_under_test.server().await?;
    queue_under_test.place_due(["a"]).await?;
    let task = queue_under_test.take_one(&brief("w", 1)).await?;
    // The task would be given up if its expired claim counted.
    queue_under_test.begins(&task, BRIEF).await?;
    queue_under_test.runs_out(BRIEF).await?;
    let claimed = queue_under_test.leaves(Continuity::new(BRIEF), "by one that was never answered").await?;
    equal!(claimed.server, server, "which server answers");
    ensure!(claimed.next <= LONG && !claimed.next.is_zero(), "told to come in {:?}", claimed.next);
    let now = queue_under_test.h.now().await?;
    for (continuity, why) in not_whole(&server, now, BRIEF) {
        queue_under_test.leaves(continuity, why).await?;
    }
    let mut gap = answered(&server, now.saturating_sub(Duration::from_millis(80)), BRIEF, BRIEF * 3);
    gap.advance(&server, now);
    queue_under_test.leaves(gap, "after a gap").await?;
    let short = answered(&server, now, BRIEF, BRIEF / 2);
    queue_under_test.leaves(short, "by one that was answered for half a hold").await?;
    equal!(queue_under_test.counts().await?.expired, 1, "claims that ran out");

    // The former worker comes back, and has its task as before.
    queue_under_test.begins(&task, BRIEF).await?;
    equal!(queue_under_test.counts().await?.expired, 0, "claims that ran out");
    queue_under_test.runs_out(BRIEF).await?;
    let taken = queue_under_test.takes_over(&server, BRIEF, BRIEF * 2).await?;
    equal!((taken.id.as_str(), taken.crashes), ("a", 1), "what was taken over");
    equal!(queue_under_test.settle(&task, Says::Complete).await?, STALE, "settled by who had it before");
    Ok(())
}

async fn the_longer_hold_counts(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    let server = queue_under_test.server().await?;
    queue_under_test.place_due(["a"]).await?;
    queue_under_test.take_one(&brief("w", 1)).await?;
    queue_under_test.runs_out(BRIEF).await?;
    let now = queue_under_test.h.now().await?;
    // Gaps as long as a whole hold do not show in a record with a long ttl.
    queue_under_test
        .leaves(answered(&server, now, LONG, LONG * 2), "though it ran out a minute too short ago")
        .await?;
    let short = answered(&server, now, BRIEF / 2, BRIEF / 2 + Duration::from_millis(1));
    queue_under_test.leaves(short, "after half of the claim's hold").await?;
    let taken = queue_under_test.takes_over(&server, BRIEF / 2, BRIEF * 2).await?;
    equal!(taken.id.as_str(), "a", "what was taken over");
    Ok(())
}

async fn an_answer_that_was_lost_is_no_crash(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let brief = |worker| ClaimRequest { hold: Duration::from_millis(20), crash_limit: 1, ..ask(worker, 1) };
    let first = queue_under_test.take_one(&brief("w")).await?;
    let again = queue_under_test.take_one(&brief("w")).await?;
    equal!(again.before.as_ref(), Some(&first.token), "the token before that of what ran out");
    equal!(again.crashes, 0, "crashes of what the same worker had, and no handler began");
    // Another worker cannot know that. The task is not given up because of it.
    equal!(queue_under_test.take_one(&brief("v")).await?.crashes, 1, "crashes of what another worker had");
    equal!(queue_under_test.take_one(&brief("u")).await?.crashes, 1, "crashes of what no handler began");
    Ok(())
}

async fn an_extension_tells_which_server_answered_and_when(h: Harness) -> Verdict {
    let queue_under_test = QueueUnderTest::new(h).await?;
    queue_under_test.place_due(["a"]).await?;
    let task = queue_under_test.take_one(&ask("w", 1)).await?;
    let before = queue_under_test.h.now().await?;
    let extended = queue_under_test
        .h
        .backend
        .tasks()?
        .extend(&queue_under_test.shard, &[claim(&task)], LONG, false)
        .await?;
    let after = queue_under_test.h.now().await?;
    equal!(extended.server, queue_under_test.server().await?, "which server answers");
    let now = extended.now;
    ensure!((before..=after).contains(&now), "the server's time: {before}, {now}, {after}");
    Ok(())
}
