//! Tests of keys.

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::commands::top::model::{Model, Order};
use crate::commands::top::rows::{Place, TopSort};
use crate::commands::top::state::{Effect, State, TopPage};

fn known() -> Model {
    let mut model = Model::default();
    let two = || vec![partition(0, 10, 5), partition(1, 10, 5)];
    model.take(round(
        0,
        vec![
            sample(0, "empty", vec![]),
            sample(0, "orders", vec![standing("audit", two()), standing("billing", two())]),
        ],
    ));
    model
}

fn press(state: &mut State, model: &Model, keys: &str) -> Effect {
    let code = |c| match c {
        '\n' => KeyCode::Enter,
        '\t' => KeyCode::Tab,
        '<' => KeyCode::Esc,
        '^' => KeyCode::Up,
        'v' => KeyCode::Down,
        '\u{8}' => KeyCode::Backspace,
        '$' => KeyCode::End,
        other => KeyCode::Char(other),
    };
    let mut effect = Effect::Nothing;
    for key in keys.chars() {
        effect = state.press(KeyEvent::from(code(key)), model);
    }
    effect
}

fn place(topic: &str, of: Option<&str>) -> Option<Place> {
    Some(Place { topic: name(topic), group: of.map(group) })
}

#[test]
fn the_cursor_stays_on_its_line_when_others_come() {
    let (mut model, mut state) = (known(), State::default());
    press(&mut state, &model, "jj");
    assert_eq!(state.at, place("orders", Some("audit")));
    let more = vec![
        sample(1, "aaa", vec![]),
        sample(1, "orders", vec![standing("audit", vec![partition(0, 1, 1)])]),
    ];
    model.take(round(1, more));
    let lines = state.lines(&model);
    assert_eq!(lines[state.line(&lines)].place(), place("orders", Some("audit")).expect("a place"));
    // The group is gone: the cursor moves to its topic.
    model.take(round(2, vec![sample(2, "aaa", vec![]), sample(2, "orders", vec![])]));
    let lines = state.lines(&model);
    assert_eq!(lines[state.line(&lines)].place(), place("orders", None).expect("a place"));
}

#[test]
fn the_cursor_stops_at_both_ends() {
    let (model, mut state) = (known(), State::default());
    press(&mut state, &model, "^k");
    assert_eq!(state.at, place("empty", None));
    press(&mut state, &model, "vvvvvvvv");
    assert_eq!(state.at, place("orders", Some("billing")));
    press(&mut state, &model, "g");
    assert_eq!(state.at, place("empty", None));
    press(&mut state, &model, "$");
    assert_eq!(state.at, place("orders", Some("billing")));
    // And with an empty model.
    let mut state = State::default();
    press(&mut state, &Model::default(), "vv^\n\t<G");
    assert_eq!(state, State::default());
}

#[test]
fn enter_goes_deeper_and_escape_comes_back() {
    let (model, mut state) = (known(), State::default());
    press(&mut state, &model, "$\n");
    let billing = TopPage::Topic { topic: name("orders"), group: Some(group("billing")) };
    assert_eq!((&state.page, state.rows), (&billing, [1, 0]), "the group of the line");
    assert!(!state.focus(&model).messages);
    press(&mut state, &model, "k");
    assert_eq!(state.page, TopPage::Topic { topic: name("orders"), group: Some(group("audit")) });
    press(&mut state, &model, "\tvvv");
    assert_eq!((state.rows, state.second), ([0, 1], true), "two partitions");
    press(&mut state, &model, "\n");
    assert_eq!(state.page, TopPage::Group { topic: name("orders"), group: group("audit") });
    let focus = state.focus(&model);
    assert_eq!((focus.group, focus.messages), (Some((name("orders"), group("audit"))), true));
    press(&mut state, &model, "\n");
    assert!(matches!(state.page, TopPage::Group { .. }), "there is nothing deeper");
    press(&mut state, &model, "<");
    assert_eq!(state.page, TopPage::Topic { topic: name("orders"), group: Some(group("audit")) });
    press(&mut state, &model, "<<<");
    assert_eq!((state.page, state.at), (TopPage::Topics, place("orders", Some("billing"))));
}

#[test]
fn a_topic_without_groups_can_be_looked_at_and_has_no_messages_of_a_group() {
    let (model, mut state) = (known(), State::default());
    press(&mut state, &model, "\n\n");
    assert_eq!(state.page, TopPage::Topic { topic: name("empty"), group: None });
    assert_eq!(state.focus(&model).group, None);
}

#[test]
fn the_first_group_is_looked_at_where_none_is_chosen() {
    let (model, mut state) = (known(), State::default());
    assert_eq!(state.focus(&model).group, None, "the topic with the cursor has none");
    press(&mut state, &model, "j");
    assert_eq!(state.focus(&model).group, Some((name("orders"), group("audit"))));
    press(&mut state, &model, "jj");
    assert_eq!(state.focus(&model).group, Some((name("orders"), group("billing"))));
}

#[test]
fn a_filter_is_typed_kept_and_taken_back() {
    let (model, mut state) = (known(), State::default());
    press(&mut state, &model, "/qs\u{8}\u{8}bill");
    assert_eq!((state.filter.as_str(), state.typing, state.sort), ("bill", true, TopSort::Urgency));
    assert_eq!(state.lines(&model).len(), 3, "the topic and its groups");
    press(&mut state, &model, "\n");
    assert_eq!((state.filter.as_str(), state.typing), ("bill", false));
    press(&mut state, &model, "<");
    assert_eq!(state.filter, "");
    press(&mut state, &model, "/x<");
    assert_eq!((state.filter.as_str(), state.typing), ("", false));
}

#[test]
fn a_group_is_paused_after_a_yes_and_after_nothing_else() {
    let (mut model, mut state) = (known(), State::default());
    press(&mut state, &model, "p");
    assert_eq!(state.asked, None, "a topic is no group");
    press(&mut state, &model, "vvv");
    let order = |pause| Order { topic: name("orders"), group: group("billing"), pause };
    press(&mut state, &model, "p");
    assert_eq!(state.asked, Some(order(true)));
    assert_eq!(press(&mut state, &model, "y"), Effect::Order(order(true)));
    assert_eq!(state.asked, None);
    for no in ["pn", "pq", "p\n", "p<", "pp"] {
        assert_eq!(press(&mut state, &model, no), Effect::Nothing, "{no:?}");
        assert_eq!((&state.asked, &state.page), (&None, &TopPage::Topics), "{no:?}");
    }
    let mut paused = standing("billing", vec![partition(0, 10, 5)]);
    paused.paused = Some(millstream::Timestamp::from_millis(1));
    model.take(round(1, vec![sample(1, "orders", vec![paused])]));
    for deeper in ["", "\n", "\n"] {
        press(&mut state, &model, deeper);
        assert_eq!(press(&mut state, &model, "py"), Effect::Order(order(false)), "{:?}", state.page);
    }
}

#[test]
fn the_other_keys_do_what_the_help_says() {
    let (model, mut state) = (known(), State::default());
    press(&mut state, &model, "s");
    assert_eq!(state.sort, TopSort::Name);
    press(&mut state, &model, "S ");
    assert!(state.reversed && state.frozen);
    press(&mut state, &model, " ?");
    assert!(!state.frozen && state.help);
    assert_eq!(press(&mut state, &model, "s"), Effect::Nothing);
    assert!(!state.help && state.sort == TopSort::Name, "the first key only closes the help");
    assert_eq!(press(&mut state, &model, "?q"), Effect::Quit);
    assert_eq!(press(&mut State::default(), &model, "q"), Effect::Quit);
    let control = |c| KeyEvent::new(KeyCode::Char(c), KeyModifiers::CONTROL);
    let mut typing = State { typing: true, ..State::default() };
    assert_eq!(typing.press(control('c'), &model), Effect::Quit, "also while a filter is typed");
    assert_eq!(typing.press(control('l'), &model), Effect::Redraw);
    assert_eq!(typing.filter, "");
}
