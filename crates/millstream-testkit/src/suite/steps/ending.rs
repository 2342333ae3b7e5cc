//! Ending: what is settled has no steps, and a dead letter has them in its header.

use std::time::Duration;

use millstream_core::batches::Demand;
use millstream_core::dead_letters::DeadLetterAction;
use millstream_core::results::{MessageResult, StoredResult};
use millstream_core::schedule::RetryAction;
use millstream_core::steps::{StepKind, StepRecord, StepWait, WorkId};
use millstream_core::{
    DeadLetter, ErrorKind, GroupName, Limits, MessageId, Reason, Settlement, TopicPartition, wire,
};

use super::super::cancels::{self, removes};
use super::{
    again, expect, in_header, names, origin, park, signal, step, steps, store, suite, without_header, work,
};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG};
use crate::owner::{Owner, dead, retry};

suite!("steps":
    an_ack_drops_the_steps_that_it_names,
    an_ack_that_is_refused_drops_no_steps,
    a_dead_letter_has_its_steps_in_a_header needs [DeadLetters],
    a_killed_retry_has_its_steps_in_a_header needs [DeadLetters, SettleRetries],
    a_message_that_dies_again_has_the_steps_of_both needs [DeadLetters],
    a_cancelled_retry_leaves_no_steps needs [Cancels],
    steps_leave_with_their_group_and_their_topic,
);

/// Returns the settlement of a message that is done, and whose steps are dropped.
fn done(id: &WorkId) -> Settlement {
    let demand = Demand { steps: Some(id.id.clone().into()), ..Demand::default() };
    Settlement::AckWith(Box::new(StoredResult::new(demand, MessageResult::Done)))
}

async fn letters(h: &Harness, tp: &TopicPartition) -> Result<Vec<DeadLetter>, Violation> {
    Ok(h.letters(tp, &GroupName::new("group")?).await?.unwrap_or_default())
}

async fn an_ack_drops_the_steps_that_it_names(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut one, mut other) = (h.owner(&tp, "one").await?, h.owner(&tp, "other").await?);
    h.append_n(&tp, 3).await?;
    let (entries, of_other) = (one.take(3).await?, other.take(3).await?);
    let ids: Vec<_> = entries.iter().map(|it| work(&tp, "one", it.receipt.id)).collect::<Result<_, _>>()?;
    for entry in &entries {
        store(&mut one, entry, &[step("a", "1")]).await?;
    }
    store(&mut other, &of_other[0], &[step("b", "2")]).await?;
    for id in &ids {
        expect(&h, id, &[step("a", "1")], "before the settlement").await?;
    }
    one.settle_all(&entries[..1], &done(&ids[0])).await?;
    expect(&h, &ids[0], &[], "of what is done").await?;
    expect(&h, &ids[1], &[step("a", "1")], "of another message").await?;
    expect(&h, &work(&tp, "other", entries[0].receipt.id)?, &[step("b", "2")], "for another group").await?;
    // The redelivery has another id, and its steps the same.
    one.settle_all(&entries[1..2], &retry(&entries[1], Duration::ZERO)).await?;
    let second = again(&mut one).await?;
    one.settle_all(&[second], &done(&ids[1])).await?;
    expect(&h, &ids[1], &[], "of a retry that is done").await?;
    expect(&h, &ids[2], &[step("a", "1")], "of what is handled still").await
}

async fn an_ack_that_is_refused_drops_no_steps(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut former = h.brief_owner(&tp, "group", BRIEF).await?;
    h.append_n(&tp, 2).await?;
    let entries = former.take(2).await?;
    let ids = [work(&tp, "group", entries[0].receipt.id)?, work(&tp, "group", entries[1].receipt.id)?];
    for entry in &entries {
        store(&mut former, entry, &[step("a", "1")]).await?;
    }
    former.ack(&entries[1..]).await?;
    let stale = former.settle(entries[1].receipt, done(&ids[1])).await?;
    equal!(stale.stale, 1, "settlements of what is settled");
    let next = h.takeover(&former.lease).await?;
    let settled = h.backend.log().settle(&former.lease, &[(entries[0].receipt, done(&ids[0]))]).await;
    refused(settled, ErrorKind::Fenced, "a settlement of a former owner")?;
    for id in &ids {
        expect(&h, id, &[step("a", "1")], "behind that").await?;
    }
    let settled = h.backend.log().settle(&next.lease, &[(entries[0].receipt, done(&ids[0]))]).await?;
    equal!(settled.applied, 1, "settlements of the new owner");
    expect(&h, &ids[0], &[], "of what is done").await
}

async fn a_dead_letter_has_its_steps_in_a_header(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 3).await?;
    let entries = owner.take(3).await?;
    let id = work(&tp, "group", entries[0].receipt.id)?;
    store(&mut owner, &entries[0], &[step("a", "1"), step("b", "\0\n")]).await?;
    store(&mut owner, &entries[2], &[step("c", "3")]).await?;
    signal(&h, &id, "it", "yes").await?;
    let expected = steps(&h, &id).await?;
    equal!(expected.len(), 3, "steps of the message");
    for entry in &entries[..2] {
        owner.settle_all(std::slice::from_ref(entry), &dead(Reason::Exhausted, 3, entry.receipt.id)).await?;
    }
    let letters = letters(&h, &tp).await?;
    equal!(letters.len(), 2, "dead letters");
    equal!(in_header(&letters[0].body)?, expected, "the steps of a dead letter");
    equal!(without_header(&letters[0].body), entries[0].fields, "the rest of its body");
    equal!(letters[1].body, entries[1].fields, "the body of one without steps");
    expect(&h, &id, &[], "of what is dead").await?;
    let alive = work(&tp, "group", entries[2].receipt.id)?;
    expect(&h, &alive, &[step("c", "3")], "of what is handled still").await
}

async fn a_killed_retry_has_its_steps_in_a_header(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(2).await?;
    let id = work(&tp, "group", entries[0].receipt.id)?;
    store(&mut owner, &entries[0], &[step("a", "1")]).await?;
    park(&mut owner, &entries[0], LONG, StepWait::signal("it")).await?;
    owner.settle_all(&entries[1..], &retry(&entries[1], LONG)).await?;
    let expected = steps(&h, &id).await?;
    equal!(expected.len(), 2, "a step and a wait");
    let origins: Vec<_> = entries.iter().map(|it| it.receipt.id).collect();
    let (schedule, group) = (h.backend.schedule(), GroupName::new("group")?);
    let killed = schedule.settle_retries(&tp, &group, &origins, RetryAction::Kill).await?;
    equal!(killed, [true; 2], "retries that were killed");
    let letters = letters(&h, &tp).await?;
    equal!(letters.len(), 2, "dead letters");
    equal!(in_header(&letters[0].body)?, expected, "the steps of a retry that was killed");
    equal!(without_header(&letters[0].body), entries[0].fields, "the rest of its body");
    equal!(letters[1].body, entries[1].fields, "the body of one without steps");
    expect(&h, &id, &[], "of what is dead").await
}

/// Replays the only dead letter, and takes it.
async fn replay(h: &Harness, owner: &mut Owner) -> Result<millstream_core::log::Entry, Violation> {
    let (tp, group) = owner.lease.partition()?;
    let letters = letters(h, tp).await?;
    ensure!(letters.len() == 1, "{} dead letters, one was expected", letters.len());
    let deeds = [(letters[0].id, DeadLetterAction::Replay)];
    h.backend.dead_letters()?.settle(tp, group, None, &deeds).await?;
    Ok(owner.take_retries(1).await?.remove(0))
}

async fn a_message_that_dies_again_has_the_steps_of_both(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let mut entry = owner.take(1).await?.remove(0);
    let (id, fields) = (work(&tp, "group", entry.receipt.id)?, entry.fields.clone());
    let mut all: Vec<StepRecord> = Vec::new();
    for (name, value) in [("first", "1"), ("second", "2"), ("third", "3")] {
        let of_header = wire::decode(entry.receipt, &entry.fields, &Limits::NONE);
        let headers = of_header.envelope.map(|envelope| envelope.headers).unwrap_or_default();
        equal!(StepRecord::of(&headers)?, all, "what the handler finds in the header");
        expect(&h, &id, &[], "of what was replayed").await?;
        store(&mut owner, &entry, &[step(name, value)]).await?;
        all.push(step(name, value));
        let settlement = dead(Reason::Exhausted, 1, origin(&entry));
        owner.settle_all(std::slice::from_ref(&entry), &settlement).await?;
        let letters = letters(&h, &tp).await?;
        equal!(
            letters.iter().map(|it| in_header(&it.body)).collect::<Result<Vec<_>, _>>()?,
            [all.clone()],
            "of {name}"
        );
        equal!(without_header(&letters[0].body), fields, "the rest of its body");
        entry = replay(&h, &mut owner).await?;
    }
    // Of one that dies without further ones they stay.
    owner.settle_all(std::slice::from_ref(&entry), &dead(Reason::Exhausted, 1, origin(&entry))).await?;
    equal!(in_header(&letters(&h, &tp).await?[0].body)?, all, "the steps of one without further ones");
    Ok(())
}

async fn a_cancelled_retry_leaves_no_steps(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(2).await?;
    for entry in &entries {
        store(&mut owner, entry, &[step("a", "1")]).await?;
        park(&mut owner, entry, LONG, StepWait::sleep("nap")).await?;
    }
    let ids = [work(&tp, "group", entries[0].receipt.id)?, work(&tp, "group", entries[1].receipt.id)?];
    let both = [(StepKind::Done, "a".to_owned()), (StepKind::Wait, "nap".to_owned())];
    for id in &ids {
        equal!(names(&h, id).await?, both, "the steps of what is parked");
    }
    cancels::role(&h)?.cancel(&ids[0].place, &ids[0].id, &removes(None)).await?;
    expect(&h, &ids[0], &[], "of a retry that was cancelled").await?;
    equal!(names(&h, &ids[1]).await?, both, "the steps of another one");
    Ok(())
}

async fn steps_leave_with_their_group_and_their_topic(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let stored: Vec<MessageId> = h.append_n(&tp, 1).await?;
    let ids = [work(&tp, "one", stored[0])?, work(&tp, "other", stored[0])?];
    for group in ["one", "other"] {
        let mut owner = h.owner(&tp, group).await?;
        let entry = owner.take(1).await?.remove(0);
        store(&mut owner, &entry, &[step("a", group)]).await?;
    }
    expect(&h, &ids[0], &[step("a", "one")], "for a group").await?;
    expect(&h, &ids[1], &[step("a", "other")], "for another group").await?;
    h.backend.catalog().delete_group(&topic.name, &GroupName::new("one")?).await?;
    expect(&h, &ids[0], &[], "for a group that is deleted").await?;
    h.owner(&tp, "one").await?;
    expect(&h, &ids[0], &[], "for a group that is created again").await?;
    expect(&h, &ids[1], &[step("a", "other")], "for a group that stays").await?;
    h.backend.catalog().delete_topic(&topic.name).await?;
    for when in ["of a topic that is deleted", "of a topic that is created again"] {
        expect(&h, &ids[1], &[], when).await?;
        h.backend.catalog().create_topic(&topic).await?;
    }
    Ok(())
}
