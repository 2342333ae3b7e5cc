//! Work of an operator, from the overview, as somebody does it who has read nothing.

use std::time::Duration;

use bytes::Bytes;
use millstream::{Delivery, Millstream, Outcome, Topic};
use serde_json::json;

use super::place::eventually;
use super::site::Site;
use crate::browser::chromium::{Tab, folder};

/// Two topics with groups; messages of `orders` died of two errors.
async fn fill(mq: &Millstream) {
    let orders = Topic::<Bytes>::raw("orders").partitions(8).retention(millstream::Retention::Keep);
    let producer = mq.producer(orders.clone()).await.expect("a topic");
    for number in 0..60_u32 {
        let payload = Bytes::from(format!(
            "{{\"order\":90071992547409{number:03},\"total\":\"12.50\",\"lines\":[1,2]}}"
        ));
        producer
            .send(&payload)
            .key(format!("customer-{}", number % 12))
            .header("trace", "a1b2")
            .await
            .expect("sent");
    }
    let consumer = mq.consumer(orders.clone(), "billing");
    let consumer = consumer.start(async |it: Delivery<Bytes>| {
        let number: u64 = it.payload.iter().map(|byte| u64::from(*byte)).sum();
        match number % 3 {
            0 => Outcome::Ack,
            1 => Outcome::dead_letter(format!("no such customer {number}")),
            _ => Outcome::dead_letter(format!("connection to 10.0.0.{} timed out after 30s", number % 200)),
        }
    });
    let consumer = consumer.await.expect("a consumer");
    eventually("all are handled", async || {
        let report = consumer.report();
        report.dead + report.acked == 60
    })
    .await;
    consumer.shutdown().await;
    let (name, group) = ("orders".parse().expect("a name"), "shipping".parse().expect("a name"));
    mq.admin().create_group(&name, &group, millstream::Start::Earliest).await.expect("created");
    mq.producer(Topic::<u64>::new("mails").partitions(2)).await.expect("a topic");
}

/// Returns the format of pictures, `png` or `webp`, if pictures are asked for.
fn pictures() -> Option<String> {
    std::env::var("MILLSTREAM_PICTURES").ok().filter(|format| format == "png" || format == "webp")
}

/// Starts consumers and a producer, for pictures of a queue in use.
async fn traffic(mq: &Millstream) {
    let mails = || Topic::<Bytes>::raw("mails").partitions(8);
    for (group, label, ms) in
        [("newsletter", "news-1", 400), ("invoices", "inv-1", 2), ("invoices", "inv-2", 2)]
    {
        let handle = move |_: Delivery<Bytes>| async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Outcome::Ack
        };
        let consumer = mq.consumer(mails(), group).label(label).start(handle).await.expect("a consumer");
        // They run for as long as the test does.
        std::mem::forget(consumer);
    }
    let producer = mq.producer(mails()).await.expect("a topic");
    tokio::spawn(async move {
        for number in 0_u32.. {
            let mail = Bytes::from(format!("{{\"to\":\"customer-{number}\"}}"));
            producer.send(&mail).key(format!("{number}")).await.expect("sent");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
}

/// Keeps a picture of the page, if pictures are asked for: `MILLSTREAM_PICTURES=webp`.
async fn picture(tab: &mut Tab, name: &str) {
    use base64::Engine as _;
    let Some(format) = pictures() else { return };
    for (scheme, width) in [("light", 1_280), ("dark", 1_280), ("light", 360), ("dark", 360)] {
        tab.scheme(scheme).await;
        tab.width(width).await;
        let mut how = json!({"captureBeyondViewport": false, "format": format});
        if format == "webp" {
            how["quality"] = 60.into();
        }
        let shot = tab.call("Page.captureScreenshot", how).await;
        let bytes = base64::engine::general_purpose::STANDARD.decode(shot["data"].as_str().expect("text"));
        let file = folder().join(format!("dashboard-{name}-{scheme}-{width}.{format}"));
        std::fs::write(file, bytes.expect("base64")).expect("written");
    }
    tab.scheme("light").await;
    tab.width(1_280).await;
}

/// Loads the page again until all letters are counted: on a busy machine that takes longer than a page waits.
async fn counted(tab: &mut Tab) {
    while tab.text().await.contains("counting goes on") {
        tab.follow("location.reload()").await;
    }
}

/// Expression that clicks the first link or button with this text.
fn click(text: &str) -> String {
    let text = serde_json::to_string(text).expect("text");
    format!(
        "[...document.querySelectorAll('a, button')].find((it) => it.textContent.trim() === {text}).click()"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_of_one_error_are_replayed_from_the_overview() {
    let site = Site::start().await;
    fill(&site.mq).await;
    let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
    let letters = site.mq.admin().dead_letters(&topic, &group).await.expect("letters");
    let before = letters.count().await.expect("a count");
    let mut tab = Tab::open().await;
    tab.width(1_280).await;
    tab.go(&site.url("/overview")).await;
    if pictures().is_some() {
        traffic(&site.mq).await;
        // Long enough for rates and trends.
        tokio::time::sleep(Duration::from_secs(30)).await;
        tab.go(&site.url("/overview")).await;
        picture(&mut tab, "overview").await;
        tab.follow(&click("newsletter")).await;
        picture(&mut tab, "group").await;
        tab.go(&site.url("/overview")).await;
    }
    tab.follow(&click("billing")).await;
    tab.follow(&click("Dead letters")).await;
    counted(&mut tab).await;
    picture(&mut tab, "dead").await;
    let text = tab.text().await;
    assert!(text.contains("no such customer") && text.contains("timed out"), "{text}");
    let (rows, find) = (
        "[...document.querySelectorAll('tbody tr')]",
        "find((it) => it.textContent.includes('no such customer'))",
    );
    let count =
        tab.eval(&format!("Number({rows}.{find}.cells[0].textContent)")).await.as_u64().expect("a count");
    if pictures().is_some() {
        let letter = "[...document.querySelectorAll('td.mono a')][0].click()";
        tab.follow(letter).await;
        picture(&mut tab, "letter").await;
        tab.go(&site.url("/topics/orders/groups/billing/dead")).await;
    }
    tab.follow(&format!(
        "[...{rows}.{find}.querySelectorAll('a')].find((it) => it.textContent === 'replay…').click()"
    ))
    .await;
    counted(&mut tab).await;
    picture(&mut tab, "replay").await;
    // By the keyboard, as a person: the field, the number, the return key.
    tab.eval("document.querySelector('input[name=confirm]').focus()").await;
    tab.call("Input.insertText", json!({"text": count.to_string()})).await;
    tab.take("Page.loadEventFired");
    for kind in ["keyDown", "keyUp"] {
        let key =
            json!({"type": kind, "key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13});
        tab.call("Input.dispatchKeyEvent", key).await;
    }
    tab.event("Page.loadEventFired").await;
    picture(&mut tab, "action").await;
    let text = tab.text().await;
    assert!(text.contains(&format!("{count} of {count}")) && text.contains("ann"), "{text}");
    assert_eq!(letters.count().await.expect("a count"), before - count);

    tab.follow(&click("Audit log")).await;
    assert!(tab.text().await.contains("dlq replay"));
    tab.go(&site.url("/topics/orders")).await;
    picture(&mut tab, "topic").await;
    tab.follow(&click("Change settings or add partitions…")).await;
    picture(&mut tab, "alter").await;
    tab.go(&site.url("/topics/orders/verify")).await;
    tab.follow(&click("Verify now")).await;
    tab.follow(&click("The findings")).await;
    // It may still run.
    for _ in 0..200 {
        if tab.text().await.contains("Nothing is wrong.") {
            break;
        }
        tab.go(&site.url("/topics/orders/verify")).await;
    }
    assert!(tab.text().await.contains("Nothing is wrong."));
    picture(&mut tab, "verify").await;
    tab.go(&site.url("/topics/orders/messages")).await;
    picture(&mut tab, "messages").await;
    tab.go(&site.url("/topics/orders/groups/billing/dead/list")).await;
    picture(&mut tab, "list").await;
    tab.go(&site.url("/topics/orders/messages")).await;
    tab.follow("document.querySelector('td a').click()").await;
    picture(&mut tab, "message").await;
    tab.go(&site.url("/redis")).await;
    picture(&mut tab, "redis").await;
    tab.go(&site.url("/topics/orders/groups/shipping/reset?to=latest")).await;
    picture(&mut tab, "reset").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_is_paused_and_a_wrong_confirmation_changes_nothing() {
    let site = Site::start().await;
    fill(&site.mq).await;
    let (topic, group) = ("orders".parse().expect("a name"), "shipping".parse().expect("a name"));
    let mut tab = Tab::open().await;
    tab.go(&site.url("/topics/orders/groups/shipping")).await;
    tab.follow(&click("Pause the group…")).await;
    assert!(tab.text().await.contains("start no further handler"));
    picture(&mut tab, "pause").await;
    tab.follow(&click("Pause")).await;
    assert!(tab.text().await.contains("done"));
    let state = site.mq.admin().group_state(&topic, &group).await.expect("its state");
    assert!(state.paused.is_some());
    tab.go(&site.url("/topics/orders/groups/shipping/reset?to=latest")).await;
    assert!(tab.text().await.contains("60"), "60 messages would be skipped");
    tab.eval("document.querySelector('input[name=confirm]').value = 'orders'").await;
    tab.follow(&click("Move the group")).await;
    assert!(tab.text().await.contains("Nothing was changed: type shipping to confirm"));
    picture(&mut tab, "refused").await;
    let stats = site.mq.admin().group_stats(&topic, &group).await.expect("stats");
    assert_eq!(stats.totals.lag, Some(60));
    // What was chosen is still there.
    tab.focused().await;
    assert_eq!(tab.eval("document.activeElement.value").await, "orders");
    tab.eval("document.activeElement.value = 'shipping'").await;
    tab.follow(&click("Move the group")).await;
    assert!(tab.text().await.contains("done"));
    let stats = site.mq.admin().group_stats(&topic, &group).await.expect("stats");
    assert_eq!(stats.totals.lag, Some(0));
    tab.follow(&click("shipping")).await;
    let text = tab.text().await;
    assert!(text.contains("Paused by\nann") && text.contains("paused since"), "{text}");
    picture(&mut tab, "paused").await;
}
