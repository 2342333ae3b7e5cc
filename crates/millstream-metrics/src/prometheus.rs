//! Prometheus text: a recorder with the right buckets, its upkeep, and the text.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use millstream_core::{Error, ErrorKind, Result};
use tokio::time::sleep;

use crate::metric::Kind;
use crate::table;

/// How often what was observed is put into its buckets. Until then every observation takes 16 bytes.
const UPKEEP: Duration = Duration::from_secs(1);

/// A recorder that Prometheus can read. Cloning gives another handle.
#[derive(Clone)]
pub struct Prometheus {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
}

impl Prometheus {
    /// A recorder of its own: it is not the process's, unless you [make it that](Self::recorder).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if the exporter refuses the buckets.
    pub fn new() -> Result<Self> {
        let refused =
            |error| Error::new(ErrorKind::InvalidConfig, "buckets of histograms").with_source(error);
        let mut builder = PrometheusBuilder::new();
        for metric in table::ALL.iter().filter(|metric| metric.kind == Kind::Histogram) {
            let name = Matcher::Full(metric.name.to_owned());
            builder = builder
                .set_buckets_for_metric(name, metric.buckets())
                .map_err(|error| refused(Box::new(error)))?;
        }
        let recorder = builder.build_recorder();
        Ok(Self { handle: recorder.handle(), recorder: Arc::new(recorder) })
    }

    /// The recorder, for metrics of your own: `metrics::set_global_recorder(prometheus.recorder())`.
    #[must_use]
    pub fn recorder(&self) -> Arc<PrometheusRecorder> {
        self.recorder.clone()
    }

    /// Everything that was recorded, as text in version 0.0.4 of the format.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.render()
    }

    /// Puts what was observed into its buckets, so that it does not pile up between two scrapes.
    pub fn run_once(&self) {
        self.handle.run_upkeep();
    }

    /// [`run_once`](Self::run_once) every second, for ever.
    pub async fn run(&self) {
        loop {
            sleep(UPKEEP).await;
            self.run_once();
        }
    }
}

impl fmt::Debug for Prometheus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prometheus").finish_non_exhaustive()
    }
}
