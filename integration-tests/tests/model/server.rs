//! The server of the model: one partition of one group, with the scripts that change it, each in one step.

use super::mistakes::Mistake;

/// Bit set of messages, or of entries by id.
pub(crate) type Set = u8;

/// Most entries of one stream. Ids begin at 1.
pub(crate) const IDS: usize = 8;

/// A lease as one client was granted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Grant {
    pub(crate) epoch: u8,
    pub(crate) nonce: u8,
    /// Number of the grant, counted by the model and unknown to clients and server: it distinguishes grants that have
    /// the same token.
    pub(crate) number: u8,
}

/// The two streams of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Source {
    Log,
    Retry,
}

/// An entry as a reader receives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Entry {
    pub(crate) source: Source,
    pub(crate) id: u8,
    pub(crate) message: u8,
}

/// A stream with the group's position.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Stream {
    /// Message by id, plus 1; 0 for no entry.
    entries: [u8; IDS],
    delivered: u8,
    pending: Set,
}

impl Stream {
    pub(crate) fn message(&self, id: u8) -> Option<u8> {
        self.entries.get(usize::from(id))?.checked_sub(1)
    }

    fn ids(&self) -> impl Iterator<Item = u8> + '_ {
        (1..IDS as u8).filter(|id| self.entries[usize::from(*id)] > 0)
    }

    /// Id of the newest entry, or 0.
    fn last(&self) -> u8 {
        self.ids().last().unwrap_or(0)
    }

    fn unread(&self) -> Option<u8> {
        self.ids().find(|id| *id > self.delivered)
    }

    fn is_pending(&self, id: u8) -> bool {
        self.pending & 1 << id != 0
    }

    /// How often the group still has a message: unread or pending.
    fn copies(&self, message: u8) -> u32 {
        let open = |id: &u8| *id > self.delivered || self.is_pending(*id);
        self.ids().filter(open).filter(|id| self.message(*id) == Some(message)).count() as u32
    }
}

/// Data of the server. All of it falls back in a fail-over, also what the model notes about it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    /// Key that expires.
    pub(crate) lease: Option<Grant>,
    /// Token of the fence; none if it was released.
    pub(crate) fence: Option<Grant>,
    epoch: u8,
    reader: u8,
    pub(crate) log: Stream,
    pub(crate) retry: Stream,
    pub(crate) parked: Set,
    /// Note of the model: messages that were appended, and those whose handler's success was acknowledged.
    pub(crate) appended: Set,
    pub(crate) done: Set,
}

/// What the model notes beside the server, and what does not fall back with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Ghost {
    /// The largest epoch that was granted, the number of grants, and their tokens.
    epoch: u8,
    grants: u8,
    tokens: u128,
    /// The largest id of each stream.
    ids: [u8; 2],
    /// Lower bound of epochs by the server's clock.
    clock: u8,
    /// Whether a server took over whose clock is behind.
    pub(crate) behind: bool,
    /// A former owner had an effect; an epoch did not grow; a token was given twice.
    pub(crate) unfenced: bool,
    pub(crate) epoch_back: bool,
    pub(crate) token_twice: bool,
}

/// Requests of owners. Each carries the grant that its client holds, and is executed in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Request {
    Acquire {
        nonce: u8,
    },
    Renew {
        grant: Grant,
    },
    Release {
        grant: Grant,
    },
    /// Begins a reader: `newest` are the newest entries that the client was handed, which it compares with the answer.
    Open {
        grant: Grant,
        word: u8,
        newest: [Option<Entry>; 2],
    },
    ReadPending {
        grant: Grant,
        word: u8,
    },
    /// Waits on the server until there is a new entry.
    ReadNew {
        grant: Grant,
        word: u8,
    },
    Ack {
        grant: Grant,
        entry: Entry,
    },
    Retry {
        grant: Grant,
        entry: Entry,
    },
    /// Second half of a retry, where that is two requests.
    Park {
        grant: Grant,
        entry: Entry,
    },
    Promote {
        grant: Grant,
    },
    /// Second half of a promotion, where that is two requests.
    PromoteThese {
        grant: Grant,
        due: Set,
    },
}

impl Request {
    pub(crate) fn grant(&self) -> Option<Grant> {
        match *self {
            Self::Acquire { .. } => None,
            Self::Renew { grant }
            | Self::Release { grant }
            | Self::Open { grant, .. }
            | Self::ReadPending { grant, .. }
            | Self::ReadNew { grant, .. }
            | Self::Ack { grant, .. }
            | Self::Retry { grant, .. }
            | Self::Park { grant, .. }
            | Self::Promote { grant }
            | Self::PromoteThese { grant, .. } => Some(grant),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Reply {
    Granted(Grant),
    Held,
    Fenced,
    /// Another reader of the lease has begun.
    OtherReader,
    /// `true` if an entry that this reader was handed is gone: the server has lost its end.
    Opened {
        tail_lost: bool,
    },
    Entries([Option<Entry>; 3]),
    Due(Set),
    Done,
    /// The entry was not pending: it is settled, or the server does not know that it was handed out.
    Stale,
}

impl Server {
    pub(crate) fn append(&mut self, ghost: &mut Ghost, message: u8) {
        put(&mut self.log, &mut ghost.ids[0], ghost.behind, message);
        self.appended |= 1 << message;
    }

    /// How often the server has a message: to be handled, parked, or settled.
    pub(crate) fn copies(&self, message: u8) -> u32 {
        let bit = |set: Set| u32::from(set >> message & 1);
        self.log.copies(message) + self.retry.copies(message) + bit(self.parked) + bit(self.done)
    }

    pub(crate) fn has_unread(&self) -> bool {
        self.log.unread().is_some() || self.retry.unread().is_some()
    }

    /// Whether a message that was appended earlier has not begun, of those that the log has.
    pub(crate) fn skips(&self, begun: Set, message: u8) -> bool {
        let earlier =
            self.log.ids().filter_map(|id| self.log.message(id)).take_while(|other| *other != message);
        self.log.ids().any(|id| self.log.message(id) == Some(message))
            && earlier.into_iter().any(|other| begun >> other & 1 == 0)
    }

    /// Executes a request; `None` while it waits on the server.
    pub(crate) fn execute(
        &mut self,
        ghost: &mut Ghost,
        mistake: Option<Mistake>,
        request: Request,
    ) -> Option<Reply> {
        let Some(grant) = request.grant() else {
            let Request::Acquire { nonce } = request else { return None };
            return Some(self.acquire(ghost, mistake, nonce));
        };
        let same_token = self.fence.is_some_and(|fence| {
            fence.epoch == grant.epoch && (fence.nonce == grant.nonce || mistake == Some(Mistake::EpochAlone))
        });
        let valid = same_token || self.accepts_without_token(mistake, request);
        if !valid {
            return Some(Reply::Fenced);
        }
        if let Request::ReadPending { word, .. } | Request::ReadNew { word, .. } = request
            && word != self.reader
            && mistake != Some(Mistake::LateRead)
        {
            return Some(Reply::OtherReader);
        }
        if matches!(request, Request::ReadNew { .. }) && !self.has_unread() {
            return None;
        }
        // The effect belongs to the owner of the last grant, or it is one of a former owner. A request that is granted a
        // second time after a fail-over has one owner.
        let owner =
            self.fence.is_some_and(|fence| fence.number == grant.number || fence.nonce == grant.nonce);
        ghost.unfenced |= !owner;
        Some(self.apply(ghost, mistake, request))
    }

    fn accepts_without_token(&self, mistake: Option<Mistake>, request: Request) -> bool {
        match request {
            Request::Ack { .. } => mistake == Some(Mistake::UnfencedAck),
            Request::Promote { .. } => mistake == Some(Mistake::PromoteWithoutLease),
            Request::Renew { .. } => mistake == Some(Mistake::RenewAfterRelease) && self.lease.is_none(),
            _ => false,
        }
    }

    fn acquire(&mut self, ghost: &mut Ghost, mistake: Option<Mistake>, nonce: u8) -> Reply {
        if let Some(held) = self.lease {
            let same = self.fence == Some(held) && held.nonce == nonce;
            return if same { Reply::Granted(held) } else { Reply::Held };
        }
        let counter = mistake == Some(Mistake::EpochAlone);
        let epoch = if counter { self.epoch + 1 } else { ghost.clock.max(self.epoch + 1) };
        ghost.grants += 1;
        let grant = Grant { epoch, nonce, number: ghost.grants };
        let token = 1 << (epoch << 4 | if counter { 0 } else { nonce });
        // A request that is granted again by a server whose clock is behind may get its own token again.
        ghost.token_twice |= ghost.tokens & token != 0 && (counter || !ghost.behind);
        ghost.tokens |= token;
        ghost.epoch_back |= epoch <= ghost.epoch && !ghost.behind;
        ghost.epoch = ghost.epoch.max(epoch);
        (self.lease, self.fence, self.epoch) = (Some(grant), Some(grant), epoch);
        Reply::Granted(grant)
    }

    fn apply(&mut self, ghost: &mut Ghost, mistake: Option<Mistake>, request: Request) -> Reply {
        match request {
            Request::Acquire { .. } => Reply::Held,
            Request::Renew { grant } => {
                self.lease = Some(grant);
                Reply::Done
            }
            Request::Release { .. } => {
                (self.lease, self.fence) = (None, None);
                Reply::Done
            }
            Request::Open { word, newest, .. } => {
                self.reader = word;
                let gone = |entry: Entry| self.stream(entry.source).message(entry.id) != Some(entry.message);
                let behind = |entry: Entry| self.stream(entry.source).delivered < entry.id;
                // An entry of the retry log is deleted when it is settled: it counts only if the group is behind it.
                Reply::Opened {
                    tail_lost: newest.into_iter().flatten().any(|entry| behind(entry) && gone(entry)),
                }
            }
            Request::ReadPending { .. } => {
                let of = |source: Source| {
                    let stream = self.stream(source);
                    let pending = stream.ids().filter(|id| stream.is_pending(*id));
                    pending.filter_map(move |id| Some(Entry { source, id, message: stream.message(id)? }))
                };
                let mut page = [None; 3];
                let entries = of(Source::Log).chain(of(Source::Retry));
                page.iter_mut().zip(entries).for_each(|(place, entry)| *place = Some(entry));
                Reply::Entries(page)
            }
            Request::ReadNew { .. } => {
                let source = if self.retry.unread().is_some() { Source::Retry } else { Source::Log };
                let stream = self.stream_mut(source);
                let entry = stream.unread().and_then(|id| {
                    stream.delivered = id;
                    stream.pending |= 1 << id;
                    Some(Entry { source, id, message: stream.message(id)? })
                });
                Reply::Entries([entry, None, None])
            }
            Request::Ack { entry, .. } => {
                // What was handled is done. If the entry is another message now, that one is simply gone.
                self.remove(entry, |server, message| {
                    if message == entry.message {
                        server.done |= 1 << message;
                    }
                })
            }
            Request::Retry { entry, .. } if mistake == Some(Mistake::AckBeforeRetry) => {
                self.remove(entry, |_, _| {})
            }
            Request::Retry { entry, .. } => {
                self.remove(entry, |server, message| server.parked |= 1 << message)
            }
            Request::Park { entry, .. } => {
                self.parked |= 1 << entry.message;
                Reply::Done
            }
            Request::Promote { .. } if mistake == Some(Mistake::PromoteWithoutGate) => {
                Reply::Due(self.parked)
            }
            Request::Promote { .. } => {
                let due = self.parked;
                self.promote(ghost, mistake, due);
                Reply::Done
            }
            Request::PromoteThese { due, .. } => {
                self.promote(ghost, mistake, due);
                Reply::Done
            }
        }
    }

    /// Moves parked retries, put before remove, in one step.
    fn promote(&mut self, ghost: &mut Ghost, mistake: Option<Mistake>, due: Set) {
        for message in (0..8).filter(|message| due >> message & 1 == 1) {
            if mistake == Some(Mistake::RetryIntoLog) {
                put(&mut self.log, &mut ghost.ids[0], ghost.behind, message);
            } else {
                put(&mut self.retry, &mut ghost.ids[1], ghost.behind, message);
            }
        }
        self.parked &= !due;
    }

    /// Removes an entry from the pending list, if it is there, and from the retry log.
    fn remove(&mut self, entry: Entry, then: impl FnOnce(&mut Self, u8)) -> Reply {
        let stream = self.stream_mut(entry.source);
        if !stream.is_pending(entry.id) {
            return Reply::Stale;
        }
        stream.pending &= !(1 << entry.id);
        let Some(message) = stream.message(entry.id) else { return Reply::Done };
        if entry.source == Source::Retry {
            stream.entries[usize::from(entry.id)] = 0;
        }
        then(self, message);
        Reply::Done
    }

    fn stream(&self, source: Source) -> &Stream {
        if source == Source::Log { &self.log } else { &self.retry }
    }

    fn stream_mut(&mut self, source: Source) -> &mut Stream {
        if source == Source::Log { &mut self.log } else { &mut self.retry }
    }
}

/// Appends to a stream. Ids grow with the clock; if that is behind, they only grow on this server.
fn put(stream: &mut Stream, highest: &mut u8, behind: bool, message: u8) {
    let last = stream.last().max(stream.delivered);
    let id = if behind { last + 1 } else { *highest + 1 };
    *highest = (*highest).max(id);
    // Sizes are chosen so that this is never reached: a run that would be cut off here is not exhaustive.
    assert!(usize::from(id) < IDS, "more than {IDS} entries in a stream");
    stream.entries[usize::from(id)] = message + 1;
}

impl Ghost {
    /// A server takes over that may be behind the old one.
    pub(crate) fn failed_over(&mut self, behind: bool) {
        self.behind |= behind;
        if !behind {
            // A fail-over takes longer than the milliseconds by which epochs ran ahead of the clock.
            self.clock = self.epoch + 1;
        }
    }
}
