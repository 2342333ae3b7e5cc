//! Everything together: events in, Prometheus text and probes out.

use std::sync::Arc;

use millstream_core::Result;
use millstream_core::event::{Event, Observer};

use crate::observer::MetricsObserver;
use crate::prometheus::Prometheus;
use crate::registry::MetricsConfig;

/// Metrics of this process for Prometheus, with a recorder of their own. Cloning gives another handle.
///
/// It is an [`Observer`]: give it to what is to be observed.
#[derive(Clone, Debug)]
pub struct Metrics {
    observer: Arc<MetricsObserver>,
    prometheus: Prometheus,
}

impl Metrics {
    /// Metrics with default settings.
    ///
    /// # Errors
    /// As [`with`](Self::with).
    pub fn new() -> Result<Self> {
        Self::with(&MetricsConfig::default())
    }

    /// Metrics with these settings.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`](millstream_core::ErrorKind::InvalidConfig) that lists everything that is wrong.
    pub fn with(config: &MetricsConfig) -> Result<Self> {
        let prometheus = Prometheus::new()?;
        let observer = Arc::new(MetricsObserver::with_recorder(prometheus.ours(), config)?);
        Ok(Self { observer, prometheus })
    }

    /// What turns events into metrics.
    #[must_use]
    pub fn observer(&self) -> Arc<MetricsObserver> {
        self.observer.clone()
    }

    /// The recorder.
    #[must_use]
    pub fn prometheus(&self) -> &Prometheus {
        &self.prometheus
    }

    /// All metrics as Prometheus text: what events told, and how the consumers of this process are now. What only the
    /// server knows is there if a [`Sampler`](crate::Sampler) runs.
    #[must_use]
    pub fn render(&self) -> String {
        self.observer.show_consumers();
        self.prometheus.render()
    }
}

#[cfg(feature = "http")]
impl Metrics {
    /// Starts a server with `/metrics`, `/livez`, `/readyz` and `/lag`, and asks `backend` for what only it knows.
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

    /// The routes alone, for a server of your own, and what has to run beside them for as long as it does.
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
