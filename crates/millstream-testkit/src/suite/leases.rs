//! The leases role: one owner at a time, and epochs that grow.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_core::leases::{Acquired, Lease, MAX_ENDS, Resource};
use millstream_core::{Continuity, ErrorKind, GroupName, Retention, Settlement};
use tokio::time::Instant;

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::continuity::{answered, not_whole};
use crate::harness::{BRIEF, Harness, LONG};

suite!("leases":
    a_resource_is_granted_to_one,
    of_many_at_once_one_is_granted,
    the_same_nonce_is_given_the_same_lease,
    the_holder_is_told_as_long_as_there_is_one,
    a_renewed_lease_outlives_its_ttl,
    a_lease_that_ran_out_goes_to_the_next,
    a_lease_that_ran_out_untaken_is_revived,
    renewing_after_a_takeover_is_fenced,
    renewing_many_answers_each,
    a_released_resource_is_free_at_once,
    a_released_token_is_good_for_nothing,
    releasing_after_a_takeover_is_fenced_and_harmless,
    epochs_grow_with_every_grant,
    resources_are_independent,
    a_lease_that_was_given_back_counts_no_end,
    a_lease_that_was_never_given_back_counts_an_end needs [Ends],
    no_more_than_so_many_ends_are_remembered needs [Ends],
    an_owner_that_returns_withdraws_its_end needs [Ends],
    who_was_not_answered_without_a_gap_takes_nothing_over,
    a_record_that_is_whole_but_for_one_thing_takes_nothing_over,
);

async fn resource(h: &Harness) -> Result<Resource, Violation> {
    Ok(Resource::partition(h.partition().await?, GroupName::new("group")?))
}

async fn a_resource_is_granted_to_one(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let acquired = h
        .backend
        .leases()
        .acquire(&resource, "ann", &h.unique("nonce"), LONG, &Continuity::assured())
        .await?;
    let Acquired::Granted(lease) = acquired else {
        return Err(Violation::new(format!("a free resource was not granted: {acquired:?}")));
    };
    equal!(lease.resource, resource, "the resource of the lease");
    equal!(lease.ttl, LONG, "the ttl of the lease");
    match h
        .backend
        .leases()
        .acquire(&resource, "bob", &h.unique("nonce"), LONG, &Continuity::assured())
        .await?
    {
        Acquired::Granted(second) => Err(Violation::new(format!("granted twice: {lease:?} and {second:?}"))),
        Acquired::Held(holder) => {
            equal!((holder.owner.as_str(), holder.epoch), ("ann", lease.epoch), "who is said to hold it");
            let left = holder.expires_in;
            ensure!(left > LONG / 2 && left <= LONG, "expires in {left:?}, granted for {LONG:?} just now");
            Ok(())
        }
    }
}

async fn of_many_at_once_one_is_granted(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let askers: Vec<_> = (0..16)
        .map(|_| {
            let (h, resource) = (h.clone(), resource.clone());
            tokio::spawn(async move { h.acquire(&resource, LONG).await })
        })
        .collect();
    let mut granted = Vec::new();
    for asker in askers {
        if let Acquired::Granted(lease) = asker.await.map_err(|error| Violation::new(error.to_string()))?? {
            granted.push(lease);
        }
    }
    equal!(granted.len(), 1, "grants to 16 askers at once");
    Ok(())
}

async fn the_same_nonce_is_given_the_same_lease(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let nonce = h.unique("nonce");
    let first = h.backend.leases().acquire(&resource, "ann", &nonce, LONG, &Continuity::assured()).await?;
    ensure!(matches!(first, Acquired::Granted(_)), "a free resource was not granted: {first:?}");
    for _ in 0..3 {
        let again =
            h.backend.leases().acquire(&resource, "ann", &nonce, LONG, &Continuity::assured()).await?;
        equal!(again, first, "the answer to the same request, sent again");
    }
    if let Acquired::Granted(lease) = first {
        h.backend.leases().release(&lease).await?;
    }
    Ok(())
}

async fn the_holder_is_told_as_long_as_there_is_one(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    equal!(h.backend.leases().holder(&resource).await?, None, "the holder of what was never granted");
    let lease = h.granted(&resource, LONG).await?;
    let holder = h.backend.leases().holder(&resource).await?;
    let Some(holder) = holder else {
        return Err(Violation::new("the reply names no holder of what was granted"));
    };
    equal!((holder.owner.as_str(), holder.epoch), ("testkit", lease.epoch), "the holder");
    let left = holder.expires_in;
    ensure!(left > LONG / 2 && left <= LONG, "expires in {left:?}, granted for {LONG:?} just now");
    h.backend.leases().release(&lease).await?;
    equal!(h.backend.leases().holder(&resource).await?, None, "the holder after the release");
    Ok(())
}

async fn a_renewed_lease_outlives_its_ttl(h: Harness) -> Verdict {
    let ttl = Duration::from_secs(1);
    let resource = resource(&h).await?;
    let lease = h.granted(&resource, ttl).await?;
    let started = Instant::now();
    // After twice the ttl, only the renewals keep the lease.
    while started.elapsed() < ttl * 5 / 2 {
        h.renew(&lease).await??;
        let asked = h.acquire(&resource, ttl).await?;
        ensure!(matches!(asked, Acquired::Held(_)), "granted to another right after a renewal: {asked:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn a_lease_that_ran_out_goes_to_the_next(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let started = Instant::now();
    let lease = h.granted(&resource, BRIEF).await?;
    let next = h.eventually_granted(&resource, LONG).await?;
    let took = started.elapsed();
    ensure!(took >= BRIEF - Duration::from_millis(5), "granted to the next after {took:?} of {BRIEF:?}");
    ensure!(next.epoch > lease.epoch, "epoch {} after epoch {}", next.epoch, lease.epoch);
    ensure!(next.token != lease.token, "the same token twice: {}", lease.token);
    Ok(())
}

async fn a_lease_that_ran_out_untaken_is_revived(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let lease = h.granted(&resource, BRIEF).await?;
    let mut deadline = h.wait_for("the lease to run out");
    while h.backend.leases().holder(&resource).await?.is_some() {
        deadline.pause().await?;
    }
    h.renew(&lease).await??;
    let asked = h.acquire(&resource, BRIEF).await?;
    ensure!(matches!(asked, Acquired::Held(_)), "granted to another after it was revived: {asked:?}");
    Ok(())
}

async fn renewing_after_a_takeover_is_fenced(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let lease = h.granted(&resource, BRIEF).await?;
    let next = h.eventually_granted(&resource, LONG).await?;
    refused(h.renew(&lease).await?, ErrorKind::Fenced, "a renewal after the takeover")?;
    let holder = h.backend.leases().holder(&resource).await?;
    equal!(holder.map(|holder| holder.epoch), Some(next.epoch), "who holds it");
    Ok(())
}

async fn renewing_many_answers_each(h: Harness) -> Verdict {
    let mut leases = Vec::new();
    for _ in 0..5 {
        leases.push(h.granted(&resource(&h).await?, LONG).await?);
    }
    for lost in [1, 3] {
        h.backend.leases().release(&leases[lost]).await?;
        h.granted(&leases[lost].resource, LONG).await?;
    }
    let results = h.backend.leases().renew(&leases).await;
    let kinds: Vec<_> =
        results.iter().map(|result| result.as_ref().err().map(millstream_core::Error::kind)).collect();
    let fenced = Some(ErrorKind::Fenced);
    equal!(kinds, [None, fenced, None, fenced, None], "answers, in the order of the leases");
    equal!(h.backend.leases().renew(&[]).await.len(), 0, "answers to nothing");
    Ok(())
}

async fn a_released_resource_is_free_at_once(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let lease = h.granted(&resource, LONG).await?;
    h.backend.leases().release(&lease).await?;
    let next = h.granted(&resource, LONG).await?;
    ensure!(next.epoch > lease.epoch, "epoch {} after epoch {}", next.epoch, lease.epoch);
    refused(h.renew(&lease).await?, ErrorKind::Fenced, "a renewal after the release")
}

/// Also while the resource has no new owner.
async fn a_released_token_is_good_for_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 2).await?;
    let entries = owner.take(1).await?;
    h.backend.leases().release(&owner.lease).await?;
    let fenced = ErrorKind::Fenced;
    let batch = [(entries[0].receipt, Settlement::Ack)];
    refused(owner.reader.fetch(1, Duration::ZERO).await, fenced, "a fetch after the release")?;
    refused(h.backend.log().settle(&owner.lease, &batch).await, fenced, "a settlement after the release")?;
    refused(
        h.backend.log().trim(&owner.lease, Retention::Consumed).await,
        fenced,
        "a trim after the release",
    )?;
    refused(h.backend.schedule().promote(&owner.lease, 1).await, fenced, "a promotion after the release")?;
    refused(h.renew(&owner.lease).await?, fenced, "a renewal after the release")
}

async fn releasing_after_a_takeover_is_fenced_and_harmless(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let lease = h.granted(&resource, BRIEF).await?;
    let next = h.eventually_granted(&resource, LONG).await?;
    refused(h.backend.leases().release(&lease).await, ErrorKind::Fenced, "a release after the takeover")?;
    let holder = h.backend.leases().holder(&resource).await?;
    equal!(holder.map(|holder| holder.epoch), Some(next.epoch), "who holds it after the other's release");
    h.renew(&next).await??;
    Ok(())
}

async fn epochs_grow_with_every_grant(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let mut epochs = Vec::new();
    let mut tokens = BTreeSet::new();
    for _ in 0..20 {
        let lease = h.granted(&resource, LONG).await?;
        h.backend.leases().release(&lease).await?;
        epochs.push(lease.epoch);
        tokens.insert(lease.token.to_string());
    }
    ensure!(epochs.is_sorted_by(|a, b| a < b), "epochs do not grow: {epochs:?}");
    equal!(tokens.len(), 20, "different tokens");
    Ok(())
}

async fn resources_are_independent(h: Harness) -> Verdict {
    let topic = h.topic(2).await?;
    let mut leases = Vec::new();
    for tp in topic.iter() {
        for group in ["first", "second"] {
            let resource = Resource::partition(tp.clone(), GroupName::new(group)?);
            leases.push(h.granted(&resource, LONG).await?);
        }
    }
    h.backend.leases().release(&leases[0]).await?;
    for lease in &leases[1..] {
        let holder = h.backend.leases().holder(&lease.resource).await?;
        equal!(holder.map(|holder| holder.epoch), Some(lease.epoch), "the holder of {}", lease.resource);
    }
    Ok(())
}

async fn a_lease_that_was_given_back_counts_no_end(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    for _ in 0..3 {
        let lease = h.granted(&resource, LONG).await?;
        equal!(lease.ends, Vec::<u64>::new(), "ends of owners that gave it back");
        h.renew(&lease).await??;
        h.backend.leases().release(&lease).await?;
    }
    Ok(())
}

/// Acquires a lease for a short time and lets it expire.
async fn ended(h: &Harness, resource: &Resource) -> Result<Lease, Violation> {
    let lease = h.granted(resource, BRIEF).await?;
    let mut deadline = h.wait_for("the lease to run out");
    while h.backend.leases().holder(resource).await?.is_some() {
        deadline.pause().await?;
    }
    Ok(lease)
}

async fn a_lease_that_was_never_given_back_counts_an_end(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let mut ends = Vec::new();
    for _ in 0..3 {
        let lease = ended(&h, &resource).await?;
        equal!(lease.ends, ends, "the ends before");
        ends.push(lease.epoch);
    }
    // The same request returns the same ends.
    let nonce = h.unique("nonce");
    let mut last = None;
    for time in 0..3 {
        match h.backend.leases().acquire(&resource, "testkit", &nonce, LONG, &Continuity::assured()).await? {
            Acquired::Granted(lease) => {
                equal!(lease.ends, ends, "the ends, asked for {time} times before");
                last = Some(lease);
            }
            held @ Acquired::Held(_) => return Err(Violation::new(format!("not granted: {held:?}"))),
        }
    }
    // An owner that has not found the cause of the ends passes them on to the next owner; one that has does not.
    if let Some(lease) = last {
        h.backend.leases().release(&lease).await?;
    }
    let lease = h.granted(&resource, LONG).await?;
    equal!(lease.ends, ends, "the ends, after an owner that has not found out");
    h.backend.leases().release(&lease.after_ends(Vec::new())).await?;
    equal!(
        h.granted(&resource, LONG).await?.ends,
        Vec::<u64>::new(),
        "the ends, after an owner that has found out"
    );
    Ok(())
}

async fn no_more_than_so_many_ends_are_remembered(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let lease = h.granted(&resource, LONG).await?;
    h.backend.leases().release(&lease.after_ends((1..=MAX_ENDS as u64).collect())).await?;
    let lease = ended(&h, &resource).await?;
    equal!(lease.ends.len(), MAX_ENDS, "ends");
    let next = h.granted(&resource, LONG).await?;
    let newest: Vec<u64> = (2..=MAX_ENDS as u64).chain([lease.epoch]).collect();
    equal!(next.ends, newest, "the newest ends");
    Ok(())
}

async fn an_owner_that_returns_withdraws_its_end(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let dead = ended(&h, &resource).await?;
    let returning = ended(&h, &resource).await?;
    let next = h.granted(&resource, LONG).await?;
    equal!(next.ends, [dead.epoch, returning.epoch], "the ends");
    for _ in 0..2 {
        h.backend.leases().withdraw_end(&returning).await?;
    }
    // Neither the owner's lease nor the other end changes.
    h.renew(&next).await??;
    h.backend.leases().withdraw_end(&next).await?;
    h.backend.leases().release(&next.clone().after_ends(vec![dead.epoch])).await?;
    let next = ended(&h, &resource).await?;
    equal!(next.ends, [dead.epoch], "the ends that were handed on");
    let last = h.granted(&resource, LONG).await?;
    h.backend.leases().withdraw_end(&dead).await?;
    let again = Continuity::assured();
    let nonce = last.token.as_str().split_once(':').map(|(_, nonce)| nonce.to_owned()).unwrap_or_default();
    match h.backend.leases().acquire(&resource, "testkit", &nonce, LONG, &again).await? {
        Acquired::Granted(lease) => equal!(lease.ends, [next.epoch], "the ends after one was withdrawn"),
        held @ Acquired::Held(_) => return Err(Violation::new(format!("not granted: {held:?}"))),
    }
    Ok(())
}

async fn who_was_not_answered_without_a_gap_takes_nothing_over(h: Harness) -> Verdict {
    let resource = resource(&h).await?;
    let brief = Continuity::new(BRIEF);
    // A free resource is granted to any caller.
    let first = match h.backend.leases().acquire(&resource, "ann", &h.unique("nonce"), BRIEF, &brief).await? {
        Acquired::Granted(lease) => lease,
        held @ Acquired::Held(_) => return Err(Violation::new(format!("not granted: {held:?}"))),
    };
    let mut deadline = h.wait_for("the lease to run out");
    while h.backend.leases().holder(&resource).await?.is_some() {
        deadline.pause().await?;
    }
    let asked = h.backend.leases().acquire(&resource, "bob", &h.unique("nonce"), LONG, &brief).await?;
    let Acquired::Held(holder) = asked else {
        return Err(Violation::new(format!("taken from an owner that may come back: {asked:?}")));
    };
    equal!((holder.owner.as_str(), holder.epoch), ("ann", first.epoch), "who is said to hold it");
    equal!(holder.expires_in, BRIEF, "how long until the asker may take it, if it is answered from now on");
    // The lease is revived as if there had been no request; the same request is granted again; and a released lease
    // is free.
    h.renew(&first).await??;
    h.backend.leases().release(&first).await?;
    let asked = h.backend.leases().acquire(&resource, "bob", &h.unique("nonce"), LONG, &brief).await?;
    ensure!(matches!(asked, Acquired::Granted(_)), "given back, and not granted: {asked:?}");
    Ok(())
}

async fn a_record_that_is_whole_but_for_one_thing_takes_nothing_over(h: Harness) -> Verdict {
    let (resource, server) = (resource(&h).await?, h.server().await?);
    ended(&h, &resource).await?;
    let ask = async |continuity: &Continuity| {
        h.backend.leases().acquire(&resource, "bob", &h.unique("nonce"), LONG, continuity).await
    };
    for (continuity, why) in not_whole(&server, h.now().await?, BRIEF) {
        let asked = ask(&continuity).await?;
        ensure!(matches!(asked, Acquired::Held(_)), "taken over {why}: {asked:?}");
    }
    // The same record without a fault. A slow machine may need more than one attempt before it becomes old.
    let mut deadline = h.wait_for("a lease to be granted to who was answered for a ttl");
    while let Acquired::Held(_) = ask(&answered(&server, h.now().await?, BRIEF, BRIEF * 3)).await? {
        deadline.pause().await?;
    }
    Ok(())
}
