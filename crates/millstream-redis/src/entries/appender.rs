//! What a producer appends with: entries of every identity, over the connections of all producers.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::capability::unsupported;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::id::MessageId;
use millstream_core::log::{Append, Appended, Appender, Durability, Identity, Numbering, check_window};
use millstream_core::sorted::SortedMap;
use millstream_core::topic::TopicPartition;
use redis::Pipeline;

use crate::backend::{Inner, RedisBackend};
use crate::conn::appends::node_appender::NodeAppender;
use crate::conn::appends::numbered::{Between, Numbers, between};
use crate::conn::appends::part::{Part, PartEntries, PartForm, stored};
use crate::conn::cluster::servers::Servers;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::entries::cluster_appender::ClusterAppender;
use crate::entries::dedup::{name_keys, places, requests_of};
use crate::error::unexpected;
use crate::scripts::times::ceil_ms;

/// Appends for one producer.
pub(crate) struct LogAppender {
    inner: Arc<Inner>,
    over: Over,
    is_confirmed: bool,
    /// What it takes to append with the numbers of the last batch that had some.
    numbers: Option<(Arc<Numbering>, Arc<Numbers>)>,
    /// Batches that are not reported, oldest first.
    begun: VecDeque<Begun>,
}

enum Over {
    Node(NodeAppender),
    Cluster(ClusterAppender),
}

/// A batch.
struct Begun {
    /// What was sent of it.
    sent: Arc<Vec<Append>>,
    /// Number of requests that are not answered.
    requests: usize,
    /// Results of the requests before these.
    results: Vec<Result<Appended>>,
    /// Where an entry of the batch has its result, if not all entries were sent: the position among those that were, and
    /// whether another entry was sent for it.
    places: Option<Vec<(usize, bool)>>,
}

impl RedisBackend {
    /// Opens an appender for one producer.
    pub(crate) fn open_appender(&self, durability: Durability) -> Result<LogAppender> {
        let inner = self.inner.clone();
        let over = match &*self.inner.servers {
            Servers::One(dial) => Over::Node(inner.appenders.line(dial)?.appender(false, durability)),
            Servers::Cluster(cluster) => {
                Over::Cluster(ClusterAppender::new(inner, cluster.clone(), durability))
            }
        };
        let (inner, is_confirmed) = (self.inner.clone(), durability != Durability::Stored);
        Ok(LogAppender { inner, over, is_confirmed, numbers: None, begun: VecDeque::new() })
    }
}

impl Begun {
    fn refused(batch: Arc<Vec<Append>>, error: &Error) -> Self {
        let results = batch.iter().map(|_| Err(error.clone())).collect();
        Self { sent: batch, requests: 0, results, places: None }
    }
}

impl Over {
    fn begin(&mut self, entries: PartEntries) {
        match self {
            Self::Node(node) => node.begin_part(Part::whole(entries)),
            Self::Cluster(cluster) => cluster.begin_entries(entries),
        }
    }

    async fn finish(&mut self) -> Vec<Result<Appended>> {
        match self {
            Self::Node(node) => node.finish().await,
            Self::Cluster(cluster) => cluster.finish().await,
        }
    }
}

impl LogAppender {
    /// Begins a batch of entries of one kind, and does not look at the [earlier](millstream_core::log::DedupIdentity::earlier)
    /// partitions of any.
    pub(crate) fn put(&mut self, batch: Arc<Vec<Append>>) {
        let begun = match batch.first().map(|append| &append.identity) {
            Some(Identity::Number(numbering, _)) => match self.numbers(&numbering.clone()) {
                Ok(numbers) => self.sent(batch, PartForm::Numbered(numbers)),
                Err(error) => Begun::refused(batch, &error),
            },
            Some(Identity::Dedup(_)) => {
                let places = places(&batch);
                let sent = match &places {
                    None => batch,
                    Some(places) => {
                        let sent = batch.iter().zip(places).filter(|(_, (_, other))| !other);
                        Arc::new(sent.map(|(append, _)| append.clone()).collect())
                    }
                };
                let requests = requests_of(&sent);
                let begun = Begun { sent, requests: requests.len(), results: Vec::new(), places };
                for batch in requests {
                    let form = PartForm::Dedup(self.inner.dedup.clone());
                    self.over.begin(PartEntries { batch, form });
                }
                begun
            }
            None | Some(Identity::None) => self.sent(batch, PartForm::Plain(self.inner.packings.clone())),
            Some(_) => Begun::refused(batch, &unsupported("this identity")),
        };
        self.begun.push_back(begun);
    }

    /// Sends a batch as one request.
    fn sent(&mut self, batch: Arc<Vec<Append>>, form: PartForm) -> Begun {
        self.over.begin(PartEntries { batch: batch.clone(), form });
        Begun { sent: batch, requests: 1, results: Vec::new(), places: None }
    }

    fn numbers(&mut self, numbering: &Arc<Numbering>) -> Result<Arc<Numbers>> {
        let known =
            self.numbers.as_ref().filter(|(known, _)| Arc::ptr_eq(known, numbering) || known == numbering);
        let numbers = match known {
            Some((_, numbers)) => numbers.clone(),
            None => {
                check_window(numbering.window)?;
                let code = self.inner.scripts.append_numbered.code();
                let numbers = Arc::new(Numbers::new(**numbering, ceil_ms(numbering.window), code));
                self.numbers = Some((numbering.clone(), numbers.clone()));
                numbers
            }
        };
        numbers.refused().cloned().map_or(Ok(numbers), Err)
    }

    /// Returns why a batch is not appended in this way.
    fn refusal(&self, batch: &[Append]) -> Option<Error> {
        let kind = match Append::kind_of(batch) {
            Ok(kind) => kind?,
            Err(error) => return Some(error),
        };
        let why = match kind {
            Identity::None => return None,
            _ if self.is_confirmed => {
                "an append with an id or a number has no durability of more than `Stored`"
            }
            Identity::Number(..) => return None,
            _ if batch.iter().any(|append| append.identity.looks_first()) => {
                "an append that looks at other partitions or at groups first is for `Log::append`"
            }
            _ => return None,
        };
        Some(Error::new(ErrorKind::Unsupported, why))
    }
}

#[async_trait]
impl Appender for LogAppender {
    fn begin(&mut self, batch: Arc<Vec<Append>>) {
        match self.refusal(&batch) {
            Some(error) => self.begun.push_back(Begun::refused(batch, &error)),
            None => self.put(batch),
        }
    }

    async fn finish(&mut self) -> Vec<Result<Appended>> {
        let Some(oldest) = self.begun.front_mut() else { return Vec::new() };
        // Results are kept for the next call, if this one is dropped while it waits.
        while oldest.requests > 0 {
            let results = self.over.finish().await;
            oldest.requests -= 1;
            match oldest.results.is_empty() {
                true => oldest.results = results,
                false => oldest.results.extend(results),
            }
        }
        match oldest.sent.first().map(|append| &append.identity) {
            Some(Identity::Number(..)) => look_up(&self.inner, &oldest.sent, &mut oldest.results).await,
            Some(Identity::Dedup(_)) => name_keys(&self.inner, &mut oldest.results).await,
            _ => {}
        }
        let Some(Begun { results, places, .. }) = self.begun.pop_front() else { return Vec::new() };
        let Some(places) = places else { return results };
        let result = |(at, other): (usize, bool)| {
            let result = results.get(at).cloned();
            let result: Result<Appended> =
                result.unwrap_or_else(|| Err(unexpected("no answer to an append")));
            result.map(|appended| match other {
                true => Appended::before(appended.partition, appended.id),
                false => appended,
            })
        };
        places.into_iter().map(result).collect()
    }
}

/// Looks into the logs for ids that do not follow from the records of transactions: nothing else was appended in between.
/// Without the right to read, or if some of the entries are gone, they stay unknown.
async fn look_up(inner: &Inner, batch: &[Append], results: &mut [Result<Appended>]) {
    let mut unknown: SortedMap<(&TopicPartition, MessageId, MessageId), Vec<usize>> = SortedMap::new();
    for (at, (result, append)) in results.iter().zip(batch).enumerate() {
        if let Some(Between { first, last }) = result.as_ref().err().and_then(between) {
            unknown.get_or_default((&append.topic_partition, first, last)).push(at);
        }
    }
    for ((tp, first, last), at) in unknown {
        let mut pipe = Pipeline::new();
        let log = inner.keys.log(tp);
        pipe.cmd("XRANGE").arg(log.as_str()).arg(first.to_string()).arg(last.to_string());
        let answer = inner.messages.send(&pipe).await.map(|answers| answers.into_iter().next());
        if let Ok(entries) = answer.and_then(|answer| reply::entries(answer.unwrap_or_default()))
            && entries.len() == at.len()
        {
            for (at, (id, _)) in at.into_iter().zip(entries) {
                results[at] = Ok(stored(&batch[at], id));
            }
        }
    }
}
