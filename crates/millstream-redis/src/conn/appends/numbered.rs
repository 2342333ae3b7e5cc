//! Entries with numbers: those of a partition are appended in one transaction, which is executed once.
//!
//! The server executes a transaction only if no key that the connection watches has changed since. So the request watches
//! the transaction's record, and changes its expiry if there is one: then the transaction has been executed before, and is not
//! executed again. Nothing is asked first, and no answer is awaited in between.

use std::fmt;
use std::sync::OnceLock;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::keys::{Key, Keys};
use millstream_core::log::{Append, Identity, Numbering};

use crate::conn::appends::calls::Calls;
use crate::conn::appends::check_fields;
use crate::conn::appends::part::Part;
use crate::conn::replies::resp::{Head, Replies};
use crate::conn::request::{Digits, Request};
use crate::error::unexpected;

/// Maximum number of entries of a transaction, and its approximate maximum of bytes (1 MiB): the server executes it without
/// a break.
const CALL: (usize, usize) = (500, 1 << 20);

/// Whose numbers a batch has, and what it takes to append with them.
pub(crate) struct Numbers {
    producer: u128,
    window_ms: Digits,
    /// Source of the script `append_numbered`. It is sent with each transaction: one that the server does not know would
    /// fail in the midst of it.
    code: String,
    /// Why the server does not watch records, once it has refused: then a transaction would be executed twice.
    refused: OnceLock<Error>,
}

impl Numbers {
    /// `window_ms` is the window of the numbers in milliseconds.
    pub(crate) fn new(numbering: Numbering, window_ms: u64, code: String) -> Self {
        let window_ms = Digits::number(window_ms);
        Self { producer: numbering.producer, window_ms, code, refused: OnceLock::new() }
    }

    /// Returns why nothing more can be appended so.
    pub(crate) fn refused(&self) -> Option<&Error> {
        self.refused.get()
    }
}

/// How a part is divided into transactions: entries of one partition, and the number of the first one, by which the transaction is
/// known.
pub(crate) type NumberedCalls = Calls<u64>;

impl NumberedCalls {
    /// Divides entries with numbers. The same entries of a partition are always divided in the same way, also when
    /// they are behind others that have their results.
    pub(crate) fn of_numbers<'a>(entries: impl Iterator<Item = &'a Append>) -> Self {
        let number = |append: &Append| match append.identity {
            Identity::Number(_, number) => check_fields(append.fields.len()).map(|()| number),
            _ => Err(unexpected("an entry without a number")),
        };
        Self::divided(entries, CALL, number, |_, _| true)
    }

    /// Adds the commands of all transactions. With `asking`, an `ASKING` precedes each: it counts up to the end of a
    /// transaction.
    pub(crate) fn add(
        &self,
        request: &mut Request,
        keys: &Keys,
        part: &Part,
        numbers: &Numbers,
        asking: bool,
    ) {
        if self.calls.is_empty() {
            // A request has at least one command: its place among the others decides when its results are told.
            request.add(&[b"PING"]);
        }
        let window = numbers.window_ms.as_bytes();
        for call in &self.calls {
            let tp = &part.get(call.at[0]).topic_partition;
            let (log, record) = (keys.log(tp), keys.numbered(tp, numbers.producer, call.key));
            let record = record.as_str().as_bytes();
            let watch: [&[&[u8]]; 4] =
                [&[b"WATCH", record], &[b"PEXPIRE", record, window], &[b"GET", record], &[b"MULTI"]];
            for command in watch {
                if asking {
                    request.add(&[b"ASKING"]);
                }
                request.add(command);
            }
            let count = Digits::number(call.at.len() as u64);
            request.add(&[b"SET", record, count.as_bytes(), b"PX", window]);
            let last = call.at.len() - 1;
            for (n, at) in call.at.iter().enumerate() {
                let append = part.get(*at);
                if n == 0 || n == last {
                    with_script(request, &numbers.code, &log, record, append);
                } else {
                    xadd(request, &log, append);
                }
            }
            request.add(&[b"EXEC"]);
        }
    }

    /// Reads the answers to the commands of [`add`](Self::add): a result for each entry of the part.
    pub(crate) fn results(
        &self,
        entries: usize,
        numbers: &Numbers,
        replies: &mut Replies<'_>,
        asking: bool,
    ) -> Vec<Result<MessageId>> {
        let mut results = self.unanswered(entries);
        for call in &self.calls {
            match ids(call.at.len(), replies, asking, numbers) {
                Ok(ids) => {
                    for (at, id) in call.at.iter().zip(ids) {
                        results[*at] = id;
                    }
                }
                Err(error) => call.at.iter().for_each(|at| results[*at] = Err(error.clone())),
            }
        }
        results
    }
}

/// Reads all answers to a transaction of this many entries.
fn ids(
    count: usize,
    replies: &mut Replies<'_>,
    asking: bool,
    numbers: &Numbers,
) -> Result<Vec<Result<MessageId>>> {
    let (mut refused, mut recorded) = (None, None);
    // What comes before `EXEC`: the commands in front of the transaction, and for each in it that it is queued.
    for _ in 0..4 * (1 + usize::from(asking)) + 1 + count {
        let reply = replies.next()?;
        if let Ok(Head::Text(text)) = reply.clone().head() {
            // Only `GET` is answered so.
            recorded = Some(text);
        }
        refused = refused.or(reply.ok().err());
    }
    let mut exec = replies.next()?;
    match (exec.array(), recorded) {
        (Ok(Some(len)), _) if len == count + 1 => {
            if let Some(error) = refused {
                // Stored, as what is queued without a doubt. What comes next is not.
                let _ = numbers.refused.set(error.during("watch what was appended"));
            }
            exec.head()?;
            Ok((0..count).map(|_| exec.id()).collect())
        }
        (Ok(Some(len)), _) => Err(unexpected(format_args!("{len} replies to {count} entries"))),
        // The reason why it was not executed is in front of it.
        (Err(error), _) => Err(refused.unwrap_or(error)),
        (Ok(None), Some(record)) => recorded_ids(record, count).map(|ids| ids.into_iter().map(Ok).collect()),
        (Ok(None), None) => {
            let why = "not stored again, another connection is storing it at this moment";
            Err(refused.unwrap_or_else(|| Error::new(ErrorKind::Unavailable, why)))
        }
    }
}

/// First and last id of a transaction, of which the ids in between do not follow: more than one millisecond passed while the
/// server executed it. It is the source of the error of each entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Between {
    pub(crate) first: MessageId,
    pub(crate) last: MessageId,
}

impl fmt::Display for Between {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it is between {} and {}", self.first, self.last)
    }
}

impl std::error::Error for Between {}

/// Returns where an entry is, if that is the source of its error.
pub(crate) fn between(error: &Error) -> Option<Between> {
    std::error::Error::source(error)?.downcast_ref::<Between>().copied()
}

/// Returns the ids of all entries of a transaction from its record: their number, the first id and the last one.
///
/// Nothing is appended between the entries of a transaction, so their ids follow each other, and those of a new
/// millisecond begin at 0.
fn recorded_ids(record: &[u8], count: usize) -> Result<Vec<MessageId>> {
    let text = String::from_utf8_lossy(record);
    let mut words = text.split(' ');
    let known = words.next().and_then(|count| count.parse::<usize>().ok());
    if known != Some(count) {
        let why = format!("{count} entries are sent again with the numbers of a transaction of {text:?}");
        return Err(Error::new(ErrorKind::Protocol, why));
    }
    let ids: Vec<MessageId> = words.map(str::parse).collect::<Result<_>>()?;
    let total = count as u64;
    Ok(match (&ids[..], total) {
        ([_], 1) | ([_, _], 2) => ids,
        ([first, last], _) if first.ms == last.ms && first.seq + total == last.seq + 1 => {
            (first.seq..=last.seq).map(|seq| MessageId::new(first.ms, seq)).collect()
        }
        // The rest began with the next millisecond.
        ([first, last], _) if first.ms + 1 == last.ms && last.seq + 1 < total => {
            let before = total - last.seq - 1;
            let before = (0..before).map(|n| MessageId::new(first.ms, first.seq + n));
            before.chain((0..=last.seq).map(|seq| MessageId::new(last.ms, seq))).collect()
        }
        ([first, last], _) => {
            let why = "stored by an earlier request, but which id it has is not known";
            return Err(
                Error::new(ErrorKind::Protocol, why).with_source(Between { first: *first, last: *last })
            );
        }
        _ => return Err(unexpected(format_args!("a record of a transaction without its ids: {text:?}"))),
    })
}

fn xadd(request: &mut Request, log: &Key, append: &Append) {
    request.begin(3 + 2 * append.fields.len());
    request.arg(b"XADD");
    request.arg(log.as_str().as_bytes());
    request.arg(b"*");
    fields(request, append);
}

fn with_script(request: &mut Request, code: &str, log: &Key, record: &[u8], append: &Append) {
    request.begin(5 + 2 * append.fields.len());
    request.arg(b"EVAL");
    request.arg(code.as_bytes());
    request.arg(b"2");
    request.arg(log.as_str().as_bytes());
    request.arg(record);
    fields(request, append);
}

fn fields(request: &mut Request, append: &Append) {
    for (name, value) in &append.fields {
        request.arg(name);
        request.arg(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(record: &str, count: usize) -> Result<Vec<String>> {
        let ids = recorded_ids(record.as_bytes(), count)?;
        Ok(ids.into_iter().map(|id| id.to_string()).collect())
    }

    #[test]
    fn ids_follow_from_the_first_and_the_last_one() {
        assert_eq!(ids("1 5-7", 1).expect("one"), ["5-7"]);
        assert_eq!(ids("2 5-7 9-0", 2).expect("both"), ["5-7", "9-0"]);
        assert_eq!(ids("3 5-7 5-9", 3).expect("one millisecond"), ["5-7", "5-8", "5-9"]);
        assert_eq!(ids("4 5-7 6-1", 4).expect("two"), ["5-7", "5-8", "6-0", "6-1"]);
        assert_eq!(ids("3 5-7 6-1", 3).expect("two"), ["5-7", "6-0", "6-1"]);
    }

    #[test]
    fn ids_that_do_not_follow_are_not_made_up() {
        let far = ids("3 5-7 7-0", 3).expect_err("one more millisecond passed");
        assert_eq!(between(&far), Some(Between { first: MessageId::new(5, 7), last: MessageId::new(7, 0) }));
        for (record, count) in
            [("3 5-7 5-8", 3), ("3 5-7 6-5", 3), ("2 5-7 5-8", 3), ("3", 3), ("", 1), ("1 x", 1)]
        {
            ids(record, count).expect_err(record);
        }
    }
}
