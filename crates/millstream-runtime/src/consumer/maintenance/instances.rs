//! Removes the groups of instances that are gone.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::Result;
use millstream_core::event::Observer;
use millstream_core::upkeep::{Trigger, Upkeep};
use millstream_core::{Backend, GroupName, Lease, Partition, TopicName};
use tokio::time::Instant;

/// Shortest and longest time between two looks.
const PERIOD: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Looks for groups of other instances whose owners send no heartbeats, and removes those that it has found so for the whole
/// expiry. An owner that returns within that time, also from an outage of the server, keeps its group.
///
/// Each instance looks at those behind it by name, in a ring, up to the first one that lives: that one looks after the next. So a
/// thousand instances send two thousand requests in a period, and not a million.
#[derive(Debug)]
pub(in crate::consumer) struct InstanceSweeper {
    backend: Backend,
    /// What the names of these groups begin with.
    prefix: String,
    expiry: Duration,
    seen: Mutex<Option<Seen>>,
}

#[derive(Debug)]
struct Seen {
    at: Instant,
    /// When each group was first found without an owner, in all looks since.
    gone: BTreeMap<GroupName, Instant>,
}

impl InstanceSweeper {
    pub(in crate::consumer) fn new(backend: Backend, group: &str, expiry: Duration) -> Self {
        Self { backend, prefix: format!("{group}~"), expiry, seen: Mutex::default() }
    }

    fn period(&self) -> Duration {
        (self.expiry / 4).clamp(PERIOD.0, PERIOD.1)
    }

    /// Whether the owner of a group has sent a heartbeat within the expiry.
    async fn is_alive(&self, topic: &TopicName, group: &GroupName) -> Result<bool> {
        let roster = self.backend.members().roster(topic, group).await?;
        Ok(roster.last_heartbeats.values().any(|ago| *ago < self.expiry))
    }

    /// Looks once, with what was seen before. `own` lives.
    async fn look(
        &self,
        topic: &TopicName,
        own: &GroupName,
        mut before: BTreeMap<GroupName, Instant>,
    ) -> Result<Seen> {
        let (at, mut gone) = (Instant::now(), BTreeMap::new());
        let mut groups = self.backend.catalog().groups(topic).await?;
        groups.retain(|group| group != own && group.as_str().starts_with(&self.prefix));
        groups.sort_unstable();
        let behind = groups.partition_point(|group| group < own);
        groups.rotate_left(behind);
        for group in groups {
            if self.is_alive(topic, &group).await? {
                break;
            }
            let since = before.remove(&group).unwrap_or(at);
            if at - since < self.expiry {
                gone.insert(group, since);
            } else if self.backend.catalog().delete_group(topic, &group).await? {
                let expiry = self.expiry;
                tracing::info!(%topic, %group, ?expiry, "the group of an instance that is gone was removed");
            }
        }
        Ok(Seen { at, gone })
    }
}

#[async_trait]
impl Upkeep for InstanceSweeper {
    fn name(&self) -> &'static str {
        "expire_instances"
    }

    fn trigger(&self) -> Trigger {
        Trigger::Parked
    }

    async fn run_once(&self, lease: &Lease, _: &dyn Observer) -> Result<Option<Duration>> {
        let (tp, own) = lease.partition()?;
        if tp.partition != Partition(0) {
            return Ok(None);
        }
        let period = self.period();
        let seen = || self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let since = seen().as_ref().map(|seen| seen.at.elapsed());
        if let Some(since) = since.filter(|since| *since < period) {
            return Ok(Some(period - since));
        }
        // After an error, or a pause of this process, owners have the whole expiry again: nobody could reach the server.
        let before = seen().take().filter(|seen| seen.at.elapsed() <= 2 * period);
        let looked = self.look(&tp.topic, own, before.map(|seen| seen.gone).unwrap_or_default()).await?;
        *seen() = Some(looked);
        Ok(Some(period))
    }
}
