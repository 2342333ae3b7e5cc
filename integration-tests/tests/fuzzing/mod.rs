//! Properties of code that reads bytes and texts of others, on inputs that are kept and on random ones. The inputs that
//! are kept are those of the fuzz targets in `integration-tests/fuzz`, which need a nightly compiler; these tests need none.

mod harness;

use std::panic::catch_unwind;
use std::path::Path;
use std::{env, fs};

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Room for the tests in bytes. A length that is merely announced is far above it: believed, it ends the process.
const ROOM: u64 = 4 << 30;

type Check = fn(&[u8]);

const TARGETS: [(&str, Check); 7] = [
    ("config", harness::config::check),
    ("cron", harness::cron::check),
    ("envelope", harness::envelope::check),
    ("names", harness::names::check),
    ("replies", harness::replies::check),
    ("settings", harness::settings::check),
    ("url", harness::url::check),
];

fn limit_room() {
    let old = getrlimit(Resource::As);
    let room = old.maximum.map_or(ROOM, |maximum| maximum.min(ROOM));
    setrlimit(Resource::As, Rlimit { current: Some(room), maximum: old.maximum }).expect("a lower limit");
}

#[test]
fn every_input_that_is_kept_has_the_properties() {
    limit_room();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let (mut failed, mut folders) = (Vec::new(), Vec::new());
    for (target, check) in TARGETS {
        let files =
            fs::read_dir(corpus.join(target)).unwrap_or_else(|error| panic!("corpus of {target}: {error}"));
        let mut inputs = 0;
        for file in files {
            let path = file.expect("a file").path();
            let input = fs::read(&path).expect("an input");
            inputs += 1;
            if catch_unwind(|| check(&input)).is_err() {
                failed.push(path.display().to_string());
            }
        }
        assert!(inputs >= 10, "{inputs} inputs of {target}");
        folders.push(target);
    }
    assert!(failed.is_empty(), "the properties of their target do not hold for:\n{}", failed.join("\n"));
    let mut kept: Vec<_> =
        fs::read_dir(corpus).expect("a corpus").map(|it| it.expect("a folder").file_name()).collect();
    kept.sort_unstable();
    assert_eq!(kept, folders, "each folder of inputs has a target");
}

/// Tries random inputs. The seed is that of `MILLSTREAM_SEED`, or a random one, which a failure prints; their number is that
/// of `PROPTEST_CASES`, or 256.
fn holds_for(target: &str, inputs: impl Strategy<Value = Vec<u8>>) {
    limit_room();
    let (_, check) = TARGETS.iter().find(|(name, _)| *name == target).expect("a target");
    let seed: u64 = match env::var("MILLSTREAM_SEED") {
        Ok(seed) => seed.parse().expect("MILLSTREAM_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { failure_persistence: None, ..Config::default() };
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let tried = TestRunner::new_with_rng(config, random).run(&inputs, |input| {
        check(&input);
        Ok(())
    });
    if let Err(failed) = tried {
        panic!("MILLSTREAM_SEED={seed}, target {target}: {failed}");
    }
}

/// Bytes of which many are these pieces, which random bytes do not find by themselves.
fn pieces(of: &'static [&'static str]) -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => proptest::sample::select(of).prop_map(|text| text.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 0..6),
    ];
    vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

fn with_numbers(count: usize, text: impl Strategy<Value = Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (vec(any::<u8>(), count), text).prop_map(|(numbers, text)| [numbers, text].concat())
}

#[test]
fn replies_are_found_however_they_are_split() {
    let text = pieces(&[
        "+OK\r\n",
        "-ERR no\r\n",
        ":1\r\n",
        "$-1\r\n",
        "$0\r\n\r\n",
        "$3\r\nabc\r\n",
        "*0\r\n",
        "*-1\r\n",
        "*1\r\n",
        "*2\r\n",
        "*3\r\n",
        "$3\r\n1-0\r\n",
        "*1073741824\r\n",
        "*99999999999\r\n",
        "$536870912\r\n",
        "%1\r\n",
        "~1\r\n",
        "_\r\n",
        ",1.5\r\n",
        "#t\r\n",
        "(1\r\n",
        ">1\r\n",
        "=5\r\ntxt:a\r\n",
        "\r\n",
        "\r",
        "$",
        "*",
        "-7",
        "0000000000",
    ]);
    holds_for("replies", with_numbers(1, text));
}

#[test]
fn entries_are_messages_or_say_why_not() {
    holds_for("envelope", vec(prop_oneof![0u8..8, 240u8..=255, any::<u8>()], 0..80));
}

#[test]
fn keys_of_different_inputs_differ() {
    let text = pieces(&[
        "a", "b", "p", "q", "s", "lock", "retry", "item", "old", "dlq", "0", "1", ":", "{", "}", "-", ".",
        "%", "\n", "\n",
    ]);
    holds_for("names", with_numbers(4, text));
}

#[test]
fn no_url_shows_a_password() {
    let text = pieces(&[
        "redis",
        "rediss",
        "+cluster",
        "+sentinel",
        "unix",
        "://",
        ":",
        "@",
        "/",
        "?",
        "#",
        "&",
        ",",
        "[::1]",
        "host",
        "6379",
        "user=",
        "pass=",
        "%40",
        "#insecure",
        "\n",
        "\n",
    ]);
    holds_for("url", with_numbers(18, text));
}

#[test]
fn a_rule_reads_back_and_goes_forward() {
    let text = pieces(&[
        "cron ",
        "every ",
        "anchor ",
        "UTC ",
        "Europe/Zurich ",
        "skip ",
        "once ",
        "all:3 ",
        "grace:5 ",
        "* ",
        "0 ",
        "30 ",
        "2,14 ",
        "0-6 ",
        "*/10 ",
        "L ",
        "MON ",
        "31 ",
        "29 2 ",
        "#3 ",
        "W ",
        "60000 ",
        "@daily",
        "@",
        "9999 ",
    ]);
    holds_for("cron", with_numbers(18, text));
}

#[test]
fn a_setting_is_read_as_it_is_written() {
    let text = pieces(&[
        "consumed",
        "consumed-after:",
        "keep",
        "age:",
        "length:",
        "7d",
        "90m",
        "1h30m",
        "5",
        "0",
        "0s",
        "-1",
        ",",
        ":",
        "1",
        "\n",
        "\n",
        "\n",
        "18446744073709551615",
        "9007199254740993",
        "99999999999d",
        "replicated:",
        "stored",
        " ago",
        "in ",
        "now",
        "earliest",
        "7-3",
        "2026-01-31",
        "T12:00:00Z",
        "NaN",
        "1e9",
        "s",
        "ms",
    ]);
    holds_for("config", with_numbers(40, text));
}

#[test]
fn settings_are_refused_by_name_or_run() {
    // Small numbers stand for times with a meaning.
    holds_for(
        "settings",
        (any::<u8>(), any::<[u8; 8]>(), vec(prop_oneof![0u8..17, any::<u8>()], 0..60))
            .prop_map(|(kind, chosen, values)| [&[kind][..], &chosen, &values].concat()),
    );
}
