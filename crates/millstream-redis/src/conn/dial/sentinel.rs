//! Sentinels: which server is the primary of a service now.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::error::{Error, ErrorKind, Result};
use redis::{Pipeline, Value};

use crate::address::Address;
use crate::conn::dial::Dial;
use crate::conn::replies::reply;
use crate::conn::request::Request;
use crate::error::unexpected;

/// Maximum time for the answer of one Sentinel: the next one may be reachable.
const PATIENCE: Duration = Duration::from_secs(1);

/// The Sentinels that watch a service. Those that answered last are asked first.
pub(crate) struct Sentinels {
    service: Arc<str>,
    order: Mutex<Vec<Arc<Dial>>>,
}

impl Sentinels {
    pub(crate) fn new(sentinels: Vec<Arc<Dial>>, service: Arc<str>) -> Self {
        Self { service, order: Mutex::new(sentinels) }
    }

    /// Asks one Sentinel after the other for the address of the primary.
    pub(crate) async fn primary(&self) -> Result<Address> {
        let order = self.order.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut failed = None;
        for (at, sentinel) in order.iter().enumerate() {
            match tokio::time::timeout(PATIENCE, self.ask(sentinel)).await {
                Ok(Ok(primary)) => {
                    if at > 0 {
                        let mut order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
                        order.retain(|other| !Arc::ptr_eq(other, sentinel));
                        order.insert(0, sentinel.clone());
                    }
                    return Ok(primary);
                }
                Ok(Err(error)) => failed = Some(error),
                Err(_) => {
                    let why = format!("a Sentinel gave no answer within {PATIENCE:?}");
                    failed = failed.or(Some(Error::new(ErrorKind::Unavailable, why)));
                }
            }
        }
        let failed = failed.unwrap_or_else(|| Error::new(ErrorKind::InvalidConfig, "there is no Sentinel"));
        Err(failed.during(format_args!("ask Sentinels for the primary of {}", self.service)))
    }

    async fn ask(&self, sentinel: &Dial) -> Result<Address> {
        // Boxed: a Sentinel is dialled as any server is.
        let mut socket = Box::pin(sentinel.socket("sentinel")).await?;
        let mut pipe = Pipeline::with_capacity(1);
        pipe.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(&*self.service);
        let mut request = Request::default();
        request.add_pipeline(&pipe);
        socket.ask(&request, Duration::ZERO, PATIENCE).await.map_err(not_done)?;
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

/// Nothing was sent to the server itself, whatever happened to the question.
fn not_done(error: Error) -> Error {
    match error.kind() {
        ErrorKind::Unconfirmed => {
            Error::new(ErrorKind::Unavailable, format!("no answer of a Sentinel: {error}"))
        }
        _ => error,
    }
}
