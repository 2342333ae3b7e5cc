//! Follows the work on a message: its progress, and then its result.

use std::collections::VecDeque;
use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::{Backend, Error, ErrorKind, Log, MessageResult, ProgressLine, Result, ResultId};
use tokio::time::{Instant, sleep, timeout_at};

use super::{LAST_LOOK, LONGEST, PAUSES, result_until, until};

/// What comes next of a message that is followed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Followed {
    /// A line that its handler has written.
    Progress(ProgressLine),
    /// The result, after which nothing comes.
    Result(MessageResult),
}

/// Follows the work on a message that asks for its result: the lines that its handlers have written so far, and each further one; then the
/// result.
///
/// Nothing is polled: all that a process follows shares one connection to each server, as all that [wait](super::ResultFuture) for results.
/// Each follower gets all lines that the server still has, the newest [100](millstream_core::progress::MAX_LINES) of a message.
///
/// ```
/// # use millstream_core::{Backend, Result, ResultId};
/// # use millstream_engine::requests::{Follow, Followed};
/// # async fn example(backend: &Backend) -> Result<()> {
/// let id: ResultId = "imports/3/0af7651916cd43dd8448eb211c80319c".parse()?;
/// let mut import = Follow::new(backend, &id);
/// while let Some(followed) = import.next().await? {
///     match followed {
///         Followed::Progress(line) => println!("{line}"),
///         Followed::Result(result) => println!("{result:?}"),
///         _ => {}
///     }
/// }
/// # Ok(()) }
/// ```
pub struct Follow {
    log: Arc<dyn Log>,
    id: ResultId,
    until: Instant,
    above: u64,
    lines: VecDeque<ProgressLine>,
    result: Option<MessageResult>,
    has_ended: bool,
}

impl fmt::Debug for Follow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Follow").field("id", &self.id).field("above", &self.above).finish_non_exhaustive()
    }
}

impl Follow {
    /// Follows a message, until it has its result.
    #[must_use]
    pub fn new(backend: &Backend, id: &ResultId) -> Self {
        Self::of(backend.log().clone(), id.clone())
    }

    pub(super) fn of(log: Arc<dyn Log>, id: ResultId) -> Self {
        Self {
            log,
            id,
            until: Instant::now() + LONGEST,
            above: 0,
            lines: VecDeque::new(),
            result: None,
            has_ended: false,
        }
    }

    /// Follows it for at most this time, from now on. Default: 30 days.
    #[must_use]
    pub fn within(self, wait: Duration) -> Self {
        Self { until: Instant::now() + wait.min(LONGEST), ..self }
    }

    /// Waits for what comes next: `None` behind the result, and when the time is over. A call that is dropped loses nothing.
    ///
    /// # Errors
    /// Those of [`Log::result`] that waiting does not help against; those of [`Log::progress`] once there is no result either. During an outage
    /// it waits, and is [`ErrorKind::Unavailable`] if that lasts until the time is over.
    pub async fn next(&mut self) -> Result<Option<Followed>> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Ok(Some(Followed::Progress(line)));
            }
            if let Some(result) = self.result.take() {
                self.has_ended = true;
                return Ok(Some(Followed::Result(result)));
            }
            if self.has_ended {
                return Ok(None);
            }
            self.wait().await?;
        }
    }

    /// Waits for lines or the result, or until the time is over.
    async fn wait(&mut self) -> Result<()> {
        let (waited, refused) = self.arrived().await?;
        match (waited, refused) {
            (Some(Arrived::Lines(lines)), _) => self.add(lines),
            (Some(Arrived::Result(result)), refused) => {
                if refused.is_none() {
                    self.add_rest().await;
                }
                self.result = Some(result);
            }
            // Lines cannot be read, and a result was waited for in vain.
            (None, Some(error)) => return Err(error),
            (None, None) => self.has_ended = true,
        }
        Ok(())
    }

    /// Waits for lines or the result; `None` if the time is over. With the error if lines cannot be read.
    async fn arrived(&self) -> Result<(Option<Arrived>, Option<Error>)> {
        let Self { log, id, until: end, above, .. } = self;
        let mut further = pin!(until(*end, id, |left| lines(&**log, id, *above, left)));
        let mut result = pin!(result_until(&**log, id, *end));
        let mut refused = None;
        loop {
            tokio::select! {
                biased;
                lines = &mut further, if refused.is_none() => match lines {
                    Ok(Some(lines)) => return Ok((Some(Arrived::Lines(lines)), None)),
                    // The time is over. A result that is there counts all the same.
                    Ok(None) => return Ok((result.await?.map(Arrived::Result), None)),
                    Err(error) => refused = Some(error),
                },
                found = &mut result => return Ok((found?.map(Arrived::Result), refused)),
            }
        }
    }

    /// Adds the lines before the result, which are stored by now. What cannot be read of them does not keep the result from whoever follows.
    async fn add_rest(&mut self) {
        let end = Instant::now() + LAST_LOOK;
        let unanswered = |_| Err(Error::new(ErrorKind::Unavailable, "the server has not answered in time"));
        loop {
            let rest = timeout_at(end, lines(&*self.log, &self.id, self.above, Duration::ZERO)).await;
            match rest.unwrap_or_else(unanswered) {
                Ok(rest) => return self.add(rest.unwrap_or_default()),
                Err(error) if error.is_transient() && Instant::now() < end => sleep(PAUSES.0).await,
                Err(error) => {
                    let id = &self.id;
                    return tracing::debug!(%id, %error, "the last lines of a message's progress cannot be read");
                }
            }
        }
    }

    fn add(&mut self, lines: Vec<ProgressLine>) {
        self.above = lines.last().map_or(self.above, |line| line.number);
        self.lines.extend(lines);
    }
}

enum Arrived {
    Lines(Vec<ProgressLine>),
    Result(MessageResult),
}

async fn lines(
    log: &dyn Log,
    id: &ResultId,
    above: u64,
    wait: Duration,
) -> Result<Option<Vec<ProgressLine>>> {
    let lines = log.progress(id, above, wait).await?;
    Ok(Some(lines).filter(|lines| !lines.is_empty()))
}
