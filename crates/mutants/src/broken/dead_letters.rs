//! Mistakes of the dead-letters role.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream_core::dead_letters::{
    Claim, DeadLetterAction, DeadLetterRetention, MAX_HOLD, TrimBy, TrimmedLetters,
};
use millstream_core::inspect::{Page, Range};
use millstream_core::log::Append;
use millstream_core::{
    Capability, DeadLetter, DeadLetters, GroupName, Log, MessageId, Result, TopicPartition,
};

use super::{Broken, Mutant};

#[async_trait]
impl DeadLetters for Broken {
    async fn list(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        range: Range,
        limit: usize,
    ) -> Result<Page<DeadLetter>> {
        let range = if self.is(Mutant::ListUnpaged) {
            Range { newest_first: range.newest_first, ..Range::ALL }
        } else {
            range
        };
        let inner = self.inner.dead_letters()?;
        let mut page = inner.list(topic_partition, group, range, limit).await?;
        let letters = &mut page.items;
        letters.iter_mut().for_each(|letter| self.spoil_dead_steps(&mut letter.body));
        match self.sabotage {
            Mutant::ListReversed => letters.reverse(),
            Mutant::DeadLettersShared => {
                let others: Vec<_> = self.memo().groups.iter().cloned().collect();
                for (tp, other) in others {
                    if tp.topic == topic_partition.topic && (&tp, &other) != (topic_partition, group) {
                        letters.extend(inner.list(&tp, &other, range, limit).await?.items);
                    }
                }
            }
            Mutant::DeadBodyMangled => {
                for (name, value) in letters.iter_mut().flat_map(|letter| &mut letter.body) {
                    for bytes in [name, value] {
                        *bytes = Bytes::from(String::from_utf8_lossy(bytes).into_owned());
                    }
                }
            }
            Mutant::ReplayCopies | Mutant::DeleteKeepsRetries => {
                let replayed = self.memo().replayed.clone();
                let mine = replayed.into_iter().filter(|letter| {
                    (&letter.topic_partition, &letter.group) == (topic_partition, group)
                        && letter.id > range.after
                });
                letters.extend(mine);
                letters.sort_by_key(|letter| letter.id);
                letters.truncate(limit);
            }
            _ => {}
        }
        Ok(page)
    }

    async fn claim(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        ids: &[MessageId],
        claim: &Claim,
    ) -> Result<Vec<MessageId>> {
        let mut claim = claim.clone();
        match self.sabotage {
            Mutant::ClaimsShared => claim.by = "everybody".into(),
            Mutant::ClaimForever | Mutant::TrimDeadKeepsExpired => claim.hold = Duration::from_secs(3_600),
            Mutant::LeftForgotten => claim.left_too = true,
            Mutant::LeftForGood => claim.left_too = false,
            _ => {}
        }
        let claimed = self.inner.dead_letters()?.claim(topic_partition, group, ids, &claim).await?;
        Ok(if self.is(Mutant::ClaimUnchecked) { ids.to_vec() } else { claimed })
    }

    async fn settle(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        by: Option<&str>,
        deeds: &[(MessageId, DeadLetterAction)],
    ) -> Result<Vec<MessageId>> {
        let inner = self.inner.dead_letters()?;
        let ids: Vec<_> = deeds.iter().map(|(id, _)| *id).collect();
        let mut deeds = deeds.to_vec();
        let mut by = by;
        match self.sabotage {
            Mutant::ClaimsShared if by.is_some() => by = Some("everybody"),
            Mutant::ClaimsNobodys => by = None,
            Mutant::ClaimsIgnored => return self.settle_unclaimed(topic_partition, group, &deeds).await,
            Mutant::LeaveUnchecked => {
                let by = by.unwrap_or("somebody").to_owned();
                let claim = Claim { by, hold: Duration::from_secs(1), left_too: true };
                inner.claim(topic_partition, group, &ids, &claim).await?;
                return inner.settle(topic_partition, group, Some(&claim.by), &deeds).await;
            }
            Mutant::LeftIsAnybodys if by.is_some() => {
                let mut settled = inner.settle(topic_partition, group, by, &deeds).await?;
                settled.extend(inner.settle(topic_partition, group, None, &deeds).await?);
                return Ok(settled);
            }
            Mutant::EditForgotten => {
                for (_, deed) in &mut deeds {
                    if let DeadLetterAction::ReplayAs(_) = deed {
                        *deed = DeadLetterAction::Replay;
                    }
                }
            }
            Mutant::PurgeForgotten if deeds.iter().all(|(_, deed)| *deed == DeadLetterAction::Purge) => {
                return Ok(ids);
            }
            Mutant::ReplayCopies | Mutant::ReplayToTheLog => {
                let known = inner.list(topic_partition, group, Range::ALL, usize::MAX).await?.items;
                let replayed =
                    deeds.iter().filter(|(_, deed)| *deed == DeadLetterAction::Replay).map(|(id, _)| *id);
                let replayed: Vec<_> = replayed.collect();
                let letters: Vec<_> =
                    known.into_iter().filter(|letter| replayed.contains(&letter.id)).collect();
                if self.is(Mutant::ReplayCopies) {
                    self.memo().replayed.extend(letters);
                    inner.settle(topic_partition, group, by, &deeds).await?;
                    return Ok(ids);
                }
                for letter in letters {
                    let entry = Append::new(topic_partition.clone(), letter.body);
                    for result in self.append(&[entry]).await {
                        result?;
                    }
                }
                for (_, deed) in &mut deeds {
                    if *deed == DeadLetterAction::Replay {
                        *deed = DeadLetterAction::Purge;
                    }
                }
            }
            _ => {}
        }
        inner.settle(topic_partition, group, by, &deeds).await
    }

    async fn put(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        letters: &[DeadLetter],
        again: bool,
    ) -> Result<Vec<Option<MessageId>>> {
        let again = again && !self.is(Mutant::PutOnce) || self.is(Mutant::PutTwice);
        let put = self.inner.dead_letters()?.put(topic_partition, group, letters, again).await?;
        if self.is(Mutant::PutForgotten) {
            let ids: Vec<_> = put.iter().flatten().copied().collect();
            self.inner.dead_letters()?.purge(topic_partition, group, &ids).await?;
        }
        Ok(put)
    }

    async fn purge_through(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        last: MessageId,
    ) -> Result<usize> {
        let inner = self.inner.dead_letters()?;
        match self.sabotage {
            Mutant::PurgeForgotten => {
                let range = Range { before: last.next(), ..Range::ALL };
                Ok(inner.list(topic_partition, group, range, usize::MAX).await?.items.len())
            }
            Mutant::PurgeIgnoresIds => inner.purge_through(topic_partition, group, MessageId::MAX).await,
            _ => inner.purge_through(topic_partition, group, last).await,
        }
    }

    async fn trim(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        retention: DeadLetterRetention,
        by: TrimBy<'_>,
    ) -> Result<TrimmedLetters> {
        self.supports(Capability::TrimDeadLetters)?;
        let inner = self.inner.dead_letters()?;
        let (mut retention, mut by) = (retention, by);
        match (self.sabotage, by) {
            (Mutant::TrimDeadForgotten, _) => by = TrimBy::DryRun,
            (Mutant::TrimDeadDryRunDrops, TrimBy::DryRun)
            | (Mutant::FenceIgnoredOnTrimDead, TrimBy::Owner(_)) => {
                by = TrimBy::Operator;
            }
            (Mutant::TrimDeadForgetsAge, _) => {
                let length = retention.max_length();
                retention = length.map_or(DeadLetterRetention::KEEP, DeadLetterRetention::length);
            }
            (Mutant::TrimDeadForgetsLength, _) => {
                let age = retention.max_age();
                retention = age.map_or(DeadLetterRetention::KEEP, DeadLetterRetention::age);
            }
            (Mutant::TrimDeadStopsAtClaims, _) => {
                let TrimmedLetters { claimed, .. } =
                    inner.trim(topic_partition, group, retention, TrimBy::DryRun).await?;
                let length = retention.max_length().map(|length| length + claimed);
                retention = length.map_or(retention, |length| retention.and_length(length));
            }
            (Mutant::TrimDeadTakesClaimed, TrimBy::Owner(_) | TrimBy::Operator) => {
                let letters = inner.list(topic_partition, group, Range::ALL, usize::MAX).await?.items;
                let most = retention
                    .max_length()
                    .map_or(usize::MAX, |most| usize::try_from(most).unwrap_or(usize::MAX));
                let excess = letters.len().saturating_sub(most);
                if let Some(last) = excess.checked_sub(1).map(|nth| letters[nth].id) {
                    inner.purge_through(topic_partition, group, last).await?;
                    return Ok(TrimmedLetters::new(0, excess as u64, 0));
                }
            }
            (Mutant::TrimDeadKeepsLeft, _) => self.hold_what_was_left(topic_partition, group).await?,
            (Mutant::TrimDeadOfAllGroups, TrimBy::Owner(_) | TrimBy::Operator) => {
                let others: Vec<_> = self.memo().groups.iter().cloned().collect();
                for (tp, other) in others.iter().filter(|(tp, other)| tp == topic_partition && other != group)
                {
                    inner.trim(tp, other, retention, TrimBy::Operator).await?;
                }
            }
            _ => {}
        }
        let mut trimmed = inner.trim(topic_partition, group, retention, by).await?;
        if self.is(Mutant::TrimDeadMiscounts) {
            (trimmed.aged, trimmed.excess) = (trimmed.dropped(), 0);
        }
        Ok(trimmed)
    }
}

impl Broken {
    /// Claims the letters that were left for later.
    async fn hold_what_was_left(&self, topic_partition: &TopicPartition, group: &GroupName) -> Result<()> {
        let inner = self.inner.dead_letters()?;
        let ids = inner.list(topic_partition, group, Range::ALL, usize::MAX).await?.items;
        let ids: Vec<_> = ids.iter().map(|letter| letter.id).collect();
        let mut claim = Claim { by: "mutant".into(), hold: MAX_HOLD, left_too: false };
        let free = inner.claim(topic_partition, group, &ids, &claim).await?;
        claim.left_too = true;
        inner.claim(topic_partition, group, &ids, &claim).await?;
        let free: Vec<_> = free.iter().map(|id| (*id, DeadLetterAction::Leave(Duration::ZERO))).collect();
        inner.settle(topic_partition, group, Some("mutant"), &free).await?;
        Ok(())
    }

    /// Settles each letter under the claim that holds it, as far as claims are known here: the claims named by the
    /// suite.
    async fn settle_unclaimed(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        deeds: &[(MessageId, DeadLetterAction)],
    ) -> Result<Vec<MessageId>> {
        let mut settled = Vec::new();
        for by in ["a", "b"] {
            settled.extend(self.inner.dead_letters()?.settle(topic_partition, group, Some(by), deeds).await?);
        }
        Ok(settled)
    }
}
