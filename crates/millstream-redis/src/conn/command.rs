//! Keys of commands.

use redis::{Arg, Cmd};

/// Returns the first key of a command; `None` for a command that has none and may run on any server.
pub(crate) fn key_of(cmd: &Cmd) -> Option<&[u8]> {
    let word = |at: usize| match cmd.args_iter().nth(at) {
        Some(Arg::Simple(word)) => Some(word),
        _ => None,
    };
    match word(0)? {
        b"AUTH" | b"ASKING" | b"CLIENT" | b"CLUSTER" | b"COMMAND" | b"CONFIG" | b"DISCARD" | b"EXEC"
        | b"INFO" | b"MULTI" | b"PING" | b"ROLE" | b"SCRIPT" | b"TIME" => None,
        b"EVAL" | b"EVAL_RO" | b"EVALSHA" | b"EVALSHA_RO" => {
            word(2).filter(|keys| *keys != b"0").and_then(|_| word(3))
        }
        b"XREAD" | b"XREADGROUP" => {
            let mut words = cmd.args_iter();
            words.find(|arg| matches!(arg, Arg::Simple(word) if word.eq_ignore_ascii_case(b"STREAMS")))?;
            match words.next() {
                Some(Arg::Simple(key)) => Some(key),
                _ => None,
            }
        }
        b"XINFO" | b"XGROUP" | b"MEMORY" | b"OBJECT" => word(2),
        _ => word(1),
    }
}

/// Returns the key of a command that has exactly one. Scripts count as having several.
pub(crate) fn only_key_of(cmd: &Cmd) -> Option<&[u8]> {
    let mut words = cmd.args_iter();
    match words.next()? {
        Arg::Simple(b"EVAL" | b"EVAL_RO" | b"EVALSHA" | b"EVALSHA_RO") => None,
        Arg::Simple(b"XREAD" | b"XREADGROUP") => {
            words.find(|arg| matches!(arg, Arg::Simple(word) if word.eq_ignore_ascii_case(b"STREAMS")))?;
            // Each stream with its position.
            key_of(cmd).filter(|_| words.count() == 2)
        }
        _ => key_of(cmd),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_command_is_found_where_it_is() {
        let cases: [(&str, Option<&str>); 9] = [
            ("XADD k * f v", Some("k")),
            ("EVALSHA sha 2 k l a", Some("k")),
            ("EVAL s 0", None),
            ("XREADGROUP GROUP g c COUNT 1 STREAMS k >", Some("k")),
            ("XREAD BLOCK 1 streams k 0", Some("k")),
            ("XINFO GROUPS k", Some("k")),
            ("MEMORY USAGE k SAMPLES 5", Some("k")),
            ("TIME", None),
            ("SCRIPT LOAD x", None),
        ];
        for (text, key) in cases {
            let mut cmd = Cmd::new();
            text.split(' ').for_each(|word| _ = cmd.arg(word));
            assert_eq!(key_of(&cmd), key.map(str::as_bytes), "{text}");
        }
    }

    #[test]
    fn a_command_with_several_keys_has_no_only_key() {
        let cases: [(&str, Option<&str>); 6] = [
            ("XREADGROUP GROUP g c STREAMS k >", Some("k")),
            ("XREADGROUP GROUP g c STREAMS k l > >", None),
            ("XREAD COUNT 1 STREAMS k 0", Some("k")),
            ("EVALSHA sha 1 k", None),
            ("XINFO GROUPS k", Some("k")),
            ("PING", None),
        ];
        for (text, key) in cases {
            let mut cmd = Cmd::new();
            text.split(' ').for_each(|word| _ = cmd.arg(word));
            assert_eq!(only_key_of(&cmd), key.map(str::as_bytes), "{text}");
        }
    }
}
