//! The socket wrapper that carries out a connection's plan.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

use super::control::{Control, End, Step};

/// A connection with or without TLS.
#[derive(Debug)]
pub(crate) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    fn tcp(&mut self) -> &mut TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.get_mut().0,
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Self::Plain(tcp) => Pin::new(tcp).poll_write(cx, buf),
            Self::Tls(tls) => Pin::new(tls).poll_write(cx, buf),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Plain(tcp) => Pin::new(tcp).poll_flush(cx),
            Self::Tls(tls) => Pin::new(tls).poll_flush(cx),
        }
    }
}

/// What axum reads from and writes to.
#[derive(Debug)]
pub(crate) struct WireIo {
    stream: Stream,
    control: Arc<Control>,
    ended: bool,
}

impl WireIo {
    pub(crate) fn new(stream: Stream, control: Arc<Control>) -> Self {
        Self { stream, control, ended: false }
    }

    pub(crate) fn control(&self) -> &Arc<Control> {
        &self.control
    }

    fn end(&mut self, cx: &mut Context<'_>, end: End) -> Poll<io::Error> {
        // What was let through must leave before the end does (TLS buffers records).
        if let Err(error) = ready!(self.stream.poll_flush(cx)) {
            return Poll::Ready(error);
        }
        match end {
            End::Reset => {
                if let Err(error) = self.stream.tcp().set_zero_linger() {
                    return Poll::Ready(error);
                }
            }
            End::Close => {
                if let Err(error) = ready!(Pin::new(self.stream.tcp()).poll_shutdown(cx)) {
                    return Poll::Ready(error);
                }
            }
        }
        self.ended = true;
        Poll::Ready(io::Error::new(io::ErrorKind::ConnectionAborted, "ended by a fault"))
    }
}

impl AsyncRead for WireIo {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.control.killed_or_wake(cx.waker()) {
            let _ = this.stream.tcp().set_zero_linger();
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        match &mut this.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_read(cx, buf),
            Stream::Tls(tls) => Pin::new(tls).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for WireIo {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        loop {
            match this.control.step(buf) {
                Step::Pass(count) => {
                    let sent = ready!(this.stream.poll_write(cx, &buf[..count]))?;
                    this.control.passed(&buf[..sent]);
                    return Poll::Ready(Ok(sent));
                }
                Step::Raw(bytes) => {
                    let sent = ready!(this.stream.poll_write(cx, &bytes))?;
                    this.control.raw_passed(sent);
                }
                Step::End(end) => return this.end(cx, end).map(Err),
            }
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let first = bufs.iter().find(|buf| !buf.is_empty());
        self.poll_write(cx, first.map_or(&[], |buf| buf))
    }

    /// Otherwise hyper copies a body of 160 MB into one buffer before it sends the first byte.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().stream.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.ended {
            return Poll::Ready(Ok(()));
        }
        match &mut this.stream {
            Stream::Plain(tcp) => Pin::new(tcp).poll_shutdown(cx),
            Stream::Tls(tls) => Pin::new(tls).poll_shutdown(cx),
        }
    }
}
