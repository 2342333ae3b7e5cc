//! The locks role: one holder at a time, epochs that grow, and a fair queue.

pub(super) mod operators;

use std::time::Duration;

use millstream_core::locks::{
    LockChange, LockGrant, LockRelease, LockReply, LockRequest, LockRevision, LockWait, MAX_FENCE, PLACE_TTL,
};
use millstream_core::{Continuity, ErrorKind, LockName};
use tokio::time::Instant;

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::continuity::{answered, not_whole};
use crate::harness::{BRIEF, Harness, LONG, QUIET};

suite!("locks":
    a_lock_is_granted_to_one,
    of_many_at_once_one_is_granted,
    the_same_nonce_is_granted_the_same,
    locks_are_independent,
    epochs_grow_with_every_grant,
    an_epoch_is_above_what_the_store_has_seen,
    a_fence_that_cannot_be_counted_is_refused,
    a_renewed_lock_outlives_its_ttl,
    renewing_after_a_release_is_fenced,
    renewing_after_a_takeover_is_fenced,
    the_holder_is_told_as_long_as_there_is_one,
    a_released_lock_is_free_at_once,
    a_release_by_another_has_no_effect,
    clients_are_granted_the_lock_in_the_order_of_arrival,
    the_first_in_the_queue_is_called,
    who_leaves_the_queue_is_not_waited_for,
    a_client_that_ended_costs_less_than_a_second,
    who_lost_its_place_is_given_it_back,
    who_does_not_queue_has_no_place_and_passes_nobody,
    an_announced_grant_is_noticed,
    a_server_that_is_too_young_grants_nothing,
    who_was_not_answered_without_a_gap_takes_nothing_over,
    a_record_that_is_whole_but_for_one_thing_takes_nothing_over,
);

/// Returns a request for a new lock, under a new nonce, of a client that may judge.
fn request(h: &Harness, ttl: Duration) -> Result<LockRequest, Violation> {
    another(h, &LockName::new(h.unique("lock:a"))?, ttl)
}

fn another(h: &Harness, name: &LockName, ttl: Duration) -> Result<LockRequest, Violation> {
    let mut request = LockRequest::new(name.clone(), "testkit", h.unique("nonce"), ttl);
    request.continuity = Continuity::assured();
    Ok(request)
}

async fn granted(h: &Harness, request: &LockRequest) -> Result<LockGrant, Violation> {
    match h.backend.locks()?.acquire(request).await? {
        LockReply::Granted(grant) => Ok(grant),
        other => Err(Violation::new(format!("{} is not granted: {other:?}", request.name))),
    }
}

async fn waits(h: &Harness, request: &LockRequest) -> Result<LockWait, Violation> {
    match h.backend.locks()?.acquire(request).await? {
        LockReply::Wait(wait) => Ok(wait),
        other => Err(Violation::new(format!("{} is granted to another: {other:?}", request.name))),
    }
}

async fn release(h: &Harness, request: &LockRequest) -> Result<LockRelease, Violation> {
    Ok(h.backend.locks()?.release(&request.name, &request.nonce).await?)
}

async fn a_lock_is_granted_to_one(h: Harness) -> Verdict {
    let first = request(&h, LONG)?;
    let grant = granted(&h, &first).await?;
    equal!((&grant.name, &grant.nonce, grant.ttl), (&first.name, &first.nonce, LONG), "the grant");
    let wait = waits(&h, &another(&h, &first.name, LONG)?).await?;
    let Some(holder) = wait.holder else { return Err(Violation::new("the reply names no holder")) };
    equal!((holder.owner.as_str(), holder.epoch), ("testkit", grant.epoch), "who is said to hold it");
    let left = holder.expires_in;
    ensure!(left > LONG / 2 && left <= LONG, "expires in {left:?}, granted for {LONG:?} just now");
    equal!(wait.ahead, 0, "clients ahead of the only one");
    Ok(())
}

async fn of_many_at_once_one_is_granted(h: Harness) -> Verdict {
    let name = request(&h, LONG)?.name;
    let mut asking = Vec::new();
    for _ in 0..16 {
        let (h, request) = (h.clone(), another(&h, &name, LONG)?);
        asking.push(tokio::spawn(async move { h.backend.locks()?.acquire(&request).await }));
    }
    let mut granted = 0;
    for asked in asking {
        let reply = asked.await.map_err(|error| Violation::new(error.to_string()))??;
        granted += usize::from(matches!(reply, LockReply::Granted(_)));
    }
    equal!(granted, 1, "grants to 16 clients at once");
    Ok(())
}

async fn the_same_nonce_is_granted_the_same(h: Harness) -> Verdict {
    let request = request(&h, LONG)?;
    let first = granted(&h, &request).await?;
    for _ in 0..3 {
        equal!(granted(&h, &request).await?, first, "the answer to the same request, sent again");
    }
    equal!(release(&h, &request).await?, LockRelease::Released, "the release");
    equal!(h.backend.locks()?.holder(&request.name).await?, None, "the holder afterwards");
    Ok(())
}

async fn locks_are_independent(h: Harness) -> Verdict {
    let names = ["invoice:1", "invoice:2", "a/b@c+d=e,f#g"].map(|name| h.unique(name));
    for name in names {
        granted(&h, &another(&h, &LockName::new(name)?, LONG)?).await?;
    }
    Ok(())
}

async fn epochs_grow_with_every_grant(h: Harness) -> Verdict {
    let name = request(&h, LONG)?.name;
    let mut last = 0;
    for n in 0..20 {
        // Each second one expires, and is taken over.
        let ttl = if n % 4 == 3 { Duration::from_millis(1) } else { LONG };
        let request = another(&h, &name, ttl)?;
        let mut deadline = h.wait_for("a lock that expired");
        let grant = loop {
            match h.backend.locks()?.acquire(&request).await? {
                LockReply::Granted(grant) => break grant,
                _ => deadline.pause().await?,
            }
        };
        ensure!(grant.epoch > last, "epoch {} after epoch {last}", grant.epoch);
        last = grant.epoch;
        if ttl == LONG {
            release(&h, &request).await?;
        }
    }
    Ok(())
}

async fn an_epoch_is_above_what_the_store_has_seen(h: Harness) -> Verdict {
    let far = h.now().await?.as_millis() + 3_600_000;
    let mut first = request(&h, LONG)?;
    first.fence_above = far;
    let grant = granted(&h, &first).await?;
    equal!(grant.epoch, far + 1, "the epoch above a store that is an hour ahead");
    release(&h, &first).await?;
    let next = granted(&h, &another(&h, &first.name, LONG)?).await?;
    ensure!(next.epoch > grant.epoch, "epoch {} after epoch {}", next.epoch, grant.epoch);
    Ok(())
}

async fn a_fence_that_cannot_be_counted_is_refused(h: Harness) -> Verdict {
    let mut request = request(&h, LONG)?;
    request.fence_above = MAX_FENCE + 1;
    refused(h.backend.locks()?.acquire(&request).await, ErrorKind::InvalidConfig, "a fence above 2^52")?;
    equal!(h.backend.locks()?.holder(&request.name).await?, None, "the holder afterwards");
    Ok(())
}

async fn a_renewed_lock_outlives_its_ttl(h: Harness) -> Verdict {
    let ttl = Duration::from_secs(1);
    let held = request(&h, ttl)?;
    let grant = granted(&h, &held).await?;
    let other = another(&h, &held.name, ttl)?;
    let started = Instant::now();
    // After twice the ttl, only the renewals keep the lock.
    while started.elapsed() < ttl * 5 / 2 {
        h.backend.locks()?.renew(&grant).await?;
        waits(&h, &other).await?;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

async fn renewing_after_a_release_is_fenced(h: Harness) -> Verdict {
    let request = request(&h, LONG)?;
    let grant = granted(&h, &request).await?;
    release(&h, &request).await?;
    refused(h.backend.locks()?.renew(&grant).await, ErrorKind::Fenced, "a renewal after the release")?;
    equal!(h.backend.locks()?.holder(&request.name).await?, None, "the holder after that");
    Ok(())
}

/// Waits until nobody holds the lock any more.
async fn expired(h: &Harness, name: &LockName) -> Verdict {
    let mut deadline = h.wait_for("the lock to expire");
    while h.backend.locks()?.holder(name).await?.is_some() {
        deadline.pause().await?;
    }
    Ok(())
}

async fn renewing_after_a_takeover_is_fenced(h: Harness) -> Verdict {
    let held = request(&h, BRIEF)?;
    let grant = granted(&h, &held).await?;
    expired(&h, &held.name).await?;
    // Until it is taken over, the silence has harmed nobody.
    h.backend.locks()?.renew(&grant).await?;
    expired(&h, &held.name).await?;
    let next = granted(&h, &another(&h, &held.name, LONG)?).await?;
    refused(h.backend.locks()?.renew(&grant).await, ErrorKind::Fenced, "a renewal after the takeover")?;
    h.backend.locks()?.renew(&next).await?;
    Ok(())
}

async fn the_holder_is_told_as_long_as_there_is_one(h: Harness) -> Verdict {
    let request = request(&h, LONG)?;
    let holder = async || h.backend.locks()?.holder(&request.name).await;
    equal!(holder().await?, None, "the holder of what was never granted");
    let grant = granted(&h, &request).await?;
    let Some(told) = holder().await? else { return Err(Violation::new("the reply names no holder")) };
    equal!((told.owner.as_str(), told.epoch), ("testkit", grant.epoch), "the holder");
    ensure!(told.expires_in > LONG / 2 && told.expires_in <= LONG, "expires in {:?}", told.expires_in);
    release(&h, &request).await?;
    equal!(holder().await?, None, "the holder after the release");
    Ok(())
}

async fn a_released_lock_is_free_at_once(h: Harness) -> Verdict {
    let first = request(&h, LONG)?;
    granted(&h, &first).await?;
    equal!(release(&h, &first).await?, LockRelease::Released, "the release");
    // By a client that judges nobody.
    let mut next = another(&h, &first.name, LONG)?;
    next.continuity = Continuity::new(LONG);
    granted(&h, &next).await?;
    equal!(release(&h, &first).await?, LockRelease::Absent, "the release, sent again");
    Ok(())
}

async fn a_release_by_another_has_no_effect(h: Harness) -> Verdict {
    let first = request(&h, LONG)?;
    let grant = granted(&h, &first).await?;
    let other = another(&h, &first.name, LONG)?;
    equal!(release(&h, &other).await?, LockRelease::Absent, "the release by a stranger");
    h.backend.locks()?.renew(&grant).await?;
    Ok(())
}

async fn clients_are_granted_the_lock_in_the_order_of_arrival(h: Harness) -> Verdict {
    let first = request(&h, LONG)?;
    granted(&h, &first).await?;
    let mut queue = Vec::new();
    for ahead in 0..5 {
        let next = another(&h, &first.name, LONG)?;
        equal!(waits(&h, &next).await?.ahead, ahead, "clients ahead of one that has just come");
        queue.push(next);
    }
    release(&h, &first).await?;
    for at in 0..queue.len() {
        // Those behind come first with their requests, in the wrong order.
        for later in queue[at + 1..].iter().rev() {
            waits(&h, later).await?;
        }
        granted(&h, &queue[at]).await?;
        release(&h, &queue[at]).await?;
    }
    Ok(())
}

/// Waits until the client with this nonce is called.
async fn called(h: &Harness, request: &LockRequest, seen: LockRevision) -> Verdict {
    let (mut seen, started) = (seen, Instant::now());
    while started.elapsed() < h.deadline() {
        match h.backend.locks()?.changed(&request.name, seen, h.deadline() * 4).await? {
            LockChange::Called(revision, next) if next.as_deref() != Some(&request.nonce) => seen = revision,
            LockChange::Called(..) => return Ok(()),
            LockChange::Maybe | LockChange::Nothing => {}
        }
    }
    Err(Violation::new("waited in vain to be called"))
}

async fn the_first_in_the_queue_is_called(h: Harness) -> Verdict {
    let first = request(&h, LONG)?;
    granted(&h, &first).await?;
    let (second, third) = (another(&h, &first.name, LONG)?, another(&h, &first.name, LONG)?);
    let seen = waits(&h, &second).await?.seen;
    waits(&h, &third).await?;
    let waiting = tokio::spawn({
        let (h, second) = (h.clone(), second.clone());
        async move { called(&h, &second, seen).await }
    });
    tokio::time::sleep(QUIET).await;
    ensure!(!waiting.is_finished(), "called although the lock is held");
    release(&h, &first).await?;
    waiting.await.map_err(|error| Violation::new(error.to_string()))??;
    // Who asks later learns of it too.
    called(&h, &second, seen).await?;
    granted(&h, &second).await?;
    Ok(())
}

async fn who_leaves_the_queue_is_not_waited_for(h: Harness) -> Verdict {
    let first = request(&h, LONG)?;
    granted(&h, &first).await?;
    let (second, third) = (another(&h, &first.name, LONG)?, another(&h, &first.name, LONG)?);
    waits(&h, &second).await?;
    let seen = waits(&h, &third).await?.seen;
    release(&h, &first).await?;
    // It was called, and leaves all the same: then the next one is called.
    equal!(release(&h, &second).await?, LockRelease::Left, "the release of one that waits");
    called(&h, &third, seen).await?;
    granted(&h, &third).await?;
    Ok(())
}

async fn a_client_that_ended_costs_less_than_a_second(h: Harness) -> Verdict {
    let first = request(&h, LONG)?;
    granted(&h, &first).await?;
    let (dead, next) = (another(&h, &first.name, LONG)?, another(&h, &first.name, LONG)?);
    waits(&h, &dead).await?;
    waits(&h, &next).await?;
    release(&h, &first).await?;
    // The dead one has a moment to take the lock.
    let started = Instant::now();
    waits(&h, &next).await?;
    loop {
        // When it was asked: the answer, and the next question, may be late on a busy machine.
        let asked = started.elapsed();
        match h.backend.locks()?.acquire(&next).await? {
            LockReply::Granted(_) => break,
            LockReply::Wait(wait) => {
                ensure!(asked < Duration::from_secs(1), "a dead client blocks the queue for {asked:?}");
                tokio::time::sleep(wait.retry_in.min(QUIET)).await;
            }
            other @ LockReply::TooYoung(_) => return Err(Violation::new(format!("{other:?}"))),
        }
    }
    equal!(release(&h, &dead).await?, LockRelease::Absent, "the place of the dead one");
    Ok(())
}

async fn who_lost_its_place_is_given_it_back(h: Harness) -> Verdict {
    let first = request(&h, LONG)?;
    granted(&h, &first).await?;
    let mut early = another(&h, &first.name, LONG)?;
    early.arrived = Some(waits(&h, &early).await?.arrived);
    tokio::time::sleep(PLACE_TTL + QUIET).await;
    // Nobody has answered for it meanwhile, and its place is gone when another client comes.
    let late = another(&h, &first.name, LONG)?;
    equal!(waits(&h, &late).await?.ahead, 0, "clients ahead, of which none answers");
    equal!(waits(&h, &early).await?.ahead, 0, "clients ahead of the one that came first");
    equal!(waits(&h, &late).await?.ahead, 1, "clients ahead of the one that came later");
    // Nobody can arrive in the future.
    let mut cheat = another(&h, &first.name, LONG)?;
    cheat.arrived = Some(u64::MAX >> 12);
    let told = waits(&h, &cheat).await?.arrived;
    ensure!(told / 1_000 <= h.now().await?.as_millis(), "arrival at {told}, which is yet to come");
    Ok(())
}

async fn who_does_not_queue_has_no_place_and_passes_nobody(h: Harness) -> Verdict {
    let first = request(&h, LONG)?;
    granted(&h, &first).await?;
    let mut impatient = another(&h, &first.name, LONG)?;
    impatient.queued = false;
    waits(&h, &impatient).await?;
    let patient = another(&h, &first.name, LONG)?;
    equal!(waits(&h, &patient).await?.ahead, 0, "clients ahead, of which none waits");
    release(&h, &first).await?;
    equal!(waits(&h, &impatient).await?.holder, None, "the holder of a lock that is free");
    granted(&h, &patient).await?;
    release(&h, &patient).await?;
    granted(&h, &impatient).await?;
    Ok(())
}

async fn an_announced_grant_is_noticed(h: Harness) -> Verdict {
    let mut leader = request(&h, LONG)?;
    leader.announced = true;
    let waiting = tokio::spawn({
        let (h, name) = (h.clone(), leader.name.clone());
        async move { h.backend.locks()?.changed(&name, LockRevision::default(), h.deadline()).await }
    });
    tokio::time::sleep(QUIET).await;
    let started = Instant::now();
    granted(&h, &leader).await?;
    let change = waiting.await.map_err(|error| Violation::new(error.to_string()))??;
    let took = started.elapsed();
    ensure!(change != LockChange::Nothing, "a grant was not noticed within {took:?}");
    Ok(())
}

async fn a_server_that_is_too_young_grants_nothing(h: Harness) -> Verdict {
    let mut request = request(&h, LONG)?;
    request.min_uptime = Some(Duration::from_secs(100 * 365 * 24 * 3_600));
    let reply = h.backend.locks()?.acquire(&request).await?;
    ensure!(matches!(reply, LockReply::TooYoung(_)), "granted by a young server: {reply:?}");
    equal!(h.backend.locks()?.holder(&request.name).await?, None, "the holder afterwards");
    request.min_uptime = Some(Duration::ZERO);
    granted(&h, &request).await?;
    Ok(())
}

async fn who_was_not_answered_without_a_gap_takes_nothing_over(h: Harness) -> Verdict {
    let mut held = request(&h, BRIEF)?;
    held.continuity = Continuity::new(BRIEF);
    // A free lock is granted to any client.
    let grant = granted(&h, &held).await?;
    expired(&h, &held.name).await?;
    let mut next = another(&h, &held.name, BRIEF)?;
    next.continuity = Continuity::new(BRIEF);
    let wait = waits(&h, &next).await?;
    let left = wait.retry_in;
    ensure!(left <= BRIEF && left > BRIEF / 2, "it may take it in {left:?}, if it is answered from now on");
    ensure!(!wait.server.is_empty(), "the server does not identify itself to a client that has no record");
    h.backend.locks()?.renew(&grant).await?;
    release(&h, &held).await?;
    granted(&h, &next).await?;
    Ok(())
}

async fn a_record_that_is_whole_but_for_one_thing_takes_nothing_over(h: Harness) -> Verdict {
    let held = request(&h, BRIEF)?;
    granted(&h, &held).await?;
    expired(&h, &held.name).await?;
    let mut next = another(&h, &held.name, LONG)?;
    // That of the lock: on a cluster it is one of many.
    next.continuity = Continuity::new(LONG);
    let server = waits(&h, &next).await?.server;
    for (continuity, why) in not_whole(&server, h.now().await?, BRIEF) {
        next.continuity = continuity;
        let asked = h.backend.locks()?.acquire(&next).await?;
        ensure!(matches!(asked, LockReply::Wait(_)), "taken over {why}: {asked:?}");
    }
    // The same record without a fault. A slow machine may need more than one attempt before it becomes old.
    let mut deadline = h.wait_for("a lock to be granted to who was answered for a ttl");
    loop {
        next.continuity = answered(&server, h.now().await?, BRIEF, BRIEF * 3);
        if matches!(h.backend.locks()?.acquire(&next).await?, LockReply::Granted(_)) {
            return Ok(());
        }
        deadline.pause().await?;
    }
}
