//! Tests of rates, sums and lists from rounds.

use std::time::Duration;

use super::*;
use crate::commands::top::model::Model;
use crate::commands::top::rows::{TopSort, lines};

fn rates(model: &Model) -> (Option<f64>, Option<f64>) {
    let topic = model.topics().next().expect("a topic");
    (topic.produced, topic.groups.first().and_then(|group| group.consumed))
}

fn orders(seconds: u64, partitions: Vec<PartitionStats>) -> Round {
    round(seconds, vec![sample(seconds, "orders", vec![standing("billing", partitions)])])
}

#[test]
fn two_looks_make_a_rate() {
    let mut model = Model::default();
    model.take(orders(0, vec![partition(0, 100, 100), partition(1, 0, 0)]));
    assert_eq!(rates(&model), (None, None), "one look makes none");
    // 60 were appended, 20 of them to a new partition; 80 were handled.
    model.take(orders(2, vec![partition(0, 140, 80), partition(1, 20, 0)]));
    assert_eq!(rates(&model), (Some(30.0), Some(40.0)));
    assert_eq!(model.curve.back(), Some(&(30.0, 40.0)));
}

#[test]
fn what_waits_to_be_tried_again_is_not_done() {
    let mut model = Model::default();
    model.take(orders(0, vec![partition(0, 10, 10)]));
    let mut tried = partition(0, 10, 0);
    (tried.pending, tried.retrying) = (3, 2);
    model.take(orders(1, vec![tried.clone()]));
    assert_eq!(rates(&model).1, Some(5.0));
    // The five are finished; a dead one counts as finished too.
    (tried.pending, tried.retrying, tried.dead) = (0, 0, 1);
    model.take(orders(2, vec![tried]));
    assert_eq!(rates(&model).1, Some(5.0));
}

#[test]
fn a_rate_is_over_a_few_seconds_and_over_two_looks_at_least() {
    let mut model = Model::default();
    for (seconds, appended) in [(0, 0), (1, 1_000), (2, 1_000), (6, 1_040), (7, 1_050)] {
        model.take(orders(seconds, vec![partition(0, appended, 0)]));
    }
    assert_eq!(rates(&model).0, Some(10.0), "from the second 2 to 7");
    model.take(orders(107, vec![partition(0, 1_250, 0)]));
    assert_eq!(rates(&model).0, Some(2.0), "from the second 7 to 107");
}

#[test]
fn what_is_not_known_is_not_a_rate() {
    let mut model = Model::default();
    let (mut old, mut unknown) = (partition(0, 10, 0), partition(0, 20, 0));
    old.appended = None;
    unknown.lag = None;
    model.take(orders(0, vec![old.clone()]));
    model.take(orders(1, vec![old]));
    assert_eq!(rates(&model), (None, None), "the server counts nothing");
    model.take(orders(2, vec![unknown.clone()]));
    model.take(orders(10, vec![unknown]));
    assert_eq!(rates(&model), (Some(0.0), None), "the lag is not known");
}

#[test]
fn a_log_that_began_anew_and_a_partition_that_is_new_are_no_jumps() {
    let mut model = Model::default();
    model.take(orders(0, vec![partition(0, 1_000_000, 0)]));
    model.take(orders(1, vec![partition(0, 5, 0), partition(1, 8, 0)]));
    assert_eq!(rates(&model), (Some(8.0), Some(8.0)));
}

#[test]
fn what_is_deleted_is_gone_and_what_was_not_asked_stays() {
    let mut model = Model::default();
    let both = |seconds| vec![sample(seconds, "a", vec![]), sample(seconds, "b", vec![])];
    model.take(round(0, both(0)));
    let mut part = round(1, vec![sample(1, "b", vec![])]);
    part.names = Some(vec![name("a"), name("b"), name("c")]);
    model.take(part);
    assert_eq!((model.topics().count(), model.unknown().count()), (2, 1));
    model.take(round(2, vec![sample(2, "b", vec![])]));
    assert_eq!((model.topics().count(), model.unknown().count()), (1, 0));
}

#[test]
fn without_an_answer_the_last_one_stays_and_the_problem_is_told_once() {
    let mut model = Model::default();
    model.take(orders(0, vec![partition(0, 10, 10)]));
    for seconds in [1, 2, 3] {
        let at = Duration::from_secs(seconds);
        model.take(Round { at, problems: vec![problem("refused", true)], ..Round::default() });
    }
    assert_eq!((model.answered, model.failing, model.topics().count()), (Some(Duration::ZERO), true, 1));
    assert_eq!(model.problems.len(), 1);
    let seen = &model.problems[0];
    assert_eq!((seen.times, seen.first.as_secs(), seen.last.as_secs()), (3, 1, 3));
    model.take(orders(4, vec![partition(0, 10, 10)]));
    assert!(!model.failing && model.problems.len() == 1, "it is over, and still told");
}

#[test]
fn a_topic_that_cannot_be_read_is_no_server_that_is_away() {
    let mut model = Model::default();
    model.take(Round { problems: vec![problem("wrong type", false)], ..orders(0, vec![partition(0, 1, 1)]) });
    assert!(!model.failing && model.problems.len() == 1);
}

#[test]
fn dead_letters_are_newest_first_bounded_and_gone_when_they_are_replayed() {
    let mut model = Model::default();
    let mut dead = partition(0, 99, 0);
    dead.dead = 60;
    let mut found = orders(0, vec![dead.clone()]);
    found.letters = (1..=60).map(|n| letter("orders", 0, n * 1_000, "no gate")).collect();
    model.take(found);
    let mut again = orders(1, vec![dead.clone()]);
    again.letters = vec![letter("orders", 0, 60_000, "no gate"), letter("orders", 0, 61_000, "no gate")];
    model.take(again);
    let ids: Vec<u64> = model.letters.iter().map(|it| it.id.ms).collect();
    assert_eq!((ids.len(), ids[0], ids[1], ids[49]), (50, 61_000, 60_000, 12_000));
    dead.dead = 0;
    model.take(orders(2, vec![dead]));
    assert_eq!(model.letters.len(), 0);
}

#[test]
fn lines_are_sorted_with_their_groups_and_filtered() {
    let mut model = Model::default();
    let topic = |seconds, name, appended, lag: u64, groups: &[&str]| {
        let groups = groups.iter().map(|it| standing(it, vec![partition(0, appended, lag)]));
        sample(seconds, name, groups.collect())
    };
    for seconds in [0, 1] {
        model.take(round(
            seconds,
            vec![
                topic(seconds, "a", 10 * seconds, 5, &["x", "y"]),
                topic(seconds, "b", 30 * seconds, 1, &["z"]),
                topic(seconds, "c", 20 * seconds, 9, &[]),
            ],
        ));
    }
    let shown = |sort, reversed, filter| -> Vec<String> {
        let lines = lines(&model, sort, reversed, filter);
        let places = lines.iter().map(crate::commands::top::rows::TopLine::place);
        places.map(|it| it.group.map_or_else(|| it.topic.to_string(), |group| format!(".{group}"))).collect()
    };
    assert_eq!(shown(TopSort::Name, false, ""), ["a", ".x", ".y", "b", ".z", "c"]);
    assert_eq!(shown(TopSort::Name, true, ""), ["c", "b", ".z", "a", ".x", ".y"]);
    // Topic c has no groups: it is sampled without a log.
    assert_eq!(shown(TopSort::Produced, false, ""), ["b", ".z", "a", ".x", ".y", "c"]);
    assert_eq!(shown(TopSort::Lag, false, ""), ["a", ".x", ".y", "b", ".z", "c"]);
    assert_eq!(
        shown(TopSort::Backlog, true, "").last().map(String::as_str),
        Some(".y"),
        "lag, and what is in hand"
    );
    assert_eq!(shown(TopSort::Lag, false, "Z"), ["b", ".z"]);
    assert_eq!(shown(TopSort::Lag, false, "none"), [""; 0]);
    let mut sort = TopSort::Name;
    for _ in 0..10 {
        sort = sort.next();
    }
    assert_eq!(sort, TopSort::Name, "all of them have their turn");
}

#[test]
fn a_topic_that_cannot_be_read_any_more_is_unknown() {
    let mut model = Model::default();
    model.take(orders(0, vec![partition(0, 10, 10)]));
    let mut broken = round(1, vec![]);
    (broken.names, broken.unreadable) = (Some(vec![name("orders")]), vec![name("orders")]);
    broken.problems = vec![problem("wrong type", false)];
    model.take(broken);
    let unknown: Vec<_> = model.unknown().collect();
    assert_eq!((model.topics().count(), unknown), (0, vec![&name("orders")]));
}

#[test]
fn what_is_unknown_is_sorted_before_what_is_known() {
    let mut model = Model::default();
    let mut damaged = sample(0, "b", vec![standing("x", vec![partition(0, 1, 1)])]);
    damaged.groups[0].totals = Totals::default();
    let busy = sample(0, "a", vec![standing("y", vec![partition(0, 900, 900)])]);
    model.take(round(0, vec![damaged, busy]));
    for sort in [TopSort::Urgency, TopSort::Pending, TopSort::Dead] {
        assert_eq!(lines(&model, sort, false, "")[0].place().topic, name("b"), "{sort:?}");
    }
}

#[test]
fn what_needs_attention_is_sorted_first() {
    let mut model = Model::default();
    let of = |name: &str, change: fn(&mut GroupStats)| {
        let mut group = standing("x", vec![partition(0, 9, 9)]);
        group.totals.oldest = Some(Duration::from_secs(1));
        change(&mut group);
        sample(0, name, vec![group])
    };
    let topics = vec![
        of("a-fine", |_| {}),
        of("b-old", |group| group.totals.oldest = Some(Duration::from_secs(900))),
        of("c-dead", |group| group.totals.dead = Some(1)),
        of("d-stopped", |group| (group.members, group.owned) = (Some(0), Some(0))),
    ];
    model.take(round(0, topics));
    let lines = lines(&model, TopSort::default(), false, "");
    let names: Vec<String> = lines
        .iter()
        .map(crate::commands::top::rows::TopLine::place)
        .filter(|it| it.group.is_none())
        .map(|it| it.topic.to_string())
        .collect();
    assert_eq!(names, ["d-stopped", "c-dead", "b-old", "a-fine"]);
}
