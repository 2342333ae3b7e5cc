//! `millstream consume`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;

use millstream::{Millstream, Topic};
use rustix::process::Signal;

use crate::support::cli::Cli;
use crate::support::envelope::lines;
use crate::support::feed::{Running, eventually, topic};

/// A topic with messages 0 to `count`, each its own key.
async fn numbers(mq: &Millstream, count: u32) {
    let producer = topic(mq, "numbers", 2).await;
    for n in 0..count {
        let payload = bytes::Bytes::from(n.to_string());
        producer.send(&payload).key(n.to_string()).header("n", n.to_string()).await.expect("sent");
    }
}

/// Number of messages that the group has not settled: unread, in flight, or waiting for a retry.
async fn left(mq: &Millstream) -> u64 {
    let stats = mq.stats(&Topic::raw("numbers"), "g").await.expect("stats");
    stats.iter().map(|it| it.lag.expect("known") + it.pending + it.retrying).sum()
}

fn sorted(text: &str) -> Vec<u64> {
    let mut numbers: Vec<u64> = text.lines().map(|line| line.parse().expect("a number")).collect();
    numbers.sort_unstable();
    numbers
}

fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["consume", "numbers", "--group", "g"], more].concat()
}

#[tokio::test]
async fn what_is_printed_is_done_and_nothing_else() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    numbers(&mq, 20).await;
    let first = cli.ok(&args(&["--limit", "7", "--format", "payload"])[..]);
    assert_eq!(first.lines().count(), 7);
    assert_eq!(left(&mq).await, 13, "what was read ahead is not done");
    let rest = cli.run(&args(&["--until-empty", "--format", "payload"])[..]);
    assert_eq!((rest.code, rest.stderr.as_str()), (0, "13 messages done\n"), "{rest:?}");
    assert_eq!(sorted(&format!("{first}{}", rest.stdout)), (0..20).collect::<Vec<_>>(), "each once");
    assert_eq!(left(&mq).await, 0);
    let other = cli.ok(["consume", "numbers", "-g", "other", "--until-empty", "--from", "latest", "--json"]);
    assert_eq!(other, "", "a group that begins at the end");
    let json = lines(&cli.ok("consume numbers -g third --limit 1 --json"));
    assert_eq!((&json[0]["attempt"], &json[0]["key"]), (&1.into(), &json[0]["payload"]));
    assert!(cli.fails(1, "consume nothing -g g").contains("topic nothing does not exist"));
}

#[tokio::test]
async fn what_could_not_be_printed_is_not_done() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    numbers(&mq, 5).await;
    let mut command = cli.command(&args(&["--format", "payload"]));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "whoever reads has enough");
    assert_eq!(left(&mq).await, 5);
    let all = lines(&cli.ok(&args(&["--until-empty", "--json"])[..]));
    assert_eq!(all.len(), 5);
    assert!(all.iter().all(|line| line["attempt"] == 1), "no attempt was used up: {all:?}");
}

#[tokio::test]
async fn a_command_decides_what_is_done() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    numbers(&mq, 6).await;
    let folder = tempfile::tempdir().expect("a folder");
    let seen = folder.path().join("seen");
    // 3 fails always, 4 once.
    let command = format!(
        r#"read -r n; echo "$n $MILLSTREAM_KEY $MILLSTREAM_ATTEMPT $MILLSTREAM_HEADERS $MILLSTREAM_GROUP" >> {}
           test "$n" != 3 && test "$n$MILLSTREAM_ATTEMPT" != 41"#,
        seen.display(),
    );
    let more = ["--exec", &command, "--max-attempts", "2", "--until-empty", "--concurrency", "3"];
    let ran = cli.run(&args(&more)[..]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
    assert!(ran.stderr.contains(": attempt 1: the command ended with exit code 1"), "{ran:?}");
    let end = "5 messages done, 2 failed attempts, 1 dead letter\n`millstream dlq list numbers g` shows the dead letters\n";
    assert!(ran.stderr.ends_with(end), "{ran:?}");
    let mut lines: Vec<String> = read(&seen).lines().map(str::to_owned).collect();
    lines.sort();
    let line = |n: u32, attempt: u32| format!("{n} {n} {attempt} {{\"n\":\"{n}\"}} g");
    let expected =
        [(0, 1), (1, 1), (2, 1), (3, 1), (3, 2), (4, 1), (4, 2), (5, 1)].map(|(n, it)| line(n, it));
    assert_eq!(lines, expected);
    let dead = mq
        .dead_letters(&Topic::raw("numbers"), "g")
        .await
        .expect("the group")
        .list(10)
        .await
        .expect("a page");
    assert_eq!(dead.len(), 1);
    assert_eq!((dead[0].attempts, dead[0].error.as_str()), (2, "the command ended with exit code 1"));
}

#[tokio::test]
async fn a_command_can_reject_a_message_at_once() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    numbers(&mq, 3).await;
    let command = "read -r n; test $n != 1 || { echo 'no such airport' >&2; exit 65; }";
    let ran = cli.run(&args(&["--exec", command, "--until-empty", "--fail-on-dead"])[..]);
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.stderr.contains("2 messages done, 1 dead letter\n"), "{ran:?}");
    let dead = cli.json("dlq list numbers g");
    assert!(dead.to_string().contains("exit code 65: no such airport"), "{dead}");

    numbers(&mq, 1).await;
    let ran =
        cli.run(&args(&["--exec", "exit 9", "--reject-code", "9", "--until-empty", "--prefetch", "1"])[..]);
    assert_eq!(ran.code, 0, "only --fail-on-dead makes it a failure: {ran:?}");
    assert!(ran.stderr.contains("0 messages done, 1 dead letter\n"), "{ran:?}");
}

/// 126 and 127 are of the shell: no message is at fault.
#[tokio::test]
async fn a_command_that_cannot_be_run_costs_no_attempt() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    numbers(&mq, 4).await;
    for command in ["no-such-command", "/"] {
        let more = ["--exec", command, "--max-attempts", "1", "--until-empty", "--concurrency", "4"];
        let ran = cli.run(&args(&more)[..]);
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.stderr.contains("error: the command ended with exit code 12"), "{ran:?}");
    }
    let ran = cli
        .run(&args(&["--exec", "test $MILLSTREAM_ATTEMPT = 1", "--max-attempts", "1", "--until-empty"])[..]);
    assert!(ran.stderr.ends_with("4 messages done\n"), "each is handled, as its first attempt: {ran:?}");
}

#[tokio::test]
async fn what_a_command_says_on_stderr_is_passed_on_and_is_the_reason() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    numbers(&mq, 1).await;
    let command = "echo first >&2; echo 'timeout: no gate' >&2; exit 7";
    let times = ["--max-attempts", "2", "--retry-delay", "1ms", "--max-retry-delay", "1ms", "--until-empty"];
    let ran = cli.run(&args(&[&["--exec", command][..], &times].concat())[..]);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.stderr.starts_with("created group g of numbers at earliest\n"), "{ran:?}");
    assert_eq!(ran.stderr.matches("first\ntimeout: no gate\n").count(), 2, "{ran:?}");
    let dead = cli.json("dlq list numbers g --error timeout");
    assert!(dead.to_string().contains("the command ended with exit code 7: timeout: no gate"), "{dead}");
}

#[tokio::test]
async fn who_waits_for_a_paused_group_says_so() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    numbers(&mq, 1).await;
    cli.ok("group create numbers g");
    cli.ok("group pause numbers g");
    let more = args(&["--until-empty", "--format", "payload", "--member-id", "desk-1"]);
    let mut command = cli.command(&more);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut said = String::new();
    let mut stderr = BufReader::new(child.stderr.take().expect("a pipe"));
    stderr.read_line(&mut said).expect("text");
    assert!(said.starts_with("group g is paused since 20"), "{said}");
    assert!(said.ends_with(": waiting until `millstream group resume numbers g`\n"), "{said}");
    let members = cli.json("owners numbers g")["members"].to_string();
    assert!(members.contains("\"desk-1\""), "{members}");
    cli.ok("group resume numbers g");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"0\n"[..]));
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).expect("text");
    assert!(rest.ends_with("1 message done\n"), "{rest}");
}

#[tokio::test]
async fn a_member_is_told_by_its_machine_and_process() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    numbers(&mq, 1).await;
    let mut consume = Running::new(&cli, &args(&["--format", "payload"]));
    consume.line();
    let owners = cli.ok("owners numbers g");
    let name = owners.lines().nth(1).and_then(|line| line.split(' ').next()).expect("a member");
    assert!(name.contains(&format!("-{}-", consume.child.id())) && name.len() < 80, "{owners}");
    consume.signal(Signal::INT);
    assert_eq!(consume.ended(), Some(0));
}

#[tokio::test]
async fn a_signal_lets_a_command_end_and_the_second_one_does_not() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    numbers(&mq, 2).await;
    let folder = tempfile::tempdir().expect("a folder");
    let [began, go, ended] = ["began", "go", "ended"].map(|name| folder.path().join(name));
    let command = format!(
        "echo x >> {}; while ! test -e {}; do sleep 0.02; done; echo x >> {}",
        began.display(),
        go.display(),
        ended.display(),
    );
    let mut consume = Running::new(&cli, &args(&["--exec", &command]));
    eventually("it has begun", async || read(&began).lines().count() == 1).await;
    consume.signal(Signal::INT);
    fs::write(&go, "").expect("written");
    assert_eq!(consume.ended(), Some(0));
    assert_eq!(
        (read(&began).lines().count(), read(&ended).lines().count()),
        (1, 1),
        "it ended, and no other began"
    );
    assert_eq!(left(&mq).await, 1, "it is done");

    fs::remove_file(&go).expect("removed");
    let mut consume = Running::new(&cli, &args(&["--exec", &command]));
    eventually("the next one has begun", async || read(&began).lines().count() == 2).await;
    consume.signal(Signal::TERM);
    // Its partitions are released only when the command ends, or at the second signal; the first has to arrive before.
    eventually("it was told", async || {
        consume.signal(Signal::INT);
        consume.is_over()
    })
    .await;
    // A third signal may have reached it while it ended: that one does not wait.
    let code = consume.ended();
    assert!(matches!(code, Some(0 | 130)), "{code:?}");
    assert_eq!((read(&ended).lines().count(), left(&mq).await), (1, 1), "it was cut short, and is not done");
}

#[tokio::test]
async fn stopped_before_its_end_it_says_so_and_gives_back_what_it_had() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    numbers(&mq, 3).await;
    let mut consume = Running::new(&cli, &args(&["--limit", "5", "--format", "payload"]));
    for _ in 0..3 {
        consume.line();
    }
    consume.signal(Signal::INT);
    assert_eq!(consume.ended(), Some(130));
    assert_eq!(left(&mq).await, 0, "what was printed is done");

    let producer = topic(&mq, "numbers", 2).await;
    producer.send(&bytes::Bytes::from("3")).await.expect("sent");
    let folder = tempfile::tempdir().expect("a folder");
    let began = folder.path().join("began");
    let command = format!("echo x >> {}; sleep 300", began.display());
    let mut consume = Running::new(&cli, &args(&["--exec", &command, "--until-empty"]));
    eventually("it has begun", async || read(&began).lines().count() == 1).await;
    eventually("it was told", async || {
        consume.signal(Signal::INT);
        consume.is_over()
    })
    .await;
    assert_eq!(consume.ended(), Some(130));
    let other = lines(&cli.ok(&args(&["--until-empty", "--json"])[..]));
    assert_eq!(
        (&other[0]["payload"], &other[0]["attempt"]),
        (&"3".into(), &1.into()),
        "no attempt was used up"
    );
}

/// What stands in a file, if it is there.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
