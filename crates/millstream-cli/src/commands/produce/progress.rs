//! The progress: a bar if stderr is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

/// Shows the progress, and errors on the way.
#[derive(Debug)]
pub(super) struct Progress {
    output: Output,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Creates a progress for this many bytes, if the size is known.
    pub(super) fn new(output: Output, len: Option<u64>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let (bar, style) = match len {
                Some(len) => (
                    ProgressBar::new(len),
                    "{bar:30} {binary_bytes} of {binary_total_bytes}  {elapsed}  {msg}",
                ),
                None => (ProgressBar::no_length(), "{spinner} {binary_bytes}  {elapsed}  {msg}"),
            };
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { output, bar }
    }

    /// Adds bytes that were read.
    pub(super) fn read(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    /// Sets the number of messages sent so far.
    pub(super) fn sent(&self, messages: u64) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{} sent", crate::human::count(messages)));
        }
    }

    /// Prints a line that stays above the bar.
    pub(super) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.output.note(text)),
            None => self.output.note(text),
        }
    }

    /// Removes the bar.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// Restores the cursor in any case.
impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
