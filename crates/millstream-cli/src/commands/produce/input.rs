//! Reading what is to be produced: on a thread of its own, in portions, so that what is held is bounded however much
//! comes, and what has come is sent even if no more does.

use std::io::{self, BufRead, BufReader, Read};
use std::thread;

use bytes::Bytes;
use tokio::sync::mpsc;

/// The longest line: the largest payload, all of it escaped, with key and headers.
const MAX_LINE: usize = 8 << 20;

/// The most lines and bytes of a portion.
const PORTION: usize = 500;
const PORTION_BYTES: usize = 4 << 20;

/// How much is read at once.
const BUFFER: usize = 256 << 10;

/// A line, or all that there is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// Counted from 1.
    pub(super) number: u64,
    /// How much was read for it.
    pub(super) read: u64,
    /// Without its end; `None` if it was too long.
    pub(super) bytes: Option<Bytes>,
}

/// Lines in portions, as they come.
#[derive(Debug)]
pub(super) struct Input {
    portions: mpsc::Receiver<io::Result<Vec<Line>>>,
}

impl Input {
    /// Reads lines, or with `whole` everything as one.
    pub(super) fn new(source: impl Read + Send + 'static, whole: bool) -> Self {
        // One is being sent, one waits, and one is being read.
        let (portions, receiver) = mpsc::channel(1);
        // No task of the runtime: whoever waits for a terminal cannot be stopped, and must not hold up the end.
        thread::spawn(move || {
            let give = |portion| portions.blocking_send(portion).is_ok();
            let ended = if whole { all(source, give) } else { lines(source, give) };
            if let Err(error) = ended {
                // Nobody wants to know any more if this is not taken.
                let _ = portions.blocking_send(Err(error));
            }
        });
        Self { portions: receiver }
    }

    /// The next lines; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<io::Result<Vec<Line>>> {
        self.portions.recv().await
    }
}

fn all(source: impl Read, mut give: impl FnMut(io::Result<Vec<Line>>) -> bool) -> io::Result<()> {
    let mut bytes = Vec::new();
    let read = source.take(MAX_LINE as u64 + 1).read_to_end(&mut bytes)?;
    let bytes = (read <= MAX_LINE).then(|| bytes.into());
    give(Ok(vec![Line { number: 1, read: read as u64, bytes }]));
    Ok(())
}

/// Gives lines away whenever there are enough, or before it has to wait for more.
fn lines(source: impl Read, mut give: impl FnMut(io::Result<Vec<Line>>) -> bool) -> io::Result<()> {
    let mut source = BufReader::with_capacity(BUFFER, source);
    let mut portion = Portion::default();
    let mut line = Vec::new();
    let (mut number, mut read, mut is_long) = (0, 0, false);
    loop {
        if source.buffer().is_empty() && !portion.lines.is_empty() && !give(Ok(portion.take())) {
            return Ok(());
        }
        let buffer = match source.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            other => other?,
        };
        let at_end = buffer.is_empty();
        let end = buffer.iter().position(|byte| *byte == b'\n');
        let part = &buffer[..end.unwrap_or(buffer.len())];
        let used = part.len() + usize::from(end.is_some());
        is_long |= line.len() + part.len() > MAX_LINE;
        if is_long {
            line.clear();
        } else {
            line.extend_from_slice(part);
        }
        read += used as u64;
        source.consume(used);
        if end.is_some() || at_end && read > 0 {
            number += 1;
            let bytes = (!std::mem::take(&mut is_long)).then(|| std::mem::take(&mut line).into());
            portion.push(Line { number, read: std::mem::take(&mut read), bytes });
        }
        let is_ready = portion.is_full() || at_end && !portion.lines.is_empty();
        if is_ready && !give(Ok(portion.take())) {
            return Ok(());
        }
        if at_end {
            return Ok(());
        }
    }
}

#[derive(Default)]
struct Portion {
    lines: Vec<Line>,
    bytes: usize,
}

impl Portion {
    fn push(&mut self, line: Line) {
        self.bytes += line.bytes.as_ref().map_or(0, Bytes::len);
        self.lines.push(line);
    }

    fn is_full(&self) -> bool {
        self.lines.len() >= PORTION || self.bytes >= PORTION_BYTES
    }

    fn take(&mut self) -> Vec<Line> {
        self.bytes = 0;
        std::mem::take(&mut self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Vec<(u64, Option<Vec<u8>>)> {
        let mut seen = Vec::new();
        let mut total = 0;
        let give = |portion: io::Result<Vec<Line>>| {
            let portion = portion.expect("no error");
            assert!(!portion.is_empty() && portion.len() <= PORTION);
            for line in portion {
                total += line.read;
                seen.push((line.number, line.bytes.map(|bytes| bytes.to_vec())));
            }
            true
        };
        lines(bytes, give).expect("read");
        assert_eq!(total, bytes.len() as u64, "everything is counted");
        seen
    }

    #[test]
    fn a_line_ends_with_a_line_feed_and_nothing_else() {
        let line = |number, text: &str| (number, Some(text.as_bytes().to_vec()));
        assert_eq!(read(b""), []);
        assert_eq!(read(b"a"), [line(1, "a")]);
        assert_eq!(read(b"a\nb\n"), [line(1, "a"), line(2, "b")]);
        assert_eq!(read(b"\n\r\n\0"), [line(1, ""), line(2, "\r"), line(3, "\0")], "empty lines are lines");
    }

    #[test]
    fn a_line_that_is_too_long_is_told_and_not_held() {
        let mut bytes = b"a\n".to_vec();
        bytes.extend(std::iter::repeat_n(b'x', MAX_LINE + 1));
        bytes.extend_from_slice(b"\nb\n");
        bytes.extend(std::iter::repeat_n(b'y', MAX_LINE));
        let seen = read(&bytes);
        let lens: Vec<_> = seen.iter().map(|(_, bytes)| bytes.as_ref().map(Vec::len)).collect();
        assert_eq!(lens, [Some(1), None, Some(1), Some(MAX_LINE)]);
    }

    #[test]
    fn portions_are_bounded() {
        let many = "x\n".repeat(PORTION * 3 + 1);
        assert_eq!(read(many.as_bytes()).len(), PORTION * 3 + 1);
        let large = format!("{}\n", "x".repeat(1 << 20)).repeat(9);
        let mut sizes = Vec::new();
        lines(large.as_bytes(), |portion| {
            sizes.push(portion.expect("no error").len());
            true
        })
        .expect("read");
        assert!(sizes.iter().all(|lines| *lines <= 4), "{sizes:?}");
        assert_eq!(sizes.iter().sum::<usize>(), 9);
    }

    #[tokio::test]
    async fn what_has_come_is_given_before_more_comes() {
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        let mut input = Input::new(reader, false);
        for text in ["a\nb\n", "c\n"] {
            io::Write::write_all(&mut writer, text.as_bytes()).expect("written");
            let lines = input.next().await.expect("a portion").expect("no error");
            assert_eq!(lines.len(), text.len() / 2, "it does not wait for the end");
        }
        io::Write::write_all(&mut writer, b"half").expect("written");
        drop(writer);
        assert_eq!(input.next().await.expect("a portion").expect("no error").len(), 1);
        assert!(input.next().await.is_none());
    }
}
