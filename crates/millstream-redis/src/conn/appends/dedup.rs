//! Entries with dedup ids: those of a partition are appended by one call of a script, which leaves out what is known.
//!
//! The calls are commands of a request like others, so requests follow each other without waiting for answers.

use std::time::Duration;

use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::keys::Keys;
use millstream_core::log::{Append, Appended, DedupId, DedupIdentity, Identity, check_window};

use crate::conn::appends::calls::Calls;
use crate::conn::appends::check_fields;
use crate::conn::appends::part::Part;
use crate::conn::appends::script::Script;
use crate::conn::replies::resp::{Head, Replies};
use crate::conn::request::{Digits, Request};
use crate::error::unexpected;

/// Maximum number of entries of one call of the script, which passes them to commands at once, and its approximate maximum of
/// bytes (1 MiB): the server works on it without a break.
const CALL: (usize, usize) = (250, 1 << 20);

/// Short form of a dedup id, by which the server keeps it: at most 16 bytes.
///
/// The server searches and keeps a name for each message, and needs a third more time and memory for one of 32 bytes. An id
/// of up to 15 bytes is its own form; of others it is the beginning of their SHA-1. So no form is that of an id of the other
/// kind, and no client needs more than is in the library of every language.
pub(crate) enum ShortId<'a> {
    Own(&'a [u8]),
    Digest([u8; 16]),
}

impl<'a> ShortId<'a> {
    pub(crate) fn of(id: &'a DedupId) -> Self {
        let id = id.as_bytes();
        if id.len() < 16 {
            return Self::Own(id);
        }
        let digest = sha1_smol::Sha1::from(id).digest().bytes();
        let mut short = [0; 16];
        short.copy_from_slice(&digest[..16]);
        Self::Digest(short)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Own(id) => id,
            Self::Digest(digest) => digest,
        }
    }
}

/// How a part is divided into calls of the script: entries of one partition with one window.
pub(crate) type DedupCalls = Calls<Duration>;

impl DedupCalls {
    /// Divides the entries of a part. Those of a partition keep their order.
    pub(crate) fn of_ids<'a>(entries: impl Iterator<Item = &'a Append>) -> Self {
        Self::divided(entries, CALL, |append| Ok(check(append)?.window), |one, other| one == other)
    }

    /// Adds all calls. The first one carries the script, so that the server knows it for the others. With `asking`, an
    /// `ASKING` precedes each.
    pub(crate) fn add(&self, request: &mut Request, keys: &Keys, part: &Part, script: &Script, asking: bool) {
        if self.calls.is_empty() {
            // A request has at least one command: its place among the others decides when its results are returned.
            request.add(&[b"PING"]);
        }
        for (n, call) in self.calls.iter().enumerate() {
            if asking {
                request.add(&[b"ASKING"]);
            }
            let tp = &part.get(call.at[0]).topic_partition;
            let values: usize = call.at.iter().map(|at| 2 + 2 * part.get(*at).fields.len()).sum();
            request.begin(8 + values);
            let (command, script) = if n == 0 { ("EVAL", script.code()) } else { ("EVALSHA", script.sha()) };
            request.arg(command.as_bytes());
            request.arg(script.as_bytes());
            request.arg(b"3");
            for key in [keys.log(tp), keys.dedup(tp), keys.dedup_old(tp)] {
                request.arg(key.as_str().as_bytes());
            }
            let window_ms = u64::try_from(call.key.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
            request.arg(Digits::number(window_ms).as_bytes());
            request.arg(Digits::number(call.at.len() as u64).as_bytes());
            for at in &call.at {
                // What has no id is refused.
                let Identity::Dedup(dedup) = &part.get(*at).identity else { continue };
                request.arg(ShortId::of(&dedup.id).as_bytes());
            }
            for at in &call.at {
                let fields = &part.get(*at).fields;
                request.arg(Digits::number(2 * fields.len() as u64).as_bytes());
                for (name, value) in fields {
                    request.arg(name);
                    request.arg(value);
                }
            }
        }
    }

    /// Reads the answers to the commands of [`add`](Self::add): a result for each entry of the part.
    pub(crate) fn results(
        &self,
        part: &Part,
        replies: &mut Replies<'_>,
        asking: bool,
    ) -> Vec<Result<Appended>> {
        let mut results = self.unanswered(part.len());
        for call in &self.calls {
            if asking {
                // Its failure shows in the reply behind it.
                let _ = replies.next();
            }
            match ids(call.at.len(), replies) {
                Ok((ids, duplicates)) => {
                    let partition = part.get(call.at[0]).topic_partition.partition;
                    for (at, id) in call.at.iter().zip(&ids) {
                        results[*at] = Ok(Appended::new(partition, *id));
                    }
                    for n in duplicates {
                        results[call.at[n]] = Ok(Appended::before(partition, ids[n]));
                    }
                }
                Err(error) => call.at.iter().for_each(|at| results[*at] = Err(error.clone())),
            }
        }
        results
    }
}

/// Reads the answer to a call with this many entries: their ids, and which of them were stored before.
fn ids(count: usize, replies: &mut Replies<'_>) -> Result<(Vec<MessageId>, Vec<usize>)> {
    let mut reply = replies.next()?;
    let wrong = |what: &str| unexpected(format_args!("{what} for {count} entries with dedup ids"));
    if reply.array()? != Some(2) || reply.array()? != Some(count) {
        return Err(wrong("not as many ids"));
    }
    let ids = (0..count).map(|_| reply.id()).collect::<Result<_>>()?;
    let mut duplicates = Vec::new();
    for _ in 0..reply.array()?.unwrap_or(0) {
        match reply.head()? {
            Head::Int(n) => {
                let n = usize::try_from(n).ok().filter(|n| (1..=count).contains(n));
                duplicates.push(n.ok_or_else(|| wrong("a number of none"))? - 1);
            }
            _ => return Err(wrong("no number of a duplicate")),
        }
    }
    Ok((ids, duplicates))
}

/// Checks what the server would refuse, or accept although others would not.
pub(crate) fn check(append: &Append) -> Result<&DedupIdentity> {
    let Identity::Dedup(dedup) = &append.identity else {
        return Err(unexpected("an entry without a dedup id"));
    };
    check_window(dedup.window)?;
    check_fields(append.fields.len())?;
    Ok(dedup)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(id: &[u8]) -> Vec<u8> {
        ShortId::of(&DedupId::new(id.to_vec()).expect("an id")).as_bytes().to_vec()
    }

    #[test]
    fn ids_of_sixteen_bytes_and_more_are_digested() {
        assert_eq!(short(b"order-7"), b"order-7");
        assert_eq!(short(&[7; 15]), [7; 15]);
        // The vector of FIPS 180.
        let vector = b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
        let digest =
            [0x84, 0x98, 0x3e, 0x44, 0x1c, 0x3b, 0xd2, 0x6e, 0xba, 0xae, 0x4a, 0xa1, 0xf9, 0x51, 0x29, 0xe5];
        assert_eq!(short(vector), digest);
        assert_ne!(short(&digest), digest, "a digest of an id is no id's own form");
    }
}
