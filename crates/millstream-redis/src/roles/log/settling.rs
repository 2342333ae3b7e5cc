//! Settlements: batches as calls of scripts, in bounded portions.

use millstream_core::cancels::WorkPlace;
use millstream_core::error::{ErrorKind, Result};
use millstream_core::keys::Key;
use millstream_core::leases::Lease;
use millstream_core::log::{Receipt, Settled, Settlement, Source};
use millstream_core::name::{GroupName, MemberId};
use millstream_core::topic::TopicPartition;
use millstream_core::wire;
use redis::Value;

use super::packed::{Bodies, Packed};
use super::results::{CALL, Storing, portions};
use crate::backend::RedisBackend;
use crate::conn::replies::reply;
use crate::conn::request::Digits;
use crate::scripts::script;
use crate::scripts::script::Call;
use crate::scripts::times::due;
use crate::scripts::times::wait_words;
use crate::stored::note;

/// Maximum number of ids of one call of the script `ack`.
const ACK_CHUNK: usize = 1_000;
/// Maximum number of messages of one call of the scripts `retry`, `dead_letter` and `hold`, which copy bodies or
/// texts.
const COPY_CHUNK: usize = 100;
/// The same limit for large bodies, where the scripts stop after about 1 MiB.
const COPY_REST: usize = 16;

/// Content of a call, which determines how to parse its answer.
enum Sent {
    /// Number of ids. The answer is how many of them were acknowledged.
    Acks(usize),
    /// Positions of the messages in the batch. The answer is how many were moved or noted, how many were stale, and
    /// how many were processed: with large bodies the script may stop half-way.
    Messages(Vec<usize>),
}

/// Right by which entries of a group are settled: the first arguments of the settling scripts.
#[derive(Clone, Copy)]
pub(crate) enum Right<'a> {
    /// The owner of the partition: the scripts check the fence.
    Owner(&'a Lease),
    /// One consumer of many: each entry must be pending under its name.
    Consumer(&'a MemberId),
}

impl<'a> Right<'a> {
    /// Returns the scripts' arguments `mode` and `who`.
    pub(crate) fn words(self) -> [&'a str; 2] {
        match self {
            Self::Owner(lease) => ["lease", lease.token.as_str()],
            Self::Consumer(name) => ["consumer", name.as_str()],
        }
    }
}

impl RedisBackend {
    /// Settles a batch, in bounded portions.
    pub(crate) async fn settle_by(
        &self,
        right: Right<'_>,
        tp: &TopicPartition,
        group: &GroupName,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Settled> {
        let mut total = Totals::default();
        let bodies = self.packed_bodies(tp, batch).await?;
        let calls = self.settle_calls(right, tp, group, batch.iter().enumerate(), &bodies)?;
        if calls.is_empty() {
            return Ok(total.settled);
        }
        let (calls, sent): (Vec<_>, Vec<_>) = calls.into_iter().unzip();
        let answers = script::run(&self.inner.messages, calls).await;
        total.add(right, sent, answers)?;
        // The remaining messages have large bodies. Send one call at a time: the server would execute all calls of one
        // pipeline without a break.
        while !total.left.is_empty() {
            let mut some = std::mem::take(&mut total.left);
            let later = some.split_off(some.len().min(COPY_REST));
            let some = some.into_iter().filter_map(|at| Some((at, batch.get(at)?)));
            for (call, sent) in self.settle_calls(right, tp, group, some, &bodies)? {
                let answers = script::run(&self.inner.messages, vec![call]).await;
                total.add(right, vec![sent], answers)?;
            }
            total.left.extend(later);
        }
        Ok(total.settled)
    }

    /// Builds the script calls of a batch, in bounded portions: per stream one kind of settlement after the other.
    fn settle_calls<'a, 'b>(
        &'a self,
        right: Right<'_>,
        tp: &TopicPartition,
        group: &GroupName,
        batch: impl Iterator<Item = (usize, &'b (Receipt, Settlement))>,
        bodies: &Bodies,
    ) -> Result<Vec<(Call<'a>, Sent)>> {
        let (keys, scripts) = (&self.inner.keys, &self.inner.scripts);
        let (fence, held, settled) = (keys.fence(tp, group), keys.held(tp, group), keys.settled(tp, group));
        let [mode, who] = right.words();
        let notes = keys.batch_notes(&tp.clone().into());
        let steps = || keys.steps(&WorkPlace::Group(tp.clone(), group.clone()));
        let begin_dead = |fence: &Key, stream: &Key, held: &Key, results: &[[Key; 1]], common| {
            let letters = keys.dead_letters(tp, group);
            let keys = [fence, stream, &letters, held, &notes, &steps()];
            let call = scripts.dead_letter.call_with_rows(keys, results);
            call.args::<4>(common).arg(tp.topic.as_str()).arg(tp.partition.0)
        };
        let mut by_source = [Settling::of(Source::Log), Settling::of(Source::Retry)];
        let mut packed = Packed::default();
        for (at, (receipt, settlement)) in batch {
            if let Some(pack) = receipt.pack {
                packed.add(at, receipt, pack, settlement);
                continue;
            }
            let Settling { source, acks, results, holds, retries, dead, dead_with_results } = &mut by_source
                [match receipt.source {
                    Source::Log => 0,
                    Source::Retry => 1,
                }];
            let stream = || self.inner.stream(tp, group, *source);
            let common = [mode, who, group.as_str(), note::word(*source)];
            let digits = Digits::id(receipt.id);
            let id = digits.as_bytes();
            match settlement {
                Settlement::Ack => {
                    acks.next(at, || scripts.ack.call([&fence, &stream(), &held, &settled]).args(common))
                        .push(id);
                }
                Settlement::AckWith(_) => {
                    let stored = settlement.result();
                    results.extend(stored.map(|stored| (digits, self.storing(tp.clone(), stored))));
                }
                Settlement::Hold(note) => {
                    let (words, line) = note::write(note)?;
                    let call = holds.next(at, || scripts.hold.call([&fence, &stream(), &held]).args(common));
                    call.push(id);
                    call.extend([due(note.due), words, line]);
                }
                Settlement::Retry { due: when, attempt, origin, error, history, wait } => {
                    let (history, line) = history.adding(attempt.saturating_sub(1), error);
                    let (due_at, attempt, origin) = (due(*when), attempt.to_string(), origin.to_string());
                    let call = retries.next(at, || {
                        let (due, items) = (keys.retry_due(tp, group), keys.retry_items(tp, group));
                        scripts.retry.call([&fence, &stream(), &due, &items, &held, &steps()]).args(common)
                    });
                    call.push(id);
                    call.extend([&*due_at, &*attempt, &*origin, wire::cut(error), &*history, &*line]);
                    call.push(wait_words(wait.as_deref()));
                }
                Settlement::DeadLetter { .. } => {
                    if let Some(stored) = settlement.result() {
                        let storing = self.storing(tp.clone(), stored);
                        dead_with_results.push((at, digits, settlement, storing));
                        continue;
                    }
                    let call = dead.next(at, || begin_dead(&fence, &stream(), &held, &[], common));
                    push_letter(call, id, settlement, None);
                }
            }
        }
        let mut calls = Vec::new();
        for settling in by_source {
            let source = settling.source;
            let acks = self.ack_with_results(right, (tp, group, source), &settling.results);
            calls.extend(acks.into_iter().map(|(call, sent)| (call, Sent::Acks(sent))));
            let common = [mode, who, group.as_str(), note::word(source)];
            for some in portions(&settling.dead_with_results, CALL.0, |(.., storing)| storing.result.len()) {
                let rows: Vec<_> = some.iter().map(|(.., storing)| [storing.key.clone()]).collect();
                let mut call =
                    begin_dead(&fence, &self.inner.stream(tp, group, source), &held, &rows, common);
                for (_, id, settlement, storing) in some {
                    push_letter(&mut call, id.as_bytes(), settlement, Some(storing));
                }
                calls.push((call, Sent::Messages(some.iter().map(|(at, ..)| *at).collect())));
            }
            calls.extend(settling.calls());
        }
        let begin = |results: &[[Key; 1]]| {
            let [due, items] = [keys.retry_due(tp, group), keys.retry_items(tp, group)];
            let [log, letters] = [keys.log(tp), keys.dead_letters(tp, group)];
            let keys = [&fence, &log, &settled, &held, &due, &items, &letters, &notes, &steps()];
            let call = scripts.settle_packed.call_with_rows(keys, results);
            call.args([mode, who, group.as_str(), tp.topic.as_str()]).arg(tp.partition.0)
        };
        let packed = packed.calls(begin, |stored| self.storing(tp.clone(), stored), bodies)?;
        calls.extend(packed.into_iter().map(|(call, at)| (call, Sent::Messages(at))));
        Ok(calls)
    }
}

/// Calls that settle entries of one stream, by kind of settlement.
struct Settling<'a, 'b> {
    source: Source,
    acks: SettleCalls<'a>,
    /// Acknowledgements with results.
    results: Vec<(Digits, Storing)>,
    /// Dead letters with results, and their positions in the batch.
    dead_with_results: Vec<(usize, Digits, &'b Settlement, Storing)>,
    holds: SettleCalls<'a>,
    retries: SettleCalls<'a>,
    dead: SettleCalls<'a>,
}

impl<'a> Settling<'a, '_> {
    fn of(source: Source) -> Self {
        let of = |limit| SettleCalls { limit, keeps: true, calls: Vec::new() };
        Self {
            source,
            acks: SettleCalls { keeps: false, ..of(ACK_CHUNK) },
            results: Vec::new(),
            dead_with_results: Vec::new(),
            holds: of(COPY_CHUNK),
            retries: of(COPY_CHUNK),
            dead: of(COPY_CHUNK),
        }
    }

    fn calls(self) -> impl Iterator<Item = (Call<'a>, Sent)> {
        let acks = self.acks.calls.into_iter().map(|(call, sent, _)| (call, Sent::Acks(sent)));
        let moved = [self.holds, self.retries, self.dead].into_iter().flat_map(|kind| kind.calls);
        acks.chain(moved.map(|(call, _, at)| (call, Sent::Messages(at))))
    }
}

/// Calls of one kind. Each has the number of messages that it settles and, if `keeps` is set, their positions in the
/// batch.
struct SettleCalls<'a> {
    limit: usize,
    keeps: bool,
    calls: Vec<(Call<'a>, usize, Vec<usize>)>,
}

impl<'a> SettleCalls<'a> {
    /// Returns the call for the next message. Begins a new one if there is none or the last one is full.
    fn next(&mut self, at: usize, begin: impl FnOnce() -> Call<'a>) -> &mut Call<'a> {
        if self.calls.last().is_none_or(|(_, sent, _)| *sent >= self.limit) {
            self.calls.push((begin(), 0, Vec::new()));
        }
        let last = self.calls.len() - 1;
        let (call, sent, kept) = &mut self.calls[last];
        *sent += 1;
        if self.keeps {
            kept.push(at);
        }
        call
    }
}

/// Adds a dead letter to a call of its script.
fn push_letter(call: &mut Call<'_>, id: &[u8], settlement: &Settlement, storing: Option<&Storing>) {
    let Settlement::DeadLetter { reason, attempts, origin, error, history, .. } = settlement else { return };
    let (history, line) = history.adding(*attempts, error);
    let (attempts, origin) = (attempts.to_string(), origin.to_string());
    call.push(id);
    call.extend([reason.as_str(), &*attempts, &*origin, wire::cut(error), &*history, &*line]);
    match storing {
        Some(storing) => {
            call.push(&*storing.keep);
            call.push(&storing.result[..]);
        }
        None => call.extend(["", ""]),
    }
}

/// Sum of the results of the calls for a batch.
#[derive(Default)]
struct Totals {
    settled: Settled,
    /// Positions in the batch that the calls have not processed.
    left: Vec<usize>,
}

impl Totals {
    /// Adds the answers of some calls.
    fn add(&mut self, right: Right<'_>, sent: Vec<Sent>, answers: Vec<Result<Value>>) -> Result<()> {
        let mut first = None;
        for (sent, answer) in sent.into_iter().zip(answers) {
            match answer.and_then(|answer| self.count(sent, answer)) {
                Ok(()) => {}
                // This error takes precedence over any other: nothing of the batch can be settled any more.
                Err(error) if error.kind() == ErrorKind::Fenced => {
                    return Err(match right {
                        Right::Owner(lease) => lease.fenced(),
                        Right::Consumer(_) => error,
                    });
                }
                Err(error) => first = first.or(Some(error)),
            }
        }
        first.map_or(Ok(()), Err)
    }

    fn count(&mut self, sent: Sent, answer: Value) -> Result<()> {
        let (applied, stale) = match sent {
            Sent::Acks(ids) => reply::count(answer).map(|acked| (acked, ids.saturating_sub(acked)))?,
            Sent::Messages(sent) => {
                let [applied, stale, done] = reply::tuple(answer)?;
                self.left.extend(script::behind(&sent, reply::count(done)?)?);
                (reply::count(applied)?, reply::count(stale)?)
            }
        };
        self.settled.applied += applied;
        self.settled.stale += stale;
        Ok(())
    }
}
