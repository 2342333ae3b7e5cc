//! Cron patterns without the feature `cron`: they cannot be read, and are left to processes that can.

use std::convert::Infallible;

use millstream_core::error::{Error, ErrorKind, Result};

/// A pattern, of which there is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "there is none")]
pub(super) struct Cron(Infallible);

impl Cron {
    /// # Errors
    /// Always.
    pub(super) fn new(_: &str, _: &str) -> Result<Self> {
        Err(Error::new(ErrorKind::Unsupported, "a cron rule needs the feature `cron`"))
    }

    pub(super) fn zone(&self) -> &'static str {
        match self.0 {}
    }

    pub(super) fn pattern(&self) -> &str {
        match self.0 {}
    }

    pub(super) fn next_after(&self, _: u64) -> Option<u64> {
        match self.0 {}
    }
}
