//! Progress: a bar for people, a line a second for logs.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::board::Board;

pub(crate) struct Progress {
    bar: ProgressBar,
    /// Where there is no terminal: when the next line is due.
    next_line: Option<Instant>,
}

impl Progress {
    pub(crate) fn new(total: u64) -> Self {
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} handled  {msg}") {
            bar.set_style(style);
        }
        let next_line = (!std::io::stderr().is_terminal()).then(|| Instant::now() + Duration::from_secs(1));
        Self { bar, next_line }
    }

    pub(crate) fn show(&mut self, board: &Board) {
        let counts = board.counts();
        let text = format!("{} produced, {} retried, {} dead", counts.produced, counts.retried, counts.dead);
        if let Some(due) = &mut self.next_line
            && Instant::now() >= *due
        {
            eprintln!("{} handled, {text}", counts.handled);
            *due += Duration::from_secs(1);
        }
        self.bar.set_position(counts.handled);
        self.bar.set_message(text);
    }

    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}
