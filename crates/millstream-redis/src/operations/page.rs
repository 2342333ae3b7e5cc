//! Pages of streams, bounded by number and size.

use millstream_core::error::Result;
use millstream_core::inspect::{MAX_PAGE, MAX_PAGE_BYTES, Page, Range, Stored};
use millstream_core::keys::Key;
use millstream_core::wire::{Field, Fields};
use redis::Pipeline;

use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::entries::unpacking::open_alone;

/// Maximum number of entries of one command: more could be large, and the server does nothing else meanwhile.
pub(crate) const PORTION: usize = 200;
/// Number of entries in the first read of a page, when their size is not known yet.
const FIRST: usize = 10;

impl RedisBackend {
    /// Reads a page of a stream. Number and size of the entries are bounded, for the page and for every command.
    ///
    /// `lead` returns how many fields stand before a message in an entry that may have it as a pack of its own, which is opened.
    pub(crate) async fn page(
        &self,
        key: &Key,
        range: Range,
        limit: usize,
        lead: fn(&[Field]) -> Option<usize>,
    ) -> Result<Page<Stored>> {
        let limit = limit.min(MAX_PAGE);
        let (mut page, mut range, mut bytes, mut portion) = (Page::empty(), range, 0, FIRST);
        loop {
            let room = limit - page.items.len();
            if range.is_empty() {
                return Ok(page);
            }
            if room == 0 || bytes >= MAX_PAGE_BYTES {
                page.more = true;
                return Ok(page);
            }
            let count = portion.min(room);
            let mut pipe = Pipeline::with_capacity(1);
            let (after, before) = (format!("({}", range.after), format!("({}", range.before));
            if range.newest_first {
                pipe.cmd("XREVRANGE").arg(key.as_str()).arg(before).arg(after);
            } else {
                pipe.cmd("XRANGE").arg(key.as_str()).arg(after).arg(before);
            }
            pipe.arg("COUNT").arg(count);
            let answer = self.inner.bulk.send(&pipe).await?.pop().unwrap_or_default();
            let entries = reply::entries(answer).map_err(|error| error.during(format_args!("read {key}")))?;
            let read = entries.len();
            for (id, fields) in entries {
                if bytes >= MAX_PAGE_BYTES {
                    // Some became larger than they arrived.
                    page.more = true;
                    return Ok(page);
                }
                range = range.behind(id);
                let mut stored = Stored::new(id, fields.unwrap_or_default());
                if let Some(lead) = lead(&stored.fields) {
                    // What this client cannot read is shown as it is stored.
                    let _ = open_alone(&mut stored.fields, lead);
                }
                bytes += size(&stored.fields);
                page.items.push(stored);
            }
            if read < count {
                return Ok(page);
            }
            portion = next_portion(page.items.len(), bytes);
        }
    }
}

/// Returns the size of names and values in bytes.
pub(crate) fn size(fields: &Fields) -> usize {
    fields.iter().map(|(name, value)| name.len() + value.len()).sum()
}

/// Returns the number of entries for the next command: about 256 KiB, by the mean size of those read so far.
fn next_portion(entries: usize, bytes: usize) -> usize {
    ((256 << 10) / (bytes / entries.max(1)).max(1)).clamp(1, PORTION)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn portions_follow_the_size_of_entries() {
        assert_eq!(next_portion(10, 10), PORTION);
        assert_eq!(next_portion(10, 10 * (64 << 10)), 4);
        assert_eq!(next_portion(10, 10 * (8 << 20)), 1);
        assert_eq!(next_portion(0, 0), PORTION);
    }
}
