//! Mistakes of the schedule role.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::log::Append;
use millstream_core::schedule::{
    Due, MAX_PAGE, MAX_PROMOTE, OnConflict, Place, Placed, Promoted, RetryAction, Schedule, ScheduleId,
    Scheduled, Scheduling, Seen, Shard, Waiting,
};
use millstream_core::wire::Fields;
use millstream_core::{
    Capability, Error, ErrorKind, GroupName, Lease, MessageId, QueueName, Result, Timestamp, TopicPartition,
};
use tokio::time::{Instant, sleep};

use super::log::earlier;
use super::{Broken, Mutant};

const HOUR: Duration = Duration::from_secs(3_600);

/// State that mistakes of this role need.
#[derive(Default)]
pub(super) struct ScheduleMemo {
    /// Ids that were ever used.
    used: HashSet<(Place, ScheduleId)>,
    /// A message that was scheduled at a partition.
    delayed: HashMap<TopicPartition, Fields>,
    /// Messages for which a wait was woken.
    woken: HashSet<(TopicPartition, String)>,
}

#[async_trait]
impl Schedule for Broken {
    async fn schedule(&self, batch: &[Scheduling]) -> Vec<Result<Placed>> {
        let mut batch = batch.to_vec();
        if self.is(Mutant::ScheduledAtOnePlace) {
            let first = batch.first().map(|it| it.place.clone());
            batch.iter_mut().for_each(|it| it.place = first.clone().unwrap_or_else(|| it.place.clone()));
        }
        if self.is(Mutant::DueTimesMerged) {
            let millis = |due| match due {
                Due::In(delay) => delay,
                Due::At(_) => Duration::ZERO,
            };
            let last = batch.iter().map(|it| millis(it.due)).max().unwrap_or_default();
            batch.iter_mut().filter(|it| matches!(it.due, Due::In(_))).for_each(|it| it.due = Due::In(last));
        }
        let (mut results, mut stopped) = (Vec::new(), false);
        for scheduling in batch {
            let result = match stopped {
                true => Err(Error::new(ErrorKind::Unavailable, "stopped")),
                false => self.schedule_one(scheduling).await,
            };
            stopped = self.is(Mutant::ScheduleStopsAtBad) && result.is_err();
            results.push(result);
        }
        results
    }

    async fn cancel(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        self.takes(place)?;
        let place = &self.place(place);
        if self.is(Mutant::CancelForgotten) {
            return self.waits(place, ids).await;
        }
        let mut cancelled = self.inner.schedule().cancel(place, ids).await?;
        match self.sabotage {
            Mutant::CancelAlwaysWins => cancelled.fill(true),
            Mutant::CancelAllOrNothing if cancelled.contains(&false) => cancelled.fill(false),
            _ => {}
        }
        Ok(cancelled)
    }

    async fn reschedule(&self, place: &Place, ids: &[ScheduleId], due: Due) -> Result<Vec<bool>> {
        self.supports(Capability::Reschedule)?;
        let place = &self.place(place);
        if self.is(Mutant::RescheduleForgotten) {
            return self.waits(place, ids).await;
        }
        let mut moved = self.inner.schedule().reschedule(place, ids, due).await?;
        match self.sabotage {
            Mutant::RescheduleAlwaysWins => moved.fill(true),
            Mutant::RescheduleLosesBody => {
                for (id, _) in ids.iter().zip(&moved).filter(|(_, moved)| **moved) {
                    let (id, place, on_conflict) = (id.clone(), place.clone(), OnConflict::Replace);
                    let fields = vec![("payload".into(), "another".into())];
                    let other = Scheduling { place, id, due, fields, on_conflict };
                    self.inner.schedule().schedule(&[other]).await;
                }
            }
            _ => {}
        }
        Ok(moved)
    }

    async fn get(&self, place: &Place, id: &ScheduleId) -> Result<Option<Scheduled>> {
        self.supports(Capability::ListScheduled)?;
        let found = self.inner.schedule().get(&self.place(place), id).await?;
        Ok(match self.sabotage {
            Mutant::WaitingHidden => None,
            Mutant::WaitingShownEmpty => found.map(|it| Scheduled::new(it.id, it.due, Fields::new())),
            _ => found,
        })
    }

    async fn scheduled(
        &self,
        place: &Place,
        after: Option<(Timestamp, ScheduleId)>,
        limit: usize,
    ) -> Result<Vec<Scheduled>> {
        self.supports(Capability::ListScheduled)?;
        let place = &self.place(place);
        let (mut after, mut limit) = (after, limit);
        match (self.sabotage, &mut after) {
            (Mutant::ListUnpaged, _) => after = None,
            (Mutant::PagesSkipTies, Some((_, id))) => *id = ScheduleId::new("\u{10ffff}")?,
            (Mutant::PagesNeedTheirCursor, Some((_, id)))
                if self.inner.schedule().get(place, id).await?.is_none() =>
            {
                return Ok(Vec::new());
            }
            (Mutant::PagesUnbounded, _) => limit = MAX_PAGE,
            _ => {}
        }
        let mut page = self.inner.schedule().scheduled(place, after, limit).await?;
        if self.is(Mutant::PagesUnbounded) {
            while let Some(last) = page.last() {
                let after = Some((last.due, last.id.clone()));
                let more = self.inner.schedule().scheduled(place, after, limit).await?;
                if more.is_empty() {
                    break;
                }
                page.extend(more);
            }
        }
        if self.is(Mutant::ListReversed) {
            page.reverse();
        }
        Ok(page)
    }

    async fn now(&self) -> Result<Timestamp> {
        let ahead = if self.is(Mutant::DueByAnotherClock) { 30_000 } else { 0 };
        Ok(self.inner.schedule().now().await?.saturating_add(Duration::from_millis(ahead)))
    }

    async fn now_at(&self, place: &Place) -> Result<Timestamp> {
        let ahead = if self.is(Mutant::PlaceByAnotherClock) { 30_000 } else { 0 };
        let now = self.inner.schedule().now_at(&self.place(place)).await?;
        Ok(now.saturating_add(Duration::from_millis(ahead)))
    }

    async fn waiting(&self, place: &Place) -> Result<Waiting> {
        self.supports(Capability::ListScheduled)?;
        let place = &self.place(place);
        let mut waiting = self.inner.schedule().waiting(place).await?;
        match (self.sabotage, place) {
            (Mutant::WaitingMiscounted, _) => waiting.total = waiting.overdue,
            (Mutant::OverdueUncounted, _) => waiting.overdue = 0,
            (Mutant::ClaimedCountsAsWaiting, Place::Shard(shard)) => {
                waiting.total += self.inner.tasks()?.counts(shard).await?.claimed;
            }
            _ => {}
        }
        Ok(waiting)
    }

    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        let lease = self.unfenced(Mutant::FenceIgnoredOnPromote, lease);
        if self.is(Mutant::ExpiryFences) {
            self.fence_expired(&lease).await?;
        }
        let tp = lease.partition()?.0.clone();
        let delayed = match self.sabotage {
            // Messages that are postponed for the duration of the call are not promoted.
            Mutant::PromoteForgetsDelayed => self.postpone(&tp).await?,
            _ => Vec::new(),
        };
        let promoted = self.inner.schedule().promote(&lease, limit).await;
        for Scheduled { id, due, .. } in delayed {
            self.inner.schedule().reschedule(&tp.clone().into(), &[id], Due::At(due)).await?;
        }
        let mut promoted = promoted?;
        match self.sabotage {
            Mutant::LimitIgnored => {
                while promoted.next == Some(Duration::ZERO) && !promoted.recurring {
                    let more = self.inner.schedule().promote(&lease, MAX_PROMOTE).await?;
                    promoted.moved += more.moved;
                    promoted.next = more.next;
                }
            }
            Mutant::PromoteForAllGroups => {
                for other in self.other_groups(&tp, Some(&lease)) {
                    promoted.moved += self.inner.schedule().promote(&other, limit).await?.moved;
                }
            }
            _ => {}
        }
        self.spoil_promoted(&tp, promoted).await
    }

    async fn settle_retries(
        &self,
        topic_partition: &TopicPartition,
        group: &GroupName,
        origins: &[MessageId],
        action: RetryAction,
    ) -> Result<Vec<bool>> {
        self.supports(Capability::SettleRetries)?;
        let action = match self.sabotage {
            Mutant::RetriesReleasedInsteadOfKilled => RetryAction::Release,
            Mutant::RetriesKilledInsteadOfReleased => RetryAction::Kill,
            Mutant::RetriesSettledAreForgotten => return Ok(vec![true; origins.len()]),
            _ => action,
        };
        let schedule = self.inner.schedule();
        let mut settled = schedule.settle_retries(topic_partition, group, origins, action).await?;
        if self.is(Mutant::RetriesSettledAlways) {
            settled.fill(true);
        }
        Ok(settled)
    }

    async fn promote_delayed(&self, topic_partition: &TopicPartition, limit: usize) -> Result<Promoted> {
        self.supports(Capability::PromoteDelayed)?;
        let mut promoted = self.inner.schedule().promote_delayed(topic_partition, limit).await?;
        match self.sabotage {
            Mutant::LimitIgnored => {
                while promoted.next == Some(Duration::ZERO) && !promoted.recurring {
                    let more = self.inner.schedule().promote_delayed(topic_partition, MAX_PROMOTE).await?;
                    promoted.moved += more.moved;
                    promoted.next = more.next;
                }
            }
            Mutant::RetriesPromotedByAnybody => {
                for lease in self.other_groups(topic_partition, None) {
                    promoted.moved += self.inner.schedule().promote(&lease, limit).await?.moved;
                }
            }
            _ => {}
        }
        self.spoil_promoted(topic_partition, promoted).await
    }

    async fn wait(&self, topic_partition: &TopicPartition, seen: &Seen, timeout: Duration) -> Result<Seen> {
        self.supports(Capability::PromoteDelayed)?;
        let inner = self.inner.schedule();
        let until = Instant::now() + timeout;
        match self.sabotage {
            Mutant::ScheduleWakesNobody => {
                sleep(timeout).await;
                Ok(seen.clone())
            }
            Mutant::ScheduleWaitIgnored => inner.wait(topic_partition, seen, Duration::ZERO).await,
            Mutant::ScheduleWaitForgetsThePast => {
                let now = inner.wait(topic_partition, &Seen::default(), timeout).await?;
                if *seen == Seen::default() {
                    return Ok(now);
                }
                inner.wait(topic_partition, &now, timeout).await
            }
            Mutant::ScheduleWakesOne if *seen != Seen::default() => {
                let now = inner.wait(topic_partition, seen, timeout).await?;
                let first = self.memo().schedule.woken.insert((topic_partition.clone(), now.0.clone()));
                if !first {
                    sleep(until.saturating_duration_since(Instant::now())).await;
                }
                Ok(now)
            }
            _ => inner.wait(topic_partition, seen, timeout).await,
        }
    }
}

impl Broken {
    /// Returns the place that the backend is called with instead.
    pub(super) fn place(&self, place: &Place) -> Place {
        if !self.is(Mutant::PlacesShared) {
            return place.clone();
        }
        match place {
            Place::Partition(tp) => TopicPartition::new(tp.topic.clone(), 0).into(),
            Place::Shard(shard) => Shard::new(shard.queue.clone(), 0).into(),
        }
    }

    fn takes(&self, place: &Place) -> Result<()> {
        match place {
            Place::Shard(_) => self.supports(Capability::Tasks),
            Place::Partition(_) => Ok(()),
        }
    }

    async fn schedule_one(&self, mut it: Scheduling) -> Result<Placed> {
        self.takes(&it.place)?;
        it.place = self.place(&it.place);
        let wished = it.on_conflict;
        match (self.sabotage, it.due, it.on_conflict) {
            (Mutant::ScheduledEarly, due, _) => it.due = earlier(due),
            (Mutant::PastWaits, Due::At(at), _) if at <= self.inner.schedule().now().await? => {
                it.due = Due::In(HOUR);
            }
            (Mutant::FarIsNow, Due::In(delay), _) if delay >= Due::FAR => it.due = Due::NOW,
            (Mutant::FarIsNow, Due::At(at), _) if at.as_millis() == u64::MAX => it.due = Due::NOW,
            (Mutant::AppendMangles, ..) => {
                it.fields = BTreeMap::from_iter(it.fields).into_iter().collect();
            }
            (Mutant::EmptyScheduled, ..) if it.fields.is_empty() => return Ok(Placed::New),
            (Mutant::IdsNeverFree, ..)
                if !self.memo().schedule.used.insert((it.place.clone(), it.id.clone())) =>
            {
                return Ok(Placed::Kept);
            }
            (Mutant::ReplaceKeeps, _, OnConflict::Replace) | (Mutant::RejectKeeps, _, OnConflict::Reject) => {
                it.on_conflict = OnConflict::Keep;
            }
            (Mutant::KeepReplaces, _, OnConflict::Keep)
            | (Mutant::DebounceHastens, _, OnConflict::Debounce)
            | (Mutant::KeepLastMovesDue, _, OnConflict::KeepLast) => it.on_conflict = OnConflict::Replace,
            (Mutant::DebounceKeepsDue, _, OnConflict::Debounce) => it.on_conflict = OnConflict::KeepLast,
            (Mutant::KeepLastKeepsFirst, _, OnConflict::KeepLast) => it.on_conflict = OnConflict::Keep,
            (Mutant::DelayedTwice, ..) => {
                if let Place::Partition(tp) = &it.place {
                    self.memo().schedule.delayed.insert(tp.clone(), it.fields.clone());
                }
            }
            _ => {}
        }
        let placed = self.inner.schedule().schedule(&[it]).await.pop();
        let placed = placed.ok_or_else(|| Error::new(ErrorKind::Protocol, "no result"))?;
        match (self.sabotage, wished, placed) {
            (Mutant::KeepReplaces, _, Ok(Placed::Replaced))
            | (Mutant::FinishedIsKept, _, Ok(Placed::Done)) => Ok(Placed::Kept),
            (Mutant::ClaimedIsReplaced, OnConflict::Replace, Ok(Placed::Kept))
            | (Mutant::KeepLastKeepsFirst, OnConflict::KeepLast, Ok(Placed::Kept)) => Ok(Placed::Replaced),
            (Mutant::DebounceDropsWhenClaimed, OnConflict::Debounce, Err(error))
                if error.kind() == ErrorKind::Exists =>
            {
                Ok(Placed::Kept)
            }
            (_, _, placed) => placed,
        }
    }

    async fn waits(&self, place: &Place, ids: &[ScheduleId]) -> Result<Vec<bool>> {
        let mut waits = Vec::new();
        for id in ids {
            waits.push(self.inner.schedule().get(place, id).await?.is_some());
        }
        Ok(waits)
    }

    /// Deletes a queue. With a mistake, its tasks are found by the next queue of that name.
    pub(super) async fn deletes_queue(&self, name: &QueueName) -> Result<bool> {
        self.supports(Capability::DeleteQueue)?;
        let tasks = self.inner.tasks()?;
        match self.sabotage {
            Mutant::DeleteQueueForgotten => return Ok(true),
            Mutant::DeleteQueueKeepsTasks => {}
            _ => return tasks.delete_queue(name).await,
        }
        let mut kept = Vec::new();
        for place in tasks.queue(name).await?.iter().map(Place::from) {
            let waiting = self.inner.schedule().scheduled(&place, None, MAX_PAGE).await?;
            kept.extend(waiting.into_iter().map(|it| Scheduling {
                place: place.clone(),
                id: it.id,
                due: Due::At(it.due),
                fields: it.fields,
                on_conflict: OnConflict::Keep,
            }));
        }
        let deleted = tasks.delete_queue(name).await?;
        self.inner.schedule().schedule(&kept).await;
        Ok(deleted)
    }

    /// Reschedules everything that waits at a partition to a later time, and returns the original messages.
    async fn postpone(&self, tp: &TopicPartition) -> Result<Vec<Scheduled>> {
        let place = tp.clone().into();
        let waiting = self.inner.schedule().scheduled(&place, None, MAX_PAGE).await?;
        let ids: Vec<_> = waiting.iter().map(|it| it.id.clone()).collect();
        self.inner.schedule().reschedule(&place, &ids, Due::In(HOUR)).await?;
        Ok(waiting)
    }

    async fn spoil_promoted(&self, tp: &TopicPartition, mut promoted: Promoted) -> Result<Promoted> {
        match self.sabotage {
            Mutant::NextUnknown => promoted.next = None,
            Mutant::NextAlwaysNow => promoted.next = Some(Duration::ZERO),
            Mutant::OrphansHidden => promoted.orphans = 0,
            Mutant::NextForgetsRecurring => {
                let place = tp.clone().into();
                let head = self.inner.schedule().scheduled(&place, None, 1).await?.pop();
                let now = self.inner.recurring()?.due(&place).await?.now;
                promoted.next = head.map(|it| it.due.saturating_duration_since(now));
                promoted.recurring = false;
            }
            Mutant::DelayedTwice if promoted.moved > 0 => {
                let again = self.memo().schedule.delayed.remove(tp);
                if let Some(fields) = again {
                    self.inner.log().append(&[Append::new(tp.clone(), fields)]).await;
                }
            }
            _ => {}
        }
        Ok(promoted)
    }

    /// Returns the leases of a partition's groups, except for this one.
    fn other_groups(&self, tp: &TopicPartition, lease: Option<&Lease>) -> Vec<Lease> {
        let memo = self.memo();
        let others = memo.granted.values().filter(|other| {
            lease.is_none_or(|lease| other.resource != lease.resource)
                && other.partition().is_ok_and(|(of, _)| of == tp)
        });
        others.cloned().collect()
    }
}
