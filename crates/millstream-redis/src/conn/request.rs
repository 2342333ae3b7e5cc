//! Requests as bytes: commands in a row, and numbers that are formatted without an allocation.

use millstream_core::id::MessageId;
use redis::Pipeline;

use crate::conn::login::auth;
use crate::credentials::Credentials;

/// Commands to send in one write. Meant to be cleared and filled again, since the next request is about as long as the
/// last one.
#[derive(Default)]
pub(crate) struct Request {
    bytes: Vec<u8>,
    commands: usize,
    login: bool,
}

impl Request {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { bytes: Vec::with_capacity(bytes), ..Self::default() }
    }

    /// Logs in again on an open connection.
    pub(crate) fn of_login(credentials: &Credentials) -> Self {
        let mut request = Self { login: true, ..Self::default() };
        request.add(&auth(credentials));
        request
    }

    /// Whether it does nothing but log in again.
    pub(crate) fn is_login(&self) -> bool {
        self.login
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.commands = 0;
    }

    /// Adds one command.
    pub(crate) fn add(&mut self, args: &[&[u8]]) {
        self.begin(args.len());
        for arg in args {
            self.arg(arg);
        }
    }

    /// Begins a command with this number of [`arg`](Self::arg)s.
    pub(crate) fn begin(&mut self, args: usize) {
        self.head(b'*', args);
        self.commands += 1;
    }

    pub(crate) fn arg(&mut self, arg: &[u8]) {
        self.head(b'$', arg.len());
        self.bytes.extend_from_slice(arg);
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(crate) fn add_pipeline(&mut self, pipe: &Pipeline) {
        for cmd in pipe.cmd_iter() {
            cmd.write_packed_command(&mut self.bytes);
        }
        self.commands += pipe.len();
    }

    fn head(&mut self, kind: u8, len: usize) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(Digits::number(len as u64).as_bytes());
        self.bytes.extend_from_slice(b"\r\n");
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Returns the number of replies to expect.
    pub(crate) fn commands(&self) -> usize {
        self.commands
    }
}

/// A number or an id as text, written from the end into a buffer on the stack.
pub(crate) struct Digits {
    bytes: [u8; Self::ROOM],
    from: usize,
}

impl Digits {
    /// Room for two numbers of up to 20 digits, a dash and a bracket.
    const ROOM: usize = 42;

    pub(crate) fn number(n: u64) -> Self {
        let mut digits = Self { bytes: [0; Self::ROOM], from: Self::ROOM };
        digits.prepend(n);
        digits
    }

    /// Formats `ms-seq`.
    pub(crate) fn id(id: MessageId) -> Self {
        let mut digits = Self::number(id.seq);
        digits.push(b'-');
        digits.prepend(id.ms);
        digits
    }

    /// Formats `(ms-seq`: the exclusive start of a range behind the id.
    pub(crate) fn behind(id: MessageId) -> Self {
        let mut digits = Self::id(id);
        digits.push(b'(');
        digits
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[self.from..]
    }

    fn push(&mut self, byte: u8) {
        self.from -= 1;
        self.bytes[self.from] = byte;
    }

    fn prepend(&mut self, mut n: u64) {
        loop {
            // A single digit, so the cast is lossless.
            self.push(b'0' + (n % 10) as u8);
            n /= 10;
            if n == 0 {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_longest_id_has_room() {
        let id = MessageId::MAX;
        assert_eq!(Digits::behind(id).as_bytes(), format!("({id}").as_bytes());
    }

    proptest! {
        #[test]
        fn digits_are_what_display_shows(ms: u64, seq: u64) {
            let id = MessageId::new(ms, seq);
            prop_assert_eq!(Digits::number(ms).as_bytes().to_vec(), ms.to_string().into_bytes());
            prop_assert_eq!(Digits::id(id).as_bytes().to_vec(), id.to_string().into_bytes());
        }

        #[test]
        fn commands_are_those_of_the_client(
            args in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..20), 1..6),
        ) {
            let mut pipe = Pipeline::new();
            let mut cmd = redis::Cmd::new();
            for arg in &args {
                cmd.arg(&arg[..]);
            }
            pipe.add_command(cmd);
            let (mut ours, mut theirs) = (Request::default(), Request::default());
            theirs.add_pipeline(&pipe);
            ours.add(&args.iter().map(|arg| &arg[..]).collect::<Vec<_>>());
            prop_assert_eq!(ours.bytes(), theirs.bytes());
            prop_assert_eq!((ours.commands(), theirs.commands()), (1, 1));
        }
    }
}
