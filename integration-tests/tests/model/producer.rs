//! A producer with dedup ids: a send is repeated after a lost answer, and the server stores it once.

use stateright::{Model, Property};

use super::mistakes::Mistake;

/// Sends of one producer to one log, each with a dedup id, over a network that loses and delays, while the producer or the
/// server may die.
pub(crate) struct Sends {
    pub(crate) messages: u8,
    pub(crate) losses: u8,
    pub(crate) crashes: u8,
    pub(crate) fail_overs: u8,
    pub(crate) mistake: Option<Mistake>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Server {
    /// Entries by message: how often each was appended.
    log: [u8; 3],
    /// Messages whose id is recorded.
    ids: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Request {
    /// Appends the message, unless its id is recorded, and records it: one step.
    Append(u8),
    /// The same in two requests, by mistake: the first one records the id.
    Record(u8),
    Store(u8),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Slot {
    Free,
    Sent(Request),
    /// `true` if the id was recorded before.
    Replied(Request, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    server: Server,
    replica: Option<Server>,
    slot: Slot,
    late: [Option<Request>; 2],
    /// The message that is sent now.
    at: u8,
    /// Messages whose send returned.
    confirmed: u8,
    /// Of these, the ones that a fail-over has lost.
    excused: u8,
    losses: u8,
    crashes: u8,
    fail_overs: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Send,
    Execute,
    Receive,
    GiveUp,
    ArriveLate(u8),
    /// The producer dies. The next one sends the same message again, under the same id.
    Crash,
    FallBehind,
    FailOver,
}

impl Sends {
    fn execute(server: &mut Server, request: Request) -> bool {
        let (Request::Append(message) | Request::Record(message) | Request::Store(message)) = request;
        let known = server.ids >> message & 1 == 1;
        match request {
            Request::Append(_) if known => {}
            Request::Append(_) => {
                server.log[usize::from(message)] += 1;
                server.ids |= 1 << message;
            }
            Request::Record(_) => server.ids |= 1 << message,
            Request::Store(_) => server.log[usize::from(message)] += 1,
        }
        known
    }
}

impl Model for Sends {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            server: Server::default(),
            replica: None,
            slot: Slot::Free,
            late: [None; 2],
            at: 0,
            confirmed: 0,
            excused: 0,
            losses: self.losses,
            crashes: self.crashes,
            fail_overs: self.fail_overs,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        match state.slot {
            Slot::Free if state.at < self.messages => actions.push(Action::Send),
            Slot::Free => {}
            Slot::Sent(_) => {
                actions.push(Action::Execute);
                if state.losses > 0 && state.late.contains(&None) {
                    actions.push(Action::GiveUp);
                }
            }
            Slot::Replied(..) => actions.push(Action::Receive),
        }
        if state.crashes > 0 && state.at < self.messages {
            actions.push(Action::Crash);
        }
        for (at, request) in state.late.iter().enumerate() {
            actions.extend(request.map(|_| Action::ArriveLate(at as u8)));
        }
        if state.fail_overs > 0 {
            actions.push(if state.replica.is_none() { Action::FallBehind } else { Action::FailOver });
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = *last;
        let two_steps = self.mistake == Some(Mistake::MarkerBeforeAppend);
        match action {
            Action::Send => {
                let first = if two_steps { Request::Record } else { Request::Append };
                state.slot = Slot::Sent(first(state.at));
            }
            Action::Execute => {
                let Slot::Sent(request) = state.slot else { return None };
                state.slot = Slot::Replied(request, Self::execute(&mut state.server, request));
            }
            Action::Receive => {
                let Slot::Replied(request, known) = state.slot else { return None };
                if let Request::Record(message) = request
                    && !known
                {
                    state.slot = Slot::Sent(Request::Store(message));
                } else {
                    state.slot = Slot::Free;
                    state.confirmed |= 1 << state.at;
                    // What the old primary had replied to may be lost by then.
                    if last.server.ids >> state.at & 1 == 0 {
                        state.excused |= 1 << state.at;
                    }
                    state.at += 1;
                }
            }
            Action::GiveUp => {
                let Slot::Sent(request) = state.slot else { return None };
                state.keep(request);
                state.losses -= 1;
            }
            Action::Crash => {
                if let Slot::Sent(request) = state.slot {
                    state.keep(request);
                }
                state.slot = Slot::Free;
                state.crashes -= 1;
            }
            Action::ArriveLate(at) => {
                let request = state.late[usize::from(at)].take()?;
                state.late.sort_unstable();
                Self::execute(&mut state.server, request);
            }
            Action::FallBehind => state.replica = Some(state.server),
            Action::FailOver => {
                let old = state.server;
                state.server = state.replica.take()?;
                let lost =
                    |message: &u8| old.log[usize::from(*message)] > state.server.log[usize::from(*message)];
                let lost: u8 = (0..self.messages).filter(lost).map(|message| 1 << message).sum();
                state.excused |= lost & state.confirmed;
                state.late = [None; 2];
                if let Slot::Sent(_) = state.slot {
                    state.slot = Slot::Free;
                }
                state.fail_overs -= 1;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("STORED", |_, state: &State| {
                let stored =
                    |message: usize| state.server.log[message] > 0 || state.excused >> message & 1 == 1;
                (0..3).filter(|message| state.confirmed >> message & 1 == 1).all(stored)
            }),
            Property::always("STORED-ONCE", |_, state: &State| {
                state.server.log.iter().all(|copies| *copies <= 1)
            }),
            Property::sometimes("all is sent", |sends: &Self, state: &State| state.at == sends.messages),
        ]
    }
}

impl State {
    fn keep(&mut self, request: Request) {
        self.slot = Slot::Free;
        if let Some(place) = self.late.iter_mut().find(|place| place.is_none()) {
            *place = Some(request);
            self.late.sort_unstable();
        }
    }
}
