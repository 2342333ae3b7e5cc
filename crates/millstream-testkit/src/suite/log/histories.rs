//! Histories: the errors of attempts are kept over retries, notes and death, and so is the time of the next attempt.

use std::time::Duration;

use millstream_core::envelope::Limits;
use millstream_core::history::MAX_FAILURES;
use millstream_core::inspect::Range;
use millstream_core::log::{Entry, Note};
use millstream_core::wire::{self, Decoded};
use millstream_core::{Due, History, MessageId, Reason, Settlement, Timestamp};
use tokio::time::Instant;

use super::suite;
use crate::case::{Verdict, Violation, ensure, equal};
use crate::harness::{BRIEF, Harness};
use crate::owner::Owner;

suite!("log":
    failures_are_kept_to_the_dead_letter_and_a_replay_begins_anew needs [DeadLetters],
    a_snoozed_message_comes_back_as_the_same_attempt,
    a_retry_at_a_time_comes_then,
    a_note_keeps_the_failures_and_waits_until_a_time,
);

fn decoded(entry: &Entry) -> Decoded {
    wire::decode(entry.receipt, &entry.fields, &Limits::default())
}

fn attempts(history: &History) -> Vec<u32> {
    history.failures().iter().map(|failed| failed.attempt).collect()
}

/// Returns a settlement in which attempt `failed` of a message failed, after the attempts in its history.
fn failed(failed: u32, origin: MessageId, history: &History, due: Due) -> Settlement {
    let (error, history) = (format!("attempt {failed}\nfailed"), history.clone());
    Settlement::Retry { due, attempt: failed + 1, origin, error, history, wait: None }
}

/// Promotes and fetches the next redelivery.
async fn again(owner: &mut Owner) -> Result<(Entry, Decoded), Violation> {
    owner.promote(1).await?;
    let entry = owner.take_retries(1).await?.remove(0);
    let decoded = decoded(&entry);
    Ok((entry, decoded))
}

async fn failures_are_kept_to_the_dead_letter_and_a_replay_begins_anew(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let (_, group) = owner.lease.partition()?;
    let group = group.clone();
    let origin = h.append_n(&tp, 1).await?[0];
    let mut entry = owner.take(1).await?.remove(0);
    let mut history = decoded(&entry).history;
    ensure!(history.is_empty(), "a first attempt has failed before: {history}");
    for attempt in 1..=12 {
        owner.settle_all(&[entry], &failed(attempt, origin, &history, Due::NOW)).await?;
        let (next, decoded) = again(&mut owner).await?;
        let error = Some(format!("attempt {attempt}\nfailed"));
        equal!((decoded.attempt, decoded.error), (attempt + 1, error), "attempt and last error");
        let failures = decoded.history.failures();
        equal!(failures.len(), MAX_FAILURES.min(attempt as usize), "failures after attempt {attempt}");
        equal!(failures[0].attempt, 1, "the first failure that is kept");
        let last = &failures[failures.len() - 1];
        let told = (last.attempt, last.error.clone());
        equal!(told, (attempt, format!("attempt {attempt} failed")), "the newest failure");
        // The history that is read is the one that the server stored; it stores only the failures that it received.
        if let Some((_, before)) = failures.split_last() {
            let kept = history.failures().iter().rev();
            ensure!(before.iter().rev().zip(kept).all(|(a, b)| a == b || a.attempt == 1), "{before:?}");
        }
        (entry, history) = (next, decoded.history);
    }
    let now = h.now().await?;
    let times: Vec<_> = history.failures().iter().map(|failed| failed.at).collect();
    ensure!(times.is_sorted(), "times do not ascend: {times:?}");
    ensure!(
        times[0] >= origin.timestamp() && times.iter().all(|at| *at <= now),
        "{times:?} from {origin} to {now}"
    );

    let (error, reason) = ("gave up".to_owned(), Reason::Exhausted);
    let dies = Settlement::DeadLetter {
        reason,
        attempts: 13,
        origin,
        error,
        history: history.clone(),
        result: None,
    };
    owner.settle_all(&[entry], &dies).await?;
    let letters = h.backend.dead_letters()?.list(&tp, &group, Range::ALL, 10).await?.items;
    equal!(letters.len(), 1, "dead letters");
    let expected: Vec<_> = [1].into_iter().chain(5..=13).collect();
    equal!(attempts(&letters[0].history), expected, "the failures of a dead letter");
    equal!(letters[0].history.failures()[..1], history.failures()[..1], "the first of them");
    equal!(letters[0].history.failures()[9].error, "gave up", "the last of them");
    equal!(h.backend.dead_letters()?.replay(&tp, &group, &[letters[0].id]).await?, 1, "replayed");
    let replayed = decoded(&owner.take_retries(1).await?[0]);
    equal!((replayed.attempt, replayed.error), (1, None), "attempt and last error of what was replayed");
    equal!(replayed.history, History::default(), "its failures");
    Ok(())
}

async fn a_snoozed_message_comes_back_as_the_same_attempt(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let origin = h.append_n(&tp, 1).await?[0];
    let entry = owner.take(1).await?.remove(0);
    let snooze = |attempt, error: &str, history: &History| {
        let (due, error, history) = (Due::NOW, error.to_owned(), history.clone());
        Settlement::Retry { due, attempt, origin, error, history, wait: None }
    };
    owner.settle_all(&[entry], &snooze(1, "", &History::default())).await?;
    let (entry, back) = again(&mut owner).await?;
    equal!((back.attempt, back.origin, back.error), (1, origin, None), "attempt, origin, last error");
    ensure!(back.history.is_empty(), "nothing has failed: {}", back.history);
    owner.settle_all(&[entry], &failed(1, origin, &back.history, Due::NOW)).await?;
    let (entry, before) = again(&mut owner).await?;
    let error = before.error.clone().unwrap_or_default();
    owner.settle_all(&[entry], &snooze(2, &error, &before.history)).await?;
    let (_, back) = again(&mut owner).await?;
    equal!((back.attempt, &back.error), (2, &before.error), "attempt and last error");
    equal!(back.history, before.history, "the failures");
    Ok(())
}

async fn a_retry_at_a_time_comes_then(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    let ids = h.append_n(&tp, 2).await?;
    let entries = owner.take(2).await?;
    let at = h.now().await?.saturating_add(Duration::from_millis(150));
    let due = |n: usize, due| (entries[n].receipt, failed(1, ids[n], &History::default(), due));
    let batch = [due(0, Due::At(at)), due(1, Due::At(Timestamp::from_millis(1)))];
    equal!(h.backend.log().settle(&owner.lease, &batch).await?.applied, 2, "two retries");
    owner.promote(2).await?;
    let entries = owner.take_retries(2).await?;
    let origins: Vec<_> = entries.iter().map(|entry| decoded(entry).origin).collect();
    equal!(origins, [ids[1], ids[0]], "what comes: first what was due in the past");
    let came = entries[1].receipt.id;
    ensure!(came.ms >= at.as_millis(), "it came at {came}, before {at}");
    Ok(())
}

async fn a_note_keeps_the_failures_and_waits_until_a_time(h: Harness) -> Verdict {
    let tp = h.partition().await?;
    let mut owner = h.owner(&tp, "group").await?;
    h.append_n(&tp, 1).await?;
    let entries = owner.take(1).await?;
    let read = async |owner: &mut Owner| {
        owner.reopen().await?;
        let note = owner.take(1).await?.remove(0).note;
        note.ok_or_else(|| Violation::new("a note is lost"))
    };
    let (minute, start) = (Duration::from_secs(60), Instant::now());
    let error = " attempt 1 \n failed".to_owned();
    let note = Note {
        attempt: 2,
        due: Due::At(h.now().await?.saturating_add(Duration::from_millis(60_000))),
        error,
        ..Note::default()
    };
    owner.settle_all(&entries, &Settlement::Hold(note.clone())).await?;
    let first = read(&mut owner).await?;
    let slack = Duration::from_millis(5) + start.elapsed();
    let left = first.left();
    ensure!(left <= minute && left + slack >= minute, "{left:?} are left to wait, of {minute:?}");
    equal!(first.error, note.error, "the error");
    equal!(attempts(&first.history), [1], "the failures");
    equal!(first.history.failures()[0].error, " attempt 1   failed", "what is kept of it");

    // A second note of the same attempt: no further attempt has failed.
    owner.settle_all(&entries, &Settlement::Hold(Note { suspicions: 1, ..first.clone() })).await?;
    let second = read(&mut owner).await?;
    equal!(second.history, first.history, "failures after another note of the same attempt");
    let third = Note { attempt: 3, due: Due::NOW, error: "no".into(), ..second };
    owner.settle_all(&entries, &Settlement::Hold(third)).await?;
    let third = read(&mut owner).await?;
    equal!(attempts(&third.history), [1, 2], "failures after another attempt");
    equal!(third.history.failures()[..1], first.history.failures()[..1], "the first of them");
    ensure!(third.left() < BRIEF, "{:?} are left to wait, of none", third.left());
    Ok(())
}
