//! Appends of entries with numbers, over the connections of all producers.

use std::sync::Arc;

use async_trait::async_trait;
use millstream_core::error::Result;
use millstream_core::id::MessageId;
use millstream_core::log::{Appender, Durability, NumberedAppend, NumberedAppender, Numbering, check_window};

use crate::backend::RedisBackend;
use crate::conn::appends::node_appender::NodeAppender;
use crate::conn::appends::numbered::Numbers;
use crate::conn::appends::part::{Entries, Part};
use crate::conn::cluster::servers::Servers;
use crate::entries::cluster_appender::ClusterAppender;

/// Appends for one producer, whose numbers these are.
pub(crate) struct Numbered {
    over: Over,
    numbers: Arc<Numbers>,
}

enum Over {
    Node(NodeAppender),
    Cluster(ClusterAppender),
}

impl RedisBackend {
    /// Opens an appender for the entries of one producer.
    pub(crate) fn open_numbered(&self, numbering: Numbering) -> Result<Numbered> {
        check_window(numbering.window)?;
        let inner = self.inner.clone();
        let over = match &*self.inner.servers {
            Servers::One(dial) => Over::Node(inner.appenders.line(dial)?.appender(false, Durability::Stored)),
            Servers::Cluster(cluster) => {
                Over::Cluster(ClusterAppender::new(inner, cluster.clone(), Durability::Stored))
            }
        };
        let numbers = Arc::new(Numbers::new(numbering, self.inner.scripts.append_numbered.code()));
        Ok(Numbered { over, numbers })
    }

    pub(crate) async fn append_with_numbers(
        &self,
        numbering: Numbering,
        batch: &[NumberedAppend],
    ) -> Vec<Result<MessageId>> {
        let mut appender = match self.open_numbered(numbering) {
            Ok(appender) => appender,
            Err(error) => return batch.iter().map(|_| Err(error.clone())).collect(),
        };
        appender.begin(Arc::new(batch.to_vec()));
        appender.finish().await
    }
}

#[async_trait]
impl NumberedAppender for Numbered {
    fn begin(&mut self, batch: Arc<Vec<NumberedAppend>>) {
        let entries = Entries::Numbered(batch, self.numbers.clone());
        match &mut self.over {
            Over::Node(node) => node.begin_part(Part::whole(entries)),
            Over::Cluster(cluster) => cluster.begin_entries(entries),
        }
    }

    async fn finish(&mut self) -> Vec<Result<MessageId>> {
        match &mut self.over {
            Over::Node(node) => node.finish().await,
            Over::Cluster(cluster) => cluster.finish().await,
        }
    }
}
