//! Requests for snapshots of logs and their groups: calls of the script `look`.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::name::GroupName;
use millstream_core::pages::{PageSizer, STEP_BYTES};
use millstream_core::topic::TopicPartition;
#[cfg(feature = "admin")]
use redis::{Pipeline, Value};

use super::CHUNK;
use crate::backend::RedisBackend;
#[cfg(feature = "admin")]
use crate::conn::connection::Line;
#[cfg(feature = "admin")]
use crate::conn::replies::reply;
use crate::error::unexpected;
use crate::scripts::script;
use crate::snapshots::look::{Look, LookAnswer, RestKeys, Standing, read, read_with_rest};

/// Number of partitions in the first request, since their entries may be large.
const FIRST: usize = 16;
/// Number of groups that are named in one call.
const GROUPS: usize = 100;

/// Number of groups on all logs of one request: of 10,000 groups on a log a call takes 80 ms.
const GROUPS_ON_LOGS: usize = 20_000;

/// A partition, and the groups of which more is asked for than their place on its log.
#[derive(Clone, Copy)]
pub(super) struct Ask<'a> {
    pub(super) topic_partition: &'a TopicPartition,
    pub(super) groups: &'a [GroupName],
}

impl RedisBackend {
    /// Takes a snapshot of each of these partitions.
    pub(super) async fn look_at(&self, partitions: &[TopicPartition]) -> Result<Vec<Look>> {
        self.look(partitions, "").await?.into_iter().collect()
    }

    /// Takes the same snapshots, and identifies the server.
    pub(super) async fn look_and_ask_who(&self, partitions: &[TopicPartition]) -> Result<Vec<Look>> {
        self.look(partitions, "1").await?.into_iter().collect()
    }

    /// Takes a snapshot of each of these partitions with everything else of the groups that are named, and identifies the
    /// server if `who` is "1".
    pub(super) async fn standings(&self, asks: &[Ask<'_>], who: &str) -> Result<Vec<Standing>> {
        let keys = &self.inner.keys;
        let mut standings: Vec<Option<Standing>> = asks.iter().map(|_| None).collect();
        // Which partitions are still to be asked for, each from which of its groups on.
        let mut open: VecDeque<(usize, usize)> = (0..asks.len()).map(|at| (at, 0)).collect();
        let mut pages = PageSizer::new(STEP_BYTES, FIRST);
        while !open.is_empty() {
            let count = pages.count(open.len().min(CHUNK));
            // A call costs the server about as much as all groups of the log, not only those that it names.
            let mut groups_on_logs = 0;
            let fit = open.iter().take(count).take_while(|(at, _)| {
                groups_on_logs += asks[*at].groups.len();
                groups_on_logs <= GROUPS_ON_LOGS
            });
            let fit = fit.count().max(1);
            let (some, began): (Vec<_>, _) = (open.drain(..fit).collect(), Instant::now());
            let (mut calls, mut rows) = (Vec::with_capacity(some.len()), Vec::with_capacity(some.len()));
            for (at, from) in &some {
                let (tp, groups) = (asks[*at].topic_partition, &asks[*at].groups[*from..]);
                let groups = &groups[..groups.len().min(GROUPS)];
                let row = |group| RestKeys {
                    retry_log: keys.retry_log(tp, group),
                    retry_due: keys.retry_due(tp, group),
                    retry_items: keys.retry_items(tp, group),
                    dead_letters: keys.dead_letters(tp, group),
                    settled: keys.settled(tp, group),
                };
                let of_groups: Vec<RestKeys> = groups.iter().map(row).collect();
                let place = tp.clone().into();
                let call = self.inner.scripts.look.call_with_rows(
                    [&keys.log(tp), &keys.delay(&place), &keys.delay_items(&place), &keys.packs(tp)],
                    &of_groups.iter().map(RestKeys::row).collect::<Vec<_>>(),
                );
                let mut call = call.arg(who).arg("").arg(groups.len());
                groups.iter().for_each(|group| call.push(group.as_str()));
                if groups.is_empty() {
                    call.push("");
                }
                calls.push(call);
                rows.push(of_groups);
            }
            let answers = script::run(&self.inner.pool, calls).await;
            let (asked, mut copied) = (some.len(), 0);
            for (((at, from), of_groups), answer) in some.into_iter().zip(rows).zip(answers) {
                let Ask { topic_partition: tp, groups } = asks[at];
                let (log, delay) = (keys.log(tp), keys.delay(&tp.clone().into()));
                let read = answer.and_then(|answer| read_with_rest(answer, &log, &delay, &of_groups));
                let (part, bytes) =
                    read.map_err(|error: Error| error.during(format_args!("look at {tp}")).at(tp))?;
                copied += bytes;
                let to = from + part.rest.len();
                // The script goes on by at least one group with each call.
                if to < groups.len() && to > from {
                    open.push_back((at, to));
                }
                match &mut standings[at] {
                    Some(standing) => standing.add(part),
                    first => *first = Some(part),
                }
            }
            pages.came(asked, copied, began.elapsed());
        }
        standings.into_iter().map(|standing| standing.ok_or_else(|| unexpected("no snapshot"))).collect()
    }

    #[cfg(feature = "admin")]
    /// Returns what identifies the process of the only server, and its data set, as the part `identity` of scripts does.
    pub(super) async fn identity(&self) -> Result<Option<String>> {
        let mut pipe = Pipeline::with_capacity(2);
        pipe.cmd("INFO").arg("server").cmd("INFO").arg("replication");
        let [process, history] = reply::tuple(Value::Array(self.inner.pool.send(&pipe).await?))?;
        let field = |info: Value, name: &str| {
            let info = reply::text(info).ok()?;
            info.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned())
        };
        let both = field(process, "run_id:").zip(field(history, "master_replid:"));
        Ok(both.map(|(run, replica)| format!("{run}.{replica}")))
    }

    /// Takes the same snapshots, each with an error of its own if its log has a wrong type; identifies the server if `who` is "1".
    pub(super) async fn look(&self, partitions: &[TopicPartition], who: &str) -> Result<Vec<Result<Look>>> {
        let (mut looks, mut rest) = (Vec::with_capacity(partitions.len()), partitions);
        // The script copies bodies to read ids. Where bodies are large, few partitions go into one request, since the
        // server works on a request without a break.
        let mut pages = PageSizer::new(STEP_BYTES, FIRST);
        while !rest.is_empty() {
            let (some, later) = rest.split_at(pages.count(rest.len()));
            let answers = self.look_once(some, who, "").await;
            let mut copied = 0;
            for (answer, tp) in answers.into_iter().zip(some) {
                match answer {
                    Ok(LookAnswer { mut look, more, bytes }) => {
                        if more {
                            self.look_on(tp, &mut look).await?;
                        }
                        looks.push(Ok(look));
                        copied += bytes;
                    }
                    Err(error) if error.kind() == ErrorKind::WrongType => looks.push(Err(error)),
                    Err(error) => return Err(error),
                }
            }
            pages.came(some.len(), copied, Duration::ZERO);
            rest = later;
        }
        Ok(looks)
    }

    /// Adds the groups that an answer left out.
    async fn look_on(&self, tp: &TopicPartition, look: &mut Look) -> Result<()> {
        loop {
            let after = look.groups.last().map(|group| group.name.clone()).unwrap_or_default();
            let Some(LookAnswer { look: next, more, .. }) =
                self.look_once(std::slice::from_ref(tp), "", &after).await.pop().transpose()?
            else {
                return Ok(());
            };
            // The log or groups may have been deleted meanwhile.
            let over = !more || next.groups.is_empty();
            look.groups.extend(next.groups);
            if over {
                return Ok(());
            }
        }
    }

    async fn look_once(
        &self,
        partitions: &[TopicPartition],
        who: &str,
        after: impl AsRef<[u8]>,
    ) -> Vec<Result<LookAnswer>> {
        let calls = partitions.iter().map(|tp| {
            let log = self.inner.keys.log(tp);
            // The log alone: while its slot moves, a call with two keys is refused.
            self.inner.scripts.look.call_of_first([&log]).arg(who).arg(after.as_ref()).args(["", ""])
        });
        let answers = script::run(&self.inner.pool, calls.collect()).await;
        let looks = answers.into_iter().zip(partitions).map(|(answer, tp)| {
            answer.and_then(read).map_err(|error: Error| error.during(format_args!("look at {tp}")).at(tp))
        });
        looks.collect()
    }
}
