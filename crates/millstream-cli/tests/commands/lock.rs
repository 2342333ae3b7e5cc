//! `millstream lock` and `millstream leader`.

use std::time::Duration;

use millstream::lock::Release;
use serde_json::{Value, json};

use crate::support::cli::Cli;

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_listed_and_shown_with_who_waits() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    assert_eq!(cli.json("lock list"), json!({ "locks": [], "cut": false }));
    assert!(cli.ok("lock list").contains("no locks"));
    let unused = cli.json("lock show invoice:1");
    assert_eq!((&unused["holder"], &unused["waiting"]), (&Value::Null, &json!(0)), "{unused}");

    let mut held = Vec::new();
    for number in [3, 1, 2] {
        let lock = mq.lock(format!("invoice:{number}")).owner("ann").ttl(HOUR);
        held.push(lock.acquire().await.expect("acquired"));
    }
    let waiting = tokio::spawn(mq.lock("invoice:1").owner("bob").acquire());
    let _term = mq.leader("scheduler").candidate("host-1").campaign().await.expect("elected");
    let shown = loop {
        let shown = cli.json("lock show invoice:1");
        if shown["waiting"] != 0 {
            break shown;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    };
    assert_eq!((&shown["holder"], &shown["fence"]), (&json!("ann"), &json!(held[1].fence())), "{shown}");
    assert_eq!((&shown["ttl_ms"], &shown["waiting"]), (&json!(3_600_000), &json!(1)));
    let left = shown["expires_in_ms"].as_u64().expect("a time");
    assert!(left > 1_800_000 && left <= 3_600_000 && shown["first_waits_ms"].is_u64(), "{shown}");
    let text = cli.ok("lock show invoice:1");
    assert!(text.contains("holder") && text.contains("ann") && text.contains("1, the first for"), "{text}");

    let names = |of: &Value| -> Vec<String> {
        let locks = of["locks"].as_array().expect("a list").iter();
        locks.map(|it| it["lock"].as_str().expect("a name").to_owned()).collect()
    };
    let all = cli.json("lock list");
    assert_eq!(names(&all), ["invoice:1", "invoice:2", "invoice:3", "leader:scheduler"]);
    assert_eq!((&all["cut"], &all["locks"][0]["waiting"]), (&json!(false), &json!(1)));
    assert_eq!(names(&cli.json("lock list --prefix leader:")), ["leader:scheduler"]);
    let cut = cli.json("lock list --limit 2 --prefix invoice:");
    assert_eq!((names(&cut).len(), &cut["cut"]), (2, &json!(true)));
    let text = cli.ok("lock list");
    assert!(text.lines().any(|line| line.split_whitespace().take(2).eq(["invoice:3", "ann"])), "{text}");

    let leader = cli.json("leader show scheduler");
    assert_eq!((&leader["leader"], &leader["lock"]), (&json!("host-1"), &json!("leader:scheduler")));
    assert!(leader["epoch"].is_u64(), "{leader}");
    assert!(cli.ok("leader show scheduler").contains("candidates"));
    assert_eq!(cli.json("leader show nobody")["leader"], Value::Null);
    assert!(cli.fails(1, ["leader", "show", "a b"]).contains("a b"));
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_is_released_by_force_if_it_is_the_one_that_was_seen() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    assert!(cli.fails(1, "lock release invoice:42 --yes").contains("has no holder"));
    let held = mq.lock("invoice:42").owner("ann").ttl(HOUR).acquire().await.expect("acquired");
    let fence = held.fence();
    let shown = cli.json("lock release invoice:42 --dry-run");
    assert_eq!((&shown["released"], &shown["holder"]), (&json!(false), &json!("ann")));
    assert_eq!(cli.run("lock release invoice:42").code, 2, "it asks");
    assert!(cli.fails(1, "lock release invoice:42 --fence 7 --yes").contains(&format!("the fence {fence}")));
    assert_eq!(cli.json("lock show invoice:42")["fence"], fence, "nothing was done");

    let next = tokio::spawn(mq.lock("invoice:42").owner("bob").acquire());
    while cli.json("lock show invoice:42")["waiting"] == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let released = cli.json(format!("lock release invoice:42 --fence {fence} --yes").as_str());
    assert_eq!((&released["released"], &released["fence"]), (&json!(true), &json!(fence)));
    let next = next.await.expect("no panic").expect("the next one has it");
    assert!(next.fence() > fence);
    assert_eq!(held.release().await.expect("released"), Release::AlreadyLost);
    assert_eq!(cli.json("lock show invoice:42")["holder"], "bob");
    assert_eq!(next.release().await.expect("released"), Release::Released);
}
