//! `millstream tail`.

use millstream::crates::core::keys::Keys;
use millstream::crates::core::log::Append;
use millstream::{Millstream, Namespace, Producer, TopicPartition};
use rustix::process::Signal;
use serde_json::json;

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::{Running, fed, lines, topic};
use crate::support::server::Server;

/// Messages 0 to 19 in 4 partitions in turn, with keys and headers.
async fn orders(mq: &Millstream) -> Producer<bytes::Bytes> {
    let producer = topic(mq, "orders", 4).await;
    for n in 0..20_u32 {
        let payload = bytes::Bytes::from(format!("{{\"n\": {n}}}"));
        let send = producer.send(&payload).key(format!("k{}", n % 3)).header("mod", (n % 5).to_string());
        send.partition(n % 4).await.expect("sent");
        // Ids of different partitions are those of different times: the order that is shown is that in which they went.
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }
    producer
}

fn numbers(text: &str) -> Vec<u64> {
    envelope::lines(text).iter().map(|line| line["payload"]["n"].as_u64().expect("a number")).collect()
}

#[tokio::test]
async fn it_begins_where_it_is_told_and_shows_what_is_wanted() {
    let cli = Cli::new();
    orders(&cli.mq().await).await;
    let shown = |args: &str| numbers(&cli.ok(&format!("tail orders --json {args}")));
    assert_eq!(shown(""), (10..20).collect::<Vec<_>>(), "the last ten, oldest first");
    assert_eq!(shown("-n 3"), [17, 18, 19]);
    assert_eq!(shown("-n 100"), (0..20).collect::<Vec<_>>());
    assert_eq!(shown("--from earliest --limit 4"), [0, 1, 2, 3]);
    assert_eq!(shown("--from latest"), [0_u64; 0]);
    let fifth = envelope::lines(&cli.ok("tail orders --json --from earliest"))[5]["time_ms"].clone();
    assert_eq!(shown(&format!("--from {fifth} --limit 1")), [5], "as it is shown");
    assert_eq!(shown("--from 2020-01-01 --limit 1"), [0]);
    assert_eq!(shown("--from now"), [0_u64; 0]);
    assert_eq!(numbers(&cli.ok(["tail", "orders", "--json", "--from", "1h30m ago", "--limit", "1"])), [0]);
    assert_eq!(shown("--from earliest --partition 1,3 --limit 4"), [1, 3, 5, 7]);
    assert_eq!(shown("--from earliest --key k1 --header mod=2"), [7]);
    assert_eq!(shown("-n 2 --header mod=2 --header mod"), [12, 17]);
    let seventh = &envelope::lines(&cli.ok("tail orders --from earliest --json"))[7];
    assert_eq!(shown(&format!("--from {} --limit 2", seventh["id"].as_str().expect("an id"))), [7, 8]);
    let filtered = cli.ok(["tail", "orders", "--json", "--from", "1h ago", "--filter", "\"n\": 1"]);
    assert_eq!(numbers(&filtered), [1, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19]);
    assert!(cli.fails(2, "tail orders --partition 4").contains("partition 4 of topic orders, which has 4"));
    assert!(cli.fails(1, "tail nothing").contains("nothing"), "a topic that is not there");
    assert_eq!(cli.mq().await.admin().topics().await.expect("topics").len(), 1, "and it is not created");
}

#[tokio::test]
async fn every_format_shows_the_message() {
    let cli = Cli::new();
    orders(&cli.mq().await).await;
    let first = "tail orders --from earliest --limit 1";
    let line = &lines(&cli.ok(&format!("{first} --format json")))[0];
    let id = line["id"].as_str().expect("an id");
    let ms: u64 = id.split_once('-').expect("an id").0.parse().expect("a number");
    let expected = json!({
        "topic": "orders", "partition": 0, "id": id, "time_ms": ms, "key": "k0", "headers": {"mod": "0"},
        "payload": {"n": 0},
    });
    assert_eq!(*line, expected);
    assert_eq!(envelope::data(&cli.ok(&format!("{first} --json"))), expected);
    let raw = cli.ok(&format!("{first} --json --format json"));
    assert_eq!(lines(&raw), [expected], "no envelope: another command reads it");
    assert_eq!(cli.ok(&format!("{first} --format payload")), "{\"n\": 0}\n");
    let template =
        ["tail", "orders", "--from", "earliest", "--limit", "2", "--format", r"%t/%p %o %k %h %s (%S)\n"];
    let text = cli.ok(template);
    assert!(text.starts_with(&format!("orders/0 {id} k0 mod=0 {{\"n\": 0}} (8)\norders/1 ")), "{text}");
    let table = cli.ok(first);
    assert!(table.contains(id) && table.trim_end().ends_with("k0            [mod=0] {\"n\": 0}"), "{table}");
    assert!(cli.fails(2, "tail orders --format jsn").contains("table, json, payload and templates"));
}

#[tokio::test]
async fn nothing_of_a_message_reaches_a_terminal_as_a_command() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let producer = topic(&mq, "nasty", 1).await;
    let payload = bytes::Bytes::from("\x1b]0;title\x07\u{9b}2J\u{202e}\r\n\x00\u{7f}".to_owned() + "ok");
    producer.send(&payload).key("\x1b[31m").header("h\x1b", "\x1b").await.expect("sent");
    // From anybody: no message at all.
    let fields = vec![("type\x1b".into(), "\u{9b}x".into())];
    let append = Append::new(TopicPartition::new("nasty".parse().expect("a name"), 0), fields);
    mq.backend().log().append(&[append]).await.remove(0).expect("appended");
    for format in ["table", "json"] {
        let text = cli.ok(["tail", "nasty", "--format", format]);
        let controls: Vec<_> =
            text.chars().filter(|c| c.is_control() && *c != '\n' || *c == '\u{202e}').collect();
        assert!(controls.is_empty(), "{format}: {controls:?} in {text:?}");
        assert!(text.contains("no payload field"), "{format}: what is no message is shown, too: {text}");
        assert_eq!(text.lines().count(), 2, "{text}");
    }
    let json = &envelope::lines(&cli.ok("tail nasty --json -n 2"))[0];
    assert_eq!(json["payload"].as_str().expect("text").as_bytes(), payload, "and JSON means the same");
    let raw = cli.command(&["tail", "nasty", "--format", "%s", "-n", "2"]).output().expect("it runs").stdout;
    assert!(raw.starts_with(&payload), "into a pipe bytes go as they are");
}

#[tokio::test]
async fn it_goes_on_with_what_comes_until_it_is_stopped() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let producer = orders(&mq).await;
    let mut tail = Running::new(&cli, &["tail", "orders", "-f", "-n", "2", "--json"]);
    let mut from =
        Running::new(&cli, &["tail", "orders", "-f", "--from", "earliest", "--partition", "1", "--json"]);
    let mut limited = Running::new(&cli, &["tail", "orders", "-f", "--limit", "12", "--format", "payload"]);
    assert_eq!([tail.line(), tail.line()].map(|line| numbers(&line)[0]), [18, 19]);
    assert_eq!(numbers(&from.line()), [1]);
    assert_eq!(limited.line(), "{\"n\": 10}\n", "the last ten that are there");
    for n in 20..24_u32 {
        let payload = bytes::Bytes::from(format!("{{\"n\": {n}}}"));
        producer.send(&payload).partition(n % 4).await.expect("sent");
        assert_eq!(numbers(&tail.line()), [u64::from(n)]);
    }
    let rest: Vec<_> = (0..5).map(|_| numbers(&from.line())[0]).collect();
    assert_eq!(rest, [5, 9, 13, 17, 21], "what was there, then what came");
    assert_eq!(limited.ended(), Some(0), "nine more that were there, two that came");
    for mut running in [tail, from] {
        running.signal(Signal::INT);
        assert_eq!(running.ended(), Some(0));
    }
    let mut limited = Running::new(&cli, &["tail", "orders", "-f", "--limit", "100"]);
    limited.line();
    limited.signal(Signal::INT);
    assert_eq!(limited.ended(), Some(130), "that was not its end");
    assert_eq!(
        mq.admin().groups(&"orders".parse().expect("a name")).await.expect("groups").len(),
        0,
        "no group"
    );
}

#[tokio::test]
async fn an_empty_log_has_a_reason() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    cli.ok("topic create orders --partitions 2");
    let said = |line: &str| {
        let ran = cli.run(line);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, ""), "{line}: {ran:?}");
        ran.stderr
    };
    let never = "topic orders is empty: nothing was ever written to it\n";
    assert_eq!(said("tail orders --from earliest"), never);
    assert_eq!(said("tail orders"), never);
    assert!(said("consume orders -g billing --until-empty").starts_with(never));
    fed(&cli, &["produce", "orders", "--partition", "1"], "one\n");
    let keys = Keys::within(&Namespace::new(&cli.namespace).expect("a name"));
    let log = keys.log(&TopicPartition::new("orders".parse().expect("a name"), 1)).to_string();
    server.cli(&["XTRIM", &log, "MAXLEN", "0"]);
    assert_eq!(
        said("tail orders --from earliest"),
        "topic orders is empty: its only entry was trimmed or deleted\n"
    );
    server.cli(&["DEL", &log]);
    let deleted = "topic orders is empty: its log was deleted in partition 1\n";
    assert_eq!(said("tail orders --from earliest"), deleted);
    // Of the partition that is shown.
    assert_eq!(said("tail orders --from earliest --partition 0"), never);
    assert!(said("consume orders -g billing --until-empty").starts_with(deleted));
    // The consumer has created the log again: the loss stays recorded.
    let verified = cli.run("verify orders");
    assert!(verified.code == 0 && verified.stdout.contains("were lost"), "{verified:?}");
    assert!(!verified.stdout.contains(": sound"), "{verified:?}");
}
