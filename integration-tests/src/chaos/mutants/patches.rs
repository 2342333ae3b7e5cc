//! Mistakes as changes of scripts: a text that stands once in a script, and what stands there instead.

use millstream_lua::Script;

use super::Mutant;

/// Number of entries that [`Mutant::AppendMaxlen`] leaves in a log.
pub const MAXLEN: usize = 100;

/// One change: the script, the text, and its replacement.
type Patch = (&'static Script, &'static str, &'static str);

const FENCE: &str = "if not may_change(fence, mode, who) then\n  return fenced()\nend\n";

const ACK_BEFORE_RETRY: &[Patch] = &[
    // An entry that is pending is acknowledged and not stored; one that is not pending any more is stored. In shared mode the
    // script is as it was: there a second call could not tell whose entry it was.
    (
        &millstream_lua::RETRY,
        "  local entry = #pending > 0 and redis.call('XRANGE', stream, id, id)[1]\n  if entry then\n",
        "  local acks = mode ~= 'consumer' and #pending > 0\n  \
           local entry = (mode ~= 'consumer' or #pending > 0) and redis.call('XRANGE', stream, id, id)[1]\n  \
           if acks then\n    applied = applied + 1\n  elseif entry then\n",
    ),
    (
        &millstream_lua::RETRY,
        "= entry and source == 'retry' and id or nil",
        "= not acks and entry and source == 'retry' and id or nil",
    ),
];

const UNFENCED_SETTLEMENT: &[Patch] = &[
    (&millstream_lua::ACK, FENCE, ""),
    (&millstream_lua::RETRY, FENCE, ""),
    (&millstream_lua::DEAD_LETTER, FENCE, ""),
    (&millstream_lua::HOLD, FENCE, ""),
];

const INCR_EPOCH: &[Patch] = &[
    (
        &millstream_lua::ACQUIRE,
        "math.max((tonumber(last_epoch) or 0) + 1, now_ms)",
        "(tonumber(last_epoch) or 0) + 1",
    ),
    // The nonce of all requests is the same: a request that is repeated is known by its owner.
    (
        &millstream_lua::ACQUIRE,
        "local same = string.match(last_token, '^%d+:(.*)$') == nonce",
        "local same = last[1] == owner",
    ),
    (&millstream_lua::ACQUIRE_LOCK, "math.max(highest + 1, now, tonumber(above) + 1)", "highest + 1"),
];

const APPEND_MAXLEN: &[Patch] = &[
    (&millstream_lua::APPEND_DEDUP, "'XADD', log, '*'", "'XADD', log, 'MAXLEN', '=', 100, '*'"),
    (&millstream_lua::APPEND_UNIQUE, "'XADD', log, '*'", "'XADD', log, 'MAXLEN', '=', 100, '*'"),
    // Of an idempotent producer's request it appends the first and last entry of each partition.
    (&millstream_lua::APPEND_NUMBERED, "'XADD', log, '*'", "'XADD', log, 'MAXLEN', '=', 100, '*'"),
    (
        &millstream_lua::PROMOTE_DELAYED,
        "'XADD', log, '*', unpack",
        "'XADD', log, 'MAXLEN', '=', 100, '*', unpack",
    ),
];

const DEAD_LETTER_SWALLOWED: &[Patch] = &[
    // One write that is never refused is enough for the server to accept those behind it.
    (&millstream_lua::DEAD_LETTER, "redis.call('XDEL', dlq, '0-0')\nredis.call('XDEL', notes, '0-0')\n", ""),
    (&millstream_lua::DEAD_LETTER, "redis.call('XADD', dlq", "redis.pcall('XADD', dlq"),
    (&millstream_lua::SETTLE_TASKS, "redis.call('XDEL', dead_tasks, '0-0')\n", ""),
    (&millstream_lua::SETTLE_TASKS, "redis.call('XADD', dead_tasks", "redis.pcall('XADD', dead_tasks"),
];

const RETRY_TO_SHARED_LOG: &[Patch] = &[(
    &millstream_lua::PROMOTE,
    "put = redis.pcall('XADD', retry_log, '*', 'attempt', attempt, 'origin', origin, 'error', error_text, 'history',\n      \
       history, unpack(values, first))",
    "put = redis.pcall('XADD', (string.gsub(retry_log, ':retry:[^:]*$', '')), '*', unpack(values, first))",
)];

const RENEW_AFTER_RELEASE: &[Patch] = &[
    (
        &millstream_lua::RENEW,
        "elseif not found and token ~= '' and last == token then",
        "elseif not found then",
    ),
    (
        &millstream_lua::RENEW,
        "redis.call('SET', lease, token, 'PX', ttl_ms)\n",
        "redis.call('SET', lease, token, 'PX', ttl_ms)\n      redis.call('HSET', fence, 'token', token)\n",
    ),
    (
        &millstream_lua::RENEW_LOCK,
        "if not is_owner(lock, token) then",
        "local known = redis.call('HGET', lock, 'token')\nif known and known ~= token then",
    ),
    (
        &millstream_lua::RENEW_LOCK,
        "redis.call('HSET', lock, 'ttl', ttl_ms,",
        "redis.call('HSET', lock, 'token', token, 'epoch', string.match(token, '^%d+'), 'ttl', ttl_ms,",
    ),
];

const MARKER_BEFORE_APPEND: &[Patch] = &[(
    &millstream_lua::APPEND_DEDUP,
    "known = redis.call('XADD', log, '*', unpack(args, at + 1, to))",
    "known = string.format('%.0f-%d', now_ms, n)",
)];

const TRIM_IGNORES_PENDING: &[Patch] =
    &[(&millstream_lua::TRIM, "pending = info.pending > 0", "pending = false")];

const DELCONSUMER_WITH_PENDING: &[Patch] = &[
    (
        &millstream_lua::CLAIM,
        "if left > 0 and of.pending > 0 then",
        "if left > 0 and of.pending > 0 and of.idle < idle then",
    ),
    (
        &millstream_lua::CLAIM,
        "if of.pending > #rows then",
        "if of.pending > #rows and (of.idle < idle or known_in_ms ~= 0) then",
    ),
];

const ACK_BELOW: &[Patch] = &[(
    &millstream_lua::ACK,
    "local acked = redis.call('XACK', stream, group, unpack(ids, first))\n",
    "local acked = redis.call('XACK', stream, group, unpack(ids, first))\n\
     for _, row in ipairs(redis.call('XPENDING', stream, group, '-', ids[#ids], 1000)) do\n  \
       redis.call('XACK', stream, group, row[1])\nend\n",
)];

const UNFENCED_TASK: &[Patch] = &[
    (
        &millstream_lua::SETTLE_TASKS,
        "if claimed[i] and held_by == tokens[i] and not settled[id] then",
        "if claimed[i] and not settled[id] then",
    ),
    (
        &millstream_lua::EXTEND_TASKS,
        "claimed[i] and token == ARGV[2 * i + 2] and 1 or 0",
        "claimed[i] and 1 or 0",
    ),
];

const TAKEOVER_AT_ONCE: &[Patch] =
    &[(&millstream_lua::ACQUIRE, "local left_ms = judges_in(answered, now_ms)", "local left_ms = 0")];

const UNCHECKED_LOCK_RELEASE: &[Patch] = &[(
    &millstream_lua::RELEASE_LOCK,
    "(ends == '' and by == nonce or ends == held)",
    "(ends == '' or ends == held)",
)];

/// Returns the changes of a mistake. None if it is made around a role alone.
const fn patches(mutant: Mutant) -> &'static [Patch] {
    match mutant {
        Mutant::AckBeforeRetry => ACK_BEFORE_RETRY,
        Mutant::UnfencedSettlement => UNFENCED_SETTLEMENT,
        Mutant::IncrEpoch => INCR_EPOCH,
        Mutant::AppendMaxlen => APPEND_MAXLEN,
        Mutant::DeadLetterSwallowed => DEAD_LETTER_SWALLOWED,
        Mutant::RetryToSharedLog => RETRY_TO_SHARED_LOG,
        Mutant::RenewAfterRelease => RENEW_AFTER_RELEASE,
        Mutant::MarkerBeforeAppend => MARKER_BEFORE_APPEND,
        Mutant::TrimIgnoresPending => TRIM_IGNORES_PENDING,
        Mutant::DelconsumerWithPending => DELCONSUMER_WITH_PENDING,
        Mutant::AckBelow => ACK_BELOW,
        Mutant::UnfencedTask => UNFENCED_TASK,
        Mutant::TakeoverAtOnce => TAKEOVER_AT_ONCE,
        Mutant::UncheckedLockRelease => UNCHECKED_LOCK_RELEASE,
        Mutant::ClientClock
        | Mutant::PendingNotReread
        | Mutant::WholeBatchResent
        | Mutant::IdCursorOutbox => &[],
    }
}

/// Returns the scripts that a mistake changes, with their changed texts, as they are loaded.
///
/// # Panics
/// If the text of a change does not stand in its script, or stands there twice: then the script was changed, and the mistake
/// needs another change.
#[must_use]
pub fn patched(mutant: Mutant) -> Vec<(&'static Script, String)> {
    let mut texts: Vec<(&'static Script, String)> = Vec::new();
    for &(script, find, replace) in patches(mutant) {
        let known = texts.iter().position(|(other, _)| other.name == script.name);
        let at = known.unwrap_or_else(|| {
            texts.push((script, script.checked()));
            texts.len() - 1
        });
        let text = &mut texts[at].1;
        let count = text.matches(find).count();
        assert!(count == 1, "{mutant}: this stands {count} times in the script {}:\n{find}", script.name);
        *text = text.replacen(find, replace, 1);
    }
    texts
}

/// Returns the arguments by which clients name the scripts that a mistake changes, each with the one that the server has to get: the
/// whole text and the text without comments, and their hashes.
pub(super) fn replacements(mutant: Mutant) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for (script, patched) in patched(mutant) {
        let original = script.checked();
        for (from, to) in [(code(&original), code(&patched)), (original, patched)] {
            pairs.push((hash(&from), hash(&to)));
            pairs.push((from, to));
        }
    }
    pairs
}

/// A script as calls carry it: see `scripts/script.rs` of `millstream-redis`.
fn code(text: &str) -> String {
    let lines = text.lines().map(str::trim_start);
    let code = lines.filter(|line| !line.is_empty() && !line.starts_with("--"));
    code.map(|line| format!("{line}\n")).collect()
}

fn hash(text: &str) -> String {
    sha1_smol::Sha1::from(text).digest().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It fails with the script and the text if a script changes: look there how the mistake is made now.
    #[test]
    fn each_change_has_its_place() {
        for mutant in Mutant::ALL {
            for (script, text) in patched(*mutant) {
                assert_ne!(text, script.checked(), "{mutant}: nothing is changed in {}", script.name);
            }
        }
    }

    #[test]
    fn the_length_is_that_of_the_scripts() {
        let length = format!("'MAXLEN', '=', {MAXLEN},");
        for (script, text) in patched(Mutant::AppendMaxlen) {
            assert!(text.contains(&length), "{}", script.name);
        }
    }
}
