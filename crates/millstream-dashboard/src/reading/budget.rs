//! Commands that readings may cost the server, by topic.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use millstream::TopicName;
use tokio::time::Instant;

/// Commands per second that all readings of a topic cost together, while anybody looks at it.
const RATE: u64 = 5;
/// Longest time for which a reading is used: of topics whose readings cost more than 600 commands together.
const LONGEST: Duration = Duration::from_secs(120);
/// Maximum number of topics that are remembered.
const KEPT: usize = 2_000;

/// How far the commands of each topic are used up.
#[derive(Debug, Default)]
pub(crate) struct Budget(Mutex<HashMap<TopicName, Instant>>);

impl Budget {
    /// Returns the time for which a reading that has cost so many commands is used. Different readings of a topic share its
    /// commands: each waits for those before it.
    pub(crate) fn charge(&self, topic: &TopicName, commands: u64) -> Duration {
        let now = Instant::now();
        let mut topics = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if topics.len() >= KEPT {
            topics.retain(|_, free| *free > now);
        }
        let free = topics.entry(topic.clone()).or_insert(now);
        let cost = Duration::from_millis(commands * 1_000 / RATE);
        *free = ((*free).max(now) + cost).min(now + LONGEST);
        *free - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn readings_of_a_topic_cost_five_commands_a_second_together() {
        let (orders, mails) = ("orders".parse().expect("a name"), "mails".parse().expect("a name"));
        let budget = Budget::default();
        // Two readings, of 10 and of 40 commands, each repeated as soon as it may be.
        let (began, mut commands) = (Instant::now(), 0);
        let mut due = [(Instant::now(), 10), (Instant::now(), 40)];
        while began.elapsed() < Duration::from_secs(600) {
            for (at, cost) in &mut due {
                if *at <= Instant::now() {
                    *at = Instant::now() + budget.charge(&orders, *cost);
                    commands += *cost;
                }
            }
            tokio::time::advance(Duration::from_millis(100)).await;
        }
        assert!((2_900..=3_050).contains(&commands), "{commands} commands in 600 s");
        assert_eq!(budget.charge(&mails, 10), Duration::from_secs(2), "another topic");
        assert_eq!(budget.charge(&mails, 10_000), LONGEST);
    }
}
