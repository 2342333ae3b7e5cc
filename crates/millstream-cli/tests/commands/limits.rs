//! `millstream limits`.

use std::time::Duration;

use millstream::crates::core::permits::{Reservation, TokenStep};
use millstream::{Delivery, Limit, Rate, Topic};
use serde_json::{Value, json};

use crate::support::cli::Cli;

const JOBS: Topic<u64> = Topic::new("jobs");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_use_is_listed_with_who_waits_and_rules_are_set() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    assert_eq!(cli.json("limits list"), json!({ "keys": [], "total": 0, "breakers": [] }));
    assert!(cli.ok("limits list").contains("nothing is in use"));
    assert_eq!(cli.json("limits rules"), json!({ "version": 0, "rules": [] }));

    let producer = mq.producer(JOBS).await.expect("a producer");
    for n in 0..2 {
        producer.send(&n).header("tenant", "acme & co").await.expect("sent");
    }
    let (begun, mut first) = tokio::sync::mpsc::unbounded_channel();
    let mut consumers = Vec::new();
    for (group, label) in [("one", "ann"), ("two", "bob")] {
        let begun = begun.clone();
        let limited = mq.consumer(JOBS, group).label(label).limit(Limit::by_header("tenant", "tenant"));
        let consumer = limited.start(move |delivery: Delivery<u64>| {
            let begun = begun.clone();
            async move {
                let _ = begun.send(());
                delivery.cancelled().await;
            }
        });
        consumers.push(consumer.await.expect("started"));
        if label == "ann" {
            first.recv().await.expect("it runs");
        }
    }
    let key = "tenant:acme%20%26%20co";
    let shown = loop {
        let shown = cli.json(["limits", "show", key]);
        if shown["waiting"].as_array().is_some_and(|waiting| !waiting.is_empty()) {
            break shown;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((&shown["at_most"], &shown["rule"]), (&json!(1), &Value::Null), "{shown}");
    let holder = shown["held"][0]["holder"].as_str().expect("a holder");
    assert!(holder.starts_with("ann-") && shown["held"][0]["units"] == 1, "{shown}");
    assert!(shown["waiting"][0].as_str().is_some_and(|waits| waits.starts_with("bob-")), "{shown}");
    let text = cli.ok(["limits", "show", key]);
    assert!(text.contains("has") && text.contains("waits") && text.contains("what programs state"), "{text}");
    let listed = cli.json("limits list --prefix tenant:");
    let row = json!({ "key": key, "at_most": 1, "in_use": 1, "holders": 1, "waiting": 1 });
    assert_eq!(listed, json!({ "keys": [row], "total": 1, "breakers": [] }));
    assert_eq!(cli.json("limits list --prefix other:")["total"], 0);

    let why = loop {
        let why = cli.json("limits why jobs two");
        if why["messages"].as_array().is_some_and(|messages| !messages.is_empty()) {
            break why;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    let waits = &why["messages"][0];
    assert_eq!(
        (&waits["key"], &waits["in_use"], &waits["at_most"]),
        (&json!(key), &json!(1), &json!(1)),
        "{why}"
    );
    let id = waits["id"].as_str().expect("an id");
    assert_eq!(cli.json(["limits", "why", "jobs", "two", id])["messages"], why["messages"]);
    assert_eq!(cli.json("limits why jobs two 1-1")["messages"], json!([]));
    assert_eq!(cli.json("limits why jobs one")["messages"], json!([]), "it runs there");
    let pending = cli.json("pending jobs two");
    let entries = pending["entries"].as_array().expect("entries");
    assert!(entries.iter().any(|it| it["id"] == *id && it["waits_for"] == key), "{pending}");
    assert!(cli.ok("pending jobs two").contains(&format!("waits for {key}")));
    let text = cli.ok("limits why jobs two");
    assert!(text.contains(key) && text.contains(id), "{text}");

    let dry = cli.json("limits set tenant 2 --dry-run");
    assert_eq!(dry, json!({ "pattern": "tenant", "before": null, "now": "2", "dry_run": true }));
    assert_eq!(cli.json("limits rules")["version"], 0, "nothing was done");
    assert!(cli.ok("limits set tenant 2").contains("no rule -> 2"));
    first.recv().await.expect("the other one runs now");
    let shown = cli.json(["limits", "show", key]);
    assert_eq!(
        (&shown["rule"], &shown["at_most"]),
        (&json!({ "pattern": "tenant", "at_most": 2, "rate": null }), &json!(2))
    );
    assert_eq!(cli.json("limits set tenant:acme 0")["before"], Value::Null);
    let rules = cli.json("limits rules");
    let expected = json!([
        { "pattern": "tenant", "at_most": 2, "rate": null },
        { "pattern": "tenant:acme", "at_most": 0, "rate": null }
    ]);
    assert_eq!(rules["rules"], expected);
    assert_eq!(cli.json("limits unset tenant:acme")["before"], "0");
    assert_eq!(cli.json("limits unset tenant:acme")["now"], Value::Null, "it is not there");
    assert!(cli.fails(2, ["limits", "set", "a b", "1"]).contains("limit name"));
    assert_eq!(cli.json("limits show mail-api")["key"], "mail-api:all");
    assert!(cli.fails(2, "limits show tenant:a/b/c/d").contains("at most 3 levels"));
    assert!(cli.fails(2, "limits set tenant 1000001 --dry-run").contains("1000001"));
    assert!(cli.fails(2, "limits set tenant 10/x --dry-run").contains("no rate"));
    assert_eq!(cli.json(["limits", "set", "api", "10/s burst 5"])["now"], "10/s burst 5");
    assert_eq!(cli.json("limits show api")["rule"]["rate"], "10/s burst 5");
    assert!(cli.ok("limits rules").contains("10/s burst 5"));
    assert_eq!(cli.json("limits close api 10m --dry-run")["closed_ms"], 0, "nothing was done");
    let closed = cli.json("limits close api 10m")["closed_ms"].as_u64();
    assert!(closed > Some(590_000) && closed <= Some(600_000), "{closed:?}");
    assert!(cli.json("limits close api 1m")["closed_ms"].as_u64() > Some(580_000), "the longer time counts");
    assert!(cli.ok("limits show api").contains("closed"));
    assert_eq!(cli.json("limits open api"), json!({ "key": "api:all", "closed_ms": 0, "dry_run": false }));
    assert!(cli.ok("limits open api").contains("is open"));
    for consumer in consumers {
        consumer.shutdown_within(Duration::ZERO).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_breakers_are_listed_with_their_reason() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let reason = "10 of 10 failed: 503".to_owned();
    let (key, time) = ("payments:acme".parse().expect("a key"), Duration::from_secs(60));
    let steps = vec![TokenStep::Breaks { key, time, rate: Rate::new(1, time), reason }];
    let permits = mq.backend().permits().expect("limits");
    permits.reserve(&Reservation { version: 0, steps }).await.expect("stored");
    let listed = cli.json("limits list");
    let [open] = &listed["breakers"].as_array().expect("a list")[..] else { panic!("{listed}") };
    assert_eq!((&open["key"], &open["reason"]), (&json!("payments:acme"), &json!("10 of 10 failed: 503")));
    let times = ["since_ms", "until_ms"].map(|field| open[field].as_u64().expect("a time"));
    assert_eq!(times[1] - times[0], 60_000);
    assert!(cli.ok("limits list").contains("10 of 10 failed: 503"));
    let others = cli.json(["limits", "list", "--prefix", "other:"]);
    assert_eq!(others["breakers"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_are_simulated_before_they_are_set() {
    let cli = Cli::new();
    let flows =
        ["limits", "simulate", "tenant:acme,api:all=50/s", "tenant:tiny,api:all=1/s", "--takes", "100ms"];
    let with = |more: &[&'static str]| [&flows, more].concat();
    let why = cli.fails(1, &*with(&["--rule", "tenant=2"]));
    assert!(why.contains("no rule is for api:all"), "{why}");
    let run = cli.json(&*with(&["--rule", "tenant=2", "--rule", "api=1000/s burst 10"]));
    let (acme, tiny) = (&run["flows"][0], &run["flows"][1]);
    assert_eq!(
        (&acme["sent"], &acme["begun"], &acme["short"]),
        (&json!(3000), &json!(1200), &json!("tenant:acme"))
    );
    assert!(acme["longest_ms"].as_u64() > Some(35_000) && acme["waiting"] == 1_800, "{acme}");
    assert_eq!((&tiny["begun"], &tiny["short"]), (&json!(60), &Value::Null));
    assert_eq!((acme["course_ms"].as_array().map(Vec::len), &run["part_ms"]), (Some(40), &json!(1500)));
    // The server's rules, and one that precedes them.
    cli.ok("limits set tenant 2");
    cli.ok(["limits", "set", "api", "10/s"]);
    let rules = with(&["--stored", "--rule", "tenant:tiny=0", "--for", "10s"]);
    let run = cli.json(&*rules);
    assert_eq!((&run["flows"][1]["begun"], &run["flows"][1]["short"]), (&json!(0), &json!("tenant:tiny")));
    assert_eq!((&run["flows"][0]["begun"], &run["flows"][0]["short"]), (&json!(100), &json!("api:all")));
    let text = cli.ok(&*rules);
    assert!(text.contains('█') && text.contains("short of") && text.contains("tenant:tiny"), "{text}");
    assert!(cli.fails(2, "limits simulate tenant:acme").contains("has no `=`"));
    assert!(cli.fails(1, "limits simulate a:b=100000/s --rule a=1").contains("at most 2000000"));
}
