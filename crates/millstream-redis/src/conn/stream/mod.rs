//! Streams of bytes to a server: TCP, TLS over TCP, and Unix sockets.

pub(crate) mod first_words;
#[cfg(feature = "tls")]
pub(crate) mod tls;

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll};

use redis::io::tcp::{TcpSettings, socket2::SockRef};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;

/// An open stream.
pub(crate) enum Stream {
    Tcp(TcpStream),
    #[cfg(feature = "tls")]
    Tls(Box<tokio_rustls::client::TlsStream<TcpStream>>),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
}

impl Stream {
    /// Ends the connection at once and discards its unsent data, so that the server does not receive that later.
    pub(crate) fn abort(self) {
        if let Some(stream) = self.tcp() {
            // On failure the connection is closed in the ordinary way.
            let _ = stream.set_zero_linger();
        }
    }

    fn tcp(&self) -> Option<&TcpStream> {
        match self {
            Self::Tcp(stream) => Some(stream),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => Some(stream.get_ref().0),
            #[cfg(unix)]
            Self::Unix(_) => None,
        }
    }

    /// Whether a write that failed may have sent some of its bytes before.
    pub(crate) fn may_send_part(&self) -> bool {
        match self {
            #[cfg(feature = "tls")]
            Self::Tls(_) => true,
            _ => false,
        }
    }

    fn socket(&self) -> SockRef<'_> {
        match self {
            Self::Tcp(stream) => SockRef::from(stream),
            #[cfg(feature = "tls")]
            Self::Tls(stream) => SockRef::from(stream.get_ref().0),
            #[cfg(unix)]
            Self::Unix(stream) => SockRef::from(stream),
        }
    }

    /// Takes up to 2 KiB that have arrived and were not read, also if a write has failed since; none over TLS.
    pub(crate) fn unread(&self) -> Vec<u8> {
        #[cfg(feature = "tls")]
        if let Self::Tls(_) = self {
            return Vec::new();
        }
        let mut bytes = vec![0; 2 << 10];
        // Past the runtime, which may not know of them yet. A socket of the runtime never blocks.
        let read = io::Read::read(&mut &*self.socket(), &mut bytes);
        bytes.truncate(read.unwrap_or(0));
        bytes
    }

    /// Returns whether the peer has closed the connection, or has sent something without a request.
    pub(crate) fn is_over(&self) -> bool {
        let socket = self.socket();
        #[cfg(feature = "tls")]
        if let Self::Tls(stream) = self
            && !stream.get_ref().1.wants_read()
        {
            // Something is decrypted and not read, or the peer has ended the session.
            return true;
        }
        // An open connection without unread bytes would block: a closed one peeks 0 bytes, a broken one an error.
        let peeked = socket.peek(&mut [MaybeUninit::uninit()]);
        !peeked.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Calls a method of the stream inside.
macro_rules! inside {
    ($stream:expr, $inside:ident => $call:expr) => {
        match $stream {
            Stream::Tcp($inside) => $call,
            #[cfg(feature = "tls")]
            Stream::Tls($inside) => $call,
            #[cfg(unix)]
            Stream::Unix($inside) => $call,
        }
    };
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        inside!(self.get_mut(), stream => Pin::new(stream).poll_read(cx, buf))
    }
}

impl Stream {
    /// Passes on what came of a write, with the reason that the server has given if it failed.
    fn done<T>(&mut self, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        #[cfg(feature = "tls")]
        if let Self::Tls(stream) = self {
            return written.map_err(|error| tls::why(stream, error));
        }
        written
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = inside!(this, stream => Pin::new(stream).poll_write(cx, buf));
        this.done(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = inside!(this, stream => Pin::new(stream).poll_write_vectored(cx, bufs));
        this.done(written)
    }

    fn is_write_vectored(&self) -> bool {
        inside!(self, stream => stream.is_write_vectored())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let flushed = inside!(this, stream => Pin::new(stream).poll_flush(cx));
        this.done(flushed)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        inside!(self.get_mut(), stream => Pin::new(stream).poll_shutdown(cx))
    }
}

/// Connects to all addresses of a host at once, so that one that never answers does not block the others.
pub(crate) async fn connect(host: &str, port: u16) -> io::Result<TcpStream> {
    let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
    if let [address] = addresses[..] {
        return TcpStream::connect(address).await;
    }
    let mut attempts: JoinSet<_> = addresses.into_iter().map(TcpStream::connect).collect();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    while let Some(attempt) = attempts.join_next().await {
        match attempt.unwrap_or_else(|error| Err(error.into())) {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

pub(crate) fn tune(stream: &TcpStream, settings: &TcpSettings) -> io::Result<()> {
    stream.set_nodelay(settings.nodelay())?;
    let socket = SockRef::from(stream);
    if let Some(keepalive) = settings.keepalive() {
        socket.set_tcp_keepalive(keepalive)?;
    }
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(settings.user_timeout())?;
    Ok(())
}
