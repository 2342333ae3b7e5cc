//! `millstream topic trim`: what it would drop is what it drops.

use millstream::crates::core::inspect::{Range, Stream};
use millstream::{Topic, TopicPartition};
use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::seed;

/// 40 messages on two partitions: `billing` has handled all, `shipping` none, and nobody runs.
async fn prepared() -> Cli {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 40).await;
    seed::handled(&mq, 40, &[]).await;
    cli.ok("group create orders shipping");
    cli
}

/// Entries of a partition that are dropped, and of these the unread ones.
type Dropped = (Option<u64>, Option<u64>);

fn dropped(of: &Value) -> (Option<u64>, Vec<Dropped>) {
    let rows = of["partitions"].as_array().expect("a list").iter();
    let rows = rows.map(|row| (row["dropped"].as_u64(), row["lost"][0]["unread"].as_u64()));
    (of["dropped"].as_u64(), rows.collect())
}

#[tokio::test]
async fn what_would_be_dropped_is_what_is_dropped() {
    for (retention, expected, lost) in [
        ("consumed", 0, None),
        ("consumed-after:1ms", 0, None),
        ("length:5", 30, Some(15)),
        ("age:1ms", 40, Some(20)),
    ] {
        let cli = prepared().await;
        // The age counts from the millisecond of the entry.
        let wait = format!("topic trim orders --retention {retention}");
        let mut dry = cli.json(&format!("{wait} --dry-run"));
        while retention.starts_with("age") && dropped(&dry).0 != Some(40) {
            dry = cli.json(&format!("{wait} --dry-run"));
        }
        assert_eq!(dry["dry_run"], true);
        let each = Some(expected / 2);
        assert_eq!(dropped(&dry), (Some(expected), vec![(each, lost); 2]), "{retention}: {dry}");
        assert_eq!(cli.json("topic describe orders")["entries"], 40, "{retention}");
        let done = cli.json(&format!("{wait} --yes"));
        assert_eq!(dropped(&done), dropped(&dry), "{retention}: {done}");
        assert_eq!(cli.json("topic describe orders")["entries"], 40 - expected, "{retention}");
    }
}

#[tokio::test]
async fn what_every_group_has_settled_is_dropped_up_to_the_first_that_one_needs() {
    let cli = prepared().await;
    cli.ok("group reset orders shipping --to latest --execute --yes");
    let mq = cli.mq().await;
    let holding = {
        seed::orders(&mq, 4).await;
        seed::holding(&mq, 4).await
    };
    let dry = cli.json("topic trim orders --retention consumed --dry-run");
    assert_eq!(dropped(&dry).0, Some(40), "{dry}");
    let text = cli.ok("topic trim orders --retention length:1 --dry-run");
    assert!(text.starts_with("42 messages would be dropped\n"), "{text}");
    let of_each = "billing: 0 unread, 1 pending; shipping: 1 unread, 0 pending";
    assert_eq!(text.matches(of_each).count(), 2, "{text}");
    // `billing` runs, `shipping` does not: no lease is needed.
    let done = cli.json("topic trim orders --retention consumed --yes");
    assert_eq!(dropped(&done).0, Some(40), "{done}");
    let again = cli.ok("topic trim orders --retention consumed");
    assert_eq!(again, "0 messages dropped\n");
    holding.end().await;
}

#[tokio::test]
async fn a_topic_is_trimmed_whoever_runs_and_without_a_group() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 4).await;
    let holding = seed::holding(&mq, 4).await;
    assert!(cli.fails(2, "topic trim orders --retention length:1").contains("--yes"));
    let done = cli.ok("topic trim orders --retention length:1 --yes");
    assert!(done.starts_with("2 messages dropped\n"), "{done}");
    assert_eq!(done.matches("billing: 0 unread, 1 pending").count(), 2, "{done}");
    holding.end().await;

    let keep = cli.fails(2, "topic trim orders");
    assert!(keep.contains("topic orders keeps all entries: --retention says which stay"), "{keep}");
    assert!(cli.fails(1, "topic trim nope --dry-run").contains("topic nope does not exist"));
    cli.ok("topic create lonely");
    let producer = mq.producer(Topic::<u64>::new("lonely")).await.expect("a producer");
    for number in 0..4 {
        producer.send(&number).await.expect("sent");
    }
    assert_eq!(cli.json("topic trim lonely --dry-run")["dropped"], json!(0), "nobody has settled it");
    assert_eq!(cli.json("topic trim lonely --retention length:3 --yes")["dropped"], json!(1));
}

#[tokio::test]
async fn a_topic_is_trimmed_up_to_an_id() {
    let cli = prepared().await;
    let mq = cli.mq().await;
    let tp = TopicPartition::new("orders".parse().expect("a name"), 1);
    let log = mq.backend().inspect().expect("the role").entries(&tp, &Stream::Log, Range::ALL, 20);
    let id = log.await.expect("read").items[7].id.to_string();
    let command = format!("topic trim orders --before {id} --partition 1");
    let dry = cli.json(&format!("{command} --dry-run"));
    assert_eq!(dropped(&dry), (Some(7), vec![(Some(7), Some(7))]), "{dry}");
    assert_eq!((&dry["before"], &dry["retention"]), (&json!(id), &Value::Null));
    assert_eq!(dropped(&cli.json(&format!("{command} --yes"))), dropped(&dry));
    assert_eq!(cli.json("topic describe orders")["entries"], 33);
    assert!(
        cli.fails(1, &format!("topic trim orders --before {id} --partition 9 --yes"))
            .contains("no partition 9")
    );
    cli.fails(2, &format!("topic trim orders --before {id} --retention length:1"));
}
