//! One topic, group or key that is broken: it is named, all others are shown, and there is a remedy.

use millstream::Namespace;
use millstream::crates::core::TopicPartition;
use millstream::crates::core::keys::Keys;
use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::seed;
use crate::support::server::Server;

fn keys(cli: &Cli) -> Keys {
    Keys::within(&Namespace::new(&cli.namespace).expect("a name"))
}

fn names(list: &Value, what: &str) -> Vec<String> {
    let list = list.as_array().expect("a list");
    let name = |it: &Value| {
        let error = if it["error"].is_null() { "" } else { " broken" };
        format!("{}{error}", it[what].as_str().unwrap_or("?"))
    };
    list.iter().map(name).collect()
}

#[tokio::test]
async fn a_foreign_key_of_one_group_hides_no_other() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    for line in
        ["topic create a", "topic create w", "group create a g", "group create w a", "group create w b"]
    {
        cli.ok(line);
    }
    let key = {
        let (topic, group) =
            (TopicPartition::new("w".parse().expect("a name"), 0), "a".parse().expect("a name"));
        keys(&cli).retry_due(&topic, &group).to_string()
    };
    server.cli(&["SET", &key, "oops"]);

    let told = cli.json_with(1, "lag");
    assert_eq!(names(&told["groups"], "group"), ["g", "a broken", "b"], "{told}");
    let figures = |of: &Value| (of["retrying"].clone(), of["backlog"].clone(), of["pending"].clone());
    assert_eq!(figures(&told["groups"][1]), (Value::Null, Value::Null, json!(0)), "the others are known");
    assert_eq!((&told["errors"][0]["topic"], &told["errors"][0]["group"]), (&json!("w"), &json!("a")));
    assert!(told["errors"][0]["error"].as_str().is_some_and(|error| error.contains(&key)), "{told}");
    let listed = cli.json_with(1, "group list w");
    assert_eq!(names(&listed, "group"), ["a broken", "b"], "{listed}");
    let described = cli.json_with(1, "topic describe w");
    assert_eq!(
        (names(&described["groups"], "group"), names(&described["errors"], "group")),
        (vec!["a broken".to_owned(), "b".to_owned()], vec!["a broken".to_owned()])
    );
    let described = cli.run("group describe w a");
    assert!(described.code == 1 && described.stderr.contains(&key), "{described:?}");
    assert!(described.stdout.contains('?'), "{described:?}");
    let said = cli.fails(1, "group reset w a --to earliest");
    assert!(said.contains(&key), "{said}");
    let text = cli.run("lag");
    assert!(text.code == 1 && text.stdout.contains(" b ") && text.stderr.contains(&key), "{text:?}");

    assert_eq!(cli.json("group delete w b --yes")["deleted"], true, "one that is whole");
    let counted = cli.run("group delete w a --yes");
    assert!(counted.code == 0 && counted.stderr.contains("could not be counted"), "{counted:?}");
    cli.ok("group create w a");
    server.cli(&["SET", &key, "oops"]);
    let counted = cli.json("topic delete w --force --yes");
    assert_eq!(
        (&counted["deleted"], names(&counted["errors"], "group")),
        (&json!(true), vec!["a broken".to_owned()])
    );
    assert_eq!(names(&cli.json("lag")["groups"], "group"), ["g"]);
}

#[tokio::test]
async fn a_topic_whose_settings_make_no_sense_can_be_deleted() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    for line in ["topic create a", "topic create x", "group create a g", "group create x g"] {
        cli.ok(line);
    }
    let meta = keys(&cli).topic_meta(&"x".parse().expect("a name")).to_string();
    server.cli(&["HSET", &meta, "partitionCount", "abc"]);
    assert_eq!(names(&cli.json_with(1, "topic list"), "topic"), ["a", "x broken"]);
    let told = cli.json_with(1, "lag");
    assert_eq!(
        (names(&told["groups"], "topic"), names(&told["errors"], "topic")),
        (vec!["a".to_owned(), "x broken".to_owned()], vec!["x broken".to_owned()])
    );
    let verified = cli.json_with(3, "verify x --repair --yes");
    assert_eq!(verified["findings"][0]["fault"], "settings_damaged", "{verified}");
    let refused = cli.run("topic delete x --yes");
    assert!(refused.code == 1 && refused.stderr.contains("forced"), "{refused:?}");
    assert_eq!(cli.json("topic delete x --force --yes")["deleted"], true);
    assert_eq!(names(&cli.json("topic list"), "topic"), ["a"]);
    assert_eq!(cli.json("topic create x")["topic"], "x");
}

#[tokio::test]
async fn a_damaged_setting_is_named_and_can_be_set_right() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    cli.ok("topic create orders --partitions 3");
    let meta = keys(&cli).topic_meta(&"orders".parse().expect("a name")).to_string();
    for (field, value, allowed, alter) in [
        ("retention", "bananas", "consumed, keep, consumed-after:<ms>", "--retention keep"),
        ("retention", "age:0", "consumed, keep, consumed-after:<ms>", "--retention age:7d"),
        ("maxLength", "many", "a whole number", "--max-length 5"),
        ("deadLetterRetention", "kiwis", "keep, age:<ms>", "--dead-letter-retention age:30d"),
    ] {
        server.cli(&["HSET", &meta, field, value]);
        let said = cli.fails(1, "topic describe orders");
        for part in [field, &format!("{value:?}"), allowed] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let found = cli.json_with(3, "verify orders");
        assert_eq!(found["findings"][0]["fault"], "settings_damaged", "{found}");
        let detail = found["findings"][0]["detail"].as_str().expect("a text");
        assert!(detail.contains(value) && detail.contains(allowed), "{detail}");
        let refused = cli.run(format!("topic alter orders {alter} --dry-run").as_str());
        assert!(refused.code == 1 && refused.stderr.contains(value), "{refused:?}");
        assert_eq!(cli.json_with(3, "verify orders")["sound"], false, "a dry run changes nothing");
        let altered = cli.json(format!("topic alter orders {alter} --yes").as_str());
        assert_eq!(altered["partitions"], 3, "{altered}");
        assert_eq!(cli.json("verify orders")["sound"], true);
    }
    // A change that leaves a damaged setting is refused, and names that.
    server.cli(&["HSET", &meta, "retention", "bananas", "maxLength", "many"]);
    let said = cli.fails(1, "topic alter orders --retention keep --yes");
    assert!(said.contains("maxLength") && said.contains("many"), "{said}");
    cli.ok("topic alter orders --retention keep --no-max-length --yes");
    assert_eq!(cli.json("verify orders")["sound"], true);
}

#[tokio::test]
async fn a_partition_of_a_wrong_type_hides_no_other_message() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    seed::orders(&cli.mq().await, 6).await;
    let log = keys(&cli).log(&TopicPartition::new("orders".parse().expect("a name"), 1)).to_string();
    server.cli(&["DEL", &log]);
    server.cli(&["SET", &log, "theirs"]);
    for from in ["-n 10", "--from earliest"] {
        let all = cli.run(format!("tail orders {from} --format payload").as_str());
        assert_eq!((all.code, all.stdout.as_str()), (1, "0\n2\n4\n"), "{all:?}");
        assert!(all.stderr.contains(&log), "{all:?}");
        let some = cli.ok(format!("tail orders {from} --partition 0 --format payload").as_str());
        assert_eq!(some, "0\n2\n4\n");
        let none = cli.fails(1, format!("tail orders {from} --partition 1").as_str());
        assert!(none.contains(&log) && none.lines().count() == 1, "{none}");
    }
    let memory = cli.run("memory orders --json");
    assert!(memory.code == 1 && memory.stderr.contains(&log), "{memory:?}");
    let (memory, error) = envelope::parts(&memory.stdout);
    assert_eq!(error.expect("a part is missing")["kind"], "other");
    let memory = &memory[0];
    let partitions = memory["topics"][0]["partitions"].as_array().expect("a list");
    assert_eq!(partitions[0]["items"], 3, "{memory}");
}

#[tokio::test]
async fn a_group_that_is_on_a_log_alone_can_be_deleted_as_verify_says() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    cli.ok("topic create orders");
    let log = keys(&cli).log(&TopicPartition::new("orders".parse().expect("a name"), 0)).to_string();
    server.cli(&["XGROUP", "CREATE", &log, "strangers", "0", "MKSTREAM"]);
    assert_eq!(cli.json_with(3, "verify orders")["findings"][0]["fault"], "group_unlisted");
    assert_eq!(cli.json("group delete orders strangers --yes")["deleted"], true);
    assert_eq!(cli.json("verify orders")["sound"], true);
    let gone = cli.fails(1, "group delete orders strangers --yes");
    assert!(gone.contains("does not exist"), "{gone}");
}

#[tokio::test]
async fn a_reset_beyond_the_end_skips_nothing_that_comes() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 4).await;
    cli.ok("group create orders g");
    for to in ["2100-01-01T00:00:00Z", "in 5h", "18446744073709551615-0"] {
        cli.ok(["group", "reset", "orders", "g", "--to", to, "--execute", "--yes"]);
        assert_eq!(cli.json("lag orders -g g")["groups"][0]["lag"], 0, "{to}");
        seed::orders(&mq, 6).await;
        assert_eq!(cli.json("lag orders -g g")["groups"][0]["lag"], 6, "{to}");
    }
    cli.ok(["group", "create", "orders", "late", "--from", "in 5h"]);
    seed::orders(&mq, 2).await;
    assert_eq!(cli.json("lag orders -g late")["groups"][0]["lag"], 2);
}

#[tokio::test]
async fn a_dry_run_of_a_replay_looks_at_the_target_and_a_rate_makes_sense() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 4).await;
    seed::handled(&mq, 4, &[1]).await;
    let missing = cli.fails(1, "dlq replay orders billing --all --to-topic missing --dry-run");
    assert!(missing.contains("topic missing does not exist"), "{missing}");
    let partition = cli.fails(1, "dlq replay orders billing --all --to-topic orders --to-partition 7 -n");
    assert!(partition.contains("no partition 7"), "{partition}");
    for rate in ["1e-300", "5e-324", "1e-9", "0", "-1", "nan", "inf"] {
        let refused = cli.run(format!("dlq replay orders billing --all --yes --rate={rate}").as_str());
        assert!(
            refused.code == 2 && refused.stderr.contains("the minimum is one per day"),
            "{rate}: {refused:?}"
        );
    }
    assert_eq!(cli.json("dlq replay orders billing --all -n")["replayed"], 1);
}

#[tokio::test]
async fn a_rule_whose_time_was_lost_fires_again_once_it_is_put_or_resumed() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    cli.ok("topic create reports");
    let keys = keys(&cli);
    let times = keys.recur(&TopicPartition::new("reports".parse().expect("a name"), 0).into()).to_string();
    let put = "schedule add reports daily --every 1h --payload x";
    assert_eq!(cli.json(put)["outcome"], "new");
    let due = server.cli(&["ZSCORE", &times, "daily"]);
    for again in [put, "schedule resume reports daily"] {
        server.cli(&["DEL", &times]);
        let found = cli.json_with(3, "verify reports");
        assert_eq!(found["findings"][0]["fault"], "rule_stranded", "{found}");
        cli.ok(again);
        assert_eq!(server.cli(&["ZSCORE", &times, "daily"]), due, "{again}: it is due when it was");
        assert_eq!(cli.json("verify reports")["sound"], true, "{again}");
    }
    assert_eq!(cli.json(put)["outcome"], "unchanged");
    cli.ok("schedule pause reports daily");
    cli.ok(put);
    assert_eq!(server.cli(&["ZCARD", &times]), "0", "one that is paused is not due");
}

#[tokio::test]
async fn a_delay_queue_that_lost_something_is_named() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    for line in ["queue create mails --shards 2", "queue create texts", "queue add mails --payload x"] {
        cli.ok(line);
    }
    let keys = keys(&cli);
    let (list, meta) =
        (keys.queues().to_string(), keys.queue_meta(&"mails".parse().expect("a name")).to_string());
    server.cli(&["DEL", &list]);
    let found = cli.json_with(3, "verify");
    let faults = |of: &Value| names(&of["findings"], "fault");
    assert_eq!(faults(&found), ["queue_unlisted", "queue_unlisted"], "{found}");
    assert_eq!(cli.json("verify --queue mails --repair --yes")["sound"], true);
    // Who was lost with it is listed again, too.
    assert_eq!(names(&cli.json("queue list"), "queue"), ["mails", "texts"]);

    server.cli(&["RENAME", &meta, "aside"]);
    let listed = cli.json_with(1, "queue list");
    assert_eq!(names(&listed, "queue"), ["mails broken", "texts"], "{listed}");
    assert!(cli.fails(1, "queue counts mails").contains("lost its settings"));
    assert_eq!(faults(&cli.json_with(3, "verify --queue mails")), ["queue_without_settings"]);
    cli.ok("queue create mails --shards 2");
    assert_eq!(cli.json("queue counts mails")["waiting"], 1, "as its workers do when they start");
    server.cli(&["SET", &list, "x"]);
    let listed = cli.json_with(1, "queue list");
    assert_eq!(names(&listed, "queue"), ["mails broken", "texts broken"], "a foreign list hides none");
}

#[tokio::test]
async fn a_list_of_topics_that_was_lost_is_whole_again_with_the_first_that_is_created() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    for line in ["topic create a", "topic create b", "group create b g"] {
        cli.ok(line);
    }
    let list = keys(&cli).topics().to_string();
    server.cli(&["DEL", &list]);
    let told = cli.json_with(1, "lag");
    assert_eq!(names(&told["groups"], "group"), ["? broken", "g", "? broken"], "{told}");
    assert!(told["errors"].to_string().contains("not in the list of topics"), "{told}");
    cli.ok("topic create c");
    assert_eq!(names(&cli.json("topic list"), "topic"), ["a", "b", "c"]);
    cli.ok("lag");
    cli.ok("topic delete a --yes");
    assert_eq!(names(&cli.json("topic list"), "topic"), ["b", "c"]);
}

#[tokio::test]
async fn a_replica_without_the_data_of_its_primary_does_not_say_that_there_is_nothing() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    // Nobody listens there.
    server.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    for line in ["topic list", "lag", "queue list"] {
        let said = cli.fails(1, line);
        assert!(said.contains("replica that has not got the data of its primary"), "{line}: {said}");
    }
}
