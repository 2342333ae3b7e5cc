//! The description of a metric: name, labels, help and buckets. The table of all metrics is [`table`](crate::table).

use metrics::{Recorder, Unit};

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Grows only, from the start of the process.
    Counter,
    /// Can go up and down.
    Gauge,
    /// Counts observations in buckets.
    Histogram,
}

impl Kind {
    /// Returns the name that Prometheus uses for this kind.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Source of a metric's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetricSource {
    /// Events of this process: present from the first event on.
    Events,
    /// The health of this process's consumers.
    Health,
    /// The server, queried by a [`Sampler`](crate::Sampler): the same in every process that samples.
    Server,
}

/// Description of a metric.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metric {
    /// Name: `millstream_…`, with `_total` for counters and with the unit if there is one.
    pub name: &'static str,
    /// Kind.
    pub kind: Kind,
    /// Source of its values.
    pub from: MetricSource,
    /// Names of its labels, in addition to those that [every series](crate::MetricsConfig::label) of the process has.
    pub labels: &'static [&'static str],
    /// Meaning, in one sentence.
    pub help: &'static str,
}

/// Buckets of durations, in seconds: those of OpenTelemetry's conventions for messaging, and some more for shorter
/// times and for minutes.
pub const SECONDS: [f64; 19] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1_800.0,
];

/// Buckets of the number of messages in a batch.
pub const MESSAGES: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1_000.0];

impl Metric {
    pub(crate) const fn new(
        name: &'static str,
        kind: Kind,
        from: MetricSource,
        labels: &'static [&'static str],
        help: &'static str,
    ) -> Self {
        Self { name, kind, from, labels, help }
    }

    /// Returns the unit, if it has one.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        self.name.ends_with("_seconds").then_some(Unit::Seconds)
    }

    /// Returns the upper bounds of its buckets; empty if it is not a histogram.
    #[must_use]
    pub fn buckets(&self) -> &'static [f64] {
        match (self.kind, self.unit()) {
            (Kind::Histogram, Some(_)) => &SECONDS,
            (Kind::Histogram, None) => &MESSAGES,
            _ => &[],
        }
    }

    /// Describes the metric to a recorder.
    pub fn describe(&self, recorder: &dyn Recorder) {
        let (name, help) = (self.name.into(), self.help.into());
        match self.kind {
            Kind::Counter => recorder.describe_counter(name, self.unit(), help),
            Kind::Gauge => recorder.describe_gauge(name, self.unit(), help),
            Kind::Histogram => recorder.describe_histogram(name, self.unit(), help),
        }
    }
}
