//! Messages of packed logs, where other logs have entries.

use millstream_core::Timestamp;
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::inspect::{MAX_PAGE, MAX_PAGE_BYTES, Page, Pending, Range, Reading, Stored};
use millstream_core::log::{Receipt, Source};
use millstream_core::name::GroupName;
use millstream_core::topic::TopicPartition;
use millstream_packing::dictionary_of;
use redis::Pipeline;

use super::rows_of;
use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::entries::unpacking;
use crate::operations::page::size;
use crate::stored::settled::is_settled;

impl RedisBackend {
    /// Reads a page of the messages of a log, those of packs among them.
    pub(super) async fn messages(
        &self,
        tp: &TopicPartition,
        range: Range,
        limit: usize,
    ) -> Result<Page<Stored>> {
        let (key, limit) = (self.inner.keys.log(tp), limit.min(MAX_PAGE));
        if !self.inner.packings.is_packed(&tp.topic) || limit == 0 || range.is_empty() {
            return self.page(&key, range, limit, |_| None).await;
        }
        let mut stored = self.page(&key, range, limit, |_| None).await?;
        // A pack has the id of its last message: one with messages in the range may stand behind it.
        let mut behind = None;
        if range.before != MessageId::MAX && (range.newest_first || !stored.more) {
            let from = Range { after: range.before.previous(), before: MessageId::MAX, newest_first: false };
            behind = self.page(&key, from, 1, |_| None).await?.items.pop();
        }
        let mut entries = std::mem::take(&mut stored.items);
        match behind {
            Some(entry) if range.newest_first => entries.insert(0, entry),
            Some(entry) => entries.push(entry),
            None => {}
        }
        let needed = entries.iter().filter_map(|entry| dictionary_of(&entry.fields)).collect();
        let dictionaries = self.inner.dictionaries_for(&tp.topic, needed).await?;
        let mut items: Vec<Stored> = Vec::with_capacity(entries.len());
        for Stored { id, fields, .. } in entries {
            if items.len() > limit {
                break;
            }
            let receipt = Receipt::new(Source::Log, id);
            // A pack that cannot be read now hides no other message: it is shown as it is stored.
            let messages = unpacking::messages(receipt, fields.clone(), &dictionaries);
            let messages = messages.unwrap_or_else(|_| vec![(receipt, fields)]);
            let messages = messages.into_iter().map(|(receipt, fields)| Stored::new(receipt.id, fields));
            let within = |one: &Stored| one.id > range.after && one.id < range.before;
            let mut messages: Vec<Stored> = messages.filter(within).collect();
            if range.newest_first {
                messages.reverse();
            }
            items.append(&mut messages);
        }
        let (mut bytes, mut fits) = (0, 0);
        for item in &items {
            if fits == limit || bytes >= MAX_PAGE_BYTES {
                break;
            }
            bytes += size(&item.fields);
            fits += 1;
        }
        stored.more |= fits < items.len();
        items.truncate(fits);
        stored.items = items;
        Ok(stored)
    }

    /// Counts messages in the place of entries, as far as a page of pending entries goes.
    pub(super) async fn count_pending(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        of: &mut [Reading],
    ) -> Result<()> {
        let log = self.inner.keys.log(tp);
        for reading in of.iter_mut().filter(|reading| reading.pending > 0) {
            let mut pipe = Pipeline::with_capacity(1);
            pipe.cmd("XPENDING").arg(log.as_str()).arg(group.as_str()).arg("-").arg("+").arg(MAX_PAGE);
            pipe.arg(&*reading.consumer);
            let rows = self.inner.pool.send(&pipe).await?.pop().unwrap_or_default();
            if reply::is_no_group(&rows) {
                continue;
            }
            let rows = rows_of(rows, Timestamp::default())
                .map_err(|error| error.during(format_args!("pending of {log}")))?;
            let entries = rows.len();
            let messages = self.pending_messages(tp, group, rows, usize::MAX).await?.len() as u64;
            // Behind a page that is not full there are no others. Those behind a full one count as one message each.
            let behind = if entries < MAX_PAGE { 0 } else { reading.pending.saturating_sub(entries as u64) };
            reading.pending = behind + messages;
        }
        Ok(())
    }

    /// Replaces packs among pending entries by those of their messages that are not settled.
    pub(super) async fn pending_messages(
        &self,
        tp: &TopicPartition,
        group: &GroupName,
        rows: Vec<Pending>,
        limit: usize,
    ) -> Result<Vec<Pending>> {
        if rows.is_empty() {
            return Ok(rows);
        }
        let (packs, settled) = (self.inner.keys.packs(tp), self.inner.keys.settled(tp, group));
        let mut pipe = Pipeline::with_capacity(2 * rows.len());
        for row in &rows {
            let id = row.id.to_string();
            pipe.cmd("XRANGE").arg(packs.as_str()).arg(&id).arg(&id);
            pipe.cmd("HGET").arg(settled.as_str()).arg(&id);
        }
        let mut answers = self.inner.pool.send(&pipe).await?.into_iter();
        let mut messages = Vec::with_capacity(rows.len());
        for row in rows {
            if messages.len() > limit {
                break;
            }
            let (pack, bits) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
            let pack =
                reply::entries(pack).map_err(|error| error.during(format_args!("read {packs}")))?.pop();
            let bits =
                reply::maybe_bytes(bits).map_err(|error| error.during(format_args!("read {settled}")))?;
            let count = pack.and_then(|(_, fields)| {
                let fields = fields?;
                let (_, count) = fields.iter().find(|(name, _)| name == "count")?;
                std::str::from_utf8(count).ok()?.parse::<u32>().ok()
            });
            match count.and_then(|count| Receipt::of_pack(row.id, count)) {
                Some(receipts) => {
                    let open = receipts.filter(|receipt| !is_settled(receipt, bits.as_deref()));
                    messages.extend(open.map(|receipt| Pending { id: receipt.id, ..row.clone() }));
                }
                None => messages.push(row),
            }
        }
        Ok(messages)
    }
}
