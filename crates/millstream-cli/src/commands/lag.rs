//! `millstream lag`: the lag of groups.

use std::cmp::Reverse;
use std::io::IsTerminal;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;
use millstream::admin::{CatchUp, GroupStats, RateMeter, Rates};
use millstream::{Error, ErrorKind, GroupName, Timestamp, TopicName, TopicSpec};
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::schemas::{Table, of};
use crate::commands::shared::failures::Failed;
use crate::commands::shared::view::GroupView;
use crate::context::{Context, stopped};
use crate::exit::{Exit, not_found};
use crate::{human, output, parse};

/// Number of topics that are read together.
const TOGETHER: usize = 64;

/// Shows how far the groups of a topic, or of all topics, are behind
///
/// `backlog` is all remaining work of a group: `lag` (never handed out), `pending` (handed out and not settled),
/// `retrying`, and delayed messages that are due; the largest is shown first. `oldest` is the age of the oldest message
/// that is unread, pending or waits for a retry, since it was first in the log.
///
/// A lag that would take too long to count is shown as `>= 10,000` or `?`, and so is a backlog with it; in JSON both
/// are `null`, with `lag_at_least` and `backlog_at_least`. Figures that cannot be read are `?`, with the reason on stderr;
/// in JSON they are `null`, with `error`. The exit code is then 1.
///
/// With --watch there are also the messages per second that are produced and consumed, over the last 10 seconds or one
/// interval, and the time until the backlog is handled if both stay so. They are `?` (in JSON `null`) in the first round, and
/// after a log was lost or the group was moved: then there is nothing to compare with.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream lag
  millstream lag orders --exact
  millstream lag --behind 1000 --limit 10
  millstream lag --behind 10000 --fail-if-behind || echo 'a group is behind' | mail -s lag ops@example.com
  millstream lag orders --group billing --watch=5
  millstream lag --json | jq '.data.groups[] | select(.backlog == null or .backlog > 1000)'")]
pub(crate) struct Lag {
    /// The topic. Default: all topics
    topic: Option<TopicName>,
    /// Only this group
    #[arg(long, short)]
    group: Option<GroupName>,
    /// Only groups with at least this backlog, and those whose lag is unknown
    #[arg(long, value_name = "N")]
    behind: Option<u64>,
    /// Ends with exit code 3 if a group is shown, for an alert from cron
    #[arg(long, requires = "behind", conflicts_with = "watch")]
    fail_if_behind: bool,
    /// Counts a lag that would take too long to count otherwise: about a second per million entries. Progress is shown on
    /// stderr
    #[arg(long)]
    exact: bool,
    /// At most this number of groups, those with the largest backlog
    #[arg(long, value_name = "N", value_parser = parse::limit)]
    limit: Option<usize>,
    /// Repeats until it is stopped, by default every 2 seconds; another interval requires the equals sign: `--watch=5`
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
          value_parser = parse::interval)]
    watch: Option<Duration>,
}

/// Interval between two lines of progress.
const PROGRESS_EVERY: Duration = Duration::from_secs(2);

/// The result of one round.
#[derive(Debug, Serialize, JsonSchema)]
struct LagView {
    /// Milliseconds since 1970.
    at_ms: u64,
    groups: Vec<LagRow>,
    /// The topics that could not be read.
    errors: Vec<Failed>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LagRow {
    topic: String,
    #[serde(flatten)]
    group: GroupView,
    /// With --watch.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    rates: Option<RatesView>,
}

impl LagRow {
    /// Returns the row of a group whose state cannot be read, or of all groups of a topic.
    fn unknown(topic: &TopicName, group: Option<&GroupName>, error: &Error, meter: Option<&Meter>) -> Self {
        let rates = meter.map(|_| RatesView::of(Rates::default(), None));
        Self { topic: topic.to_string(), group: GroupView::unknown(group, error), rates }
    }
}

/// The rates of a group, for programs; `null` where they are unknown.
#[derive(Debug, Serialize, JsonSchema)]
struct RatesView {
    produced_per_s: Option<f64>,
    consumed_per_s: Option<f64>,
    /// `done` without a backlog, `running`, or `never` if the backlog does not shrink.
    #[schemars(extend("enum" = ["done", "running", "never", null]))]
    catch_up: Option<&'static str>,
    catch_up_ms: Option<u64>,
}

impl RatesView {
    fn of(rates: Rates, backlog: Option<u64>) -> Self {
        let catch_up = rates.catch_up(backlog);
        let state = catch_up.map(|it| match it {
            CatchUp::Done => "done",
            CatchUp::In(_) => "running",
            CatchUp::Never => "never",
        });
        let catch_up_ms = match catch_up {
            Some(CatchUp::In(time)) => Some(human::ms(time)),
            Some(CatchUp::Done) => Some(0),
            _ => None,
        };
        Self { produced_per_s: rates.produced, consumed_per_s: rates.consumed, catch_up: state, catch_up_ms }
    }

    fn row(&self) -> [String; 3] {
        let rate = |rate: Option<f64>| rate.map_or_else(|| "?".to_owned(), human::rate);
        let catch_up = match (self.catch_up, self.catch_up_ms) {
            (Some("running"), Some(ms)) => human::duration(Duration::from_millis(ms)),
            (Some("done"), _) => "-".to_owned(),
            (Some(word), _) => word.to_owned(),
            (None, _) => "?".to_owned(),
        };
        [rate(self.produced_per_s), rate(self.consumed_per_s), catch_up]
    }
}

/// Measures rates from round to round.
#[derive(Debug)]
struct Meter {
    since: Instant,
    rates: Mutex<RateMeter>,
}

impl Meter {
    fn new() -> Self {
        Self { since: Instant::now(), rates: Mutex::new(RateMeter::new()) }
    }

    fn record(&self, topic: &TopicName, stats: &GroupStats) -> Rates {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.record(topic, stats, self.since.elapsed())
    }

    /// Forgets groups that were not read for so long.
    fn forget(&self, after: Duration) {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.forget_before(self.since.elapsed().saturating_sub(after));
    }
}

/// Counts the lag of a group exactly; says every two seconds how far it is.
async fn count(cx: &Context, topic: &TopicSpec, stats: &mut GroupStats) -> Result<()> {
    let (group, all) = (stats.group.clone(), stats.partitions.len() as u64);
    let done = AtomicU64::new(0);
    let admin = cx.admin();
    let mut counting = std::pin::pin!(admin.count_lag(topic, stats, |_| {
        done.fetch_add(1, Ordering::Relaxed);
    }));
    loop {
        tokio::select! {
            biased;
            counted = &mut counting => return Ok(counted?),
            () = tokio::time::sleep(PROGRESS_EVERY) => {
                let done = human::count(done.load(Ordering::Relaxed));
                let all = human::of(all, "partition", "partitions");
                cx.output.note(&format!("group {group} of topic {}: counted in {done} of {all}", topic.name));
            }
        }
    }
}

impl LagView {
    fn text(&self) -> String {
        let watched = self.groups.iter().any(|it| it.rates.is_some());
        let rates: &[&str] = if watched { &[">produced/s", ">consumed/s", ">catch up"] } else { &[] };
        let titles: Vec<&str> =
            ["topic"].into_iter().chain(GroupView::TITLES).chain(rates.iter().copied()).collect();
        let row = |it: &LagRow| {
            let rates = it.rates.iter().flat_map(RatesView::row);
            [it.topic.clone()].into_iter().chain(it.group.row()).chain(rates).collect::<Vec<_>>()
        };
        output::table(&titles, self.groups.iter().map(row))
    }
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("lag", of::<LagView>())];

impl Lag {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        let Some(every) = self.watch else {
            let view = self.look(cx, None).await?;
            cx.output.show(&view, LagView::text)?;
            return match Failed::end(cx, &view.errors)? {
                Exit::Done if self.fail_if_behind && !view.groups.is_empty() => Ok(Exit::Wrong),
                end => Ok(end),
            };
        };
        let redraws = !cx.output.is_json() && std::io::stdout().is_terminal();
        let meter = Meter::new();
        let watch = async {
            loop {
                self.look_again(cx, &meter, every, redraws).await?;
                tokio::time::sleep(every).await;
            }
        };
        tokio::select! {
            biased;
            signal = stopped() => signal.map(|()| Exit::Done),
            ended = watch => ended,
        }
    }

    /// Runs one of several rounds: a transient error is reported, and does not end the command.
    async fn look_again(&self, cx: &Context, meter: &Meter, every: Duration, redraws: bool) -> Result<()> {
        // Longer than an outage that hides a group for some rounds.
        meter.forget(every * 10 + Duration::from_secs(60));
        let view = match self.look(cx, Some(meter)).await {
            Ok(view) => view,
            Err(error) if error.downcast_ref::<Error>().is_some_and(Error::is_transient) => {
                cx.output.note(&format!("not now: {error:#}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        cx.output.show(&view, |view| {
            // Moves to the upper left corner and clears the screen.
            let clear = if redraws { "\x1b[H\x1b[2J" } else { "" };
            format!(
                "{clear}{}, every {}\n{}\n\n",
                human::time(Timestamp::from_millis(view.at_ms)),
                human::duration(every),
                view.text()
            )
        })?;
        Failed::note(cx, &view.errors);
        Ok(())
    }

    /// Whether an argument that was parsed as a topic may be the interval of --watch.
    fn is_interval(&self, topic: &TopicName) -> bool {
        self.watch.is_some() && parse::interval(topic.as_str()).is_ok()
    }

    async fn look(&self, cx: &Context, meter: Option<&Meter>) -> Result<LagView> {
        let admin = cx.admin();
        let topics = match &self.topic {
            Some(topic) => vec![topic.clone()],
            None => admin.topics().await?,
        };
        let (mut groups, mut errors) = (Vec::new(), Vec::new());
        let mut rest = topics.as_slice();
        let mut surveys = Vec::new().into_iter();
        loop {
            // One part after the other: an error of a server that is away is returned after the first.
            let Some((topic, survey)) = surveys.next() else {
                let (some, later) = rest.split_at(rest.len().min(TOGETHER));
                rest = later;
                if some.is_empty() {
                    break;
                }
                let read: Vec<_> = some.iter().cloned().zip(admin.surveys(some).await).collect();
                surveys = read.into_iter();
                continue;
            };
            let survey = match survey {
                // One of all topics was deleted in the meantime.
                Err(error) if error.kind() == ErrorKind::NotFound && self.topic.is_none() => continue,
                Err(error) if error.kind() == ErrorKind::NotFound && self.is_interval(&topic) => {
                    let why = format!("topic {topic} does not exist; for a time say --watch={topic}");
                    return Err(not_found(why));
                }
                // An error of one topic does not prevent the others from being shown.
                Err(error) if self.topic.is_none() && !error.is_transient() => {
                    errors.push(Failed::topic(&topic, &error));
                    groups.push(LagRow::unknown(&topic, None, &error, meter));
                    continue;
                }
                other => other?,
            };
            let overdue = match survey.delayed {
                Ok(waiting) => Some(waiting.overdue),
                Err(error) => {
                    errors.push(Failed::topic(&topic, &error));
                    None
                }
            };
            for (group, stats) in survey.groups {
                match stats {
                    _ if self.group.as_ref().is_some_and(|wanted| group != *wanted) => {}
                    Ok(mut stats) => {
                        if self.exact {
                            count(cx, &survey.topic, &mut stats).await?;
                        }
                        errors.extend(Failed::parts(&topic, &stats));
                        let group = GroupView::of(&stats, overdue);
                        let rates = meter.map(|meter| meter.record(&topic, &stats));
                        let rates = rates.map(|rates| RatesView::of(rates, group.backlog));
                        groups.push(LagRow { topic: topic.to_string(), group, rates });
                    }
                    Err(error) => {
                        errors.push(Failed::group(&group, &error).of(&topic));
                        groups.push(LagRow::unknown(&topic, Some(&group), &error, meter));
                    }
                }
            }
            if let Some(error) = survey.unlisted {
                errors.push(Failed::topic(&topic, &error));
                groups.push(LagRow::unknown(&topic, None, &error, meter));
            }
        }
        // The largest backlog first.
        groups.sort_by_key(|it| Reverse(it.group.backlog_at_least));
        match (&self.group, &self.topic) {
            (Some(group), Some(topic)) if groups.is_empty() && errors.is_empty() => {
                Err(not_found(format!("group {group} of topic {topic} does not exist")))
            }
            (Some(group), None) if groups.is_empty() && errors.is_empty() => {
                Err(not_found(format!("group {group} does not exist in any topic")))
            }
            _ => {
                let least = self.behind.unwrap_or(0);
                groups.retain(|it| it.group.backlog.is_none_or(|backlog| backlog >= least));
                groups.truncate(self.limit.unwrap_or(usize::MAX));
                Ok(LagView { at_ms: crate::context::local_ms()?, groups, errors })
            }
        }
    }
}
