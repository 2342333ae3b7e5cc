//! Bits of the settled messages of packs.

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Key;
use millstream_core::log::Receipt;
use millstream_core::name::GroupName;
use millstream_core::sorted::SortedMap;
use millstream_core::topic::TopicPartition;
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::conn::replies::reply;
use crate::conn::request::Digits;
use crate::scripts::script::{self, Call};

/// Maximum number of calls of the script `sweep_packed` in one sweep: each looks at 100 packs and 100 notes.
const SWEEPS: usize = 10;

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
) -> Result<SortedMap<MessageId, Option<Bits>>> {
    let pending = answers.split_off(1.min(answers.len()));
    let bits = told(answers, settled)?;
    let mut open = SortedMap::new();
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

impl Inner {
    /// Returns the call that sweeps: it drops what is noted of packs that are pending no more, and acknowledges those of which everything is
    /// settled. `right` is the script's `mode` and `who`.
    pub(crate) fn sweep_call(&self, right: [&str; 2], tp: &TopicPartition, group: &GroupName) -> Call<'_> {
        self.begin_sweep(right, tp, group).arg("")
    }

    /// Goes on after the first call, as long as much is found. Nobody waits for the result.
    pub(crate) async fn sweep_on(
        &self,
        right: [&str; 2],
        tp: &TopicPartition,
        group: &GroupName,
        first: Result<Value>,
    ) {
        let mut answer = first;
        for _ in 0..SWEEPS {
            let swept = answer.and_then(|answer| {
                let [dropped, acknowledged, more] = reply::tuple(answer)?;
                Ok((reply::count(dropped)?, reply::count(acknowledged)?, reply::int(more)? == 1))
            });
            let (acknowledged, more) = match swept {
                Ok((_, acknowledged, more)) => (acknowledged, more),
                Err(error) => {
                    tracing::warn!(%tp, %group, %error, "what is noted of packs was not swept");
                    return;
                }
            };
            if acknowledged > 0 {
                tracing::info!(%tp, %group, packs = acknowledged, "acknowledged settled packs");
            }
            if !more {
                return;
            }
            answer = script::run_one(&self.messages, self.sweep_call(right, tp, group)).await;
        }
    }

    /// Acknowledges those of these packs that are pending and of which everything is settled.
    pub(crate) async fn acknowledge_settled(
        &self,
        right: [&str; 2],
        tp: &TopicPartition,
        group: &GroupName,
        packs: &[MessageId],
    ) -> Result<()> {
        if packs.is_empty() {
            return Ok(());
        }
        // The script takes no more at once.
        for packs in packs.chunks(1_000) {
            let mut call = self.begin_sweep(right, tp, group);
            packs.iter().for_each(|id| call.push(Digits::id(*id).as_bytes()));
            script::run_one(&self.messages, call).await?;
        }
        Ok(())
    }

    fn begin_sweep(&self, right: [&str; 2], tp: &TopicPartition, group: &GroupName) -> Call<'_> {
        let keys = &self.keys;
        let of_group = [keys.fence(tp, group), keys.held(tp, group), keys.settled(tp, group)];
        let [fence, held, settled] = &of_group;
        let call = self.scripts.sweep_packed.call([fence, &keys.log(tp), &keys.packs(tp), held, settled]);
        call.args(right).arg(group.as_str())
    }
}
