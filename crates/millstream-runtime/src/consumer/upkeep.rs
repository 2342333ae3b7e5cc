//! The upkeep loops of one partition: run what is due, when it is due or triggered.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::Upkeep;
use millstream_core::error::ErrorKind;
use millstream_core::upkeep::Trigger;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::context::Subscription;
use super::guard::Guard;
use crate::trouble::Trouble;

/// One bell per upkeep: rung when its trigger happens. A ring while it works is not lost.
pub(super) struct Bells(Vec<(Trigger, Notify)>);

impl Bells {
    pub(super) fn new(upkeep: &[Arc<dyn Upkeep>]) -> Self {
        Self(upkeep.iter().map(|upkeep| (upkeep.trigger(), Notify::new())).collect())
    }

    pub(super) fn parked(&self) {
        self.ring(|trigger| matches!(trigger, Trigger::Parked));
    }

    pub(super) fn settled(&self) {
        self.ring(|trigger| matches!(trigger, Trigger::Settled { .. }));
    }

    fn ring(&self, whose: impl Fn(&Trigger) -> bool) {
        self.0.iter().filter(|(trigger, _)| whose(trigger)).for_each(|(_, bell)| bell.notify_one());
    }
}

/// Runs all upkeep of one partition until `done` or until the lease is lost.
pub(super) async fn run(context: &Subscription, guard: &Guard, bells: &Bells, done: &CancellationToken) {
    let loops = context.upkeep.iter().zip(&bells.0).map(|(upkeep, (trigger, bell))| async move {
        let Ok((topic_partition, _)) = guard.lease().partition() else { return };
        let trouble = context.trouble_in(upkeep.name(), topic_partition);
        let mut keeper = Keeper { context, guard, upkeep: &**upkeep, trouble };
        loop {
            let started = Instant::now();
            let Some(after) = keeper.run_once().await else { return };
            let at_latest = async {
                let Some(after) = after else { return std::future::pending().await };
                let until = started + after;
                match keeper.upkeep.sleep(until.saturating_duration_since(Instant::now())) {
                    Some(sleep) => sleep.await,
                    None => sleep_until(until).await,
                }
            };
            tokio::select! {
                biased;
                () = at_latest => {}
                () = bell.notified() => {
                    if let Trigger::Settled { at_most_every } = trigger {
                        sleep_until(started + *at_most_every).await;
                    }
                }
            }
        }
    });
    tokio::select! {
        biased;
        () = done.cancelled() => {}
        () = guard.lost().cancelled() => {}
        _ = join_all(loops) => {}
    }
}

struct Keeper<'a> {
    context: &'a Subscription,
    guard: &'a Guard,
    upkeep: &'a dyn Upkeep,
    trouble: Trouble,
}

impl Keeper<'_> {
    /// Runs the upkeep. Gives back when it wants to run again, or `None` if the lease is lost.
    async fn run_once(&mut self) -> Option<Option<Duration>> {
        let observer = &*self.context.observer;
        self.trouble.begins(Duration::ZERO);
        match self.upkeep.run_once(self.guard.lease(), observer).await {
            Ok(after) => {
                self.trouble.over(observer);
                Some(after)
            }
            Err(error) if error.kind() == ErrorKind::Fenced => {
                self.guard.lose();
                None
            }
            Err(error) => Some(Some(self.trouble.met(&error, observer))),
        }
    }
}
