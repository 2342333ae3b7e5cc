//! What a command that talks to a server has: the connection, the output, and signals.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use millstream::Millstream;
use millstream::admin::Admin;
use tokio::signal::unix::{SignalKind, signal};

use crate::confirm;
use crate::global::Global;
use crate::output::Output;

/// What every such command is given.
#[derive(Debug)]
pub(crate) struct Context {
    /// The queue.
    pub(crate) mq: Millstream,
    /// Where data goes, and words.
    pub(crate) output: Output,
    yes: bool,
}

impl Context {
    /// Connects.
    ///
    /// # Errors
    /// Bad settings, a server that does not answer or is not good enough.
    pub(crate) async fn open(global: &Global) -> Result<Self> {
        Ok(Self::over(global.builder()?.connect().await?, global))
    }

    /// Over a connection that was made with settings of its own; see [`Global::builder`].
    pub(crate) fn over(mq: Millstream, global: &Global) -> Self {
        Self { mq, output: Output::new(global.json), yes: global.yes }
    }

    /// What an operator can ask and do.
    pub(crate) fn admin(&self) -> Admin {
        self.mq.admin()
    }

    /// What time it is by the server's clock, in milliseconds since 1970, up to half a round trip.
    ///
    /// # Errors
    /// Transient ones.
    pub(crate) async fn now_ms(&self) -> Result<u64> {
        let ahead = self.admin().server().await?.ahead_ms.unwrap_or(0);
        Ok(local_ms()?.saturating_add_signed(ahead))
    }

    /// Asks, unless `--yes` was given: `Delete topic orders?`. Whatever is going to happen was shown before.
    ///
    /// # Errors
    /// If the answer is not yes, or if nobody is there to answer: nothing must be done then.
    pub(crate) fn confirm(&self, question: &str) -> Result<()> {
        if self.yes { Ok(()) } else { confirm::ask(question) }
    }
}

/// What time it is here, in milliseconds since 1970.
///
/// # Errors
/// If the clock is far off.
pub(crate) fn local_ms() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).context("a clock before 1970")?;
    Ok(u64::try_from(now.as_millis())?)
}

/// Does what should not be stopped half-way: on SIGINT or SIGTERM it ends all the same.
///
/// # Errors
/// Those of the work; if signals cannot be listened to.
pub(crate) async fn to_the_end<T>(work: impl Future<Output = millstream::Result<T>>) -> Result<T> {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => Ok(done?),
        heard = stopped() => {
            heard?;
            Ok(work.await?)
        }
    }
}

/// Ends with SIGINT (Ctrl-C) or SIGTERM: for commands that go on until they are stopped, which end with
/// [`Exit::Done`](crate::exit::Exit::Done) then. From its first poll on these signals do nothing else. Commands that do
/// not wait for it are ended by the signal itself.
///
/// # Errors
/// If signals cannot be listened to.
pub(crate) async fn stopped() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("signals")?;
    let mut terminate = signal(SignalKind::terminate()).context("signals")?;
    tokio::select! {
        biased;
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    }
}
