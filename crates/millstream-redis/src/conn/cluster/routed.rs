//! Requests that are spread over servers: one line of a kind to each, and each command to the server of its key.
//!
//! The server executes nothing of a command that it redirects or refuses because its slot is moving. Such a command is sent again, alone, and
//! only if no later command of its slot in the same request was executed: it would come behind that one. Commands that
//! were executed are never sent again.
//!
//! A transaction is sent to one server as a whole, and only as a whole again: its commands alone, outside of it, would be
//! executed even if it was to be discarded.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::ready;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::keys::Key;
use redis::{Arg, Cmd, Pipeline, Value};
use tokio::time::{Instant, sleep};

use crate::address::Address;
use crate::conn::cluster::servers::{Cluster, Hop, Servers};
use crate::conn::cluster::slots::slot_of;
use crate::conn::cluster::together::together;
use crate::conn::command::key_of;
use crate::conn::connection::{Answers, EachAnswer, Line};
use crate::conn::dial::Dial;
use crate::error::{redirection, unexpected};

/// Maximum number of redirections that are followed at once. After these it pauses: two nodes may name each other while
/// a slot changes its owner.
const AT_ONCE: u32 = 3;
/// Shortest and longest pause before a command is sent again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(200));

/// One line of a kind to each server.
pub(crate) struct Routed<L> {
    servers: Arc<Servers>,
    open: Open<L>,
    /// The line where there is one server.
    only: Option<Arc<L>>,
    lines: Lines<L>,
    /// How long commands are sent again that no server takes.
    limit: Duration,
}

type Lines<L> = Arc<Mutex<Vec<(Arc<Dial>, Arc<L>)>>>;
type Open<L> = Arc<dyn Fn(&Arc<Dial>) -> Result<L> + Send + Sync>;

/// Clones share their lines.
impl<L> Clone for Routed<L> {
    fn clone(&self) -> Self {
        let Self { servers, open, only, lines, limit } = self;
        let (servers, open, only, lines) = (servers.clone(), open.clone(), only.clone(), lines.clone());
        Self { servers, open, only, lines, limit: *limit }
    }
}

impl<L> Routed<L> {
    /// Creates the lines of a kind. `limit` is for how long a command is sent again while its slot moves or has no
    /// server.
    pub(crate) fn new(
        servers: &Arc<Servers>,
        limit: Duration,
        open: impl Fn(&Arc<Dial>) -> Result<L> + Send + Sync + 'static,
    ) -> Result<Self> {
        let only = match &**servers {
            Servers::One(dial) => Some(Arc::new(open(dial)?)),
            Servers::Cluster(_) => None,
        };
        Ok(Self { servers: servers.clone(), open: Arc::new(open), only, lines: Arc::default(), limit })
    }

    /// Returns the line to the server that serves a key.
    pub(crate) async fn of(&self, key: &Key) -> Result<Arc<L>> {
        match &self.only {
            Some(only) => Ok(only.clone()),
            None => self.line(&self.servers.of(key).await?),
        }
    }

    /// Returns the lines to all servers.
    pub(crate) async fn all(&self) -> Result<Vec<Arc<L>>> {
        match (&self.only, self.servers.cluster()) {
            (None, Some(cluster)) => {
                let primaries = cluster.primaries().await?;
                primaries.iter().map(|dial| self.line(dial)).collect()
            }
            (only, _) => Ok(only.iter().cloned().collect()),
        }
    }

    pub(crate) fn line(&self, dial: &Arc<Dial>) -> Result<Arc<L>> {
        if let Some(only) = &self.only {
            return Ok(only.clone());
        }
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, line)) = lines.iter().find(|(known, _)| Arc::ptr_eq(known, dial)) {
            return Ok(line.clone());
        }
        // Servers that have left, or are replicas now.
        lines.retain(|(known, _)| self.servers.cluster().is_none_or(|cluster| cluster.is_primary(known)));
        let line = Arc::new((self.open)(dial)?);
        lines.push((dial.clone(), line.clone()));
        Ok(line)
    }
}

impl<L: Line + 'static> Line for Routed<L> {
    fn send<'a>(&'a self, pipe: &'a Pipeline) -> Answers<'a> {
        match &self.only {
            Some(only) => only.send(pipe),
            None => Box::pin(async { self.send_each(pipe).await.into_iter().collect() }),
        }
    }

    fn send_each<'a>(&'a self, pipe: &'a Pipeline) -> EachAnswer<'a> {
        match (&self.only, self.servers.cluster()) {
            (None, Some(cluster)) => Box::pin(spread(cluster, self, self.limit, pipe)),
            (Some(only), _) => only.send_each(pipe),
            (None, None) => Box::pin(ready(Vec::new())),
        }
    }
}

/// The lines of a kind, whichever.
trait LineTo: Sync {
    fn line_to(&self, dial: &Arc<Dial>) -> Result<Arc<dyn Line>>;
}

impl<L: Line + 'static> LineTo for Routed<L> {
    fn line_to(&self, dial: &Arc<Dial>) -> Result<Arc<dyn Line>> {
        Ok(self.line(dial)?)
    }
}

/// Commands of one request that go to one server, in their order.
struct RoutedPart {
    dial: Arc<Dial>,
    pipe: Pipeline,
    /// For each command sent, its position in the request; `None` for an `ASKING`.
    sent: Vec<Option<usize>>,
}

impl RoutedPart {
    fn add(&mut self, at: usize, cmd: &Cmd, asking: bool) {
        if asking {
            self.pipe.cmd("ASKING");
            self.sent.push(None);
        }
        self.pipe.add_command(cmd.clone());
        self.sent.push(Some(at));
    }
}

impl<L: Line + 'static> Routed<L> {
    /// Sends the same to every node of a cluster, and passes on the answer of each as it comes.
    pub(crate) async fn each(
        &self,
        pipe: &Pipeline,
        answered: impl Fn(Address, Result<Vec<Value>>) + Sync,
    ) -> Result<()> {
        let Some(cluster) = self.servers.cluster() else { return Ok(()) };
        let answered = &answered;
        let nodes = cluster.primaries().await?;
        let answers = nodes.iter().filter_map(|dial| {
            let (node, line) = (dial.address()?, self.line(dial));
            let answer = async move {
                match line {
                    Ok(line) => answered(node, line.send(pipe).await),
                    Err(error) => answered(node, Err(error)),
                }
            };
            Some(answer.boxed())
        });
        together(answers.collect()).await;
        Ok(())
    }
}

/// Sends each command to the server of its key. Those that nobody takes are sent again, for `limit` at most.
async fn spread(
    cluster: &Arc<Cluster>,
    lines: &dyn LineTo,
    limit: Duration,
    pipe: &Pipeline,
) -> Vec<Result<Value>> {
    let commands: Vec<&Cmd> = pipe.cmd_iter().collect();
    let slots: Vec<Option<u16>> = commands.iter().map(|cmd| key_of(cmd).map(slot_of)).collect();
    if commands.iter().any(|cmd| is_multi(cmd)) {
        return match transaction(cluster, lines, limit, pipe, slots.iter().find_map(|slot| *slot)).await {
            Ok(values) => values.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); commands.len()],
        };
    }
    let mut results: Vec<Option<Result<Value>>> = commands.iter().map(|_| None).collect();
    let started = Instant::now();
    let (mut rest, mut tries): (Vec<usize>, u32) = ((0..commands.len()).collect(), 0);
    // Where the keys of commands are that have moved before their slots. Of no use to any other command.
    let mut asked: HashMap<usize, Hop> = HashMap::new();
    while !rest.is_empty() {
        if let Err(error) = cluster.ready().await {
            rest.drain(..).for_each(|at| results[at] = Some(Err(error.clone())));
            break;
        }
        let parts = parts(cluster, (&commands, &slots), &rest, &asked, &mut results).await;
        let ask = async |part: &RoutedPart| match lines.line_to(&part.dial) {
            Ok(line) => line.send(&part.pipe).await,
            Err(error) => Err(error),
        };
        let answers = parts.iter().map(|part| ask(part).boxed()).collect();
        for (part, answer) in parts.iter().zip(together(answers).await) {
            place(cluster, part, answer, &mut results, &mut asked);
        }
        let paused = again(&mut rest, &slots, &mut results);
        if rest.is_empty() {
            break;
        }
        tries += 1;
        if paused || tries > AT_ONCE {
            let pause = pause(tries);
            if started.elapsed() + pause > limit {
                break;
            }
            cluster.suspect();
            sleep(pause).await;
        }
    }
    let missing = || Err(unexpected("no reply"));
    results.into_iter().map(|result| result.unwrap_or_else(missing)).collect()
}

/// Sends a transaction to the server of its keys. The server discards all of it if it redirects or refuses a command.
async fn transaction(
    cluster: &Arc<Cluster>,
    lines: &dyn LineTo,
    limit: Duration,
    pipe: &Pipeline,
    slot: Option<u16>,
) -> Result<Vec<Value>> {
    let (started, mut tries) = (Instant::now(), 0);
    loop {
        cluster.ready().await?;
        let dial = match slot {
            Some(slot) => Some(cluster.hop(slot)?.dial),
            None => cluster.primaries().await?.into_iter().next(),
        };
        let dial = dial.ok_or_else(|| unexpected("a cluster without a primary"))?;
        let values = lines.line_to(&dial)?.send(pipe).await.inspect_err(|_| cluster.suspect())?;
        tries += 1;
        let pause = pause(tries);
        if !values.iter().any(is_again) || started.elapsed() + pause > limit {
            return Ok(values);
        }
        cluster.suspect();
        for value in &values {
            if let Value::ServerError(error) = value
                && let Some(moved) = redirection(error, dial.address().as_ref())
            {
                cluster.redirected(&moved);
            }
        }
        sleep(pause).await;
    }
}

/// Assigns commands to servers. A command without a key goes to every server that gets another one, in its place; if
/// there is none, to any server.
async fn parts(
    cluster: &Arc<Cluster>,
    (commands, slots): (&[&Cmd], &[Option<u16>]),
    rest: &[usize],
    asked: &HashMap<usize, Hop>,
    results: &mut [Option<Result<Value>>],
) -> Vec<RoutedPart> {
    let mut parts: Vec<RoutedPart> = Vec::new();
    let mut hops = HashMap::new();
    let new = |dial: &Arc<Dial>| RoutedPart { dial: dial.clone(), pipe: Pipeline::new(), sent: Vec::new() };
    for at in rest {
        let Some(slot) = slots[*at] else { continue };
        match asked.get(at).cloned().map_or_else(|| cluster.hop(slot), Ok) {
            Ok(hop) => {
                if parts.iter().all(|part| !Arc::ptr_eq(&part.dial, &hop.dial)) {
                    parts.push(new(&hop.dial));
                }
                hops.insert(*at, hop);
            }
            Err(error) => results[*at] = Some(Err(error)),
        }
    }
    if parts.is_empty() && rest.iter().any(|at| slots[*at].is_none()) {
        match cluster.primaries().await {
            Ok(primaries) => parts.extend(primaries.first().map(new)),
            Err(error) => rest.iter().for_each(|at| results[*at] = Some(Err(error.clone()))),
        }
    }
    for at in rest {
        match hops.get(at) {
            Some(hop) => {
                let part = parts.iter_mut().find(|part| Arc::ptr_eq(&part.dial, &hop.dial));
                part.into_iter().for_each(|part| part.add(*at, commands[*at], hop.asking));
            }
            None if slots[*at].is_none() => {
                parts.iter_mut().for_each(|part| part.add(*at, commands[*at], false));
            }
            None => {}
        }
    }
    parts
}

/// Puts the answers of one server where they belong, and takes note of redirections.
fn place(
    cluster: &Cluster,
    part: &RoutedPart,
    answer: Result<Vec<Value>>,
    results: &mut [Option<Result<Value>>],
    asked: &mut HashMap<usize, Hop>,
) {
    match answer {
        Ok(values) => {
            for (at, value) in part.sent.iter().zip(values) {
                let Some(at) = *at else { continue };
                asked.remove(&at);
                if let Value::ServerError(error) = &value {
                    match redirection(error, part.dial.address().as_ref()) {
                        Some(redirect) if redirect.ask => drop(asked.insert(at, cluster.asked(&redirect.to))),
                        Some(redirect) => cluster.redirected(&redirect),
                        None if error.code() == "CLUSTERDOWN" => cluster.suspect(),
                        None => {}
                    }
                }
                // A command without a key went to several servers: the first answer counts, unless one failed.
                let answered = matches!(&results[at], Some(Ok(kept)) if !is_again(kept));
                if !answered || matches!(value, Value::ServerError(_)) {
                    results[at] = Some(Ok(value));
                }
            }
        }
        Err(error) => {
            cluster.suspect();
            for at in part.sent.iter().flatten() {
                results[*at] = Some(Err(error.clone()));
            }
        }
    }
}

/// Keeps in `rest` what was not executed and may be sent again. Returns whether to pause before that.
fn again(rest: &mut Vec<usize>, slots: &[Option<u16>], results: &mut [Option<Result<Value>>]) -> bool {
    let mut overtaken = HashSet::new();
    let mut paused = false;
    let mut keep = Vec::with_capacity(rest.len());
    for at in rest.iter().rev() {
        let refused = match &results[*at] {
            Some(Ok(value)) if is_redirected(value) => true,
            Some(Ok(value)) if is_again(value) => {
                paused = true;
                true
            }
            Some(Err(error)) if error.kind() == ErrorKind::Unavailable => {
                paused = true;
                true
            }
            _ => false,
        };
        match slots[*at] {
            Some(slot) if !refused => drop(overtaken.insert(slot)),
            Some(slot) if overtaken.contains(&slot) => {
                let why = "its slot moved while the request was under way, and what came behind it was done";
                results[*at] = Some(Err(Error::new(ErrorKind::Unavailable, why)));
            }
            _ if refused => keep.push(*at),
            _ => {}
        }
    }
    keep.reverse();
    *rest = keep;
    paused
}

/// Returns the pause before another try.
fn pause(tries: u32) -> Duration {
    (PAUSES.0 * 2u32.saturating_pow(tries.min(8))).min(PAUSES.1)
}

fn is_multi(cmd: &Cmd) -> bool {
    matches!(cmd.args_iter().next(), Some(Arg::Simple(word)) if word == b"MULTI")
}

fn is_redirected(value: &Value) -> bool {
    matches!(value, Value::ServerError(error) if matches!(error.code(), "MOVED" | "ASK"))
}

/// Whether the server has done nothing, and another one or a later moment will serve.
fn is_again(value: &Value) -> bool {
    is_redirected(value)
        || matches!(value, Value::ServerError(error) if matches!(error.code(), "TRYAGAIN" | "CLUSTERDOWN"))
}
