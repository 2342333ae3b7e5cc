//! Script calls: by hash, in pipelines. A script that the server has forgotten is loaded again.

use millstream_core::error::{ErrorKind, Result};
use millstream_core::keys::Key;
use millstream_lua as lua;
use redis::{Cmd, Pipeline, ServerErrorKind, ToRedisArgs, Value};

use crate::conn::connection::{EachAnswer, Line};
use crate::error::answered;
use crate::scripts::wrong_type;

/// A script with its hash.
pub(crate) struct Loaded {
    contract: &'static lua::Script,
    source: String,
    sha: String,
}

impl Loaded {
    fn new(contract: &'static lua::Script, strict: bool) -> Self {
        let checked = contract.checked();
        let source = match (strict, contract.read_only) {
            (true, true) => format!("#!lua flags=no-writes\n{checked}"),
            (true, false) => format!("#!lua\n{checked}"),
            (false, _) => checked,
        };
        let sha = redis::Script::new(&source).get_hash().to_owned();
        Self { contract, source, sha }
    }

    /// Returns a call with these keys; its arguments are added later.
    pub(crate) fn call<const N: usize>(&self, keys: [&Key; N]) -> Call<'_> {
        debug_assert_eq!(N, self.contract.keys.len(), "{}: {:?}", self.contract.name, self.contract.keys);
        self.made(&keys)
    }

    fn made(&self, keys: &[&Key]) -> Call<'_> {
        // A user who may only read may run it then.
        let mut cmd = redis::cmd(if self.contract.read_only { "EVALSHA_RO" } else { "EVALSHA" });
        cmd.arg(&self.sha).arg(keys.len());
        for key in keys {
            cmd.arg(key.as_str());
        }
        Call { script: self, keys: keys.iter().map(|key| (*key).clone()).collect(), cmd, args: 0 }
    }

    /// Returns a call with its first keys only, for a way of working in which it uses no others.
    pub(crate) fn call_of_first<const N: usize>(&self, keys: [&Key; N]) -> Call<'_> {
        debug_assert!(N < self.contract.keys.len(), "{}: {:?}", self.contract.name, self.contract.keys);
        self.made(&keys)
    }

    /// Returns a call with these keys, for a script that takes a row of further keys any number of times.
    pub(crate) fn call_with_rows<const N: usize, const M: usize>(
        &self,
        keys: [&Key; N],
        rows: &[[Key; M]],
    ) -> Call<'_> {
        debug_assert_eq!(N + M, self.contract.keys.len(), "{}: {:?}", self.contract.name, self.contract.keys);
        let mut all = keys.to_vec();
        all.extend(rows.as_flattened());
        self.made(&all)
    }

    /// Returns the source without comments and indentation, for calls that carry it.
    pub(crate) fn code(&self) -> String {
        let lines = self.source.lines().map(str::trim_start);
        let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
        code.map(|line| format!("{line}\n")).collect()
    }

    /// Returns a command that carries the whole source, for a script that runs rarely and on a connection of its own.
    pub(crate) fn eval<const N: usize>(&self, keys: [&Key; N], args: &[&str]) -> Cmd {
        debug_assert_eq!((N, args.len()), (self.contract.keys.len(), self.contract.args.len()));
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(&self.source).arg(N).arg(&keys.map(Key::as_str)).arg(args);
        cmd
    }
}

/// One call of a script, under construction.
pub(crate) struct Call<'a> {
    script: &'a Loaded,
    keys: Vec<Key>,
    cmd: Cmd,
    args: usize,
}

impl Call<'_> {
    pub(crate) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.push(arg);
        self
    }

    pub(crate) fn args<const N: usize>(mut self, args: [&str; N]) -> Self {
        args.into_iter().for_each(|arg| self.push(arg));
        self
    }

    pub(crate) fn push(&mut self, arg: impl ToRedisArgs) {
        self.cmd.arg(arg);
        self.args += 1;
    }

    pub(crate) fn extend<const N: usize>(&mut self, args: [impl ToRedisArgs; N]) {
        args.into_iter().for_each(|arg| self.push(arg));
    }

    fn check(&self) {
        let contract = self.script.contract;
        let open = contract.args.last().is_some_and(|arg| arg.ends_with("..."));
        // A list at the end may be empty.
        let fits = if open { self.args + 1 >= contract.args.len() } else { self.args == contract.args.len() };
        debug_assert!(fits, "{}: {} arguments for {:?}", contract.name, self.args, contract.args);
    }

    fn name(&self) -> String {
        // Without the keys of further rows: there may be thousands. If all keys are rows, the error may concern any of them.
        let contract = self.script.contract;
        if self.keys.len() > contract.keys.len() && contract.keys.iter().all(|key| key.ends_with("...")) {
            return format!("script {}", contract.name);
        }
        let keys: Vec<_> = self.keys.iter().take(contract.keys.len()).map(Key::as_str).collect();
        format!("script {} on {}", self.script.contract.name, keys.join(", "))
    }
}

/// Makes all calls in one pipeline and returns one result per call: the server's error, or that of the connection.
///
/// Calls that fail with NOSCRIPT are sent once more behind a SCRIPT LOAD, and those that still do with their source.
pub(crate) fn run<'a>(line: &'a dyn Line, calls: Vec<Call<'a>>) -> EachAnswer<'a> {
    Box::pin(made(line, calls))
}

async fn made(line: &dyn Line, mut calls: Vec<Call<'_>>) -> Vec<Result<Value>> {
    let mut pipe = Pipeline::with_capacity(calls.len());
    for call in &mut calls {
        call.check();
        pipe.add_command(std::mem::take(&mut call.cmd));
    }
    let mut answers = line.send_each(&pipe).await;

    let lost: Vec<usize> = (0..answers.len()).filter(|at| is_noscript(&answers[*at])).collect();
    if !lost.is_empty() {
        // Send only these calls again: all others have had their effect. SCRIPT LOAD goes in front of them in the same
        // pipeline, once per script.
        let mut again = Pipeline::with_capacity(2 * lost.len());
        let mut loads = 0;
        for (n, i) in lost.iter().enumerate() {
            let script = calls[*i].script;
            if !lost[..n].iter().any(|earlier| calls[*earlier].script.sha == script.sha) {
                again.cmd("SCRIPT").arg("LOAD").arg(&script.source);
                loads += 1;
            }
        }
        let cmds: Vec<&Cmd> = pipe.cmd_iter().collect();
        for i in &lost {
            again.add_command(cmds[*i].clone());
        }
        let mut second = line.send_each(&again).await.into_iter();
        let refused = second.by_ref().take(loads).find_map(|answer| match answer {
            Ok(Value::ServerError(error)) => Some(answered(error).during("load a script")),
            _ => None,
        });
        for (i, answer) in lost.into_iter().zip(second) {
            answers[i] = match (&refused, is_noscript(&answer)) {
                (Some(error), true) => Err(error.clone()),
                _ => answer,
            };
        }
        // While a slot moves, a call may be sent on to a node that the SCRIPT LOAD did not reach: with its source.
        let lost: Vec<usize> = (0..answers.len()).filter(|at| is_noscript(&answers[*at])).collect();
        let mut whole = Pipeline::with_capacity(lost.len());
        for i in &lost {
            let read_only = calls[*i].script.contract.read_only;
            whole.cmd(if read_only { "EVAL_RO" } else { "EVAL" }).arg(&calls[*i].script.source);
            for arg in cmds[*i].args_iter().skip(2) {
                if let redis::Arg::Simple(arg) = arg {
                    whole.arg(arg);
                }
            }
        }
        if !lost.is_empty() {
            for (i, answer) in lost.into_iter().zip(line.send_each(&whole).await) {
                answers[i] = answer;
            }
        }
    }
    let mut results = Vec::with_capacity(calls.len());
    for (answer, call) in answers.into_iter().zip(&calls) {
        let error = match answer {
            Ok(Value::ServerError(error)) => answered(error),
            other => {
                results.push(other);
                continue;
            }
        };
        // The server does not name the key of the wrong type: find it among the keys of the call.
        let named = match error.kind() {
            ErrorKind::WrongType => wrong_type::in_script(line, &call.script.source, &call.keys).await,
            _ => None,
        };
        results.push(Err(match named {
            Some(named) => named.during(format_args!("script {}", call.script.contract.name)),
            None => error.during(call.name()),
        }));
    }
    results
}

/// Makes one call.
pub(crate) async fn run_one(line: &dyn Line, call: Call<'_>) -> Result<Value> {
    run(line, vec![call]).await.pop().unwrap_or_else(|| Err(crate::error::unexpected("no reply")))
}

/// Returns the items that a script has left, for scripts that stop after a bounded amount of work: those behind the
/// first `done`. An answer without progress, or beyond the end, is an error.
pub(crate) fn behind<T>(asked: &[T], done: usize) -> Result<&[T]> {
    let rest = asked.get(done..).filter(|_| done > 0);
    rest.ok_or_else(|| crate::error::unexpected(format_args!("{done} of {} are done", asked.len())))
}

fn is_noscript(answer: &Result<Value>) -> bool {
    matches!(answer, Ok(Value::ServerError(error)) if error.kind() == Some(ServerErrorKind::NoScript))
}

/// All scripts of this backend.
#[cfg_attr(
    not(all(feature = "admin", feature = "lock")),
    allow(dead_code, reason = "some belong to roles that need a feature")
)]
pub(crate) struct Scripts {
    pub(crate) acquire: Loaded,
    pub(crate) renew: Loaded,
    pub(crate) release: Loaded,
    pub(crate) acquire_lock: Loaded,
    pub(crate) renew_lock: Loaded,
    pub(crate) release_lock: Loaded,
    pub(crate) exchange_permits: Loaded,
    pub(crate) renew_permits: Loaded,
    pub(crate) end_permits: Loaded,
    pub(crate) reserve_tokens: Loaded,
    pub(crate) set_limit_rule: Loaded,
    pub(crate) create_batch: Loaded,
    pub(crate) reserve_members: Loaded,
    pub(crate) seal_batch: Loaded,
    pub(crate) end_members: Loaded,
    pub(crate) read_steps: Loaded,
    pub(crate) store_steps: Loaded,
    pub(crate) store_task_steps: Loaded,
    pub(crate) signal_message: Loaded,
    pub(crate) signal_task: Loaded,
    pub(crate) cancel_message: Loaded,
    pub(crate) cancel_task: Loaded,
    pub(crate) cancel_batch: Loaded,
    pub(crate) answer_cancel: Loaded,
    pub(crate) forget_cancel: Loaded,
    pub(crate) share_cancels: Loaded,
    pub(crate) end_cancelled_task: Loaded,
    pub(crate) withdraw_end: Loaded,
    pub(crate) open_reader: Loaded,
    pub(crate) ack: Loaded,
    pub(crate) ack_with_result: Loaded,
    pub(crate) report_progress: Loaded,
    pub(crate) hold: Loaded,
    pub(crate) retry: Loaded,
    pub(crate) dead_letter: Loaded,
    pub(crate) seek: Loaded,
    pub(crate) promote: Loaded,
    pub(crate) settle_retries: Loaded,
    pub(crate) claim_dead: Loaded,
    pub(crate) settle_dead: Loaded,
    pub(crate) put_dead: Loaded,
    pub(crate) trim_dead: Loaded,
    pub(crate) trim: Loaded,
    pub(crate) schedule: Loaded,
    pub(crate) cancel: Loaded,
    pub(crate) reschedule: Loaded,
    pub(crate) find: Loaded,
    pub(crate) scheduled: Loaded,
    pub(crate) count_due: Loaded,
    pub(crate) promote_delayed: Loaded,
    pub(crate) recur_put: Loaded,
    pub(crate) recur_remove: Loaded,
    pub(crate) recur_pause: Loaded,
    pub(crate) recur_due: Loaded,
    pub(crate) recur_fire: Loaded,
    pub(crate) create_queue: Loaded,
    pub(crate) alter_queue: Loaded,
    pub(crate) pause_tasks: Loaded,
    pub(crate) find_task: Loaded,
    pub(crate) claim_tasks: Loaded,
    pub(crate) settle_tasks: Loaded,
    pub(crate) report_task_progress: Loaded,
    pub(crate) extend_tasks: Loaded,
    pub(crate) replay_tasks: Loaded,
    pub(crate) trim_tasks: Loaded,
    pub(crate) extend: Loaded,
    pub(crate) claim: Loaded,
    pub(crate) heartbeat: Loaded,
    pub(crate) leave: Loaded,
    pub(crate) roster: Loaded,
    pub(crate) publish: Loaded,
    pub(crate) expand: Loaded,
    pub(crate) count: Loaded,
    pub(crate) look: Loaded,
    pub(crate) create_topic: Loaded,
    pub(crate) alter_topic: Loaded,
    pub(crate) forget_topic: Loaded,
    pub(crate) store_dictionary: Loaded,
    pub(crate) create_group: Loaded,
    pub(crate) disown: Loaded,
    pub(crate) forget_group: Loaded,
    pub(crate) pause_group: Loaded,
    pub(crate) audit: Loaded,
    pub(crate) repair: Loaded,
    pub(crate) audit_place: Loaded,
    pub(crate) repair_place: Loaded,
    pub(crate) marker_begin: Loaded,
    pub(crate) marker_extend: Loaded,
    pub(crate) marker_complete: Loaded,
    pub(crate) marker_abandon: Loaded,
    pub(crate) append_dedup: Loaded,
    pub(crate) find_dedup: Loaded,
    pub(crate) append_unique: Loaded,
    pub(crate) append_numbered: Loaded,
    pub(crate) append_packed: Loaded,
    pub(crate) settle_packed: Loaded,
    pub(crate) sweep_packed: Loaded,
    pub(crate) create_packed: Loaded,
    pub(crate) length_packed: Loaded,
    pub(crate) missing_packed: Loaded,
}

impl Scripts {
    pub(crate) fn new(strict: bool) -> Self {
        Self {
            acquire: Loaded::new(&lua::ACQUIRE, strict),
            renew: Loaded::new(&lua::RENEW, strict),
            release: Loaded::new(&lua::RELEASE, strict),
            acquire_lock: Loaded::new(&lua::ACQUIRE_LOCK, strict),
            renew_lock: Loaded::new(&lua::RENEW_LOCK, strict),
            release_lock: Loaded::new(&lua::RELEASE_LOCK, strict),
            exchange_permits: Loaded::new(&lua::EXCHANGE_PERMITS, strict),
            renew_permits: Loaded::new(&lua::RENEW_PERMITS, strict),
            end_permits: Loaded::new(&lua::END_PERMITS, strict),
            reserve_tokens: Loaded::new(&lua::RESERVE_TOKENS, strict),
            set_limit_rule: Loaded::new(&lua::SET_LIMIT_RULE, strict),
            create_batch: Loaded::new(&lua::CREATE_BATCH, strict),
            reserve_members: Loaded::new(&lua::RESERVE_MEMBERS, strict),
            seal_batch: Loaded::new(&lua::SEAL_BATCH, strict),
            end_members: Loaded::new(&lua::END_MEMBERS, strict),
            read_steps: Loaded::new(&lua::READ_STEPS, strict),
            store_steps: Loaded::new(&lua::STORE_STEPS, strict),
            store_task_steps: Loaded::new(&lua::STORE_TASK_STEPS, strict),
            signal_message: Loaded::new(&lua::SIGNAL_MESSAGE, strict),
            signal_task: Loaded::new(&lua::SIGNAL_TASK, strict),
            cancel_message: Loaded::new(&lua::CANCEL_MESSAGE, strict),
            cancel_task: Loaded::new(&lua::CANCEL_TASK, strict),
            cancel_batch: Loaded::new(&lua::CANCEL_BATCH, strict),
            answer_cancel: Loaded::new(&lua::ANSWER_CANCEL, strict),
            forget_cancel: Loaded::new(&lua::FORGET_CANCEL, strict),
            share_cancels: Loaded::new(&lua::SHARE_CANCELS, strict),
            end_cancelled_task: Loaded::new(&lua::END_CANCELLED_TASK, strict),
            withdraw_end: Loaded::new(&lua::WITHDRAW_END, strict),
            open_reader: Loaded::new(&lua::OPEN_READER, strict),
            ack: Loaded::new(&lua::ACK, strict),
            ack_with_result: Loaded::new(&lua::ACK_WITH_RESULT, strict),
            report_progress: Loaded::new(&lua::REPORT_PROGRESS, strict),
            hold: Loaded::new(&lua::HOLD, strict),
            retry: Loaded::new(&lua::RETRY, strict),
            dead_letter: Loaded::new(&lua::DEAD_LETTER, strict),
            seek: Loaded::new(&lua::SEEK, strict),
            promote: Loaded::new(&lua::PROMOTE, strict),
            settle_retries: Loaded::new(&lua::SETTLE_RETRIES, strict),
            claim_dead: Loaded::new(&lua::CLAIM_DEAD, strict),
            settle_dead: Loaded::new(&lua::SETTLE_DEAD, strict),
            put_dead: Loaded::new(&lua::PUT_DEAD, strict),
            trim_dead: Loaded::new(&lua::TRIM_DEAD, strict),
            trim: Loaded::new(&lua::TRIM, strict),
            schedule: Loaded::new(&lua::SCHEDULE, strict),
            cancel: Loaded::new(&lua::CANCEL, strict),
            reschedule: Loaded::new(&lua::RESCHEDULE, strict),
            find: Loaded::new(&lua::FIND, strict),
            scheduled: Loaded::new(&lua::SCHEDULED, strict),
            count_due: Loaded::new(&lua::COUNT_DUE, strict),
            promote_delayed: Loaded::new(&lua::PROMOTE_DELAYED, strict),
            recur_put: Loaded::new(&lua::RECUR_PUT, strict),
            recur_remove: Loaded::new(&lua::RECUR_REMOVE, strict),
            recur_pause: Loaded::new(&lua::RECUR_PAUSE, strict),
            recur_due: Loaded::new(&lua::RECUR_DUE, strict),
            recur_fire: Loaded::new(&lua::RECUR_FIRE, strict),
            create_queue: Loaded::new(&lua::CREATE_QUEUE, strict),
            alter_queue: Loaded::new(&lua::ALTER_QUEUE, strict),
            pause_tasks: Loaded::new(&lua::PAUSE_TASKS, strict),
            find_task: Loaded::new(&lua::FIND_TASK, strict),
            claim_tasks: Loaded::new(&lua::CLAIM_TASKS, strict),
            settle_tasks: Loaded::new(&lua::SETTLE_TASKS, strict),
            report_task_progress: Loaded::new(&lua::REPORT_TASK_PROGRESS, strict),
            extend_tasks: Loaded::new(&lua::EXTEND_TASKS, strict),
            replay_tasks: Loaded::new(&lua::REPLAY_TASKS, strict),
            trim_tasks: Loaded::new(&lua::TRIM_TASKS, strict),
            extend: Loaded::new(&lua::EXTEND, strict),
            claim: Loaded::new(&lua::CLAIM, strict),
            heartbeat: Loaded::new(&lua::HEARTBEAT, strict),
            leave: Loaded::new(&lua::LEAVE, strict),
            roster: Loaded::new(&lua::ROSTER, strict),
            publish: Loaded::new(&lua::PUBLISH, strict),
            expand: Loaded::new(&lua::EXPAND, strict),
            count: Loaded::new(&lua::COUNT, strict),
            look: Loaded::new(&lua::LOOK, strict),
            create_topic: Loaded::new(&lua::CREATE_TOPIC, strict),
            alter_topic: Loaded::new(&lua::ALTER_TOPIC, strict),
            forget_topic: Loaded::new(&lua::FORGET_TOPIC, strict),
            store_dictionary: Loaded::new(&lua::STORE_DICTIONARY, strict),
            create_group: Loaded::new(&lua::CREATE_GROUP, strict),
            disown: Loaded::new(&lua::DISOWN, strict),
            forget_group: Loaded::new(&lua::FORGET_GROUP, strict),
            pause_group: Loaded::new(&lua::PAUSE_GROUP, strict),
            audit: Loaded::new(&lua::AUDIT, strict),
            repair: Loaded::new(&lua::REPAIR, strict),
            audit_place: Loaded::new(&lua::AUDIT_PLACE, strict),
            repair_place: Loaded::new(&lua::REPAIR_PLACE, strict),
            marker_begin: Loaded::new(&lua::MARKER_BEGIN, strict),
            marker_extend: Loaded::new(&lua::MARKER_EXTEND, strict),
            marker_complete: Loaded::new(&lua::MARKER_COMPLETE, strict),
            marker_abandon: Loaded::new(&lua::MARKER_ABANDON, strict),
            append_dedup: Loaded::new(&lua::APPEND_DEDUP, strict),
            find_dedup: Loaded::new(&lua::FIND_DEDUP, strict),
            append_unique: Loaded::new(&lua::APPEND_UNIQUE, strict),
            append_numbered: Loaded::new(&lua::APPEND_NUMBERED, strict),
            append_packed: Loaded::new(&lua::APPEND_PACKED, strict),
            settle_packed: Loaded::new(&lua::SETTLE_PACKED, strict),
            sweep_packed: Loaded::new(&lua::SWEEP_PACKED, strict),
            create_packed: Loaded::new(&lua::CREATE_PACKED, strict),
            length_packed: Loaded::new(&lua::LENGTH_PACKED, strict),
            missing_packed: Loaded::new(&lua::MISSING_PACKED, strict),
        }
    }
}
