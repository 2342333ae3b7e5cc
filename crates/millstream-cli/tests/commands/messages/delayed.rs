//! `millstream delayed`.

use std::time::Duration;

use millstream::DelayedMessages;
use millstream::Timestamp;
use millstream::Topic;
use serde_json::json;

use crate::support::cli::Cli;
use crate::support::feed::{fed, payloads, topic};
use crate::support::server::Server;

/// Messages a, b and c, due in one, two and three hours.
async fn reminders(cli: &Cli) -> DelayedMessages {
    let mq = cli.mq().await;
    let producer = topic(&mq, "reminders", 4).await;
    for (n, id) in ["a", "b", "c"].into_iter().enumerate() {
        let delay = Duration::from_secs(3_600 * (n as u64 + 1));
        let payload = bytes::Bytes::from(format!("{{\"n\": {n}}}"));
        producer.send(&payload).key(id).header("h", "1").delay(delay).id(id).await.expect("sent");
    }
    mq.delayed(&Topic::raw("reminders")).await.expect("the topic")
}

async fn ids(waiting: &DelayedMessages) -> Vec<String> {
    waiting.list(None, 10).await.expect("a page").iter().map(|it| it.id.to_string()).collect()
}

#[tokio::test]
async fn what_waits_is_listed_and_can_be_sent_again() {
    let cli = Cli::new();
    let waiting = reminders(&cli).await;
    let list = cli.json("delayed list reminders");
    assert_eq!((&list["total"], &list["overdue"]), (&json!(3), &json!(0)));
    let first = &list["messages"][0];
    let due = waiting.get("a").await.expect("asked").expect("it waits").due;
    assert_eq!((&first["id"], &first["due_ms"], &first["key"]), (&json!("a"), &json!(due), &json!("a")));
    assert_eq!((&first["headers"], &first["payload"]), (&json!({"h": "1"}), &json!({"n": 0})));
    let text = cli.run("delayed list reminders --limit 2");
    let rows: Vec<_> = text.stdout.lines().collect();
    assert_eq!(rows.len(), 3, "{text:?}");
    assert!(
        rows[1].starts_with("a ") && rows[1].contains("59 min") && rows[1].ends_with("{\"n\": 0}"),
        "{text:?}"
    );
    assert_eq!(text.stderr, "2 of 3; --limit shows more\n");

    let messages = list["messages"].as_array().expect("a list");
    let lines: Vec<String> = messages.iter().map(ToString::to_string).collect();
    fed(&cli, &["produce", "copies", "--create", "--partitions", "4", "--format", "json"], lines.join("\n"));
    let copies = cli.json("delayed list copies");
    assert_eq!(copies["messages"], list["messages"], "id, due time, place and content");
}

#[tokio::test]
async fn cancelling_asks_first() {
    let cli = Cli::new();
    let waiting = reminders(&cli).await;
    let asked = cli.fails(2, "delayed cancel reminders a b");
    assert!(asked.contains("--yes"), "{asked}");
    let dry = cli.json_with(1, "delayed cancel reminders a x --dry-run");
    assert_eq!(dry, json!({"done": ["a"], "missing": ["x"], "dry_run": true}));
    assert_eq!(ids(&waiting).await, ["a", "b", "c"], "nothing was done");
    let ran = cli.run("delayed cancel reminders a x b --yes");
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "a: cancelled\nb: cancelled\n"), "{ran:?}");
    assert_eq!(ran.stderr, "x: it does not wait (any more)\nerror: 1 of 3 ids not found\n");
    assert_eq!(ids(&waiting).await, ["c"]);
    assert!(cli.fails(1, "delayed list nothing").contains("nothing"));
}

#[tokio::test]
async fn messages_are_rescheduled_and_due_now() {
    let cli = Cli::new();
    let waiting = reminders(&cli).await;
    cli.ok("delayed reschedule reminders a --at 2126-01-31T12:00:00Z");
    assert_eq!(ids(&waiting).await, ["b", "c", "a"]);
    assert_eq!(
        waiting.get("a").await.expect("asked").expect("it waits").due,
        Timestamp::from_millis(4_925_534_400_000)
    );
    cli.ok("delayed reschedule reminders a --delay 10m");
    assert_eq!(ids(&waiting).await, ["a", "b", "c"]);
    assert!(cli.fails(2, "delayed reschedule reminders a").contains("--delay or --at"));
    cli.ok("delayed now reminders b");
    assert_eq!(cli.json("delayed list reminders")["overdue"], 1);
    cli.ok("consume reminders -g g --limit 1 --format payload");
    assert_eq!(payloads(&cli.mq().await, "reminders").await, ["{\"n\": 1}"]);
}

#[tokio::test]
async fn a_partition_that_cannot_be_read_hides_no_other() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    topic(&cli.mq().await, "reminders", 2).await;
    cli.ok("queue create mails --shards 2");
    for id in 0..8 {
        fed(&cli, &["produce", "reminders", "--delay", "1h", "--id", &format!("id-{id}")], "x");
        cli.ok(&format!("queue add mails --payload x --delay 1h --id id-{id}"));
    }
    for (key, list, items, total) in [
        ("streaming:mq:delay:{reminders:p:0}", "delayed list reminders", "messages", 8),
        ("streaming:mq:delay:{mails:q:0}", "queue tasks mails", "tasks", 8),
    ] {
        assert_eq!(cli.json(list)["total"], total);
        let keys = server.cli(&["KEYS", &format!("*{key}")]);
        server.cli(&["SET", keys.trim(), "foreign"]);
        let rest = cli.json_with(1, list);
        let shown = rest[items].as_array().map(Vec::len).expect("a list") as u64;
        assert!((1..total).contains(&shown) && rest["total"] == shown, "{rest}");
        assert!(rest["errors"][0]["error"].as_str().is_some_and(|error| error.contains(key)), "{rest}");
        // One of an id that cannot be changed keeps no other from it.
        if items == "tasks" {
            let ids: Vec<_> = (0..8).map(|id| format!("id-{id}")).collect();
            let ran = cli.json_with(1, &format!("queue cancel mails {} --yes", ids.join(" ")));
            assert_eq!(ran["done"].as_array().map(Vec::len), Some(shown as usize), "{ran}");
        }
    }
}
