//! The JSON output as it is documented, and the errors in it.

use millstream::crates::core::keys::Keys;
use millstream::{Namespace, TopicPartition};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::envelope::{self, Line};
use crate::support::feed::{Running, fed, topic};
use crate::support::server::Server;

/// With all features, as it is published.
#[cfg(feature = "top")]
#[test]
fn the_page_has_the_data_of_every_command() {
    let page = super::printed(&["markdown", "json"]);
    let heads = page.lines().filter_map(|line| line.strip_prefix("### "));
    let shown: Vec<&str> = heads.flat_map(|head| head.split(", ")).collect();
    for command in envelope::known() {
        assert!(shown.contains(&command.as_str()), "{command}: {shown:?}");
    }
}

#[test]
fn a_schema_is_printed_for_people_and_for_programs() {
    let cli = Cli::new();
    let schema = envelope::schema("topic list");
    assert_eq!(cli.json("schema topic list")["schema"], schema);
    let listed: Vec<String> =
        serde_json::from_value(cli.json("schema")["commands"].take()).expect("a list of names");
    assert_eq!(listed.iter().cloned().collect::<std::collections::BTreeSet<_>>(), envelope::known());
    for words in ["schema topic", "schema nothing"] {
        assert!(cli.fails(2, words).contains("`millstream schema` lists them"), "{words}");
    }
    for command in listed {
        let schema = envelope::schema(&command);
        assert_eq!(schema["title"], format!("millstream {command} --json"));
        // It is checked as it is made ready for use.
        assert!(!envelope::errors(&command, &serde_json::Value::Null).is_empty(), "{command}: all passes");
    }
}

/// What clap refuses, and what a command refuses.
#[tokio::test]
async fn wrong_usage_is_an_error_of_the_command_that_it_names() {
    let cli = Cli::new();
    topic(&cli.mq().await, "orders", 1).await;
    for (words, command, message) in [
        ("topic lst", "topic", "unrecognized subcommand 'lst'"),
        ("nothing", "", "unrecognized subcommand 'nothing'"),
        ("topic list --nope", "topic list", "unexpected argument '--nope' found"),
        ("group describe orders", "group describe", "were not provided: <GROUP>"),
        ("pending orders billing --sort age", "pending", "invalid value 'age'"),
        ("topic delete orders", "topic delete", "it has to be confirmed"),
        ("top", "top", "--json needs --once"),
    ] {
        let ran = cli.run(format!("{words} --json").as_str());
        assert_eq!((ran.code, ran.stdout.lines().count()), (2, 1), "{words}: {ran:?}");
        let (named, line) = envelope::read(&ran.stdout);
        let Line::Error(error) = line else { panic!("{words}: {ran:?}") };
        assert_eq!((named.as_str(), &error["kind"]), (command, &json!("usage")), "{words}");
        assert!(error["message"].as_str().is_some_and(|it| it.contains(message)), "{words}: {error}");
        assert!(ran.stderr.starts_with("error: "), "the text stays on stderr: {ran:?}");
    }
    assert_eq!(cli.error(2, "topic lst")["advice"], "a similar subcommand exists: 'list'");
    let behind = cli.run(["topic", "lst", "--", "--json"]);
    assert_eq!((behind.code, behind.stdout.as_str()), (2, ""), "that is a word, and no option");
    let help = cli.run("topic --help --json");
    assert!(help.code == 0 && help.stdout.contains("Usage: "), "{help:?}");
}

#[tokio::test]
async fn what_does_not_exist_has_its_kind_and_advice() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 1).await;
    cli.ok("group create orders billing");
    cli.ok("queue create mails");
    let missing = cli.error(1, "topic describe ordres");
    assert_eq!(
        (&missing["kind"], &missing["advice"]),
        (&json!("not_found"), &json!("is topic orders meant?"))
    );
    for words in [
        "dlq show orders billing 1-1",
        "dlq list orders shipping",
        "queue show mails one",
        "queue dead show mails one",
        "schedule show orders daily",
        "schedule next orders daily",
        "lock release invoice --yes",
        "lag orders --group shipping",
    ] {
        assert_eq!(cli.error(1, words)["kind"], "not_found", "{words}");
    }
    for words in ["delayed now orders one", "queue now mails one", "retries now orders billing 1-1"] {
        let ran = cli.run(format!("{words} --json").as_str());
        let (data, error) = envelope::parts(&ran.stdout);
        assert_eq!((ran.code, data[0]["missing"].as_array().map(Vec::len)), (1, Some(1)), "{words}: {ran:?}");
        assert_eq!(error.expect("an error")["kind"], "not_found", "{words}");
    }
    assert_eq!(cli.error(1, "topic create orders")["kind"], "exists");
    assert_eq!(cli.error(1, "queue create mails --shards 2")["kind"], "exists");
    let cron = cli.error(1, ["schedule", "add", "orders", "daily", "--payload", "x", "--cron", "0 25 * * *"]);
    assert_eq!(cron["kind"], "invalid_config");
    assert!(
        cron["message"].as_str().is_some_and(|it| it.contains("the hour \"25\" is wrong (0-23)")),
        "{cron}"
    );
}

/// A command that goes on ends with an error if it had an end of its own and did not come to it.
#[tokio::test]
async fn an_interruption_is_the_last_line() {
    let cli = Cli::new();
    topic(&cli.mq().await, "orders", 1).await;
    fed(&cli, &["produce", "orders"], "one\n");
    let mut tail = Running::new(&cli, &["tail", "orders", "-f", "--limit", "2", "--json"]);
    assert_eq!(envelope::data(&tail.line())["payload"], "one");
    tail.signal(Signal::INT);
    let (command, line) = envelope::read(&tail.line());
    let Line::Error(error) = line else { panic!("{line:?}") };
    assert_eq!((command.as_str(), &error["kind"]), ("tail", &json!("interrupted")));
    assert_eq!(tail.ended(), Some(130));
}

/// What can be read is there, and then the error.
#[tokio::test]
async fn a_damaged_key_is_named_in_the_data_which_an_error_follows() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    cli.ok("topic create orders --partitions 2");
    cli.ok("group create orders billing");
    let keys = Keys::within(&Namespace::new(&cli.namespace).expect("a name"));
    let log = keys.log(&TopicPartition::new("orders".parse().expect("a name"), 1)).to_string();
    server.cli(&["DEL", &log]);
    server.cli(&["SET", &log, "theirs"]);
    for words in
        ["lag", "topic describe orders", "group describe orders billing", "memory", "pending orders billing"]
    {
        let ran = cli.run(format!("{words} --json").as_str());
        let (data, error) = envelope::parts(&ran.stdout);
        assert_eq!((ran.code, data.len()), (1, 1), "{words}: {ran:?}");
        let reason = data[0]["errors"][0]["error"].as_str().unwrap_or_default();
        assert!(reason.contains(&log), "{words}: {ran:?}");
        let error = error.expect("an error");
        assert_eq!((&error["kind"], &error["topic"]), (&json!("other"), &Value::Null), "{words}: {error}");
        assert!(ran.stderr.contains(error["message"].as_str().expect("text")), "{words}: {ran:?}");
    }
    // Where nothing can be shown, the kind is that of the fault.
    let whole = cli.error(1, "tail orders --partition 1");
    assert_eq!(whole["kind"], "wrong_type", "{whole}");
    assert_eq!(whole["advice"], "`millstream verify` lists every key of a wrong type");
}
