//! Chaos: a backend whose calls are slow, get lost, or stall, by one seeded generator.
//!
//! [`Chaos`] stands around any backend. Every [`Client`] of it is what one process would have: a connection of its
//! own, with faults of its own. It can be cut off, paused (as by `SIGSTOP`) or killed while others go on. Under one
//! seed, a current-thread runtime and a paused clock everything happens the same way again.

mod faults;
mod looking;
mod reading;
mod roles;
mod shared;
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

/// A backend around which things go wrong. Cloning is cheap.
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
/// assert!(backend.catalog.topics().await.is_err());
/// chaos.heal();
/// assert!(backend.catalog.topics().await.is_ok());
/// # });
/// ```
#[derive(Clone)]
pub struct Chaos(Arc<Shared>);

struct Shared {
    backend: Backend,
    rng: Mutex<Rng>,
    clients: Mutex<Vec<Client>>,
    /// How the server is away, if it is.
    outage: Mutex<Option<Outage>>,
}

/// One process' connection to the backend. Clones are the same connection.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    backend: Backend,
    /// Who makes the calls, for a history below.
    name: Mutex<Option<Arc<str>>>,
    rng: Mutex<Rng>,
    rates: Mutex<Rates>,
    tally: Mutex<Tally>,
    link: Mutex<Link>,
    /// Rung when the link changes. Not a `watch`, which wakes its receivers in a random order.
    changed: Notify,
}

/// How the process and its connection are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Link {
    cut: bool,
    paused: bool,
    killed: bool,
    /// How the server is away, if it is: from all clients alike.
    outage: Option<Outage>,
    /// How often all connections were reset. A call that began before the last time is cut off.
    resets: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Chaos {
    /// Chaos around `backend`, decided by `seed`. Nothing goes wrong until a client is told to
    /// [suffer](Client::suffer).
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

    /// One more process. What happens to it depends on the seed and on how many clients came before.
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

    /// Resets all connections, as a server does that ends or fails over: calls under way are answered
    /// [`ErrorKind::Unconfirmed`], new ones find a connection again.
    pub fn reset(&self) {
        for client in lock(&self.0.clients).iter() {
            client.change(|link| link.resets += 1);
        }
    }

    /// Takes the server away from all clients, also from those that are made meanwhile, until
    /// [`end_outage`](Self::end_outage). Its clock goes on.
    pub fn begin_outage(&self, outage: Outage) {
        self.set_outage(Some(outage));
    }

    /// Ends an outage: the server answers again. Nothing happens if there is none.
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

    /// Ends all faults of all clients but death, and an outage: from now on every call of those that live is answered
    /// at once.
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
    /// The backend, as this process sees it.
    #[must_use]
    pub fn backend(&self) -> Backend {
        let backend = Backend::new(self.clone());
        let Backend { local, boot_clock, .. } = self.0.backend.clone();
        Backend { local, boot_clock, ..backend }
    }

    /// Names the process. A [history](crate::history) around the same backend then knows who made a call.
    pub fn name(&self, name: &str) {
        *lock(&self.0.name) = Some(name.into());
    }

    /// From now on this is what happens to calls of every role.
    pub fn suffer(&self, faults: &Faults) {
        for role in Role::ALL {
            self.suffer_in(*role, faults);
        }
    }

    /// From now on this is what happens to calls of one role.
    pub fn suffer_in(&self, role: Role, faults: &Faults) {
        lock(&self.0.rates).set(role, faults.clone());
    }

    /// Cuts the connection: calls under way are answered [`ErrorKind::Unconfirmed`], new ones
    /// [`ErrorKind::Unavailable`].
    pub fn cut(&self) {
        self.change(|link| link.cut = true);
    }

    /// Connects again.
    pub fn mend(&self) {
        self.change(|link| link.cut = false);
    }

    /// Stops the process, as `SIGSTOP` does: it neither sends nor sees an answer. The server goes on with what it
    /// was sent. Let handlers wait for [`awake`](Self::awake), so that they stop too.
    pub fn pause(&self) {
        self.change(|link| link.paused = true);
    }

    /// Lets a paused process go on.
    pub fn resume(&self) {
        self.change(|link| link.paused = false);
    }

    /// Ends the process, as `SIGKILL` does: what it has sent may still be done, but no call comes back, ever.
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

    /// How many calls there were, and what went wrong with them.
    #[must_use]
    pub fn tally(&self) -> Tally {
        *lock(&self.0.tally)
    }

    /// Whether the connection that a call began with is no more.
    fn is_cut(&self, plan: &Plan) -> bool {
        let link = lock(&self.0.link);
        link.is_cut(plan)
    }

    /// Whether the server that a call was sent to is no more: another one has taken its place.
    fn is_reset(&self, plan: &Plan) -> bool {
        lock(&self.0.link).resets != plan.resets
    }

    /// A request arrives whose caller has given up. The server that took another one's place never gets it.
    async fn arrives<T>(&self, plan: &Plan, request: impl Future<Output = T>) {
        if !self.is_reset(plan) {
            drop(request.await);
        }
    }

    /// Waits until the connection that a call began with is no more.
    async fn until_cut(&self, plan: &Plan) {
        self.until(|link| link.is_cut(plan)).await;
    }

    /// A request, made in this client's name.
    fn signed<F: Future>(&self, request: F) -> impl Future<Output = F::Output> + use<F> {
        caller::of(lock(&self.0.name).clone(), request)
    }

    /// Waits while the server hangs; `false` if that takes longer than `patience`.
    async fn answers(&self, patience: Duration) -> bool {
        let hangs = |link: &Link| link.outage == Some(Outage::Hung);
        if !hangs(&lock(&self.0.link)) {
            return true;
        }
        tokio::select! {
            biased;
            () = self.until(|link| !hangs(link)) => true,
            () = sleep(patience) => false,
        }
    }

    fn change(&self, change: impl FnOnce(&mut Link)) {
        change(&mut lock(&self.0.link));
        self.0.changed.notify_waiters();
    }

    async fn until(&self, holds: impl Fn(&Link) -> bool) {
        loop {
            // Made before the look, so that a change in between is not missed.
            let changed = self.0.changed.notified();
            if holds(&lock(&self.0.link)) {
                return;
            }
            changed.await;
        }
    }

    /// Decides about one call.
    fn plan(&self, role: Role) -> Plan {
        let mut plan = lock(&self.0.rates).of(role).plan(&mut lock(&self.0.rng));
        plan.resets = lock(&self.0.link).resets;
        lock(&self.0.tally).count(plan.fate);
        plan
    }

    /// Makes one call, as well as it goes. `fail` turns an error into the answer of the whole call.
    async fn call<T: Send + 'static>(
        &self,
        role: Role,
        request: impl Future<Output = T> + Send + 'static,
        fail: impl Fn(Error) -> T + Send,
    ) -> T {
        self.call_for(role, request, fail, |_| 0).await
    }

    /// The same where the answer has a size, in bytes, that matters.
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
                // The caller gives up, and closes its connection; a server that was stopped has the request all the
                // same, and goes on with it.
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
                // The caller gives up; the server does not know, and does it in the end.
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

    /// The way of a request to the server. An error if it does not arrive there.
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

    /// The way of an answer of so many bytes back. An error if it is lost, or has not arrived in time.
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

    /// No answer comes: the connection is cut now, or the caller waits until its timeout.
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
    /// Whether the connection that a call began with is no more.
    fn is_cut(&self, plan: &Plan) -> bool {
        self.cut || self.outage == Some(Outage::Refused) || self.resets != plan.resets
    }
}

fn unconfirmed(what: &str) -> Error {
    Error::new(ErrorKind::Unconfirmed, format!("chaos: {what}"))
}

/// A duration out of a range.
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
