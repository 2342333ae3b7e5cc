//! Writes histories, and judges them.

use std::time::Duration;

use millstream_core::{GroupName, MessageId, TopicPartition};
use millstream_testkit::history::{
    Breach, Call, End, Event, Order, Origin, Outcome, Place, Record, Rules, Start, Told, check,
};

pub(crate) const MS: fn(u64) -> Duration = Duration::from_millis;

pub(crate) fn tp() -> TopicPartition {
    TopicPartition::new("t".parse().expect("name"), 0)
}

pub(crate) fn group() -> GroupName {
    "g".parse().expect("name")
}

pub(crate) fn place(id: u64) -> Place {
    Place::new(tp(), MessageId::new(id, 0))
}

pub(crate) fn origin(id: u64) -> Origin {
    Origin { group: group(), place: place(id) }
}

/// Writes a history, one millisecond per record. All messages have one key.
#[derive(Default)]
pub(crate) struct Story(pub(crate) Vec<Record>);

impl Story {
    pub(crate) fn tell(&mut self, event: Event) -> usize {
        let at = self.0.last().map_or(MS(0), |record| record.at + MS(1));
        self.0.push(Record { at, event });
        self.0.len() - 1
    }

    pub(crate) fn wait(&mut self, time: Duration) {
        let at = self.0.last().map_or(MS(0), |record| record.at) + time;
        self.0.push(Record { at, event: Event::Fault("time passes".into()) });
    }

    pub(crate) fn send(&mut self, id: u64) {
        let (message, key) = (format!("m{id}"), Some("k".to_owned()));
        self.tell(Event::Sending { sender: "s".into(), message: message.clone(), key: key.clone() });
        self.tell(Event::Appended { place: place(id), message: Some(message.clone()), key });
        self.tell(Event::Sent { message, outcome: Outcome::Ok(place(id)) });
    }

    pub(crate) fn grant(&mut self, epoch: u64) {
        let (topic_partition, group, to) = (tp(), group(), Some(format!("i{epoch}")));
        self.tell(Event::Granted { topic_partition, group, epoch, again: false, ttl: MS(1_000), to });
    }

    pub(crate) fn call(&mut self, epoch: u64, call: Call) {
        let (topic_partition, group) = (tp(), group());
        self.tell(Event::Accepted { topic_partition, group, epoch, call });
    }

    pub(crate) fn start(&mut self, id: u64, attempt: u32, epoch: u64) -> usize {
        self.tell(Event::Started(Start {
            instance: format!("i{epoch}"),
            origin: origin(id),
            message: format!("m{id}"),
            key: Some("k".into()),
            attempt,
            epoch,
        }))
    }

    pub(crate) fn end(&mut self, start: usize, end: End) {
        self.tell(Event::Ended { start, end });
    }

    pub(crate) fn settle(&mut self, id: u64, told: Told) {
        self.tell(Event::Settled { origin: origin(id), told, certain: true });
    }

    /// Handled at once, as it should be.
    pub(crate) fn handle(&mut self, id: u64, epoch: u64) {
        let start = self.start(id, 1, epoch);
        self.end(start, End::Acked);
        self.settle(id, Told::Ack);
    }

    pub(crate) fn letter(&mut self, id: u64, reason: &str, attempts: u32) {
        let (origin, message) = (origin(id), Some(format!("m{id}")));
        self.tell(Event::Dead { origin, message, reason: reason.into(), attempts });
    }
}

/// Two messages sent and a lease granted.
pub(crate) fn story() -> Story {
    let mut story = Story::default();
    story.send(1);
    story.send(2);
    story.grant(1);
    story
}

pub(crate) fn judge(story: &Story, rules: Rules) -> Vec<Breach> {
    check(&story.0, &rules.groups([group()]))
}

pub(crate) fn rules() -> Rules {
    Rules::default().order(Order::Key)
}

#[track_caller]
pub(crate) fn breaks(rule: &str, story: &Story) {
    breaks_under(rules(), rule, story);
}

#[track_caller]
pub(crate) fn breaks_under(rules: Rules, rule: &str, story: &Story) {
    let breaches = judge(story, rules);
    assert!(breaches.iter().any(|breach| breach.rule == rule), "{rule} is not among {breaches:#?}");
}

#[track_caller]
pub(crate) fn holds(rules: Rules, story: &Story) {
    assert_eq!(judge(story, rules), []);
}
