//! The context of a command that connects to a server: the connection, the output, and signals.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use millstream::Millstream;
use millstream::Timestamp;
use millstream::admin::Admin;
use tokio::signal::unix::{SignalKind, signal};

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

/// Returns after SIGINT (Ctrl-C) or SIGTERM. For commands that run until they are stopped, and then end with
/// [`Exit::Done`](crate::exit::Exit::Done). From its first poll on, these signals have no other effect. Commands that
/// do not wait for it are ended by the signal itself.
///
/// # Errors
/// If signal handlers cannot be installed.
pub(crate) async fn stopped() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    tokio::select! {
        biased;
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
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
