//! A forward proxy that asks for credentials, and the only one to know `garm.example` and
//! `forge.example`.

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use base64::Engine as _;

use super::head;

/// It ends with the test's process.
pub struct Proxy {
    address: SocketAddr,
    served: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl Proxy {
    pub fn start(user: &str, password: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::<Mutex<BTreeMap<String, usize>>>::default();
        let pair = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        let count = Arc::clone(&served);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (count, pair) = (Arc::clone(&count), pair.clone());
                std::thread::spawn(move || serve(client, &pair, &count));
            }
        });
        Self { address, served }
    }

    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// How many requests (or tunnels) for `host` were let through.
    pub fn served(&self, host: &str) -> usize {
        self.served.lock().unwrap().get(host).copied().unwrap_or_default()
    }
}

/// Serves one request: with more to come, a body would have to be told from the next head.
fn serve(mut client: TcpStream, pair: &str, served: &Mutex<BTreeMap<String, usize>>) {
    let head = head(&mut client);
    let Some((method, target)) = head.split_once(' ') else { return };
    let is_let_in = head.lines().any(|line| {
        let (name, value) = line.split_once(": ").unwrap_or_default();
        name.eq_ignore_ascii_case("proxy-authorization") && value == format!("Basic {pair}")
    });
    if !is_let_in {
        let refusal = "HTTP/1.1 407 Proxy Authentication Required\r\n\
                proxy-authenticate: Basic realm=\"x\"\r\ncontent-length: 0\r\n\
                connection: close\r\n\r\n";
        let _ = client.write_all(refusal.as_bytes());
        return;
    }
    let authority = target.trim_start_matches("http://").split(['/', ' ']).next().unwrap();
    let (host, port) = authority.split_once(':').unwrap();
    *served.lock().unwrap().entry(host.to_owned()).or_default() += 1;
    let upstream = TcpStream::connect(("127.0.0.1", port.parse::<u16>().unwrap())).unwrap();
    if method == "CONNECT" {
        client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        return join(client, upstream);
    }
    let rest = target.trim_start_matches("http://").trim_start_matches(authority);
    let rest = rest.replacen("\r\n", "\r\nconnection: close\r\n", 1);
    let mut to = upstream.try_clone().unwrap();
    to.write_all(format!("{method} {rest}").as_bytes()).unwrap();
    join(client, upstream);
}

/// Copies both ways until both have ended.
pub fn join(client: TcpStream, server: TcpStream) {
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Write);
        });
    };
    copy(client.try_clone().unwrap(), server.try_clone().unwrap());
    copy(server, client);
}
