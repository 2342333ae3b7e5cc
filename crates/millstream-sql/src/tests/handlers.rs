//! Handlers of consumers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use millstream_core::results::{RESULT_HEADER, ResultRequest};
use millstream_core::{BatchOutcome, Converted, Headers, IntoOutcome, Outcome, Reply};

use crate::tests::delivery::Delivery;
use crate::tests::support::{Place, effect, on_both};
use crate::{Database, Inbox, Tx, sqlx};

on_both!(
    a_message_has_its_effect_once_and_is_acknowledged_twice,
    the_outcome_and_the_error_of_a_handler_stay_as_they_are,
    a_reply_is_committed_and_comes_again,
    a_former_owner_does_not_acknowledge,
    in_shared_mode_there_is_no_fence,
    a_header_names_the_operation,
    a_batch_gets_the_new_ones,
    of_a_batch_with_an_outcome_for_each_the_acknowledged_are_committed,
    a_message_without_the_header_fails_alone,
    without_tables_messages_come_back_as_the_same_attempt,
);

#[derive(Debug, thiserror::Error)]
#[error("account {0} is closed")]
struct Closed(u32);

fn counting(
    inbox: &Inbox,
) -> (impl Fn(Delivery) -> futures_util::future::BoxFuture<'static, Converted<()>> + use<>, Arc<AtomicUsize>)
{
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let handler = inbox.handler(move |_: Delivery, mut tx: Tx| {
        let calls = counted.clone();
        async move {
            calls.fetch_add(1, Ordering::SeqCst);
            effect(&mut tx, "e").await;
        }
    });
    (handler, calls)
}

fn is_ack<O>(outcome: &Converted<O>) -> bool {
    matches!(**outcome, Outcome::Ack)
}

fn are_acks(outcome: &BatchOutcome) -> bool {
    matches!(outcome, BatchOutcome::All(Outcome::Ack))
}

async fn a_message_has_its_effect_once_and_is_acknowledged_twice(place: Place) {
    let (handler, calls) = counting(&place.inbox());
    for _ in 0..2 {
        let outcome = handler(Delivery::new(1, 5)).await;
        assert!(is_ack(&outcome), "{outcome:?}");
    }
    assert!(is_ack(&handler(Delivery::new(2, 5)).await));
    assert_eq!((calls.load(Ordering::SeqCst), place.effects("e").await), (2, 2));
}

async fn a_reply_is_committed_and_comes_again(place: Place) {
    let inbox = place.inbox();
    let handler = inbox.handler(async |delivery: Delivery, mut tx: Tx| {
        effect(&mut tx, "e").await;
        if delivery.origin_ms() == 3 {
            tx.keep_result("kept by the handler");
        }
        Reply::json(&place_of(&delivery))
    });
    let asking = |number: u64| {
        let request = ResultRequest::new(u128::from(number), Duration::from_secs(60));
        let mut delivery = Delivery::new(number, 5);
        delivery.headers.append(RESULT_HEADER, request.to_string());
        delivery
    };
    let reply = |number: u64| Reply::json(&format!("reply to {number}"));
    for _ in 0..2 {
        match handler(asking(1)).await.into_outcome() {
            Outcome::Reply(same) => assert_eq!(same, reply(1)),
            other => panic!("{other:?}"),
        }
    }
    // Nobody asks: it is not kept.
    assert!(matches!(&*handler(Delivery::new(2, 5)).await, Outcome::Reply(_)));
    assert!(is_ack(&handler(Delivery::new(2, 5)).await));
    // What the handler keeps for itself is nobody's reply.
    assert!(matches!(&*handler(asking(3)).await, Outcome::Reply(_)));
    assert!(is_ack(&handler(asking(3)).await));
    assert_eq!(place.effects("e").await, 3);
}

fn place_of(delivery: &Delivery) -> String {
    format!("reply to {}", delivery.origin_ms())
}

async fn the_outcome_and_the_error_of_a_handler_stay_as_they_are(place: Place) {
    let inbox = place.inbox();
    let fails = inbox.handler(async |_: Delivery, mut tx: Tx| {
        effect(&mut tx, "e").await;
        Err::<(), _>(Closed(7))
    });
    match fails(Delivery::new(1, 5)).await.into_outcome() {
        Outcome::Retry(error) => assert_eq!(error.downcast_ref::<Closed>().expect("its type").0, 7),
        other => panic!("{other:?}"),
    }
    let says = |what: fn() -> Outcome| {
        inbox.handler(move |_: Delivery, mut tx: Tx| async move {
            effect(&mut tx, "e").await;
            what()
        })
    };
    let outcome = says(|| Outcome::snooze(Duration::from_secs(7)))(Delivery::new(1, 5)).await;
    assert!(matches!(*outcome, Outcome::Snooze(time) if time == Duration::from_secs(7)), "{outcome:?}");
    let outcome = says(|| Outcome::dead_letter(Closed(8)))(Delivery::new(1, 5)).await;
    assert!(matches!(&*outcome, Outcome::DeadLetter(error) if error.is::<Closed>()), "{outcome:?}");
    assert_eq!(place.effects("e").await, 0);
    assert!(is_ack(&says(|| ().into_outcome())(Delivery::new(1, 5)).await));
    assert_eq!(place.effects("e").await, 1);
}

async fn a_former_owner_does_not_acknowledge(place: Place) {
    let (handler, _) = counting(&place.inbox());
    assert!(is_ack(&handler(Delivery::new(1, 6)).await));
    let outcome = handler(Delivery::new(2, 5)).await;
    assert!(
        matches!(&*outcome, Outcome::Retry(error) if error.to_string().contains("epoch 5")),
        "{outcome:?}"
    );
    assert_eq!(place.effects("e").await, 1);
}

async fn in_shared_mode_there_is_no_fence(place: Place) {
    let (handler, _) = counting(&place.inbox());
    for number in [1, 2, 1] {
        assert!(is_ack(&handler(Delivery::new(number, 0)).await));
    }
    assert_eq!(
        (place.effects("e").await, place.number("SELECT count(*) FROM millstream_fences").await),
        (2, 0)
    );
}

async fn a_header_names_the_operation(place: Place) {
    let (handler, calls) = counting(&place.builder().by_header("payment").build().unwrap());
    let with = |number, payment: &str| {
        let mut headers = Headers::new();
        headers.append("payment", payment.to_owned());
        Delivery { headers, ..Delivery::new(number, 5) }
    };
    for (number, payment) in [(1, "p-1"), (2, "p-1"), (3, "p-2")] {
        assert!(is_ack(&handler(with(number, payment)).await));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    for bad in [Delivery::new(4, 5), with(4, ""), with(4, &"x".repeat(257))] {
        let outcome = handler(bad).await;
        assert!(matches!(*outcome, Outcome::DeadLetter(_)), "{outcome:?}");
    }
    let (handler, calls) =
        counting(&place.builder().namespace("n").by(|it| it.origin().to_string()).build().unwrap());
    for _ in 0..2 {
        assert!(is_ack(&handler(Delivery::new(1, 5)).await));
    }
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

async fn a_batch_gets_the_new_ones(place: Place) {
    let inbox = place.inbox();
    let (one, _) = counting(&inbox);
    assert!(is_ack(&one(Delivery::new(2, 5)).await));
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let batch = {
        let seen = seen.clone();
        inbox.batch_handler(move |new: Vec<Delivery>, mut tx: Tx| {
            seen.lock().unwrap().push(new.iter().map(Delivery::origin_ms).collect::<Vec<_>>());
            async move { effect(&mut tx, "batch").await }
        })
    };
    let messages = || [1, 2, 3].map(|number| Delivery::new(number, 5)).to_vec();
    for _ in 0..2 {
        assert!(are_acks(&batch(messages()).await));
    }
    assert!(are_acks(&batch(Vec::new()).await));
    assert_eq!(place.effects("batch").await, 1);
    assert_eq!(*seen.lock().unwrap(), [[1, 3]]);
}

async fn of_a_batch_with_an_outcome_for_each_the_acknowledged_are_committed(place: Place) {
    let inbox = place.inbox();
    let (one, _) = counting(&inbox);
    assert!(is_ack(&one(Delivery::new(1, 5)).await), "it is done before the batch comes");
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let batch = {
        let seen = seen.clone();
        inbox.batch_handler(move |new: Vec<Delivery>, mut tx: Tx| {
            let numbers: Vec<_> = new.iter().map(Delivery::origin_ms).collect();
            seen.lock().unwrap().push(numbers.clone());
            async move {
                let mut outcomes = Vec::new();
                for number in numbers {
                    // Odd ones fail at first, and nothing is written for them.
                    let fails = number % 2 == 1;
                    if !fails {
                        effect(&mut tx, "each").await;
                    }
                    outcomes.push(if fails { Outcome::retry(Closed(7)) } else { Outcome::Ack });
                }
                outcomes
            }
        })
    };
    let messages =
        |numbers: &[u64]| numbers.iter().map(|number| Delivery::new(*number, 5)).collect::<Vec<_>>();
    let acked = |outcome: &BatchOutcome, at: usize| match outcome {
        BatchOutcome::Except { own, others } => matches!(own[at].as_ref().unwrap_or(others), Outcome::Ack),
        BatchOutcome::All(outcome) => matches!(outcome, Outcome::Ack),
        BatchOutcome::Each(each) => matches!(each[at], Outcome::Ack),
    };
    let said = batch(messages(&[1, 2, 3, 4])).await;
    assert_eq!([0, 1, 2, 3].map(|at| acked(&said, at)), [true, true, false, true], "{said:?}");
    assert_eq!(place.effects("each").await, 2);
    // What was not acknowledged is new again, and the rest is not; if none is acknowledged, nothing is committed.
    let said = batch(messages(&[1, 2, 3, 4, 6])).await;
    assert_eq!([0, 1, 2, 3, 4].map(|at| acked(&said, at)), [true, true, false, true, true], "{said:?}");
    let said = batch(messages(&[2, 3, 5])).await;
    assert_eq!([0, 1, 2].map(|at| acked(&said, at)), [true, false, false], "{said:?}");
    assert_eq!(*seen.lock().unwrap(), [vec![2, 3, 4], vec![3, 6], vec![3, 5]]);
    assert_eq!(place.effects("each").await, 3);
    // A wrong number of outcomes is a failure of all that were new, and nothing is committed.
    let wrong = inbox.batch_handler(|_: Vec<Delivery>, mut tx: Tx| async move {
        effect(&mut tx, "each").await;
        vec![Outcome::Ack]
    });
    let said = wrong(messages(&[2, 7, 8])).await;
    assert_eq!([0, 1, 2].map(|at| acked(&said, at)), [true, false, false], "{said:?}");
    assert_eq!(place.effects("each").await, 3);
}

async fn a_message_without_the_header_fails_alone(place: Place) {
    let inbox = place.builder().by_header("payment").build().unwrap();
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let batch = {
        let seen = seen.clone();
        inbox.batch_handler(move |new: Vec<Delivery>, mut tx: Tx| {
            let numbers: Vec<_> = new.iter().map(Delivery::origin_ms).collect();
            seen.lock().unwrap().push(numbers.clone());
            async move {
                effect(&mut tx, "batch").await;
                if numbers.contains(&9) { Err(Closed(9)) } else { Ok(()) }
            }
        })
    };
    let with = |number, payment: &str| {
        let mut headers = Headers::new();
        headers.append("payment", payment.to_owned());
        Delivery { headers, ..Delivery::new(number, 5) }
    };
    let is_rejected = |outcome: &Option<Outcome>| match outcome {
        Some(Outcome::DeadLetter(why)) => Some(why.to_string()),
        None => None,
        other => panic!("{other:?}"),
    };
    // One lacks the header, one has an id that is too long: each is given up, the others are handled.
    let messages = vec![with(1, "p-1"), Delivery::new(2, 5), with(3, &"x".repeat(257)), with(4, "p-4")];
    match batch(messages).await {
        BatchOutcome::Except { own, others } => {
            let rejected: Vec<_> = own.iter().map(is_rejected).collect();
            assert_eq!((&rejected[0], &rejected[3]), (&None, &None));
            assert_eq!(rejected[1].as_deref(), Some("no header \"payment\", which names the operation"));
            assert!(rejected[2].as_deref().is_some_and(|why| why.contains("257")), "{rejected:?}");
            assert!(matches!(others, Outcome::Ack), "{others:?}");
        }
        other => panic!("{other:?}"),
    }
    // The error of the handler stays as it is for those that it got; what was handled before is acknowledged.
    match batch(vec![Delivery::new(2, 5), with(9, "p-9"), with(1, "p-1")]).await {
        BatchOutcome::Except { own, others: Outcome::Retry(error) } => {
            assert!(matches!(own[..], [Some(Outcome::DeadLetter(_)), None, Some(Outcome::Ack)]), "{own:?}");
            assert!(error.is::<Closed>(), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // None has one: the handler is not called.
    assert!(matches!(batch(vec![Delivery::new(2, 5)]).await, BatchOutcome::Except { .. }));
    assert_eq!(place.effects("batch").await, 1);
    assert_eq!(*seen.lock().unwrap(), [vec![1, 4], vec![9]]);
}

async fn without_tables_messages_come_back_as_the_same_attempt(place: Place) {
    let (handler, calls) = counting(&place.inbox());
    let mut tx = place.database.begin().await.unwrap();
    crate::tests::support::run(&mut tx, "DROP TABLE millstream_inbox").await;
    tx.commit().await.unwrap();
    let outcome = handler(Delivery::new(1, 5)).await;
    assert!(matches!(*outcome, Outcome::Snooze(time) if time >= Duration::from_secs(1)), "{outcome:?}");
    assert_eq!(calls.load(Ordering::SeqCst), 0);
}

/// The database is away, comes back, and each message has its effect once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_away_uses_no_attempts() {
    let mut server = crate::tests::postgres::Postgres::start();
    let place = Place::postgres_on(&server.url()).await.ready().await;
    let pool = sqlx::postgres::PgPoolOptions::new().acquire_timeout(Duration::from_secs(2));
    let inbox = {
        let database = Database::from(pool.connect(&place.url).await.unwrap());
        Inbox::builder(&database).retries_within(Duration::from_secs(60)).build().unwrap()
    };
    let (handler, _) = counting(&inbox);
    assert!(is_ack(&handler(Delivery::new(1, 5)).await));
    // The connection of the pool breaks, and no new one can be made.
    server.kill();
    for _ in 0..2 {
        let outcome = handler(Delivery::new(2, 5)).await;
        assert!(matches!(*outcome, Outcome::Snooze(_)), "{outcome:?}");
    }
    server.restart();
    assert!(is_ack(&handler(Delivery::new(2, 5)).await));
    assert!(is_ack(&handler(Delivery::new(1, 5)).await), "what was committed survives");

    // In the work: that attempt has failed.
    let server = std::sync::Mutex::new(server);
    let server = Arc::new(server);
    let killed = server.clone();
    let handler = inbox.handler(move |_: Delivery, mut tx: Tx| {
        let server = killed.clone();
        async move {
            effect(&mut tx, "killed").await;
            tokio::task::spawn_blocking(move || server.lock().unwrap().kill()).await.unwrap();
            Ok::<_, Closed>(())
        }
    });
    let outcome = handler(Delivery::new(3, 5)).await;
    assert!(matches!(&*outcome, Outcome::Retry(error) if crate::is_transient(&**error)), "{outcome:?}");
    server.lock().unwrap().restart();

    // A server that only pauses.
    server.lock().unwrap().pause();
    let (handler, calls) = counting(&inbox);
    let waits = tokio::spawn(async move { handler(Delivery::new(3, 5)).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(calls.load(Ordering::SeqCst), 0);
    server.lock().unwrap().resume();
    let outcome = waits.await.unwrap();
    // The pool may have given up, or the connection of before was still broken.
    assert!(matches!(*outcome, Outcome::Ack | Outcome::Snooze(_)), "{outcome:?}");
    let (handler, _) = counting(&inbox);
    while !is_ack(&handler(Delivery::new(3, 5)).await) {}
    assert_eq!((place.effects("e").await, place.effects("killed").await), (3, 0));
}
