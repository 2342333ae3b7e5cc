//! Former owners that were paused.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::ErrorKind;
use tokio::sync::Barrier;

use crate::tests::support::{Place, effect, on_both, operation, run};
use crate::{Fence, Mode, Once, OnceError, Tx};

on_both!(
    who_comes_after_a_later_owner_is_refused,
    the_highest_epoch_can_be_read,
    a_batch_of_a_former_owner_is_refused,
    a_claim_of_a_former_owner_is_refused,
    a_fence_that_was_deleted_is_raised_anew,
);

fn fence(epoch: u64) -> Fence {
    Fence::new("orders/billing/3", epoch).unwrap()
}

async fn done(inbox: &crate::Inbox, id: &str, epoch: u64) -> Result<Once<()>, ErrorKind> {
    let work = async |mut tx: Tx| {
        effect(&mut tx, id).await;
        Ok::<_, Infallible>(())
    };
    match inbox.once(&operation(id), Some(&fence(epoch)), work).await {
        Ok(once) => Ok(once),
        Err(OnceError::Store(error)) => Err(error.kind()),
        Err(other) => panic!("{other}"),
    }
}

async fn who_comes_after_a_later_owner_is_refused(place: Place) {
    for (mode, name) in [(Mode::Pessimistic, "p"), (Mode::Optimistic, "o")] {
        let id = |number: u32| format!("{name}{number}");
        // The former owner is another process, which knows nothing of the new one.
        let [former, new] = [(), ()].map(|()| place.builder().mode(mode).namespace(name).build().unwrap());
        for number in 0..2 {
            assert_eq!(done(&former, &id(number), 5).await, Ok(Once::First(())));
        }
        assert_eq!(done(&new, &id(0), 6).await, Ok(Once::Duplicate(None)));
        assert_eq!(
            done(&former, &id(2), 5).await,
            Ok(Once::First(())),
            "a duplicate is no work of the new owner"
        );
        for number in 3..5 {
            assert_eq!(done(&new, &id(number), 6).await, Ok(Once::First(())));
        }
        for number in 5..7 {
            assert_eq!(done(&former, &id(number), 5).await, Err(ErrorKind::Fenced));
            assert_eq!(place.effects(&id(number)).await, 0);
            assert_eq!(done(&new, &id(number), 6).await, Ok(Once::First(())));
        }
        assert_eq!(done(&new, &id(7), 7).await, Ok(Once::First(())), "the same process under a later epoch");
        assert_eq!(done(&new, &id(8), 6).await, Err(ErrorKind::Fenced));
    }
}

/// On PostgreSQL work of both owners runs at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_is_paused_in_its_work_is_refused() {
    let place = Place::postgres().await.ready().await;
    for mode in [Mode::Pessimistic, Mode::Optimistic] {
        let [former, new] = [(), ()].map(|()| place.builder().mode(mode).build().unwrap());
        let (began, resumed) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
        let (paused, epoch) = (format!("paused {mode:?}"), if mode == Mode::Pessimistic { 5 } else { 15 });
        let task = {
            let (began, resumed, paused) = (began.clone(), resumed.clone(), paused.clone());
            tokio::spawn(async move {
                let work = async |mut tx: Tx| {
                    effect(&mut tx, &paused).await;
                    began.wait().await;
                    resumed.wait().await;
                    Ok::<_, Infallible>(())
                };
                former.once(&operation(&paused), Some(&fence(epoch)), work).await
            })
        };
        began.wait().await;
        // The new owner does not wait for it: neither for its fence, nor, optimistic, for its marker.
        let other = format!("other {mode:?}");
        assert_eq!(done(&new, &other, epoch + 1).await, Ok(Once::First(())));
        if mode == Mode::Optimistic {
            assert_eq!(done(&new, &paused, epoch + 1).await, Ok(Once::First(())));
        }
        resumed.wait().await;
        match task.await.unwrap() {
            Err(OnceError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Fenced, "{error}"),
            Ok(Once::Duplicate(None)) if mode == Mode::Optimistic => {}
            result => panic!("{mode:?}: {result:?}"),
        }
        assert_eq!(place.effects(&paused).await, i64::from(mode == Mode::Optimistic));
    }
}

/// A process that is stopped while it holds a marker: the server ends its transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_does_nothing_is_ended() {
    let place = Place::postgres().await.ready().await;
    let inbox = place.builder().max_idle(Duration::from_secs(1)).build().unwrap();
    let began = Arc::new(Barrier::new(2));
    let paused = {
        let (inbox, began) = (inbox.clone(), began.clone());
        tokio::spawn(async move {
            let work = async |mut tx: Tx| {
                effect(&mut tx, "e").await;
                began.wait().await;
                std::future::pending::<Result<(), Infallible>>().await
            };
            inbox.once(&operation("a"), None, work).await
        })
    };
    began.wait().await;
    // It waits for the marker until the server has ended the other transaction.
    let work = async |mut tx: Tx| {
        effect(&mut tx, "e").await;
        Ok::<_, Infallible>(())
    };
    let done = inbox.once(&operation("a"), None, work).await;
    assert_eq!(done.unwrap(), Once::First(()));
    assert_eq!(place.effects("e").await, 1);
    paused.abort();
}

/// The same of a batch.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_does_nothing_is_ended() {
    let place = Place::postgres().await.ready().await;
    let inbox = place.builder().max_idle(Duration::from_secs(1)).build().unwrap();
    let began = Arc::new(Barrier::new(2));
    let paused = {
        let (inbox, began) = (inbox.clone(), began.clone());
        tokio::spawn(async move {
            let work = async |mut tx: Tx, _| {
                effect(&mut tx, "e").await;
                began.wait().await;
                std::future::pending::<Result<(), Infallible>>().await
            };
            inbox.once_all(&[operation("a"), operation("b")], None, work).await
        })
    };
    began.wait().await;
    let work = async |mut tx: Tx, _| {
        effect(&mut tx, "e").await;
        Ok::<_, Infallible>(())
    };
    let batch = [operation("b"), operation("c")];
    let done = tokio::time::timeout(Duration::from_secs(60), inbox.once_all(&batch, None, work)).await;
    assert_eq!(done.expect("it waits without a limit").unwrap(), Once::First((vec![0, 1], ())));
    assert_eq!(place.effects("e").await, 1);
    paused.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_of_one_owner_do_not_wait_for_each_other() {
    let place = Place::postgres().await.ready().await;
    let inbox = place.inbox();
    assert_eq!(done(&inbox, "first", 5).await, Ok(Once::First(())));
    let all = Arc::new(Barrier::new(4));
    let tasks: Vec<_> = (0..4)
        .map(|number| {
            let (inbox, all) = (inbox.clone(), all.clone());
            tokio::spawn(async move {
                let mut tx = inbox_tx(&inbox).await;
                inbox.claim(&mut tx, &operation(&format!("{number}")), Some(&fence(5))).await.unwrap();
                // All four hold the fence here.
                all.wait().await;
                tx.commit().await.unwrap();
            })
        })
        .collect();
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(60), task).await.expect("they wait for each other").unwrap();
    }
    async fn inbox_tx(inbox: &crate::Inbox) -> Tx {
        inbox.database().begin().await.unwrap()
    }
}

async fn the_highest_epoch_can_be_read(place: Place) {
    let inbox = place.inbox();
    assert_eq!(inbox.highest_epoch(&fence(0)).await.unwrap(), None);
    done(&inbox, "a", 1 << 62).await.unwrap();
    assert_eq!(inbox.highest_epoch(&fence(0)).await.unwrap(), Some(1 << 62));
}

async fn a_batch_of_a_former_owner_is_refused(place: Place) {
    let inbox = place.inbox();
    done(&inbox, "a", 6).await.unwrap();
    let work = async |mut tx: Tx, _| {
        effect(&mut tx, "batch").await;
        Ok::<_, Infallible>(())
    };
    let batch = [operation("b"), operation("c")];
    match inbox.once_all(&batch, Some(&fence(5)), work).await {
        Err(OnceError::Store(error)) => assert_eq!(error.kind(), ErrorKind::Fenced),
        other => panic!("{other:?}"),
    }
    assert_eq!(place.effects("batch").await, 0);
    assert_eq!(inbox.once_all(&batch, Some(&fence(6)), work).await.unwrap(), Once::First((vec![0, 1], ())));
}

async fn a_claim_of_a_former_owner_is_refused(place: Place) {
    let inbox = place.inbox();
    done(&inbox, "a", 6).await.unwrap();
    let mut tx = place.database.begin().await.unwrap();
    let refused = inbox.claim(&mut tx, &operation("b"), Some(&fence(5))).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    tx.rollback().await;
    let mut tx = place.database.begin().await.unwrap();
    assert_eq!(inbox.claim_all(&mut tx, &[operation("b")], Some(&fence(7))).await.unwrap(), [true]);
    tx.rollback().await;
    assert_eq!(done(&inbox, "c", 6).await, Ok(Once::First(())), "the later epoch was not committed");
}

async fn a_fence_that_was_deleted_is_raised_anew(place: Place) {
    let inbox = place.inbox();
    done(&inbox, "a", 6).await.unwrap();
    let mut tx = place.database.begin().await.unwrap();
    run(&mut tx, "DELETE FROM millstream_fences").await;
    tx.commit().await.unwrap();
    assert_eq!(
        done(&inbox, "b", 6).await,
        Err(ErrorKind::Unavailable),
        "it may have been raised and deleted"
    );
    assert_eq!(done(&inbox, "b", 6).await, Ok(Once::First(())));
}
