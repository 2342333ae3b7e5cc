//! Global options: where the queue is, and what stands in for them.

use std::fs;
use std::io::Read;
use std::process::Stdio;

use millstream::Topic;
use serde_json::json;

use crate::support::cli::{Cli, Ran, bare};

/// What a list of the place says.
const HERE: &str = "{\"version\":1,\"command\":\"topic list\",\"data\":[{\"topic\":\"here\",\"partitions\":1,\
     \"retention\":{\"rule\":\"consumed\"},\"max_length\":null,\
     \"dead_letter_retention\":{\"max_age_ms\":null,\"max_length\":null},\"packing\":null}]}\n";

/// What it says of a place without topics.
const NOTHING: &str = "{\"version\":1,\"command\":\"topic list\",\"data\":[]}\n";

/// A place with a topic in it.
async fn place() -> Cli {
    let cli = Cli::new();
    cli.mq().await.producer(Topic::<u64>::new("here")).await.expect("a topic");
    cli
}

fn said(args: &[&str], file: &str) -> Ran {
    let folder = tempfile::tempdir().expect("a folder");
    fs::create_dir(folder.path().join("millstream")).expect("a folder");
    fs::write(folder.path().join("millstream/config.toml"), file).expect("a file");
    Ran::of(bare(args).env("XDG_CONFIG_HOME", folder.path()))
}

#[tokio::test]
async fn a_file_stands_in_for_the_environment_and_that_for_options() {
    let (here, other) = (place().await, Cli::new());
    let list = ["topic", "list", "--json"];
    let file = format!("url = {:?}\nnamespace = {:?}\n", here.url, here.namespace);
    let ran = said(&list, &file);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, HERE), "{ran:?}");

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("other.toml");
    fs::write(&path, &file).expect("a file");
    let named = ["--config", path.to_str().expect("UTF-8"), "topic", "list", "--json"];
    assert_eq!(Ran::of(&mut bare(&named)).stdout, HERE);
    let environment = Ran::of(bare(&named).env("MILLSTREAM_NAMESPACE", &other.namespace));
    assert_eq!(environment.stdout, NOTHING, "the environment goes before the file");
    let option = [&named[..], &["--namespace", &here.namespace]].concat();
    let option = Ran::of(bare(&option).env("MILLSTREAM_NAMESPACE", &other.namespace));
    assert_eq!(option.stdout, HERE, "an option goes before the environment");
}

#[tokio::test]
async fn a_variable_that_is_empty_is_not_set_and_an_empty_option_is() {
    let here = place().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("c.toml");
    fs::write(&path, format!("url = {:?}\nnamespace = {:?}\n", here.url, here.namespace)).expect("a file");
    let path = path.to_str().expect("UTF-8");
    let args = ["--config", path, "topic", "list", "--json"];
    let empty = Ran::of(bare(&args).env("MILLSTREAM_NAMESPACE", "").env("MILLSTREAM_URL", ""));
    assert_eq!((empty.code, empty.stdout.as_str()), (0, HERE), "{empty:?}");
    let none = Ran::of(&mut bare(&[&args[..], &["--namespace", ""]].concat()));
    assert_eq!(none.code, 0, "{none:?}");
    assert_ne!(none.stdout, HERE, "it goes before the file");
    let folder = folder.path().join("millstream");
    fs::create_dir(&folder).expect("a folder");
    let list = Ran::of(
        here.command(&["topic", "list", "--json"])
            .env("MILLSTREAM_CONFIG", "")
            .env("XDG_CONFIG_HOME", "/none"),
    );
    assert_eq!((list.code, list.stdout.as_str()), (0, HERE), "{list:?}");
}

#[test]
fn a_bad_file_is_an_error_and_tells_no_password() {
    let ran = said(&["topic", "list"], "namespace = \"a\"\nulr = \"redis://u:hunter2@h\"");
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("config.toml:2: unknown field `ulr`"), "{ran:?}");
    assert!(!ran.stderr.contains("hunter2"), "{ran:?}");
    let missing = Ran::of(&mut bare(&["--config", "/nonexistent/c.toml", "topic", "list"]));
    assert_eq!(missing.code, 1);
    assert!(missing.stderr.starts_with("error: cannot read /nonexistent/c.toml: "), "{missing:?}");
}

#[test]
fn no_password_is_printed() {
    for url in ["redis://u:hunter2@127.0.0.1:1", "http://u:hunter2@h", "redis://u:hunter2@127.0.0.1:port"] {
        let ran = Ran::of(&mut bare(&["--url", url, "topic", "list"]));
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        assert!(ran.stderr.starts_with("error: ") && !ran.stderr.contains("hunter2"), "{ran:?}");
        let debug = Ran::of(bare(&["topic", "list"]).env("MILLSTREAM_URL", url).env("RUST_LOG", "trace"));
        assert!(debug.code == 1 && !debug.stderr.contains("hunter2"), "{debug:?}");
    }
    let help = Ran::of(bare(&["--help"]).env("MILLSTREAM_URL", "redis://u:hunter2@h"));
    assert!(help.code == 0 && !help.stdout.contains("hunter2"), "{help:?}");
}

#[test]
fn wrong_usage_is_told_apart() {
    for args in [&["nothing"][..], &["topic"], &["topic", "list", "--what"], &[]] {
        assert_eq!(Ran::of(&mut bare(args)).code, 2, "{args:?}");
    }
}

#[tokio::test]
async fn whoever_reads_may_have_enough() {
    let cli = place().await;
    let mut child = cli
        .command(&["topic", "list"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut said).expect("text");
    let code = child.wait().expect("it ends").code();
    assert_eq!((code, said.as_str()), (Some(0), ""));
    assert_eq!(
        cli.json("topic list"),
        json!([{
            "topic": "here", "partitions": 1, "retention": { "rule": "consumed" }, "max_length": null,
            "dead_letter_retention": { "max_age_ms": null, "max_length": null },
            "packing": null,
        }])
    );
}
