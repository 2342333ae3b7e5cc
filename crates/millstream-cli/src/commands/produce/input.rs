//! Reads the input of produce on a separate thread, in portions. Memory is bounded for input of any size, and lines
//! that have arrived are sent even if no more follow.

use std::io::{self, BufRead, BufReader, Read};
use std::thread;

use bytes::Bytes;
use tokio::sync::mpsc;

/// Returns the maximum length of a line, in bytes: the largest payload, fully escaped, with key and headers.
fn max_line(max_payload: usize) -> usize {
    max_payload.max(1 << 20).saturating_mul(8)
}

/// Maximum number of lines and of bytes of a portion.
const PORTION: usize = 500;
const PORTION_BYTES: usize = 4 << 20;

/// Size of the read buffer, in bytes.
const BUFFER: usize = 256 << 10;

/// A line, or the whole input.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ProduceLine {
    /// The number of the line, from 1.
    pub(super) number: u64,
    /// The number of bytes read for it.
    pub(super) read: u64,
    /// The line without its end; `None` if it was too long.
    pub(super) bytes: Option<Bytes>,
}

/// Reads lines in portions, as they arrive.
#[derive(Debug)]
pub(super) struct Input {
    portions: mpsc::Receiver<io::Result<Vec<ProduceLine>>>,
}

impl Input {
    /// Creates a reader of lines, or with `whole`, of the whole input as one.
    pub(super) fn new(source: impl Read + Send + 'static, whole: bool, max_payload: usize) -> Self {
        // One portion is being sent, one waits, and one is being read.
        let (portions, receiver) = mpsc::channel(1);
        // Not a task of the runtime: a read from a terminal cannot be cancelled, and must not delay the end of the
        // process.
        thread::spawn(move || {
            let give = |portion| portions.blocking_send(portion).is_ok();
            let longest = max_line(max_payload);
            let ended = if whole { all(source, longest, give) } else { lines(source, longest, give) };
            if let Err(error) = ended {
                // If the send fails, the receiver is gone and needs no error.
                let _ = portions.blocking_send(Err(error));
            }
        });
        Self { portions: receiver }
    }

    /// Returns the next lines; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<io::Result<Vec<ProduceLine>>> {
        self.portions.recv().await
    }
}

fn all(
    source: impl Read,
    longest: usize,
    mut give: impl FnMut(io::Result<Vec<ProduceLine>>) -> bool,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    let read = source.take(longest as u64 + 1).read_to_end(&mut bytes)?;
    let bytes = (read <= longest).then(|| bytes.into());
    give(Ok(vec![ProduceLine { number: 1, read: read as u64, bytes }]));
    Ok(())
}

/// Passes lines on when a portion is full, or before it has to wait for more input.
fn lines(
    source: impl Read,
    longest: usize,
    mut give: impl FnMut(io::Result<Vec<ProduceLine>>) -> bool,
) -> io::Result<()> {
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
        is_long |= line.len() + part.len() > longest;
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
            portion.push(ProduceLine { number, read: std::mem::take(&mut read), bytes });
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
    lines: Vec<ProduceLine>,
    bytes: usize,
}

impl Portion {
    fn push(&mut self, line: ProduceLine) {
        self.bytes += line.bytes.as_ref().map_or(0, Bytes::len);
        self.lines.push(line);
    }

    fn is_full(&self) -> bool {
        self.lines.len() >= PORTION || self.bytes >= PORTION_BYTES
    }

    fn take(&mut self) -> Vec<ProduceLine> {
        self.bytes = 0;
        std::mem::take(&mut self.lines)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX_LINE: usize = 8 << 20;

    fn read(bytes: &[u8]) -> Vec<(u64, Option<Vec<u8>>)> {
        let mut seen = Vec::new();
        let mut total = 0;
        let give = |portion: io::Result<Vec<ProduceLine>>| {
            let portion = portion.expect("no error");
            assert!(!portion.is_empty() && portion.len() <= PORTION);
            for line in portion {
                total += line.read;
                seen.push((line.number, line.bytes.map(|bytes| bytes.to_vec())));
            }
            true
        };
        lines(bytes, max_line(1), give).expect("read");
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
        lines(large.as_bytes(), MAX_LINE, |portion| {
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
        let mut input = Input::new(reader, false, 1);
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
