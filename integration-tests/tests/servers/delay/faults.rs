//! What may happen to a server while tasks and delayed messages come due: the instances live on, with no new traffic to
//! wake them, and everything comes, in bounded time, once, and never early. The numbers are those of `docs/faults.toml`.

use std::time::{Duration, Instant};

use integration_tests::delays::stage::{LONGEST_SLEEP, Stage, id};
use integration_tests::delays::{Engine, spread, wall_us};
use integration_tests::equipment::baseline::Stalls;
use integration_tests::eventually;
use integration_tests::history::{figure, now_us};
use integration_tests::server::Server;
use millstream_core::Place;
use millstream_delay::{DelayedPromoter, PromoterConfig};

const MS: fn(u64) -> Duration = Duration::from_millis;

/// The longest pause of a loop that failed is 2 s, and what it missed comes after that.
const AFTER_ERRORS: Duration = Duration::from_secs(5);

macro_rules! on_both {
    ($($name:ident),*) => {
        mod tasks {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::Engine::Queue).await;
            })*
        }
        mod messages {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                super::$name(super::Engine::Topic).await;
            })*
        }
    };
}

on_both!(
    a_busy_server_delays_and_stops_nothing,
    cut_connections_delay_and_stop_nothing,
    a_restart_delays_and_loses_nothing,
    flushed_scripts_are_loaded_again,
    many_at_once_take_each_once,
    retries_after_an_outage_are_spread,
    a_lost_body_is_told,
    a_lost_wake_up_costs_at_most_the_longest_sleep,
    lost_wake_ups_and_cut_waits_cost_at_most_the_longest_sleep
);

/// Due one after the other, over two seconds.
fn steps() -> Vec<Duration> {
    (0..200).map(|nth| MS(500 + 10 * nth)).collect()
}

/// None came later than this and what the machine took away from everybody meanwhile.
fn within(name: &str, engine: Engine, late: &[i64], bound: Duration, stalls: &Stalls) {
    let stalled = stalls.since(0);
    figure(
        "fault",
        &format!("{name}, {engine:?}: {}, the machine stood still for {stalled:.2?}", spread(late)),
    );
    let worst = late.iter().max().copied().unwrap_or(0);
    assert!(
        worst <= i64::try_from((bound + stalled).as_micros()).expect("small"),
        "{worst} µs late, {bound:?} are promised; the machine stood still for {stalled:?}"
    );
}

/// 48: one answer BUSY, and a loop of others never runs again.
async fn a_busy_server_delays_and_stops_nothing(engine: Engine) {
    let server = Server::builder().arg("--busy-reply-threshold", "50").start();
    let mut stage = Stage::begin(server, engine).await;
    let stalls = Stalls::start();
    stage.schedule(&steps()).await;
    tokio::time::sleep(MS(700)).await;
    let url = stage.server.url();
    let busy = std::thread::spawn(move || {
        let client = redis::Client::open(url).expect("a client");
        let mut connection = client.get_connection().expect("a connection");
        let script = "local time, now = redis.call('TIME') local till = time[1] * 1000 + time[2] / 1000 + 800
            repeat now = redis.call('TIME') until now[1] * 1000 + now[2] / 1000 > till";
        redis::cmd("EVAL").arg(script).arg(0).query::<()>(&mut connection)
    });
    let late = stage.all_came().await;
    busy.join().expect("no panic").expect("the script ended");
    within("busy script of 800 ms", engine, &late, AFTER_ERRORS, &stalls);
    assert_eq!(stage.doubled(), Vec::<u64>::new());
    stage.lives_on().await;
}

/// 48: the connections of all clients are cut, again and again.
async fn cut_connections_delay_and_stop_nothing(engine: Engine) {
    let mut stage = Stage::begin(Server::start(), engine).await;
    let stalls = Stalls::start();
    stage.schedule(&steps()).await;
    for _ in 0..6 {
        tokio::time::sleep(MS(300)).await;
        stage.server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    let late = stage.all_came().await;
    within("connections cut six times", engine, &late, AFTER_ERRORS, &stalls);
    assert_eq!(stage.doubled(), Vec::<u64>::new());
    stage.lives_on().await;
}

/// 48: the server is killed with tasks waiting and claimed, and comes back after a second.
async fn a_restart_delays_and_loses_nothing(engine: Engine) {
    let mut stage = Stage::begin(Server::builder().appendonly(true).start(), engine).await;
    let stalls = Stalls::start();
    stage.schedule(&steps()).await;
    tokio::time::sleep(MS(1_000)).await;
    stage.server.kill();
    tokio::time::sleep(MS(1_000)).await;
    stage.server.restart();
    let late = stage.all_came().await;
    within("killed server, back after 1 s", engine, &late, AFTER_ERRORS + MS(1_000), &stalls);
    stage.tells("Failing").await;
    stage.lives_on().await;
}

/// The script cache is emptied while everybody sleeps, and while they work.
async fn flushed_scripts_are_loaded_again(engine: Engine) {
    let mut stage = Stage::begin(Server::start(), engine).await;
    let stalls = Stalls::start();
    stage.schedule(&steps()).await;
    for _ in 0..10 {
        tokio::time::sleep(MS(200)).await;
        stage.server.cli(&["SCRIPT", "FLUSH"]);
    }
    let late = stage.all_came().await;
    within("scripts flushed ten times", engine, &late, MS(1_000), &stalls);
    let failing: Vec<String> = stage.told().into_iter().filter(|line| line.contains("Failing")).collect();
    assert!(failing.is_empty() && stage.doubled().is_empty(), "nobody notices: {failing:?}");
    stage.lives_on().await;
}

/// 49: two who move at once; here the owners, three promoters that own nothing, or six workers.
async fn many_at_once_take_each_once(engine: Engine) {
    let mut stage = Stage::begin(Server::start(), engine).await;
    let stalls = Stalls::start();
    let mut promoters = Vec::new();
    match engine {
        Engine::Queue => {
            for _ in 0..4 {
                stage.join().await;
            }
        }
        Engine::Topic => {
            let Place::Partition(one) = stage.place(0) else { panic!("a partition") };
            let spec = millstream_core::TopicSpec::new(one.topic, 2).expect("a topic");
            for _ in 0..3 {
                let promoter =
                    DelayedPromoter::new(stage.mq.backend(), spec.clone(), PromoterConfig::default());
                let run = promoter.expect("valid").run_until(std::future::pending());
                promoters.push(tokio::spawn(run));
            }
        }
    }
    // Ten at a time, and many at once.
    let mut delays: Vec<Duration> = (0..2_000).map(|nth| MS(700 + nth / 10 * 5)).collect();
    delays.extend([MS(1_000); 2_000]);
    stage.schedule(&delays).await;
    let late = stage.all_came().await;
    within("many movers at once", engine, &late, MS(3_000), &stalls);
    assert_eq!(stage.doubled(), Vec::<u64>::new());
    promoters.iter().for_each(tokio::task::JoinHandle::abort);
    stage.lives_on().await;
}

/// 52: all fail at once while something is down. They do not all come back at once.
async fn retries_after_an_outage_are_spread(engine: Engine) {
    const ITEMS: usize = 2_000;
    const BUCKET_MS: i64 = 20;
    let mut stage = Stage::begin(Server::start(), engine).await;
    *stage.outage.lock().expect("lock") = true;
    stage.schedule(&[MS(200); ITEMS]).await;
    let group = "g".parse().expect("a name");
    let keys: Vec<_> = stage
        .places()
        .iter()
        .map(|place| match place {
            Place::Partition(partition) => stage.keys().retry_due(partition, &group),
            Place::Shard(_) => stage.keys().delay(place),
        })
        .collect();
    let first = wall_us() / 1_000 + 250;
    let dues = || -> Vec<i64> {
        let read = |key: &millstream_core::keys::Key| {
            let text = stage.server.cli(&["ZRANGE", key.as_str(), "0", "-1", "WITHSCORES"]);
            let dues = text.lines().skip(1).step_by(2).map(|due| due.parse().expect("a number"));
            // Not those that wait for the first time.
            dues.filter(|due| *due > first).collect::<Vec<i64>>()
        };
        keys.iter().flat_map(read).collect()
    };
    eventually(async || dues().len() >= ITEMS / 2, "they failed, and wait").await;
    let dues = dues();
    *stage.outage.lock().expect("lock") = false;
    let mut buckets = std::collections::BTreeMap::<i64, usize>::new();
    for due in &dues {
        *buckets.entry((due - first) / BUCKET_MS).or_default() += 1;
    }
    let most = buckets.values().max().copied().expect("some");
    figure(
        "fault",
        &format!(
            "retry storm, {engine:?}: {} over {} of {BUCKET_MS} ms, {most} at most",
            dues.len(),
            buckets.len()
        ),
    );
    assert!(most <= dues.len() / 10, "at most a tenth within {BUCKET_MS} ms: {buckets:?}");
    stage.all_came().await;
    assert_eq!(stage.doubled(), Vec::<u64>::new());
    stage.lives_on().await;
}

/// 53: bodies of waiting messages are deleted. Their ids are counted, reported and removed; the others are delivered.
async fn a_lost_body_is_told(engine: Engine) {
    let mut stage = Stage::begin(Server::start(), engine).await;
    let first = stage.next();
    stage.schedule(&[MS(1_000); 10]).await;
    let lost: Vec<u64> = (first..first + 3).collect();
    for number in &lost {
        let items = stage.keys().delay_items(&stage.place(*number));
        assert_eq!(stage.server.cli(&["HDEL", items.as_str(), &id(*number)]), "1");
    }
    stage.all_came_but(&lost).await;
    match engine {
        Engine::Queue => {
            let dead = async || stage.queue().dead().list(100).await.expect("dead tasks");
            eventually(async || dead().await.len() == 3, "three dead tasks").await;
            let orphans: Vec<_> = dead().await.iter().map(|task| task.reason.as_str().to_owned()).collect();
            assert_eq!(orphans, ["orphan"; 3]);
        }
        Engine::Topic => {
            let orphans = |line: &String| {
                let (_, number) = line.split_once("orphans: ")?;
                number.split(|c: char| !c.is_ascii_digit()).next()?.parse::<u64>().ok()
            };
            let told = || stage.told().iter().filter_map(orphans).sum::<u64>();
            eventually(async || told() == 3, "three orphans are told").await;
        }
    }
    for place in stage.places() {
        let left = stage.server.cli(&["ZCARD", stage.keys().delay(&place).as_str()]);
        assert_eq!(left, "0", "nothing stays at {place}");
    }
    stage.lives_on().await;
}

fn longest_sleep(engine: Engine) -> Duration {
    if engine == Engine::Queue { LONGEST_SLEEP } else { PromoterConfig::default().longest_sleep }
}

/// What is put in front of everything without a call: as if a fail-over had lost the call.
async fn a_lost_wake_up_costs_at_most_the_longest_sleep(engine: Engine) {
    let mut stage = Stage::begin(Server::start(), engine).await;
    let stalls = Stalls::start();
    let number = stage.next();
    stage.schedule(&[MS(300)]).await;
    let (place, id) = (stage.place(number), id(number).parse().expect("an id"));
    let far = millstream_core::Due::In(Duration::from_secs(3_600));
    let moved = stage.mq.backend().schedule().reschedule(&place, std::slice::from_ref(&id), far).await;
    assert_eq!(moved.expect("rescheduled"), [true]);
    // The client that was notified of the first time has checked, and sleeps.
    tokio::time::sleep(MS(600)).await;
    let delay = stage.keys().delay(&place);
    stage.server.cli(&["ZADD", delay.as_str(), "XX", "1", id.as_str()]);
    let (began, began_us) = (Instant::now(), now_us());
    stage.all_came().await;
    let (took, stalled) = (began.elapsed(), stalls.since(began_us));
    figure("fault", &format!("lost wake-up, {engine:?}: {took:.2?}"));
    assert!(
        took <= longest_sleep(engine) + MS(1_000) + stalled,
        "{took:?}; the machine stood still for {stalled:?}"
    );
    stage.lives_on().await;
}

/// Calls are deleted, and the connections of those who wait are cut right after each.
async fn lost_wake_ups_and_cut_waits_cost_at_most_the_longest_sleep(engine: Engine) {
    let mut stage = Stage::begin(Server::start(), engine).await;
    let stalls = Stalls::start();
    for _ in 0..5 {
        stage.schedule(&[MS(60); 4]).await;
        for place in stage.places() {
            stage.server.cli(&["DEL", stage.keys().wake(&place).as_str()]);
        }
        stage.server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    }
    let bound = longest_sleep(engine) + AFTER_ERRORS;
    let late = stage.all_came().await;
    within("calls deleted and waits cut", engine, &late, bound, &stalls);
    assert_eq!(stage.doubled(), Vec::<u64>::new());
    stage.lives_on().await;
}
