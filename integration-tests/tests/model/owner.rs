//! An owner of the model: one process with three connections, and what it believes.

use super::mistakes::Mistake;
use super::server::{Entry, Grant, Reply, Request, Source};

/// Connections of a process: requests on one are executed in order, those on different ones in any.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Line {
    Lease,
    Read,
    Settle,
}

pub(crate) const LINES: [Line; 3] = [Line::Lease, Line::Read, Line::Settle];

/// The request of a connection that is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Slot {
    #[default]
    Free,
    Sent(Request),
    Replied(Request, Reply),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Reader {
    #[default]
    Closed,
    /// Reads what is pending next.
    Pending,
    /// Reads new entries next.
    New,
    /// Reads new entries once, then what is pending: only by mistake.
    NewFirst,
}

/// Entries that a process holds, at most 3.
pub(crate) type Held = [Option<Entry>; 3];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Owner {
    /// What it was granted and has not noticed to be lost.
    pub(crate) holds: Option<Grant>,
    /// Nonce of a request that has no answer so far, or 0; and how many there were.
    pub(crate) nonce: u8,
    nonces: u8,
    pub(crate) reader: Reader,
    /// Word of the reader; differs with each that is begun.
    pub(crate) word: u8,
    newest: [Option<Entry>; 2],
    /// Whether the pending list is to be read again; and whether the answer to the settlement that is under way may be
    /// that of a server that is gone.
    look_again: bool,
    doubt: bool,
    pub(crate) in_flight: Held,
    slots: [Slot; 3],
}

/// What the receipt of an answer leads to outside the process.
#[derive(Default)]
pub(crate) struct Received {
    /// Messages whose handlers begin.
    pub(crate) begins: Held,
    /// A request that is given up, and may arrive later.
    pub(crate) given_up: Option<Request>,
}

impl Owner {
    pub(crate) fn slot(&self, line: Line) -> Slot {
        self.slots[line as usize]
    }

    pub(crate) fn slot_mut(&mut self, line: Line) -> &mut Slot {
        &mut self.slots[line as usize]
    }

    pub(crate) fn is_free(&self, line: Line) -> bool {
        self.slot(line) == Slot::Free
    }

    /// Whether the next read is one of new entries, for which there has to be room.
    pub(crate) fn reads_new(&self) -> bool {
        matches!(self.reader, Reader::New | Reader::NewFirst) && !self.look_again
    }

    pub(crate) fn holding(&self) -> usize {
        self.in_flight.iter().flatten().count()
    }

    /// Requests under way.
    pub(crate) fn sent(&self) -> impl Iterator<Item = Request> + '_ {
        self.slots
            .iter()
            .filter_map(|slot| if let Slot::Sent(request) = slot { Some(*request) } else { None })
    }

    /// Asks for the lease: under the nonce of a request that had no answer, or a new one.
    pub(crate) fn acquire(&mut self, me: u8) {
        if self.nonce == 0 {
            self.nonces += 1;
            // Nonces of two processes differ; 15 is the largest that the model tells apart.
            self.nonce = me * 5 + self.nonces;
            assert!(self.nonces <= 5, "more nonces than the model tells apart");
        }
        *self.slot_mut(Line::Lease) = Slot::Sent(Request::Acquire { nonce: self.nonce });
    }

    /// The process that starts in place of one that died: it knows nothing, and its nonces are new.
    pub(crate) fn restarted(&self) -> Self {
        Self { nonces: self.nonces, ..Self::default() }
    }

    /// The next request of the reader. A page has one new entry, or everything pending.
    pub(crate) fn read(&mut self, mistake: Option<Mistake>) -> Option<Request> {
        let grant = self.holds?;
        let word = self.word;
        match self.reader {
            Reader::Closed => {
                self.word += 1;
                let newest = if mistake == Some(Mistake::KeepLostTail) { [None; 2] } else { self.newest };
                Some(Request::Open { grant, word: self.word, newest })
            }
            Reader::New if std::mem::take(&mut self.look_again) => Some(Request::ReadPending { grant, word }),
            Reader::Pending => Some(Request::ReadPending { grant, word }),
            Reader::New | Reader::NewFirst => Some(Request::ReadNew { grant, word }),
        }
    }

    /// Gives the lease up: nothing of it is used any more.
    pub(crate) fn lose(&mut self) {
        (self.holds, self.reader, self.word) = (None, Reader::Closed, 0);
        (self.in_flight, self.newest) = ([None; 3], [None; 2]);
        (self.look_again, self.doubt) = (false, false);
    }

    /// A request on this connection is given up: its answer may be lost, and it may still arrive.
    pub(crate) fn gave_up(&mut self, mistake: Option<Mistake>, line: Line) {
        *self.slot_mut(line) = Slot::Free;
        if line == Line::Read && mistake != Some(Mistake::NoReread) {
            self.reader = Reader::Closed;
        }
    }

    /// Receives the answer on a connection.
    pub(crate) fn receive(&mut self, mistake: Option<Mistake>, line: Line) -> Received {
        let mut received = Received::default();
        let Slot::Replied(request, reply) = std::mem::take(self.slot_mut(line)) else { return received };
        if let Request::Acquire { nonce } = request {
            if nonce == self.nonce && self.holds.is_none() {
                self.nonce = 0;
                if let Reply::Granted(grant) = reply {
                    self.holds = Some(grant);
                }
            }
            return received;
        }
        // An answer to a request under an earlier grant means nothing any more.
        if request.grant() != self.holds {
            return received;
        }
        match (request, reply) {
            (_, Reply::Fenced) => self.lose(),
            (_, Reply::OtherReader) => self.reader = Reader::Closed,
            (Request::Open { grant, .. }, Reply::Opened { tail_lost: true }) => {
                // Entries in flight may be others by now: they are dropped, and the lease is released before anything
                // is read again.
                self.lose();
                if let Slot::Sent(request) = self.slot(Line::Lease) {
                    received.given_up = Some(request);
                }
                *self.slot_mut(Line::Lease) = Slot::Sent(Request::Release { grant });
            }
            (Request::Open { .. }, Reply::Opened { .. }) => {
                self.look_again = false;
                self.doubt = !self.is_free(Line::Settle) && mistake != Some(Mistake::LateAnswer);
                let early = mistake == Some(Mistake::NewBeforePending);
                self.reader = if early { Reader::NewFirst } else { Reader::Pending };
            }
            (Request::ReadPending { .. } | Request::ReadNew { .. }, Reply::Entries(entries)) => {
                // A connection that was cut meanwhile stays cut.
                self.reader = match self.reader {
                    Reader::Closed => Reader::Closed,
                    Reader::NewFirst => Reader::Pending,
                    Reader::Pending | Reader::New => Reader::New,
                };
                received.begins = self.admit(entries);
            }
            (Request::Retry { grant, entry }, Reply::Done) if mistake == Some(Mistake::AckBeforeRetry) => {
                *self.slot_mut(line) = Slot::Sent(Request::Park { grant, entry });
            }
            (
                Request::Ack { entry, .. } | Request::Retry { entry, .. } | Request::Park { entry, .. },
                reply,
            ) => {
                if std::mem::take(&mut self.doubt) || reply == Reply::Stale {
                    self.look_again = true;
                    // A wait for new entries would not show what is pending.
                    if let Slot::Sent(request @ Request::ReadNew { .. }) = self.slot(Line::Read) {
                        received.given_up = Some(request);
                        self.gave_up(None, Line::Read);
                    }
                }
                for place in &mut self.in_flight {
                    if *place == Some(entry) {
                        *place = None;
                    }
                }
                self.in_flight.sort_unstable_by_key(|place| (place.is_none(), *place));
            }
            (Request::Promote { grant }, Reply::Due(due)) if due != 0 => {
                *self.slot_mut(line) = Slot::Sent(Request::PromoteThese { grant, due });
            }
            _ => {}
        }
        received
    }

    /// Admits entries that are not in flight already, and returns those.
    fn admit(&mut self, entries: Held) -> Held {
        let mut begins = [None; 3];
        for (at, entry) in entries.into_iter().flatten().enumerate() {
            let newest = &mut self.newest[usize::from(entry.source == Source::Retry)];
            if newest.is_none_or(|newest| newest.id < entry.id) {
                *newest = Some(entry);
            }
            if self.in_flight.contains(&Some(entry)) {
                continue;
            }
            // Known by its id: an entry that comes again is one that is in flight.
            if self.in_flight.iter().flatten().any(|held| (held.source, held.id) == (entry.source, entry.id))
            {
                continue;
            }
            let place = self.in_flight.iter_mut().find(|place| place.is_none());
            *place.expect("more entries in flight than the model has room for") = Some(entry);
            begins[at] = Some(entry);
        }
        self.in_flight.sort_unstable_by_key(|place| (place.is_none(), *place));
        begins
    }
}
