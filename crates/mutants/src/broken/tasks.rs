//! Mistakes of the tasks role.

use std::collections::HashMap;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::log::Settled;
use millstream_core::schedule::{Due, Place, ScheduleId, Shard};
use millstream_core::tasks::{
    ClaimRequest, Claimed, ClaimedTask, DeadTask, Extended, FoundTask, MAX_CLAIM, QueueChange, QueueSpec,
    TaskCounts, Tasks, TrimTasksBy, TrimmedTasks, Verdict,
};
use millstream_core::{
    Capability, Continuity, DeadLetterRetention, ErrorKind, History, MessageId, QueueName, Reason, Result,
    Timestamp,
};
use tokio::time::{Instant, sleep};

use super::{Broken, Mutant, log::earlier};

const HOUR: Duration = Duration::from_secs(3_600);

/// State that mistakes of this role need.
#[derive(Default)]
pub(super) struct TaskMemo {
    /// The last token of each task, and the time when its claim expires.
    tokens: HashMap<(Shard, ScheduleId), (String, Instant)>,
    /// Tasks that are to be claimed a second time.
    twice: HashMap<Shard, Option<ClaimedTask>>,
    /// The most crashes of each task.
    crashes: HashMap<(Shard, ScheduleId), u32>,
    /// The first worker without a task in each shard, and the time when it was to come back.
    watcher: HashMap<Shard, (String, Timestamp)>,
}

#[async_trait]
impl Tasks for Broken {
    async fn create_queue(&self, spec: &QueueSpec) -> Result<QueueSpec> {
        match (self.sabotage, self.inner.tasks()?.create_queue(spec).await) {
            (Mutant::LastQueueWins, Ok(_)) => Ok(spec.clone()),
            (Mutant::ShardsUnchecked, Err(error)) if error.kind() == ErrorKind::InvalidConfig => {
                Ok(spec.clone())
            }
            (Mutant::QueueRetentionForgotten, Ok(stored)) => {
                Ok(stored.with_dead_letter_retention(DeadLetterRetention::KEEP))
            }
            (_, created) => created,
        }
    }

    async fn queue(&self, name: &QueueName) -> Result<QueueSpec> {
        match self.inner.tasks()?.queue(name).await {
            Err(error) if self.is(Mutant::UnknownQueueInvented) && error.kind() == ErrorKind::NotFound => {
                self.inner.tasks()?.create_queue(&QueueSpec::new(name.clone(), 1)).await
            }
            Ok(found) if self.is(Mutant::QueueRetentionForgotten) => {
                Ok(found.with_dead_letter_retention(DeadLetterRetention::KEEP))
            }
            found => found,
        }
    }

    async fn queues(&self) -> Result<Vec<QueueName>> {
        let mut queues = self.inner.tasks()?.queues().await?;
        if self.is(Mutant::ListsUnsorted) {
            queues.reverse();
        }
        Ok(queues)
    }

    async fn claim(&self, shard: &Shard, ask: &ClaimRequest) -> Result<Claimed> {
        let shard = &self.shard(shard);
        let mut told = ask.clone();
        match self.sabotage {
            Mutant::LimitIgnored if ask.limit > 0 => told.limit = MAX_CLAIM,
            Mutant::ClaimsNeverRunOut => told.hold = 24 * HOUR,
            Mutant::CrashLimitIgnored => told.crash_limit = 0,
            Mutant::OutagesIgnored => told.continuity = Continuity::assured(),
            Mutant::OutagesNeverEnd => told.continuity = Continuity::new(ask.hold),
            Mutant::LongestSleepIgnored => told.longest_sleep = 24 * HOUR,
            Mutant::BusyTellsNobody if ask.limit == 0 => {
                let mut nothing = Claimed::default();
                nothing.next = ask.longest_sleep;
                return Ok(nothing);
            }
            _ => {}
        }
        let mut claimed = self.inner.tasks()?.claim(shard, &told).await?;
        if self.is(Mutant::LimitIgnored) && claimed.tasks.len() == MAX_CLAIM {
            claimed.tasks.extend(self.inner.tasks()?.claim(shard, &told).await?.tasks);
        }
        if self.is(Mutant::ClaimsAreHeavy) {
            while claimed.tasks.len() < told.limit {
                let more = self.inner.tasks()?.claim(shard, &told).await?.tasks;
                if more.is_empty() {
                    break;
                }
                claimed.tasks.extend(more);
            }
        }
        if self.is(Mutant::LostClaimsCrash) {
            let claims: Vec<_> =
                claimed.tasks.iter().map(|task| (task.id.clone(), task.token.clone())).collect();
            self.inner.tasks()?.extend(shard, &claims, told.hold, true).await?;
        }
        {
            let mut memo = self.memo();
            for task in &claimed.tasks {
                let token = (task.token.clone(), Instant::now() + ask.hold);
                memo.tasks.tokens.insert((shard.clone(), task.id.clone()), token);
            }
        }
        if self.is(Mutant::UnbegunClaimsKill) && ask.crash_limit > 0 {
            let (all, limit) = (claimed.tasks.len(), ask.crash_limit);
            claimed.tasks.retain(|task| task.crashes < limit);
            claimed.crashed += all - claimed.tasks.len();
        }
        if self.is(Mutant::ServerUntold) {
            claimed.server.clear();
        }
        self.spoil_tasks(shard, ask, &mut claimed.tasks);
        self.spoil_next(shard, ask, &mut claimed).await?;
        Ok(claimed)
    }

    async fn settle_tasks(&self, shard: &Shard, batch: &[(ScheduleId, String, Verdict)]) -> Result<Settled> {
        let shard = &self.shard(shard);
        let count = batch.len();
        let stale = Settled { applied: 0, stale: count };
        let known = |id: &ScheduleId| self.memo().tasks.tokens.get(&(shard.clone(), id.clone())).cloned();
        let mut told = batch.to_vec();
        match self.sabotage {
            Mutant::TokenIgnored => {
                for (id, token, _) in &mut told {
                    *token = known(id).map_or_else(|| token.clone(), |(known, _)| known);
                }
            }
            Mutant::RunOutIsFinal => {
                told.retain(|(id, ..)| known(id).is_none_or(|(_, until)| Instant::now() < until));
            }
            Mutant::SettleAllOrNothing => {
                if batch.iter().any(|(id, token, _)| known(id).is_none_or(|(known, _)| known != *token)) {
                    return Ok(stale);
                }
                let tokens = &mut self.memo().tasks.tokens;
                batch.iter().for_each(|(id, ..)| drop(tokens.remove(&(shard.clone(), id.clone()))));
            }
            Mutant::HandedBackForgives => {
                let snoozed =
                    |verdict: &Verdict| matches!(verdict, Verdict::Retry { error, .. } if error.is_empty());
                let snoozed = batch.iter().filter(|(.., verdict)| snoozed(verdict));
                let claims: Vec<_> = snoozed.map(|(id, token, _)| (id.clone(), token.clone())).collect();
                self.inner.tasks()?.extend(shard, &claims, HOUR, true).await?;
            }
            Mutant::AcksForgotten => told.retain(|(.., verdict)| *verdict != Verdict::Complete),
            _ => told.iter_mut().for_each(|(id, _, verdict)| self.spoil_verdict(id, verdict)),
        }
        let mut settled = self.inner.tasks()?.settle_tasks(shard, &told).await?;
        match self.sabotage {
            Mutant::SettledAlways => settled = Settled { applied: count, stale: 0 },
            Mutant::AcksForgotten => settled.applied += count - told.len(),
            _ => settled.stale += count - told.len(),
        }
        Ok(settled)
    }

    async fn extend(
        &self,
        shard: &Shard,
        claims: &[(ScheduleId, String)],
        hold: Duration,
        begun: bool,
    ) -> Result<Extended> {
        let shard = &self.shard(shard);
        let mut claims = claims.to_vec();
        match self.sabotage {
            Mutant::ExtendForgotten => {
                let mut extended = Extended::default();
                extended.ours = vec![true; claims.len()];
                return Ok(extended);
            }
            Mutant::TokenIgnored => {
                for (id, token) in &mut claims {
                    let known = self.memo().tasks.tokens.get(&(shard.clone(), id.clone())).cloned();
                    *token = known.map_or_else(|| token.clone(), |(known, _)| known);
                }
            }
            _ => {}
        }
        let begun = begun && !self.is(Mutant::BegunForgotten);
        let hold = if self.is(Mutant::ClaimsNeverRunOut) { 24 * HOUR } else { hold };
        let mut held = self.inner.tasks()?.extend(shard, &claims, hold, begun).await?;
        match self.sabotage {
            Mutant::ExtendSilent => held.ours.fill(true),
            Mutant::ExtendAllOrNothing if held.ours.contains(&false) => held.ours.fill(false),
            Mutant::ServerUntold => held.server.clear(),
            _ => {}
        }
        Ok(held)
    }

    async fn find(&self, shard: &Shard, id: &ScheduleId) -> Result<Option<FoundTask>> {
        self.broken_find(&self.shard(shard), id).await
    }

    async fn wait(&self, shard: &Shard, timeout: Duration) -> Result<bool> {
        let shard = &self.shard(shard);
        match self.sabotage {
            Mutant::CallsNobody => {
                sleep(timeout).await;
                Ok(false)
            }
            Mutant::CallsEverybody => Ok(true),
            Mutant::CallsForgotten => {
                self.inner.tasks()?.wait(shard, Duration::ZERO).await?;
                self.inner.tasks()?.wait(shard, timeout).await
            }
            _ => self.inner.tasks()?.wait(shard, timeout).await,
        }
    }

    async fn counts(&self, shard: &Shard) -> Result<TaskCounts> {
        let mut counts = self.inner.tasks()?.counts(&self.shard(shard)).await?;
        if self.is(Mutant::TaskCountsLie) {
            counts.waiting.total += counts.claimed;
            counts.expired = 0;
        }
        Ok(counts)
    }

    async fn set_paused(&self, shard: &Shard, paused: bool) -> Result<bool> {
        self.pauses_shard(&self.shard(shard), paused).await
    }

    async fn dead_tasks(&self, shard: &Shard, after: MessageId, limit: usize) -> Result<Vec<DeadTask>> {
        let after = if self.is(Mutant::ListUnpaged) { MessageId::ZERO } else { after };
        let mut dead = self.inner.tasks()?.dead_tasks(&self.shard(shard), after, limit).await?;
        if self.is(Mutant::ListReversed) {
            dead.reverse();
        }
        dead.iter_mut().for_each(|dead| self.spoil_dead_steps(&mut dead.body));
        Ok(dead)
    }

    async fn replay_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        let shard = &self.shard(shard);
        let place = Place::from(shard.clone());
        let dead = self.inner.tasks()?.dead_tasks(shard, MessageId::ZERO, 1_000).await?;
        let tasks: Vec<_> = dead.into_iter().filter(|it| ids.contains(&it.id)).map(|it| it.task).collect();
        match self.sabotage {
            Mutant::TaskReplayForgotten => return Ok(ids.len()),
            Mutant::ReplayTakesTheId => drop(self.inner.schedule().cancel(&place, &tasks).await?),
            _ => {}
        }
        let replayed = self.inner.tasks()?.replay_tasks(shard, ids).await?;
        if self.is(Mutant::ReplayedLate) {
            self.inner.schedule().reschedule(&place, &tasks, Due::In(HOUR)).await?;
        }
        Ok(replayed)
    }

    async fn purge_tasks(&self, shard: &Shard, ids: &[MessageId]) -> Result<usize> {
        if self.is(Mutant::PurgeForgotten) {
            return Ok(ids.len());
        }
        self.inner.tasks()?.purge_tasks(&self.shard(shard), ids).await
    }

    async fn purge_all(&self, shard: &Shard) -> Result<usize> {
        let shard = &self.shard(shard);
        if self.is(Mutant::PurgeForgotten) {
            return Ok(self.inner.tasks()?.counts(shard).await?.dead as usize);
        }
        self.inner.tasks()?.purge_all(shard).await
    }

    async fn alter_queue(&self, name: &QueueName, change: &QueueChange) -> Result<QueueSpec> {
        self.supports(Capability::TrimDeadTasks)?;
        if self.is(Mutant::AlterQueueForgotten) {
            return change.of(self.inner.tasks()?.queue(name).await?);
        }
        self.inner.tasks()?.alter_queue(name, change).await
    }

    async fn delete_queue(&self, name: &QueueName) -> Result<bool> {
        self.deletes_queue(name).await
    }

    async fn trim_dead(
        &self,
        shard: &Shard,
        retention: DeadLetterRetention,
        by: TrimTasksBy,
    ) -> Result<TrimmedTasks> {
        self.supports(Capability::TrimDeadTasks)?;
        let (shard, inner) = (&self.shard(shard), self.inner.tasks()?);
        let (mut retention, mut by) = (retention, by);
        match (self.sabotage, by) {
            (Mutant::TrimTasksForgotten, _) => by = TrimTasksBy::DryRun,
            (Mutant::TrimTasksDryRunDrops, TrimTasksBy::DryRun)
            | (Mutant::TrimTasksLate, TrimTasksBy::Worker { .. }) => by = TrimTasksBy::Operator,
            (Mutant::TrimTasksForgetsAge, _) => {
                let length = retention.max_length();
                retention = length.map_or(DeadLetterRetention::KEEP, DeadLetterRetention::length);
            }
            (Mutant::TrimTasksForgetsLength, _) => {
                let age = retention.max_age();
                retention = age.map_or(DeadLetterRetention::KEEP, DeadLetterRetention::age);
            }
            (Mutant::TrimTasksOfAllShards, TrimTasksBy::Worker { .. } | TrimTasksBy::Operator) => {
                let queue = inner.queue(&shard.queue).await?;
                for other in queue.iter().filter(|other| other != shard) {
                    inner.trim_dead(&other, retention, by).await?;
                }
            }
            (Mutant::TrimTasksReplays, TrimTasksBy::Worker { .. } | TrimTasksBy::Operator) => {
                let count = inner.trim_dead(shard, retention, TrimTasksBy::DryRun).await?.dropped();
                let count = usize::try_from(count).unwrap_or(usize::MAX);
                let dead = inner.dead_tasks(shard, MessageId::ZERO, count).await?;
                let ids: Vec<_> = dead.iter().map(|dead| dead.id).collect();
                inner.replay_tasks(shard, &ids).await?;
                return Ok(TrimmedTasks::new(0, ids.len() as u64));
            }
            _ => {}
        }
        let mut trimmed = inner.trim_dead(shard, retention, by).await?;
        if self.is(Mutant::TrimTasksMiscounts) {
            (trimmed.aged, trimmed.excess) = (trimmed.dropped(), 0);
        }
        Ok(trimmed)
    }
}

impl Broken {
    /// Returns the shard that the backend is called with instead.
    fn shard(&self, shard: &Shard) -> Shard {
        let shared = self.is(Mutant::PlacesShared);
        if shared { Shard::new(shard.queue.clone(), 0) } else { shard.clone() }
    }

    fn spoil_tasks(&self, shard: &Shard, ask: &ClaimRequest, tasks: &mut Vec<ClaimedTask>) {
        let mut memo = self.memo();
        match self.sabotage {
            Mutant::TasksReversed => tasks.reverse(),
            Mutant::BodilessHidden => tasks.retain(|task| !task.fields.is_empty()),
            Mutant::ClaimedTwice => match memo.tasks.twice.get_mut(shard) {
                Some(again) if tasks.len() < ask.limit => tasks.extend(again.take()),
                Some(_) => {}
                None => {
                    if let Some(task) = tasks.last() {
                        memo.tasks.twice.insert(shard.clone(), Some(task.clone()));
                    }
                }
            },
            _ => {}
        }
        for task in tasks {
            match self.sabotage {
                Mutant::TaskLosesBody => task.fields.clear(),
                Mutant::TokensRepeat => task.token = "token".into(),
                Mutant::BeforeUntold => task.before = None,
                Mutant::BeforeMadeUp => task.before = Some("token".into()),
                Mutant::CrashesUncounted => task.crashes = 0,
                Mutant::OwnClaimsCrash if task.before.is_some() => task.crashes = task.crashes.max(1),
                Mutant::CrashIsAttempt => task.attempt += task.crashes,
                Mutant::CrashesForEver => {
                    let most = memo.tasks.crashes.entry((shard.clone(), task.id.clone())).or_default();
                    *most = task.crashes.max(*most);
                    task.crashes = *most;
                }
                _ => {}
            }
        }
    }

    /// Spoils the time when a worker is to come back.
    async fn spoil_next(&self, shard: &Shard, ask: &ClaimRequest, claimed: &mut Claimed) -> Result<()> {
        let place = Place::from(shard.clone());
        let until = |at: Timestamp| at.saturating_duration_since(claimed.now).min(ask.longest_sleep);
        match self.sabotage {
            Mutant::RecurringUntold => claimed.recurring = false,
            Mutant::NextForgetsRecurring => {
                let recurs = !self.inner.recurring()?.recurrences(&place, None, 1).await?.is_empty();
                claimed.next = if recurs { ask.longest_sleep } else { claimed.next };
            }
            Mutant::NextForgetsClaims => {
                let waiting = self.inner.schedule().waiting(&place).await?.total;
                claimed.next = if waiting == 0 { ask.longest_sleep } else { claimed.next };
            }
            Mutant::EverybodyWatches => {
                let head = self.inner.schedule().scheduled(&place, None, 1).await?.pop();
                claimed.next = head.map_or(claimed.next, |it| until(it.due));
            }
            Mutant::NextAlwaysNow => claimed.next = Duration::ZERO,
            Mutant::HeadRemembered | Mutant::WatcherNeverReplaced if claimed.tasks.is_empty() => {
                let at = claimed.now.saturating_add(claimed.next);
                let first = (ask.worker.clone(), at);
                let first = self.memo().tasks.watcher.entry(shard.clone()).or_insert(first).clone();
                if self.is(Mutant::HeadRemembered) {
                    claimed.next = until(first.1);
                } else if first.0 != ask.worker {
                    claimed.next = ask.longest_sleep;
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn spoil_verdict(&self, id: &ScheduleId, verdict: &mut Verdict) {
        match (self.sabotage, &mut *verdict) {
            (Mutant::TaskRetriesDropped, Verdict::Retry { .. })
            | (Mutant::DeadLetterDropped, Verdict::Dead { .. })
            | (Mutant::FinishedForgotten, Verdict::CompleteFor(_))
            | (Mutant::MessageResultForgotten, Verdict::CompleteWith { .. }) => *verdict = Verdict::Complete,
            (Mutant::FinishedForEver, Verdict::CompleteFor(window)) => *window = HOUR,
            (Mutant::RetryEarly, Verdict::Retry { due, .. }) => *due = earlier(*due),
            (Mutant::SnoozeCounts, Verdict::Retry { attempt, error, .. }) if error.is_empty() => {
                *attempt += 1;
            }
            (Mutant::HistoryForgotten, Verdict::Retry { history, .. } | Verdict::Dead { history, .. }) => {
                *history = History::default();
            }
            (Mutant::DeadLetterResultForgotten, Verdict::Dead { result, .. }) => *result = None,
            (Mutant::DeadLetterLosesStory, Verdict::Dead { reason, attempts, error, .. }) => {
                (*reason, *attempts) = (Reason::parse(""), 0);
                error.clear();
            }
            (_, Verdict::Retry { wait, .. }) => self.spoil_wait(id, wait),
            _ => {}
        }
    }
}
