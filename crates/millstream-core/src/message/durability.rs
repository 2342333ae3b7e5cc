//! Durability: what a send waits for.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};

/// What has to have happened to a message before its send succeeds.
///
/// A send that asks for more than [`Stored`](Self::Stored) has a third outcome: if the message was stored and the rest was
/// not confirmed in time, it fails with [`ErrorKind::Unconfirmed`]. The message is then in the log, and is handled unless
/// the server loses it. Sent again, it is there twice.
///
/// As text, also in [`FromStr`]: `stored`, `fsynced`, `replicated:2`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Durability {
    /// The server has it in memory. It can be lost in a crash (with `appendfsync everysec` what came in the last second
    /// or two) and in a fail-over (what no replica had received). The default.
    #[default]
    Stored,
    /// The server has written it to its append-only file and the file to the disk (`fsync`): it survives a crash of this
    /// server, but not a fail-over to a replica without it.
    Fsynced,
    /// This number of replicas have it in memory: it survives the loss of the server if one of them takes over.
    Replicated(u32),
}

/// Maximum number of replicas that can be asked for.
const MAX_REPLICAS: u32 = 100;

impl Durability {
    /// Returns an error if it cannot be asked for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] for a number of replicas that is not between 1 and 100.
    pub fn check(self) -> Result<()> {
        match self {
            Self::Replicated(replicas) if !(1..=MAX_REPLICAS).contains(&replicas) => {
                let why = format!("a durability of {replicas} replicas, 1 to {MAX_REPLICAS} are allowed");
                Err(Error::new(ErrorKind::InvalidConfig, why))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stored => f.write_str("stored"),
            Self::Fsynced => f.write_str("fsynced"),
            Self::Replicated(replicas) => write!(f, "replicated:{replicas}"),
        }
    }
}

impl FromStr for Durability {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let durability = match text {
            "stored" => Some(Self::Stored),
            "fsynced" => Some(Self::Fsynced),
            "replicated" => Some(Self::Replicated(1)),
            _ => text
                .strip_prefix("replicated:")
                .and_then(|replicas| Some(Self::Replicated(replicas.parse().ok()?))),
        };
        let durability = durability.ok_or_else(|| {
            let why = format!("durability {text:?}, allowed are stored, fsynced and replicated:N");
            Error::new(ErrorKind::InvalidConfig, why)
        })?;
        durability.check()?;
        Ok(durability)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_read_back() {
        for durability in [Durability::Stored, Durability::Fsynced, Durability::Replicated(2)] {
            assert_eq!(durability.to_string().parse::<Durability>().ok(), Some(durability));
        }
        assert_eq!("replicated".parse::<Durability>().ok(), Some(Durability::Replicated(1)));
        for wrong in ["", "Stored", "replicated:", "replicated:0", "replicated:-1", "replicated:101", "fsync"]
        {
            let refused = wrong.parse::<Durability>().expect_err(wrong);
            assert_eq!(refused.kind(), ErrorKind::InvalidConfig, "{wrong}");
        }
    }
}
