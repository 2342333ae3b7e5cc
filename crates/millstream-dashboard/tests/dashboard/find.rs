//! What an operator looks for who has read nothing: walks from the overview that see only what a page shows, the texts of its
//! links, fields and buttons.

use std::time::Duration;

use axum::http::StatusCode;
use millstream::crates::core::log::Source;
use millstream::crates::core::members::Member;
use millstream::crates::core::running::{Running, RunningMessage, WaitingMessage};
use millstream::crates::core::{Envelope, History, Reason, wire};
use millstream::{DeadLetter, Delivery, MessageId, Outcome, Partition, Topic, TopicPartition};
use millstream_dashboard::Access;

use super::place::eventually;
use super::support::Scene;

/// A user who follows what a page shows.
struct Walk<'a> {
    scene: &'a Scene,
    path: String,
    page: String,
    /// Number of links and buttons so far.
    steps: usize,
}

impl<'a> Walk<'a> {
    async fn from_overview(scene: &'a Scene) -> Self {
        let mut walk = Self { scene, path: String::new(), page: String::new(), steps: 0 };
        walk.open("/overview".to_owned()).await;
        walk
    }

    async fn open(&mut self, path: String) {
        let answer = self.scene.get(&path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
        (self.path, self.page) = (path, answer.body);
    }

    /// Follows the link with this text.
    async fn link(&mut self, text: &str) {
        let page = self.page.clone();
        self.follow(&page, |it| it == text, text).await;
    }

    /// Follows a link of the first row of a table that has this text: its first link if no other is named.
    async fn in_row(&mut self, row: &str, link: Option<&str>) {
        let rows = self.page.split("<tbody").skip(1).flat_map(|table| table.split("<tr").skip(1));
        let found = rows.map(|it| it.split("</tr>").next().unwrap_or_default()).find(|it| it.contains(row));
        let found = found.unwrap_or_else(|| panic!("no row {row}: {}", self.page)).to_owned();
        self.follow(&found, |it| link.is_none_or(|link| it == link), link.unwrap_or(row)).await;
    }

    async fn follow(&mut self, html: &str, is_it: impl Fn(&str) -> bool, what: &str) {
        let links = html.split("<a href=\"").skip(1).filter_map(|it| it.split_once("\">"));
        let mut named = links.filter(|(_, rest)| is_it(rest.split("</a>").next().unwrap_or_default()));
        let (link, _) = named.next().unwrap_or_else(|| panic!("no link {what}: {html}"));
        self.steps += 1;
        self.open(resolve(&self.path, &unescape(link))).await;
    }

    /// Searches, by the field that every page has.
    async fn search(&mut self, text: &str) {
        assert!(self.page.contains("aria-label=\"Find an id or a key\""), "{}", self.page);
        self.steps += 1;
        self.open(format!("/find?q={text}")).await;
    }

    /// Fills a field of the filter of a page, and presses its button.
    async fn filter(&mut self, name: &str, text: &str) {
        assert!(self.page.contains(&format!("<input name=\"{name}\"")), "{name}: {}", self.page);
        self.steps += 1;
        self.open(format!("{}?{name}={text}", self.path.split('?').next().unwrap_or_default())).await;
    }

    /// Fills fields, which are named by their labels, and presses the button of their form. Then it waits for the action.
    async fn press(&mut self, button: &str, fields: &[(&str, &str)]) {
        let forms = self.page.split("<form method=\"post\" action=\"").skip(1);
        let mut forms = forms.map(|it| it.split("</form>").next().unwrap_or_default());
        let form = forms.find(|it| it.contains(&format!(">{button}</button>")));
        let form = form.unwrap_or_else(|| panic!("no button {button}: {}", self.page)).to_owned();
        let attribute = |html: &str, name: &str| {
            let (_, rest) = html.split_once(&format!(" {name}=\""))?;
            Some(unescape(rest.split('"').next().unwrap_or_default()))
        };
        let hidden = form.split("<input type=\"hidden\"").skip(1);
        let mut sent: Vec<(String, String)> =
            hidden.filter_map(|it| Some((attribute(it, "name")?, attribute(it, "value")?))).collect();
        for (label, value) in fields {
            let mut labels =
                form.split("<span>").skip(1).filter(|it| it.split("</span>").next() == Some(*label));
            let field = labels.next().unwrap_or_else(|| panic!("no field {label}: {form}"));
            sent.push((attribute(field, "name").expect("a field"), (*value).to_owned()));
        }
        let sent: Vec<_> = sent.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let action = resolve(&self.path, &unescape(form.split('"').next().unwrap_or_default()));
        self.steps += 1;
        self.page = self.scene.ended(self.scene.post(&action, &sent).await).await;
    }
}

fn unescape(html: &str) -> String {
    let names = [("&#60;", "<"), ("&#62;", ">"), ("&#34;", "\""), ("&#39;", "'"), ("&#38;", "&")];
    names.iter().fold(html.to_owned(), |text, (name, c)| text.replace(name, c))
}

/// Resolves a relative link, as a browser does.
fn resolve(page: &str, link: &str) -> String {
    let (link, query) =
        link.split_once('?').map_or((link, String::new()), |(it, query)| (it, format!("?{query}")));
    let mut path: Vec<&str> = page.split('?').next().unwrap_or_default().split('/').collect();
    path.pop();
    for part in link.split('/') {
        match part {
            "." => {}
            ".." => drop(path.pop()),
            part => path.push(part),
        }
    }
    path.join("/") + &query
}

/// Lets messages of a new group die: every fourth of one error, the others of another.
async fn die(scene: &Scene, group: &str, count: u32) {
    let (topic, name) = ("orders".parse().expect("a name"), group.parse().expect("a name"));
    scene.mq.admin().create_group(&topic, &name, millstream::Start::Latest).await.expect("created");
    for partition in 0..2 {
        let tp = TopicPartition::new(topic.clone(), partition);
        let letter = |number: u32| DeadLetter {
            id: MessageId::ZERO,
            reason: Reason::Exhausted,
            attempts: 3,
            error: if number.is_multiple_of(4) {
                "no such customer".into()
            } else {
                format!("timeout {number}")
            },
            origin: MessageId::new(u64::from(number) + 1, 0),
            topic_partition: tp.clone(),
            group: name.clone(),
            history: History::parse("5 1 connection refused"),
            body: wire::encode(&Envelope::new(format!("message {number}"))),
        };
        let letters: Vec<_> = (0..count).filter(|it| it % 2 == partition).map(letter).collect();
        let role = scene.mq.backend().dead_letters().expect("dead letters");
        let put = role.put(&tp, &name, &letters, true).await.expect("put");
        assert!(put.iter().all(Option::is_some));
    }
}

#[tokio::test]
async fn why_a_message_failed() {
    let scene = Scene::new(|| Access::read("ann")).await;
    die(&scene, "failing", 8).await;
    let mut walk = Walk::from_overview(&scene).await;
    // The number of dead letters of the group leads there, too.
    walk.in_row(">failing<", Some("8")).await;
    // The error, and one of its letters.
    walk.in_row("no such customer", None).await;
    walk.in_row("no such customer", None).await;
    assert_eq!(walk.steps, 3);
    for text in ["no such customer", "connection refused", "exhausted", "<dt>Attempts</dt>", "message "] {
        assert!(walk.page.contains(text), "{text}: {}", walk.page);
    }
}

#[tokio::test]
async fn why_the_message_with_an_id_failed() {
    let scene = Scene::new(|| Access::read("ann")).await;
    die(&scene, "failing", 8).await;
    // By the id that it had in its log, and by that of its letter.
    let mut walk = Walk::from_overview(&scene).await;
    walk.search("5-0").await;
    let place = walk.page.split("<tr").find(|row| row.contains("dead letters")).expect("a place").to_owned();
    assert!(place.contains(">failing</a>") && place.contains("no such customer"), "{place}");
    let letter = place.split(r#"class="mono""#).nth(1).and_then(|it| it.split("<a ").nth(1)).expect("a link");
    let letter = letter.split('>').nth(1).and_then(|it| it.split('<').next()).expect("an id").to_owned();
    walk.link(&letter).await;
    assert!(walk.page.contains("no such customer") && walk.page.contains("message 4"), "{}", walk.page);
    assert_eq!(walk.steps, 2);
    walk.search(&letter).await;
    assert!(walk.page.contains("dead letters"), "{}", walk.page);
    walk.search("18-0").await;
    assert!(walk.page.contains("It was found nowhere."), "{}", walk.page);
    walk.search("failing").await;
    walk.link("failing of orders").await;
    assert!(walk.page.contains("<h1>Group failing</h1>"), "{}", walk.page);
}

#[tokio::test]
async fn why_the_message_with_a_payload_failed() {
    let scene = Scene::new(|| Access::read("ann")).await;
    die(&scene, "failing", 50).await;
    let mut walk = Walk::from_overview(&scene).await;
    walk.in_row(">failing<", Some("50")).await;
    walk.link("All letters").await;
    walk.filter("payload", "message%2048").await;
    walk.in_row("message 48", None).await;
    assert_eq!(walk.steps, 4);
    assert!(walk.page.contains("no such customer") && walk.page.contains("message 48"), "{}", walk.page);
    // The letters beside it are those that match.
    assert!(!walk.page.contains("older →") && !walk.page.contains("← newer"), "{}", walk.page);
}

#[tokio::test]
async fn letters_lead_to_the_ones_beside_them() {
    let scene = Scene::new(|| Access::read("ann")).await;
    die(&scene, "failing", 8).await;
    let mut walk = Walk::from_overview(&scene).await;
    walk.in_row(">failing<", Some("8")).await;
    walk.link("All letters").await;
    let first = walk.page.split("class=\"mono\"").nth(1).and_then(|it| it.split("<a ").nth(1));
    let first = first.and_then(|it| it.split('>').nth(1)?.split('<').next()).expect("an id").to_owned();
    walk.link(&first).await;
    let mut seen = 1;
    while walk.page.contains("older →") {
        walk.link("older →").await;
        seen += 1;
        assert!(seen <= 8 && walk.page.contains("← newer"), "{}", walk.page);
    }
    assert_eq!(seen, 8, "each once");
}

#[tokio::test]
async fn what_runs_in_the_next_hour() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let topic = Topic::<u64>::new("reports");
    scene.mq.producer(topic.clone()).await.expect("a topic");
    let recurring = scene.mq.recurring(&topic).await.expect("the topic");
    let every = Duration::from_secs(600);
    recurring.id("digest").every(every).payload(&1).await.expect("it recurs");
    let mut walk = Walk::from_overview(&scene).await;
    walk.link("Schedules").await;
    let row = walk.page.split("<tr").find(|row| row.contains("digest")).expect("a row");
    assert!(row.contains("every 10 min") && row.contains(">in ") && row.contains("title=\"20"), "{row}");
    assert_eq!(walk.steps, 1);
}

#[tokio::test]
async fn which_message_runs_for_twenty_minutes_and_where() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let topic = || Topic::<u64>::new("jobs").partitions(2);
    let producer = scene.mq.producer(topic()).await.expect("a topic");
    let never = async |_: Delivery<u64>| std::future::pending::<Outcome>().await;
    let consumer = scene.mq.consumer(topic(), "slow").start(never).await.expect("a consumer");
    let mut ids = Vec::new();
    for number in 0..20 {
        ids.push(producer.send(&number).partition(1).await.expect("sent").id);
    }
    let (jobs, slow) = ("jobs".parse().expect("a name"), "slow".parse().expect("a name"));
    let held = async || {
        let stats = scene.mq.admin().group_stats(&jobs, &slow).await;
        stats.expect("stats").totals.pending == Some(20)
    };
    eventually("all are handed out", held).await;
    // A member in another process, which said so with its heartbeat.
    let since =
        scene.mq.backend().schedule().now().await.expect("a time").saturating_sub(Duration::from_secs(1_210));
    let message = RunningMessage {
        partition: Partition(1),
        source: Source::Log,
        entry: ids[4],
        origin: ids[4],
        attempt: 3,
        since,
    };
    let parked = RunningMessage { entry: ids[3], origin: ids[3], ..message };
    let waiting = vec![WaitingMessage { message: parked, key: "tenant:acme".parse().expect("a key") }];
    let running = Running { messages: vec![message], waiting, ..Running::default() };
    let member = Member::new("worker-7".parse().expect("an id"), "1", Duration::from_secs(3_600));
    let member = member.running(running);
    scene.mq.backend().members().heartbeat(&jobs, &slow, &member, true).await.expect("a pulse");
    let mut walk = Walk::from_overview(&scene).await;
    walk.link("slow").await;
    let rows = walk.page.split("<h2>Running now").nth(1).and_then(|it| it.split("</table>").next());
    let rows = rows.expect("what runs now");
    assert_eq!(rows.matches(&format!(">{}</a>", ids[4])).count(), 1, "{rows}");
    assert!(rows.contains("20 min ago") && rows.contains(">worker-7</a>"), "{rows}");
    assert!(ids.iter().filter(|id| **id != ids[4]).all(|id| !rows.contains(&id.to_string())), "{rows}");
    let limited = walk.page.split("<h2>Waiting for limits").nth(1).and_then(|it| it.split("</table>").next());
    let limited = limited.expect("what waits");
    assert!(limited.contains(&ids[3].to_string()) && limited.contains("tenant:acme"), "{limited}");
    let group = walk.path.clone();
    walk.link(&ids[4].to_string()).await;
    assert!(
        walk.page.contains("running now, on worker-7") && walk.page.contains("20 min ago"),
        "{}",
        walk.page
    );
    assert_eq!(walk.steps, 2);
    walk.open(group).await;
    walk.link("Pending").await;
    assert!(walk.page.contains("waits for tenant:acme"), "{}", walk.page);
    let running: Vec<_> = walk.page.split("<tr").filter(|row| row.contains("20 min ago")).collect();
    assert!(running.len() == 1 && running[0].contains(&ids[4].to_string()), "{running:?}");
    drop(consumer);
}

#[tokio::test]
async fn which_group_is_behind_and_since_when() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let (topic, later) = ("orders".parse().expect("a name"), "later".parse().expect("a name"));
    scene.mq.admin().create_group(&topic, &later, millstream::Start::Earliest).await.expect("created");
    let mut walk = Walk::from_overview(&scene).await;
    assert!(walk.page.contains("Backlog") && walk.page.contains("Oldest not settled"), "{}", walk.page);
    walk.link("later").await;
    assert_eq!(walk.steps, 1);
    let since = walk.page.split("Behind since</dt>").nth(1).expect("a fact");
    let since = since.split("</dd>").next().unwrap_or_default();
    assert!(since.contains("<time datetime=\"20"), "{since}");
    // Nothing is unread or pending: all of it waits for a retry.
    let mut walk = Walk::from_overview(&scene).await;
    let row = walk.page.split("<tr").find(|row| row.contains(">waiting</a>")).expect("a row").to_owned();
    assert!(row.contains(">5<") || row.contains("> 5<"), "its backlog: {row}");
    walk.link("waiting").await;
    assert_eq!(walk.steps, 1);
    let since = walk.page.split("Behind since</dt>").nth(1).and_then(|it| it.split("</dd>").next());
    assert!(since.is_some_and(|it| it.contains("<time datetime=\"20")), "{since:?}");
    let tile = walk.page.split("Oldest not settled</dt>").nth(1).and_then(|it| it.split("</dd>").next());
    assert!(tile.is_some_and(|it| it.bytes().any(|byte| byte.is_ascii_digit())), "{tile:?}");
    let mut walk = Walk::from_overview(&scene).await;
    walk.link("billing").await;
    let since = walk.page.split("Behind since</dt>").nth(1).and_then(|it| it.split("</dd>").next());
    assert!(since.is_some_and(|it| !it.contains("<time")), "nothing waits: {since:?}");
}

#[tokio::test]
async fn who_owns_a_partition() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let orders = Topic::<bytes::Bytes>::raw("orders").partitions(2);
    let consumer = scene.mq.consumer(orders, "billing");
    let consumer = consumer.start(async |_: Delivery<bytes::Bytes>| Outcome::Ack).await.expect("started");
    let owned = async || {
        let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
        let owners = scene.mq.admin().owners(&topic, &group).await.expect("owners");
        owners.partitions.iter().all(|it| it.ownership.holder.is_some())
    };
    eventually("it owns both partitions", owned).await;
    // From the topic, and from the group.
    for links in [&["orders", "Owners in billing"][..], &["billing"]] {
        let mut walk = Walk::from_overview(&scene).await;
        for link in links {
            walk.link(link).await;
        }
        let partitions = walk.page.find("<h2>Who owns what</h2>").expect("the partitions");
        let row = walk.page[partitions..].split("<tr").nth(3).expect("the row of partition 1");
        assert!(row.contains(">1</td>") && row.contains(">owned</span>"), "{row}");
    }
    consumer.shutdown().await;
}

#[tokio::test]
async fn how_to_replay_some_of_the_dead_letters() {
    let scene = Scene::new(|| Access::operate("ann")).await;
    die(&scene, "failing", 500).await;
    let (topic, group) = ("orders".parse().expect("a name"), "failing".parse().expect("a name"));
    let letters = scene.mq.admin().dead_letters(&topic, &group).await.expect("letters");
    // 37 of those that died of one error.
    let mut walk = Walk::from_overview(&scene).await;
    walk.in_row(">failing<", Some("500")).await;
    walk.in_row("no such customer", Some("replay…")).await;
    let confirm = "Type 125, or the number of them that you chose, to confirm";
    walk.press("Replay", &[("How many of them", "37"), (confirm, "37")]).await;
    assert_eq!(walk.steps, 3);
    assert!(walk.page.contains("37 of 37"), "{}", walk.page);
    assert_eq!(letters.count().await.expect("a count"), 463);
    // 37 of all.
    let mut walk = Walk::from_overview(&scene).await;
    walk.link("failing").await;
    walk.link("Dead letters").await;
    walk.link("Replay…").await;
    let confirm = "Type 463, or the number of them that you chose, to confirm";
    walk.press("Replay", &[("How many of them", "37"), (confirm, "37")]).await;
    assert_eq!(walk.steps, 4);
    assert_eq!(letters.count().await.expect("a count"), 426);
}

#[tokio::test]
async fn how_to_pause_a_group() {
    let scene = Scene::new(|| Access::operate("ann")).await;
    let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
    let paused =
        async || scene.mq.admin().group_state(&topic, &group).await.expect("its state").paused.is_some();
    for (button, steps, expected) in [("Pause", 3, true), ("Resume", 2, false)] {
        let mut walk = Walk::from_overview(&scene).await;
        walk.link("billing").await;
        let way = walk.page.find("Pause the group").or(walk.page.find(">Resume</button>"));
        let (way, partitions) = (way, walk.page.find("<h2>Who owns what</h2>"));
        assert!(way.is_some() && way < partitions, "above the rows of all partitions");
        if expected {
            walk.link("Pause the group…").await;
            assert!(walk.page.contains("start no further handler"), "{}", walk.page);
        }
        walk.press(button, &[]).await;
        assert_eq!((walk.steps, paused().await), (steps, expected));
    }
}

/// Returns the topics of the overview in their order, or the groups.
fn listed(page: &str, table: &str) -> Vec<String> {
    let table = page.split(&format!("<h2>{table}</h2>")).nth(1).and_then(|it| it.split("</table>").next());
    let rows = table.expect("a table").split("<tr").skip(2);
    let name =
        |row: &str| Some(row.split("<a href=").nth(1)?.split('>').nth(1)?.split('<').next()?.to_owned());
    rows.filter_map(name).collect()
}

#[tokio::test]
async fn what_needs_attention_comes_first() {
    let scene = Scene::new(|| Access::read("ann")).await;
    // More than a page of topics without any findings.
    for number in 0..30 {
        let topic = Topic::<u64>::new("quiet").named(format!("a-{number:02}"));
        scene.mq.producer(topic).await.expect("a topic");
    }
    for (name, is_paused) in [("m-stopped", false), ("y-paused", true)] {
        let producer = scene.mq.producer(Topic::<u64>::new("t").named(name)).await.expect("a topic");
        let (topic, group) = (name.parse().expect("a name"), "work".parse().expect("a name"));
        scene.mq.admin().create_group(&topic, &group, millstream::Start::Earliest).await.expect("created");
        if is_paused {
            scene.mq.admin().pause_group(&topic, &group).await.expect("paused");
        } else {
            producer.send(&1).await.expect("sent");
        }
    }
    let first = scene.get("/overview").await.body;
    let topics = listed(&first, "Topics");
    assert_eq!(topics.len(), 25);
    // `orders` has a group without consumers, too; a pause is less.
    assert_eq!(topics[..5], ["m-stopped", "orders", "y-paused", "a-00", "a-01"]);
    assert_eq!(listed(&first, "Groups"), ["work", "waiting", "billing", "work"]);
    assert!(first.contains("paused since 20") && !first.contains("(+"), "{first}");
    let second = listed(&scene.get("/overview?topics-page=2").await.body, "Topics");
    assert_eq!((second.len(), second[0].as_str(), second[7].as_str()), (8, "a-22", "a-29"));
}
