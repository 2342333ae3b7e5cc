//! Rules on Rust files: what stands where, and what stands nowhere.

use house::tree::{code, has_word, offenders, read, rust_files, shipped_files};

use crate::none;

const KEYS: &str = "crates/millstream-core/src/keys.rs";

/// The folders that may name the Redis client; docs/architecture.md gives the reasons.
pub(crate) const CLIENT: [&str; 2] = ["crates/millstream-redis/", "crates/millstream-bench/src/bare/"];

/// These rules, which name what they forbid.
const HOUSE: &str = "crates/house/";

#[test]
fn the_first_line_of_a_file_says_what_it_is_for() {
    let offenders: Vec<_> = rust_files()
        .filter(|(_, text)| !text.starts_with("//!") && !text.starts_with("#![doc"))
        .map(|(path, _)| path)
        .collect();
    none(&offenders, "Start the file with `//!` and a sentence:");
}

#[test]
fn only_the_redis_crate_names_the_client() {
    let elsewhere = rust_files().filter(|(path, _)| {
        path.starts_with("crates/")
            && !path.starts_with(HOUSE)
            && !CLIENT.iter().any(|folder| path.starts_with(folder))
    });
    let offenders =
        offenders(elsewhere, |_, line| has_word(line, "redis::") || has_word(line, "deadpool_redis::"));
    none(&offenders, "Go through a role of millstream-core, or move it to millstream-redis:");
}

#[test]
fn only_keys_rs_makes_a_key() {
    let families = ["stream:topic:", "streaming:mq:"];
    let elsewhere = shipped_files().filter(|(path, _)| path != KEYS && !path.starts_with(HOUSE));
    let mut offenders = offenders(elsewhere, |_, line| families.iter().any(|family| line.contains(family)));
    let keys = read(KEYS).expect("keys.rs");
    if !code(&keys).iter().any(|(_, line)| line.starts_with("pub struct Key(") && !line.contains("(pub")) {
        offenders.push(format!("{KEYS}: `pub struct Key(…)` with a private field is not there"));
    }
    none(&offenders, "Take the key from `Keys`, which the golden test pins:");
}

#[test]
fn the_core_has_no_clock_no_network_and_no_runtime() {
    let words = ["Instant", "SystemTime::now", "std::net", "std::fs", "std::thread", "tokio"];
    let core = shipped_files().filter(|(path, _)| path.starts_with("crates/millstream-core/"));
    let offenders = offenders(core, |_, line| words.iter().any(|word| has_word(line, word)));
    none(
        &offenders,
        "Pass the time or the bytes as a value, and leave the doing to a backend or the runtime:",
    );
}

/// The compiler quotes the line of a bound that a function does not meet. So that line names `with_state`: a handler with arguments that
/// is passed without it does not meet the bound.
#[test]
fn the_bound_of_a_handler_names_with_state() {
    let handlers = shipped_files().filter(|(path, _)| {
        path.starts_with("crates/millstream-runtime/") || path.starts_with("crates/millstream-delay/")
    });
    let (mut offenders, mut found) = (Vec::new(), 0);
    for (path, text) in handlers {
        let lines: Vec<&str> = text.lines().collect();
        for (at, line) in lines.iter().enumerate() {
            let is_bound =
                ["Delivery<", "Task<", "Letter<"].iter().any(|it| line.contains(&format!("F: Fn({it}")));
            let is_handler = lines[at..]
                .iter()
                .take(3)
                .any(|it| it.contains("Fut::Output: Into") && it.contains("Outcome"));
            if is_bound && is_handler {
                found += 1;
                if !line.contains("with_state(state, f)") {
                    offenders.push(format!("{path}:{}", at + 1));
                }
            }
        }
    }
    none(&offenders, "Put `// other arguments: with_state(state, f), handler(f)` behind the bound:");
    assert!(found > 5, "the bounds of handlers are written in another way: {found}");
    let extract = read("crates/millstream-engine/src/extract.rs").expect("the extractors");
    assert!(extract.contains("`with_state(state, function)` passes one"), "the note of `Handler`");
}

#[test]
fn an_ignored_test_says_why() {
    let offenders = offenders(rust_files(), |_, line| line.trim() == concat!("#[", "ignore]"));
    none(&offenders, "Write the reason into the attribute, or delete the test:");
}
