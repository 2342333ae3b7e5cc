//! `millstream-bench suite` on a real server, with small numbers: all cases, and all its outputs.

use std::process::{Command, Output};

use serde_json::Value;

fn suite(args: &str) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_millstream-bench"))
        .arg("suite")
        .args(args.split_whitespace())
        .env_remove("MILLSTREAM_URL")
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{args}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

fn printed(args: &str) -> String {
    String::from_utf8(suite(args).stdout).expect("text")
}

/// The names of all cases, and whether each is run by default.
fn cases() -> Vec<(String, bool)> {
    let text = printed("--list");
    let case = |line: &str| Some((line.split_whitespace().next()?.to_owned(), !line.contains("(optional)")));
    text.lines().skip(1).filter_map(case).collect()
}

#[test]
fn every_case_can_be_measured() {
    let output = suite("--scale 0.001 --runs 1 --warm-up 0 --json");
    let object: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let measured: Vec<_> =
        object["cases"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect();
    let all = cases();
    assert_eq!(measured, all.iter().filter(|(_, usual)| *usual).map(|(name, _)| name).collect::<Vec<_>>());
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), measured.len(), "a line per case");
    for case in object["cases"].as_array().unwrap() {
        assert!(case["error"].is_null(), "{case}");
        assert!(!case["figures"].as_object().unwrap().is_empty(), "{case}");
        for target in case["targets"].as_array().unwrap() {
            assert!(target["reached"].is_number() && target["met"].is_boolean(), "{case}");
        }
        assert_eq!(case["met"].is_null(), case["targets"].as_array().unwrap().is_empty(), "{case}");
    }
    let growth = object["growth"].as_array().unwrap();
    let series: Vec<_> = growth.iter().map(|it| it["series"].as_str().unwrap()).collect();
    let all = ["partitions", "groups", "pending", "pending_in_other_group", "parked", "delayed", "members"];
    assert_eq!(series, all);
    for growth in growth {
        assert!(growth["from"].as_u64() < growth["to"].as_u64(), "{growth}");
        // In less than a second of idling there may be nothing to compare.
        let factors = growth["factors"].as_object().unwrap();
        let idle = growth["series"] == "members";
        assert!(factors.len() > 1 && (idle || factors.values().all(Value::is_number)), "{growth}");
    }
    assert_eq!((growth[0]["from"].as_u64(), growth[0]["to"].as_u64()), (Some(1), Some(256)));
}

#[test]
fn the_tables_of_the_documentation() {
    let only = "produce-1,consume-1,consume-8,e2e-1000,memory-waiting,idle";
    let text = printed(&format!("--scale 0.001 --runs 1 --warm-up 0 --only {only} --markdown"));
    for part in [
        "with 0.001 of the messages",
        "### Throughput",
        "| bulk produce, 1 partition | `produce --messages 600000` | ",
        "### Latency",
        "### Memory",
        "### Idle traffic",
        "requests/s per owned partition ≤ 0.60",
        "### Growth",
        "| partitions, consuming | 1 | 8 | ",
    ] {
        assert!(text.contains(part), "no {part:?}: {text}");
    }
    let mut widths = text.split("\n\n").filter(|part| part.starts_with('|')).map(|table| {
        let of = |line: &str| line.matches('|').count();
        (of(table), of(table.lines().next().unwrap()) * table.lines().count())
    });
    assert!(widths.all(|(pipes, expected)| pipes == expected), "a row is not as wide as its header: {text}");
}

#[test]
fn with_an_append_only_file_there_are_ratios_alone() {
    let text =
        printed("--scale 0.001 --runs 1 --warm-up 0 --only produce-1,retry,idle --aof everysec --markdown");
    assert!(text.contains("append-only file (everysec)") && text.contains("| `produce"), "{text}");
    assert!(text.contains("| messages/s | client CPU | Redis CPU |"), "{text}");
    assert!(!text.contains("idle") && !text.contains("target"), "{text}");
}

#[test]
fn a_table_for_people_says_what_was_met() {
    let text = printed("--scale 0.001 --runs 1 --warm-up 0 --only memory-waiting,produce-1");
    assert!(text.contains("target") && text.contains("bytes/message ≤ 1.10×"), "{text}");
    let line = text.lines().find(|line| line.starts_with("waiting message")).unwrap();
    assert!(line.ends_with("met") || line.contains("missed: "), "{line}");
}
