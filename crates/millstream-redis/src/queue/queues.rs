//! Delay queues: their settings and their names.

use millstream_core::catalog::FORMAT;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::name::QueueName;
use millstream_core::tasks::{MAX_SHARDS, QueueSpec};
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::conn::connection::Line;
use crate::conn::replies::reply;

/// Fields of a queue's meta hash.
const META: [&str; 2] = ["shards", "format"];

fn spec(name: &QueueName, meta: Value) -> Result<QueueSpec> {
    let [shards, format] = reply::tuple(meta)?;
    if shards == Value::Nil && format == Value::Nil {
        return Err(Error::new(ErrorKind::NotFound, format!("queue {name} does not exist")));
    }
    let number = |value: Value, what: &str| -> Result<u32> {
        let damaged = || Error::new(ErrorKind::Protocol, format!("queue {name}: stored {what} is invalid"));
        reply::text(value).ok().and_then(|text| text.parse().ok()).ok_or_else(damaged)
    };
    // Check the format first: a newer one may give every other field another meaning.
    let format = number(format, "format")?;
    if format > FORMAT {
        let message = format!("queue {name} has format {format}, this version knows {FORMAT}");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let spec = QueueSpec { name: name.clone(), shards: number(shards, "shards")? };
    check(&spec).map_err(|error| Error::new(ErrorKind::Protocol, format!("stored {error}")))?;
    Ok(spec)
}

fn check(spec: &QueueSpec) -> Result<()> {
    if (1..=MAX_SHARDS).contains(&spec.shards) {
        return Ok(());
    }
    let message = format!("queue {} cannot have {} shards: 1 to {MAX_SHARDS}", spec.name, spec.shards);
    Err(Error::new(ErrorKind::InvalidConfig, message))
}

impl Inner {
    pub(crate) async fn create_queue(&self, wanted: &QueueSpec) -> Result<QueueSpec> {
        check(wanted)?;
        let meta = self.keys.queue_meta(&wanted.name);
        let mut pipe = Pipeline::new();
        // A transaction, so that no reader sees half of the settings; with HSETNX, so that the first writer of a field
        // wins.
        pipe.cmd("MULTI");
        for (field, value) in META.iter().zip([wanted.shards, FORMAT]) {
            pipe.cmd("HSETNX").arg(meta.as_str()).arg(field).arg(value);
        }
        pipe.cmd("HMGET").arg(meta.as_str()).arg(&META);
        pipe.cmd("EXEC");
        let on_meta = |error: Error| error.during(format_args!("create queue in {meta}"));
        let mut done = Value::Nil;
        for answer in self.pool.send(&pipe).await? {
            done = reply::ok(answer).map_err(on_meta)?;
        }
        let mut last = Value::Nil;
        for answer in reply::array(done)? {
            last = reply::ok(answer).map_err(on_meta)?;
        }
        let stored = spec(&wanted.name, last)?;
        let registry = self.keys.queues();
        let mut pipe = Pipeline::new();
        pipe.cmd("SADD").arg(registry.as_str()).arg(wanted.name.as_str());
        self.one(&registry, &pipe).await?;
        Ok(stored)
    }

    pub(crate) async fn queue(&self, name: &QueueName) -> Result<QueueSpec> {
        let meta = self.keys.queue_meta(name);
        let mut pipe = Pipeline::new();
        pipe.cmd("HMGET").arg(meta.as_str()).arg(&META);
        spec(name, self.one(&meta, &pipe).await?)
    }

    pub(crate) async fn queues(&self) -> Result<Vec<QueueName>> {
        self.names(&self.keys.queues(), |name| QueueName::new(name)).await
    }
}
