//! Locks in memory that fail on command.
#![allow(dead_code, unreachable_pub)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::leases::Holder;
use millstream_core::locks::{
    LockChange, LockCursor, LockGrant, LockPage, LockRelease, LockReply, LockRequest, LockRevision,
    LockState, Locks,
};
use millstream_core::{Backend, Error, ErrorKind, LockName, Result};
use millstream_lock::LockClient;
use millstream_memory::MemoryBackend;

pub(crate) fn backend() -> Backend {
    Backend::from(MemoryBackend::new())
}

/// Locks whose renewals fail while `fails` is set, and are refused while `refuses` is. The first reply to an acquisition comes
/// this many milliseconds late.
pub(crate) struct Faulty {
    inner: Arc<dyn Locks>,
    pub(crate) fails: AtomicBool,
    pub(crate) refuses: AtomicBool,
    pub(crate) late_ms: AtomicU64,
    /// Numbers of requests: for the lock, for its holder, and for a change.
    pub(crate) requests: [AtomicU64; 3],
}

#[async_trait]
impl Locks for Faulty {
    async fn acquire(&self, request: &LockRequest) -> Result<LockReply> {
        self.requests[0].fetch_add(1, Ordering::SeqCst);
        let reply = self.inner.acquire(request).await;
        tokio::time::sleep(Duration::from_millis(self.late_ms.swap(0, Ordering::SeqCst))).await;
        reply
    }

    async fn renew(&self, grant: &LockGrant) -> Result<()> {
        if self.fails.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Unavailable, "away"));
        }
        if self.refuses.load(Ordering::SeqCst) {
            return Err(grant.fenced());
        }
        self.inner.renew(grant).await
    }

    async fn release(&self, name: &LockName, nonce: &str) -> Result<LockRelease> {
        self.inner.release(name, nonce).await
    }

    async fn holder(&self, name: &LockName) -> Result<Option<Holder>> {
        self.requests[1].fetch_add(1, Ordering::SeqCst);
        self.inner.holder(name).await
    }

    async fn changed(&self, name: &LockName, seen: LockRevision, wait: Duration) -> Result<LockChange> {
        self.requests[2].fetch_add(1, Ordering::SeqCst);
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

pub(crate) fn faulty() -> (LockClient, Arc<Faulty>, Backend) {
    let backend = backend();
    let inner = backend.locks().expect("locks").clone();
    let (fails, refuses) = (AtomicBool::default(), AtomicBool::default());
    let (late_ms, requests) = (AtomicU64::default(), Default::default());
    let faulty = Arc::new(Faulty { inner, fails, refuses, late_ms, requests });
    (LockClient::new(&backend.clone().with_locks(faulty.clone())), faulty, backend)
}
