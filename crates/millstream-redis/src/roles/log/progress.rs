//! Progress of messages: the scripts that store lines, and the wait for further ones.

use std::time::Duration;

use millstream_core::error::{Error, Result};
use millstream_core::keys::Key;
use millstream_core::log::ProgressRight;
use millstream_core::progress::{MAX_LINES, NewLine, ProgressLine, ProgressReport};
use millstream_core::results::ResultId;
use millstream_core::schedule::Place;
use redis::{Pipeline, Value};
use tokio::time::Instant;

use super::settling::Right;
use crate::backend::RedisBackend;
use crate::conn::connection::Line;
use crate::conn::replies::reply;
use crate::conn::request::Digits;
use crate::error::fenced;
use crate::scripts::script;
use crate::scripts::times::ceil_ms;

impl RedisBackend {
    pub(super) async fn store_progress(&self, right: &ProgressRight, report: &ProgressReport) -> Result<()> {
        let (keys, scripts) = (&self.inner.keys, &self.inner.scripts);
        let ProgressReport { request, attempt, lines } = report;
        if lines.is_empty() {
            return Ok(());
        }
        let progress = |place: Place| keys.progress(&ResultId::new(place, request.number));
        let call = match right {
            ProgressRight::Worker { shard, task, token } => {
                let (claims, states) = (keys.claims(shard), keys.task_states(shard));
                let progress = progress(shard.clone().into());
                let call = scripts.report_task_progress.call([&claims, &states, &progress]);
                call.arg(task.as_str()).arg(token)
            }
            ProgressRight::Owner(lease) => {
                let (tp, group) = lease.partition()?;
                let [mode, who] = Right::Owner(lease).words();
                // The entry is not looked at: nobody but the owner can have it.
                let (fence, log) = (keys.fence(tp, group), keys.log(tp));
                let call = scripts.report_progress.call([&fence, &log, &progress(tp.clone().into())]);
                call.args([mode, who, group.as_str(), "0-0"])
            }
            ProgressRight::Consumer { member, partition, receipt } => {
                let (tp, group) = (member.partition(*partition), &member.group);
                let [mode, who] = Right::Consumer(&member.consumer).words();
                let (fence, stream) = (keys.fence(&tp, group), self.inner.stream(&tp, group, receipt.source));
                let call = scripts.report_progress.call([&fence, &stream, &progress(tp.clone().into())]);
                call.args([mode, who, group.as_str()]).arg(Digits::id(receipt.entry()).as_bytes())
            }
        };
        let mut call = call.arg(ceil_ms(request.keep)).arg(*attempt);
        for NewLine { fraction, text, .. } in &lines[lines.len().saturating_sub(MAX_LINES)..] {
            call.push(fraction.map_or_else(|| "-".to_owned(), |fraction| fraction.to_string()));
            call.push(text.as_str());
        }
        let stored = script::run_one(&self.inner.messages, call).await;
        stored.map(drop).map_err(|error| match right {
            ProgressRight::Owner(lease) => fenced(error, lease),
            _ => error,
        })
    }

    pub(super) async fn progress_within(
        &self,
        id: &ResultId,
        above: u64,
        wait: Duration,
    ) -> Result<Vec<ProgressLine>> {
        let key = self.inner.keys.progress(id);
        let on = |error: Error| self.about(error, "progress", id);
        let mut look = Pipeline::with_capacity(1);
        look.cmd("HGET").arg(key.as_str()).arg("changes");
        let has_changed = |found: &Value| reply::number(found) != above;
        let deadline = Instant::now().checked_add(wait);
        loop {
            let lines = self.lines(&key, above).await.map_err(on)?;
            let left = deadline.map_or(wait, |it| it.saturating_duration_since(Instant::now()));
            if !lines.is_empty() || left.is_zero() {
                return Ok(lines);
            }
            // It begins with a look, which finds what came since.
            self.change(&self.inner.results, &key, (&look, &has_changed), left).await.map_err(on)?;
        }
    }

    /// Reads the lines above a number, oldest first.
    async fn lines(&self, key: &Key, above: u64) -> Result<Vec<ProgressLine>> {
        let mut ask = Pipeline::with_capacity(1);
        ask.cmd("HMGET").arg(key.as_str()).arg(&["changes", "lines", "done"]);
        let answer = self.inner.bulk.send(&ask).await?.pop().unwrap_or_default();
        let [changes, lines, done] = reply::tuple(reply::ok(answer)?)?;
        let (changes, lines) = (reply::number(&changes), reply::number(&lines));
        if changes == above {
            return Ok(Vec::new());
        }
        let above = if changes < above { 0 } else { above };
        let new = (changes - above).min(MAX_LINES as u64).min(lines);
        let mut texts = Vec::new();
        if new > 0 {
            let mut ask = Pipeline::with_capacity(1);
            ask.cmd("HMGET").arg(key.as_str());
            for at in lines - new..lines {
                ask.arg(format!("line:{}", at % MAX_LINES as u64));
            }
            let answer = self.inner.bulk.send(&ask).await?.pop().unwrap_or_default();
            texts = reply::array(reply::ok(answer)?)?;
        }
        let mut found = Vec::new();
        for line in texts.into_iter().chain([done]) {
            let line = reply::maybe_bytes(line)?.and_then(|line| ProgressLine::from_wire(&line));
            // What came after the first look is for the next one: what was before it may be gone.
            found.extend(line.filter(|line| line.number > above && line.number <= changes));
        }
        found.sort_by_key(|line| line.number);
        Ok(found)
    }
}
