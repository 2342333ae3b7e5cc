//! Keys of a wrong type that a script met: finds them, since the server's error does not name them.

use millstream_core::error::{Error, ErrorKind};
use millstream_core::keys::Key;
use redis::Pipeline;

use crate::conn::connection::Line;
use crate::conn::replies::reply;

/// Finds the keys of a script that have a wrong type, by the contract at the head of its source:
/// `-- KEYS[1] name TYPE …`. Returns `None` if that cannot be determined, or if all types are right by now.
pub(crate) async fn in_script(line: &dyn Line, source: &str, keys: &[Key]) -> Option<Error> {
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
    (!wrong.is_empty())
        .then(|| Error::new(ErrorKind::WrongType, format!("a key has the wrong type: {}", wrong.join(", "))))
}

/// Returns a word of a contract as the server spells the type; `None` if the word is no type.
fn a_type(word: &str) -> Option<String> {
    let types = ["STRING", "HASH", "SET", "ZSET", "LIST", "STREAM"];
    types.contains(&word).then(|| word.to_ascii_lowercase())
}
