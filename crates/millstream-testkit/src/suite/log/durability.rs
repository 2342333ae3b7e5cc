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
        let entry = |at| Append { topic_partition: tp.clone(), fields: message(at) };
        let Some(mut appender) = h.backend.log().appender(durability) else {
            ensure!(false, "no appender for {durability}");
            continue;
        };
        equal!(appender.finish().await.len(), 0, "results without a batch");
        for from in [0, 3] {
            appender.begin(Arc::new((from..from + 3).map(entry).collect()));
        }
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let results = appender.finish().await;
            equal!(results.len(), 3, "results of three entries");
            kinds
                .extend(results.iter().map(|result| result.as_ref().err().map(millstream_core::Error::kind)));
        }
        let known = [None, Some(ErrorKind::Unconfirmed), Some(ErrorKind::Unsupported)];
        ensure!(kinds.iter().all(|kind| known.contains(kind)), "{durability} ends as {kinds:?}");
        let stored: Vec<_> = (0..6).filter(|at| kinds[*at] != Some(ErrorKind::Unsupported)).collect();
        let mut owner = h.owner(&tp, "group").await?;
        let read = owner.take(stored.len()).await?;
        let read: Vec<_> = read.into_iter().map(|entry| entry.fields).collect();
        let expected: Vec<_> = stored.into_iter().map(message).collect();
        equal!(read, expected, "what is stored with {durability}");
        h.expect_length(&tp, expected.len() as u64, "entries").await?;
    }
    Ok(())
}
