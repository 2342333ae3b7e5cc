//! A process that outlives this one by a moment: it kills the commands that run when this one has died without ending them.
//!
//! A parent-death signal would reach the shell and not what it has started, and it exists on Linux alone. So the process groups of
//! running commands are written to a pipe whose other end the watchdog reads. The pipe ends with this process, however that dies.

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

/// First argument of the watchdog, which is this program. It is no command for users.
pub(crate) const WORD: &str = "watch-commands";

/// The watchdog as the process that it watches sees it. It ends when this is dropped.
#[derive(Debug)]
pub(super) struct Watchdog(Mutex<Child>);

impl Watchdog {
    /// Starts it.
    ///
    /// # Errors
    /// If this program cannot be started again.
    pub(super) fn start() -> io::Result<Self> {
        // Also after the file was replaced by another version.
        let same = PathBuf::from("/proc/self/exe");
        let program = if same.exists() { same } else { std::env::current_exe()? };
        // A process group of its own: what ends the group of this process must not end it.
        let child = Command::new(program)
            .arg0("millstream")
            .arg(WORD)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        Ok(Self(Mutex::new(child)))
    }

    /// Adds the process group of a command.
    pub(super) fn add(&self, group: Pid) {
        self.write(group.as_raw_nonzero().get());
    }

    /// Removes a process group: it has ended, or may go on.
    pub(super) fn remove(&self, group: Pid) {
        self.write(-group.as_raw_nonzero().get());
    }

    fn write(&self, group: i32) {
        let mut child = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pipe) = &mut child.stdin {
            // Fails if somebody has killed the watchdog: the commands run without it then.
            let _ = pipe.write_all(&group.to_ne_bytes());
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        let child = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(child.stdin.take());
        // It ends at once.
        let _ = child.wait();
    }
}

/// Runs as the watchdog: until the pipe ends, which ends the commands that are still there.
pub(crate) fn run() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    // A service manager sends its signals to all processes of a service: this one waits for the other one to end its commands.
    let ignored = runtime.as_ref().map(|runtime| {
        let _context = runtime.enter();
        [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()].map(signal)
    });
    let (mut groups, mut pipe, mut number) = (BTreeSet::new(), io::stdin().lock(), [0; 4]);
    while pipe.read_exact(&mut number).is_ok() {
        match i32::from_ne_bytes(number) {
            group if group > 0 => drop(groups.insert(group)),
            group => drop(groups.remove(&-group)),
        }
    }
    for group in groups.into_iter().filter_map(Pid::from_raw) {
        // It may have ended.
        let _ = kill_process_group(group, Signal::KILL);
    }
    drop(ignored);
    ExitCode::SUCCESS
}
