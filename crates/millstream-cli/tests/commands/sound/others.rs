//! Damage to the keys of delay queues, locks and operations: no command says that all is well, and what is whole is shown.

use std::time::Duration;

use millstream::Namespace;
use millstream::crates::core::keys::{Key, Keys};
use millstream::crates::core::schedule::Shard;
use millstream::delay::DelayQueue;
use serde_json::Value;

use crate::support::cli::{Cli, Ran};
use crate::support::envelope;
use crate::support::feed::eventually;
use crate::support::server::Server;

const HOUR: Duration = Duration::from_secs(3_600);

fn keys(cli: &Cli) -> Keys {
    Keys::within(&Namespace::new(&cli.namespace).expect("a name"))
}

/// A queue with two tasks that wait and a rule, and another one.
async fn queues(server: &Server) -> (Cli, Keys, Shard) {
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    for name in ["mails", "other"] {
        let queue = DelayQueue::<String>::new(name).shards(1).open(mq.backend()).await.expect("a queue");
        for _ in 0..2 {
            queue.schedule(&"x".to_owned()).delay(HOUR).await.expect("scheduled");
        }
    }
    cli.ok("schedule add mails sweep --queue --every 10m --payload x");
    let keys = keys(&cli);
    (cli, keys, Shard::new("mails".parse().expect("a name"), 0))
}

/// What a command says of a queue: its waiting tasks, or that it cannot be read. The other one has two.
fn waiting(list: &Value, what: &str) -> Option<u64> {
    let of = |name: &str| list.as_array().expect("a list").iter().find(|it| it["queue"] == name);
    assert_eq!(of("other").map(|it| &it["waiting"]), Some(&Value::from(2)), "{what}: {list}");
    of("mails").and_then(|it| it["waiting"].as_u64())
}

/// Checks what all commands say of damage. `Some`: so many tasks wait; `None`: it cannot be read. `verify` finds these faults.
async fn check(what: &str, (cli, mails): (&Cli, &Shard), seen: Option<u64>, faults: &str) {
    let partial = i32::from(seen.is_none());
    let listed = cli.run("queue list --json");
    assert_eq!(listed.code, partial, "{what}: {listed:?}");
    assert_eq!(waiting(&envelope::parts(&listed.stdout).0[0], what), seen, "{what}: queue list");
    let top = cli.run("top --once --interval 100ms --json");
    let shown = envelope::parts(&top.stdout).0[0]["queues"].clone();
    assert_eq!(waiting(&shown, what), seen, "{what}: top: {top:?}");
    // It lists the rules, too.
    assert!(top.code >= partial, "{what}: {top:?}");
    let exported = cli.run("exporter --once");
    assert_eq!(exported.code, partial, "{what}: {exported:?}");
    let figure = |queue: &str| {
        let is_it = |line: &&str| line.starts_with("millstream_tasks_waiting{") && line.contains(queue);
        let line = exported.stdout.lines().find(is_it)?;
        line.rsplit(' ').next().and_then(|it| it.parse::<u64>().ok())
    };
    assert_eq!((figure("\"mails\""), figure("\"other\"")), (seen, Some(2)), "{what}: exporter");
    #[cfg(feature = "dashboard")]
    {
        let page = crate::http::dashboard::page(cli, "/queues");
        let says = ["has the wrong type", "lost its settings"].iter().any(|says| page.contains(says));
        assert!(page.contains(">other<") && (says || seen.is_some()), "{what}: the dashboard: {page}");
    }
    let found = cli.json_with(3, "verify");
    let findings = found["findings"].as_array().expect("a list").iter();
    assert!(findings.clone().all(|it| it["scope"].to_string().contains("mails")), "{what}: {found}");
    let mut named: Vec<_> = findings.filter_map(|it| it["fault"].as_str()).collect();
    named.dedup();
    assert_eq!(
        (named.join(", ").as_str(), &found["sound"]),
        (faults, &Value::from(false)),
        "{what}: {found}"
    );
    assert_eq!(mails.queue.as_str(), "mails");
}

/// One foreign key of a queue is named by `verify`, and by whoever reads it; it hides no other queue.
#[tokio::test]
async fn a_foreign_key_of_a_queue_is_told_by_all_that_read_it() {
    let server = Server::start();
    type Of = fn(&Keys, &Shard) -> Key;
    let damages: [(Of, Option<u64>); 11] = [
        (|keys, at| keys.delay(&at.clone().into()), None),
        (|keys, at| keys.delay_items(&at.clone().into()), Some(2)),
        (|keys, at| keys.claims(at), None),
        (|keys, at| keys.task_states(at), Some(2)),
        (|keys, at| keys.finished(at), Some(2)),
        (|keys, at| keys.watcher(at), None),
        (|keys, at| keys.wake(&at.clone().into()), Some(2)),
        (|keys, at| keys.dead_tasks(at), None),
        (|keys, at| keys.recur(&at.clone().into()), Some(2)),
        (|keys, at| keys.recur_items(&at.clone().into()), Some(2)),
        (|keys, at| keys.queue_meta(&at.queue), None),
    ];
    for (of, seen) in damages {
        let (cli, keys, shard) = queues(&server).await;
        let key = of(&keys, &shard).to_string();
        server.cli(&["DEL", &key]);
        server.cli(&["SET", &key, "theirs"]);
        check(&format!("foreign {key}"), (&cli, &shard), seen, "wrong_type").await;
    }
}

/// Times that are lost are found where their bodies are, and bodies where their times are.
#[tokio::test]
async fn a_lost_key_of_a_queue_is_found() {
    let server = Server::start();
    type Of = fn(&Keys, &Shard) -> Key;
    let damages: [(Of, Option<u64>, &str, bool); 5] = [
        (|keys, at| keys.delay(&at.clone().into()), Some(2), "body_stranded", true),
        (|keys, at| keys.delay_items(&at.clone().into()), Some(2), "body_lost", false),
        (|keys, at| keys.recur(&at.clone().into()), Some(2), "rule_stranded", true),
        (|keys, at| keys.recur_items(&at.clone().into()), Some(2), "rule_lost", true),
        (|keys, at| keys.queue_meta(&at.queue), None, "queue_without_settings", false),
    ];
    for (of, seen, faults, repaired) in damages {
        let (cli, keys, shard) = queues(&server).await;
        let key = of(&keys, &shard).to_string();
        assert_eq!(server.cli(&["DEL", &key]), "1", "{key}");
        check(&format!("lost {key}"), (&cli, &shard), seen, faults).await;
        // Nothing comes for a task without a time: it is late in all lists, and an alert fires.
        let late = cli.run("queue list --json");
        let late = envelope::parts(&late.stdout).0[0].to_string().contains("\"overdue\":2");
        assert_eq!(late, faults == "body_stranded", "{key}");
        cli.run("verify --queue mails --repair --yes");
        let again = cli.run("verify --queue mails --json");
        assert_eq!(again.code == 0 && again.stdout.contains("\"sound\":true"), repaired, "{key}: {again:?}");
    }
    let (cli, keys, shard) = queues(&server).await;
    server.cli(&["DEL", &keys.queues().to_string()]);
    let found = cli.json_with(3, "verify --queue mails");
    assert_eq!(found["findings"][0]["fault"], "queue_unlisted", "{found}");
    let listed = cli.run("queue list --json");
    assert_eq!(waiting(&envelope::parts(&listed.stdout).0[0], "the list"), Some(2));
    assert!(listed.stderr.contains("the list was lost"), "{listed:?}");
    assert_eq!(shard.queue.as_str(), "mails");
}

/// A lock whose record is gone is free, and says so; what is of another type is named, and hides no other lock.
#[tokio::test]
async fn damage_to_a_lock_is_told_and_hides_no_other() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    let mut held = Vec::new();
    for name in ["invoice:1", "invoice:2"] {
        held.push(mq.lock(name).owner("ann").ttl(HOUR).acquire().await.expect("acquired"));
    }
    let waiting = tokio::spawn(mq.lock("invoice:1").owner("bob").acquire());
    eventually("somebody waits", async || cli.json("lock show invoice:1")["waiting"] == 1).await;
    let all = server.cli(&["KEYS", &format!("{}:streaming:mq:lock*", cli.namespace)]);
    let all: Vec<String> =
        all.lines().map(str::trim).filter(|it| !it.ends_with("invoice:2")).map(str::to_owned).collect();
    assert!(all.len() >= 5, "{all:?}");
    for key in &all {
        server.cli(&["COPY", key, "saved"]);
        server.cli(&["DEL", key]);
        server.cli(&["SET", key, "theirs"]);
        let (list, show) = (cli.run("lock list --json"), cli.run("lock show invoice:1 --json"));
        let told = |said: &str| said.contains(key.as_str()) || said.contains("wrong type");
        let whole = |said: &Ran| said.code == 0 && said.stdout.contains("ann");
        assert!(
            list.stdout.contains("invoice:2") || told(&list.stderr) || told(&list.stdout),
            "{key}: {list:?}"
        );
        assert!(whole(&show) || told(&show.stdout) || told(&show.stderr), "{key}: {show:?}");
        server.cli(&["DEL", key]);
        server.cli(&["RENAME", "saved", key]);
    }
    assert!(cli.json("lock show invoice:1")["holder"].to_string().contains("ann"));
    waiting.abort();
    drop(held);
}
