//! The number of items that were read so far, on a terminal, once a command takes long.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::human;

/// Time after which the number is shown: shorter commands show their result only.
const AFTER: Duration = Duration::from_secs(2);
/// Time between two looks at a counter.
const TICK: Duration = Duration::from_millis(250);

/// Shows the number on stderr, in a line that disappears at the end.
#[derive(Debug)]
pub(in crate::commands) struct CountProgress {
    since: Instant,
    bar: Option<ProgressBar>,
    is_terminal: bool,
}

impl CountProgress {
    pub(in crate::commands) fn new() -> Self {
        Self { since: Instant::now(), bar: None, is_terminal: std::io::stderr().is_terminal() }
    }

    /// Shows the number in a counter for as long as some work runs.
    pub(in crate::commands) async fn during<T>(
        &mut self,
        work: impl Future<Output = T>,
        counter: &AtomicU64,
        one: &str,
        many: &str,
    ) -> T {
        let mut work = std::pin::pin!(work);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                () = tokio::time::sleep(TICK) => self.set(counter.load(Ordering::Relaxed), one, many),
            }
        }
    }

    /// Sets the number: `12,000 letters read`.
    pub(in crate::commands) fn set(&mut self, number: u64, one: &str, many: &str) {
        self.set_as(number, one, many, "read");
    }

    /// Sets the number and what was done: `12,000 letters replayed`.
    pub(in crate::commands) fn set_as(&mut self, number: u64, one: &str, many: &str, done: &str) {
        if !self.is_terminal || self.since.elapsed() < AFTER {
            return;
        }
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::no_length();
            if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}  {elapsed}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        bar.set_message(format!("{} {done}", human::of(number, one, many)));
    }
}

impl CountProgress {
    /// Shows nothing while stdout, which gets the data meanwhile, is the terminal too.
    pub(in crate::commands) fn beside_output(self) -> Self {
        let is_terminal = self.is_terminal && !std::io::stdout().is_terminal();
        Self { is_terminal, since: self.since, bar: None }
    }

    /// Removes the line, for something else to be written. The next number shows it again.
    pub(in crate::commands) fn hide(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Restores the cursor in any case.
impl Drop for CountProgress {
    fn drop(&mut self) {
        self.hide();
    }
}
