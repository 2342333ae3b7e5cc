//! One shard of a delay queue: waiting, claimed and dead tasks, and the workers that wait for due tasks.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use millstream_core::batches::{BatchMember, MemberEnd};
use millstream_core::history::{self, History};
use millstream_core::schedule::{Due, ScheduleId};
use millstream_core::tasks::{
    ClaimRequest, Claimed, ClaimedTask, MAX_CLAIM, MAX_WINDOW, TaskCounts, Verdict,
};
use millstream_core::wire::{self, Field, Fields};
use millstream_core::{Limits, MessageId, Reason, Timestamp};
use tokio::sync::Notify;

use crate::clock::Now;
use crate::marks::Marks;
use crate::results::Results;
use crate::steps::StepTable;
use crate::timetable::{Claim, Item, Past, Timetable};

/// Time after its announced visit for which a worker is still expected; then another one takes its place.
const GRACE: Duration = Duration::from_millis(250);

/// Size of the bodies, in bytes, after which one claim hands out no further task.
const MAX_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub(crate) struct Shard {
    pub(crate) timetable: Timetable,
    /// Deadlines of claims.
    deadlines: BTreeSet<(Timestamp, ScheduleId)>,
    pub(crate) dead: BTreeMap<MessageId, Dead>,
    last_dead: MessageId,
    /// Worker that comes for the head, and the one that comes if the first does not.
    watcher: Option<Visit>,
    deputy: Option<Visit>,
    /// Time at which a claiming worker called another one to stay near, and the name of the claiming worker, until it
    /// has passed on a call that reached itself.
    asked: Option<(Now, Option<String>)>,
    /// Time since which nothing is handed out.
    paused: Option<Timestamp>,
    /// Stores one call if no worker waits for it, as `Notify` does.
    pub(crate) calls: Arc<Notify>,
    /// Results of tasks that asked for them.
    pub(crate) results: Results,
    /// Tasks that were cancelled.
    pub(crate) marks: Marks,
    /// What handlers have done of tasks.
    pub(crate) steps: StepTable,
}

/// Dead task.
#[derive(Clone, Debug)]
pub(crate) struct Dead {
    pub(crate) task: ScheduleId,
    pub(crate) reason: Reason,
    pub(crate) attempts: u32,
    pub(crate) error: String,
    pub(crate) history: History,
    pub(crate) body: Option<Fields>,
}

/// Announced visit of a worker. It is no longer expected [`GRACE`] after that time.
#[derive(Clone, Debug)]
struct Visit {
    worker: String,
    at: Now,
    /// Whether it comes within a third of its hold time because claims are open.
    steady: bool,
}

impl Shard {
    /// Changes the timetable. If its head is earlier afterwards, one worker is called.
    pub(crate) fn change<T>(&mut self, change: impl FnOnce(&mut Timetable) -> T) -> T {
        let before = self.timetable.head();
        let done = change(&mut self.timetable);
        if self.timetable.is_ahead_of(before) {
            self.calls.notify_one();
        }
        done
    }

    /// Hands out due tasks for a claim on the server `server`; `tokens` counts all tasks ever handed out.
    pub(crate) fn claim(&mut self, ask: &ClaimRequest, now: Now, server: &str, tokens: &mut u64) -> Claimed {
        let limit = ask.limit.min(MAX_CLAIM);
        let mut claimed = Claimed::default();
        (claimed.now, claimed.server) = (now.timestamp(), server.to_owned());
        if self.paused.is_some() {
            claimed.recurring = self.timetable.recurs_now(now.timestamp());
            let recurs = self.timetable.first_recurrence();
            let recurs = recurs.map_or(Now::NEVER, |due| now.at(due)).since(now).max(GRACE);
            claimed.next = recurs.min(ask.longest_sleep);
            return claimed;
        }
        // All of them first: a claim with a hold of zero runs out in this millisecond.
        let (mut ran_out, mut due, mut bytes, mut next) = (Vec::new(), Vec::new(), 0, None);
        for (deadline, id) in self.overdue(now) {
            let Some(claim) = self.timetable.claimed.get(&id) else { continue };
            let free_at = ask.continuity.free_at(server, now.timestamp(), deadline, claim.hold);
            if free_at > now.timestamp() {
                next = next.into_iter().chain([free_at]).min();
            } else if ran_out.len() == limit || bytes >= MAX_BYTES {
                next = Some(now.timestamp());
                break;
            } else if let Some(claim) = self.timetable.claimed.remove(&id) {
                bytes += claim.item.size();
                self.deadlines.remove(&(deadline, id.clone()));
                ran_out.push((id, claim));
            }
        }
        while ran_out.len() + due.len() < limit && bytes < MAX_BYTES {
            let Some((id, item)) = self.timetable.take_due(now.timestamp()) else { break };
            bytes += item.size();
            due.push((id, item));
        }
        let full = ran_out.len() + due.len() == limit || bytes >= MAX_BYTES;
        for (id, claim) in ran_out {
            let Claim { mut item, token, begun, .. } = *claim;
            // An expired claim counts as a crash the first time, unless this worker itself held it and is obviously
            // alive. Further ones count only if a handler had begun: otherwise only an answer was lost. A task is given
            // up only if a handler is known to have begun.
            let ours = token.rsplit_once('-').is_some_and(|(worker, _)| worker == ask.worker);
            let more = u32::from(begun || item.past.crashes == 0 && !ours);
            item.past.crashes = item.past.crashes.saturating_add(more);
            if ask.crash_limit > 0 && begun && item.past.crashes >= ask.crash_limit {
                let Past { attempt: attempts, crashes, history, .. } = item.past;
                let (reason, error) = (Reason::Crashed, format!("{crashes} claims ran out"));
                // No worker settles it, so the note of its batch is left here.
                if let Some(member) = item.fields.as_deref().and_then(member_of) {
                    self.results.notes.add(&member, MemberEnd::Dead, None, now);
                }
                self.bury(now, Dead { task: id, reason, attempts, error, history, body: item.fields });
                claimed.crashed += 1;
            } else {
                claimed
                    .tasks
                    .push(ClaimedTask { before: Some(token), ..self.hand_out(id, item, ask, now, tokens) });
            }
        }
        for (id, item) in due {
            claimed.tasks.push(self.hand_out(id, item, ask, now, tokens));
        }
        if !claimed.tasks.is_empty() {
            next = next.into_iter().chain([now.due(Due::In(ask.hold))]).min();
        }
        claimed.recurring = self.timetable.recurs_now(now.timestamp());
        let head = self.head(next, now);
        claimed.next = self.come(ask, !claimed.tasks.is_empty(), full, head, now);
        claimed
    }

    /// Returns the claims that have run out, with their deadlines.
    fn overdue(&self, now: Now) -> Vec<(Timestamp, ScheduleId)> {
        self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now.timestamp()).cloned().collect()
    }

    fn hand_out(
        &mut self,
        id: ScheduleId,
        item: Item,
        ask: &ClaimRequest,
        now: Now,
        tokens: &mut u64,
    ) -> ClaimedTask {
        *tokens += 1;
        let (token, deadline) = (format!("{}-{tokens}", ask.worker), now.due(Due::In(ask.hold)));
        let Past { attempt, crashes, error, history } = item.past.clone();
        let (due, fields) = (item.due, item.fields.clone().unwrap_or_default());
        self.deadlines.insert((deadline, id.clone()));
        self.timetable.claimed.insert(
            id.clone(),
            Box::new(Claim {
                item,
                token: token.clone(),
                deadline,
                hold: ceil_millis(ask.hold),
                begun: false,
            }),
        );
        ClaimedTask { id, token, before: None, due, attempt, crashes, error, history, fields }
    }

    /// Returns when a worker must come next; `next` stands for claims that have run out already. An overdue recurring
    /// task, which is reported to the caller, must not make all workers come again and again.
    fn head(&self, next: Option<Timestamp>, now: Now) -> Now {
        let deadline = self.deadlines.iter().map(|(deadline, _)| *deadline).find(|it| *it > now.timestamp());
        let first = self.timetable.first_due().into_iter().chain(deadline).chain(next).min();
        let recurs = self.timetable.first_recurrence();
        let recurs = recurs.map(|due| if due <= now.timestamp() { now.plus(GRACE) } else { now.at(due) });
        first.map(|due| now.at(due)).into_iter().chain(recurs).min().unwrap_or(Now::NEVER)
    }

    /// Returns when a worker must come again: one comes for the head, one in case the first does not, and all others
    /// when their longest sleep ends. While claims are open, those two come three times per hold time, so that they may take
    /// over claims that run out. A claiming worker ensures that another worker is one of the two, with one call per
    /// third of a hold; a call that reaches itself is passed on.
    fn come(&mut self, ask: &ClaimRequest, claims: bool, full: bool, head: Now, now: Now) -> Duration {
        let third = ask.hold / 3;
        let open = !self.deadlines.is_empty();
        let asked = self.asked.take().filter(|(at, _)| now < at.plus(third));
        let steady = open || asked.is_some();
        let near = if steady { ask.longest_sleep.min(third) } else { ask.longest_sleep };
        let stays = |visit: &Visit| visit.worker != ask.worker && visit.at.plus(GRACE) > now && visit.steady;
        let alone = open && !self.watcher.iter().chain(&self.deputy).any(stays);
        let calls = alone
            && match &asked {
                None => full || claims,
                Some((_, caller)) => caller.as_ref() == Some(&ask.worker),
            };
        self.asked = match asked {
            None if calls => Some((now, Some(ask.worker.clone()))),
            Some((at, caller)) => Some((at, caller.filter(|caller| *caller != ask.worker))),
            None => None,
        };
        let next = head.since(now).min(near);
        if full {
            self.look_away(&ask.worker, calls, head, now);
            return if ask.limit == 0 { ask.longest_sleep } else { next };
        }
        let mine = |at| Some(Visit { worker: ask.worker.clone(), at, steady });
        let another = |visit: &&Visit| visit.worker != ask.worker && visit.at.plus(GRACE) > now;
        let next = match self.watcher.as_ref().filter(another) {
            Some(watcher) if head >= watcher.at => {
                let until = watcher.at.plus(GRACE);
                if self.deputy.as_ref().filter(another).is_some_and(|deputy| deputy.at <= until) {
                    ask.longest_sleep
                } else {
                    let next = until.since(now).min(near);
                    self.deputy = mine(now.plus(next));
                    next
                }
            }
            _ => {
                self.forget(&ask.worker);
                self.watcher = mine(now.plus(next));
                // A pending call that no worker has received asks for what was done here, so it is consumed.
                pin!(self.calls.notified()).enable();
                next
            }
        };
        if calls {
            self.calls.notify_one();
        }
        next
    }

    /// Removes a worker without free capacity from the visits. Another one is called in its place, unless one comes in
    /// time anyway.
    fn look_away(&mut self, worker: &str, calls: bool, head: Now, now: Now) {
        self.forget(worker);
        if calls || head < Now::NEVER && (head <= now || !self.comes_by(head, now)) {
            self.calls.notify_one();
        }
    }

    fn forget(&mut self, worker: &str) {
        for visit in [&mut self.watcher, &mut self.deputy] {
            *visit = visit.take().filter(|visit| visit.worker != worker);
        }
    }

    /// Returns whether a worker has announced a visit by then.
    fn comes_by(&self, time: Now, now: Now) -> bool {
        let comes = |visit: &Visit| visit.at.plus(GRACE) > now && visit.at <= time;
        self.watcher.as_ref().is_some_and(comes) || self.deputy.as_ref().is_some_and(comes)
    }

    /// Removes the claim with this token.
    fn give_up(&mut self, id: &ScheduleId, token: &str) -> Option<Box<Claim>> {
        let deadline = self.timetable.claimed.get(id).filter(|claim| claim.token == token)?.deadline;
        self.deadlines.remove(&(deadline, id.clone()));
        self.timetable.claimed.remove(id)
    }

    /// Settles tasks, and returns their number. If a task became the head, a worker is called, unless one comes in time
    /// anyway.
    pub(crate) fn settle(&mut self, batch: &[(ScheduleId, String, Verdict)], now: Now) -> usize {
        let before = self.timetable.head();
        let settled = batch.iter().filter(|(id, token, verdict)| self.settle_one(id, token, verdict, now));
        let settled = settled.count();
        let head = self.timetable.head().filter(|_| self.timetable.is_ahead_of(before));
        if head.is_some_and(|head| head <= now.timestamp() || !self.comes_by(now.at(head), now)) {
            self.calls.notify_one();
        }
        settled
    }

    /// Removes a claimed task that was cancelled. False if it is claimed under another token.
    pub(crate) fn end_cancelled(&mut self, id: &ScheduleId, token: &str) -> bool {
        let ended = self.give_up(id, token).is_some();
        if ended {
            self.steps.remove(id.as_ref());
        }
        ended
    }

    /// Settles one task. Returns false if the claim is another worker's by now, or is settled.
    fn settle_one(&mut self, id: &ScheduleId, token: &str, verdict: &Verdict, now: Now) -> bool {
        let Some(claim) = self.give_up(id, token) else { return false };
        let Claim { item, begun, .. } = *claim;
        if let Some(result) = verdict.result() {
            self.results.put(result, now);
        }
        let is_over = !matches!(verdict, Verdict::Retry { .. } | Verdict::Dead { .. });
        if is_over {
            self.steps.remove(id.as_ref());
        }
        match verdict {
            Verdict::Complete | Verdict::CompleteWith { window: None, .. } => {}
            Verdict::CompleteFor(window) | Verdict::CompleteWith { window: Some(window), .. } => {
                let window = ceil_millis((*window).min(MAX_WINDOW)).max(Duration::from_millis(1));
                let at = now.timestamp();
                self.timetable.finish(id, at, at.saturating_add(window));
            }
            Verdict::Retry { due, attempt, error, history, wait } => {
                let snoozed = *attempt == item.past.attempt && error.is_empty();
                let past = if snoozed {
                    let crashes = if begun { 0 } else { item.past.crashes };
                    Past { crashes, ..item.past }
                } else {
                    let line = history::line(item.past.attempt, error);
                    let lines =
                        format!("{}\n{} {line}", history.before_one_more(), now.timestamp().as_millis());
                    let history = History::parse(&lines);
                    Past { attempt: *attempt, crashes: 0, error: one_line(error), history }
                };
                let mut due = now.due(*due);
                if let Some(wait) = wait {
                    due = self.steps.wait_until(id.as_ref(), wait, due, now.timestamp());
                }
                let item = Item { due, fields: item.fields, past };
                self.timetable.enter(id, item);
            }
            Verdict::Dead { reason, attempts, error, history, result: _ } => {
                let (task, reason, attempts) = (id.clone(), reason.clone(), *attempts);
                let (error, history) = (wire::cut(error).to_owned(), history.clone());
                self.bury(now, Dead { task, reason, attempts, error, history, body: item.fields });
            }
        }
        true
    }

    fn bury(&mut self, now: Now, mut dead: Dead) {
        dead.history.add(now.timestamp(), dead.attempts, &dead.error);
        if self.steps.contains(dead.task.as_ref()) {
            self.steps.bury(dead.task.as_ref(), dead.body.get_or_insert_default());
        }
        let ms = now.timestamp().as_millis();
        self.last_dead = if ms > self.last_dead.ms { MessageId::new(ms, 0) } else { self.last_dead.next() };
        self.dead.insert(self.last_dead, dead);
    }

    /// Extends a claim to `hold` from now, and records that a handler begins if `begun`. Returns false if the token no
    /// longer has the claim.
    pub(crate) fn extend(
        &mut self,
        id: &ScheduleId,
        token: &str,
        hold: Duration,
        begun: bool,
        now: Now,
    ) -> bool {
        let Some(claim) = self.timetable.claimed.get_mut(id).filter(|claim| claim.token == token) else {
            return false;
        };
        self.deadlines.remove(&(claim.deadline, id.clone()));
        (claim.deadline, claim.hold) = (now.due(Due::In(hold)), ceil_millis(hold));
        claim.begun |= begun;
        self.deadlines.insert((claim.deadline, id.clone()));
        true
    }

    pub(crate) fn counts(&self, now: Now) -> TaskCounts {
        let expired = self.deadlines.iter().take_while(|(deadline, _)| *deadline <= now.timestamp()).count();
        TaskCounts {
            waiting: self.timetable.waiting(now.timestamp()),
            claimed: self.timetable.claimed.len() as u64,
            expired: expired as u64,
            dead: self.dead.len() as u64,
            paused: self.paused,
        }
    }

    /// Pauses or resumes. Returns whether that changed anything.
    pub(crate) fn set_paused(&mut self, paused: bool, now: Now) -> bool {
        if self.paused.is_some() == paused {
            return false;
        }
        self.paused = paused.then(|| now.timestamp());
        if !paused {
            self.calls.notify_one();
        }
        true
    }

    pub(crate) fn dead_above(&self, id: MessageId) -> impl Iterator<Item = (&MessageId, &Dead)> {
        self.dead.range((Bound::Excluded(id), Bound::Unbounded))
    }

    /// Schedules dead tasks again. Returns their number.
    pub(crate) fn replay(&mut self, ids: &[MessageId], now: Now) -> usize {
        let moved = ids.iter().filter(|id| self.replay_one(**id, now)).count();
        if moved > 0 {
            self.calls.notify_one();
        }
        moved
    }

    /// Schedules one dead task. Returns false if it does not exist, or its id is in use.
    fn replay_one(&mut self, id: MessageId, now: Now) -> bool {
        let Some(dead) = self.dead.get(&id) else { return false };
        if self.timetable.is_in_use(&dead.task) {
            return false;
        }
        let Some(Dead { task, body, .. }) = self.dead.remove(&id) else { return false };
        self.timetable.enter(&task, Item::new(now.due(Due::NOW), body));
        true
    }
}

/// Returns the place in a batch of what is stored with these fields.
fn member_of(fields: &[Field]) -> Option<BatchMember> {
    BatchMember::of(&wire::decode_body(fields, &Limits::NONE).ok()?.headers)
}

/// Rounds a hold time up to whole milliseconds, as deadlines are.
fn ceil_millis(hold: Duration) -> Duration {
    Duration::from_millis(u64::try_from(hold.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX))
}

fn one_line(error: &str) -> String {
    wire::cut(error).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
