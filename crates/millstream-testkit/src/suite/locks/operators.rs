//! Locks as operators see them: states, lists, and grants that end by force.

use std::collections::BTreeMap;
use std::time::Duration;

use millstream_core::locks::{LockRelease, LockState};
use millstream_core::{ErrorKind, LockName};

use super::{another, called, expired, granted, release, request, suite, waits};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG, QUIET};

suite!("locks":
    operators_see_who_holds_a_lock_and_who_waits,
    all_locks_are_listed_and_no_others,
    a_forced_release_ends_the_grant_that_was_seen,
);

async fn operators_see_who_holds_a_lock_and_who_waits(h: Harness) -> Verdict {
    let first = request(&h, LONG)?;
    let state = async || h.backend.locks()?.state(&first.name).await;
    let unused = state().await?;
    ensure!(unused.is_unused() && unused.first_waits.is_none(), "the state of an unknown lock: {unused:?}");
    let grant = granted(&h, &first).await?;
    let (second, third) = (another(&h, &first.name, LONG)?, another(&h, &first.name, LONG)?);
    waits(&h, &second).await?;
    tokio::time::sleep(QUIET).await;
    waits(&h, &third).await?;
    let held = state().await?;
    let Some(holder) = held.holder.clone() else { return Err(Violation::new("the state names no holder")) };
    equal!((holder.owner.as_str(), holder.epoch), ("testkit", grant.epoch), "the holder");
    ensure!(holder.expires_in > LONG / 2 && holder.expires_in <= LONG, "{:?} left", holder.expires_in);
    equal!((held.ttl, held.waiting), (LONG, 2), "ttl and number of waiting clients");
    let waited = held.first_waits.unwrap_or_default();
    ensure!(waited >= QUIET / 2, "the first one waits for {waited:?}, {QUIET:?} at least have passed");
    release(&h, &first).await?;
    let free = state().await?;
    equal!((free.holder.is_none(), free.waiting), (true, 2), "a free lock, for which two wait");
    for last in [&second, &third] {
        release(&h, last).await?;
    }
    ensure!(state().await?.is_unused(), "what is left of a lock that nobody uses: {:?}", state().await?);

    // One that was not renewed is still seen, as long as nobody has taken it over.
    let silent = another(&h, &first.name, BRIEF)?;
    let grant = granted(&h, &silent).await?;
    expired(&h, &silent.name).await?;
    let left = state().await?.holder.map(|holder| (holder.epoch, holder.expires_in));
    equal!(left, Some((grant.epoch, Duration::ZERO)), "the holder that does not renew");
    release(&h, &silent).await?;
    Ok(())
}

/// Returns all locks whose names begin so, read in parts.
async fn listed(h: &Harness, prefix: &str) -> Result<BTreeMap<LockName, LockState>, Violation> {
    let (mut found, mut from, mut parts) = (BTreeMap::new(), None, 0);
    loop {
        let page = h.backend.locks()?.list(from.as_ref(), 10).await?;
        let ours = page.locks.into_iter().filter(|lock| lock.name.as_str().starts_with(prefix));
        found.extend(ours.map(|lock| (lock.name.clone(), lock)));
        let Some(next) = page.next else { return Ok(found) };
        from = Some(next);
        parts += 1;
        ensure!(parts < 100_000, "the list has no end");
    }
}

async fn all_locks_are_listed_and_no_others(h: Harness) -> Verdict {
    let prefix = h.unique("listed");
    let mut held = Vec::new();
    for n in 0..60 {
        let request = another(&h, &LockName::new(format!("{prefix}:{n}"))?, LONG)?;
        let grant = granted(&h, &request).await?;
        held.push((request, grant));
    }
    let waiting = another(&h, &held[0].0.name, LONG)?;
    waits(&h, &waiting).await?;
    let all = listed(&h, &prefix).await?;
    equal!(all.len(), held.len(), "locks in the list");
    for (request, grant) in &held {
        let Some(lock) = all.get(&request.name) else { return Err(Violation::new("a lock is not listed")) };
        let holder = lock.holder.as_ref().map(|holder| holder.epoch);
        let waits = u64::from(request.name == waiting.name);
        equal!((holder, lock.waiting), (Some(grant.epoch), waits), "holder and queue of a lock in the list");
    }
    release(&h, &waiting).await?;
    for (request, grant) in &held[10..] {
        h.backend.locks()?.renew(grant).await?;
        release(&h, request).await?;
    }
    // A renewal that comes late lists nothing.
    refused(h.backend.locks()?.renew(&held[20].1).await, ErrorKind::Fenced, "a renewal after the release")?;
    equal!(listed(&h, &prefix).await?.len(), 10, "locks in the list when the others are released");
    for (request, _) in &held[..10] {
        release(&h, request).await?;
    }
    equal!(listed(&h, &prefix).await?.len(), 0, "locks in the list when all are released");
    Ok(())
}

async fn a_forced_release_ends_the_grant_that_was_seen(h: Harness) -> Verdict {
    let first = request(&h, LONG)?;
    let locks = h.backend.locks()?;
    equal!(locks.force_release(&first.name, 1).await?, false, "the end of a grant that never was");
    let grant = granted(&h, &first).await?;
    let next = another(&h, &first.name, LONG)?;
    let seen = waits(&h, &next).await?.seen;
    equal!(locks.force_release(&first.name, grant.epoch - 1).await?, false, "the end of an earlier grant");
    locks.renew(&grant).await?;
    waits(&h, &next).await?;
    equal!(locks.force_release(&first.name, grant.epoch).await?, true, "the end of the grant");
    refused(locks.renew(&grant).await, ErrorKind::Fenced, "a renewal after a forced release")?;
    called(&h, &next, seen).await?;
    let second = granted(&h, &next).await?;
    ensure!(second.epoch > grant.epoch, "epoch {} after epoch {}", second.epoch, grant.epoch);
    equal!(locks.force_release(&first.name, grant.epoch).await?, false, "the end of what has ended");
    equal!(release(&h, &first).await?, LockRelease::Absent, "the release by the one that lost it");
    locks.renew(&second).await?;
    release(&h, &next).await?;
    Ok(())
}
