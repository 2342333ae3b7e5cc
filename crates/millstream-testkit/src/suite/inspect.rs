//! Inspect: all stored data can be read, and reading it changes nothing.

use std::time::Duration;

use millstream_core::catalog::{PartitionSurvey, Pin, Start};
use millstream_core::inspect::{
    GroupOverview, LogState, Overview, OverviewQuery, Ownership, Parked, Pending, Range, Stored, Stream,
    Structure,
};
use millstream_core::log::Source;
use millstream_core::members::Member;
use millstream_core::schedule::{Due, Waiting};
use millstream_core::{
    ErrorKind, GroupName, MemberId, MessageId, Partition, Reason, Resource, Settlement, TopicPartition, wire,
};

use super::schedule::place_all;
use super::suite;
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{BRIEF, Harness, LONG, foreign, message};
use crate::owner::{dead, hold, note, retry_as};

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
    an_overview_says_what_the_roles_say needs [Stats, Pause, Pins, Count, ListScheduled],
    an_overview_of_many_topics_has_an_error_for_each_that_is_missing needs [Stats, Count, ListScheduled],
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
    let since = |shown: &[Pending]| shown.iter().map(|it| it.delivered).collect::<Vec<_>>();
    let first = since(&pending(&h, &tp, "group").await?);
    let shown = loop {
        let shown = pending(&h, &tp, "group").await?;
        equal!(since(&shown), first, "the times at which they were handed out");
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
    ensure!(server.missing.is_empty(), "what is needed is missing: {:?}", server.missing);
    ensure!(server.refuses.is_none(), "it refuses to write: {:?}", server.refuses);
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
    h.append_each(&tp, 1_000).await?;
    let full = log().await?;
    equal!((empty.0, full.0), (0, 1_000), "entries");
    ensure!(full.1 > empty.1 + 1_000, "{full:?} after {empty:?}");
    Ok(())
}

/// A group of an overview, without ages, idle times and the rest of leases.
#[derive(Debug, PartialEq)]
struct Seen {
    group: GroupName,
    partitions: Vec<PartitionSurvey>,
    members: usize,
    paused: bool,
    /// Name and epoch of each owner.
    owners: Option<Vec<Option<(String, u64)>>>,
}

fn seen(group: GroupOverview) -> Result<Seen, Violation> {
    let mut partitions = group.partitions?;
    for survey in &mut partitions {
        survey.stats.oldest = survey.stats.oldest.map(|_| Duration::ZERO);
        survey.stats.oldest_parked = survey.stats.oldest_parked.map(|_| Duration::ZERO);
    }
    let holder = |owner: Ownership| owner.holder.map(|holder| (holder.owner, holder.epoch));
    let owners = group.owners.transpose()?.map(|owners| owners.into_iter().map(holder).collect());
    Ok(Seen {
        group: group.group,
        partitions,
        members: group.members?,
        paused: group.state?.paused.is_some(),
        owners,
    })
}

/// Logs, delayed messages, groups, and the entries that each pin keeps.
type Whole = (Vec<LogState>, Vec<Waiting>, Vec<Seen>, Option<Vec<(Partition, GroupName, MessageId, u64)>>);

fn whole(overview: Overview) -> Result<Whole, Violation> {
    ensure!(overview.unlisted.is_none(), "groups cannot be listed: {:?}", overview.unlisted);
    let logs = overview.logs.into_iter().collect::<Result<_, _>>()?;
    let delayed = overview.delayed.into_iter().collect::<Result<_, _>>()?;
    let groups = overview.groups.into_iter().map(seen).collect::<Result<_, _>>()?;
    let pin = |pin: Pin| (pin.partition, pin.group, pin.watermark, pin.messages);
    let pins = overview.pins.transpose()?.map(|pins| pins.into_iter().map(pin).collect());
    Ok((logs, delayed, groups, pins))
}

async fn an_overview_says_what_the_roles_say(h: Harness) -> Verdict {
    let topic = h.topic(3).await?;
    let tp = TopicPartition::new(topic.name.clone(), 1);
    let (first, second) = (GroupName::new("first")?, GroupName::new("second")?);
    for group in [&first, &second] {
        h.backend.catalog().create_group(&topic, group, Start::Earliest).await?;
    }
    let ids = h.append_each(&tp, 5).await?;
    let mut owner = h.own(&tp, &first, LONG).await?;
    let taken = owner.take(4).await?;
    let origin = |at: usize| taken[at].receipt.id;
    owner.settle_all(&taken[..1], &retry_as(2, origin(0), HOUR)).await?;
    owner.settle_all(&taken[1..2], &dead(Reason::Rejected, 1, origin(1))).await?;
    owner.settle_all(&taken[2..3], &Settlement::Ack).await?;
    h.backend.catalog().set_paused(&topic.name, &second, true).await?;
    let place = tp.clone().into();
    place_all(&h, &place, [("now", Due::NOW), ("later", Due::In(HOUR)), ("later still", Due::In(HOUR))])
        .await?;
    // Two that live, and one that does not.
    let members = h.backend.members();
    for (id, ttl) in [("one", LONG), ("two", LONG), ("brief", BRIEF)] {
        let member = Member::new(MemberId::new(id)?, h.unique("incarnation"), ttl);
        members.heartbeat(&topic.name, &first, &member, true).await?;
    }
    let mut deadline = h.wait_for("the brief member to be overdue");
    while members.roster(&topic.name, &first).await?.living().count() > 2 {
        deadline.pause().await?;
    }
    for query in [
        OverviewQuery::default(),
        OverviewQuery::default().with_owners().with_pins(),
        OverviewQuery::default().of(first.clone()).with_owners(),
        OverviewQuery::default().of(GroupName::new("unknown")?),
    ] {
        let parts = whole(h.backend.overview_by_parts(&topic.name, &query).await?)?;
        let mut told = h.backend.overview(std::slice::from_ref(&topic.name), &query).await;
        equal!(told.len(), 1, "topics");
        let told = whole(told.remove(0)?)?;
        equal!(told, parts, "the overview for {query:?}");
        equal!(told.0.iter().map(|log| log.length).collect::<Vec<_>>(), [0, 5, 0], "lengths");
        let ends: Vec<_> = told.0.iter().map(|log| (log.first, log.last)).collect();
        let (oldest, newest) = (ids.first().copied(), ids.last().copied());
        equal!(ends, [(None, None), (oldest, newest), (None, None)], "oldest and newest entries");
        let delayed: Vec<_> = told.1.iter().map(|it| (it.total, it.overdue)).collect();
        equal!(delayed, [(0, 0), (3, 1), (0, 0)], "delayed messages");
        if query.group.is_none() {
            let groups: Vec<_> = told.2.iter().map(|it| (it.group.clone(), it.members, it.paused)).collect();
            equal!(groups, [(first.clone(), 2, false), (second.clone(), 0, true)], "groups");
            let stats = told.2[0].partitions.iter().map(|it| &it.stats);
            let figures: Vec<_> = stats.map(|it| (it.lag, it.pending, it.retrying, it.dead)).collect();
            let nothing = (Some(0), 0, 0, 0);
            equal!(figures, [nothing, (Some(1), 1, 1, 1), nothing], "of the first group");
        }
    }
    Ok(())
}

async fn an_overview_of_many_topics_has_an_error_for_each_that_is_missing(h: Harness) -> Verdict {
    let mut names = Vec::new();
    for partitions in [1, 2, 3] {
        let topic = h.topic(partitions).await?;
        h.backend.catalog().create_group(&topic, &GroupName::new("group")?, Start::Earliest).await?;
        h.append_n(&TopicPartition::new(topic.name.clone(), partitions - 1), 2).await?;
        names.push(topic.name);
    }
    names.insert(1, h.unique("nowhere").parse()?);
    names.push(h.topic(1).await?.name);
    let told = h.backend.overview(&names, &OverviewQuery::default().with_owners()).await;
    equal!(told.len(), 5, "one for each");
    let mut figures = Vec::new();
    for (name, told) in names.iter().zip(told) {
        match told {
            Ok(told) => {
                equal!(&told.topic.name, name, "in their order");
                let (logs, delayed, groups, _) = whole(told)?;
                let lengths: Vec<u64> = logs.iter().map(|log| log.length).collect();
                let lags = groups.iter().map(|it| it.partitions.iter().map(|it| it.stats.lag).collect());
                figures.push((lengths, delayed.len(), lags.collect::<Vec<Vec<_>>>()));
            }
            Err(error) => {
                equal!(error.kind(), ErrorKind::NotFound, "error of a missing topic");
                equal!(name, &names[1], "the missing one");
            }
        }
    }
    let with_last = |partitions: usize| {
        let lengths: Vec<u64> = (1..=partitions).map(|at| if at == partitions { 2 } else { 0 }).collect();
        (lengths.clone(), partitions, vec![lengths.into_iter().map(Some).collect()])
    };
    equal!(
        figures,
        [with_last(1), with_last(2), with_last(3), (vec![0], 1, vec![])],
        "figures of the others"
    );
    Ok(())
}
