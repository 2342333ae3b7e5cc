//! Waiting: a message that is handed back for a wait, which is noted once.

use std::time::Duration;

use millstream_core::ErrorKind;
use millstream_core::steps::{Signalled, StepKind, StepWait};

use super::{
    again, expect, names, none_is_due, park, signal, step, steps, store, suite, time_of, waits, work,
};
use crate::case::{Verdict, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG, QUIET};
use crate::owner::retry;

suite!("steps":
    steps_are_there_when_the_message_comes_again,
    a_wait_is_noted_once_and_its_first_end_counts,
    a_wait_that_is_over_is_not_begun_again,
    a_sleep_is_not_ended_by_a_signal_that_came_before,
    each_wait_of_a_message_has_its_own_end,
    what_is_refused_notes_no_wait,
);

async fn steps_are_there_when_the_message_comes_again(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entry = owner.take(1).await?.remove(0);
    let id = work(&tp, "group", entry.receipt.id)?;
    store(&mut owner, &entry, &[step("a", "1")]).await?;
    owner.settle_all(std::slice::from_ref(&entry), &retry(&entry, Duration::ZERO)).await?;
    expect(&h, &id, &[step("a", "1")], "of a retry without a wait").await?;
    let second = again(&mut owner).await?;
    store(&mut owner, &second, &[step("b", "2")]).await?;
    expect(&h, &id, &[step("a", "1"), step("b", "2")], "of two attempts").await?;
    let before = h.now().await?;
    park(&mut owner, &second, BRIEF, StepWait::sleep("nap")).await?;
    let after = h.now().await?;
    let ends = time_of(&h, &id, StepKind::Wait, "nap").await?;
    // The server rounds it to milliseconds.
    let latest = after.saturating_add(BRIEF + Duration::from_millis(2));
    ensure!((before.saturating_add(BRIEF)..=latest).contains(&ends), "{BRIEF:?} from {before} end at {ends}");
    let wait = steps(&h, &id).await?.pop();
    ensure!(wait.is_some_and(|wait| wait.value.is_empty()), "a wait has a value");
    again(&mut owner).await?;
    let came = h.now().await?;
    ensure!(came >= ends, "it came at {came}, the wait ends at {ends}");
    let expected = [(StepKind::Done, "a"), (StepKind::Done, "b"), (StepKind::Wait, "nap")];
    let found = names(&h, &id).await?;
    equal!(found.iter().map(|(kind, name)| (*kind, &**name)).collect::<Vec<_>>(), expected, "all steps");
    Ok(())
}

async fn a_wait_is_noted_once_and_its_first_end_counts(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entry = owner.take(1).await?.remove(0);
    let id = work(&tp, "group", entry.receipt.id)?;
    park(&mut owner, &entry, LONG, StepWait::signal("it")).await?;
    let ends = time_of(&h, &id, StepKind::Wait, "it").await?;
    equal!(signal(&h, &id, "it", "").await?, Signalled::Woken, "a signal");
    // Its handler does not look at the signal, and waits on.
    let second = again(&mut owner).await?;
    park(&mut owner, &second, Duration::ZERO, StepWait::sleep("it")).await?;
    none_is_due(&mut owner, "the first end is much later").await?;
    equal!(time_of(&h, &id, StepKind::Wait, "it").await?, ends, "the end that is noted");
    equal!(names(&h, &id).await?.len(), 2, "a wait and a signal");
    Ok(())
}

async fn a_wait_that_is_over_is_not_begun_again(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entry = owner.take(1).await?.remove(0);
    park(&mut owner, &entry, QUIET, StepWait::sleep("nap")).await?;
    let second = again(&mut owner).await?;
    let id = work(&tp, "group", entry.receipt.id)?;
    let ends = time_of(&h, &id, StepKind::Wait, "nap").await?;
    park(&mut owner, &second, LONG, StepWait::sleep("nap")).await?;
    let third = again(&mut owner).await?;
    equal!(time_of(&h, &id, StepKind::Wait, "nap").await?, ends, "the end that is noted");
    owner.ack(&[third]).await?;
    owner.nothing("it is settled").await
}

async fn a_sleep_is_not_ended_by_a_signal_that_came_before(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entry = owner.take(1).await?.remove(0);
    let id = work(&tp, "group", entry.receipt.id)?;
    equal!(signal(&h, &id, "nap", "").await?, Signalled::Stored, "a signal that nobody waits for");
    park(&mut owner, &entry, LONG, StepWait::sleep("nap")).await?;
    none_is_due(&mut owner, "a time is waited for").await
}

async fn each_wait_of_a_message_has_its_own_end(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entry = owner.take(1).await?.remove(0);
    let id = work(&tp, "group", entry.receipt.id)?;
    park(&mut owner, &entry, Duration::ZERO, StepWait::sleep("one")).await?;
    let second = again(&mut owner).await?;
    park(&mut owner, &second, LONG, StepWait::signal("two")).await?;
    none_is_due(&mut owner, "it waits for something else").await?;
    let (one, two) =
        (time_of(&h, &id, StepKind::Wait, "one").await?, time_of(&h, &id, StepKind::Wait, "two").await?);
    ensure!(one.saturating_add(LONG) <= two, "the waits end at {one} and {two}");
    equal!(signal(&h, &id, "three", "").await?, Signalled::Stored, "a signal of another name");
    none_is_due(&mut owner, "that was another signal").await?;
    equal!(signal(&h, &id, "two", "").await?, Signalled::Woken, "the signal that it waits for");
    again(&mut owner).await.map(drop)
}

async fn what_is_refused_notes_no_wait(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut former = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 1).await?;
    let entry = former.take(1).await?.remove(0);
    let id = work(&tp, "group", entry.receipt.id)?;
    let mut next = h.takeover(&former.lease).await?;
    let parked = waits(&entry, LONG, StepWait::sleep("nap"));
    let settled = h.backend.log().settle(&former.lease, &[(entry.receipt, parked.clone())]).await;
    refused(settled, ErrorKind::Fenced, "a settlement of a former owner")?;
    equal!(names(&h, &id).await?, [], "waits that a former owner noted");
    let entry = next.take(1).await?.remove(0);
    next.ack(std::slice::from_ref(&entry)).await?;
    equal!(next.settle(entry.receipt, parked).await?.stale, 1, "of what is settled");
    equal!(names(&h, &id).await?, [], "waits of what is settled");
    let (_, second) = (h.append_n(&tp, 1).await?, next.take(1).await?.remove(0));
    park(&mut next, &second, LONG, StepWait::sleep("nap")).await?;
    equal!(names(&h, &work(&tp, "group", second.receipt.id)?).await?.len(), 1, "of what is parked");
    Ok(())
}
