//! The alerts, as Prometheus evaluates them.

use std::path::Path;
use std::process::Command;

/// Runs `promtool` where the alerts are.
fn promtool(args: &[&str]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/observability");
    let output = Command::new("promtool").args(args).current_dir(folder).output();
    let output = output.expect("promtool, which `cargo xtask test` asks for, is on the search path");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
}

#[test]
fn the_rules_are_valid() {
    promtool(&["check", "rules", "alerts.yml"]);
}

/// The series and what must fire are in the file.
#[test]
fn alerts_fire_when_they_should_and_not_before() {
    promtool(&["test", "rules", "alerts_test.yml"]);
}
