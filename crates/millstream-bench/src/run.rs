//! The cases that can be measured, and a single run of one of them on one side.

use anyhow::{Result, bail};

use crate::args::{
    Command, Common, Consume, Delay, E2e, Idle, Memory, Operate, PendingIn, Place, Produce, Question, Rate,
    Retry, Takeover,
};
use crate::measure::{Figure, Measured, Stage};
use crate::{bare, ours};

/// The side that does the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Ours,
    Bare,
}

/// One run of each side, next to each other in time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pair {
    pub(crate) ours: Measured,
    pub(crate) bare: Option<Measured>,
}

impl Pair {
    pub(crate) fn put(&mut self, side: Side, measured: Measured) {
        match side {
            Side::Ours => self.ours = measured,
            Side::Bare => self.bare = Some(measured),
        }
    }
}

const QUESTIONS: [Question; 4] = [Question::Lag, Question::Memory, Question::Verify, Question::Scrape];

const PLACES: [Place; 4] = [Place::Waiting, Place::Parked, Place::Delayed, Place::Task];

/// A workload that is measured, with one set of figures.
pub(crate) enum Case {
    Produce(Produce),
    Consume(Consume),
    /// At this many messages per second; not known yet if it is a share of the maximum.
    E2e(E2e, f64),
    Schedule(Delay),
    Late(Delay, f64),
    Retry(Retry),
    Takeover(Takeover),
    Idle(Idle),
    Memory(Memory, Place),
    Operate(Operate, Question),
}

/// Returns the cases that a command measures, with its common options.
///
/// # Errors
/// If the command measures nothing by itself.
pub(crate) fn cases(command: Command) -> Result<(Common, Vec<Case>)> {
    Ok(match command {
        Command::Produce(it) => (it.common, vec![Case::Produce(it)]),
        Command::Consume(it) => (it.common, vec![Case::Consume(it)]),
        Command::E2e(it) => (it.common, vec![Case::E2e(it, f64::NAN)]),
        Command::Delay(it) => match it.rate {
            Some(Rate::PerSecond(rate)) => (it.common, vec![Case::Late(it, rate)]),
            _ => (it.common, vec![Case::Schedule(it)]),
        },
        Command::Retry(it) => (it.common, vec![Case::Retry(it)]),
        Command::Takeover(it) => (it.common, vec![Case::Takeover(it)]),
        Command::Idle(it) => (it.common, vec![Case::Idle(it)]),
        Command::Memory(it) => {
            let case = |place| {
                let (common, messages) = (it.common, it.messages.clone());
                Case::Memory(Memory { common, messages, spread: it.spread, place: it.place }, place)
            };
            let cases = PLACES.into_iter().filter(|place| it.place.is_none_or(|only| only == *place));
            (it.common, cases.map(case).collect())
        }
        Command::Operate(it) => {
            let questions = it.question.map_or_else(|| QUESTIONS.to_vec(), |only| vec![only]);
            let cases = questions.into_iter().map(|question| Case::Operate(it.clone(), question));
            (it.common, cases.collect())
        }
        Command::Suite(_) | Command::Victim(_) => bail!("it is no measurement"),
    })
}

impl Case {
    /// Determines values that must be known before the first run.
    pub(crate) async fn prepare(self, stage: &Stage) -> Result<Self> {
        let Self::E2e(of, _) = self else { return Ok(self) };
        let rate = match of.rate {
            Rate::PerSecond(rate) => rate,
            Rate::Share(share) => share * ours::most(stage, &of).await?,
        };
        Ok(Self::E2e(of, rate))
    }

    /// Returns its displayed name.
    pub(crate) fn name(&self) -> String {
        let name = match self {
            Self::Produce(it) if it.tasks > 0 => format!("produce, {} awaiting", several(it.tasks, "task")),
            Self::Produce(it) => format!("produce, batches of {}", it.batch),
            Self::Consume(it) if it.pending > 0 => match it.pending_in {
                PendingIn::Own => format!("consume, {} pending", it.pending),
                PendingIn::Other => format!("consume, {} pending in another group", it.pending),
            },
            Self::Consume(it) if it.keep => format!("consume, {}, kept", several(it.groups, "group")),
            Self::Consume(it) => format!("consume, {}, trimmed", several(it.groups, "group")),
            Self::E2e(_, rate) if rate.is_nan() => "e2e".to_owned(),
            Self::E2e(_, rate) => format!("e2e at {rate:.0}/s"),
            Self::Schedule(it) if it.queue => format!("schedule tasks, {} waiting", it.waiting),
            Self::Schedule(it) => format!("schedule messages, {} waiting", it.waiting),
            Self::Late(it, rate) if it.queue => format!("lateness of tasks at {rate:.0}/s"),
            Self::Late(_, rate) => format!("lateness of messages at {rate:.0}/s"),
            Self::Retry(it) => format!("retry after {} ms, {} parked", it.delay, it.parked),
            Self::Takeover(it) => format!("takeover, leases of {} ms", it.lease),
            Self::Idle(it) => {
                let topics =
                    if it.topics > 1 { format!("{}, ", several(it.topics, "topic")) } else { String::new() };
                format!("idle, {topics}{}, {}", several(it.groups, "group"), several(it.members, "member"))
            }
            Self::Memory(_, Place::Waiting) => "memory, waiting message".to_owned(),
            Self::Memory(_, Place::Parked) => "memory, parked retry".to_owned(),
            Self::Memory(_, Place::Delayed) => "memory, delayed message".to_owned(),
            Self::Memory(_, Place::Task) => "memory, task of a delay queue".to_owned(),
            Self::Operate(_, Question::Find) => "find a message".to_owned(),
            Self::Operate(it, question) => {
                let question = match question {
                    Question::Lag => "lag",
                    Question::Memory => "memory",
                    Question::Verify => "verify",
                    Question::Scrape | Question::Find => "scrape",
                };
                format!("{question}, {}", several(it.topics, "topic"))
            }
        };
        format!("{name}, {}", several(self.partitions(), "partition"))
    }

    /// Returns the number of partitions of its topic, or of shards of its queue.
    pub(crate) fn partitions(&self) -> u32 {
        match self {
            Self::Produce(it) => it.spread.partitions,
            Self::Consume(it) => it.spread.partitions,
            Self::E2e(it, _) => it.spread.partitions,
            Self::Schedule(it) | Self::Late(it, _) => it.spread.partitions,
            Self::Retry(it) => it.spread.partitions,
            Self::Takeover(it) => it.partitions,
            Self::Idle(it) => it.spread.partitions,
            Self::Memory(it, _) => it.spread.partitions,
            Self::Operate(it, _) => it.partitions,
        }
    }

    /// Runs one side once. The data that it stored is kept.
    pub(crate) async fn run_once(&self, stage: &Stage, side: Side) -> Result<Measured> {
        // What TLS costs is seen beside the same without it, which is compared with the bare client by itself.
        let plain = (side == Side::Bare && stage.secure.is_some()).then(|| stage.without_tls());
        let (stage, side) = plain.as_ref().map_or((stage, side), |plain| (plain, Side::Ours));
        let measured = match (self, side) {
            // What is stored once is compared with plain sends, which are compared with the bare client by themselves.
            // So is what passes a layer, and what a lossy retention drops.
            (Self::Produce(it), Side::Bare) if it.is_beside_plain() => {
                let plain =
                    Produce { dedup: false, ids: false, length: None, async_layer: None, ..it.clone() };
                if it.tasks > 0 {
                    ours::awaiting(stage, &plain).await
                } else {
                    ours::bulk(stage, &plain).await
                }
            }
            (Self::Consume(it), Side::Bare) if it.layers > 0 || it.limits > 0 || it.rate.is_some() => {
                ours::consume(stage, &Consume { layers: 0, limits: 0, rate: None, ..it.clone() }).await
            }
            (Self::Produce(it), Side::Ours) if it.tasks > 0 => ours::awaiting(stage, it).await,
            (Self::Produce(it), Side::Bare) if it.tasks > 0 => bare::awaiting(stage, it).await,
            (Self::Produce(it), Side::Ours) => ours::bulk(stage, it).await,
            (Self::Produce(it), Side::Bare) => bare::bulk(stage, it).await,
            (Self::Consume(it), Side::Ours) => ours::consume(stage, it).await,
            (Self::Consume(it), Side::Bare) => bare::consume(stage, it).await,
            (Self::E2e(it, rate), Side::Ours) => ours::e2e(stage, it, *rate).await,
            (Self::E2e(it, rate), Side::Bare) => bare::e2e(stage, it, *rate).await,
            (Self::Schedule(it), Side::Ours) => ours::schedule(stage, it).await,
            (Self::Schedule(it), Side::Bare) => bare::schedule(stage, it).await,
            (Self::Late(it, rate), Side::Ours) => ours::late(stage, it, *rate).await,
            (Self::Late(..), Side::Bare) => bail!("lateness has no baseline"),
            (Self::Retry(it), Side::Ours) => ours::retry(stage, it).await,
            (Self::Retry(it), Side::Bare) => bare::retry(stage, it).await,
            (Self::Takeover(it), Side::Ours) => ours::takeover(stage, it).await,
            (Self::Takeover(it), Side::Bare) => bare::takeover(stage, it).await,
            (Self::Idle(it), Side::Ours) => ours::idle(stage, it).await,
            (Self::Idle(it), Side::Bare) => bare::idle(stage, it).await,
            (Self::Memory(it, place), Side::Ours) => ours::memory(stage, it, *place).await,
            (Self::Memory(it, place), Side::Bare) => bare::memory(stage, it, *place).await,
            (Self::Operate(it, question), side) => {
                ours::fill_topics(stage, it, *question).await?;
                match side {
                    Side::Ours => ours::operate(stage, it, *question).await,
                    Side::Bare => bare::operate(stage, *question).await,
                }
            }
        }?;
        // Messages per second are meaningless where the time consists of waiting.
        Ok(match self {
            Self::Takeover(_) => measured.without(Figure::Throughput),
            _ => measured,
        })
    }
}

fn several(number: u32, of: &str) -> String {
    format!("{number} {of}{}", if number == 1 { "" } else { "s" })
}
