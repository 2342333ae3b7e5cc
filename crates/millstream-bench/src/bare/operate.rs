//! The bare commands that would answer an operator's questions, in pipelines on one connection.

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, Value, cmd};

use super::connect;
use crate::args::Question;
use crate::measure::{Measured, Stage};
use crate::ours::GROUP;
use crate::work::NEEDLE;

/// Number of commands in a pipeline.
const BATCH: usize = 500;

/// Number of entries of a page.
const PAGE: usize = 500;

/// Answers the question about all streams of the run.
pub(crate) async fn operate(stage: &Stage, question: Question) -> Result<Measured> {
    let mut connection = connect(&stage.url).await?;
    let streams = streams(&mut connection, &stage.namespace).await?;
    ensure!(!streams.is_empty(), "there are no streams");
    let meter = stage.meter().await?;
    match question {
        Question::Lag | Question::Scrape => each(&mut connection, &streams, states).await?,
        Question::Memory => {
            let usage = |stream: &str| vec![of("MEMORY", &["USAGE", stream])];
            each(&mut connection, &streams, usage).await?;
        }
        Question::Verify => {
            let checked = |stream: &str| {
                let entries = of("XRANGE", &[stream, "-", "+", "COUNT", "100"]);
                let pending = of("XPENDING", &[stream, GROUP, "-", "+", "100"]);
                [states(stream), vec![entries, pending]].concat()
            };
            each(&mut connection, &streams, checked).await?;
        }
        Question::Find => {
            let mut found = 0;
            for stream in &streams {
                found += find(&mut connection, stream).await?;
            }
            ensure!(found == 1, "{found} messages have it");
        }
    }
    meter.stop_answer().await
}

/// Returns the commands for the state of a stream and its groups.
fn states(stream: &str) -> Vec<Cmd> {
    let pending = of("XPENDING", &[stream, GROUP]);
    vec![of("XLEN", &[stream]), of("XINFO", &["GROUPS", stream]), pending]
}

fn of(name: &str, args: &[&str]) -> Cmd {
    let mut command = cmd(name);
    command.arg(args);
    command
}

/// Sends the commands for each stream.
async fn each(
    connection: &mut MultiplexedConnection,
    streams: &[String],
    commands: impl Fn(&str) -> Vec<Cmd>,
) -> Result<()> {
    let all: Vec<Cmd> = streams.iter().flat_map(|stream| commands(stream)).collect();
    for batch in all.chunks(BATCH) {
        let mut pipeline = Pipeline::with_capacity(batch.len());
        for command in batch {
            pipeline.add_command(command.clone());
        }
        pipeline.query_async::<Vec<Value>>(connection).await?;
    }
    Ok(())
}

/// Returns the streams of the run that have a group.
async fn streams(connection: &mut MultiplexedConnection, namespace: &str) -> Result<Vec<String>> {
    let (mut streams, mut cursor) = (Vec::new(), 0_u64);
    loop {
        let mut scan = cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{namespace}*")).arg("COUNT").arg(1_000);
        let (next, page): (u64, Vec<String>) = scan.arg("TYPE").arg("stream").query_async(connection).await?;
        streams.extend(page);
        if next == 0 {
            break;
        }
        cursor = next;
    }
    let mut logs = Vec::new();
    for stream in streams {
        let groups: Vec<Value> = of("XINFO", &["GROUPS", &stream]).query_async(connection).await?;
        if !groups.is_empty() {
            logs.push(stream);
        }
    }
    Ok(logs)
}

/// Returns the number of entries in which the text is.
async fn find(connection: &mut MultiplexedConnection, stream: &str) -> Result<usize> {
    let (mut found, mut from) = (0, "-".to_owned());
    loop {
        let mut page = cmd("XRANGE");
        let page: Value =
            page.arg(stream).arg(&from).arg("+").arg("COUNT").arg(PAGE).query_async(connection).await?;
        let Value::Array(entries) = page else { anyhow::bail!("XRANGE answers {page:?}") };
        for entry in &entries {
            found += usize::from(contains(entry, NEEDLE.as_bytes()));
        }
        let last = match entries.last() {
            Some(Value::Array(entry)) if entries.len() == PAGE => entry.first(),
            _ => return Ok(found),
        };
        let Some(Value::BulkString(id)) = last else { anyhow::bail!("an entry without an id") };
        from = format!("({}", String::from_utf8_lossy(id));
    }
}

/// Whether a value, or one in it, contains the text.
fn contains(value: &Value, text: &[u8]) -> bool {
    match value {
        Value::Array(values) => values.iter().any(|value| contains(value, text)),
        Value::BulkString(bytes) => bytes.windows(text.len()).any(|window| window == text),
        _ => false,
    }
}
