//! A queue with something of everything, and with something hostile wherever anybody can put it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use millstream::admin::{Fault, Finding, Scope};
use millstream::batch::{BatchMember, BatchParent, BatchSpec, Block};
use millstream::crates::core::audit::{Audit, Audited, Check};
use millstream::crates::core::recurring::Recurrence;
use millstream::crates::core::schedule::{OnConflict, ScheduleId};
use millstream::crates::core::{Envelope, History, Reason, wire};
use millstream::delay::{DelayQueue, Task};
use millstream::{
    BatchId, Concurrency, DeadLetter, Delivery, Fixed, MessageId, Millstream, Never, Outcome, Retention,
    Sharing, Topic, TopicPartition,
};
use tokio::time::Instant;

/// Text that would run, close an attribute, turn the line, or control a terminal.
pub(crate) const NASTY: &str =
    "<script>window.owned=1</script>\"><img src=x onerror=\"window.owned=1\">'&amp;\u{202e}\u{1b}[31m\u{7}";

/// The same for ids, which have no control characters.
pub(crate) const TURNED: &str =
    "turned\u{202e}<script>window.owned=1</script>\"><img src=x onerror=\"window.owned=1\">";

/// Number of the batch in partition 0 of `orders`.
const BATCH: u128 = 7;

/// Ids that stand in paths.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// A message of partition 0 of `orders`.
    pub(crate) message: String,
    /// A dead letter of partition 0 of group `billing`.
    pub(crate) letter: String,
    /// Fence of the lock `invoice:1`.
    pub(crate) fence: u64,
    /// An action, once there is one.
    pub(crate) action: String,
}

impl Place {
    /// Fills the placeholders of a route.
    pub(crate) fn path(&self, route: &str) -> String {
        let id = if route.contains("/dead/{partition}") { &self.letter } else { &self.message };
        let id = if route.starts_with("/actions") { &self.action } else { id };
        let fixed =
            [("{topic}", "orders"), ("{group}", "billing"), ("{queue}", "mails"), ("{partition}", "0")];
        let path = fixed.iter().fold(route.to_owned(), |path, (name, value)| path.replace(name, value));
        path.replace("{id}", id).replace("{name}", "style.css").replace("{number}", &format!("{BATCH:032x}"))
    }

    /// Adds the query without which a page shows nothing.
    pub(crate) fn with_query(&self, route: &str) -> String {
        let turned = "turned%E2%80%AE%3Cscript%3Ewindow.owned=1%3C/script%3E%22%3E%3Cimg%20src=x%20onerror=%22window.owned=1%22%3E";
        let query = match route {
            "/locks/release" => format!("?name=invoice:1&fence={}", self.fence),
            "/queues/{queue}/task" => format!("?id={turned}"),
            "/topics/{topic}/alter" => "?retention=length&keep_length=7&dead_time=30d".to_owned(),
            "/topics/{topic}/groups/{group}/reset" => "?to=earliest".to_owned(),
            _ => String::new(),
        };
        self.path(route) + &query
    }
}

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Number of findings of each topic of [`unsound`], beside those that are really there.
pub(crate) const FINDINGS: u64 = 13;

/// Finds what is hostile in every topic, until it is repaired.
struct Unsound {
    found: Arc<dyn Audit>,
    is_repaired: AtomicBool,
}

#[async_trait]
impl Audit for Unsound {
    async fn audit(&self, scope: &Scope, check: Check, after: Option<&str>) -> millstream::Result<Audited> {
        let mut audited = self.found.audit(scope, check, after).await?;
        if let (Scope::Topic(_), Check::Catalog, false) =
            (scope, check, self.is_repaired.load(Ordering::Relaxed))
        {
            let notes = (1..FINDINGS)
                .map(|number| Finding::new(Fault::NoteStray, scope, format!("{number}{NASTY}"), NASTY));
            audited.findings.extend(notes);
            audited.findings.push(Finding::new(Fault::BodyStranded, scope, TURNED, TURNED));
        }
        Ok(audited)
    }

    async fn repair(&self, _: &Finding) -> millstream::Result<bool> {
        self.is_repaired.store(true, Ordering::Relaxed);
        Ok(true)
    }
}

/// Returns the same queue, in which a verification finds something.
pub(crate) fn unsound(mq: &Millstream) -> Millstream {
    let backend = mq.backend().clone();
    let found = backend.audit().expect("it can be verified").clone();
    Millstream::over(backend.with_audit(Arc::new(Unsound { found, is_repaired: AtomicBool::new(false) })))
}

/// Fills a queue.
pub(crate) async fn fill(mq: &Millstream) -> Place {
    let orders = Topic::<Bytes>::raw("orders").partitions(2).retention(Retention::Keep);
    let producer = mq.producer(orders.clone()).await.expect("a topic");
    let hostile = || Bytes::from(NASTY.to_owned());
    let mut message = None;
    for number in 0..4 {
        let sent = producer
            .send(&hostile())
            .key(NASTY)
            .header(NASTY, NASTY)
            .partition(number % 2)
            .await
            .expect("sent");
        message.get_or_insert(sent.id);
    }
    let json =
        Bytes::from_static(br#"{"id":12345678901234567890123,"name":"<script>window.owned=1</script>"}"#);
    producer.send(&json).key(NASTY).partition(0).await.expect("sent");
    producer.send(&hostile()).key(NASTY).delay(Duration::from_secs(3_600)).id(TURNED).await.expect("sent");
    let recurring = mq.recurring(&orders).await.expect("the topic");
    recurring.id(TURNED).cron("0 9 * * *", "UTC").payload(&hostile()).await.expect("it recurs");

    let waiting = mq.consumer(orders.clone(), "waiting").retry(Fixed::new(Duration::from_secs(7_200)));
    let waiting = waiting.start(async |_: Delivery<Bytes>| Outcome::retry(NASTY)).await.expect("a consumer");
    eventually("all wait", async || waiting.report().retried == 5).await;
    waiting.shutdown().await;
    let consumer = mq.consumer(orders, "billing");
    let consumer =
        consumer.start(async |_: Delivery<Bytes>| Outcome::dead_letter(NASTY)).await.expect("a consumer");
    eventually("all are dead", async || consumer.report().dead == 5).await;
    consumer.shutdown().await;
    let letter = DeadLetter {
        id: MessageId::ZERO,
        reason: Reason::parse(NASTY),
        attempts: 2,
        error: NASTY.to_owned(),
        origin: MessageId::new(1, 1),
        topic_partition: TopicPartition::new("orders".parse().expect("a name"), 0),
        group: "billing".parse().expect("a name"),
        history: History::parse(&format!("5 1 {NASTY}")),
        body: wire::encode(&Envelope::new(hostile()).with_key(NASTY).with_header(NASTY, NASTY)),
    };
    let (tp, group) = (letter.topic_partition.clone(), letter.group.clone());
    let put = mq
        .backend()
        .dead_letters()
        .expect("dead letters")
        .put(&tp, &group, &[letter], true)
        .await
        .expect("put");

    let mails = DelayQueue::<String>::new("mails").open(mq.backend()).await.expect("a queue");
    mails.schedule(&NASTY.to_owned()).id("dead").await.expect("scheduled");
    let worker = mails.worker().retry(Never);
    let worker =
        worker.start(async |_: Task<String>| Err::<(), String>(NASTY.to_owned())).await.expect("a worker");
    eventually("it is dead", async || mails.dead().count().await.expect("a count") == 1).await;
    worker.shutdown().await;
    let hour = Duration::from_secs(3_600);
    mails.schedule(&NASTY.to_owned()).id(TURNED).delay(hour).await.expect("scheduled");
    mails.recurring(TURNED).every(hour).payload(&NASTY.to_owned()).await.expect("it recurs");
    count_together(mq).await;
    let held = mq.lock("invoice:1").owner(TURNED).ttl(hour).acquire().await.expect("acquired");
    let fence = held.fence();
    // Held for as long as the test runs.
    std::mem::forget(held);
    let action = "none".to_owned();
    Place {
        message: message.expect("sent").to_string(),
        letter: put[0].expect("put").to_string(),
        fence,
        action,
    }
}

/// Creates a batch that is a member of another one, with members that nobody has sent: a client names their places as it likes.
async fn count_together(mq: &Millstream) {
    let batches = mq.backend().batches().expect("batches");
    let id = |number| BatchId::new(TopicPartition::new("orders".parse().expect("a name"), 0), number);
    let parent = Some(BatchParent::Batch(BatchMember::new(id(BATCH + 1), 3)));
    let spec = BatchSpec { parent, ..BatchSpec::default() };
    batches.create(&id(BATCH + 1), &BatchSpec::default()).await.expect("created");
    batches.create(&id(BATCH), &spec).await.expect("created");
    for target in [NASTY, "orders", "queue/mails", TURNED] {
        let block = Block { from: 0, to: 4, token: 1 };
        batches.reserve(&id(BATCH), block, target, &[]).await.expect("reserved");
    }
}

/// Fills the rest of what anybody can put text into, which other tests do not expect: the names of consumers and of candidates,
/// a rule that no version has written, and forged entries of the audit log. Returns the pages that show it.
pub(crate) async fn forge(mq: &Millstream) -> Vec<String> {
    // Consumers of both modes, each with a message that it does not settle.
    let orders = || Topic::<Bytes>::raw("orders").partitions(2).retention(Retention::Keep);
    let held = mq.consumer(orders(), "held").label(TURNED);
    let held = held.start(|_: Delivery<Bytes>| std::future::pending::<Outcome>()).await.expect("a consumer");
    let shared = mq
        .consumer(orders(), "shared")
        .label(TURNED)
        .sharing(Sharing::Shared)
        .concurrency(Concurrency::Unordered(2));
    let shared =
        shared.start(|_: Delivery<Bytes>| std::future::pending::<Outcome>()).await.expect("a consumer");
    for group in ["held", "shared"] {
        let (topic, group) = ("orders".parse().expect("a name"), group.parse().expect("a name"));
        eventually("messages are pending", async || {
            let stats = mq.admin().group_stats(&topic, &group).await.expect("stats");
            stats.totals.pending.is_some_and(|pending| pending > 0)
        })
        .await;
    }
    // They run for as long as the test does.
    std::mem::forget((held, shared));

    let hour = Duration::from_secs(3_600);
    let term = mq.leader("nightly").candidate(NASTY).ttl(hour).campaign().await.expect("elected");
    std::mem::forget(term);

    let rule = Recurrence {
        id: ScheduleId::new("of-a-later-version").expect("an id"),
        rule: TURNED.to_owned(),
        fields: wire::encode(&Envelope::new(Bytes::from(NASTY)).with_key(NASTY)),
        next: None,
        paused: true,
    };
    let partition = TopicPartition::new("orders".parse().expect("a name"), 0);
    let recurring = mq.backend().recurring().expect("it has recurring messages");
    recurring.put(&partition.into(), &rule, OnConflict::Replace).await.expect("put");

    let log = mq.producer(Topic::<Bytes>::raw("millstream-audit")).to_our_own_topic().await.expect("a topic");
    for event in ["begin", "stop", "end"] {
        let entry = serde_json::json!({
            "version": 1, "event": event, "id": NASTY, "time": NASTY, "user": NASTY, "action": NASTY,
            "topic": NASTY, "group": NASTY, "queue": NASTY, "lock": NASTY, "limit": NASTY, "select": {NASTY: NASTY},
            "settings": {NASTY: NASTY, "to_topic": NASTY}, "result": NASTY, "error": NASTY,
        });
        log.send(&Bytes::from(entry.to_string())).await.expect("sent");
    }
    log.send(&Bytes::from(NASTY)).await.expect("sent");

    let query =
        "%3Cscript%3Ewindow.owned=1%3C/script%3E%22%3E%3Cimg%20src=x%20onerror=%22window.owned=1%22%3E";
    let group = "/topics/orders/groups";
    let mut paths =
        ["held", "held/pending", "shared", "shared/pending"].map(|it| format!("{group}/{it}")).to_vec();
    paths.extend(["/locks", "/audit", "/topics/millstream-audit/messages"].map(str::to_owned));
    // What is typed into a filter or an address.
    let fields =
        |names: &[&str]| names.iter().map(|it| format!("{it}={query}")).collect::<Vec<_>>().join("&");
    let of_message = ["key", "header", "payload"];
    paths.push(format!("/topics/orders/messages?{}", fields(&of_message)));
    let of_letter = fields(&["error", "reason", "key", "header", "payload"]);
    paths.extend(
        ["dead/list", "dead/replay", "dead/purge"].map(|it| format!("{group}/billing/{it}?{of_letter}")),
    );
    let of_retry = fields(&["error", "key", "header", "payload"]);
    paths.extend(["retries", "retries/now"].map(|it| format!("{group}/waiting/{it}?{of_retry}")));
    paths.push(format!("/queues/mails/dead?{}", fields(&["error", "id"])));
    for name in ["partition", "after", "from", "until", "id"] {
        paths.push(format!("/topics/orders/messages?{}", fields(&[name])));
        paths.push(format!("{group}/billing/dead/list?{}", fields(&[name])));
    }
    paths.push(format!("{group}/{query}"));
    paths.push(format!("/queues/{query}"));
    paths.push(format!("/locks/release?name={query}&fence=1"));
    paths.push(format!("/limits?prefix={query}"));
    paths.push(format!("/limits/rule?pattern={query}"));
    paths.push(format!("{group}/billing/reset?to={query}"));
    paths.push(format!("/queues/mails/task?id={query}"));
    paths
}
