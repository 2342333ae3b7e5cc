//! The commands that had an effect on the server, in order, with a check that the owner at that time sent them.
//!
//! `MONITOR` shows executed commands: none of an aborted transaction, and for a script that refused a token only its
//! check of the fence. Any other command shown after a token therefore had an effect.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::thread::JoinHandle;

/// Commands of scripts that do not change data.
const READS: [&str; 18] = [
    "GET",
    "HGET",
    "HMGET",
    "HGETALL",
    "HLEN",
    "HEXISTS",
    "PTTL",
    "MGET",
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

/// What a script does is done under this fence, with this token.
#[derive(Clone, Debug)]
struct Row {
    keys: Vec<String>,
    fence: String,
    token: Option<String>,
}

/// What the name of a gate contains.
const GATE: &str = ":gate:";

/// Tracks the fences, and compares them with the token of each command.
#[derive(Debug, Default)]
pub struct Fencing {
    /// The current token of each fence.
    tokens: HashMap<String, String>,
    /// The fence and token that the reader of a gate began with.
    gates: HashMap<String, (String, String)>,
    /// The running script: its keys, fence, and token if it has one; of a script for several leases each.
    script: Vec<Row>,
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
            self.call(&words);
        } else if command == "XREADGROUP" {
            let gate = words.iter().find(|word| word.contains(GATE)).expect("who reads names a gate");
            match self.gates.get(gate).cloned() {
                Some((fence, token)) => self.effect(&fence, &token, line),
                // The server reads nothing without it.
                None => self.stale_calls += 1,
            }
        }
    }

    /// Processes the call of a script.
    fn call(&mut self, words: &[String]) {
        let count: usize = words[2].parse().expect("a number of keys");
        let (keys, args) = words[3..].split_at(count);
        let token = |args: &[String]| {
            let first = args.first()?;
            let is_token = first.split(':').count() == 2 && first.starts_with(|c: char| c.is_ascii_digit());
            is_token.then(|| first.clone())
        };
        let is_fence = |key: &&String| key.contains(":fence:");
        // `renew`: lease and fence, token and ttl of each.
        let size = if keys.iter().filter(is_fence).count() > 1 { 2 } else { keys.len().max(1) };
        let rows = keys.chunks(size).enumerate().filter_map(|(at, keys)| {
            let fence = keys.iter().find(is_fence)?.clone();
            Some(Row { keys: keys.to_vec(), fence, token: token(args.get(at * size..)?) })
        });
        self.script = rows.collect();
        let stale = |row: &&Row| row.token.is_some() && self.tokens.get(&row.fence) != row.token.as_ref();
        let stale_now = self.script.iter().filter(stale).count();
        self.stale_calls += stale_now;
    }

    /// Processes a command that a script runs.
    fn by_script(&mut self, command: &str, words: &[String], line: &str) {
        let row = match &self.script[..] {
            [only] => Some(only),
            rows => rows.iter().find(|row| words.iter().any(|word| row.keys.contains(word))),
        };
        let Some(Row { fence, token, .. }) = row.cloned() else { return };
        if let Some(token) = &token {
            self.effect(&fence, token, line);
        }
        if command == "HSET" && words[1] == fence {
            let field =
                |name: &str| words[2..].chunks(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone());
            if let Some(token) = field("token") {
                self.tokens.insert(fence.clone(), token);
            }
        }
        for gate in words.iter().filter(|word| word.contains(GATE)) {
            match (command, &token) {
                ("XGROUP", Some(token)) => {
                    self.gates.insert(gate.clone(), (fence.clone(), token.clone()));
                }
                ("DEL", _) => {
                    self.gates.remove(gate);
                }
                _ => {}
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
        r#"1.0 [0 1:2] "EVALSHA" "cd" "3" "n:fence:x" "n:gate:x:" "n:gate:x:word" "7:a" "" "word""#,
        r#"1.0 [0 lua] "XGROUP" "CREATE" "n:gate:x:word" "g" "$" "MKSTREAM""#,
    ];
    const TAKEN: [&str; 2] = [
        r#"2.0 [0 2:1] "EVALSHA" "ab" "3" "n:lease:x" "n:fence:x" "n:gate:x:word" "c-2" "other" "1000""#,
        r#"2.0 [0 lua] "HSET" "n:fence:x" "token" "8:b" "epoch" "8""#,
    ];
    const GONE: &str = r#"2.0 [0 lua] "DEL" "n:lease:x" "n:gate:x:word""#;
    const READ: &str =
        r#"3.0 [0 1:2] "XREADGROUP" "GROUP" "g" "owner" "STREAMS" "s" "n:gate:x:word" ">" ">""#;
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
        let closed = hear(&[&GRANTS, &TAKEN, &[GONE, READ]]);
        assert_eq!((closed.stale_calls, closed.violations.len()), (1, 0), "the server refuses it");
    }

    #[test]
    fn each_lease_of_a_renewal_has_its_own_right() {
        const RENEW: &str = r#"3.0 [0 1:1] "EVALSHA" "aa" "4" "n:lease:x" "n:fence:x" "n:lease:y" "n:fence:y" "7:a" "9" "8:c" "9""#;
        const OTHER: &str = r#"0.9 [0 lua] "HSET" "n:fence:y" "token" "8:c""#;
        const OF_Y: &str = r#"0.9 [0 1:1] "EVALSHA" "ab" "2" "n:lease:y" "n:fence:y" "c-1" "c" "1000""#;
        let extended = |key: &str| format!(r#"3.0 [0 lua] "PEXPIRE" "n:lease:{key}" "9""#);
        let (x, y) = (extended("x"), extended("y"));
        let good = hear(&[&GRANTS, &[OF_Y, OTHER], &TAKEN, &[RENEW, &y]]);
        assert_eq!((good.stale_calls, good.violations.len()), (1, 0));
        let bad = hear(&[&GRANTS, &[OF_Y, OTHER], &TAKEN, &[RENEW, &x, &y]]);
        assert_eq!((bad.stale_calls, bad.violations.len()), (1, 1));
    }

    #[test]
    fn words_are_told_apart() {
        let (address, words) = parse(r#"1.5 [0 127.0.0.1:1] "SET" "a b" "say \"x\"\\""#).expect("a line");
        assert_eq!((address, words), ("127.0.0.1:1", vec!["SET".into(), "a b".into(), r#"say "x"\"#.into()]));
        assert!(parse("nothing").is_none());
    }
}
