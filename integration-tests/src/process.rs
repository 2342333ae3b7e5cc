//! A member or a worker as a process: can be started, killed, stopped and shut down.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;

/// A running `member` or `worker`. Dropping it kills it; if the test process dies, it ends by itself.
#[derive(Debug)]
pub struct Process(Child);

impl Process {
    /// Starts the binary at `bin` with its setup.
    ///
    /// # Panics
    /// If it does not start.
    #[must_use]
    pub fn start(bin: &str, setup: &impl Serialize) -> Self {
        Self::start_in(bin, setup, [])
    }

    /// Same as [`start`](Self::start), with additional environment variables.
    ///
    /// # Panics
    /// As [`start`](Self::start).
    #[must_use]
    pub fn start_in<const N: usize>(bin: &str, setup: &impl Serialize, env: [(&str, PathBuf); N]) -> Self {
        let setup = serde_json::to_string(setup).expect("a setup is JSON");
        let mut command = Command::new(bin);
        let child = command.arg(setup).envs(env).stdin(Stdio::piped()).stdout(Stdio::null()).spawn();
        Self(child.unwrap_or_else(|error| panic!("{bin}: {error}")))
    }

    /// Returns its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Whether the process is running.
    ///
    /// # Panics
    /// If the system does not report it.
    pub fn is_alive(&mut self) -> bool {
        self.0.try_wait().expect("the system knows").is_none()
    }

    /// Returns whether the process has ended well, or `None` while it runs.
    ///
    /// # Panics
    /// If the system does not report it.
    pub fn has_ended(&mut self) -> Option<bool> {
        self.0.try_wait().expect("the system knows").map(|status| status.success())
    }

    /// Kills the process (SIGKILL) and waits until it is gone.
    ///
    /// # Panics
    /// If it cannot be killed.
    pub fn kill(&mut self) {
        self.0.kill().expect("killed");
        self.0.wait().expect("gone");
    }

    /// Requests an orderly shutdown (SIGTERM), once the process is far enough to receive one: before that the signal would
    /// simply end it.
    ///
    /// # Panics
    /// If it has not come that far within [`crate::HANG`].
    pub fn terminate(&self) {
        let deadline = Instant::now() + crate::HANG;
        while !self.catches(Signal::TERM) {
            assert!(Instant::now() < deadline, "process {} does not start", self.pid());
            std::thread::sleep(Duration::from_millis(2));
        }
        self.signal(Signal::TERM);
    }

    /// Whether the process has a handler for a signal, or has ended.
    fn catches(&self, signal: Signal) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap_or_default();
        let value = |name: &str| status.lines().find_map(|line| Some(line.strip_prefix(name)?.trim()));
        let has_ended = value("State:").is_some_and(|state| state.starts_with('Z'));
        let caught = value("SigCgt:").and_then(|mask| u64::from_str_radix(mask, 16).ok());
        has_ended || caught.is_none_or(|mask| mask >> (signal.as_raw() - 1) & 1 == 1)
    }

    /// Stops the process (SIGSTOP).
    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// Continues the process (SIGCONT).
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    /// Releases the handlers that hold their messages (SIGUSR1).
    pub fn release(&self) {
        self.signal(Signal::USR1);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("an id");
        kill_process(pid, signal).unwrap_or_else(|error| panic!("{signal:?}: {error}"));
    }

    /// Waits until the process has ended by itself. Returns whether it succeeded.
    ///
    /// # Panics
    /// If it has not ended within [`crate::HANG`].
    pub async fn ended(&mut self) -> bool {
        let deadline = Instant::now() + crate::HANG;
        loop {
            if let Some(well) = self.has_ended() {
                return well;
            }
            assert!(Instant::now() < deadline, "process {} does not end", self.pid());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
