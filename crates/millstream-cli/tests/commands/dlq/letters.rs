//! `millstream dlq consume`.

use std::fs;
use std::path::Path;
use std::process::Stdio;

use bytes::Bytes;
use millstream::crates::core::{Envelope, History, Reason, wire};
use millstream::{DeadLetter, Delivery, MessageId, Millstream, Topic, TopicPartition};
use rustix::process::Signal;
use serde_json::Value;

use crate::support::cli::{Cli, Ran};
use crate::support::envelope::lines;
use crate::support::feed::{Running, eventually};
use crate::support::pty::Pty;

const ORDERS: Topic<Bytes> = Topic::raw("orders").partitions(2);

/// One more dead letter of the group billing; even ones were rejected, and what is 9 is no message.
async fn bury(mq: &Millstream, number: u64) {
    let envelope = Envelope::new(format!("{{\"n\":{number}}}")).with_key(format!("k{number}"));
    let body = if number == 9 { vec![("a".into(), "1".into())] } else { wire::encode(&envelope) };
    let letter = DeadLetter {
        id: MessageId::ZERO,
        reason: if number.is_multiple_of(2) { Reason::Rejected } else { Reason::Exhausted },
        attempts: 3,
        error: format!("no gate {number}"),
        origin: MessageId::new(number + 1, 5),
        topic_partition: TopicPartition::new("orders".parse().expect("a name"), (number % 2) as u32),
        group: "billing".parse().expect("a name"),
        history: History::default(),
        body,
    };
    let (tp, group) = (letter.topic_partition.clone(), letter.group.clone());
    let put = mq
        .backend()
        .dead_letters()
        .expect("dead letters")
        .put(&tp, &group, &[letter], true)
        .await
        .expect("put");
    assert!(put[0].is_some());
}

async fn prepared(numbers: impl IntoIterator<Item = u64>) -> (Cli, Millstream) {
    let cli = Cli::new();
    let mq = cli.mq().await;
    mq.producer(ORDERS).await.expect("a topic");
    let consumer =
        mq.consumer(ORDERS, "billing").start(async |_: Delivery<Bytes>| {}).await.expect("started");
    consumer.shutdown().await;
    for number in numbers {
        bury(&mq, number).await;
    }
    (cli, mq)
}

fn args<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["dlq", "consume", "orders", "billing"], more].concat()
}

fn left(cli: &Cli) -> u64 {
    cli.json("dlq count orders billing")["count"].as_u64().expect("a count")
}

/// How many wait to be handled by their group again.
async fn back(mq: &Millstream) -> u64 {
    let stats = mq.stats(&ORDERS, "billing").await.expect("stats");
    stats.iter().map(|it| it.retrying).sum()
}

fn numbers(lines: &[Value]) -> Vec<u64> {
    let mut numbers: Vec<_> = lines.iter().map(|it| it["payload"]["n"].as_u64().expect("a number")).collect();
    numbers.sort_unstable();
    numbers
}

#[tokio::test]
async fn letters_are_printed_and_left_replayed_or_purged() {
    let (cli, mq) = prepared(0..6).await;
    let ran = cli.run(&args(&["--until-empty", "--json"])[..]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, "6 letters: 6 left\n"), "{ran:?}");
    let told = lines(&ran.stdout);
    assert_eq!(numbers(&told), (0..6).collect::<Vec<_>>());
    assert_eq!((&told[0]["then"], &told[0]["group"]), (&"leave".into(), &"billing".into()));
    let again = cli.run(&args(&["--until-empty"])[..]);
    assert_eq!(
        (again.stdout.as_str(), again.stderr.as_str()),
        ("", "0 letters\n"),
        "they are left for a while"
    );
    assert_eq!(left(&cli), 6);

    let (cli, mq_of_others) = prepared(0..6).await;
    let purged = cli.run(&args(&["--then", "purge", "--limit", "2", "--yes", "--json"])[..]);
    assert_eq!((purged.code, purged.stderr.as_str()), (0, "2 letters: 2 purged\n"), "{purged:?}");
    assert_eq!(lines(&purged.stdout).len(), 2);
    assert_eq!(left(&cli), 4);
    let replayed = cli.run(&args(&["--then", "replay", "--until-empty", "--yes"])[..]);
    assert_eq!(replayed.stderr, "4 letters: 4 replayed\n", "what was not handled was given back at once");
    assert_eq!(replayed.stdout.lines().count(), 4);
    let line = replayed.stdout.lines().next().expect("a line");
    assert!(line.contains("  replay  no gate ") && line.contains("{\"n\":"), "{line}");
    assert_eq!((left(&cli), back(&mq_of_others).await, back(&mq).await), (0, 4, 0));
}

#[tokio::test]
async fn nothing_is_done_that_was_not_confirmed() {
    let (cli, _mq) = prepared(0..3).await;
    for then in ["purge", "replay"] {
        assert!(cli.fails(2, &args(&["--then", then, "--until-empty"])[..]).contains("--yes"));
    }
    assert!(cli.fails(2, &args(&["--then", "ask"])[..]).contains("needs a terminal"));
    assert!(cli.fails(2, &args(&["--then", "ask", "--exec", "true"])[..]).contains("without --exec"));
    let dry = cli.run(&args(&["--then", "purge", "--dry-run", "--until-empty", "--json"])[..]);
    assert_eq!((dry.code, lines(&dry.stdout).len()), (0, 3), "{dry:?}");
    assert!(dry.stderr.starts_with("dry run: "), "{dry:?}");
    assert_eq!(left(&cli), 3);
    let again = cli.ok(&args(&["--until-empty", "--json"])[..]);
    assert_eq!(lines(&again).len(), 3, "nobody has them, and they were not left for later");
    assert!(
        cli.fails(1, "dlq consume orders shipping").contains("group shipping of topic orders does not exist")
    );
}

#[tokio::test]
async fn a_command_decides_for_each_letter() {
    let (cli, _mq) = prepared([0, 1, 2, 3, 9]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let seen = folder.path().join("seen");
    let command = format!(
        r#"echo "$MILLSTREAM_REASON $MILLSTREAM_ERROR $MILLSTREAM_ORIGIN $MILLSTREAM_KEY ${{MILLSTREAM_MALFORMED+malformed}} $(cat)" >> {}
           test "$MILLSTREAM_REASON" = rejected"#,
        seen.display(),
    );
    let more = ["--exec", &command, "--then", "purge", "--until-empty", "--yes", "--concurrency", "3"];
    let ran = cli.run(&args(&more)[..]);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{ran:?}");
    assert!(ran.stderr.contains(": the command ended with exit code 1: it is left"), "{ran:?}");
    assert!(ran.stderr.ends_with("5 letters: 2 purged, 3 left, 3 failed\n"), "{ran:?}");
    let mut told: Vec<_> = read(&seen).lines().map(str::to_owned).collect();
    told.sort();
    let line = |reason: &str, n: u64| format!("{reason} no gate {n} {}-5 k{n}  {{\"n\":{n}}}", n + 1);
    let malformed = "exhausted no gate 9 10-5  malformed [[\"a\",\"1\"]]".to_owned();
    assert_eq!(
        told,
        [line("exhausted", 1), line("exhausted", 3), malformed, line("rejected", 0), line("rejected", 2)]
    );
    assert_eq!(left(&cli), 3);
}

#[tokio::test]
async fn letters_that_come_are_handled_until_it_is_stopped() {
    let (cli, mq) = prepared([0]).await;
    let mut consume = Running::new(&cli, &args(&["--then", "purge", "--yes", "--json"]));
    assert_eq!(numbers(&lines(&consume.line())), [0]);
    bury(&mq, 1).await;
    assert_eq!(numbers(&lines(&consume.line())), [1], "it came while it ran");
    consume.signal(Signal::INT);
    assert_eq!(consume.ended(), Some(0), "it has no end of its own");
    assert_eq!(left(&cli), 0);

    bury(&mq, 2).await;
    let mut consume = Running::new(&cli, &args(&["--limit", "5", "--json"]));
    assert_eq!(numbers(&lines(&consume.line())), [2]);
    consume.signal(Signal::INT);
    assert_eq!(consume.ended(), Some(130), "that was not its end");
}

#[tokio::test]
async fn what_is_in_hand_is_given_back_by_a_second_signal() {
    let (cli, _mq) = prepared([0, 2, 4]).await;
    let folder = tempfile::tempdir().expect("a folder");
    let [began, go] = ["began", "go"].map(|name| folder.path().join(name));
    let command =
        format!("echo x >> {}; while ! test -e {}; do sleep 0.02; done", began.display(), go.display());
    let wait = ["--exec", &command, "--then", "purge", "--yes"];
    let mut consume = Running::new(&cli, &args(&wait));
    eventually("it has begun", async || read(&began).lines().count() == 1).await;
    consume.signal(Signal::INT);
    fs::write(&go, "").expect("written");
    assert_eq!(consume.ended(), Some(0));
    assert_eq!(
        (read(&began).lines().count(), left(&cli)),
        (1, 2),
        "what had begun has ended, and no other began"
    );

    fs::remove_file(&go).expect("removed");
    let mut consume = Running::new(&cli, &args(&wait));
    eventually("the next one has begun", async || read(&began).lines().count() == 2).await;
    eventually("it has ended", async || {
        consume.signal(Signal::INT);
        consume.is_over()
    })
    .await;
    assert_eq!(consume.ended(), Some(0));
    let others = cli.ok(&args(&["--until-empty", "--json"])[..]);
    assert_eq!(lines(&others).len(), 2, "nobody has to wait until its claim has run out");
}

#[tokio::test]
async fn what_could_not_be_printed_is_not_done() {
    let (cli, _mq) = prepared(0..3).await;
    let mut command = cli.command(&args(&["--then", "purge", "--yes"]));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("it runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("it ends").code(), Some(0), "whoever reads has enough");
    assert_eq!(left(&cli), 3);
    assert_eq!(Ran::of(&mut cli.command(&args(&["--until-empty", "--json"]))).stdout.lines().count(), 3);
}

#[tokio::test]
async fn somebody_is_asked_about_each() {
    let (cli, mq) = prepared([0, 2, 4, 6]).await;
    let mut terminal = Pty::run(&cli.command(&args(&["--then", "ask", "--until-empty"])), (120, 60));
    for (number, answer) in [(0, "?\rr\r"), (2, "p\r"), (4, "leave\r"), (6, "q\r")] {
        terminal.until_text(&format!("no gate {number}\n"));
        terminal
            .until("a question", |screen| screen.contents().trim_end().ends_with("[l/r/p/q]").then_some(()));
        terminal.press(answer);
    }
    terminal.until_text("3 letters: 1 replayed, 1 purged, 1 left");
    let (code, screen) = terminal.end();
    assert_eq!(code, 130, "it was to go on until nothing is left: {screen}");
    assert_eq!((left(&cli), back(&mq).await), (2, 1));
}

/// What stands in a file, if it is there.
fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
