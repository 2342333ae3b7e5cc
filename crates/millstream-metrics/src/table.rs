//! All metrics: one constant each, and [`ALL`] of them.
//!
//! A counter of messages counts each occurrence, per message and group: a message that is retried twice and then
//! completed counts as delivered three times, failed and retried twice, and acked once.

use crate::metric::Kind::{Counter, Gauge, Histogram};
use crate::metric::Metric;
use crate::metric::MetricSource::{Events, Health, Server};

/// One partition of a topic, in one group.
const GROUP: &[&str] = &["topic", "partition", "group"];
/// One partition of a topic.
const PARTITION: &[&str] = &["topic", "partition"];
/// One topic, in one group.
const TOPIC_GROUP: &[&str] = &["topic", "group"];
/// One consumer, in one topic.
const CONSUMER: &[&str] = &["topic", "group", "consumer"];
/// One shard of a delay queue.
const SHARD: &[&str] = &["queue", "shard"];
/// One election. Locks have no label: their names are often made from data, and would be too many series.
const ELECTION: &[&str] = &["election"];
/// One name of idempotent calls.
const CALLS: &[&str] = &["calls"];
/// One worker of a delay queue.
const WORKER: &[&str] = &["queue", "worker"];

macro_rules! table {
    ($($name:ident = $kind:ident $from:ident $text:literal $labels:expr, $help:literal;)*) => {
        $(#[doc = $help] pub const $name: Metric = Metric::new($text, $kind, $from, $labels, $help);)*
        /// All metrics, in the order of this page.
        pub const ALL: &[Metric] = &[$($name),*];
    };
}

table! {
    // Producing.
    PRODUCED = Counter Events "millstream_produced_total" PARTITION, "Messages appended by this process.";
    DEDUPLICATED = Counter Events "millstream_deduplicated_total" &["topic"],
        "Messages that this process sent and that were stored already, under the same dedup id or unique id.";
    SCHEDULED = Counter Events "millstream_scheduled_total" &["topic"], "Delayed messages that this process scheduled.";
    PRODUCE_FAILED = Counter Events "millstream_produce_failures_total" &["topic", "kind"],
        "Messages whose append or schedule failed or was not confirmed, by the kind of error.";

    // The outbox. One for each process: of several relays the last one that measured counts.
    OUTBOX_OLDEST_SECONDS = Gauge Events "millstream_outbox_oldest_seconds" &[],
        "Age of the oldest row of the outbox that could be sent; 0 if there is none. The same in every process with a relay.";
    OUTBOX_BLOCKED_SECONDS = Gauge Events "millstream_outbox_blocked_seconds" &[],
        "Age of the oldest running transaction that holds back rows of the outbox; 0 if none does.";
    OUTBOX_DEAD = Gauge Events "millstream_outbox_dead" &[],
        "Rows of the outbox that were given up, counted up to 10,000.";

    // Consuming.
    DELIVERED = Counter Events "millstream_delivered_total" GROUP, "Messages read, for the first time or again.";
    RECLAIMED = Counter Events "millstream_reclaimed_total" GROUP,
        "Messages read that had been handed out before and were not settled: after a takeover, a restart or a lost reply.";
    ACKED = Counter Events "millstream_acked_total" GROUP, "Messages that a handler completed.";
    FAILED = Counter Events "millstream_failed_total" &["topic", "partition", "group", "kind"],
        "Attempts that failed, by kind: error, panic, timeout, rejected, undecodable, malformed, crashed.";
    RETRIED = Counter Events "millstream_retried_total" GROUP, "Failed attempts after which the message is retried.";
    DEAD_TOTAL = Counter Events "millstream_dead_total" &["topic", "partition", "group", "reason"],
        "Messages given up and stored as dead letters, by reason.";
    DISCARDED = Counter Events "millstream_discarded_total" GROUP,
        "Messages dropped: given up, by the dead-letter policy, or over a limit that drops.";
    SNOOZED = Counter Events "millstream_snoozed_total" GROUP,
        "Messages that a handler delayed without using an attempt.";
    DUPLICATES = Counter Events "millstream_duplicates_total" GROUP,
        "Messages acknowledged without the handler, because their operation was done already.";
    CHECKED = Counter Events "millstream_checked_total" GROUP,
        "Messages acknowledged without the handler, because the check before a redelivery found that they were handled.";
    CANCELLED = Counter Events "millstream_cancelled_total" GROUP,
        "Messages that were cancelled from outside: none of their handlers runs.";
    MARKERS_LOST = Counter Events "millstream_markers_lost_total" GROUP,
        "Operations that another message or instance began while their handler ran: their effect may have happened twice.";
    CALL_MARKERS_LOST = Counter Events "millstream_call_markers_lost_total" CALLS,
        "Idempotent calls whose work another call began while it ran: its effect may have happened twice.";
    LATE_ACKS = Counter Events "millstream_late_acks_total" GROUP,
        "Settlements of messages that were no longer pending: settled before, by another owner, or deleted.";
    GHOSTS = Counter Events "millstream_ghosts_total" GROUP,
        "Pending entries whose bodies were deleted: their messages can never be handled. A pack is one entry.";
    LOST = Counter Events "millstream_lost_total" GROUP,
        "Messages that retention dropped before the group had settled them: it never gets them. Counted by the consumer that trims, for every group.";
    LETTERS = Counter Events "millstream_dead_letters_handled_total"
        &["topic", "partition", "group", "operation", "result"],
        "Dead letters that this process tried to replay, purge, export or import, by result: `done`, `passed_over` (deleted, claimed or imported before), `refused`.";
    LETTERS_DROPPED = Counter Events "millstream_dead_letters_dropped_total" &["topic", "partition", "group", "reason"],
        "Dead letters that this process dropped under the retention of dead letters, by reason: `age`, `length`.";
    CRASHED = Counter Events "millstream_crashed_total" GROUP,
        "Messages given up because processes ended while handling them.";

    // Ownership.
    ASSIGNED = Counter Events "millstream_partition_assignments_total" GROUP, "Partitions assigned to this process.";
    REVOKED = Counter Events "millstream_partition_revocations_total" GROUP,
        "Partitions whose lease this process released.";
    LEASES_LOST = Counter Events "millstream_leases_lost_total" GROUP,
        "Leases that expired or were taken over: messages in flight are handled again.";
    REBALANCES = Counter Events "millstream_rebalances_total" &["topic", "group"],
        "Changes of the assignment of a consumer of this process.";
    MEMBERS_FENCED = Counter Events "millstream_members_fenced_total" &["topic", "group"],
        "Consumers that ended because another process has their member id.";
    GROUPS_RESTORED = Counter Events "millstream_groups_restored_total" GROUP,
        "Times that a group was missing on a partition and was created again.";
    TAILS_LOST = Counter Events "millstream_tails_lost_total" GROUP,
        "Times that a fail-over or restart lost the newest entries of a log that had been read.";

    // Upkeep.
    PROMOTED = Counter Events "millstream_promoted_total" PARTITION,
        "Retries and delayed messages that became due and were moved into their log.";
    ORPHANS = Counter Events "millstream_orphans_total" PARTITION,
        "Retries and delayed messages without a body when they became due.";
    TRIMMED = Counter Events "millstream_trimmed_total" PARTITION, "Messages dropped from the log, lost ones included.";
    FIRED = Counter Events "millstream_fired_total" &["topic", "queue"],
        "Messages and tasks scheduled by recurring rules; either label is empty.";
    MISSED = Counter Events "millstream_missed_total" &["topic", "queue"],
        "Times of recurring rules that were skipped because no process ran; either label is empty.";

    // Delay queues.
    TASKS_CLAIMED = Counter Events "millstream_task_claims_total" SHARD, "Tasks claimed, for the first time or again.";
    TASKS_RECLAIMED = Counter Events "millstream_task_reclaims_total" SHARD,
        "Tasks claimed after the claim of another worker had expired.";
    TASKS_CRASHED = Counter Events "millstream_tasks_crashed_total" SHARD,
        "Tasks given up because their claims expired too often.";
    TASKS_WORKED = Counter Events "millstream_tasks_worked_total" &["queue", "shard", "result"],
        "Tasks handled, by result: acked, retried, dead, discarded, snoozed.";
    TASKS_LATE_ACKS = Counter Events "millstream_tasks_late_acks_total" SHARD,
        "Settlements of tasks whose claim had expired and that another worker had claimed.";
    TASK_CLAIMS_LOST = Counter Events "millstream_task_claims_lost_total" SHARD,
        "Claims that expired while tasks were handled.";
    DEAD_TASKS_DROPPED = Counter Events "millstream_dead_tasks_dropped_total" &["queue", "shard", "reason"],
        "Dead tasks that this process dropped under the retention of dead tasks, by reason: `age`, `length`.";

    // Locks and leaders.
    LOCKS_ACQUIRED = Counter Events "millstream_locks_acquired_total" &[],
        "Locks that this process was granted, without those of elections.";
    LOCKS_ENDED = Counter Events "millstream_locks_ended_total" &["end"],
        "Locks that this process does not hold any more, by end: `released`, or lost: `refused` at a renewal, `expired` without one, `gone` at the release.";
    LOCKS_BUSY = Counter Events "millstream_locks_busy_total" &[],
        "Attempts of this process that ended without the lock, because it was not free in time.";
    TERMS_BEGUN = Counter Events "millstream_leader_terms_begun_total" ELECTION,
        "Times that this process became the leader of an election.";
    TERMS_ENDED = Counter Events "millstream_leader_terms_ended_total" &["election", "end"],
        "Times that this process ceased to lead, by end: `released` if it resigned, or lost: `refused`, `expired`, `gone`.";

    // Loops.
    ERRORS = Counter Events "millstream_errors_total" &["operation", "kind"],
        "Errors of loops, which then retry, by operation and kind of error.";
    RECOVERIES = Counter Events "millstream_recoveries_total" &["operation"], "Loops that work again after errors.";
    PANICS = Counter Events "millstream_panics_total" &["code"],
        "Panics of user code that were caught, by kind of code. An observer counts the panics of other observers, not its own.";
    SAMPLES = Counter Events "millstream_samples_total" &["result"],
        "Rounds of the sampler, which reads the gauges of the server, by result: ok, partial (something cannot be read, see `millstream_unreadable`) or failed.";
    UNLABELLED = Counter Events "millstream_series_over_limit_total" &["metric"],
        "Label sets over the limit: their counts and times are in the series whose labels are all `other`.";

    // Times and sizes.
    HANDLER_SECONDS = Histogram Events "millstream_handler_seconds" &["topic", "group", "result"],
        "Duration of handlers, by result.";
    QUEUE_WAIT_SECONDS = Histogram Events "millstream_queue_wait_seconds" &["topic", "group"],
        "Time from when a message was readable (by its id) until its first attempt began.";
    END_TO_END_SECONDS = Histogram Events "millstream_end_to_end_seconds" &["topic", "group"],
        "Time from when a message was readable (by its id) until its last attempt ended: done, dead or discarded.";
    SETTLE_SECONDS = Histogram Events "millstream_settle_seconds" &["topic", "group"],
        "Time until the server confirmed the settlement of a batch.";
    DELAY_ERROR_SECONDS = Histogram Events "millstream_delay_error_seconds" &["topic", "queue"],
        "Time from the due time of a message or task until it became readable or was claimed; either label is empty. For messages that become readable together, that of the first.";
    FETCH_BATCH = Histogram Events "millstream_fetch_batch_messages" &["topic", "group"],
        "Messages returned by one read.";
    SETTLE_BATCH = Histogram Events "millstream_settle_batch_messages" &["topic", "group"],
        "Messages settled by one request.";
    LOCK_WAIT_SECONDS = Histogram Events "millstream_lock_wait_seconds" &[],
        "Time from the request for a lock until it was granted, without those of elections.";
    LOCK_HELD_SECONDS = Histogram Events "millstream_lock_held_seconds" &[],
        "Time for which locks were held until they were released or lost, without those of elections.";
    TASK_SECONDS = Histogram Events "millstream_task_handler_seconds" &["queue", "result"],
        "Duration of handlers of tasks, by result.";

    // The consumers of this process. Those with the same labels are added up; ready and live take the worst value.
    IN_FLIGHT = Gauge Health "millstream_in_flight" CONSUMER,
        "Messages that a consumer has read and not settled.";
    POISON_CANDIDATES = Gauge Health "millstream_poison_candidates" CONSUMER,
        "Messages in flight that were pending at two or more unexplained ends of owners in a row.";
    LIMIT_WAITING = Gauge Health "millstream_limit_waiting" &["limit", "group", "consumer"],
        "Messages of a consumer that wait for a limit.";
    HANDLERS_RUNNING = Gauge Health "millstream_handlers_running" &["group", "consumer"],
        "Calls of handlers that have not ended.";
    PARTITIONS_OWNED = Gauge Health "millstream_partitions_owned" CONSUMER,
        "Partitions that a consumer owns.";
    PARTITIONS_ASSIGNED = Gauge Health "millstream_partitions_assigned" CONSUMER,
        "Partitions assigned to a consumer; not a number before the first assignment.";
    CONSUMER_READY = Gauge Health "millstream_consumer_ready" CONSUMER,
        "1 if a consumer is an active member of its group, else 0.";
    CONSUMER_LIVE = Gauge Health "millstream_consumer_live" CONSUMER,
        "0 if a consumer has ended by itself or one of its loops hangs, else 1.";
    LOOP_LAST_PROGRESS = Gauge Health "millstream_loop_last_progress_seconds"
        &["operation", "topic", "partition", "group", "consumer"],
        "Time since the last iteration of a loop, successful or not. An idle loop does not iterate. Loops of producers, promoters and consumers of dead letters have an empty consumer.";
    LOOPS_FAILING = Gauge Health "millstream_loops_failing" &["operation", "topic", "group", "consumer"],
        "Loops that fail and retry.";
    LOOPS_STALLED = Gauge Health "millstream_loops_stalled" &["operation", "topic", "group", "consumer"],
        "Loops that are more than a minute overdue.";

    // The workers of delay queues of this process.
    TASKS_RUNNING = Gauge Health "millstream_tasks_running" WORKER, "Tasks that a worker has claimed.";
    QUEUE_LIMIT_WAITING = Gauge Health "millstream_queue_limit_waiting" &["limit", "queue", "worker"],
        "Claimed tasks of a worker that wait for units or tokens of a limit, or for its breaker.";
    WORKER_READY = Gauge Health "millstream_worker_ready" WORKER, "1 if a worker of a delay queue is ready, else 0.";
    WORKER_LIVE = Gauge Health "millstream_worker_live" WORKER,
        "0 if a worker has ended by itself or one of its loops hangs, else 1.";
    WORKER_LOOP_LAST_PROGRESS = Gauge Health "millstream_worker_loop_last_progress_seconds"
        &["operation", "queue", "shard", "worker"],
        "Time since the last iteration of a loop of a worker, successful or not. An idle loop does not iterate.";
    WORKER_LOOPS_FAILING = Gauge Health "millstream_worker_loops_failing" &["operation", "queue", "worker"],
        "Loops of a worker that fail and retry.";
    WORKER_LOOPS_STALLED = Gauge Health "millstream_worker_loops_stalled" &["operation", "queue", "worker"],
        "Loops of a worker that are more than a minute overdue.";

    // The server.
    LENGTH = Gauge Server "millstream_length" PARTITION, "Messages in the log.";
    DELAYED = Gauge Server "millstream_delayed" PARTITION, "Delayed messages that wait, due ones included.";
    DELAYED_OVERDUE = Gauge Server "millstream_delayed_overdue" PARTITION,
        "Delayed messages that are due and were not moved to the log yet.";
    LAG = Gauge Server "millstream_lag" GROUP,
        "Messages that were never handed out to the group, exactly; not a number if it is unknown.";
    LAG_UNKNOWN = Gauge Server "millstream_lag_unknown" GROUP, "1 if the lag is unknown, else 0.";
    READY = Gauge Server "millstream_ready" GROUP,
        "Messages that could be handed out now: the lag and the retries in the retry log; not a number if the lag is unknown.";
    PENDING = Gauge Server "millstream_pending" GROUP, "Messages that were handed out and are not settled.";
    RETRYING = Gauge Server "millstream_retrying" GROUP,
        "Messages that wait for a retry, due ones that were not handed out included.";
    DEAD = Gauge Server "millstream_dead_letters" GROUP, "Dead letters.";
    OLDEST_AGE_SECONDS = Gauge Server "millstream_oldest_age_seconds" GROUP,
        "Age of the oldest message that the group has to handle now: unread, pending, or due for a retry, since its first entry; 0 if there is none.";
    MEMBERS = Gauge Server "millstream_members" TOPIC_GROUP, "Live members of the group.";
    GROUP_PAUSED = Gauge Server "millstream_group_paused" TOPIC_GROUP,
        "1 if the whole group is paused, else 0. Partitions that a consumer paused by itself do not count.";
    BACKLOG = Gauge Server "millstream_backlog" TOPIC_GROUP,
        "All work of the group, now or later: lag, pending, retrying, and delayed messages that are due. Always a number: an unknown lag counts as far as it is certain; if the group is missing, the whole log counts.";
    PINNED_MESSAGES = Gauge Server "millstream_pinned_messages" TOPIC_GROUP,
        "Messages that stay in the log only for this group, which has settled the least: at least this many. Sampled once a minute.";
    PINNED_BYTES = Gauge Server "millstream_pinned_bytes" TOPIC_GROUP,
        "Approximate memory of the server that these take, in bytes.";
    TASKS_WAITING = Gauge Server "millstream_tasks_waiting" SHARD, "Tasks that wait, due ones included.";
    TASKS_OVERDUE = Gauge Server "millstream_tasks_overdue" SHARD, "Tasks that are due and were not claimed yet.";
    TASKS_HELD = Gauge Server "millstream_tasks_claimed" SHARD, "Claimed tasks.";
    TASKS_EXPIRED = Gauge Server "millstream_tasks_expired" SHARD,
        "Claimed tasks whose claim has expired.";
    TASKS_DEAD = Gauge Server "millstream_tasks_dead" SHARD, "Dead tasks.";
    BREAKERS_OPEN = Gauge Server "millstream_breakers_open" &[],
        "Keys of limits whose breaker is open, or of which it is not known whether it can be closed. Those that rules hold closed do not count, nor those that no message has tried for five minutes.";
    LEFT_OUT = Gauge Server "millstream_left_out" &["series"],
        "Groups and topics without series of their partitions (`partition`), groups without any (`group`), and delay queues (`shard`), since there are more than `max_series`: those with the least work.";
    UNREADABLE = Gauge Server "millstream_unreadable" &["topic", "queue"],
        "Parts of a topic or delay queue that cannot be read: damaged, lost, or of another type. Both labels are empty for the lists of all of them.";
    SAMPLE_AGE_SECONDS = Gauge Server "millstream_sample_age_seconds" &[],
        "Time since the gauges of the server were last read, as far as they can be read.";
}
