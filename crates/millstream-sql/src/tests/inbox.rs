//! Work that is done once.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use millstream_core::ErrorKind;
use millstream_core::idempotency::MAX_RESULT_LEN;
use tokio::sync::Barrier;
use tokio::time::sleep;

use crate::sqlx::Executor;
use crate::sqlx::postgres::PgPoolOptions;
use crate::sqlx::sqlite::SqlitePoolOptions;
use crate::tests::support::{Place, effect, on_both, operation, run, try_run};
use crate::{Claimed, Database, Mode, Once, OnceError, Tx};

on_both!(
    work_is_done_once_and_its_result_is_replayed,
    failed_work_leaves_nothing_and_is_done_again,
    work_that_panics_or_is_dropped_leaves_nothing,
    a_begin_that_is_dropped_leaves_its_connection_free,
    of_many_at_once_one_does_the_work,
    a_marker_that_expired_counts_as_absent,
    a_result_that_is_too_large_is_refused_with_the_work,
    a_transaction_is_ended_by_its_owner_alone,
    a_failure_that_was_overlooked_is_not_committed,
    namespaces_and_groups_are_apart,
    a_claim_belongs_to_the_transaction_of_its_caller,
    a_batch_does_the_new_ones,
    of_overlapping_batches_each_operation_is_done_once,
    an_effect_of_a_mebibyte_is_kept,
    the_retention_is_compared_when_it_is_built,
);

async fn count(tx: Tx, calls: &AtomicUsize) -> Result<(), Infallible> {
    calls.fetch_add(1, Ordering::SeqCst);
    let mut tx = tx;
    effect(&mut tx, "e").await;
    Ok(())
}

async fn work_is_done_once_and_its_result_is_replayed(place: Place) {
    let inbox = place.inbox();
    let work = async |mut tx: Tx| {
        effect(&mut tx, "e").await;
        tx.keep_result("\0result");
        Ok::<_, Infallible>(7)
    };
    let done = inbox.once(&operation("a"), None, work).await;
    assert_eq!(done.unwrap(), Once::First(7));
    let calls = AtomicUsize::new(0);
    for _ in 0..2 {
        let again = inbox.once(&operation("a"), None, async |tx| count(tx, &calls).await).await.unwrap();
        assert_eq!(again, Once::Duplicate(Some("\0result".into())));
    }
    assert_eq!((place.effects("e").await, calls.into_inner()), (1, 0));
    assert_eq!(inbox.look(&operation("a")).await.unwrap(), Some(Some("\0result".into())));

    let calls = AtomicUsize::new(0);
    let other = inbox.once(&operation("b"), None, async |tx| count(tx, &calls).await).await.unwrap();
    assert_eq!(other, Once::First(()));
    assert_eq!(inbox.look(&operation("b")).await.unwrap(), Some(None), "it kept no result");
    assert_eq!(inbox.look(&operation("c")).await.unwrap(), None);
}

#[derive(Debug, PartialEq)]
struct NotEnough(i64);

async fn failed_work_leaves_nothing_and_is_done_again(place: Place) {
    for (mode, id) in [(Mode::Pessimistic, "p"), (Mode::Optimistic, "o")] {
        let inbox = place.builder().mode(mode).build().unwrap();
        let work = async |mut tx: Tx| {
            effect(&mut tx, id).await;
            Err::<(), _>(NotEnough(5))
        };
        let failed = inbox.once(&operation(id), None, work).await;
        match failed {
            Err(OnceError::Work(error)) => {
                assert_eq!(error, NotEnough(5), "the error of the work has its type");
            }
            other => panic!("{mode:?}: {other:?}"),
        }
        assert_eq!((place.effects(id).await, inbox.look(&operation(id)).await.unwrap()), (0, None));
        let work = async |mut tx: Tx| {
            effect(&mut tx, id).await;
            Ok::<_, NotEnough>(())
        };
        let done = inbox.once(&operation(id), None, work).await;
        assert_eq!(done.unwrap(), Once::First(()));
        assert_eq!(place.effects(id).await, 1);
    }
}

async fn work_that_panics_or_is_dropped_leaves_nothing(place: Place) {
    let inbox = place.inbox();
    let panics = {
        let inbox = inbox.clone();
        tokio::spawn(async move {
            let work = async |mut tx: Tx| {
                effect(&mut tx, "panic").await;
                assert!(tx.conn().dialect() == crate::Dialect::Mysql, "a handler that panics");
                Ok::<_, Infallible>(())
            };
            inbox.once(&operation("panic"), None, work).await
        })
    };
    assert!(panics.await.unwrap_err().is_panic());

    let (began, dropped) = (Arc::new(Barrier::new(2)), inbox.clone());
    let task = {
        let began = began.clone();
        tokio::spawn(async move {
            let work = async |mut tx: Tx| {
                effect(&mut tx, "drop").await;
                began.wait().await;
                std::future::pending::<Result<(), Infallible>>().await
            };
            dropped.once(&operation("drop"), None, work).await
        })
    };
    began.wait().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    for id in ["panic", "drop"] {
        assert_eq!(place.effects(id).await, 0, "{id}");
        let calls = AtomicUsize::new(0);
        let done = inbox.once(&operation(id), None, async |tx| count(tx, &calls).await).await.unwrap();
        assert_eq!(done, Once::First(()), "{id}");
    }
}

/// Polls a future at most so often, and drops it.
async fn polled<F: Future>(future: F, most: usize) -> Option<F::Output> {
    let (mut future, mut polls) = (pin!(future), 0);
    poll_fn(|cx| {
        polls += 1;
        if polls > most { Poll::Ready(None) } else { future.as_mut().poll(cx).map(Some) }
    })
    .await
}

/// As by the timeout of a handler, wherever the client waits. The pool has one connection, so the next statement is on the same: it is
/// committed by itself, and others see it.
async fn a_begin_that_is_dropped_leaves_its_connection_free(place: Place) {
    const INSERT: &str = "INSERT INTO effects (name) VALUES ('e')";
    let (postgres, sqlite) = match place.is_postgres() {
        true => (Some(PgPoolOptions::new().max_connections(1).connect(&place.url).await.unwrap()), None),
        false => (None, Some(SqlitePoolOptions::new().max_connections(1).connect(&place.url).await.unwrap())),
    };
    let database = postgres.clone().map(Database::from).or(sqlite.clone().map(Database::from)).unwrap();
    let (mut dropped, mut inserted) = (0, 0);
    for most in (0..20).flat_map(|_| 0..5) {
        // The last ones are not dropped half-way, or none of them if the other threads are quick.
        if polled(database.begin(), most).await.is_none() {
            dropped += 1;
        }
        match (&postgres, &sqlite) {
            (Some(pool), _) => drop(pool.execute(INSERT).await.unwrap()),
            (_, Some(pool)) => drop(pool.execute(INSERT).await.unwrap()),
            _ => unreachable!("one of them"),
        }
        inserted += 1;
        assert_eq!(place.effects("e").await, inserted, "after {most} polls");
    }
    assert!(dropped > 20, "{dropped}: it was never dropped while it waited");
}

async fn of_many_at_once_one_does_the_work(place: Place) {
    let (inbox, calls) = (place.inbox(), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (inbox, calls) = (inbox.clone(), calls.clone());
            tokio::spawn(async move {
                inbox.once(&operation("a"), None, async |tx| count(tx, &calls).await).await
            })
        })
        .collect();
    let mut first = 0;
    for task in tasks {
        first += usize::from(task.await.unwrap().unwrap() == Once::First(()));
    }
    assert_eq!((first, calls.load(Ordering::SeqCst), place.effects("e").await), (1, 1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn optimistic_work_is_done_by_two_and_committed_by_one() {
    let place = Place::postgres().await.ready().await;
    let inbox = place.builder().mode(Mode::Optimistic).build().unwrap();
    let both = Arc::new(Barrier::new(2));
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let (inbox, both) = (inbox.clone(), both.clone());
            tokio::spawn(async move {
                let work = async |mut tx: Tx| {
                    effect(&mut tx, "e").await;
                    tx.keep_result("r");
                    // Neither goes on before both have had their effect.
                    both.wait().await;
                    Ok::<_, Infallible>(())
                };
                inbox.once(&operation("a"), None, work).await
            })
        })
        .collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap().unwrap());
    }
    assert!(results.contains(&Once::First(())), "{results:?}");
    assert!(results.contains(&Once::Duplicate(Some("r".into()))), "{results:?}");
    assert_eq!(place.effects("e").await, 1);
}

async fn a_marker_that_expired_counts_as_absent(place: Place) {
    for mode in [Mode::Pessimistic, Mode::Optimistic] {
        let none = Duration::ZERO;
        let builder = place.builder().mode(mode).retries_within(none).replays_within(none);
        let inbox = builder.retention(Duration::from_millis(1)).build().unwrap();
        let calls = AtomicUsize::new(0);
        let done = inbox.once(&operation("a"), None, async |tx| count(tx, &calls).await).await.unwrap();
        assert_eq!(done, Once::First(()));
        while inbox.look(&operation("a")).await.unwrap().is_some() {
            sleep(Duration::from_millis(1)).await;
        }
        let again = inbox.once(&operation("a"), None, async |tx| count(tx, &calls).await).await.unwrap();
        assert_eq!(again, Once::First(()));
        sleep(Duration::from_millis(2)).await;
        let batch =
            inbox.once_all(&[operation("a")], None, async |tx, _| count(tx, &calls).await).await.unwrap();
        assert_eq!(batch, Once::First((vec![0], ())), "{mode:?}");
        sleep(Duration::from_millis(2)).await;
    }
}

async fn a_result_that_is_too_large_is_refused_with_the_work(place: Place) {
    let inbox = place.inbox();
    let with = async |len: usize| {
        let work = async |mut tx: Tx| {
            effect(&mut tx, "e").await;
            tx.keep_result(vec![7; len]);
            Ok::<_, Infallible>(())
        };
        inbox.once(&operation("a"), None, work).await
    };
    match with(MAX_RESULT_LEN + 1).await {
        Err(OnceError::Store(error)) => assert_eq!(error.kind(), ErrorKind::TooLarge),
        other => panic!("{other:?}"),
    }
    assert_eq!(place.effects("e").await, 0);
    assert_eq!(with(MAX_RESULT_LEN).await.unwrap(), Once::First(()));
    let Some(Some(result)) = inbox.look(&operation("a")).await.unwrap() else { panic!("no result") };
    assert_eq!(result, vec![7; MAX_RESULT_LEN]);
}

async fn a_transaction_is_ended_by_its_owner_alone(place: Place) {
    let inbox = place.inbox();
    let kept = std::sync::Mutex::new(None);
    let work = async |mut tx: Tx| {
        effect(&mut tx, "e").await;
        *kept.lock().unwrap() = Some(tx);
        Ok::<_, Infallible>(())
    };
    let keeps = inbox.once(&operation("a"), None, work).await;
    let Err(OnceError::Store(error)) = keeps else { panic!("committed behind the back of its holder") };
    assert!(error.kind() == ErrorKind::InvalidConfig && error.message().contains("kept"), "{error}");
    drop(kept);

    let work = async |mut tx: Tx| {
        effect(&mut tx, "e").await;
        Ok::<_, Infallible>(tx.commit().await.unwrap_err().kind())
    };
    let commits = inbox.once(&operation("a"), None, work).await;
    let Err(OnceError::Store(error)) = commits else { panic!("committed without its marker") };
    assert_eq!(error.kind(), ErrorKind::InvalidConfig);

    let work = async |tx: Tx| {
        tx.rollback().await;
        Ok::<_, Infallible>(())
    };
    let rolls_back = inbox.once(&operation("a"), None, work).await;
    let Err(OnceError::Store(error)) = rolls_back else { panic!("work without effect counts as done") };
    assert!(error.kind() == ErrorKind::InvalidConfig && error.message().contains("ended"), "{error}");
    assert_eq!((place.effects("e").await, inbox.look(&operation("a")).await.unwrap()), (0, None));
}

async fn a_failure_that_was_overlooked_is_not_committed(place: Place) {
    for mode in [Mode::Pessimistic, Mode::Optimistic] {
        let inbox = place.builder().mode(mode).build().unwrap();
        let id = format!("{mode:?}");
        let work = async |mut tx: Tx| {
            effect(&mut tx, &id).await;
            try_run(&mut tx, "INSERT INTO no_such_table VALUES (1)").await.unwrap_err();
            Ok::<_, Infallible>(())
        };
        let done = inbox.once(&operation(&id), None, work).await;
        let is_done = inbox.look(&operation(&id)).await.unwrap().is_some();
        // SQLite undoes the statement alone.
        assert_eq!(done.is_ok(), is_done, "{done:?}");
        assert_eq!(place.effects(&id).await, i64::from(is_done));
        assert_eq!(is_done, !place.is_postgres());
    }
    let mut tx = place.database.begin().await.unwrap();
    try_run(&mut tx, "INSERT INTO no_such_table VALUES (1)").await.unwrap_err();
    assert_eq!(tx.commit().await.is_ok(), !place.is_postgres(), "a commit of what cannot be committed");
}

async fn namespaces_and_groups_are_apart(place: Place) {
    let (one, other) = (place.inbox(), place.builder().namespace("other").build().unwrap());
    let group = |group: &str| {
        let (topic, group) = ("orders".parse().unwrap(), group.parse().unwrap());
        millstream_core::idempotency::Operation::new(topic, group, "a").unwrap()
    };
    let calls = AtomicUsize::new(0);
    for inbox in [&one, &other] {
        for operation in [group("billing"), group("billing.x"), group("x")] {
            let done = inbox.once(&operation, None, async |tx| count(tx, &calls).await).await.unwrap();
            assert_eq!(done, Once::First(()), "{operation}");
        }
    }
    assert_eq!(calls.into_inner(), 6);
}

async fn a_claim_belongs_to_the_transaction_of_its_caller(place: Place) {
    let inbox = place.inbox();
    let mut tx = place.database.begin().await.unwrap();
    assert_eq!(inbox.claim(&mut tx, &operation("a"), None).await.unwrap(), Claimed::First);
    assert_eq!(inbox.claim(&mut tx, &operation("a"), None).await.unwrap(), Claimed::Duplicate(None));
    tx.rollback().await;

    let mut tx = place.database.begin().await.unwrap();
    let all = inbox.claim_all(&mut tx, &[operation("a"), operation("b")], None).await.unwrap();
    assert_eq!(all, [true, true], "the first transaction was rolled back");
    inbox.keep_result(&mut tx, &operation("a"), b"r").await.unwrap();
    let stranger = inbox.keep_result(&mut tx, &operation("c"), b"r").await.unwrap_err();
    assert_eq!(stranger.kind(), ErrorKind::NotFound);
    tx.commit().await.unwrap();
    assert_eq!(inbox.look(&operation("a")).await.unwrap(), Some(Some("r".into())));
    assert_eq!(inbox.look(&operation("b")).await.unwrap(), Some(None));
}

async fn a_batch_does_the_new_ones(place: Place) {
    let inbox = place.inbox();
    let calls = AtomicUsize::new(0);
    inbox.once(&operation("b"), None, async |tx| count(tx, &calls).await).await.unwrap();
    let batch: Vec<_> = ["c", "b", "a", "c", "\0'\"", "d"].into_iter().map(operation).collect();
    let work = async |mut tx: Tx, fresh| {
        effect(&mut tx, "batch").await;
        Err::<(), _>(fresh)
    };
    let failed = inbox.once_all(&batch, None, work).await;
    let Err(OnceError::Work(fresh)) = failed else { panic!("the work failed") };
    assert_eq!(fresh, [0, 2, 4, 5], "of two with one id the first");
    let work = async |mut tx: Tx, fresh: Vec<usize>| {
        effect(&mut tx, "batch").await;
        Ok::<_, Infallible>(fresh.len())
    };
    let keeps = async |mut tx: Tx, _| {
        effect(&mut tx, "batch").await;
        tx.keep_result("a result");
        Ok::<_, Infallible>(())
    };
    match inbox.once_all(&batch, None, keeps).await {
        Err(OnceError::Store(error)) => assert_eq!(error.kind(), ErrorKind::InvalidConfig),
        other => panic!("a batch has no result: {other:?}"),
    }
    let done = inbox.once_all(&batch, None, work).await;
    assert_eq!(done.unwrap(), Once::First((vec![0, 2, 4, 5], 4)));
    let again = inbox.once_all(&batch, None, async |tx, _| count(tx, &calls).await).await.unwrap();
    assert_eq!(again, Once::Duplicate(None));
    let none = inbox.once_all(&[], None, async |tx, _| count(tx, &calls).await).await.unwrap();
    assert_eq!(none, Once::Duplicate(None));
    assert_eq!((place.effects("batch").await, calls.into_inner()), (1, 1));
}

async fn of_overlapping_batches_each_operation_is_done_once(place: Place) {
    let inbox = place.inbox();
    let tasks: Vec<_> = (0..8_u64)
        .map(|task| {
            let inbox = inbox.clone();
            tokio::spawn(async move {
                let mut random = fastrand::Rng::with_seed(task);
                for round in 0..10 {
                    let mut ids: Vec<_> = (0..40).map(|id| operation(&format!("{round}-{id}"))).collect();
                    random.shuffle(&mut ids);
                    let work = async |mut tx: Tx, fresh: Vec<usize>| {
                        for _ in fresh {
                            effect(&mut tx, "e").await;
                        }
                        Ok::<_, Infallible>(())
                    };
                    inbox.once_all(&ids, None, work).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(place.effects("e").await, 400);
}

async fn an_effect_of_a_mebibyte_is_kept(place: Place) {
    let inbox = place.inbox();
    let body = "x".repeat(1 << 20);
    let work = async |mut tx: Tx| {
        run(&mut tx, &format!("INSERT INTO effects (name) VALUES ('{body}')")).await;
        Ok::<_, Infallible>(())
    };
    assert_eq!(inbox.once(&operation("a"), None, work).await.unwrap(), Once::First(()));
    assert_eq!(place.number("SELECT CAST(max(length(name)) AS bigint) FROM effects").await, 1 << 20);
}

async fn the_retention_is_compared_when_it_is_built(place: Place) {
    let hours = |hours: u64| Duration::from_secs(hours * 3_600);
    let build = |retention| {
        let builder = place.builder().retries_within(hours(10)).replays_within(hours(5));
        builder.retention(retention).build()
    };
    build(hours(15)).unwrap();
    let short = build(hours(14)).unwrap_err();
    assert_eq!(short.kind(), ErrorKind::InvalidConfig);
    for time in ["50400s", "54000s"] {
        assert!(short.to_string().contains(time), "{time}: {short}");
    }
    let unknown = crate::Inbox::builder(&place.database).namespace("a/b").build().unwrap_err();
    let problems = unknown.problems().join("; ");
    assert!(problems.contains("retries_within") && problems.contains("a/b"), "{problems}");
}
