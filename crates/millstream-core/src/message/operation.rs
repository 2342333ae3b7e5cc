//! What is to take effect once, as idempotent handlers and stores name it.

use std::fmt;

use bytes::Bytes;

use crate::error::{Error, ErrorKind, Result};
use crate::name::{GroupName, TopicName};

/// Longest id of an operation, in bytes.
pub const MAX_OPERATION_ID_LEN: usize = 256;

/// Operation that is to take effect once: an id within a group of a topic.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Operation {
    topic: TopicName,
    group: GroupName,
    id: Bytes,
}

impl Operation {
    /// Creates the operation with this id, which may have any bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidName`] for an empty id, [`ErrorKind::TooLarge`] for one above [`MAX_OPERATION_ID_LEN`].
    pub fn new(topic: TopicName, group: GroupName, id: impl Into<Bytes>) -> Result<Self> {
        let id = id.into();
        if id.is_empty() {
            return Err(Error::new(ErrorKind::InvalidName, "the id of an operation is empty").at(&topic));
        }
        if id.len() > MAX_OPERATION_ID_LEN {
            let len = id.len();
            let why = format!("the id of an operation has {len} bytes, {MAX_OPERATION_ID_LEN} are allowed");
            return Err(Error::new(ErrorKind::TooLarge, why).at(&topic));
        }
        Ok(Self { topic, group, id })
    }

    /// Returns the topic.
    #[must_use]
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// Returns the group.
    #[must_use]
    pub fn group(&self) -> &GroupName {
        &self.group
    }

    /// Returns the id.
    #[must_use]
    pub fn id(&self) -> &Bytes {
        &self.id
    }
}

/// Shows the id with everything escaped that is not plain text.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operation {} of {}/{}", self.id.escape_ascii(), self.topic, self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(id: &[u8]) -> Result<Operation> {
        let (topic, group) = ("orders".parse()?, "billing".parse()?);
        Operation::new(topic, group, id.to_vec())
    }

    #[test]
    fn an_id_has_any_bytes_and_a_bound() {
        assert_eq!(operation(b"").map_err(|error| error.kind()), Err(ErrorKind::InvalidName));
        assert_eq!(operation(&[0; 257]).map_err(|error| error.kind()), Err(ErrorKind::TooLarge));
        let any = operation(b"a}b\0\xff").expect("an operation");
        assert_eq!(any.to_string(), r"operation a}b\x00\xff of orders/billing");
        assert!(operation(&[7; 256]).is_ok());
    }
}
