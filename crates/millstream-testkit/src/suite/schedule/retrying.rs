//! Retries: never early, in order, each once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use millstream_core::envelope::Limits;
use millstream_core::inspect::Range;
use millstream_core::log::Entry;
use millstream_core::schedule::{MAX_PROMOTE, Promoted, RetryAction, Seen};
use millstream_core::{ErrorKind, GroupName, MessageId, Reason, wire};

use super::{ROUNDING, suite};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG};
use crate::owner::{Owner, retry};

suite!("schedule":
    nothing_is_early,
    what_is_parked_is_not_read,
    what_is_due_is_moved_in_the_order_of_due_times,
    the_limit_is_kept_and_the_rest_is_due_at_once,
    one_call_moves_no_more_than_the_most,
    next_tells_when_the_head_is_due,
    nothing_parked_is_nothing_due,
    two_promoters_move_each_message_once,
    a_stale_token_promotes_nothing,
    the_next_owner_promotes_what_the_last_one_parked,
    a_released_retry_is_due_at_once_and_the_others_wait needs [SettleRetries],
    a_release_wakes_who_waits needs [SettleRetries, PromoteDelayed],
    a_killed_retry_is_a_dead_letter_and_never_comes_back needs [SettleRetries];
    with an operator:
    a_retry_that_lost_its_body_has_that_of_the_log_or_becomes_a_dead_letter needs [DeadLetters],
);

/// A delay that no case outlives.
const HOUR: Duration = Duration::from_secs(3_600);

/// Parks one message per delay.
async fn park(h: &Harness, owner: &mut Owner, delays: &[Duration]) -> Result<Vec<Entry>, Violation> {
    let (tp, _) = owner.lease.partition()?;
    h.append_n(&tp.clone(), delays.len()).await?;
    let entries = owner.take(delays.len()).await?;
    let settlement = |(entry, after): (&Entry, &Duration)| (entry.receipt, retry(entry, *after));
    let batch: Vec<_> = entries.iter().zip(delays).map(settlement).collect();
    let settled = h.backend.log().settle(&owner.lease, &batch).await?;
    equal!(settled.applied, batch.len(), "settlements that took effect");
    Ok(entries)
}

/// Its body is deleted by another program. The message is not lost as long as the log has it.
async fn a_retry_that_lost_its_body_has_that_of_the_log_or_becomes_a_dead_letter(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    // Each sent by itself: what is sent together may be one entry.
    let mut entries = park(&h, &mut owner, &[Duration::ZERO]).await?;
    entries.extend(park(&h, &mut owner, &[Duration::ZERO]).await?);
    let [kept, gone] = [0, 1].map(|at: usize| entries[at].receipt.id);
    let (_, group) = owner.lease.partition()?;
    for origin in [kept, gone] {
        h.operator()?.delete_parked(&tp, group, origin).await?;
    }
    h.operator()?.delete_entry(&tp, gone).await?;
    let now = h.clock(&tp).await?;
    h.clock_passes(&tp, now.saturating_add(Duration::from_millis(2))).await?;
    let mut deadline = h.wait_for("both to be promoted");
    let (mut moved, mut orphans) = (0, 0);
    while moved + orphans < 2 {
        let promoted = h.backend.schedule().promote(&owner.lease, 10).await?;
        (moved, orphans) = (moved + promoted.moved, orphans + promoted.orphans);
        deadline.pause().await?;
    }
    equal!((moved, orphans), (1, 1), "messages that were moved, and orphans");
    let group = group.clone();
    let retried = owner.take_retries(1).await?;
    let read = wire::decode(retried[0].receipt, &retried[0].fields, &Limits::default());
    equal!(read.origin, kept, "the origin of the retry");
    let sent = wire::decode(entries[0].receipt, &entries[0].fields, &Limits::default());
    let body = |decoded: wire::Decoded| {
        decoded.envelope.map(|envelope| envelope.payload).map_err(|error| error.to_string())
    };
    equal!(body(read), body(sent), "its payload");
    let letters = h.backend.dead_letters()?.list(&tp, &group, Range::ALL, 10).await?.items;
    let told: Vec<_> = letters.iter().map(|letter| (letter.reason.clone(), letter.origin)).collect();
    equal!(told, [(Reason::Orphan, gone)], "dead letters");
    Ok(())
}

fn origin(entry: &Entry) -> MessageId {
    wire::decode(entry.receipt, &entry.fields, &Limits::default()).origin
}

/// Uses the server's clock: the id of the redelivery is the time when it was moved.
async fn nothing_is_early(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let delays = [0, 1, 2, 7, 20, 55, 130].map(Duration::from_millis);
    for round in 0..3 {
        let before = h.clock(&tp).await?;
        let probe = owner.take(1).await?;
        owner.ack(&probe).await?;
        let entries = park(&h, &mut owner, &delays).await?;
        let due: BTreeMap<_, _> = entries.iter().map(|entry| entry.receipt.id).zip(delays).collect();
        owner.promote(delays.len()).await?;
        let retried = owner.take(delays.len()).await?;
        for entry in &retried {
            let Some(after) = due.get(&origin(entry)) else {
                return Err(Violation::new(format!("a redelivery of unknown origin: {entry:?}")));
            };
            let moved = entry.receipt.id.timestamp().saturating_duration_since(before);
            ensure!(moved >= *after, "round {round}: due after {after:?}, there after {moved:?}");
        }
        owner.ack(&retried).await?;
    }
    Ok(())
}

async fn what_is_parked_is_not_read(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    park(&h, &mut owner, &[Duration::from_secs(3_600); 3]).await?;
    let promoted = h.backend.schedule().promote(&owner.lease, 100).await?;
    equal!(promoted.moved, 0, "messages moved an hour early");
    owner.nothing("everything is parked").await?;
    owner.reopen().await?;
    owner.nothing("everything is parked, for a new reader").await
}

async fn what_is_due_is_moved_in_the_order_of_due_times(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let delays = [90, 30, 60, 10, 120].map(Duration::from_millis);
    let entries = park(&h, &mut owner, &delays).await?;
    let now = h.clock(&tp).await?;
    h.clock_passes(&tp, now.saturating_add(Duration::from_millis(125))).await?;
    equal!(
        h.backend.schedule().promote(&owner.lease, 100).await?.moved,
        5,
        "messages moved when all are due"
    );
    let retried = owner.take_retries(5).await?;
    let origins: Vec<_> = retried.iter().map(origin).collect();
    let expected = [3, 1, 2, 0, 4].map(|n: usize| entries[n].receipt.id);
    equal!(origins, expected, "the order of due times");
    Ok(())
}

async fn the_limit_is_kept_and_the_rest_is_due_at_once(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    park(&h, &mut owner, &[Duration::ZERO; 7]).await?;
    let now = h.clock(&tp).await?;
    h.clock_passes(&tp, now.saturating_add(Duration::from_millis(2))).await?;
    for (moved, next) in [(3, Some(Duration::ZERO)), (3, Some(Duration::ZERO)), (1, None)] {
        let promoted = h.backend.schedule().promote(&owner.lease, 3).await?;
        equal!(promoted, Promoted { moved, orphans: 0, next, recurring: false }, "a promotion of up to 3");
    }
    Ok(())
}

async fn one_call_moves_no_more_than_the_most(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    park(&h, &mut owner, &[Duration::ZERO; MAX_PROMOTE + 10]).await?;
    let now = h.clock(&tp).await?;
    h.clock_passes(&tp, now.saturating_add(Duration::from_millis(2))).await?;
    let promoted = h.backend.schedule().promote(&owner.lease, 10_000).await?;
    ensure!((1..=MAX_PROMOTE).contains(&promoted.moved), "{} messages in one call", promoted.moved);
    owner.promote(MAX_PROMOTE + 10 - promoted.moved).await
}

async fn next_tells_when_the_head_is_due(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (hour, minute) = (Duration::from_secs(3_600), Duration::from_secs(60));
    for (parked, head) in [(hour, hour), (minute, minute), (hour, minute)] {
        park(&h, &mut owner, &[parked]).await?;
        let promoted = h.backend.schedule().promote(&owner.lease, 100).await?;
        equal!(promoted.moved, 0, "messages moved early");
        let Some(next) = promoted.next else { return Err(Violation::new("nothing is said to be parked")) };
        ensure!(next <= head + ROUNDING && next >= head / 2, "next in {next:?}, the head is due in {head:?}");
    }
    let soon = Duration::from_millis(40);
    park(&h, &mut owner, &[soon]).await?;
    let mut deadline = h.wait_for("the head to be due");
    loop {
        let promoted = h.backend.schedule().promote(&owner.lease, 100).await?;
        let Some(next) = promoted.next else { return Err(Violation::new("nothing is said to be parked")) };
        if promoted.moved == 1 {
            ensure!(next > soon + ROUNDING, "next in {next:?} after the head was moved");
            return Ok(());
        }
        ensure!(next <= soon + ROUNDING, "next in {next:?}, the head is due in {soon:?}");
        deadline.pause().await?;
    }
}

async fn nothing_parked_is_nothing_due(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2).await?;
    let promoted = h.backend.schedule().promote(&owner.lease, 100).await?;
    equal!(promoted, Promoted::default(), "a promotion where nothing is parked");
    Ok(())
}

async fn two_promoters_move_each_message_once(h: Harness) -> Verdict {
    const COUNT: usize = 60;
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    park(&h, &mut owner, &[Duration::ZERO; COUNT]).await?;
    let promoters = [(); 2].map(|()| {
        let (h, lease) = (h.clone(), owner.lease.clone());
        tokio::spawn(async move {
            let mut moved = 0;
            let mut deadline = h.wait_for("the schedule to be empty");
            loop {
                let promoted = h.backend.schedule().promote(&lease, 7).await?;
                moved += promoted.moved;
                match promoted.next {
                    None => return Ok::<_, Violation>(moved),
                    Some(next) if next.is_zero() && promoted.moved > 0 => {}
                    Some(_) => deadline.pause().await?,
                }
            }
        })
    });
    let mut moved = 0;
    for promoter in promoters {
        moved += promoter.await.map_err(|error| Violation::new(error.to_string()))??;
    }
    equal!(moved, COUNT, "messages moved by both");
    let retried = owner.take(COUNT).await?;
    let origins: BTreeSet<_> = retried.iter().map(origin).collect();
    equal!(origins.len(), COUNT, "different messages");
    owner.nothing("each came once").await
}

async fn a_stale_token_promotes_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    park(&h, &mut owner, &[Duration::ZERO; 2]).await?;
    let mut next = h.takeover(&owner.lease).await?;
    let promoted = h.backend.schedule().promote(&owner.lease, 100).await;
    refused(promoted, ErrorKind::Fenced, "a promotion after the takeover")?;
    next.promote(2).await
}

async fn the_next_owner_promotes_what_the_last_one_parked(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.brief_owner(&tp, "group", BRIEF).await?;
    let entries = park(&h, &mut owner, &[Duration::ZERO, Duration::from_millis(10)]).await?;
    let mut next = h.takeover(&owner.lease).await?;
    next.promote(2).await?;
    let origins: Vec<_> = next.take(2).await?.iter().map(origin).collect();
    equal!(origins, [entries[0].receipt.id, entries[1].receipt.id], "what comes back");
    Ok(())
}

async fn a_released_retry_is_due_at_once_and_the_others_wait(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut owner, group) = (h.owner(&tp, "group").await?, GroupName::new("group")?);
    let entries = park(&h, &mut owner, &[HOUR, HOUR * 2, HOUR * 3]).await?;
    let ids: Vec<_> = entries.iter().map(|entry| entry.receipt.id).collect();
    let schedule = h.backend.schedule();
    let unknown = MessageId::new(1, 1);
    let some = [ids[2], unknown, ids[0]];
    let released = schedule.settle_retries(&tp, &group, &some, RetryAction::Release).await?;
    equal!(released, [true, false, true], "which of them waited");
    let other = GroupName::new("other")?;
    let released = schedule.settle_retries(&tp, &other, &ids, RetryAction::Release).await?;
    equal!(released, [false; 3], "retries of another group");
    owner.promote(2).await?;
    let retried = owner.take_retries(2).await?;
    let origins: BTreeSet<_> = retried.iter().map(origin).collect();
    equal!(origins, BTreeSet::from([ids[0], ids[2]]), "what came");
    owner.ack(&retried).await?;
    owner.nothing("one waits").await?;
    let promoted = schedule.promote(&owner.lease, 100).await?;
    ensure!(promoted.next.is_some_and(|next| next > HOUR), "the other one is due in {:?}", promoted.next);
    let released = schedule.settle_retries(&tp, &group, &[ids[0]], RetryAction::Release).await?;
    equal!(released, [false], "one that has come");
    equal!(h.letters(&tp, &group).await?.map_or(0, |letters| letters.len()), 0, "dead letters");
    Ok(())
}

async fn a_release_wakes_who_waits(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut owner, group) = (h.owner(&tp, "group").await?, GroupName::new("group")?);
    let entries = park(&h, &mut owner, &[HOUR]).await?;
    let schedule = h.backend.schedule();
    let seen = h.soon("the first wait", schedule.wait(&tp, &Seen::default(), LONG)).await?;
    let action = RetryAction::Release;
    equal!(
        schedule.settle_retries(&tp, &group, &[entries[0].receipt.id], action).await?,
        [true],
        "a release"
    );
    h.soon("a wake-up", schedule.wait(&tp, &seen, LONG)).await.map(drop)
}

async fn a_killed_retry_is_a_dead_letter_and_never_comes_back(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut owner, group) = (h.owner(&tp, "group").await?, GroupName::new("group")?);
    let entries = park(&h, &mut owner, &[Duration::ZERO, HOUR, HOUR]).await?;
    let ids: Vec<_> = entries.iter().map(|entry| entry.receipt.id).collect();
    let schedule = h.backend.schedule();
    // Due or not.
    let killed = schedule.settle_retries(&tp, &group, &[ids[1], ids[0], ids[1]], RetryAction::Kill).await?;
    equal!(killed, [true, true, false], "which of them waited");
    equal!(schedule.promote(&owner.lease, 100).await?.moved, 0, "messages that came back");
    owner.nothing("two were given up, and one waits").await?;
    if let Some(letters) = h.letters(&tp, &group).await? {
        let told: Vec<_> = letters.iter().map(|it| (it.origin, it.reason.clone(), it.attempts)).collect();
        equal!(told, [(ids[1], Reason::Killed, 1), (ids[0], Reason::Killed, 1)], "dead letters");
        for letter in &letters {
            ensure!(!letter.error.is_empty(), "the error of the last attempt is lost: {letter:?}");
            equal!(letter.history.failures().len(), 1, "failures of its history");
            let entry = entries.iter().find(|entry| entry.receipt.id == letter.origin);
            equal!(Some(&letter.body), entry.map(|entry| &entry.fields), "the body");
        }
    }
    let killed = schedule.settle_retries(&tp, &group, &[ids[0]], RetryAction::Kill).await?;
    equal!(killed, [false], "one that is dead");
    Ok(())
}
