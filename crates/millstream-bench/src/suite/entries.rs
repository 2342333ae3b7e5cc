//! All cases of the suite: the command of each, and its targets.

use super::growth::Series;
use super::target::{Target, at_most, ratio_at_least, ratio_at_most};
use crate::measure::Figure::{Bytes, IdleRequests, P50, P99, RedisCpu, Throughput};

/// A case of the suite.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    /// The name by which it is selected.
    pub(super) name: &'static str,
    /// The displayed title.
    pub(super) title: &'static str,
    /// The arguments of `millstream-bench`.
    pub(super) command: &'static str,
    /// The table that contains it.
    pub(super) section: Section,
    pub(super) targets: &'static [Target],
    /// The series that it is a point of.
    pub(super) series: &'static [Series],
    /// Whether the same work is measured with bare redis-rs.
    pub(super) baseline: bool,
    /// Maximum number of runs, for cases that vary little or take long to prepare.
    pub(super) most_runs: u32,
    /// Whether there are warm-up runs.
    pub(super) warm_up: bool,
    /// Whether it is run only when it is selected by name.
    pub(super) optional: bool,
}

/// A table of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Throughput,
    Latency,
    Memory,
    Idle,
    /// Cases that are only points of a series.
    Growth,
}

const NO_TARGETS: &[Target] = &[];

const BULK: &[Target] = &[ratio_at_least(Throughput, 0.90), ratio_at_most(RedisCpu, 1.10)];
const KEPT: &[Target] = &[ratio_at_least(Throughput, 0.95), ratio_at_most(RedisCpu, 1.25)];
const TRIMMED: &[Target] = &[ratio_at_least(Throughput, 0.90)];
const SCHEDULED: &[Target] = &[ratio_at_least(Throughput, 0.80)];

const fn compared(
    section: Section,
    name: &'static str,
    title: &'static str,
    command: &'static str,
    targets: &'static [Target],
) -> Entry {
    let (baseline, warm_up, optional) = (true, true, false);
    Entry {
        name,
        title,
        command,
        section,
        targets,
        series: &[],
        baseline,
        most_runs: u32::MAX,
        warm_up,
        optional,
    }
}

const fn throughput(
    name: &'static str,
    title: &'static str,
    command: &'static str,
    targets: &'static [Target],
) -> Entry {
    compared(Section::Throughput, name, title, command, targets)
}

const fn latency(
    name: &'static str,
    title: &'static str,
    command: &'static str,
    targets: &'static [Target],
) -> Entry {
    compared(Section::Latency, name, title, command, targets)
}

const fn late(name: &'static str, title: &'static str, command: &'static str) -> Entry {
    let entry = latency(name, title, command, NO_TARGETS);
    Entry { baseline: false, most_runs: 3, warm_up: false, ..entry }
}

const fn memory(
    name: &'static str,
    title: &'static str,
    command: &'static str,
    targets: &'static [Target],
) -> Entry {
    let entry = compared(Section::Memory, name, title, command, targets);
    Entry { most_runs: 2, warm_up: false, ..entry }
}

/// Creates a case that is only a point of a series.
const fn point(
    name: &'static str,
    title: &'static str,
    command: &'static str,
    series: &'static [Series],
) -> Entry {
    let entry = compared(Section::Growth, name, title, command, NO_TARGETS);
    Entry { series, baseline: false, most_runs: 3, warm_up: false, ..entry }
}

const fn in_series(entry: Entry, series: &'static [Series]) -> Entry {
    Entry { series, ..entry }
}

/// The cases in the order in which they are run and shown.
pub(super) const ENTRIES: &[Entry] = &[
    throughput("produce-1", "bulk produce, 1 partition", "produce --messages 600000", BULK),
    throughput("produce-8", "bulk produce, 8 partitions", "produce --partitions 8 --messages 600000", BULK),
    throughput(
        "produce-tasks",
        "produce, 64 tasks awaiting each send",
        "produce --tasks 64 --messages 400000",
        &[ratio_at_least(Throughput, 1.0)],
    ),
    throughput(
        "consume-keep-1",
        "consume and acknowledge, kept, 1 partition",
        "consume --keep --messages 300000",
        KEPT,
    ),
    throughput(
        "consume-keep-8",
        "consume and acknowledge, kept, 8 partitions",
        "consume --keep --partitions 8 --messages 300000",
        KEPT,
    ),
    in_series(
        throughput("consume-1", "consume, trimmed, 1 partition", "consume --messages 300000", TRIMMED),
        &[Series::Partitions, Series::Groups],
    ),
    throughput(
        "consume-unordered",
        "consume, 64 handlers at once in no order, 1 partition",
        "consume --concurrency unordered:64 --messages 300000",
        NO_TARGETS,
    ),
    throughput(
        "consume-layers",
        "consume, three layers around the handler, 1 partition (beside none)",
        "consume --layers 3 --messages 300000",
        &[ratio_at_least(Throughput, 0.95)],
    ),
    throughput(
        "consume-per-key",
        "consume, 64 handlers at once in the order of 1,000 keys, 1 partition",
        "consume --concurrency per-key:64 --keys 1000 --messages 300000",
        NO_TARGETS,
    ),
    in_series(
        throughput(
            "consume-8",
            "consume, trimmed, 8 partitions",
            "consume --partitions 8 --messages 300000",
            TRIMMED,
        ),
        &[Series::Partitions],
    ),
    throughput("delay", "schedule messages in bulk", "delay --messages 300000", SCHEDULED),
    throughput("delay-queue", "schedule tasks in bulk", "delay --queue --messages 300000", SCHEDULED),
    throughput(
        "retry",
        "fail once, come back, acknowledge",
        "retry --messages 60000",
        &[at_most(RedisCpu, 25.0)],
    ),
    latency(
        "e2e-1000",
        "e2e at 1,000/s",
        "e2e --rate 1000/s --seconds 5",
        &[ratio_at_most(P50, 1.3), ratio_at_most(P99, 1.5)],
    ),
    latency(
        "e2e-half",
        "e2e at half of the saturated rate",
        "e2e --rate 50% --seconds 5",
        &[at_most(P99, 10_000.0)],
    ),
    late("late", "lateness of delayed messages, 1,000/s", "delay --rate 1000/s --seconds 3"),
    late("late-queue", "lateness of tasks, 1,000/s", "delay --queue --rate 1000/s --seconds 3"),
    Entry {
        most_runs: 3,
        warm_up: false,
        optional: true,
        ..latency("takeover", "takeover after a kill", "takeover --lease 10000", NO_TARGETS)
    },
    memory(
        "memory-waiting",
        "waiting message",
        "memory --place waiting --messages 200000",
        &[ratio_at_most(Bytes, 1.10)],
    ),
    memory(
        "memory-parked",
        "parked retry",
        "memory --place parked --messages 200000",
        &[at_most(Bytes, 400.0)],
    ),
    memory("memory-delayed", "delayed message", "memory --place delayed --messages 200000", NO_TARGETS),
    memory("memory-task", "task of a delay queue", "memory --place task --messages 200000", NO_TARGETS),
    Entry {
        most_runs: 1,
        warm_up: false,
        ..compared(
            Section::Idle,
            "idle",
            "idle, 8 partitions",
            "idle --partitions 8 --settle 60 --seconds 60",
            &[at_most(IdleRequests, 0.6)],
        )
    },
    Entry {
        baseline: true,
        ..point(
            "consume-64",
            "64 partitions",
            "consume --partitions 64 --messages 300000",
            &[Series::Partitions],
        )
    },
    Entry {
        baseline: true,
        ..point(
            "consume-256",
            "256 partitions",
            "consume --partitions 256 --messages 300000",
            &[Series::Partitions],
        )
    },
    point("groups-4", "4 groups", "consume --groups 4 --messages 75000", &[Series::Groups]),
    point("groups-16", "16 groups", "consume --groups 16 --messages 20000", &[Series::Groups]),
    point("pending-100", "100 pending", "consume --pending 100 --messages 200000", &[Series::Pending]),
    point("pending-10000", "10,000 pending", "consume --pending 10000 --messages 200000", &[Series::Pending]),
    point(
        "pending-1000000",
        "1,000,000 pending",
        "consume --pending 1000000 --messages 200000",
        &[Series::Pending],
    ),
    point(
        "pending-other-100",
        "100 pending in another group",
        "consume --pending 100 --pending-in other --messages 200000",
        &[Series::PendingInOther],
    ),
    point(
        "pending-other-10000",
        "10,000 pending in another group",
        "consume --pending 10000 --pending-in other --messages 200000",
        &[Series::PendingInOther],
    ),
    point(
        "pending-other-1000000",
        "1,000,000 pending in another group",
        "consume --pending 1000000 --pending-in other --messages 200000",
        &[Series::PendingInOther],
    ),
    point("parked-100", "100 parked", "retry --parked 100 --messages 50000", &[Series::Parked]),
    point("parked-10000", "10,000 parked", "retry --parked 10000 --messages 50000", &[Series::Parked]),
    point("parked-1000000", "1,000,000 parked", "retry --parked 1000000 --messages 50000", &[Series::Parked]),
    point("delayed-100", "100 delayed", "delay --waiting 100 --messages 200000", &[Series::Delayed]),
    point("delayed-10000", "10,000 delayed", "delay --waiting 10000 --messages 200000", &[Series::Delayed]),
    point(
        "delayed-1000000",
        "1,000,000 delayed",
        "delay --waiting 1000000 --messages 200000",
        &[Series::Delayed],
    ),
    members("members-1", "1 member", "idle --partitions 16 --members 1 --settle 15 --seconds 30"),
    members("members-4", "4 members", "idle --partitions 16 --members 4 --settle 15 --seconds 30"),
    members("members-16", "16 members", "idle --partitions 16 --members 16 --settle 15 --seconds 30"),
];

const fn members(name: &'static str, title: &'static str, command: &'static str) -> Entry {
    Entry { most_runs: 1, ..point(name, title, command, &[Series::Members]) }
}

impl Entry {
    /// Whether it is measured with an append-only file: it is compared with the baseline, and it writes.
    pub(super) fn concerns_aof(&self) -> bool {
        self.baseline && matches!(self.section, Section::Throughput | Section::Latency | Section::Memory)
    }
}
