//! `millstream message status`.

use std::time::Duration;

use millstream::delay::Task;
use millstream::{Delivery, Never, Reply, Topic};
use serde_json::json;

use crate::support::cli::Cli;
use crate::support::feed::eventually;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_shown_where_it_is() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let imports = Topic::<u64>::new("imports");
    let producer = mq.producer(&imports).await.expect("a producer");
    mq.consumer(&imports, "idle").start(async |_: Delivery<u64>| {}).await.expect("created").shutdown().await;
    let handler = async |rows: Delivery<u64>| match rows.payload {
        0 => Err("no rows"),
        1 => std::future::pending().await,
        _ => Ok(Reply::json(&rows.payload)),
    };
    let consumer = mq.consumer(&imports, "importers").lease_ttl(Duration::from_secs(1)).retry(Never);
    let consumer = consumer.shutdown_timeout(Duration::ZERO).start(handler).await.expect("a consumer");
    let ask = async |rows: u64| {
        let requested =
            producer.send(&rows).key(rows.to_string()).reply::<u64>().begin().await.expect("sent");
        let _ = requested.within(Duration::from_secs(if rows == 1 { 0 } else { 60 })).await;
        requested.id.to_string()
    };
    let (done, failed, stuck) = (ask(2).await, ask(0).await, ask(1).await);
    let status = |id: &str| cli.json(["message", "status", id]);
    let state = |id: &str| status(id)["work"][1]["state"].clone();
    assert_eq!(
        status(&done)["work"][0],
        json!({
            "group": "idle", "state": "waiting", "step": null, "at": null, "by": null, "attempt": null, "error": ""
        })
    );
    assert_eq!((state(&done), &status(&done)["result"]["reply"]), (json!("settled"), &json!("2")));
    assert_eq!((state(&failed), &status(&failed)["result"]["reason"]), (json!("dead"), &json!("exhausted")));
    assert_eq!(status(&failed)["work"][1]["error"], "no rows");
    eventually("it is named as running", async || state(&stuck) == "running").await;
    let text = cli.ok(["message", "status", &stuck]);
    assert!(
        text.contains("importers  running  2") && text.ends_with("no result: not yet, or not any longer\n"),
        "{text}"
    );
    // Without the id of the message only the result is known.
    let bare = done.rsplit_once('/').expect("an id").0;
    assert_eq!((&status(bare)["work"], &status(bare)["result"]["reply"]), (&json!([]), &json!("2")));
    consumer.shutdown().await;

    let mails = mq.delay_queue::<u64>("mails").await.expect("a queue");
    let later = mails.schedule(&1).id("a/b c").delay(Duration::from_secs(3_600)).reply::<u64>();
    let later = later.begin().await.expect("stored").id.to_string();
    assert_eq!(status(&later)["work"][0]["state"], "delayed");
    let worker = mails.worker().shutdown_timeout(Duration::ZERO);
    let worker = worker.start(async |_: Task<u64>| std::future::pending::<Reply>().await);
    let worker = worker.await.expect("a worker");
    cli.ok(["queue", "now", "mails", "a/b c"]);
    eventually("a worker has it", async || status(&later)["work"][0]["state"] == "handed out").await;
    worker.shutdown().await;
}
