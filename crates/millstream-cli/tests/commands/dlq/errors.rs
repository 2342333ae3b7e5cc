//! `millstream dlq errors`, and what its fingerprints select.

use millstream::{Partition, TopicPartition};
use serde_json::{Value, json};

use super::{letter, letters, put};
use crate::support::cli::Cli;

#[tokio::test]
async fn the_letters_of_one_error_are_replayed_in_one_command() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    // "no gate 0" to "no gate 9", and three that timed out.
    letters(&mq, 10).await;
    let mut newest = None;
    for number in 10..13 {
        let mut late = letter(number);
        // Of one partition: two of different ones may have the same id.
        late.topic_partition.partition = Partition(0);
        late.error = format!("till {number}: timed out after {}ms", number * 7);
        newest = Some(put(&mq, late).await);
    }
    let told = cli.json("dlq errors orders billing");
    assert_eq!((&told["count"], &told["different"], &told["others"]), (&json!(13), &json!(2), &json!(0)));
    assert_eq!(
        (&told["errors"][0]["pattern"], &told["errors"][0]["count"]),
        (&json!("no gate <n>"), &json!(10))
    );
    let timeouts = &told["errors"][1];
    assert_eq!(
        (&timeouts["pattern"], &timeouts["count"]),
        (&json!("till <n>: timed out after <n>"), &json!(3))
    );
    assert_eq!(timeouts["example"]["id"], newest.expect("an id").to_string());
    assert!(timeouts["first_ms"].as_u64() <= timeouts["last_ms"].as_u64(), "{told}");
    assert!(told["errors"][0]["first_ms"].as_u64() < timeouts["first_ms"].as_u64(), "{told}");
    let rejected = cli.json("dlq errors orders billing --reason rejected");
    assert_eq!(rejected["count"], 7, "a filter filters");
    let cut = cli.run("dlq errors orders billing --limit 1");
    assert_eq!((cut.code, cut.stdout.lines().count()), (0, 2), "{cut:?}");
    assert_eq!(cut.stderr, "1 of 2 errors; --limit shows more\n");

    let fingerprint = timeouts["fingerprint"].as_str().expect("a fingerprint");
    let of = |command: &str| format!("dlq {command} orders billing --fingerprint {fingerprint}");
    assert_eq!(cli.json(&of("list"))["letters"].as_array().map(Vec::len), Some(3));
    assert_eq!(cli.json(&of("count"))["count"], 3);
    assert_eq!(cli.ok(&of("export")).lines().count(), 3);
    assert_eq!(cli.json(&format!("{} --dry-run", of("purge")))["count"], 3);
    assert_eq!(cli.json(&format!("{} --yes", of("replay")))["replayed"], 3);
    assert_eq!(cli.json("dlq count orders billing")["count"], 10, "the others stay");
    assert!(cli.fails(2, "dlq list orders billing --fingerprint 12").contains("16 hexadecimal digits"));
}

#[tokio::test]
async fn an_error_of_several_groups_and_topics_is_one() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    letters(&mq, 4).await;
    cli.ok("group create orders shipping");
    cli.ok("group create repairs shipping");
    for (topic, partition, error) in
        [("orders", 0, "no gate 9"), ("repairs", 0, "no gate 8"), ("repairs", 0, "lost")]
    {
        let mut other = letter(20);
        other.topic_partition = TopicPartition::new(topic.parse().expect("a name"), partition);
        other.group = "shipping".parse().expect("a name");
        other.error = error.to_owned();
        put(&mq, other).await;
    }
    let told = |args: &str| {
        let told = cli.json(args);
        let errors = told["errors"].as_array().cloned().unwrap_or_default();
        let row = |it: &Value| (it["pattern"].as_str().map(str::to_owned), it["count"].as_u64());
        errors.iter().map(row).collect::<Vec<_>>()
    };
    let row = |pattern: &str, count| (Some(pattern.to_owned()), Some(count));
    assert_eq!(told("dlq errors"), [row("no gate <n>", 6), row("lost", 1)]);
    assert_eq!(told("dlq errors orders"), [row("no gate <n>", 5)]);
    assert_eq!(told("dlq errors orders billing"), [row("no gate <n>", 4)]);
    let lost = &cli.json("dlq errors")["errors"][1]["example"];
    assert_eq!((&lost["topic"], &lost["group"]), (&json!("repairs"), &json!("shipping")));
    assert!(cli.ok("dlq errors").contains("repairs/0 of shipping: "));
    assert!(cli.fails(1, "dlq errors nowhere").contains("nowhere"));
}
