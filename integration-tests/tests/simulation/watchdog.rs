//! The watchdog: reports a run that hangs while the clock stands still, with its seed, and ends the process.

use std::process;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

/// The longest that one run may take by the wall clock: some thousand times as long as it takes.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Watches until it is dropped.
pub(crate) struct Watched(#[expect(dead_code, reason = "its drop is the message")] Sender<()>);

pub(crate) fn watch(seed: u64) -> Watched {
    let (alive, ended) = mpsc::channel::<()>();
    thread::spawn(move || {
        if ended.recv_timeout(TIME_LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("seed {seed} hangs: the clock stands still and somebody is busy");
            eprintln!(
                "  MILLSTREAM_SEED={seed} cargo test -p integration-tests --test in_process simulation::"
            );
            process::exit(101);
        }
    });
    Watched(alive)
}
