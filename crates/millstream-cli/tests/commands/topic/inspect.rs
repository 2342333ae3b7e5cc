//! `millstream owners`, `pending` and `memory`.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::{Either, select};
use millstream::crates::core::log::Source;
use millstream::crates::core::members::Member;
use millstream::crates::core::running::{Running, RunningMessage};
use millstream::{Partition, Timestamp};
use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::topic;
use crate::support::seed::{self, ORDERS};
use crate::support::server::Server;

#[tokio::test]
async fn owners_are_told_with_their_partitions() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 4).await;
    let till = seed::holding(&mq, 4).await;
    let told = cli.json("owners orders billing");
    assert_eq!(told["members"], json!([{ "member": till.name, "partitions": [0, 1], "overdue": false }]));
    for (number, partition) in told["partitions"].as_array().expect("a list").iter().enumerate() {
        assert_eq!((&partition["partition"], &partition["owner"]), (&json!(number), &json!(till.name)));
        assert_eq!((&partition["assigned"], &partition["standing"]), (&json!(till.name), &json!("settled")));
        assert!(partition["expires_in_ms"].as_u64() <= partition["ttl_ms"].as_u64(), "{partition}");
        assert!(partition["epoch"].as_u64() > Some(0), "{partition}");
    }
    let text = cli.ok("owners orders billing");
    assert!(
        text.contains(&format!(
            "{}    2  0 1
",
            &till.name[..till.name.len() - 24]
        )),
        "{text}"
    );
    till.end().await;
    let idle = cli.json("owners orders billing");
    assert_eq!((&idle["members"], &idle["partitions"][1]["standing"]), (&json!([]), &json!("idle")));
    assert_eq!(cli.fails(1, "owners orders nope"), "error: group nope of topic orders does not exist\n");
    assert_eq!(cli.fails(1, "owners nope g"), "error: topic nope does not exist\n");
}

#[tokio::test]
async fn what_is_pending_comes_in_pages_and_by_what_matters() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 7).await;
    let till = seed::holding(&mq, 7).await;
    let lag = cli.json("lag orders");
    let held = (&lag["groups"][0]["lag"], &lag["groups"][0]["backlog"]);
    assert_eq!(held, (&json!(0), &json!(7)), "what is in hand is still to be done");
    let mut ids = Vec::new();
    let mut after = None;
    loop {
        let mut words = vec!["pending", "orders", "billing", "--limit", "3"];
        words.extend(after.iter().flat_map(|after: &String| ["--after", after.as_str()]));
        let page = cli.json(words.as_slice());
        let entries = page["entries"].as_array().expect("a list");
        assert!(entries.len() <= 3, "{page}");
        for entry in entries {
            assert_eq!((&entry["source"], &entry["deliveries"]), (&json!("log"), &json!(1)), "{entry}");
            assert_eq!(entry["consumer"], till.name, "who owns the partition");
            assert!(entry["idle_ms"].is_u64() && entry["partition"].as_u64() < Some(2), "{entry}");
            ids.push(entry["id"].as_str().expect("an id").to_owned());
        }
        match page["next"].as_str() {
            Some(next) => after = Some(next.to_owned()),
            None => break,
        }
    }
    let topic = &"orders".parse().expect("a name");
    let stored = mq.admin().messages(topic, &Default::default()).await.expect("a page").messages;
    assert_eq!(ids, stored.iter().map(|it| it.stored.id.to_string()).collect::<Vec<_>>());
    let described = cli.json("topic describe orders");
    let ends = (described["first_id"].as_str(), described["last_id"].as_str());
    assert_eq!(ends, (Some(&*ids[0]), Some(&*ids[6])), "of both partitions: {described}");

    for sort in ["idle", "deliveries"] {
        let sorted = |also: &str| cli.json(&format!("pending orders billing --sort {sort} --limit 4{also}"));
        let first = sorted("");
        let next = first["next"].as_str().expect("a next page");
        let rest = sorted(&format!(" --after {next}"));
        assert_eq!((rest["entries"].as_array().map(Vec::len), &rest["next"]), (Some(3), &Value::Null));
        let pages = [first, rest];
        let entries = pages.iter().filter_map(|page| page["entries"].as_array()).flatten();
        let listed = entries.filter_map(|it| it["id"].as_str().map(str::to_owned));
        assert_eq!(listed.collect::<BTreeSet<_>>(), ids.iter().cloned().collect());
        assert_eq!(sorted(" --min-idle 1h")["entries"], json!([]));
    }
    assert_eq!(cli.json("pending orders billing --min-idle 1h")["entries"], json!([]));
    assert_eq!(cli.json("pending orders billing --min-deliveries 2")["entries"], json!([]));
    let all = cli.json("pending orders billing --min-deliveries 1 --min-idle 1ms")["entries"].take();
    assert_eq!(all.as_array().map(Vec::len), Some(7));
    let text = cli.run("pending orders billing --limit 2");
    assert_eq!(text.stdout.lines().count(), 3, "{text:?}");
    assert!(text.stderr.starts_with("there is more: --after "), "{text:?}");
    till.end().await;

    assert!(cli.fails(2, "pending orders billing --after here").contains("is no cursor"));
    assert_eq!(cli.fails(1, "pending orders nope"), "error: group nope of topic orders does not exist\n");
}

#[tokio::test]
async fn which_of_the_pending_messages_runs_for_long() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 8).await;
    // It is done with two, and leaves the others.
    seed::holding(&mq, 8).await.end().await;
    let pending = cli.json("pending orders billing")["entries"].take();
    let pending = pending.as_array().expect("a list");
    assert!(pending.iter().all(|it| it["running_since_ms"].is_null()), "{pending:?}");
    assert!(!cli.ok("owners orders billing").contains("running now"));
    let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
    let since = Timestamp::from_millis(1_700_000_000_123);
    let message = |at: usize, more: u64| {
        let entry = pending[at]["id"].as_str().expect("an id").parse().expect("an id");
        let partition = Partition(pending[at]["partition"].as_u64().expect("a number") as u32);
        let since = since.saturating_add(Duration::from_millis(more));
        RunningMessage { partition, source: Source::Log, entry, origin: entry, attempt: 2, since }
    };
    let messages = vec![message(4, 0), message(1, 9)];
    let running = Running { messages, more: 30, ..Running::default() };
    let member = Member::new("worker-7".parse().expect("an id"), "1", Duration::from_secs(3_600));
    let member = member.running(running);
    mq.backend().members().heartbeat(&topic, &group, &member, true).await.expect("a pulse");
    let told = cli.json("owners orders billing");
    let row = |at: usize, since: u64| {
        let (id, partition) = (&pending[at]["id"], &pending[at]["partition"]);
        json!({ "id": id, "partition": partition, "member": "worker-7", "attempt": 2, "since_ms": since })
    };
    assert_eq!(told["running"], json!([row(4, 1_700_000_000_123), row(1, 1_700_000_000_132)]));
    assert_eq!(told["running_unnamed"], 30);
    let text = cli.ok("owners orders billing");
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("running now")).collect();
    let id = pending[4]["id"].as_str().expect("an id");
    assert!(
        rows[1].starts_with(id) && rows[1].contains("2023-11-14") && rows[1].ends_with("worker-7"),
        "{text}"
    );
    assert_eq!(rows[3], "and 30 more", "{text}");
    let now = cli.json("pending orders billing")["entries"].take();
    let runs: Vec<_> =
        now.as_array().expect("a list").iter().map(|it| it["running_since_ms"].as_u64()).collect();
    let (first, second) = (Some(1_700_000_000_123), Some(1_700_000_000_132));
    assert_eq!(runs, [None, second, None, None, first, None]);
}

#[tokio::test]
async fn memory_is_told_by_structure_group_and_partition() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 200).await;
    seed::handled(&mq, 200, &[1, 3, 5]).await;
    let all = cli.json("memory orders");
    let told = &all["topics"][0];
    let of = |list: &str, name: &str, is: Value| {
        let found = told[list].as_array().expect("a list").iter().find(|it| it[name] == is);
        found.unwrap_or_else(|| panic!("no {name} {is}: {told}")).clone()
    };
    assert_eq!(of("structures", "structure", json!("log"))["items"], 200);
    assert_eq!(of("structures", "structure", json!("dead_letters"))["items"], 3);
    assert_eq!(
        of("partitions", "partition", json!(1))["items"].as_u64().map(|items| items >= 100),
        Some(true)
    );
    assert!(of("groups", "group", json!("billing"))["bytes"].as_u64() > Some(0));
    let sum: u64 =
        told["structures"].as_array().expect("a list").iter().filter_map(|it| it["bytes"].as_u64()).sum();
    assert_eq!(told["bytes"].as_u64(), Some(sum));
    assert_eq!((&told["topic"], &all["bytes"]), (&json!("orders"), &told["bytes"]));
    assert!(all["server_used_bytes"].as_u64() > Some(sum) && all["growth"].is_null(), "{all}");
    assert!(cli.ok("memory orders").contains("takes   about "));
    assert_eq!(cli.fails(1, "memory nope"), "error: topic nope does not exist\n");
}

#[tokio::test]
async fn memory_of_several_topics_is_told_in_sum() {
    let cli = Cli::new();
    let empty = cli.json("memory");
    assert_eq!((&empty["bytes"], &empty["topics"]), (&json!(0), &json!([])));
    assert!(empty["server_used_bytes"].as_u64() > Some(0), "{empty}");
    let mq = cli.mq().await;
    seed::orders(&mq, 200).await;
    for name in ["small", "other"] {
        topic(&mq, name, 1).await.send(&"x".into()).await.expect("sent");
    }
    let all = cli.json("memory");
    let names = |of: &Value| -> Vec<String> {
        let topics = of["topics"].as_array().expect("a list").iter();
        topics.map(|it| it["topic"].as_str().expect("a name").to_owned()).collect()
    };
    assert_eq!(names(&all), ["orders", "other", "small"]);
    let sum: u64 =
        all["topics"].as_array().expect("a list").iter().filter_map(|it| it["bytes"].as_u64()).sum();
    assert!(sum > 0 && all["bytes"].as_u64() == Some(sum), "{all}");
    assert_eq!(names(&cli.json("memory small orders small")), ["orders", "small"], "each once");
    let text = cli.ok("memory small orders");
    let mut table = text.lines().skip_while(|line| !line.starts_with("topic "));
    assert!(table.next().is_some_and(|titles| !titles.contains("growth")), "{text}");
    let begins: Vec<_> = table.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(begins, ["orders", "small", "all"], "{text}");
    assert!(cli.ok("memory --over 1ms").contains("growth"));
    assert_eq!(cli.fails(1, "memory orders nope"), "error: topic nope does not exist\n");
}

#[tokio::test]
async fn a_second_look_says_when_the_server_is_full() {
    let server = Server::builder().arg("--maxmemory", "512mb").start();
    let cli = Cli::at(server.url());
    let producer = cli.mq().await.producer(ORDERS).await.expect("a topic");
    let mut command =
        tokio::process::Command::from(cli.command(&["memory", "orders", "--over", "500ms", "--json"]));
    let looks = std::pin::pin!(command.output());
    let fill = std::pin::pin!(async {
        loop {
            producer.send(&7).await.expect("sent");
        }
    });
    let Either::Left((output, _)) = select(looks, fill).await;
    let told = String::from_utf8(output.expect("it runs").stdout).expect("UTF-8");
    let told = envelope::data(&told);
    let growth = &told["growth"];
    assert!(growth["over_ms"].as_u64() >= Some(500) && growth["topics_bytes"].as_i64() > Some(0), "{told}");
    assert_eq!(told["topics"][0]["growth_bytes"], growth["topics_bytes"]);
    assert_eq!(told["server_max_bytes"], 512 << 20);
    let left = (512 << 20) - told["server_used_bytes"].as_u64().expect("bytes");
    let expected = growth["over_ms"].as_f64().expect("ms") * left as f64
        / growth["server_bytes"].as_f64().expect("bytes");
    let full = growth["full_in_ms"].as_f64().expect("it grew");
    assert!((full / expected - 1.0).abs() < 0.02, "{full} is not {expected}: {told}");
}
