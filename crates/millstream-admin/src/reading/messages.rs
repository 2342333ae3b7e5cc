//! Messages as stored in a topic: browsing and searching them.

use bytes::Bytes;
use millstream_core::inspect::{Range, Stored, Stream};
use millstream_core::log::{Receipt, Source};
use millstream_core::wire::{self, Decoded};
use millstream_core::{Envelope, Limits, MessageId, Partition, Result, TopicName, TopicPartition};

use crate::Admin;
use crate::reading::cursor::Cursor;
use crate::reading::walk::MessageWalk;

/// Number of entries that are examined between two checks of whether enough was found.
const PORTION: usize = 1_000;

/// Message, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Partition of the message.
    pub topic_partition: TopicPartition,
    /// Entry, byte for byte.
    pub stored: Stored,
    source: Source,
    /// Index of the partition among the requested ones.
    lane: usize,
}

impl Message {
    pub(crate) fn new(topic_partition: TopicPartition, stored: Stored, source: Source, lane: usize) -> Self {
        Self { topic_partition, stored, source, lane }
    }

    /// Decodes the entry to a message, or returns why it is not one. A redelivery includes its attempt, origin and errors.
    #[must_use]
    pub fn decode(&self, limits: &Limits) -> Decoded {
        wire::decode(Receipt::new(self.source, self.stored.id), &self.stored.fields, limits)
    }
}

/// Selection of messages, and their maximum number.
#[derive(Clone, Debug)]
pub struct Browse {
    /// Partitions. Default: all.
    pub partitions: Option<Vec<Partition>>,
    /// Stream. Default: the log.
    pub stream: Stream,
    /// Range of ids, and the order. Default: all, oldest first.
    pub range: Range,
    /// Maximum number of messages in the answer. Default: 100.
    pub limit: usize,
    /// End of the previous page. Default: start at the beginning.
    pub after: Option<Cursor>,
    /// Whether partitions that cannot be read are left out of a [walk](Admin::walk), which then
    /// [names](MessageWalk::failed) them. Default: no, they are an error.
    pub partial: bool,
}

impl Default for Browse {
    fn default() -> Self {
        let (partitions, stream, range, after) = (None, Stream::Log, Range::ALL, None);
        Self { partitions, stream, range, limit: 100, after, partial: false }
    }
}

/// Conditions of a search: a message must match all that are set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The id of the entry.
    pub id: Option<MessageId>,
    /// The key.
    pub key: Option<Bytes>,
    /// Name of a header, and its value; `None` for any value.
    pub header: Option<(String, Option<Bytes>)>,
    /// Bytes contained in the payload.
    pub payload: Option<Bytes>,
}

impl Filter {
    /// Returns whether a message matches. One that cannot be decoded matches by its id alone.
    #[must_use]
    pub fn fits(&self, message: &Message, limits: &Limits) -> bool {
        if self.id.is_some_and(|id| id != message.stored.id) {
            return false;
        }
        if self.key.is_none() && self.header.is_none() && self.payload.is_none() {
            return true;
        }
        message.decode(limits).envelope.is_ok_and(|envelope| self.fits_envelope(&envelope))
    }

    /// Returns whether the contents of a message match; ignores the id.
    pub(crate) fn fits_envelope(&self, envelope: &Envelope) -> bool {
        let key = self.key.as_ref().is_none_or(|key| envelope.key.as_ref() == Some(key));
        let header = self.header.as_ref().is_none_or(|(name, value)| {
            let mut named = envelope.headers.iter().filter(|(it, _)| it == name);
            named.any(|(_, found)| value.as_ref().is_none_or(|value| value == found))
        });
        let contains = |part: &Bytes| {
            part.is_empty() || envelope.payload.windows(part.len()).any(|window| window == part)
        };
        key && header && self.payload.as_ref().is_none_or(contains)
    }
}

/// Page of a topic's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// The messages.
    pub messages: Vec<Message>,
    /// Number of entries examined.
    pub looked_at: u64,
    /// Cursor for the next page; `None` at the end.
    pub next: Option<Cursor>,
}

impl Admin {
    /// Returns messages over all partitions, ordered by id, in pages. It only reads: groups are not affected.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a topic that does not exist; transient ones.
    pub async fn messages(&self, topic: &TopicName, browse: &Browse) -> Result<Messages> {
        let mut walk = self.walk(topic, browse).await?;
        let mut messages = walk.run_once(browse.limit).await?;
        // A step of the walk has a bound in bytes, and this page none.
        while messages.len() < browse.limit {
            match walk.run_once(browse.limit - messages.len()).await {
                Ok(more) if !more.is_empty() => messages.extend(more),
                // The end, or an error that the next page returns.
                _ => break,
            }
        }
        Ok(Messages { looked_at: messages.len() as u64, messages, next: walk.next() })
    }

    /// Iterates over the messages that [`messages`](Self::messages) returns in pages, without reading any of them twice:
    /// for many of them it takes far fewer requests. About [`Browse::limit`] messages are read ahead, at most 500 of a
    /// partition.
    ///
    /// # Errors
    /// Same as [`messages`](Self::messages).
    pub async fn walk(&self, topic: &TopicName, browse: &Browse) -> Result<MessageWalk> {
        let spec = self.backend.catalog().topic(topic).await?;
        // Known to be there before the first message is asked for.
        self.backend.inspect()?;
        let wanted =
            |tp: &TopicPartition| browse.partitions.as_ref().is_none_or(|some| some.contains(&tp.partition));
        Ok(MessageWalk::new(&self.backend, spec.iter().filter(wanted).collect(), browse))
    }

    /// Searches the messages that [`messages`](Self::messages) would return, until `limit` of them are found or `looks`
    /// entries were examined. [`Messages::next`] is the cursor to continue with.
    ///
    /// # Errors
    /// Same as [`messages`](Self::messages).
    pub async fn find(
        &self,
        topic: &TopicName,
        browse: &Browse,
        filter: &Filter,
        looks: u64,
    ) -> Result<Messages> {
        let (mut browse, limit, limits) = (browse.clone(), browse.limit, Limits::NONE);
        if let Some(id) = filter.id {
            browse.range.after = browse.range.after.max(id.previous());
            browse.range.before = browse.range.before.min(id.next());
        }
        let mut found = Messages { messages: Vec::new(), looked_at: 0, next: browse.after };
        browse.limit = usize::try_from(looks).unwrap_or(usize::MAX);
        let mut walk = self.walk(topic, &browse).await?;
        while found.messages.len() < limit && found.looked_at < looks {
            let portion = PORTION.min(usize::try_from(looks - found.looked_at).unwrap_or(PORTION));
            let page = walk.run_once(portion).await?;
            found.next = walk.next();
            let last = page.len();
            for (nth, message) in page.into_iter().enumerate() {
                found.looked_at += 1;
                let here = Cursor::new(message.stored.id, message.lane);
                if filter.fits(&message, &limits) {
                    found.messages.push(message);
                }
                if found.messages.len() == limit && nth + 1 < last {
                    // Later messages of this page were read and are not returned: the next search begins with them.
                    found.next = Some(here);
                    break;
                }
            }
            if found.next.is_none() {
                break;
            }
        }
        Ok(found)
    }
}
