//! A mistake of locks.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::leases::Holder;
use millstream_core::locks::{
    LockChange, LockCursor, LockGrant, LockPage, LockRelease, LockReply, LockRequest, LockRevision,
    LockState, Locks,
};
use millstream_core::{LockName, Result};

/// Locks of which each is renewed once more right after its release.
pub(super) struct Renewing {
    inner: Arc<dyn Locks>,
    /// Grants that were not released, by nonce.
    granted: Mutex<HashMap<String, LockGrant>>,
}

impl Renewing {
    pub(super) fn new(inner: Arc<dyn Locks>) -> Self {
        Self { inner, granted: Mutex::default() }
    }
}

#[async_trait]
impl Locks for Renewing {
    async fn acquire(&self, request: &LockRequest) -> Result<LockReply> {
        let reply = self.inner.acquire(request).await?;
        if let LockReply::Granted(grant) = &reply {
            let mut granted = self.granted.lock().unwrap_or_else(PoisonError::into_inner);
            granted.insert(grant.nonce.clone(), grant.clone());
        }
        Ok(reply)
    }

    async fn renew(&self, grant: &LockGrant) -> Result<()> {
        self.inner.renew(grant).await
    }

    async fn release(&self, name: &LockName, nonce: &str) -> Result<LockRelease> {
        let released = self.inner.release(name, nonce).await?;
        let grant = self.granted.lock().unwrap_or_else(PoisonError::into_inner).remove(nonce);
        if let Some(grant) = grant {
            // The renewal that was under way; what it is answered is nobody's concern.
            let _ = self.inner.renew(&grant).await;
        }
        Ok(released)
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Holder>> {
        self.inner.holder(name).await
    }

    async fn changed(&self, name: &LockName, seen: LockRevision, wait: Duration) -> Result<LockChange> {
        self.inner.changed(name, seen, wait).await
    }

    async fn state(&self, name: &LockName) -> Result<LockState> {
        self.inner.state(name).await
    }

    async fn list(&self, from: Option<&LockCursor>, limit: usize) -> Result<LockPage> {
        self.inner.list(from, limit).await
    }

    async fn force_release(&self, name: &LockName, epoch: u64) -> Result<bool> {
        self.inner.force_release(name, epoch).await
    }
}
