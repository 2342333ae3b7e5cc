//! Watches end when something changes.

use std::time::Duration;

use millstream_core::members::{Assignment, Revision};
use tokio::time::Instant;

use super::{Club, suite};
use crate::case::{Verdict, Violation, ensure};
use crate::harness::{Harness, LONG};

suite!("members":
    a_watch_ends_when_somebody_joins,
    a_watch_ends_when_somebody_leaves,
    a_watch_ends_when_an_assignment_is_published,
    a_watch_ends_at_once_for_what_came_before_it,
    a_watch_ends_when_its_time_is_up,
    a_watch_waits,
);

/// Watches for longer than any test, while `cause` happens, and expects a change soon.
macro_rules! ends {
    ($club:expr, $witness:expr, $cause:expr) => {{
        let seen = $club.beat($witness).await?.revision;
        let mut watch = $club.h.backend.members().watch(&$club.topic, &$club.group).await?;
        let wait = $club.h.deadline();
        let started = Instant::now();
        let cause = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            $cause.await
        };
        // The watch may also end early.
        let watched = async {
            let mut deadline = $club.h.wait_for("a change");
            loop {
                watch.changed(seen, wait).await?;
                if $club.beat($witness).await?.revision > seen {
                    return Ok::<_, Violation>(started.elapsed());
                }
                deadline.pause().await?;
            }
        };
        let (took, caused) = tokio::join!(watched, cause);
        caused?;
        let took = took?;
        ensure!(took < wait / 2, "it took {took:?} of {wait:?} to see what came after 10 ms");
    }};
}

async fn a_watch_ends_when_somebody_joins(h: Harness) -> Verdict {
    let club = Club::new(h, 4).await?;
    let ann = club.joined("ann").await?;
    let bob = club.member("bob", LONG)?;
    ends!(club, &ann, club.join(&bob));
    Ok(())
}

async fn a_watch_ends_when_somebody_leaves(h: Harness) -> Verdict {
    let club = Club::new(h, 4).await?;
    let (ann, bob) = (club.joined("ann").await?, club.joined("bob").await?);
    ends!(club, &ann, club.leave(&bob));
    Ok(())
}

async fn a_watch_ends_when_an_assignment_is_published(h: Harness) -> Verdict {
    let club = Club::new(h, 4).await?;
    let ann = club.joined("ann").await?;
    let version = club.beat(&ann).await?.version;
    let nothing = Assignment::new();
    ends!(club, &ann, club.h.backend.members().publish(&club.topic, &club.group, version, &nothing));
    Ok(())
}

async fn a_watch_ends_at_once_for_what_came_before_it(h: Harness) -> Verdict {
    let club = Club::new(h, 4).await?;
    let wait = club.h.deadline();
    let mut early = club.h.backend.members().watch(&club.topic, &club.group).await?;
    let ann = club.joined("ann").await?;
    let seen = club.beat(&ann).await?.revision;
    club.joined("bob").await?;
    let mut late = club.h.backend.members().watch(&club.topic, &club.group).await?;
    for watch in [&mut early, &mut late] {
        for seen in [seen, Revision::default()] {
            let started = Instant::now();
            watch.changed(seen, wait).await?;
            let took = started.elapsed();
            ensure!(took < wait / 2, "it took {took:?} of {wait:?} to see what was there before");
        }
    }
    Ok(())
}

async fn a_watch_ends_when_its_time_is_up(h: Harness) -> Verdict {
    let club = Club::new(h, 4).await?;
    let seen = club.join(&club.member("ann", LONG)?).await?.revision;
    let mut watch = club.h.backend.members().watch(&club.topic, &club.group).await?;
    for wait in [Duration::ZERO, Duration::from_millis(60)] {
        let started = Instant::now();
        watch.changed(seen, wait).await?;
        let took = started.elapsed();
        ensure!(took < wait + club.h.deadline() / 2, "a watch of {wait:?} took {took:?}");
    }
    Ok(())
}

/// A watch may occasionally end early, but a loop of watches must not spin.
async fn a_watch_waits(h: Harness) -> Verdict {
    let club = Club::new(h, 4).await?;
    let seen = club.join(&club.member("ann", LONG)?).await?.revision;
    let mut watch = club.h.backend.members().watch(&club.topic, &club.group).await?;
    let wait = Duration::from_millis(20);
    for _ in 0..20 {
        let started = Instant::now();
        watch.changed(seen, wait).await?;
        // A server may round milliseconds differently.
        if started.elapsed() + Duration::from_millis(5) >= wait {
            return Ok(());
        }
    }
    Err(Violation::new("of twenty watches none waited"))
}
