//! A server for the dashboard alone.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, StatusCode};
use axum::response::IntoResponse;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::log_ins::network;
use crate::proxies::Proxies;

/// Time that requests have to end when the server is stopped.
const GRACE: Duration = Duration::from_secs(5);
/// Time in which a client has to send the head of a request, also the next one of an open connection.
const HEADERS: Duration = Duration::from_secs(20);
/// Largest head of a request.
const MAX_HEADERS: usize = 64 << 10;
/// Time from the head of a request to that of its answer: a body that comes slowly is cut off.
const REQUEST: Duration = Duration::from_secs(60);
/// Maximum number of connections at the same time. A browser opens six.
const CONNECTIONS: usize = 512;
/// Maximum number of those of one address, unless it is that of a trusted proxy: slow clients do not hold up those of others.
const OF_ADDRESS: usize = 128;
/// Pause after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Running dashboard server. Dropping it stops it in the background.
#[must_use = "a server that is dropped stops"]
pub struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

/// Numbers of connections by address.
#[derive(Clone, Debug, Default)]
struct Clients(Arc<Mutex<HashMap<IpAddr, usize>>>);

/// Place of a connection among those of its address.
struct ClientPermit(Clients, IpAddr);

impl Clients {
    /// Takes a place for a connection; `None` if its address has all of its own.
    fn permit(&self, address: IpAddr) -> Option<ClientPermit> {
        let address = network(address);
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let connections = clients.entry(address).or_default();
        if *connections >= OF_ADDRESS {
            return None;
        }
        *connections += 1;
        Some(ClientPermit(self.clone(), address))
    }
}

impl Drop for ClientPermit {
    fn drop(&mut self) {
        let mut clients = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(connections) = clients.get_mut(&self.1) {
            *connections -= 1;
            if *connections == 0 {
                clients.remove(&self.1);
            }
        }
    }
}

/// Answers the requests of one connection, until it is closed or the server stops.
async fn connection(stream: TcpStream, peer: SocketAddr, router: Router, stopped: CancellationToken) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (router, mut request) = (router.clone(), request.map(Body::new));
        request.extensions_mut().insert(ConnectInfo(peer));
        async move {
            match timeout(REQUEST, router.oneshot(request)).await {
                Ok(answered) => answered,
                Err(_) => Ok((StatusCode::REQUEST_TIMEOUT, "the request took too long\n").into_response()),
            }
        }
    });
    let mut builder = http1::Builder::new();
    builder.timer(TokioTimer::new()).header_read_timeout(HEADERS).max_buf_size(MAX_HEADERS);
    let served = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(served);
    let ended = tokio::select! {
        biased;
        ended = served.as_mut() => ended,
        () = stopped.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    // Clients that leave, or that are cut off, are no failure of the server.
    if let Err(error) = ended {
        tracing::debug!(%error, %peer, "a connection to the dashboard ended");
    }
}

/// Accepts connections until the server stops, and returns when all have ended.
async fn serve(listener: TcpListener, router: Router, proxies: Proxies, stopped: CancellationToken) {
    let (room, mut connections) = (Arc::new(Semaphore::new(CONNECTIONS)), JoinSet::new());
    let clients = Clients::default();
    loop {
        while connections.try_join_next().is_some() {}
        let accept = async {
            // Others wait in the queue of the system.
            let room = room.clone().acquire_owned().await;
            (room, listener.accept().await)
        };
        let accepted = tokio::select! {
            biased;
            () = stopped.cancelled() => break,
            accepted = accept => accepted,
        };
        match accepted {
            (Ok(room), Ok((stream, peer))) => {
                let permit = clients.permit(peer.ip());
                if permit.is_none() && !proxies.has(peer.ip()) {
                    tracing::debug!(%peer, "a client has too many connections to the dashboard");
                    continue;
                }
                let served = connection(stream, peer, router.clone(), stopped.clone());
                connections.spawn(async move {
                    served.await;
                    drop((room, permit));
                });
            }
            (_, Err(error)) => {
                // The process has too many files open, for example: that passes.
                tracing::warn!(%error, "the dashboard cannot accept a connection");
                sleep(PAUSE).await;
            }
            (Err(_), _) => break,
        }
    }
    drop(listener);
    while connections.join_next().await.is_some() {}
}

impl Server {
    pub(crate) fn start(
        listener: TcpListener,
        address: SocketAddr,
        router: Router,
        proxies: Proxies,
    ) -> Self {
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let limit = async {
                stopped.cancelled().await;
                sleep(GRACE).await;
            };
            tokio::select! {
                biased;
                () = serve(listener, router, proxies, stopped.clone()) => {}
                () = limit => tracing::warn!("requests for the dashboard were cut off"),
            }
        });
        Self { address, stop, task: Some(task) }
    }

    /// Returns the address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening, and waits up to 5 s for requests to end. Actions that still run are dropped with the runtime.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take()
            && let Ok(Err(error)) = timeout(GRACE * 2, task).await
        {
            tracing::error!(%error, "the server of the dashboard ended abnormally");
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("address", &self.address).finish_non_exhaustive()
    }
}
