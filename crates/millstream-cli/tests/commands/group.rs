//! `millstream group`.

pub(crate) mod lag;

use millstream::Topic;
use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::seed;

#[tokio::test]
async fn groups_are_created_listed_and_described() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 9).await;
    let created = |new: bool, dry_run: bool, partitions: Value| json!({ "topic": "orders", "group": "billing", "new": new, "partitions": partitions, "dry_run": dry_run });
    assert_eq!(cli.json("group create orders billing -n"), created(true, true, json!([0, 1])));
    assert_eq!(cli.json("group list orders"), json!([]), "a dry run");
    assert_eq!(cli.json("group create orders billing"), created(true, false, json!([0, 1])));
    assert_eq!(cli.json("group create orders billing"), created(false, false, json!([])));
    cli.ok("group create orders audit --from latest");
    cli.ok(["group", "create", "orders", "late", "--from", "in 1h"]);

    let listed = cli.json("group list orders");
    let lags: Vec<_> =
        listed.as_array().expect("a list").iter().map(|it| (&it["group"], &it["lag"])).collect();
    assert_eq!(
        lags,
        [(&json!("audit"), &json!(0)), (&json!("billing"), &json!(9)), (&json!("late"), &json!(0))]
    );

    seed::handled(&mq, 9, &[3]).await;
    let described = cli.json("group describe orders billing");
    assert_eq!(
        (&described["group"], &described["dead"], &described["lag"]),
        (&json!("billing"), &json!(1), &json!(0))
    );
    let partitions = described["partitions"].as_array().expect("a list");
    let of = |name: &str| partitions.iter().map(|it| it[name].clone()).collect::<Vec<_>>();
    assert_eq!((of("partition"), of("entries")), (vec![json!(0), json!(1)], vec![json!(5), json!(4)]));
    assert_eq!((of("dead"), of("owner")), (vec![json!(0), json!(1)], vec![Value::Null, Value::Null]));
    let text = cli.ok("group describe orders billing");
    assert!(
        text.lines()
            .any(|line| line.split_whitespace().take(5).eq(["group", "members", "owned", "backlog", "lag"])),
        "{text}"
    );
}

#[tokio::test]
async fn what_is_not_there_is_an_error() {
    let cli = Cli::new();
    for command in
        ["list nope", "describe nope g", "delete nope g --yes", "pins nope", "expire nope --idle 1d"]
    {
        assert_eq!(
            cli.fails(1, &format!("group {command}")),
            "error: topic nope does not exist\n",
            "{command}"
        );
    }
    cli.ok("topic create orders");
    for command in
        ["describe orders g", "delete orders g --yes", "reset orders g --to earliest", "pause orders g"]
    {
        let said = cli.fails(1, &format!("group {command}"));
        assert_eq!(said, "error: group g of topic orders does not exist\n", "{command}");
    }
    assert!(cli.fails(2, "group reset orders g --to somewhere").contains("is no position"));
}

#[tokio::test]
async fn a_reset_says_what_it_means_and_is_done_when_it_is_said() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 10).await;
    seed::handled(&mq, 10, &[]).await;
    let counts = |of: &Value| ["reread", "skipped", "pending"].map(|name| of[name].as_u64());
    let lag = || cli.json("group describe orders billing")["lag"].take();

    let shown = cli.json("group reset orders billing --to earliest");
    assert_eq!((&shown["dry_run"], counts(&shown)), (&json!(true), [Some(10), Some(0), Some(0)]));
    assert_eq!((lag(), cli.run("group reset orders billing --to earliest --execute").code), (json!(0), 2));
    assert_eq!(lag(), 0, "neither shown nor unconfirmed is anything done");
    let moved = cli.json("group reset orders billing --to earliest --execute --yes");
    assert_eq!((&moved["dry_run"], lag()), (&json!(false), json!(10)));

    // With the entry of an id: here the second of its partition.
    let topic = &"orders".parse().expect("a name");
    let entries = mq.admin().messages(topic, &Default::default()).await.expect("a page").messages;
    let of_0: Vec<_> = entries.iter().filter(|it| it.topic_partition.partition.0 == 0).collect();
    let to =
        ["group", "reset", "orders", "billing", "--to", &of_0[1].stored.id.to_string()].map(str::to_owned);
    let words: Vec<&str> = to.iter().map(String::as_str).collect();
    let shown = cli.json(words.as_slice());
    assert_eq!(shown["partitions"][0]["skipped"], 1, "{shown}");

    let ago = cli.json(["group", "reset", "orders", "billing", "--to", "1h ago"]);
    assert_eq!(counts(&ago), [Some(0), Some(0), Some(0)]);
    let text = cli.ok(["group", "reset", "orders", "billing", "--to", "in 1h"]);
    let all = text.lines().last().expect("sums").split_whitespace().collect::<Vec<_>>();
    assert_eq!(all, ["all", "0", "10", "0"], "{text}");
}

#[tokio::test]
async fn one_partition_is_moved_and_positions_go_to_a_file_and_back() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 10).await;
    seed::handled(&mq, 10, &[]).await;
    let lag = || cli.json("group describe orders billing")["lag"].take();
    let saved = cli.ok("group positions orders billing");
    let listed = cli.json("group positions orders billing");
    let position = |at: usize| listed[at]["position"].as_str().expect("an id").to_owned();
    assert_eq!(saved, format!("orders,0,{}\norders,1,{}\n", position(0), position(1)));

    let moved = cli.json("group reset orders billing --to earliest --partition 0 --execute --yes");
    let again = moved["reread"].as_u64().expect("a number");
    assert!(again > 0 && again < 10, "a part of them: {moved}");
    assert_eq!((moved["partitions"].as_array().map(Vec::len), lag()), (Some(1), json!(again)));
    cli.ok("group reset orders billing --to earliest --execute --yes");
    assert_eq!(lag(), 10);

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("positions.csv");
    let path = file.to_str().expect("a path");
    let run = |group: &str, text: &str, also: &[&str]| {
        std::fs::write(&file, text).expect("written");
        let words = ["group", "reset", "orders", group, "--from-file", path, "--json"];
        cli.run([&words[..], also].concat().as_slice())
    };
    let shown = run("billing", &saved, &[]);
    assert!(
        shown.stdout.contains("\"dry_run\":true") && shown.stdout.contains("\"skipped\":10"),
        "{shown:?}"
    );
    assert_eq!(lag(), 10);
    assert_eq!(run("billing", &saved, &["--partition", "1", "--execute", "--yes"]).code, 0);
    assert_eq!(lag(), again, "the other one stays");
    assert_eq!(run("billing", &saved, &["--execute", "--yes"]).code, 0);
    assert_eq!((lag(), cli.ok("group positions orders billing")), (json!(0), saved.clone()));
    // Another group goes on where this one is.
    cli.ok("group create orders audit");
    assert_eq!(run("audit", &saved, &["--execute", "--yes"]).code, 0);
    assert_eq!(cli.ok("group positions orders audit"), saved);

    for (text, code, why) in [
        ("orders,0,nowhere", 2, "is no position"),
        ("mails,0,1-0", 2, "not of orders"),
        ("orders,9,1-0", 1, "topic orders has no partition 9"),
        ("orders,1,99999999999999-0", 1, "is ahead of partition 1 of topic orders"),
    ] {
        let ran = run("billing", text, &["--execute", "--yes"]);
        assert!(ran.code == code && ran.stderr.contains(why), "{text}: {ran:?}");
    }
    assert_eq!(
        run("billing", "orders,0,0-0", &["--partition", "1"]).code,
        2,
        "the file has no such partition"
    );
    assert!(
        cli.fails(1, "group reset orders billing --to earliest --partition 9").contains("no partition 9")
    );
    assert_eq!((lag(), cli.run("group reset orders billing").code), (json!(0), 2));
}

#[tokio::test]
async fn a_group_that_runs_is_neither_moved_nor_deleted() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 4).await;
    let till = seed::holding(&mq, 4).await;
    let moved = cli.run("group reset orders billing --to earliest --execute --yes");
    assert_eq!((moved.code, moved.stdout.as_str()), (1, ""), "{moved:?}");
    assert!(moved.stderr.contains(&till.name), "who has it is said: {moved:?}");
    let deleted = cli.run("group delete orders billing --yes");
    assert_eq!((deleted.code, deleted.stdout.as_str()), (1, ""), "{deleted:?}");
    assert!(deleted.stderr.contains(&format!("is in use by {}", till.name)), "{deleted:?}");
    let shown = cli.json("group delete orders billing --dry-run");
    assert_eq!((&shown["in_use"], &shown["members"]), (&json!(true), &json!(1)));
    till.end().await;

    let shown = cli.json("group delete orders billing --dry-run");
    assert_eq!((&shown["in_use"], &shown["deleted"]), (&json!(false), &json!(false)));
    assert_eq!(cli.run("group delete orders billing").code, 2, "it asks");
    assert_eq!(cli.json("group list orders").as_array().map(Vec::len), Some(1));
    assert_eq!(cli.json("group delete orders billing --yes")["deleted"], true);
    assert_eq!(cli.json("group list orders"), json!([]));
}

#[tokio::test]
async fn groups_that_keep_entries_are_named_and_expire() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let mails = mq.producer(Topic::<u64>::new("mails")).await.expect("a topic");
    cli.ok("group create mails never");
    for mail in 0..3 {
        mails.send(&mail).await.expect("sent");
    }
    let pins = cli.json("group pins mails");
    assert_eq!((&pins[0]["group"], &pins[0]["partition"]), (&json!("never"), &json!(0)));
    assert_eq!((&pins[0]["messages"], &pins[0]["idle_ms"]), (&json!(3), &Value::Null));
    assert!(
        pins[0]["bytes"].as_u64() > Some(0) && cli.ok("group pins mails").contains("never read"),
        "{pins}"
    );
    assert_eq!(cli.json("group expire mails --idle 0s --yes")["groups"], json!([]), "it has never read");

    // Somebody who read one and went.
    let puller = mq.consumer(Topic::<u64>::new("mails"), "gone").pull().await.expect("a consumer");
    puller.next().await.expect("a message").ack();
    puller.shutdown().await;
    cli.ok("group delete mails never --yes");
    let shown = cli.json("group expire mails --idle 0s --dry-run");
    assert_eq!((&shown["dry_run"], &shown["groups"][0]["group"]), (&json!(true), &json!("gone")));
    assert!(shown["groups"][0]["idle_ms"].is_u64(), "{shown}");
    assert_eq!(cli.json("group expire mails --idle 1d --yes")["groups"], json!([]));
    assert_eq!(cli.run("group expire mails --idle 0s").code, 2, "it asks");
    assert_eq!(cli.json("group list mails").as_array().map(Vec::len), Some(1));
    assert_eq!(cli.json("group expire mails --idle 0s --yes")["groups"][0]["group"], "gone");
    assert_eq!(cli.json("group list mails"), json!([]));
}

#[tokio::test]
async fn a_group_is_paused_as_a_whole_and_resumed() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    cli.ok("topic create orders --partitions 2");
    cli.ok("group create orders billing");
    let told = |paused: bool, changed: bool, dry_run: bool| json!({ "topic": "orders", "group": "billing", "paused": paused, "changed": changed, "dry_run": dry_run });
    assert_eq!(cli.json("group resume orders billing"), told(false, false, false));
    assert_eq!(cli.json("group pause orders billing -n"), told(true, true, true));
    assert!(cli.json("group list orders")[0]["paused_at_ms"].is_null(), "a dry run");
    assert_eq!(cli.json("group pause orders billing"), told(true, true, false));
    assert_eq!(cli.json("group pause orders billing"), told(true, false, false));
    assert!(cli.json("lag")["groups"][0]["paused_at_ms"].as_u64() > Some(1_600_000_000_000));
    assert!(cli.ok("group list orders").contains("\nbilling, paused "));

    // Over with `resume` and with nothing else; then it goes on.
    seed::orders(&mq, 2).await;
    assert_eq!(cli.json("group resume orders billing"), told(false, true, false));
    seed::handled(&mq, 2, &[]).await;
}
