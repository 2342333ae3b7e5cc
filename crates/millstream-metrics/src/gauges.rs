//! Gauges that are set in rounds: what a round does not mention is gone, says so once, and is forgotten.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::metric::Metric;
use crate::registry::Registry;

/// The gauges of several scopes: a topic, a queue, the consumers of this process. Each has rounds of its own.
#[derive(Default)]
pub(crate) struct Gauges(Mutex<BTreeMap<String, Scope>>);

type Labels = Vec<String>;

type Scope = BTreeMap<(&'static str, Labels), Said>;

/// What a series says.
struct Said {
    metric: Metric,
    value: f64,
    /// Whether there is room for it. If not, it says nothing until there is.
    admitted: bool,
}

/// What a scope says in one round.
#[derive(Debug, Default)]
pub(crate) struct Values(BTreeMap<(&'static str, Labels), (Metric, f64)>);

impl Values {
    /// Says this, and nothing else that was said.
    pub(crate) fn set(&mut self, metric: Metric, labels: &[&str], value: f64) {
        self.with(metric, labels, value, |_, value| value);
    }

    /// Says the sum of all that is said of it.
    pub(crate) fn add(&mut self, metric: Metric, labels: &[&str], value: f64) {
        self.with(metric, labels, value, |before, value| before + value);
    }

    /// Says the smallest that is said of it.
    pub(crate) fn least(&mut self, metric: Metric, labels: &[&str], value: f64) {
        self.with(metric, labels, value, f64::min);
    }

    /// Says the largest that is said of it.
    pub(crate) fn most(&mut self, metric: Metric, labels: &[&str], value: f64) {
        self.with(metric, labels, value, f64::max);
    }

    fn with(&mut self, metric: Metric, labels: &[&str], value: f64, both: fn(f64, f64) -> f64) {
        let key = (metric.name, labels.iter().map(ToString::to_string).collect());
        self.0.entry(key).and_modify(|(_, said)| *said = both(*said, value)).or_insert((metric, value));
    }
}

impl Gauges {
    /// The scope says this now. What it said before and does not mention any more is not a number, and then forgotten: an
    /// old value would be a lie.
    pub(crate) fn say(&self, registry: &Registry, scope: &str, values: Values) {
        let mut scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let scope = scopes.entry(scope.to_owned()).or_default();
        scope.retain(|key, said| {
            let stays = values.0.contains_key(key);
            if !stays {
                take_back(registry, key, said);
            }
            stays
        });
        for (key, (metric, value)) in values.0 {
            let first = !scope.contains_key(&key);
            let said = scope.entry(key.clone()).or_insert(Said { metric, value: f64::NAN, admitted: false });
            said.admitted = said.admitted || registry.admit(&metric, first);
            said.value = value;
            show(registry, &key, said);
        }
    }

    /// The scope says nothing any more.
    pub(crate) fn forget(&self, registry: &Registry, scope: &str) {
        let mut scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (key, said) in scopes.remove(scope).unwrap_or_default() {
            take_back(registry, &key, &said);
        }
    }

    /// All say again what they say: recorders forget what nobody says for some time.
    pub(crate) fn repeat(&self, registry: &Registry) {
        let scopes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        scopes.values().flatten().for_each(|(key, said)| show(registry, key, said));
    }
}

/// The gauge is looked up each time: one that is kept would not be the one that is shown, once the recorder has forgotten
/// it.
fn show(registry: &Registry, (_, labels): &(&'static str, Labels), said: &Said) {
    if said.admitted {
        registry.set(&said.metric, labels, said.value);
    }
}

fn take_back(registry: &Registry, (_, labels): &(&'static str, Labels), said: &Said) {
    if said.admitted {
        registry.set(&said.metric, labels, f64::NAN);
        registry.release(&said.metric);
    }
}
