//! Mistakes of the locks role.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::leases::Holder;
use millstream_core::locks::{
    LockChange, LockCursor, LockGrant, LockPage, LockRelease, LockReply, LockRequest, LockRevision,
    LockState, Locks,
};
use millstream_core::{Continuity, ErrorKind, LockName, Result};

use super::{Broken, Mutant};

/// State that mistakes of this role need.
#[derive(Default)]
pub(super) struct LockMemo {
    /// Requests that wait, for a mistake that keeps the places of the dead.
    waiting: Vec<LockRequest>,
    /// The last grant.
    granted: Option<LockGrant>,
}

#[async_trait]
impl Locks for Broken {
    async fn acquire(&self, request: &LockRequest) -> Result<LockReply> {
        let mut asked = request.clone();
        match self.sabotage {
            Mutant::LockNonceIgnored => {
                let mut memo = self.memo();
                memo.count += 1;
                asked.nonce = format!("{}-{}", asked.nonce, memo.count);
            }
            Mutant::LockFenceIgnored => asked.fence_above = 0,
            Mutant::LockQueueIgnored => asked.queued = false,
            Mutant::LockTryQueues => asked.queued = true,
            Mutant::LockArrivalIgnored => asked.arrived = None,
            Mutant::LockAnnounceForgotten => asked.announced = false,
            Mutant::LockYoungServerGrants => asked.min_uptime = None,
            Mutant::LockJudgesAtOnce => asked.continuity = Continuity::assured(),
            Mutant::LockNeverJudges => asked.continuity = Continuity::new(asked.ttl),
            Mutant::LockNamesCollide => asked.name = LockName::new("one")?,
            Mutant::LockDeadWaiterBlocks => self.refresh_all(request).await?,
            _ => {}
        }
        Ok(match self.inner.locks()?.acquire(&asked).await? {
            LockReply::Granted(mut grant) => {
                grant.name = request.name.clone();
                grant.nonce = request.nonce.clone();
                if self.is(Mutant::LockEpochRepeats) {
                    grant.epoch = 1;
                }
                self.memo().locks.granted = Some(grant.clone());
                LockReply::Granted(grant)
            }
            LockReply::Wait(wait) if self.is(Mutant::LockTwoHolders) => {
                let epoch = wait.holder.map_or(1, |holder| holder.epoch + 1);
                LockReply::Granted(LockGrant::new(request, epoch))
            }
            other => other,
        })
    }

    async fn renew(&self, grant: &LockGrant) -> Result<()> {
        if self.is(Mutant::LockRenewForgotten) {
            return Ok(());
        }
        match self.inner.locks()?.renew(grant).await {
            Err(error) if error.kind() == ErrorKind::Fenced && self.is(Mutant::LockRenewUnchecked) => Ok(()),
            renewed => renewed,
        }
    }

    async fn release(&self, name: &LockName, nonce: &str) -> Result<LockRelease> {
        let granted = self.memo().locks.granted.clone();
        match (self.sabotage, granted) {
            (Mutant::LockReleaseForgotten, _) => Ok(LockRelease::Released),
            (Mutant::LockReleaseUnchecked, Some(grant)) if grant.name == *name => {
                self.inner.locks()?.release(name, &grant.nonce).await
            }
            _ => self.inner.locks()?.release(name, nonce).await,
        }
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Holder>> {
        if self.is(Mutant::LockHolderUnknown) { Ok(None) } else { self.inner.locks()?.holder(name).await }
    }

    async fn changed(&self, name: &LockName, seen: LockRevision, wait: Duration) -> Result<LockChange> {
        if self.is(Mutant::LockChangesUnnoticed) {
            tokio::time::sleep(wait).await;
            return Ok(LockChange::Nothing);
        }
        self.inner.locks()?.changed(name, seen, wait).await
    }

    async fn state(&self, name: &LockName) -> Result<LockState> {
        Ok(self.seen(self.inner.locks()?.state(name).await?))
    }

    async fn list(&self, from: Option<&LockCursor>, limit: usize) -> Result<LockPage> {
        let page = self.inner.locks()?.list(from, limit).await?;
        let next = page.next.filter(|_| !self.is(Mutant::LockListStops));
        Ok(LockPage::new(page.locks.into_iter().map(|lock| self.seen(lock)).collect(), next))
    }

    async fn force_release(&self, name: &LockName, epoch: u64) -> Result<bool> {
        let locks = self.inner.locks()?;
        match (self.sabotage, locks.holder(name).await?) {
            (Mutant::LockForcedUnchecked, Some(holder)) => locks.force_release(name, holder.epoch).await,
            (Mutant::LockForcedForgotten, holder) => Ok(holder.is_some_and(|holder| holder.epoch == epoch)),
            _ => locks.force_release(name, epoch).await,
        }
    }
}

impl Broken {
    fn seen(&self, lock: LockState) -> LockState {
        if self.is(Mutant::LockQueueUnseen) {
            let mut unseen = LockState::new(lock.name);
            (unseen.holder, unseen.ttl) = (lock.holder, lock.ttl);
            return unseen;
        }
        lock
    }

    /// Repeats the requests of all clients that ever waited for this lock.
    async fn refresh_all(&self, request: &LockRequest) -> Result<()> {
        let others: Vec<_> = {
            let mut memo = self.memo();
            let waiting = &mut memo.locks.waiting;
            waiting.retain(|other| other.nonce != request.nonce);
            let others = waiting.iter().filter(|other| other.name == request.name).cloned().collect();
            waiting.push(request.clone());
            others
        };
        for other in others {
            // Only one that is not granted by that is a place that is kept.
            if self.inner.locks()?.holder(&other.name).await?.is_some() {
                self.inner.locks()?.acquire(&other).await?;
            }
        }
        Ok(())
    }
}
