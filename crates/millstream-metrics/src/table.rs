//! All metrics: one constant each, and [`ALL`] of them.
//!
//! A counter of messages counts once for each occurrence, per message and group: a message that is retried twice and
//! then done counts as delivered three times, failed and retried twice, and acked once.

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
    PRODUCED = Counter Events "millstream_produced_total" &["topic"], "Messages appended by this process.";
    SCHEDULED = Counter Events "millstream_scheduled_total" &["topic"], "Messages that this process sent for later.";
    PRODUCE_FAILED = Counter Events "millstream_produce_failures_total" &["topic", "kind"],
        "Messages that could not be appended or scheduled, or of which that is not known, by the kind of error.";

    // Consuming.
    DELIVERED = Counter Events "millstream_delivered_total" GROUP, "Messages read, for the first time or again.";
    RECLAIMED = Counter Events "millstream_reclaimed_total" GROUP,
        "Messages read that had been handed out before and were not settled: after a takeover, a restart or a lost reply.";
    ACKED = Counter Events "millstream_acked_total" GROUP, "Messages that a handler has done.";
    FAILED = Counter Events "millstream_failed_total" &["topic", "partition", "group", "kind"],
        "Attempts that failed, by how: error, panic, timeout, rejected, undecodable, malformed, crashed.";
    RETRIED = Counter Events "millstream_retried_total" GROUP, "Failed attempts after which the message comes back.";
    DEAD_TOTAL = Counter Events "millstream_dead_total" &["topic", "partition", "group", "reason"],
        "Messages given up and kept as dead letters, by reason.";
    DISCARDED = Counter Events "millstream_discarded_total" GROUP,
        "Messages given up and dropped by the dead-letter policy.";
    SNOOZED = Counter Events "millstream_snoozed_total" GROUP,
        "Messages that a handler put off, without using an attempt.";
    LATE_ACKS = Counter Events "millstream_late_acks_total" GROUP,
        "Settlements of messages that were not pending any more: settled before, by another owner, or deleted.";
    GHOSTS = Counter Events "millstream_ghosts_total" GROUP,
        "Pending messages whose bodies somebody deleted: they can never be handled.";
    LOST = Counter Events "millstream_lost_total" GROUP,
        "Messages that retention dropped before the group had settled them: it never gets them. Told by the consumer that trims, for every group.";
    LETTERS = Counter Events "millstream_dead_letters_handled_total"
        &["topic", "partition", "group", "operation", "result"],
        "Dead letters that this process was to replay, purge, export or import, by what came of it: `done`, `passed_over` (gone, claimed or put back before), `refused`.";
    CRASHED = Counter Events "millstream_crashed_total" GROUP,
        "Messages given up because processes died over them.";

    // Ownership.
    ASSIGNED = Counter Events "millstream_partitions_assigned_total" GROUP, "Times that this process got a partition.";
    REVOKED = Counter Events "millstream_partitions_revoked_total" GROUP,
        "Times that this process gave a partition back in an orderly way.";
    LEASES_LOST = Counter Events "millstream_leases_lost_total" GROUP,
        "Leases that ran out or were taken: what was in flight is handled again.";
    REBALANCES = Counter Events "millstream_rebalances_total" &["topic", "group"],
        "Changes of what a consumer of this process should own.";
    MEMBERS_FENCED = Counter Events "millstream_members_fenced_total" &["topic", "group"],
        "Consumers that ended because another process has their member id.";
    GROUPS_RESTORED = Counter Events "millstream_groups_restored_total" GROUP,
        "Times that a group was gone from a partition and was created again.";
    TAILS_LOST = Counter Events "millstream_tails_lost_total" GROUP,
        "Times that the server had lost the end of what it had told, in a fail-over or restart.";

    // Upkeep.
    PROMOTED = Counter Events "millstream_promoted_total" PARTITION,
        "Retries and delayed messages that became due and readable.";
    ORPHANS = Counter Events "millstream_orphans_total" PARTITION,
        "Retries and delayed messages that had lost their body when they became due.";
    TRIMMED = Counter Events "millstream_trimmed_total" PARTITION, "Messages dropped from the log, lost ones included.";
    FIRED = Counter Events "millstream_fired_total" &["topic", "queue"],
        "Messages and tasks scheduled by what recurs; either label is empty.";
    MISSED = Counter Events "millstream_missed_total" &["topic", "queue"],
        "Times of what recurs that were passed over because nobody was there; either label is empty.";

    // Delay queues.
    TASKS_CLAIMED = Counter Events "millstream_tasks_claimed_total" SHARD, "Tasks claimed, for the first time or again.";
    TASKS_RECLAIMED = Counter Events "millstream_tasks_reclaimed_total" SHARD,
        "Tasks claimed that workers had claimed before who died or stood still.";
    TASKS_CRASHED = Counter Events "millstream_tasks_crashed_total" SHARD,
        "Tasks given up because their claims ran out too often.";
    TASKS_WORKED = Counter Events "millstream_tasks_worked_total" &["queue", "shard", "result"],
        "Tasks worked on, by how it ended: acked, retried, dead, discarded, snoozed.";
    TASKS_LATE_ACKS = Counter Events "millstream_tasks_late_acks_total" SHARD,
        "Settlements of tasks whose claim had run out and been given to another worker.";
    TASK_CLAIMS_LOST = Counter Events "millstream_task_claims_lost_total" SHARD,
        "Claims that ran out while tasks were worked on.";

    // Loops.
    ERRORS = Counter Events "millstream_errors_total" &["operation", "kind"],
        "Errors that loops met and tried again after, by what was tried and the kind of error.";
    RECOVERIES = Counter Events "millstream_recoveries_total" &["operation"], "Loops that work again after errors.";
    PANICS = Counter Events "millstream_panics_total" &["code"],
        "Panics of user code that were caught, by which code. An observer counts those of others beside it, not its own.";
    SAMPLES = Counter Events "millstream_samples_total" &["result"],
        "Rounds in which the server was asked for its gauges: ok or failed.";
    UNLABELLED = Counter Events "millstream_series_over_limit_total" &["metric"],
        "Label sets over the limit: their counts and times are in the series whose labels are all `other`.";

    // Times and sizes.
    HANDLER_SECONDS = Histogram Events "millstream_handler_seconds" &["topic", "group", "result"],
        "How long handlers took, by how it ended.";
    QUEUE_WAIT_SECONDS = Histogram Events "millstream_queue_wait_seconds" &["topic", "group"],
        "From when a message was readable (by its id) until its first attempt began.";
    END_TO_END_SECONDS = Histogram Events "millstream_end_to_end_seconds" &["topic", "group"],
        "From when a message was readable (by its id) until its last attempt ended: done, dead or discarded.";
    SETTLE_SECONDS = Histogram Events "millstream_settle_seconds" &["topic", "group"],
        "How long the server took to answer that a batch is settled.";
    DELAY_ERROR_SECONDS = Histogram Events "millstream_delay_error_seconds" &["topic", "queue"],
        "How long after its due time what waited became readable, or was claimed; either label is empty. Of what becomes readable together, the first.";
    FETCH_BATCH = Histogram Events "millstream_fetch_batch_messages" &["topic", "group"],
        "How many messages one read gave.";
    SETTLE_BATCH = Histogram Events "millstream_settle_batch_messages" &["topic", "group"],
        "How many messages were settled by one request.";
    TASK_SECONDS = Histogram Events "millstream_task_handler_seconds" &["queue", "result"],
        "How long handlers of tasks took, by how it ended.";

    // The consumers of this process. Those with the same labels are added up; the worst of them says whether it is well.
    IN_FLIGHT = Gauge Health "millstream_in_flight" CONSUMER,
        "Messages that a consumer has read and not settled.";
    POISON_CANDIDATES = Gauge Health "millstream_poison_candidates" CONSUMER,
        "Messages in flight that were pending at two or more unexplained ends of owners in a row.";
    HANDLERS_RUNNING = Gauge Health "millstream_handlers_running" &["group", "consumer"],
        "Calls of handlers that have not ended.";
    PARTITIONS_OWNED = Gauge Health "millstream_partitions_owned" CONSUMER,
        "Partitions that a consumer works on.";
    PARTITIONS_ASSIGNED = Gauge Health "millstream_partitions_assigned" CONSUMER,
        "Partitions that a consumer should work on; not a number while nobody has said.";
    CONSUMER_READY = Gauge Health "millstream_consumer_ready" CONSUMER,
        "1 if a consumer takes part in its group, else 0.";
    CONSUMER_LIVE = Gauge Health "millstream_consumer_live" CONSUMER,
        "0 if a consumer has ended by itself or one of its loops hangs, else 1.";
    LOOP_LAST_PROGRESS = Gauge Health "millstream_loop_last_progress_seconds"
        &["operation", "topic", "partition", "group", "consumer"],
        "How long ago a loop came round last, well or not. A loop that has nothing to do does not come round. Loops of producers, promoters and consumers of dead letters have an empty consumer.";
    LOOPS_FAILING = Gauge Health "millstream_loops_failing" &["operation", "topic", "group", "consumer"],
        "Loops that meet errors and try again.";
    LOOPS_STALLED = Gauge Health "millstream_loops_stalled" &["operation", "topic", "group", "consumer"],
        "Loops that are more than a minute later than they should be.";

    // The workers of delay queues of this process.
    TASKS_RUNNING = Gauge Health "millstream_tasks_running" WORKER, "Tasks in the hands of a worker.";
    WORKER_READY = Gauge Health "millstream_worker_ready" WORKER, "1 if a worker of a delay queue works, else 0.";
    WORKER_LIVE = Gauge Health "millstream_worker_live" WORKER,
        "0 if a worker has ended by itself or one of its loops hangs, else 1.";
    WORKER_LOOP_LAST_PROGRESS = Gauge Health "millstream_worker_loop_last_progress_seconds"
        &["operation", "queue", "shard", "worker"],
        "How long ago a loop of a worker came round last, well or not. A loop that has nothing to do does not come round.";
    WORKER_LOOPS_FAILING = Gauge Health "millstream_worker_loops_failing" &["operation", "queue", "worker"],
        "Loops of a worker that meet errors and try again.";
    WORKER_LOOPS_STALLED = Gauge Health "millstream_worker_loops_stalled" &["operation", "queue", "worker"],
        "Loops of a worker that are more than a minute later than they should be.";

    // The server.
    LENGTH = Gauge Server "millstream_length" PARTITION, "Messages in the log.";
    DELAYED = Gauge Server "millstream_delayed" PARTITION, "Delayed messages that wait, due ones included.";
    DELAYED_OVERDUE = Gauge Server "millstream_delayed_overdue" PARTITION,
        "Delayed messages that are due and were not moved to the log yet.";
    LAG = Gauge Server "millstream_lag" GROUP,
        "Messages that were never handed out to the group, exactly; not a number where the server cannot say.";
    LAG_UNKNOWN = Gauge Server "millstream_lag_unknown" GROUP, "1 if the server cannot say the lag, else 0.";
    READY = Gauge Server "millstream_ready" GROUP,
        "Messages that could be handed out now: the lag and the retries in the retry log; not a number where the lag is unknown.";
    PENDING = Gauge Server "millstream_pending" GROUP, "Messages that were handed out and are not settled.";
    RETRYING = Gauge Server "millstream_retrying" GROUP,
        "Messages that wait for a retry, due ones that were not handed out included.";
    DEAD = Gauge Server "millstream_dead" GROUP, "Dead letters.";
    OLDEST_AGE_SECONDS = Gauge Server "millstream_oldest_age_seconds" GROUP,
        "Age of the oldest message in the log that the group has not settled and that waits for no retry; 0 if there is none.";
    MEMBERS = Gauge Server "millstream_members" TOPIC_GROUP, "Consumers that live in the group.";
    BACKLOG = Gauge Server "millstream_backlog" TOPIC_GROUP,
        "All that is to be done, now or later: lag, pending, retrying, and delayed messages that are due. Always a number: of a lag that is unknown, what was found for certain; where the group is missing, the whole log.";
    PINNED_ENTRIES = Gauge Server "millstream_pinned_entries" TOPIC_GROUP,
        "Messages that stay in the log for this group alone, which has settled the least: at least so many. Asked for once a minute.";
    PINNED_BYTES = Gauge Server "millstream_pinned_bytes" TOPIC_GROUP,
        "About how many bytes of the server's memory these take.";
    TASKS_WAITING = Gauge Server "millstream_tasks_waiting" SHARD, "Tasks that wait, due ones included.";
    TASKS_OVERDUE = Gauge Server "millstream_tasks_overdue" SHARD, "Tasks that are due and were not claimed yet.";
    TASKS_HELD = Gauge Server "millstream_tasks_claimed" SHARD, "Tasks in the hands of workers.";
    TASKS_EXPIRED = Gauge Server "millstream_tasks_expired" SHARD,
        "Tasks in the hands of workers whose claim has run out.";
    TASKS_DEAD = Gauge Server "millstream_tasks_dead" SHARD, "Dead tasks.";
    SAMPLE_AGE_SECONDS = Gauge Server "millstream_sample_age_seconds" &[],
        "How long ago the server was asked for its gauges with success.";
}
