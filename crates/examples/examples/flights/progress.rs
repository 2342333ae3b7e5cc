//! Progress: a line that is written over for people, a line a second for logs.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::board::Board;

pub(crate) struct Progress {
    total: usize,
    terminal: bool,
    next_line: Instant,
}

impl Progress {
    pub(crate) fn new(total: usize) -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { total, terminal, next_line: Instant::now() + Self::pause(terminal) }
    }

    fn pause(terminal: bool) -> Duration {
        if terminal { Duration::from_millis(100) } else { Duration::from_secs(1) }
    }

    pub(crate) fn show(&mut self, board: &Board) {
        if Instant::now() < self.next_line {
            return;
        }
        self.next_line = Instant::now() + Self::pause(self.terminal);
        let counts = board.counts();
        let text = format!(
            "{} of {} handled, {} produced, {} retried, {} dead",
            counts.handled, self.total, counts.produced, counts.retried, counts.dead
        );
        self.line(&text);
    }

    pub(crate) fn finish(&self) {
        if self.terminal {
            self.line("");
        }
    }

    /// A terminal shows it in the place of the line before.
    fn line(&self, text: &str) {
        let (before, after) = if self.terminal { ("\r\u{1b}[2K", "") } else { ("", "\n") };
        // A closed standard error stops no message.
        let _ = write!(std::io::stderr(), "{before}{text}{after}");
    }
}
