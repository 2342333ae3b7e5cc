//! `millstream lag`.

use millstream::Topic;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::Running;
use crate::support::pty::Pty;
use crate::support::seed;

#[tokio::test]
async fn every_group_of_every_topic_is_told() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    assert_eq!(cli.json("lag")["groups"], json!([]));
    seed::orders(&mq, 1_200).await;
    cli.ok("group create orders billing");
    cli.ok("topic create mails");
    cli.ok("group create mails billing");
    let told = cli.json("lag");
    let of =
        |row: usize| ["topic", "group", "lag", "lag_at_least"].map(|name| told["groups"][row][name].clone());
    assert_eq!(
        of(0),
        [json!("orders"), json!("billing"), json!(1_200), json!(1_200)],
        "most to do comes first"
    );
    assert_eq!(of(1), [json!("mails"), json!("billing"), json!(0), json!(0)]);
    assert!(
        told["at_ms"].as_u64() > Some(1_600_000_000_000) && told["groups"][0]["oldest_ms"].is_u64(),
        "{told}"
    );
    let listed = |args: &str| cli.json(args)["groups"].as_array().map(Vec::len);
    assert_eq!(
        ["lag --behind 1", "lag --behind 1201", "lag --limit 1"].map(listed),
        [Some(1), Some(0), Some(1)]
    );
    assert_eq!(cli.json("lag --limit 1")["groups"][0]["topic"], "orders");
    assert_eq!(cli.json("lag orders --group billing")["groups"].as_array().map(Vec::len), Some(1));
    assert!(cli.ok("lag orders").lines().nth(1).expect("a row").contains(" 1,200 "));

    assert_eq!(cli.fails(1, "lag nope"), "error: topic nope does not exist\n");
    assert_eq!(
        cli.fails(1, "lag --watch 1"),
        "error: topic 1 does not exist; for a time say --watch=1\n",
        "it was meant otherwise"
    );
    assert_eq!(cli.fails(1, "lag orders -g nope"), "error: group nope of topic orders does not exist\n");
    assert_eq!(cli.fails(1, "lag -g nope"), "error: group nope does not exist in any topic\n");
}

/// A group that begins inside the log has no count on the server: entries are counted then, up to 10,000 on either side.
#[tokio::test]
async fn what_is_not_known_is_no_number() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let mails = mq.producer(Topic::<u32>::new("mails")).await.expect("a topic");
    let numbers: Vec<u32> = (0..42_000).collect();
    let sends = numbers.iter().map(|number| mails.send(number).into_future());
    let sent = futures_util::future::try_join_all(sends).await.expect("sent");
    cli.ok(["group", "create", "mails", "middle", "--from", &sent[21_000].id.to_string()]);
    let told = cli.json("lag mails");
    assert_eq!(
        (&told["groups"][0]["backlog"], &told["groups"][0]["backlog_at_least"]),
        (&Value::Null, &json!(10_000))
    );
    assert_eq!(
        (&told["groups"][0]["lag"], &told["groups"][0]["lag_at_least"]),
        (&Value::Null, &json!(10_000))
    );
    let unknown = cli.json("lag mails --behind 1000000");
    assert_eq!(unknown["groups"].as_array().map(Vec::len), Some(1), "it may be as far behind: {unknown}");
    let text = cli.ok("lag mails");
    assert!(text.contains(" >= 10,000 "), "{text}");

    let exact = &cli.json("lag mails --exact")["groups"][0];
    // The group begins with this entry itself.
    let lag = 42_000 - 21_000;
    assert_eq!(
        (&exact["lag"], &exact["lag_at_least"], &exact["backlog"]),
        (&json!(lag), &json!(lag), &json!(lag))
    );
}

#[tokio::test]
async fn watching_prints_a_line_of_json_a_look_until_it_is_stopped() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    cli.ok("topic create orders --partitions 2");
    cli.ok("group create orders billing");
    let mut watch = Running::new(&cli, &["lag", "orders", "--watch=0.1", "--json"]);
    let lag = |line: &str| envelope::data(line)["groups"][0]["lag"].take();
    assert_eq!(lag(&watch.line()), 0);
    seed::orders(&mq, 5).await;
    while lag(&watch.line()) != 5 {}
    watch.signal(Signal::INT);
    assert_eq!(watch.ended(), Some(0));
}

#[tokio::test]
async fn watching_draws_on_a_terminal() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    cli.ok("topic create orders --partitions 2");
    cli.ok("group create orders billing");
    let mut terminal = Pty::run(&cli.command(&["lag", "--watch=0.1"]), (120, 10));
    terminal.until_line("orders billing 0 0 0 0");
    seed::orders(&mq, 7).await;
    terminal.until_line("orders billing 0 0 7 7");
    let rows = terminal.until("one table", |screen| Some(screen.contents().matches("billing").count()));
    assert_eq!(rows, 1, "what was there before is gone");
    terminal.press("\u{3}");
    assert_eq!(terminal.end().0, 0, "Ctrl-C is the end of it");
}

/// The rates are measured from round to round, and unknown where two rounds cannot be compared.
#[tokio::test]
async fn watching_tells_rates_and_the_time_to_catch_up() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 20).await;
    cli.ok("group create orders billing");
    let mut watch = Running::new(&cli, &["lag", "orders", "--watch=0.1", "--json"]);
    let mut next = || envelope::data(&watch.line())["groups"][0].take();
    let first = next();
    assert_eq!((&first["produced_per_s"], &first["consumed_per_s"]), (&Value::Null, &Value::Null), "{first}");
    assert_eq!((&first["catch_up"], &first["catch_up_ms"]), (&Value::Null, &Value::Null), "{first}");
    let still = next();
    assert_eq!((&still["produced_per_s"], &still["consumed_per_s"]), (&json!(0.0), &json!(0.0)), "{still}");
    assert_eq!(still["catch_up"], "never", "a backlog, and nobody handles it: {still}");
    seed::orders(&mq, 10).await;
    // A round may come in the middle of them.
    let mut round = next();
    while round["lag"] != 30 {
        round = next();
    }
    assert!(round["produced_per_s"].as_f64().is_some_and(|rate| rate > 0.0), "{round}");
    assert_eq!(round["catch_up"], "never", "{round}");
    // Moved to the end: nothing was consumed, and no rate says so.
    cli.ok("group reset orders billing --to latest --execute --yes");
    while round["lag"] != 0 {
        round = next();
        assert!(round["consumed_per_s"].as_f64().is_none_or(|rate| rate == 0.0), "{round}");
    }
    assert_eq!(round["catch_up"], "done", "{round}");
    watch.signal(Signal::INT);
    assert_eq!(watch.ended(), Some(0));
    let once = cli.json("lag orders");
    assert_eq!(once["groups"][0].get("produced_per_s"), None, "one round has no rates");
}
