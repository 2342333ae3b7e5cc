//! The dead-letters role in memory.

use std::collections::BTreeMap;

use async_trait::async_trait;
use millstream_core::dead_letters::{
    Claim, DeadLetterAction, DeadLetters, IMPORT_MEMORY, MAX_HOLD, check_body,
};
use millstream_core::inspect::{Page, Range};
use millstream_core::wire::{self, Fields};
use millstream_core::{DeadLetter, GroupName, History, MessageId, Result, TopicPartition};

use crate::MemoryBackend;
use crate::clock::Now;
use crate::roles::inspect::page;
use crate::state::Group;
use crate::stream::bytes;

/// Claims of a group's dead letters, and the letters that were put back.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueUnderTest {
    claims: BTreeMap<MessageId, Claimed>,
    /// New ids of letters that were put back, by their old ids; all expire at the same time.
    imports: BTreeMap<MessageId, MessageId>,
    imports_until: u64,
}

#[derive(Clone, Debug)]
struct Claimed {
    /// Milliseconds since 1970.
    until: u64,
    /// Name of the claim; `None` for a letter that was left for later.
    by: Option<String>,
}

impl QueueUnderTest {
    /// Returns the name of an unexpired claim; `Some(None)` for a letter that was left for later.
    fn holder(&self, id: MessageId, now: u64) -> Option<Option<&str>> {
        self.claims.get(&id).filter(|it| it.until > now).map(|it| it.by.as_deref())
    }

    fn forget(&mut self, now: u64) {
        self.claims.retain(|_, claimed| claimed.until > now);
        if self.imports_until <= now {
            self.imports.clear();
        }
    }
}

#[async_trait]
impl DeadLetters for MemoryBackend {
    async fn list(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        range: Range,
        limit: usize,
    ) -> Result<Page<DeadLetter>> {
        let mut state = self.lock();
        let of_group = state.group(topic_partition, group).filter(|_| !range.is_empty());
        let Some(of_group) = of_group else { return Ok(Page::empty()) };
        let between = of_group.dead.between(range.after, range.before);
        let size = |(_, fields): &&(MessageId, Fields)| bytes(fields);
        let Page { items, more } =
            if range.newest_first { page(between.rev(), limit, size) } else { page(between, limit, size) };
        let read = |(id, fields): &(MessageId, Fields)| {
            DeadLetter::from_entry(*id, topic_partition.clone(), group.clone(), fields)
        };
        Ok(Page { items: items.into_iter().map(read).collect(), more })
    }

    async fn claim(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
        claim: &Claim,
    ) -> Result<Vec<MessageId>> {
        let by = claim.check()?;
        let mut state = self.lock();
        let now = self.now();
        let Some(Group { dead, desk, .. }) = state.group(topic_partition, group) else {
            return Ok(Vec::new());
        };
        let free = |id: &MessageId, desk: &QueueUnderTest| match desk.holder(*id, now.millis()) {
            None => true,
            Some(Some(holder)) => holder == by,
            Some(None) => claim.left_too,
        };
        let until = now.plus(claim.hold.min(MAX_HOLD)).millis().max(now.millis() + 1);
        desk.forget(now.millis());
        desk.claims.retain(|id, _| dead.get(*id).is_some());
        let mut claimed = Vec::new();
        for id in ids {
            if dead.get(*id).is_some() && free(id, desk) {
                desk.claims.insert(*id, Claimed { until, by: Some(by.to_owned()) });
                claimed.push(*id);
            }
        }
        Ok(claimed)
    }

    async fn settle(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        by: Option<&str>,
        deeds: &[(MessageId, DeadLetterAction)],
    ) -> Result<Vec<MessageId>> {
        deeds.iter().try_for_each(|(_, deed)| deed.check())?;
        let mut state = self.lock();
        let now = self.now();
        let Some(of_group) = state.group(topic_partition, group) else { return Ok(Vec::new()) };
        let settled = deeds.iter().filter(|(id, deed)| settle(of_group, *id, deed, by, now));
        let settled = settled.map(|(id, _)| *id).collect();
        state.partition(topic_partition).wake.notify_waiters();
        Ok(settled)
    }

    async fn put(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        letters: &[DeadLetter],
        again: bool,
    ) -> Result<Vec<Option<MessageId>>> {
        letters.iter().try_for_each(|letter| check_body(&letter.body))?;
        let mut state = self.lock();
        let now = self.now();
        let Group { dead, desk, .. } = state.partition(topic_partition).group(group);
        desk.forget(now.millis());
        desk.imports_until = now.plus(IMPORT_MEMORY).millis();
        let put = letters.iter().map(|letter| {
            let known = !again && desk.imports.contains_key(&letter.id);
            if known || dead.get(letter.id).is_some() {
                return None;
            }
            let here = DeadLetter {
                topic_partition: topic_partition.clone(),
                group: group.clone(),
                ..letter.clone()
            };
            let id = dead.append(now.millis(), wire::dead_letter(&here, &here.body));
            desk.imports.insert(letter.id, id);
            Some(id)
        });
        Ok(put.collect())
    }

    async fn purge_through(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        last: MessageId,
    ) -> Result<usize> {
        let mut state = self.lock();
        let of_group = state.group(topic_partition, group);
        Ok(of_group.map_or(0, |of_group| of_group.dead.drop_below(last.next())))
    }
}

/// Applies an action to one letter. Returns false if it no longer exists, or is claimed by another caller.
fn settle(of_group: &mut Group, id: MessageId, deed: &DeadLetterAction, by: Option<&str>, now: Now) -> bool {
    let Group { dead, retry, desk, .. } = of_group;
    let may = match desk.holder(id, now.millis()) {
        None => true,
        Some(Some(holder)) => by == Some(holder),
        // A caller with a claim has lost it here: another one has claimed the letter since, and left it for later.
        Some(None) => by.is_none(),
    };
    if !may {
        return false;
    }
    let before = desk.claims.remove(&id);
    match deed {
        DeadLetterAction::Replay | DeadLetterAction::ReplayAs(_) => {
            let Some(fields) = dead.remove(id) else { return false };
            let (lead, mut body) = wire::split_dead(&fields);
            let origin = wire::text(lead, wire::ORIGIN).and_then(|id| id.parse().ok()).unwrap_or(id);
            if let DeadLetterAction::ReplayAs(other) = deed
                && !other.is_empty()
            {
                body = other;
            }
            retry.append(now.millis(), wire::redelivery(1, origin, "", &History::default(), body));
            true
        }
        DeadLetterAction::Purge => dead.remove(id).is_some(),
        DeadLetterAction::Leave(left) => {
            let mine = before.is_some_and(|before| before.by.is_some() && before.by.as_deref() == by);
            if mine && !left.is_zero() {
                let until = now.plus((*left).min(MAX_HOLD)).millis().max(now.millis() + 1);
                desk.claims.insert(id, Claimed { until, by: None });
            }
            mine
        }
    }
}
