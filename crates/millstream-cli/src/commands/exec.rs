//! A command that is run for each message or dead letter.

pub(crate) mod watchdog;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use std::{fmt, io};

use anyhow::{Context as _, Result};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use millstream::GroupName;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};

use crate::commands::message::{Body, MessageView, json};
use crate::commands::shared::stderr_tail::StderrTail;
use crate::human;
use crate::output::Output;
use watchdog::Watchdog;

/// A command that could not be run, or did not end with 0 in time.
#[derive(Debug)]
pub(crate) struct ExecFailed {
    /// Its exit code, if it ended by itself.
    pub(crate) code: Option<i32>,
    why: String,
}

impl ExecFailed {
    /// Whether the shell has no such command, or may not run it: no message can be handled then. The codes are those of
    /// POSIX (`sh`, "Exit status").
    pub(crate) fn is_of_the_command(&self) -> bool {
        matches!(self.code, Some(126 | 127))
    }
}

impl fmt::Display for ExecFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for ExecFailed {}

impl From<anyhow::Error> for ExecFailed {
    fn from(error: anyhow::Error) -> Self {
        Self { code: None, why: format!("{error:#}") }
    }
}

/// The command and its time limit.
#[derive(Debug)]
pub(crate) struct Exec {
    command: String,
    /// The group that the messages are handled for.
    group: Option<GroupName>,
    timeout: Option<Duration>,
    watchdog: Option<Watchdog>,
}

impl Exec {
    /// Creates it with a [watchdog](self::watchdog).
    pub(crate) fn new(
        command: &str,
        group: Option<&GroupName>,
        timeout: Option<Duration>,
        output: Output,
    ) -> Self {
        let watchdog = Watchdog::start();
        if let Err(error) = &watchdog {
            output.note(&format!(
                "commands will go on if this process is killed, since nothing watches it: {error}"
            ));
        }
        Self { command: command.to_owned(), group: group.cloned(), timeout, watchdog: watchdog.ok() }
    }

    /// Runs it for a message, with `more` in its environment. An entry that is not a message is passed as its fields
    /// in JSON. The command is killed if this is dropped before it has ended.
    ///
    /// # Errors
    /// If the command cannot be run, or does not end with 0 in time.
    pub(crate) async fn run(&self, view: &MessageView, more: &[(&str, String)]) -> Result<(), ExecFailed> {
        let group = self.group.iter().map(|group| ("MILLSTREAM_GROUP", group.to_string()));
        let about = [
            ("MILLSTREAM_TOPIC", view.topic_partition.topic.to_string()),
            ("MILLSTREAM_PARTITION", view.topic_partition.partition.to_string()),
            ("MILLSTREAM_ID", view.id.to_string()),
            ("MILLSTREAM_TIME_MS", view.id.ms.to_string()),
            ("MILLSTREAM_ATTEMPT", view.attempt.unwrap_or(1).to_string()),
        ];
        let about: Vec<_> = group.chain(about).chain(more.iter().cloned()).collect();
        self.run_with(&about, &view.body).await
    }

    /// Runs it for a message or task that is described by `about`, variables of its environment.
    ///
    /// # Errors
    /// The errors of [`run`](Self::run).
    pub(crate) async fn run_with(&self, about: &[(&str, String)], body: &Body) -> Result<(), ExecFailed> {
        let mut command = Command::new("sh");
        command.arg("-c").arg(&self.command).stdin(Stdio::piped()).stderr(Stdio::piped());
        // A separate process group: Ctrl-C reaches only this process, which lets the command finish; and the children
        // of the command end with it.
        command.process_group(0).kill_on_drop(true);
        let payload = describe(&mut command, body)?;
        // Environment variables cannot contain zero bytes.
        command.envs(about.iter().map(|(name, value)| (name, value.replace('\0', "\\0"))));
        let mut child = command.spawn().context("cannot run sh")?;
        let mut group = ProcessGroup::of(&child, self.watchdog.as_ref());
        let stdin = child.stdin.take();
        let complaint = StderrTail::of(child.stderr.take());
        let ends = async {
            let mut feeding = std::pin::pin!(feed(stdin, payload));
            tokio::select! {
                biased;
                // The command may end without reading all of it, and leave its stdin to other processes.
                status = child.wait() => return status.map_err(anyhow::Error::from),
                fed = &mut feeding => fed.context("cannot give it the payload")?,
            }
            anyhow::Ok(child.wait().await?)
        };
        let status = match self.timeout {
            None => ends.await?,
            Some(timeout) => match tokio::time::timeout(timeout, ends).await {
                Ok(ended) => ended?,
                Err(_) => {
                    let why = format!("the command took longer than {}", human::duration(timeout));
                    return Err(ExecFailed { code: None, why });
                }
            },
        };
        // Processes that the command left running on purpose continue.
        group.release();
        if status.success() {
            return Ok(());
        }
        let last = complaint.last().await.map_or_else(String::new, |last| format!(": {last}"));
        Err(ExecFailed { code: status.code(), why: format!("the command {}{last}", ended(status)) })
    }
}

/// Sets the environment that describes the body, and returns the data for stdin.
fn describe(command: &mut Command, body: &Body) -> Result<Bytes> {
    // Removes the variables of an outer message, in case a command runs this one.
    for name in ["MILLSTREAM_KEY", "MILLSTREAM_KEY_BASE64", "MILLSTREAM_MALFORMED"] {
        command.env_remove(name);
    }
    let envelope = match body {
        Body::Message(envelope) => envelope,
        Body::Malformed(why, fields) => {
            command.env("MILLSTREAM_HEADERS", "{}").env("MILLSTREAM_MALFORMED", why.replace('\0', "\\0"));
            return Ok(json::fields(fields).into());
        }
    };
    command.env("MILLSTREAM_HEADERS", json::headers(&envelope.headers)?);
    match &envelope.key {
        None => {}
        Some(key) if key.contains(&0) => drop(command.env("MILLSTREAM_KEY_BASE64", BASE64.encode(key))),
        Some(key) => drop(command.env("MILLSTREAM_KEY", OsStr::from_bytes(key))),
    }
    Ok(envelope.payload.clone())
}

/// Writes the payload to stdin. A command may end without reading all of it.
async fn feed(stdin: Option<ChildStdin>, payload: Bytes) -> io::Result<()> {
    let Some(mut stdin) = stdin else { return Ok(()) };
    match stdin.write_all(&payload).await {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

fn ended(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended in an unknown way".to_owned(),
    }
}

/// A command and its child processes, killed when it is dropped.
struct ProcessGroup<'a> {
    pid: Option<Pid>,
    watchdog: Option<&'a Watchdog>,
}

impl<'a> ProcessGroup<'a> {
    fn of(child: &Child, watchdog: Option<&'a Watchdog>) -> Self {
        let pid = child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        pid.iter().zip(watchdog).for_each(|(pid, watchdog)| watchdog.add(*pid));
        Self { pid, watchdog }
    }

    /// Lets it go on.
    fn release(&mut self) -> Option<Pid> {
        let pid = self.pid.take();
        pid.iter().zip(self.watchdog).for_each(|(pid, watchdog)| watchdog.remove(*pid));
        pid
    }
}

impl Drop for ProcessGroup<'_> {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            // Fails if the group is gone already, which is harmless.
            let _ = kill_process_group(pid, Signal::KILL);
            self.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use millstream::{Envelope, MessageId, TopicPartition};

    use super::*;

    fn view(body: Body) -> MessageView {
        let topic_partition = TopicPartition::new("orders".parse().expect("a name"), 3);
        MessageView { topic_partition, id: MessageId::new(7, 1), attempt: Some(2), body }
    }

    async fn ran(command: &str, envelope: Envelope) -> Result<(), String> {
        ran_for(command, Body::Message(envelope), &[]).await
    }

    async fn ran_for(command: &str, body: Body, more: &[(&str, String)]) -> Result<(), String> {
        let group = Some("billing".parse().expect("a name"));
        let timeout = Some(Duration::from_secs(2));
        let exec = Exec { command: command.into(), group, timeout, watchdog: None };
        exec.run(&view(body), more).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn a_command_has_the_message() {
        let envelope = Envelope::new(&b"pay\0load"[..]).with_key("k;'\" $x").with_header("a", "1");
        let says = r#"
            test "$MILLSTREAM_TOPIC/$MILLSTREAM_PARTITION $MILLSTREAM_GROUP" = "orders/3 billing" || exit 2
            test "$MILLSTREAM_ID $MILLSTREAM_TIME_MS $MILLSTREAM_ATTEMPT" = "7-1 7 2" || exit 3
            test "$MILLSTREAM_KEY" = "k;'\" \$x" || exit 4
            test "$MILLSTREAM_HEADERS" = '{"a":"1"}' || exit 5
            test "$(od -An -c | tr -d ' ')" = 'pay\0load' || exit 6
        "#;
        assert_eq!(ran(says, envelope).await, Ok(()));
        let binary = Envelope::new("").with_key(&b"a\0b"[..]);
        let says = r#"test "${MILLSTREAM_KEY-none} $MILLSTREAM_KEY_BASE64" = "none YQBi""#;
        assert_eq!(ran(says, binary).await, Ok(()));
    }

    #[tokio::test]
    async fn what_is_no_message_is_given_with_its_fields() {
        let body = Body::Malformed("no payload field".into(), vec![("a".into(), "1".into())]);
        let says = r#"
            test "$MILLSTREAM_MALFORMED/$MILLSTREAM_HEADERS/${MILLSTREAM_KEY-none}" = "no payload field/{}/none" || exit 2
            test "$(cat)" = '[["a","1"]]' || exit 3
            test "$MILLSTREAM_ERROR" = 'it\0broke' || exit 4
        "#;
        let more = [("MILLSTREAM_ERROR", "it\0broke".to_owned())];
        assert_eq!(ran_for(says, body, &more).await, Ok(()));
    }

    #[tokio::test]
    async fn how_it_ended_is_told() {
        let large = Envelope::new(vec![b'x'; 1 << 20]);
        assert_eq!(ran("exit 0", large.clone()).await, Ok(()), "it need not read what it is given");
        assert_eq!(ran("exit 3", large).await, Err("the command ended with exit code 3".into()));
        assert_eq!(
            ran("echo first >&2; echo 'no gate' >&2; echo >&2; exit 4", Envelope::new("")).await,
            Err("the command ended with exit code 4: no gate".into())
        );
        assert_eq!(
            ran("kill -9 $$", Envelope::new("")).await,
            Err("the command was killed by signal 9".into())
        );
        assert_eq!(
            ran("no-such-command 2> /dev/null", Envelope::new("")).await,
            Err("the command ended with exit code 127".into())
        );
    }

    #[tokio::test]
    async fn one_that_takes_too_long_is_killed_with_all_that_it_has_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("pid");
        let command = format!("sleep 300 & echo $! > {}; wait", file.display());
        let began = Instant::now();
        assert_eq!(ran(&command, Envelope::new("")).await, Err("the command took longer than 2 s".into()));
        assert!(began.elapsed() < Duration::from_secs(60));
        let pid: i32 = std::fs::read_to_string(&file).expect("it was started").trim().parse().expect("a pid");
        let pid = Pid::from_raw(pid).expect("a pid");
        let deadline = Instant::now() + Duration::from_secs(10);
        while is_running(pid) {
            assert!(Instant::now() < deadline, "it goes on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// A zombie, which is dead but not waited for, is not running.
    fn is_running(pid: Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| !stat.contains(") Z "))
    }
}
