//! Inline execution, the common case: messages are handled one after the other on the dispatcher's own task.

use std::time::Duration;

use millstream_core::panics::discard;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::consumer::handler::{Handler, Input, Row, Verdict};
use crate::consumer::partition::dispatch::Dispatch;

impl Dispatch {
    /// Whether the ready messages can be handled inline: nothing waits in place, no permit is needed, and the lease can
    /// be relied on.
    pub(in crate::consumer) fn is_plain(&mut self) -> bool {
        self.inline
            && self.turns.is_none()
            && self.picked.is_empty()
            && self.waits.is_empty()
            && self.poison.is_idle()
            && self.queues.is_ready()
            && matches!(self.links.context.handler, Handler::Each(_))
            && !self.pause.is_on()
            && self.links.guard.is_live(Instant::now())
    }

    /// Handles ready messages until a batch of settlements is complete or a handler had to wait: then other events are
    /// checked. False when handlers are given up.
    pub(in crate::consumer) async fn handle_in_a_row(&mut self) -> bool {
        let context = self.links.context.clone();
        let Handler::Each(call) = &context.handler else { return true };
        self.count_blocked();
        self.waited = false;
        let running = context.status.handler();
        let handled = tokio::select! {
            biased;
            () = context.kill.cancelled() => false,
            () = call.all(self, context.config.handler_timeout) => true,
        };
        drop(running);
        // A job that is left here was given up and not handled: it stays pending.
        self.in_hand = None;
        self.settlement_buffer.flush();
        if handled && !self.waited && self.queues.is_ready() {
            // Lets other tasks of this thread run.
            yield_now().await;
        }
        handled
    }
}

impl Row for Dispatch {
    fn next(&mut self) -> Option<Input> {
        loop {
            let now = Instant::now();
            let may_start = !self.waited
                && self.waits.is_empty()
                && !self.settlement_buffer.is_due(now)
                && !self.pause.is_on()
                && self.links.guard.is_live(now);
            let (ticket, job) = if may_start { self.queues.next()? } else { return None };
            let Some((ticket, mut job)) = self.screen((ticket, job)) else { continue };
            self.trust_again();
            match job.input(self.owned.clone(), self.keeps()) {
                Some(input) => {
                    self.in_hand = Some((ticket, job, now));
                    return Some(input);
                }
                None => {
                    // It is not a message, and was judged as malformed.
                    let said = job.said.take();
                    if let Some(said) = said {
                        self.finish_one(ticket, job, said.verdict(), Duration::ZERO, now);
                    }
                }
            }
        }
    }

    fn waits(&mut self) {
        self.waited = true;
        self.settlement_buffer.flush();
    }

    fn said(&mut self, said: Option<Verdict>) {
        let Some((ticket, job, started)) = self.in_hand.take() else { return };
        // Without a verdict it was not handled, because the consumer is about to end: it stays pending, and its queue
        // stays closed.
        if let Some(verdict) = said {
            let now = Instant::now();
            self.finish_one(ticket, job, &verdict, now.saturating_duration_since(started), now);
            discard(verdict, &*self.links.context.observer);
        }
    }
}
