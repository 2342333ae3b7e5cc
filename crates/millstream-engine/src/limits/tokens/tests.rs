//! Tokens against a server that is a record of the algorithm.

use millstream_core::permits::{Lead, TokenStep};
use millstream_core::rates::{RateRecord, SPENDABLE};
use millstream_core::{LimitBound, LimitPattern, Rate};
use proptest::prelude::*;

use super::*;
use crate::limits::TokenNeed;

/// Where the server's clock is at the beginning.
const NOON: u64 = 1_795_953_731_671_000;

fn key(name: &str) -> PermitKey {
    format!("rate:{name}").parse().expect("a key")
}

fn needs(of: &[(&str, u32)], rate: Rate) -> Arc<[TokenNeed]> {
    of.iter()
        .map(|(name, tokens)| TokenNeed { key: key(name), tokens: *tokens, rate, drops: false })
        .collect()
}

/// A process, its server, and a time.
struct Scene {
    tokens: Tokens,
    server: HashMap<PermitKey, RateRecord>,
    began: Instant,
    now: Instant,
    next: AskId,
    requests: usize,
}

impl Scene {
    fn new() -> Self {
        let now = Instant::now();
        let (tokens, server) = (Tokens::default(), HashMap::new());
        Self { tokens, server, began: now, now, next: 0, requests: 0 }
    }

    fn ask(&mut self, needs: &Arc<[TokenNeed]>, waits: bool) -> AskId {
        self.next += 1;
        let of = |need: &TokenNeed| TokenNeed { drops: !waits || need.drops, ..need.clone() };
        self.tokens.ask(self.next, &needs.iter().map(of).collect(), self.now);
        self.next
    }

    /// Has the server do what is to be done.
    fn exchange(&mut self) {
        while self.tokens.has_work() {
            let (steps, under_way) = self.tokens.reservation(self.now);
            if steps.is_empty() {
                break;
            }
            self.requests += 1;
            let us = NOON + (self.now - self.began).as_micros() as u64;
            let mut leads = Vec::new();
            for step in steps {
                match step {
                    TokenStep::Reserves { key, tokens, rate, waits } => {
                        leads.push(self.server.entry(key).or_default().reserve(us, &rate, tokens, waits));
                    }
                    TokenStep::Charges { key, tokens, rate } => {
                        self.server.entry(key).or_default().charge(us, &rate, tokens);
                    }
                    TokenStep::Closes { key, time, rate } | TokenStep::Breaks { key, time, rate, .. } => {
                        self.server.entry(key).or_default().close(us, &rate, time);
                    }
                }
            }
            self.tokens.reserved(under_way, leads, self.now);
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    /// Returns who may go on now, each of which spends its tokens.
    fn go(&mut self) -> Vec<AskId> {
        self.exchange();
        self.tokens.let_go(self.now);
        let mut ids = Vec::new();
        for notice in self.tokens.take_notices() {
            if let TokenNotice::Ready(id) = notice {
                assert!(self.tokens.spend(id, self.now).is_some(), "they were set aside");
                ids.push(id);
            }
        }
        ids
    }
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

#[test]
fn messages_go_on_in_their_order_each_at_its_time() {
    let (mut scene, one) = (Scene::new(), needs(&[("a", 1)], Rate::per_second(10)));
    let ids: Vec<_> = (0..3).map(|_| scene.ask(&one, true)).collect();
    assert_eq!(scene.go(), [ids[0]]);
    assert_eq!(scene.tokens.next_free(), Some(scene.now + ms(100)));
    scene.pass(ms(99));
    assert!(scene.go().is_empty());
    scene.pass(ms(1));
    assert_eq!(scene.go(), [ids[1]]);
    scene.pass(ms(100));
    assert_eq!(scene.go(), [ids[2]]);
    assert_eq!(scene.requests, 1, "all were reserved together");
    assert_eq!(scene.tokens.next_free(), None);
    scene.pass(ms(1_000));
    scene.tokens.sweep(scene.now);
    assert!(!scene.tokens.is_used());
}

#[test]
fn tokens_that_nobody_spends_in_time_are_lost() {
    let (mut scene, one) = (Scene::new(), needs(&[("a", 1)], Rate::per_second(100)));
    for _ in 0..50 {
        scene.ask(&one, true);
    }
    assert_eq!(scene.go().len(), 1);
    // A machine that did not come to it: those of the last 50 ms are left, and the next one.
    scene.pass(ms(400));
    let went = scene.go().len();
    assert!((5..=6).contains(&went), "{went} at once");
}

#[test]
fn tokens_of_who_waits_for_units_are_others() {
    let (mut scene, one) = (Scene::new(), needs(&[("a", 1)], Rate::per_second(10)));
    let (first, second) = (scene.ask(&one, true), scene.ask(&one, true));
    scene.exchange();
    scene.tokens.let_go(scene.now);
    assert_eq!(scene.tokens.take_notices().last(), Some(&TokenNotice::Ready(first)));
    assert!(scene.go().is_empty(), "it is set aside for the first");
    scene.tokens.unpromise(first, scene.now);
    assert_eq!(scene.go(), [second]);
    assert!(scene.tokens.spend(first, scene.now).is_none(), "it comes too late");
    assert!(scene.go().is_empty());
    scene.pass(ms(100));
    assert_eq!(scene.go(), [first]);
}

#[test]
fn a_message_with_two_keys_waits_for_the_later_one() {
    let mut scene = Scene::new();
    let both: Arc<[TokenNeed]> = [("slow", Rate::per_second(2)), ("quick", Rate::per_second(10))]
        .map(|(name, rate)| TokenNeed { key: key(name), tokens: 1, rate, drops: false })
        .into();
    let ids: Vec<_> = (0..3).map(|_| scene.ask(&both, true)).collect();
    let mut went = Vec::new();
    for step in 0..200 {
        went.extend(scene.go().into_iter().map(|id| (id, step * 10)));
        scene.pass(ms(10));
    }
    assert_eq!(went.iter().map(|(id, _)| *id).collect::<Vec<_>>(), ids);
    let times: Vec<_> = went.iter().map(|(_, at)| *at).collect();
    assert!(times[1] >= 500 && times[2] >= 1_000 && times[2] <= 1_110, "{times:?}");
}

#[test]
fn who_does_not_wait_is_refused_and_keeps_nothing() {
    let mut scene = Scene::new();
    let day = |tokens| Rate::new(tokens, ms(86_400_000)).burst(tokens);
    let both: Arc<[TokenNeed]> = [("wide", day(5)), ("narrow", day(2))]
        .map(|(name, rate)| TokenNeed { key: key(name), tokens: 1, rate, drops: false })
        .into();
    let ids: Vec<_> = (0..4).map(|_| scene.ask(&both, false)).collect();
    scene.exchange();
    let refused = |id| TokenNotice::Refused(id, key("narrow"));
    let expected = [TokenNotice::Ready(ids[0]), TokenNotice::Ready(ids[1]), refused(ids[2]), refused(ids[3])];
    assert_eq!(scene.tokens.take_notices(), expected);
    assert!(scene.tokens.spend(ids[0], scene.now).is_some());
    // One that was given up after it had its tokens.
    scene.tokens.cancel(ids[1], scene.now);
    scene.exchange();
    let wide = needs(&[("wide", 1)], day(5));
    let ids: Vec<_> = (0..5).map(|_| scene.ask(&wide, false)).collect();
    scene.exchange();
    let ready = |notices: Vec<TokenNotice>| {
        notices.into_iter().filter(|notice| matches!(notice, TokenNotice::Ready(_))).count()
    };
    assert_eq!(ready(scene.tokens.take_notices()), 4, "of {} after one that was spent", ids.len());
}

#[test]
fn a_quota_drops_only_what_is_over_it() {
    let mut scene = Scene::new();
    let day = Rate::per_day(3).burst(3);
    let both: Arc<[TokenNeed]> = [("slow", Rate::per_second(1), false), ("quota", day, true)]
        .map(|(name, rate, drops)| TokenNeed { key: key(name), tokens: 1, rate, drops })
        .into();
    let ids: Vec<_> = (0..4).map(|_| scene.ask(&both, true)).collect();
    assert_eq!(scene.go(), [ids[0]], "the others wait, or are refused");
    let waits = scene.tokens.waiting().map(|(_, waiting)| waiting).sum::<usize>();
    assert_eq!(waits, 2, "the fourth was refused");
    // One that waits and is given up leaves its quota to others.
    scene.tokens.cancel(ids[2], scene.now);
    let fifth = scene.ask(&both, true);
    scene.pass(ms(1_000));
    assert_eq!(scene.go(), [ids[1]]);
    scene.pass(ms(1_000));
    assert_eq!(scene.go(), [fifth]);
}

#[test]
fn a_cost_waits_until_as_many_are_saved_up() {
    let mut scene = Scene::new();
    let rate = Rate::per_second(100).burst(20);
    let (big, huge, one) = (needs(&[("a", 20)], rate), needs(&[("a", 50)], rate), needs(&[("a", 1)], rate));
    let ids = [scene.ask(&big, true), scene.ask(&big, true), scene.ask(&huge, true), scene.ask(&one, true)];
    let mut went = Vec::new();
    for step in 0..200 {
        went.extend(scene.go().into_iter().map(|id| (id, step * 10)));
        scene.pass(ms(10));
    }
    let expected = [(ids[0], 0), (ids[1], 200), (ids[2], 400), (ids[3], 710)];
    assert_eq!(went, expected, "20 at once, 20 more, 20 of 50, and one behind the rest of those");
}

#[test]
fn nobody_destroys_what_the_first_one_saves_up() {
    let mut scene = Scene::new();
    let rate = Rate::per_second(10).burst(20);
    let (all, ten) = (needs(&[("a", 20)], rate), needs(&[("a", 10)], rate));
    let (spent, big) = (scene.ask(&all, true), scene.ask(&all, true));
    assert_eq!(scene.go(), [spent]);
    for step in 0..20 {
        scene.ask(&ten, true);
        scene.pass(ms(100));
        scene.tokens.sweep(scene.now);
        let went = scene.go();
        assert_eq!(went, if step == 19 { vec![big] } else { Vec::new() }, "after {step}");
    }
}

#[test]
fn what_is_far_away_is_asked_for_when_it_is_near() {
    let (mut scene, one) = (Scene::new(), needs(&[("a", 1)], Rate::per_hour(1)));
    let ids = [scene.ask(&one, true), scene.ask(&one, true)];
    assert_eq!(scene.go(), [ids[0]]);
    assert!(scene.go().is_empty() && scene.requests <= 2, "{} requests", scene.requests);
    let (began, mut went) = (scene.now, Vec::new());
    while went.is_empty() {
        // Looks come every minute: they must not undo what is reserved.
        scene.tokens.look_again(scene.now);
        scene.exchange();
        scene.now = scene.tokens.next_free().expect("a time to ask again, or to go on");
        went = scene.go();
    }
    assert_eq!(went, [ids[1]]);
    let took = scene.now - began;
    assert!((ms(3_600_000)..ms(3_600_001)).contains(&took), "{took:?}");
    assert!(scene.requests < 60, "{} requests in an hour", scene.requests);
}

#[test]
fn a_closed_key_is_waited_for_anew() {
    let (mut scene, one) = (Scene::new(), needs(&[("a", 1)], Rate::per_second(10)));
    let (_, second) = (scene.ask(&one, true), scene.ask(&one, true));
    assert_eq!(scene.go().len(), 1);
    scene.tokens.close(&one[0], ms(5_000), scene.now);
    scene.exchange();
    scene.tokens.closed(&key("a"), ms(5_000), scene.now + ms(5));
    scene.pass(ms(4_990));
    assert!(scene.go().is_empty());
    scene.pass(ms(10));
    assert_eq!(scene.go(), [second]);
}

#[test]
fn what_was_reserved_before_a_key_was_closed_is_void() {
    let (mut scene, one) = (Scene::new(), needs(&[("a", 1)], Rate::per_second(10)));
    scene.ask(&one, true);
    let (_, under_way) = scene.tokens.reservation(scene.now);
    scene.tokens.closed(&key("a"), ms(1), scene.now);
    scene.tokens.reserved(under_way, vec![Lead::At(0)], scene.now);
    scene.tokens.let_go(scene.now);
    assert!(!scene.tokens.take_notices().contains(&TokenNotice::Ready(1)));
    assert!(scene.tokens.has_work(), "it is asked for again");
}

#[test]
fn what_is_given_back_after_a_key_was_closed_is_void() {
    let (mut scene, one) = (Scene::new(), needs(&[("a", 1)], Rate::per_second(10)));
    let (_, second) = (scene.ask(&one, true), scene.ask(&one, true));
    assert_eq!(scene.go().len(), 1);
    scene.tokens.closed(&key("a"), ms(5_000), scene.now);
    // The first one did not begin.
    scene.tokens.put_back(&one, scene.now, scene.now);
    assert!(!scene.go().contains(&second), "it began at a closed key");
}

#[test]
fn new_rules_count_for_who_waits() {
    let (mut scene, one) = (Scene::new(), needs(&[("a", 1)], Rate::per_hour(1)));
    let ids = [scene.ask(&one, true), scene.ask(&one, true)];
    assert_eq!(scene.go(), [ids[0]]);
    let rule = |bound| {
        let pattern: LimitPattern = "rate".parse().expect("a pattern");
        LimitRules { version: 1, rules: vec![(pattern, bound)] }
    };
    scene.tokens.follow(rule(LimitBound::Rate(Rate::per_second(0))), scene.now);
    scene.pass(ms(7_200_000));
    assert!(scene.go().is_empty(), "none");
    scene.tokens.look_again(scene.now);
    assert!(scene.tokens.has_work(), "the rules are read again, though there is nothing to reserve");
    scene.tokens.follow(rule(LimitBound::Rate(Rate::per_second(10))), scene.now);
    assert_eq!(scene.go(), [ids[1]]);
}

#[test]
fn messages_that_come_one_by_one_do_not_ask_one_by_one() {
    let (mut scene, one) = (Scene::new(), needs(&[("a", 1)], Rate::per_second(1_000)));
    let mut went = 0;
    for n in 0..900 {
        if scene.tokens.take_free(&one, scene.now).is_some() {
            went += 1;
        } else {
            scene.ask(&one, true);
        }
        went += scene.go().len();
        scene.pass(Duration::from_micros(1_111));
        assert!(went + 60 >= n, "{went} of {n}");
    }
    // One each in the first 50 ms, and then one for about 45.
    assert!(scene.requests < 90, "{} requests for 900 messages", scene.requests);
}

#[test]
fn what_failed_is_asked_for_again() {
    let (mut scene, one) = (Scene::new(), needs(&[("a", 1)], Rate::per_second(10)));
    let (waits, drops) = (scene.ask(&one, true), scene.ask(&needs(&[("b", 1)], Rate::per_second(1)), false));
    scene.tokens.close(&needs(&[("c", 1)], Rate::per_second(1))[0], ms(1), scene.now);
    let (steps, under_way) = scene.tokens.reservation(scene.now);
    scene.tokens.failed(steps, under_way, scene.now);
    let (steps, _) = scene.tokens.reservation(scene.now);
    assert_eq!(steps.len(), 3, "{steps:?}");
    scene.tokens.cancel(waits, scene.now);
    scene.tokens.cancel(drops, scene.now);
    assert!(scene.tokens.waiting().next().is_none());
}

proptest! {
    /// Whatever messages do: in no window are more tokens spent than the rate has, with its burst, and what may be late. Nothing waits for
    /// ever.
    #[test]
    fn no_window_has_more_than_its_rate(
        tokens in 1_u32..2_000, burst in 1_u32..20,
        acts in prop::collection::vec((0_u64..60, 0_u8..8, 1_u32..4), 1..200),
    ) {
        let rate = Rate::per_second(tokens).burst(burst);
        let (mut scene, mut spent, mut open) = (Scene::new(), Vec::new(), HashMap::new());
        let mut count = |scene: &mut Scene, open: &mut HashMap<AskId, u32>| {
            for id in scene.go() {
                let cost: u32 = open.remove(&id).expect("it was asked for");
                spent.extend((0..cost.min(burst)).map(|_| scene.now));
            }
        };
        for (wait, act, cost) in acts {
            scene.pass(ms(wait));
            match act {
                0..6 => {
                    let id = scene.ask(&needs(&[("a", cost)], rate), true);
                    open.insert(id, cost);
                }
                6 => {
                    if let Some(id) = open.keys().min().copied() {
                        scene.tokens.cancel(id, scene.now);
                        open.remove(&id);
                    }
                }
                _ => {}
            }
            count(&mut scene, &mut open);
        }
        for _ in 0..10_000 {
            if open.is_empty() {
                break;
            }
            let next = scene.tokens.next_free();
            prop_assert!(next.is_some() || scene.tokens.has_work(), "{open:?} wait for nothing");
            scene.now = next.map_or(scene.now, |at| at.max(scene.now));
            count(&mut scene, &mut open);
        }
        prop_assert!(open.is_empty());
        let interval = rate.interval_us().expect("tokens") / 1e6;
        let late = SPENDABLE.as_secs_f64().max(interval);
        for (first, from) in spent.iter().enumerate() {
            for (last, to) in spent.iter().enumerate().skip(first) {
                let window = (*to - *from).as_secs_f64() + late;
                let most = window / interval + f64::from(burst) + 4.0;
                prop_assert!(((last - first + 1) as f64) <= most, "{} in {window} s of {rate}", last - first + 1);
            }
        }
    }
}

#[test]
fn tokens_of_who_does_not_begin_are_for_the_next_one() {
    let (mut scene, one) = (Scene::new(), needs(&[("a", 1)], Rate::per_minute(1)));
    let (first, second) = (scene.ask(&one, true), scene.ask(&one, true));
    scene.exchange();
    scene.tokens.let_go(scene.now);
    scene.tokens.take_notices();
    let free_at = scene.tokens.spend(first, scene.now).expect("its token");
    scene.pass(ms(30_000));
    scene.tokens.put_back(&one, free_at, scene.now);
    assert_eq!(scene.go(), [second]);
    scene.pass(ms(31_000));
    scene.tokens.put_back(&one, free_at, scene.now);
    assert_ne!(scene.tokens.take_free(&one, scene.now), Some(free_at), "its time is over");
}

#[test]
fn a_thousand_keys_are_served_at_once() {
    let mut scene = Scene::new();
    for n in 0..2_000 {
        let name = format!("t{}", n % 1_000);
        scene.ask(&needs(&[(&name, 1)], Rate::per_minute(1)), true);
    }
    let mut went = scene.go().len();
    went += scene.go().len();
    assert_eq!(went, 1_000, "{} requests", scene.requests);
    let waiting = scene.tokens.waiting().map(|(_, waiting)| waiting).sum::<usize>();
    assert_eq!((waiting, scene.tokens.next_free().is_some()), (1_000, true));
}
