//! `millstream topic`.

pub(crate) mod inspect;
mod train;
mod trim;

use std::time::Duration;

use millstream::{DeadLetterRetention, Retention, Topic};
use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::pty::Pty;
use crate::support::seed::{self, ORDERS};

#[tokio::test]
async fn topics_are_listed_by_name() {
    let cli = Cli::new();
    assert_eq!(cli.json("topic list"), json!([]));
    let mq = cli.mq().await;
    let week = Retention::Age(Duration::from_secs(604_800));
    mq.producer(Topic::<u64>::new("orders").partitions(12).retention(week)).await.expect("a topic");
    mq.producer(Topic::<u64>::new("mails").max_length(1_000)).await.expect("a topic");
    let kept = json!({ "max_age_ms": null, "max_length": null });
    let expected = json!([
        {
            "topic": "mails", "partitions": 1, "retention": { "rule": "consumed" }, "max_length": 1_000,
            "dead_letter_retention": kept,
            "packing": null,
        },
        {
            "topic": "orders", "partitions": 12, "retention": { "rule": "age", "ms": 604_800_000 }, "max_length": null,
            "dead_letter_retention": kept,
            "packing": null,
        },
    ]);
    assert_eq!(cli.json("topic list"), expected);
    let text = cli.ok("topic list");
    let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[1], ["mails", "1", "consumed", "1,000", "entries"]);
    assert_eq!(lines[2], ["orders", "12", "age:7d", "-"]);
}

#[tokio::test]
async fn a_topic_is_created_once_and_as_it_was_asked() {
    let cli = Cli::new();
    let create = "topic create orders --partitions 3 --retention consumed-after:7d --max-length 1000 \
                  --dead-letter-retention age:30d,length:100";
    let asked = json!({
        "topic": "orders", "partitions": 3, "max_length": 1_000, "dry_run": true, "changed": true,
        "retention": { "rule": "consumed-after", "ms": 604_800_000 },
        "dead_letter_retention": { "max_age_ms": 2_592_000_000_u64, "max_length": 100 },
        "packing": null,
    });
    assert_eq!(cli.json(&format!("{create} --dry-run")), asked);
    assert_eq!(cli.json("topic list"), json!([]), "a dry run");
    let created = cli.json(create);
    assert_eq!((&created["dry_run"], &created["partitions"]), (&json!(false), &json!(3)));
    let stored = cli.mq().await.admin().topic(&"orders".parse().expect("a name")).await.expect("a topic");
    assert_eq!(stored.retention, Retention::ConsumedAfter(Duration::from_secs(604_800)));
    assert_eq!((stored.partitions, stored.max_length), (3, Some(1_000)));
    let month = Duration::from_secs(30 * 86_400);
    assert_eq!(stored.dead_letter_retention, DeadLetterRetention::age(month).and_length(100));
    let described = cli.ok("topic describe orders");
    assert!(
        described.contains("dead letter retention") && described.contains("age:30d,length:100"),
        "{described}"
    );

    let twice = cli.fails(1, "topic create orders");
    assert!(twice.starts_with("error: topic orders already exists"), "{twice}");
    let kept = cli.json("topic create orders --partitions 5 --if-missing");
    assert_eq!((&kept["changed"], &kept["partitions"]), (&json!(false), &json!(3)));
}

#[test]
fn settings_that_make_no_sense_are_refused_before_anything_is_asked() {
    let cli = Cli::at("redis://127.0.0.1:1".to_owned());
    for wrong in [
        "create a b",
        "create a*",
        "create a --retention ever",
        "create a --max-length 0",
        "alter a",
        "create a --dead-letter-retention age:0s",
        "alter a --dead-letter-retention consumed",
    ] {
        assert!(cli.fails(2, &format!("topic {wrong}")).starts_with("error: "), "{wrong}");
    }
    let both = cli.fails(2, "topic alter a --max-length 1 --no-max-length");
    assert!(both.contains("cannot be used with"), "{both}");
}

#[tokio::test]
async fn a_topic_that_is_not_there_is_an_error() {
    let cli = Cli::new();
    for command in ["describe nope", "alter nope --no-max-length", "expand nope 3 --yes", "delete nope --yes"]
    {
        let said = cli.fails(1, &format!("topic {command}"));
        assert_eq!(said, "error: topic nope does not exist\n", "{command}");
    }
}

#[tokio::test]
async fn a_topic_is_described_with_its_groups() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 1_500).await;
    assert_eq!(cli.json("topic describe orders")["entries"], 1_500, "without a group, too");
    seed::handled(&mq, 1_500, &[7]).await;
    mq.producer(ORDERS)
        .await
        .expect("a producer")
        .send(&0)
        .delay(Duration::from_secs(3_600))
        .await
        .expect("sent");
    cli.ok("group create orders audit --from latest");
    let described = cli.json("topic describe orders");
    assert_eq!((&described["topic"], &described["partitions"]), (&json!("orders"), &json!(2)));
    assert_eq!((&described["entries"], &described["delayed"]), (&json!(1_500), &json!(1)));
    let [audit, billing] = described["groups"].as_array().expect("a list").as_slice() else {
        panic!("{described}");
    };
    assert_eq!((&audit["group"], &audit["lag"], &audit["dead"]), (&json!("audit"), &json!(0), &json!(0)));
    assert_eq!(
        (&billing["group"], &billing["lag"], &billing["dead"]),
        (&json!("billing"), &json!(0), &json!(1))
    );
    let text = cli.ok("topic describe orders");
    assert!(text.contains("entries                1,500\n") && text.contains("\nbilling"), "{text}");
}

#[tokio::test]
async fn a_change_is_shown_confirmed_and_made() {
    let cli = Cli::new();
    cli.ok("topic create orders --retention consumed-after:7d");
    let shown = cli.json("topic alter orders --retention age:1h --max-length 5 --dry-run");
    assert_eq!((&shown["retention"]["ms"], &shown["max_length"]), (&json!(3_600_000), &json!(5)));
    let stored = || cli.json("topic list")[0].take();
    let before = stored();
    assert_eq!(before["retention"]["rule"], "consumed-after", "a dry run");
    let refused = cli.fails(2, "topic alter orders --retention age:1h");
    assert!(refused.contains("say --yes"), "{refused}");
    assert_eq!(stored(), before, "not confirmed");

    let altered = cli.json("topic alter orders --retention age:1h --max-length 5 --yes");
    assert_eq!(
        (&altered["changed"], &stored()["retention"]),
        (&json!(true), &json!({ "rule": "age", "ms": 3_600_000 }))
    );
    assert_eq!(cli.json("topic alter orders --max-length 5")["changed"], false);
    assert_eq!(
        cli.json("topic alter orders --no-max-length")["max_length"],
        Value::Null,
        "nothing is lost by that"
    );
    assert_eq!(stored()["max_length"], Value::Null);
}

#[tokio::test]
async fn a_retention_of_dead_letters_is_confirmed_unless_it_keeps_them() {
    let cli = Cli::new();
    cli.ok("topic create orders --max-length 5");
    let alter = |what: &str| format!("topic alter orders --dead-letter-retention {what}");
    let refused = cli.fails(2, &alter("age:30d"));
    assert!(refused.contains("say --yes"), "{refused}");
    let altered = cli.json(&format!("{} --yes", alter("age:30d")));
    let stored = || cli.json("topic list")[0].take();
    assert_eq!(
        (&altered["changed"], &altered["max_length"]),
        (&json!(true), &json!(5)),
        "what is not named stays"
    );
    assert_eq!(
        stored()["dead_letter_retention"],
        json!({ "max_age_ms": 2_592_000_000_u64, "max_length": null })
    );
    assert_eq!(cli.json(&alter("age:720h"))["changed"], false);
    assert_eq!(
        cli.json("topic expand orders 2 -n")["dead_letter_retention"],
        stored()["dead_letter_retention"]
    );
    cli.ok(&alter("keep"));
    assert_eq!(stored()["dead_letter_retention"], json!({ "max_age_ms": null, "max_length": null }));
}

#[tokio::test]
async fn a_topic_grows_and_never_shrinks() {
    let cli = Cli::new();
    cli.ok("topic create orders --partitions 2");
    assert_eq!(cli.json("topic expand orders 4 -n")["partitions"], 4);
    assert_eq!(cli.fails(2, "topic expand orders 4").lines().count(), 1, "it asks");
    assert_eq!(cli.json("topic list")[0]["partitions"], 2);
    assert_eq!(cli.json("topic expand orders 4 --yes")["partitions"], 4);
    assert_eq!(cli.json("topic list")[0]["partitions"], 4);
    let fewer = cli.fails(1, "topic expand orders 3 --yes");
    assert_eq!(fewer, "error: topic orders has 4 partitions and cannot have fewer\n");
    let many = cli.fails(1, "topic expand orders 20000 --yes");
    assert!(many.contains("1 to 16384 are allowed"), "{many}");
}

#[tokio::test]
async fn a_deletion_says_what_goes_and_is_refused_while_somebody_consumes() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 10).await;
    let till = seed::holding(&mq, 10).await;
    let shown = cli.json("topic delete orders --dry-run");
    assert_eq!(
        (&shown["deleted"], &shown["in_use"], &shown["entries"]),
        (&json!(false), &json!(true), &json!(10))
    );
    let refused = cli.run("topic delete orders --yes");
    assert!(refused.code == 1 && refused.stdout.is_empty(), "{refused:?}");
    assert!(refused.stderr.contains("topic orders with 10 entries"), "{refused:?}");
    let why = format!("error: group billing of topic orders is in use by {}", till.name);
    assert!(refused.stderr.contains(&why), "{refused:?}");
    till.end().await;

    assert_eq!(cli.run("topic delete orders").code, 2, "it asks");
    assert_eq!(cli.json("topic describe orders")["entries"], 10, "nothing was done");
    assert_eq!(cli.json("topic delete orders --yes")["deleted"], true);
    assert_eq!(cli.json("topic list"), json!([]));
}

#[tokio::test]
async fn people_are_asked_on_a_terminal() {
    let cli = Cli::new();
    cli.ok("topic create orders");
    for (answer, code, left) in [("\r", 1, 1), ("no\r", 1, 1), ("y\r", 0, 0)] {
        let mut terminal = Pty::run(&cli.command(&["topic", "delete", "orders"]), (100, 20));
        terminal.until_text("Delete topic orders, for ever? [y/N]");
        terminal.press(answer);
        let said = if code == 0 {
            "topic orders is deleted"
        } else {
            "error: nothing was done: it was not confirmed"
        };
        terminal.until_text(said);
        assert_eq!(terminal.end().0, code, "{answer:?}");
        assert_eq!(cli.json("topic list").as_array().map(Vec::len), Some(left), "{answer:?}");
    }
}
