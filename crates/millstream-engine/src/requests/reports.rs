//! What handlers say of their work, on its way to the server.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use millstream_core::log::ProgressRight;
use millstream_core::progress::{KEPT_AT_LEAST, MAX_LINES, NewLine, ProgressReport};
use millstream_core::results::ResultRequest;
use millstream_core::{ErrorKind, Log};
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

/// Least time between two requests that store what one message's handler says: four in a second look live.
const INTERVAL: Duration = Duration::from_millis(250);

/// Pause after a request that failed at the end.
const PAUSE: Duration = Duration::from_millis(50);

/// Whether it was said that progress cannot be stored.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// How long the settlement of a message waits for its last lines: without the server it would not get further either.
const LAST: Duration = Duration::from_secs(1);

/// What the handler of one message says of its work. It is stored at once, and then once in 250 ms with all that was said meanwhile.
#[derive(Clone)]
pub struct Reports(Arc<Inner>);

struct Inner {
    log: Arc<dyn Log>,
    request: ResultRequest,
    attempt: u32,
    right: Box<dyn Fn() -> ProgressRight + Send + Sync>,
    runtime: Handle,
    said: Mutex<Unstored>,
    /// One request at a time, so that lines are stored in their order.
    sending: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Unstored {
    /// Lines that are not stored, oldest first.
    waiting: VecDeque<NewLine>,
    /// The last fraction.
    fraction: Option<f64>,
    /// Whether anything was said.
    any: bool,
    /// Whether a task stores it.
    runs: bool,
    /// Whether nothing more is stored: the handler has ended, or its right is lost.
    ended: bool,
}

impl Reports {
    /// Creates those of a message that asks for its result. Call it within the runtime that the handler uses.
    pub fn new(
        log: Arc<dyn Log>,
        request: ResultRequest,
        attempt: u32,
        right: impl Fn() -> ProgressRight + Send + Sync + 'static,
    ) -> Self {
        // The handler may be silent for longer than a short result is kept.
        let request = ResultRequest::new(request.number, request.keep.max(KEPT_AT_LEAST));
        Self(Arc::new(Inner {
            log,
            request,
            attempt,
            right: Box::new(right),
            runtime: Handle::current(),
            said: Mutex::default(),
            sending: tokio::sync::Mutex::default(),
        }))
    }

    /// Says something. Without a fraction the last one counts.
    pub fn say(&self, fraction: Option<f64>, text: &str) {
        let mut said = self.0.said();
        if said.ended {
            return;
        }
        let line = NewLine::new(fraction.or(said.fraction), text);
        (said.fraction, said.any) = (line.fraction, true);
        said.add(line);
        if !said.runs {
            said.runs = true;
            self.0.runtime.spawn(store_all(Arc::downgrade(&self.0)));
        }
    }

    /// Stores what is left, once the handler has ended, and before its message is settled: with that the right to it ends. Whatever is
    /// said later is not stored.
    pub async fn end(self) {
        let any = {
            let mut said = self.0.said();
            said.ended |= !said.any;
            said.any
        };
        if !any {
            return;
        }
        let all = async {
            while !self.0.store().await {
                sleep(PAUSE).await;
            }
        };
        if timeout(LAST, all).await.is_err() {
            tracing::debug!("the last lines of a message's progress were not stored in time");
        }
        let mut said = self.0.said();
        (said.ended, said.waiting) = (true, VecDeque::new());
    }
}

/// Ends what handlers have said of their work.
pub async fn end_all(reports: impl IntoIterator<Item = Reports>) {
    let mut reports = reports.into_iter().peekable();
    // Boxed, because few messages have some.
    if reports.peek().is_some() {
        Box::pin(join_all(reports.map(Reports::end))).await;
    }
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reports").field("attempt", &self.0.attempt).finish_non_exhaustive()
    }
}

impl Unstored {
    fn add(&mut self, line: NewLine) {
        match self.waiting.back_mut() {
            Some(last) if last.text.is_empty() && line.text.is_empty() => *last = line,
            _ => self.waiting.push_back(line),
        }
        self.bound();
    }

    /// More would not stay at the server either.
    fn bound(&mut self) {
        let excess = self.waiting.len().saturating_sub(MAX_LINES);
        self.waiting.drain(..excess);
    }
}

impl Inner {
    fn said(&self) -> MutexGuard<'_, Unstored> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores what was said so far. False if that has to be tried again.
    async fn store(&self) -> bool {
        let _turn = self.sending.lock().await;
        let lines: Vec<_> = std::mem::take(&mut self.said().waiting).into();
        if lines.is_empty() {
            return true;
        }
        let mut report = ProgressReport { request: self.request, attempt: self.attempt, lines };
        let right = (self.right)();
        match self.log.report_progress(&right, &report).await {
            Ok(()) => true,
            Err(error) if error.is_transient() => {
                tracing::debug!(%error, "progress was not stored, and is sent again");
                let mut said = self.said();
                report.lines.extend(said.waiting.drain(..));
                said.waiting = report.lines.into();
                said.bound();
                false
            }
            Err(error) => {
                self.said().ended = true;
                // Who holds the message now says how far it is. Anything else is said once: it is the same for all messages.
                if error.kind() != ErrorKind::Fenced && !IS_TOLD.swap(true, Ordering::Relaxed) {
                    tracing::warn!(%error, "the progress of messages is not stored");
                }
                tracing::debug!(%error, "the progress of a message is not stored");
                true
            }
        }
    }
}

/// Stores what is said until nothing was for a while, or the handler has ended.
async fn store_all(reports: Weak<Inner>) {
    loop {
        let Some(inner) = reports.upgrade() else { return };
        let _ = inner.store().await;
        // Not kept meanwhile: it has the right to the message.
        drop(inner);
        sleep(INTERVAL).await;
        let Some(inner) = reports.upgrade() else { return };
        let mut said = inner.said();
        if said.waiting.is_empty() || said.ended {
            said.runs = false;
            return;
        }
    }
}
