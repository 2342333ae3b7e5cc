//! Properties of code that reads bytes and texts of others. Each module has one function `check`, which panics if a
//! property does not hold for an input. Fuzz targets search for such inputs, and tests replay those that are kept.

pub(crate) mod config;
pub(crate) mod cron;
pub(crate) mod envelope;
pub(crate) mod names;
pub(crate) mod replies;
pub(crate) mod settings;
pub(crate) mod url;

/// Takes an input apart: numbers and texts from its beginning.
pub(crate) struct Input<'a>(pub(crate) &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; 0 at the end.
    pub(crate) fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    /// The next eight bytes as a number.
    pub(crate) fn number(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// As many of the next bytes as the byte in front of them says.
    pub(crate) fn bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.byte()).min(self.0.len());
        let (bytes, rest) = self.0.split_at(len);
        self.0 = rest;
        bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
