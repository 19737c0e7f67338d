//! Listening sockets: numbered connections, TLS handshakes off the accept path, and going down.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::control::Control;
use super::io::{Stream, WireIo};

/// What Go's server answers when plain HTTP comes to its TLS port.
const PLAIN_ON_TLS: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";

/// The open connections of one listener, so that all can be cut.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: Mutex<Vec<Weak<Control>>>,
}

/// Connection ids are unique over all listeners of the process.
static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

impl Connections {
    fn admit(&self) -> Arc<Control> {
        let control = Arc::new(Control::new(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed)));
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|known| known.strong_count() > 0);
        open.push(Arc::downgrade(&control));
        control
    }

    /// Resets every open connection.
    pub(crate) fn cut(&self) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        for control in open.drain(..).filter_map(|known| known.upgrade()) {
            control.kill();
        }
    }
}

/// A listener on loopback whose sockets carry a [`Control`]. Dropping it closes the port at once.
#[derive(Debug)]
pub(crate) struct WireListener {
    address: SocketAddr,
    tcp: TcpListener,
    tls: Option<Tls>,
    connections: Arc<Connections>,
}

/// Handshakes run aside, so that a client that never ends its own keeps nobody waiting.
struct Tls {
    acceptor: TlsAcceptor,
    done: mpsc::Receiver<WireIo>,
    sender: mpsc::Sender<WireIo>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

impl WireListener {
    /// Binds `127.0.0.1:port` (0: any free port).
    pub(crate) async fn bind(
        port: u16,
        tls: Option<TlsAcceptor>,
        connections: Arc<Connections>,
    ) -> io::Result<Self> {
        let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let tls = tls.map(|acceptor| {
            let (sender, done) = mpsc::channel(64);
            Tls { acceptor, done, sender }
        });
        Ok(Self { address: tcp.local_addr()?, tcp, tls, connections })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    async fn next_tcp(tcp: &TcpListener) -> TcpStream {
        loop {
            let Ok((stream, _)) = tcp.accept().await else {
                // Out of file descriptors: give the others time to close some.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            let _ = stream.set_nodelay(true);
            return stream;
        }
    }
}

async fn handshake(mut tcp: TcpStream, acceptor: &TlsAcceptor) -> Option<Stream> {
    let mut first = [0; 1];
    if tcp.peek(&mut first).await.ok()? == 1 && first[0] != 0x16 {
        let mut request = [0; 4096];
        loop {
            tcp.readable().await.ok()?;
            match tcp.try_read(&mut request) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                _ => break,
            }
        }
        let _ = tcp.write_all(PLAIN_ON_TLS).await;
        let _ = tcp.shutdown().await;
        return None;
    }
    let stream = acceptor.accept(tcp).await.ok()?;
    Some(Stream::Tls(Box::new(stream)))
}

impl Listener for WireListener {
    type Io = WireIo;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let Some(tls) = &mut self.tls else {
            let tcp = Self::next_tcp(&self.tcp).await;
            let io = WireIo::new(Stream::Plain(tcp), self.connections.admit());
            return (io, self.address);
        };
        loop {
            tokio::select! {
                Some(io) = tls.done.recv() => return (io, self.address),
                tcp = Self::next_tcp(&self.tcp) => {
                    let (acceptor, sender) = (tls.acceptor.clone(), tls.sender.clone());
                    let control = self.connections.admit();
                    tokio::spawn(async move {
                        if let Some(stream) = handshake(tcp, &acceptor).await {
                            let _ = sender.send(WireIo::new(stream, control)).await;
                        }
                    });
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(self.address)
    }
}

/// The connection of a request, for the handlers.
#[derive(Clone, Debug)]
pub(crate) struct Connection(pub(crate) Arc<Control>);

impl Connected<IncomingStream<'_, WireListener>> for Connection {
    fn connect_info(stream: IncomingStream<'_, WireListener>) -> Self {
        Self(Arc::clone(stream.io().control()))
    }
}
