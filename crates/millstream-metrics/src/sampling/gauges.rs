//! Gauges that are set in rounds: a gauge that is missing in a round is set to NaN once, and then forgotten.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::metric::Metric;
use crate::registry::Registry;

/// Gauges of several scopes: a topic, a queue, the consumers of this process. Each scope has its own rounds.
#[derive(Default)]
pub(crate) struct Gauges(Mutex<BTreeMap<String, Scope>>);

type Labels = Vec<String>;

type Scope = BTreeMap<(&'static str, Labels), Said>;

/// Last value of a series.
struct Said {
    metric: Metric,
    value: f64,
    /// Whether it is within the limit of series. If not, it is not shown until there is room.
    admitted: bool,
}

/// Values of a scope in one round.
#[derive(Debug, Default)]
pub(crate) struct Values(BTreeMap<(&'static str, Labels), (Metric, f64)>);

impl Values {
    /// Sets a value, replacing an earlier one.
    pub(crate) fn set(&mut self, metric: Metric, labels: &[&str], value: f64) {
        self.with(metric, labels, value, |_, value| value);
    }

    /// Adds a value to the sum of the series.
    pub(crate) fn add(&mut self, metric: Metric, labels: &[&str], value: f64) {
        self.with(metric, labels, value, |before, value| before + value);
    }

    /// Keeps the smallest value of the series.
    pub(crate) fn least(&mut self, metric: Metric, labels: &[&str], value: f64) {
        self.with(metric, labels, value, f64::min);
    }

    /// Keeps the largest value of the series.
    pub(crate) fn most(&mut self, metric: Metric, labels: &[&str], value: f64) {
        self.with(metric, labels, value, f64::max);
    }

    fn with(&mut self, metric: Metric, labels: &[&str], value: f64, both: fn(f64, f64) -> f64) {
        let key = (metric.name, labels.iter().map(ToString::to_string).collect());
        self.0.entry(key).and_modify(|(_, said)| *said = both(*said, value)).or_insert((metric, value));
    }
}

impl Gauges {
    /// Sets the values of a scope. A series of an earlier round that is missing now is set to NaN, and then forgotten:
    /// an old value would be wrong.
    pub(crate) fn say(&self, registry: &Registry, scope: &str, values: Values) {
        self.say_all(registry, vec![(scope.to_owned(), values)]);
    }

    /// Sets the values of several scopes. What one of them has no more makes room for the others.
    pub(crate) fn say_all(&self, registry: &Registry, all: Vec<(String, Values)>) {
        let mut scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (scope, values) in &all {
            retain(registry, scopes.entry(scope.clone()).or_default(), |key| values.0.contains_key(key));
        }
        for (scope, values) in all {
            let scope = scopes.entry(scope).or_default();
            for (key, (metric, value)) in values.0 {
                let first = !scope.contains_key(&key);
                let said =
                    scope.entry(key.clone()).or_insert(Said { metric, value: f64::NAN, admitted: false });
                said.admitted = said.admitted || registry.admit(&metric, first);
                said.value = value;
                show(registry, &key, said);
            }
        }
    }

    /// Keeps only the series of a scope with these labels.
    pub(crate) fn retain(&self, registry: &Registry, scope: &str, keep: impl Fn(&[String]) -> bool) {
        let mut scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(scope) = scopes.get_mut(scope) {
            retain(registry, scope, |(_, labels)| keep(labels));
        }
    }

    /// Removes a scope: all its series are set to NaN and forgotten.
    pub(crate) fn forget(&self, registry: &Registry, scope: &str) {
        let mut scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, said) in scopes.remove(scope).unwrap_or_default() {
            take_back(registry, &key, &said);
        }
    }

    /// Sets all gauges again to their current values, because recorders forget gauges that are not set for some time.
    pub(crate) fn repeat(&self, registry: &Registry) {
        let scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        scopes.values().flatten().for_each(|(key, said)| show(registry, key, said));
    }
}

/// Sets the gauge. It is looked up each time: once the recorder has forgotten a gauge, a stored handle would no longer
/// be the one that is rendered.
fn show(registry: &Registry, (_, labels): &(&'static str, Labels), said: &Said) {
    if said.admitted {
        registry.set(&said.metric, labels, said.value);
    }
}

fn retain(registry: &Registry, scope: &mut Scope, keep: impl Fn(&(&'static str, Labels)) -> bool) {
    scope.retain(|key, said| {
        let stays = keep(key);
        if !stays {
            take_back(registry, key, said);
        }
        stays
    });
}

fn take_back(registry: &Registry, (_, labels): &(&'static str, Labels), said: &Said) {
    if said.admitted {
        registry.set(&said.metric, labels, f64::NAN);
        registry.release(&said.metric);
    }
}
