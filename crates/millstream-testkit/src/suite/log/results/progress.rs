//! Progress of messages: stored by whoever holds the message, read by all who follow it.

use std::time::Duration;

use millstream_core::log::ProgressRight;
use millstream_core::progress::{MAX_LINES, NewLine, ProgressLine, ProgressReport};
use millstream_core::results::{ResultId, ResultRequest};
use millstream_core::{ErrorKind, Place, wire};
use tokio::time::Instant;

use super::super::suite;
use super::number;
use crate::case::{Verdict, Violation, ensure, equal, refused};
use crate::harness::{BRIEF, Harness, LONG, QUIET};

suite!("log":
    progress_is_read_line_by_line_by_all_who_follow needs [Results],
    whoever_follows_gets_a_line_when_it_is_stored needs [Results],
    of_many_lines_the_newest_stay needs [Results],
    a_former_owner_reports_nothing needs [Results],
    progress_leaves_when_its_time_is_over needs [Results],
);

/// Returns a report of these lines.
pub(in crate::suite) fn report<const N: usize>(
    number: u128,
    attempt: u32,
    lines: [(Option<f64>, &str); N],
) -> ProgressReport {
    let lines = lines.into_iter().map(|(fraction, text)| NewLine::new(fraction, text)).collect();
    ProgressReport { request: ResultRequest::new(number, LONG), attempt, lines }
}

/// Returns attempt, fraction and text of each line above an id.
pub(in crate::suite) async fn read(
    h: &Harness,
    place: &(impl Clone + Into<Place>),
    number: u128,
    above: u64,
) -> Result<(Vec<(u32, Option<f64>, String)>, u64), Violation> {
    let lines =
        h.backend.log().progress(&ResultId::new(place.clone(), number), above, Duration::ZERO).await?;
    ensure!(lines.is_sorted_by(|a, b| a.number < b.number), "numbers of lines: {lines:?}");
    let last = lines.last().map_or(above, |line| line.number);
    let told = |ProgressLine { attempt, fraction, text, .. }| (attempt, fraction, text);
    Ok((lines.into_iter().map(told).collect(), last))
}

fn line(attempt: u32, fraction: Option<f64>, text: &str) -> (u32, Option<f64>, String) {
    (attempt, fraction, text.to_owned())
}

async fn progress_is_read_line_by_line_by_all_who_follow(h: Harness) -> Verdict {
    let (tp, mine, others) = (h.partition().await?, number(), number());
    let owner = h.owner(&tp, "group").await?;
    let right = ProgressRight::Owner(owner.lease.clone());
    let log = h.backend.log();
    equal!(read(&h, &tp, mine, 0).await?.0, [], "before anything is said");
    let before = h.now().await?;
    log.report_progress(&right, &report(mine, 1, [(None, "begun\n\0ä"), (Some(0.25), "")])).await?;
    log.report_progress(&right, &report(others, 1, [(Some(1.0), "of another")])).await?;
    let begun = [line(1, None, "begun\n\0ä"), line(1, Some(0.25), "")];
    let (lines, above) = read(&h, &tp, mine, 0).await?;
    equal!(lines, begun, "the first lines");
    equal!(read(&h, &tp, mine, 0).await?.0, begun, "read again");
    let after = h.now().await?;
    let stored = log.progress(&ResultId::new(tp.clone(), mine), 0, Duration::ZERO).await?;
    let in_time = stored.iter().all(|line| before <= line.at && line.at <= after);
    ensure!(in_time, "lines of {stored:?}, stored between {before} and {after}");
    equal!(read(&h, &tp, mine, above + 5).await?.0, begun, "above what the server has lost");
    // Only the fraction of the last line changes; then one with a text, of the next attempt.
    let long = "x".repeat(2 * wire::MAX_ERROR_LEN);
    let further = report(mine, 2, [(Some(0.5), ""), (Some(0.75), ""), (Some(0.8), &long)]);
    log.report_progress(&right, &further).await?;
    let cut = &long[..wire::MAX_ERROR_LEN];
    let (lines, _) = read(&h, &tp, mine, above).await?;
    equal!(lines, [line(2, Some(0.75), ""), line(2, Some(0.8), cut)], "above what was read");
    let all = [begun[0].clone(), line(2, Some(0.75), ""), line(2, Some(0.8), cut)];
    equal!(read(&h, &tp, mine, 0).await?.0, all, "all that stay");
    equal!(read(&h, &tp, others, 0).await?.0, [line(1, Some(1.0), "of another")], "of another");
    Ok(())
}

async fn whoever_follows_gets_a_line_when_it_is_stored(h: Harness) -> Verdict {
    let (tp, mine) = (h.partition().await?, number());
    let owner = h.owner(&tp, "group").await?;
    let right = ProgressRight::Owner(owner.lease.clone());
    h.backend.log().report_progress(&right, &report(mine, 1, [(None, "begun")])).await?;
    let (_, above) = read(&h, &tp, mine, 0).await?;
    let follow = |number: u128| {
        let (h, id) = (h.clone(), ResultId::new(tp.clone(), number));
        tokio::spawn(async move {
            let begun = Instant::now();
            let lines = h.backend.log().progress(&id, above, h.deadline()).await?;
            Ok::<_, millstream_core::Error>((lines, begun.elapsed()))
        })
    };
    let following: Vec<_> = (0..8).map(|_| follow(mine)).collect();
    let other = follow(mine ^ 1);
    tokio::time::sleep(QUIET).await;
    ensure!(following.iter().all(|it| !it.is_finished()), "a wait ended before there was a further line");
    h.backend.log().report_progress(&right, &report(mine, 1, [(Some(0.5), "half")])).await?;
    for wait in following {
        let (lines, took) = wait.await.map_err(|error| Violation::new(error.to_string()))??;
        let texts: Vec<_> = lines.iter().map(|line| &*line.text).collect();
        equal!(texts, ["half"], "what a wait found");
        ensure!(
            took < h.deadline() / 2,
            "a wait ended {took:?} after it began, though the line came at once"
        );
    }
    ensure!(!other.is_finished(), "a wait for another message ended");
    other.abort();
    Ok(())
}

async fn of_many_lines_the_newest_stay(h: Harness) -> Verdict {
    let (tp, mine) = (h.partition().await?, number());
    let owner = h.owner(&tp, "group").await?;
    let right = ProgressRight::Owner(owner.lease.clone());
    let mut texts = Vec::new();
    for first in [0, MAX_LINES / 2, MAX_LINES] {
        let mut report = report(mine, 1, []);
        report.lines = (first..first + MAX_LINES / 2).map(|at| NewLine::new(None, &at.to_string())).collect();
        texts.extend(report.lines.iter().map(|line| line.text.clone()));
        h.backend.log().report_progress(&right, &report).await?;
    }
    // What only says how far the work is takes the place of no text.
    for done in [0.1, 0.2] {
        h.backend.log().report_progress(&right, &report(mine, 1, [(Some(done), "")])).await?;
    }
    let (lines, _) = read(&h, &tp, mine, 0).await?;
    let found: Vec<_> = lines.iter().map(|(.., text)| text.clone()).collect();
    texts.push(String::new());
    equal!(found, texts[texts.len() - MAX_LINES - 1..], "the lines that stay");
    equal!(lines.last().and_then(|line| line.1), Some(0.2), "how far it is");
    Ok(())
}

async fn a_former_owner_reports_nothing(h: Harness) -> Verdict {
    let (tp, mine) = (h.partition().await?, number());
    let former = h.brief_owner(&tp, "group", BRIEF).await?;
    let log = h.backend.log();
    let was = ProgressRight::Owner(former.lease.clone());
    log.report_progress(&was, &report(mine, 1, [(Some(0.1), "its own")])).await?;
    let next = h.takeover(&former.lease).await?;
    let reported = log.report_progress(&was, &report(mine, 1, [(Some(0.9), "late")])).await;
    refused(reported, ErrorKind::Fenced, "progress of a former owner")?;
    let right = ProgressRight::Owner(next.lease.clone());
    log.report_progress(&right, &report(mine, 1, [(Some(0.2), "again")])).await?;
    let lines = [line(1, Some(0.1), "its own"), line(1, Some(0.2), "again")];
    equal!(read(&h, &tp, mine, 0).await?.0, lines, "what owners have said");
    Ok(())
}

async fn progress_leaves_when_its_time_is_over(h: Harness) -> Verdict {
    let (tp, short, long) = (h.partition().await?, number(), number());
    let owner = h.owner(&tp, "group").await?;
    let right = ProgressRight::Owner(owner.lease.clone());
    let log = h.backend.log();
    log.report_progress(&right, &report(long, 1, [(None, "long")])).await?;
    // The shortest time.
    let mut brief = report(short, 1, [(None, "short")]);
    brief.request = ResultRequest::new(short, Duration::ZERO);
    let begun = Instant::now();
    log.report_progress(&right, &brief).await?;
    let mut deadline = h.wait_for("progress to leave");
    while !read(&h, &tp, short, 0).await?.0.is_empty() {
        deadline.pause().await?;
    }
    let (took, keep) = (begun.elapsed(), brief.request.keep);
    ensure!(took >= keep, "progress left after {took:?}, {keep:?} were asked for");
    equal!(read(&h, &tp, long, 0).await?.0, [line(1, None, "long")], "what is kept for longer");
    Ok(())
}
