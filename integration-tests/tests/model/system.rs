//! The system of the model: a server, its replica, owners, requests that were given up, and every step that any of them
//! can take next.

use std::collections::HashSet;
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::sync::Mutex;

use stateright::{Model, Property};

use super::mistakes::Mistake;
use super::owner::{LINES, Line, Owner, Reader, Slot};
use super::server::{Ghost, Reply, Request, Server, Set, Source};
use super::sizes::{Faults, Sizes};

/// Most owners, and most requests that were given up and may still arrive.
pub(crate) const OWNERS: usize = 3;
const LATE: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) server: Server,
    pub(crate) ghost: Ghost,
    /// What a replica has, from the moment on at which it stops to follow.
    replica: Option<Server>,
    pub(crate) owners: [Owner; OWNERS],
    /// Requests that were given up, in the order of their kinds.
    late: [Option<Request>; LATE],
    faults: Faults,
    sent: u8,
    /// Messages whose handler has begun.
    begun: Set,
    out_of_order: bool,
    /// Position of the other group, and what it was given.
    other_at: u8,
    other_has: Set,
    pub(crate) other_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Append,
    /// The lease runs out by the server's clock.
    Expire,
    Send(u8, Line, Kind),
    Execute(u8, Line),
    Receive(u8, Line),
    GiveUp(u8, Line),
    /// A request that was given up arrives, or never does.
    ArriveLate(u8),
    Crash(u8),
    /// The replica stops to follow: what is done from here on is lost in a fail-over.
    FallBehind,
    FailOver {
        behind: bool,
    },
    OtherGroupReads,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    Acquire,
    Renew,
    Release,
    Read,
    Settle(u8),
    Promote,
}

pub(crate) struct System {
    pub(crate) sizes: Sizes,
    pub(crate) mistake: Option<Mistake>,
    /// States from which everything is settled when faults end, as far as that is known.
    settling: Mutex<HashSet<u64>>,
}

impl System {
    pub(crate) fn new(sizes: Sizes, mistake: Option<Mistake>) -> Self {
        Self { sizes, mistake, settling: Mutex::default() }
    }

    fn initial(&self) -> State {
        let mut state = State {
            server: Server::default(),
            ghost: Ghost::default(),
            replica: None,
            owners: [Owner::default(); OWNERS],
            late: [None; LATE],
            faults: self.sizes.faults,
            sent: 0,
            begun: 0,
            out_of_order: false,
            other_at: 0,
            other_has: 0,
            other_twice: false,
        };
        for message in 0..self.sizes.stored {
            state.server.append(&mut state.ghost, message);
            state.sent += 1;
        }
        state
    }

    fn can_send(&self, state: &State, owner: u8, kind: Kind) -> bool {
        let it = &state.owners[usize::from(owner)];
        let free = |line| it.is_free(line);
        let prefetch = usize::from(self.sizes.prefetch);
        match kind {
            // While another owner has the lease the answer changes nothing, so nobody asks then.
            Kind::Acquire => {
                let may_be_granted = state.server.lease.is_none_or(|lease| lease.nonce == it.nonce);
                it.holds.is_none() && free(Line::Lease) && may_be_granted
            }
            Kind::Renew => it.holds.is_some() && free(Line::Lease) && state.faults.renewals > 0,
            Kind::Release => {
                let quiet = it.holding() == 0 && free(Line::Lease) && free(Line::Settle);
                it.holds.is_some() && quiet && state.faults.releases > 0
            }
            Kind::Read => {
                let room = !it.reads_new() || it.holding() < prefetch;
                it.holds.is_some() && free(Line::Read) && room
            }
            Kind::Settle(at) => {
                it.holds.is_some() && free(Line::Settle) && it.in_flight[usize::from(at)].is_some()
            }
            Kind::Promote => it.holds.is_some() && free(Line::Settle) && state.server.parked != 0,
        }
    }

    fn send(&self, state: &mut State, owner: u8, line: Line, kind: Kind) {
        let it = &mut state.owners[usize::from(owner)];
        let Some(grant) = it.holds else { return it.acquire(owner) };
        let request = match kind {
            Kind::Acquire => return,
            Kind::Renew => {
                state.faults.renewals -= 1;
                Request::Renew { grant }
            }
            Kind::Release => {
                state.faults.releases -= 1;
                let reading = it.slot(Line::Read);
                it.gave_up(None, Line::Read);
                it.lose();
                *it.slot_mut(line) = Slot::Sent(Request::Release { grant });
                if let Slot::Sent(request) = reading {
                    state.keep_late(request);
                }
                return;
            }
            Kind::Read => match it.read(self.mistake) {
                Some(request) => request,
                None => return,
            },
            Kind::Settle(at) => {
                let Some(entry) = it.in_flight[usize::from(at)] else { return };
                // In the log stands the first attempt; by mistake the second one too, behind all first ones.
                let first = entry.source == Source::Log && entry.id <= self.sizes.messages;
                let fails = first && self.sizes.failing >> entry.message & 1 == 1;
                if fails { Request::Retry { grant, entry } } else { Request::Ack { grant, entry } }
            }
            Kind::Promote => Request::Promote { grant },
        };
        *it.slot_mut(line) = Slot::Sent(request);
    }

    /// Executes what is under way on a connection; false while it waits on the server.
    fn execute(&self, state: &mut State, owner: u8, line: Line) -> bool {
        let slot = state.owners[usize::from(owner)].slot_mut(line);
        let Slot::Sent(request) = *slot else { return false };
        let Some(reply) = state.server.execute(&mut state.ghost, self.mistake, request) else { return false };
        *slot = Slot::Replied(request, reply);
        true
    }

    fn receive(&self, state: &mut State, owner: u8, line: Line) {
        let it = &mut state.owners[usize::from(owner)];
        let received = it.receive(self.mistake, line);
        // The owner forgets a lost reader's request with the lease.
        if let Some(request) = received.given_up {
            state.keep_late(request);
        }
        for entry in received.begins.into_iter().flatten() {
            state.out_of_order |=
                state.begun >> entry.message & 1 == 0 && state.server.skips(state.begun, entry.message);
            state.begun |= 1 << entry.message;
        }
    }

    /// Whether everything that the server has is handled and settled.
    fn is_settled(&self, state: &State) -> bool {
        state.sent == self.sizes.messages && state.server.done == state.server.appended
    }

    /// The next step if no fault occurs any more: requests are answered, the dead are replaced, the living go on.
    fn without_faults(&self, state: &State) -> Option<State> {
        let mut next = *state;
        let owners = 0..self.sizes.owners;
        for owner in owners.clone() {
            for line in LINES {
                match next.owners[usize::from(owner)].slot(line) {
                    Slot::Replied(..) => {
                        self.receive(&mut next, owner, line);
                        return Some(next);
                    }
                    Slot::Sent(_) if self.execute(&mut next, owner, line) => return Some(next),
                    _ => {}
                }
            }
        }
        if next.sent < self.sizes.messages {
            return self.next_state(state, Action::Append);
        }
        let valid = |owner: &u8| {
            let holds = state.owners[usize::from(*owner)].holds;
            holds.is_some() && holds == state.server.fence
        };
        // An owner that is none any more hears of it at its next renewal.
        next.faults.renewals = 1;
        next.faults.releases = 0;
        for owner in owners.clone().filter(|owner| !valid(owner)) {
            if self.can_send(&next, owner, Kind::Renew) {
                self.send(&mut next, owner, Line::Lease, Kind::Renew);
                next.faults = state.faults;
                return Some(next);
            }
        }
        next.faults = state.faults;
        let Some(owner) = owners.clone().find(|owner| valid(owner)) else {
            // Nobody renews the lease, so it runs out, and the next one that asks is granted it.
            if next.server.lease.is_some_and(|lease| state.owners[0].nonce != lease.nonce) {
                next.server.lease = None;
            } else {
                if !self.can_send(&next, 0, Kind::Acquire) {
                    return None;
                }
                next.owners[0].acquire(0);
            }
            return Some(next);
        };
        let it = &state.owners[usize::from(owner)];
        // A read that waits on the server returns once there is something: only then is the next one needed.
        let reads = !it.reads_new() || state.server.has_unread() || it.reader == Reader::NewFirst;
        for (line, kind) in
            [(Line::Settle, Kind::Settle(0)), (Line::Settle, Kind::Promote), (Line::Read, Kind::Read)]
        {
            if (kind != Kind::Read || reads) && self.can_send(&next, owner, kind) {
                self.send(&mut next, owner, line, kind);
                return Some(next);
            }
        }
        None
    }

    /// Whether everything is settled in the end if no fault occurs any more.
    fn settles(&self, state: &State) -> bool {
        let mut known = self.settling.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let mut path = Vec::new();
        let mut at = *state;
        while !self.is_settled(&at) {
            let name = BuildHasherDefault::<DefaultHasher>::default().hash_one(at);
            if known.contains(&name) {
                break;
            }
            path.push(name);
            // No path is nearly so long unless it is a circle.
            let Some(next) = self.without_faults(&at).filter(|_| path.len() < 200) else { return false };
            at = next;
        }
        known.extend(path);
        true
    }
}

impl State {
    /// Keeps a request that was given up, if there is room: its arrival is one more fault.
    fn keep_late(&mut self, request: Request) {
        if let Some(place) = self.late.iter_mut().find(|place| place.is_none()) {
            *place = Some(request);
            self.late.sort_unstable();
        }
    }

    /// All messages that were appended to the server that there is now.
    fn messages(&self) -> impl Iterator<Item = u8> + '_ {
        (0..8).filter(|message| self.server.appended >> message & 1 == 1)
    }
}

impl Model for System {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![self.initial()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.sent < self.sizes.messages {
            actions.push(Action::Append);
        }
        if state.server.lease.is_some() && state.faults.pauses > 0 {
            actions.push(Action::Expire);
        }
        for owner in 0..self.sizes.owners {
            let it = &state.owners[usize::from(owner)];
            let mut may = |line: Line, kind: Kind| {
                if self.can_send(state, owner, kind) {
                    actions.push(Action::Send(owner, line, kind));
                }
            };
            for kind in [Kind::Acquire, Kind::Renew, Kind::Release] {
                may(Line::Lease, kind);
            }
            may(Line::Read, Kind::Read);
            may(Line::Settle, Kind::Promote);
            (0..3).for_each(|at| may(Line::Settle, Kind::Settle(at)));
            for line in LINES {
                match it.slot(line) {
                    Slot::Free => {}
                    Slot::Sent(_) => {
                        actions.push(Action::Execute(owner, line));
                        if state.faults.losses > 0 {
                            actions.push(Action::GiveUp(owner, line));
                        }
                    }
                    Slot::Replied(..) => actions.push(Action::Receive(owner, line)),
                }
            }
            if state.faults.crashes > 0 && *it != Owner::default() {
                actions.push(Action::Crash(owner));
            }
        }
        let late = state.late.iter().enumerate().filter(|(_, request)| request.is_some());
        actions.extend(late.map(|(at, _)| Action::ArriveLate(at as u8)));
        if state.faults.fail_overs > 0 {
            match state.replica {
                None => actions.push(Action::FallBehind),
                Some(_) => {
                    actions.push(Action::FailOver { behind: false });
                    if state.faults.behind {
                        actions.push(Action::FailOver { behind: true });
                    }
                }
            }
        }
        if self.sizes.other_group && state.server.log.message(state.other_at + 1).is_some() {
            actions.push(Action::OtherGroupReads);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        match action {
            Action::Append => {
                state.server.append(&mut state.ghost, state.sent);
                state.sent += 1;
            }
            Action::Expire => {
                state.server.lease = None;
                state.faults.pauses -= 1;
            }
            Action::Send(owner, line, kind) => self.send(&mut state, owner, line, kind),
            Action::Execute(owner, line) => {
                if !self.execute(&mut state, owner, line) {
                    return None;
                }
            }
            Action::Receive(owner, line) => self.receive(&mut state, owner, line),
            Action::GiveUp(owner, line) => {
                let it = &mut state.owners[usize::from(owner)];
                let Slot::Sent(request) = it.slot(line) else { return None };
                it.gave_up(self.mistake, line);
                state.keep_late(request);
                state.faults.losses -= 1;
            }
            Action::ArriveLate(at) => {
                let request = state.late[usize::from(at)].take()?;
                state.late.sort_unstable();
                // The answer goes nowhere. A read that waits on the server stays.
                state.server.execute(&mut state.ghost, self.mistake, request)?;
            }
            Action::Crash(owner) => {
                let it = std::mem::take(&mut state.owners[usize::from(owner)]);
                it.sent().for_each(|request| state.keep_late(request));
                // The next process has other nonces.
                state.owners[usize::from(owner)] = it.restarted();
                state.faults.crashes -= 1;
            }
            Action::FallBehind => state.replica = Some(state.server),
            Action::FailOver { behind } => {
                state.server = state.replica.take()?;
                state.ghost.failed_over(behind);
                state.faults.fail_overs -= 1;
                // Connections end with the old primary, and so do the requests on them. Answers may have arrived.
                state.late = [None; LATE];
                for it in &mut state.owners {
                    for line in LINES {
                        if matches!(it.slot(line), Slot::Sent(_)) {
                            *it.slot_mut(line) = Slot::Free;
                        }
                    }
                    it.reader = Reader::Closed;
                }
            }
            Action::OtherGroupReads => {
                state.other_at += 1;
                let message = state.server.log.message(state.other_at)?;
                state.other_twice |= state.other_has >> message & 1 == 1;
                state.other_has |= 1 << message;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("FENCED", |_, state: &State| !state.ghost.unfenced),
            Property::always("EPOCHS", |_, state: &State| !state.ghost.epoch_back),
            Property::always("TOKENS", |_, state: &State| !state.ghost.token_twice),
            Property::always("NO-LOSS", |_, state: &State| {
                state.messages().all(|it| state.server.copies(it) > 0)
            }),
            Property::always("ONCE", |_, state: &State| {
                state.messages().all(|it| state.server.copies(it) < 2)
            }),
            Property::always("ORDER", |_, state: &State| !state.out_of_order),
            Property::always("ONE-GROUP", |_, state: &State| !state.other_twice),
            Property::always("LIVENESS", |system: &Self, state: &State| system.settles(state)),
            // The model reaches what it is about: without these, all of the above could hold for nothing.
            Property::sometimes("all is settled", |system: &Self, state: &State| system.is_settled(state)),
            Property::sometimes("a former owner is refused", |system: &Self, state: &State| {
                !system.sizes.faults.make_former_owners() || state.refused()
            }),
        ]
    }
}

impl State {
    /// Whether an owner has the answer that its lease is lost.
    fn refused(&self) -> bool {
        let slots = self.owners.iter().flat_map(|owner| LINES.map(|line| owner.slot(line)));
        slots.into_iter().any(|slot| matches!(slot, Slot::Replied(_, Reply::Fenced)))
    }
}
