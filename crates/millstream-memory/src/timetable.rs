//! Schedule of a place, a partition or a shard alike: waiting messages until they are due, and recurring ones.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use millstream_core::history::History;
use millstream_core::recurring::Recurrence;
use millstream_core::schedule::{OnConflict, Placed, ScheduleId, Scheduled, Waiting};
use millstream_core::sorted::SortedMap;
use millstream_core::tasks::{FoundTask, TaskPlace};
use millstream_core::wire::Fields;
use millstream_core::{Error, ErrorKind, Result, Timestamp};

/// Schedule of a place. Due times are those of the server's clock. An id is in `due` and `items`, or in `claimed`, or
/// in none.
#[derive(Clone, Debug, Default)]
pub(crate) struct Timetable {
    due: BTreeSet<(Timestamp, ScheduleId)>,
    items: BTreeMap<ScheduleId, Item>,
    /// Tasks of a shard that are being worked on: their ids are in use.
    pub(crate) claimed: SortedMap<ScheduleId, Box<Claim>>,
    /// Completed tasks of a shard whose ids are in use until this time.
    finished: SortedMap<ScheduleId, Timestamp>,
    /// Recurring entries that are not paused and not over, by their next time.
    recurring: BTreeSet<(Timestamp, ScheduleId)>,
    recurrences: SortedMap<ScheduleId, Box<Recurrence>>,
}

/// Message that waits.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) due: Timestamp,
    /// Fields; `None` if an operator deleted them.
    pub(crate) fields: Option<Fields>,
    /// Attempt history of a task that was claimed before.
    pub(crate) past: Past,
}

/// Task that is claimed by a worker.
#[derive(Clone, Debug)]
pub(crate) struct Claim {
    pub(crate) item: Item,
    pub(crate) token: String,
    /// Time at which it runs out.
    pub(crate) deadline: Timestamp,
    /// Hold time of the last claim or extension, in whole milliseconds.
    pub(crate) hold: Duration,
    /// Whether a handler has begun, as far as the worker reported it.
    pub(crate) begun: bool,
}

/// Attempt history of a task.
#[derive(Clone, Debug)]
pub(crate) struct Past {
    pub(crate) attempt: u32,
    pub(crate) crashes: u32,
    pub(crate) error: String,
    pub(crate) history: History,
}

impl Default for Past {
    fn default() -> Self {
        Self { attempt: 1, crashes: 0, error: String::new(), history: History::default() }
    }
}

impl Item {
    pub(crate) fn new(due: Timestamp, fields: Option<Fields>) -> Self {
        Self { due, fields, past: Past::default() }
    }

    /// Returns the size of the fields, in bytes.
    pub(crate) fn size(&self) -> usize {
        self.fields.iter().flatten().map(|(name, value)| name.len() + value.len()).sum()
    }
}

/// Resolves a conflict with an id that is in use.
fn conflict(on_conflict: OnConflict, id: &ScheduleId) -> Result<Placed> {
    match on_conflict {
        OnConflict::Keep => Ok(Placed::Kept),
        OnConflict::Replace | OnConflict::Debounce | OnConflict::KeepLast => Ok(Placed::Replaced),
        OnConflict::Reject => Err(Error::new(ErrorKind::Exists, format!("{id} already exists"))),
    }
}

impl Timetable {
    /// Returns the next due time of all waiting and recurring entries.
    pub(crate) fn head(&self) -> Option<Timestamp> {
        self.first_due().into_iter().chain(self.first_recurrence()).min()
    }

    /// Returns the next due time of the waiting messages.
    pub(crate) fn first_due(&self) -> Option<Timestamp> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Returns the next due time of the recurring entries.
    pub(crate) fn first_recurrence(&self) -> Option<Timestamp> {
        self.recurring.first().map(|(next, _)| *next)
    }

    /// Returns whether the head is earlier than `before`.
    pub(crate) fn is_ahead_of(&self, before: Option<Timestamp>) -> bool {
        self.head().is_some_and(|head| before.is_none_or(|before| head < before))
    }

    pub(crate) fn place(
        &mut self,
        id: &ScheduleId,
        mut item: Item,
        on_conflict: OnConflict,
    ) -> Result<Placed> {
        if self.claimed.contains_key(id) {
            return match on_conflict {
                // Kept would mean that the newest body is lost.
                OnConflict::Debounce | OnConflict::KeepLast => conflict(OnConflict::Reject, id),
                other => conflict(other, id).map(|_| Placed::Kept),
            };
        }
        if let Some(waits) = self.items.get(id) {
            item.due = match on_conflict {
                OnConflict::Debounce => item.due.max(waits.due),
                OnConflict::KeepLast => waits.due,
                _ => item.due,
            };
        }
        let placed = if self.items.contains_key(id) { conflict(on_conflict, id)? } else { Placed::New };
        if placed != Placed::Kept {
            self.take(id);
            self.enter(id, item);
        }
        Ok(placed)
    }

    /// Keeps the id of a completed task in use until `free`, and forgets those that are free.
    pub(crate) fn finish(&mut self, id: &ScheduleId, now: Timestamp, free: Timestamp) {
        self.finished.retain(|_, free| *free > now);
        self.finished.insert(id.clone(), free);
    }

    /// Returns whether a task of this id was completed and its id is still in use.
    pub(crate) fn is_finished(&self, id: &ScheduleId, now: Timestamp) -> bool {
        !self.items.contains_key(id) && self.finished.get(id).is_some_and(|free| *free > now)
    }

    /// Adds a message under an id that is not in use.
    pub(crate) fn enter(&mut self, id: &ScheduleId, item: Item) {
        debug_assert!(!self.is_in_use(id), "{id} is in use");
        self.due.insert((item.due, id.clone()));
        self.items.insert(id.clone(), item);
    }

    /// Returns whether an id waits or is being worked on.
    pub(crate) fn is_in_use(&self, id: &ScheduleId) -> bool {
        self.items.contains_key(id) || self.claimed.contains_key(id)
    }

    /// Removes a waiting message.
    pub(crate) fn take(&mut self, id: &ScheduleId) -> Option<Item> {
        let item = self.items.remove(id)?;
        self.due.remove(&(item.due, id.clone()));
        Some(item)
    }

    /// Removes the first message if it is due.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Option<(ScheduleId, Item)> {
        self.due.first().filter(|(due, _)| *due <= now)?;
        let (_, id) = self.due.pop_first()?;
        let item = self.items.remove(&id)?;
        Some((id, item))
    }

    /// Changes the due time of a waiting message. Returns false if it does not wait.
    pub(crate) fn reschedule(&mut self, id: &ScheduleId, due: Timestamp) -> bool {
        let Some(item) = self.items.get_mut(id) else { return false };
        self.due.remove(&(item.due, id.clone()));
        self.due.insert((due, id.clone()));
        item.due = due;
        true
    }

    pub(crate) fn get(&self, id: &ScheduleId) -> Option<Scheduled> {
        let item = self.items.get(id)?;
        Some(Scheduled::new(id.clone(), item.due, item.fields.clone().unwrap_or_default()))
    }

    /// Returns a task that waits, is claimed, or was done and whose id is in use.
    pub(crate) fn find(&self, id: &ScheduleId, now: Timestamp) -> Option<FoundTask> {
        let found = |state, item: &Item| {
            let fields = item.fields.clone().unwrap_or_default();
            FoundTask::new(state, item.past.attempt, item.past.error.clone(), fields)
        };
        if let Some(claim) = self.claimed.get(id) {
            return Some(found(TaskPlace::Claimed(claim.deadline), &claim.item));
        }
        if let Some(item) = self.items.get(id) {
            return Some(found(TaskPlace::Waiting(item.due), item));
        }
        let free = self.finished.get(id).filter(|free| **free > now)?;
        Some(FoundTask::new(TaskPlace::Finished(*free), 0, String::new(), Fields::new()))
    }

    /// Returns how many claims of a waiting task ran out during its attempt.
    pub(crate) fn crashes(&self, id: &ScheduleId) -> u32 {
        self.items.get(id).map_or(0, |item| item.past.crashes)
    }

    pub(crate) fn page(&self, after: Option<(Timestamp, ScheduleId)>, limit: usize) -> Vec<Scheduled> {
        let above = after.map_or(Bound::Unbounded, Bound::Excluded);
        let page = self.due.range((above, Bound::Unbounded)).take(limit);
        page.filter_map(|(_, id)| self.get(id)).collect()
    }

    /// Returns up to `limit` ids above `after` of waiting messages, or of claimed tasks, and whether each has lost its body.
    pub(crate) fn bodies(
        &self,
        claimed: bool,
        after: Option<&ScheduleId>,
        limit: usize,
    ) -> Vec<(ScheduleId, bool)> {
        if claimed {
            let page = self.claimed.above(after).iter().take(limit);
            return page.map(|(id, claim)| (id.clone(), claim.item.fields.is_none())).collect();
        }
        let above = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        let page = self.items.range::<ScheduleId, _>(above).take(limit);
        page.map(|(id, item)| (id.clone(), item.fields.is_none())).collect()
    }

    /// Removes a waiting or claimed message that has lost its body. Returns false if it has a body or does not exist.
    pub(crate) fn take_lost(&mut self, id: &ScheduleId) -> bool {
        if self.claimed.get(id).is_some_and(|claim| claim.item.fields.is_none()) {
            return self.claimed.remove(id).is_some();
        }
        self.items.get(id).is_some_and(|item| item.fields.is_none()) && self.take(id).is_some()
    }

    /// Returns number and bytes of the waiting and claimed messages, and of the recurring entries.
    pub(crate) fn sizes(&self) -> [(u64, u64); 2] {
        let items = self.items.values().chain(self.claimed.values().map(|claim| &claim.item));
        let waiting = (self.items.len() + self.claimed.len()) as u64;
        let recurring = self.recurrences.values().map(|it| crate::stream::bytes(&it.fields)).sum();
        [(waiting, items.map(|item| item.size() as u64).sum()), (self.recurrences.len() as u64, recurring)]
    }

    pub(crate) fn waiting(&self, now: Timestamp) -> Waiting {
        let overdue = self.due.iter().take_while(|(due, _)| *due <= now).count();
        Waiting { first: self.first_due(), ..Waiting::new(self.due.len() as u64, overdue as u64) }
    }

    /// Drops a waiting or claimed message except for its id. Returns false if it does not exist.
    pub(crate) fn lose(&mut self, id: &ScheduleId) -> bool {
        let claimed = self.claimed.get_mut(id).map(|claim| &mut claim.item);
        claimed.or(self.items.get_mut(id)).and_then(|item| item.fields.take()).is_some()
    }

    pub(crate) fn put(&mut self, recurrence: Recurrence, on_conflict: OnConflict) -> Result<Placed> {
        let id = recurrence.id.clone();
        let placed =
            if self.recurrences.contains_key(&id) { conflict(on_conflict, &id)? } else { Placed::New };
        if placed != Placed::Kept {
            let paused = self.recurrences.get(&id).map_or(recurrence.paused, |there| there.paused);
            self.remove(&id);
            self.recurrences.insert(id.clone(), Box::new(Recurrence { paused, ..recurrence }));
            self.follow(&id);
        }
        Ok(placed)
    }

    /// Removes a recurring entry. Returns false if it does not exist.
    pub(crate) fn remove(&mut self, id: &ScheduleId) -> bool {
        self.unfollow(id);
        self.recurrences.remove(id).is_some()
    }

    /// Pauses a recurring entry, or continues it at `next`. Returns false if it does not exist.
    pub(crate) fn pause(&mut self, id: &ScheduleId, next: Option<Timestamp>) -> bool {
        self.unfollow(id);
        let Some(recurrence) = self.recurrences.get_mut(id) else { return false };
        recurrence.paused = next.is_none();
        if next.is_some() {
            recurrence.next = next;
        }
        self.follow(id);
        true
    }

    pub(crate) fn recurrence(&self, id: &ScheduleId) -> Option<Recurrence> {
        self.recurrences.get(id).map(|it| Recurrence::clone(it))
    }

    pub(crate) fn recurrences(&self, after: Option<&ScheduleId>, limit: usize) -> Vec<Recurrence> {
        let page = self.recurrences.above(after).iter().take(limit);
        page.map(|(_, it)| Recurrence::clone(it)).collect()
    }

    pub(crate) fn due(&self, now: Timestamp, limit: usize) -> Vec<Recurrence> {
        let due = self.recurring.iter().take_while(|(next, _)| *next <= now).take(limit);
        due.filter_map(|(_, id)| self.recurrence(id)).collect()
    }

    pub(crate) fn recurs_now(&self, now: Timestamp) -> bool {
        self.first_recurrence().is_some_and(|next| next <= now)
    }

    /// Schedules a recurring entry at `fires` and sets its next time. Returns false, and changes nothing, if its next
    /// time is not `expected`.
    pub(crate) fn fire(
        &mut self,
        id: &ScheduleId,
        fires: &[(ScheduleId, Timestamp)],
        expected: Timestamp,
        next: Option<Timestamp>,
    ) -> bool {
        let still = |it: &&mut Box<Recurrence>| !it.paused && it.next == Some(expected);
        let Some(recurrence) = self.recurrences.get_mut(id).filter(still) else { return false };
        recurrence.next = next;
        let fields = recurrence.fields.clone();
        self.recurring.remove(&(expected, id.clone()));
        self.follow(id);
        for (fire, at) in fires {
            // An id that is already in use belongs to the same occurrence.
            if !self.is_in_use(fire) {
                self.enter(fire, Item::new(*at, Some(fields.clone())));
            }
        }
        true
    }

    fn follow(&mut self, id: &ScheduleId) {
        let Some(recurrence) = self.recurrences.get(id).filter(|it| !it.paused) else { return };
        if let Some(next) = recurrence.next {
            self.recurring.insert((next, id.clone()));
        }
    }

    fn unfollow(&mut self, id: &ScheduleId) {
        if let Some(next) = self.recurrences.get(id).and_then(|recurrence| recurrence.next) {
            self.recurring.remove(&(next, id.clone()));
        }
    }
}
