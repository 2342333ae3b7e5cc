//! `millstream message cancel`.

use std::time::Duration;

use millstream::{Delivery, Never, Reply, Topic};
use serde_json::{Value, json};

use crate::support::cli::Cli;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_is_cancelled_and_the_exit_code_says_whether_it_may_run() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let films = Topic::<u64>::new("films").partitions(1);
    let producer = mq.producer(&films).await.expect("a producer");
    mq.consumer(&films, "idle").start(async |_: Delivery<u64>| {}).await.expect("created").shutdown().await;
    let (tell, mut begun) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |film: Delivery<u64>| {
        tell.send(film.payload).expect("a test");
        async move {
            match film.payload {
                0 => Ok(Reply::json(&0)),
                1 => std::future::pending().await,
                _ => {
                    film.cancelled().await;
                    Err("it stops")
                }
            }
        }
    };
    let consumer = mq.consumer(&films, "transcode").retry(Never).shutdown_timeout(Duration::ZERO);
    let consumer = consumer.concurrency(millstream::Concurrency::Unordered(4));
    let consumer = consumer.start(handler).await.expect("a consumer");
    let mut ask = async |film: u64| {
        let requested = producer.send(&film).reply::<u64>().begin().await.expect("sent");
        assert_eq!(begun.recv().await, Some(film));
        let _ = requested.within(Duration::from_secs(if film == 0 { 60 } else { 0 })).await;
        requested.id.to_string()
    };
    let (done, deaf, stops) = (ask(0).await, ask(1).await, ask(2).await);
    let ends = |code: i32, args: &str| -> Value { cli.json_with(code, args)["ends"].clone() };
    let idle = json!({ "group": "idle", "state": "cancelled", "letter": null });
    let of = |state: &str| json!([idle, { "group": "transcode", "state": state, "letter": null }]);
    assert_eq!(ends(0, &format!("message cancel {stops} --dry-run"))[1], of("asked")[1]);
    assert_eq!(ends(0, &format!("message cancel {done} --dry-run"))[1], of("done")[1]);
    assert_eq!(ends(0, &format!("message cancel {stops}")), of("stopped"));
    assert_eq!(ends(0, &format!("message cancel {done}")), of("done"));
    assert_eq!(ends(3, &format!("message cancel {deaf} --within 0s")), of("asked"));
    // By its place in the topic, for one group.
    let id = stops.rsplit_once('/').expect("an id").1;
    let one = format!("message cancel films/0/{id} --group idle");
    assert_eq!(ends(0, &one), json!([idle]));
    let text = cli.ok(["message", "cancel", &stops]);
    assert!(text.contains("transcode  stopped"), "{text}");
    assert_eq!(cli.json(["message", "status", &stops])["work"][1]["state"], "cancelled");
    assert_eq!(cli.json(["message", "status", &stops])["result"]["reason"], "cancelled");
    assert!(cli.fails(2, "message cancel films/0").contains("no id"));
    assert!(cli.fails(1, "message cancel nowhere/0/1-0").contains("nowhere"));
    consumer.shutdown().await;

    let mails = mq.delay_queue::<u64>("mails").await.expect("a queue");
    let later = mails.schedule(&1).id("a/b c").delay(Duration::from_secs(3_600)).reply::<u64>();
    let later = later.begin().await.expect("stored").id.to_string();
    let cancelled = json!([{ "group": null, "state": "cancelled", "letter": null }]);
    assert_eq!(cli.json(["message", "cancel", &later])["ends"], cancelled);
    assert_eq!(cli.json(["message", "status", &later])["result"]["reason"], "cancelled");
}
