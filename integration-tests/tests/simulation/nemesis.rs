//! The nemesis: does to the system what the scenario says, when it says so.

use std::time::Duration;

use bytes::Bytes;
use millstream_core::inspect::Range;
use millstream_core::log::Append;
use millstream_core::{Backend, GroupName, TopicPartition};
use millstream_memory::operator::{Operator, Snapshot};
use millstream_testkit::chaos::Chaos;
use millstream_testkit::history::{Event, Origin, Place};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::instance::{Instance, Site, group};
use super::scenario::Action;

/// Who acts, and on what.
pub(crate) struct Nemesis {
    pub(crate) site: Site,
    pub(crate) chaos: Chaos,
    pub(crate) operator: Operator,
    /// The backend without chaos, with the recorder.
    pub(crate) backend: Backend,
    /// Those that live.
    pub(crate) instances: Vec<Instance>,
    /// The members that died.
    pub(crate) dead: Vec<(String, usize)>,
    /// Those that were asked to leave.
    pub(crate) leaving: Vec<Instance>,
    pub(crate) deaths: mpsc::UnboundedReceiver<String>,
    pub(crate) snapshot: Option<(Duration, Snapshot)>,
    /// How many processes were started.
    pub(crate) started: usize,
}

impl Nemesis {
    /// Does everything that the scenario says.
    pub(crate) async fn act(&mut self) {
        let begin = Instant::now();
        for (at, action) in self.site.scenario.actions.clone() {
            self.wait_until(begin + at).await;
            self.do_it(action).await;
        }
        self.wait_until(begin + self.site.scenario.length).await;
    }

    /// Waits, and restarts processes that are killed by a message meanwhile.
    pub(crate) async fn wait_until(&mut self, at: Instant) {
        loop {
            tokio::select! {
                biased;
                Some(name) = self.deaths.recv() => {
                    self.forget(&name);
                    self.join(true, None);
                }
                () = sleep_until(at) => return,
            }
        }
    }

    fn forget(&mut self, name: &str) {
        if let Some(at) = self.instances.iter().position(|instance| instance.name == name) {
            let instance = self.instances.remove(at);
            self.dead.push((instance.member, instance.group));
        }
    }

    fn tell(&self, what: String) {
        self.site.history.record(Event::Fault(what));
    }

    fn partition(&self, number: u32) -> TopicPartition {
        TopicPartition::new(self.site.topic.spec().expect("a valid topic").name, number)
    }

    /// Starts a process; with `again` under the name of one that died. `None` is any group.
    pub(crate) fn join(&mut self, again: bool, in_group: Option<usize>) {
        let of_group = |(_, other): &(String, usize)| in_group.is_none_or(|group| group == *other);
        let before = self.dead.iter().position(of_group).filter(|_| again).map(|at| self.dead.remove(at));
        let name = format!("i{}", self.started);
        let (member, group) =
            before.unwrap_or_else(|| (format!("m{}", self.started), in_group.unwrap_or_default()));
        self.started += 1;
        let client = self.chaos.client();
        client.name(&name);
        client.suffer(&self.site.scenario.faults);
        let in_group = super::instance::group(group);
        self.site.history.record(Event::Began { instance: name.clone(), group: in_group });
        self.tell(format!("{name} starts as {member} of g{group}"));
        self.instances.push(Instance::start(&self.site, name, member, group, client));
    }

    async fn do_it(&mut self, action: Action) {
        let living = self.instances.len();
        match action {
            Action::Kill(which) if living > 0 => {
                let instance = &self.instances[which % living];
                instance.client.kill();
                let name = instance.name.clone();
                self.site.history.record(Event::Killed(name.clone()));
                self.forget(&name);
            }
            Action::Leave(which) if living > 0 => {
                let instance = self.instances.remove(which % living);
                self.tell(format!("{} is to leave", instance.name));
                self.leaves(&instance);
                self.leaving.push(instance);
            }
            Action::Join { again, group } if living < 5 => self.join(again, Some(group)),
            Action::Pause(which, time) if living > 0 => {
                let (client, name) = self.pick(which % living);
                self.tell(format!("{name} is stopped for {time:?}"));
                self.site.history.record(Event::Apart(name.clone()));
                client.pause();
                let history = self.site.history.clone();
                tokio::spawn(async move {
                    sleep(time).await;
                    // Before it goes on: what it does then happens at this time.
                    history.record(Event::Resumed(name));
                    client.resume();
                });
            }
            Action::Cut(which, time) if living > 0 => {
                let (client, name) = self.pick(which % living);
                self.tell(format!("{name} is cut off for {time:?}"));
                let history = self.site.history.clone();
                history.record(Event::Apart(name.clone()));
                client.cut();
                tokio::spawn(async move {
                    sleep(time).await;
                    history.record(Event::Together(name));
                    client.mend();
                });
            }
            Action::DestroyGroup(partition, number) => {
                let (topic_partition, group) = (self.partition(partition), group(number));
                if self.operator.destroy_group(&topic_partition, &group) {
                    self.site.history.record(Event::Rewound { topic_partition, group });
                }
            }
            Action::DeleteEntry(partition, which) => self.delete_entry(partition, which),
            Action::Snapshot => self.snapshot = Some((self.site.history.now(), self.operator.snapshot())),
            Action::FailOver => {
                if let Some((since, snapshot)) = self.snapshot.take() {
                    self.site.history.record(Event::Forgot(since));
                    self.operator.restore(&snapshot);
                    self.chaos.reset();
                }
            }
            Action::Stranger(partition) => {
                let topic_partition = self.partition(partition);
                let fields = vec![(Bytes::from_static(b"not ours"), Bytes::from_static(b"x"))];
                let _ = self.backend.log().append(&[Append::new(topic_partition, fields)]).await;
            }
            Action::Grow(partitions) => {
                let topic = self.site.topic.spec().expect("a valid topic").name;
                let grown =
                    self.backend.catalog().expand(&topic, partitions).await.expect("memory does not fail");
                self.tell(format!("the topic has {} partitions", grown.partitions));
            }
            Action::BeginOutage(outage) => {
                self.tell(format!("the server is away from all: {outage:?}"));
                self.site.history.record(Event::OutageBegan);
                self.chaos.begin_outage(outage);
            }
            Action::EndOutage { restarted } => {
                if restarted {
                    self.tell("the server was restarted".to_owned());
                    self.operator.restart();
                }
                self.site.history.record(Event::OutageEnded);
                self.chaos.end_outage();
            }
            Action::SetClockBack(by) => {
                self.site.history.record(Event::ClockSetBack(by));
                self.operator.set_clock_back(by);
            }
            Action::Replay(partition, number) => self.replay(partition, &group(number)).await,
            _ => {}
        }
    }

    /// Replays all dead letters of a partition.
    async fn replay(&self, partition: u32, group: &GroupName) {
        let topic_partition = self.partition(partition);
        let dead = self.backend.dead_letters().expect("dead letters");
        let letters = dead.list(&topic_partition, group, Range::ALL, 1_000).await;
        for letter in letters.expect("memory does not fail").items {
            let place = Place::new(topic_partition.clone(), letter.origin);
            if dead.replay(&topic_partition, group, &[letter.id]).await.expect("memory does not fail") > 0 {
                self.site.history.record(Event::Replayed(Origin { group: group.clone(), place }));
            }
        }
    }

    /// Asks a process to leave.
    pub(crate) fn leaves(&self, instance: &Instance) {
        self.site.history.record(Event::Leaving(instance.name.clone()));
        instance.leave();
    }

    fn pick(&self, at: usize) -> (millstream_testkit::chaos::Client, String) {
        (self.instances[at].client.clone(), self.instances[at].name.clone())
    }

    /// Deletes one of the newest entries.
    fn delete_entry(&self, partition: u32, which: usize) {
        let topic_partition = self.partition(partition);
        let records = self.site.history.records();
        let stored = records.iter().rev().filter_map(|record| match &record.event {
            Event::Appended { place, .. } if place.topic_partition == topic_partition => Some(place.clone()),
            _ => None,
        });
        if let Some(place) = stored.take(which + 1).last()
            && self.operator.delete_entry(&topic_partition, place.id)
        {
            self.site.history.record(Event::Deleted(Place::new(topic_partition, place.id)));
        }
    }
}
