//! Gauges that are set in rounds: what a round does not mention is gone, and says so.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use metrics::Gauge;

use crate::metric::Metric;
use crate::registry::Registry;

/// The gauges of several scopes: a topic, a queue, a consumer. Each has rounds of its own.
#[derive(Default)]
pub(crate) struct Gauges(Mutex<BTreeMap<String, Scope>>);

type Labels = Vec<String>;

/// `None` for one that is over the limit.
type Scope = BTreeMap<(&'static str, Labels), (Option<Gauge>, bool)>;

/// What a scope says.
#[derive(Debug, Default)]
pub(crate) struct Values(Vec<(Metric, Labels, f64)>);

impl Values {
    pub(crate) fn set(&mut self, metric: Metric, labels: &[&str], value: f64) {
        self.0.push((metric, labels.iter().map(ToString::to_string).collect(), value));
    }
}

impl Gauges {
    /// The scope says this now. What it said before and does not mention any more is not a number from now on: a series
    /// cannot be taken back, and an old value would be a lie.
    pub(crate) fn say(&self, registry: &Registry, scope: &str, values: Values) {
        let mut scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let scope = scopes.entry(scope.to_owned()).or_default();
        for (_, said) in scope.values_mut() {
            *said = false;
        }
        for (metric, labels, value) in values.0 {
            let values: Vec<&str> = labels.iter().map(String::as_str).collect();
            let gauge = || (registry.gauge(&metric, &values), true);
            let (gauge, said) = scope.entry((metric.name, labels.clone())).or_insert_with(gauge);
            *said = true;
            gauge.iter().for_each(|gauge| gauge.set(value));
        }
        for (gauge, _) in scope.values().filter(|(_, said)| !said) {
            gauge.iter().for_each(|gauge| gauge.set(f64::NAN));
        }
    }

    /// All scopes but these say nothing any more.
    pub(crate) fn keep(&self, keep: impl Fn(&str) -> bool) {
        let scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let gone = scopes.iter().filter(|(scope, _)| !keep(scope)).flat_map(|(_, gauges)| gauges.values());
        gone.for_each(|(gauge, _)| gauge.iter().for_each(|gauge| gauge.set(f64::NAN)));
    }
}
