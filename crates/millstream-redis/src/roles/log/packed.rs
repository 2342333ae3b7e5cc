//! Settlements of messages in packs.
//!
//! A script cannot read a compressed pack. So the body of a message that is parked or becomes a dead letter is read here, before the
//! call; the script checks in one step that the message is not settled, stores the body, and notes that it is.

use bytes::Bytes;
use millstream_core::dead_letters::Reason;
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::{InPack, Receipt, Settlement};
use millstream_core::results::StoredResult;
use millstream_core::sorted::SortedMap;
use millstream_core::topic::TopicPartition;
use millstream_core::wire::{self, Fields};
use millstream_packing::{Unpacked, Unreadable, dictionary_of, unpack_with};
use redis::Pipeline;

use super::results::{self, Storing, portions};
use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::conn::request::Digits;
use crate::entries::unpacking::{cannot_read, named};
use crate::scripts::script;
use crate::scripts::script::Call;
use crate::scripts::times::due;
use crate::scripts::times::wait_words;
use crate::stored::note;

/// Maximum number of messages of one call, and the size of bodies in bytes at which it takes no further one (1 MiB).
const CALL: (usize, usize) = (1_000, 1 << 20);
/// Number of packs that are read in one request: each has up to 1 MiB.
const PACKS: usize = 8;

/// Messages of packs, by their ids. Those of a pack that is gone are missing.
pub(super) type Bodies = SortedMap<MessageId, Body>;

/// What is stored of a message of a pack that is parked or given up.
pub(super) enum Body {
    /// The message.
    Message(Fields),
    /// Its pack, and why it cannot be read any more. It was readable when the message was handed out, and was damaged since.
    Pack(Fields, String),
}

impl RedisBackend {
    /// Returns how many messages the logs of these partitions hold.
    pub(super) async fn packed_lengths(&self, partitions: &[TopicPartition]) -> Result<Vec<u64>> {
        let keys = &self.inner.keys;
        let calls = partitions
            .iter()
            .map(|tp| self.inner.scripts.length_packed.call([&keys.log(tp), &keys.packs(tp)]));
        let answers = script::run(&self.inner.messages, calls.collect()).await.into_iter().zip(partitions);
        let lengths = answers.map(|(answer, tp)| {
            let length = answer.and_then(reply::count);
            Ok(length.map_err(|error| error.during(format_args!("length of {tp}")).at(tp))? as u64)
        });
        lengths.collect()
    }

    /// Reads the packs of those messages of a batch whose bodies are needed.
    pub(super) async fn packed_bodies(
        &self,
        tp: &TopicPartition,
        batch: &[(Receipt, Settlement)],
    ) -> Result<Bodies> {
        let copies = |settlement: &Settlement| {
            matches!(settlement, Settlement::Retry { .. } | Settlement::DeadLetter { .. })
        };
        let packed =
            batch.iter().filter(|(receipt, settlement)| receipt.pack.is_some() && copies(settlement));
        let mut wanted: Vec<&Receipt> = packed.map(|(receipt, _)| receipt).collect();
        wanted.sort_unstable();
        let mut ids: Vec<_> = wanted.iter().map(|receipt| receipt.entry()).collect();
        ids.dedup();
        let mut bodies = Bodies::new();
        let log = self.inner.keys.log(tp);
        for ids in ids.chunks(PACKS) {
            let mut pipe = Pipeline::with_capacity(ids.len());
            for id in ids {
                let id = Digits::id(*id);
                pipe.cmd("XRANGE").arg(log.as_str()).arg(id.as_bytes()).arg(id.as_bytes());
            }
            for answer in self.inner.bulk.send(&pipe).await? {
                for (id, fields) in reply::entries(answer)? {
                    let Some(fields) = fields else { continue };
                    let dictionaries = self
                        .inner
                        .dictionaries_for(&tp.topic, dictionary_of(&fields).into_iter().collect())
                        .await?;
                    let read = match unpack_with(&fields, |name| named(&dictionaries, name)) {
                        Ok(Unpacked::Messages(messages)) => Ok(messages),
                        Ok(Unpacked::One) => Err("the entry is no pack any more".to_owned()),
                        Err(Unreadable::Damaged(why)) => Err(format!("the pack is damaged: {why}")),
                        // It can be read again when its dictionary is put back: until then the settlement waits.
                        Err(error) => return Err(cannot_read(id, &error).at(tp)),
                    };
                    for receipt in wanted.iter().filter(|receipt| receipt.entry() == id) {
                        bodies.insert(receipt.id, body(receipt, &fields, read.as_deref()));
                    }
                }
            }
        }
        Ok(bodies)
    }
}

/// Returns what is to be stored of a message: compressed as its pack is where that makes it much smaller. So what becomes of a pack of little
/// memory, which may hold a thousand messages of many, takes little too.
fn body(receipt: &Receipt, pack: &Fields, read: Result<&[Fields], &String>) -> Body {
    let position = receipt.pack.map_or(0, InPack::position) as usize;
    // Copied, or each would keep its whole pack.
    let copy = |(name, value): &(Bytes, Bytes)| (Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
    match read.map(|messages| messages.get(position)) {
        Ok(Some(message)) => {
            let alone = millstream_packing::pack_alone(pack, message);
            Body::Message(alone.unwrap_or_else(|| message.iter().map(copy).collect()))
        }
        Ok(None) => Body::Pack(pack.clone(), "the pack has fewer messages than it had".to_owned()),
        Err(why) => Body::Pack(pack.clone(), why.clone()),
    }
}

/// Settlements of messages in packs, in the order in which they are sent.
#[derive(Default)]
pub(super) struct Packed<'a> {
    /// By the ids of packs: their number of messages, and the positions of those that are settled, by their places in the batch.
    acks: SortedMap<MessageId, (u32, Vec<(u32, usize)>)>,
    others: Vec<Other<'a>>,
}

/// Place in the batch, message, its place in its pack, and settlement.
type Other<'a> = (usize, &'a Receipt, InPack, &'a Settlement);

impl<'a> Packed<'a> {
    pub(super) fn add(&mut self, at: usize, receipt: &'a Receipt, pack: InPack, settlement: &'a Settlement) {
        if *settlement == Settlement::Ack {
            let (_, acked) = self.acks.get_or_insert_with(receipt.entry(), || (pack.count, Vec::new()));
            acked.push((pack.position(), at));
        } else {
            self.others.push((at, receipt, pack, settlement));
        }
    }

    /// Builds the calls, each with the places in the batch of its messages.
    pub(super) fn calls<'c>(
        self,
        begin: impl Fn(&[[Key; 1]]) -> Call<'c>,
        storing: impl Fn(&StoredResult) -> Storing,
        bodies: &Bodies,
    ) -> Result<Vec<(Call<'c>, Vec<usize>)>> {
        let mut calls: Vec<(Call<'c>, Vec<usize>)> = Vec::new();
        let mut bytes = 0;
        for (entry, (count, mut acked)) in self.acks {
            // A message that stands twice is settled once: each time in an operation of its own.
            acked.sort_unstable();
            while !acked.is_empty() {
                let (mut bits, mut at, mut again) =
                    (vec![0u8; count.div_ceil(8) as usize], Vec::new(), Vec::new());
                for (position, place) in acked {
                    let (byte, bit) = (position as usize / 8, 1 << (position % 8));
                    match bits.get_mut(byte) {
                        Some(byte) if *byte & bit == 0 => {
                            *byte |= bit;
                            at.push(place);
                        }
                        _ => again.push((position, place)),
                    }
                }
                if at.is_empty() {
                    break;
                }
                let call = next(&mut calls, &mut bytes, || begin(&[]));
                if at.len() == count as usize {
                    bits.clear();
                }
                call.0.push("ack");
                call.0.push(Digits::id(entry).as_bytes());
                call.0.push(count);
                call.0.push(bits);
                call.1.extend(at);
                acked = again;
            }
        }
        // Those with results have calls of their own, whose keys are known when they begin.
        let mut plain = Vec::with_capacity(self.others.len());
        let mut with_results = Vec::new();
        for other in self.others {
            match other.3.result() {
                Some(stored) => with_results.push((other, storing(stored))),
                None => plain.push(other),
            }
        }
        for other in plain {
            let (call, sent) = next(&mut calls, &mut bytes, || begin(&[]));
            bytes += push_other(call, other, bodies)?;
            sent.push(other.0);
        }
        for some in portions(&with_results, results::CALL.0, |(_, storing)| storing.result.len()) {
            let rows: Vec<_> = some.iter().map(|(_, storing)| [storing.key.clone()]).collect();
            let (mut call, mut sent) = (begin(&rows), Vec::with_capacity(some.len()));
            for (other, storing) in some {
                call.push("result");
                call.push(&*storing.keep);
                call.push(&storing.result[..]);
                call.push(if storing.steps.is_some() { "1" } else { "" });
                push_other(&mut call, *other, bodies)?;
                sent.push(other.0);
            }
            calls.push((call, sent));
        }
        Ok(calls)
    }
}

/// Adds a settlement that is no plain acknowledgement to a call, and returns the bytes of its body.
fn push_other(
    call: &mut Call<'_>,
    (_, receipt, pack, settlement): Other<'_>,
    bodies: &Bodies,
) -> Result<usize> {
    if let Settlement::Retry { wait: Some(wait), .. } = settlement
        && !matches!(bodies.get(&receipt.id), Some(Body::Pack(..)))
    {
        call.push("wait");
        call.push(wait_words(Some(wait)));
    }
    let mut lead = |kind: &str| {
        call.push(kind);
        call.push(Digits::id(receipt.entry()).as_bytes());
        call.push(pack.count);
        call.push(pack.position());
        call.push(Digits::id(receipt.id).as_bytes());
    };
    let body = bodies.get(&receipt.id);
    let (body, unread) = match body {
        Some(Body::Message(message)) => (message.as_slice(), None),
        Some(Body::Pack(pack, why)) => (pack.as_slice(), Some(why)),
        None => Default::default(),
    };
    let words = match settlement {
        Settlement::Ack => return Ok(0),
        Settlement::AckWith(_) => {
            lead("done");
            return Ok(0);
        }
        Settlement::Hold(note) => {
            let (words, line) = note::write(note)?;
            lead("hold");
            call.extend([due(note.due), words, line]);
            return Ok(0);
        }
        // It cannot be handed out again. Nothing of it is lost: the dead letter has its pack, as stored.
        Settlement::Retry { attempt: attempts, origin, error, history, .. }
        | Settlement::DeadLetter { attempts, origin, error, history, .. }
            if unread.is_some() =>
        {
            let retried = matches!(settlement, Settlement::Retry { .. });
            let attempts = attempts.saturating_sub(u32::from(retried));
            let (history, line) = history.adding(attempts, error);
            let why = unread.map_or("", String::as_str);
            // First which message it is: a long text loses its end.
            let (entry, nth) = (receipt.entry(), pack.position() + 1);
            let error = format!("message {nth} of {} of pack {entry}: {why}; before: {error}", pack.count);
            tracing::warn!("a pack cannot be read any more, the message becomes a dead letter: {error}");
            lead("dead");
            let reason = Reason::Malformed.as_str().to_owned();
            [reason, attempts.to_string(), origin.to_string(), wire::cut(&error).to_owned(), history, line]
        }
        Settlement::Retry { due: when, attempt, origin, error, history, wait: _ } => {
            let (history, line) = history.adding(attempt.saturating_sub(1), error);
            lead("retry");
            [due(*when), attempt.to_string(), origin.to_string(), wire::cut(error).to_owned(), history, line]
        }
        Settlement::DeadLetter { reason, attempts, origin, error, history, result: _ } => {
            let (history, line) = history.adding(*attempts, error);
            lead("dead");
            let reason = reason.as_str().to_owned();
            [reason, attempts.to_string(), origin.to_string(), wire::cut(error).to_owned(), history, line]
        }
    };
    call.extend(words);
    call.push(2 * body.len());
    let mut bytes = 0;
    for (name, value) in body {
        call.extend([&name[..], &value[..]]);
        bytes += name.len() + value.len();
    }
    Ok(bytes)
}

/// Returns the call that takes the next settlement.
fn next<'v, 'c>(
    calls: &'v mut Vec<(Call<'c>, Vec<usize>)>,
    bytes: &mut usize,
    begin: impl FnOnce() -> Call<'c>,
) -> &'v mut (Call<'c>, Vec<usize>) {
    if calls.last().is_none_or(|(_, sent)| sent.len() >= CALL.0 || *bytes >= CALL.1) {
        calls.push((begin(), Vec::new()));
        *bytes = 0;
    }
    let last = calls.len() - 1;
    &mut calls[last]
}
