//! The upkeep loops of one partition: run each upkeep when it is due or triggered.

pub(in crate::consumer) mod instances;
pub(in crate::consumer) mod notes;
pub(in crate::consumer) mod settings;
pub(in crate::consumer) mod trim;
pub(in crate::consumer) mod trim_dead;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use millstream_core::Upkeep;
use millstream_core::error::ErrorKind;
use millstream_core::upkeep::Trigger;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};

use crate::consumer::context::Subscription;
use crate::consumer::group::lease::LeaseGuard;
use millstream_engine::LoopMonitor;

/// Maximum time for the last runs before a partition is released. The rest is left to the next owner.
const AT_THE_END: Duration = Duration::from_secs(1);

/// One signal per upkeep, set when its trigger happens. A signal during a run is not lost.
pub(in crate::consumer) struct Triggers(Vec<TriggerSignal>);

struct TriggerSignal {
    trigger: Trigger,
    notify: Notify,
    /// Set if the signal came after the last run started.
    due: AtomicBool,
}

impl Triggers {
    pub(in crate::consumer) fn new(upkeep: &[Arc<dyn Upkeep>]) -> Self {
        let signal = |trigger| TriggerSignal { trigger, notify: Notify::new(), due: AtomicBool::new(false) };
        Self(upkeep.iter().map(|upkeep| signal(upkeep.trigger())).collect())
    }

    pub(in crate::consumer) fn parked(&self) {
        self.notify(|trigger| matches!(trigger, Trigger::Parked));
    }

    pub(in crate::consumer) fn settled(&self) {
        self.notify(|trigger| matches!(trigger, Trigger::Settled { .. }));
    }

    fn notify(&self, matches: impl Fn(&Trigger) -> bool) {
        for signal in self.0.iter().filter(|signal| matches(&signal.trigger)) {
            signal.due.store(true, Ordering::Release);
            signal.notify.notify_one();
        }
    }
}

/// Runs all upkeep of one partition until the lease is lost.
pub(in crate::consumer) async fn run(context: &Subscription, guard: &LeaseGuard, triggers: &Triggers) {
    let loops = context.upkeep.iter().zip(&triggers.0).map(|(upkeep, signal)| async move {
        let monitor = context.monitor_of(upkeep.name(), guard.topic_partition());
        let mut keeper = UpkeepLoop { context, guard, upkeep: &**upkeep, monitor };
        loop {
            let started = Instant::now();
            signal.due.store(false, Ordering::Release);
            let Some(after) = keeper.run_once().await else { return };
            let at_latest = async {
                let Some(after) = after else { return std::future::pending().await };
                let until = started + after;
                match keeper.upkeep.sleep(until.saturating_duration_since(Instant::now())) {
                    Some(sleep) => sleep.await,
                    None => sleep_until(context.lease_clock.aligned(until, after)).await,
                }
            };
            tokio::select! {
                biased;
                () = at_latest => {}
                () = signal.notify.notified() => {
                    if let Trigger::Settled { at_most_every } = signal.trigger {
                        sleep_until(started + at_most_every).await;
                    }
                }
            }
        }
    });
    tokio::select! {
        biased;
        () = guard.lost().cancelled() => {}
        _ = join_all(loops) => {}
    }
}

/// Runs the upkeep for settlements since the last run, before a partition is released: the next owner may come late.
/// Nobody else works on the partition meanwhile.
pub(in crate::consumer) async fn finish(
    context: &Arc<Subscription>,
    guard: &Arc<LeaseGuard>,
    triggers: &Triggers,
) {
    let settled = |signal: &TriggerSignal| matches!(signal.trigger, Trigger::Settled { .. });
    let due = |signal: &TriggerSignal| settled(signal) && signal.due.swap(false, Ordering::AcqRel);
    let due = context.upkeep.iter().zip(&triggers.0).filter(|(_, signal)| due(signal));
    let due: Vec<_> = due.map(|(upkeep, _)| upkeep.clone()).collect();
    if due.is_empty() {
        return;
    }
    let (of, with) = (context.clone(), guard.clone());
    // Never aborted: entries that it has dropped must be reported. Once the lease is released, its next step is refused.
    let last_runs = async move {
        for upkeep in due {
            let monitor = of.monitor_of(upkeep.name(), with.topic_partition());
            UpkeepLoop { context: &of, guard: &with, upkeep: &*upkeep, monitor }.run_once().await;
        }
    };
    let last_runs = tokio::spawn(last_runs.boxed());
    tokio::select! {
        biased;
        () = context.kill.cancelled() => {}
        () = guard.lost().cancelled() => {}
        ended = timeout(AT_THE_END, last_runs) => {
            if let Ok(Err(error)) = ended {
                tracing::error!(%error, "upkeep ended abnormally");
            }
        }
    }
}

struct UpkeepLoop<'a> {
    context: &'a Subscription,
    guard: &'a LeaseGuard,
    upkeep: &'a dyn Upkeep,
    monitor: LoopMonitor,
}

impl UpkeepLoop<'_> {
    /// Runs the upkeep. Returns the time until it wants to run again, or `None` if the lease is lost.
    async fn run_once(&mut self) -> Option<Option<Duration>> {
        let observer = &*self.context.observer;
        self.monitor.begin_round(Duration::ZERO);
        match self.upkeep.run_once(self.guard.lease(), observer).await {
            Ok(after) => {
                self.monitor.succeeded(observer);
                Some(after)
            }
            Err(error) if error.kind() == ErrorKind::Fenced => {
                self.guard.lose();
                None
            }
            Err(error) => Some(Some(self.monitor.failed(&error, observer))),
        }
    }
}
