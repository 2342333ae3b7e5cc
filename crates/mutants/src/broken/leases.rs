//! Mistakes of the leases role.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::leases::{Acquired, Holder, Lease, Leases, Resource};
use millstream_core::{Continuity, Result};

use super::{Broken, Mutant};

#[async_trait]
impl Leases for Broken {
    async fn acquire(
        &self,
        resource: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        continuity: &Continuity,
    ) -> Result<Acquired> {
        let mut nonce = nonce.to_owned();
        let mut granted_for = ttl;
        match self.sabotage {
            Mutant::NonceIgnored => {
                let mut memo = self.memo();
                memo.count += 1;
                nonce = format!("{nonce}-{}", memo.count);
            }
            Mutant::LeaseNeverExpires => granted_for = Duration::from_secs(86_400),
            Mutant::ReleaseKeepsTheToken => self.release_at_last(resource).await?,
            _ => {}
        }
        let again =
            self.memo().granted.get(resource).is_some_and(|lease| lease.token.as_str().ends_with(&nonce));
        let asked = self.renamed(resource);
        let assured = Continuity::assured();
        let continuity = match self.sabotage {
            Mutant::JudgesAtOnce => &assured,
            Mutant::NeverJudges => &Continuity::new(ttl),
            _ => continuity,
        };
        let acquired = self.inner.leases().acquire(&asked, owner, &nonce, granted_for, continuity).await?;
        let mut lease = match acquired {
            Acquired::Held(holder) if self.is(Mutant::TwoOwners) => {
                return Ok(Acquired::Granted(Lease::new(resource.clone(), holder.epoch + 1, &nonce, ttl)));
            }
            Acquired::Held(_) => return Ok(acquired),
            Acquired::Granted(lease) => lease,
        };
        lease.resource = resource.clone();
        lease.ttl = ttl;
        if self.is(Mutant::EpochRepeats) {
            lease.epoch = 1;
        }
        match self.sabotage {
            Mutant::EndsHidden => lease.ends.clear(),
            Mutant::EndsMadeUp if lease.ends.is_empty() => lease.ends.push(1),
            Mutant::EndsToldOnce if again => lease.ends.clear(),
            _ => {}
        }
        self.memo().granted.insert(resource.clone(), lease.clone());
        Ok(Acquired::Granted(lease))
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>> {
        match self.sabotage {
            Mutant::RenewForgotten => return leases.iter().map(|_| Ok(())).collect(),
            Mutant::ExpiryIsFinal => {
                let mut results = Vec::new();
                for lease in leases {
                    results.push(match self.fence_expired(lease).await {
                        Ok(()) => self.inner.leases().renew(std::slice::from_ref(lease)).await.remove(0),
                        Err(error) => Err(error),
                    });
                }
                return results;
            }
            _ => {}
        }
        let results = self.inner.leases().renew(leases).await;
        match self.sabotage {
            Mutant::FenceIgnoredOnRenew => leases.iter().map(|_| Ok(())).collect(),
            Mutant::RenewAllOrNothing if results.iter().any(Result::is_err) => {
                leases.iter().map(|lease| Err(lease.fenced())).collect()
            }
            _ => results,
        }
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        match self.sabotage {
            Mutant::ReleaseForgotten => Ok(()),
            Mutant::ReleaseKeepsTheToken => {
                self.memo().released.insert(lease.resource.clone());
                Ok(())
            }
            Mutant::EndsForgotten => self.inner.leases().release(&lease.clone().after_ends(Vec::new())).await,
            _ => {
                let lease = self.unfenced(Mutant::ReleaseUnchecked, lease);
                self.inner.leases().release(&lease).await
            }
        }
    }

    async fn withdraw_end(&self, lease: &Lease) -> Result<()> {
        if self.is(Mutant::EndNeverWithdrawn) {
            Ok(())
        } else {
            self.inner.leases().withdraw_end(lease).await
        }
    }

    async fn holder(&self, resource: &Resource) -> Result<Option<Holder>> {
        let forgotten = self.memo().released.contains(resource) || self.is(Mutant::HolderUnknown);
        if forgotten { Ok(None) } else { self.inner.leases().holder(resource).await }
    }
}

impl Broken {
    pub(super) async fn fence_expired(&self, lease: &Lease) -> Result<()> {
        let holder = self.inner.leases().holder(&lease.resource).await?;
        holder.map(|_| ()).ok_or_else(|| lease.fenced())
    }

    async fn release_at_last(&self, resource: &Resource) -> Result<()> {
        let lease = {
            let mut memo = self.memo();
            memo.released.remove(resource).then(|| memo.granted.get(resource).cloned()).flatten()
        };
        match lease {
            Some(lease) => self.inner.leases().release(&lease).await,
            None => Ok(()),
        }
    }

    /// Returns the resource that is requested from the backend instead.
    fn renamed(&self, resource: &Resource) -> Resource {
        let mut resource = resource.clone();
        if let Resource::Partition { topic_partition, .. } = &mut resource
            && self.is(Mutant::ResourcesCollide)
        {
            topic_partition.partition.0 = 0;
        }
        resource
    }
}
