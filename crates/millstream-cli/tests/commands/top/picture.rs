//! The picture of `millstream top` in the documentation: a real screen of a real queue, as SVG.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use millstream::{Consumer, Delivery, Fixed, Millstream, Outcome, Record, Retention, Start, Topic};
use vt100::{Cell, Color, Screen};

use crate::support::cli::Cli;
use crate::support::pty::{Pty, lines};
use crate::support::server::Server;

/// The size of a character, and the room around all of them.
const WIDTH: f64 = 8.4;
const HEIGHT: f64 = 18.0;
const MARGIN: f64 = 14.0;

const PAPER: &str = "#14171c";
const INK: &str = "#d6dae1";

/// The sixteen colours of a terminal.
const COLOURS: [&str; 16] = [
    "#2b3038", "#e5616b", "#8cc570", "#e3bd6a", "#6aa5e8", "#c58ae0", "#56b6c2", "#d6dae1", "#79818e",
    "#ff7a85", "#a5e087", "#f7d488", "#86bdff", "#dba4f5", "#74d4e0", "#ffffff",
];

fn colour(colour: Color, default: &str) -> String {
    match colour {
        Color::Idx(number) => COLOURS.get(usize::from(number)).map_or(INK, |it| it).to_owned(),
        Color::Rgb(red, green, blue) => format!("#{red:02x}{green:02x}{blue:02x}"),
        Color::Default => default.to_owned(),
    }
}

/// What cells that are drawn together have in common.
#[derive(Clone, PartialEq, Eq)]
struct Look {
    ink: String,
    paper: String,
    bold: bool,
}

fn look(cell: &Cell) -> Look {
    let (ink, paper) = (colour(cell.fgcolor(), INK), colour(cell.bgcolor(), PAPER));
    let (ink, paper) = if cell.inverse() { (paper, ink) } else { (ink, paper) };
    Look { ink, paper, bold: cell.bold() }
}

/// A screen as SVG. Every word has its place, so that columns stand whatever font there is.
fn svg(screen: &Screen) -> String {
    let (rows, columns) = (screen.size().0.get(), screen.size().1.get());
    let (wide, high) = (f64::from(columns) * WIDTH + 2.0 * MARGIN, f64::from(rows) * HEIGHT + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {wide:.0} {high:.0}\" width=\"{wide:.0}\" \
         height=\"{high:.0}\" font-family=\"ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace\" \
         font-size=\"14\" xml:space=\"preserve\">\n<title>millstream top</title>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"{PAPER}\"/>\n"
    );
    for row in 0..rows {
        let mut column = 0;
        while column < columns {
            let Some(first) = screen.cell(row, column) else { break };
            let (look, begin, mut text) = (look(first), column, String::new());
            while let Some(cell) = screen.cell(row, column).filter(|cell| self::look(cell) == look) {
                text.push_str(if cell.has_contents() { cell.contents() } else { " " });
                column += 1;
            }
            draw(&mut svg, f64::from(row), f64::from(begin), &text, &look);
        }
    }
    svg + "</svg>\n"
}

fn draw(svg: &mut String, row: f64, column: f64, text: &str, look: &Look) {
    let (top, left) = (MARGIN + row * HEIGHT, |at: usize| MARGIN + (column + at as f64) * WIDTH);
    if look.paper != PAPER {
        let width = text.chars().count() as f64 * WIDTH;
        let (x, paper) = (left(0), &look.paper);
        writeln!(
            svg,
            "<rect shape-rendering=\"crispEdges\" x=\"{x:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{HEIGHT}\" fill=\"{paper}\"/>"
        )
        .expect("text");
    }
    let mut at = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if length > 0 {
            let escaped = word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
            let (x, y, width) = (left(at), top + HEIGHT - 5.0, length as f64 * WIDTH);
            let bold = if look.bold { " font-weight=\"bold\"" } else { "" };
            writeln!(
                svg,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{width:.1}\" fill=\"{}\"{bold}>{escaped}</text>",
                look.ink
            )
            .expect("text");
        }
        at += length + 1;
    }
}

const FLIGHTS: Topic<u64> = Topic::new("flights").partitions(8).retention(Retention::Length(20_000));
const ORDERS: Topic<u64> = Topic::new("orders").partitions(4);
const PAYMENTS: Topic<u64> = Topic::new("payments").partitions(4);
const MAILS: Topic<u64> = Topic::new("mails").partitions(2);

/// Sends this number of messages per second until it is stopped.
async fn send(mq: Millstream, topic: Topic<u64>, per_second: u64, stop: Arc<AtomicBool>) {
    let producer = mq.producer(topic).await.expect("a producer");
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    let (mut number, begin) = (0, Instant::now());
    while !stop.load(Ordering::Relaxed) {
        tick.tick().await;
        // It comes and goes, by a third.
        let wave = 1.0 + (begin.elapsed().as_secs_f64() / 2.0).sin() / 3.0;
        let due = per_second as f64 / 50.0 * wave + fastrand::f64();
        let some: Vec<u64> = (number..number + due as u64).collect();
        number += some.len() as u64;
        let records: Vec<Record<'_, u64>> = some.iter().map(Record::new).collect();
        producer.send_all(records).await;
    }
}

/// A consumer that takes its time, and cannot do everything.
async fn consume(mq: &Millstream, topic: Topic<u64>, group: &str, member: &str, each: Duration) -> Consumer {
    let (error, faulty) = match group {
        "ledger" => ("card 4929…8812: insufficient funds", 151),
        "billing" => ("order has no customer", 971),
        "archive" => ("callsign SWR2\u{1b}[7m: not printable", 5_003),
        _ => ("no gate at ZRH", 9_001),
    };
    let handle = move |message: Delivery<u64>| async move {
        if !each.is_zero() {
            tokio::time::sleep(each).await;
        }
        match message.payload {
            number if number % faulty == 7 => Outcome::dead_letter(error),
            number if number % 90 == 3 => Outcome::retry("gateway.example: 503 Service Unavailable"),
            _ => Outcome::Ack,
        }
    };
    let retry = Fixed::new(Duration::from_secs(20)).attempts(5);
    mq.consumer(topic, group).member_id(member).retry(retry).start(handle).await.expect("a consumer")
}

#[ignore = "draws docs/images/top.svg, which takes half a minute: run it by name to draw it anew"]
#[tokio::test(flavor = "multi_thread")]
async fn the_picture_of_the_documentation() {
    let server = Server::start();
    let cli = Cli::at(server.url());
    let mq = cli.mq().await;
    let stop = Arc::new(AtomicBool::new(false));
    let loads = [(FLIGHTS, 1_500), (ORDERS, 250), (PAYMENTS, 100)];
    let loads = loads.map(|(topic, rate)| tokio::spawn(send(mq.clone(), topic, rate, stop.clone())));
    let mails = mq.producer(MAILS).await.expect("a producer");
    for number in 0..400 {
        mails.send(&number).delay(Duration::from_secs(600 + number)).await.expect("scheduled");
    }
    let ms = Duration::from_millis;
    let mut consumers = Vec::new();
    for (topic, group, member, each) in [
        (FLIGHTS, "radar", "radar-1", ms(0)),
        (FLIGHTS, "radar", "radar-2", ms(0)),
        (FLIGHTS, "archive", "archive-1", ms(7)),
        (ORDERS, "billing", "billing-1", ms(5)),
        (ORDERS, "billing", "billing-2", ms(5)),
        (PAYMENTS, "ledger", "ledger-1", ms(2)),
        (MAILS, "sender", "sender-1", ms(0)),
    ] {
        consumers.push(consume(&mq, topic, group, member, each).await);
    }
    let (orders, audit) = ("orders".parse().expect("a name"), "audit".parse().expect("a name"));
    mq.admin().create_group(&orders, &audit, Start::Latest).await.expect("a group");

    let mut pty = Pty::run(&cli.command(&["top"]), (120, 36));
    pty.until("curves of some length", |screen| {
        let head = lines(screen).nth(1)?;
        (head.chars().filter(|c| ('▁'..='█').contains(c)).count() >= 20).then_some(())
    });
    let (first, second) = (draw_now(&pty, "top"), {
        pty.press("jjjjjjjj\r");
        pty.until_text("Partitions for ledger");
        pty.until_text("ledger-1");
        pty.press("\r\t");
        pty.until_text("insufficient funds");
        pty.until("a payload", |screen| {
            lines(screen).any(|line| line.starts_with(" payload  ") && line.len() > 11).then_some(())
        });
        draw_now(&pty, "top-messages")
    });
    assert!(first && second);
    pty.press("q");
    assert_eq!(pty.end().0, 0);
    stop.store(true, Ordering::Relaxed);
    for load in loads {
        load.await.expect("sent");
    }
    for consumer in consumers {
        consumer.shutdown().await;
    }
}

/// Writes what is on the screen now.
fn draw_now(pty: &Pty, name: &str) -> bool {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images").join(format!("{name}.svg"));
    // A screen that is half drawn is another one a moment later.
    let now = || pty.until("a screen", |screen| Some(svg(screen)));
    let mut svg = now();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let later = now();
        if later == std::mem::replace(&mut svg, later.clone()) {
            break;
        }
    }
    std::fs::create_dir_all(path.parent().expect("a folder")).and_then(|()| std::fs::write(path, svg)).is_ok()
}
