//! Row of the outbox as a relay reads it, and its conversion to a message.

use bytes::Bytes;
use millstream_core::dedup::DedupId;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::{Envelope, Headers, Limits, TopicName};

use super::headers;

/// Row as it was read. Texts are bytes here, because a database may hold ones that are not UTF-8.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoredRow {
    pub(crate) shard: i16,
    pub(crate) id: i64,
    /// Whether no transaction runs any more that is as old as the one that wrote the row.
    pub(crate) is_settled: bool,
    pub(crate) message_id: Vec<u8>,
    pub(crate) topic: Vec<u8>,
    pub(crate) key: Option<Vec<u8>>,
    pub(crate) headers: Option<Vec<u8>>,
    /// `None` if it is above the limit, and was not read.
    pub(crate) payload: Option<Vec<u8>>,
}

/// Names a row. The message id tells it from another row under the same id: after a fail-over to a copy that was behind, a
/// database gives out ids again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowName {
    pub(crate) id: i64,
    pub(crate) message_id: Vec<u8>,
}

/// Message of a row.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) topic: TopicName,
    pub(crate) id: DedupId,
    pub(crate) envelope: Envelope,
}

impl StoredRow {
    pub(crate) fn name(&self) -> RowName {
        RowName { id: self.id, message_id: self.message_id.clone() }
    }

    /// Converts the row to a message.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`], also for a topic that [may not be sent to](TopicName::check_target), [`ErrorKind::TooLarge`],
    /// [`ErrorKind::Decode`]: no repetition would help.
    pub(crate) fn into_message(self, limits: &Limits) -> Result<Message> {
        let name = std::str::from_utf8(&self.topic)
            .map_err(|_| Error::new(ErrorKind::InvalidName, "the topic name of the row is not UTF-8"))?;
        let topic = TopicName::new(name)?;
        topic.check_target()?;
        let id = DedupId::new(self.message_id)?;
        let headers = match &self.headers {
            None => Headers::new(),
            Some(json) => {
                let json = std::str::from_utf8(json)
                    .map_err(|_| Error::new(ErrorKind::Decode, "the headers of the row are not UTF-8"))?;
                headers::read(json)?
            }
        };
        let payload = self.payload.ok_or_else(|| {
            let why =
                format!("the payload of the row has more than the {} bytes that are allowed", limits.payload);
            Error::new(ErrorKind::TooLarge, why)
        })?;
        let envelope = Envelope { key: self.key.map(Bytes::from), headers, payload: payload.into() };
        envelope.check(limits)?;
        Ok(Message { topic, id, envelope })
    }
}

/// Returns the rows that can be sent: of each shard those before the first one that is not settled. The rows are in the order
/// of their ids within a shard. The second value is whether any is left.
///
/// A later row must not overtake one that is not settled, although it is settled itself: both may have the same key. A
/// transaction can have an old number and write late, after it has waited for the lock of a younger one.
pub(crate) fn before_watermark(rows: Vec<StoredRow>) -> (Vec<StoredRow>, bool) {
    let mut blocked = Vec::new();
    let before = rows.len();
    let ready: Vec<StoredRow> = rows
        .into_iter()
        .filter(|row| {
            if !row.is_settled && !blocked.contains(&row.shard) {
                blocked.push(row.shard);
            }
            !blocked.contains(&row.shard)
        })
        .collect();
    let is_blocked = ready.len() < before;
    (ready, is_blocked)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(shard: i16, id: i64, is_settled: bool) -> StoredRow {
        StoredRow {
            shard,
            id,
            is_settled,
            message_id: b"m".to_vec(),
            topic: b"t".to_vec(),
            payload: Some(Vec::new()),
            ..StoredRow::default()
        }
    }

    #[test]
    fn a_row_that_is_not_settled_holds_back_those_behind_it_in_its_shard() {
        let rows = vec![
            row(0, 1, true),
            row(1, 2, false),
            row(0, 3, true),
            row(1, 4, true),
            row(0, 5, false),
            row(0, 6, true),
        ];
        let (ready, is_blocked) = before_watermark(rows);
        assert_eq!(ready.iter().map(|row| row.id).collect::<Vec<_>>(), [1, 3]);
        assert!(is_blocked);
        assert!(!before_watermark(vec![row(0, 1, true)]).1);
    }

    #[test]
    fn a_hostile_row_is_an_error_of_its_kind() {
        let limits = Limits::default();
        let kind = |change: fn(&mut StoredRow)| {
            let mut row = row(0, 1, true);
            change(&mut row);
            row.into_message(&limits).map(|_| ()).map_err(|error| error.kind())
        };
        assert_eq!(kind(|_| ()), Ok(()));
        assert_eq!(kind(|row| row.topic = b"a b".to_vec()), Err(ErrorKind::InvalidName));
        assert_eq!(kind(|row| row.topic = vec![0xff]), Err(ErrorKind::InvalidName));
        assert_eq!(kind(|row| row.topic = Vec::new()), Err(ErrorKind::InvalidName));
        assert_eq!(kind(|row| row.payload = Some(vec![0; (1 << 20) + 1])), Err(ErrorKind::TooLarge));
        assert_eq!(kind(|row| row.payload = None), Err(ErrorKind::TooLarge));
        assert_eq!(kind(|row| row.key = Some(vec![0; 2_000])), Err(ErrorKind::TooLarge));
        assert_eq!(kind(|row| row.message_id = vec![0; 129]), Err(ErrorKind::TooLarge));
        assert_eq!(kind(|row| row.message_id = Vec::new()), Err(ErrorKind::InvalidName));
        assert_eq!(kind(|row| row.headers = Some(b"[1]".to_vec())), Err(ErrorKind::Decode));
        assert_eq!(kind(|row| row.headers = Some(vec![0xff])), Err(ErrorKind::Decode));
    }
}
