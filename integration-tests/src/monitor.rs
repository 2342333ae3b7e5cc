//! The commands that had an effect on the server, in order, with a check that the owner at that time sent them.
//!
//! `MONITOR` shows executed commands: none of an aborted transaction, and for a script that refused a token only its
//! check of the fence. Any other command shown after a token therefore had an effect.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread::JoinHandle;

/// Commands of scripts that do not change data.
const READS: [&str; 17] = [
    "GET",
    "HGET",
    "HMGET",
    "HGETALL",
    "HLEN",
    "HEXISTS",
    "PTTL",
    "TIME",
    "XPENDING",
    "XRANGE",
    "XREVRANGE",
    "XINFO",
    "XLEN",
    "ZRANGE",
    "ZRANGEBYSCORE",
    "ZCARD",
    "ZSCORE",
];

/// A listener for all commands of a server.
#[derive(Debug)]
pub struct Monitor {
    stream: TcpStream,
    thread: JoinHandle<Fencing>,
}

impl Monitor {
    /// Starts to listen to the server on a local port.
    ///
    /// # Panics
    /// If the server does not reply.
    #[must_use]
    pub fn start(port: u16) -> Self {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("connected");
        (&stream).write_all(b"MONITOR\r\n").expect("written");
        let mut lines = BufReader::new(stream.try_clone().expect("a second handle")).lines();
        assert_eq!(lines.next().expect("an answer").expect("read"), "+OK");
        let thread = std::thread::spawn(move || {
            let mut fencing = Fencing::default();
            for line in lines.map_while(Result::ok) {
                fencing.line(line.trim_start_matches('+'));
            }
            fencing
        });
        Self { stream, thread }
    }

    /// Stops, and returns the result.
    ///
    /// # Panics
    /// If the output of the server cannot be parsed.
    #[must_use]
    pub fn stop(self) -> Fencing {
        self.stream.shutdown(Shutdown::Both).expect("closed");
        self.thread.join().expect("understood")
    }
}

/// Tracks the fences, and compares them with the token of each command.
#[derive(Debug, Default)]
pub struct Fencing {
    /// The current token of each fence.
    tokens: HashMap<String, String>,
    /// The fence and token that a reader opened with, by address.
    readers: HashMap<String, (String, String)>,
    /// The running script: caller, fence, and its token if it has one.
    script: Option<(String, String, Option<String>)>,
    /// The number of commands that had an effect.
    pub effects: usize,
    /// The number of calls with the token of a former owner.
    pub stale_calls: usize,
    /// Those of them that had an effect nevertheless. There must be none.
    pub violations: Vec<String>,
}

impl Fencing {
    /// Processes the next line of `MONITOR`.
    fn line(&mut self, line: &str) {
        let Some((address, words)) = parse(line) else { panic!("not a line of MONITOR: {line}") };
        let command = words[0].to_ascii_uppercase();
        if address == "lua" {
            if !READS.contains(&&*command) {
                self.by_script(&command, &words, line);
            }
        } else if ["EVALSHA", "EVAL", "EVALSHA_RO", "EVAL_RO"].contains(&&*command) {
            self.call(address, &words);
        } else if command == "XREADGROUP" {
            let (fence, token) = self.readers.get(address).expect("a reader opens before it reads").clone();
            self.effect(&fence, &token, line);
        }
    }

    /// Processes the call of a script.
    fn call(&mut self, address: &str, words: &[String]) {
        let count: usize = words[2].parse().expect("a number of keys");
        let (keys, args) = words[3..].split_at(count);
        let fence = keys.iter().find(|key| key.contains(":fence:"));
        let token = args
            .first()
            .filter(|word| word.split(':').count() == 2 && word.starts_with(|c: char| c.is_ascii_digit()));
        self.script = fence.map(|fence| (address.to_owned(), fence.clone(), token.cloned()));
        if let Some((_, fence, Some(token))) = &self.script
            && self.tokens.get(fence) != Some(token)
        {
            self.stale_calls += 1;
        }
    }

    /// Processes a command that a script runs.
    fn by_script(&mut self, command: &str, words: &[String], line: &str) {
        let Some((address, fence, token)) = self.script.clone() else { return };
        if let Some(token) = &token {
            self.effect(&fence, token, line);
        }
        if command == "HSET" && words[1] == fence {
            let field =
                |name: &str| words[2..].chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone());
            if let Some(token) = field("token") {
                self.tokens.insert(fence.clone(), token);
            }
            if let (Some(_), Some(token)) = (field("reader"), token) {
                self.readers.insert(address, (fence, token));
            }
        }
    }

    fn effect(&mut self, fence: &str, token: &str, line: &str) {
        self.effects += 1;
        if self.tokens.get(fence).map(String::as_str) != Some(token) {
            self.violations.push(line.to_owned());
        }
    }
}

/// Parses the address and words of `1339518083.107412 [0 127.0.0.1:60866] "keys" "*"`.
pub(crate) fn parse(line: &str) -> Option<(&str, Vec<String>)> {
    let (source, rest) = line.split_once(" [")?.1.split_once("] ")?;
    let address = source.split_once(' ')?.1;
    let (mut words, mut letters) = (Vec::new(), rest.chars());
    while let Some(open) = letters.next() {
        if open != '"' {
            continue;
        }
        let mut word = String::new();
        loop {
            match letters.next()? {
                '"' => break,
                '\\' => word.push(letters.next()?),
                letter => word.push(letter),
            }
        }
        words.push(word);
    }
    (!words.is_empty()).then_some((address, words))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANTS: [&str; 4] = [
        r#"1.0 [0 1:1] "EVALSHA" "ab" "2" "n:lease:x" "n:fence:x" "c-1" "nonce" "1000""#,
        r#"1.0 [0 lua] "HSET" "n:fence:x" "owner" "c-1" "token" "7:a" "epoch" "7""#,
        r#"1.0 [0 1:2] "EVALSHA" "cd" "1" "n:fence:x" "7:a" "word""#,
        r#"1.0 [0 lua] "HSET" "n:fence:x" "reader" "word""#,
    ];
    const TAKEN: [&str; 2] = [
        r#"2.0 [0 2:1] "EVALSHA" "ab" "2" "n:lease:x" "n:fence:x" "c-2" "other" "1000""#,
        r#"2.0 [0 lua] "HSET" "n:fence:x" "token" "8:b" "epoch" "8""#,
    ];
    const READ: &str = r#"3.0 [0 1:2] "XREADGROUP" "GROUP" "g" "owner" "STREAMS" "s" ">""#;
    const CALL: &str = r#"3.0 [0 1:1] "EVALSHA" "ef" "2" "n:fence:x" "s" "7:a" "g" "log" "1-1""#;
    const LOOK: &str = r#"3.0 [0 lua] "HGET" "n:fence:x" "token""#;
    const ACK: &str = r#"3.0 [0 lua] "XACK" "s" "g" "1-1""#;

    fn hear(lines: &[&[&str]]) -> Fencing {
        let mut fencing = Fencing::default();
        lines.concat().iter().for_each(|line| fencing.line(line));
        fencing
    }

    #[test]
    fn commands_count_for_the_script_that_runs_them() {
        // Of another script than the refused one before it.
        const READER: &str = r#"3.1 [0 1:1] "EVALSHA_RO" "aa" "1" "s" "7:a""#;
        const SERVER: &str = r#"3.1 [0 lua] "INFO" "server""#;
        let read = hear(&[&GRANTS, &TAKEN, &[CALL, LOOK, READER, SERVER]]);
        assert_eq!((read.stale_calls, read.violations), (1, Vec::new()));
    }

    #[test]
    fn an_owner_may_and_one_that_was_may_not() {
        let owner = hear(&[&GRANTS, &[READ, CALL, LOOK, ACK]]);
        assert_eq!((owner.effects, owner.stale_calls, owner.violations.len()), (3, 0, 0));
        let refused = hear(&[&GRANTS, &TAKEN, &[CALL, LOOK]]);
        assert_eq!((refused.stale_calls, refused.violations.len()), (1, 0));
        let accepted = hear(&[&GRANTS, &TAKEN, &[READ, CALL, LOOK, ACK]]);
        assert_eq!((accepted.stale_calls, accepted.violations.len()), (1, 2));
    }

    #[test]
    fn words_are_told_apart() {
        let (address, words) = parse(r#"1.5 [0 127.0.0.1:1] "SET" "a b" "say \"x\"\\""#).expect("a line");
        assert_eq!((address, words), ("127.0.0.1:1", vec!["SET".into(), "a b".into(), r#"say "x"\"#.into()]));
        assert!(parse("nothing").is_none());
    }
}
