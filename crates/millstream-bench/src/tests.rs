//! Tests that a benchmark leaves no data behind, also on a server that it did not start.

use clap::Parser;

use crate::args::{Aof, Cli, Command};
use crate::bare::Probe;
use crate::measure::{Secure, Stage};
use crate::run::{Case, Side};
use crate::server::Server;
use crate::session::Session;

async fn run(args: &str, url: &str) -> anyhow::Result<()> {
    let args = args.split_whitespace().chain(["--runs", "1", "--url", url]);
    crate::dispatch(Cli::try_parse_from(args)?).await
}

#[tokio::test]
async fn a_server_of_others_is_left_as_it_was() {
    let server = Server::start(Aof::No, false).await.unwrap();
    let url = server.url();
    let probe = Probe::connect(&url).await.unwrap();
    probe.clear("nothing").await.unwrap();
    assert_eq!(probe.keys().await.unwrap(), 0);
    run("millstream-bench consume --messages 300 --partitions 3 --keep --baseline", &url).await.unwrap();
    run("millstream-bench retry --messages 50 --parked 20 --delay 5", &url).await.unwrap();
    assert_eq!(probe.keys().await.unwrap(), 0);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn a_private_server_is_gone_when_it_is_stopped() {
    let server = Server::start(Aof::Everysec, false).await.unwrap();
    let (url, dir) = (server.url(), server.dir().to_owned());
    assert!(Probe::connect(&url).await.is_ok() && dir.exists());
    server.stop().await.unwrap();
    assert!(Probe::connect(&url).await.is_err() && !dir.exists());
}

/// Millstream connects over TLS, and for the baseline without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_used_on_one_side() {
    let args = "millstream-bench produce --tls --messages 100 --baseline";
    let Cli { general, command } = Cli::try_parse_from(args.split_whitespace()).unwrap();
    let Command::Produce(produce) = command else { panic!("{command:?}") };
    let session = Session::open(&general, vec![0; 128].into()).await.unwrap();
    let secure = session.stage.secure.clone().expect("a second port");
    let port = |url: &str| url.rsplit(':').next().map(str::to_owned);
    assert_ne!(port(&secure.url), port(&session.stage.url));
    let case = Case::Produce(produce);
    case.run_once(&session.stage, Side::Ours).await.unwrap();
    case.run_once(&session.stage, Side::Bare).await.unwrap();
    // Without TLS there is no answer at that port, and without the certificate the server is not trusted.
    let namespace = &session.stage.namespace;
    let plain = millstream::Millstream::at(secure.url.replace("rediss:", "redis:")).namespace(namespace);
    assert!(plain.await.is_err());
    assert!(millstream::Millstream::at(&secure.url).namespace(namespace).await.is_err());
    // Where nobody listens, one side fails.
    let (url, tls) = ("rediss://127.0.0.1:1".to_owned(), secure.tls);
    let dead = Stage { secure: Some(Secure { url, tls }), ..session.stage.clone() };
    assert!(case.run_once(&dead, Side::Ours).await.is_err());
    case.run_once(&dead, Side::Bare).await.unwrap();
    session.close().await.unwrap();
}
