//! The context of a command that connects to a server: the connection, the output, and signals.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use millstream::Millstream;
use millstream::Timestamp;
use millstream::admin::Admin;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::confirm;
use crate::global::Global;
use crate::output::Output;

/// The context that each such command receives.
#[derive(Debug)]
pub(crate) struct Context {
    /// The queue.
    pub(crate) mq: Millstream,
    /// The output settings.
    pub(crate) output: Output,
    yes: bool,
}

impl Context {
    /// Connects to the server.
    ///
    /// # Errors
    /// Invalid settings, or a server that does not reply or does not meet the requirements.
    pub(crate) async fn open(global: &Global) -> Result<Self> {
        Ok(Self::over(global.builder()?.connect().await?, global))
    }

    /// Creates a context over a connection made with other settings; see [`Global::builder`].
    pub(crate) fn over(mq: Millstream, global: &Global) -> Self {
        Self { mq, output: global.output(), yes: global.yes }
    }

    /// Returns the administration handle.
    pub(crate) fn admin(&self) -> Admin {
        self.mq.admin()
    }

    /// Returns the time of the server's clock, accurate to half a round trip.
    ///
    /// # Errors
    /// Transient errors.
    pub(crate) async fn now(&self) -> Result<Timestamp> {
        let ahead = self.admin().server().await?.ahead_ms.unwrap_or(0);
        Ok(Timestamp::from_millis(local_ms()?.saturating_add_signed(ahead)))
    }

    /// Prompts for confirmation, unless `--yes` was given: `Delete topic orders?`. The pending change has been
    /// printed before.
    ///
    /// # Errors
    /// If the answer is not yes, or if stdin is no terminal. The caller must then change nothing.
    pub(crate) fn confirm(&self, question: &str) -> Result<()> {
        if self.yes { Ok(()) } else { confirm::ask(question) }
    }
}

/// Returns the time of the local clock, in milliseconds since 1970.
///
/// # Errors
/// If the clock is far off.
pub(crate) fn local_ms() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?;
    Ok(u64::try_from(now.as_millis())?)
}

/// Time after a signal in which further ones are the same signal: wrappers send what they receive to their child and to its
/// process group (`timeout`), or their child receives it with the group and again from them (npm).
const TWIN: Duration = Duration::from_millis(500);

/// Runs work that should not be interrupted: it completes even after SIGINT or SIGTERM.
///
/// # Errors
/// The errors of the work; or if signal handlers cannot be installed.
pub(crate) async fn to_the_end<T>(work: impl Future<Output = millstream::Result<T>>) -> Result<T> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => Ok(done?),
        signal = stopped() => {
            signal?;
            Ok(work.await?)
        }
    }
}

/// Returns after SIGINT (Ctrl-C), SIGTERM or SIGHUP. For commands that run until they are stopped, and then end with
/// [`Exit::Done`](crate::exit::Exit::Done). From its first poll on, these signals have no other effect. Commands that
/// do not wait for it are ended by the signal itself.
///
/// A signal within [`TWIN`] of one before it is that one.
///
/// # Errors
/// If signal handlers cannot be installed.
pub(crate) async fn stopped() -> Result<()> {
    let mut signals = signals()?;
    signals.changed().await.context("signals")
}

/// Returns what changes with each signal from now on.
fn signals() -> Result<watch::Receiver<()>> {
    static SIGNALS: Mutex<Option<watch::Receiver<()>>> = Mutex::new(None);
    let mut known = SIGNALS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(signals) = known.as_mut().filter(|known| known.has_changed().is_ok()) {
        signals.mark_unchanged();
        return Ok(signals.clone());
    }
    let (sender, signals) = watch::channel(());
    let mut handlers = Handlers::install()?;
    tokio::spawn(async move {
        loop {
            handlers.next().await;
            sender.send_replace(());
            let end = tokio::time::sleep(TWIN);
            tokio::pin!(end);
            loop {
                tokio::select! {
                    biased;
                    () = handlers.next() => {}
                    () = &mut end => break,
                }
            }
        }
    });
    *known = Some(signals.clone());
    Ok(signals)
}

/// Handlers of the signals that stop a command.
struct Handlers {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if the signal is ignored, as `nohup` wants it.
    hang_up: Option<Signal>,
}

impl Handlers {
    fn install() -> Result<Self> {
        let install = |kind| signal(kind).context("signals");
        Ok(Self {
            interrupt: install(SignalKind::interrupt())?,
            terminate: install(SignalKind::terminate())?,
            hang_up: if is_ignored(SignalKind::hangup()) {
                None
            } else {
                Some(install(SignalKind::hangup())?)
            },
        })
    }

    async fn next(&mut self) {
        let hang_up = async {
            match &mut self.hang_up {
                Some(hang_up) => hang_up.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = hang_up => {}
        }
    }
}

/// Returns whether this process ignores a signal since its start, also if that is not known.
fn is_ignored(kind: SignalKind) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    ignored.is_none_or(|mask| mask >> (kind.as_raw_value() - 1) & 1 == 1)
}

/// Polls [`stopped`] once, so that from now on the signals are handled and do not end the process. Returns whether one has
/// come already; `stopped` must then not be polled again.
///
/// # Errors
/// If signal handlers cannot be installed.
pub(crate) async fn is_ready(stopped: impl Future<Output = Result<()>>) -> Result<bool> {
    tokio::select! {
        biased;
        stopped = stopped => stopped.map(|()| true),
        () = std::future::ready(()) => Ok(false),
    }
}
