//! The table of damage: each is made with raw commands, and what every command says is compared with the truth. The guide
//! has the same table.

mod table;

use std::collections::BTreeSet;

use millstream::crates::core::keys::Keys;
use millstream::{Delivery, GroupName, Namespace, Outcome, TopicName, TopicPartition};
use serde_json::Value;

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::eventually;
use crate::support::seed;
use crate::support::server::Server;
use table::{After, Damage, Place, Seen, TABLE};

/// Messages of an entry: in plain topics, and in packed ones.
const EACH: [u64; 2] = [1, 3];

/// A topic with two groups, as [`Place`] says, and another topic, in a namespace of its own. Each entry has so many messages.
async fn whole(server: &Server, each: u64) -> (Cli, Place) {
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    if each == 1 {
        seed::orders(&mq, 10).await;
    } else {
        seed::packs(&mq, 10, each).await;
    }
    for line in [
        "group create orders audit",
        "group create orders billing",
        "topic create other",
        "group create other g",
    ] {
        cli.ok(line);
    }
    let keys = Keys::within(&Namespace::new(&cli.namespace).expect("a name"));
    let topic: TopicName = "orders".parse().expect("a name");
    let group: GroupName = "billing".parse().expect("a name");
    let tp = TopicPartition::new(topic.clone(), 0);
    let log = keys.log(&tp).to_string();
    let entries = server.cli(&["XRANGE", &log, "-", "+"]);
    let is_id = |line: &&str| line.split_once('-').is_some_and(|(ms, _)| ms.parse::<u64>().is_ok());
    let ids = entries.lines().map(str::trim).filter(is_id).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(ids.len(), 5, "{entries}");
    // An owner that came with the last entry: what is appended from now on is newer than its lease.
    let epoch = ids[4].split_once('-').expect("an id").0;
    for number in [0, 1] {
        let fence = keys.fence(&TopicPartition::new(topic.clone(), number), &group).to_string();
        server
            .cli(&["HSET", &fence, "owner", "gone", "token", "", "epoch", epoch, "ttl", "1000", "ends", ""]);
    }
    // As the owner of the partition reads.
    server.cli(&["XREADGROUP", "GROUP", "billing", "owner", "COUNT", "2", "STREAMS", &log, ">"]);
    (cli, Place { keys, topic, tp, group, ids })
}

/// Figures of a row of the table where entries have so many messages: lag and pending are of the log. The others are of messages that
/// left their pack.
fn of_messages(figures: &str, each: u64) -> String {
    let times = |(at, it): (usize, &str)| match it.parse::<u64>() {
        Ok(figure) if at < 2 => (figure * each).to_string(),
        _ => it.to_owned(),
    };
    figures.split(' ').enumerate().map(times).collect::<Vec<_>>().join(" ")
}

const FIGURES: [&str; 4] = ["lag", "pending", "retrying", "dead"];

/// Figures of a group as a row of JSON has them.
fn figures(of: &Value) -> String {
    let figure = |name: &str| of[name].as_u64().map_or_else(|| "?".to_owned(), |it| it.to_string());
    FIGURES.map(figure).join(" ")
}

fn find<'a>(list: &'a Value, name: &str, is: &str) -> Option<&'a Value> {
    list.as_array().expect("a list").iter().find(|it| it[name] == is)
}

/// Figures of a group as metrics have them: sums over partitions.
fn metrics(text: &str, topic: &str, group: &str) -> Option<String> {
    let sum = |name: &str| {
        let prefix = format!("millstream_{name}{{");
        let is_ours = |line: &&str| {
            line.starts_with(&prefix)
                && line.contains(&format!("topic=\"{topic}\""))
                && line.contains(&format!("group=\"{group}\""))
        };
        let mut lines = text.lines().filter(is_ours).peekable();
        lines.peek()?;
        Some(
            lines
                .map(|line| line.rsplit(' ').next().expect("a value").parse::<f64>().expect("a number"))
                .sum(),
        )
    };
    let names = FIGURES.map(|name| if name == "dead" { "dead_letters" } else { name });
    let all: Option<Vec<f64>> = names.iter().map(|name| sum(name)).collect();
    Some(
        all?.iter()
            .map(|it| if it.is_nan() { "?".to_owned() } else { it.to_string() })
            .collect::<Vec<_>>()
            .join(" "),
    )
}

fn faults(verified: &Value) -> String {
    let findings = verified["findings"].as_array().expect("a list").iter();
    let faults: BTreeSet<_> = findings.map(|it| it["fault"].as_str().expect("a fault")).collect();
    faults.into_iter().collect::<Vec<_>>().join(", ")
}

/// JSON of a command with either of two exit codes.
#[track_caller]
fn json(cli: &Cli, partial: bool, line: &str) -> Value {
    cli.json_with(i32::from(partial), line)
}

/// Makes the damage, and compares what each command says. Returns the losses that stay recorded.
async fn check(server: &Server, damage: &Damage, each: u64) -> [u64; 3] {
    let (cli, place) = whole(server, each).await;
    let name = format!("{} ({each})", damage.name);
    let name = name.as_str();
    for command in (damage.commands)(&place) {
        let said = server.cli(&command.split(' ').collect::<Vec<_>>());
        assert!(!said.contains("ERR"), "{name}: {command}: {said}");
    }
    let partial = damage.partial;

    let lag = json(&cli, partial, "lag");
    let other = find(&lag["groups"], "topic", "other").expect("another topic");
    assert_eq!((figures(other), &other["backlog"]), ("0 0 0 0".to_owned(), &Value::from(0)), "{name}: {lag}");
    // It alone lists schedules.
    let top = json(&cli, partial || damage.name == "foreign_rules", "top --once --interval 100ms");
    assert!(find(&top["topics"], "topic", "other").is_some(), "{name}: {top}");
    let exported = cli.run("exporter --once");
    // No metric of the server comes from leases.
    let beside = ["foreign_lease", "foreign_fence"].contains(&damage.name);
    assert_eq!(exported.code, i32::from(partial && !beside), "{name}: {exported:?}");
    assert_eq!(metrics(&exported.stdout, "other", "g").as_deref(), Some("0 0 0 0"), "{name}");
    let exported = metrics(&exported.stdout, "orders", "billing");
    let memory = cli.run("memory --json");
    assert!(
        find(&envelope::parts(&memory.stdout).0[0]["topics"], "topic", "other").is_some(),
        "{name}: {memory:?}"
    );

    #[cfg(feature = "dashboard")]
    {
        let page = crate::http::dashboard::page(&cli, "/overview");
        assert!(page.contains(">other<") && page.contains(">orders<"), "{name}: {page}");
        let says = ["cannot be read completely", "has the wrong type", "lost its settings", ": the stored "];
        // It alone reads the rules.
        let partial = partial || damage.name == "foreign_rules";
        assert_eq!(says.iter().any(|says| page.contains(says)), partial, "{name}: the dashboard: {page}");
    }

    match damage.seen {
        Seen::Figures(truth) => {
            let truth = &*of_messages(truth, each);
            let rows = lag["groups"].as_array().expect("a list");
            let row = |group| rows.iter().find(|it| it["topic"] == "orders" && it["group"] == group);
            let billing = row("billing").unwrap_or_else(|| panic!("{name}: {lag}"));
            assert_eq!(figures(billing), truth, "{name}: lag");
            let unknown = truth.split(' ').take(3).any(|it| it == "?") || damage.name == "foreign_delayed";
            assert_eq!(billing["backlog"].is_null(), unknown, "{name}: {billing}");
            // What is of billing alone says nothing of the other group.
            assert!(row("audit").is_some_and(|it| it["dead"] == 0 && it["retrying"] == 0), "{name}: {lag}");
            let described = json(&cli, partial, "topic describe orders");
            let group = find(&described["groups"], "group", "billing").expect("the group");
            assert_eq!(figures(group), truth, "{name}: topic describe");
            let described = json(&cli, partial, "group describe orders billing");
            assert_eq!(figures(&described), truth, "{name}: group describe");
            let second = &described["partitions"][1];
            assert_eq!(figures(second), of_messages("5 0 0 0", each), "{name}: the other partition");
            let shown = find(&top["topics"], "topic", "orders").expect("the topic");
            let group = find(&shown["groups"], "group", "billing").expect("the group");
            assert_eq!(figures(group), truth, "{name}: top");
            assert_eq!(exported.as_deref(), Some(truth), "{name}: exporter");
        }
        Seen::NoGroups => {
            let row = find(&lag["groups"], "topic", "orders").expect("a row");
            assert!(row["group"].is_null() && row["backlog"].is_null() && row["error"].is_string(), "{row}");
            let described = json(&cli, partial, "topic describe orders");
            assert!(described["groups"][0]["group"].is_null(), "{name}: {described}");
            let text = cli.run("topic describe orders").stdout;
            assert!(!text.contains("no groups") && text.contains('?'), "{name}: {text}");
            let described = json(&cli, true, "group describe orders billing");
            assert_eq!(figures(&described), of_messages("8 2 0 0", each), "{name}");
            assert_eq!(exported, None, "{name}");
        }
        Seen::NoTopic => {
            let row = find(&lag["groups"], "topic", "orders").expect("a row");
            assert!(row["lag"].is_null() && row["backlog"].is_null() && row["error"].is_string(), "{row}");
            cli.fails(1, "topic describe orders");
            assert_eq!(exported, None, "{name}");
        }
    }

    let pending = cli.run("pending orders billing --json");
    let (listed, _) = envelope::parts(&pending.stdout);
    let listed = listed.first().map_or(0, |it| it["entries"].as_array().map_or(0, Vec::len));
    let said = match (listed, pending.code) {
        (0, 1) => "?".to_owned(),
        (some, 1) => format!("{some} ?"),
        (some, code) => {
            assert_eq!(code, 0, "{name}: {pending:?}");
            some.to_string()
        }
    };
    assert_eq!(said, of_messages(damage.pending, each), "{name}: {pending:?}");

    let found = cli.json_with(3, "verify orders");
    assert_eq!(
        (faults(&found).as_str(), &found["sound"]),
        (damage.verify, &Value::from(false)),
        "{name}: {found}"
    );
    let code = if damage.after == After::ByHand { 3 } else { 0 };
    let repaired = cli.json_with(code, "verify orders --repair --yes");
    let again = cli.json_with(code, "verify orders");
    let text = cli.run("verify orders").stdout;
    assert_eq!(again["sound"], damage.after == After::Sound, "{name}: {again}");
    let mut losses = [0; 3];
    if damage.after == After::Lost {
        assert_eq!(repaired["sound"], false, "{name}: {repaired}");
        let lost = &again["lost"];
        losses = ["unread", "pending", "logs"].map(|it| lost[it].as_u64().unwrap_or(0));
        assert!(losses != [0; 3] && lost["last_found_ms"].is_u64(), "{name}: {again}");
        assert!(text.contains("were lost") && !text.contains(": sound"), "{name}: {text}");
        assert_eq!(faults(&again), "entries_lost", "{name}: {again}");
    }
    losses
}

/// Checks every fourth damage, from this one on.
async fn check_from(first: usize) {
    let server = Server::start();
    for damage in TABLE.iter().skip(first).step_by(4) {
        let [plain, packed] = EACH.map(|each| check(&server, damage, each));
        let ([unread, pending, logs], packed) = (plain.await, packed.await);
        // A retry has left its pack, and a delayed message is not in one yet.
        let alone = ["retry_lost", "delayed_lost"].contains(&damage.name);
        let pending = if alone { pending } else { pending * EACH[1] };
        assert_eq!(packed, [unread * EACH[1], pending, logs], "{}: losses", damage.name);
    }
}

#[tokio::test]
async fn what_is_said_of_damage_is_true_1() {
    check_from(0).await;
}

#[tokio::test]
async fn what_is_said_of_damage_is_true_2() {
    check_from(1).await;
}

#[tokio::test]
async fn what_is_said_of_damage_is_true_3() {
    check_from(2).await;
}

#[tokio::test]
async fn what_is_said_of_damage_is_true_4() {
    check_from(3).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_running_consumer_that_finds_its_log_gone_leaves_the_record_of_it() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    seed::orders(&mq, 10).await;
    let handler = async |_: Delivery<u64>| Outcome::Ack;
    let consumer = mq.consumer(seed::ORDERS, "billing").start(handler).await.expect("a consumer");
    eventually("all is handled", async || consumer.report().acked == 10).await;
    assert_eq!(cli.json("verify orders")["sound"], true);
    let keys = Keys::within(&Namespace::new(&cli.namespace).expect("a name"));
    let log = keys.log(&TopicPartition::new("orders".parse().expect("a name"), 0)).to_string();
    server.cli(&["DEL", &log]);
    // A producer does not notice.
    seed::orders(&mq, 4).await;
    eventually("what came later is handled", async || consumer.report().acked == 14).await;
    consumer.shutdown().await;
    let verified = cli.json("verify orders");
    assert_eq!(
        (faults(&verified).as_str(), &verified["sound"]),
        ("entries_lost", &Value::from(false)),
        "{verified}"
    );
    assert_eq!(verified["lost"]["logs"], 1, "{verified}");
}

#[tokio::test]
async fn without_damage_everything_is_sound() {
    let server = Server::start();
    for each in EACH {
        let (cli, _) = whole(&server, each).await;
        assert_eq!(cli.json("verify orders")["findings"], Value::Array(Vec::new()));
        let lag = cli.json("lag orders");
        let row = find(&lag["groups"], "group", "billing").expect("a row");
        assert_eq!(figures(row), of_messages("8 2 0 0", each));
    }
}

/// A topic that another program alone reads has lost nothing; `verify` tells who reads there.
#[tokio::test]
async fn a_group_of_another_program_is_no_lost_one() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    seed::orders(&mq, 4).await;
    let keys = Keys::within(&Namespace::new(&cli.namespace).expect("a name"));
    for number in [0, 1] {
        let log = keys.log(&TopicPartition::new("orders".parse().expect("a name"), number)).to_string();
        assert_eq!(server.cli(&["XGROUP", "CREATE", &log, "theirs", "0"]), "OK");
    }
    assert_eq!(cli.json("lag")["groups"], Value::Array(Vec::new()));
    assert_eq!(cli.json("topic describe orders")["groups"], Value::Array(Vec::new()));
    let found = cli.json_with(3, "verify orders");
    assert_eq!(faults(&found), "group_unlisted", "{found}");
    assert!(found["findings"].to_string().contains("theirs"), "{found}");
}

/// The table as the guide has it.
fn table() -> String {
    let titles =
        "lag, pending, retrying, dead | exit code | `pending` lists | `verify` finds | after a repair";
    let mut text = format!("| damage | {titles} |\n|---|---|---|---|---|---|\n");
    for Damage { name, what, seen, partial, pending, verify, after, .. } in &TABLE {
        let seen = match seen {
            Seen::Figures(figures) => figures.replace(' ', ", "),
            Seen::NoGroups | Seen::NoTopic => "a row without a group".to_owned(),
        };
        let after = match after {
            After::Sound => "sound",
            After::Lost => "repaired; the loss stays recorded",
            After::ByHand => "by hand",
        };
        let faults: Vec<_> = verify.split(", ").map(|fault| format!("`{fault}`")).collect();
        let code = u8::from(*partial);
        let faults = faults.join(", ");
        text += &format!("| `{name}`: {what} | {seen} | {code} | {pending} | {faults} | {after} |\n");
    }
    text
}

#[test]
fn the_guide_has_this_table() {
    let names: BTreeSet<_> = TABLE.iter().map(|it| it.name).collect();
    assert!(names.len() == TABLE.len() && names.len() >= 25);
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/admin.md");
    let guide = std::fs::read_to_string(path).expect("the guide");
    assert!(guide.contains(&table()), "the table of docs/guides/admin.md is to be:\n{}", table());
}
