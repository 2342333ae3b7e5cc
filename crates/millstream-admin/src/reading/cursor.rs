//! Cursor of a list over many partitions: an id, and the lane it was read from. It can be printed, and is opaque to callers.

use std::fmt;
use std::str::FromStr;

use millstream_core::{Error, ErrorKind, MessageId, Result};

/// Start of the next page. Its text (`1700000000000-0.5`) can be kept in a URL; the content is not part of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    /// Rank of the item, if the list is in another order than by id.
    pub(crate) rank: Option<u64>,
    pub(crate) id: MessageId,
    pub(crate) lane: usize,
}

impl Cursor {
    pub(crate) fn new(id: MessageId, lane: usize) -> Self {
        Self { rank: None, id, lane }
    }

    /// Returns the id above which a lane continues, oldest first. Items of the same id are ordered by lane.
    pub(crate) fn after(self, lane: usize) -> MessageId {
        // Lanes up to the cursor's have returned their item of this id; later lanes may still have one.
        if lane <= self.lane { self.id } else { self.id.previous() }
    }

    /// Returns the id below which a lane continues, newest first.
    pub(crate) fn before(self, lane: usize) -> MessageId {
        if lane <= self.lane { self.id } else { self.id.next() }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.id, self.lane)?;
        self.rank.map_or(Ok(()), |rank| write!(f, ".{rank}"))
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = || Error::new(ErrorKind::InvalidConfig, format!("{text:?} is no cursor"));
        let (id, lane) = text.split_once('.').ok_or_else(bad)?;
        let (lane, rank) = lane.split_once('.').map_or((lane, None), |(lane, rank)| (lane, Some(rank)));
        Ok(Self {
            rank: rank.map(str::parse).transpose().map_err(|_| bad())?,
            id: id.parse().map_err(|_| bad())?,
            lane: lane.parse().map_err(|_| bad())?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_back() {
        let cursor = Cursor::new(MessageId::new(7, 3), 12);
        for cursor in [cursor, Cursor { rank: Some(u64::MAX), ..cursor }] {
            assert_eq!(cursor.to_string().parse::<Cursor>().expect("a cursor"), cursor);
        }
        for bad in ["", "7-3", "7-3.", ".1", "7.1", "7-3.-1", "7-3.1.", "7-3.1.2.3"] {
            assert_eq!(bad.parse::<Cursor>().expect_err(bad).kind(), ErrorKind::InvalidConfig);
        }
    }

    #[test]
    fn lanes_behind_the_cursor_still_have_its_id() {
        let cursor = Cursor::new(MessageId::new(7, 3), 1);
        assert_eq!([0, 1, 2].map(|lane| cursor.after(lane).seq), [3, 3, 2]);
        assert_eq!([0, 1, 2].map(|lane| cursor.before(lane).seq), [3, 3, 4]);
    }
}
