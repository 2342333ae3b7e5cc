//! The dead-letters role in memory.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::dead_letters::{
    Claim, DeadLetterAction, DeadLetterRetention, DeadLetters, IMPORT_MEMORY, MAX_HOLD, TrimBy,
    TrimmedLetters, check_body,
};
use millstream_core::inspect::{Page, Range};
use millstream_core::wire::{self, Fields};
use millstream_core::{DeadLetter, GroupName, History, MessageId, Result, Timestamp, TopicPartition};

use crate::MemoryBackend;
use crate::clock::Now;
use crate::roles::inspect::page;
use crate::state::Group;
use crate::state::letter_claims::{Claimed, LetterClaims};
use crate::stream::bytes;

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
        let Page { items, more, .. } =
            if range.newest_first { page(between.rev(), limit, size) } else { page(between, limit, size) };
        let read = |(id, fields): &(MessageId, Fields)| {
            DeadLetter::from_entry(*id, topic_partition.clone(), group.clone(), fields)
        };
        Ok(Page::new(items.into_iter().map(read).collect(), more))
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
        let Some(Group { dead, letter_claims, .. }) = state.group(topic_partition, group) else {
            return Ok(Vec::new());
        };
        let free =
            |id: &MessageId, letter_claims: &LetterClaims| match letter_claims.holder(*id, now.timestamp()) {
                None => true,
                Some(Some(holder)) => holder == by,
                Some(None) => claim.left_too,
            };
        let until = now
            .plus(claim.hold.min(MAX_HOLD))
            .timestamp()
            .max(now.timestamp().saturating_add(Duration::from_millis(1)));
        letter_claims.forget(now.timestamp());
        letter_claims.claims.retain(|id, _| dead.get(*id).is_some());
        let mut claimed = Vec::new();
        for id in ids {
            if dead.get(*id).is_some() && free(id, letter_claims) {
                letter_claims.claims.insert(*id, Claimed { until, by: Some(by.to_owned()) });
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
        let Group { dead, letter_claims, .. } = state.partition(topic_partition).group(group);
        letter_claims.forget(now.timestamp());
        letter_claims.imports_until = now.plus(IMPORT_MEMORY).timestamp();
        let put = letters.iter().map(|letter| {
            let known = !again && letter_claims.imports.contains_key(&letter.id);
            if known || dead.get(letter.id).is_some() {
                return None;
            }
            let here = DeadLetter {
                topic_partition: topic_partition.clone(),
                group: group.clone(),
                ..letter.clone()
            };
            let id = dead.append(now.timestamp(), wire::dead_letter(&here, &here.body));
            letter_claims.imports.insert(letter.id, id);
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

    async fn trim(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        retention: DeadLetterRetention,
        by: TrimBy<'_>,
    ) -> Result<TrimmedLetters> {
        let mut state = self.lock();
        let now = self.now();
        if let TrimBy::Owner(lease) = by {
            state.owned(lease)?;
        }
        let Some(of_group) = state.group(topic_partition, group) else {
            return Ok(TrimmedLetters::default());
        };
        Ok(trim(of_group, retention, matches!(by, TrimBy::DryRun), now.timestamp()))
    }
}

/// Drops the letters that a retention does not keep, or only counts them.
fn trim(
    of_group: &mut Group,
    retention: DeadLetterRetention,
    only_count: bool,
    now: Timestamp,
) -> TrimmedLetters {
    let Group { dead, letter_claims, .. } = of_group;
    let (mut trimmed, mut dropped, length) = (TrimmedLetters::default(), Vec::new(), dead.len());
    for (nth, (id, _)) in dead.above(MessageId::ZERO).enumerate() {
        let age = now.saturating_duration_since(id.timestamp());
        let newer = u64::try_from(length - nth - 1).unwrap_or(u64::MAX);
        // They are in order: behind the first one that stays nothing is overdue.
        let Some(overdue) = retention.overdue(age, newer) else { break };
        if let Some(Some(_)) = letter_claims.holder(*id, now) {
            trimmed.claimed += 1;
        } else {
            trimmed.count(overdue);
            dropped.push(*id);
        }
    }
    if !only_count {
        for id in dropped {
            dead.remove(id);
            letter_claims.claims.remove(&id);
        }
    }
    trimmed
}

/// Applies an action to one letter. Returns false if it no longer exists, or is claimed by another caller.
fn settle(of_group: &mut Group, id: MessageId, deed: &DeadLetterAction, by: Option<&str>, now: Now) -> bool {
    let Group { dead, retry, letter_claims, .. } = of_group;
    let may = match letter_claims.holder(id, now.timestamp()) {
        None => true,
        Some(Some(holder)) => by == Some(holder),
        // A caller with a claim has lost it here: another one has claimed the letter since, and left it for later.
        Some(None) => by.is_none(),
    };
    if !may {
        return false;
    }
    let before = letter_claims.claims.remove(&id);
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
            retry.append(now.timestamp(), wire::redelivery(1, origin, "", &History::default(), body));
            true
        }
        DeadLetterAction::Purge => dead.remove(id).is_some(),
        DeadLetterAction::Leave(left) => {
            let mine = before.is_some_and(|before| before.by.is_some() && before.by.as_deref() == by);
            if mine && !left.is_zero() {
                let until = now
                    .plus((*left).min(MAX_HOLD))
                    .timestamp()
                    .max(now.timestamp().saturating_add(Duration::from_millis(1)));
                letter_claims.claims.insert(id, Claimed { until, by: None });
            }
            mine
        }
    }
}
