//! Chaos injects the configured faults, and the same ones again for the same seed.

use std::time::Duration;

use millstream_core::leases::Acquired;
use millstream_core::log::Append;
use millstream_core::members::Member;
use millstream_core::schedule::{Seen, Shard};
use millstream_core::{
    Backend, Envelope, ErrorKind, GroupName, Lease, MemberId, MessageId, Resource, Start, TopicPartition,
    TopicSpec, wire,
};
use millstream_memory::MemoryBackend;
use millstream_testkit::chaos::{Chaos, Client, Faults, Outage, Role};
use tokio::time::{Instant, timeout};

const MS: fn(u64) -> Duration = Duration::from_millis;

struct Bench {
    chaos: Chaos,
    client: Client,
    /// Through the client.
    far: Backend,
    /// Beside it.
    near: Backend,
    spec: TopicSpec,
}

async fn bench(seed: u64) -> Bench {
    let near = Backend::from(MemoryBackend::new());
    let spec = TopicSpec::new("t".parse().expect("name"), 1).expect("a topic");
    near.catalog().create_topic(&spec).await.expect("created");
    near.catalog().create_group(&spec, &group(), Start::Earliest).await.expect("created");
    let chaos = Chaos::new(near.clone(), seed);
    let client = chaos.client();
    Bench { far: client.backend(), chaos, client, near, spec }
}

fn group() -> GroupName {
    "g".parse().expect("name")
}

fn tp() -> TopicPartition {
    TopicPartition::new("t".parse().expect("name"), 0)
}

fn entry(text: &str) -> Append {
    Append::new(tp(), wire::encode(&Envelope::new(text.to_owned())))
}

async fn append(backend: &Backend) -> Result<MessageId, ErrorKind> {
    let mut results = backend.log().append(&[entry("x")]).await;
    assert_eq!(results.len(), 1, "one result per entry");
    results.remove(0).map(|appended| appended.id).map_err(|error| error.kind())
}

async fn acquire(backend: &Backend) -> Lease {
    let resource = Resource::partition(tp(), group());
    let acquired = backend
        .leases()
        .acquire(&resource, "o", "n", Duration::from_secs(60), &millstream_core::Continuity::assured())
        .await;
    let Acquired::Granted(lease) = acquired.expect("acquired") else { panic!("held") };
    lease
}

impl Bench {
    async fn stored(&self) -> u64 {
        self.near.catalog().stats(&self.spec, &group()).await.expect("stats")[0].length
    }
}

#[tokio::test(start_paused = true)]
async fn without_faults_nothing_goes_wrong_and_nothing_takes_time() {
    let bench = bench(1).await;
    let begin = Instant::now();
    for _ in 0..100 {
        append(&bench.far).await.expect("appended");
    }
    assert_eq!((bench.stored().await, begin.elapsed()), (100, Duration::ZERO));
    assert_eq!(bench.client.tally().calls, 100);
    assert!(bench.far.is_in_process(), "what is said of the backend stays true");
}

#[tokio::test(start_paused = true)]
async fn each_fault_does_what_its_name_says() {
    let none = Faults::none().timeout(MS(500));
    let cases = [
        ("refused", none.clone().refused(1.0), Err(ErrorKind::Unavailable), 0, 0),
        ("lost request", none.clone().lost_requests(1.0), Err(ErrorKind::Unconfirmed), 0, 0),
        ("lost reply", none.clone().lost_replies(1.0), Err(ErrorKind::Unconfirmed), 1, 1),
        ("short stall", none.clone().stalls(1.0, MS(100), MS(100)), Ok(()), 1, 1),
        ("long stall", none.clone().stalls(1.0, MS(900), MS(900)), Err(ErrorKind::Unconfirmed), 0, 1),
    ];
    for (name, faults, expected, stored, later) in cases {
        let bench = bench(7).await;
        bench.client.suffer(&faults);
        let begin = Instant::now();
        assert_eq!(append(&bench.far).await.map(|_| ()), expected, "{name}");
        assert!(begin.elapsed() <= MS(500), "{name}: nobody waits beyond the timeout");
        assert_eq!(bench.stored().await, stored, "{name}");
        tokio::time::sleep(MS(1_000)).await;
        assert_eq!(bench.stored().await, later, "{name}, later");
    }
}

#[tokio::test(start_paused = true)]
async fn faults_are_of_one_client_and_of_one_role() {
    let bench = bench(1).await;
    let other = bench.chaos.client();
    bench.client.suffer_in(Role::Log, &Faults::none().refused(1.0));
    assert_eq!(append(&bench.far).await, Err(ErrorKind::Unavailable));
    acquire(&bench.far).await;
    append(&other.backend()).await.expect("appended");
    bench.chaos.heal();
    append(&bench.far).await.expect("appended");
}

#[tokio::test(start_paused = true)]
async fn a_cut_ends_waits_at_once_and_refuses_until_it_is_mended() {
    let bench = bench(1).await;
    let lease = acquire(&bench.far).await;
    let mut reader = bench.far.log().reader(&lease).await.expect("a reader");
    let client = bench.client.clone();
    let cut = tokio::spawn(async move {
        tokio::time::sleep(MS(100)).await;
        client.cut();
    });
    let begin = Instant::now();
    let error = reader.fetch(10, Duration::from_secs(60)).await.expect_err("it is cut");
    assert_eq!((error.kind(), begin.elapsed()), (ErrorKind::Unconfirmed, MS(100)));
    cut.await.expect("no panic");
    let error = reader.fetch(10, Duration::ZERO).await.expect_err("it is cut");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    bench.client.mend();
    append(&bench.near).await.expect("appended");
    let fetched = reader.fetch(10, Duration::ZERO).await.expect("it is mended");
    assert_eq!(fetched.entries.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_reset_ends_what_is_under_way_and_nothing_else() {
    let bench = bench(1).await;
    let lease = acquire(&bench.far).await;
    let mut reader = bench.far.log().reader(&lease).await.expect("a reader");
    let chaos = bench.chaos.clone();
    let reset = tokio::spawn(async move {
        tokio::time::sleep(MS(100)).await;
        chaos.reset();
    });
    let error = reader.fetch(10, Duration::from_secs(60)).await.expect_err("it is cut");
    assert_eq!(error.kind(), ErrorKind::Unconfirmed);
    reset.await.expect("no panic");
    reader.fetch(10, Duration::ZERO).await.expect("there is a new connection");
}

#[tokio::test(start_paused = true)]
async fn a_read_whose_reply_is_lost_is_read_again_from_the_pending_list() {
    let bench = bench(1).await;
    append(&bench.near).await.expect("appended");
    let lease = acquire(&bench.far).await;
    let mut reader = bench.far.log().reader(&lease).await.expect("a reader");
    bench.client.suffer_in(Role::Reader, &Faults::none().lost_replies(1.0));
    assert!(reader.fetch(10, Duration::ZERO).await.is_err());
    bench.chaos.heal();
    let fetched = reader.fetch(10, Duration::ZERO).await.expect("read");
    assert!(fetched.pending && fetched.entries.len() == 1, "{fetched:?}");
}

#[tokio::test(start_paused = true)]
async fn a_stopped_process_sees_its_answers_when_it_goes_on() {
    let bench = bench(1).await;
    bench.client.suffer(&Faults::none().latency(MS(100), MS(100)));
    let far = bench.far.clone();
    let call = tokio::spawn(async move { append(&far).await });
    tokio::task::yield_now().await;
    bench.client.pause();
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert_eq!(bench.stored().await, 1, "the server goes on");
    assert!(!call.is_finished());
    bench.client.resume();
    call.await.expect("no panic").expect("appended");
}

#[tokio::test(start_paused = true)]
async fn a_killed_process_never_hears_of_anything_again() {
    let bench = bench(1).await;
    bench.client.kill();
    bench.chaos.heal();
    assert!(timeout(Duration::from_secs(3_600), append(&bench.far)).await.is_err());
    assert!(timeout(Duration::from_secs(3_600), bench.client.awake()).await.is_err());
    assert_eq!(bench.stored().await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_watch_is_cut_too() {
    let bench = bench(1).await;
    let member = Member::new(MemberId::new("m").expect("name"), "i", Duration::from_secs(10));
    let pulse =
        bench.far.members().heartbeat(&bench.spec.name, &group(), &member, true).await.expect("joined");
    let mut watch = bench.far.members().watch(&bench.spec.name, &group()).await.expect("a watch");
    bench.client.cut();
    let error = watch.changed(pulse.revision, Duration::from_secs(60)).await.expect_err("it is cut");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    bench.client.mend();
    let begin = Instant::now();
    watch.changed(pulse.revision, Duration::from_secs(60)).await.expect("it is mended");
    assert_eq!(begin.elapsed(), Duration::from_secs(60));
}

#[tokio::test(start_paused = true)]
async fn the_same_seed_does_the_same_and_another_does_not() {
    async fn story(seed: u64) -> Vec<(Result<(), ErrorKind>, Duration)> {
        let bench = bench(1).await;
        let faults = Faults::none().latency(MS(0), MS(50)).refused(0.1).lost_requests(0.1);
        let client = Chaos::new(bench.near, seed).client();
        client.suffer(&faults.lost_replies(0.1).stalls(0.1, MS(10), MS(4_000)));
        let begin = Instant::now();
        let mut story = Vec::new();
        for _ in 0..100 {
            let appended = append(&client.backend()).await.map(|_| ());
            story.push((appended, begin.elapsed()));
        }
        let tally = client.tally();
        let faults = [tally.refused, tally.lost_requests, tally.lost_replies, tally.stalls];
        assert!(faults.iter().all(|count| (2..=25).contains(count)), "{tally:?}");
        story
    }
    assert_eq!(story(5).await, story(5).await);
    assert_ne!(story(5).await, story(6).await);
}

#[tokio::test(start_paused = true)]
async fn waits_for_the_schedule_are_cut_too() {
    let bench = bench(1).await;
    let minute = Duration::from_secs(60);
    let tp = TopicPartition::new(bench.spec.name.clone(), 0);
    let seen = bench.far.schedule().wait(&tp, &Seen::default(), minute).await.expect("the first wait");
    let shard = Shard::new("q".parse().expect("name"), 0);
    let client = bench.client.clone();
    let cut = tokio::spawn(async move {
        tokio::time::sleep(MS(100)).await;
        client.cut();
    });
    let begin = Instant::now();
    let (schedule, tasks) = tokio::join!(
        bench.far.schedule().wait(&tp, &seen, minute),
        bench.far.tasks().expect("delay queues").wait(&shard, minute)
    );
    assert_eq!(schedule.expect_err("it is cut").kind(), ErrorKind::Unconfirmed);
    assert_eq!(tasks.expect_err("it is cut").kind(), ErrorKind::Unconfirmed);
    assert_eq!(begin.elapsed(), MS(100));
    cut.await.expect("no panic");
    bench.client.mend();
    assert!(!bench.far.tasks().expect("delay queues").wait(&shard, MS(10)).await.expect("it is mended"));
}

#[tokio::test(start_paused = true)]
async fn an_outage_keeps_all_away_and_also_who_comes_meanwhile() {
    let bench = bench(1).await;
    let lease = acquire(&bench.far).await;
    let mut reader = bench.far.log().reader(&lease).await.expect("a reader");
    let chaos = bench.chaos.clone();
    let outage = tokio::spawn(async move {
        tokio::time::sleep(MS(100)).await;
        chaos.begin_outage(Outage::Refused);
    });
    let begin = Instant::now();
    let error = reader.fetch(10, Duration::from_secs(60)).await.expect_err("the server ended");
    assert_eq!((error.kind(), begin.elapsed()), (ErrorKind::Unconfirmed, MS(100)));
    outage.await.expect("no panic");
    let other = bench.chaos.client();
    for backend in [&bench.far, &other.backend()] {
        assert_eq!(append(backend).await, Err(ErrorKind::Unavailable));
    }
    bench.chaos.end_outage();
    for backend in [&bench.far, &other.backend()] {
        append(backend).await.expect("appended");
    }
    assert_eq!(bench.stored().await, 2);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_answers_late_and_does_half_of_what_was_given_up() {
    let bench = bench(1).await;
    let begin = Instant::now();
    let hang = |lasts: u64| {
        bench.chaos.begin_outage(Outage::Hung);
        let chaos = bench.chaos.clone();
        tokio::spawn(async move {
            tokio::time::sleep(MS(lasts)).await;
            chaos.end_outage();
        })
    };
    hang(300);
    append(&bench.far).await.expect("it goes on in time");
    assert_eq!((bench.stored().await, begin.elapsed()), (1, MS(300)));
    bench.client.suffer(&Faults::none().timeout(MS(10)));
    let over = hang(1_000);
    for _ in 0..20 {
        assert_eq!(append(&bench.far).await, Err(ErrorKind::Unconfirmed));
    }
    assert_eq!(bench.stored().await, 1, "nothing is done meanwhile");
    over.await.expect("no panic");
    tokio::time::sleep(MS(1)).await;
    let late = bench.stored().await - 1;
    assert!((5..=15).contains(&late), "{late} of 20 are done when it goes on");
}

#[tokio::test(start_paused = true)]
async fn answers_take_time_by_their_bytes_and_some_never_arrive() {
    let bench = bench(1).await;
    let lease = acquire(&bench.near).await;
    let large = |bytes: usize| Append::new(tp(), wire::encode(&Envelope::new("x".repeat(bytes))));
    for _ in 0..3 {
        bench.near.log().append(&[large(100_000)]).await.remove(0).expect("appended");
    }
    bench.client.suffer(&Faults::none().bandwidth(1_000_000).timeout(MS(250)));
    let mut reader = bench.far.log().reader(&lease).await.expect("a reader");
    let begin = Instant::now();
    let error = reader.fetch(3, Duration::ZERO).await.expect_err("300 ms of bytes");
    assert_eq!((error.kind(), begin.elapsed()), (ErrorKind::Unconfirmed, MS(250)));
    assert_eq!(bench.client.tally().too_large, 1);
    let begin = Instant::now();
    let fetched = reader.fetch(3, Duration::ZERO).await.expect("100 ms of bytes");
    assert!(fetched.pending && fetched.entries.len() == 1, "half a page after a lost answer: {fetched:?}");
    assert!((MS(100)..MS(150)).contains(&begin.elapsed()), "{:?}", begin.elapsed());
}
