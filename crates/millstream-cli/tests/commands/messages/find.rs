//! `millstream find`.

use std::time::Duration;

use bytes::Bytes;
use millstream::delay::DelayQueue;
use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::topic;
use crate::support::seed;

/// Returns where something was found: the kind of the place, and its group or queue.
fn places(found: &Value) -> Vec<(String, String)> {
    let text = |it: &Value| it.as_str().unwrap_or_default().to_owned();
    let of = |it: &Value| (text(&it["place"]), text(&it["group"]) + &text(&it["queue"]));
    found["places"].as_array().expect("a list").iter().map(of).collect()
}

fn place(place: &str, of: &str) -> (String, String) {
    (place.to_owned(), of.to_owned())
}

#[tokio::test]
async fn any_id_finds_its_message() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::orders(&mq, 4).await;
    seed::handled(&mq, 4, &[3]).await;
    let letter = cli.json("dlq list orders billing")["letters"][0].clone();
    let (origin, id) = (letter["origin"].as_str().expect("an id"), letter["id"].as_str().expect("an id"));
    let found = cli.json(&format!("find {origin}"));
    assert!(places(&found).contains(&place("log", "")), "{found}");
    assert!(places(&found).contains(&place("dead letters", "billing")), "by the id that it had: {found}");
    assert_eq!(found["left"], json!([]), "everything was looked through");
    let found = cli.json(&format!("find {id} --topic orders"));
    assert!(places(&found).contains(&place("dead letters", "billing")), "{found}");

    let reminders = topic(&mq, "reminders", 2).await;
    let payload = Bytes::from_static(b"{}");
    let later = reminders.send(&payload).key("customer-7").delay(Duration::from_secs(60)).id("welcome 7");
    later.await.expect("sent");
    reminders.send(&payload).key("customer-7").await.expect("sent");
    assert_eq!(places(&cli.json(["find", "welcome 7"])), [place("delayed", "")]);
    assert_eq!(places(&cli.json("find customer-7")), [place("log", "")]);

    let queue = DelayQueue::raw("thumbs").shards(4).open(mq.backend()).await.expect("a queue");
    queue.schedule(&payload).id("thumb-3").delay(Duration::from_secs(60)).await.expect("scheduled");
    assert_eq!(places(&cli.json("find thumb-3")), [place("tasks", "thumbs")]);

    let nothing = cli.json_with(3, "find nobody");
    assert_eq!(nothing["places"], json!([]));
}

#[tokio::test]
async fn messages_of_packs_are_found_and_what_is_left_out_is_named() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    seed::packs(&mq, 4, 5).await;
    let all = envelope::lines(&cli.ok("tail orders --from earliest --json"));
    for message in [&all[0], &all[7], &all[19]] {
        let id = message["id"].as_str().expect("an id");
        let found = cli.json(&format!("find {id}"));
        assert!(places(&found).contains(&place("log", "")), "{found}");
    }
    let found = cli.run("find nobody --looks 3").stderr;
    assert!(found.contains("not looked through: topic orders: the log beyond the newest"), "{found}");
    let found = cli.run("find nobody --time 0s").stderr;
    assert!(found.contains("not looked through: 1 topic: the time was over"), "{found}");
}
