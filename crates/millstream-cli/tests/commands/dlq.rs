//! `millstream dlq`.

mod changes;
mod errors;
pub(crate) mod letters;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bytes::Bytes;
use millstream::crates::core::dead_letters::Claim;
use millstream::crates::core::{Envelope, History, Reason, wire};
use millstream::{DeadLetter, Delivery, MessageId, Millstream, Outcome, Topic, TopicPartition};
use serde_json::Value;

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::eventually;
use crate::support::server::Server;

const ORDERS: Topic<Bytes> = Topic::raw("orders").partitions(2);
const REPAIRS: Topic<Bytes> = Topic::raw("repairs").partitions(1);

fn letter(number: u64) -> DeadLetter {
    let envelope = Envelope::new(format!("{{\"n\": {number}}}"))
        .with_key(format!("k{number}"))
        .with_header("trace", number.to_string());
    DeadLetter {
        id: MessageId::new(number + 1, 0),
        reason: if number.is_multiple_of(2) { Reason::Rejected } else { Reason::Exhausted },
        attempts: 3,
        error: format!("no gate {number}"),
        origin: MessageId::new(number + 1, 5),
        topic_partition: TopicPartition::new("orders".parse().expect("a name"), (number / 2 % 2) as u32),
        group: "billing".parse().expect("a name"),
        history: History::parse("5 1 no gate\n9 2 no gate"),
        body: wire::encode(&envelope),
    }
}

async fn put(mq: &Millstream, letter: DeadLetter) -> MessageId {
    let (tp, group) = (letter.topic_partition.clone(), letter.group.clone());
    let put = mq
        .backend()
        .dead_letters()
        .expect("dead letters")
        .put(&tp, &group, &[letter], true)
        .await
        .expect("put");
    put[0].expect("put")
}

/// Letters 0 to n-1 of the group billing, two by two of two partitions; even ones are rejected.
async fn letters(mq: &Millstream, count: u64) {
    mq.producer(ORDERS).await.expect("a producer");
    mq.producer(REPAIRS).await.expect("a producer");
    let consumer =
        mq.consumer(ORDERS, "billing").start(async |_: Delivery<Bytes>| {}).await.expect("started");
    consumer.shutdown().await;
    let mut last = MessageId::ZERO;
    for number in 0..count {
        // The server's clock has to go on: ids of two partitions can be the same.
        loop {
            let id = put(mq, letter(number)).await;
            if id.ms > last.ms {
                last = id;
                break;
            }
            let (tp, group) = (letter(number).topic_partition, "billing".parse().expect("a name"));
            mq.backend()
                .dead_letters()
                .expect("dead letters")
                .purge(&tp, &group, &[id])
                .await
                .expect("purged");
        }
    }
}

async fn prepared(count: u64) -> (Cli, Millstream) {
    let cli = Cli::new();
    let mq = cli.mq().await;
    letters(&mq, count).await;
    (cli, mq)
}

fn ids(page: &Value) -> Vec<String> {
    let letters = page["letters"].as_array().expect("letters");
    letters.iter().map(|it| it["id"].as_str().expect("an id").to_owned()).collect()
}

/// What comes back to the group, as many as there are expected.
async fn handled(mq: &Millstream, group: &str, topic: Topic<Bytes>, count: usize) -> Vec<Envelope> {
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let consumer = mq.consumer(topic, group).start(move |it: Delivery<Bytes>| {
        let mut envelope = Envelope::new(it.payload.clone());
        (envelope.key, envelope.headers) = (it.key().cloned(), it.headers().clone());
        let told = tell.send(envelope);
        async move { told.map_or_else(|_| Outcome::retry("nobody listens"), |()| Outcome::Ack) }
    });
    let consumer = consumer.await.expect("started");
    let mut seen = Vec::new();
    for _ in 0..count {
        let next = tokio::time::timeout(Duration::from_secs(60), told.recv()).await;
        seen.push(next.expect("in time").expect("a message"));
    }
    consumer.shutdown().await;
    seen
}

#[tokio::test]
async fn letters_are_listed_shown_and_counted() {
    let (cli, _mq) = prepared(6).await;
    let all = cli.json("dlq list orders billing");
    assert_eq!((ids(&all).len(), all["next"].is_null()), (6, true));
    let first = &all["letters"][0];
    assert_eq!((&first["reason"], &first["error"]), (&"rejected".into(), &"no gate 0".into()));
    assert_eq!((&first["payload"]["n"], &first["headers"]["trace"]), (&0.into(), &"0".into()));
    assert_eq!(first["history"].as_array().expect("a history").len(), 2);

    let page = cli.json("dlq list orders billing --limit 4");
    let after = page["next"].as_str().expect("a cursor");
    let rest = cli.json(format!("dlq list orders billing --after {after}").as_str());
    assert_eq!([ids(&page), ids(&rest)].concat(), ids(&all));
    let mut backwards = ids(&cli.json("dlq list orders billing --newest-first"));
    backwards.reverse();
    assert_eq!(backwards, ids(&all));
    assert_eq!(ids(&cli.json("dlq list orders billing --reason exhausted --partition 1")).len(), 1);
    assert_eq!(ids(&cli.json(["dlq", "list", "orders", "billing", "--error", "gate 4"])), ids(&all)[4..5]);
    assert_eq!(
        ids(&cli.json("dlq list orders billing --key k3 --header trace=3 --until 2100-01-01T00:00:00Z"))
            .len(),
        1
    );

    let shown = cli.ok(["dlq", "show", "orders", "billing", &ids(&all)[2]]);
    assert!(
        shown.contains("no gate 2") && shown.contains("{\"n\": 2}") && shown.contains("trace=2"),
        "{shown}"
    );
    assert_eq!(cli.json(["dlq", "show", "orders", "billing", &ids(&all)[2]])["payload"]["n"], 2);
    assert!(cli.fails(1, "dlq show orders billing 1-1").contains("no dead letter 1-1"));

    assert_eq!(cli.json("dlq count orders billing")["count"], 6);
    let misspelt = cli.fails(2, "dlq list orders billing --reason exausted");
    assert!(misspelt.contains("reasons are exhausted, rejected"), "{misspelt}");
    let counted = cli.json("dlq count orders billing --reasons --min-attempts 3");
    assert_eq!((&counted["reasons"]["rejected"], &counted["partitions"]["0"]), (&3.into(), &4.into()));
    assert!(cli.fails(1, "dlq list orders shipping").contains("shipping"));
    assert!(cli.fails(2, "dlq list orders billing --partition 2").contains("no partition 2"));
}

#[tokio::test]
async fn letters_are_replayed_to_their_group() {
    let (cli, mq) = prepared(6).await;
    let all = ids(&cli.json("dlq list orders billing"));
    assert!(cli.fails(2, "dlq replay orders billing").contains("which letters?"));
    assert!(cli.fails(2, "dlq replay orders billing --reason rejected").contains("--yes"), "nobody is asked");
    let dry = cli.json("dlq replay orders billing --reason rejected --dry-run");
    assert_eq!((&dry["replayed"], dry["sample"].as_array().expect("a sample").len()), (&3.into(), 3));
    assert_eq!(cli.json("dlq count orders billing")["count"], 6, "nothing was done");

    assert_eq!(cli.json(["dlq", "replay", "orders", "billing", &all[1]])["replayed"], 1);
    let again = cli.run(["dlq", "replay", "orders", "billing", &all[1]]);
    assert!(again.code == 1 && again.stderr.contains("1 of 1 id not found"), "{again:?}");
    assert_eq!(cli.json("dlq replay orders billing --reason rejected --limit 2 --yes")["replayed"], 2);
    assert_eq!(cli.json("dlq replay orders billing --all --yes")["replayed"], 3);
    let mut seen: Vec<_> =
        handled(&mq, "billing", ORDERS, 6).await.into_iter().map(|it| it.payload).collect();
    seen.sort();
    assert_eq!(seen, (0..6).map(|n| Bytes::from(format!("{{\"n\": {n}}}"))).collect::<Vec<_>>());
    assert_eq!(cli.json("dlq count orders billing")["count"], 0);
}

#[tokio::test]
async fn letters_are_sent_elsewhere_and_changed() {
    let (cli, mq) = prepared(4).await;
    let all = ids(&cli.json("dlq list orders billing"));
    let edited = cli.json([
        "dlq",
        "replay",
        "orders",
        "billing",
        &all[0],
        "--to-topic",
        "repairs",
        "--set-payload",
        "mended",
        "--set-header",
        "by=me",
        "--remove-key",
    ]);
    assert_eq!(edited["replayed"], 1);
    assert_eq!(cli.json("dlq replay orders billing --all --to-topic repairs --yes")["replayed"], 3);
    let seen = handled(&mq, "repairing", REPAIRS, 4).await;
    let (mended, rest): (Vec<_>, Vec<_>) = seen.into_iter().partition(|it| it.payload == "mended");
    assert_eq!((mended[0].headers.get_str("by"), &mended[0].key), (Some("me"), &None));
    let from = format!("orders/0/billing/{}", all[0]);
    assert_eq!(mended[0].headers.get_str("millstream-replayed-from"), Some(&*from));
    assert!(rest.iter().all(|it| it.key.is_some() && it.headers.get("millstream-replayed-reason").is_some()));
    assert!(cli.fails(1, "dlq replay orders billing --all --to-topic none --yes").contains("none"));
}

#[tokio::test]
async fn a_letter_is_changed_in_an_editor() {
    let (cli, mq) = prepared(2).await;
    let all = ids(&cli.json("dlq list orders billing"));
    let folder = tempfile::tempdir().expect("a folder");
    let editor = folder.path().join("editor");
    std::fs::write(&editor, "#!/bin/sh\nsed -i 's/0/7/' \"$1\"\n").expect("written");
    std::fs::set_permissions(&editor, std::fs::Permissions::from_mode(0o755)).expect("set");
    let replay = |id: &str, editor: &str| {
        let mut command = cli.command(&["dlq", "replay", "orders", "billing", id, "--edit"]);
        command.env_remove("VISUAL").env("EDITOR", editor).output().expect("it runs")
    };
    let path = editor.to_str().expect("text");
    let unchanged = replay(&all[1], path);
    assert!(String::from_utf8_lossy(&unchanged.stderr).contains("nothing was changed"), "{unchanged:?}");
    assert_eq!(replay(&all[1], "false").status.code(), Some(1));
    assert_eq!(replay(&all[0], path).status.code(), Some(0));
    assert_eq!(handled(&mq, "billing", ORDERS, 1).await[0].payload, "{\"n\": 7}");
    assert_eq!(cli.json("dlq count orders billing")["count"], 1, "what was not changed stays");
    assert!(cli.fails(2, "dlq replay orders billing --all --edit --yes --set-payload x").contains("--edit"));
}

#[tokio::test]
async fn a_rate_is_kept_and_an_interruption_is_told() {
    let (cli, _mq) = prepared(40).await;
    let began = Instant::now();
    let replayed = cli.json("dlq replay orders billing --all --rate 20 --limit 21 --yes");
    assert_eq!(replayed["replayed"], 21);
    assert!(began.elapsed() >= Duration::from_millis(900), "{:?} for 21 at 20 a second", began.elapsed());

    let args = ["dlq", "replay", "orders", "billing", "--all", "--rate", "0.1", "--yes", "--json"];
    let mut command = cli.command(&args);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let left = || cli.json("dlq count orders billing")["count"].as_u64().expect("a count");
    while left() == 19 {
        assert!(began.elapsed() < Duration::from_secs(60), "nothing is replayed");
    }
    let pid = rustix::process::Pid::from_raw(child.id().cast_signed()).expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("sent");
    let ran = child.wait_with_output().expect("it ended");
    assert_eq!(ran.status.code(), Some(130), "{ran:?}");
    let (told, error) = envelope::parts(&String::from_utf8(ran.stdout).expect("UTF-8"));
    assert_eq!((&told[0]["replayed"], left()), (&1.into(), 18));
    assert_eq!(error.expect("it was interrupted")["kind"], "interrupted");
}

#[tokio::test]
async fn letters_go_out_and_come_back_once() {
    let (cli, _mq) = prepared(5).await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("letters.jsonl");
    let file = path.to_str().expect("text");
    assert_eq!(cli.json(["dlq", "export", "orders", "billing", "--output", file])["exported"], 5);
    let refused = cli.fails(1, ["dlq", "export", "orders", "billing", "--output", file]);
    assert!(refused.contains("already exists: --force overwrites it"), "{refused}");
    assert_eq!(std::fs::read_to_string(&path).expect("read").lines().count(), 5, "and stays as it was");
    let fewer = ["dlq", "export", "orders", "billing", "--limit", "1", "--output", file, "--force"];
    assert_eq!(cli.json(fewer)["exported"], 1);
    assert_eq!(std::fs::read_to_string(&path).expect("read").lines().count(), 1);
    cli.ok(["dlq", "export", "orders", "billing", "--output", file, "--force"]);
    let lines = cli.ok("dlq export orders billing");
    assert_eq!((lines.lines().count(), lines.as_str()), (5, &*std::fs::read_to_string(&path).expect("read")));
    assert_eq!(cli.json("dlq purge orders billing --all --yes")["count"], 5);
    assert_eq!(cli.json(["dlq", "import", "orders", "billing", file, "-n"])["put"], 5);
    let imported = cli.json(["dlq", "import", "orders", "billing", file]);
    assert_eq!((&imported["put"], &imported["passed_over"]), (&5.into(), &0.into()));
    assert_eq!(cli.json(["dlq", "import", "orders", "billing", file])["passed_over"], 5);
    cli.ok("dlq purge orders billing --all --yes");
    assert_eq!(cli.json(["dlq", "import", "orders", "billing", file, "--again"])["put"], 5);
    // Of one millisecond, they stand in the order of their partitions.
    let letters = cli.json("dlq list orders billing")["letters"].clone();
    let back: BTreeSet<_> =
        letters.as_array().expect("letters").iter().map(|it| it["payload"]["n"].as_u64()).collect();
    assert_eq!(back, (0..5).map(Some).collect());

    std::fs::write(&path, format!("{}\nno letter\n", lines.lines().next().expect("a line")))
        .expect("written");
    let bad = cli.run(["dlq", "import", "orders", "billing", file, "--again"]);
    assert!(bad.code == 1 && bad.stderr.contains("line 2"), "{bad:?}");
    assert_eq!(cli.json("dlq count orders billing")["count"], 6, "what stood before it was put");
    for (one, other) in [("\"billing\"", "\"shipping\""), ("\"orders\"", "\"none\"")] {
        std::fs::write(&path, lines.replace(one, other)).expect("written");
        for dry in [&["-n"][..], &[]] {
            let ran = cli.run(&[&["dlq", "import", "orders", "billing", file], dry].concat()[..]);
            assert!(ran.code == 1 && ran.stderr.contains(&other.replace('"', "")), "{ran:?}");
        }
    }
    assert!(cli.fails(1, ["dlq", "import", "orders", "shipping", file, "-n"]).contains("group shipping"));
    assert!(cli.fails(1, ["dlq", "import", "none", "billing", file, "-n"]).contains("topic none"));
}

#[tokio::test]
async fn letters_are_purged_after_a_question() {
    let (cli, _mq) = prepared(6).await;
    let all = ids(&cli.json("dlq list orders billing"));
    assert_eq!(cli.json("dlq purge orders billing --all -n")["count"], 6);
    assert!(cli.fails(2, "dlq purge orders billing --all").contains("--yes"));
    // A variable of a script that is empty selects nothing.
    for empty in ["--error=", "--filter="] {
        cli.fails(2, &format!("dlq purge orders billing {empty} --yes"));
    }
    assert_eq!(cli.json(["dlq", "purge", "orders", "billing", &all[0], &all[1], "--yes"])["count"], 2);
    assert_eq!(cli.json("dlq purge orders billing --reason rejected --yes")["count"], 2);
    assert_eq!(ids(&cli.json("dlq list orders billing")), [all[3].clone(), all[5].clone()]);
    let gone = cli.run(["dlq", "purge", "orders", "billing", &all[0], "--yes"]);
    assert!(gone.code == 1 && gone.stderr.contains("1 of 1 id not found"), "{gone:?}");
}

#[tokio::test]
async fn letters_that_a_retention_does_not_keep_are_dropped_after_a_question() {
    // Three in partition 0 (0, 1, 4, of which 5 is the newest), two in partition 1.
    let (cli, mq) = prepared(6).await;
    let all = ids(&cli.json("dlq list orders billing"));
    let none = cli.fails(2, "dlq trim orders billing");
    assert!(none.contains("--retention"), "the topic keeps them: {none}");
    let trim = "dlq trim orders billing --retention age:30d,length:1";
    let would = cli.json(&format!("{trim} --dry-run"));
    assert_eq!((&would["dropped"], &would["excess"], &would["aged"]), (&4.into(), &4.into(), &0.into()));
    assert_eq!(would["partitions"], serde_json::json!({ "0": 3, "1": 1 }));
    assert!(cli.fails(2, trim).contains("--yes"), "nobody is asked");
    assert_eq!(cli.json("dlq count orders billing")["count"], 6, "nothing was done");
    let claim = Claim { by: "somebody".into(), hold: Duration::from_secs(600), left_too: false };
    let (tp, group) = (letter(0).topic_partition, letter(0).group);
    let first: MessageId = all[0].parse().expect("an id");
    let role = mq.backend().dead_letters().expect("dead letters");
    assert_eq!(role.claim(&tp, &group, &[first], &claim).await.expect("claimed"), [first]);
    let said = cli.ok(&format!("{trim} --yes"));
    assert_eq!(said, "3 dead letters dropped: 0 too old, 3 too many; 1 stays, since it is claimed\n");
    assert_eq!(ids(&cli.json("dlq list orders billing")), [&all[0], &all[3], &all[5]].map(String::clone));
    // That of the topic, without a question where nothing is dropped.
    cli.ok("topic alter orders --dead-letter-retention length:2 --yes");
    let trimmed = cli.json("dlq trim orders billing");
    assert_eq!((&trimmed["dropped"], &trimmed["retention"]["max_length"]), (&0.into(), &2.into()));
    assert!(cli.fails(1, "dlq trim orders shipping").contains("shipping"));
}

#[tokio::test]
async fn an_id_that_two_partitions_have_needs_the_partition() {
    let (cli, mq) = prepared(0).await;
    let id = loop {
        let (one, two) = tokio::join!(put(&mq, letter(0)), put(&mq, letter(2)));
        if one == two {
            break one.to_string();
        }
    };
    for refused in [
        cli.fails(2, ["dlq", "purge", "orders", "billing", &id, "--yes"]),
        cli.fails(2, ["dlq", "replay", "orders", "billing", &id]),
        cli.fails(2, ["dlq", "show", "orders", "billing", &id]),
    ] {
        assert!(refused.contains("--partition selects one"), "{refused}");
    }
    assert_eq!(cli.json(["dlq", "show", "orders", "billing", &id, "--partition", "1"])["error"], "no gate 2");
    let purge = ["dlq", "purge", "orders", "billing", &id, "--partition", "1", "--yes"];
    assert_eq!(cli.json(purge)["count"], 1);
    assert_eq!(cli.json(["dlq", "show", "orders", "billing", &id])["error"], "no gate 0");
}

#[tokio::test]
async fn a_replay_waits_for_a_full_server_and_says_so_once() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    letters(&mq, 4).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let words = ["dlq", "replay", "orders", "billing", "--all", "--yes", "--json"];
    let mut command = cli.command(&words);
    let mut replay = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut said = BufReader::new(replay.stderr.take().expect("a pipe")).lines();
    let first = said.next().expect("a line").expect("text");
    assert_eq!(first, "the server is out of memory; it is tried again for 20 s");
    // It tries several times.
    let count = || {
        let stats = server.cli(&["INFO", "errorstats"]);
        let line = stats.lines().find_map(|line| line.strip_prefix("errorstat_OOM:count="));
        line.and_then(|count| count.trim().parse::<u64>().ok()).unwrap_or_default()
    };
    let before = count();
    eventually("it is refused again", async || count() > before + 1).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let output = replay.wait_with_output().expect("it ends");
    let rest: Vec<String> = said.map(|line| line.expect("text")).collect();
    assert!(output.status.success(), "{rest:?}");
    assert_eq!(rest, Vec::<String>::new(), "nothing is said twice");
    assert_eq!(cli.json("dlq count orders billing")["count"], 0);
}

#[tokio::test]
async fn a_replay_that_gives_up_says_how_many_stay_and_how_to_go_on() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    letters(&mq, 4).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let words = "dlq replay orders billing --all --yes";
    let gave_up = cli.run(words);
    let said: Vec<&str> = gave_up.stderr.lines().collect();
    let full = "the server is out of memory";
    let again = format!("{full}; it is tried again for 20 s");
    let stay =
        format!("error: {full}; 4 dead letters stay where they are: the same command goes on with them");
    assert_eq!((gave_up.code, said), (1, vec![&*again, &*stay]), "{gave_up:?}");
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    cli.ok(words);
    assert_eq!(cli.json("dlq count orders billing")["count"], 0);
}
