//! Promotion of delayed messages: never early, in order, each once, for all groups.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use millstream_core::schedule::{Due, MAX_PROMOTE, Place, Promoted, Scheduling};
use millstream_core::{Envelope, ErrorKind, Timestamp, TopicPartition, wire};

use super::{
    HOUR, ROUNDING, after, expect_all, id, names, partition, place_all, promote_delayed, promote_once,
    schedule, scheduling, suite,
};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, foreign};
use crate::owner::retry;

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

suite!("schedule":
    a_delayed_message_is_never_early,
    a_time_that_is_past_is_due_at_once,
    delayed_messages_are_moved_in_the_order_of_due_times,
    all_groups_read_a_delayed_message_as_it_was_scheduled,
    two_promoters_move_each_delayed_message_once needs [PromoteDelayed],
    one_call_promotes_no_more_than_its_limit,
    one_call_promotes_no_more_than_the_most,
    an_owner_promotes_retries_and_delayed_messages,
    without_a_lease_only_delayed_messages_are_promoted needs [PromoteDelayed],
    next_tells_when_a_delayed_message_is_due,
    nothing_scheduled_is_nothing_due;
    with an operator:
    what_lost_its_body_is_counted_and_dropped needs [ListScheduled],
);

async fn a_delayed_message_is_never_early(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    let mut owner = h.owner(partition(&place)?, "group").await?;
    let delays = ["0", "1", "2", "7", "20", "55", "130"];
    for round in 0..3 {
        // By the clock that decides when they are due.
        let before = h.backend.schedule().now_at(&place).await?;
        let due = |delay: &str| delay.parse().unwrap_or(0);
        place_all(&h, &place, delays.map(|delay| (delay, after(due(delay))))).await?;
        place_all(&h, &place, [("at 40", Due::At(before.saturating_add(Duration::from_millis(40))))]).await?;
        promote_delayed(&h, partition(&place)?, delays.len() + 1).await?;
        let entries = owner.take(delays.len() + 1).await?;
        for (entry, name) in entries.iter().zip(names(&entries)?) {
            let due = due(name.trim_start_matches("at "));
            let came = entry.receipt.id.ms.saturating_sub(before.as_millis());
            ensure!(came >= due, "round {round}: due after {due} ms, there after {came} ms");
        }
        owner.ack(&entries).await?;
    }
    Ok(())
}

async fn a_time_that_is_past_is_due_at_once(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    let now = h.now().await?;
    place_all(
        &h,
        &place,
        [
            ("1970", Due::At(AT(0))),
            ("before", Due::At(now.saturating_sub(Duration::from_millis(1)))),
            ("now", Due::At(now)),
        ],
    )
    .await?;
    let promoted = promote_once(&h, partition(&place)?, 100).await?;
    equal!((promoted.moved, promoted.next), (3, None), "moved of what was due before it was scheduled");
    Ok(())
}

async fn delayed_messages_are_moved_in_the_order_of_due_times(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    let mut owner = h.owner(partition(&place)?, "group").await?;
    let messages = [("e", 90), ("b", 30), ("c", 60), ("f", 10), ("a", 120)];
    place_all(&h, &place, messages.map(|(id, delay)| (id, after(delay)))).await?;
    let now = h.now().await?;
    h.reaches(now.saturating_add(Duration::from_millis(125))).await?;
    let promoted = promote_once(&h, partition(&place)?, 100).await?;
    equal!(promoted.moved, 5, "messages moved when all are due");
    equal!(names(&owner.take(5).await?)?, ["f", "b", "c", "e", "a"], "the order of due times");
    Ok(())
}

async fn all_groups_read_a_delayed_message_as_it_was_scheduled(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let [other, tp] = [0, 1].map(|partition| TopicPartition::new(topic.name.clone(), partition));
    let place = Place::from(tp.clone());
    let mut envelope = Envelope::new("\0\u{fffd}\r\n").with_key(Bytes::from_static(b"\xff\0key"));
    envelope.headers.append("trace", Bytes::from_static(b"\xfe\x01"));
    let bodies = [wire::encode(&envelope), foreign()];
    let mut batch = Vec::new();
    for (n, fields) in bodies.iter().enumerate() {
        batch.push(Scheduling {
            fields: fields.clone(),
            ..scheduling(&place, format!("{n}"), after(n as u64))?
        });
    }
    let mut groups = Vec::new();
    for group in ["a", "b"] {
        groups.push((h.owner(&tp, group).await?, h.owner(&other, group).await?));
    }
    schedule(&h, &batch).await?;
    for (owner, _) in &mut groups {
        owner.nothing("it waits").await?;
    }
    promote_delayed(&h, &tp, 2).await?;
    for (owner, elsewhere) in &mut groups {
        let entries = owner.take(2).await?;
        for (entry, body) in entries.iter().zip(&bodies) {
            equal!(entry.fields, *body, "the fields of a delayed message");
        }
        owner.nothing("each comes once").await?;
        elsewhere.nothing("it was scheduled at another partition").await?;
    }
    Ok(())
}

async fn two_promoters_move_each_delayed_message_once(h: Harness) -> Verdict {
    const COUNT: usize = 60;
    let place = Place::from(h.partition().await?);
    let mut owner = h.owner(partition(&place)?, "group").await?;
    let messages: Vec<_> = (0..COUNT).map(|n| n.to_string()).collect();
    place_all(&h, &place, messages.iter().map(|id| (id.as_str(), Due::NOW))).await?;
    let promoters = [Some(owner.lease.clone()), None, None].map(|lease| {
        let (h, tp) = (h.clone(), owner.lease.partition().map(|(tp, _)| tp.clone()));
        tokio::spawn(async move {
            let (mut moved, tp) = (0, tp?);
            let mut deadline = h.wait_for("the schedule to be empty");
            loop {
                let promoted = match &lease {
                    Some(lease) => h.backend.schedule().promote(lease, 7).await?,
                    None => h.backend.schedule().promote_delayed(&tp, 7).await?,
                };
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
    equal!(moved, COUNT, "messages moved by all");
    let came: BTreeSet<_> = names(&owner.take(COUNT).await?)?.into_iter().collect();
    equal!(came.len(), COUNT, "different messages");
    owner.nothing("each came once").await
}

async fn one_call_promotes_no_more_than_its_limit(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    place_all(&h, &place, ["a", "b", "c", "d", "e", "f", "g"].map(|id| (id, Due::At(AT(1))))).await?;
    for (moved, next) in [(3, Some(Duration::ZERO)), (3, Some(Duration::ZERO)), (1, None)] {
        let promoted = promote_once(&h, partition(&place)?, 3).await?;
        equal!(promoted, Promoted { moved, orphans: 0, next, recurring: false }, "a promotion of up to 3");
    }
    Ok(())
}

async fn one_call_promotes_no_more_than_the_most(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    let messages: Vec<_> = (0..MAX_PROMOTE + 10).map(|n| n.to_string()).collect();
    place_all(&h, &place, messages.iter().map(|id| (id.as_str(), Due::At(AT(1))))).await?;
    let promoted = promote_once(&h, partition(&place)?, 10_000).await?;
    ensure!((1..=MAX_PROMOTE).contains(&promoted.moved), "{} messages in one call", promoted.moved);
    promote_delayed(&h, partition(&place)?, MAX_PROMOTE + 10 - promoted.moved).await
}

async fn an_owner_promotes_retries_and_delayed_messages(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    let mut owner = h.owner(partition(&place)?, "group").await?;
    h.append_n(partition(&place)?, 1).await?;
    let entries = owner.take(1).await?;
    owner.settle(entries[0].receipt, retry(&entries[0], Duration::ZERO)).await?;
    place_all(&h, &place, [("a", Due::NOW), ("b", Due::NOW)]).await?;
    owner.promote(3).await?;
    h.expect_waiting(&place, 0, "what waits after the promotion").await?;
    owner.take(3).await.map(drop)
}

async fn without_a_lease_only_delayed_messages_are_promoted(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    let mut owner = h.brief_owner(partition(&place)?, "group", BRIEF).await?;
    h.append_n(partition(&place)?, 1).await?;
    let entries = owner.take(1).await?;
    owner.settle(entries[0].receipt, retry(&entries[0], Duration::ZERO)).await?;
    let mut next = h.takeover(&owner.lease).await?;
    place_all(&h, &place, [("a", Due::At(AT(1)))]).await?;
    let promoted = h.backend.schedule().promote(&owner.lease, 100).await;
    refused(promoted, ErrorKind::Fenced, "a promotion with a lost lease")?;
    expect_all(&h, &place, &["a"]).await?;
    let promoted = h.backend.schedule().promote_delayed(partition(&place)?, 100).await?;
    equal!((promoted.moved, promoted.next), (1, None), "a promotion of delayed messages alone");
    equal!(names(&next.take(1).await?)?, ["a"], "what came");
    next.nothing("the retry waits for its owner").await?;
    next.promote(1).await
}

async fn next_tells_when_a_delayed_message_is_due(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    let owner = h.owner(partition(&place)?, "group").await?;
    let minute = Duration::from_secs(60);
    for (id, delay, head) in [("a", HOUR, HOUR), ("b", minute, minute), ("c", HOUR, minute)] {
        place_all(&h, &place, [(id, Due::In(delay))]).await?;
        for promoted in [
            h.backend.schedule().promote(&owner.lease, 100).await?,
            promote_once(&h, partition(&place)?, 100).await?,
        ] {
            equal!(promoted.moved, 0, "messages moved early");
            let Some(next) = promoted.next else { return Err(Violation::new("nothing is said to wait")) };
            ensure!(
                next <= head + ROUNDING && next >= head / 2,
                "next in {next:?}, the head is due in {head:?}"
            );
        }
    }
    // Promotion needs no more than the reported time: a caller that sleeps that long finds the message due.
    place_all(&h, &place, [("d", after(40))]).await?;
    let mut deadline = h.wait_for("the head to be due");
    loop {
        let promoted = promote_once(&h, partition(&place)?, 100).await?;
        let Some(next) = promoted.next else { return Err(Violation::new("nothing is said to wait")) };
        if promoted.moved == 1 {
            ensure!(next > minute / 2, "next in {next:?} after the head was moved");
            return Ok(());
        }
        ensure!(next <= Duration::from_millis(40) + ROUNDING, "next in {next:?}, the head is due in 40 ms");
        deadline.pause().await?;
    }
}

async fn nothing_scheduled_is_nothing_due(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    h.append_n(&tp, 2).await?;
    let promoted = promote_once(&h, &tp, 100).await?;
    equal!(promoted, Promoted::default(), "a promotion where nothing was scheduled");
    Ok(())
}

async fn what_lost_its_body_is_counted_and_dropped(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    let mut owner = h.owner(partition(&place)?, "group").await?;
    place_all(&h, &place, ["a", "b", "c"].map(|id| (id, Due::At(AT(1))))).await?;
    h.operator()?.delete_scheduled(&place, &id("b")?).await?;
    let bodiless = h.backend.schedule().get(&place, &id("b")?).await?;
    equal!(bodiless.map(|it| it.fields.len()), Some(0), "the fields of what lost its body");
    let promoted = promote_once(&h, partition(&place)?, 100).await?;
    let expected = Promoted { moved: 2, orphans: 1, next: None, recurring: false };
    equal!(promoted, expected, "a promotion of three, one without its body");
    equal!(names(&owner.take(2).await?)?, ["a", "c"], "what came");
    let again = promote_once(&h, partition(&place)?, 100).await?;
    equal!(again, Promoted::default(), "a promotion when all is gone");
    Ok(())
}
