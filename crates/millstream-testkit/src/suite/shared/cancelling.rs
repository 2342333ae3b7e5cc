//! Cancelling where many consumers read a partition.

use std::sync::Arc;

use millstream_core::cancels::{CancelMark, CancelRequest};
use millstream_core::log::{Entry, ProgressRight};
use millstream_core::{ErrorKind, Settlement};

use super::super::cancels::{place, role};
use super::{Sharer, only, receipts, sharers, suite};
use crate::case::{Verdict, equal, refused};
use crate::harness::Harness;

suite!("shared":
    whoever_has_an_entry_answers_for_it needs [Cancels],
);

async fn whoever_has_an_entry_answers_for_it(h: Harness) -> Verdict {
    let (topic, [mut a, b]) = sharers(&h, 1, ["a", "b"]).await?;
    let tp = only(&topic);
    let (place, role) = (place(&tp)?, role(&h)?);
    h.append_n(&tp, 2).await?;
    let entries = a.take(2).await?;
    let right = |sharer: &Sharer, entry: &Entry| ProgressRight::Consumer {
        member: Arc::new(sharer.member.clone()),
        partition: tp.partition,
        receipt: entry.receipt,
    };
    let ids: Vec<_> = entries.iter().map(|entry| entry.receipt.id.to_string()).collect();
    role.share(&place).await?;
    for id in &ids {
        equal!(
            role.cancel(&place, id, &CancelRequest::default()).await?,
            Some(CancelMark::Asked),
            "with many readers"
        );
    }
    let answered = role.answer(&right(&b, &entries[0]), &ids[0], CancelMark::Cancelled, None).await;
    refused(answered, ErrorKind::Fenced, "of what another consumer has")?;
    let answered = role.answer(&right(&a, &entries[0]), &ids[0], CancelMark::Ahead, None).await?;
    equal!(answered, Some(CancelMark::Asked), "ahead, by one reader of many");
    let answered = role.answer(&right(&a, &entries[0]), &ids[0], CancelMark::Cancelled, None).await?;
    equal!(answered, Some(CancelMark::Cancelled), "of who has it");
    a.settle(&receipts(&entries), &Settlement::Ack).await?;
    let answered = role.answer(&right(&a, &entries[1]), &ids[1], CancelMark::Cancelled, None).await;
    refused(answered, ErrorKind::Fenced, "of what is settled")
}
