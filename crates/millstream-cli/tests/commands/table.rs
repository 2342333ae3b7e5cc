//! What holds for every command, whatever it does: a line of a table for each, on a place where everything is hostile.
//!
//! Every command prints JSON on request; its output has no control sequences; a command that changes something has a
//! dry run that changes nothing; and a command that cannot be undone does nothing without a confirmation.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use millstream::crates::core::{Envelope, History, Reason, wire};
use millstream::delay::{DelayQueue, Task};
use millstream::{
    DeadLetter, Delivery, Fixed, MessageId, Millstream, Never, Outcome, PackCompression, Packing, Reply,
    Retention, StepError, Topic, TopicPartition,
};

use crate::help;
use crate::support::cli::{Cli, Ran, bare};
use crate::support::envelope::{self, Line};
use crate::support::feed::eventually;

/// What nothing may be left of in what people see.
const NASTY: &str = "\x1b]0;owned\x07\x1b[31m\u{9b}2J\u{202e}";

/// The same of an id, which has no control characters.
const TURNED: &str = "turned\u{202e}round";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// It looks.
    Looks,
    /// It changes something, and has a dry run.
    Changes,
    /// The same, and it asks before.
    Asks,
}
use Does::{Asks, Changes, Looks};

/// Every command that talks to the queue, with arguments that fit the place. Not those that make something of the command
/// itself (acl, completions, man, schema), nor `plan`, which computes (plan.rs).
const COMMANDS: &[(&str, &str, Does)] = &[
    ("topic list", "", Looks),
    ("topic describe", "orders", Looks),
    ("topic create", "more --partitions 2", Changes),
    ("topic alter", "orders --retention consumed", Asks),
    ("topic expand", "orders 4", Asks),
    ("topic trim", "orders --retention length:1", Asks),
    ("topic train", "packed", Changes),
    ("topic delete", "orders", Asks),
    ("group list", "orders", Looks),
    ("group describe", "orders billing", Looks),
    ("group create", "orders more", Changes),
    ("group reset", "orders billing --to earliest", Looks),
    ("group positions", "orders billing", Looks),
    ("group pause", "orders billing", Changes),
    ("group resume", "orders billing", Changes),
    ("group delete", "orders billing", Asks),
    ("group pins", "orders", Looks),
    ("group expire", "orders --idle 1s", Changes),
    ("lag", "", Looks),
    ("owners", "orders billing", Looks),
    ("pending", "orders billing", Looks),
    ("retries list", "orders waiting", Looks),
    ("retries errors", "orders waiting", Looks),
    ("retries now", "orders waiting --all", Asks),
    ("retries kill", "orders waiting --all", Asks),
    ("find", "LETTER", Looks),
    ("message follow", "RESULT", Looks),
    ("message status", "RESULT", Looks),
    ("message cancel", "RESULT", Changes),
    ("message steps", "STEPS", Looks),
    ("message signal", "STEPS approved --value 1", Changes),
    ("memory", "", Looks),
    ("dlq list", "orders billing", Looks),
    ("dlq show", "orders billing LETTER", Looks),
    ("dlq count", "orders billing --reasons", Looks),
    ("dlq errors", "orders billing", Looks),
    ("dlq consume", "orders billing --then purge --until-empty", Asks),
    ("dlq export", "orders billing", Looks),
    ("dlq import", "orders billing -", Changes),
    ("dlq replay", "orders billing --all", Asks),
    ("dlq purge", "orders billing --all", Asks),
    ("dlq trim", "orders billing --retention age:1ms", Asks),
    ("verify", "", Looks),
    ("doctor", "", Looks),
    ("produce", "orders", Changes),
    ("tail", "orders", Looks),
    ("consume", "orders --group reading --until-empty", Looks),
    ("delayed list", "orders", Looks),
    ("delayed cancel", "orders ID", Asks),
    ("delayed reschedule", "orders ID --delay 2h", Changes),
    ("delayed now", "orders ID", Changes),
    ("schedule list", "orders", Looks),
    ("schedule show", "orders ID", Looks),
    ("schedule add", "orders daily --every 1h --payload x", Changes),
    ("schedule pause", "orders ID", Changes),
    ("schedule resume", "orders ID", Changes),
    ("schedule run", "orders ID", Changes),
    ("schedule remove", "orders ID", Asks),
    ("schedule next", "orders", Looks),
    ("queue list", "", Looks),
    ("queue create", "more --shards 2", Changes),
    ("queue alter", "mails --dead-letter-retention length:5", Asks),
    ("queue delete", "mails", Asks),
    ("queue counts", "mails", Looks),
    ("queue tasks", "mails", Looks),
    ("queue show", "mails ID", Looks),
    ("queue pause", "mails", Changes),
    ("queue resume", "mails", Changes),
    ("queue add", "mails --payload x", Changes),
    ("queue cancel", "mails ID", Asks),
    ("queue reschedule", "mails ID --delay 2h", Changes),
    ("queue now", "mails ID", Changes),
    ("queue work", "mails --exec true --until-empty", Looks),
    ("queue dead list", "mails", Looks),
    ("queue dead show", "mails dead", Looks),
    ("queue dead errors", "mails", Looks),
    ("queue dead export", "mails", Looks),
    ("queue dead edit", "mails dead --set-payload x", Changes),
    ("queue dead replay", "mails --all", Asks),
    ("queue dead purge", "mails --all", Asks),
    ("queue dead trim", "mails --retention age:1ms", Asks),
    ("limits list", "", Looks),
    ("limits show", "tenant:acme", Looks),
    ("limits why", "orders billing", Looks),
    ("limits rules", "", Looks),
    ("limits simulate", "tenant:acme=2/s --rule tenant=1", Looks),
    ("limits set", "tenant:acme 2", Changes),
    ("limits unset", "tenant", Changes),
    ("batch list", "reports", Looks),
    ("batch show", "BATCH", Looks),
    ("batch seal", "BATCH", Changes),
    ("batch cancel", "BATCH", Changes),
    ("batch close", "BATCH", Changes),
    ("limits close", "mail-api 1m", Changes),
    ("limits open", "mail-api", Changes),
    ("lock list", "", Looks),
    ("lock show", "invoice:1", Looks),
    ("lock release", "invoice:1", Asks),
    ("leader show", "scheduler", Looks),
    #[cfg(feature = "top")]
    ("top", "--once", Looks),
    #[cfg(feature = "dashboard")]
    ("dashboard", "--routes", Looks),
    #[cfg(feature = "exporter")]
    ("exporter", "--once", Looks),
    #[cfg(feature = "keda")]
    ("scaler", "--check topic=orders,group=billing,targetValue=100", Looks),
];

fn commands() -> impl Iterator<Item = (&'static str, &'static str, Does)> {
    COMMANDS.iter().copied()
}

/// A topic and a delay queue with something of everything, and with something hostile wherever anybody can put it.
async fn place() -> (Cli, Millstream, Ids) {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let orders = Topic::<Bytes>::raw("orders").partitions(2).retention(Retention::Keep);
    let producer = mq.producer(orders.clone()).await.expect("a topic");
    let hostile = || Bytes::from(NASTY.to_owned());
    for _ in 0..3 {
        producer.send(&hostile()).key(NASTY).header(NASTY, NASTY).await.expect("sent");
    }
    producer.send(&hostile()).key(NASTY).delay(Duration::from_secs(3_600)).id(TURNED).await.expect("sent");
    let recurring = mq.recurring(&orders).await.expect("the topic");
    recurring.id(TURNED).cron("0 9 * * *", "UTC").payload(&hostile()).await.expect("it recurs");

    let hours = Fixed::new(Duration::from_secs(7_200));
    let waiting = mq.consumer(orders.clone(), "waiting").retry(hours);
    let waiting = waiting.start(async |_: Delivery<Bytes>| Outcome::retry(NASTY)).await.expect("a consumer");
    eventually("all wait", async || waiting.report().retried == 3).await;
    waiting.shutdown().await;
    let consumer = mq.consumer(orders, "billing");
    let consumer =
        consumer.start(async |_: Delivery<Bytes>| Outcome::dead_letter(NASTY)).await.expect("started");
    eventually("all are dead", async || consumer.report().dead == 3).await;
    consumer.shutdown().await;
    let letter = DeadLetter {
        id: MessageId::ZERO,
        reason: Reason::parse(NASTY),
        attempts: 2,
        error: NASTY.to_owned(),
        origin: MessageId::new(1, 1),
        topic_partition: TopicPartition::new("orders".parse().expect("a name"), 0),
        group: "billing".parse().expect("a name"),
        history: History::parse(&format!("5 1 {NASTY}")),
        body: wire::encode(&Envelope::new(hostile()).with_key(NASTY).with_header(NASTY, NASTY)),
    };
    let (tp, group) = (letter.topic_partition.clone(), letter.group.clone());
    let put = mq
        .backend()
        .dead_letters()
        .expect("dead letters")
        .put(&tp, &group, &[letter], true)
        .await
        .expect("put");

    let mails = DelayQueue::<String>::new("mails").open(mq.backend()).await.expect("a queue");
    mails.schedule(&NASTY.to_owned()).id("dead").await.expect("scheduled");
    let worker = mails.worker().retry(Never);
    let worker =
        worker.start(async |_: Task<String>| Err::<(), String>(NASTY.to_owned())).await.expect("a worker");
    eventually("it is dead", async || mails.dead().count().await.expect("a count") == 1).await;
    worker.shutdown().await;
    let hour = Duration::from_secs(3_600);
    mails.schedule(&NASTY.to_owned()).id(TURNED).delay(hour).await.expect("scheduled");
    let packing = Packing::new().compression(PackCompression::ZstdDictionary);
    let packed = mq.producer(Topic::<Bytes>::raw("packed").packed(packing)).await.expect("a topic");
    for n in 0..200 {
        packed
            .send(&Bytes::from(format!("{NASTY} some text that all messages have, and {n}")))
            .await
            .expect("sent");
    }
    cli.ok("limits set tenant 2");
    let held = mq.lock("invoice:1").owner(TURNED).ttl(hour).acquire().await.expect("acquired");
    // Held for as long as the test runs.
    std::mem::forget(held);
    let asked = Topic::<String>::new("asked");
    let answering = mq.consumer(&asked, "answering").retry(Never).start(async |order: Delivery<String>| {
        order.progress(0.5, NASTY);
        Err::<Reply, _>(NASTY)
    });
    let answering = answering.await.expect("a consumer");
    let (asks, order) = (mq.producer(&asked).await.expect("a topic"), String::new());
    let requested = asks.send(&order).reply::<u64>().begin().await.expect("sent");
    requested.within(Duration::from_secs(60)).await.expect_err("it failed");
    answering.shutdown().await;
    let reports = Topic::<String>::new("reports");
    let batch = mq.batch(&reports).complete(&NASTY.to_owned()).create().await.expect("a batch");
    batch.add(asks.send(&order)).await.expect("a member");
    batch.seal().await.expect("sealed");
    let steps = stepping(&mq).await;
    let [result, batch] = [requested.id.to_string(), batch.id().to_string()];
    (cli, mq, Ids { letter: put[0].expect("put").to_string(), result, batch, steps })
}

/// Sends a task that has done one step and waits in another. Returns the id of its steps.
async fn stepping(mq: &Millstream) -> String {
    let queue = DelayQueue::<u64>::new("mails").open(mq.backend()).await.expect("a queue");
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let worker = queue.worker().start(move |task: Task<u64>| {
        let tell = tell.clone();
        async move {
            let steps = task.steps();
            steps.step(TURNED, async || Ok::<_, StepError>(NASTY.to_owned())).await?;
            let _ = tell.send(steps.id()?.to_string());
            steps.sleep("approved", Duration::from_secs(3_600)).await
        }
    });
    let worker = worker.await.expect("a worker");
    queue.schedule(&1).id("stepping").await.expect("scheduled");
    let id = told.recv().await.expect("its id");
    worker.shutdown().await;
    id
}

/// What the words of the table stand for.
struct Ids {
    letter: String,
    result: String,
    batch: String,
    steps: String,
}

fn words<'a>(path: &'a str, args: &'a str, ids: &'a Ids, more: &[&'a str]) -> Vec<&'a str> {
    let meant = |word: &'a str| match word {
        "ID" => TURNED,
        "LETTER" => &ids.letter,
        "RESULT" => &ids.result,
        "BATCH" => &ids.batch,
        "STEPS" => &ids.steps,
        word => word,
    };
    path.split(' ').chain(args.split_whitespace().map(meant)).chain(more.iter().copied()).collect()
}

/// What a terminal would take for something else.
fn controls(text: &str) -> Vec<char> {
    let control =
        |c: &char| c.is_control() && !['\n', '\t'].contains(c) || matches!(c, '\u{202a}'..='\u{202e}');
    text.chars().filter(control).collect()
}

#[track_caller]
fn is_harmless(of: &[&str], ran: &Ran) {
    for text in [&ran.stdout, &ran.stderr] {
        assert!(controls(text).is_empty(), "{of:?}: {:?} in {ran:?}", controls(text));
    }
}

#[test]
fn every_command_stands_in_the_table() {
    let mut leaves = help::commands();
    let all: BTreeSet<String> = leaves.keys().cloned().collect();
    leaves
        .retain(|path, _| !all.iter().any(|other| other.starts_with(&format!("{path} ")) || path.is_empty()));
    leaves.retain(|path, _| !["acl", "completions", "man", "plan", "schema"].contains(&path.as_str()));
    let listed: BTreeSet<String> = commands().map(|(path, ..)| path.to_owned()).collect();
    assert_eq!(leaves.keys().cloned().collect::<BTreeSet<_>>(), listed);
    for (path, _, does) in commands() {
        let help = &leaves[path];
        assert!(help.contains("--json") && help.contains("--yes"), "{path}: {help}");
        // A reset is a dry run without `--execute`; a verification repairs nothing without `--repair`.
        let has_dry_run = help.contains("--dry-run") && !["group reset", "verify"].contains(&path);
        assert_eq!(
            has_dry_run,
            does != Looks,
            "{path} changes something, and has no --dry-run, or the other way round"
        );
    }
}

#[tokio::test]
async fn every_command_prints_json_and_nothing_for_a_terminal() {
    let (cli, _mq, ids) = place().await;
    let before = cli.ok("topic describe orders --json");
    for (path, args, does) in commands() {
        let dry: &[&str] = if does == Looks { &[] } else { &["--dry-run"] };
        // JSON first: `consume` leaves nothing for the second one.
        for json in [&["--json"][..], &[]] {
            let args = words(path, args, &ids, &[dry, json].concat());
            let ran = Ran::of(&mut cli.command(&args));
            is_harmless(&args, &ran);
            assert!(
                ran.code == 0 || ["doctor", "message follow"].contains(&path) && ran.code == 3,
                "{args:?}: {ran:?}"
            );
            if !json.is_empty() {
                for line in ran.stdout.lines() {
                    let (command, content) = envelope::read(line);
                    assert!(command == path && matches!(content, Line::Data(_)), "{args:?}: {ran:?}");
                    envelope::is_strict(line);
                }
                let prints = envelope::schema(path)["oneOf"].as_array().is_some_and(|lines| lines.len() == 2);
                assert_eq!(ran.stdout.lines().count() > 0, prints, "{args:?}: {ran:?}");
                let goes_on = [
                    "produce",
                    "consume",
                    "dlq export",
                    "dlq consume",
                    "tail",
                    "queue work",
                    "message follow",
                ]
                .contains(&path);
                assert!(goes_on || ran.stdout.lines().count() == 1, "{args:?}: one value: {ran:?}");
            }
        }
    }
    let groups = |text: &str| envelope::data(text)["groups"][0]["dead"].clone();
    let after = cli.ok("topic describe orders --json");
    assert_eq!(
        (groups(&after), after.contains("\"partitions\":2")),
        (groups(&before), true),
        "nothing was changed"
    );
    assert_eq!(
        cli.json("limits rules")["rules"],
        serde_json::json!([{ "pattern": "tenant", "at_most": 2, "rate": null }])
    );
    assert_eq!(cli.json("delayed list orders")["total"], 1);
    assert_eq!(cli.json("queue counts mails")["dead"], 1);
}

#[tokio::test]
async fn what_cannot_be_undone_is_not_done_without_a_yes() {
    let (cli, _mq, ids) = place().await;
    let asks = commands().filter(|(.., does)| *does == Asks);
    for (path, args, _) in asks {
        for json in [&[][..], &["--json"]] {
            let args = words(path, args, &ids, json);
            let ran = Ran::of(&mut cli.command(&args));
            is_harmless(&args, &ran);
            let (data, error) = envelope::parts(&ran.stdout);
            assert_eq!((ran.code, data.len()), (2, 0), "{args:?}: {ran:?}");
            assert_eq!(error.map(|error| error["kind"] == "usage"), (!json.is_empty()).then_some(true));
            assert!(ran.stderr.contains("say --yes"), "{args:?}: {ran:?}");
        }
    }
    assert_eq!(cli.json("topic list").as_array().map(Vec::len), Some(4), "it is all there");
    assert_eq!(cli.json("dlq count orders billing")["count"], 4);
}

#[test]
fn every_command_fails_in_one_line_without_a_server() {
    let result = "asked/0/0af7651916cd43dd8448eb211c80319c".to_owned();
    let batch = "reports/0/0af7651916cd43dd8448eb211c80319c".to_owned();
    let steps = "queue/mails/0/stepping".to_owned();
    let ids = Ids { letter: "1-1".to_owned(), result, batch, steps };
    for (path, args, _) in commands() {
        for json in [&[][..], &["--json"]] {
            let args = words(path, args, &ids, &[&["--yes"], json].concat());
            let ran = Ran::of(bare(&args).env("MILLSTREAM_URL", "redis://127.0.0.1:1"));
            assert_eq!((ran.code, ran.stderr.lines().count()), (1, 1), "{args:?}: {ran:?}");
            assert!(ran.stderr.contains("the server cannot be reached"), "{args:?}: {ran:?}");
            assert_eq!(ran.stdout.lines().count(), json.len(), "{args:?}: {ran:?}");
            for line in ran.stdout.lines() {
                let (command, line) = envelope::read(line);
                let Line::Error(error) = line else { panic!("{args:?}: {ran:?}") };
                assert_eq!((command.as_str(), &error["kind"]), (path, &"unavailable".into()), "{error}");
                assert!(error["advice"].as_str().is_some_and(|it| it.contains("MILLSTREAM_URL")), "{error}");
            }
        }
    }
}
