//! An entry with many messages.

use bytes::Bytes;
use millstream_core::packing::{DictionaryName, MAX_BYTES, MAX_MESSAGES, PackCompression};
use millstream_core::wire::{FORM, FORM_OF_PACKS, Field, Fields, PACK, PACK_MESSAGES};
use thiserror::Error;

use crate::compression::{Failed, compress, decompress, is_built, whole};
use crate::dictionary::{Dictionary, id_of_frame};
use crate::layout;

/// Longest part of a damaged pack's head that an error shows, in bytes.
const MAX_SHOWN: usize = 64;

/// Largest number of fields of all messages of a pack: in memory a field takes 64 bytes beside its own.
const MAX_FIELDS: usize = 100_000;

/// Size in bytes from which on a message alone can take half: its pack has fields of its own.
const MIN_ALONE: usize = 256;

/// Reason why messages cannot be packed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NotPacked {
    /// There are no messages, or more than a pack may have.
    #[error("{0} messages: a pack has 1 to {MAX_MESSAGES}")]
    Count(usize),
    /// They are larger than a pack may be.
    #[error("{0} bytes: a pack has at most {MAX_BYTES} before compression")]
    Size(usize),
    /// A message has no field, or all have too many.
    #[error("a message without a field, or more than {MAX_FIELDS} of all")]
    Fields,
    /// This program was built without the compression.
    #[error("this program was built without the compression {}", .0.as_str())]
    NotBuilt(PackCompression),
    /// The compression failed.
    #[error("the messages cannot be compressed: {0}")]
    Failed(String),
}

/// Reason why a pack cannot be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// This program was built without the compression: another one can read the pack.
    #[error("this program was built without the compression {}", .0.as_str())]
    NotBuilt(PackCompression),
    /// The pack has a compression that this version does not know.
    #[error("the pack has a compression that this version does not know: {0:?}")]
    Unknown(String),
    /// The pack needs a dictionary that is not there.
    #[error("the pack needs version {} of the topic's dictionary, with the id {}, which is not there", .0.version, .0.id)]
    NoDictionary(DictionaryName),
    /// It is no pack in the form that the protocol prescribes.
    #[error("the pack is damaged: {0}")]
    Damaged(String),
}

/// What an entry holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unpacked {
    /// One message, whose fields are those of the entry.
    One,
    /// The fields of the messages of a pack, in their order.
    Messages(Vec<Fields>),
}

/// Returns the number of bytes that a message takes in a pack, before compression.
#[must_use]
pub fn size(message: &[Field]) -> usize {
    layout::written(message)
}

/// Returns the fields of an entry that holds these messages, in their order.
///
/// # Errors
/// [`NotPacked`]: no message, more than [`MAX_MESSAGES`], more than [`MAX_BYTES`], or a compression that this program was built without.
pub fn pack<'a>(
    messages: impl Iterator<Item = &'a Fields> + Clone,
    compression: PackCompression,
) -> Result<Fields, NotPacked> {
    pack_with(messages, compression, None)
}

/// Same as [`pack`], with the dictionary for [`PackCompression::ZstdDictionary`]. Without one, that is plain zstd; other compressions
/// use none.
///
/// # Errors
/// Those of [`pack`].
pub fn pack_with<'a>(
    messages: impl Iterator<Item = &'a Fields> + Clone,
    compression: PackCompression,
    dictionary: Option<&Dictionary>,
) -> Result<Fields, NotPacked> {
    let with_dictionary = compression == PackCompression::ZstdDictionary;
    let dictionary = dictionary.filter(|_| with_dictionary);
    let compression = if with_dictionary { PackCompression::Zstd } else { compression };
    let (count, size) = messages
        .clone()
        .fold((0, 0), |(count, bytes), message| (count + 1, bytes + layout::written(message)));
    if count == 0 || count > MAX_MESSAGES as usize {
        return Err(NotPacked::Count(count));
    }
    if size > MAX_BYTES as usize {
        return Err(NotPacked::Size(size));
    }
    let fields =
        messages.clone().try_fold(0, |sum, message| (!message.is_empty()).then_some(sum + message.len()));
    if fields.is_none_or(|fields| fields > MAX_FIELDS) {
        return Err(NotPacked::Fields);
    }
    let mut plain = Vec::with_capacity(size);
    for message in messages {
        layout::write(&mut plain, message);
    }
    let (compressed, word) = match dictionary {
        Some(dictionary) => {
            (dictionary.compress(&plain), format!("{}:{}", compression.as_str(), dictionary.name().version))
        }
        None => (compress(plain, compression), compression.as_str().to_owned()),
    };
    let data = compressed.map_err(|failed| match failed {
        Failed::NotBuilt => NotPacked::NotBuilt(compression),
        Failed::Damaged(why) => NotPacked::Failed(why),
    })?;
    let head = format!("{count} {word} {size}");
    let name = |name: &'static str| Bytes::from_static(name.as_bytes());
    Ok(vec![(name(FORM), name(FORM_OF_PACKS)), (name(PACK), head.into()), (name(PACK_MESSAGES), data.into())])
}

/// Returns a pack of one message of a pack, compressed as that one is: for what takes a message out of its pack, which may hold much more
/// than it takes. `None` unless it takes half of the memory at most.
#[must_use]
pub fn pack_alone(entry: &[Field], message: &Fields) -> Option<Fields> {
    // As a stream stores them, a name or value takes two bytes beside its own.
    let stored =
        |fields: &Fields| fields.iter().map(|(name, value)| name.len() + value.len() + 4).sum::<usize>();
    let compression = read_head(one(entry, PACK).ok()??).ok()?.compression;
    if compression == PackCompression::None || stored(message) < MIN_ALONE {
        return None;
    }
    let alone = pack(std::iter::once(message), compression).ok()?;
    (2 * stored(&alone) <= stored(message)).then_some(alone)
}

/// Returns whether an entry says of itself that it is a pack.
#[must_use]
pub fn is_pack(entry: &[Field]) -> bool {
    one(entry, FORM).ok().flatten().is_some_and(|form| *form == *FORM_OF_PACKS.as_bytes())
}

/// Returns which dictionary is needed to read an entry. `None` if none is, or the entry is damaged.
#[must_use]
pub fn dictionary_of(entry: &[Field]) -> Option<DictionaryName> {
    if !is_pack(entry) {
        return None;
    }
    let head = read_head(one(entry, PACK).ok()??).ok()?;
    let data = one(entry, PACK_MESSAGES).ok()??;
    Some(DictionaryName { version: head.dictionary?, id: id_of_frame(data)? })
}

/// Returns the messages of an entry if it is a pack that needs no dictionary. They share the memory of the pack.
///
/// An entry is a pack if its field `mq:form` has the value `2`.
///
/// # Errors
/// [`Unreadable`]. The bytes take no more than [`MAX_BYTES`] of memory, and the fields 64 bytes each, 100,000 of them at the most.
pub fn unpack(entry: &[Field]) -> Result<Unpacked, Unreadable> {
    unpack_with(entry, |_| None::<&Dictionary>)
}

/// Same as [`unpack`], also of a pack that needs a dictionary: `dictionaries` returns the one of that name.
///
/// # Errors
/// Those of [`unpack`]; [`Unreadable::NoDictionary`] if there is none of that name.
pub fn unpack_with<D: AsRef<Dictionary>>(
    entry: &[Field],
    dictionaries: impl FnOnce(DictionaryName) -> Option<D>,
) -> Result<Unpacked, Unreadable> {
    let damaged = |why: &str| Unreadable::Damaged(why.to_owned());
    if !is_pack(entry) {
        return Ok(Unpacked::One);
    }
    let head = one(entry, PACK)?.ok_or_else(|| damaged("it has no head"))?;
    let data = one(entry, PACK_MESSAGES)?.ok_or_else(|| damaged("it has no messages"))?;
    let Head { count, compression, dictionary, size } = read_head(head)?;
    let plain = match dictionary {
        _ if !is_built(compression) => Err(Failed::NotBuilt),
        None => decompress(data, compression, size),
        Some(version) => {
            let id = id_of_frame(data).ok_or_else(|| damaged("it says no id of a dictionary"))?;
            let name = DictionaryName { version, id };
            let dictionary = dictionaries(name).ok_or(Unreadable::NoDictionary(name))?;
            let dictionary = dictionary.as_ref();
            if dictionary.name() != name {
                return Err(Unreadable::NoDictionary(name));
            }
            dictionary.decompress(data, size).and_then(|plain| whole(plain, size))
        }
    };
    let plain = plain.map_err(|failed| match failed {
        Failed::NotBuilt => Unreadable::NotBuilt(compression),
        Failed::Damaged(why) => Unreadable::Damaged(why),
    })?;
    let (mut rest, mut fields) = (Bytes::from(plain), 0);
    let mut next = |rest: &mut Bytes| {
        let message = layout::read(rest)?;
        fields += message.len();
        Some(message).filter(|_| fields <= MAX_FIELDS)
    };
    let messages: Option<Vec<_>> = (0..count).map(|_| next(&mut rest)).collect();
    match messages {
        Some(messages) if rest.is_empty() => Ok(Unpacked::Messages(messages)),
        Some(_) => Err(damaged("something stands behind its last message")),
        None => Err(damaged("a message is cut off")),
    }
}

/// Returns the value of a field; an error if there are two.
fn one<'a>(entry: &'a [Field], name: &str) -> Result<Option<&'a Bytes>, Unreadable> {
    let mut values = entry.iter().filter(|(n, _)| *n == *name.as_bytes()).map(|(_, value)| value);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        _ => Err(Unreadable::Damaged(format!("the field {name} stands twice"))),
    }
}

/// What a pack says of itself.
struct Head {
    count: usize,
    compression: PackCompression,
    /// Version of the dictionary that it needs.
    dictionary: Option<u32>,
    size: usize,
}

/// Parses `<count> <compression> <size>`; the compression is a word, or `zstd:` and the version of a dictionary.
fn read_head(head: &[u8]) -> Result<Head, Unreadable> {
    let shown = || String::from_utf8_lossy(&head[..head.len().min(MAX_SHOWN)]).into_owned();
    let damaged = || Unreadable::Damaged(format!("its head is {:?}", shown()));
    let text = std::str::from_utf8(head).map_err(|_| damaged())?;
    let mut words = text.split(' ');
    let (Some(count), Some(compression), Some(size), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(damaged());
    };
    let figure = |word: &str, most: u32| {
        let digits = word.bytes().all(|byte| byte.is_ascii_digit());
        word.parse::<u32>().ok().filter(|figure| digits && (1..=most).contains(figure))
    };
    let (Some(count), Some(size)) = (figure(count, MAX_MESSAGES), figure(size, MAX_BYTES)) else {
        return Err(damaged());
    };
    let unknown = || Unreadable::Unknown(shown());
    let (compression, dictionary) = match compression.split_once(':') {
        None => (compression, None),
        Some((compression @ "zstd", version)) => {
            (compression, Some(figure(version, u32::MAX).ok_or_else(damaged)?))
        }
        Some(_) => return Err(unknown()),
    };
    let compression = PackCompression::parse(compression).map_err(|_| unknown())?;
    if compression == PackCompression::ZstdDictionary {
        // A word of settings: a pack names its dictionary.
        return Err(unknown());
    }
    Ok(Head { count: count as usize, compression, dictionary, size: size as usize })
}
