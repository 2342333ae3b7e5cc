//! Sentinels: which server is the primary of a service now.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use millstream_core::error::{Error, ErrorKind, Result};
use redis::{Pipeline, Value};
use tokio::sync::watch;

use crate::address::Address;
use crate::conn::dial::Dial;
use crate::conn::once::OneTask;
use crate::conn::replies::reply;
use crate::conn::request::Request;
use crate::conn::socket::Socket;
use crate::conn::terms::Tenure;
use crate::error::{unchanged, unexpected};

/// Maximum time to connect to one Sentinel and to get its answer: the next one may be reachable.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum time for the reply to a request over a connection to a Sentinel.
const REPLY: Duration = Duration::from_secs(1);
/// Time after which the Sentinels are asked again: an announcement may be missed.
const INTERVAL: Duration = Duration::from_secs(1);

/// The Sentinels that watch a service. Those that answered last are asked first.
pub(crate) struct Sentinels {
    service: Arc<str>,
    order: Mutex<Vec<Arc<Dial>>>,
    /// The primary as it was last named, and the time of the question.
    named: Mutex<Option<(Address, Instant)>>,
    /// Number of the primary: another one for each change.
    number: watch::Sender<u64>,
    watch: OneTask,
}

impl Sentinels {
    pub(crate) fn new(sentinels: Vec<Arc<Dial>>, service: Arc<str>) -> Self {
        Self {
            service,
            order: Mutex::new(sentinels),
            named: Mutex::default(),
            number: watch::Sender::new(0),
            watch: OneTask::default(),
        }
    }

    /// Starts a task that watches which server is the primary, as long as connections use it.
    pub(crate) fn watch(self: &Arc<Self>) {
        self.watch.start(|| follow(Arc::downgrade(self)));
    }

    /// Returns the primary, and the time for which it is one.
    pub(crate) async fn primary_and_tenure(&self) -> Result<(Address, Tenure)> {
        let primary = self.primary().await?;
        // Another answer may have come meanwhile: what is returned belongs together.
        let named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        let primary = named.as_ref().map_or(primary, |(named, _)| named.clone());
        Ok((primary, Tenure::new(self.number.subscribe())))
    }

    /// Checks that a server is still the primary, once a connection to it is open. One that was dead when it was named and
    /// has started since takes itself for the primary, until a Sentinel tells it otherwise.
    pub(crate) async fn confirm(&self, primary: &Address) -> Result<()> {
        let now = self.primary().await?;
        if now == *primary {
            return Ok(());
        }
        let why =
            format!("the server cannot be used: {now} has become the primary in the place of {primary}");
        Err(Error::new(ErrorKind::Unavailable, why))
    }

    /// Takes note of the primary, as the answer to the question of the time `asked`. Its number changes under the lock.
    fn name(&self, primary: &Address, asked: Instant) {
        let mut named = self.named.lock().unwrap_or_else(PoisonError::into_inner);
        if named.as_ref().is_some_and(|(_, newest)| asked < *newest) {
            return;
        }
        if let Some((before, _)) = named.replace((primary.clone(), asked))
            && before != *primary
        {
            tracing::info!(service = &*self.service, %before, %primary, "the primary has changed");
            self.number.send_modify(|number| *number += 1);
        }
    }

    /// Subscribes to the changes that a Sentinel announces. It tells all services apart by names, and so do we: by asking.
    async fn announcements(&self) -> Result<Socket> {
        let first = self.order.lock().unwrap_or_else(PoisonError::into_inner).first().cloned();
        let sentinel = first.ok_or_else(|| Error::new(ErrorKind::InvalidConfig, "there is no Sentinel"))?;
        let mut socket = sentinel.socket("sentinel").await?;
        let mut request = Request::default();
        request.add(&[b"SUBSCRIBE", b"+switch-master"]);
        socket.ask(&request, Duration::ZERO, REPLY).await?;
        Ok(socket)
    }

    /// Asks one Sentinel after the other for the address of the primary.
    async fn primary(&self) -> Result<Address> {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut failed = None;
        for (at, sentinel) in order.iter().enumerate() {
            let asked = Instant::now();
            match tokio::time::timeout(REPLY_TIMEOUT, self.ask(sentinel)).await {
                Ok(Ok(primary)) => {
                    self.name(&primary, asked);
                    if at > 0 {
                        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
                        order.retain(|other| !Arc::ptr_eq(other, sentinel));
                        order.insert(0, sentinel.clone());
                    }
                    return Ok(primary);
                }
                Ok(Err(error)) => failed = Some(error),
                Err(_) => {
                    let why = format!("a Sentinel gave no answer within {REPLY_TIMEOUT:?}");
                    failed = failed.or(Some(Error::new(ErrorKind::Unavailable, why)));
                }
            }
        }
        let failed = failed.unwrap_or_else(|| Error::new(ErrorKind::InvalidConfig, "there is no Sentinel"));
        Err(failed.during(format_args!("ask Sentinels for the primary of {}", self.service)))
    }

    async fn ask(&self, sentinel: &Dial) -> Result<Address> {
        let mut socket = sentinel.socket("sentinel").await?;
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.service);
        let mut request = Request::default();
        request.add_pipeline(&pipe);
        socket.ask(&request, Duration::ZERO, REPLY).await.map_err(unchanged)?;
        let answer = socket.replies().next()?.value()?;
        if answer == Value::Nil {
            return Err(Error::new(ErrorKind::Unavailable, "the Sentinel does not know the service"));
        }
        let [host, port] = reply::tuple(reply::ok(answer)?)?;
        let (host, port) = (reply::text(host)?, reply::text(port)?);
        let port = port.parse().map_err(|_| unexpected(format_args!("port {port:?}")))?;
        Ok(Address::new(&host, port))
    }
}

/// Asks for the primary when a Sentinel announces a change, and every [`INTERVAL`].
async fn follow(sentinels: Weak<Sentinels>) {
    let mut announcements = None;
    loop {
        let Some(sentinels) = sentinels.upgrade() else { return };
        if announcements.is_none() {
            announcements = sentinels.announcements().await.ok();
        }
        if let Err(error) = sentinels.primary().await {
            tracing::debug!(%error, "the primary is not known");
        }
        drop(sentinels);
        match &mut announcements {
            Some(socket) => match socket.wait_readable(INTERVAL).await {
                Ok(_) => {}
                Err(_) => announcements = None,
            },
            None => tokio::time::sleep(INTERVAL).await,
        }
    }
}
