//! Waiting: ends when an entry arrives, and has no other effect.

use std::collections::BTreeSet;
use std::time::Duration;

use millstream_core::Reason;
use millstream_core::inspect::Range;
use tokio::time::Instant;

use super::suite;
use crate::case::{Verdict, ensure, equal};
use crate::harness::{Harness, QUIET, message};
use crate::owner::{dead, ids, retry};

suite!("log":
    waiting_ends_empty_when_nothing_comes,
    waiting_ends_when_something_comes,
    waiting_ends_when_a_retry_is_promoted,
    waiting_ends_when_a_dead_letter_is_replayed needs [DeadLetters],
    a_dropped_fetch_loses_nothing,
);

async fn waiting_ends_empty_when_nothing_comes(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let other = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    for wait in [Duration::ZERO, Duration::from_millis(60)] {
        let started = Instant::now();
        // Entries of another partition do not end the wait.
        let (fetched, appended) = tokio::join!(owner.fetch(10, wait), h.append_n(&other, 1));
        appended?;
        let fetched = fetched?;
        let took = started.elapsed();
        equal!((fetched.entries.len(), fetched.ghosts.len()), (0, 0), "entries and ghosts of an empty log");
        // A server may round milliseconds differently.
        ensure!(took + Duration::from_millis(5) >= wait, "waited {took:?} instead of {wait:?}");
        ensure!(took < wait + h.deadline() / 2, "waited {took:?} instead of {wait:?}");
    }
    Ok(())
}

/// Fetches with a wait longer than any test, while `cause` happens.
macro_rules! wakes {
    ($h:expr, $owner:expr, $cause:expr) => {{
        let started = Instant::now();
        let cause = async {
            tokio::time::sleep(Duration::from_millis(10)).await;
            $cause
        };
        let wait = $h.deadline();
        let (fetched, caused) = tokio::join!($owner.fetch(10, wait), cause);
        caused?;
        let (fetched, took) = (fetched?, started.elapsed());
        equal!(fetched.entries.len(), 1, "entries after {took:?} of waiting");
        ensure!(took < wait / 2, "it took {took:?} of {wait:?} to see what came after 10 ms");
        fetched.entries
    }};
}

async fn waiting_ends_when_something_comes(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    for n in 0..3 {
        let entries = wakes!(h, owner, h.append(&tp, [message(n)]).await);
        equal!(entries[0].fields, message(n), "what came");
    }
    Ok(())
}

async fn waiting_ends_when_a_retry_is_promoted(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entries = owner.take(1).await?;
    owner.settle_all(&entries, &retry(&entries[0], Duration::ZERO)).await?;
    let lease = owner.lease.clone();
    let mut deadline = h.wait_for("a retry to be promoted");
    let promoted = async {
        while h.backend.schedule().promote(&lease, 1).await?.moved == 0 {
            deadline.pause().await?;
        }
        Verdict::Ok(())
    };
    wakes!(h, owner, promoted.await);
    Ok(())
}

async fn waiting_ends_when_a_dead_letter_is_replayed(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let appended = h.append_n(&tp, 1).await?;
    let entries = owner.take(1).await?;
    owner.settle_all(&entries, &dead(Reason::Rejected, 1, appended[0])).await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    let letters = h.backend.dead_letters()?.list(&tp, &group, Range::ALL, 10).await?.items;
    equal!(letters.len(), 1, "dead letters");
    wakes!(h, owner, h.backend.dead_letters()?.replay(&tp, &group, &[letters[0].id]).await);
    Ok(())
}

/// Fetches that are dropped at many moments, while entries are appended.
async fn a_dropped_fetch_loses_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let mut appended = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for round in 0..30u64 {
        let limit = Duration::from_micros(round % 10 * 500);
        let fetch = tokio::time::timeout(limit, owner.fetch(3, QUIET));
        let append = async {
            tokio::time::sleep(Duration::from_micros(round * 100)).await;
            h.append_n(&tp, 2).await
        };
        let (fetched, ids_of_round) = tokio::join!(fetch, append);
        appended.extend(ids_of_round?);
        if let Ok(fetched) = fetched {
            seen.extend(ids(&fetched?.entries));
        }
    }
    let mut deadline = h.wait_for("what a dropped fetch may have read");
    while seen != appended {
        let fetched = owner.fetch(100, QUIET).await?;
        if fetched.entries.is_empty() {
            deadline.pause().await?;
        }
        seen.extend(ids(&fetched.entries));
    }
    Ok(())
}
