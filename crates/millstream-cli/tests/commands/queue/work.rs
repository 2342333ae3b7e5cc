//! `millstream queue work`, and lists that are watched.

use rustix::process::Signal;
use serde_json::json;

use super::mails;
use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::{Running, eventually};

fn work<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["queue", "work", "mails"], more].concat()
}

#[tokio::test]
async fn a_command_does_the_tasks_that_are_due() {
    let cli = Cli::new();
    let folder = tempfile::tempdir().expect("a folder");
    let seen = folder.path().join("seen");
    let mails = mails(&cli).await;
    for number in 0..3 {
        let payload = number.to_string();
        let task = mails.schedule(&payload).id(format!("m-{number}")).key("k").header("trace", "7");
        task.await.expect("scheduled");
    }
    let command = format!(
        r#"echo "$MILLSTREAM_QUEUE $MILLSTREAM_ID $MILLSTREAM_ATTEMPT $MILLSTREAM_KEY $MILLSTREAM_HEADERS $(cat)" >> {}"#,
        seen.display()
    );
    let ran = cli.run(&work(&["--exec", &command, "--until-empty", "--concurrency", "2"])[..]);
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.as_str()), (0, "", "3 tasks done\n"), "{ran:?}");
    let told = std::fs::read_to_string(&seen).expect("written");
    let mut told: Vec<_> = told.lines().collect();
    told.sort_unstable();
    let line = |number: u32| format!("mails m-{number} 1 k {{\"trace\":\"7\"}} \"{number}\"");
    assert_eq!(told, [line(0), line(1), line(2)]);
    let counts = cli.json("queue counts mails");
    assert_eq!((&counts["waiting"], &counts["dead"]), (&json!(0), &json!(0)));
}

#[tokio::test]
async fn what_fails_is_tried_again_or_dies_and_is_told() {
    let cli = Cli::new();
    let mails = mails(&cli).await;
    mails.schedule(&"x".to_owned()).id("bad").await.expect("scheduled");
    let reject = "echo unknown address >&2; exit 65";
    let ran = cli.run(&work(&["--exec", reject, "--until-empty", "--fail-on-dead"])[..]);
    assert_eq!((ran.code, ran.stdout.as_str()), (3, ""), "{ran:?}");
    assert!(ran.stderr.contains("0 tasks done, 1 dead task\n"), "{ran:?}");
    assert!(ran.stderr.contains("`millstream queue dead list mails` shows the dead tasks"), "{ran:?}");
    let dead = cli.json("queue dead show mails bad");
    assert_eq!(dead["reason"], "rejected");
    assert!(dead["error"].as_str().is_some_and(|it| it.ends_with("exit code 65: unknown address")), "{dead}");

    mails.schedule(&"y".to_owned()).id("later").await.expect("scheduled");
    let ran = cli.run(
        &work(&["--exec", "exit 1", "--until-empty", "--retry-delay", "1h", "--max-retry-delay", "1h"])[..],
    );
    assert_eq!(ran.code, 0, "a retry that is due later does not keep it: {ran:?}");
    assert!(ran.stderr.contains("attempt 1: the command ended with exit code 1"), "{ran:?}");
    assert_eq!(cli.json("queue counts mails")["waiting"], 1);

    mails.schedule(&"z".to_owned()).id("now").await.expect("scheduled");
    let ran = cli.run(&work(&["--exec", "/nonexistent/command"])[..]);
    assert_eq!(ran.code, 1, "no task can be done: {ran:?}");
    let counts = cli.json("queue counts mails");
    assert_eq!((&counts["waiting"], &counts["claimed"]), (&json!(2), &json!(0)), "it was handed back");
    assert!(cli.fails(1, "queue work nope --exec true").contains("delay queue nope does not exist"));
    assert!(cli.fails(2, "queue work mails").contains("--exec"));
}

#[tokio::test]
async fn a_signal_lets_commands_end_and_a_second_one_hands_their_tasks_back() {
    let cli = Cli::new();
    let folder = tempfile::tempdir().expect("a folder");
    let [began, go] = ["began", "go"].map(|name| folder.path().join(name));
    let mails = mails(&cli).await;
    let command =
        format!("echo x >> {}; while ! test -e {}; do sleep 0.02; done", began.display(), go.display());
    let count = || std::fs::read_to_string(&began).map_or(0, |text| text.lines().count());
    mails.schedule(&"x".to_owned()).id("one").await.expect("scheduled");
    let mut running = Running::new(&cli, &work(&["--exec", &command]));
    eventually("it has begun", async || count() == 1).await;
    running.signal(Signal::INT);
    std::fs::write(&go, "").expect("written");
    assert_eq!(running.ended(), Some(0));
    assert_eq!(cli.json("queue counts mails")["waiting"], 0, "it was done");

    std::fs::remove_file(&go).expect("removed");
    mails.schedule(&"y".to_owned()).id("two").await.expect("scheduled");
    let mut running = Running::new(&cli, &work(&["--exec", &command]));
    eventually("the next one has begun", async || count() == 2).await;
    eventually("it has ended", async || {
        running.signal(Signal::INT);
        running.is_over()
    })
    .await;
    assert_eq!(running.ended(), Some(0));
    let waits = cli.json("queue counts mails");
    assert_eq!((&waits["waiting"], &waits["claimed"]), (&json!(1), &json!(0)), "others can have it at once");
}

#[tokio::test]
async fn lists_of_queues_are_watched() {
    let cli = Cli::new();
    let mails = mails(&cli).await;
    let mut watch = Running::new(&cli, &["queue", "list", "--watch=0.1", "--json"]);
    let waiting = |line: &str| envelope::data(line)[0]["waiting"].take();
    assert_eq!(waiting(&watch.line()), 0);
    mails.schedule(&"x".to_owned()).id("one").await.expect("scheduled");
    while waiting(&watch.line()) != 1 {}
    watch.signal(Signal::INT);
    assert_eq!(watch.ended(), Some(0));
    let missing = cli.fails(1, "queue counts nope --watch --json");
    assert!(missing.contains("delay queue nope does not exist"), "{missing}");
}
