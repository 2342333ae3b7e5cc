//! Chaos: a backend whose calls are slow, lost, or stalled, decided by one seeded generator.
//!
//! [`Chaos`] wraps any backend. Every [`Client`] of it stands for one process: it has its own connection, with its
//! own faults. It can be cut off, paused (as by `SIGSTOP`) or killed while others continue. With the same seed, a
//! current-thread runtime and a paused clock, every run is identical.

mod batches;
mod cancels;
mod faults;
mod idempotency;
mod locks;
mod looking;
mod permits;
mod reading;
mod roles;
mod shared;
mod steps;
mod tasks;

use std::fmt;
use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use millstream_core::{Backend, Error, ErrorKind};
use tokio::sync::Notify;
use tokio::time::sleep;

use crate::caller;

pub use faults::{Faults, Outage, Role, Tally};

use faults::{Fate, Plan, Rates};

/// A backend with injected faults. Cloning is cheap.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap().block_on(async {
/// use millstream_core::Backend;
/// use millstream_memory::MemoryBackend;
/// use millstream_testkit::chaos::{Chaos, Faults};
///
/// let chaos = Chaos::new(MemoryBackend::new(), 42);
/// let client = chaos.client();
/// client.suffer(&Faults::none().refused(1.0));
/// let backend: Backend = client.backend();
/// assert!(backend.catalog().topics().await.is_err());
/// chaos.heal();
/// assert!(backend.catalog().topics().await.is_ok());
/// # });
/// ```
#[derive(Clone)]
pub struct Chaos(Arc<Shared>);

struct Shared {
    backend: Backend,
    rng: Mutex<Rng>,
    clients: Mutex<Vec<Client>>,
    /// The current outage, if there is one.
    outage: Mutex<Option<Outage>>,
}

/// The connection of one process to the backend. Clones are the same connection.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    backend: Backend,
    /// The name of the caller, for a history below.
    name: Mutex<Option<Arc<str>>>,
    rng: Mutex<Rng>,
    rates: Mutex<Rates>,
    tally: Mutex<Tally>,
    link: Mutex<Link>,
    /// Notified when the link changes. Not a `watch`, which wakes its receivers in a random order.
    changed: Notify,
}

/// The state of a process and its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Link {
    cut: bool,
    paused: bool,
    killed: bool,
    /// The current outage, if there is one. The same for all clients.
    outage: Option<Outage>,
    /// The number of times that all connections were reset. A call that began before the last reset is cut off.
    resets: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Chaos {
    /// Wraps `backend`, with faults decided by `seed`. No faults occur until a client is set to
    /// [suffer](Client::suffer) some.
    #[must_use]
    pub fn new(backend: impl Into<Backend>, seed: u64) -> Self {
        let rng = Mutex::new(Rng::with_seed(seed));
        Self(Arc::new(Shared {
            backend: backend.into(),
            rng,
            clients: Mutex::default(),
            outage: Mutex::default(),
        }))
    }

    /// Creates another client. Its faults depend on the seed and on the number of earlier clients.
    #[must_use]
    pub fn client(&self) -> Client {
        let rng = Mutex::new(lock(&self.0.rng).fork());
        let client = Client(Arc::new(Inner {
            backend: self.0.backend.clone(),
            name: Mutex::default(),
            rng,
            rates: Mutex::default(),
            tally: Mutex::default(),
            link: Mutex::new(Link { outage: *lock(&self.0.outage), ..Link::default() }),
            changed: Notify::new(),
        }));
        lock(&self.0.clients).push(client.clone());
        client
    }

    /// Resets all connections, as a server does that ends or fails over: calls in progress return
    /// [`ErrorKind::Unconfirmed`], new ones find a connection again.
    pub fn reset(&self) {
        for client in lock(&self.0.clients).iter() {
            client.change(|link| link.resets += 1);
        }
    }

    /// Makes the server unreachable for all clients, including those created during the outage, until
    /// [`end_outage`](Self::end_outage). Its clock goes on.
    pub fn begin_outage(&self, outage: Outage) {
        self.set_outage(Some(outage));
    }

    /// Ends an outage: the server replies again. Does nothing if there is none.
    pub fn end_outage(&self) {
        self.set_outage(None);
    }

    fn set_outage(&self, outage: Option<Outage>) {
        *lock(&self.0.outage) = outage;
        for client in lock(&self.0.clients).iter() {
            client.change(|link| {
                link.outage = outage;
                // A process that ends closes its connections, one that hangs does not.
                link.resets += u64::from(outage == Some(Outage::Refused));
            });
        }
    }

    /// Ends an outage and all faults of all clients, except death: from now on every call of a live client is
    /// answered without delay.
    pub fn heal(&self) {
        self.end_outage();
        for client in lock(&self.0.clients).iter() {
            client.suffer(&Faults::none());
            client.mend();
            client.resume();
        }
    }
}

impl Client {
    /// Returns the backend as seen by this process.
    #[must_use]
    pub fn backend(&self) -> Backend {
        self.0.backend.wrapped(self.clone())
    }

    /// Names the process. A [history](crate::history) around the same backend then records the caller of each call.
    pub fn name(&self, name: &str) {
        *lock(&self.0.name) = Some(name.into());
    }

    /// Sets the faults of calls of every role from now on.
    pub fn suffer(&self, faults: &Faults) {
        for role in Role::ALL {
            self.suffer_in(*role, faults);
        }
    }

    /// Sets the faults of calls of one role from now on.
    pub fn suffer_in(&self, role: Role, faults: &Faults) {
        lock(&self.0.rates).set(role, faults.clone());
    }

    /// Cuts the connection: calls in progress return [`ErrorKind::Unconfirmed`], new ones [`ErrorKind::Unavailable`].
    pub fn cut(&self) {
        self.change(|link| link.cut = true);
    }

    /// Connects again.
    pub fn mend(&self) {
        self.change(|link| link.cut = false);
    }

    /// Stops the process, as `SIGSTOP` does: it neither sends requests nor receives replies. The server continues
    /// with the requests it was sent. Let handlers wait for [`awake`](Self::awake), so that they stop too.
    pub fn pause(&self) {
        self.change(|link| link.paused = true);
    }

    /// Lets a paused process continue.
    pub fn resume(&self) {
        self.change(|link| link.paused = false);
    }

    /// Ends the process, as `SIGKILL` does: requests that it has sent may still be executed, but no call ever
    /// returns.
    pub fn kill(&self) {
        self.change(|link| link.killed = true);
    }

    /// Whether it was killed.
    #[must_use]
    pub fn is_killed(&self) -> bool {
        lock(&self.0.link).killed
    }

    /// Waits until it is killed.
    pub async fn killed(&self) {
        self.until(|link| link.killed).await;
    }

    /// Waits while the process is paused; for ever if it is killed.
    pub async fn awake(&self) {
        self.until(|link| !link.paused || link.killed).await;
        if self.is_killed() {
            pending::<()>().await;
        }
    }

    /// Returns the number of calls and of their faults.
    #[must_use]
    pub fn tally(&self) -> Tally {
        *lock(&self.0.tally)
    }

    /// Whether the connection that a call began with is gone.
    fn is_cut(&self, plan: &Plan) -> bool {
        let link = lock(&self.0.link);
        link.is_cut(plan)
    }

    /// Whether the server that a call was sent to is gone and another one has taken its place.
    fn is_reset(&self, plan: &Plan) -> bool {
        lock(&self.0.link).resets != plan.resets
    }

    /// Executes a request whose caller has given up. A server that took another one's place never receives it.
    async fn arrives<T>(&self, plan: &Plan, request: impl Future<Output = T>) {
        if !self.is_reset(plan) {
            drop(request.await);
        }
    }

    /// Waits until the connection that a call began with is gone.
    async fn until_cut(&self, plan: &Plan) {
        self.until(|link| link.is_cut(plan)).await;
    }

    /// Wraps a request so that it runs under this client's name.
    fn signed<F: Future>(&self, request: F) -> impl Future<Output = F::Output> + use<F> {
        caller::of(lock(&self.0.name).clone(), request)
    }

    /// Waits while the server hangs; returns `false` if that takes longer than `limit`.
    async fn answers(&self, limit: Duration) -> bool {
        let hangs = |link: &Link| link.outage == Some(Outage::Hung);
        if !hangs(&lock(&self.0.link)) {
            return true;
        }
        tokio::select! {
            biased;
            () = self.until(|link| !hangs(link)) => true,
            () = sleep(limit) => false,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Link)) {
        change(&mut lock(&self.0.link));
        self.0.changed.notify_waiters();
    }

    async fn until(&self, holds: impl Fn(&Link) -> bool) {
        loop {
            // Created before the check, so that a change in between is not missed.
            let changed = self.0.changed.notified();
            if holds(&lock(&self.0.link)) {
                return;
            }
            changed.await;
        }
    }

    /// Decides the faults of one call.
    fn plan(&self, role: Role) -> Plan {
        let mut plan = lock(&self.0.rates).of(role).plan(&mut lock(&self.0.rng));
        plan.resets = lock(&self.0.link).resets;
        lock(&self.0.tally).count(plan.fate);
        plan
    }

    /// Makes one call under its faults. `fail` turns an error into the result of the whole call.
    async fn call<T: Send + 'static>(
        &self,
        role: Role,
        request: impl Future<Output = T> + Send + 'static,
        fail: impl Fn(Error) -> T + Send,
    ) -> T {
        self.call_for(role, request, fail, |_| 0).await
    }

    /// Same as [`call`](Self::call), for replies whose size in bytes matters.
    async fn call_for<T: Send + 'static>(
        &self,
        role: Role,
        request: impl Future<Output = T> + Send + 'static,
        fail: impl Fn(Error) -> T + Send,
        size: impl Fn(&T) -> u64 + Send,
    ) -> T {
        let plan = self.plan(role);
        let request = self.signed(request);
        if let Err(error) = self.send(&plan).await {
            return fail(error);
        }
        if !self.answers(plan.timeout.saturating_sub(plan.there)).await {
            if plan.reset {
                // The caller gives up and closes its connection; a stopped server still has the request, and executes
                // it when it continues.
                let client = self.clone();
                tokio::spawn(async move {
                    client.until(|link| link.outage != Some(Outage::Hung)).await;
                    client.arrives(&plan, request).await;
                });
            }
            self.awake().await;
            return fail(unconfirmed("timed out"));
        }
        if self.is_cut(&plan) {
            return fail(self.nothing_heard(&plan).await);
        }
        if let Fate::Stalled(stall) = plan.fate {
            if plan.there + stall >= plan.timeout {
                // The caller gives up; the server does not notice, and executes the request eventually.
                let client = self.clone();
                tokio::spawn(async move {
                    sleep(stall).await;
                    client.arrives(&plan, request).await;
                });
                sleep(plan.timeout.saturating_sub(plan.there)).await;
                self.awake().await;
                return fail(unconfirmed("timed out"));
            }
            sleep(stall).await;
            if self.is_reset(&plan) {
                return fail(self.nothing_heard(&plan).await);
            }
        }
        let answer = request.await;
        match self.receive(&plan, size(&answer)).await {
            Ok(()) => answer,
            Err(error) => fail(error),
        }
    }

    /// Sends a request to the server. Returns an error if it does not arrive there.
    async fn send(&self, plan: &Plan) -> Result<(), Error> {
        self.awake().await;
        if self.is_cut(plan) || plan.fate == Fate::Refused {
            sleep(plan.there).await;
            self.awake().await;
            return Err(Error::new(ErrorKind::Unavailable, "chaos: connection refused"));
        }
        sleep(plan.there).await;
        if self.is_cut(plan) || plan.fate == Fate::RequestLost {
            return Err(self.nothing_heard(plan).await);
        }
        Ok(())
    }

    /// Receives a reply of this many bytes. Returns an error if it is lost, or has not arrived in time.
    async fn receive(&self, plan: &Plan, bytes: u64) -> Result<(), Error> {
        if plan.fate == Fate::ReplyLost {
            return Err(self.nothing_heard(plan).await);
        }
        let transfer = plan.transfer(bytes);
        if transfer > plan.timeout {
            lock(&self.0.tally).too_large += 1;
            sleep(plan.timeout).await;
            self.awake().await;
            return Err(unconfirmed("timed out within an answer"));
        }
        sleep(plan.back + transfer).await;
        if !self.answers(plan.timeout).await {
            self.awake().await;
            return Err(unconfirmed("timed out"));
        }
        self.awake().await;
        if self.is_cut(plan) {
            return Err(unconfirmed("connection reset"));
        }
        Ok(())
    }

    /// Handles a missing reply: the connection is cut now, or the caller waits until its timeout.
    async fn nothing_heard(&self, plan: &Plan) -> Error {
        if self.is_cut(plan) || plan.reset {
            self.awake().await;
            return unconfirmed("connection reset");
        }
        sleep(plan.timeout.saturating_sub(plan.there)).await;
        self.awake().await;
        unconfirmed("timed out")
    }
}

impl Link {
    /// Whether the connection that a call began with is gone.
    fn is_cut(&self, plan: &Plan) -> bool {
        self.cut || self.outage == Some(Outage::Refused) || self.resets != plan.resets
    }
}

fn unconfirmed(what: &str) -> Error {
    Error::new(ErrorKind::Unconfirmed, format!("chaos: {what}"))
}

/// Returns a random duration within a range.
fn between(rng: &mut Rng, (least, most): (Duration, Duration)) -> Duration {
    let micros = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(rng.u64(micros(least)..=micros(most.max(least))))
}

impl fmt::Debug for Chaos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Chaos").field("clients", &lock(&self.0.clients).len()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("link", &*lock(&self.0.link))
            .field("tally", &self.tally())
            .finish_non_exhaustive()
    }
}
