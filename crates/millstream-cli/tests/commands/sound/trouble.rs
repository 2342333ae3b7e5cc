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
fn a_url_that_cannot_be_used_is_told_with_the_cure_and_without_a_password() {
    for (url, why) in [
        ("127.0.0.1:6379", "url \"127.0.0.1:6379\" cannot be used: it has no scheme: the forms are redis://"),
        ("user:hunter2@host", "url \"***@host\" cannot be used: it has no scheme"),
        ("http://u:hunter2@h", "url \"http://***@h\" cannot be used: the scheme is not known"),
        ("u:hunter2@redis://h", "the scheme is not known"),
        ("redis://", "url \"redis://\" cannot be used: the host is missing"),
        ("redis://:p@ss/hunter2#@h:6379", "percent-encode it, / as %2F"),
        ("'redis://:hunter2@h'", "the quotes are a part of it"),
        ("redis://:hunter2@h?timeout=5s", "timeout is not used in a URL, db alone is"),
        ("redis://hunter2@h", "names a user and no password"),
        ("redis://:hunter2", "url \"redis://***\" cannot be used"),
    ] {
        let told = said(url, "topic list");
        assert!(told.contains(why) && !told.contains("hunter2"), "{url}: {told}");
    }
}

/// A database in the query is used, as it is for sockets.
#[test]
fn a_database_behind_a_question_mark_is_that_database() {
    let server = Server::start();
    let ran =
        Ran::of(bare(&["topic", "create", "orders"]).env("MILLSTREAM_URL", format!("{}?db=5", server.url())));
    assert_eq!(ran.code, 0, "{ran:?}");
    let keys = server.cli(&["INFO", "keyspace"]);
    assert!(keys.contains("db5:") && !keys.contains("db0:"), "{keys}");
}

#[test]
fn sentinels_that_ask_for_a_password_get_theirs() {
    let server = Server::builder().arg("--requirepass", "of-the-server").start();
    let sentinel = Server::builder()
        .sentinel(&[
            &format!("sentinel monitor main 127.0.0.1 {} 1", server.port()),
            "sentinel auth-pass main of-the-server",
            "requirepass of-the-sentinel",
        ])
        .start();
    let url = format!("redis+sentinel://:of-the-server@127.0.0.1:{}/main", sentinel.port());
    let none = said(&url, "topic list");
    assert!(none.contains("ask Sentinels") && none.contains("asks for a password"), "{none}");
    let cure = "; --sentinel-password-file or MILLSTREAM_SENTINEL_PASSWORD sets their password";
    assert!(none.ends_with(cure), "{none}");
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("a path").to_owned()
    };
    let secret = path("secret", "of-the-sentinel\n");
    let wrong = path("wrong", "hunter2\n");
    let settings = path("config.toml", &format!("sentinel-password-file = {secret:?}\n"));
    type Way<'a> = (&'a [&'a str], &'a [(&'a str, &'a str)], i32);
    let ways: [Way<'_>; 6] = [
        (&["--sentinel-password-file", &secret], &[], 0),
        (&["--sentinel-user", "default", "--sentinel-password-file", &secret], &[], 0),
        (&[], &[("MILLSTREAM_SENTINEL_PASSWORD_FILE", &secret)], 0),
        (&[], &[("MILLSTREAM_SENTINEL_PASSWORD", "of-the-sentinel")], 0),
        (&["--config", &settings], &[], 0),
        (&["--sentinel-password-file", &wrong], &[], 1),
    ];
    for (args, variables, code) in ways {
        let args: Vec<&str> = ["topic", "list"].iter().chain(args).copied().collect();
        let ran = Ran::of(bare(&args).env("MILLSTREAM_URL", &url).envs(variables.iter().copied()));
        assert_eq!(ran.code, code, "{args:?} {variables:?}: {ran:?}");
        assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    }
    let unused = Ran::of(
        bare(&["topic", "list"])
            .env("MILLSTREAM_URL", server.url())
            .env("MILLSTREAM_SENTINEL_PASSWORD", "of-the-sentinel"),
    );
    assert!(unused.code == 1 && unused.stderr.contains("url does not name Sentinels"), "{unused:?}");
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
