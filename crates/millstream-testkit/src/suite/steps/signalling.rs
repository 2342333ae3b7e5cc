//! Signalling: before the wait, during it, and behind it.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::batches::Demand;
use millstream_core::results::{MessageResult, StoredResult};
use millstream_core::schedule::Seen;
use millstream_core::steps::{MAX_STEP_NAME, Signalled, StepKind, StepRecord, StepWait};
use millstream_core::{ErrorKind, MessageId, Settlement};

use super::{
    again, expect, names, none_is_due, park, role, signal, step, steps, store, suite, time_of, work,
};
use crate::case::{Verdict, ensure, equal, refused};
use crate::harness::{Harness, LONG, QUIET};

suite!("steps":
    a_signal_that_comes_before_the_wait_ends_it,
    a_signal_ends_the_wait_at_once,
    a_signal_wakes_who_waits_for_the_schedule needs [PromoteDelayed],
    a_signal_counts_once,
    a_signal_behind_the_wait_is_late,
    what_nobody_has_read_gets_a_signal,
    what_is_gone_gets_no_signal,
    a_signal_is_for_one_group_and_message,
    names_of_signals_are_checked,
);

async fn a_signal_that_comes_before_the_wait_ends_it(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entry = owner.take(1).await?.remove(0);
    let id = work(&tp, "group", entry.receipt.id)?;
    let before = h.now().await?;
    equal!(signal(&h, &id, "approved", "by Ann").await?, Signalled::Stored, "while nobody waits");
    let after = h.now().await?;
    let found = steps(&h, &id).await?;
    let at = time_of(&h, &id, StepKind::Signal, "approved").await?;
    ensure!((before..=after).contains(&at), "it came at {at}, not in {before}..{after}");
    equal!(found, [StepRecord::new(StepKind::Signal, at, "approved", "by Ann")], "the signal");
    park(&mut owner, &entry, LONG, StepWait::signal("approved")).await?;
    again(&mut owner).await?;
    let kinds: Vec<_> = names(&h, &id).await?.into_iter().map(|(kind, _)| kind).collect();
    equal!(kinds, [StepKind::Signal, StepKind::Wait], "signal and wait");
    let ends = time_of(&h, &id, StepKind::Wait, "approved").await?;
    ensure!(ends >= after.saturating_add(LONG), "the wait would have ended at {ends}, it is {after}");
    Ok(())
}

async fn a_signal_ends_the_wait_at_once(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(2).await?;
    for entry in &entries {
        park(&mut owner, entry, LONG, StepWait::signal("approved")).await?;
    }
    none_is_due(&mut owner, "they wait").await?;
    let id = work(&tp, "group", entries[1].receipt.id)?;
    equal!(signal(&h, &id, "approved", "yes").await?, Signalled::Woken, "a signal for what waits");
    let came = again(&mut owner).await?;
    equal!(super::origin(&came), entries[1].receipt.id, "what comes");
    let value = steps(&h, &id).await?.pop().map(|it| (it.kind, it.name, it.value));
    let expected = (StepKind::Signal, "approved".to_owned(), Bytes::from_static(b"yes"));
    equal!(value, Some(expected), "what its handler finds");
    owner.ack(&[came]).await?;
    none_is_due(&mut owner, "the other one waits").await
}

async fn a_signal_wakes_who_waits_for_the_schedule(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entry = owner.take(1).await?.remove(0);
    park(&mut owner, &entry, LONG, StepWait::signal("it")).await?;
    let schedule = h.backend.schedule();
    let seen = h.soon("the first wait", schedule.wait(&tp, &Seen::default(), LONG)).await?;
    let id = work(&tp, "group", entry.receipt.id)?;
    equal!(signal(&h, &id, "it", "").await?, Signalled::Woken, "a signal");
    h.soon("a wake-up", schedule.wait(&tp, &seen, LONG)).await.map(drop)
}

async fn a_signal_counts_once(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entry = owner.take(1).await?.remove(0);
    let id = work(&tp, "group", entry.receipt.id)?;
    equal!(signal(&h, &id, "it", "first").await?, Signalled::Stored, "the first signal");
    let first = steps(&h, &id).await?;
    equal!(signal(&h, &id, "it", "second").await?, Signalled::Known, "the second one");
    expect(&h, &id, &first, "behind it").await?;
    equal!(signal(&h, &id, "other", "").await?, Signalled::Stored, "one of another name");
    // A wait that it has ended stays ended.
    park(&mut owner, &entry, Duration::ZERO, StepWait::signal("it")).await?;
    again(&mut owner).await?;
    h.reaches(time_of(&h, &id, StepKind::Wait, "it").await?).await?;
    equal!(signal(&h, &id, "it", "third").await?, Signalled::Known, "behind the wait");
    let values: Vec<_> = steps(&h, &id).await?.into_iter().map(|it| it.value).collect();
    equal!(values, [&b"first"[..], b"", b"s"], "what the signals and the wait say");
    Ok(())
}

async fn a_signal_behind_the_wait_is_late(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entry = owner.take(1).await?.remove(0);
    let id = work(&tp, "group", entry.receipt.id)?;
    park(&mut owner, &entry, QUIET, StepWait::signal("it")).await?;
    let parked = steps(&h, &id).await?;
    h.reaches(time_of(&h, &id, StepKind::Wait, "it").await?).await?;
    equal!(signal(&h, &id, "it", "").await?, Signalled::Late, "while it is parked still");
    again(&mut owner).await?;
    equal!(signal(&h, &id, "it", "").await?, Signalled::Late, "while it is handled");
    expect(&h, &id, &parked, "behind that").await?;
    equal!(signal(&h, &id, "other", "").await?, Signalled::Stored, "one of another name");
    Ok(())
}

async fn what_nobody_has_read_gets_a_signal(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let id = h.append_n(&tp, 1).await?[0];
    let work = work(&tp, "group", id)?;
    equal!(signal(&h, &work, "it", "").await?, Signalled::Stored, "of what nobody has read");
    let entry = owner.take(1).await?.remove(0);
    equal!(names(&h, &work).await?, [(StepKind::Signal, "it".to_owned())], "what its handler finds");
    park(&mut owner, &entry, LONG, StepWait::signal("it")).await?;
    again(&mut owner).await.map(drop)
}

async fn what_is_gone_gets_no_signal(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_each(&tp, 2).await?;
    let entries = owner.take(2).await?;
    let ids = [work(&tp, "group", entries[0].receipt.id)?, work(&tp, "group", entries[1].receipt.id)?];
    store(&mut owner, &entries[1], &[step("a", "1")]).await?;
    owner.ack(&entries[..1]).await?;
    // Although a later one is pending.
    equal!(signal(&h, &ids[0], "it", "").await?, Signalled::Gone, "of one that is settled");
    let never = work(&tp, "group", MessageId::new(u64::MAX >> 20, 0))?;
    equal!(signal(&h, &never, "it", "").await?, Signalled::Gone, "of one that never was");
    let demand = Demand { steps: Some(ids[1].id.clone().into()), ..Demand::default() };
    let stored = StoredResult::new(demand, MessageResult::Done);
    owner.settle_all(&entries[1..], &Settlement::AckWith(Box::new(stored))).await?;
    for id in &ids {
        equal!(signal(&h, id, "it", "").await?, Signalled::Gone, "of what is settled");
        equal!(names(&h, id).await?, [], "what is stored of it");
    }
    let nobody = work(&tp, "nobody", entries[0].receipt.id)?;
    let refusal = role(&h)?.signal(&nobody, "it", Bytes::new()).await;
    refused(refusal, ErrorKind::GroupMissing, "a signal for a group that does not exist")?;
    Ok(())
}

async fn a_signal_is_for_one_group_and_message(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut one, mut other) = (h.owner(&tp, "one").await?, h.owner(&tp, "other").await?);
    h.append_n(&tp, 1).await?;
    let (of_one, of_other) = (one.take(1).await?.remove(0), other.take(1).await?.remove(0));
    park(&mut one, &of_one, LONG, StepWait::signal("it")).await?;
    park(&mut other, &of_other, LONG, StepWait::signal("it")).await?;
    let id = work(&tp, "one", of_one.receipt.id)?;
    equal!(signal(&h, &id, "it", "").await?, Signalled::Woken, "a signal");
    none_is_due(&mut other, "that was for another group").await?;
    let of_other = work(&tp, "other", of_one.receipt.id)?;
    equal!(names(&h, &of_other).await?, [(StepKind::Wait, "it".to_owned())], "the steps for another group");
    again(&mut one).await.map(drop)
}

async fn names_of_signals_are_checked(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let _owner = h.owner(&tp, "group").await?;
    let id = work(&tp, "group", h.append_n(&tp, 1).await?[0])?;
    let longest = "x".repeat(MAX_STEP_NAME);
    for bad in ["", "a\nb", "\0", &format!("{longest}x")] {
        let refusal = role(&h)?.signal(&id, bad, Bytes::new()).await;
        refused(refusal, ErrorKind::InvalidName, "a name that is none")?;
    }
    equal!(names(&h, &id).await?, [], "what is stored behind that");
    for good in [&*longest, "s - w d 1 2 %d+", "größe"] {
        equal!(signal(&h, &id, good, "").await?, Signalled::Stored, "{good}");
        equal!(signal(&h, &id, good, "").await?, Signalled::Known, "{good}, again");
    }
    Ok(())
}
