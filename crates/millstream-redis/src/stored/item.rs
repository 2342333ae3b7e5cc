//! Items: stored form of messages and tasks that wait until the log or a worker gets them. An item is a `MessagePack`
//! array of strings, which the scripts read and write too.

use bytes::Bytes;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::wire::{Fields, MAX_BODY_FIELDS};

/// Packs an item: leading texts, then names and values in turn.
pub(crate) fn pack(lead: &[&str], fields: &Fields) -> Result<Vec<u8>> {
    if fields.is_empty() {
        return Err(Error::new(ErrorKind::Encode, "a message needs at least one field"));
    }
    if fields.len() > MAX_BODY_FIELDS {
        let why = format!("{} fields, at most {MAX_BODY_FIELDS} can wait", fields.len());
        return Err(Error::new(ErrorKind::TooLarge, why));
    }
    let count = lead.len() + 2 * fields.len();
    let bytes: usize = fields.iter().map(|(name, value)| name.len() + value.len() + 10).sum();
    let mut item = Vec::with_capacity(bytes + lead.iter().map(|text| text.len() + 5).sum::<usize>() + 3);
    match u16::try_from(count) {
        Ok(count @ 0..16) => item.push(0x90 | count as u8),
        Ok(count) => {
            item.push(0xdc);
            item.extend(count.to_be_bytes());
        }
        Err(_) => return Err(Error::new(ErrorKind::TooLarge, format!("{count} texts in one item"))),
    }
    for text in lead {
        string(&mut item, text.as_bytes())?;
    }
    for (name, value) in fields {
        string(&mut item, name)?;
        string(&mut item, value)?;
    }
    Ok(item)
}

fn string(item: &mut Vec<u8>, text: &[u8]) -> Result<()> {
    let len = u32::try_from(text.len())
        .map_err(|_| Error::new(ErrorKind::TooLarge, format!("a field of {} bytes", text.len())))?;
    let [_, _, high, low] = len.to_be_bytes();
    match len {
        0..32 => item.push(0xa0 | low),
        32..0x100 => item.extend([0xd9, low]),
        0x100..0x1_0000 => item.extend([0xda, high, low]),
        _ => {
            item.push(0xdb);
            item.extend(len.to_be_bytes());
        }
    }
    item.extend_from_slice(text);
    Ok(())
}

/// Unpacks the `N` leading texts and the fields behind them; `None` if these bytes are no such item.
pub(crate) fn unpack<const N: usize>(item: &Bytes) -> Option<([Bytes; N], Fields)> {
    let mut rest = Rest { item, at: 0 };
    let count = match rest.number(1)? {
        tag @ 0x90..=0x9f => tag & 0x0f,
        0xdc => rest.number(2)?,
        0xdd => rest.number(4)?,
        _ => return None,
    };
    // Each string takes a byte at least. So a large count in few bytes reserves nothing.
    if count < N + 2 || !(count - N).is_multiple_of(2) || count > item.len() {
        return None;
    }
    let mut lead = [const { Bytes::new() }; N];
    for text in &mut lead {
        *text = rest.string()?;
    }
    let mut fields = Fields::with_capacity((count - N) / 2);
    for _ in 0..(count - N) / 2 {
        fields.push((rest.string()?, rest.string()?));
    }
    Some((lead, fields))
}

struct Rest<'a> {
    item: &'a Bytes,
    at: usize,
}

impl Rest<'_> {
    fn take(&mut self, len: usize) -> Option<Bytes> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.item.len())?;
        let taken = self.item.slice(self.at..end);
        self.at = end;
        Some(taken)
    }

    /// Reads a big-endian number of this many bytes.
    fn number(&mut self, bytes: usize) -> Option<usize> {
        Some(self.take(bytes)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
    }

    fn string(&mut self) -> Option<Bytes> {
        let len = match self.number(1)? {
            tag @ 0xa0..=0xbf => tag & 0x1f,
            0xd9 | 0xc4 => self.number(1)?,
            0xda | 0xc5 => self.number(2)?,
            0xdb | 0xc6 => self.number(4)?,
            _ => return None,
        };
        self.take(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(pairs: &[(&[u8], &[u8])]) -> Fields {
        pairs.iter().map(|(n, v)| (Bytes::copy_from_slice(n), Bytes::copy_from_slice(v))).collect()
    }

    #[test]
    fn an_item_is_read_back_whatever_its_size() {
        for len in [0, 1, 31, 32, 255, 256, 65_535, 65_536, 100_000] {
            let long = vec![0xff; len];
            let message = fields(&[(b"payload", &long), (b"", b"\0"), (b"payload", b"again")]);
            let item = Bytes::from(pack(&["a", ""], &message).expect("packed"));
            assert_eq!(unpack::<2>(&item), Some(([Bytes::from("a"), Bytes::new()], message)), "{len}");
            assert_eq!(unpack::<1>(&item), None, "an odd number of texts behind one");
        }
        for count in [1, 7, 8, 9, 3_000] {
            let message = fields(&vec![(&b"n"[..], &b"v"[..]); count]);
            let item = Bytes::from(pack(&[], &message).expect("packed"));
            assert_eq!(unpack::<0>(&item), Some(([], message)), "{count}");
        }
    }

    #[test]
    fn the_bytes_are_message_pack() {
        let item = pack(&["r"], &fields(&[(b"payload", b"x")])).expect("packed");
        assert_eq!(item, b"\x93\xa1r\xa7payload\xa1x");
        let foreign = Bytes::from_static(b"\xdd\0\0\0\x02\xc4\x01p\xdb\0\0\0\x01xrest");
        assert_eq!(unpack::<0>(&foreign), Some(([], fields(&[(b"p", b"x")]))));
    }

    #[test]
    fn what_cannot_be_moved_later_is_refused_now() {
        assert_eq!(pack(&[], &Fields::new()).expect_err("empty").kind(), ErrorKind::Encode);
        let many = fields(&vec![(&b"n"[..], &b"v"[..]); MAX_BODY_FIELDS + 1]);
        assert_eq!(pack(&[], &many).expect_err("too many").kind(), ErrorKind::TooLarge);
    }

    #[test]
    fn bytes_that_are_no_item_are_none() {
        let whole = pack(&[], &fields(&[(b"payload", &[7; 300])])).expect("packed");
        for end in 0..whole.len() {
            assert_eq!(unpack::<0>(&Bytes::copy_from_slice(&whole[..end])), None, "cut at {end}");
        }
        for bytes in
            [&b""[..], b"\x90", b"\x91\xa1a", b"\x92\xa1a\x01", b"\xdd\xff\xff\xff\xfe", b"{}", b"\xc0"]
        {
            assert_eq!(unpack::<0>(&Bytes::from_static(bytes)), None, "{bytes:?}");
        }
    }
}
