//! A lock that is held: its deadline, its watchdog, and its release.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use millstream_core::error::{ErrorKind, Result};
use millstream_core::event::{Event, LockEnd};
use millstream_core::leases::reliable;
use millstream_core::locks::{LockGrant, LockRelease, Locks};
use millstream_core::{LockName, Observer};
use millstream_engine::{ControlThread, Keeper, Kept, LeaseClock, LoopMonitor, Rights, Scope};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::reaper::Claim;

/// Result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The lock was held until now.
    Released,
    /// It was lost before: another client may have held it meanwhile.
    AlreadyLost,
}

/// A lock that is held. A watchdog renews it three times per ttl, until it is released, lost or dropped.
///
/// Dropping it releases the lock too, in the background, without blocking and without a runtime; if the process ends
/// before that, the lock ends by its ttl. [`release`](Self::release) tells whether it was held to the end.
#[must_use = "the lock is released when this is dropped"]
pub struct Held {
    view: LockView,
    locks: Arc<dyn Locks>,
    control: ControlThread,
    nonce: String,
    // In this order: the watchdog ends before the release is requested.
    watchdog: Option<AbortOnDropHandle<()>>,
    claim: Option<Claim>,
}

/// View of a held lock, for the work under it. It does not keep the lock.
#[derive(Clone)]
pub struct LockView(Arc<State>);

/// A grant, and who is notified of its end.
pub(crate) struct Granted {
    pub(crate) grant: LockGrant,
    /// Time just before the request.
    pub(crate) asked: Instant,
    /// Time since the first request.
    pub(crate) waited: Duration,
    /// The election, if the lock is that of one.
    pub(crate) election: Option<String>,
    pub(crate) observer: Arc<dyn Observer>,
}

struct State {
    granted: Granted,
    begun: Instant,
    /// Whether the end of the lock was emitted.
    ended: AtomicBool,
    clock: Arc<LeaseClock>,
    /// Until then the lock may be relied on.
    deadline: Mutex<Instant>,
    /// Cancelled when the lock is lost, for good.
    lost: CancellationToken,
    /// Monitor of renewals. A lock may be released while they fail: then the release shows that the server answers again.
    monitor: LoopMonitor,
}

impl State {
    fn grant(&self) -> &LockGrant {
        &self.granted.grant
    }

    /// Emits that the lock is held.
    fn begin(&self) {
        let (lock, epoch) = (&self.grant().name, self.grant().epoch);
        let Granted { election, waited, observer, .. } = &self.granted;
        let election = election.as_deref();
        observer.observe(&Event::LockAcquired { lock, election, epoch, waited: *waited });
    }

    /// Emits the end of the lock, once.
    fn end(&self, end: LockEnd) {
        if !self.ended.swap(true, Ordering::AcqRel) {
            let (lock, epoch) = (&self.grant().name, self.grant().epoch);
            let (election, held) = (self.granted.election.as_deref(), self.begun.elapsed());
            self.granted.observer.observe(&Event::LockEnded { lock, election, epoch, end, held });
        }
    }

    fn deadline(&self) -> MutexGuard<'_, Instant> {
        self.deadline.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn renewed(&self, asked: Instant) {
        let mut deadline = self.deadline();
        // A reply that comes after the deadline does not bring the lock back: the holder may have been told.
        if self.clock.now() >= *deadline {
            self.lost.cancel();
        } else {
            *deadline = (*deadline).max(asked + reliable(self.grant().ttl));
        }
    }

    fn is_lost(&self) -> bool {
        if !self.lost.is_cancelled() && self.clock.now() >= *self.deadline() {
            self.lost.cancel();
        }
        self.lost.is_cancelled()
    }

    async fn until_lost(&self) {
        while !self.is_lost() {
            let deadline = *self.deadline();
            tokio::select! {
                biased;
                () = self.lost.cancelled() => {}
                () = self.clock.sleep_until(deadline) => {}
            }
        }
    }
}

impl LockView {
    /// Returns the name of the lock.
    #[must_use]
    pub fn name(&self) -> &LockName {
        &self.0.grant().name
    }

    /// Returns the epoch of the grant: it grows with every grant of this lock. Pass it on to the store that the lock
    /// guards, and let the store refuse smaller ones.
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.0.grant().epoch
    }

    /// Returns the time for which the lock may be relied on without another renewal; zero once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        if self.is_lost() {
            return Duration::ZERO;
        }
        self.0.deadline().saturating_duration_since(self.0.clock.now())
    }

    /// Whether the lock was lost: a renewal was refused, or none succeeded in time. Never turns back. It compares a
    /// clock and sends no request.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.0.is_lost()
    }

    /// Waits until the lock is lost.
    pub async fn lost(&self) {
        self.0.until_lost().await;
    }
}

impl fmt::Debug for LockView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockView")
            .field("name", self.name())
            .field("fence", &self.fence())
            .field("lost", &self.is_lost())
            .finish()
    }
}

impl Held {
    /// Starts the watchdog of a lock.
    pub(crate) fn new(
        granted: Granted,
        clock: Arc<LeaseClock>,
        locks: Arc<dyn Locks>,
        control: ControlThread,
        claim: Claim,
    ) -> Self {
        let nonce = granted.grant.nonce.clone();
        let deadline = Mutex::new(granted.asked + reliable(granted.grant.ttl));
        let (begun, ended, lost) = (Instant::now(), AtomicBool::new(false), CancellationToken::new());
        let monitor = LoopMonitor::unlisted("renew lock", Scope::Lock(granted.grant.name.clone()));
        let state = Arc::new(State { granted, begun, ended, clock, deadline, lost, monitor });
        state.begin();
        let watchdog = Some(control.spawn(watch(state.clone(), locks.clone())));
        Self { view: LockView(state), locks, control, nonce, watchdog, claim: Some(claim) }
    }

    /// Returns a view for the work under the lock.
    #[must_use]
    pub fn view(&self) -> LockView {
        self.view.clone()
    }

    /// As [`LockView::name`].
    #[must_use]
    pub fn name(&self) -> &LockName {
        self.view.name()
    }

    /// As [`LockView::fence`].
    #[must_use]
    pub fn fence(&self) -> u64 {
        self.view.fence()
    }

    /// As [`LockView::remaining`].
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.view.remaining()
    }

    /// As [`LockView::is_lost`].
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.view.is_lost()
    }

    /// As [`LockView::lost`].
    pub async fn lost(&self) {
        self.view.lost().await;
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// Those of the backend. Then the lock is released in the background, or ends by its ttl.
    pub async fn release(mut self) -> Result<Release> {
        let was_lost = self.is_lost();
        // A renewal that is still under way changes nothing: it never creates a lock again.
        drop(self.watchdog.take());
        let (locks, name, nonce) = (self.locks.clone(), self.name().clone(), self.nonce.clone());
        let released = self.control.call(async move { locks.release(&name, &nonce).await }).await?;
        self.view.0.monitor.succeeded(&*self.view.0.granted.observer);
        if let Some(claim) = self.claim.take() {
            claim.released();
        }
        let held = released == LockRelease::Released && !was_lost;
        self.view.0.end(match (held, was_lost) {
            (true, _) => LockEnd::Released,
            (false, true) => LockEnd::Expired,
            (false, false) => LockEnd::Gone,
        });
        Ok(if held { Release::Released } else { Release::AlreadyLost })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // A release has emitted the end already, unless it failed: then the lock is released in the background.
        self.view.0.end(if self.is_lost() { LockEnd::Expired } else { LockEnd::Released });
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Held").field(&self.view).finish()
    }
}

/// Renews the lock until it is lost.
async fn watch(state: Arc<State>, locks: Arc<dyn Locks>) {
    let keeper = Keeper::new(state.grant().ttl, state.clock.clone());
    let watched = Watched { state: &state, locks: &*locks };
    tokio::select! {
        biased;
        () = state.until_lost() => {
            tracing::warn!(lock = %state.grant().name, epoch = state.grant().epoch, "a lock was lost");
        }
        () = keeper.run(state.granted.asked, &watched, &state.monitor, &*state.granted.observer) => {}
    }
    // A refusal has emitted it already.
    state.end(LockEnd::Expired);
}

struct Watched<'a> {
    state: &'a State,
    locks: &'a dyn Locks,
}

#[async_trait]
impl Rights for Watched<'_> {
    async fn renew(&self, asked: Instant) -> Result<Kept> {
        let state = self.state;
        match self.locks.renew(state.grant()).await {
            Ok(()) => state.renewed(asked),
            Err(error) if error.kind() == ErrorKind::Fenced => {
                tracing::warn!(lock = %state.grant().name, %error, "a renewal was refused");
                state.end(LockEnd::Refused);
                state.lost.cancel();
                return Ok(Kept::Over);
            }
            Err(error) => return Err(error),
        }
        Ok(Kept::Renewed)
    }
}
