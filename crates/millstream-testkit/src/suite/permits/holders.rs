//! Holders of permits: their right ends unless it is renewed, and what they had is free.

use std::time::Duration;

use millstream_core::permits::{Call, Exchange, MAX_STEPS, PermitKey, Step, Take, Taken};
use millstream_core::{Continuity, ErrorKind, LimitKey, LimitName};

use super::{Party, key, state, wanted};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG};
use crate::suite::suite;

suite!("permits":
    a_holder_that_was_not_renewed_is_ended,
    who_may_not_judge_ends_nobody,
    a_holder_that_merely_expired_is_revived,
    what_a_holder_has_is_free_when_it_ends,
);

/// Held by cases that end holders, or have some that others may end: all holders of a namespace are judged together.
static JUDGING: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

async fn a_holder_that_was_not_renewed_is_ended(h: Harness) -> Verdict {
    let _alone = JUDGING.lock().await;
    let key = key(&h, "a")?;
    let (mut one, mut two) = (Party::with_ttl(&h, BRIEF).await?, Party::new(&h).await?);
    one.take(&key, 1, 1).await?;
    equal!(two.take(&key, 1, 1).await?, Taken::Short(0), "a second of one");
    let role = h.backend.permits()?;
    let mut deadline = h.wait_for("a holder to be ended");
    loop {
        let renewed = role.renew(&two.holder, LONG, &Continuity::assured(), false).await?;
        if renewed.ended.contains(&one.holder) {
            break;
        }
        let next = renewed.next_expiry;
        ensure!(next.is_some_and(|next| next <= BRIEF), "the next expiry is in {next:?}");
        deadline.pause().await?;
    }
    refused(
        role.renew(&one.holder, LONG, &Continuity::new(LONG), false).await,
        ErrorKind::Fenced,
        "a renewal",
    )?;
    let steps = vec![Step::Has(key.clone(), 0)];
    let late = Exchange { holder: one.holder.clone(), number: one.number + 1, version: 0, steps };
    refused(role.exchange(&late).await, ErrorKind::Fenced, "an exchange of who was ended")?;
    while role.end(&one.holder).await? {}
    two.until(&Call::Free(key.clone())).await?;
    equal!(two.take(&key, 1, 1).await?, Taken::Granted, "the unit of who was ended");
    let renewed = role.renew(&two.holder, LONG, &Continuity::assured(), false).await?;
    ensure!(!renewed.ended.contains(&one.holder), "it is named although nothing of it is left");
    Ok(())
}

async fn who_may_not_judge_ends_nobody(h: Harness) -> Verdict {
    let _alone = JUDGING.lock().await;
    let key = key(&h, "a")?;
    let (mut one, two) = (Party::with_ttl(&h, Duration::from_millis(1)).await?, Party::new(&h).await?);
    one.take(&key, 1, 1).await?;
    let role = h.backend.permits()?;
    let start = h.now().await?;
    h.reaches(start.saturating_add(Duration::from_millis(5))).await?;
    let renewed = role.renew(&two.holder, LONG, &Continuity::new(LONG), false).await?;
    ensure!(!renewed.ended.contains(&one.holder), "ended by who was not answered for a ttl");
    equal!(one.take(&key, 0, 1).await.is_ok(), true, "it is still there");
    Ok(())
}

async fn a_holder_that_merely_expired_is_revived(h: Harness) -> Verdict {
    let _alone = JUDGING.lock().await;
    let key = key(&h, "a")?;
    let (mut one, two) = (Party::with_ttl(&h, Duration::from_millis(1)).await?, Party::new(&h).await?);
    one.take(&key, 1, 1).await?;
    let start = h.now().await?;
    h.reaches(start.saturating_add(Duration::from_millis(5))).await?;
    let role = h.backend.permits()?;
    role.renew(&one.holder, LONG, &Continuity::new(LONG), false).await?;
    let start = h.now().await?;
    h.reaches(start.saturating_add(Duration::from_millis(5))).await?;
    let renewed = role.renew(&two.holder, LONG, &Continuity::assured(), false).await?;
    ensure!(!renewed.ended.contains(&one.holder), "ended although it was renewed");
    let held = state(&h, &key).await?.map(|state| state.held);
    equal!(held, Some(vec![(one.holder.clone(), 1)]), "what it has");
    Ok(())
}

async fn what_a_holder_has_is_free_when_it_ends(h: Harness) -> Verdict {
    let name = LimitName::new(h.unique("limit"))?;
    let keys: Vec<_> = (0..600u32)
        .map(|n| Ok(PermitKey::new(&name, &LimitKey::new([n.to_string()])?)))
        .collect::<Result<_, Violation>>()?;
    let (mut one, mut two) = (Party::new(&h).await?, Party::new(&h).await?);
    for part in keys.chunks(MAX_STEPS) {
        let take = |key: &PermitKey| Step::Takes(Take { wants: wanted(&[(key, 1, 1)]), waits: true });
        let steps: Vec<_> = part.iter().map(take).collect();
        let taken = one.exchange(&steps).await?;
        ensure!(taken.iter().all(|taken| *taken == Taken::Granted), "units that nobody has are not granted");
    }
    let last = &keys[keys.len() - 1];
    equal!(two.take(last, 1, 1).await?, Taken::Short(0), "a second of one");
    let mut parts = 1;
    while h.backend.permits()?.end(&one.holder).await? {
        parts += 1;
        ensure!(parts < 100, "the end of a holder comes to no end");
    }
    two.until(&Call::Free(last.clone())).await?;
    two.take(last, 1, 1).await?;
    for key in [&keys[0], &keys[299]] {
        equal!(two.take(key, 1, 1).await?, Taken::Granted, "a unit of who was ended");
    }
    ensure!(!h.backend.permits()?.end(&one.holder).await?, "a second end has something to do");
    Ok(())
}
