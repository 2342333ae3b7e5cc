//! `millstream owners`: the owner of each partition, and the assigned one.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use millstream::Timestamp;
use millstream::admin::{OwnedPartition, Owners as Found, Standing};
use millstream::crates::core::leases::Holder;
use millstream::crates::core::members::Member;
use millstream::crates::core::running::RunningMessage;
use schemars::JsonSchema;
use serde::Serialize;

use crate::commands::group::GroupOf;
use crate::commands::schemas::{Table, of};
use crate::commands::shared::failures::Failed;
use crate::context::Context;
use crate::exit::Exit;
use crate::human::ms;
use crate::{human, output};

/// Number of running messages in a table.
const RUNNING: usize = 20;

/// Shows the owner of each partition for a group, the assigned member, and which messages run
///
/// `running now` lists the messages whose handlers have run for a second or longer, longest first. Each member says so with its
/// heartbeats, three times per ttl of a lease.
///
/// `settled`: the assigned member owns it. `moving`: another member owns it. `waiting`: it is assigned and has no
/// owner. `unassigned`: it has an owner, and there is no assignment. `idle`: it has neither. `unknown`: its lease cannot be
/// read; the exit code is then 1.
#[derive(Args, Debug)]
#[command(after_help = "Examples:
  millstream owners orders billing
  millstream owners orders billing --json | jq '.data.partitions[] | select(.standing != \"settled\")'")]
pub(crate) struct Owners {
    #[command(flatten)]
    of: GroupOf,
}

#[derive(Debug, Serialize, JsonSchema)]
struct OwnersView {
    topic: String,
    group: String,
    members: Vec<MemberView>,
    partitions: Vec<OwnersPartitionView>,
    /// The messages whose handlers have run for a second or longer, longest first, as the members said with their last heartbeats.
    running: Vec<RunningView>,
    /// Number of further ones, of members with more than 100.
    running_unnamed: u64,
    /// The parts that could not be read.
    errors: Vec<Failed>,
    #[serde(skip)]
    members_unknown: bool,
}

/// A member of the group, or the owner of a partition.
#[derive(Debug, Serialize, JsonSchema)]
struct MemberView {
    member: String,
    partitions: Vec<u32>,
    /// Whether its last heartbeat is older than its ttl. It is dropped unless it comes back.
    overdue: bool,
}

/// A message in a handler.
#[derive(Debug, Serialize, JsonSchema)]
struct RunningView {
    /// Its id in the log.
    id: String,
    partition: u32,
    member: String,
    attempt: u32,
    /// When the handler began, by the server's clock.
    #[schemars(with = "u64")]
    since_ms: Timestamp,
}

#[derive(Debug, Serialize, JsonSchema)]
struct OwnersPartitionView {
    partition: u32,
    owner: Option<String>,
    epoch: Option<u64>,
    /// The time at which the owner acquired the partition, by the server's clock; later by a bit if that clock was set back.
    #[schemars(with = "Option<u64>")]
    since_ms: Option<Timestamp>,
    /// The time until the lease expires unless it is renewed.
    expires_in_ms: Option<u64>,
    ttl_ms: Option<u64>,
    assigned: Option<String>,
    /// `settled`, `moving`, `waiting`, `unassigned`, `idle` or `unknown`.
    #[schemars(extend("enum" = ["settled", "moving", "waiting", "unassigned", "idle", "unknown"]))]
    standing: &'static str,
    /// The number of consecutive earlier owners that ended without releasing it.
    ends: usize,
}

impl OwnersPartitionView {
    fn of(owned: &OwnedPartition) -> Self {
        let holder = owned.ownership.holder.as_ref();
        Self {
            partition: owned.ownership.partition.0,
            owner: holder.map(|it| it.owner.clone()),
            epoch: holder.map(|it| it.epoch),
            since_ms: holder.and_then(Holder::since),
            expires_in_ms: holder.map(|it| ms(it.expires_in)),
            ttl_ms: owned.ownership.ttl.map(ms),
            assigned: owned.assigned.as_ref().map(ToString::to_string),
            standing: standing(owned.standing),
            ends: owned.ownership.ends,
        }
    }

    fn row(&self) -> [String; 7] {
        let left = |ms| human::duration(Duration::from_millis(ms));
        [
            self.partition.to_string(),
            match &self.owner {
                None if self.standing == "unknown" => "?".to_owned(),
                owner => human::or_none(owner.as_deref(), human::member),
            },
            human::or_none(self.epoch, |epoch| epoch.to_string()),
            human::or_none(self.since_ms, human::time),
            human::or_none(self.expires_in_ms, left),
            human::or_none(self.assigned.as_deref(), human::member),
            match self.ends {
                0 => self.standing.to_owned(),
                ends => format!("{}, {ends} ended before", self.standing),
            },
        ]
    }
}

fn standing(of: Standing) -> &'static str {
    match of {
        Standing::Settled => "settled",
        Standing::Moving => "moving",
        Standing::Waiting => "waiting",
        Standing::Unassigned => "unassigned",
        Standing::Idle => "idle",
        Standing::Unknown => "unknown",
    }
}

fn running((by, it): (&Member, &RunningMessage)) -> RunningView {
    RunningView {
        id: it.origin.to_string(),
        partition: it.partition.0,
        member: by.id.to_string(),
        attempt: it.attempt,
        since_ms: it.since,
    }
}

fn failed(of: &GroupOf, reason: &str) -> Failed {
    Failed::in_group(&of.topic, &of.group, reason)
}

impl OwnersView {
    fn of(of: &GroupOf, found: &Found) -> Self {
        let member = |(member, partitions): (String, Vec<millstream::Partition>)| MemberView {
            overdue: found
                .roster
                .members
                .iter()
                .any(|it| it.id.as_str() == member && found.roster.is_overdue(it)),
            member,
            partitions: partitions.iter().map(|partition| partition.0).collect(),
        };
        Self {
            topic: of.topic.to_string(),
            group: of.group.to_string(),
            members: found.by_owner().into_iter().map(member).collect(),
            partitions: found.partitions.iter().map(OwnersPartitionView::of).collect(),
            running: found.running().into_iter().map(running).collect(),
            running_unnamed: found.running_unnamed(),
            errors: found.reasons().map(|reason| failed(of, reason)).collect(),
            members_unknown: !found.unreadable.is_empty(),
        }
    }

    fn text(&self) -> String {
        let members = self.members.iter().map(|it| {
            let partitions: Vec<_> = it.partitions.iter().map(u32::to_string).collect();
            let member = human::member(&it.member);
            let member = if it.overdue { format!("{member}, overdue") } else { member };
            [member, human::count(partitions.len() as u64), partitions.join(" ")]
        });
        let members = match self.members.is_empty() {
            true if self.members_unknown => "the members of the group are unknown".to_owned(),
            true => "the group has no live members".to_owned(),
            false => output::table(&["member", ">has", "partitions"], members),
        };
        let running = self.running.iter().take(RUNNING).map(|it| {
            let since = human::time(it.since_ms);
            let (partition, attempt) = (it.partition.to_string(), it.attempt.to_string());
            [it.id.clone(), partition, since, attempt, human::member(&it.member)]
        });
        let running = match self.running.len() as u64 + self.running_unnamed {
            0 => String::new(),
            all => {
                let titles = ["running now", ">partition", "since", ">attempt", "member"];
                let more = all - self.running.len().min(RUNNING) as u64;
                let more =
                    if more > 0 { format!("\nand {} more", human::count(more)) } else { String::new() };
                format!("\n\n{}{more}", output::table(&titles, running))
            }
        };
        let titles = [">partition", "owner", ">epoch", "since", ">ends in", "should be", "standing"];
        format!(
            "{members}{running}\n\n{}",
            output::table(&titles, self.partitions.iter().map(OwnersPartitionView::row))
        )
    }
}

/// The data that the command prints as JSON.
pub(in crate::commands) const DATA: Table = &[("owners", of::<OwnersView>())];

impl Owners {
    pub(crate) async fn run(self, cx: &Context) -> Result<Exit> {
        self.of.known(cx).await?;
        let found = cx.admin().owners(&self.of.topic, &self.of.group).await?;
        let view = OwnersView::of(&self.of, &found);
        cx.output.show(&view, OwnersView::text)?;
        Failed::end(cx, &view.errors)
    }
}
