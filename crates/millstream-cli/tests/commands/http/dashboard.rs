//! `millstream dashboard`.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use rustix::process::Signal;

use crate::support::cli::Cli;
use crate::support::envelope;
use crate::support::feed::{Running, topic};

/// Status and text of an answer.
fn ask(address: SocketAddr, request: &str, headers: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    write!(stream, "{request} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n").expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    (status, answer)
}

fn started(cli: &Cli, more: &[&str]) -> (Running, SocketAddr) {
    // The tests may run in a container.
    let local: &[&str] = if more.contains(&"--users") { &[] } else { &["--trust-loopback"] };
    let args = [&["dashboard", "--address", "127.0.0.1:0", "--json"], local, more].concat();
    let mut dashboard = Running::new(cli, &args);
    let said = envelope::data(&dashboard.line());
    let address = said["address"].as_str().and_then(|it| it.parse().ok()).expect("an address");
    (dashboard, address)
}

/// What a page of it says.
pub(crate) fn page(cli: &Cli, path: &str) -> String {
    let (_dashboard, address) = started(cli, &[]);
    let (status, page) = ask(address, &format!("GET {path}"), LOCAL);
    assert_eq!(status, 200, "{page}");
    page
}

const LOCAL: &str = "Host: localhost\r\n";
const FORM: &str = "Host: localhost\r\nOrigin: http://localhost\r\n\
                    Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 0\r\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_shows_and_changes_a_queue_until_a_signal_comes() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    topic(&mq, "orders", 2).await;
    cli.ok("group create orders billing --from earliest");
    let (mut dashboard, address) = started(&cli, &[]);
    let (status, page) = ask(address, "GET /overview", LOCAL);
    assert_eq!(status, 200, "{page}");
    assert!(page.contains("orders") && page.contains("billing"), "{page}");
    let (status, answer) = ask(address, "POST /topics/orders/groups/billing/pause", FORM);
    assert!(status == 303 && answer.contains("/actions/"), "{answer}");
    let (name, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
    assert!(mq.admin().group_state(&name, &group).await.expect("its state").paused.is_some());
    assert_eq!(ask(address, "GET /overview", "Host: evil.example\r\n").0, 403);
    dashboard.signal(Signal::TERM);
    assert_eq!(dashboard.ended(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_changes_nothing_and_hidden_parts_stay_hidden() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let producer = topic(&mq, "orders", 1).await;
    producer.send(&bytes::Bytes::from_static(b"the-secret")).await.expect("sent");
    cli.ok("group create orders billing --from earliest");
    let (_dashboard, address) = started(&cli, &["--read-only", "--redact", "orders=payload"]);
    assert_eq!(ask(address, "POST /topics/orders/groups/billing/pause", FORM).0, 403);
    let (name, group) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
    assert_eq!(mq.admin().group_state(&name, &group).await.expect("its state").paused, None);
    let (status, page) = ask(address, "GET /topics/orders/messages", LOCAL);
    assert!(status == 200 && page.contains("(redacted)") && !page.contains("the-secret"), "{page}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_log_in_and_without_them_it_listens_on_this_machine_only() {
    let cli = Cli::new();
    let refused = cli.fails(1, "dashboard --address 0.0.0.0:0");
    assert!(refused.contains("no authentication is configured"), "{refused}");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("users");
    std::fs::write(&file, "ann admin password-of-ann\n").expect("written");
    let file = file.to_str().expect("text");
    let (_dashboard, address) = started(&cli, &["--users", file]);
    let (status, answer) = ask(address, "GET /overview", LOCAL);
    assert!(status == 401 && answer.contains("www-authenticate: Basic"), "{answer}");
    // ann:password-of-ann
    let header = format!("{LOCAL}Authorization: Basic YW5uOnBhc3N3b3JkLW9mLWFubg==\r\n");
    assert_eq!(ask(address, "GET /overview", &header).0, 200);
    std::fs::write(file, "ann admin short\n").expect("written");
    let bad = cli.fails(1, ["dashboard", "--users", file]);
    assert!(bad.contains("line 1") && !bad.contains("short\n"), "{bad}");
    assert!(cli.fails(2, "dashboard --redact orders=body").contains("no part of a message"));
}

#[test]
fn the_guide_lists_the_right_of_every_path() {
    let guide = include_str!("../../../../../docs/guides/dashboard.md");
    for route in millstream_dashboard::routes() {
        let row = format!("| {} | `{}` | {} |", route.method, route.path, route.needs);
        assert!(guide.contains(&row), "docs/guides/dashboard.md has no row {row}");
    }
    let rows =
        guide.lines().filter(|line| line.starts_with("| GET |") || line.starts_with("| POST |")).count();
    assert_eq!(rows, millstream_dashboard::routes().count(), "rows of paths that are not there");
}
