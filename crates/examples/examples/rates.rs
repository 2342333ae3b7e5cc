//! A paid API: so many calls and so many tokens of a language model a second, for all processes together.
//!
//! ```sh
//! cargo run --example rates
//! cargo run --example rates -- --url redis://127.0.0.1
//! ```
//!
//! Two consumers stand for two processes. The API refuses what is over its own limits in any second, and refuses everything for half a
//! second in between, as HTTP 429 does. The rates are a fifth below its limits: see `docs/guides/limits.md#rates` for what a window may have.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail, ensure};
use millstream::{Concurrency, Consumer, Delivery, Limit, Millstream, Outcome, Rate, Record, Topic};

const PROMPTS: Topic<String> = Topic::new("prompts").partitions(4);
const MESSAGES: u32 = 160;
const WINDOW: Duration = Duration::from_secs(1);
/// What the API allows in any window, and what the consumers take.
const CALLS: (usize, u32) = (50, 40);
const TOKENS: (u32, u32) = (6_000, 4_800);
const AWAY: Duration = Duration::from_millis(500);

/// The API, and what it has seen.
#[derive(Default)]
struct Api(Mutex<Seen>);

#[derive(Default)]
struct Seen {
    /// The calls of the last window, each with its tokens.
    last: VecDeque<(Instant, u32)>,
    /// Until when it refuses everything.
    away_until: Option<Instant>,
    was_away: bool,
    done: u32,
    tokens: u32,
    most: (usize, u32),
    over: u32,
    refused_while_away: u32,
}

impl Api {
    /// Answers with the tokens that the call took, or says when to come again.
    fn call(&self, prompt: &str) -> Result<u32, Duration> {
        let (now, mut seen) = (Instant::now(), self.0.lock().unwrap_or_else(PoisonError::into_inner));
        while seen.last.front().is_some_and(|(at, _)| now - *at >= WINDOW) {
            seen.last.pop_front();
        }
        if seen.done == MESSAGES / 2 && !seen.was_away {
            (seen.was_away, seen.away_until) = (true, Some(now + AWAY));
        }
        if let Some(until) = seen.away_until.filter(|until| *until > now) {
            seen.refused_while_away += 1;
            return Err(until - now);
        }
        // The answer is as long as the question, give or take a half.
        let tokens = prompt.len() as u32 / 4 * (1 + seen.done % 3);
        let (calls, all) =
            (seen.last.len() + 1, seen.last.iter().map(|(_, tokens)| tokens).sum::<u32>() + tokens);
        if calls > CALLS.0 || all > TOKENS.0 {
            seen.over += 1;
            return Err(WINDOW);
        }
        seen.last.push_back((now, tokens));
        seen.done += 1;
        seen.tokens += tokens;
        seen.most = (seen.most.0.max(calls), seen.most.1.max(all));
        Ok(tokens)
    }

    fn done(&self) -> u32 {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).done
    }
}

async fn work(mq: &Millstream, api: &Arc<Api>) -> Result<Consumer> {
    let api = api.clone();
    let consumer = mq
        .consumer(PROMPTS, "answering")
        .concurrency(Concurrency::Unordered(4))
        .limit(Limit::global("calls").rate(Rate::per_second(CALLS.1)))
        .limit(
            Limit::global("tokens")
                .rate(Rate::per_second(TOKENS.1).burst(500))
                .cost(|message| message.payload.len() as u32 / 2), // an estimate
        )
        .start(move |prompt: Delivery<String>| {
            let api = api.clone();
            async move {
                match api.call(&prompt.payload) {
                    Ok(tokens) => {
                        prompt.correct_cost("tokens", tokens);
                        Outcome::Ack
                    }
                    Err(retry_after) => {
                        prompt.correct_cost("tokens", 0);
                        prompt.close_rates(retry_after);
                        Outcome::Snooze(retry_after)
                    }
                }
            }
        })
        .await?;
    Ok(consumer)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = match std::env::args().skip(1).collect::<Vec<_>>().as_slice() {
        [] => "memory://".to_owned(),
        [option, url] if option == "--url" => url.clone(),
        _ => bail!("usage: rates [--url URL]"),
    };
    // Runs on one server do not meet.
    let run = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_micros();
    let mq = Millstream::at(url).namespace(format!("rates-{run}")).await?;
    let producer = mq.producer(PROMPTS).await?;
    let prompts =
        (0..MESSAGES).map(|n| "why is the sky blue? ".repeat(10 + n as usize % 10)).collect::<Vec<_>>();
    for sent in producer.send_all(prompts.iter().map(Record::new)).await {
        sent?;
    }
    let (api, begun) = (Arc::new(Api::default()), Instant::now());
    let consumers = [work(&mq, &api).await?, work(&mq, &api).await?];
    while api.done() < MESSAGES {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let took = begun.elapsed();
    let (mut snoozed, mut dead) = (0, 0);
    for consumer in consumers {
        let report = consumer.shutdown().await;
        (snoozed, dead) = (snoozed + report.snoozed, dead + report.dead);
    }

    let seen = api.0.lock().unwrap_or_else(PoisonError::into_inner);
    println!("{:<44}{:>8}", "calls", seen.done);
    println!("{:<44}{:>5} ms", "in", took.as_millis());
    println!("{:<44}{:>8}", "tokens", seen.tokens);
    println!("{:<44}{:>8}", format!("most calls in a second, of {}", CALLS.0), seen.most.0);
    println!("{:<44}{:>8}", format!("most tokens in a second, of {}", TOKENS.0), seen.most.1);
    println!("{:<44}{:>8}", "refused since over a limit", seen.over);
    println!("{:<44}{:>8}", "refused while the API was away", seen.refused_while_away);
    println!("{:<44}{:>8}", "messages that were snoozed", snoozed);
    println!("{:<44}{:>8}", "dead letters", dead);
    ensure!(seen.over == 0 && dead == 0, "{} were over a limit of the API, {dead} died", seen.over);
    // Those that were in handlers when it said so; nobody else asked.
    ensure!(seen.refused_while_away <= 8, "{} were refused while it was away", seen.refused_while_away);
    Ok(())
}
