//! Keys of a wrong type: names the key of a command, which the server's error does not.

use redis::{Arg, Cmd, Pipeline, Value};

/// Code of the server's error.
const CODE: &str = "WRONGTYPE";

/// Adds the key of its command to each error of a wrong type. Scripts have several keys: see
/// [`in_script`](crate::scripts::wrong_type::in_script).
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
        b"EVALSHA" | b"EVALSHA_RO" | b"EVAL" | b"EVAL_RO" => return None,
        b"XINFO" | b"XGROUP" | b"MEMORY" | b"OBJECT" => 1,
        _ => 0,
    };
    let key = std::str::from_utf8(words.nth(at)?).ok()?;
    Some(key).filter(|key| !key.contains(char::is_control))
}

#[cfg(test)]
mod tests {
    use millstream_core::ErrorKind;

    use super::*;
    use crate::conn::replies::reply;

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
