//! How long each node of a cluster has answered this process without a gap.
//!
//! A group's heartbeats go to one node, and its leases are on all: that one node has answered shows nothing about the others. So each
//! heartbeat asks all nodes who they are, and a request that takes something over carries what its own node has answered.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use millstream_core::continuity::{Continuity, UNNAMED};
use redis::{Pipeline, Value};

use crate::address::Address;
use crate::conn::replies::reply;

/// Continuities of the nodes.
#[derive(Default)]
pub(crate) struct NodeAnswers(Mutex<HashMap<Address, Node>>);

#[derive(Default)]
struct Node {
    /// One for each ttl that is in use.
    known: Vec<KnownNode>,
    asked: Option<Instant>,
    /// Time of the newest question that was answered.
    newest: Option<Instant>,
}

struct KnownNode {
    continuity: Continuity,
    used: Instant,
}

/// Returns a node with its record of this ttl, the last one. Before there is a new one, those go that nobody has used for their ttl: they
/// have a gap. So nodes that have left, and ttls of consumers that have ended, do not collect.
fn with<'a>(nodes: &'a mut HashMap<Address, Node>, node: &Address, ttl: Duration) -> &'a mut Node {
    let of_ttl = |known: &KnownNode| known.continuity.ttl() == ttl;
    if !nodes.get(node).is_some_and(|node| node.known.iter().any(of_ttl)) {
        nodes.retain(|_, node| {
            node.known.retain(|known| known.used.elapsed() < known.continuity.ttl());
            !node.known.is_empty()
        });
    }
    let node = nodes.entry(node.clone()).or_default();
    let known = node.known.iter().position(of_ttl).map(|at| node.known.remove(at));
    let continuity = known.map_or_else(|| Continuity::new(ttl), |known| known.continuity);
    node.known.push(KnownNode { continuity, used: Instant::now() });
    node
}

impl NodeAnswers {
    fn nodes(&self) -> MutexGuard<'_, HashMap<Address, Node>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the continuity of a node that stands for that of the caller, `asked`: with its ttl, and no longer. The one
    /// of the caller counts only if it is of a server that is known, and not old.
    pub(crate) fn of(&self, node: &Address, asked: &Continuity) -> Continuity {
        let mut nodes = self.nodes();
        let Some((server, until)) = asked.last() else { return Continuity::new(asked.ttl()) };
        let of_server = |node: &Node| {
            let last = |known: &KnownNode| known.continuity.last().filter(|it| it.0 == server).map(|it| it.1);
            node.known.iter().find_map(last)
        };
        let last = nodes.values().find_map(of_server);
        let own = with(&mut nodes, node, asked.ttl()).known.last().map(|known| known.continuity.clone());
        let own = own.unwrap_or_else(|| Continuity::new(asked.ttl()));
        match last {
            _ if own.last().is_some_and(|(own, _)| own == server) => asked.clone(),
            Some(last) if last.saturating_duration_since(until) < asked.ttl() / 2 => {
                own.no_longer_than(asked)
            }
            _ => Continuity::new(asked.ttl()),
        }
    }

    /// Records that a node is asked now, for requests with this ttl, unless it was within a sixth of it. Returns whether it
    /// was recorded: then the caller asks the [`question`].
    pub(crate) fn begin_question(&self, node: &Address, ttl: Duration) -> bool {
        let mut nodes = self.nodes();
        let node = with(&mut nodes, node, ttl);
        let due = node.asked.is_none_or(|asked| asked.elapsed() >= ttl / 6);
        if due {
            node.asked = Some(Instant::now());
        }
        due
    }

    /// Records the answers to the [`question`] of the time `asked`. An answer that comes behind one to a later question is
    /// ignored: its time would look like a clock that was set back.
    pub(crate) fn answered(&self, node: &Address, asked: Instant, answers: Vec<Value>) {
        let Ok([process, history, time]) = <[Value; 3]>::try_from(answers) else { return };
        let Ok(now) = reply::time(time) else { return };
        let word = |info: Value, name: &str| -> Option<String> {
            let info = reply::text(info).ok()?;
            let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(line.trim().to_owned())
        };
        // As the scripts write it.
        let server = match (word(process, "run_id"), word(history, "master_replid")) {
            (Some(process), Some(history)) => format!("{process}.{history}"),
            _ => UNNAMED.to_owned(),
        };
        let mut nodes = self.nodes();
        // One that is not there was not asked, or too long ago.
        if let Some(node) = nodes.get_mut(node)
            && node.newest.is_none_or(|newest| newest < asked)
        {
            node.newest = Some(asked);
            node.known.iter_mut().for_each(|known| known.continuity.advance(&server, now));
        }
    }
}

/// Asks a node who it is, and its time.
pub(crate) fn question() -> Pipeline {
    let mut pipe = Pipeline::with_capacity(3);
    pipe.cmd("INFO").arg("server");
    pipe.cmd("INFO").arg("replication");
    pipe.cmd("TIME");
    pipe
}

#[cfg(test)]
mod tests {
    use millstream_core::Timestamp;

    use super::*;

    #[test]
    fn nodes_and_ttls_that_nobody_uses_do_not_collect() {
        let answers = NodeAnswers::default();
        let node = |port| Address::new("a", port);
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(3_600));
        answers.begin_question(&node(1), long);
        for port in 2..1_000 {
            answers.begin_question(&node(port), short);
            answers.begin_question(&node(1), Duration::from_millis(u64::from(port % 20) + 1));
        }
        // All of these ttls end.
        std::thread::sleep(Duration::from_millis(21));
        answers.begin_question(&node(1_000), short);
        let nodes = answers.nodes();
        let known = |port| nodes.get(&node(port)).map(|node| node.known.len());
        assert_eq!((nodes.len(), known(1), known(1_000)), (2, Some(1), Some(1)));
    }

    #[test]
    fn each_node_has_its_own() {
        let answers = NodeAnswers::default();
        let [one, two, three] = [1, 2, 3].map(|port| Address::new("a", port));
        let ttl = Duration::from_millis(300);
        let text = |text: &str| Value::BulkString(text.into());
        let answer = |node: &Address, run: &str, ms: i64| {
            let time = Value::Array(vec![text("1"), text(&(ms * 1_000).to_string())]);
            let replies =
                [text(&format!("# Server\r\nrun_id:{run}\r\n")), text("master_replid:cd\r\n"), time];
            answers.answered(node, Instant::now(), replies.to_vec());
        };
        assert!([&one, &two, &three].iter().all(|node| answers.begin_question(node, ttl)));
        let mut asked = Continuity::new(ttl);
        for ms in [0, 100, 200, 300] {
            answer(&one, "aa", ms);
            answer(&two, "bb", ms);
            asked.advance("aa.cd", Timestamp::from_millis(1_000 + u64::try_from(ms).expect("positive")));
        }
        let now = Timestamp::from_millis(1_300);
        assert!(answers.of(&one, &asked).judges("aa.cd", now));
        assert!(
            answers.of(&two, &asked).judges("bb.cd", now),
            "what one node has answered stands for another one"
        );
        assert!(!answers.of(&three, &asked).judges("cc.cd", now), "which has answered as well");
        assert!(!answers.of(&two, &Continuity::new(ttl)).judges("bb.cd", now), "for who was answered");
        let mut unknown = Continuity::new(ttl);
        let _ = [0, 100, 200, 300].map(|ms| unknown.advance("dd.cd", Timestamp::from_millis(1_000 + ms)));
        assert!(!answers.of(&two, &unknown).judges("bb.cd", now), "by a server that is one of them");
        let mut short = Continuity::new(ttl);
        let _ = [200, 300].map(|ms| short.advance("aa.cd", Timestamp::from_millis(1_000 + ms)));
        assert!(!answers.of(&two, &short).judges("bb.cd", now), "for as long");
        let _ = [400, 500, 600].map(|ms| answer(&one, "aa", ms));
        assert!(!answers.of(&two, &asked).judges("bb.cd", now), "and not long ago");
    }
}
