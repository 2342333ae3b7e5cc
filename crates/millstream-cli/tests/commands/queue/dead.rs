//! `millstream queue dead`: errors, one task, changes; and `queue show`.

use std::time::Duration;

use serde_json::json;

use super::{die, mails};
use crate::support::cli::Cli;
use crate::support::feed::lines;
use crate::support::server::Server;

#[tokio::test]
async fn dead_tasks_are_grouped_by_error_and_selected_by_fingerprint() {
    let cli = Cli::new();
    let mails = mails(&cli).await;
    for number in 0..5 {
        mails.schedule(&format!("mailbox {number}")).id(format!("m-{number}")).await.expect("scheduled");
    }
    mails.schedule(&"such host".to_owned()).id("host").await.expect("scheduled");
    die(&mails, 6).await;
    let told = cli.json("queue dead errors mails");
    assert_eq!((&told["count"], &told["different"]), (&json!(6), &json!(2)));
    let row = &told["errors"][0];
    assert_eq!((&row["count"], &told["errors"][1]["example"]), (&json!(5), &json!("host")));
    assert!(row["pattern"].as_str().is_some_and(|it| it.starts_with("no mailbox <n>")), "{told}");
    let fingerprint = row["fingerprint"].as_str().expect("a fingerprint").to_owned();
    let of = |command: &str| format!("queue dead {command} mails --fingerprint {fingerprint}");
    assert_eq!(cli.json(&of("list")).as_array().map(Vec::len), Some(5));
    assert_eq!(lines(&cli.ok(&of("export"))).len(), 5);
    assert_eq!(lines(&cli.ok("queue dead export mails")).len(), 6);
    assert_eq!(cli.json(&format!("{} --dry-run", of("purge")))["count"], 5);
    assert!(cli.fails(2, &of("replay")).contains("--yes"), "it was not named");
    assert_eq!(cli.json(&format!("{} --yes", of("replay")))["count"], 5);
    assert_eq!(cli.json("queue counts mails")["dead"], 1);
    assert_eq!(cli.json("queue dead purge mails --error host --yes")["count"], 1);
    assert!(cli.fails(2, "queue dead purge mails").contains("which tasks?"));
}

#[tokio::test]
async fn a_dead_task_is_shown_and_scheduled_again_with_changes() {
    let cli = Cli::new();
    let mails = mails(&cli).await;
    mails.schedule(&"x".to_owned()).id("a").key("k").header("trace", "7").await.expect("scheduled");
    die(&mails, 1).await;
    let shown = cli.json("queue dead show mails a");
    assert_eq!(
        (&shown["task"], &shown["attempts"], &shown["payload"]),
        (&json!("a"), &json!(1), &json!("\"x\""))
    );
    assert_eq!((&shown["key"], &shown["headers"]), (&json!("k"), &json!({"trace": "7"})));
    let story = cli.ok("queue dead show mails a");
    assert!(story.contains("header    trace=7") && story.contains("no x\\x1b[31m"), "{story}");
    assert!(cli.fails(1, "queue dead show mails b").contains("there is no dead task \"b\""));

    let dry = cli.json("queue dead edit mails a --set-payload \"y\" --dry-run");
    assert_eq!((&dry["scheduled"], &dry["before"]["payload"]), (&json!(true), &json!("\"x\"")));
    assert_eq!(cli.json("queue counts mails")["dead"], 1);
    cli.ok("queue dead edit mails a --set-payload \"y\" --remove-header trace");
    let counts = cli.json("queue counts mails");
    assert_eq!((&counts["dead"], &counts["waiting"]), (&json!(0), &json!(1)));
    let waits = cli.json("queue show mails a");
    assert_eq!(
        (&waits["payload"], &waits["key"], &waits["headers"]),
        (&json!("\"y\""), &json!("k"), &json!({}))
    );
    assert!(cli.ok("queue show mails a").contains("it is due"));
    assert!(cli.fails(1, "queue show mails b").contains("does not wait in delay queue mails"));

    // The id is in use: nothing is lost, and nothing is there twice.
    die(&mails, 1).await;
    mails.schedule(&"z".to_owned()).id("a").delay(Duration::from_secs(3_600)).await.expect("scheduled");
    let refused = cli.fails(1, "queue dead edit mails a --set-payload w");
    assert!(refused.contains("its id is in use; it stays dead"), "{refused}");
    assert_eq!(cli.json("queue counts mails")["dead"], 1);
    assert_eq!(cli.json("queue show mails a")["payload"], "\"z\"");
}

#[tokio::test]
async fn the_id_of_a_task_that_died_several_times_means_the_newest() {
    let cli = Cli::new();
    let mails = mails(&cli).await;
    for payload in ["one", "two", "three"] {
        mails.schedule(&payload.to_owned()).id("a").await.expect("scheduled");
        die(&mails, 1).await;
    }
    assert_eq!(cli.json("queue dead show mails a")["payload"], "\"three\"");
    let note = "a: 2 older dead tasks with this id; the newest is meant\n";
    let dry = cli.run("queue dead replay mails a --dry-run");
    assert!(
        dry.code == 0 && dry.stdout.starts_with("1 dead task would be replayed") && dry.stderr == note,
        "{dry:?}"
    );
    assert!(dry.stdout.contains("three"), "{dry:?}");
    let replayed = cli.run("queue dead replay mails a");
    assert_eq!((replayed.stdout.as_str(), replayed.stderr.as_str()), ("1 dead task replayed\n", note));
    assert_eq!(cli.json("queue show mails a")["payload"], "\"three\"");

    // Its id is in use now, as a dry run finds out.
    for dry in ["", " --dry-run"] {
        let used = cli.json_with(1, &format!("queue dead replay mails a{dry}"));
        assert_eq!((&used["count"], &used["skipped"]), (&json!(0), &json!(1)), "{dry}");
        let used = cli.fails(1, &format!("queue dead edit mails a --set-payload w{dry}"));
        assert!(used.contains("its id is in use; it stays dead"), "{used}");
        let all = cli.json_with(1, &format!("queue dead replay mails --all --yes{dry}"));
        assert_eq!((&all["count"], &all["skipped"]), (&json!(0), &json!(2)), "{dry}");
    }
    let purged = cli.json("queue dead purge mails a --yes");
    assert_eq!(purged["count"], 1);
    assert_eq!(cli.json("queue dead list mails")[0]["payload"], "\"one\"");
}

#[tokio::test]
async fn a_queue_that_cannot_be_read_hides_no_other() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    cli.ok("queue create a");
    cli.ok("queue create b --shards 2");
    for id in 0..8 {
        cli.ok(&format!("schedule add b rule-{id} --queue --every 10m --payload x"));
    }
    let foreign = |part: &str| {
        let keys = server.cli(&["KEYS", part]);
        let key = keys.lines().next().expect("a key").trim().to_owned();
        server.cli(&["DEL", &key]);
        server.cli(&["SET", &key, "foreign"]);
        key
    };
    let rules = cli.json("schedule list b --queue").as_array().map(Vec::len).expect("a list");
    let key = foreign("*recur:item:{b:q:0}*");
    for command in ["schedule list b --queue", "schedule next b --queue"] {
        let told = cli.json_with(1, command);
        let list = told.as_array().expect("a list");
        let errors: Vec<_> = list.iter().filter_map(|it| it["error"].as_str()).collect();
        assert!(matches!(errors[..], [error] if error.contains(&key)), "{command}: {told}");
        assert!(list.len() > 1 && list.len() <= rules, "those of the other shard: {told}");
    }
    let list = cli.json_with(1, "schedule list b --queue");
    let id = list[0]["id"].as_str().expect("an id");
    cli.ok(&format!("schedule add b {id} --queue --every 20m --payload x"));
    let key = foreign("*queue:{a}:meta");
    let told = cli.json_with(1, "queue list");
    assert_eq!((&told[0]["queue"], &told[1]["queue"]), (&json!("a"), &json!("b")), "{told}");
    assert!(told[0]["error"].as_str().is_some_and(|error| error.contains(&key)), "{told}");
    assert!(cli.run("queue list").stderr.starts_with("delay queue a: "), "it is named");
}

#[tokio::test]
async fn a_replay_without_memory_says_how_far_it_came() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    let mails = mails(&cli).await;
    for id in ["a", "b", "c"] {
        mails.schedule(&"x".to_owned()).id(id).await.expect("scheduled");
    }
    die(&mails, 3).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let ran = cli.run("queue dead replay mails --all --yes");
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "0 dead tasks replayed\n"), "{ran:?}");
    let left =
        "the server is out of memory; 3 dead tasks stay where they are: the same command goes on with them";
    assert!(ran.stderr.contains(left), "{ran:?}");
}
