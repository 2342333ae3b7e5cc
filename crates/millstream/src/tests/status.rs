//! Where a message or task is, in each of its states, as whoever sent it sees it.

use std::time::Duration;

use tokio::time::sleep;

use crate::admin::{InUse, WorkState};
use crate::delay::Task;
use crate::{Delivery, Fixed, MessageResult, Millstream, Never, Reply, ResultId, RetryOrder, Topic};

const SECOND: Duration = Duration::from_secs(1);

/// Returns word, attempt and error for each group, or of the task.
async fn told(mq: &Millstream, id: &ResultId) -> Vec<(String, &'static str, Option<u32>, String)> {
    let status = mq.status(id).await.expect("a status");
    let group = |group: Option<crate::GroupName>| group.map_or_else(String::new, |it| it.to_string());
    status.work.into_iter().map(|it| (group(it.group), it.state.as_str(), it.attempt, it.error)).collect()
}

fn is(
    group: &str,
    state: &'static str,
    attempt: u32,
    error: &str,
) -> (String, &'static str, Option<u32>, String) {
    (group.to_owned(), state, Some(attempt).filter(|attempt| *attempt > 0), error.to_owned())
}

#[tokio::test(start_paused = true)]
async fn a_message_is_found_in_each_of_its_states() {
    let mq = Millstream::connect("memory://").await.expect("connected");
    let orders = Topic::<u64>::new("orders");
    let producer = mq.producer(&orders).await.expect("a producer");
    // A group that nobody runs.
    mq.consumer(&orders, "idle").start(async |_: Delivery<u64>| {}).await.expect("created").shutdown().await;
    let requested = producer.send(&1).reply::<u64>().begin().await.expect("sent");
    let id: ResultId = requested.id.to_string().parse().expect("an id that is stored as a text");
    assert_eq!(id, requested.id);
    assert_eq!(told(&mq, &id).await, [is("idle", "waiting", 0, "")]);
    let handler = async |order: Delivery<u64>| {
        sleep(SECOND * 60).await;
        match (order.payload, order.attempt()) {
            (1, attempt) => Err(format!("attempt {attempt}")),
            _ => Ok(Reply::json(&7)),
        }
    };
    let retry = Fixed::new(SECOND * 600).attempts(2);
    let billing = mq.consumer(&orders, "billing").retry(retry).start(handler).await.expect("a consumer");
    sleep(SECOND / 2).await;
    let early = &told(&mq, &id).await[0];
    assert_eq!((&*early.0, early.1), ("billing", "handed out"));
    sleep(SECOND * 30).await;
    sleep(SECOND * 60).await;
    assert_eq!(told(&mq, &id).await[0], is("billing", "retrying", 2, "attempt 1"));
    sleep(SECOND * 600).await;
    let second = &told(&mq, &id).await[0];
    assert_eq!((&*second.0, second.1), ("billing", "handed out"), "the second attempt");
    sleep(SECOND * 60).await;
    assert_eq!(told(&mq, &id).await[0], is("billing", "dead", 2, "attempt 2"));
    let failed = mq.status(&id).await.expect("a status").result.expect("a result");
    assert_eq!(failed, MessageResult::failed("exhausted", 2, "attempt 2"));
    // Of another one that is replied to, and of one whose message is not known.
    let answered = producer.send(&2).reply::<u64>().begin().await.expect("sent");
    assert_eq!(answered.within(SECOND * 600).await.expect("a reply"), 7);
    assert_eq!(
        told(&mq, &answered.id).await,
        [is("billing", "settled", 0, ""), is("idle", "waiting", 0, "")]
    );
    let bare = ResultId::new(answered.id.place.clone(), answered.id.number);
    let status = mq.status(&bare).await.expect("a status");
    assert!(status.work.is_empty() && matches!(status.result, Some(MessageResult::Replied(_))), "{status:?}");
    billing.shutdown().await;
    // Of what was deleted only the result is left, if the backend keeps it.
    mq.admin().delete_topic(&"orders".parse().expect("a name"), InUse::Force).await.expect("deleted");
    assert_eq!(told(&mq, &answered.id).await, []);
}

#[tokio::test(start_paused = true)]
async fn a_message_that_waits_in_its_place_is_retried_and_a_replayed_one_is_not_dead() {
    let mq = Millstream::connect("memory://").await.expect("connected");
    let orders = Topic::<u64>::new("orders");
    let producer = mq.producer(&orders).await.expect("a producer");
    let handler = async |order: Delivery<u64>| Err::<Reply, _>(format!("attempt {}", order.attempt()));
    let retry = Fixed::new(SECOND * 600).attempts(2);
    let consumer = mq.consumer(&orders, "g").retry(retry).retry_order(RetryOrder::BlockPartition);
    let consumer = consumer.start(handler).await.expect("a consumer");
    let requested = producer.send(&1).reply::<u64>().begin().await.expect("sent");
    sleep(SECOND * 10).await;
    let state = async || mq.status(&requested.id).await.expect("a status").work.remove(0).state;
    assert!(matches!(state().await, WorkState::Retrying { in_place: true, .. }), "{:?}", state().await);
    assert_eq!(told(&mq, &requested.id).await, [is("g", "retrying", 2, "attempt 1")]);
    sleep(SECOND * 700).await;
    assert_eq!(told(&mq, &requested.id).await, [is("g", "dead", 2, "attempt 2")]);
    // Replayed, it fails once more, and waits in the place of the entry that it has now.
    let letters = mq.dead_letters(&orders, "g").await.expect("letters");
    letters.replay_all().await.expect("replayed");
    sleep(SECOND * 10).await;
    assert!(matches!(state().await, WorkState::Retrying { in_place: true, .. }), "{:?}", state().await);
    assert_eq!(told(&mq, &requested.id).await, [is("g", "retrying", 2, "attempt 1")]);
    consumer.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_whose_id_is_used_again_is_another_one() {
    let mq = Millstream::connect("memory://").await.expect("connected");
    let mails = mq.delay_queue::<u64>("mails").await.expect("a queue");
    let ask = async |number: &u64, delay: u64| {
        let task = mails.schedule(number).id("welcome").replace();
        task.delay(SECOND * delay as u32).reply::<u64>().begin().await.expect("stored").id
    };
    let replaced = ask(&1, 100).await;
    let dying = ask(&0, 0).await;
    let handler =
        async |mail: Task<u64>| if mail.payload == 0 { Err("no") } else { Ok(Reply::json(&mail.payload)) };
    let worker = mails.worker().retry(Never).start(handler).await.expect("a worker");
    sleep(SECOND * 10).await;
    let done = ask(&2, 0).await;
    sleep(SECOND * 10).await;
    let waiting = ask(&3, 100).await;
    assert_eq!(told(&mq, &replaced).await, [is("", "gone", 0, "")]);
    assert_eq!(told(&mq, &dying).await, [is("", "dead", 1, "no")]);
    assert_eq!(told(&mq, &done).await, [is("", "gone", 0, "")], "its result says more");
    assert_eq!(told(&mq, &waiting).await, [is("", "delayed", 1, "")]);
    worker.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_task_is_found_in_each_of_its_states() {
    let mq = Millstream::connect("memory://").await.expect("connected");
    let mails = mq.delay_queue::<u64>("mails").shards(3).await.expect("a queue");
    let numbers = [1, 2];
    let ask = async |number: &u64| {
        let task = mails.schedule(number).delay(SECOND * 100).reply::<u64>();
        task.begin().await.expect("stored").id
    };
    let (failing, fine) = (ask(&numbers[0]).await, ask(&numbers[1]).await);
    assert_eq!(failing, failing.to_string().parse().expect("an id"));
    assert_eq!(told(&mq, &failing).await, [is("", "delayed", 1, "")]);
    let handler = async |mail: Task<u64>| {
        sleep(SECOND * 60).await;
        if mail.payload == 1 { Err(format!("attempt {}", mail.attempt())) } else { Ok(Reply::json(&7)) }
    };
    let retry = Fixed::new(SECOND * 600).attempts(2);
    let worker =
        mails.worker().retry(retry).done_window(SECOND * 600).start(handler).await.expect("a worker");
    sleep(SECOND * 130).await;
    assert_eq!(told(&mq, &failing).await, [is("", "handed out", 1, "")]);
    sleep(SECOND * 60).await;
    assert_eq!(told(&mq, &failing).await, [is("", "retrying", 2, "attempt 1")]);
    assert_eq!(told(&mq, &fine).await, [is("", "settled", 0, "")]);
    sleep(SECOND * 700).await;
    assert_eq!(told(&mq, &failing).await, [is("", "dead", 2, "attempt 2")]);
    assert_eq!(told(&mq, &fine).await, [is("", "gone", 0, "")], "its id is free");
    let result = mq.status(&fine).await.expect("a status").result;
    assert!(matches!(result, Some(MessageResult::Replied(_))), "{result:?}");
    worker.shutdown().await;
}
