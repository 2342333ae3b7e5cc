//! `millstream plan`, which needs no server.

use serde_json::json;

use crate::support::cli::{Ran, bare};
use crate::support::envelope;

fn run(words: &str) -> Ran {
    let words: Vec<&str> = words.split(' ').collect();
    Ran::of(bare(&words).env("MILLSTREAM_URL", "redis://127.0.0.1:1"))
}

#[test]
fn a_plan_is_a_table_for_people_and_data_for_programs() {
    let ran = run("plan --rate 2000/s --size 1KiB --retention 1d --json");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    envelope::is_strict(ran.stdout.trim_end());
    let plan = envelope::data(&ran.stdout);
    // As docs/guides/production.md computes it.
    assert_eq!((&plan["bytes"], &plan["partitions"]), (&json!(208_051_200_000_u64), &json!(40)), "{plan}");
    assert_eq!(
        (&plan["near"][0]["limit"], plan["near"].as_array().map(Vec::len)),
        (&json!("memory"), Some(2))
    );
    let table = run("plan --rate 2000 --size 1024 --retention 24h");
    for part in
        ["172,800,000", "1,204 B", "193.8 GiB", "1.1 % of a core", "\nnear  the server needs 322.9 GiB"]
    {
        assert!(table.code == 0 && table.stdout.contains(part), "{part}: {table:?}");
    }
    let small = run("plan --rate 6000/m --size 128");
    assert!(small.stdout.ends_with("\nok  no limit is near\n"), "{small:?}");
}

#[test]
fn what_makes_no_sense_is_refused() {
    for options in [
        "--size 1 --rate 0",
        "--size 1 --rate 10000001/s",
        "--rate 1 --size 0",
        "--rate 1 --size 1 --retention 0s",
        "--rate 1 --size 1 --retention 3651d",
        "--rate 1 --size 1 --handler 0ms",
        "--rate 1 --size 1 --handler 25h",
        "--rate 1 --size 1 --groups 0",
        "--rate 1 --size 1 --concurrency 0",
        "--rate 1 --size 1 --instances 0",
        "--rate 1 --size 1 --replicas 17",
    ] {
        let ran = run(&format!("plan {options}"));
        assert!(ran.code == 2 && ran.stderr.contains("invalid value"), "{options}: {ran:?}");
    }
    let most =
        "plan --rate 10000000/s --size 512MiB --retention 3650d --groups 1000 --handler 1d --concurrency 1";
    assert_eq!(run(most).code, 0);
}
