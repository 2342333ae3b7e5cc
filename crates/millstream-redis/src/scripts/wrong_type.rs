//! Keys of a wrong type: finds the key, which the server's error does not name.

use millstream_core::error::{Error, ErrorKind};
use millstream_core::keys::Key;
use redis::{Arg, Cmd, Pipeline, Value};

use crate::conn::connection::Line;
use crate::scripts::reply;

/// Code of the server's error.
const CODE: &str = "WRONGTYPE";

/// Adds the key of its command to each error of a wrong type. Scripts have several keys: see [`in_script`].
pub(crate) fn name_keys(values: &mut [Value], pipe: &Pipeline) {
    for (value, cmd) in values.iter_mut().zip(pipe.cmd_iter()) {
        if matches!(value, Value::ServerError(error) if error.code() == CODE)
            && let Some(key) = key_of(cmd)
            // The client can build such an error only from a reply of the server.
            && let Ok(named) = redis::parse_redis_value(format!("-{CODE} {key}\r\n").as_bytes())
        {
            *value = named;
        }
    }
}

/// Returns the key of a command, if it has one.
fn key_of(cmd: &Cmd) -> Option<&str> {
    let mut words = cmd.args_iter().map_while(|arg| match arg {
        Arg::Simple(word) => Some(word),
        _ => None,
    });
    let at = match words.next()? {
        b"EVALSHA" | b"EVAL" => return None,
        b"XINFO" | b"XGROUP" | b"MEMORY" | b"OBJECT" => 1,
        _ => 0,
    };
    let key = std::str::from_utf8(words.nth(at)?).ok()?;
    Some(key).filter(|key| !key.contains(char::is_control))
}

/// Finds the keys of a script that have a wrong type, by the contract at the head of its source:
/// `-- KEYS[1] name TYPE …`. Returns `None` if that cannot be determined, or if all types are right by now.
pub(crate) async fn in_script(line: &impl Line, source: &str, keys: &[Key]) -> Option<Error> {
    let mut pipe = Pipeline::with_capacity(keys.len());
    for key in keys {
        pipe.cmd("TYPE").arg(key.as_str());
    }
    let found = line.send(&pipe).await.ok()?;
    let wrong = keys.iter().zip(found).enumerate().filter_map(|(at, (key, found))| {
        let (found, head) = (reply::text(found).ok()?, format!("-- KEYS[{}] ", at + 1));
        let contract = source.lines().find_map(|line| line.strip_prefix(&head))?;
        let types: Vec<String> = contract.split_whitespace().filter_map(a_type).collect();
        let foreign = found != "none" && !types.is_empty() && !types.contains(&found);
        foreign.then(|| format!("{key} is a {found}, not a {}", types.join(" or ")))
    });
    let wrong: Vec<String> = wrong.collect();
    (!wrong.is_empty()).then(|| {
        Error::new(ErrorKind::WrongType, format!("a key holds a foreign type: {}", wrong.join(", ")))
    })
}

/// Returns a word of a contract as the server spells the type; `None` if the word is no type.
fn a_type(word: &str) -> Option<String> {
    let types = ["STRING", "HASH", "SET", "ZSET", "LIST", "STREAM"];
    types.contains(&word).then(|| word.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_key_of_its_command_and_of_no_other() {
        let mut pipe = Pipeline::new();
        pipe.cmd("XLEN").arg("one");
        pipe.cmd("XINFO").arg("GROUPS").arg("two");
        pipe.cmd("GET").arg("three");
        pipe.cmd("HGET").arg("a\r\nb").arg("x");
        let wrong = || redis::parse_redis_value(b"-WRONGTYPE Operation against a key\r\n").expect("a reply");
        let mut values = [wrong(), wrong(), Value::Int(3), wrong()];
        name_keys(&mut values, &pipe);
        let texts = values.map(|value| reply::ok(value).map_err(|error| (error.kind(), error.to_string())));
        for (text, key) in texts.iter().zip(["one", "two"]) {
            let (kind, text) = text.as_ref().expect_err("an error");
            assert_eq!(*kind, ErrorKind::WrongType);
            assert!(text.ends_with(key), "{text}");
        }
        assert_eq!(texts[2], Ok(Value::Int(3)));
        assert!(texts[3].as_ref().is_err_and(|(_, text)| !text.contains('\n')));
    }
}
