//! Batches: their list, the page of one, links of messages to theirs, and what users cancel and close.

use std::time::Duration;

use axum::http::{Request, StatusCode};
use bytes::Bytes;
use millstream::batch::{BatchSpec, BatchState, Block, EndedMember, MemberEnd};
use millstream::crates::core::Capability;
use millstream::delay::DelayQueue;
use millstream::{BatchId, Millstream, Start, Topic, TopicPartition};
use millstream_dashboard::{Access, Permission, Redaction, dashboard};

use super::support::{Answer, Scene, ask};

const ROWS: Topic<u64> = Topic::new("rows").partitions(2);
const REPORTS: Topic<u64> = Topic::new("reports").partitions(2);
const HOUR: Duration = Duration::from_secs(3_600);

fn path(id: &BatchId) -> String {
    format!("/topics/{}/batches/{}/{:032x}", id.place.topic, id.place.partition, id.number)
}

/// Creates a batch of three delayed messages, two others, and a task, of which nobody handles any.
async fn import(mq: &Millstream) -> BatchId {
    let (producer, batch) = (mq.producer(ROWS).await.expect("a producer"), mq.batch(REPORTS).complete(&7));
    let batch = batch.create().await.expect("created");
    for number in 0..3 {
        batch.add(producer.send(&number).delay(HOUR)).await.expect("added");
    }
    for number in 3..5 {
        batch.add(producer.send(&number).partition(0)).await.expect("added");
    }
    let mails = DelayQueue::<String>::new("mails").open(mq.backend()).await.expect("a queue");
    batch.add(mails.schedule(&"mail".to_owned()).id("of-batch").delay(HOUR)).await.expect("added");
    batch.seal().await.expect("sealed");
    batch.id().clone()
}

async fn state(scene: &Scene, id: &BatchId) -> BatchState {
    scene.mq.admin().batch(id).await.expect("a batch")
}

/// The value of a fact of a page, without its tags.
fn fact(page: &str, name: &str) -> Option<String> {
    let value = page.split(&format!("<dt>{name}</dt>")).nth(1)?.split("</dd>").next()?;
    let text = value.split('<').map(|it| it.split_once('>').map_or(it, |(_, text)| text));
    Some(text.collect::<String>().trim().to_owned())
}

#[tokio::test]
async fn the_batches_of_a_topic_are_listed_and_those_that_run_come_first() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let id = import(&scene.mq).await;
    let topic = scene.get("/topics/reports").await.body;
    assert!(topic.contains("topics/reports/batches\">Batches</a>"), "{topic}");
    let batches = scene.mq.backend().batches().expect("batches");
    let elsewhere = TopicPartition::new("reports".parse().expect("a name"), 1 - id.place.partition.0);
    let of = |number| BatchId::new(elsewhere.clone(), number);
    // One that ends at once, since it has no members.
    batches.create(&of(1), &BatchSpec::default()).await.expect("created");
    batches.seal(&of(1), &[]).await.expect("sealed");
    let list = scene.get("/topics/reports/batches").await.body;
    let row = |list: &str, id: &BatchId| {
        let row = list.split("<tr role=\"row\">").find(|row| row.contains(&id.to_string()));
        row.unwrap_or_else(|| panic!("no {id}: {list}")).to_owned()
    };
    let running = row(&list, &id);
    assert!(running.contains(">running<") && running.matches(">6<").count() == 2, "{running}");
    assert!(row(&list, &of(1)).contains(">succeeded<"), "{list}");
    assert!(list.find(&id.to_string()) < list.find(&of(1).to_string()), "{list}");
    assert!(!list.contains("kept for the longest time"), "these are all: {list}");
    for number in 2..210 {
        batches.create(&of(number), &BatchSpec::default()).await.expect("created");
    }
    let list = scene.get("/topics/reports/batches").await.body;
    assert_eq!(list.matches("data-label=\"Batch\"").count(), 200, "{list}");
    assert!(list.contains("200 of 210, those that are kept for the longest time"), "{list}");
    assert!(list.contains(&id.to_string()), "of each partition: {list}");
    assert!(!list.contains(&of(1).to_string()), "it has ended: {list}");
    // What is not among them is found by its id.
    let found = scene.get(&format!("/topics/reports/batches?id={}", of(1))).await.body;
    assert_eq!(found.matches("data-label=\"Batch\"").count(), 1, "{found}");
    let gone = scene.get(&format!("/topics/reports/batches?id={}", of(999))).await;
    assert!(gone.status == StatusCode::OK && gone.body.contains("There is no such batch"), "{gone:?}");
    let other = scene.get(&format!("/topics/orders/batches?id={}", of(1))).await;
    assert!(other.status == StatusCode::BAD_REQUEST && other.body.contains("to topic reports"), "{other:?}");
    let none = scene.get("/topics/rows/batches").await.body;
    assert!(none.contains("No batch sends its messages here."), "{none}");
}

#[tokio::test]
async fn the_page_of_a_batch_has_its_counts_and_its_members() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let id = import(&scene.mq).await;
    let ends = [(0, MemberEnd::Done), (1, MemberEnd::Dead), (3, MemberEnd::Done)]
        .map(|(it, end)| EndedMember::new(it, end));
    let batches = scene.mq.backend().batches().expect("batches");
    batches.end_members(&id, &ends).await.expect("ended");
    let page = scene.get(&path(&id)).await.body;
    for (name, value) in [
        ("State", "running"),
        ("Members", "6"),
        ("Done", "2 (33.3 %)"),
        ("Dead", "1 (16.7 %)"),
        ("Missing", "3 (50.0 %)"),
        ("All had ended", "–"),
    ] {
        assert_eq!(fact(&page, name).as_deref(), Some(value), "{name}: {page}");
    }
    assert!(page.contains("<progress max=\"1\" value=\"0.5\"") && page.contains("data-live"), "{page}");
    let section = |title: &str| {
        let section = page.split("<section>").find(|it| it.contains(title)).unwrap_or_default();
        section.split("</section>").next().unwrap_or_default().to_owned()
    };
    // Numbers 5 to 15 were reserved for rows, and left out.
    assert!(fact(&page, "Left out: nobody confirmed that they are stored").is_some(), "{page}");
    let (missing, dead) = (section("they have not ended"), section("given up, dropped or cancelled"));
    assert!(missing.contains(">2<") && missing.contains(">4<") && missing.contains(">16<"), "{missing}");
    assert!(dead.contains(">1<") && !dead.contains(">4<"), "{dead}");
    let sent = section("Where its members were sent");
    assert!(sent.contains("topics/rows\">rows</a>"), "{sent}");
    assert!(sent.contains("queues/mails\">delay queue mails</a>") && sent.contains(">0 to 15<"), "{sent}");
    // Who may only read is offered no change.
    assert!(!page.contains("Cancel the members") && !page.contains("Close…"), "{page}");
}

#[tokio::test]
async fn of_many_ranges_the_first_are_shown() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let id = import(&scene.mq).await;
    let batches = scene.mq.backend().batches().expect("batches");
    let id = BatchId::new(id.place, 5);
    batches.create(&id, &BatchSpec::default()).await.expect("created");
    let block = Block { from: 0, to: 100, token: 1 };
    batches.reserve(&id, block, "rows", &[]).await.expect("reserved");
    let ends: Vec<_> =
        (0..100).filter(|it| it % 2 == 0).map(|it| EndedMember::new(it, MemberEnd::Dead)).collect();
    batches.end_members(&id, &ends).await.expect("ended");
    let page = scene.get(&path(&id)).await.body;
    assert_eq!(page.matches("The first 20 ranges. There are more").count(), 2, "{page}");
    assert!(page.contains(">38<") && page.contains(">39<"), "{page}");
    assert!(!page.contains(">40<") && !page.contains(">41<"), "{page}");
    assert!(page.contains(">open<") && page.contains("not so far, or never"), "{page}");
}

#[tokio::test]
async fn the_members_of_a_batch_are_cancelled_and_the_rest_is_closed() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let id = import(&scene.mq).await;
    // It reads nothing, so its messages are marked and do not end.
    let (rows, group) = ("rows".parse().expect("a name"), "readers".parse().expect("a name"));
    scene.mq.admin().create_group(&rows, &group, Start::Earliest).await.expect("created");
    let page = scene.get(&path(&id)).await.body;
    assert!(page.contains("Cancel the members…") && page.contains("Close…"), "{page}");
    let (cancel, close) = (format!("{}/cancel", path(&id)), format!("{}/close", path(&id)));
    let form = scene.get(&cancel).await.body;
    assert!(form.contains("Type 6 to confirm") && form.contains("asked to stop"), "{form}");
    assert_eq!(state(&scene, &id).await.missing(), 6, "a page changes nothing");
    for fields in [&[("expected", "6")][..], &[("expected", "6"), ("confirm", "5")], &[("confirm", "6")]] {
        let refused = scene.post(&cancel, fields).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{fields:?}: {}", refused.body);
    }
    // More than were confirmed.
    let stale = scene.post(&cancel, &[("expected", "5"), ("confirm", "5")]).await;
    assert_eq!(stale.status, StatusCode::CONFLICT, "{}", stale.body);
    assert!(stale.body.contains("Type 6 to confirm"), "{}", stale.body);
    assert_eq!(state(&scene, &id).await.missing(), 6, "nothing was changed");

    let action = scene.ended(scene.post(&cancel, &[("expected", "6"), ("confirm", "6")]).await).await;
    assert!(action.contains("batch cancel") && action.contains("4 of 6"), "{action}");
    assert!(action.contains("4 members waited for a time or a retry: removed"), "{action}");
    let counts = "the batch has 6 members now: 0 done, 4 dead, 2 missing";
    assert!(action.contains(counts) && action.contains("2 members not ended so far"), "{action}");
    assert!(action.contains(&format!("{}\">The batch</a>", &path(&id)[1..])), "{action}");
    assert_eq!(fact(&action, "batch"), Some(id.to_string()), "{action}");
    let page = scene.get(&path(&id)).await.body;
    assert_eq!(fact(&page, "Missing").as_deref(), Some("2 (33.3 %)"), "it is shown at once: {page}");

    let form = scene.get(&close).await.body;
    assert!(form.contains("Type 2 to confirm") && form.contains("It stops nothing"), "{form}");
    let action = scene.ended(scene.post(&close, &[("expected", "2"), ("confirm", "2")]).await).await;
    assert!(action.contains("batch close") && action.contains("2 of 2"), "{action}");
    assert!(action.contains("the batch has 6 members now: 0 done, 6 dead, 0 missing"), "{action}");
    assert!(state(&scene, &id).await.ended.is_some());
    let page = scene.get(&path(&id)).await.body;
    assert_eq!(fact(&page, "State").as_deref(), Some("complete"), "{page}");
    assert!(!page.contains("Close…") && !page.contains("data-live"), "nothing is left to do: {page}");
    for path in [&cancel, &close] {
        let page = scene.get(path).await.body;
        assert!(page.contains("nothing is left to change") && !page.contains("method=\"post\""), "{page}");
    }
    let audit = scene.get("/audit").await.body;
    assert!(audit.contains("batch cancel") && audit.contains("batch close"), "{audit}");
}

#[tokio::test]
async fn an_open_batch_is_closed_as_a_whole() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let batch = scene.mq.batch(REPORTS).complete(&7).create().await.expect("created");
    let close = format!("{}/close", path(batch.id()));
    let form = scene.get(&close).await.body;
    assert!(form.contains("Type all to confirm") && form.contains("it is sealed first"), "{form}");
    // It could get members at any time.
    let counted = scene.post(&close, &[("expected", "0"), ("confirm", "0")]).await;
    assert_eq!(counted.status, StatusCode::CONFLICT, "{}", counted.body);
    assert_eq!(state(&scene, batch.id()).await.sealed, None);
    scene.ended(scene.post(&close, &[("expected", "all"), ("confirm", "all")]).await).await;
    assert!(state(&scene, batch.id()).await.succeeded, "it has no members");
}

#[tokio::test]
async fn who_may_not_change_the_places_of_members_cancels_none() {
    let name = |name: &str| name.parse::<millstream::TopicName>().expect("a name");
    let reports = move || Access::none("bob").topic(name("reports"), Some(Permission::Admin));
    let scene = Scene::new(reports).await;
    let id = import(&scene.mq).await;
    let page = scene.get(&path(&id)).await.body;
    assert!(!page.contains("Cancel the members") && page.contains("Close…"), "{page}");
    assert!(page.contains("(hidden)") && !page.contains("rows") && !page.contains("mails"), "{page}");
    let cancel = format!("{}/cancel", path(&id));
    let refused = |answer: Answer| {
        assert_eq!(answer.status, StatusCode::FORBIDDEN, "{}", answer.body);
        assert!(answer.body.contains("where members were sent"), "{}", answer.body);
    };
    refused(scene.get(&cancel).await);
    refused(scene.post(&cancel, &[("expected", "6"), ("confirm", "6")]).await);
    assert_eq!(state(&scene, &id).await.dead, 0);

    // The topic alone does not suffice: one of them is a task.
    for (general, topic, may) in [
        (None, Some(Permission::Admin), false),
        (Some(Permission::Operate), Some(Permission::Admin), false),
        (Some(Permission::Admin), Some(Permission::Operate), false),
        (Some(Permission::Admin), Some(Permission::Admin), true),
    ] {
        let access = general.map_or_else(|| Access::none("bob"), |general| Access::with("bob", general));
        let access = access.topic(name("reports"), Some(Permission::Admin)).topic(name("rows"), topic);
        let router = dashboard(scene.mq.clone()).access(move |_| access.clone()).router();
        let status = ask(&router, Request::get(&cancel)).await.status;
        assert_eq!(status == StatusCode::OK, may, "{general:?} {topic:?}: {status}");
    }
}

#[tokio::test]
async fn a_message_leads_to_its_batch() {
    let scene = Scene::new(|| Access::read("ann")).await;
    let producer = scene.mq.producer(ROWS).await.expect("a producer");
    let batch = scene.mq.batch(REPORTS).complete(&7).create().await.expect("created");
    let sent = batch.add(producer.send(&1).partition(1)).await.expect("added");
    batch.seal().await.expect("sealed");
    let link = format!("{}\">{}</a>", &path(batch.id())[1..], batch.id());
    let message = format!("/topics/rows/messages/1/{}", sent.id);
    let member = scene.get(&message).await.body;
    let of = |page: &str, name: &str| fact(page, name).unwrap_or_default();
    assert!(member.contains(&link) && of(&member, "Member of") == batch.id().to_string(), "{member}");
    assert_eq!(of(&member, "Its number there"), "0", "{member}");
    let batches = scene.mq.backend().batches().expect("batches");
    batches.end_members(batch.id(), &[EndedMember::new(0, MemberEnd::Dead)]).await.expect("ended");
    let reports = scene.mq.admin().messages(&"reports".parse().expect("a name"), &Default::default()).await;
    let event = reports.expect("messages").messages.pop().expect("the event");
    let (partition, id) = (event.topic_partition.partition, event.stored.id);
    let event = scene.get(&format!("/topics/reports/messages/{partition}/{id}")).await.body;
    assert!(event.contains(&link) && of(&event, "Sent by") == batch.id().to_string(), "{event}");
    assert_eq!(of(&event, "Event"), "complete", "{event}");
    assert_eq!(of(&event, "Counts at that moment"), "1 members, 0 done, 1 dead", "{event}");
    // What is hidden of the headers is hidden here too, and what may not be seen is no link.
    let hidden = dashboard(scene.mq.clone()).access(|_| Access::admin("ann"));
    let hidden = hidden.redact(|_| Redaction::none().header("millstream-batch")).router();
    let page = ask(&hidden, Request::get(&message)).await.body;
    assert!(!page.contains(&batch.id().to_string()), "{page}");
    let reports = || Access::admin("ann").topic("reports".parse().expect("a name"), None);
    let limited = dashboard(scene.mq.clone()).access(move |_| reports()).router();
    let page = ask(&limited, Request::get(&message)).await.body;
    assert!(page.contains("Its number there") && !page.contains(&link), "{page}");
    let plain = producer.send(&2).partition(1).await.expect("sent");
    let plain = scene.get(&format!("/topics/rows/messages/1/{}", plain.id)).await.body;
    assert!(plain.contains("Payload") && !plain.contains("<h2>Batch</h2>"), "{plain}");
}

#[tokio::test]
async fn a_batch_that_is_gone_and_a_backend_without_batches_are_explained() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let gone = format!("/topics/orders/batches/0/{:032x}", 99);
    for page in ["", "/cancel", "/close"] {
        let answer = scene.get(&format!("{gone}{page}")).await;
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{page}: {}", answer.body);
        assert!(answer.body.contains("kept for 7 days after its end"), "{page}: {}", answer.body);
    }
    let sent = scene.post(&format!("{gone}/close"), &[("expected", "1"), ("confirm", "1")]).await;
    assert_eq!(sent.status, StatusCode::NOT_FOUND, "{}", sent.body);
    let without = Millstream::over(scene.mq.backend().clone().without(Capability::Batches));
    without.producer(Topic::<Bytes>::raw("orders").partitions(2)).await.expect("the topic");
    let router = dashboard(without).access(|_| Access::admin("ann")).router();
    for path in ["/topics/orders/batches", &gone, &format!("{gone}/close")] {
        let answer = ask(&router, Request::get(path)).await;
        assert_eq!(answer.status, StatusCode::NOT_IMPLEMENTED, "{path}: {}", answer.body);
        assert!(answer.body.contains("this backend has no batches of messages"), "{path}: {}", answer.body);
    }
    assert_eq!(ask(&router, Request::get("/topics/orders")).await.status, StatusCode::OK);
}
