//! Arguments of requests that arrive as others.

use std::sync::Arc;

/// Replaces arguments in the bytes of a connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Replacing {
    /// Arguments as they are written, each with what is written instead.
    pairs: Arc<[(Vec<u8>, Vec<u8>)]>,
    /// The beginning of an argument of which the rest has not come.
    held: Vec<u8>,
}

impl Replacing {
    pub(super) fn new(pairs: &[(String, String)]) -> Self {
        let pairs = pairs.iter().map(|(from, to)| (written(from), written(to)));
        Self { pairs: pairs.collect(), held: Vec::new() }
    }

    /// Returns the bytes that are forwarded when this piece has come.
    pub(super) fn pass(&mut self, piece: &[u8]) -> Vec<u8> {
        if self.pairs.is_empty() {
            return piece.to_vec();
        }
        self.held.extend_from_slice(piece);
        let bytes = std::mem::take(&mut self.held);
        let (mut passed, mut rest) = (Vec::with_capacity(bytes.len()), &*bytes);
        while let Some(at) = rest.iter().position(|byte| *byte == b'$') {
            passed.extend_from_slice(&rest[..at]);
            rest = &rest[at..];
            if let Some((from, to)) = self.pairs.iter().find(|(from, _)| rest.starts_with(from)) {
                passed.extend_from_slice(to);
                rest = &rest[from.len()..];
            } else if self.pairs.iter().any(|(from, _)| from.starts_with(rest)) {
                self.held = rest.to_vec();
                return passed;
            } else {
                passed.push(b'$');
                rest = &rest[1..];
            }
        }
        passed.extend_from_slice(rest);
        passed
    }
}

/// An argument in the protocol of the server: its length, then its text.
fn written(argument: &str) -> Vec<u8> {
    format!("${}\r\n{argument}\r\n", argument.len()).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_replaced_wherever_they_are_cut() {
        let pair = |from: &str, to: &str| (from.to_owned(), to.to_owned());
        let replacing = Replacing::new(&[pair("a", "longer"), pair("$1\r\na", "b")]);
        let request = b"*3\r\n$1\r\na\r\n$2\r\n$a\r\n$5\r\n$1\r\na\r\n$1\r\nx\r\n";
        let replaced = b"*3\r\n$6\r\nlonger\r\n$2\r\n$a\r\n$1\r\nb\r\n$1\r\nx\r\n";
        for cut in 0..=request.len() {
            let (first, second) = request.split_at(cut);
            let mut replacing = replacing.clone();
            let passed = [replacing.pass(first), replacing.pass(second)].concat();
            assert_eq!(String::from_utf8_lossy(&passed), String::from_utf8_lossy(replaced), "cut at {cut}");
        }
    }
}
