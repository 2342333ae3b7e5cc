//! Packing: how many messages producers store in one entry of a log, and how they are compressed.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Problems, Result};
use crate::topic::dead_letter_retention::shown;

/// Largest number of messages in a pack. The script that notes which of them are settled works on all at once, and a takeover reads
/// the whole pack for one of them.
pub const MAX_MESSAGES: u32 = 1_000;
/// Largest size in bytes of the messages of a pack, before they are compressed: so much a reader needs for it.
pub const MAX_BYTES: u32 = 1 << 20;
/// Largest size in bytes of a dictionary (64 KiB): every reader and producer of the topic keeps it in memory. It is four times the size
/// that is trained by default.
pub const MAX_DICTIONARY: usize = 64 << 10;

/// First four bytes of a dictionary in the form that zstd trains (RFC 8878, section 5); the next four are its id, the lowest byte first.
const DICTIONARY_MAGIC: [u8; 4] = 0xEC30_A437_u32.to_le_bytes();

/// Name of a dictionary among those of its topic: packs say that they need it.
///
/// Versions alone would not do: after its topic was deleted, or its training was lost with a server, another dictionary gets the same
/// version, and nothing that was compressed with the one can be read with the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DictionaryName {
    /// Its version in the topic, from 1: a later one is newer.
    pub version: u32,
    /// The id in its header, a hash of its contents; never 0.
    pub id: u32,
}

impl DictionaryName {
    /// Returns the name of a dictionary with this version. `None` for version 0, and for bytes that do not begin as a dictionary of
    /// zstd with an id does.
    #[must_use]
    pub fn of(version: u32, dictionary: &[u8]) -> Option<Self> {
        let (id, _) = dictionary.strip_prefix(&DICTIONARY_MAGIC)?.split_first_chunk()?;
        let id = u32::from_le_bytes(*id);
        (version > 0 && id > 0).then_some(Self { version, id })
    }
}

/// Writes the name as the topic's settings have it: `3:1907452113`, version and id.
impl fmt::Display for DictionaryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.version, self.id)
    }
}

/// Reads what [`Display`](fmt::Display) writes.
impl FromStr for DictionaryName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
        let name = text.split_once(':').and_then(|(version, id)| {
            Some(Self { version: number(version)?, id: number(id)? }).filter(|it| it.to_string() == text)
        });
        let why = || format!("{:?} is no name of a dictionary: <version>:<id>, from 1", shown(text));
        name.ok_or_else(|| Error::new(ErrorKind::Protocol, why()))
    }
}

/// Way in which the messages of a pack are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PackCompression {
    /// Not at all.
    None,
    /// LZ4 (a block): the fastest, for about half of the size.
    Lz4,
    /// zstd (a frame, level 1): the smallest. The default.
    #[default]
    Zstd,
    /// zstd with a dictionary that is trained on messages of the topic, and stored with it: much smaller where packs are small, or
    /// single messages are packed. Until the topic has a dictionary, the same as [`Zstd`](Self::Zstd).
    ZstdDictionary,
}

impl PackCompression {
    /// Returns the word for it in a topic's settings.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::ZstdDictionary => "zstd-dictionary",
        }
    }

    /// Parses the word of a compression.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for one that this version does not know.
    pub fn parse(word: &str) -> Result<Self> {
        let unknown =
            || Error::new(ErrorKind::Unsupported, format!("unknown compression of packs {:?}", shown(word)));
        let all = [Self::None, Self::Lz4, Self::Zstd, Self::ZstdDictionary];
        all.into_iter().find(|one| one.as_str() == word).ok_or_else(unknown)
    }
}

/// Rule by which producers store several messages in one entry of a log, a *pack*.
///
/// A pack holds what a producer sends together to one partition. Nothing waits for a pack to fill, unless the producer has a linger
/// time; a message that is alone is stored as in a topic without packing. Each message keeps its own id, and is settled, retried and
/// dead-lettered by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[must_use]
pub struct Packing {
    least: u32,
    messages: u32,
    bytes: u32,
    compression: PackCompression,
}

impl Default for Packing {
    fn default() -> Self {
        Self::new()
    }
}

impl Packing {
    /// Packs 4 to 500 messages, up to 64 KiB, with zstd.
    pub const fn new() -> Self {
        Self { least: 4, messages: 500, bytes: 64 << 10, compression: PackCompression::Zstd }
    }

    /// Sets the least number of messages for which a pack is made, 2 up to the largest number; fewer are stored one by one. Default: 4,
    /// since to append a pack costs the server as much as two or three messages.
    ///
    /// With [`PackCompression::ZstdDictionary`] it can be 1: then messages that are alone are compressed too, once the topic has a
    /// dictionary and if that makes them smaller. Each is then compressed by itself, and settled by the script for packs.
    pub const fn min_messages(mut self, messages: u32) -> Self {
        self.least = messages;
        self
    }

    /// Sets the largest number of messages in a pack, 2 to [`MAX_MESSAGES`]. Default: 500.
    pub const fn max_messages(mut self, messages: u32) -> Self {
        self.messages = messages;
        self
    }

    /// Sets the size in bytes, before compression, at which a pack takes no further message; up to [`MAX_BYTES`]. A message that is
    /// larger is stored by itself. Default: 64 KiB.
    pub const fn max_bytes(mut self, bytes: u32) -> Self {
        self.bytes = bytes;
        self
    }

    /// Sets the compression. Default: [`PackCompression::Zstd`].
    pub const fn compression(mut self, compression: PackCompression) -> Self {
        self.compression = compression;
        self
    }

    /// Returns the least number of messages for which a pack is made.
    #[must_use]
    pub const fn least(&self) -> usize {
        self.least as usize
    }

    /// Returns the largest number of messages in a pack.
    #[must_use]
    pub const fn messages(&self) -> usize {
        self.messages as usize
    }

    /// Returns the size in bytes, before compression, at which a pack takes no further message.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Returns the compression of packs.
    #[must_use]
    pub const fn compressed(&self) -> PackCompression {
        self.compression
    }

    /// Parses the form that [`Display`](fmt::Display) writes.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`] for a setting that this version does not know; [`ErrorKind::Protocol`] for an invalid one.
    pub fn parse(text: &str) -> Result<Self> {
        let invalid = || Error::new(ErrorKind::Protocol, format!("the packing {:?} is invalid", shown(text)));
        let mut words = text.split(':');
        let compression = PackCompression::parse(words.next().unwrap_or_default())?;
        let mut figure = || words.next().and_then(|word| word.parse().ok()).ok_or_else(invalid);
        let packing = Self { least: figure()?, messages: figure()?, bytes: figure()?, compression };
        let mut problems = Problems::new("topic");
        packing.check(&mut problems);
        if words.next().is_some() || problems.finish().is_err() {
            return Err(invalid());
        }
        Ok(packing)
    }

    pub(crate) fn check(self, problems: &mut Problems) {
        problems.require((2..=MAX_MESSAGES).contains(&self.messages), || {
            format!("packs of up to {} messages: 2 to {MAX_MESSAGES} are allowed", self.messages)
        });
        let fewest = if self.compression == PackCompression::ZstdDictionary { 1 } else { 2 };
        problems.require((fewest..=self.messages.max(2)).contains(&self.least), || {
            format!("packs of at least {} messages: {fewest} to {} are allowed", self.least, self.messages)
        });
        problems.require((1..=MAX_BYTES).contains(&self.bytes), || {
            format!("packs of up to {} bytes: 1 to {MAX_BYTES} are allowed", self.bytes)
        });
    }
}

/// Writes the rule as a topic's meta hash stores it: `zstd:4:500:65536`.
impl fmt::Display for Packing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.compression.as_str(), self.least, self.messages, self.bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packing_reads_back() {
        let small =
            Packing::new().min_messages(2).max_messages(2).max_bytes(1).compression(PackCompression::None);
        for (packing, text) in [
            (Packing::default(), "zstd:4:500:65536"),
            (small, "none:2:2:1"),
            (Packing::new().compression(PackCompression::Lz4), "lz4:4:500:65536"),
            (
                Packing::new().min_messages(1).compression(PackCompression::ZstdDictionary),
                "zstd-dictionary:1:500:65536",
            ),
        ] {
            assert_eq!(packing.to_string(), text);
            assert_eq!(Packing::parse(text).expect("known"), packing);
        }
    }

    #[test]
    fn a_dictionary_is_named_by_its_version_and_what_its_header_says() {
        let header = [0x37, 0xA4, 0x30, 0xEC, 4, 3, 2, 1, 9];
        let name = DictionaryName { version: 3, id: 0x0102_0304 };
        assert_eq!(DictionaryName::of(3, &header), Some(name));
        assert_eq!(name.to_string(), "3:16909060");
        assert_eq!("3:16909060".parse::<DictionaryName>().expect("a name"), name);
        let without_id = [0x37, 0xA4, 0x30, 0xEC, 0, 0, 0, 0, 9];
        for (version, bytes) in
            [(0, &header[..]), (1, &header[..7]), (1, &header[1..]), (1, b""), (1, &without_id)]
        {
            assert_eq!(DictionaryName::of(version, bytes), None, "{version} {bytes:?}");
        }
        for text in
            ["", "3", "3:", ":4", "0:4", "3:0", "03:4", "+3:4", "3:4:5", "3:4294967296", "-1:4", "3:4 "]
        {
            assert_eq!(text.parse::<DictionaryName>().expect_err(text).kind(), ErrorKind::Protocol, "{text}");
        }
    }

    #[test]
    fn what_is_no_packing_is_refused() {
        for (text, kind) in [
            ("", ErrorKind::Unsupported),
            ("zstd:1:500:65536", ErrorKind::Protocol),
            ("zstd-dictionary:0:500:65536", ErrorKind::Protocol),
            ("zstd:501:500:65536", ErrorKind::Protocol),
            ("brotli:4:500:65536", ErrorKind::Unsupported),
            ("zstd", ErrorKind::Protocol),
            ("zstd:500", ErrorKind::Protocol),
            ("zstd:2:1:65536", ErrorKind::Protocol),
            ("zstd:4:1001:65536", ErrorKind::Protocol),
            ("zstd:4:500:0", ErrorKind::Protocol),
            ("zstd:4:500:1048577", ErrorKind::Protocol),
            ("zstd:4:500:65536:1", ErrorKind::Protocol),
            ("zstd:-1:500:65536", ErrorKind::Protocol),
        ] {
            assert_eq!(Packing::parse(text).expect_err(text).kind(), kind, "{text}");
        }
    }
}
