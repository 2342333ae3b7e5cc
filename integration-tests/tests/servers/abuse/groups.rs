//! Topics with thousands of groups.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use integration_tests::fixture::raw_connection;
use integration_tests::history::figure;
use integration_tests::{eventually, server::Server};
use millstream::{
    Concurrency, Delivery, GroupName, Millstream, Packing, Record, Retention, Start, Topic, TopicChange,
    TopicName,
};
use millstream_core::catalog::Catalog;
use millstream_core::keys::Keys;
use millstream_core::leases::{Acquired, Leases, Resource};
use millstream_core::members::{Member, Members};
use millstream_core::{Continuity, ErrorKind, TopicPartition, TopicSpec};
use millstream_redis::{RedisBackend, RedisConfig};

const GROUPS: usize = 10_000;
const JOBS: Topic<u64> = Topic::new("jobs").partitions(1);

/// What the server says of a command: calls, and mean microseconds of one.
fn cost(server: &Server, command: &str) -> (u64, f64) {
    let stats = server.cli(&["INFO", "commandstats"]);
    let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:")));
    let figure = |name: &str| -> f64 {
        let value = line.and_then(|line| line.split(',').find_map(|it| it.strip_prefix(name)));
        value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
    };
    (figure("calls=") as u64, figure("usec_per_call="))
}

/// Every question about one group, and the trims of a group at work, cost the server what listing the groups of the log costs it,
/// a bounded number of times: no request goes through the groups for each group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_groups_cost_each_request_one_look_at_them() {
    /// How many times longer than a bare list of the groups a script may take. A script gets that list as Lua tables, which
    /// alone takes four times as long, and looks at each group once: 7 to 50 times were measured. One that looked at all
    /// groups for each of them would take thousands of times as long.
    const TIMES: f64 = 400.0;
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let producer = mq.producer(JOBS).await.expect("a producer");
    let keys = Keys::new();
    let name: TopicName = "jobs".parse().expect("a name");
    let log = keys.log(&TopicPartition::new(name.clone(), 0)).to_string();
    let mut raw = raw_connection(&server.url()).await;
    let numbers: Vec<u64> = (0..200).collect();
    for sent in producer.send_all(numbers.iter().map(Record::new)).await {
        sent.expect("stored");
    }
    // As their consumers would have made them. All but the first thousand have read ten entries, and settled none of them.
    for from in (0..GROUPS).step_by(1_000) {
        let mut pipe = redis::pipe();
        for group in from..from + 1_000 {
            let group = format!("group-{group}");
            pipe.cmd("XGROUP").arg("CREATE").arg(&log).arg(&group).arg("0").ignore();
            pipe.cmd("SADD").arg(keys.topic_groups(&name).as_str()).arg(&group).ignore();
            if from > 0 {
                pipe.cmd("XREADGROUP").arg("GROUP").arg(&group).arg("owner").arg("COUNT").arg(10);
                pipe.arg("STREAMS").arg(&log).arg(">").ignore();
            }
        }
        pipe.exec_async(&mut raw).await.expect("created");
    }
    let admin = mq.admin();
    let group: GroupName = "group-9000".parse().expect("a name");
    server.cli(&["CONFIG", "RESETSTAT"]);
    let listed = admin.groups(&name).await.expect("listed");
    assert_eq!(listed.len(), GROUPS);
    for _ in 0..3 {
        let stats = admin.group_stats(&name, &group).await.expect("stats");
        assert_eq!((stats.totals.pending, stats.totals.lag), (Some(10), Some(190)));
    }
    let pins = admin.pins(&name).await.expect("pins");
    // Many of them need the same entries, so no entry is kept for one alone.
    assert_eq!((pins.len(), pins[0].messages), (1, 0));
    let (looks, look_us) = cost(&server, "evalsha_ro");
    let (lists, list_us) = cost(&server, "xinfo|groups");
    assert!(looks <= 12 && lists <= looks + 8, "{looks} scripts, {lists} lists of groups for five questions");

    // One of them is at work: it is handed everything, and its trims drop nothing that the others have not read.
    server.cli(&["CONFIG", "RESETSTAT"]);
    let handled = Arc::new(AtomicU64::new(0));
    let counted = handled.clone();
    let consumer = mq.consumer(JOBS, "group-9000").concurrency(Concurrency::Unordered(16));
    let consumer = consumer.start(move |_: Delivery<u64>| {
        counted.fetch_add(1, Ordering::Relaxed);
        async {}
    });
    let consumer = consumer.await.expect("started");
    eventually(async || handled.load(Ordering::Relaxed) == 200, "it is handed everything").await;
    let trims = async || cost(&server, "xinfo|groups").0 >= 2;
    eventually(trims, "it has trimmed").await;
    let (trims, trim_us) = cost(&server, "xinfo|groups");
    let (calls, script_us) = cost(&server, "evalsha");
    let of_trims = script_us * calls as f64 / trims as f64;
    assert_eq!(server.cli(&["XLEN", &log]), "200");
    consumer.shutdown().await;

    // Entries that go by a rule are counted for each group that had not read them.
    let mut change = TopicChange::new();
    change.retention = Some(Retention::Length(50));
    admin.alter_topic(&name, &change).await.expect("altered");
    server.cli(&["CONFIG", "RESETSTAT"]);
    let consumer = mq.consumer(JOBS, "group-9000").start(|_: Delivery<u64>| async {}).await.expect("started");
    let trimmed = async || server.cli(&["XLEN", &log]) == "50";
    eventually(trimmed, "it is trimmed to its length").await;
    let (lossy, _) = cost(&server, "xinfo|groups");
    let (calls, script_us) = cost(&server, "evalsha");
    let of_lossy = script_us * calls as f64 / lossy as f64;
    consumer.shutdown().await;
    figure(
        "abuse",
        &format!(
            "{GROUPS} groups: {list_us:.0} µs for a list of them; a look {look_us:.0} µs; {trims} trims of {of_trims:.0} µs \
             ({trim_us:.0} µs for the list then); {lossy} trims with losses of {of_lossy:.0} µs"
        ),
    );
    for (what, us) in [("look", look_us), ("trim", of_trims), ("trim with losses", of_lossy)] {
        assert!(
            us <= TIMES * list_us.max(trim_us),
            "a {what} takes {us:.0} µs, a list of the groups {list_us:.0} µs"
        );
    }
}

/// Each group has its own notes of what it has settled of the packs, and its own position among their messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_groups_of_a_packed_topic_have_each_what_is_theirs() {
    const PACKED: Topic<u64> =
        Topic::new("packed").partitions(1).packed(Packing::new().min_messages(2).max_messages(40));
    let server = Server::start();
    let mq = Millstream::connect(&server.url()).await.expect("connected");
    let producer = mq.producer(PACKED).await.expect("a producer");
    let numbers: Vec<u64> = (0..200).collect();
    let mut ids = Vec::new();
    for sent in producer.send_all(numbers.iter().map(Record::new)).await {
        ids.push(sent.expect("stored").id);
    }
    let name: TopicName = "packed".parse().expect("a name");
    let log = Keys::new().log(&TopicPartition::new(name.clone(), 0)).to_string();
    let entries = server.cli(&["XLEN", &log]);
    assert!(entries.parse::<usize>().is_ok_and(|entries| entries <= 100), "{entries} entries: packs");

    let catalog = mq.backend().catalog();
    let spec = catalog.topic(&name).await.expect("a topic");
    let group = |n: usize| format!("group-{n}").parse::<GroupName>().expect("a name");
    // At the beginning, and inside of packs.
    let begins = |n: usize| if n.is_multiple_of(2) { None } else { Some((n * 7) % 199) };
    let owed = |n: usize| begins(n).map_or(200, |at| 199 - at as u64);
    for n in 0..1_000 {
        let start = begins(n).map_or(Start::Earliest, |at| Start::After(ids[at]));
        catalog.create_group(&spec, &group(n), start).await.expect("created");
    }
    let lags = async || {
        let mut lags = Vec::new();
        for n in 0..1_000 {
            let stats = catalog.stats(&spec, &group(n)).await.expect("stats");
            assert_eq!((stats.len(), stats[0].length, stats[0].pending), (1, 200, 0), "of group {n}");
            lags.push(stats[0].lag.expect("a lag"));
        }
        lags
    };
    assert_eq!(lags().await, (0..1_000).map(owed).collect::<Vec<_>>());

    let at_work = [0, 1, 500, 501, 999];
    let mut consumers = Vec::new();
    for n in at_work {
        let handled = Arc::new(AtomicU64::new(0));
        let sum = handled.clone();
        let consumer = mq.consumer(PACKED, group(n).as_str()).concurrency(Concurrency::Unordered(16));
        let consumer = consumer.start(move |delivery: Delivery<u64>| {
            sum.fetch_add(delivery.payload + 1_000_000, Ordering::Relaxed);
            async {}
        });
        consumers.push((n, handled, consumer.await.expect("started")));
    }
    for (n, handled, consumer) in consumers {
        let theirs: u64 = (200 - owed(n)..200).map(|number| number + 1_000_000).sum();
        let all = async || handled.load(Ordering::Relaxed) == theirs;
        eventually(all, &format!("group {n} handles what is its own, each once")).await;
        consumer.shutdown().await;
    }
    let expected = (0..1_000).map(|n| if at_work.contains(&n) { 0 } else { owed(n) });
    assert_eq!(lags().await, expected.collect::<Vec<_>>());
    assert_eq!(server.cli(&["XLEN", &log]), entries, "the others need all of it");
}

/// A process that works for many groups sends their heartbeats in few calls, and so it renews their leases: one that is refused
/// costs the others nothing, and says what one that comes alone says.
#[tokio::test]
async fn heartbeats_and_renewals_of_many_groups_are_few_calls_with_an_answer_for_each() {
    const MANY: usize = 70;
    const TTL: Duration = Duration::from_secs(60);
    let server = Server::start();
    let backend = RedisBackend::connect(RedisConfig::new(server.url())).await.expect("connected");
    let topic = TopicSpec::new("jobs".parse().expect("a name"), 1).expect("a topic");
    let (name, keys) = (topic.name.clone(), Keys::new());
    backend.create_topic(&topic).await.expect("created");
    let groups: Vec<GroupName> = (0..MANY).map(|n| format!("g{n}").parse().expect("a name")).collect();
    let member = |incarnation: &str| {
        Member::new("m".parse().expect("a name"), incarnation, TTL).with_continuity(Continuity::assured())
    };
    let beat = async |joining: bool| {
        let (member, all) = (member("one"), groups.iter());
        let all = all.map(|group| {
            let (backend, name, group, member) =
                (backend.clone(), name.clone(), group.clone(), member.clone());
            // As those of different consumers.
            tokio::spawn(async move { backend.heartbeat(&name, &group, &member, joining).await })
        });
        join_all(all).await.into_iter().map(|beat| beat.expect("no panic")).collect::<Vec<_>>()
    };
    for joined in beat(true).await {
        assert_eq!(joined.expect("joined").members, 1);
    }
    let before = cost(&server, "evalsha").0;
    assert!(beat(false).await.iter().all(Result::is_ok));
    let calls = cost(&server, "evalsha").0 - before;
    assert!(calls <= 3 * (MANY / 32 + 1) as u64, "{calls} calls for {MANY} heartbeats");

    // Another instance has the id, it is not in the group, a key is of another program, the group was deleted.
    backend.heartbeat(&name, &groups[1], &member("two"), true).await.expect("joined");
    backend.leave(&name, &groups[2], &member("one")).await.expect("left");
    let foreign = keys.changes(&name, &groups[3]);
    server.cli(&["SET", foreign.as_str(), "of somebody else"]);
    server.cli(&["HSET", keys.group_state(&name, &groups[4]).as_str(), "deleted", "1"]);
    let answers = beat(false).await;
    for (n, answer) in answers.iter().enumerate() {
        let kind = answer.as_ref().err().map(millstream::Error::kind);
        let expected = match n {
            1 => Some(ErrorKind::Fenced),
            2 => Some(ErrorKind::NotMember),
            3 => Some(ErrorKind::WrongType),
            4 => Some(ErrorKind::Deleted),
            _ => None,
        };
        assert_eq!(kind, expected, "{n}: {answer:?}");
    }
    let named = answers[3].as_ref().expect_err("a wrong type").to_string();
    assert!(named.contains(foreign.as_str()), "{named}");

    let grant = |group: &GroupName| {
        let resource = Resource::partition(TopicPartition::new(name.clone(), 0), group.clone());
        let backend = backend.clone();
        async move {
            let acquired = backend.acquire(&resource, "m", "nonce", TTL, &Continuity::assured()).await;
            let Acquired::Granted(lease) = acquired.expect("an answer") else { panic!("held") };
            lease
        }
    };
    let leases = join_all(groups.iter().map(grant)).await;
    server.cli(&["DEL", keys.lease(&TopicPartition::new(name.clone(), 0), &groups[5]).as_str()]);
    let other = Resource::partition(TopicPartition::new(name.clone(), 0), groups[5].clone());
    backend.acquire(&other, "other", "another", TTL, &Continuity::assured()).await.expect("granted");
    let before = cost(&server, "evalsha").0;
    let renewals = leases.iter().map(|lease| {
        let (backend, lease) = (backend.clone(), lease.clone());
        tokio::spawn(async move { backend.renew(&[lease]).await })
    });
    for (n, renewed) in join_all(renewals).await.into_iter().enumerate() {
        let renewed = renewed.expect("no panic").pop().expect("one answer");
        let kind = renewed.err().map(|error| error.kind());
        assert_eq!(kind, (n == 5).then_some(ErrorKind::Fenced), "{n}");
    }
    let calls = cost(&server, "evalsha").0 - before;
    assert!(calls <= 3, "{calls} calls for {MANY} renewals");
}
