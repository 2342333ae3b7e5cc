//! The length of logs, as returned by appends and on request.

use std::collections::BTreeMap;

use millstream_core::TopicPartition;
use millstream_core::log::Append;

use super::suite;
use crate::case::{Verdict, equal};
use crate::harness::{Harness, message};

suite!("log":
    an_append_tells_how_long_the_logs_are needs [Lengths],
    lengths_come_in_the_order_asked_for needs [Lengths],
);

async fn an_append_tells_how_long_the_logs_are(h: Harness) -> Verdict {
    let topic = h.topic(3).await?;
    let partition = |n| TopicPartition::new(topic.name.clone(), n);
    h.append_n(&partition(0), 4).await?;
    h.append_n(&partition(1), 7).await?;
    let entry = |n, at| Append::new(partition(n), message(at));
    let batch = [entry(2, 0), entry(0, 1), entry(2, 2)];
    let measured = h.backend.log().append_measured(&batch).await;
    for result in &measured.results {
        equal!(result.as_ref().err().map(ToString::to_string), None, "an append that is measured");
    }
    equal!(measured.results.len(), 3, "results of three appends");
    let lengths: BTreeMap<_, _> = measured.lengths.into_iter().collect();
    equal!(lengths, BTreeMap::from([(partition(0), 5), (partition(2), 2)]), "lengths with the appends");
    let ids: Vec<_> = measured.results.into_iter().flatten().map(|it| it.id).collect();
    let mut owner = h.owner(&partition(2), "group").await?;
    equal!(crate::owner::ids(&owner.take(2).await?), [ids[0], ids[2]], "what was appended");
    Ok(())
}

async fn lengths_come_in_the_order_asked_for(h: Harness) -> Verdict {
    let topic = h.topic(3).await?;
    let partitions: Vec<_> = topic.iter().collect();
    h.append_n(&partitions[0], 2).await?;
    h.append_n(&partitions[2], 3).await?;
    equal!(h.backend.log().lengths(&partitions).await?, [2, 0, 3], "lengths");
    equal!(h.backend.log().lengths(&[]).await?, [0; 0], "lengths of nothing");
    Ok(())
}
