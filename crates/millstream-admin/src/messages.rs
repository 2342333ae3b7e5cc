//! Messages as they stand in a topic: browsed, followed, and looked for.

use bytes::Bytes;
use millstream_core::inspect::{Range, Stored, Stream};
use millstream_core::log::{Receipt, Source};
use millstream_core::wire::{self, Decoded};
use millstream_core::{Envelope, Limits, MessageId, Partition, Result, TopicName, TopicPartition};

use crate::Admin;
use crate::cursor::Cursor;
use crate::merge::{Fetch, merge};

/// How many entries are looked at between two looks at whether it is enough.
const PORTION: usize = 1_000;

/// A message, with where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// Where.
    pub topic_partition: TopicPartition,
    /// The entry, byte for byte.
    pub stored: Stored,
    source: Source,
    /// Which of the partitions that were asked for.
    lane: usize,
}

impl Message {
    pub(crate) fn new(topic_partition: TopicPartition, stored: Stored, source: Source, lane: usize) -> Self {
        Self { topic_partition, stored, source, lane }
    }

    /// The message that the entry is, or why it is none; for a redelivery with its attempt, origin and errors.
    #[must_use]
    pub fn decode(&self, limits: &Limits) -> Decoded {
        wire::decode(Receipt { source: self.source, id: self.stored.id }, &self.stored.fields, limits)
    }
}

/// Which messages, and how many.
#[derive(Clone, Debug)]
pub struct Browse {
    /// Of these partitions. Default: of all.
    pub partitions: Option<Vec<Partition>>,
    /// Of which stream. Default: the log.
    pub stream: Stream,
    /// Between which ids, and in which order. Default: all, oldest first.
    pub range: Range,
    /// The most messages of the answer. Default: 100.
    pub limit: usize,
    /// Where the page before ended. Default: from the start.
    pub after: Option<Cursor>,
}

impl Default for Browse {
    fn default() -> Self {
        Self { partitions: None, stream: Stream::Log, range: Range::ALL, limit: 100, after: None }
    }
}

/// What is looked for: everything that is given must fit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The id of the entry.
    pub id: Option<MessageId>,
    /// The key.
    pub key: Option<Bytes>,
    /// The name of a header, and its value; `None` for any.
    pub header: Option<(String, Option<Bytes>)>,
    /// Bytes somewhere in the payload.
    pub payload: Option<Bytes>,
}

impl Filter {
    /// Whether a message is what is looked for. One that cannot be read is found by its id alone.
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

    /// The same of what a message says, whatever its id.
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

/// A part of a topic's messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Messages {
    /// The messages.
    pub messages: Vec<Message>,
    /// How many entries were looked at.
    pub looked_at: u64,
    /// Where to go on; `None` at the end.
    pub next: Option<Cursor>,
}

impl Admin {
    /// Messages over all partitions in the order of their ids, in pages. Nothing is taken: groups do not notice.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millstream_core::ErrorKind::NotFound) for a topic that is not there; transient ones.
    pub async fn messages(&self, topic: &TopicName, browse: &Browse) -> Result<Messages> {
        let spec = self.backend.catalog.topic(topic).await?;
        let wanted =
            |tp: &TopicPartition| browse.partitions.as_ref().is_none_or(|some| some.contains(&tp.partition));
        let lanes: Vec<TopicPartition> = spec.iter().filter(wanted).collect();
        let (range, cursor, stream) = (browse.range, browse.after, &browse.stream);
        let fetch: Fetch<'_, Stored> = Box::new(|lane, behind, portion| {
            let tp = lanes[lane].clone();
            let from = match (behind, cursor) {
                (Some(id), _) => range.behind(id),
                (None, Some(cursor)) if range.newest_first => {
                    Range { before: range.before.min(cursor.before(lane)), ..range }
                }
                (None, Some(cursor)) => Range { after: range.after.max(cursor.after(lane)), ..range },
                (None, None) => range,
            };
            let inspect = self.backend.inspect.clone();
            Box::pin(async move { inspect.entries(&tp, stream, from, portion).await })
        });
        let id = |stored: &Stored| stored.id;
        let (merged, next) = merge(lanes.len(), range.newest_first, browse.limit, id, fetch).await?;
        let source = if *stream == Stream::Log { Source::Log } else { Source::Retry };
        let messages: Vec<Message> = merged
            .into_iter()
            .map(|(lane, stored)| Message::new(lanes[lane].clone(), stored, source, lane))
            .collect();
        Ok(Messages { looked_at: messages.len() as u64, messages, next })
    }

    /// Looks for messages in what [`messages`](Self::messages) would show, until as many as its `limit` are found or
    /// `looks` entries were looked at. [`Messages::next`] says where to go on.
    ///
    /// # Errors
    /// As [`messages`](Self::messages).
    pub async fn find(
        &self,
        topic: &TopicName,
        browse: &Browse,
        filter: &Filter,
        looks: u64,
    ) -> Result<Messages> {
        let (mut browse, limit, limits) = (browse.clone(), browse.limit, Limits::default());
        if let Some(id) = filter.id {
            browse.range.after = browse.range.after.max(id.previous());
            browse.range.before = browse.range.before.min(id.next());
        }
        let mut found = Messages { messages: Vec::new(), looked_at: 0, next: browse.after };
        while found.messages.len() < limit && found.looked_at < looks {
            browse.limit = PORTION.min(usize::try_from(looks - found.looked_at).unwrap_or(PORTION));
            browse.after = found.next;
            let page = self.messages(topic, &browse).await?;
            found.next = page.next;
            let last = page.messages.len();
            for (nth, message) in page.messages.into_iter().enumerate() {
                found.looked_at += 1;
                let here = Cursor { id: message.stored.id, lane: message.lane };
                if filter.fits(&message, &limits) {
                    found.messages.push(message);
                }
                if found.messages.len() == limit && nth + 1 < last {
                    // Those behind it were read and are not shown: the next search begins with them.
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
