//! The client: what all locks of a process over one backend share, and the attempt to acquire one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::leases::Holder;
use millstream_core::locks::{LockChange, LockReply, LockRequest, LockWait, Locks, PLACE_REFRESH};
use millstream_core::{Backend, LockName};
use millstream_loops::{Answers, ControlThread, LeaseClock};
use tokio::time::{Instant, sleep, timeout};

use crate::builder::LockBuilder;
use crate::error::{AcquireError, Busy};
use crate::held::Held;
use crate::leader::LeaderBuilder;
use crate::reaper::{Claim, Reaper};

/// First and longest pause after a request that failed.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// Pause before a request that is repeated because of a change that may be none.
const SETTLE: Duration = Duration::from_millis(5);

/// Locks over one backend. Cloning is cheap; clones share one task that releases what was dropped.
#[derive(Clone)]
pub struct LockClient(Arc<Shared>);

struct Shared {
    backend: Backend,
    control: ControlThread,
    clock: Arc<LeaseClock>,
    /// `None` for a backend without locks.
    reaper: Option<Reaper>,
}

/// Settings of one attempt.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    pub(crate) name: LockName,
    pub(crate) owner: String,
    pub(crate) ttl: Duration,
    /// `None`: without limit. Zero: the request is made once, without a place in the queue.
    pub(crate) wait: Option<Duration>,
    pub(crate) fence_above: u64,
    pub(crate) announced: bool,
}

impl LockClient {
    /// Creates a client. It starts nothing yet.
    #[must_use]
    pub fn new(backend: &Backend) -> Self {
        let (control, clock) = (ControlThread::of(backend), LeaseClock::of(backend));
        let reaper = backend.locks().ok().map(|locks| Reaper::new(locks.clone(), control.clone()));
        Self(Arc::new(Shared { backend: backend.clone(), control, clock, reaper }))
    }

    /// Builds a lock on `name`: 1 to 128 characters of `A-Z a-z 0-9 . _ - : / @ + = , #`, checked when it is acquired.
    pub fn lock(&self, name: impl Into<String>) -> LockBuilder {
        LockBuilder::new(self.clone(), name.into())
    }

    /// Builds an election. Its lock has the name `leader:` and `name`.
    pub fn leader(&self, name: impl Into<String>) -> LeaderBuilder {
        LeaderBuilder::new(self.clone(), &name.into())
    }

    pub(crate) fn role(&self) -> Result<&Arc<dyn Locks>> {
        self.0.backend.locks()
    }

    pub(crate) fn clock(&self) -> &Arc<LeaseClock> {
        &self.0.clock
    }

    pub(crate) fn control(&self) -> &ControlThread {
        &self.0.control
    }

    pub(crate) fn claim(&self, name: &LockName, nonce: &str, ttl: Duration) -> Result<Claim> {
        let missing = || Error::new(ErrorKind::Unsupported, "this backend has no locks (role `locks`)");
        Ok(self.0.reaper.as_ref().ok_or_else(missing)?.claim(name, nonce, ttl))
    }

    pub(crate) async fn acquire(&self, attempt: Attempt) -> Result<Held, AcquireError> {
        let (started, shared) = (Instant::now(), &*self.0);
        let nonce = uuid::Uuid::new_v4().simple().to_string();
        let mut claim = self.claim(&attempt.name, &nonce, attempt.ttl)?;
        let locks = self.role()?.clone();
        let mut request = LockRequest::new(attempt.name.clone(), attempt.owner, nonce, attempt.ttl);
        (request.fence_above, request.announced) = (attempt.fence_above, attempt.announced);
        request.queued = attempt.wait != Some(Duration::ZERO);
        request.check()?;
        let answers = Answers::new(attempt.ttl);
        let left = || attempt.wait.map_or(Duration::MAX, |wait| wait.saturating_sub(started.elapsed()));
        let busy =
            |holder: Option<Holder>| Busy { name: attempt.name.clone(), holder, waited: started.elapsed() };
        let mut pause = PAUSES[0];
        loop {
            request.heard = answers.continuity();
            let (asked, sent) = (shared.clock.now(), Instant::now());
            let (calling, asking) = (locks.clone(), request.clone());
            // The task keeps the claim until the request has its reply. If this future is dropped meanwhile, the claim is
            // released after the request, and not before it.
            let call = shared.control.spawn(async move { (calling.acquire(&asking).await, claim) }).detach();
            let reply = match call.await {
                Ok((reply, returned)) => {
                    claim = returned;
                    reply
                }
                Err(error) => {
                    let ended = Error::new(ErrorKind::Unconfirmed, "the request ended abnormally");
                    return Err(ended.with_source(error).into());
                }
            };
            match reply {
                Ok(LockReply::Granted(grant)) => {
                    let (clock, control) = (shared.clock.clone(), shared.control.clone());
                    return Ok(Held::new(grant, asked, clock, locks, control, claim));
                }
                Ok(LockReply::Wait(wait)) => {
                    pause = PAUSES[0];
                    answers.record_answer(sent, &wait.server, wait.now);
                    if !request.queued || left().is_zero() {
                        return Err(busy(wait.holder).into());
                    }
                    request.arrived = Some(wait.arrived);
                    called(&*locks, &request, &wait, left()).await;
                }
                Ok(LockReply::TooYoung(uptime)) => {
                    let why = format!("the server is up for {uptime:?} only, and nothing was required");
                    return Err(Error::new(ErrorKind::Protocol, why).into());
                }
                Err(error) if error.is_transient() && request.queued && !left().is_zero() => {
                    tracing::debug!(lock = %attempt.name, %error, "a request for a lock failed, and is repeated");
                    sleep(pause.min(left())).await;
                    pause = (pause * 2).min(PAUSES[1]);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Waits until the client is called, or it is time to ask again in any case.
async fn called(locks: &dyn Locks, request: &LockRequest, reply: &LockWait, left: Duration) {
    // Those far behind the first would ask in vain when the lock may be free.
    let soon = if reply.ahead <= 1 { reply.retry_in.max(Duration::from_millis(1)) } else { PLACE_REFRESH };
    let limit = PLACE_REFRESH.min(request.ttl / 4).min(soon).min(left);
    let mut seen = reply.seen;
    let waiting = async {
        loop {
            match locks.changed(&request.name, seen, limit).await {
                Ok(LockChange::Called(_, Some(nonce))) if nonce == request.nonce => return,
                Ok(LockChange::Called(revision, _)) => seen = revision,
                Ok(LockChange::Maybe) => return sleep(SETTLE).await,
                Ok(LockChange::Nothing) => return,
                Err(error) => {
                    tracing::debug!(lock = %request.name, %error, "no notices of changes: asked again soon");
                    std::future::pending::<()>().await;
                }
            }
        }
    };
    let _ = timeout(limit, waiting).await;
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").finish_non_exhaustive()
    }
}
