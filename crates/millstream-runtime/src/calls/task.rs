//! Task of a call: owns its marker from the begin to the end, and extends it while the work runs.
//!
//! All requests about a marker come from this task, one after the other, so that no extension brings back a marker that was
//! abandoned; one that had no answer in time may, if it arrives that late, and then the next call waits for a ttl. It outlives the call: one that is dropped at any point, also while its marker is being begun, leaves none behind.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::event::{Event, Observer};
use millstream_core::idempotency::{Begun, Idempotency, Marker};
use millstream_engine::{ControlThread, Keeper, Kept, LeaseClock, LoopMonitor, Rights};
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, sleep, timeout};

use super::Times;

/// Pauses between two looks at an operation that another call runs.
const LOOKS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(1)];
/// Pauses after a request that failed.
const PAUSES: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// Right to run the work. Dropping it abandons the operation.
pub(super) struct Running(oneshot::Sender<End>);

/// End of the work.
enum End {
    /// It succeeded: with these bytes as its result.
    Complete(Bytes, oneshot::Sender<Result<()>>),
    /// It failed.
    Abandon(oneshot::Sender<()>),
}

impl Running {
    /// Completes the operation. What is not confirmed within the time goes on in the background.
    pub(super) async fn complete(self, result: Bytes, within: Duration) -> Result<()> {
        let (reply, done) = oneshot::channel();
        let not_ended = || Error::new(ErrorKind::Unconfirmed, "the task of the call ended abnormally");
        self.0.send(End::Complete(result, reply)).map_err(|_| not_ended())?;
        match timeout(within, done).await {
            Ok(done) => done.unwrap_or_else(|_| Err(not_ended())),
            Err(_) => {
                let why = format!("the end of the work was not confirmed within {within:?}; it is repeated");
                Err(Error::new(ErrorKind::Unconfirmed, why))
            }
        }
    }

    /// Abandons the operation, and waits until that is done, so that the next call can run.
    pub(super) async fn abandon(self, within: Duration) {
        let (reply, done) = oneshot::channel();
        if self.0.send(End::Abandon(reply)).is_ok() {
            // A failure is logged by the task, and the marker expires.
            let _ = timeout(within, done).await;
        }
    }
}

/// Begins the operation of a marker: waits for another call that runs it, and for a server that is away.
pub(super) async fn begin(
    role: Arc<dyn Idempotency>,
    marker: Marker,
    times: Times,
    control: &ControlThread,
    clock: Arc<LeaseClock>,
    (monitor, observer): (LoopMonitor, Arc<dyn Observer>),
) -> Result<std::result::Result<Running, Begun>> {
    let (reply, begun) = oneshot::channel();
    let (sender, ended) = oneshot::channel();
    let task = Task { role, marker, times, clock, monitor, observer, round: Mutex::default() };
    // Not aborted with the call: the task ends by itself when the call has gone.
    drop(control.spawn(task.run(reply, ended).boxed()).detach());
    let gone = || Error::new(ErrorKind::Unconfirmed, "the task of the call ended abnormally");
    Ok(match begun.await.map_err(|_| gone())?? {
        Begun::Started(_) => Ok(Running(sender)),
        other => Err(other),
    })
}

struct Task {
    role: Arc<dyn Idempotency>,
    marker: Marker,
    times: Times,
    clock: Arc<LeaseClock>,
    /// Monitor of the marker's extensions. The work may end while they fail: then the end of the operation shows that the server
    /// answers again.
    monitor: LoopMonitor,
    observer: Arc<dyn Observer>,
    /// Locked while the marker is being extended.
    round: Mutex<()>,
}

impl Task {
    async fn run(self, mut reply: oneshot::Sender<Result<Begun>>, ended: oneshot::Receiver<End>) {
        let Some(begun) = self.begin(&mut reply).await else { return self.abandon().await };
        let is_started = matches!(begun, Ok(Begun::Started(_)));
        let is_uncertain = matches!(&begun, Err(error) if error.is_transient());
        let is_gone = reply.send(begun).is_err();
        if is_uncertain || (is_started && is_gone) {
            return self.abandon().await;
        }
        if !is_started {
            return;
        }
        let mut is_lost = false;
        match self.extend_until(ended, &mut is_lost).await {
            Some(End::Complete(result, reply)) => {
                let completed = self.complete(&result).await;
                if !is_lost && completed.as_ref().is_err_and(|error| error.kind() == ErrorKind::Fenced) {
                    self.lost();
                }
                // Nobody receives it if the call was dropped or did not wait so long.
                let _ = reply.send(completed);
            }
            Some(End::Abandon(reply)) => {
                self.abandon().await;
                let _ = reply.send(());
            }
            None => self.abandon().await,
        }
    }

    /// Begins. `None` if the call was dropped meanwhile.
    async fn begin(&self, reply: &mut oneshot::Sender<Result<Begun>>) -> Option<Result<Begun>> {
        let Marker { operation, token, holder, ttl, .. } = &self.marker;
        let asked = Instant::now();
        let (mut look, mut failed, mut was_away) = (LOOKS[0], PAUSES[0], false);
        loop {
            let begun = match was_away {
                // Never cancelled under way: a marker that was begun unnoticed would block its key.
                false => self.role.begin(operation, holder, token, *ttl).await,
                true => self.probe().await,
            };
            let left = self.times.wait.saturating_sub(asked.elapsed());
            let pause = match &begun {
                Ok(Begun::Running { expires_in, .. }) if !left.is_zero() => {
                    if std::mem::take(&mut was_away) {
                        self.keeper().retries_within() * 4 / 3
                    } else {
                        look = (look * 2).min(LOOKS[1]);
                        look.min(*expires_in + Duration::from_millis(1))
                    }
                }
                Err(error) if error.is_transient() && !left.is_zero() => {
                    (failed, was_away) = ((failed * 2).min(PAUSES[1]), true);
                    failed
                }
                _ => return Some(begun),
            };
            tokio::select! {
                biased;
                () = reply.closed() => return None,
                // Spread, so that many calls do not come at one moment.
                () = sleep(pause.mul_f64(0.75 + fastrand::f64() / 4.0).min(left)) => {}
            }
        }
    }

    /// Finds whether the server answers again, after it did not. A begin would take the operation from a call that runs it, if its
    /// marker expired meanwhile: that call is to extend it first. Abandoning, by this call's token, changes no marker of another
    /// one, and deletes that of a begin of this one whose reply was lost.
    async fn probe(&self) -> Result<Begun> {
        match self.role.abandon(&self.marker).await {
            Err(error) if error.is_transient() => Err(error),
            // Other errors are those of the begin that follows.
            _ => Ok(Begun::Running { holder: "another call".into(), expires_in: self.marker.ttl }),
        }
    }

    fn keeper(&self) -> Keeper {
        Keeper::new(self.times.lease_ttl, self.clock.clone())
    }

    /// Reports that another call has begun the work.
    fn lost(&self) {
        // The key of a call is not logged.
        let calls = self.marker.operation.topic().as_str();
        tracing::warn!(calls, "the marker was taken over while the work ran");
        self.observer.observe(&Event::CallMarkerLost { calls });
    }

    /// Extends the marker, three times per ttl, until the work has ended. `None` if the call was dropped. Sets `is_lost` if another
    /// call has begun the work.
    async fn extend_until(&self, mut ended: oneshot::Receiver<End>, is_lost: &mut bool) -> Option<End> {
        let keeper = self.keeper();
        let mut kept = pin!(keeper.run(self.clock.now(), self, &self.monitor, &*self.observer));
        tokio::select! {
            biased;
            end = &mut ended => {
                // An extension that is under way would bring back a marker that is abandoned meanwhile.
                tokio::select! {
                    biased;
                    _ = self.round.lock() => {}
                    () = &mut kept => {}
                }
                return end.ok();
            }
            () = &mut kept => {}
        }
        *is_lost = true;
        self.lost();
        ended.await.ok()
    }

    /// Completes the operation. Repeated for as long as the result would be kept: until then another call would do the work again.
    async fn complete(&self, result: &[u8]) -> Result<()> {
        let (asked, mut pause) = (Instant::now(), PAUSES[0]);
        loop {
            match self.role.complete(&self.marker, result, self.times.retention).await {
                Ok(()) => {
                    self.monitor.succeeded(&*self.observer);
                    return Ok(());
                }
                Err(error) if is_final(error.kind()) || asked.elapsed() > self.times.retention => {
                    return Err(error);
                }
                Err(error) => tracing::debug!(%error, "an operation was not completed"),
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSES[1]);
        }
    }

    /// Abandons the operation. Tried once: if it fails, the marker expires by itself.
    async fn abandon(&self) {
        match self.role.abandon(&self.marker).await {
            Err(error) if error.kind() != ErrorKind::Fenced => {
                let calls = self.marker.operation.topic().as_str();
                tracing::warn!(calls, %error, "not abandoned: the next call waits until its marker expires");
            }
            _ => self.monitor.succeeded(&*self.observer),
        }
    }
}

/// The marker while the work runs. One lost request does no harm: a marker that expired is revived unless another call began.
#[async_trait]
impl Rights for Task {
    async fn renew(&self, _: Instant) -> Result<Kept> {
        let _round = self.round.lock().await;
        match self.role.extend(std::slice::from_ref(&self.marker)).await.pop() {
            Some(Err(error)) if error.kind() == ErrorKind::Fenced => Ok(Kept::Over),
            Some(Err(error)) => Err(error),
            Some(Ok(())) | None => Ok(Kept::Renewed),
        }
    }
}

/// Whether no repetition of a completion would help. Others concern all operations, and somebody repairs them.
fn is_final(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Fenced | ErrorKind::WrongType | ErrorKind::TooLarge | ErrorKind::InvalidConfig)
}
