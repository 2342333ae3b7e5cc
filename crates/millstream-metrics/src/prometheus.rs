//! Prometheus text: a recorder with the right buckets, its upkeep, and the rendering.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use metrics::{Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use metrics_util::MetricKindMask;
use millstream_core::{Error, ErrorKind, Result};
use tokio::time::sleep;

use crate::metric::Kind;
use crate::registry::SharedRecorder;
use crate::table;

/// Interval at which observations are sorted into their buckets. Until then each observation takes 16 bytes.
const UPKEEP: Duration = Duration::from_secs(1);

/// Time after which one of our gauges that is no longer set is not rendered any more: a gauge of something that has
/// ended is NaN by then.
const FORGOTTEN: Duration = Duration::from_secs(300);

/// Recorder that renders Prometheus text. A clone is another handle to the same recorder.
#[derive(Clone)]
pub struct Prometheus {
    recorder: Arc<PrometheusRecorder>,
    handle: PrometheusHandle,
    /// Recorder of our own gauges, separate because gauges of the application must not be forgotten.
    gauges: Arc<PrometheusRecorder>,
    gauges_handle: PrometheusHandle,
}

impl Prometheus {
    /// Creates a new recorder. It is not the global recorder of the process, unless you [install it](Self::recorder).
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] if the exporter refuses the buckets.
    pub fn new() -> Result<Self> {
        Self::forgetting_after(FORGOTTEN)
    }

    fn forgetting_after(time: Duration) -> Result<Self> {
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
        let gauges =
            PrometheusBuilder::new().idle_timeout(MetricKindMask::GAUGE, Some(time)).build_recorder();
        Ok(Self {
            handle: recorder.handle(),
            recorder: Arc::new(recorder),
            gauges_handle: gauges.handle(),
            gauges: Arc::new(gauges),
        })
    }

    /// Returns the recorder, for metrics of the application: `metrics::set_global_recorder(prometheus.recorder())`. Its
    /// metrics are kept for the life of the process.
    #[must_use]
    pub fn recorder(&self) -> Arc<PrometheusRecorder> {
        self.recorder.clone()
    }

    /// Returns the recorder for our own metrics: the same as [`recorder`](Self::recorder), but gauges that are no
    /// longer set are forgotten after five minutes.
    pub(crate) fn ours(&self) -> SharedRecorder {
        Arc::new(Ours { rest: self.recorder.clone(), gauges: self.gauges.clone() })
    }

    /// Returns all metrics as text, in version 0.0.4 of the format.
    #[must_use]
    pub fn render(&self) -> String {
        self.handle.render() + &self.gauges_handle.render()
    }

    /// Sorts observations into their buckets, so that they do not accumulate between two scrapes.
    pub fn run_once(&self) {
        self.handle.run_upkeep();
        self.gauges_handle.run_upkeep();
    }

    /// Calls [`run_once`](Self::run_once) every second, without an end.
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

/// Recorder that sends gauges to one recorder and all other metrics to another.
struct Ours {
    rest: Arc<PrometheusRecorder>,
    gauges: Arc<PrometheusRecorder>,
}

impl Recorder for Ours {
    fn describe_counter(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.rest.describe_counter(key, unit, description);
    }

    fn describe_gauge(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.gauges.describe_gauge(key, unit, description);
    }

    fn describe_histogram(&self, key: KeyName, unit: Option<Unit>, description: SharedString) {
        self.rest.describe_histogram(key, unit, description);
    }

    fn register_counter(&self, key: &Key, metadata: &Metadata<'_>) -> Counter {
        self.rest.register_counter(key, metadata)
    }

    fn register_gauge(&self, key: &Key, metadata: &Metadata<'_>) -> Gauge {
        self.gauges.register_gauge(key, metadata)
    }

    fn register_histogram(&self, key: &Key, metadata: &Metadata<'_>) -> Histogram {
        self.rest.register_histogram(key, metadata)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::registry::{MetricsConfig, Registry};
    use crate::sampling::gauges::{Gauges, Values};

    #[test]
    fn what_has_ended_disappears_and_what_lives_stays() {
        let prometheus = Prometheus::forgetting_after(Duration::from_millis(20)).expect("a recorder");
        let config = MetricsConfig::default().max_series(2);
        let registry = Registry::new(Some(prometheus.ours()), &config).expect("a registry");
        let gauges = Gauges::default();
        let says = |consumer: &str| {
            let mut values = Values::default();
            values.set(table::WORKER_LIVE, &["q", consumer], 1.0);
            gauges.say(&registry, consumer, values);
        };
        let mine = prometheus.recorder();
        static METADATA: Metadata<'static> = Metadata::new("mine", metrics::Level::INFO, None);
        mine.register_gauge(&Key::from_name("mine"), &METADATA).set(7.0);
        says("stays");
        // Many more than the limit allows, one after the other.
        for nth in 0..10 {
            let name = format!("w-{nth}");
            says(&name);
            assert!(
                prometheus.render().contains(&format!("worker=\"{name}\"}} 1")),
                "there is room for {name}"
            );
            gauges.forget(&registry, &name);
            assert!(prometheus.render().contains(&format!("worker=\"{name}\"}} NaN")), "{name} has ended");
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            gauges.repeat(&registry);
            let text = prometheus.render();
            assert!(text.contains("worker=\"stays\"} 1"), "what lives stays:\n{text}");
            assert!(text.contains("mine 7"), "what others set stays:\n{text}");
            if !text.contains("w-") {
                break;
            }
            assert!(Instant::now() < deadline, "{text}");
            std::thread::sleep(Duration::from_millis(5));
        }
        says("w-0");
        let text = prometheus.render();
        assert!(text.contains("worker=\"w-0\"} 1") && !text.contains("over_limit"), "it is back:\n{text}");
    }
}
