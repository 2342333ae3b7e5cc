//! How each kind of what failed is read and changed in the store.

use millstream_core::dead_letters::{DeadLetterAction, TrimBy, TrimmedLetters};
use millstream_core::event::{Event, LetterWork};
use millstream_core::inspect::{Page, Range};
use millstream_core::schedule::RetryAction;
use millstream_core::tasks::TrimTasksBy;
use millstream_core::{
    Capability, DeadLetterRetention, Error, ErrorKind, GroupName, MessageId, QueueSpec, Result, Shard,
    TopicPartition, TopicSpec,
};

use super::progress::ProgressSink;
use super::{Failed, Retry, ShelfAction};
use crate::Admin;
use crate::reading::merge::Key;

/// Whose shelf it is, and of which kind.
#[derive(Clone, Debug)]
pub(crate) enum Of {
    Letters(TopicSpec, GroupName),
    Retries(TopicSpec, GroupName),
    Tasks(QueueSpec),
}

/// Bound of a lane, so that what fails from now on is left alone.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// The newest id.
    Id(MessageId),
    /// The number of items.
    Count(u64),
}

impl Of {
    pub(super) fn lanes(&self) -> u32 {
        match self {
            Self::Letters(topic, _) | Self::Retries(topic, _) => topic.partitions,
            Self::Tasks(queue) => queue.shards,
        }
    }

    /// Whether a lane is in the order of the ids. Retries are in the order of their due times.
    pub(super) fn is_by_id(&self) -> bool {
        !matches!(self, Self::Retries(..))
    }

    pub(super) fn retention(&self) -> DeadLetterRetention {
        match self {
            Self::Letters(topic, _) | Self::Retries(topic, _) => topic.dead_letter_retention,
            Self::Tasks(queue) => queue.dead_letter_retention,
        }
    }

    /// Returns the maximum number of items that are changed in one request.
    pub(super) fn portion(&self) -> usize {
        match self {
            Self::Letters(..) => 1_000,
            Self::Retries(..) => 200,
            Self::Tasks(_) => 100,
        }
    }

    fn shard(queue: &QueueSpec, lane: u32) -> Shard {
        Shard::new(queue.name.clone(), lane)
    }

    /// Returns a page of a lane, behind an item.
    pub(super) async fn list(
        &self,
        admin: &Admin,
        lane: u32,
        behind: Option<Key>,
        range: Range,
        most: usize,
    ) -> Result<Page<Failed>> {
        Ok(match self {
            Self::Letters(topic, group) => {
                let range = behind.map_or(range, |(_, id)| range.behind(id));
                let tp = TopicPartition::new(topic.name.clone(), lane);
                let page = admin.backend.dead_letters()?.list(&tp, group, range, most).await?;
                Page::new(page.items.into_iter().map(Failed::Letter).collect(), page.more)
            }
            Self::Retries(topic, group) => {
                let topic_partition = TopicPartition::new(topic.name.clone(), lane);
                let page = admin.backend.inspect()?.parked(&topic_partition, group, behind, most).await?;
                let retry =
                    |parked| Failed::Retry(Retry { topic_partition: topic_partition.clone(), parked });
                Page::new(page.items.into_iter().map(retry).collect(), page.more)
            }
            Self::Tasks(queue) => {
                let after = behind.map_or(range.after, |(_, id)| id);
                let tasks = admin.backend.tasks()?.dead_tasks(&Self::shard(queue, lane), after, most).await?;
                let more = !tasks.is_empty();
                Page::new(tasks.into_iter().map(Failed::Task).collect(), more)
            }
        })
    }

    pub(super) async fn end(&self, admin: &Admin, lane: u32) -> Result<End> {
        Ok(match self {
            Self::Letters(..) => {
                let newest = Range { newest_first: true, ..Range::ALL };
                let page = self.list(admin, lane, None, newest, 1).await?;
                End::Id(page.items.first().map_or(MessageId::ZERO, |letter| letter.facts().id))
            }
            Self::Retries(..) => End::Count(u64::MAX),
            Self::Tasks(queue) => {
                End::Count(admin.backend.tasks()?.counts(&Self::shard(queue, lane)).await?.dead)
            }
        })
    }

    pub(super) async fn count(&self, admin: &Admin) -> Result<u64> {
        let (topic, group, is_dead) = match self {
            Self::Letters(topic, group) => (topic, group, true),
            Self::Retries(topic, group) => (topic, group, false),
            Self::Tasks(queue) => {
                let mut dead = 0;
                for shard in queue.iter() {
                    dead += admin.backend.tasks()?.counts(&shard).await?.dead;
                }
                return Ok(dead);
            }
        };
        let stats = admin.backend.catalog().stats(topic, group).await?;
        Ok(stats.iter().map(|partition| if is_dead { partition.dead } else { partition.retrying }).sum())
    }

    /// Changes items of a lane, and returns the number of those that were changed.
    pub(super) async fn act(
        &self,
        admin: &Admin,
        lane: u32,
        ids: &[MessageId],
        action: ShelfAction,
    ) -> Result<u64> {
        let is_retry = action == ShelfAction::Retry;
        Ok(match self {
            Self::Letters(topic, group) => {
                let (action, work) = match action {
                    ShelfAction::Retry => (DeadLetterAction::Replay, LetterWork::Replay),
                    ShelfAction::Drop => (DeadLetterAction::Purge, LetterWork::Purge),
                };
                let tp = TopicPartition::new(topic.name.clone(), lane);
                let actions: Vec<_> = ids.iter().map(|id| (*id, action.clone())).collect();
                let done = admin.backend.dead_letters()?.settle(&tp, group, None, &actions).await?.len();
                ProgressSink::new(&admin.observer, group).of(&tp, work, done, ids.len());
                done as u64
            }
            Self::Retries(topic, group) => {
                admin.backend.require(Capability::SettleRetries)?;
                let action = if is_retry { RetryAction::Release } else { RetryAction::Kill };
                let tp = TopicPartition::new(topic.name.clone(), lane);
                let waited = admin.backend.schedule().settle_retries(&tp, group, ids, action).await?;
                waited.into_iter().filter(|waited| *waited).count() as u64
            }
            Self::Tasks(queue) => {
                let (role, shard) = (admin.backend.tasks()?, Self::shard(queue, lane));
                let done =
                    if is_retry { role.replay_tasks(&shard, ids) } else { role.purge_tasks(&shard, ids) };
                done.await? as u64
            }
        })
    }

    /// Drops what a retention does not keep, or only counts it.
    pub(super) async fn trim(
        &self,
        admin: &Admin,
        lane: u32,
        retention: DeadLetterRetention,
        is_dry: bool,
    ) -> Result<TrimmedLetters> {
        match self {
            Self::Letters(topic, group) => {
                admin.backend.require(Capability::TrimDeadLetters)?;
                let tp = TopicPartition::new(topic.name.clone(), lane);
                let by = if is_dry { TrimBy::DryRun } else { TrimBy::Operator };
                let trimmed = admin.backend.dead_letters()?.trim(&tp, group, retention, by).await?;
                if !is_dry {
                    ProgressSink::new(&admin.observer, group).dropped(&tp, trimmed.aged, trimmed.excess);
                }
                Ok(trimmed)
            }
            Self::Retries(..) => Err(Error::new(ErrorKind::Unsupported, "retries have no retention")),
            Self::Tasks(queue) => {
                admin.backend.require(Capability::TrimDeadTasks)?;
                let shard = &Self::shard(queue, lane);
                let by = if is_dry { TrimTasksBy::DryRun } else { TrimTasksBy::Operator };
                let trimmed = admin.backend.tasks()?.trim_dead(shard, retention, by).await?;
                let (aged, excess) = (trimmed.aged, trimmed.excess);
                if !is_dry && trimmed.dropped() > 0 {
                    admin.observer.observe(&Event::DeadTasksDropped { shard, aged, excess });
                }
                Ok(TrimmedLetters::new(aged, excess, 0))
            }
        }
    }
}
