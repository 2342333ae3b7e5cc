//! Where a worker gets its messages from: its own reader, or the reader of a consumer that shares its partitions.

pub(in crate::consumer) mod claim_orphans;
pub(in crate::consumer) mod fetch;
pub(in crate::consumer) mod inbox;

use std::sync::Arc;

use millstream_core::log::Entry;
use tokio::time::Instant;

use crate::consumer::partition::in_flight::InFlight;
use crate::consumer::partition::leases::entry_lease::Admitted;
use crate::consumer::partition::poison::Candidate;
use crate::consumer::partition::settle::Settler;
use fetch::Fetcher;
use inbox::{Inbox, Page};

/// Entries that were read.
pub(in crate::consumer) struct Read {
    pub(in crate::consumer) entries: Vec<Admitted>,
    pub(in crate::consumer) candidates: Candidates,
}

/// Which of the entries that were read may have ended processes.
#[derive(Clone)]
pub(in crate::consumer) enum Candidates {
    None,
    /// Entries that were pending when the owners with these epochs ended, or when most of them did.
    Pending(Vec<u64>),
    /// Those of a consumer that died or was cut off. The incarnations of the members that are alive.
    Abandoned(Arc<Vec<String>>),
}

impl Candidates {
    /// Returns the candidate for an entry; `None` if it is no candidate. `limit` is the number of processes that may end
    /// over one message.
    pub(in crate::consumer) fn candidate(&self, entry: &Entry, limit: u32) -> Option<Candidate> {
        match self {
            Self::None => None,
            Self::Pending(ends) => Candidate::of_owner(entry, ends, limit),
            Self::Abandoned(living) => Candidate::of_member(entry, living, limit),
        }
    }
}

/// Where a worker gets its messages from.
pub(in crate::consumer) enum Source {
    /// It reads the partition itself, as its only reader.
    Reader(Fetcher),
    /// It gets pages of a reader of all partitions.
    Inbox(Inbox),
}

/// Something that came from a source, not yet [taken in](Source::take_in).
pub(in crate::consumer) enum SourceEnded {
    Request(fetch::FetchEnded),
    Page(Page),
}

/// Result of what came, for the parts of the worker that it concerns.
pub(in crate::consumer) enum Progress {
    Read(Read),
    Nothing,
    /// The lease is lost.
    Fenced,
}

impl Source {
    /// Sends the next request if there is room and it is time, or ends the one under way if it is to be another one.
    pub(in crate::consumer) fn advance(&mut self, paused: bool, now: Instant, in_flight: &mut InFlight) {
        match self {
            Self::Reader(fetcher) => fetcher.advance(paused, now, in_flight),
            Self::Inbox(_) => {}
        }
    }

    /// Returns when the next request is to be sent although nothing else happens.
    pub(in crate::consumer) fn wakes(&self) -> Option<Instant> {
        match self {
            Self::Reader(fetcher) => fetcher.wakes(),
            Self::Inbox(_) => None,
        }
    }

    /// Drops the request under way. Nothing more is read.
    pub(in crate::consumer) fn stop(&mut self) {
        if let Self::Reader(fetcher) = self {
            fetcher.stop();
        }
    }

    /// Waits for the end of a request, or for a page. Waits for ever if there is none. Cancel safe.
    pub(in crate::consumer) async fn ended(&mut self) -> SourceEnded {
        match self {
            Self::Reader(fetcher) => SourceEnded::Request(fetcher.ended().await),
            Self::Inbox(inbox) => SourceEnded::Page(inbox.next().await),
        }
    }

    /// Takes in what came.
    pub(in crate::consumer) fn take_in(
        &mut self,
        ended: SourceEnded,
        in_flight: &mut InFlight,
        settler: &mut Settler,
    ) -> Progress {
        match (self, ended) {
            (Self::Reader(fetcher), SourceEnded::Request(ended)) => {
                fetcher.take_in(ended, in_flight, settler)
            }
            (_, SourceEnded::Page(page)) => Progress::Read(page.open(settler)),
            (Self::Inbox(_), SourceEnded::Request(_)) => Progress::Nothing,
        }
    }
}
