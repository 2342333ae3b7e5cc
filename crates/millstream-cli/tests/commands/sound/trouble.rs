//! What an operator sees when something is wrong with the server or with a name: one line, and exit code 1.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;

use millstream::Namespace;
use millstream::crates::core::keys::Keys;
use millstream::delay::DelayQueue;

use crate::support::cli::{Cli, Ran, bare};
use crate::support::envelope;
use crate::support::seed;
use crate::support::server::Server;

/// The one line that it says.
#[track_caller]
fn said(url: &str, words: &str) -> String {
    let args: Vec<&str> = words.split_whitespace().collect();
    let ran = Ran::of(bare(&args).env("MILLSTREAM_URL", url));
    assert_eq!((ran.code, ran.stdout.as_str(), ran.stderr.lines().count()), (1, "", 1), "{url}: {ran:?}");
    ran.stderr.trim_end().to_owned()
}

#[test]
fn a_server_that_is_not_there_is_told_with_where_it_was_looked_for() {
    let port =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port").local_addr().expect("an address").port();
    let down = said(&format!("redis://127.0.0.1:{port}"), "topic list");
    let begins = format!("error: connect to redis://127.0.0.1:{port}: the server cannot be reached: ");
    assert!(
        down.starts_with(&begins) && down.ends_with("; --url or MILLSTREAM_URL sets its address"),
        "{down}"
    );
    let socket = said("redis+unix:///nonexistent/socket", "lag");
    assert!(socket.contains("redis+unix:///nonexistent/socket: the server cannot be reached"), "{socket}");
}

#[test]
fn a_url_that_is_none_is_told() {
    for url in ["127.0.0.1:6379", "localhost", "user:hunter2@host"] {
        let why = said(url, "topic list");
        assert_eq!(why, "error: the URL of the queue has no scheme: redis://host:port is one");
    }
    let scheme = said("http://u:hunter2@h", "topic list");
    assert!(scheme.contains("unknown URL scheme \"http\"") && !scheme.contains("hunter2"), "{scheme}");
    let user = said("u:hunter2@redis://h", "topic list");
    assert!(user.contains("unknown URL scheme") && !user.contains("hunter2"), "{user}");
    let none = said("redis://", "topic list");
    assert!(none.contains("url \"redis://\" cannot be used"), "{none}");
}

#[test]
fn a_password_that_is_missing_or_wrong_is_told() {
    let server = Server::builder().arg("--requirepass", "hunter2").start();
    let at = server.url().strip_prefix("redis://").expect("a url").to_owned();
    let where_to = "; redis://user:password@host in MILLSTREAM_URL, or in the file of --config";
    let missing = said(&server.url(), "topic list");
    assert_eq!(
        missing,
        format!(
            "error: connect to redis://{at}: the server asks for a password, and none was given{where_to}"
        )
    );
    for user in [":hunter3", "bob:hunter3"] {
        let wrong = said(&format!("redis://{user}@{at}"), "topic list");
        assert!(
            wrong.contains("the server refuses these credentials: ") && wrong.ends_with(where_to),
            "{wrong}"
        );
        assert!(!wrong.contains("hunter3"), "{wrong}");
    }
    let ran =
        Ran::of(bare(&["topic", "list", "--json"]).env("MILLSTREAM_URL", format!("redis://:hunter2@{at}")));
    assert_eq!((ran.code, envelope::data(&ran.stdout)), (0, serde_json::json!([])), "{ran:?}");
}

#[test]
fn a_command_that_a_user_may_not_use_is_named() {
    let server = Server::start();
    server.cli(&["ACL", "SETUSER", "reader", "on", ">pw", "~*", "+@all", "-evalsha", "-evalsha_ro"]);
    let at = server.url().strip_prefix("redis://").expect("a url").to_owned();
    let refused = said(&format!("redis://reader:pw@{at}"), "topic create orders");
    assert!(refused.contains("this user lacks a permission") && refused.contains("evalsha"), "{refused}");
    assert!(refused.ends_with("; `millstream doctor` lists every command that this user lacks"), "{refused}");
}

#[tokio::test]
async fn a_key_of_somebody_else_is_named() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    seed::orders(&cli.mq().await, 1).await;
    let keys = Keys::within(&Namespace::new(&cli.namespace).expect("a name"));
    let meta = keys.topic_meta(&"orders".parse().expect("a name")).to_string();
    server.cli(&["DEL", &meta]);
    server.cli(&["SET", &meta, "theirs"]);
    for words in ["topic describe orders", "tail orders", "lag orders", "memory orders"] {
        let why = cli.fails(1, words);
        assert!(why.contains(&meta) && why.contains("a key has the wrong type"), "{words}: {why}");
        assert!(why.ends_with("; `millstream verify` lists every key of a wrong type\n"), "{words}: {why}");
        assert_eq!(why.lines().count(), 1, "{why}");
    }
}

#[tokio::test]
async fn a_name_that_may_have_been_meant_is_named() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 2).await;
    seed::handled(&mq, 2, &[]).await;
    DelayQueue::<String>::new("mails").open(mq.backend()).await.expect("a queue");
    for words in [
        "topic describe ordres",
        "topic delete ordres --yes",
        "topic alter ordres --retention keep",
        "topic expand ordres 4 --yes",
        "group list ordres",
        "group describe ordres billing",
        "group create ordres billing",
        "group reset ordres billing --to earliest",
        "group pins ordres",
        "lag ordres",
        "owners ordres billing",
        "pending ordres billing",
        "memory ordres",
        "dlq list ordres billing",
        "dlq consume ordres billing",
        "verify ordres",
        "tail ordres",
        "consume ordres -g billing",
        "produce ordres",
        "delayed list ordres",
        "schedule list ordres",
    ] {
        let why = cli.fails(1, words);
        assert!(why.starts_with("error: topic ordres does not exist"), "{words}: {why}");
        assert!(why.ends_with("; is topic orders meant?\n") && why.lines().count() == 1, "{words}: {why}");
    }
    for words in [
        "group describe orders biling",
        "pending orders biling",
        "dlq count orders biling",
        "lag orders -g biling",
    ] {
        let why = cli.fails(1, words);
        assert_eq!(why, "error: group biling of topic orders does not exist; is group billing meant?\n");
    }
    for words in ["queue counts mail", "queue dead list mail", "schedule list mail --queue"] {
        let why = cli.fails(1, words);
        assert!(why.starts_with("error: delay queue mail does not exist"), "{words}: {why}");
        assert!(
            why.ends_with("; is delay queue mails meant?\n") && why.lines().count() == 1,
            "{words}: {why}"
        );
    }
    assert_eq!(cli.fails(1, "topic describe invoices"), "error: topic invoices does not exist\n");
}

/// A server of another version, as far as a client asks who it is.
fn old_server(version: &'static str, knows_hello: bool) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    // It ends with the process of the test.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(stream) = stream else { return };
            thread::spawn(move || serve(stream, version, knows_hello));
        }
    });
    format!("redis://127.0.0.1:{port}")
}

fn serve(mut stream: TcpStream, version: &str, knows_hello: bool) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    loop {
        let words = number(&mut reader, '*')?;
        let mut command = Vec::new();
        for _ in 0..words {
            let mut word = vec![0; number(&mut reader, '$')? + 2];
            reader.read_exact(&mut word).ok()?;
            word.truncate(word.len() - 2);
            command.push(String::from_utf8_lossy(&word).to_uppercase());
        }
        let answer = match command.first()?.as_str() {
            "HELLO" if knows_hello => "%1\r\n+proto\r\n:3\r\n".to_owned(),
            "INFO" => {
                let info = format!("redis_version:{version}\r\n");
                format!("${}\r\n{info}\r\n", info.len())
            }
            "PING" => "+PONG\r\n".to_owned(),
            "CLIENT" if command.get(1).is_some_and(|word| word == "SETNAME") => "+OK\r\n".to_owned(),
            other => format!("-ERR unknown command `{other}`, with args beginning with:\r\n"),
        };
        stream.write_all(answer.as_bytes()).ok()?;
    }
}

fn number(reader: &mut impl BufRead, mark: char) -> Option<usize> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    line.trim_end().strip_prefix(mark)?.parse().ok()
}

#[test]
fn a_server_that_is_too_old_is_told_with_its_version() {
    let old = said(&old_server("6.2.14", true), "topic list");
    assert!(old.ends_with(": the server is version 6.2.14, at least 7.0 is needed"), "{old}");
    let older = said(&old_server("5.0.14", false), "topic list");
    assert!(older.contains("the server lacks a required feature: "), "{older}");
}
