//! The inbox of a worker in shared mode.

use millstream_core::Settlement;
use millstream_core::log::Receipt;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};

use crate::consumer::partition::leases::entry_lease::{Admitted, NO_LEASE};
use crate::consumer::partition::settle::Settler;
use crate::consumer::partition::source::{Candidates, Read};

/// Entries of one partition that the consumer has read or claimed.
pub(in crate::consumer) struct Page {
    pub(in crate::consumer) entries: Vec<Admitted>,
    pub(in crate::consumer) candidates: Candidates,
    /// Pending entries without fields: they are acknowledged.
    pub(in crate::consumer) ghosts: Vec<Receipt>,
}

impl Page {
    /// Settles what is no message, and returns the rest.
    pub(in crate::consumer) fn open(self, settler: &mut Settler) -> Read {
        for receipt in self.ghosts {
            settler.add(receipt, NO_LEASE, Settlement::Ack);
        }
        Read { entries: self.entries, candidates: self.candidates }
    }
}

/// Pages on their way to a worker. Their number is bounded by the room that their entries take.
pub(in crate::consumer) struct Inbox(UnboundedReceiver<Page>);

impl Inbox {
    pub(in crate::consumer) fn new() -> (UnboundedSender<Page>, Self) {
        let (sender, pages) = mpsc::unbounded_channel();
        (sender, Self(pages))
    }

    /// Waits for a page. Waits for ever if none can come.
    pub(in crate::consumer) async fn next(&mut self) -> Page {
        match self.0.recv().await {
            Some(page) => page,
            None => std::future::pending().await,
        }
    }

    /// Returns the pages that have come.
    pub(in crate::consumer) fn drain(&mut self) -> Vec<Page> {
        std::iter::from_fn(|| self.0.try_recv().ok()).collect()
    }
}
