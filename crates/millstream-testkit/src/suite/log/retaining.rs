//! The entries that a trim drops under each retention, and the groups that lose them.

use std::time::Duration;

use millstream_core::log::{Lost, Trimmed, UnleasedTrim};
use millstream_core::{GroupName, MessageId, Retention};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, LONG};
use crate::owner::ids;

suite!("log":
    a_stopped_group_loses_nothing,
    what_is_kept_is_not_trimmed,
    what_is_consumed_is_kept_for_a_time,
    what_is_not_consumed_is_kept_however_old,
    what_is_old_is_dropped_and_counted,
    what_is_too_much_is_dropped_and_counted,
    what_is_within_the_bounds_is_kept_for_replays,
    without_a_group_and_a_lease_a_bound_holds needs [UnleasedTrim],
    without_a_group_and_a_lease_what_is_old_goes needs [UnleasedTrim],
    clients_without_a_lease_take_turns needs [UnleasedTrim],
    a_stopped_group_loses_nothing_to_a_client_without_a_lease needs [UnleasedTrim],
    a_loss_to_a_client_without_a_lease_is_counted needs [UnleasedTrim],
    an_operator_trims_up_to_an_id needs [UnleasedTrim],
);

const HOUR: Duration = Duration::from_secs(3_600);

fn lost(group: &str, unread: u64, pending: u64) -> Result<Lost, Violation> {
    Ok(Lost { group: GroupName::new(group)?, unread, pending })
}

/// Three groups, one of them stopped halfway; whichever group trims, and however often.
async fn a_stopped_group_loses_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owners = [h.owner(&tp, "a").await?, h.owner(&tp, "b").await?, h.owner(&tp, "stopped").await?];
    let mut appended = h.append_n(&tp, 20).await?;
    let begun = owners[2].take(8).await?;
    owners[2].ack(&begun[..3]).await?;
    for _ in 0..3 {
        for owner in &mut owners[..2] {
            let entries = owner.take(10).await?;
            owner.ack(&entries).await?;
            for retention in [Retention::Consumed, Retention::ConsumedAfter(Duration::from_millis(1))] {
                let trimmed = h.trim_by(&owner.lease, retention).await?;
                equal!(trimmed.lost, [], "what a lossless trim lost");
            }
        }
        appended.extend(h.append_n(&tp, 10).await?);
    }
    // When it continues, it reads all entries, its pending ones first.
    owners[2].reopen().await?;
    let pending = owners[2].take(5).await?;
    equal!(ids(&pending), appended[3..8], "what was pending");
    let unread = owners[2].take(appended.len() - 8).await?;
    equal!(ids(&unread), appended[8..], "what was unread");
    owners[2].ack(&pending).await?;
    owners[2].ack(&unread).await?;
    for owner in &mut owners[..2] {
        let entries = owner.take(20).await?;
        owner.ack(&entries).await?;
    }
    h.trim_by(&owners[0].lease, Retention::Consumed).await?;
    h.expect_length(&tp, 0, "entries left when all have settled all").await
}

async fn what_is_kept_is_not_trimmed(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 5).await?;
    let entries = owner.take(5).await?;
    owner.ack(&entries).await?;
    equal!(
        h.trim_by(&owner.lease, Retention::Keep).await?,
        Trimmed::default(),
        "what a trim drops of what is kept"
    );
    h.expect_length(&tp, 5, "entries left").await
}

async fn what_is_consumed_is_kept_for_a_time(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 3).await?;
    let entries = owner.take(3).await?;
    owner.ack(&entries).await?;
    equal!(
        h.trim_by(&owner.lease, Retention::ConsumedAfter(HOUR)).await?.dropped,
        0,
        "entries that are young, dropped"
    );
    // A second partition provides the time, so that no entries are added to this one.
    let elsewhere = h.partition().await?;
    h.clock_passes(&elsewhere, appended[2].timestamp().saturating_add(Duration::from_millis(30))).await?;
    let trimmed = h.trim_by(&owner.lease, Retention::ConsumedAfter(Duration::from_millis(20))).await?;
    equal!(trimmed, Trimmed::new(3), "what is old and consumed");
    Ok(())
}

async fn what_is_not_consumed_is_kept_however_old(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_each(&tp, 5).await?;
    let entries = owner.take(3).await?;
    owner.ack(&entries[..2]).await?;
    let elsewhere = h.partition().await?;
    h.clock_passes(&elsewhere, appended[4].timestamp().saturating_add(Duration::from_millis(30))).await?;
    let trimmed = h.trim_by(&owner.lease, Retention::ConsumedAfter(Duration::from_millis(20))).await?;
    equal!(trimmed, Trimmed::new(2), "what is dropped before one that is pending");
    equal!(ids(&owner.take(2).await?), appended[3..], "what was unread");
    Ok(())
}

async fn what_is_old_is_dropped_and_counted(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let elsewhere = h.partition().await?;
    let mut half = h.owner(&tp, "half").await?;
    let mut all = h.owner(&tp, "all").await?;
    h.owner(&tp, "none").await?;
    let old = h.append_each(&tp, 6).await?;
    let entries = half.take(4).await?;
    half.ack(&entries[1..2]).await?;
    let entries = all.take(6).await?;
    all.ack(&entries).await?;
    equal!(
        h.trim_by(&all.lease, Retention::Age(HOUR)).await?,
        Trimmed::default(),
        "what is dropped of what is young"
    );
    h.clock_passes(&elsewhere, old[5].timestamp().saturating_add(Duration::from_millis(30))).await?;
    let trimmed = h.trim_by(&all.lease, Retention::Age(Duration::from_millis(20))).await?;
    equal!(trimmed.dropped, 6, "what is old, dropped");
    equal!(trimmed.lost, [lost("half", 2, 3)?, lost("none", 6, 0)?], "whose it was");
    let again = h.trim_by(&all.lease, Retention::Age(Duration::from_millis(20))).await?;
    equal!(again, Trimmed::default(), "what is lost again");
    let young = h.append_each(&tp, 2).await?;
    half.reopen().await?;
    let fetched = half.gather(3).await?;
    equal!(fetched.ghosts.len(), 3, "pending entries that are gone");
    equal!(ids(&half.take(2).await?), young, "what is left to read");
    Ok(())
}

async fn what_is_too_much_is_dropped_and_counted(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut fast = h.owner(&tp, "fast").await?;
    let mut slow = h.owner(&tp, "slow").await?;
    let appended = h.append_each(&tp, 250).await?;
    let entries = fast.take(250).await?;
    fast.ack(&entries).await?;
    let entries = slow.take(30).await?;
    slow.ack(&entries[..10]).await?;
    let trimmed = h.trim_by(&fast.lease, Retention::Length(77)).await?;
    equal!(trimmed.dropped, 173, "entries beyond the newest 77");
    equal!(trimmed.lost, [lost("slow", 143, 20)?], "whose they were");
    h.expect_length(&tp, 77, "entries left").await?;
    equal!(h.trim_by(&fast.lease, Retention::Length(77)).await?, Trimmed::default(), "what is dropped again");
    slow.reopen().await?;
    slow.fetch(100, Duration::ZERO).await?;
    equal!(ids(&slow.take(77).await?), appended[173..], "what is left to read");
    Ok(())
}

async fn what_is_within_the_bounds_is_kept_for_replays(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_each(&tp, 10).await?;
    let entries = owner.take(10).await?;
    owner.ack(&entries).await?;
    for retention in [Retention::Length(10), Retention::Length(u64::MAX), Retention::Age(HOUR)] {
        equal!(
            h.trim_by(&owner.lease, retention).await?,
            Trimmed::default(),
            "what is dropped within the bounds"
        );
    }
    equal!(h.trim_by(&owner.lease, Retention::Length(4)).await?, Trimmed::new(6), "by length");
    h.expect_length(&tp, 4, "the newest, which were to stay").await?;
    let late = GroupName::new("late")?;
    let topic = h.backend.catalog().topic(&tp.topic).await?;
    h.backend.catalog().create_group(&topic, &late, millstream_core::Start::After(MessageId::ZERO)).await?;
    let mut late = h.own(&tp, &late, LONG).await?;
    equal!(ids(&late.take(4).await?), appended[6..], "what a later group reads");
    Ok(())
}

async fn without_a_group_and_a_lease_a_bound_holds(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let log = h.backend.log();
    let before = log.trim_unleased(&tp, UnleasedTrim::Now(Retention::Length(3))).await?;
    equal!(before, Trimmed::default(), "what is dropped of a log that does not exist");
    let appended = h.append_each(&tp, 10).await?;
    for retention in
        [Retention::Consumed, Retention::ConsumedAfter(Duration::from_millis(1)), Retention::Keep]
    {
        let kept = log.trim_unleased(&tp, UnleasedTrim::Now(retention)).await?;
        equal!(kept, Trimmed::default(), "what is dropped without a group by another retention");
    }
    let trimmed = log.trim_unleased(&tp, UnleasedTrim::OncePerSecond(Retention::Length(3))).await?;
    equal!(trimmed, Trimmed::new(7), "entries beyond the newest three");
    let again = log.trim_unleased(&tp, UnleasedTrim::Now(Retention::Length(3))).await?;
    equal!(again, Trimmed::default(), "what is dropped again");
    let mut owner = h.owner(&tp, "later").await?;
    equal!(ids(&owner.take(3).await?), appended[7..], "what a later group reads");
    Ok(())
}

async fn without_a_group_and_a_lease_what_is_old_goes(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let log = h.backend.log();
    let appended = h.append_each(&tp, 4).await?;
    let young = log.trim_unleased(&tp, UnleasedTrim::Now(Retention::Age(HOUR))).await?;
    equal!(young, Trimmed::default(), "what is dropped of what is young");
    let mut deadline = h.wait_for("entries to grow old");
    let mut dropped = 0;
    while dropped < appended.len() {
        let age = Retention::Age(Duration::from_millis(20));
        dropped += log.trim_unleased(&tp, UnleasedTrim::Now(age)).await?.dropped;
        deadline.pause().await?;
    }
    h.expect_length(&tp, 0, "entries left when all are old").await
}

async fn clients_without_a_lease_take_turns(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let log = h.backend.log();
    let in_turn = UnleasedTrim::OncePerSecond(Retention::Length(1));
    h.append_each(&tp, 3).await?;
    let first = log.trim_unleased(&tp, in_turn).await?;
    equal!(first, Trimmed::new(2), "entries dropped in the first turn");
    h.append_each(&tp, 3).await?;
    let second = log.trim_unleased(&tp, in_turn).await?;
    ensure!(second.skipped && second.dropped == 0, "a second turn at once: {second:?}");
    // Neither an operator nor another partition waits.
    let other = h.partition().await?;
    h.append_each(&other, 3).await?;
    equal!(
        log.trim_unleased(&other, in_turn).await?,
        Trimmed::new(2),
        "entries dropped of another partition"
    );
    let by_hand = log.trim_unleased(&tp, UnleasedTrim::Now(Retention::Length(2))).await?;
    equal!(by_hand, Trimmed::new(2), "entries dropped by an operator");
    // So long a turn lasts.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let mut deadline = h.wait_for("the next turn");
    loop {
        let next = log.trim_unleased(&tp, in_turn).await?;
        if !next.skipped {
            equal!(next, Trimmed::new(1), "entries dropped in the next turn");
            return Ok(());
        }
        deadline.pause().await?;
    }
}

async fn a_stopped_group_loses_nothing_to_a_client_without_a_lease(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut stopped = h.owner(&tp, "stopped").await?;
    let appended = h.append_each(&tp, 6).await?;
    let begun = stopped.take(4).await?;
    stopped.ack(&begun[..2]).await?;
    let log = h.backend.log();
    let trimmed = log.trim_unleased(&tp, UnleasedTrim::OncePerSecond(Retention::Consumed)).await?;
    equal!(trimmed, Trimmed::new(2), "entries that the group has settled");
    let trimmed = log.trim_unleased(&tp, UnleasedTrim::Now(Retention::ConsumedAfter(HOUR))).await?;
    equal!(trimmed, Trimmed::default(), "what is dropped of what is young");
    stopped.reopen().await?;
    equal!(ids(&stopped.take(2).await?), appended[2..4], "what was pending");
    equal!(ids(&stopped.take(2).await?), appended[4..], "what was unread");
    Ok(())
}

async fn a_loss_to_a_client_without_a_lease_is_counted(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut half = h.owner(&tp, "half").await?;
    h.append_each(&tp, 6).await?;
    let begun = half.take(3).await?;
    half.ack(&begun[..1]).await?;
    let trimmed =
        h.backend.log().trim_unleased(&tp, UnleasedTrim::OncePerSecond(Retention::Length(1))).await?;
    equal!(trimmed.dropped, 5, "entries dropped");
    let lost = Lost { group: GroupName::new("half")?, unread: 2, pending: 2 };
    equal!(trimmed.lost, [lost], "whose they were");
    Ok(())
}

async fn an_operator_trims_up_to_an_id(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut half = h.owner(&tp, "half").await?;
    let appended = h.append_each(&tp, 8).await?;
    let begun = half.take(3).await?;
    half.ack(&begun[..1]).await?;
    let log = h.backend.log();
    equal!(
        log.trim_unleased(&tp, UnleasedTrim::Below(MessageId::new(1, 0))).await?,
        Trimmed::default(),
        "what is dropped below all ids"
    );
    let trimmed = log.trim_unleased(&tp, UnleasedTrim::Below(appended[5])).await?;
    equal!(trimmed.dropped, 5, "entries below an id");
    let lost = Lost { group: GroupName::new("half")?, unread: 2, pending: 2 };
    equal!(trimmed.lost, [lost], "whose they were");
    equal!(ids(&half.take(3).await?), appended[5..], "what is left to read");
    Ok(())
}
