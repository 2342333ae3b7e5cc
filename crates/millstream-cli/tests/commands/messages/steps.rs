//! `millstream message steps` and `signal`.

use std::time::Duration;

use millstream::delay::Task;
use millstream::{Delivery, StepError, Topic};
use serde_json::{Value, json};

use crate::support::cli::Cli;
use crate::support::feed::eventually;

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_steps_of_a_message_are_shown_and_it_is_signalled() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let (sign_ups, mails) = (Topic::<u64>::new("sign-ups"), Topic::<u64>::new("mails"));
    let (producer, sends) = (mq.producer(&sign_ups).await.expect("a producer"), mq.producer(&mails).await);
    let sends = std::sync::Arc::new(sends.expect("a producer"));
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |user: Delivery<u64>| {
        let (tell, sends) = (tell.clone(), sends.clone());
        async move {
            let steps = user.steps();
            let (id, number) = (steps.id()?.to_string(), user.payload);
            let create = async || {
                let _ = tell.send(id);
                Ok::<_, StepError>(json!({ "id": number }))
            };
            steps.step("account", create).await?;
            let approved: Option<Value> = steps.signal("approved", HOUR).await?;
            let _ = tell.send(approved.unwrap_or_default().to_string());
            steps.then::<()>("mails", sends.send(&number)).await
        }
    };
    let consumer = mq.consumer(&sign_ups, "welcome").start(handler).await.expect("a consumer");
    let requested = producer.send(&7).reply::<()>().begin().await.expect("sent");
    let id = told.recv().await.expect("its id");
    let steps = |what: &str| -> Vec<Value> {
        let all = cli.json(["message", "steps", &id])["steps"].as_array().expect("a list").clone();
        all.into_iter().filter(|it| it["what"] == what).collect()
    };
    eventually("it waits", async || !steps("waits").is_empty()).await;
    let (done, waits) = (steps("done").remove(0), steps("waits").remove(0));
    assert_eq!(
        (&done["name"], &done["value"], &done["bytes"]),
        (&json!("account"), &json!("{\"id\":7}"), &json!(8))
    );
    assert_eq!(
        (&waits["name"], &waits["value"], &waits["bytes"]),
        (&json!("approved"), &json!(null), &json!(0))
    );
    let text = cli.ok(["message", "steps", &id]);
    assert!(text.contains("account   done ") && text.contains("{\"id\":7}"), "{text}");
    assert!(text.contains("approved  waits"), "{text}");
    let result = requested.id.to_string();
    let work = cli.json(["message", "status", &result])["work"][0].clone();
    assert_eq!((&work["state"], &work["step"]), (&json!("waits in step"), &json!("approved")), "{work}");
    assert!(work["at"].is_string(), "{work}");
    assert!(cli.ok(["message", "status", &result]).contains("waits in step approved"));

    let signal = |code: i32, id: &str, more: &[&str]| -> Value {
        let args = [&["message", "signal", id, "approved"], more].concat();
        cli.json_with(code, args.as_slice())["state"].clone()
    };
    assert_eq!(signal(0, &id, &["--dry-run"]), json!(null));
    assert_eq!(steps("signal"), [] as [Value; 0], "a dry run changes nothing");
    let by_ada = r#"{"by":"Ada"}"#;
    assert_eq!(signal(0, &id, &["--value", by_ada]), "woken");
    assert_eq!(told.recv().await.as_deref(), Some(by_ada));
    assert_eq!(signal(0, &id, &["--value", "2"]), "known");
    assert_eq!(signal(0, &id, &["--dry-run"]), "known");
    assert_eq!(steps("signal")[0]["value"], by_ada);
    // A step of members is named as its handler has, with its batch.
    eventually("its members are sent", async || steps("waits").len() == 2).await;
    let sent = steps("sent").remove(0);
    let batch = sent["batch"].as_str().expect("a batch");
    assert!(sent["name"] == "mails" && batch.starts_with("sign-ups/"), "{sent}");
    assert!(cli.ok(["message", "steps", &id]).contains(&format!("mails (batch {batch})")));
    let shown = cli.json(["batch", "show", batch])["batch"]["parent"].clone();
    assert_eq!(shown, format!("step mails of {id}"));
    consumer.shutdown().await;

    let gone = id.rsplit_once('/').expect("an id").0.to_owned() + "/1-0";
    assert_eq!(signal(3, &gone, &[]), "gone");
    assert_eq!(signal(0, &gone, &["--dry-run"]), json!(null));
    assert!(cli.ok(["message", "steps", &gone]).starts_with("it has no steps"));
    assert!(cli.fails(2, "message steps sign-ups/0").contains("no id of a message for a group"));
    assert!(cli.fails(2, format!("message signal {id} x --value {{").as_str()).contains("--value"));
    assert!(cli.fails(2, ["message", "signal", &id, ""]).contains("no name of a step"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_that_is_late_says_so() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let mails = mq.delay_queue::<u64>("mails").await.expect("a queue");
    mails.schedule(&1).id("welcome-42").await.expect("scheduled");
    let worker = mails.worker().start(async |mail: Task<u64>| {
        let steps = mail.steps();
        steps.signal::<bool>("opened", Duration::from_millis(1)).await?;
        steps.sleep("rest", HOUR).await
    });
    let worker = worker.await.expect("a worker");
    let id = "queue/mails/0/welcome-42";
    let names = || {
        let steps = cli.json(["message", "steps", id])["steps"].clone();
        steps.as_array().expect("a list").iter().map(|it| it["name"].clone()).collect::<Vec<_>>()
    };
    eventually("it rests", async || names() == ["opened", "rest"]).await;
    let opened = ["message", "signal", id, "opened"];
    assert_eq!(cli.json_with(0, [&opened[..], &["-n"]].concat().as_slice())["state"], "late");
    assert_eq!(cli.json_with(3, opened)["state"], "late");
    assert_eq!(cli.ok(["message", "signal", id, "other"]), "stored\n");
    worker.shutdown().await;
}
