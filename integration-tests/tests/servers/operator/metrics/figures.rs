//! Figures that a scrape must have, and go on having; and where the value of each metric is held against the truth.

use super::*;
use millstream::metrics::table;

/// A name without its prefix, labels, and the value: the sum over all series with these labels.
pub(super) type Figure<'a> = (&'a str, &'a [(&'a str, &'a str)], f64);

impl Fixture {
    /// Waits until all of these are so, and sees that they stay so for two more samples.
    pub(super) async fn sees(&self, what: &str, figures: &[Figure<'_>]) -> Scrape {
        let wrong = |scrape: &Scrape| -> Vec<String> {
            let of = |(name, labels, expected): &Figure<'_>| {
                let found = scrape.sum(&format!("millstream_{name}"), labels);
                (found != Some(*expected)).then(|| format!("{name} {labels:?}: {found:?}, not {expected}"))
            };
            figures.iter().filter_map(of).collect()
        };
        let rounds =
            |scrape: &Scrape| scrape.sum("millstream_samples_total", &[("result", "ok")]).unwrap_or_default();
        let deadline = tokio::time::Instant::now() + HANG;
        let found = loop {
            let scrape = self.scrape().await;
            let wrong = wrong(&scrape);
            if wrong.is_empty() {
                break scrape;
            }
            assert!(tokio::time::Instant::now() < deadline, "{what}: {wrong:#?}\n{scrape}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let until = rounds(&found) + 2.0;
        let later = self.until("two more samples", |scrape| rounds(scrape) >= until).await;
        assert_eq!(wrong(&later), Vec::<String>::new(), "{what}: it was so, and is not any more\n{later}");
        later
    }
}

impl Fixture {
    /// Waits for a sample that was begun after this call.
    pub(super) async fn samples_anew(&self) {
        let rounds =
            |scrape: &Scrape| scrape.sum("millstream_samples_total", &[("result", "ok")]).unwrap_or_default();
        // One may be under way.
        let until = rounds(&self.scrape().await) + 2.0;
        self.until("a new sample", |scrape| rounds(scrape) >= until).await;
    }
}

/// Where the value of each metric is held against what a script did: the file, and a function in it.
const HELD: &[(&str, &str, &str)] = &[
    ("produced_total", "", "a_scripted_run"),
    ("scheduled_total", "", "a_scripted_run"),
    ("deduplicated_total", "once", "sends_that_are_not_stored_again_are_counted"),
    ("produce_failures_total", "letters", "sends_that_fail_are_counted"),
    ("delivered_total", "", "a_scripted_run"),
    ("reclaimed_total", "hands", "what_is_in_hand"),
    ("acked_total", "", "a_scripted_run"),
    ("failed_total", "", "a_scripted_run"),
    ("retried_total", "", "a_scripted_run"),
    ("dead_total", "", "a_scripted_run"),
    ("discarded_total", "letters", "what_is_done_with_dead_letters_is_counted"),
    ("snoozed_total", "", "a_scripted_run"),
    ("duplicates_total", "once", "messages_whose_operation_is_done_are_counted"),
    ("checked_total", "once", "messages_that_a_check_finds_done_are_counted"),
    ("cancelled_total", "once", "messages_that_are_cancelled_are_counted"),
    ("markers_lost_total", "once", "markers_that_are_lost_are_counted"),
    ("call_markers_lost_total", "once", "calls_whose_markers_are_lost_are_counted"),
    ("late_acks_total", "", "an_acknowledgement_that_comes_late_is_counted"),
    ("ghosts_total", "", "a_planted_ghost_is_counted"),
    ("lost_total", "loss", "what_is_lost_and_who_keeps_what_are_counted"),
    ("dead_letters_dropped_total", "letters", "dead_letters_that_retention_drops_are_counted"),
    ("dead_letters_handled_total", "letters", "what_is_done_with_dead_letters_is_counted"),
    ("crashed_total", "owners", "a_message_over_which_processes_die_is_counted"),
    ("partition_assignments_total", "owners", "leases_that_run_out_are_counted"),
    ("partition_revocations_total", "", "rest"),
    ("leases_lost_total", "owners", "leases_that_run_out_are_counted"),
    ("rebalances_total", "owners", "who_comes_and_is_fenced_is_counted"),
    ("members_fenced_total", "owners", "who_comes_and_is_fenced_is_counted"),
    ("groups_restored_total", "owners", "what_a_server_loses_is_counted"),
    ("tails_lost_total", "owners", "what_a_server_loses_is_counted"),
    ("promoted_total", "", "a_scripted_run"),
    ("orphans_total", "queues", "what_has_lost_its_body_is_counted"),
    ("trimmed_total", "", "a_scripted_run"),
    ("fired_total", "queues", "what_recurs_is_counted"),
    ("missed_total", "queues", "what_recurs_is_counted"),
    ("task_claims_total", "queues", "tasks_are_counted"),
    ("task_reclaims_total", "queues", "claims_that_run_out_are_counted"),
    ("tasks_crashed_total", "queues", "a_task_over_which_processes_die_is_counted"),
    ("tasks_worked_total", "queues", "tasks_are_counted"),
    ("dead_tasks_dropped_total", "queues", "dead_tasks_that_retention_drops_are_counted"),
    ("tasks_late_acks_total", "queues", "claims_that_run_out_are_counted"),
    ("task_claims_lost_total", "queues", "claims_that_run_out_are_counted"),
    ("locks_acquired_total", "locks", "locks_are_counted_by_their_ends"),
    ("locks_ended_total", "locks", "locks_are_counted_by_their_ends"),
    ("locks_busy_total", "locks", "locks_are_counted_by_their_ends"),
    ("lock_wait_seconds", "locks", "locks_are_counted_by_their_ends"),
    ("lock_held_seconds", "locks", "locks_are_counted_by_their_ends"),
    ("leader_terms_begun_total", "locks", "terms_of_leaders_are_counted"),
    ("leader_terms_ended_total", "locks", "terms_of_leaders_are_counted"),
    ("outbox_oldest_seconds", "outbox", "what_an_outbox_cannot_send_is_measured"),
    ("outbox_blocked_seconds", "outbox", "what_an_outbox_cannot_send_is_measured"),
    ("outbox_dead", "outbox", "what_an_outbox_cannot_send_is_measured"),
    ("panics_total", "owners", "panics_of_user_code_are_counted"),
    ("errors_total", "sampled", "troubles_are_counted"),
    ("recoveries_total", "sampled", "troubles_are_counted"),
    ("samples_total", "sampled", "troubles_are_counted"),
    ("series_over_limit_total", "sampled", "what_is_over_the_limit_is_counted"),
    ("handler_seconds", "", "a_scripted_run"),
    ("queue_wait_seconds", "", "a_scripted_run"),
    ("end_to_end_seconds", "", "a_scripted_run"),
    ("settle_seconds", "", "times"),
    ("delay_error_seconds", "", "times"),
    ("fetch_batch_messages", "", "a_scripted_run"),
    ("settle_batch_messages", "", "a_scripted_run"),
    ("task_handler_seconds", "queues", "tasks_are_counted"),
    ("in_flight", "hands", "what_is_in_hand"),
    ("poison_candidates", "owners", "poison_candidates_are_counted"),
    ("handlers_running", "hands", "what_is_in_hand"),
    ("partitions_owned", "", "a_scripted_run"),
    ("partitions_assigned", "", "a_scripted_run"),
    ("consumer_ready", "owners", "leases_that_run_out_are_counted"),
    ("consumer_live", "owners", "who_comes_and_is_fenced_is_counted"),
    ("loop_last_progress_seconds", "sampled", "loops_say_how_they_are"),
    ("loops_failing", "sampled", "loops_say_how_they_are"),
    ("loops_stalled", "", "a_scripted_run"),
    ("tasks_running", "queues", "tasks_are_counted"),
    ("queue_limit_waiting", "queues", "tasks_that_wait_for_a_limit_are_counted"),
    ("worker_ready", "queues", "tasks_are_counted"),
    ("worker_live", "queues", "tasks_are_counted"),
    ("worker_loop_last_progress_seconds", "sampled", "loops_say_how_they_are"),
    ("worker_loops_failing", "sampled", "loops_say_how_they_are"),
    ("worker_loops_stalled", "sampled", "loops_say_how_they_are"),
    ("limit_waiting", "hands", "what_waits_for_a_limit_is_counted"),
    ("breakers_open", "hands", "what_waits_for_a_limit_is_counted"),
    ("length", "loss", "what_is_lost_and_who_keeps_what_are_counted"),
    ("delayed", "", "a_scripted_run"),
    ("delayed_overdue", "hands", "what_waits_for_nobody_is_counted"),
    ("lag", "", "rest"),
    ("lag_unknown", "sampled", "a_lag_that_is_not_known_is_no_number"),
    ("ready", "hands", "what_waits_for_nobody_is_counted"),
    ("pending", "hands", "what_is_in_hand"),
    ("retrying", "hands", "what_waits_for_nobody_is_counted"),
    ("dead_letters", "", "a_scripted_run"),
    ("oldest_age_seconds", "hands", "what_waits_for_nobody_is_counted"),
    ("members", "owners", "who_comes_and_is_fenced_is_counted"),
    ("group_paused", "owners", "groups_that_are_paused_are_shown"),
    ("backlog", "hands", "what_waits_for_nobody_is_counted"),
    ("pinned_messages", "loss", "what_is_lost_and_who_keeps_what_are_counted"),
    ("pinned_bytes", "loss", "what_is_lost_and_who_keeps_what_are_counted"),
    ("tasks_waiting", "queues", "tasks_are_counted"),
    ("tasks_overdue", "queues", "tasks_are_counted"),
    ("tasks_claimed", "queues", "tasks_are_counted"),
    ("tasks_expired", "queues", "claims_that_run_out_are_counted"),
    ("tasks_dead", "queues", "tasks_are_counted"),
    ("left_out", "sampled", "the_groups_with_the_most_work_have_all_of_their_series"),
    ("unreadable", "sampled", "what_cannot_be_read_is_counted_and_ages_nothing_else"),
    ("sample_age_seconds", "sampled", "loops_say_how_they_are"),
];

fn source(file: &str) -> &'static str {
    match file {
        "" => include_str!("../metrics.rs"),
        "hands" => include_str!("hands.rs"),
        "letters" => include_str!("letters.rs"),
        "locks" => include_str!("locks.rs"),
        "loss" => include_str!("loss.rs"),
        "once" => include_str!("once.rs"),
        "outbox" => include_str!("outbox.rs"),
        "owners" => include_str!("owners.rs"),
        "queues" => include_str!("queues.rs"),
        "sampled" => include_str!("sampled.rs"),
        _ => panic!("no file {file}"),
    }
}

/// The text of a function that stands by itself in a file.
fn function<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let text = &source[source.find(&format!("fn {name}("))?..];
    text.find("\n}\n").map(|end| &text[..end])
}

/// Whether a function names a metric, or a part of a histogram, as one whole text.
fn names(text: &str, metric: &str) -> bool {
    let prefixes = ["", "millstream_"];
    let parts = ["", "_sum", "_count"];
    let quoted = |prefix, part| text.contains(&format!("\"{prefix}{metric}{part}\""));
    prefixes.iter().any(|prefix| parts.iter().any(|part| quoted(prefix, part)))
}

#[test]
fn the_value_of_every_metric_is_held_against_the_truth_somewhere() {
    let exported: BTreeSet<&str> = table::ALL.iter().map(|metric| metric.name).collect();
    let held: BTreeSet<String> = HELD.iter().map(|(name, ..)| format!("millstream_{name}")).collect();
    assert_eq!(held.len(), HELD.len(), "one stands here twice");
    let missing: Vec<_> = exported.iter().filter(|name| !held.contains(**name)).collect();
    assert!(missing.is_empty(), "no test holds the value of {missing:?}: write one, and name it here");
    let stray: Vec<_> = held.iter().filter(|name| !exported.contains(name.as_str())).collect();
    assert!(stray.is_empty(), "there is no metric {stray:?}");
    for (name, file, by) in HELD {
        let text = function(source(file), by).unwrap_or_else(|| panic!("no function {by} in {file:?}"));
        assert!(names(text, name), "{by} in {file:?} says nothing of {name}");
    }
    assert!(!names(function(source("hands"), "what_is_in_hand").expect("there"), "in_flighty"));
}
