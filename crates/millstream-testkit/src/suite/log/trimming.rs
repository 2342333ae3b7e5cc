//! Trim: drops finished entries and no others; and the report if an operator dropped more.

use std::time::Duration;

use millstream_core::log::Lost;
use millstream_core::{ErrorKind, GroupName, MessageId, Retention, Settlement};

use super::suite;
use crate::case::{Verdict, ensure, equal, refused};
use crate::harness::{Harness, LONG, QUIET};
use crate::owner::ids;

suite!("log":
    trim_drops_what_every_group_has_settled,
    trim_keeps_what_a_slow_group_still_needs,
    trim_keeps_what_is_pending_behind_what_is_done,
    trim_without_a_group_drops_nothing,
    the_group_of_an_instance_keeps_nothing_and_its_losses_are_counted,
    where_instances_alone_read_nothing_is_settled;
    with an operator:
    a_lost_group_is_reported needs [Restore],
    a_deleted_entry_becomes_a_ghost,
    trim_keeps_what_is_unread_before_what_is_pending,
    trim_passes_over_ghosts,
    ghosts_are_not_counted_as_lost,
);

async fn trim_drops_what_every_group_has_settled(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut first = h.owner(&tp, "first").await?;
    let mut second = h.owner(&tp, "second").await?;
    h.append_each(&tp, 6).await?;
    for owner in [&mut first, &mut second] {
        let entries = owner.take(4).await?;
        owner.ack(&entries).await?;
    }
    equal!(h.trim(&first.lease).await?, 4, "entries dropped");
    equal!(h.trim(&second.lease).await?, 0, "entries dropped by a second trim");
    equal!(first.take(2).await?.len(), 2, "entries left");
    equal!(second.take(2).await?.len(), 2, "entries left for the second group");
    Ok(())
}

async fn trim_keeps_what_a_slow_group_still_needs(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut fast = h.owner(&tp, "fast").await?;
    let mut slow = h.owner(&tp, "slow").await?;
    let appended = h.append_each(&tp, 6).await?;
    let entries = fast.take(6).await?;
    fast.ack(&entries).await?;
    equal!(h.trim(&fast.lease).await?, 0, "entries dropped that a group has not read");
    let entries = slow.take(3).await?;
    equal!(ids(&entries), appended[..3], "what the slow group reads");
    slow.ack(&entries[..1]).await?;
    equal!(h.trim(&fast.lease).await?, 1, "entries dropped while two are pending and three unread");
    slow.reopen().await?;
    let pending = slow.gather(2).await?;
    equal!(ids(&pending.entries), appended[1..3], "what is pending, after the trim");
    equal!(ids(&slow.take(3).await?), appended[3..], "what was unread, after the trim");
    Ok(())
}

async fn trim_keeps_what_is_pending_behind_what_is_done(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 4).await?;
    let entries = owner.take(4).await?;
    owner.ack(&entries[1..]).await?;
    equal!(h.trim(&owner.lease).await?, 0, "entries dropped while the oldest is pending");
    owner.reopen().await?;
    let fetched = owner.fetch(10, Duration::ZERO).await?;
    equal!(ids(&fetched.entries), appended[..1], "what is pending");
    ensure!(fetched.ghosts.is_empty(), "ghosts: {:?}", fetched.ghosts);
    owner.ack(&fetched.entries).await?;
    equal!(h.trim(&owner.lease).await?, 4, "entries dropped when all are done");
    Ok(())
}

async fn trim_without_a_group_drops_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let appended = h.append_n(&tp, 3).await?;
    let stranger = GroupName::new("stranger")?;
    let without = h.own(&tp, &stranger, LONG).await?;
    equal!(h.trim(&without.lease).await?, 0, "entries dropped without a group");
    let mut owner = h.owner(&tp, "group").await?;
    equal!(ids(&owner.take(3).await?), appended, "what a later group reads");
    Ok(())
}

async fn the_group_of_an_instance_keeps_nothing_and_its_losses_are_counted(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut group = h.owner(&tp, "group").await?;
    let mut instance = h.owner(&tp, "cache~1").await?;
    let appended = h.append_each(&tp, 6).await?;
    let done = group.take(4).await?;
    group.ack(&done).await?;
    let read = instance.take(2).await?;
    instance.ack(&read[..1]).await?;
    let trimmed = h.backend.log().trim(&group.lease, Retention::Consumed).await?;
    equal!(trimmed.dropped, 4, "messages dropped that the group has settled");
    let name = GroupName::new("cache~1")?;
    equal!(trimmed.lost, [Lost { group: name, unread: 2, pending: 1 }], "what was lost, and to whom");
    equal!(ids(&instance.take(2).await?), appended[4..], "what is left to the instance");
    equal!(ids(&group.take(2).await?), appended[4..], "what is left to the group");
    // Each sees what the other has not settled.
    equal!(h.trim(&instance.lease).await?, 0, "messages dropped that the group has not settled");
    Ok(())
}

async fn where_instances_alone_read_nothing_is_settled(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut instance = h.owner(&tp, "cache~1").await?;
    h.append_each(&tp, 3).await?;
    let read = instance.take(3).await?;
    instance.ack(&read).await?;
    equal!(h.trim(&instance.lease).await?, 0, "messages dropped without a group that settles them");
    let mut group = h.owner(&tp, "group").await?;
    equal!(group.take(3).await?.len(), 3, "messages that a later group reads");
    Ok(())
}

async fn a_lost_group_is_reported(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    let appended = h.append_each(&tp, 4).await?;
    let entries = owner.take(2).await?;
    owner.ack(&entries).await?;
    h.operator()?.destroy_group(&tp, &group).await?;
    refused(owner.reader.fetch(10, QUIET).await, ErrorKind::GroupMissing, "a fetch without the group")?;
    h.backend.catalog().restore_group(&tp, &group, appended[1]).await?;
    equal!(ids(&owner.take(2).await?), appended[2..], "what is read after the group was restored");
    Ok(())
}

async fn a_deleted_entry_becomes_a_ghost(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_each(&tp, 3).await?;
    let entries = owner.take(3).await?;
    h.operator()?.delete_entry(&tp, appended[1]).await?;
    owner.reopen().await?;
    let fetched = owner.gather(3).await?;
    equal!(fetched.ghosts, [entries[1].receipt], "ghosts");
    equal!(ids(&fetched.entries), [appended[0], appended[2]], "what is left");
    owner.settle(entries[1].receipt, Settlement::Ack).await?;
    owner.reopen().await?;
    let fetched = owner.gather(2).await?;
    equal!(fetched.ghosts, [], "ghosts that were acked");
    Ok(())
}

/// An operator has moved the position back while an entry was pending: all entries above it are to be read again.
async fn trim_keeps_what_is_unread_before_what_is_pending(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut done = h.owner(&tp, "done").await?;
    let mut back = h.owner(&tp, "set-back").await?;
    let appended = h.append_each(&tp, 6).await?;
    let entries = done.take(6).await?;
    done.ack(&entries).await?;
    let entries = back.take(6).await?;
    back.ack(&entries[..5]).await?;
    let (_, group) = back.lease.partition()?;
    let group = group.clone();
    h.operator()?.set_position(&tp, &group, appended[1]).await?;
    equal!(h.trim(&done.lease).await?, 2, "entries dropped: those up to the position");
    back.reopen().await?;
    equal!(ids(&back.take(1).await?), appended[5..], "what is pending");
    equal!(ids(&back.take(4).await?), appended[2..], "what is read again");
    h.operator()?.set_position(&tp, &group, MessageId::ZERO).await?;
    equal!(h.trim(&done.lease).await?, 0, "entries dropped that are unread again");
    Ok(())
}

/// Nothing is kept for an entry that is gone, even if it is never settled.
async fn trim_passes_over_ghosts(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_each(&tp, 6).await?;
    let entries = owner.take(6).await?;
    owner.ack(&entries[2..3]).await?;
    owner.ack(&entries[4..5]).await?;
    for ghost in [0, 1, 3] {
        h.operator()?.delete_entry(&tp, appended[ghost]).await?;
    }
    equal!(h.trim(&owner.lease).await?, 2, "entries dropped before one that is pending, behind ghosts");
    owner.reopen().await?;
    let fetched = owner.gather(4).await?;
    equal!(ids(&fetched.entries), appended[5..], "what is pending");
    equal!(fetched.ghosts.len(), 3, "ghosts");
    Ok(())
}

async fn ghosts_are_not_counted_as_lost(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    let appended = h.append_each(&tp, 10).await?;
    owner.take(6).await?;
    for ghost in [0, 2, 3, 7] {
        h.operator()?.delete_entry(&tp, appended[ghost]).await?;
    }
    let trimmed = h.trim_by(&owner.lease, Retention::Length(1)).await?;
    equal!(trimmed.dropped, 5, "entries dropped of six");
    equal!(trimmed.lost, [Lost { group, unread: 2, pending: 3 }], "whose they were");
    Ok(())
}
