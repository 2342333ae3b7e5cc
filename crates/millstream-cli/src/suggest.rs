//! Suggestions for names that do not exist.

use anyhow::{Error, Result};
use clap::ArgMatches;
use millstream::crates::core::QueueName;
use millstream::{ErrorKind, GroupName, TopicName};

use crate::context::Context;
use crate::global::Global;

/// The names that were typed.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Typed {
    topics: Vec<String>,
    groups: Vec<String>,
    queues: Vec<String>,
}

impl Typed {
    /// Returns the names among the arguments of the called command, which are identified by their types and names.
    pub(crate) fn of(matches: &ArgMatches) -> Self {
        let mut leaf = matches;
        while let Some((_, beneath)) = leaf.subcommand() {
            leaf = beneath;
        }
        let mut topics = many::<TopicName>(leaf, &["topic", "topics", "to_topic"]);
        let mut queues = many::<QueueName>(leaf, &["queue", "queues"]);
        // A recurring message belongs to a topic or to a queue.
        let is_queue = matches!(leaf.try_get_one::<bool>("queue"), Ok(Some(true)));
        let named = many::<String>(leaf, &["name"]);
        if is_queue {
            queues.extend(named);
        } else {
            topics.extend(named);
        }
        Self { topics, groups: many::<GroupName>(leaf, &["group"]), queues }
    }
}

fn many<T: ToString + Clone + Send + Sync + 'static>(leaf: &ArgMatches, ids: &[&str]) -> Vec<String> {
    // An argument that the command does not have, or that has another type there, returns an error and is skipped.
    let of = |id: &&str| leaf.try_get_many::<T>(id).ok().flatten();
    ids.iter().filter_map(of).flatten().map(ToString::to_string).collect()
}

/// Returns advice on an error about a name that does not exist: a similar name that exists.
pub(crate) async fn explain(error: &Error, typed: &Typed, global: &Global) -> Option<String> {
    let kind =
        error.chain().find_map(|it| it.downcast_ref::<millstream::Error>()).map(millstream::Error::kind);
    if kind != Some(ErrorKind::NotFound) {
        return None;
    }
    // An error of the lookup must not replace the original one.
    meant(typed, global).await.ok().flatten().map(|name| format!("is {name} meant?"))
}

/// Returns the existing name that is most similar to the missing one.
async fn meant(typed: &Typed, global: &Global) -> Result<Option<String>> {
    let cx = Context::open(global).await?;
    let there = strings(&cx.admin().topics().await?);
    if let Some(topic) = typed.topics.iter().find(|topic| !there.contains(topic)) {
        return Ok(nearest(topic, &there).map(|name| format!("topic {name}")));
    }
    for topic in &typed.topics {
        let there = strings(&cx.admin().groups(&topic.parse()?).await?);
        if let Some(group) = typed.groups.iter().find(|group| !there.contains(group)) {
            return Ok(nearest(group, &there).map(|name| format!("group {name}")));
        }
    }
    let there = strings(&cx.mq.backend().tasks()?.queues().await?);
    let missing = typed.queues.iter().find(|queue| !there.contains(queue));
    Ok(missing.and_then(|queue| nearest(queue, &there)).map(|name| format!("delay queue {name}")))
}

fn strings<T: ToString>(names: &[T]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

/// Returns the name with the smallest difference, if it may be a typing error: at most a third of the name, at least
/// one character, and not the whole name. Upper and lower case are equal.
fn nearest<'a>(name: &str, there: &'a [String]) -> Option<&'a String> {
    let name = name.to_lowercase();
    let len = name.chars().count();
    let most = (len / 3).max(1).min(len.saturating_sub(1));
    let distance = |other: &String| strsim::damerau_levenshtein(&name, &other.to_lowercase());
    let near = there.iter().map(|other| (distance(other), other)).filter(|(distance, _)| *distance <= most);
    near.min().map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn a_slip_is_noticed_and_another_name_is_none() {
        let there = ["orders", "orders-eu", "payments", "a"].map(str::to_owned);
        let near = |name| nearest(name, &there).map(String::as_str);
        assert_eq!(
            [near("ordres"), near("Orders"), near("order"), near("orders_eu")],
            [Some("orders"), Some("orders"), Some("orders"), Some("orders-eu")]
        );
        assert_eq!([near("invoices"), near("p"), near("zz")], [None, None, None]);
        assert_eq!(nearest("x", &[]), None);
    }

    #[test]
    fn the_names_of_a_command_are_found_wherever_it_has_them() {
        let typed = |words: &str| {
            let words = format!("millstream {words}");
            Typed::of(&Cli::command().try_get_matches_from(words.split_whitespace()).expect(&words))
        };
        let names = |topics: &[&str], groups: &[&str], queues: &[&str]| Typed {
            topics: strings(topics),
            groups: strings(groups),
            queues: strings(queues),
        };
        assert_eq!(typed("topic describe a"), names(&["a"], &[], &[]));
        assert_eq!(typed("dlq replay a g --all --to-topic b"), names(&["a", "b"], &["g"], &[]));
        assert_eq!(typed("consume a -g g"), names(&["a"], &["g"], &[]));
        assert_eq!(typed("verify a b --queue q"), names(&["a", "b"], &[], &["q"]));
        assert_eq!(typed("queue dead list q"), names(&[], &[], &["q"]));
        assert_eq!(typed("schedule list a"), names(&["a"], &[], &[]));
        assert_eq!(typed("schedule list a --queue"), names(&[], &[], &["a"]));
        assert_eq!(typed("topic list"), Typed::default());
    }
}
