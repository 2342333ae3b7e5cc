//! Keeping batches: listed, and gone when their time is over or their topic is deleted.

use std::time::Duration;

use millstream_core::batches::BatchSpec;
use millstream_core::results::MessageResult;
use millstream_core::{Settlement, TopicPartition};

use super::{BatchUnderTest, DEAD, DONE, all_of, member, noted, role, spec, suite};
use crate::case::{Verdict, ensure, equal};
use crate::harness::Harness;

suite!("batches":
    batches_are_listed_those_that_expire_first_in_front,
    a_batch_leaves_when_its_time_is_over,
    batches_and_notes_leave_with_their_topic,
);

/// Lets the clock go on, so that what is changed later expires later.
async fn goes_on(h: &Harness) -> Verdict {
    h.reaches(h.now().await?.saturating_add(Duration::from_millis(2))).await
}

async fn batches_are_listed_those_that_expire_first_in_front(h: Harness) -> Verdict {
    let (role, topic) = (role(&h)?, h.topic(2).await?);
    let [tp, other] = [0, 1].map(|partition| TopicPartition::new(topic.name.clone(), partition));
    let day = Duration::from_secs(86_400);
    // Those that have ended are kept for 7 days unless something else is said, and others for 90 days.
    let mut batches = Vec::new();
    for keep in [Duration::ZERO, Duration::ZERO, 8 * day, day] {
        let batch = BatchUnderTest::at(&h, tp.clone(), &BatchSpec { keep, ..spec(&[]) }).await?;
        let block = batch.reserve(1, &[]).await?;
        batch.seal(&[all_of(block)]).await?;
        batches.push(batch);
        goes_on(&h).await?;
    }
    let elsewhere = BatchUnderTest::at(&h, other.clone(), &spec(&[])).await?;
    let listed = async |limit| role.list(&tp, limit).await;
    let ids = |order: &[usize]| order.iter().map(|at| batches[*at].id.clone()).collect::<Vec<_>>();
    equal!(listed(10).await?, ids(&[0, 1, 2, 3]), "batches that have not ended");
    for at in [3, 2, 0] {
        batches[at].ends(&[(0, DONE)]).await?;
        goes_on(&h).await?;
    }
    equal!(listed(10).await?, ids(&[3, 0, 2, 1]), "batches of which three have ended");
    equal!(listed(2).await?, ids(&[3, 0]), "the first two of them");
    equal!(role.list(&other, 10).await?, [elsewhere.id], "the batches of another partition");
    Ok(())
}

async fn a_batch_leaves_when_its_time_is_over(h: Harness) -> Verdict {
    let keep = Duration::from_millis(50);
    let brief = BatchSpec { keep, ..spec(&[]) };
    let open = BatchUnderTest::new(&h, &brief).await?;
    let missing = BatchUnderTest::sealed(&h, &brief, 1).await?;
    let ended = BatchUnderTest::sealed(&h, &brief, 1).await?;
    let kept = BatchUnderTest::sealed(&h, &spec(&[]), 1).await?;
    kept.ends(&[(0, DONE)]).await?;
    let before = h.now().await?;
    ended.ends(&[(0, DEAD)]).await?;
    let mut deadline = h.wait_for("a batch to leave");
    while ended.role()?.state(&ended.id).await?.is_some() {
        deadline.pause().await?;
    }
    let took = h.now().await?.saturating_duration_since(before);
    // Rounded to milliseconds at both ends.
    ensure!(took + Duration::from_millis(2) >= keep, "it left after {took:?}, {keep:?} were asked for");
    equal!(role(&h)?.list(&ended.id.place, 10).await?, [], "the batches of its partition");
    equal!(ended.ends(&[(0, DONE)]).await?, None, "the end of a member of it");
    for (what, batch) in [("open", &open), ("not ended", &missing), ("kept for longer", &kept)] {
        let listed = role(&h)?.list(&batch.id.place, 10).await?;
        equal!(listed, std::slice::from_ref(&batch.id), "one that is {what}");
        batch.state().await?;
    }
    Ok(())
}

async fn batches_and_notes_leave_with_their_topic(h: Harness) -> Verdict {
    let topic = h.topic(1).await?;
    let tp = TopicPartition::new(topic.name.clone(), 0);
    let batch = BatchUnderTest::at(&h, tp.clone(), &spec(&[])).await?;
    let block = batch.reserve(2, &[]).await?;
    batch.seal(&[all_of(block)]).await?;
    batch.ends(&[(0, DONE)]).await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entries = owner.take(1).await?;
    let result = noted(&member(&tp, 0), MessageResult::Done);
    owner.settle_all(&entries, &Settlement::AckWith(result)).await?;
    h.backend.catalog().delete_topic(&topic.name).await?;
    for when in ["deleted", "created again"] {
        equal!(batch.role()?.state(&batch.id).await?, None, "the state, its topic being {when}");
        equal!(batch.ends(&[(1, DONE)]).await?, None, "the end of a member, its topic being {when}");
        equal!(role(&h)?.list(&tp, 10).await?, [], "the batches of a topic that is {when}");
        equal!(super::notes(&h, &tp.clone().into(), 10).await?, [], "the notes of a topic that is {when}");
        h.backend.catalog().create_topic(&topic).await?;
    }
    Ok(())
}
