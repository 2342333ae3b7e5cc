//! The audit role in memory. Most faults of a server cannot occur here: the remaining ones are those that an
//! [`Operator`](crate::operator::Operator) can cause.

use std::fmt;

use async_trait::async_trait;
use millstream_core::audit::{Audit, Audited, Check, Fault, Finding, Loss, MAX_PAGE, Scope};
use millstream_core::log::Source;
use millstream_core::schedule::{Place, ScheduleId};
use millstream_core::wire::{self, Fields};
use millstream_core::{
    DeadLetter, Error, ErrorKind, GroupName, History, MessageId, Reason, Result, Timestamp, TopicPartition,
};

use crate::MemoryBackend;
use crate::state::{Item, State};
use crate::stream::{Cursor, Stream};

#[async_trait]
impl Audit for MemoryBackend {
    async fn audit(&self, scope: &Scope, check: Check, after: Option<&str>) -> Result<Audited> {
        if !scope.checks().contains(&check) {
            let why = format!("{scope} has no check {}", check.as_str());
            return Err(Error::new(ErrorKind::InvalidConfig, why));
        }
        let now = self.now();
        let mut state = self.lock();
        let mut walk = Walk { scope, audited: Audited::default() };
        match (scope, check) {
            (Scope::Partition(tp), Check::Waiting) => {
                walk.bodies(&state, &tp.clone().into(), false, after)?;
            }
            (Scope::Shard(shard), Check::Waiting) => {
                walk.bodies(&state, &shard.clone().into(), false, after)?;
            }
            (Scope::Shard(shard), Check::Claims) => {
                walk.bodies(&state, &shard.clone().into(), true, after)?;
            }
            (_, Check::Losses) => {
                walk.audited.looked_at += 1;
                let lost = state.losses.get(scope).copied();
                let record = lost.map(|loss| Finding::lost(Fault::EntriesLost, scope, "record", loss));
                walk.audited.findings.extend(record);
            }
            (Scope::Group(tp, group), Check::Position) => {
                let known = state.topic_groups.get(&tp.topic).is_some_and(|groups| groups.contains(group));
                let there = state.group(tp, group).is_some_and(|group| group.cursor.is_some());
                walk.look(known && !there, Fault::GroupMissing, &"log", &"on the log");
            }
            (Scope::Group(tp, group), Check::Parked) => {
                let after = after.map(position).transpose()?;
                let Some(group) = state.group(tp, group) else { return Ok(walk.audited) };
                for (due, origin, item) in group.parked.page(after, MAX_PAGE) {
                    let due = due.as_millis();
                    walk.look(item.is_none(), Fault::RetryLost, &origin, &format_args!("due {due}"));
                    walk.audited.next = Some(format!("{due} {origin}"));
                }
                walk.end();
            }
            (Scope::Group(tp, name), Check::Pending | Check::PendingRetries) => {
                let after = after.map(str::parse).transpose()?.unwrap_or(MessageId::ZERO);
                let Some((stream, cursor)) = streams(&mut state, tp, name, source(check)) else {
                    return Ok(walk.audited);
                };
                for pending in cursor.pending_above(after, MAX_PAGE, now) {
                    let by = format_args!("pending under {}", pending.consumer);
                    walk.look(stream.get(pending.id).is_none(), Fault::Ghost, &word(check, pending.id), &by);
                    walk.audited.next = Some(pending.id.to_string());
                }
                walk.end();
            }
            _ => {}
        }
        Ok(walk.audited)
    }

    async fn repair(&self, finding: &Finding) -> Result<bool> {
        let now = self.now().timestamp();
        let mut state = self.lock();
        let is_lost = match (&finding.scope, finding.fault) {
            (_, Fault::Ghost | Fault::BodyLost) => true,
            // Without the entry of the log, only a dead letter without a body is left of the message.
            (Scope::Group(tp, _), Fault::RetryLost) => {
                let origin = finding.id.parse()?;
                state.peek(tp).is_none_or(|partition| partition.log.get(origin).is_none())
            }
            _ => false,
        };
        let done = repair(&mut state, finding, now)?;
        if done && is_lost {
            let loss = state.losses.get_or_default(finding.scope.clone());
            *loss = loss.and(Loss::new(0, 1, 0, Some(now)));
        }
        Ok(done)
    }
}

/// Repairs one fault, if it still exists.
fn repair(state: &mut State, finding: &Finding, now: Timestamp) -> Result<bool> {
    match (&finding.scope, finding.fault) {
        (Scope::Partition(tp), Fault::BodyLost) => lost(state, &tp.clone().into(), &finding.id),
        (Scope::Shard(shard), Fault::BodyLost) => lost(state, &shard.clone().into(), &finding.id),
        (Scope::Group(tp, group), Fault::GroupMissing) => {
            let known = state.topic_groups.get(&tp.topic).is_some_and(|groups| groups.contains(group));
            let partition = state.partition(tp);
            let cursor = &mut partition.group(group).cursor;
            let missing = known && cursor.is_none();
            if missing {
                *cursor = Some(Cursor::at(MessageId::ZERO));
                partition.wake.notify_waiters();
            }
            Ok(missing)
        }
        (Scope::Group(tp, group), Fault::RetryLost) => {
            let origin: MessageId = finding.id.parse()?;
            let partition = state.partition(tp);
            let body = partition.log.get(origin).cloned();
            let of_group = partition.group(group);
            let pending = of_group.cursor.as_ref().is_some_and(|it| it.pending.contains_key(&origin));
            if pending && body.is_some() {
                // The pending entry will be settled, so the parked one is not needed.
                return Ok(of_group.parked.take_lost(origin));
            }
            if let Some(body) = body {
                return Ok(of_group.parked.mend(origin, Item::of_log(body)));
            }
            let taken = of_group.parked.take_lost(origin);
            if taken {
                of_group.dead.append(now, wire::dead_letter(&orphan(tp, group, origin), &[]));
            }
            Ok(taken)
        }
        (Scope::Group(tp, group), Fault::Ghost) => {
            let Some((source, id)) = finding.id.split_once(':') else { return Ok(false) };
            let (id, source) = (id.parse()?, if source == "log" { Source::Log } else { Source::Retry });
            let Some((stream, cursor)) = streams(state, tp, group, source) else { return Ok(false) };
            let ghost = stream.get(id).is_none();
            Ok(ghost && cursor.pending.remove(&id).is_some())
        }
        _ => Ok(false),
    }
}

struct Walk<'a> {
    scope: &'a Scope,
    audited: Audited,
}

impl Walk<'_> {
    fn look(&mut self, wrong: bool, fault: Fault, id: &dyn fmt::Display, detail: &dyn fmt::Display) {
        self.audited.looked_at += 1;
        if wrong {
            self.audited.findings.push(Finding::new(fault, self.scope, id.to_string(), detail.to_string()));
        }
    }

    /// Clears the cursor unless this page was full.
    fn end(&mut self) {
        if self.audited.looked_at < MAX_PAGE as u64 {
            self.audited.next = None;
        }
    }

    fn bodies(&mut self, state: &State, place: &Place, claimed: bool, after: Option<&str>) -> Result<()> {
        let after = after.map(ScheduleId::new).transpose()?;
        let Some(timetable) = state.peek_timetable(place) else { return Ok(()) };
        for (id, lost) in timetable.bodies(claimed, after.as_ref(), MAX_PAGE) {
            self.look(lost, Fault::BodyLost, &id, &if claimed { "worked on" } else { "waits" });
            self.audited.next = Some(id.to_string());
        }
        self.end();
        Ok(())
    }
}

/// Returns a stream, and the group's position in it.
fn streams<'a>(
    state: &'a mut State,
    tp: &TopicPartition,
    group: &GroupName,
    source: Source,
) -> Option<(&'a Stream, &'a mut Cursor)> {
    state.peek(tp)?;
    let partition = state.partition(tp);
    let group = partition.groups.get_mut(group)?;
    match source {
        Source::Log => Some((&partition.log, group.cursor.as_mut()?)),
        Source::Retry => Some((&group.retry, &mut group.retry_cursor)),
    }
}

fn source(check: Check) -> Source {
    if check == Check::Pending { Source::Log } else { Source::Retry }
}

/// Returns the id of a pending entry in a finding.
fn word(check: Check, id: MessageId) -> String {
    let source = if source(check) == Source::Log { "log" } else { "retry" };
    format!("{source}:{id}")
}

/// Parses due time and origin from the cursor of a page.
fn position(mark: &str) -> Result<(Timestamp, MessageId)> {
    let bad = || Error::new(ErrorKind::InvalidConfig, format!("{mark:?} is no valid mark"));
    let (due, origin) = mark.split_once(' ').ok_or_else(bad)?;
    let due = due.parse().map_err(|_| bad())?;
    Ok((Timestamp::from_millis(due), origin.parse()?))
}

fn lost(state: &mut State, place: &Place, id: &str) -> Result<bool> {
    let id = ScheduleId::new(id)?;
    Ok(state.change(place, |timetable| timetable.take_lost(&id)))
}

/// Returns the dead letter of a retry whose body is lost.
pub(crate) fn orphan(tp: &TopicPartition, group: &GroupName, origin: MessageId) -> DeadLetter {
    DeadLetter {
        id: MessageId::ZERO,
        reason: Reason::Orphan,
        attempts: 0,
        error: String::new(),
        origin,
        topic_partition: tp.clone(),
        group: group.clone(),
        history: History::default(),
        body: Fields::new(),
    }
}
