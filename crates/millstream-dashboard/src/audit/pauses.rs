//! Who has paused a group: the pause itself has only its time.

use std::time::Duration;

use millstream::admin::{Browse, Range};
use millstream::{ErrorKind, GroupName, MessageId, Result, Timestamp, TopicName};

use super::Audit;
use super::entry::{Entry, Event};

/// Words of the action.
pub(crate) const PAUSE: &str = "group pause";
/// Time around a pause in which its entries are: they are written right before and right after it, or as soon as the servers
/// answer again.
const AROUND: Duration = Duration::from_secs(60);
/// Maximum number of entries that are read.
const READ: usize = 200;

/// Who has paused a group, as far as the audit log has it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pauser {
    /// The log could not be read.
    #[default]
    Unread,
    /// It is not in the log: a program, or the command line.
    Unrecorded,
    User(String),
}

impl Audit {
    /// Returns who has paused a group at this time.
    pub(crate) async fn pauser(&self, topic: &TopicName, group: &GroupName, at: Timestamp) -> Pauser {
        match self.around(at).await {
            Ok(entries) => find(&entries, topic, group, at),
            Err(_) => Pauser::Unread,
        }
    }

    /// Reads the entries of about this time, the oldest first.
    async fn around(&self, at: Timestamp) -> Result<Vec<(Timestamp, Entry)>> {
        let Some(name) = self.topic() else { return Ok(Vec::new()) };
        let id = |time: Timestamp| MessageId::new(time.as_millis(), 0);
        let (after, before) = (id(at.saturating_sub(AROUND)), id(at.saturating_add(AROUND)));
        let range = Range { after, before, newest_first: false };
        let browse = Browse { range, limit: READ, ..Browse::default() };
        match self.mq.admin().messages(name, &browse).await {
            Ok(read) => {
                let entry = |it| Some((it, Entry::of(it)?));
                let entries = read.messages.iter().filter_map(entry);
                Ok(entries.map(|(message, entry)| (message.stored.id.timestamp(), entry)).collect())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }
}

/// Returns who has paused a group at this time, by the entries of about then.
fn find(entries: &[(Timestamp, Entry)], topic: &TopicName, group: &GroupName, at: Timestamp) -> Pauser {
    let is_it = |entry: &Entry| {
        let subject = &entry.subject;
        entry.action == PAUSE
            && subject.topic.as_deref() == Some(topic.as_str())
            && subject.group.as_deref() == Some(group.as_str())
    };
    let nearest = |event: Event, is_one: &dyn Fn(&Entry) -> bool| {
        let found = entries.iter().filter(|(_, entry)| entry.event == event && is_it(entry) && is_one(entry));
        found.min_by_key(|(time, _)| time.as_millis().abs_diff(at.as_millis())).map(|(_, entry)| entry)
    };
    // An end says whether it was this one that paused the group. It may not be written yet, or be lost.
    let ended = |id: &str| entries.iter().any(|(_, it)| it.event == Event::End && it.id == id);
    let found = nearest(Event::End, &|entry| entry.done.is_some_and(|done| done > 0));
    let found = found.or_else(|| nearest(Event::Begin, &|entry| !ended(&entry.id)));
    found.map_or(Pauser::Unrecorded, |entry| Pauser::User(entry.user.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::audit::subject::Subject;

    fn entry(ms: u64, event: Event, id: &str, group: &str, done: Option<u64>) -> (Timestamp, Entry) {
        let (topic, group) = ("orders".parse().expect("a name"), group.parse().expect("a name"));
        let entry = Entry::now(event, id, &format!("user of {id}"), PAUSE, Subject::group(&topic, &group));
        (Timestamp::from_millis(ms), Entry { done, ..entry })
    }

    #[test]
    fn the_pause_is_that_of_the_action_that_changed_something() {
        let (topic, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
        let who = |entries: &[_], ms| find(entries, &topic, &group, Timestamp::from_millis(ms));
        let user = |id: &str| Pauser::User(format!("user of {id}"));
        assert_eq!(who(&[], 100), Pauser::Unrecorded);
        let mut entries = vec![
            entry(10, Event::Begin, "first", "billing", None),
            entry(12, Event::End, "first", "billing", Some(1)),
            entry(90, Event::Begin, "other", "shipping", None),
            entry(101, Event::End, "other", "shipping", Some(1)),
            entry(98, Event::Begin, "second", "billing", None),
        ];
        assert_eq!(who(&entries[2..], 100), user("second"), "its end is not written yet");
        entries.push(entry(103, Event::End, "second", "billing", Some(1)));
        // It was paused already.
        entries.push(entry(99, Event::Begin, "third", "billing", None));
        entries.push(entry(100, Event::End, "third", "billing", Some(0)));
        assert_eq!(who(&entries, 100), user("second"));
        assert_eq!(who(&entries, 11), user("first"));
        assert_eq!(who(&entries[6..], 100), Pauser::Unrecorded);
    }
}
