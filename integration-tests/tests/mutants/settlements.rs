//! Mistakes of settling.

use integration_tests::chaos::mutants::Mutant;
use millstream_core::log::{Receipt, Settlement};
use millstream_core::{Due, History, Lease, Reason};

use super::scene::{Scene, Stage};

/// A retry that is due at once.
pub(crate) fn retry(receipt: Receipt) -> (Receipt, Settlement) {
    let (error, history) = ("boom".to_owned(), History::default());
    (receipt, Settlement::Retry { due: Due::NOW, attempt: 2, origin: receipt.id, error, history, wait: None })
}

fn dead(receipt: Receipt) -> (Receipt, Settlement) {
    let (error, history) = ("boom".to_owned(), History::default());
    let reason = Reason::parse("rejected");
    (
        receipt,
        Settlement::DeadLetter { reason, attempts: 1, origin: receipt.id, error, history, result: None },
    )
}

/// The effect of a settlement, in words.
async fn settled(stage: &Stage, lease: &Lease, batch: &[(Receipt, Settlement)]) -> String {
    match stage.backend.log().settle(lease, batch).await {
        Ok(settled) => format!("{} applied, {} stale", settled.applied, settled.stale),
        Err(error) => format!("{:?}", error.kind()),
    }
}

async fn fails_once(stage: Stage) -> String {
    stage.append(1).await;
    let lease = stage.lease(&stage.group, "owner").await;
    let read = stage.read(&lease).await;
    settled(&stage, &lease, &[retry(read[0])]).await
}

#[test]
fn a_message_is_lost_if_the_process_dies_between_its_ack_and_its_retry() {
    let test = "settlements::a_message_is_lost_if_the_process_dies_between_its_ack_and_its_retry";
    Scene::new(test, Mutant::AckBeforeRetry).dying().run(fails_once, async |stage, said| {
        let (_, pending, retrying, _) = stage.counts().await;
        assert_eq!(said.as_deref(), if pending + retrying == 0 { None } else { Some("1 applied, 0 stale") });
        pending + retrying == 0
    });
}

/// So that the loss above is that of the death, and of nothing else.
#[test]
fn two_steps_store_the_retry_if_the_process_lives() {
    let test = "settlements::two_steps_store_the_retry_if_the_process_lives";
    let scene = Scene::new(test, Mutant::AckBeforeRetry);
    let stored = async |stage: Stage, said: Option<String>| {
        said.as_deref() == Some("1 applied, 0 stale") && stage.counts().await == (1, 0, 1, 0)
    };
    if let Some((said, is_stored)) = scene.run_once(Some(scene.mutant), &fails_once, &stored) {
        assert!(is_stored, "{said:?}");
    }
}

#[test]
fn a_former_owner_settles() {
    let scene = Scene::new("settlements::a_former_owner_settles", Mutant::UnfencedSettlement);
    scene.run(
        async |stage| {
            stage.append(3).await;
            let former = stage.lease(&stage.group, "former").await;
            let read = stage.read(&former).await;
            stage.backend.leases().release(&former).await.expect("released");
            let owner = stage.lease(&stage.group, "owner").await;
            assert_eq!(stage.read(&owner).await, read);
            let mut said = Vec::new();
            for settlement in [(read[0], Settlement::Ack), retry(read[1]), dead(read[2])] {
                said.push(settled(&stage, &former, &[settlement]).await);
            }
            said.join(", ")
        },
        async |stage, said| {
            let (_, pending, retrying, dead) = stage.counts().await;
            match (pending, retrying, dead) {
                (0, 1, 1) => true,
                (3, 0, 0) => {
                    assert_eq!(said.as_deref(), Some("Fenced, Fenced, Fenced"));
                    false
                }
                other => panic!("{other:?}"),
            }
        },
    );
}

/// The key of the dead letters has the wrong type, and then the server is out of memory.
#[test]
fn a_dead_letter_that_cannot_be_stored_is_lost() {
    let test = "settlements::a_dead_letter_that_cannot_be_stored_is_lost";
    Scene::new(test, Mutant::DeadLetterSwallowed).run(
        async |stage| {
            stage.append(2).await;
            let lease = stage.lease(&stage.group, "owner").await;
            let read = stage.read(&lease).await;
            let key = stage.keys.dead_letters(&stage.tp, &stage.group);
            let mut raw = integration_tests::fixture::raw_connection(&stage.url).await;
            let set = redis::cmd("SET").arg(key.as_str()).arg("x").query_async::<()>(&mut raw).await;
            set.expect("set");
            let first = settled(&stage, &lease, &[dead(read[0])]).await;
            redis::cmd("DEL").arg(key.as_str()).query_async::<()>(&mut raw).await.expect("deleted");
            let full = async |limit: &str, raw: &mut redis::aio::MultiplexedConnection| {
                let mut cmd = redis::cmd("CONFIG");
                cmd.arg("SET").arg("maxmemory").arg(limit).query_async::<()>(raw).await.expect("set");
            };
            full("1", &mut raw).await;
            let second = settled(&stage, &lease, &[dead(read[1])]).await;
            full("0", &mut raw).await;
            format!("{first}; {second}")
        },
        async |stage, said| {
            let (_, pending, _, dead) = stage.counts().await;
            match (pending, dead) {
                (0, 0) => true,
                (1, 1) => false,
                other => panic!("{other:?} {said:?}"),
            }
        },
    );
}

#[test]
fn an_ack_acks_everything_below() {
    Scene::new("settlements::an_ack_acks_everything_below", Mutant::AckBelow).run(
        async |stage| {
            stage.append(3).await;
            let lease = stage.lease(&stage.group, "owner").await;
            let read = stage.read(&lease).await;
            settled(&stage, &lease, &[(read[2], Settlement::Ack)]).await
        },
        async |stage, said| {
            assert_eq!(said.as_deref(), Some("1 applied, 0 stale"));
            match stage.counts().await.1 {
                0 => true,
                2 => false,
                other => panic!("{other} are pending"),
            }
        },
    );
}

/// The product's retry belongs to its group.
#[test]
fn a_retry_comes_to_other_groups() {
    Scene::new("settlements::a_retry_comes_to_other_groups", Mutant::RetryToSharedLog).run(
        async |stage| {
            let other = "b".parse().expect("a name");
            let spec = &stage.topic;
            let start = millstream::Start::Earliest;
            stage.backend.catalog().create_group(spec, &other, start).await.expect("created");
            stage.append(1).await;
            let lease = stage.lease(&stage.group, "owner").await;
            let read = stage.read(&lease).await;
            settled(&stage, &lease, &[retry(read[0])]).await;
            // It is due in the millisecond of the settlement, or in the next one.
            let mut moved = 0;
            let promoted = async || {
                moved = stage.backend.schedule().promote(&lease, 100).await.expect("promoted").moved;
                moved > 0
            };
            integration_tests::eventually(promoted, "the retry is due").await;
            let again = stage.read(&lease).await.len();
            let others = stage.lease(&other, "other").await;
            format!("{moved} moved, {again} again, {} for the other group", stage.read(&others).await.len())
        },
        async |_, said| match said.as_deref() {
            Some("1 moved, 1 again, 2 for the other group") => true,
            Some("1 moved, 1 again, 1 for the other group") => false,
            other => panic!("{other:?}"),
        },
    );
}
