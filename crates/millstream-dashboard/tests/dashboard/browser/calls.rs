//! Tables in the browser: rows that are checked, sorted and filtered, and that stay under the pointer.

use std::time::Duration;

use millstream::{Delivery, Millstream, Outcome, Start, Topic};
use serde_json::json;

use super::place::eventually;
use super::site::Site;
use crate::browser::chromium::Tab;

/// Number of letters.
const LETTERS: usize = 50;

/// Somebody at a browser.
struct OnCall {
    tab: Tab,
}

impl OnCall {
    async fn at(site: &Site) -> Self {
        let mut tab = Tab::open().await;
        tab.width(1_280).await;
        tab.go(&site.url("/overview")).await;
        Self { tab }
    }

    async fn step(&mut self, expression: &str) {
        self.tab.follow(expression).await;
        // A count that goes on is looked at again.
        while self.text().await.contains("counting goes on") {
            self.tab.follow("location.reload()").await;
        }
    }

    /// Follows the first link or button with this text.
    async fn click(&mut self, text: &str) {
        let text = serde_json::to_string(text).expect("text");
        let all = "[...document.querySelectorAll('main a, main button, header nav a')]";
        self.step(&format!("{all}.find((it) => it.textContent.trim() === {text}).click()")).await;
    }

    /// Follows a link or button in the first row that has a text.
    async fn click_in(&mut self, row: &str, link: &str) {
        let row = serde_json::to_string(row).expect("text");
        let rows = "[...document.querySelectorAll('tbody tr')]";
        let click = format!(
            "[...{rows}.find((it) => it.textContent.includes({row})).querySelectorAll('a')]\
             .find((it) => it.textContent.trim() === '{link}').click()"
        );
        self.step(&click).await;
    }

    async fn text(&mut self) -> String {
        self.tab.text().await
    }
}

/// Lets messages of a group die.
async fn fill(mq: &Millstream) {
    let orders = Topic::<u32>::new("orders").partitions(8);
    let producer = mq.producer(orders.clone()).await.expect("a topic");
    for number in 0..LETTERS as u32 {
        producer.send(&number).await.expect("sent");
    }
    let die = async |_: Delivery<u32>| Outcome::dead_letter("no such customer");
    let consumer = mq.consumer(orders, "billing").start(die).await.expect("a consumer");
    eventually("all are dead", async || consumer.report().dead == LETTERS as u64).await;
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_are_checked_are_replayed_and_no_others() {
    let site = Site::start().await;
    fill(&site.mq).await;
    let mut one = OnCall::at(&site).await;
    one.click_in("50 dead letters", "50").await;
    one.click("All letters").await;
    let check = "[...document.querySelectorAll('input[name=pick]')].slice(3, 6).map((it) => { it.checked = true; return it.value; })";
    let checked = one.tab.eval(check).await;
    one.click("Replay…").await;
    assert!(one.text().await.contains("Replay 3 dead letters"), "{}", one.text().await);
    one.tab.eval("document.querySelector('input[name=confirm]').value = '3'").await;
    one.step("document.querySelector('form[method=post] button').click()").await;
    assert!(one.text().await.contains("3 of 3"), "{}", one.text().await);
    let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
    let letters = site.mq.admin().dead_letters(&topic, &group).await.expect("letters");
    let left = letters.list(LETTERS).await.expect("a list");
    let name = |it: &millstream::DeadLetter| format!("{}:{}", it.topic_partition.partition.0, it.id);
    let left: Vec<String> = left.iter().map(name).collect();
    assert_eq!(left.len(), LETTERS - 3);
    let checked = checked.as_array().expect("a list");
    assert!(checked.iter().all(|it| !left.iter().any(|left| it == left)), "{checked:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tables_are_sorted_and_filtered_by_their_address_and_stay_under_the_pointer() {
    let site = Site::start().await;
    for (name, messages) in [("a-few", 1), ("b-many", 30), ("c-some", 9)] {
        let producer = site.mq.producer(Topic::<u64>::new("t").named(name)).await.expect("a topic");
        for number in 0..messages {
            producer.send(&number).await.expect("sent");
        }
        let (topic, group) = (name.parse().expect("a name"), "work".parse().expect("a name"));
        site.mq.admin().create_group(&topic, &group, Start::Earliest).await.expect("created");
    }
    let order =
        "[...document.querySelectorAll('table')][0].innerText.match(/a-few|b-many|c-some/g).join(' ')";
    let mut one = OnCall::at(&site).await;
    one.click("Backlog").await;
    assert_eq!(one.tab.eval(order).await, "b-many c-some a-few", "the largest first");
    assert_eq!(one.tab.eval("document.querySelector('[aria-sort]').ariaSort").await, "descending");
    one.click("Backlog").await;
    assert_eq!(one.tab.eval(order).await, "a-few c-some b-many");
    one.tab.go(&site.url("/overview?sort=-backlog&find=some")).await;
    assert_eq!(one.tab.eval(order).await, "c-some");

    // Under the pointer rows keep their places, while their values change.
    one.tab.go(&site.url("/overview?sort=-backlog")).await;
    let at = "(() => { const box = document.querySelector('tbody tr').getBoundingClientRect(); return [box.x + 40, box.y + 8]; })()";
    let at = one.tab.eval(at).await;
    let pointer =
        |x: &serde_json::Value, y: &serde_json::Value| json!({"type": "mouseMoved", "x": x, "y": y});
    one.tab.call("Input.dispatchMouseEvent", pointer(&at[0], &at[1])).await;
    let producer = site.mq.producer(Topic::<u64>::new("t").named("a-few")).await.expect("a topic");
    for number in 0..50 {
        producer.send(&number).await.expect("sent");
    }
    let is_new = "[...document.querySelectorAll('table')][0].innerText.includes('51')";
    eventually_in(&mut one.tab, is_new).await;
    assert_eq!(one.tab.eval(order).await, "b-many c-some a-few", "in their places");
    one.tab.call("Input.dispatchMouseEvent", pointer(&json!(2), &json!(2))).await;
    eventually_in(&mut one.tab, &format!("{order} === 'a-few b-many c-some'")).await;
}

/// Waits until an expression is true in the page, as its script refreshes it.
async fn eventually_in(tab: &mut Tab, expression: &str) {
    let began = tokio::time::Instant::now();
    while tab.eval(expression).await != true {
        assert!(began.elapsed() < Duration::from_secs(60), "{expression}: {}", tab.text().await);
        tab.eval("new Promise((done) => requestAnimationFrame(done))").await;
    }
}
