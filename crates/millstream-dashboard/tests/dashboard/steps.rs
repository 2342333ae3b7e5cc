//! Steps on the pages of messages, tasks and dead letters, and signals that users send.

use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, StatusCode};
use millstream::delay::{DelayQueue, Task};
use millstream::{Delivery, Never, StepError, Topic};
use millstream_dashboard::{Access, Redaction, dashboard};
use tokio::sync::mpsc;

use super::place::{NASTY, TURNED, eventually};
use super::support::{Scene, ask};

const HOUR: Duration = Duration::from_secs(3_600);
const SIGN_UPS: Topic<u64> = Topic::new("sign-ups").partitions(1);

/// The row of a table that has a word in a cell.
fn row<'a>(page: &'a str, word: &str) -> &'a str {
    page.split("<tr role=\"row\">")
        .find(|row| row.contains(word))
        .unwrap_or_else(|| panic!("no {word}: {page}"))
}

#[tokio::test]
async fn a_message_is_signalled_on_its_page() {
    let scene = Scene::new(|| Access::operate("ann")).await;
    let mails = Topic::<u64>::new("mails").partitions(1);
    let sends = Arc::new(scene.mq.producer(&mails).await.expect("a producer"));
    let (tell, mut told) = mpsc::unbounded_channel();
    let consumer = scene.mq.consumer(SIGN_UPS, "welcome").start(move |user: Delivery<u64>| {
        let (tell, sends) = (tell.clone(), sends.clone());
        async move {
            let steps = user.steps();
            steps.step("account", async || Ok::<_, StepError>("a secret".to_owned())).await?;
            let by: Option<String> = steps.signal("confirmed", HOUR).await?;
            let _ = tell.send(by);
            steps.then::<()>("mail", sends.send(&7)).await
        }
    });
    let consumer = consumer.await.expect("started");
    let sent = scene.mq.producer(SIGN_UPS).await.expect("a producer").send(&1).await.expect("sent");
    let path = format!("/topics/sign-ups/messages/0/{}", sent.id);
    eventually("it waits", async || scene.get(&path).await.body.contains("waits in step confirmed")).await;
    let page = scene.get(&path).await.body;
    let (done, waits) = (row(&page, ">account<"), row(&page, ">confirmed<"));
    assert!(done.contains(">welcome<") && done.contains(">done<") && done.contains("a secret"), "{done}");
    assert!(
        done.contains(">10 B<") && waits.contains(">waits<") && waits.contains(">0 B<"),
        "{done} {waits}"
    );
    assert!(page.contains("Send the signal") && page.contains("name=\"name\" value=\"confirmed\""), "{page}");

    // Who may only read is offered nothing, and with redacted payloads there are no values.
    let reader = dashboard(scene.mq.clone()).access(|_| Access::read("bob"));
    let reader = reader.redact(|_| Redaction::none().payload()).router();
    let seen = ask(&reader, Request::get(&path)).await.body;
    assert!(row(&seen, ">account<").contains(">redacted<") && !seen.contains("a secret"), "{seen}");
    assert!(!seen.contains("Send the signal"), "{seen}");

    let signal = format!("{path}/signal");
    let fields = [("group", "welcome"), ("name", "confirmed"), ("value", "{")];
    let refused = scene.post(&signal, &fields).await;
    assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{}", refused.body);
    assert!(
        refused.body.contains("the value is no JSON") && refused.body.contains("Send the signal"),
        "{refused:?}"
    );
    let unnamed = scene.post(&signal, &[("group", "welcome"), ("name", ""), ("value", "1")]).await;
    assert!(
        unnamed.status == StatusCode::BAD_REQUEST && unnamed.body.contains("no name of a step"),
        "{unnamed:?}"
    );
    let fields = [("group", "welcome"), ("name", "confirmed"), ("value", "\"by Ada\"")];
    let action = scene.ended(scene.post(&signal, &fields).await).await;
    assert!(action.contains("message signal") && action.contains("1 of 1"), "{action}");
    assert!(
        action.contains("is due now") && !action.contains("by Ada"),
        "what it says is not recorded: {action}"
    );
    assert_eq!(told.recv().await, Some(Some("by Ada".to_owned())));
    eventually("it waits for its members", async || scene.get(&path).await.body.contains(">waits<")).await;
    let page = scene.get(&path).await.body;
    let sent = row(&page, ">sent<");
    let batch =
        scene.mq.admin().batches(&"sign-ups".parse().expect("a name")).await.expect("batches").remove(0).0;
    assert!(sent.contains(">mail<") && sent.contains(&format!(">{batch}</a>")), "{sent}");
    assert!(row(&page, ">waits<").contains(">mail<") && !page.contains("Send the signal"), "{page}");
    assert!(row(&page, ">signal<").contains(">confirmed<"), "{page}");
    let batch = format!("/topics/sign-ups/batches/0/{:032x}", batch.number);
    let batch = scene.get(&batch).await.body;
    assert!(batch.contains("Its end is waited for by") && batch.contains(&path[1..]), "{batch}");
    let again = scene.ended(scene.post(&signal, &fields).await).await;
    assert!(again.contains("had come before") && again.contains("0 of 1"), "{again}");
    let audit = scene.get("/audit").await.body;
    assert!(audit.contains("message signal") && audit.contains("confirmed"), "{audit}");
    consumer.shutdown().await;
}

#[tokio::test]
async fn a_task_with_hostile_steps_is_shown_and_signalled() {
    let scene = Scene::new(|| Access::operate("ann")).await;
    let mails = DelayQueue::<u64>::new("stepping").open(scene.mq.backend()).await.expect("a queue");
    let (tell, mut told) = mpsc::unbounded_channel();
    let worker = mails.worker().start(move |mail: Task<u64>| {
        let tell = tell.clone();
        async move {
            let steps = mail.steps();
            steps.step("nasty", async || Ok::<_, StepError>(NASTY.to_owned())).await?;
            let opened: Option<u64> = steps.signal(TURNED, HOUR).await?;
            let _ = tell.send(opened);
            Ok::<_, StepError>(())
        }
    });
    let worker = worker.await.expect("a worker");
    mails.schedule(&1).id("welcome").await.expect("scheduled");
    let path = "/queues/stepping/task?id=welcome";
    eventually("it waits", async || scene.get(path).await.body.contains(">waits<")).await;
    let page = scene.get(path).await.body;
    assert!(row(&page, ">nasty<").contains("&#60;script&#62;") && page.contains("Send the signal"), "{page}");
    let shown = page.lines().find(|line| line.contains('\u{202e}') && !line.contains("<input"));
    assert_eq!(shown, None);
    let signal = "/queues/stepping/signal";
    let refused = scene.post(signal, &[("id", "welcome"), ("name", TURNED), ("value", "")]).await;
    assert!(refused.status == StatusCode::BAD_REQUEST && refused.body.contains("no JSON"), "{refused:?}");
    let action =
        scene.ended(scene.post(signal, &[("id", "welcome"), ("name", TURNED), ("value", "7")]).await).await;
    assert!(action.contains("is due now") && action.contains("queue stepping"), "{action}");
    assert_eq!(told.recv().await, Some(Some(7)));
    let gone = async || {
        let fields = [("id", "welcome"), ("name", "x"), ("value", "7")];
        scene.ended(scene.post(signal, &fields).await).await.contains("no such message or task")
    };
    eventually("it is done", gone).await;
    worker.shutdown().await;
}

#[tokio::test]
async fn a_dead_letter_names_its_steps() {
    let scene = Scene::new(|| Access::admin("ann")).await;
    let consumer = scene.mq.consumer(SIGN_UPS, "welcome").retry(Never).start(async |user: Delivery<u64>| {
        let steps = user.steps();
        steps.step("account", async || Ok::<_, StepError>("a secret".to_owned())).await?;
        steps.step("link", async || Ok::<_, StepError>(1)).await?;
        Err::<(), Box<dyn std::error::Error + Send + Sync>>("no".into())
    });
    let consumer = consumer.await.expect("started");
    scene.mq.producer(SIGN_UPS).await.expect("a producer").send(&1).await.expect("sent");
    eventually("it is dead", async || consumer.report().dead == 1).await;
    consumer.shutdown().await;
    let (topic, group) = ("sign-ups".parse().expect("a name"), "welcome".parse().expect("a name"));
    let letters = scene.mq.admin().dead_letters(&topic, &group).await.expect("letters");
    let letter = letters.list(1).await.expect("listed").remove(0);
    let path = format!("/topics/sign-ups/groups/welcome/dead/0/{}", letter.id);
    let page = scene.get(&path).await.body;
    assert!(row(&page, "millstream-steps").contains("2 steps: account, link"), "{page}");
    assert!(!page.contains("a secret"), "{page}");
    for (hidden, names) in [(Redaction::none().payload(), true), (Redaction::none().headers(), false)] {
        let router = dashboard(scene.mq.clone()).access(|_| Access::admin("ann"));
        let router = router.redact(move |_| hidden.clone()).router();
        let page = ask(&router, Request::get(&path)).await.body;
        assert_eq!(page.contains("2 steps: account, link"), names, "{page}");
    }
}
