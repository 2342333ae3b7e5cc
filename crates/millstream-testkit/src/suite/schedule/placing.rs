//! Scheduling: ids, conflicts, batches, far times.

use std::time::Duration;

use millstream_core::schedule::{Due, OnConflict, Place, Placed, Scheduling};
use millstream_core::wire::Fields;
use millstream_core::{ErrorKind, Timestamp, TopicPartition};

use super::{HOUR, after, all, body, expect_all, id, names, outcomes, partition, place_all};
use super::{promote_delayed, promote_once, schedule, scheduling, shown, suite};
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::Harness;

const AT: fn(u64) -> Timestamp = Timestamp::from_millis;

suite!("schedule":
    an_id_that_waits_is_kept_as_it_is needs [ListScheduled],
    an_id_that_waits_is_replaced_with_body_and_due_time needs [ListScheduled],
    an_id_that_waits_is_rejected_if_wished needs [ListScheduled],
    a_debounced_message_is_the_last_and_due_at_the_latest_time needs [ListScheduled],
    of_several_the_last_is_kept_at_the_time_of_the_first needs [ListScheduled],
    an_id_is_free_again_when_its_message_is_gone,
    ids_of_another_place_do_not_clash needs [Tasks, ListScheduled],
    a_message_without_fields_is_refused,
    a_bad_scheduling_does_not_keep_the_others_from_waiting,
    a_large_batch_has_one_result_each,
    the_far_future_is_no_trouble needs [ListScheduled],
    what_comes_is_what_was_kept_or_has_replaced_it,
    the_servers_time_is_that_of_its_entries,
);

async fn an_id_that_waits_is_kept_as_it_is(h: Harness) -> Verdict {
    for place in h.places().await? {
        place_all(&h, &place, [("a", Due::In(HOUR))]).await?;
        let before = shown(&h, &place, "a").await?;
        let again = Scheduling { fields: body("b"), ..scheduling(&place, "a", Due::NOW)? };
        equal!(schedule(&h, &[again]).await?, [Placed::Kept], "scheduled again");
        equal!(shown(&h, &place, "a").await?, before, "what was kept");
        equal!(h.backend.schedule().waiting(&place).await?.total, 1, "messages that wait");
    }
    Ok(())
}

async fn an_id_that_waits_is_replaced_with_body_and_due_time(h: Harness) -> Verdict {
    for place in h.places().await? {
        place_all(&h, &place, [("a", Due::In(HOUR)), ("z", Due::In(HOUR * 2))]).await?;
        let at = h.now().await?.saturating_add(Duration::from_millis(7_000_000));
        let fields = body("b");
        let on_conflict = OnConflict::Replace;
        let again =
            Scheduling { fields: fields.clone(), on_conflict, ..scheduling(&place, "a", Due::At(at))? };
        equal!(schedule(&h, &[again]).await?, [Placed::Replaced], "scheduled again");
        let now = shown(&h, &place, "a").await?;
        equal!((now.due, now.fields), (at, fields), "due time and body of what was replaced");
        equal!(all(&h, &place).await?, ["a", "z"], "what waits");
        let new = Scheduling { on_conflict, ..scheduling(&place, "new", Due::NOW)? };
        equal!(schedule(&h, &[new]).await?, [Placed::New], "scheduled where there is nothing to replace");
    }
    Ok(())
}

async fn an_id_that_waits_is_rejected_if_wished(h: Harness) -> Verdict {
    for place in h.places().await? {
        let mut batch = vec![scheduling(&place, "a", Due::In(HOUR))?; 3];
        batch.iter_mut().for_each(|it| it.on_conflict = OnConflict::Reject);
        batch[1].id = id("b")?;
        batch[2].fields = body("c");
        let outcomes = outcomes(h.backend.schedule().schedule(&batch).await);
        equal!(
            outcomes,
            [Ok(Placed::New), Ok(Placed::New), Err(ErrorKind::Exists)],
            "scheduled, with conflicts rejected"
        );
        equal!(shown(&h, &place, "a").await?.fields, body("a"), "what waited before");
    }
    Ok(())
}

async fn a_debounced_message_is_the_last_and_due_at_the_latest_time(h: Harness) -> Verdict {
    for place in h.places().await? {
        let now = h.now().await?;
        let at = |minutes: u64| now.saturating_add(Duration::from_secs(minutes * 60));
        let debounced = |name: &str, minutes| -> Result<Scheduling, Violation> {
            let (fields, on_conflict) = (body(name), OnConflict::Debounce);
            Ok(Scheduling { fields, on_conflict, ..scheduling(&place, "a", Due::At(at(minutes)))? })
        };
        equal!(schedule(&h, &[debounced("1", 10)?]).await?, [Placed::New], "the first");
        // Postponed, not brought forward, and in one batch like in several.
        for (batch, due) in [(vec![("2", 20)], 20), (vec![("3", 5)], 20), (vec![("4", 30), ("5", 25)], 30)] {
            let last = body(batch.last().map_or("", |(name, _)| name));
            let batch: Vec<_> =
                batch.into_iter().map(|(name, at)| debounced(name, at)).collect::<Result<_, _>>()?;
            let placed = schedule(&h, &batch).await?;
            equal!(placed, vec![Placed::Replaced; batch.len()], "those after it");
            let now = shown(&h, &place, "a").await?;
            equal!((now.due, now.fields), (at(due), last), "due time and body of what waits");
        }
        equal!(h.backend.schedule().waiting(&place).await?.total, 1, "messages that wait");
    }
    Ok(())
}

async fn of_several_the_last_is_kept_at_the_time_of_the_first(h: Harness) -> Verdict {
    for place in h.places().await? {
        let now = h.now().await?;
        let at = |minutes: u64| now.saturating_add(Duration::from_secs(minutes * 60));
        let last = |id: &str, name: &str, minutes| -> Result<Scheduling, Violation> {
            let (fields, on_conflict) = (body(name), OnConflict::KeepLast);
            Ok(Scheduling { fields, on_conflict, ..scheduling(&place, id, Due::At(at(minutes)))? })
        };
        equal!(schedule(&h, &[last("a", "1", 10)?]).await?, [Placed::New], "the first");
        let batch = [last("a", "2", 5)?, last("b", "3", 20)?, last("a", "4", 30)?, last("b", "5", 1)?];
        let expected = [Placed::Replaced, Placed::New, Placed::Replaced, Placed::Replaced];
        equal!(schedule(&h, &batch).await?, expected, "those after it");
        for (id, due, name) in [("a", 10, "4"), ("b", 20, "5")] {
            let now = shown(&h, &place, id).await?;
            equal!((now.due, now.fields), (at(due), body(name)), "due time and body of {id}");
        }
        equal!(all(&h, &place).await?, ["a", "b"], "what waits");
    }
    Ok(())
}

async fn an_id_is_free_again_when_its_message_is_gone(h: Harness) -> Verdict {
    for place in h.places().await? {
        for round in 0..3 {
            ensure!(
                schedule(&h, &[scheduling(&place, "a", Due::In(HOUR))?]).await? == [Placed::New],
                "round {round}: the id of a cancelled message is not free"
            );
            h.backend.schedule().cancel(&place, &[id("a")?]).await?;
        }
    }
    let place = Place::from(h.partition().await?);
    for _ in 0..2 {
        place_all(&h, &place, [("a", Due::NOW)]).await?;
        promote_delayed(&h, partition(&place)?, 1).await?;
    }
    Ok(())
}

async fn ids_of_another_place_do_not_clash(h: Harness) -> Verdict {
    let (topic, queue) = (h.topic(2).await?, h.queue(2).await?);
    let partitions = (0..2).map(|n| Place::from(TopicPartition::new(topic.name.clone(), n)));
    let places: Vec<_> = partitions.chain(queue.iter().map(Place::from)).collect();
    let mut batch = Vec::new();
    for (n, place) in places.iter().enumerate() {
        batch.push(Scheduling { fields: body(&n.to_string()), ..scheduling(place, "a", Due::In(HOUR))? });
    }
    equal!(schedule(&h, &batch).await?, [Placed::New; 4], "one id at four places");
    for (n, place) in places.iter().enumerate() {
        equal!(shown(&h, place, "a").await?.fields, body(&n.to_string()), "the message at {place}");
    }
    h.backend.schedule().cancel(&places[1], &[id("a")?]).await?;
    for (n, place) in places.iter().enumerate() {
        let total = u64::from(n != 1);
        equal!(h.backend.schedule().waiting(place).await?.total, total, "messages that wait at {place}");
    }
    Ok(())
}

async fn a_message_without_fields_is_refused(h: Harness) -> Verdict {
    for place in h.places().await? {
        let empty = Scheduling { fields: Fields::new(), ..scheduling(&place, "a", Due::NOW)? };
        let results = h.backend.schedule().schedule(&[empty]).await;
        ensure!(matches!(results[..], [Err(_)]), "a message without fields: {results:?}");
        h.expect_waiting(&place, 0, "messages that wait").await?;
    }
    Ok(())
}

async fn a_bad_scheduling_does_not_keep_the_others_from_waiting(h: Harness) -> Verdict {
    for place in h.places().await? {
        let mut batch = Vec::new();
        for name in ["a", "a", "b", "empty", "c"] {
            let on_conflict = OnConflict::Reject;
            batch.push(Scheduling { on_conflict, ..scheduling(&place, name, Due::At(AT(1)))? });
        }
        batch[3].fields.clear();
        let results = h.backend.schedule().schedule(&batch).await;
        let good: Vec<_> = results.iter().map(Result::is_ok).collect();
        equal!(good, [true, false, true, false, true], "which of a batch succeeded");
        expect_all(&h, &place, &["a", "b", "c"]).await?;
    }
    Ok(())
}

async fn a_large_batch_has_one_result_each(h: Harness) -> Verdict {
    const COUNT: usize = 1_000;
    let mut places = h.places().await?;
    places.push(h.partition().await?.into());
    let mut batch = Vec::new();
    for n in 0..COUNT {
        // Every tenth message has the id of the one two before it, at the same place.
        let name = if n % 10 == 9 { n - 2 } else { n };
        batch.push(scheduling(&places[n % 2], format!("{name:04}"), after(3_600_000))?);
    }
    let placed = schedule(&h, &batch).await?;
    for (n, placed) in placed.iter().enumerate() {
        let expected = if n % 10 == 9 { Placed::Kept } else { Placed::New };
        equal!(*placed, expected, "the result of number {n}");
    }
    for (place, total) in places.iter().zip([500, 400]) {
        h.expect_waiting(place, total, "messages that wait").await?;
    }
    Ok(())
}

async fn the_far_future_is_no_trouble(h: Harness) -> Verdict {
    for place in h.places().await? {
        let before = h.now().await?;
        let century =
            [("in", Due::In(Duration::MAX)), ("at", Due::At(AT(u64::MAX))), ("far", Due::In(Due::FAR))];
        place_all(&h, &place, century).await?;
        let after = h.now().await?;
        for (name, _) in century {
            let due = shown(&h, &place, name).await?.due;
            ensure!(
                (before.saturating_add(Due::FAR)..=after.saturating_add(Due::FAR + Duration::from_millis(1)))
                    .contains(&due),
                "{name} is due at {due}, expected a century from now, which is {after}"
            );
        }
        equal!(h.backend.schedule().waiting(&place).await?.overdue, 0, "messages that are due");
    }
    let place = Place::from(h.partition().await?);
    let mut owner = h.owner(partition(&place)?, "group").await?;
    place_all(&h, &place, [("far", Due::In(Duration::MAX)), ("soon", Due::NOW)]).await?;
    promote_delayed(&h, partition(&place)?, 1).await?;
    equal!(names(&owner.take(1).await?)?, ["soon"], "what came");
    let next = promote_once(&h, partition(&place)?, 1).await?.next;
    ensure!(next.is_some_and(|next| next > Due::FAR / 2), "next in {next:?}, expected about a century");
    Ok(())
}

/// The conflicts again, for backends that cannot list what waits: by what comes in the end.
async fn what_comes_is_what_was_kept_or_has_replaced_it(h: Harness) -> Verdict {
    let place = Place::from(h.partition().await?);
    let mut owner = h.owner(partition(&place)?, "group").await?;
    place_all(&h, &place, ["kept", "replaced", "rejected", "gone"].map(|id| (id, Due::In(HOUR)))).await?;
    let now =
        [("kept", OnConflict::Keep), ("replaced", OnConflict::Replace), ("rejected", OnConflict::Reject)];
    let mut batch = Vec::new();
    for (name, on_conflict) in now {
        let fields = body(&format!("new {name}"));
        batch.push(Scheduling { fields, on_conflict, ..scheduling(&place, name, Due::At(AT(1)))? });
    }
    let outcomes = outcomes(h.backend.schedule().schedule(&batch).await);
    let expected = [Ok(Placed::Kept), Ok(Placed::Replaced), Err(ErrorKind::Exists)];
    equal!(outcomes, expected, "scheduled under ids that wait");
    equal!(h.backend.schedule().cancel(&place, &[id("gone")?]).await?, [true], "a cancel");
    let replace =
        Scheduling { on_conflict: OnConflict::Replace, ..scheduling(&place, "gone", Due::At(AT(2)))? };
    equal!(schedule(&h, &[replace]).await?, [Placed::New], "scheduled where there is nothing to replace");
    promote_delayed(&h, partition(&place)?, 2).await?;
    equal!(names(&owner.take(2).await?)?, ["new replaced", "gone"], "what came");
    let next = promote_once(&h, partition(&place)?, 10).await?;
    ensure!(next.moved == 0 && next.next > Some(HOUR / 2), "two wait for an hour: {next:?}");
    owner.nothing("the others are due later").await
}

async fn the_servers_time_is_that_of_its_entries(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let before = h.now().await?;
    let (between, after) = (h.clock(&tp).await?, h.now().await?);
    ensure!((before..=after).contains(&between), "the server's time is {before}, {between}, {after}");
    Ok(())
}
