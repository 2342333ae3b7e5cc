//! Calls the compiled command, in a namespace of its own on a server that tests share.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use millstream::Millstream;
use serde_json::Value;

use crate::support::envelope;
use crate::support::server::shared_url;

/// The compiled command.
pub(crate) const MILLSTREAM: &str = env!("CARGO_BIN_EXE_millstream");

/// A place to work in, and the command that works there.
#[derive(Debug)]
pub(crate) struct Cli {
    pub(crate) url: String,
    pub(crate) namespace: String,
}

/// What came of a call.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Cli {
    /// A namespace that nobody else has.
    pub(crate) fn new() -> Self {
        Self::at(shared_url())
    }

    /// The same on a server of your own.
    pub(crate) fn at(url: String) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (id, count) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let namespace = format!("cli-{id}-{count}-{:08x}", fastrand::u32(..));
        Self { url, namespace }
    }

    /// The library in the same place: to put something there, and to see what became of it.
    pub(crate) async fn mq(&self) -> Millstream {
        Millstream::at(&self.url).namespace(&self.namespace).connect().await.expect("a server")
    }

    /// The command with its place, and nothing of our environment that would change what it does; without stdin.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = bare(args);
        command.env("MILLSTREAM_URL", &self.url).env("MILLSTREAM_NAMESPACE", &self.namespace);
        command
    }

    /// Runs it: words apart at spaces, or a list of words.
    pub(crate) fn run<'a>(&self, args: impl Words<'a>) -> Ran {
        Ran::of(&mut self.command(&args.words()))
    }

    /// What it printed, if it did what it was asked.
    #[track_caller]
    pub(crate) fn ok<'a>(&self, args: impl Words<'a>) -> String {
        let words = args.words();
        let ran = self.run(words.as_slice());
        assert_eq!(ran.code, 0, "{words:?}: {ran:?}");
        ran.stdout
    }

    /// The data that it printed as JSON, which is all that it printed.
    #[track_caller]
    pub(crate) fn json<'a>(&self, args: impl Words<'a>) -> Value {
        self.json_with(0, args)
    }

    /// The same with another exit code; if that of a failure, the error is in the line behind the data.
    #[track_caller]
    pub(crate) fn json_with<'a>(&self, code: i32, args: impl Words<'a>) -> Value {
        let mut words = args.words();
        words.push("--json");
        let ran = self.run(words.as_slice());
        assert_eq!(ran.code, code, "{words:?}: {ran:?}");
        let (mut all, error) = envelope::parts(&ran.stdout);
        assert_eq!((all.len(), error.is_some()), (1, ![0, 3].contains(&code)), "{words:?}: {ran:?}");
        all.remove(0)
    }

    /// The error that it printed as JSON, if it ended with this code and printed no data.
    #[track_caller]
    pub(crate) fn error<'a>(&self, code: i32, args: impl Words<'a>) -> Value {
        let mut words = args.words();
        words.push("--json");
        let ran = self.run(words.as_slice());
        assert_eq!(ran.code, code, "{words:?}: {ran:?}");
        let (all, error) = envelope::parts(&ran.stdout);
        assert!(all.is_empty(), "{words:?}: {ran:?}");
        error.unwrap_or_else(|| panic!("{words:?}: no error: {ran:?}"))
    }

    /// What it said on stderr, if it ended with this code and printed nothing but, with `--json`, the error.
    #[track_caller]
    pub(crate) fn fails<'a>(&self, code: i32, args: impl Words<'a>) -> String {
        let words = args.words();
        let ran = self.run(words.as_slice());
        assert_eq!(ran.code, code, "{words:?}: {ran:?}");
        let (all, error) = envelope::parts(&ran.stdout);
        assert_eq!((all.len(), error.is_some()), (0, words.contains(&"--json")), "{words:?}: {ran:?}");
        ran.stderr
    }
}

/// The command without a place.
pub(crate) fn bare(args: &[&str]) -> Command {
    let mut command = Command::new(MILLSTREAM);
    command.args(args).stdin(Stdio::null());
    for name in ["MILLSTREAM_URL", "MILLSTREAM_NAMESPACE", "MILLSTREAM_CONFIG", "NO_COLOR", "RUST_LOG"] {
        command.env_remove(name);
    }
    // The user who runs the tests may have a settings file.
    command.env("XDG_CONFIG_HOME", "/nonexistent");
    command
}

impl Ran {
    pub(crate) fn of(command: &mut Command) -> Self {
        let output = command.output().expect("it runs");
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        let code = output.status.code().expect("it was not killed");
        Self { code, stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Arguments: `"topic list"`, or `["topic", "list"]` where one has spaces in it.
pub(crate) trait Words<'a> {
    fn words(self) -> Vec<&'a str>;
}

impl<'a> Words<'a> for &'a str {
    fn words(self) -> Vec<&'a str> {
        self.split_whitespace().collect()
    }
}

impl<'a> Words<'a> for &'a String {
    fn words(self) -> Vec<&'a str> {
        self.split_whitespace().collect()
    }
}

impl<'a, const N: usize> Words<'a> for [&'a str; N] {
    fn words(self) -> Vec<&'a str> {
        self.to_vec()
    }
}

impl<'a> Words<'a> for &[&'a str] {
    fn words(self) -> Vec<&'a str> {
        self.to_vec()
    }
}
