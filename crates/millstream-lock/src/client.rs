//! The client: what all locks of a process over one backend share, and the attempt to acquire one.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Ignore};
use millstream_core::leases::{Holder, reliable};
use millstream_core::locks::{ELECTION, LockReply, LockRequest, LockWait, Locks, PLACE_REFRESH};
use millstream_core::panics::Careful;
use millstream_core::{Backend, Capability, LockName, Observer};
use millstream_engine::{Answers, ControlThread, LeaseClock};
use tokio::time::{Instant, sleep, timeout};

use crate::builder::LockBuilder;
use crate::error::{AcquireError, Busy};
use crate::held::{Granted, Held};
use crate::leader::LeaderBuilder;
use crate::reaper::{Claim, Reaper};
use crate::watches::Watches;

/// First and longest pause after a request that failed.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// Locks over one backend. Cloning is cheap; clones share one task that releases what was dropped, and one for each lock
/// that they wait for.
#[derive(Clone)]
pub struct LockClient {
    shared: Arc<Shared>,
    observer: Arc<dyn Observer>,
}

struct Shared {
    backend: Backend,
    control: ControlThread,
    clock: Arc<LeaseClock>,
    /// `None` for a backend without locks.
    tasks: Option<(Reaper, Watches)>,
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
    /// Whether the lock is that of an election: then its grant is announced.
    pub(crate) leads: bool,
}

impl Attempt {
    /// Returns the election, if the lock is that of one.
    fn election(&self) -> Option<&str> {
        let name = self.name.as_str();
        self.leads.then(|| name.strip_prefix(ELECTION).unwrap_or(name))
    }
}

impl LockClient {
    /// Creates a client. It starts nothing yet.
    #[must_use]
    pub fn new(backend: &Backend) -> Self {
        let (control, clock) = (ControlThread::of(backend), LeaseClock::of(backend));
        let tasks = backend.locks().ok().map(|locks| {
            let watches = Watches::new(locks.clone(), control.clone());
            (Reaper::new(locks.clone(), control.clone()), watches)
        });
        let shared = Arc::new(Shared { backend: backend.clone(), control, clock, tasks });
        Self { shared, observer: Arc::new(Ignore) }
    }

    /// Returns the same client with an observer, which receives what happens to its locks:
    /// [`LockAcquired`](Event::LockAcquired), [`LockEnded`](Event::LockEnded), [`LockBusy`](Event::LockBusy), and
    /// [`Failing`](Event::Failing) with the operation `renew lock`.
    #[must_use]
    pub fn with_observer(self, observer: impl Observer + 'static) -> Self {
        Self { observer: Careful::over(Arc::new(observer)), ..self }
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
        self.shared.backend.locks()
    }

    pub(crate) fn clock(&self) -> &Arc<LeaseClock> {
        &self.shared.clock
    }

    pub(crate) fn control(&self) -> &ControlThread {
        &self.shared.control
    }

    pub(crate) fn claim(&self, name: &LockName, nonce: &str, ttl: Duration) -> Result<Claim> {
        Ok(self.tasks()?.0.claim(name, nonce, ttl))
    }

    fn tasks(&self) -> Result<&(Reaper, Watches)> {
        self.shared.tasks.as_ref().ok_or_else(|| Capability::Locks.missing())
    }

    pub(crate) async fn acquire(&self, attempt: Attempt) -> Result<Held, AcquireError> {
        let started = Instant::now();
        let acquired = self.acquire_from(&attempt, started).await;
        if let Err(AcquireError::Busy(_)) = &acquired {
            let (lock, election, waited) = (&attempt.name, attempt.election(), started.elapsed());
            self.observer.observe(&Event::LockBusy { lock, election, waited });
        }
        acquired
    }

    async fn acquire_from(&self, attempt: &Attempt, started: Instant) -> Result<Held, AcquireError> {
        let shared = &*self.shared;
        let nonce = uuid::Uuid::new_v4().simple().to_string();
        let mut claim = self.claim(&attempt.name, &nonce, attempt.ttl)?;
        let locks = self.role()?.clone();
        let mut request = LockRequest::new(attempt.name.clone(), &attempt.owner, nonce, attempt.ttl);
        (request.fence_above, request.announced) = (attempt.fence_above, attempt.leads);
        request.queued = attempt.wait != Some(Duration::ZERO);
        request.check()?;
        let answers = Answers::new(attempt.ttl);
        let left = || attempt.wait.map_or(Duration::MAX, |wait| wait.saturating_sub(started.elapsed()));
        let busy =
            |holder: Option<Holder>| Busy { name: attempt.name.clone(), holder, waited: started.elapsed() };
        let (mut pause, mut waiter) = (PAUSES[0], None);
        loop {
            request.continuity = answers.continuity();
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
                // The reply came so late that the lock cannot be relied on, as after an outage. The same nonce is granted
                // the same lock again.
                Ok(LockReply::Granted(_)) if shared.clock.now() >= asked + reliable(attempt.ttl) => {
                    pause = PAUSES[0];
                    if left().is_zero() {
                        return Err(busy(None).into());
                    }
                }
                Ok(LockReply::Granted(grant)) => {
                    let (clock, control) = (shared.clock.clone(), shared.control.clone());
                    let election = attempt.election().map(str::to_owned);
                    let (waited, observer) = (started.elapsed(), self.observer.clone());
                    let granted = Granted { grant, asked, waited, election, observer };
                    return Ok(Held::new(granted, clock, locks, control, claim));
                }
                Ok(LockReply::Wait(wait)) => {
                    pause = PAUSES[0];
                    answers.record_answer(sent, &wait.server, wait.now);
                    if !request.queued || left().is_zero() {
                        return Err(busy(wait.holder).into());
                    }
                    request.arrived = Some(wait.arrived);
                    if waiter.is_none() {
                        waiter = Some(self.tasks()?.1.enter(&attempt.name, &request.nonce));
                    }
                    if let Some(waiter) = &waiter {
                        let _ =
                            timeout(pause_until_asked(&request, &wait).min(left()), waiter.called()).await;
                    }
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

/// Returns the time after which a waiting client repeats its request, unless it is called before.
fn pause_until_asked(request: &LockRequest, reply: &LockWait) -> Duration {
    // Those far behind the first would ask in vain when the lock may be free.
    let soon = if reply.ahead <= 1 { reply.retry_in.max(Duration::from_millis(1)) } else { PLACE_REFRESH };
    PLACE_REFRESH.min(request.ttl / 4).min(soon)
}

impl fmt::Debug for LockClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockClient").finish_non_exhaustive()
    }
}
