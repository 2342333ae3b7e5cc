//! Bits of the settled messages of packs.

use std::collections::BTreeMap;

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::Receipt;
use redis::{Pipeline, Value};

use crate::conn::replies::reply;
use crate::conn::request::Digits;

/// A bit for each message of a pack, the lowest bit of a byte first. Missing bytes are 0.
pub(crate) type Bits = Vec<u8>;

/// Returns the request whose answers [`told`] reads.
pub(crate) fn ask(settled: &Key, packs: &[MessageId]) -> Pipeline {
    let mut cmd = redis::cmd("HMGET");
    cmd.arg(settled.as_str());
    for id in packs {
        cmd.arg(Digits::id(*id).as_bytes());
    }
    let mut pipe = Pipeline::with_capacity(1);
    pipe.add_command(cmd);
    pipe
}

/// Returns the request whose answers [`told_open`] reads: the bits of packs, and then whether each is pending, for this consumer if
/// one is given.
///
/// In this order: the bits go when the last message of a pack is settled. Of a pack that is pending after they were read, they have all
/// that was settled before.
pub(crate) fn ask_open(
    log: &Key,
    group: &str,
    consumer: Option<&str>,
    settled: &Key,
    packs: &[MessageId],
) -> Pipeline {
    let mut pipe = ask(settled, packs);
    for id in packs {
        let id = Digits::id(*id);
        pipe.cmd("XPENDING").arg(log.as_str()).arg(group).arg(id.as_bytes()).arg(id.as_bytes()).arg(1);
        if let Some(consumer) = consumer {
            pipe.arg(consumer);
        }
    }
    pipe
}

/// Reads the bits of those of these packs that are pending, by their ids; the others are not there.
pub(crate) fn told_open(
    mut answers: Vec<Value>,
    settled: &Key,
    packs: &[MessageId],
) -> Result<BTreeMap<MessageId, Option<Bits>>> {
    let pending = answers.split_off(1.min(answers.len()));
    let bits = told(answers, settled)?;
    let mut open = BTreeMap::new();
    for ((id, bits), pending) in packs.iter().zip(bits).zip(pending) {
        if !reply::deliveries(pending)?.is_empty() {
            open.insert(*id, bits);
        }
    }
    Ok(open)
}

/// Reads the bits of these packs; `None` where nothing is settled.
pub(crate) fn told(mut answers: Vec<Value>, settled: &Key) -> Result<Vec<Option<Bits>>> {
    let answer = answers.pop().unwrap_or_default();
    let bits = reply::ok(answer).map_err(|error| error.during(format_args!("read {settled}")))?;
    reply::array(bits)?
        .into_iter()
        .map(|bits| Ok(reply::maybe_bytes(bits)?.map(|bits| bits.to_vec())))
        .collect()
}

/// Returns whether a message of a pack is settled; `bits` are those of its pack.
pub(crate) fn is_settled(receipt: &Receipt, bits: Option<&[u8]>) -> bool {
    let Some(pack) = receipt.pack else { return false };
    let position = pack.position() as usize;
    bits.and_then(|bits| bits.get(position / 8)).is_some_and(|byte| byte & (1 << (position % 8)) != 0)
}
