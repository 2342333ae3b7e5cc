//! RedLock: a lock over several independent servers, for efficiency only.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::error::{Error, ErrorKind, Problems, Result};
use millstream_core::locks::{LockReply, LockRequest};
use millstream_core::{Backend, Continuity, LockName};
use millstream_engine::LeaseClock;
use tokio::time::{Instant, sleep, timeout};

use crate::client::LockClient;
use crate::error::{NoQuorum, RedLockError};
use crate::reaper::Claim;

/// Default of [`RedLock::longest_ttl`].
const LONGEST_TTL: Duration = Duration::from_secs(60);
/// Part of the ttl by which clocks may differ in rate, as published: a hundredth, and 2 ms.
const DRIFT: (u32, Duration) = (100, Duration::from_millis(2));
/// Bounds of the random pause before another attempt, so that two clients do not meet for ever.
const PAUSE_MS: std::ops::Range<u64> = 50..200;

/// A lock over several independent servers: it is held while a majority of them says so.
///
/// **For efficiency only**: it makes it unlikely that two processes do the same work at once, also while a minority of
/// the servers is away. It does not make it impossible, and it has no fence. A holder that is paused beyond the ttl does not
/// know it; and the epochs of two majorities do not grow from one to the other, so a store has nothing to compare. Where two
/// holders would do harm, use [`lock`](LockClient::lock) on one server, and let the store compare its fence.
///
/// Servers must be independent: no replicas of each other, no nodes of one cluster. One that started less than the
/// [longest ttl](Self::longest_ttl) ago is not counted, since it may have forgotten locks that it granted. The server's
/// own clock says for how long it is up.
#[derive(Clone)]
pub struct RedLock {
    servers: Vec<LockClient>,
    longest_ttl: Duration,
}

/// A lock that a majority granted. Nothing renews it: it ends by itself. Dropping it releases it in the background.
#[must_use = "the lock is released when this is dropped"]
pub struct RedHeld {
    name: LockName,
    /// Counts the time for which the machine was suspended too.
    clock: Arc<LeaseClock>,
    valid_until: Instant,
    claims: Vec<Claim>,
    releases: Vec<(LockClient, String)>,
}

impl RedLock {
    /// Creates a lock service over these backends.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for fewer than three; [`ErrorKind::Unsupported`] if one has no locks.
    pub fn new(backends: impl IntoIterator<Item = Backend>) -> Result<Self> {
        let servers: Vec<LockClient> =
            backends.into_iter().map(|backend| LockClient::new(&backend)).collect();
        if servers.len() < 3 {
            let why = format!(
                "{} servers have no majority without one of them, at least 3 are needed",
                servers.len()
            );
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        servers.iter().try_for_each(|server| server.role().map(drop))?;
        Ok(Self { servers, longest_ttl: LONGEST_TTL })
    }

    /// Sets the longest ttl that any client uses on these servers, 1 s or more. A server that started more recently is not
    /// counted. Default: 60 s.
    #[must_use]
    pub fn longest_ttl(self, longest_ttl: Duration) -> Self {
        Self { longest_ttl, ..self }
    }

    /// Returns the number of grants that are needed.
    #[must_use]
    pub fn quorum(&self) -> usize {
        self.servers.len() / 2 + 1
    }

    /// Acquires a lock on `name` for `ttl`, and repeats that for at most `wait`.
    ///
    /// # Errors
    /// [`RedLockError::NoQuorum`] with the count of the last attempt; [`RedLockError::Failed`] with `InvalidConfig` for a
    /// ttl below 500 ms or above the [longest](Self::longest_ttl), or a bad name.
    pub async fn acquire(&self, name: &str, ttl: Duration, wait: Duration) -> Result<RedHeld, RedLockError> {
        let mut problems = Problems::new("lock over several servers");
        let name = problems.take(LockName::new(name));
        problems.require(self.longest_ttl >= Duration::from_secs(1), || {
            format!("the longest ttl is {:?}, at least 1 s is needed", self.longest_ttl)
        });
        problems.require(ttl >= Duration::from_millis(500) && ttl <= self.longest_ttl, || {
            format!("the ttl is {ttl:?}, 500 ms to the longest ttl, {:?}, are possible", self.longest_ttl)
        });
        problems.finish()?;
        let Some(name) = name else { return Err(Error::new(ErrorKind::InvalidName, "no name").into()) };
        let started = Instant::now();
        loop {
            let missed = match self.attempt(&name, ttl).await? {
                Ok(held) => return Ok(held),
                Err(missed) => missed,
            };
            let pause = Duration::from_millis(fastrand::u64(PAUSE_MS));
            if started.elapsed() + pause >= wait {
                return Err(missed.into());
            }
            sleep(pause).await;
        }
    }

    async fn attempt(&self, name: &LockName, ttl: Duration) -> Result<Result<RedHeld, NoQuorum>> {
        let nonce = uuid::Uuid::new_v4().simple().to_string();
        let claims = self.servers.iter().map(|server| server.claim(name, &nonce, ttl));
        let claims = claims.collect::<Result<Vec<_>>>()?;
        let clock = self.servers[0].clock().clone();
        // Taken before the requests: no ttl can have started earlier.
        let asked = clock.now();
        // One that is away must not use up the time of the others.
        let limit = (ttl / 10).max(Duration::from_millis(50));
        let replies = join_all(self.servers.iter().map(|server| async {
            let mut request = LockRequest::new(name.clone(), "redlock", nonce.clone(), ttl);
            (request.queued, request.min_uptime) = (false, Some(self.longest_ttl));
            // The published algorithm knows the ttl alone.
            request.continuity = Continuity::assured();
            let locks = server.role()?.clone();
            let call = server.control().call(async move { locks.acquire(&request).await });
            let late = |_| Error::new(ErrorKind::Unconfirmed, format!("no answer within {limit:?}"));
            timeout(limit, call).await.map_err(late)?
        }))
        .await;
        let mut counted = NoQuorum {
            name: name.clone(),
            servers: self.servers.len(),
            needed: self.quorum(),
            granted: 0,
            held: 0,
            young: 0,
            failed: 0,
        };
        for reply in replies {
            match reply {
                Ok(LockReply::Granted(_)) => counted.granted += 1,
                Ok(LockReply::Wait(_)) => counted.held += 1,
                Ok(LockReply::TooYoung(_)) => counted.young += 1,
                Err(error) => {
                    tracing::debug!(lock = %name, %error, "a server did not grant a lock");
                    counted.failed += 1;
                }
            }
        }
        let valid_until = asked + ttl - ttl / DRIFT.0 - DRIFT.1;
        if counted.granted < self.quorum() || clock.now() >= valid_until {
            // Dropping the claims releases what was granted.
            return Ok(Err(counted));
        }
        let releases = self.servers.iter().map(|server| (server.clone(), nonce.clone())).collect();
        Ok(Ok(RedHeld { name: name.clone(), clock, valid_until, claims, releases }))
    }
}

impl RedHeld {
    /// Returns the time for which the lock may be relied on, as far as a process can know.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.valid_until.saturating_duration_since(self.clock.now())
    }

    /// Whether that time is over.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Releases the lock on all servers. Those that cannot be reached release it by its ttl.
    pub async fn release(mut self) {
        let releases = self.releases.drain(..).zip(self.claims.drain(..));
        let name = &self.name;
        join_all(releases.map(|((server, nonce), claim)| async move {
            let Ok(locks) = server.role().cloned() else { return };
            let name = name.clone();
            let call = server.control().call(async move { locks.release(&name, &nonce).await });
            // Otherwise the claim is dropped, and released in the background.
            if let Ok(Ok(_)) = timeout(Duration::from_secs(1), call).await {
                claim.released();
            }
        }))
        .await;
    }
}

impl fmt::Debug for RedLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedLock").field("servers", &self.servers.len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for RedHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedHeld").field("name", &self.name).field("remaining", &self.remaining()).finish()
    }
}
