//! The stderr of a command: it is passed on, and its last line is kept as the reason if the command fails.

use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tokio::process::ChildStderr;
use tokio::task::JoinHandle;

use crate::commands::message::sanitize;

/// The maximum number of bytes that are kept.
const MOST: usize = 500;

/// Maximum wait for the rest of the output. A process that the command left running may keep stderr open.
const DRAIN_TIMEOUT: Duration = Duration::from_millis(200);

/// The stderr of a command.
#[derive(Debug)]
pub(in crate::commands) struct StderrTail {
    tail: Arc<Mutex<LastLines>>,
    /// Runs as long as any process writes to it.
    passing: JoinHandle<()>,
}

/// The last line that is not empty, and the incomplete one.
#[derive(Debug, Default)]
struct LastLines {
    last: Vec<u8>,
    line: Vec<u8>,
}

impl StderrTail {
    /// Starts to pass it on.
    pub(in crate::commands) fn of(stderr: Option<ChildStderr>) -> Self {
        let tail: Arc<Mutex<LastLines>> = Arc::default();
        let shared = tail.clone();
        let passing = tokio::spawn(async move {
            let Some(mut stderr) = stderr else { return };
            let mut buffer = vec![0; 8 << 10];
            while let Ok(read @ 1..) = stderr.read(&mut buffer).await {
                shared.lock().unwrap_or_else(PoisonError::into_inner).read(&buffer[..read]);
                // If our stderr is closed, the output is dropped.
                let _ = std::io::stderr().write_all(&buffer[..read]);
            }
        });
        Self { tail, passing }
    }

    /// Returns the last line after the command has ended.
    pub(in crate::commands) async fn last(mut self) -> Option<String> {
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, &mut self.passing).await;
        self.tail.lock().unwrap_or_else(PoisonError::into_inner).last_line()
    }
}

impl LastLines {
    fn read(&mut self, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let room = MOST.saturating_sub(self.line.len());
            self.line.extend_from_slice(&piece[..piece.len().min(room)]);
            if piece.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                if !line.trim_ascii().is_empty() {
                    self.last = line;
                }
            }
        }
    }

    fn last_line(&self) -> Option<String> {
        let line = if self.line.trim_ascii().is_empty() { &self.last } else { &self.line };
        let line = line.trim_ascii();
        (!line.is_empty()).then(|| sanitize::line(line))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last_line(pieces: &[&[u8]]) -> Option<String> {
        let mut tail = LastLines::default();
        pieces.iter().for_each(|piece| tail.read(piece));
        tail.last_line()
    }

    #[test]
    fn the_last_line_that_says_something_stays() {
        assert_eq!(last_line(&[]), None);
        assert_eq!(last_line(&[b"\n \n"]), None);
        assert_eq!(last_line(&[b"one\ntw", b"o\n\n  \n"]).as_deref(), Some("two"));
        assert_eq!(last_line(&[b"one\n", b" two"]).as_deref(), Some("two"), "it need not end");
        let long = [b'x'; 2_000];
        assert_eq!(last_line(&[&long, b"y\n"]).map(|it| it.len()), Some(MOST));
    }
}
