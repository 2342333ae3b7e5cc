//! How every loop meets errors: tell, pause, go on.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millstream_core::Place;
use millstream_core::error::Error;
use millstream_core::event::{Event, Observer};
use millstream_core::policy::Exponential;
use tokio::time::Instant;

/// The state of one loop's troubles. A clone is another view of the same.
#[derive(Clone, Debug)]
pub(crate) struct Trouble {
    operation: &'static str,
    place: Option<Place>,
    state: Arc<Mutex<State>>,
}

/// How much longer than it should a loop may take for one round: no request and no work between two takes so long,
/// whatever the server does.
const STALLED: Duration = Duration::from_secs(60);

#[derive(Debug)]
struct State {
    failures: u32,
    /// Since when it has been failing, and with what last.
    failing: Option<(Instant, String)>,
    /// When a round ended last, well or not.
    last: Instant,
    /// When its round should have ended; `None` while it may wait for as long as it takes.
    due: Option<Instant>,
}

/// What is known of a loop.
#[derive(Clone, Debug)]
pub(crate) struct Mark {
    pub(crate) operation: &'static str,
    pub(crate) place: Option<Place>,
    /// Since when it has been failing, and with what last.
    pub(crate) failing: Option<(Instant, String)>,
    /// When a round ended last, well or not.
    pub(crate) last: Instant,
    /// Whether a round takes much longer than any should.
    pub(crate) stalled: bool,
}

impl Trouble {
    /// A loop that does `operation`, for one place if it is for one.
    pub(crate) fn new(operation: &'static str, place: Option<Place>) -> Self {
        let state = State { failures: 0, failing: None, last: Instant::now(), due: None };
        Self { operation, place, state: Arc::new(Mutex::new(state)) }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn partition(&self) -> Option<&millstream_core::TopicPartition> {
        match &self.place {
            Some(Place::Partition(topic_partition)) => Some(topic_partition),
            _ => None,
        }
    }

    /// How it is now.
    pub(crate) fn mark(&self) -> Mark {
        let state = self.state();
        Mark {
            operation: self.operation,
            place: self.place.clone(),
            failing: state.failing.clone(),
            last: state.last,
            stalled: state.due.is_some_and(|due| due <= Instant::now()),
        }
    }

    /// A round begins that ends within this time, and [`STALLED`] for what goes wrong. Without this a loop may wait.
    pub(crate) fn begins(&self, takes: Duration) {
        self.state().due = Some(Instant::now() + takes + STALLED);
    }

    /// The loop came so far, and may wait now for as long as it takes.
    pub(crate) fn waits(&self) {
        let mut state = self.state();
        (state.last, state.due) = (Instant::now(), None);
    }

    /// It worked. Tells so if it had not.
    pub(crate) fn over(&self, observer: &dyn Observer) {
        self.waits();
        let failures = {
            let mut state = self.state();
            state.failing = None;
            std::mem::take(&mut state.failures)
        };
        if failures > 0 {
            let (operation, place) = (self.operation, self.place.as_ref().map(tracing::field::display));
            tracing::info!(operation, place, "works again");
            observer.observe(&Event::Recovered { operation, topic_partition: self.partition() });
        }
    }

    /// It failed. Tells so, and gives back how long to pause: 50 ms to 2 s for what may pass by itself, 1 s to 10 s for
    /// what somebody has to mend; with jitter, so that many loops do not come back together.
    #[must_use]
    pub(crate) fn met(&self, error: &Error, observer: &dyn Observer) -> Duration {
        let mut state = self.state();
        state.failures = state.failures.saturating_add(1);
        (state.last, state.due) = (Instant::now(), None);
        let failures = state.failures;
        let since = state.failing.take().map_or_else(Instant::now, |(since, _)| since);
        state.failing = Some((since, error.to_string()));
        drop(state);
        let (operation, place) = (self.operation, self.place.as_ref().map(tracing::field::display));
        if failures == 1 {
            tracing::warn!(operation, place, %error, "failed, will try again");
        } else {
            tracing::debug!(operation, place, %error, failures, "failed again");
        }
        observer.observe(&Event::Failing { operation, topic_partition: self.partition(), error });
        let (base, longest) = if error.is_transient() { (50, 2_000) } else { (1_000, 10_000) };
        let pauses = Exponential::from(Duration::from_millis(base)).up_to(Duration::from_millis(longest));
        pauses.equal_jitter().delay(failures, fastrand::u64(..))
    }
}
