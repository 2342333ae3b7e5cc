//! Unique names for messages: tells messages apart to which the server has given the same id.

use std::borrow::Cow;
use std::collections::BTreeMap;

use millstream_core::{MessageId, TopicPartition};

use super::{Event, Outcome, Place, Record};

/// The messages that had an id, in order.
#[derive(Default)]
struct Names(BTreeMap<(TopicPartition, MessageId), Vec<Option<String>>>);

impl Names {
    fn add(&mut self, place: &mut Place, message: Option<&String>) {
        let names = self.0.entry((place.topic_partition.clone(), place.id)).or_default();
        place.reuse = u32::try_from(names.len()).unwrap_or(u32::MAX);
        names.push(message.cloned());
    }

    /// Sets the place to the message that has the id now, which is the one that the server means.
    fn now(&self, place: &mut Place) {
        self.find(place, |_| false);
    }

    /// Sets the place to the message with this payload. For records of processes, which may have received it earlier.
    fn of(&self, place: &mut Place, message: &str) {
        self.find(place, |name| name == Some(message));
    }

    fn find(&self, place: &mut Place, is_it: impl Fn(Option<&str>) -> bool) {
        if let Some(names) = self.0.get(&(place.topic_partition.clone(), place.id)) {
            let at = names.iter().rposition(|name| is_it(name.as_deref())).unwrap_or(names.len() - 1);
            place.reuse = u32::try_from(at).unwrap_or(u32::MAX);
        }
    }
}

/// Returns the history with places that identify one message each.
pub(super) fn named(history: &[Record]) -> Cow<'_, [Record]> {
    if !history.iter().any(|record| matches!(record.event, Event::ClockSetBack(_))) {
        return history.into();
    }
    let mut names = Names::default();
    let name = |record: &Record| {
        let mut record = record.clone();
        match &mut record.event {
            Event::Appended { place, message, .. } => names.add(place, message.as_ref()),
            Event::Sent { message, outcome: Outcome::Ok(place) } => names.of(place, message),
            Event::Started(start) => names.of(&mut start.origin.place, &start.message),
            Event::Dead { origin, message: Some(message), .. } => names.of(&mut origin.place, message),
            Event::Deleted(place) => names.now(place),
            Event::Dead { origin, .. }
            | Event::Settled { origin, .. }
            | Event::Handed { origin, .. }
            | Event::Replayed(origin) => names.now(&mut origin.place),
            _ => {}
        }
        record
    };
    history.iter().map(name).collect::<Vec<_>>().into()
}
