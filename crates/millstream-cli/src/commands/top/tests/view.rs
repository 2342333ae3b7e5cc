//! Tests of the drawn screen.

use std::time::Duration;

use crossterm::event::{KeyCode, KeyEvent};
use millstream::admin::Server;
use millstream::crates::core::catalog::Unreadable;
use millstream::crates::core::inspect::Structure;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Color;

use super::*;
use crate::commands::top::model::{Model, Others, TopSchedule};
use crate::commands::top::plain;
use crate::commands::top::state::State;
use crate::commands::top::view::{Theme, TopShown};

fn drawn(model: &Model, state: &State, (width, height): (u16, u16), colours: bool) -> Terminal<TestBackend> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
    let (now, stale_after, theme) = (Duration::from_secs(2), Duration::from_secs(5), Theme { colours });
    terminal.draw(|frame| TopShown { model, state, now, stale_after, theme }.draw(frame)).expect("drawn");
    terminal
}

/// Returns the lines, without trailing spaces.
fn text(model: &Model, state: &State, size: (u16, u16)) -> Vec<String> {
    let terminal = drawn(model, state, size, true);
    let buffer = terminal.backend().buffer();
    let line = |y| (0..size.0).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
    (0..size.1).map(line).collect()
}

/// Returns a model with two topics. One of them has two groups, one of which lags, and dead letters.
fn known() -> Model {
    let mut model = Model::default();
    for seconds in [0, 2] {
        let fast = |n| partition(n, 1_000 + 2_500 * seconds, 3);
        let mut slow =
            vec![partition(0, 1_000 + 2_500 * seconds, 40_000), partition(1, 1_000 + 2_500 * seconds, 7)];
        (slow[0].lag, slow[0].lag_at_least) = (None, 20_000);
        slow[0].oldest = Some(Duration::from_secs(200));
        (slow[1].pending, slow[1].retrying, slow[1].dead) = (12, 4, 2);
        let mut archive = standing("archive", slow);
        archive.owned = Some(1);
        let flights = sample(seconds, "flights", vec![archive, standing("radar", vec![fast(0), fast(1)])]);
        model.take(round(seconds, vec![flights, sample(seconds, "idle", vec![])]));
    }
    let mut more = round(2, vec![]);
    more.names = Some(vec![name("flights"), name("idle")]);
    more.letters = vec![letter("flights", 1, 1_700_000_000_000, "no gate\x1b[31m at \u{202e}ZRH")];
    let mut server = Server::default();
    (server.kind, server.version) = ("redis".into(), Some("7.0.15".into()));
    more.servers = Some(vec![server]);
    model.take(more);
    model
}

#[test]
fn the_first_page_has_everything_in_columns() {
    let lines = text(&known(), &State::default(), (120, 30));
    same(&lines, include_str!("topics.txt"));
}

#[test]
fn what_cannot_be_read_is_a_question_mark_and_never_a_zero() {
    let mut damaged = standing("billing", vec![partition(0, 10, 3), partition(1, 10, 4)]);
    damaged.partitions[0].unreadable.push(Unreadable::new(Structure::Parked, "why"));
    (damaged.totals, damaged.members) = (Totals::of(&damaged.partitions), None);
    let mut model = Model::default();
    model.take(round(1, vec![sample(1, "orders", vec![damaged, standing("whole", vec![])])]));
    let all = serde_json::to_value(plain::Everything::of(&model)).expect("JSON");
    let group = &all["topics"][0]["groups"][0];
    let null = serde_json::Value::Null;
    assert_eq!((&group["retrying"], &group["backlog"], &group["members"]), (&null, &null, &null), "{group}");
    assert_eq!(
        (&group["lag"], &group["pending"], &group["backlog_at_least"]),
        (&7.into(), &0.into(), &7.into())
    );
    let lines = text(&model, &State::default(), (140, 24));
    let row = lines.iter().find(|line| line.contains("billing")).expect("a row");
    let words: Vec<_> = row.split_whitespace().collect();
    assert_eq!(words[2..], ["?", ">=", "7", "7", "-", "0", "?", "0", "2/2"], "{row}");
}

/// Returns the known model with a topic that could not be read, and another whose delayed messages could not.
fn damaged() -> Model {
    let mut model = known();
    let mut idle = sample(2, "idle", vec![]);
    (idle.delayed, idle.overdue) = (None, None);
    let mut round = round(2, vec![idle]);
    round.names = Some(vec![name("broken"), name("flights"), name("idle")]);
    round.unreadable = vec![name("broken")];
    let of = |topic: &str| Problem { topic: Some(name(topic)), ..problem("wrong type", false) };
    round.problems = vec![of("broken"), of("idle")];
    model.take(round);
    model
}

#[test]
fn a_topic_that_could_not_be_read_has_a_row_and_sums_say_that_it_is_missing() {
    let lines = text(&damaged(), &State::default(), (120, 30));
    let broken = lines.iter().find(|line| line.starts_with("broken")).expect("a row");
    assert_eq!(broken.split_whitespace().skip(1).collect::<Vec<_>>(), ["?"; 12], "{broken}");
    assert!(lines[1].contains("pending >= 12") && lines[1].contains("dead >= 2"), "{}", lines[1]);
    assert!(lines[2].contains("2 of 3 read"), "{}", lines[2]);
    let json = serde_json::to_value(plain::Everything::of(&damaged())).expect("JSON");
    assert_eq!(json["unreadable"], serde_json::json!(["broken"]));
}

/// For the sums, the rates and the list of errors too.
#[test]
fn a_filter_is_for_everything_on_the_page() {
    let filtered = |filter: &str| {
        let state = State { filter: filter.into(), ..State::default() };
        text(&damaged(), &state, (120, 36))
    };
    let all = filtered("");
    assert!(all.iter().any(|line| line.contains("no gate")) && all[1].contains("lag >= 20,013"), "{all:#?}");
    let idle = filtered("idle");
    assert!(!idle.iter().any(|line| line.contains("no gate") || line.contains("flights")), "{idle:#?}");
    assert!(idle[1].contains(" in/s       0") && idle[1].contains("dead 0"), "{}", idle[1]);
    let flights = filtered("FLIGHTS");
    assert!(flights.iter().any(|line| line.contains("no gate")), "{flights:#?}");
    assert!(flights[1].contains(" in/s   5,000") && flights[1].contains("dead 2"), "{}", flights[1]);
    assert!(!flights.iter().any(|line| line.contains("wrong type")), "{flights:#?}");
}

#[test]
fn a_topic_has_its_groups_and_partitions() {
    let (model, mut state) = (known(), State::default());
    state.press(KeyEvent::from(KeyCode::Enter), &model);
    same(&text(&model, &state, (120, 24)), include_str!("topic.txt"));
}

/// Compares a picture line by line; `MILLSTREAM_DRAW=1` prints the actual one.
#[track_caller]
fn same(lines: &[String], expected: &str) {
    if std::env::var_os("MILLSTREAM_DRAW").is_some() {
        println!("{}", lines.join("\n"));
        return;
    }
    for (number, (line, expected)) in lines.iter().zip(expected.lines()).enumerate() {
        assert_eq!(line, expected, "line {number}");
    }
    assert_eq!(lines.len(), expected.lines().count());
}

#[test]
fn what_comes_from_outside_is_shown_and_not_obeyed() {
    let lines = text(&known(), &State::default(), (120, 36));
    let error = lines.iter().find(|line| line.contains("no gate")).expect("the dead letter");
    assert!(
        error.contains("flights / billing p1  exhausted after 3 attempts: no gate·[31m at ·ZRH"),
        "{error}"
    );
}

#[test]
fn a_server_that_does_not_answer_is_told_and_what_was_known_is_still_there() {
    let mut model = known();
    let at = Duration::from_secs(9);
    model.take(Round { at, problems: vec![problem("connection refused", true)], ..Round::default() });
    let lines = text(&model, &State::default(), (120, 36));
    assert!(lines[0].ends_with("NO ANSWER FOR 0.0s"), "{}", lines[0]);
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    assert!(has("flights") && has("ask for topics: connection refused"), "{lines:#?}");
    let nothing = text(&Model::default(), &State::default(), (80, 24));
    assert!(nothing[0].ends_with("asking …") && nothing.iter().any(|line| line.contains("No answer yet")));
}

#[test]
fn a_frozen_screen_says_so_and_the_help_is_over_everything() {
    let state = State { frozen: true, help: true, ..State::default() };
    let lines = text(&known(), &state, (120, 36));
    assert!(lines[0].ends_with("FROZEN"), "{}", lines[0]);
    assert!(lines.iter().any(|line| line.contains("freeze, and go on")), "{lines:#?}");
}

#[test]
fn the_most_important_columns_are_left_where_it_is_narrow() {
    let has = |size: (u16, u16), title: &str| text(&known(), &State::default(), size)[3].contains(title);
    for title in ["TOPIC", "BACKLOG", "LAG", "DEAD", "IN/S", "OUT/S", "PENDING", "OLDEST"] {
        assert!(has((80, 24), title), "{title} of 80 columns");
    }
    let small = text(&known(), &State::default(), (80, 24));
    assert!(small[1].contains(" lag >= 20,013 ") && small[1].ends_with(" dead 2"), "{}", small[1]);
    assert!(small[23].ends_with("p  pause"), "{}", small[23]);
    let errors = small.iter().position(|line| line.starts_with("─ Errors"));
    assert!(errors >= Some(18) && !small.iter().any(|line| line.contains("Consumers")), "{small:#?}");
    assert!(has((40, 10), "BACKLOG") && has((40, 10), "DEAD") && !has((40, 10), "OWNED"));
}

#[test]
fn names_have_the_room_that_they_need() {
    let mut model = Model::default();
    let names: Vec<String> = (0..8).map(|n| format!("warehouse-inventory-{n}")).collect();
    let samples = names.iter().map(|name| sample(0, name, vec![])).collect();
    model.take(round(0, samples));
    let lines = text(&model, &State::default(), (100, 24));
    for name in names {
        assert!(lines.iter().any(|line| line.starts_with(&name)), "{name}: {lines:#?}");
    }
}

#[test]
fn no_screen_is_too_small() {
    let (model, nothing) = (known(), Model::default());
    let keys = [KeyCode::Char('j'), KeyCode::Enter, KeyCode::Tab, KeyCode::Enter, KeyCode::Char('?')];
    for width in (0..24).chain([30, 40, 59, 80, 119, 120, 300]) {
        for height in (0..12).chain([16, 24, 36, 100]) {
            let mut state = State::default();
            for key in keys {
                drawn(&model, &state, (width, height), true);
                drawn(&nothing, &state, (width, height), false);
                state.press(KeyEvent::from(key), &model);
            }
        }
    }
}

#[test]
fn without_colours_there_are_none() {
    let colours = |colours| {
        let terminal = drawn(&known(), &State { help: true, ..State::default() }, (120, 36), colours);
        let cells = terminal.backend().buffer().content();
        cells.iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
    };
    assert!(colours(true) && !colours(false));
}

#[test]
fn without_a_screen_it_is_a_table_or_json() {
    let table = plain::text(&known());
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines[0].starts_with("TOPIC / GROUP") && lines[0].ends_with("OWNED"), "{table}");
    assert!(lines[2].starts_with(" ├ archive") && lines[2].contains(">= 20,007"), "{table}");
    let json = serde_json::to_value(plain::Everything::of(&known())).expect("JSON");
    let group = &json["topics"][0]["groups"][0];
    assert_eq!((&group["lag"], &group["lag_at_least"]), (&serde_json::Value::Null, &20_007.into()));
    assert_eq!(group["backlog"], serde_json::Value::Null, "its lag is unknown");
    assert_eq!(group["backlog_at_least"], 20_007 + 12 + 4, "lag, pending, retrying");
    assert_eq!((&group["oldest_ms"], &group["dead"]), (&200_000.into(), &2.into()));
    assert_eq!(json["topics"][0]["produced_per_second"], 5_000.0);
}

#[test]
fn delay_queues_and_schedules_have_a_line_if_there_are_some() {
    let mut model = known();
    let head = |model: &Model| text(model, &State::default(), (120, 30))[2].clone();
    assert!(head(&model).starts_with("─ Topics"), "{}", head(&model));
    let now = millstream::Timestamp::from_millis(1_700_000_000_000);
    let mut counts = millstream::delay::TaskCounts::default();
    (counts.waiting.total, counts.waiting.overdue, counts.dead) = (12, 3, 2);
    let late = now.saturating_sub(Duration::from_secs(7_200));
    let schedule =
        |id: &str, next| TopSchedule { of: "mails".into(), id: id.into(), next: Some(next), paused: false };
    model.others = Others {
        queues: vec![("thumbs".parse().expect("a name"), counts)],
        schedules: vec![schedule("daily", late)],
        now,
    };
    let expected =
        " queues 1  waiting 12  overdue 3 (thumbs 3)  dead tasks 2  schedules 1  next daily late by 2h00m";
    assert_eq!(head(&model), expected);
    let printed = plain::text(&model);
    assert!(
        printed.contains("QUEUE") && printed.contains("thumbs") && printed.contains("late by 2h00m"),
        "{printed}"
    );
    model.others.schedules = vec![schedule("digest", now.saturating_add(Duration::from_secs(200)))];
    assert!(head(&model).ends_with("next digest in 3m20s"), "{}", head(&model));
}
