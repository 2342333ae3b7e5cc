//! Buffers log lines while the screen is drawn; otherwise writes them to stderr immediately.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The maximum number of buffered lines; older ones are dropped.
const KEPT: usize = 100;

static HELD: Mutex<Option<VecDeque<String>>> = Mutex::new(None);

fn held() -> MutexGuard<'static, Option<VecDeque<String>>> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A writer of log lines.
#[derive(Debug)]
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut held = held();
        let Some(lines) = held.as_mut() else { return io::stderr().write(bytes) };
        lines.push_back(String::from_utf8_lossy(bytes).into_owned());
        if lines.len() > KEPT {
            lines.pop_front();
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

/// Holds back log lines until it is dropped.
#[cfg_attr(not(feature = "top"), allow(dead_code))]
#[derive(Debug)]
pub(crate) struct Hold(());

impl Hold {
    #[cfg_attr(not(feature = "top"), allow(dead_code))]
    pub(crate) fn back() -> Self {
        *held() = Some(VecDeque::new());
        Self(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        for line in held().take().unwrap_or_default() {
            // If stderr is closed, the line is dropped.
            let _ = io::stderr().write_all(line.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_back_is_bounded() {
        let hold = Hold::back();
        for number in 0..150 {
            LogWriter.write_all(format!("line {number}\n").as_bytes()).expect("kept");
        }
        let lines = held().take().expect("held back");
        assert_eq!((lines.len(), lines[0].as_str(), lines[99].as_str()), (100, "line 50\n", "line 149\n"));
        drop(hold);
        assert!(held().is_none());
    }
}
