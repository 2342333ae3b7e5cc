//! A terminal for a command: what it draws is parsed as a terminal would, what is typed gets to it.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};
use vt100::{Parser, Screen};

/// How long something may take that is waited for.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// A terminal, and the command on it.
pub(crate) struct Pty {
    child: Child,
    /// Our end of the terminal.
    ours: File,
    /// The other end: the terminal is there as long as somebody holds it.
    theirs: OwnedFd,
    before: Termios,
    shown: Arc<Shown>,
}

/// What is on the screen.
struct Shown {
    parser: Mutex<Parser>,
    changed: Condvar,
}

impl Shown {
    fn lock(&self) -> MutexGuard<'_, Parser> {
        self.parser.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn some(number: u16) -> NonZero<u16> {
    NonZero::new(number).expect("a screen has a size")
}

/// The lines of a screen.
pub(crate) fn lines(screen: &Screen) -> impl Iterator<Item = String> {
    screen.rows(0, screen.size().1.get())
}

fn size_of((columns, rows): (u16, u16)) -> Winsize {
    Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

impl Pty {
    /// Runs a command on a terminal of so many columns and rows.
    pub(crate) fn run(command: &Command, (columns, rows): (u16, u16)) -> Self {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&ours).expect("granted");
        unlockpt(&ours).expect("unlocked");
        let name = ptsname(&ours, Vec::new()).expect("a name");
        let theirs =
            rustix::fs::open(name.as_c_str(), OFlags::RDWR | OFlags::NOCTTY, Mode::empty()).expect("opened");
        tcsetwinsize(&ours, size_of((columns, rows))).expect("a size");
        let before = tcgetattr(&theirs).expect("modes");

        // In a session of its own, so that this is its controlling terminal and not that of the test run.
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => session.env(name, value),
                None => session.env_remove(name),
            };
        }
        session.env("TERM", "xterm-256color");
        let end = || Stdio::from(theirs.try_clone().expect("another handle"));
        let child = session.stdin(end()).stdout(end()).stderr(end()).spawn().expect("it runs");

        let parser = Mutex::new(Parser::new(some(rows), some(columns), 0));
        let shown = Arc::new(Shown { parser, changed: Condvar::new() });
        let ours = File::from(ours);
        let (mut from, to) = (ours.try_clone().expect("another handle"), shown.clone());
        thread::spawn(move || {
            let mut bytes = [0; 4_096];
            // An error is the end of the terminal.
            while let Ok(read @ 1..) = from.read(&mut bytes) {
                to.lock().process(&bytes[..read]);
                to.changed.notify_all();
            }
        });
        Self { child, ours, theirs, before, shown }
    }

    /// Types.
    pub(crate) fn press(&mut self, keys: &str) {
        self.ours.write_all(keys.as_bytes()).expect("typed");
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process");
        kill_process(pid, signal).expect("told");
    }

    pub(crate) fn resize(&self, (columns, rows): (u16, u16)) {
        self.shown.lock().screen_mut().set_size(some(rows), some(columns));
        tcsetwinsize(&self.ours, size_of((columns, rows))).expect("a size");
    }

    /// Waits until the screen is as it should be.
    #[track_caller]
    pub(crate) fn until<T>(&self, what: &str, mut found: impl FnMut(&Screen) -> Option<T>) -> T {
        let deadline = Instant::now() + TIME_LIMIT;
        let mut parser = self.shown.lock();
        loop {
            if let Some(found) = found(parser.screen()) {
                return found;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let seen = parser.screen().contents();
            assert!(!left.is_zero(), "{what} did not come. The screen:\n{seen}");
            let waited =
                self.shown.changed.wait_timeout(parser, left).unwrap_or_else(PoisonError::into_inner);
            parser = waited.0;
        }
    }

    /// Waits until a line has all these words, one behind the other with nothing but spaces between them.
    #[track_caller]
    pub(crate) fn until_line(&self, words: &str) -> String {
        let wanted: Vec<&str> = words.split_whitespace().collect();
        self.until(words, |screen| {
            lines(screen).find(|line| {
                let have: Vec<&str> = line.split_whitespace().collect();
                have.windows(wanted.len()).any(|some| some == wanted)
            })
        })
    }

    /// Waits until a text is on the screen.
    #[track_caller]
    pub(crate) fn until_text(&self, text: &str) {
        self.until(text, |screen| screen.contents().contains(text).then_some(()));
    }

    /// Waits for the end, and holds that the terminal is as it was. Gives the exit code, and what is on the screen.
    #[track_caller]
    pub(crate) fn end(mut self) -> (i32, String) {
        let deadline = Instant::now() + TIME_LIMIT;
        let status = loop {
            match self.child.try_wait().expect("a process") {
                Some(status) => break status,
                None if Instant::now() < deadline => thread::yield_now(),
                None => {
                    let seen = self.shown.lock().screen().contents();
                    self.child.kill().expect("killed");
                    panic!("it did not end. The screen:\n{seen}");
                }
            }
        };
        assert_eq!(status.signal(), None, "it was killed");
        self.until("the ordinary page with a cursor", |screen| {
            (!screen.alternate_screen() && !screen.hide_cursor()).then_some(())
        });
        let after = tcgetattr(&self.theirs).expect("modes");
        let modes = |it: &Termios| (it.input_modes, it.output_modes, it.control_modes, it.local_modes);
        assert_eq!(modes(&after), modes(&self.before), "the modes of the terminal");
        (status.code().expect("an exit code"), self.shown.lock().screen().contents())
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        // After a failed test. An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
