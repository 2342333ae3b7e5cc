//! `millstream message follow`.

use std::time::Duration;

use bytes::Bytes;
use millstream::{Delivery, Never, Reply, Topic};
use serde_json::json;

use crate::support::cli::Cli;
use crate::support::envelope;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_work_is_shown_line_by_line_and_then_the_result() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let imports = Topic::<u64>::new("imports");
    let handler = async |rows: Delivery<u64>| {
        rows.progress(0.25, "begun\u{1b}[31m");
        match rows.payload {
            0 => return Err("no rows"),
            1 => return Ok(Reply::bytes(Bytes::from_static(b"\xff"))),
            _ => {}
        }
        rows.progress(1.0, "");
        Ok(Reply::json(&rows.payload))
    };
    let consumer = mq.consumer(&imports, "g").retry(Never).start(handler).await.expect("a consumer");
    let producer = mq.producer(&imports).await.expect("a producer");
    let ask = async |rows: u64| {
        let requested = producer.send(&rows).reply::<u64>().begin().await.expect("sent");
        let _ = requested.within(Duration::from_secs(60)).await;
        requested.id.to_string()
    };
    let text = cli.ok(["message", "follow", &ask(7).await]);
    let lines: Vec<_> =
        text.lines().map(|line| line.split_once("  ").map_or(line, |(_, rest)| rest)).collect();
    assert_eq!(lines, [" 25.0 %  begun\\x1b[31m", "100.0 %  ", "replied: 7"]);
    let ran = cli.run(["message", "follow", &ask(0).await, "--json"]);
    let (data, error) = envelope::parts(&ran.stdout);
    assert_eq!((ran.code, error), (3, None), "{ran:?}");
    let line =
        |of: &serde_json::Value| json!([of["what"], of["attempt"], of["fraction"], of["text"], of["reason"]]);
    let told: Vec<_> = data.iter().map(line).collect();
    assert_eq!(
        told,
        [
            json!(["progress", 1, 0.25, "begun\u{1b}[31m", null]),
            json!(["failed", 1, null, "no rows", "exhausted"])
        ]
    );
    let bytes = cli.ok(["message", "follow", &ask(1).await]);
    assert!(bytes.ends_with("replied, in base64: /w==\n"), "{bytes}");
    consumer.shutdown().await;

    let late = producer.send(&3).reply::<u64>().begin().await.expect("sent").id.to_string();
    let why = cli.fails(1, ["message", "follow", &late, "--within", "50ms"]);
    assert!(why.contains("there is no progress and no result of imports/"), "{why}");
    let handler = async |rows: Delivery<u64>| {
        rows.progress(0.5, "half");
        std::future::pending::<Reply>().await
    };
    let stuck = mq.consumer(&imports, "g").shutdown_timeout(Duration::ZERO).start(handler).await;
    let stuck = stuck.expect("a consumer");
    // Lines are no result.
    let ran = cli.run(["message", "follow", &late, "--within", "2s"]);
    let why = "has no result yet; its handler said last: 50.0 % half";
    assert!(ran.code == 1 && ran.stderr.contains(why), "{ran:?}");
    stuck.shutdown().await;
    assert!(cli.fails(2, "message follow imports/0").contains("no id of a result"));
}
