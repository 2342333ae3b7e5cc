//! From entries to messages: the messages of packs take the place of the entries that hold them.

use std::sync::Arc;

use millstream_core::Packing;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::log::{Entry, Note, Receipt, Source};
use millstream_core::packing::DictionaryName;
use millstream_core::wire::{self, Fields};
use millstream_packing::{Dictionary, Unpacked, Unreadable, unpack, unpack_with};

use crate::stored::settled::{Bits, is_settled};

/// Bytes of messages in the packs of one page, before they are compressed.
const UNPACKED: usize = 4 << 20;

/// How many entries to ask for: each may be many messages, and packs become much larger than they arrive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PackedPage {
    /// Mean number of messages of an entry, in the last page.
    per_entry: usize,
    /// Largest number of entries of a page.
    most: usize,
}

impl PackedPage {
    /// As if all entries were full packs, until some have come.
    pub(crate) fn of(packing: Option<Packing>) -> Self {
        Self {
            per_entry: packing.map_or(1, |packing| packing.messages()),
            most: packing.map_or(usize::MAX, |packing| (UNPACKED / packing.bytes()).max(1)),
        }
    }

    /// Returns in how many entries this number of messages may come: at least one, if any message is wanted.
    pub(crate) fn entries(self, messages: usize) -> usize {
        messages.div_ceil(self.per_entry).min(self.most)
    }

    /// Records what has come, and whether there were packs.
    pub(crate) fn came(&mut self, entries: usize, messages: usize, packs: bool) {
        if entries == 0 {
            return;
        }
        if packs {
            self.per_entry = messages.div_ceil(entries).max(1);
        } else {
            // Slowly, since packs may come again: as many of them as entries would take much memory.
            self.per_entry = (self.per_entry / 2).max(1);
        }
    }
}

/// Returns the messages of an entry, with their receipts: those of a pack, or the entry itself.
///
/// `dictionaries` are those that entries [need](crate::backend::Inner::dictionaries_for).
///
/// A damaged pack is returned as it is. It has no payload, so it becomes a dead letter with all its bytes.
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
        Err(error @ Unreadable::Damaged(_)) => {
            tracing::warn!(id = %receipt.id, "a pack cannot be read, it becomes a dead letter: {error}");
            None
        }
        // Another program, or a later version, can read it, or this one when the dictionary is put back.
        Err(error) => return Err(cannot_read(receipt.id, &error)),
    };
    Ok(unpacked.unwrap_or_else(|| vec![(receipt, fields)]))
}

/// Returns the error for a pack that is not damaged, and cannot be read.
pub(crate) fn cannot_read(id: MessageId, error: &Unreadable) -> Error {
    Error::new(ErrorKind::Unsupported, format!("entry {id}: {error}"))
}

/// Replaces redeliveries whose message is stored as a pack of its own by that message. Takes out those that this client cannot read, and
/// returns them with the error of the first one.
pub(crate) fn open_retries(entries: &mut Vec<Entry>) -> Option<(Error, Vec<Receipt>)> {
    let (mut first, mut left) = (None, Vec::new());
    entries.retain_mut(|Entry { receipt, fields, .. }| {
        if receipt.source == Source::Log {
            return true;
        }
        let lead = fields.len() - wire::body_of(Source::Retry, fields).len();
        let opened = open_alone(fields, lead);
        if let Err(error) = &opened {
            left.push(*receipt);
            first.get_or_insert_with(|| cannot_read(receipt.id, error));
        }
        opened.is_ok()
    });
    first.map(|error| (error, left))
}

/// Replaces a pack of one message behind the first `lead` fields by that message. What is no pack, or cannot be read by anybody, stays.
pub(crate) fn open_alone(fields: &mut Fields, lead: usize) -> Result<(), Unreadable> {
    match unpack(&fields[lead..]) {
        Ok(Unpacked::Messages(mut messages)) if messages.len() == 1 => {
            fields.truncate(lead);
            fields.extend(messages.pop().unwrap_or_default());
        }
        Err(error @ (Unreadable::NotBuilt(_) | Unreadable::Unknown(_))) => return Err(error),
        _ => {}
    }
    Ok(())
}

/// Returns the ids of the packs among entries.
pub(crate) fn packs(entries: &[Entry]) -> Vec<MessageId> {
    entries.iter().filter(|entry| is_pack(entry)).map(|entry| entry.receipt.id).collect()
}

/// Whether an entry is a pack.
pub(crate) fn is_pack(entry: &Entry) -> bool {
    let receipt = entry.receipt;
    receipt.source == Source::Log && receipt.pack.is_none() && millstream_packing::is_pack(&entry.fields)
}

/// Returns the ids of the messages that came in packs: each of them can have a note of its own.
pub(crate) fn in_packs(messages: &[Entry]) -> Vec<MessageId> {
    let in_pack = |message: &&Entry| message.receipt.pack.is_some();
    messages.iter().filter(in_pack).map(|message| message.receipt.id).collect()
}

/// Adds their notes to the messages that came in packs.
pub(crate) fn add_notes(messages: &mut [Entry], notes: Vec<Option<Note>>) {
    let in_packs = messages.iter_mut().filter(|message| message.receipt.pack.is_some());
    in_packs.zip(notes).for_each(|(message, note)| message.note = note);
}

/// Returns the dictionary of this name.
pub(crate) fn named(dictionaries: &[Arc<Dictionary>], name: DictionaryName) -> Option<&Arc<Dictionary>> {
    dictionaries.iter().find(|it| it.name() == name)
}

/// Replaces the packs among entries by their messages; `settled` has what is settled of a pack. Also returns the ids of packs of which
/// everything is: nobody gets a message of them, so nobody else would acknowledge them.
pub(crate) fn replace_packs(
    entries: Vec<Entry>,
    dictionaries: &[Arc<Dictionary>],
    mut settled: impl FnMut(&Receipt) -> Option<Bits>,
) -> Result<(Vec<Entry>, Vec<MessageId>)> {
    let (mut replaced, mut done) = (Vec::with_capacity(entries.len()), Vec::new());
    for entry in entries {
        let id = entry.receipt.id;
        if !replace_pack(entry, dictionaries, &mut settled, &mut replaced)? {
            done.push(id);
        }
    }
    Ok((replaced, done))
}

/// What [`replace_readable`] returns.
pub(crate) struct Readable {
    /// The messages.
    pub(crate) messages: Vec<Entry>,
    /// Packs whose messages are all settled.
    pub(crate) done: Vec<MessageId>,
    /// Packs that this client cannot read, and the error of the first one.
    pub(crate) unreadable: Option<(Error, Vec<Receipt>)>,
}

/// The same, where each entry is for itself: packs that this client cannot read are left out.
pub(crate) fn replace_readable(
    entries: Vec<Entry>,
    dictionaries: &[Arc<Dictionary>],
    mut settled: impl FnMut(&Receipt) -> Option<Bits>,
) -> Readable {
    let (mut messages, mut done) = (Vec::with_capacity(entries.len()), Vec::new());
    let (mut left, mut first) = (Vec::new(), None);
    for entry in entries {
        let receipt = entry.receipt;
        match replace_pack(entry, dictionaries, &mut settled, &mut messages) {
            Ok(true) => {}
            Ok(false) => done.push(receipt.id),
            Err(error) => {
                left.push(receipt);
                first.get_or_insert(error);
            }
        }
    }
    Readable { messages, done, unreadable: first.map(|error| (error, left)) }
}

/// Adds the messages of an entry that are not settled. Returns whether there are any.
fn replace_pack(
    Entry { receipt, deliveries, fields, note, .. }: Entry,
    dictionaries: &[Arc<Dictionary>],
    settled: &mut impl FnMut(&Receipt) -> Option<Bits>,
    replaced: &mut Vec<Entry>,
) -> Result<bool> {
    let before = replaced.len();
    let messages = messages(receipt, fields, dictionaries)?;
    let bits = messages.first().filter(|(first, _)| first.pack.is_some()).and_then(|_| settled(&receipt));
    for (receipt, fields) in messages {
        if !is_settled(&receipt, bits.as_deref()) {
            let note = if receipt.pack.is_some() { None } else { note.clone() };
            replaced.push(Entry::new(receipt, deliveries, fields).with_note(note));
        }
    }
    Ok(replaced.len() > before)
}
