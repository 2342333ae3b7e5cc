//! Tokens of rates on a server: what their records take, that idle ones go, and what somebody else wrote there.

use std::time::Duration;

use millstream_core::Rate;
use millstream_core::permits::{Lead, PermitKey, Permits, Reservation, Reserved, TokenStep};
use millstream_core::rates::RateRecord;
use millstream_core::schedule::Schedule;

use crate::server::Bench;

const SECOND: Rate = Rate::per_second(1);

fn reserves(key: &str, rate: Rate) -> TokenStep {
    let key: PermitKey = key.parse().expect("a key");
    TokenStep::Reserves { key, tokens: 1, rate, waits: true }
}

impl Bench {
    async fn tokens(&self, steps: Vec<TokenStep>) -> Vec<Lead> {
        let reservation = Reservation { version: 0, steps };
        match Permits::reserve(&self.backend, &reservation).await.expect("an answer") {
            Reserved::Done(leads) => leads,
            Reserved::Changed(_) => panic!("there are no rules"),
        }
    }

    async fn rates(&mut self) -> i64 {
        let key = self.keys.rates();
        self.int(&format!("HLEN {key}")).await
    }
}

#[tokio::test]
async fn a_key_takes_110_bytes_and_goes_when_it_is_idle() {
    let mut bench = Bench::private(&[]).await;
    const KEYS: usize = 10_000;
    for page in (0..KEYS).collect::<Vec<_>>().chunks(200) {
        bench.tokens(page.iter().map(|n| reserves(&format!("api:tenant-{n:05}"), SECOND)).collect()).await;
    }
    let key = bench.keys.rates();
    let bytes = bench.int(&format!("MEMORY USAGE {key} SAMPLES 0")).await;
    let each = bytes as f64 / bench.rates().await as f64;
    println!("{each:.1} bytes a key");
    assert!(each <= 110.0, "{each} bytes a key");
    // Once their time is over, one call without steps looks at 200, and goes on while many of them are idle.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    while bench.rates().await > 0 {
        assert!(tokio::time::Instant::now() < deadline, "{} are left", bench.rates().await);
        Permits::drop_idle_rates(&bench.backend).await.expect("an answer");
    }
}

#[tokio::test]
async fn records_of_others_count_as_none() {
    let mut bench = Bench::private(&[]).await;
    let key = bench.keys.rates();
    for record in ["x", "1", "-1 5 1", "1 2 3 4 5", "99999999999999999 1 1e+300"] {
        bench.cmd(&format!("DEL {key}")).await;
        redis::cmd("HSET")
            .arg(key.as_str())
            .arg("api:a")
            .arg(record)
            .exec_async(&mut bench.raw)
            .await
            .expect("set");
        let leads = bench.tokens(vec![reserves("api:a", SECOND), reserves("api:a", SECOND)]).await;
        let [Lead::At(first), Lead::At(second)] = leads[..] else { panic!("{record}: {leads:?}") };
        assert!(first <= 1_000_000 && second - first == 1_000_000, "{record}: {leads:?}");
    }
}

#[tokio::test]
async fn breakers_of_others_are_passed_over_and_old_ones_go() {
    let mut bench = Bench::private(&[]).await;
    let key = bench.keys.breakers();
    let now = Schedule::now(&bench.backend).await.expect("a time").as_millis();
    let day = 86_400_000;
    for (field, record) in [
        ("no key", format!("{now} {now} x")),
        ("api:text", "x".to_owned()),
        ("api:short", now.to_string()),
        ("api:old", format!("{0} {0} 503", now - day - 1_000)),
        ("api:new", format!("{0} {1} 503 and more", now - day, now - day + 60_000)),
    ] {
        let mut set = redis::cmd("HSET");
        set.arg(key.as_str()).arg(field).arg(record).exec_async(&mut bench.raw).await.expect("set");
    }
    let open = async || Permits::open_breakers(&bench.backend).await.expect("an answer");
    let mut keys: Vec<_> = open().await.into_iter().map(|it| (it.key.to_string(), it.reason)).collect();
    keys.sort_unstable();
    let expected = [("api:new", "503 and more"), ("api:old", "503")];
    assert_eq!(keys, expected.map(|(key, reason)| (key.to_owned(), reason.to_owned())));
    Permits::drop_idle_rates(&bench.backend).await.expect("an answer");
    let keys: Vec<_> = open().await.into_iter().map(|it| it.key.to_string()).collect();
    assert_eq!(keys, ["api:new"]);
    assert_eq!(
        bench.int(&format!("HLEN {key}")).await,
        2,
        "one whose key nobody could have written has a time"
    );
}

#[tokio::test]
async fn a_key_of_the_wrong_type_changes_nothing() {
    let mut bench = Bench::private(&[]).await;
    let (rates, calls, breakers) = (bench.keys.rates(), bench.keys.permit_calls(), bench.keys.breakers());
    for key in [&rates, &calls, &breakers] {
        bench.cmd(&format!("SET {key} x")).await;
        let steps = vec![TokenStep::Closes {
            key: "api:a".parse().expect("a key"),
            time: Duration::from_secs(1),
            rate: SECOND,
        }];
        let refused = Permits::reserve(&bench.backend, &Reservation { version: 0, steps }).await;
        assert_eq!(refused.expect_err("refused").kind(), millstream_core::ErrorKind::WrongType);
        bench.cmd(&format!("DEL {key}")).await;
        assert_eq!(bench.int(&format!("EXISTS {rates} {calls}")).await, 0);
    }
}

#[tokio::test]
async fn what_is_late_by_less_than_a_microsecond_is_a_number() {
    let bench = Bench::private(&[]).await;
    let step = |rate: Rate, tokens, waits| TokenStep::Reserves {
        key: "api:a".parse().expect("a key"),
        tokens,
        rate: rate.burst(2),
        waits,
    };
    // The first token of the second one is there since 0.4 microseconds, and the second one is not there.
    let (fast, slow) = (Rate::per_second(1_000), Rate::new(10_000, Duration::from_millis(10_004)));
    let leads = bench.tokens(vec![step(fast, 1, true), step(slow, 2, false)]).await;
    assert_eq!(leads, [Lead::At(-1_000), Lead::Later(0)]);
}

/// A number below this, evenly by its magnitude.
fn any(most: u32) -> u64 {
    fastrand::u64(0..10_u64.pow(fastrand::u32(1..=most)))
}

/// What the function of the core decides of a step, and does to a record.
fn decide(record: &mut RateRecord, now_us: u64, step: &TokenStep) -> Option<Lead> {
    match step {
        TokenStep::Charges { tokens, rate, .. } => record.charge(now_us, rate, *tokens),
        TokenStep::Closes { time, rate, .. } | TokenStep::Breaks { time, rate, .. } => {
            record.close(now_us, rate, *time);
        }
        TokenStep::Reserves { tokens, rate, waits, .. } => {
            return Some(record.reserve(now_us, rate, *tokens, *waits));
        }
    }
    None
}

#[tokio::test]
async fn the_script_decides_as_the_function() {
    let mut bench = Bench::private(&[]).await;
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    fastrand::seed(seed);
    let (rates, key) = (bench.keys.rates(), "api:a".parse::<PermitKey>().expect("a key"));
    for case in 0..1_000 {
        let now_ms = Schedule::now(&bench.backend).await.expect("a time").as_millis();
        let passed = any(7);
        let at = if fastrand::u8(..8) == 0 { now_ms + passed } else { now_ms - passed };
        let rate = || Rate::new(1 + any(6) as u32, Duration::from_millis(1 + any(8)));
        let (before, now) = (rate(), if fastrand::bool() { rate().burst(1 + any(3) as u32) } else { rate() });
        let interval = before.interval_us().expect("tokens");
        let closed = if fastrand::bool() { any(10) } else { 0 };
        let record = format!("{at} {} {interval:.6} {closed}", any(10));
        redis::cmd("HSET")
            .arg(rates.as_str())
            .arg(key.as_str())
            .arg(&record)
            .exec_async(&mut bench.raw)
            .await
            .expect("set");
        let (key, rate, amount) = (key.clone(), now, 1 + any(4) as u32);
        let (waits, tokens) = (fastrand::bool(), amount);
        let interval_us = rate.interval_us().expect("tokens");
        let step = match fastrand::u8(..4) {
            0 => TokenStep::Charges { key, tokens: i64::from(amount) - 5_000, rate },
            1 if waits => TokenStep::Closes { key, time: Duration::from_micros(any(9)), rate },
            1 => {
                let (time, reason) = (Duration::from_micros(any(9)), "503".to_owned());
                TokenStep::Breaks { key, time, rate, reason }
            }
            _ => TokenStep::Reserves { key, tokens, rate, waits },
        };
        let start_ms = Schedule::now(&bench.backend).await.expect("a time").as_millis();
        let leads = bench.tokens(vec![step.clone()]).await;
        let text: Option<String> = redis::cmd("HGET")
            .arg(rates.as_str())
            .arg("api:a")
            .query_async(&mut bench.raw)
            .await
            .expect("read");
        let written = text.as_deref().and_then(RateRecord::parse);
        // A record has the millisecond in which the script ran, and not the microsecond. Close to an edge (a closing
        // that ends, a record that is full or idle) one more decides, so each is asked.
        let (from_ms, to_ms) = match &written {
            Some(written) => (written.at_ms, written.at_ms),
            None => (start_ms, Schedule::now(&bench.backend).await.expect("a time").as_millis()),
        };
        let before = RateRecord::parse(&record).expect("a record");
        // A record has six digits of the distance of tokens, by which everything is multiplied.
        let total = before.ahead_us + interval_us * f64::from(amount.max(5_000) + now.most_saved());
        let near = |one: f64, other: f64| (one - other).abs() <= 2.0 + total * 1e-5;
        let same = |one: Option<Lead>, other: Option<&Lead>| match (one, other) {
            (None, None) | (Some(Lead::Never), Some(Lead::Never)) => true,
            (Some(Lead::At(one)), Some(Lead::At(other))) => near(one as f64, *other as f64),
            (Some(Lead::Later(one)), Some(Lead::Later(other))) => near(one as f64, *other as f64),
            _ => false,
        };
        let decides = |now_us| {
            let mut expected = before;
            let lead = decide(&mut expected, now_us, &step);
            same(lead, leads.first())
                && match &written {
                    Some(it) => {
                        near(it.ahead_us, expected.ahead_us) && near(it.closed_us, expected.closed_us)
                    }
                    None => expected.is_idle(now_us + 1),
                }
        };
        assert!(
            (from_ms * 1_000..(to_ms + 1) * 1_000).any(decides),
            "case {case}, {record}, {step:?}: {leads:?}, {written:?}, and not {:?}",
            {
                let mut expected = before;
                (decide(&mut expected, from_ms * 1_000 + 500, &step), expected)
            }
        );
    }
}
