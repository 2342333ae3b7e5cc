//! Keys of a wrong type: names the key of a command, which the server's error does not.

use redis::{Cmd, Pipeline, Value};

use crate::conn::command::only_key_of;

/// Code of the server's error.
const CODE: &str = "WRONGTYPE";

/// Adds the key of its command to each error of a wrong type. Scripts have several keys: see
/// [`in_script`](crate::scripts::wrong_type::in_script).
pub(crate) fn name_keys(values: &mut [Value], pipe: &Pipeline) {
    for (value, cmd) in values.iter_mut().zip(pipe.cmd_iter()) {
        if matches!(value, Value::ServerError(error) if error.code() == CODE)
            && let Some(key) = readable_key(cmd)
            // The client can build such an error only from a reply of the server.
            && let Ok(named) = redis::parse_redis_value(format!("-{CODE} {key}\r\n").as_bytes())
        {
            *value = named;
        }
    }
}

/// Returns the key that a command's error can be about, unless there are several.
fn readable_key(cmd: &Cmd) -> Option<&str> {
    let key = std::str::from_utf8(only_key_of(cmd)?).ok()?;
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
        pipe.cmd("XREADGROUP")
            .arg("GROUP")
            .arg("g")
            .arg("c")
            .arg("COUNT")
            .arg(1)
            .arg("STREAMS")
            .arg("five")
            .arg(">");
        let mut values = [wrong(), wrong(), Value::Int(3), wrong(), wrong()];
        name_keys(&mut values, &pipe);
        let texts = values.map(|value| reply::ok(value).map_err(|error| (error.kind(), error.to_string())));
        for (at, key) in [(0, "one"), (1, "two"), (4, "five")] {
            let (kind, text) = texts[at].as_ref().expect_err("an error");
            assert_eq!(*kind, ErrorKind::WrongType);
            assert!(text.ends_with(key), "{text}");
        }
        assert_eq!(texts[2], Ok(Value::Int(3)));
        assert!(texts[3].as_ref().is_err_and(|(_, text)| !text.contains('\n')));
    }
}
