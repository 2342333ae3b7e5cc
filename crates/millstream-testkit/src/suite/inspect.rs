//! Inspect: all stored data can be read, and reading it changes nothing.

use std::time::Duration;

use millstream_core::inspect::{Parked, Pending, Range, Stored, Stream, Structure};
use millstream_core::log::Source;
use millstream_core::{GroupName, MessageId, Resource, TopicPartition, wire};

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{BRIEF, Harness, LONG, foreign, message};
use crate::owner::{hold, note, retry_as};

suite!("inspect":
    entries_are_shown_byte_for_byte,
    entries_come_in_pages_in_both_directions,
    entries_of_a_retry_log_are_shown,
    looking_takes_nothing,
    pending_entries_are_shown_with_what_is_known_of_them,
    parked_retries_are_shown_by_due_time,
    owners_are_shown_with_their_leases,
    consumers_are_shown_with_what_they_have,
    a_server_says_what_it_is,
    usage_grows_with_what_is_kept,
);

const HOUR: Duration = Duration::from_secs(3_600);

async fn entries(
    h: &Harness,
    tp: &TopicPartition,
    stream: &Stream,
    range: Range,
    limit: usize,
) -> Result<(Vec<Stored>, bool), Violation> {
    let page = h.backend.inspect()?.entries(tp, stream, range, limit).await?;
    Ok((page.items, page.more))
}

async fn entries_are_shown_byte_for_byte(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let ids = h.append(&tp, [foreign(), message(1)]).await?;
    let (shown, more) = entries(&h, &tp, &Stream::Log, Range::ALL, 10).await?;
    let expected = [Stored::new(ids[0], foreign()), Stored::new(ids[1], message(1))].to_vec();
    equal!(shown, expected, "entries of the log");
    ensure!(!more, "there is more behind the last entry");
    let nowhere = TopicPartition::new(h.unique("nowhere").parse()?, 0);
    equal!(entries(&h, &nowhere, &Stream::Log, Range::ALL, 10).await?, (vec![], false), "of no log");
    Ok(())
}

async fn entries_come_in_pages_in_both_directions(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut ids = h.append_n(&tp, 25).await?;
    for newest_first in [false, true] {
        let (mut range, mut seen) = (Range { newest_first, ..Range::ALL }, Vec::new());
        let mut deadline = h.wait_for("the last page");
        loop {
            let (page, more) = entries(&h, &tp, &Stream::Log, range, 10).await?;
            ensure!(page.len() <= 10, "a page of {} entries", page.len());
            seen.extend(page.iter().map(|stored| stored.id));
            match page.last() {
                Some(last) if more => range = range.behind(last.id),
                _ => break,
            }
            deadline.pause().await?;
        }
        equal!(seen, ids, "all pages, the newest first: {newest_first}");
        ids.reverse();
    }
    let range = Range { after: ids[3], before: ids[7], newest_first: false };
    let between: Vec<_> = entries(&h, &tp, &Stream::Log, range, 10).await?.0;
    equal!(between.iter().map(|it| it.id).collect::<Vec<_>>(), ids[4..7], "between two entries");
    Ok(())
}

async fn entries_of_a_retry_log_are_shown(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut owner, group) = (h.owner(&tp, "group").await?, GroupName::new("group")?);
    h.append(&tp, [foreign()]).await?;
    let entry = owner.take(1).await?.remove(0);
    owner.settle_all(std::slice::from_ref(&entry), &retry_as(2, entry.receipt.id, Duration::ZERO)).await?;
    owner.promote(1).await?;
    let (shown, _) = entries(&h, &tp, &Stream::Retry(group), Range::ALL, 10).await?;
    let bodies: Vec<_> = shown.iter().map(|it| wire::body_of(Source::Retry, &it.fields).to_vec()).collect();
    equal!(bodies, [foreign()], "bodies in the retry log");
    Ok(())
}

async fn pending(h: &Harness, tp: &TopicPartition, group: &str) -> Result<Vec<Pending>, Violation> {
    let inspect = h.backend.inspect()?;
    Ok(inspect.pending(tp, &group.parse()?, Source::Log, MessageId::ZERO, 100).await?.items)
}

async fn looking_takes_nothing(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 3).await?;
    for _ in 0..3 {
        entries(&h, &tp, &Stream::Log, Range::ALL, 10).await?;
        equal!(pending(&h, &tp, "group").await?, [], "what is pending before anybody reads");
    }
    let taken = owner.take(3).await?;
    ensure!(taken.iter().all(|entry| entry.deliveries == 1), "handed out before: {taken:?}");
    Ok(())
}

async fn pending_entries_are_shown_with_what_is_known_of_them(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let ids = h.append_n(&tp, 5).await?;
    let entries = owner.take(5).await?;
    owner.settle_all(&entries[1..2], &hold(3, HOUR)).await?;
    owner.ack(&entries[4..]).await?;
    owner.reopen().await?;
    owner.take(4).await?;
    let mut deadline = h.wait_for("some time to pass");
    let shown = loop {
        let shown = pending(&h, &tp, "group").await?;
        if shown.iter().all(|it| it.idle >= Duration::from_millis(5)) {
            break shown;
        }
        deadline.pause().await?;
    };
    equal!(shown.iter().map(|it| it.id).collect::<Vec<_>>(), ids[..4], "what is pending");
    ensure!(shown.iter().all(|it| it.deliveries == 2), "each was handed out twice: {shown:?}");
    ensure!(shown.iter().all(|it| !it.consumer.is_empty()), "each stands under a name: {shown:?}");
    let noted: Vec<_> = shown.iter().map(|it| it.note.as_ref().map(|it| (it.attempt, &*it.error))).collect();
    let expected = note(3, HOUR);
    equal!(noted, [None, Some((3, &*expected.error)), None, None], "their notes");
    let group = "group".parse()?;
    let page = h.backend.inspect()?.pending(&tp, &group, Source::Log, ids[0], 2).await?;
    equal!(page.items.iter().map(|it| it.id).collect::<Vec<_>>(), ids[1..3], "a page of them");
    ensure!(page.more, "there is no more behind a page that is full");
    equal!(pending(&h, &tp, "other").await?, [], "what is pending in a group that is not there");
    Ok(())
}

async fn parked_retries_are_shown_by_due_time(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let (mut owner, group) = (h.owner(&tp, "group").await?, GroupName::new("group")?);
    let ids = h.append(&tp, [foreign(), message(1), message(2)]).await?;
    let entries = owner.take(3).await?;
    for (entry, hours) in entries.iter().zip([3, 1, 2]) {
        let settlement = retry_as(2, entry.receipt.id, HOUR * hours);
        owner.settle_all(std::slice::from_ref(entry), &settlement).await?;
    }
    let (mut seen, mut after) = (Vec::<Parked>::new(), None);
    let mut deadline = h.wait_for("the last page");
    loop {
        let page = h.backend.inspect()?.parked(&tp, &group, after, 2).await?;
        ensure!(page.items.len() <= 2, "a page of {}", page.items.len());
        after = page.items.last().map(|it| (it.due, it.origin));
        seen.extend(page.items);
        if !page.more {
            break;
        }
        deadline.pause().await?;
    }
    equal!(seen.iter().map(|it| it.origin).collect::<Vec<_>>(), [ids[1], ids[2], ids[0]], "by due time");
    ensure!(seen.is_sorted_by_key(|it| it.due), "by due time: {seen:?}");
    let told: Vec<_> = seen.iter().map(|it| (it.attempt, &*it.error, it.history.failures().len())).collect();
    equal!(told, [(2, "attempt 1 failed", 1); 3], "what is told of them");
    equal!(seen[2].body, foreign(), "the body");
    Ok(())
}

async fn owners_are_shown_with_their_leases(h: Harness) -> Verdict {
    let (topic, group) = (h.topic(3).await?, GroupName::new("group")?);
    let all: Vec<_> = topic.iter().map(|tp| Resource::partition(tp, group.clone())).collect();
    let first = h.granted(&all[0], LONG).await?;
    h.granted(&all[2], BRIEF).await?;
    let second = h.eventually_granted(&all[2], LONG).await?;
    let owners = h.backend.inspect()?.owners(&topic, &group).await?;
    let numbers: Vec<_> = owners.iter().map(|it| it.partition.0).collect();
    equal!(numbers, [0, 1, 2], "each partition");
    let epochs: Vec<_> = owners.iter().map(|it| it.holder.as_ref().map(|holder| holder.epoch)).collect();
    equal!(epochs, [Some(first.epoch), None, Some(second.epoch)], "who has them");
    equal!(
        owners.iter().map(|it| it.ttl).collect::<Vec<_>>(),
        [Some(LONG), None, Some(LONG)],
        "for how long"
    );
    equal!(owners.iter().map(|it| it.ends).collect::<Vec<_>>(), [0, 0, 1], "ends before");
    let left = owners.iter().filter_map(|it| it.holder.as_ref());
    for holder in left {
        let fits = !holder.expires_in.is_zero() && holder.expires_in <= LONG;
        ensure!(fits && holder.owner == "testkit", "a holder as it was not granted: {holder:?}");
    }
    Ok(())
}

async fn consumers_are_shown_with_what_they_have(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 3).await?;
    owner.take(3).await?;
    let group = GroupName::new("group")?;
    let shown = h.backend.inspect()?.consumers(&tp, &group).await?;
    let log: Vec<_> = shown.iter().filter(|it| it.source == Source::Log).collect();
    equal!(log.iter().map(|it| it.pending).collect::<Vec<_>>(), [3], "what is pending under each name");
    ensure!(log.iter().all(|it| !it.consumer.is_empty()), "a name is empty: {log:?}");
    let none = h.backend.inspect()?.consumers(&tp, &GroupName::new("other")?).await?;
    equal!(none, [], "of a group that is not there");
    Ok(())
}

async fn a_server_says_what_it_is(h: Harness) -> Verdict {
    let server = h.backend.inspect()?.server().await?;
    ensure!(!server.kind.is_empty(), "it has no name: {server:?}");
    ensure!(server.denied.is_empty(), "what is needed is denied: {:?}", server.denied);
    let servers = h.backend.inspect()?.servers().await?;
    ensure!(!servers.is_empty(), "there is none");
    for server in &servers {
        ensure!(server.away.is_none() && !server.kind.is_empty(), "it is away, or has no name: {server:?}");
        ensure!(server.denied.is_empty(), "what is needed is denied: {:?}", server.denied);
        ensure!(servers.len() == 1 || server.address.is_some(), "which of several is it: {server:?}");
    }
    Ok(())
}

async fn usage_grows_with_what_is_kept(h: Harness) -> Verdict {
    let (tp, group) = (h.partition().await?, GroupName::new("group")?);
    let log = async || -> Result<(u64, u64), Violation> {
        let usage =
            h.backend.inspect()?.usage(std::slice::from_ref(&tp), std::slice::from_ref(&group)).await?;
        let logs = usage.iter().filter(|it| it.structure == Structure::Log);
        Ok(logs.fold((0, 0), |sum, it| (sum.0 + it.items, sum.1 + it.bytes)))
    };
    let empty = log().await?;
    h.append_n(&tp, 1_000).await?;
    let full = log().await?;
    equal!((empty.0, full.0), (0, 1_000), "entries");
    ensure!(full.1 > empty.1 + 1_000, "{full:?} after {empty:?}");
    Ok(())
}
