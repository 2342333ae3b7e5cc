//! Names: the attributes and metrics of OpenTelemetry's conventions for messaging that are used, and on what.
//!
//! `docs/guides/tracing.md` has the same tables; a test compares them.

use millstream_core::span::OperationKind as Op;
use opentelemetry::trace::SpanKind;

use Instrument::{ConsumedMessages, OperationDuration, ProcessDuration, SentMessages};

/// Version of the conventions that is followed.
pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";

/// Value of `messaging.system`. The conventions list no value for Redis.
pub const SYSTEM: &str = "millstream";

/// Attribute of spans and metrics.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Attribute {
    /// Name.
    pub name: &'static str,
    /// Operations whose spans have it.
    pub spans: &'static [Op],
    /// Metrics that have it.
    pub metrics: &'static [Instrument],
    /// Meaning, in one sentence.
    pub help: &'static str,
}

/// Metric of the conventions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Instrument {
    /// Histogram of the operations that call a server, or wait for a message.
    OperationDuration,
    /// Counter of messages that were sent.
    SentMessages,
    /// Counter of messages that were passed to the application.
    ConsumedMessages,
    /// Histogram of handlers.
    ProcessDuration,
}

impl Instrument {
    /// All of them.
    pub const ALL: [Self; 4] = [OperationDuration, SentMessages, ConsumedMessages, ProcessDuration];

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            OperationDuration => "messaging.client.operation.duration",
            SentMessages => "messaging.client.sent.messages",
            ConsumedMessages => "messaging.client.consumed.messages",
            ProcessDuration => "messaging.process.duration",
        }
    }

    /// Returns the unit.
    #[must_use]
    pub const fn unit(self) -> &'static str {
        match self {
            OperationDuration | ProcessDuration => "s",
            SentMessages | ConsumedMessages => "{message}",
        }
    }

    /// Returns the meaning, in one sentence.
    #[must_use]
    pub const fn help(self) -> &'static str {
        match self {
            OperationDuration => "Duration of a send, schedule, receive or settle operation.",
            SentMessages => "Messages that were sent or scheduled, those that failed included.",
            ConsumedMessages => "Messages that were passed to a handler or pulled, each time that they were.",
            ProcessDuration => "Duration of a call of a handler.",
        }
    }
}

/// Upper bounds of the buckets of durations, in seconds, as the conventions advise.
pub const SECONDS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];

/// Returns the value of `messaging.operation.type`.
#[must_use]
pub const fn operation_type(kind: Op) -> &'static str {
    match kind {
        Op::Schedule => Op::Send.as_str(),
        other => other.as_str(),
    }
}

/// Returns the kind of the span. `created`: whether the messages carry the context of another span.
#[must_use]
pub const fn span_kind(kind: Op, created: bool) -> SpanKind {
    match kind {
        Op::Send | Op::Schedule if !created => SpanKind::Producer,
        Op::Process => SpanKind::Consumer,
        _ => SpanKind::Client,
    }
}

const ALL: &[Op] = &Op::ALL;
const MESSAGE: &[Op] = &[Op::Send, Op::Schedule, Op::Receive, Op::Process];

macro_rules! attributes {
    ($($name:ident = $text:literal $spans:expr, $metrics:expr, $help:literal;)*) => {
        $(#[doc = $help] pub const $name: &str = $text;)*
        /// All attributes.
        pub const ATTRIBUTES: &[Attribute] = &[
            $(Attribute { name: $name, spans: $spans, metrics: $metrics, help: $help }),*
        ];
    };
}

attributes! {
    MESSAGING_SYSTEM = "messaging.system" ALL, &Instrument::ALL, "`millstream`.";
    OPERATION_NAME = "messaging.operation.name" ALL, &Instrument::ALL,
        "`send`, `schedule` (delayed messages, and tasks), `receive` (pulled messages), `process` (handlers) or `settle`.";
    OPERATION_TYPE = "messaging.operation.type" ALL, &[OperationDuration],
        "`send` for `send` and `schedule`, otherwise the name.";
    DESTINATION_NAME = "messaging.destination.name" ALL, &Instrument::ALL, "Topic, or delay queue.";
    PARTITION_ID = "messaging.destination.partition.id" ALL, &[],
        "Partition, or shard of a delay queue; not if the messages of a batch went to several.";
    CONSUMER_GROUP = "messaging.consumer.group.name" &[Op::Receive, Op::Process, Op::Settle],
        &[OperationDuration, ConsumedMessages, ProcessDuration],
        "Consumer group; not for delay queues.";
    MESSAGE_ID = "messaging.message.id" MESSAGE, &[],
        "Id of the message in its partition's log, the same on every attempt; of delayed messages that wait, and of tasks, the id of the schedule. Of a batch it is on the links.";
    BATCH_MESSAGE_COUNT = "messaging.batch.message_count" &[Op::Send, Op::Schedule, Op::Process, Op::Settle], &[],
        "Number of messages of `send_all`, `send_all_delayed`, `schedule_all`, a batch handler, a request of a relay or one that settles, or a rule that fires.";
    DELIVERY_ATTEMPT = "messaging.millstream.message.delivery_attempt" &[Op::Receive, Op::Process], &[],
        "Number of the attempt, from 1; not of a batch.";
    BODY_SIZE = "messaging.message.body.size" MESSAGE, &[],
        "Bytes of the payload of a single message, with `body_size(true)` only; of a task when it is processed.";
    ERROR_TYPE = "error.type" ALL, &Instrument::ALL,
        "Only of a failure: the kind of the error (`unavailable`, …); of handlers `error`, `panic`, `timeout`, `rejected` or `undecodable`; `cancelled` if the caller gave up, or the consumer was killed. Of a batch, that of the first message that failed.";
    SERVER_ADDRESS = "server.address" ALL, &Instrument::ALL, "Address of the server, if it was set with `server`.";
    SERVER_PORT = "server.port" ALL, &Instrument::ALL, "Port of the server, likewise.";
}
