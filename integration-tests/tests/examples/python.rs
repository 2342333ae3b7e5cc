//! `docs/wire.py` agrees with the vectors, as the library does, and both read what the other one has sent.

use std::process::Command;

use integration_tests::server::Server;
use millstream::{Delivery, Millstream, Topic};
use serde_json::{Value, json};
use tokio::sync::mpsc;

const ORDERS: Topic<Value> = Topic::new("orders").partitions(4);

/// Runs the script in the root of the repository. Returns what it printed.
async fn wire(args: &[&str]) -> String {
    let mut command = Command::new("python3");
    command.arg("docs/wire.py").args(args).current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("a thread");
    let output = output.expect("python3 runs");
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {}\n{printed}\n{errors}", output.status);
    printed.into_owned()
}

#[tokio::test]
async fn it_agrees_with_the_vectors() {
    wire(&["check", "docs/wire-vectors.json"]).await;
}

#[tokio::test]
async fn each_reads_what_the_other_one_has_sent() {
    let server = tokio::task::spawn_blocking(Server::start).await.expect("a server");
    let mq = Millstream::at(server.url()).namespace("shop").await.expect("connected");
    let orders = mq.producer(ORDERS).await.expect("a producer");
    let of_rust = json!({ "customer": "ada", "cents": 1_200 });
    let sent = orders.send(&of_rust).key("ada").header("source", "rust").await.expect("sent");

    let url = server.url();
    let address = url.strip_prefix("redis://").expect("a plain URL").trim_end_matches('/');
    let python = ["--server", address, "--namespace", "shop"];
    let of_python = json!({ "customer": "ada", "cents": 34 });
    let (payload, header) = (of_python.to_string(), "source=python");
    let args = [&python[..], &["produce", "orders", "--key", "ada", "--header", header, &payload]].concat();
    let printed = wire(&args).await;
    // One key, one partition, in both languages.
    let (partition, id) = printed.trim().split_once(' ').expect("partition and id");
    assert_eq!(partition, sent.partition.0.to_string());

    // Before a group of Millstream has settled them: then they are trimmed.
    let args = [&python[..], &["consume", "orders", "--group", "audit", "--count", "2"]].concat();
    let printed = wire(&args).await;
    let lines: Vec<&str> = printed.lines().collect();
    assert_eq!(lines.len(), 2, "{printed}");
    for (line, (id, payload)) in lines.iter().zip([(sent.id.to_string(), "1200"), (id.to_owned(), "34")]) {
        assert!(line.contains(&id) && line.contains(payload) && line.contains("ada"), "{line}");
    }

    let (found, mut received) = mpsc::unbounded_channel();
    let handle = move |order: Delivery<Value>| {
        let source = order.headers().get_str("source").map(str::to_owned);
        let key = order.key().map(|key| key.to_vec());
        found.send((order.origin().to_string(), key, source, order.payload)).expect("the test listens");
        async {}
    };
    let consumer = mq.consumer(ORDERS, "billing").start(handle).await.expect("a consumer");
    let ada = Some(b"ada".to_vec());
    let expected = [(sent.id.to_string(), "rust", of_rust), (id.to_owned(), "python", of_python)];
    for (id, source, payload) in expected {
        let next = received.recv().await.expect("the consumer runs");
        assert_eq!(next, (id, ada.clone(), Some(source.to_owned()), payload));
    }
    consumer.shutdown().await;
}
