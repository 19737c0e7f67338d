//! A network with a round trip: it hands every byte on a fixed time later, and as many as come.
//!
//! Loopback answers a SYN at once, so the first bytes of a connection wait for one more round trip.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

const CHUNK: usize = 64 << 10;
/// As much as may be on its way: no throttle, but no end of memory either.
const ON_ITS_WAY: usize = 1024;

/// A relay to a port of loopback.
pub(super) struct Relay {
    pub(super) port: u16,
}

impl Relay {
    /// Starts it on a thread of its own; it lives as long as the process. `one_way` is half a round trip.
    pub(super) fn start(to: u16, one_way: Duration) -> io::Result<Self> {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::spawn(move || runtime.block_on(serve(listener, to, one_way)));
        Ok(Self { port })
    }
}

async fn serve(listener: std::net::TcpListener, to: u16, one_way: Duration) -> io::Result<()> {
    let listener = TcpListener::from_std(listener)?;
    loop {
        let (near, _) = listener.accept().await?;
        tokio::spawn(carry(near, SocketAddr::from(([127, 0, 0, 1], to)), one_way));
    }
}

async fn carry(near: TcpStream, to: SocketAddr, one_way: Duration) -> io::Result<()> {
    let handshake = Instant::now() + one_way * 2;
    let far = TcpStream::connect(to).await?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    let (near_read, near_write) = near.into_split();
    let (far_read, far_write) = far.into_split();
    let up = one_direction(near_read, far_write, one_way, handshake);
    let down = one_direction(far_read, near_write, one_way, handshake);
    tokio::try_join!(up, down).map(|_| ())
}

async fn one_direction(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    one_way: Duration,
    not_before: Instant,
) -> io::Result<()> {
    let (send, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(ON_ITS_WAY);
    let take = async move {
        loop {
            let mut chunk = vec![0; CHUNK];
            let count = from.read(&mut chunk).await?;
            chunk.truncate(count);
            let at = Instant::now().max(not_before) + one_way;
            // An empty chunk is the end; the other side may have gone before.
            if send.send((at, chunk)).await.is_err() || count == 0 {
                return Ok::<(), io::Error>(());
            }
        }
    };
    let give = async move {
        while let Some((at, chunk)) = due.recv().await {
            sleep_until(at).await;
            if chunk.is_empty() {
                break;
            }
            to.write_all(&chunk).await?;
        }
        to.shutdown().await
    };
    tokio::try_join!(take, give).map(|_| ())
}
