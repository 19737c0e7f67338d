//! Whether a Docker engine answers: its own `GET /_ping`, on a plain socket.
//!
//! Where it speaks TLS only its port is tried: the keys are the jobs' own. Must not: know why somebody
//! wants to know.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// One attempt: an engine that has just begun to listen may take a moment to answer.
const ATTEMPT: Duration = Duration::from_secs(5);
const PING: &[u8] = b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n";

/// Where an engine listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Engine {
    Unix(PathBuf),
    /// Host and port.
    Tcp {
        address: String,
        tls: bool,
    },
}

impl Engine {
    /// What `DOCKER_HOST` names (`unix://PATH` or `tcp://HOST[:PORT]`), or Docker's own default; `Err` with
    /// the value if it is neither. `tls`: whether `DOCKER_TLS_VERIFY` is set.
    pub fn named(docker_host: Option<&str>, tls: bool) -> Result<Self, String> {
        let Some(named) = docker_host.filter(|named| !named.is_empty()) else {
            return Ok(Self::Unix(PathBuf::from("/var/run/docker.sock")));
        };
        if let Some(path) = named.strip_prefix("unix://") {
            return Ok(Self::Unix(PathBuf::from(path)));
        }
        let address = named.strip_prefix("tcp://").ok_or(named)?.trim_end_matches('/');
        let has_port =
            address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let port = if tls { 2376 } else { 2375 };
        let address = if has_port { address.to_owned() } else { format!("{address}:{port}") };
        Ok(Self::Tcp { address, tls })
    }

    /// Asks once, for at most `limit`. The error says why there was no good answer.
    pub async fn ping(&self, limit: Duration) -> io::Result<()> {
        let attempt = async {
            match self {
                Self::Unix(path) => answer(UnixStream::connect(path).await?).await,
                Self::Tcp { address, tls: true } => TcpStream::connect(address).await.map(drop),
                Self::Tcp { address, tls: false } => {
                    answer(TcpStream::connect(address).await?).await
                }
            }
        };
        let limit = limit.min(ATTEMPT);
        timeout(limit, attempt)
            .await
            .unwrap_or_else(|_| Err(io::Error::other("it does not answer")))
    }
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix://{}", path.display()),
            Self::Tcp { address, .. } => write!(f, "tcp://{address}"),
        }
    }
}

async fn answer(mut socket: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    socket.write_all(PING).await?;
    let mut said = Vec::new();
    (&mut socket).take("HTTP/1.1 200".len() as u64).read_to_end(&mut said).await?;
    if said.is_empty() {
        return Err(io::Error::other("it closed the connection without an answer"));
    }
    let good = said.starts_with(b"HTTP/1.") && said.ends_with(b" 200");
    let said = || String::from_utf8_lossy(&said).escape_debug().to_string();
    if good { Ok(()) } else { Err(io::Error::other(format!("it answered \"{}\"", said()))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_engine_is_where_docker_host_says() {
        let unix = |path: &str| Ok(Engine::Unix(path.into()));
        let tcp = |address: &str, tls| Ok(Engine::Tcp { address: address.to_owned(), tls });
        assert_eq!(Engine::named(None, false), unix("/var/run/docker.sock"));
        assert_eq!(Engine::named(Some(""), false), unix("/var/run/docker.sock"));
        assert_eq!(Engine::named(Some("unix:///run/d.sock"), false), unix("/run/d.sock"));
        assert_eq!(
            Engine::named(Some("tcp://localhost:2375"), false),
            tcp("localhost:2375", false)
        );
        assert_eq!(Engine::named(Some("tcp://dind"), true), tcp("dind:2376", true));
        assert_eq!(Engine::named(Some("tcp://dind/"), false), tcp("dind:2375", false));
        assert_eq!(Engine::named(Some("ssh://host"), false), Err("ssh://host".to_owned()));
    }
}
