//! `millstream exporter`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use millstream::Outcome;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::{Running, eventually, fed, topic};

/// Status and body of an answer.
fn get(address: SocketAddr, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer.split_once("\r\n\r\n").expect("a body").1.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn figures_of_a_server_are_served_until_a_signal_comes() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 2).await;
    cli.ok("group create orders billing --from earliest");
    fed(&cli, &["produce", "orders", "--partition", "1"], "a\nb\nc\n");
    let args = ["exporter", "--address", "127.0.0.1:0", "--interval", "100ms", "--json"];
    let mut exporter = Running::new(&cli, &args);
    let said = envelope::data(&exporter.line());
    let address: SocketAddr = said["address"].as_str().and_then(|it| it.parse().ok()).expect("an address");

    let shows = async |line: &str| get(address, "/metrics").1.lines().any(|it| it == line);
    let lag = "millstream_lag{topic=\"orders\",partition=\"1\",group=\"billing\"} 3";
    eventually("the lag is served", async || shows(lag).await).await;
    let (status, answer) = get(address, "/lag/orders/billing");
    let answer: Value = serde_json::from_str(&answer).expect("JSON");
    assert_eq!((status, &answer["backlog"]), (200, &Value::from(3)));
    assert_eq!(get(address, "/readyz").0, 200);
    assert_eq!(get(address, "/livez").0, 200);

    let topic = millstream::Topic::raw("orders").partitions(2);
    let consumer = mq.consumer(topic, "billing").start(async |_: millstream::Delivery<_>| Outcome::Ack);
    let consumer = consumer.await.expect("started");
    let none = lag.replace("} 3", "} 0");
    eventually("the lag is worked off", async || shows(&none).await).await;
    consumer.shutdown().await;
    exporter.signal(Signal::TERM);
    assert_eq!(exporter.ended(), Some(0));
}

#[tokio::test]
async fn topics_that_are_not_named_are_not_read() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 1).await;
    topic(&mq, "mails", 1).await;
    let all = cli.ok("exporter --once");
    assert!(all.contains("topic=\"orders\"") && all.contains("topic=\"mails\""), "{all}");
    let one = cli.ok("exporter --once --topic mails");
    assert!(!one.contains("topic=\"orders\"") && one.contains("topic=\"mails\""), "{one}");
    assert!(cli.fails(2, "exporter --interval 1ms").contains("at least 100ms"));
}
