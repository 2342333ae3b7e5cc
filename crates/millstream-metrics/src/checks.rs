//! The consumers of this process, as they say themselves how they are: gauges and probes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use millstream_core::health::{ConsumerState, Health, HealthCheck};

use crate::gauges::{Gauges, Values};
use crate::registry::Registry;
use crate::table;

/// All consumers that were started and have not ended as they were asked to.
#[derive(Default)]
pub(crate) struct Checks {
    running: Mutex<Vec<Arc<dyn HealthCheck>>>,
    gauges: Gauges,
}

impl Checks {
    /// One has started.
    pub(crate) fn add(&self, check: Arc<dyn HealthCheck>) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|check| !is_over(&check.health()));
        running.push(check);
    }

    /// How each of them is.
    pub(crate) fn healths(&self) -> Vec<Health> {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let mut healths = Vec::with_capacity(running.len());
        running.retain(|check| {
            let health = check.health();
            let over = is_over(&health);
            healths.extend((!over).then_some(health));
            !over
        });
        healths
    }

    /// Sets the gauges.
    pub(crate) fn show(&self, registry: &Registry) {
        let healths = self.healths();
        for health in &healths {
            self.gauges.say(registry, health.member.as_str(), values(health));
        }
        self.gauges.keep(|member| healths.iter().any(|health| health.member.as_str() == member));
    }
}

/// Whether it has ended, and was asked to.
fn is_over(health: &Health) -> bool {
    health.state == ConsumerState::Ended && health.asked_to_end
}

fn values(health: &Health) -> Values {
    let (group, consumer) = (health.group.as_str(), health.member.as_str());
    let mut values = Values::default();
    let truth = |it: bool| f64::from(u8::from(it));
    let mine = [group, consumer];
    values.set(table::IN_FLIGHT, &mine, health.in_flight as f64);
    values.set(table::HANDLERS_RUNNING, &mine, health.running_handlers as f64);
    values.set(table::CONSUMER_READY, &mine, truth(health.is_ready()));
    values.set(table::CONSUMER_LIVE, &mine, truth(health.is_live()));
    for topic in &health.topics {
        let labels = [topic.topic.as_str(), group, consumer];
        let assigned = topic.assigned.as_ref().map_or(f64::NAN, |assigned| assigned.len() as f64);
        values.set(table::PARTITIONS_OWNED, &labels, topic.owned.len() as f64);
        values.set(table::PARTITIONS_ASSIGNED, &labels, assigned);
    }
    let mut loops: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for each in &health.loops {
        let partition = each.partition.map(|partition| partition.0.to_string()).unwrap_or_default();
        let labels = [each.operation, each.topic.as_str(), &partition, group, consumer];
        values.set(table::LOOP_LAST_PROGRESS, &labels, each.last_progress.as_secs_f64());
        let (failing, stalled) = loops.entry(each.operation).or_default();
        *failing += usize::from(each.failing.is_some());
        *stalled += usize::from(each.stalled);
    }
    for (operation, (failing, stalled)) in loops {
        let labels = [operation, group, consumer];
        values.set(table::LOOPS_FAILING, &labels, failing as f64);
        values.set(table::LOOPS_STALLED, &labels, stalled as f64);
    }
    values
}

impl fmt::Debug for Checks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checks").finish_non_exhaustive()
    }
}
