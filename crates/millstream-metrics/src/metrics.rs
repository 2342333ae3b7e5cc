//! Everything together: records events, and serves Prometheus text and probes.

use std::sync::Arc;

use millstream_core::Result;
use millstream_core::event::{Event, Observer};

use crate::observer::MetricsObserver;
use crate::prometheus::Prometheus;
use crate::registry::MetricsConfig;

/// Metrics of this process for Prometheus, with their own recorder. A clone is another handle to the same metrics.
///
/// It is an [`Observer`]: pass it to producers, consumers and queues to record their events.
#[derive(Clone, Debug)]
pub struct Metrics {
    observer: Arc<MetricsObserver>,
    prometheus: Prometheus,
}

impl Metrics {
    /// Creates metrics with default settings.
    ///
    /// # Errors
    /// Same as [`with`](Self::with).
    pub fn new() -> Result<Self> {
        Self::with(&MetricsConfig::default())
    }

    /// Creates metrics with these settings.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig) that lists all problems.
    pub fn with(config: &MetricsConfig) -> Result<Self> {
        let prometheus = Prometheus::new()?;
        let observer = Arc::new(MetricsObserver::with_recorder(prometheus.ours(), config)?);
        Ok(Self { observer, prometheus })
    }

    /// Returns the observer that turns events into metrics.
    #[must_use]
    pub fn observer(&self) -> Arc<MetricsObserver> {
        self.observer.clone()
    }

    /// Returns the recorder.
    #[must_use]
    pub fn prometheus(&self) -> &Prometheus {
        &self.prometheus
    }

    /// Returns all metrics as Prometheus text: those of events, and the current state of this process's consumers.
    /// Metrics of the server are included if a [`Sampler`](crate::Sampler) runs.
    #[must_use]
    pub fn render(&self) -> String {
        self.observer.show_consumers();
        self.prometheus.render()
    }
}

#[cfg(feature = "http")]
impl Metrics {
    /// Starts a server with `/metrics`, `/livez`, `/readyz` and `/lag`, and samples `backend` for the metrics of the server.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](millstream_core::ErrorKind::Unavailable) if the address cannot be listened on;
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig).
    pub async fn serve(
        &self,
        backend: &millstream_core::Backend,
        config: crate::ServerConfig,
    ) -> Result<crate::Server> {
        crate::Server::start(self.app(backend, config)?).await
    }

    /// Returns the routes alone, for a server of the application, and a future that must run as long as they are served.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig).
    pub fn router(
        &self,
        backend: &millstream_core::Backend,
        config: crate::ServerConfig,
    ) -> Result<(axum::Router, impl Future<Output = ()> + Send + 'static)> {
        let app = self.app(backend, config)?;
        let router = crate::http::router(app.clone());
        Ok((router, async move { app.run().await }))
    }

    fn app(
        &self,
        backend: &millstream_core::Backend,
        config: crate::ServerConfig,
    ) -> Result<Arc<crate::http::App>> {
        crate::http::App::new(self.observer.clone(), self.prometheus.clone(), backend.clone(), config)
    }
}

impl Observer for Metrics {
    fn observe(&self, event: &Event<'_>) {
        self.observer.observe(event);
    }
}
