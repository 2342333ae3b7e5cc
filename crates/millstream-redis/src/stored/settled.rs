//! Bits of the settled messages of packs.

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
