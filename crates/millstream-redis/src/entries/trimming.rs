//! Trimming: calls of the script `trim` for a retention, and the sum of their results.

use millstream_core::catalog::Catalog;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::leases::Lease;
use millstream_core::log::{Lost, Trimmed, UnleasedTrim};
use millstream_core::name::GroupName;
use millstream_core::sorted::sort_by;
use millstream_core::topic::{Retention, TopicPartition};
use redis::Value;

use crate::backend::RedisBackend;
use crate::conn::replies::reply;
use crate::error::{fenced, unexpected};
use crate::scripts::script;

/// Maximum number of entries that one call of the script drops; it stops earlier where they are large.
const CHUNK: usize = 10_000;
/// Maximum number of calls, one after the other.
const CALLS: usize = 64;

impl RedisBackend {
    pub(crate) async fn trim_by(&self, lease: &Lease, retention: Retention) -> Result<Trimmed> {
        self.trim_partition(lease.partition()?.0, Some(lease), UnleasedTrim::Now(retention)).await
    }

    /// Trims by a rule, under a lease if there is one.
    pub(crate) async fn trim_partition(
        &self,
        tp: &TopicPartition,
        lease: Option<&Lease>,
        mut by: UnleasedTrim,
    ) -> Result<Trimmed> {
        let mut trimmed = Trimmed::default();
        let packed = self.inner.packings.is_packed(&tp.topic);
        let mut groups = Vec::new();
        if packed && by.is_lossy() {
            // What they have settled of a pack is no loss of theirs.
            groups = self.groups(&tp.topic).await?;
        }
        if let UnleasedTrim::OncePerSecond(Retention::Length(figure))
        | UnleasedTrim::Now(Retention::Length(figure)) = &mut by
            && packed
        {
            // The numbers of packs still have them: so as many fewer messages would be kept.
            let all = [MessageId::ZERO; 2];
            let missing = self.inner.missing_above(&[(tp, &all)]).await?.pop().unwrap_or_default();
            *figure = figure.saturating_add(missing.above[0]);
        }
        let Some(rule) = rule(by)? else { return Ok(trimmed) };
        let keys = &self.inner.keys;
        let (right, mut token) = match (lease, by) {
            (Some(lease), _) => (keys.fence(tp, lease.partition()?.1), lease.token.as_str()),
            (None, UnleasedTrim::OncePerSecond(_)) => (keys.trimmed(tp), "turn"),
            (None, _) => (keys.trimmed(tp), "operator"),
        };
        let keys = [right, keys.log(tp), keys.packs(tp)];
        let settled: Vec<_> = groups.iter().map(|group| [self.inner.keys.settled(tp, group)]).collect();
        for n in 0..CALLS {
            let call = self.inner.scripts.trim.call_with_rows(keys.each_ref(), &settled);
            let mut call = call.arg(token).arg(CHUNK).args([&rule.0, &rule.1]);
            groups.iter().for_each(|group| call.push(group.as_str()));
            if groups.is_empty() {
                // The script has a last argument in any case.
                call.push("");
            }
            let answer = script::run_one(&self.inner.messages, call).await;
            let on = |error: Error| {
                let error = match lease {
                    Some(lease) => fenced(error, lease),
                    None => error.at(tp),
                };
                error.during(format_args!("trim {}", keys[1]))
            };
            match answer.and_then(|answer| add(&mut trimmed, answer)).map_err(on) {
                Ok(()) if trimmed.more => {}
                Ok(()) => break,
                // Return the result so far, or the dropped entries would never be counted. `more` stays set, and the
                // next trim meets the error again if it persists.
                Err(error) if n > 0 => {
                    tracing::warn!(log = %keys[1], %error, dropped = trimmed.dropped, "trimming was stopped");
                    break;
                }
                Err(error) => return Err(error),
            }
            if lease.is_none() {
                // It has its turn.
                token = "operator";
            }
        }
        sort_by(&mut trimmed.lost, |one, other| one.group.cmp(&other.group));
        Ok(trimmed)
    }
}

/// Returns the script's arguments for a rule; `None` if nothing is to be dropped.
fn rule(by: UnleasedTrim) -> Result<Option<(String, String)>> {
    let retention = match by {
        UnleasedTrim::OncePerSecond(retention) | UnleasedTrim::Now(retention) => retention,
        UnleasedTrim::Below(id) => return Ok(Some(("below".to_owned(), id.to_string()))),
        other => return Err(Error::new(ErrorKind::Unsupported, format!("unsupported rule {other:?}"))),
    };
    if retention == Retention::Keep {
        return Ok(None);
    }
    // As the settings of a topic have it.
    let text = retention.to_string();
    let (word, figure) = text.split_once(':').unwrap_or((&text, "0"));
    Ok(Some((word.to_owned(), figure.to_owned())))
}

fn add(trimmed: &mut Trimmed, answer: Value) -> Result<()> {
    let mut answer = reply::array(answer)?.into_iter();
    let mut next = || answer.next().ok_or_else(|| unexpected("too few values"));
    let (dropped, state) = (reply::count(next()?)?, reply::int(next()?)?);
    trimmed.dropped += dropped;
    (trimmed.more, trimmed.skipped) = (state == 1, state == 2);
    while let Some(name) = answer.next() {
        let name = reply::text(name)?;
        let mut number = || reply::count(answer.next().unwrap_or_default()).map(|number| number as u64);
        let (unread, pending) = (number()?, number()?);
        let Ok(group) = GroupName::new(&name) else {
            tracing::warn!(group = name, unread, pending, "a group of another program has lost entries");
            continue;
        };
        match trimmed.lost.iter_mut().find(|lost| lost.group == group) {
            Some(lost) => (lost.unread, lost.pending) = (lost.unread + unread, lost.pending + pending),
            None => trimmed.lost.push(Lost { group, unread, pending }),
        }
    }
    Ok(())
}
