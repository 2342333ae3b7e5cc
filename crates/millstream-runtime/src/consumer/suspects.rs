//! Suspects: messages that were in the hands of an owner that ended without a word. One of them may be why.
//!
//! So they are handled one at a time: over all partitions of a consumer, and with nothing else of their partition
//! beside them. Before one is handed to its handler, that is noted. If the process then ends without a word, the next
//! owner knows that it was this one, and when processes have ended over it as often as is allowed, gives it up.

use std::time::Duration;

use millstream_core::Settlement;
use millstream_core::event::Event;
use millstream_core::log::{Note, Receipt};
use tokio::time::Instant;

use super::dispatch::Dispatch;
use super::handler::{Said, Verdict};
use super::job::Job;
use super::owned::Owned;

/// What is known of a suspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Suspect {
    /// How often it was handed to a handler under suspicion, and not settled.
    noted: u32,
    /// By whom last.
    by: String,
}

/// What to do with a suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// Note that it is handled for this time under suspicion, then hand it to the handler.
    Note(u32),
    /// Hand it to the handler: this process has noted it before and lives, so it was not this message that ended
    /// the owner before.
    Try,
    /// Give it up: so many processes ended over it.
    GiveUp(u32),
}

impl Suspect {
    /// From what the owner before noted, if it did.
    pub(super) fn new(note: Option<&Note>) -> Self {
        note.map_or_else(
            || Self { noted: 0, by: String::new() },
            |note| Self { noted: note.suspicions, by: note.by.clone() },
        )
    }

    /// `me` is this process, `limit` how many processes may end over one message.
    pub(super) fn plan(&self, me: &str, limit: u32) -> Plan {
        if self.noted == 0 {
            return Plan::Note(1);
        }
        if self.by == me {
            return Plan::Try;
        }
        // One process more than was noted: when the first ended, nobody knew yet which message it was.
        let ended = self.noted.saturating_add(1);
        if ended >= limit { Plan::GiveUp(ended) } else { Plan::Note(ended) }
    }

    /// What is noted of it, and what is to be noted of its attempts: what is so anyway.
    pub(super) fn note(self, job: &Job) -> Note {
        let error = job.last_error().unwrap_or_default().to_owned();
        let (attempt, history) = (job.attempt, job.history().clone());
        Note { attempt, error, history, suspicions: self.noted, by: self.by, ..Note::default() }
    }
}

impl Dispatch {
    /// Handles the suspect that is picked, alone. False when the consumer stops or the lease is lost.
    pub(super) async fn try_suspect(&mut self) -> bool {
        let Some((_, job)) = self.picked.first_mut() else { return true };
        let suspect = job.suspect.as_deref().cloned().unwrap_or_else(|| Suspect::new(None));
        let context = self.links.context.clone();
        let plan = match suspect.plan(&context.incarnation, context.config.crash_limit) {
            // No handler ever sees it.
            _ if !job.is_message() => Plan::Try,
            Plan::GiveUp(crashes) => {
                job.said = Some(Said::Own(Verdict::Crashed(crashes)));
                let Owned { topic_partition, group, .. } = &*self.owned;
                let origin = job.origin;
                tracing::warn!(%topic_partition, %group, %origin, crashes, "given up: processes ended over it");
                context.observer.observe(&Event::Crashed { topic_partition, group, origin, crashes });
                let mut unit = std::mem::take(&mut self.picked);
                self.finish(&mut unit, Duration::ZERO);
                return true;
            }
            plan => plan,
        };
        let receipt = job.receipt;
        let before = suspect.note(job);
        let now = match plan {
            Plan::Note(suspicions) => {
                Some(Note { suspicions, by: context.incarnation.clone(), ..before.clone() })
            }
            _ => None,
        };
        let guard = self.links.guard.clone();
        let pause = &mut self.pause;
        let ready = async {
            loop {
                pause.until(false).await;
                let gates = context.gates.suspect().await;
                if !guard.live().await {
                    return None;
                }
                if !pause.is_on() {
                    return Some(gates);
                }
            }
        };
        let (_only, handler) = tokio::select! {
            biased;
            () = self.owned.ending() => return false,
            ready = ready => match ready {
                Some(gates) => gates,
                None => return false,
            },
        };
        let noted = now.is_some();
        if let Some(now) = now {
            self.settle(receipt, Settlement::Hold(now));
            self.outbox.flush();
        }
        let (guard, owned) = (self.links.guard.clone(), self.owned.clone());
        // Asked once more: the process may have stood still while the note was on its way.
        let live = async {
            tokio::select! {
                biased;
                () = owned.ending() => false,
                live = guard.live() => live,
            }
        };
        let handled = (!noted || self.is_written(receipt).await) && live.await && self.start(handler).await;
        if noted && !handled {
            // The handler was not reached, or did not end when it should: no process ended over it. A lost lease
            // refuses this, and then the next owner cannot know.
            self.settle(receipt, Settlement::Hold(before));
        }
        handled
    }

    /// Waits until the note of this message is written. False when the consumer stops or the lease is lost.
    async fn is_written(&mut self, receipt: Receipt) -> bool {
        loop {
            let written = tokio::select! {
                biased;
                () = self.owned.ending() => return false,
                written = self.links.written.recv() => written,
            };
            match written {
                Some(written) if written == receipt => return true,
                Some(written) => self.waits.written(written, Instant::now()),
                None => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_counts_processes_and_only_those_that_ended() {
        let suspect = |noted, by: &str| Suspect { noted, by: by.into() };
        let cases = [
            (suspect(0, ""), 3, Plan::Note(1)),
            (suspect(0, "me"), 3, Plan::Note(1)),
            (suspect(1, "other"), 3, Plan::Note(2)),
            (suspect(2, "other"), 3, Plan::GiveUp(3)),
            (suspect(2, "me"), 3, Plan::Try),
            (suspect(1, "other"), 2, Plan::GiveUp(2)),
            (suspect(u32::MAX, "other"), 3, Plan::GiveUp(u32::MAX)),
        ];
        for (suspect, limit, plan) in cases {
            assert_eq!(suspect.plan("me", limit), plan, "{suspect:?}");
        }
    }
}
