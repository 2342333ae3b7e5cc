//! The dead-letters role: no letter is lost, and each is replayed only once.

pub(super) mod claiming;
pub(super) mod putting;
pub(super) mod trimming;

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_core::envelope::Limits;
use millstream_core::inspect::Range;
use millstream_core::log::{Entry, Source};
use millstream_core::wire::{self, Fields};
use millstream_core::{DeadLetter, GroupName, History, MessageId, Reason, TopicPartition};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{Harness, foreign, message};
use crate::owner::{Owner, dead, retry_as};

suite!("dead_letters":
    a_dead_letter_keeps_its_story,
    a_body_that_is_no_message_is_kept_byte_for_byte,
    a_dead_letter_is_not_handed_out_again,
    a_retry_that_dies_keeps_origin_and_body,
    a_list_pages_in_order,
    a_list_is_of_what_lies_between_two_ids,
    every_group_has_its_own,
    a_replayed_message_is_a_first_attempt_of_its_origin,
    a_replay_reaches_its_own_group_only,
    of_two_replays_at_once_each_message_moves_once,
    a_replayed_message_can_die_again,
    what_is_purged_is_gone,
    unknown_ids_are_passed_over,
);

/// A group with dead letters.
struct Grave {
    h: Harness,
    tp: TopicPartition,
    group: GroupName,
    owner: Owner,
}

impl Grave {
    async fn new(h: Harness) -> Result<Self, Violation> {
        let tp = h.partition().await?;
        Self::of(h, tp, "group").await
    }

    async fn of(h: Harness, tp: TopicPartition, group: &str) -> Result<Self, Violation> {
        let owner = h.owner(&tp, group).await?;
        Ok(Self { h, tp, group: GroupName::new(group)?, owner })
    }

    /// Appends messages and makes each a dead letter. Returns their ids.
    async fn bury(&mut self, bodies: &[Fields]) -> Result<Vec<MessageId>, Violation> {
        let ids = self.h.append(&self.tp, bodies.to_vec()).await?;
        for entry in self.owner.take(bodies.len()).await? {
            self.owner
                .settle_all(std::slice::from_ref(&entry), &dead(Reason::Exhausted, 3, entry.receipt.id))
                .await?;
        }
        Ok(ids)
    }

    /// Returns all dead letters; there must be `count` of them.
    async fn list(&mut self, count: usize) -> Result<Vec<DeadLetter>, Violation> {
        let letters =
            self.h.backend.dead_letters()?.list(&self.tp, &self.group, Range::ALL, 1_000).await?.items;
        equal!(letters.len(), count, "dead letters");
        Ok(letters)
    }

    async fn ids(&mut self, count: usize) -> Result<Vec<MessageId>, Violation> {
        Ok(self.list(count).await?.iter().map(|letter| letter.id).collect())
    }

    async fn replay(&mut self, ids: &[MessageId]) -> Result<usize, Violation> {
        Ok(self.h.backend.dead_letters()?.replay(&self.tp, &self.group, ids).await?)
    }

    async fn replay_all(&mut self, count: usize) -> Verdict {
        let ids = self.ids(count).await?;
        equal!(self.replay(&ids).await?, count, "replayed");
        Ok(())
    }

    async fn purge(&mut self, ids: &[MessageId]) -> Result<usize, Violation> {
        Ok(self.h.backend.dead_letters()?.purge(&self.tp, &self.group, ids).await?)
    }
}

async fn a_dead_letter_keeps_its_story(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    let ids = grave.bury(&[message(0), message(1)]).await?;
    let letters = grave.list(2).await?;
    for (n, letter) in letters.iter().enumerate() {
        equal!(letter.reason, Reason::Exhausted, "the reason");
        equal!(letter.attempts, 3, "the attempts");
        equal!(letter.error, "gave up", "the error");
        equal!(letter.origin, ids[n], "the origin");
        equal!(letter.topic_partition, grave.tp, "the partition");
        equal!(letter.group, grave.group, "the group");
        equal!(letter.body, message(n), "the body");
        ensure!(letter.id.ms >= ids[n].ms, "died at {} before it was appended at {}", letter.id, ids[n]);
    }
    Ok(())
}

async fn a_body_that_is_no_message_is_kept_byte_for_byte(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    // The last one looks like a redelivery, but was appended to the log: all its fields are body.
    let bodies =
        [foreign(), wire::redelivery(7, MessageId::new(1, 1), "not ours", &History::default(), &message(0))];
    grave.bury(&bodies).await?;
    let letters = grave.list(2).await?;
    let kept: Vec<_> = letters.iter().map(|letter| &letter.body).collect();
    equal!(kept, bodies.iter().collect::<Vec<_>>(), "bodies");
    // Also after a replay.
    grave.replay_all(2).await?;
    let entries = grave.owner.take(2).await?;
    let back: Vec<_> = entries.iter().map(|entry| wire::body_of(Source::Retry, &entry.fields)).collect();
    equal!(back, bodies.iter().map(|body| &body[..]).collect::<Vec<_>>(), "replayed bodies");
    Ok(())
}

async fn a_dead_letter_is_not_handed_out_again(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1)]).await?;
    grave.owner.nothing("both are dead").await?;
    grave.owner.reopen().await?;
    grave.owner.nothing("both are dead, for a new reader").await?;
    grave.list(2).await?;
    equal!(grave.h.trim(&grave.owner.lease).await?, 2, "entries that are settled and trimmed");
    equal!(grave.list(2).await?[1].body, message(1), "the body, after the trim");
    Ok(())
}

async fn a_retry_that_dies_keeps_origin_and_body(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    let body = foreign();
    let origin = grave.h.append(&grave.tp, [body.clone()]).await?[0];
    let entries = grave.owner.take(1).await?;
    grave.owner.settle_all(&entries, &retry_as(2, origin, Duration::ZERO)).await?;
    grave.owner.promote(1).await?;
    let retried = grave.owner.take(1).await?;
    grave.owner.settle_all(&retried, &dead(Reason::Exhausted, 2, origin)).await?;
    let letters = grave.list(1).await?;
    equal!((letters[0].origin, letters[0].attempts), (origin, 2), "origin and attempts");
    equal!(letters[0].body, body, "the body");
    grave.owner.reopen().await?;
    grave.owner.nothing("the retry is settled").await
}

async fn a_list_pages_in_order(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    let bodies: Vec<_> = (0..7).map(message).collect();
    let origins = grave.bury(&bodies).await?;
    for newest_first in [false, true] {
        let mut range = Range { newest_first, ..Range::ALL };
        let mut listed = Vec::new();
        for (expected, more) in [(3, true), (3, true), (1, false)] {
            let page = grave.h.backend.dead_letters()?.list(&grave.tp, &grave.group, range, 3).await?;
            equal!(page.items.len(), expected, "dead letters on a page of up to 3");
            ensure!(page.more || !more, "a page says that it is the last, and is not");
            let last = page.items.last().map(|letter| letter.id);
            range = last.map_or(range, |last| range.behind(last));
            listed.extend(page.items.iter().map(|letter| letter.origin));
        }
        let rest = grave.h.backend.dead_letters()?.list(&grave.tp, &grave.group, range, 3).await?;
        equal!((rest.items.len(), rest.more), (0, false), "dead letters behind the last");
        if newest_first {
            listed.reverse();
        }
        equal!(listed, origins, "origins, page by page");
    }
    Ok(())
}

async fn a_list_is_of_what_lies_between_two_ids(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1), message(2), message(3)]).await?;
    let ids = grave.ids(4).await?;
    let range = Range { after: ids[0], before: ids[3], newest_first: false };
    let page = grave.h.backend.dead_letters()?.list(&grave.tp, &grave.group, range, 10).await?;
    equal!(page.items.iter().map(|letter| letter.id).collect::<Vec<_>>(), ids[1..3], "between the ends");
    let empty = Range { after: ids[1], before: ids[2], newest_first: true };
    let page = grave.h.backend.dead_letters()?.list(&grave.tp, &grave.group, empty, 10).await?;
    equal!((page.items.len(), page.more), (0, false), "between neighbours");
    Ok(())
}

async fn every_group_has_its_own(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let mut graves = Vec::new();
    for tp in topic.iter() {
        for group in ["first", "second"] {
            graves.push(Grave::of(h.clone(), tp.clone(), group).await?);
        }
    }
    let origins = graves[0].bury(&[message(0)]).await?;
    graves[0].list(1).await?;
    for grave in &mut graves[1..] {
        grave.list(0).await?;
    }
    let mut entries = graves[1].owner.take(1).await?;
    let entry = entries.remove(0);
    equal!(entry.receipt.id, origins[0], "what the other group still reads");
    Ok(())
}

fn decoded(entry: &Entry) -> wire::Decoded {
    wire::decode(entry.receipt, &entry.fields, &Limits::default())
}

async fn a_replayed_message_is_a_first_attempt_of_its_origin(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    let origins = grave.bury(&[message(0), message(1), message(2)]).await?;
    let ids = grave.ids(3).await?;
    equal!(grave.replay(&ids[1..2]).await?, 1, "replayed");
    let entries = grave.owner.take(1).await?;
    equal!(entries[0].receipt.source, Source::Retry, "where it was read");
    let back = decoded(&entries[0]);
    equal!((back.attempt, back.origin), (1, origins[1]), "attempt and origin");
    equal!(entries[0].deliveries, 1, "deliveries");
    equal!(wire::body_of(Source::Retry, &entries[0].fields), &message(1)[..], "the body");
    grave.owner.nothing("one was replayed").await?;
    equal!(grave.ids(2).await?, [ids[0], ids[2]], "dead letters that are left");
    grave.owner.ack(&entries).await
}

async fn a_replay_reaches_its_own_group_only(h: Harness) -> Verdict {
    let mut grave = Grave::new(h.clone()).await?;
    let mut other = h.owner(&grave.tp, "other").await?;
    grave.bury(&[message(0)]).await?;
    let entries = other.take(1).await?;
    other.ack(&entries).await?;
    grave.replay_all(1).await?;
    other.nothing("the replay is another group's").await?;
    equal!(grave.owner.take(1).await?.len(), 1, "replayed messages");
    Ok(())
}

async fn of_two_replays_at_once_each_message_moves_once(h: Harness) -> Verdict {
    const COUNT: usize = 20;
    let mut grave = Grave::new(h).await?;
    let bodies: Vec<_> = (0..COUNT).map(message).collect();
    grave.bury(&bodies).await?;
    let ids = grave.ids(COUNT).await?;
    let replays = [(); 2].map(|()| {
        let (h, tp, group, ids) = (grave.h.clone(), grave.tp.clone(), grave.group.clone(), ids.clone());
        tokio::spawn(async move { h.backend.dead_letters()?.replay(&tp, &group, &ids).await })
    });
    let mut moved = 0;
    for replay in replays {
        moved += replay.await.map_err(|error| Violation::new(error.to_string()))??;
    }
    equal!(moved, COUNT, "messages moved by both");
    equal!(grave.replay(&ids).await?, 0, "messages moved by a third replay");
    let entries = grave.owner.take(COUNT).await?;
    let origins: BTreeSet<_> = entries.iter().map(|entry| decoded(entry).origin).collect();
    equal!(origins.len(), COUNT, "different messages");
    grave.owner.nothing("each came once").await?;
    grave.list(0).await?;
    Ok(())
}

async fn a_replayed_message_can_die_again(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    let body = foreign();
    let origin = grave.bury(std::slice::from_ref(&body)).await?[0];
    for round in 0..3 {
        let ids = grave.ids(1).await?;
        equal!(grave.replay(&ids).await?, 1, "replayed");
        let entries = grave.owner.take(1).await?;
        equal!(decoded(&entries[0]).origin, origin, "the origin in round {round}");
        grave.owner.settle_all(&entries, &dead(Reason::Rejected, 1, origin)).await?;
    }
    let letters = grave.list(1).await?;
    equal!((&letters[0].reason, letters[0].origin), (&Reason::Rejected, origin), "reason and origin");
    equal!(letters[0].body, body, "the body");
    Ok(())
}

async fn what_is_purged_is_gone(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    grave.bury(&[message(0), message(1), message(2)]).await?;
    let ids = grave.ids(3).await?;
    equal!(grave.purge(&ids[..2]).await?, 2, "purged");
    equal!(grave.ids(1).await?, ids[2..], "dead letters that are left");
    equal!(grave.purge(&ids[..2]).await?, 0, "purged a second time");
    equal!(grave.replay(&ids[..2]).await?, 0, "replayed of what was purged");
    grave.owner.nothing("what was purged does not come back").await
}

async fn unknown_ids_are_passed_over(h: Harness) -> Verdict {
    let mut grave = Grave::new(h).await?;
    let unknown = [MessageId::new(1, 0), MessageId::MAX];
    equal!(grave.replay(&unknown).await?, 0, "replayed where nothing is");
    equal!(grave.purge(&unknown).await?, 0, "purged where nothing is");
    grave.list(0).await?;
    grave.bury(&[message(0), message(1)]).await?;
    let ids = grave.ids(2).await?;
    equal!(grave.replay(&[unknown[0], ids[0], unknown[1], ids[0]]).await?, 1, "replayed beside unknown ids");
    equal!(grave.purge(&[unknown[0], ids[1], unknown[1], ids[1]]).await?, 1, "purged beside unknown ids");
    equal!(grave.replay(&[]).await?, 0, "replayed of nothing");
    Ok(())
}
