//! `millstream top`, on a terminal and without one.

#[cfg(feature = "top")]
pub(crate) mod picture;

use std::process::{Command, Stdio};
use std::time::Duration;

use millstream::{Consumer, Delivery, Millstream, Outcome, Retention, Start, Topic};
use rustix::process::Signal;
use tokio::sync::mpsc;
use vt100::Color;

use crate::support::cli::{Cli, Ran};
use crate::support::pty::{Pty, lines};
use crate::support::server::Server;

const ORDERS: Topic<u64> = Topic::new("orders").partitions(2).retention(Retention::Keep);

/// 40 orders, of which `billing` handles all but three, and `audit` has read none; 5 more for later.
async fn running(mq: &Millstream) -> Consumer {
    let producer = mq.producer(ORDERS).await.expect("a producer");
    let (topic, audit) = ("orders".parse().expect("a name"), "audit".parse().expect("a name"));
    mq.admin().create_group(&topic, &audit, Start::Earliest).await.expect("a group");
    for order in 0..40 {
        producer.send(&order).await.expect("sent");
    }
    for order in 100..105 {
        producer.send(&order).delay(Duration::from_secs(3_600)).await.expect("scheduled");
    }
    let (handled, mut all) = mpsc::unbounded_channel();
    let handle = move |order: Delivery<u64>| {
        let outcome = match order.payload {
            7..10 => Outcome::dead_letter("no such\u{1b}[31m till"),
            _ => Outcome::Ack,
        };
        // The receiver may be gone.
        let _ = handled.send(());
        async move { outcome }
    };
    let consumer =
        mq.consumer(ORDERS, "billing").member_id("till-1").start(handle).await.expect("a consumer");
    for _ in 0..40 {
        all.recv().await.expect("handled");
    }
    consumer
}

fn top(cli: &Cli, args: &[&str]) -> Command {
    cli.command(&[&["top", "--interval", "100ms"], args].concat())
}

const LARGE: (u16, u16) = (120, 36);

#[tokio::test(flavor = "multi_thread")]
async fn a_running_queue_is_shown_inspected_and_left() {
    let cli = Cli::new();
    let mq = cli.mq().await;
    let consumer = running(&mq).await;
    let mut pty = Pty::run(&top(&cli, &[]), LARGE);

    // Partitions, entries, nothing per second, delayed; then the groups: out, lag, oldest, pending, retrying, dead, owned.
    pty.until_line("orders 2 40 0 5");
    pty.until_line("└ billing 0 0 0 - 0 0 3 2/2");
    let audit = pty.until_line("├ audit 0 40 40");
    assert_eq!(audit.split_whitespace().collect::<Vec<_>>()[6..], ["0", "0", "0", "0/2"], "{audit}");
    pty.until_text("no such·[31m till");

    // What comes while it is shown.
    let producer = mq.producer(ORDERS).await.expect("a producer");
    for order in 40..50 {
        producer.send(&order).await.expect("sent");
    }
    pty.until_line("orders 2 50");
    let rate = |screen: &vt100::Screen| {
        let line = lines(screen).find(|line| line.split_whitespace().next() == Some("orders"))?;
        line.split_whitespace().nth(3)?.parse::<f64>().ok().filter(|rate| *rate > 0.0)
    };
    pty.until("a rate of what came", rate);
    pty.until_line("├ audit 0 50");

    // Down to the second group, and into its topic.
    pty.press("jj");
    pty.until_text("Consumers · orders / billing");
    pty.until_line("ago 0-1");
    pty.press("\r");
    pty.until_text("Partitions for billing");
    pty.until_text("Topic orders · 2 partitions · 50 entries");
    pty.until("the owner of both partitions", |screen| {
        (screen.contents().matches("till-1").count() == 3).then_some(())
    });
    pty.press("k");
    pty.until_text("Partitions for audit");
    pty.press("j\r");
    pty.until_text("Pending of orders / billing");
    pty.until_text("Nothing is pending");
    pty.until_line("1 rejected no such·[31m till");
    let payload = |screen: &vt100::Screen| {
        let line = lines(screen).find(|line| line.trim_start().starts_with("payload"))?;
        line.split_whitespace().nth(1).map(str::to_owned)
    };
    let newest = pty.until("the payload of the newest", payload);
    assert!(["7", "8", "9"].contains(&newest.as_str()), "{newest}");
    pty.press("\t\x1b[B");
    pty.until("the payload of the next", |screen| payload(screen).filter(|next| *next != newest));

    // Paused for everybody, and not by chance.
    pty.press("pn");
    pty.press("p");
    pty.until_text("Pause billing of orders, for all its consumers?");
    pty.press("y\x1b");
    pty.until_text("billing (paused)");
    let (orders, billing) = ("orders".parse().expect("a name"), "billing".parse().expect("a name"));
    assert!(mq.admin().group_state(&orders, &billing).await.expect("a state").paused.is_some());
    pty.press("py");
    pty.until("no pause", |screen| (!screen.contents().contains("(paused)")).then_some(()));
    assert!(mq.admin().group_state(&orders, &billing).await.expect("a state").paused.is_none());

    // Back, a filter that fits nothing, and the end.
    pty.press("\x1b");
    pty.until_line("orders 2 50");
    pty.press("/none\r");
    pty.until_text("No topic of that name");
    pty.press("q");
    let (code, left) = pty.end();
    assert_eq!((code, left.trim()), (0, ""));
    consumer.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_way_out_leaves_the_terminal_as_it_was() {
    let cli = Cli::new();
    running(&cli.mq().await).await.shutdown().await;
    for way in ["\x03", "q", "?q"] {
        let mut pty = Pty::run(&top(&cli, &[]), LARGE);
        pty.until_line("orders 2 40");
        pty.press(way);
        assert_eq!(pty.end().0, 0, "{way:?}");
    }
    for signal in [Signal::TERM, Signal::INT] {
        let pty = Pty::run(&top(&cli, &[]), LARGE);
        pty.until_line("orders 2 40");
        pty.signal(signal);
        assert_eq!(pty.end().0, 0, "{signal:?}");
    }
    // Before there is anything to be seen.
    assert!(cli.fails(1, "top --once --url redis://127.0.0.1:1").contains("error: "));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_may_be_small_and_change_its_size() {
    let cli = Cli::new();
    running(&cli.mq().await).await.shutdown().await;
    let mut pty = Pty::run(&top(&cli, &[]), (80, 24));
    pty.until_line("└ billing 0 0 0 - 0 3");
    for size in [(40, 10), (1, 1), (200, 50), (20, 4), (84, 24)] {
        pty.resize(size);
    }
    pty.until_line("└ billing 0 0 0 - 0 3");
    pty.press("/bill\r");
    pty.until_text("with \"bill\"");
    pty.resize((40, 10));
    pty.until("a line of 40 columns", |screen| {
        let narrow = |line: &String| line.contains("└ billing") && line.trim_end().ends_with('3');
        lines(screen).any(|line| narrow(&line)).then_some(())
    });
    pty.press("q");
    assert_eq!(pty.end().0, 0);
}

/// The process is stopped meanwhile, so that it finds both at once.
#[tokio::test(flavor = "multi_thread")]
async fn keys_that_come_with_a_change_of_size_are_not_lost() {
    let cli = Cli::new();
    running(&cli.mq().await).await.shutdown().await;
    let mut pty = Pty::run(&top(&cli, &[]), LARGE);
    pty.until_line("orders 2 40");
    for round in 0..20 {
        let text = format!("with \"bill{round}\"");
        pty.signal(Signal::STOP);
        pty.resize((LARGE.0 - round % 2, LARGE.1));
        pty.press(&format!("/bill{round}\r"));
        pty.signal(Signal::CONT);
        pty.until_text(&text);
        // Leaves the filter. That its text is gone is no sign of it: a change of size clears the screen first. And what
        // is typed behind an escape that nobody has read yet is one key with it.
        pty.press("\u{1b}");
        pty.until_line("orders 2 40");
    }
    pty.press("q");
    assert_eq!(pty.end().0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_goes_away_is_told_and_comes_back() {
    let mut server = Server::builder().appendonly(true).start();
    let cli = Cli::at(server.url());
    running(&cli.mq().await).await.shutdown().await;
    let mut pty = Pty::run(&top(&cli, &[]), LARGE);
    pty.until_line("orders 2 40");
    server.stop();
    pty.until_text("NO ANSWER FOR");
    pty.until_text("ask for topics");
    pty.until_line("orders 2 40");
    // Keys work as before.
    pty.press("?");
    pty.until_text("freeze, and go on");
    pty.press("?");
    server.restart();
    pty.until("an answer", |screen| screen.contents().contains("asked in").then_some(()));
    let mq = cli.mq().await;
    mq.producer(ORDERS).await.expect("a producer").send(&41).await.expect("sent");
    pty.until_line("orders 2 41");
    pty.press("q");
    // Log messages of background loops did not go to the screen meanwhile.
    assert_eq!(pty.end().0, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_colours_there_are_none() {
    let cli = Cli::new();
    running(&cli.mq().await).await.shutdown().await;
    let coloured = |command: &mut Command| {
        let mut pty = Pty::run(command, LARGE);
        pty.until_line("orders 2 40");
        let coloured = pty.until("a screen", |screen| {
            let cells =
                (0..LARGE.1).flat_map(|row| (0..LARGE.0).filter_map(move |column| screen.cell(row, column)));
            let plain =
                |cell: &vt100::Cell| (cell.fgcolor(), cell.bgcolor()) == (Color::Default, Color::Default);
            Some(!cells.into_iter().all(plain))
        });
        pty.press("q");
        assert_eq!(pty.end().0, 0);
        coloured
    };
    assert!(coloured(&mut top(&cli, &[])));
    assert!(!coloured(top(&cli, &[]).env("NO_COLOR", "1")));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_terminal_it_prints_once_or_says_why_not() {
    let cli = Cli::new();
    running(&cli.mq().await).await.shutdown().await;
    let refused = Ran::of(top(&cli, &[]).stdout(Stdio::piped()));
    assert_eq!((refused.code, refused.stdout.as_str()), (2, ""));
    assert!(refused.stderr.contains("stdout is not a terminal: --once"), "{}", refused.stderr);
    assert!(cli.fails(2, "top --json").contains("--json needs --once"));
    assert!(cli.fails(2, "top --interval 1ms --once").contains("at least 100ms"));

    let table = cli.ok("top --once --interval 100ms");
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0][..3], ["TOPIC", "/", "GROUP"]);
    assert_eq!(lines[1], ["orders", "2", "40", "0", "5"]);
    assert_eq!(lines[3], ["└", "billing", "0", "0", "0", "-", "0", "0", "3", "0/2"]);
    let all = cli.json("top --once --interval 100ms");
    let orders = &all["topics"][0];
    assert_eq!(
        (&orders["topic"], &orders["entries"], &orders["delayed"]),
        (&"orders".into(), &40.into(), &5.into())
    );
    assert_eq!(orders["produced_per_second"], 0.0);
    let audit = &orders["groups"][0];
    assert_eq!(
        (&audit["lag"], &audit["backlog"], &audit["owned"], audit["oldest_ms"].is_null()),
        (&40.into(), &40.into(), &0.into(), false)
    );
}

#[test]
fn whoever_may_ask_nothing_has_not_looked() {
    let server = Server::builder().start();
    let cli = Cli::at(server.url());
    cli.ok("topic create orders");
    cli.ok("group create orders billing");
    server.cli(&[
        "ACL",
        "SETUSER",
        "reader",
        "on",
        ">pw",
        "~*",
        "+@all",
        "-zcard",
        "-xlen",
        "-xinfo",
        "-xpending",
    ]);
    let url = server.url().replace("redis://", "redis://reader:pw@");
    let mut command = cli.command(&["top", "--once", "--interval", "100ms"]);
    let refused = Ran::of(command.env("MILLSTREAM_URL", url));
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{refused:?}");
    assert!(refused.stderr.contains("error: could not ask"), "{refused:?}");
}
