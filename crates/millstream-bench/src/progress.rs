//! The progress: a bar if stderr is a terminal, otherwise one line per case.

use std::io::{IsTerminal, stderr};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Shows the progress on stderr, so that stdout has the result only.
pub(crate) struct Progress {
    /// The bar, if stderr is a terminal.
    bar: Option<ProgressBar>,
    began: Instant,
    /// The number of cases that have begun, and of all cases.
    cases: (u64, u64),
}

impl Progress {
    /// Creates a progress for this many cases and this many runs in total.
    pub(crate) fn new(cases: usize, runs: u64) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(runs);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} run {pos} of {len}  {elapsed}  {msg}") {
                bar.set_style(style);
            }
            // Redraws rarely: drawing uses CPU of this process, which is measured.
            bar.enable_steady_tick(Duration::from_millis(500));
            bar
        });
        Self { bar, began: Instant::now(), cases: (0, cases as u64) }
    }

    /// Shows the beginning of a case.
    pub(crate) fn case(&mut self, name: &str) {
        self.cases.0 += 1;
        match &self.bar {
            Some(bar) => bar.set_message(name.to_owned()),
            None => {
                let seconds = self.began.elapsed().as_secs();
                let (number, of) = self.cases;
                eprintln!("[{number}/{of}] {}:{:02}  {name}", seconds / 60, seconds % 60);
            }
        }
    }

    /// Reports the failure of a case. The next case still runs.
    pub(crate) fn failed(&self, why: &anyhow::Error) {
        match &self.bar {
            Some(bar) => bar.println(format!("failed: {why:#}")),
            None => eprintln!("failed: {why:#}"),
        }
    }

    /// Records that one side of a run is done.
    pub(crate) fn step(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
