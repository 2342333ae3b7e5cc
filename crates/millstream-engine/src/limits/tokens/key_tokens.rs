//! The tokens of one key that are reserved for this process, and who waits for them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use millstream_core::permits::{Lead, Rate};
use millstream_core::rates::{HORIZON, SPENDABLE};
use tokio::time::Instant;

use crate::limits::table::AskId;

/// Time for which tokens are reserved ahead of messages that do not wait yet: as many as were spent in such a time before.
const FORESEEN: Duration = SPENDABLE;

/// Tokens that were reserved together.
#[derive(Debug)]
struct Span {
    /// Time of the reply.
    from: Instant,
    /// Microseconds from then on until the first one is free.
    lead_us: i64,
    interval_us: f64,
    /// Those that are spent or lost, and all.
    next: u32,
    all: u32,
}

impl Span {
    fn left(&self) -> u32 {
        self.all - self.next
    }

    /// Returns when the token at this place among those that are left is free.
    fn free_at(&self, place: u32) -> Instant {
        let us = self.lead_us as f64 + f64::from(self.next + place) * self.interval_us;
        self.from + Duration::from_micros(us.ceil().max(0.0) as u64)
    }
}

/// State of one key.
#[derive(Debug)]
pub(super) struct KeyTokens {
    /// The rate as the program states it, and as the rules have it.
    pub(super) stated: Rate,
    pub(super) rate: Rate,
    spans: VecDeque<Span>,
    /// Tokens in the spans.
    reserved: u32,
    /// Those that are set aside for messages that ask for units.
    pub(super) promised: u32,
    /// Who waits, in the order in which they asked, and for how many tokens; and those of all.
    waiting: BTreeMap<AskId, u32>,
    demand: u64,
    /// Whether tokens are being reserved, or are to be.
    pub(super) asking: bool,
    pub(super) is_lacking: bool,
    /// When the first that waits may go on, as the timers of all keys have it.
    pub(super) timer: Option<Instant>,
    /// Grows when what is reserved becomes void.
    pub(super) number: u64,
    /// When to ask again, since tokens are free too late to be reserved.
    pub(super) ask_at: Option<Instant>,
    /// Until when the key was closed, as far as it is known here.
    pub(super) closed: Option<Instant>,
    /// Tokens spent since a time, and in the [`FORESEEN`] before it.
    spent: u32,
    before: u32,
    since: Instant,
}

impl KeyTokens {
    pub(super) fn new(stated: Rate, rate: Rate, now: Instant) -> Self {
        Self {
            stated,
            rate,
            spans: VecDeque::new(),
            reserved: 0,
            promised: 0,
            waiting: BTreeMap::new(),
            demand: 0,
            asking: false,
            is_lacking: false,
            timer: None,
            number: 0,
            ask_at: None,
            closed: None,
            spent: 0,
            before: 0,
            since: now,
        }
    }

    /// How long a token can be spent once it is free: until the next one is, at least, or a slow rate would lose most of its tokens.
    fn spendable(&self) -> Duration {
        let interval = self.rate.interval_us().unwrap_or_default();
        SPENDABLE.max(Duration::from_micros(interval as u64))
    }

    /// Returns when the token at this place is free.
    fn place(&self, mut place: u32) -> Option<Instant> {
        for span in &self.spans {
            if place < span.left() {
                return Some(span.free_at(place));
            }
            place -= span.left();
        }
        None
    }

    /// The place of the token with which a message may begin that needs so many: one that needs more than can be saved up begins when as
    /// many are free.
    fn last_needed(&self, tokens: u32) -> u32 {
        self.promised + tokens.clamp(1, self.rate.most_saved().max(1)) - 1
    }

    /// Returns when so many tokens are free; `None` if fewer are reserved.
    pub(super) fn free_at(&mut self, tokens: u32, now: Instant) -> Option<Instant> {
        self.lose(self.last_needed(tokens), now);
        if self.reserved < self.promised + tokens {
            return None;
        }
        self.place(self.last_needed(tokens))
    }

    /// Whether a message may spend so many tokens now that were set aside for it, or are left when all others have theirs.
    pub(super) fn is_free(&mut self, tokens: u32, set_aside: bool, now: Instant) -> bool {
        // Tokens are alike: those that were set aside first are spent first, whoever comes.
        let others = if set_aside { std::mem::take(&mut self.promised) } else { 0 };
        let at = self.free_at(tokens, now);
        self.promised += others;
        at.is_some_and(|at| at <= now)
    }

    /// Whether nobody waits who asked before this one.
    pub(super) fn is_turn_of(&self, id: AskId) -> bool {
        self.waiting.first_key_value().is_none_or(|(first, _)| *first >= id)
    }

    /// Returns the first that waits, and when it may go on, if that is known.
    pub(super) fn front_free(&mut self, now: Instant) -> Option<(AskId, Instant)> {
        let (id, tokens) = self.front()?;
        Some((id, self.free_at(tokens, now)?))
    }

    /// Loses tokens that were not spent in time. Those that a message saves up are lost together.
    fn lose(&mut self, last: u32, now: Instant) {
        // Who is first saves up what it needs, whoever looks.
        let first = self.waiting.first_key_value().map_or(1, |(_, tokens)| *tokens);
        let (last, spendable) = (last.max(self.last_needed(first)), self.spendable());
        while self.reserved > 0
            && let Some(at) = self.place(last.min(self.reserved - 1))
            && at + spendable < now
        {
            self.drop_first(1);
        }
    }

    fn drop_first(&mut self, mut tokens: u32) {
        self.reserved = self.reserved.saturating_sub(tokens);
        while tokens > 0
            && let Some(span) = self.spans.front_mut()
        {
            let some = tokens.min(span.left());
            span.next += some;
            tokens -= some;
            if span.left() == 0 {
                self.spans.pop_front();
            }
        }
    }

    /// Spends tokens. Returns since when they were free.
    pub(super) fn spend(&mut self, tokens: u32, now: Instant) -> Instant {
        let free_at = self.place(self.last_needed(tokens) - self.promised).unwrap_or(now);
        self.drop_first(tokens);
        let passed = now.duration_since(self.since);
        if passed >= FORESEEN {
            self.before = if passed < 2 * FORESEEN { self.spent } else { 0 };
            (self.spent, self.since) = (0, now);
        }
        self.spent = self.spent.saturating_add(tokens);
        free_at
    }

    /// Takes back tokens that were free since this time, of a message that did not begin. They are lost when they would have been.
    pub(super) fn put_back(&mut self, tokens: u32, free_at: Instant) {
        let interval_us = self.rate.interval_us().unwrap_or_default();
        let saved = f64::from(tokens.clamp(1, self.rate.most_saved().max(1)) - 1) * interval_us;
        let lead_us = -(saved as i64);
        self.spans.push_front(Span { from: free_at, lead_us, interval_us, next: 0, all: tokens });
        self.reserved += tokens;
    }

    /// Takes in what came of a reservation.
    pub(super) fn reserved(&mut self, from: Instant, lead: Lead, tokens: u32) {
        self.ask_at = None;
        match (lead, self.rate.interval_us()) {
            (Lead::At(lead_us), Some(interval_us)) => {
                self.spans.push_back(Span { from, lead_us, interval_us, next: 0, all: tokens });
                self.reserved += tokens;
            }
            // In time to be in the middle of what is reserved ahead; never at once.
            (Lead::Later(us), _) => {
                let wait = Duration::from_micros(us).saturating_sub(HORIZON / 2);
                // Half of it at a time: what is given back meanwhile must not go unused.
                self.ask_at = Some(from + wait.min((wait / 2).max(HORIZON / 5)).max(SPENDABLE));
            }
            // A rule may bring some.
            (Lead::At(_) | Lead::Never, _) => {}
        }
    }

    /// Forgets what is reserved.
    pub(super) fn void(&mut self) {
        self.spans.clear();
        (self.reserved, self.ask_at) = (0, None);
        self.number += 1;
    }

    /// Forgets what is reserved, since the key is closed until a time, or open again.
    pub(super) fn close(&mut self, until: Instant) {
        self.void();
        self.closed = Some(until);
    }

    /// Returns how many tokens are to be reserved now.
    pub(super) fn missing(&mut self, now: Instant) -> u32 {
        if self.rate.interval_us().is_none() {
            // There are none. A rule may bring some.
            return 0;
        }
        let Some((_, first)) = self.front() else { return 0 };
        self.lose(self.last_needed(first), now);
        let (there, chunk) = (self.reserved.saturating_sub(self.promised), self.rate.chunk());
        let short = first.saturating_sub(there);
        let all = self.demand.saturating_sub(u64::from(there));
        if short == 0 && (all == 0 || there > chunk / 2) {
            return 0;
        }
        let all = u32::try_from(all).unwrap_or(u32::MAX).max(self.foreseen(now));
        short.max(all.min(chunk))
    }

    /// Returns how many tokens messages are likely to need soon: otherwise each of them would ask for its own.
    fn foreseen(&self, now: Instant) -> u32 {
        match now.duration_since(self.since) < 2 * FORESEEN {
            true => self.before.max(self.spent),
            false => 0,
        }
    }

    /// Returns the next one that waits, and how many tokens it needs.
    fn front(&self) -> Option<(AskId, u32)> {
        self.waiting.first_key_value().map(|(id, tokens)| (*id, *tokens))
    }

    /// Returns how many messages wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn park(&mut self, id: AskId, tokens: u32) {
        if self.waiting.insert(id, tokens).is_none() {
            self.demand += u64::from(tokens);
        }
    }

    /// Takes out one that waited.
    pub(super) fn unpark(&mut self, id: AskId) {
        if let Some(tokens) = self.waiting.remove(&id) {
            self.demand = self.demand.saturating_sub(u64::from(tokens));
        }
    }

    pub(super) fn is_nothing(&mut self, now: Instant) -> bool {
        let is_used = !self.waiting.is_empty() || self.promised > 0 || self.asking || self.is_lacking;
        if is_used || self.closed.is_some_and(|until| until > now) {
            return false;
        }
        self.lose(0, now);
        self.reserved == 0
    }
}
