//! The leases role in memory.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::Continuity;
use millstream_core::Result;
use millstream_core::leases::{Acquired, Holder, Lease, Leases, MAX_ENDS, Resource, next_epoch};

use crate::MemoryBackend;
use crate::backend::breathe;
use crate::clock::Now;
use crate::state::{Fence, State};

#[async_trait]
impl Leases for MemoryBackend {
    async fn acquire(
        &self,
        resource: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        continuity: &Continuity,
    ) -> Result<Acquired> {
        breathe().await;
        let mut state = self.lock();
        let now = self.now();
        let server = state.server();
        let (stored, ends) = match state.fences.get_mut(resource) {
            Some(fence) => {
                if let Some(holder) = fence.holder(now) {
                    if fence.nonce != nonce {
                        return Ok(Acquired::Held(holder));
                    }
                    // The caller counts from this request, not from the one whose reply was lost.
                    (fence.expires, fence.ttl) = (now.plus(ttl), ttl);
                    let lease = Lease::new(resource.clone(), fence.epoch, nonce, ttl);
                    return Ok(Acquired::Granted(lease.after_ends(fence.ends.clone())));
                }
                let mut ends = fence.ends.clone();
                if fence.token.is_some() && fence.nonce != nonce {
                    if !continuity.judges(&server, now.timestamp()) {
                        let (owner, epoch) = (fence.owner.clone(), fence.epoch);
                        let expires_in = continuity.left(&server, now.timestamp());
                        return Ok(Acquired::Held(Holder::new(owner, epoch, expires_in)));
                    }
                    ends.push(fence.epoch);
                    ends.drain(..ends.len().saturating_sub(MAX_ENDS));
                }
                (fence.epoch, ends)
            }
            None => (0, Vec::new()),
        };
        let epoch = next_epoch(stored, now.timestamp(), 0);
        let lease = Lease::new(resource.clone(), epoch, nonce, ttl).after_ends(ends.clone());
        let fence = Fence {
            owner: owner.to_owned(),
            nonce: nonce.to_owned(),
            epoch,
            token: Some(lease.token.clone()),
            ends,
            expires: now.plus(ttl),
            ttl,
        };
        state.fences.insert(resource.clone(), fence);
        wake(&mut state, resource);
        Ok(Acquired::Granted(lease))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>> {
        let mut state = self.lock();
        let now = self.now();
        let renew = |lease: &Lease| {
            state.check(lease)?;
            if let Some(fence) = state.fences.get_mut(&lease.resource) {
                fence.expires = now.plus(lease.ttl);
            }
            Ok(())
        };
        leases.iter().map(renew).collect()
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        let mut state = self.lock();
        state.check(lease)?;
        if let Some(fence) = state.fences.get_mut(&lease.resource) {
            fence.token = None;
            fence.ends.clone_from(&lease.ends);
        }
        wake(&mut state, &lease.resource);
        Ok(())
    }

    async fn withdraw_end(&self, lease: &Lease) -> Result<()> {
        if let Some(fence) = self.lock().fences.get_mut(&lease.resource) {
            fence.ends.retain(|epoch| *epoch != lease.epoch);
        }
        Ok(())
    }

    async fn holder(&self, resource: &Resource) -> Result<Option<Holder>> {
        let state = self.lock();
        let now = self.now();
        Ok(state.fences.get(resource).and_then(|fence| fence.holder(now)))
    }
}

impl Fence {
    /// Returns the current holder of the resource.
    pub(crate) fn holder(&self, now: Now) -> Option<Holder> {
        let alive = self.token.is_some() && self.expires > now;
        let expires_in = self.expires.since(now);
        alive.then(|| Holder::new(self.owner.clone(), self.epoch, expires_in))
    }
}

/// Wakes readers of the partition, so that one with the previous lease finds out immediately that it is fenced.
fn wake(state: &mut State, resource: &Resource) {
    if let Resource::Partition { topic_partition, .. } = resource {
        state.partition(topic_partition).wake.notify_waiters();
    }
}
