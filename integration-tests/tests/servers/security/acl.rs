//! Users with the least rights: each does what it is for, and nothing else.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use integration_tests::eventually;
use integration_tests::server::Server;
use millstream::{
    Access, Concurrency, Delivery, ErrorKind, Followed, Millstream, Outcome, Packing, Record, RequestError,
    Retention, Sharing, Start, Topic, acl,
};

const ORDERS: Topic<u64> = Topic::new("orders").partitions(2).retention(Retention::Keep);

/// Connects as a user with these rights.
async fn connect(server: &Server, access: Access) -> Millstream {
    let name = format!("{access:?}").to_lowercase();
    let mut command = vec!["ACL", "SETUSER", &name, "reset", "on", ">secret"];
    let rules = acl(access, None, &["orders".parse().expect("a name")]);
    command.extend(rules.iter().map(String::as_str));
    assert_eq!(server.cli(&command), "OK", "{command:?}");
    let url = format!("redis://{name}:secret@127.0.0.1:{}", server.port());
    Millstream::connect(&url).await.expect("connected")
}

/// Commands that were refused, but for those whose refusal is ignored.
fn refused(server: &Server) -> Vec<String> {
    let log = server.cli(&["ACL", "LOG"]);
    let lines: Vec<&str> = log.lines().collect();
    let objects =
        lines.windows(2).filter(|pair| pair[0].ends_with("object")).map(|pair| pair[1].trim().to_owned());
    let ignored = ["client|setinfo", "config|get"];
    // The first one that creates a topic looks for others that are listed no more.
    objects.filter(|object| object != "scan" && !ignored.iter().any(|it| object.contains(it))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_and_a_worker_need_no_other_right() {
    send_and_work(ORDERS, Access::Producer).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_and_a_worker_of_a_packed_topic_need_no_other_right() {
    send_and_work(ORDERS.packed(Packing::new().min_messages(2)), Access::UniqueProducer).await;
}

async fn send_and_work(topic: Topic<u64>, sends: Access) {
    let server = Server::start();
    let sender = connect(&server, sends).await;
    let producer = sender.producer(topic.clone()).await.expect("a producer");
    let numbers: Vec<u64> = (0..20).collect();
    for sent in producer.send_all(numbers.iter().map(Record::new)).await {
        sent.expect("sent");
    }
    let later = producer.send(&100).delay(Duration::from_millis(200)).await;
    later.expect("scheduled");
    // One that has a reply at its second attempt, and one that becomes a dead letter.
    let replied = producer.send(&200).reply::<u64>().begin().await.expect("sent");
    let failed = producer.send(&206).reply::<u64>().begin().await.expect("sent");
    assert_eq!(refused(&server), Vec::<String>::new(), "of a producer");

    let worker = connect(&server, Access::Worker).await;
    for (group, sharing) in [("owners", Sharing::Exclusive), ("sharers", Sharing::Shared)] {
        let done = Arc::new(AtomicUsize::new(0));
        let count = done.clone();
        let handler = move |message: Delivery<u64>| {
            let count = count.clone();
            async move {
                message.progress(0.5, "half");
                if message.payload.is_multiple_of(5) && message.attempt() == 1 {
                    return Outcome::retry("once more");
                }
                count.fetch_add(1, Ordering::Relaxed);
                if message.payload % 7 == 3 {
                    Outcome::dead_letter("never")
                } else {
                    Outcome::reply(&message.payload)
                }
            }
        };
        let retry = millstream::Fixed::new(Duration::from_millis(50));
        let consumer = worker
            .consumer(topic.clone(), group)
            .start_from(Start::Earliest)
            .sharing(sharing)
            .concurrency(Concurrency::Unordered(4))
            .retry(retry)
            .replies(true)
            .start(handler)
            .await;
        let consumer = consumer.expect("a consumer");
        let handled = async || done.load(Ordering::Relaxed) >= 23 || !refused(&server).is_empty();
        eventually(handled, "all are handled").await;
        consumer.shutdown().await;
        assert_eq!(refused(&server), Vec::<String>::new(), "of a worker, {group}");
    }
    let wait = Duration::from_secs(20);
    assert_eq!(replied.within(wait).await.expect("a reply"), 200);
    assert!(matches!(failed.within(wait).await, Err(RequestError::Failed { .. })));
    let (mut follow, mut lines) = (replied.follow().within(wait), 0);
    while let Some(followed) = follow.next().await.expect("it may") {
        lines += usize::from(matches!(followed, Followed::Progress(_)));
    }
    // Of two groups, at their first and second attempts.
    assert_eq!(lines, 4);
    assert_eq!(refused(&server), Vec::<String>::new(), "of a producer that waits");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_of_locks_needs_no_other_right_and_may_touch_no_topic() {
    let server = Server::start();
    let mq = connect(&server, Access::Locks).await;
    let held = mq.lock("invoice:42").acquire().await.expect("acquired");
    let waiting = tokio::spawn({
        let mq = mq.clone();
        async move { mq.lock("invoice:42").acquire().await }
    });
    let election = mq.leader("scheduler");
    let mut watch = election.observe().await.expect("observed");
    let term = election.campaign().await.expect("elected");
    while watch.current().is_none() {
        watch.changed().await;
    }
    // Long enough for a client that waits to ask again.
    tokio::time::sleep(Duration::from_secs(1)).await;
    held.release().await.expect("released");
    waiting.await.expect("no panic").expect("granted").release().await.expect("released");
    term.resign().await.expect("resigned");
    assert_eq!(refused(&server), Vec::<String>::new());
    let error = mq.producer(ORDERS).await.expect_err("it has no right on topics");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_look_sees_everything_and_changes_nothing() {
    let server = Server::start();
    let all = Millstream::connect(&server.url()).await.expect("connected");
    let producer = all.producer(ORDERS).await.expect("a producer");
    producer.send(&1).await.expect("sent");
    let reader = connect(&server, Access::ReadOnly).await;
    let admin = reader.admin();
    assert_eq!(admin.topics().await.expect("topics").len(), 1);
    let name = "orders".parse().expect("a name");
    admin.survey(&name).await.expect("a survey");
    admin.waiting(&name).await.expect("what waits");
    admin.memory(&name).await.expect("memory");
    let options = millstream::admin::VerifyOptions::default();
    admin.verify(&name, options).await.expect("verified");
    let doctor = admin.doctor().await.expect("examined");
    assert!(doctor.iter().any(|report| report.subject == "rights"), "{doctor:?}");
    let error = reader.producer(ORDERS).await.map(drop).err();
    let error = match error {
        Some(error) => error,
        None => reader.producer(ORDERS).await.expect("a producer").send(&1).await.expect_err("no right"),
    };
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(
        server.cli(&["XLEN", "stream:topic:{orders:p:0}"]).parse::<u64>().expect("a number")
            + server.cli(&["XLEN", "stream:topic:{orders:p:1}"]).parse::<u64>().expect("a number"),
        1
    );
}

/// Who may look at all topics finds them also where their list was lost; who may look at one is not shown the names of others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_may_look_at_all_topics_finds_those_whose_list_was_lost() {
    let server = Server::start();
    let all = Millstream::connect(&server.url()).await.expect("connected");
    all.producer(ORDERS).await.expect("a topic");
    let mut command = vec!["ACL", "SETUSER", "looker", "reset", "on", ">secret"];
    let rules = acl(Access::ReadOnly, None, &[]);
    command.extend(rules.iter().map(String::as_str));
    assert_eq!(server.cli(&command), "OK");
    let url = format!("redis://looker:secret@127.0.0.1:{}", server.port());
    let looker = Millstream::connect(&url).await.expect("connected");
    let one = connect(&server, Access::ReadOnly).await;
    server.cli(&["DEL", "streaming:mq:topics:registry"]);
    let found = looker.admin().topics().await.expect("topics");
    assert_eq!(found, ["orders".parse().expect("a name")]);
    assert_eq!(one.admin().topics().await.expect("none is listed"), []);
}

/// Of another topic whose name begins alike, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_topic_that_is_not_named_is_denied() {
    let server = Server::start();
    let sender = connect(&server, Access::Producer).await;
    for name in ["orders2", "order"] {
        let error = match sender.producer(ORDERS.named(name)).await {
            Ok(producer) => producer.send(&1).await.expect_err("no right"),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        assert_eq!(server.cli(&["EXISTS", &format!("stream:topic:{{{name}:p:0}}")]), "0");
    }
}

/// Redis 8 asks its rules only about calls that have the words that the command needs.
#[test]
fn the_server_says_the_same_about_the_least_words_of_each_command() {
    let server = Server::start();
    let commands: BTreeSet<String> =
        millstream_lua::ALL.iter().flat_map(|script| script.commands()).collect();
    for command in commands {
        // The first element is the name, the second the arity: negative where there may be more.
        let info = server.cli(&["COMMAND", "INFO", &command]);
        let arity = info.lines().nth(1).and_then(|arity| arity.parse::<i64>().ok());
        let arity = arity.unwrap_or_else(|| panic!("{command}: {info}")).unsigned_abs();
        let ours = millstream_lua::least_words(&command).map(|words| words as u64);
        assert_eq!(ours, Some(arity), "{command}");
    }
}

/// Which right is missing makes no difference, and neither does where the script needs it.
#[test]
fn a_script_that_may_run_some_of_its_commands_runs_none() {
    let server = Server::start();
    let mut tried = 0;
    for script in millstream_lua::ALL.iter().filter(|script| !script.read_only) {
        let required = script.checked();
        for command in script.commands() {
            if !required.contains(&format!("and '{command}'")) {
                continue;
            }
            server.cli(&["ACL", "SETUSER", "default", "+@all", &format!("-{command}")]);
            let mut call = vec!["EVAL".to_owned(), script.checked(), script.keys.len().to_string()];
            call.extend(script.keys.iter().map(|key| format!("{{tag}}:{key}")));
            call.extend(script.args.iter().map(|_| "1".to_owned()));
            let call: Vec<&str> = call.iter().map(String::as_str).collect();
            let error = server.try_cli(&call).expect_err("a right is missing").to_string();
            let what = format!("'{command}, which script {} needs", script.name).replace('\'', "");
            assert!(error.contains("NOPERM") && error.contains(&what), "{}: {command}: {error}", script.name);
            server.cli(&["ACL", "SETUSER", "default", "+@all"]);
            assert_eq!(server.cli(&["DBSIZE"]), "0", "{} without {command}", script.name);
            tried += 1;
        }
    }
    assert!(tried > 100, "{tried}");
}

/// A retry is stored under its id and under its due time: with the right to one of both it stays pending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_without_the_right_to_park_leaves_the_message_pending() {
    let server = Server::start();
    let all = Millstream::connect(&server.url()).await.expect("connected");
    all.producer(ORDERS).await.expect("a producer").send(&1).partition(0).await.expect("sent");
    let worker = connect(&server, Access::Worker).await;
    let done = Arc::new(AtomicUsize::new(0));
    let count = done.clone();
    let (open, gate) = tokio::sync::watch::channel(false);
    let handler = move |message: Delivery<u64>| {
        let (count, mut gate) = (count.clone(), gate.clone());
        async move {
            if message.attempt() == 1 {
                let _ = gate.wait_for(|open| *open).await;
                return Outcome::retry("once more");
            }
            count.fetch_add(1, Ordering::Relaxed);
            Outcome::Ack
        }
    };
    let consumer = worker
        .consumer(ORDERS, "g")
        .start_from(Start::Earliest)
        .retry(millstream::Fixed::new(Duration::from_millis(50)))
        .start(handler)
        .await
        .expect("a consumer");
    let pending = || server.cli(&["XPENDING", "stream:topic:{orders:p:0}", "g"]);
    eventually(async || pending().starts_with('1'), "it is read").await;
    server.cli(&["ACL", "SETUSER", "worker", "-zadd"]);
    open.send_replace(true);
    let refusals = || {
        let stats = server.cli(&["INFO", "errorstats"]);
        let count = stats.split("errorstat_NOPERM:count=").nth(1).and_then(|rest| rest.lines().next());
        count.map_or(0, |count| count.trim().parse::<u64>().expect("a number"))
    };
    // The heartbeat and the group's upkeep are refused too.
    eventually(async || refusals() > 5, "it is refused").await;
    assert_eq!(server.cli(&["KEYS", "streaming:mq:retry:*"]), "", "nothing is parked");
    assert!(pending().starts_with('1'), "{}", pending());
    server.cli(&["ACL", "SETUSER", "worker", "+zadd"]);
    eventually(async || done.load(Ordering::Relaxed) == 1, "it is tried again").await;
    eventually(async || pending().starts_with('0'), "it is settled").await;
    consumer.shutdown().await;
}
