//! Connecting: typed errors, no password anywhere, and life after the server went away.

pub(crate) mod appender;
pub(crate) mod appenders;
pub(crate) mod risks;

use std::time::{Duration, Instant};

use millstream_core::catalog::Catalog;
use millstream_core::error::ErrorKind;
use millstream_core::log::{Append, Log};
use millstream_core::topic::TopicPartition;
use millstream_redis::{RedisBackend, RedisConfig};

use crate::server::{Bench, Server, ids, message};

async fn refused(url: String) -> millstream_core::Error {
    RedisBackend::connect(RedisConfig::new(url)).await.expect_err("no connection")
}

#[tokio::test]
async fn every_reason_has_its_kind() {
    let server = Server::start(&["--requirepass", "hunter2"]);
    let address = format!("127.0.0.1:{}", server.port);
    assert_eq!(refused("nonsense".into()).await.kind(), ErrorKind::InvalidConfig);
    assert_eq!(refused("redis://127.0.0.1:1".into()).await.kind(), ErrorKind::Unavailable);
    assert_eq!(refused(format!("redis://{address}")).await.kind(), ErrorKind::Denied);
    let error = refused(format!("redis://:sesame@{address}")).await;
    assert_eq!(error.kind(), ErrorKind::Denied);
    assert!(!format!("{error} {error:?}").contains("sesame"), "{error:?}");

    let backend = RedisBackend::connect(RedisConfig::new(format!("redis://:hunter2@{address}"))).await;
    let backend = backend.expect("connected");
    assert!(!format!("{backend:?}").contains("hunter2"), "{backend:?}");
    assert!(backend.topics().await.expect("topics").is_empty());
}

#[tokio::test]
async fn readers_log_in_and_choose_the_database_over_tcp_and_over_a_unix_socket() {
    let folder = tempfile::tempdir().expect("a folder");
    for over_tcp in [true, false] {
        let path = folder.path().join(if over_tcp { "unused.sock" } else { "redis.sock" });
        let path = path.to_str().expect("text");
        let server = Server::start(&["--requirepass", "hunter2", "--unixsocket", path]);
        // The server listens there a moment after it answers at its port.
        for _ in 0..1_000 {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let url = if over_tcp {
            format!("redis://default:hunter2@127.0.0.1:{}/3", server.port)
        } else {
            format!("unix://{path}?db=3&pass=hunter2")
        };
        let mut bench = Bench::at(RedisConfig::new(url), Some(server)).await;
        let mut reader = bench.reader().await;
        let id = bench.append(message("x")).await;
        let fetched = reader.fetch(10, Duration::from_secs(5)).await.expect("fetched");
        assert_eq!(ids(&fetched), [id]);
        assert_eq!(&fetched.entries[0].fields[0].1[..], b"x");
        let clients = format!("{:?}", bench.cmd("CLIENT LIST").await);
        let ours = clients.split("\\n").find(|client| client.contains("name=millstream:reader"));
        assert!(ours.is_some_and(|client| client.contains(" db=3 ")), "{clients}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up_in_time() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let config = RedisConfig::new(format!("redis://127.0.0.1:{port}"))
        .with_connect_timeout(Duration::from_millis(200))
        .with_response_timeout(Duration::from_millis(200));
    let started = Instant::now();
    let error = RedisBackend::connect(config).await.expect_err("silence");
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    // Against a hang.
    assert!(started.elapsed() < Duration::from_secs(60));
}

#[tokio::test]
async fn a_request_fails_soon_while_the_server_is_away_and_works_when_it_is_back() {
    let server = Server::start(&[]);
    let port = server.port;
    let backend = RedisBackend::connect(RedisConfig::new(server.url())).await.expect("connected");
    let append = || Append::new(TopicPartition::new("t".parse().expect("name"), 0), message("x"));
    backend.append(&[append()]).await.remove(0).expect("appended");
    drop(server);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let batch: Vec<_> = (0..2_500).map(|_| append()).collect();
    let started = Instant::now();
    let answers = backend.append(&batch).await;
    // Against a hang.
    assert!(started.elapsed() < Duration::from_secs(60));
    assert_eq!(answers.len(), 2_500);
    for error in answers.into_iter().map(|answer| answer.expect_err("away")) {
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
    assert_eq!(backend.topics().await.expect_err("away").kind(), ErrorKind::Unavailable);

    let _back = Server::at(port);
    backend.append(&[append()]).await.remove(0).expect("appended");
    backend.topics().await.expect("topics");
}

#[tokio::test]
async fn an_append_to_a_foreign_key_does_not_stop_the_others() {
    let mut bench = Bench::new().await;
    let broken = TopicPartition::new("broken".parse().expect("name"), 0);
    let key = bench.keys.log(&broken);
    bench.cmd(&format!("SET {key} x")).await;
    let append = |tp: &TopicPartition| Append::new(tp.clone(), message("x"));
    let answers = bench.backend.append(&[append(&bench.tp), append(&broken), append(&bench.tp)]).await;
    let [Ok(first), Err(error), Ok(last)] = &answers[..] else { panic!("{answers:?}") };
    assert!(first.id < last.id);
    assert_eq!(error.kind(), ErrorKind::WrongType);
    assert!(error.to_string().contains("broken/0"), "{error}");
    assert_eq!(error.operation(), Some("append to broken/0"));
    assert_eq!((error.topic(), error.partition()), (Some("broken"), Some(0)));
    assert!(bench.backend.append(&[]).await.is_empty());
}

/// Without it, leases of a machine that was suspended would look as if they had just been renewed.
#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_backend_counts_the_time_of_suspended_machines() {
    let backend = millstream_core::Backend::from(Bench::new().await.backend);
    assert!(backend.boot_clock().is_some());
}

/// Whichever way a connection is opened: by us, by the client over a stream of ours, and by the client's pool.
#[tokio::test]
async fn what_a_server_says_that_takes_no_connection_is_told() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    for (words, kind) in [
        ("ERR max number of clients reached", ErrorKind::Unavailable),
        ("DENIED Redis is running in protected mode because protected mode is enabled", ErrorKind::Denied),
        ("LOADING Redis is loading the dataset in memory", ErrorKind::Unavailable),
    ] {
        let accept = async {
            loop {
                let (stream, _) = listener.accept().await.expect("a client");
                // As a server does: it says so, and closes the connection without reading.
                stream.try_write(format!("-{words}\r\n").as_bytes()).expect("said");
            }
        };
        let ask = async {
            let error = refused(format!("redis://127.0.0.1:{port}")).await;
            assert_eq!(error.kind(), kind, "{error}");
            let (_, reason) = words.split_once(' ').expect("behind the code");
            assert!(error.to_string().contains(reason), "{error}");
            assert!(!error.to_string().contains("cannot be reached"), "it was reached: {error}");
        };
        tokio::select! {
            () = ask => {}
            () = accept => {}
        }
    }
}

#[tokio::test]
async fn a_server_that_takes_no_more_connections_says_so_to_all_roles() {
    let mut bench = Bench::private(&[]).await;
    bench.append(message("x")).await;
    bench.cmd("CONFIG SET maxclients 1").await;
    for _ in 0..20 {
        let error = refused(bench.url.clone()).await;
        assert!(error.to_string().contains("max number of clients reached"), "{error}");
        let mut reader = bench.reader().await;
        let error = reader.fetch(1, Duration::ZERO).await.expect_err("no room for a reader");
        assert!(error.to_string().contains("max number of clients reached"), "{error}");
    }
}
