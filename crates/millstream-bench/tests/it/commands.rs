//! Every command of `millstream-bench` on a real server, with small numbers: the output is as documented.

use std::process::{Command, Output};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_millstream-bench");

fn bench(args: &str) -> Output {
    Command::new(PROGRAM)
        .args(args.split_whitespace())
        .env_remove("MILLSTREAM_URL")
        .output()
        .expect("it runs")
}

/// The object that a command prints, which is all that it prints.
fn measured(args: &str) -> Value {
    let output = bench(&format!("{args} --runs 1 --json"));
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    let object: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&object["runs"], &object["private"]), (&1.into(), &true.into()), "{object}");
    assert!(object["server"].as_str().expect("text").contains(' '), "{object}");
    for name in ["date", "millstream", "system"] {
        assert!(!object[name].as_str().expect(name).is_empty(), "{object}");
    }
    assert!(object["seed"].is_u64() && object["cpus"].as_u64() > Some(0), "{object}");
    object
}

/// The figures of the only case.
fn figures(args: &str) -> Value {
    let mut object = measured(args);
    assert_eq!(object["cases"].as_array().expect("a list").len(), 1, "{object}");
    object["cases"][0]["figures"].take()
}

/// A median that is there and above zero.
#[track_caller]
fn positive(figures: &Value, name: &str, side: &str) -> f64 {
    let spread = &figures[name][side];
    let of =
        |which: &str| spread[which].as_f64().unwrap_or_else(|| panic!("no {name}.{side}.{which}: {figures}"));
    let (min, median, max) = (of("min"), of("median"), of("max"));
    assert!(0.0 < min && min <= median && median <= max, "{name}.{side}: {spread}");
    let values = spread["values"].as_array().expect("the value of each run");
    assert!(values.iter().all(|value| (min..=max).contains(&value.as_f64().expect("a number"))), "{spread}");
    median
}

#[track_caller]
fn compared(figures: &Value, names: &[&str]) {
    for name in names {
        let (ours, bare) = (positive(figures, name, "ours"), positive(figures, name, "bare"));
        let ratio = positive(figures, name, "ratio");
        assert!((ratio - ours / bare).abs() < 1e-6 * ratio, "{name}: {ours} / {bare} is not {ratio}");
    }
}

const THROUGHPUT: [&str; 4] =
    ["throughput_per_s", "client_cpu_us_per_message", "redis_cpu_us_per_message", "commands_per_message"];
const LATENCY: [&str; 4] = ["latency_p50_us", "latency_p99_us", "latency_p99_9_us", "latency_max_us"];

#[track_caller]
fn ordered(figures: &Value) {
    let values = LATENCY.map(|name| positive(figures, name, "ours"));
    assert!(values.is_sorted(), "{values:?}");
}

#[test]
fn produce_in_bulk() {
    let figures = figures("produce --messages 1000 --partitions 2 --keys 4 --baseline");
    compared(&figures, &THROUGHPUT);
    let commands = positive(&figures, "commands_per_message", "bare");
    assert!((1.0..1.1).contains(&commands), "bare XADD is one command a message, not {commands}");
}

#[test]
fn produce_from_many_tasks() {
    compared(&figures("produce --messages 400 --tasks 8 --baseline"), &THROUGHPUT);
}

#[test]
fn consume_and_trim_in_groups() {
    compared(&figures("consume --messages 1000 --partitions 2 --groups 2 --keys 8 --baseline"), &THROUGHPUT);
}

#[test]
fn consume_and_keep() {
    compared(&figures("consume --messages 1000 --keep --batch 100 --baseline"), &THROUGHPUT);
}

#[test]
fn e2e_at_a_rate() {
    let figures = figures("e2e --rate 200/s --seconds 0.5 --partitions 2 --baseline");
    compared(&figures, &LATENCY);
    compared(&figures, &THROUGHPUT);
    ordered(&figures);
}

#[test]
fn e2e_at_a_share_of_the_most() {
    let object = measured("e2e --rate 1% --seconds 0.2");
    let case = object["cases"][0]["case"].as_str().unwrap();
    let rate: f64 = case.split_once("e2e at ").unwrap().1.split_once("/s").unwrap().0.parse().unwrap();
    assert!(rate > 0.0, "{case}");
    ordered(&object["cases"][0]["figures"]);
}

#[test]
fn delay_messages_and_tasks() {
    compared(&figures("delay --messages 500 --waiting 200 --baseline"), &THROUGHPUT);
    compared(&figures("delay --messages 500 --queue --partitions 2 --baseline"), &THROUGHPUT);
}

#[test]
fn delay_and_be_late() {
    ordered(&figures("delay --rate 100/s --seconds 0.3"));
    ordered(&figures("delay --rate 100/s --seconds 0.3 --queue --waiting 100"));
}

#[test]
fn retry_once() {
    compared(&figures("retry --messages 500 --delay 20 --baseline"), &THROUGHPUT);
    compared(&figures("retry --messages 200 --delay 20 --parked 100 --baseline"), &THROUGHPUT);
}

#[test]
fn takeover_after_a_kill() {
    let figures = figures("takeover --partitions 2 --lease 400 --baseline");
    compared(&figures, &LATENCY);
    ordered(&figures);
    let longest = positive(&figures, "latency_max_us", "ours");
    assert!(longest > 10e3, "a lease of 400 ms that was taken over after {longest} µs");
    assert!(figures["throughput_per_s"].is_null(), "{figures}");
}

#[test]
fn consume_while_others_are_pending() {
    let pending = "consume --messages 1000 --partitions 2 --pending 300";
    compared(&figures(&format!("{pending} --baseline")), &THROUGHPUT);
    compared(&figures(&format!("{pending} --pending-in other --baseline")), &THROUGHPUT);
}

#[test]
fn idle_for_some_seconds() {
    // Leases are renewed every 3.3 s.
    let figures = figures("idle --settle 0.3 --seconds 4 --partitions 2 --groups 2 --baseline");
    let requests = positive(&figures, "requests_per_s_per_partition", "ours");
    let commands = positive(&figures, "commands_per_s_per_partition", "ours");
    assert!(requests <= commands, "{requests} requests are more than {commands} commands");
    assert!(figures["first_requests_per_s_per_partition"]["ours"]["median"].is_number(), "{figures}");
    // Nothing at all in less than 5 s, and so there is no ratio.
    assert_eq!(figures["requests_per_s_per_partition"]["bare"]["median"], 0.0, "{figures}");
}

#[test]
fn members_idle_together() {
    let figures = figures("idle --settle 0 --seconds 4 --partitions 4 --members 3");
    positive(&figures, "requests_per_s_per_partition", "ours");
    assert!(figures["first_requests_per_s_per_partition"].is_null(), "{figures}");
}

#[test]
fn memory_everywhere() {
    let object = measured("memory --messages 5000 --baseline");
    let cases = object["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 4, "{object}");
    for case in cases {
        compared(&case["figures"], &["bytes_per_message"]);
        let bytes = positive(&case["figures"], "bytes_per_message", "ours");
        assert!((128.0..2_000.0).contains(&bytes), "{case}");
    }
}

#[test]
fn memory_in_one_place_and_runs_that_do_not_count() {
    let figures = figures("memory --place parked --messages 2000 --warm-up 1 --seed 7");
    assert_eq!(figures["bytes_per_message"]["ours"]["values"].as_array().unwrap().len(), 1, "{figures}");
}

#[test]
fn an_append_only_file_can_be_written() {
    let object = measured("produce --messages 100 --aof everysec");
    assert_eq!(object["aof"], "everysec");
    assert!(object["cases"][0]["figures"]["throughput_per_s"]["ratio"].is_null(), "{object}");
}

#[test]
fn tls_is_compared_with_the_same_without_it() {
    let mut object = measured("produce --messages 1000 --tasks 16 --tls --baseline");
    assert_eq!(object["tls"], true);
    let produced = object["cases"][0]["figures"].take();
    compared(&produced, &THROUGHPUT);
    compared(&figures("e2e --rate 200/s --seconds 0.5 --partitions 2 --tls --baseline"), &LATENCY);
    assert_eq!(measured("produce --messages 100")["tls"], false);
}

#[test]
fn a_table_is_for_people() {
    let output = bench("produce --messages 100 --runs 2 --baseline");
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1, "a line for the case: {output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["medians of 2 runs", "messages/s", "Redis CPU, µs/message", "ratio", "min..max"] {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
}

#[test]
fn wrong_usage_is_2_and_says_what_is_wrong() {
    for (args, why) in [
        ("", "Usage"),
        ("nothing", "nothing"),
        ("produce --payload 7", "--payload"),
        ("produce --runs 0", "--runs"),
        ("produce --messages 3 --tasks 4", "--tasks 4"),
        ("e2e --rate fast", "1000/s"),
        ("delay --rate 50%", "a share is for e2e"),
        ("delay --rate 5/s --baseline", "--baseline"),
        ("produce --aof always --url redis://127.0.0.1:1", "--aof"),
        ("--url redis://127.0.0.1:1 produce --aof always", "--aof"),
        ("--url redis://127.0.0.1:1 produce --tls", "--tls"),
        ("takeover --tls", "--tls"),
        ("suite --tls", "--tls"),
        ("consume --pending 10 --groups 2", "--groups"),
        ("consume --pending 1 --partitions 2", "--pending 1"),
        ("consume --pending-in other", "--pending"),
        ("delay --seconds 3", "--rate"),
        ("idle --members 2", "--members 2"),
        ("memory --place nowhere", "parked"),
        ("suite --only nothing", "--list"),
        ("suite --json --markdown", "--markdown"),
        ("suite --scale 0", "0.0001"),
        ("suite --baseline", "--baseline"),
    ] {
        let output = bench(args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args}: {text}");
        assert!(text.contains(why), "{args}: {text}");
    }
}

#[test]
fn a_failure_is_1_and_says_what_failed() {
    let output = bench("produce --messages 1 --url redis://127.0.0.1:1");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot connect"), "{output:?}");

    let mut without = Command::new(PROGRAM);
    without.args(["produce", "--messages", "1"]).env("REDIS_SERVER", "no-such-redis-server");
    let output = without.env_remove("MILLSTREAM_URL").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(text.contains("there is no no-such-redis-server") && text.contains("--url"), "{text}");
}

/// It would load whatever server programs use.
#[test]
fn only_a_url_that_was_typed_is_measured_on() {
    let mut command = Command::new(PROGRAM);
    command.args(["produce", "--messages", "10", "--runs", "1", "--json"]);
    let output = command.env("MILLSTREAM_URL", "redis://127.0.0.1:1").output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let object: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((&object["private"], &object["url"]), (&true.into(), &Value::Null));
    for args in ["--url redis://127.0.0.1:1 produce", "produce --url redis://127.0.0.1:1"] {
        let output = bench(&format!("{args} --messages 10 --runs 1"));
        assert_eq!(output.status.code(), Some(1), "{args}: {output:?}");
    }
}

#[test]
fn options_of_all_commands_stand_before_or_after_the_command() {
    let measured =
        ["--runs 1 --payload 16 --json produce", "produce --runs 1 --payload 16 --json"].map(|args| {
            let output = bench(&format!("{args} --messages 10"));
            assert!(output.status.success(), "{args}: {output:?}");
            let object: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            (object["runs"].clone(), object["payload_bytes"].clone())
        });
    assert_eq!(measured, [(1.into(), 16.into()), (1.into(), 16.into())]);
}
