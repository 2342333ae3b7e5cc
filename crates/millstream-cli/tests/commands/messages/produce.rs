//! `millstream produce`.

use std::io::Write;
use std::time::{Duration, Instant};

use millstream::{Envelope, Timestamp, Topic};
use rustix::process::Signal;
use serde_json::json;

use crate::support::cli::{Cli, bare};
use crate::support::envelope;
use crate::support::feed::{Running, eventually, fed, feed, payloads, stored, topic};
use crate::support::server::Server;

#[tokio::test]
async fn lines_are_messages_with_key_and_headers() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 4).await;
    let args = ["produce", "orders", "--key", "eu", "--header", "source=shell", "--header", "x=1=2"];
    let said = fed(&cli, &args, "first\n\n third \r\nlast");
    assert!(said.starts_with("sent 4 messages (17 B) to orders in "), "{said}");
    let stored = stored(&mq, "orders").await;
    let message = |payload: &'static str| {
        Envelope::new(payload).with_key("eu").with_header("source", "shell").with_header("x", "1=2")
    };
    let messages: Vec<_> = stored.iter().map(|(_, it)| it.clone()).collect();
    assert_eq!(messages, ["first", "", " third \r", "last"].map(message));
    assert!(stored.iter().all(|(partition, _)| *partition == stored[0].0), "one key, one partition");

    fed(&cli, &["produce", "orders", "--key-field", "customer"], "{\"customer\": 42, \"n\": 1}\n");
    let keyed = self::stored(&mq, "orders").await.pop().expect("one");
    assert_eq!(keyed.1, Envelope::new("{\"customer\": 42, \"n\": 1}").with_key("42"));
}

#[tokio::test]
async fn lines_of_json_say_what_a_message_is() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 4).await;
    let lines = r#"{"payload": {"total": 1.50}, "key": "k", "headers": {"a": ["1", "2"], "b": {"base64": "/w=="}}}
{"payload": "text", "partition": 3}

{"payload_base64": "AP8=", "key_base64": "/w=="}
"#;
    let said = envelope::data(&fed(&cli, &["produce", "orders", "--format", "json", "--json"], lines));
    assert_eq!((&said["sent"], &said["bad"], &said["bytes"]), (&json!(3), &json!(0), &json!(21)));
    let stored = stored(&mq, "orders").await;
    let first = Envelope::new("{\"total\": 1.50}").with_key("k").with_header("a", "1").with_header("a", "2");
    let expected = [
        first.with_header("b", &b"\xff"[..]),
        Envelope::new("text"),
        Envelope::new(&b"\0\xff"[..]).with_key(&b"\xff"[..]),
    ];
    for message in expected {
        let found = stored.iter().find(|(_, it)| *it == message).unwrap_or_else(|| panic!("{message:?}"));
        assert!(message.payload != "text" || found.0 == 3, "it named its partition");
    }
}

#[tokio::test]
async fn a_file_that_is_sent_again_is_stored_once() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 4).await;
    let counts = |args: &[&str], lines: &str| {
        let args = [&["produce", "orders", "--json"], args].concat();
        let said = envelope::data(&fed(&cli, &args, lines));
        ["sent", "duplicates", "bad"].map(|name| said[name].as_u64().expect("a number"))
    };
    let (first, all) = ("{\"id\": 1}\n{\"id\": 2}\n", "{\"id\": 1}\n{\"id\": 2}\n{\"id\": 3}\n");
    let by_field = ["--dedup-field", "id", "--dedup-window", "1h"];
    assert_eq!(counts(&by_field, first), [2, 0, 0]);
    assert_eq!(counts(&by_field, all), [1, 2, 0]);
    assert_eq!(stored(&mq, "orders").await.len(), 3);
    let text = fed(&cli, &["produce", "orders", "--dedup-field", "id"], all);
    assert!(text.contains("; 3 not sent, since they were stored before"), "{text}");
    // A unique id ends when all groups have settled its message; here none has.
    let unique = "{\"payload\": 1, \"unique\": \"u\"}\n";
    assert_eq!(counts(&["--format", "json"], unique), [1, 0, 0]);
    assert_eq!(counts(&["--format", "json"], unique), [0, 1, 0]);
    let lacks = feed(&cli, &["produce", "orders", "--dedup-field", "id"], b"{}\n");
    assert_eq!(lacks.code, Some(1), "{lacks:?}");
    assert!(lacks.stderr.contains("line 1: no field \"id\""), "{lacks:?}");
}

#[tokio::test]
async fn bad_lines_are_named_and_the_others_are_sent() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 2).await;
    let large = format!("{{\"payload\":\"{}\"}}", "x".repeat((1 << 20) + 1));
    let lines = format!(
        "{{\"payload\":1}}\nno json\n{{\"payload\":2,\"partition\":7}}\n{large}\n{{\"payload\":3}}\n"
    );
    let ran = feed(&cli, &["produce", "orders", "--format", "json"], lines.as_bytes());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let mut sent = payloads(&mq, "orders").await;
    sent.sort();
    assert_eq!(sent, ["1", "3"]);
    for says in [
        "line 2: not JSON: expected ident",
        "line 3: partition 7 of a topic with 2, or --ignore-partition",
        "line 4: bytes of payload: 1048577",
    ] {
        assert!(ran.stderr.contains(says), "{says}: {}", ran.stderr);
    }
    assert!(ran.stderr.ends_with("error: 3 lines could not be sent\n"), "{}", ran.stderr);
    let skipped = feed(&cli, &["produce", "orders", "--format", "json", "--skip-bad"], lines.as_bytes());
    assert_eq!(skipped.code, Some(0), "{skipped:?}");
    assert!(skipped.stderr.contains("line 2: "), "it is told all the same: {}", skipped.stderr);
    assert_eq!(payloads(&mq, "orders").await.len(), 4);
}

#[tokio::test]
async fn what_is_shown_can_be_sent_to_a_topic_with_fewer_partitions() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 4).await;
    fed(&cli, &["produce", "orders"], "a\nb\nc\nd\n");
    let shown = cli.ok("tail orders --from earliest --format json");
    let copy = ["produce", "copies", "--format", "json", "--create", "--ignore-partition"];
    fed(&cli, &copy, &shown);
    let mut copied = payloads(&mq, "copies").await;
    copied.sort();
    assert_eq!(copied, ["a", "b", "c", "d"]);
}

#[tokio::test]
async fn a_key_that_is_missing_is_a_failure_or_none_and_is_told_ten_times() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 1).await;
    let lines = "{\"a\":{\"b\":null}}\n".repeat(30) + "{\"a\":{\"b\":\"k\"}}\n";
    let args = ["produce", "orders", "--key-field", "a.b"];
    let ran = feed(&cli, &args, lines.as_bytes());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(ran.stderr.matches(": field \"a.b\" is null\n").count(), 10, "{}", ran.stderr);
    assert!(ran.stderr.ends_with("\nand 20 more\nerror: 30 lines could not be sent\n"), "{}", ran.stderr);
    let said = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(said.starts_with("sent 1 message (15 B) to orders in "), "{said}");
    fed(&cli, &[&args[..], &["--missing-key", "none"]].concat(), &lines);
    let keys: Vec<_> = stored(&mq, "orders").await.into_iter().map(|(_, it)| it.key).collect();
    assert_eq!(keys.iter().filter(|key| key.is_some()).count(), 2);
    assert_eq!(keys.len(), 32);
}

#[test]
fn what_is_too_far_away_is_refused() {
    let cli = Cli::new();
    for due in ["--delay=36600d", "--at=9999-01-01T00:00:00Z", "--at=in 36600d"] {
        let said = cli.fails(2, ["produce", "orders", "--create", due]);
        assert!(said.contains("more than 100 years from now"), "{said}");
    }
}

#[tokio::test]
async fn all_of_the_input_can_be_one_message() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let bytes: Vec<u8> = (0..=255).chain(*b"\n\n").collect();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("message");
    std::fs::write(&path, &bytes).expect("a file");
    let args = ["produce", "files", path.to_str().expect("UTF-8"), "--format", "raw"];
    let missing = cli.fails(1, &args[..]);
    assert_eq!(missing, "error: topic files does not exist; --create creates it\n");
    assert!(mq.admin().topics().await.expect("topics").is_empty(), "nothing was created");
    cli.ok(&[&args[..], &["--create", "--partitions", "3"]].concat()[..]);
    assert_eq!(mq.admin().topic(&"files".parse().expect("a name")).await.expect("a topic").partitions, 3);
    assert_eq!(stored(&mq, "files").await[0].1, Envelope::new(bytes));
}

#[tokio::test]
async fn messages_can_be_sent_for_later() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "reminders", 4).await;
    let lines = r#"{"payload":1,"id":"a","delay":"1h"}
{"payload":2,"id":"a","delay":"2h"}
{"payload":3,"id":"b","at":"2126-01-31T12:00:00Z"}
{"payload":4}
{"payload":5,"id":"c"}
"#;
    let ran = feed(&cli, &["produce", "reminders", "--format", "json", "--json"], lines.as_bytes());
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("line 5: id \"c\", and no delay or at"), "{}", ran.stderr);
    let (said, error) = envelope::parts(&String::from_utf8(ran.stdout).expect("UTF-8"));
    assert_eq!(error.expect("a line was not sent")["kind"], "other");
    let said = &said[0];
    let counts = ["sent", "scheduled", "kept", "bad"].map(|name| said[name].as_u64().expect("a number"));
    assert_eq!(counts, [1, 2, 1, 1], "one waits under a already, and is not doubled");
    assert_eq!(payloads(&mq, "reminders").await, ["4"]);
    let waiting = mq.delayed(&Topic::raw("reminders")).await.expect("the topic");
    let all = waiting.list(None, 10).await.expect("a page");
    let ids: Vec<_> = all.iter().map(|it| it.id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    assert_eq!(
        (all[1].due, all[0].envelope.clone().expect("a message").payload),
        (Timestamp::from_millis(4_925_534_400_000), "1".into())
    );

    fed(&cli, &["produce", "reminders", "--delay", "3h", "--id", "a", "--replace"], "new");
    let replaced = waiting.get("a").await.expect("asked").expect("it waits");
    assert_eq!(replaced.envelope.expect("a message").payload, "new");
}

#[test]
fn a_dry_run_asks_no_server() {
    let mut command = bare(&[
        "produce",
        "orders",
        "--format",
        "json",
        "--dry-run",
        "--json",
        "--url",
        "redis://127.0.0.1:1",
    ]);
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "{\"payload\":1}\n?\n").expect("written");
    let output = command.stdin(std::fs::File::open(file.path()).expect("a file")).output().expect("it runs");
    assert_eq!(output.status.code(), Some(1));
    let (said, error) = envelope::parts(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(error.expect("a line cannot be sent")["message"], "1 line could not be sent");
    let said = &said[0];
    assert_eq!((&said["sent"], &said["bad"], &said["dry_run"]), (&json!(1), &json!(1), &json!(true)));
    assert!(String::from_utf8_lossy(&output.stderr).contains("line 2: "));
}

#[tokio::test]
async fn a_line_is_sent_when_it_comes() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 1).await;
    let mut produce = Running::new(&cli, &["produce", "orders"]);
    for count in 1..=3 {
        writeln!(produce.stdin.as_mut().expect("a pipe"), "line {count}").expect("written");
        eventually("it is there", async || payloads(&mq, "orders").await.len() == count).await;
    }
    // Ctrl-C ends it while it waits for more, and it says what was done.
    produce.signal(Signal::INT);
    assert_eq!(produce.ended(), Some(130));
    assert!(produce.line().starts_with("sent 3 messages "));
}

#[tokio::test]
async fn rate_and_count_bound_it_and_order_stays() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 1).await;
    let lines: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
    fed(&cli, &["produce", "orders"], lines.join("\n"));
    assert_eq!(payloads(&mq, "orders").await, lines);
    topic(&mq, "slow", 1).await;
    let began = Instant::now();
    fed(&cli, &["produce", "slow", "--rate", "100/s", "--count", "31"], lines.join("\n"));
    // 5 at a time: the last piece goes when 30 were sent.
    assert!(began.elapsed() >= Duration::from_millis(300), "{:?}", began.elapsed());
    assert_eq!(payloads(&mq, "slow").await, lines[..31]);
}

#[tokio::test]
async fn when_the_server_goes_it_says_with_which_line_to_go_on() {
    let mut server = Server::start();
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    topic(&mq, "orders", 1).await;
    let mut command = cli.command(&["produce", "orders", "--timeout", "1s"]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let mut child = command.stderr(std::process::Stdio::piped()).spawn().expect("it runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(b"1\n2\n").expect("written");
    eventually("they are there", async || payloads(&mq, "orders").await.len() == 2).await;
    server.kill();
    stdin.write_all(b"3\n4\n").expect("written");
    let output = child.wait_with_output().expect("it ends, though there may be more on stdin");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("error: line 3: "), "{stderr}");
    assert!(stderr.contains("It was the first that was not sent: go on with it"), "{stderr}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("sent 2 messages"), "{output:?}");
}

#[tokio::test]
async fn what_tail_prints_can_be_sent_again() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let from = topic(&mq, "from", 4).await;
    let payloads: [&[u8]; 9] = [
        b"",
        b"text",
        b"{\"a\": [1.0, 1e400]}",
        b"\"quoted\"",
        b"null",
        b"\xff\0\x1b",
        b"a\r\nb",
        b"[1",
        "é\u{9b}\u{202e}".as_bytes(),
    ];
    for (n, payload) in payloads.into_iter().enumerate() {
        let payload = bytes::Bytes::from_static(payload);
        let send = from.send(&payload).header("b", "1").header("a", [0xfe, n as u8]).header("b", "2");
        // One has no key, one an empty one, one bytes that are no text.
        let keys: [&[u8]; 3] = [b"", b"k\xff", b"key"];
        match n {
            0 => send.await,
            _ => send.key(keys[n % 3]).await,
        }
        .expect("sent");
    }
    let printed = cli.ok("tail from --from earliest --format json");
    fed(&cli, &["produce", "to", "--format", "json", "--create", "--partitions", "4"], &printed);
    let (from, to) = (stored(&mq, "from").await, stored(&mq, "to").await);
    assert_eq!(from.len(), payloads.len());
    for it in &from {
        assert!(to.contains(it), "{:?} is missing in {to:?}", it.1.payload);
    }
    assert_eq!(to.len(), from.len());
    let narrow = feed(&cli, &["produce", "one", "--format", "json", "--create"], printed.as_bytes());
    assert_eq!(narrow.code, Some(1), "its partitions are not there: {narrow:?}");
    fed(&cli, &["produce", "other", "--format", "json", "--create", "--ignore-partition"], &printed);
    assert_eq!(stored(&mq, "other").await.len(), payloads.len());
}
