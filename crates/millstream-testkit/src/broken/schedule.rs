//! Mistakes of the schedule role.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::schedule::{MAX_PROMOTE, Promoted, Schedule};
use millstream_core::{Lease, Result};

use super::{Broken, Sabotage};

#[async_trait]
impl Schedule for Broken {
    async fn promote(&self, lease: &Lease, limit: usize) -> Result<Promoted> {
        let lease = self.unfenced(Sabotage::FenceIgnoredOnPromote, lease);
        if self.is(Sabotage::ExpiryFences) {
            self.fence_expired(&lease).await?;
        }
        let mut promoted = self.inner.schedule.promote(&lease, limit).await?;
        match self.sabotage {
            Sabotage::LimitIgnored => {
                while promoted.next == Some(Duration::ZERO) {
                    let more = self.inner.schedule.promote(&lease, MAX_PROMOTE).await?;
                    promoted.moved += more.moved;
                    promoted.next = more.next;
                }
            }
            Sabotage::NextUnknown => promoted.next = None,
            Sabotage::NextAlwaysNow => promoted.next = Some(Duration::ZERO),
            Sabotage::PromoteForAllGroups => {
                for other in self.other_groups(&lease)? {
                    promoted.moved += self.inner.schedule.promote(&other, limit).await?.moved;
                }
            }
            _ => {}
        }
        Ok(promoted)
    }
}

impl Broken {
    fn other_groups(&self, lease: &Lease) -> Result<Vec<Lease>> {
        let (tp, _) = lease.partition()?;
        let memo = self.memo();
        let others = memo.granted.values().filter(|other| {
            other.resource != lease.resource && other.partition().is_ok_and(|(of, _)| of == tp)
        });
        Ok(others.cloned().collect())
    }
}
