//! Mistakes of leases.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::leases::{Acquired, Holder, Leases, Resource};
use millstream_core::{Continuity, Lease, Result};

use super::Mutant;

/// Leases with one of the mistakes.
pub(super) struct Mutated {
    inner: Arc<dyn Leases>,
    mutant: Mutant,
}

impl Mutated {
    pub(super) fn new(inner: Arc<dyn Leases>, mutant: Mutant) -> Self {
        Self { inner, mutant }
    }
}

#[async_trait]
impl Leases for Mutated {
    async fn acquire(
        &self,
        resource: &Resource,
        owner: &str,
        nonce: &str,
        ttl: Duration,
        continuity: &Continuity,
    ) -> Result<Acquired> {
        // Then the epoch alone tells tokens apart.
        let nonce = if self.mutant == Mutant::IncrEpoch { "-" } else { nonce };
        self.inner.acquire(resource, owner, nonce, ttl, continuity).await
    }

    async fn renew(&self, leases: &[Lease]) -> Vec<Result<()>> {
        self.inner.renew(leases).await
    }

    async fn release(&self, lease: &Lease) -> Result<()> {
        self.inner.release(lease).await?;
        if self.mutant == Mutant::RenewAfterRelease {
            // The renewal that was under way when the lease was released; what it is answered is nobody's concern.
            let _ = self.inner.renew(std::slice::from_ref(lease)).await;
        }
        Ok(())
    }

    async fn withdraw_end(&self, lease: &Lease) -> Result<()> {
        self.inner.withdraw_end(lease).await
    }

    async fn holder(&self, resource: &Resource) -> Result<Option<Holder>> {
        self.inner.holder(resource).await
    }
}
