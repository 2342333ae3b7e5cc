//! Appends that wait for more than the server's memory.
//!
//! Whether a server can confirm them depends on its settings and its replicas. So each result is allowed, if it says what
//! is so.

use std::sync::Arc;

use millstream_core::log::Append;
use millstream_core::{Durability, ErrorKind};

use super::suite;
use crate::case::{Verdict, ensure, equal};
use crate::harness::{Harness, message};

suite!("log":
    what_asks_for_durability_is_stored_in_order needs [Durability],
);

async fn what_asks_for_durability_is_stored_in_order(h: Harness) -> Verdict {
    for durability in [Durability::Fsynced, Durability::Replicated(1)] {
        let tp = h.partition().await?;
        let entry = |at| Append::new(tp.clone(), message(at));
        let (one, other) = (h.backend.log().appender(durability), h.backend.log().appender(durability));
        let (Some(mut one), Some(mut other)) = (one, other) else {
            ensure!(false, "no appender for {durability}");
            continue;
        };
        equal!(one.finish().await.len(), 0, "results without a batch");
        one.begin(Arc::new((0..3).map(entry).collect()));
        // So the next batch is begun when the first has ended, and before anybody has its results.
        other.begin(Arc::new(vec![entry(3)]));
        let between = other.finish().await;
        one.begin(Arc::new((4..7).map(entry).collect()));
        let (before, behind) = (one.finish().await, one.finish().await);
        equal!((before.len(), between.len(), behind.len()), (3, 1, 3), "results");
        let results = before.iter().chain(&between).chain(&behind);
        let kinds: Vec<_> =
            results.map(|result| result.as_ref().err().map(millstream_core::Error::kind)).collect();
        let known = [None, Some(ErrorKind::Unconfirmed), Some(ErrorKind::Unsupported)];
        ensure!(kinds.iter().all(|kind| known.contains(kind)), "{durability} ends as {kinds:?}");
        let stored: Vec<usize> = (0..7).filter(|at| kinds[*at] != Some(ErrorKind::Unsupported)).collect();
        let mut owner = h.owner(&tp, "group").await?;
        let read = owner.take(stored.len()).await?;
        let read: Vec<_> = read.into_iter().map(|entry| entry.fields).collect();
        // Where the one of the other appender is among them is open.
        let others = message(3);
        let (ours, its): (Vec<_>, Vec<_>) = read.into_iter().partition(|fields| *fields != others);
        let (expected, between): (Vec<usize>, Vec<usize>) = stored.iter().partition(|at| **at != 3);
        equal!(
            ours,
            expected.into_iter().map(message).collect::<Vec<_>>(),
            "what is stored with {durability}"
        );
        equal!(its.len(), between.len(), "what the other appender stored with {durability}");
        h.expect_length(&tp, stored.len() as u64, "entries").await?;
    }
    Ok(())
}
