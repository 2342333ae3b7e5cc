//! `millstream retries`.

use std::time::Duration;

use millstream::crates::core::TopicPartition;
use millstream::crates::core::keys::Keys;
use millstream::{Delivery, Fixed, Millstream, Namespace, Outcome};
use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::feed::eventually;
use crate::support::seed::{self, ORDERS};
use crate::support::server::Server;

#[tokio::test]
async fn what_waits_for_its_next_attempt_is_listed_with_its_reason() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 4).await;
    let handler = async |order: Delivery<u64>| Outcome::retry(format!("no till {}\x1b[31m", order.payload));
    let hours = Fixed::new(Duration::from_secs(7_200));
    let consumer = mq.consumer(ORDERS, "billing").retry(hours).start(handler).await.expect("a consumer");
    eventually("all are parked", async || consumer.report().retried == 4).await;
    consumer.shutdown().await;

    let told = cli.json("retries list orders billing");
    assert_eq!((&told["total"], told["retries"].as_array().map(Vec::len)), (&json!(4), Some(4)));
    let first = &told["retries"][0];
    assert_eq!((&first["attempt"], &first["key"]), (&json!(2), &json!(null)));
    let dues: Vec<_> =
        told["retries"].as_array().expect("a list").iter().map(|it| it["due_ms"].as_u64()).collect();
    assert!(dues.is_sorted() && dues[0].is_some(), "{told}");
    let mut errors: Vec<_> =
        told["retries"].as_array().expect("a list").iter().map(|it| it["error"].as_str()).collect();
    errors.sort_unstable();
    assert_eq!(errors[3], Some("no till 3\u{1b}[31m"));

    let some = cli.run("retries list orders billing --limit 1");
    assert_eq!((some.code, some.stdout.lines().count()), (0, 2), "{some:?}");
    assert!(some.stdout.contains("1 h 59 min") && some.stdout.contains("\\x1b[31m"), "{some:?}");
    assert!(some.stderr.starts_with("1 of 4; --limit shows more"), "{some:?}");
    assert_eq!(
        cli.fails(1, "retries list orders nope"),
        "error: group nope of topic orders does not exist\n"
    );

    // Nothing is unread, pending or dead: all that there is to do is in the backlog.
    let lag = cli.json("lag orders");
    assert_eq!((&lag["groups"][0]["lag"], &lag["groups"][0]["backlog"]), (&json!(0), &json!(4)));
    assert!(lag["groups"][0]["oldest_retry_ms"].as_u64() > Some(0), "since when it is behind: {lag}");
    let text = cli.ok("lag orders");
    assert!(text.lines().nth(1).is_some_and(|row| !row.split_whitespace().any(|word| word == "-")), "{text}");
    assert_eq!(cli.json("topic describe orders")["groups"][0]["backlog"], 4);
    assert_eq!(cli.json("group describe orders billing")["backlog"], 4);
}

#[tokio::test]
async fn a_due_message_on_its_way_is_listed_until_it_is_handed_out() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    seed::orders(&cli.mq().await, 2).await;
    cli.ok("group create orders billing");
    let keys = Keys::within(&Namespace::new(&cli.namespace).expect("a name"));
    let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
    let retry_log = keys.retry_log(&TopicPartition::new(topic, 1), &group).to_string();
    // As a promoter moves them: three are due, and a consumer has got one of them.
    for origin in ["7-1", "7-2", "7-3"] {
        let words = ["attempt", "2", "origin", origin, "error", "no till", "history", "", "payload", "7"];
        server.cli(&[&["XADD", &retry_log, "*"], &words[..]].concat());
    }
    server.cli(&["XREADGROUP", "GROUP", "billing", "owner", "COUNT", "1", "STREAMS", &retry_log, ">"]);

    let told = cli.json("retries list orders billing");
    let ids: Vec<_> =
        told["retries"].as_array().expect("a list").iter().map(|it| it["id"].as_str()).collect();
    assert_eq!((&told["total"], ids), (&json!(2), vec![Some("7-2"), Some("7-3")]), "{told}");
    let first = &told["retries"][0];
    assert_eq!(
        (&first["state"], &first["attempt"], &first["error"]),
        (&json!("ready"), &json!(2), &json!("no till"))
    );
    assert_eq!(first["partition"], 1, "{told}");
    let text = cli.run("retries list orders billing");
    assert!(text.stdout.contains(" due ") && text.stderr.is_empty(), "{text:?}");
    let some = cli.run("retries list orders billing --limit 1");
    assert!(some.stderr.starts_with("1 of 2; --limit shows more"), "{some:?}");
}

/// So many messages of the group billing that wait for two hours, each with an error of its own.
async fn parked(mq: &Millstream, count: u64) {
    seed::orders(mq, count).await;
    let handler = async |order: Delivery<u64>| match order.payload % 3 {
        0 => Outcome::retry(format!("till {}: refused", order.payload)),
        _ => Outcome::retry(format!("timed out after {}s", order.payload)),
    };
    let hours = Fixed::new(Duration::from_secs(7_200));
    let consumer = mq.consumer(ORDERS, "billing").retry(hours).start(handler).await.expect("a consumer");
    eventually("all are parked", async || consumer.report().retried == count).await;
    consumer.shutdown().await;
}

fn count(value: &Value) -> Option<u64> {
    value["count"].as_u64()
}

#[tokio::test]
async fn retries_are_grouped_by_error_and_selected_by_fingerprint() {
    let cli = Cli::new();
    parked(&cli.mq().await, 9).await;
    let told = cli.json("retries errors orders billing");
    let group = |row: usize| (told["errors"][row]["pattern"].clone(), count(&told["errors"][row]));
    assert_eq!((count(&told), &told["others"]), (Some(9), &json!(0)));
    assert_eq!(group(0), (json!("timed out after <n>"), Some(6)));
    assert_eq!(group(1), (json!("till <n>: refused"), Some(3)));
    let refused = told["errors"][1]["fingerprint"].as_str().expect("a fingerprint").to_owned();
    let listed = cli.json(&format!("retries list orders billing --fingerprint {refused}"));
    assert_eq!(listed["retries"].as_array().map(Vec::len), Some(3), "{listed}");
    let some = cli.json("retries list orders billing --error refused --partition 0 --limit 1");
    assert_eq!(some["retries"].as_array().map(Vec::len), Some(1));
    assert!(cli.fails(2, "retries list orders billing --fingerprint nope").contains("is no fingerprint"));
    assert!(cli.fails(2, "retries list orders billing --partition 2").contains("which has 2"));

    let dry = cli.json(&format!("retries kill orders billing --fingerprint {refused} --dry-run"));
    assert_eq!((count(&dry), dry["sample"].as_array().map(Vec::len)), (Some(3), Some(3)));
    let killed = cli.json(&format!("retries kill orders billing --fingerprint {refused} --yes"));
    assert_eq!((count(&killed), &killed["dry_run"]), (Some(3), &json!(false)));
    let dead = cli.json("dlq list orders billing --reason killed");
    let errors: Vec<_> =
        dead["letters"].as_array().expect("a list").iter().map(|it| it["error"].to_string()).collect();
    assert!(errors.len() == 3 && errors.iter().all(|it| it.contains(": refused")), "{dead}");
    assert_eq!(dead["letters"][0]["attempts"], 1);
    assert_eq!(cli.json("retries list orders billing")["total"], 6);
    assert_eq!(cli.run("verify orders").code, 0, "nothing is damaged");
}

#[tokio::test]
async fn a_released_retry_is_handled_at_once() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    parked(&mq, 4).await;
    let list = cli.json("retries list orders billing");
    let id = list["retries"][0]["id"].as_str().expect("an id").to_owned();
    let payload = list["retries"][0]["payload"].clone();
    // Messages of both partitions may have the same id.
    let named = format!("retries now orders billing {id} --partition {}", list["retries"][0]["partition"]);
    // While a consumer runs: it is woken.
    let (handled, mut receives) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |order: Delivery<u64>| {
        let handled = handled.clone();
        async move {
            handled.send((order.payload, order.attempt())).expect("somebody listens");
            Outcome::Ack
        }
    };
    let consumer = mq.consumer(ORDERS, "billing").start(handler).await.expect("a consumer");
    let released = cli.json(&named);
    assert_eq!((count(&released), &released["missing"]), (Some(1), &json!([])));
    let came = receives.recv().await.expect("it comes");
    assert_eq!((json!(came.0.to_string()), came.1), (payload, 2));
    assert!(cli.fails(2, "retries now orders billing").contains("which retries?"));
    assert!(cli.fails(2, "retries now orders billing --all").contains("--yes"));
    let gone = cli.run(&named);
    assert_eq!((gone.code, gone.stdout.as_str()), (1, "0 retries made due now\n"), "{gone:?}");
    assert!(gone.stderr.contains("no retry of it matches"), "{gone:?}");
    assert!(gone.stderr.contains("1 of 1 id not found"), "{gone:?}");
    assert_eq!(cli.ok("retries now orders billing --all --yes"), "3 retries made due now\n");
    for _ in 0..3 {
        receives.recv().await.expect("they all come");
    }
    consumer.shutdown().await;
    assert_eq!(cli.json("retries list orders billing")["total"], 0);
}

#[tokio::test]
async fn what_is_due_already_is_selected_as_it_is_listed() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 6).await;
    seed::handled(&mq, 6, &[0, 1, 2]).await;
    assert_eq!(cli.json("dlq replay orders billing --all --yes")["replayed"], 3);
    let list = cli.json("retries list orders billing");
    let (first, partition) = (&list["retries"][0]["id"], &list["retries"][0]["partition"]);
    assert_eq!(list["retries"].as_array().map(Vec::len), Some(3), "{list}");
    let some = cli.json("retries list orders billing --partition 0");
    assert!(some["retries"].as_array().is_some_and(|some| !some.is_empty()), "also with a filter: {some}");
    assert_eq!(cli.json("retries errors orders billing")["count"], 3);
    let due = |command: &str, code| {
        let told = cli.json_with(code, command);
        assert_eq!((count(&told), &told["missing"]), (Some(0), &json!([])), "{command}: {told}");
        told["due_already"].as_u64()
    };
    assert_eq!(due("retries now orders billing --all --yes", 0), Some(3));
    assert_eq!(due("retries now orders billing --all --dry-run", 0), Some(3));
    let named = format!("{} --partition {partition}", first.as_str().expect("an id"));
    assert_eq!(due(&format!("retries now orders billing {named}"), 0), Some(1));
    assert_eq!(due("retries kill orders billing --all --yes", 1), Some(3));
    let ran = cli.run("retries kill orders billing --all --yes");
    assert!(
        ran.stderr.starts_with("3 retries are due already: consumers of the group read them next\n"),
        "{ran:?}"
    );
    assert!(ran.stderr.ends_with("error: 3 retries skipped: not waiting any more\n"), "{ran:?}");
}
