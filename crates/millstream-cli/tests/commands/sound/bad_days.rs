//! `millstream doctor` on a server that does not do what is needed: it names the cause, and nothing else beside it.

use std::time::Instant;

use serde_json::Value;

use crate::support::cli::Cli;
use crate::support::server::{HANG, Server};

/// The reports that are not `ok`, as `subject: found; advice`, without those on the version and on settings.
fn told(server: &Server) -> (Vec<String>, Value) {
    let all = Cli::at(server.url()).json_with(3, "doctor");
    let reports = all["reports"].as_array().expect("a list").iter();
    let bad = reports.filter(|it| it["level"] != "ok").filter(|it| {
        !["version", "memory", "appendonly", "disk", "role"].iter().any(|about| it["subject"] == *about)
    });
    let text = |it: &Value, name: &str| it[name].as_str().unwrap_or("?").to_owned();
    let lines = bad.map(|it| {
        format!(
            "{} {}: {}; {}",
            text(it, "level"),
            text(it, "subject"),
            text(it, "found"),
            text(it, "advice")
        )
    });
    (lines.collect(), all)
}

/// Checks that the doctor names one thing, and says of no command that it is allowed or denied.
#[track_caller]
fn names(server: &Server, begins: &str, cause: &str, cure: &str) {
    let (lines, all) = told(server);
    assert_eq!(lines.len(), 1, "{cause}: {all:#}");
    let line = &lines[0];
    assert!(line.starts_with(begins) && line.contains(cause) && line.contains(cure), "{line}");
    let rights = all["reports"].as_array().expect("a list").iter().any(|it| it["subject"] == "rights");
    assert!(!rights, "{cause}: {all:#}");
}

#[test]
fn a_server_that_refuses_to_write_is_told_with_its_own_reason() {
    let full = Server::builder().arg("--maxmemory", "1").start();
    names(&full, "error writes: refused: ", "OOM", "Raise maxmemory");

    let alone = Server::builder().arg("--min-replicas-to-write", "1").start();
    names(&alone, "error writes: refused: ", "NOREPLICAS", "Bring its replicas back");

    let replica = Server::builder().arg("--replicaof", "127.0.0.1 1").start();
    names(&replica, "error writes: refused: ", "READONLY", "connect to its primary");

    // Its folder is gone when it saves.
    let unsaved = Server::builder().arg("--save", "3600 1").start();
    let answer = unsaved.cli(&["CONFIG", "GET", "dir"]);
    std::fs::remove_dir_all(answer.lines().last().expect("a path")).expect("removed");
    unsaved.cli(&["SET", "k", "v"]);
    unsaved.cli(&["BGSAVE"]);
    let began = Instant::now();
    while !unsaved.cli(&["INFO", "persistence"]).contains("rdb_last_bgsave_status:err") {
        assert!(began.elapsed() < HANG, "the snapshot fails");
        std::thread::yield_now();
    }
    names(&unsaved, "error writes: refused: ", "MISCONF", "free or mend the disk");
}

#[test]
fn a_command_that_the_server_does_not_have_is_named_as_missing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("renamed.conf");
    for command in
        ["EVAL", "EVALSHA", "EVALSHA_RO", "SCRIPT", "TIME", "XINFO", "XADD", "MULTI", "DISCARD", "INFO"]
    {
        std::fs::write(&path, format!("rename-command {command} \"\"\n")).expect("written");
        let server = Server::builder().arg("--include", path.to_str().expect("a path")).start();
        if command == "INFO" {
            // Without it nobody connects.
            let why = Cli::at(server.url()).fails(1, "doctor");
            assert!(why.contains("INFO"), "{why}");
        } else {
            names(&server, "error commands: not there: ", command, "rename-command");
        }
    }
}
