//! Checks of the final state: of sends, of every message, of dead letters.

use std::collections::BTreeMap;

use millstream_core::GroupName;

use super::super::story::{Run, Story, by_handler};
use super::super::{End, Event, Origin, Outcome, Place, Record, Told};
use super::Report;

/// Checks that senders received correct results.
pub(super) fn sends(story: &Story, history: &[Record], report: &mut Report<'_>) {
    for (message, copies) in &story.copies {
        if *copies > 1 {
            report.breach("PRODUCE-ONCE", format!("{message} is stored {copies} times"));
        }
    }
    for (message, outcome) in &story.sent {
        match outcome {
            Outcome::Ok(place) => {
                if !story.ever.contains_key(&(place.clone(), message.clone())) {
                    let stored = story.appended.get(place);
                    let what = format!("{message} was told to be at {place}, where {stored:?} is");
                    report.breach("HONEST-OUTCOME", what);
                }
            }
            Outcome::Fail if story.copies.contains_key(message) => {
                report.breach("HONEST-OUTCOME", format!("{message} was told not to be stored, and is"));
            }
            Outcome::Fail | Outcome::Info => {}
        }
    }
    in_order(story, history, report);
}

/// Checks that the messages that one sender sent for one key, one after the other, are stored in that order.
fn in_order(story: &Story, history: &[Record], report: &mut Report<'_>) {
    let mut last: BTreeMap<(&String, &Option<String>, _), (&String, &Place)> = BTreeMap::new();
    for record in history {
        let Event::Sending { sender, message, key } = &record.event else { continue };
        let Some(Outcome::Ok(place)) = story.sent.get(message) else { continue };
        let lane = (sender, key, &place.topic_partition);
        if let Some((before, earlier)) = last.insert(lane, (message, place))
            && earlier.id >= place.id
            // The server may assign again the ids that it lost, and lower ones too.
            && !story.appended.get(earlier).is_some_and(|stored| stored.lost)
        {
            let what = format!("{message} at {place} was sent after {before}, which is at {earlier}");
            report.breach("PRODUCE-ORDER", what);
        }
    }
}

/// Checks one dead letter that exists at the end.
pub(super) fn dead(
    story: &Story,
    origin: &Origin,
    message: Option<&str>,
    reason: &str,
    attempts: u32,
    report: &mut Report<'_>,
) {
    let mut wrong = |what: String| report.breach("DLQ-COMPLETE", format!("{origin} ({reason}): {what}"));
    match story.appended.get(&origin.place) {
        None => wrong("nothing was stored there".into()),
        Some(stored) if stored.message.as_deref() != message => {
            wrong(format!("it has the payload {message:?}, stored was {stored:?}"));
        }
        Some(_) => {}
    }
    if story.dead.contains_key(origin) && !story.is_upset(origin) {
        wrong("it is there twice".into());
    }
    let told = story.settled.get(origin).map(|settled| &settled.told);
    if told == Some(&Told::Ack) && !story.is_upset(origin) {
        wrong("the server was told that it is done".into());
    }
    let said = |run: &Run| matches!(run.end, Some((_, End::Dead))) && run.start.attempt == attempts;
    let known = by_handler(reason) || reason == "crashed";
    if !known && message.is_some_and(|message| story.sending.contains_key(message)) {
        wrong("that is no reason to give up what somebody sent".into());
    }
    if by_handler(reason) && !story.runs(origin).iter().any(said) {
        wrong(format!("no handler gave it up as attempt {attempts}"));
    }
}

/// Checks that every stored message has come to its end in this group.
pub(super) fn everything(story: &Story, group: &GroupName, report: &mut Report<'_>) {
    for (place, stored) in &story.appended {
        if story.deleted.contains(place) || story.is_forgotten(stored.at) {
            continue;
        }
        let origin = Origin { group: group.clone(), place: place.clone() };
        if story.is_lawless(&origin) {
            continue;
        }
        let what = || format!("{:?} at {origin}", stored.message);
        let is_dead = story.dead.contains_key(&origin);
        let acked = story.runs(&origin).iter().any(|run| matches!(run.end, Some((_, End::Acked))));
        if !is_dead && !acked {
            report.breach("NO-LOSS", format!("{}: neither handled to its end nor a dead letter", what()));
        }
        let told = story.settled.get(&origin).map(|settled| &settled.told);
        if told == Some(&Told::Dead) && !is_dead && !story.is_upset(&origin) {
            report.breach("DLQ-COMPLETE", format!("{}: given up, and no dead letter", what()));
        }
        let over = is_dead || matches!(told, Some(Told::Ack | Told::Dead)) || story.perhaps.contains(&origin);
        if !over && !story.is_upset(&origin) {
            report.breach("CONSERVATION", format!("{}: the server was never told of an end", what()));
        }
    }
}
