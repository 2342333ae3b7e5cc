//! `millstream queue dead`: errors, one task, changes; and `queue show`.

use std::time::Duration;

use serde_json::json;

use super::{die, mails};
use crate::support::cli::Cli;
use crate::support::feed::lines;

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
