//! Messages that are handled each for itself, in no order: tasks of delay queues, and dead letters.

use std::sync::Arc;

use tokio::sync::mpsc::{self, UnboundedReceiver};

use super::{Asked, Permit, PermitAnswer, PermitPool, Tell};
use crate::limits::Needs;

/// A request of a message that is handled for itself. Dropping it gives it up, and gives back what was granted.
#[derive(Debug)]
pub struct Obtaining {
    _asked: Asked,
    answers: UnboundedReceiver<(u64, PermitAnswer)>,
    /// So that there is a sender as long as somebody listens.
    _tell: Tell,
}

impl Obtaining {
    /// Waits for the next answer. None comes after the first that is not [`Parked`](PermitAnswer::Parked). Cancel safe.
    pub async fn answer(&mut self) -> PermitAnswer {
        match self.answers.recv().await {
            Some((_, answer)) => answer,
            None => std::future::pending().await,
        }
    }
}

impl PermitPool {
    /// Asks for what a message needs, in its place behind those that have asked.
    ///
    /// # Errors
    /// The request, if it is not granted at once.
    pub fn request(self: &Arc<Self>, needs: Needs) -> Result<Permit, Obtaining> {
        let (tell, answers) = mpsc::unbounded_channel();
        self.take(needs, &tell).map_err(|asked| Obtaining { _asked: asked, answers, _tell: tell })
    }

    /// Waits until it is known whether what came of a message [counts](Permit::counts).
    pub async fn counts(&self, permit: &Permit) -> bool {
        // Before it is looked at: then no change is missed.
        let mut changes = self.changes();
        loop {
            if let Some(counts) = permit.counts() {
                return counts;
            }
            if changes.changed().await.is_err() {
                return false;
            }
        }
    }
}
