//! `millstream doctor` and `verify`: exit code 3 if something is wrong.

pub(crate) mod bad_days;
#[cfg(all(feature = "exporter", feature = "top"))]
pub(crate) mod damage;
#[cfg(all(feature = "exporter", feature = "top"))]
pub(crate) mod others;
pub(crate) mod partial;
pub(crate) mod trouble;

use std::time::Duration;

use millstream::Namespace;
use millstream::crates::core::TopicPartition;
use millstream::crates::core::keys::Keys;
use millstream::crates::core::schedule::Shard;
use millstream::delay::DelayQueue;
use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::feed::topic;
use crate::support::seed;
use crate::support::server::Server;

fn keys(cli: &Cli) -> Keys {
    Keys::within(&Namespace::new(&cli.namespace).expect("a name"))
}

#[tokio::test]
async fn the_doctor_tells_the_worst_first() {
    let cli = Cli::at(Server::builder().appendonly(true).arg("--maxmemory", "1gb").start().url());
    assert_eq!(cli.run("doctor").code, 1, "its server is gone already");

    let durable = Server::builder().appendonly(true).arg("--appendfsync", "everysec");
    let server = durable.arg("--maxmemory", "1gb").start();
    let sound = Cli::at(server.url()).json("doctor");
    let reports = sound["reports"].as_array().expect("a list");
    // The line under test may have a known fault.
    let faulty = |it: &&Value| it["level"] != "ok" && it["subject"] == "version";
    let has_fault = reports.iter().any(|it| faulty(&it));
    assert!(reports.iter().all(|it| it["level"] == "ok" || faulty(&it)), "{sound}");
    assert!(reports.iter().any(|it| it["subject"] == "version"), "{sound}");
    let strict = Cli::at(server.url()).json_with(if has_fault { 3 } else { 0 }, "doctor --strict");
    assert_eq!(strict["sound"], !has_fault, "{strict}");

    let server = Server::start();
    let cli = Cli::at(server.url());
    let wrong = cli.json_with(3, "doctor");
    assert_eq!((&wrong["sound"], &wrong["reports"][0]["level"]), (&json!(false), &json!("error")), "{wrong}");
    assert_eq!(wrong["reports"][0]["subject"], "appendonly");
    let text = cli.run("doctor");
    assert_eq!(text.code, 3);
    assert!(text.stdout.starts_with("error  appendonly"), "{text:?}");
    assert!(!text.stdout.contains('\u{1b}'), "a pipe has no colours");

    server.cli(&["CONFIG", "SET", "appendonly", "yes", "appendfsync", "no"]);
    let lazy = cli.json_with(3, "doctor");
    assert_eq!(lazy["reports"][0]["subject"], "appendfsync", "{lazy}");
    server.cli(&["CONFIG", "SET", "appendfsync", "everysec"]);
    assert_eq!(cli.json("doctor")["sound"], true, "a warning is not an error");
    let strict = cli.json_with(3, "doctor --strict");
    let worst = strict["reports"].as_array().expect("a list").iter().find(|it| !faulty(it));
    assert_eq!(worst.expect("a warning")["subject"], "memory", "{strict}");
}

#[tokio::test]
async fn what_verify_finds_is_repaired_if_it_is_asked() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    seed::orders(&mq, 10).await;
    seed::handled(&mq, 10, &[]).await;
    let sound = cli.json("verify orders");
    assert_eq!((&sound["sound"], &sound["findings"]), (&json!(true), &json!([])));
    assert!(sound["looked_at"].as_u64() > Some(0), "{sound}");

    // A group is lost on one partition, and stands beyond the end on the other.
    let log = |partition| {
        keys(&cli).log(&TopicPartition::new("orders".parse().expect("a name"), partition)).to_string()
    };
    server.cli(&["XGROUP", "DESTROY", &log(0), "billing"]);
    server.cli(&["XGROUP", "SETID", &log(1), "billing", "99999999999999-0"]);
    let faults = |of: &Value| {
        let findings = of["findings"].as_array().expect("a list");
        let mut faults: Vec<_> = findings
            .iter()
            .map(|it| (it["fault"].as_str().unwrap_or("?"), it["repaired"].as_str().unwrap_or("?")))
            .collect();
        faults.sort_unstable();
        faults.into_iter().map(|(fault, repaired)| format!("{fault} {repaired}")).collect::<Vec<_>>()
    };
    let planted = ["group_missing not_asked", "position_ahead not_asked"];
    let found = cli.json_with(3, "verify orders");
    assert_eq!((faults(&found), &found["sound"]), (planted.map(str::to_owned).to_vec(), &json!(false)));
    assert_eq!(faults(&cli.json_with(3, "verify orders --repair --dry-run")), planted);
    assert!(cli.fails(2, "verify orders --repair").contains("say --yes"));
    assert_eq!(faults(&cli.json_with(3, "verify orders")), planted, "nothing was done");
    let cut = cli.json_with(3, "verify orders --limit 1");
    assert_eq!((&cut["cut"], &cut["sound"]), (&json!(true), &json!(false)));
    assert_eq!(cut["findings"].as_array().map(Vec::len), Some(1), "no more than the limit");
    assert_eq!(cli.json_with(3, "verify orders --limit 2")["cut"], false, "these are all that there are");
    let text = cli.run("verify orders");
    assert!(text.code == 3 && text.stdout.contains("position_ahead  orders/1 of billing"), "{text:?}");
    assert!(text.stdout.contains(": not sound"), "{text:?}");

    let repaired = cli.json("verify orders --repair --yes");
    assert_eq!(faults(&repaired), ["group_missing yes", "position_ahead yes"]);
    assert_eq!(cli.json("verify orders")["findings"], json!([]));
}

#[tokio::test]
async fn faults_are_counted_and_the_first_of_each_shown() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    let mails = DelayQueue::<String>::new("mails").shards(1).open(mq.backend()).await.expect("a queue");
    let place = Shard::new("mails".parse().expect("a name"), 0).into();
    let (delay, items) = (keys(&cli).delay(&place).to_string(), keys(&cli).delay_items(&place).to_string());
    for number in 0..15 {
        let id = format!("task-{number}");
        mails.schedule(&id).id(id.as_str()).delay(Duration::from_secs(3_600)).await.expect("scheduled");
        // Of twelve the due time is lost, of three the body.
        match number {
            0..12 => server.cli(&["ZREM", &delay, &id]),
            _ => server.cli(&["HDEL", &items, &id]),
        };
    }
    let text = cli.run("verify --queue mails");
    let counts: Vec<Vec<&str>> =
        text.stdout.lines().take(3).map(|line| line.split_whitespace().take(2).collect()).collect();
    assert_eq!(counts, [["fault", "found"], ["body_lost", "3"], ["body_stranded", "12"]], "{text:?}");
    let shown = |text: &str, fault: &str| {
        let of = |line: &&str| line.starts_with("wrong") && line.contains(fault);
        text.lines().filter(of).count()
    };
    let stranded = |text: &str| shown(text, "body_stranded");
    assert_eq!((shown(&text.stdout, "body_lost"), stranded(&text.stdout)), (3, 10), "{text:?}");
    assert!(text.stdout.contains("body_stranded  … 2 more; --all shows them"), "{text:?}");
    let time = text.stdout.lines().find(|line| line.starts_with("wrong") && line.contains("body_lost"));
    assert!(time.is_some_and(|line| line.contains("due 20") && line.ends_with('Z')), "a time: {text:?}");
    assert_eq!(stranded(&cli.run("verify --queue mails --all").stdout), 12);
    let json = cli.json_with(3, "verify --queue mails");
    assert_eq!(json["findings"].as_array().map(Vec::len), Some(15), "a program has them all");
}

#[tokio::test]
async fn a_delay_queue_is_verified_too() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    let mails = DelayQueue::<String>::new("mails").open(mq.backend()).await.expect("a queue");
    mails.schedule(&"hello".to_owned()).id("a").delay(Duration::from_secs(3_600)).await.expect("scheduled");
    assert_eq!(cli.json("verify --queue mails")["sound"], true);
    let place = Shard::new("mails".parse().expect("a name"), 0).into();
    server.cli(&["ZREM", &keys(&cli).delay(&place).to_string(), "a"]);
    let found = cli.json_with(3, "verify --queue mails");
    assert_eq!(
        (&found["checked"][0]["queue"], &found["findings"][0]["fault"]),
        (&json!("mails"), &json!("body_stranded")),
        "{found}"
    );
    assert_eq!(cli.json("verify --queue mails --repair --yes")["sound"], true);
}

#[test]
fn what_is_not_there_cannot_be_verified() {
    let cli = Cli::new();
    assert_eq!(cli.fails(1, "verify nope"), "error: topic nope does not exist\n");
    assert!(cli.fails(1, "verify --queue nope").contains("nope"));
    assert_eq!(cli.json("verify")["checked"], json!([]), "there is nothing");
}

#[tokio::test]
async fn several_are_verified_at_once_and_all_of_them_by_default() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    seed::orders(&mq, 4).await;
    seed::handled(&mq, 4, &[]).await;
    topic(&mq, "payments", 2).await;
    DelayQueue::<String>::new("mails").open(mq.backend()).await.expect("a queue");
    let names = |of: &Value| -> Vec<String> {
        let name = |it: &Value| it["topic"].as_str().or(it["queue"].as_str()).expect("a name").to_owned();
        of["checked"].as_array().expect("a list").iter().map(name).collect()
    };
    let all = cli.json("verify");
    assert_eq!(names(&all), ["orders", "payments", "mails"]);
    assert_eq!(names(&cli.json("verify payments orders payments")), ["orders", "payments"]);
    assert_eq!(names(&cli.json("verify payments --queue mails")), ["payments", "mails"]);
    let looked = |of: &Value| of["looked_at"].as_u64().expect("a count");
    let sum: u64 = all["checked"].as_array().expect("a list").iter().map(looked).sum();
    assert_eq!(looked(&all), sum);

    let log = keys(&cli).log(&TopicPartition::new("orders".parse().expect("a name"), 0)).to_string();
    server.cli(&["XGROUP", "DESTROY", &log, "billing"]);
    let found = cli.json_with(3, "verify");
    let sound: Vec<_> = found["checked"].as_array().expect("a list").iter().map(|it| &it["sound"]).collect();
    assert_eq!((sound, &found["sound"]), (vec![&json!(false), &json!(true), &json!(true)], &json!(false)));
    let text = cli.run("verify");
    let has = |words: [&str; 3]| text.stdout.lines().any(|line| line.split_whitespace().take(3).eq(words));
    assert!(text.code == 3 && has(["topic", "orders", "1"]) && has(["topic", "payments", "0"]), "{text:?}");
    assert!(text.stdout.lines().any(|line| line.starts_with("all  ")), "{text:?}");
    assert!(cli.fails(2, "verify --repair").contains("--yes"), "all of it is asked for at once");
    assert_eq!(cli.json("verify --repair --yes")["sound"], true);

    // A topic that cannot be checked is reported, and does not prevent reports of the others.
    let ran = cli.run("verify nope orders");
    assert!(ran.code == 1 && ran.stdout.contains("not checked") && ran.stdout.contains("sound"), "{ran:?}");
    assert!(
        ran.stderr.contains("topic nope: ") && ran.stderr.contains("1 of 2 could not be checked"),
        "{ran:?}"
    );

    // Where the settings should be is something of somebody else.
    server.cli(&["SET", &keys(&cli).topic_meta(&"payments".parse().expect("a name")).to_string(), "x"]);
    let ran = cli.run("verify payments");
    assert!(ran.code == 3 && ran.stdout.contains("wrong_type  payments  "), "never sound: {ran:?}");
}
