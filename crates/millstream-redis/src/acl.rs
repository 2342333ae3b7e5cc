//! Users with the least rights: rules for the server's access control.

use millstream_core::keys::Keys;
use millstream_core::name::{Namespace, TopicName};
use millstream_core::sorted::SortedSet;
use millstream_lua as lua;

/// What a user is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Access {
    /// Sends messages, also scheduled and recurring ones.
    Producer,
    /// Sends messages as a producer does, also with [unique ids](millstream_core::log::Identity::Unique): whether a message is settled shows
    /// in the log and in the retries of all groups, so it may read and write both. A producer of [packed](millstream_core::packing) topics
    /// needs these rights, too: a pack gets an id that has room before it, which shows in the log. So does a producer that is to trim its
    /// topic by a lossy [retention](millstream_core::Retention).
    UniqueProducer,
    /// Handles messages, with retries, dead letters and upkeep. Includes what a producer may do.
    Worker,
    /// Takes locks and leads elections. The rules can stand behind those of another use.
    Locks,
    /// Looks and changes, as the command and `Admin` do.
    Admin,
    /// Looks.
    ReadOnly,
}

/// Commands of every connection. Those that set names are left out where a version does not know them: a refusal of them
/// is ignored.
const CONNECTION: &[&str] = &[
    "auth",
    "hello",
    "select",
    "ping",
    "role",
    "client|setname",
    "client|id",
    "client|tracking",
    "info",
    "time",
    "cluster|slots",
    "cluster|info",
    "asking",
    "multi",
    "exec",
    "unwatch",
    "discard",
    "script|load",
    "type",
    "eval_ro",
    "evalsha_ro",
];
/// What is read without a script.
const READS: &[&str] = &[
    "exists",
    "get",
    "getrange",
    "hexists",
    "hget",
    "hgetall",
    "hkeys",
    "hlen",
    "hstrlen",
    "hmget",
    "pttl",
    "scard",
    "sismember",
    "smembers",
    "smismember",
    "xinfo|groups",
    "xinfo|stream",
    "xinfo|consumers",
    "xlen",
    "xpending",
    "xrange",
    "xrevrange",
    "xread",
    "zcard",
    "zcount",
    "zrange",
    "zscan",
    "zscore",
    "command|info",
    "config|get",
    "dbsize",
    "memory|usage",
];
/// What a producer uses without a script.
const SENDS: &[&str] = &[
    "wait",
    "watch",
    "eval",
    "evalsha",
    "pexpire",
    "sadd",
    "set",
    "xadd",
    "exists",
    "get",
    "hget",
    "hgetall",
    "hmget",
    "hstrlen",
    "sismember",
    "smembers",
    "smismember",
    "zscore",
];
/// What a worker uses without a script, beside what is read.
const WORKS: &[&str] = &[
    "wait",
    "eval",
    "evalsha",
    "client|unblock",
    "watch",
    "blpop",
    "hdel",
    "sadd",
    "srem",
    "unlink",
    "xack",
    "xadd",
    "xdel",
    "xgroup|create",
    "xgroup|destroy",
    "xreadgroup",
    "xtrim",
    "zrem",
];
/// Scripts of a producer.
const SENDING: &[&lua::Script] = &[
    &lua::CREATE_TOPIC,
    // One that a producer has used and that the server has lost.
    &lua::STORE_DICTIONARY,
    &lua::APPEND_DEDUP,
    &lua::FIND_DEDUP,
    &lua::APPEND_NUMBERED,
    &lua::SCHEDULE,
    &lua::CANCEL,
    &lua::RESCHEDULE,
    &lua::FIND,
    &lua::SCHEDULED,
    &lua::COUNT_DUE,
    &lua::RECUR_PUT,
    &lua::RECUR_REMOVE,
    &lua::RECUR_PAUSE,
    &lua::CREATE_BATCH,
    &lua::RESERVE_MEMBERS,
    &lua::SEAL_BATCH,
];

/// Scripts of a producer with unique ids, or of packed topics, beside those, and to trim. They read logs.
const SENDING_UNIQUE: &[&lua::Script] =
    &[&lua::APPEND_UNIQUE, &lua::APPEND_PACKED, &lua::LENGTH_PACKED, &lua::MISSING_PACKED, &lua::TRIM];

/// What a user of locks uses without a script.
const LOCKS: &[&str] = &["eval", "evalsha", "hget", "hmget", "xread"];
/// Scripts of a user of locks.
const LOCKING: &[&lua::Script] = &[&lua::ACQUIRE_LOCK, &lua::RENEW_LOCK, &lua::RELEASE_LOCK];

/// Returns the rules of a user, to be put behind `ACL SETUSER name on >password`: no right but those that are needed, on
/// the keys of these topics, or of all topics and delay queues of the namespace if none is named.
///
/// A producer may not read logs, but what is scheduled, and it may delete keys that it may write: a rule of the server joins
/// all commands with all keys. A read-only user may change nothing; scripts that only read are run with `EVALSHA_RO` for
/// that. Sends with [`Durability::Fsynced`](millstream_core::Durability::Fsynced) need `+waitaof` beside these rules, which
/// servers before 7.2 refuse. Only an administrator may read the settings of the server, with `CONFIG GET`, which shows passwords.
/// Who may look at all topics may also `SCAN`, which finds topics and delay queues whose list was lost, and shows the names of all
/// keys of the server.
///
/// ```
/// use millstream_redis::{Access, acl};
///
/// let rules = acl(Access::Producer, None, &["orders".parse()?]);
/// assert!(rules.contains(&"+xadd".to_owned()) && !rules.contains(&"+xrange".to_owned()));
/// assert!(rules.contains(&"~stream:topic:{orders:p:*}".to_owned()));
/// # Ok::<(), millstream_core::Error>(())
/// ```
#[must_use]
pub fn acl(access: Access, namespace: Option<&Namespace>, topics: &[TopicName]) -> Vec<String> {
    let keys = namespace.map_or_else(Keys::new, Keys::within);
    let mut commands: SortedSet<String> = CONNECTION.iter().map(|command| (*command).to_owned()).collect();
    let mut add = |some: &[&str], scripts: &mut dyn Iterator<Item = &&lua::Script>| {
        commands.extend(some.iter().map(|command| (*command).to_owned()));
        commands.extend(scripts.flat_map(|script| script.commands()));
    };
    match access {
        Access::Locks => add(LOCKS, &mut LOCKING.iter()),
        Access::Producer => add(SENDS, &mut SENDING.iter()),
        Access::UniqueProducer => add(SENDS, &mut SENDING.iter().chain(SENDING_UNIQUE)),
        Access::ReadOnly => add(READS, &mut lua::ALL.iter().filter(|script| script.read_only)),
        Access::Worker | Access::Admin => {
            add(READS, &mut lua::ALL.iter());
            add(WORKS, &mut SENDING.iter());
        }
    }
    if access != Access::Admin {
        // It shows passwords of the server too, and is needed for warnings alone.
        commands.remove("config|get");
    }
    if topics.is_empty() && matches!(access, Access::ReadOnly | Access::Admin) {
        commands.insert("scan".to_owned());
    }
    let mark = if access == Access::ReadOnly { "%R~" } else { "~" };
    let mut patterns = Vec::new();
    for topic in topics {
        patterns.extend(match access {
            Access::Producer => keys.patterns_to_send(topic),
            Access::UniqueProducer => {
                [keys.patterns_to_send(topic), keys.patterns_to_send_unique(topic)].concat()
            }
            _ => keys.patterns_of(topic),
        });
    }
    if access == Access::Locks {
        patterns = keys.patterns_of_locks();
    } else if topics.is_empty() {
        patterns.extend(keys.patterns_of_all());
    } else if matches!(access, Access::Worker | Access::Admin) {
        // Limits count across topics.
        patterns.extend(keys.patterns_of_permits());
    }
    let rules = ["-@all", "resetkeys", "resetchannels"].map(str::to_owned);
    let rules = rules.into_iter().chain(commands.iter().map(|command| format!("+{command}")));
    rules.chain(patterns.iter().map(|pattern| format!("{mark}{pattern}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_of_locks_has_no_right_on_topics() {
        let namespace = Namespace::new("shop").expect("a name");
        let rules = acl(Access::Locks, Some(&namespace), &["orders".parse().expect("a name")]);
        let keys: Vec<_> = rules.iter().filter_map(|rule| rule.split_once('~')).collect();
        assert_eq!(keys, [("", "shop:streaming:mq:lock:*")]);
        for never in ["+xrange", "+xreadgroup", "+flushall", "+config|get"] {
            assert!(!rules.iter().any(|rule| rule == never), "{never}");
        }
        for needed in ["+evalsha", "+hset", "+pexpire", "+zadd", "+xadd", "+del", "+set"] {
            assert!(rules.iter().any(|rule| rule == needed), "{needed}: {rules:?}");
        }
    }

    #[test]
    fn who_looks_at_all_topics_finds_those_whose_list_was_lost() {
        let scans = |access, topics: &[TopicName]| acl(access, None, topics).contains(&"+scan".to_owned());
        let one = ["orders".parse().expect("a name")];
        for access in [Access::ReadOnly, Access::Admin] {
            // The names of all keys are no business of who may see some topics.
            assert_eq!((scans(access, &[]), scans(access, &one)), (true, false), "{access:?}");
        }
        for access in [Access::Producer, Access::UniqueProducer, Access::Worker, Access::Locks] {
            assert!(!scans(access, &[]), "{access:?}");
        }
    }

    #[test]
    fn nobody_may_do_more_than_is_needed() {
        let topic: TopicName = "orders".parse().expect("a name");
        let namespace = Namespace::new("shop").expect("a name");
        let all = [Access::Producer, Access::UniqueProducer, Access::Worker, Access::Admin, Access::ReadOnly];
        for access in all {
            let rules = acl(access, Some(&namespace), std::slice::from_ref(&topic));
            for never in ["+@all", "+flushall", "+keys", "+acl|setuser", "+config|set", "+shutdown", "~*"] {
                assert!(!rules.iter().any(|rule| rule == never), "{access:?}: {never}");
            }
            let keys = rules.iter().filter_map(|rule| rule.split_once('~').map(|(_, pattern)| pattern));
            assert!(keys.clone().all(|pattern| pattern.starts_with("shop:str")), "{rules:?}");
            assert!(
                keys.clone()
                    .all(|it| it.contains("{orders") || it.ends_with(":registry") || it.contains(":permit:")),
                "{rules:?}"
            );
            let writes =
                ["+evalsha", "+xadd", "+hset", "+del"].iter().any(|it| rules.contains(&(*it).to_owned()));
            assert_eq!(writes, access != Access::ReadOnly);
            assert_eq!(
                rules.contains(&"+config|get".to_owned()),
                access == Access::Admin,
                "it shows passwords"
            );
        }
    }
}
