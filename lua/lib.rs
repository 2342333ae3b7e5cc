#![doc = include_str!("README.md")]

use std::borrow::Cow;
use std::collections::BTreeSet;

/// Functions that scripts share: a file in `parts`, whose comment says what they return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Name of its file without `.lua`.
    pub name: &'static str,
    /// Text of its file.
    pub source: &'static str,
}

/// Lua script with its contract. The header of its file states the same contract.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Script {
    /// Name of its file without `.lua`.
    pub name: &'static str,
    /// Text of its file.
    pub source: &'static str,
    /// Functions that it shares with other scripts, in the order in which they stand in front of it.
    pub parts: &'static [Part],
    /// Names of its `KEYS`, in order. All of them hash to one slot. Names at the end that end in `...` stand for a row of keys
    /// that comes any number of times.
    pub keys: &'static [&'static str],
    /// Names of its `ARGV`, in order. A last name that ends in `...` stands for one or more values.
    pub args: &'static [&'static str],
    /// Whether it changes nothing, so that a user with the right to read may run it (`EVALSHA_RO`).
    pub read_only: bool,
}

impl Script {
    /// Returns the commands that it calls, in lower case, each once; subcommands as rules of access name them:
    /// `xinfo|groups`.
    #[must_use]
    pub fn commands(&self) -> BTreeSet<String> {
        let mut commands = self.called_by("redis.call(");
        commands.extend(self.called_by("redis.pcall("));
        commands
    }

    /// Returns the text that the server runs: its parts, then its own.
    #[must_use]
    pub fn text(&self) -> Cow<'static, str> {
        if self.parts.is_empty() {
            return Cow::Borrowed(self.source);
        }
        let mut text = String::new();
        for part in self.parts {
            text += part.source;
        }
        Cow::Owned(text + self.source)
    }

    fn called_by(&self, call: &str) -> BTreeSet<String> {
        let text = self.text();
        let code = text.lines().filter(|line| !line.trim_start().starts_with("--"));
        let code: Vec<&str> = code.collect();
        code.join(" ").split(call).skip(1).flat_map(named).collect()
    }

    /// Returns the text to load: [all of it](Self::text), behind a check that the user has the right to run every command in it. So a
    /// user who may run only some of them changes nothing, instead of stopping between two writes. The script then
    /// returns `NOPERM …` with the first command that is not allowed. Commands whose errors it handles itself
    /// (`redis.pcall`) are left out, and a script that only reads needs no check. Servers without
    /// `redis.acl_check_cmd` (before 7.0) run the script unchecked.
    ///
    /// The keys need no check: the server compares those of a script with the user's patterns before it starts.
    #[must_use]
    pub fn checked(&self) -> String {
        let commands = self.called_by("redis.call(");
        if self.read_only || commands.len() < 2 {
            return self.text().into_owned();
        }
        let denied = commands.iter().map(|command| {
            let words = command.replace('|', "','");
            let given = 1 + command.matches('|').count();
            let others = least_words(command).unwrap_or(given).saturating_sub(given);
            format!("not may('{words}'{}) and '{command}'", ",KEYS[1]".repeat(others))
        });
        let denied: Vec<String> = denied.collect();
        let name = self.name;
        // One line, since error messages of the server give the number of theirs. A server that refuses to be asked runs the
        // script unchecked, as older ones do: the check makes an error tidier, and must not be one itself.
        format!(
            "do local may = redis.acl_check_cmd local asked, denied = pcall(function() return may and ({}) end) \
             if asked and denied then return redis.error_reply(\
             'NOPERM this user has no permissions to run ' .. denied .. ', which script {name} needs') end end\n{}",
            denied.join(" or "),
            self.text()
        )
    }
}

/// Commands of scripts by the least number of words that a call of them has, the name included: their arity without its sign,
/// as `COMMAND INFO` gives it. `security/acl.rs` of the integration tests compares the table with the server's.
const LEAST_WORDS: [(usize, &str); 7] = [
    (1, "info time"),
    (
        2,
        "bitfield del exists get hgetall hkeys hlen hrandfield llen mget pttl scard srandmember strlen type unlink xlen zcard",
    ),
    (
        3,
        "append hdel hexists hget hmget hscan lpush pexpire rename sadd set sismember smismember srem xdel xinfo|groups \
         xinfo|stream xpending zmscore zrank zrem zscan zscore",
    ),
    (
        4,
        "getrange hincrby hset hsetnx xack xgroup|destroy xinfo|consumers xrange xrevrange xtrim zadd zcount zrange zrangebyscore",
    ),
    (5, "xadd xgroup|create xgroup|delconsumer xgroup|setid"),
    (6, "xclaim"),
    (7, "xreadgroup"),
];

/// Returns the least number of words of a call of this command, as [`Script::commands`] names it. `None` for commands that no
/// script calls.
///
/// Servers from Redis 8.0 on ask no rule of access about a call that has too few words, or too many.
#[must_use]
pub fn least_words(command: &str) -> Option<usize> {
    let has = |names: &str| names.split_whitespace().any(|name| name == command);
    LEAST_WORDS.iter().find(|(_, names)| has(names)).map(|(words, _)| *words)
}

/// Returns the commands that a call may name, from its text behind the bracket: one, or those that it chooses from.
fn named(call: &str) -> Vec<String> {
    let Some(call) = call.strip_prefix('\'') else {
        let choice = call.split(',').next().unwrap_or_default();
        let words = choice.split('\'').filter(|word| !word.is_empty());
        let commands = words.filter(|word| word.bytes().all(|byte| byte.is_ascii_uppercase()));
        return commands.map(str::to_ascii_lowercase).collect();
    };
    let mut words = call.splitn(4, '\'');
    let command = words.next().unwrap_or_default().to_ascii_lowercase();
    vec![match (words.next(), words.next()) {
        (Some(", "), Some(sub)) if matches!(&*command, "xinfo" | "xgroup") => {
            format!("{command}|{}", sub.to_ascii_lowercase())
        }
        _ => command,
    }]
}

macro_rules! part {
    ($konst:ident, $name:literal) => {
        const $konst: Part = Part { name: $name, source: include_str!(concat!("parts/", $name, ".lua")) };
    };
}

part!(CLOCK, "clock");
part!(FENCE, "fence");
part!(IDENTITY, "identity");
part!(CONTINUITY, "continuity");
part!(DUE, "due");
part!(BODY, "body");
part!(RETRY_ITEM, "retry_item");
part!(REDELIVERY, "redelivery");
part!(DEAD_CLAIM, "dead_claim");
part!(IDS, "ids");
part!(SIZE, "size");
part!(PACKS, "packs");
part!(PERMITS, "permits");
part!(RESULT, "result");
part!(CANCELS, "cancels");
part!(BATCHES, "batches");
part!(STEPS, "steps");

macro_rules! script {
    ($(#[$doc:meta])* $konst:ident, $folder:literal, $name:literal, $keys:expr, $args:expr) => {
        script!(@ $(#[$doc])* $konst, $folder, $name, [], $keys, $args, false);
    };
    ($(#[$doc:meta])* $konst:ident, $folder:literal, $name:literal, $parts:tt, $keys:expr, $args:expr) => {
        script!(@ $(#[$doc])* $konst, $folder, $name, $parts, $keys, $args, false);
    };
    (read_only $(#[$doc:meta])* $konst:ident, $folder:literal, $name:literal, $keys:expr, $args:expr) => {
        script!(@ $(#[$doc])* $konst, $folder, $name, [], $keys, $args, true);
    };
    (read_only $(#[$doc:meta])* $konst:ident, $folder:literal, $name:literal, $parts:tt, $keys:expr, $args:expr) => {
        script!(@ $(#[$doc])* $konst, $folder, $name, $parts, $keys, $args, true);
    };
    (@ $(#[$doc:meta])* $konst:ident, $folder:literal, $name:literal, $parts:tt, $keys:expr, $args:expr,
        $read_only:literal) => {
        $(#[$doc])*
        pub const $konst: Script = Script {
            name: $name,
            source: include_str!(concat!($folder, "/", $name, ".lua")),
            parts: &$parts,
            keys: &$keys,
            args: &$args,
            read_only: $read_only,
        };
    };
}

script!(
    /// Grants a lease unless another owner holds it; a request with the same nonce returns the same grant.
    ACQUIRE, "leases", "acquire", [CLOCK, IDENTITY, CONTINUITY, FENCE], ["lease", "fence", "gate"],
    ["owner", "nonce", "ttl_ms", "continuity", "reader"]
);
script!(
    /// Extends leases by another ttl; one that merely expired is revived as long as no other owner acquired it.
    RENEW, "leases", "renew", ["lease...", "fence..."], ["token...", "ttl_ms..."]
);
script!(
    /// Releases a lease; from then on its token is invalid.
    RELEASE, "leases", "release", [FENCE], ["lease", "fence", "gate"], ["token", "ends", "reader"]
);
script!(
    /// Grants a lock to the first client in its queue once it is free, and gives the others a place there.
    ACQUIRE_LOCK, "locks", "acquire_lock", [CLOCK, IDENTITY, CONTINUITY],
    ["lock", "queue", "places", "changes", "epoch", "index"],
    ["owner", "nonce", "ttl_ms", "continuity", "above", "mode", "arrived", "min_up_s", "name"]
);
script!(
    /// Extends a lock by another ttl; one that merely expired is revived unless another client was granted it.
    RENEW_LOCK, "locks", "renew_lock", [CLOCK, FENCE], ["lock", "index"], ["token", "ttl_ms", "name"]
);
script!(
    /// Releases a lock or leaves its queue, and calls the next client in the queue if the lock is free.
    RELEASE_LOCK, "locks", "release_lock", [CLOCK], ["lock", "queue", "places", "changes", "index"], ["nonce", "name", "ends"]
);
script!(
    /// Gives back and takes units of limits for one holder, and calls who waits for what is free.
    EXCHANGE_PERMITS, "permits", "exchange_permits", [CLOCK, PERMITS],
    ["holders", "units", "rules", "of", "calls"], ["holder", "number", "version", "steps..."]
);
script!(
    /// Extends the right of a holder of permits, or lets it join, and ends holders that were not renewed in time.
    RENEW_PERMITS, "permits", "renew_permits", [CLOCK, IDENTITY, CONTINUITY], ["holders", "ended", "calls"],
    ["holder", "ttl_ms", "continuity", "joining"]
);
script!(
    /// Ends a holder of permits, frees a part of what it has, and calls who waits for that.
    END_PERMITS, "permits", "end_permits", [PERMITS], ["holders", "units", "ended", "of", "calls"], ["holder", "limit"]
);
script!(
    /// Reserves, charges and gives back tokens of rates, closes keys, and drops records that say nothing any more.
    RESERVE_TOKENS, "permits", "reserve_tokens", [CLOCK], ["rates", "rules", "calls", "breakers"],
    ["version", "horizon_us", "steps..."]
);
script!(
    /// Sets or removes a rule of limits, and tells all holders.
    SET_LIMIT_RULE, "permits", "set_limit_rule", [CLOCK], ["rules", "calls"], ["pattern", "bound"]
);
script!(
    /// Cancels a message for one group, or asks whoever has it.
    CANCEL_MESSAGE, "cancels", "cancel_message", [CLOCK, IDS, RESULT, CANCELS],
    ["cancels", "fence", "log", "retry_due", "retry_items", "notes", "steps", "result..."], ["group", "origin", "removes", "asked..."]
);
script!(
    /// Cancels a task that waits, or asks the worker that has it.
    CANCEL_TASK, "cancels", "cancel_task", [CLOCK, IDS, RESULT, CANCELS],
    ["cancels", "delay", "delay_items", "claims", "task_states", "notes", "steps", "result..."], ["task", "number", "removes", "asked..."]
);
script!(
    /// Cancels all members of a batch at a place, those that come later too.
    CANCEL_BATCH, "cancels", "cancel_batch", [CLOCK, IDS, CANCELS], ["cancels"], ["id"]
);
script!(
    /// Says in the mark of a cancelled message what becomes of it.
    ANSWER_CANCEL, "cancels", "answer_cancel", [CLOCK, FENCE, IDS, CANCELS], ["fence", "stream", "cancels"],
    ["mode", "who", "group", "entry", "origin", "word"]
);
script!(
    /// Removes the mark of a message that was settled before somebody saw it.
    FORGET_CANCEL, "cancels", "forget_cancel", [CANCELS], ["cancels"], ["origin"]
);
script!(
    /// Notes that a place has many readers, none of which owns it.
    SHARE_CANCELS, "cancels", "share_cancels", ["cancels"], []
);
script!(
    /// Removes a task that was cancelled, and says so in its mark.
    END_CANCELLED_TASK, "cancels", "end_cancelled_task", [CLOCK, FENCE, IDS, RESULT, CANCELS],
    ["claims", "task_states", "delay_items", "cancels", "notes", "steps", "result..."], ["task", "token", "word", "asked..."]
);
script!(
    /// Creates a batch, unless it exists.
    CREATE_BATCH, "batches", "create_batch", [CLOCK], ["batch", "batches"], ["id", "keep", "parent", "every", "events..."]
);
script!(
    /// Reserves numbers of a batch, after blocks were confirmed.
    RESERVE_MEMBERS, "batches", "reserve_members", [CLOCK, BODY, BATCHES],
    ["batch", "done", "dead", "left", "results", "batches", "log", "notes"], ["id", "count", "token", "target", "confirmed..."]
);
script!(
    /// Seals a batch after blocks were confirmed, and sends what it is the occasion for.
    SEAL_BATCH, "batches", "seal_batch", [CLOCK, BODY, BATCHES],
    ["batch", "done", "dead", "left", "results", "batches", "log", "notes"], ["id", "mode", "confirmed..."]
);
script!(
    /// Says of members of a batch how they ended, and sends what that is the occasion for.
    END_MEMBERS, "batches", "end_members", [CLOCK, BODY, BATCHES],
    ["batch", "done", "dead", "left", "results", "batches", "log", "notes"], ["id", "count", "all", "numbers..."]
);
script!(
    read_only
    /// Returns what handlers have done of a message or task.
    READ_STEPS, "steps", "read_steps", [CLOCK], ["steps"], ["id"]
);
script!(
    /// Adds to what the handler of a message has done.
    STORE_STEPS, "steps", "store_steps", [FENCE, STEPS], ["fence", "stream", "steps"],
    ["mode", "who", "group", "id", "origin", "records"]
);
script!(
    /// Adds to what the handler of a task has done.
    STORE_TASK_STEPS, "steps", "store_task_steps", [FENCE, STEPS], ["claims", "task_states", "steps"],
    ["task", "token", "records"]
);
script!(
    /// Stores a signal for a message, and makes it due if it waits for that.
    SIGNAL_MESSAGE, "steps", "signal_message", [CLOCK, IDS, STEPS], ["steps", "log", "retry_due", "retry_log", "wake"],
    ["group", "origin", "name", "value"]
);
script!(
    /// Stores a signal for a task, and makes it due if it waits for that.
    SIGNAL_TASK, "steps", "signal_task", [CLOCK, STEPS], ["steps", "delay", "claims", "task_states", "wake"], ["task", "name", "value"]
);
script!(
    /// Withdraws the end that is counted for an owner: it lost its lease, but is alive.
    WITHDRAW_END, "leases", "withdraw_end", ["fence"], ["epoch"]
);
script!(
    /// Begins a new reader of a lease: from then on reads of its earlier readers fail.
    OPEN_READER, "log", "open_reader", [FENCE], ["fence", "gate", "next"], ["token", "last", "reader", "group"]
);
script!(
    /// Removes handled entries from the pending list, and from the retry log if they were read there.
    ACK, "log", "ack", [FENCE], ["fence", "stream", "held", "settled"], ["mode", "who", "group", "source", "ids..."]
);
script!(
    /// Stores the results of handled entries, and removes these from the pending list.
    ACK_WITH_RESULT, "log", "ack_with_result", [FENCE, RESULT], ["fence", "stream", "held", "notes", "steps", "result..."],
    ["mode", "who", "group", "source", "entries..."]
);
script!(
    /// Stores what a handler says of its work on a message.
    REPORT_PROGRESS, "log", "report_progress", [CLOCK, FENCE, RESULT], ["fence", "stream", "progress"],
    ["mode", "who", "group", "id", "keep_ms", "attempt", "lines..."]
);
script!(
    /// Parks pending entries until they are due again, and removes them from the pending list.
    RETRY, "log", "retry", [CLOCK, FENCE, DUE, BODY, RETRY_ITEM, STEPS],
    ["fence", "stream", "retry_due", "retry_items", "held", "steps"],
    ["mode", "who", "group", "source", "messages..."]
);
script!(
    /// Stores pending entries as dead letters, and removes them from the pending list.
    DEAD_LETTER, "log", "dead_letter", [CLOCK, FENCE, BODY, RETRY_ITEM, RESULT, STEPS],
    ["fence", "stream", "dlq", "held", "notes", "steps", "result..."],
    ["mode", "who", "group", "source", "topic", "partition", "messages..."]
);
script!(
    /// Writes notes of pending entries for their next reader; the entries stay pending.
    HOLD, "log", "hold", [CLOCK, FENCE, DUE], ["fence", "stream", "held"], ["mode", "who", "group", "source", "notes..."]
);
script!(
    /// Appends an entry that holds many messages, under ids that are the messages' own.
    APPEND_PACKED, "log/packed", "append_packed", [CLOCK], ["log", "packs"], ["count", "fields..."]
);
script!(
    read_only
    /// Returns how many messages a log with packs holds.
    LENGTH_PACKED, "log/packed", "length_packed", ["log", "packs"], []
);
script!(
    read_only
    /// Counts messages of packs that were deleted between others, which the numbers in packs still have.
    MISSING_PACKED, "log/packed", "missing_packed", ["log", "packs"], ["positions..."]
);
script!(
    /// Creates a group on a log with packs, and notes as settled what a pack holds up to its position.
    CREATE_PACKED, "log/packed", "create_packed", ["log", "packs", "settled"], ["group", "position"]
);
script!(
    /// Drops what is noted of packs that are pending no more, and acknowledges those that are settled.
    SWEEP_PACKED, "log/packed", "sweep_packed", [FENCE, IDS],
    ["fence", "log", "packs", "held", "settled"], ["mode", "who", "group", "ids..."]
);
script!(
    /// Settles messages of packs; a pack leaves the pending list when all of its messages are settled.
    SETTLE_PACKED, "log/packed", "settle_packed", [CLOCK, FENCE, DUE, BODY, RETRY_ITEM, RESULT, STEPS],
    ["fence", "log", "settled", "held", "retry_due", "retry_items", "dlq", "notes", "steps", "result..."],
    ["mode", "who", "group", "topic", "partition", "settlements..."]
);
script!(
    /// Moves a group's position in the log, and releases the lease; pending entries of the log are forgotten.
    SEEK, "log", "seek", [FENCE, IDS], ["lease", "fence", "log", "held", "packs", "settled", "gate"],
    ["token", "group", "position", "reader"]
);
script!(
    /// Moves parked messages that are due to the retry log.
    PROMOTE, "schedule", "promote", [CLOCK, FENCE, BODY, RETRY_ITEM, REDELIVERY, SIZE],
    ["fence", "retry_due", "retry_items", "retry_log", "dlq", "unique", "unique_retry", "log", "packs"],
    ["token", "limit", "topic", "partition", "group"]
);
script!(
    /// Makes parked retries due now, or stores them as dead letters.
    SETTLE_RETRIES, "schedule", "settle_retries", [CLOCK, BODY, RETRY_ITEM, RESULT, STEPS],
    ["retry_due", "retry_items", "dlq", "wake", "notes", "steps"],
    ["action", "topic", "partition", "group", "origins..."]
);
script!(
    /// Claims dead letters for one client for a limited time.
    CLAIM_DEAD, "dead_letters", "claim_dead", [CLOCK, DEAD_CLAIM, IDS, SIZE], ["dlq", "dead_claims"], ["by", "hold_ms", "left", "ids..."]
);
script!(
    /// Replays, purges or leaves dead letters, unless another client has or had claimed them; each at most
    /// once.
    SETTLE_DEAD, "dead_letters", "settle_dead", [CLOCK, DEAD_CLAIM, BODY, REDELIVERY],
    ["dlq", "retry_log", "dead_claims", "unique", "unique_retry"],
    ["by", "letters..."]
);
script!(
    /// Imports dead letters that were exported before, each under a new id and at most once.
    PUT_DEAD, "dead_letters", "put_dead", ["dlq", "dead_imports"], ["again", "memory_ms", "letters..."]
);
script!(
    /// Drops the oldest dead letters of a group by age and number, but not those that are claimed.
    TRIM_DEAD, "dead_letters", "trim_dead", [CLOCK, DEAD_CLAIM, FENCE, SIZE],
    ["fence", "dlq", "dead_claims"], ["mode", "token", "age_ms", "length", "after", "passed"]
);
script!(
    /// Drops the oldest entries of the log by a rule; entries that were dropped unread or pending are counted
    /// per group.
    TRIM, "log", "trim", [CLOCK, FENCE, IDS, PACKS],
    ["fence", "log", "packs", "settled..."], ["token", "limit", "rule", "figure", "groups..."]
);

script!(
    /// Schedules messages until they are due.
    SCHEDULE, "schedule", "schedule", [CLOCK, DUE],
    ["delay", "delay_items", "states", "claims", "recur", "wake", "finished", "steps"],
    ["place", "terms", "messages..."]
);
script!(
    /// Removes messages that still wait.
    CANCEL, "schedule", "cancel", [BODY, RESULT], ["delay", "delay_items", "states", "notes", "steps"], ["place", "ids..."]
);
script!(
    /// Changes the due time of messages that still wait.
    RESCHEDULE, "schedule", "reschedule", [CLOCK, DUE], ["delay", "recur", "wake"], ["place", "due", "ids..."]
);
script!(
    read_only
    /// Reads one waiting message.
    FIND, "schedule", "find", ["delay", "delay_items"], ["id"]
);
script!(
    read_only
    /// Reads a page of waiting messages, by due time, and within one due time by the bytes of their ids.
    SCHEDULED, "schedule", "scheduled", ["delay", "delay_items"], ["due", "id", "limit"]
);
script!(
    read_only
    /// Counts the items of a list by time.
    COUNT_DUE, "schedule", "count_due", [CLOCK], ["list", "items", "claims"], []
);
script!(
    /// Moves messages that are due to the log of their partition, for all groups.
    PROMOTE_DELAYED, "schedule", "promote_delayed", [CLOCK, FENCE, BODY],
    ["fence", "delay", "delay_items", "log", "recur", "retry_due"],
    ["token", "limit"]
);

script!(
    /// Stores a recurring rule.
    RECUR_PUT, "recurring", "recur_put",
    ["recur", "recur_items", "delay", "wake"],
    ["place", "id", "next", "conflict", "item"]
);
script!(
    /// Removes a recurring rule; messages that it has scheduled stay.
    RECUR_REMOVE, "recurring", "recur_remove", ["recur", "recur_items"], ["id"]
);
script!(
    /// Pauses or resumes a recurring rule.
    RECUR_PAUSE, "recurring", "recur_pause", ["recur", "recur_items", "delay", "wake"], ["place", "id", "next"]
);
script!(
    /// Reads the recurring rules that are due.
    RECUR_DUE, "recurring", "recur_due", [CLOCK], ["recur", "recur_items"], ["limit"]
);
script!(
    /// Fires a recurring rule that is due: schedules its messages and sets its next time, if no other client
    /// did so before.
    RECUR_FIRE, "recurring", "recur_fire",
    ["recur", "recur_items", "delay", "delay_items", "claims", "wake"],
    ["place", "id", "expected", "next", "fires"]
);

script!(
    /// Stores the settings of a delay queue unless it exists.
    CREATE_QUEUE, "tasks", "create_queue", ["meta"], ["shards", "format", "dead_letter_retention"]
);
script!(
    /// Changes settings of a delay queue.
    ALTER_QUEUE, "tasks", "alter_queue", ["meta"], ["dead_letter_retention"]
);
script!(
    /// Pauses or resumes a shard of a delay queue.
    PAUSE_TASKS, "tasks", "pause_tasks", [CLOCK], ["watcher", "wake"], ["paused"]
);
script!(
    read_only
    /// Reads one task, wherever it is.
    FIND_TASK, "tasks", "find_task", [CLOCK], ["delay", "delay_items", "claims", "task_states", "finished"], ["id"]
);
script!(
    /// Hands due tasks to a worker, and selects the worker that watches the next due time.
    CLAIM_TASKS, "tasks", "claim_tasks", [CLOCK, IDENTITY, CONTINUITY, BODY, RESULT, STEPS],
    ["delay", "delay_items", "claims", "task_states", "watcher", "wake", "dead_tasks", "recur", "notes", "steps"],
    ["worker", "limit", "hold_us", "crash_limit", "longest_sleep_us", "queue", "shard", "continuity"]
);
script!(
    /// Settles tasks of a worker: completed, to be tried again, or dead.
    SETTLE_TASKS, "tasks", "settle_tasks", [CLOCK, DUE, BODY, RESULT, STEPS],
    ["delay", "delay_items", "claims", "task_states", "watcher", "wake", "dead_tasks", "recur", "finished", "notes", "steps", "result..."],
    ["queue", "shard", "count", "tasks..."]
);
script!(
    /// Stores what a handler says of its work on a task.
    REPORT_TASK_PROGRESS, "tasks", "report_task_progress", [CLOCK, FENCE, RESULT], ["claims", "task_states", "progress"],
    ["task", "token", "keep_ms", "attempt", "lines..."]
);
script!(
    /// Extends claims, and records that handlers begin.
    EXTEND_TASKS, "tasks", "extend_tasks", [CLOCK, IDENTITY], ["claims", "task_states"], ["hold_us", "begun", "tasks..."]
);
script!(
    /// Schedules dead tasks again, due at once, as a first attempt; each at most once.
    REPLAY_TASKS, "tasks", "replay_tasks", [CLOCK], ["dead_tasks", "delay", "delay_items", "claims", "wake"], ["ids..."]
);
script!(
    /// Drops the oldest dead tasks of a shard by age and number.
    TRIM_TASKS, "tasks", "trim_tasks", [CLOCK, SIZE],
    ["dead_tasks"], ["mode", "until_ms", "age_ms", "length", "after", "passed"]
);

script!(
    /// Extends entries of a consumer in shared mode, or marks entries that it will not begin.
    EXTEND, "shared", "extend", ["stream"], ["group", "consumer", "idle_ms", "ids..."]
);
script!(
    /// Takes over entries of consumers that are not alive, and removes such consumers without entries.
    CLAIM, "shared", "claim", [CLOCK, FENCE, IDENTITY, CONTINUITY, IDS],
    ["fence", "log", "retry_log", "held"],
    ["mode", "who", "group", "idle_ms", "limit", "continuity", "names..."]
);

script!(
    /// Records the heartbeat of a member, drops dead members, and returns the member's assignment.
    HEARTBEAT, "members", "heartbeat", [CLOCK, IDENTITY, CONTINUITY],
    ["members...", "member...", "assignment...", "changes...", "meta...", "state..."],
    ["id...", "incarnation...", "ttl_ms...", "wishes...", "joining...", "reborn...", "continuity..."]
);
script!(
    /// Removes a member from its group, unless another instance has its id by now.
    LEAVE, "members", "leave", [CLOCK], ["members", "member", "changes"], ["id", "incarnation"]
);
script!(
    read_only
    /// Returns the state of a whole group.
    ROSTER, "members", "roster", [CLOCK], ["members", "member", "assignment", "changes", "meta"], []
);
script!(
    /// Publishes an assignment, if its version still needs one; the first one for a version wins.
    PUBLISH, "members", "publish", ["member", "assignment", "changes"], ["version", "fields..."]
);
script!(
    /// Increases the number of partitions of a topic; it never decreases.
    EXPAND, "catalog", "expand", ["meta"], ["partitions"]
);
script!(
    read_only
    /// Counts entries of a range without sending them.
    COUNT, "inspect", "count", ["log"], ["from", "to", "limit"]
);
script!(
    read_only
    /// Returns the state of a log and its groups, and of what else groups have that are named: of one moment unless entries are
    /// large, so that a message that moves is seen once.
    LOOK, "inspect", "look", [CLOCK, IDENTITY, IDS, SIZE, PACKS], ["log", "delay", "delay_items", "packs", "retry_log...", "retry_due...", "retry_items...", "dlq...", "settled..."],
    ["who", "after", "named", "groups..."]
);
script!(
    /// Stores a topic's settings unless it has some.
    CREATE_TOPIC, "catalog", "create_topic", [CLOCK],
    ["meta", "deleted"],
    ["mode", "partitions", "format", "retention", "max_length", "reborn", "dead_letter_retention", "packing"]
);
script!(
    /// Changes settings of a topic.
    ALTER_TOPIC, "catalog", "alter_topic", ["meta"],
    ["retention", "max_length", "dead_letter_retention", "packing"]
);
script!(
    /// Marks a topic as being deleted: from then on it does not exist for other clients. Removes the mark
    /// last.
    FORGET_TOPIC, "catalog", "forget_topic", [CLOCK],
    ["meta", "deleted", "partitions", "groups", "dictionaries"],
    ["stage", "deletion", "remember_ms"]
);
script!(
    /// Stores a dictionary for the packs of a topic.
    STORE_DICTIONARY, "catalog", "store_dictionary", ["meta", "dictionaries"],
    ["dictionary", "id", "generation", "mode", "version"]
);
script!(
    /// Registers a group of a topic.
    CREATE_GROUP, "catalog", "create_group", ["groups", "state"], ["mode", "group", "start"]
);
script!(
    /// Takes a partition from its owner, before its group or topic is deleted: nobody reads or settles then.
    DISOWN, "catalog", "disown", ["lease", "fence", "gate"], ["reader"]
);
script!(
    /// Marks a group as being deleted, or remembers its deletion for a limited time; removes its members
    /// last.
    FORGET_GROUP, "catalog", "forget_group", [CLOCK],
    ["groups", "state", "changes", "members", "member", "assignment", "meta"],
    ["stage", "deletion", "group", "remember_ms"]
);
script!(
    /// Pauses or resumes a group as a whole.
    PAUSE_GROUP, "catalog", "pause_group", [CLOCK], ["groups", "state", "changes"], ["group", "paused"]
);

script!(
    read_only
    /// Checks one page of a group's data on a partition for contradictions.
    AUDIT, "audit", "audit",
    ["stream", "retry_due", "retry_items", "held", "packs", "settled"],
    ["check", "source", "group", "after", "limit"]
);
script!(
    /// Repairs one fault that `audit` has found in a group on a partition, if it still exists.
    REPAIR, "audit", "repair", [CLOCK, BODY, FENCE, IDS],
    ["stream", "retry_due", "retry_items", "held", "dlq", "lease", "fence", "packs", "settled"],
    ["fault", "source", "group", "id", "owner", "topic", "partition", "body..."]
);
script!(
    read_only
    /// Checks one page of the waiting items of a place, or of its recurring rules, for contradictions.
    AUDIT_PLACE, "audit", "audit_place",
    ["delay", "delay_items", "claims", "task_states", "recur", "recur_items"],
    ["place", "check", "after", "limit"]
);
script!(
    /// Repairs one fault that `audit_place` has found, if it still exists.
    REPAIR_PLACE, "audit", "repair_place", [CLOCK],
    ["delay", "delay_items", "claims", "task_states", "recur", "recur_items"],
    ["place", "fault", "id"]
);
script!(
    /// Begins an operation, unless it is done or another caller runs it.
    MARKER_BEGIN, "idempotency", "marker_begin", ["marker"], ["token", "holder", "ttl_ms"]
);
script!(
    /// Extends the marker of a running operation; one that expired is revived, as long as nobody began since.
    MARKER_EXTEND, "idempotency", "marker_extend", ["marker"], ["token", "holder", "ttl_ms"]
);
script!(
    /// Completes an operation: its marker is done, with the result, for the retention.
    MARKER_COMPLETE, "idempotency", "marker_complete", ["marker"], ["token", "result", "retention_ms"]
);
script!(
    /// Deletes the marker of a running operation, so that the next begin starts it.
    MARKER_ABANDON, "idempotency", "marker_abandon", ["marker"], ["token"]
);
script!(
    /// Appends entries to a log, except those whose dedup id was appended within the window.
    APPEND_DEDUP, "log", "append_dedup", [CLOCK], ["log", "dedup", "dedup_old"], ["window_ms", "count", "entries..."]
);
script!(
    read_only
    /// Returns the ids of entries that were appended with these dedup ids within the window.
    FIND_DEDUP, "log", "find_dedup", [CLOCK], ["dedup", "dedup_old"], ["window_ms", "ids..."]
);
script!(
    /// Appends entries to a log, except those whose id belongs to an entry that a group has not settled.
    APPEND_UNIQUE, "log", "append_unique", [CLOCK, IDS],
    ["log", "unique", "retry_due...", "retry_log...", "unique_retry..."],
    ["mode", "named", "count", "values..."]
);
script!(
    /// Appends the first or last entry of a transaction to a log, and adds its id to the transaction's record.
    APPEND_NUMBERED, "log", "append_numbered", ["log", "numbered"], ["values..."]
);

/// All scripts.
pub const ALL: &[&Script] = &[
    &ACQUIRE,
    &RENEW,
    &RELEASE,
    &ACQUIRE_LOCK,
    &RENEW_LOCK,
    &RELEASE_LOCK,
    &EXCHANGE_PERMITS,
    &RENEW_PERMITS,
    &END_PERMITS,
    &RESERVE_TOKENS,
    &SET_LIMIT_RULE,
    &WITHDRAW_END,
    &OPEN_READER,
    &ACK,
    &ACK_WITH_RESULT,
    &REPORT_PROGRESS,
    &HOLD,
    &RETRY,
    &DEAD_LETTER,
    &APPEND_PACKED,
    &SETTLE_PACKED,
    &SWEEP_PACKED,
    &CREATE_PACKED,
    &LENGTH_PACKED,
    &MISSING_PACKED,
    &SEEK,
    &PROMOTE,
    &SETTLE_RETRIES,
    &CLAIM_DEAD,
    &SETTLE_DEAD,
    &PUT_DEAD,
    &TRIM_DEAD,
    &TRIM,
    &SCHEDULE,
    &CANCEL,
    &RESCHEDULE,
    &FIND,
    &SCHEDULED,
    &COUNT_DUE,
    &PROMOTE_DELAYED,
    &RECUR_PUT,
    &RECUR_REMOVE,
    &RECUR_PAUSE,
    &RECUR_DUE,
    &RECUR_FIRE,
    &CREATE_QUEUE,
    &ALTER_QUEUE,
    &PAUSE_TASKS,
    &FIND_TASK,
    &CLAIM_TASKS,
    &SETTLE_TASKS,
    &REPORT_TASK_PROGRESS,
    &EXTEND_TASKS,
    &REPLAY_TASKS,
    &TRIM_TASKS,
    &CREATE_BATCH,
    &RESERVE_MEMBERS,
    &SEAL_BATCH,
    &END_MEMBERS,
    &READ_STEPS,
    &STORE_STEPS,
    &STORE_TASK_STEPS,
    &SIGNAL_MESSAGE,
    &SIGNAL_TASK,
    &CANCEL_MESSAGE,
    &CANCEL_TASK,
    &CANCEL_BATCH,
    &ANSWER_CANCEL,
    &FORGET_CANCEL,
    &SHARE_CANCELS,
    &END_CANCELLED_TASK,
    &EXTEND,
    &CLAIM,
    &HEARTBEAT,
    &LEAVE,
    &ROSTER,
    &PUBLISH,
    &EXPAND,
    &COUNT,
    &LOOK,
    &CREATE_TOPIC,
    &ALTER_TOPIC,
    &FORGET_TOPIC,
    &STORE_DICTIONARY,
    &CREATE_GROUP,
    &DISOWN,
    &FORGET_GROUP,
    &PAUSE_GROUP,
    &AUDIT,
    &REPAIR,
    &AUDIT_PLACE,
    &REPAIR_PLACE,
    &MARKER_BEGIN,
    &MARKER_EXTEND,
    &MARKER_COMPLETE,
    &MARKER_ABANDON,
    &APPEND_DEDUP,
    &FIND_DEDUP,
    &APPEND_UNIQUE,
    &APPEND_NUMBERED,
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn here(file: &str) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file)
    }

    /// Returns the words after `-- KEYS[n]` or `-- ARGV[n]` of a header, in order. Checks n.
    fn declared<'a>(script: &'a Script, array: &str) -> Vec<Vec<&'a str>> {
        let lines = script.source.lines().take_while(|line| line.starts_with("--"));
        let mine = lines.filter_map(|line| line.strip_prefix(&format!("-- {array}[")));
        mine.enumerate()
            .map(|(i, rest)| {
                let (n, words) = rest.split_once("] ").expect("a name behind the index");
                assert_eq!(n, (i + 1).to_string(), "{}: {array} out of order", script.name);
                words.split(' ').collect()
            })
            .collect()
    }

    #[test]
    fn a_script_that_only_reads_calls_nothing_that_writes() {
        let reads = [
            "exists",
            "get",
            "hexists",
            "hget",
            "hgetall",
            "hkeys",
            "hlen",
            "hmget",
            "hrandfield",
            "hscan",
            "info",
            "llen",
            "pttl",
            "sismember",
            "smismember",
            "time",
            "xinfo|consumers",
            "xinfo|groups",
            "xinfo|stream",
            "xlen",
            "xpending",
            "xrange",
            "xrevrange",
            "zcard",
            "zcount",
            "zmscore",
            "zrange",
            "zrangebyscore",
            "zscan",
            "zscore",
        ];
        for script in ALL {
            let commands = script.commands();
            let writes = commands.iter().any(|command| !reads.contains(&&**command));
            assert_eq!(script.read_only, !writes, "{}: {commands:?}", script.name);
        }
        assert!(LOOK.commands().contains("xinfo|groups"));
        assert!(SCHEDULE.commands().contains("llen") && SCHEDULE.commands().contains("xlen"), "a choice");
    }

    fn code(script: &Script) -> impl Iterator<Item = &'static str> {
        lines_of_code(script.source)
    }

    fn lines_of_code(source: &'static str) -> impl Iterator<Item = &'static str> {
        source.lines().filter(|line| !line.trim_start().starts_with("--"))
    }

    /// Returns the text between the parentheses of every `redis.call(…)` and `redis.pcall(…)`.
    fn calls(source: &'static str) -> Vec<String> {
        let code: String = lines_of_code(source).collect::<Vec<_>>().join(" ");
        let mut found = Vec::new();
        for start in ["redis.call(", "redis.pcall("] {
            for (at, _) in code.match_indices(start) {
                let rest = &code[at + start.len()..];
                let mut depth = 1;
                let end = rest.find(|c| {
                    depth += i32::from(c == '(') - i32::from(c == ')');
                    depth == 0
                });
                found.push(rest[..end.expect("a closing parenthesis")].to_owned());
            }
        }
        found
    }

    #[test]
    fn the_header_is_the_descriptor() {
        for script in ALL {
            let first = script.source.lines().next().unwrap_or_default();
            assert!(first.starts_with(&format!("-- {}: ", script.name)), "{}: {first}", script.name);
            assert!(script.source.contains("\n-- returns "), "{}: what does it return?", script.name);
            for (array, names) in [("KEYS", script.keys), ("ARGV", script.args)] {
                let declared = declared(script, array);
                let first: Vec<_> = declared.iter().map(|words| words[0]).collect();
                assert_eq!(first, names, "{}: {array}", script.name);
                for words in declared {
                    assert!(words.len() > 1, "{}: {} has no meaning", script.name, words[0]);
                }
            }
            for words in declared(script, "KEYS") {
                let types = ["STRING", "HASH", "ZSET", "SET", "STREAM", "LIST"];
                assert!(words.len() > 2 && types.contains(&words[1]), "{}: {words:?}", script.name);
            }
        }
    }

    #[test]
    fn the_body_uses_the_names_of_the_header() {
        let local = |names: &[&str], array: &str| {
            let values: Vec<_> = (1..=names.len()).map(|n| format!("{array}[{n}]")).collect();
            format!("local {} = {}", names.join(", "), values.join(", "))
        };
        for script in ALL {
            let fixed: Vec<_> = script.keys.iter().copied().filter(|key| !key.ends_with("...")).collect();
            let keys = local(&fixed, "KEYS");
            assert!(fixed.is_empty() || code(script).any(|line| line == keys), "{}: {keys}", script.name);
            let fixed: Vec<_> = script.args.iter().copied().filter(|arg| !arg.ends_with("...")).collect();
            let args = local(&fixed, "ARGV");
            assert!(fixed.is_empty() || code(script).any(|line| line == args), "{}: {args}", script.name);
            let uses = code(script).filter(|line| line.contains("KEYS[")).count();
            let named = script.keys.iter().any(|key| !key.ends_with("..."));
            assert_eq!(uses, usize::from(named), "{}: KEYS are named once, then used by name", script.name);
        }
    }

    #[test]
    fn no_key_is_built_and_every_call_names_one() {
        for script in ALL {
            for call in calls(script.source) {
                let keyed = script.keys.iter().any(|key| {
                    let key = key.trim_end_matches('.');
                    // Of a list: `unpack(leases)`.
                    let all = format!("unpack({key}s)");
                    call.split(", ").any(|arg| arg.trim() == key || arg.trim() == all)
                });
                assert!(keyed || of_server(&call), "{}: no declared key in redis.call({call})", script.name);
                assert!(!call.contains(".."), "{}: redis.call({call}) joins text", script.name);
            }
        }
        // Functions get their keys from scripts.
        for part in parts() {
            let functions =
                lines_of_code(part.source).filter_map(|line| line.strip_prefix("local function "));
            let names: Vec<&str> =
                functions.flat_map(|line| line.split(['(', ',', ')', ' '])).skip(1).collect();
            for call in calls(part.source) {
                let keyed = call.split(", ").any(|arg| names.contains(&arg.trim()));
                assert!(keyed || of_server(&call), "{}: no parameter in redis.call({call})", part.name);
                assert!(!call.contains(".."), "{}: redis.call({call}) joins text", part.name);
            }
        }
    }

    /// Whether a call reads properties of the server and no key.
    fn of_server(call: &str) -> bool {
        call == "'TIME'" || call.starts_with("'INFO', ")
    }

    /// All parts, each once.
    fn parts() -> Vec<Part> {
        let mut all: Vec<Part> = ALL.iter().flat_map(|script| script.parts).copied().collect();
        all.sort_by_key(|part| part.name);
        all.dedup();
        all
    }

    /// A function that is not called would only be sent and compiled.
    #[test]
    fn a_script_includes_what_it_calls() {
        for script in ALL {
            let header = script.source.lines().find_map(|line| line.strip_prefix("-- include "));
            let named: Vec<&str> = script.parts.iter().map(|part| part.name).collect();
            assert_eq!(header.unwrap_or_default(), named.join(", "), "{}: the header", script.name);
            for (at, part) in script.parts.iter().enumerate() {
                let functions =
                    lines_of_code(part.source).filter_map(|line| line.strip_prefix("local function "));
                let mut names =
                    functions.map(|line| format!("{}(", line.split('(').next().unwrap_or_default()));
                let later: String =
                    script.parts[at + 1..].iter().map(|part| part.source).chain([script.source]).collect();
                assert!(
                    names.any(|name| later.contains(&name)),
                    "{} calls nothing of {}",
                    script.name,
                    part.name
                );
            }
        }
    }

    #[test]
    fn every_file_is_listed_and_short() {
        let names = |folder: PathBuf| {
            let entries = fs::read_dir(folder).expect("a folder");
            entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect::<Vec<_>>()
        };
        let folders = names(here("")).into_iter().map(|name| here(&name)).filter(|path| path.is_dir());
        let folders = folders.chain([here("log/packed")]);
        let files: BTreeSet<String> =
            folders.flat_map(names).filter_map(|name| name.strip_suffix(".lua").map(str::to_owned)).collect();
        let parts = parts();
        let listed = ALL.iter().map(|script| script.name).chain(parts.iter().map(|part| part.name));
        let listed: BTreeSet<String> = listed.map(str::to_owned).collect();
        assert_eq!(files, listed);
        for script in ALL {
            let lines = script.source.lines().count();
            // `trim` is the longest: three rights, six rules, packs, and groups that keep nothing.
            assert!(lines <= 305, "{}: {lines} lines", script.name);
            // The lines that name many keys or arguments cannot be broken.
            let mut lines = script.source.lines().filter(|line| !line.ends_with(']'));
            assert!(lines.all(|line| line.len() <= 120), "{}: a long line", script.name);
            assert!(
                !script.source.contains("#!lua"),
                "{}: a server out of memory refuses a whole script with #!lua",
                script.name
            );
            assert!(!code(script).any(|line| line.contains("while ")), "{}: an unbounded loop", script.name);
        }
    }

    fn sha1(text: &str) -> String {
        sha1_smol::Sha1::from(text).digest().to_string()
    }

    fn lock() -> String {
        ALL.iter().map(|script| format!("{} {}\n", sha1(&script.text()), script.name)).collect()
    }

    #[test]
    fn a_change_is_a_decision() {
        if std::env::var_os("UPDATE_LOCK").is_some() {
            fs::write(here("scripts.lock"), lock()).expect("scripts.lock is written");
        }
        let locked = fs::read_to_string(here("scripts.lock")).unwrap_or_default();
        assert_eq!(locked, lock(), "a script has changed: see docs/protocol.md, then UPDATE_LOCK=1");
    }
}
