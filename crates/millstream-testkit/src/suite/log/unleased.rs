//! Trims without a lease: of producers, which take turns, and of operators.

use std::time::Duration;

use millstream_core::log::{Lost, Trimmed, UnleasedTrim};
use millstream_core::{GroupName, MessageId, Retention};

use super::suite;
use crate::case::{Verdict, ensure, equal};
use crate::harness::Harness;
use crate::owner::ids;

suite!("log":
    without_a_group_and_a_lease_a_bound_holds needs [UnleasedTrim],
    without_a_group_and_a_lease_what_is_old_goes needs [UnleasedTrim],
    clients_without_a_lease_take_turns needs [UnleasedTrim],
    a_stopped_group_loses_nothing_to_a_client_without_a_lease needs [UnleasedTrim],
    a_loss_to_a_client_without_a_lease_is_counted needs [UnleasedTrim],
    an_operator_trims_up_to_an_id needs [UnleasedTrim],
);

const HOUR: Duration = Duration::from_secs(3_600);

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
