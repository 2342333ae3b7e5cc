//! Chaos for locks.

use std::time::Duration;

use async_trait::async_trait;
use millstream_core::leases::Holder;
use millstream_core::locks::{
    LockChange, LockCursor, LockGrant, LockPage, LockRelease, LockReply, LockRequest, LockRevision,
    LockState, Locks,
};
use millstream_core::{LockName, Result};

use super::Client;
use super::faults::Role;
use super::reading::wait;
use super::roles::call;

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl Locks for Client {
    async fn acquire(&self, request: &LockRequest) -> Result<LockReply> {
        call!(self, Locks, locks?.acquire(request;))
    }

    async fn renew(&self, grant: &LockGrant) -> Result<()> {
        call!(self, Locks, locks?.renew(grant;))
    }

    async fn release(&self, name: &LockName, nonce: &str) -> Result<LockRelease> {
        call!(self, Locks, locks?.release(name, nonce;))
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Holder>> {
        call!(self, Locks, locks?.holder(name;))
    }

    async fn changed(
        &self,
        name: &LockName,
        seen: LockRevision,
        for_at_most: Duration,
    ) -> Result<LockChange> {
        wait(self, Role::Locks, self.0.backend.locks()?.changed(name, seen, for_at_most)).await
    }

    async fn state(&self, name: &LockName) -> Result<LockState> {
        call!(self, Locks, locks?.state(name;))
    }

    async fn list(&self, from: Option<&LockCursor>, limit: usize) -> Result<LockPage> {
        let from = from.cloned();
        call!(self, Locks, locks?.list(; from.as_ref(), limit))
    }

    async fn force_release(&self, name: &LockName, epoch: u64) -> Result<bool> {
        call!(self, Locks, locks?.force_release(name; epoch))
    }
}
