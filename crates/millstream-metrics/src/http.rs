//! The server: `/metrics` for Prometheus, `/livez` and `/readyz` for probes, `/lag` for autoscalers.

mod answers;
mod probes;

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use millstream_core::{Backend, Error, ErrorKind, Result};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::observer::MetricsObserver;
use crate::prometheus::Prometheus;
use crate::sampler::{Sampler, SamplerConfig};
use crate::sampling::lag_reader::LagReader;

/// Time that requests have to end when the server is stopped.
const GRACE: Duration = Duration::from_secs(5);

/// Settings of the metrics server.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerConfig {
    /// Address to listen on; port 0 for any free port. There is no authentication: everybody who can connect can read
    /// names of topics and groups, and figures. Default: `127.0.0.1:9464`, for this machine only.
    pub address: SocketAddr,
    /// Settings of the sampler of the server's gauges.
    pub sampler: SamplerConfig,
    /// Number of consumers that must have started before the process is ready. Default: 0.
    pub consumers: usize,
    /// Time limit of requests to the backend: after it the process is not ready, and a lag is unknown. Default: 2 s.
    pub timeout: Duration,
}

impl Default for ServerConfig {
    fn default() -> Self {
        Self {
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 9464)),
            sampler: SamplerConfig::default(),
            consumers: 0,
            timeout: Duration::from_secs(2),
        }
    }
}

impl ServerConfig {
    /// Returns the settings with another address.
    #[must_use]
    pub fn address(self, address: impl Into<SocketAddr>) -> Self {
        Self { address: address.into(), ..self }
    }

    /// Returns the settings with other settings of the sampler.
    #[must_use]
    pub fn sampler(self, sampler: SamplerConfig) -> Self {
        Self { sampler, ..self }
    }

    /// Returns the settings with another time limit of requests to the backend.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the settings with the number of consumers that must have started before the process is ready.
    #[must_use]
    pub fn consumers(self, consumers: usize) -> Self {
        Self { consumers, ..self }
    }
}

/// State of all routes.
pub(crate) struct App {
    pub(crate) observer: Arc<MetricsObserver>,
    pub(crate) prometheus: Prometheus,
    pub(crate) backend: Backend,
    pub(crate) sampler: Sampler,
    pub(crate) config: ServerConfig,
    lags: LagReader,
}

impl App {
    pub(crate) fn new(
        observer: Arc<MetricsObserver>,
        prometheus: Prometheus,
        backend: Backend,
        config: ServerConfig,
    ) -> Result<Arc<Self>> {
        let sampler = Sampler::new(backend.clone(), observer.clone(), config.sampler.clone())?;
        let lags = LagReader::new(backend.clone()).timeout(config.timeout);
        Ok(Arc::new(Self { observer, prometheus, backend, sampler, config, lags }))
    }

    /// Runs the sampler and the recorder's upkeep, which the routes need, without an end.
    pub(crate) async fn run(&self) {
        tokio::join!(self.sampler.run(), self.prometheus.run());
    }
}

pub(crate) fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/metrics", get(answers::metrics))
        .route("/livez", get(probes::livez))
        .route("/readyz", get(probes::readyz))
        .route("/lag", get(answers::lags))
        .route("/lag/{topic}/{group}", get(answers::lag))
        .with_state(app)
}

/// Running metrics server. Dropping it stops it in the background.
#[must_use = "a server that is dropped stops"]
pub struct Server {
    address: SocketAddr,
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) async fn start(app: Arc<App>) -> Result<Self> {
        let wanted = app.config.address;
        let cannot = |error: std::io::Error| {
            let message = format!("cannot listen on {wanted}: {error}");
            Error::new(ErrorKind::Unavailable, message).with_source(error)
        };
        let listener = TcpListener::bind(wanted).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "metrics and health are served without authentication to every client that can connect");
        }
        let stop = CancellationToken::new();
        let stopped = stop.clone();
        let task = tokio::spawn(async move {
            let serve = axum::serve(listener, router(app.clone()));
            let serve = serve.with_graceful_shutdown(stopped.clone().cancelled_owned());
            let limit = async {
                stopped.cancelled().await;
                tokio::time::sleep(GRACE).await;
            };
            tokio::select! {
                biased;
                served = serve.into_future() => {
                    if let Err(error) = served {
                        tracing::error!(%error, "the server of metrics and health ended");
                    }
                }
                () = limit => tracing::warn!("requests for metrics and health were cut off"),
                () = app.run() => {}
            }
        });
        Ok(Self { address, stop, task: Some(task) })
    }

    /// Returns the address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops listening, waits up to 5 s for requests to end, and stops sampling the backend.
    pub async fn shutdown(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take()
            && let Ok(Err(error)) = timeout(GRACE * 2, task).await
        {
            tracing::error!(%error, "the server of metrics and health ended abnormally");
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
