//! `millstream queue`.

mod dead;
mod work;

use std::time::Duration;

use millstream::Never;
use millstream::delay::{DelayQueue, Task};
use serde_json::json;

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::eventually;
use crate::support::pty::Pty;

async fn mails(cli: &Cli) -> DelayQueue<String> {
    DelayQueue::new("mails").shards(2).open(cli.mq().await.backend()).await.expect("a queue")
}

/// Lets tasks die that are due.
async fn die(mails: &DelayQueue<String>, count: u64) {
    let before = mails.dead().count().await.expect("a count");
    let worker = mails.worker().retry(Never);
    let handler =
        |task: Task<String>| async move { Err::<(), String>(format!("no {}\x1b[31m", task.payload)) };
    let worker = worker.start(handler).await.expect("a worker");
    eventually("they are dead", async || mails.dead().count().await.expect("a count") == before + count)
        .await;
    worker.shutdown().await;
}

fn keeps(max_age_ms: Option<u64>, max_length: Option<u64>) -> serde_json::Value {
    json!({"max_age_ms": max_age_ms, "max_length": max_length})
}

#[tokio::test]
async fn a_queue_is_created_once() {
    let cli = Cli::new();
    let missing = cli.fails(1, "queue add mails --payload x");
    assert!(missing.contains("`millstream queue create` creates it"), "{missing}");
    let created = |new: bool, dry: bool| json!({"queue": "mails", "shards": 4, "dead_letter_retention": keeps(None, None), "created": new, "dry_run": dry});
    assert_eq!(cli.json("queue create mails --shards 4 --dry-run"), created(true, true));
    assert_eq!(cli.json("queue list"), json!([]));
    assert_eq!(cli.json("queue create mails --shards 4"), created(true, false));
    assert_eq!(cli.json("queue create mails --shards 4"), created(false, false));
    assert!(cli.fails(1, "queue create mails --shards 5").contains("exists with 4 shards"));
    assert!(cli.fails(2, "queue create more --shards 0").contains("--shards"));
    cli.ok("queue add mails --payload x --id a");
    cli.ok("schedule add mails sweep --queue --every 10m --payload x");
    assert_eq!(cli.json("queue counts mails")["shards"], 4);
}

#[tokio::test]
async fn a_queue_is_paused_and_resumed() {
    let cli = Cli::new();
    let mails = mails(&cli).await;
    let since = || cli.json("queue list")[0]["paused_at_ms"].as_u64();
    let done = |paused: bool, changed: bool, dry_run: bool| json!({"queue": "mails", "paused": paused, "changed": changed, "claimed": 0, "dry_run": dry_run});
    assert_eq!(cli.json("queue pause mails -n"), done(true, true, true));
    assert_eq!((cli.json("queue resume mails"), since()), (done(false, false, false), None));
    assert_eq!(cli.ok("queue pause mails --wait 1s"), "delay queue mails is paused\n");
    assert_eq!(cli.json("queue pause mails"), done(true, false, false));
    assert!(since() > Some(0) && cli.ok("queue counts mails").starts_with("paused since"));
    assert!(cli.ok("queue list").contains("paused"));

    let worked = std::sync::Arc::new(tokio::sync::Semaphore::new(0));
    let worker = mails.worker().start({
        let worked = worked.clone();
        move |_: Task<String>| {
            worked.add_permits(1);
            std::future::pending::<()>()
        }
    });
    let worker = worker.await.expect("a worker");
    cli.ok("queue add mails --payload \"x\" --id a");
    assert_eq!(
        (worked.available_permits(), cli.json("queue counts mails")["overdue"].as_u64()),
        (0, Some(1))
    );
    assert_eq!(cli.ok("queue resume mails"), "delay queue mails is resumed\n");
    drop(worked.acquire().await.expect("open"));
    let left = cli.run("queue pause mails --wait 1ms");
    assert_eq!(
        (left.code, left.stdout.trim()),
        (3, "delay queue mails is paused; 1 task is worked on"),
        "{left:?}"
    );
    worker.shutdown_within(Duration::ZERO).await;
    assert_eq!(cli.json("queue pause mails --wait 10s"), done(true, false, false));
}

#[tokio::test]
async fn tasks_are_added_listed_moved_and_cancelled() {
    let cli = Cli::new();
    assert!(cli.fails(1, "queue counts mails").contains("delay queue mails does not exist"));
    let mails = mails(&cli).await;
    let add = |id: &str, delay: &str| {
        let words = [
            "queue",
            "add",
            "mails",
            "--payload",
            "\"hi\"",
            "--id",
            id,
            "--delay",
            delay,
            "--key",
            "k",
            "--json",
        ];
        envelope::data(&cli.ok(words))
    };
    let dry = cli.json("queue add mails --payload x --id a --delay 1h --dry-run");
    assert_eq!(dry, json!({"id": "a", "outcome": "new", "dry_run": true}));
    assert_eq!(cli.json("queue counts mails")["waiting"], 0);
    assert_eq!(add("a", "1h"), json!({"id": "a", "outcome": "new", "dry_run": false}));
    assert_eq!(cli.json("queue add mails --payload x --id a --dry-run")["outcome"], "kept");
    assert_eq!(cli.json("queue add mails --payload x --id a --replace -n")["outcome"], "replaced");
    assert_eq!(cli.json("queue add mails --payload x --id a --debounce -n")["outcome"], "replaced");
    assert_eq!(cli.json("queue add mails --payload x --id a --keep-last -n")["outcome"], "replaced");
    assert_eq!(add("b", "2h")["outcome"], "new");
    assert_eq!(add("a", "3h")["outcome"], "kept");
    let counts = json!({"queue": "mails", "shards": 2, "waiting": 2, "overdue": 0, "claimed": 0, "expired": 0, "dead": 0, "paused_at_ms": null, "dead_letter_retention": keeps(None, None)});
    assert_eq!((cli.json("queue counts mails"), cli.json("queue list")), (counts.clone(), json!([counts])));
    let shown = cli.ok("queue counts mails");
    assert!(shown.lines().next().is_some_and(|line| line.split_whitespace().eq(["waiting", "2"])), "{shown}");

    let tasks = cli.json("queue tasks mails");
    assert_eq!((&tasks["total"], &tasks["tasks"][0]["id"]), (&json!(2), &json!("a")));
    assert_eq!((&tasks["tasks"][0]["key"], &tasks["tasks"][0]["payload"]), (&json!("k"), &json!("\"hi\"")));
    assert_eq!(mails.get("a").await.expect("asked").expect("it waits").payload().expect("a payload"), "hi");

    cli.ok("queue reschedule mails a --delay 5h");
    assert_eq!(cli.json("queue tasks mails")["tasks"][1]["id"], "a");
    cli.ok("queue now mails a");
    assert_eq!(cli.json("queue counts mails")["overdue"], 1);
    assert!(cli.fails(2, "queue cancel mails b").contains("--yes"));
    assert_eq!(
        cli.json_with(1, "queue cancel mails b x --yes"),
        json!({"done": ["b"], "missing": ["x"], "dry_run": false})
    );
    assert_eq!(cli.json("queue tasks mails --limit 1")["tasks"].as_array().map(Vec::len), Some(1));
}

#[tokio::test]
async fn dead_tasks_are_listed_replayed_and_purged() {
    let cli = Cli::new();
    let mails = mails(&cli).await;
    for id in ["a", "b", "c"] {
        mails.schedule(&format!("mail {id}")).id(id).await.expect("scheduled");
    }
    die(&mails, 3).await;
    let list = cli.json("queue dead list mails");
    let mut tasks: Vec<_> = list.as_array().expect("a list").clone();
    tasks.sort_by_key(|it| it["task"].to_string());
    let first = &tasks[0];
    assert_eq!(
        (&first["task"], &first["reason"], &first["attempts"]),
        (&json!("a"), &json!("exhausted"), &json!(1))
    );
    assert_eq!((&first["error"], &first["payload"]), (&json!("no mail a\x1b[31m"), &json!("\"mail a\"")));
    assert_eq!(first["history"][0]["attempt"], 1);
    let text = cli.ok("queue dead list mails");
    assert!(text.contains("no mail a\\x1b[31m") && !text.contains('\x1b'), "{text}");

    let dry = cli.json("queue dead replay mails --all --dry-run");
    assert_eq!((&dry["count"], &dry["missing"], &dry["dry_run"]), (&json!(3), &json!([]), &json!(true)));
    assert_eq!(dry["sample"][1]["task"], "b");
    let ran = cli.run("queue dead replay mails a x");
    assert_eq!((ran.code, ran.stdout.as_str()), (1, "1 dead task replayed\n"), "{ran:?}");
    assert!(ran.stderr.starts_with("x: no dead task of it matches\n"), "{ran:?}");
    let waits = mails.get("a").await.expect("asked").expect("it waits again");
    assert_eq!(waits.payload().expect("a payload"), "mail a");
    assert!(waits.due <= (std::time::SystemTime::now() + Duration::from_secs(60)).into(), "now");

    for refused in
        ["queue dead replay mails --all", "queue dead purge mails b", "queue dead purge mails --all"]
    {
        assert!(cli.fails(2, refused).contains("--yes"), "{refused}");
    }
    assert_eq!(mails.dead().count().await.expect("a count"), 2);
    assert_eq!(cli.json("queue dead purge mails b --yes")["count"], 1);
    assert_eq!(cli.json("queue dead list mails")[0]["task"], "c");
    mails.schedule(&"another".to_owned()).id("c").await.expect("scheduled");
    let ran = cli.run("queue dead replay mails --all --yes");
    assert!(
        ran.code == 1 && ran.stderr.contains("1 dead task skipped: deleted meanwhile, or the id"),
        "{ran:?}"
    );
    assert_eq!(cli.json("queue cancel mails c --yes")["done"], json!(["c"]));
    assert_eq!(cli.json("queue dead replay mails --all --yes")["count"], 1);
    die(&mails, 2).await;
    assert_eq!(cli.json("queue dead purge mails --all --yes")["count"], 2);
    assert_eq!(cli.json("queue counts mails")["dead"], 0);
}

#[tokio::test]
async fn dead_tasks_are_dropped_by_age_and_number() {
    let cli = Cli::new();
    let created = cli.json("queue create mails --shards 2 --dead-letter-retention age:30d");
    let month = keeps(Some(30 * 86_400_000), None);
    assert_eq!((&created["created"], &created["dead_letter_retention"]), (&json!(true), &month));
    let other = cli.fails(1, "queue create mails --shards 2");
    assert!(other.contains("age:30d") && other.contains("queue alter"), "{other}");
    let mails = mails(&cli).await;
    for number in 0..6 {
        mails.schedule(&format!("mail {number}")).id(format!("{number}")).await.expect("scheduled");
    }
    die(&mails, 6).await;

    let nothing = cli.json("queue dead trim mails --yes");
    assert_eq!((&nothing["dropped"], &nothing["retention"]), (&json!(0), &month), "{nothing}");
    let dry = cli.json("queue dead trim mails --retention length:1 --dry-run");
    assert_eq!((&dry["dropped"], &dry["aged"], &dry["excess"]), (&json!(4), &json!(0), &json!(4)), "{dry}");
    let shards: u64 =
        dry["shards"].as_object().expect("shards").values().filter_map(serde_json::Value::as_u64).sum();
    assert_eq!((shards, &dry["dry_run"]), (4, &json!(true)));
    assert!(cli.fails(2, "queue dead trim mails --retention length:1").contains("--yes"));
    assert_eq!(cli.json("queue counts mails")["dead"], 6);

    assert!(cli.fails(2, "queue alter mails --dead-letter-retention length:2").contains("--yes"));
    assert!(cli.fails(2, "queue alter mails").contains("--dead-letter-retention"));
    assert_eq!(cli.json("queue alter mails --dead-letter-retention length:2 --dry-run")["changed"], true);
    assert_eq!(cli.json("queue counts mails")["dead_letter_retention"], month);
    let altered = cli.json("queue alter mails --dead-letter-retention length:2 --yes");
    assert_eq!(
        (&altered["changed"], &altered["dead_letter_retention"]),
        (&json!(true), &keeps(None, Some(2)))
    );
    assert_eq!(cli.json("queue alter mails --dead-letter-retention length:2")["changed"], false);
    assert!(cli.ok("queue counts mails").contains("length:2"));
    assert!(cli.ok("queue dead trim mails --yes").starts_with("2 dead tasks dropped: 0 too old, 2 too many"));
    assert_eq!(cli.json("queue counts mails")["dead"], 4);
    assert_eq!(cli.json("queue alter mails --dead-letter-retention keep")["changed"], true);
    assert!(cli.fails(2, "queue dead trim mails --yes").contains("--retention"));
}

#[tokio::test]
async fn what_dies_while_somebody_reads_the_question_is_left() {
    for deed in ["purge", "replay"] {
        let cli = Cli::new();
        let mails = mails(&cli).await;
        for number in 0..8 {
            mails
                .schedule(&format!("mail {number}"))
                .id(format!("before-{number}"))
                .await
                .expect("scheduled");
        }
        die(&mails, 8).await;
        let mut terminal = Pty::run(&cli.command(&["queue", "dead", deed, "mails", "--all"]), (100, 20));
        terminal.until_text("8 dead tasks of mails");
        // On both shards.
        for number in 0..8 {
            mails.schedule(&format!("mail {number}")).id(format!("after-{number}")).await.expect("scheduled");
        }
        die(&mails, 8).await;
        terminal.press("y\r");
        let (code, screen) = terminal.end();
        assert_eq!(code, 0, "{screen}");
        assert!(screen.contains("8 dead tasks "), "{screen}");
        let list = cli.json("queue dead list mails");
        let left = list.as_array().expect("a list");
        let came_later =
            |it: &serde_json::Value| it["task"].as_str().is_some_and(|it| it.starts_with("after-"));
        assert!(left.len() == 8 && left.iter().all(came_later), "{deed}: {list}");
    }
}

#[tokio::test]
async fn a_queue_is_deleted_with_its_tasks() {
    let cli = Cli::new();
    let mails = mails(&cli).await;
    for id in ["a", "b"] {
        mails.schedule(&"x".to_owned()).id(id).await.expect("scheduled");
    }
    die(&mails, 2).await;
    cli.ok("queue add mails --payload x --delay 1h");
    cli.ok("schedule add mails sweep --queue --every 10m --payload x");
    let dry = cli.json("queue delete mails --dry-run");
    let counts =
        |view: &serde_json::Value| ["waiting", "claimed", "dead", "recurring"].map(|it| view[it].as_u64());
    assert_eq!(counts(&dry), [Some(1), Some(0), Some(2), Some(1)], "{dry}");
    assert!(
        cli.fails(2, "queue delete mails").contains("1 waiting task, 0 claimed, 2 dead and 1 recurring rule")
    );
    assert_eq!(cli.json("queue delete mails --yes")["deleted"], true);
    assert!(cli.fails(1, "queue delete mails --yes").contains("delay queue mails does not exist"));
    assert_eq!(cli.json("queue list"), json!([]));
    cli.ok("queue create mails --shards 2");
    assert_eq!(cli.json("queue counts mails")["dead"], 0);
    assert_eq!(cli.json("schedule list mails --queue"), json!([]));

    let task = |_: Task<String>| std::future::pending::<()>();
    let worker = mails.worker().start(task).await.expect("a worker");
    mails.schedule(&"x".to_owned()).id("c").await.expect("scheduled");
    eventually("it is claimed", async || mails.count().await.expect("a count").claimed == 1).await;
    let refused = cli.fails(1, "queue delete mails --yes");
    assert!(refused.contains("workers have claimed 1 task of delay queue mails"), "{refused}");
    assert_eq!(cli.json("queue delete mails --force --yes")["deleted"], true);
    worker.shutdown_within(Duration::from_millis(10)).await;
}
