//! `millstream retries`.

use std::time::Duration;

use millstream::layers::core::TopicPartition;
use millstream::layers::core::keys::Keys;
use millstream::{Delivery, Fixed, Namespace, Outcome};
use serde_json::json;

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
