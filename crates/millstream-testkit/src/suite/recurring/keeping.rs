//! Recurring messages are stored, listed, paused and removed.

use std::time::Duration;

use millstream_core::recurring::{MAX_DUE, Recurrence};
use millstream_core::schedule::{OnConflict, Place, Placed, Seen};
use millstream_core::{ErrorKind, Timestamp, TopicPartition};

use super::super::schedule::all;
use super::{due, id, listed, put_all, recurrence, suite};
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{Harness, LONG, foreign};

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

suite!("recurring":
    what_recurs_is_kept_as_it_is needs [ListScheduled],
    what_recurs_is_kept_replaced_or_rejected_as_wished,
    what_recurs_is_listed_by_id_page_by_page,
    what_is_due_comes_in_order_with_the_servers_time,
    no_more_is_due_at_once_than_the_most,
    what_is_paused_is_not_due_until_it_goes_on,
    what_is_removed_is_gone needs [ListScheduled],
    one_is_found_by_its_id,
    what_recurs_at_another_place_is_another needs [Tasks],
    what_recurs_goes_with_its_topic,
    what_recurs_goes_with_its_queue needs [Tasks, DeleteQueue],
    a_recurrence_that_is_due_first_wakes_who_waits needs [PromoteDelayed],
);

const HOUR: Duration = Duration::from_secs(3_600);

async fn what_recurs_is_kept_as_it_is(h: Harness) -> Verdict {
    for place in h.places().await? {
        let now = h.now().await?;
        let (fields, rule) = (foreign(), "every 5 m; skip, ünïcode\t|".to_owned());
        let kept =
            Recurrence { fields, rule, ..recurrence("nightly report", Some(now.saturating_add(HOUR)))? };
        let put = h.backend.recurring()?.put(&place, &kept, OnConflict::Keep).await?;
        equal!(put, Placed::New, "what became of a new recurrence");
        equal!(listed(&h, &place).await?, [kept], "what recurs");
        equal!(h.backend.schedule().waiting(&place).await?.total, 0, "messages that wait");
        equal!(due(&h, &place).await?, Vec::<String>::new(), "what is due");
    }
    Ok(())
}

async fn what_recurs_is_kept_replaced_or_rejected_as_wished(h: Harness) -> Verdict {
    for place in h.places().await? {
        let now = h.now().await?;
        put_all(&h, &place, [("a", now.saturating_add(HOUR))]).await?;
        let before = recurrence("a", Some(now.saturating_add(HOUR)))?;
        let other = Recurrence { id: id("a")?, ..recurrence("b", Some(AT(1)))? };
        let put = async |on_conflict| h.backend.recurring()?.put(&place, &other, on_conflict).await;
        equal!(put(OnConflict::Keep).await?, Placed::Kept, "put again");
        refused(put(OnConflict::Reject).await, ErrorKind::Exists, "a conflict that was to be rejected")?;
        equal!(listed(&h, &place).await?, [before], "what recurs");
        equal!(due(&h, &place).await?, Vec::<String>::new(), "what is due");
        equal!(put(OnConflict::Replace).await?, Placed::Replaced, "put in its place");
        equal!(listed(&h, &place).await?, std::slice::from_ref(&other), "what recurs after it was replaced");
        equal!(due(&h, &place).await?, ["a"], "what is due after it was replaced");
        // A replacement is paused if and only if the replaced one was.
        let paused = Recurrence { paused: true, ..other.clone() };
        h.backend.recurring()?.put(&place, &paused, OnConflict::Replace).await?;
        equal!(due(&h, &place).await?, ["a"], "what is due in place of what is not paused");
        h.backend.recurring()?.pause(&place, &id("a")?, None).await?;
        equal!(put(OnConflict::Replace).await?, Placed::Replaced, "put in place of what is paused");
        equal!(listed(&h, &place).await?, [paused], "what recurs in place of what is paused");
        equal!(due(&h, &place).await?, Vec::<String>::new(), "what is due in place of what is paused");
        ensure!(
            h.backend.recurring()?.pause(&place, &id("a")?, Some(AT(1))).await?,
            "what is there does not go on"
        );
        equal!(due(&h, &place).await?, ["a"], "what is due when it goes on");
        let new = Recurrence { paused: true, ..recurrence("new", Some(AT(1)))? };
        equal!(h.backend.recurring()?.put(&place, &new, OnConflict::Keep).await?, Placed::New, "put paused");
        equal!(due(&h, &place).await?, ["a"], "what is due of what was put paused");
    }
    Ok(())
}

async fn what_recurs_is_listed_by_id_page_by_page(h: Harness) -> Verdict {
    for place in h.places().await? {
        let now = h.now().await?;
        let messages = [("d", 1), ("a", 3), ("e", 2), ("c", 5), ("b", 4)];
        put_all(&h, &place, messages.map(|(id, hours)| (id, now.saturating_add(hours * HOUR)))).await?;
        for limit in [1, 2, 5, 1_000] {
            let (mut names, mut after) = (Vec::new(), None);
            loop {
                let page = h.backend.recurring()?.recurrences(&place, after, limit).await?;
                ensure!(page.len() <= limit, "a page of {}, {limit} were asked for", page.len());
                let Some(last) = page.last() else { break };
                after = Some(last.id.clone());
                names.extend(page.iter().map(|recurrence| recurrence.id.to_string()));
                ensure!(names.len() <= messages.len(), "{limit} a page, there is no end: {names:?}");
            }
            equal!(names, ["a", "b", "c", "d", "e"], "all, {limit} a page");
        }
        h.backend.recurring()?.remove(&place, &id("c")?).await?;
        let page = h.backend.recurring()?.recurrences(&place, Some(id("c")?), 1).await?;
        equal!(page.first().map(|it| it.id.as_str()), Some("d"), "what stands behind one that is gone");
    }
    Ok(())
}

async fn what_is_due_comes_in_order_with_the_servers_time(h: Harness) -> Verdict {
    for place in h.places().await? {
        let before = h.now().await?;
        if let Place::Partition(tp) = &place {
            let (between, after) = (h.clock(tp).await?, h.now().await?);
            ensure!((before..=after).contains(&between), "the server's time is {before}, {between}, {after}");
        }
        let messages = [
            ("b", before.saturating_sub(Duration::from_millis(10))),
            ("later", before.saturating_add(HOUR)),
            ("c", AT(1)),
            ("a", before.saturating_sub(Duration::from_millis(5))),
        ];
        put_all(&h, &place, messages).await?;
        let found = h.backend.recurring()?.due(&place).await?;
        ensure!(found.now >= before, "the server's time was {before}, and is {}", found.now);
        let now = h.backend.schedule().now().await?;
        let then = h.backend.recurring()?.due(&place).await?.now;
        ensure!((found.now..=then).contains(&now), "the server's time is {}, {now}, {then}", found.now);
        equal!(due(&h, &place).await?, ["c", "b", "a"], "what is due");
        equal!(found.recurrences.first(), Some(&recurrence("c", Some(AT(1)))?), "the first one");
        // Due at its time, not before.
        put_all(&h, &place, [("soon", found.now.saturating_add(Duration::from_millis(40)))]).await?;
        let mut deadline = h.wait_for("a recurrence to be due");
        loop {
            let found = h.backend.recurring()?.due(&place).await?;
            let soon = found.recurrences.iter().find(|it| it.id.as_str() == "soon");
            match soon.and_then(|it| it.next) {
                Some(next) => {
                    ensure!(found.now >= next, "due at {next}, which is after {}", found.now);
                    break;
                }
                None => deadline.pause().await?,
            }
        }
    }
    Ok(())
}

async fn no_more_is_due_at_once_than_the_most(h: Harness) -> Verdict {
    let place = h.partition().await?.into();
    for n in 0..MAX_DUE + 5 {
        put_all(&h, &place, [(format!("{n:03}").as_str(), AT(1_000 + n as u64))]).await?;
    }
    let found = h.backend.recurring()?.due(&place).await?.recurrences;
    ensure!((1..=MAX_DUE).contains(&found.len()), "{} are due at once", found.len());
    equal!(found[0].id.as_str(), "000", "the first that is due");
    let page = h.backend.recurring()?.recurrences(&place, None, 1_000_000).await?;
    ensure!((1..=MAX_DUE).contains(&page.len()), "{} in one page", page.len());
    Ok(())
}

async fn what_is_paused_is_not_due_until_it_goes_on(h: Harness) -> Verdict {
    for place in h.places().await? {
        put_all(&h, &place, [("a", AT(1)), ("b", AT(2))]).await?;
        ensure!(
            h.backend.recurring()?.pause(&place, &id("a")?, None).await?,
            "what is there cannot be paused"
        );
        equal!(due(&h, &place).await?, ["b"], "what is due, one is paused");
        let paused: Vec<_> = listed(&h, &place).await?.iter().map(|it| it.paused).collect();
        equal!(paused, [true, false], "which of two is paused");
        let put =
            h.backend.recurring()?.put(&place, &recurrence("a", Some(AT(3)))?, OnConflict::Keep).await?;
        equal!(put, Placed::Kept, "put again while it is paused");
        equal!(due(&h, &place).await?, ["b"], "what is due after it was put again");
        let goes_on = h.backend.recurring()?.pause(&place, &id("a")?, Some(AT(5))).await?;
        ensure!(goes_on, "what is paused cannot go on");
        equal!(due(&h, &place).await?, ["b", "a"], "what is due, with a new next time");
        let back = listed(&h, &place).await?;
        equal!(back.first(), Some(&recurrence("a", Some(AT(5)))?), "what goes on");
        for next in [None, Some(AT(1))] {
            let paused = h.backend.recurring()?.pause(&place, &id("unknown")?, next).await?;
            ensure!(!paused, "something unknown is paused");
        }
        equal!(listed(&h, &place).await?.len(), 2, "what recurs");
    }
    Ok(())
}

async fn what_is_removed_is_gone(h: Harness) -> Verdict {
    for place in h.places().await? {
        let now = h.now().await?;
        put_all(&h, &place, [("a", AT(1)), ("b", AT(2))]).await?;
        let fired = h
            .backend
            .recurring()?
            .fire(&place, &id("a")?, &[now.saturating_add(HOUR)], AT(1), Some(AT(1)))
            .await?;
        ensure!(fired.is_some(), "what is due does not fire");
        ensure!(h.backend.recurring()?.remove(&place, &id("a")?).await?, "what is there is not removed");
        equal!(due(&h, &place).await?, ["b"], "what is due");
        equal!(listed(&h, &place).await?, [recurrence("b", Some(AT(2)))?], "what recurs");
        let left = all(&h, &place).await?;
        equal!(left, [format!("a@{}", now.saturating_add(HOUR).as_millis())], "what it has scheduled");
        ensure!(!h.backend.recurring()?.remove(&place, &id("a")?).await?, "removed twice");
        ensure!(
            !h.backend.recurring()?.remove(&place, &id("unknown")?).await?,
            "something unknown is removed"
        );
        put_all(&h, &place, [("a", AT(1))]).await?;
    }
    Ok(())
}

async fn one_is_found_by_its_id(h: Harness) -> Verdict {
    for place in h.places().await? {
        let get = async |name| Ok::<_, Violation>(h.backend.recurring()?.get(&place, &id(name)?).await?);
        equal!(get("a").await?, None, "what is not there");
        put_all(&h, &place, [("a", AT(1)), ("aa", AT(2)), ("b", AT(3))]).await?;
        equal!(get("aa").await?, Some(recurrence("aa", Some(AT(2)))?), "one that is found");
        h.backend.recurring()?.pause(&place, &id("aa")?, None).await?;
        let paused = get("aa").await?.map(|it| it.paused);
        equal!(paused, Some(true), "whether one that is found is paused");
        h.backend.recurring()?.fire(&place, &id("b")?, &[], AT(3), None).await?;
        equal!(get("b").await?, Some(recurrence("b", None)?), "one that never recurs again");
        h.backend.recurring()?.remove(&place, &id("aa")?).await?;
        equal!(get("aa").await?, None, "what was removed");
    }
    Ok(())
}

async fn what_recurs_at_another_place_is_another(h: Harness) -> Verdict {
    let (topic, queue) = (h.topic(2).await?, h.queue(2).await?);
    let partitions = (0..2).map(|n| Place::from(TopicPartition::new(topic.name.clone(), n)));
    let places: Vec<_> = partitions.chain(queue.iter().map(Place::from)).collect();
    for (place, next) in places.iter().zip(1..) {
        put_all(&h, place, [("a", AT(next))]).await?;
    }
    h.backend.recurring()?.remove(&places[1], &id("a")?).await?;
    for (n, place) in (1..).zip(&places) {
        let expected = if n == 2 { Vec::new() } else { vec![recurrence("a", Some(AT(n)))?] };
        equal!(listed(&h, place).await?, expected, "what recurs at {place}");
    }
    Ok(())
}

async fn a_recurrence_that_is_due_first_wakes_who_waits(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let place = tp.clone().into();
    let now = h.now().await?;
    let mut seen = Seen::default();
    seen = h.soon("the first wait", h.backend.schedule().wait(&tp, &seen, LONG)).await?;
    for (name, hours) in [("a", 3), ("b", 2), ("c", 1)] {
        put_all(&h, &place, [(name, now.saturating_add(hours * HOUR))]).await?;
        seen = h.soon("a wake-up", h.backend.schedule().wait(&tp, &seen, LONG)).await?;
    }
    Ok(())
}

async fn what_recurs_goes_with_its_topic(h: Harness) -> Verdict {
    let (catalog, topic) = (h.backend.catalog(), h.topic(2).await?);
    for partition in 0..2 {
        let place = Place::from(TopicPartition::new(topic.name.clone(), partition));
        put_all(&h, &place, [("a", AT(1)), ("b", h.now().await?.saturating_add(HOUR))]).await?;
    }
    catalog.delete_topic(&topic.name).await?;
    catalog.create_topic(&topic).await?;
    for partition in 0..2 {
        let place = Place::from(TopicPartition::new(topic.name.clone(), partition));
        equal!(listed(&h, &place).await?, [], "what recurs in a new topic");
        equal!(due(&h, &place).await?, Vec::<String>::new(), "what is due in a new topic");
        put_all(&h, &place, [("a", AT(1))]).await?;
    }
    Ok(())
}

async fn what_recurs_goes_with_its_queue(h: Harness) -> Verdict {
    let (tasks, queue) = (h.backend.tasks()?, h.queue(2).await?);
    for shard in queue.iter() {
        let next = h.now().await?.saturating_add(HOUR);
        put_all(&h, &Place::from(shard), [("a", AT(1)), ("b", next)]).await?;
    }
    tasks.delete_queue(&queue.name).await?;
    let queue = tasks.create_queue(&queue).await?;
    for shard in queue.iter() {
        let place = Place::from(shard);
        equal!(listed(&h, &place).await?, [], "what recurs in a new queue");
        equal!(due(&h, &place).await?, Vec::<String>::new(), "what is due in a new queue");
        put_all(&h, &place, [("a", AT(1))]).await?;
    }
    Ok(())
}
