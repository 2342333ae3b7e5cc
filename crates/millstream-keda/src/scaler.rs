//! What is answered: the backlog of a group, and whether it wakes the deployment.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{self, Stream};
use millstream_core::{Backend, Error, ErrorKind, Result};
use millstream_metrics::LagReader;
use tokio::time::{MissedTickBehavior, interval};

use crate::server::Server;
use crate::trigger::Trigger;

/// Shortest interval between two reads of a group.
const SHORTEST: Duration = Duration::from_millis(100);

/// External scaler of KEDA, over any backend: it answers what the metadata of a trigger ask for.
#[derive(Clone, Debug)]
pub struct Scaler {
    lags: Arc<LagReader>,
    interval: Duration,
}

/// State of a group, as KEDA sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Activity {
    /// All work of the group, now or later, as [`Lag::backlog`](millstream_metrics::Lag::backlog) counts it.
    pub backlog: u64,
    /// Whether the backlog is above the trigger's activation, so that at least one replica has to run.
    pub is_active: bool,
}

impl Scaler {
    /// Creates a scaler that reads the state of groups from a backend.
    #[must_use]
    pub fn new(backend: &Backend) -> Self {
        let interval = Duration::from_secs(1);
        Self { lags: Arc::new(LagReader::new(backend.clone()).fresh(interval)), interval }
    }

    /// Sets the interval between two reads of a group that is watched, which is the longest time until a first message is
    /// seen; whoever asks meanwhile gets the same answer. Less than 100 ms counts as 100 ms. Default: 1 s.
    #[must_use]
    pub fn interval(self, interval: Duration) -> Self {
        let interval = interval.max(SHORTEST);
        let lags = LagReader::new(self.lags.backend().clone()).fresh(interval);
        Self { lags: Arc::new(lags), interval }
    }

    /// Returns the state of the trigger's group.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such topic or group; [`ErrorKind::Unavailable`] if the backend gives no answer within 2 s;
    /// [`ErrorKind::WrongType`] if a part of the backlog cannot be read.
    pub async fn read(&self, trigger: &Trigger) -> Result<Activity> {
        let lag = self.lags.lag(&trigger.topic, &trigger.group).await?;
        Ok(Activity { backlog: lag.backlog, is_active: lag.backlog > trigger.activation })
    }

    /// Listens on an address with plain HTTP/2 and serves `externalscaler.ExternalScaler`; port 0 for any free port. There is no
    /// authentication: everybody who can connect can read the backlogs of groups by name. On another address than loopback it
    /// logs a warning.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if it cannot listen there.
    pub async fn serve(self, address: impl Into<SocketAddr>) -> Result<Server> {
        Server::start(self, address.into()).await
    }

    /// Returns a stream that yields each time when the group becomes active; at once if it is active. It has no end. What cannot be
    /// read is logged, once until it can be read again: a stream that ended would be opened again only after a pause.
    pub(crate) fn activations(self, trigger: Trigger) -> impl Stream<Item = ()> + Send {
        let mut ticks = interval(self.interval);
        // After a slow read the next one follows an interval later, not at once.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let watch = Watch { scaler: self, trigger, was_active: false, failing: None };
        stream::unfold((watch, ticks), async |(mut watch, mut ticks)| {
            loop {
                ticks.tick().await;
                if watch.look().await {
                    return Some(((), (watch, ticks)));
                }
            }
        })
    }
}

/// A group that is watched.
struct Watch {
    scaler: Scaler,
    trigger: Trigger,
    was_active: bool,
    /// The kind of the last error, if the last read failed.
    failing: Option<ErrorKind>,
}

impl Watch {
    /// Reads the state of the group. Returns whether it has become active.
    async fn look(&mut self) -> bool {
        match self.scaler.read(&self.trigger).await {
            Ok(activity) => {
                if self.failing.take().is_some() {
                    let Trigger { topic, group, .. } = &self.trigger;
                    tracing::info!(%topic, %group, "the backlog can be read again");
                }
                let begins = activity.is_active && !self.was_active;
                self.was_active = activity.is_active;
                begins
            }
            Err(error) => {
                self.failed(&error);
                false
            }
        }
    }

    fn failed(&mut self, error: &Error) {
        if self.failing.replace(error.kind()) != Some(error.kind()) {
            let Trigger { topic, group, .. } = &self.trigger;
            tracing::warn!(%topic, %group, %error, "the backlog cannot be read: nothing is pushed to KEDA until it can be");
        }
    }
}
