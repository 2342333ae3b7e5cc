//! Registration of series: each label set once, up to a limit per metric.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use metrics::{Counter, Histogram, Key, Label, Level, Metadata, Recorder};
use millstream_core::Result;
use millstream_core::error::Problems;

use crate::metric::Metric;
use crate::table;

/// Value of every label of the series that collects the label sets over the limit.
pub const OTHER: &str = "other";

/// Recorder that several threads can use: see [`metrics::Recorder`].
pub type SharedRecorder = Arc<dyn Recorder + Send + Sync>;

/// Settings of the metrics.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MetricsConfig {
    /// Maximum number of label sets of one metric. Beyond it, counts and times go to one series whose labels are all
    /// `other`, and gauges are left out. Either is logged once, as a warning, and counted in
    /// `millstream_series_over_limit_total`. Where groups or partitions of all topics are too many, a
    /// [`Sampler`](crate::Sampler) shows all series of the groups with the most work, the gauges of further groups as a whole,
    /// and counts the rest in `millstream_left_out`. Default: 1,000.
    pub max_series: usize,
    /// Labels of every series. Default: none.
    pub labels: Vec<(String, String)>,
}

impl Default for MetricsConfig {
    fn default() -> Self {
        Self { max_series: 1_000, labels: Vec::new() }
    }
}

impl MetricsConfig {
    /// Returns the settings with another limit of label sets per metric.
    #[must_use]
    pub fn max_series(self, max_series: usize) -> Self {
        Self { max_series, ..self }
    }

    /// Returns the settings with one more label on every series, for example `service` or `region`.
    #[must_use]
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.push((name.into(), value.into()));
        self
    }

    fn check(&self) -> Result<()> {
        let mut problems = Problems::new("metrics");
        problems.require(self.max_series > 0, || "the limit of series is 0, at least 1 is needed".into());
        let ours = |name: &str| table::ALL.iter().any(|metric| metric.labels.contains(&name));
        for (at, (name, _)) in self.labels.iter().enumerate() {
            let first = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
            let rest = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
            problems.require(first && rest && !name.starts_with("__"), || {
                format!("{name:?} is no name for a label: A-Z a-z 0-9 _ are allowed, the first one no digit")
            });
            let taken = ours(name) || name == "le" || name == "quantile";
            problems.require(!taken, || format!("the label {name:?} is one of the metrics' own"));
            let twice = self.labels.iter().take(at).any(|(other, _)| other == name);
            problems.require(!twice, || format!("the label {name:?} is there twice"));
        }
        problems.finish()
    }
}

/// Registers series with a recorder.
pub(crate) struct Registry {
    /// `None` for the global recorder of the process.
    recorder: Option<SharedRecorder>,
    limit: usize,
    labels: Vec<Label>,
    sets: Mutex<BTreeMap<&'static str, Sets>>,
}

/// Label sets of one metric.
#[derive(Debug, Default)]
struct Sets {
    /// Number of admitted label sets.
    admitted: usize,
    /// Whether the warning about the limit was logged.
    told: bool,
}

impl Registry {
    pub(crate) fn new(recorder: Option<SharedRecorder>, config: &MetricsConfig) -> Result<Self> {
        config.check()?;
        let labels = config.labels.iter().map(|(name, value)| Label::new(name.clone(), value.clone()));
        let (limit, labels) = (config.max_series, labels.collect());
        let registry = Self { recorder, limit, labels, sets: Mutex::default() };
        registry.with(|recorder| table::ALL.iter().for_each(|metric| metric.describe(recorder)));
        Ok(registry)
    }

    /// Returns the maximum number of label sets of one metric.
    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    fn with<T>(&self, f: impl FnOnce(&dyn Recorder) -> T) -> T {
        match &self.recorder {
            Some(recorder) => f(&**recorder),
            None => metrics::with_recorder(f),
        }
    }

    pub(crate) fn counter(&self, metric: &Metric, values: &[&str]) -> Counter {
        let key = self.key(metric, values).unwrap_or_else(|| self.other(metric));
        self.with(|recorder| recorder.register_counter(&key, &METADATA))
    }

    pub(crate) fn histogram(&self, metric: &Metric, values: &[&str]) -> Histogram {
        let key = self.key(metric, values).unwrap_or_else(|| self.other(metric));
        self.with(|recorder| recorder.register_histogram(&key, &METADATA))
    }

    /// Sets a gauge that was admitted.
    pub(crate) fn set(&self, metric: &Metric, values: &[String], value: f64) {
        let key = self.made_of(metric, values.iter().map(String::as_str));
        self.with(|recorder| recorder.register_gauge(&key, &METADATA)).set(value);
    }

    /// Admits one more label set of a metric, and returns whether there was room. Over the limit it returns false, logs
    /// that once per metric, and counts it if it is the `first` request for this label set.
    pub(crate) fn admit(&self, metric: &Metric, first: bool) -> bool {
        let mut all = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let sets = all.entry(metric.name).or_default();
        // The metric that counts refused label sets has one label set per metric, and cannot exceed the limit.
        let over = sets.admitted >= self.limit && metric.name != table::UNLABELLED.name;
        if !over {
            sets.admitted += 1;
            return true;
        }
        let told = std::mem::replace(&mut sets.told, true);
        drop(all);
        if !told {
            let (metric, limit) = (metric.name, self.limit);
            tracing::warn!(metric, limit, "too many label sets: further ones share one series");
        }
        if first {
            let key = self.made_of(&table::UNLABELLED, [metric.name]);
            self.with(|recorder| recorder.register_counter(&key, &METADATA)).increment(1);
        }
        false
    }

    /// Releases an admitted label set.
    pub(crate) fn release(&self, metric: &Metric) {
        let mut all = self.sets.lock().unwrap_or_else(PoisonError::into_inner);
        let sets = all.entry(metric.name).or_default();
        sets.admitted = sets.admitted.saturating_sub(1);
    }

    /// Returns the key of a new label set; `None` if there are too many. The caller must keep the result, since each
    /// call admits a label set.
    fn key(&self, metric: &Metric, values: &[&str]) -> Option<Key> {
        debug_assert_eq!(metric.labels.len(), values.len(), "{}", metric.name);
        self.admit(metric, true).then(|| self.made_of(metric, values.iter().copied()))
    }

    fn other(&self, metric: &Metric) -> Key {
        self.made_of(metric, metric.labels.iter().map(|_| OTHER))
    }

    fn made_of<'a>(&self, metric: &Metric, values: impl IntoIterator<Item = &'a str>) -> Key {
        let own = metric.labels.iter().zip(values).map(|(name, value)| Label::new(*name, value.to_owned()));
        Key::from_parts(metric.name, own.chain(self.labels.iter().cloned()).collect::<Vec<_>>())
    }
}

static METADATA: Metadata<'static> = Metadata::new("millstream", Level::INFO, None);

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry")
            .field("limit", &self.limit)
            .field("labels", &self.labels)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wrong_label_is_told() {
        let config =
            MetricsConfig::default().max_series(0).label("", "x").label("1st", "x").label("a-b", "x");
        let config =
            config.label("topic", "x").label("le", "x").label("ok", "x").label("ok", "y").label("__x", "x");
        let error = Registry::new(None, &config).expect_err("wrong");
        assert_eq!(error.problems().len(), 8, "{error}");
        assert!(Registry::new(None, &MetricsConfig::default().label("service", "billing ü")).is_ok());
    }
}
