//! Mistakes of leases, locks and claims.

use std::time::Duration;

use integration_tests::chaos::mutants::Mutant;
use integration_tests::eventually;
use integration_tests::fixture::raw_connection;
use millstream_core::leases::Acquired;
use millstream_core::locks::{LockReply, LockRequest};
use millstream_core::log::Settlement;
use millstream_core::schedule::Scheduling;
use millstream_core::tasks::{ClaimRequest, ClaimedTask, Verdict};
use millstream_core::{
    Backend, Continuity, Due, LockName, OnConflict, Place, QueueSpec, Resource, ScheduleId, Shard,
};

use super::scene::{Scene, Stage, TTL};

/// The server falls back to a state before a grant, as a replica does that became the primary.
#[test]
fn two_owners_have_the_same_token_after_a_fail_over() {
    let test = "grants::two_owners_have_the_same_token_after_a_fail_over";
    Scene::new(test, Mutant::IncrEpoch).run(
        async |stage| {
            stage.append(1).await;
            let first = stage.lease(&stage.group, "first").await;
            stage.backend.leases().release(&first).await.expect("released");
            let (lease, fence) =
                (stage.keys.lease(&stage.tp, &stage.group), stage.keys.fence(&stage.tp, &stage.group));
            let saved = format!("{fence}:saved");
            let mut raw = raw_connection(&stage.url).await;
            let copy = |from: &str, to: &str| redis::cmd("COPY").arg(&[from, to, "REPLACE"]).clone();
            copy(fence.as_str(), &saved).query_async::<()>(&mut raw).await.expect("copied");

            let former = stage.lease(&stage.group, "former").await;
            copy(&saved, fence.as_str()).query_async::<()>(&mut raw).await.expect("copied");
            redis::cmd("DEL").arg(lease.as_str()).query_async::<()>(&mut raw).await.expect("deleted");
            let owner = stage.lease(&stage.group, "owner").await;
            let read = stage.read(&owner).await;
            let acked = stage.backend.log().settle(&former, &[(read[0], Settlement::Ack)]).await;
            let acked = acked.map(|settled| settled.applied).map_err(|error| error.kind());
            format!("{} {acked:?}", former.token == owner.token)
        },
        async |_, said| match said.as_deref() {
            Some("true Ok(1)") => true,
            Some("false Err(Fenced)") => false,
            other => panic!("{other:?}"),
        },
    );
}

/// Requests a lock, and returns its epoch if it is granted.
async fn lock(backend: &Backend, name: &LockName, nonce: &str) -> Option<u64> {
    let mut request = LockRequest::new(name.clone(), nonce, nonce, TTL);
    request.queued = false;
    match backend.locks().expect("locks").acquire(&request).await.expect("asked") {
        LockReply::Granted(grant) => Some(grant.epoch),
        _ => None,
    }
}

#[test]
fn the_fence_of_a_lock_repeats_after_a_fail_over() {
    Scene::new("grants::the_fence_of_a_lock_repeats_after_a_fail_over", Mutant::IncrEpoch).run(
        async |stage| {
            let name = LockName::new("invoice").expect("a name");
            let first = lock(&stage.backend, &name, "one").await.expect("granted");
            let now = async || stage.backend.schedule().now().await.expect("a time");
            let granted = now().await;
            eventually(async || now().await > granted, "a millisecond passes").await;
            let mut raw = raw_connection(&stage.url).await;
            redis::cmd("FLUSHALL").query_async::<()>(&mut raw).await.expect("flushed");
            let second = lock(&stage.backend, &name, "two").await.expect("granted");
            format!("{}", second > first)
        },
        async |_, said| said.expect("it lives") == "false",
    );
}

#[test]
fn a_late_renewal_gives_a_released_lease_back() {
    Scene::new("grants::a_late_renewal_gives_a_released_lease_back", Mutant::RenewAfterRelease).run(
        async |stage| {
            let lease = stage.lease(&stage.group, "owner").await;
            stage.backend.leases().release(&lease).await.expect("released");
            let held = stage.backend.leases().holder(&lease.resource).await.expect("asked").is_some();
            let renewed = stage.backend.leases().renew(std::slice::from_ref(&lease)).await;
            format!("held {held}, renewed {}", renewed[0].is_ok())
        },
        async |stage, said| {
            let resource = Resource::partition(stage.tp.clone(), stage.group.clone());
            let owned = stage.backend.leases().holder(&resource).await.expect("asked").is_some();
            match (owned, said.as_deref()) {
                (true, Some("held true, renewed true")) => true,
                (false, Some("held false, renewed false")) => false,
                other => panic!("{other:?}"),
            }
        },
    );
}

#[test]
fn a_late_renewal_gives_a_released_lock_back() {
    Scene::new("grants::a_late_renewal_gives_a_released_lock_back", Mutant::RenewAfterRelease).run(
        async |stage| {
            let name = LockName::new("invoice").expect("a name");
            lock(&stage.backend, &name, "one").await.expect("granted");
            stage.backend.locks().expect("locks").release(&name, "one").await.expect("released");
            format!("{}", lock(&stage.backend, &name, "two").await.is_some())
        },
        async |_, said| said.expect("it lives") == "false",
    );
}

#[test]
fn a_late_release_ends_the_grant_of_another_holder() {
    let test = "grants::a_late_release_ends_the_grant_of_another_holder";
    Scene::new(test, Mutant::UncheckedLockRelease).run(
        async |stage| {
            let name = LockName::new("invoice").expect("a name");
            let locks = stage.backend.locks().expect("locks");
            lock(&stage.backend, &name, "one").await.expect("granted");
            locks.release(&name, "one").await.expect("released");
            lock(&stage.backend, &name, "two").await.expect("granted");
            locks.release(&name, "one").await.expect("asked");
            format!("{}", lock(&stage.backend, &name, "three").await.is_some())
        },
        async |_, said| said.expect("it lives") == "true",
    );
}

/// The product grants it to a client that was answered for a ttl: others may have been unable to renew it.
#[test]
fn a_lease_that_ran_out_is_granted_at_once() {
    Scene::new("grants::a_lease_that_ran_out_is_granted_at_once", Mutant::TakeoverAtOnce).run(
        async |stage| {
            let resource = Resource::partition(stage.tp.clone(), stage.group.clone());
            let leases = stage.backend.leases();
            let short = Duration::from_millis(20);
            leases.acquire(&resource, "owner", "one", short, &Continuity::assured()).await.expect("asked");
            eventually(async || leases.holder(&resource).await.expect("asked").is_none(), "it runs out")
                .await;
            let asked = leases.acquire(&resource, "other", "two", TTL, &Continuity::new(TTL)).await;
            format!("{}", matches!(asked, Ok(Acquired::Granted(_))))
        },
        async |_, said| said.expect("it lives") == "true",
    );
}

/// Claims the tasks of a shard for a worker, for a time that has passed when the next one asks.
async fn claim(stage: &Stage, shard: &Shard, worker: &str) -> Vec<ClaimedTask> {
    let request = ClaimRequest {
        worker: worker.to_owned(),
        limit: 10,
        hold: Duration::from_millis(1),
        crash_limit: 0,
        longest_sleep: Duration::from_secs(1),
        continuity: Continuity::assured(),
    };
    stage.backend.tasks().expect("delay queues").claim(shard, &request).await.expect("claimed").tasks
}

#[test]
fn a_worker_completes_a_task_that_another_one_has() {
    Scene::new("grants::a_worker_completes_a_task_that_another_one_has", Mutant::UnfencedTask).run(
        async |stage| {
            let tasks = stage.backend.tasks().expect("delay queues");
            let spec = QueueSpec::new("mails".parse().expect("a name"), 1);
            let shard = tasks.create_queue(&spec).await.expect("created").iter().next().expect("a shard");
            let scheduling = Scheduling {
                place: Place::from(shard.clone()),
                id: ScheduleId::new("task").expect("an id"),
                due: Due::NOW,
                fields: super::scene::entry(&stage.tp, "body").fields,
                on_conflict: OnConflict::Keep,
            };
            stage.backend.schedule().schedule(&[scheduling]).await.remove(0).expect("scheduled");
            let mut claims = Vec::new();
            for worker in ["former", "owner"] {
                eventually(
                    async || {
                        claims.extend(claim(&stage, &shard, worker).await);
                        claims.last().is_some_and(|task: &ClaimedTask| task.token.starts_with(worker))
                    },
                    "claimed",
                )
                .await;
            }
            let (id, token) = (claims[0].id.clone(), claims[0].token.clone());
            let extended = tasks.extend(&shard, &[(id.clone(), token.clone())], TTL, true).await;
            let extended = extended.expect("asked").ours;
            let settled = tasks.settle_tasks(&shard, &[(id, token, Verdict::Complete)]).await.expect("asked");
            format!("{extended:?} {}", settled.applied)
        },
        async |_, said| match said.as_deref() {
            Some("[true] 1") => true,
            Some("[false] 0") => false,
            other => panic!("{other:?}"),
        },
    );
}
