//! How far it is: a bar if stderr is a terminal.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::output::Output;

/// Shows how far it is, and what goes wrong on the way.
#[derive(Debug)]
pub(super) struct Progress {
    output: Output,
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Of so many bytes, if that is known.
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

    /// So much more was read.
    pub(super) fn read(&self, bytes: u64) {
        if let Some(bar) = &self.bar {
            bar.inc(bytes);
        }
    }

    /// So many were sent so far.
    pub(super) fn sent(&self, messages: u64) {
        if let Some(bar) = &self.bar {
            bar.set_message(format!("{} sent", crate::human::count(messages)));
        }
    }

    /// Says something that stays.
    pub(super) fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| self.output.note(text)),
            None => self.output.note(text),
        }
    }

    /// Takes the bar away.
    pub(super) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The cursor comes back whatever happens.
impl Drop for Progress {
    fn drop(&mut self) {
        self.finish();
    }
}
