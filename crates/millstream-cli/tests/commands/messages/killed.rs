//! What becomes of commands of `--exec` when the process that runs them is killed.

use std::path::Path;
use std::process::Stdio;

use bytes::Bytes;
use millstream::delay::DelayQueue;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::support::cli::Cli;
use crate::support::feed::{Running, eventually, topic};
use crate::support::seed;

/// A zombie, which is dead but not waited for, is not running.
fn is_running(pid: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

/// Reads ids of processes, once there are so many.
async fn pids(file: &Path, count: usize) -> Vec<Pid> {
    let read = || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let complete = text.rfind('\n').map_or("", |end| &text[..end]);
        complete.lines().map(|line| Pid::from_raw(line.parse().expect("a pid")).expect("a pid")).collect()
    };
    eventually("they are started", async || {
        let pids: Vec<Pid> = read();
        pids.len() == count
    })
    .await;
    read()
}

/// How the process dies.
#[derive(Clone, Copy, Debug)]
enum Death {
    Alone,
    WithItsGroup,
    /// A service manager has sent its signal to the watchdog as well before.
    AfterSignalsToAll,
}

/// Returns the children of a process, whichever of its threads has started them.
fn children(of: u32) -> Vec<Pid> {
    let all = std::fs::read_dir("/proc").expect("processes").filter_map(|entry| {
        let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let parent: u32 = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
        (parent == of).then(|| Pid::from_raw(pid)).flatten()
    });
    all.collect()
}

/// Kills a command that runs two commands at a time, each with a child of its own.
async fn killed(cli: &Cli, args: &[&str], death: Death) {
    use std::os::unix::process::CommandExt;

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("pids");
    // One that has ended, and has left a process behind on purpose, comes first.
    let command = format!(
        "sleep 600 & echo $! >> {0}; test \"$(wc -l < {0})\" = 1 && exit; echo $$ >> {0}; trap '' TERM HUP; wait",
        file.display()
    );
    let mut running = cli.command(&[args, &["--exec", &command]].concat());
    running.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut running = running.spawn().expect("it runs");
    let (parent, pids) = (Pid::from_child(&running), pids(&file, 3).await);
    let (left, ours) = pids.split_at(1);
    match death {
        Death::Alone => kill_process(parent, Signal::KILL),
        Death::WithItsGroup => kill_process_group(parent, Signal::KILL),
        Death::AfterSignalsToAll => {
            for pid in children(running.id()) {
                kill_process(pid, Signal::TERM).expect("it runs");
                kill_process(pid, Signal::HUP).expect("it runs");
            }
            kill_process(parent, Signal::KILL)
        }
    }
    .expect("it runs");
    running.wait().expect("it ends");
    eventually("its commands have ended", async || !ours.iter().any(|pid| is_running(*pid))).await;
    assert!(is_running(left[0]), "{death:?}: what a command has left running on purpose goes on");
    kill_process(left[0], Signal::KILL).expect("it runs");
}

#[tokio::test]
async fn no_command_outlives_the_process_that_runs_it() {
    for death in [Death::Alone, Death::WithItsGroup, Death::AfterSignalsToAll] {
        let cli = Cli::new();
        let mq = cli.mq().await;
        let producer = topic(&mq, "numbers", 1).await;
        for _ in 0..2 {
            producer.send(&Bytes::from_static(b"x")).await.expect("sent");
        }
        killed(&cli, &["consume", "numbers", "-g", "g"], death).await;
        let queue = DelayQueue::raw("mails").open(mq.backend()).await.expect("a queue");
        for id in ["one", "two"] {
            queue.schedule(&Bytes::from_static(b"x")).id(id).await.expect("scheduled");
        }
        killed(&cli, &["queue", "work", "mails"], death).await;
        seed::orders(&mq, 2).await;
        seed::handled(&mq, 2, &[0, 1]).await;
        killed(&cli, &["dlq", "consume", "orders", "billing", "--then", "leave"], death).await;
    }
}

/// Ends by itself when there is nothing left to watch.
#[tokio::test]
async fn nothing_is_left_of_a_command_that_has_ended() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let producer = topic(&mq, "numbers", 1).await;
    producer.send(&Bytes::from_static(b"x")).await.expect("sent");
    let folder = tempfile::tempdir().expect("a folder");
    let [began, go] = ["began", "go"].map(|name| folder.path().join(name));
    let command =
        format!("echo > {}; while ! test -e {}; do sleep 0.02; done", began.display(), go.display());
    let mut running =
        Running::new(&cli, &["consume", "numbers", "-g", "g", "--limit", "1", "--exec", &command]);
    eventually("it has begun", async || began.exists()).await;
    let pids = children(running.child.id());
    assert_eq!(pids.len(), 2, "the command, and what watches it");
    std::fs::write(go, "").expect("written");
    assert_eq!(running.ended(), Some(0));
    assert!(!pids.iter().any(|pid| is_running(*pid)), "{pids:?}");
}
