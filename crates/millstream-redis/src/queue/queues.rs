//! Delay queues: their settings and their names.

use millstream_core::cancels::WorkPlace;
use millstream_core::catalog::FORMAT;
use millstream_core::dead_letters::DeadLetterRetention;
use millstream_core::error::{Error, ErrorKind, Result};
use millstream_core::name::QueueName;
use millstream_core::schedule::Place;
use millstream_core::tasks::{QueueChange, QueueSpec};
use redis::{Pipeline, Value};

use crate::backend::Inner;
use crate::conn::replies::reply;
use crate::scripts::script;

/// Fields of a queue's meta hash.
const META: [&str; 3] = ["shards", "format", "deadLetterRetention"];

pub(crate) fn spec(name: &QueueName, meta: Value) -> Result<QueueSpec> {
    let [shards, format, of_dead] = reply::tuple(meta)?;
    if shards == Value::Nil && format == Value::Nil {
        return Err(unknown(name));
    }
    let damaged =
        |what: &str| Error::new(ErrorKind::Protocol, format!("queue {name}: stored {what} is invalid"));
    let number = |value: Value, what: &str| -> Result<u32> {
        reply::text(value).ok().and_then(|text| text.parse().ok()).ok_or_else(|| damaged(what))
    };
    // Check the format first: a newer one may give every other field another meaning.
    let format = number(format, "format")?;
    if format > FORMAT {
        let message = format!("queue {name} has format {format}, this version knows {FORMAT}");
        return Err(Error::new(ErrorKind::Unsupported, message));
    }
    let of_dead = match of_dead {
        Value::Nil => DeadLetterRetention::KEEP,
        stored => {
            let stored = reply::text(stored).map_err(|_| damaged("deadLetterRetention"))?;
            DeadLetterRetention::parse(&stored).map_err(|error| error.during(format_args!("queue {name}")))?
        }
    };
    let spec = QueueSpec::new(name.clone(), number(shards, "shards")?).with_dead_letter_retention(of_dead);
    spec.check().map_err(|error| Error::new(ErrorKind::Protocol, format!("stored {error}")))?;
    Ok(spec)
}

fn unknown(name: &QueueName) -> Error {
    Error::new(ErrorKind::NotFound, format!("queue {name} does not exist"))
}

impl Inner {
    pub(crate) async fn create_queue(&self, wanted: &QueueSpec) -> Result<QueueSpec> {
        wanted.check()?;
        if let Err(refused) = wanted.name.check_new() {
            let missing = |error: Error| if error.kind() == ErrorKind::NotFound { refused } else { error };
            self.queue(&wanted.name).await.map_err(missing)?;
        }
        let meta = self.keys.queue_meta(&wanted.name);
        // All in one script, so that no reader sees half of the settings.
        let call = self.scripts.create_queue.call([&meta]).arg(wanted.shards).arg(FORMAT);
        let call = call.arg(wanted.dead_letter_retention.to_string());
        let stored = script::run_one(&self.pool, call).await;
        let stored = stored.map_err(|error| error.during(format_args!("create queue in {meta}")))?;
        let stored = spec(&wanted.name, stored)?;
        let [_, settings] = self.keys.patterns_of_settings();
        self.list_name(&self.keys.queues(), &settings, wanted.name.as_str()).await?;
        Ok(stored)
    }

    pub(crate) async fn alter_queue(&self, name: &QueueName, change: &QueueChange) -> Result<QueueSpec> {
        // Checked with the stored settings, which are also those of a format that this version knows.
        change.of(self.queue(name).await?)?;
        let meta = self.keys.queue_meta(name);
        let of_dead = change.dead_letter_retention.map(|retention| retention.to_string()).unwrap_or_default();
        let call = self.scripts.alter_queue.call([&meta]).arg(of_dead);
        let stored = script::run_one(&self.pool, call).await.map_err(|error| match error.kind() {
            ErrorKind::NotFound => unknown(name),
            _ => error.during(format_args!("alter queue in {meta}")),
        })?;
        spec(name, stored)
    }

    pub(crate) async fn queue(&self, name: &QueueName) -> Result<QueueSpec> {
        match self.stored_queue(name).await {
            Err(missing) if missing.kind() == ErrorKind::NotFound => {
                Err(self.queue_lost(name, missing).await?)
            }
            other => other,
        }
    }

    /// Reads the settings of a queue, whether it is listed or not.
    async fn stored_queue(&self, name: &QueueName) -> Result<QueueSpec> {
        let meta = self.keys.queue_meta(name);
        let mut pipe = Pipeline::new();
        pipe.cmd("HMGET").arg(meta.as_str()).arg(&META);
        spec(name, self.one(&meta, &pipe).await?)
    }

    pub(crate) async fn delete_queue(&self, name: &QueueName) -> Result<bool> {
        let (meta, registry) = (self.keys.queue_meta(name), self.keys.queues());
        // One that is listed and has lost its settings is deleted too.
        let found = match self.stored_queue(name).await {
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            other => Some(other?),
        };
        for shard in found.iter().flat_map(QueueSpec::iter) {
            let (keys, place) = (&self.keys, Place::from(shard.clone()));
            let of_shard = [
                keys.delay(&place),
                keys.delay_items(&place),
                keys.recur(&place),
                keys.recur_items(&place),
                keys.wake(&place),
                keys.claims(&shard),
                keys.task_states(&shard),
                keys.finished(&shard),
                keys.watcher(&shard),
                keys.dead_tasks(&shard),
                keys.cancels(&WorkPlace::Shard(shard.clone())),
                keys.steps(&WorkPlace::Shard(shard.clone())),
                keys.batch_notes(&place),
            ];
            let mut pipe = Pipeline::new();
            pipe.cmd("UNLINK");
            for key in &of_shard {
                pipe.arg(key.as_str());
            }
            self.one(&of_shard[0], &pipe).await?;
        }
        self.unlist(&registry, name.as_str()).await?;
        // Last: until then the number of shards is known, and an interrupted deletion can be repeated.
        let mut pipe = Pipeline::new();
        pipe.cmd("UNLINK").arg(meta.as_str());
        self.one(&meta, &pipe).await?;
        // Somebody may have found the settings meanwhile, and listed it again.
        self.unlist(&registry, name.as_str()).await?;
        Ok(found.is_some())
    }

    pub(crate) async fn queues(&self) -> Result<Vec<QueueName>> {
        let [_, settings] = self.keys.patterns_of_settings();
        self.names_or_found(&self.keys.queues(), &settings, |name| QueueName::new(name)).await
    }
}
