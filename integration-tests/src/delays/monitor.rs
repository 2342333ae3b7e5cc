//! The commands that clients send, as shown by `MONITOR`, without those that scripts run.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread::JoinHandle;

use millstream_lua::{ALL, Script};

use crate::monitor::parse;

/// A listener for the commands of a server.
#[derive(Debug)]
pub struct Ear {
    stream: TcpStream,
    thread: JoinHandle<Commands>,
}

/// The counts of commands, by name and, for those with keys, the kind of the first key; a script by its own name.
#[derive(Clone, Debug, Default)]
pub struct Commands(pub BTreeMap<String, u64>);

impl Ear {
    /// Starts to listen to the server on a local port.
    ///
    /// # Panics
    /// If it does not reply.
    #[must_use]
    pub fn open(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connected");
        (&stream).write_all(b"MONITOR\r\n").expect("written");
        let mut lines = BufReader::new(stream.try_clone().expect("a second handle")).lines();
        assert_eq!(lines.next().expect("an answer").expect("read"), "+OK");
        let thread = std::thread::spawn(move || {
            let mut commands = Commands::default();
            for line in lines.map_while(Result::ok) {
                let Some((address, words)) = parse(line.trim_start_matches('+')) else { continue };
                if address != "lua" {
                    *commands.0.entry(kind(&words)).or_default() += 1;
                }
            }
            commands
        });
        Self { stream, thread }
    }

    /// Stops, and returns the counts.
    ///
    /// # Panics
    /// If listening failed.
    #[must_use]
    pub fn close(self) -> Commands {
        self.stream.shutdown(Shutdown::Both).expect("closed");
        self.thread.join().expect("the monitor")
    }
}

/// Returns the name of a command or script, with the part of its first key that tells the kind of key.
fn kind(words: &[String]) -> String {
    let command = words[0].to_ascii_uppercase();
    let command = if command == "EVALSHA" || command == "EVALSHA_RO" { script(&words[1]) } else { command };
    let key = words.iter().skip(1).find(|word| word.len() < 300 && word.contains('{') && word.contains(':'));
    match key {
        Some(key) => {
            let (before, rest) = key.split_once('{').unwrap_or_default();
            let (tag, after) = rest.split_once('}').unwrap_or_default();
            let part = if tag.contains(":p:") || tag.contains(":q:") { "" } else { "all " };
            format!("{command} {part}{before}{after}")
        }
        None if command == "CLIENT" => format!("{command} {}", words.get(1).map_or("", |word| word)),
        None => command,
    }
}

/// Returns the name of a script by its hash.
fn script(hash: &str) -> String {
    let is = |script: &&&Script| sha1_smol::Sha1::from(script.checked()).digest().to_string() == hash;
    ALL.iter().find(is).map_or("EVALSHA", |script| script.name).to_owned()
}

impl Commands {
    /// Returns the number of commands whose kind fulfils a condition.
    #[must_use]
    pub fn count(&self, of: impl Fn(&str) -> bool) -> u64 {
        self.0.iter().filter(|(kind, _)| of(kind)).map(|(_, count)| count).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> String {
        kind(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_command_is_known_by_its_name_and_its_key() {
        let promote = ALL.iter().find(|script| script.name == "promote").expect("there");
        let hash = sha1_smol::Sha1::from(promote.checked()).digest().to_string();
        assert_eq!(of(&["EVALSHA", &hash, "1", "x:fence:{t:p:0}:g"]), "promote x:fence::g");
        assert_eq!(of(&["XREAD", "STREAMS", "x:changes:{t}:g", "0"]), "XREAD all x:changes::g");
        assert_eq!(of(&["blpop", "x:wake:{t:q:3}", "1"]), "BLPOP x:wake:");
        assert_eq!(
            (of(&["CLIENT", "UNBLOCK", "7"]), of(&["PING"])),
            ("CLIENT UNBLOCK".into(), "PING".into())
        );
    }
}
