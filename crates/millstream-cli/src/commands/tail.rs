//! `millstream tail`: prints the existing and new messages of a topic, without a group.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use clap::Args;
use millstream::admin::{Browse, Filter, Message, Range, Tail as Follower};
use millstream::{Limits, MessageId, Partition, Timestamp, TopicName, TopicPartition, TopicSpec};

use crate::commands::message::MessageView;
use crate::commands::message::format::{FormatArgs, Printer};
use crate::commands::schemas::{Table, of};
use crate::commands::shared::count_progress::CountProgress;
use crate::commands::shared::emptiness;
use crate::commands::shared::failures::Failed;
use crate::context::{self, Context};
use crate::exit::{Exit, Interrupted, Usage};
use crate::parse::{self, Position};

/// Number of entries between two prints.
const PAGE: usize = 200;

/// Number of entries that are read ahead, over all partitions.
const AHEAD: usize = 8_000;

/// Interval between two checks for new messages.
const PAUSE: Duration = Duration::from_millis(200);

/// Maximum pause after an error.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Default number of messages.
const LAST: usize = 10;

/// Shows messages, and with -f new ones; groups are not affected
///
/// By default it shows the last 10 messages of the topic, in the order of their ids over all partitions. With -f it
/// continues with new messages until it is stopped. It joins no group and settles nothing; `consume` does.
///
/// A partition that cannot be read is named on stderr, and the others are shown; the exit code is then 1.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream tail orders -f
  millstream tail orders --from '2h ago' --key eu --format json | jq .payload
  millstream tail orders --from 1700000000000-0 --limit 1 --format payload
  millstream tail orders --from earliest --header source=shell --format '%p %o %k %s\\n'")]
pub(crate) struct Tail {
    /// The topic
    topic: TopicName,
    /// Start position: `earliest`, `latest`, an id (`1700000000000-0`), or a time (`2026-01-31T12:00:00Z`, `2h ago`)
    #[arg(long, value_parser = parse::position, value_name = "POSITION", conflicts_with = "last")]
    from: Option<Position>,
    /// Starts this many messages before the end. Default: 10
    #[arg(long, short = 'n', value_name = "N")]
    last: Option<usize>,
    /// Continues with new messages
    #[arg(long, short)]
    follow: bool,
    /// Messages of these partitions. Default: all
    #[arg(long, value_delimiter = ',', value_name = "N,…")]
    partition: Vec<u32>,
    /// Ends after this many messages
    #[arg(long, value_name = "N", value_parser = parse::limit)]
    limit: Option<usize>,
    #[command(flatten)]
    wanted: TailWanted,
    #[command(flatten)]
    format: FormatArgs,
}

/// Filter of messages
#[derive(Args, Debug)]
struct TailWanted {
    /// Messages with this key
    #[arg(long)]
    key: Option<String>,
    /// Messages with this header, or with this value of it; can be repeated, and all must match
    #[arg(long, value_name = "NAME[=VALUE]")]
    header: Vec<String>,
    /// Messages with this text in their payload
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
}

impl TailWanted {
    /// Returns the filters, all of which must match.
    fn filters(&self) -> Vec<Filter> {
        let part = |text: &String| Some(Bytes::from(text.clone()));
        let mut filters: Vec<_> = self
            .header
            .iter()
            .map(|header| match header.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(Bytes::from(value.to_owned()))),
                None => (header.clone(), None),
            })
            .map(|header| Filter { header: Some(header), ..Filter::default() })
            .collect();
        let (key, payload) = (self.key.as_ref().and_then(part), self.filter.as_ref().and_then(part));
        if key.is_some() || payload.is_some() {
            filters.push(Filter { key, payload, ..Filter::default() });
        }
        filters
    }
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("tail", of::<MessageView>())];

impl Tail {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let stopped = context::stopped();
        tokio::pin!(stopped);
        // Can be cancelled at any point: nothing is held between two requests that would be lost.
        tokio::select! {
            biased;
            stopped = &mut stopped => stopped?,
            shown = self.show(cx) => return Failed::end(cx, &shown?),
        }
        // A command without an end of its own succeeds when it is stopped.
        if self.follow && self.limit.is_none() { Ok(Exit::Done) } else { Err(Interrupted.into()) }
    }

    /// Returns the partitions that could not be read.
    async fn show(&self, cx: &Context) -> Result<Vec<Failed>> {
        let spec = cx.admin().topic(&self.topic).await?;
        let shower = &mut Shower {
            filters: self.wanted.filters(),
            printer: self.format.printer(cx),
            left: self.limit.unwrap_or(usize::MAX),
            seen: BTreeMap::new(),
            failed: BTreeMap::new(),
        };
        let partitions = self.partitions(&spec)?;
        let browse_only = partitions.clone();
        let browse =
            Browse { partitions: partitions.clone(), limit: PAGE, partial: true, ..Browse::default() };
        // Created before anything is read, so that no message falls between the existing and the new ones.
        let now = cx.now().await?;
        let after = self.from.map(|from| above(from, now));
        let mut follower = cx.admin().tail(&self.topic, after.flatten()).await?;
        if let Some(partitions) = partitions {
            follower = follower.only(partitions);
        }
        shower.fail(follower.failed());
        match after {
            None => self.last(cx, browse, shower, &follower).await?,
            Some(None) => {}
            Some(Some(after)) => {
                // Up to the current end: otherwise the command would never end while others send.
                let end = cx.admin().tail(&self.topic, None).await?;
                let newest = spec.iter().map(|partition| end.position(&partition)).max();
                let before = newest.unwrap_or(MessageId::ZERO).next();
                self.onwards(cx, Browse { range: Range { after, before, ..Range::ALL }, ..browse }, shower)
                    .await?;
                let seen = shower.seen.clone().into_iter();
                follower = seen.fold(follower, |it, (partition, id)| it.behind(partition, id));
            }
        }
        if shower.seen.is_empty() && shower.failed.is_empty() && self.from != Some(Position::Latest) {
            emptiness::note(cx, &self.topic, browse_only.as_deref()).await;
        }
        if self.follow {
            Failed::note(cx, &shower.failures());
            self.follow(cx, follower, shower).await?;
        }
        let failures = shower.failures();
        if !failures.is_empty() && shower.seen.is_empty() && shower.failed.len() == self.chosen(&spec) {
            // Nothing can be read: that is an error as a whole.
            let (_, error) = shower.failed.pop_first().ok_or_else(|| anyhow::anyhow!("no partition"))?;
            return Err(error.into());
        }
        Ok(failures)
    }

    /// Returns the number of partitions that are shown.
    fn chosen(&self, spec: &TopicSpec) -> usize {
        let all: BTreeSet<u32> = self.partition.iter().copied().collect();
        if all.is_empty() { spec.partitions as usize } else { all.len() }
    }

    fn partitions(&self, spec: &TopicSpec) -> Result<Option<Vec<Partition>>> {
        if let Some(none) = self.partition.iter().find(|number| **number >= spec.partitions) {
            let why = format!("partition {none} of topic {}, which has {}", spec.name, spec.partitions);
            return Err(Usage(why).into());
        }
        let some = self.partition.iter().copied().map(Partition).collect();
        Ok(Some(some).filter(|some: &Vec<_>| !some.is_empty()))
    }

    /// Shows the last matching messages: read backwards, shown forwards.
    async fn last(&self, cx: &Context, browse: Browse, shower: &mut Shower, from: &Follower) -> Result<()> {
        let wanted = self.last.unwrap_or(LAST).min(shower.left);
        let range = Range { newest_first: true, ..Range::ALL };
        let limit = if shower.filters.is_empty() { wanted.saturating_add(1).min(AHEAD) } else { AHEAD };
        let mut walk = cx.admin().walk(&self.topic, &Browse { range, limit, ..browse }).await?;
        let (mut found, mut looked_at, mut progress) = (Vec::new(), 0, CountProgress::new());
        while found.len() < wanted {
            let messages = walk.run_once(PAGE).await?;
            if messages.is_empty() {
                break;
            }
            looked_at += messages.len() as u64;
            progress.set(looked_at, "message", "messages");
            // Newer messages are shown when the topic is followed.
            let there = messages.into_iter().filter(|it| from.position(&it.topic_partition) >= it.stored.id);
            found.extend(there.filter(|it| shower.is_wanted(it)).take(wanted - found.len()));
        }
        drop(progress);
        shower.fail(walk.failed());
        found.reverse();
        shower.show(&found)
    }

    async fn onwards(&self, cx: &Context, browse: Browse, shower: &mut Shower) -> Result<()> {
        let limit = if shower.filters.is_empty() { shower.left.min(AHEAD) } else { AHEAD };
        let mut walk = cx.admin().walk(&self.topic, &Browse { limit, ..browse }).await?;
        let (mut looked_at, mut progress) = (0, CountProgress::new());
        while shower.left > 0 {
            let messages = walk.run_once(PAGE.min(limit)).await?;
            if messages.is_empty() {
                break;
            }
            looked_at += messages.len() as u64;
            // Without a filter all of them are shown, and that is progress enough.
            match shower.filters.is_empty() || messages.iter().any(|it| shower.is_wanted(it)) {
                true => progress.hide(),
                false => progress.set(looked_at, "message", "messages"),
            }
            shower.show(&messages)?;
        }
        shower.fail(walk.failed());
        Ok(())
    }

    async fn follow(&self, cx: &Context, mut follower: Follower, shower: &mut Shower) -> Result<()> {
        let mut trouble = Duration::ZERO;
        while shower.left > 0 {
            match follower.run_once(PAGE).await {
                Ok(came) => {
                    trouble = Duration::ZERO;
                    let known = shower.failed.len();
                    shower.fail(follower.failed());
                    if shower.failed.len() > known {
                        Failed::note(cx, &shower.failures());
                    }
                    shower.show(&came)?;
                    if came.is_empty() {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                Err(error) if error.is_transient() => {
                    if trouble.is_zero() {
                        cx.output.note(&format!("{error}; it is tried again"));
                    }
                    trouble = (trouble * 2).clamp(PAUSE, LONGEST_PAUSE);
                    tokio::time::sleep(trouble).await;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Shows matching messages, and records the position.
struct Shower {
    filters: Vec<Filter>,
    printer: Printer,
    left: usize,
    seen: BTreeMap<TopicPartition, MessageId>,
    /// The partitions that cannot be read.
    failed: BTreeMap<TopicPartition, millstream::Error>,
}

impl Shower {
    fn fail<'a>(&mut self, failed: impl Iterator<Item = (&'a TopicPartition, &'a millstream::Error)>) {
        self.failed.extend(failed.map(|(partition, error)| (partition.clone(), error.clone())));
    }

    fn failures(&self) -> Vec<Failed> {
        self.failed.iter().map(|(of, error)| Failed::topic(&of.topic, error)).collect()
    }

    fn is_wanted(&self, message: &Message) -> bool {
        self.filters.iter().all(|filter| filter.fits(message, &Limits::NONE))
    }

    fn show(&mut self, messages: &[Message]) -> Result<()> {
        for message in messages {
            self.seen.insert(message.topic_partition.clone(), message.stored.id);
        }
        let views: Vec<_> =
            messages.iter().filter(|it| self.is_wanted(it)).take(self.left).map(MessageView::of).collect();
        self.left -= views.len();
        self.printer.print(&views)
    }
}

/// Returns the id after which it starts, given the current time `now`; `None` for the end.
fn above(position: Position, now: Timestamp) -> Option<MessageId> {
    match position {
        Position::Earliest => Some(MessageId::ZERO),
        Position::Latest => None,
        Position::Id(id) => Some(id.previous()),
        Position::When(when) => Some(MessageId::new(when.at(now).as_millis(), 0).previous()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_what_is_named() {
        let at = |text| above(parse::position(text).expect(text), Timestamp::from_millis(7_000));
        assert_eq!(
            at("1s ago"),
            Some(MessageId::new(5_999, u64::MAX)),
            "with the first one of that millisecond"
        );
        assert_eq!(at("2h ago"), Some(MessageId::ZERO));
        assert_eq!(at("7-3"), Some(MessageId::new(7, 2)));
        assert_eq!((at("earliest"), at("latest")), (Some(MessageId::ZERO), None));
    }

    #[test]
    fn everything_that_is_asked_for_must_be_there() {
        let wanted = TailWanted {
            key: Some("k".into()),
            header: vec!["a=1=2".into(), "b".into()],
            filter: Some("x".into()),
        };
        let filters = wanted.filters();
        let headers: Vec<_> = filters.iter().filter_map(|filter| filter.header.clone()).collect();
        assert_eq!(headers, [("a".to_owned(), Some(Bytes::from("1=2"))), ("b".to_owned(), None)]);
        assert_eq!(filters[2].key.as_deref(), Some(&b"k"[..]));
        assert_eq!(filters[2].payload.as_deref(), Some(&b"x"[..]));
        assert!(TailWanted { key: None, header: Vec::new(), filter: None }.filters().is_empty());
    }
}
