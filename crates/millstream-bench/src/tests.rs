//! Tests that a benchmark leaves no data behind, also on a server that it did not start.

use clap::Parser;

use crate::args::{Aof, Cli};
use crate::bare::Probe;
use crate::server::Server;

async fn run(args: &str, url: &str) -> anyhow::Result<()> {
    let args = args.split_whitespace().chain(["--runs", "1", "--url", url]);
    crate::dispatch(Cli::try_parse_from(args)?).await
}

#[tokio::test]
async fn a_server_of_others_is_left_as_it_was() {
    let server = Server::start(Aof::No).await.unwrap();
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
    let server = Server::start(Aof::Everysec).await.unwrap();
    let (url, dir) = (server.url(), server.dir().to_owned());
    assert!(Probe::connect(&url).await.is_ok() && dir.exists());
    server.stop().await.unwrap();
    assert!(Probe::connect(&url).await.is_err() && !dir.exists());
}
