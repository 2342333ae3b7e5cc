//! The number of items that were read so far, on a terminal, once a command takes long.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::human;

/// Time after which the number is shown: shorter commands show their result only.
const AFTER: Duration = Duration::from_secs(2);

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

    /// Sets the number: `12,000 letters read`.
    pub(in crate::commands) fn set(&mut self, number: u64, one: &str, many: &str) {
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
        bar.set_message(format!("{} read", human::of(number, one, many)));
    }
}

/// Restores the cursor in any case.
impl Drop for CountProgress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
