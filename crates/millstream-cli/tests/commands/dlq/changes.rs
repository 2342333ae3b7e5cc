//! Changes of dead letters that meet an obstacle: what is too large, claimed, missing or cannot be read.

use std::time::Duration;

use millstream::crates::core::dead_letters::Claim;
use millstream::crates::core::{Envelope, TopicPartition, wire};
use millstream::{DeadLetter, MessageId};
use serde_json::json;

use super::{ids, letter, letters, prepared, put};
use crate::support::cli::{Cli, Ran};
use crate::support::server::Server;

#[tokio::test]
async fn what_an_edit_sets_has_the_limits_of_a_send() {
    let (cli, _mq) = prepared(3).await;
    let id = &ids(&cli.json("dlq list orders billing"))[0];
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("large");
    std::fs::write(&file, vec![b'x'; (1 << 20) + 1]).expect("written");
    let file = file.to_str().expect("text");
    let (key, header) = ("k".repeat(1_025), format!("h={}", "v".repeat(8 << 10)));
    let replay = ["dlq", "replay", "orders", "billing", id];
    for (option, what) in [
        (["--payload-file", file], "bytes of payload: 1048577, at most 1048576; --max-payload allows more"),
        (["--set-key", &key], "bytes of key: 1025, at most 1024"),
        (["--set-header", &header], "bytes of headers: 8193, at most 8192"),
    ] {
        for more in [&[][..], &["--dry-run"], &["--to-topic", "repairs"]] {
            let error = cli.error(1, [&replay[..], &option, more].concat().as_slice());
            assert_eq!(error["kind"], "too_large", "{option:?} {more:?}: {error}");
        }
        let refused = cli.fails(1, [&replay[..], &option].concat().as_slice());
        assert!(refused.contains(what), "{refused}");
    }
    assert_eq!(cli.json("dlq count orders billing")["count"], 3, "nothing was done");
    let allowed = [&replay[..], &["--payload-file", file, "--max-payload", "2MiB"]].concat();
    assert_eq!(cli.json(allowed.as_slice())["replayed"], 1);
}

#[tokio::test]
async fn a_payload_is_not_replaced_under_a_header_that_says_how_it_was_encoded() {
    let (cli, mq) = prepared(0).await;
    let body = wire::encode(&Envelope::new("frame").with_header("content-encoding", "zstd"));
    let id = put(&mq, DeadLetter { body, ..letter(0) }).await.to_string();
    let replay = format!("dlq replay orders billing {id} --set-payload x");
    for dry in ["--dry-run", ""] {
        let told = cli.run(&format!("{replay} {dry}"));
        assert!(told.code == 1 && told.stdout.contains("remove or set that header, too"), "{told:?}");
    }
    // Before it is written by hand.
    let mut command = cli.command(&["dlq", "replay", "orders", "billing", &id, "--edit"]);
    let refused = Ran::of(command.env_remove("VISUAL").env("EDITOR", "false"));
    assert!(refused.code == 1 && refused.stderr.contains("content-encoding"), "{refused:?}");
    assert_eq!(cli.json(&format!("{replay} --remove-header content-encoding"))["replayed"], 1);
}

#[tokio::test]
async fn a_dry_run_finds_what_the_run_would() {
    let (cli, mq) = prepared(4).await;
    for dry in ["", " --dry-run"] {
        let missing =
            cli.fails(1, &format!("dlq replay orders billing --all --yes --payload-file none{dry}"));
        assert!(missing.contains("cannot read none"), "{missing}");
        let many = cli.fails(2, &format!("dlq replay orders billing --all --yes --edit{dry}"));
        assert!(many.contains("--edit is for one letter, and 4 are selected"), "{many}");
        let id = &ids(&cli.json("dlq list orders billing"))[0];
        let mut command = cli.command(&["dlq", "replay", "orders", "billing", id, "--edit"]);
        let ran = Ran::of(command.args(dry.split_whitespace()).env_remove("VISUAL").env_remove("EDITOR"));
        assert_eq!(ran.code, 2, "nobody can use an editor here: {ran:?}");
        assert!(ran.stderr.contains("--set-payload or --payload-file sets the payload"), "{ran:?}");
    }
    // One of them is no message, so it can have no key.
    let none = DeadLetter { body: vec![("x".into(), "y".into())], ..letter(9) };
    let id = put(&mq, none).await.to_string();
    for (dry, to) in [("--dry-run", ""), ("--dry-run", "--to-topic repairs"), ("", "")] {
        let command = format!("dlq replay orders billing {id} --set-key k {to} {dry} --yes");
        let told = cli.json_with(1, &command);
        assert_eq!((&told["replayed"], &told["refused"]), (&json!(0), &json!(1)), "{command}: {told}");
        let ran = cli.run(&command);
        assert!(ran.stdout.contains("stays: no payload field"), "{ran:?}");
        assert!(ran.stderr.contains("1 letter stays: it cannot be sent unchanged"), "{ran:?}");
    }
    cli.ok(&format!("dlq purge orders billing {id} --yes"));
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("letters.jsonl");
    let (file, lines) = (path.to_str().expect("text"), cli.ok("dlq export orders billing"));
    // One is twice in the file.
    std::fs::write(&path, format!("{lines}{}\n", lines.lines().next().expect("a line"))).expect("written");
    let named = &ids(&cli.json("dlq list orders billing"))[..2];
    cli.ok(["dlq", "purge", "orders", "billing", &named[0], &named[1], "--yes"]);
    for dry in [&["--dry-run"][..], &[]] {
        let imported = cli.json([&["dlq", "import", "orders", "billing", file], dry].concat().as_slice());
        assert_eq!((&imported["put"], &imported["passed_over"]), (&json!(2), &json!(3)), "{dry:?}");
    }
}

#[tokio::test]
async fn what_is_skipped_ends_in_the_same_code_everywhere() {
    let (cli, mq) = prepared(4).await;
    let claimed = {
        let first: MessageId = ids(&cli.json("dlq list orders billing"))[0].parse().expect("an id");
        let claim = Claim { by: "other".to_owned(), hold: Duration::from_secs(3_600), left_too: false };
        let (tp, group) = (letter(0).topic_partition, "billing".parse().expect("a name"));
        let role = mq.backend().dead_letters().expect("dead letters");
        role.claim(&tp, &group, &[first], &claim).await.expect("claimed")
    };
    assert_eq!(claimed.len(), 1);
    let one = "error: 1 dead letter skipped: deleted meanwhile, or claimed by others\n";
    for (command, done) in [
        ("dlq replay orders billing --all --limit 2 --yes", "1 dead letter replayed"),
        ("dlq replay orders billing --all --to-topic repairs --limit 2 --yes", "1 dead letter replayed"),
        ("dlq purge orders billing --all --yes", "1 dead letter deleted"),
    ] {
        let ran = cli.run(command);
        assert_eq!((ran.code, ran.stderr.as_str()), (1, one), "{command}: {ran:?}");
        assert!(ran.stdout.starts_with(done), "{command}: {ran:?}");
    }
    assert_eq!(cli.json("dlq count orders billing")["count"], 1);
}

#[tokio::test]
async fn two_letters_of_one_origin_are_not_meant_by_it() {
    let (cli, mq) = prepared(2).await;
    let mut other = letter(0);
    other.topic_partition = TopicPartition::new(other.topic_partition.topic, 1);
    put(&mq, other).await;
    let refused = cli.fails(2, "dlq replay orders billing --origin 1-5 --yes");
    assert!(
        refused.contains("of several partitions have the origin 1-5: --partition selects one"),
        "{refused}"
    );
    assert!(cli.fails(2, "dlq purge orders billing --origin 1-5 --yes").contains("--partition"));
    assert_eq!(cli.json("dlq replay orders billing --origin 1-5 --partition 1 --yes")["replayed"], 1);
}

#[tokio::test]
async fn letters_of_a_partition_that_cannot_be_read_hide_no_others() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    letters(&cli.mq().await, 4).await;
    let keys = server.cli(&["KEYS", "*{orders:p:1}:dlq:billing"]);
    let key = keys.lines().next().expect("a key").trim().to_owned();
    server.cli(&["RENAME", &key, "saved"]);
    server.cli(&["SET", &key, "foreign"]);
    for of in ["", "orders ", "orders billing "] {
        let told = cli.json_with(1, &format!("dlq errors {of}"));
        assert_eq!(told["count"], 2, "{of}: {told}");
        assert!(cli.run(&format!("dlq errors {of}")).stderr.contains(&key), "it is named");
    }
    // It has nothing else to do, and says what is missing.
    let ran = cli.run("dlq consume orders billing --until-empty --then purge --yes");
    assert_eq!((ran.code, ran.stdout.lines().count()), (1, 2), "{ran:?}");
    assert!(ran.stderr.contains("1 partition could not be read"), "{ran:?}");
    assert!(ran.stderr.contains(&key), "{ran:?}");
}
