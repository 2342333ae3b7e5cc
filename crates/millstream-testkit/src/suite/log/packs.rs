//! Packs: messages that are stored together, handed out together and dropped together, and settled one by one.

use millstream_core::catalog::Start;
use millstream_core::log::{Trimmed, UnleasedTrim};
use millstream_core::{GroupName, Retention, TopicPartition};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, LONG};
use crate::owner::ids;

suite!("log":
    a_pack_is_pending_until_all_of_it_is_settled,
    a_pack_stays_until_every_group_has_settled_all_of_it,
    the_figures_of_packs_are_those_of_their_messages needs [Stats],
    packs_are_trimmed_without_a_lease needs [UnleasedTrim],
    a_position_inside_of_a_pack_is_exact needs [Seek, Stats],
);

async fn a_pack_is_pending_until_all_of_it_is_settled(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 4).await?;
    let first = owner.take(1).await?;
    equal!(ids(&first), appended[..1], "what is read first");
    ensure!(first[0].receipt.pack.is_some(), "it is not of a pack: {:?}", first[0].receipt);
    owner.ack(&first).await?;
    for _ in 0..2 {
        owner.reopen().await?;
        let rest = owner.take(3).await?;
        equal!(ids(&rest), appended[1..], "what is not settled of the pack");
    }
    owner.reopen().await?;
    let rest = owner.take(3).await?;
    owner.ack(&rest[1..]).await?;
    owner.reopen().await?;
    let last = owner.take(1).await?;
    equal!(ids(&last), appended[1..2], "what is left of the pack");
    owner.ack(&last).await?;
    owner.reopen().await?;
    owner.nothing("all of it is settled").await
}

async fn a_pack_stays_until_every_group_has_settled_all_of_it(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut fast = h.owner(&tp, "fast").await?;
    let mut slow = h.owner(&tp, "slow").await?;
    h.append_n(&tp, 6).await?;
    let entries = fast.take(6).await?;
    fast.ack(&entries).await?;
    let entries = slow.take(6).await?;
    slow.ack(&entries[..4]).await?;
    equal!(h.trim(&fast.lease).await?, 0, "what is dropped of a pack of which two are pending");
    h.expect_length(&tp, 6, "messages of the pack").await?;
    slow.ack(&entries[4..]).await?;
    h.trim(&fast.lease).await?;
    h.expect_length(&tp, 0, "messages of a pack that all have settled").await
}

/// A pack stays until all of it may go.
async fn packs_are_trimmed_without_a_lease(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    for _ in 0..5 {
        h.append_n(&tp, 4).await?;
    }
    let in_turn = UnleasedTrim::OncePerSecond(Retention::Length(10));
    let trimmed = h.backend.log().trim_unleased(&tp, in_turn).await?;
    equal!(trimmed, Trimmed::new(8), "messages of packs beyond the newest ten");
    let mut owner = h.owner(&tp, "half").await?;
    let entries = owner.take(2).await?;
    owner.ack(&entries[..1]).await?;
    let trimmed = h.backend.log().trim_unleased(&tp, UnleasedTrim::Now(Retention::Length(4))).await?;
    equal!(trimmed.dropped, 8, "messages of packs beyond the newest four");
    // Of its first pack one is settled.
    let lost: Vec<_> = trimmed.lost.iter().map(|lost| lost.unread + lost.pending).collect();
    equal!(lost, [7], "messages that the group lost");
    h.expect_length(&tp, 4, "messages left").await
}

async fn the_figures_of_packs_are_those_of_their_messages(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let group = GroupName::new("group")?;
    h.backend.catalog().create_group(&topic, &group, Start::Earliest).await?;
    h.append_n(&tp, 6).await?;
    h.append_each(&tp, 2).await?;
    let figures = async || {
        let stats = h.backend.catalog().stats(&topic, &group).await?;
        Ok::<_, Violation>(stats.first().map(|it| (it.length, it.lag, it.pending)))
    };
    equal!(figures().await?, Some((8, Some(8), 0)), "before anything is read");
    let mut owner = h.own(&tp, &group, LONG).await?;
    let entries = owner.take(6).await?;
    equal!(figures().await?, Some((8, Some(2), 6)), "behind a pack of six");
    owner.ack(&entries[..5]).await?;
    equal!(figures().await?, Some((8, Some(2), 1)), "with five settled");
    owner.ack(&entries[5..]).await?;
    equal!(figures().await?, Some((8, Some(2), 0)), "with all settled");
    Ok(())
}

async fn a_position_inside_of_a_pack_is_exact(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let appended = h.append_n(&tp, 6).await?;
    let inside = GroupName::new("inside")?;
    h.backend.catalog().create_group(&topic, &inside, Start::After(appended[1])).await?;
    let lag = h.backend.catalog().stats(&topic, &inside).await?.first().and_then(|stats| stats.lag);
    equal!(lag, Some(4), "the lag of a group that begins inside of a pack");
    let mut owner = h.own(&tp, &inside, LONG).await?;
    let entries = owner.take(4).await?;
    equal!(ids(&entries), appended[2..], "what it reads");
    owner.ack(&entries).await?;
    owner.seek(Start::After(appended[3])).await?;
    equal!(ids(&owner.take(2).await?), appended[4..], "what it reads after a seek into the pack");
    owner.nothing("the rest is before its position").await
}
