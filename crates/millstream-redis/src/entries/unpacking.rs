//! From entries to messages: the messages of packs take the place of the entries that hold them.

use std::sync::Arc;

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::log::{Entry, Receipt, Source};
use millstream_core::wire::Fields;
use millstream_packing::{Dictionary, DictionaryName, Unpacked, Unreadable, unpack_with};

use crate::stored::settled::{Bits, is_settled};

/// Returns the messages of an entry, with their receipts: those of a pack, or the entry itself.
///
/// `dictionaries` are those that entries [need](crate::backend::Inner::dictionaries_for).
///
/// A damaged pack is returned as it is, and so is one whose dictionary is not there. It has no payload, so it becomes a dead letter with
/// all its bytes.
pub(crate) fn messages(
    receipt: Receipt,
    fields: Fields,
    dictionaries: &[Arc<Dictionary>],
) -> Result<Vec<(Receipt, Fields)>> {
    if receipt.source == Source::Retry {
        return Ok(vec![(receipt, fields)]);
    }
    let unpacked = match unpack_with(&fields, |name| named(dictionaries, name)) {
        Ok(Unpacked::One) => None,
        Ok(Unpacked::Messages(messages)) => {
            let count = u32::try_from(messages.len()).unwrap_or(u32::MAX);
            Receipt::of_pack(receipt.id, count).map(|receipts| receipts.zip(messages).collect())
        }
        Err(error @ (Unreadable::Damaged(_) | Unreadable::NoDictionary(_))) => {
            tracing::warn!(id = %receipt.id, "a pack cannot be read, it becomes a dead letter: {error}");
            None
        }
        // Another program, or a later version, can read it.
        Err(error) => {
            return Err(Error::new(ErrorKind::Unsupported, format!("entry {}: {error}", receipt.id)));
        }
    };
    Ok(unpacked.unwrap_or_else(|| vec![(receipt, fields)]))
}

/// Returns the dictionary of this name.
pub(crate) fn named(dictionaries: &[Arc<Dictionary>], name: DictionaryName) -> Option<&Arc<Dictionary>> {
    dictionaries.iter().find(|it| it.name() == name)
}

/// Replaces the packs among entries by their messages; `settled` has what is settled of a pack.
pub(crate) fn replace_packs(
    entries: Vec<Entry>,
    dictionaries: &[Arc<Dictionary>],
    mut settled: impl FnMut(&Receipt) -> Option<Bits>,
) -> Result<Vec<Entry>> {
    let mut replaced = Vec::with_capacity(entries.len());
    for Entry { receipt, deliveries, fields, note, .. } in entries {
        let messages = messages(receipt, fields, dictionaries)?;
        let bits = messages.first().filter(|(first, _)| first.pack.is_some()).and_then(|_| settled(&receipt));
        for (receipt, fields) in messages {
            if !is_settled(&receipt, bits.as_deref()) {
                let note = if receipt.pack.is_some() { None } else { note.clone() };
                replaced.push(Entry::new(receipt, deliveries, fields).with_note(note));
            }
        }
    }
    Ok(replaced)
}
