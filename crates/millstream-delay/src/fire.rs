//! Fires recurring entries: reads the due ones, computes their occurrences, and schedules them.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millstream_core::error::Result;
use millstream_core::event::{Event, Observer};
use millstream_core::recurring::{Recurrence, Recurring};
use millstream_core::sorted::{SortedMap, SortedSet};
use millstream_core::span::{Failed, MessagingOperation, OperationKind, SpanMessage};
use millstream_core::wire::decode_body;
use millstream_core::{Backend, Error, Limits, Place, ScheduleId, Timestamp, TopicPartition};
use tokio::time::Instant;

use crate::rule::Rule;
use millstream_engine::catch_panic;
use millstream_engine::{LoopMonitor, Scope};

/// Longest pause after rounds that fired nothing although something was due.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Fires all due recurring entries at `place`, and reports to `observer`. Returns the number of scheduled messages.
///
/// Any number of instances may call this at the same time: each occurrence is scheduled once, by the first one. A rule
/// that this version cannot read stays due, for instances that can read it, and a warning is logged: a newer version
/// has stored it.
///
/// # Errors
/// Those of [`Recurring::due`] and [`Recurring::fire`]. An entry that cannot be fired does not prevent the others.
pub async fn fire_due(recurring: &dyn Recurring, place: &Place, observer: &dyn Observer) -> Result<usize> {
    Ok(fire_all(recurring, place, &mut SortedSet::new(), observer).await?.messages)
}

#[derive(Debug, Default)]
struct Fired {
    messages: usize,
    /// Number of entries whose next time was set.
    moved: usize,
}

/// Fires all due entries. `unreadable` holds the ids of rules that were already logged as unreadable.
async fn fire_all(
    recurring: &dyn Recurring,
    place: &Place,
    unreadable: &mut SortedSet<ScheduleId>,
    observer: &dyn Observer,
) -> Result<Fired> {
    let due = recurring.due(place).await?;
    let mut failed = None;
    let mut fired = Fired::default();
    for recurrence in &due.recurrences {
        match fire(recurring, place, recurrence, due.now, unreadable, observer).await {
            Ok(Some(messages)) => {
                fired.messages += messages;
                fired.moved += 1;
            }
            Ok(None) => {}
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    match failed {
        Some(error) => Err(Error::during(error, format_args!("fire recurring rules at {place}"))),
        None => Ok(fired),
    }
}

/// Returns the number of scheduled messages; `None` if the entry was no longer due, or its rule is left to other versions.
async fn fire(
    recurring: &dyn Recurring,
    place: &Place,
    recurrence: &Recurrence,
    now: Timestamp,
    unreadable: &mut SortedSet<ScheduleId>,
    observer: &dyn Observer,
) -> Result<Option<usize>> {
    let Some(expected) = recurrence.next else { return Ok(None) };
    let id = &recurrence.id;
    let plan = match recurrence.rule.parse::<Rule>() {
        Ok(rule) => rule.plan(expected, now),
        // Most likely a newer version has stored it: it stays due, for instances that can read it.
        Err(error) => {
            if unreadable.insert(id.clone()) {
                tracing::warn!(%place, %id, %error, "a rule cannot be read by this version and is left to other processes");
            }
            return Ok(None);
        }
    };
    let began = Instant::now();
    let fired = recurring.fire(place, id, &plan.fires, expected, plan.next).await;
    // What another one has fired, or nobody was to fire, has no span.
    let fires = fired.as_ref().map_or(plan.fires.len(), |messages| messages.unwrap_or(0));
    if fires > 0 {
        record(place, recurrence, fires, fired.as_ref().err(), began, observer);
    }
    let Some(messages) = fired? else { return Ok(None) };
    if plan.missed > 0 {
        tracing::warn!(%place, %id, missed = plan.missed, "missed times are skipped");
    }
    let missed = plan.missed;
    if messages + missed > 0 {
        observer.observe(&Event::Fired { place, id, messages, missed });
    }
    Ok(Some(messages))
}

/// Makes the span of a firing, which links to the context that the rule's message has.
fn record(
    place: &Place,
    recurrence: &Recurrence,
    messages: usize,
    error: Option<&Error>,
    began: Instant,
    observer: &dyn Observer,
) {
    let body = decode_body(&recurrence.fields, &Limits::default());
    let headers = body.map(|body| body.headers).unwrap_or_default();
    let stored = [SpanMessage::new(&headers)];
    let (destination, partition) = match place {
        Place::Partition(it) => (it.topic.as_str(), it.partition.0),
        Place::Shard(it) => (it.queue.as_str(), it.shard),
    };
    let mut span = MessagingOperation::passing_on(OperationKind::Schedule, destination, &stored);
    (span.partition, span.batch, span.since) = (Some(partition), Some(messages), began.elapsed());
    span.record(error.map(|error| Failed { error: error.kind().as_str(), messages }), observer);
}

/// Fires at one place, round after round. It has its own monitor, so that a failure to fire (for example because the
/// server is out of memory) does not delay messages and tasks.
pub(crate) struct Firing {
    monitor: LoopMonitor,
    /// Number of rounds in a row in which something was due and nothing was fired.
    idle: u32,
    again: Option<Instant>,
    /// Rules that were already logged as unreadable: each is logged once, as long as something is due.
    unreadable: SortedSet<ScheduleId>,
}

impl Firing {
    pub(crate) fn new(monitor: LoopMonitor) -> Self {
        Self { monitor, idle: 0, again: None, unreadable: SortedSet::new() }
    }

    /// Fires due entries, unless it is too early to try again. Returns the minimum time until the next round; zero if
    /// something was fired.
    pub(crate) async fn round(
        &mut self,
        backend: &Backend,
        place: &Place,
        observer: &dyn Observer,
    ) -> Duration {
        let left = self.again.map(|again| again.saturating_duration_since(Instant::now()));
        if let Some(left) = left.filter(|left| !left.is_zero()) {
            return left;
        }
        let unreadable = &mut self.unreadable;
        let fire = async move { fire_all(&**backend.recurring()?, place, unreadable, observer).await };
        let pause = match catch_panic(fire).await {
            Ok(fired) => {
                self.monitor.succeeded(observer);
                self.idle = if fired.moved > 0 { 0 } else { self.idle.saturating_add(1) };
                rest(self.idle)
            }
            Err(error) => self.monitor.failed(&error, observer),
        };
        self.again = (!pause.is_zero()).then(|| Instant::now() + pause);
        pause
    }

    /// Resets the state when nothing is due.
    pub(crate) fn over(&mut self, observer: &dyn Observer) {
        self.monitor.succeeded(observer);
        (self.idle, self.again) = (0, None);
    }

    /// Returns whether something is due that cannot be fired now.
    pub(crate) fn is_stuck(&self) -> bool {
        self.again.is_some()
    }
}

/// Returns the pause after `idle` rounds without effect. It starts short: in the first such round another instance may
/// just have been faster.
fn rest(idle: u32) -> Duration {
    match idle.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => Duration::from_millis(1 << doublings.min(20)).min(LONGEST_REST),
    }
}

/// Fires at many places. It keeps state only for places where firing does not succeed, or where a rule is unreadable.
#[derive(Default)]
pub(crate) struct Firings(Mutex<SortedMap<Place, Firing>>);

impl Firings {
    fn places(&self) -> MutexGuard<'_, SortedMap<Place, Firing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Same as [`Firing::round`] if something is due there; `None` if nothing is.
    pub(crate) async fn round(
        &self,
        is_due: bool,
        backend: &Backend,
        topic_partition: &TopicPartition,
        observer: &dyn Observer,
    ) -> Option<Duration> {
        let place = Place::from(topic_partition.clone());
        let known = self.places().remove(&place);
        if !is_due {
            known.into_iter().for_each(|mut firing| firing.over(observer));
            return None;
        }
        let mut firing =
            known.unwrap_or_else(|| Firing::new(LoopMonitor::unlisted("fire", Scope::from(place.clone()))));
        let again = firing.round(backend, &place, observer).await;
        if firing.is_stuck() || !firing.unreadable.is_empty() {
            self.places().insert(place, firing);
        }
        Some(again)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_without_effect_come_less_and_less_often() {
        let pauses: Vec<_> = [0, 1, 2, 5, 11, 12, u32::MAX].map(|idle| rest(idle).as_millis()).into();
        assert_eq!(pauses, [0, 1, 2, 16, 1_000, 1_000, 1_000]);
    }
}
