//! One run: builds the world, lets it go wrong, heals it, waits until all is handled, and checks.

use std::cell::Cell;
use std::sync::{Arc, Once};
use std::time::Duration;

use millstream_core::inspect::Range;
use millstream_core::{
    Backend, DeadLetter, GroupName, Packing, Start, Topic, TopicPartition, TopicSpec, wire,
};
use millstream_memory::MemoryBackend;
use millstream_testkit::chaos::Chaos;
use millstream_testkit::history::{Breach, Event, History, Origin, Place, Record, Rules, check};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout};

use super::instance::{Site, group};
use super::nemesis::Nemesis;
use super::payload::Padded;
use super::scenario::Scenario;
use super::sender;

/// The longest that everything may take once all has healed, by the simulated clock.
const DRAIN: Duration = Duration::from_secs(900);
/// Where the simulated server's clock starts: 2023-11-14, a full second.
const EPOCH: Duration = Duration::from_secs(1_700_000_000);

/// What came of a run.
pub(crate) struct Outcome {
    scenario: Scenario,
    history: Vec<Record>,
    pub(crate) fingerprint: u64,
    pub(crate) breaches: Vec<Breach>,
}

impl Outcome {
    /// The history, a line per record.
    pub(crate) fn story(&self) -> Vec<String> {
        self.history.iter().map(ToString::to_string).collect()
    }

    pub(crate) fn tell(&self) {
        println!("{:#?}", self.scenario);
        for record in &self.history {
            println!("{record}");
        }
        println!("fingerprint {:016x}", self.fingerprint);
    }

    pub(crate) fn summary(&self) -> String {
        let seed = self.scenario.seed;
        let breaches: String = self.breaches.iter().take(10).map(|breach| format!("  {breach}\n")).collect();
        let troubles = &self.scenario.troubles;
        format!(
            "seed {seed} failed: {} breaches, under {troubles:?}\n{breaches}  \
             MILLSTREAM_SEED={seed} cargo test -p integration-tests --test in_process simulation:: -- --nocapture",
            self.breaches.len()
        )
    }
}

/// Runs one scenario, on a clock of its own.
pub(crate) fn run(scenario: &Scenario) -> Outcome {
    run_on(scenario, Backend::from)
}

/// The same on a backend that is made from the one in memory.
pub(crate) fn run_on(scenario: &Scenario, make: impl FnOnce(MemoryBackend) -> Backend) -> Outcome {
    fastrand::seed(scenario.seed);
    let panics = Panics::count();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let (history, mut breaches) = runtime.block_on(simulate(Arc::new(scenario.clone()), make));
    drop(runtime);
    let mut breach = |rule, what| breaches.push(Breach { rule, at: history.now(), what });
    if Panics::count() > panics {
        breach("PANIC", "something panicked that was no handler".to_owned());
    }
    let records = history.records();
    let rules = Rules::default().groups((0..scenario.groups).map(group));
    let rules = rules.order(scenario.order()).calm(scenario.is_calm()).at_once(scenario.at_once());
    let rules = rules.batches(scenario.batches()).lives(scenario.lives());
    let rules = rules.crashes(scenario.most_crashes()).fewest_crashes(scenario.fewest_crashes());
    breaches.extend(check(&records, &rules));
    Outcome { scenario: scenario.clone(), fingerprint: history.fingerprint(), history: records, breaches }
}

async fn simulate(
    scenario: Arc<Scenario>,
    make: impl FnOnce(MemoryBackend) -> Backend,
) -> (History, Vec<Breach>) {
    let memory = MemoryBackend::at(EPOCH);
    let history = History::new();
    let backend = history.around(make(memory.clone()));
    let chaos = Chaos::new(backend.clone(), scenario.seed);
    let topic =
        Topic::with_codec("t", &Padded).partitions(scenario.partitions).retention(scenario.retention());
    let topic = match scenario.packed {
        Some(most) => topic.packed(Packing::new().min_messages(2).max_messages(most)),
        None => topic,
    };
    let spec = topic.spec().expect("a valid topic");
    backend.catalog().create_topic(&spec).await.expect("memory does not fail");
    // A group that comes later gets what is left: nothing is promised of what was consumed before.
    for group in (0..scenario.groups).map(group) {
        backend.catalog().create_group(&spec, &group, Start::Earliest).await.expect("memory does not fail");
    }

    let (deaths, died) = mpsc::unbounded_channel();
    let site = Site { scenario: scenario.clone(), topic: topic.clone(), history: history.clone(), deaths };
    let mut nemesis = Nemesis {
        site,
        chaos: chaos.clone(),
        operator: memory.operator(),
        backend: backend.clone(),
        instances: Vec::new(),
        dead: Vec::new(),
        leaving: Vec::new(),
        deaths: died,
        snapshot: None,
        started: 0,
    };
    let senders: Vec<_> = (0..scenario.senders)
        .map(|number| {
            let client = chaos.client();
            client.suffer(&scenario.faults);
            let backend = client.backend();
            tokio::spawn(sender::run(scenario.clone(), number, backend, topic.clone(), history.clone()))
        })
        .collect();
    for group in &scenario.instances {
        nemesis.join(false, Some(*group));
    }
    nemesis.act().await;

    history.record(Event::Fault("all heals".into()));
    for instance in nemesis.instances.iter().chain(&nemesis.leaving) {
        history.record(Event::Resumed(instance.name.clone()));
    }
    chaos.heal();
    nemesis.heal();
    let mut breaches = Vec::new();
    let mut wedged = |what: &str| {
        let (at, what) = (history.now(), what.to_owned());
        breaches.push(Breach { rule: "LIVENESS", at, what });
    };
    for sender in senders {
        if !matches!(timeout(DRAIN, sender).await, Ok(Ok(()))) {
            wedged("a sender does not end");
        }
    }
    let spec = backend.catalog().topic(&spec.name).await.expect("memory does not fail");
    if !drain(&mut nemesis, &backend, &spec).await {
        wedged("not everything is handled");
    }
    if !nemesis.close(&scenario).await {
        wedged("a process does not leave");
    }
    conclude(&history, &backend, &spec, &scenario).await;
    (history, breaches)
}

impl Nemesis {
    /// From now on nothing goes wrong, but that slow links stay slow; each group has somebody.
    fn heal(&mut self) {
        for group in 0..self.site.scenario.groups {
            if !self.instances.iter().any(|instance| instance.group == group) {
                self.join(false, Some(group));
            }
        }
        for instance in &self.instances {
            instance.client.suffer(&self.site.scenario.healed());
        }
    }

    /// Lets all processes leave; `false` if one does not.
    async fn close(&mut self, scenario: &Scenario) -> bool {
        let mut all = std::mem::take(&mut self.instances);
        all.append(&mut self.leaving);
        all.iter().for_each(|instance| self.leaves(instance));
        let time_limit = scenario.shutdown_timeout + Duration::from_secs(60);
        let mut have_left = true;
        for instance in all {
            // Who was killed while it left does not come to its end.
            let killed = instance.client.is_killed();
            have_left &= instance.has_left(time_limit).await || killed;
        }
        have_left
    }
}

/// Waits until nothing is left over; `false` if that does not come.
async fn drain(nemesis: &mut Nemesis, backend: &Backend, spec: &TopicSpec) -> bool {
    let deadline = Instant::now() + DRAIN;
    // What stalls on its way to the server arrives sooner or later.
    let (_, longest_stall) = nemesis.site.scenario.faults.stall;
    nemesis.wait_until(Instant::now() + longest_stall).await;
    let mut empty = 0;
    while empty < 3 {
        if Instant::now() > deadline {
            return false;
        }
        nemesis.wait_until(Instant::now() + Duration::from_millis(500)).await;
        nemesis.heal();
        let mut left = 0;
        for number in 0..nemesis.site.scenario.groups {
            left += leftovers(backend, spec, &group(number)).await.into_iter().sum::<u64>();
        }
        empty = if left == 0 { empty + 1 } else { 0 };
    }
    true
}

/// How much of each partition is unread, pending or parked.
async fn leftovers(backend: &Backend, spec: &TopicSpec, group: &GroupName) -> Vec<u64> {
    let stats = backend.catalog().stats(spec, group).await.expect("memory does not fail");
    // Where the server does not know, the group is not there: somebody has to see to that.
    stats.iter().map(|stats| stats.lag.unwrap_or(1) + stats.pending + stats.retrying).collect()
}

/// All dead letters of a partition: a page ends at some megabytes, and the bodies may be large.
async fn letters(backend: &Backend, topic_partition: &TopicPartition, group: &GroupName) -> Vec<DeadLetter> {
    let mut all: Vec<DeadLetter> = Vec::new();
    loop {
        let range = Range { after: all.last().map_or(Range::ALL.after, |it| it.id), ..Range::ALL };
        let page =
            backend.dead_letters().expect("dead letters").list(topic_partition, group, range, 1_000).await;
        let page = page.expect("memory does not fail");
        all.extend(page.items);
        if !page.more {
            return all;
        }
    }
}

/// Notes how everything stands in the end.
async fn conclude(history: &History, backend: &Backend, spec: &TopicSpec, scenario: &Scenario) {
    for group in (0..scenario.groups).map(group) {
        for (topic_partition, entries) in spec.iter().zip(leftovers(backend, spec, &group).await) {
            for letter in letters(backend, &topic_partition, &group).await {
                let place = Place::new(topic_partition.clone(), letter.origin);
                let envelope = wire::decode_body(&letter.body, &millstream_core::Limits::default()).ok();
                history.record(Event::Dead {
                    origin: Origin { group: group.clone(), place },
                    message: envelope.map(|it| text(&it.payload)),
                    reason: letter.reason.to_string(),
                    attempts: letter.attempts,
                });
            }
            history.record(Event::Left { topic_partition, group: group.clone(), entries });
        }
    }
}

/// The name of a message: its payload without what makes it large.
fn text(payload: &[u8]) -> String {
    String::from_utf8_lossy(payload.trim_ascii()).into_owned()
}

/// Counts the panics of this thread. Those of handlers do not come here.
struct Panics;

thread_local! {
    static PANICS: Cell<u64> = const { Cell::new(0) };
}

impl Panics {
    fn count() -> u64 {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let print = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                PANICS.set(PANICS.get() + 1);
                print(info);
            }));
        });
        PANICS.get()
    }
}
