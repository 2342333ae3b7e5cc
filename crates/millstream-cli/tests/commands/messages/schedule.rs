//! `millstream schedule`.

use millstream::Topic;
use millstream::delay::DelayQueue;
use serde_json::json;

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::{fed, topic};

const DAILY: [&str; 11] = [
    "schedule",
    "add",
    "reports",
    "daily",
    "--cron",
    "0 9 * * *",
    "--zone",
    "Europe/Zurich",
    "--payload",
    "sales",
    "--json",
];

#[tokio::test]
async fn what_recurs_in_a_topic_is_added_listed_and_told_in_advance() {
    let cli = Cli::new();
    let missing = cli.fails(1, &DAILY[..]);
    assert!(missing.contains("topic reports does not exist; for a delay queue say --queue"), "{missing}");
    assert_eq!(cli.json("topic list"), json!([]), "and it is not created");
    topic(&cli.mq().await, "reports", 2).await;

    let dry = envelope::data(&cli.ok(&[&DAILY[..], &["--dry-run"]].concat()[..]));
    assert_eq!((&dry["outcome"], dry["times_ms"].as_array().map(Vec::len)), (&json!(null), Some(5)));
    assert_eq!(cli.json("schedule list reports"), json!([]));
    let outcome = |args: &[&str]| {
        let added = envelope::data(&cli.ok(args));
        assert_eq!(added["times_ms"], dry["times_ms"]);
        added["outcome"].as_str().expect("a word").to_owned()
    };
    assert_eq!(outcome(&DAILY), "new");
    assert_eq!(outcome(&DAILY), "unchanged");
    assert_eq!(outcome(&[&DAILY[..], &["--key", "eu"]].concat()), "replaced");

    let list = cli.json("schedule list reports");
    assert_eq!((&list[0]["id"], &list[0]["paused"]), (&json!("daily"), &json!(false)));
    assert_eq!(list[0]["rule"], "cron Europe/Zurich once 0 9 * * *");
    assert_eq!(list[0]["next_ms"], dry["times_ms"][0]);
    let table = cli.ok("schedule list reports");
    assert!(table.contains("cron 0 9 * * * in Europe/Zurich") && table.contains("T09:00:00+0"), "{table}");
    assert!(cli.ok("schedule next reports").lines().skip(1).all(|line| line.contains("T09:00:00+0")));
    assert_eq!(list[0]["payload"], "sales");
    assert_eq!(
        (&list[0]["zone"], &list[0]["rule_text"]),
        (&json!("Europe/Zurich"), &json!("cron 0 9 * * * in Europe/Zurich"))
    );
    assert_eq!(
        list[0]["times_ms"]
            .as_array()
            .map(|times| times[..] == dry["times_ms"].as_array().expect("times")[..3]),
        Some(true)
    );
    assert!(table.lines().all(|line| line.ends_with("sales") || line.ends_with("payload")), "{table}");
    assert_eq!(cli.json("schedule show reports daily"), list[0]);
    let story = cli.ok("schedule show reports daily");
    assert!(
        story.contains("time zone  Europe/Zurich") && story.ends_with("key        eu\nsales\n"),
        "{story}"
    );
    assert_eq!(story.matches("\nnext ").count(), 3, "{story}");
    assert!(
        cli.fails(1, "schedule show reports weekly").contains("reports has no recurring rule \"weekly\"")
    );
    let next = cli.json("schedule next reports daily --count 5");
    assert_eq!(next, json!([{"id": "daily", "paused": false, "times_ms": dry["times_ms"]}]));
    assert!(
        cli.fails(1, "schedule next reports weekly").contains("reports has no recurring rule \"weekly\"")
    );
    let wrong = cli.fails(1, ["schedule", "add", "reports", "x", "--cron", "0 25 * * *", "--payload", "x"]);
    assert!(wrong.contains("cron pattern \"0 25 * * *\": the hour \"25\" is wrong (0-23)"), "{wrong}");
    assert!(cli.fails(2, "schedule add reports x --payload x").contains("--cron"));
    assert!(cli.fails(2, "schedule add reports x --every 1m").contains("--payload or --file"));
}

#[tokio::test]
async fn it_is_paused_resumed_sent_and_removed() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "reports", 2).await;
    let every = [
        "schedule", "add", "reports", "pulse", "--every", "1h", "--missed", "skip", "--key", "k", "--header",
        "a=1",
    ];
    fed(&cli, &[&every[..], &["--file", "-"]].concat(), b"\xff\0");
    cli.ok("schedule pause reports pulse");
    assert_eq!(cli.json("schedule list reports")[0]["paused"], true);
    assert!(cli.ok("schedule next reports").contains("paused"));
    cli.ok("schedule resume reports pulse");
    let next = cli.json("schedule list reports")[0]["next_ms"].as_u64().expect("a time");
    let times = cli.json("schedule next reports --count 3");
    assert_eq!(times[0]["times_ms"], json!([next, next + 3_600_000, next + 7_200_000]));

    cli.ok("schedule run reports pulse");
    let waiting =
        mq.delayed(&Topic::raw("reports")).await.expect("the topic").list(None, 10).await.expect("a page");
    assert_eq!(waiting.len(), 1);
    assert!(waiting[0].id.as_str().starts_with("pulse@"));
    let sent = waiting[0].envelope.clone().expect("a message");
    assert_eq!((&sent.payload[..], sent.key.as_deref()), (&b"\xff\0"[..], Some(&b"k"[..])));
    assert_eq!(sent.headers.get_str("a"), Some("1"));

    assert!(cli.fails(2, "schedule remove reports pulse").contains("--yes"));
    let dry = cli.json("schedule remove reports pulse --dry-run");
    assert_eq!(dry, json!({"done": ["pulse"], "missing": [], "dry_run": true}));
    assert_eq!(cli.json("schedule list reports").as_array().map(Vec::len), Some(1));
    cli.ok("schedule remove reports pulse --yes");
    assert_eq!(cli.json("schedule list reports"), json!([]));
    let gone = cli.run("schedule pause reports pulse");
    assert_eq!(
        (gone.code, gone.stderr.as_str()),
        (1, "pulse: no such recurring rule\nerror: 1 of 1 id not found\n")
    );
}

#[tokio::test]
async fn a_delay_queue_has_recurring_tasks() {
    let cli = Cli::new();
    assert!(cli.fails(1, "schedule list mails --queue").contains("delay queue mails does not exist"));
    assert_eq!(cli.json("queue list"), json!([]), "and it is not created");
    let mq = cli.mq().await;
    let mails = DelayQueue::<String>::new("mails").shards(2).open(mq.backend()).await.expect("a queue");
    cli.ok(["schedule", "add", "mails", "sweep", "--queue", "--every", "10m", "--payload", "\"x\""]);
    let entry = mails.recurring_list().await.expect("a list").pop().expect("it is there");
    assert_eq!(entry.id.as_str(), "sweep");
    assert!(entry.rule.starts_with("every 600000 anchor "), "{}", entry.rule);
    assert!(cli.ok("schedule list mails --queue").contains(" every 10m "));
    cli.ok("schedule run mails sweep --queue");
    let task = mails.list(None, 10).await.expect("a page").pop().expect("it waits");
    assert_eq!(task.payload().expect("a payload"), "x");
}

#[tokio::test]
async fn a_dry_run_refuses_what_could_not_be_added() {
    let cli = Cli::new();
    topic(&cli.mq().await, "reports", 1).await;
    let long = "x".repeat(236);
    for dry in [&["--dry-run"][..], &[]] {
        for (id, why) in [("", "schedule id is empty"), (&*long, "is too long to recur, at most 235 bytes")] {
            let args = ["schedule", "add", "reports", id, "--every", "10m", "--payload", "x"];
            let refused = cli.fails(1, [&args[..], dry].concat().as_slice());
            assert!(refused.contains(why), "{dry:?}: {refused}");
        }
    }
}
