//! A raw HTTP/1.1 client that sees what the wire really carries.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

/// An answer as read from the socket.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// How reading ended: `None` at the declared length, otherwise at the socket's end.
    pub(crate) end: Option<io::Result<()>>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// What a call needs; `url` is an origin plus a path.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) method: &'static str,
    pub(crate) url: String,
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

pub(crate) fn get(url: &str) -> Ask {
    Ask { method: "GET", url: url.to_owned(), headers: Vec::new(), body: Vec::new() }
}

pub(crate) fn post(url: &str, body: impl AsRef<[u8]>) -> Ask {
    Ask { method: "POST", body: body.as_ref().to_vec(), ..get(url) }
}

impl Ask {
    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.header("Authorization", &format!("Bearer {token}"))
    }

    fn bytes(&self, host: &str, path: &str) -> Vec<u8> {
        let mut text = format!("{} {path} HTTP/1.1\r\nHost: {host}\r\n", self.method);
        for (name, value) in &self.headers {
            let _ = write!(text, "{name}: {value}\r\n");
        }
        if !self.body.is_empty() {
            let _ = write!(text, "Content-Length: {}\r\n", self.body.len());
        }
        text += "\r\n";
        [text.into_bytes(), self.body.clone()].concat()
    }

    fn split(&self) -> (String, String) {
        let rest = self.url.strip_prefix("http://").unwrap();
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        (host.to_owned(), format!("/{path}"))
    }

    /// Sends it on a connection of its own and leaves the reading to the caller.
    pub(crate) fn open(&self) -> io::Result<TcpStream> {
        let (host, path) = self.split();
        let mut stream = TcpStream::connect(&host)?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(&self.bytes(&host, &path))?;
        Ok(stream)
    }

    /// Sends it and reads everything up to the declared length or the socket's end. An error
    /// before any status line is an error.
    pub(crate) fn send(&self) -> io::Result<Answer> {
        read_answer(&mut self.open()?, self.method == "HEAD")
    }

    pub(crate) fn status(&self) -> u16 {
        self.send().unwrap().status
    }
}

pub(crate) fn read_answer(stream: &mut impl Read, head_only: bool) -> io::Result<Answer> {
    let mut bytes = Vec::new();
    let mut end = None;
    loop {
        if let Some(answer) = parse(&bytes, head_only) {
            return Ok(Answer { end, ..answer });
        }
        let mut buffer = [0; 8192];
        match stream.read(&mut buffer) {
            Ok(0) => end = Some(Ok(())),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(error) => end = Some(Err(error)),
        }
        if let Some(ended) = end {
            let Some(mut answer) = parse_head(&bytes) else {
                ended?;
                let text = String::from_utf8_lossy(&bytes).into_owned();
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, text));
            };
            answer.end = Some(ended);
            return Ok(answer);
        }
    }
}

fn parse_head(bytes: &[u8]) -> Option<Answer> {
    let at = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
    let head = String::from_utf8_lossy(&bytes[..at]).into_owned();
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Answer { status, head, body: bytes[at + 4..].to_vec(), end: None })
}

fn parse(bytes: &[u8], head_only: bool) -> Option<Answer> {
    let answer = parse_head(bytes)?;
    let length: usize = answer.header("content-length")?.parse().ok()?;
    (head_only || answer.body.len() >= length).then_some(answer)
}
