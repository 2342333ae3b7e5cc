//! Commands that read stdin, write bytes, or go on until they are stopped; and what stands in a topic.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream::admin::Browse;
use millstream::{Envelope, Limits, Millstream, Topic};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::cli::Cli;

/// How long anything may take.
const TIME_LIMIT: Duration = Duration::from_secs(60);

/// What came of a call, in bytes.
#[derive(Debug)]
pub(crate) struct Fed {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

/// Runs it with this on stdin.
pub(crate) fn feed(cli: &Cli, args: &[&str], stdin: &[u8]) -> Fed {
    let mut command = cli.command(args);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("it runs");
    let mut pipe = child.stdin.take().expect("a pipe");
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // It may have ended without reading all.
            let _ = pipe.write_all(stdin);
        });
        child.wait_with_output().expect("it ends")
    });
    let stderr = String::from_utf8(output.stderr).expect("UTF-8");
    Fed { code: output.status.code(), stdout: output.stdout, stderr }
}

/// The same, if it did what it was asked.
#[track_caller]
pub(crate) fn fed(cli: &Cli, args: &[&str], stdin: impl AsRef<[u8]>) -> String {
    let fed = feed(cli, args, stdin.as_ref());
    assert_eq!(fed.code, Some(0), "{args:?}: {fed:?}");
    String::from_utf8(fed.stdout).expect("UTF-8")
}

/// A command that goes on.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    out: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn new(cli: &Cli, args: &[&str]) -> Self {
        Self::of(&mut cli.command(args))
    }

    /// The same of a command that is more than that.
    pub(crate) fn of(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("it runs");
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Self { child, stdin, out: BufReader::new(stdout) }
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("text");
        line
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it runs");
    }

    /// Whether it has ended, and nobody has asked for its exit code.
    pub(crate) fn is_over(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()));
        stat.is_ok_and(|stat| stat.contains(") Z "))
    }

    /// Its exit code, when it has ended.
    pub(crate) fn ended(&mut self) -> Option<i32> {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status.code();
            }
            assert!(began.elapsed() < TIME_LIMIT, "it does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Gone already, if all went well.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until it is so.
pub(crate) async fn eventually(what: &str, is_so: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < TIME_LIMIT, "not so: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A topic of bytes.
pub(crate) async fn topic(mq: &Millstream, name: &str, partitions: u32) -> millstream::Producer<Bytes> {
    let topic = Topic::raw("").named(name).partitions(partitions).retention(millstream::Retention::Keep);
    mq.producer(topic).await.expect("a topic")
}

/// What stands in a topic: partition and message, in the order of ids.
pub(crate) async fn stored(mq: &Millstream, name: &str) -> Vec<(u32, Envelope)> {
    let browse = Browse { limit: 10_000, ..Browse::default() };
    let name = name.parse().expect("a name");
    let messages = mq.admin().messages(&name, &browse).await.expect("a page").messages;
    let decoded = messages.iter().map(|it| {
        let envelope = it.decode(&Limits::default()).envelope.expect("a message");
        (it.topic_partition.partition.0, envelope)
    });
    decoded.collect()
}

/// The payloads that stand in a topic, as text.
pub(crate) async fn payloads(mq: &Millstream, name: &str) -> Vec<String> {
    let text = |(_, it): (u32, Envelope)| String::from_utf8(it.payload.to_vec()).expect("text");
    stored(mq, name).await.into_iter().map(text).collect()
}

/// Lines of JSON.
pub(crate) fn lines(text: &str) -> Vec<serde_json::Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}
