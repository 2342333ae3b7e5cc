//! What a metric is: its name, labels, help and buckets. The table of all of them is [`table`](crate::table).

use metrics::{Recorder, Unit};

/// What kind of metric it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Only grows, from when the process started.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts observations in buckets.
    Histogram,
}

impl Kind {
    /// The word that Prometheus has for it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Where a metric's values come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MetricSource {
    /// Events of this process: there from the first event on.
    Events,
    /// The health of this process's consumers.
    Health,
    /// The server, asked by a [`Sampler`](crate::Sampler): the same in every process that asks.
    Server,
}

/// One metric.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Metric {
    /// Its name: `millstream_…`, with `_total` for counters and the unit where there is one.
    pub name: &'static str,
    /// What kind it is.
    pub kind: Kind,
    /// Where it comes from.
    pub from: MetricSource,
    /// Its labels, beside those that [every series](crate::MetricsConfig::label) of the process has.
    pub labels: &'static [&'static str],
    /// What it says, in one sentence.
    pub help: &'static str,
}

/// Buckets of what takes time, in seconds: those of OpenTelemetry's conventions for messaging, and some for what is
/// quicker or takes minutes.
pub const SECONDS: [f64; 19] = [
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1_800.0,
];

/// Buckets of how many messages there are in a batch.
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

    /// Its unit, if it has one.
    #[must_use]
    pub fn unit(&self) -> Option<Unit> {
        self.name.ends_with("_seconds").then_some(Unit::Seconds)
    }

    /// The upper bounds of its buckets; empty if it is no histogram.
    #[must_use]
    pub fn buckets(&self) -> &'static [f64] {
        match (self.kind, self.unit()) {
            (Kind::Histogram, Some(_)) => &SECONDS,
            (Kind::Histogram, None) => &MESSAGES,
            _ => &[],
        }
    }

    /// Tells a recorder what it is.
    pub fn describe(&self, recorder: &dyn Recorder) {
        let (name, help) = (self.name.into(), self.help.into());
        match self.kind {
            Kind::Counter => recorder.describe_counter(name, self.unit(), help),
            Kind::Gauge => recorder.describe_gauge(name, self.unit(), help),
            Kind::Histogram => recorder.describe_histogram(name, self.unit(), help),
        }
    }
}
