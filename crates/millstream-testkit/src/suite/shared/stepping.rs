//! Steps where many consumers read a partition.

use std::sync::Arc;

use millstream_core::cancels::WorkPlace;
use millstream_core::log::{Entry, ProgressRight};
use millstream_core::schedule::Due;
use millstream_core::steps::{Signalled, StepKind, StepWait, WorkId};
use millstream_core::{ErrorKind, GroupName, History, Settlement};

use super::super::steps::{expect, names, role, signal, step};
use super::{Sharer, only, receipts, sharers, suite};
use crate::case::{Verdict, equal, refused};
use crate::harness::{Harness, LONG};

suite!("shared":
    whoever_has_an_entry_stores_its_steps needs [Steps],
    whoever_has_an_entry_hands_it_back_for_a_wait needs [Steps],
);

fn right(sharer: &Sharer, entry: &Entry) -> ProgressRight {
    let member = Arc::new(sharer.member.clone());
    ProgressRight::Consumer { member, partition: sharer.partitions[0], receipt: entry.receipt }
}

async fn whoever_has_an_entry_stores_its_steps(h: Harness) -> Verdict {
    let (topic, [mut a, b]) = sharers(&h, 1, ["a", "b"]).await?;
    let (tp, role) = (only(&topic), role(&h)?);
    h.append_n(&tp, 2).await?;
    let entries = a.take(2).await?;
    let place = WorkPlace::Group(tp.clone(), GroupName::new("group")?);
    let id = WorkId::new(place, entries[0].receipt.id);
    let foreign = role.store(&right(&b, &entries[0]), &id.id, &[step("b", "1")]).await;
    refused(foreign, ErrorKind::Fenced, "steps of what another consumer has")?;
    role.store(&right(&a, &entries[0]), &id.id, &[step("a", "1")]).await?;
    expect(&h, &id, &[step("a", "1")], "of who has it").await?;
    // Both: those of a pack are pending together.
    a.settle(&receipts(&entries), &Settlement::Ack).await?;
    let late = role.store(&right(&a, &entries[0]), &id.id, &[step("late", "2")]).await;
    refused(late, ErrorKind::Fenced, "steps of what is settled")?;
    expect(&h, &id, &[step("a", "1")], "behind that").await
}

async fn whoever_has_an_entry_hands_it_back_for_a_wait(h: Harness) -> Verdict {
    let (topic, [mut a, mut b]) = sharers(&h, 1, ["a", "b"]).await?;
    let tp = only(&topic);
    h.append_n(&tp, 1).await?;
    let entries = a.take(1).await?;
    let (place, origin) = (WorkPlace::Group(tp.clone(), GroupName::new("group")?), entries[0].receipt.id);
    let id = WorkId::new(place, origin);
    let waits = |wait| Settlement::Retry {
        due: Due::In(LONG),
        attempt: 1,
        origin,
        error: String::new(),
        history: History::default(),
        wait: Some(Box::new(wait)),
    };
    let all = receipts(&entries);
    let foreign = b.settle(&all, &waits(StepWait::signal("theirs"))).await?;
    equal!(foreign.stale, 1, "of what another consumer has");
    equal!(names(&h, &id).await?, [], "waits that another consumer has noted");
    equal!(a.settle(&all, &waits(StepWait::signal("it"))).await?.applied, 1, "of who has it");
    equal!(names(&h, &id).await?, [(StepKind::Wait, "it".to_owned())], "what is noted");
    b.nothing("it waits").await?;
    equal!(signal(&h, &id, "it", "").await?, Signalled::Woken, "a signal");
    // Somebody owns the schedule of the partition.
    let group = GroupName::new("group")?;
    let mut promoter = h.own(&tp, &group, LONG).await?;
    promoter.promote(1).await?;
    let again = b.take(1).await?;
    b.acks(&receipts(&again)).await?;
    b.nothing("it is settled").await
}
