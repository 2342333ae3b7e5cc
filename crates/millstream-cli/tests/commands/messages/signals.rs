//! Signals as wrappers send them, to commands that hold leases.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream::Millstream;
use millstream::delay::DelayQueue;
use rustix::process::Signal;

use crate::support::cli::{Cli, MILLSTREAM};
use crate::support::feed::{Running, eventually, topic};

const TERM: Signal = Signal::TERM;
const INT: Signal = Signal::INT;
const HUP: Signal = Signal::HUP;
const CONT: Signal = Signal::CONT;

/// What arrives for one stop.
const STOPS: &[(&str, &[Signal])] = &[
    ("kill", &[TERM]),
    ("timeout: to its child, and to the process group", &[TERM, TERM]),
    ("npm on a terminal: with the process group, and again from npm", &[INT, INT]),
    ("a process manager on a terminal: with the group, and then its own", &[INT, TERM]),
    ("nested wrappers", &[TERM, TERM, TERM, TERM]),
    ("a service manager with SendSIGHUP", &[TERM, HUP]),
    ("timeout, which also continues what is stopped", &[TERM, CONT, TERM, CONT]),
    ("a terminal that is closed", &[HUP]),
    ("a terminal that is closed, from its shell too", &[HUP, HUP, CONT]),
];

/// Sends all of them within the time in which they are one. Returns `false` if this machine was too busy for that.
fn send(running: &Running, signals: &[Signal]) -> bool {
    let began = Instant::now();
    for signal in signals {
        running.signal(*signal);
        // Two that arrive at the same time would be one for the system already.
        while began.elapsed() < Duration::from_millis(1) {
            std::hint::spin_loop();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    began.elapsed() < Duration::from_millis(250)
}

/// A command for `--exec` that has begun when there is a file, and ends when there is another one.
fn until_told(folder: &Path) -> String {
    let (began, go) = (folder.join("began"), folder.join("go"));
    format!("echo > {}; while ! test -e {}; do sleep 0.02; done", began.display(), go.display())
}

/// Starts a command, waits until it works on something, stops it, and lets it end. Returns whether the signals were one stop.
async fn stopped(cli: &Cli, args: &[&str], signals: &[Signal]) -> bool {
    let folder = tempfile::tempdir().expect("a folder");
    let command = until_told(folder.path());
    let mut running = Running::new(cli, &[args, &["--exec", &command]].concat());
    eventually("it has begun", async || folder.path().join("began").exists()).await;
    let is_one = send(&running, signals);
    std::fs::write(folder.path().join("go"), "").expect("written");
    let code = running.ended();
    assert!(code == Some(0) || !is_one, "{args:?} {signals:?}: {code:?}");
    is_one
}

async fn owned(mq: &Millstream) -> usize {
    let (topic, group) = ("numbers".parse().expect("a name"), "g".parse().expect("a name"));
    let owners = mq.admin().owners(&topic, &group).await.expect("owners");
    owners.by_owner().len()
}

#[tokio::test]
async fn one_stop_lets_a_command_end_and_leaves_no_lease() {
    for (wrapper, signals) in STOPS {
        let cli = Cli::new();
        let mq = cli.mq().await;
        let producer = topic(&mq, "numbers", 2).await;
        producer.send(&Bytes::from_static(b"x")).await.expect("sent");
        if stopped(&cli, &["consume", "numbers", "-g", "g"], signals).await {
            let stats = mq.stats(&millstream::Topic::raw("numbers"), "g").await.expect("stats");
            let left: u64 = stats.iter().map(|it| it.lag.expect("known") + it.pending + it.retrying).sum();
            assert_eq!(
                (left, owned(&mq).await),
                (0, 0),
                "{wrapper}: the message is done, and nobody has a lease"
            );
        }
    }
}

#[tokio::test]
async fn one_stop_of_what_only_prints_leaves_no_lease() {
    for (wrapper, signals) in STOPS {
        let cli = Cli::new();
        let mq = cli.mq().await;
        let producer = topic(&mq, "numbers", 2).await;
        producer.send(&Bytes::from_static(b"x")).await.expect("sent");
        let mut running = Running::new(&cli, &["consume", "numbers", "-g", "g", "--format", "payload"]);
        assert_eq!(running.line(), "x\n", "{wrapper}");
        if send(&running, signals) {
            assert_eq!((running.ended(), owned(&mq).await), (Some(0), 0), "{wrapper}");
        }
    }
}

#[tokio::test]
async fn one_stop_lets_the_command_of_a_task_or_a_letter_end() {
    for (wrapper, signals) in STOPS {
        let cli = Cli::new();
        let mq = cli.mq().await;
        let queue = DelayQueue::raw("mails").open(mq.backend()).await.expect("a queue");
        queue.schedule(&Bytes::from_static(b"x")).id("one").await.expect("scheduled");
        if stopped(&cli, &["queue", "work", "mails"], signals).await {
            assert_eq!(cli.json("queue counts mails")["waiting"], 0, "{wrapper}: it is done");
        }
        crate::support::seed::orders(&mq, 1).await;
        crate::support::seed::handled(&mq, 1, &[0]).await;
        if stopped(&cli, &["dlq", "consume", "orders", "billing", "--then", "purge", "--yes"], signals).await
        {
            assert_eq!(cli.json("dlq count orders billing")["count"], 0, "{wrapper}: it is done");
        }
    }
}

/// `nohup` ignores the signal of a terminal that is closed: it is not for us then.
#[tokio::test]
async fn a_signal_that_is_ignored_from_the_start_is_no_stop() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let producer = topic(&mq, "numbers", 1).await;
    producer.send(&Bytes::from_static(b"1")).await.expect("sent");
    // The same process, once the shell has become it.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$0\" consume numbers -g g --format payload", MILLSTREAM]);
    command.env("MILLSTREAM_URL", &cli.url).env("MILLSTREAM_NAMESPACE", &cli.namespace);
    let mut running = Running::of(command.env("XDG_CONFIG_HOME", "/nonexistent"));
    assert_eq!(running.line(), "1\n");
    running.signal(HUP);
    producer.send(&Bytes::from_static(b"2")).await.expect("sent");
    assert_eq!(running.line(), "2\n", "it goes on");
    running.signal(TERM);
    assert_eq!(running.ended(), Some(0));
}
